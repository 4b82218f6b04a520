"""Given how often fields fail, how likely is each decision to be lost, and which feed should be made reliable first?

rates     what the user declares: one rate per group, or recorded outages
sampling  quasi-random subsets, for rows whose lattice is too large
failure   `failure_probability`: which method for which row
outcomes  `FailureProbability`, the answer
"""
