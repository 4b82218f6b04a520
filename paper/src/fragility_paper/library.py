"""What the study takes from the inside of fragility, in one place.

Public names are used as ``fg.audit``, ``fg.Protocol`` and so on. The study also needs pieces below the public door: it
scores rows that are bound once, and it tries variants of formulas that a user has no reason to change.
"""

from fragility.analysis.calibration import FragilityTemperature, scaled_probabilities
from fragility.analysis.policy import STARTS, ReviewRule, fit_rule, upper_limit
from fragility.analysis.ranking.comparison import label_noise_ceiling
from fragility.analysis.ranking.metrics import (
    MeanInterval,
    PairedDifference,
    aurc,
    auroc,
    better_direction,
    bootstrap_mean,
    brier_score,
    capture_at,
    expected_calibration_error,
    false_confidence_captured,
    negative_log_likelihood,
    paired_bootstrap,
    predictive_metrics,
    quantile_interval,
    ranking_state,
    resampled_aurocs,
)
from fragility.analysis.ranking.scores import (
    CERTIFICATE_SCORES,
    certificate_scores,
    concentration,
    confidence_scores,
    group_shap,
    natural_direction,
    permutation_importance_order,
    random_order_score,
    rcma_along,
)
from fragility.analysis.resmlp import Device, FragilityPenalty
from fragility.auditing.certifying import PartAuditor, TracedRows
from fragility.audits import Claims
from fragility.base.arrays import DEFAULT_BYTE_BUDGET
from fragility.base.files import replacing, write_text
from fragility.blocks.claims import claims_from
from fragility.engines.blackbox import ENGINE as BLACKBOX
from fragility.engines.blackbox import trace_blackbox
from fragility.engines.choice import choose_engine, choose_oracle
from fragility.engines.engine import Engine
from fragility.engines.lattice.whole import find_lattice
from fragility.engines.oracle import Oracle
from fragility.evidence import EvidenceRows, States
from fragility.evidence.agreement import original_class
from fragility.evidence.groups import merged_fields
from fragility.evidence.modes import values_frame
from fragility.evidence.rows import input_row_digests
from fragility.pages.results import NanEqual
from fragility.protocol import bind
from fragility.questions.modes.losses import ModeLosses, losses_of_rows
from fragility.questions.search import FailingSets, failing_sets_of_rows
from fragility.questions.stress.declaration import outage_events
from fragility.questions.stress.draws import Draws, Words, strikes, uniforms
from fragility.questions.stress.labels import (
    MOST_DONORS,
    BrittleLabels,
    collapse_under,
    label_rows,
    rehearse_rows,
    run_stress_rows,
    with_donors,
)
from fragility.questions.stress.stressors import Donor, Layout, Stressor
from fragility.scores import (
    EARLY,
    clipped_probabilities,
    collapse,
    common_loss,
    exposure,
    fds,
    flip_budget,
    independent_loss,
    pseudo_logits,
    rcma,
    softmax_probabilities,
)

__all__ = [
    "BLACKBOX",
    "CERTIFICATE_SCORES",
    "DEFAULT_BYTE_BUDGET",
    "EARLY",
    "MOST_DONORS",
    "STARTS",
    "BrittleLabels",
    "Claims",
    "Device",
    "Donor",
    "Draws",
    "Engine",
    "EvidenceRows",
    "FailingSets",
    "FragilityPenalty",
    "FragilityTemperature",
    "Layout",
    "MeanInterval",
    "ModeLosses",
    "NanEqual",
    "Oracle",
    "PairedDifference",
    "PartAuditor",
    "ReviewRule",
    "States",
    "Stressor",
    "TracedRows",
    "Words",
    "aurc",
    "auroc",
    "better_direction",
    "bind",
    "bootstrap_mean",
    "brier_score",
    "capture_at",
    "certificate_scores",
    "choose_engine",
    "choose_oracle",
    "claims_from",
    "clipped_probabilities",
    "collapse",
    "collapse_under",
    "common_loss",
    "concentration",
    "confidence_scores",
    "expected_calibration_error",
    "exposure",
    "failing_sets_of_rows",
    "false_confidence_captured",
    "fds",
    "find_lattice",
    "fit_rule",
    "flip_budget",
    "group_shap",
    "independent_loss",
    "input_row_digests",
    "label_noise_ceiling",
    "label_rows",
    "losses_of_rows",
    "merged_fields",
    "natural_direction",
    "negative_log_likelihood",
    "original_class",
    "outage_events",
    "paired_bootstrap",
    "permutation_importance_order",
    "predictive_metrics",
    "pseudo_logits",
    "quantile_interval",
    "random_order_score",
    "ranking_state",
    "rcma",
    "rcma_along",
    "rehearse_rows",
    "replacing",
    "resampled_aurocs",
    "run_stress_rows",
    "scaled_probabilities",
    "softmax_probabilities",
    "strikes",
    "trace_blackbox",
    "uniforms",
    "upper_limit",
    "values_frame",
    "with_donors",
    "write_text",
]
