"""compare_scores: every score against the same brittle labels, as data and as text.

Orientation. The four confidence scores are large where the model is sure. Every non-certificate score is reported as
the paper ranks by it (`orientation = "paper"`: s as defined) and `oriented`: the better of s and -s on validation rows.
Scores of certificates and failure modes, and the rehearsal, are never turned round.
"""

from __future__ import annotations

import math
import typing
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fragility.analysis.ranking.metrics import (
    BUDGETS,
    DEFINED,
    aurc,
    auroc,
    better_direction,
    capture_at,
    false_confidence_captured,
    quantile_interval,
    ranking_state,
    resampled_aurocs,
)
from fragility.analysis.ranking.scores import (
    MODE_SCORES,
    REHEARSAL_SCORES,
    collect_scores,
    in_reading_order,
    is_baseline,
    natural_direction,
    score_kind,
)
from fragility.audits import Certificates
from fragility.base.arrays import Booleans, Floats, Integers
from fragility.base.errors import DataError
from fragility.base.ids import places_by_id
from fragility.base.text import BriefRepr, align_columns, format_number
from fragility.pages.results import NanEqual, TabularReport

_COMPARED = ("cfc_exposure", "cfc_fds", "cfc_rcma", *MODE_SCORES, *REHEARSAL_SCORES)


class Labels(typing.Protocol):
    """The part of a set of brittle labels that metrics need (see `fragility.questions.stress.labels.BrittleLabels`)."""

    @property
    def id(self) -> npt.NDArray[Any]: ...
    @property
    def high_confidence(self) -> Booleans: ...  # rows the ranking is judged on
    @property
    def brittle(self) -> Booleans: ...
    @property
    def statistic(self) -> Floats: ...  # what the rule compares with its threshold: large for a row that breaks


@dataclass(frozen=True, slots=True, eq=False)
class ScoreResult(NanEqual):
    """One score in one orientation. An undefined metric is NaN, and `state` says why."""

    score: str
    kind: str
    orientation: str  # "paper": s as defined; "oriented": direction * s
    direction: int
    state: str
    rows: int  # high-confidence rows that have this score
    brittle: int
    auroc: float
    capture_5: float
    capture_10: float
    capture_20: float
    false_confidence_captured_20: float
    aurc: float


@dataclass(frozen=True, slots=True, eq=False)
class Ceiling(NanEqual):
    """Label-noise ceiling: AUROC of the statistic of the rule over independent draws against the labels."""

    auroc: float
    state: str


@dataclass(frozen=True, slots=True, eq=False)
class Comparison(NanEqual):
    """AUROC of one score minus an oriented baseline on the rows both have, with an interval over rows."""

    score: str
    baseline: str
    difference: float
    low: float
    high: float
    rows: int


