"""Counterfactual fragility certificates for tabular classifiers.

For one prediction of a trained model: under a declared evidence-failure protocol, what trajectory makes this prediction
lose support? The answer is a certificate: finite, deterministic, and recomputable by anyone who has the model, the rows
and the protocol.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fragility.version import __version__

if TYPE_CHECKING:
    from fragility._audit import audit
    from fragility._evaluate import evaluate
    from fragility._verify import Verification, verify
    from fragility.bundled import load_credit_g
    from fragility.calibration import BrittlenessAwareClassifier, BrittlenessAwareTemperature, FragileCalibrationDisplay
    from fragility.certificate import Certificate, Certificates
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
    from fragility.loading import load_model
    from fragility.models import Model
    from fragility.protocol import Protocol
    from fragility.ranking import ranking_report
    from fragility.resmlp import FragilityPenalty, ResMLPClassifier
    from fragility.search import greedy_diagnostics, smallest_failing_sets
    from fragility.stress import Stress, brittle_labels

# Public name -> its module, which is imported when the name is first used: pandas, scikit-learn and the rest take over
# a second, and whoever asks for the version or mistypes an option should not wait for them.
_HOME = {
    "BrittlenessAwareClassifier": "calibration",
    "BrittlenessAwareTemperature": "calibration",
    "Certificate": "certificate",
    "CertificateError": "errors",
    "Certificates": "certificate",
    "CollapseDisplay": "display",
    "DataError": "errors",
    "EngineError": "errors",
    "EvidenceError": "errors",
    "FragileCalibrationDisplay": "calibration",
    "FragilityError": "errors",
    "FragilityMapDisplay": "display",
    "FragilityPenalty": "resmlp",
    "Model": "models",
    "ModelError": "errors",
    "Protocol": "protocol",
    "ProtocolError": "errors",
    "ResMLPClassifier": "resmlp",
    "Stress": "stress",
    "Verification": "_verify",
    "VerificationError": "errors",
    "audit": "_audit",
    "brittle_labels": "stress",
    "evaluate": "_evaluate",
    "greedy_diagnostics": "search",
    "load_credit_g": "bundled",
    "load_model": "loading",
    "ranking_report": "ranking",
    "smallest_failing_sets": "search",
    "verify": "_verify",
}

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


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'fragility' has no attribute {name!r}")
    value = getattr(import_module(f"fragility.{_HOME[name]}"), name)
    globals()[name] = value  # found directly from now on
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
