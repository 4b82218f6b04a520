"""Certificates: the claims of an audit, their digests, their table, and the folder they are written to."""

from fragility.blocks.baselines.comparison import BaselineComparison
from fragility.blocks.claims import Claims
from fragility.blocks.intervals.values import IntervalsDeclaration
from fragility.blocks.lattice.values import LatticeDeclaration
from fragility.blocks.modes import ModesDeclaration
from fragility.certificates.audit import Audit
from fragility.certificates.certificate import Certificate
from fragility.certificates.manifest import Manifest
from fragility.certificates.memory import Certificates
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
