"""Trust in an audit without recomputing it: signatures, and proofs that a row belongs to it."""

from fragility.trust.proofs import prove, verify_proof
from fragility.trust.signing import generate_keys, sign, verify_signature

__all__ = ["generate_keys", "prove", "sign", "verify_proof", "verify_signature"]
