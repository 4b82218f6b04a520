"""Everything that is measured on one unit: one data set, one model family, one seed.

The order of work keeps the channels apart. What is fitted (model, protocol, temperature) sees training and validation
rows only. Scores are made by :func:`scores_on`, which is not given labels; labels are made by the label channel,
which is not given scores; they meet in :func:`record_ranking`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import logsumexp
from scipy.stats import spearmanr
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.pipeline import Pipeline

from fragility.audit import audit
from fragility.calibration import BrittlenessAwareTemperature, scaled_probabilities
from fragility.certificates import Certificates
from fragility.evidence import EvidenceRows, merged_fields
from fragility.metrics import brier_score, expected_calibration_error, negative_log_likelihood
from fragility.models import Model
from fragility.protocol import Protocol, bind
from fragility.ranking import (
    aurc,
    auroc,
    better_direction,
    capture_at,
    certificate_scores,
    concentration,
    confidence_scores,
    false_confidence_captured,
    group_shap,
    natural_direction,
    permutation_importance_order,
    predictive_metrics,
    random_order_score,
    ranking_state,
    rcma_along,
)
from fragility.scores import (
    clipped_probabilities,
    collapse,
    fds,
    flip_budget,
    predicted_class,
    pseudo_logits,
    rcma,
    softmax_probabilities,
)
from fragility.search import failing_sets_of_rows, greedy_diagnostics
from fragility.stress import BrittleLabels, Stress, label_rows, run_stress_rows
from fragility.study.datasets import Dataset, Split, split
from fragility.study.models import Device, model_spec, train
from fragility.study.plan import Profile, Unit
from fragility.study.tidy import Recorder

EQUAL = (1 / 3, 1 / 3, 1 / 3)
WEIGHTS = {"equal": EQUAL, "flip-heavy": (1 / 6, 2 / 3, 1 / 6), "degradation-heavy": (1 / 6, 1 / 6, 2 / 3)}
DEPTHS = (3, 10, 15)
TAU_P = (0.85, 0.90, 0.95)
TAU_KAPPA = (0.25, 0.50, 0.75)
SEVERITIES = (0.1, 0.3, 0.5)
RULES = ("expected", "any")
HIGH_CONFIDENCE = 0.90
SATURATED = 27.6  # probabilities are clipped at 1e-12, so no margin exceeds log(1e12) = 27.63
MERGE_THRESHOLD = 0.8
MERGE_ROWS = 20_000  # training rows on which the association of fields is measured
CERTIFICATE = ("cfc_rcma", "cfc_fds", "inverse_flip_budget", "inverse_threshold", "cfc_rcma_current", "cfc_fds_current")
STRESSOR_SCORES = ("cfc_fds", "cfc_rcma", "max_softmax", "one_step_drop", "random_order", "permutation_order")
GRID_SCORES = ("cfc_fds", "cfc_rcma", "max_softmax", "one_step_drop")


# ------------------------------------------------------------------ the fitted unit


@dataclass(frozen=True, slots=True, eq=False)
class FittedUnit:
    """A trained model with its protocol; fitted on training rows, early stopping on validation rows."""

    unit: Unit
    data: Dataset
    split: Split
    pipeline: Pipeline
    model: Model  # the pipeline, wrapped once: its fingerprint is computed once
    protocol: Protocol
    engine: str = "auto"

    def rows(self, positions: np.ndarray) -> pd.DataFrame:
        return self.data.X.iloc[positions]

    def variant(self, *, baseline: str = "mean", grouping: str = "raw-origin") -> Protocol:
        """The protocol fitted on the training rows with another baseline or grouping."""
        return declared_protocol(self.unit, self.data, self.split, self.model, baseline, grouping)


# A protocol is decided by the training rows and the preprocessing, which all models of a split share: fitted once.
_PROTOCOLS: dict[tuple[str, int, int, str, str], Protocol] = {}


def declared_protocol(
    unit: Unit, data: Dataset, parts: Split, model: Model, baseline: str = "mean", grouping: str = "raw-origin"
) -> Protocol:
    """The protocol of a split; ``grouping`` is raw-origin, domain or merged."""
    key = (unit.dataset, unit.seed, len(parts.train), baseline, grouping)
    if key not in _PROTOCOLS:
        groups: Any = grouping
        if grouping == "domain":
            groups = data.spec.block_of
        elif grouping == "merged":
            groups = merged_blocks(data, parts)
        _PROTOCOLS[key] = Protocol.fit(model, data.X.iloc[parts.train], baseline=baseline, groups=groups)
    return _PROTOCOLS[key]


def merged_blocks(data: Dataset, parts: Split) -> dict[str, str]:
    """Field -> block of strongly associated fields, measured on at most ``MERGE_ROWS`` training rows."""
    kinds: dict[str, Any] = {name: "nominal" if name in data.spec.nominal else "numeric" for name in data.spec.fields}
    train = np.random.default_rng(parts.seed).permutation(parts.train)[:MERGE_ROWS]
    return merged_fields(data.X.iloc[np.sort(train)], kinds, MERGE_THRESHOLD)


def fit_unit(
    unit: Unit, data: Dataset, profile: Profile, pipeline: Pipeline | None = None, engine: str = "auto"
) -> FittedUnit:
    """Split, train (unless a model trained by the same configuration is given) and declare the protocol."""
    parts = split(data.y, unit.seed, train_cap=profile.rows_to_train(unit.dataset))
    if pipeline is None:
        pipeline = train_unit(unit, data, parts, profile.device)
    model = Model.wrap(pipeline)
    protocol = declared_protocol(unit, data, parts, model)
    return FittedUnit(
        unit=unit, data=data, split=parts, pipeline=pipeline, model=model, protocol=protocol, engine=engine
    )


def train_unit(unit: Unit, data: Dataset, parts: Split, device: Device = "cpu") -> Pipeline:
    X, y = data.X, data.y
    return train(
        model_spec(unit.model),
        data.spec,
        X.iloc[parts.train],
        y[parts.train],
        X.iloc[parts.validation],
        y[parts.validation],
        seed=unit.seed,
        device=device,
    )


# ------------------------------------------------------------------ which rows


@dataclass(frozen=True, slots=True, eq=False)
class Selection:
    """Positions (in the part) of the rows that each analysis takes, all prefixes of one seeded permutation."""

    confident: np.ndarray  # confidence >= 0.90
    nearly: np.ndarray  # confidence >= 0.85, for the grid of confidence thresholds
    anyone: np.ndarray  # any confidence

    @property
    def union(self) -> np.ndarray:
        return np.unique(np.concatenate([self.confident, self.nearly, self.anyone]))


def select_rows(confidence: np.ndarray, seed: int, *, confident: int, nearly: int, anyone: int) -> Selection:
    """The first so many rows of a seeded permutation that qualify; labels play no part."""
    order = np.random.default_rng([seed, len(confidence)]).permutation(len(confidence))
    ranked = confidence[order]
    return Selection(
        confident=np.sort(order[ranked >= HIGH_CONFIDENCE][:confident]),
        nearly=np.sort(order[ranked >= min(TAU_P)][:nearly]),
        anyone=np.sort(order[:anyone]),
    )


def _places(within: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    return np.searchsorted(within, wanted)


# ------------------------------------------------------------------ the score channel


@dataclass(frozen=True, slots=True, eq=False)
class Scored:
    """Rows of one part with their probabilities, certificates and evidence; no labels."""

    positions: np.ndarray  # row positions in the data set
    p: np.ndarray  # (n, C)
    certs: Certificates
    evidence: EvidenceRows

    def take(self, places: np.ndarray, fitted: FittedUnit) -> Scored:
        rows = bound(fitted, self.positions[places], fitted.protocol)
        return Scored(self.positions[places], self.p[places], self.certs.take(places), rows)


def bound(fitted: FittedUnit, positions: np.ndarray, protocol: Protocol, model: Any = None) -> EvidenceRows:
    subject = fitted.model if model is None else model
    return bind(subject, fitted.rows(positions), protocol, ids=positions.tolist())


def certify(fitted: FittedUnit, positions: np.ndarray, protocol: Protocol, model: Any = None) -> Certificates:
    subject = fitted.model if model is None else model
    return audit(
        subject, fitted.rows(positions), protocol, ids=positions.tolist(), engine=fitted.engine, progress=False
    )


def scores_on(scored: Scored, fitted: FittedUnit, profile: Profile, order: np.ndarray) -> dict[str, np.ndarray]:
    """Every ranking score that all rows have. Not given labels, and nothing here imports the label channel's draws."""
    log_p = np.log(clipped_probabilities(scored.p))
    return {
        **confidence_scores(scored.p),
        # log-sum-exp of log-probabilities is 0 for every row; what is left is rounding (contradiction 1).
        "energy_of_log_probabilities": logsumexp(log_p, axis=1),
        **certificate_scores(scored.certs),
        "random_order": random_order_score(
            scored.evidence, fitted.protocol, repeats=profile.random_orders, seed=fitted.unit.seed
        ),
        "permutation_order": rcma_along(scored.evidence, fitted.protocol, order),
    }


