"""Brittleness-aware temperature scaling: lower confidence where the certificate says support is narrow.

SPEC section 9, alg:bats_calibration, with the paper's letters:

    T0         temperature that minimises the NLL of the validation rows
    Norm(f)    (f - min) / (max - min) over the validation FDS, clipped to [0, 1] on new rows
    eta        the value of the grid {0, 0.25, 0.5, 1, 2} with the lowest validation NLL
    T(x)       T0 + eta * Norm(FDS(x))
    p_BA(x)    softmax(z~(x) / T(x)),  z~ the centred pseudo-logits

eta = 0 is plain temperature scaling and is in the grid, so on the validation rows the correction is never worse.
Temperatures are positive, so the order of the classes in a row, and with it the predicted label, stays as it was.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.utils.validation import check_is_fitted

from fragility.analysis.ranking.metrics import (
    brier_score,
    check_probabilities,
    class_codes,
    expected_calibration_error,
    negative_log_likelihood,
)
from fragility.auditing.pipeline import audit
from fragility.audits import Certificates
from fragility.base.arrays import Floats, Integers
from fragility.base.errors import DataError, ModelError
from fragility.base.text import BriefRepr, align_columns, format_number
from fragility.evidence.rows import read_model_rows
from fragility.models import ClassLabel, Model
from fragility.pages.results import JsonFile, TabularReport
from fragility.protocol import Protocol
from fragility.scores import pseudo_logits, softmax_probabilities

FORMAT = "fragility-temperature/1"
ETAS = (0.0, 0.25, 0.5, 1.0, 2.0)
FRAGILE_SHARE = 0.2
METHODS = ("raw", "temperature", "brittleness-aware")
PROBE = 0.01  # a logit difference small enough that no temperature saturates the probabilities it is read from


class _GivenLogits(ClassifierMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """An estimator whose rows are already logits, for scikit-learn's calibrator to scale."""

    def fit(self, X: Floats, y: Integers, sample_weight: Floats | None = None) -> _GivenLogits:
        self.classes_ = np.arange(X.shape[1])
        return self

    def decision_function(self, X: Floats) -> Floats:
        # scikit-learn reads one number x as the logits (-x, x). Centred pseudo-logits add up to 0, so it cannot take
        # them for probabilities.
        return (X[:, 1] - X[:, 0]) / 2.0 if X.shape[1] == 2 else X

    def predict(self, X: Floats) -> Integers:  # asked for by scikit-learn's checks, never called
        return np.asarray(X.argmax(axis=1))


def global_temperature(probabilities: ArrayLike, codes: ArrayLike) -> float:
    """T0 = argmin_T NLL( softmax(z~ / T) ) of the rows; codes (n,) are class columns.

    scikit-learn minimises (`CalibratedClassifierCV(method="temperature")`). It takes an estimator, so the logits enter
    as one, on a single "fold" of all rows. It does not publish the temperature, which is therefore read off the
    probabilities of a probe row. It would drop a class without rows, hence one row of weight 0 for each class.
    """
    z = pseudo_logits(probabilities)
    n, n_classes = z.shape
    padded = np.concatenate([z, np.zeros((n_classes, n_classes))])
    labels = np.concatenate([np.asarray(codes, dtype=np.int64), np.arange(n_classes)])
    weights = np.concatenate([np.ones(n), np.zeros(n_classes)])
    everything = np.arange(len(labels))
    scaler = CalibratedClassifierCV(
        _GivenLogits(), method="temperature", ensemble=False, cv=[(everything, everything)]
    ).fit(padded, labels, sample_weight=weights)
    probe = np.zeros((1, n_classes))
    probe[0, 1] = PROBE
    p = scaler.predict_proba(probe)[0]
    return float(PROBE / (np.log(p[1]) - np.log(p[0])))


def scaled_probabilities(probabilities: ArrayLike, temperature: ArrayLike) -> Floats:
    """Return softmax(z~ / T) with one T, or one per row; the first largest class of every row stays the first."""
    p = np.asarray(probabilities, dtype=np.float64)
    t = np.broadcast_to(np.asarray(temperature, dtype=np.float64), p.shape[:1])
    scaled = softmax_probabilities(pseudo_logits(p) / t[:, None])
    # Rounding can make the leading class equal to a class declared before it.
    label = p.argmax(axis=1)
    moved = np.flatnonzero(scaled.argmax(axis=1) != label)
    scaled[moved, label[moved]] = np.nextafter(scaled[moved].max(axis=1), 2.0)
    return scaled


