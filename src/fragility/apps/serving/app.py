"""The application of `fragility serve`: its endpoints, the page that describes them, and its process.

The batcher and the log live as long as the application. The OpenAPI document is also a page without scripts, which can
be read without the internet.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import socket
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from html import escape
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, JSONResponse, Response
from starlette.exceptions import HTTPException

from fragility.apps.guards import GuardRules, RequestError, ServiceGuards
from fragility.apps.server import AddressError, Server, bind
from fragility.apps.serving.batching import CONTENT_TYPE, Batcher, BatchRules, Job, JobAnswer, Metrics
from fragility.apps.serving.log import ServingLog
from fragility.apps.serving.requests import (
    Answering,
    RequestedRow,
    RequestKind,
    RequestReader,
    RowsRequest,
    example_row,
    field_schema,
    request_schema,
    row_schema,
)
from fragility.base.errors import DataError, FragilityError, name_error, reason_of
from fragility.base.files import read_bounded
from fragility.models import Model
from fragility.pages.results import without_nan
from fragility.protocol import Protocol
from fragility.version import __version__

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
        self._in_flight: dict[
            str, tuple[str, asyncio.Future[JobAnswer]]
        ] = {}  # by id: the digest of the request, and its answer

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

    async def _answer_rows(self, request: RowsRequest) -> JobAnswer:
        """Return the answers in the order of the rows; a row that was logged before is not logged again.

        Two requests that ask the same under one id at the same time share the answer.
        """
        assert self.batcher is not None
        if self.stopping:
            raise RequestError(503, "stopping", "the server is stopping; ask another one")
        futures: dict[str, asyncio.Future[JobAnswer]] = {}
        fresh, known = list[RequestedRow](), list[RequestedRow]()
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
        waiting = {future: row_id in shared for row_id, future in futures.items()}
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

    def _land(self, row_id: str, future: asyncio.Future[JobAnswer]) -> None:
        """Forget a row that was answered or refused."""
        self._in_flight.pop(row_id, None)
        if not future.cancelled():
            future.exception()  # retrieved here, because no client may be waiting any more

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


# --- the description of the endpoints -------------------------------------------------------------------------

SUMMARIES = {
    "check": "Check decisions: what they hang on, and what their missing or stale fields would have changed.",
    "certify": "Certify decisions: the certificate of each row as it stands.",
}
STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#1b1f24}"
    "table{border-collapse:collapse}td,th{border:1px solid #ccc;padding:.2rem .6rem;text-align:left}"
    "td code{white-space:nowrap}p code{overflow-wrap:anywhere}pre{background:#f4f4f4;padding:.8rem;overflow:auto}"
    "div{overflow:auto}h1+p code{overflow-wrap:anywhere}"
)


def describe_api(model: Model, protocol: Protocol, most_rows: int, *, token: bool) -> dict[str, Any]:
    """Return the OpenAPI document of a server."""
    error = {"$ref": "#/components/schemas/Error"}
    refused = {"description": "One sentence about what is wrong.", "content": {"application/json": {"schema": error}}}
    paths: dict[str, Any] = {}
    for kind in ("check", "certify"):
        answer = {"description": "The answer.", "content": {"application/json": {"schema": _answer_schema(kind)}}}
        paths[f"/v1/{kind}"] = {
            "post": {
                "summary": SUMMARIES[kind],
                "operationId": kind,
                "requestBody": {
                    "required": True,
                    "content": {
                        "application/json": {
                            "schema": request_schema(kind, protocol, most_rows),
                            "example": {"row": example_row(protocol), "id": "my-1"},
                        }
                    },
                },
                "responses": {"200": answer, "default": refused},
            }
        }
    for path, summary in {
        "/healthz": "Whether the process answers.",
        "/readyz": "Whether rows are answered and logged.",
        "/metrics": "Counters in the text format of Prometheus.",
    }.items():
        paths[path] = {"get": {"summary": summary, "responses": {"200": {"description": "Yes."}, "default": refused}}}
    document: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {
            "title": "fragility serve",
            "version": __version__,
            "x-model": {"kind": model.kind, "fingerprint": model.fingerprint},
            "x-protocol": protocol.digest,
        },
        "paths": paths,
        "components": {"schemas": {"Row": row_schema(protocol), "Error": _ERROR}},
    }
    if token:
        document["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{"token": []}]
        for path in ("/healthz", "/readyz"):
            paths[path]["get"]["security"] = []
    return document


_ERROR = {
    "type": "object",
    "properties": {
        "error": {
            "type": "object",
            "properties": {
                "code": {"type": "string", "description": "For programs."},
                "message": {"type": "string", "description": "For people."},
                "row": {"type": "integer", "description": "Which row of the request is meant, counted from 0."},
            },
            "required": ["code", "message"],
        }
    },
    "required": ["error"],
}


def _answer_schema(kind: RequestKind) -> dict[str, Any]:
    name = {"check": "check", "certify": "certificate"}[kind]
    return {
        "type": "object",
        "properties": {
            name: {"type": "object", "description": "Of the row, where one was sent."},
            f"{name}s": {"type": "array", "items": {"type": "object"}, "description": "Of the rows, in their order."},
            "time": {"type": "string", "format": "date-time"},
            "logged": {"type": "boolean", "description": "Whether the log holds the rows."},
        },
        "required": ["time", "logged"],
    }


def render_page(protocol: Protocol, document: dict[str, Any]) -> str:
    """Return the page that describes a server's endpoints and fields."""
    endpoints = "".join(
        f"<tr><td><code>{method.upper()} {escape(path)}</code></td><td>{escape(about['summary'])}</td></tr>"
        for path, methods in document["paths"].items()
        for method, about in methods.items()
    )
    fields = "".join(
        f"<tr><td>{escape(one.name)}</td><td>{' or '.join(field_schema(one)['type'])}</td><td>{one.kind}</td></tr>"
        for one in protocol.fields
    )
    body = document["paths"]["/v1/check"]["post"]["requestBody"]["content"]["application/json"]
    one, _ = body["schema"]["oneOf"]
    names = "".join(
        f"<tr><td><code>{name}</code></td><td>{escape(about.get('description', 'The raw values by field.'))}</td></tr>"
        for name, about in one["properties"].items()
    )
    model = document["info"]["x-model"]
    example = json.dumps(body["example"], indent=2, ensure_ascii=False)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>fragility serve</title>'
        f'<meta name="viewport" content="width=device-width"><link rel="icon" href="data:,">'
        f"<style>{STYLE}</style></head><body><h1>fragility serve {escape(__version__)}</h1>"
        f"<p>Model: {escape(model['kind'])}, fingerprint <code>{escape(model['fingerprint'])}</code>. Protocol: "
        f"<code>{escape(protocol.digest)}</code>. The machine-readable description is "
        f'<a href="/openapi.json">/openapi.json</a>.</p><h2>Endpoints</h2><div><table>{endpoints}</table></div>'
        f"<h2>A request to /v1/check</h2><div><table>{names}</table></div><pre>{escape(example)}</pre>"
        f"<p>Send it as <code>application/json</code>; many rows at once go under <code>rows</code>, each with its own "
        f"<code>row</code>, <code>id</code>, <code>missing</code> and <code>stale</code>.</p>"
        f"<h2>Fields of a row</h2><div><table><tr><th>field</th><th>JSON</th><th>kind</th></tr>{fields}</table></div>"
        f"</body></html>"
    )