def masked_group_shap(rows: EvidenceRows, protocol: Protocol, seed: int, pairs: int = 2) -> np.ndarray:
    """|Shapley value| of whole groups, (n, G), by antithetic permutation masking toward the baseline, in one batch.

    For each of ``pairs`` random orders and its reverse, the change of the predicted class's pseudo-logit as each
    group turns from baseline to the row's value. For models whose own explainer is slow or absent (deep forests
    took TreeExplainer 1.4 s a row).
    """
    x = rows.dense()
    n, groups = len(x), int(rows.n_groups)
    original = predicted_class(rows.predict(x), protocol.resolution)
    generator = np.random.default_rng(seed)
    orders = [order for _ in range(pairs) for order in _with_reverse(generator.permutation(groups))]
    values = np.zeros((n, groups))
    for order in orders:
        rank = np.empty(groups, dtype=np.int64)
        rank[order] = np.arange(groups)
        present = rank[rows.column_group][None, :] < np.arange(groups + 1)[:, None]
        states = np.where(present[None], x[:, None, :], rows.baseline).reshape(-1, x.shape[1])
        z = pseudo_logits(rows.predict(states)).reshape(n, groups + 1, -1)
        support = np.take_along_axis(z, original[:, None, None], axis=2)[:, :, 0]
        values[:, order] += np.diff(support, axis=1) / len(orders)
    return np.abs(values)


