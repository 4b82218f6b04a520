"""Protocol: the declared evidence-failure protocol Pi = (G, baseline, P, Lambda, K) and how margins are read.

A protocol is fitted once, on training data, and then it is data: groups, baseline values, operators, severities, depth,
reading, weights and resolution, with a digest. ``bind`` applies it to a model and the rows to audit.
"""

from __future__ import annotations

import itertools
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from fragility.arrays import Floats, Integers
from fragility.canonical import digest_of, table_digest
from fragility.errors import DataError, EvidenceError, FragilityError, ModelError, ProtocolError
from fragility.evidence import EvidenceRows
from fragility.files import write_text
from fragility.fitting import SPACES, GroupMap, Space, baseline_for, groups_for, training_evidence
from fragility.frames import Kind, RawCodec, Rows, Scalar, check_kinds, read_rows
from fragility.handover import dense, guarded, transform
from fragility.models import Model
from fragility.scores import READINGS, Reading
from fragility.tracing import output_names

FORMAT = "fragility-protocol/1"
DEFAULT_DEPTH = 10
DEFAULT_OPERATORS = ("attenuate_all", "attenuate_top1")
DEFAULT_SEVERITIES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
EQUAL_WEIGHTS = (1 / 3, 1 / 3, 1 / 3)
CONFIRM_ROWS = 64  # rows on which a known link is compared with the model's own predict_proba


