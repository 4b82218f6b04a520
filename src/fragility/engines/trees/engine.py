"""The tree engine: which models it knows, their traces and answers.

A trace takes two rounds, since the removal path of a row depends on its own one-step drops: first x and every single
removal are scored, then the path and the severity grid. `scoring`, which needs numba, is imported where it is used,
because every model is asked whether this engine knows it.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from fragility.base.arrays import MEBIBYTE, Booleans, Floats, Integers, rows_within
from fragility.base.errors import EngineError
from fragility.engines.trace import Progress, Trace, Tracer
from fragility.engines.trees.forest import AVERAGE
from fragility.engines.trees.readers import read_ensemble
from fragility.engines.trees.recoding import FURTHEST, Ensemble, make_recoding
from fragility.evidence import EvidenceRows, RowStates
from fragility.models import Model
from fragility.models.links import Link
from fragility.protocol import Protocol

if TYPE_CHECKING:
    from fragility.engines.trees.scoring import AuditScorer

CHUNK_ROWS = 4096  # rows that a thread traces at a time, fewer where they would take more than CHUNK_BYTES
CHUNK_BYTES = 64 * MEBIBYTE
LEAST_ROWS = 512  # a block of the kernels
CHUNKS_PER_THREAD = 2  # at least, so that a busy core does not hold up the rest


# --- which models -------------------------------------------------------------------------------------------


def never_reads(rows: EvidenceRows) -> str | None:
    """Return why the engine can audit no rows of this model and protocol, or None if it may."""
    try:
        forest = ensemble_of(rows.model).forest
    except EngineError as error:
        return str(error)
    expected = Link.PREDICT_PROBA if forest.link == AVERAGE else Link.RAW_SCORE
    if rows.model.head_link is not expected:
        return f"its probabilities come from {rows.model.link!r}, the tree engine reproduces {expected.value!r}"
    if forest.n_classes != len(rows.model.classes):
        return f"its trees give {forest.n_classes} classes, the model declares {len(rows.model.classes)}"
    if forest.n_columns > rows.width:
        return f"its trees read {forest.n_columns} columns, the rows have {rows.width}"
    return None


def refusal(rows: EvidenceRows) -> str | None:
    """Return why the engine cannot audit these rows, or None if it can."""
    if not rows.native_matrix and rows.forms is None:
        return "the trees are not handed the evidence itself but what a preprocessing makes of it"
    if reason := never_reads(rows):
        return reason
    try:
        make_recoding(ensemble_of(rows.model), rows)
    except EngineError as error:
        return str(error)
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
        found = (np.abs(cells) >= FURTHEST).any(axis=1) | recoding.find_unlisted(cells)
        if ensemble.least:
            size = np.abs(cells)
            found |= ((size > 0.0) & (size < ensemble.least)).any(axis=1)
        return np.asarray(found)

    return doubtful


def try_unusual_cells(x: Floats, rows: EvidenceRows, accepted: set[str]) -> None:
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
    return tracer(rows, protocol)(rows, progress)


def tracer(rows: EvidenceRows, protocol: Protocol) -> Tracer:
    """Return the function that traces these rows and others of their form, prepared once."""
    from fragility.engines.trees.scoring import AuditScorer

    scorer = AuditScorer.of_trees(ensemble_of(rows.model), rows, protocol)
    return lambda others, progress=None: trace_in_chunks(scorer, others, protocol, progress)


def trace_in_chunks(
    scorer: AuditScorer, rows: EvidenceRows, protocol: Protocol, progress: Progress | None, threads: int | None = None
) -> Trace:
    """Return the trace of every row, by chunks of rows on all threads or fewer; few rows are traced in this one."""
    from fragility.engines.kernels import compiling

    if 0 < len(rows) <= LEAST_ROWS:
        x = rows.dense()
        try_unusual_cells(x, rows, set())
        part = scorer.trace_chunk(x, rows.decided, rows.spared())
        if progress is not None:
            progress(len(rows), len(rows))
        return part
    parts, done = list[Trace](), 0
    for part in _trace_chunks(scorer, rows, protocol, threads or compiling.THREADS):
        parts.append(part)
        done += len(part.predicted)
        if progress is not None:
            progress(done, len(rows))
    return Trace.join(parts)


def _chunk_size(width: int, protocol: Protocol, n_rows: int, threads: int) -> int:
    """Return how many rows a thread traces at a time: their cells, and what is observed of their states."""
    cells = 2 * width + 4 * protocol.states_per_row
    shares = CHUNKS_PER_THREAD * threads * LEAST_ROWS
    fair = -(-n_rows // shares) * LEAST_ROWS  # whole blocks, for every thread
    return rows_within(CHUNK_BYTES, cells, least=LEAST_ROWS, most=max(LEAST_ROWS, min(CHUNK_ROWS, fair)))


def _trace_chunks(scorer: AuditScorer, rows: EvidenceRows, protocol: Protocol, threads: int) -> Iterator[Trace]:
    """Yield the traces of chunks of rows, in order, from all threads; at most two chunks per thread are held."""
    size, accepted = _chunk_size(rows.width, protocol, len(rows), threads), set[str]()
    with ThreadPoolExecutor(threads) as pool:
        waiting: deque[Future[Trace]] = deque()
        for start in range(0, max(len(rows), 1), size):
            x = rows.dense(start, start + size)
            try_unusual_cells(x, rows, accepted)  # here, because the model is asked in the caller's thread
            decided = None if rows.decided is None else rows.decided[start : start + size]
            spared = rows.spared(start, start + size)
            if threads == 1:
                yield scorer.trace_chunk(x, decided, spared)
                continue
            waiting.append(pool.submit(scorer.trace_chunk, x, decided, spared))
            if len(waiting) == 2 * threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


# --- answers to labels, searches and scores -----------------------------------------------------------------

Sums: TypeAlias = npt.NDArray[Any]  # (..., outputs, n) raw sums, as ``compute_probabilities`` takes them


def row_sums(rows: EvidenceRows) -> Callable[[Floats], Sums]:
    """Return the function rows (m, d) -> raw sums (outputs, m), prepared once."""
    from fragility.engines.trees.scoring import make_row_scorer
    from fragility.engines.trees.tables import make_row_lookup

    ensemble = ensemble_of(rows.model)
    recoding = make_recoding(ensemble, rows)
    if ensemble.terms is not None:
        score: Callable[[Floats], Any] = make_row_lookup(ensemble.terms, recoding.rounding)
    else:
        score = make_row_scorer(ensemble.forest, recoding.rounding, sparse=bool(sp.issparse(rows.matrix)))
    return lambda matrix: score(recoding.recode(matrix))


def state_sums(rows: EvidenceRows) -> Callable[[Floats, RowStates], Sums | None]:
    """Return the function (rows (m, d), q states) -> raw sums (outputs, q), None if it cannot answer; prepared once."""
    from fragility.engines.trees.scoring import make_state_scorer
    from fragility.engines.trees.tables import make_state_lookup

    ensemble = ensemble_of(rows.model)
    recoding = make_recoding(ensemble, rows)
    if ensemble.terms is not None:
        score = make_state_lookup(ensemble.terms, recoding, rows)
    else:
        score = make_state_scorer(ensemble.forest, recoding, rows)

    def sums(x: Floats, states: RowStates) -> Sums | None:
        if states.severity is not None and states.severity.ndim == 2:
            return None  # the kernels move all units of a state by one severity
        return score(recoding.recode(x), states)

    return sums


def predictor(rows: EvidenceRows) -> Callable[[Floats], Floats]:
    """Return the forest's own probabilities of stressed rows, prepared once."""
    from fragility.engines.trees.scoring import compute_probabilities

    forest, sums = ensemble_of(rows.model).forest, row_sums(rows)

    def predict(matrix: Floats) -> Floats:
        try_unusual_cells(matrix, rows, set())
        return compute_probabilities(forest, sums(matrix))

    return predict


