"""Where decisions come from: dated audits, the sealed log of `fragility serve`, or past rows that are replayed.

Audits and logs are read part by part. Replaying past rows gives what the log would hold, had the model been served with
it.
"""

from __future__ import annotations

import datetime as dt
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from fragility.apps.serving.entries import LogSchemas
from fragility.apps.serving.log import LOG_FILE, list_audits
from fragility.apps.serving.sealing import AuditPlace, read_part
from fragility.apps.watching.events import (
    EPOCH,
    EventBatch,
    EventLayout,
    WatchedMeasure,
    check_figures,
    days_of,
    find_out_of_time,
    find_outside,
    find_repeats,
    lay_out_log,
    make_batch,
    spread_lists,
)
from fragility.auditing import pipeline
from fragility.audits import Audit, Certificates, StoredAudit, open_audit
from fragility.audits.comparison import differences_between, list_differences
from fragility.audits.folder import MANIFEST_FILE, read_manifest
from fragility.audits.measures import FLIPS_EARLY, MeasuredRows, list_columns
from fragility.base.arrays import Booleans, Floats, Integers
from fragility.base.errors import Advice, CertificateError, DataError
from fragility.blocks.lattice.values import LatticeDeclaration
from fragility.deciding import Guard
from fragility.evidence.rows import read_rows
from fragility.models import Model
from fragility.pages.wording import write_count
from fragility.protocol import Protocol
from fragility.scores import flips_early

DATE = re.compile(r"(?<!\d)(\d{4})-?(\d{2})-?(\d{2})(?!\d)")
EVENT_COLUMNS = ("time", "decision", "confidence", "exposure", "flip_budget", "missing", "stale", "p_change")
AUDIT_COLUMNS = ("predicted", "exposure")
MOST_DAYS = 5  # named of those that are set aside
BATCH_VALUES = 2**20  # values of a log that are taken together, whatever the size of its parts

Days: TypeAlias = tuple[dt.date, ...]


def is_log(folder: str | os.PathLike[str]) -> bool:
    """Whether a folder is a log of `fragility serve`."""
    return (Path(folder) / LOG_FILE).exists()