def _with_reverse(order: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return order, order[::-1]


def group_shap_scores(fitted: FittedUnit, positions: np.ndarray) -> tuple[np.ndarray, str]:
    """Share of attribution in the top three groups, and which explainer gave it."""
    rows = bound(fitted, positions, fitted.protocol)
    if model_spec(fitted.unit.model).family in ("linear", "boosting"):
        found = group_shap(rows, fitted.protocol, top=3)
        return found.score, found.explainer
    return concentration(masked_group_shap(rows, fitted.protocol, fitted.unit.seed), 3), "group masking"


# ------------------------------------------------------------------ the label channel


def label(rows: EvidenceRows, protocol: Protocol, profile: Profile, seed: int, severity: float = 0.3) -> BrittleLabels:
    stress = replace(Stress.at(severity), draws=profile.draws, seed=seed)
    return label_rows(run_stress_rows(rows, protocol, stress), stress)


def markers_of(data: Dataset) -> dict[str, list[Any]]:
    spec = data.spec
    return {name: [str(v) if name in spec.nominal else float(v) for v in values] for name, values in spec.markers}


# ------------------------------------------------------------------ measuring


@dataclass(slots=True)
class Clock:
    """Seconds by stage; kept apart from results, because they never repeat."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start


@dataclass(frozen=True, slots=True, eq=False)
class UnitResult:
    table: pd.DataFrame
    certificates: Certificates
    rows: pd.DataFrame  # the confident test rows with truth, labels and every score
    seconds: Mapping[str, float]


def measure(
    unit: Unit,
    data: Dataset,
    profile: Profile,
    *,
    pipeline: Pipeline | None = None,
    label_seed: int | None = None,
    engine: str = "auto",
) -> UnitResult:
    """All analyses of one unit. ``label_seed`` replaces the label channel's seed (by default the unit's)."""
    record, clock = Recorder(unit.dataset, unit.model, unit.seed), Clock()
    with clock.stage("train"):
        fitted = fit_unit(unit, data, profile, pipeline, engine)
    with clock.stage("predict"):
        p_test, p_validation = _probabilities(fitted, "test"), _probabilities(fitted, "validation")
    record_predictive(record, p_test, data.y[fitted.split.test], fitted)
    chosen = select_rows(
        p_test.max(axis=1),
        unit.seed,
        confident=profile.audited_rows,
        nearly=profile.extra_rows,
        anyone=profile.rcma_rows,
    )
    held = select_rows(
        p_validation.max(axis=1),
        unit.seed,
        confident=profile.validation_rows,
        nearly=0,
        anyone=profile.calibration_rows,
    )
    with clock.stage("certificates"):
        test = _scored(fitted, fitted.split.test, p_test, chosen.union)
        current = certify(fitted, test.positions, replace(fitted.protocol, reading="current"))
        validation = _scored(fitted, fitted.split.validation, p_validation, held.union)
    record_certificates(record, test, current, chosen, fitted)
    record_cost(record, fitted, profile, test)
    with clock.stage("calibration"):
        calibrator = record_calibration(record, fitted, test, validation, chosen, held)
    work = Work(fitted, profile, record, clock, unit.seed if label_seed is None else label_seed)
    rows = pd.DataFrame()
    if len(chosen.confident):
        rows = measure_confident(work, test, current, validation, chosen, held, calibrator)
        record_saturation(record, rows, fitted.protocol.depth)
    else:
        record.add("labels", "brittle_share", math.nan, count=0, rule="expected", state="no confident rows")
    return UnitResult(record.frame(), test.certs, rows, dict(clock.seconds))


@dataclass(frozen=True, slots=True, eq=False)
class Work:
    """What every analysis of a unit shares."""

    fitted: FittedUnit
    profile: Profile
    record: Recorder
    clock: Clock
    label_seed: int


def measure_confident(
    work: Work,
    test: Scored,
    current: Certificates,
    validation: Scored,
    chosen: Selection,
    held: Selection,
    calibrator: BrittlenessAwareTemperature,
) -> pd.DataFrame:
    """Scores, labels, their meeting, and the extras: all on confident test rows."""
    fitted, profile, record, clock = work.fitted, work.profile, work.record, work.clock
    y, seed = fitted.data.y, fitted.unit.seed
    confident = test.take(_places(chosen.union, chosen.confident), fitted)
    judged = validation.take(_places(held.union, held.confident), fitted) if len(held.confident) else None
    with clock.stage("scores"):
        sample = bound(fitted, validation.positions[_places(held.union, held.anyone)], fitted.protocol)
        order = permutation_importance_order(sample, y[np.asarray(sample.ids)], seed=seed)
        scores = scores_on(confident, fitted, profile, order)
        scores.update(_current_scores(current.take(_places(chosen.union, chosen.confident))))
        held_scores = {} if judged is None else scores_on(judged, fitted, profile, order)
    with clock.stage("labels"):
        labels = label(confident.evidence, fitted.protocol, profile, work.label_seed)
        independent = label(confident.evidence, fitted.protocol, profile, work.label_seed + 1_000_003)
        held_labels = None if judged is None else label(judged.evidence, fitted.protocol, profile, work.label_seed)
    wrong = labels.predicted != y[confident.positions]
    directions = orientations(scores, held_scores, held_labels)
    record_labels(record, labels, independent, wrong)
    for rule in RULES:
        record_ranking(record, "ranking", scores, labels.relabel(rule=rule), directions, wrong)
    record_stressors(record, scores, labels, directions)
    record_weights(record, confident.certs, labels)
    with clock.stage("naturalistic"):
        natural = record_naturalistic(work, confident, scores, directions, wrong)
    if seed in profile.extra_seeds:
        extra = Extra(fitted, profile, record, work.label_seed, confident, labels, scores, directions, natural)
        with clock.stage("shap"):
            record_shap(extra, judged, held_labels)
        with clock.stage("sensitivity"):
            record_depth(extra)
            record_temperature(extra, calibrator)
            record_baselines(extra)
            record_groupings(extra)
        with clock.stage("grid"):
            record_grid(extra, test, chosen)
        with clock.stage("search"):
            record_search(extra)
    return row_table(fitted, confident, scores, labels)


def row_table(
    fitted: FittedUnit, confident: Scored, scores: Mapping[str, np.ndarray], labels: BrittleLabels
) -> pd.DataFrame:
    """One line a confident test row: who it is, what was true, what the label channel said, every score."""
    unit = fitted.unit
    return pd.DataFrame(
        {
            "id": confident.positions,
            "dataset": unit.dataset,
            "model": unit.model,
            "seed": unit.seed,
            "truth": fitted.data.y[confident.positions],
            "predicted": labels.predicted,
            "confidence": labels.confidence,
            "brittle_expected": labels.relabel(rule="expected").brittle,
            "brittle_any": labels.relabel(rule="any").brittle,
            "brittle_rate": labels.brittle_rate,
            **scores,
        }
    )


def _probabilities(fitted: FittedUnit, part: str) -> np.ndarray:
    return fitted.model.probabilities(fitted.rows(getattr(fitted.split, part)))


def _scored(fitted: FittedUnit, part: np.ndarray, p: np.ndarray, places: np.ndarray) -> Scored:
    positions = part[places]
    certs = certify(fitted, positions, fitted.protocol)
    return Scored(positions, p[places], certs, bound(fitted, positions, fitted.protocol))


def _current_scores(certs: Certificates) -> dict[str, np.ndarray]:
    return {"cfc_rcma_current": certs.claims.rcma, "cfc_fds_current": certs.claims.fds}


# ------------------------------------------------------------------ recording


def record_predictive(record: Recorder, p: np.ndarray, y: np.ndarray, fitted: FittedUnit) -> None:
    found = predictive_metrics(p, y)
    for name in ("accuracy", "macro_f1", "auroc", "average_precision", "nll", "ece", "brier"):
        record.add("predictive", name, getattr(found, name), count=found.rows, rows="test")
    confident = p.max(axis=1) >= HIGH_CONFIDENCE
    record.add("predictive", "confident_share", confident.mean(), count=len(p), rows="test")
    wrong = p.argmax(axis=1) != y
    share = wrong[confident].mean() if confident.any() else math.nan
    record.add("predictive", "confident_error", share, count=int(confident.sum()), rows="test")
    for name in ("train", "validation", "test"):
        record.add("rows", name, len(getattr(fitted.split, name)))
    record.add("rows", "groups", len(fitted.protocol.groups))
    record.add("rows", "columns", len(fitted.protocol.columns))


def record_certificates(
    record: Recorder, test: Scored, current: Certificates, chosen: Selection, fitted: FittedUnit
) -> None:
    """Means of the certificates on any and on confident test rows, in the three readings, and the mean path."""
    for rows, wanted in (("any", chosen.anyone), ("confident", chosen.confident)):
        places = _places(chosen.union, wanted)
        support, literal = test.certs.take(places).claims, current.take(places).claims
        unbounded = rcma(collapse(support.margin, support.path_margin, "support_unbounded"))
        for reading, values in (("support", support.rcma), ("current", literal.rcma), ("support_unbounded", unbounded)):
            record.add("certificate", "rcma", _mean(values), count=len(values), rows=rows, reading=reading)
            record.add("certificate", "rcma_median", _median(values), count=len(values), rows=rows, reading=reading)
        for reading, claims in (("support", support), ("current", literal)):
            _record_claims(record, claims, rows, reading)
        for step in range(fitted.protocol.depth + 1):
            setting: dict[str, Any] = {"rows": rows, "reading": "support", "step": step}
            record.add("path", "collapse", _mean(support.path_collapse[:, step]), count=len(support), **setting)
            flips = support.path_predicted[:, step] != support.predicted
            record.add("path", "flipped", _mean(flips), count=len(support), **setting)


def _record_claims(record: Recorder, claims: Any, rows: str, reading: str) -> None:
    setting: dict[str, Any] = {"rows": rows, "reading": reading, "count": len(claims)}
    record.add("certificate", "flip_budget", _mean(claims.flip_budget), **setting)
    record.add("certificate", "flip_share", _mean(claims.flipped), **setting)
    record.add("certificate", "fds", _mean(claims.fds), **setting)
    record.add("certificate", "one_group_flips", _mean(claims.flip_budget == 1), **setting)
    for place, name in enumerate(("attenuate_all", "attenuate_top1")):
        record.add("certificate", f"flips_{name}", _mean(np.isfinite(claims.thresholds[:, place])), **setting)


def record_labels(record: Recorder, labels: BrittleLabels, independent: BrittleLabels, wrong: np.ndarray) -> None:
    for rule in RULES:
        by_rule = labels.relabel(rule=rule)
        setting: dict[str, Any] = {"rule": rule, "rows": "confident", "severity": 0.3, "count": len(by_rule)}
        record.add("labels", "brittle_share", _mean(by_rule.brittle), **setting)
        record.add("labels", "wrong_share", _mean(wrong), **setting)
        record.add("labels", "wrong_brittle", float((wrong & by_rule.brittle).sum()), **setting)
        ceiling = independent.relabel(rule=rule)
        record.add("labels", "ceiling", auroc(ceiling.brittle_rate, by_rule.brittle), **setting)
        # How often two sets of draws give the same label: the noise that every score has to live with.
        record.add("labels", "agreement", _mean(ceiling.brittle == by_rule.brittle), **setting)
        # Finer than the rate: the most damaging mean margin over independent draws.
        worst = (independent.kappa if rule == "expected" else ceiling.kappa).max(axis=1, initial=0.0)
        record.add("labels", "ceiling_kappa", auroc(worst, by_rule.brittle), **setting)


def orientations(
    scores: Mapping[str, np.ndarray], held: Mapping[str, np.ndarray], labels: BrittleLabels | None
) -> dict[str, int]:
    """+1 or -1 for every score, decided on validation rows; certificate scores are never turned round.

    Without confident validation rows a score keeps the direction it is meant to have.
    """
    found = {}
    for name in scores:
        natural = natural_direction(name)
        if name in CERTIFICATE:
            found[name] = 1
        elif labels is None or name not in held:
            found[name] = natural
        else:
            found[name] = better_direction(held[name], labels.brittle, natural)
    return found


def record_ranking(
    record: Recorder,
    analysis: str,
    scores: Mapping[str, np.ndarray],
    labels: BrittleLabels,
    directions: Mapping[str, int],
    wrong: np.ndarray,
    **setting: Any,
) -> None:
    """Every score's metrics, as the paper ranks by it and turned toward brittleness."""
    brittle = labels.brittle
    for name, values in scores.items():
        turned = [("paper", 1)]
        if name not in CERTIFICATE:
            turned.append(("oriented", directions.get(name, natural_direction(name))))
        for orientation, sign in turned:
            s = sign * values
            state = ranking_state(s, brittle)
            state = "" if state == "defined" else state
            known = int((~np.isnan(s)).sum())
            where: dict[str, Any] = {
                "score": name,
                "orientation": orientation,
                "rule": labels.stress.rule,
                "count": known,
                **setting,
            }
            record.add(analysis, "auroc", auroc(s, brittle), state=state, **where)
            for budget in (5, 10, 20):
                record.add(analysis, f"capture_{budget}", capture_at(s, brittle, budget / 100), **where)
            record.add(analysis, "false_confidence_captured_20", false_confidence_captured(s, brittle, wrong), **where)
            record.add(analysis, "aurc", aurc(s, brittle), **where)


