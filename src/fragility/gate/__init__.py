"""Gate: does a new audit rest on no less evidence than declared, or than an earlier audit? Rules and verdicts."""

from fragility.gate.checking import Gate
from fragility.gate.rules import Rule
from fragility.gate.verdicts import GateResult, Verdict

__all__ = ["Gate", "GateResult", "Rule", "Verdict"]
