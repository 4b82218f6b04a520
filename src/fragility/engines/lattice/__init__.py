"""The whole lattice: whether a row's decision is lost, for every subset of its evidence groups at once.

    rule    when a state flips, as an inequality for each rival class
    trees   that inequality for tree ensembles: whole numbers a leaf, with a sound bound on all rounding
    linear  the same for linear models, whose groups add up
    whole   rows in chunks and threads: marked subsets, those near the edge settled by the model itself

With one fixed baseline every state of removal is a subset S of the G groups. Raw scores of additive models are
polynomials in the indicators of S, and one transform gives the value at all 2^L subsets of the L groups that matter for
a row. What is kept of a row is one bit a subset: does it flip?
"""
