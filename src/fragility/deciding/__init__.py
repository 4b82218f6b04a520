"""At decision time: what a decision hangs on, and what a missing or stale field would have changed.

values      what unknown fields may hold, with weights
nearest     the same from the nearest training rows
changing    P_change: the probability that knowing them would change the decision, and which to fetch first
standins    the raw value in the place of a missing field
guard       `Guard`, which checks decisions as they are made
outcome     what a check says
missing     `evaluate_missing`: fields that are known are hidden, and P_change is compared with what really changed
evaluation  what that gives
hanging     the smallest failing sets of a decision, and how likely it is lost
decisions   rows with missing fields are completed, bound and decided
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
