"""Blocks: what an audit says of its rows beyond the claims, each in tables, digests and a root of its own.

A block changes nothing in the claims. It has every row, or chosen ones, and stands in tables beside the parts of the
certificates; readers join them by id, and the other rows then have its columns without a claim.

A kind of block is one subclass of `Block` and one subclass of `Declaration`, and a line in `fragility.blocks.all`.
Whoever audits, saves, reads or verifies goes through that list and names no block.
"""

from __future__ import annotations

import hashlib
import struct
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Literal, NamedTuple, Self, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from fragility.base.arrays import Booleans
from fragility.base.canonical import canonical_bytes, combine_digests
from fragility.base.errors import CertificateError, FragilityError
from fragility.base.schemas import A_DIGEST, OPTIONAL, Digest, is_digest, read_document, show_value
from fragility.blocks.checks import Check, Difference, Recheck
from fragility.blocks.choice import By, ChosenRows, RowChoice
from fragility.blocks.claims import (
    FORMAT,
    PROBABILITY_UNIT,
    Claims,
    check_side_table,
    count_units,
    digest_from_text,
    digest_text,
    hash_rows,
    id_bytes,
    indices_of,
    read_sets_of_names,
    whole_column,
)
from fragility.engines.choice import ENGINES
from fragility.engines.engine import Run
from fragility.evidence import EvidenceRows
from fragility.models import ClassLabel
from fragility.protocol import Protocol

DIGEST = "digest"  # the last column of a block's table
NULL_TEXT = b"\xff\xff\xff\xff"
# What is wanted of blocks: the keywords of `audit` and its like, and their values; None is a keyword's default.
Requests: TypeAlias = Mapping[str, Any]
Contradictions: TypeAlias = list[tuple[int, str]]  # position and column


# --- columns ------------------------------------------------------------------------------------------------


class Hashed(NamedTuple):
    """How a column enters the digest of its row; docs/format.md lists the kinds under "hashed"."""

    kind: Literal["units", "number", "position", "set", "text"]
    unit: float = 1.0
    names: Sequence[str] = ()  # of a position or a set


NUMBER, TEXT = Hashed("number"), Hashed("text")


def in_units(unit: float = PROBABILITY_UNIT) -> Hashed:
    return Hashed("units", unit)


def position_in(names: Sequence[str]) -> Hashed:
    return Hashed("position", names=names)


def set_of(names: Sequence[str]) -> Hashed:
    return Hashed("set", names=names)


class Column(NamedTuple):
    """A column of a block."""

    name: str
    type: pa.DataType
    hashed: Hashed | None  # None: it is not hashed, since it follows from other columns or depends on the engine
    absent: Any = None  # what a row without the block has in the joined table


def hash_columns(table: pa.Table, columns: Sequence[Column], context: bytes) -> list[bytes]:
    """Return each row's 32-byte digest: sha256 over context, id and columns in the layout of docs/format.md."""
    ids = table.column("id").to_pylist()
    pieces = [_encode(table, column) for column in columns if column.hashed is not None] if ids else []
    if not any(isinstance(piece, list) for piece in pieces):
        return hash_rows(ids, context, [piece for piece in pieces if not isinstance(piece, list)])
    of_rows = [piece if isinstance(piece, list) else _split_bytes(*piece) for piece in pieces]
    parts = zip(ids, *of_rows, strict=True)
    return [hashlib.sha256(b"".join((context, id_bytes(own_id), *rest))).digest() for own_id, *rest in parts]


Piece: TypeAlias = tuple[npt.NDArray[Any], float | None]  # as ``hash_rows`` takes it


