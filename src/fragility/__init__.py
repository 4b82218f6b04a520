"""Counterfactual fragility certificates for tabular classifiers.

For one prediction of a trained model: under a declared evidence-failure protocol, what trajectory makes this prediction
lose support? The answer is a certificate: finite, deterministic, and recomputable by anyone who has the model, the rows
and the protocol.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fragility.version import __version__

if TYPE_CHECKING:
    from fragility.auditing.baselines import compare_baselines
    from fragility.auditing.files import audit_files
    from fragility.auditing.pipeline import audit
    from fragility.bundled import load_credit_g
    from fragility.calibration import FragilityCalibratedClassifier, FragilityTemperature
    from fragility.certificates import BaselineComparison, Certificate, Certificates, StoredAudit, open_audit
    from fragility.drawing.displays import (
        CollapseDisplay,
        FragileCalibrationDisplay,
        FragilityMapDisplay,
        ReviewPolicyDisplay,
    )
    from fragility.drawing.figure import ReliabilityDisplay
    from fragility.errors import (
        CertificateError,
        ClusterError,
        DataError,
        EngineError,
        EvidenceError,
        FragilityError,
        ModelError,
        ProtocolError,
        VerificationError,
    )
    from fragility.formats import CsvFormat
    from fragility.hardening.choice import RateChoice, choose_rate
    from fragility.hardening.classifier import HardenedClassifier
    from fragility.hardening.training import harden
    from fragility.models import Model
    from fragility.models.loading import load_model
    from fragility.policy import ReviewPolicy
    from fragility.protocol import Protocol
    from fragility.ranking.comparison import compare_scores
    from fragility.ranking.evaluating import Baselines, evaluate
    from fragility.reliability.failure import failure_probability
    from fragility.reliability.outcomes import FailureProbability
    from fragility.report import Report
    from fragility.resmlp import FragilityPenalty, ResMLPClassifier
    from fragility.search import compare_searches, find_failing_sets
    from fragility.segments import SegmentShares, share_by
    from fragility.stress.declaration import Stress
    from fragility.stress.labels import label_brittle
    from fragility.stress.stressors import Donor, Dropout, Mask, Noise, Outages
    from fragility.trust import check_proof, generate_key, prove, sign, verify_signature
    from fragility.verification.outcome import Outcome, Verification
    from fragility.verification.verifying import verify

# Public name -> its module, which is imported when the name is first used: pandas, scikit-learn and the rest take over
# a second, and whoever asks for the version or mistypes an option should not wait for them.
_HOME = {
    "BaselineComparison": "certificates",
    "Baselines": "ranking.evaluating",
    "Certificate": "certificates",
    "CertificateError": "errors",
    "ClusterError": "errors",
    "Certificates": "certificates",
    "CollapseDisplay": "drawing.displays",
    "CsvFormat": "formats",
    "DataError": "errors",
    "Donor": "stress.stressors",
    "Dropout": "stress.stressors",
    "EngineError": "errors",
    "EvidenceError": "errors",
    "FailureProbability": "reliability.outcomes",
    "FragileCalibrationDisplay": "drawing.displays",
    "FragilityCalibratedClassifier": "calibration",
    "FragilityError": "errors",
    "FragilityMapDisplay": "drawing.displays",
    "FragilityPenalty": "resmlp",
    "FragilityTemperature": "calibration",
    "HardenedClassifier": "hardening.classifier",
    "Mask": "stress.stressors",
    "Model": "models",
    "ModelError": "errors",
    "Noise": "stress.stressors",
    "Outages": "stress.stressors",
    "Outcome": "verification.outcome",
    "Protocol": "protocol",
    "ProtocolError": "errors",
    "RateChoice": "hardening.choice",
    "ReliabilityDisplay": "drawing.figure",
    "Report": "report",
    "ResMLPClassifier": "resmlp",
    "ReviewPolicy": "policy",
    "ReviewPolicyDisplay": "drawing.displays",
    "SegmentShares": "segments",
    "StoredAudit": "certificates",
    "Stress": "stress.declaration",
    "Verification": "verification.outcome",
    "VerificationError": "errors",
    "audit": "auditing.pipeline",
    "audit_files": "auditing.files",
    "choose_rate": "hardening.choice",
    "check_proof": "trust",
    "compare_baselines": "auditing.baselines",
    "compare_scores": "ranking.comparison",
    "compare_searches": "search",
    "evaluate": "ranking.evaluating",
    "failure_probability": "reliability.failure",
    "find_failing_sets": "search",
    "harden": "hardening.training",
    "generate_key": "trust",
    "label_brittle": "stress.labels",
    "load_credit_g": "bundled",
    "load_model": "models.loading",
    "prove": "trust",
    "share_by": "segments",
    "sign": "trust",
    "open_audit": "certificates",
    "verify": "verification.verifying",
    "verify_signature": "trust",
}

__all__ = [
    "BaselineComparison",
    "Baselines",
    "Certificate",
    "CertificateError",
    "Certificates",
    "ClusterError",
    "CollapseDisplay",
    "CsvFormat",
    "DataError",
    "Donor",
    "Dropout",
    "EngineError",
    "EvidenceError",
    "FailureProbability",
    "FragileCalibrationDisplay",
    "FragilityCalibratedClassifier",
    "FragilityError",
    "FragilityMapDisplay",
    "FragilityPenalty",
    "FragilityTemperature",
    "HardenedClassifier",
    "Mask",
    "Model",
    "ModelError",
    "Noise",
    "Outages",
    "Outcome",
    "Protocol",
    "ProtocolError",
    "RateChoice",
    "ReliabilityDisplay",
    "Report",
    "ResMLPClassifier",
    "ReviewPolicy",
    "ReviewPolicyDisplay",
    "SegmentShares",
    "StoredAudit",
    "Stress",
    "Verification",
    "VerificationError",
    "__version__",
    "audit",
    "audit_files",
    "check_proof",
    "choose_rate",
    "compare_baselines",
    "compare_scores",
    "compare_searches",
    "evaluate",
    "failure_probability",
    "find_failing_sets",
    "generate_key",
    "harden",
    "label_brittle",
    "load_credit_g",
    "load_model",
    "open_audit",
    "prove",
    "share_by",
    "sign",
    "verify",
    "verify_signature",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'fragility' has no attribute {name!r}")
    value = getattr(import_module(f"fragility.{_HOME[name]}"), name)
    globals()[name] = value  # found directly from now on
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
