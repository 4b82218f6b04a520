"""The search for stability intervals: one object knows the rows, the model and what engine can be read."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import cycle, islice
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
import pandas as pd
import scipy.sparse as sp

from fragility.base.arrays import Booleans, Floats, Integers, rows_within
from fragility.base.canonical import is_missing
from fragility.engines.choice import choose_oracle
from fragility.engines.engine import Values
from fragility.engines.linear import MOST_ROUNDING, GroupScores, link_for
from fragility.engines.oracle import CheckedOracle
from fragility.evidence import EvidenceRows
from fragility.evidence.agreement import original_class
from fragility.evidence.fields import Field
from fragility.evidence.modes import Range, values_frame, weigh_values
from fragility.evidence.origins import Origin
from fragility.evidence.rows import Scalar
from fragility.pages.terms import BRACKETED, EXACT, MISSING, NOT_WHOLE, UNLISTED
from fragility.protocol import Protocol
from fragility.questions.modes.scales import Places, Scale
from fragility.questions.modes.stability import ABOVE, BELOW, NOWHERE, STATES, NominalStability, OrderedStability
from fragility.scores import softmax_probabilities

if TYPE_CHECKING:
    from fragility.engines.trees.pieces import FieldPieces, ForestPieces

EXACT_ENGINES = ("trees", "linear")  # that know where a decision turns; others are asked, as a black box is
MOST_VALUES = 10_000  # a field with more whole values is not listed value by value
MOST_ROWS = 4096  # at a time: the answers to all categories are held for so many
GUESSES = 3  # interpolated probes of a search, before it closes in step by step
LONGEST_STEP = 2**62


class Axis(NamedTuple):
    """An ordered field of the rows that are searched."""

    field: Field
    scale: Scale
    places: Places  # (n,)
    columns: Integers  # those that come from the field
    owned: bool  # they come from no other field
    rising: bool  # and never fall while it rises, by what the preprocessing is

    @property
    def listed(self) -> Integers | None:
        """All places of the training range, where the columns must be looked at value by value; None: they need not."""
        return None if self.rising else np.arange(self.scale.low, self.scale.high + 1)

    @property
    def hull(self) -> tuple[int, int]:
        """The training range, and beyond it the rows' own values."""
        own = self.places.place[self.places.fits]
        low, high = self.scale.low, self.scale.high
        return min(low, int(own.min(initial=low))), max(high, int(own.max(initial=high)))


class Edges(NamedTuple):
    """Where the pieces of a field meet; K edges."""

    first: Integers  # (K,) the first place of each piece but the lowest
    beside: Integers  # places on either side of each edge, rising
    cells: Floats  # (len(beside), d)


class Question(NamedTuple):
    """Rows in which a field takes other values, to be asked of the model; m rows."""

    name: str
    columns: Integers  # those that come from the field
    who: Integers  # (m,)
    values: pd.Series  # (k,) of the field
    which: Integers  # (m,) the value of each row

    def part(self, part: slice) -> Question:
        """Return some of the rows."""
        return self._replace(who=self.who[part], which=self.which[part])

    @property
    def taken(self) -> pd.Series:
        """(m,) the values that the rows take."""
        return self.values.take(self.which).reset_index(drop=True)


class Attempt(NamedTuple):
    """A field whose ends are found by asking at candidates."""

    axis: Axis
    who: Integers  # (m,) the rows
    candidates: Integers  # places, rising
    into: OrderedStability


class LineEnd(NamedTuple):
    """Where a linear model flips on one side; m rows."""

    side: int
    who: Integers  # (m,)
    inside: Integers  # (m,) the last place at which the decision holds
    outside: Integers  # (m,) the next one


Found = TypeVar("Found")


