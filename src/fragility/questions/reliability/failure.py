r"""assess_reliability: the chance that a decision is lost, row by row (SPEC section 14).

P_flip(x) = sum_S prod_{g in S} r_g prod_{g not in S} (1 - r_g) 1[S flips x]
E_m(x)    = E[m(x with S removed)]                             two classes, in closed form
B_g(x)    = P(flip | g fails) - P(flip | g holds)              Birnbaum importance; r_g B_g is kept if g never fails

Groups that may also be wrong: see `modes`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fragility.base.arrays import DEFAULT_BYTE_BUDGET, Floats, Integers
from fragility.base.progress import Report, progress_bar
from fragility.engines.choice import choose_oracle
from fragility.engines.lattice.additive import FlipRule
from fragility.engines.lattice.whole import Block, WholeLattice, find_lattice, find_linear_sums, row_blocks
from fragility.engines.oracle import ModelOracle, Oracle
from fragility.evidence import EvidenceRows, Spared
from fragility.pages.wording import describe_events, describe_mode_rates, describe_rates
from fragility.protocol import Protocol, bind
from fragility.questions.modes.losses import losses_of_rows
from fragility.questions.reliability.modes import DrawnCombinations, EveryCombination, GroupFates, single_failures
from fragility.questions.reliability.outcomes import FailureProbability
from fragility.questions.reliability.rates import EventSets, ModeRates, group_rates, has_modes, mode_rates
from fragility.questions.reliability.sampling import DrawnSubsets, ask_flips, multilinear
from fragility.questions.search.blackbox import live_groups
from fragility.questions.search.finding import BoundedRow
from fragility.questions.stress.stressors import Layout, Outages

DEFAULT_DRAWS = 4096
LATTICE, BOUNDS, QUASI_RANDOM, EVENTS = "lattice", "bounds", "quasi-random", "events"
ENUMERATION = "enumeration"


def assess_reliability(
    model: Any,
    X: Any,
    protocol: Protocol,
    rates: Any,
    *,
    draws: int = DEFAULT_DRAWS,
    seed: int = 0,
    ids: Any = None,
    engine: str = "auto",
    byte_budget: int = DEFAULT_BYTE_BUDGET,
    progress: bool | Report | None = None,
) -> FailureProbability:
    """Return the probability that each decision is lost, given how often evidence fails.

    Exact for tree ensembles and linear models where at most 24 groups matter for a row, for every model where all
    subsets of a row are no more than ``draws``, and for recorded events; elsewhere by quasi-random subsets, with an
    interval.

    Parameters
    ----------
    model : estimator, pipeline, booster or Model
        The fitted classifier; whatever :meth:`Model.wrap` takes.
    X : array or table of shape (n, d)
        The raw rows, as the model takes them.
    protocol : Protocol
        Its groups, their baseline and the decision; operators and severities are not read.
    rates : float, mapping or Outages
        One probability for every group; or a mapping by group or raw field (fields of one group fail independently,
        groups left out never fail); or recorded events, taken as they co-occurred. In a mapping, ``{"lost": 0.02,
        "wrong": 0.005}`` in place of a number says how often the group is lost and how often it takes a value of the
        protocol's catalogue instead, which exclude each other.
    draws : int, default=4096
        Quasi-random subsets of a row, a power of two of at least 16; each distinct one costs one prediction.
    seed : int, default=0
        Seed of their scrambling.
    ids : sequence, optional
        One distinct id per row; by default the index of a pandas frame, else 0, 1, ...
    engine : str, default="auto"
        ``auto`` reads the model where a native engine knows it exactly; ``blackbox`` asks it for everything.
    byte_budget : int, default=256 MiB
        Bound on the states and tables held in memory at a time; it changes nothing in the result.
    progress : bool or callable, optional
        A bar on the terminal (the default if there is one), or a function (rows done, rows in all).

    Returns
    -------
    FailureProbability
        One probability per row, in the order of ``X``, and what each group has to do with it. With rates per mode
        also, and always exactly, the probability that a single failure loses the decision.

    Raises
    ------
    DataError
        A rate is not a probability or names nothing the protocol knows, or ``draws`` is no such power of two.
    ProtocolError
        Recorded events name fields that the model's evidence does not have, or a group with a rate of wrong values has
        none in the catalogue.

    See Also
    --------
    Outages.rates : Rates from recorded events.
    find_failing_sets : The smallest set that loses a decision.
    """
    rows = bind(model, X, protocol, ids=ids)
    declared = (
        mode_rates(rates, protocol, Layout.of(protocol, rows))
        if has_modes(rates)
        else declared_failures(rates, rows, protocol)
    )
    with progress_bar("failure probabilities", progress) as report:
        return failure_of_rows(rows, protocol, declared, draws, seed, engine, byte_budget, report)


def declared_failures(rates: Any, rows: EvidenceRows, protocol: Protocol) -> Floats | EventSets:
    """Return the rates of groups (G,) or the events that remove groups, as the user declares them."""
    layout = Layout.of(protocol, rows)
    if isinstance(rates, Outages):
        return EventSets.of_patterns(rates.removed_groups(layout), np.asarray(rates.counts))
    return group_rates(rates, protocol.group_names, layout)


def failure_of_rows(
    rows: EvidenceRows,
    protocol: Protocol,
    declared: Floats | EventSets | ModeRates,
    draws: int,
    seed: int,
    engine: str,
    byte_budget: int,
    report: Report | None,
) -> FailureProbability:
    """Return the probabilities of bound rows."""
    work = _Work(rows, protocol, engine, byte_budget)
    if isinstance(declared, EventSets):
        work.from_events(declared, report)
        return work.finish(None, describe_events(declared.events))
    if isinstance(declared, ModeRates):
        work.from_mode_rates(declared, draws, seed, report)
        lost, wrong = declared.lost.tolist(), declared.wrong.tolist()
        return work.finish(declared.failing, describe_mode_rates(lost, wrong, protocol.group_thing))
    work.from_rates(declared, draws, seed, report)
    return work.finish(declared, describe_rates(declared.tolist(), protocol.group_thing))


class _Work:
    """The arrays of a FailureProbability, to be filled."""

    def __init__(self, rows: EvidenceRows, protocol: Protocol, engine: str, byte_budget: int) -> None:
        n, n_groups = len(rows), rows.n_groups
        self.rows, self.protocol, self.engine, self.byte_budget = rows, protocol, engine, byte_budget
        self.rule = FlipRule.of(rows, protocol)
        self.original = np.zeros(n, dtype=np.int64)
        self.confidence = np.zeros(n)
        self.p, self.low, self.high = np.zeros(n), np.zeros(n), np.zeros(n)
        self.exact = np.zeros(n, dtype=bool)
        self.method = np.full(n, "", dtype=object)
        self.margin = np.full(n, np.nan)
        self.importance, self.kept = np.zeros((n, n_groups)), np.zeros((n, n_groups))
        self.one_failure: Floats | None = None

    def from_rates(self, rates: Floats, draws: int, seed: int, report: Report | None) -> None:
        """Fill in what groups that fail independently do to each row."""
        lattice = find_lattice(self.rows, self.protocol, self.engine, self.byte_budget)
        drawn = DrawnSubsets.of(rates, draws, seed)
        if lattice is None:
            self._sample_everyone(rates, drawn, report)
            return
        for whole in lattice.blocks():
            block = whole.among(rates > 0.0)  # groups that never fail need no place in a table
            at = slice(block.start, block.start + len(block.x))
            self._note_originals(at.start, block.x, block.original)
            done = block.start
            for found in lattice.subsets(block):
                done += len(found.place)
                if report is not None:
                    report(done, len(self.rows))
                tabulated = block.start + found.place
                self.p[tabulated], self.importance[tabulated] = found.probabilities(rates)
                self._mark_exact(tabulated, LATTICE)
                self.kept[tabulated] = rates * self.importance[tabulated]
            left_out = whole.live & ~block.live  # what such a group would do is not known
            self.importance[at][left_out] = np.nan
            self._sample_wide(lattice, block, drawn)
            expected = lattice.model.expected_margin(block.x, block.original, rates, lattice.workers(0))
            if expected is not None:
                self.margin[at] = np.where(block.doubted, np.nan, expected)
            if report is not None:
                report(at.stop, len(self.rows))

    def _sample_wide(self, lattice: WholeLattice, block: Block, drawn: DrawnSubsets) -> None:
        """Fill in rows with too many live groups: some cannot be lost at all, the others are sampled."""
        wide = block.wide
        if lattice.model.kind == "trees":
            bounded = [BoundedRow(self.rows, self.rule, lattice.model, block, int(i)).hopeless for i in wide]
            safe = np.asarray(bounded, dtype=bool)
            self._mark_exact(block.start + wide[safe], BOUNDS)
            wide = wide[~safe]
        model = ModelOracle(self.rows)
        oracle = choose_oracle(self.rows.take((block.start + wide).tolist()), self.engine) if len(wide) else model
        for some, asked in ((wide, oracle), (np.flatnonzero(block.doubted), model)):
            for i in some:
                own = block.spared_in(int(i))
                self._ask(asked, block.start + int(i), block.x[i : i + 1], own, block.original[i : i + 1], drawn)

    def _sample_everyone(self, rates: Floats, drawn: DrawnSubsets, report: Report | None) -> None:
        oracle = choose_oracle(self.rows, self.engine)
        found = find_linear_sums(self.rows, self.protocol, self.engine)
        for start, x, _, original in row_blocks(self.rows, self.rule):
            self._note_originals(start, x, original)
            if found is not None and self.rule.n_classes == 2:
                sums, linear = found
                total, removed, _ = sums.of_rows(start, start + len(x))
                score = total[1] - rates @ removed[:, 1] + self.rule.offset[1] - self.rule.offset[0]
                doubted = linear.find_doubted(start, x, self.rows.predict(x))
                self.margin[start : start + len(x)] = np.where(doubted, np.nan, np.where(original == 1, score, -score))
            for i in range(len(x)):
                own = self.rows.spared(start + i, start + i + 1)
                self._ask(oracle, start + i, x[i : i + 1], own, original[i : i + 1], drawn)
                if report is not None:
                    report(start + i + 1, len(self.rows))

    def _ask(
        self,
        oracle: Oracle,
        row: int,
        x: Floats,
        spared: Spared | None,
        original: Integers,
        drawn: DrawnSubsets,
    ) -> None:
        """Ask the model about one row, x (1, d): all its subsets if they are no more than the draws, else the draws."""
        moved = live_groups(oracle.rows, x, spared)[0]
        able = moved if 1 << int(moved.sum()) <= drawn.draws else moved & (drawn.rates > 0.0)
        if 1 << int(able.sum()) > drawn.draws:
            flips = ask_flips(oracle, self.rule, x, spared, original, drawn.removed, self.byte_budget)
            self.p[[row]], self.low[[row]], self.high[[row]] = drawn.estimates(flips)
            self.importance[[row]], self.kept[[row]] = drawn.importance(flips)
            self.method[row] = QUASI_RANDOM
            return
        live = np.flatnonzero(able)
        removed = np.zeros((1 << len(live), self.rows.n_groups), dtype=bool)
        removed[:, live] = (np.arange(len(removed))[:, None] >> np.arange(len(live))[::-1]) & 1
        flips = ask_flips(oracle, self.rule, x, spared, original, removed, self.byte_budget)[0]
        self.p[row], self.importance[row, live] = multilinear(flips, drawn.rates[live])
        self.kept[row] = drawn.rates * self.importance[row]
        self._mark_exact(np.array([row]), ENUMERATION)
        self.importance[row, moved & ~able] = np.nan

    def _mark_exact(self, at: Integers, method: str) -> None:
        self.low[at] = self.high[at] = self.p[at]
        self.exact[at], self.method[at] = True, method

    def _note_originals(self, start: int, x: Floats, original: Integers) -> None:
        at = slice(start, start + len(x))
        self.original[at] = original
        self.confidence[at] = self.rows.predict(x)[np.arange(len(x)), original]

    def from_mode_rates(self, rates: ModeRates, draws: int, seed: int, report: Report | None) -> None:
        """Fill in what groups that are lost or wrong, independently of each other, do to each row."""
        oracle = choose_oracle(self.rows, self.engine)
        modes = ["lost", "wrong"] if rates.wrong.any() else ["lost"]
        losses = losses_of_rows(oracle, self.protocol, modes, byte_budget=self.byte_budget)
        absent = None if self.rows.absent is None else self.rows.absent.groups()
        names = self.protocol.group_names
        self.one_failure = single_failures(losses, rates, names, absent).sum(axis=1)
        # for the sum with two failures or more, which are drawn for all rows alike
        single = single_failures(losses, rates, names, None)
        if not rates.wrong.any():
            self.from_rates(rates.lost, draws, seed, report)
            return
        fates = GroupFates.of(self.rows, self.protocol, rates)
        every = EveryCombination.of(fates) if fates.combinations <= draws else None
        drawn = DrawnCombinations.of(fates, draws, seed)
        for start, x, _, original in row_blocks(self.rows, self.rule):
            at = np.arange(start, start + len(x))
            self._note_originals(start, x, original)
            asked = (every or drawn).fates
            spared = self.rows.spared(start, start + len(x))
            flips = fates.ask_flips(oracle, self.rule, x, spared, original, asked, self.byte_budget)
            if every is None:
                self.p[at], self.low[at], self.high[at] = drawn.estimates(flips, single[at])
                self.importance[at], self.kept[at] = drawn.importance(flips, single[at])
                self.method[at] = QUASI_RANDOM
            else:
                self.p[at], self.importance[at] = flips @ every.weight, flips @ every.slope
                self.kept[at] = np.where(rates.failing > 0.0, rates.failing * self.importance[at], 0.0)
                self._mark_exact(at, ENUMERATION)
            if report is not None:
                report(start + len(x), len(self.rows))

    def from_events(self, events: EventSets, report: Report | None) -> None:
        """Fill in the share of recorded events that flips each row."""
        oracle = choose_oracle(self.rows, self.engine)
        self.importance[:] = np.nan
        for start, x, _, original in row_blocks(self.rows, self.rule):
            self._note_originals(start, x, original)
            for i in range(len(x)):
                at = np.array([start + i])
                one, own = slice(i, i + 1), self.rows.spared(start + i, start + i + 1)
                flips = ask_flips(oracle, self.rule, x[one], own, original[one], events.removed, self.byte_budget)
                self.p[at], self.kept[at] = events.answers(flips)
                self._mark_exact(at, EVENTS)
                if report is not None:
                    report(start + i + 1, len(self.rows))

    def finish(self, rates: Floats | None, condition: str) -> FailureProbability:
        if self.rows.absent is not None:  # what is missing in a row cannot fail
            absent = self.rows.absent.groups()
            self.importance[absent] = self.kept[absent] = 0.0
        classes = self.rows.model.classes
        return FailureProbability(
            id=np.fromiter(self.rows.ids, dtype=object, count=len(self.rows)),
            predicted=np.fromiter((classes[c] for c in self.original), dtype=object, count=len(self.rows)),
            confidence=self.confidence,
            p_flip=self.p,
            low=self.low,
            high=self.high,
            exact=self.exact,
            method=tuple(str(name) for name in self.method),
            expected_margin=self.margin,
            importance=self.importance,
            kept=self.kept,
            rates=rates,
            group_names=self.protocol.group_names,
            condition=condition,
            model_fingerprint=self.rows.model.fingerprint,
            protocol_digest=self.protocol.digest,
            one_failure=self.one_failure,
        )
