"""The smallest set of evidence groups whose loss flips a prediction: exact where the model is additive.

found        FailingSets, the answer
answers      the answer while it is being found, row by row
whole        through the whole lattice of a tree ensemble or a linear model
trees        branch and bound, for trees with more live groups than a table holds
linear       closed form, for linear models of any number of groups
blackbox     beam, and all subsets by size, for any model
finding      which of them for which row
diagnostics  how far the greedy path is from the smallest set
"""

from fragility.search.blackbox import failing_sets_of_rows
from fragility.search.finding import find_failing_sets
from fragility.search.found import FailingSets, MinimalSets, SearchComparison, compare_searches
from fragility.wording import MINIMUM, NONE_AT_ALL, UNDECIDED, UPPER_BOUND, none_up_to

__all__ = [
    "MINIMUM",
    "NONE_AT_ALL",
    "UNDECIDED",
    "UPPER_BOUND",
    "FailingSets",
    "MinimalSets",
    "SearchComparison",
    "compare_searches",
    "failing_sets_of_rows",
    "find_failing_sets",
    "none_up_to",
]
