"""The log: what is acknowledged is on the disk, seals are repeatable, and its folders are ordinary audits."""

from __future__ import annotations

import datetime as dt
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fragility as fg
from fragility.apps.serving import sealing
from fragility.apps.serving.entries import START, JournalError, LogEntry, LogJournal, LogSchemas, read_journal
from fragility.apps.serving.log import SealingRules, ServingLog, list_audits, read_events, read_log
from fragility.base.errors import CertificateError, DataError, ProtocolError
from fragility.base.files import write_bytes

NOON = dt.datetime(2026, 11, 18, 12, tzinfo=dt.UTC)


def entry(case, rows: slice, minute: int = 0, **more) -> LogEntry:
    return LogEntry.of(case.audit(rows), case.X[rows], time=NOON + dt.timedelta(minutes=minute), **more)


def open_log(case, folder: Path, **rules) -> ServingLog:
    certs = case.audit(slice(0, 3))
    return ServingLog.open(folder, case.protocol, certs.manifest, SealingRules(**rules))


def kill(log: ServingLog) -> None:
    """Leave a log as a killed process does: the lock ends, nothing else happens."""
    log._held.close()


def ids_of(folder: Path) -> list[str]:
    return [own_id for batch in read_events(folder, ["id"]) for own_id in batch.column("id").to_pylist()]


def check_whole(case, folder: Path, rows: int) -> None:
    """Every audit folder verifies against its rows; together they hold the first rows of the case, in order."""
    found = 0
    for audit in list_audits(folder):
        stored = pq.read_table(folder / "rows" / audit.name).to_pandas().set_index("id")
        outcome = fg.verify(audit, case.model, stored)
        assert outcome, str(outcome)
        certs = fg.Certificates.load(audit)
        expected = case.audit(slice(found, found + len(certs)))
        assert certs.table.equals(expected.table)
        assert certs.manifest.root_digest == expected.manifest.root_digest
        assert certs.manifest.input == expected.manifest.input
        found += len(certs)
    assert found == rows
    assert ids_of(folder) == list(case.X.index[:rows])


def test_sealed_rows_are_an_ordinary_audit(case, tmp_path) -> None:
    folder = tmp_path / "log"
    with open_log(case, folder) as log:
        missing, stale = [["age"], [], ["housing", "age"]], [[], ["age"], []]
        more = {"p_change": [0.25, 0.5, None], "review": [True, False, None]}
        log.append(entry(case, slice(0, 3), missing=missing, stale=stale, **more))
        assert (log.rows_logged, log.rows_pending, log.rows_sealed) == (3, 3, 0) and not log.is_due
        assert ids_of(folder) == []  # a reader sees sealed rows only
        assert log.seal() == 3 and log.seal() == 0
        assert (log.rows_pending, log.rows_sealed) == (0, 3)
        log.append(entry(case, slice(3, 10), 1), entry(case, slice(10, 12), 2))
    check_whole(case, folder, 12)
    assert sorted(os.listdir(folder)) == ["audits", "events", "log.json", "pending", "rows"]
    assert os.listdir(folder / "pending") == []
    events = pa.Table.from_batches(read_events(folder)).to_pylist()
    certs = case.audit(slice(0, 12))
    for event, cert in zip(events, certs, strict=True):
        same = {"id": cert.id, "decision": cert.predicted, "confidence": cert.confidence}
        same |= {"exposure": cert.exposure, "flip_budget": cert.flip_budget, "request": None}
        assert {name: event[name] for name in same} == same
    assert [event["missing"] for event in events[:3]] == [["age"], [], ["age", "housing"]]
    assert [event["stale"] for event in events[:3]] == [[], ["age"], []]
    assert [event["p_change"] for event in events[:4]] == [0.25, 0.5, None, None]
    assert [event["review"] for event in events[:4]] == [True, False, None, None]
    assert [event["time"].minute for event in events] == [0] * 3 + [1] * 7 + [2] * 2
    model = certs.manifest.model
    assert read_log(folder) == {
        "format": "fragility-log/1",
        "model": {"kind": model.kind, "fingerprint": model.fingerprint},
        "protocol_digest": case.protocol.digest,
        "classes": list(model.classes),
        "seal_rows": 1000,
        "seal_seconds": 60.0,
        "roll": 100_000,
    }