@dataclass(frozen=True, slots=True, repr=False)
class RankingReport(TabularReport, BriefRepr):
    """How well every score finds the brittle rows among the high-confidence ones."""

    rows: int
    high_confidence: int
    brittle: int
    wrong: int | None  # wrong high-confidence predictions; None if the truth was not given
    wrong_brittle: int | None
    orientation_source: str
    results: tuple[ScoreResult, ...]
    comparisons: tuple[Comparison, ...]
    ceiling: Ceiling | None

    @property
    def lines(self) -> tuple[ScoreResult, ...]:  # type: ignore[override]
        """The results, one per score and orientation."""
        return self.results

    def result(self, score: str, orientation: str = "oriented") -> ScoreResult:
        """Return the line of one score."""
        for line in self.results:
            if line.score == score and line.orientation == orientation:
                return line
        scores = sorted({line.score for line in self.results})
        raise DataError(f"no result for score {score!r} ({orientation}); scores are {scores}")

    def strongest(self, kinds: Sequence[str]) -> ScoreResult | None:
        """Return the oriented line with the highest AUROC among the kinds; None if none is defined."""
        lines = [r for r in self.results if r.kind in kinds and r.orientation == "oriented" and r.state == DEFINED]
        return max(lines, key=lambda line: line.auroc, default=None)

    def undefined(self) -> dict[str, int]:
        """Return how many scores have no AUROC, by reason."""
        return dict(Counter(r.state for r in self.results if r.orientation == "oriented" and r.state != DEFINED))

    def to_text(self) -> str:
        """Return counts, ceiling and one line per score, to read in a terminal."""
        counts = f"{self.rows} rows, {self.high_confidence} high-confidence, {self.brittle} of them brittle"
        if self.wrong is None:
            counts += "; truth not given, so wrong predictions are not counted."
        else:
            counts += f"; {self.wrong} high-confidence predictions are wrong, {self.wrong_brittle} of these brittle."
        if self.ceiling is None:
            ceiling = "Label-noise ceiling: not measured."
        elif self.ceiling.state != DEFINED:
            ceiling = f"Label-noise ceiling: {self.ceiling.state}."
        else:
            ceiling = f"Label-noise ceiling (AUROC of independent draws): {self.ceiling.auroc:.3f}."
        cells: list[tuple[str, ...]] = [
            ("score", "as paper", "oriented", "reversed", "@5%", "@10%", "@20%", "wrong@20%", "AURC", "note")
        ]
        for name in dict.fromkeys(line.score for line in self.results):
            paper, turned = self.result(name, "paper"), self.result(name)
            note = "" if turned.state == DEFINED else turned.state
            if not note and turned.rows < self.high_confidence:
                note = f"on {turned.rows} rows"
            areas = (format_number(paper.auroc), format_number(turned.auroc), "yes" if turned.direction < 0 else "")
            captures = (turned.capture_5, turned.capture_10, turned.capture_20, turned.false_confidence_captured_20)
            cells.append((name, *areas, *map(format_number, (*captures, turned.aurc)), note))
        source = f"Orientation chosen on {self.orientation_source}; captures and AURC use the oriented score."
        return "\n".join([counts, ceiling, "", *align_columns(cells), "", source])

    def __str__(self) -> str:
        return self.to_text()


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
        Further scores by name, in the rows' order, NaN if unknown.
    validation : tuple of (scores, labels), optional
        Of validation rows, which decide between s and -s. Without it the choice is made on the judged rows themselves,
        in every baseline's favour.
    wrong : array of bool of shape (n,), optional
        Whether the prediction is wrong, for FalseConfCaptured@20.
    independent : BrittleLabels, optional
        Labels of the same rows from other draws, for the ceiling.
    resamples, seed : int, default=2000 and 0
        Row resamples for the intervals of the differences (0 leaves them out), and their seed.

    Returns
    -------
    RankingReport
        One line per score and orientation; printed as a table, exported by ``to_pandas``, ``to_arrow`` and ``save``.

    See Also
    --------
    evaluate : Labels, scores and verdict in one call.
    label_brittle : Makes the labels.
    """
    of_certificates = {} if certs is None else collect_scores(certs, probabilities)
    further = {name: np.asarray(s, dtype=np.float64) for name, s in (scores or {}).items()}
    table = in_reading_order({**of_certificates, **further})
    rows = slice(None) if certs is None else _match_rows(labels, certs.claims.ids)
    keep = np.asarray(labels.high_confidence, dtype=bool)[rows]
    brittle = np.asarray(labels.brittle, dtype=bool)[rows][keep]
    misses = None if wrong is None else np.asarray(wrong, dtype=bool)[keep]
    for name, values in table.items():
        if values.shape != keep.shape:
            raise DataError(f"score {name!r} must have one value for each of the {len(keep)} rows, got {values.shape}")
    kept = {name: values[keep] for name, values in table.items()}
    directions = {name: _choose_direction(name, values, brittle, validation) for name, values in kept.items()}
    return RankingReport(
        rows=len(keep),
        high_confidence=int(keep.sum()),
        brittle=int(brittle.sum()),
        wrong=None if misses is None else int(misses.sum()),
        wrong_brittle=None if misses is None else int((misses & brittle).sum()),
        orientation_source="judged rows, in each baseline's favour" if validation is None else "validation rows",
        results=tuple(
            _measure_score(name, values, orientation, direction, brittle, misses)
            for name, values in kept.items()
            for orientation, direction in (("paper", 1), ("oriented", directions[name]))
        ),
        comparisons=_compare_with_baselines(kept, directions, brittle, resamples, seed),
        ceiling=None if independent is None else label_noise_ceiling(labels, independent),
    )


def _match_rows(labels: Labels, ids: Sequence[object]) -> Integers:
    """Return the places of `ids` among the labelled rows."""
    rows, missing = places_by_id(ids, np.asarray(labels.id).tolist())
    if missing:
        raise DataError(
            f"labels lack {len(missing)} of the {len(ids)} certified rows, e.g. id {missing[0]!r}; "
            "label the same rows with the same ids"
        )
    return rows


def _choose_direction(
    name: str, scores: Floats, brittle: Booleans, validation: tuple[Mapping[str, npt.ArrayLike], Labels] | None
) -> int:
    """Return +1 for a score of ours; for a baseline the direction that is better on the validation rows."""
    if not is_baseline(name):
        return 1
    fallback = natural_direction(name)
    if validation is None:
        return better_direction(scores, brittle, fallback)
    held, labels = validation
    if name not in held:
        return fallback
    keep = np.asarray(labels.high_confidence, dtype=bool)
    return better_direction(np.asarray(held[name])[keep], np.asarray(labels.brittle)[keep], fallback)


def _measure_score(
    name: str, scores: Floats, orientation: str, direction: int, brittle: Booleans, wrong: Booleans | None
) -> ScoreResult:
    s = direction * scores
    defined = ~np.isnan(s)
    captures = {f"capture_{budget * 100:.0f}": capture_at(s, brittle, budget) for budget in BUDGETS}
    return ScoreResult(
        score=name,
        kind=score_kind(name),
        orientation=orientation,
        direction=direction,
        state=ranking_state(s, brittle),
        rows=int(defined.sum()),
        brittle=int(brittle[defined].sum()),
        auroc=auroc(s, brittle),
        false_confidence_captured_20=math.nan if wrong is None else false_confidence_captured(s, brittle, wrong),
        aurc=aurc(s, brittle),
        **captures,
    )


def _compare_with_baselines(
    kept: Mapping[str, Floats], directions: Mapping[str, int], brittle: Booleans, resamples: int, seed: int
) -> tuple[Comparison, ...]:
    """Compare exposure, FDS, RCMA and the exposures to failure modes with every oriented baseline.

    The rows are those that have the baseline's score.
    """
    compared = [name for name in _COMPARED if name in kept]
    baselines = [name for name in kept if is_baseline(name)]
    subsets: dict[bytes, list[str]] = {}  # baselines known on the same rows share their resamples
    for name in baselines:
        subsets.setdefault(np.isnan(kept[name]).tobytes(), []).append(name)
    comparisons: dict[tuple[str, str], Comparison] = {}
    for subset in subsets.values():
        known = ~np.isnan(kept[subset[0]])
        label, names = brittle[known], [*compared, *subset]
        oriented = [directions[name] * kept[name][known] for name in names]
        area = {name: auroc(scores, label) for name, scores in zip(names, oriented, strict=True)}
        drawn = dict(zip(names, resampled_aurocs(oriented, label, resamples=resamples, seed=seed), strict=True))
        for s in compared:
            for b in subset:
                low, high = quantile_interval(drawn[s] - drawn[b])
                comparisons[s, b] = Comparison(s, b, area[s] - area[b], low, high, int(known.sum()))
    return tuple(comparisons[s, b] for s in compared for b in baselines)


def label_noise_ceiling(labels: Labels, independent: Labels) -> Ceiling:
    """Return the AUROC with which the rule's own statistic, over independent draws, predicts the labels.

    High-confidence rows count. A score that knew everything about the row except which random numbers the labels drew
    would do about this well; one with less noise than so many draws can pass it.
    """
    rows = _match_rows(independent, np.asarray(labels.id).tolist())
    keep = np.asarray(labels.high_confidence, dtype=bool)
    statistic, brittle = np.asarray(independent.statistic)[rows][keep], np.asarray(labels.brittle)[keep]
    return Ceiling(auroc(statistic, brittle), ranking_state(statistic, brittle))