# --- the process ----------------------------------------------------------------------------------------------

TOKEN_VARIABLE = "FRAGILITY_TOKEN"
SHORTEST_TOKEN = 16  # characters
TOKEN_BYTES = 4096
BACKLOG = 2048


def read_token(path: Path | None, environment: Mapping[str, str]) -> str | None:
    """Return the token from a file or from the environment; None if there is neither."""
    if path is not None:
        try:
            token = read_bounded(path, TOKEN_BYTES).decode("ascii").strip()
        except (OSError, ValueError) as error:
            raise DataError(f"cannot read the token {path}: {reason_of(error)}") from error
        source = str(path)
    else:
        token, source = environment.get(TOKEN_VARIABLE, "").strip(), TOKEN_VARIABLE
        if not token:
            return None
    if len(token) < SHORTEST_TOKEN or not all(33 <= ord(letter) <= 126 for letter in token):
        raise DataError(
            f"the token in {source} must be at least {SHORTEST_TOKEN} letters and digits without spaces; make one with "
            "`python -c 'import secrets; print(secrets.token_urlsafe(32))'`"
        )
    return token


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that accepts connections at an address; port 0 is any free one."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listening = bind(family, address)
        listening.listen(BACKLOG)
        return listening
    except OSError as error:
        reason = error.strerror or error
        raise AddressError(
            f"cannot listen on {host}, port {port}: {reason}; choose another --host or --port"
        ) from error


def serve(
    answering: Answering,
    log: ServingLog | None,
    rules: ServiceRules,
    listening: socket.socket,
    *,
    announce: Callable[[str], None],
) -> None:
    """Serve until a signal ends it; ``announce`` is called with the address."""
    app, service = create_app(answering, log, rules)
    host, port = listening.getsockname()[:2]
    address = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    server = Server(
        app,
        on_start=lambda: announce(address),
        on_stop=service.refuse_more,
        lifespan="on",
        patience=int(rules.guards.most_seconds) + 1,
    )
    server.run(sockets=[listening])