def test_what_was_acknowledged_survives_a_kill(case, tmp_path) -> None:
    folder = tmp_path / "log"
    log = open_log(case, folder)
    log.append(entry(case, slice(0, 4), requests=["a", None, "b", None]))
    log.seal()
    log.append(entry(case, slice(4, 6)))
    kill(log)
    assert len(ids_of(folder)) == 4
    with open_log(case, folder) as log:
        assert log.rows_recovered == 2 and log.rows_pending == 0
        assert log.find_request("L600") == "a" and log.find_request("L601") == ""
        check_whole(case, folder, 6)
        log.append(entry(case, slice(6, 9)))
    check_whole(case, folder, 9)
    assert len(list_audits(folder)) == 1 and len(fg.open_audit(list_audits(folder)[0]).part_names) == 3


STEPS = ["write_part", "write_bytes", "place_file", "commit", "remove_unnamed"]


class Killed(BaseException):
    """Stands for a kill."""


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("step", [*STEPS, "unlink"])
def test_a_seal_interrupted_at_any_step_is_repeated_to_the_same_bytes(case, tmp_path, monkeypatch, step, when) -> None:
    def die(*given, **named):
        if when == "after":
            real(*given, **named)
        raise Killed

    folder = tmp_path / "log"
    log = open_log(case, folder)
    log.append(entry(case, slice(0, 4)))
    log.seal()
    log.append(entry(case, slice(4, 6)), entry(case, slice(6, 7)))
    with monkeypatch.context() as patch:
        place = (Path, "unlink") if step == "unlink" else (sealing, step)
        real = getattr(*place)
        patch.setattr(*place, die)
        with pytest.raises(Killed):
            log.seal()
    kill(log)
    with open_log(case, folder):
        check_whole(case, folder, 7)
    assert os.listdir(folder / "pending") == []
    with open_log(case, tmp_path / "undisturbed") as log:
        log.append(entry(case, slice(0, 4)))
        log.seal()
        log.append(entry(case, slice(4, 6)), entry(case, slice(6, 7)))
    names = [sorted(str(path.relative_to(place)) for path in place.rglob("*")) for place in (folder, log.folder)]
    assert names[0] == names[1]


def test_a_journal_cut_at_any_byte_keeps_all_whole_records(tmp_path) -> None:
    path = tmp_path / "rows.journal"
    journal, ends = LogJournal(path), []
    for payload in (b"one", b"", b"three" * 50):
        journal.append(payload)
        ends.append(path.stat().st_size)
    journal.close()
    data = path.read_bytes()
    for size in range(len(data) + 1):
        path.write_bytes(data[:size])
        assert list(read_journal(path)) == [b"one", b"", b"three" * 50][: sum(end <= size for end in ends)]
    for place in range(ends[1], len(data)):  # in the last record every changed byte is as good as a torn one
        changed = bytearray(data)
        changed[place] ^= 0x41
        path.write_bytes(changed)
        assert list(read_journal(path)) == [b"one", b""]


@given(st.lists(st.binary(max_size=60), max_size=5), st.data())
def test_any_cut_of_any_journal_keeps_a_prefix(tmp_path_factory, payloads, data) -> None:
    path = tmp_path_factory.mktemp("journal") / "rows.journal"
    journal, ends = LogJournal(path), []
    for payload in payloads:
        journal.append(payload)
        ends.append(path.stat().st_size)
    journal.close()
    size = data.draw(st.integers(0, path.stat().st_size))
    path.write_bytes(path.read_bytes()[:size])
    assert list(read_journal(path)) == payloads[: sum(end <= size for end in ends)]


def test_a_log_with_a_torn_journal_goes_on_from_the_last_whole_record(case, tmp_path) -> None:
    folder = tmp_path / "log"
    log = open_log(case, folder)
    (ends := [START]).extend(_append_one(case, log, place) for place in range(3))
    kill(log)
    (path,) = folder.glob("pending/*/*.journal")
    data = path.read_bytes()
    for size in (0, 5, *ends, *(end + 1 for end in ends[:-1]), *(end - 1 for end in ends)):
        copy = tmp_path / f"cut-{size}"
        shutil.copytree(folder, copy)
        (copy / path.relative_to(folder)).write_bytes(data[:size])
        whole = sum(end <= size for end in ends[1:])
        with open_log(case, copy) as again:
            assert again.rows_recovered == whole and again.bytes_torn == max(0, size - ends[whole])
            again.append(entry(case, slice(whole, 5)))
        check_whole(case, copy, 5)


