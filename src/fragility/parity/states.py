"""The states of rows that two artefacts are compared in, and the counts of what they answer.

States are made in the raw fields of both models: each group at its baseline (lost), each field missing, the values of
the protocol's failure modes (wrong, noisy, sentinel, outage), the removal path of either model, and every severity of
the operators (faded). A certificate in the transformed space replaces cells of the estimator's input, which another
artefact never sees; the raw twin of its protocol replaces the raw values that lead there.

Counts grow state by state and depend on no order; beside them the smallest examples of a difference are kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from fragility.base.arrays import Booleans, Floats, Integers
from fragility.base.errors import EvidenceError, FragilityError, ModelError, ProtocolError
from fragility.evidence import EvidenceRows, States
from fragility.evidence.baselines import with_values
from fragility.evidence.codec import RawCodec
from fragility.evidence.fields import Field
from fragility.evidence.form import Form, reads_categories
from fragility.evidence.modes import (
    CATALOGUE_SIZE,
    NOISE_DIRECTIONS,
    NOISE_STEPS,
    FailureModes,
    Sentinel,
    read_sentinels,
)
from fragility.evidence.protocol_parts import operator_width
from fragility.evidence.replacements import find_replacements, value_text
from fragility.evidence.rows import Rows, conform_rows
from fragility.models import Model
from fragility.parity.pairing import Artefact
from fragility.parity.result import CLEAN, KINDS, Gaps, KindParity, Reveal
from fragility.protocol import Protocol
from fragility.questions.modes.losses import Plan, noisy_columns

BINS_PER_DECADE = 40  # neighbouring edges differ by 6%
SMALLEST_EDGE = -18  # decades; whatever is smaller lies in the first bin
BINS = BINS_PER_DECADE * 21
MOST_REASONS = 3
SEVERAL = ("outage", "path", "faded")  # kinds that change several groups at once


class JudgedStates(NamedTuple):
    """What two models answer in k states, judged."""

    p_a: Floats  # (k, C), NaN where it refuses
    p_b: Floats
    refused_a: Booleans  # (k,)
    refused_b: Booleans
    gap: Floats  # (k,) the largest difference of a probability; 0 where a model refuses
    margin_gap: Floats
    differs: Booleans  # beyond the tolerance, and not for rounding or a tie
    label: Booleans  # of those, where the labels differ
    tie: Booleans
    rounded: Booleans
    reasons: dict[tuple[str, int], str]  # (a or b, state) -> why it refuses

    @property
    def alarm(self) -> Booleans:
        """(k,) where the artefacts are not the same model."""
        return np.asarray(self.differs | (self.refused_a ^ self.refused_b))

    def take(self, places: Integers) -> JudgedStates:
        """Return the outcome of some states, which may repeat."""
        reasons: dict[tuple[str, int], str] = {}
        for role in ("a", "b") if self.reasons else ():
            said = {state: reason for (who, state), reason in self.reasons.items() if who == role}
            reasons |= {(role, i): said[s] for i, s in enumerate(places.tolist()) if s in said}
        arrays = {name: value[places] for name, value in self._asdict().items() if name != "reasons"}
        return JudgedStates(**arrays, reasons=reasons)


class Histogram:
    """Counts of numbers >= 0 in bins of 6%; its quantiles are upper edges."""

    def __init__(self) -> None:
        self.counts, self.largest = np.zeros(BINS, dtype=np.int64), 0.0

    def add(self, values: Floats) -> None:
        """Count values."""
        if len(values):
            with np.errstate(divide="ignore"):
                place = np.ceil((np.log10(values) - SMALLEST_EDGE) * BINS_PER_DECADE)
            self.counts += np.bincount(np.clip(place, 0, BINS - 1).astype(np.int64), minlength=BINS)
            self.largest = max(self.largest, float(values.max()))

    def quantile(self, q: float) -> float:
        """Return a number that a share q of the values does not exceed."""
        total = int(self.counts.sum())
        if not total:
            return 0.0
        place = int(np.searchsorted(np.cumsum(self.counts), np.ceil(q * total)))
        edge = 0.0 if place == 0 else 10.0 ** (place / BINS_PER_DECADE + SMALLEST_EDGE)
        return min(edge, self.largest)

    def gaps(self) -> Gaps:
        """Return the quantiles that a result states."""
        return Gaps(self.quantile(0.5), self.quantile(0.9), self.quantile(0.99), self.largest)


@dataclass
class Count:
    """The counts of one change: a kind of state, a unit and a value."""

    states: int = 0
    differing: int = 0
    labels: int = 0
    ties: int = 0
    rounded: int = 0
    only_a: int = 0
    only_b: int = 0
    neither: int = 0
    outside: int = 0
    skipped: int = 0
    largest: float = 0.0

    def add(self, outcome: JudgedStates) -> None:
        """Count the states of an outcome."""
        a, b = outcome.refused_a, outcome.refused_b
        self.states += len(a)
        for name, flags in (
            ("differing", outcome.differs), ("labels", outcome.label), ("ties", outcome.tie),
            ("rounded", outcome.rounded), ("only_a", b & ~a), ("only_b", a & ~b), ("neither", a & b),
        ):  # fmt: skip
            setattr(self, name, getattr(self, name) + int(flags.sum()))
        self.largest = max(self.largest, float(outcome.gap.max(initial=0.0)))

    def move_outside(self) -> None:
        """Count all states as outside the first model's inputs."""
        self.outside, self.only_b, self.neither = self.states, 0, 0


