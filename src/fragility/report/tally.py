"""Counts over a set of predictions, part by part, in memory that does not grow with the number of rows.

All results are counts or sums of integers, so that they do not depend on how the audit is split into parts. Quantiles
are read from histograms: of n values the ceil(q n)-th smallest, at the histogram's step.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

import fragility.report.summary as summary
from fragility.audits import Audit
from fragility.audits.flips import FlipBounds, bound_flips, find_single_losses
from fragility.audits.measures import SEARCHED, list_measures
from fragility.audits.tally import Average, Tally
from fragility.base.arrays import Booleans, Floats, Integers
from fragility.base.shares import share_of
from fragility.blocks.block import AuditBlock
from fragility.blocks.claims import indices_of
from fragility.blocks.lattice.values import LatticeDeclaration
from fragility.blocks.modes import ModesDeclaration, modes_claims_of
from fragility.report.summary import Quartiles
from fragility.scores import EPSILON

HALF = 0.5
WHOLE = 10**9  # shares of a margin are added up as whole billionths, so that no sum depends on the order of rows
SHOWN_CASES = 20
SHOWN_PAIRS = 10
COLLAPSE_STEPS = 1000  # collapse to a tenth of a percent
EXPOSURE_STEPS = 10_000
LOSS_STEPS = 1000
BINS = 20
LOSS_TOP = {"targeted": 1.0, "independent": 4.0, "random": 1.0, "common": 1.0}
PIECE_ROWS = 1 << 16
PLAIN = (
    *("id", "predicted", "confidence", "margin", "flip_budget", "flipped"),
    *("rcma", "fds", "exposure", "independent_loss", "random_loss", "common_loss", "path", "already_missing"),
)
SEARCH = ("smallest_state", "smallest_size", "smallest_set", "smallest_count")
FAILURES = ("failure_probability", "failure_low", "failure_high", "failure_exact")
COUNTED = {"flips_after_one", "flips_early", "early_on_path", "holds", "mean_confidence", "mean_exposure", "lost"}
COUNTED |= set(SEARCHED)
DETAILS = ("path_margin", "path_predicted", "path_collapse", "one_step_drop")

Counts = npt.NDArray[np.int64]
Row = dict[str, Any]


# --- reading an audit -----------------------------------------------------------------------------------------


def count_first(share: float, rows: int) -> int:
    """Return the number of rows in a share of them, rounded up: a fifth of 1,907 is 382."""
    return math.ceil(share * rows - 1e-9)


@dataclass(frozen=True, eq=False)
class Piece:
    """Some rows of an audit: n rows, K depth, P operators, G groups. Classes and groups are indices."""

    table: pa.Table
    position: Integers  # (n,) in the audit
    predicted: Integers  # (n,)
    confidence: Floats  # (n,)
    margin: Floats  # (n,)
    budget: Integers  # (n,) k*; depth + 1 if a prediction never flips
    bounds: FlipBounds  # what is known of the smallest failing sets
    losses: Floats  # (n, 4) targeted, independent, random, common; NaN if the protocol does not fade all evidence
    exposure: Floats  # (n,)
    thresholds: Floats  # (n, P) NaN if no severity flips
    path: Integers  # (n, K)
    collapse: Floats | None  # (n, K+1)
    drops: Floats | None  # (n, G)

    def __len__(self) -> int:
        return len(self.exposure)

    def take(self, selected: Booleans) -> Piece:
        """Return the chosen rows."""
        places = np.flatnonzero(selected)
        arrays: Any = {
            name: None if (array := getattr(self, name)) is None else array[places]
            for name in self.__dataclass_fields__
            if name not in ("table", "bounds")
        }
        return Piece(self.table.take(places), bounds=self.bounds.take(places), **arrays)


def read_pieces(audit: Audit) -> Iterator[Piece]:
    """Return the audit's rows, a bounded number at a time."""
    protocol, declared, start = audit.protocol, audit.manifest.find_block(LatticeDeclaration), 0
    columns = [*PLAIN, *(f"lambda_{operator}" for operator in protocol.operators)]
    columns += DETAILS if audit.manifest.claims == "full" else ()
    if declared is not None:
        columns += SEARCH + FAILURES if declared.has_failures else SEARCH
    if "modes" in audit.blocks:
        columns += audit.blocks["modes"].names
    for batch in audit.batches(columns):
        for begin in range(0, batch.num_rows, PIECE_ROWS):
            table = batch.slice(begin, PIECE_ROWS).combine_chunks()
            yield _read_piece(table, start, audit)
            start += table.num_rows


