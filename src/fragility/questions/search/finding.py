"""find_failing_sets: the exact search that fits each row; the model is asked about the others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from fragility.base.arrays import DEFAULT_BYTE_BUDGET, Booleans, Floats, Integers
from fragility.base.errors import Advice, EngineError, ProtocolError
from fragility.base.progress import Report, progress_bar
from fragility.engines.choice import choose_oracle
from fragility.engines.lattice.additive import FlipRule, LinearLattice
from fragility.engines.lattice.programs import Program, Undecided, list_programs
from fragility.engines.lattice.whole import Block, WholeLattice, find_lattice, find_linear_sums, row_blocks
from fragility.engines.oracle import ModelOracle
from fragility.evidence import EvidenceRows, States
from fragility.protocol import Protocol, bind
from fragility.questions.search.blackbox import (
    BEAM,
    BY_SIZE,
    DEFAULT_BUDGET,
    DEFAULT_NODES,
    DEFAULT_WIDTH,
    check_request,
    search_by_asking,
)
from fragility.questions.search.found import NOT_COUNTED, Answers, FailingSets

LATTICE, CLOSED_FORM, BRANCH_AND_BOUND, PROGRAM = "lattice", "closed form", "branch and bound", "integer program"
MOST_LISTED = 1000  # minimal sets listed for a row
MOST_SETS = 1000  # failing sets of one size that branch and bound looks at
ROUNDING = 1e-9  # of a margin, between two batches of one model


def find_failing_sets(
    model: Any,
    X: Any,
    protocol: Protocol,
    *,
    method: str = "auto",
    max_size: int | None = None,
    every: bool = False,
    budget: int = DEFAULT_BUDGET,
    width: int = DEFAULT_WIDTH,
    nodes: int = DEFAULT_NODES,
    ids: Any = None,
    engine: str = "auto",
    byte_budget: int = DEFAULT_BYTE_BUDGET,
    progress: bool | Report | None = None,
) -> FailingSets:
    """Find the smallest set of groups whose removal flips each prediction.

    Tree ensembles and linear models are searched exactly: through the whole lattice of subsets where at most 24 groups
    matter for a row, beyond that by branch and bound (trees) or in closed form (linear models), and where that leaves a
    row open by integer programs. So are wrappers around one of them, for two classes; around several, the lattice is
    read where at most 12 groups are not at their baseline. Other models are asked: a beam, whose answer is then proved
    by size as far as the budget goes.

    Parameters
    ----------
    model : estimator, pipeline, booster or Model
        The fitted classifier; whatever :meth:`Model.wrap` takes.
    X : array or table of shape (n, d)
        The raw rows, as the model takes them.
    protocol : Protocol
        Its groups, their baseline and the decision; operators and severities are not read.
    method : {"auto", "exact", "beam"}, default="auto"
        ``exact`` leaves out the beam and asks other models by size alone; ``beam`` takes the beam for every model.
    max_size : int, optional
        The largest set asked for; by default any.
    every : bool, default=False
        Also list all minimal failing sets of each row, up to 1000; a set is minimal if no proper subset of it fails.
    budget : int, default=50000
        The most states that may be decided per row, for rows that are not read from the lattice. If it is spent, the
        state is ``upper bound`` or ``not decided``; every set of up to ``searched_size`` groups was decided.
    width : int, default=8
        How many sets per row the beam keeps.
    nodes : int, default=1000
        The most nodes of an integer program, of which a row that branch and bound leaves open has one for each rival
        class; most need a few. 0 solves none.
    ids : sequence, optional
        One distinct id per row; by default the index of a pandas frame, else 0, 1, ...
    engine : str, default="auto"
        ``auto`` reads the model where a native engine knows it exactly; ``blackbox`` asks it for everything.
    byte_budget : int, default=256 MiB
        Bound on the states and tables held in memory at a time; it changes nothing in the result.
    progress : bool or callable, optional
        A bar on the terminal (the default if there is one), or a function (rows decided, rows in all).

    Returns
    -------
    FailingSets
        The smallest set found for each row, in the order of ``X``, and how far it is proved.

    Raises
    ------
    ProtocolError
        The method, the width or ``max_size`` is out of range.
    EngineError
        The engine does not know the model, or contradicts it.

    See Also
    --------
    audit : Certificates, whose path is a greedy search for such a set.
    assess_reliability : How likely a failing set is.
    """
    rows = bind(model, X, protocol, ids=ids)
    limit = rows.n_groups if max_size is None else max_size
    check_request(rows, method, width, limit)
    if type(nodes) is not int or nodes < 0:
        raise ProtocolError(f"nodes must be a whole number of at least 0, got {nodes!r}")
    work = _Finding(Answers(rows, protocol, limit, every), engine, byte_budget)
    with progress_bar("searching", progress) as report:
        open_rows = work.search_exactly(budget, report) if method != "beam" else np.arange(len(rows))
        work.ask_model(open_rows, method, width, budget, report)
    with progress_bar("settling rows with many groups", progress) as report:
        work.solve_programs(nodes, report)
    work.confirm(width, budget)
    return work.answers.finish()


class _Finding:
    """One search over all rows."""

    def __init__(self, answers: Answers, engine: str, byte_budget: int) -> None:
        self.answers, self.rows, self.protocol = answers, answers.rows, answers.protocol
        self.engine, self.byte_budget = engine, byte_budget
        self.rule = FlipRule.of(self.rows, self.protocol)
        self.lattice: WholeLattice | None = None
        self.wide: list[Integers] = []  # rows with too many live groups for a table

    def search_exactly(self, budget: int, report: Report | None) -> Integers:
        """Search what an additive model allows; return the rows that are left."""
        left: list[Integers] = []
        lattice = self.lattice = find_lattice(self.rows, self.protocol, self.engine, self.byte_budget)
        if lattice is not None:
            for block in lattice.blocks():
                search_lattice(self.answers, lattice, block, report)
                left += [self._search_wide_rows(lattice, block, budget), block.start + np.flatnonzero(block.doubted)]
                if report is not None:
                    report(block.start + len(block.x), len(self.rows))
            return np.concatenate(left)
        found = find_linear_sums(self.rows, self.protocol, self.engine)
        if found is None:
            return np.arange(len(self.rows))
        sums, oracle = found
        for start, x, p, original in row_blocks(self.rows, self.rule):
            doubted = oracle.find_doubted(start, x, p)
            search_linear(self.answers, sums, start, np.flatnonzero(~doubted), x, original)
            left.append(start + np.flatnonzero(doubted))
        return np.concatenate(left)

    def _search_wide_rows(self, lattice: WholeLattice, block: Block, budget: int) -> Integers:
        """Search the rows of a block with too many live groups for a table; return those left open."""
        wide, answers = block.wide, self.answers
        if lattice.model.kind != "states":
            self.wide.append(block.start + wide)
        if lattice.model.kind == "linear":
            search_linear(answers, lattice.model, block.start, wide, block.x, block.original)
            return np.zeros(0, dtype=np.int64)
        if lattice.model.kind != "trees":
            return np.asarray(block.start + wide)
        for place in wide:
            search = BoundedRow(self.rows, self.rule, lattice.model, block, int(place))
            search_bounded(answers, block.start + int(place), search, budget)
        rows = block.start + wide
        found = answers.size[rows] <= answers.max_size
        left = ~found & (answers.searched[rows] < answers.max_size) & ~answers.exhausted[rows]
        return np.asarray(rows[left])

    def ask_model(self, places: Integers, method: str, width: int, budget: int, report: Report | None) -> None:
        """Ask the model about the rows that are left; what branch and bound proved of them stays proved."""
        if not len(places):
            return
        answers = self.answers
        proved, spent = answers.searched[places].copy(), answers.evaluations[places].copy()
        tried = answers.method[places] != ""
        oracle = choose_oracle(self.rows.take(places.tolist()), self.engine)
        for those, how in ((~tried, method), (tried, "beam")):
            if how == method or method == "auto":  # an upper bound at least
                some = oracle.take(np.flatnonzero(those).tolist())
                search_by_asking(answers, some, places[those], how, width, budget, self.byte_budget, report)
        answers.searched[places] = np.maximum(answers.searched[places], proved)
        answers.evaluations[places] = np.maximum(answers.evaluations[places], spent)
        for row in places:
            sets = answers.removed[[row]] if answers.size[row] <= answers.max_size else answers.removed[:0]
            answers.put_minimal(row, sets, complete=bool(answers.exhausted[row]) and not len(sets))

    def solve_programs(self, nodes: int, report: Report | None) -> None:
        """Decide what is still open of the rows with too many groups for a table."""
        wide, answers = np.concatenate([np.zeros(0, dtype=np.int64), *self.wide]), self.answers
        # A set is a minimum once all smaller ones are decided; without one, all that are asked for.
        wanted = np.where(answers.size <= answers.max_size, answers.size - 1, answers.max_size)
        open_rows = wide[(answers.searched[wide] < wanted[wide]) & ~answers.exhausted[wide]]
        if self.lattice is None or not len(open_rows) or not nodes:
            return
        some = self.rows.take(open_rows.tolist())
        lattice = replace(self.lattice, rows=some, model=self.lattice.model.rebind(some))
        oracle, done = ModelOracle(some), 0
        for block in lattice.blocks():
            for place, (x, original) in enumerate(zip(block.x, block.original.tolist(), strict=True)):
                spared = block.spared_in(place)
                fixed = np.empty((0, some.width), dtype=bool) if spared is None else spared.cells
                row = int(open_rows[block.start + place])

                def flips(
                    gone: Booleans, x: Floats = x, original: int = original, spared: Any = spared, row: int = row
                ) -> bool:
                    answers.evaluations[row] += 1
                    states = States.of_one(gone[None]).sparing(spared, some.column_group)
                    return bool(self.rule.flips(oracle.answer_states(x[None], states), np.array([original]))[0])

                solve_row(answers, row, list_programs(lattice.model, place, x, fixed, original, nodes), flips)
                done += 1
                if report is not None:
                    report(done, len(open_rows))

    def confirm(self, width: int, budget: int) -> None:
        """Ask the model itself about every set that is reported, for its margin; each must fail.

        A native predictor may differ from the model by rounding: what it found and the model denies is searched again.
        A model may round by the shape of its batch: an answer it gave in another batch stands where that is all.
        """
        answers, parts = self.answers, [np.zeros(0, dtype=np.int64)]
        for start, x, _, original in row_blocks(self.rows, self.rule):
            rows = start + np.arange(len(x))
            hit = np.flatnonzero(answers.size[rows] <= answers.max_size)
            if len(hit):
                states = States(hit, answers.removed[rows[hit]])
                states = states.sparing(self.rows.spared(start, start + len(x)), self.rows.column_group)
                p = ModelOracle(self.rows).answer_states(x, states)
                answers.margin[rows[hit]] = self.rule.support(p, original[hit])
                parts.append(rows[hit][answers.margin[rows[hit]] >= ROUNDING - self.rule.resolution])
        denied = np.concatenate(parts)
        if not np.isin(answers.method[denied], (BEAM, BY_SIZE, PROGRAM)).all():
            raise EngineError(
                "a set was found that does not flip the model itself; use ", Advice.argument("engine", "blackbox")
            )
        those = ModelOracle(self.rows.take(denied.tolist()))
        search_by_asking(answers, those, denied, "auto", width, budget, self.byte_budget, None)


# --- through the whole lattice --------------------------------------------------------------------------------


def search_lattice(answers: Answers, lattice: WholeLattice, block: Block, report: Report | None) -> None:
    """Fill the answers of the rows of a block whose subsets can be tabulated.

    Nothing is left to prove: the smallest size with a failing set is the minimum, its sets are counted, the first in
    lexicographic order of declared groups is reported, and where no subset fails there is none at all.
    """
    done, every = block.start, answers.minimal is not None
    for found in (lattice.subsets if every else lattice.smallest)(block, answers.max_size):
        sizes = found.sizes()[:, : answers.max_size + 1]
        rows = block.start + found.place
        answers.method[rows] = LATTICE
        answers.searched[rows] = answers.max_size
        answers.exhausted[rows] = found.lives <= answers.max_size
        answers.evaluations[rows] = np.int64(1) << found.lives
        for i in np.flatnonzero(sizes.any(axis=1)):
            smallest = int(np.flatnonzero(sizes[i])[0])
            answers.put(int(rows[i]), found.list_sets(int(i), smallest, smallest, 1)[0], int(sizes[i, smallest]))
            if every:
                sets, total = found.list_minimal(int(i), answers.max_size, MOST_LISTED)
                answers.put_minimal(int(rows[i]), sets, complete=total <= MOST_LISTED)
        done += len(rows)
        if report is not None:
            report(done, len(answers.size))


# --- closed form, for linear models of any number of groups --------------------------------------------------


def search_linear(
    answers: Answers, lattice: LinearLattice, start: int, places: Integers, x: Floats, original: Integers
) -> None:
    """Fill the answers of rows ``start + places``; x (m, d) and original (m,) are of the block that begins there.

    With the flip inequality of rival c, E_c(S) = E_c - sum_{g in S} d_gc < 0 (`engines.lattice.additive`), no set of k
    groups does better against c than the k largest d_gc. So c is reached with k groups if and only if those k reach it,
    the smallest such k is found along the sorted sums, and the minimum over rivals is the smallest failing set. Groups
    of d <= 0 are in none. Sums within rounding of the edge are asked of the model; where it says no, but another set of
    that size lies within rounding too, smaller sets are not excluded and the answer is an upper bound.
    """
    total, removed, rounding = lattice.of_rows(start, start + len(x))
    total, removed, rounding = total[:, places], removed[..., places], rounding[places]
    reach = []  # of each rival: groups by falling d, E along the best sets of 1, 2, ... groups, E of the second best
    for c in range(len(total)):
        begin, steps = lattice.inequality(total, removed, original[places], c)
        order = np.argsort(-steps, axis=1, kind="stable")
        steps = np.maximum(np.take_along_axis(steps, order, axis=1), 0.0)
        best = begin[:, None] - np.cumsum(steps, axis=1)
        second = np.full_like(best, np.inf)  # the last member exchanged for the next group; the whole set has none
        second[:, :-1] = best[:, :-1] + steps[:, :-1] - steps[:, 1:]
        reach.append((order, best, second))
    for i, place in enumerate(places):
        row = start + int(place)
        answers.method[row] = CLOSED_FORM
        answers.evaluations[row] = len(reach)

        def flips(gone: Booleans, place: int = int(place), row: int = row) -> bool:
            answers.evaluations[row] += 1
            states = States.of_one(gone[None]).sparing(answers.rows.spared(row, row + 1), answers.rows.column_group)
            p = ModelOracle(answers.rows).answer_states(x[place][None], states)
            return bool(lattice.rule.flips(p, original[place : place + 1])[0])

        orders, bests, seconds = (np.stack([part[i] for part in parts]) for parts in zip(*reach, strict=True))
        _search_sorted_sums(answers, row, orders, bests, seconds, float(rounding[i]), flips)
        if not answers.exhausted[row] or answers.size[row] <= answers.max_size:
            _put_one_minimal(answers, row)


def _search_sorted_sums(
    answers: Answers,
    row: int,
    order: Integers,
    best: Floats,
    second: Floats,
    rounding: float,
    flips: Callable[[Booleans], bool],
) -> None:
    """Fill one row's answer; order, best, second (C, G): of each rival, see ``search_linear``."""
    proved, sizes, near = True, order.shape[1], best < rounding
    for size in range(1, min(sizes, answers.max_size) + 1):
        rivals = np.flatnonzero(near[:, size - 1])
        for c in rivals:
            gone = np.zeros(sizes, dtype=bool)
            gone[order[c, :size]] = True
            if best[c, size - 1] < -rounding or flips(gone):
                answers.put(row, gone)
                return
        proved &= not (second[rivals, size - 1] < rounding).any()
        if proved:
            answers.searched[row] = size
    # The values fall with the size: where the largest set is far from the edge, so is every other.
    answers.exhausted[row] = proved and (answers.max_size == sizes or not near[:, -1].any())


