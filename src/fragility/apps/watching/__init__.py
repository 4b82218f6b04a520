"""Watch: what happens to decisions and their evidence over time, with alarms that stay valid however often one looks.

sequences   confidence sequences and the evidence of a change (formulas)
events      decisions, some rows at a time, as columns of values in [0, 1]
sources     dated audits, the log of `fragility serve`, and tables of past rows
following   days, reference, detectors, alarms
findings    alarms, figures over time, decisions expected to be lost: how they are said and drawn
outcome     `WatchResult`: its page, and the text for Prometheus
running     `watch`
"""

from fragility.apps.watching.findings import Alarm
from fragility.apps.watching.outcome import WatchResult
from fragility.apps.watching.running import watch

__all__ = ["Alarm", "WatchResult", "watch"]
