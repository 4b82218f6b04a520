"""ResMLPClassifier: the residual MLP of SPEC section 9 as a scikit-learn classifier, plain or fragility-regularised.

`fragility=None` trains with cross-entropy.  `fragility=FragilityPenalty(...)` adds, for each mini-batch, a mildly
degraded twin and the price of losing support between the two (Eq. train; the formula is in `residual_network`).

Weights are trained in float32.  Predictions use those weights in float64: in float32 a logit of 10 has steps of 1e-6,
the resolution at which certificates order evidence, and the last bits change with the size of the batch.

torch is imported when a network is first needed, so this module loads in an installation without it.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import math
import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from fragility.arrays import Floats
from fragility.canonical import digest_of
from fragility.errors import DataError, EvidenceError, ModelError
from fragility.evidence import column_means, raw_origin_groups
from fragility.metrics import class_codes
from fragility.protocol import Protocol
from fragility.scores import softmax_probabilities
from fragility.tracing import output_names, trace_columns

Device: TypeAlias = Literal["auto", "cpu", "cuda"]
FORMAT = "fragility-resmlp/1"
SUFFIX = ".safetensors"
QUIET_SECONDS = 2.0  # a training shorter than this shows no progress bar
Member: TypeAlias = int | str
Groups: TypeAlias = tuple[tuple[Member, ...], ...]


@dataclass(frozen=True, slots=True)
class FragilityPenalty:
    """What a network pays for losing support when its evidence is mildly degraded (SPEC section 9).

    alpha: weight of the whole penalty; 0 trains the plain network, bit for bit.
    beta: weight of the margin term inside it.
    groups: which columns fail together. None: every column by itself. A sequence of groups, each a sequence of column
        positions or names. A flat sequence with one label a column (columns of equal label form a group). A
        Protocol: its groups.
    baseline: what evidence is attenuated toward. "mean": the mean of the rows given to ``fit``. A vector with one
        number a column. A Protocol: its baseline.
    min_groups, max_groups: how many groups of a row are degraded, drawn uniformly.
    min_severity, max_severity: how far toward the baseline, drawn uniformly, one number a row.
    margin_floor: added to |m(x)| in the normaliser of the margin term. The declared 1e-8 lets a row at the decision
        boundary outweigh a whole batch; a floor of about 0.1 bounds its say.
    """

    alpha: float = 0.5
    beta: float = 0.1
    groups: Any = None
    baseline: Any = "mean"
    min_groups: int = 1
    max_groups: int = 3
    min_severity: float = 0.1
    max_severity: float = 0.5
    margin_floor: float = 1e-8

    def __post_init__(self) -> None:
        for name in ("alpha", "beta"):
            value = getattr(self, name)
            if not _is_number(value) or value < 0:
                raise EvidenceError(f"{name} must be a number of at least 0, got {value!r}")
        if not _is_number(self.margin_floor) or self.margin_floor <= 0:
            raise EvidenceError(f"margin_floor must be a positive number, got {self.margin_floor!r}")
        if not (_is_count(self.min_groups) and _is_count(self.max_groups) and self.min_groups <= self.max_groups):
            raise EvidenceError(
                "min_groups and max_groups must be whole numbers with 1 <= min_groups <= max_groups, "
                f"got {self.min_groups!r} and {self.max_groups!r}"
            )
        low, high = self.min_severity, self.max_severity
        if not (_is_number(low) and _is_number(high) and 0 <= low <= high <= 1):
            raise EvidenceError(
                f"severities must satisfy 0 <= min_severity <= max_severity <= 1, got {low!r} and {high!r}"
            )
        # Tuples instead of what came: equality, hashing and copying then work on values.
        object.__setattr__(self, "groups", _plain_groups(self.groups))
        object.__setattr__(self, "baseline", _plain_baseline(self.baseline))

    @classmethod
    def from_protocol(
        cls,
        protocol: Protocol,
        alpha: float = 0.5,
        beta: float = 0.1,
        *,
        min_groups: int = 1,
        max_groups: int = 3,
        min_severity: float = 0.1,
        max_severity: float = 0.5,
        margin_floor: float = 1e-8,
    ) -> FragilityPenalty:
        """The penalty with the groups and the baseline of a protocol in the transformed space."""
        return cls(
            alpha, beta, protocol, protocol, min_groups, max_groups, min_severity, max_severity, margin_floor
        )

    @classmethod
    def from_preprocessing(
        cls,
        transformer: Any,
        alpha: float = 0.5,
        beta: float = 0.1,
        *,
        min_groups: int = 1,
        max_groups: int = 3,
        min_severity: float = 0.1,
        max_severity: float = 0.5,
        margin_floor: float = 1e-8,
    ) -> FragilityPenalty:
        """The penalty with one group a raw field, traced through a fitted transformer as `Protocol.fit` traces it."""
        groups = _traced_groups(transformer)
        return cls(
            alpha, beta, groups, "mean", min_groups, max_groups, min_severity, max_severity, margin_floor
        )

    def column_group(self, n_columns: int, names: Sequence[str] | None = None) -> NDArray[np.int64]:
        """(d,) group index of every column; refuses groups that do not partition the columns."""
        if self.groups is None:
            return np.arange(n_columns, dtype=np.int64)
        owner = np.full(n_columns, -1, dtype=np.int64)
        for g, members in enumerate(self.groups):
            for member in members:
                j = _column_position(member, n_columns, names)
                if owner[j] >= 0:
                    raise EvidenceError(f"column {member!r} is in the groups at positions {owner[j]} and {g}")
                owner[j] = g
        if (owner < 0).any():
            missing = [names[j] if names is not None else int(j) for j in np.flatnonzero(owner < 0)[:5]]
            raise EvidenceError(
                f"the groups cover {int((owner >= 0).sum())} of the {n_columns} columns; left out are {missing}; "
                "every column belongs to exactly one group"
            )
        return owner

    def baseline_vector(self, matrix: Any) -> Floats:
        """(d,) values the columns are attenuated toward."""
        if isinstance(self.baseline, str):
            return np.asarray(column_means(matrix), dtype=np.float64)
        if len(self.baseline) != matrix.shape[1]:
            raise EvidenceError(
                f"the baseline must have one number for each of the {matrix.shape[1]} columns, got {len(self.baseline)}"
            )
        return np.asarray(self.baseline, dtype=np.float64)

    def to_dict(self) -> dict[str, Any]:
        """The penalty as plain JSON values."""
        document = asdict(self)
        if self.groups is not None:
            document["groups"] = [list(members) for members in self.groups]
        if not isinstance(self.baseline, str):
            document["baseline"] = list(self.baseline)
        return document

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> FragilityPenalty:
        return cls(**document)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float, np.number)) and not isinstance(value, bool) and math.isfinite(float(value))


def _is_count(value: object, least: int = 1) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool) and int(value) >= least


def _plain_groups(groups: Any) -> Groups | None:
    if groups is None:
        return None
    if isinstance(groups, Protocol):
        return _positions_by_label(_transformed(groups).column_group.tolist())
    if isinstance(groups, (str, Mapping)) or not hasattr(groups, "__iter__"):
        raise EvidenceError(
            "groups must be None, a Protocol, a sequence of groups (each a sequence of column positions or names) or a "
            f"sequence with one label a column, got {type(groups).__name__}"
        )
    items = [_plain_member(item) for item in groups]
    if not items:
        raise EvidenceError("groups must name at least one group, got none")
    if all(isinstance(item, (int, str)) for item in items):
        return _positions_by_label(items)
    if any(isinstance(item, (int, str)) or not item for item in items):
        raise EvidenceError("groups must be non-empty sequences of columns, or one label a column; got a mixture")
    return tuple(tuple(item) for item in items)


def _plain_member(item: Any) -> Any:
    if isinstance(item, (str, bool, np.bool_)) or not hasattr(item, "__iter__"):
        if isinstance(item, np.generic):
            item = item.item()
        if isinstance(item, bool) or not isinstance(item, (int, str)):
            raise EvidenceError(f"a column must be a position (whole number) or a name, got {item!r}")
        return item
    return [_plain_member(member) for member in item]


def _positions_by_label(labels: Sequence[Member]) -> Groups:
    groups: dict[Member, list[int]] = {}
    for j, label in enumerate(labels):
        groups.setdefault(label, []).append(j)
    return tuple(tuple(members) for members in groups.values())


def _plain_baseline(baseline: Any) -> str | tuple[float, ...]:
    if isinstance(baseline, Protocol):
        values: Any = [column.baseline for column in _transformed(baseline).columns]
    elif isinstance(baseline, str):
        if baseline != "mean":
            raise EvidenceError(f"baseline must be 'mean', a vector or a Protocol, got {baseline!r}")
        return baseline
    else:
        values = np.asarray(baseline).tolist()
    if not isinstance(values, list) or not all(_is_number(value) for value in values):
        raise EvidenceError("baseline must be one finite number for each column; a network accepts no missing value")
    return tuple(float(value) for value in values)


def _transformed(protocol: Protocol) -> Protocol:
    if protocol.space != "transformed":
        raise EvidenceError(
            f"a protocol of the transformed space was expected, this one is of the {protocol.space} space; a network "
            "is trained on transformed columns: fit the protocol with space='transformed'"
        )
    return protocol


def _traced_groups(transformer: Any) -> Groups:
    check_is_fitted(transformer)
    names = getattr(transformer, "feature_names_in_", None)
    fields = [f"x{j}" for j in range(transformer.n_features_in_)] if names is None else [str(name) for name in names]
    origins = trace_columns(transformer, fields)
    columns = output_names(transformer, len(origins))
    position = {column: j for j, column in enumerate(columns)}
    groups = raw_origin_groups(columns, origins)
    return tuple(tuple(position[column] for column in members) for members in groups.values())


def _column_position(member: Member, n_columns: int, names: Sequence[str] | None) -> int:
    if isinstance(member, str):
        if names is None:
            raise EvidenceError(
                f"the groups name the column {member!r}, but the rows have no column names; use positions, or give a "
                "table (in a Pipeline: set_output(transform='pandas'))"
            )
        if member not in names:
            raise EvidenceError(f"the groups name the column {member!r}, which is not among {list(names)[:10]}")
        return list(names).index(member)
    if not 0 <= member < n_columns:
        raise EvidenceError(f"the groups name column {member}; positions go from 0 to {n_columns - 1}")
    return member


class ResMLPClassifier(ClassifierMixin, BaseEstimator):
    """Residual MLP for tabular rows, trained by mini-batch AdamW with early stopping on validation NLL.

    Parameters
    ----------
    width, blocks, dropout : size of the hidden layer, number of residual blocks, dropout rate inside a block.
    learning_rate, weight_decay, batch_size, gradient_clip : AdamW's settings; ``gradient_clip`` bounds the norm of
        a batch's gradient (None: no bound).
    max_epochs, patience : training ends after ``max_epochs``, or after ``patience`` epochs without a lower
        validation NLL; the weights of the best epoch are kept.
    validation_fraction : share of the rows, by class, set aside for that; 0 trains ``max_epochs`` epochs on all rows.
        Ignored where ``fit`` is given validation rows.
    fragility : None, or a `FragilityPenalty`.
    device : "auto" (a CUDA device where there is one), "cpu" or "cuda".
    n_jobs : CPU threads of the training; None is one. The last bits of the weights depend on this number, as
        sums are split among threads; nothing else of the machine's load or settings enters.
    progress : "auto" (a bar on a terminal when training takes longer than two seconds), True or False.
    random_state : an integer makes training repeatable, bit for bit on the CPU; the global random generators are
        left alone.

    Attributes
    ----------
    classes_, n_features_in_, feature_names_in_ : as in scikit-learn.
    network_ : the trained torch module, on the CPU, float32.
    history_ : one `Epoch` an epoch (number, loss, validation NLL, seconds).
    best_epoch_ : the epoch whose weights were kept.
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
        fragility: FragilityPenalty | None = None,
        device: Device = "auto",
        n_jobs: int | None = None,
        progress: bool | Literal["auto"] = "auto",
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
        self.fragility = fragility
        self.device = device
        self.n_jobs = n_jobs
        self.progress = progress
        self.random_state = random_state

    def __getstate__(self) -> dict[str, Any]:
        """State in arrays and plain values alone, so that a skops file of a Pipeline holds no type but this class."""
        state = dict(super().__getstate__())
        if self.fragility is not None:
            state["fragility"] = self.fragility.to_dict()
        if "network_" in state:
            state["network_"] = {"shape": asdict(self.network_.shape), "weights": _weights(self.network_)}
            state["history_"] = [asdict(epoch) for epoch in self.history_]
        return state

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        plain = dict(state)
        if plain.get("fragility") is not None:
            plain["fragility"] = FragilityPenalty.from_dict(plain["fragility"])
        if "network_" in plain:
            shape = _core().NetworkShape(**plain["network_"]["shape"])
            plain["network_"] = _network_from(shape, plain["network_"]["weights"], "the stored state")
            plain["history_"] = tuple(_core().Epoch(**epoch) for epoch in plain["history_"])
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
        """Train on rows X (dense or CSR, numeric, no missing values) with labels y of any kind.

        sample_weight: weight of each row in the loss and in the validation NLL; a row of weight 0 is left out.
        X_validation, y_validation: rows for early stopping instead of a share of X. In a Pipeline, name
            ``X_validation`` in its ``transform_input``.
        """
        _check_parameters(self)
        core = _core()
        X, y = validate_data(self, X, y, accept_sparse="csr", dtype=(np.float64, np.float32))
        check_classification_targets(y)
        self.classes_, codes = np.unique(y, return_inverse=True)
        weights = None if sample_weight is None else _check_sample_weight(sample_weight, X, ensure_non_negative=True)
        X, codes, weights = _without_zero_weights(X, codes, weights)
        if len(np.unique(codes)) < 2:
            raise DataError(
                f"at least 2 classes were expected in y, got one class: {self.classes_[codes[0]]!r}; a prediction "
                "without an alternative cannot be learned"
            )
        random = check_random_state(self.random_state)
        seed = int(random.randint(np.iinfo(np.int32).max))
        rows, validation = self._training_rows(core, X, codes, weights, seed, X_validation, y_validation)
        with _EpochBar(self.max_epochs, self.progress) as bar:
            trained = self._train(core, rows, validation, self._stress(core, X), seed, bar)
        self.network_ = trained.network
        self.history_ = trained.history
        self.best_epoch_ = trained.best_epoch
        self.n_iter_ = len(trained.history)
        return self

    def decision_logits(self, X: Any) -> Floats:
        """(n, C) logits in the order of ``classes_``: float32 weights in float64 arithmetic, memory bounded."""
        check_is_fitted(self)
        X = validate_data(self, X, accept_sparse="csr", dtype=(np.float64, np.float32), reset=False)
        core = _core()
        return core.logits_of(self.network_, X, _device_name(self.device))

    def predict_proba(self, X: Any) -> Floats:
        """(n, C) softmax of the logits in double precision."""
        return softmax_probabilities(self.decision_logits(X))

    def predict(self, X: Any) -> NDArray[Any]:
        """The label with the largest logit; the first in the order of ``classes_`` among equals."""
        logits = self.decision_logits(X)
        return self.classes_[logits.argmax(axis=1)]

    def fingerprint(self) -> str:
        """``sha256:...`` over weights, shape and classes: all that decides the predictions.

        The same after saving and loading, and whatever the thread count, device or training settings.
        """
        check_is_fitted(self)
        return _fingerprint(self.network_.shape, self.classes_, _weights(self.network_))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model to one ``.safetensors`` file: weights as arrays, everything else as JSON in its header."""
        check_is_fitted(self)
        target = Path(path)
        if target.suffix != SUFFIX:
            raise ModelError(f"the file name must end in {SUFFIX}, got {target.name!r}")
        from safetensors.numpy import save

        header = json.dumps(_header(self), ensure_ascii=False, allow_nan=False, sort_keys=True)
        _write_whole(target, save(_weights(self.network_), metadata={"fragility": header}))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> ResMLPClassifier:
        """Read what `save` wrote; nothing in the file is executed, and the fingerprint is checked."""
        return load_resmlp(path)

    def _training_rows(
        self, core: Any, X: Any, codes: Any, weights: Any, seed: int, X_validation: Any, y_validation: Any
    ) -> tuple[Any, Any]:
        if (X_validation is None) != (y_validation is None):
            raise DataError("X_validation and y_validation belong together; got only one of them")
        if X_validation is not None:
            held = validate_data(self, X_validation, accept_sparse="csr", dtype=(np.float64, np.float32), reset=False)
            held_codes = class_codes(y_validation, self.classes_)
            if len(held_codes) != held.shape[0]:
                raise DataError(f"X_validation has {held.shape[0]} rows, y_validation {len(held_codes)} labels")
            return core.Rows(X, codes, _mean_one(weights)), core.Rows(held, held_codes)
        chosen = _held_out(codes, self.validation_fraction, seed)
        if not chosen.any():
            return core.Rows(X, codes, _mean_one(weights)), None
        kept, held_out = np.flatnonzero(~chosen), np.flatnonzero(chosen)
        training = core.Rows(X, codes[kept], None if weights is None else _mean_one(weights[kept]), kept)
        return training, core.Rows(X, codes[held_out], None if weights is None else weights[held_out], held_out)

    def _stress(self, core: Any, X: Any) -> Any:
        penalty = self.fragility
        if penalty is None:
            return None
        names = getattr(self, "feature_names_in_", None)
        groups = penalty.column_group(X.shape[1], None if names is None else [str(name) for name in names])
        if penalty.min_groups > groups.max() + 1:
            raise EvidenceError(
                f"min_groups is {penalty.min_groups}, but there are only {int(groups.max()) + 1} evidence groups"
            )
        return core.EvidenceStress(
            groups,
            penalty.baseline_vector(X),
            float(penalty.alpha),
            float(penalty.beta),
            int(penalty.min_groups),
            int(penalty.max_groups),
            float(penalty.min_severity),
            float(penalty.max_severity),
            float(penalty.margin_floor),
        )

    def _train(self, core: Any, rows: Any, validation: Any, stress: Any, seed: int, bar: _EpochBar) -> Any:
        shape = core.NetworkShape(int(rows.matrix.shape[1]), len(self.classes_), int(self.width), int(self.blocks))
        plan = core.TrainingPlan(
            max_epochs=self.max_epochs,
            patience=self.patience,
            batch_size=self.batch_size,
            learning_rate=self.learning_rate,
            weight_decay=self.weight_decay,
            dropout=self.dropout,
            gradient_clip=self.gradient_clip,
            seed=seed,
            threads=_threads(self.n_jobs),
        )
        try:
            return core.train_network(
                rows,
                shape,
                plan,
                validation=validation,
                stress=stress,
                device=_device_name(self.device),
                on_epoch=bar.advance,
            )
        except FloatingPointError as error:
            raise DataError(
                f"training diverged: {error}; standardise the columns (StandardScaler), or lower learning_rate"
            ) from error


def load_resmlp(path: str | os.PathLike[str]) -> ResMLPClassifier:
    """Return the classifier in a ``.safetensors`` file written by `ResMLPClassifier.save`.

    Checked: the format's version, the names and shapes of the arrays, and the fingerprint.
    """
    header, arrays = _read_file(Path(path))
    try:
        model = ResMLPClassifier(**_parameters_from(header["parameters"]))
        shape = _core().NetworkShape(**header["shape"])
        model.classes_ = np.array(header["classes"]["values"], dtype=header["classes"]["dtype"])
        model.network_ = _network_from(shape, arrays, path)
        model.history_ = tuple(_core().Epoch(**epoch) for epoch in header["history"])
        model.best_epoch_ = header["best_epoch"]
        claimed, names = header["fingerprint"], header["feature_names"]
    except (KeyError, TypeError) as error:
        raise ModelError(f"{path}: the header lacks or misnames a field: {error}") from error
    model.n_iter_ = len(model.history_)
    model.n_features_in_ = shape.n_features
    if names is not None:
        model.feature_names_in_ = np.array(names, dtype=object)
    if model.fingerprint() != claimed:
        raise ModelError(f"{path}: weights and header do not belong together (fingerprint {claimed} expected)")
    return model


def _read_file(path: Path) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    _core()
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            text = (file.metadata() or {}).get("fragility")
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no dict)
    except (OSError, SafetensorError) as error:
        raise ModelError(f"cannot read the model {path}: {error}") from error
    try:
        header = json.loads(text or "null")
    except ValueError as error:
        raise ModelError(f"{path}: the header is not JSON: {error}") from error
    found = header.get("format") if isinstance(header, dict) else None
    if found != FORMAT:
        raise ModelError(f"{path}: expected a model of format {FORMAT!r} (ResMLPClassifier.save), got {found!r}")
    return header, arrays


def _network_from(shape: Any, arrays: Mapping[str, NDArray[Any]], path: Any) -> Any:
    import torch

    # The arrays are compared before anything is made: a file's header may not decide how much memory is taken.
    found = {name: array.shape for name, array in arrays.items()}
    blocks = sum(name.endswith(".outer.bias") for name in found)
    expected = _core().parameter_shapes(replace(shape, blocks=min(shape.blocks, blocks + 1)))
    if found != expected:
        wrong = sorted(name for name in {*expected, *found} if expected.get(name) != found.get(name))
        raise ModelError(f"{path}: the arrays {wrong[:5]} are missing, unknown or not of the shape the header says")
    network = _core().ResidualNetwork(shape)
    network.load_state_dict({name: torch.from_numpy(np.array(array)) for name, array in arrays.items()})
    return network


def _header(model: ResMLPClassifier) -> dict[str, Any]:
    names = getattr(model, "feature_names_in_", None)
    return {
        "format": FORMAT,
        "shape": asdict(model.network_.shape),
        "classes": _classes_document(model.classes_),
        "feature_names": None if names is None else [str(name) for name in names],
        "parameters": _parameters_document(model),
        "best_epoch": model.best_epoch_,
        "history": [asdict(epoch) for epoch in model.history_],
        "fingerprint": model.fingerprint(),
    }


def _classes_document(classes: NDArray[Any]) -> dict[str, Any]:
    values = classes.tolist()
    if not all(isinstance(value, (str, int, float, bool)) for value in values):
        raise ModelError(f"class labels must be text, numbers or truth values to be saved, got {values[:3]!r}")
    return {"dtype": "object" if classes.dtype == object else classes.dtype.str, "values": values}


def _parameters_document(model: ResMLPClassifier) -> dict[str, Any]:
    document = dict(model.get_params(deep=False))
    if model.fragility is not None:
        document["fragility"] = model.fragility.to_dict()
    if not isinstance(model.random_state, (int, np.integer)):
        document["random_state"] = None  # a generator's state is not part of the trained model
    return {name: value.item() if isinstance(value, np.generic) else value for name, value in document.items()}


def _parameters_from(document: Mapping[str, Any]) -> dict[str, Any]:
    parameters = dict(document)
    if parameters.get("fragility") is not None:
        parameters["fragility"] = FragilityPenalty.from_dict(parameters["fragility"])
    return parameters


def _weights(network: Any) -> dict[str, NDArray[np.float32]]:
    return {name: tensor.detach().cpu().contiguous().numpy() for name, tensor in sorted(network.state_dict().items())}


def _fingerprint(shape: Any, classes: NDArray[Any], weights: Mapping[str, NDArray[Any]]) -> str:
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


def _write_whole(target: Path, data: bytes) -> None:
    """The file appears whole or not at all."""
    try:
        with tempfile.NamedTemporaryFile(dir=target.parent, delete=False) as handle:
            handle.write(data)
        os.replace(handle.name, target)
    except OSError as error:
        raise ModelError(f"cannot write the model to {target}: {error.strerror or error}") from error


def _core() -> Any:
    """The torch part, loaded on first use: `import fragility` must work, and stay quick, without torch."""
    try:
        return importlib.import_module("fragility.residual_network")
    except ImportError as error:
        raise ModelError("ResMLPClassifier needs PyTorch; install it with: pip install 'fragility[torch]'") from error


def _device_name(device: str) -> str:
    if device == "cpu":
        return device
    import torch

    if torch.cuda.is_available():
        return "cuda"
    if device == "cuda":
        raise ModelError("device='cuda' was asked for, but torch finds no CUDA device; use 'auto' or 'cpu'")
    return "cpu"


def _threads(n_jobs: int | None) -> int:
    if n_jobs is None:
        return 1
    return n_jobs if n_jobs > 0 else max(1, (os.cpu_count() or 1) + 1 + n_jobs)


def _check_parameters(model: ResMLPClassifier) -> None:
    for name in ("width", "blocks", "batch_size", "max_epochs", "patience"):
        if not _is_count(getattr(model, name)):
            raise ModelError(f"{name} must be a whole number of at least 1, got {getattr(model, name)!r}")
    for name, low, high in (
        ("dropout", 0.0, 1.0),
        ("validation_fraction", 0.0, 1.0),
        ("learning_rate", 0.0, np.inf),
        ("weight_decay", 0.0, np.inf),
    ):
        value = getattr(model, name)
        if not _is_number(value) or not low <= value < high or (name == "learning_rate" and value == 0.0):
            raise ModelError(f"{name} must be a number in [{low:g}, {high:g}), got {value!r}")
    if model.gradient_clip is not None and (not _is_number(model.gradient_clip) or model.gradient_clip <= 0):
        raise ModelError(f"gradient_clip must be a positive number or None, got {model.gradient_clip!r}")
    if model.device not in ("auto", "cpu", "cuda"):
        raise ModelError(f"device must be 'auto', 'cpu' or 'cuda', got {model.device!r}")
    if model.n_jobs is not None and (not isinstance(model.n_jobs, (int, np.integer)) or model.n_jobs == 0):
        raise ModelError(f"n_jobs must be None or a whole number other than 0, got {model.n_jobs!r}")
    if model.progress not in ("auto", True, False):
        raise ModelError(f"progress must be 'auto', True or False, got {model.progress!r}")
    if model.fragility is not None and not isinstance(model.fragility, FragilityPenalty):
        raise ModelError(f"fragility must be None or a FragilityPenalty, got {type(model.fragility).__name__}")


def _without_zero_weights(X: Any, codes: Any, weights: Any) -> tuple[Any, Any, Any]:
    if weights is None or (weights > 0).all():
        return X, codes, weights
    kept = weights > 0
    if not kept.any():
        raise DataError("every row has sample weight 0; at least one class needs rows that count")
    return X[kept], codes[kept], weights[kept]


def _mean_one(weights: Any) -> Any:
    """Weights scaled to mean 1, so that the learning rate does not depend on their unit."""
    return None if weights is None else weights / weights.mean()


def _held_out(codes: NDArray[np.int64], fraction: float, seed: int) -> NDArray[np.bool_]:
    """(n,) True for validation rows: floor(fraction * rows) of each class, so that every class stays in training."""
    chosen = np.zeros(len(codes), dtype=bool)
    order = np.random.default_rng(seed).permutation(len(codes))
    for code in np.unique(codes):
        members = order[codes[order] == code]
        chosen[members[: int(fraction * len(members))]] = True
    return chosen


class _EpochBar:
    """Progress over epochs, on standard error; silent where nobody watches and for short runs."""

    def __init__(self, epochs: int, wanted: bool | str) -> None:
        self._epochs = epochs
        self._console = Console(stderr=True)
        self._wanted = wanted is True or (wanted == "auto" and self._console.is_terminal)
        self._quiet = 0.0 if wanted is True else QUIET_SECONDS
        self._started = time.perf_counter()
        self._bar: Progress | None = None

    def __enter__(self) -> _EpochBar:
        return self

    def advance(self, epoch: Any) -> None:
        if not self._wanted or time.perf_counter() - self._started < self._quiet:
            return
        if self._bar is None:
            columns = (TextColumn("training"), BarColumn(), TextColumn("{task.description}"), TimeRemainingColumn())
            self._bar = Progress(*columns, console=self._console, transient=self._console.is_terminal)
            self._task = self._bar.add_task("", total=self._epochs)
            self._bar.start()
        nll = "" if epoch.validation_nll is None else f", validation NLL {epoch.validation_nll:.4f}"
        note = f"epoch {epoch.number} of at most {self._epochs}{nll}"
        self._bar.update(self._task, completed=epoch.number, description=note)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