class StateChange(NamedTuple):
    """A kind of state, a unit and what it turns into."""

    kind: str
    unit: str
    value: str


class Candidate(NamedTuple):
    """A state that may be shown as an example; the smaller key is the better one."""

    key: tuple[int, int, int, int, str]  # cells changed, rank of what differs, -gap, place of the row, value
    change: StateChange
    codec: RawCodec
    cells: Floats  # (d,)
    clean: Floats  # (d,) the unmodified row, in the same codes
    answers: tuple[Floats, Floats]  # (C,) each, as the models gave them among other states


@dataclass
class Counts:
    """Everything counted about n rows."""

    n: int
    by_change: dict[StateChange, Count] = field(default_factory=dict)
    gaps: dict[str, tuple[Histogram, Histogram]] = field(default_factory=dict)
    alarmed: dict[tuple[str, str], Booleans] = field(default_factory=dict)  # (n,) rows with an alarm, by kind and unit
    reasons: dict[str, Counter[tuple[str, str]]] = field(default_factory=dict)
    best: dict[tuple[str, str], Candidate] = field(default_factory=dict)  # by kind and unit
    # changes of rows that agree as they are, and values of rows that agree only once a unit is lost
    revealed: dict[StateChange, Count] = field(default_factory=dict)
    cleared_rows: dict[int, list[str]] = field(default_factory=dict)
    refusing: dict[tuple[str, str], str] = field(default_factory=dict)  # units one model refuses throughout: a or b

    def add(self, change: StateChange, outcome: JudgedStates, rows: Integers, agreeing: Integers) -> None:
        """Count the states of one change.

        rows: (k,) the places of the rows that they are made from. agreeing: the states of rows that agree as they are,
        since no change of another row reveals anything.
        """
        self.by_change.setdefault(change, Count()).add(outcome)
        self.revealed.setdefault(change, Count()).add(outcome.take(agreeing))
        answered = ~(outcome.refused_a | outcome.refused_b)
        probability, margin = self.gaps.setdefault(change.kind, (Histogram(), Histogram()))
        probability.add(outcome.gap[answered])
        margin.add(outcome.margin_gap[answered])
        if outcome.alarm.any():
            place = change.kind, change.unit
            self.alarmed.setdefault(place, np.zeros(self.n, dtype=bool))[rows[outcome.alarm]] = True
        said = Counter((role, reason) for (role, _), reason in outcome.reasons.items())
        self.reasons.setdefault(change.kind, Counter()).update(said)

    def pass_over(self, change: StateChange, states: int) -> None:
        """Count states that are not asked, because a model refuses this unit throughout."""
        count = self.by_change.setdefault(change, Count())
        count.states += states
        if self.refusing[change.kind, change.unit] == "a":
            count.outside += states
        else:
            count.skipped += states

    def offer(self, example: Candidate) -> None:
        """Keep a candidate if it is the best of its kind and unit."""
        place = example.change.kind, example.change.unit
        if place not in self.best or example.key < self.best[place].key:
            self.best[place] = example

    def find_refusing(self) -> None:
        """Note the units that one model refuses in every state counted so far; clean rows are never refused so."""
        totals: dict[tuple[str, str], Count] = {}
        for change, count in self.by_change.items():
            total = totals.setdefault((change.kind, change.unit), Count())
            for name in ("states", "only_a", "only_b", "neither"):
                setattr(total, name, getattr(total, name) + getattr(count, name))
        for place, total in totals.items():
            if place[0] == CLEAN or not total.states:
                continue
            if total.only_b + total.neither == total.states:
                self.refusing[place] = "a"
                for change, count in self.by_change.items():
                    if (change.kind, change.unit) == place:
                        count.move_outside()
                self.best.pop(place, None)
                self.alarmed.pop(place, None)
                self.revealed = {c: count for c, count in self.revealed.items() if (c.kind, c.unit) != place}
            elif total.only_a == total.states:
                self.refusing[place] = "b"

    def list_kinds(self) -> tuple[KindParity, ...]:
        """Return the counts by kind."""
        names = (
            *("states", "differing", "labels", "ties", "rounded"),
            *("only_a", "only_b", "neither", "outside", "skipped"),
        )
        kinds = []
        for kind in KINDS:
            counts = [count for change, count in self.by_change.items() if change.kind == kind]
            if not counts:
                continue
            probability, margin = self.gaps.get(kind, (Histogram(), Histogram()))
            said = sorted(self.reasons.get(kind, Counter()).items(), key=lambda item: (-item[1], item[0]))
            sums = {name: sum(getattr(count, name) for count in counts) for name in names}
            alarmed = [rows for (of, _), rows in self.alarmed.items() if of == kind]
            kinds.append(
                KindParity(
                    kind=kind,
                    **sums,
                    rows=int(np.any(alarmed, axis=0).sum()) if alarmed else 0,
                    probability=probability.gaps(),
                    margin=margin.gaps(),
                    refusals=tuple((role, reason, n) for (role, reason), n in said[:MOST_REASONS]),
                )
            )
        return tuple(kinds)

    def list_reveals(self) -> tuple[Reveal, ...]:
        """Return what reveals an alarm, most labels first; changes of several groups come last."""
        reveals = [
            Reveal(*change, c.states, c.differing, c.labels, c.only_a, c.only_b, c.largest)
            for change, c in self.revealed.items()
            if c.differing or c.only_a or c.only_b
        ]
        return tuple(sorted(reveals, key=_rank_reveal))


