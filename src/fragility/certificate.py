"""Certificates: the claims of an audit as an Arrow table, with digests, and the folder they are written to.

The folder holds ``certificates.parquet`` (one row a prediction), ``protocol.json`` and ``manifest.json``. Every byte of
it is bound: rows by their digests, rows together by the root digest, files and manifest by theirs. docs/format.md
describes every field, so that someone else can write another reader.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import struct
import tempfile
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from fragility.arrays import Floats, Integers
from fragility.canonical import DIGEST_PREFIX, canonical_bytes, combine_digests, digest_bytes, digest_of
from fragility.errors import CertificateError
from fragility.models import ClassLabel
from fragility.protocol import Protocol

FORMAT = "fragility-certificates/1"
CLAIM = "fragility_witness"
LIMITS = (
    "A witness under the declared protocol, not a proof of robustness: it shows one trajectory on which the prediction "
    "loses support. The greedy flip budget is an upper bound on the smallest failing set, never the minimum."
)
TABLE_FILE, PROTOCOL_FILE, MANIFEST_FILE = "certificates.parquet", "protocol.json", "manifest.json"


@dataclass(frozen=True, eq=False)
class Claims:
    """The claims of n certificates as arrays: G groups, K depth, P operators. Classes and groups are indices."""

    ids: tuple[Hashable, ...]
    predicted: Integers  # (n,)
    confidence: Floats  # (n,)
    margin: Floats  # (n,)
    flip_budget: Integers  # (n,)
    flipped: npt.NDArray[np.bool_]  # (n,)
    rcma: Floats  # (n,)
    fds: Floats  # (n,)
    thresholds: Floats  # (n, P) infinity where no severity flips
    path: Integers  # (n, K)
    path_margin: Floats  # (n, K+1)
    path_predicted: Integers  # (n, K+1)
    path_collapse: Floats  # (n, K+1)
    one_step_drop: Floats  # (n, G)
    one_step_confidence_drop: Floats  # (n, G)

    def __len__(self) -> int:
        return len(self.ids)


def row_digests(claims: Claims, context: bytes) -> list[bytes]:
    """Return each row's 32-byte digest: sha256 over context, id and claims in the layout of docs/format.md."""
    parts = [
        _bytes_of(claims.predicted, "<i4"),
        _bytes_of(np.stack([claims.confidence, claims.margin], axis=1), "<f8"),
        _bytes_of(claims.flip_budget, "<i4"),
        _bytes_of(claims.flipped, "u1"),
        _bytes_of(np.stack([claims.rcma, claims.fds], axis=1), "<f8"),
        _bytes_of(claims.thresholds, "<f8"),
        _bytes_of(claims.path, "<i4"),
        _bytes_of(claims.path_margin, "<f8"),
        _bytes_of(claims.path_predicted, "<i4"),
        _bytes_of(claims.path_collapse, "<f8"),
        _bytes_of(claims.one_step_drop, "<f8"),
        _bytes_of(claims.one_step_confidence_drop, "<f8"),
    ]
    block = np.concatenate(parts, axis=1)
    return [
        hashlib.sha256(context + _id_bytes(own_id) + block[i].tobytes()).digest() for i, own_id in enumerate(claims.ids)
    ]


def _bytes_of(values: npt.NDArray[Any], dtype: str) -> npt.NDArray[np.uint8]:
    """Return (n, ...) values as (n, bytes), little-endian."""
    typed = np.ascontiguousarray(values.astype(dtype))
    return typed.view(np.uint8).reshape(len(values), -1)


def _id_bytes(own_id: Hashable) -> bytes:
    if isinstance(own_id, int):
        return b"i" + struct.pack("<q", own_id)
    text = str(own_id).encode()
    return b"s" + struct.pack("<I", len(text)) + text


def context_digest(protocol_digest: str, model_fingerprint: str, classes: Sequence[ClassLabel]) -> bytes:
    """Return what binds a row to its protocol and model."""
    document = {
        "format": FORMAT,
        "protocol_digest": protocol_digest,
        "model_fingerprint": model_fingerprint,
        "classes": list(classes),
    }
    return hashlib.sha256(canonical_bytes(document)).digest()


# --- table ----------------------------------------------------------------------------------------------