def state_answers(rows: EvidenceRows) -> Callable[[Floats, RowStates], Floats | None]:
    """Return the function (rows (m, d), states, other ones for each row) -> their probabilities, prepared once."""
    from fragility.engines.trees.scoring import compute_probabilities

    forest, sums, accepted = ensemble_of(rows.model).forest, state_sums(rows), set[str]()

    def answer(x: Floats, states: RowStates) -> Floats | None:
        try_unusual_cells(x, rows, accepted)
        found = sums(x, states)
        return None if found is None else compute_probabilities(forest, found)

    return answer


def value_answers(rows: EvidenceRows) -> Callable[[Floats, Floats, Integers, Integers], Floats]:
    """Return the function of ``EvidenceRows.value_answers``, prepared once."""
    from fragility.engines.trees.scoring import compute_probabilities
    from fragility.engines.trees.values import make_value_scorer

    ensemble = ensemble_of(rows.model)
    score = make_value_scorer(ensemble, make_recoding(ensemble, rows), rows)
    accepted: set[str] = set()

    def answer(x: Floats, y: Floats, unit: Integers, asked: Integers) -> Floats:
        for cells in (x, np.atleast_2d(y)):
            try_unusual_cells(cells, rows, accepted)
        return compute_probabilities(ensemble.forest, score(x, y, unit, asked))

    return answer
