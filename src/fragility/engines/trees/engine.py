"""The tree engine's two rounds: the removal path of a row depends on its own one-step drops.

First x and every single removal are scored, then the path and the operators' severity grids.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeAlias

import numpy as np
import scipy.sparse as sp

from fragility.arrays import MEBIBYTE, Booleans, Floats, Integers, rows_within
from fragility.engines.states import StatesAsked
from fragility.engines.trace import Progress, Trace
from fragility.engines.trees.asking import sides_of, state_scorer
from fragility.engines.trees.encoding import AVERAGE
from fragility.engines.trees.observed import Blank, Rules, probabilities
from fragility.engines.trees.plan import path_and_grid, plan_for, single_removals, unmoved
from fragility.engines.trees.prediction import forest_predictor
from fragility.engines.trees.readers import load_ensemble
from fragility.engines.trees.recoding import Ensemble, recoding_of
from fragility.engines.trees.scoring import in_this_thread, rows_of_block, scorer_of
from fragility.errors import EngineError
from fragility.evidence import EvidenceRows, RowStates
from fragility.models import Model
from fragility.models.links import Link
from fragility.protocol import Protocol

ENGINE = "trees"
CHUNK_ROWS = 4096  # rows that a thread traces at a time, fewer where they would take more than CHUNK_BYTES
CHUNK_BYTES = 64 * MEBIBYTE
LEAST_ROWS = 512  # a block of the kernels
CHUNKS_PER_THREAD = 2  # at least, so that a busy core does not hold up the rest


def never_reads(rows: EvidenceRows) -> str | None:
    """Return why the engine can audit no rows of this model and protocol, or None if it may."""
    reason = supports(rows.model)
    if reason is not None:
        return reason
    forest = ensemble_of(rows.model).forest
    return (
        f"its trees read {forest.n_columns} columns, the rows have {rows.width}"
        if forest.n_columns > rows.width
        else None
    )


def refusal(rows: EvidenceRows) -> str | None:
    """Return why the engine cannot audit these rows, or None if it can."""
    if not rows.native_matrix and rows.forms is None:
        return "the trees are not handed the evidence itself but what a preprocessing makes of it"
    reason = never_reads(rows)
    if reason is not None:
        return reason
    try:
        recoding_of(ensemble_of(rows.model), rows)
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


def trace(rows: EvidenceRows, protocol: Protocol, progress: Progress | None = None) -> Trace:
    """Return the trace of every row."""
    scorer = _Scorer(rows, protocol)
    size = _chunk_size(rows.width, protocol, len(rows))
    parts: list[Trace] = []
    done = 0
    for part in _in_order(lambda chunk: _trace_chunk(*chunk, scorer), _chunks(rows, size), _threads()):
        parts.append(part)
        done += len(part.predicted)
        if progress is not None:
            progress(done, len(rows))
    return Trace.joined(parts)


def _chunk_size(width: int, protocol: Protocol, n_rows: int) -> int:
    """Return how many rows a thread traces at a time: their cells, and what is observed of their states."""
    cells = 2 * width + 4 * protocol.states_per_row
    fair = -(-n_rows // (CHUNKS_PER_THREAD * _threads() * LEAST_ROWS)) * LEAST_ROWS  # whole blocks, for every thread
    return rows_within(CHUNK_BYTES, cells, least=LEAST_ROWS, most=max(LEAST_ROWS, min(CHUNK_ROWS, fair)))


def _threads() -> int:
    import fragility.engines.kernels as kernels

    return kernels.THREADS


Chunk: TypeAlias = tuple[Floats, Integers | None]  # cells (m, d), classes at x by the model's own predict (m,)


def _chunks(rows: EvidenceRows, size: int) -> Iterator[Chunk]:
    """Yield the rows some at a time; the model is asked about unusual ones here, in the thread of the caller."""
    accepted: set[str] = set()
    for start in range(0, max(len(rows), 1), size):
        x = rows.dense(start, start + size)
        _ask_about_unusual_cells(x, rows, accepted)
        yield x, None if rows.decided is None else rows.decided[start : start + size]


def _in_order(run: Callable[[Chunk], Trace], chunks: Iterable[Chunk], threads: int) -> Iterator[Trace]:
    """Yield what ``run`` makes of each chunk, in order; at most two chunks a thread are held at a time."""
    if threads == 1:
        yield from map(run, chunks)
        return
    with ThreadPoolExecutor(threads) as pool:
        waiting: deque[Future[Trace]] = deque()
        for chunk in chunks:
            waiting.append(pool.submit(run, chunk))
            if len(waiting) == 2 * threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def predictor(rows: EvidenceRows) -> Callable[[Floats], Floats] | None:
    """Return the forest's own probabilities of stressed rows, prepared once."""
    ensemble = ensemble_of(rows.model)
    recoding = recoding_of(ensemble, rows)
    answer = forest_predictor(ensemble.forest, rows.width, sparse=bool(sp.issparse(rows.matrix)))

    def predict(matrix: Floats) -> Floats:
        _ask_about_unusual_cells(matrix, rows, set())
        return answer(recoding.handed_over(matrix))

    return predict


