"""Segments: audited rows cut by a column of theirs, and how many of each segment flip early.

A column of text, or of few distinct numbers, is cut by its values: the most frequent ones, and the others together. A
column of numbers is cut into bands, at declared values or at its quantiles; a column of dates at its quantiles. Rows
without a value are a segment of their own. Rows are read part by part; for each column, one number per row is held.

One predicted class often flips far more easily than another, so segments differ merely because they are predicted other
classes. Each segment is therefore also counted within each predicted class. Its standardised share is what it would be
with the classes of all rows, sum_c w_c p_c, where w_c is the share of class c among all rows and p_c that of the
segment's rows of class c that flip early. Whether a segment differs from the others is tested exactly, once over all
rows and once within predicted classes: given how many rows of each class flip, the number in the segment is a sum of
hypergeometric ones. P values are adjusted for the number of segments (Holm).
"""

from __future__ import annotations

import math
import re
import typing
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice, pairwise
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
from scipy import stats

from fragility.audits import Audit
from fragility.audits.measures import PLAIN
from fragility.audits.tally import Tally
from fragility.base.arrays import Floats, Integers
from fragility.base.canonical import is_missing
from fragility.base.errors import Advice, DataError
from fragility.base.ids import IdSpan, id_keys, say_other_rows
from fragility.base.shares import Share
from fragility.base.text import BriefRepr
from fragility.blocks.claims import indices_of
from fragility.evidence.fields import kind_of
from fragility.evidence.replacements import value_text
from fragility.evidence.rows import read_rows

BY = Advice("by", "--by")

SHOWN_VALUES = 12  # values of a column that have a segment of their own
MOST_VALUES = 100_000  # distinct values that are held while a column is read
BANDS = 4  # of about equally many rows, if none were declared
PART_ROWS = 50_000
MISSING, EMPTY = "(missing)", "(empty)"
ALPHA = 0.05
TAILS = 12.0  # standard deviations beyond which a count is as good as impossible
COUNTED = {name: PLAIN[name] for name in ("flips_early", "confident_mean_exposure")}

ByColumn: TypeAlias = str | Sequence[str] | Mapping[str, Sequence[float] | int | None]


@typing.runtime_checkable
class RowValues(typing.Protocol):
    """Rows whose columns can be read part by part."""

    @property
    def column_names(self) -> tuple[str, ...]: ...

    def values(self, names: Sequence[str], rows: int) -> Iterator[tuple[list[Any], pd.DataFrame]]:
        """Return the ids of the next rows and these columns of theirs."""
        ...


@dataclass(frozen=True, eq=False)
class TableRows:
    """Rows in memory."""

    frame: pd.DataFrame
    ids: tuple[Any, ...]

    @classmethod
    def of(cls, rows: Any, ids: Any = None) -> TableRows:
        """Read a table or array; ids as :func:`audit` takes them, by default the index of a pandas table."""
        read = read_rows(rows, ids=ids)
        if read.frame is None:
            raise DataError("segments need rows with named columns, got a sparse matrix")
        return cls(read.frame, read.ids)

    @property
    def column_names(self) -> tuple[str, ...]:
        """Names of the columns."""
        return tuple(map(str, self.frame.columns))

    def values(self, names: Sequence[str], rows: int) -> Iterator[tuple[list[Any], pd.DataFrame]]:
        """Return ids and columns, some rows at a time."""
        for start in range(0, len(self.ids), rows):
            part = slice(start, start + rows)
            yield list(self.ids[part]), self.frame.loc[:, list(names)].iloc[part]


def read_values(rows: Any, ids: Any = None) -> RowValues:
    """Return a source of rows unchanged, and a table or an array as a source."""
    is_frame = isinstance(rows, pd.DataFrame)  # its columns are attributes, whatever they are called
    return rows if isinstance(rows, RowValues) and not is_frame else TableRows.of(rows, ids)


# --- which columns, and how -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class By:
    """A column to group rows by: in declared bands, in quantile bands, or by its values."""

    column: str
    cuts: tuple[float, ...] | None = None
    bands: int | None = None