def _append_one(case, log: ServingLog, place: int) -> int:
    log.append(entry(case, slice(place, place + 1)))
    return next(log.folder.glob("pending/*/*.journal")).stat().st_size


def test_damage_that_no_kill_can_cause_is_refused(case, tmp_path) -> None:
    folder = tmp_path / "log"
    log = open_log(case, folder)
    log.append(entry(case, slice(0, 1)))
    (path,) = folder.glob("pending/*/*.journal")
    first = path.stat().st_size
    log.append(entry(case, slice(1, 2)))
    kill(log)
    data = bytearray(path.read_bytes())
    data[START + 100] ^= 1
    path.write_bytes(data)
    with pytest.raises(CertificateError, match=rf"part-00000.journal is damaged at byte {START}, before rows that"):
        open_log(case, folder)
    assert path.read_bytes() == data
    data[START + 100] ^= 1
    data[first + 60] ^= 1  # in the last record: as if it had been torn
    path.write_bytes(data)
    with open_log(case, folder) as log:
        assert log.rows_recovered == 1
    path.parent.mkdir()
    path.write_bytes(b"something else")
    with pytest.raises(CertificateError, match=r"part-00000.journal is not a journal of `fragility serve`; move"):
        list(read_journal(path))


def test_a_payload_cannot_pretend_to_be_a_record(tmp_path) -> None:
    journal = LogJournal(tmp_path / "inner")
    journal.append(b"text of a client")
    journal.close()
    inner = (tmp_path / "inner").read_bytes()[START:]
    journal = LogJournal(tmp_path / "outer")
    journal.append(b"one")
    journal.append(inner * 3)
    journal.close()
    data = (tmp_path / "outer").read_bytes()
    (tmp_path / "outer").write_bytes(data[:-1])
    assert list(read_journal(tmp_path / "outer")) == [b"one"]


def test_a_full_audit_folder_is_closed_and_another_begun(case, tmp_path) -> None:
    folder = tmp_path / "log"
    with open_log(case, folder, seal_rows=2, roll=5) as log:
        for start in range(0, 16, 2):
            log.append(entry(case, slice(start, start + 2), requests=[f"r{start}", None]))
            assert log.is_due
            log.seal()
        assert log.find_request("L600") is None and log.find_request("L612") == "r12"
    assert [len(fg.open_audit(audit)) for audit in list_audits(folder)] == [6, 6, 4]
    check_whole(case, folder, 16)
    with open_log(case, folder, roll=3) as log:  # the last folder has more rows than that
        log.append(entry(case, slice(16, 17)))
    assert [len(fg.open_audit(audit)) for audit in list_audits(folder)] == [6, 6, 4, 1]


