"""The label channel: held-out random stress that says which confident predictions really break.

Nothing here is used by any certificate or ranking score; `fragility.ranking` does not import this module. The
definitions are those of the paper's app:threshold_protocol and app:non_circular_labels, with the open choices settled:

    kappa_P(x) = [m(x) - m_P(x)]_+ / (|m(x)| + 1e-8)
    brittle(x) = 1[ p^(x) >= tau_p  and, for at least one stressor P,  flip_P(x)  or  kappa_P(x) >= tau_kappa ]

m is the support margin (pseudo-logit of the class predicted at x minus its best competitor). A random P needs a rule:

* ``expected`` (default): m_P is the mean support margin over the draws; flip means m_P < 0.
* ``any``: flip (support margin < -resolution) or kappa >= tau in any single draw.

Stressors, with xbar the protocol's baseline and u independent uniforms on [0, 1):

* ``Mask(r)``: every column of group g takes its baseline where u_g < r;
* ``Dropout(r)``: column j takes its baseline where u_j < r;
* ``Noise(e)``: a numeric column becomes x_j + e * spread_j * (2 u_j - 1), spread_j its training standard deviation;
  nominal columns (one-hot, ordinal, indicators, nominal fields) and columns without a spread are left alone;
* ``Outages(patterns, counts)``: a recorded event is drawn and the groups of the fields it lacked take their baseline.

The random numbers (format ``fragility-draw/1``), so that another implementation can repeat them
--------------------------------------------------------------------------------------------------
1. Row key: the 8-byte BLAKE2b digest, read as a little-endian unsigned integer, of the UTF-8 text
   ``fragility-draw/1 <US> seed <US> stream <US> id`` without the blanks, where <US> is the character U+001F, seed is in
   decimal, stream is the stressor's kind (``mask``, ``dropout``, ``noise``, ``outages``) and id is ``str(sample id)``.
2. Word for draw t = 0, 1, ... and position j: output number n = t * 2**32 + j + 1 of the SplitMix64 generator seeded
   with the row key, that is, with all arithmetic modulo 2**64,
   w = key + n * 0x9E3779B97F4A7C15;  w = (w ^ w>>30) * 0xBF58476D1CE4E5B9;  w = (w ^ w>>27) * 0x94D049BB133111EB;
   w = w ^ w>>31.
3. Uniform: u = (w >> 11) * 2**-53.
4. Position j: the group's place in `protocol.groups` for masks, the column's place in `protocol.columns` for dropout
   and noise, 0 for outages. The outage event is number floor(u * N) of the N events sorted by their sorted field names.

A row's draws therefore depend on the seed, the stressor's kind, the row's id and the draw number, and on nothing else:
not on the batch, the order or the other rows. The severity is no part of the key, so the groups masked at r = 0.1 are
among those masked at r = 0.3 and severities are compared on common random numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any

import narwhals as nw
import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from fragility.arrays import STRESS_BYTE_BUDGET, Booleans, Floats, rows_within
from fragility.errors import DataError, EvidenceError, ProtocolError
from fragility.evidence import EvidenceRows
from fragility.models import Model
from fragility.protocol import Protocol, bind
from fragility.scores import EPSILON, predicted_class, support_margin
from fragility.tracing import trace_columns

WordArray = npt.NDArray[np.uint64]
Predict = Callable[[Floats], Floats]

RULES = ("expected", "any")
DRAW_FORMAT = "fragility-draw/1"

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
# A second seed far from the small ones people choose, so that `independent()` of seed 0 is not their seed 1.
_INDEPENDENT_OFFSET = 1_000_003


# --- counter-based draws -----------------------------------------------------------------------------------------


def row_keys(seed: int, stream: str, ids: Iterable[object]) -> WordArray:
    """One 64-bit key a row from (seed, stream, sample id); step 1 of the draw format."""
    prefix = blake2b(f"{DRAW_FORMAT}\x1f{seed}\x1f{stream}\x1f".encode(), digest_size=8)

    def key(sample_id: object) -> bytes:
        state = prefix.copy()
        state.update(str(sample_id).encode())
        return state.digest()

    return np.frombuffer(b"".join(key(i) for i in ids), dtype="<u8").astype(np.uint64)


def uniforms(keys: WordArray, draws: npt.NDArray[np.int64], positions: npt.NDArray[np.int64]) -> Floats:
    """Uniforms on [0, 1), shape (rows, draws, positions); steps 2 and 3 of the draw format."""
    out = np.empty((len(keys), len(draws), len(positions)))
    for block, words in _word_blocks(keys, draws, positions):
        words >>= np.uint64(11)
        np.multiply(words, 2.0**-53, out=out[block])
    return out


def strikes(keys: WordArray, draws: npt.NDArray[np.int64], positions: npt.NDArray[np.int64], rate: float) -> Booleans:
    """Whether each uniform is below `rate`, shape (rows, draws, positions); `uniforms(...) < rate`, faster.

    (w >> 11) * 2**-53 < r holds exactly when w >> 11 < ceil(r * 2**53), since the left side is a whole number.
    """
    out = np.empty((len(keys), len(draws), len(positions)), dtype=bool)
    bound = np.uint64(math.ceil(rate * 2.0**53))
    for block, words in _word_blocks(keys, draws, positions):
        words >>= np.uint64(11)
        np.less(words, bound, out=out[block])
    return out


_WORDS_AT_ONCE = 2**16  # 512 KB: a block of words stays in a core's cache through all the steps of the mixer


def _word_blocks(
    keys: WordArray, draws: npt.NDArray[np.int64], positions: npt.NDArray[np.int64]
) -> Iterator[tuple[slice, WordArray]]:
    """Step 2 of the draw format, for a few rows at a time."""
    counter = (draws.astype(np.uint64)[:, None] << np.uint64(32)) + positions.astype(np.uint64) + np.uint64(1)
    offset = (counter * _GOLDEN)[None]
    rows = max(1, _WORDS_AT_ONCE // max(1, counter.size))
    shifted = np.empty((rows, *counter.shape), dtype=np.uint64)
    for start in range(0, len(keys), rows):
        block = slice(start, min(start + rows, len(keys)))
        word = keys[block, None, None] + offset
        scratch = shifted[: len(word)]
        for shift, factor in ((30, _MIX_1), (27, _MIX_2)):
            np.right_shift(word, np.uint64(shift), out=scratch)
            word ^= scratch
            word *= factor
        np.right_shift(word, np.uint64(31), out=scratch)
        word ^= scratch
        yield block, word


# --- stressors ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Layout:
    """What a stressor needs to know of the evidence space; d columns, G groups."""

    baseline: Floats  # (d,)
    column_group: npt.NDArray[np.int64]  # (d,) group index of each column
    n_groups: int
    spread: Floats  # (d,) training standard deviation, 0 where noise does not apply
    fields: tuple[tuple[str, ...], ...]  # (d,) raw fields each column is made from

    @classmethod
    def of(cls, protocol: Protocol, rows: EvidenceRows) -> Layout:
        """The layout of rows bound to a protocol."""
        spread = [_noise_spread(column.kind, column.spread) for column in protocol.columns]
        return cls(
            baseline=np.asarray(rows.baseline, dtype=np.float64),
            column_group=np.asarray(rows.column_group, dtype=np.int64),
            n_groups=int(rows.n_groups),
            spread=np.asarray(spread, dtype=np.float64),
            fields=_column_fields(protocol, rows),
        )

    def groups_of(self, field: str) -> npt.NDArray[np.int64]:
        """Indices of the groups that hold a column of the raw field."""
        here = np.asarray([field in names for names in self.fields], dtype=bool)
        return np.unique(self.column_group[here])

    @property
    def known_fields(self) -> tuple[str, ...]:
        """Every raw field some column is made from, sorted."""
        return tuple(sorted({name for names in self.fields for name in names}))


def _column_fields(protocol: Protocol, rows: EvidenceRows) -> tuple[tuple[str, ...], ...]:
    """Raw fields of every column: its own name, or what the preprocessing made it from."""
    transformer = rows.model.transformer
    if protocol.space == "raw" or transformer is None:
        return tuple((column.name,) for column in protocol.columns)
    try:
        return tuple(origin.fields for origin in trace_columns(transformer, rows.source.names))
    except EvidenceError:  # groups were declared over columns; only an outage log needs the fields, and says so
        return tuple(() for _ in protocol.columns)


def _noise_spread(kind: str, spread: float | None) -> float:
    usable = kind == "numeric" and spread is not None and np.isfinite(spread)
    return float(spread) if usable and spread is not None else 0.0


def _check_rate(kind: str, what: str, value: float, upper: float) -> None:
    if not (isinstance(value, (int, float)) and 0.0 <= value <= upper):
        limit = f"between 0 and {upper:g}" if np.isfinite(upper) else "a finite number of at least 0"
        raise ProtocolError(f"{kind}: {what} must be {limit}, got {value!r}")


@dataclass(frozen=True, slots=True)
class Mask:
    """Every group replaced by its baseline independently with probability `rate`."""

    rate: float = 0.3
    kind = "mask"

    def __post_init__(self) -> None:
        _check_rate("mask", "rate", self.rate, 1.0)

    @property
    def name(self) -> str:
        """Readable name with its severity."""
        return f"mask({self.rate:g})"

    def to_dict(self) -> dict[str, Any]:
        """Plain form."""
        return {"kind": self.kind, "rate": float(self.rate)}

    def stressed(self, x: Floats, keys: WordArray, draws: npt.NDArray[np.int64], layout: Layout) -> Floats:
        """Stressed copies, shape (rows, draws, d)."""
        hit = strikes(keys, draws, np.arange(layout.n_groups), self.rate)
        return np.where(hit[:, :, layout.column_group], layout.baseline, x[:, None, :])


@dataclass(frozen=True, slots=True)
class Dropout:
    """Every column replaced by its baseline independently with probability `rate`."""

    rate: float = 0.3
    kind = "dropout"

    def __post_init__(self) -> None:
        _check_rate("dropout", "rate", self.rate, 1.0)

    @property
    def name(self) -> str:
        """Readable name with its severity."""
        return f"dropout({self.rate:g})"

    def to_dict(self) -> dict[str, Any]:
        """Plain form."""
        return {"kind": self.kind, "rate": float(self.rate)}

    def stressed(self, x: Floats, keys: WordArray, draws: npt.NDArray[np.int64], layout: Layout) -> Floats:
        """Stressed copies, shape (rows, draws, d)."""
        hit = strikes(keys, draws, np.arange(x.shape[1]), self.rate)
        return np.where(hit, layout.baseline, x[:, None, :])


@dataclass(frozen=True, slots=True)
class Noise:
    """Uniform noise of at most `extent` training standard deviations on numeric columns."""

    extent: float = 0.3
    kind = "noise"

    def __post_init__(self) -> None:
        _check_rate("noise", "extent", self.extent, np.inf)

    @property
    def name(self) -> str:
        """Readable name with its severity."""
        return f"noise({self.extent:g})"

    def to_dict(self) -> dict[str, Any]:
        """Plain form."""
        return {"kind": self.kind, "extent": float(self.extent)}

    def stressed(self, x: Floats, keys: WordArray, draws: npt.NDArray[np.int64], layout: Layout) -> Floats:
        """Stressed copies, shape (rows, draws, d)."""
        moved = np.flatnonzero(layout.spread > 0.0)
        out = np.repeat(x[:, None, :], len(draws), axis=1)
        shift = uniforms(keys, draws, moved)
        shift *= 2.0
        shift -= 1.0
        shift *= self.extent * layout.spread[moved]
        out[:, :, moved] += shift
        return out


@dataclass(frozen=True, slots=True)
class Outages:
    """Recorded outages: which fields were unavailable together, and how often.

    `patterns` are sorted tuples of raw field names in sorted order, `counts` the number of events of each.
    """

    patterns: tuple[tuple[str, ...], ...]
    counts: tuple[int, ...]
    kind = "outages"

    def __post_init__(self) -> None:
        if not self.patterns:
            raise DataError(
                "outages: expected at least one event with at least one unavailable field, got none; "
                "check the log, or the markers that say a field is unavailable"
            )
        if len(self.patterns) != len(self.counts) or any(count < 1 for count in self.counts):
            raise DataError("outages: expected one positive count a pattern")
        if list(self.patterns) != sorted({tuple(sorted(set(p))) for p in self.patterns}) or not all(self.patterns):
            raise DataError("outages: patterns must be distinct, non-empty, sorted tuples in sorted order")

    @classmethod
    def from_events(cls, events: Iterable[Iterable[str]]) -> Outages:
        """From sets of field names; events that lack nothing are left out."""
        tally: dict[tuple[str, ...], int] = {}
        for event in events:
            pattern = tuple(sorted({str(name) for name in event}))
            if pattern:
                tally[pattern] = tally.get(pattern, 0) + 1
        ordered = sorted(tally)
        return cls(tuple(ordered), tuple(tally[p] for p in ordered))

    @property
    def events(self) -> int:
        """Number of recorded events, N."""
        return sum(self.counts)

    @property
    def fields(self) -> tuple[str, ...]:
        """Every field that was ever unavailable, sorted."""
        return tuple(sorted({name for pattern in self.patterns for name in pattern}))

    @property
    def name(self) -> str:
        """Readable name."""
        return "outages"

    def to_dict(self) -> dict[str, Any]:
        """Plain form."""
        return {"kind": self.kind, "patterns": [list(p) for p in self.patterns], "counts": list(self.counts)}

    def stressed(self, x: Floats, keys: WordArray, draws: npt.NDArray[np.int64], layout: Layout) -> Floats:
        """Stressed copies, shape (rows, draws, d)."""
        hit = self.removed_groups(layout)[self.drawn_patterns(keys, draws)]
        return np.where(hit[:, :, layout.column_group], layout.baseline, x[:, None, :])

    def drawn_patterns(self, keys: WordArray, draws: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Index of the pattern each draw takes, shape (rows, draws)."""
        event = np.floor(uniforms(keys, draws, np.zeros(1, dtype=np.int64))[:, :, 0] * self.events)
        return np.searchsorted(np.cumsum(self.counts), event, side="right")

    def removed_groups(self, layout: Layout) -> Booleans:
        """Which groups each pattern removes, shape (patterns, G)."""
        unknown = sorted(set(self.fields) - set(layout.known_fields))
        if unknown:
            raise ProtocolError(
                f"outages: the model's evidence has no fields {unknown}, only {list(layout.known_fields)}; "
                "correct the names, or keep only known ones with fields=[...] when reading the log"
            )
        groups = {name: layout.groups_of(name) for name in self.fields}
        removed = np.zeros((len(self.patterns), layout.n_groups), dtype=bool)
        for row, pattern in enumerate(self.patterns):
            for name in pattern:
                removed[row, groups[name]] = True
        return removed


