"""The tree engine's two rounds: the removal path of a row depends on its own one-step drops.

First x and every single removal are scored, then the path and the operators' severity grids.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable

import numpy as np
import scipy.sparse as sp

from fragility.arrays import MEBIBYTE, Floats, Integers, rows_within
from fragility.engines.states import StatesAsked
from fragility.engines.trace import Progress, Trace
from fragility.engines.trees.encoding import AVERAGE
from fragility.engines.trees.forest import Forest
from fragility.engines.trees.observed import Observed, observed
from fragility.engines.trees.plan import States, path_and_grid, plan_for, single_removals, unmoved
from fragility.engines.trees.prediction import forest_predictor
from fragility.engines.trees.readers import load_forest
from fragility.engines.trees.scoring import scorer_of
from fragility.errors import EngineError
from fragility.evidence import EvidenceRows
from fragility.models import Model
from fragility.protocol import Protocol
from fragility.scores import flip_threshold, removal_order

ENGINE = "trees"
CHUNK_ROWS = 16384  # rows whose states are held at a time, fewer where they would take more than CHUNK_BYTES
CHUNK_BYTES = 128 * MEBIBYTE
LEAST_ROWS = 512  # a block of the kernels


def refusal(rows: EvidenceRows) -> str | None:
    """Return why the engine cannot audit these rows, or None if it can."""
    if not rows.native_matrix:
        return "the trees are not handed the evidence itself but what a preprocessing makes of it"
    reason = supports(rows.model)
    if reason is None and (n_columns := forest_of(rows.model).n_columns) > rows.width:
        reason = f"its trees read {n_columns} columns, the rows have {rows.width}"
    return reason


def supports(model: Model) -> str | None:
    """Return None if the engine evaluates ``model`` exactly, else the reason why it does not."""
    try:
        forest = forest_of(model)
    except EngineError as error:
        return str(error)
    expected = "predict_proba" if forest.link == AVERAGE else "raw score, link applied in float64"
    if model.link != expected:
        return f"its probabilities come from {model.link!r}, the tree engine reproduces {expected!r}"
    if forest.n_classes != len(model.classes):
        return f"its trees give {forest.n_classes} classes, the model declares {len(model.classes)}"
    return None


def trace(rows: EvidenceRows, protocol: Protocol, progress: Progress | None = None) -> Trace:
    """Return the trace of every row."""
    forest = forest_of(rows.model)
    scorer = _Scorer(forest, rows, protocol)
    size = _chunk_size(forest, rows.width, protocol)
    parts = []
    for start in range(0, max(len(rows), 1), size):
        x = rows.dense(start, start + size)
        _ask_about_unusual_cells(x, rows)
        decided = None if rows.decided is None else rows.decided[start : start + size]
        parts.append(_trace_chunk(x, decided, scorer))
        if progress is not None:
            progress(min(start + size, len(rows)), len(rows))
    return Trace.joined(parts)


def _chunk_size(forest: Forest, width: int, protocol: Protocol) -> int:
    """Return how many rows are traced at a time: their cells, and a few copies of their states' probabilities."""
    cells = 2 * width + 4 * forest.n_classes * protocol.states_per_row
    return rows_within(CHUNK_BYTES, cells, least=LEAST_ROWS, most=CHUNK_ROWS)


def predictor(rows: EvidenceRows) -> Callable[[Floats], Floats] | None:
    """Return the forest's own probabilities of stressed rows, prepared once; None where cells are rounded first."""
    forest = forest_of(rows.model)
    if rows.cell_dtype == np.float32 and not forest.single:
        return None
    answer = forest_predictor(forest, rows.width, sparse=bool(sp.issparse(rows.matrix)))

    def predict(matrix: Floats) -> Floats:
        _ask_about_unusual_cells(matrix, rows)
        return answer(matrix)

    return predict


_FORESTS: weakref.WeakKeyDictionary[Model, Forest] = weakref.WeakKeyDictionary()


def forest_of(model: Model) -> Forest:
    """Return the model's forest, read once for each adapter."""
    forest = _FORESTS.get(model)
    if forest is None:
        forest = _FORESTS[model] = load_forest(model.head)
    return forest


