"""Parts of an audit: the task that a worker gets, the part that it returns, and the rows that are kept for the end.

Workers read and compute, and write nothing. They send a part back as bytes, and the process that asked for it writes
it once. So a worker that dies or a task that is done twice leaves nothing behind, and parts are ordered by their
places, whichever is finished first.
"""

from __future__ import annotations

import os
import re
import socket
import typing
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from threadpoolctl import threadpool_limits

from fragility.auditing.certifying import PartAuditor, TracedRows
from fragility.audits.parts import encode_block, encode_part, part_name
from fragility.base.canonical import DIGEST_BYTES, combine_digests, digest_bytes
from fragility.base.errors import ClusterError, DataError, FragilityError
from fragility.base.ids import id_keys
from fragility.blocks.all import list_claims
from fragility.blocks.block import DIGEST, Requests
from fragility.blocks.choice import RowChoice, with_content
from fragility.blocks.claims import Extent, digest_from_text, schema_of
from fragility.engines.trace import HandedOver
from fragility.evidence.rows import Rows, content_keys, input_row_digests, read_rows
from fragility.protocol import Protocol
from fragility.tables.sources import RawPart, RowSource

FIRST_ROWS = 1024  # on which model and engine are made ready, whatever the size of the parts
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
CONNECT_SECONDS = 10


# --- rows kept for the end ----------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class KeptRows:
    """Some rows: their raw fields, their ids, and the claims by which rows are chosen."""

    frame: pd.DataFrame
    ids: list[Any]
    claims: pa.Table  # the columns that blocks ask for, and CONTENT

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, positions: list[int]) -> KeptRows:
        """Return the rows at these positions."""
        claims = self.claims.take(pa.array(positions, type=pa.int64()))
        return KeptRows(self.frame.iloc[positions], [self.ids[i] for i in positions], claims)


@dataclass(frozen=True)
class Choices:
    """Which rows are examined more closely at the end of an audit, by the block that they have."""

    by_block: dict[str, RowChoice]

    @classmethod
    def of(cls, auditor: PartAuditor) -> Choices:
        """Return the choices of an audit."""
        found = {name: own.choice for name, own in auditor.blocks.items()}
        return cls({name: choice for name, choice in found.items() if choice is not None})

    def __bool__(self) -> bool:
        return bool(self.by_block)

    def choose(self, name: str, claims: pa.Table) -> list[int]:
        """Return the positions of the rows of a block, in its order."""
        places: list[int] = self.by_block[name].choose(claims).tolist()
        return places

    def every(self, claims: pa.Table) -> list[int]:
        """Return the positions of all chosen rows, in their order."""
        return sorted({place for name in self.by_block for place in self.choose(name, claims)})


@dataclass
class Keeper:
    """The rows that are chosen among those of all parts so far.

    Which rows are chosen is known only when all were audited. Every part hands over those of its rows that may be among
    them, and rows that can no longer be chosen are dropped as parts come in. So no row is read twice, wherever it came
    from, and the memory needed does not grow with the number of rows.
    """

    choices: Choices
    parts: dict[int, KeptRows] = field(default_factory=dict)  # by the place of the part
    none: KeptRows | None = None  # no rows, with the columns that all have

    def add(self, place: int, rows: KeptRows | None) -> None:
        """Take the candidates of another part, and drop those that are no longer chosen."""
        if rows is None:
            return
        self.none = self.none or rows.take([])
        self.parts[place] = rows
        wanted = self.choices.every(pa.concat_tables([part.claims for part in self.parts.values()]))
        self.parts = dict(_take_wanted(self.parts, wanted))

    def examine(self, name: str, examine: Callable[[KeptRows], pa.Table | None]) -> pa.Table | None:
        """Examine the rows that are chosen for a block; return what is found, in its order, or None.

        Rows of all parts whose fields have the same types are examined together: joining others would change their
        types. Without rows, ``examine`` is given none. If it returns None, so does this.
        """
        choose = partial(self.choices.choose, name)
        alike: dict[tuple[Any, ...], list[KeptRows]] = {}
        for _, part in sorted(self.parts.items()):
            alike.setdefault((*part.frame.columns, *part.frame.dtypes), []).append(part)
        pieces = dict(enumerate(map(_join, alike.values())))
        wanted = choose(pa.concat_tables([piece.claims for piece in pieces.values()])) if pieces else []
        assert self.none is not None  # an audit has at least one part
        chosen = [rows for _, rows in _take_wanted(pieces, wanted)] or [self.none]
        found = list[pa.Table]()
        for rows in chosen:
            table = examine(rows)
            if table is None:
                return None
            found.append(table)
        order = choose(pa.concat_tables([rows.claims for rows in chosen]))
        return pa.concat_tables(found).take(pa.array(order, type=pa.int64()))


