"""What agrees with the paper and what does not: each statement has a condition on the numbers that decides its side.

A statement is written twice, as it reads where it agrees and where it does not; the results choose. Names after a
dollar sign are facts of :mod:`~fragility_paper.reproduction`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fragility_paper import paper_values as paper
from fragility_paper.models import MODELS
from fragility_paper.results import StudyResults
from fragility_paper.table import mean
from fragility_paper.tables.quantities import (
    CONFIDENCE,
    PERTURBATION,
    at_level,
    compare,
    gaps_to_paper,
    predictive_auroc,
    ranking_values,
    rcma_gap,
    strongest,
    strongest_baselines,
    weighted_mean,
    winners,
    wins_over_random_order,
)

CLOSE = 0.03  # a mean this near to the paper's counts as agreement
FORESTS = tuple(name for name, spec in MODELS.items() if spec.family == "forest")


@dataclass(frozen=True, slots=True)
class Statement:
    """Agrees where ``holds``; the other text goes under what does not."""

    holds: Callable[[StudyResults], bool]
    agrees: str
    differs: str


def sorted_statements(results: StudyResults) -> tuple[str, str]:
    """The two lists as Markdown with facts still to be filled in."""
    held = [(statement, statement.holds(results)) for statement in STATEMENTS]
    agree = [statement.agrees for statement, holds in held if holds]
    differ = [statement.differs for statement, holds in held if not holds]
    return _bullets(agree), _bullets(differ)


def _bullets(texts: list[str]) -> str:
    return "\n".join(f"- {text}" for text in texts) or "- Nothing."


def _area(results: StudyResults, score: str, **where: str) -> float:
    return mean(ranking_values(results, score, **where))


def _near(ours: float, printed: float, by: float = CLOSE) -> bool:
    return abs(ours - printed) <= by


def _better_than_parts(results: StudyResults) -> bool:
    parts = ("cfc_rcma", "inverse_flip_budget", "inverse_threshold")
    return all(_area(results, "cfc_fds") > _area(results, part) for part in parts)


def _often_another_model(results: StudyResults) -> bool:
    chosen = winners(results).values()
    return 2 * sum(best != calm for best, calm in chosen) >= len(chosen)


def _strongest_in_outages(results: StudyResults) -> bool:
    best = strongest(results, (*CONFIDENCE, *PERTURBATION), analysis="naturalistic")
    ours = _area(results, "cfc_fds", analysis="naturalistic")
    return ours > mean(ranking_values(results, best, "oriented", analysis="naturalistic"))


def _wins_everywhere(results: StudyResults) -> bool:
    _, anything = strongest_baselines(results)
    return compare(results, "cfc_fds", anything, "oriented").win_rate == 1.0


def _gain_holds(results: StudyResults) -> bool:
    confidence, _ = strongest_baselines(results)
    return _near(compare(results, "cfc_fds", confidence, "oriented").mean, paper.MAIN_DELTA["cfc_fds"][0], 0.05)


def _electricity(results: StudyResults) -> bool:
    ours = mean(at_level(ranking_values(results, "cfc_fds"), "dataset", ["electricity"]))
    return _near(ours, paper.SCORE_COMPARISON["cfc_fds"]["electricity"])


def _forests_like_others(results: StudyResults) -> bool:
    return wins_over_random_order(results, FORESTS) >= 0.5


def _greedy(results: StudyResults) -> bool:
    found = results.pick("search", metric="greedy_over").dropna(subset=["value"])
    return _near(weighted_mean(found), paper.GREEDY_EXACT_BEAM["mean"][2])


def _calibration_helps(results: StudyResults) -> bool:
    """BATS lowers the fragile ECE of plain temperature scaling by at least half of what the paper prints."""
    ours = [mean(results.per_unit("calibration", metric="fragile_ece", score=name)) for name in ("temperature", "bats")]
    printed = [paper.BATS[name][2] for name in ("temperature", "bats")]
    return ours[0] - ours[1] >= (printed[0] - printed[1]) / 2


def _training_helps(results: StudyResults) -> bool:
    """The regularised twin has the lower mean RCMA, the paper's own measure."""
    plain, aware = (
        mean(results.per_unit("certificate", metric="rcma", rows="any", reading="current", model=name))
        for name in ("resmlp", "fr_resmlp")
    )
    return aware < plain