def _rank_reveal(one: Reveal) -> tuple[object, ...]:
    alone = one.only_a + one.only_b
    return (
        one.kind in SEVERAL,
        -one.labels,
        -alone,
        -one.differing,
        -round(one.largest, 6),
        one.kind,
        one.unit,
        one.value,
    )


# --- states ---------------------------------------------------------------------------------------------------

PATH = "the path"
REMEDY = "give it rows that it takes, or wrap it in a function that turns them into its input"


class ChangedRows(NamedTuple):
    """One change of some rows of a part."""

    change: StateChange
    codec: RawCodec
    who: Integers  # (k,) places of the rows within the part
    cells: Floats  # (k, d)


# --- the protocol in raw fields -----------------------------------------------------------------------------


def read_protocol(protocol: Protocol | None, artefact: Artefact, rows: Rows) -> Protocol:
    """Return a protocol in the raw space: the one given, its raw twin, or one fitted on the rows themselves."""
    model = artefact.model
    if protocol is None:
        return _fit_on_rows(artefact, rows, {})
    if not isinstance(protocol, Protocol):
        raise ProtocolError(f"a Protocol was expected, got {type(protocol).__name__}; make one with Protocol.fit")
    fields = [field.name for field in protocol.fields]
    if set(fields) != set(rows.names):
        other = next(iter(set(fields) ^ set(rows.names)))
        raise ProtocolError(f"the protocol and the rows differ in the column {other!r}; fit a protocol for this model")
    if protocol.space == "raw":
        return protocol
    if [column.name for column in protocol.columns] == fields and model.transformer is None:
        return replace(protocol, space="raw", **CHOSEN, modes=protocol.modes.in_raw_fields(protocol.fields))
    return _raw_twin(protocol, artefact, rows)


