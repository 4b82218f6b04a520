"""The process: its address and token, an orderly end, and what a kill loses."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import joblib
import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from command_line import refuse, run

import fragility as fg
from fragility.apps.serving.log import ServingLog, list_audits, read_events

pytest.importorskip("prometheus_client", reason="the extra `serve` is not installed")
pytest.importorskip("fastapi", reason="the extra `serve` is not installed")
uvicorn = pytest.importorskip("uvicorn", reason="the extra `serve` is not installed")

from fragility.apps.server import Connection  # noqa: E402
from fragility.apps.serving.app import listen  # noqa: E402

TOKEN = "a-token-of-32-letters-and-digits"


@pytest.fixture(scope="module")
def home(case, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("served")
    joblib.dump(case.model, folder / "model.joblib")
    case.protocol.save(folder / "protocol.json")
    return folder


def words(home: Path, *more: object) -> list[str]:
    given = ["serve", home / "model.joblib", "--trust", "--protocol", home / "protocol.json", *more]
    return [str(word) for word in given]


@contextmanager
def started(home: Path, *more: object, **environment: str) -> Iterator[tuple[subprocess.Popen, int]]:
    """Yield the process of a server and its port."""
    command = [sys.executable, "-m", "fragility", *words(home, "--port", 0, *more)]
    own = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=own) as process:
        try:
            address = process.stdout.readline().strip()
            assert address.startswith("http://"), process.stderr.read()
            yield process, int(address.rpartition(":")[2])
        finally:
            process.kill()


def ask(port: int, path: str, document: object, headers: dict[str, str] | None = None) -> tuple[int, dict]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        sent = {"content-type": "application/json", **(headers or {})}
        connection.request("GET" if document is None else "POST", path, document and json.dumps(document), sent)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def ids_of(log: Path) -> list[str]:
    return [own for batch in read_events(log, ["id"]) for own in batch.column("id").to_pylist()]


def check_verifies(case, log: Path) -> int:
    """Verify every audit folder of a log against its rows; return the number of certificates."""
    for audit in list_audits(log):
        stored = pq.read_table(log / "rows" / audit.name).to_pandas().set_index("id")
        outcome = fg.verify(audit, case.model, stored)
        assert outcome, str(outcome)
    return sum(len(fg.open_audit(audit)) for audit in list_audits(log))


def test_a_server_ends_well_and_its_log_is_read_by_the_other_commands(case, home, tmp_path) -> None:
    log, token = tmp_path / "log", tmp_path / "token.txt"
    token.write_text(TOKEN + "\n")
    token.chmod(0o644)
    with started(home, "--log", log, "--token-file", token) as (process, port):
        asked = {"rows": [{"row": row, "id": own} for row, own in zip(case.rows[:20], case.X.index, strict=False)]}
        assert ask(port, "/v1/certify", asked)[0] == 401
        status, answer = ask(port, "/v1/certify", asked, {"authorization": f"Bearer {TOKEN}"})
        assert status == 200 and len(answer["certificates"]) == 20 and ids_of(log) == []
        with_gap = {"row": {**case.rows[20], "age": None}, "id": "gap"}
        assert ask(port, "/v1/check", with_gap, {"authorization": f"Bearer {TOKEN}"})[0] == 200
        again = run(*words(home, "--log", log, "--port", 0))
        assert again.code == 2 and f"another server is writing to {log}; stop it first" in again.err
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=60)
        assert process.returncode == 0, said
        assert "21 rows were sealed" in said and TOKEN not in said
        assert f"every user of this machine can read the token in {token}; restrict it with chmod o-r" in said
    assert ids_of(log) == [*case.X.index[:20], "gap"] and os.listdir(log / "pending") == []
    audit, rows = log / "audits" / "000001", log / "rows" / "000001"
    model = ["--model", home / "model.joblib", "--trust", "--data", rows, "--id", "id"]
    verified = run("verify", audit, *model)
    assert verified.code == 0 and "21" in verified.out, verified.out + verified.err
    proof = run("sign", "prove", audit, "--row", "gap", "--out", tmp_path / "proof.json")
    assert proof.code == 0, proof.err
    report = run("report", audit, "--out", tmp_path / "report.html", "--data", rows, "--id", "id")
    assert report.code == 0 and (tmp_path / "report.html").stat().st_size > 10_000, report.err
    # the row as decided holds what stood in for the missing age
    stored = pq.read_table(rows).to_pandas().set_index("id")
    assert np.isfinite(stored.loc["gap", "age"]) and not stored["age"].isna().any()


def test_an_interrupt_finishes_what_is_in_flight(case, home, tmp_path) -> None:
    log, answers = tmp_path / "log", []
    with started(home, "--log", log, "--wait", "700ms") as (process, port):
        asking = threading.Thread(target=lambda: answers.append(ask(port, "/v1/certify", {"row": case.rows[0]})))
        asking.start()
        time.sleep(0.3)
        # Background jobs of a shell ignore interrupts, and so do the servers that they start.
        ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        process.send_signal(signal.SIGTERM if ignored else signal.SIGINT)
        asking.join(60)
        process.communicate(timeout=60)
        assert process.returncode == 0
    assert answers[0][0] == 200 and len(ids_of(log)) == 1


def test_a_log_that_cannot_be_sealed_at_the_end_is_said_so(case, home, tmp_path) -> None:
    log = tmp_path / "log"
    with started(home, "--log", log) as (process, port):
        assert ask(port, "/v1/certify", {"row": case.rows[0], "id": "x"})[0] == 200
        (log / "rows").rmdir()
        (log / "rows").write_text("in the way")
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=60)
        assert process.returncode == 2 and "Traceback" not in said, said
        assert f"fragility: cannot seal the log {log}: " in said
    (log / "rows").unlink()
    recover(case, log)
    assert ids_of(log) == ["x"] and check_verifies(case, log) == 1


@contextmanager
def listen_in_process(serve, **guards) -> Iterator[Callable[[], socket.socket]]:
    """Yield `connect()`, a connection to a server in this process."""
    with serve(**guards) as (client, _), listen("127.0.0.1", 0) as listening:
        config = uvicorn.Config(client.app, http=Connection, log_level="error", lifespan="off")
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        with ExitStack() as opened:
            address = listening.getsockname()
            yield lambda: opened.enter_context(socket.create_connection(address, timeout=20))
        server.should_exit = True
        thread.join()


@pytest.fixture
def connect(case, serve, monkeypatch) -> Iterator[Callable[[], socket.socket]]:
    """Return `connect()`, a connection to a server in this process that waits half a second for heads."""
    monkeypatch.setattr("fragility.apps.server.HEAD_SECONDS", 0.5)
    monkeypatch.setattr("fragility.apps.server.MOST_CONNECTIONS", 3)
    with listen_in_process(serve) as connect:
        yield connect


def read_refusal(connection: socket.socket) -> dict:
    """Read until the server closes the connection."""
    said = b""
    while piece := connection.recv(65536):
        said += piece
    head, _, body = said.partition(b"\r\n\r\n")
    assert b"content-type: application/json" in head and b"connection: close" in head
    return {"status": int(head.split()[1]), **json.loads(body)["error"]}


HEAD = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n"


def test_a_head_that_comes_slowly_is_ended(connect) -> None:
    told = "the head of a request must come within 0.5 seconds"
    silent, slow, later = connect(), connect(), connect()
    later.sendall(HEAD + b"\r\n")
    assert b"200 OK" in later.recv(65536)
    later.sendall(HEAD)  # the second request of a connection
    ended = threading.Event()

    def send_slowly() -> None:
        with suppress(OSError):
            for letter in HEAD * 10:
                slow.sendall(bytes([letter]))
                if ended.wait(0.05):
                    return

    sending = threading.Thread(target=send_slowly)
    sending.start()
    for connection in (silent, slow, later):
        assert read_refusal(connection) == {"status": 408, "code": "timeout", "message": told}
    ended.set()
    sending.join()


def test_what_is_no_http_is_refused_as_everything_else(connect) -> None:
    told = "the request is not valid HTTP, or its headers are too large"
    for sent in (b"\x16\x03\x01 tls\r\n\r\n", HEAD + b"Host: b\r\n\r\n", HEAD + b"X: " + b"a" * 10**5 + b"\r\n"):
        connection = connect()
        connection.sendall(sent)
        assert read_refusal(connection) == {"status": 400, "code": "not_http", "message": told}
        connection.close()


def test_connections_are_bounded(connect) -> None:
    kept = [connect() for _ in range(3)]
    for connection in kept:
        connection.sendall(HEAD + b"\r\n")
        assert b"200 OK" in connection.recv(65536)
    told = "3 connections are open; try again"
    assert read_refusal(connect()) == {"status": 503, "code": "overloaded", "message": told}


TOKEN = "a-token-of-32-letters-and-digits"
POST = b"POST /v1/check HTTP/1.1\r\nHost: 127.0.0.1\r\n"
KINDS = {
    401: POST + b"Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n",
    415: POST + b"Authorization: Bearer %b\r\nContent-Length: 1000\r\n\r\n" % TOKEN.encode(),
    413: POST
    + b"Authorization: Bearer %b\r\nContent-Type: application/json\r\nContent-Length: 9999999\r\n\r\n" % TOKEN.encode(),
    504: POST
    + b"Authorization: Bearer %b\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n" % TOKEN.encode(),
    400: POST + b"Authorization: Bearer %b\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n" % TOKEN.encode(),
}


def drip(connection: socket.socket, seconds: float) -> bytes:
    """Send a byte of a body now and then; return what came back, which ends when the server closes the connection."""
    said, until = b"", time.monotonic() + seconds
    connection.settimeout(0.05)
    while time.monotonic() < until:
        with suppress(TimeoutError):
            try:
                piece = connection.recv(65536)
            except ConnectionResetError:
                return said
            if not piece:
                return said
            said += piece
        with suppress(OSError):
            connection.sendall(b"x")
    raise AssertionError(f"the connection is open after {seconds:g} seconds; it said {said[:20]!r}")


@pytest.mark.parametrize("status", KINDS)
def test_a_refused_client_cannot_keep_its_connection(serve, monkeypatch, status) -> None:
    """Nor others out: with two connections at a time, health checks are answered while strangers drip."""
    monkeypatch.setattr("fragility.apps.server.MOST_CONNECTIONS", 3)
    monkeypatch.setattr("fragility.apps.guards.DRAIN_SECONDS", 0.3)
    with listen_in_process(serve, token=TOKEN, most_seconds=0.5) as connect:
        strangers = [connect(), connect()]
        for connection in strangers:
            connection.sendall(KINDS[status])
        for connection in strangers:
            said = drip(connection, 10.0)
            assert said.startswith(b"HTTP/1.1 %d " % status) and b"connection: close" in said.lower()
        healthy = connect()
        healthy.sendall(HEAD + b"\r\n")
        assert b"200 OK" in healthy.recv(65536)


def test_a_body_that_nobody_reads_does_not_keep_a_connection(serve, monkeypatch) -> None:
    """A health check needs no token, and its body is not read."""
    monkeypatch.setattr("fragility.apps.server.HEAD_SECONDS", 0.5)
    with listen_in_process(serve, token=TOKEN) as connect:
        connection = connect()
        connection.sendall(HEAD + b"Content-Length: 1000\r\n\r\n")
        assert drip(connection, 10.0).startswith(b"HTTP/1.1 200 OK")


def test_an_answer_that_is_never_read_does_not_keep_a_connection(case, serve, monkeypatch) -> None:
    monkeypatch.setattr("fragility.apps.server.UNREAD_SECONDS", 0.4)
    seen: list[Connection] = []
    made = Connection.connection_made
    monkeypatch.setattr(Connection, "connection_made", lambda self, *given: seen.append(self) or made(self, *given))
    monkeypatch.setattr("fragility.apps.serving.app.render_page", lambda *_: "x" * 2**24)  # more than the system takes
    with listen_in_process(serve) as connect:
        connection = connect()
        connection.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline and (not seen or seen[0] in seen[0].connections):
            time.sleep(0.05)
        assert seen and seen[0] not in seen[0].connections


def test_a_client_reads_why_its_large_request_is_refused(serve) -> None:
    """Its body is taken in, up to a bound, before the connection is closed."""
    with listen_in_process(serve, most_bytes=1000) as connect:
        connection = connect()
        head = POST + b"Content-Type: application/json\r\nContent-Length: 300000\r\n\r\n"
        connection.sendall(head + b" " * 300_000)
        assert read_refusal(connection)["code"] == "too_large"


def kill_under_load(case, home: Path, log: Path, after: float, first: int) -> set[str]:
    """Ask from four threads until the server is killed; return the ids that were acknowledged."""
    acknowledged: set[str] = set()
    with started(home, "--log", log, "--seal-rows", 15, "--seal-every", "500ms", "--roll", 100) as (process, port):

        def run_client(client: int) -> None:
            place = client
            while True:
                own = f"{first}-{place}"
                asked = {"row": case.rows[place % 300], "id": own}
                try:
                    status, _ = ask(port, "/v1/check" if place % 5 == 0 else "/v1/certify", asked)
                except (OSError, http.client.HTTPException, ValueError):
                    return
                if status == 200:
                    acknowledged.add(own)
                place += 4

        clients = [threading.Thread(target=run_client, args=(client,)) for client in range(4)]
        for client in clients:
            client.start()
        deadline = time.monotonic() + 60
        while len(acknowledged) < 12 and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(after)
        process.send_signal(signal.SIGKILL)
        for client in clients:
            client.join()
    assert len(acknowledged) >= 12
    return acknowledged


def recover(case, log: Path) -> None:
    manifest = case.audit(slice(0, 2)).manifest
    ServingLog.open(log, case.protocol, manifest).close()


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="this system cannot kill a process at once")
def test_a_kill_under_load_loses_nothing_acknowledged(case, home, tmp_path) -> None:
    log = tmp_path / "log"
    acknowledged = kill_under_load(case, home, log, 0.05, 0)
    recover(case, log)
    found = ids_of(log)
    assert acknowledged <= set(found) and len(found) == len(set(found))
    assert check_verifies(case, log) == len(found)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="this system cannot kill a process at once")
def test_twenty_kills_under_load_lose_nothing_acknowledged(case, home, tmp_path) -> None:
    log, acknowledged = tmp_path / "log", set()
    for number, after in enumerate(np.random.default_rng(5).uniform(0.0, 1.5, 20)):
        acknowledged |= kill_under_load(case, home, log, after, number)
    recover(case, log)
    found = ids_of(log)
    assert acknowledged <= set(found) and len(found) == len(set(found))
    assert check_verifies(case, log) == len(found)


# --- what is refused before anything is served ------------------------------------------------------------------


def test_addresses_of_other_machines_need_a_token(home, tmp_path, monkeypatch) -> None:
    monkeypatch.delenv("FRAGILITY_TOKEN", raising=False)
    for host in ("0.0.0.0", "::", "models.example"):
        said = refuse(*words(home, "--host", host))
        assert f"--host {host} can be reached from other machines, so it needs a token: write one to a file" in said
    monkeypatch.setenv("FRAGILITY_TOKEN", "short")
    said = refuse(*words(home))
    assert "the token in FRAGILITY_TOKEN must be at least 16 letters and digits without spaces; make one with" in said
    assert "short" not in said
    assert "cannot read the token" in refuse(*words(home, "--token-file", tmp_path / "absent"))
    (tmp_path / "token").write_bytes(b"\xff" * 40)
    assert "cannot read the token" in refuse(*words(home, "--token-file", tmp_path / "token"))


def test_wrong_options_are_refused(home, tmp_path) -> None:
    for option, value in {"--wait": "2 weeks", "--timeout": "-1s", "--seal-every": "soon"}.items():
        more = ["--log", tmp_path / "log"] if option == "--seal-every" else []
        said = refuse(*words(home, *more, option, value))
        assert f"{option} must be a time such as 2ms, 1.5s, 10min or 1h, got '{value}'" in said
    assert "--timeout and --seal-every must be above 0" in refuse(*words(home, "--timeout", "0s"))
    for option, value in {"--seal-rows": 5, "--roll": 5, "--seal-every": "5s"}.items():
        assert f"{option} has no effect without --log; give --log too" in refuse(*words(home, option, value))
    assert "--target has no effect without --train" in refuse(*words(home, "--target", "class"))
    (tmp_path / "notes.txt").write_text("mine")
    said = refuse(*words(home, "--log", tmp_path, "--port", 0))
    assert "exists and is not a log of `fragility serve`; choose another name" in said
    assert not (tmp_path / "log").exists()


def test_a_port_in_use_is_refused(home) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        said = refuse(*words(home, "--port", port))
        assert (
            f"cannot listen on 127.0.0.1, port {port}: Address already in use; choose another --host or --port" in said
        )


def test_answers_are_sent_at_once() -> None:
    """asyncio sets TCP_NODELAY only on sockets that name their protocol."""
    with listen("localhost", 0) as listening:
        assert listening.proto == socket.IPPROTO_TCP and listening.getsockname()[1] > 0


def test_times_are_read_with_their_units() -> None:
    from fragility.cli.deployed import parse_time

    times = {"2ms": 0.002, "1.5s": 1.5, "10min": 600.0, "1h": 3600.0, "7": 7.0, " 3 s ": 3.0}
    assert {text: parse_time(text, "--wait") for text in times} == pytest.approx(times)


def test_a_policy_rates_and_training_rows_are_used(case, home, tmp_path) -> None:
    certs = fg.audit(case.model, case.X, case.protocol, progress=False)
    labels = fg.label_brittle(case.model, case.X, case.protocol, fg.Stress(tau_confidence=0.6))
    policy = fg.ReviewPolicy.fit(certs, labels, risk=0.4, min_confidence=0.6)
    policy.save(tmp_path / "policy.json")
    pd.concat([case.X]).reset_index(drop=True).to_parquet(tmp_path / "train.parquet")
    more = ["--policy", tmp_path / "policy.json", "--rates", 0.05, "--train", tmp_path / "train.parquet"]
    with started(home, *more) as (_, port):
        status, answer = ask(port, "/v1/check", {"row": case.rows[3], "missing": ["age"]})
        assert status == 200 and answer["logged"] is False
        check = answer["check"]
        assert check["review"] in (True, False) and 0 <= check["failure_probability"] <= 1
        guard = fg.Guard(case.model, case.protocol, policy, 0.05, training=case.X, conditional=True)
        own = guard.check(case.rows[3], missing=["age"]).to_dict()
        assert {name: check[name] for name in ("p_change", "review", "failure_probability")} == {
            name: own[name] for name in ("p_change", "review", "failure_probability")
        }
