"""What the study takes from the inside of fragility, in one place.

Public names are used as ``fg.audit``, ``fg.Protocol`` and so on. The study also needs pieces below the public door: it
scores rows that are bound once, and it tries variants of formulas that a user has no reason to change.
"""

from fragility._audit import claims_from
from fragility.arrays import DEFAULT_BYTE_BUDGET
from fragility.calibration import scaled_probabilities
from fragility.certificates import Claims
from fragility.engines.blackbox import ENGINE as BLACKBOX
from fragility.engines.blackbox import trace_blackbox
from fragility.engines.choice import NativeEngine, choose_native
from fragility.evidence import EvidenceRows
from fragility.evidence.agreement import original_class
from fragility.evidence.groups import merged_fields
from fragility.files import replacing, write_text
from fragility.protocol import bind
from fragility.ranking import (
    MeanInterval,
    PairedDifference,
    aurc,
    auroc,
    better_direction,
    bootstrap_mean,
    capture_at,
    certificate_scores,
    concentration,
    confidence_scores,
    false_confidence_captured,
    group_shap,
    natural_direction,
    paired_bootstrap,
    permutation_importance_order,
    predictive_metrics,
    random_order_score,
    ranking_state,
    rcma_along,
)
from fragility.ranking.predictive import brier_score, expected_calibration_error, negative_log_likelihood
from fragility.resmlp import Device
from fragility.scores import (
    clipped_probabilities,
    collapse,
    fds,
    flip_budget,
    pseudo_logits,
    rcma,
    softmax_probabilities,
)
from fragility.search import failing_sets_of_rows
from fragility.stress import BrittleLabels, label_rows, run_stress_rows

__all__ = [
    "BLACKBOX",
    "DEFAULT_BYTE_BUDGET",
    "BrittleLabels",
    "Claims",
    "Device",
    "EvidenceRows",
    "MeanInterval",
    "NativeEngine",
    "PairedDifference",
    "aurc",
    "auroc",
    "better_direction",
    "bind",
    "bootstrap_mean",
    "brier_score",
    "capture_at",
    "certificate_scores",
    "choose_native",
    "claims_from",
    "clipped_probabilities",
    "collapse",
    "concentration",
    "confidence_scores",
    "expected_calibration_error",
    "failing_sets_of_rows",
    "false_confidence_captured",
    "fds",
    "flip_budget",
    "group_shap",
    "label_rows",
    "merged_fields",
    "natural_direction",
    "negative_log_likelihood",
    "original_class",
    "paired_bootstrap",
    "permutation_importance_order",
    "predictive_metrics",
    "pseudo_logits",
    "random_order_score",
    "ranking_state",
    "rcma",
    "rcma_along",
    "replacing",
    "run_stress_rows",
    "scaled_probabilities",
    "softmax_probabilities",
    "trace_blackbox",
    "write_text",
]
