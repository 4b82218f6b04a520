"""Every single change of an audit folder: of each column of each table, and of each value of manifest and protocol.

Each change is made by a forger who makes all digests anew (``forging_folders``), so only the claim itself is false.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from forging_folders import Rows

Forgery = dict[str, Any]  # what `forge` is given
AROUND = ("id", "digest")  # made anew, or the name of the row


def change_value(value: Any) -> Iterator[tuple[str, Any]]:
    """Other values of the same kind, each with a word for it."""
    match value:
        case bool():
            yield "turned", not value
        case int():
            yield "one more", value + 1
            yield "one less", value - 1
        case float():
            yield "more", value + 0.013 * (1 + abs(value))
            yield "none", 0.0
        case str() if value.startswith("[") or value.startswith("{"):  # a value in JSON
            yield from ((word, write_json(other)) for word, other in change_value(json.loads(value)))
        case str():
            yield "other text", value + "x"
        case list() if value:
            yield from ((f"first {word}", [other, *value[1:]]) for word, other in change_value(value[0]))
            yield "shorter", value[:-1]
            if value[0] != value[-1]:
                yield "turned round", value[::-1]
        case dict() if value:
            key = next(iter(value))
            yield from ((f"{key} {word}", {**value, key: other}) for word, other in change_value(value[key]))
            yield "shorter", {key: value[key] for key in list(value)[1:]}


def write_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def list_forgeries(folder: Path) -> dict[str, Forgery]:
    """Every change by name, in a fixed order."""
    m = json.loads((folder / "manifest.json").read_text())
    found: dict[str, Forgery] = {}
    for name in m["files"]:
        if name.endswith(".parquet"):
            block = name.split("-")[0]
            for what, change in list_table_changes(pq.read_table(folder / name).to_pylist()):
                given = {"claims": change} if block == "certificates" else {"blocks": {block: change}}
                found[f"{block}: {what}"] = given
    p = json.loads(next(folder.glob("protocol-*.json")).read_text())
    for part, document in (("protocol", p), ("manifest", m)):
        for place, word, other in list_document_changes(document):
            if place[0] not in ("files", "manifest_digest") and place[-1] != "root_digest":
                name = f"{part}: {'.'.join(map(str, place))} {word}"
                found[name] = {part: replace_at(place, other)}
    return found


def list_table_changes(rows: Rows) -> Iterator[tuple[str, Callable[[Rows], Any]]]:
    """A change of each column, in the first row of which the column can be changed so; and of the rows themselves."""
    if not rows:
        return
    for column in rows[0]:
        changes = {} if column in AROUND else list_changes(rows, column)
        for word, (at, other) in changes.items():
            yield f"{column} {word}", lambda own, at=at, column=column, other=other: own[at].update({column: other})
    yield "a row less", lambda own: own[1:]
    if len(rows) > 1:
        yield "claims of two rows exchanged", exchange


def list_changes(rows: Rows, column: str) -> dict[str, tuple[int, Any]]:
    found: dict[str, tuple[int, Any]] = {}
    for at, row in enumerate(rows):
        for word, other in change_value(row[column]):
            found.setdefault(word, (at, other))
    return found


def exchange(rows: Rows) -> Rows:
    """The first row and the first that differs from it change their places, but for their ids."""
    claims = [{k: v for k, v in row.items() if k not in AROUND} for row in rows]
    other = next((i for i, own in enumerate(claims) if own != claims[0]), 0)
    rows[0].update(claims[other])
    rows[other].update(claims[0])
    return rows


def list_document_changes(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], str, Any]]:
    """(where, word, other value) of each leaf; of a list only the first and the last entry are entered."""
    if isinstance(value, dict) and value:
        for key, own in value.items():
            yield from list_document_changes(own, (*place, key))
    elif isinstance(value, list) and value:
        for key in sorted({0, len(value) - 1}):
            yield from list_document_changes(value[key], (*place, key))
        yield place, "shorter", value[:-1]
        if value[0] != value[-1]:
            yield place, "turned round", value[::-1]
    else:
        yield from ((place, word, other) for word, other in change_value(value))


def replace_at(place: tuple[Any, ...], other: Any) -> Callable[[Any], Any]:
    def change(document: Any) -> Any:
        own = document = copy.deepcopy(document)
        for key in place[:-1]:
            own = own[key]
        own[place[-1]] = other
        return document

    return change
