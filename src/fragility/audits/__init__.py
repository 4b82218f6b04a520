"""Certificates: the claims of an audit, their digests, their table, and the folder they are written to."""

from fragility.audits.audit import Audit
from fragility.audits.certificate import Certificate
from fragility.audits.manifest import Manifest
from fragility.audits.memory import Certificates
from fragility.audits.stored import StoredAudit, open_audit
from fragility.audits.tally import AuditSummary
from fragility.blocks.baselines.comparison import BaselineComparison
from fragility.blocks.claims import Claims

__all__ = [
    "Audit",
    "AuditSummary",
    "BaselineComparison",
    "Certificate",
    "Certificates",
    "Claims",
    "Manifest",
    "StoredAudit",
    "open_audit",
]
