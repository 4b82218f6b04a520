"""Requests: what a client may send, as a JSON schema made from the protocol's fields, how it is read and answered.

A request holds one row, or a list of rows under ``rows``:

    {"row": {"age": 41, "income": null}, "id": "L17", "missing": ["income"], "stale": []}
    {"rows": [{"row": {...}}, {"row": {...}, "id": "L18"}]}

Everything else is refused in one sentence that names the row and the field. Rows that were read become checks or
certificates, and what the log keeps of them.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import re
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import pandas as pd
import pyarrow as pa

from fragility.analysis.policy import ReviewPolicy
from fragility.apps.guards import RequestError
from fragility.apps.serving.entries import LogEntry
from fragility.audits import Certificates, Manifest
from fragility.base.errors import Advice, FragilityError, ProtocolError, name_error
from fragility.base.files import parse_json
from fragility.blocks.claims import schema_of
from fragility.deciding.guard import Guard
from fragility.evidence.fields import TYPE_WORDS, Field
from fragility.evidence.modes import make_records
from fragility.evidence.rows import list_names
from fragility.models import Model
from fragility.protocol import Protocol

RequestKind: TypeAlias = Literal["check", "certify"]
LARGEST_WHOLE = 2**53  # beyond it, JSON numbers mean different things to different readers
LONGEST_ID = 200  # characters
ROW_FIELDS = {"check": ("row", "id", "missing", "stale"), "certify": ("row", "id")}
# The protocol says whether there is such a day. pandas also reads "now", which is another date when it is verified, and
# takes "" for missing.
DATE = re.compile(r"\d{4}-\d{2}-\d{2}([T ][0-9:.,]+)?(Z|[+-][0-9:]{2,6})?", re.ASCII)
JSON_WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text", list: "a list"}


@dataclass(frozen=True, slots=True)
class RequestedRow:
    """A row that somebody asks about."""

    id: str
    values: Mapping[str, Any]  # of every field; None if it is null or absent
    missing: tuple[str, ...] | None = None  # None: the fields that are null
    stale: tuple[str, ...] = ()
    digest: str | None = None  # of what was asked; None where the id was made here
    place: int = 0  # in its request

    @property
    def nulls(self) -> tuple[str, ...]:
        return tuple(name for name, value in self.values.items() if value is None)


@dataclass(frozen=True, slots=True)
class RowsRequest:
    """A request about one or more rows."""

    kind: RequestKind
    rows: tuple[RequestedRow, ...]
    single: bool  # whether one row was sent, not a list
    intervals: bool = False


@dataclass(frozen=True)
class RequestReader:
    """Reads requests about the rows of a protocol."""

    protocol: Protocol
    most_rows: int
    fields: dict[str, Field] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "fields", {one.name: one for one in self.protocol.fields})

    def read(self, body: bytes, kind: RequestKind) -> RowsRequest:
        """Read the body of a request."""
        try:
            document = parse_json(body.decode("utf-8"))
        except UnicodeDecodeError as error:
            raise RequestError(400, "not_json", "the body must be JSON in UTF-8; it is not UTF-8") from error
        except ValueError as error:
            raise RequestError(400, "not_json", f"the body must be JSON: {error}") from error
        if not isinstance(document, dict):
            raise RequestError(422, "not_an_object", f"the body must be a JSON object, got {_name_type(document)}")
        single = "rows" not in document
        more = {"intervals"} if kind == "check" else set[str]()
        names = {*ROW_FIELDS[kind], *more} if single else {"rows", *more}
        _refuse_unknown(document, names, f"the body of a request to /v1/{kind}", None)
        intervals = document.get("intervals", False)
        if type(intervals) is not bool:
            raise RequestError(422, "wrong_type", f"intervals must be true or false, got {_name_type(intervals)}")
        listed = [{name: value for name, value in document.items() if name not in more}] if single else document["rows"]
        if not isinstance(listed, list) or not 0 < len(listed) <= self.most_rows:
            came = f"{len(listed)} rows" if isinstance(listed, list) else _name_type(listed)
            raise RequestError(422, "too_many_rows", f"rows must be a list of 1 to {self.most_rows} rows, got {came}")
        rows = tuple(self._read_row(item, kind, place, intervals) for place, item in enumerate(listed))
        places: dict[str, int] = {}
        for place, row in enumerate(rows):
            if places.setdefault(row.id, place) != place:
                message = (
                    f"the rows {places[row.id]} and {place} of the request have the id {row.id!r}; give each its own"
                )
                raise RequestError(409, "repeated_id", message, row=place)
        return RowsRequest(kind, rows, single, intervals)

    def _read_row(self, item: Any, kind: RequestKind, place: int, intervals: bool) -> RequestedRow:
        if not isinstance(item, dict):
            raise RequestError(422, "wrong_type", f"row {place} must be an object, got {_name_type(item)}", row=place)
        _refuse_unknown(item, ROW_FIELDS[kind], f"row {place}", place)
        if not isinstance(item.get("row"), dict):
            message = (
                f"row {place} must hold the field values as an object under 'row', got {_name_type(item.get('row'))}"
            )
            raise RequestError(422, "wrong_type", message, row=place)
        missing = self._read_names(item, "missing", place)
        stale = self._read_names(item, "stale", place) or ()
        if twice := [name for name in stale if name in (missing or ())]:
            message = f"row {place} names {twice[0]!r} as missing and as stale; name it once"
            raise RequestError(422, "missing_and_stale", message, row=place)
        given = item["row"]
        _refuse_unknown(given, self.fields, f"row {place}", place, "the model has no such field; its fields are ")
        lacking = [name for name in self.fields if name not in given and name not in (missing or ())]
        if lacking:
            what = "send null where a value is missing" + (", or name the fields in missing" if kind == "check" else "")
            message = f"row {place} lacks {list_names(lacking)}; {what}"
            raise RequestError(422, "absent_field", message, row=place)
        values = {name: _read_value(given.get(name), known, place) for name, known in self.fields.items()}
        row_id = self._read_id(item, place)
        digest = None if row_id is None else _digest_request(kind, intervals, item)
        return RequestedRow(uuid.uuid4().hex if row_id is None else row_id, values, missing, stale, digest, place)

    def _read_id(self, item: Mapping[str, Any], place: int) -> str | None:
        value = item.get("id")
        if value is None:
            return None
        text = str(value)
        if type(value) not in (str, int) or not 0 < len(text) <= LONGEST_ID or not text.isprintable():
            message = f"the id of row {place} must be text of 1 to {LONGEST_ID} printable characters or a whole number"
            raise RequestError(422, "wrong_id", f"{message}, got {_name_type(value)}", row=place)
        return text

    def _read_names(self, item: Mapping[str, Any], what: str, place: int) -> tuple[str, ...] | None:
        names = item.get(what)
        if names is None:
            return None
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            message = f"{what} of row {place} must be a list of field names, got {_name_type(names)}"
            raise RequestError(422, "wrong_type", message, row=place)
        message = "the model has no such field; its fields are "
        _refuse_unknown(dict.fromkeys(names), self.fields, f"{what} of row {place}", place, message)
        return tuple(dict.fromkeys(names))


def _refuse_unknown(
    given: Mapping[str, Any], known: Any, where: str, place: int | None, advice: str = "its names are "
) -> None:
    unknown = [name for name in given if name not in known]
    if unknown:
        names = ", ".join(sorted(known) if isinstance(known, set) else known)
        message = f"{where} names {unknown[0]!r:.80}; {advice}{names}"
        raise RequestError(422, "unknown_field", message, row=place)


def _read_value(value: Any, known: Field, place: int) -> Any:
    """Return a JSON value as the type of its field; whole numbers may be written as 7.0."""
    if value is None:
        return None
    kind = type(value)
    if known.type in ("integer", "number") and kind in (int, float):
        if (kind is int or known.type == "integer") and abs(value) > LARGEST_WHOLE:
            message = f"{known.name!r} of row {place} is beyond 2**53, where JSON numbers are no longer exact"
            raise RequestError(422, "out_of_range", message, row=place)
        if known.type == "number":
            return float(value)
        return int(value) if value == int(value) else value  # the protocol says whether decimals are taken
    if (known.type == "boolean" and kind is bool) or (known.type == "text" and kind is str):
        return value
    if known.type == "date" and kind is str and DATE.fullmatch(value):
        return value
    if known.type == "mixed" and kind in (bool, int, float, str):
        return value
    if known.type == "duration" and kind is str and value.startswith(("P", "-P")):
        try:
            return pd.Timedelta(value)
        except ValueError:
            pass
    message = f"{known.name!r} of row {place} must be {_describe_field(known)} or null, got {_name_type(value)}"
    raise RequestError(422, "wrong_type", message, row=place)


def _describe_field(entry: Field) -> str:
    words = {
        "integer": "a whole number",
        "number": "a number",
        "date": "a date as ISO 8601 text",
        "duration": "a duration as ISO 8601 text, such as P1DT12H",
        "mixed": "text, a number, true or false",
        "empty": "null, as in the training data,",
    }
    return words.get(entry.type, TYPE_WORDS[entry.type])


def _name_type(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, dict):
        return "an object"
    return f"{JSON_WORDS[type(value)]} ({json.dumps(value)[:40]})"


def _digest_request(kind: str, intervals: bool, item: Mapping[str, Any]) -> str:
    """Return a digest of the request under an id, which does not depend on the order of names."""
    text = json.dumps([kind, intervals, item], sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


# --- schemas --------------------------------------------------------------------------------------------------

JSON_TYPES: dict[str, list[str]] = {
    "integer": ["integer"],
    "number": ["number"],
    "boolean": ["boolean"],
    "text": ["string"],
    "date": ["string"],
    "duration": ["string"],
    "mixed": ["string", "number", "boolean"],
    "empty": [],
}


def field_schema(entry: Field) -> dict[str, Any]:
    """Return the JSON schema of a field's values."""
    schema: dict[str, Any] = {"type": [*JSON_TYPES[entry.type], "null"]}
    if entry.type in ("date", "duration"):
        schema["description"] = f"ISO 8601 ({entry.type})"
    if entry.type == "integer":
        schema |= {"minimum": -LARGEST_WHOLE, "maximum": LARGEST_WHOLE}
    return schema | {"x-kind": entry.kind}


