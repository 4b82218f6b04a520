"""ResMLPClassifier: the residual MLP of SPEC section 9 as a scikit-learn classifier, plain or fragility-regularised.

`penalty=None` trains with cross-entropy. `penalty=FragilityPenalty(...)` adds, for each mini-batch, a mildly degraded
twin and the price of losing support between the two (Eq. train; the formula is in `network`).

Weights are trained in float32. Predictions use those weights in float64: in float32 a logit of 10 has steps of 1e-6,
the resolution at which certificates order evidence, and the last bits change with the size of the batch.

A trained network is saved as one .safetensors file: weights as arrays, everything else as JSON in its header. Nothing
in a file is executed. Checked on reading: the format's version, the names and shapes of the arrays, the fingerprint.

torch is imported when a network is first needed, so this module loads in an installation without it.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from fragility.analysis.ranking.metrics import class_codes
from fragility.analysis.resmlp.penalty import FragilityPenalty
from fragility.base.arrays import Floats, Integers, is_count, is_number
from fragility.base.canonical import digest_of
from fragility.base.errors import DataError, EvidenceError, ModelError
from fragility.base.files import MODEL, parse_json, replacing
from fragility.base.libraries import say_lacking
from fragility.base.progress import Report, progress_bar
from fragility.scores import softmax_probabilities

# --- the file -------------------------------------------------------------------------------------------------

FORMAT = "fragility-resmlp/1"
SUFFIX = ".safetensors"


def import_network() -> Any:
    """Return the module `network`, imported on first use: the package must load without torch."""
    try:
        import fragility.analysis.resmlp.network as network
    except ImportError as error:
        raise ModelError(say_lacking("ResMLPClassifier", "torch") or f"cannot load torch: {error}") from error
    return network


def write_model(path: str | os.PathLike[str], header: Mapping[str, Any], weights: Mapping[str, NDArray[Any]]) -> None:
    """Write header and weights; the file appears whole or not at all."""
    target = Path(path)
    if target.suffix != SUFFIX:
        raise ModelError(f"the file name must end in {SUFFIX}, got {target.name!r}")
    _check_safetensors()
    from safetensors.numpy import save

    text = json.dumps({"format": FORMAT, **header}, ensure_ascii=False, allow_nan=False, sort_keys=True)
    try:
        with replacing(target, own=MODEL) as temporary:
            temporary.write_bytes(save(dict(weights), metadata={"fragility": text}))
    except OSError as error:
        raise ModelError(f"cannot write the model to {target}: {error.strerror or error}") from error


def _check_safetensors() -> None:
    if lacking := say_lacking("a .safetensors file", "safetensors"):
        raise ModelError(lacking)


def read_model(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Return the header and the arrays of a file that `write_model` wrote."""
    import_network()  # says what to install before the file's own library is missed
    _check_safetensors()
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            text = (file.metadata() or {}).get("fragility")
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no dict)
    except (OSError, SafetensorError) as error:
        raise ModelError(f"cannot read the model {path}: {error}") from error
    try:
        header = parse_json(text or "null")
    except ValueError as error:
        raise ModelError(f"{path}: the header is not JSON: {error}") from error
    stated = header.get("format") if isinstance(header, dict) else None
    if stated != FORMAT:
        raise ModelError(f"{path}: expected a model of format {FORMAT!r} (ResMLPClassifier.save), got {stated!r}")
    return header, arrays


def read_network(shape: Mapping[str, int], arrays: Mapping[str, NDArray[Any]], source: object) -> Any:
    """Return the network of a stored shape and its arrays; `source` names the file in messages."""
    network = import_network()
    declared = network.NetworkShape(**shape)
    # The arrays are compared before anything is made: a file's header may not decide how much memory is taken.
    shapes = {name: array.shape for name, array in arrays.items()}
    blocks = sum(name.endswith(".outer.bias") for name in shapes)
    expected = network.parameter_shapes(replace(declared, blocks=min(declared.blocks, blocks + 1)))
    if shapes != expected:
        wrong = sorted(name for name in {*expected, *shapes} if expected.get(name) != shapes.get(name))
        raise ModelError(f"{source}: the arrays {wrong[:5]} are missing, unknown or not of the shape the header says")
    return network.build_network(declared, arrays)