class Search:
    """Rows, what is known of their model, and how to ask it."""

    def __init__(
        self,
        rows: EvidenceRows,
        origins: list[Origin],
        protocol: Protocol,
        engine: str,
        byte_budget: int,
        narrow: Mapping[str, str],
        ranges: Mapping[str, Range] | None = None,
    ) -> None:
        self.narrow = narrow  # the types of decimals narrower than float64, by field
        self.rows, self.origins, self.protocol, self.byte_budget = rows, origins, protocol, byte_budget
        self.oracle = choose_oracle(rows, engine)
        self.engine, self.tolerance = self.oracle.name, 0.0  # tolerance: of residuals, within which the model is asked
        if isinstance(self.oracle, CheckedOracle):
            self.tolerance = self.oracle.engine.tolerance
        self.ranges = {each.field: each for each in protocol.modes.ranges} if ranges is None else ranges
        assert rows.source.frame is not None
        self.frame: pd.DataFrame = rows.source.frame
        self.step = rows_within(byte_budget, rows.width, copies=4)
        self.original = np.concatenate([self._decide(start) for start in range(0, len(rows), self.step)])

    def _decide(self, start: int) -> Integers:
        part = slice(start, min(start + self.step, len(self.rows)))
        p = self.rows.own_probabilities(start, self.rows.dense(part.start, part.stop))
        return original_class(self.rows, p, self.protocol.resolution, part)

    @cached_property
    def forest(self) -> ForestPieces:
        """The trees, as they are cut into pieces."""
        from fragility.engines.trees.pieces import ForestPieces

        return ForestPieces(self.rows, self.protocol.resolution)

    @cached_property
    def totals(self) -> Floats:
        """(n, outputs) the raw sums of the forest at x."""
        starts = range(0, len(self.rows), self.step)
        return np.concatenate([self.forest.sum_rows(self.rows.dense(i, i + self.step)) for i in starts])

    @cached_property
    def doubted(self) -> Booleans:
        """(n,) rows that the engine may read otherwise than the model."""
        starts = range(0, len(self.rows), self.step)
        return np.concatenate([self.oracle.asks_model(self.rows.dense(i, i + self.step)) for i in starts])

    # --- asking ---------------------------------------------------------------------------------------------

    def encode(self, values: Mapping[str, pd.Series]) -> Floats:
        """Return the cells (k, d) of k values of some fields; other fields are those of the first row."""
        assert self.rows.encode is not None
        count = len(next(iter(values.values())))
        table = self.frame.iloc[[0] * count].reset_index(drop=True)
        return self.rows.encode(table.assign(**values))

    def encode_together(
        self, searches: Mapping[str, tuple[Axis, Generator[Integers, Floats, Found]]]
    ) -> dict[str, Found]:
        """Return what the searches of fields find, which yield places and are sent their cells.

        The places of all fields are encoded together: a call costs a preprocessing far more than a row.
        """
        found: dict[str, Found] = {}
        cells: Floats | None = None
        waiting: dict[str, Integers] = dict.fromkeys(searches, np.zeros(0, dtype=np.int64))
        while waiting:
            for name, places in list(waiting.items()):
                try:
                    search = searches[name][1]
                    waiting[name] = next(search) if cells is None else search.send(cells[: len(places)])
                except StopIteration as stop:
                    found[name] = stop.value
                    del waiting[name]
            count = max(map(len, waiting.values()), default=0)
            if waiting:
                columns = {name: searches[name][0].scale.column(np.resize(p, count)) for name, p in waiting.items()}
                cells = self.encode(columns)
        return found

    def ask_cells(self, who: Integers, columns: Integers, cells: Floats) -> Floats:
        """Return (m, C) the model's own probabilities of rows ``who`` in which c columns hold cells (m, c)."""
        p = np.empty((len(who), self.rows.n_classes))
        for start in range(0, len(who), self.step):
            part = slice(start, start + self.step)
            copies = self.take_cells(who[part])
            copies[:, columns] = cells[part]
            p[part] = self.rows.predict(copies)
        return p

    def ask_values(self, who: Integers, columns: Integers, name: str, values: pd.Series, which: Integers) -> Floats:
        """Return (m, C) the same where a field takes values[which], a column of k values."""
        return self.ask_together([Question(name, columns, who, values, which)])[0]

    def ask_together(self, questions: Sequence[Question]) -> list[Floats]:
        """Return the (m, C) probabilities of each of some questions, about different fields; in as few calls as may be.

        A call costs a pipeline far more than a row.
        """
        found = [np.empty((len(asked.who), self.rows.n_classes)) for asked in questions]
        alone = [self._come_alone(asked.columns, asked.name) for asked in questions]
        separate = [i for i, own in enumerate(alone) if own and len(questions[i].who)]
        if separate:
            count = max(len(questions[i].values) for i in separate)
            everything = self.encode({questions[i].name: _repeat(questions[i].values, count) for i in separate})
            for batch in self._make_batches(questions, separate):
                cells = np.concatenate([self.take_cells(questions[i].who[part]) for i, part in batch])
                start = 0
                for i, part in batch:
                    asked = questions[i].part(part)
                    stop = start + len(asked.who)
                    cells[start:stop, asked.columns] = everything[:, asked.columns][asked.which]
                    start = stop
                self._spread(self.rows.predict(cells), batch, found)
        joint = [i for i, own in enumerate(alone) if not own and len(questions[i].who)]
        for batch in self._make_batches(questions, joint):
            self._spread(self._ask_tables([questions[i].part(part) for i, part in batch]), batch, found)
        return found

    def _come_alone(self, columns: Integers, name: str) -> bool:
        """Whether columns come from one field, so that the cells of a value are the same in every row."""
        return all(self.origins[j].fields == (name,) for j in columns)

    def _make_batches(self, questions: Sequence[Question], chosen: Sequence[int]) -> Iterator[list[tuple[int, slice]]]:
        """Yield parts of questions that can be asked at once."""
        batch, room = list[tuple[int, slice]](), self.step
        for i in chosen:
            start, size = 0, len(questions[i].who)
            while start < size:
                part = slice(start, min(start + room, size))
                batch.append((i, part))
                start, room = part.stop, room - (part.stop - part.start)
                if not room:
                    yield batch
                    batch, room = [], self.step
        if batch:
            yield batch

    @staticmethod
    def _spread(p: Floats, batch: Sequence[tuple[int, slice]], found: Sequence[Floats]) -> None:
        start = 0
        for i, part in batch:
            stop = start + part.stop - part.start
            found[i][part] = p[start:stop]
            start = stop

    def _ask_tables(self, questions: Sequence[Question]) -> Floats:
        """Return the (m, C) probabilities of questions, one after another, about whole raw rows."""
        assert self.rows.encode is not None
        stops = np.cumsum([len(asked.who) for asked in questions])
        table = self.frame.iloc[np.concatenate([asked.who for asked in questions])].reset_index(drop=True)
        changed = dict[str, pd.Series]()
        for asked, stop in zip(questions, stops, strict=True):
            column = changed.get(asked.name, table[asked.name])
            made = _put(column, slice(stop - len(asked.who), stop), asked.taken)
            if made is None:  # the other rows would be handed over in another type
                return np.concatenate([self._ask_tables([each]) for each in questions])
            changed[asked.name] = made
        return self.rows.predict(self.rows.encode(table.assign(**changed)))

    def take_cells(self, who: Integers) -> Floats:
        """Return (m, d) the cells of some rows, a copy."""
        part = self.rows.matrix[who]
        return part.toarray() if sp.issparse(part) else np.asarray(part, dtype=np.float64)

    def ask_places(self, axis: Axis, who: Integers, places: Integers) -> tuple[Floats, Integers]:
        """Return (residual, class) of rows ``who`` at places: a residual below 0 is a flip, to that class."""
        return self.measure(self.ask_together([self.question(axis, who, places)])[0], self.original[who])

    def question(self, axis: Axis, who: Integers, places: Integers) -> Question:
        """Return the question about rows ``who`` at places of a field."""
        distinct, which = np.unique(places, return_inverse=True)
        return Question(axis.field.name, axis.columns, who, axis.scale.column(distinct), which)

    def measure(self, p: Floats, original: Integers) -> tuple[Floats, Integers]:
        """Return (residual, best other class) at probabilities p (m, C)."""
        rule = self.protocol.rule(self.rows.offset)
        others = p.copy()
        others[np.arange(len(p)), original] = 0.0  # at an end, rounding may leave the original class within resolution
        return rule.support(p, original) + rule.resolution, rule.predict(others)

    # --- ordered fields -------------------------------------------------------------------------------------

    def make_axis(self, field: Field) -> Axis:
        """Return a field of numbers or dates; one without a training range has no places."""
        column, n = self.frame[field.name], len(self.rows)
        columns = np.array([j for j, origin in enumerate(self.origins) if field.name in origin.fields], dtype=np.int64)
        origins = [self.origins[j] for j in columns]
        owned = all(origin.fields == (field.name,) for origin in origins)
        rising = owned and all(origin.rising for origin in origins)
        if field.name in self.ranges:
            scale = Scale(field, self.ranges[field.name], np.dtype(self.narrow.get(field.name, np.float64)))
            return Axis(field, scale, scale.places(column), columns, owned, rising)
        nowhere = Places(np.zeros(n, dtype=np.int64), *np.zeros((2, n), dtype=bool))
        return Axis(
            field, Scale(field, Range(field.name, 0.0, 0.0, False), np.float64), nowhere, columns, owned, rising
        )

    def is_known(self, axis: Axis) -> bool:
        """Return whether the field's columns are known well enough for exact ends."""
        own = axis.scale.range
        few = own.whole and axis.scale.high - axis.scale.low < MOST_VALUES
        return self.engine in EXACT_ENGINES and axis.owned and bool(len(axis.columns)) and (axis.rising or few)

    def find_ends(self, axes: Sequence[Axis], note: Callable[[int], None]) -> dict[str, OrderedStability]:
        """Return the intervals of fields of numbers or dates; ``note`` is told how many fields are finished."""
        known = [axis for axis in axes if len(axis.columns) and self.is_known(axis)]
        movable = {axis.field.name: who for axis in known if len(who := self._list_movable(axis))}
        reading = [axis for axis in known if axis.field.name in movable]
        found = {axis.field.name: self._start(axis) for axis in axes}
        exact = {axis.field.name: axis.places.fits for axis in axes if not len(axis.columns)}  # the model reads none
        if self.engine == "trees":
            edges = self.find_edges(reading)
            for axis in reading:
                name = axis.field.name
                if (own := edges[name]) is not None:
                    exact[name] = self._search_pieces(axis, movable[name], own, found[name])
                    note(len(exact))
        elif self.engine == "linear":
            exact |= self._search_lines(reading, movable, found)
        attempts = []
        for axis in axes:
            into, exactly = found[axis.field.name], exact.get(axis.field.name, np.zeros(len(self.rows), dtype=bool))
            into.state[exactly] = STATES.index(EXACT)
            if len(rest := np.flatnonzero(axis.places.fits & ~exactly)):
                attempts.append(Attempt(axis, rest, self.list_candidates(axis), into))
        self.try_places(attempts, lambda finished: note(len(axes) - len(attempts) + finished))
        return found

    def _start(self, axis: Axis) -> OrderedStability:
        """Return a field's intervals before the search: as wide as the training range."""
        n, scale, places = len(self.rows), axis.scale, axis.places
        unfit = np.where(places.known, STATES.index(NOT_WHOLE), STATES.index(MISSING))
        state = unfit if axis.field.name in self.ranges else np.full(n, STATES.index(UNLISTED))
        ends = np.stack([np.minimum(places.place, scale.low), np.maximum(places.place, scale.high)], axis=1)
        return OrderedStability(scale, places.place, state, ends, np.zeros_like(ends), np.full((n, 2), NOWHERE))

    def _list_movable(self, axis: Axis) -> Integers:
        """Return the rows in which the values of a known field can be looked at by the engine."""
        scale, places = axis.scale, axis.places
        within = places.fits & ~self.doubted
        if not axis.rising:  # nothing is known of values beyond the training range
            within &= (places.place >= scale.low) & (places.place <= scale.high)
        return np.flatnonzero(within)

    def list_candidates(self, axis: Axis) -> Integers:
        """Return the places that are tried where ends cannot be exact: values of the catalogue, ends of the range."""
        scale = axis.scale
        tried = scale.places(_catalogue_column(self.protocol, axis.field, self.frame)).place
        candidates = np.unique(np.concatenate([tried, [scale.low, scale.high]]))
        return candidates[(candidates >= scale.low) & (candidates <= scale.high)]

    def try_every_value(self, axis: Axis) -> OrderedStability:
        """Return the exact intervals of a field of whole numbers or days, by asking the model at each of its values.

        Only rows with a value within the training range have one.
        """
        scale, place = axis.scale, axis.places.place
        within = axis.places.fits & (place >= scale.low) & (place <= scale.high)
        n = len(place)
        ends, state = np.zeros((n, 2), dtype=np.int64), np.full(n, STATES.index(UNLISTED))
        into = OrderedStability(scale, place, state, ends, np.zeros_like(ends), np.full((n, 2), NOWHERE))
        self.try_places([Attempt(axis, np.flatnonzero(within), np.arange(scale.low, scale.high + 1), into)])
        into.state[within] = STATES.index(EXACT)
        return into

    def try_places(self, attempts: Sequence[Attempt], note: Callable[[int], None] | None = None) -> None:
        """Fill in intervals whose ends are candidates, or the rows' own; the model is asked from x outward.

        All fields and both sides go outward together, as far as memory allows.
        """
        finished = 0
        while finished < len(attempts):
            sizes = np.cumsum([2 * len(attempt.who) for attempt in attempts[finished:]])
            stop = finished + max(1, int((sizes <= self.step).sum()))
            going = [_Outward(attempt) for attempt in attempts[finished:stop]]
            while going := [each for each in going if each.is_going]:
                if note is not None:
                    note(stop - len(going))
                questions = [self.question(each.axis, each.who, each.probes) for each in going]
                for each, p in zip(going, self.ask_together(questions), strict=True):
                    each.note(*self.measure(p, self.original[each.who]))
            finished = stop

    # --- linear models --------------------------------------------------------------------------------------

    def _search_lines(
        self, axes: Sequence[Axis], movable: Mapping[str, Integers], into: Mapping[str, OrderedStability]
    ) -> dict[str, Booleans]:
        """Fill in the intervals of fields; return (n,) the rows that the model itself confirms at every end.

        A field whose values do not hold on one interval is left out.
        """
        searches = {
            axis.field.name: (axis, self._search_line(axis, movable[axis.field.name], into[axis.field.name]))
            for axis in axes
        }
        lines = {name: sides for name, sides in self.encode_together(searches).items() if sides is not None}
        questions = [
            self.question(
                searches[name][0],
                np.concatenate([side.who for side in sides for _ in range(2)]),
                np.concatenate([places for side in sides for places in (side.inside, side.outside)]),
            )
            for name, sides in lines.items()
        ]
        exact = dict[str, Booleans]()
        for (name, sides), asked, p in zip(lines.items(), questions, self.ask_together(questions), strict=True):
            residual, to = self.measure(p, self.original[asked.who])
            done, found, start = np.zeros(len(self.rows), dtype=bool), into[name], 0
            done[movable[name]] = True
            for side, who, inside, outside in sides:
                within, beyond = (slice(start + k * len(who), start + (k + 1) * len(who)) for k in range(2))
                start = beyond.stop
                done[who[(residual[within] < -MOST_ROUNDING) | (residual[beyond] >= MOST_ROUNDING)]] = False
                found.ends[who, side], found.flips[who, side] = inside, outside
                found.flips_to[who, side] = to[beyond]
            exact[name] = done
        return exact

    def _search_line(
        self, axis: Axis, who: Integers, into: OrderedStability
    ) -> Generator[Integers, Floats, list[LineEnd] | None]:
        """Return where the decision flips on both sides; None if this is not known. Yields places, is sent cells."""
        convex = yield from self._is_convex(axis)
        if not convex:
            return None
        place, sides = axis.places.place[who], list[LineEnd]()
        own = yield from self._score_places(axis, who, place)
        for side in (BELOW, ABOVE):
            outer = into.ends[who, side]
            residual = yield from self._score_places(axis, who, outer)
            turned = np.flatnonzero((residual < 0) & (own >= 0) & (outer != place))
            flipped = who[turned]
            probes = narrow(axis.scale, Bracket(place[turned], outer[turned], own[turned], residual[turned]))
            try:
                some, places = next(probes)
                while True:
                    some, places = probes.send((yield from self._score_places(axis, flipped[some], places)))
            except StopIteration as stop:
                sides.append(LineEnd(side, flipped, *stop.value))
        return sides

    def _is_convex(self, axis: Axis) -> Generator[Integers, Floats, bool]:
        """Return whether the values that hold are known to form an interval. Yields places, is sent their cells.

        One column changes, in one direction, and differences of log-probabilities are linear in it.
        """
        if self.rows.n_classes > 2 and link_for(self.rows) is not softmax_probabilities:
            return False
        cells = yield np.array([axis.scale.low, axis.scale.high]) if axis.listed is None else axis.listed
        steps = np.diff(cells[:, axis.columns], axis=0)
        one_way = bool(((steps >= 0).all(axis=0) | (steps <= 0).all(axis=0)).all())
        return one_way and int((steps != 0).any(axis=0).sum()) <= 1

    def _score_places(self, axis: Axis, who: Integers, places: Integers) -> Generator[Integers, Floats, Floats]:
        """Return residuals like those of ``ask_places``, summed row by row. Yields places, is sent their cells.

        The model's own sums are rounded by the shape of their batch, which must not move an end.
        """
        distinct, which = np.unique(places, return_inverse=True)
        encoded = (yield distinct)[:, axis.columns]
        scores = GroupScores.of(self.rows)
        offset = np.zeros(self.rows.n_classes) if self.rows.offset is None else self.rows.offset
        residual = np.empty(len(who))
        for start in range(0, len(who), self.step):
            part = slice(start, start + self.step)
            cells = self.take_cells(who[part])
            cells[:, axis.columns] = encoded[which[part]]
            raw = np.stack([(cells * w).sum(axis=1) for w in scores.coefficients], axis=1) + scores.intercept
            if scores.n_outputs == 1:
                raw = np.concatenate([np.zeros_like(raw), raw], axis=1)
            rows, original = np.arange(len(raw)), self.original[who[part]]
            raw = raw + offset
            held = raw[rows, original]
            raw[rows, original] = -np.inf
            residual[part] = held - raw.max(axis=1) + self.protocol.resolution
        return residual

    # --- trees ----------------------------------------------------------------------------------------------

    def find_edges(self, axes: Sequence[Axis]) -> dict[str, Edges | None]:
        """Return the edges between the pieces of fields; None where a field's tests have no order."""
        return self.encode_together({axis.field.name: (axis, self._list_edges(axis)) for axis in axes})

    def _list_edges(self, axis: Axis) -> Generator[Integers, Floats, Edges | None]:
        edges = yield from find_edges(self.forest, axis)
        if edges is None or not len(edges):
            return None if edges is None else Edges(edges, edges, np.zeros((0, self.rows.width)))
        beside = np.unique(np.concatenate([edges - 1, edges]))
        return Edges(edges, beside, (yield beside))

    def _search_pieces(self, axis: Axis, who: Integers, edges: Edges, into: OrderedStability) -> Booleans:
        """Fill in the intervals of rows ``who``; return (n,) those that the model itself confirms at every end."""
        done = np.zeros(len(self.rows), dtype=bool)
        done[who] = True
        if len(edges.first):
            one_of_each = np.concatenate([edges.first[:1] - 1, edges.first])
            pieces = self.forest.cut(axis.columns, edges.cells[np.searchsorted(edges.beside, one_of_each)])
            for begin in range(0, len(who), self.step):
                self._settle(axis, who[begin : begin + self.step], edges, pieces, into, done)
        return done

    def _settle(
        self, axis: Axis, who: Integers, edges: Edges, pieces: FieldPieces, into: OrderedStability, done: Booleans
    ) -> None:
        """Fill in the intervals of some rows; ``done`` is unset where the model contradicts the engine."""
        from fragility.engines.trees.pieces import Scan

        x, place = self.take_cells(who), axis.places.place[who]
        own = np.searchsorted(edges.first, place, side="right")
        lowest, highest = (np.searchsorted(edges.first, ends, side="right") for ends in into.ends[who].T)
        scan = Scan(self.totals[who], self.original[who], own, lowest, highest, own.copy(), own.copy())
        rest = np.flatnonzero(lowest < highest)
        while len(rest):
            found = self.forest.find_flips(pieces, x[rest], scan.take(rest))
            going = np.zeros(len(who), dtype=bool)
            for side in (BELOW, ABOVE):
                bound, held = (scan.lowest, scan.below) if side == BELOW else (scan.highest, scan.above)
                some, piece = rest[found[:, side] >= 0], found[found[:, side] >= 0, side]
                bound[rest[found[:, side] < 0]] = own[rest[found[:, side] < 0]]  # nothing is left to look at
                if not len(some):
                    continue
                # the flip is the piece's value next to x, the end is the value beside it
                end = edges.first[piece] if side == BELOW else edges.first[piece - 1] - 1
                flip = end + (-1 if side == BELOW else 1)
                beyond, to = self._ask_beside(axis, who[some], edges, flip)
                inner = np.flatnonzero(np.abs(piece - own[some]) > 1)  # in x's own piece the model answers as at x
                within, _ = self._ask_beside(axis, who[some[inner]], edges, end[inner])
                done[who[some[inner[within < 0]]]] = False  # the engine errs about this row
                flips = beyond < 0
                held[some], bound[some[flips]] = piece, own[some[flips]]
                into.ends[who[some[flips]], side], into.flips[who[some[flips]], side] = end[flips], flip[flips]
                into.flips_to[who[some[flips]], side] = to[flips]
                going[some[~flips]] = True
            rest = np.flatnonzero(going)

    def _ask_beside(self, axis: Axis, who: Integers, edges: Edges, places: Integers) -> tuple[Floats, Integers]:
        """Return what ``ask_places`` does, for places beside edges."""
        cells = edges.cells[:, axis.columns][np.searchsorted(edges.beside, places)]
        return self.measure(self.ask_cells(who, axis.columns, cells), self.original[who])

    # --- nominal fields -------------------------------------------------------------------------------------

    def find_categories(self, fields: Sequence[Field]) -> dict[str, NominalStability]:
        """Return the categories of the catalogue that flip each row, for some nominal fields."""
        found = {field.name: self._list_categories(field) for field in fields}
        columns = {name: [j for j, o in enumerate(self.origins) if name in o.fields] for name in found}
        own = {name for name in found if all(self.origins[j].fields == (name,) for j in columns[name])}
        together = [name for name in found if found[name].values and columns[name] and name in own]
        if together:
            self._try_categories(together, columns, found)
        for name in (name for name in found if found[name].values and name not in own):
            one, who = found[name], np.flatnonzero(found[name].state == STATES.index(EXACT))
            typed = values_frame({name: list(one.values)}, self.frame)[name]
            for r in range(len(one.values)):
                p = self.ask_values(who, np.array(columns[name]), name, typed, np.full(len(who), r))
                residual, to = self.measure(p, self.original[who])
                one.flips_to[who, r] = np.where(residual < 0, to, NOWHERE)
        return found

    def _list_categories(self, field: Field) -> NominalStability:
        """Return a nominal field with its categories, none of which flips anything yet."""
        column, weights = self.frame[field.name], weigh_values(self.protocol.modes, field.name)
        known = np.where(column.notna(), STATES.index(EXACT), STATES.index(MISSING))
        state = known if weights else np.full(len(column), STATES.index(UNLISTED))  # as in _start, also where missing
        if field.type == "mixed":  # 1 and True are two values, but one key
            own = np.array([_plain(value) for value in column.astype(object)], dtype=object)
        else:
            codes, distinct = pd.factorize(column)
            own = np.array([*map(_plain, distinct), None], dtype=object)[codes]
        return NominalStability(field.name, own, state, weights, np.full((len(column), len(weights)), NOWHERE))

    def _try_categories(
        self, names: Sequence[str], columns: Mapping[str, Sequence[int]], found: Mapping[str, NominalStability]
    ) -> None:
        """Fill in what flips the rows: the r-th categories of all fields at once, near the edge by the model itself."""
        most = max(len(found[name].values) for name in names)
        padded = {name: list(islice(cycle(found[name].values), most)) for name in names}
        cells = self.encode({name: values_frame({name: padded[name]}, self.frame)[name] for name in names})
        unit = np.full(self.rows.width, -1)
        for u, name in enumerate(names):
            unit[columns[name]] = u
        answers = 2 * self.rows.n_classes * sum(len(found[name].values) for name in names)
        step = rows_within(self.byte_budget, self.rows.width + answers, copies=4, most=MOST_ROWS)
        for start in range(0, len(self.rows), step):
            x = self.rows.dense(start, start + step)
            who = np.arange(start, start + len(x))
            asked = [np.array([u for u, name in enumerate(names) if r < len(found[name].values)]) for r in range(most)]
            every = [Values(cells[r], unit, asked[r]) for r in range(most)]
            for r, p in enumerate(self.oracle.answer_values(x, every, self.byte_budget)):
                for u, of_unit in zip(asked[r], p, strict=True):
                    residual, to = self.measure(of_unit, self.original[who])
                    close = np.flatnonzero(np.abs(residual) <= self.tolerance)
                    if len(close):
                        own_columns = np.array(columns[names[u]])
                        taken = np.broadcast_to(cells[r][own_columns], (len(close), len(own_columns)))
                        own = self.ask_cells(who[close], own_columns, taken)
                        residual[close], to[close] = self.measure(own, self.original[who[close]])
                    held = (residual >= 0) | (found[names[u]].state[who] != STATES.index(EXACT))
                    found[names[u]].flips_to[who, r] = np.where(held, NOWHERE, to)


