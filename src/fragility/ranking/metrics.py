"""Ranking metrics: how well descending scores find the brittle rows.

Ties. A metric with a cut (capture, area under the residual-risk curve) takes its expected value over all orders of
tied rows, so it depends neither on row order nor on luck.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from scipy import stats

from fragility.arrays import Booleans, Floats, Integers
from fragility.errors import DataError

BUDGETS = (0.05, 0.10, 0.20)
DEFINED = "defined"
NO_ROWS = "undefined: no rows"
NO_BRITTLE = "undefined: no brittle rows"
ALL_BRITTLE = "undefined: all rows brittle"
NO_SCORE = "undefined: score is missing on every row"


def ranking_state(scores: Floats, brittle: Booleans) -> str:
    """Why the AUROC of a score can or cannot be computed on the rows that have one."""
    if len(brittle) == 0:
        return NO_ROWS
    known = ~np.isnan(scores)
    if not known.any():
        return NO_SCORE
    hits = int(brittle[known].sum())
    if hits == 0:
        return NO_BRITTLE
    return ALL_BRITTLE if hits == int(known.sum()) else DEFINED


def auroc(scores: npt.ArrayLike, positive: npt.ArrayLike) -> float:
    """P(s+ > s-) + P(s+ = s-) / 2 over pairs of a positive and a negative row; NaN when a class is empty.

    Rows whose score is NaN are left out.
    """
    s, b = _known(scores, positive)
    n_positive = int(b.sum())
    n_negative = len(b) - n_positive
    if n_positive == 0 or n_negative == 0:
        return math.nan
    ranks = stats.rankdata(s)
    return float((ranks[b].sum() - n_positive * (n_positive + 1) / 2) / (n_positive * n_negative))


def capture_at(scores: npt.ArrayLike, positive: npt.ArrayLike, budget: float) -> float:
    """Capture@q = |Top_q(s) & B| / |B|, Top_q the ceil(q n) highest scores; expected value over tied orders.

    NaN when there are no positives.
    """
    if not 0.0 < budget <= 1.0:
        raise DataError(f"review budget must be a share in (0, 1], got {budget!r}")
    s, b = _known(scores, positive)
    if not b.any():
        return math.nan
    size, hits = _tie_blocks(s, b)
    slots = math.ceil(budget * len(s) - 1e-9)  # 0.1 * 30 is 3.0000000000000004
    taken = np.clip(slots - (np.cumsum(size) - size), 0, size)
    return float((taken / size * hits).sum() / hits.sum())


def false_confidence_captured(
    scores: npt.ArrayLike, brittle: npt.ArrayLike, wrong: npt.ArrayLike, budget: float = 0.20
) -> float:
    """Share of wrong high-confidence predictions that break under stress found in the top `budget`; NaN if none."""
    both = np.asarray(brittle, dtype=bool) & np.asarray(wrong, dtype=bool)
    return capture_at(scores, both, budget)


def residual_risk(scores: npt.ArrayLike, positive: npt.ArrayLike) -> Floats:
    """Share of brittle rows among those left after the j highest-ranked are escalated, j = 0..n-1."""
    s, b = _known(scores, positive)
    if len(s) == 0:
        return np.zeros(0)
    size, hits = _tie_blocks(s, b)
    per_row = np.repeat(hits / size, size)  # within a tie, brittle rows are spread evenly
    left = np.cumsum(per_row[::-1])[::-1]
    return left / np.arange(len(s), 0, -1)


def aurc(scores: npt.ArrayLike, positive: npt.ArrayLike) -> float:
    """Mean residual brittle risk over escalation depths, (1/n) sum_j risk_j; lower is better; NaN if no positives."""
    b = _known(scores, positive)[1]
    return float(residual_risk(scores, positive).mean()) if b.any() else math.nan


def _known(scores: npt.ArrayLike, positive: npt.ArrayLike) -> tuple[Floats, Booleans]:
    s, b = np.asarray(scores, dtype=np.float64), np.asarray(positive, dtype=bool)
    if s.shape != b.shape or s.ndim != 1:
        raise DataError(f"scores and labels must be one value a row, got shapes {s.shape} and {b.shape}")
    known = ~np.isnan(s)
    return s[known], b[known]


def _tie_blocks(s: Floats, b: Booleans) -> tuple[Integers, Integers]:
    """Rows and positives in every block of equal scores, highest score first."""
    values, place = np.unique(-s, return_inverse=True)
    size = np.bincount(place, minlength=len(values))
    return size, np.bincount(place, weights=b, minlength=len(values)).astype(np.int64)


def better_direction(scores: npt.ArrayLike, brittle: npt.ArrayLike, fallback: int = 1) -> int:
    """+1 if s, -1 if -s has the higher AUROC; `fallback` where that is undefined or exactly 1/2."""
    area = auroc(scores, brittle)
    if math.isnan(area) or area == 0.5:
        return fallback
    return 1 if area > 0.5 else -1
