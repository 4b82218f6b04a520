"""The smallest set of evidence groups whose loss flips a prediction: exact where the model is additive.

found     FailingSets, the answer, also while it is being found; how far the greedy path is from the smallest set
blackbox  beam, and all subsets by size, for any model
finding   which search for which row: the whole lattice, a closed form, branch and bound, integer programs, or asking
"""

from fragility.questions.search.blackbox import failing_sets_of_rows
from fragility.questions.search.finding import find_failing_sets
from fragility.questions.search.found import FailingSets, MinimalSets

__all__ = [
    "FailingSets",
    "MinimalSets",
    "failing_sets_of_rows",
    "find_failing_sets",
]