@dataclass(frozen=True, eq=False)
class LoggedDecisions:
    """The decisions of a log: those of its last protocol and classes, in the order in which they were sealed.

    What is sealed while the log is read, and audit folders that are begun meanwhile, may be left out.
    """

    folder: Path
    audits: tuple[Path, ...]  # of the last protocol and classes
    left_out: int  # audit folders before them

    @classmethod
    def of(cls, folder: Path) -> LoggedDecisions:
        """List the audits of a log; refuse a log without sealed rows."""
        folders = list_audits(folder)
        if not folders:
            raise DataError(f"the log {folder} has no sealed rows yet; watch it again later")
        manifests = map(read_manifest, folders)
        kinds = [(manifest.protocol_digest, manifest.model.classes) for manifest in manifests]
        since = max((place + 1 for place, kind in enumerate(kinds) if kind != kinds[-1]), default=0)
        return cls(folder, tuple(folders[since:]), since)

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader has to know of the log."""
        notes = []
        if self.left_out:
            before = write_count(self.left_out, "audit folder")
            notes.append(f"Protocol or classes were changed; left out: {before} from before that.")
        if self.out_of_time:
            days = [f"{count:,} of {EPOCH + dt.timedelta(days=day)}" for day, count in self.out_of_time.items()]
            more = f" and {len(days) - MOST_DAYS} other days" if len(days) > MOST_DAYS else ""
            total = write_count(sum(self.out_of_time.values()), "decision")
            notes.append(
                f"Set aside, because their day contradicts the decisions around them: {total} "
                f"({', '.join(days[:MOST_DAYS])}{more}). Was a clock wrong?"
            )
        return tuple(notes)

    @property
    def lacks_beginning(self) -> bool:
        """Whether the first audit folders under this protocol were moved away."""
        return not self.left_out and int(self.audits[0].name) > 1

    @cached_property
    def _runs(self) -> tuple[Integers, Integers, Booleans]:
        """Runs of consecutive decisions of one day: the day, how many they are, and whether they are out of time."""
        schemas, days = LogSchemas.of(self.protocol, self.last.classes), list[Integers]()
        for place, index in self._places:
            days.append(days_of(read_columns_of(place.events, index, schemas.events, ["time"]).column("time")))
        every = np.concatenate(days)
        starts = np.concatenate([[0], np.flatnonzero(np.diff(every)) + 1])
        counts = np.diff([*starts, len(every)])
        return every[starts], counts, find_out_of_time(every[starts], counts)

    @cached_property
    def out_of_time(self) -> dict[int, int]:
        """How many decisions are set aside, by day."""
        days, counts, out = self._runs
        return {int(day): int(counts[out & (days == day)].sum()) for day in np.unique(days[out])}

    @cached_property
    def last(self) -> StoredAudit:
        """The last audit folder."""
        return StoredAudit(self.audits[-1])

    @property
    def protocol(self) -> Protocol:
        return self.last.protocol

    @cached_property
    def layout(self) -> EventLayout:
        return lay_out_log(self.protocol, self.last.classes, ranged=True)

    def batches(self, min_confidence: float) -> Iterator[EventBatch]:
        """Return all sealed decisions, some at a time."""
        layout, names = self.layout, self.layout.fields
        for events, rows in join_parts(self._parts(), max(BATCH_VALUES // len(layout.columns), 2)):
            missing, stale = (
                spread_lists(events.column(word).combine_chunks(), names, word) for word in ("missing", "stale")
            )
            columns = {name: rows.column(name).to_numpy(zero_copy_only=False) for name in layout.ranged}
            yield make_batch(
                layout,
                day=days_of(events.column("time")),
                decision=events.column("decision"),
                confidence=check_figures("confidence", _floats(events, "confidence")),
                early=flips_early(_integers(events, "flip_budget"), self.protocol.depth),
                means=[check_figures("exposure", _floats(events, "exposure"))],
                min_confidence=min_confidence,
                missing=missing,
                stale=stale,
                outside=find_outside(columns, layout.ranged, self.protocol) if layout.ranged else None,
                repeated=find_repeats([code_values(rows.column(name)) for name in names], missing),
                p_change=check_figures("p_change", _floats(events, "p_change"), may_lack=True),
            )

    def _parts(self) -> Iterator[tuple[pa.Table, pa.Table]]:
        """Return events and rows, part by part."""
        schemas = LogSchemas.of(self.protocol, self.last.classes)
        _, counts, out = self._runs
        inside, start = np.repeat(~out, counts), 0
        for place, index in self._places:
            events = read_columns_of(place.events, index, schemas.events, EVENT_COLUMNS)
            rows = read_columns_of(place.rows, index, schemas.rows, self.layout.fields)
            if len(rows) != len(events):
                raise CertificateError(
                    f"part {index} of {place.events} has {len(events)} events but {len(rows)} rows; restore the log"
                )
            kept_here, start = inside[start : start + len(events)], start + len(events)
            if not kept_here.all():
                events, rows = events.filter(pa.array(kept_here)), rows.filter(pa.array(kept_here))
            if len(events):
                yield events, rows

    @cached_property
    def _places(self) -> tuple[tuple[AuditPlace, int], ...]:
        """Every part, by its audit folder and place; what is sealed from now on is left out."""
        places = [(AuditPlace(self.folder, int(audit.name)), read_manifest(audit)) for audit in self.audits]
        return tuple((place, i) for place, manifest in places for i in range(len(manifest.files_of("certificates"))))

    def first_audit(self) -> Audit:
        """The certificates of the first days."""
        return StoredAudit(self.audits[0])

    def models(self) -> list[tuple[str, str]]:
        """Return the models that answered, in order: kind and fingerprint, each once in a row."""
        models = [read_manifest(audit).model for audit in self.audits]
        return drop_repeated([(model.kind, model.fingerprint) for model in models])


def read_columns_of(folder: Path, index: int, schema: pa.Schema, columns: Sequence[str]) -> pa.Table:
    """Return some columns of a part; refuse a part that no log has."""
    expected = pa.schema([schema.field(name) for name in columns])
    try:
        table = read_part(folder, index, list(columns))
    except KeyError:
        table = None
    if table is None or table.schema.types != expected.types:
        raise CertificateError(f"part {index} of {folder} has other columns than those of a log; restore the log")
    return table


def join_parts(parts: Iterator[tuple[pa.Table, pa.Table]], rows: int) -> Iterator[tuple[pa.Table, pa.Table]]:
    """Join parts to about ``rows`` rows each, an even number except at the end."""
    waiting: list[tuple[pa.Table, pa.Table]] = []
    for part in parts:
        waiting.append(part)
        count = sum(len(events) for events, _ in waiting)
        if count >= rows:
            whole = [pa.concat_tables([pair[side] for pair in waiting]) for side in (0, 1)]
            even = count // 2 * 2
            yield whole[0].slice(0, even), whole[1].slice(0, even)
            waiting = [(whole[0].slice(even), whole[1].slice(even))] if even < count else []
    if waiting:
        yield pa.concat_tables([pair[0] for pair in waiting]), pa.concat_tables([pair[1] for pair in waiting])


def code_values(column: pa.ChunkedArray) -> Integers:
    """Return (n,) codes that are equal if the values are equal; -1 for missing values."""
    coded = pc.dictionary_encode(column.combine_chunks())
    return np.asarray(pc.fill_null(coded.indices, -1).to_numpy(zero_copy_only=False), dtype=np.int64)


@dataclass(frozen=True, eq=False)
class DatedAudits:
    """Audits with a date each, in the order of time: what a day decided."""

    audits: tuple[Audit, ...]
    dates: Days
    by_sets: bool = False  # whether early flips are counted over all sets of groups, which every audit searched

    @classmethod
    def of(cls, audits: Sequence[Audit | str | os.PathLike[str]], dates: Sequence[dt.date | str] | None) -> DatedAudits:
        """Open the audits; dates are given, or read from the names of their folders."""
        opened = [audit if isinstance(audit, Audit) else open_audit(audit) for audit in audits]
        dates_of_audits = list(dates) if dates is not None else [_date_of(audit) for audit in opened]
        if len(dates_of_audits) != len(opened):
            raise DataError(
                f"one date per audit was expected: {len(opened)} audits, {len(dates_of_audits)} dates; correct ",
                Advice("dates", "--dates"),
            )
        days = [read_date(value) for value in dates_of_audits]
        if len(set(days)) < len(days):
            repeated = next(day for day in days if days.count(day) > 1)
            raise DataError(
                f"two audits are dated {repeated}; give each a date of its own with ", Advice("dates", "--dates")
            )
        order = sorted(range(len(days)), key=lambda place: days[place])
        made = cls(tuple(opened[i] for i in order), tuple(days[i] for i in order))
        made._check()
        return made

    def _check(self) -> None:
        """Refuse audits that cannot be compared over time."""
        first = self.audits[0]
        for audit, date in zip(self.audits, self.dates, strict=True):
            if len(audit) == 0:
                raise DataError(f"the audit of {date} has no certificates; leave it out")
            if [*map(str, audit.classes)] != [*map(str, first.classes)]:
                raise DataError(
                    f"the audit of {date} is of a model with other classes than the first one; watch it alone"
                )
            deciding = [one for one in differences_between(first.protocol, audit.protocol) if one.decides_flips]
            if deciding:
                raise DataError(
                    f"the audit of {date} was made under a protocol that differs from the first in "
                    f"{list_differences(deciding)}, so a change over time is not the model's; audit all under one "
                    "protocol"
                )

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader has to know of the audits."""
        counted = ("Early flips are counted over all sets of groups.",) if self.by_sets else ()
        declarations = [audit.manifest.find_block(LatticeDeclaration) for audit in self.audits]
        rated = any(lattice is not None and lattice.has_failures for lattice in declarations)
        if not rated or "lost" in self.layout.means:
            return counted
        return (*counted, "Decisions lost are not watched, since not all audits were made with the same rates.")

    @property
    def protocol(self) -> Protocol:
        return self.audits[0].protocol

    @property
    def last(self) -> Audit:
        """The latest audit."""
        return self.audits[-1]

    @cached_property
    def layout(self) -> EventLayout:
        lattices = [audit.manifest.find_block(LatticeDeclaration) for audit in self.audits]
        rated = {str(lattice.rates) for lattice in lattices if lattice is not None and lattice.has_failures}
        same = all(lattice is not None and lattice.has_failures for lattice in lattices) and len(rated) == 1
        means: tuple[WatchedMeasure, ...] = ("exposure", "lost") if same else ("exposure",)
        return EventLayout((), (), tuple(map(str, self.audits[0].classes)), means, ())

    def batches(self, min_confidence: float) -> Iterator[EventBatch]:
        """Return all certificates, some at a time."""
        for audit, date in zip(self.audits, self.dates, strict=True):
            yield from read_audit(audit, self.layout, (date - EPOCH).days, min_confidence, by_sets=self.by_sets)

    def models(self) -> list[tuple[str, str]]:
        """Return the models, in order: kind and fingerprint, each once in a row."""
        models = [audit.manifest.model for audit in self.audits]
        return drop_repeated([(model.kind, model.fingerprint) for model in models])