def test_many_parts_close_an_audit_folder_too(case, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("fragility.apps.serving.log.MOST_PARTS", 2)
    with open_log(case, tmp_path / "log") as log:
        for start in range(5):
            log.append(entry(case, slice(start, start + 1)))
            log.seal()
    assert [len(fg.open_audit(audit)) for audit in list_audits(tmp_path / "log")] == [2, 2, 1]
    check_whole(case, tmp_path / "log", 5)


def test_another_model_begins_another_audit_folder(case, tmp_path) -> None:
    folder = tmp_path / "log"
    log = open_log(case, folder)
    log.append(entry(case, slice(0, 3)))
    kill(log)  # the rows of the first model are pending
    X, y = fg.load_credit_g()
    names = list(case.X.columns)[:3]
    model = type(case.model[-1])(max_iter=500).fit(X[names][:600], y[:600])
    protocol = fg.Protocol.fit(model, X[names][:600])
    other = fg.audit(model, case.X[names][:2], protocol, progress=False, lattice=False)
    with ServingLog.open(folder, protocol, other.manifest) as log:
        assert log.rows_recovered == 3
        log.append(LogEntry.of(other, case.X[names][:2], time=NOON))
    first, second = list_audits(folder)
    assert fg.Certificates.load(first).table.equals(case.audit(slice(0, 3)).table)
    assert fg.Certificates.load(second).table.equals(other.table)
    assert read_log(folder)["protocol_digest"] == protocol.digest


def test_a_second_server_is_refused(case, tmp_path) -> None:
    folder = tmp_path / "log"
    code = f"""
import fcntl, time
handle = open({str(folder / ".fragility.lock")!r}, "w")
fcntl.flock(handle, fcntl.LOCK_EX)
print("held", flush=True)
time.sleep(60)
"""
    with open_log(case, folder) as log:
        log.append(entry(case, slice(0, 1)))
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as other:
        try:
            assert other.stdout.readline() == "held\n"
            with pytest.raises(CertificateError, match=r"another server is writing to .*log; stop it first, or give"):
                open_log(case, folder)
        finally:
            other.kill()
    open_log(case, folder).close()


@pytest.mark.parametrize("what", ["file", "other files", "log of another version", "damaged log"])
def test_folders_that_are_no_log_are_refused_and_left_alone(case, tmp_path, what) -> None:
    folder = tmp_path / "log"
    document = {"other files": ("notes.txt", "mine"), "damaged log": ("log.json", "{"),
                "log of another version": ("log.json", '{"format": "fragility-log/9"}')}.get(what)  # fmt: skip
    if document is None:
        folder.write_text("mine")
    else:
        folder.mkdir()
        (folder / document[0]).write_text(document[1])
    before = sorted(tmp_path.rglob("*"))
    said = {
        "file": "log is a file; a log needs a folder, choose another name",
        "other files": "log exists and is not a log of `fragility serve`; choose another name",
        "log of another version": r"log.json has format 'fragility-log/9', this version reads 'fragility-log/1'; use",
        "damaged log": r"cannot read .*log.json: ",
    }[what]
    with pytest.raises(CertificateError, match=said):
        open_log(case, folder)
    assert sorted(tmp_path.rglob("*")) == before
    with pytest.raises(CertificateError, match=r"is not a log|cannot read|has format"):
        next(read_events(folder))


def test_changed_and_missing_parts_are_refused(case, tmp_path) -> None:
    folder = tmp_path / "log"
    with open_log(case, folder) as log:
        log.append(entry(case, slice(0, 3)))
    (part,) = folder.glob("events/000001/*.parquet")
    data = part.read_bytes()
    part.write_bytes(data + b" ")
    with pytest.raises(CertificateError, match=r"was changed after it was written: its name holds another digest"):
        list(read_events(folder))
    part.unlink()
    with pytest.raises(CertificateError, match=r"000001 is incomplete: the part 00000 is missing; restore it"):
        list(read_events(folder))
    with pytest.raises(CertificateError, match=r"the part 00000 is missing"):
        open_log(case, folder)
    write_bytes(part, data)
    open_log(case, folder).close()


def test_a_changed_part_is_not_made_good_by_the_next_seal(case, tmp_path) -> None:
    folder = tmp_path / "log"
    with open_log(case, folder) as log:
        log.append(entry(case, slice(0, 3)))
    (part,) = folder.glob("audits/000001/certificates-*.parquet")
    data = part.read_bytes()
    part.write_bytes(data + b" ")
    with pytest.raises(CertificateError, match=r"certificates-.* was changed after it was written: the manifest names"):
        open_log(case, folder)
    part.unlink()
    with pytest.raises(CertificateError, match=r"000001 is incomplete: certificates-.* is missing; restore it"):
        open_log(case, folder)
    part.write_bytes(data)
    open_log(case, folder).close()


def test_the_workbench_opens_a_log(case, tmp_path) -> None:
    pytest.importorskip("duckdb", reason="the extra `review` is not installed")
    from fragility.apps.review.queries import CaseIndex

    with open_log(case, tmp_path / "log") as log:
        for start in (0, 3):
            log.append(entry(case, slice(start, start + 3)))
            log.seal()
        index = CaseIndex.open(tmp_path / "log" / "audits" / "000001", None)
        try:
            assert [str(name) for name in index.names()] == list(case.X.index[:6])
            log.append(entry(case, slice(6, 9)))
            log.seal()  # while somebody reads
        finally:
            index.close()
    check_whole(case, tmp_path / "log", 9)


def test_begun_documents_of_unknown_origin_are_refused(case, tmp_path) -> None:
    folder = tmp_path / "log"
    log = open_log(case, folder)
    log.append(entry(case, slice(0, 3)))
    kill(log)
    (begun,) = folder.glob("pending/*/begun.json")
    text = begun.read_text()
    for damaged in ("{", "[]", "{}", text.replace('"limits"', '"limit"', 1), text.replace('"space"', '"spaces"', 1)):
        begun.write_text(damaged)
        with pytest.raises(CertificateError, match=r"cannot read .*begun.json: "):
            open_log(case, folder)
    begun.write_text(text)
    open_log(case, folder).close()
    check_whole(case, folder, 3)


def test_a_write_that_fails_is_no_acknowledgement_and_the_log_goes_on(case, tmp_path, monkeypatch) -> None:
    def fail(*_) -> int:
        raise OSError(28, "No space left on device")

    folder = tmp_path / "log"
    with open_log(case, folder) as log:
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", fail)
            with pytest.raises(JournalError, match=r"cannot write to .*: No space left on device"):
                log.append(entry(case, slice(0, 1)))
        assert "No space left on device" in log.find_fault()
        monkeypatch.setattr("fragility.apps.serving.log.FAULT_SECONDS", 0.0)  # later
        assert log.find_fault() is None
        log.append(entry(case, slice(0, 2)))
        for call in ("write", "fdatasync"):
            with monkeypatch.context() as patch:
                patch.setattr(os, call, fail)
                with pytest.raises(JournalError, match=r"cannot write to .*journal: No space left on device"):
                    log.append(entry(case, slice(2, 3), requests=["x"]))
        assert log.rows_pending == 2 and log.find_request("L602") is None
        log.append(entry(case, slice(2, 4)))  # sent again: it is there once
        with monkeypatch.context() as patch:
            patch.setattr(sealing, "commit", fail)
            for _ in range(2):
                with pytest.raises(CertificateError, match=r"cannot .*: No space left on device"):
                    log.seal()
            assert log.is_due and log.rows_pending == 4
        log.append(entry(case, slice(4, 6)))
        assert log.seal() == 4 and log.seal() == 2
    check_whole(case, folder, 6)


def test_a_journal_in_an_unknown_state_is_not_written_to_any_more(case, tmp_path, monkeypatch) -> None:
    def fail(*_) -> int:
        raise OSError(5, "Input/output error")

    log = open_log(case, tmp_path / "log")
    log.append(entry(case, slice(0, 2)))
    with monkeypatch.context() as patch:
        for call in ("fdatasync", "ftruncate"):
            patch.setattr(os, call, fail)
        with pytest.raises(JournalError, match=r"cannot write to .*journal: Input/output error"):
            log.append(entry(case, slice(2, 3), requests=["x"]))
    with pytest.raises(
        JournalError, match=r"an earlier write to .*journal failed; restart the server when the disk is"
    ):
        log.append(entry(case, slice(2, 3)))
    assert log.is_broken and log.seal() == 0
    log.close()
    with open_log(case, tmp_path / "log") as log:  # the record that was not acknowledged is whole, and known
        assert log.rows_recovered == 3 and log.find_request("L602") == "x"
    check_whole(case, tmp_path / "log", 3)


def test_an_id_is_appended_once_to_an_audit_folder(case, tmp_path) -> None:
    with open_log(case, tmp_path / "log") as log:
        log.append(entry(case, slice(0, 2)))
        for again in ([entry(case, slice(1, 3))], [entry(case, slice(2, 4)), entry(case, slice(3, 5))]):
            with pytest.raises(JournalError, match="a row has an id that the present audit folder of the log holds"):
                log.append(*again)
        assert log.rows_pending == 2 and log.find_request("L600") == "" and log.find_request("L602") is None
    with pytest.raises(JournalError, match=r"the log .* is closed"):
        log.append(entry(case, slice(2, 3)))
    check_whole(case, tmp_path / "log", 2)


@pytest.mark.skipif(os.name != "posix", reason="open files cannot be removed there")
def test_rows_are_not_acknowledged_into_a_log_that_was_removed_or_moved(case, tmp_path) -> None:
    log = open_log(case, tmp_path / "log")
    log.append(entry(case, slice(0, 2)))
    shutil.rmtree(tmp_path / "log")
    with pytest.raises(JournalError, match=r"part-00000.journal was removed while rows were pending in it; restart"):
        log.append(entry(case, slice(2, 3)))
    assert log.is_broken
    log.close()
    assert not (tmp_path / "log").exists()

    log = open_log(case, tmp_path / "log")
    assert log.find_fault() is None
    shutil.rmtree(tmp_path / "log")  # before any row came
    assert "No such file or directory" in log.find_fault()
    kill(log)
    log = open_log(case, tmp_path / "log")
    log.append(entry(case, slice(0, 2)))
    (tmp_path / "log").rename(tmp_path / "moved")
    with pytest.raises(JournalError, match=r"journal was moved or replaced while rows were pending in it; restart the"):
        log.append(entry(case, slice(2, 3)))
    assert log.is_broken and log.seal() == 0
    (tmp_path / "log").mkdir()
    with pytest.raises(JournalError, match=r"an earlier write to .*journal failed; restart the server when the disk"):
        log.append(entry(case, slice(2, 3)))
    assert list((tmp_path / "log").iterdir()) == [] and log.find_fault() is not None
    kill(log)
    open_log(case, tmp_path / "moved").close()
    check_whole(case, tmp_path / "moved", 2)


def copy_in_place(folder: Path) -> Path:
    """Move a folder away and put a copy of it in its place; return where it is now."""
    moved = folder.with_name("moved")
    folder.rename(moved)
    shutil.copytree(moved, folder)
    return moved


def replace_journal(folder: Path) -> None:
    (journal,) = folder.glob("pending/*/*.journal")
    data = journal.read_bytes()
    journal.rename(folder / "kept")
    journal.write_bytes(data)


DISTURBANCES = {
    "a copy in its place": copy_in_place,
    "pending moved": lambda folder: (folder / "pending").rename(folder.parent / "elsewhere"),
    "a copy of pending": lambda folder: copy_in_place(folder / "pending"),
    "a copy of audits": lambda folder: copy_in_place(folder / "audits"),
    "journal renamed": lambda folder: next(folder.glob("pending/*/*.journal")).rename(folder / "kept"),
    "journal replaced": replace_journal,
    "journal truncated": lambda folder: os.truncate(next(folder.glob("pending/*/*.journal")), 40),
    "journal emptied": lambda folder: os.truncate(next(folder.glob("pending/*/*.journal")), 0),
}


@pytest.mark.skipif(os.name != "posix", reason="open files cannot be moved there")
@pytest.mark.parametrize("how", DISTURBANCES)
def test_no_row_is_acknowledged_once_its_place_was_disturbed(case, tmp_path, how) -> None:
    """Whatever was done to the files, an append after it is no acknowledgement, and nothing is sealed there."""
    folder = tmp_path / "log"
    log = open_log(case, folder)
    log.append(entry(case, slice(0, 2)))
    assert log.find_fault() is None
    DISTURBANCES[how](folder)
    assert "restart the server" in log.find_fault() or "No such file" in log.find_fault()
    for _ in range(2):
        with pytest.raises(JournalError, match=r"restart the server|No such file or directory"):
            log.append(entry(case, slice(2, 3)))
    assert log.rows_logged == 2 and log.find_request("L602") is None
    try:
        assert log.seal() == 0
    except CertificateError as error:
        assert "No such file" in str(error) or "restart the server" in str(error)
    kill(log)


@pytest.mark.skipif(os.name != "posix", reason="open files cannot be moved there")
def test_a_copy_is_not_sealed_instead_of_the_journal(case, tmp_path) -> None:
    """Rows that were acknowledged after the copy was made are not in it."""
    folder = tmp_path / "log"
    log = open_log(case, folder)
    log.append(entry(case, slice(0, 2)))
    shutil.copytree(folder / "pending", tmp_path / "copy")
    log.append(entry(case, slice(2, 4)))
    (folder / "pending" / "000001").rename(tmp_path / "away")
    shutil.copytree(tmp_path / "copy" / "000001", folder / "pending" / "000001")
    with pytest.raises(CertificateError, match=r"journal was moved or replaced while rows were pending in it; restart"):
        log.seal()
    assert not list_audits(folder)
    kill(log)
    shutil.rmtree(folder / "pending" / "000001")
    (tmp_path / "away").rename(folder / "pending" / "000001")
    open_log(case, folder).close()
    check_whole(case, folder, 4)


@pytest.mark.skipif(os.name != "posix", reason="locked files cannot be removed there")
@pytest.mark.parametrize("pending", [True, False])
def test_a_second_server_is_refused_though_the_lock_file_was_removed(case, tmp_path, pending) -> None:
    folder = tmp_path / "log"
    log = open_log(case, folder)
    if pending:
        log.append(entry(case, slice(0, 3)))
    (folder / ".fragility.lock").unlink()
    with pytest.raises(CertificateError, match=r"another server is writing to .*log; stop it first, or give"):
        open_log(case, folder)
    log.append(entry(case, slice(3, 5) if pending else slice(0, 5)))
    log.close()
    check_whole(case, folder, 5)


@pytest.mark.skipif(os.name != "posix", reason="locked files cannot be removed there")
def test_a_live_journal_is_not_sealed_by_another_server(case, tmp_path) -> None:
    """Even where the folder can no longer be held, as when it was copied back over itself."""
    folder = tmp_path / "log"
    log = open_log(case, folder)
    log.append(entry(case, slice(0, 3)))
    pending = folder / "pending"
    copy = tmp_path / "other"
    shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("*.journal", ".fragility.lock"))
    (journal,) = pending.glob("*/*.journal")
    os.link(journal, copy / journal.relative_to(folder))
    with pytest.raises(CertificateError, match=r"another server is writing to .*other; stop it first"):
        open_log(case, copy)
    log.append(entry(case, slice(3, 4)))
    log.close()
    check_whole(case, folder, 4)


