"""Micro-batches: rows of requests that come at about the same time are answered, logged and acknowledged together.

    request -> queue -> answered in one thread -> journal, in another -> the request's future

The first row of a batch waits for others at most as long as declared, and a batch holds at most so many rows. While one
batch is answered the next gathers, and the batch before it is written to the disk; all that wait there are written
together. `Metrics` is what `/metrics` counts, in the text format of Prometheus.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from fragility.apps.guards import RequestError
from fragility.apps.serving.entries import LogEntry
from fragility.apps.serving.log import ServingLog
from fragility.apps.serving.requests import AnsweredRows, Answering, RequestedRow, RequestKind
from fragility.base.errors import FragilityError, name_error

UNWRITTEN = 4  # batches that are answered and not on the disk yet; the next one waits


@dataclass(frozen=True, slots=True)
class BatchRules:
    """How rows are gathered."""

    wait: float = 0.0  # seconds that the first row of a batch waits for others
    most: int = 256  # rows of a batch
    most_queued: int = 10_000  # rows that may wait; more are refused


class JobAnswer(NamedTuple):
    """The answer to a job."""

    documents: list[dict[str, Any]]  # per row
    time: dt.datetime


@dataclass(eq=False, slots=True)
class Job:
    """Rows of one request that are answered alike."""

    kind: RequestKind
    rows: Sequence[RequestedRow]
    intervals: bool
    logged: bool  # whether they go to the log; false for rows that are there already
    answer: asyncio.Future[JobAnswer] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    @property
    def key(self) -> tuple[RequestKind, bool, bool]:
        """What the jobs of a batch have in common."""
        return self.kind, self.intervals, self.logged


class AnsweredJobs(NamedTuple):
    """The outcome of jobs that were answered together."""

    jobs: list[Job]
    answers: AnsweredRows | RequestError
    written: Future[None] | None = None  # done when the journal is on the disk; None for what is not logged


class Batcher:
    """Answers jobs in batches; everything but the answering and the writing happens in the event loop."""

    def __init__(self, answering: Answering, log: ServingLog | None, rules: BatchRules, metrics: Metrics) -> None:
        self.answering, self.log, self.rules, self.metrics = answering, log, rules, metrics
        self._queue: deque[Job] = deque()
        self._queued = 0  # rows
        self._came = asyncio.Event()
        self._answerer, self._writer = ThreadPoolExecutor(1, "answer"), ThreadPoolExecutor(1, "journal")
        self._unwritten: deque[tuple[LogEntry, Future[None]]] = deque()
        self._writing = threading.Lock()  # entries are written in the order in which they were answered
        self._room = asyncio.Semaphore(UNWRITTEN)
        self._task: asyncio.Task[None] | None = None
        self._finishing: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Begin to answer."""
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Stop answering; what is being written is finished."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await asyncio.gather(*self._finishing, return_exceptions=True)
        for job in self._queue:
            job.answer.cancel()
        self._answerer.shutdown()
        self._writer.shutdown()

    @property
    def queued(self) -> int:
        """Rows that wait."""
        return self._queued

    def submit(self, jobs: Sequence[Job]) -> None:
        """Put the jobs of a request into the queue, all or none of them."""
        rows = sum(len(job.rows) for job in jobs)
        if self._queued + rows > self.rules.most_queued:
            raise RequestError(
                503, "overloaded", f"{self._queued} rows wait for an answer already; try again in a moment"
            )
        self._queue.extend(jobs)
        self._queued += rows
        self.metrics.queue.set(self._queued)
        self._came.set()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._came.wait()
            await self._room.acquire()  # what comes while the disk is behind joins the next batch
            if self.rules.wait > 0 and self._queued < self.rules.most:
                await asyncio.sleep(self.rules.wait)
            jobs = self._take()
            if not jobs:
                self._room.release()
                continue
            self.metrics.batch.observe(sum(len(job.rows) for job in jobs))
            outcomes = await loop.run_in_executor(self._answerer, self._answer, jobs)
            finishing = asyncio.create_task(self._finish(outcomes))
            self._finishing.add(finishing)
            finishing.add_done_callback(self._finishing.discard)

    def _take(self) -> list[Job]:
        """Take the jobs of the next batch from the queue, in order; jobs whose clients went away are dropped."""
        jobs: list[Job] = []
        rows = 0
        while self._queue:
            job = self._queue[0]
            if not job.answer.done():
                if jobs and (job.key != jobs[0].key or rows + len(job.rows) > self.rules.most):
                    break
                jobs.append(job)
                rows += len(job.rows)
            self._queue.popleft()
            self._queued -= len(job.rows)
        self.metrics.queue.set(self._queued)
        if not self._queue:
            self._came.clear()
        return jobs

    # --- in the threads -------------------------------------------------------------------------------------

    def _answer(self, jobs: list[Job]) -> list[AnsweredJobs]:
        """Answer all jobs at once; if that fails, halves of them, so that a row cannot spoil another's answer."""
        first, rows = jobs[0], [row for job in jobs for row in job.rows]
        try:
            answers, entry = self._try(first, rows)
        except RequestError as error:
            if len(jobs) == 1:
                return [AnsweredJobs(jobs, self._blame(first, error))]
            half = len(jobs) // 2
            return [*self._answer(jobs[:half]), *self._answer(jobs[half:])]
        written = None if entry is None else self._begin_writing(entry, alone=len(jobs) == 1 and not self._queued)
        return [AnsweredJobs(jobs, answers, written)]

    def _try(self, job: Job, rows: Sequence[RequestedRow]) -> tuple[AnsweredRows, LogEntry | None]:
        """Return the answers to rows that are asked as those of a job, and what the log keeps of them."""
        answers = self.answering.answer(job.kind, rows, intervals=job.intervals)
        if self.log is None or not job.logged:
            return answers, None
        try:
            return answers, answers.to_entry(rows)
        except Exception as error:  # no row may stop the thread that answers all others
            reason = error if isinstance(error, FragilityError) else name_error(error)
            raise RequestError(422, "not_loggable", "the row cannot be logged: ", reason) from error

    def _blame(self, job: Job, error: RequestError) -> RequestError:
        """Return why a job is refused, with a row that is refused by itself where there is one."""
        rows = job.rows
        while len(rows) > 1:
            half = rows[: len(rows) // 2]
            rows = half if self._find_refusal(job, half) else rows[len(half) :]
        refusal = error if len(job.rows) == 1 else self._find_refusal(job, rows)
        if refusal is None:
            return error
        refusal.row = rows[0].place
        return refusal

    def _find_refusal(self, job: Job, rows: Sequence[RequestedRow]) -> RequestError | None:
        try:
            self._try(job, rows)
        except RequestError as error:
            return error
        return None

    def _begin_writing(self, entry: LogEntry, alone: bool) -> Future[None]:
        """Write an entry to the journal; return the future of that.

        The other thread writes, so that the next rows are answered meanwhile; a row that came alone is spared the way.
        """
        written: Future[None] = Future()
        self._unwritten.append((entry, written))
        if alone:
            self._write()
        else:
            self._writer.submit(self._write)
        return written

    def _write(self) -> None:
        """Write all entries that wait to the journal, with one wait for the disk."""
        assert self.log is not None
        with self._writing:
            waiting = [self._unwritten.popleft() for _ in range(len(self._unwritten))]
            if not waiting:  # written together with the ones before
                return
            try:
                self.log.append(*(entry for entry, _ in waiting))
            except Exception as error:
                reason = str(error) if isinstance(error, FragilityError) else name_error(error)
                sentence = f"the answer is withheld because it could not be logged: {reason}"
                for _, written in waiting:
                    written.set_exception(RequestError(503, "not_logged", sentence))
            else:
                for _, written in waiting:
                    written.set_result(None)

    # --- in the event loop ----------------------------------------------------------------------------------

    async def _finish(self, outcomes: list[AnsweredJobs]) -> None:
        """Hand out answers when they are on the disk, and refusals."""
        try:
            for jobs, answers, written in outcomes:
                try:
                    if isinstance(answers, RequestError):
                        raise answers
                    if written is not None:
                        await asyncio.wrap_future(written) if not written.done() else written.result()
                        self.metrics.logged.inc(len(answers.events))
                except RequestError as error:
                    for job in jobs:
                        if not job.answer.done():
                            job.answer.set_exception(error)
                else:
                    self._hand_out(jobs, answers)
        finally:
            self._room.release()

    def _hand_out(self, jobs: list[Job], answers: AnsweredRows) -> None:
        start = 0
        for job in jobs:
            stop = start + len(job.rows)
            if not job.answer.done():
                job.answer.set_result(JobAnswer(answers.documents[start:stop], answers.time))
            start = stop
        if jobs[0].logged:  # a row that is asked about again is counted once
            for event in answers.events:
                self.metrics.count_event(event)


# --- metrics --------------------------------------------------------------------------------------------------

LATENCIES = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
SHARES = tuple(tenth / 10 for tenth in range(1, 11))
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """The counters of one server."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        more: dict[str, Any] = {"registry": self.registry}
        name = "fragility_"
        self.latency = Histogram(
            name + "request_seconds", "Time from a request to its answer", ["endpoint"], buckets=LATENCIES, **more
        )
        self.answers = Counter(name + "answers", "Answers by endpoint and status", ["endpoint", "status"], **more)
        self.errors = Counter(name + "errors", "Requests refused, by the code of the error", ["code"], **more)
        self.decisions = Counter(name + "decisions", "Rows decided, by class", ["decision"], **more)
        self.exposure = Histogram(name + "exposure", "Exposure of the rows decided", buckets=SHARES, **more)
        self.missing = Counter(name + "missing_fields", "Rows decided without a field", ["field"], **more)
        self.stale = Counter(name + "stale_fields", "Rows decided on a stale value of a field", ["field"], **more)
        self.p_change = Histogram(
            name + "p_change", "Probability that unknown fields would change a decision", buckets=SHARES, **more
        )
        self.review = Counter(name + "reviews", "Rows that the policy sends to review", **more)
        self.batch = Histogram(name + "batch_rows", "Rows answered together", buckets=BATCHES, **more)
        self.queue = Gauge(name + "queue_rows", "Rows that wait for an answer", **more)
        self.logged = Counter(name + "logged_rows", "Rows appended to the log", **more)
        self.sealed = Counter(name + "sealed_rows", "Rows sealed into the log's audit folders", **more)
        self.pending = Gauge(name + "pending_rows", "Rows of the log that no seal holds yet", **more)

    def count_event(self, event: dict[str, Any]) -> None:
        """Count a row that was decided, given as the event that the log keeps of it."""
        self.decisions.labels(str(event["decision"])).inc()
        self.exposure.observe(event["exposure"])
        for counter, names in ((self.missing, event["missing"]), (self.stale, event["stale"])):
            for name in names:
                counter.labels(name).inc()
        if event["p_change"] is not None:
            self.p_change.observe(event["p_change"])
        if event["review"]:
            self.review.inc()

    def write(self) -> bytes:
        """Return the text of `/metrics`."""
        return generate_latest(self.registry)