def read_by(by: ByColumn, column_names: Sequence[str]) -> tuple[By, ...]:
    """Return the columns asked for: ``age``, ``age:25,40,60`` (declared bands), ``age:q5`` (five bands), or a mapping.

    A column whose own name holds a colon is found by its whole name first.
    """
    if isinstance(by, Mapping):
        asked = [_declare(str(name), how) for name, how in by.items()]
    else:
        names = [by] if isinstance(by, str) or not isinstance(by, Iterable) else by
        asked = [_declare(*_parse(str(name), column_names)) for name in names]  # numbered columns are named by texts
    for one in asked:
        if one.column not in column_names:
            listed = ", ".join(map(str, column_names[:12])) + (", ..." if len(column_names) > 12 else "")
            raise DataError(BY, f" names the column {one.column!r}, but the rows have {listed}")
    twice = next((name for name, count in Counter(one.column for one in asked).items() if count > 1), None)
    if twice is not None:
        raise DataError(BY, f" names the column {twice!r} twice; name each column once")
    return tuple(asked)


def _parse(text: str, column_names: Sequence[str]) -> tuple[str, list[float] | int | None]:
    column, colon, how = text.rpartition(":")
    if text in column_names or not colon:
        return text, None
    if re.fullmatch(r"q\d+", how.strip()):
        return column, int(how.strip()[1:])
    try:
        return column, [float(part) for part in how.split(",")]
    except ValueError as error:
        raise DataError(
            BY,
            " must be a column, a column with bands such as age:25,40,60, or with a number of bands such as age:q5; "
            f"got {text!r}",
        ) from error


def _declare(column: str, how: Sequence[float] | int | None) -> By:
    if how is None:
        return By(column)
    if isinstance(how, int):
        if not 2 <= how <= 20:
            raise DataError(f"a column is cut into 2 to 20 bands, got {how} for {column!r}")
        return By(column, bands=how)
    cuts = tuple(float(cut) for cut in how)
    if not cuts or not np.isfinite(cuts).all() or any(a >= b for a, b in pairwise(cuts)):
        raise DataError(f"the bands of {column!r} must be declared by rising numbers, got {list(how)}")
    return By(column, cuts)


# --- from values to segments ----------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Coded:
    """One column of some rows as segments."""

    column: str
    names: tuple[str, ...]  # of the segments
    codes: npt.NDArray[np.int16]  # (n,) the segment of each row


