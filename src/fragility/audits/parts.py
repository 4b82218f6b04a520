"""Parts: a certificate table cut into files of so many rows, each written with the same bytes by whoever writes it.

A part holds consecutive rows of the input; its name is made of its place among them and of its content. The writer's
settings are fixed here, because a folder is compared byte by byte: an audit in memory, an audit of files larger than
memory, and one that was interrupted and resumed write the same parts.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from io import BytesIO
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from fragility.audits.manifest import place_text
from fragility.base.canonical import DIGEST_BYTES, digest_bytes
from fragility.base.errors import CertificateError, first_line
from fragility.base.files import open_regular
from fragility.blocks.claims import list_of
from fragility.protocol import Protocol

PART_ROWS = 50_000
MOST_INFLATED = 1000  # times the file's size that a column may take uncompressed
LEAST_DECODED, MOST_DECODED = 64 * 2**20, 100  # bytes, and times the file's size, that a table may take in memory
# Few distinct values; in every other column a dictionary would be as large as what it replaces.
REPEATING = ("predicted", "flip_budget", "path.list.element", "path_predicted.list.element")


def cut(table: pa.Table, rows: int = PART_ROWS) -> Iterator[pa.Table]:
    """Return the parts of a table in order; a table without rows is one part."""
    for start in range(0, max(len(table), 1), rows):
        yield table.slice(start, rows)


def encode_part(table: pa.Table) -> bytes:
    """Return a part's Parquet file, the same bytes for equal tables."""
    thresholds = [name for name in table.column_names if name.startswith("lambda_")]
    return _encode(table, [*REPEATING, *thresholds])


def encode_block(table: pa.Table) -> bytes:
    """Return the Parquet file of a block's table, the same bytes for equal tables: texts and small numbers repeat."""
    between = [table.schema.field(i) for i in range(1, table.num_columns - 1)]
    repeating = [own.name for own in between if own.type in (pa.string(), pa.int32())]
    repeating += [f"{own.name}.list.element" for own in between if own.type == list_of(pa.string())]
    return _encode(table, repeating)


def _encode(table: pa.Table, dictionaries: Sequence[str]) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(
        table.combine_chunks(),
        sink,
        compression="zstd",
        use_dictionary=list(dictionaries),
        row_group_size=max(len(table), 1),
    )
    return bytes(sink.getvalue())


