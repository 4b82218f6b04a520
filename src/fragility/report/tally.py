"""Counting: what a set of predictions adds up to, piece after piece, in memory that does not grow with rows.

Everything is a count, or a sum of whole numbers, so the cuts between pieces cannot show in any digit. Quantiles are
read from histograms: of n values the ceil(q n)-th smallest, at the histogram's step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fragility.arrays import Booleans, Floats, Integers
from fragility.certificates import Audit, LatticeDeclaration
from fragility.certificates.claims import indices_of
from fragility.intervals import share_of
from fragility.protocol import Protocol
from fragility.report.summary import (
    WAYS,
    ClassCurve,
    ClassLosses,
    Combination,
    Degradation,
    GroupRole,
    LatticeNumbers,
    Loss,
    Pair,
    Quartiles,
    SetNumbers,
)
from fragility.scores import EARLY, EPSILON, flips_within
from fragility.wording import MINIMUM, NOT_SEARCHED

HALF = 0.5
SHOWN_CASES = 20
SHOWN_PAIRS = 10
COLLAPSE_STEPS = 1000  # collapse to a tenth of a percent
EXPOSURE_STEPS = 10_000
LOSS_STEPS = 1000
LOSS_BINS = 20
LOSS_TOP = {"targeted": 1.0, "independent": 4.0, "common": 1.0}
WHOLE = 10**9  # sums are taken of billionths, as whole numbers

Counts = npt.NDArray[np.int64]
Row = dict[str, Any]


class SetTally:
    """The running counts of one set of predictions."""

    def __init__(self, protocol: Protocol, classes: Sequence[object], detailed: bool) -> None:
        c, g, k = len(classes), len(protocol.groups), protocol.depth
        self.protocol, self.classes, self.detailed = protocol, [str(label) for label in classes], detailed
        self.ways = WAYS if protocol.fading is not None else WAYS[:2]
        w = len(self.ways)
        self.rows = self.confidence = 0
        self.budgets = np.zeros((c, k + 2), dtype=np.int64)
        self.exposures = np.zeros(EXPOSURE_STEPS + 1, dtype=np.int64)
        self.exposure_sums = [0] * c
        self.collapse = np.zeros((c if detailed else 0, k + 1, COLLAPSE_STEPS + 1), dtype=np.int64)
        self.losses = np.zeros((w, LOSS_STEPS + 1), dtype=np.int64)
        self.half = np.zeros((c, w), dtype=np.int64)
        self.patterns = np.zeros(2**w, dtype=np.int64)
        self.first_flips = np.zeros((len(protocol.operators), len(protocol.severities)), dtype=np.int64)
        self.first, self.alone, self.in_set = (np.zeros(g, dtype=np.int64) for _ in range(3))
        self.carried = [0] * g
        self.pairs: Counter[int] = Counter()
        self.searched = LatticeTally()
        self.worst: list[tuple[float, int, Row]] = []  # (minus exposure, position, row)

    # --- adding -----------------------------------------------------------------------------------------

    def add(self, piece: Piece, chosen: Booleans) -> None:
        """Count the chosen rows of a piece."""
        places = np.flatnonzero(chosen)
        if len(places) == 0:
            return
        self.rows += len(places)
        self.confidence += _whole_sum(piece.confidence[places])
        predicted, exposure = piece.predicted[places], piece.exposure[places]
        np.add.at(self.budgets, (predicted, self.budget(piece)[places]), 1)
        self.exposures += np.bincount(_steps(exposure, EXPOSURE_STEPS), minlength=EXPOSURE_STEPS + 1)
        for code in np.unique(predicted):
            self.exposure_sums[code] += _whole_sum(exposure[predicted == code])
        self._add_losses(piece.losses[places][:, : len(self.ways)], predicted)
        self._add_thresholds(piece.thresholds[places])
        self._add_groups(piece, places)
        self._add_collapse(piece, places)
        self.searched.add(piece, places)
        self._add_worst(piece, places)

    def budget(self, piece: Piece) -> Integers:
        """Return k* of each row of a piece; depth + 1 where a prediction never flips."""
        return np.where(piece.flipped, piece.flip_budget, self.protocol.depth + 1)

    def _add_losses(self, losses: Floats, predicted: Integers) -> None:
        for way, values in enumerate(losses.T):
            steps = _steps(values / LOSS_TOP[self.ways[way]], LOSS_STEPS)
            self.losses[way] += np.bincount(steps, minlength=LOSS_STEPS + 1)
        half = losses >= HALF
        np.add.at(self.half, predicted, half.astype(np.int64))
        patterns = half @ (1 << np.arange(len(self.ways)))
        self.patterns += np.bincount(patterns, minlength=len(self.patterns))

    def _add_thresholds(self, thresholds: Floats) -> None:
        severities = np.array(self.protocol.severities)
        for operator, values in enumerate(thresholds.T):
            places = np.searchsorted(severities, values[~np.isnan(values)])
            self.first_flips[operator] += np.bincount(places, minlength=len(severities))

    def _add_groups(self, piece: Piece, places: Integers) -> None:
        path, budget, flipped = piece.path[places], piece.flip_budget[places], piece.flipped[places]
        g = len(self.first)
        self.first += np.bincount(path[:, 0], minlength=g)
        self.alone += np.bincount(path[flipped & (budget == 1), 0], minlength=g)
        failing = flipped[:, None] & (np.arange(path.shape[1]) < budget[:, None])
        self.in_set += np.bincount(path[failing], minlength=g)
        if path.shape[1] > 1:
            two = np.sort(path[flipped & (budget == 2), :2], axis=1)
            values, counts = np.unique(two[:, 0] * g + two[:, 1], return_counts=True)
            self.pairs.update(dict(zip(values.tolist(), counts.tolist(), strict=True)))
        if piece.drops is not None:
            shares = np.clip(piece.drops[places] / (np.abs(piece.margin[places])[:, None] + EPSILON), 0.0, 1.0)
            self.carried = [have + _whole_sum(column) for have, column in zip(self.carried, shares.T, strict=True)]

    def _add_collapse(self, piece: Piece, places: Integers) -> None:
        if piece.collapse is None:
            return
        steps = _steps(piece.collapse[places], COLLAPSE_STEPS)
        np.add.at(self.collapse, (piece.predicted[places][:, None], np.arange(steps.shape[1])[None, :], steps), 1)

    def _add_worst(self, piece: Piece, places: Integers) -> None:
        best = places[np.argsort(-piece.exposure[places], kind="stable")[:SHOWN_CASES]]
        rows = piece.table.take(best).to_pylist()
        found = [
            (-float(piece.exposure[i]), piece.start + int(i), row) for i, row in zip(best.tolist(), rows, strict=True)
        ]
        self.worst = sorted([*self.worst, *found], key=lambda entry: entry[:2])[:SHOWN_CASES]

    # --- reading ----------------------------------------------------------------------------------------

    def threshold(self, share: float) -> tuple[float, int]:
        """Return the exposure from which at least this share of the rows begins, and how many lie there."""
        above = np.cumsum(self.exposures[::-1])[::-1]
        if self.rows == 0:
            return float("nan"), 0
        step = int(np.flatnonzero(above >= np.ceil(share * self.rows))[-1])
        return step / EXPOSURE_STEPS, int(above[step])

    def numbers(self, cases: Sequence[Any], condition: str | None = None) -> SetNumbers:
        """Return what was counted; `cases` are the worst rows, already read; `condition` is how evidence fails."""
        flips = self.budgets.sum(axis=0)
        present = [code for code in np.argsort(-self.budgets.sum(axis=1), kind="stable") if self.budgets[code].any()]
        return SetNumbers(
            rows=self.rows,
            flips_at=tuple(flips[1:-1].tolist()),
            never=int(flips[-1]),
            flips_after_one=share_of(self._flips(flips, 1), self.rows),
            flips_early=share_of(self._flips(flips, EARLY), self.rows),
            mean_confidence=self._mean(self.confidence),
            mean_exposure=self._mean(sum(self.exposure_sums)),
            exposure=_quartiles(self.exposures, EXPOSURE_STEPS) if self.rows else None,
            collapse=_curve(self.collapse.sum(axis=0)) if self.rows and self.detailed else None,
            class_curves=tuple(self._class_curve(code) for code in present) if self.detailed else (),
            losses=tuple(self._loss(way) for way in range(len(self.ways))) if self.rows else (),
            class_losses=tuple(self._class_losses(code) for code in present),
            combinations=self._combinations(),
            degradations=tuple(
                Degradation(operator, int(counts.sum()), tuple(counts.tolist()))
                for operator, counts in zip(self.protocol.operators, self.first_flips, strict=True)
            ),
            groups=self._groups(),
            pairs=self._pairs(),
            distinct_pairs=len(self.pairs),
            lattice=self.searched.numbers(condition),
            cases=tuple(cases),
        )

    def _flips(self, budgets: Counts, removals: int) -> int:
        """Return how many flip within so many removals; the last entry counts those that never flip."""
        return int(budgets[flips_within(removals, np.arange(len(budgets)), self.protocol.depth)].sum())

    def _mean(self, total: int) -> float:
        return total / WHOLE / self.rows if self.rows else float("nan")

    def _class_curve(self, code: int) -> ClassCurve:
        return ClassCurve(self.classes[code], int(self.budgets[code].sum()), _curve(self.collapse[code]))

    def _loss(self, way: int) -> Loss:
        name, counts = self.ways[way], self.losses[way]
        top = LOSS_TOP[name]
        # The last bin holds what reaches the top, and everything beyond it.
        bins = np.minimum(np.arange(LOSS_STEPS + 1) * LOSS_BINS // LOSS_STEPS, LOSS_BINS - 1)
        histogram = np.bincount(bins, weights=counts, minlength=LOSS_BINS).astype(np.int64)
        scaled = _quartiles(counts, LOSS_STEPS)
        quartiles = Quartiles(scaled.lower * top, scaled.median * top, scaled.upper * top)
        return Loss(name, quartiles, int(self.half[:, way].sum()), top, tuple(histogram.tolist()))

    def _class_losses(self, code: int) -> ClassLosses:
        rows = int(self.budgets[code].sum())
        return ClassLosses(
            predicted=self.classes[code],
            rows=rows,
            flips_after_one=share_of(self._flips(self.budgets[code], 1), rows),
            flips_early=share_of(self._flips(self.budgets[code], EARLY), rows),
            mean_exposure=self.exposure_sums[code] / WHOLE / rows,
            half=tuple(self.half[code].tolist()),
        )

    def _combinations(self) -> tuple[Combination, ...]:
        """Return every combination of ways, most ways first."""
        w = len(self.ways)
        chosen = [ways for size in range(w, -1, -1) for ways in combinations(range(w), size)]
        return tuple(
            Combination(tuple(self.ways[i] for i in ways), int(self.patterns[sum(1 << i for i in ways)]))
            for ways in chosen
        )

    def _groups(self) -> tuple[GroupRole, ...]:
        """Return every group: first those that flip most, then those most often first, then as declared."""
        order = np.lexsort((np.arange(len(self.first)), -self.first, -self.in_set))
        names = self.protocol.group_names
        return tuple(
            GroupRole(
                names[i], int(self.first[i]), int(self.alone[i]), int(self.in_set[i]),
                self._mean(self.carried[i]) if self.detailed and self.rows else None,
            )
            for i in order.tolist()
        )  # fmt: skip

    def _pairs(self) -> tuple[Pair, ...]:
        names, g = self.protocol.group_names, len(self.first)
        most = sorted(self.pairs.items(), key=lambda entry: (-entry[1], entry[0]))[:SHOWN_PAIRS]
        return tuple(Pair(names[code // g], names[code % g], count) for code, count in most)


class LatticeTally:
    """What the search over all subsets found, where the audit carries it."""

    def __init__(self) -> None:
        self.seen = False
        self.searched = self.fewer = self.minimum = self.none = self.lost = 0
        self.sizes: Counter[int] = Counter()

    def add(self, piece: Piece, places: Integers) -> None:
        """Count the chosen rows of a piece."""
        if "smallest_size" not in piece.table.column_names:
            return
        self.seen = True
        table = piece.table.take(places)
        size = np.nan_to_num(np.asarray(table.column("smallest_size").to_numpy(), dtype=np.float64)).astype(np.int64)
        known, flipped = size > 0, piece.flipped[places]
        self.fewer += int((known & (~flipped | (size < piece.flip_budget[places]))).sum())
        states = table.column("smallest_state").to_pylist()
        searched = len(states) - states.count(NOT_SEARCHED)
        self.searched += searched
        self.minimum += states.count(MINIMUM)
        self.none += searched - int(known.sum())
        self.sizes.update(size[known].tolist())
        if "failure_probability" in table.column_names:
            self.lost += _whole_sum(np.asarray(table.column("failure_probability").to_numpy(), dtype=np.float64))

    def numbers(self, condition: str | None) -> LatticeNumbers | None:
        """Return what was counted; None where nothing was searched."""
        if not self.seen:
            return None
        lost = None if condition is None else self.lost / WHOLE
        sizes = tuple(sorted(self.sizes.items()))
        return LatticeNumbers(condition, self.searched, self.fewer, self.minimum, sizes, self.none, lost)


def _steps(values: Floats, steps: int) -> Integers:
    """Return each value of [0, 1] as its step, rounded down; what lies outside counts at the end it passed.

    The tiny addition keeps a value that is a step up to rounding, such as 0.3 of 10, in its own step.
    """
    return np.clip(np.floor(np.nan_to_num(values) * steps + 1e-6), 0, steps).astype(np.int64)


def _whole_sum(values: Floats) -> int:
    return int(np.rint(values * WHOLE).astype(np.int64).sum())


def _quartiles(counts: Counts, steps: int) -> Quartiles:
    total = np.cumsum(counts)
    lower, median, upper = (int(np.searchsorted(total, np.ceil(q * total[-1]))) / steps for q in (0.25, 0.5, 0.75))
    return Quartiles(lower, median, upper)


def _curve(counts: Counts) -> tuple[Quartiles, ...]:
    return tuple(_quartiles(step, COLLAPSE_STEPS) for step in counts)


PIECE_ROWS = 1 << 16
PLAIN = (
    *("id", "predicted", "confidence", "margin", "flip_budget", "flipped"),
    *("rcma", "fds", "exposure", "independent_loss", "common_loss", "path"),
)
SEARCHED = ("smallest_state", "smallest_size", "smallest_set", "smallest_count")
FAILURES = ("failure_probability", "failure_low", "failure_high", "failure_exact")
DETAILS = ("path_margin", "path_predicted", "path_collapse", "one_step_drop")


@dataclass(frozen=True, eq=False)
class Piece:
    """Some rows of an audit: n rows, K depth, P operators, G groups. Classes and groups are indices."""

    table: pa.Table
    start: int  # position of the first row
    predicted: Integers  # (n,)
    confidence: Floats  # (n,)
    margin: Floats  # (n,)
    flip_budget: Integers  # (n,)
    flipped: Booleans  # (n,)
    losses: Floats  # (n, 3) targeted, independent, common; NaN where the protocol does not fade everything
    exposure: Floats  # (n,)
    thresholds: Floats  # (n, P) NaN where no severity flips
    path: Integers  # (n, K)
    collapse: Floats | None  # (n, K+1)
    drops: Floats | None  # (n, G)

    def __len__(self) -> int:
        return len(self.exposure)


def is_detailed(audit: Audit) -> bool:
    """Whether the audit holds every step of every path, not only what follows from them."""
    return bool(audit.manifest.claims == "full")


def columns_of(audit: Audit) -> list[str]:
    """Return the columns the report reads."""
    thresholds = [f"lambda_{operator}" for operator in audit.protocol.operators]
    return [*PLAIN, *thresholds, *(DETAILS if is_detailed(audit) else ()), *_lattice_columns(audit)]


def _lattice_columns(audit: Audit) -> tuple[str, ...]:
    declared = audit.manifest.lattice
    if declared is None:
        return ()
    return SEARCHED if failure_condition(declared) is None else SEARCHED + FAILURES


def failure_condition(declared: LatticeDeclaration | None) -> str | None:
    """Return how a lattice block takes evidence to fail, in words; None where it declares no failures."""
    if declared is None:
        return None
    rates, events = declared.rates, declared.events
    if rates:
        same = len(set(rates.values())) == 1
        each = f"{next(iter(rates.values())):.2g}"
        return f"if each group fails on its own with probability {each}" if same else "at the declared rates of failure"
    return "under the recorded outages" if events else None


def pieces_of(audit: Audit, columns: Sequence[str]) -> Iterator[Piece]:
    """Return the audit's rows, a bounded number at a time."""
    start = 0
    for batch in audit.batches(columns):
        for begin in range(0, batch.num_rows, PIECE_ROWS):
            table = batch.slice(begin, PIECE_ROWS).combine_chunks()
            yield _piece(table, start, audit)
            start += table.num_rows