class _Column:
    """The values of one column, part by part: numbers, dates as nanoseconds, all else as text codes."""

    def __init__(self, by: By) -> None:
        self.by = by
        self.kind: str | None = None  # numbers, dates or text; None if no value was seen yet
        self.parts: list[Floats] = []
        self.texts: dict[str, int] = {}

    def add(self, column: pd.Series) -> None:
        """Take the values of the next rows."""
        if bool(column.isna().all()):
            self.parts.append(np.full(len(column), np.nan))
            return
        dates = pd.api.types.is_datetime64_any_dtype(column.dtype)
        kind = "dates" if dates else "numbers" if kind_of(column) == "numeric" else "text"
        if self.kind not in (None, kind):
            raise DataError(
                f"the column {self.by.column!r} holds {self.kind} in some parts of the rows, {kind} in others"
            )
        self.kind = kind
        if kind == "text":
            values = self._encode_text(column)
        elif kind == "numbers":
            values = np.asarray(column.to_numpy(dtype=np.float64, na_value=np.nan))
        else:
            instants = pd.DatetimeIndex(column).tz_localize(None)  # the day as its own clock has it
            values = np.where(instants.isna(), np.nan, instants.as_unit("ns").asi8.astype(np.float64))
        self.parts.append(values)

    def _encode_text(self, column: pd.Series) -> Floats:
        try:
            codes, uniques = pd.factorize(column)
        except TypeError:  # values without a hash, such as lists
            codes, uniques = pd.factorize(column.map(lambda value: None if is_missing(value) else str(value)))
        texts = [_write_number(float(v)) if isinstance(v, (float, np.floating)) else str(v) or EMPTY for v in uniques]
        places = np.array([self.texts.setdefault(text, len(self.texts)) for text in texts], dtype=np.float64)
        if len(self.texts) > MOST_VALUES:
            raise DataError(
                f"the column {self.by.column!r} has more than {MOST_VALUES:,} distinct values; choose one that groups "
                "rows"
            )
        return np.where(codes < 0, np.nan, np.append(places, np.nan)[codes])

    def encode(self) -> Coded:
        """Return the segment of every row."""
        values = np.concatenate(self.parts) if self.parts else np.empty(0)
        self.parts = []  # not to hold the values of many rows twice
        distinct = np.unique(values[~np.isnan(values)])
        measured = self.kind in ("numbers", "dates")
        if self.by.cuts is not None or self.by.bands is not None or (measured and len(distinct) > SHOWN_VALUES):
            return self._cut_into_bands(values)
        texts = list(self.texts)  # by their codes
        names = {value: self._write(value) if measured else texts[int(value)] for value in distinct.tolist()}
        return _cut_by_value(self.by.column, values, names, rising=measured)

    def _cut_into_bands(self, values: Floats) -> Coded:
        if self.kind == "text":
            example = next(iter(self.texts))
            raise DataError(f"bands are for numbers and dates, and the column {self.by.column!r} holds {example!r}")
        if self.kind == "dates" and self.by.cuts is not None:
            raise DataError(
                f"the column {self.by.column!r} holds dates, whose bands cannot be declared by numbers; ask for a "
                f"number of bands: {self.by.column}:q4"
            )
        defined = values[~np.isnan(values)]
        cuts = np.array(self.by.cuts or ())
        if self.by.cuts is None and len(defined):  # at quantiles; equal values are never parted
            bands = self.by.bands or BANDS
            cuts = np.unique(np.quantile(defined, np.arange(1, bands) / bands, method="inverted_cdf"))
            cuts = cuts[cuts > defined.min()]
        codes = np.where(np.isnan(values), len(cuts) + 1, np.searchsorted(cuts, values, side="right"))
        names, ends = ["all values"], [self._write(cut) for cut in cuts]
        if ends:
            between = [f"{low} to under {high}" for low, high in pairwise(ends)]
            names = [f"under {ends[0]}", *between, f"{ends[-1]} or more"]
        return _drop_empty(self.by.column, [*names, MISSING], codes)

    def _write(self, value: float) -> str:
        return value_text(pd.Timestamp(int(value))) if self.kind == "dates" else _write_number(value)


def _write_number(value: float) -> str:
    return f"{value:.10g}"


def _cut_by_value(column: str, values: Floats, names: Mapping[float, str], *, rising: bool) -> Coded:
    """Return the most frequent values as segments, in the order of their numbers or of their frequency."""
    defined = ~np.isnan(values)
    distinct, counts = np.unique(values[defined], return_counts=True)
    frequent = sorted(range(len(distinct)), key=lambda i: (-counts[i], names[float(distinct[i])]))
    named = frequent[: SHOWN_VALUES if len(distinct) > SHOWN_VALUES + 1 else None]
    if rising:
        named = sorted(named)
    lookup = np.full(len(distinct), len(named), dtype=np.int64)  # the others
    lookup[named] = np.arange(len(named))
    codes = np.full(len(values), len(named) + 1, dtype=np.int64)
    codes[defined] = lookup[np.searchsorted(distinct, values[defined])]
    shown = [names[float(distinct[i])] for i in named]
    return _drop_empty(column, [*shown, f"(other: {len(distinct) - len(named):,} values)", MISSING], codes)


def _drop_empty(column: str, names: Sequence[str], codes: Integers) -> Coded:
    occupied = np.flatnonzero(np.bincount(codes, minlength=len(names)))
    lookup = np.zeros(len(names), dtype=np.int16)
    lookup[occupied] = np.arange(len(occupied))
    return Coded(column, tuple(names[i] for i in occupied.tolist()), lookup[codes])


# --- matching rows to certificates ----------------------------------------------------------------------------