def find_edges(forest: ForestPieces, axis: Axis) -> Generator[Integers, Floats, Integers | None]:
    """Return the first place of each piece of a field but the lowest, None if the trees' tests about it have no order.

    Yields places and is sent their cells.
    """
    tests = forest.list_edges(axis.columns)
    if tests is None:
        return None
    column, threshold = tests
    edges = np.zeros(0, dtype=np.int64)
    if axis.listed is not None:
        ranks = forest.rank_cells((yield axis.listed), column, threshold)
        return np.asarray(axis.listed[1:][(np.diff(ranks, axis=0) != 0).any(axis=1)])
    if len(threshold):
        low, high = axis.hull
        ends = forest.round_cells((yield np.array([low, high])))[:, column]
        first, last = threshold - ends[0], threshold - ends[1]
        turned = np.flatnonzero((first >= 0) & (last < 0))
        start = Bracket(np.full(len(turned), low), np.full(len(turned), high), first[turned], last[turned])
        probes = narrow(axis.scale, start)
        try:
            some, places = next(probes)
            while True:
                compared = forest.round_cells((yield places))
                residual = threshold[turned[some]] - compared[np.arange(len(some)), column[turned[some]]]
                some, places = probes.send(residual)
        except StopIteration as stop:
            edges = np.unique(stop.value[1])
    return edges


