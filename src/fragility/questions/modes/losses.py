"""What a failure mode costs a prediction: the expected loss of margin, and the chance of a flip, unit by unit.

A unit u (a group, a column, a field, or the whole record) takes value v with weight w_v. With m the margin of the
protocol's reading:

    delta_u(x)       = m(x) - sum_v w_v m(x with u <- v)
    loss(x)          = w sum_u [delta_u(x)]_+ / (|m(x)| + 1e-8)              exposure to the mode = 1 - exp(-loss)
    flip_chance_u(x) = sum_v w_v 1[the decision flips at x with u <- v]

A unit of `noisy` is a column and a direction. Symmetric noise in one unit would cost a linear model nothing, since what
one direction takes the other gives. Noise takes one direction at a time, so w = 1/2 there, and 1 in every other mode.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from fragility.base.arrays import DEFAULT_BYTE_BUDGET, Booleans, Floats, Integers, rows_within
from fragility.base.errors import Advice, DataError, ProtocolError
from fragility.base.progress import Report, progress_bar
from fragility.base.text import BriefRepr
from fragility.engines.choice import choose_oracle
from fragility.engines.engine import Values
from fragility.engines.oracle import Oracle
from fragility.evidence import EvidenceRows, Spared, States
from fragility.evidence.agreement import original_class
from fragility.evidence.modes import (
    NOISE_DIRECTIONS,
    NOISE_STEPS,
    UNIT_WEIGHTS,
    Sentinel,
    read_multiple,
    tabulate_catalogue,
    values_frame,
)
from fragility.evidence.rows import row_ids, stacked
from fragility.protocol import Protocol, bind
from fragility.scores import independent_loss

WHOLE_RECORD = "the whole record"
MOST_ROWS = 4096  # at a time: the answers to all values are held for so many


@dataclass(frozen=True, eq=False, repr=False)
class ModeLoss(BriefRepr):
    """What one failure mode costs n predictions; U units."""

    mode: str
    units: tuple[str, ...]
    drop: Floats  # (n, U) delta_u, the expected loss of margin
    flip_chance: Floats  # (n, U)
    loss: Floats  # (n,)

    @property
    def exposure(self) -> Floats:
        """(n,) 1 - exp(-loss)."""
        return np.asarray(-np.expm1(-self.loss))


@dataclass(frozen=True, eq=False, repr=False)
class ModeLosses(BriefRepr):
    """What the failure modes of a protocol cost n predictions.

    Attributes
    ----------
    id : array of shape (n,)
        The ids of the rows.
    predicted : array of shape (n,)
        The predicted class, as an index into the model's classes.
    confidence : array of shape (n,)
        Its probability.
    margin : array of shape (n,)
        The margin at x.
    by_mode : dict of str to ModeLoss
        Per mode: ``units``, ``drop`` and ``flip_chance`` of shape (n, units), ``loss`` and ``exposure`` of shape (n,).
    """

    id: npt.NDArray[Any]
    predicted: Integers
    confidence: Floats
    margin: Floats
    by_mode: dict[str, ModeLoss]

    def __len__(self) -> int:
        return len(self.id)

    def __getitem__(self, mode: str) -> ModeLoss:
        if mode not in self.by_mode:
            raise ProtocolError(f"the modes assessed are {', '.join(self.by_mode)}, got {mode!r}")
        return self.by_mode[mode]

    def to_pandas(self) -> pd.DataFrame:
        """Return one row per prediction: its exposure and largest flip chance by mode.

        Returns
        -------
        pandas.DataFrame
            Columns ``id``, ``confidence``, ``margin``, and two for each mode.
        """
        columns: dict[str, Any] = {"id": self.id, "confidence": self.confidence, "margin": self.margin}
        for name, one in self.by_mode.items():
            columns[f"exposure_{name}"] = one.exposure
            columns[f"flip_chance_{name}"] = one.flip_chance.max(axis=1, initial=0.0)
        return pd.DataFrame(columns)


def assess_modes(
    model: Any,
    X: Any,
    protocol: Protocol,
    modes: Sequence[str] | None = None,
    *,
    earlier: Any = None,
    ids: Any = None,
    engine: str = "auto",
    byte_budget: int = DEFAULT_BYTE_BUDGET,
    progress: bool | Report | None = None,
) -> ModeLosses:
    """Say what each declared failure mode costs each prediction.

    Parameters
    ----------
    model : estimator, pipeline, booster or Model
        The fitted classifier; whatever :meth:`Model.wrap` takes.
    X : array or table of shape (n, d)
        The raw rows.
    protocol : Protocol
        Declares the modes and their values.
    modes : sequence of str, optional
        Which of the declared modes to assess; by default all of them, ``stale`` only if ``earlier`` is given.
    earlier : table, optional
        The same rows at an earlier time, for ``stale``: joined by ids. A row that it lacks is not stale.
    ids : sequence, optional
        One distinct id per row, as in :func:`audit`.
    engine : str, default="auto"
        Who answers for the changed rows: ``auto`` takes a native engine where the model is known to it.
    byte_budget : int, default=256 MiB
        Bound on the changed rows held in memory at a time; it changes nothing in the result.
    progress : bool or callable, optional
        A bar on the terminal (the default if there is one), or a function (rows done, rows in all).

    Returns
    -------
    ModeLosses
        By mode: exposure per row, expected loss of margin and chance of a flip per row and unit.

    Raises
    ------
    FragilityError
        A mode is not declared, or its values are not given.

    See Also
    --------
    Protocol.fit : Declares the modes.
    audit : Puts them into certificates with ``modes``.
    """
    bound = bind(model, X, protocol, ids=ids)
    chosen = choose_modes(protocol, modes, earlier is not None)
    then = None
    if "stale" in chosen:
        bound, then = bind_earlier(bound, model, X, earlier, protocol)
    with progress_bar("failure modes", progress) as report:
        return losses_of_rows(choose_oracle(bound, engine), protocol, chosen, then, byte_budget, report)


def choose_modes(protocol: Protocol, modes: Sequence[str] | None, with_earlier: bool) -> tuple[str, ...]:
    """Return the modes to assess, in declared order; refuse one that is not declared."""
    declared = protocol.modes.declared
    if modes is None:
        return tuple(mode for mode in declared if mode != "stale" or with_earlier)
    wanted = [modes] if isinstance(modes, str) else list(modes)
    unknown = [mode for mode in wanted if mode not in declared]
    if unknown or not wanted:
        got = repr(unknown[0]) if unknown else "none"
        raise ProtocolError(
            f"the protocol declares the modes {', '.join(declared) or 'none'}, got {got}; fit one that declares it"
        )
    if "stale" in wanted and not with_earlier:
        raise DataError("the mode 'stale' needs the same rows at an earlier time", Advice("; give earlier=...", ""))
    return tuple(mode for mode in declared if mode in wanted)


def bind_earlier(
    bound: EvidenceRows, model: Any, X: Any, earlier: Any, protocol: Protocol
) -> tuple[EvidenceRows, Floats]:
    """Return rows and their cells at an earlier time, bound together: codes of raw values depend on all rows bound.

    A row that the earlier table lacks keeps its values.
    """
    frame = bound.source.frame
    if frame is None or not isinstance(earlier, pd.DataFrame):
        raise DataError("the mode 'stale' needs rows in a table, and the earlier rows as a pandas table with their ids")
    place = {own: i for i, own in enumerate(row_ids(None, earlier.index, len(earlier)))}
    known = [i for i, own in enumerate(bound.ids) if own in place]
    if not known:
        raise DataError(f"the earlier table has none of the {len(bound)} ids, such as {bound.ids[0]!r}; set its index")
    then = earlier.iloc[[place[bound.ids[i]] for i in known]][list(frame.columns)]
    n = len(bound)
    both = bind(model, stacked(frame, then), protocol, ids=range(n + len(known)))
    cells = both.dense(0, n)
    cells[known] = both.dense(n, n + len(known))
    return replace(both.take(range(n)), ids=bound.ids, source=bound.source), cells


# --- rounds of values ---------------------------------------------------------------------------------------


class Round(NamedTuple):
    """One value of each of some units: what they turn into, and how often."""

    values: Values  # of k units
    weight: Floats  # (k,)


def units_of(protocol: Protocol, mode: str) -> tuple[str, ...]:
    """Return the units that a mode changes one at a time."""
    if mode == "wrong":
        return tuple(entry.group for entry in protocol.modes.catalogue)
    if mode == "noisy":
        return tuple(f"{name} ({direction})" for name in _name_noisy(protocol) for direction in NOISE_DIRECTIONS)
    if mode == "sentinel":
        return tuple(one.field for one in protocol.modes.sentinels)
    return (WHOLE_RECORD,) if mode == "outage" else protocol.group_names


def count_values(protocol: Protocol, mode: str) -> int:
    """Return how many values all units of a mode have: what assessing one row asks for."""
    modes = protocol.modes
    if mode == "wrong":
        return sum(len(entry.values) for entry in modes.catalogue)
    if mode == "sentinel":
        return sum(len(one.values) for one in modes.sentinels)
    if mode == "outage":
        return len(modes.outages)
    if mode == "noisy":
        return len(noisy_columns(protocol)) * len(NOISE_STEPS)
    return len(units_of(protocol, mode))


def noisy_columns(protocol: Protocol) -> tuple[str, ...]:
    """Return the columns that noise moves: those of numbers that differ among the training rows."""
    return tuple(column.name for column in protocol.columns if column.kind == "numeric" and column.spread)


def _name_noisy(protocol: Protocol) -> list[str]:
    """Return what the columns that noise moves are called: the one that a field alone is made into bears its name.

    A pipeline calls such a column `standardscaler__age`, which a reader of its table does not know.
    """
    columns = noisy_columns(protocol)
    made = zip(protocol.columns, protocol.evidence.column_fields, strict=True)
    fields = {column.name: own[0] if len(own) == 1 else column.name for column, own in made}
    known = Counter(fields[name] for name in columns) + Counter(name for name in columns if name != fields[name])
    return [fields[name] if known[fields[name]] == 1 else name for name in columns]


class Plan:
    """The units of one mode and their values, for rows bound to a protocol."""

    def __init__(
        self,
        mode: str,
        rows: EvidenceRows,
        protocol: Protocol,
        earlier: Floats | None = None,
        catalogue: Floats | None = None,
    ) -> None:
        self.mode, self.rows, self.protocol, self.earlier = mode, rows, protocol, earlier
        modes, self.total = protocol.modes, 1.0  # by which sums of weights are divided
        self.unit, self.units = rows.column_group, units_of(protocol, mode)
        if mode == "wrong":
            self._list_catalogue(catalogue)
        elif mode == "noisy":
            names = noisy_columns(protocol)
            moved = np.array([c.name in names for c in protocol.columns])
            self.unit = np.where(
                moved, (np.cumsum(moved) - 1) * len(NOISE_DIRECTIONS), -1
            )  # downward; upward follows it
            self.total = 2.0  # values of a direction
            self.step = modes.noise * np.array([c.spread or 0.0 for c in protocol.columns]) * moved
            self.whole = np.array([c.name in modes.whole for c in protocol.columns])
        elif mode == "sentinel":
            fields = protocol.evidence.column_fields
            self.made_from = np.array([[one.field in own for own in fields] for one in modes.sentinels], dtype=bool)
        elif mode == "outage":
            self.events = np.array([[g in event.groups for g in protocol.group_names] for event in modes.outages])
            self.counts = np.array([event.count for event in modes.outages], dtype=np.float64)

    def _list_catalogue(self, cells: Floats | None) -> None:
        """Encode the catalogue: row r of ``cells`` has the r-th value of every group that has so many."""
        catalogue, rows = self.protocol.modes.catalogue, self.rows
        names = list(self.protocol.group_names)
        number = {names.index(entry.group): u for u, entry in enumerate(catalogue)}
        self.unit = np.array([number.get(int(g), -1) for g in rows.column_group], dtype=np.int64)
        values, self.shares = tabulate_catalogue(catalogue)
        if cells is not None:
            self.cells = cells
        elif catalogue:
            encode, table = self._raw_rows()
            self.cells = encode(values_frame(values, table))

    def _raw_rows(self) -> tuple[Callable[[pd.DataFrame], Floats], pd.DataFrame]:
        """Return what turns raw rows into cells, and the raw rows; refuse rows that are no table."""
        if self.rows.encode is None or self.rows.source.frame is None:
            raise DataError(
                f"the mode {self.mode!r} replaces raw values, which needs rows in a table or a dense array, got a "
                "sparse matrix"
            )
        return self.rows.encode, self.rows.source.frame

    @property
    def cells_per_row(self) -> int:
        """Numbers that are held for a row at a time: the cells that it turns into, and the answers."""
        sentinels = (len(one.values) for one in self.protocol.modes.sentinels)
        made = {"noisy": len(NOISE_STEPS), "stale": 1, "sentinel": max(sentinels, default=0)}.get(self.mode, 0)
        return made * self.rows.width + 2 * self.rows.n_classes * count_values(self.protocol, self.mode)

    def rounds(self, part: slice, x: Floats) -> Iterator[Round]:
        """Yield the values of the units of rows x (m, d), which are those of ``part``."""
        every = np.arange(len(self.units))
        one = np.ones(len(self.units))
        if self.mode == "lost":
            yield Round(Values(self.rows.baseline, self.unit, every), one)
        elif self.mode == "stale":
            assert self.earlier is not None
            yield Round(Values(self.earlier[part], self.unit, every), one)
        elif self.mode == "wrong":
            for r, shares in enumerate(self.shares):
                asked = np.flatnonzero(shares > 0.0)
                yield Round(Values(self.cells[r], self.unit, asked), shares[asked])
        elif self.mode == "noisy":
            for place, steps in enumerate(NOISE_DIRECTIONS.values()):
                own = every[place :: len(NOISE_DIRECTIONS)]
                for times in steps:
                    moved = np.where(self.whole, np.rint(x + times * self.step), x + times * self.step)
                    unit = np.where(self.unit < 0, -1, self.unit + place)
                    yield Round(Values(moved, unit, own), np.ones(len(own)))
        elif self.mode == "sentinel":
            yield from self._sentinel_rounds(part)

    def _sentinel_rounds(self, part: slice) -> Iterator[Round]:
        sentinels, (encode, raw) = self.protocol.modes.sentinels, self._raw_rows()
        table = raw.iloc[part]
        apart = bool((self.made_from.sum(axis=0) > 1).any())  # a column made from two of the fields: one at a time
        for r in range(max(len(one.values) for one in sentinels)):
            every = [u for u, one in enumerate(sentinels) if r < len(one.values)]
            for asked in [[u] for u in every] if apart else [every]:
                changed = {
                    one.field: _replace_by(one, r, table[one.field], self.protocol)
                    for one in map(sentinels.__getitem__, asked)
                }
                weight = np.array([sentinels[u].weights[r] for u in asked])
                unit = np.full(self.rows.width, -1)
                for u in asked:
                    unit[self.made_from[u]] = u
                yield Round(Values(encode(table.assign(**changed)), unit, np.array(asked)), weight)


def _replace_by(sentinel: Sentinel, r: int, column: pd.Series, protocol: Protocol) -> pd.Series:
    """Return a raw column in which every value is the r-th sentinel; a missing value has no multiple."""
    value, field = sentinel.values[r], next(f for f in protocol.fields if f.name == sentinel.field)
    factor = read_multiple(value) if field.kind == "numeric" else None
    if factor is None:
        typed = values_frame({sentinel.field: [value]}, column.to_frame())[sentinel.field]
        return typed.iloc[[0] * len(column)].set_axis(column.index)
    numbers = column.to_numpy(dtype=np.float64, na_value=np.nan) * factor
    return pd.Series(np.rint(numbers) if field.type == "integer" else numbers, index=column.index)


# --- losses -------------------------------------------------------------------------------------------------


def losses_of_rows(
    oracle: Oracle,
    protocol: Protocol,
    modes: Sequence[str],
    earlier: Floats | None = None,
    byte_budget: int = DEFAULT_BYTE_BUDGET,
    report: Report | None = None,
    *,
    catalogue: Floats | None = None,
    at_once: bool = False,
) -> ModeLosses:
    """Return the losses of an oracle's rows.

    earlier: (n, d) their cells at an earlier time. A row's losses depend on no other row.
    catalogue: (R, d) the cells of the catalogue, if they are known for rows of this form.
    at_once: ask about all values of a mode in one call, which is faster for a few rows. Answers may then differ by
    rounding from those for many rows.
    """
    rows, n = oracle.rows, len(oracle.rows)
    plans = [Plan(mode, rows, protocol, earlier, catalogue) for mode in modes]
    found = {plan.mode: (np.zeros((n, len(plan.units))), np.zeros((n, len(plan.units)))) for plan in plans}
    predicted, confidence, margin = np.empty(n, dtype=np.int64), np.empty(n), np.empty(n)
    cells = max(plan.cells_per_row for plan in plans)
    step = rows_within(byte_budget, rows.width + cells, copies=4, most=MOST_ROWS)
    for start in range(0, n, step):
        part = slice(start, min(start + step, n))
        x, spared = rows.dense(part.start, part.stop), rows.spared(part.start, part.stop)
        if at_once:
            p = rows.own_probabilities(part.start, x)
        else:
            p = oracle.answer_states(x, States.unmoved(len(x), rows.n_groups), byte_budget)
        original = predicted[part] = original_class(rows, p, protocol.resolution, part)
        confidence[part] = p[np.arange(len(x)), original]
        margin[part] = protocol.rule(rows.offset).margin(p, original)
        for plan in plans:
            drop, flips = (array[part] for array in found[plan.mode])
            if plan.mode == "outage":
                _add_events(oracle, plan, x, spared, original, margin[part], (drop, flips), byte_budget)
                continue
            if not plan.units:  # nothing can fail in this way
                continue
            if at_once:
                _add_at_once(oracle, plan, part, x, spared, original, margin[part], (drop, flips))
                rounds: Sequence[Round] = ()
            else:
                rounds = list(plan.rounds(part, x))
            answers = _answer_values(oracle, x, spared, [one.values for one in rounds], byte_budget)
            for (values, weight), p in zip(rounds, answers, strict=True):
                lost, flipped = _observe(p, original, margin[part], rows, protocol)
                if spared is not None:  # a unit that is missing in a row has no values there
                    absent = _find_absent_units(spared, values.unit, values.asked)
                    lost, flipped = np.where(absent, 0.0, lost), flipped & ~absent
                drop[:, values.asked] += (weight[:, None] * lost).T
                flips[:, values.asked] += (weight[:, None] * flipped).T
            drop /= plan.total
            flips /= plan.total
        if report is not None:
            report(part.stop, n)
    by_mode = {}
    for plan in plans:
        drop, flips = found[plan.mode]
        by_mode[plan.mode] = ModeLoss(
            plan.mode, plan.units, drop, np.minimum(flips, 1.0), weigh_loss(plan.mode, margin, drop)
        )
    return ModeLosses(np.fromiter(rows.ids, dtype=object, count=n), predicted, confidence, margin, by_mode)


def weigh_loss(mode: str, margin: Floats, drop: Floats) -> Floats:
    """Return (n,) the loss of a mode; margin (n,), drop (n, U): what the failure of each unit is expected to cost."""
    return independent_loss(margin, drop, UNIT_WEIGHTS.get(mode, 1.0))


def _find_absent_units(spared: Spared, unit: Integers, asked: Integers) -> Booleans:
    """Return (k, m) the units asked about of which every cell is absent; unit: (d,) of each column, or (k, d)."""
    own = np.broadcast_to(unit, (len(asked), unit.shape[-1])) == asked[:, None]
    return np.array([spared.cells[:, columns].all(axis=1) for columns in own]).reshape(len(asked), len(spared.cells))


def _answer_values(
    oracle: Oracle, x: Floats, spared: Spared | None, every: Sequence[Values], byte_budget: int
) -> Iterator[Floats]:
    """Yield ``Oracle.answer_values`` of rows x (m, d); of a unit that is missing in part, what is there changes.

    For a unit that is missing altogether the answer says nothing.
    """
    for one, p in zip(every, oracle.answer_values(x, every, byte_budget), strict=True):
        if spared is not None:
            cells, unit, asked = one
            some = np.array([spared.cells[:, unit == own].any(axis=1) for own in asked]).reshape(len(asked), len(x))
            those = np.flatnonzero((some & ~_find_absent_units(spared, unit, asked)).any(axis=0))
            if len(those):
                fixed, own = spared.cells[those], x[those]
                changed = np.where(fixed, own, cells if cells.ndim == 1 else cells[those])
                p[:, those] = next(oracle.answer_values(own, [Values(changed, unit, asked)], byte_budget))
        yield p


def _add_at_once(
    oracle: Oracle,
    plan: Plan,
    part: slice,
    x: Floats,
    spared: Spared | None,
    original: Integers,
    margin: Floats,
    into: tuple[Floats, Floats],
) -> None:
    """Add what all values of a mode cost rows x (m, d), which are those of ``part``, with one question to the model."""
    rounds, rows = list(plan.rounds(part, x)), plan.rows
    every, weight = [each.values for each in rounds], np.concatenate([each.weight for each in rounds])
    asked = np.concatenate([each.asked for each in every])
    place = np.repeat(np.arange(len(rounds)), [len(each.asked) for each in every])
    cells = np.stack([np.atleast_2d(each.cells) for each in every], axis=1)[:, place]  # (m, k, d), or (1, k, d)
    unit = np.stack([each.unit for each in every])[place]  # (k, d)
    changed = unit == asked[:, None]  # (k, d)
    copies = np.where(changed if spared is None else changed & ~spared.cells[:, None], cells, x[:, None])
    p = oracle.predict_copies(x, copies).reshape(len(x), -1, rows.n_classes).swapaxes(0, 1)
    lost, flipped = _observe(p, original, margin, rows, plan.protocol)
    if spared is not None:
        absent = _find_absent_units(spared, unit, asked)
        lost, flipped = np.where(absent, 0.0, lost), flipped & ~absent
    for total, own in zip(into, (lost, flipped), strict=True):
        np.add.at(total.T, asked, weight[:, None] * own)


def _observe(
    p: Floats, original: Integers, margin: Floats, rows: EvidenceRows, protocol: Protocol
) -> tuple[Floats, Booleans]:
    """Return (k, m) margins lost and decisions flipped at states of probabilities p (k, m, C)."""
    rule = protocol.rule(rows.offset)
    return margin - rule.margin(p, original), rule.flips(p, original)


def _add_events(
    oracle: Oracle,
    plan: Plan,
    x: Floats,
    spared: Spared | None,
    original: Integers,
    margin: Floats,
    into: tuple[Floats, Floats],
    byte_budget: int,
) -> None:
    """Add what recorded events cost rows x (m, d), to their only unit."""
    for removed, weight in zip(plan.events, plan.counts / plan.counts.sum(), strict=True):
        states = States(np.arange(len(x)), np.tile(removed, (len(x), 1))).sparing(spared, plan.rows.column_group)
        p = oracle.answer_states(x, states, byte_budget)
        lost, flipped = _observe(p[None], original, margin, plan.rows, plan.protocol)
        into[0][:, 0] += weight * lost[0]
        into[1][:, 0] += weight * flipped[0]
