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
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from pathlib import Path
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
from fragility.base.errors import Advice, ClusterError
from fragility.base.libraries import say_lacking
from fragility.blocks.choice import Wanted
from fragility.blocks.claims import Extent
from fragility.engines.trace import Progress
from fragility.protocol import Protocol

ATTEMPTS = 4  # at a task whose process dies, where Spark is started here; elsewhere Spark's own setting holds
JAVA = 17
PLACE, NUMBER = "_fragility_place", "_fragility_number"  # of a row's part, and of the row among all
PARTITION_BITS = 33  # Spark's increasing ids: the partition above these bits, the row's number in it below


@dataclass(frozen=True)
class SparkWorkers:
    """Makes the parts of an audit on Spark, one task per part: ``audit_files(..., workers=SparkWorkers())``.

    It uses the session given, else the active one, else the cluster that ``MASTER`` names, else it starts Spark on
    this machine; what it starts, it stops in the end.

    Parameters
    ----------
    count : int, optional
        How many parts are made at a time; by default as many as Spark has cores.
    session : pyspark.sql.SparkSession, optional
        The session to use.
    """

    count: int | None = None
    session: Any = None

    def make_parts(self, maker: PartMaker, tasks: Iterable[Task]) -> Iterator[MadePart | Failure]:
        """Return the parts as they are finished."""
        with _session(self.session, self.count) as session:
            context = session.sparkContext
            receive = _ship(context, maker)

            def run(task: Task) -> MadePart | Failure:
                """Make one part in a job of its own; Spark runs many such jobs at a time."""
                with _one_sentence():
                    (made,) = context.parallelize([pickle.dumps(task)], 1).map(partial(_make, receive)).collect()
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


def _make(receive: Callable[[], PartMaker], packed: bytes) -> bytes:
    maker = receive()  # first: it limits the threads
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
    modes: Wanted = None,
    intervals: Wanted = None,
    progress: bool | Progress | None = None,
) -> Any:
    """Audit the rows of a Spark DataFrame.

    Parameters
    ----------
    df : pyspark.sql.DataFrame
        The rows.
    model, protocol, target, claims, engine, byte_budget, progress
        As in :func:`fragility.audit_files`; the model is sent to each worker once.
    modes, intervals : bool, int or sequence of str, optional
        As in :func:`fragility.audit_files`; a number of confident rows needs ``out``.
    id_column : str
        The column with a distinct id for each row, whole numbers or text: a DataFrame has no order to number rows by.
    out : path, optional
        The folder to write, on the driver's machine. The rows are sorted by id first, and the folder is the one that
        :func:`fragility.audit_files` writes for rows in that order, byte by byte.
    part_rows : int, default=50000
        Rows that a worker holds at a time.

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
        claims=claims, byte_budget=byte_budget, wanted={"modes": modes, "intervals": intervals},
    )  # fmt: skip
    with warnings.catch_warnings():
        # Of a new pandas, which is not used here: rows reach the workers as Arrow.
        warnings.filterwarnings("ignore", message="PySpark does not yet fully support pandas", category=FutureWarning)
        if out is None:
            from pyspark.sql.pandas.types import from_arrow_schema

            first = df.limit(FIRST_ROWS).toArrow()
            function = prepare(first, in_folder=False)
            receive = _ship(df.sparkSession.sparkContext, function)
            schema = from_arrow_schema(function.schema(first.schema.field(id_column).type))
            return df.mapInArrow(partial(_certify, receive, part_rows), schema)
        from pyspark.sql.functions import monotonically_increasing_id, shiftright

        numbered = df.orderBy(id_column).withColumn(NUMBER, monotonically_increasing_id())
        with _one_sentence(), _kept(numbered) as ordered:
            function = prepare(ordered.drop(NUMBER).limit(FIRST_ROWS).toArrow())
            sizes = dict(ordered.groupBy(shiftright(NUMBER, PARTITION_BITS)).count().collect())
            with _kept(_cut_and_make(ordered, function, sizes, part_rows)) as made:
                made.count()  # all parts at once, on all cores; the iterator below would make one after the other
                parts = (pickle.loads(row["made"]) for row in made.toLocalIterator())
                return write_table_parts(out, function.auditor, parts, sum(sizes.values()), progress)


def _certify(
    receive: Callable[[], TableAuditor], rows: int, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    function = receive()
    for batch in batches:
        for start in range(0, batch.num_rows, rows):
            yield from function(pa.Table.from_batches([batch.slice(start, rows)])).to_batches()


def _cut_and_make(ordered: Any, function: TableAuditor, sizes: dict[int, int], part_rows: int) -> Any:
    """Return a DataFrame with one row per part, of sorted rows whose partitions have these sizes."""
    from pyspark.sql.functions import array, col, element_at, floor, lit, shiftright

    starts = accumulate((sizes.get(partition, 0) for partition in range(max(sizes))), initial=0)
    start = element_at(
        array(*(lit(first).cast("long") for first in starts)), (shiftright(NUMBER, PARTITION_BITS) + 1).cast("int")
    )
    numbered = ordered.withColumn(NUMBER, start + col(NUMBER).bitwiseAND(2**PARTITION_BITS - 1))
    placed = numbered.withColumn(PLACE, floor(col(NUMBER) / part_rows))
    receive = _ship(ordered.sparkSession.sparkContext, function)
    cut = placed.repartition(-(-sum(sizes.values()) // part_rows), PLACE).groupBy(PLACE)
    # Spark looks at the types of a named function's parameters, and stumbles over those of a partial one.
    return cut.applyInArrow(lambda rows: _make_of_table(receive, rows), "made binary")


def _make_of_table(receive: Callable[[], TableAuditor], rows: pa.Table) -> pa.Table:
    function = receive()
    rows = rows.sort_by(NUMBER)
    place, start = rows.column(PLACE)[0].as_py(), rows.column(NUMBER)[0].as_py()
    read = partial(cut_sorted, rows.drop_columns([PLACE, NUMBER]), function.id_column, function.target, start)
    made = PartMaker(function.auditor).make(Task(place, lambda _: read()))
    return pa.table({"made": pa.array([pickle.dumps(made)], pa.binary())})


@contextmanager
def _kept(df: Any) -> Iterator[Any]:
    """Keep what is computed on the workers' disks, so that it is computed once."""
    from pyspark import StorageLevel

    kept = df.persist(StorageLevel.DISK_ONLY)
    try:
        yield kept
    finally:
        kept.unpersist()


