"""Parity: two artefacts of one model, compared on rows and on every state of their certificates.

result     what a comparison found: counts by kind of state, what reveals a difference, the smallest examples
pairing    two models on one table: whose column is whose, which class is which, and how each is asked
states     the states of rows: lost, missing, wrong, noisy, along the path, faded; and their counts
comparing  `check_parity`
"""

from fragility.parity.comparing import check_parity
from fragility.parity.result import ModelParity

__all__ = ["ModelParity", "check_parity"]
