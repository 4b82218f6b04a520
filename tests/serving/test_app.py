"""The endpoints: answers are those of audit and Guard, whatever the batches; every refusal is one sentence."""

from __future__ import annotations

import datetime as dt
import json
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from html import escape

import pandas as pd
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fragility as fg
from fragility.apps.guards import RequestError
from fragility.apps.serving.batching import Batcher, BatchRules
from fragility.apps.serving.entries import JournalError
from fragility.apps.serving.log import SealingRules, list_audits, read_events
from fragility.apps.serving.requests import AnsweredRows, RequestReader
from fragility.apps.serving.sealing import SealedAudit

pytest.importorskip("prometheus_client", reason="the extra `serve` is not installed")
pytest.importorskip("fastapi", reason="the extra `serve` is not installed")


def plain(certs: fg.Certificates) -> list[dict]:
    return json.loads(json.dumps(certs.table.to_pylist()))


def test_a_certificate_is_the_one_of_audit(case, serve) -> None:
    expected = plain(case.audit(slice(0, 3)))
    with serve() as (client, _):
        one = client.post("/v1/certify", json={"row": case.rows[0], "id": "L600"})
        assert one.status_code == 200 and one.json()["certificate"] == expected[0]
        assert one.json()["logged"] is False and pd.Timestamp(one.json()["time"]).tzinfo is not None
        asked = [{"row": row, "id": own} for row, own in zip(case.rows[:3], case.X.index, strict=False)]
        many = client.post("/v1/certify", json={"rows": asked})
        assert many.json()["certificates"] == expected
        unnamed = client.post("/v1/certify", json={"row": case.rows[0]}).json()["certificate"]
        assert len(unnamed["id"]) == 32 and unnamed["margin"] == expected[0]["margin"]
        numbered = client.post("/v1/certify", json={"row": case.rows[0], "id": 600}).json()["certificate"]
        assert numbered["id"] == "600"


def test_a_check_is_the_one_of_guard(case, serve) -> None:
    guard, row = fg.Guard(case.model, case.protocol), case.rows[1]
    with serve() as (client, _):
        lacking = {name: value for name, value in row.items() if name != "age"}
        asked = {"row": lacking, "missing": ["age"], "stale": ["housing"], "id": "a", "intervals": True}
        found = client.post("/v1/check", json=asked).json()["check"]
        expected = guard.check(lacking, missing=["age"], stale=["housing"], id="a", intervals=True).to_dict()
        assert found == json.loads(json.dumps(expected)) and found["p_change"] is not None and found["intervals"]
        rows = [{"row": {**row, "age": None}, "id": "b"}, {"row": row, "id": "c", "stale": ["age"]}]
        checks = client.post("/v1/check", json={"rows": rows}).json()["checks"]
        assert [check["missing"] for check in checks] == [["age"], []]  # its own nulls count
        assert [check["stale"] for check in checks] == [[], ["age"]]
        assert checks[1] == json.loads(json.dumps(guard.check(row, stale=["age"], id="c").to_dict()))


@pytest.mark.parametrize("wait", [0.0, 0.02])
def test_concurrent_requests_give_the_bytes_of_audit(case, serve, tmp_path, wait) -> None:
    n, log = 60, tmp_path / "log"
    expected = dict(zip(case.X.index[:n], plain(case.audit(slice(0, n))), strict=True))
    with serve(log, SealingRules(seal_rows=7), batches=BatchRules(wait, 16)) as (client, service):
        names = list(case.X.index[:n])

        def ask(place: int) -> dict:
            asked = {"row": case.rows[place], "id": names[place]}
            if place % 3:
                return client.post("/v1/certify", json=asked).json()["certificate"]
            return client.post("/v1/check", json={**asked, "missing": []}).json()["check"]

        with ThreadPoolExecutor(12) as pool:
            answers = list(pool.map(ask, range(n)))
        for place, answer in enumerate(answers):
            own = expected[names[place]]
            assert answer == own if place % 3 else answer["digest"] == own["digest"]
        batches = service.metrics.registry.get_sample_value("fragility_batch_rows_count")
        assert batches < n  # some were answered together
    found = {}
    for audit in list_audits(log):
        stored = pq.read_table(log / "rows" / audit.name).to_pandas().set_index("id")
        outcome = fg.verify(audit, case.model, stored)
        assert outcome, str(outcome)
        found |= {row["id"]: row for row in plain(fg.Certificates.load(audit))}
    assert found == expected