def fingerprint(shape: Any, classes: NDArray[Any], weights: Mapping[str, NDArray[Any]]) -> str:
    """Return ``sha256:...`` over all that decides the predictions."""

    def content(array: NDArray[Any]) -> str:
        return hashlib.sha256(np.ascontiguousarray(array).astype("<f4").tobytes()).hexdigest()

    return digest_of(
        {
            "format": FORMAT,
            "shape": asdict(shape),
            "classes": [[type(label).__name__, label] for label in classes.tolist()],
            "weights": {name: [list(array.shape), content(array)] for name, array in weights.items()},
        }
    )


# --- the classifier -------------------------------------------------------------------------------------------

Device: TypeAlias = Literal["auto", "cpu", "cuda"]
NUMBERS = (np.float64, np.float32)  # precisions that rows may have


class ResMLPClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Residual MLP for tabular rows, trained by mini-batch AdamW with early stopping on validation NLL.

    Parameters
    ----------
    width, blocks : int, default=128 and 3
        Size of the hidden layer, and number of residual blocks.
    dropout : float, default=0.1
        Dropout rate inside a block.
    learning_rate, weight_decay : float, default=1e-3 and 1e-4
        Of AdamW.
    batch_size : int, default=256
        Rows of a mini-batch.
    gradient_clip : float or None, default=1.0
        Bounds the norm of a batch's gradient (None: no bound).
    max_epochs, patience : int, default=100 and 10
        Training ends after so many epochs, or after so many without a lower validation NLL; the weights of the best
        epoch are kept.
    validation_fraction : float, default=0.15
        Share of the rows, by class, set aside for that; 0 trains ``max_epochs`` epochs on all rows. Ignored where
        ``fit`` is given validation rows.
    penalty : FragilityPenalty, optional
        The price of losing support; None trains with cross-entropy alone.
    device : {"auto", "cpu", "cuda"}, default="auto"
        ``auto`` is a CUDA device if there is one.
    n_jobs : int, optional
        CPU threads of the training; None is one. The last bits of the weights depend on this number alone, as sums are
        split among threads.
    progress : bool or callable, optional
        A bar over the epochs on the terminal (None: if there is one), or a function (epochs done, most epochs).
    random_state : int or RandomState, optional
        An integer makes training repeatable, bit for bit on the CPU; the global random generators are left alone.

    Attributes
    ----------
    classes_ : array of shape (C,)
        Class labels in the order of the probability columns.
    n_features_in_, feature_names_in_ : int, array of str
        Number of columns seen in ``fit``, and their names where a table was given.
    network_ : torch.nn.Module
        The trained network, on the CPU, float32.
    history_ : list of Epoch
        One entry per epoch: number, loss, validation NLL, seconds.
    best_epoch_, n_iter_ : int
        The epoch whose weights were kept, and the number of epochs trained.

    See Also
    --------
    FragilityPenalty : The price of losing support.
    """

    def __init__(
        self,
        *,
        width: int = 128,
        blocks: int = 3,
        dropout: float = 0.1,
        learning_rate: float = 1e-3,
        weight_decay: float = 1e-4,
        batch_size: int = 256,
        gradient_clip: float | None = 1.0,
        max_epochs: int = 100,
        patience: int = 10,
        validation_fraction: float = 0.15,
        penalty: FragilityPenalty | None = None,
        device: Device = "auto",
        n_jobs: int | None = None,
        progress: bool | Report | None = None,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.width = width
        self.blocks = blocks
        self.dropout = dropout
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.batch_size = batch_size
        self.gradient_clip = gradient_clip
        self.max_epochs = max_epochs
        self.patience = patience
        self.validation_fraction = validation_fraction
        self.penalty = penalty
        self.device = device
        self.n_jobs = n_jobs
        self.progress = progress
        self.random_state = random_state

    def __getstate__(self) -> dict[str, Any]:
        """State in arrays and plain values alone, so that a skops file of a Pipeline holds no type but this class."""
        state = dict(super().__getstate__())
        if self.penalty is not None:
            state["penalty"] = self.penalty.to_dict()
        if "network_" in state:
            state["network_"] = {"shape": asdict(self.network_.shape), "arrays": self._weights()}
            state["history_"] = [asdict(epoch) for epoch in self.history_]
        return state

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        plain = _read_penalty(state)
        if "network_" in plain:
            plain["network_"] = read_network(**plain["network_"], source="the stored state")
            plain["history_"] = _read_history(plain["history_"])
        super().__setstate__(plain)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def fit(
        self,
        X: Any,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        X_validation: Any = None,
        y_validation: ArrayLike | None = None,
    ) -> ResMLPClassifier:
        """Train the network.

        Parameters
        ----------
        X, y : array or CSR matrix of shape (n, d), array of shape (n,)
            Numeric rows without missing values, and class labels of any kind.
        sample_weight : array of shape (n,), optional
            Weight of each row in the loss and in the validation NLL; a row of weight 0 is left out.
        X_validation, y_validation : array or CSR matrix, array, optional
            Rows for early stopping instead of a share of ``X``, and their labels. In a Pipeline, name ``X_validation``
            in its ``transform_input``.

        Returns
        -------
        ResMLPClassifier
            The classifier itself.
        """
        _check_parameters(self)
        X, codes, weights = self._check_rows(X, y, sample_weight)
        seed = int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max))
        rows, validation = self._split_rows(X, codes, weights, seed, X_validation, y_validation)
        trained = self._train(rows, validation, self._declare_stress(X), seed)
        self.network_ = trained.network
        self.history_ = trained.history
        self.best_epoch_ = trained.best_epoch
        self.n_iter_ = len(trained.history)
        return self

    def _check_rows(self, X: Any, y: ArrayLike, sample_weight: ArrayLike | None) -> tuple[Any, Integers, Floats | None]:
        """Return rows, class columns and weights without the rows of weight 0; set ``classes_``."""
        X, y = validate_data(self, X, y, accept_sparse="csr", dtype=NUMBERS)
        check_classification_targets(y)
        self.classes_, codes = np.unique(y, return_inverse=True)
        weights = None if sample_weight is None else _check_sample_weight(sample_weight, X, ensure_non_negative=True)
        if weights is not None and (weights == 0).any():
            weighted = weights > 0
            if not weighted.any():
                raise DataError("every row has sample weight 0; at least one class needs rows that count")
            X, codes, weights = X[weighted], codes[weighted], weights[weighted]
        if len(np.unique(codes)) < 2:
            raise DataError(
                f"at least 2 classes were expected in y, got one class: {self.classes_[codes[0]]!r}; a prediction "
                "without an alternative cannot be learned"
            )
        return X, codes, weights

    def decision_logits(self, X: Any) -> Floats:
        """Return logits: float32 weights in float64 arithmetic, memory bounded.

        Parameters
        ----------
        X : array or sparse matrix of shape (n, d)
            Numeric rows.

        Returns
        -------
        array of shape (n, C)
            In the order of ``classes_``.
        """
        check_is_fitted(self)
        X = validate_data(self, X, accept_sparse="csr", dtype=NUMBERS, reset=False)
        logits: Floats = import_network().compute_logits(self.network_, X, _choose_device(self.device))
        return logits

    def predict_proba(self, X: Any) -> Floats:
        """Return the softmax of the logits in double precision.

        Parameters
        ----------
        X : array or sparse matrix of shape (n, d)
            Numeric rows.

        Returns
        -------
        array of shape (n, C)
            In the order of ``classes_``.
        """
        return softmax_probabilities(self.decision_logits(X))

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the label with the largest logit; the first in the order of ``classes_`` among equals.

        Parameters
        ----------
        X : array or sparse matrix of shape (n, d)
            Numeric rows.

        Returns
        -------
        array of shape (n,)
            Class labels.
        """
        leading = self.decision_logits(X).argmax(axis=1)  # before classes_, which an unfitted model does not have
        return np.asarray(self.classes_[leading])

    def fingerprint(self) -> str:
        """Return ``sha256:...`` over weights, shape and classes: all that decides the predictions.

        The same after saving and loading, and whatever the thread count, device or training settings.

        Returns
        -------
        str
            The digest.
        """
        check_is_fitted(self)
        return fingerprint(self.network_.shape, self.classes_, self._weights())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model to one ``.safetensors`` file: weights as arrays, everything else as JSON in its header.

        Parameters
        ----------
        path : path
            The file to write.
        """
        check_is_fitted(self)
        classes, names = self.classes_.tolist(), getattr(self, "feature_names_in_", None)
        if not all(isinstance(value, (str, int, float, bool)) for value in classes):
            raise ModelError(f"class labels must be text, numbers or truth values to be saved, got {classes[:3]!r}")
        parameters = dict(self.get_params(deep=False))
        if self.penalty is not None:
            parameters["penalty"] = self.penalty.to_dict()
        if callable(self.progress):
            parameters["progress"] = None  # a function of this process
        if not isinstance(self.random_state, (int, np.integer)):
            parameters["random_state"] = None  # a generator's state is not part of the trained model
        dtype = self.classes_.dtype
        header = {
            "shape": asdict(self.network_.shape),
            "classes": {"dtype": "object" if dtype.kind == "O" else dtype.str, "values": classes},
            "feature_names": None if names is None else [str(name) for name in names],
            "parameters": {k: v.item() if isinstance(v, np.generic) else v for k, v in parameters.items()},
            "best_epoch": self.best_epoch_,
            "history": [asdict(epoch) for epoch in self.history_],
            "fingerprint": self.fingerprint(),
        }
        write_model(path, header, self._weights())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> ResMLPClassifier:
        """Read what ``save`` wrote: nothing in the file is executed; format, arrays and fingerprint are checked.

        Parameters
        ----------
        path : path
            What ``save`` wrote.

        Returns
        -------
        ResMLPClassifier
            A fitted classifier with the same fingerprint.
        """
        header, arrays = read_model(path)
        try:
            model = cls(**_read_penalty(header["parameters"]))
            model.classes_ = np.array(header["classes"]["values"], dtype=header["classes"]["dtype"])
            model.network_ = read_network(header["shape"], arrays, path)
            model.history_ = _read_history(header["history"])
            model.best_epoch_ = header["best_epoch"]
            claimed, names = header["fingerprint"], header["feature_names"]
        except (KeyError, TypeError) as error:
            raise ModelError(f"{path}: the header lacks or misnames a field: {error}") from error
        model.n_iter_ = len(model.history_)
        model.n_features_in_ = model.network_.shape.n_features
        if names is not None:
            model.feature_names_in_ = np.array(names, dtype=object)
        if model.fingerprint() != claimed:
            raise ModelError(f"{path}: weights and header do not belong together (fingerprint {claimed} expected)")
        return model

    def _weights(self) -> dict[str, NDArray[np.float32]]:
        weights: dict[str, NDArray[np.float32]] = import_network().export_weights(self.network_)
        return weights

    def _split_rows(
        self, X: Any, codes: Integers, weights: Floats | None, seed: int, X_validation: Any, y_validation: Any
    ) -> tuple[Any, Any]:
        """Return rows to train on, and rows for early stopping (None without any)."""
        rows_of = import_network().NetworkRows
        if (X_validation is None) != (y_validation is None):
            raise DataError("X_validation and y_validation belong together; got only one of them")
        if X_validation is not None:
            validation_rows = validate_data(self, X_validation, accept_sparse="csr", dtype=NUMBERS, reset=False)
            held_codes = class_codes(y_validation, self.classes_)
            if len(held_codes) != validation_rows.shape[0]:
                raise DataError(
                    f"X_validation has {validation_rows.shape[0]} rows, y_validation {len(held_codes)} labels"
                )
            return rows_of(X, codes, _scale_to_mean_one(weights)), rows_of(validation_rows, held_codes)
        # floor(fraction * rows) of each class, so that every class stays in training
        chosen = np.zeros(len(codes), dtype=bool)
        order = np.random.default_rng(seed).permutation(len(codes))
        for code in np.unique(codes):
            members = order[codes[order] == code]
            chosen[members[: int(self.validation_fraction * len(members))]] = True
        if not chosen.any():
            return rows_of(X, codes, _scale_to_mean_one(weights)), None
        kept, held_out = np.flatnonzero(~chosen), np.flatnonzero(chosen)
        training = rows_of(X, codes[kept], None if weights is None else _scale_to_mean_one(weights[kept]), kept)
        return training, rows_of(X, codes[held_out], None if weights is None else weights[held_out], held_out)

    def _declare_stress(self, X: Any) -> Any:
        """Return how twins are made and what they cost; None for the plain network."""
        penalty = self.penalty
        if penalty is None:
            return None
        names = getattr(self, "feature_names_in_", None)
        groups = penalty.column_group(X.shape[1], None if names is None else [str(name) for name in names])
        if penalty.min_groups > groups.max() + 1:
            raise EvidenceError(
                f"min_groups is {penalty.min_groups}, but there are only {int(groups.max()) + 1} evidence groups"
            )
        numbers = ("alpha", "beta", "min_severity", "max_severity", "margin_floor")
        return import_network().EvidenceStress(
            column_group=groups,
            baseline=penalty.baseline_vector(X),
            min_groups=int(penalty.min_groups),
            max_groups=int(penalty.max_groups),
            **{name: float(getattr(penalty, name)) for name in numbers},
        )

    def _train(self, rows: Any, validation: Any, stress: Any, seed: int) -> Any:
        network = import_network()
        shape = network.NetworkShape(int(rows.matrix.shape[1]), len(self.classes_), int(self.width), int(self.blocks))
        threads = 1 if self.n_jobs is None else self.n_jobs
        shared = ["max_epochs", "patience", "batch_size", "learning_rate", "weight_decay", "dropout", "gradient_clip"]
        plan = network.TrainingPlan(
            **{name: getattr(self, name) for name in shared},
            seed=seed,
            threads=threads if threads > 0 else max(1, (os.cpu_count() or 1) + 1 + threads),
        )
        with progress_bar("training", self.progress) as report:
            try:
                return network.train_network(
                    rows,
                    shape,
                    plan,
                    validation=validation,
                    stress=stress,
                    device=_choose_device(self.device),
                    on_epoch=None if report is None else lambda epoch: report(epoch.number, self.max_epochs),
                )
            except FloatingPointError as error:
                raise DataError(
                    f"training diverged: {error}; standardise the columns (StandardScaler), or lower learning_rate"
                ) from error


def _read_history(epochs: Any) -> tuple[Any, ...]:
    return tuple(import_network().Epoch(**epoch) for epoch in epochs)


def _read_penalty(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return parameters whose penalty is an object again, not its plain form."""
    parameters = dict(document)
    if parameters.get("penalty") is not None:
        parameters["penalty"] = FragilityPenalty.from_dict(parameters["penalty"])
    return parameters


