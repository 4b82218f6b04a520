"""Protocol: the declared evidence-failure protocol Pi = (G, baseline, P, Lambda, K) and how margins are read.

A protocol is fitted once, on training data, and then it is data: groups, baseline values, operators, severities, depth,
reading, weights and resolution, with a digest. ``bind`` applies it to a model and the rows to audit.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar, cast

import numpy as np
import pandas as pd
import scipy.sparse as sp

from fragility.canonical import digest_of, is_missing, table_digest
from fragility.errors import DataError, EvidenceError, FragilityError, ModelError, ProtocolError
from fragility.evidence import (
    BASELINES,
    EvidenceRows,
    column_spreads,
    declared_groups,
    field_baseline,
    matrix_baseline,
    merged_fields,
    raw_origin_groups,
)
from fragility.frames import Kind, RawCodec, Rows, Scalar, check_kinds, kind_of, read_rows
from fragility.models import Model
from fragility.scores import READINGS, Floats, Integers, Reading
from fragility.tracing import Origin, output_names, trace_columns

T = TypeVar("T")
Space: TypeAlias = Literal["transformed", "raw"]
GroupMap: TypeAlias = Mapping[str, str | Sequence[str]]

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
        _check_choice("space", self.space, ("transformed", "raw"))
        _check_choice("reading", self.reading, READINGS)
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
        evidence = _training_evidence(wrapped, rows, space, nominal)
        blocks, grouping = _groups_for(groups, evidence, rows, merge_threshold)
        values, kind = _baseline_for(baseline, evidence, wrapped, rows)
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
            operators=tuple(_canonical_operator(operator) for operator in operators),
            severities=tuple(float(severity) for severity in severities),
            depth=min(DEFAULT_DEPTH, len(blocks)) if depth is None else depth,
            reading=reading,
            weights=_three(weights),
            resolution=float(resolution),
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
            with tempfile.NamedTemporaryFile("w", dir=target.parent, delete=False, encoding="utf-8") as handle:
                handle.write(self.to_json())
            os.replace(handle.name, target)
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


def _check_severities(severities: Sequence[float]) -> None:
    rising = all(a < b for a, b in itertools.pairwise(severities))
    if not severities or not rising or not (severities[0] > 0 and severities[-1] <= 1):
        raise ProtocolError(f"severities must rise strictly within (0, 1], got {list(severities)}")


def _check_weights(weights: Sequence[float]) -> None:
    if not all(np.isfinite(w) and w >= 0 for w in weights) or sum(weights) <= 0:
        raise ProtocolError(f"weights must be three numbers >= 0, not all 0, got {list(weights)}")


def _three(weights: Sequence[float]) -> tuple[float, float, float]:
    if len(weights) != 3:
        raise ProtocolError(f"weights must be three numbers (RCMA, flip budget, degradation), got {len(weights)}")
    a, b, c = (float(w) for w in weights)
    return a, b, c


def _column_from(document: Mapping[str, Any]) -> Column:
    spread = document["spread"]
    baseline = document["baseline"]
    if document["kind"] == "numeric" and baseline is not None:
        baseline = float(baseline)
    return Column(str(document["name"]), document["kind"], baseline, None if spread is None else float(spread))


def _canonical_operator(operator: str) -> str:
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


# --- fitting ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _TrainingEvidence:
    """The training rows in the evidence space."""

    space: Space
    columns: list[str]
    origins: list[Origin]
    matrix: Any  # transformed space only
    frame: pd.DataFrame | None  # raw fields
    field_kinds: dict[str, Kind]

    @property
    def kinds(self) -> list[Kind]:
        return ["nominal" if origin.nominal else "numeric" for origin in self.origins]

    def spreads(self) -> list[float | None]:
        if self.space == "transformed":
            values = column_spreads(self.matrix)
        else:
            assert self.frame is not None
            numbers = [
                np.full(1, np.nan) if kind == "nominal" else self.frame[name].to_numpy(float, na_value=np.nan)
                for name, kind in zip(self.columns, self.kinds, strict=True)
            ]
            values = np.array([column_spreads(column[:, None])[0] for column in numbers])
        return [
            None if kind == "nominal" or np.isnan(value) else float(value)
            for kind, value in zip(self.kinds, values, strict=True)
        ]


def _training_evidence(model: Model, rows: Rows, space: Space | None, nominal: Sequence[str]) -> _TrainingEvidence:
    unknown = [name for name in nominal if name not in rows.names]
    if unknown:
        raise DataError(f"nominal names {unknown[0]!r}, which is not a column of the training data")
    if space is None:
        space = "transformed" if _hands_over_numbers(model, rows) else "raw"
    _check_choice("space", space, ("transformed", "raw"))
    kinds = _field_kinds(model, rows, nominal)
    if space == "raw":
        if rows.frame is None:
            raise EvidenceError("the raw evidence space needs a table or dense array, got a sparse matrix")
        origins = [Origin((name,), kinds[name] == "nominal") for name in rows.names]
        return _TrainingEvidence(space, list(rows.names), origins, None, rows.frame, kinds)
    matrix = transform(model, rows)[0]
    if model.transformer is None:
        names, origins = list(rows.names), [Origin((name,), kinds[name] == "nominal") for name in rows.names]
    else:
        names = output_names(model.transformer, matrix.shape[1])
        origins = trace_columns(model.transformer, rows.names)
        if len(origins) != matrix.shape[1]:
            raise EvidenceError(
                f"the preprocessing gives {matrix.shape[1]} columns, {len(origins)} were traced; use space='raw'"
            )
    return _TrainingEvidence(space, names, origins, matrix, rows.frame, kinds)


def _hands_over_numbers(model: Model, rows: Rows) -> bool:
    """True if the final estimator is handed a numeric matrix without native categories."""
    if _native_categories(model, rows.names):
        return False
    if model.transformer is None:
        return rows.frame is None or all(kind_of(rows.frame[name]) == "numeric" for name in rows.names)
    try:
        transform(model, rows)
    except EvidenceError:
        return False
    return True


def _field_kinds(model: Model, rows: Rows, nominal: Sequence[str]) -> dict[str, Kind]:
    """Return each raw field's kind: by type, by the encoder that takes it, or as declared."""
    if rows.frame is None:
        return dict.fromkeys(rows.names, "numeric")
    kinds = {name: kind_of(rows.frame[name]) for name in rows.names}
    for name in [*nominal, *_native_categories(model, rows.names), *_encoded_fields(model, rows.names)]:
        kinds[name] = "nominal"
    return kinds


