"""Counterfactual fragility certificates for tabular classifiers.

For one prediction of a trained model: under a declared evidence-failure protocol, what trajectory makes this prediction
lose support? The answer is a certificate: finite, deterministic, and recomputable by anyone who has the model, the rows
and the protocol.
"""

from fragility.audit import audit
from fragility.bundled import load_credit_g
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
from fragility.models import Model
from fragility.protocol import Protocol
from fragility.verify import Verification, verify
from fragility.version import __version__

__all__ = [
    "Certificate",
    "CertificateError",
    "Certificates",
    "CollapseDisplay",
    "DataError",
    "EngineError",
    "EvidenceError",
    "FragilityError",
    "FragilityMapDisplay",
    "Model",
    "ModelError",
    "Protocol",
    "ProtocolError",
    "Verification",
    "VerificationError",
    "__version__",
    "audit",
    "load_credit_g",
    "verify",
]
