"""compare_scores: every score against the same brittle labels.

Orientation. The four confidence scores are large where the model is sure. Every non-certificate score is reported as
the paper ranks by it (`orientation = "paper"`: s as defined) and `oriented`: the better of s and -s on validation rows.
Certificate scores are never turned round.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fragility.arrays import Booleans, Floats
from fragility.certificates import Certificates
from fragility.errors import DataError
from fragility.ids import places_by_id
from fragility.ranking.bootstrap import quantile_interval, resampled_aurocs
from fragility.ranking.metrics import (
    BUDGETS,
    aurc,
    auroc,
    better_direction,
    capture_at,
    false_confidence_captured,
    ranking_state,
)
from fragility.ranking.report import Ceiling, Comparison, Labels, RankingReport, ScoreResult
from fragility.ranking.scores import in_reading_order, natural_direction, score_kind, scores_of

_COMPARED = ("cfc_exposure", "cfc_fds", "cfc_rcma")


def compare_scores(
    certs: Certificates | None,
    labels: Labels,
    *,
    probabilities: npt.ArrayLike | None = None,
    scores: Mapping[str, npt.ArrayLike] | None = None,
    validation: tuple[Mapping[str, npt.ArrayLike], Labels] | None = None,
    wrong: npt.ArrayLike | None = None,
    independent: Labels | None = None,
    resamples: int = 2_000,
    seed: int = 0,
) -> RankingReport:
    """Return every score's metrics on the high-confidence rows.

    Parameters
    ----------
    certs : Certificates or None
        Certificates of the rows; None when ``scores`` holds everything.
    labels : BrittleLabels
        Brittle labels of the same rows (matched by id when certs are given).
    probabilities : array of shape (n, C), optional
        At x, for the entropy and energy of models with more than two classes.
    scores : mapping of str to array of shape (n,), optional
        Further scores by name, in the rows' order, NaN where unknown.
    validation : tuple of (scores, labels), optional
        Of validation rows, which decide between s and -s. Without it the choice is made on the judged rows themselves,
        in every baseline's favour.
    wrong : array of bool of shape (n,), optional
        Whether the prediction is wrong, for FalseConfCaptured@20.
    independent : BrittleLabels, optional
        Labels of the same rows from other draws, for the ceiling.
    resamples : int, default=2000
        Row resamples for the intervals of the differences; 0 leaves them out.
    seed : int, default=0
        Of the resamples.

    Returns
    -------
    RankingReport
        One line a score and orientation; printed as a table, exported by ``to_pandas``, ``to_arrow`` and ``save``.

    See Also
    --------
    evaluate : Labels, scores and verdict in one call.
    label_brittle : Makes the labels.
    """
    own = {} if certs is None else scores_of(certs, probabilities)
    given = {name: np.asarray(s, dtype=np.float64) for name, s in (scores or {}).items()}
    table = in_reading_order({**own, **given})
    matched = labels if certs is None else _matched(labels, certs.claims.ids)
    keep = np.asarray(matched.high_confidence, dtype=bool)
    brittle = np.asarray(matched.brittle, dtype=bool)[keep]
    misses = None if wrong is None else np.asarray(wrong, dtype=bool)[keep]
    kept = {name: _kept(name, s, keep) for name, s in table.items()}
    directions = _directions(kept, brittle, validation)
    lines = [line for n, s in kept.items() for line in _score_lines(n, s, directions[n], brittle, misses)]
    return RankingReport(
        rows=len(keep),
        high_confidence=int(keep.sum()),
        brittle=int(brittle.sum()),
        wrong=None if misses is None else int(misses.sum()),
        wrong_brittle=None if misses is None else int((misses & brittle).sum()),
        orientation_source="judged rows, in each baseline's favour" if validation is None else "validation rows",
        results=tuple(lines),
        comparisons=_comparisons(kept, directions, brittle, resamples, seed),
        ceiling=None if independent is None else label_noise_ceiling(labels, independent),
    )


@dataclass(frozen=True, slots=True, eq=False)
class _MatchedLabels:
    id: npt.NDArray[Any]
    high_confidence: Booleans
    brittle: Booleans
    statistic: Floats


def _matched(labels: Labels, ids: Sequence[object]) -> Labels:
    """Labels in the order of `ids`."""
    rows, missing = places_by_id(ids, np.asarray(labels.id).tolist())
    if missing:
        raise DataError(
            f"labels lack {len(missing)} of the {len(ids)} certified rows, e.g. id {missing[0]!r}; "
            "label the same rows with the same ids"
        )
    return _MatchedLabels(
        np.asarray(labels.id)[rows], labels.high_confidence[rows], labels.brittle[rows], labels.statistic[rows]
    )


def _kept(name: str, scores: Floats, keep: Booleans) -> Floats:
    if scores.shape != keep.shape:
        raise DataError(f"score {name!r} must have one value for each of the {len(keep)} rows, got {scores.shape}")
    return scores[keep]


def _directions(
    kept: Mapping[str, Floats],
    brittle: Booleans,
    validation: tuple[Mapping[str, npt.ArrayLike], Labels] | None,
) -> dict[str, int]:
    """Direction of every score: certificate scores +1, the others the better one where it may be looked at."""
    found = {}
    for name, scores in kept.items():
        fallback = natural_direction(name)
        if score_kind(name) == "certificate":
            found[name] = 1
        elif validation is None:
            found[name] = better_direction(scores, brittle, fallback)
        else:
            found[name] = _validated_direction(name, validation, fallback)
    return found


def _validated_direction(name: str, validation: tuple[Mapping[str, npt.ArrayLike], Labels], fallback: int) -> int:
    scores, labels = validation
    if name not in scores:
        return fallback
    keep = np.asarray(labels.high_confidence, dtype=bool)
    return better_direction(np.asarray(scores[name])[keep], np.asarray(labels.brittle)[keep], fallback)


def _score_lines(
    name: str, scores: Floats, direction: int, brittle: Booleans, wrong: Booleans | None
) -> list[ScoreResult]:
    return [
        _score_line(name, scores, "paper", 1, brittle, wrong),
        _score_line(name, scores, "oriented", direction, brittle, wrong),
    ]


def _score_line(
    name: str, scores: Floats, orientation: str, direction: int, brittle: Booleans, wrong: Booleans | None
) -> ScoreResult:
    s = direction * scores
    known = ~np.isnan(s)
    captures = [capture_at(s, brittle, budget) for budget in BUDGETS]
    return ScoreResult(
        score=name,
        kind=score_kind(name),
        orientation=orientation,
        direction=direction,
        state=ranking_state(s, brittle),
        rows=int(known.sum()),
        brittle=int(brittle[known].sum()),
        auroc=auroc(s, brittle),
        capture_5=captures[0],
        capture_10=captures[1],
        capture_20=captures[2],
        false_confidence_captured_20=math.nan if wrong is None else false_confidence_captured(s, brittle, wrong),
        aurc=aurc(s, brittle),
    )


def _comparisons(
    kept: Mapping[str, Floats], directions: Mapping[str, int], brittle: Booleans, resamples: int, seed: int
) -> tuple[Comparison, ...]:
    """Exposure, FDS and RCMA against every oriented baseline, on the rows that have the baseline's score."""
    baselines = [name for name in kept if score_kind(name) != "certificate"]
    subsets: dict[bytes, list[str]] = {}  # baselines known on the same rows share their resamples
    for name in baselines:
        subsets.setdefault(np.isnan(kept[name]).tobytes(), []).append(name)
    found: dict[tuple[str, str], Comparison] = {}
    for names in subsets.values():
        found |= _compare_subset(names, kept, directions, brittle, resamples, seed)
    return tuple(found[(s, b)] for s in _COMPARED if s in kept for b in baselines)


