"""P_change: would the decision have been different, had the unknown fields been known?

x is the row as decided, M its unknown fields, d the decision made. The values v of M have weights w_v that sum to 1
(``values``); a decision differs from d if another class beats d by more than the protocol's resolution.

    P_change(x, M) = sum_v w_v 1[decision(x with M <- v) differs from d]
    changes_to     = the class with the largest weight among those that take over

``acquire`` says how much knowing one of the fields is expected to reduce P_change. With f known to be u, the model
would decide d_u on x with f <- u (the other unknown fields as they stand), and P_change would be measured from d_u:

    after(f)     = sum_u w_u P_change(x with f <- u, M without f; measured from d_u)
                 = sum_v w_v 1[decision(x with M <- v) differs from d_u for u = v_f]
    reduction(f) = P_change(x, M) - after(f)

so the states that give P_change give ``after`` too. Knowing the only unknown field leaves nothing open: its reduction
is P_change itself. A reduction can be negative: a field that is known may make the others matter more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from fragility.base.arrays import DEFAULT_BYTE_BUDGET, Booleans, Floats, Integers, rows_within
from fragility.base.canonical import row_digests
from fragility.base.errors import DataError
from fragility.deciding.values import (
    DEFAULT_DRAWS,
    JointValues,
    Neighbours,
    ValueStates,
    choose_units,
    count_states,
    draw_states,
    list_states,
    raw_values,
)
from fragility.engines.oracle import Oracle
from fragility.evidence import EvidenceRows
from fragility.evidence.modes import tabulate_catalogue, values_frame
from fragility.evidence.rows import Scalar
from fragility.protocol import Protocol
from fragility.questions.reliability.sampling import estimate_probability

MOST_LISTED = 256  # sets of unknown fields whose states are kept


@dataclass(frozen=True, slots=True)
class DecisionChange:
    """How likely the decision on one row would change, once its unknown fields are known."""

    probability: float
    low: float
    high: float
    exact: bool  # over the values of the catalogue, or of the nearest training rows
    changes_to: int | None  # index of the class; None where no value changes the decision
    acquire: tuple[tuple[str, float], ...]  # field and expected reduction, the largest first


@dataclass(frozen=True, slots=True, eq=False)
class ValueCells:
    """The catalogue of a protocol as cells, and the columns of each field."""

    cells: Floats  # (R, d) row r has the r-th value of every group
    columns: dict[str, Booleans | None]  # (d,) of each field; None: a column is made from several fields
    unused: frozenset[str]  # fields that no column is made from
    # By unknown fields; kept once they are made.
    listed: dict[tuple[str, ...], tuple[list[JointValues], ValueStates | None]]

    @classmethod
    def of(cls, rows: EvidenceRows, protocol: Protocol) -> ValueCells:
        """Encode the catalogue for rows bound to the protocol; in the raw space the codes depend on the rows."""
        if rows.encode is None or rows.source.frame is None:
            raise DataError("unknown fields need rows in a table or a dense array, got a sparse matrix")
        origins = protocol.evidence.column_fields
        columns: dict[str, Booleans | None] = {}
        for field in protocol.fields:
            holds = [origin for origin in origins if field.name in origin]
            alone = all(origin == (field.name,) for origin in holds)
            columns[field.name] = np.array([origin == (field.name,) for origin in origins]) if alone else None
        unused = frozenset(name for name, moved in columns.items() if moved is not None and not moved.any())
        values, _ = tabulate_catalogue(protocol.modes.catalogue)
        cells = rows.encode(values_frame(values, rows.source.frame)) if values else np.empty((0, rows.width))
        return cls(cells, columns, unused, {})

    def list_values(
        self, protocol: Protocol, unknown: tuple[str, ...], draws: int
    ) -> tuple[list[JointValues], ValueStates | None]:
        """Return the values of unknown fields by group, and all of their states; None if there are too many."""
        listed = self.listed.get(unknown)
        if listed is None:
            units = choose_units(protocol, unknown)
            listed = units, list_states(units) if count_states(units) <= draws else None
            if len(self.listed) >= MOST_LISTED:
                self.listed.clear()
            self.listed[unknown] = listed
        return listed


def find_changes(
    oracle: Oracle,
    protocol: Protocol,
    original: Integers,
    unknown: Sequence[Sequence[str]],
    cells: ValueCells,
    draws: int = DEFAULT_DRAWS,
    neighbours: Neighbours | None = None,
    byte_budget: int = DEFAULT_BYTE_BUDGET,
) -> list[DecisionChange | None]:
    """Return what knowing the unknown fields of each row would change; None for a row without any.

    oracle: of the rows as decided. original: (n,) the decisions made. unknown: fields of each row.
    neighbours: training rows whose values are taken instead of the catalogue's. A row's answer depends on no other row.
    """
    rows = oracle.rows
    results: list[DecisionChange | None] = [None] * len(rows)
    patterns: dict[tuple[str, ...], list[int]] = {}
    for place, names in enumerate(unknown):
        if names:
            patterns.setdefault(tuple(f.name for f in protocol.fields if f.name in names), []).append(place)
    for names, places in patterns.items():
        used = tuple(name for name in names if name not in cells.unused)
        idle = tuple((name, 0.0) for name in names if name in cells.unused)
        asker = _Asker(oracle, protocol, original, cells, used, byte_budget)
        if not used:
            changes: Iterator[tuple[int, DecisionChange]] = (
                (place, DecisionChange(0.0, 0.0, 0.0, True, None, ())) for place in places
            )
        elif neighbours is not None:
            assert rows.source.frame is not None
            near = neighbours.find(rows.source.frame.iloc[places], used, [name for name, _ in idle])
            changes = asker.ask_raw(places, [([values], list_states([values])) for values in near])
        else:
            units, shared = cells.list_values(protocol, used, draws)
            if shared is not None:
                states = dict.fromkeys(places, shared)
            else:
                digests = row_digests(rows.source.take(places).columns())
                states = {p: draw_states(units, draws, digest) for p, digest in zip(places, digests, strict=True)}
            whole = all(cells.columns[name] is not None for name in used)
            changes = (
                asker.ask_cells(places, units, states)
                if whole
                else asker.ask_raw(places, [(units, states[place]) for place in places])
            )
        for place, change in changes:
            ranked = sorted(change.acquire, key=lambda pair: -pair[1])  # stable: ties in the order of the table
            results[place] = DecisionChange(
                change.probability, change.low, change.high, change.exact, change.changes_to, (*ranked, *idle)
            )
    return results


class _Asker:
    """Asks about the states of rows with the same unknown fields."""

    def __init__(
        self,
        oracle: Oracle,
        protocol: Protocol,
        original: Integers,
        cells: ValueCells,
        fields: tuple[str, ...],
        byte_budget: int,
    ) -> None:
        self.oracle, self.rows = oracle, oracle.rows
        self.protocol, self.original, self.cells = protocol, original, cells
        self.fields, self.byte_budget = fields, byte_budget

    def ask_cells(
        self, places: Sequence[int], units: list[JointValues], states: dict[int, ValueStates]
    ) -> Iterator[tuple[int, DecisionChange]]:
        """Yield the change of each row; its states are built as cells, which an engine may answer."""
        rows, table = self.rows, self.cells.cells
        columns = {name: self.cells.columns[name] for name in self.fields}
        several = len(self.fields) > 1
        shared = len(places) > 1 and all(states[place] is states[places[0]] for place in places)
        most = max(len(states[place].codes) for place in places)
        step = rows_within(self.byte_budget, rows.width * most, copies=4) if shared else 1
        for start in range(0, len(places), step):
            some = list(places[start : start + step])
            x = rows.take(some).dense() if len(some) < len(rows) else rows.dense()
            listed = states[some[0]]
            copies = np.repeat(x[:, None, :], len(listed.codes), axis=1)
            for u, unit in enumerate(units):
                taken = table[unit.source[listed.codes[:, u]]]
                for name in unit.fields:
                    copies[:, :, columns[name]] = taken[:, columns[name]]
            p = self._predict(x, copies)
            singles = {}
            for unit in units if several else ():
                for name in unit.fields:
                    known = np.unique(unit.code_field(name))
                    copies = np.repeat(x[:, None, :], len(known), axis=1)
                    copies[:, :, columns[name]] = table[unit.source[known]][:, columns[name]]
                    singles[name] = self._predict(x, copies)
            for i, place in enumerate(some):
                yield place, self._judge(place, units, listed, p[i], {name: q[i] for name, q in singles.items()})

    def _predict(self, x: Floats, copies: Floats) -> Floats:
        return self.oracle.predict_copies(x, copies).reshape(*copies.shape[:2], -1)

    def ask_raw(
        self, places: Sequence[int], asked: Sequence[tuple[list[JointValues], ValueStates]]
    ) -> Iterator[tuple[int, DecisionChange]]:
        """Yield the change of each row; the model itself is asked about raw rows."""
        tables: list[tuple[int, dict[str, list[Scalar]]]] = []
        for place, (units, states) in zip(places, asked, strict=True):
            tables.append((place, dict(raw_values(units, states.codes))))
            for unit in units if len(self.fields) > 1 else ():
                for j, name in enumerate(unit.fields):
                    known = np.unique(unit.code_field(name))
                    tables.append((place, {name: [unit.values[code][j] for code in known]}))
        answers = iter(self._ask_model(tables))
        for place, (units, states) in zip(places, asked, strict=True):
            p = next(answers)
            singles = {name: next(answers) for unit in units for name in unit.fields} if len(self.fields) > 1 else {}
            yield place, self._judge(place, units, states, p, singles)

    def _ask_model(self, tables: Sequence[tuple[int, dict[str, list[Scalar]]]]) -> Iterator[Floats]:
        """Yield the model's probabilities (q, C) of raw rows in which some fields have other values, part by part."""
        rows, frame = self.rows, self.rows.source.frame
        assert frame is not None
        counts = [len(next(iter(values.values()))) for _, values in tables]
        most = rows_within(self.byte_budget, rows.width, copies=4)
        start = 0
        while start < len(tables):
            stop, total = start, 0
            while stop < len(tables) and (stop == start or total + counts[stop] <= most):
                total += counts[stop]
                stop += 1
            owners = np.repeat([place for place, _ in tables[start:stop]], counts[start:stop])
            changed = frame.iloc[owners].reset_index(drop=True)
            for name in self.fields:
                column = frame[name].iloc[owners].tolist()
                at = 0
                for _, values in tables[start:stop]:
                    given = values.get(name)
                    size = len(next(iter(values.values())))
                    if given is not None:
                        column[at : at + size] = given
                    at += size
                plain = [None if pd.isna(value) else value for value in column]
                changed[name] = values_frame({name: plain}, frame[[name]])[name]
            assert rows.ask_table is not None
            p = rows.ask_table(changed)
            yield from np.split(p, np.cumsum(counts[start:stop])[:-1])
            start = stop

    def _judge(
        self, place: int, units: Sequence[JointValues], states: ValueStates, p: Floats, singles: dict[str, Floats]
    ) -> DecisionChange:
        """Return the change of one row from the probabilities of its states (q, C), and those of single values."""
        rule = self.protocol.rule(self.rows.offset)
        decided, weight = int(self.original[place]), states.weight.mean(axis=0)
        differs = rule.flips(p, decided)
        chance, low, high = self._weigh(differs, states)
        to = None
        if differs.any():
            takes = np.bincount(rule.predict(p[differs]), weight[differs], self.rows.n_classes)
            takes[decided] = 0.0
            to = int(takes.argmax())
        acquire = [(self.fields[0], chance)] if len(self.fields) == 1 else []
        for u, unit in enumerate(units):
            for name in unit.fields if singles else ():
                codes = unit.code_field(name)
                then = rule.predict(singles[name])  # of each distinct value of the field
                at = np.searchsorted(np.unique(codes), codes[states.codes[:, u]])
                after = float(weight @ rule.flips(p, then[at]))
                acquire.append((name, chance - after))
        order = {name: i for i, name in enumerate(self.fields)}
        acquire.sort(key=lambda pair: order[pair[0]])
        return DecisionChange(chance, low, high, states.draws is None, to, tuple(acquire))

    def _weigh(self, differs: Booleans, states: ValueStates) -> tuple[float, float, float]:
        if states.draws is None:
            chance = min(float(states.weight[0] @ differs), 1.0)
            return chance, chance, chance
        chances = estimate_probability(differs[None], states.weight, states.draws)
        chance, low, high = (min(float(chance_of_one[0]), 1.0) for chance_of_one in chances)
        return chance, low, high
