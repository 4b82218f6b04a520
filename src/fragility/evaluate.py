"""Does FDS find the brittle cases of *this* model better than its confidence does?

The paper's evaluation as a question a model owner asks about one model: label the audited rows with held-out stress
(`fragility.stress`), rank them by every score (`fragility.ranking`), and say in one sentence whether the certificates
were worth having. When there are too few brittle rows to tell, the answer is that it cannot be told.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from fragility.arrays import Floats
from fragility.audit import audit
from fragility.certificate import Certificates
from fragility.errors import DataError, ModelError
from fragility.evidence import EvidenceRows
from fragility.metrics import class_codes
from fragility.models import Model
from fragility.protocol import bind
from fragility.ranking import (
    Comparison,
    PredictiveMetrics,
    RankingReport,
    ScoreResult,
    group_shap,
    permutation_importance_order,
    predictive_metrics,
    random_order_score,
    ranking_report,
    rcma_along,
    scores_of,
    without_nan,
)
from fragility.stress import BrittleLabels, Predict, Stress, label_rows, run_stress_rows

BETTER = "better"
WORSE = "worse"
NOT_SHOWN = "not shown"
CANNOT_TELL = "cannot be judged"
MIN_CASES = 10  # fewer brittle or fewer sturdy rows than this, and an AUROC says nothing about the model


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer: FDS against the strongest confidence score, and against the strongest score of any other kind."""

    state: str  # better, worse, not shown, cannot be judged
    sentence: str
    against_confidence: Comparison | None
    against_others: Comparison | None


@dataclass(frozen=True, slots=True)
class Evaluation:
    """A ranking report about one model's certificates, with its verdict."""

    verdict: Verdict
    report: RankingReport
    stress: Stress
    counts: Mapping[str, int]
    validation_counts: Mapping[str, int] | None
    predictive: PredictiveMetrics | None  # None when the truth was not given
    model: str
    protocol_digest: str

    def to_dict(self) -> dict[str, Any]:
        """Plain form; NaN as None."""
        document = {
            "verdict": asdict(self.verdict),
            "report": self.report.to_dict(),
            "stress": self.stress.to_dict(),
            "counts": dict(self.counts),
            "validation_counts": None if self.validation_counts is None else dict(self.validation_counts),
            "predictive": None if self.predictive is None else asdict(self.predictive),
            "model": self.model,
            "protocol_digest": self.protocol_digest,
        }
        plain: dict[str, Any] = without_nan(document)
        return plain

    def to_pandas(self) -> pd.DataFrame:
        """One row per score and orientation."""
        return self.report.to_pandas()

    def to_text(self) -> str:
        """Verdict, counts, ceiling and table."""
        return render_evaluation(self)

    def __str__(self) -> str:
        return render_evaluation(self)

    def save_json(self, path: str | os.PathLike[str]) -> None:
        """Write `to_dict` as JSON."""
        text = json.dumps(self.to_dict(), indent=2, allow_nan=False, ensure_ascii=False)
        Path(path).write_text(text + "\n", encoding="utf-8")

    def save_csv(self, path: str | os.PathLike[str]) -> None:
        """Write the table of scores as CSV."""
        self.to_pandas().to_csv(path, index=False)


def evaluate(
    certs: Certificates,
    model: Any,
    X: Any,
    *,
    ids: Any = None,
    stress: Stress | None = None,
    y: npt.ArrayLike | None = None,
    validation: Any = None,
    y_validation: npt.ArrayLike | None = None,
    random_orders: int = 5,
    shap_rows: int = 0,
    engine: str = "auto",
    predict: Predict | None = None,
    resamples: int = 2_000,
    seed: int = 0,
) -> Evaluation:
    """Judge the ranking of `certs` by held-out stress of the same rows.

    Parameters
    ----------
    certs : certificates of rows of `X`, found there by id (all of them must be there; `X` may hold more).
    ids : ids of the rows of `X`, by default their index, as in `audit`.
    stress : the label channel; by default mask, dropout and noise at 0.3.
    y : true labels of `X`; adds ordinary quality and the capture of wrong confident predictions.
    validation, y_validation : rows on which every baseline's direction is chosen; with labels, also the
        permutation-importance order. Without them each baseline is turned in its own favour on the judged rows.
    random_orders : repeats of the random-group-order baseline; 0 leaves it out.
    shap_rows : rows to explain for the group-SHAP baseline (at least 256 is sensible); 0 leaves it out.
    engine : engine for the certificates of the validation rows, as in `audit`.
    predict : faster probabilities on evidence matrices of these rows, (m, d) -> (m, C).
    resamples : resamples for the interval of each difference in AUROC.
    """
    if resamples < 100:
        raise DataError(f"resamples must be at least 100 for an interval to judge by, got {resamples}")
    wrapped = Model.wrap(model)
    _check_same_model(certs, wrapped)
    chosen = Stress() if stress is None else stress
    rows, places = _certified_rows(certs, wrapped, X, ids)
    labels, independent = _labels(rows, certs, chosen, predict), _labels(rows, certs, chosen.independent(), predict)
    probabilities = predictions_of(rows)
    truth = None if y is None else class_codes(_labels_at(y, places, _count_rows(X)), wrapped.classes)
    extras = _Extras(random_orders, shap_rows, seed, predict)
    order = None
    checked = None
    validation_counts = None
    if validation is not None:
        held = bind(wrapped, validation, certs.protocol)
        held_labels = _labels(held, certs, chosen, None)
        order = _validated_order(held, wrapped, y_validation, seed)
        held_certs = audit(wrapped, validation, certs.protocol, engine=engine)
        held_scores = _all_scores(
            held, held_certs, predictions_of(held), order, held_labels.high_confidence, extras.without_predict()
        )
        checked = (held_scores, held_labels)
        validation_counts = held_labels.counts()
    report = ranking_report(
        certs,
        labels,
        scores=_all_scores(rows, certs, probabilities, order, labels.high_confidence, extras),
        validation=checked,
        wrong=None if truth is None else truth != certs.claims.predicted,
        independent=independent,
        resamples=resamples,
        seed=seed,
    )
    return Evaluation(
        verdict=judge(report),
        report=report,
        stress=chosen,
        counts=labels.counts(),
        validation_counts=validation_counts,
        predictive=None if truth is None else predictive_metrics(probabilities, truth),
        model=wrapped.kind,
        protocol_digest=certs.protocol.digest,
    )