def _compare_subset(
    baselines: Sequence[str],
    kept: Mapping[str, Floats],
    directions: Mapping[str, int],
    brittle: Booleans,
    resamples: int,
    seed: int,
) -> dict[tuple[str, str], Comparison]:
    known = ~np.isnan(kept[baselines[0]])
    names = [*(s for s in _COMPARED if s in kept), *baselines]
    oriented = {name: directions[name] * kept[name][known] for name in names}
    label = brittle[known]
    area = {name: auroc(scores, label) for name, scores in oriented.items()}
    drawn = dict(zip(names, resampled_aurocs([*oriented.values()], label, resamples=resamples, seed=seed), strict=True))
    pairs = [(s, b) for s in _COMPARED if s in kept for b in baselines]
    return {
        (s, b): Comparison(s, b, area[s] - area[b], *quantile_interval(drawn[s] - drawn[b]), int(known.sum()))
        for s, b in pairs
    }


def label_noise_ceiling(labels: Labels, independent: Labels) -> Ceiling:
    """AUROC with which the rule's own statistic, over independent draws, predicts the labels of high-confidence rows.

    A score that knew everything about the row except which random numbers the labels drew would do about this well;
    one with less noise than so many draws can pass it.
    """
    other = _matched(independent, np.asarray(labels.id).tolist())
    keep = np.asarray(labels.high_confidence, dtype=bool)
    statistic, brittle = np.asarray(other.statistic)[keep], np.asarray(labels.brittle)[keep]
    return Ceiling(auroc(statistic, brittle), ranking_state(statistic, brittle))
