"""Blocks: optional columns behind the row digest of a certificate, with digests and a root of their own.

A block changes nothing in the claims before it. It may cover every row or only some, and may lie in a table beside the
parts of the certificates; readers join the two by id, and the other rows then have the columns without a claim.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fragility.base.arrays import Booleans
from fragility.base.canonical import combine_digests
from fragility.base.errors import CertificateError
from fragility.blocks.choice import RowChoice
from fragility.blocks.claims import Columns, check_side_table, digest_from_text, digest_text
from fragility.protocol import Protocol


@dataclass(frozen=True, slots=True)
class BlockForm:
    """How a block stands in a table: its columns, of which the last holds its row digests."""

    rows: str  # what rows with the block are called in messages
    columns: Columns
    absent: Mapping[str, Any] = field(default_factory=dict)  # values of a row without the block; all others are null

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.columns]

    @property
    def digest(self) -> str:
        """The column of the block's row digests."""
        return self.columns[-1][0]

    def append(self, table: pa.Table, values: Mapping[str, Any], digests: Sequence[bytes]) -> pa.Table:
        """Return a table with the columns of the block behind its own; values: by column, in the order of the rows."""
        columns = {**values, self.digest: pa.array(map(digest_text, digests), type=pa.string())}
        for name, kind in self.columns:
            table = table.append_column(pa.field(name, kind), pa.array(columns[name], type=kind))
        return table

    def join(self, table: pa.Table, block: pa.Table) -> pa.Table:
        """Return certificates with the columns of a block that covers some of them, found by id."""
        if "id" not in table.column_names or any(name not in block.column_names for name in ("id", *self.names)):
            raise CertificateError(f"the certificates or the {self.rows} lack a column that the format asks for")
        ids, covered = table.column("id"), block.column("id")
        if ids.type != covered.type:
            raise CertificateError(f"the {self.rows} have ids of type {covered.type}, not {ids.type}")
        place = pc.fill_null(pc.index_in(ids, value_set=covered.combine_chunks()), len(block)).combine_chunks()
        for name, kind in self.columns:
            none = pa.array([self.absent.get(name)], type=kind)
            known = pa.concat_arrays([*block.column(name).chunks, none])
            table = table.append_column(pa.field(name, kind), known.take(place))
        return table

    def select(self, table: pa.Table, positions: Any) -> pa.Table:
        """Return the block of the rows at these positions of a joined table, with their ids."""
        return table.select(["id", *self.names]).take(pa.array(positions, type=pa.int64())).combine_chunks()

    def covered(self, table: pa.Table) -> Booleans:
        """Return (n,) the rows of a joined table that have a digest of the block."""
        return np.asarray(table.column(self.digest).is_valid(), dtype=bool)

    def root(self, table: pa.Table) -> str:
        """Return the root over the digests of the rows that have the block."""
        return combine_digests(map(digest_from_text, table.column(self.digest).drop_null().to_pylist()))

    def check(self, block: pa.Table, most: int | None = None) -> None:
        """Refuse a table beside the parts that is not written as the format says; most: rows that it may have."""
        check_side_table(block, self.rows, self.columns)
        if most is not None and len(block) > most:
            raise CertificateError(f"the table of {self.rows} has {len(block)} rows, and {most} are declared at most")
        if pc.count_distinct(block.column("id"), mode="all").as_py() != len(block) or block.column("id").null_count:
            raise CertificateError(f"the table of {self.rows} names a row twice, or none")
        if block.column(self.digest).null_count:
            raise CertificateError(f"the table of {self.rows} has a row without a digest")


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockDeclaration(ABC):
    """What a block beside the parts was made with; its fields have the names and the order of the manifest's.

    It covers every row, or as many confident rows as declared. Whatever engine answered is named, but takes no part in
    the digests.
    """

    engine: str  # who answered for changed rows: a native engine, or blackbox where the model was asked

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @property
    @abstractmethod
    def most(self) -> int | None:
        """How many of the confident rows have a block at most; None if every row has one."""

    @abstractmethod
    def choice(self, protocol: Protocol) -> RowChoice | None:
        """Return which confident rows have a block; None if every row has one."""

    @property
    def is_partial(self) -> bool:
        """Whether only some confident rows have a block."""
        return self.most is not None

    @property
    @abstractmethod
    def form(self) -> BlockForm:
        """How the block stands in a table."""

    def check_table(self, block: pa.Table) -> None:
        """Refuse a table of the block that is not written as the format says."""
        self.form.check(block, self.most)

    def split(self, table: pa.Table, protocol: Protocol) -> tuple[pa.Table, pa.Table]:
        """Return certificates without the block's columns, and the block of the rows that have one, in its order."""
        form, choice = self.form, self.choice(protocol)
        covered = table.filter(pa.array(form.covered(table)))
        order = np.arange(len(covered)) if choice is None else choice.order(covered)
        return table.drop_columns(form.names), form.select(covered, order)
