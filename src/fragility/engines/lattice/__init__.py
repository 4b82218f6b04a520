"""The whole lattice: whether a row's decision is lost, for every subset of its evidence groups at once.

    additive  when a state flips, as an inequality per rival class; linear models, whose groups add up
    trees     that inequality for tree ensembles: whole numbers per leaf, with a sound bound on all rounding
    programs  a row with too many groups for a table, as a mixed-integer program
    whole     rows in chunks and threads: marked subsets; the model itself is asked about those near the edge

With one fixed baseline every state of removal is a subset S of the G groups. Raw scores of additive models are
polynomials in the indicators of S, and one transform gives the value at all 2^L subsets of the L groups that matter for
a row. What is kept of a row is one bit per subset: does it flip?
"""