def record_saturation(record: Recorder, rows: pd.DataFrame, depth: int) -> None:
    """How much of the label is clipping: probability 1 gives the largest margin, which is lost first."""
    saturated = rows["margin"].to_numpy() >= SATURATED
    brittle = rows["brittle_expected"].to_numpy()
    lasting = rows["inverse_flip_budget"].to_numpy() < 1 / depth  # k* = K + 1: never flips on its path
    setting: dict[str, Any] = {"rule": "expected", "rows": "confident"}
    record.add("saturation", "saturated_share", _mean(saturated), count=len(rows), **setting)
    for name, kept in (("brittle_if_saturated", saturated), ("brittle_if_not", ~saturated)):
        record.add("saturation", name, _mean(brittle[kept]), count=int(kept.sum()), **setting)
    record.add("saturation", "brittle_without_flip", _mean(lasting[brittle]), count=int(brittle.sum()), **setting)


def record_stressors(
    record: Recorder, scores: Mapping[str, np.ndarray], labels: BrittleLabels, directions: Mapping[str, int]
) -> None:
    """AUROC against the rows that one stressor alone breaks."""
    for place, stressor in enumerate(labels.stress.names):
        broken = labels.brittle_by[:, place]
        setting: dict[str, Any] = {"variant": stressor.split("(")[0], "rule": "expected", "count": len(broken)}
        record.add("stressor", "brittle_share", _mean(broken), **setting)
        for name in STRESSOR_SCORES:
            value = auroc(directions[name] * scores[name], broken)
            record.add("stressor", "auroc", value, score=name, orientation="oriented", **setting)