@dataclass(frozen=True, slots=True)
class Field:
    """A raw field of the data, as the model is given it."""

    name: str
    kind: Kind


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the evidence space."""

    name: str
    kind: Kind  # nominal: encodes a category (no noise; `mode` baseline takes the mode's encoding)
    baseline: Scalar  # None: missing (NaN for a number, the missing token for a nominal field)
    spread: float | None  # training standard deviation of a numeric column


@dataclass(frozen=True, slots=True)
class Group:
    """An evidence group: columns that fail together."""

    name: str
    columns: tuple[str, ...]


@dataclass(frozen=True)
class Protocol:
    """What is removed and degraded, toward what, how far, and how the result is read. Validated on construction."""

    space: Space
    fields: tuple[Field, ...]
    columns: tuple[Column, ...]
    groups: tuple[Group, ...]
    grouping: str  # raw-origin, declared, or merged at a threshold
    baseline: str  # mean, median, zero, mode, missing or explicit
    operators: tuple[str, ...] = DEFAULT_OPERATORS
    severities: tuple[float, ...] = DEFAULT_SEVERITIES
    depth: int = DEFAULT_DEPTH
    reading: Reading = "support"
    weights: tuple[float, float, float] = EQUAL_WEIGHTS
    resolution: float = 1e-6
    training_digest: str = ""
    training_rows: int = 0
    extra: Mapping[str, Any] = field(default_factory=dict)  # fields of a newer minor version, kept as they came

    def __post_init__(self) -> None:
        _check_choice("space", self.space, SPACES)
        _check_choice("reading", self.reading, READINGS)
        for name, kind in [*((f.name, f.kind) for f in self.fields), *((c.name, c.kind) for c in self.columns)]:
            _check_choice(f"kind of {name!r}", kind, ("numeric", "nominal"))
        _check_partition(self.groups, [column.name for column in self.columns])
        _check_depth(self.depth, len(self.groups))
        _check_severities(self.severities)
        _check_weights(self.weights)
        if not (np.isfinite(self.resolution) and self.resolution > 0):
            raise ProtocolError(f"resolution must be a positive number in margin units, got {self.resolution!r}")
        if len(set(self.operators)) != len(self.operators):
            raise ProtocolError(f"operators must be distinct, got {list(self.operators)}")
        for operator in self.operators:
            operator_width(operator, len(self.groups))

    # --- making one -------------------------------------------------------------------------------------

    @classmethod
    def fit(
        cls,
        model: Any,
        X_train: Any,
        *,
        space: Space | None = None,
        groups: str | os.PathLike[str] | GroupMap = "raw-origin",
        baseline: Any = "mean",
        operators: Sequence[str] = DEFAULT_OPERATORS,
        severities: Sequence[float] = DEFAULT_SEVERITIES,
        depth: int | None = None,
        reading: Reading = "support",
        weights: Sequence[float] = EQUAL_WEIGHTS,
        resolution: float = 1e-6,
        merge_threshold: float = 0.8,
        nominal: Sequence[str] = (),
    ) -> Protocol:
        """Declare a protocol for ``model``: trace the groups and fit the baseline on training data.

        space: ``transformed`` stresses the estimator's input matrix (the default wherever that is a numeric matrix);
            ``raw`` stresses the raw fields before any preprocessing.
        groups: ``raw-origin`` (one group a raw field), ``merged`` (fields joined where they are associated on the
            training data at ``merge_threshold`` or more), or a map field -> block or block -> fields (a dict or the
            path of a JSON file).
        baseline: ``mean``, ``median``, ``zero``, ``mode``, ``missing``, or explicit values (a vector, a mapping from
            columns to values, or a one-row table). LightGBM splits one-hot columns at about 1e-35, so under ``mean``
            every category reads as present there; ``mode`` does not have this artefact.
        depth: how many groups the removal path takes at most; by default 10, or all groups if there are fewer.
        nominal: numeric fields whose numbers are codes, not quantities (raw space).
        """
        wrapped = Model.wrap(model)
        rows = read_rows(X_train, wrapped.columns, wrapped.n_columns)
        evidence = training_evidence(wrapped, rows, space, nominal)
        blocks, grouping = groups_for(groups, evidence, rows, merge_threshold)
        values, kind = baseline_for(baseline, evidence, wrapped, rows)
        columns = tuple(
            Column(name, origin_kind, value, spread)
            for name, origin_kind, value, spread in zip(
                evidence.columns, evidence.kinds, values, evidence.spreads(), strict=True
            )
        )
        protocol = cls(
            space=evidence.space,
            fields=tuple(Field(name, evidence.field_kinds[name]) for name in rows.names),
            columns=columns,
            groups=tuple(Group(name, tuple(members)) for name, members in blocks.items()),
            grouping=grouping,
            baseline=kind,
            operators=tuple(_canonical_operator(operator) for operator in _listed("operators", operators)),
            severities=tuple(_number("a severity", severity) for severity in _listed("severities", severities)),
            depth=_whole(min(DEFAULT_DEPTH, len(blocks)) if depth is None else depth),
            reading=reading,
            weights=_three(weights),
            resolution=_number("resolution", resolution),
            training_digest=table_digest(rows.columns()),
            training_rows=len(rows),
        )
        _check_baseline_accepted(wrapped, rows, protocol)
        return protocol

    @classmethod
    def paper(cls, model: Any, X_train: Any, **changes: Any) -> Protocol:
        """Return the paper's protocol: margins read literally (``current``), mean baseline, K = 10."""
        return cls.fit(model, X_train, **{"reading": "current", "baseline": "mean", **changes})

    # --- reading it -------------------------------------------------------------------------------------

    @property
    def group_names(self) -> tuple[str, ...]:
        return tuple(group.name for group in self.groups)

    @cached_property
    def column_group(self) -> Integers:
        """(d,) index of each column's group."""
        owner = {column: g for g, group in enumerate(self.groups) for column in group.columns}
        return np.array([owner[column.name] for column in self.columns], dtype=np.int64)

    @property
    def states_per_row(self) -> int:
        """The paper's count of model evaluations for one certificate: 1 + G + K + |P| |Lambda|."""
        return 1 + len(self.groups) + self.depth + len(self.operators) * len(self.severities)

    @cached_property
    def digest(self) -> str:
        return digest_of(self.to_dict())

    # --- files ------------------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """Return the protocol as plain JSON values; field names are this class's."""
        return {
            **self.extra,
            "format": FORMAT,
            "space": self.space,
            "fields": [{"name": f.name, "kind": f.kind} for f in self.fields],
            "columns": [
                {"name": c.name, "kind": c.kind, "baseline": c.baseline, "spread": c.spread} for c in self.columns
            ],
            "groups": [{"name": g.name, "columns": list(g.columns)} for g in self.groups],
            "grouping": self.grouping,
            "baseline": self.baseline,
            "operators": list(self.operators),
            "severities": list(self.severities),
            "depth": self.depth,
            "reading": self.reading,
            "weights": list(self.weights),
            "resolution": self.resolution,
            "training_digest": self.training_digest,
            "training_rows": self.training_rows,
        }

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Protocol:
        """Return the protocol that ``to_dict`` wrote; unknown fields are kept, an unknown major version is refused."""
        if not isinstance(document, Mapping):
            raise ProtocolError(f"a protocol must be a JSON object, got {type(document).__name__}")
        if document.get("format") != FORMAT:
            raise ProtocolError(f"expected a protocol of format {FORMAT!r}, got {document.get('format')!r}")
        try:
            return cls(
                space=document["space"],
                fields=tuple(Field(str(f["name"]), f["kind"]) for f in document["fields"]),
                columns=tuple(_column_from(c) for c in document["columns"]),
                groups=tuple(Group(str(g["name"]), tuple(g["columns"])) for g in document["groups"]),
                grouping=document["grouping"],
                baseline=document["baseline"],
                operators=tuple(document["operators"]),
                severities=tuple(float(s) for s in document["severities"]),
                depth=document["depth"],
                reading=document["reading"],
                weights=_three(document["weights"]),
                resolution=float(document["resolution"]),
                training_digest=document["training_digest"],
                training_rows=document["training_rows"],
                extra={key: value for key, value in document.items() if key not in _KNOWN_KEYS},
            )
        except KeyError as error:
            raise ProtocolError(f"the protocol lacks the field {error.args[0]!r}") from error
        except (TypeError, ValueError) as error:
            if isinstance(error, FragilityError):
                raise
            raise ProtocolError(f"the protocol is malformed: {error}") from error

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=2, ensure_ascii=False, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Protocol:
        try:
            document = json.loads(text)
        except ValueError as error:
            raise ProtocolError(f"the protocol is not valid JSON: {error}") from error
        return cls.from_dict(document)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the protocol as JSON; the file appears whole or not at all."""
        target = Path(path)
        try:
            write_text(target, self.to_json())
        except OSError as error:
            raise ProtocolError(f"cannot write the protocol to {target}: {error.strerror or error}") from error

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Protocol:
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ProtocolError(
                f"cannot read the protocol {path}: {getattr(error, 'strerror', None) or error}"
            ) from error
        return cls.from_json(text)


_KNOWN_KEYS = frozenset(
    {"format", "space", "fields", "columns", "groups", "grouping", "baseline", "operators", "severities", "depth"}
    | {"reading", "weights", "resolution", "training_digest", "training_rows"}
)


# --- validation ---------------------------------------------------------------------------------------------


def _check_choice(name: str, value: object, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise ProtocolError(f"{name} must be one of {', '.join(allowed)}, got {value!r}")


def _check_partition(groups: Sequence[Group], columns: Sequence[str]) -> None:
    if not groups:
        raise ProtocolError("at least one evidence group is needed, got none")
    names = [group.name for group in groups]
    if len(set(names)) != len(names):
        raise ProtocolError(f"group names must be distinct, got {names}")
    if len(set(columns)) != len(columns):
        raise ProtocolError("column names must be distinct")
    seen: dict[str, str] = {}
    for group in groups:
        if not group.columns:
            raise ProtocolError(f"group {group.name!r} has no columns")
        for column in group.columns:
            if column in seen:
                raise ProtocolError(f"column {column!r} is in both groups {seen[column]!r} and {group.name!r}")
            seen[column] = group.name
    unknown = [column for column in seen if column not in set(columns)]
    left_out = [column for column in columns if column not in seen]
    if unknown or left_out:
        raise ProtocolError(f"groups must cover the columns exactly: unknown {unknown[:5]}, left out {left_out[:5]}")


def _check_depth(depth: object, n_groups: int) -> None:
    if isinstance(depth, bool) or not isinstance(depth, (int, np.integer)) or not 1 <= depth <= n_groups:
        raise ProtocolError(
            f"depth must be a whole number from 1 to the number of groups, {n_groups}, got {depth!r}; "
            "leave it out for 10, or all groups if there are fewer"
        )


def _whole(depth: Any) -> Any:
    return int(depth) if isinstance(depth, np.integer) else depth  # a file holds Python's numbers


def _check_severities(severities: Sequence[float]) -> None:
    rising = all(a < b for a, b in itertools.pairwise(severities))
    if not severities or not rising or not (severities[0] > 0 and severities[-1] <= 1):
        raise ProtocolError(f"severities must rise strictly within (0, 1], got {list(severities)}")


def _check_weights(weights: Sequence[float]) -> None:
    if not all(np.isfinite(w) and w >= 0 for w in weights) or sum(weights) <= 0:
        raise ProtocolError(f"weights must be three numbers >= 0, not all 0, got {list(weights)}")


def _three(weights: Sequence[float]) -> tuple[float, float, float]:
    if len(_listed("weights", weights)) != 3:
        raise ProtocolError(f"weights must be three numbers (RCMA, flip budget, degradation), got {len(weights)}")
    a, b, c = (_number("a weight", w) for w in weights)
    return a, b, c


def _listed(name: str, values: Any) -> Sequence[Any]:
    if isinstance(values, str) or not isinstance(values, (Sequence, np.ndarray)):
        raise ProtocolError(f"{name} must be a list, got {values!r}")
    return list(values)


def _number(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        raise ProtocolError(f"{name} must be a number, got {value!r}") from error


def _column_from(document: Mapping[str, Any]) -> Column:
    spread = document["spread"]
    baseline = document["baseline"]
    if document["kind"] == "numeric" and baseline is not None:
        baseline = float(baseline)
    return Column(str(document["name"]), document["kind"], baseline, None if spread is None else float(spread))


def _canonical_operator(operator: str) -> str:
    if not isinstance(operator, str):
        raise ProtocolError(f"an operator is a name such as attenuate_all, got {operator!r}")
    return re.sub(r"^attenuate_top\((\d+)\)$", r"attenuate_top\1", operator.strip())


def operator_width(operator: str, n_groups: int) -> int:
    """Return how many groups of the path an operator degrades: all of them, or its first j."""
    if operator == "attenuate_all":
        return n_groups
    match = re.fullmatch(r"attenuate_top(\d+)", operator)
    if match is None or not 1 <= int(match[1]) <= n_groups:
        raise ProtocolError(
            f"an operator is attenuate_all or attenuate_topJ with J from 1 to {n_groups}, the number of groups; "
            f"got {operator!r}"
        )
    return int(match[1])


def _check_baseline_accepted(model: Model, rows: Rows, protocol: Protocol) -> None:
    first = Rows(rows.native[:1], None if rows.frame is None else rows.frame.iloc[:1], rows.names, rows.ids[:1])
    bound = _bind_rows(model, first, protocol)
    try:
        bound.predict(bound.baseline[None, :])
    except FragilityError as error:
        raise EvidenceError(
            f"the model cannot take the baseline {protocol.baseline!r}: {error}; choose another"
        ) from error


# --- binding a protocol to a model and rows -----------------------------------------------------------------


def bind(model: Any, X: Any, protocol: Protocol, ids: Any = None) -> EvidenceRows:
    """Return the rows of ``X`` in the protocol's evidence space, ready for an engine."""
    if not isinstance(protocol, Protocol):
        raise ProtocolError(
            f"a Protocol was expected, got {type(protocol).__name__}; make one with Protocol.fit or read one with "
            "Protocol.load"
        )
    wrapped = Model.wrap(model)
    expected = wrapped.columns or tuple(f.name for f in protocol.fields)
    if set(expected) != {f.name for f in protocol.fields} and wrapped.columns is not None:
        raise ProtocolError(
            f"the protocol was made for the columns {[f.name for f in protocol.fields][:8]}, the model expects "
            f"{list(expected)[:8]}; fit a protocol for this model"
        )
    rows = read_rows(X, expected, wrapped.n_columns, ids)
    if rows.frame is not None:
        check_kinds(rows.frame, {f.name: f.kind for f in protocol.fields})
    return _bind_rows(wrapped, rows, protocol)