def decode_part(
    data: bytes,
    name: str,
    protocol: Protocol,
    columns: Sequence[str] | None = None,
) -> pa.Table:
    """Return the table of a part, or some of its columns; refuse one that declares more than it can hold.

    Each row has a digest, which cannot be compressed below its 32 bytes, so the size of the file bounds the rows. The
    protocol bounds the values of a row.
    """
    width = max(protocol.depth + 1, len(protocol.severities), len(protocol.columns), len(protocol.fields))
    table = decode_table(data, name, columns, most_rows=len(data) // DIGEST_BYTES, most_values=width)
    lacking = [column for column in columns or () if column not in table.column_names]
    if lacking:
        raise CertificateError(f"{name} lacks the column {lacking[0]!r}")
    return table if columns is None else table.select(list(columns))


def decode_table(
    data: bytes, name: str, columns: Sequence[str] | None = None, *, most_rows: int, most_values: int = 1
) -> pa.Table:
    """Return the table in the bytes of a Parquet file of unknown origin, or some of its columns, in the file's order.

    Compressed data can stand for any amount of memory, so a file is refused, before it is decompressed, that declares
    more rows than ``most_rows``, more values of a column than ``most_values`` per row, or a column that inflates beyond
    what the size of the file allows. A long text may be written once and named by every row, so texts are counted
    before they are repeated.
    """
    try:
        rows, chunks = read_footer(data)
        if rows > most_rows:
            raise ValueError(f"it declares {rows} rows, and such a file holds {most_rows} at most")
        for values, inflated in chunks:
            if values > most_rows * most_values or inflated > len(data) * MOST_INFLATED:
                raise ValueError(f"a column declares {values} values, {inflated} bytes, which it cannot hold")
        table = read_columns(data, columns)
        table.validate(full=True)  # also that text is text
        if table.num_columns and len(table) != rows:
            raise ValueError(f"it declares {rows} rows and holds {len(table)}")
    except (OSError, ValueError, MemoryError, pa.ArrowException) as error:
        raise CertificateError(f"cannot read {name}: {first_line(error)}") from error
    return table


def read_columns(data: bytes, columns: Sequence[str] | None) -> pa.Table:
    """Return the table in a Parquet file's bytes, or some of its columns, in the file's order.

    Threads of Arrow's own may let go of the bytes only while Python ends, which then aborts: none take part.
    """
    declared = pq.ParquetFile(pa.BufferReader(data))
    names, leaves = declared.schema_arrow.names, [declared.schema.column(i) for i in range(len(declared.schema))]
    if len(set(names)) < len(names):
        raise ValueError(f"it has the column {min(name for name in names if names.count(name) > 1)!r} twice")
    texts = [leaf.path for leaf in leaves if leaf.physical_type == "BYTE_ARRAY"]
    file = pq.ParquetFile(pa.BufferReader(data), read_dictionary=texts)
    table = file.read(columns=None if columns is None else list(columns), use_threads=False)
    size = sum(_decoded_size(chunk) for column in table.columns for chunk in column.chunks)
    if size > LEAST_DECODED + MOST_DECODED * len(data):
        raise ValueError(f"its columns take {size} bytes in memory, which a file of its size cannot hold")
    schema = declared.schema_arrow
    return table.cast(pa.schema([schema.field(name) for name in table.column_names], schema.metadata))


def _decoded_size(array: pa.Array) -> int:
    """Return how many bytes an array takes once each text of its dictionaries stands where it is named."""
    size = int(array.nbytes)
    while pa.types.is_list(array.type) or pa.types.is_large_list(array.type):
        array = array.flatten()
    if pa.types.is_dictionary(array.type):
        lengths = pc.binary_length(array.dictionary).fill_null(0)
        size += int(pc.sum(lengths.cast(pa.int64()).take(array.indices.drop_null())).as_py() or 0)
    return size


def rows_of_part(path: str | os.PathLike[str]) -> int:
    """Return how many rows a part declares, from its footer alone. FileNotFoundError where it is gone."""
    try:
        with open_regular(path) as stream:
            size = stream.seek(0, os.SEEK_END)
            stream.seek(max(size - 8, 0))
            footer = int.from_bytes(stream.read(4), "little") + 8
            stream.seek(max(size - footer, 0))
            return read_footer(stream.read())[0]
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:
        raise CertificateError(f"cannot read {path}: {first_line(error)}") from error


def part_name(place: int, data: bytes, kind: str = "certificates") -> str:
    """Return the file name of a part, or of a block of its rows."""
    return f"{kind}-{place_text(place)}-{short_digest(data)}.parquet"


def beside_name(kind: str, data: bytes) -> str:
    """Return the file name of what lies beside the parts: a table, the protocol or its signature."""
    return f"{kind}-{short_digest(data)}.{'json' if kind.startswith('protocol') else 'parquet'}"


def short_digest(data: bytes) -> str:
    """Return the digits of a content's digest that its name holds."""
    return digest_bytes(data).removeprefix("sha256:")[:16]


# --- the footer of a Parquet file -----------------------------------------------------------------------------

MAGIC = b"PAR1"
NESTING = 20
# Thrift's types in the compact protocol, and fields of Parquet's FileMetaData, RowGroup, ColumnChunk, ColumnMetaData.
TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = range(1, 13)
NUM_ROWS, ROW_GROUPS, COLUMNS, META_DATA, NUM_VALUES, UNCOMPRESSED = 3, 4, 1, 3, 5, 6


def read_footer(data: bytes) -> tuple[int, list[tuple[int, int]]]:
    """Return how many rows a Parquet file declares, and of each column chunk how many values in how many bytes.

    pyarrow reads the footer too, but ends the process where the description of a column is malformed.
    """
    size = int.from_bytes(data[-8:-4], "little")
    if data[-4:] != MAGIC or not 0 < size <= len(data) - 8:
        raise ValueError("it is no Parquet file, or cut off")
    try:
        footer = Thrift(data[len(data) - 8 - size : -8]).read(STRUCT)
        columns = [chunk[META_DATA] for group in footer[ROW_GROUPS] for chunk in group[COLUMNS]]
        rows, chunks = footer[NUM_ROWS], [(column[NUM_VALUES], column[UNCOMPRESSED]) for column in columns]
    except (IndexError, KeyError, TypeError, AttributeError) as error:
        raise ValueError("its footer is malformed") from error
    if any(type(value) is not int or value < 0 for value in (rows, *chain.from_iterable(chunks))):
        raise ValueError("its footer declares a number of things below 0")
    return rows, chunks


class Thrift:
    """A reader of Thrift's compact protocol; a structure becomes a dict from field number to value."""

    def __init__(self, data: bytes) -> None:
        self._stream = BytesIO(data)

    def read(self, kind: int, depth: int = 0) -> Any:
        """Return the value of this kind that begins here."""
        if depth > NESTING:
            raise ValueError("its footer is nested absurdly deep")
        if kind in (TRUE, FALSE):
            return kind == TRUE
        if kind in (BYTE, DOUBLE):
            return self._take(1 if kind == BYTE else 8)
        if kind in (I16, I32, I64):
            value = self._varint()
            return (value >> 1) ^ -(value & 1)
        if kind == BINARY:
            return self._take(self._varint())
        if kind in (LIST, SET):
            head = self._take(1)[0]
            size = self._varint() if head >> 4 == 15 else head >> 4
            item = BYTE if head & 15 in (TRUE, FALSE) else head & 15
            return [self.read(item, depth + 1) for _ in range(size)]  # an item takes a byte at least
        if kind != STRUCT:
            raise ValueError("its footer holds what no Parquet footer does")  # maps among them
        fields: dict[int, Any] = {}
        number = 0
        while head := self._take(1)[0]:
            number = number + (head >> 4) if head >> 4 else self.read(I16)
            fields[number] = self.read(head & 15, depth + 1)
        return fields

    def _take(self, size: int) -> bytes:
        data = self._stream.read(size)
        if len(data) < size:
            raise ValueError("its footer is cut off")
        return data

    def _varint(self) -> int:
        value = 0
        for shift in range(0, 70, 7):
            byte = self._take(1)[0]
            value |= (byte & 127) << shift
            if byte < 128:
                return value
        raise ValueError("its footer holds a number without end")
