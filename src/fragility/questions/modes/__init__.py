"""Evidence that is wrong, not only lost.

losses     what each declared failure mode costs a prediction, unit by unit
scales     the values of an ordered field, numbered so that neighbours differ by 1
stability  what a search for stability intervals found
searching  the search: by the pieces of trees, along a line, or between values of the catalogue
intervals  `find_stability_intervals`
"""

from fragility.questions.modes.losses import ModeLoss, ModeLosses, assess_modes

__all__ = ["ModeLoss", "ModeLosses", "assess_modes"]
