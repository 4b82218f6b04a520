"""Counterfactual fragility certificates for tabular classifiers.

For one prediction of a trained model: under a declared evidence-failure protocol, what trajectory makes this prediction
lose support? The answer is a certificate: finite, deterministic, and recomputable by anyone who has the model, the rows
and the protocol.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fragility.version import __version__

if TYPE_CHECKING:
    from fragility.auditing.auditor import Auditor
    from fragility.auditing.baselines import compare_baselines
    from fragility.auditing.files import audit_files
    from fragility.auditing.pipeline import audit
    from fragility.bundled import load_credit_g
    from fragility.calibration import FragilityCalibratedClassifier, FragilityTemperature
    from fragility.certificates import BaselineComparison, Certificate, Certificates, StoredAudit, open_audit
    from fragility.deciding import (
        Check,
        Checks,
        Guard,
        ServedRows,
        WithoutDisplay,
        WithoutEvaluation,
        evaluate_without,
        read_feature_response,
    )
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
    from fragility.evidence.modes import FailureModes
    from fragility.evidence.stability import StabilityInterval
    from fragility.formats import CsvFormat
    from fragility.gate import Gate, GateResult, Rule, Verdict
    from fragility.hardening.choice import RateChoice, choose_rate
    from fragility.hardening.classifier import HardenedClassifier
    from fragility.hardening.training import harden
    from fragility.integrations.mlflow_logging import log_audit
    from fragility.models import Model
    from fragility.models.loading import load_model
    from fragility.modes.intervals import find_stability_intervals
    from fragility.modes.losses import ModeLosses, assess_modes
    from fragility.modes.stability import StabilityIntervals
    from fragility.packing import check_pack, pack_evidence
    from fragility.parity import ModelParity, compare_models
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
    from fragility.watching import Alarm, WatchResult, watch

# Module -> its public names. It is imported when one of them is first used: pandas, scikit-learn and the rest take over
# a second, and whoever asks for the version or mistypes an option should not wait for them.
_NAMES = {
    "auditing.auditor": "Auditor",
    "auditing.baselines": "compare_baselines",
    "auditing.files": "audit_files",
    "auditing.pipeline": "audit",
    "bundled": "load_credit_g",
    "calibration": "FragilityCalibratedClassifier FragilityTemperature",
    "certificates": "BaselineComparison Certificate Certificates StoredAudit open_audit",
    "deciding": "Check Checks Guard ServedRows WithoutDisplay WithoutEvaluation evaluate_without read_feature_response",
    "drawing.displays": "CollapseDisplay FragileCalibrationDisplay FragilityMapDisplay ReviewPolicyDisplay",
    "drawing.figure": "ReliabilityDisplay",
    "errors": "CertificateError ClusterError DataError EngineError EvidenceError FragilityError ModelError "
    "ProtocolError VerificationError",
    "evidence.modes": "FailureModes",
    "evidence.stability": "StabilityInterval",
    "formats": "CsvFormat",
    "gate": "Gate GateResult Rule Verdict",
    "hardening.choice": "RateChoice choose_rate",
    "hardening.classifier": "HardenedClassifier",
    "hardening.training": "harden",
    "integrations.mlflow_logging": "log_audit",
    "models": "Model",
    "models.loading": "load_model",
    "modes.intervals": "find_stability_intervals",
    "modes.losses": "ModeLosses assess_modes",
    "modes.stability": "StabilityIntervals",
    "packing": "check_pack pack_evidence",
    "parity": "ModelParity compare_models",
    "policy": "ReviewPolicy",
    "protocol": "Protocol",
    "ranking.comparison": "compare_scores",
    "ranking.evaluating": "Baselines evaluate",
    "reliability.failure": "failure_probability",
    "reliability.outcomes": "FailureProbability",
    "report": "Report",
    "resmlp": "FragilityPenalty ResMLPClassifier",
    "search": "compare_searches find_failing_sets",
    "segments": "SegmentShares share_by",
    "stress.declaration": "Stress",
    "stress.labels": "label_brittle",
    "stress.stressors": "Donor Dropout Mask Noise Outages",
    "trust": "check_proof generate_key prove sign verify_signature",
    "verification.outcome": "Outcome Verification",
    "verification.verifying": "verify",
    "watching": "Alarm WatchResult watch",
}
_HOME = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = [
    "Alarm",
    "Auditor",
    "BaselineComparison",
    "Baselines",
    "Certificate",
    "CertificateError",
    "Certificates",
    "Check",
    "Checks",
    "ClusterError",
    "CollapseDisplay",
    "CsvFormat",
    "DataError",
    "Donor",
    "Dropout",
    "EngineError",
    "EvidenceError",
    "FailureModes",
    "FailureProbability",
    "FragileCalibrationDisplay",
    "FragilityCalibratedClassifier",
    "FragilityError",
    "FragilityMapDisplay",
    "FragilityPenalty",
    "FragilityTemperature",
    "Gate",
    "GateResult",
    "Guard",
    "HardenedClassifier",
    "Mask",
    "ModeLosses",
    "Model",
    "ModelError",
    "ModelParity",
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
    "Rule",
    "SegmentShares",
    "ServedRows",
    "StabilityInterval",
    "StabilityIntervals",
    "StoredAudit",
    "Stress",
    "Verdict",
    "Verification",
    "VerificationError",
    "WatchResult",
    "WithoutDisplay",
    "WithoutEvaluation",
    "__version__",
    "assess_modes",
    "audit",
    "audit_files",
    "check_pack",
    "check_proof",
    "choose_rate",
    "compare_baselines",
    "compare_models",
    "compare_scores",
    "compare_searches",
    "evaluate",
    "evaluate_without",
    "failure_probability",
    "find_failing_sets",
    "find_stability_intervals",
    "generate_key",
    "harden",
    "label_brittle",
    "load_credit_g",
    "load_model",
    "log_audit",
    "open_audit",
    "pack_evidence",
    "prove",
    "read_feature_response",
    "share_by",
    "sign",
    "verify",
    "verify_signature",
    "watch",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'fragility' has no attribute {name!r}")
    value = getattr(import_module(f"fragility.{_HOME[name]}"), name)
    globals()[name] = value  # found directly from now on
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