# --- branch and bound, for trees with more live groups than a table holds ------------------------------------


class BoundedRow:
    """The search of one row, size by size.

    A set is passed over where it cannot reach the edge: in one tree, removing group g lowers the value by at most the
    greatest leaf on x's side less the least leaf on the baseline's side, over the nodes of g where the two part; summed
    over trees this bounds what any further removal can do, whatever was removed before. Groups that cannot lower the
    value at all are in no smallest set. Where even the least leaves together do not reach the edge, no set fails. Every
    bound is in whole numbers and sound; sets near the edge are asked of the model.
    """

    def __init__(self, rows: EvidenceRows, rule: FlipRule, trees: Any, block: Block, place: int) -> None:
        self.rows, self.rule, self.trees, self.x = rows, rule, trees, block.x[place]
        original = self.original = int(block.original[place])
        self.spared = block.spared_in(place)
        self.fixed = np.empty((0, rows.width), dtype=bool) if self.spared is None else self.spared.cells
        bounded = {rival: trees.bounds(self.x, self.fixed, original, rival) for rival in rule.rivals(original)}
        self.gains: dict[int, Integers] = {
            rival: gains
            for rival, (least, gains) in bounded.items()
            if least < trees.edge(original, rival, wide=True).high
        }
        self.spent = len(bounded)

    @property
    def hopeless(self) -> bool:
        """Whether no set at all can fail."""
        return not self.gains

    def sets_of_size(self, size: int, budget: int) -> tuple[Booleans, bool, bool]:
        """Return (failing sets (k, G) in lexicographic order, whether these are all, whether the size was decided)."""
        parts: list[Integers] = []
        complete = True
        for rival, gains in self.gains.items():
            found, _, spent, done = self.trees.sets_of_size(
                self.x, self.fixed, self.original, rival, gains, size, budget - self.spent, MOST_SETS
            )
            self.spent += spent
            if not done:
                return self._keep_failing([*parts, found]), False, False
            complete &= len(found) < MOST_SETS
            parts.append(found)
        failing = self._keep_failing(parts)
        return failing, complete, complete or len(failing) > 0

    def _keep_failing(self, parts: list[Integers]) -> Booleans:
        """Ask the model which of some sets fail."""
        found = np.unique(np.concatenate(parts), axis=0)
        gone = np.zeros((len(found), self.rows.n_groups), dtype=bool)
        np.put_along_axis(gone, found, True, axis=1)
        if not len(found):
            return gone
        self.spent += len(found)
        states = States.of_one(gone).sparing(self.spared, self.rows.column_group)
        p = ModelOracle(self.rows).answer_states(self.x[None], states)
        return gone[self.rule.flips(p, self.original)]