def segment_rows(source: RowValues, by: Sequence[By], audits: Sequence[Audit]) -> list[list[Coded]]:
    """Return for each audit the segments of its rows, in its own order; segments are the same for all audits."""
    columns, names = [_Column(one) for one in by], [one.column for one in by]
    audited = [chain.from_iterable(batch.column("id").to_pylist() for batch in a.batches(["id"])) for a in audits]
    in_order = True
    for ids, frame in source.values(names, PART_ROWS):
        for column in columns:
            column.add(frame[column.by.column])
        texts = list(map(str, ids))
        in_order = in_order and all(list(map(str, islice(ids_of_audit, len(ids)))) == texts for ids_of_audit in audited)
    coded = [column.encode() for column in columns]
    if in_order and all(not list(islice(ids_of_audit, 1)) for ids_of_audit in audited):
        return [coded for _ in audits]
    given, keys = IdSpan(), list[npt.NDArray[np.bytes_]]()  # the order differs: match rows by id
    for ids, _ in source.values(names, PART_ROWS):
        given.add(ids)
        keys.append(id_keys(ids))
    places = [_find_places(audit, np.concatenate(keys), given) for audit in audits]
    return [[replace(one, codes=one.codes[ids_of_audit]) for one in coded] for ids_of_audit in places]


def _find_places(audit: Audit, keys: npt.NDArray[np.bytes_], given: IdSpan) -> Integers:
    """Return where the row of each certificate stands among rows with these id keys."""
    order = np.argsort(keys, kind="stable")
    sorted_keys, places_of = keys[order], []
    audited, lacking = IdSpan(), list[object]()
    for batch in audit.batches(["id"]):
        ids = batch.column("id").to_pylist()
        batch_keys = id_keys(ids)
        at = np.minimum(np.searchsorted(sorted_keys, batch_keys), len(sorted_keys) - 1)
        audited.add(ids)
        lacking += [ids[i] for i in np.flatnonzero(sorted_keys[at] != batch_keys)]
        places_of.append(order[at])
    places = np.concatenate(places_of)
    if lacking:
        raise DataError(*say_other_rows(len(lacking), len(places), lacking[0], audited, given))
    return places


# --- counting -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SegmentNumbers:
    """Predictions of one segment.

    Attributes
    ----------
    rows : int
        How many there are.
    flips_early : Share
        Those that flip when one or two groups are lost.
    by_class : tuple of Share
        The same within each predicted class, in the order of the classes.
    standardised : float or None
        The share that flips early with the predicted classes of all segments together; None if the segment lacks one.
    p_value : float or None
        That it flips early as often as the other segments: exact, adjusted for the number of segments (Holm). None
        without other segments.
    p_within_class : float or None
        The same within predicted classes.
    median_flip_budget : int or None
        Along the path; None if it flips no more than half of them, or there are none.
    mean_exposure : float
        NaN if there are none.
    """

    rows: int
    flips_early: Share
    by_class: tuple[Share, ...]
    standardised: float | None
    p_value: float | None
    p_within_class: float | None
    median_flip_budget: int | None
    mean_exposure: float

    @property
    def differs(self) -> bool:
        """Whether it flips early clearly more or less often than the others."""
        return self.p_value is not None and self.p_value < ALPHA

    @property
    def differs_within_class(self) -> bool:
        """Whether it does so among predictions of one class too."""
        return self.p_within_class is not None and self.p_within_class < ALPHA


@dataclass(frozen=True, slots=True)
class Segment:
    """One segment: its confident predictions, and all of them."""

    name: str
    confident: SegmentNumbers
    everything: SegmentNumbers


@dataclass(frozen=True, slots=True, repr=False)
class SegmentShares(BriefRepr):
    """How many predictions flip early, segment by segment of one column; :func:`share_by` makes it.

    Attributes
    ----------
    column : str
        The column that rows were cut by.
    min_confidence : float
        Where confident begins.
    classes : tuple of str
        The model's classes, in the order of ``by_class``.
    segments : tuple of Segment
        Bands in rising order, values by frequency; rows without a value last.
    """

    column: str
    min_confidence: float
    classes: tuple[str, ...]
    segments: tuple[Segment, ...]

    def to_pandas(self) -> pd.DataFrame:
        """Return one row per segment, about its confident predictions.

        Returns
        -------
        pandas.DataFrame
            Columns ``segment``, ``rows``, ``confident``, ``flips_early`` (how many), ``share``, ``lower``, ``upper``
            (its 95% interval), ``standardised`` (the share with the predicted classes of all rows), ``p_value`` and
            ``p_within_class`` (that it differs from the other segments, over all rows and within predicted classes),
            ``median_flip_budget`` and ``mean_exposure``.
        """
        confident = [one.confident for one in self.segments]
        return pd.DataFrame(
            {
                "segment": [one.name for one in self.segments],
                "rows": [one.everything.rows for one in self.segments],
                "confident": [one.rows for one in confident],
                "flips_early": [one.flips_early.count for one in confident],
                "share": [one.flips_early.value for one in confident],
                "lower": [one.flips_early.lower for one in confident],
                "upper": [one.flips_early.upper for one in confident],
                "standardised": [_or_nan(one.standardised) for one in confident],
                "p_value": [_or_nan(one.p_value) for one in confident],
                "p_within_class": [_or_nan(one.p_within_class) for one in confident],
                "median_flip_budget": pd.array([one.median_flip_budget for one in confident], dtype="Int64"),
                "mean_exposure": [one.mean_exposure for one in confident],
            }
        )


