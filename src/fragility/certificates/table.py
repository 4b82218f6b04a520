"""The certificate table: one Arrow schema for a protocol and its classes, written and read back without loss."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fragility.arrays import Floats, Integers
from fragility.certificates.claims import PER_STEP, Claims, Extent
from fragility.certificates.digests import digest_text
from fragility.errors import CertificateError
from fragility.models import ClassLabel
from fragility.protocol import Protocol

ID_TYPES = (pa.int64(), pa.string())
Columns: TypeAlias = Sequence[tuple[str, pa.DataType]]  # those of an optional block, behind the digest


def schema_of(
    protocol: Protocol,
    classes: Sequence[ClassLabel],
    id_type: pa.DataType,
    block: Columns = (),
    *,
    extent: Extent = "full",
) -> pa.Schema:
    """Return the exact schema of a certificate table: these columns, in this order, of these types."""
    label, number = pa.array(list(classes)).type, pa.float64()
    columns: list[tuple[str, pa.DataType]] = [
        ("id", id_type),
        ("predicted", label),
        ("confidence", number),
        ("margin", number),
        ("flip_budget", pa.int32()),
        ("flipped", pa.bool_()),
        ("rcma", number),
        ("fds", number),
        ("exposure", number),
        ("independent_loss", number),
        ("common_loss", number),
        *((f"lambda_{operator}", number) for operator in protocol.operators),
        ("path", _list_of(pa.string())),
        ("path_margin", _list_of(number)),
        ("path_predicted", _list_of(label)),
        ("path_collapse", _list_of(number)),
        ("fade_margin", _list_of(number)),
        ("one_step_drop", _list_of(number)),
        ("one_step_confidence_drop", _list_of(number)),
        ("digest", pa.string()),
        *block,
    ]
    return pa.schema([column for column in columns if extent == "full" or column[0] not in PER_STEP])


def _list_of(item: pa.DataType) -> pa.DataType:
    # Parquet names list items "element"; naming them so from the start, a table read back is the table written.
    return pa.list_(pa.field("element", item))


def table_of(
    claims: Claims,
    digests: Sequence[bytes],
    protocol: Protocol,
    classes: Sequence[ClassLabel],
    *,
    extent: Extent = "full",
) -> pa.Table:
    """Return the claims as the Arrow table that is written."""
    labels = pa.array(list(classes))
    groups = pa.array(list(protocol.group_names), type=pa.string())
    ids = _id_array(claims.ids)
    columns: list[Any] = [
        ids,
        labels.take(pa.array(claims.predicted)),
        claims.confidence,
        claims.margin,
        claims.flip_budget.astype(np.int32),
        claims.flipped,
        claims.rcma,
        claims.fds,
        claims.exposure,
        claims.independent_loss,
        pa.array(claims.common_loss, mask=np.isnan(claims.common_loss)),
        *(pa.array(values, mask=np.isinf(values)) for values in claims.thresholds.T),
        _lists(groups.take(pa.array(claims.path.ravel())), claims.path.shape),
        _lists(claims.path_margin.ravel(), claims.path_margin.shape),
        _lists(labels.take(pa.array(claims.path_predicted.ravel())), claims.path_predicted.shape),
        _lists(claims.path_collapse.ravel(), claims.path_collapse.shape),
        _known_lists(claims.fade_margin),
        _lists(claims.one_step_drop.ravel(), claims.one_step_drop.shape),
        _lists(claims.one_step_confidence_drop.ravel(), claims.one_step_confidence_drop.shape),
        pa.array([digest_text(digest) for digest in digests], type=pa.string()),
    ]
    table = pa.table(columns, schema=schema_of(protocol, classes, ids.type))
    return table if extent == "full" else table.drop_columns(list(PER_STEP))


def _id_array(ids: Sequence[Hashable]) -> pa.Array:
    return pa.array(list(ids), type=pa.int64() if all(isinstance(i, int) for i in ids) else pa.string())


def _lists(values: Any, shape: tuple[int, ...]) -> pa.Array:
    n, width = shape
    offsets = pa.array(np.arange(0, n * width + 1, width, dtype=np.int32))
    items = values if isinstance(values, pa.Array) else pa.array(values)
    return pa.ListArray.from_arrays(offsets, items, type=_list_of(items.type))


def _known_lists(values: Floats) -> pa.Array:
    """Return a list a row of its leading values that are not NaN."""
    known = ~np.isnan(values)
    offsets = np.concatenate([[0], np.cumsum(known.sum(axis=1))]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values[known]), type=_list_of(pa.float64()))


# --- reading ------------------------------------------------------------------------------------------------


def claims_of(
    table: pa.Table,
    protocol: Protocol,
    classes: Sequence[ClassLabel],
    block: Columns = (),
    *,
    extent: Extent = "full",
) -> Claims:
    """Return the claims of a table; the inverse of ``table_of``. Refuses a table of another shape."""
    check_schema(table, protocol, classes, block, extent=extent)
    n, k = len(table), protocol.depth
    thresholds = [_nullable(table, f"lambda_{operator}", np.inf) for operator in protocol.operators]
    return Claims(
        ids=tuple(_whole(table, "id").to_pylist()),
        predicted=indices_of(_whole(table, "predicted"), classes, "predicted"),
        confidence=_floats(table, "confidence"),
        margin=_floats(table, "margin"),
        flip_budget=np.asarray(_whole(table, "flip_budget").to_numpy(), dtype=np.int64),
        flipped=np.asarray(_whole(table, "flipped").to_numpy(zero_copy_only=False), dtype=bool),
        rcma=_floats(table, "rcma"),
        fds=_floats(table, "fds"),
        exposure=_floats(table, "exposure"),
        independent_loss=_floats(table, "independent_loss"),
        common_loss=_nullable(table, "common_loss", np.nan),
        thresholds=np.stack(thresholds, axis=1) if thresholds else np.empty((n, 0)),
        path=indices_of(_flat(table, "path", n, k), protocol.group_names, "path").reshape(n, k),
        **(_per_step(table, protocol, classes) if extent == "full" else _no_steps(n)),
    )


def _per_step(table: pa.Table, protocol: Protocol, classes: Sequence[ClassLabel]) -> dict[str, Any]:
    n, k, g = len(table), protocol.depth, len(protocol.groups)
    predicted = _flat(table, "path_predicted", n, k + 1)
    return {
        "path_margin": _float_lists(table, "path_margin", n, k + 1),
        "path_predicted": indices_of(predicted, classes, "path_predicted").reshape(n, k + 1),
        "path_collapse": _float_lists(table, "path_collapse", n, k + 1),
        "fade_margin": _padded(table, "fade_margin", n, 0 if protocol.fading is None else len(protocol.severities)),
        "one_step_drop": _float_lists(table, "one_step_drop", n, g),
        "one_step_confidence_drop": _float_lists(table, "one_step_confidence_drop", n, g),
    }


def _no_steps(n: int) -> dict[str, Any]:
    none = {name: np.empty((n, 0)) for name in PER_STEP}
    return {**none, "path_predicted": np.empty((n, 0), dtype=np.int64)}


def check_schema(
    table: pa.Table,
    protocol: Protocol,
    classes: Sequence[ClassLabel],
    block: Columns = (),
    *,
    extent: Extent = "full",
) -> None:
    """Refuse a table with other columns, types or notes than the format has."""
    found = table.schema
    id_type = found.field("id").type if found.get_all_field_indices("id") else ID_TYPES[0]
    if id_type not in ID_TYPES:
        raise CertificateError(f"column 'id' of the certificate table has type {id_type}, not int64 or string")
    expected = schema_of(protocol, classes, id_type, block, extent=extent)
    for name in expected.names:
        if name not in found.names:
            raise CertificateError(f"the certificate table lacks the column {name!r}")
    unknown = [name for name in found.names if name not in expected.names]
    if unknown:
        raise CertificateError(f"the certificate table has a column {unknown[0]!r}, which the format does not know")
    if found.names != expected.names:
        raise CertificateError("the columns of the certificate table are not in the order of the format")
    for own, wanted in zip(found, expected, strict=True):
        if not own.equals(wanted, check_metadata=True):
            raise CertificateError(
                f"column {own.name!r} of the certificate table has type {_told(own)}, not {_told(wanted)}"
            )
    if found.metadata:
        raise CertificateError("the certificate table carries notes of its own, which the format does not know")


def _told(field: pa.Field) -> str:
    return f"{field.type}{'' if field.nullable else ' not null'}{' with notes' if field.metadata else ''}"


def _whole(table: pa.Table, name: str, *, nulls: bool = False) -> pa.Array:
    """Return a column in one piece; nulls are refused."""
    column = table.column(name).combine_chunks()
    if column.null_count and not nulls:
        raise CertificateError(f"column {name!r} of the certificate table holds {column.null_count} nulls")
    return column


def _floats(table: pa.Table, name: str) -> Floats:
    return _finite(_whole(table, name).to_numpy(zero_copy_only=False), name)


def _nullable(table: pa.Table, name: str, absent: float) -> Floats:
    """Return a column of numbers in which null stands for a value that computations know as ``absent``."""
    column = _whole(table, name, nulls=True)
    _finite(column.drop_null().to_numpy(zero_copy_only=False), name)
    values = column.to_numpy(zero_copy_only=False).astype(np.float64)
    return np.where(np.asarray(column.is_null()), absent, values)


def _finite(values: Any, name: str) -> Floats:
    out = np.asarray(values, dtype=np.float64)
    if not np.isfinite(out).all():
        raise CertificateError(f"column {name!r} of the certificate table holds NaN or an infinity")
    return out


def _flat(table: pa.Table, name: str, n: int, width: int) -> pa.Array:
    """Return the items of a column of lists, each of exactly this length."""
    column = _whole(table, name)
    if len(column) and not pc.all(pc.equal(pc.list_value_length(column), width)).as_py():
        raise CertificateError(
            f"column {name!r} of the certificate table does not have the length the protocol declares, {width}"
        )
    values = column.flatten()
    if values.null_count:
        raise CertificateError(f"column {name!r} of the certificate table holds {values.null_count} nulls")
    return values


def _padded(table: pa.Table, name: str, n: int, width: int) -> Floats:
    """Return a column of lists of at most this length as (n, width), NaN where a list has ended."""
    column = _whole(table, name)
    lengths = np.asarray(pc.list_value_length(column).to_numpy(zero_copy_only=False), dtype=np.int64)
    values = column.flatten()
    if values.null_count or (lengths > width).any():
        raise CertificateError(f"column {name!r} of the certificate table must hold lists of at most {width} numbers")
    out = np.full((n, width), np.nan)
    out[np.arange(width) < lengths[:, None]] = _finite(values.to_numpy(zero_copy_only=False), name)
    return out


def _float_lists(table: pa.Table, name: str, n: int, width: int) -> Floats:
    return _finite(_flat(table, name, n, width).to_numpy(zero_copy_only=False), name).reshape(n, width)


def indices_of(values: pa.Array, known: Sequence[Any], name: str) -> Integers:
    position = {label: i for i, label in enumerate(known)}
    encoded = values.dictionary_encode()
    try:
        table = np.array([position[label] for label in encoded.dictionary.to_pylist()], dtype=np.int64)
    except KeyError as error:
        raise CertificateError(
            f"column {name!r} names {error.args[0]!r}, which the manifest does not declare"
        ) from error
    codes = encoded.indices.to_numpy()
    return np.asarray(table[codes] if len(table) else codes, dtype=np.int64)
