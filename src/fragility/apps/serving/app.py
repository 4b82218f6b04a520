"""The endpoints of `fragility serve`, and what lives as long as they do: the batcher and the log."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, JSONResponse, Response
from starlette.exceptions import HTTPException

from fragility.apps.guards import GuardRules, RequestError, ServiceGuards
from fragility.apps.serving.answering import Answering
from fragility.apps.serving.batching import Batcher, BatchRules, Job, JobAnswer
from fragility.apps.serving.log import ServingLog
from fragility.apps.serving.metrics import CONTENT_TYPE, Metrics
from fragility.apps.serving.pages import describe_api, render_page
from fragility.apps.serving.requests import Asked, AskedRow, RequestKind, RequestReader
from fragility.base.errors import FragilityError, name_error
from fragility.pages.saving import without_nan

SEAL_POLL = 0.5  # seconds between two looks at whether the log is to be sealed
MOST_ROWS = 1000
NAMES = {"check": "check", "certify": "certificate"}
# The page about the endpoints has a style and an empty icon of its own, and nothing else.
PAGE_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; frame-ancestors 'none'"


@dataclass(frozen=True)
class ServiceRules:
    """How rows are gathered, and what requests must bring and may take."""

    batches: BatchRules
    guards: GuardRules
    most_rows: int = MOST_ROWS  # of a request


class Service:
    """A model that answers, its log, and the state of the server."""

    def __init__(self, answering: Answering, log: ServingLog | None, rules: ServiceRules) -> None:
        self.answering, self.log, self.rules = answering, log, rules
        self.reader = RequestReader(answering.protocol, rules.most_rows)
        self.metrics = Metrics()
        self.batcher: Batcher | None = None
        self.stopping = False
        self.fault: str | None = None  # why the log cannot be sealed at present
        self._sealed = 0 if log is None else log.rows_sealed
        if log is not None and log.last_time is not None:
            answering.start_at(log.last_time)
        self._in_flight: dict[str, tuple[str, asyncio.Future[JobAnswer]]] = {}  # by id: what is asked, and its answer

    # --- from start to end ----------------------------------------------------------------------------------

    @asynccontextmanager
    async def live(self, _app: FastAPI) -> AsyncIterator[None]:
        """Answer and seal until the server stops; then finish what is in flight. Who opened the log closes it."""
        self.batcher = Batcher(self.answering, self.log, self.rules.batches, self.metrics)
        self.batcher.start()
        sealer = asyncio.create_task(self._keep_sealing())
        try:
            yield
        finally:
            self.stopping = True
            sealer.cancel()
            with suppress(asyncio.CancelledError):
                await sealer
            await self.batcher.stop()

    def refuse_more(self) -> None:
        """Refuse requests from now on; those in flight are finished."""
        self.stopping = True

    async def _keep_sealing(self) -> None:
        while self.log is not None:
            await asyncio.sleep(SEAL_POLL)
            if self.log.is_due:
                # Shielded: a seal that has begun is finished before the log is closed.
                await asyncio.shield(asyncio.to_thread(self._seal, self.log))
            self._count_sealed(self.log)

    def _seal(self, log: ServingLog) -> None:
        try:
            log.seal()
            self.fault = None
        except Exception as error:  # such as a full disk: the rows stay pending, and sealing is tried again
            self.fault = str(error) if isinstance(error, FragilityError) else name_error(error)

    def _count_sealed(self, log: ServingLog) -> None:
        self.metrics.sealed.inc(log.rows_sealed - self._sealed)
        self._sealed = log.rows_sealed
        self.metrics.pending.set(log.rows_pending)

    # --- answers --------------------------------------------------------------------------------------------

    async def answer(self, request: Request, kind: RequestKind) -> Response:
        """Answer a request to /v1/check or /v1/certify."""
        began, status = time.perf_counter(), 504  # where the guards end it
        try:
            request_read = self.reader.read(await request.body(), kind)
            documents, when = await self._answer_rows(request_read)
            body: dict[str, Any] = {"time": when.isoformat(), "logged": self.log is not None}
            body |= {NAMES[kind]: documents[0]} if request_read.single else {f"{NAMES[kind]}s": documents}
            response: Response = Response(_encode(body), media_type="application/json")
            status = response.status_code
        except RequestError as error:
            response, status = self.refuse(error), error.status
        finally:
            self.metrics.latency.labels(kind).observe(time.perf_counter() - began)
            self.metrics.answers.labels(kind, str(status)).inc()
        return response

    def refuse(self, error: RequestError) -> Response:
        """Return the answer for a request that is refused."""
        self.metrics.errors.labels(error.code).inc()
        return JSONResponse(error.to_dict(), error.status, error.headers)

    async def _answer_rows(self, request: Asked) -> JobAnswer:
        """Return the answers in the order of the rows; a row that is in the log already is answered, not logged again.

        Two requests that ask the same under one id at the same time share the answer.
        """
        assert self.batcher is not None
        if self.stopping:
            raise RequestError(503, "stopping", "the server is stopping; ask another one")
        futures: dict[str, asyncio.Future[JobAnswer]] = {}
        fresh, known = list[AskedRow](), list[AskedRow]()
        for place, row in enumerate(request.rows):
            if row.digest is None or self.log is None:
                fresh.append(row)
                continue
            flying = self._in_flight.get(row.id)
            before = flying[0] if flying is not None else self.log.find_request(row.id)
            if before not in (None, row.digest):
                message = f"the id {row.id!r} of row {place} was used for another request; choose another id"
                raise RequestError(409, "used_id", message, row=place)
            if flying is not None:
                futures[row.id] = flying[1]
            else:
                (fresh if before is None else known).append(row)
        # Rows with an id are jobs of their own, so that others who ask the same can wait for the same future.
        named = [[row] for row in fresh if row.digest is not None]
        unnamed = [row for row in fresh if row.digest is None]
        jobs = [Job(request.kind, group, request.intervals, True) for group in [*named, unnamed] if group]
        if known:
            jobs.append(Job(request.kind, known, request.intervals, False))
        self.batcher.submit(jobs)
        for job in jobs:
            self._follow(job, futures)
        gathered: dict[str, tuple[dict[str, Any], dt.datetime]] = {}
        # Shielded where others may wait for the same answer; any other row is dropped if its client goes away.
        shared = {row.id for row in request.rows if row.digest is not None}
        waiting = {future: own_id in shared for own_id, future in futures.items()}
        for answer in await asyncio.gather(
            *(asyncio.shield(future) if is_shared else future for future, is_shared in waiting.items())
        ):
            gathered |= {document["id"]: (document, answer.time) for document in answer.documents}
        answers = [gathered[row.id] for row in request.rows]
        return JobAnswer([document for document, _ in answers], max(when for _, when in answers))

    def _follow(self, job: Job, futures: dict[str, asyncio.Future[JobAnswer]]) -> None:
        """Note the future of each row; that of a row with an id also for others who ask the same."""
        for row in job.rows:
            futures[row.id] = job.answer
            if row.digest is not None and job.logged:
                self._in_flight[row.id] = (row.digest, job.answer)
                job.answer.add_done_callback(partial(self._land, row.id))

    def _land(self, own_id: str, future: asyncio.Future[JobAnswer]) -> None:
        """Forget a row that was answered or refused."""
        self._in_flight.pop(own_id, None)
        if not future.cancelled():
            future.exception()  # seen here: nobody may be waiting any more

    # --- other endpoints ------------------------------------------------------------------------------------

    async def show_ready(self) -> Response:
        """Say whether rows are answered and logged."""
        if self.stopping or self.batcher is None:
            return self.refuse(RequestError(503, "stopping", "the server is stopping"))
        fault = self.fault or (None if self.log is None else self.log.find_fault())
        if fault is not None:
            return self.refuse(RequestError(503, "log_fault", fault))
        return JSONResponse({"status": "ready"})

    async def show_metrics(self) -> Response:
        """Return the counters."""
        if self.log is not None:
            self._count_sealed(self.log)
        return Response(self.metrics.write(), media_type=CONTENT_TYPE)


def create_app(answering: Answering, log: ServingLog | None, rules: ServiceRules) -> tuple[ServiceGuards, Service]:
    """Return the guarded application, and the service behind it."""
    service = Service(answering, log, rules)
    off: dict[str, Any] = {"docs_url": None, "redoc_url": None, "openapi_url": None, "redirect_slashes": False}
    app = FastAPI(title="fragility serve", lifespan=service.live, **off)
    document = describe_api(answering.model, answering.protocol, rules.most_rows, token=rules.guards.token is not None)
    page = render_page(answering.protocol, document)

    @app.post("/v1/check", response_model=None)
    async def check(request: Request) -> Response:
        return await service.answer(request, "check")

    @app.post("/v1/certify", response_model=None)
    async def certify(request: Request) -> Response:
        return await service.answer(request, "certify")

    async def show_health() -> Response:
        return JSONResponse({"status": "alive"})

    for path, show in (("/healthz", show_health), ("/readyz", service.show_ready)):  # some proxies ask by HEAD
        app.add_api_route(path, show, methods=["GET", "HEAD"], response_model=None)
    app.add_api_route("/metrics", service.show_metrics, methods=["GET"], response_model=None)

    @app.get("/openapi.json", response_model=None)
    async def show_openapi() -> Response:
        return JSONResponse(document)

    @app.get("/", response_model=None)
    async def show_page() -> Response:
        return HTMLResponse(page, headers={"content-security-policy": PAGE_POLICY})

    @app.exception_handler(HTTPException)
    async def explain(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        path = request.scope["path"][:80]  # request.url would read the Host header, which may be no address
        code, message = {
            404: ("not_found", f"there is nothing at {path}; see /openapi.json"),
            405: ("wrong_method", f"{request.method[:20]} is not used at {path}; see /openapi.json"),
        }.get(error.status_code, ("refused", str(error.detail)))
        return service.refuse(RequestError(error.status_code, code, message))

    @app.exception_handler(Exception)
    async def apologise(_request: Request, error: Exception) -> Response:
        return service.refuse(RequestError(500, "unexpected", f"unexpected {name_error(error)}"))

    return ServiceGuards(app, rules.guards, lambda code: service.metrics.errors.labels(code).inc()), service


def _encode(body: Mapping[str, Any]) -> bytes:
    write = partial(json.dumps, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    try:
        return write(body).encode()
    except ValueError:  # JSON has no infinite margins
        return write(without_nan(body)).encode()
