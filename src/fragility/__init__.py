"""Counterfactual fragility certificates for tabular classifiers.

For one prediction of a trained model: under a declared evidence-failure protocol, what trajectory makes this prediction
lose support? The answer is a certificate: finite, deterministic, and recomputable by anyone who has the model, the rows
and the protocol.
"""

from fragility._evaluate import Baselines, evaluate
from fragility.audit import audit
from fragility.bundled import load_credit_g
from fragility.calibration import FragilityCalibratedClassifier, FragilityTemperature
from fragility.certificate import Certificate, Certificates
from fragility.display import CollapseDisplay, FragileCalibrationDisplay, FragilityMapDisplay
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
from fragility.loading import load_model
from fragility.models import Model
from fragility.protocol import Protocol
from fragility.ranking import compare_scores
from fragility.resmlp import FragilityPenalty, ResMLPClassifier
from fragility.search import compare_searches, find_failing_sets
from fragility.stress import Dropout, Mask, Noise, Outages, Stress, label_brittle
from fragility.verify import Verification, verify
from fragility.version import __version__

__all__ = [
    "Baselines",
    "Certificate",
    "CertificateError",
    "Certificates",
    "CollapseDisplay",
    "DataError",
    "Dropout",
    "EngineError",
    "EvidenceError",
    "FragileCalibrationDisplay",
    "FragilityCalibratedClassifier",
    "FragilityError",
    "FragilityMapDisplay",
    "FragilityPenalty",
    "FragilityTemperature",
    "Mask",
    "Model",
    "ModelError",
    "Noise",
    "Outages",
    "Protocol",
    "ProtocolError",
    "ResMLPClassifier",
    "Stress",
    "Verification",
    "VerificationError",
    "__version__",
    "audit",
    "compare_scores",
    "compare_searches",
    "evaluate",
    "find_failing_sets",
    "label_brittle",
    "load_credit_g",
    "load_model",
    "verify",
]