Stressor = Mask | Dropout | Noise | Outages
_STRESSORS: dict[str, type[Mask] | type[Dropout] | type[Noise] | type[Outages]] = {
    "mask": Mask,
    "dropout": Dropout,
    "noise": Noise,
    "outages": Outages,
}


def _stressor_from_dict(document: Mapping[str, Any]) -> Stressor:
    fields = {key: value for key, value in document.items() if key != "kind"}
    kind = document.get("kind")
    if kind not in _STRESSORS:
        raise ProtocolError(f"stressor kind must be one of {sorted(_STRESSORS)}, got {kind!r}")
    if kind == "outages":
        return Outages(tuple(tuple(p) for p in fields["patterns"]), tuple(int(c) for c in fields["counts"]))
    return _STRESSORS[kind](**fields)


# --- reading an outage log ---------------------------------------------------------------------------------------

Markers = Sequence[object] | Mapping[str, Sequence[object]]


def outage_events(
    log: Any,
    *,
    markers: Markers | None = None,
    event: str = "event",
    field: str = "field",
    fields: Sequence[str] | None = None,
) -> list[tuple[str, ...]]:
    """Sets of fields that were unavailable together, from a user's table or from a list of sets.

    Parameters
    ----------
    log : one of
        - a list of sets (or lists) of field names, one an event;
        - a long table with a row for each unavailable field: columns `event` and `field`;
        - a wide table of booleans, one row an event, one column a field, true = unavailable (a column called
          `event` is its name and is skipped);
        - with `markers`, a table of raw rows in which the markers say that a field was unavailable.
    markers : values that mean "unavailable", for every column, or a dict from column to values; `None` in
        the values stands for null and NaN.
    fields : keep only these fields.

    Rows that lack nothing are no events.
    """
    if _is_list_of_sets(log):
        found = [tuple(str(name) for name in entry) for entry in log]
    else:
        frame = nw.from_native(log, eager_only=True)
        if markers is not None:
            found = _events_of(frame, _marked(frame, markers))
        elif {event, field} <= set(frame.columns):
            found = _long_events(frame, event, field)
        else:
            found = _events_of(frame, _wide(frame, event))
    kept = None if fields is None else set(fields)
    trimmed = [tuple(n for n in names if kept is None or n in kept) for names in found]
    return [names for names in trimmed if names]


