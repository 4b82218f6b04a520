"""find_failing_sets: the exact search that fits each row, and what asking the model can do for the others."""

from __future__ import annotations

from typing import Any

import numpy as np

from fragility.arrays import DEFAULT_BYTE_BUDGET, Integers
from fragility.engines.choice import prepared
from fragility.engines.lattice.rule import FlipRule
from fragility.engines.lattice.whole import WholeLattice, linear_sums, row_blocks, whole_lattice
from fragility.errors import Advice, EngineError
from fragility.evidence import EvidenceRows, RowStates
from fragility.progress import Report, progress_bar
from fragility.protocol import Protocol, bind
from fragility.search.answers import Answers
from fragility.search.blackbox import BEAM, BY_SIZE, DEFAULT_BUDGET, DEFAULT_WIDTH, check_request, search_by_asking
from fragility.search.found import FailingSets, MinimalSets
from fragility.search.linear import search_linear
from fragility.search.trees import BoundedRow, search_bounded
from fragility.search.whole import search_lattice

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
    ids: Any = None,
    engine: str = "auto",
    byte_budget: int = DEFAULT_BYTE_BUDGET,
    progress: bool | Report | None = None,
) -> FailingSets:
    """Find the smallest set of groups whose removal flips each prediction.

    Tree ensembles and linear models are searched exactly: through the whole lattice of subsets where at most 24 groups
    matter for a row, beyond that by branch and bound (trees) or in closed form (linear models). Other models are asked:
    a beam, whose answer is then proved by size as far as the budget goes.

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
        For rows that are not read from the lattice, the most states a row may cost. Where it ends, the state says
        ``upper bound`` or ``not decided``, and ``searched_size`` up to which size every set was decided.
    width : int, default=8
        Of the beam.
    ids : sequence, optional
        One distinct id a row; by default the index of a pandas frame, else 0, 1, ...
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
    compare_searches : How far that path is from the smallest sets.
    failure_probability : How likely a failing set is.
    """
    rows = bind(model, X, protocol, ids=ids)
    limit = rows.n_groups if max_size is None else max_size
    check_request(rows, method, width, limit)
    work = _Finding(rows, protocol, Answers.blank(len(rows), rows.n_groups, limit, every), engine, byte_budget)
    with progress_bar("searching", progress) as report:
        open_rows = work.exactly(budget, report) if method != "beam" else np.arange(len(rows))
        work.by_asking(open_rows, method, width, budget, report)
    work.confirm(width, budget)
    return work.answers.finished(rows, protocol)


class _Finding:
    """One search over all rows."""

    def __init__(self, rows: EvidenceRows, protocol: Protocol, answers: Answers, engine: str, byte_budget: int) -> None:
        self.rows, self.protocol, self.answers = rows, protocol, answers
        self.engine, self.byte_budget = engine, byte_budget
        self.rule = FlipRule.of(rows, protocol)

    def exactly(self, budget: int, report: Report | None) -> Integers:
        """Search what an additive model allows; return the rows that are left."""
        lattice = whole_lattice(self.rows, self.protocol, self.engine, self.byte_budget)
        if lattice is None:
            return self._closed_form()
        undecided = []
        for block in lattice.blocks():
            search_lattice(self.answers, lattice, block, self.protocol.group_names, report)
            undecided += [self._wide_rows(lattice, block, budget), block.start + np.flatnonzero(block.doubted)]
            if report is not None:
                report(block.start + len(block.x), len(self.rows))
        return np.concatenate(undecided)

    def _closed_form(self) -> Integers:
        found = linear_sums(self.rows, self.protocol, self.engine)
        if found is None:
            return np.arange(len(self.rows))
        (sums, doubter), left = found, list[Integers]()
        for start, x, original in row_blocks(self.rows, self.rule):
            doubted = doubter(start, x, self.rows.predict(x))
            search_linear(self.answers, self.rows, sums, start, np.flatnonzero(~doubted), x, original)
            left.append(start + np.flatnonzero(doubted))
        return np.concatenate(left)

    def _wide_rows(self, lattice: WholeLattice, block: Any, budget: int) -> Integers:
        """Search the rows of a block with too many live groups for a table; return those left open."""
        wide = block.wide
        if lattice.model.name == "linear":
            sums = lattice.model.lattice
            search_linear(self.answers, self.rows, sums, block.start, wide, block.x, block.original)
            return np.zeros(0, dtype=np.int64)
        for place in wide:
            search = BoundedRow(self.rows, self.rule, lattice.model, block.x[place], int(block.original[place]))
            search_bounded(self.answers, block.start + int(place), search, budget, self.protocol.group_names)
        rows = block.start + wide
        answers = self.answers
        found = answers.size[rows] <= answers.max_size
        left = ~found & (answers.searched[rows] < answers.max_size) & ~answers.exhausted[rows]
        return np.asarray(rows[left])

    def by_asking(self, places: Integers, method: str, width: int, budget: int, report: Report | None) -> None:
        """Ask the model about the rows that are left; what branch and bound proved of them stays proved."""
        if not len(places):
            return
        answers = self.answers
        proved, spent = answers.searched[places].copy(), answers.evaluations[places].copy()
        tried = answers.method[places] != ""
        ask = prepared(self.rows.take(places.tolist()), self.engine)
        for those, how in ((~tried, method), (tried, "beam")):
            if how == method or method == "auto":  # an upper bound at least
                some = ask.take(np.flatnonzero(those).tolist())
                search_by_asking(
                    answers, some, self.protocol, places[those], how, width, budget, self.byte_budget, report
                )
        answers.searched[places] = np.maximum(answers.searched[places], proved)
        answers.evaluations[places] = np.maximum(answers.evaluations[places], spent)
        if answers.minimal is not None:
            for row in places:
                sets = answers.removed[row : row + 1][: int(answers.size[row] <= answers.max_size)]
                named = answers.name_sets(sets, self.protocol.group_names)
                answers.minimal[row] = MinimalSets(named, complete=bool(answers.exhausted[row]) and not named)

    def confirm(self, width: int, budget: int) -> None:
        """Ask the model itself about every set that is reported, for its margin; each must fail.

        A native predictor may differ from the model by rounding: what it found and the model denies is searched again.
        """
        denied = self._denied()
        asked = np.isin(self.answers.method[denied], (BEAM, BY_SIZE))
        if not asked.all():
            raise EngineError(
                "a set was found that does not flip the model itself; use ", Advice.argument("engine", "blackbox")
            )
        those = self.rows.take(denied.tolist())
        search_by_asking(self.answers, those, self.protocol, denied, "auto", width, budget, self.byte_budget, None)

    def _denied(self) -> Integers:
        """Fill in the margins of the sets found; return the rows whose set does not fail.

        A model may round by the shape of its batch: an answer it gave in another batch stands where that is all.
        """
        answers, denied = self.answers, [np.zeros(0, dtype=np.int64)]
        for start, x, original in row_blocks(self.rows, self.rule):
            rows = start + np.arange(len(x))
            hit = np.flatnonzero(answers.size[rows] <= answers.max_size)
            if len(hit):
                p = self.rows.answers(x, RowStates(hit, answers.removed[rows[hit]]))
                answers.margin[rows[hit]] = self.rule.margin(p, original[hit])
                denied.append(rows[hit][answers.margin[rows[hit]] >= ROUNDING - self.rule.resolution])
        return np.concatenate(denied)
