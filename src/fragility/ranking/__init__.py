"""Does a score put the brittle cases first? Scores, their metrics, the uncertainty of both, and one comparison of all.

A ranking score s gives every prediction a number; the metrics ask how well descending s finds the brittle rows among
the high-confidence ones.
"""

from fragility.ranking.attribution import GroupShap, concentration, group_shap
from fragility.ranking.bootstrap import (
    MeanInterval,
    PairedDifference,
    bootstrap_auroc_difference,
    bootstrap_mean,
    paired_bootstrap,
    resampled_aurocs,
)
from fragility.ranking.comparison import compare_scores, label_noise_ceiling
from fragility.ranking.metrics import (
    ALL_BRITTLE,
    DEFINED,
    NO_BRITTLE,
    NO_ROWS,
    NO_SCORE,
    aurc,
    auroc,
    better_direction,
    capture_at,
    false_confidence_captured,
    ranking_state,
    residual_risk,
)
from fragility.ranking.orders import permutation_importance_order, random_order_score, rcma_along
from fragility.ranking.predictive import (
    PredictiveMetrics,
    ReliabilityCurve,
    brier_score,
    class_codes,
    expected_calibration_error,
    negative_log_likelihood,
    predictive_metrics,
    reliability_curve,
)
from fragility.ranking.report import Ceiling, Comparison, Labels, RankingReport, ScoreResult
from fragility.ranking.scores import (
    CERTIFICATE_SCORES,
    CONFIDENCE_SCORES,
    certificate_scores,
    confidence_scores,
    margin,
    max_softmax,
    natural_direction,
    negative_energy,
    negative_entropy,
    score_kind,
    scores_of,
)

__all__ = [
    "ALL_BRITTLE",
    "CERTIFICATE_SCORES",
    "CONFIDENCE_SCORES",
    "DEFINED",
    "NO_BRITTLE",
    "NO_ROWS",
    "NO_SCORE",
    "Ceiling",
    "Comparison",
    "GroupShap",
    "Labels",
    "MeanInterval",
    "PairedDifference",
    "PredictiveMetrics",
    "RankingReport",
    "ReliabilityCurve",
    "ScoreResult",
    "aurc",
    "auroc",
    "better_direction",
    "bootstrap_auroc_difference",
    "bootstrap_mean",
    "brier_score",
    "capture_at",
    "certificate_scores",
    "class_codes",
    "compare_scores",
    "concentration",
    "confidence_scores",
    "expected_calibration_error",
    "false_confidence_captured",
    "group_shap",
    "label_noise_ceiling",
    "margin",
    "max_softmax",
    "natural_direction",
    "negative_energy",
    "negative_entropy",
    "negative_log_likelihood",
    "paired_bootstrap",
    "permutation_importance_order",
    "predictive_metrics",
    "random_order_score",
    "ranking_state",
    "rcma_along",
    "reliability_curve",
    "resampled_aurocs",
    "residual_risk",
    "score_kind",
    "scores_of",
]