def _is_list_of_sets(log: Any) -> bool:
    return isinstance(log, (list, tuple)) and all(isinstance(e, (list, tuple, set, frozenset)) for e in log)


def _long_events(frame: nw.DataFrame[Any], event: str, field: str) -> list[tuple[str, ...]]:
    together: dict[object, set[str]] = {}
    for key, name in zip(frame[event].to_list(), frame[field].to_list(), strict=True):
        together.setdefault(key, set()).add(str(name))
    return [tuple(sorted(names)) for names in together.values()]


def _wide(frame: nw.DataFrame[Any], event: str) -> dict[str, Booleans]:
    columns = [name for name in frame.columns if name != event]
    other = [name for name in columns if frame[name].dtype != nw.Boolean]
    if other or not columns:
        raise DataError(
            "outage log: expected columns 'event' and 'field', or one boolean column a field, or markers=...; "
            f"got columns {list(frame.columns)}, of which {other} are not boolean"
        )
    return {name: frame[name].fill_null(False).to_numpy().astype(bool) for name in columns}


def _marked(frame: nw.DataFrame[Any], markers: Markers) -> dict[str, Booleans]:
    declared = markers if isinstance(markers, Mapping) else {name: markers for name in frame.columns}
    absent = sorted(set(declared) - set(frame.columns))
    if absent:
        raise DataError(f"outage markers name columns {absent} that the table does not have: {list(frame.columns)}")
    return {name: _is_marked(frame[name], values) for name, values in declared.items()}