def test_a_row_that_cannot_be_answered_spoils_no_other(case, serve, tmp_path) -> None:
    with serve(tmp_path / "log", batches=BatchRules(0.05, 64)) as (client, _):
        bad = {"row": {**case.rows[0], "duration": None}}  # the scaler takes it, logistic regression does not

        def ask(place: int):
            return client.post("/v1/certify", json=bad if place == 2 else {"row": case.rows[place]})

        with ThreadPoolExecutor(5) as pool:
            answers = list(pool.map(ask, range(5)))
        assert [answer.status_code for answer in answers] == [200, 200, 422, 200, 200]
        error = answers[2].json()["error"]
        assert error["code"] == "not_answerable" and "NaN" in error["message"]
    assert sum(batch.num_rows for batch in read_events(tmp_path / "log")) == 4


def test_a_refused_row_of_many_is_named_and_found_quickly(case, serve, answering, tmp_path) -> None:
    counted = Slow(answering[0], 0.0)
    rows = [{"row": row} for row in case.rows[:40]]
    rows[29] = {"row": {**case.rows[29], "duration": None}}
    with serve(tmp_path / "log", answers=counted) as (client, _):
        error = client.post("/v1/certify", json={"rows": rows}).json()["error"]
        assert error["code"] == "not_answerable" and error["row"] == 29
        assert counted.asked < 10
        counted.asked = 0
        named = [{**row, "id": str(place)} for place, row in enumerate(rows)]
        error = client.post("/v1/certify", json={"rows": named}).json()["error"]
        assert error["code"] == "not_answerable" and error["row"] == 29
        assert counted.asked < 15  # not one by one


def test_a_row_that_cannot_be_logged_spoils_no_other(case, serve, tmp_path, monkeypatch) -> None:
    """Whatever making an entry raises, the thread that answers goes on."""
    make = AnsweredRows.to_entry

    def fail(self, asked):
        if any(row.id == "poison" for row in asked):
            raise OverflowError("int too big to convert")
        return make(self, asked)

    monkeypatch.setattr(AnsweredRows, "to_entry", fail)
    with serve(tmp_path / "log", batches=BatchRules(0.1, 64)) as (client, _):
        names = ["a", "poison", "b"]
        with ThreadPoolExecutor(3) as pool:
            asked = [{"row": row, "id": name} for row, name in zip(case.rows, names, strict=False)]
            answers = list(pool.map(lambda each: client.post("/v1/certify", json=each), asked))
        assert [answer.status_code for answer in answers] == [200, 422, 200]
        told = "the row cannot be logged: OverflowError: int too big to convert"
        assert answers[1].json() == {"error": {"code": "not_loggable", "message": told, "row": 0}}
        assert client.post("/v1/certify", json={"row": case.rows[5]}).status_code == 200


def test_an_id_that_the_server_made_cannot_be_used_again(case, serve, tmp_path) -> None:
    """Twice the same id in an audit folder could not be sealed any more."""
    log = tmp_path / "log"
    with serve(log, SealingRules(seal_rows=1)) as (client, _):
        made = client.post("/v1/certify", json={"row": case.rows[0]}).json()["certificate"]["id"]
        for row in case.rows[:2]:
            answer = client.post("/v1/certify", json={"row": row, "id": made})
            assert answer.status_code == 409 and answer.json()["error"]["code"] == "used_id"
    with serve(log) as (client, _):
        assert client.post("/v1/certify", json={"row": case.rows[1], "id": made}).status_code == 409
    assert sum(batch.num_rows for batch in read_events(log)) == 1


def test_a_request_for_intervals_is_another_request(case, serve, tmp_path) -> None:
    """Two who ask under one id at once must not share an answer that only one of them asked for."""
    with serve(tmp_path / "log", batches=BatchRules(0.1, 64)) as (client, _):
        asked = [{"row": case.rows[0], "id": "same", "intervals": wanted} for wanted in (False, True)]
        with ThreadPoolExecutor(2) as pool:
            answers = list(pool.map(lambda each: client.post("/v1/check", json=each), asked))
        assert sorted(answer.status_code for answer in answers) == [200, 409]