def search_bounded(answers: Answers, row: int, search: BoundedRow, budget: int) -> None:
    """Fill one row's answer; it stays open where the budget ends first."""
    answers.method[row] = BRANCH_AND_BOUND
    able = max((int((gains > 0).sum()) for gains in search.gains.values()), default=0)
    for size in range(1, min(answers.max_size, able) + 1):
        failing, complete, decided = search.sets_of_size(size, budget)
        answers.evaluations[row] = search.spent
        if len(failing):
            answers.put(row, failing[0], len(failing) if complete else NOT_COUNTED)
            answers.put_minimal(row, failing, complete=False)
            return
        if not decided:
            return
        answers.searched[row] = size
    answers.searched[row], answers.exhausted[row] = answers.max_size, able <= answers.max_size
    answers.evaluations[row] = search.spent


# --- integer programs, for what is left of these rows --------------------------------------------------------


def solve_row(answers: Answers, row: int, programs: list[Program], flips: Callable[[Booleans], bool]) -> None:
    """Fill one row's answer; it stays an upper bound, or open, where the limits end first.

    A set that is already known stands unless there is a smaller one.
    """
    least, known = int(answers.searched[row]) + 1, int(answers.size[row])
    most, decided = min(known - 1, answers.max_size), True
    for program in programs:
        try:
            while (gone := program.find_failing(flips, np.ones(len(program.live)), least, most, {})) is not None:
                answers.put(row, program.name_groups(gone))
                most = int(gone.sum()) - 1
        except Undecided:
            decided = False
    answers.method[row] = PROGRAM
    _put_one_minimal(answers, row)
    if not decided:
        return
    answers.searched[row] = most
    answers.exhausted[row] = most == answers.max_size and answers.max_size == answers.rows.n_groups
    if answers.exhausted[row]:
        answers.put_minimal(row, answers.removed[:0], complete=True)
    if most + 1 < known and most < answers.max_size:
        _name_first(answers, row, programs, flips)


def _name_first(answers: Answers, row: int, programs: list[Program], flips: Callable[[Booleans], bool]) -> None:
    """Put the first of a row's smallest sets in lexicographic order in the place of the one that was found."""
    firsts = [answers.removed[row]]
    for program in programs:
        try:
            gone = program.find_first(flips, int(answers.size[row]))
        except Undecided:
            continue
        if gone is not None:
            firsts.append(program.name_groups(gone))
    answers.put(row, max(firsts, key=lambda gone: gone.tolist()))
    _put_one_minimal(answers, row)


def _put_one_minimal(answers: Answers, row: int) -> None:
    """Put a row's smallest set as one of its minimal sets, of which there may be more."""
    found = answers.size[row] <= answers.max_size
    answers.put_minimal(row, answers.removed[[row]] if found else answers.removed[:0], complete=False)
