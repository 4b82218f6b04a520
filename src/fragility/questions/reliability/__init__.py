"""Given how often fields fail, how likely is each decision to be lost, and which feed should be made reliable first?

rates     what the user declares: one rate per group, rates per group and mode, or recorded outages
sampling  quasi-random subsets, for rows whose lattice is too large
modes     groups that may be lost or wrong
failure   `assess_reliability`: which method for which row
outcomes  `FailureProbability`, the answer
"""
