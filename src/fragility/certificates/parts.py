"""Parts: a certificate table cut into files of so many rows, each written with the same bytes by whoever writes it.

A part holds consecutive rows of the input; its name is made of its place among them and of its content. The writer's
settings are fixed here, because a folder is compared byte by byte: an audit in memory, an audit of files larger than
memory, and one that was interrupted and resumed write the same parts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from fragility.canonical import digest_bytes
from fragility.certificates.manifest import place_text
from fragility.errors import CertificateError

PART_ROWS = 50_000
# Few distinct values; in every other column a dictionary would be as large as what it replaces.
REPEATING = ("predicted", "flip_budget", "path.list.element", "path_predicted.list.element")


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


def decoded_part(data: bytes, name: str, columns: Sequence[str] | None = None) -> pa.Table:
    """Return the table of a part, or some of its columns."""
    try:
        table = pq.read_table(pa.BufferReader(data), columns=None if columns is None else list(columns))
    except (OSError, ValueError, pa.ArrowException) as error:
        raise CertificateError(f"cannot read {name}: {str(error).splitlines()[0]}") from error
    if columns is None:
        return table
    lacking = [column for column in columns if column not in table.column_names]
    if lacking:
        raise CertificateError(f"{name} lacks the column {lacking[0]!r}")
    return table.select(list(columns))


def part_name(place: int, data: bytes) -> str:
    """Return the file name of a part."""
    return f"certificates-{place_text(place)}-{short_digest(data)}.parquet"


def protocol_name(data: bytes) -> str:
    """Return the file name of a protocol."""
    return f"protocol-{short_digest(data)}.json"


def short_digest(data: bytes) -> str:
    """Return the digits of a content's digest that its name holds."""
    return digest_bytes(data).removeprefix("sha256:")[:16]
