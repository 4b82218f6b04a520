"""The residual MLP, plain or trained to keep its support when evidence is degraded."""

from fragility.analysis.resmlp.classifier import Device, ResMLPClassifier
from fragility.analysis.resmlp.penalty import FragilityPenalty

__all__ = ["Device", "FragilityPenalty", "ResMLPClassifier"]