def record_weights(record: Recorder, certs: Certificates, labels: BrittleLabels) -> None:
    """FDS of the same certificates by other weights."""
    claims = certs.claims
    for name, weights in WEIGHTS.items():
        score = fds(claims.rcma, claims.flip_budget, claims.thresholds, weights)
        record.add(
            "weights",
            "auroc",
            auroc(score, labels.brittle),
            count=len(score),
            weights=name,
            score="cfc_fds",
            rule="expected",
        )


def record_naturalistic(
    work: Work,
    confident: Scored,
    scores: Mapping[str, np.ndarray],
    directions: Mapping[str, int],
    wrong: np.ndarray,
) -> BrittleLabels | None:
    """Labels from the fields that were unavailable together in training rows; none where no field has a marker."""
    fitted, record = work.fitted, work.record
    markers = markers_of(fitted.data)
    if not markers:
        return None
    donors = fitted.rows(fitted.split.train)[list(markers)]
    stress = Stress.from_outages(donors, markers=markers, draws=work.profile.draws, seed=work.label_seed)
    labels = label_rows(run_stress_rows(confident.evidence, fitted.protocol, stress), stress)
    record.add("naturalistic_labels", "brittle_share", _mean(labels.brittle), count=len(labels), rule="expected")
    record_ranking(record, "naturalistic", scores, labels, directions, wrong)
    return labels