def _join(parts: list[KeptRows]) -> KeptRows:
    return KeptRows(
        pd.concat([part.frame for part in parts], ignore_index=True),
        [own_id for part in parts for own_id in part.ids],
        pa.concat_tables([part.claims for part in parts]),
    )


def _take_wanted(parts: dict[int, KeptRows], wanted: Sequence[int]) -> Iterator[tuple[int, KeptRows]]:
    """Yield the wanted rows of each part that has some; positions are counted over all parts."""
    start = 0
    for key, part in parts.items():
        mine = [place - start for place in wanted if start <= place < start + len(part)]
        start += len(part)
        if mine:
            yield key, part.take(mine)


# --- a part to make, and a part made ------------------------------------------------------------------------


@dataclass(frozen=True)
class PartRecord:
    """A finished part of a folder."""

    name: str  # of its file
    digest: str  # of its file
    rows: int
    evaluations: int
    handed_over: HandedOver
    input_digest: str  # of its rows, ids included
    digests_each: int  # per row: 2, and one more for each block that every row has
    digests_digest: str  # of the file of its digests
    beside: dict[str, str]  # names and digests of the files of its blocks, where every row has them

    @property
    def files(self) -> dict[str, str]:
        """Names and digests of its files."""
        return {self.name: self.digest, **self.beside}


@dataclass(frozen=True, eq=False)
class Task:
    """A part to make; or rows to compare with a part that an earlier run has finished."""

    place: int
    rows: RawPart | Callable[[Any], RawPart]  # a function of the maker's source: the worker reads the rows itself
    known: PartRecord | None = None
    known_claims: pa.Table | None = None  # those of the finished part that blocks ask for


@dataclass(frozen=True, eq=False)
class MadePart:
    """A part as bytes to be written, wherever it was made; or the rows of one that an earlier run has finished."""

    place: int
    start: int  # its first row in the input
    record: PartRecord
    input_digest: str  # of its rows as they were read now
    data: tuple[bytes, ...] | None  # of its files; None if an earlier run has written them
    digests: bytes  # 32 bytes per row: of its claims, then of its input, then of each block that every row has
    kept: KeptRows | None  # rows that may be chosen at the end of the audit
    id_keys: bytes  # 16 bytes per row; empty if the ids are the rows' numbers


@dataclass(frozen=True, eq=False)
class Failure:
    """An error that the user has caused: sent back as a value, so that the part is not tried again."""

    error: FragilityError


