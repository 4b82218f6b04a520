"""Trust in an audit without recomputing it: who signed it, and that one row belongs to it."""

from fragility.trust.proofs import prove, verify_proof
from fragility.trust.signing import generate_keys, sign, verify_signature

__all__ = ["generate_keys", "prove", "sign", "verify_proof", "verify_signature"]