def row_schema(protocol: Protocol) -> dict[str, Any]:
    """Return the JSON schema of a row's values."""
    return {
        "type": "object",
        "description": "The raw values of one row by field; null where a value is missing.",
        "properties": {entry.name: field_schema(entry) for entry in protocol.fields},
        "additionalProperties": False,
    }


def request_schema(kind: RequestKind, protocol: Protocol, most_rows: int) -> dict[str, Any]:
    """Return the JSON schema of a request, which refers to the schema ``Row``."""
    names = {"type": ["array", "null"], "items": {"enum": [of_row.name for of_row in protocol.fields]}}
    properties: dict[str, Any] = {
        "row": {"$ref": "#/components/schemas/Row"},
        "id": {
            "type": ["string", "integer", "null"],
            "maxLength": LONGEST_ID,
            "description": "A name of your own for the row; one is made if there is none.",
        },
        "missing": {**names, "description": "Missing fields; by default those that are null."},
        "stale": {**names, "description": "Fields whose values are older than they should be."},
    }
    of_row = {name: properties[name] for name in ROW_FIELDS[kind]}
    intervals = {"type": "boolean", "description": "Also find the stability interval of every field."}
    more = {"intervals": intervals} if kind == "check" else {}
    item = {"type": "object", "properties": of_row, "required": ["row"], "additionalProperties": False}
    listed = {"type": "array", "minItems": 1, "maxItems": most_rows, "items": item}
    many = {"type": "object", "properties": {"rows": listed, **more}, "required": ["rows"]}
    return {"oneOf": [{**item, "properties": {**of_row, **more}}, {**many, "additionalProperties": False}]}