@dataclass(frozen=True, eq=False)
class PartMaker:
    """All that a worker needs, sent to it once: the auditor, and where the rows are."""

    auditor: PartAuditor
    source: RowSource | None = None

    def make(self, task: Task) -> MadePart | Failure:
        """Return a part, or why there is none."""
        try:
            if not isinstance(task.rows, RawPart):
                task = replace(task, rows=task.rows(self.source))
            return self.finish(task, self.trace(task))
        except FragilityError as error:
            return Failure(error)

    def trace(self, task: Task) -> TracedRows | None:
        """Bind and trace the rows of a part; return None for a part that is finished."""
        assert isinstance(task.rows, RawPart)
        if task.known is not None:
            return None
        with name_rows_in_errors(self.source, task.rows, self.auditor.protocol):
            return self.auditor.trace_part(task.rows.frame, task.rows.ids)

    def finish(self, task: Task, traced: TracedRows | None) -> MadePart:
        """Hash and encode a traced part; hash the rows of one that is finished."""
        part, auditor = task.rows, self.auditor
        assert isinstance(part, RawPart)
        if traced is None:
            assert task.known is not None
            record, files, digests, claims = task.known, None, b"", task.known_claims
            input_digest = combine_digests([input_digests_of(auditor, part)])
        else:
            certified = auditor.certify(traced)
            inputs, claims = b"".join(input_row_digests(traced.rows.source)), certified.table
            input_digest, data = combine_digests([inputs]), encode_part(claims)
            blocks = {name: encode_block(table) for name, table in certified.blocks.items()}
            files = (data, *blocks.values())
            texts = (text for table in certified.blocks.values() for text in table.column(DIGEST).to_pylist())
            digests = certified.digests + inputs + b"".join(map(digest_from_text, texts))
            record = PartRecord(
                name=part_name(task.place, data),
                digest=digest_bytes(data),
                rows=len(part),
                evaluations=certified.evaluations,
                handed_over=certified.handed_over,
                input_digest=input_digest,
                digests_each=len(digests) // DIGEST_BYTES // len(part),
                digests_digest=digest_bytes(digests),
                beside={part_name(task.place, block, name): digest_bytes(block) for name, block in blocks.items()},
            )
        kept, choices = None, Choices.of(auditor)
        if choices and claims is not None:
            contents = content_keys(read_part(auditor, part) if traced is None else traced.rows.source)
            candidates = KeptRows(part.frame, part.ids, with_content(claims.select(list_claims()), contents))
            kept = candidates.take(choices.every(candidates.claims))
        keys = b"" if part.numbered else id_keys(part.ids).tobytes()
        return MadePart(task.place, part.start, record, input_digest, files, digests, kept, keys)


class Workers(typing.Protocol):
    """Processes that make parts."""

    def make_parts(self, maker: PartMaker, tasks: Iterable[Task]) -> Iterator[MadePart | Failure]:
        """Return the parts as they are finished, in any order; take few more tasks than there are workers."""
        ...


@contextmanager
def name_rows_in_errors(source: RowSource | None, part: RawPart, protocol: Protocol) -> Iterator[None]:
    """Say in which rows of the input an error lies, and in which line of a CSV file a number was expected."""
    try:
        yield
    except FragilityError as error:
        for own in protocol.fields:
            if source is not None and own.type in ("integer", "number") and own.name in part.frame.columns:
                source.refuse_text(part, own.name)
        if part.start == 0:
            raise
        raise type(error)(f"rows {part.start} to {part.start + len(part) - 1} of the input: ", error) from error


def input_digests_of(auditor: PartAuditor, part: RawPart) -> bytes:
    """Return the digests of a part's ids and raw fields, 32 bytes per row, without auditing them."""
    return b"".join(input_row_digests(read_part(auditor, part)))


def read_part(auditor: PartAuditor, part: RawPart) -> Rows:
    """Return the rows of a part, in the model's column order."""
    model = auditor.model
    fields = tuple(field.name for field in auditor.protocol.fields)
    expected = model.name_columns(fields) or fields
    return read_rows(part.frame, expected, model.n_columns, part.ids)


def limit_threads() -> None:
    """Let this process compute in one thread: there is a worker for every core already.

    It must come before the model, which may bring libraries that look at these settings when they are loaded.
    """
    os.environ.update(dict.fromkeys(THREADS, "1"))
    threadpool_limits(1)


_received: dict[str, Any] = {}  # in a worker's process: what it was sent last


def receive_once(name: str, fetch: Callable[[], Any]) -> Any:
    """Return what this worker process was sent, fetched once; the process computes in one thread from then on."""
    if name not in _received:
        limit_threads()
        _received.clear()
        _received[name] = fetch()
    return _received[name]