def _encoded_fields(model: Model, names: Sequence[str]) -> list[str]:
    """Return fields that reach the estimator only through an encoder of categories."""
    if model.transformer is None:
        return []
    try:
        origins = trace_columns(model.transformer, names)
    except EvidenceError:
        return []
    quantities = {f for origin in origins if not origin.nominal for f in origin.fields}
    categories = {f for origin in origins if origin.nominal for f in origin.fields}
    return [name for name in names if name in categories - quantities]


def _native_categories(model: Model, names: Sequence[str]) -> list[str]:
    """Return fields that the estimator itself treats as categories."""
    head = model.head
    if model.transformer is not None:
        return []
    if hasattr(head, "get_cat_feature_indices"):
        return [names[i] for i in head.get_cat_feature_indices()]
    mask = getattr(head, "is_categorical_", None)
    return [] if mask is None else [name for name, chosen in zip(names, mask, strict=True) if chosen]


def _groups_for(
    groups: str | os.PathLike[str] | GroupMap, evidence: _TrainingEvidence, rows: Rows, threshold: float
) -> tuple[dict[str, list[str]], str]:
    if isinstance(groups, Mapping):
        return declared_groups(groups, evidence.columns, evidence.origins), "declared"
    if groups == "raw-origin":
        return raw_origin_groups(evidence.columns, evidence.origins), "raw-origin"
    if groups == "merged":
        if not 0 < threshold <= 1:
            raise EvidenceError(f"merge_threshold must lie in (0, 1], got {threshold!r}")
        if rows.frame is None:
            raise EvidenceError("merged groups need a table or dense array, got a sparse matrix")
        blocks = merged_fields(rows.frame, evidence.field_kinds, threshold)
        used = {name for origin in evidence.origins for name in origin.fields}
        kept = {name: block for name, block in blocks.items() if name in used}
        return declared_groups(kept, evidence.columns, evidence.origins), f"merged at {float(threshold)!r}"
    return declared_groups(read_group_map(groups), evidence.columns, evidence.origins), "declared"