def _ship(context: Any, value: Any) -> Callable[[], Any]:
    """Return a function by which each worker process gets a value once; closures in it travel with it."""
    from pyspark import cloudpickle

    packed = cloudpickle.dumps(value)  # type: ignore[no-untyped-call]
    return partial(_receive, context.broadcast(packed), hashlib.sha256(packed).hexdigest())


def _receive(broadcast: Any, digest: str) -> Any:
    return receive_once(digest, lambda: pickle.loads(broadcast.value))


# --- Spark itself -------------------------------------------------------------------------------------------


def check_ready() -> None:
    """Refuse to begin without Spark, or without the Java it needs."""
    if lacking := say_lacking("an audit on Spark", "pyspark"):
        raise ClusterError(lacking)
    check_java()


@contextmanager
def _session(given: Any, count: int | None) -> Iterator[Any]:
    """Yield a session; one that was started here ends here."""
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise ClusterError(say_lacking("an audit on Spark", "pyspark") or f"cannot load pyspark: {error}") from error
    active = given or SparkSession.getActiveSession()
    session = active or _start(SparkSession, count)
    try:
        yield session
    finally:
        if active is None:
            session.stop()


def _start(library: Any, count: int | None) -> Any:
    check_java()
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    master = os.environ.get("MASTER") or f"local[{count or '*'},{ATTEMPTS}]"
    if master.startswith("spark://"):
        check_answers("MASTER", master)
    builder = library.builder.appName("fragility").master(master)
    builder = builder.config("spark.ui.enabled", "false").config("spark.ui.showConsoleProgress", "false")
    with _stderr_to_file() as said:
        try:
            return builder.getOrCreate()
        except Exception as error:  # py4j's and Spark's own, of many classes
            raise ClusterError(f"Spark could not be started on {master}: {_find_complaint(said) or error}") from error


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


def _find_complaint(path: Path) -> str:
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