class _Outward:
    """The candidates of a field on both sides of each row, as far as they have been asked about."""

    def __init__(self, attempt: Attempt) -> None:
        self.axis, own, self.candidates, self.into = attempt
        place = self.axis.places.place[own]
        self.into.state[own] = STATES.index(BRACKETED)
        self.into.flips_to[own] = NOWHERE
        self.into.ends[own] = place[:, None]
        below = np.searchsorted(self.candidates, place, side="left") - 1
        above = np.searchsorted(self.candidates, place, side="right")
        self.who, self.at = np.tile(own, 2), np.concatenate([below, above])
        self.side = np.repeat([BELOW, ABOVE], len(own))
        self._keep(np.ones(len(self.who), dtype=bool))

    @property
    def is_going(self) -> bool:
        return len(self.who) > 0

    @property
    def probes(self) -> Integers:
        """(m,) the next place of each row and side that has not flipped."""
        return np.asarray(self.candidates[self.at])

    def note(self, residual: Floats, to: Integers) -> None:
        """Enter what the model said at the probes."""
        flipped, probes, into = residual < 0, self.probes, self.into
        where = self.who[flipped], self.side[flipped]
        into.flips[where], into.flips_to[where] = probes[flipped], to[flipped]
        into.ends[self.who[~flipped], self.side[~flipped]] = probes[~flipped]
        self.at = self.at + np.where(self.side == BELOW, -1, 1)
        self._keep(~flipped)

    def _keep(self, going: Booleans) -> None:
        kept = going & (self.at >= 0) & (self.at < len(self.candidates))
        self.who, self.side, self.at = self.who[kept], self.side[kept], self.at[kept]