@dataclass(frozen=True, slots=True)
class _Extras:
    """Which baselines that need further model calls to compute."""

    random_orders: int
    shap_rows: int
    seed: int
    predict: Predict | None

    def without_predict(self) -> _Extras:
        return _Extras(self.random_orders, self.shap_rows, self.seed, None)


def _check_same_model(certs: Certificates, model: Model) -> None:
    claimed = certs.manifest.get("model", {}).get("fingerprint")
    if claimed is not None and claimed != model.fingerprint:
        raise ModelError(
            f"the certificates are of the model {claimed}, this one is {model.fingerprint}; "
            "give the model that was audited"
        )


def _certified_rows(certs: Certificates, model: Model, X: Any, ids: Any) -> tuple[EvidenceRows, npt.NDArray[np.int64]]:
    """The certified rows, in the certificates' order, and their places in X."""
    bound = bind(model, X, certs.protocol, ids=ids)
    place = {str(sample): index for index, sample in enumerate(bound.ids)}
    wanted = [str(sample) for sample in certs.claims.ids]
    missing = [sample for sample in wanted if sample not in place]
    if missing:
        raise DataError(
            f"{len(missing)} of the {len(wanted)} certified rows are not among the {len(bound)} rows given, "
            f"e.g. id {missing[0]!r}; give the rows that were audited, with the same ids"
        )
    places = np.asarray([place[sample] for sample in wanted], dtype=np.int64)
    if np.array_equal(places, np.arange(len(bound))):
        return bound, places
    picked = bind(model, _rows_at(X, places), certs.protocol, ids=[bound.ids[i] for i in places])
    return picked, places


def _rows_at(table: Any, places: npt.NDArray[np.int64]) -> Any:
    """Rows of any kind of table, by position."""
    if hasattr(table, "iloc"):
        return table.iloc[places]
    if hasattr(table, "take") and not isinstance(table, np.ndarray):
        return table.take(places)  # Arrow
    return np.asarray(table)[places] if isinstance(table, (list, tuple)) else table[places]


def _labels_at(y: Any, places: npt.NDArray[np.int64], count: int) -> Any:
    if len(y) != count:
        raise DataError(f"y must have one label for each of the {count} rows given, got {len(y)}")
    return _rows_at(y, places)


def _count_rows(X: Any) -> int:
    """Number of rows of any kind of table."""
    return int(X.shape[0]) if hasattr(X, "shape") else len(X)


def _labels(rows: EvidenceRows, certs: Certificates, stress: Stress, predict: Predict | None) -> BrittleLabels:
    return label_rows(run_stress_rows(rows, certs.protocol, stress, predict=predict), stress)


def predictions_of(rows: EvidenceRows, chunk: int = 8192) -> Floats:
    """Probabilities of bound rows at x, (n, C)."""
    starts = range(0, len(rows), chunk)
    return np.concatenate([rows.predict(rows.dense(start, min(start + chunk, len(rows)))) for start in starts])


def _validated_order(
    rows: EvidenceRows, model: Model, y: npt.ArrayLike | None, seed: int
) -> npt.NDArray[np.int64] | None:
    return None if y is None else permutation_importance_order(rows, class_codes(y, model.classes), seed=seed)


