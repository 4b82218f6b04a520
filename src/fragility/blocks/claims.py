"""Claims: what certificates say, as arrays, as row digests and as the table that is written.

An engine measures classes, margins, confidences and thresholds. The rest is arithmetic on them (SPEC: certificate):

    k*   = first k with path_predicted_k != predicted, else K + 1;   flipped = (k* <= K)
    c_k, RCMA, FDS, independent and common loss, exposure            as in fragility.scores

A row digest is the SHA-256 of the measured claims, rounded so that every engine gets the same bytes: two engines add
the same numbers in another order and differ in the last digits. Margins and drops are therefore counted in units of the
protocol's resolution, below which nothing in a certificate has a meaning, and probabilities in units of 2**-20. That
unit is binary on purpose: a vote share a / b lies exactly between two multiples of it only if b is divisible by 2**21,
while thousandths and 1 / 128 are common (and the latter lies between two multiples of 1e-6).
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, Self, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from fragility.base.arrays import Booleans, Floats, Integers
from fragility.base.canonical import BLOCK_BYTES, DIGEST_PREFIX, canonical_bytes, hash_pieces
from fragility.base.errors import CertificateError
from fragility.base.text import BriefRepr
from fragility.engines.trace import Trace
from fragility.evidence import EvidenceRows
from fragility.models import ClassLabel
from fragility.protocol import Protocol
from fragility.scores import collapse, common_loss, exposure, fds, flip_budget, independent_loss, random_loss, rcma

# What a table of certificates holds: everything, or no lists with one entry per step, severity or group.
Extent: TypeAlias = Literal["full", "summary"]
EXTENTS: tuple[str, ...] = ("full", "summary")
PER_STEP = (
    *("path_margin", "path_predicted", "path_collapse", "fade_margin"),
    *("one_step_drop", "one_step_confidence_drop"),
)
ALONG_THE_PATH = PER_STEP[:3]
FORMAT = "fragility-certificates/1"
PROBABILITY_UNIT = 2.0**-20
# The claims that are hashed, as their numbers follow on the context and the id.
HASHED = (
    *("predicted", "confidence", "bare_margin", "flip_budget", "flipped", "thresholds"),
    *("path", "path_margin", "path_predicted"),
    *("fade_margin", "one_step_drop", "one_step_confidence_drop", "already_missing"),
)
# One per row, never null.
NUMBERS = ("confidence", "margin", "bare_margin", "rcma", "fds", "exposure", "independent_loss", "random_loss")
IN_RESOLUTION = ("path_margin", "fade_margin", "bare_margin", "one_step_drop")
IN_PROBABILITY = ("confidence", "one_step_confidence_drop")
# Derived claims are recomputed from the stored numbers they were made of, so only the last digits may differ.
DERIVED_TOLERANCE = 1e-9


@dataclass(frozen=True, eq=False, repr=False)
class RowArrays(BriefRepr):
    """Arrays with one entry per row; what is no array is the same for all rows."""

    ids: tuple[Hashable, ...]

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, positions: Sequence[int]) -> Self:
        """Return the entries of these rows."""
        chosen = list(positions)
        arrays = {field.name: getattr(self, field.name) for field in fields(self)[1:]}
        taken: dict[str, Any] = {
            name: values[chosen] for name, values in arrays.items() if isinstance(values, np.ndarray)
        }
        return replace(self, ids=tuple(self.ids[i] for i in chosen), **taken)


@dataclass(frozen=True, eq=False, repr=False)
class Claims(RowArrays):
    """The claims of n certificates as arrays: G groups, K depth, P operators, |Lambda| severities.

    Classes and groups are indices. Claims read from a summary lack those of PER_STEP: their arrays are (n, 0).
    """

    predicted: Integers  # (n,)
    confidence: Floats  # (n,)
    margin: Floats  # (n,)
    bare_margin: Floats  # (n,) with all evidence lost
    flip_budget: Integers  # (n,)
    flipped: npt.NDArray[np.bool_]  # (n,)
    rcma: Floats  # (n,)
    fds: Floats  # (n,)
    exposure: Floats  # (n,)
    independent_loss: Floats  # (n,)
    common_loss: Floats  # (n,) NaN where the protocol has no attenuate_all
    random_loss: Floats  # (n,)
    thresholds: Floats  # (n, P) infinity where no severity flips
    path: Integers  # (n, K)
    path_margin: Floats  # (n, K+1)
    path_predicted: Integers  # (n, K+1)
    path_collapse: Floats  # (n, K+1)
    fade_margin: Floats  # (n, |Lambda|) NaN from lambda* of attenuate_all on; (n, 0) without that operator
    one_step_drop: Floats  # (n, G)
    one_step_confidence_drop: Floats  # (n, G)
    already_missing: Booleans  # (n, F) raw fields without a value, which no state removes


MEASURED = (
    *("predicted", "margin", "path_margin", "path_predicted", "thresholds"),
    *("fade_margin", "bare_margin", "one_step_drop"),
)


def derived_claims(measured: Mapping[str, Any], protocol: Protocol) -> dict[str, Any]:
    """Return the claims that follow from the arrays named in MEASURED, by their names."""
    margin, thresholds = measured["margin"], measured["thresholds"]
    budget = flip_budget(measured["path_predicted"] != measured["predicted"][:, None])
    c = collapse(margin, measured["path_margin"], protocol.reading)
    area = rcma(c)
    independent = independent_loss(margin, measured["one_step_drop"])
    fading = thresholds[:, protocol.fading] if protocol.fading is not None else np.full(len(margin), np.inf)
    common = common_loss(margin, measured["fade_margin"], fading, np.array(protocol.severities))
    random = random_loss(margin, measured["one_step_drop"], measured["bare_margin"])
    return {
        "flip_budget": budget,
        "flipped": budget <= protocol.depth,
        "path_collapse": c,
        "rcma": area,
        "fds": fds(area, budget, thresholds, protocol.weights),
        "exposure": exposure(area, independent, common, random, protocol.exposure_weights),
        "independent_loss": independent,
        "common_loss": common,
        "random_loss": random,
    }


def claims_from(trace: Trace, rows: EvidenceRows, protocol: Protocol) -> Claims:
    """Return the claims that a trace supports: pure scores over its arrays."""
    path_predicted = np.column_stack([trace.predicted, trace.path_predicted[:, 1:]])
    drop = trace.margin[:, None] - trace.one_step_margin
    confidence_drop = trace.confidence[:, None] - trace.one_step_confidence
    missing = np.zeros((len(rows.ids), len(protocol.fields)), dtype=bool)
    if rows.absent is not None:  # a model that rounds by the shape of its batch may differ from itself
        absent, missing = rows.absent.groups(), rows.absent.missing
        drop, confidence_drop = np.where(absent, 0.0, drop), np.where(absent, 0.0, confidence_drop)
    measured = {
        "predicted": trace.predicted,
        "margin": trace.margin,
        "path_margin": trace.path_margin,
        "path_predicted": path_predicted,
        "thresholds": trace.threshold,
        "fade_margin": trace.fade_margin,
        "bare_margin": trace.bare_margin,
        "one_step_drop": drop,
    }
    return Claims(
        ids=rows.ids,
        # A model's probabilities may add up to a little more than 1; what is claimed is a probability.
        confidence=np.minimum(trace.confidence, 1.0),
        path=trace.order,
        one_step_confidence_drop=confidence_drop,
        already_missing=missing,
        **measured,
        **derived_claims(measured, protocol),
    )


def contradictions(claims: Claims, protocol: Protocol, extent: Extent = "full") -> list[tuple[int, str]]:
    """Return (position, claim) wherever a claim contradicts the others of its row, or cannot be true of any row."""
    if extent == "full":
        implied = derived_claims({name: getattr(claims, name) for name in MEASURED}, protocol)
    else:  # what follows from the claims of a summary alone
        possible = np.clip(claims.flip_budget, 1, protocol.depth + 1)
        losses = claims.rcma, claims.independent_loss, claims.common_loss, claims.random_loss
        implied = {
            "flip_budget": possible,
            "flipped": claims.flip_budget <= protocol.depth,
            "fds": fds(claims.rcma, possible, claims.thresholds, protocol.weights),
            "exposure": exposure(*losses, protocol.exposure_weights),
        }
    ordered = np.sort(claims.path, axis=1)
    wrong = {name: find_differing(getattr(claims, name), value) for name, value in implied.items()}
    wrong |= {
        "confidence": ~((claims.confidence >= 0.0) & (claims.confidence <= 1.0)),
        "path": (ordered[:, 1:] == ordered[:, :-1]).any(axis=1),  # a group twice
        "thresholds": ~(np.isin(claims.thresholds, protocol.severities) | np.isposinf(claims.thresholds)),
    }
    absent = find_absent_groups(claims.already_missing, protocol)
    wrong["path"] |= _find_misplaced(claims.path, absent)
    if extent == "full":
        wrong |= {
            "one_step_drop": ((claims.one_step_drop != 0.0) | (claims.one_step_confidence_drop != 0.0)) & absent,
            "path_margin": claims.path_margin[:, 0] != claims.margin,
            "path_predicted": claims.path_predicted[:, 0] != claims.predicted,
        }
        if protocol.fading is not None:  # fading margins are known below lambda*, and not from there on
            flipped = np.array(protocol.severities) >= claims.thresholds[:, protocol.fading, None]
            wrong["fade_margin"] = np.isnan(claims.fade_margin) != flipped
    return [
        (int(i), name) for name, bad in wrong.items() for i in np.flatnonzero(bad if bad.ndim == 1 else bad.any(axis=1))
    ]


def find_absent_groups(already_missing: Booleans, protocol: Protocol) -> Booleans:
    """Return (n, G) the groups of which nothing is there: they are last on every path; already_missing: (n, F)."""
    names, fields_of = field_names(protocol), protocol.evidence.group_fields
    places = [[names.index(name) for name in fields_of[group]] for group in protocol.group_names]
    return np.stack([already_missing[:, own].all(axis=1) for own in places], axis=1)


def present_path(row: Mapping[str, Any], protocol: Protocol) -> tuple[str, ...]:
    """Return the path of one row of a table without the groups at its end of which nothing is there."""
    missing = set(row["already_missing"])
    if not missing:
        return tuple(row["path"])
    fields_of = protocol.evidence.group_fields
    return tuple(name for name in row["path"] if not missing.issuperset(fields_of[name]))


def _find_misplaced(path: Integers, absent: Booleans) -> Booleans:
    """Return (n,) where an absent group stands on the path before one that is there, or in place of one."""
    gone = np.take_along_axis(absent, path, axis=1)
    too_early = (gone[:, :-1] & ~gone[:, 1:]).any(axis=1)
    return np.asarray(too_early | ((~gone).sum(axis=1) < np.minimum((~absent).sum(axis=1), path.shape[1])))


def find_differing(stated: npt.NDArray[Any], implied: npt.NDArray[Any]) -> Booleans:
    """Return where a stated claim is not the one that follows from others."""
    if implied.dtype.kind != "f":
        return np.asarray(stated != implied)
    # An unbounded collapse near a tie is large; its last digits are relative to it.
    close = np.abs(stated - implied) <= DERIVED_TOLERANCE * (1.0 + np.abs(implied))
    return np.asarray(~(close | (np.isnan(stated) & np.isnan(implied))))


# --- digests ------------------------------------------------------------------------------------------------


def row_digests(claims: Claims, context: bytes, resolution: float) -> list[bytes]:
    """Return each row's 32-byte digest: sha256 over context, id and claims in the layout of docs/format.md."""
    units = dict.fromkeys(IN_RESOLUTION, resolution) | dict.fromkeys(IN_PROBABILITY, PROBABILITY_UNIT)
    columns = {name: getattr(claims, name) for name in HASHED}
    columns["thresholds"] = np.where(np.isposinf(claims.thresholds), np.nan, claims.thresholds)  # null in the table
    return hash_rows(claims.ids, context, [(values, units.get(name)) for name, values in columns.items()])