def _encode(table: pa.Table, column: Column) -> Piece | list[bytes]:
    """Return the values of a column as they are hashed; bytes per row if their length differs from row to row."""
    hashed, own = column.hashed, whole_column(table, column.name, nulls=True)
    assert hashed is not None
    if hashed.kind == "set":
        return read_sets_of_names(table, column.name, hashed.names, "names"), None
    items = own.flatten() if pa.types.is_list(own.type) else own
    if hashed.kind == "text":
        return _join_texts(items, len(table))
    values: npt.NDArray[Any]
    if hashed.kind == "position":
        values = indices_of(items, hashed.names, column.name)
    else:
        values = items.cast(pa.float64(), safe=False).fill_null(np.nan).to_numpy(zero_copy_only=False)
    shape = (len(table), len(values) // len(table)) if own is not items else (len(table),)
    return values.reshape(shape), hashed.unit if hashed.kind == "units" else None


def _join_texts(items: pa.Array, rows: int) -> list[bytes]:
    encoded = items.dictionary_encode()
    texts = [text.encode() for text in encoded.dictionary.to_pylist()]
    known = np.array([*(struct.pack("<I", len(text)) + text for text in texts), NULL_TEXT], dtype=object)
    codes = pc.fill_null(encoded.indices, len(texts)).to_numpy(zero_copy_only=False).reshape(rows, -1)
    return [b"".join(known[own]) for own in codes]


def _split_bytes(values: npt.NDArray[Any], unit: float | None) -> list[bytes]:
    counted = values if unit is None else count_units(values, unit)
    return [row.tobytes() for row in counted.astype("<f8")]


# --- declarations -------------------------------------------------------------------------------------------

AROUND = ("engine", "rows", "root_digest")  # the fields of every declaration: no part of the digest of a row


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration(ABC):
    """What a block was made with; a kind of block adds fields of its own, in the names and the order of the manifest.

    Whoever answered is named and so are the other rows, but neither takes part in the digests.
    """

    engine: str  # a native engine, or blackbox where the model was asked
    rows: ChosenRows | None = None  # None: every row
    root_digest: Digest | None = field(
        default=None, metadata=OPTIONAL
    )  # over the digests of all rows with the block; None until it is made

    @classmethod
    def from_dict(cls, document: Any, what: str, at: str) -> Self:
        """Return the declaration in a manifest; ``at`` is its place there."""
        plain = dict(document) if isinstance(document, Mapping) else document
        root = plain.pop("root_digest", None) if isinstance(plain, dict) else None
        read = read_document(plain, cls, what, CertificateError, at=at, ordered=True)
        if root is None:
            raise CertificateError(f"{what} lacks the field '{at}.root_digest'")
        if not is_digest(root):
            raise CertificateError(f"{at}.root_digest in {what} must be {A_DIGEST.words}, got {show_value(root)}")
        if list(document)[-1] != "root_digest":
            raise CertificateError(f"the fields of {at} in {what} are not in the order of the format")
        return replace(read, root_digest=root)

    def to_dict(self) -> dict[str, Any]:
        """Return the plain form; the root stands last, where there is one."""
        document = asdict(self)
        root = document.pop("root_digest")
        return document if root is None else {**document, "root_digest": root}

    @property
    def own_fields(self) -> dict[str, Any]:
        """The fields that give the columns their meaning."""
        return {name: value for name, value in self.to_dict().items() if name not in AROUND}

    @property
    def is_partial(self) -> bool:
        """Whether only chosen rows have the block."""
        return self.rows is not None

    def choice(self, protocol: Protocol) -> RowChoice | None:
        """Return which rows have the block; None if every row has."""
        return None if self.rows is None else RowChoice(self.rows.most, self.rows.by, protocol.min_confidence)

    def without_root(self) -> Self:
        """Return the declaration as it was before the block was made."""
        return replace(self, root_digest=None)


# --- kinds of blocks ----------------------------------------------------------------------------------------


class Block(ABC):
    """A kind of block: how it is declared, made, read and verified."""

    name: ClassVar[str]  # in the manifest, in names of files, and of the keyword that asks for it
    rows: ClassVar[str]  # what rows with the block are called in messages
    declaration: ClassVar[type[Declaration]]
    recheck: ClassVar[type[BlockRecheck]]
    by: ClassVar[By] = "exposure"  # which rows it has if it does not have every row
    engines: ClassVar[Sequence[str]] = ENGINES[1:]  # those that it may name
    keywords: ClassVar[tuple[str, ...]] = ()  # of `audit`; by default the name
    claims: ClassVar[tuple[str, ...]] = ()  # of the rows that it is made from
    by_default: ClassVar[bool] = False  # whether it is made where nobody asks for it, if it can be
    in_selections: ClassVar[bool] = True  # whether a selection of certificates keeps it
    # What ends it without ending the audit where nobody asked for it, and the warning that says so.
    gives_up: ClassVar[tuple[type[FragilityError], str] | None] = None

    @abstractmethod
    def columns(self, declared: Any, protocol: Protocol) -> list[Column]:
        """Return the columns of the block, between the ids and the digests."""

    @abstractmethod
    def declare(self, wanted: Requests, rows: EvidenceRows, protocol: Protocol, run: Run) -> Declaration | None:
        """Return what a block of these rows will be made with; None for none. Refuses in a sentence.

        wanted: its keywords, which do not say that it is left out.
        """

    @abstractmethod
    def check_declaration(self, declared: Any, protocol: Protocol, fingerprint: str) -> None:
        """Refuse own fields of a declaration that do not follow from protocol and format."""

    @abstractmethod
    def make(
        self, rows: EvidenceRows, protocol: Protocol, declared: Any, claims: Mapping[str, Any], run: Run
    ) -> Mapping[str, Any]:
        """Return the columns of some rows, at least one, by name; those of a row depend on no other row.

        claims: the arrays that ``claims`` names, of these rows.
        """

    @abstractmethod
    def read(self, table: pa.Table, declared: Any, protocol: Protocol) -> Any:
        """Return the block of a table of rows that all have it as arrays; refuses values that no block can hold."""

    @abstractmethod
    def find_contradictions(
        self, values: Any, claims: Claims, declared: Any, protocol: Protocol, classes: Sequence[ClassLabel]
    ) -> Contradictions:
        """Return where what was read contradicts itself or the claims of the same rows, without asking a model."""

    def read_row(self, row: Mapping[str, Any], declared: Any, protocol: Protocol) -> Any:
        """Return the block in one row of the joined table, to read; by default the values by column."""
        return {column.name: row[column.name] for column in self.columns(declared, protocol)}

    @property
    def asked_by(self) -> tuple[str, ...]:
        """The keywords that ask for the block."""
        return self.keywords or (self.name,)

    def is_wanted(self, wanted: Requests) -> bool:
        """Return whether the block is to be made if it can be."""
        values = [wanted.get(name) for name in self.asked_by]
        if any(value is not None and value is not False for value in values):
            return True
        return self.by_default and False not in values

    def is_asked(self, wanted: Requests) -> bool:
        """Return whether somebody asked for the block, so that a fault may not pass for a default that gave up."""
        return any(wanted.get(name) is not None for name in self.asked_by)


# --- a block of an audit ------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class AuditBlock:
    """A block of an audit: what it declares, under which protocol, of which model; and how it stands in tables."""

    kind: Block
    declared: Declaration
    protocol: Protocol
    fingerprint: str
    classes: tuple[ClassLabel, ...]

    @property
    def name(self) -> str:
        return self.kind.name

    @property
    def digest(self) -> str:
        """The column of the block's digests in certificates that are joined with it."""
        return f"{self.name}_{DIGEST}"

    @property
    def choice(self) -> RowChoice | None:
        """Which rows have the block; None if every row has."""
        return self.declared.choice(self.protocol)

    @cached_property
    def columns(self) -> list[Column]:
        return self.kind.columns(self.declared, self.protocol)

    @property
    def names(self) -> list[str]:
        """The columns that the joined table has of the block, the digests last."""
        return [*(column.name for column in self.columns), self.digest]

    @property
    def joined_columns(self) -> list[tuple[str, pa.DataType]]:
        """The same with their types."""
        return [*((column.name, column.type) for column in self.columns), (self.digest, pa.string())]

    @cached_property
    def context(self) -> bytes:
        """What binds a row's block to its protocol, its model and what was declared."""
        document = {
            "block": self.name,
            "classes": list(self.classes),
            "declaration": self.declared.own_fields,
            "format": FORMAT,
            "model_fingerprint": self.fingerprint,
            "protocol_digest": self.protocol.digest,
        }
        return hashlib.sha256(canonical_bytes(document)).digest()

    def tabulate(self, ids: pa.Array, values: Mapping[str, Any]) -> pa.Table:
        """Return the block's table of these rows, with their digests; values: by column."""
        columns = {name: pa.array(values[name], type=kind) for name, kind, *_ in self.columns}
        table = pa.table({"id": ids, **columns})
        digests = pa.array(map(digest_text, hash_columns(table, self.columns, self.context)), type=pa.string())
        return table.append_column(DIGEST, digests)

    def compute(self, rows: EvidenceRows, claims: Claims | pa.Table, run: Run) -> Mapping[str, Any]:
        """Return the columns of some rows, whose claims are given; nothing is asked about no rows."""
        if not len(rows):
            return {name: [] for name, *_ in self.columns}
        known = {
            name: claims.column(name).to_numpy() if isinstance(claims, pa.Table) else getattr(claims, name)
            for name in self.kind.claims
        }
        return self.kind.make(rows, self.protocol, self.declared, known, run)

    def with_root(self, digests: Sequence[str]) -> Declaration:
        """Return the declaration with the root over the digests of all rows that have the block."""
        return replace(self.declared, root_digest=combine_digests(map(digest_from_text, digests)))

    def check_table(self, block: pa.Table) -> None:
        """Refuse a table of the block that is not written as the format says."""
        rows = self.kind.rows
        check_side_table(block, rows, [*((name, kind) for name, kind, *_ in self.columns), (DIGEST, pa.string())])
        most = None if self.declared.rows is None else self.declared.rows.most
        if most is not None and len(block) > most:
            raise CertificateError(f"the table of {rows} has {len(block)} rows, and {most} are declared at most")
        if pc.count_distinct(block.column("id"), mode="all").as_py() != len(block) or block.column("id").null_count:
            raise CertificateError(f"the table of {rows} names a row twice, or none")
        if block.column(DIGEST).null_count:
            raise CertificateError(f"the table of {rows} has a row without a digest")

    def join(self, table: pa.Table, block: pa.Table) -> pa.Table:
        """Return certificates with the columns of the block behind their own; rows are found by id."""
        names = [*(column.name for column in self.columns), DIGEST]
        if "id" not in table.column_names or any(name not in block.column_names for name in ("id", *names)):
            raise CertificateError(f"the certificates or the {self.kind.rows} lack a column that the format asks for")
        ids, covered = table.column("id"), block.column("id")
        if ids.type != covered.type:
            raise CertificateError(f"the {self.kind.rows} have ids of type {covered.type}, not {ids.type}")
        place = pc.fill_null(pc.index_in(ids, value_set=covered.combine_chunks()), len(block)).combine_chunks()
        absent = {column.name: column.absent for column in self.columns}
        for name, (joined, kind) in zip(names, self.joined_columns, strict=True):
            none = pa.array([absent.get(name)], type=kind)
            known = pa.concat_arrays([*block.column(name).chunks, none])
            table = table.append_column(pa.field(joined, kind), known.take(place))
        return table

    def covered(self, table: pa.Table) -> Booleans:
        """Return (n,) the rows of a joined table that have the block."""
        return np.asarray(table.column(self.digest).is_valid(), dtype=bool)

    def cut_out(self, table: pa.Table, places: Any = None) -> pa.Table:
        """Return the block's own table of rows of a joined table; by default of those that have it, in its order."""
        if places is None:
            table, choice = table.filter(pa.array(self.covered(table))), self.choice
            places = np.arange(len(table)) if choice is None else choice.order(table)
        own = table.select(["id", *self.names]).take(pa.array(places, type=pa.int64())).combine_chunks()
        return own.rename_columns(["id", *(column.name for column in self.columns), DIGEST])

    def check_absent(self, table: pa.Table) -> None:
        """Refuse rows without the block in a joined table that have a claim of it, or that must have it."""
        if not len(table):
            return
        if not self.declared.is_partial:
            raise CertificateError(
                f"row {table.column('id')[0].as_py()!r} has no {self.name} block, and every row must have one"
            )
        for column in self.columns:
            if table.column(column.name).to_pylist() != [column.absent] * len(table):
                raise CertificateError(f"a row has claims of the {self.name} block and no {self.digest}")

    def read(self, block: pa.Table) -> Any:
        """Return a table of the block as arrays; refuses values that no block can hold."""
        return self.kind.read(block, self.declared, self.protocol)

    def find_contradictions(self, block: pa.Table, claims: Claims) -> Contradictions:
        """Return where a table of the block contradicts itself or the claims of the same rows."""
        return self.kind.find_contradictions(self.read(block), claims, self.declared, self.protocol, self.classes)

    def hash_rows(self, block: pa.Table) -> list[bytes]:
        """Return the digests that follow from a table of the block."""
        return hash_columns(block, self.columns, self.context)

    def make_recheck(self, audit: Any) -> BlockRecheck:
        """Return what recomputes the block."""
        return self.kind.recheck(audit, own=self)

    def check_declaration(self) -> None:
        """Refuse a declaration that does not follow from protocol and format."""
        declared, name = self.declared, self.name
        if declared.engine not in self.kind.engines:
            raise CertificateError(
                f"blocks.{name} in the manifest names the engine {declared.engine!r:.80}, which does not exist there"
            )
        if declared.rows is not None and declared.rows.by != self.kind.by:
            raise CertificateError(f"blocks.{name}.rows.by in the manifest must be {self.kind.by!r}")
        self.kind.check_declaration(declared, self.protocol, self.fingerprint)

    def describe_choice(self) -> str:
        """Return the beginning of the sentence that the block has other rows than those declared."""
        if self.declared.rows is not None and self.declared.rows.by == "exposure":
            return f"the {self.kind.rows} are not the most exposed confident ones of this audit"
        return f"the {self.kind.rows} are not the confident ones of this audit that their content chooses"


# --- recomputing --------------------------------------------------------------------------------------------


@dataclass(eq=False)
class BlockRecheck(Recheck, ABC):
    """A block of rows, recomputed part by part."""

    own: AuditBlock = field(kw_only=True)
    unsearched: int = 0  # rows with a claim that was not recomputed
    never: str | None = None  # why the declared engine can never have answered for them
    unread: str | None = None  # why the declared engine cannot read the model here

    def confirm(self, table: pa.Table, claims: Claims, rows: EvidenceRows) -> None:
        """Recompute the block of those rows of a joined table that have it."""
        covered = self.own.covered(table)
        if not covered.any():
            return
        places = np.flatnonzero(covered)
        mine = rows.take(places.tolist())
        disputed = self.compare(self.own.cut_out(table, places), claims.take(places.tolist()), mine)
        first = {(dispute.row, dispute.field): dispute for dispute in reversed(disputed)}
        self.note(len(mine), list(first.values())[::-1])

    @abstractmethod
    def compare(self, block: pa.Table, claims: Claims, rows: EvidenceRows) -> list[Difference]:
        """Return the claims of the block of these rows that do not hold."""

    @abstractmethod
    def describe(self) -> str:
        """Return what was recomputed of at least one row, and whether it holds."""

    def check(self) -> Check:
        """Return the outcome, when all rows were given."""
        engine, name, differences = self.own.declared.engine, self.own.name, list(self.differences)
        told = self.describe() if self.rows else f"none of the rows recomputed has the {name} block"
        if self.never is not None:
            told = f"the {engine} engine can never have read this model, {self.result}"
            differences.insert(0, Difference("all", f"{name}.engine", engine, f"cannot be: {self.never}"))
        return Check(name, not differences, told, self.tolerance, tuple(differences), empty=not self.rows)