def _ask_about_unusual_cells(x: Floats, rows: EvidenceRows) -> None:
    """Hand the model one row with a missing cell and one with a cell beyond float32, if there are such rows.

    Whether it takes them is the model's to say: where it refuses, its error is raised as by the black box.
    """
    with np.errstate(invalid="ignore"):
        unusual = (np.isnan(x), np.abs(x) > np.finfo(np.float32).max)
    for cells in unusual:
        holders = np.flatnonzero(cells.any(axis=1))
        if len(holders):
            rows.predict(x[holders[:1]])


class _Scorer:
    """A forest bound to the baseline and groups of an audit."""

    def __init__(self, forest: Forest, rows: EvidenceRows, protocol: Protocol) -> None:
        self.forest = forest
        self.baseline = rows.baseline
        self.offset = rows.offset
        self.asked = StatesAsked.of(protocol, rows.n_groups)
        self.score = scorer_of(forest, plan_for(forest, rows, protocol))

    def observe(self, x: Floats, rank: Integers, states: States) -> Observed:
        sums = self.score(x, np.ascontiguousarray(rank, dtype=np.int64), states)
        return observed(self.forest, sums, self.offset)

    def everything_removed(self, n: int) -> Observed:
        """Return the state at the baseline itself, which is one for all rows."""
        rank = np.zeros((1, self.asked.n_groups), dtype=np.int64)
        return self.observe(self.baseline[None, :], rank, unmoved(self.asked.n_groups)).repeat(n)


def _trace_chunk(x: Floats, decided: Integers | None, scorer: _Scorer) -> Trace:
    asked = scorer.asked
    resolution, reading = asked.resolution, asked.reading
    in_order = np.broadcast_to(np.arange(asked.n_groups), (len(x), asked.n_groups))
    first = scorer.observe(x, in_order, single_removals(asked.n_groups))
    original = first.take([0])
    predicted = original.predicted(resolution) if decided is None else decided
    margin, one_step_margin = np.split(first.margin(predicted, reading), [1])
    order = removal_order((margin - one_step_margin).T, resolution)
    rank = np.empty_like(order)
    np.put_along_axis(rank, order, in_order, axis=1)
    second = scorer.observe(x, rank, path_and_grid(asked))
    # the first step of the path is a known removal
    path = original.join(first.pick(1 + order[:, 0])).join(second.take(range(asked.depth - 1)))
    threshold, fade_margin = _thresholds(path, second, predicted, scorer)
    return Trace(
        predicted=predicted,
        confidence=original.confidence(predicted)[0],
        margin=margin[0],
        one_step_margin=np.ascontiguousarray(one_step_margin.T),
        one_step_confidence=np.ascontiguousarray(first.confidence(predicted)[1:].T),
        order=order[:, : asked.depth],
        path_margin=np.ascontiguousarray(path.margin(predicted, reading).T),
        path_predicted=np.ascontiguousarray(path.state_predicted(predicted, resolution).T),
        threshold=threshold,
        fade_margin=fade_margin,
        evaluations=len(x) * (1 + asked.n_groups + asked.depth - 1 + len(asked.grid) * len(asked.widths)),
        engine=ENGINE,
    )


def _thresholds(path: Observed, second: Observed, predicted: Integers, scorer: _Scorer) -> tuple[Floats, Floats]:
    """Return (n, P) lambda*, the smallest severity at which another class leads, and the fading margins."""
    asked, n = scorer.asked, len(predicted)
    severities = np.array(asked.severities)
    threshold, fade_margin = np.empty((n, len(asked.widths))), np.empty((n, 0))
    for j, width in enumerate(asked.widths):
        places = [asked.depth - 1 + i * len(asked.widths) + j for i in range(len(asked.grid))]
        states = second.take(places)
        if len(asked.grid) < len(asked.severities):
            states = states.join(path.take([width]) if asked.on_path(width) else scorer.everything_removed(n))
        threshold[:, j] = flip_threshold(severities, (states.support(predicted) < -asked.resolution).T)
        if j == asked.fading:
            margins = states.margin(predicted, asked.reading).T
            fade_margin = np.where(severities >= threshold[:, j, None], np.nan, margins)
    return threshold, fade_margin