def test_a_request_is_queued_whole_or_not_at_all(case, serve, answering, tmp_path) -> None:
    with serve(tmp_path / "log", batches=BatchRules(0.0, 1, most_queued=3)) as (client, service):
        rows = [{"row": row, "id": str(place)} for place, row in enumerate(case.rows[:4])]
        assert client.post("/v1/certify", json={"rows": rows}).status_code == 503
        assert client.post("/v1/certify", json={"rows": rows[3:]}).status_code == 200
        assert service.log.rows_logged == 1


def test_ids_make_requests_repeatable(case, serve, tmp_path) -> None:
    log = tmp_path / "log"
    asked = {"row": case.rows[0], "id": "mine"}
    with serve(log) as (client, _):
        first = client.post("/v1/certify", json=asked).json()["certificate"]
        again = client.post("/v1/certify", json=dict(reversed(asked.items()))).json()
        assert again["certificate"] == first and again["logged"] is True
        other = client.post("/v1/certify", json={**asked, "row": case.rows[1]})
        assert other.status_code == 409
        told = "the id 'mine' of row 0 was used for another request; choose another id"
        assert other.json() == {"error": {"code": "used_id", "message": told, "row": 0}}
        mixed = {"rows": [{"row": case.rows[1], "id": "new"}, asked, {"row": case.rows[2]}]}
        found = client.post("/v1/certify", json=mixed).json()["certificates"]
        assert [one["id"] for one in found[:2]] == ["new", "mine"] and found[1] == first
        twice = client.post("/v1/certify", json={"rows": [asked, asked]})
        assert twice.status_code == 409
        assert (
            twice.json()["error"]["message"] == "the rows 0 and 1 of the request have the id 'mine'; give each its own"
        )
    with serve(log) as (client, _):  # and after a restart
        assert client.post("/v1/certify", json=asked).json()["certificate"] == first
        assert client.post("/v1/check", json=asked).status_code == 409
    ids = [own for batch in read_events(log, ["id"]) for own in batch.column("id").to_pylist()]
    assert ids[:2] == ["mine", "new"] and len(ids) == 3


def test_two_who_ask_the_same_at_once_share_an_answer(case, serve, tmp_path) -> None:
    with serve(tmp_path / "log", batches=BatchRules(0.1, 64)) as (client, _):
        asked = {"row": case.rows[0], "id": "same"}
        with ThreadPoolExecutor(6) as pool:
            answers = list(pool.map(lambda _: client.post("/v1/check", json=asked), range(6)))
        assert {answer.status_code for answer in answers} == {200}
        assert len({json.dumps(answer.json()["check"]) for answer in answers}) == 1
    assert sum(batch.num_rows for batch in read_events(tmp_path / "log")) == 1


# --- refusals ---------------------------------------------------------------------------------------------------

