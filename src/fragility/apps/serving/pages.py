"""The OpenAPI document, and the same as one page without scripts, so that it can be read without the internet."""

from __future__ import annotations

import json
from html import escape
from typing import Any

from fragility.apps.serving.requests import RequestKind, example_row, field_schema, request_schema, row_schema
from fragility.models import Model
from fragility.protocol import Protocol
from fragility.version import __version__

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
