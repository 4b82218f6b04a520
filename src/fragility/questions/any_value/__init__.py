"""Whatever the value: what a decision survives although fields take any value of their domains. (SPEC 19)

values       the values that each field may take, cut into pieces on which a model decides alike
native       tree ensembles and linear models: every set of units up to a size is decided
asking       the model itself is asked, on raw rows through the whole pipeline
budgets      find_any_value_budgets: how many units must change, to some values, before a decision flips
safe_sets    find_safe_sets: what a decision does not need, whatever it says
found        what these two give
"""

from fragility.questions.any_value.budgets import find_any_value_budgets
from fragility.questions.any_value.safe_sets import find_safe_sets

__all__ = ["find_any_value_budgets", "find_safe_sets"]