def _or_nan(value: float | None) -> float:
    return float("nan") if value is None else value


class SegmentTally:
    """Counts of the segments of one column, part after part."""

    def __init__(self, coded: Coded, audit: Audit, min_confidence: float) -> None:
        self.coded, self.audit, self.min_confidence = coded, audit, min_confidence
        self.classes = tuple(str(label) for label in audit.classes)
        size = len(coded.names) * len(self.classes)  # a segment of the tally is one class of one segment
        confident, everything = (Tally(audit, COUNTED, least, segments=size) for least in (min_confidence, 0.0))
        self.tallies, self.columns = (confident, everything), [*confident.columns, "predicted", "flip_budget"]
        self.budgets = np.zeros((2, len(coded.names), audit.protocol.depth + 2), dtype=np.int64)

    def add(self, start: int, table: pa.Table) -> None:
        """Count rows that begin at a position."""
        codes = self.coded.codes[start : start + len(table)].astype(np.int64)
        predicted = indices_of(table.column("predicted").combine_chunks(), self.audit.classes, "predicted")
        confidence, budget = (table.column(name).to_numpy() for name in ("confidence", "flip_budget"))
        for tally, budgets in zip(self.tallies, self.budgets, strict=True):
            selected = confidence >= tally.min_confidence
            np.add.at(budgets, (codes[selected], budget[selected].astype(np.int64)), 1)
            tally.add(table, codes * len(self.classes) + predicted)

    def shares(self) -> SegmentShares:
        """Return what was counted."""
        confident, everything = map(self._list_numbers, self.tallies, self.budgets)
        segments = zip(self.coded.names, confident, everything, strict=True)
        return SegmentShares(
            self.coded.column, self.min_confidence, self.classes, tuple(Segment(*segment) for segment in segments)
        )

    def _list_numbers(self, tally: Tally, budgets: Integers) -> list[SegmentNumbers]:
        """Return the numbers of every segment."""
        classes = len(self.classes)
        counts = tally.counts["flips_early"].reshape(-1, classes, 3)[:, :, :2]
        p_values = adjust_holm([compare_with_rest(counts.sum(axis=1, keepdims=True), s) for s in range(len(counts))])
        p_within = adjust_holm([compare_with_rest(counts, s) for s in range(len(counts))])
        numbers = []
        for code, of_segment in enumerate(budgets):
            segment, rows = slice(code * classes, (code + 1) * classes), int(of_segment.sum())
            middle = int(np.searchsorted(np.cumsum(of_segment), np.ceil(rows / 2)))
            by_class = [tally.share("flips_early", slice(at, at + 1)) for at in range(segment.start, segment.stop)]
            numbers.append(
                SegmentNumbers(
                    rows=rows,
                    flips_early=tally.share("flips_early", segment),
                    by_class=tuple(by_class),
                    standardised=standardise(by_class, counts[:, :, 0].sum(axis=0)),
                    p_value=p_values[code],
                    p_within_class=p_within[code],
                    median_flip_budget=middle if rows and middle <= self.audit.protocol.depth else None,
                    mean_exposure=tally.mean("confident_mean_exposure", segment).value,
                )
            )
        return numbers