# ------------------------------------------------------------------ calibration


class TemperedClassifier(ClassifierMixin, BaseEstimator):
    """A fitted estimator whose pseudo-logits are divided by one temperature."""

    def __init__(self, estimator: Any, temperature: float) -> None:
        self.estimator = estimator
        self.temperature = temperature
        self.classes_ = np.asarray(estimator.classes_)

    def predict_proba(self, X: Any) -> np.ndarray:
        p = Model.wrap(self.estimator).probabilities(X)
        return softmax_probabilities(pseudo_logits(p) / self.temperature)

    def predict(self, X: Any) -> np.ndarray:
        return self.classes_[self.predict_proba(X).argmax(axis=1)]


def record_calibration(
    record: Recorder, fitted: FittedUnit, test: Scored, validation: Scored, chosen: Selection, held: Selection
) -> BrittlenessAwareTemperature:
    """Raw, temperature-scaled and brittleness-aware probabilities on test rows of any confidence."""
    y = fitted.data.y
    seen, asked = _places(held.union, held.anyone), _places(chosen.union, chosen.anyone)
    p_seen, p_asked = validation.p[seen], test.p[asked]
    fds_seen, fds_asked = validation.certs.claims.fds[seen], test.certs.claims.fds[asked]
    calibrator = BrittlenessAwareTemperature().fit(p_seen, y[validation.positions[seen]], fds_seen)
    truth = y[test.positions[asked]]
    fragile = np.zeros(len(truth), dtype=bool)
    fragile[np.argsort(-calibrator.normalised(fds_asked), kind="stable")[: math.ceil(0.2 * len(truth))]] = True
    versions = {
        "raw": clipped_probabilities(p_asked),
        "temperature": scaled_probabilities(p_asked, np.full(len(p_asked), calibrator.temperature_)),
        "bats": calibrator.transform(p_asked, fds_asked),
    }
    for name, p in versions.items():
        for prefix, rows in (("", np.ones(len(truth), dtype=bool)), ("fragile_", fragile)):
            setting: dict[str, Any] = {"score": name, "count": int(rows.sum()), "rows": "any"}
            record.add("calibration", f"{prefix}ece", expected_calibration_error(p[rows], truth[rows]), **setting)
            record.add("calibration", f"{prefix}brier", brier_score(p[rows], truth[rows]), **setting)
            record.add("calibration", f"{prefix}nll", negative_log_likelihood(p[rows], truth[rows]), **setting)
    record.add("calibration", "temperature", calibrator.temperature_, score="temperature")
    record.add("calibration", "eta", calibrator.eta_, score="bats")
    same = (versions["bats"].argmax(axis=1) == p_asked.argmax(axis=1)).mean()
    record.add("calibration", "same_label", same, score="bats", count=len(truth))
    return calibrator


# ------------------------------------------------------------------ extras on declared seeds and rows


@dataclass(frozen=True, slots=True, eq=False)
class Extra:
    """What the extras share: the confident rows with labels and scores, and how many rows they may take."""

    fitted: FittedUnit
    profile: Profile
    record: Recorder
    seed: int
    confident: Scored
    labels: BrittleLabels
    scores: Mapping[str, np.ndarray]
    directions: Mapping[str, int]
    natural: BrittleLabels | None

    def places(self, count: int) -> np.ndarray:
        """A seeded draw of confident rows; smaller draws are prefixes of larger ones."""
        order = np.random.default_rng([self.fitted.unit.seed, 1]).permutation(len(self.confident.positions))
        return np.sort(order[:count])

    @property
    def sample(self) -> np.ndarray:
        return self.places(self.profile.extra_rows)


def _auroc_row(
    extra: Extra, analysis: str, score: str, values: np.ndarray, brittle: np.ndarray, **setting: Any
) -> None:
    where: dict[str, Any] = {"score": score, "rule": "expected", "count": len(values), **setting}
    extra.record.add(analysis, "auroc", auroc(values, brittle), **where)


