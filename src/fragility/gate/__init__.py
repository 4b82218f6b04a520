"""Gate: does a new audit rest on no less evidence than declared, or than an earlier audit? Rules and verdicts.

rules      what an audit must show, the TOML file that declares it, and what a measure depends on
estimates  what the rows show of a measure, segment by segment, and how far the truth may lie from it
checking   `Gate`
verdicts   verdicts, as a page and as JUnit XML
"""

from fragility.gate.checking import Gate
from fragility.gate.rules import Rule
from fragility.gate.verdicts import GateResult, Verdict

__all__ = ["Gate", "GateResult", "Rule", "Verdict"]
