"""The tree engine: a whole certificate from a tree ensemble without materialising one stressed row.

``load_forest`` turns a fitted ensemble into one flat ``Forest``. Every split becomes a *test*: go right iff v > t,
where v is the cell as the library compares it (float32 or float64). Strict comparisons, zero-as-missing, category sets
and default directions are all brought to that form exactly:

    library              compares                      as a test
    XGBoost              left iff float32 v < t        t' = the float32 just below t
    LightGBM             left iff float64 v <= t       t' = t; NaN as 0 or to the default side; zero band; sets
    scikit-learn trees   left iff float32 v <= t       t' = t (float64)
    HistGradientBoosting left iff float64 v <= t       t' = t
    CatBoost             right iff float32 v > border  t' = border; tests shared by a whole level

Raw scores are sums of leaf values in tree order, in the library's own precision, starting from its base score; the link
(sigmoid, softmax, mean of leaf probabilities) is applied in float64, as the model adapter does.

``trace_trees`` evaluates the states of the certificate in two rounds, because the removal path of a row depends on its
own one-step drops: first x and every single removal, then the path and the operators' severity grids.
"""

from __future__ import annotations

import itertools
import json
import logging
import re
import tempfile
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from fragility.engines.trace import Progress, Trace
from fragility.errors import EngineError
from fragility.evidence import EvidenceRows
from fragility.models import Model
from fragility.protocol import Protocol, operator_width
from fragility.scores import (
    CLIP,
    Floats,
    Integers,
    Reading,
    flip_threshold,
    predicted_class,
    reading_margin,
    removal_order,
    sigmoid_probabilities,
    softmax_probabilities,
    state_prediction,
    support_margin,
)

logger = logging.getLogger(__name__)

ENGINE = "trees"
CHUNK_ROWS = 16384  # rows whose states are held at a time, fewer where they would take more than CHUNK_BYTES
CHUNK_BYTES = 256 * 2**20
DECISION_BYTES = 64 * 2**20  # a block's decision bits stay below this, else trees are walked
SPANS_PER_THREAD = 4  # several, so that a busy core does not hold up the rest
WALK_STATES = 64  # states in one walk: bits of a word

SIGMOID, SOFTMAX, AVERAGE = 0, 1, 2  # how raw scores become probabilities
NAN_RIGHT = 1  # test flag: a missing value goes right
NUMERIC, ZERO_BAND, CATEGORY, CATEGORY_INVERTED = 0, 2, 4, 6  # test flags: what is compared
KIND = 6


class Forest(NamedTuple):
    """A tree ensemble as flat arrays; T tests, N nodes in preorder (a left child follows its parent), L leaves."""

    test_column: npt.NDArray[np.int32]  # (T,) sorted
    test_threshold: Floats  # (T,) rising within a column; for a category test the number of its set
    test_flags: npt.NDArray[np.uint8]  # (T,) NAN_RIGHT | kind
    column_start: Integers  # (d+1,) first test of each column
    set_start: Integers  # (sets+1,) first word of each category set
    set_words: npt.NDArray[np.uint32]
    node_test: npt.NDArray[np.int32]  # (N,) test, or -1 - leaf
    node_right: npt.NDArray[np.int32]  # (N,) right child
    tree_start: Integers  # (trees+1,) first node of each tree
    leaf_start: Integers  # (trees+1,) first leaf of each tree
    leaf_value: npt.NDArray[Any]  # (L, V) float32 or float64; V > 1: a leaf holds a value for each output
    tree_output: npt.NDArray[np.int32]  # (trees,) first output a tree adds to
    level_test: npt.NDArray[np.int32]  # (levels,) tests of oblivious trees, lowest index bit first; else empty
    level_start: Integers  # (trees+1,) first level of each oblivious tree
    base: npt.NDArray[Any]  # (outputs,) where the sums start
    divisor: float  # sums are divided by it
    link: int  # SIGMOID, SOFTMAX or AVERAGE
    scale: float  # raw scores are multiplied by it before the link
    single: bool  # cells are compared in float32
    n_classes: int
    absent_missing: bool = False  # an entry absent from a sparse row is missing, not zero

    @property
    def n_trees(self) -> int:
        return len(self.tree_output)

    @property
    def oblivious(self) -> bool:
        return len(self.level_start) > 1


class _Nodes(NamedTuple):
    """One tree as its library stores it; node 0 is the root."""

    column: npt.NDArray[Any]
    threshold: npt.NDArray[Any]  # in the form right iff v > threshold
    left: npt.NDArray[Any]  # < 0 or self-referencing entries are never read where ``leaf`` holds
    right: npt.NDArray[Any]
    leaf: npt.NDArray[np.bool_]
    flags: npt.NDArray[np.uint8]
    value: npt.NDArray[Any]  # (nodes, V), read at leaves
    output: int = 0


class _Plan(NamedTuple):
    """What a protocol's baseline and groups mean for the tests of a forest; G groups."""

    baseline: Floats  # (d,)
    stepwise: npt.NDArray[np.uint8]  # (d,)
    column_group: npt.NDArray[np.uint32]  # (d,)
    test_group: npt.NDArray[np.uint32]  # (T,)
    test_base: npt.NDArray[np.uint8]  # (T,) 1 where the baseline goes right
    tree_group: npt.NDArray[np.uint8]  # (G, trees) 1 where a tree asks about a group
    slots: int  # nodes of the largest tree
    single: bool  # cells are compared in float32
    zero_missing: bool  # a zero cell is missing (XGBoost on sparse rows)
    monotone: bool  # a cell moving through the grid crosses a threshold at most once


class _States(NamedTuple):
    """States by place in a row's order: state q moves the groups at the places marked, by one severity."""

    severity: Floats  # (Q,)
    moved: npt.NDArray[np.uint8]  # (Q, G)


# --- the engine ---------------------------------------------------------------------------------------------


def refusal(rows: EvidenceRows) -> str | None:
    """Return why the engine cannot audit these rows, or None if it can."""
    if not rows.native_matrix:
        return "the trees are not handed the evidence itself but what a preprocessing makes of it"
    reason = supports(rows.model)
    if reason is None and len(_forest_of(rows.model).column_start) - 1 > rows.width:
        reason = f"its trees read {len(_forest_of(rows.model).column_start) - 1} columns, the rows have {rows.width}"
    return reason


