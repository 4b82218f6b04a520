"""Gate: rules that a new audit must keep to, alone or compared with an earlier audit, and their verdicts.

rules      rules, the TOML file that declares them, and the settings that scale each measure
estimates  estimates of a measure per segment, with confidence bounds
checking   `Gate`
verdicts   verdicts, as a page and as JUnit XML
"""

from fragility.gate.checking import Gate
from fragility.gate.rules import Rule
from fragility.gate.verdicts import GateResult, Verdict

__all__ = ["Gate", "GateResult", "Rule", "Verdict"]