def table_of(claims: Claims, digests: Sequence[bytes], protocol: Protocol, classes: Sequence[ClassLabel]) -> pa.Table:
    """Return the claims as the Arrow table that is written."""
    labels = pa.array(list(classes))
    groups = pa.array(list(protocol.group_names), type=pa.string())
    columns: dict[str, Any] = {
        "id": _id_array(claims.ids),
        "predicted": labels.take(pa.array(claims.predicted)),
        "confidence": claims.confidence,
        "margin": claims.margin,
        "flip_budget": claims.flip_budget.astype(np.int32),
        "flipped": claims.flipped,
        "rcma": claims.rcma,
        "fds": claims.fds,
    }
    for j, operator in enumerate(protocol.operators):
        values = claims.thresholds[:, j]
        columns[f"lambda_{operator}"] = pa.array(values, mask=np.isinf(values))
    columns |= {
        "path": _lists(groups.take(pa.array(claims.path.ravel())), claims.path.shape),
        "path_margin": _lists(claims.path_margin.ravel(), claims.path_margin.shape),
        "path_predicted": _lists(labels.take(pa.array(claims.path_predicted.ravel())), claims.path_predicted.shape),
        "path_collapse": _lists(claims.path_collapse.ravel(), claims.path_collapse.shape),
        "one_step_drop": _lists(claims.one_step_drop.ravel(), claims.one_step_drop.shape),
        "one_step_confidence_drop": _lists(
            claims.one_step_confidence_drop.ravel(), claims.one_step_confidence_drop.shape
        ),
        "digest": pa.array([DIGEST_PREFIX + digest.hex() for digest in digests], type=pa.string()),
    }
    return pa.table(columns)


def _id_array(ids: Sequence[Hashable]) -> pa.Array:
    return pa.array(list(ids), type=pa.int64() if all(isinstance(i, int) for i in ids) else pa.string())


def _lists(values: Any, shape: tuple[int, ...]) -> pa.Array:
    n, width = shape
    offsets = pa.array(np.arange(0, n * width + 1, width, dtype=np.int32))
    items = values if isinstance(values, pa.Array) else pa.array(values)
    # Parquet names list items "element"; naming them so from the start, a table read back is the table written.
    return pa.ListArray.from_arrays(offsets, items, type=pa.list_(pa.field("element", items.type)))


def claims_of(table: pa.Table, protocol: Protocol, classes: Sequence[ClassLabel]) -> Claims:
    """Return the claims of a table; the inverse of ``table_of``."""
    n, k, g = len(table), protocol.depth, len(protocol.groups)
    thresholds = [_floats(table, f"lambda_{operator}", nulls=True) for operator in protocol.operators]
    return Claims(
        ids=tuple(_column(table, "id").to_pylist()),
        predicted=_indices(_column(table, "predicted"), classes, "predicted"),
        confidence=_floats(table, "confidence"),
        margin=_floats(table, "margin"),
        flip_budget=np.asarray(_column(table, "flip_budget").to_numpy(), dtype=np.int64),
        flipped=np.asarray(_column(table, "flipped").to_numpy(zero_copy_only=False), dtype=bool),
        rcma=_floats(table, "rcma"),
        fds=_floats(table, "fds"),
        thresholds=np.stack(thresholds, axis=1) if thresholds else np.empty((n, 0)),
        path=_indices(_flat(table, "path", n * k), protocol.group_names, "path").reshape(n, k),
        path_margin=_float_lists(table, "path_margin", n, k + 1),
        path_predicted=_indices(_flat(table, "path_predicted", n * (k + 1)), classes, "path_predicted").reshape(
            n, k + 1
        ),
        path_collapse=_float_lists(table, "path_collapse", n, k + 1),
        one_step_drop=_float_lists(table, "one_step_drop", n, g),
        one_step_confidence_drop=_float_lists(table, "one_step_confidence_drop", n, g),
    )


def _column(table: pa.Table, name: str) -> pa.Array:
    if name not in table.column_names:
        raise CertificateError(f"the certificate table lacks the column {name!r}")
    return table.column(name).combine_chunks()


def _floats(table: pa.Table, name: str, nulls: bool = False) -> Floats:
    column = _column(table, name)
    if column.null_count and not nulls:
        raise CertificateError(f"column {name!r} of the certificate table holds {column.null_count} nulls")
    values = column.to_numpy(zero_copy_only=False).astype(np.float64)
    return np.where(np.asarray(column.is_null()), np.inf, values) if nulls else values