def example_row(protocol: Protocol) -> dict[str, Any]:
    """Return an example row with values from the protocol, as JSON values; null for fields without any."""
    made = make_records(protocol.fields, protocol.modes, {column.name: column.baseline for column in protocol.columns})
    values, example = {} if made is None else made[0], dict[str, Any]()
    for entry in protocol.fields:
        value = values.get(entry.name)
        try:
            read = _read_value(value, entry, 0)
        except RequestError:
            example[entry.name] = None
        else:
            example[entry.name] = read if entry.type == "integer" else value
    return example


def list_rows(rows: Sequence[RequestedRow]) -> dict[str, list[Any]]:
    """Return the values of rows by field."""
    return {name: [row.values[name] for row in rows] for name in rows[0].values}


# --- answers --------------------------------------------------------------------------------------------------

_TEXT = pa.string()
MOST_HELD = dt.timedelta(hours=1)  # that times stay the same after the clock was set back


@dataclass(frozen=True, eq=False)
class AnsweredRows:
    """The answers to some rows, in order."""

    documents: list[dict[str, Any]]  # as JSON values
    events: list[dict[str, Any]]  # what is counted and logged, by name
    certificates: Certificates
    rows: dict[str, list[Any]]  # the raw values as they were decided, by field
    time: dt.datetime

    def to_entry(self, asked: Sequence[RequestedRow]) -> LogEntry:
        """Return what the log keeps; asked: the rows that were asked about."""
        return LogEntry.of(
            self.certificates,
            self.rows,
            time=self.time,
            **{name: [event[name] for event in self.events] for name in ("missing", "stale", "p_change", "review")},
            requests=[row.digest for row in asked],
        )


