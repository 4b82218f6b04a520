"""The tree engine, in two rounds: the removal path of a row depends on its own one-step drops.

First x and every single removal are scored, then the path and the operators' severity grids.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from fragility.arrays import MEBIBYTE, Booleans, Floats, Integers, rows_within
from fragility.engines.kernels import compiling
from fragility.engines.kernels.decisions import BLOCK, baseline_ways
from fragility.engines.kernels.observing import observe_path_and_grid, observe_removals
from fragility.engines.kernels.planes import score_row_states
from fragility.engines.kernels.walks import WALK_BLOCK, walk_row_states
from fragility.engines.trace import Progress, StatesAsked, Trace
from fragility.engines.trees.forest import AVERAGE, KIND, NUMERIC, Forest
from fragility.engines.trees.readers import read_ensemble
from fragility.engines.trees.recoding import Ensemble, Recoding, make_recoding
from fragility.engines.trees.scoring import (
    build_gates,
    compute_probabilities,
    fits_planes,
    list_originals,
    list_path_and_grid,
    list_single_removals,
    make_plain_plan,
    make_plan,
    make_row_scorer,
    make_scorer,
    pack_nodes,
)
from fragility.errors import EngineError
from fragility.evidence import EvidenceRows, RowStates
from fragility.models import Model
from fragility.models.links import Link
from fragility.protocol import Protocol
from fragility.scores import smoothed_offset

ENGINE = "trees"
CHUNK_ROWS = 4096  # rows that a thread traces at a time, fewer where they would take more than CHUNK_BYTES
CHUNK_BYTES = 64 * MEBIBYTE
LEAST_ROWS = 512  # a block of the kernels
CHUNKS_PER_THREAD = 2  # at least, so that a busy core does not hold up the rest


# --- which models -------------------------------------------------------------------------------------------


def never_reads(rows: EvidenceRows) -> str | None:
    """Return why the engine can audit no rows of this model and protocol, or None if it may."""
    reason = supports(rows.model)
    if reason is not None:
        return reason
    n_columns = ensemble_of(rows.model).forest.n_columns
    return f"its trees read {n_columns} columns, the rows have {rows.width}" if n_columns > rows.width else None


def refusal(rows: EvidenceRows) -> str | None:
    """Return why the engine cannot audit these rows, or None if it can."""
    if not rows.native_matrix and rows.forms is None:
        return "the trees are not handed the evidence itself but what a preprocessing makes of it"
    reason = never_reads(rows)
    if reason is not None:
        return reason
    try:
        make_recoding(ensemble_of(rows.model), rows)
    except EngineError as error:
        return str(error)
    return None


def supports(model: Model) -> str | None:
    """Return None if the engine evaluates ``model`` exactly, else the reason why it does not."""
    try:
        forest = ensemble_of(model).forest
    except EngineError as error:
        return str(error)
    expected = Link.PREDICT_PROBA if forest.link == AVERAGE else Link.RAW_SCORE
    if model.head_link is not expected:
        return f"its probabilities come from {model.link!r}, the tree engine reproduces {expected.value!r}"
    if forest.n_classes != len(model.classes):
        return f"its trees give {forest.n_classes} classes, the model declares {len(model.classes)}"
    return None


_ENSEMBLES: weakref.WeakKeyDictionary[Model, Ensemble] = weakref.WeakKeyDictionary()


def ensemble_of(model: Model) -> Ensemble:
    """Return the model's trees, read once per adapter."""
    ensemble = _ENSEMBLES.get(model)
    if ensemble is None:
        ensemble = _ENSEMBLES[model] = read_ensemble(model.head)
    return ensemble


def doubts(rows: EvidenceRows) -> Callable[[Floats], Booleans]:
    """Return the function cells (m, d) -> (m,) rows that the trees may be handed otherwise than is known here."""
    ensemble = ensemble_of(rows.model)
    recoding = make_recoding(ensemble, rows)

    def doubtful(cells: Floats) -> Booleans:
        found = np.isinf(cells).any(axis=1) | recoding.find_unlisted(cells)  # moved toward a baseline, infinity is NaN
        if ensemble.least:
            size = np.abs(cells)
            found |= ((size > 0.0) & (size < ensemble.least)).any(axis=1)
        return np.asarray(found)

    return doubtful