def _is_marked(column: nw.Series[Any], values: Sequence[object]) -> Booleans:
    if isinstance(values, (str, bytes)):
        raise DataError(f"outage markers of {column.name!r} must be a list of values, got the text {values!r}")
    entries = column.to_list()
    wanted = [value for value in values if value is not None]
    null = any(value is None for value in values)
    hits = ((null and (v is None or v != v)) or any(v == w for w in wanted) for v in entries)
    return np.fromiter(hits, dtype=bool, count=len(entries))


def _events_of(frame: nw.DataFrame[Any], unavailable: Mapping[str, Booleans]) -> list[tuple[str, ...]]:
    names = np.asarray(list(unavailable), dtype=object)
    table = np.column_stack([unavailable[name] for name in names]) if len(names) else np.zeros((len(frame), 0), bool)
    return [tuple(names[row]) for row in table if row.any()]


# --- the declared label channel ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Stress:
    """The label channel, declared: stressors, number of draws, rule, thresholds and seed."""

    stressors: tuple[Stressor, ...] = (Mask(), Dropout(), Noise())
    draws: int = 16
    rule: str = "expected"
    tau_confidence: float = 0.90
    tau_collapse: float = 0.50
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.stressors:
            raise ProtocolError("stress: expected at least one stressor, got none")
        names = [stressor.name for stressor in self.stressors]
        if len(set(names)) != len(names):
            raise ProtocolError(f"stress: stressors must differ, got {names}")
        if self.draws < 1 or self.draws >= 2**31:
            raise ProtocolError(f"stress: draws must be between 1 and 2**31 - 1, got {self.draws}")
        if self.rule not in RULES:
            raise ProtocolError(f"stress: rule must be one of {RULES}, got {self.rule!r}")
        if not 0.0 <= self.tau_confidence <= 1.0:
            raise ProtocolError(f"stress: tau_confidence must be between 0 and 1, got {self.tau_confidence!r}")
        if not self.tau_collapse > 0.0:
            raise ProtocolError(f"stress: tau_collapse must be positive, got {self.tau_collapse!r}")

    @classmethod
    def at(cls, severity: float) -> Stress:
        """The three default stressors with rate and extent `severity`."""
        return cls((Mask(severity), Dropout(severity), Noise(severity)))

    @classmethod
    def from_outages(
        cls,
        log: Any,
        *,
        markers: Markers | None = None,
        event: str = "event",
        field: str = "field",
        fields: Sequence[str] | None = None,
        draws: int = 16,
        rule: str = "expected",
        tau_confidence: float = 0.90,
        tau_collapse: float = 0.50,
        seed: int = 0,
    ) -> Stress:
        """Stress made of recorded outages: each draw removes what one past event lacked.

        `log`, `markers`, `event`, `field` and `fields` are read by `outage_events`. The naturalistic proxy of
        app:naturalistic_proxy is ``Stress.from_outages(X_train, markers=...)``.
        """
        events = outage_events(log, markers=markers, event=event, field=field, fields=fields)
        return cls((Outages.from_events(events),), draws, rule, tau_confidence, tau_collapse, seed)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the stressors."""
        return tuple(stressor.name for stressor in self.stressors)

    def independent(self) -> Stress:
        """The same stress with other draws, for the label-noise ceiling."""
        return replace(self, seed=self.seed + _INDEPENDENT_OFFSET)

    def to_dict(self) -> dict[str, Any]:
        """Plain form, for files."""
        return {
            "draw_format": DRAW_FORMAT,
            "stressors": [stressor.to_dict() for stressor in self.stressors],
            "draws": self.draws,
            "rule": self.rule,
            "tau_confidence": float(self.tau_confidence),
            "tau_collapse": float(self.tau_collapse),
            "seed": self.seed,
        }

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Stress:
        """The stress a plain form describes."""
        if document.get("draw_format", DRAW_FORMAT) != DRAW_FORMAT:
            raise ProtocolError(f"stress: draw_format must be {DRAW_FORMAT!r}, got {document['draw_format']!r}")
        return cls(
            stressors=tuple(_stressor_from_dict(entry) for entry in document["stressors"]),
            draws=int(document["draws"]),
            rule=document["rule"],
            tau_confidence=float(document["tau_confidence"]),
            tau_collapse=float(document["tau_collapse"]),
            seed=int(document["seed"]),
        )


# --- running it --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class StressRun:
    """What the model did under stress, before any threshold; n rows, P stressors, D draws."""

    id: npt.NDArray[Any]  # (n,)
    predicted: npt.NDArray[np.int64]  # (n,) class index at x
    confidence: Floats  # (n,) probability of that class at x
    margin: Floats  # (n,) support margin at x
    draw_margin: Floats  # (n, P, D) support margin of that class under each draw
    stress: Stress
    resolution: float


def run_stress(
    model: Any,
    X: Any,
    protocol: Protocol,
    stress: Stress | None = None,
    *,
    ids: Any = None,
    predict: Predict | None = None,
    byte_budget: int = STRESS_BYTE_BUDGET,
) -> StressRun:
    """Ask the model for every row, stressor and draw; the costly half of `brittle_labels`.

    `predict` may replace the model's own probabilities on evidence matrices (m, d) -> (m, C), e.g. by a native tree
    engine. Stressed copies are made in chunks of at most about `byte_budget` bytes.
    """
    chosen = Stress() if stress is None else stress
    rows = bind(Model.wrap(model), X, protocol, ids=ids)
    return run_stress_rows(rows, protocol, chosen, predict=predict, byte_budget=byte_budget)


def run_stress_rows(
    rows: EvidenceRows,
    protocol: Protocol,
    stress: Stress,
    *,
    predict: Predict | None = None,
    byte_budget: int = STRESS_BYTE_BUDGET,
) -> StressRun:
    """`run_stress` on rows that are already bound."""
    ask = rows.predict if predict is None else predict
    layout = Layout.of(protocol, rows)
    sample_ids = np.fromiter(rows.ids, dtype=object, count=len(rows.ids))
    n, d = rows.matrix.shape
    chunk = rows_per_chunk(d, stress.draws, byte_budget)
    draw_margin = np.empty((n, len(stress.stressors), stress.draws))
    predicted, confidence, margin = np.empty(n, dtype=np.int64), np.empty(n), np.empty(n)
    for start in range(0, n, chunk):
        part = slice(start, min(start + chunk, n))
        x = np.asarray(rows.dense(part.start, part.stop), dtype=np.float64)
        p = ask(x)
        predicted[part] = predicted_class(p, protocol.resolution)
        confidence[part] = p[np.arange(len(p)), predicted[part]]
        margin[part] = support_margin(p, predicted[part])
        for index, stressor in enumerate(stress.stressors):
            keys = row_keys(stress.seed, stressor.kind, sample_ids[part])
            draw_margin[part, index] = _margins(x, keys, predicted[part], stressor, stress.draws, layout, ask)
    return StressRun(sample_ids, predicted, confidence, margin, draw_margin, stress, protocol.resolution)


def rows_per_chunk(n_columns: int, copies: int, byte_budget: int) -> int:
    """Rows whose stressed copies fit the budget; the factor 4 covers words, masks and the model's own copy."""
    return rows_within(byte_budget, max(1, n_columns) * copies, copies=4)


