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
from typing import Any

import pyarrow as pa

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
    receive_once,
)
from fragility.audits.parts import PART_ROWS
from fragility.base.arrays import DEFAULT_BYTE_BUDGET
from fragility.base.errors import Advice, ClusterError, first_line, name_error
from fragility.base.libraries import say_lacking
from fragility.blocks.choice import Wanted
from fragility.blocks.claims import Extent
from fragility.engines.trace import Progress
from fragility.protocol import Protocol
from fragility.tables.sources import RawPart

ATTEMPTS = 4  # at a part whose worker dies
QUEUED = 2  # parts a worker has been given, so that it need not wait for the next


@dataclass(frozen=True)
class RayWorkers:
    """Makes the parts of an audit on Ray, with one worker per core: ``audit_files(..., workers=RayWorkers())``.

    It uses the Ray that the process is connected to, else the cluster that ``RAY_ADDRESS`` names, else it starts Ray
    on this machine and stops it in the end.

    Parameters
    ----------
    count : int, optional
        How many workers; by default one for each core of the cluster.
    """

    count: int | None = None

    def make_parts(self, maker: PartMaker, tasks: Iterable[Task]) -> Iterator[MadePart | Failure]:
        """Return the parts as they are finished."""
        with _connected(self.count) as ray:
            yield from _make_parts(ray, self.count or _count_cores(ray), maker, tasks)


def _receive(shipped: list[Any]) -> Any:
    """Return what was shipped: a reference in a list, which Ray leaves alone until the threads are limited."""
    import ray

    return receive_once(shipped[0].hex(), lambda: ray.get(shipped[0]))


class _Worker:
    """What runs in a worker's process."""

    def make(self, shipped: list[Any], task: Task) -> MadePart | Failure:
        made: MadePart | Failure = _receive(shipped).make(task)
        return made


def _certify(rows: pa.Table, shipped: list[Any]) -> pa.Table:
    """Certify a Dataset's batch. An actor would keep its core from the tasks that bring the rows."""
    return _receive(shipped)(rows)


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
            reason = name_error(error.cause)
            raise ClusterError(f"a worker of Ray failed: {reason}") from error
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
    modes: Wanted = None,
    intervals: Wanted = None,
    workers: int | None = None,
    progress: bool | Progress | None = None,
) -> Any:
    """Audit the rows of a Ray Dataset.

    Parameters
    ----------
    ds : ray.data.Dataset
        The rows.
    model, protocol, target, claims, engine, byte_budget, progress
        As in :func:`fragility.audit_files`; the model is sent to each worker once.
    modes, intervals : bool, int or sequence of str, optional
        As in :func:`fragility.audit_files`; a number of confident rows needs ``out``.
    id_column : str
        The column with a distinct id for each row: a Dataset has no order to number rows by.
    out : path, optional
        The folder to write, on this machine. The rows are sorted by id first, and the folder is the one that
        :func:`fragility.audit_files` writes for rows in that order, byte by byte.
    part_rows : int, default=50000
        Rows that a worker holds at a time.
    workers : int, optional
        How many workers of one core each; by default one for each core of the cluster.

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
    with _connected(workers) as ray, _quiet_data():
        check_table(ds.schema().names, id_column, part_rows)
        if out is None:
            first = list(ds.limit(FIRST_ROWS).iter_batches(batch_size=FIRST_ROWS, batch_format="pyarrow"))
        else:
            references = ds.sort(id_column).to_arrow_refs()
            sizes = ray.get([ray.remote(lambda block: int(block.num_rows)).remote(block) for block in references])
            blocks = [(block, size) for block, size in zip(references, sizes, strict=True) if size]
            first = _fetch(_slice_blocks(blocks, 0, FIRST_ROWS))
        function = TableAuditor.prepare(
            model,
            pa.concat_tables(first) if first else pa.table({}),
            protocol,
            id_column,
            target,
            engine=engine,
            claims=claims,
            byte_budget=byte_budget,
            wanted={"modes": modes, "intervals": intervals},
            in_folder=out is not None,
        )
        if out is None:
            return ds.map_batches(
                _certify,
                fn_args=([ray.put(function)],),
                batch_size=part_rows,
                batch_format="pyarrow",
                num_cpus=1,
                concurrency=workers,
            )
        tasks = []
        for place, start in enumerate(range(0, sum(sizes), part_rows)):
            slices = _slice_blocks(blocks, start, start + part_rows)
            tasks.append(Task(place, partial(_read_blocks, slices, start, id_column, target)))
        parts = _make_parts(ray, workers or _count_cores(ray), PartMaker(function.auditor), tasks)
        return write_table_parts(out, function.auditor, parts, sum(sizes), progress)


def _slice_blocks(blocks: list[tuple[Any, int]], start: int, stop: int) -> list[tuple[Any, int, int]]:
    """Return the slices (reference, first row, rows) of blocks of known sizes that hold these rows of all."""
    found, before = [], 0
    for block, size in blocks:
        first, last = max(start - before, 0), min(stop - before, size)
        if first < last:
            found.append((block, first, last - first))
        before += size
    return found


def _fetch(slices: list[tuple[Any, int, int]]) -> list[pa.Table]:
    import ray

    return [ray.get(block).slice(first, rows) for block, first, rows in slices]


def _read_blocks(
    slices: list[tuple[Any, int, int]], start: int, id_column: str, target: str | None, _: object
) -> RawPart:
    """Return a part of a sorted Dataset; the worker fetches the blocks that hold it."""
    return cut_sorted(pa.concat_tables(_fetch(slices)), id_column, target, start)


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
        raise ClusterError(f"Ray could not be started: {first_line(error)}") from error
    try:
        yield ray
    finally:
        ray.shutdown()


def check_installed() -> None:
    """Refuse to begin without Ray."""
    if lacking := say_lacking("an audit on Ray", "ray"):
        raise ClusterError(lacking)


def _count_cores(ray: Any) -> int:
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
