"""evaluate: do certificates find the brittle cases of *this* model better than its confidence does?

The audited rows are labelled with held-out stress and ranked by every score, and one sentence says whether the
certificates were worth having. With too few brittle rows the answer is that it cannot be judged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fragility.analysis.ranking.comparison import Comparison, RankingReport, ScoreResult, compare_scores
from fragility.analysis.ranking.metrics import PredictiveMetrics, class_codes, predictive_metrics
from fragility.analysis.ranking.scores import (
    collect_scores,
    group_shap,
    permutation_importance_order,
    random_order_score,
    rcma_along,
)
from fragility.auditing.pipeline import audit
from fragility.audits import Certificates
from fragility.base.arrays import DEFAULT_BYTE_BUDGET, Floats, Integers
from fragility.base.errors import Advice, DataError, ModelError
from fragility.base.ids import IdSpan, check_same_rows, places_by_id, say_other_rows
from fragility.base.progress import Report
from fragility.base.text import BriefRepr
from fragility.engines.choice import choose_oracle
from fragility.engines.oracle import ModelOracle, Oracle
from fragility.evidence import EvidenceRows
from fragility.evidence.modes import MODES
from fragility.models import Model
from fragility.pages.results import TabularReport, without_nan
from fragility.protocol import Protocol, bind
from fragility.questions.modes.losses import choose_modes, losses_of_rows
from fragility.questions.stress.declaration import Stress
from fragility.questions.stress.labels import (
    BrittleLabels,
    label_rows,
    rehearse_rows,
    run_stress_rows,
    with_donors,
)
from fragility.scores import REHEARSAL

BETTER = "better"
WORSE = "worse"
NOT_SHOWN = "not shown"
CANNOT_TELL = "cannot be judged"
JUDGED = {  # score, and its name in sentences
    "exposure": ("cfc_exposure", "exposure"),
    "fds": ("cfc_fds", "FDS"),
    "rehearsal": (REHEARSAL, "the rehearsal of this stress"),
}
EXPOSURE_TO = "exposure_"  # and a failure mode: a score that can be judged too
MIN_CASES = 10  # fewer brittle or fewer sturdy rows than this, and an AUROC says nothing about the model


@dataclass(frozen=True, slots=True)
class RankingVerdict:
    """The answer: the ranking against the strongest confidence score, and against the strongest of any other kind."""

    state: str  # better, worse, not shown, cannot be judged
    sentence: str
    against_confidence: Comparison | None
    against_others: Comparison | None


@dataclass(frozen=True, slots=True, repr=False)
class Evaluation(TabularReport, BriefRepr):
    """A ranking report about one model's certificates, with its verdict."""

    verdict: RankingVerdict
    report: RankingReport
    stress: Stress
    counts: Mapping[str, int]
    validation_counts: Mapping[str, int] | None
    predictive: PredictiveMetrics | None  # None when the truth was not given
    model: str
    protocol_digest: str
    baseline: str  # that scores and labels share

    def to_dict(self) -> dict[str, Any]:
        """Return the plain form; NaN as None."""
        plain: dict[str, Any] = without_nan(asdict(self) | {"stress": self.stress.to_dict()})
        return plain

    @property
    def lines(self) -> tuple[ScoreResult, ...]:  # type: ignore[override]
        """The results of the report, one per score and orientation."""
        return self.report.results

    def to_text(self) -> str:
        """Return the verdict first, then what it rests on."""
        lines = [self.verdict.sentence]
        other = self.verdict.against_others
        if other is not None:
            name = dict(JUDGED.values()).get(other.score, other.score)
            rows = "" if other.rows == self.report.high_confidence else f" on {other.rows} rows"
            lines.append(
                f"Strongest other score: {other.baseline}, AUROC {self.report.result(other.baseline).auroc:.3f}; "
                f"{name} differs from it by {other.difference:+.3f} ({other.low:+.3f} to {other.high:+.3f}){rows}."
            )
        by = {name.removeprefix("brittle by "): k for name, k in self.counts.items() if name.startswith("brittle by ")}
        rule, quality = self.stress, self.predictive
        lines += [
            "",
            self.report.to_text(),
            "",
            f"Brittle by stressor: {', '.join(f'{name} {count}' for name, count in by.items())}.",
            f"Rule {rule.rule!r} over {rule.draws} draws, high confidence from {rule.tau_confidence:g}, "
            f"collapse from {rule.tau_collapse:g}, seed {rule.seed}.",
            f"Scores and labels share the baseline {self.baseline}: how the ranking does where lost evidence takes "
            "other values is not judged here.",
        ]
        if quality is not None:
            lines.append(
                f"Model on these rows: accuracy {quality.accuracy:.3f}, macro-F1 {quality.macro_f1:.3f}, AUROC "
                f"{quality.auroc:.3f}, average precision {quality.average_precision:.3f}, NLL {quality.nll:.3f}, "
                f"ECE {quality.ece:.3f}, Brier {quality.brier:.3f}."
            )
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.to_text()


