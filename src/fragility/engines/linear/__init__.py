r"""Linear engine: certificates of linear classifiers without one model pass.

    links     which models the engine knows, and how their scores become probabilities
    sums      the raw scores of rows and of their removals, as sums over evidence groups
    fillings  from those sums to a trace
    engine    what `engines.choice` calls: rows in pieces that stay in the processor's cache

The raw score of class c is a sum over evidence groups, and every state of a certificate only exchanges terms of it:

    s_c(x)          = b_c + sum_g u_gc,    u_gc = sum_{j in g} w_cj x_j,    ubar_gc the same at the baseline
    s_c(R(x, {g}))  = s_c(x) - t_gc,       t_gc = u_gc - ubar_gc
    s_c(x^(k))      = s_c(x) - sum_{g among the first k groups of the path} t_gc
    s_c(lambda)     = s_c(x) - lambda sum_{g attenuated} t_gc

so a certificate costs one product of the rows with the weights, and sums. With two classes and the logistic link the
margin needs no link at all: log p1 - log p0 = s, and clipping probabilities at 1e-12 clips s at log(1e12). With many
classes and the softmax link, let o be the original class and D_c = s_o - s_c: the support margin is min_{c != o} D_c as
long as no probability in it is clipped, and p_o = 1 / (1 + sum_{c != o} exp(-D_c)).

Letters: m rows, d columns, G groups, C classes, O outputs (1 for two classes, else C), K depth, P operators.
"""