def record_shap(extra: Extra, judged: Scored | None, judged_labels: BrittleLabels | None) -> None:
    """Group-SHAP on the declared number of rows; its orientation is decided on as many validation rows."""
    places = extra.places(extra.profile.shap_rows)
    values, explainer = group_shap_scores(extra.fitted, extra.confident.positions[places])
    direction = 1
    if judged is not None and judged_labels is not None:
        held = np.arange(min(extra.profile.shap_rows, len(judged.positions)))
        held_values, _ = group_shap_scores(extra.fitted, judged.positions[held])
        direction = better_direction(held_values, judged_labels.brittle[held], 1)
    everything = {**{name: score[places] for name, score in extra.scores.items()}, "group_shap": values}
    directions = {**extra.directions, "group_shap": direction}
    subject = replace_labels(extra.labels, places)
    wrong = subject.predicted != extra.fitted.data.y[extra.confident.positions[places]]
    record_ranking(extra.record, "attribution", everything, subject, directions, wrong, variant=explainer)
    if extra.natural is not None:
        natural = replace_labels(extra.natural, places)
        record_ranking(extra.record, "naturalistic_attribution", everything, natural, directions, wrong)


def replace_labels(labels: BrittleLabels, places: np.ndarray) -> BrittleLabels:
    """Labels of some rows, from the same draws."""
    run = labels.run
    kept = replace(
        run,
        id=run.id[places],
        predicted=run.predicted[places],
        confidence=run.confidence[places],
        margin=run.margin[places],
        draw_margin=run.draw_margin[places],
    )
    return label_rows(kept, labels.stress)


def record_depth(extra: Extra) -> None:
    """K = 3, 10, 15 from one path of the largest depth; a data set with fewer groups stops at all of them."""
    places, fitted = extra.sample, extra.fitted
    deepest = min(max(DEPTHS), len(fitted.protocol.groups))
    protocol = replace(fitted.protocol, depth=deepest)
    claims = certify(fitted, extra.confident.positions[places], protocol).claims
    flipped = claims.path_predicted != claims.predicted[:, None]
    for depth in DEPTHS:
        steps = min(depth, deepest) + 1
        score = fds(rcma(claims.path_collapse[:, :steps]), flip_budget(flipped[:, :steps]), claims.thresholds, EQUAL)
        _auroc_row(extra, "depth", "cfc_fds", score, extra.labels.brittle[places], depth=depth)


def record_temperature(extra: Extra, calibrator: BrittlenessAwareTemperature) -> None:
    """FDS of the temperature-scaled model on the same rows, and its rank correlation with the raw one."""
    places, fitted = extra.sample, extra.fitted
    head = TemperedClassifier(fitted.pipeline[-1], float(calibrator.temperature_))
    tempered = Pipeline([*fitted.pipeline.steps[:-1], ("model", head)])
    raw = extra.scores["cfc_fds"][places]
    scaled = certify(fitted, extra.confident.positions[places], fitted.protocol, tempered).claims.fds
    brittle = extra.labels.brittle[places]
    _auroc_row(extra, "temperature", "cfc_fds", raw, brittle, variant="raw")
    _auroc_row(extra, "temperature", "cfc_fds", scaled, brittle, variant="temperature")
    extra.record.add("temperature", "rank_correlation", rank_correlation(raw, scaled), count=len(raw))


def rank_correlation(a: np.ndarray, b: np.ndarray) -> float:
    """Spearman; NaN where a score is constant."""
    if len(a) < 2 or np.ptp(a) == 0.0 or np.ptp(b) == 0.0:
        return math.nan
    return float(spearmanr(a, b).statistic)


def record_baselines(extra: Extra) -> None:
    """Certificates toward another baseline, judged by the default labels and by labels of that baseline."""
    places, fitted = extra.sample, extra.fitted
    positions = extra.confident.positions[places]
    for baseline in ("mean", "median", "zero", "mode"):
        protocol = fitted.protocol if baseline == "mean" else fitted.variant(baseline=baseline)
        fixed = own = replace_labels(extra.labels, places)
        claims = extra.confident.certs.take(places).claims
        if baseline != "mean":
            own = label(bound(fitted, positions, protocol), protocol, extra.profile, extra.seed)
            claims = certify(fitted, positions, protocol).claims
        for channel, labels in (("fixed labels", fixed), ("own labels", own)):
            setting: dict[str, Any] = {"baseline": baseline, "variant": channel}
            extra.record.add("baseline", "brittle_share", _mean(labels.brittle), count=len(places), **setting)
            _auroc_row(extra, "baseline", "cfc_fds", claims.fds, labels.brittle, **setting)
            _auroc_row(extra, "baseline", "cfc_rcma", claims.rcma, labels.brittle, **setting)
            for name in ("max_softmax", "negative_entropy", "margin", "negative_energy"):
                values = extra.scores[name][places]
                _auroc_row(extra, "baseline", name, values, labels.brittle, orientation="paper", **setting)
                turned = extra.directions[name] * values
                _auroc_row(extra, "baseline", name, turned, labels.brittle, orientation="oriented", **setting)
        correlation = rank_correlation(extra.scores["cfc_fds"][places], claims.fds)
        extra.record.add("baseline", "rank_correlation", correlation, count=len(places), baseline=baseline)


