"""Audits on Spark: `SparkWorkers` for files, `audit_dataframe` for a Spark DataFrame.

The model is broadcast, and unpacked once in each of Spark's Python processes. Every part is a task, which Spark tries
again if its process or its machine is lost.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import re
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from pathlib import Path
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
from fragility.errors import Advice, ClusterError, DataError
from fragility.libraries import say_lacking
from fragility.protocol import Protocol

ATTEMPTS = 4  # at a task whose process dies, where Spark is started here; elsewhere Spark's own setting holds
JAVA = 17
PLACE, NUMBER = "_fragility_place", "_fragility_number"  # of a row's part, and of the row among all


@dataclass(frozen=True)
class SparkWorkers:
    """Makes the parts of :func:`fragility.audit_files` on Spark, one task per part.

    It uses the session given, else the active one, else the cluster that ``MASTER`` names, else it starts Spark on
    this machine; what it starts, it stops in the end.

    Parameters
    ----------
    count : int, optional
        How many parts are made at a time; by default as many as Spark has cores.
    session : pyspark.sql.SparkSession, optional
        The session to use.

    Examples
    --------
    >>> import fragility as fg
    >>> from fragility.auditing.spark import SparkWorkers
    >>> fg.audit_files(model, "rows/", protocol, "audit/", workers=SparkWorkers())  # doctest: +SKIP
    """

    count: int | None = None
    session: Any = None

    def made(self, maker: PartMaker, tasks: Iterable[Task]) -> Iterator[MadePart | Failure]:
        """Return the parts as they are finished."""
        with _session(self.session, self.count) as session:
            context = session.sparkContext
            shipped = _Shipped.on(context, maker)

            def run(task: Task) -> MadePart | Failure:
                """Make one part in a job of its own; Spark runs many such jobs at a time."""
                with _one_sentence():
                    (made,) = context.parallelize([pickle.dumps(task)], 1).map(partial(_make, shipped)).collect()
                result: MadePart | Failure = pickle.loads(made)
                return result

            count = self.count or context.defaultParallelism
            running: set[Future[MadePart | Failure]] = set()
            pool = ThreadPoolExecutor(count)
            try:
                for task in tasks:
                    running.add(pool.submit(run, task))
                    if len(running) > count:
                        done, running = wait(running, return_when=FIRST_COMPLETED)
                        yield from (future.result() for future in done)
                while running:
                    done, running = wait(running, return_when=FIRST_COMPLETED)
                    yield from (future.result() for future in done)
            finally:
                pool.shutdown(cancel_futures=True)


def _make(shipped: _Shipped, packed: bytes) -> bytes:
    maker = shipped.value()  # first: it limits the threads
    return pickle.dumps(maker.make(pickle.loads(packed)))


# --- a DataFrame --------------------------------------------------------------------------------------------


def audit_dataframe(
    df: Any,
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
    progress: bool | Progress | None = None,
) -> Any:
    """Audit the rows of a Spark DataFrame.

    Parameters
    ----------
    df : pyspark.sql.DataFrame
        The rows.
    model : estimator, pipeline, booster or Model
        The fitted classifier; it is sent to each worker once.
    protocol : Protocol
        What is removed and degraded, and how the result is read.
    id_column : str
        The column with a distinct id for each row, whole numbers or text. A DataFrame has no order, so there is no row
        number to fall back on.
    target : str, optional
        A column of labels, kept away from the model; it need not be there.
    out : path, optional
        The folder to write, on the driver's machine. The rows are sorted by id first, and the folder is the one that
        :func:`fragility.audit_files` writes for rows in that order, byte by byte.
    claims, engine, byte_budget
        As in :func:`fragility.audit_files`.
    part_rows : int, default=50000
        Rows that a worker holds at a time.
    progress : bool or callable, optional
        As in :func:`fragility.audit_files`.

    Returns
    -------
    StoredAudit or pyspark.sql.DataFrame
        With ``out`` the finished audit. Without it, a DataFrame with the columns of the certificate table, computed
        when it is consumed, in any order; whether ids are distinct is then not looked at.

    Raises
    ------
    FragilityError
        The rows, the model and the protocol do not belong together, or Spark has lost its workers.
    """
    check_table(df.columns, id_column, part_rows)
    prepare = partial(
        TableAuditor.prepare, model, protocol=protocol, id_column=id_column, target=target, engine=engine,
        claims=claims, byte_budget=byte_budget,
    )  # fmt: skip
    with warnings.catch_warnings():
        # Of a new pandas, which is not used here: rows reach the workers as Arrow.
        warnings.filterwarnings("ignore", message="PySpark does not yet fully support pandas", category=FutureWarning)
        if out is None:
            from pyspark.sql.pandas.types import from_arrow_schema

            first = df.limit(FIRST_ROWS).toArrow()
            function = prepare(first, in_folder=False)
            shipped = _Shipped.on(df.sparkSession.sparkContext, function)
            schema = from_arrow_schema(function.schema(first.schema.field(id_column).type))
            return df.mapInArrow(partial(_certify, shipped, part_rows), schema)
        with _one_sentence(), _kept(df.orderBy(id_column)) as ordered:
            function = prepare(ordered.limit(FIRST_ROWS).toArrow())
            sizes = [0] * ordered.rdd.getNumPartitions()
            for row in ordered.mapInArrow(_count, "partition long, rows long").collect():
                sizes[row["partition"]] += row["rows"]
            with _kept(_made_parts(ordered, function, sizes, part_rows)) as made:
                made.count()  # all parts at once, on all cores; the iterator below would make one after the other
                parts = (pickle.loads(row["made"]) for row in made.toLocalIterator())
                return write_table_parts(out, function.auditor, parts, sum(sizes), progress)


def _certify(shipped: _Shipped, rows: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    function = shipped.value()
    for batch in batches:
        for start in range(0, batch.num_rows, rows):
            yield from function(pa.Table.from_batches([batch.slice(start, rows)])).to_batches()


def _made_parts(ordered: Any, function: TableAuditor, sizes: list[int], part_rows: int) -> Any:
    """Return a DataFrame with one row per part, of rows that are sorted and whose partitions have these sizes."""
    from pyspark.sql.types import LongType, StructType

    starts = [end - size for end, size in zip(accumulate(sizes), sizes, strict=True)]
    schema = StructType([*ordered.schema.fields]).add(PLACE, LongType()).add(NUMBER, LongType())
    numbered = ordered.mapInArrow(partial(_number, starts, part_rows), schema)
    shipped = _Shipped.on(ordered.sparkSession.sparkContext, function)
    cut = numbered.repartition(max(-(-sum(sizes) // part_rows), 1), PLACE).groupBy(PLACE)
    # Spark looks at the types of a named function's parameters, and stumbles over those of a partial one.
    return cut.applyInArrow(lambda rows: _make_of_table(shipped, rows), "made binary")


def _number(starts: list[int], part_rows: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    number = starts[_own_partition()]
    for batch in batches:
        numbers = range(number, number + batch.num_rows)
        places = pa.array([n // part_rows for n in numbers], pa.int64())
        number += batch.num_rows
        yield pa.RecordBatch.from_arrays(
            [*batch.columns, places, pa.array(numbers, pa.int64())], [*batch.schema.names, PLACE, NUMBER]
        )


def _make_of_table(shipped: _Shipped, rows: pa.Table) -> pa.Table:
    function = shipped.value()
    rows = rows.sort_by(NUMBER)
    place, start = rows.column(PLACE)[0].as_py(), rows.column(NUMBER)[0].as_py()
    rows = rows.drop_columns([PLACE, NUMBER])
    try:
        part = cut_sorted(rows, function.id_column, function.target, start)
        made = PartMaker(function.auditor).make(Task(place, part))
    except DataError as error:
        made = Failure(error)
    return pa.table({"made": pa.array([pickle.dumps(made)], pa.binary())})


def _count(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    own = _own_partition()
    for batch in batches:
        yield pa.RecordBatch.from_pydict({"partition": [own], "rows": [batch.num_rows]})


def _own_partition() -> int:
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None  # it is there in a worker
    return int(context.partitionId())


@contextmanager
def _kept(df: Any) -> Iterator[Any]:
    """Keep what is computed on the workers' disks, so that it is computed once."""
    from pyspark import StorageLevel

    kept = df.persist(StorageLevel.DISK_ONLY)
    try:
        yield kept
    finally:
        kept.unpersist()


