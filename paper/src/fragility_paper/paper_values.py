"""The values printed in the paper's tables, transcribed; nothing here is computed.

Each constant names the label of the table it comes from. Data sets and models are named as in
:mod:`fragility_paper.data` and :mod:`fragility_paper.models`.
"""

from __future__ import annotations

from collections.abc import Mapping

DATASET_ORDER = ("adult", "bank_marketing", "credit_g", "default_credit", "electricity", "heloc", "covertype")
MODEL_ORDER = (
    "logreg",
    "rf",
    "extratrees",
    "xgboost",
    "lightgbm",
    "catboost",
    "mlp",
    "resmlp",
    "fr_resmlp",
)


def _grid(rows: str, names: tuple[str, ...]) -> dict[str, dict[str, float]]:
    lines = [[float(value) for value in line.split()] for line in rows.strip().splitlines()]
    return {name: dict(zip(DATASET_ORDER, values, strict=True)) for name, values in zip(names, lines, strict=True)}


# tab:alphacast_style_main
MAIN_AUROC: Mapping[str, Mapping[str, float]] = _grid(
    """
    0.906 0.911 0.795 0.729 0.827 0.784 0.926
    0.919 0.933 0.811 0.781 0.965 0.799 0.997
    0.881 0.914 0.788 0.767 0.962 0.796 0.998
    0.931 0.938 0.796 0.784 0.969 0.791 0.985
    0.926 0.934 0.799 0.772 0.984 0.785 0.998
    0.932 0.940 0.802 0.787 0.953 0.799 0.984
    0.915 0.933 0.735 0.780 0.914 0.796 0.995
    0.915 0.932 0.810 0.781 0.923 0.798 0.997
    0.915 0.931 0.803 0.779 0.920 0.795 0.997
    """,
    MODEL_ORDER,
)
MAIN_RCMA: Mapping[str, Mapping[str, float]] = _grid(
    """
    0.466 0.557 0.352 0.402 0.517 0.345 0.155
    0.346 0.522 0.479 0.169 0.546 0.426 0.564
    0.538 0.570 0.508 0.204 0.619 0.461 0.705
    0.344 0.498 0.420 0.310 0.375 0.411 0.447
    0.497 0.484 0.480 0.285 0.313 0.425 0.180
    0.375 0.462 0.507 0.137 0.351 0.443 0.446
    0.497 0.533 0.274 0.202 0.440 0.403 0.491
    0.506 0.549 0.410 0.263 0.424 0.350 0.508
    0.493 0.553 0.411 0.248 0.444 0.373 0.519
    """,
    MODEL_ORDER,
)

# tab:score_comparison
SCORE_ORDER = ("max_softmax", "negative_entropy", "margin", "negative_energy", "cfc_rcma", "cfc_fds")
SCORE_COMPARISON: Mapping[str, Mapping[str, float]] = _grid(
    """
    0.361 0.421 0.369 0.321 0.669 0.391 0.503
    0.361 0.421 0.369 0.321 0.669 0.391 0.505
    0.361 0.421 0.369 0.321 0.669 0.391 0.502
    0.523 0.520 0.500 0.504 0.507 0.505 0.510
    0.558 0.661 0.479 0.762 0.684 0.441 0.546
    0.929 0.935 0.868 0.962 0.952 0.831 0.928
    """,
    SCORE_ORDER,
)

# tab:main_ci_summary: AUROC, its interval; difference to Neg-energy, its interval; fraction of units with
# difference <= 0 (59 of 189 = 0.3122)
MAIN_CI: Mapping[str, tuple[float, float, float]] = {
    "max_softmax": (0.434, 0.413, 0.454),
    "negative_entropy": (0.434, 0.414, 0.454),
    "margin": (0.434, 0.414, 0.454),
    "negative_energy": (0.510, 0.504, 0.516),
    "cfc_rcma": (0.590, 0.570, 0.610),
    "cfc_fds": (0.915, 0.905, 0.925),
}
MAIN_DELTA: Mapping[str, tuple[float, float, float, float]] = {
    "cfc_rcma": (0.080, 0.060, 0.101, 0.3122),
    "cfc_fds": (0.405, 0.394, 0.416, 0.0),
}

# tab:nominal_vs_fragility
BEST_AUROC: Mapping[str, str] = {
    "adult": "catboost",
    "credit_g": "rf",
    "default_credit": "catboost",
    "heloc": "catboost",
}
LOWEST_RCMA: Mapping[str, str] = {
    "adult": "xgboost",
    "credit_g": "mlp",
    "default_credit": "catboost",
    "heloc": "logreg",
}

