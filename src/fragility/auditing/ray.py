"""Audits on Ray: `RayWorkers` for files, `audit_dataset` for a Ray Dataset.

Every worker is an actor with one core. It takes the model from the object store once, makes one part at a time, and is
started again, and its part with it, if it dies.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any

import pyarrow as pa

from fragility.arrays import DEFAULT_BYTE_BUDGET
from fragility.auditing.files import write_table_parts
from fragility.auditing.parts import (
    FIRST_ROWS,
    Failure,
    MadePart,
    PartMaker,
    TableAuditor,
    Task,
    check_answers,
    check_table,
    cut_sorted,
    limit_threads,
)
from fragility.certificates.claims import Extent
from fragility.certificates.parts import PART_ROWS
from fragility.engines.trace import Progress
from fragility.errors import Advice, ClusterError
from fragility.libraries import say_lacking
from fragility.protocol import Protocol
from fragility.tables import RawPart, RowSource

ATTEMPTS = 4  # at a part whose worker dies
QUEUED = 2  # parts a worker has been given, so that it need not wait for the next


@dataclass(frozen=True)
class RayWorkers:
    """Makes the parts of :func:`fragility.audit_files` on Ray, with one worker per core.

    It uses the Ray that the process is connected to, else the cluster that ``RAY_ADDRESS`` names, else it starts Ray
    on this machine and stops it in the end.

    Parameters
    ----------
    count : int, optional
        How many workers; by default one for each core of the cluster.

    Examples
    --------
    >>> import fragility as fg
    >>> from fragility.auditing.ray import RayWorkers
    >>> fg.audit_files(model, "rows/", protocol, "audit/", workers=RayWorkers())  # doctest: +SKIP
    """

    count: int | None = None

    def made(self, maker: PartMaker, tasks: Iterable[Task]) -> Iterator[MadePart | Failure]:
        """Return the parts as they are finished."""
        with _connected(self.count) as ray:
            yield from _make_parts(ray, self.count or _cores(ray), maker, tasks)


class _Worker:
    """What runs in a worker's process."""

    def __init__(self) -> None:
        self._maker: PartMaker | None = None

    def make(self, shipped: list[Any], task: Task) -> MadePart | Failure:
        """Make a part. What was shipped comes as a reference in a list, so that threads are limited before it."""
        import ray

        if self._maker is None:
            limit_threads()
            self._maker = ray.get(shipped[0])
        return self._maker.make(task)


_unpacked: dict[str, Any] = {}  # in a worker's process: what it was sent last


def _certify(rows: pa.Table, shipped: list[Any]) -> pa.Table:
    """The function of a Dataset's batches. An actor would keep its core from the tasks that bring the rows."""
    import ray

    name = shipped[0].hex()
    if name not in _unpacked:
        limit_threads()
        _unpacked.clear()
        _unpacked[name] = ray.get(shipped[0])
    certificates: pa.Table = _unpacked[name](rows)
    return certificates


def _make_parts(ray: Any, count: int, maker: PartMaker, tasks: Iterable[Task]) -> Iterator[MadePart | Failure]:
    """Make parts in so many workers; yield them as they are finished."""
    shipped = [ray.put(maker)]
    actor = ray.remote(num_cpus=1, max_restarts=-1, max_task_retries=ATTEMPTS - 1)(_Worker)
    pool = [actor.remote() for _ in range(count)]
    idle, running = pool * QUEUED, dict[Any, Any]()

    def next_finished() -> MadePart | Failure:
        (reference, *_), _ = ray.wait(list(running), num_returns=1, fetch_local=False)
        idle.append(running.pop(reference))
        try:
            result: MadePart | Failure = ray.get(reference)
        except ray.exceptions.RayTaskError as error:
            line = (str(error.cause).strip().splitlines() or [""])[0]
            raise ClusterError(f"a worker of Ray failed: {type(error.cause).__name__}: {line}") from error
        except ray.exceptions.RayError as error:
            raise ClusterError(
                f"a worker of Ray died {ATTEMPTS} times over the same rows ({type(error).__name__}); if it ran out of "
                "memory, audit fewer rows at a time with ",
                Advice("part_rows=", "--part-rows"),
            ) from error
        return result

    try:
        for task in tasks:
            if not idle:
                yield next_finished()
            worker = idle.pop(0)
            running[worker.make.remote(shipped, task)] = worker
        while running:
            yield next_finished()
    finally:
        for worker in pool:
            ray.kill(worker)


# --- a Dataset ----------------------------------------------------------------------------------------------


