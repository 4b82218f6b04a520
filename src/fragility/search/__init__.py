"""Is there a smaller failing set than the greedy path found?"""

from fragility.search.blackbox import failing_sets_of_rows, find_failing_sets
from fragility.search.diagnostics import SearchComparison, compare_searches
from fragility.search.found import FOUND, NONE, UNAFFORDABLE, FailingSets

__all__ = [
    "FOUND",
    "NONE",
    "UNAFFORDABLE",
    "FailingSets",
    "SearchComparison",
    "compare_searches",
    "failing_sets_of_rows",
    "find_failing_sets",
]
