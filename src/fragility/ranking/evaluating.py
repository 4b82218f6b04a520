"""Does FDS find the brittle cases of *this* model better than its confidence does?

The paper's evaluation as a question a model owner asks about one model: label the audited rows with held-out stress
(`fragility.stress`), rank them by every score (`fragility.ranking`), and say in one sentence whether the certificates
were worth having. When there are too few brittle rows to tell, the answer is that it cannot be told.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fragility.arrays import DEFAULT_BYTE_BUDGET, Floats, Integers
from fragility.auditing.pipeline import audit
from fragility.certificates import Certificates
from fragility.engines.choice import prepared
from fragility.errors import DataError, ModelError
from fragility.evidence import EvidenceRows
from fragility.ids import IdSpan, check_same_rows, places_by_id, say_other_rows
from fragility.models import Model
from fragility.progress import Report
from fragility.protocol import bind
from fragility.ranking.attribution import group_shap
from fragility.ranking.comparison import compare_scores
from fragility.ranking.orders import permutation_importance_order, random_order_score, rcma_along
from fragility.ranking.predictive import PredictiveMetrics, class_codes, predictive_metrics
from fragility.ranking.report import Comparison, RankingReport, ScoreResult
from fragility.ranking.scores import scores_of
from fragility.saving import save_report, without_nan
from fragility.stress import BrittleLabels, Stress, label_rows, run_stress_rows

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

BETTER = "better"
WORSE = "worse"
NOT_SHOWN = "not shown"
CANNOT_TELL = "cannot be judged"
JUDGED = {"exposure": ("cfc_exposure", "exposure"), "fds": ("cfc_fds", "FDS")}  # score, and its name in sentences
MIN_CASES = 10  # fewer brittle or fewer sturdy rows than this, and an AUROC says nothing about the model


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer: the ranking against the strongest confidence score, and against the strongest of any other kind."""

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
    baseline: str  # that scores and labels share

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
            "baseline": self.baseline,
        }
        plain: dict[str, Any] = without_nan(document)
        return plain

    def to_pandas(self) -> pd.DataFrame:
        """One row per score and orientation."""
        return self.report.to_pandas()

    def to_arrow(self) -> pa.Table:
        """`to_pandas` as an Arrow table."""
        return self.report.to_arrow()

    def to_text(self) -> str:
        """Verdict, counts, ceiling and table."""
        return render_evaluation(self)

    def __str__(self) -> str:
        return render_evaluation(self)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything (.json) or the table of scores (.csv, .parquet)."""
        save_report(path, self.to_dict, self.to_arrow)


@dataclass(frozen=True, slots=True)
class Baselines:
    """Which costly scores the ranking is judged against, and how finely.

    Parameters
    ----------
    random_orders : int, default=5
        Repeats of the random-group-order score; 0 leaves it out.
    shap_rows : int, default=0
        Rows to explain for group-SHAP (at least 256 is sensible); 0 leaves it out.
    resamples : int, default=2000
        Resamples for the interval of each difference in AUROC.

    See Also
    --------
    evaluate : Uses them.
    """

    random_orders: int = 5
    shap_rows: int = 0
    resamples: int = 2_000

    def __post_init__(self) -> None:
        if self.random_orders < 0 or self.shap_rows < 0:
            raise DataError(
                f"random_orders and shap_rows must be at least 0, got {self.random_orders} and {self.shap_rows}"
            )
        if self.resamples < 100:
            raise DataError(f"resamples must be at least 100 for an interval to judge by, got {self.resamples}")


def evaluate(
    certs: Certificates,
    model: Any,
    X: Any,
    y: npt.ArrayLike | None = None,
    *,
    validation: tuple[Any, npt.ArrayLike | None] | None = None,
    stress: Stress | None = None,
    baselines: Baselines | None = None,
    by: str = "exposure",
    ids: Any = None,
    seed: int = 0,
    engine: str = "auto",
    byte_budget: int = DEFAULT_BYTE_BUDGET,
    progress: bool | Report | None = None,
) -> Evaluation:
    """Judge the ranking of ``certs`` by held-out stress of the same rows.

    Parameters
    ----------
    certs : Certificates
        Certificates of rows of ``X``, found there by id (all of them must be there; ``X`` may hold more).
    model : estimator, pipeline, booster or Model
        The model that was audited.
    X : array or table of shape (n, d)
        The raw rows.
    y : array of shape (n,), optional
        True labels of ``X``; adds ordinary quality and the capture of wrong confident predictions.
    validation : tuple of (rows, labels or None), optional
        On these rows every baseline's direction is chosen and, with labels, the permutation-importance order. Without
        them each baseline is turned in its own favour on the judged rows.
    stress : Stress, optional
        The label channel; by default mask, dropout and noise at 0.3.
    baselines : Baselines, optional
        Which costly scores to compare with, and the number of resamples.
    by : str, default="exposure"
        The ranking to judge: ``exposure``, or ``fds``, the paper's score; the table holds both.
    ids : sequence, optional
        Ids of the rows of ``X``, by default their index, as in :func:`audit`.
    seed : int, default=0
        Seed of random orders, explained rows and resamples; the label channel has its own in ``stress``.
    engine : str, default="auto"
        As in :func:`audit`.
    byte_budget : int, default=256 MiB
        As in :func:`audit`.
    progress : bool or callable, optional
        As in :func:`audit`.

    Returns
    -------
    Evaluation
        ``verdict`` (state and sentence), ``report`` (every score's metrics), ``counts`` of brittle rows; printed as
        text, exported by ``to_pandas``, ``to_arrow``, ``to_dict`` and ``save``.

    See Also
    --------
    compare_scores : The same table for scores and labels of your own.
    label_brittle : The labels alone.
    """
    wrapped = Model.wrap(model)
    _check_same_model(certs, wrapped)
    bound = bind(wrapped, X, certs.protocol, ids=ids)
    places = _certified_places(certs, bound)
    if by not in JUDGED:
        raise DataError(f"evaluate judges a ranking by {' or '.join(JUDGED)}, got {by!r}")
    work = _Work(stress or Stress(), baselines or Baselines(), by, seed, engine, byte_budget, progress)
    truth = None if y is None else class_codes(_labels_at(y, places, len(bound)), wrapped.classes)
    held = None if validation is None else work.judge_validation(wrapped, certs, *validation)
    certified = bound.take(places.tolist())
    check_same_rows(certs.claims.ids, certs.claims.confidence, _confidence(certified, certs))
    judged = work.judge(prepared(certified, engine), certs, None if held is None else held.order)
    return work.evaluation(certs, judged, held, truth)


@dataclass(frozen=True, slots=True, eq=False)
class _Judged:
    """Rows with the scores and the labels that meet in the report."""

    probabilities: Floats
    labels: BrittleLabels
    scores: Mapping[str, Floats]
    order: Integers | None  # the permutation-importance order the scores used
    rows: EvidenceRows


@dataclass(frozen=True, slots=True)
class _Work:
    """The settings of one evaluation, and what is done with them to any set of rows."""

    stress: Stress
    baselines: Baselines
    by: str
    seed: int
    engine: str
    byte_budget: int
    progress: bool | Report | None

    def judge_validation(self, model: Model, certs: Certificates, X: Any, y: npt.ArrayLike | None) -> _Judged:
        """Certify, score and label validation rows, bound once."""
        bound = bind(model, X, certs.protocol)
        held = audit(
            model,
            bound,
            certs.protocol,
            engine=self.engine,
            byte_budget=self.byte_budget,
            progress=self.progress,
            lattice=False,
        )
        rows, order = prepared(bound, self.engine), None
        if y is not None:
            order = permutation_importance_order(rows, class_codes(y, model.classes), seed=self.seed)
        return self.judge(rows, held, order)

    def judge(self, rows: EvidenceRows, certs: Certificates, order: Integers | None) -> _Judged:
        """Score and label rows whose certificates are known; the two do not see each other's results."""
        labels = self.labels(rows, certs, self.stress)
        probabilities = predictions_of(rows)
        found = scores_of(certs, probabilities)
        if self.baselines.random_orders > 0:
            found["random_order"] = random_order_score(
                rows,
                certs.protocol,
                repeats=self.baselines.random_orders,
                seed=self.seed,
                byte_budget=self.byte_budget,
            )
        if order is not None:
            found["permutation_order"] = rcma_along(rows, certs.protocol, order, byte_budget=self.byte_budget)
        if self.baselines.shap_rows > 0:
            confident = labels.high_confidence  # by the model's confidence alone: says nothing of what broke
            found["group_shap"] = group_shap(
                rows, certs.protocol, max_rows=self.baselines.shap_rows, among=confident, seed=self.seed
            ).score
        return _Judged(probabilities, labels, found, order, rows)

    def labels(self, rows: EvidenceRows, certs: Certificates, stress: Stress) -> BrittleLabels:
        run = run_stress_rows(rows, certs.protocol, stress, byte_budget=self.byte_budget, progress=self.progress)
        return label_rows(run, stress)

    def evaluation(
        self, certs: Certificates, judged: _Judged, held: _Judged | None, truth: Integers | None
    ) -> Evaluation:
        """Let scores and labels meet."""
        report = compare_scores(
            certs,
            judged.labels,
            scores=judged.scores,
            validation=None if held is None else (held.scores, held.labels),
            wrong=None if truth is None else truth != certs.claims.predicted,
            independent=self.labels(judged.rows, certs, self.stress.independent()),
            resamples=self.baselines.resamples,
            seed=self.seed,
        )
        return Evaluation(
            verdict=judge(report, self.by),
            report=report,
            stress=self.stress,
            counts=judged.labels.counts(),
            validation_counts=None if held is None else held.labels.counts(),
            predictive=None if truth is None else predictive_metrics(judged.probabilities, truth),
            model=judged.rows.model.kind,
            protocol_digest=certs.protocol.digest,
            baseline=certs.protocol.baseline,
        )


def _check_same_model(certs: Certificates, model: Model) -> None:
    claimed = certs.manifest.model.fingerprint
    if claimed is not None and claimed != model.fingerprint:
        raise ModelError(
            f"the certificates are of the model {claimed}, this one is {model.fingerprint}; "
            "give the model that was audited"
        )


def _certified_places(certs: Certificates, bound: EvidenceRows) -> Integers:
    """The certificates' places among the rows given."""
    places, missing = places_by_id(certs.claims.ids, bound.ids)
    if missing:
        raise DataError(
            *say_other_rows(len(missing), len(certs), missing[0], IdSpan(certs.claims.ids), IdSpan(bound.ids))
        )
    return places


def _confidence(rows: EvidenceRows, certs: Certificates) -> Floats:
    """The probability of the certified class, by the model as it is here."""
    return np.asarray(predictions_of(rows)[np.arange(len(rows)), certs.claims.predicted])


def _labels_at(y: Any, places: Integers, count: int) -> Any:
    """The labels of the certified rows, from any kind of column."""
    if len(y) != count:
        raise DataError(f"y must have one label for each of the {count} rows given, got {len(y)}")
    return np.asarray(y)[places]


def predictions_of(rows: EvidenceRows, chunk: int = 8192) -> Floats:
    """Probabilities of bound rows at x, (n, C)."""
    starts = range(0, len(rows), chunk)
    return np.concatenate([rows.predict(rows.dense(start, min(start + chunk, len(rows)))) for start in starts])


# --- the verdict -------------------------------------------------------------------------------------------------


def judge(report: RankingReport, by: str = "exposure") -> Verdict:
    """The ranking score against the strongest oriented confidence score, by the interval of the difference in AUROC."""
    sturdy = report.high_confidence - report.brittle
    best = report.strongest(("confidence",))
    if report.brittle < MIN_CASES or sturdy < MIN_CASES or best is None:
        return Verdict(CANNOT_TELL, _too_few(report), None, None)
    score, name = JUDGED[by]
    found = _comparison(report, score, best)
    if found.low > 0.0:
        state, opening = BETTER, f"Yes: {name} finds the brittle cases of this model better than its confidence does."
    elif found.high < 0.0:
        state, opening = WORSE, f"No: the model's own confidence finds its brittle cases better than {name} does."
    else:
        state, opening = NOT_SHOWN, f"Not shown: on these rows {name} and the model's confidence cannot be told apart."
    other = report.strongest(("perturbation", "attribution", "other"))
    sentence = f"{opening} {_figures(report.result(score), name, best, found)}"
    return Verdict(state, sentence, found, None if other is None else _comparison(report, score, other))


def _comparison(report: RankingReport, score: str, baseline: ScoreResult) -> Comparison:
    return next(c for c in report.comparisons if (c.score, c.baseline) == (score, baseline.score))


def _figures(judged: ScoreResult, name: str, baseline: ScoreResult, found: Comparison) -> str:
    return (
        f"AUROC {judged.auroc:.3f} against {baseline.auroc:.3f} for {baseline.score} "
        f"(difference {found.difference:+.3f}, 95% interval {found.low:+.3f} to {found.high:+.3f}); "
        f"reviewing the top 20% finds {judged.capture_20:.0%} of the brittle cases by {name}, "
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
    parts.append(
        f"Scores and labels share the baseline {evaluation.baseline}: how the ranking does where lost evidence takes "
        "other values is not judged here."
    )
    if evaluation.predictive is not None:
        parts.append(_quality_line(evaluation.predictive))
    return "\n".join(parts)


def _others_line(evaluation: Evaluation) -> Sequence[str]:
    found = evaluation.verdict.against_others
    if found is None:
        return ()
    line = evaluation.report.result(found.baseline)
    name = next(words for score, words in JUDGED.values() if score == found.score)
    rows = "" if found.rows == evaluation.report.high_confidence else f" on {found.rows} rows"
    return (
        f"Strongest other score: {found.baseline}, AUROC {line.auroc:.3f}; {name} differs from it by "
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