@pytest.mark.skipif(os.name != "posix", reason="there are no such permissions there")
def test_only_the_owner_may_read_rows(case, tmp_path) -> None:
    with open_log(case, tmp_path / "log") as log:
        log.append(entry(case, slice(0, 2)))
        log.seal()
        log.append(entry(case, slice(2, 3)))
        kinds = [tmp_path.glob(f"log/{kind}/*/*") for kind in ("rows", "events")]
        files = [*(path for kind in kinds for path in kind), *tmp_path.glob("log/pending/*/*.journal")]
        assert len(files) == 3 and {path.stat().st_mode & 0o777 for path in files} == {0o600}


def test_a_missing_journal_is_not_skipped(case, tmp_path, monkeypatch) -> None:
    folder = tmp_path / "log"
    log = open_log(case, folder)
    with monkeypatch.context() as patch:
        patch.setattr(sealing.SealedAudit, "seal", lambda *_: 1 / 0)
        for place in range(2):
            log.append(entry(case, slice(place, place + 1)))
            with pytest.raises(ZeroDivisionError):
                log.seal()
            log._closed.pop()[-1].close()  # so that the next one gets a journal of its own
    kill(log)
    first = folder / "pending" / "000001" / "part-00000.journal"
    first.rename(tmp_path / "kept")
    with pytest.raises(CertificateError, match=r"part-00000.journal is missing, whose rows come before those of part-"):
        open_log(case, folder)
    (tmp_path / "kept").rename(first)
    open_log(case, folder).close()
    check_whole(case, folder, 2)


