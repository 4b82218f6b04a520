"""Watch: what happens to decisions and their evidence over time, with alarms that stay valid however often one looks.

sequences   confidence sequences and the evidence of a change (formulas)
events      decisions, some rows at a time, as columns of values in [0, 1]
sources     dated audits, and the log of `fragility serve`
replaying   a table of past rows
following   days, reference, detectors, alarms
losing      decisions expected to be lost at the current rates
findings    alarms and figures, and how they are said
pictures    figures over time, drawn
outcome     `WatchResult`: its page, and the text for Prometheus
running     `watch`
"""

from fragility.apps.watching.findings import Alarm
from fragility.apps.watching.outcome import WatchResult
from fragility.apps.watching.running import watch

__all__ = ["Alarm", "WatchResult", "watch"]