# --- the model on the workers -------------------------------------------------------------------------------

_unpacked: dict[str, Any] = {}  # in a worker's process: what it was sent last


@dataclass(frozen=True, eq=False)
class _Shipped:
    """A value that each worker process gets once; it may hold closures that refer to the caller's notebook."""

    broadcast: Any
    digest: str

    @classmethod
    def on(cls, context: Any, value: Any) -> _Shipped:
        from pyspark import cloudpickle

        packed = cloudpickle.dumps(value)  # type: ignore[no-untyped-call]
        return cls(context.broadcast(packed), hashlib.sha256(packed).hexdigest())

    def value(self) -> Any:
        """Return the value, in a process that computes in one thread from then on."""
        if self.digest not in _unpacked:
            limit_threads()
            _unpacked.clear()
            _unpacked[self.digest] = pickle.loads(self.broadcast.value)
        return _unpacked[self.digest]


# --- Spark itself -------------------------------------------------------------------------------------------


@contextmanager
def _session(given: Any, count: int | None) -> Iterator[Any]:
    """Yield a session; one that was started here ends here."""
    builder = _library()
    active = given or builder.getActiveSession()
    if active is not None:
        yield active
        return
    session = _start(builder, count)
    try:
        yield session
    finally:
        session.stop()


def check_ready() -> None:
    """Refuse to begin without Spark, or without the Java it needs."""
    if lacking := say_lacking("an audit on Spark", "pyspark"):
        raise ClusterError(lacking)
    check_java()