def record_groupings(extra: Extra) -> None:
    """Certificates under other groupings, judged by the labels of the default grouping (held fixed)."""
    places, fitted = extra.sample, extra.fitted
    positions = extra.confident.positions[places]
    default = extra.scores["cfc_fds"][places]
    for grouping in ("raw-origin", "domain", "merged"):
        protocol, claims = fitted.protocol, extra.confident.certs.take(places).claims
        if grouping != "raw-origin":
            protocol = fitted.variant(grouping=grouping)
            claims = certify(fitted, positions, protocol).claims
        setting: dict[str, Any] = {"grouping": grouping}
        _auroc_row(extra, "grouping", "cfc_fds", claims.fds, extra.labels.brittle[places], **setting)
        _auroc_row(extra, "grouping", "cfc_rcma", claims.rcma, extra.labels.brittle[places], **setting)
        extra.record.add("grouping", "groups", len(protocol.groups), **setting)
        extra.record.add("grouping", "flip_budget", _mean(claims.flip_budget), count=len(places), **setting)
        correlation = rank_correlation(default, claims.fds)
        extra.record.add("grouping", "rank_correlation", correlation, count=len(places), **setting)


def record_grid(extra: Extra, test: Scored, chosen: Selection) -> None:
    """Thresholds, severities and both rules on rows with confidence of at least 0.85."""
    places = _places(chosen.union, chosen.nearly)
    rows = test.take(places, extra.fitted)
    scores = {**confidence_scores(rows.p), **certificate_scores(rows.certs)}
    for severity in SEVERITIES:
        labels = label(rows.evidence, extra.fitted.protocol, extra.profile, extra.seed, severity)
        for rule in RULES:
            for tau_p in TAU_P:
                for tau_kappa in TAU_KAPPA:
                    cell = labels.relabel(tau_confidence=tau_p, tau_collapse=tau_kappa, rule=rule)
                    _record_cell(extra, cell, scores, severity)


def _record_cell(extra: Extra, cell: BrittleLabels, scores: Mapping[str, np.ndarray], severity: float) -> None:
    keep, stress = cell.high_confidence, cell.stress
    setting: dict[str, Any] = {
        "rule": stress.rule,
        "tau_p": stress.tau_confidence,
        "tau_kappa": stress.tau_collapse,
        "severity": severity,
    }
    brittle = cell.brittle[keep]
    extra.record.add("grid", "brittle_share", _mean(brittle), count=len(brittle), **setting)
    for name in GRID_SCORES:
        sign = 1 if name in CERTIFICATE else extra.directions[name]
        value = auroc(sign * scores[name][keep], brittle)
        extra.record.add("grid", "auroc", value, score=name, orientation="oriented", count=len(brittle), **setting)


def record_search(extra: Extra) -> None:
    """Greedy against exact and beam search for the smallest failing set."""
    places = extra.places(extra.profile.search_rows)
    fitted = extra.fitted
    rows = bound(fitted, extra.confident.positions[places], fitted.protocol)
    budget = extra.profile.search_evaluations
    exact = failing_sets_of_rows(rows, fitted.protocol, method="exact", max_evaluations=budget)
    beam = failing_sets_of_rows(rows, fitted.protocol, method="beam", width=8)
    found = greedy_diagnostics(extra.confident.certs.claims.flip_budget[places], exact, beam)
    record = extra.record
    for name in ("exact_match", "greedy_over", "mean_gap", "pair_miss"):
        record.add("search", name, getattr(found, name), count=found.exact_feasible)
    record.add("search", "beam_improve", found.beam_improve, count=found.beam_rows)
    record.add("search", "exact_feasible", found.exact_feasible, count=found.rows)
    record.add("search", "exact_unaffordable", found.exact_unaffordable, count=found.rows)
    record.add("search", "evaluations_exact", exact.evaluations, count=found.rows)
    record.add("search", "evaluations_beam", beam.evaluations, count=found.rows)


def record_cost(record: Recorder, fitted: FittedUnit, profile: Profile, test: Scored) -> None:
    """Forward passes a row: the paper's formula, what the engine asked for, and the label channel's."""
    protocol, n = fitted.protocol, len(test.positions)
    record.add("cost", "passes_original", 1)
    record.add("cost", "passes_one_step", len(protocol.groups))
    record.add("cost", "passes_path", protocol.depth)
    record.add("cost", "passes_degradation", len(protocol.operators) * len(protocol.severities))
    record.add("cost", "passes_certificate", protocol.states_per_row)
    record.add("cost", "passes_labels", len(Stress().stressors) * profile.draws)
    engine = test.certs.manifest["engine"]
    record.add("cost", "evaluations_a_row", engine["evaluations"] / max(n, 1), count=n, score=engine["name"])


def _mean(values: np.ndarray) -> float:
    return float(np.mean(values)) if len(values) else math.nan


def _median(values: np.ndarray) -> float:
    return float(np.median(values)) if len(values) else math.nan