FULL = "cannot write to the log: No space left on device"
UNKNOWN = "the model has no such field; its fields are duration, credit_amount, age, checking_status, housing"
WRONG = [
    ("{", 400, "not_json", "the body must be JSON: Expecting property name"),
    (b"\xff{}", 400, "not_json", "the body must be JSON in UTF-8; it is not UTF-8"),
    ('{"row": {"age": NaN}}', 400, "not_json", "the body must be JSON: NaN is not a JSON number"),
    ('{"row": {"age": 1e999}}', 400, "not_json", "the body must be JSON: 1e999 is beyond the range of a double"),
    ('{"row": {}, "row": {}}', 400, "not_json", "the body must be JSON: the name 'row' occurs twice in one object"),
    ('{"row": "\\ud800"}', 400, "not_json", "the body must be JSON: it holds a lone surrogate"),
    ("[" * 100_000, 400, "not_json", "the body must be JSON: it is nested absurdly deep"),
    ("[" * 100 + "]" * 100, 400, "not_json", "the body must be JSON: it is nested more than 60 deep"),
    ("3", 422, "not_an_object", "the body must be a JSON object, got a whole number (3)"),
    ({}, 422, "wrong_type", "row 0 must hold the field values as an object under 'row', got null"),
    ({"rows": {}}, 422, "too_many_rows", "rows must be a list of 1 to 50 rows, got an object"),
    ({"rows": [{"row": {}}] * 51}, 422, "too_many_rows", "rows must be a list of 1 to 50 rows, got 51 rows"),
    ({"rows": [3]}, 422, "wrong_type", "row 0 must be an object, got a whole number (3)"),
    ({"rows": [{"row": {}}], "row": {}}, 422, "unknown_field", "the body of a request to /v1/check names 'row'; its "),
    ({"row": {}, "extra": 1}, 422, "unknown_field", "the body of a request to /v1/check names 'extra'; its names are "),
    ({"row": {"agee": 1}}, 422, "unknown_field", f"row 0 names 'agee'; {UNKNOWN}"),
    ({"row": {"age": 1}}, 422, "absent_field", "row 0 lacks 'duration', 'credit_amount', 'checking_status', 'h"),
    ({"row": {}, "missing": ["wage"]}, 422, "unknown_field", "missing of row 0 names 'wage'; the model has no such f"),
    ({"row": {}, "stale": "age"}, 422, "wrong_type", 'stale of row 0 must be a list of field names, got text ("age")'),
    ({"row": {}, "missing": [None]}, 422, "wrong_type", "missing of row 0 must be a list of field names, got a list"),
    ({"row": {}, "intervals": 1}, 422, "wrong_type", "intervals must be true or false, got a whole number (1)"),
]  # fmt: skip
VALUES = [
    ("age", "41", "wrong_type", "'age' of row 0 must be a whole number or null, got text (\"41\")"),
    ("age", True, "wrong_type", "'age' of row 0 must be a whole number or null, got true or false (true)"),
    ("age", 2**53 + 2, "out_of_range", "'age' of row 0 is beyond 2**53, where JSON numbers are no longer exact"),
    ("age", 1e18, "out_of_range", "'age' of row 0 is beyond 2**53, where JSON numbers are no longer exact"),
    ("age", -1e300, "out_of_range", "'age' of row 0 is beyond 2**53, where JSON numbers are no longer exact"),
    ("housing", 7, "wrong_type", "'housing' of row 0 must be text or null, got a whole number (7)"),
    ("housing", ["own"], "wrong_type", "'housing' of row 0 must be text or null, got a list"),
    ("housing", {}, "wrong_type", "'housing' of row 0 must be text or null, got an object"),
]
IDS = [
    *((text, "text") for text in ("", "x" * 201, "a\0", "a\nb", "\x1b[31m", "\u202e", "\u2028", "x" * 10**5)),
    *((1.5, "a number"), (True, "true or false"), ([], "a list")),
]


@pytest.fixture
def refuse(serve):
    with serve() as (client, _):

        def ask(body, path: str = "/v1/check") -> tuple[int, dict]:
            content = body if isinstance(body, (str, bytes)) else json.dumps(body)
            answer = client.post(path, content=content, headers={"content-type": "application/json"})
            assert list(answer.json()) == ["error"]
            return answer.status_code, answer.json()["error"]

        yield ask


def test_wrong_requests_are_refused_in_a_sentence(case, refuse) -> None:
    for body, status, code, told in WRONG:
        found, error = refuse(body)
        assert (found, error["code"]) == (status, code) and error["message"].startswith(told), (body, error)
    for name, value, code, told in VALUES:
        found, error = refuse({"row": {**case.rows[0], name: value}})
        assert (found, error["code"], error["row"]) == (422, code, 0) and error["message"].startswith(told), error
    for own_id, kind in IDS:
        found, error = refuse({"row": case.rows[0], "id": own_id})
        told = f"the id of row 0 must be text of 1 to 200 printable characters or a whole number, got {kind}"
        assert (found, error["code"]) == (422, "wrong_id") and error["message"].startswith(told)
    found, error = refuse({"row": case.rows[0], "missing": ["age"]}, "/v1/certify")
    assert found == 422 and error["message"].startswith("the body of a request to /v1/certify names 'missing'")
    found, error = refuse({"row": case.rows[0], "missing": ["age"], "stale": ["age"]})
    told = "row 0 names 'age' as missing and as stale; name it once"
    assert (found, error) == (422, {"code": "missing_and_stale", "message": told, "row": 0})


