"""Nothing that was acknowledged is missing, whatever ends the process."""

import http.client
import json
import os
import re
import signal
import threading
import time
from dataclasses import replace
from urllib.parse import urlsplit

import numpy as np
import pytest
from reviewing import browser
from workbench import Audit, Client, started

import fragility as fg
from fragility.apps.review.store import Store

WRITES = 1000


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="this system cannot kill a process at once")
def test_a_kill_during_a_burst_of_writes_loses_nothing_acknowledged(audited, tmp_path):
    """Two clients write 1,000 decisions as fast as they can; the process is killed in the middle."""
    store = tmp_path / "review.sqlite"
    case = f"/case/0-{audited.certs[0].digest[7:23]}"
    acknowledged: dict[str, list[str]] = {"Ana": [], "Ben": []}

    def write(browser: Client, name: str) -> None:
        for number in range(WRITES // 2):
            note = f"{name} {number}"
            try:
                status, _ = browser.post(f"{case}/decide", {"action": "accept", "note": note, "view": "stay=1"})
            except (OSError, http.client.HTTPException):
                return
            if status == 303:
                acknowledged[name].append(note)

    with started(audited, store) as (process, address):
        ana = Client(address, "Ana")
        clients = {"Ana": ana, "Ben": Client(ana.new_address(), "Ben")}
        threads = [threading.Thread(target=write, args=(client, name)) for name, client in clients.items()]
        for thread in threads:
            thread.start()
        while sum(map(len, acknowledged.values())) < WRITES // 3 and any(t.is_alive() for t in threads):
            time.sleep(0.005)
        os.kill(process.pid, signal.SIGKILL)
        for thread in threads:
            thread.join()
    assert all(acknowledged.values()) and sum(map(len, acknowledged.values())) < WRITES, "killed too late"
    assert store.is_file()  # what the killed process wrote, not a new store
    after = Store.open(store)
    kept = {entry.note for entry in after.everything()}
    for name, notes in acknowledged.items():
        assert set(notes) <= kept, f"{len(set(notes) - kept)} acknowledged decisions of {name} are missing"
    after.write(after.everything()[0].case, "Ana", "escalate")  # and the file is whole
    after.close()


@pytest.fixture(scope="module")
def large(audited, tmp_path_factory) -> Audit:
    """The claims of the audit again and again, under new ids, so that a decision about all of them takes a while."""
    rows = 20_000
    chosen = np.random.default_rng(0).integers(0, len(audited.certs), size=rows).tolist()
    claims = replace(audited.certs.claims.take(chosen), ids=tuple(range(rows)))
    manifest = replace(audited.certs.manifest, input=replace(audited.certs.manifest.input, rows=rows))
    certs = fg.Certificates.build(claims, audited.certs.protocol, manifest)
    folder = tmp_path_factory.mktemp("large") / "audit"
    certs.save(folder)
    return Audit(folder, audited.model, audited.X, certs)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="this system cannot kill a process at once")
def test_a_kill_during_a_decision_about_many_cases_keeps_all_of_them_or_none(large, tmp_path):
    """In a real browser; killed at several moments after the decision was sent."""
    outcomes = set()
    for number, delay in enumerate((0.1, 0.4, 0.8, 1.6, None)):
        store = tmp_path / f"{number}.sqlite"
        with started(large, store) as (process, address), browser(address, tmp_path / f"{number}") as ana:
            ana.enter("Ana")
            ana.go("/bulk?budget=all&confident=0")
            assert "all 20,000 cases" in ana.text("form button.primary")
            ana.find("input[value=accept]").click()
            ana.driver.execute_script("setTimeout(() => document.querySelector('form.stack').requestSubmit(), 0)")
            if delay is None:
                ana.until(lambda ana=ana: "20,000 decisions saved." in ana.text(".notice"))
            else:
                time.sleep(delay)
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
        assert store.is_file()
        after = Store.open(store)
        outcomes.add(len(after.everything()))
        after.close()
    assert 20_000 in outcomes and outcomes <= {0, 20_000}


@pytest.mark.slow
def test_the_command_serves_what_it_was_given(audited, tmp_path):
    with started(audited, tmp_path / "review.sqlite") as (process, address):
        assert re.fullmatch(r"review-[0-9a-f]{20}\.localhost", urlsplit(address).hostname) and process.poll() is None
        browser = Client(address, "Ana")
        status, page = browser.ask("GET", "/queue")
        assert status == 200 and b"data-line" in page
        key = f"0-{audited.certs[0].digest[7:23]}"
        status, state = browser.ask("GET", f"/case/{key}/state")
        assert status == 200 and json.loads(state) == {"last": 0, "by": None}
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) == 0
        assert "fragility review export" in process.stderr.read()