def read_group_map(path: str | os.PathLike[str]) -> GroupMap:
    """Return the group map of a JSON file."""
    try:
        document = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise EvidenceError(
            f"groups must be 'raw-origin', 'merged', a map or a JSON file; cannot read {str(path)!r}: "
            f"{error.strerror or error}"
        ) from error
    except ValueError as error:
        raise EvidenceError(f"the group map {str(path)!r} is not valid JSON: {error}") from error
    if not isinstance(document, dict) or not document:
        raise EvidenceError(f"the group map {str(path)!r} must be a JSON object field -> block or block -> [fields]")
    return cast(GroupMap, document)


def _baseline_for(baseline: Any, evidence: _TrainingEvidence, model: Model, rows: Rows) -> tuple[list[Scalar], str]:
    if not isinstance(baseline, str):
        return _explicit_baseline(baseline, evidence, model, rows), "explicit"
    if baseline not in BASELINES:
        raise EvidenceError(f"baseline must be one of {', '.join(BASELINES)} or explicit values, got {baseline!r}")
    if evidence.space == "raw":
        assert evidence.frame is not None
        return [
            field_baseline(baseline, evidence.frame[name], kind)
            for name, kind in zip(evidence.columns, evidence.kinds, strict=True)
        ], baseline
    missing = _transformed_missing_row(model, rows) if baseline == "missing" else None
    vector = matrix_baseline(baseline, evidence.matrix, evidence.origins, missing)
    return [None if np.isnan(value) else float(value) for value in vector], baseline


def _transformed_missing_row(model: Model, rows: Rows) -> Floats | None:
    """Return what the preprocessing makes of a row in which every field is missing, if it takes one."""
    if model.transformer is None or rows.frame is None:
        return None
    row = rows.frame.iloc[:1].copy()
    for name in rows.names:
        row[name] = np.nan if kind_of(row[name]) == "numeric" else pd.Series([None], dtype=object, index=row.index)
    try:
        out = model.transformer.transform(row)
    except Exception:  # the encoder knows no missing token: all its columns stay 0
        return None
    dense = out.toarray() if sp.issparse(out) else np.asarray(out, dtype=np.float64)
    return np.asarray(dense[0])


def _explicit_baseline(baseline: Any, evidence: _TrainingEvidence, model: Model, rows: Rows) -> list[Scalar]:
    names = evidence.columns
    values = _named_values(baseline)
    if values is None:
        vector = list(np.asarray(baseline).ravel())
        if len(vector) != len(names):
            raise EvidenceError(f"an explicit baseline needs {len(names)} values, one a column, got {len(vector)}")
        values = dict(zip(names, vector, strict=True))
    elif evidence.space == "transformed" and set(values) == set(rows.names) and set(values) != set(names):
        row = pd.DataFrame([values])[list(rows.names)]
        dense = transform(model, read_rows(row, model.columns, model.n_columns))[0]
        vector = list((dense.toarray() if sp.issparse(dense) else dense)[0])
        values = dict(zip(names, vector, strict=True))
    wrong = [n for n in names if n not in values] or [n for n in values if n not in set(names)]
    if wrong:
        raise EvidenceError(f"an explicit baseline must name each column once; {wrong[0]!r} is missing or unknown")
    return [
        _explicit_value(name, values[name], kind, evidence.space)
        for name, kind in zip(names, evidence.kinds, strict=True)
    ]


def _named_values(baseline: Any) -> dict[str, Any] | None:
    if isinstance(baseline, Mapping):
        return {str(key): value for key, value in baseline.items()}
    if isinstance(baseline, pd.Series):
        return {str(key): value for key, value in baseline.items()}
    if hasattr(baseline, "columns"):
        frame = read_rows(baseline).frame
        assert frame is not None
        if len(frame) != 1:
            raise EvidenceError(f"a baseline table must have exactly one row, got {len(frame)}")
        return {str(name): frame[name].iloc[0] for name in frame.columns}
    return None