NAMES = st.sampled_from(["row", "rows", "id", "missing", "stale", "intervals", "age", "housing"])
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5)
ANY_JSON = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4), max_leaves=12
)


@given(ANY_JSON)
def test_any_json_is_read_or_refused(case, document) -> None:
    reader = RequestReader(case.protocol, 5)
    try:
        body = json.dumps(document, allow_nan=False).encode()
    except ValueError:
        return
    for kind in ("check", "certify"):
        try:
            asked = reader.read(body, kind)
        except RequestError as error:
            assert 400 <= error.status < 500 and str(error)
        else:
            assert 1 <= len(asked.rows) <= 5


def test_unknown_paths_and_methods(serve) -> None:
    with serve() as (client, _):
        for method, path, status, code in [
            ("GET", "/x", 404, "not_found"),
            ("GET", "/v1/check", 405, "wrong_method"),
            ("GET", "/v1/check/", 404, "not_found"),  # no redirect
        ]:
            answer = client.request(method, path)
            assert answer.status_code == status and answer.json()["error"]["code"] == code
            assert answer.json()["error"]["message"].endswith("see /openapi.json")


def test_guards(case, serve) -> None:
    asked = {"row": case.rows[0]}
    with serve(most_bytes=400) as (client, _):
        large = client.post("/v1/check", json={"row": {**case.rows[0], "housing": "x" * 400}})
        told = "a request holds at most 400 bytes; send fewer rows at a time"
        assert large.status_code == 413 and large.json() == {"error": {"code": "too_large", "message": told}}
        parts = (piece for piece in [b"{" * 300, b"{" * 300])  # no length is announced
        chunked = client.post("/v1/check", content=parts, headers={"content-type": "application/json"})
        assert chunked.status_code == 413
        form = client.post("/v1/check", content=b"{}", headers={"content-type": "text/plain"})
        assert form.status_code == 415 and form.json()["error"]["message"] == "send the body as application/json"
        for host in (
            *("evil.example", "evil.example:8809", "127.0.0.1.evil.example", "", "localhost.evil:8809"),
            *("127.0.0.1:8809, evil.example", "127.0.0.1:1@evil.example", "localhost:", "[::1", "[::2]", "127.0.0.1:x"),
        ):
            answer = client.get("/", headers={"host": host})
            assert answer.status_code == 403 and answer.json()["error"]["code"] == "wrong_host"
        for host in ("localhost:8809", "127.0.0.1", "[::1]:8809", "127.0.0.2:8809", "LOCALHOST"):
            assert client.get("/healthz", headers={"host": host}).status_code == 200
            assert client.head("/readyz", headers={"host": host}).status_code == 200
        foreign = client.post("/v1/check", json=asked, headers={"origin": "https://evil.example"})
        assert foreign.status_code == 403 and foreign.json()["error"]["code"] == "wrong_origin"
        own = client.post("/v1/check", json=asked, headers={"origin": "http://127.0.0.1:8809"})
        assert own.status_code == 200 and own.headers["x-content-type-options"] == "nosniff"
    token = "a-token-of-32-letters-and-digits"
    with serve(base="http://models.example", token=token) as (client, _):
        for headers in (
            {},
            {"authorization": "Bearer x"},
            {"authorization": token},
            {"authorization": f"Basic {token}"},
        ):
            answer = client.post("/v1/check", json=asked, headers=headers)
            assert answer.status_code == 401 and answer.headers["www-authenticate"] == "Bearer"
            told = "send the server's token as 'Authorization: Bearer TOKEN'"
            assert answer.json() == {"error": {"code": "unauthorized", "message": told}}
            assert client.get("/metrics", headers=headers).status_code == 401
        assert client.get("/healthz").status_code == client.get("/readyz").status_code == 200
        assert client.post("/v1/check", json=asked, headers={"authorization": f"bearer {token}"}).status_code == 200
        headers = {"authorization": f"bearer {token}", "host": "[::1"}
        assert client.get("/x", headers=headers).json()["error"]["code"] == "not_found"
        document = client.get("/openapi.json", headers={"authorization": f"Bearer {token}"}).json()
        assert document["security"] == [{"token": []}] and document["paths"]["/healthz"]["get"]["security"] == []
        assert token not in repr(vars(client.app))