def _bind_rows(model: Model, rows: Rows, protocol: Protocol) -> EvidenceRows:
    if protocol.space == "raw":
        return _bind_raw(model, rows, protocol)
    return _bind_transformed(model, rows, protocol)


def _bind_raw(model: Model, rows: Rows, protocol: Protocol) -> EvidenceRows:
    if rows.frame is None:
        raise DataError("the raw evidence space needs a table or dense array, got a sparse matrix")
    kinds = {column.name: column.kind for column in protocol.columns}
    values = {column.name: column.baseline for column in protocol.columns}
    order = [column.name for column in protocol.columns]
    codec = RawCodec.fit(rows, kinds, values)
    place = [rows.names.index(name) for name in order]  # evidence columns are in the protocol's order
    inverse = np.argsort(place)
    baseline = codec.encode_row(values)[place]
    confirmed = _confirmed(model, lambda: codec.decode(codec.encode(rows.frame.iloc[:CONFIRM_ROWS])), raw=True)  # type: ignore[union-attr]

    def predict(matrix: Floats) -> Floats:
        return guarded(lambda: confirmed.probabilities(codec.decode(matrix[:, inverse])), rows)

    return EvidenceRows(
        matrix=codec.encode(rows.frame)[:, place],
        ids=rows.ids,
        baseline=baseline,
        stepwise=np.array([c.kind == "nominal" for c in protocol.columns]) | np.isnan(baseline),
        column_group=protocol.column_group,
        n_groups=len(protocol.groups),
        n_classes=len(model.classes),
        predict_matrix=predict,
        model=confirmed,
        source=rows,
        native_matrix=(
            model.transformer is None
            and all(table is None for table in codec.tables)
            and place == list(range(len(place)))
        ),
    )