def audit_dataset(
    ds: Any,
    model: Any,
    protocol: Protocol,
    *,
    id_column: str,
    target: str | None = None,
    out: str | os.PathLike[str] | None = None,
    claims: Extent = "full",
    engine: str = "auto",
    part_rows: int = PART_ROWS,
    byte_budget: int = DEFAULT_BYTE_BUDGET,
    workers: int | None = None,
    progress: bool | Progress | None = None,
) -> Any:
    """Audit the rows of a Ray Dataset.

    Parameters
    ----------
    ds : ray.data.Dataset
        The rows.
    model : estimator, pipeline, booster or Model
        The fitted classifier; it is sent to each worker once.
    protocol : Protocol
        What is removed and degraded, and how the result is read.
    id_column : str
        The column with a distinct id for each row. A Dataset has no order, so there is no row number to fall back on.
    target : str, optional
        A column of labels, kept away from the model; it need not be there.
    out : path, optional
        The folder to write, on this machine. The rows are sorted by id first, and the folder is the one that
        :func:`fragility.audit_files` writes for rows in that order, byte by byte.
    claims, engine, byte_budget
        As in :func:`fragility.audit_files`.
    part_rows : int, default=50000
        Rows that a worker holds at a time.
    workers : int, optional
        How many workers of one core each; by default one for each core of the cluster.
    progress : bool or callable, optional
        As in :func:`fragility.audit_files`.

    Returns
    -------
    StoredAudit or ray.data.Dataset
        With ``out`` the finished audit. Without it, a Dataset with the columns of the certificate table, computed when
        it is consumed, in any order; whether ids are distinct is then not looked at.

    Raises
    ------
    FragilityError
        Ray is not installed, or the rows, the model and the protocol do not belong together.
    """
    prepare = partial(
        TableAuditor.prepare, model, protocol=protocol, id_column=id_column, target=target, engine=engine,
        claims=claims, byte_budget=byte_budget,
    )  # fmt: skip
    with _connected(workers) as ray, _quiet_data():
        check_table(ds.schema().names, id_column, part_rows)
        if out is None:
            tables = list(ds.limit(FIRST_ROWS).iter_batches(batch_size=FIRST_ROWS, batch_format="pyarrow"))
            function = prepare(tables[0] if tables else pa.table({}), in_folder=False)
            return ds.map_batches(
                _certify,
                fn_args=([ray.put(function)],),
                batch_size=part_rows,
                batch_format="pyarrow",
                num_cpus=1,
                concurrency=workers,
            )
        blocks = ds.sort(id_column).to_arrow_refs()
        first: list[pa.Table] = []
        for block in blocks:
            first.append(ray.get(block))
            if sum(table.num_rows for table in first) >= FIRST_ROWS:
                break
        filled = [table for table in first if table.num_rows] or first[:1]
        auditor = prepare(pa.concat_tables(filled).slice(0, FIRST_ROWS)).auditor
        sizes = ray.get([ray.remote(lambda block: int(block.num_rows)).remote(block) for block in blocks])
        tasks = _tasks(blocks, sizes, part_rows, id_column, target)
        parts = _make_parts(ray, workers or _cores(ray), PartMaker(auditor), tasks)
        return write_table_parts(out, auditor, parts, sum(sizes), progress)


@dataclass(frozen=True, eq=False)
class _Blocks:
    """A part of a sorted Dataset: slices of the blocks that hold it, which the worker fetches itself."""

    slices: tuple[tuple[Any, int, int], ...]  # reference, first row, rows
    start: int
    id_column: str
    target: str | None

    def read(self, source: RowSource | None) -> RawPart:
        import ray

        rows = pa.concat_tables([ray.get(block).slice(first, size) for block, first, size in self.slices])
        return cut_sorted(rows, self.id_column, self.target, self.start)


def _tasks(blocks: list[Any], sizes: list[int], part_rows: int, id_column: str, target: str | None) -> Iterator[Task]:
    ends = list(accumulate(sizes))
    for place, start in enumerate(range(0, ends[-1], part_rows)):
        stop = min(start + part_rows, ends[-1])
        slices = [
            (block, max(start - (end - size), 0), min(stop, end) - max(start, end - size))
            for block, end, size in zip(blocks, ends, sizes, strict=True)
            if end > start and end - size < stop
        ]
        yield Task(place, _Blocks(tuple(slices), start, id_column, target))


# --- Ray itself ---------------------------------------------------------------------------------------------


@contextmanager
def _connected(count: int | None) -> Iterator[Any]:
    """Yield the library, connected to a cluster; a cluster that was started here is stopped here."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # Ray's new default, which it warns of otherwise
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise ClusterError(say_lacking("an audit on Ray", "ray") or f"cannot load ray: {error}") from error
    if ray.is_initialized():
        yield ray
        return
    address = os.environ.get("RAY_ADDRESS")
    if address:
        check_answers("RAY_ADDRESS", address)
    local: dict[str, Any] = {} if address else {"num_cpus": count, "include_dashboard": False}
    try:
        ray.init(log_to_driver=False, logging_level=logging.ERROR, **local)
    except (ConnectionError, OSError, RuntimeError, ValueError) as error:
        raise ClusterError(f"Ray could not be started: {str(error).strip().splitlines()[0]}") from error
    try:
        yield ray
    finally:
        ray.shutdown()


def check_installed() -> None:
    """Refuse to begin without Ray."""
    if lacking := say_lacking("an audit on Ray", "ray"):
        raise ClusterError(lacking)


def _cores(ray: Any) -> int:
    return max(int(ray.cluster_resources().get("CPU", 1)), 1)


@contextmanager
def _quiet_data() -> Iterator[None]:
    """Keep Ray Data's own bars and reports off the terminal."""
    from ray.data import DataContext

    context, logger = DataContext.get_current(), logging.getLogger("ray.data")
    before = context.enable_progress_bars, logger.level
    context.enable_progress_bars = False
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        context.enable_progress_bars = before[0]
        logger.setLevel(before[1])