class Slow:
    """Answers like another, slowly."""

    def __init__(self, inner, seconds: float = 0.3) -> None:
        self.inner, self.model, self.protocol, self.asked, self.seconds = inner, inner.model, inner.protocol, 0, seconds

    def start_at(self, when) -> None:
        pass

    def answer(self, *given, **named):
        self.asked += 1
        time.sleep(self.seconds)
        return self.inner.answer(*given, **named)


def test_a_request_that_takes_too_long_is_ended(case, serve, answering, tmp_path) -> None:
    slow = Slow(answering[0])
    with serve(tmp_path / "log", answers=slow, most_seconds=0.15, batches=BatchRules(0.0, 1)) as (client, service):
        with ThreadPoolExecutor(4) as pool:
            answers = list(pool.map(lambda place: client.post("/v1/certify", json={"row": case.rows[place]}), range(4)))
        for answer in answers:
            told = "the request took longer than 0.15 seconds; send fewer rows"
            assert answer.status_code == 504 and answer.json() == {"error": {"code": "timeout", "message": told}}
        time.sleep(0.5)
        assert slow.asked < 4 and service.batcher.queued == 0  # rows that nobody waits for are dropped
        value = service.metrics.registry.get_sample_value
        assert value("fragility_answers_total", {"endpoint": "certify", "status": "504"}) == 4


def test_a_full_queue_refuses(case, serve, answering) -> None:
    slow = Slow(answering[0])
    with serve(answers=slow, batches=BatchRules(0.0, 1, most_queued=2)) as (client, service):
        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(lambda place: client.post("/v1/certify", json={"row": case.rows[place]}), range(8)))
        refused = [answer for answer in answers if answer.status_code == 503]
        assert refused and any(answer.status_code == 200 for answer in answers)
        assert refused[0].headers["retry-after"] == "1" and refused[0].json()["error"]["code"] == "overloaded"
        assert refused[0].json()["error"]["message"].endswith("rows wait for an answer already; try again in a moment")
        service.refuse_more()
        stopping = client.post("/v1/certify", json={"row": case.rows[0]})
        assert stopping.status_code == 503 and stopping.json()["error"]["code"] == "stopping"
        assert client.get("/readyz").status_code == 503 and client.get("/healthz").status_code == 200


def test_an_answer_that_cannot_be_logged_is_withheld(case, serve, tmp_path, monkeypatch) -> None:
    with serve(tmp_path / "log", SealingRules(seal_seconds=0.01)) as (client, service):
        with monkeypatch.context() as patch:

            def fail(*_):
                raise JournalError(FULL)

            patch.setattr(service.log, "append", fail)
            answer = client.post("/v1/certify", json={"row": case.rows[0], "id": "x"})
            told = f"the answer is withheld because it could not be logged: {FULL}"
            assert answer.status_code == 503 and answer.json() == {"error": {"code": "not_logged", "message": told}}
        assert client.post("/v1/certify", json={"row": case.rows[1], "id": "x"}).status_code == 200  # the id is free
        with monkeypatch.context() as patch:
            patch.setattr(service.log, "seal", lambda: fail())
            deadline = time.monotonic() + 20
            while client.get("/readyz").status_code == 200 and time.monotonic() < deadline:
                time.sleep(0.05)
            assert client.get("/readyz").json()["error"]["code"] == "log_fault"
        deadline = time.monotonic() + 20
        while client.get("/readyz").status_code == 503 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert client.get("/readyz").json() == {"status": "ready"}