def _flat(table: pa.Table, name: str, expected: int) -> pa.Array:
    column = _column(table, name)
    values = column.flatten()
    widths = np.asarray(column.value_lengths())
    if len(values) != expected or (len(widths) and (widths != widths[0]).any()):
        raise CertificateError(
            f"column {name!r} of the certificate table does not have the length the protocol declares"
        )
    return values


def _float_lists(table: pa.Table, name: str, n: int, width: int) -> Floats:
    return np.asarray(_flat(table, name, n * width).to_numpy(zero_copy_only=False), dtype=np.float64).reshape(n, width)


def _indices(values: pa.Array, known: Sequence[Any], name: str) -> Integers:
    position = {label: i for i, label in enumerate(known)}
    encoded = values.dictionary_encode()
    try:
        table = np.array([position[label] for label in encoded.dictionary.to_pylist()], dtype=np.int64)
    except KeyError as error:
        raise CertificateError(
            f"column {name!r} names {error.args[0]!r}, which the manifest does not declare"
        ) from error
    if encoded.null_count:
        raise CertificateError(f"column {name!r} of the certificate table holds nulls")
    codes = encoded.indices.to_numpy()
    return np.asarray(table[codes] if len(table) else codes, dtype=np.int64)


# --- one certificate ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Certificate:
    """One prediction's certificate, to read. Field names are the table's."""

    id: Hashable
    predicted: ClassLabel
    confidence: float
    margin: float
    flip_budget: int
    flipped: bool
    rcma: float
    fds: float
    thresholds: Mapping[str, float | None]  # lambda* by operator, None where no severity flips
    path: tuple[str, ...]
    path_margin: tuple[float, ...]
    path_predicted: tuple[ClassLabel, ...]
    path_collapse: tuple[float, ...]
    one_step_drop: Mapping[str, float]
    one_step_confidence_drop: Mapping[str, float]
    digest: str

    @property
    def failing_groups(self) -> tuple[str, ...]:
        """The groups whose removal, in path order, first changes the prediction; empty if none does."""
        return self.path[: self.flip_budget] if self.flipped else ()

    @property
    def turns_to(self) -> ClassLabel | None:
        """The class predicted at the flip, or None."""
        return self.path_predicted[self.flip_budget] if self.flipped else None

    def sentence(self) -> str:
        """One sentence for someone who decides about this case."""
        opening = f"{self.predicted!r} at {self.confidence:.0%}"
        if self.flipped:
            return f"{opening}, but without {_and(self.failing_groups)} it turns {self.turns_to!r}"
        weakest = min((v for v in self.thresholds.values() if v is not None), default=None)
        if weakest is not None:
            return f"{opening}; no {len(self.path)} removals change it, but evidence weakened by {weakest:.0%} does"
        kept = self.path_margin[-1] / self.margin if self.margin > 0 else 0.0
        left = f"{max(kept, 0):.0%} of its margin left"
        return f"{opening}, and it holds without its {len(self.path)} strongest groups ({left})"

    def story(self) -> str:
        """The removal path in lines: what went, what margin was left, where it flipped."""
        lines = [f"row {self.id}: {self.sentence()}", ""]
        width = max(len("(nothing removed)"), *(len(name) + 2 for name in self.path))
        scale = max(abs(m) for m in self.path_margin) or 1.0
        for k, (margin, label) in enumerate(zip(self.path_margin, self.path_predicted, strict=True)):
            name = "(nothing removed)" if k == 0 else f"- {self.path[k - 1]}"
            mark = "  <- flips" if self.flipped and k == self.flip_budget else ""
            lines.append(f"{k:>3}  {name:<{width}}  {margin:>+8.3f}  {_bar(margin / scale)}  {label}{mark}")
        budget = f"k* = {self.flip_budget}{'' if self.flipped else ' (no flip)'}"
        lines += ["", f"     {budget}   RCMA = {self.rcma:.3f}   FDS = {self.fds:.3f}"]
        for operator, value in self.thresholds.items():
            told = "no severity flips it" if value is None else f"flips at severity {value:g}"
            lines.append(f"     {operator}: {told}")
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.story()

    def __repr__(self) -> str:
        return self.story()

    def _repr_html_(self) -> str:
        import html

        return f"<pre>{html.escape(self.story())}</pre>"


