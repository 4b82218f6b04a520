"""Answers: rows that were asked about become checks or certificates, and what the log keeps of them."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from fragility.analysis.policy import ReviewPolicy
from fragility.apps.guards import RequestError
from fragility.apps.serving.entries import LogEntry
from fragility.apps.serving.requests import AskedRow, RequestKind, list_rows
from fragility.audits import Certificates, Manifest
from fragility.base.errors import Advice, FragilityError, ProtocolError, name_error
from fragility.blocks.claims import schema_of
from fragility.deciding.guard import Guard
from fragility.evidence.modes import make_records
from fragility.models import Model
from fragility.protocol import Protocol

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

    def to_entry(self, asked: Sequence[AskedRow]) -> LogEntry:
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

    def answer(self, kind: RequestKind, rows: Sequence[AskedRow], *, intervals: bool = False) -> AnsweredRows:
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

    def _certify(self, rows: Sequence[AskedRow]) -> AnsweredRows:
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

    def _check(self, rows: Sequence[AskedRow], intervals: bool) -> AnsweredRows:
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