def _margins(
    x: Floats,
    keys: WordArray,
    predicted: npt.NDArray[np.int64],
    stressor: Stressor,
    draws: int,
    layout: Layout,
    ask: Predict,
) -> Floats:
    """Support margins under one stressor, shape (rows, draws)."""
    states = stressor.stressed(x, keys, np.arange(draws), layout)
    p = ask(states.reshape(-1, x.shape[1]))
    return support_margin(p, np.repeat(predicted, draws)).reshape(len(x), draws)


# --- labels ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class BrittleLabels:
    """Held-out labels, one row a prediction; n rows, P stressors.

    Ranking is judged on the rows where `high_confidence` holds; `brittle` is false outside them.
    """

    id: npt.NDArray[Any]  # (n,)
    predicted: npt.NDArray[np.int64]  # (n,) class index at x
    confidence: Floats  # (n,) p^(x)
    margin: Floats  # (n,) m(x)
    high_confidence: Booleans  # (n,) p^(x) >= tau_confidence
    mean_margin: Floats  # (n, P) mean of the support margin over draws
    kappa: Floats  # (n, P) collapse by the rule (of the mean, or the largest over draws)
    flip: Booleans  # (n, P) flip by the rule
    brittle: Booleans  # (n,)
    brittle_rate: Floats  # (n,) share of draws in which some stressor flips or collapses the prediction
    stress: Stress
    run: StressRun

    def __len__(self) -> int:
        return len(self.id)

    @property
    def brittle_by(self) -> Booleans:
        """Which stressor breaks a row by the rule, confident or not, shape (n, P)."""
        return self.flip | (self.kappa >= self.stress.tau_collapse)

    def relabel(
        self,
        *,
        tau_confidence: float | None = None,
        tau_collapse: float | None = None,
        rule: str | None = None,
    ) -> BrittleLabels:
        """Labels by other thresholds or the other rule, from the same draws (no new model calls)."""
        stress = replace(
            self.stress,
            tau_confidence=self.stress.tau_confidence if tau_confidence is None else tau_confidence,
            tau_collapse=self.stress.tau_collapse if tau_collapse is None else tau_collapse,
            rule=self.stress.rule if rule is None else rule,
        )
        return label_rows(self.run, stress)

    def counts(self) -> dict[str, int]:
        """Rows, high-confidence rows, brittle rows, and brittle rows by stressor."""
        by = (self.brittle_by & self.high_confidence[:, None]).sum(axis=0)
        named = {f"brittle by {name}": int(k) for name, k in zip(self.stress.names, by, strict=True)}
        return {
            "rows": len(self),
            "high-confidence rows": int(self.high_confidence.sum()),
            "brittle rows": int(self.brittle.sum()),
            **named,
        }

    def to_arrow(self) -> pa.Table:
        """One row a prediction; per-stressor values in columns named after the stressor."""
        columns: dict[str, Any] = {
            "id": self.id,
            "confidence": self.confidence,
            "margin": self.margin,
            "high_confidence": self.high_confidence,
            "brittle": self.brittle,
            "brittle_rate": self.brittle_rate,
        }
        for index, name in enumerate(self.stress.names):
            columns[f"mean_margin_{name}"] = self.mean_margin[:, index]
            columns[f"kappa_{name}"] = self.kappa[:, index]
            columns[f"flip_{name}"] = self.flip[:, index]
        return pa.table({name: pa.array(values) for name, values in columns.items()})

    def to_pandas(self) -> pd.DataFrame:
        """`to_arrow` as a pandas DataFrame."""
        return self.to_arrow().to_pandas()