def _and(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _bar(share: float, width: int = 10) -> str:
    """Return a bar of fixed length: filled to the right of the middle for support, to the left for support lost."""
    filled = round(min(abs(share), 1.0) * width)
    left, right = ("", "#" * filled) if share >= 0 else ("#" * filled, "")
    return f"{left:>{width}}|{right:<{width}}"


# --- all certificates -----------------------------------------------------------------------------------


class Certificates:
    """The certificates of one audit: a sequence of Certificate, and a table."""

    def __init__(self, table: pa.Table, protocol: Protocol, manifest: Mapping[str, Any]) -> None:
        self.table = table
        self.protocol = protocol
        self.manifest: dict[str, Any] = dict(manifest)

    @classmethod
    def build(cls, claims: Claims, protocol: Protocol, manifest: Mapping[str, Any]) -> Certificates:
        """Return certificates from claims; digests are made here. ``manifest`` lacks only what is derived."""
        model = manifest["model"]
        context = context_digest(protocol.digest, model["fingerprint"], model["classes"])
        digests = row_digests(claims, context)
        complete = {**manifest, "rows": len(claims), "root_digest": combine_digests(digests)}
        return cls(table_of(claims, digests, protocol, model["classes"]), protocol, complete)

    @property
    def classes(self) -> tuple[ClassLabel, ...]:
        return tuple(self.manifest["model"]["classes"])

    @property
    def engine(self) -> str:
        return str(self.manifest["engine"]["name"])

    @cached_property
    def claims(self) -> Claims:
        """The claims as arrays."""
        return claims_of(self.table, self.protocol, self.classes)

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def __getitem__(self, position: int) -> Certificate:
        if not -len(self) <= position < len(self):
            raise IndexError(f"position {position} is outside the {len(self)} certificates")
        row = self.table.slice(position % len(self), 1).to_pylist()[0]
        names = self.protocol.group_names
        return Certificate(
            **{name: row[name] for name in ("id", "predicted", "confidence", "margin", "flip_budget", "flipped")},
            rcma=row["rcma"],
            fds=row["fds"],
            thresholds={operator: row[f"lambda_{operator}"] for operator in self.protocol.operators},
            path=tuple(row["path"]),
            path_margin=tuple(row["path_margin"]),
            path_predicted=tuple(row["path_predicted"]),
            path_collapse=tuple(row["path_collapse"]),
            one_step_drop=dict(zip(names, row["one_step_drop"], strict=True)),
            one_step_confidence_drop=dict(zip(names, row["one_step_confidence_drop"], strict=True)),
            digest=row["digest"],
        )

    def __iter__(self) -> Iterator[Certificate]:
        return (self[i] for i in range(len(self)))

    def by_id(self, own_id: Hashable) -> Certificate:
        """Return the certificate of the row with this id (a number may be given as text)."""
        for candidate in (own_id, _as_int(own_id), str(own_id)):
            if candidate in self._positions:
                return self[self._positions[candidate]]
        raise CertificateError(f"no certificate for row {own_id!r}; ids run like {list(self._positions)[:3]}")

    @cached_property
    def _positions(self) -> dict[Hashable, int]:
        return {own_id: i for i, own_id in enumerate(self.table.column("id").to_pylist())}

    def most_fragile(self, n: int = 20, min_confidence: float = 0.9) -> Certificates:
        """Return the ``n`` confident predictions with the largest FDS, most fragile first."""
        fds = self.table.column("fds").to_numpy()
        chosen = np.flatnonzero(self.table.column("confidence").to_numpy() >= min_confidence)
        return self.take(chosen[np.argsort(-fds[chosen], kind="stable")][:n])

    def take(self, positions: Sequence[int] | npt.NDArray[Any]) -> Certificates:
        """Return the certificates at these positions (or where a mask is true), as certificates of their own."""
        chosen = np.asarray(positions)
        chosen = np.flatnonzero(chosen) if chosen.dtype == bool else chosen.astype(np.int64)
        table = self.table.take(pa.array(chosen))
        digests = [bytes.fromhex(text.removeprefix(DIGEST_PREFIX)) for text in table.column("digest").to_pylist()]
        manifest = {**self.manifest, "rows": len(digests), "root_digest": combine_digests(digests)}
        return Certificates(table, self.protocol, manifest)

    def to_arrow(self) -> pa.Table:
        """Return the whole table as it is written."""
        return self.table

    def to_pandas(self) -> Any:
        return self._public_table().to_pandas()

    def to_polars(self) -> Any:
        import polars

        return polars.from_arrow(self._public_table())

    def _public_table(self) -> pa.Table:
        return self.table.drop_columns(["one_step_confidence_drop"])

    def summary(self) -> dict[str, float]:
        """Return means and shares over all certificates."""
        c = self.claims
        return {
            "rows": float(len(c)),
            "mean_confidence": float(c.confidence.mean()),
            "mean_flip_budget": float(c.flip_budget.mean()),
            "flipped_share": float(c.flipped.mean()),
            "mean_rcma": float(c.rcma.mean()),
            "mean_fds": float(c.fds.mean()),
        }

    def __repr__(self) -> str:
        s = self.summary() if len(self) else {}
        told = ", ".join(f"{name.replace('_', ' ')} {value:.3f}" for name, value in s.items() if name != "rows")
        return f"{len(self)} certificates of {self.manifest['model']['kind']} ({told})"

    def _repr_html_(self) -> str:
        import html

        shown = (
            self._public_table().slice(0, 20).select(["id", "predicted", "confidence", "flip_budget", "rcma", "fds"])
        )
        return f"<p>{html.escape(repr(self))}</p>{shown.to_pandas().to_html(index=False)}"

    # --- files ------------------------------------------------------------------------------------------

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write the certificates to a folder, which appears whole or not at all."""
        target = Path(folder)
        _check_replaceable(target)
        temporary: Path | None = None
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            temporary = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
            self._write_into(temporary)
            _move_into_place(temporary, target)
        except OSError as error:
            raise CertificateError(f"cannot write the certificates to {target}: {error.strerror or error}") from error
        finally:
            if temporary is not None and temporary.exists():
                shutil.rmtree(temporary, ignore_errors=True)
        return target

    def _write_into(self, folder: Path) -> None:
        pq.write_table(self.table.combine_chunks(), folder / TABLE_FILE, compression="zstd")
        (folder / PROTOCOL_FILE).write_text(self.protocol.to_json(), encoding="utf-8")
        files = {name: digest_bytes((folder / name).read_bytes()) for name in (TABLE_FILE, PROTOCOL_FILE)}
        (folder / MANIFEST_FILE).write_text(manifest_text({**self.manifest, "files": files}), encoding="utf-8")

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Certificates:
        """Return the certificates of a folder, as they stand there; ``verify`` checks whether they hold."""
        source = Path(folder)
        manifest = read_manifest(source)
        protocol = Protocol.load(source / PROTOCOL_FILE)
        try:
            table = pq.read_table(source / TABLE_FILE)
        except (OSError, pa.ArrowException) as error:
            raise CertificateError(f"cannot read {source / TABLE_FILE}: {str(error).splitlines()[0]}") from error
        return cls(table, protocol, manifest)


def _as_int(value: Hashable) -> Hashable:
    try:
        return int(str(value))
    except ValueError:
        return value


def manifest_text(document: Mapping[str, Any]) -> str:
    """Return the manifest's file text, with its own digest as last field."""
    body = {key: value for key, value in document.items() if key != "manifest_digest"}
    return (
        json.dumps({**body, "manifest_digest": digest_of(body)}, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    )


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return the manifest of a folder; refuse what is not one, or a newer major version."""
    path = folder / MANIFEST_FILE
    if not path.exists():
        raise CertificateError(f"{folder} is not an audit folder: {MANIFEST_FILE} is missing")
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CertificateError(f"cannot read {path}: {error}") from error
    version = str(document.get("format")) if isinstance(document, dict) else "nothing"
    if version.split(".")[0] != FORMAT:
        raise CertificateError(f"{path} has format {version!r}, this version reads {FORMAT!r}; use a newer fragility")
    return dict(document)


def _check_replaceable(target: Path) -> None:
    if target.is_file() or (target.is_dir() and any(target.iterdir()) and not (target / MANIFEST_FILE).exists()):
        raise CertificateError(f"{target} exists and is not an audit folder; choose another name")


def _move_into_place(temporary: Path, target: Path) -> None:
    temporary.chmod(0o755)  # mkdtemp makes private folders; an audit is to be shared
    if not target.exists():
        temporary.rename(target)
        return
    old = Path(tempfile.mkdtemp(prefix=f".{target.name}-old-", dir=target.parent))
    target.rename(old / "audit")
    try:
        temporary.rename(target)
    except OSError:
        (old / "audit").rename(target)
        raise
    shutil.rmtree(old, ignore_errors=True)