def _all_scores(
    rows: EvidenceRows,
    certs: Certificates,
    probabilities: Floats,
    order: npt.NDArray[np.int64] | None,
    confident: npt.NDArray[np.bool_],
    extras: _Extras,
) -> dict[str, Floats]:
    """Every score: from the certificates and probabilities, and those that need further model calls."""
    found = scores_of(certs, probabilities)
    if extras.random_orders > 0:
        found["random_order"] = random_order_score(
            rows, certs.protocol, repeats=extras.random_orders, seed=extras.seed, predict=extras.predict
        )
    if order is not None:
        found["permutation_order"] = rcma_along(rows, certs.protocol, order, predict=extras.predict)
    if extras.shap_rows > 0:
        found["group_shap"] = group_shap(
            rows, certs.protocol, max_rows=extras.shap_rows, among=confident, seed=extras.seed
        ).score
    return found


# --- the verdict -------------------------------------------------------------------------------------------------


def judge(report: RankingReport) -> Verdict:
    """FDS against the strongest oriented confidence score, by the interval of the difference in AUROC."""
    sturdy = report.high_confidence - report.brittle
    best = report.strongest(("confidence",))
    if report.brittle < MIN_CASES or sturdy < MIN_CASES or best is None:
        return Verdict(CANNOT_TELL, _too_few(report), None, None)
    found = _comparison(report, best)
    fds = report.result("cfc_fds")
    if found.low > 0.0:
        state, opening = BETTER, "Yes: FDS finds the brittle cases of this model better than its confidence does."
    elif found.high < 0.0:
        state, opening = WORSE, "No: the model's own confidence finds its brittle cases better than FDS does."
    else:
        state, opening = NOT_SHOWN, "Not shown: on these rows FDS and the model's confidence cannot be told apart."
    other = report.strongest(("perturbation", "attribution", "other"))
    sentence = f"{opening} {_figures(fds, best, found)}"
    return Verdict(state, sentence, found, None if other is None else _comparison(report, other))


def _comparison(report: RankingReport, baseline: ScoreResult) -> Comparison:
    return next(c for c in report.comparisons if (c.score, c.baseline) == ("cfc_fds", baseline.score))


def _figures(fds: ScoreResult, baseline: ScoreResult, found: Comparison) -> str:
    return (
        f"AUROC {fds.auroc:.3f} against {baseline.auroc:.3f} for {baseline.score} "
        f"(difference {found.difference:+.3f}, 95% interval {found.low:+.3f} to {found.high:+.3f}); "
        f"reviewing the top 20% finds {fds.capture_20:.0%} of the brittle cases by FDS, "
        f"{baseline.capture_20:.0%} by {baseline.score}."
    )


def _too_few(report: RankingReport) -> str:
    return (
        f"Cannot be judged: of {report.rows} rows {report.high_confidence} are high-confidence and {report.brittle} of "
        f"those are brittle; at least {MIN_CASES} brittle and {MIN_CASES} other high-confidence rows are needed. "
        "Audit more rows, or declare another stress (severity, thresholds, rule)."
    )


# --- text --------------------------------------------------------------------------------------------------------


def render_evaluation(evaluation: Evaluation) -> str:
    """Verdict first, then what it rests on."""
    parts = [evaluation.verdict.sentence, *_others_line(evaluation), "", evaluation.report.to_text(), ""]
    parts.append("Brittle by stressor: " + _stressor_line(evaluation.counts))
    rule = evaluation.stress
    parts.append(
        f"Rule {rule.rule!r} over {rule.draws} draws, high confidence from {rule.tau_confidence:g}, "
        f"collapse from {rule.tau_collapse:g}, seed {rule.seed}."
    )
    if evaluation.predictive is not None:
        parts.append(_quality_line(evaluation.predictive))
    return "\n".join(parts)


def _others_line(evaluation: Evaluation) -> Sequence[str]:
    found = evaluation.verdict.against_others
    if found is None:
        return ()
    line = evaluation.report.result(found.baseline)
    rows = "" if found.rows == evaluation.report.high_confidence else f" on {found.rows} rows"
    return (
        f"Strongest other score: {found.baseline}, AUROC {line.auroc:.3f}; FDS differs from it by "
        f"{found.difference:+.3f} ({found.low:+.3f} to {found.high:+.3f}){rows}.",
    )


def _stressor_line(counts: Mapping[str, int]) -> str:
    by = {name.removeprefix("brittle by "): k for name, k in counts.items() if name.startswith("brittle by ")}
    return ", ".join(f"{name} {count}" for name, count in by.items()) + "."


def _quality_line(quality: PredictiveMetrics) -> str:
    return (
        f"Model on these rows: accuracy {quality.accuracy:.3f}, macro-F1 {quality.macro_f1:.3f}, AUROC "
        f"{quality.auroc:.3f}, average precision {quality.average_precision:.3f}, NLL {quality.nll:.3f}, "
        f"ECE {quality.ece:.3f}, Brier {quality.brier:.3f}."
    )