def _repeat(column: pd.Series, count: int) -> pd.Series:
    """Return a column of ``count`` cells, those of a shorter one over and over."""
    return column.take(np.resize(np.arange(len(column)), count)).reset_index(drop=True)


def _put(column: pd.Series, part: slice, values: pd.Series) -> pd.Series | None:
    """Return a column with other values in some of its cells; None where that would change its type."""
    if part == slice(0, len(column)):
        return values
    numbers = all(isinstance(own.dtype, np.dtype) and own.dtype.kind in "iuf" for own in (column, values))
    if column.dtype != values.dtype and not (numbers and np.result_type(column, values) == column.dtype):
        return None
    made = column.copy()
    made.iloc[part] = values.array
    return made


def _catalogue_column(protocol: Protocol, field: Field, frame: pd.DataFrame) -> pd.Series:
    values = tuple(weigh_values(protocol.modes, field.name))
    if field.type != "date" or not values:
        return pd.Series(list(values), dtype=np.float64)
    return values_frame({field.name: list(values)}, frame)[field.name]


def _plain(value: Any) -> Scalar:
    if is_missing(value):
        return None
    return value.item() if isinstance(value, np.generic) else value  # type: ignore[no-any-return]


# --- where a residual turns negative ------------------------------------------------------------------------