def standardise(by_class: Sequence[Share], weights: Integers) -> float | None:
    """Return sum_c w_c p_c for class weights (C,); None if a class that has weight has no rows to know p_c by."""
    known = [(share, int(weight)) for share, weight in zip(by_class, weights, strict=True) if weight]
    if not known or any(not share.rows for share, _ in known):
        return None
    return sum(weight * share.value for share, weight in known) / sum(weight for _, weight in known)


def compare_with_rest(counts: Integers, segment: int) -> float | None:
    """Return the exact p value that a segment flips early as often as the others, within each stratum.

    counts: (segments, strata, 2), rows and those that flip early. With one stratum this is Fisher's test. None if no
    stratum has rows of the segment and of others.
    """
    of_segment, every = counts[segment], counts.sum(axis=0)
    chances, start, compared = np.ones(1), 0, False
    for (n, _), (rows, flipping) in zip(of_segment, every, strict=True):
        compared |= bool(0 < n < rows)
        mean, spread = n * flipping / rows if rows else 0.0, math.sqrt(n * flipping) / max(math.sqrt(rows), 1.0)
        low = max(n + flipping - rows, 0, math.floor(mean - TAILS * spread - TAILS))
        high = min(n, flipping, math.ceil(mean + TAILS * spread + TAILS))
        likely = stats.hypergeom.pmf(np.arange(low, high + 1), rows, flipping, n) if rows else np.ones(1)
        chances, start = np.convolve(chances, likely), start + int(low)
    if not compared:
        return None
    count = int(of_segment[:, 1].sum()) - start
    if not 0 <= count < len(chances):
        return 0.0
    return min(float(chances[chances <= chances[count] * (1 + 1e-7)].sum()), 1.0)


def adjust_holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Return p values adjusted for their number (Holm); None stays None and is not counted."""
    order = sorted((p, place) for place, p in enumerate(p_values) if p is not None)
    adjusted: list[float | None] = [None] * len(p_values)
    least = 0.0
    for rank, (p, place) in enumerate(order):
        least = max(least, min(p * (len(order) - rank), 1.0))
        adjusted[place] = least
    return adjusted


def share_by(
    certificates: Audit, rows: Any, by: ByColumn, *, ids: Any = None, min_confidence: float | None = None
) -> SegmentShares:
    """Say how many predictions of each segment flip early.

    Parameters
    ----------
    certificates : Certificates or StoredAudit
        The audit.
    rows : table or array of shape (n, d)
        The rows that were audited, in any order; they may have columns that the model does not see.
    by : str or mapping
        The column: ``"sex"``, ``"age:25,40,60"`` with declared bands, ``"age:q5"`` with five bands of about equally
        many rows; or ``{"age": [25, 40, 60]}``, ``{"age": 5}``.
    ids : sequence, optional
        One id per row, as in :func:`audit`; by default the index of a pandas table, else 0, 1, ...
    min_confidence : float, optional
        Where confident begins; by default as the protocol declares.

    Returns
    -------
    SegmentShares
        Shares with 95% intervals (Wilson), median k* and mean exposure per segment.

    Raises
    ------
    DataError
        The rows have no such column or are not the ones audited, or bands are asked of a column of text.

    See Also
    --------
    Report.of : The same as a section of the report.

    Examples
    --------
    >>> import fragility as fg
    >>> from sklearn.linear_model import LogisticRegression
    >>> X, y = fg.load_credit_g()
    >>> X = X[["duration", "age", "installment_commitment"]]
    >>> model = LogisticRegression().fit(X, y)
    >>> certs = fg.audit(model, X, fg.Protocol.fit(model, X))
    >>> shares = fg.share_by(certs, X, by="age:30,50", min_confidence=0.7)
    >>> [segment.name for segment in shares.segments]
    ['under 30', '30 to under 50', '50 or more']
    """
    source = TableRows.of(rows, ids)
    asked = read_by(by, source.column_names)
    if len(asked) != 1:
        raise DataError(f"share_by takes one column at a time, got {len(asked)}")
    ((coded,),) = segment_rows(source, asked, [certificates])
    tally, start = SegmentTally(coded, certificates, certificates.confident_from(min_confidence)), 0
    for batch in certificates.batches(list(dict.fromkeys(tally.columns))):
        tally.add(start, batch)
        start += batch.num_rows
    return tally.shares()