def hash_rows(
    ids: Sequence[Hashable], context: bytes, columns: Sequence[tuple[npt.NDArray[Any], float | None]]
) -> list[bytes]:
    """Return each row's sha256 over context, id and values, each as a double.

    columns: values of shape (n, ...), and the unit they are counted in, if any.
    """
    counted = all(type(own_id) is int for own_id in ids)  # their bytes have one length, and are hashed in blocks
    before = [("context", "u1", (len(context),)), ("kind", "u1"), ("id", "<i8")] if counted else []
    layout = np.dtype([*before, *((str(i), "<f8", values.shape[1:]) for i, (values, _) in enumerate(columns))])
    block = np.zeros(max(1, min(len(ids), BLOCK_BYTES // layout.itemsize)), dtype=layout)
    if counted:
        block["context"], block["kind"] = np.frombuffer(context, dtype=np.uint8), ord("i")
    out: list[bytes] = []
    for start in range(0, len(ids), len(block)):
        rows = slice(start, min(start + len(block), len(ids)))
        own = block[: rows.stop - start]
        for i, (values, unit) in enumerate(columns):
            own[str(i)] = values[rows] if unit is None else count_units(values[rows], unit)
        data, width = own.view(np.uint8).data, layout.itemsize
        if counted:
            own["id"] = ids[rows]
            out += hash_pieces(data, width)
        else:
            out += [
                hashlib.sha256(context + id_bytes(own_id) + data[i * width : (i + 1) * width]).digest()
                for i, own_id in enumerate(ids[rows])
            ]
    return out


def count_units(values: Floats, unit: float) -> Floats:
    """Return values as whole multiples of a unit, halves to even; adding 0 makes -0 the 0 it is, NaN is one value."""
    counted = np.rint(values / unit) + 0.0
    missing = np.isnan(counted)
    return np.where(missing, np.nan, counted) if missing.any() else counted


def id_bytes(own_id: Hashable) -> bytes:
    """Return the bytes that stand for an id in a row's digest."""
    if isinstance(own_id, int):
        return b"i" + struct.pack("<q", own_id)
    text = str(own_id).encode()
    return b"s" + struct.pack("<I", len(text)) + text


def context_digest(protocol_digest: str, model_fingerprint: str, classes: Sequence[ClassLabel], **more: Any) -> bytes:
    """Return what binds a row to its protocol and model, and to whatever more is declared."""
    document = {
        "format": FORMAT,
        "protocol_digest": protocol_digest,
        "model_fingerprint": model_fingerprint,
        "classes": list(classes),
        **more,
    }
    return hashlib.sha256(canonical_bytes(document)).digest()


def digest_text(digest: bytes) -> str:
    return DIGEST_PREFIX + digest.hex()


def digest_from_text(text: str) -> bytes:
    return bytes.fromhex(text.removeprefix(DIGEST_PREFIX))


# --- table --------------------------------------------------------------------------------------------------

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
        ("bare_margin", number),
        ("flip_budget", pa.int32()),
        ("flipped", pa.bool_()),
        *((name, number) for name in ("rcma", "fds", "exposure")),
        *((name, number) for name in ("independent_loss", "common_loss", "random_loss")),
        *((f"lambda_{operator}", number) for operator in protocol.operators),
        ("path", list_of(pa.string())),
        *((name, list_of(label if name == "path_predicted" else number)) for name in PER_STEP),
        ("already_missing", list_of(pa.string())),
        ("digest", pa.string()),
        *block,
    ]
    return pa.schema([column for column in columns if extent == "full" or column[0] not in PER_STEP])


def list_of(item: pa.DataType) -> pa.DataType:
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
    labels, groups = pa.array(list(classes)), pa.array(protocol.group_names, type=pa.string())
    ids, known = id_array(claims.ids), ~np.isnan(claims.fade_margin)
    columns: dict[str, Any] = {
        "id": ids,
        "predicted": labels.take(pa.array(claims.predicted)),
        "common_loss": pa.array(claims.common_loss, mask=np.isnan(claims.common_loss)),
        "path": lists_per_row(claims.path, groups),
        "path_predicted": lists_per_row(claims.path_predicted, labels),
        "fade_margin": lists_of(pa.array(claims.fade_margin[known]), known.sum(axis=1)),
        "already_missing": sets_of_names(claims.already_missing, field_names(protocol)),
        "digest": pa.array(map(digest_text, digests), type=pa.string()),
    }
    for operator, values in zip(protocol.operators, claims.thresholds.T, strict=True):
        columns[f"lambda_{operator}"] = pa.array(values, mask=np.isinf(values))
    schema = schema_of(protocol, classes, ids.type, extent=extent)
    for name in schema.names:
        if name not in columns:
            values = getattr(claims, name)
            columns[name] = lists_per_row(values) if values.ndim == 2 else values
    return pa.table([columns[name] for name in schema.names], schema=schema)


def id_array(ids: Sequence[Hashable]) -> pa.Array:
    return pa.array(list(ids), type=pa.int64() if all(isinstance(i, int) for i in ids) else pa.string())


def lists_per_row(values: npt.NDArray[Any], names: pa.Array | None = None) -> pa.Array:
    """Return a list per row of the values, or of the names at these places."""
    items = pa.array(values.ravel())
    return lists_of(items if names is None else names.take(items), np.full(len(values), values.shape[1]))


def field_names(protocol: Protocol) -> tuple[str, ...]:
    return tuple(field.name for field in protocol.fields)


def sets_of_names(members: Booleans, names: Sequence[str]) -> pa.Array:
    """Return a list per row of the names that are marked; members (n, names)."""
    places = pa.array(np.nonzero(members)[1])
    return lists_of(pa.array(names, type=pa.string()).take(places), members.sum(axis=1))


def read_sets_of_names(table: pa.Table, name: str, names: Sequence[str], what: str) -> Booleans:
    """Return (n, names) which names a column of lists has; a list must have them in declared order, each once."""
    column = whole_column(table, name)
    members = column.flatten()
    if members.null_count:
        raise CertificateError(f"column {name!r} of the certificate table holds nulls")
    place = indices_of(members, names, name)
    row = np.repeat(np.arange(len(column)), pc.list_value_length(column).to_numpy(zero_copy_only=False))
    if ((np.diff(place) <= 0) & (np.diff(row) == 0)).any():
        raise CertificateError(f"column {name!r} of the certificate table does not name {what} in declared order")
    found = np.zeros((len(column), len(names)), dtype=bool)
    found[row, place] = True
    return found


def lists_of(items: pa.Array, lengths: npt.NDArray[Any]) -> pa.Array:
    """Return a list per row, of these lengths, from the items of all rows."""
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), items, type=list_of(items.type))


