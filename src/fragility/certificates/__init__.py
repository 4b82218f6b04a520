"""Certificates: the claims of an audit, their digests, their table, and the folder they are written to."""

from fragility.certificates.certificate import Certificate
from fragility.certificates.claims import EXTENTS, MEASURED, PER_STEP, Claims, Extent, contradictions, derived_claims
from fragility.certificates.collection import RANKED_BY, Certificates, completed
from fragility.certificates.digests import FORMAT, context_digest, digest_from_text, digest_text, row_digests
from fragility.certificates.folder import (
    MANIFEST_FILE,
    WORK_FOLDER,
    check_writable_folder,
    commit,
    read_folder,
    read_manifest,
    read_protocol,
    remove_unnamed,
    writing_into,
)
from fragility.certificates.manifest import (
    CLAIM,
    LIMITS,
    check_manifest,
    check_words,
    declared_tolerance,
    identical,
    manifest_text,
)
from fragility.certificates.parts import PART_ROWS, encoded_part, part_name
from fragility.certificates.stored import StoredAudit, open_audit
from fragility.certificates.summary import CONFIDENT, AuditSummary
from fragility.certificates.table import claims_of, schema_of, table_of

__all__ = [
    "CLAIM",
    "CONFIDENT",
    "EXTENTS",
    "FORMAT",
    "LIMITS",
    "MANIFEST_FILE",
    "MEASURED",
    "PART_ROWS",
    "PER_STEP",
    "RANKED_BY",
    "WORK_FOLDER",
    "AuditSummary",
    "Certificate",
    "Certificates",
    "Claims",
    "Extent",
    "StoredAudit",
    "check_manifest",
    "check_words",
    "check_writable_folder",
    "claims_of",
    "commit",
    "completed",
    "context_digest",
    "contradictions",
    "declared_tolerance",
    "derived_claims",
    "digest_from_text",
    "digest_text",
    "encoded_part",
    "identical",
    "manifest_text",
    "open_audit",
    "part_name",
    "read_folder",
    "read_manifest",
    "read_protocol",
    "remove_unnamed",
    "row_digests",
    "schema_of",
    "table_of",
    "writing_into",
]
