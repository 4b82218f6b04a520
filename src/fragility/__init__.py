"""Counterfactual fragility certificates for tabular classifiers.

For one prediction of a trained model: under a declared evidence-failure protocol, what trajectory makes this prediction
lose support? The answer is a certificate: finite, deterministic, and recomputable by anyone who has the model, the rows
and the protocol.
"""

from fragility.audit import audit
from fragility.bundled import load_credit_g
from fragility.calibration import BrittlenessAwareClassifier, BrittlenessAwareTemperature, FragileCalibrationDisplay
from fragility.certificates import Certificate, Certificates
from fragility.display import CollapseDisplay, FragilityMapDisplay
from fragility.errors import (
    CertificateError,
    DataError,
    EngineError,
    EvidenceError,
    FragilityError,
    ModelError,
    ProtocolError,
    VerificationError,
)
from fragility.evaluate import evaluate
from fragility.loading import load_model
from fragility.models import Model
from fragility.protocol import Protocol
from fragility.ranking import ranking_report
from fragility.resmlp import FragilityPenalty, ResMLPClassifier
from fragility.search import greedy_diagnostics, smallest_failing_sets
from fragility.stress import Stress, brittle_labels
from fragility.verify import Verification, verify
from fragility.version import __version__

__all__ = [
    "BrittlenessAwareClassifier",
    "BrittlenessAwareTemperature",
    "Certificate",
    "CertificateError",
    "Certificates",
    "CollapseDisplay",
    "DataError",
    "EngineError",
    "EvidenceError",
    "FragileCalibrationDisplay",
    "FragilityError",
    "FragilityMapDisplay",
    "FragilityPenalty",
    "Model",
    "ModelError",
    "Protocol",
    "ProtocolError",
    "ResMLPClassifier",
    "Stress",
    "Verification",
    "VerificationError",
    "__version__",
    "audit",
    "brittle_labels",
    "evaluate",
    "greedy_diagnostics",
    "load_credit_g",
    "load_model",
    "ranking_report",
    "smallest_failing_sets",
    "verify",
]