class Bracket(NamedTuple):
    """Places between which a residual turns negative; m searches."""

    inside: Integers  # (m,) the residual is not below 0
    outside: Integers  # (m,) it is
    residual_inside: Floats
    residual_outside: Floats


Probes: TypeAlias = Generator[tuple[Integers, Integers], Floats, tuple[Integers, Integers]]


def narrow(scale: Scale, start: Bracket) -> Probes:
    """Return neighbouring places (inside, outside) between which each residual turns negative.

    Yields (searches, places) and is sent their residuals. A residual turns negative once between the two ends, or the
    nearest turn may be missed. The first probes interpolate, since most columns are linear in their field; then steps
    that grow fourfold lead away from the last probe until the turn is passed, and halving does the rest.
    """
    inside, outside = start.inside.copy(), start.outside.copy()
    at_inside, at_outside = start.residual_inside.copy(), start.residual_outside.copy()
    way = np.where(outside > inside, 1, -1)
    last_inside, step, probes = np.ones(len(inside), dtype=bool), 1, 0
    while len(rest := np.flatnonzero(outside - way != inside)):
        a, b, toward = inside[rest], outside[rest], way[rest]
        if probes < GUESSES:
            share = at_inside[rest] / (at_inside[rest] - at_outside[rest])
            first, last = scale.numbers(a), scale.numbers(b)
            with np.errstate(over="ignore", invalid="ignore"):
                number = first + share * (last - first)
            places = np.where(np.isfinite(number), scale.nearest(np.where(np.isfinite(number), number, 0.0)), a)
        else:
            wide = np.abs(a.astype(np.float64) - b.astype(np.float64)) > 2.0 * step
            places = np.where(last_inside[rest], a + toward * step, b - toward * step)
            places = np.where(wide, places, (a >> 1) + (b >> 1) + (a & b & 1))
            step = min(4 * step, LONGEST_STEP)
        probes += 1
        places = np.clip(places, np.minimum(a + toward, b - toward), np.maximum(a + toward, b - toward))
        residual = yield rest, places
        holds = residual >= 0
        inside[rest[holds]], at_inside[rest[holds]] = places[holds], residual[holds]
        outside[rest[~holds]], at_outside[rest[~holds]] = places[~holds], residual[~holds]
        last_inside[rest] = holds
    return inside, outside