def test_other_peoples_files_in_pending_stay(case, tmp_path) -> None:
    folder = tmp_path / "log"
    log = open_log(case, folder)
    log.append(entry(case, slice(0, 1)))
    (folder / "pending" / "000001" / "notes.txt").write_text("mine")
    (folder / "pending" / "000001" / "part-old.journal").write_text("mine")
    (folder / "pending" / "notes").mkdir()
    log.close()
    open_log(case, folder).close()
    assert (folder / "pending" / "000001" / "part-old.journal").read_text() == "mine"
    assert (folder / "pending" / "000001" / "notes.txt").read_text() == "mine"
    assert (folder / "pending" / "notes").is_dir()


def test_entries_are_of_the_protocol(case) -> None:
    certs = case.audit(slice(0, 2))
    with pytest.raises(CertificateError, match=r"ids of a log are text; certify the rows with ids of text"):
        numbered = fg.audit(case.model, case.X[:2].reset_index(drop=True), case.protocol, progress=False)
        LogEntry.of(numbered, case.X[:2], time=NOON)
    with pytest.raises(DataError, match=r"one row per certificate was expected: 2 certificates, 3 rows"):
        LogEntry.of(certs, case.X[:3], time=NOON)
    with pytest.raises(DataError, match=r"a log cannot store the values of field 'housing': "):
        LogEntry.of(certs, case.X[:2].assign(housing=[1, "own"]), time=NOON)
    for name, value in {"seal_rows": 0, "roll": 0, "seal_seconds": 0.0}.items():
        with pytest.raises(CertificateError, match=rf"{name} must be (at least 1|above 0), got 0"):
            SealingRules(**{name: value})