class Answering:
    """A model and a protocol, made ready to answer; one thread at a time asks it."""

    def __init__(
        self,
        model: Model,
        protocol: Protocol,
        *,
        policy: ReviewPolicy | None = None,
        rates: Any = None,
        training: Any = None,
        engine: str = "auto",
    ) -> None:
        self.protocol, self._training = protocol, training
        conditional = training is not None
        self.guard = Guard(model, protocol, policy, rates, training=training, conditional=conditional, engine=engine)
        self.auditor = self.guard.auditor  # made ready once for both
        self._columns = schema_of(protocol, self.guard.model.classes, _TEXT).names
        self._last = dt.datetime.min.replace(tzinfo=dt.UTC)

    @property
    def model(self) -> Model:
        """The model, wrapped."""
        return self.guard.model

    def warm_up(self) -> Manifest:
        """Answer once about a row; return the manifest of its certificate.

        What is slow the first time, such as compiling kernels, is done then. The row is the first training row, or made
        of values that the protocol knows, or of stand-ins for missing values, or of missing values: whichever the model
        takes first.
        """
        names = [field.name for field in self.protocol.fields]
        made = make_records(self.protocol.fields, self.protocol.modes, {})
        nulls: list[Mapping[str, Any]] = [dict.fromkeys(names)]
        tried: list[tuple[Any, Sequence[str]]] = [(nulls, names), (nulls, ())]
        if made is not None:
            tried.insert(0, (made[:1], ()))
        if self._training is not None:
            tried.insert(0, (self._training[:1], ()))
        for place, (rows, missing) in enumerate(tried):
            try:
                checks = self.guard.check_rows(rows, [missing], ids=["warm-up"])
                with suppress(FragilityError):  # a field without a stand-in is refused when it is missing
                    self.guard.check_rows(rows, [names[:1]], ids=["warm-up"])
                self.auditor.certify(checks.rows)  # which libraries take part shows after the first answer
                return self.auditor.certify(checks.rows).manifest
            except FragilityError as error:
                if place == len(tried) - 1:
                    reason = "the model cannot be tried on values that the protocol knows (", error, "); give "
                    raise ProtocolError(*reason, Advice("training=...", "training rows with --train")) from error
        raise AssertionError

    def answer(self, kind: RequestKind, rows: Sequence[RequestedRow], *, intervals: bool = False) -> AnsweredRows:
        """Return the answers; RequestError if the model or the protocol cannot answer about one of the rows."""
        try:
            answers = self._check(rows, intervals) if kind == "check" else self._certify(rows)
        except FragilityError as error:
            raise RequestError(422, "not_answerable", error) from error
        except Exception as error:  # whatever a model may raise
            raise RequestError(500, "model_failed", f"the model cannot answer: {name_error(error)}") from error
        return answers

    def start_at(self, time: dt.datetime) -> None:
        """Let no answer be given an earlier time than this, that of a log's last event, unless it was a wrong clock."""
        self._last = max(self._last, time)

    def _now(self) -> dt.datetime:
        """Return the time, which does not go back: events are logged in its order.

        If the clock is behind by more than an hour, it was wrong before, and holding on would date all that follows so.
        """
        now = dt.datetime.now(dt.UTC)
        self._last = self._last if now < self._last <= now + MOST_HELD else now
        return self._last

    def _certify(self, rows: Sequence[RequestedRow]) -> AnsweredRows:
        values = list_rows(rows)
        certificates = self.auditor.certify([dict(row.values) for row in rows], ids=[row.id for row in rows])
        documents = certificates.table.select(self._columns).to_pylist()
        events = [
            {
                "decision": document["predicted"],
                "exposure": document["exposure"],
                "missing": row.nulls,
                "stale": (),
                "p_change": None,
                "review": None,
            }
            for document, row in zip(documents, rows, strict=True)
        ]
        return AnsweredRows(documents, events, certificates, values, self._now())

    def _check(self, rows: Sequence[RequestedRow], intervals: bool) -> AnsweredRows:
        checks = self.guard.check_rows(
            [dict(row.values) for row in rows],
            [row.missing for row in rows],
            [row.stale for row in rows],
            ids=[row.id for row in rows],
            intervals=intervals,
        )
        events = [
            {
                "decision": check.decision,
                "exposure": check.certificate.exposure,
                "missing": check.missing,
                "stale": check.stale,
                "p_change": check.p_change,
                "review": check.review,
            }
            for check in checks
        ]
        values = list_rows(rows)
        for name in {name for check in checks for name in check.missing}:
            values[name] = [
                check.stand_ins.get(name) if name in check.missing else values[name][place]
                for place, check in enumerate(checks)
            ]
        return AnsweredRows([check.to_dict() for check in checks], events, checks.certificates, values, self._now())