def _outages_defined(results: StudyResults) -> bool:
    return not ranking_values(results, "cfc_fds", analysis="naturalistic").isna().any()


STATEMENTS: tuple[Statement, ...] = (
    Statement(
        lambda results: mean(gaps_to_paper(predictive_auroc(results), paper.MAIN_AUROC)) <= CLOSE,
        """**Predictive quality.** Our untuned models differ from the paper's AUROC by $auroc_gap on average over
  dataset-model pairs (largest difference $auroc_worst).""",
        """**Predictive quality.** Our untuned models differ from the paper's AUROC by as much as $auroc_gap on
  average over dataset-model pairs (largest difference $auroc_worst).""",
    ),
    Statement(
        lambda results: rcma_gap(results, "current") < rcma_gap(results, "support"),
        """**RCMA, read literally.** With the margin of whichever class leads (`current`), mean RCMA differs from
  the paper's table by $rcma_gap_current on average. With the margin of the original class, bounded
  (`support`), by $rcma_gap_support; unbounded, as the paper's appendix says in words, means reach
  $rcma_unbounded, so that cannot be what the table holds.""",
        """**RCMA** differs from the paper's table by $rcma_gap_current on average with the margin of whichever
  class leads (`current`), by $rcma_gap_support with that of the original class (`support`).""",
    ),
    Statement(
        lambda results: _near(_area(results, "cfc_fds"), paper.MAIN_CI["cfc_fds"][0]),
        """**CFC-FDS ranks brittle rows well.** $fds here, 0.915 in the paper; the smallest over units is $fds_low.
  With the other label rule it is $fds_any.""",
        """**CFC-FDS ranks brittle rows** with AUROC $fds here, 0.915 in the paper; the smallest over units is
  $fds_low. With the other label rule it is $fds_any.""",
    ),
    Statement(
        _better_than_parts,
        """**FDS is better than each of its parts** on average (table of components; rank correlation with the
  temperature-scaled model $temperature_correlation).""",
        """**FDS is not better than each of its parts** on average (table of components).""",
    ),
    Statement(
        _often_another_model,
        """**The best model by AUROC is often not the most stable one**: they differ on $winners_differ of
  $winners_all data sets ($winners_list).""",
        """**The best model by AUROC is mostly the most stable one too**: they differ on $winners_differ of
  $winners_all data sets.""",
    ),
    Statement(
        _strongest_in_outages,
        """**FDS is ahead of every baseline under naturalistic unavailability**: $natural_fds (paper 0.827), against
  $natural_best for the best oriented baseline on all rows ($natural_best_name).""",
        """**FDS is not ahead of every baseline under naturalistic unavailability**: $natural_fds (paper 0.827),
  against $natural_best for the best oriented baseline on all rows ($natural_best_name).""",
    ),
    Statement(
        _gain_holds,
        """**The gain over confidence** is $against_confidence_mean with confidence turned toward brittleness (paper
  +0.405).""",
        """**Confidence is not useless.** The paper ranks by confidence itself, so that a score which is low on
  brittle rows gets an AUROC under one half. Its 0.36 is 0.64 turned round. Here max-softmax is
  $max_softmax_paper as the paper ranks and $max_softmax_oriented oriented on validation rows.""",
    ),
    Statement(
        _wins_everywhere,
        """**FDS is above the strongest perturbation baseline**, $best_anything, in every unit.""",
        """**Perturbation baselines are strong.** Random group order is 0.504 in the paper; here RCMA along a few
  random orders reaches $random_order. The one-step drop reaches $one_step (paper 0.662) and a global
  permutation-importance order $permutation (paper 0.691). FDS beats the strongest of them, $best_anything,
  in $against_anything_wins of units and loses or ties in $against_anything_losses; the paper reports a win
  in every unit.""",
    ),
    Statement(
        _forests_like_others,
        """**Forests.** For random forests and extra trees FDS is above random group order in $forest_wins of units.
  They give probability 1 to $forest_saturated of their confident rows.""",
        """**Forests.** For random forests and extra trees FDS is above random group order in only $forest_wins of
  units. They give probability 1 to $forest_saturated of their confident rows. Clipped at 1e-12 that is a
  margin of 27.6, which the slightest change collapses: $forest_brittle_saturated of these rows count as
  brittle against $forest_brittle_other of the others, and $forest_no_flip of the brittle rows never flip
  on their path. Half of a margin is not half of the support where probabilities saturate; for forests we
  would trust the flip budget and the path more than RCMA or the collapse part of the label.""",
    ),
    Statement(
        lambda results: _near(_area(results, "cfc_rcma"), paper.MAIN_CI["cfc_rcma"][0]),
        """**RCMA alone** ranks with AUROC $rcma_auroc (paper 0.590), $rcma_current_auroc in the paper's own
  reading.""",
        """**RCMA alone is another score than printed** in the `support` reading ($rcma_auroc against 0.590). In the
  paper's own reading it is $rcma_current_auroc: a prediction that flips firmly to another class counts as
  well supported again, so literal RCMA ranks by the wrong thing. FDS hides this, because its other two
  terms know about flips.""",
    ),
    Statement(
        _electricity,
        """**Electricity.** $fds_electricity here, 0.952 in the paper.""",
        """**Electricity.** The paper reports 0.952. We find $fds_electricity, with a label-noise ceiling of
  $ceiling_electricity. There the first removed group alone takes $first_electricity of the margin on
  average ($first_all over all data sets), and two sets of draws agree on the label for
  $agreement_electricity of rows.""",
    ),
    Statement(
        lambda results: _near(
            mean(ranking_values(results, "group_shap", "oriented", analysis="attribution")),
            paper.ATTRIBUTION["group_shap"],
        ),
        """**Group-SHAP**: $shap_oriented oriented (paper 0.718), against $shap_fds for FDS on the same rows.""",
        """**Group-SHAP**: $shap_oriented oriented here (paper 0.718), against $shap_fds for FDS on the same rows.""",
    ),
    Statement(
        _outages_defined,
        """**Naturalistic unavailability** breaks some and spares some confident rows in all $natural_units eligible
  units.""",
        """**Naturalistic unavailability is rare damage**: $natural_undefined of $natural_units eligible units have
  no confident row that breaks under the observed outage patterns, or only such rows, so the mean above
  speaks for the others. The paper does not mention such units.""",
    ),
    Statement(
        _greedy,
        """**Greedy paths** overestimate the smallest failing set in $greedy_over of $exact_cases exact-feasible
  rows (paper 0.092).""",
        """**Greedy paths**: on $exact_cases exact-feasible rows greedy overestimates the smallest failing set in
  $greedy_over of them (paper 0.092).""",
    ),
    Statement(
        lambda results: _near(_area(results, "cfc_fds", metric="capture_20"), paper.REVIEW_BUDGET["cfc_fds"][2]),
        """**A 20% review budget** captures $capture_20 of the brittle rows (paper 0.914).""",
        """**A 20% review budget captures $capture_20** of the brittle rows, not 0.914; a perfect ranking would
  capture $perfect_20 on average, because in some units more than a fifth of the confident rows are
  brittle.""",
    ),
    Statement(
        _calibration_helps,
        """**Brittleness-aware temperature** lowers fragile ECE: $fragile_ece_raw (raw), $fragile_ece_temperature
  (temperature), $fragile_ece_bats (BATS).""",
        """**Brittleness-aware temperature** does little here: fragile ECE goes from $fragile_ece_raw (raw) to
  $fragile_ece_temperature (temperature) to $fragile_ece_bats (BATS); the paper has 0.167, 0.124, 0.071.
  Validation rows chose eta = 0, plain temperature scaling, in $eta_zero of $eta_units units.""",
    ),
    Statement(
        _training_helps,
        """**Fragility-regularised training** lowers mean RCMA, the paper's own measure (table below, with what it
  costs).""",
        """**Fragility-regularised training** does not lower mean RCMA, the paper's own measure. What it does to
  flips, brittle rows, AUROC, likelihood and confidence is in the table below.""",
    ),
)