def read_audit(
    audit: Audit, layout: EventLayout, day: int, min_confidence: float, *, by_sets: bool
) -> Iterator[EventBatch]:
    """Return the certificates of an audit as decisions of one day; columns that a log alone has are left empty.

    by_sets: count early flips over all sets of groups, which the audit must have searched; else along the path.
    """
    extra = ["failure_probability"] if "lost" in layout.means else []
    for table in audit.batches(list(dict.fromkeys([*AUDIT_COLUMNS, *extra, *list_columns([FLIPS_EARLY], audit)]))):
        yield make_batch(
            layout,
            day=np.full(len(table), day, dtype=np.int64),
            decision=table.column("predicted"),
            confidence=_floats(table, "confidence"),
            early=MeasuredRows(table, audit, min_confidence, search=by_sets).bounds.flips_early,
            means=[_floats(table, name) for name in ("exposure", *extra)],
            min_confidence=min_confidence,
        )


def drop_repeated(models: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the models without those that follow on themselves."""
    return [
        model
        for model, before in zip(models, chain([None], islice(models, len(models))), strict=False)
        if model != before
    ]


def read_date(value: dt.date | str) -> dt.date:
    """Return a date; refuse a text that is not an ISO date."""
    if isinstance(value, dt.datetime):
        return value.date()
    if isinstance(value, dt.date):
        return value
    try:
        return dt.date.fromisoformat(value)
    except (TypeError, ValueError) as error:
        raise DataError(
            f"a date such as 2026-11-18 was expected, got {value!r:.80}; correct ", Advice("dates", "--dates")
        ) from error


def _date_of(audit: Audit) -> dt.date:
    """Return the date in the name of an audit's folder, since the manifest holds no time."""
    folder = audit.folder if isinstance(audit, StoredAudit) else None
    match = DATE.search(folder.resolve().name) if folder is not None else None
    if match is not None:
        try:
            return dt.date(*map(int, match.groups()))
        except ValueError:
            pass
    name = "an audit in memory" if folder is None else f"the folder {folder}"
    raise DataError(
        f"{name} has no date such as 2026-11-18 in its name; give the dates with ", Advice("dates", "--dates")
    )


def check_folder(folder: Path) -> None:
    """Refuse a folder that is neither an audit nor a log."""
    if not is_log(folder) and not (folder / MANIFEST_FILE).exists():
        raise DataError(
            f"{folder} is neither an audit folder nor a log of `fragility serve`; a folder with {MANIFEST_FILE} or "
            f"{LOG_FILE} was expected"
        )


def _floats(table: pa.Table, name: str) -> Floats:
    return np.asarray(table.column(name).to_numpy(), dtype=np.float64)


def _integers(table: pa.Table, name: str) -> Integers:
    if table.column(name).null_count:
        raise DataError(f"the log has a decision with no {name}; restore the log")
    return np.asarray(table.column(name).to_numpy(), dtype=np.int64)


# --- past rows, replayed ----------------------------------------------------------------------------------------

PART_ROWS = 5_000  # rows that are certified together; an even number


@dataclass(frozen=True, eq=False)
class ReplayedRows:
    """Past rows in the order of time, certified part by part; null values are missing fields."""

    frame: pd.DataFrame  # the fields, in the order of time
    day: Integers  # (n,) days since 1970
    model: Any
    protocol: Protocol

    notes = ()

    @classmethod
    def of(cls, rows: Any, time: str, model: Any, protocol: Protocol) -> ReplayedRows:
        """Read a table and sort it by time; refuse one without the column, or with rows that have no time."""
        numbered = rows.reset_index(drop=True) if isinstance(rows, pd.DataFrame) else rows  # months put together
        table = read_rows(numbered).frame
        if table is None:
            raise DataError("rows to replay need named columns, got a sparse matrix")
        if time not in table.columns:
            raise DataError(
                f"the rows have no column {time!r}; name the one that says when each was decided with ",
                Advice("time", "--time"),
            )
        lacking = [field.name for field in protocol.fields if field.name not in table.columns]
        if lacking:
            raise DataError(f"the rows have no column {lacking[0]!r}, which is a field of the protocol")
        times = read_times(table[time], time)
        order = np.argsort(times, kind="stable")
        names = [field.name for field in protocol.fields]
        days = times[order].astype("datetime64[D]").astype(np.int64)
        return cls(table[names].iloc[order].reset_index(drop=True), days, model, protocol)

    @cached_property
    def layout(self) -> EventLayout:
        return lay_out_log(self.protocol, Model.wrap(self.model).classes, ranged=True)

    @cached_property
    def guard(self) -> Guard:
        return Guard(self.model, self.protocol)

    def batches(self, min_confidence: float) -> Iterator[EventBatch]:
        """Return all rows as decisions, some at a time."""
        for start in range(0, len(self.frame), PART_ROWS):
            part = self.frame.iloc[start : start + PART_ROWS]
            certificates, p_change = self._certify(part)
            columns = {name: part[name].to_numpy(dtype=np.float64, na_value=np.nan) for name in self.layout.ranged}
            missing = part.isna().to_numpy()
            yield make_batch(
                self.layout,
                day=self.day[start : start + PART_ROWS],
                decision=certificates["predicted"].tolist(),
                confidence=certificates["confidence"].to_numpy(),
                early=flips_early(certificates["flip_budget"].to_numpy(), self.protocol.depth),
                means=[certificates["exposure"].to_numpy()],
                min_confidence=min_confidence,
                missing=missing,
                stale=np.zeros_like(missing),
                outside=find_outside(columns, self.layout.ranged, self.protocol) if self.layout.ranged else None,
                repeated=find_repeats([pd.factorize(part[name])[0] for name in self.layout.fields], missing),
                p_change=p_change,
            )

    def _certify(self, part: pd.DataFrame) -> tuple[pd.DataFrame, Floats]:
        """Return the figures of rows as they are decided, and the chance that the missing fields would change it."""
        gaps = part.isna().any(axis=1).to_numpy()
        p_change, parts = np.full(len(part), np.nan), []
        if not gaps.all():
            parts.append(_figures(self._audit(part[~gaps])))
        if gaps.any():
            checks = self.guard.check_rows(part[gaps])
            parts.append(_figures(checks.certificates))
            p_change[gaps] = [np.nan if check.p_change is None else check.p_change for check in checks]
        return pd.concat(parts).loc[part.index], p_change

    def _audit(self, rows: pd.DataFrame) -> Certificates:
        return pipeline.audit(self.model, rows, self.protocol, progress=False, lattice=False)

    def first_audit(self) -> Audit | None:
        """The certificates of the first rows without a missing field; None if every row has one."""
        whole = self.frame[~self.frame.isna().any(axis=1)]
        return self._audit(whole.iloc[:PART_ROWS]) if len(whole) else None

    def models(self) -> list[tuple[str, str]]:
        """The model, by kind and fingerprint."""
        wrapped = Model.wrap(self.model)
        return [(wrapped.kind, wrapped.fingerprint)]


def _figures(certificates: Certificates) -> pd.DataFrame:
    names = ["id", "predicted", "confidence", "flip_budget", "exposure"]
    table: pd.DataFrame = certificates.table.select(names).to_pandas()
    return table.set_index("id")


def read_times(column: pd.Series, name: str) -> npt.NDArray[np.datetime64]:
    """Return (n,) times in UTC of a column of times, dates or ISO texts."""
    if pd.api.types.is_numeric_dtype(column.dtype):
        raise DataError(f"the column {name!r} holds numbers; times, dates or texts such as 2026-11-18 were expected")
    try:
        times = pd.to_datetime(
            column,
            utc=True,
            format="ISO8601" if column.dtype == object or pd.api.types.is_string_dtype(column.dtype) else None,
        )
    except (ValueError, TypeError, OverflowError) as error:
        raise DataError(
            f"the column {name!r} holds something that is no time; times, dates or texts such as 2026-11-18 "
            "were expected"
        ) from error
    if times.isna().any():
        row = int(np.flatnonzero(times.isna())[0])
        raise DataError(f"row {row} has no time in the column {name!r}; leave out rows without one")
    return np.asarray(times.dt.tz_localize(None).to_numpy())
