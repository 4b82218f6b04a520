"""Hardening: models trained again so that their predictions rest on more of their evidence (SPEC section 13).

declaration  what is done to a copy of a training row
acceptance   which models can be hardened
twins        degraded copies of rows
inputs       what the final estimator is trained on
training     `harden`
"""

from fragility.hardening.training import harden

__all__ = ["harden"]