def test_sealing_goes_on_after_any_error(case, serve, tmp_path, monkeypatch) -> None:
    def fail(*_):
        raise ValueError("unforeseen")

    with serve(tmp_path / "log", SealingRules(seal_rows=1)) as (client, service):
        with monkeypatch.context() as patch:
            patch.setattr(SealedAudit, "seal", fail)
            assert client.post("/v1/certify", json={"row": case.rows[0]}).status_code == 200
            deadline = time.monotonic() + 20
            while service.fault is None and time.monotonic() < deadline:
                time.sleep(0.05)
            told = {"error": {"code": "log_fault", "message": "ValueError: unforeseen"}}
            assert client.get("/readyz").json() == told
        deadline = time.monotonic() + 20
        while service.log.rows_sealed == 0 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert service.log.rows_sealed == 1


def test_times_do_not_go_back_after_a_restart(case, serve, answering, tmp_path, monkeypatch) -> None:
    with serve(tmp_path / "log") as (client, _):
        first = client.post("/v1/certify", json={"row": case.rows[0]}).json()["time"]
    monkeypatch.setattr(answering[0], "_last", dt.datetime.min.replace(tzinfo=dt.UTC))  # a new process
    shown = [dt.datetime.fromisoformat(first) - dt.timedelta(minutes=50)]

    class Clock(dt.datetime):
        @classmethod
        def now(cls, tz=None):
            return shown[0]

    monkeypatch.setattr("fragility.apps.serving.requests.dt.datetime", Clock)
    with serve(tmp_path / "log") as (client, _):
        assert client.post("/v1/certify", json={"row": case.rows[1]}).json()["time"] == first
        # A clock that is behind by more was wrong before: what follows is not dated by it for years.
        shown[0] = dt.datetime.fromisoformat(first) - dt.timedelta(days=1500)
        assert client.post("/v1/certify", json={"row": case.rows[2]}).json()["time"] == shown[0].isoformat()


def test_times_do_not_go_back_where_a_row_comes_alone(case, serve, answering, tmp_path) -> None:
    """A row that comes alone is written by the thread that answers, while another thread is about to write others."""
    made = answering[0]
    with serve(tmp_path / "log") as (_, service):
        log, other, begun = service.log, threading.Event(), threading.Event()
        own, batcher = log.append, Batcher(made, service.log, BatchRules(), service.metrics)

        def append(*entries):
            if not begun.is_set():  # the first to come is held up
                begun.set()
                other.wait(0.5)
            own(*entries)
            other.set()

        log.append = append
        reader = RequestReader(case.protocol, 10)
        rows = [reader.read(json.dumps({"row": row}).encode(), "certify").rows for row in case.rows[:2]]
        entries = [made.answer("certify", asked).to_entry(asked) for asked in rows]
        first = batcher._begin_writing(entries[0], alone=False)
        assert begun.wait(20)
        second = batcher._begin_writing(entries[1], alone=True)
        first.result(20), second.result(20)
        del log.append
    times = [time for batch in read_events(tmp_path / "log", ["time"]) for time in batch.column("time").to_pylist()]
    assert len(times) == 2 and times == sorted(times)


def test_a_broken_log_is_not_ready(case, serve, tmp_path, monkeypatch) -> None:
    def fail(*_):
        raise OSError(5, "Input/output error")

    with serve(tmp_path / "log") as (client, _):
        assert client.post("/v1/certify", json={"row": case.rows[0]}).status_code == 200
        with monkeypatch.context() as patch:
            for call in ("fdatasync", "ftruncate"):
                patch.setattr(os, call, fail)
            answer = client.post("/v1/certify", json={"row": case.rows[1]})
        assert answer.status_code == 503 and answer.json()["error"]["message"].endswith("Input/output error")
        told = "a write to the log has failed; restart the server when the disk is in order"
        assert client.get("/readyz").json() == {"error": {"code": "log_fault", "message": told}}
        assert client.post("/v1/certify", json={"row": case.rows[1]}).status_code == 503


def test_a_model_that_fails_is_said_to(case, serve, answering, monkeypatch) -> None:
    def fail(*_, **__):
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr(answering[0].auditor, "certify", fail)
    with serve() as (client, _):
        answer = client.post("/v1/certify", json={"row": case.rows[0]})
        told = "the model cannot answer: ZeroDivisionError: division by zero"
        assert answer.status_code == 500
        assert answer.json() == {"error": {"code": "model_failed", "message": told, "row": 0}}


# --- metrics and descriptions -----------------------------------------------------------------------------------


