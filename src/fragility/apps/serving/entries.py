"""What a log keeps of rows that were decided: their certificates, the rows themselves, and an event for each.

An entry is encoded as three Arrow record batches without their schemas, which follow from protocol and classes.
"""

from __future__ import annotations

import datetime as dt
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
import pyarrow as pa

from fragility.audits import Certificates
from fragility.base.canonical import is_missing
from fragility.base.errors import CertificateError, DataError, ProtocolError, first_line
from fragility.blocks.claims import list_of, schema_of
from fragility.evidence.fields import Field, date_text
from fragility.models import ClassLabel
from fragility.protocol import Protocol

ID = "id"  # the column of ids in the tables of a log
HEAD = struct.Struct("<QQQQQ")  # evaluations, rows asked as a black box, and the lengths of three batches
# How the values of a field are stored. A baseline may put 37.5 in the place of a whole number, so these are doubles.
STORED = {
    "integer": pa.float64(),
    "number": pa.float64(),
    "boolean": pa.bool_(),
    "text": pa.string(),
    "date": pa.string(),
    "duration": pa.duration("ns"),
    "empty": pa.string(),
}


@dataclass(frozen=True)
class LogSchemas:
    """The columns of a log's tables."""

    certificates: pa.Schema
    rows: pa.Schema
    events: pa.Schema

    @classmethod
    def of(cls, protocol: Protocol, classes: Sequence[ClassLabel]) -> LogSchemas:
        """Return the columns that follow from a protocol and the model's classes; refuse fields of no one type."""
        for field in protocol.fields:
            if field.type not in STORED:
                raise ProtocolError(
                    f"field {field.name!r} held values of no one type in the training data, which a log cannot store; "
                    "fit the protocol on training rows that hold one type, or serve without a log"
                )
            if field.name == ID:
                raise ProtocolError(f"a field is named {ID!r}, which is the column of ids in a log; rename it")
        label, names = pa.array(list(classes)).type, list_of(pa.string())
        return cls(
            schema_of(protocol, classes, pa.string()),
            pa.schema([(ID, pa.string()), *((field.name, STORED[field.type]) for field in protocol.fields)]),
            pa.schema(
                [
                    (ID, pa.string()),
                    ("time", pa.timestamp("us", tz="UTC")),
                    ("decision", label),
                    ("confidence", pa.float64()),
                    ("exposure", pa.float64()),
                    ("flip_budget", pa.int32()),
                    ("missing", names),
                    ("stale", names),
                    ("p_change", pa.float64()),
                    ("review", pa.bool_()),
                    ("request", pa.string()),
                ]
            ),
        )


@dataclass(frozen=True, eq=False)
class LogEntry:
    """Rows that were decided together, as a log keeps them."""

    certificates: pa.RecordBatch
    rows: pa.RecordBatch
    events: pa.RecordBatch
    evaluations: int
    blackbox_rows: int  # for which the model was asked instead of the engine

    @classmethod
    def of(
        cls,
        certificates: Certificates,
        rows: Any,
        *,
        time: dt.datetime,
        missing: Sequence[Iterable[str]] | None = None,
        stale: Sequence[Iterable[str]] | None = None,
        p_change: Sequence[float | None] | None = None,
        review: Sequence[bool | None] | None = None,
        requests: Sequence[str | None] | None = None,
    ) -> LogEntry:
        """Return the entry of some rows; what is not given is none for all of them.

        certificates: their ids are text. rows: the raw rows as they were decided, in the same order: a table of
        pandas, or a list of values by field.
        time: when they were decided, with a time zone. requests: digests of what was asked, for rows whose id the
        client has chosen.
        """
        schemas = LogSchemas.of(certificates.protocol, certificates.manifest.model.classes)
        table, n = certificates.table.select(schemas.certificates.names), len(certificates)
        if table.schema.field(ID).type != pa.string():
            raise CertificateError("ids of a log are text; certify the rows with ids of text")
        if table.schema != schemas.certificates:
            raise CertificateError("a log holds full certificates of its own protocol and model; these are others")
        stored = [_store_column(rows[field.name], field) for field in certificates.protocol.fields]
        if any(len(column) != n for column in stored):
            raise DataError(f"one row per certificate was expected: {n} certificates, {len(stored[0])} rows")
        nothing = [None] * n
        events = {
            ID: table.column(ID).combine_chunks(),
            "time": pa.array([time] * n, schemas.events.field("time").type),
            "decision": table.column("predicted").combine_chunks(),
            **{name: table.column(name).combine_chunks() for name in ("confidence", "exposure", "flip_budget")},
            "missing": [sorted(names) for names in missing] if missing is not None else [()] * n,
            "stale": [sorted(names) for names in stale] if stale is not None else [()] * n,
            "p_change": nothing if p_change is None else list(p_change),
            "review": nothing if review is None else list(review),
            "request": nothing if requests is None else list(requests),
        }
        return cls(
            table.combine_chunks().to_batches()[0],
            pa.record_batch([events[ID], *stored], schema=schemas.rows),
            pa.record_batch(
                [value if isinstance(value, pa.Array) else pa.array(value, schemas.events.field(name).type)
                 for name, value in events.items()], schema=schemas.events,
            ),
            certificates.manifest.engine.evaluations,
            certificates.manifest.engine.blackbox_rows,
        )  # fmt: skip

    def __len__(self) -> int:
        return len(self.events)

    def encode(self) -> bytes:
        """Return the entry as bytes."""
        batches = [batch.serialize().to_pybytes() for batch in (self.certificates, self.rows, self.events)]
        return HEAD.pack(self.evaluations, self.blackbox_rows, *map(len, batches)) + b"".join(batches)


def decode_entries(payload: bytes, schemas: LogSchemas) -> Iterator[LogEntry]:
    """Yield the entries that lie one after the other in the payload of a record."""
    view, offset = memoryview(payload), 0
    try:
        while offset < len(view):
            evaluations, blackbox_rows, *lengths = HEAD.unpack_from(view, offset)
            offset, batches = offset + HEAD.size, []
            for schema, length in zip((schemas.certificates, schemas.rows, schemas.events), lengths, strict=True):
                batches.append(pa.ipc.read_record_batch(pa.py_buffer(view[offset : offset + length]), schema))
                offset += length
            certificates, rows, events = batches
            yield LogEntry(certificates, rows, events, evaluations, blackbox_rows)
    except (struct.error, OSError, ValueError, pa.ArrowException) as error:
        raise CertificateError(f"a journal holds rows of another form: {first_line(error)}") from error


def _store_column(column: Any, field: Field) -> pa.Array:
    """Return the values of a field as a log stores them."""
    kind, values = STORED[field.type], column
    if isinstance(column, pd.Series) and isinstance(column.dtype, pd.CategoricalDtype):
        values = column.astype(object)
    if field.type == "date":
        values = [None if is_missing(v) else v if isinstance(v, str) else date_text(v) for v in column]
    try:
        if kind == pa.float64() and isinstance(values, pd.Series):
            stored = pa.Array.from_pandas(values).cast(kind)  # refuses whole numbers that are no doubles
        else:
            stored = pa.array(values, kind, from_pandas=True)
        # Text that pandas holds in several pieces comes in as many.
        return stored.combine_chunks() if isinstance(stored, pa.ChunkedArray) else stored
    except (pa.ArrowException, TypeError) as error:
        raise DataError(f"a log cannot store the values of field {field.name!r}: {first_line(error)}") from error