# --- reading ------------------------------------------------------------------------------------------------


def claims_of(
    table: pa.Table, protocol: Protocol, classes: Sequence[ClassLabel], block: Columns = (), *, extent: Extent = "full"
) -> Claims:
    """Return the claims of a table; the inverse of ``table_of``. Refuses a table of another shape."""
    check_schema(table, protocol, classes, block, extent=extent)
    n, k, g = len(table), protocol.depth, len(protocol.groups)
    thresholds = [nullable_column(table, f"lambda_{operator}", np.inf) for operator in protocol.operators]
    path = indices_of(_flatten_lists(table, "path", k), protocol.group_names, "path").reshape(n, k)
    numbers: dict[str, Any] = {name: float_column(table, name) for name in NUMBERS}
    steps: dict[str, Any] = {name: np.empty((n, 0)) for name in PER_STEP}
    steps["path_predicted"] = np.empty((n, 0), dtype=np.int64)
    if extent == "full":
        predicted = _flatten_lists(table, "path_predicted", k + 1)
        steps = {
            "path_margin": read_float_lists(table, "path_margin", k + 1),
            "path_predicted": indices_of(predicted, classes, "path_predicted").reshape(n, k + 1),
            "path_collapse": read_float_lists(table, "path_collapse", k + 1),
            "fade_margin": _pad_lists(table, "fade_margin", 0 if protocol.fading is None else len(protocol.severities)),
            "one_step_drop": read_float_lists(table, "one_step_drop", g),
            "one_step_confidence_drop": read_float_lists(table, "one_step_confidence_drop", g),
        }
    return Claims(
        ids=tuple(whole_column(table, "id").to_pylist()),
        predicted=indices_of(whole_column(table, "predicted"), classes, "predicted"),
        flip_budget=np.asarray(whole_column(table, "flip_budget").to_numpy(), dtype=np.int64),
        flipped=np.asarray(whole_column(table, "flipped").to_numpy(zero_copy_only=False), dtype=bool),
        **numbers,
        common_loss=nullable_column(table, "common_loss", np.nan),
        thresholds=np.stack(thresholds, axis=1) if thresholds else np.empty((n, 0)),
        path=path,
        **steps,
        already_missing=read_sets_of_names(table, "already_missing", field_names(protocol), "fields"),
    )