def _bind_transformed(model: Model, rows: Rows, protocol: Protocol) -> EvidenceRows:
    matrix, restore = transform(model, rows)
    if matrix.shape[1] != len(protocol.columns):
        raise ProtocolError(
            f"the protocol was made for {len(protocol.columns)} columns, the model's estimator is handed "
            f"{matrix.shape[1]}; fit a protocol for this model"
        )
    names = list(rows.names) if model.transformer is None else output_names(model.transformer, matrix.shape[1])
    declared = [column.name for column in protocol.columns]
    if names != declared:
        other = next(name for name in names if name not in set(declared)) if set(names) != set(declared) else names[0]
        raise ProtocolError(
            f"the protocol was made for other columns: it does not place {other!r}; fit one for this model"
        )
    baseline = np.array([np.nan if c.baseline is None else float(c.baseline) for c in protocol.columns])
    confirmed = _confirmed(model, lambda: restore(dense(matrix[:CONFIRM_ROWS])), raw=False)

    def predict(stressed: Floats) -> Floats:
        return guarded(lambda: confirmed.head_probabilities(restore(stressed)), rows)

    return EvidenceRows(
        matrix=matrix,
        ids=rows.ids,
        baseline=baseline,
        stepwise=np.isnan(baseline),
        column_group=protocol.column_group,
        n_groups=len(protocol.groups),
        n_classes=len(model.classes),
        predict_matrix=predict,
        model=confirmed,
        source=rows,
        cell_dtype=np.float32 if matrix.dtype == np.float32 else np.float64,
    )


def _confirmed(model: Model, sample: Callable[[], Any], *, raw: bool) -> Model:
    """Return the model with its link confirmed on a few rows; a failure is left to the first prediction."""
    try:
        rows = sample()
        return model.confirmed(model.transformer.transform(rows) if raw and model.transformer is not None else rows)
    except ModelError:
        raise
    except Exception:
        return model
