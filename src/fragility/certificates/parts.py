"""Parts: a certificate table cut into files of so many rows, each written with the same bytes by whoever writes it.

A part holds consecutive rows of the input; its name is made of its place among them and of its content. The writer's
settings are fixed here, because a folder is compared byte by byte: an audit in memory, an audit of files larger than
memory, and one that was interrupted and resumed write the same parts.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from fragility.canonical import digest_bytes
from fragility.certificates.footer import Declared, footer_bytes, read_footer
from fragility.certificates.manifest import place_text
from fragility.errors import CertificateError
from fragility.merkle import DIGEST_BYTES
from fragility.protocol import Protocol

PART_ROWS = 50_000
MOST_INFLATED = 1000  # times the file's size that a column may take uncompressed
# Few distinct values; in every other column a dictionary would be as large as what it replaces.
REPEATING = (
    *("predicted", "flip_budget", "path.list.element", "path_predicted.list.element"),
    *("smallest_state", "smallest_size", "smallest_set.list.element"),
)


def cut(table: pa.Table, rows: int = PART_ROWS) -> Iterator[pa.Table]:
    """Return the parts of a table in order; a table without rows is one part."""
    for start in range(0, max(len(table), 1), rows):
        yield table.slice(start, rows)


def encoded_part(table: pa.Table) -> bytes:
    """Return a part's Parquet file, the same bytes for equal tables."""
    thresholds = [name for name in table.column_names if name.startswith("lambda_")]
    sink = pa.BufferOutputStream()
    pq.write_table(
        table.combine_chunks(),
        sink,
        compression="zstd",
        use_dictionary=[*REPEATING, *thresholds],
        row_group_size=max(len(table), 1),
    )
    return bytes(sink.getvalue())


def decoded_part(data: bytes, name: str, protocol: Protocol, columns: Sequence[str] | None = None) -> pa.Table:
    """Return the table of a part, or some of its columns."""
    try:
        table = _read_claims(data, protocol, columns)
    except (OSError, ValueError, MemoryError, pa.ArrowException) as error:
        raise CertificateError(f"cannot read {name}: {told(error)}") from error
    if columns is None:
        return table
    lacking = [column for column in columns if column not in table.column_names]
    if lacking:
        raise CertificateError(f"{name} lacks the column {lacking[0]!r}")
    return table.select(list(columns))


def _read_claims(data: bytes, protocol: Protocol, columns: Sequence[str] | None) -> pa.Table:
    """Return the table of a part; ValueError where it declares more than a file of its size can hold.

    Compressed data can stand for any amount of memory. But a row's digest cannot be compressed below its 32 bytes, so
    the size of the file bounds the rows, and the protocol bounds the values of a row.
    """
    declared = read_footer(data)
    _check_declared(declared, len(data), protocol)
    table = read_columns(data, columns)
    table.validate(full=True)  # also that text is text
    if table.num_columns and len(table) != declared.rows:
        raise ValueError(f"it declares {declared.rows} rows and holds {len(table)}")
    return table


def read_columns(data: bytes, columns: Sequence[str] | None) -> pa.Table:
    """Return the table in a Parquet file's bytes, or some of its columns, in the file's order.

    Threads of Arrow's own may let go of the bytes only while Python ends, which then aborts: none take part.
    """
    file = pq.ParquetFile(pa.BufferReader(data))
    names = file.schema_arrow.names
    if len(set(names)) < len(names):
        raise ValueError(f"it has the column {min(name for name in names if names.count(name) > 1)!r} twice")
    return file.read(columns=None if columns is None else list(columns), use_threads=False)


def _check_declared(declared: Declared, size: int, protocol: Protocol) -> None:
    most_rows = size // DIGEST_BYTES
    width = max(protocol.depth + 1, len(protocol.groups), len(protocol.severities))
    if declared.rows > most_rows:
        raise ValueError(f"it declares {declared.rows} rows, and a file of its size holds {most_rows} at most")
    for column in declared.columns:
        if column.values > most_rows * width or column.inflated > size * MOST_INFLATED:
            raise ValueError(f"a column declares {column.values} values, {column.inflated} bytes, which it cannot hold")


def rows_of_part(path: str | os.PathLike[str]) -> int:
    """Return how many rows a part declares, from its footer alone. FileNotFoundError where it is gone."""
    try:
        return read_footer(footer_bytes(path)).rows
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:
        raise CertificateError(f"cannot read {path}: {told(error)}") from error


def told(error: BaseException) -> str:
    """Return the first line of what a library says."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def part_name(place: int, data: bytes) -> str:
    """Return the file name of a part."""
    return f"certificates-{place_text(place)}-{short_digest(data)}.parquet"


def beside_name(kind: str, data: bytes) -> str:
    """Return the file name of a table that lies beside the parts."""
    return f"{kind}-{short_digest(data)}.parquet"


def protocol_name(data: bytes) -> str:
    """Return the file name of a protocol."""
    return f"protocol-{short_digest(data)}.json"


def signature_name(data: bytes) -> str:
    """Return the file name of the envelope that signed a protocol."""
    return f"protocol-signature-{short_digest(data)}.json"


def short_digest(data: bytes) -> str:
    """Return the digits of a content's digest that its name holds."""
    return digest_bytes(data).removeprefix("sha256:")[:16]