def check_schema(
    table: pa.Table, protocol: Protocol, classes: Sequence[ClassLabel], block: Columns = (), *, extent: Extent = "full"
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
            types = [
                f"{field.type}{'' if field.nullable else ' not null'}{' with notes' if field.metadata else ''}"
                for field in (own, wanted)
            ]
            raise CertificateError(f"column {own.name!r} of the certificate table has type {types[0]}, not {types[1]}")
    if found.metadata:
        raise CertificateError("the certificate table carries notes of its own, which the format does not know")


def check_side_table(table: pa.Table, what: str, columns: Columns) -> None:
    """Refuse a table that lies beside the certificates and has other columns than ids and these."""
    expected = [pa.schema([("id", id_type), *columns]) for id_type in ID_TYPES]
    if not any(table.schema.equals(schema, check_metadata=True) for schema in expected):
        names = ", ".join(name for name, _ in columns)
        raise CertificateError(f"the table of {what} must have the columns id, {names}, of the format's types")


def whole_column(table: pa.Table, name: str, *, nulls: bool = False) -> pa.Array:
    """Return a column in one piece; nulls are refused."""
    column = table.column(name).combine_chunks()
    if column.null_count and not nulls:
        raise CertificateError(f"column {name!r} of the certificate table holds {column.null_count} nulls")
    return column


def float_column(table: pa.Table, name: str) -> Floats:
    return _check_finite(whole_column(table, name).to_numpy(zero_copy_only=False), name)


def nullable_column(table: pa.Table, name: str, absent: float) -> Floats:
    """Return a column of numbers in which null stands for a value that computations know as ``absent``."""
    column = whole_column(table, name, nulls=True)
    _check_finite(column.drop_null().to_numpy(zero_copy_only=False), name)
    values = column.to_numpy(zero_copy_only=False).astype(np.float64)
    return np.where(np.asarray(column.is_null()), absent, values)


def _check_finite(values: Any, name: str) -> Floats:
    out = np.asarray(values, dtype=np.float64)
    if not np.isfinite(out).all():
        raise CertificateError(f"column {name!r} of the certificate table holds NaN or an infinity")
    return out


def _flatten_lists(table: pa.Table, name: str, width: int) -> pa.Array:
    """Return the items of a column of lists, each of exactly this length."""
    column = whole_column(table, name)
    if len(column) and not pc.all(pc.equal(pc.list_value_length(column), width)).as_py():
        raise CertificateError(
            f"column {name!r} of the certificate table does not have the length the protocol declares, {width}"
        )
    values = column.flatten()
    if values.null_count:
        raise CertificateError(f"column {name!r} of the certificate table holds {values.null_count} nulls")
    return values


def _pad_lists(table: pa.Table, name: str, width: int) -> Floats:
    """Return a column of lists of at most this length as (n, width), NaN where a list has ended."""
    column = whole_column(table, name)
    lengths = np.asarray(pc.list_value_length(column).to_numpy(zero_copy_only=False), dtype=np.int64)
    values = column.flatten()
    if values.null_count or (lengths > width).any():
        raise CertificateError(f"column {name!r} of the certificate table must hold lists of at most {width} numbers")
    out = np.full((len(table), width), np.nan)
    out[np.arange(width) < lengths[:, None]] = _check_finite(values.to_numpy(zero_copy_only=False), name)
    return out


def read_float_lists(table: pa.Table, name: str, width: int) -> Floats:
    """Return a column of lists, each of exactly this length, as (n, width)."""
    return _check_finite(_flatten_lists(table, name, width).to_numpy(zero_copy_only=False), name).reshape(
        len(table), width
    )


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