def _read_piece(table: pa.Table, start: int, audit: Audit) -> Piece:
    protocol, n = audit.protocol, table.num_rows

    def read_columns(*names: str) -> Floats:
        arrays = [_read_column(table, name) for name in names]
        return np.stack(arrays, axis=1) if arrays else np.empty((n, 0))

    def read_items(name: str) -> pa.Array:
        column = table.column(name).combine_chunks()
        return column.flatten() if n else column.values

    def read_lists(name: str, width: int) -> Floats:
        return np.asarray(read_items(name).to_numpy(zero_copy_only=False), dtype=np.float64).reshape(-1, width)

    detailed, flipped = audit.manifest.claims == "full", np.asarray(table.column("flipped").to_numpy(), dtype=bool)
    return Piece(
        table=table,
        position=start + np.arange(n),
        predicted=indices_of(table.column("predicted").combine_chunks(), audit.classes, "predicted"),
        confidence=_read_column(table, "confidence"),
        margin=_read_column(table, "margin"),
        bounds=bound_flips(table, protocol, audit.manifest.find_block(LatticeDeclaration)),
        budget=np.where(flipped, table.column("flip_budget").to_numpy(), protocol.depth + 1).astype(np.int64),
        losses=read_columns("rcma", "independent_loss", "random_loss", "common_loss"),
        exposure=_read_column(table, "exposure"),
        thresholds=read_columns(*(f"lambda_{operator}" for operator in protocol.operators)),
        path=indices_of(read_items("path"), protocol.group_names, "path").reshape(n, protocol.depth),
        collapse=read_lists("path_collapse", protocol.depth + 1) if detailed else None,
        drops=read_lists("one_step_drop", len(protocol.groups)) if detailed else None,
    )


def _read_column(table: pa.Table, name: str) -> Floats:
    return np.asarray(table.column(name).to_numpy(), dtype=np.float64)


# --- counting a set -------------------------------------------------------------------------------------------