def collapse_under(margin: Floats, stressed: Floats) -> Floats:
    """kappa = [m(x) - m_P(x)]_+ / (|m(x)| + 1e-8), for stressed margins with further trailing axes."""
    m = margin.reshape(margin.shape + (1,) * (stressed.ndim - margin.ndim))
    return np.maximum(m - stressed, 0.0) / (np.abs(m) + EPSILON)


def label_rows(run: StressRun, stress: Stress) -> BrittleLabels:
    """Apply rule and thresholds to a stress run; the cheap half of `brittle_labels`."""
    mean_margin = run.draw_margin.mean(axis=2)
    draw_kappa = collapse_under(run.margin, run.draw_margin)
    draw_flip = run.draw_margin < -run.resolution
    if stress.rule == "expected":
        kappa, flip = collapse_under(run.margin, mean_margin), mean_margin < 0.0
    else:
        kappa, flip = draw_kappa.max(axis=2), draw_flip.any(axis=2)
    confident = run.confidence >= stress.tau_confidence
    broken = (flip | (kappa >= stress.tau_collapse)).any(axis=1)
    broken_draw = (draw_flip | (draw_kappa >= stress.tau_collapse)).any(axis=1)
    return BrittleLabels(
        id=run.id,
        predicted=run.predicted,
        confidence=run.confidence,
        margin=run.margin,
        high_confidence=confident,
        mean_margin=mean_margin,
        kappa=kappa,
        flip=flip,
        brittle=confident & broken,
        brittle_rate=broken_draw.mean(axis=1),
        stress=stress,
        run=run,
    )


def brittle_labels(
    model: Any,
    X: Any,
    protocol: Protocol,
    stress: Stress | None = None,
    *,
    ids: Any = None,
    predict: Predict | None = None,
    byte_budget: int = STRESS_BYTE_BUDGET,
) -> BrittleLabels:
    """Which confident predictions of `model` on `X` break under held-out stress.

    See the module's definition; `predict` and `byte_budget` as in `run_stress`.
    """
    run = run_stress(model, X, protocol, stress, ids=ids, predict=predict, byte_budget=byte_budget)
    return label_rows(run, run.stress)