def test_text_in_several_pieces_is_stored(case) -> None:
    pieces = pd.concat([case.X[:2], case.X[2:3]])
    one = LogEntry.of(case.audit(slice(0, 3)), pieces, time=NOON)
    assert one.rows.column("housing").to_pylist() == case.X["housing"][:3].tolist()
    with pytest.raises(DataError, match=r"a log cannot store the values of field 'age': "):
        LogEntry.of(case.audit(slice(0, 3)), pieces.assign(age=2**53 + 1), time=NOON)


def test_fields_that_a_table_cannot_hold_are_refused(case) -> None:
    X = pd.DataFrame({"id": np.arange(40.0)})
    document = case.protocol.to_dict()
    document["fields"][-1]["type"] = "mixed"
    with pytest.raises(ProtocolError, match=r"field 'housing' held values of no one type .*, or serve without a log"):
        LogSchemas.of(fg.Protocol.from_dict(document), ["bad", "good"])
    from sklearn.linear_model import LogisticRegression

    y = ["no", "yes"] * 20
    model = LogisticRegression().fit(X[["id"]], y)
    with pytest.raises(ProtocolError, match=r"a field is named 'id', which is the column of ids in a log; rename it"):
        LogSchemas.of(fg.Protocol.fit(model, X[["id"]]), ["no", "yes"])


