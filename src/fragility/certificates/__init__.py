"""Certificates: the claims of an audit, their digests, their table, and the folder they are written to."""

from fragility.certificates.certificate import Certificate
from fragility.certificates.claims import MEASURED, Claims, contradictions, derived_claims
from fragility.certificates.collection import RANKED_BY, Certificates
from fragility.certificates.digests import FORMAT, context_digest, digest_from_text, digest_text, row_digests
from fragility.certificates.folder import (
    MANIFEST_FILE,
    check_writable_folder,
    manifest_bytes,
    read_folder,
    read_manifest,
    read_protocol,
    read_protocol_signature,
)
from fragility.certificates.lattice import (
    LatticeClaims,
    LatticeDeclaration,
    check_declaration,
    lattice_context,
    lattice_contradictions,
    lattice_digests,
)
from fragility.certificates.manifest import (
    CLAIM,
    LIMITS,
    check_classes,
    check_manifest,
    check_words,
    declared_tolerance,
    identical,
    manifest_text,
)
from fragility.certificates.summary import CONFIDENT, AuditSummary
from fragility.certificates.table import claims_of, schema_of, table_of

__all__ = [
    "CLAIM",
    "CONFIDENT",
    "FORMAT",
    "LIMITS",
    "MANIFEST_FILE",
    "MEASURED",
    "RANKED_BY",
    "AuditSummary",
    "Certificate",
    "Certificates",
    "Claims",
    "LatticeClaims",
    "LatticeDeclaration",
    "check_declaration",
    "check_classes",
    "check_manifest",
    "check_words",
    "check_writable_folder",
    "claims_of",
    "context_digest",
    "contradictions",
    "declared_tolerance",
    "derived_claims",
    "digest_from_text",
    "digest_text",
    "identical",
    "lattice_context",
    "lattice_contradictions",
    "lattice_digests",
    "manifest_bytes",
    "manifest_text",
    "read_folder",
    "read_manifest",
    "read_protocol",
    "read_protocol_signature",
    "row_digests",
    "schema_of",
    "table_of",
]