@dataclass(frozen=True, slots=True)
class Baselines:
    """Which costly scores the ranking is judged against, and how finely.

    Parameters
    ----------
    random_orders, shap_rows : int, default=5 and 0
        Repeats of the random-group-order score, and rows to explain for group-SHAP (at least 256 is sensible); 0 leaves
        a score out.
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
    modes: Sequence[str] = (),
    donors: Any = None,
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
        The ranking to judge: ``exposure``; ``fds``, the paper's score; ``rehearsal``, the declared stress rehearsed by
        balanced draws that share nothing with the labels; or one of ``modes``. The table holds all.
    modes : sequence of str, default=()
        Failure modes that the protocol declares, such as ``("wrong", "noisy")``: the exposures to them join the scores
        as ``exposure_wrong`` and ``exposure_noisy``. Each costs several traces of the rows.
    donors : array or table, optional
        Training rows whose values the stressor :class:`Donor` lends, if ``stress`` holds it.
    ids : sequence, optional
        Ids of the rows of ``X``, by default their index, as in :func:`audit`.
    seed : int, default=0
        Seed of random orders, explained rows and resamples; the label channel has its own in ``stress``.
    engine, byte_budget, progress : str, int, bool or callable, optional
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
    assess_modes : The exposures to failure modes alone.
    """
    assessed = choose_modes(certs.protocol, modes, with_earlier=False) if len(modes) else ()
    if by not in (*JUDGED, *assessed):
        missed = Advice("; add it to modes", "; add it to --failure-modes") if by in MODES else ""
        raise DataError(f"evaluate judges a ranking by {' or '.join((*JUDGED, *assessed))}, got {by!r}", missed)
    wrapped, protocol, claims = Model.wrap(model), certs.protocol, certs.claims
    claimed = certs.manifest.model.fingerprint
    if claimed is not None and claimed != wrapped.fingerprint:
        raise ModelError(
            f"the certificates are of the model {claimed}, this one is {wrapped.fingerprint}; "
            "give the model that was audited"
        )
    bound, lent = _bind_with_donors(wrapped, X, protocol, donors, ids)
    places, missing = places_by_id(claims.ids, bound.ids)
    if missing:
        raise DataError(*say_other_rows(len(missing), len(certs), missing[0], IdSpan(claims.ids), IdSpan(bound.ids)))
    truth = None
    if y is not None:
        labels_given = np.asarray(y)
        if len(labels_given) != len(bound):
            raise DataError(f"y must have one label for each of the {len(bound)} rows given, got {len(labels_given)}")
        truth = class_codes(labels_given[places], wrapped.classes)
    work = _Evaluation(stress or Stress(), baselines or Baselines(), protocol, assessed, seed, byte_budget, progress)
    held = order = None
    if validation is not None:
        others, held_lent = _bind_with_donors(wrapped, validation[0], protocol, donors)
        certified = audit(
            wrapped, others, protocol, engine=engine, byte_budget=byte_budget, progress=progress, lattice=False
        )
        oracle = choose_oracle(others, engine)
        if validation[1] is not None:
            order = permutation_importance_order(oracle, class_codes(validation[1], wrapped.classes), seed=seed)
        held = work.judge(oracle, certified, order, held_lent)[:2]
    subset = bound.take(places.tolist())
    model_probabilities = predict_rows(ModelOracle(subset))
    check_same_rows(
        claims.ids, claims.confidence, model_probabilities[np.arange(len(model_probabilities)), claims.predicted]
    )
    oracle = choose_oracle(subset, engine)
    scores, labels, probabilities = work.judge(oracle, certs, order, lent)
    # Scores and labels meet here for the first time.
    report = compare_scores(
        certs,
        labels,
        scores=scores,
        validation=held,
        wrong=None if truth is None else truth != claims.predicted,
        independent=work.label(oracle, work.stress.independent(), lent),
        resamples=work.baselines.resamples,
        seed=seed,
    )
    return Evaluation(
        verdict=judge(report, by),
        report=report,
        stress=labels.stress,
        counts=labels.counts(),
        validation_counts=None if held is None else held[1].counts(),
        predictive=None if truth is None else predictive_metrics(probabilities, truth),
        model=subset.model.kind,
        protocol_digest=protocol.digest,
        baseline=protocol.baseline,
    )


def _bind_with_donors(
    model: Model, X: Any, protocol: Protocol, donors: Any, ids: Any = None
) -> tuple[EvidenceRows, Floats | None]:
    """Return bound rows, and the cells of donor rows in the same coding if there are any."""
    bound = bind(model, X, protocol, ids=ids)
    return (bound, None) if donors is None else with_donors(bound, model, X, donors, protocol)


