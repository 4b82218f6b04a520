"""The tree engine: which models it knows, their traces and answers.

A trace takes two rounds, since the removal path of a row depends on its own one-step drops: first x and every single
removal are scored, then the path and the severity grid. `scoring`, which needs numba, is imported where it is used,
because every model is asked whether this engine knows it.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from fragility.base.arrays import MEBIBYTE, Booleans, Floats, rows_within
from fragility.base.errors import EngineError
from fragility.engines.engine import Engine, Values
from fragility.engines.trace import Progress, Trace, Tracer
from fragility.engines.trees.forest import AVERAGE
from fragility.engines.trees.readers import READERS, read_ensemble
from fragility.engines.trees.recoding import FURTHEST, Ensemble, make_recoding
from fragility.evidence import EvidenceRows, States
from fragility.models import Model
from fragility.models.outputs import Link
from fragility.protocol import Protocol

if TYPE_CHECKING:
    from fragility.engines.trees.scoring import AuditScorer

CHUNK_ROWS = 4096  # rows that a thread traces at a time, fewer where they would take more than CHUNK_BYTES
CHUNK_BYTES = 64 * MEBIBYTE
LEAST_ROWS = 512  # a block of the kernels
CHUNKS_PER_THREAD = 2  # at least, so that a busy core does not hold up the rest


# --- which models -------------------------------------------------------------------------------------------


_ENSEMBLES: weakref.WeakKeyDictionary[Model, Ensemble] = weakref.WeakKeyDictionary()


def ensemble_of(model: Model) -> Ensemble:
    """Return the model's trees, read once per adapter."""
    ensemble = _ENSEMBLES.get(model)
    if ensemble is None:
        ensemble = _ENSEMBLES[model] = read_ensemble(model.head)
    return ensemble


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


# --- the engine ---------------------------------------------------------------------------------------------

Sums: TypeAlias = npt.NDArray[Any]  # (..., outputs, n) raw sums, as ``compute_probabilities`` takes them


class TreeEngine(Engine):
    """A tree ensemble; states and values are scored without the cells of a single stressed row."""

    name, needs, families = "trees", ("numba",), tuple(READERS)

    def __init__(self, rows: EvidenceRows) -> None:
        super().__init__(rows)
        self.ensemble = ensemble_of(rows.model)
        self.recoding = make_recoding(self.ensemble, rows)
        self._accepted = set[str]()  # kinds of unusual cells that the model takes

    @classmethod
    def never_reads(cls, rows: EvidenceRows) -> str | None:
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

    @classmethod
    def refusal(cls, rows: EvidenceRows) -> str | None:
        if not rows.native_matrix and rows.forms is None:
            return "the trees are not handed the evidence itself but what a preprocessing makes of it"
        if reason := cls.never_reads(rows):
            return reason
        try:
            make_recoding(ensemble_of(rows.model), rows)
        except EngineError as error:
            return str(error)
        return None

    def doubts(self, cells: Floats) -> Booleans:
        found = (np.abs(cells) >= FURTHEST).any(axis=1) | self.recoding.find_unlisted(cells)
        if self.ensemble.least:
            size = np.abs(cells)
            found |= ((size > 0.0) & (size < self.ensemble.least)).any(axis=1)
        return np.asarray(found)

    def tracer(self, protocol: Protocol) -> Tracer:
        from fragility.engines.trees.scoring import AuditScorer

        scorer = AuditScorer.of_trees(self.ensemble, self.form, protocol)
        return lambda rows, progress=None: trace_in_chunks(scorer, rows, protocol, progress)

    def predict(self, matrix: Floats) -> Floats:
        try_unusual_cells(matrix, self.form, set())
        return self._probabilities(self.sum_rows(matrix))

    def answer_states(self, x: Floats, states: States) -> Floats | None:
        try_unusual_cells(x, self.form, self._accepted)
        sums = self.sum_states(x, states)
        return None if sums is None else self._probabilities(sums)

    def answer_values(self, x: Floats, asked: Sequence[Values]) -> Iterator[Floats]:
        for cells in (x, *(np.atleast_2d(one.cells) for one in asked)):
            try_unusual_cells(cells, self.form, self._accepted)
        return map(self._probabilities, self.sum_values(x, asked))

    def _probabilities(self, sums: Sums) -> Floats:
        from fragility.engines.trees.scoring import compute_probabilities

        return compute_probabilities(self.ensemble.forest, sums)

    def sum_rows(self, matrix: Floats) -> Sums:
        """Return the raw sums (outputs, m) of rows (m, d)."""
        return self._score_rows(self.recoding.recode(matrix))

    def sum_states(self, x: Floats, states: States) -> Sums | None:
        """Return the raw sums (outputs, q) of q states of rows (m, d); None if the kernels cannot answer."""
        if states.severity is not None and states.severity.ndim == 2:
            return None  # the kernels move all units of a state by one severity
        return self._score_states(self.recoding.recode(x), states)

    @cached_property
    def _score_rows(self) -> Callable[[Any], Sums]:
        from fragility.engines.trees.scoring import make_row_scorer
        from fragility.engines.trees.tables import make_row_lookup

        ensemble, rounding = self.ensemble, self.recoding.rounding
        if ensemble.terms is not None:
            return make_row_lookup(ensemble.terms, rounding)
        return make_row_scorer(ensemble.forest, rounding, sparse=bool(sp.issparse(self.form.matrix)))

    @cached_property
    def _score_states(self) -> Callable[[Any, States], Sums]:
        from fragility.engines.trees.scoring import make_state_scorer
        from fragility.engines.trees.tables import make_state_lookup

        if self.ensemble.terms is not None:
            return make_state_lookup(self.ensemble.terms, self.recoding, self.form)
        return make_state_scorer(self.ensemble.forest, self.recoding, self.form)

    @cached_property
    def sum_values(self) -> Callable[[Floats, Sequence[Values]], Iterator[Sums]]:
        """The raw sums (k, outputs, m) of rows in which one unit has taken other values, as ``answer_values``."""
        from fragility.engines.trees.values import make_value_scorer

        return make_value_scorer(self.ensemble, self.recoding, self.form)