def test_values_of_every_type_come_back(tmp_path) -> None:
    """Whole numbers, decimals, flags, text, dates and gaps: what verify reads is what was audited."""
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import FunctionTransformer

    rng = np.random.default_rng(3)
    n = 300
    X = pd.DataFrame(
        {
            "whole": rng.integers(0, 9, n),
            "decimal": rng.normal(size=n),
            "flag": rng.random(n) > 0.5,
            "word": rng.choice(["a", "b", "ü"], n),
            "day": pd.to_datetime("2020-01-01") + pd.to_timedelta(rng.integers(0, 900, n), "D"),
        }
    )

    def encode(table: pd.DataFrame) -> np.ndarray:
        day = (pd.to_datetime(table["day"]) - pd.Timestamp("2020-01-01")).dt.days
        word = table["word"].map({"a": 0, "b": 1, "ü": 2})
        numbers = [table[name].astype(float) for name in ("whole", "decimal", "flag")]
        return np.column_stack([*numbers, word, day])

    y = np.where(X["decimal"] + X["whole"] / 9 + X["flag"] > 0.9, "yes", "no")
    model = make_pipeline(FunctionTransformer(encode), HistGradientBoostingClassifier(max_iter=5)).fit(X, y)
    protocol = fg.Protocol.fit(model, X, space="raw")
    rows = X[:6].astype({"decimal": float}).set_index(pd.Index(list("pqrstu")))
    rows.loc["q", "decimal"] = np.nan
    certs = fg.audit(model, rows, protocol, progress=False, lattice=False)
    with ServingLog.open(tmp_path / "log", protocol, certs.manifest) as log:
        log.append(LogEntry.of(certs, rows, time=NOON))
    (audit,) = list_audits(tmp_path / "log")
    stored = pq.read_table(tmp_path / "log" / "rows" / audit.name).to_pandas().set_index("id")
    outcome = fg.verify(audit, model, stored)
    assert outcome, str(outcome)
    assert stored["day"].tolist() == [day.strftime("%Y-%m-%d") for day in rows["day"]]


def test_the_manifest_of_a_log_is_small_json(case, tmp_path) -> None:
    with open_log(case, tmp_path / "log") as log:
        log.append(entry(case, slice(0, 2)))
    manifest = json.loads((tmp_path / "log" / "audits" / "000001" / "manifest.json").read_text())
    assert manifest["rows"] == manifest["input"]["rows"] == 2 and manifest["blocks"] == {}