# A baseline in the units of the estimator need not be one that the raw fields would be given.
CHOSEN: dict[str, Any] = {"baseline": "explicit", "artificial": (), "stored": (), "refused": ()}


def _fit_on_rows(artefact: Artefact, rows: Rows, settings: dict[str, Any]) -> Protocol:
    """Fit a protocol on rows; on those that the model answers, if it refuses some."""
    model = artefact.model
    asked = Model.wrap(artefact.ask, classes=list(model.classes))
    of_model = {"smoothing": None if model.votes is None else 1.0 / model.votes, "decision": model.decision}
    try:
        return Protocol.fit(asked, rows.native, space="raw", **(of_model | settings))
    except FragilityError:
        refused = artefact.ask_each(len(rows), lambda part: rows.between(part.start, part.stop).native)[1]
        answered = [i for i in range(len(rows)) if i not in refused]
        if not refused:
            raise
        if not answered:
            reason = next(iter(refused.values()))
            raise ModelError(f"{artefact.name} answers none of the {len(rows)} rows: {reason}; {REMEDY}") from None
        return Protocol.fit(asked, rows.take(answered).native, space="raw", **(of_model | settings))


def _raw_twin(protocol: Protocol, artefact: Artefact, rows: Rows) -> Protocol:
    """Return a protocol of the transformed space in raw fields.

    Groups, operators, severities and modes are the declared ones. A lost field takes the raw value that the model's
    preprocessing turns into its baseline; the rows' own typical value if there is none. Whole numbers beyond 2**53,
    which the raw space asks about as categories, keep what the rows say of them.
    """
    owned = protocol.evidence.group_fields
    listed = [name for names in owned.values() for name in names]
    disjoint = len(set(listed)) == len(listed) == len(protocol.fields)
    settings: dict[str, Any] = {"catalogue": protocol.modes.catalogue_size or CATALOGUE_SIZE}
    if disjoint:
        settings["groups"] = {name: list(names) for name, names in owned.items()}
    base = _fit_on_rows(artefact, rows, settings)
    becomes = find_replacements(protocol.evidence, artefact.model, rows.frame)
    kinds = {own.name: own.kind for own in protocol.fields}
    wide = {own.name: own for own in base.fields if own.kind != kinds[own.name]}
    columns = tuple(
        replace(column, baseline=lost.value)
        if column.name not in wide and (lost := becomes[column.name]).state == "value"
        else column
        for column in base.columns
    )
    fields = tuple(wide.get(own.name, own) for own in protocol.fields)
    modes = _ask_as_categories(protocol.modes, base.modes, wide).in_raw_fields(fields)
    if not disjoint:  # groups of the modes are not those of the twin
        modes = replace(base.modes, sentinels=modes.sentinels, noise=modes.noise)
        modes = replace(modes, declared=tuple(m for m in protocol.modes.declared if m != "outage"))
    numbers = {column.name: column.kind == "numeric" for column in base.columns}
    plain = tuple(
        replace(c, baseline=float(c.baseline)) if numbers[c.name] and c.baseline is not None else c for c in columns
    )
    return replace(
        base, columns=plain, fields=fields, modes=modes, operators=protocol.operators, **CHOSEN,
        severities=protocol.severities, depth=min(protocol.depth, len(base.groups)), reading=protocol.reading,
        smoothing=protocol.smoothing, resolution=protocol.resolution, decision=protocol.decision,
    )  # fmt: skip