class FragilityTemperature(JsonFile, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Temperature scaling with a higher temperature for fragile rows: T(x) = T0 + eta * Norm(FDS(x)).

    Parameters
    ----------
    etas : sequence of float, default=(0, 0.25, 0.5, 1, 2)
        Candidates for eta; 0 must be among them.
    classes : sequence of class labels, optional
        Labels in the order of the probability columns; None if ``y`` already holds columns 0..C-1.

    Attributes
    ----------
    temperature_ : float
        T0, the plain temperature.
    eta_ : float
        The chosen eta.
    fds_range_ : tuple of two float
        Smallest and largest FDS of the validation rows.
    validation_nll_, raw_validation_nll_ : dict of float to float, float
        NLL of the validation rows for every candidate, and before any correction.
    n_classes_ : int
        Number of probability columns.

    See Also
    --------
    FragilityCalibratedClassifier : Model, protocol and correction in one classifier.
    """

    _noun = "temperature correction"
    _error = ModelError

    def __init__(self, etas: Sequence[float] = ETAS, classes: Sequence[ClassLabel] | None = None) -> None:
        self.etas = etas
        self.classes = classes

    def fit(self, probabilities: ArrayLike, y: ArrayLike, fds: ArrayLike) -> FragilityTemperature:
        """Find T0, the range of FDS and eta on validation rows the model was not trained on.

        Parameters
        ----------
        probabilities : array of shape (n, C)
            The model's own.
        y, fds : array of shape (n,)
            True labels of the rows, and FDS from their certificates.

        Returns
        -------
        FragilityTemperature
            The correction itself.
        """
        etas = tuple(float(eta) for eta in self.etas)
        if 0.0 not in etas or not all(np.isfinite(eta) and eta >= 0.0 for eta in etas):
            raise DataError(
                f"etas must be finite, at least 0, and contain 0 (plain temperature scaling), got {list(etas)}"
            )
        p, f = check_rows(probabilities, fds)
        codes = class_columns(y, self.classes, p.shape[1])
        self.raw_validation_nll_ = negative_log_likelihood(p, codes)  # refuses labels that do not fit the columns
        self.n_classes_ = p.shape[1]
        self.temperature_ = global_temperature(p, codes)
        self.fds_range_ = (float(f.min()), float(f.max()))
        fragility = self.normalised(f)
        self.validation_nll_ = {
            eta: negative_log_likelihood(scaled_probabilities(p, self.temperature_ + eta * fragility), codes)
            for eta in etas
        }
        self.eta_ = min(self.validation_nll_, key=lambda eta: (self.validation_nll_[eta], eta))
        return self

    def normalised(self, fds: ArrayLike) -> Floats:
        """Return Norm(FDS) in [0, 1]; 0 everywhere if all validation rows had the same FDS, which then says nothing.

        Parameters
        ----------
        fds : array of shape (n,)
            FDS of the rows, from their certificates.

        Returns
        -------
        array of shape (n,)
            FDS by its range on the validation rows, clipped.
        """
        check_is_fitted(self)
        low, high = self.fds_range_
        f = np.asarray(fds, dtype=np.float64)
        return np.zeros_like(f) if high <= low else np.clip((f - low) / (high - low), 0.0, 1.0)

    def temperatures(self, fds: ArrayLike) -> Floats:
        """Return T(x) = T0 + eta * Norm(FDS(x)), one per row.

        Parameters
        ----------
        fds : array of shape (n,)
            FDS of the rows, from their certificates.

        Returns
        -------
        array of shape (n,)
            Positive temperatures.
        """
        return self.temperature_ + self.eta_ * self.normalised(fds)

    def transform(self, probabilities: ArrayLike, fds: ArrayLike) -> Floats:
        """Return corrected probabilities; the predicted label of every row is unchanged.

        Parameters
        ----------
        probabilities : array of shape (n, C)
            The model's own.
        fds : array of shape (n,)
            FDS of the rows, from their certificates.

        Returns
        -------
        array of shape (n, C)
            In the order of the columns given.
        """
        check_is_fitted(self)
        p, f = check_rows(probabilities, fds)
        if p.shape[1] != self.n_classes_:
            raise DataError(f"the correction was fitted on {self.n_classes_} classes, these rows have {p.shape[1]}")
        return scaled_probabilities(p, self.temperatures(f))

    def to_dict(self) -> dict[str, Any]:
        check_is_fitted(self)
        return {
            "format": FORMAT,
            "etas": [float(eta) for eta in self.etas],
            "classes": None if self.classes is None else np.asarray(self.classes).tolist(),
            "n_classes": self.n_classes_,
            "temperature": self.temperature_,
            "eta": self.eta_,
            "fds_range": list(self.fds_range_),
            "raw_validation_nll": self.raw_validation_nll_,
            "validation_nll": [[eta, nll] for eta, nll in self.validation_nll_.items()],
        }

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Self:
        stated = document.get("format") if isinstance(document, Mapping) else type(document).__name__
        if stated != FORMAT:
            raise ModelError(f"expected a temperature correction of format {FORMAT!r}, got {stated!r}")
        try:
            made = cls(etas=tuple(document["etas"]), classes=document["classes"])
            made.n_classes_ = int(document["n_classes"])
            made.temperature_ = float(document["temperature"])
            made.eta_ = float(document["eta"])
            low, high = document["fds_range"]
            made.fds_range_ = (float(low), float(high))
            made.raw_validation_nll_ = float(document["raw_validation_nll"])
            made.validation_nll_ = {float(eta): float(nll) for eta, nll in document["validation_nll"]}
        except (KeyError, TypeError, ValueError) as error:
            raise ModelError(f"the temperature correction is malformed: {error!r}") from error
        if not made.temperature_ > 0 or not made.eta_ >= 0:
            raise ModelError(
                f"temperature must be positive and eta at least 0, got {made.temperature_} and {made.eta_}; any other "
                "value could change a predicted label"
            )
        return made


class FragilityCalibratedClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """A trained model whose probabilities are corrected by what its certificates say about each new row.

    ``predict_proba`` audits the rows it is given, then corrects; an audit costs many model evaluations per row.

    Parameters
    ----------
    model : estimator, pipeline, booster or Model
        Anything :meth:`Model.wrap` takes, already trained.
    protocol : Protocol
        The protocol rows are audited under.
    calibrator : FragilityTemperature, optional
        A fitted one is used unchanged; ``fit`` fits a copy.
    engine : str, default="auto"
        As in :func:`audit`.

    Attributes
    ----------
    calibrator_ : FragilityTemperature
        The correction that ``fit`` found.

    See Also
    --------
    FragilityTemperature : The correction alone, for arrays.
    """

    def __init__(
        self, model: Any, protocol: Protocol, calibrator: FragilityTemperature | None = None, *, engine: str = "auto"
    ) -> None:
        self.model = model
        self.protocol = protocol
        self.calibrator = calibrator
        self.engine = engine

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self._calibrator(), "temperature_")

    def _calibrator(self) -> Any:
        return getattr(self, "calibrator_", self.calibrator)

    @property
    def classes_(self) -> NDArray[Any]:
        """The model's classes, in its order."""
        return np.asarray(Model.wrap(self.model).classes)

    def fit(self, X: Any, y: ArrayLike) -> FragilityCalibratedClassifier:
        """Audit validation rows, which the model was not trained on, and fit the correction; the model stays.

        Parameters
        ----------
        X, y : array or table of shape (n, d), array of shape (n,)
            Raw validation rows and their true labels.

        Returns
        -------
        FragilityCalibratedClassifier
            The classifier itself.
        """
        fresh = FragilityTemperature() if self.calibrator is None else clone(self.calibrator)
        fresh.set_params(classes=Model.wrap(self.model).classes)
        self.calibrator_ = fresh.fit(self.raw_probabilities(X), y, self.fragility(X))
        return self

    def raw_probabilities(self, X: Any) -> Floats:
        """Return the model's own probabilities; a table's columns are put in the model's order, as the audit does.

        Parameters
        ----------
        X : array or table of shape (n, d)
            Raw rows.

        Returns
        -------
        array of shape (n, C)
            Before correction.
        """
        wrapped = Model.wrap(self.model)
        return wrapped.probabilities(read_model_rows(wrapped, X).native)

    def certificates(self, X: Any) -> Certificates:
        """Return the certificates of the rows, as :func:`audit` gives them.

        Parameters
        ----------
        X : array or table of shape (n, d)
            Raw rows.

        Returns
        -------
        Certificates
            One per row.
        """
        return audit(self.model, X, self.protocol, engine=self.engine, progress=False, lattice=False)

    def fragility(self, X: Any) -> Floats:
        """Return the FDS of the rows.

        Parameters
        ----------
        X : array or table of shape (n, d)
            Raw rows.

        Returns
        -------
        array of shape (n,)
            Between 0 and 1.
        """
        return np.asarray(self.certificates(X).claims.fds)

    def predict_proba(self, X: Any) -> Floats:
        """Return probabilities corrected by each row's certificate.

        Parameters
        ----------
        X : array or table of shape (n, d)
            Raw rows.

        Returns
        -------
        array of shape (n, C)
            In the order of ``classes_``.
        """
        check_is_fitted(self)
        return np.asarray(self._calibrator().transform(self.raw_probabilities(X), self.fragility(X)))

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the model's own labels: the correction never changes one, so none is computed.

        Parameters
        ----------
        X : array or table of shape (n, d)
            Raw rows.

        Returns
        -------
        array of shape (n,)
            Class labels.
        """
        check_is_fitted(self)
        return np.asarray(self.classes_[self.raw_probabilities(X).argmax(axis=1)])


@dataclass(frozen=True, slots=True)
class CalibrationLine:
    """Quality of one method's probabilities on one set of rows; lower is better for all three figures."""

    method: str
    subset: str
    rows: int
    ece: float
    brier: float
    nll: float


@dataclass(frozen=True, slots=True, repr=False)
class CalibrationReport(TabularReport, BriefRepr):
    """Raw, temperature-scaled and brittleness-aware probabilities on all rows and on the most fragile share."""

    lines: tuple[CalibrationLine, ...]
    temperature: float
    eta: float
    fragile_share: float

    def line(self, method: str, subset: str) -> CalibrationLine:
        """Return the line of one method on one set of rows."""
        for line in self.lines:
            if (line.method, line.subset) == (method, subset):
                return line
        raise DataError(f"no line {method!r}, {subset!r}; methods are {METHODS}, subsets 'all' and 'fragile'")

    def __str__(self) -> str:
        head = ("method", "rows", "n", "ECE", "Brier", "NLL")
        body = [
            (line.method, line.subset, str(line.rows), *(format_number(v, 4) for v in (line.ece, line.brier, line.nll)))
            for line in self.lines
        ]
        note = f"T0 = {self.temperature:.4g}, eta = {self.eta:g}; fragile: top {self.fragile_share:.0%} by FDS"
        return "\n".join([*align_columns([head, *body], left=2), note])


def fragile_rows(fds: ArrayLike, share: float = FRAGILE_SHARE) -> NDArray[np.bool_]:
    """Return (n,) True for the ceil(share * n) rows of highest FDS; among equals earlier rows come first."""
    f = np.asarray(fds, dtype=np.float64)
    if not 0.0 < share <= 1.0:
        raise DataError(f"the fragile share must lie in (0, 1], got {share}")
    selected = np.zeros(len(f), dtype=bool)
    # the small step back keeps 0.2 * 10 from becoming 3 rows by rounding
    selected[np.argsort(-f, kind="stable")[: int(np.ceil(share * len(f) - 1e-9))]] = True
    return selected


def calibration_report(
    calibrator: FragilityTemperature,
    probabilities: ArrayLike,
    y: ArrayLike,
    fds: ArrayLike,
    *,
    fragile_share: float = FRAGILE_SHARE,
) -> CalibrationReport:
    """Compare the three methods on rows used neither for training nor for fitting ``calibrator``."""
    p, f = check_rows(probabilities, fds)
    codes = class_columns(y, calibrator.classes, p.shape[1])
    subsets = {"all": np.ones(len(f), dtype=bool), "fragile": fragile_rows(f, fragile_share)}
    measures = (expected_calibration_error, brier_score, negative_log_likelihood)
    lines = tuple(
        CalibrationLine(
            method, subset, int(rows.sum()), *(measure(corrected[rows], codes[rows]) for measure in measures)
        )
        for subset, rows in subsets.items()
        for method, corrected in corrections(calibrator, p, f).items()
    )
    return CalibrationReport(lines, calibrator.temperature_, calibrator.eta_, fragile_share)


def corrections(calibrator: FragilityTemperature, probabilities: ArrayLike, fds: ArrayLike) -> dict[str, Floats]:
    """Return method -> probabilities, for `METHODS`."""
    p = np.asarray(probabilities, dtype=np.float64)
    values = (p, scaled_probabilities(p, calibrator.temperature_), calibrator.transform(p, fds))
    return dict(zip(METHODS, values, strict=True))


def check_rows(probabilities: ArrayLike, fds: ArrayLike) -> tuple[Floats, Floats]:
    """Return probabilities (n, C) and FDS (n,) as float64; refuse those that do not belong together."""
    p, f = check_probabilities(probabilities), np.asarray(fds, dtype=np.float64)
    if f.shape != (p.shape[0],):
        raise DataError(f"fds must have one number for each of the {p.shape[0]} rows, got shape {f.shape}")
    if not np.isfinite(f).all():
        raise DataError(f"fds must be finite; {int((~np.isfinite(f)).sum())} of {len(f)} rows are not")
    return p, f


def class_columns(y: ArrayLike, classes: Sequence[ClassLabel] | None, n_classes: int) -> Integers:
    """Return columns 0..C-1 of labels; without declared classes the labels must be columns already."""
    if classes is None:
        codes = np.asarray(y)
        if codes.dtype.kind not in "iu":
            raise DataError(
                f"y must hold class columns (integers 0..{n_classes - 1}), got {codes.dtype} values; declare "
                "classes=[...] in the order of the probability columns to give labels"
            )
        return codes.astype(np.int64)
    if len(classes) != n_classes:
        raise DataError(f"classes names {len(classes)} labels, the probabilities have {n_classes} columns")
    return class_codes(y, classes)