def _piece(table: pa.Table, start: int, audit: Audit) -> Piece:
    protocol, n = audit.protocol, table.num_rows
    ways = [_numbers(table, name) for name in ("rcma", "independent_loss", "common_loss")]
    thresholds = [_numbers(table, f"lambda_{operator}") for operator in protocol.operators]
    detailed = "path_collapse" in table.column_names
    return Piece(
        table=table,
        start=start,
        predicted=indices_of(table.column("predicted").combine_chunks(), audit.classes, "predicted"),
        confidence=_numbers(table, "confidence"),
        margin=_numbers(table, "margin"),
        flip_budget=np.asarray(table.column("flip_budget").to_numpy(), dtype=np.int64),
        flipped=np.asarray(table.column("flipped").to_numpy(), dtype=bool),
        losses=np.stack(ways, axis=1),
        exposure=_numbers(table, "exposure"),
        thresholds=np.stack(thresholds, axis=1) if thresholds else np.empty((n, 0)),
        path=indices_of(_items(table, "path"), protocol.group_names, "path").reshape(n, protocol.depth),
        collapse=_lists(table, "path_collapse", protocol.depth + 1) if detailed else None,
        drops=_lists(table, "one_step_drop", len(protocol.groups)) if detailed else None,
    )


def _numbers(table: pa.Table, name: str) -> Floats:
    return np.asarray(table.column(name).to_numpy(), dtype=np.float64)


def _items(table: pa.Table, name: str) -> pa.Array:
    column = table.column(name).combine_chunks()
    return column.flatten() if table.num_rows else column.values


def _lists(table: pa.Table, name: str, width: int) -> Floats:
    return np.asarray(_items(table, name).to_numpy(zero_copy_only=False), dtype=np.float64).reshape(-1, width)
