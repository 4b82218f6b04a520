"""Hardening: models trained again so that their predictions rest on more of their evidence (SPEC section 13).

declaration  what is done to a copy of a training row
acceptance   which models can be hardened
spaces       which groups can be lost, and toward what
twins        degraded copies of rows
inputs       what the final estimator is trained on
epochs       a network stopped by validation rows of ours
training     `harden`
classifier   the same as a meta-estimator
standing     what a model's predictions rest on, before and after
transfer     whether a gain carries over to failures that training did not use
choice       the rate by what it costs
"""

from fragility.hardening.choice import RateChoice, RateOutcome, choose_rate
from fragility.hardening.classifier import HardenedClassifier
from fragility.hardening.spaces import protocol_for
from fragility.hardening.standing import Mending, Standing, standing
from fragility.hardening.training import harden
from fragility.hardening.transfer import Transfer, transfer_of

__all__ = [
    "HardenedClassifier",
    "Mending",
    "RateChoice",
    "RateOutcome",
    "Standing",
    "Transfer",
    "choose_rate",
    "harden",
    "protocol_for",
    "standing",
    "transfer_of",
]
