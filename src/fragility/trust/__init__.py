"""Trust in an audit without recomputing it: who signed it, and that one row belongs to it."""

from fragility.trust.keys import generate_key
from fragility.trust.proofs import check_proof, prove
from fragility.trust.signing import sign, verify_signature

__all__ = ["check_proof", "generate_key", "prove", "sign", "verify_signature"]
