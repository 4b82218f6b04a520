"""WatchResult: what happened over time, and the alarms; as text, JSON, a page and Prometheus text."""

from __future__ import annotations

import datetime as dt
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fragility.apps.watching.findings import WatchFindings
from fragility.apps.watching.page import render_page
from fragility.apps.watching.prometheus import render_prometheus
from fragility.base.text import BriefRepr, escape_controls
from fragility.pages.saving import save_form, without_nan
from fragility.pages.wording import write_count


@dataclass(frozen=True, slots=True, repr=False)
class WatchResult(WatchFindings, BriefRepr):
    """What happened over time. It is true unless an alarm is open.

    Attributes
    ----------
    alarms : tuple of Alarm
        In the order in which they were raised.
    days : tuple of datetime.date
        The days with decisions.
    decisions : tuple of int
        Decisions of each day.
    without : tuple of int
        Decisions of each day with a missing or stale field.
    changed : tuple of float
        The sum of ``p_change`` over them: decisions that would probably differ with these fields present.
    watched : tuple of Watched
        Every measure, day by day.
    loss : ExpectedLoss or None
        Decisions expected to be lost; None for audits, and if no importance is known.
    models : tuple of str
        The models that decided, by kind and fingerprint.
    source : str
        What was watched.
    settings : dict
        ``alpha``, ``horizon``, ``reference_days``, ``window``, ``allowance`` and ``min_confidence``.
    notes : tuple of str
        What else a reader has to know.

    See Also
    --------
    watch : Makes one.
    """

    def to_dict(self) -> dict[str, Any]:
        """Return the plain form.

        Returns
        -------
        dict
            What the JSON file holds; NaN as None, dates as text.
        """
        document = asdict(self)
        document["alarms"] = [
            {**asdict(alarm), "sentence": alarm.sentence(), "open": alarm.is_open} for alarm in self.alarms
        ]
        plain: dict[str, Any] = without_nan(_plain(document))
        return plain

    def to_json(self) -> str:
        """Return everything as JSON.

        Returns
        -------
        str
            The text of the JSON file.
        """
        return json.dumps(self.to_dict(), indent=2, ensure_ascii=False, allow_nan=False) + "\n"

    def to_html(self) -> str:
        """Return the page over time.

        Returns
        -------
        str
            One HTML document that opens offline.
        """
        return render_page(self)

    def to_text(self, *, replay: bool = False) -> str:
        """Return the alarms, then what is known of the last days.

        Parameters
        ----------
        replay : bool, default=False
            List every alarm that was ever raised, with the decision at which it would have been.

        Returns
        -------
        str
            What ``fragility watch`` prints.
        """
        lines = [self.headline()]
        for alarm in self.alarms if replay else self.open_alarms:
            at = f"after {alarm.decision_number:,} decisions: " if replay else ""
            lines.append(f"  {'alarm' if alarm.is_open else 'ended'}  {at}{alarm.sentence()}")
        ended = len(self.alarms) - len(self.open_alarms)
        if ended and not replay:
            lines.append(f"  {write_count(ended, 'earlier alarm')} ended by now")
        lines += [f"  {escape_controls(line)}" for line in (*self.recent_lines(), *self.notes)]
        return "\n".join(lines)

    def to_prometheus(self) -> str:
        """Return the last days and the alarms in Prometheus' text format, for a textfile collector.

        Returns
        -------
        str
            The metrics; field and class names are label values.
        """
        return render_prometheus(self)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the result as the file's name says: .html, .json, .prom (Prometheus) or .txt.

        Parameters
        ----------
        path : str or path
            The file.

        Returns
        -------
        Path
            The file written.
        """
        forms = {".html": self.to_html, ".prom": self.to_prometheus, ".txt": self.to_text}
        return save_form(path, self.to_dict, forms)


def _plain(value: Any) -> Any:
    if isinstance(value, dt.date):
        return value.isoformat()
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, (list, tuple)) else value
