"""Certificates: the claims of an audit, their digests, their table, and the folder they are written to."""

from fragility.certificates.audit import Audit
from fragility.certificates.certificate import Certificate
from fragility.certificates.claims import Claims
from fragility.certificates.dependence import BaselineComparison
from fragility.certificates.intervals import IntervalsDeclaration
from fragility.certificates.lattice import LatticeDeclaration
from fragility.certificates.manifest import Manifest
from fragility.certificates.memory import Certificates
from fragility.certificates.modes import ModesDeclaration
from fragility.certificates.stored import StoredAudit, open_audit
from fragility.certificates.tally import AuditSummary

__all__ = [
    "Audit",
    "AuditSummary",
    "BaselineComparison",
    "Certificate",
    "Certificates",
    "Claims",
    "IntervalsDeclaration",
    "LatticeDeclaration",
    "Manifest",
    "ModesDeclaration",
    "StoredAudit",
    "open_audit",
]