@dataclass(frozen=True, slots=True)
class _Evaluation:
    """The settings of one evaluation, by which any set of rows is scored and labelled."""

    stress: Stress
    baselines: Baselines
    protocol: Protocol
    modes: tuple[str, ...]
    seed: int
    byte_budget: int
    progress: bool | Report | None

    def judge(
        self, oracle: Oracle, certs: Certificates, order: Integers | None, donors: Floats | None
    ) -> tuple[dict[str, Floats], BrittleLabels, Floats]:
        """Return scores, labels and probabilities of rows with certificates; scores and labels are found apart."""
        labels = self.label(oracle, self.stress, donors)
        probabilities = predict_rows(oracle)
        scores = collect_scores(certs, probabilities)
        repeats, budget = self.baselines.random_orders, self.byte_budget
        rehearsed = rehearse_rows(oracle, self.protocol, self.stress, donors=donors, byte_budget=budget)
        scores[REHEARSAL] = label_rows(rehearsed, self.stress).statistic
        if self.modes:
            losses = losses_of_rows(oracle, self.protocol, self.modes, byte_budget=budget)
            scores |= {f"{EXPOSURE_TO}{mode}": losses[mode].exposure for mode in self.modes}
        if repeats > 0:
            scores["random_order"] = random_order_score(
                oracle, self.protocol, repeats=repeats, seed=self.seed, byte_budget=budget
            )
        if order is not None:
            scores["permutation_order"] = rcma_along(oracle, self.protocol, order, byte_budget=budget)
        if self.baselines.shap_rows > 0:
            confident = labels.high_confidence  # by the model's confidence alone, whatever broke
            scores["group_shap"] = group_shap(
                oracle, self.protocol, max_rows=self.baselines.shap_rows, among=confident, seed=self.seed
            ).score
        return scores, labels, probabilities

    def label(self, oracle: Oracle, stress: Stress, donors: Floats | None) -> BrittleLabels:
        run = run_stress_rows(
            oracle, self.protocol, stress, donors=donors, byte_budget=self.byte_budget, progress=self.progress
        )
        return label_rows(run, stress)


def predict_rows(oracle: Oracle, chunk: int = 8192) -> Floats:
    """Return (n, C) probabilities of an oracle's rows at x."""
    rows = oracle.rows
    starts = range(0, len(rows), chunk)
    return np.concatenate([oracle.predict(rows.dense(start, min(start + chunk, len(rows)))) for start in starts])


def judge(report: RankingReport, by: str = "exposure") -> RankingVerdict:
    """Judge a ranking score against the strongest oriented confidence score by the interval of their difference."""
    sturdy = report.high_confidence - report.brittle
    best = report.strongest(("confidence",))
    if report.brittle < MIN_CASES or sturdy < MIN_CASES or best is None:
        too_few = (
            f"Cannot be judged: of {report.rows} rows {report.high_confidence} are high-confidence and "
            f"{report.brittle} of those are brittle; at least {MIN_CASES} brittle and {MIN_CASES} other "
            "high-confidence rows are needed. Audit more rows, or declare another stress (severity, thresholds, rule)."
        )
        return RankingVerdict(CANNOT_TELL, too_few, None, None)
    score, name = JUDGED.get(by, (f"{EXPOSURE_TO}{by}", f"{EXPOSURE_TO}{by}"))
    judged, compared = report.result(score), _find_comparison(report, score, best)
    if compared.low > 0.0:
        state, opening = BETTER, f"Yes: {name} finds the brittle cases of this model better than its confidence does."
    elif compared.high < 0.0:
        state, opening = WORSE, f"No: the model's own confidence finds its brittle cases better than {name} does."
    else:
        state, opening = NOT_SHOWN, f"Not shown: on these rows {name} and the model's confidence cannot be told apart."
    sentence = (
        f"{opening} AUROC {judged.auroc:.3f} against {best.auroc:.3f} for {best.score} "
        f"(difference {compared.difference:+.3f}, 95% interval {compared.low:+.3f} to {compared.high:+.3f}); "
        f"reviewing the top 20% finds {judged.capture_20:.0%} of the brittle cases by {name}, "
        f"{best.capture_20:.0%} by {best.score}."
    )
    other = report.strongest(("perturbation", "attribution", "other"))
    return RankingVerdict(state, sentence, compared, None if other is None else _find_comparison(report, score, other))


def _find_comparison(report: RankingReport, score: str, baseline: ScoreResult) -> Comparison:
    return next(c for c in report.comparisons if (c.score, c.baseline) == (score, baseline.score))