def _ask_as_categories(modes: FailureModes, of_rows: FailureModes, wide: Mapping[str, Field]) -> FailureModes:
    """Return modes in which some numeric fields are nominal: their catalogues are those of the rows."""
    if not wide:
        return modes
    fitted = {entry.group: entry for entry in of_rows.catalogue}
    entries = [fitted.get(own.group) if set(own.fields) & set(wide) else own for own in modes.catalogue]
    sentinels = [own if own.field not in wide else _write_whole(own, wide[own.field]) for own in modes.sentinels]
    return replace(
        modes,
        catalogue=tuple(entry for entry in entries if entry is not None),
        ranges=tuple(own for own in modes.ranges if own.field not in wide),
        sentinels=tuple(sentinels),
    )


def _write_whole(own: Sentinel, field: Field) -> Sentinel:
    values = [int(value) if isinstance(value, float) and value.is_integer() else value for value in own.values]
    return read_sentinels({field.name: list(zip(values, own.weights, strict=True))}, [field])[0]


# --- listing ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class StateList:
    """The rows in cells, and their states; d fields, G groups."""

    rows: EvidenceRows
    codec: RawCodec
    missing: RawCodec | None  # in which each lost field is missing; None: some field cannot be
    protocol: Protocol

    @classmethod
    def of(cls, artefact: Artefact, rows: Rows, protocol: Protocol) -> StateList:
        """Lay out rows for the states of a raw protocol."""
        model, space = artefact.model, protocol.evidence
        typed = conform_rows(rows, space.fields, needs_categories=reads_categories(model), whole=True)
        form = Form.of(model, typed, space, ask=False)
        assert form.codec is not None
        nothing = replace(space, columns=with_values(space.columns, [None] * len(space.columns)))
        try:
            missing = RawCodec.fit(typed, nothing, flags_as_numbers=model.transformer is None)
        except EvidenceError:
            missing = None
        return cls(form.first, form.codec, missing, protocol)

    @cached_property
    def missing_matrix(self) -> Floats:
        """(n, d) the cells of the rows by the codec of missing values."""
        assert self.missing is not None
        return self.missing.encode(self.missing.rows.frame)

    @cached_property
    def _plans(self) -> list[Plan]:
        modes = (m for m in ("wrong", "noisy", "sentinel", "outage") if m in self.protocol.modes.declared)
        return [Plan(mode, self.rows, self.protocol) for mode in modes]

    def list_lost(self, part: slice, x: Floats) -> Iterator[ChangedRows]:
        """Yield rows x (m, d), those of a part, with each group lost.

        A row that lies at the baseline already has no such state, nor one in which the group is missing.
        """
        columns = {column.name: column.baseline for column in self.protocol.columns}
        for g, group in enumerate(self.protocol.groups):
            change = StateChange("lost", group.name, _write_values(group.columns, [columns[c] for c in group.columns]))
            yield self._stress_rows(change, part, x, np.arange(len(self.protocol.groups)) == g)

    def list_missing(self, part: slice) -> Iterator[ChangedRows]:
        """Yield the rows of a part with each field missing."""
        if self.missing is None:
            return
        x, gap = self.missing_matrix[part], self.missing.baseline
        for j, column in enumerate(self.protocol.columns):
            cells = x.copy()
            cells[:, j] = gap[j]
            yield _changed_block(StateChange("missing", column.name, "missing"), self.missing, x, cells)

    def list_modes(self, part: slice, x: Floats) -> Iterator[ChangedRows]:
        """Yield rows x (m, d), those of a part, with the values of the declared failure modes."""
        noisy = noisy_columns(self.protocol)
        spared = self.rows.spared(part.start, part.stop)
        fixed = np.zeros(x.shape, dtype=bool) if spared is None else spared.cells
        for plan in self._plans:
            if plan.mode == "outage":
                for removed in plan.events:
                    names = [n for n, gone in zip(self.protocol.group_names, removed, strict=True) if gone]
                    change = StateChange("outage", " + ".join(names), "baseline")
                    yield self._stress_rows(change, part, x, removed)
                continue
            for r, ((cells, unit, asked), _) in enumerate(plan.rounds(part, x)):
                for u in asked:
                    # a unit of noise is a column and a direction, which the value tells
                    name = noisy[u // len(NOISE_DIRECTIONS)] if plan.mode == "noisy" else plan.units[u]
                    change = StateChange(plan.mode, name, self._write_value(plan.mode, int(u), r))
                    yield self._block(change, x, np.where((unit == u) & ~fixed, cells, x))

    def _write_value(self, mode: str, u: int, r: int) -> str:
        modes = self.protocol.modes
        if mode == "wrong":
            return _write_values(modes.catalogue[u].fields, modes.catalogue[u].values[r])
        if mode == "noisy":
            return f"{NOISE_STEPS[r] * modes.noise:+g} standard deviations"
        return value_text(modes.sentinels[u].values[r])

    def list_paths(self, part: slice, x: Floats, orders: list[Integers]) -> Iterator[ChangedRows]:
        """Yield rows x (m, d) of a part along removal paths, from the second step on, and at each severity.

        orders: one (m, G) for each model; -1 in a row that has no path.
        """
        for removed, change in self._list_removed(orders):
            yield self._stress_rows(change, part, x, removed)
        for operator in self.protocol.operators:
            width = operator_width(operator, self.rows.n_groups)
            for faded in _distinct([_first(order, width) for order in orders]):
                for severity in self.protocol.severities:
                    change = StateChange("faded", operator, f"severity {severity:g}")
                    yield self._stress_rows(change, part, x, faded, severity)

    def _list_removed(self, orders: list[Integers]) -> Iterator[tuple[Booleans, StateChange]]:
        for k in range(2, self.protocol.depth + 1):
            for removed in _distinct([_first(order, k) for order in orders]):
                yield removed, StateChange("path", PATH, f"first {k} groups")

    def _stress_rows(
        self, change: StateChange, part: slice, x: Floats, moved: Booleans, severity: float | None = None
    ) -> ChangedRows:
        """Return rows x (m, d), those of a part, with groups (G,) or (m, G) removed, or moved by a severity."""
        extents = None if severity is None else np.full(len(x), severity)
        states = States(np.arange(len(x)), np.broadcast_to(moved, (len(x), self.rows.n_groups)), extents)
        states = states.sparing(self.rows.spared(part.start, part.stop), self.rows.column_group)
        return self._block(change, x, self.rows.stressed(x, states))

    def _block(self, change: StateChange, x: Floats, cells: Floats) -> ChangedRows:
        return _changed_block(change, self.codec, x, cells)


def _changed_block(change: StateChange, codec: RawCodec, x: Floats, cells: Floats) -> ChangedRows:
    """Return the states in which something changes, once whole numbers are rounded as they are handed over."""
    whole = np.array([form.whole for form in codec.forms])
    cells = np.where(whole, np.rint(cells), cells)
    who = np.flatnonzero(find_changed(x, cells).any(axis=1))
    return ChangedRows(change, codec, who, cells[who])


def find_changed(x: Floats, cells: Floats) -> Booleans:
    """Return (m, d) which cells differ; NaN is equal to NaN."""
    return np.asarray((x != cells) & ~(np.isnan(x) & np.isnan(cells)))


def _first(order: Integers, width: int) -> Booleans:
    """Return (m, G) the first groups of each row's path; none in a row without a path, unless all groups are meant."""
    m, groups = order.shape
    if width == groups:
        return np.ones((m, groups), dtype=bool)
    first = np.zeros((m, groups), dtype=bool)
    known = np.flatnonzero(order[:, 0] >= 0)
    first[known[:, None], order[known, :width]] = True
    return first


def _distinct(sets: list[Booleans]) -> list[Booleans]:
    """Return sets of groups (m, G) of two models; the second has none in rows where it equals the first."""
    first, second = sets
    again = second & ~(first == second).all(axis=1, keepdims=True)
    return [first, again] if again.any() else [first]


def _write_values(names: Any, values: Any) -> str:
    """`no checking`; `purpose=car, amount=2500` for several fields."""
    if len(names) == 1:
        return value_text(values[0])
    return ", ".join(f"{name}={value_text(value)}" for name, value in zip(names, values, strict=True))
