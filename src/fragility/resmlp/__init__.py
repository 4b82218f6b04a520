"""The residual MLP, plain or trained to keep its support when evidence is degraded."""

from fragility.resmlp.classifier import Device, ResMLPClassifier
from fragility.resmlp.penalty import FragilityPenalty

__all__ = ["Device", "FragilityPenalty", "ResMLPClassifier"]