def _try_unusual_cells(x: Floats, rows: EvidenceRows, accepted: set[str]) -> None:
    """Hand the model one row with a missing cell and one with a cell beyond float32, if there are such rows.

    Where the model refuses them, its error is raised, as by the black box. accepted: the kinds that it took before,
    which are not tried again; added to.
    """
    with np.errstate(invalid="ignore"):
        unusual = {"missing": np.isnan(x), "beyond float32": np.abs(x) > np.finfo(np.float32).max}
    for kind, cells in unusual.items():
        holders = np.flatnonzero(cells.any(axis=1)) if kind not in accepted else ()
        if len(holders):
            rows.predict(x[holders[:1]])
            accepted.add(kind)


# --- the trace ----------------------------------------------------------------------------------------------


def trace(rows: EvidenceRows, protocol: Protocol, progress: Progress | None = None) -> Trace:
    """Return the trace of every row."""
    scorer, parts, done = _Scorer(rows, protocol), list[Trace](), 0
    for part in _trace_chunks(rows, scorer, _chunk_size(rows.width, protocol, len(rows))):
        parts.append(part)
        done += len(part.predicted)
        if progress is not None:
            progress(done, len(rows))
    return Trace.join(parts)


def _chunk_size(width: int, protocol: Protocol, n_rows: int) -> int:
    """Return how many rows a thread traces at a time: their cells, and what is observed of their states."""
    cells = 2 * width + 4 * protocol.states_per_row
    shares = CHUNKS_PER_THREAD * compiling.THREADS * LEAST_ROWS
    fair = -(-n_rows // shares) * LEAST_ROWS  # whole blocks, for every thread
    return rows_within(CHUNK_BYTES, cells, least=LEAST_ROWS, most=max(LEAST_ROWS, min(CHUNK_ROWS, fair)))


def _trace_chunks(rows: EvidenceRows, scorer: _Scorer, size: int) -> Iterator[Trace]:
    """Yield the traces of chunks of rows, in order, from all threads; at most two chunks per thread are held."""
    accepted: set[str] = set()
    threads = compiling.THREADS
    with ThreadPoolExecutor(threads) as pool:
        waiting: deque[Future[Trace]] = deque()
        for start in range(0, max(len(rows), 1), size):
            x = rows.dense(start, start + size)
            _try_unusual_cells(x, rows, accepted)  # here, because the model is asked in the caller's thread
            decided = None if rows.decided is None else rows.decided[start : start + size]
            if threads == 1:
                yield scorer.trace_chunk(x, decided)
                continue
            waiting.append(pool.submit(scorer.trace_chunk, x, decided))
            if len(waiting) == 2 * threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


class Rules(NamedTuple):
    """How raw sums become margins, classes and thresholds; C classes, P operators, S severities."""

    link: int
    divisor: float
    scale: float
    offset: Floats  # (C,) of the declared decision
    shifted: bool  # some offset is not 0
    current: bool  # the reading takes the leader's margin, not the original class's
    resolution: float
    smoothing: float
    smoothed_offset: Floats  # (C,) of the declared decision, for the logarithms of smoothed probabilities
    widths: Integers  # (P,) groups that each operator degrades
    fading: int  # which operator is attenuate_all, -1: none
    severities: Floats  # (S,)
    n_grid: int  # how many of them are scored; the last, removal, may be known
    bare: npt.NDArray[Any]  # (outputs,) raw sums of the baseline itself

    @classmethod
    def of(cls, forest: Forest, asked: StatesAsked, offset: Floats | None, bare: npt.NDArray[Any]) -> Rules:
        offsets = np.zeros(forest.n_classes) if offset is None else np.asarray(offset, dtype=np.float64)
        smoothed = smoothed_offset(offset, asked.smoothing)
        return cls(
            link=forest.link,
            divisor=float(forest.divisor),
            scale=float(forest.scale),
            offset=offsets,
            shifted=bool(offsets.any()),
            current=asked.reading == "current",
            resolution=float(asked.resolution),
            smoothing=float(asked.smoothing),
            smoothed_offset=np.zeros(forest.n_classes) if smoothed is None else smoothed,
            widths=np.array(asked.widths, dtype=np.int64),
            fading=-1 if asked.fading is None else asked.fading,
            severities=np.array(asked.severities, dtype=np.float64),
            n_grid=len(asked.grid),
            bare=bare,
        )


class Blank(NamedTuple):
    """The arrays of a ``Trace`` that are read off scores; n rows, G groups, K depth, P operators."""

    predicted: Integers  # (n,)
    confidence: Floats  # (n,)
    margin: Floats  # (n,)
    one_step_margin: Floats  # (n, G)
    one_step_confidence: Floats  # (n, G)
    path_margin: Floats  # (n, K+1)
    path_predicted: Integers  # (n, K+1)
    threshold: Floats  # (n, P)
    fade_margin: Floats  # (n, S), or (n, 0)

    @classmethod
    def of(cls, asked: StatesAsked, decided: Integers | None, n: int) -> Blank:
        """Return arrays to fill; decided: (n,) classes at x by the model's own predict, None: the trees say them."""
        return cls(
            predicted=np.full(n, -1) if decided is None else np.array(decided, dtype=np.int64),
            confidence=np.empty(n),
            margin=np.empty(n),
            one_step_margin=np.empty((n, asked.n_groups)),
            one_step_confidence=np.empty((n, asked.n_groups)),
            path_margin=np.empty((n, asked.depth + 1)),
            path_predicted=np.empty((n, asked.depth + 1), dtype=np.int64),
            threshold=np.empty((n, len(asked.widths))),
            fade_margin=np.empty((n, asked.fade_steps)),
        )


class _Scorer:
    """A forest bound to the baseline and groups of an audit."""

    def __init__(self, rows: EvidenceRows, protocol: Protocol) -> None:
        ensemble = ensemble_of(rows.model)
        self.recoding = make_recoding(ensemble, rows)
        self.asked = StatesAsked.of(protocol, rows.n_groups)
        plan = make_plan(ensemble.forest, self.recoding, rows, protocol)
        self.score = make_scorer(ensemble.forest, plan)
        self.block = BLOCK if fits_planes(ensemble.forest) else WALK_BLOCK  # rows that the kernel takes together
        self.in_order = np.tile(np.arange(rows.n_groups), (self.block, 1))
        self.first, self.second = list_single_removals(rows.n_groups), list_path_and_grid(self.asked)
        bare = self.score(plan.baseline[None, :], self.in_order[:1], list_originals(rows.n_groups))[0, :, 0]
        self.rules = Rules.of(ensemble.forest, self.asked, rows.offset, bare)

    def trace_chunk(self, cells: Floats, decided: Integers | None) -> Trace:
        """Return the trace of some rows; the sums of all states are held for one block of them at a time."""
        x, asked, n = self.recoding.recode(cells), self.asked, len(cells)
        whole, order = Blank.of(asked, decided, n), np.empty((n, asked.longest), dtype=np.int64)
        for start in range(0, n, self.block):
            block = slice(start, start + self.block)
            views: Any = (array[block] for array in whole)
            rows, out = x[block], Blank(*views)
            path_support = np.empty_like(out.path_margin)
            first = self.score(rows, self.in_order[: len(rows)], self.first)
            observe_removals(first, self.rules, out, (order[block], path_support))
            observe_path_and_grid(self.score(rows, order[block], self.second), self.rules, out, path_support)
        return Trace(**whole._asdict(), order=order[:, : asked.depth], evaluations=n * asked.per_row, engine=ENGINE)


# --- answers to labels, searches and scores -----------------------------------------------------------------


def predictor(rows: EvidenceRows) -> Callable[[Floats], Floats]:
    """Return the forest's own probabilities of stressed rows, prepared once."""
    ensemble = ensemble_of(rows.model)
    recoding = make_recoding(ensemble, rows)
    score = make_row_scorer(ensemble.forest, rows.width, sparse=bool(sp.issparse(rows.matrix)))

    def predict(matrix: Floats) -> Floats:
        _try_unusual_cells(matrix, rows, set())
        return compute_probabilities(ensemble.forest, score(recoding.recode_and_round(matrix)))

    return predict


class Sides(NamedTuple):
    """The two sides of every cell, as it stands and at the baseline, and the units that states move."""

    baseline: Floats  # (d,)
    stepwise: npt.NDArray[np.uint8]  # (d,)
    unit: Integers  # (d,)
    numeric: npt.NDArray[np.uint8]  # (d,) 1 where a column's tests are all numeric
    test_base: npt.NDArray[np.uint8]  # (T,) 1 where the baseline goes right
    rounding: npt.NDArray[np.uint8]  # (d,) of cells before they are compared: WHOLE, NARROW
    zero_missing: bool  # a zero cell is missing (XGBoost on sparse rows)
    whole: bool  # what is moved is removed
    slots: int  # nodes of the largest tree


def state_answers(rows: EvidenceRows) -> Callable[[Floats, RowStates], Floats | None]:
    """Return the function (rows (m, d), states, other ones for each row) -> their probabilities, prepared once."""
    ensemble = ensemble_of(rows.model)
    recoding = make_recoding(ensemble, rows)
    score = _make_state_scorer(ensemble.forest, recoding, rows)
    accepted: set[str] = set()

    def answer(x: Floats, states: RowStates) -> Floats | None:
        if states.severity is not None and states.severity.ndim == 2:
            return None  # a severity for each unit: no piece of a word has one cell to move to
        _try_unusual_cells(x, rows, accepted)
        return compute_probabilities(ensemble.forest, score(recoding.recode(x), states))

    return answer


def _make_state_scorer(
    forest: Forest, recoding: Recoding, rows: EvidenceRows
) -> Callable[[Floats, RowStates], npt.NDArray[Any]]:
    """Return the function (recoded rows (m, d), q states) -> raw sums (outputs, q)."""
    baseline = recoding.recode(rows.baseline)
    zero_missing = bool(sp.issparse(rows.matrix)) and forest.absent_missing
    numeric = np.ones(rows.width, dtype=np.uint8)
    numeric[forest.test_column[(forest.test_flags & KIND) != NUMERIC]] = 0
    sides = Sides(
        baseline=baseline,
        stepwise=rows.stepwise.astype(np.uint8),
        unit=rows.column_group.astype(np.int64),
        numeric=numeric,
        test_base=baseline_ways(forest, baseline, recoding.rounding, zero_missing),
        rounding=recoding.rounding,
        zero_missing=zero_missing,
        whole=True,
        slots=forest.most_nodes,
    )
    kernel: Any = score_row_states
    trees: Any = None
    if fits_planes(forest, decisions_per_test=1):
        trees, block = build_gates(forest), BLOCK
    else:
        plan = make_plain_plan(forest, rows.width, zero_missing)
        trees = pack_nodes(forest, plan._replace(test_base=sides.test_base, rounding=sides.rounding))
        kernel, block = walk_row_states, WALK_BLOCK

    def score(x: Floats, states: RowStates) -> npt.NDArray[Any]:
        unit = np.ascontiguousarray(states.unit_of(sides.unit), dtype=np.int64)
        moved = sides._replace(unit=unit, whole=states.severity is None)
        severity = np.zeros(0) if states.severity is None else np.ascontiguousarray(states.severity, dtype=np.float64)
        flags = np.ascontiguousarray(states.moved, dtype=bool).view(np.uint8)
        flat = (np.ascontiguousarray(states.owner, dtype=np.int64), flags, severity)
        scores = np.empty((len(forest.base), len(states)), dtype=forest.leaf_value.dtype)
        compiling.run_on_all_threads(
            len(states), block, lambda span: kernel(forest, trees, moved, x, flat, span, scores)
        )
        return scores

    return score
