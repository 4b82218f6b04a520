"""The label channel: held-out random stress that says which confident predictions really break.

Nothing here is used by any certificate or ranking score; `fragility.ranking` does not import this package.
"""

from fragility.stress.declaration import Stress, Stressor
from fragility.stress.draws import row_keys, strikes, uniforms
from fragility.stress.labels import (
    BrittleLabels,
    StressRun,
    collapse_under,
    label_brittle,
    label_rows,
    run_stress,
    run_stress_rows,
)
from fragility.stress.outages import Outages, outage_events
from fragility.stress.stressors import Donor, Dropout, Layout, Mask, Noise

__all__ = [
    "BrittleLabels",
    "Donor",
    "Dropout",
    "Layout",
    "Mask",
    "Noise",
    "Outages",
    "Stress",
    "StressRun",
    "Stressor",
    "collapse_under",
    "label_brittle",
    "label_rows",
    "outage_events",
    "row_keys",
    "run_stress",
    "run_stress_rows",
    "strikes",
    "uniforms",
]
