"""Who gets in, seen from a real browser: the token, other servers of this machine, and what a signal leaves behind."""

import os
import re
import signal
import stat
import sys
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from reviewing import Browser, browser
from workbench import Client, started

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs a system with /proc or signals")


def wait_for(holds, seconds: float = 30.0):
    """Wait until something is true, and return it."""
    until = time.monotonic() + seconds
    while not (found := holds()):
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.05)
    return found


def command_lines() -> list[str]:
    """The command line of every process that is running, as any user of the machine can read them."""
    if not Path("/proc/self/cmdline").exists():
        pytest.skip("this system has no /proc")
    found = []
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(each.read_text(errors="replace"))
        except OSError:
            continue  # it has ended
    return found


@contextmanager
def opened(audited, folder: Path):
    """The workbench as a user starts it, with a stand-in for the browser that notes what it is told to open."""
    noted, temporary = folder / "told.txt", folder / "tmp"
    temporary.mkdir()
    script = folder / "open.py"
    script.write_text(f"import sys, time\nopen({str(noted)!r}, 'w').write(sys.argv[1])\ntime.sleep(60)\n")
    command = f"{sys.executable} {script} %s"
    with started(audited, folder / "review.sqlite", browser=command, TMPDIR=str(temporary)) as (process, address):
        yield process, address, lambda: wait_for(lambda: noted.exists() and noted.read_text()), temporary


@pytest.mark.slow
def test_the_token_is_on_no_command_line_and_works_once(audited, tmp_path):
    with opened(audited, tmp_path) as (process, address, told, temporary):
        link = told()
        token, host = address.partition("token=")[2], urlsplit(address).hostname
        file = Path(urlsplit(link).path)
        assert link.startswith("file://") and stat.S_IMODE(file.stat().st_mode) == 0o600
        assert token in file.read_text()
        running = command_lines()
        assert any(str(file) in line for line in running)
        assert not any(token in line or host in line for line in running)
        with browser(link, tmp_path / "profile") as ana:
            ana.enter("Ana")
            assert urlsplit(ana.driver.current_url).hostname == host and "token" not in ana.driver.current_url
            assert ana.text(".person strong") == "Ana" and not file.exists()
            assert not any(token in line or host in line for line in command_lines())
            assert token not in str(ana.driver.get_cookies())
        with browser(address, tmp_path / "other") as eve:
            eve.driver.get(address)
            assert "lets one browser in, once" in eve.text("body")
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 0
        assert list(temporary.iterdir()) == []


@contextmanager
def neighbour():
    """Another server of this machine: keeps the cookies it is sent, and sets all it can."""
    received: list[str] = []

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            received.append(self.headers.get("cookie", ""))
            self.send_response(200)
            for name in wanted:
                for scope in ("", "; Domain=localhost", "; Domain=.localhost"):
                    self.send_header("set-cookie", f"{name}=forged; Path=/{scope}")
            self.end_headers()
            self.wfile.write(b"<p>neighbour</p>")

        def log_message(self, *_: object) -> None:
            pass

    wanted: list[str] = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_port, wanted, received
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.slow
def test_other_servers_of_the_machine_neither_receive_nor_set_the_session(audited, tmp_path):
    """Two workbenches and a neighbour that sets every cookie it can, all in one browser."""
    with (
        started(audited, tmp_path / "one.sqlite") as (_, first),
        started(audited, tmp_path / "two.sqlite") as (_, second),
        neighbour() as (port, wanted, received),
        browser(first, tmp_path / "profile") as ana,
    ):
        ana.enter("Ana")
        other = Browser(ana.driver, second, (1280, 900), dark=False)
        other.enter("Ben")
        ours = [cookie["name"] for cookie in ana.driver.get_cookies()]
        wanted += [*ours, "fragility-reviewer-8808", "fragility-review-8808"]
        secrets = [cookie["value"] for cookie in ana.driver.get_cookies()]
        for host in ("127.0.0.1", "localhost", "neighbour.localhost"):
            for _ in range(2):
                ana.driver.get(f"http://{host}:{port}/")
                assert ana.text("p") == "neighbour"
        assert len(received) >= 6 and not any(secret in cookies for secret in secrets for cookies in received)
        for here, name in ((ana, "Ana"), (other, "Ben")):
            here.go("/queue")
            assert here.text(".person strong") == name
            here.follow(lambda here=here: here.press("n"))
            here.follow(lambda here=here: here.press("a"))
            assert "accepted." in here.text(".notice")


@pytest.mark.slow
def test_a_cookie_of_one_workbench_opens_no_other(audited, tmp_path):
    with (
        started(audited, tmp_path / "one.sqlite") as (_, first),
        started(audited, tmp_path / "two.sqlite") as (_, second),
    ):
        ana, ben = Client(first, "Ana"), Client(second, "Ben")
        assert ana.cookies.keys().isdisjoint(ben.cookies)
        for name in ben.cookies:  # even under the right name
            ben.cookies[name] = next(iter(ana.cookies.values()))
        assert ben.ask("GET", "/queue")[0] == 401 and ana.ask("GET", "/queue")[0] == 200


@pytest.mark.slow
def test_a_plain_address_for_browsers_that_need_one(audited, tmp_path):
    with started(audited, tmp_path / "one.sqlite", "--plain-address") as (_, address):
        assert urlsplit(address).hostname == "127.0.0.1"
        assert Client(address, "Ana").ask("GET", "/queue")[0] == 200


# --- the end ------------------------------------------------------------------------------------------------


@pytest.mark.repeats
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT], ids=lambda number: number.name)
def test_signals_leave_no_temporary_file(audited, tmp_path, number):
    """The temporary case file holds applicants' fields."""
    if signal.getsignal(number) is signal.SIG_IGN:
        pytest.skip("these tests run where this signal is ignored, as under nohup")
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    with started(audited, tmp_path / "review.sqlite", TMPDIR=str(temporary)) as (process, address):
        Client(address, "Ana").ask("GET", "/queue")
        assert [each for each in temporary.rglob("*") if each.name == "cases.duckdb"]
        process.send_signal(number)
        assert process.wait(timeout=30) == 0
        assert list(temporary.iterdir()) == [] and not re.search("Traceback", process.stderr.read())


@pytest.mark.slow
def test_what_a_kill_leaves_is_removed_by_the_next_workbench(audited, tmp_path):
    """Nobody can act on SIGKILL; the next start removes the folder, but none that is in use or not a workbench's."""
    temporary = tmp_path / "tmp"
    (temporary / "fragility-review-of-somebody").mkdir(parents=True)
    with started(audited, tmp_path / "one.sqlite", TMPDIR=str(temporary)):
        running = {each.name for each in temporary.iterdir()}
        with started(audited, tmp_path / "two.sqlite", TMPDIR=str(temporary)) as (process, _):
            process.kill()
            process.wait(timeout=30)
        assert len(list(temporary.iterdir())) == len(running) + 1
        with started(audited, tmp_path / "three.sqlite", TMPDIR=str(temporary)) as (process, _):
            left = {each.name for each in temporary.iterdir()}
            assert running < left and len(left) == len(running) + 1
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=30)
        assert {each.name for each in temporary.iterdir()} == running
