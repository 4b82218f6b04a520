"""Agreement: does a model agree with itself?

Its own ``predict`` must name the class that the decision rule finds in its probabilities, on every audited row; and a
row must get the same probabilities when it is asked again, alone, or among other rows. Otherwise a certificate would
speak of a decision that nobody made, and nobody could recompute it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from sklearn.compose import ColumnTransformer
from sklearn.pipeline import FeatureUnion, Pipeline
from sklearn.utils import _safe_indexing

from fragility.base.arrays import Booleans, Floats, Integers
from fragility.base.errors import ModelError
from fragility.evidence.bound import EvidenceRows
from fragility.evidence.codec import call_model, dense
from fragility.evidence.rows import rows_at
from fragility.models.adapter import copy_rows
from fragility.scores import DecisionRule, support_margin

ROUNDING = 1e-4  # margins of a float32 model differ by up to this with the shape of its batch
PROBABILITY_ROUNDING = 1e-5  # the same for probabilities; a tiny one has a steep logarithm and says little
DOUBLE_ROUNDING = 1e-9  # probabilities in double precision agree this well
PROBE_ROWS = 32
BATCH_PROBE_ROWS = 1024  # rows that are asked about at once, and in batches of 32, 64, 128, 256 and 512
BATCH_ROWS = 16384
EXACT_ROUNDING = 1e-13  # below this no claim can notice how a probability was summed
BATCH_SIZES = (32, 2048)  # from which to which a verifier cuts what it asks about
ROUNDING_ROWS, ROUNDING_BATCHES = 64, (1, 3, 17, 33)  # on which a model's own rounding is measured


def original_class(
    rows: EvidenceRows, p: Floats, resolution: float, positions: Integers | slice | None = None
) -> Integers:
    """Return (m,) the class at x by the model's own ``predict``; refuse a model whose p (m, C) contradicts it."""
    if rows.decided is None:
        return DecisionRule(resolution, rows.offset).predict(p)
    decided = rows.decided if positions is None else rows.decided[positions]
    if bool(find_contradicted(p, decided, resolution, rows.offset).any()):
        refuse_contradictions(rows, resolution)
    return decided


def find_contradicted(p: Floats, decided: Integers, resolution: float, offset: Floats | None) -> Booleans:
    """Return (m,) where the probabilities put another class above the decided one, by more than rounding."""
    return DecisionRule(max(resolution, ROUNDING), offset).flips(p, decided)


def refuse_contradictions(rows: EvidenceRows, resolution: float) -> None:
    """Raise an error that counts the rows whose decided class the probabilities contradict, if there are any."""
    assert rows.decided is not None
    wrong: list[tuple[int, int]] = []  # (row, the class its probabilities say)
    for start in range(0, len(rows), BATCH_ROWS):
        p = rows.predict(rows.dense(start, start + BATCH_ROWS))
        says = DecisionRule(resolution, rows.offset).predict(p)
        other = find_contradicted(p, rows.decided[start : start + BATCH_ROWS], resolution, rows.offset)
        wrong += [(start + int(i), int(says[i])) for i in np.flatnonzero(other)]
    if not wrong:
        return
    (first, instead), classes = wrong[0], rows.model.classes
    remedy = "give a model whose predict follows its predict_proba"
    if type(rows.model.head).__name__ in ("SVC", "NuSVC"):
        remedy = "its labels come from another score than its probabilities: use CalibratedClassifierCV(SVC()) instead"
    elif rows.n_classes == 2:
        declare = "if it decides by a threshold, declare it in the protocol (decision=0.3, or --threshold 0.3)"
        remedy = f"{declare}, else {remedy}"
    raise ModelError(
        f"the predict of {rows.model.kind} differs from its probabilities in {len(wrong)} of {len(rows)} rows (first: "
        f"row {rows.ids[first]!r}, predict says {classes[rows.decided[first]]!r}, the probabilities "
        f"{classes[instead]!r}); {remedy}"
    )