def test_metrics_count_what_was_answered(case, serve, tmp_path) -> None:
    with serve(tmp_path / "log", SealingRules(seal_rows=3)) as (client, service):
        client.post("/v1/check", json={"row": {**case.rows[0], "age": None}, "stale": ["housing"], "id": "x"})
        client.post("/v1/check", json={"row": {**case.rows[0], "age": None}, "stale": ["housing"], "id": "x"})
        client.post("/v1/certify", json={"rows": [{"row": row} for row in case.rows[:4]]})
        client.post("/v1/certify", json={"row": {}})
        client.get("/metrics", headers={"host": "evil.example"})
        deadline = time.monotonic() + 20
        while not service.log.rows_sealed and time.monotonic() < deadline:
            time.sleep(0.05)
        answer = client.get("/metrics")
        assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
        value = service.metrics.registry.get_sample_value
        decided = sum(value("fragility_decisions_total", {"decision": label}) or 0 for label in ("good", "bad"))
        assert decided == value("fragility_exposure_count") == value("fragility_logged_rows_total") == 5
        assert value("fragility_missing_fields_total", {"field": "age"}) == 1
        assert value("fragility_stale_fields_total", {"field": "housing"}) == 1
        assert value("fragility_p_change_count") == 1 and value("fragility_reviews_total") == 0
        assert value("fragility_sealed_rows_total") == 5 and value("fragility_pending_rows") == 0
        assert value("fragility_answers_total", {"endpoint": "certify", "status": "422"}) == 1
        assert value("fragility_errors_total", {"code": "absent_field"}) == 1
        assert value("fragility_errors_total", {"code": "wrong_host"}) == 1
        assert value("fragility_request_seconds_count", {"endpoint": "check"}) == 2
        assert value("fragility_queue_rows") == 0
        assert 'fragility_missing_fields_total{field="age"} 1.0' in answer.text


def test_the_description_names_every_field(case, serve) -> None:
    with serve() as (client, _):
        document = client.get("/openapi.json").json()
        row = document["components"]["schemas"]["Row"]
        assert list(row["properties"]) == [field.name for field in case.protocol.fields]
        assert row["properties"]["age"]["type"] == ["integer", "null"]
        assert row["properties"]["housing"] == {"type": ["string", "null"], "x-kind": "nominal"}
        one, many = document["paths"]["/v1/check"]["post"]["requestBody"]["content"]["application/json"]["schema"][
            "oneOf"
        ]
        assert set(one["properties"]) == {"row", "id", "missing", "stale", "intervals"}
        assert many["properties"]["rows"]["maxItems"] == 50
        example = document["paths"]["/v1/check"]["post"]["requestBody"]["content"]["application/json"]["example"]
        assert all(value is not None for value in example["row"].values())
        assert client.post("/v1/check", json=example).status_code == 200
        page = client.get("/")
        assert all(f"<td>{field.name}</td>" in page.text for field in case.protocol.fields)
        assert all(f"<td><code>{name}</code></td>" in page.text for name in one["properties"])
        assert "<script" not in page.text and "https://" not in page.text and 'name="viewport"' in page.text
        policy = page.headers["content-security-policy"]
        assert "default-src 'none'" in policy and 'href="data:,"' in page.text and "img-src data:" in policy
        model = fg.Model.wrap(case.model)
        assert escape(model.kind) in page.text and model.fingerprint in page.text and case.protocol.digest in page.text
        assert document["info"]["x-model"] == {"kind": model.kind, "fingerprint": model.fingerprint}


def test_the_event_loop_stays_responsive(case, serve, answering) -> None:
    begun, released = threading.Event(), threading.Event()

    class Held(Slow):
        def answer(self, *given, **named):
            begun.set()
            assert released.wait(60)
            return self.inner.answer(*given, **named)

    with serve(answers=Held(answering[0])) as (client, _), ThreadPoolExecutor(1) as pool:
        asking = pool.submit(client.post, "/v1/certify", json={"row": case.rows[0]})
        assert begun.wait(60)
        assert client.get("/healthz").status_code == 200 and not asking.done()
        released.set()
        assert asking.result().status_code == 200