def _library() -> Any:
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise ClusterError(say_lacking("an audit on Spark", "pyspark") or f"cannot load pyspark: {error}") from error
    return SparkSession


def _start(library: Any, count: int | None) -> Any:
    check_java()
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    master = os.environ.get("MASTER") or f"local[{count or '*'},{ATTEMPTS}]"
    if master.startswith("spark://"):
        check_answers("MASTER", master)
    builder = library.builder.appName("fragility").master(master)
    for name, value in {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}.items():
        builder = builder.config(name, value)
    with _stderr_to_file() as said:
        try:
            return builder.getOrCreate()
        except Exception as error:  # py4j's and Spark's own, of many classes
            raise ClusterError(f"Spark could not be started on {master}: {_complaint(said) or error}") from error


def check_java() -> None:
    """Refuse to start Spark without the Java it needs."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java")
    wanted = f"Spark needs Java {JAVA} or later"
    if java is None or not Path(java).is_file():
        where = f"JAVA_HOME is {home}, where there is none" if home else "there is no java on the PATH"
        raise ClusterError(f"{wanted}, and {where}; install it, or set JAVA_HOME")
    told = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    found = re.search(r'version "(?:1\.)?(\d+)', told)
    if found is None or int(found[1]) < JAVA:
        raise ClusterError(f"{wanted}, and {java} is {found[1] if found else 'of no known version'}; set JAVA_HOME")


@contextmanager
def _stderr_to_file() -> Iterator[Path]:
    """Have processes that start meanwhile, such as Java's, write their messages to a file and not to the terminal."""
    sys.stderr.flush()
    before = os.dup(2)
    said = Path(tempfile.gettempdir()) / f"fragility-spark-{os.getpid()}.log"
    try:
        with said.open("wb") as file:
            os.dup2(file.fileno(), 2)
        yield said
    finally:
        os.dup2(before, 2)
        os.close(before)
        said.unlink(missing_ok=True)  # whoever writes to it still can


def _complaint(path: Path) -> str:
    """Return the last line of a log that names an error; the last of all where none does."""
    lines = path.read_text(errors="replace").strip().splitlines()
    named = [line for line in lines if re.search(r"ERROR|Exception: ", line)]
    return re.sub(r"^.* (ERROR|WARN) ", "", (named or lines or [""])[-1])


@contextmanager
def _one_sentence() -> Iterator[None]:
    """Turn an error of Spark into one sentence."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JError) as error:
        lines = [line.strip() for line in str(error).strip().splitlines() if line.strip()]
        cause = next((line for line in lines if re.match(r"[\w.]+(Error|Exception): ", line)), lines[0])
        raise ClusterError(
            f"a task of Spark failed for good: {cause}; if a worker ran out of memory, audit fewer rows at a "
            "time with ",
            Advice("part_rows=", "--part-rows"),
        ) from error