def supports(model: Model) -> str | None:
    """Return None if the engine evaluates ``model`` exactly, else the reason why it does not."""
    try:
        forest = _forest_of(model)
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
    forest = _forest_of(rows.model)
    scorer = _Scorer(forest, rows, protocol)
    size = _chunk_size(forest, rows.width, protocol)
    parts = []
    for start in range(0, max(len(rows), 1), size):
        x = rows.dense(start, start + size)
        _ask_about_unusual_cells(x, rows)
        decided = None if rows.decided is None else rows.decided[start : start + size]
        parts.append(_trace_chunk(x, decided, scorer, protocol))
        if progress is not None:
            progress(min(start + size, len(rows)), len(rows))
    arrays = {
        f.name: np.concatenate([getattr(part, f.name) for part in parts])
        for f in fields(Trace)
        if f.name not in ("evaluations", "engine")
    }
    return Trace(**arrays, evaluations=sum(part.evaluations for part in parts), engine=ENGINE)


def _chunk_size(forest: Forest, width: int, protocol: Protocol) -> int:
    """Return how many rows are traced at a time: their cells, and a few copies of their states' probabilities."""
    row_bytes = 8 * (2 * width + 4 * forest.n_classes * protocol.states_per_row)
    return min(CHUNK_ROWS, max(512, CHUNK_BYTES // row_bytes))


def forest_probabilities(forest: Forest, matrix: Floats, *, sparse: bool = False) -> Floats:
    """Return (m, C) probabilities of any rows; ``sparse``: the model would be handed them as a sparse matrix."""
    return forest_predictor(forest, matrix.shape[1], sparse=sparse)(matrix)


def forest_predictor(forest: Forest, n_columns: int, *, sparse: bool = False) -> Callable[[Floats], Floats]:
    """Return ``forest_probabilities`` as a function to be called many times: the trees are prepared once."""
    score = _row_scorer(forest, n_columns, sparse)
    return lambda matrix: _probabilities(forest, score(matrix))


def raw_scores(forest: Forest, matrix: Floats, *, sparse: bool = False) -> npt.NDArray[Any]:
    """Return (m, outputs) sums of leaf values, in the library's precision."""
    return _row_scorer(forest, matrix.shape[1], sparse)(matrix).T


def _row_scorer(forest: Forest, n_columns: int, sparse: bool) -> Callable[[Floats], npt.NDArray[Any]]:
    """Return the function matrix (m, d) -> sums (outputs, m) of rows as they stand."""
    score = _compiled(forest, _plain_plan(forest, n_columns, sparse))
    unmoved = _States(np.zeros(1), np.zeros((1, 1), dtype=np.uint8))

    def sums(matrix: Floats) -> npt.NDArray[Any]:
        rows = np.ascontiguousarray(matrix, dtype=np.float64)
        out = [np.empty((len(forest.base), 0), dtype=forest.leaf_value.dtype)]
        for start in range(0, len(rows), CHUNK_ROWS):
            part = rows[start : start + CHUNK_ROWS]
            out.append(score(part, np.zeros((len(part), 1), dtype=np.int64), unmoved)[0])
        return np.concatenate(out, axis=1)

    return sums


_FORESTS: weakref.WeakKeyDictionary[Model, Forest] = weakref.WeakKeyDictionary()


def _forest_of(model: Model) -> Forest:
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


def _trace_chunk(x: Floats, decided: Integers | None, scorer: _Scorer, protocol: Protocol) -> Trace:
    n, n_groups = len(x), scorer.n_groups
    resolution, reading = protocol.resolution, protocol.reading
    in_order = np.broadcast_to(np.arange(n_groups), (n, n_groups))
    first = scorer.observe(x, in_order, _single_removals(n_groups))
    predicted = first.take([0]).predicted(resolution) if decided is None else decided
    margin, one_step_margin = np.split(first.margin(predicted, reading), [1])
    order = removal_order((margin - one_step_margin).T, resolution)
    rank = np.empty_like(order)
    np.put_along_axis(rank, order, in_order, axis=1)
    steps = first.take([0]).join(first.pick(1 + order[:, 0]))  # the first step of the path is a known removal
    grid = _grid(protocol, n_groups)
    second = scorer.observe(x, rank, _path_and_grid(protocol, n_groups, grid))
    path = steps.join(second.take(range(protocol.depth - 1)))
    return Trace(
        predicted=predicted,
        confidence=first.take([0]).confidence(predicted)[0],
        margin=margin[0],
        one_step_margin=np.ascontiguousarray(one_step_margin.T),
        one_step_confidence=np.ascontiguousarray(first.confidence(predicted)[1:].T),
        order=order[:, : protocol.depth],
        path_margin=np.ascontiguousarray(path.margin(predicted, reading).T),
        path_predicted=np.ascontiguousarray(path.state_predicted(predicted, resolution).T),
        threshold=_thresholds(path, second, predicted, scorer, protocol),
        evaluations=n * (1 + n_groups + protocol.depth - 1 + len(grid) * len(protocol.operators)),
        engine=ENGINE,
    )


def _single_removals(n_groups: int) -> _States:
    """x itself, then every group removed alone."""
    severity = np.ones(1 + n_groups)
    severity[0] = 0.0
    return _States(severity, np.eye(1 + n_groups, n_groups, -1, dtype=np.uint8))


def _grid(protocol: Protocol, n_groups: int) -> list[float]:
    """Return the severities to evaluate: full attenuation is a removal, known unless it is wider than the path."""
    known = all(_width_known(width, protocol, n_groups) for width in _widths(protocol, n_groups))
    return [s for s in protocol.severities if s < 1.0 or not known]


def _widths(protocol: Protocol, n_groups: int) -> list[int]:
    return [operator_width(operator, n_groups) for operator in protocol.operators]


def _width_known(width: int, protocol: Protocol, n_groups: int) -> bool:
    return width <= protocol.depth or width == n_groups


def _path_and_grid(protocol: Protocol, n_groups: int, grid: list[float]) -> _States:
    """Removal of the first 2..K groups, then each severity of each operator."""
    places = np.arange(n_groups)
    widths = _widths(protocol, n_groups)
    moved = [places < k for k in range(2, protocol.depth + 1)] + [places < width for _ in grid for width in widths]
    severity = [1.0] * (protocol.depth - 1) + [s for s in grid for _ in widths]
    return _States(np.array(severity), np.array(moved, dtype=np.uint8).reshape(len(severity), n_groups))


def _thresholds(path: _Observed, second: _Observed, predicted: Integers, scorer: _Scorer, protocol: Protocol) -> Floats:
    """Return (n, P) lambda*: the smallest severity at which another class beats the original."""
    grid = _grid(protocol, scorer.n_groups)
    widths = _widths(protocol, scorer.n_groups)
    threshold = np.empty((len(predicted), len(widths)))
    for j, width in enumerate(widths):
        places = [protocol.depth - 1 + i * len(widths) + j for i in range(len(grid))]
        flips = second.take(places).support(predicted) < -protocol.resolution
        if len(grid) < len(protocol.severities):
            full = path.take([width]) if width <= protocol.depth else scorer.everything_removed(len(predicted))
            flips = np.concatenate([flips, full.support(predicted) < -protocol.resolution])
        threshold[:, j] = flip_threshold(np.array(protocol.severities), flips.T)
    return threshold


class _Observed:
    """Probabilities of the states of a chunk; every result is (states, n)."""

    def __init__(self, p: Floats, offset: Floats | None) -> None:
        self.p = p  # (Q, n, C)
        self.offset = offset  # (C,) of the declared decision

    def take(self, states: Sequence[int] | range) -> _Observed:
        return _Observed(self.p[list(states)], self.offset)

    def pick(self, state: Integers) -> _Observed:
        """Return one state, chosen for each row."""
        return _Observed(self.p[state, np.arange(len(state))][None], self.offset)

    def join(self, later: _Observed) -> _Observed:
        return _Observed(np.concatenate([self.p, later.p]), self.offset)

    def predicted(self, resolution: float) -> Integers:
        return predicted_class(self.p[0], resolution, self.offset)

    def support(self, original: Integers) -> Floats:
        return support_margin(self.p, original, self.offset)

    def margin(self, original: Integers, reading: Reading) -> Floats:
        return reading_margin(self.p, original, reading, self.offset)

    def state_predicted(self, original: Integers, resolution: float) -> Integers:
        return state_prediction(self.p, original, resolution, self.offset)

    def confidence(self, original: Integers) -> Floats:
        return np.take_along_axis(self.p, np.broadcast_to(original, self.p.shape[:2])[..., None], axis=2)[..., 0]


class _ObservedScores(_Observed):
    """The same for a binary logistic score s, without a detour through probabilities.

    log p1 - log p0 = s exactly, so the margins are s itself where neither probability is clipped.
    """

    UNCLIPPED = 27.0  # below log(1 / CLIP)

    def __init__(self, s: Floats, offset: Floats | None) -> None:
        self.s = s  # (Q, n)
        self.offset = offset  # (2,) of the declared decision

    def take(self, states: Sequence[int] | range) -> _ObservedScores:
        return _ObservedScores(self.s[list(states)], self.offset)

    def pick(self, state: Integers) -> _ObservedScores:
        return _ObservedScores(self.s[state, np.arange(len(state))][None], self.offset)

    def join(self, later: _Observed) -> _ObservedScores:
        assert isinstance(later, _ObservedScores)
        return _ObservedScores(np.concatenate([self.s, later.s]), self.offset)

    def _difference(self) -> Floats:
        extreme = np.abs(self.s) > self.UNCLIPPED
        difference = self.s
        if extreme.any():
            difference = self.s.copy()
            log_p = np.log(np.maximum(sigmoid_probabilities(self.s[extreme]), CLIP))
            difference[extreme] = log_p[:, 1] - log_p[:, 0]
        return difference if self.offset is None else difference + (self.offset[1] - self.offset[0])

    def predicted(self, resolution: float) -> Integers:
        return np.asarray(self._difference()[0] > resolution, dtype=np.int64)

    def support(self, original: Integers) -> Floats:
        return self._difference() * np.where(original == 1, 1.0, -1.0)

    def margin(self, original: Integers, reading: Reading) -> Floats:
        return np.abs(self._difference()) if reading == "current" else self.support(original)

    def state_predicted(self, original: Integers, resolution: float) -> Integers:
        return np.asarray(np.where(self.support(original) >= -resolution, original, 1 - original))

    def confidence(self, original: Integers) -> Floats:
        with np.errstate(over="ignore"):
            return np.asarray(1.0 / (1.0 + np.exp(self.s * np.where(original == 1, -1.0, 1.0))))


def _probabilities(forest: Forest, sums: npt.NDArray[Any]) -> Floats:
    """Return (..., n, C) probabilities of raw sums (..., outputs, n): the forest's link in float64."""
    scores = np.moveaxis(sums, -2, -1).astype(np.float64) / forest.divisor * forest.scale
    if forest.link == SIGMOID:
        return sigmoid_probabilities(scores[..., 0])
    return softmax_probabilities(scores) if forest.link == SOFTMAX else scores


Score = Callable[[Floats, Integers, _States], npt.NDArray[Any]]


class _Scorer:
    """A forest bound to the baseline and groups of an audit."""

    def __init__(self, forest: Forest, rows: EvidenceRows, protocol: Protocol) -> None:
        self.forest = forest
        self.n_groups = rows.n_groups
        self.baseline = rows.baseline
        self.offset = rows.offset
        self.score = _compiled(forest, _plan(forest, rows, protocol))

    def observe(self, x: Floats, rank: Integers, states: _States) -> _Observed:
        sums = self.score(x, np.ascontiguousarray(rank, dtype=np.int64), states)
        if self.forest.link == SIGMOID:
            scores = sums[:, 0].astype(np.float64)
            return _ObservedScores(scores / self.forest.divisor * self.forest.scale, self.offset)
        return _Observed(_probabilities(self.forest, sums), self.offset)

    def everything_removed(self, n: int) -> _Observed:
        """Return the state at the baseline itself, which is one for all rows."""
        states = _States(np.zeros(1), np.zeros((1, self.n_groups), dtype=np.uint8))
        one = self.observe(self.baseline[None, :], np.zeros((1, self.n_groups), dtype=np.int64), states)
        if isinstance(one, _ObservedScores):
            return _ObservedScores(np.repeat(one.s, n, axis=1), self.offset)
        return _Observed(np.repeat(one.p, n, axis=1), self.offset)


def _plan(forest: Forest, rows: EvidenceRows, protocol: Protocol) -> _Plan:
    from fragility.engines.tree_kernels import baseline_ways

    single = forest.single or rows.cell_dtype == np.float32
    zero_missing = bool(sp.issparse(rows.matrix)) and forest.absent_missing
    group = rows.column_group.astype(np.uint32)
    below_full = [s for s in protocol.severities if s < 1.0]
    return _Plan(
        baseline=rows.baseline,
        stepwise=rows.stepwise.astype(np.uint8),
        column_group=group,
        test_group=group[forest.test_column],
        test_base=baseline_ways(forest, rows.baseline, single, zero_missing),
        tree_group=_tree_groups(forest, group, rows.n_groups),
        slots=_largest_tree(forest),
        single=single,
        zero_missing=zero_missing,
        # x + s (b - x) moves one way; only within rounding of s = 1 can it pass the baseline itself
        monotone=not zero_missing and max(below_full, default=0.0) <= 0.999,
    )


def _plain_plan(forest: Forest, n_columns: int, sparse: bool) -> _Plan:
    """Return the plan of rows that are not stressed: one group that no state moves."""
    return _Plan(
        baseline=np.zeros(n_columns),
        stepwise=np.zeros(n_columns, dtype=np.uint8),
        column_group=np.zeros(n_columns, dtype=np.uint32),
        test_group=np.zeros(len(forest.test_column), dtype=np.uint32),
        test_base=np.zeros(len(forest.test_column), dtype=np.uint8),
        tree_group=np.zeros((1, forest.n_trees), dtype=np.uint8),
        slots=_largest_tree(forest),
        single=forest.single,
        zero_missing=sparse and forest.absent_missing,
        monotone=False,
    )


def _tree_groups(forest: Forest, group: npt.NDArray[np.uint32], n_groups: int) -> npt.NDArray[np.uint8]:
    tests, starts = (
        (forest.level_test, forest.level_start) if forest.oblivious else (forest.node_test, forest.tree_start)
    )
    tree = np.repeat(np.arange(forest.n_trees), np.diff(starts))
    asked = np.zeros((n_groups, forest.n_trees), dtype=np.uint8)
    asked[group[forest.test_column[tests[tests >= 0]]], tree[tests >= 0]] = 1
    return asked


def _largest_tree(forest: Forest) -> int:
    return max(int(np.diff(forest.tree_start).max()), 1)


def _compiled(forest: Forest, plan: _Plan) -> Score:
    """Return the scoring function of a forest: bit planes for small and oblivious trees, walks for deep ones."""
    from fragility.engines import tree_kernels as kernels

    if not (kernels.score_states.signatures or kernels.walk_states.signatures):
        logger.info("loading the tree kernels; the first use on a machine compiles them, which takes some seconds")
    small = int(np.diff(forest.leaf_start).max()) <= kernels.MAX_LEAVES or forest.oblivious
    if small and 3 * len(forest.test_column) * 8 * kernels.WORDS <= DECISION_BYTES:
        return _bit_planes(forest, plan)
    return _walks(forest, plan)


def _bit_planes(forest: Forest, plan: _Plan) -> Score:
    from fragility.engines.tree_kernels import BLOCK, build_networks, score_states

    leaf_columns = np.ascontiguousarray(forest.leaf_value.T)  # (V, L): one output's values side by side
    networks = (*build_networks(forest.node_test, forest.node_right, forest.tree_start), leaf_columns)

    def score(x: Floats, rank: Integers, states: _States) -> npt.NDArray[Any]:
        scores = _blank_scores(forest, states, len(x))
        _share(len(x), BLOCK, lambda span: score_states(forest, networks, plan, x, rank, tuple(states), span, scores))
        return scores

    return score


def _walks(forest: Forest, plan: _Plan) -> Score:
    from fragility.engines.tree_kernels import WALK_BLOCK, walk_states

    walk = _node_records(forest, plan)

    def score(x: Floats, rank: Integers, states: _States) -> npt.NDArray[Any]:
        scores = _blank_scores(forest, states, len(x))
        for start in range(0, len(scores), WALK_STATES):
            some = slice(start, start + WALK_STATES)
            levels = _state_levels(_States(states.severity[some], states.moved[some]))
            part = scores[some]
            _share(len(x), WALK_BLOCK, lambda span: walk_states(forest, plan, walk, x, rank, levels, span, part))  # noqa: B023
        return scores

    return score


def _node_records(forest: Forest, plan: _Plan) -> tuple[npt.NDArray[Any], npt.NDArray[Any], int]:
    """Return (nodes, an empty array of the thresholds' type, bits of a column number): the forest packed for a walk.

    A node is its threshold and ``meta``: -1 - leaf, or (steps to the right child) << (4 + bits) | column << 4 |
    (baseline goes right) << 3 | test flags. Where cells are compared in float32, the threshold may be rounded down to
    float32, since v > t exactly if v exceeds the largest float32 that is <= t. Eight bytes a node instead of sixteen
    make the walk nearly twice as fast: it waits for memory most of the time.
    """
    inner = forest.node_test >= 0
    test = forest.node_test[inner]
    bits = max(len(plan.baseline) - 1, 1).bit_length()
    steps = (forest.node_right - np.arange(len(inner), dtype=np.int64))[inner]
    meta = -1 - np.cumsum(~inner) + 1  # leaves are numbered in order
    way = plan.test_base[test].astype(np.int64)
    column = forest.test_column[test].astype(np.int64)
    meta[inner] = steps << (4 + bits) | column << 4 | way << 3 | forest.test_flags[test]
    small = plan.single and meta.min() >= -(2**31) and meta.max() < 2**31
    precision, whole = (np.float32, np.int32) if small else (np.float64, np.int64)
    nodes = np.zeros(len(inner), dtype=[("threshold", precision), ("meta", whole)])
    nodes["threshold"][inner] = _rounded_down(forest.test_threshold, precision)[test]
    nodes["meta"] = meta
    return nodes, np.empty(0, dtype=precision), bits


def _rounded_down(values: Floats, precision: Any) -> npt.NDArray[Any]:
    rounded = values.astype(precision)
    return np.where(rounded > values, np.nextafter(rounded, precision(-np.inf)), rounded)


def _blank_scores(forest: Forest, states: _States, n: int) -> npt.NDArray[Any]:
    return np.empty((len(states.severity), len(forest.base), n), dtype=forest.leaf_value.dtype)


def _share(n: int, block: int, run: Callable[[tuple[int, int]], None]) -> None:
    """Run the rows in spans of whole blocks on all threads; what a row gets does not depend on its span."""
    from fragility.engines.tree_kernels import THREADS

    blocks = max(-(-n // block), 1)
    spans = min(blocks, SPANS_PER_THREAD * THREADS)
    bounds = [min(n, block * (blocks * i // spans)) for i in range(spans)] + [n]
    if THREADS == 1 or spans == 1:
        run((0, n))
        return
    with ThreadPoolExecutor(THREADS) as threads:
        list(threads.map(run, itertools.pairwise(bounds)))


def _state_levels(states: _States) -> tuple[Floats, npt.NDArray[np.uint64]]:
    """Return (severities (S,) below 1, at_least (G, S+1)): by place, the states that move it so far or farther."""
    bit = np.uint64(1) << np.arange(len(states.severity), dtype=np.uint64)
    severities = np.unique(states.severity[(states.severity > 0.0) & (states.severity < 1.0)])
    moved = np.where(states.moved.astype(bool), bit[:, None], np.uint64(0))  # (Q, G)
    at_least = [np.bitwise_or.reduce(moved[states.severity >= s], axis=0) for s in [*severities, 1.0]]
    return severities, np.ascontiguousarray(np.transpose(at_least).astype(np.uint64))


# --- reading ensembles --------------------------------------------------------------------------------------


def load_forest(head: Any) -> Forest:
    """Return the fitted ensemble ``head`` as flat arrays; refuse with a reason what cannot be evaluated exactly."""
    name = f"{type(head).__module__.split('.')[0]}.{type(head).__name__}"
    reader = _READERS.get(name)
    if reader is None:
        raise EngineError(f"the tree engine does not know {name}")
    return reader(head)


# --- XGBoost ------------------------------------------------------------------------------------------------


def _read_xgboost_classifier(head: Any) -> Forest:
    if not np.isnan(head.missing):
        raise EngineError(f"XGBoost takes {head.missing!r} for missing instead of NaN")
    booster = head.get_booster()
    try:
        last = int(booster.best_iteration) + 1
    except AttributeError:  # fitted without early stopping
        last = None
    return _read_xgboost(booster, last)


def _read_xgboost_booster(booster: Any) -> Forest:
    best = booster.attr("best_iteration")
    return _read_xgboost(booster, None if best is None else int(best) + 1)


def _read_xgboost(booster: Any, last: int | None) -> Forest:
    learner = json.loads(booster.save_raw("json"))["learner"]
    objective = learner["objective"]["name"]
    if objective not in ("binary:logistic", "reg:logistic", "multi:softprob", "multi:softmax"):
        raise EngineError(f"XGBoost objective {objective} has no link the tree engine knows")
    boosted = learner["gradient_booster"]
    if boosted["name"] != "gbtree":
        raise EngineError(f"XGBoost booster {boosted['name']} is not a plain sum of trees")
    model = boosted["model"]
    if model.get("cats", {}).get("enc"):
        raise EngineError("XGBoost re-codes the categories of a data frame, which the tree engine does not")
    n_classes = max(int(learner["learner_model_param"]["num_class"]), 1)
    if int(learner["learner_model_param"].get("num_target", 1)) > max(n_classes, 1):
        raise EngineError("XGBoost model with several targets")
    end = model["iteration_indptr"][last] if last is not None else len(model["trees"])
    sets: list[Sequence[int]] = []
    trees = [
        _xgboost_tree(tree, output, sets)
        for tree, output in zip(model["trees"][:end], model["tree_info"][:end], strict=True)
    ]
    return _assemble(
        trees,
        sets=sets,
        base=_xgboost_base(learner["learner_model_param"]["base_score"], n_classes),
        n_columns=int(learner["learner_model_param"]["num_feature"]),
        link=SIGMOID if n_classes == 1 else SOFTMAX,
        single=True,
        absent_missing=True,
    )


def _xgboost_base(text: str, n_outputs: int) -> npt.NDArray[np.float32]:
    """Return the margin the sums start from: a logit for binary models, as it stands for softmax."""
    score = np.atleast_1d(np.asarray(json.loads(text), dtype=np.float32))
    if n_outputs == 1:
        # float64 log rounded once gives what the library's float32 logarithm gives
        odds = np.float32(1.0) / score - np.float32(1.0)
        score = (-np.log(odds.astype(np.float64))).astype(np.float32)
    return np.ascontiguousarray(np.broadcast_to(score, n_outputs))


def _xgboost_tree(tree: dict[str, Any], output: int, sets: list[Sequence[int]]) -> _Nodes:
    if int(tree["tree_param"]["size_leaf_vector"]) > 1:
        raise EngineError("XGBoost trees with a vector in each leaf (multi_output_tree)")
    condition = np.asarray(tree["split_conditions"], dtype=np.float32)
    left = np.asarray(tree["left_children"])
    flags = np.where(np.asarray(tree["default_left"], dtype=bool), 0, NAN_RIGHT).astype(np.uint8)
    threshold = np.nextafter(condition, np.float32(-np.inf)).astype(np.float64)
    for node, start, size in zip(
        tree["categories_nodes"], tree["categories_segments"], tree["categories_sizes"], strict=True
    ):
        flags[node] |= CATEGORY  # the listed categories go right
        threshold[node] = len(sets)
        sets.append(tree["categories"][start : start + size])
    return _Nodes(
        np.asarray(tree["split_indices"]),
        threshold,
        left,
        np.asarray(tree["right_children"]),
        left < 0,
        flags,
        condition[:, None],
        output,
    )


# --- LightGBM -----------------------------------------------------------------------------------------------


def _read_lightgbm_classifier(head: Any) -> Forest:
    return _read_lightgbm(head.booster_)


def _read_lightgbm(booster: Any) -> Forest:
    if booster.pandas_categorical:
        raise EngineError("LightGBM re-codes the categories of a data frame, which the tree engine does not")
    header, *blocks = re.split(r"^Tree=\d+\n", booster.model_to_string(), flags=re.MULTILINE)
    settings = _settings(header)
    words = settings.get("objective", "").split()
    if not words or words[0] not in ("binary", "multiclass"):
        name = settings.get("objective", "custom")
        raise EngineError(f"LightGBM objective {name!r} has no link the tree engine knows")
    if re.search(r"^average_output$", header, flags=re.MULTILINE):
        raise EngineError("LightGBM boosting type rf averages probabilities, not scores")
    per_iteration = int(settings["num_tree_per_iteration"])
    sets: list[Sequence[int]] = []
    trees = [_lightgbm_tree(_settings(block), t % per_iteration, sets) for t, block in enumerate(blocks)]
    return _assemble(
        trees,
        sets=sets,
        base=np.zeros(per_iteration),
        n_columns=int(settings["max_feature_idx"]) + 1,
        link=SIGMOID if per_iteration == 1 else SOFTMAX,
        scale=float(next((w.split(":")[1] for w in words if w.startswith("sigmoid:")), 1.0)),
    )


def _settings(block: str) -> dict[str, str]:
    lines = block.split("\n\n")[0].split("\n") if not block.startswith("tree") else block.split("\n")
    return dict(line.split("=", 1) for line in lines if "=" in line)


def _lightgbm_tree(block: dict[str, str], output: int, sets: list[Sequence[int]]) -> _Nodes:
    if block.get("is_linear", "0") != "0":
        raise EngineError("LightGBM trees with linear models in their leaves (linear_tree)")
    n_leaves = int(block["num_leaves"])
    value = np.array(block["leaf_value"].split(), dtype=np.float64)[:, None]
    inner = n_leaves - 1
    if inner == 0:
        return _single_leaf(value, output)
    threshold = np.array(block["threshold"].split(), dtype=np.float64)
    decision = np.array(block["decision_type"].split(), dtype=np.int64)
    flags, threshold = _lightgbm_tests(decision, threshold, _lightgbm_sets(block), sets)
    children = [np.array(block[side].split(), dtype=np.int64) for side in ("left_child", "right_child")]
    left, right = (np.where(child < 0, inner + ~child, child) for child in children)
    pad = np.zeros(n_leaves, dtype=np.int64)
    return _Nodes(
        np.concatenate([np.array(block["split_feature"].split(), dtype=np.int64), pad]),
        np.concatenate([threshold, pad]),
        np.concatenate([left, pad]),
        np.concatenate([right, pad]),
        np.arange(inner + n_leaves) >= inner,
        np.concatenate([flags, pad]).astype(np.uint8),
        np.concatenate([np.zeros((inner, 1)), value]),
        output,
    )


def _lightgbm_tests(
    decision: Integers, threshold: Floats, own_sets: list[list[int]], sets: list[Sequence[int]]
) -> tuple[Integers, Floats]:
    """Return (flags, thresholds) of LightGBM's decision types: bit 0 category, bit 1 default left, bits 2-3 missing."""
    category = (decision & 1) == 1
    default_right = (decision & 2) == 0
    missing = (decision >> 2) & 3  # 0: NaN counts as 0; 1: zero and NaN go to the default side; 2: NaN does
    nan_right = np.where(missing == 0, threshold < 0.0, default_right)  # 0 > t
    flags = np.where(nan_right, NAN_RIGHT, 0) | np.where(missing == 1, ZERO_BAND, NUMERIC)
    threshold = threshold.copy()
    for node in np.flatnonzero(category):
        flags[node] = CATEGORY_INVERTED | NAN_RIGHT  # the listed categories go left, all else right
        sets.append(own_sets[int(threshold[node])])
        threshold[node] = len(sets) - 1
    return np.asarray(flags, dtype=np.int64), threshold


def _lightgbm_sets(block: dict[str, str]) -> list[list[int]]:
    if block.get("num_cat", "0") == "0":
        return []
    bounds = [int(word) for word in block["cat_boundaries"].split()]
    words = np.array(block["cat_threshold"].split(), dtype=np.uint32)
    return [
        [int(i) for i in np.flatnonzero(np.unpackbits(words[a:b].view(np.uint8), bitorder="little"))]
        for a, b in itertools.pairwise(bounds)
    ]


def _single_leaf(value: npt.NDArray[Any], output: int) -> _Nodes:
    nothing = np.zeros(1, dtype=np.int64)
    return _Nodes(
        nothing, np.zeros(1), nothing, nothing, np.ones(1, dtype=bool), np.zeros(1, dtype=np.uint8), value[:1], output
    )


# --- scikit-learn -------------------------------------------------------------------------------------------


def _read_sklearn_forest(head: Any) -> Forest:
    return _read_sklearn(head, list(head.estimators_))


def _read_sklearn_tree(head: Any) -> Forest:
    return _read_sklearn(head, [head])


def _read_sklearn(head: Any, estimators: list[Any]) -> Forest:
    if head.n_outputs_ > 1:
        raise EngineError(f"{type(head).__name__} with {head.n_outputs_} outputs")
    trees = [_sklearn_nodes(e.tree_, e.tree_.value[:, 0, :], 0) for e in estimators]
    return _assemble(
        trees,
        base=np.zeros(int(head.n_classes_)),
        n_columns=head.n_features_in_,
        link=AVERAGE,
        divisor=len(trees),
        single=True,
    )


def _sklearn_nodes(tree: Any, value: Floats, output: int) -> _Nodes:
    leaf = tree.children_left < 0
    flags = np.where(tree.missing_go_to_left.astype(bool), 0, NAN_RIGHT).astype(np.uint8)
    return _Nodes(tree.feature, tree.threshold, tree.children_left, tree.children_right, leaf, flags, value, output)


def _read_gradient_boosting(head: Any) -> Forest:
    if head.loss != "log_loss":
        raise EngineError(f"GradientBoostingClassifier with loss {head.loss!r}")
    n_outputs = head.n_trees_per_iteration_
    trees = [
        _sklearn_nodes(e.tree_, head.learning_rate * e.tree_.value[:, 0, :], k)
        for stage in head.estimators_
        for k, e in enumerate(stage)
    ]
    return _assemble(
        trees,
        base=_gradient_boosting_base(head),
        n_columns=head.n_features_in_,
        link=SIGMOID if n_outputs == 1 else SOFTMAX,
        single=True,
    )


def _gradient_boosting_base(head: Any) -> Floats:
    """Return the constant raw score of the initial estimator; refuse one that looks at the row."""
    if head.init_ != "zero" and type(head.init_).__name__ != "DummyClassifier":
        raise EngineError(f"GradientBoostingClassifier with init={type(head.init_).__name__}")
    if head.init_ != "zero" and head.init_.strategy != "prior":
        raise EngineError(f"GradientBoostingClassifier with a {head.init_.strategy!r} initial estimator")
    # The library computes it by the same call; there is no stored attribute.
    return np.array(head._raw_predict_init(np.zeros((1, head.n_features_in_), dtype=np.float32))[0], dtype=np.float64)


def _read_hist_gradient_boosting(head: Any) -> Forest:
    if head.is_categorical_ is not None and np.any(head.is_categorical_):
        raise EngineError("HistGradientBoostingClassifier re-codes categorical features before its trees")
    n_outputs = head.n_trees_per_iteration_
    trees = [_hist_nodes(predictor.nodes, k) for stage in head._predictors for k, predictor in enumerate(stage)]
    return _assemble(
        trees,
        base=np.array(head._baseline_prediction, dtype=np.float64).reshape(-1),
        n_columns=head.n_features_in_,
        link=SIGMOID if n_outputs == 1 else SOFTMAX,
    )


def _hist_nodes(nodes: npt.NDArray[Any], output: int) -> _Nodes:
    flags = np.where(nodes["missing_go_to_left"].astype(bool), 0, NAN_RIGHT).astype(np.uint8)
    return _Nodes(
        nodes["feature_idx"],
        nodes["num_threshold"],
        nodes["left"].astype(np.int64),
        nodes["right"].astype(np.int64),
        nodes["is_leaf"].astype(bool),
        flags,
        nodes["value"].astype(np.float64)[:, None],
        output,
    )


# --- CatBoost -----------------------------------------------------------------------------------------------


def _read_catboost(head: Any) -> Forest:
    """Read CatBoost's exported JSON: oblivious trees, one test a level, leaf index bit j = test of level j."""
    loss = str(head.get_all_params().get("loss_function", "")).split(":")[0]
    if loss not in ("Logloss", "CrossEntropy", "MultiClass"):
        raise EngineError(f"CatBoost loss {loss or 'custom'!r} has no link the tree engine knows")
    document = _catboost_document(head)
    others = sorted(set(document["features_info"]) - {"float_features"})
    if any(document["features_info"][name] for name in others):
        raise EngineError(f"CatBoost model with {', '.join(others)}")
    if "oblivious_trees" not in document:
        raise EngineError("CatBoost trees that are not symmetric (grow_policy)")
    n_outputs = 1 if loss != "MultiClass" else len(document["scale_and_bias"][1])
    scale, bias = document["scale_and_bias"]
    if scale != 1:
        raise EngineError(f"CatBoost model with scale {scale}")
    return _assemble_oblivious(document, n_outputs, np.array(bias, dtype=np.float64))


def _catboost_document(head: Any) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.json"
        head.save_model(str(path), format="json")
        return dict(json.loads(path.read_text()))


def _assemble_oblivious(document: dict[str, Any], n_outputs: int, bias: Floats) -> Forest:
    features = {f["feature_index"]: f for f in document["features_info"]["float_features"]}
    trees = document["oblivious_trees"]
    splits = [split for tree in trees for split in tree["splits"]]
    other = next((s["split_type"] for s in splits if s["split_type"] != "FloatFeature"), None)
    if other is not None:
        raise EngineError(f"CatBoost model with a split of type {other}")
    column = np.array([features[s["float_feature_index"]]["flat_feature_index"] for s in splits], dtype=np.int32)
    # nan_value_treatment: AsTrue sends NaN to the side of v > border; AsFalse and AsIs (NaN > border is false) do not
    flags = np.array(
        [features[s["float_feature_index"]]["nan_value_treatment"] == "AsTrue" for s in splits], dtype=np.uint8
    )
    threshold = np.array([s["border"] for s in splits], dtype=np.float32).astype(np.float64)
    tests, level_test = _distinct_tests(column, threshold, flags)
    levels = [len(tree["splits"]) for tree in trees]
    leaves = [np.array(tree["leaf_values"], dtype=np.float64).reshape(-1, n_outputs) for tree in trees]
    n_columns = max((f["flat_feature_index"] for f in features.values()), default=-1) + 1
    nothing = np.zeros(0, dtype=np.int32)
    return Forest(
        *tests,
        column_start=_column_start(tests[0], n_columns),
        set_start=np.zeros(1, dtype=np.int64),
        set_words=np.zeros(0, dtype=np.uint32),
        node_test=nothing,
        node_right=nothing,
        tree_start=np.zeros(len(trees) + 1, dtype=np.int64),
        leaf_start=_starts([len(values) for values in leaves]),
        leaf_value=np.concatenate(leaves),
        tree_output=np.zeros(len(trees), dtype=np.int32),
        level_test=level_test,
        level_start=_starts(levels),
        base=np.zeros(n_outputs) + bias,
        divisor=1.0,
        link=SIGMOID if n_outputs == 1 else SOFTMAX,
        scale=1.0,
        single=True,
        n_classes=max(n_outputs, 2),
    )


# --- assembling ---------------------------------------------------------------------------------------------


def _assemble(
    trees: list[_Nodes],
    *,
    base: npt.NDArray[Any],
    n_columns: int,
    link: int,
    sets: Sequence[Sequence[int]] = (),
    divisor: float = 1.0,
    scale: float = 1.0,
    single: bool = False,
    absent_missing: bool = False,
) -> Forest:
    """Return the forest of ``trees``: nodes in preorder, equal splits merged into one test."""
    from fragility.engines.tree_kernels import preorder

    if not trees:
        raise EngineError("the ensemble has no trees")
    ordered = [_reordered(tree, preorder(tree.left, tree.right, tree.leaf)) for tree in trees]
    starts = _starts([len(tree.leaf) for tree in ordered])
    leaf = np.concatenate([tree.leaf for tree in ordered])
    column = np.concatenate([tree.column for tree in ordered])[~leaf].astype(np.int32)
    flags = np.concatenate([tree.flags for tree in ordered])[~leaf]
    threshold = np.concatenate([tree.threshold for tree in ordered])[~leaf].astype(np.float64)
    set_start, set_words, threshold = _pack_sets(sets, flags, threshold)
    tests, inner_test = _distinct_tests(column, threshold, flags)
    node_test = np.empty(len(leaf), dtype=np.int32)
    node_test[~leaf] = inner_test
    node_test[leaf] = -1 - np.arange(int(leaf.sum()), dtype=np.int32)
    return Forest(
        *tests,
        column_start=_column_start(tests[0], n_columns),
        set_start=set_start,
        set_words=set_words,
        node_test=node_test,
        node_right=np.concatenate([t.right + s for t, s in zip(ordered, starts, strict=False)]).astype(np.int32),
        tree_start=starts,
        leaf_start=_starts([int(tree.leaf.sum()) for tree in ordered]),
        leaf_value=np.ascontiguousarray(np.concatenate([t.value[t.leaf] for t in ordered])),
        tree_output=np.array([tree.output for tree in ordered], dtype=np.int32),
        level_test=np.zeros(0, dtype=np.int32),
        level_start=np.zeros(1, dtype=np.int64),
        base=base,
        divisor=float(divisor),
        link=link,
        scale=scale,
        single=single,
        n_classes=max(len(base), 2),
        absent_missing=absent_missing,
    )


def _reordered(tree: _Nodes, order: Integers) -> _Nodes:
    place = np.empty(len(tree.leaf), dtype=np.int64)
    place[order] = np.arange(len(order))
    right = np.where(tree.leaf, 0, tree.right)
    return _Nodes(
        tree.column[order],
        tree.threshold[order],
        place[np.where(tree.leaf, 0, tree.left)][order],
        place[right][order],
        tree.leaf[order],
        tree.flags[order],
        tree.value[order],
        tree.output,
    )


def _starts(sizes: Sequence[int]) -> Integers:
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)


def _pack_sets(
    sets: Sequence[Sequence[int]], flags: npt.NDArray[np.uint8], threshold: Floats
) -> tuple[Integers, npt.NDArray[np.uint32], Floats]:
    """Return (starts, words) of the distinct category sets and thresholds that number them."""
    distinct: dict[tuple[int, ...], int] = {}
    numbers = np.array([distinct.setdefault(tuple(sorted(s)), len(distinct)) for s in sets], dtype=np.int64)
    category = (flags & KIND) >= CATEGORY
    threshold = threshold.copy()
    if category.any():
        threshold[category] = numbers[threshold[category].astype(np.int64)]
    words = [np.zeros(max(members, default=0) // 32 + 1, dtype=np.uint32) for members in distinct]
    for row, members in zip(words, distinct, strict=True):
        for member in members:
            row[member // 32] |= np.uint32(1 << (member % 32))
    flat = np.concatenate(words) if words else np.zeros(0, dtype=np.uint32)
    return _starts([len(row) for row in words]), flat, threshold


def _distinct_tests(
    column: npt.NDArray[np.int32], threshold: Floats, flags: npt.NDArray[np.uint8]
) -> tuple[tuple[npt.NDArray[np.int32], Floats, npt.NDArray[np.uint8]], npt.NDArray[np.int32]]:
    """Return the distinct (column, threshold, flags), sorted, and the number of each split's test."""
    order = np.lexsort((flags, threshold, column))
    c, t, f = column[order], threshold[order], flags[order]
    first = np.ones(len(order), dtype=bool)
    first[1:] = (c[1:] != c[:-1]) | (t[1:] != t[:-1]) | (f[1:] != f[:-1])
    number = np.empty(len(order), dtype=np.int32)
    number[order] = np.cumsum(first) - 1
    return (c[first], t[first], f[first]), number


def _column_start(test_column: npt.NDArray[np.int32], n_columns: int) -> Integers:
    return np.searchsorted(test_column, np.arange(n_columns + 1)).astype(np.int64)


_READERS: dict[str, Callable[[Any], Forest]] = {
    "xgboost.XGBClassifier": _read_xgboost_classifier,
    "xgboost.XGBRFClassifier": _read_xgboost_classifier,
    "xgboost.Booster": _read_xgboost_booster,
    "lightgbm.LGBMClassifier": _read_lightgbm_classifier,
    "lightgbm.Booster": _read_lightgbm,
    "sklearn.DecisionTreeClassifier": _read_sklearn_tree,
    "sklearn.ExtraTreeClassifier": _read_sklearn_tree,
    "sklearn.RandomForestClassifier": _read_sklearn_forest,
    "sklearn.ExtraTreesClassifier": _read_sklearn_forest,
    "sklearn.GradientBoostingClassifier": _read_gradient_boosting,
    "sklearn.HistGradientBoostingClassifier": _read_hist_gradient_boosting,
    "catboost.CatBoostClassifier": _read_catboost,
}