def _choose_device(device: str) -> str:
    if device == "cpu":
        return device
    if import_network().torch.cuda.is_available():
        return "cuda"
    if device == "cuda":
        raise ModelError("the device 'cuda' was asked for, but torch finds no CUDA device; use 'auto' or 'cpu'")
    return "cpu"


def _check_parameters(model: ResMLPClassifier) -> None:
    for name in ("width", "blocks", "batch_size", "max_epochs", "patience"):
        if not is_count(getattr(model, name)):
            raise ModelError(f"{name} must be a whole number of at least 1, got {getattr(model, name)!r}")
    for name, low, high in (
        ("dropout", 0.0, 1.0),
        ("validation_fraction", 0.0, 1.0),
        ("learning_rate", 0.0, np.inf),
        ("weight_decay", 0.0, np.inf),
    ):
        value = getattr(model, name)
        if not is_number(value) or not low <= value < high or (name == "learning_rate" and value == 0.0):
            raise ModelError(f"{name} must be a number in [{low:g}, {high:g}), got {value!r}")
    if model.gradient_clip is not None and (not is_number(model.gradient_clip) or model.gradient_clip <= 0):
        raise ModelError(f"gradient_clip must be a positive number or None, got {model.gradient_clip!r}")
    if model.device not in ("auto", "cpu", "cuda"):
        raise ModelError(f"device must be 'auto', 'cpu' or 'cuda', got {model.device!r}")
    if model.n_jobs is not None and (not isinstance(model.n_jobs, (int, np.integer)) or model.n_jobs == 0):
        raise ModelError(f"n_jobs must be None or a whole number other than 0, got {model.n_jobs!r}")
    if model.progress not in (None, True, False) and not callable(model.progress):
        raise ModelError(f"progress must be None, True, False or a function, got {model.progress!r}")
    if model.penalty is not None and not isinstance(model.penalty, FragilityPenalty):
        raise ModelError(f"penalty must be None or a FragilityPenalty, got {type(model.penalty).__name__}")


def _scale_to_mean_one(weights: Floats | None) -> Floats | None:
    """Return weights with mean 1, so that the learning rate does not depend on their unit."""
    return None if weights is None else weights / weights.mean()
