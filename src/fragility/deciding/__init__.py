"""At decision time: what a decision hangs on, and what a missing or stale field would have changed.

values      what unknown fields may hold, with weights: listed values, or those of the nearest training rows
changing    P_change: the probability that knowing them would change the decision, and which to fetch first
decisions   rows with missing fields are completed, where the model needs it by stand-ins, bound and decided
guard       `Guard`, which checks decisions as they are made: what each hangs on, and how likely it is lost
outcome     what a check says
missing     `evaluate_missing`: fields that are known are hidden, and P_change is compared with what really changed
evaluation  what that gives
"""

from fragility.deciding.evaluation import MissingDisplay, MissingEvaluation
from fragility.deciding.guard import Guard
from fragility.deciding.missing import evaluate_missing
from fragility.deciding.outcome import Check, Checks

__all__ = [
    "Check",
    "Checks",
    "Guard",
    "MissingDisplay",
    "MissingEvaluation",
    "evaluate_missing",
]