# tab:greedy_exact_beam: cases, ExactMatch, GreedyOver, MeanGap, PairMiss, BeamImprove
SEARCH_METRICS = ("exact_match", "greedy_over", "mean_gap", "pair_miss", "beam_improve")
GREEDY_EXACT_BEAM: Mapping[str, tuple[int, float, float, float, float, float]] = {
    "adult": (384, 0.891, 0.073, 0.09, 0.018, 0.044),
    "bank_marketing": (384, 0.879, 0.084, 0.11, 0.024, 0.052),
    "credit_g": (256, 0.846, 0.109, 0.16, 0.038, 0.069),
    "default_credit": (256, 0.862, 0.098, 0.14, 0.032, 0.063),
    "electricity": (384, 0.913, 0.057, 0.07, 0.014, 0.039),
    "heloc": (256, 0.834, 0.123, 0.18, 0.041, 0.077),
    "covertype": (128, 0.857, 0.102, 0.15, 0.036, 0.081),
    "mean": (2048, 0.869, 0.092, 0.13, 0.029, 0.061),
}

# tab:naturalistic_proxy: Adult/Bank/HELOC, all eligible data sets
NATURALISTIC: Mapping[str, tuple[float, float]] = {
    "max_softmax": (0.472, 0.481),
    "negative_energy": (0.541, 0.552),
    "one_step_drop": (0.644, 0.661),
    "group_shap": (0.682, 0.696),
    "cfc_rcma": (0.735, 0.748),
    "cfc_fds": (0.812, 0.827),
}

# tab:targeted_component_ablation: mean, minimum
COMPONENT_ABLATION: Mapping[str, tuple[float, float]] = {
    "negative_energy": (0.499, 0.490),
    "cfc_rcma": (0.640, 0.549),
    "inverse_threshold": (0.720, 0.620),
    "inverse_flip_budget": (0.812, 0.714),
    "cfc_fds": (0.976, 0.942),
}

# tab:targeted_design_stability
DESIGN_STABILITY: Mapping[tuple[str, str], float] = {
    ("depth", "3"): 0.991,
    ("depth", "10"): 0.976,
    ("depth", "15"): 0.975,
    ("weights", "equal"): 0.976,
    ("weights", "flip-heavy"): 0.967,
    ("weights", "degradation-heavy"): 0.973,
    ("calibration", "raw"): 0.976,
    ("calibration", "temperature"): 0.976,
    ("calibration", "rank correlation"): 1.000,
}

# tab:seed_level_variance: mean, SD, interval, win rate
SEED_VARIANCE: Mapping[str, tuple[float, float, float, float, float | None]] = {
    "negative_energy": (0.510, 0.042, 0.504, 0.516, None),
    "cfc_rcma": (0.590, 0.141, 0.571, 0.610, 0.688),
    "cfc_fds": (0.915, 0.069, 0.905, 0.925, 1.000),
}

# tab:review_budget_capture: Capture@5, @10, @20, FalseConfCaptured@20, AURC
REVIEW_METRICS = ("capture_5", "capture_10", "capture_20", "false_confidence_captured_20", "aurc")
REVIEW_BUDGET: Mapping[str, tuple[float, float, float, float, float]] = {
    "max_softmax": (0.112, 0.197, 0.318, 0.302, 0.284),
    "negative_entropy": (0.114, 0.201, 0.321, 0.309, 0.281),
    "margin": (0.121, 0.209, 0.337, 0.326, 0.276),
    "negative_energy": (0.146, 0.238, 0.374, 0.361, 0.263),
    "cfc_rcma": (0.318, 0.486, 0.672, 0.651, 0.194),
    "cfc_fds": (0.547, 0.731, 0.914, 0.872, 0.091),
}
CAPTURE_20_IN_TEXT = 0.889

# tab:baseline_sensitivity: CFC-FDS, best non-CFC
BASELINE_SENSITIVITY: Mapping[str, tuple[float, float]] = {
    "mean": (0.915, 0.510),
    "median": (0.911, 0.513),
    "zero": (0.896, 0.507),
    "mode": (0.906, 0.511),
}

# tab:attribution_baselines
ATTRIBUTION: Mapping[str, float] = {
    "max_softmax": 0.448,
    "negative_entropy": 0.449,
    "margin": 0.451,
    "negative_energy": 0.511,
    "random_order": 0.504,
    "one_step_drop": 0.662,
    "permutation_order": 0.691,
    "group_shap": 0.718,
    "cfc_rcma": 0.756,
    "cfc_fds": 0.914,
}

# tab:bats_calibration: ECE, Brier, fragile ECE, fragile NLL
BATS_METRICS = ("ece", "brier", "fragile_ece", "fragile_nll")
BATS: Mapping[str, tuple[float, float, float, float]] = {
    "raw": (0.092, 0.184, 0.167, 0.812),
    "temperature": (0.061, 0.171, 0.124, 0.746),
    "bats": (0.052, 0.165, 0.071, 0.621),
}
