"""Parts of an audit: what whoever makes one is given, what comes back, and the rows that are kept for the end.

Workers read and compute, and write nothing. They send back a part as bytes, which the process that asked for it writes;
it takes every part once. A worker that dies or a task that is done twice therefore leaves nothing behind, and the order
of the parts is that of their places, whichever is finished first.
"""

from __future__ import annotations

import os
import re
import socket
import typing
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from threadpoolctl import threadpool_limits

from fragility.auditing.auditor import Auditor, TracedRows, input_row_digests
from fragility.certificates.claims import Extent, schema_of
from fragility.certificates.dependence import COMPARED_CLAIMS, rows_to_compare
from fragility.certificates.lattice import RANKED, most_exposed
from fragility.certificates.parts import encode_part
from fragility.engines.trace import HandedOver
from fragility.errors import ClusterError, DataError, FragilityError
from fragility.evidence.rows import read_rows
from fragility.ids import id_keys
from fragility.merkle import packed_root
from fragility.protocol import Protocol
from fragility.tables import RawPart, RowSource

FIRST_ROWS = 1024  # on which model and engine are made ready, whatever the size of the parts
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
KEPT_CLAIMS = tuple(dict.fromkeys((*COMPARED_CLAIMS, *RANKED)))
CONNECT_SECONDS = 10


# --- rows kept for the end ----------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class KeptRows:
    """Some rows: their raw fields, their ids, and the claims by which rows are chosen."""

    frame: pd.DataFrame
    ids: list[Any]
    claims: pa.Table  # the columns KEPT_CLAIMS

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, positions: list[int]) -> KeptRows:
        """Return the rows at these positions."""
        claims = self.claims.take(pa.array(positions, type=pa.int64()))
        return KeptRows(self.frame.iloc[positions], [self.ids[i] for i in positions], claims)


@dataclass(frozen=True)
class Choice:
    """Which rows are examined more closely at the end of an audit."""

    most_exposed: int = 0  # so many of the confident rows with the largest exposure
    compared: bool = False  # the confident rows that are compared under other baselines

    @classmethod
    def of(cls, auditor: Auditor) -> Choice:
        """Return the choice of an audit."""
        declared = auditor.lattice
        return cls((declared.most_exposed or 0) if declared is not None else 0, auditor.other_baselines)

    def __bool__(self) -> bool:
        return self.most_exposed > 0 or self.compared

    def exposed(self, claims: pa.Table) -> list[int]:
        """Return the positions of the most exposed rows, the most exposed first."""
        return most_exposed(claims, self.most_exposed).tolist() if self.most_exposed else []

    def to_compare(self, claims: pa.Table) -> list[int]:
        """Return the positions of the rows to compare, in the order of the comparison."""
        ids, confidence = claims.column("id").to_pylist(), claims.column("confidence").to_numpy()
        return rows_to_compare(ids, confidence).tolist() if self.compared else []

    def both(self, claims: pa.Table) -> list[int]:
        """Return the positions of all chosen rows, in their order."""
        return sorted({*self.exposed(claims), *self.to_compare(claims)})


@dataclass
class Keeper:
    """The rows that are chosen among those of all parts so far.

    Which rows are chosen is known only when all were audited. Every part hands over those of its rows that may be among
    them, and rows that can no longer be chosen are dropped as parts come in. So no row is read twice, wherever it came
    from, and the memory needed does not grow with the number of rows.
    """

    choice: Choice
    parts: dict[int, KeptRows] = field(default_factory=dict)  # by the place of the part
    none: KeptRows | None = None  # no rows, with the columns that all have

    def add(self, place: int, rows: KeptRows | None) -> None:
        """Take the candidates of another part, and drop those that are no longer chosen."""
        if rows is None:
            return
        self.none = self.none or rows.take([])
        self.parts[place] = rows
        wanted = self.choice.both(pa.concat_tables([part.claims for part in self.parts.values()]))
        self.parts = dict(_taken(self.parts, wanted))

    def chosen(self, choose: Callable[[pa.Table], list[int]]) -> list[KeptRows]:
        """Return the rows that a function chooses by their claims, at least one piece, each in the order it gives.

        Rows of all parts whose fields have the same types are one piece: joining others would change their types.
        """
        alike: dict[tuple[Any, ...], list[KeptRows]] = {}
        for place in sorted(self.parts):
            part = self.parts[place]
            alike.setdefault((*part.frame.columns, *part.frame.dtypes), []).append(part)
        pieces = {
            i: KeptRows(
                pd.concat([part.frame for part in parts], ignore_index=True),
                [own_id for part in parts for own_id in part.ids],
                pa.concat_tables([part.claims for part in parts]),
            )
            for i, parts in enumerate(alike.values())
        }
        wanted = choose(pa.concat_tables([piece.claims for piece in pieces.values()])) if pieces else []
        assert self.none is not None  # an audit has at least one part
        return [rows for _, rows in _taken(pieces, wanted)] or [self.none]


def _taken(parts: dict[int, KeptRows], wanted: Sequence[int]) -> Iterator[tuple[int, KeptRows]]:
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
    digests_each: int  # per row: 2, or 3 with the lattice block
    digests_digest: str  # of the file of its digests


class RowsToRead(typing.Protocol):
    """Rows of a part that are read by whoever makes it."""

    def read(self, source: RowSource | None) -> RawPart: ...


@dataclass(frozen=True)
class Span:
    """Rows of Parquet files."""

    start: int
    rows: int

    def read(self, source: RowSource | None) -> RawPart:
        assert source is not None
        return source.span(self.start, self.rows)


@dataclass(frozen=True, eq=False)
class Task:
    """A part to make; or rows to compare with a part that an earlier run has finished."""

    place: int
    rows: RawPart | RowsToRead
    known: PartRecord | None = None
    known_claims: pa.Table | None = None  # the columns KEPT_CLAIMS of the finished part


