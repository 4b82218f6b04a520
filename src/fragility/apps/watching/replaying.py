"""Rows of the past, replayed: what the log would hold if the model had been served with it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from fragility.apps.watching.events import EventBatch, EventLayout, find_outside, find_repeats, lay_out_log, make_batch
from fragility.auditing.pipeline import audit
from fragility.audits import Audit, Certificates
from fragility.base.arrays import Floats, Integers
from fragility.base.errors import Advice, DataError
from fragility.deciding import Guard
from fragility.evidence.rows import read_rows
from fragility.models import Model
from fragility.protocol import Protocol
from fragility.scores import flips_early

PART_ROWS = 5_000  # rows that are certified together; an even number


@dataclass(frozen=True, eq=False)
class ReplayedRows:
    """Past rows in the order of time, certified part by part; a field is missing where it is null."""

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
        return audit(self.model, rows, self.protocol, progress=False, lattice=False)

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
