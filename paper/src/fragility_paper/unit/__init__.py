"""One unit: fit, certify, label, rank. ``measure`` runs it all; each other module is one analysis."""

from fragility_paper.unit.baselines import measure_baselines
from fragility_paper.unit.fitted import fit_unit
from fragility_paper.unit.hardening import measure_hardening
from fragility_paper.unit.measuring import measure
from fragility_paper.unit.mode_hardening import measure_mode_hardening
from fragility_paper.unit.modes import measure_modes
from fragility_paper.unit.work import UnitResult

__all__ = [
    "UnitResult",
    "fit_unit",
    "measure",
    "measure_baselines",
    "measure_hardening",
    "measure_mode_hardening",
    "measure_modes",
]