def state_answers(rows: EvidenceRows) -> Callable[[Floats, RowStates], Floats | None]:
    """Return the forest's probabilities of states that each row has of its own, prepared once."""
    ensemble = ensemble_of(rows.model)
    recoding = recoding_of(ensemble, rows)
    score = state_scorer(ensemble.forest, sides_of(ensemble.forest, recoding, rows))
    accepted: set[str] = set()

    def answer(x: Floats, states: RowStates) -> Floats | None:
        if states.severity is not None and states.severity.ndim == 2:
            return None  # a severity for each unit: no piece of a word has one cell to move to
        _ask_about_unusual_cells(x, rows, accepted)
        return probabilities(ensemble.forest, score(recoding.recoded(x), states))

    return answer


def doubts(rows: EvidenceRows) -> Callable[[Floats], Booleans]:
    """Return the function cells (m, d) -> (m,) rows that the trees may be handed otherwise than is known here."""
    ensemble = ensemble_of(rows.model)
    recoding = recoding_of(ensemble, rows)

    def doubtful(cells: Floats) -> Booleans:
        found = np.isinf(cells).any(axis=1) | recoding.unlisted(cells)  # moved toward a baseline, infinity is NaN
        if ensemble.least:
            size = np.abs(cells)
            found |= ((size > 0.0) & (size < ensemble.least)).any(axis=1)
        return np.asarray(found)

    return doubtful


_ENSEMBLES: weakref.WeakKeyDictionary[Model, Ensemble] = weakref.WeakKeyDictionary()


def ensemble_of(model: Model) -> Ensemble:
    """Return the model's trees, read once for each adapter."""
    ensemble = _ENSEMBLES.get(model)
    if ensemble is None:
        ensemble = _ENSEMBLES[model] = load_ensemble(model.head)
    return ensemble


def _ask_about_unusual_cells(x: Floats, rows: EvidenceRows, accepted: set[str]) -> None:
    """Hand the model one row with a missing cell and one with a cell beyond float32, if there are such rows.

    Whether it takes them is the model's to say: where it refuses, its error is raised as by the black box.
    accepted: what it took before, which it is not asked about again; added to.
    """
    with np.errstate(invalid="ignore"):
        unusual = {"missing": np.isnan(x), "beyond float32": np.abs(x) > np.finfo(np.float32).max}
    for kind, cells in unusual.items():
        holders = np.flatnonzero(cells.any(axis=1)) if kind not in accepted else ()
        if len(holders):
            rows.predict(x[holders[:1]])
            accepted.add(kind)


class _Scorer:
    """A forest bound to the baseline and groups of an audit."""

    def __init__(self, rows: EvidenceRows, protocol: Protocol) -> None:
        ensemble = ensemble_of(rows.model)
        self.recoding = recoding_of(ensemble, rows)
        self.asked = StatesAsked.of(protocol, rows.n_groups)
        plan = plan_for(ensemble.forest, self.recoding, rows, protocol)
        self.score = scorer_of(ensemble.forest, plan, in_this_thread)
        self.block = rows_of_block(ensemble.forest)  # rows whose sums of all states are held at a time
        self.in_order = np.tile(np.arange(rows.n_groups), (self.block, 1))
        self.first, self.second = single_removals(rows.n_groups), path_and_grid(self.asked)
        bare = self.score(plan.baseline[None, :], self.in_order[:1], unmoved(rows.n_groups))[0, :, 0]
        self.rules = Rules.of(ensemble.forest, self.asked, rows.offset, bare)

    def fill(self, x: Floats, out: Blank, order: Integers) -> None:
        """Fill the trace of a block of rows; order: (n, places), to be filled too."""
        from fragility.engines.kernels import observe_path_and_grid, observe_removals

        path_support = np.empty_like(out.path_margin)
        observe_removals(self.score(x, self.in_order[: len(x)], self.first), self.rules, out, (order, path_support))
        observe_path_and_grid(self.score(x, order, self.second), self.rules, out, path_support)


def _trace_chunk(cells: Floats, decided: Integers | None, scorer: _Scorer) -> Trace:
    x, asked, n = scorer.recoding.recoded(cells), scorer.asked, len(cells)
    out, order = Blank.of(asked, decided, n), np.empty((n, asked.longest), dtype=np.int64)
    for start in range(0, n, scorer.block):
        block = slice(start, start + scorer.block)
        scorer.fill(x[block], out.rows(block), order[block])
    return Trace(**out._asdict(), order=order[:, : asked.depth], evaluations=n * asked.per_row, engine=ENGINE)