def with_ties_settled(rows: EvidenceRows, claimed: Integers, resolution: float) -> EvidenceRows:
    """Return the rows with the claimed class where the model has a tie: either class is its decision there.

    A forest that adds its trees in the order in which threads finish may settle a tie differently the next time.
    """
    if rows.decided is None:
        return rows
    decided, rule = rows.decided.copy(), DecisionRule(resolution, rows.offset)
    for i in np.flatnonzero(decided != claimed):
        p = rows.predict(rows.dense(int(i), int(i) + 1))[0]
        known = 0 <= claimed[i] < rows.n_classes
        if known and not any(rule.flips(p, c) for c in (decided[i], claimed[i])):
            decided[i] = claimed[i]
    return replace(rows, decided=decided)


# --- the same answer for the same row -----------------------------------------------------------------------------


def check_steady(rows: EvidenceRows, resolution: float) -> None:
    """Ask about a few rows twice, in other company and alone; refuse a model whose answers differ.

    In the transformed space the other company goes through the preprocessing as well. The model's own labels of these
    rows are compared with their probabilities, so that most contradictions are found before any work is done.
    """
    m = min(PROBE_ROWS, len(rows))
    few = rows.dense(0, m)
    p = rows.predict(few)
    _compare(p, rows.predict(few), rows, resolution, "gives different answers for the same row")
    company = "gives a row another answer among other rows: it depends on the other rows of its batch"
    half = np.arange((m + 1) // 2)[::-1]
    _compare(p[half], rows.predict(few[half]), rows, resolution, company)
    for i in sorted({0, m - 1}):
        _compare(p[i : i + 1], rows.predict(few[i : i + 1]), rows, resolution, company)
    many, start, size = rows.dense(0, BATCH_PROBE_ROWS), 0, PROBE_ROWS
    if len(many) > PROBE_ROWS:  # more rows at once, and again in batches of other sizes
        together = rows.predict(many)
        while start < len(many):
            part = slice(start, start + size)
            _compare(together[part], rows.predict(many[part]), rows, resolution, company)
            start, size = start + size, 2 * size
    if rows.model.transformer is not None and rows.native_matrix and m > 1:
        for places in (slice(m // 2, m), slice(0, 1), slice(m - 1, m)):
            some = rows_at(rows.source.native, places)
            whole = call_model(lambda: rows.model.probabilities(some), rows.source)  # noqa: B023
            _compare(p[places], whole, rows, resolution, company)
    original_class(rows, p, resolution, slice(0, m))


def measure_rounding(rows: EvidenceRows) -> float:
    """Return how far margins of a model in single precision move with the shape of a batch; 0 in double precision."""
    few = rows.dense(0, ROUNDING_ROWS)
    p = rows.predict(few)
    if not _is_single(p):
        return 0.0
    top, widest = p.argmax(axis=1), 0.0
    for size in ROUNDING_BATCHES:
        q = np.concatenate([rows.predict(few[start : start + size]) for start in range(0, len(few), size)])
        if not _is_single(q):
            return 0.0
        moved = np.abs(support_margin(q, top) - support_margin(p, top))
        widest = max(widest, float(moved.max(initial=0.0)))
    return widest


# --- the same answer in other batches -----------------------------------------------------------------------------


@dataclass(eq=False)
class OtherBatches:
    """A model that is asked in batches of random sizes, whatever it is handed at once.

    Who knows how many states a search asks about together can make a model that answers so many otherwise. A verifier
    cuts them where nobody can foresee it, so that such answers are not got a second time. Models that round by the
    shape of a batch are asked both ways, and their answer is kept where it differs by rounding alone.
    """

    predict: Callable[[Floats], Floats]
    rounds: bool
    chance: np.random.Generator

    @classmethod
    def bind(cls, rows: EvidenceRows, seed: int) -> EvidenceRows:
        """Return the rows with their model asked in this way; seed: of the sizes."""
        few, rounds = rows.dense(0, ROUNDING_ROWS), False
        if len(few):
            p = rows.predict(few)
            for size in (7, 33):
                q = np.concatenate([rows.predict(few[start : start + size]) for start in range(0, len(few), size)])
                rounds = rounds or bool((np.abs(p - q) > EXACT_ROUNDING).any())
        asked = cls(rows.ask_model, rounds, np.random.default_rng(seed))
        return replace(rows, ask_model=asked.ask)

    def ask(self, matrix: Floats) -> Floats:
        """Return (m, C) probabilities."""
        low, high = np.log2(BATCH_SIZES)
        sizes = (2.0 ** self.chance.uniform(low, high, size=1 + 2 * len(matrix) // BATCH_SIZES[0])).astype(int)
        stops = np.cumsum(sizes)
        parts = np.split(matrix, stops[stops < len(matrix)])
        p = np.concatenate([self.predict(part) for part in parts])
        if not self.rounds or len(parts) == 1:
            return p
        together = self.predict(matrix)
        close: Booleans = np.asarray(np.abs(p - together).max(axis=1) <= PROBABILITY_ROUNDING)
        return np.where(close[:, None], together, p)


def _advise_steadiness(rows: EvidenceRows) -> str:
    """Return what to change so that a model answers row by row; names the step of the preprocessing that does not."""
    unsteady = None
    if rows.model.transformer is not None and rows.source.native is not None:
        with suppress(Exception):  # whatever a step refuses, the answers of the whole model differ
            few = rows_at(rows.source.native, slice(0, BATCH_PROBE_ROWS))
            unsteady = _find_unsteady(rows.model.transformer, type(rows.model.transformer).__name__, few)
    if unsteady is None:
        return "give a model that answers row by row and without chance"
    fault = f"its step {unsteady[0]!r} ({unsteady[1]}) makes something else of a row among other rows"
    if unsteady[1] == "KNNImputer":
        return (
            f"{fault}: of neighbours that are equally far it takes one or another; impute by SimpleImputer or "
            "IterativeImputer, or scale the fields and weigh neighbours so that none are equally far"
        )
    return f"{fault}; replace it by one that treats each row by itself"


def _find_unsteady(step: Any, name: str, X: Any) -> tuple[str, str] | None:
    """Return the innermost step, its name and its type, that makes something else of some of the rows X alone."""
    if isinstance(step, Pipeline):
        for label, inner in step.steps:
            if inner is None or isinstance(inner, str):
                continue
            if (unsteady := _find_unsteady(inner, label, X)) is not None:
                return unsteady
            X = inner.transform(copy_rows(X))
        return None
    parts: list[tuple[str, Any, Any]] = []
    if isinstance(step, ColumnTransformer):
        parts = [(label, inner, _safe_indexing(X, places, axis=1)) for label, inner, places in step.transformers_]
    elif isinstance(step, FeatureUnion):
        parts = [(label, inner, X) for label, inner in step.transformer_list]
    inside = [_find_unsteady(inner, label, some) for label, inner, some in parts if not isinstance(inner, str)]
    if parts:
        return next((unsteady for unsteady in inside if unsteady is not None), None)
    whole, n = dense(step.transform(copy_rows(X))), X.shape[0]
    for places in (slice(0, 1), slice(n - 1, n), slice(0, PROBE_ROWS), slice(n // 2, n)):
        alone = dense(step.transform(copy_rows(rows_at(X, places))))
        if not np.allclose(alone, whole[places], rtol=DOUBLE_ROUNDING, atol=DOUBLE_ROUNDING, equal_nan=True):
            return name, type(step).__name__
    return None


def _is_single(p: Floats) -> bool:
    return np.array_equal(p, p.astype(np.float32))


def _compare(p: Floats, q: Floats, rows: EvidenceRows, resolution: float, fault: str) -> None:
    """Refuse a model whose two answers p and q to the same rows differ; warn if they differ by rounding."""
    top = p.argmax(axis=1)
    gap = np.abs(support_margin(p, top) - support_margin(q, top))
    spread = np.abs(p - q).max(axis=1)
    if bool(((gap > max(resolution, ROUNDING)) & (spread > PROBABILITY_ROUNDING)).any()):
        raise ModelError(
            f"{rows.model.kind} {fault} (probabilities differ by {spread.max():.3g}), so its certificates could not be "
            f"recomputed; {_advise_steadiness(rows)}"
        )
    noisy = gap[spread > DOUBLE_ROUNDING].max(initial=0.0)
    if noisy > resolution:
        warnings.warn(
            f"{rows.model.kind} rounds margins by about {noisy:.1g} depending on the batch, more than the protocol's "
            f"resolution {resolution:g}; declare a resolution of 1e-4 for it",
            stacklevel=5,
        )