def _explicit_value(name: str, value: Any, kind: Kind, space: Space) -> Scalar:
    if is_missing(value):
        return None
    if kind == "nominal" and space == "raw":
        return cast(Scalar, value.item() if isinstance(value, np.generic) else value)
    try:
        number = float(value)
    except (TypeError, ValueError) as error:
        raise EvidenceError(f"the baseline of column {name!r} must be a number, got {value!r}") from error
    if np.isinf(number):
        raise EvidenceError(f"the baseline of column {name!r} must be finite, got {number!r}")
    return number


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
        return _guarded(lambda: confirmed.probabilities(codec.decode(matrix[:, inverse])), rows)

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
        native_matrix=model.transformer is None and all(table is None for table in codec.tables),
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
    confirmed = _confirmed(model, lambda: restore(_dense(matrix[:CONFIRM_ROWS])), raw=False)

    def predict(stressed: Floats) -> Floats:
        return _guarded(lambda: confirmed.head_probabilities(restore(stressed)), rows)

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


def _dense(matrix: Any) -> Floats:
    return matrix.toarray() if sp.issparse(matrix) else np.asarray(matrix, dtype=np.float64)


def _confirmed(model: Model, sample: Callable[[], Any], *, raw: bool) -> Model:
    """Return the model with its link confirmed on a few rows; a failure is left to the first prediction."""
    try:
        rows = sample()
        return model.confirmed(model.transformer.transform(rows) if raw and model.transformer is not None else rows)
    except ModelError:
        raise
    except Exception:
        return model


def transform(model: Model, rows: Rows) -> tuple[Any, Callable[[Floats], Any]]:
    """Return (the matrix the final estimator is handed, how a float64 matrix becomes such a hand-over again)."""
    native = rows.native
    out = native if model.transformer is None else _guarded(lambda: model.transformer.transform(native), rows)
    if sp.issparse(out):
        dtype = out.dtype
        return sp.csr_matrix(out), lambda matrix: sp.csr_matrix(matrix, dtype=dtype)
    if hasattr(out, "columns") or hasattr(out, "iloc"):
        return _numeric_frame(out), _frame_restorer(out)
    array = np.asarray(out)
    if array.dtype == np.float32:
        return array, lambda matrix: matrix.astype(np.float32)
    return _as_numbers(array), lambda matrix: matrix


def _as_numbers(array: Any) -> Floats:
    if array.dtype == object or not (np.issubdtype(array.dtype, np.number) or array.dtype == bool):
        try:
            return np.asarray(array, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise EvidenceError(
                "the estimator is handed values that are not numbers, so they cannot be moved toward a baseline in the "
                "transformed space; use space='raw'"
            ) from error
    return np.asarray(array, dtype=np.float64)


def _numeric_frame(frame: Any) -> Floats:
    if isinstance(frame, pd.DataFrame) and any(isinstance(d, pd.CategoricalDtype) for d in frame.dtypes):
        raise EvidenceError("the estimator is handed categories, not numbers; use space='raw'")
    return _as_numbers(frame.to_numpy())


def _frame_restorer(frame: Any) -> Callable[[Floats], Any]:
    names = list(frame.columns)
    if isinstance(frame, pd.DataFrame):
        return lambda matrix: pd.DataFrame(matrix, columns=names)
    return lambda matrix: type(frame)(matrix, schema=names)


def _guarded(call: Callable[[], T], rows: Rows) -> T:
    """Run a call into the user's model; turn what it raises into one sentence."""
    try:
        return call()
    except FragilityError:
        raise
    except Exception as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        if "nan" in reason.lower() or "missing value" in reason.lower():
            holder = None
            if rows.frame is not None:
                holder = next((name for name in rows.names if rows.frame[name].isna().any()), None)
            place = f"column {holder!r} holds missing values and " if holder is not None else ""
            raise DataError(f"{place}the model refuses missing values ({reason}); impute them in a pipeline") from error
        raise ModelError(f"the model failed on these rows: {type(error).__name__}: {reason}") from error