class SetTally:
    """The running counts of one set of predictions."""

    def __init__(self, audit: Audit) -> None:
        protocol, detailed, modes = audit.protocol, audit.extent == "full", audit.blocks.get("modes")
        c, g, k = len(audit.classes), len(protocol.groups), protocol.depth
        self.protocol, self.classes, self.detailed = protocol, [str(label) for label in audit.classes], detailed
        self.ways = summary.WAYS if protocol.fading is not None else summary.WAYS[:-1]
        self.alone_exact = detailed and protocol.reading != "current"
        w = len(self.ways)
        self.rows = 0
        # The caller has selected the rows of the set, so that all of them are counted.
        measures = {name: measure for name, measure in list_measures(audit).items() if name in COUNTED}
        self.tally = Tally(audit, measures, 0.0, segments=c)
        self.budgets = np.zeros((c, k + 2), dtype=np.int64)
        self.fewest = np.zeros(g + 2, dtype=np.int64)
        self.exposures = np.zeros(EXPOSURE_STEPS + 1, dtype=np.int64)
        self.collapse = np.zeros((c if detailed else 0, k + 1, COLLAPSE_STEPS + 1), dtype=np.int64)
        self.losses = np.zeros((w, LOSS_STEPS + 1), dtype=np.int64)
        self.half = np.zeros((c, w), dtype=np.int64)
        self.patterns = np.zeros(2**w, dtype=np.int64)
        self.first_flips = np.zeros((len(protocol.operators), len(protocol.severities)), dtype=np.int64)
        self.first, self.alone, self.in_set = (np.zeros(g, dtype=np.int64) for _ in range(3))
        self.carried = [0] * g
        self.pairs: Counter[int] = Counter()
        self.sizes: Counter[int] = Counter()
        self.modes = None if modes is None else ModesTally(modes)
        self.worst: list[tuple[float, int, Row]] = []  # (minus exposure, position, row)

    def add(self, piece: Piece) -> None:
        """Count the rows of a piece."""
        if not len(piece):
            return
        self.rows += len(piece)
        self.tally.add(piece.table, piece.predicted)
        np.add.at(self.budgets, (piece.predicted, piece.budget), 1)
        self.fewest += np.bincount(piece.bounds.fewest, minlength=len(self.fewest))
        self.exposures += np.bincount(_count_steps(piece.exposure, EXPOSURE_STEPS), minlength=EXPOSURE_STEPS + 1)
        losses = piece.losses[:, : len(self.ways)]
        for way, values in enumerate(losses.T):
            steps = _count_steps(values / LOSS_TOP[self.ways[way]], LOSS_STEPS)
            self.losses[way] += np.bincount(steps, minlength=LOSS_STEPS + 1)
        half = losses >= HALF
        np.add.at(self.half, piece.predicted, half.astype(np.int64))
        self.patterns += np.bincount(half @ (1 << np.arange(len(self.ways))), minlength=len(self.patterns))
        severities = np.array(self.protocol.severities)
        for operator, values in enumerate(piece.thresholds.T):
            places = np.searchsorted(severities, values[~np.isnan(values)])
            self.first_flips[operator] += np.bincount(places, minlength=len(severities))
        if piece.collapse is not None:
            steps = _count_steps(piece.collapse, COLLAPSE_STEPS)
            np.add.at(self.collapse, (piece.predicted[:, None], np.arange(steps.shape[1])[None, :], steps), 1)
        self._add_groups(piece)
        if "smallest_size" in piece.table.column_names:
            sizes = _read_column(piece.table, "smallest_size")
            self.sizes.update(sizes[~np.isnan(sizes)].astype(np.int64).tolist())
        if self.modes is not None:
            self.modes.add(piece)
        best = np.argsort(-piece.exposure, kind="stable")[:SHOWN_CASES]
        rows = piece.table.take(best).to_pylist()
        worst = zip((-piece.exposure[best]).tolist(), piece.position[best].tolist(), rows, strict=True)
        self.worst = sorted([*self.worst, *worst], key=lambda entry: entry[:2])[:SHOWN_CASES]

    def _add_groups(self, piece: Piece) -> None:
        path, budget, g = piece.path, piece.budget, len(self.first)
        missing = piece.table.column("already_missing").combine_chunks()
        has_path = np.asarray(pc.list_value_length(missing)) < len(self.protocol.fields)  # a row of gaps has no path
        self.first += np.bincount(path[has_path, 0], minlength=g)
        if self.alone_exact and piece.drops is not None:
            flips = find_single_losses(piece.margin, piece.drops, self.protocol, len(self.classes))
            self.alone += flips.sum(axis=0)
        else:
            self.alone += np.bincount(path[budget == 1, 0], minlength=g)
        failing = (np.arange(path.shape[1]) < budget[:, None]) & (budget <= self.protocol.depth)[:, None]
        self.in_set += np.bincount(path[failing], minlength=g)
        if path.shape[1] > 1:
            two = np.sort(path[budget == 2, :2], axis=1)
            self.pairs.update((two[:, 0] * g + two[:, 1]).tolist())
        if piece.drops is not None:
            shares = np.clip(piece.drops / (np.abs(piece.margin)[:, None] + EPSILON), 0.0, 1.0)
            self.carried = [have + _sum_whole(column) for have, column in zip(self.carried, shares.T, strict=True)]

    def find_threshold(self, share: float) -> tuple[float, int]:
        """Return the exposure from which this share of the rows begins, and how many rows that is."""
        above = np.cumsum(self.exposures[::-1])[::-1]
        if self.rows == 0:
            return float("nan"), 0
        count = count_first(share, self.rows)
        return int(np.flatnonzero(above >= count)[-1]) / EXPOSURE_STEPS, count

    def summarise(self, cases: Sequence[summary.FragileCase], condition: str | None) -> summary.SetNumbers:
        """Return the counts; `cases`: the worst rows; `condition`: how evidence fails, in words."""
        flips, names, g = self.budgets.sum(axis=0), self.protocol.group_names, len(self.first)
        present = [code for code in np.argsort(-self.budgets.sum(axis=1), kind="stable") if self.budgets[code].any()]
        w = len(self.ways)
        combinations_of_ways = [
            ways for size in range(w, -1, -1) for ways in combinations(range(w), size)
        ]  # most ways first
        # Order: groups that flip most rows, then those most often first on the path, then as declared.
        order = np.lexsort((np.arange(g), -self.first, -self.in_set)).tolist()
        pairs = sorted(self.pairs.items(), key=lambda entry: (-entry[1], entry[0]))[:SHOWN_PAIRS]
        counted, lattice = self.tally, None
        if "searched" in counted.measures and self.rows:
            number = {name: counted.share(name).count for name, measure in SEARCHED.items() if measure.kind == "share"}
            lattice = summary.LatticeNumbers(
                condition=condition,
                searched=number["searched"],
                fewer=number["fewer_suffice"] + number["path_missed"],
                minimum=number["minimum"],
                none_proved=number["proved"],
                by_size=tuple(sorted(self.sizes.items())),
                none_found=number["searched"] - sum(self.sizes.values()),
                expected_lost=None if condition is None else counted.mean("lost").total,
            )
        return summary.SetNumbers(
            rows=self.rows,
            flips_at=tuple(flips[1:-1].tolist()),
            never=int(flips[-1]),
            flips_after_one=counted.share("flips_after_one"),
            flips_early=counted.share("flips_early"),
            early_on_path=counted.share("early_on_path").count,
            holds=counted.share("holds"),
            fewest=tuple(self.fewest[1:-1].tolist()),
            none_known=int(self.fewest[-1]),
            alone_exact=self.alone_exact,
            mean_confidence=_round_mean(counted.mean("mean_confidence")),
            mean_exposure=_round_mean(counted.mean("mean_exposure")),
            exposure=_read_quartiles(self.exposures, EXPOSURE_STEPS) if self.rows else None,
            collapse=_read_curve(self.collapse.sum(axis=0)) if self.rows and self.detailed else None,
            class_curves=tuple(
                summary.ClassCurve(self.classes[code], int(self.budgets[code].sum()), _read_curve(self.collapse[code]))
                for code in (present if self.detailed else ())
            ),
            losses=tuple(self._read_loss(way) for way in range(w)) if self.rows else (),
            class_losses=tuple(
                summary.ClassLosses(
                    predicted=self.classes[code],
                    rows=int(self.budgets[code].sum()),
                    flips_after_one=counted.share("flips_after_one", slice(code, code + 1)),
                    flips_early=counted.share("flips_early", slice(code, code + 1)),
                    mean_exposure=_round_mean(counted.mean("mean_exposure", slice(code, code + 1))),
                    half=tuple(self.half[code].tolist()),
                )
                for code in present
            ),
            combinations=tuple(
                summary.LossCombination(
                    tuple(self.ways[i] for i in ways), int(self.patterns[sum(1 << i for i in ways)])
                )
                for ways in combinations_of_ways
            ),
            degradations=tuple(
                summary.OperatorFlips(operator, int(counts.sum()), tuple(counts.tolist()))
                for operator, counts in zip(self.protocol.operators, self.first_flips, strict=True)
            ),
            groups=tuple(
                summary.GroupRole(
                    name=names[i],
                    first=int(self.first[i]),
                    alone=int(self.alone[i]),
                    in_set=int(self.in_set[i]),
                    carried=_divide(self.carried[i], self.rows) if self.detailed and self.rows else None,
                )
                for i in order
            ),
            pairs=tuple(summary.GroupPair(names[code // g], names[code % g], count) for code, count in pairs),
            distinct_pairs=len(self.pairs),
            lattice=lattice,
            modes=None if self.modes is None else self.modes.summarise(),
            cases=tuple(cases),
        )

    def _read_loss(self, way: int) -> summary.Loss:
        name, counts = self.ways[way], self.losses[way]
        top = LOSS_TOP[name]
        scaled = _read_quartiles(counts, LOSS_STEPS)
        quartiles = Quartiles(scaled.lower * top, scaled.median * top, scaled.upper * top)
        return summary.Loss(name, quartiles, int(self.half[:, way].sum()), top, _read_histogram(counts))


# --- counting failure modes -------------------------------------------------------------------------------------


class ModesTally:
    """The running counts of the cost of failure modes for the assessed rows of a set."""

    def __init__(self, block: AuditBlock) -> None:
        assert isinstance(block.declared, ModesDeclaration)
        self.block, self.declared, self.rows = block, block.declared, 0
        declared = block.declared
        self.exposures = {mode: np.zeros(EXPOSURE_STEPS + 1, dtype=np.int64) for mode in declared.units}
        self.flipped = dict.fromkeys(declared.units, 0)
        self.units = {mode: [(0, 0, 0)] * len(names) for mode, names in declared.units.items()}  # lost, chance, flips

    def add(self, piece: Piece) -> None:
        """Count the rows of a piece that have a modes block."""
        assessed = self.block.covered(piece.table)
        if not assessed.any():
            return
        claims = modes_claims_of(piece.table.filter(pa.array(assessed)), self.declared)
        scale = np.abs(piece.margin[assessed])[:, None] + EPSILON
        self.rows += len(scale)
        for mode in self.declared.units:
            mode_claims = claims[mode]
            steps = _count_steps(mode_claims.exposure, EXPOSURE_STEPS)
            self.exposures[mode] += np.bincount(steps, minlength=EXPOSURE_STEPS + 1)
            likely, lost = mode_claims.flip_chance > HALF, np.clip(mode_claims.drop / scale, 0.0, 1.0)
            self.flipped[mode] += int(likely.any(axis=1).sum())
            self.units[mode] = [
                (
                    before[0] + _sum_whole(lost[:, u]),
                    before[1] + _sum_whole(mode_claims.flip_chance[:, u]),
                    before[2] + flips,
                )
                for u, (before, flips) in enumerate(zip(self.units[mode], likely.sum(axis=0).tolist(), strict=True))
            ]

    def summarise(self) -> summary.ModesNumbers:
        """Return the counts."""
        modes = tuple(map(self._summarise_mode, self.declared.units)) if self.rows else ()
        return summary.ModesNumbers(self.rows, None if self.declared.rows is None else self.declared.rows.most, modes)

    def _summarise_mode(self, mode: str) -> summary.ModeNumbers:
        units = [
            summary.UnitNumbers(name, _divide(lost, self.rows), _divide(chance, self.rows), flips)
            for name, (lost, chance, flips) in zip(self.declared.units[mode], self.units[mode], strict=True)
        ]
        return summary.ModeNumbers(
            mode=mode,
            exposure=_read_quartiles(self.exposures[mode], EXPOSURE_STEPS),
            histogram=_read_histogram(self.exposures[mode]),
            flips=share_of(self.flipped[mode], self.rows),
            units=tuple(sorted(units, key=lambda unit: (-unit.flip_chance, -unit.lost))),  # then as declared
        )


# --- histograms and sums ----------------------------------------------------------------------------------------


def _count_steps(values: Floats, steps: int) -> Integers:
    """Return each value of [0, 1] as its step, rounded down; values outside are clipped.

    The small offset assigns a value that equals a step up to rounding, such as 0.3 with 10 steps, to that step.
    """
    return np.clip(np.floor(np.nan_to_num(values) * steps + 1e-6), 0, steps).astype(np.int64)


def _sum_whole(values: Floats) -> int:
    return int(np.rint(values * WHOLE).astype(np.int64).sum())


def _round_mean(average: Average) -> float:
    return round(average.value, 9)  # the last digits differ between machines


def _divide(total: int, rows: int) -> float:
    return total / WHOLE / rows if rows else float("nan")


def _read_quartiles(counts: Counts, steps: int) -> Quartiles:
    total = np.cumsum(counts)
    lower, median, upper = (int(np.searchsorted(total, np.ceil(q * total[-1]))) / steps for q in (0.25, 0.5, 0.75))
    return Quartiles(lower, median, upper)


def _read_histogram(counts: Counts) -> tuple[int, ...]:
    """Return counts by step as counts by bin; the last bin includes the top."""
    bins = np.minimum(np.arange(len(counts)) * BINS // (len(counts) - 1), BINS - 1)
    return tuple(np.bincount(bins, weights=counts, minlength=BINS).astype(np.int64).tolist())


def _read_curve(counts: Counts) -> tuple[Quartiles, ...]:
    return tuple(_read_quartiles(step, COLLAPSE_STEPS) for step in counts)