@dataclass(frozen=True, eq=False)
class MadePart:
    """A part as bytes to be written, wherever it was made."""

    place: int
    start: int  # its first row in the input
    rows: int
    known: PartRecord | None  # of an earlier run; there is nothing to write then
    data: bytes  # of its file
    digests: bytes  # 32 bytes per row: of its claims, then of its input, then of its lattice block if there is one
    evaluations: int
    handed_over: HandedOver
    input_digest: str  # over all rows of the input
    kept: KeptRows | None  # rows that may be chosen at the end of the audit
    id_keys: bytes  # 16 bytes per row; empty if the ids are the rows' numbers


@dataclass(frozen=True, eq=False)
class Failure:
    """An error that the user has caused: sent back as a value, so that the part is not tried again."""

    error: FragilityError


@dataclass(frozen=True, eq=False)
class PartMaker:
    """All that a worker needs, sent to it once: the auditor, and where the rows are."""

    auditor: Auditor
    source: RowSource | None = None

    def make(self, task: Task) -> MadePart | Failure:
        """Return a part, or why there is none."""
        try:
            if not isinstance(task.rows, RawPart):
                task = Task(task.place, task.rows.read(self.source), task.known, task.known_claims)
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
        """Hash and encode a traced part."""
        part, auditor = task.rows, self.auditor
        assert isinstance(part, RawPart)
        data, evaluations, handed_over, claims = b"", 0, HandedOver(), task.known_claims
        if traced is None:
            digests = inputs = input_digests_of(auditor, part)
        else:
            certified = auditor.certify(traced)
            data, evaluations, handed_over = encode_part(certified.table), certified.evaluations, certified.handed_over
            inputs, claims = b"".join(input_row_digests(traced.rows)), certified.table
            digests = certified.digests + inputs + certified.lattice_digests
        kept, choice = None, Choice.of(auditor)
        if choice and claims is not None:
            candidates = KeptRows(part.frame, part.ids, claims.select(list(KEPT_CLAIMS)))
            kept = candidates.take(choice.both(candidates.claims))
        keys = b"" if part.numbered else id_keys(part.ids).tobytes()
        return MadePart(
            place=task.place,
            start=part.start,
            rows=len(part),
            known=task.known,
            data=data,
            digests=digests,
            evaluations=evaluations,
            handed_over=handed_over,
            input_digest=packed_digest(inputs),
            kept=kept,
            id_keys=keys,
        )


class Workers(typing.Protocol):
    """Processes that make parts."""

    def made(self, maker: PartMaker, tasks: Iterable[Task]) -> Iterator[MadePart | Failure]:
        """Return the parts as they are finished, in any order; take few more tasks than there are workers."""
        ...


@contextmanager
def name_rows_in_errors(source: RowSource | None, part: RawPart, protocol: Protocol) -> Iterator[None]:
    """Say in which rows of the input an error lies, and in which line of a CSV file a number was expected."""
    try:
        yield
    except FragilityError as error:
        numbers = [own.name for own in protocol.fields if own.type in ("integer", "number")]
        for name in numbers:
            if source is not None and name in part.frame.columns:
                source.refuse_text(part, name)
        if part.start == 0:
            raise
        raise type(error)(f"rows {part.start} to {part.start + len(part) - 1} of the input: ", error) from error


def input_digests_of(auditor: Auditor, part: RawPart) -> bytes:
    """Return the digests of a part's ids and raw fields, 32 bytes per row, without auditing them."""
    model = auditor.model
    expected = model.columns or tuple(f.name for f in auditor.protocol.fields)
    return b"".join(input_row_digests(read_rows(part.frame, expected, model.n_columns, part.ids)))


def packed_digest(digests: bytes | bytearray) -> str:
    """Return the text of the root digest over digests of 32 bytes each; a bytearray is sorted in place."""
    return f"sha256:{packed_root(digests if isinstance(digests, bytearray) else bytearray(digests)).hex()}"


def limit_threads(count: int = 1) -> None:
    """Let this process compute in so many threads: there is a worker for every core already.

    It must come before the model, which may bring libraries that look at these settings when they are loaded.
    """
    os.environ.update(dict.fromkeys(THREADS, str(count)))
    threadpool_limits(count)


# --- tables that a cluster holds ----------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class TableAuditor:
    """Rows in, their certificates out: a function of a cluster's tables, whatever rows they hold."""

    auditor: Auditor
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
        in_folder: bool = True,
    ) -> TableAuditor:
        """Return the function, made ready on the first rows.

        in_folder: whether a folder will be written, with what ``audit_files`` finds when all rows were audited.
        """
        if not first.num_rows:
            raise DataError("there are no rows to audit; at least one was expected")
        part = cut_ids(first, id_column, target)
        auditor = Auditor.prepare(
            model,
            part.frame,
            protocol,
            ids=part.ids,
            engine=engine,
            claims=claims,
            byte_budget=byte_budget,
            lattice=None if in_folder else False,
            other_baselines=in_folder,
        )
        return cls(auditor, id_column, target)

    def __call__(self, rows: pa.Table) -> pa.Table:
        if not rows.num_rows:
            return self.schema(rows.schema.field(self.id_column).type).empty_table()
        part = cut_ids(rows, self.id_column, self.target)
        return self.auditor.certify(self.auditor.trace_part(part.frame, part.ids)).table

    def schema(self, id_type: pa.DataType) -> pa.Schema:
        """Return the columns of the certificates of rows with ids of this type."""
        kept = pa.int64() if pa.types.is_integer(id_type) else pa.string()
        return schema_of(self.auditor.protocol, self.auditor.model.classes, kept, extent=self.auditor.extent)


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
