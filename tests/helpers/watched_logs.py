"""Small logs of a service whose fields go missing on known days, made of real certificates."""

import datetime as dt
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
from small_audits import FIELDS, declared_model, whole_numbers

import fragility as fg
from fragility.apps.serving.entries import LogEntry
from fragility.apps.serving.log import SealingRules, ServingLog

START = dt.datetime(2026, 3, 1, 9, tzinfo=dt.UTC)


def served_model(rename: dict[str, str] | None = None):
    """The declared model with named columns, its protocol, and the names of its fields."""
    names = [(rename or {}).get(name, name) for name in FIELDS]
    model = declared_model()
    model.feature_names_in_ = np.array(names, dtype=object)
    protocol = fg.Protocol.fit(model, whole_numbers(200, 0).set_axis(names, axis=1))
    return model, protocol, names


def day_rows(day: int, rows: int, names: list[str]) -> pd.DataFrame:
    return whole_numbers(rows, 1000 + day).set_axis(names, axis=1)


def replace_value(entry: LogEntry, column: str, value) -> LogEntry:
    """The same entry, with another value in a column of its first event."""
    events = entry.events
    values = [value, *events.column(column).to_pylist()[1:]]
    place = events.schema.get_field_index(column)
    changed = events.set_column(place, events.schema.field(place), pa.array(values, events.schema.field(place).type))
    return replace(entry, events=changed)


def write_log(
    folder: Path,
    *,
    days: int = 14,
    rows: int = 200,
    outage=None,
    stale=None,
    rename=None,
    chance: float | None = 0.25,
    times=None,
    change=None,
) -> Path:
    """A log with so many days; outage, stale: (field, first day, share, last day) of what fails; chance: p_change.

    times: when the rows of each day were decided; change: (column, value) of the first event of the last day.
    """
    model, protocol, names = served_model(rename)
    rng = np.random.default_rng(5)
    probe = fg.audit(model, day_rows(0, 2, names), protocol, progress=False, lattice=False)
    with ServingLog.open(folder, protocol, probe.manifest, SealingRules(seal_rows=300, roll=900)) as log:
        for day in range(days):
            given, lists = day_rows(day, rows, names), {}
            for word, failing in (("missing", outage), ("stale", stale)):
                field, first, share, last = failing or (None, days, 0.0, days)
                struck = (rng.random(rows) < share) if first <= day < last else np.zeros(rows, dtype=bool)
                lists[word] = [[field] if hit else [] for hit in struck]
                if word == "missing" and field is not None:
                    given.loc[struck, field] = 0.0
            ids = [f"{day}-{row}" for row in range(rows)]
            certs = fg.audit(model, given, protocol, ids=ids, progress=False, lattice=False)
            chances = [chance if any(own) else None for own in zip(*lists.values(), strict=True)]
            time = START + dt.timedelta(days=day) if times is None else times[day]
            entry = LogEntry.of(certs, given, time=time, p_change=chances, **lists)
            log.append(entry if change is None or day < days - 1 else replace_value(entry, *change))
            if log.is_due:
                log.seal()
    return folder