# --- tables that a cluster holds ----------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class TableAuditor:
    """A function from a cluster's table of rows to the table of their certificates."""

    auditor: PartAuditor
    id_column: str
    target: str | None = None

    @classmethod
    def prepare(
        cls,
        model: Any,
        first: pa.Table,
        protocol: Protocol,
        id_column: str,
        target: str | None,
        *,
        engine: str,
        claims: Extent,
        byte_budget: int,
        wanted: Requests,
        in_folder: bool = True,
    ) -> TableAuditor:
        """Return the function, made ready on the first rows; in_folder: whether a whole folder will be written."""
        if not first.num_rows:
            raise DataError("there are no rows to audit; at least one was expected")
        part = cut_ids(first, id_column, target)
        auditor = PartAuditor.prepare(
            model,
            part.frame,
            protocol,
            ids=part.ids,
            engine=engine,
            claims=claims,
            byte_budget=byte_budget,
            wanted=wanted,
        )
        partial_ones = [name for name, own in auditor.declared.items() if own.is_partial and not in_folder]
        for name in partial_ones:
            if name not in auditor.by_default:
                raise DataError(
                    f"{name}={wanted[name]} chooses among all rows, and only an audit with out sees them; give out, or "
                    f"{name}=True"
                )
        kept = {name: own for name, own in auditor.declared.items() if name not in partial_ones}
        return cls(replace(auditor, declared=kept), id_column, target)

    def __call__(self, rows: pa.Table) -> pa.Table:
        if not rows.num_rows:
            return self.schema(rows.schema.field(self.id_column).type).empty_table()
        part = cut_ids(rows, self.id_column, self.target)
        certified = self.auditor.certify(self.auditor.trace_part(part.frame, part.ids))
        table = certified.table
        for name, block in certified.blocks.items():
            table = self.auditor.blocks[name].join(table, block)
        return table

    def schema(self, id_type: pa.DataType) -> pa.Schema:
        """Return the columns of the certificates of rows with ids of this type."""
        kept = pa.int64() if pa.types.is_integer(id_type) else pa.string()
        auditor = self.auditor
        columns = [column for own in auditor.blocks.values() for column in own.joined_columns]
        return schema_of(auditor.protocol, auditor.model.classes, kept, columns, extent=auditor.extent)


def check_table(names: Sequence[str], id_column: str, part_rows: int) -> None:
    """Refuse a cluster's table without the ids, and parts without rows."""
    if part_rows < 1:
        raise DataError(f"part_rows must be at least 1, got {part_rows}")
    if id_column not in names:
        raise DataError(f"the id column {id_column!r} is not among the columns {', '.join(names)}")


def cut_ids(rows: pa.Table, id_column: str, target: str | None, start: int = 0) -> RawPart:
    """Return rows without their ids and labels."""
    ids = rows.column(id_column)
    if ids.null_count:
        raise DataError(f"the id column {id_column!r} has rows without an id; every row needs a distinct one")
    fields = rows.drop_columns([name for name in (id_column, target) if name in rows.column_names])
    return RawPart(fields.replace_schema_metadata(None).to_pandas(), ids.to_pylist(), start)


def cut_sorted(rows: pa.Table, id_column: str, target: str | None, start: int) -> RawPart:
    """Return rows that are sorted by id without their ids and labels; refuse an id that appears twice."""
    part = cut_ids(rows, id_column, target, start)
    ids = rows.column(id_column).combine_chunks()
    falling = pc.greater_equal(ids[:-1], ids[1:])
    if pc.any(falling).as_py():
        place = falling.to_pylist().index(True)
        raise DataError(f"ids must be distinct, {part.ids[place]!r} appears twice")
    return part


def check_answers(variable: str, address: str) -> None:
    """Refuse an address of the form [scheme://]host:port that accepts no connection; libraries would wait forever.

    Addresses of other forms are not judged.
    """
    found = re.fullmatch(r"(?:\w+://)?(\[[^]]+\]|[^:/,\[\]]+):(\d{1,5})", address.strip())
    if found is None:
        return
    try:
        with socket.create_connection((found[1].strip("[]"), int(found[2])), timeout=CONNECT_SECONDS):
            return
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise ClusterError(
            f"{variable} names {address}, where nothing answers ({reason}); start the cluster there, "
            f"or unset {variable}"
        ) from error
