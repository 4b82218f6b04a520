"""Watch: what happens to decisions and their evidence over time, with alarms that stay valid however often one looks.

sequences   confidence sequences and the evidence of a change (formulas)
events      decisions, some rows at a time, as columns of values in [0, 1]
sources     dated audits, the log of `fragility serve`, a table to replay
following   days, reference, detectors, alarms
losing      decisions expected to be lost at the current rates
outcome     `WatchResult` and `Alarm`: text, JSON, Prometheus
page        the page over time
running     `watch`
"""

from fragility.watching.findings import Alarm
from fragility.watching.outcome import WatchResult
from fragility.watching.running import watch

__all__ = ["Alarm", "WatchResult", "watch"]
