"""Audit folders: written whole or not at all, whatever happens, and never at the cost of somebody else's files."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from block_tables import save_in_parts
from pipelines import fitted

from fragility.auditing.pipeline import audit
from fragility.audits import Certificates
from fragility.audits.folder import check_writable_folder
from fragility.audits.integrity import check_integrity
from fragility.audits.manifest import manifest_text
from fragility.audits.parts import encode_part
from fragility.base import files
from fragility.base.errors import CertificateError
from fragility.base.files import open_regular, parse_json, replacing, write_text
from fragility.cli import main
from fragility.protocol import Protocol

pytestmark = pytest.mark.skipif(os.name != "posix", reason="kills processes")
LEFTOVER = ".fragility-0123456789abcdef.part"


@pytest.fixture(scope="module")
def certs() -> Certificates:
    case = fitted("credit_g", "lightgbm", "transformed")
    return audit(case.model, case.X_test[:12], Protocol.fit(case.model, case.X_train, depth=4), engine="blackbox")


def bytes_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def is_whole(folder: Path) -> bool:
    return all(check.passed for check in check_integrity(folder))


# --- what is ours and what is not ---------------------------------------------------------------------------


def test_other_files_in_an_audit_folder_stay(certs: Certificates, tmp_path) -> None:
    """Auditing into the folder that holds model and rows must not lose them."""
    target = certs.save(tmp_path / "a")
    (target / "model.skops").write_bytes(b"the model just read")
    (target / "notes").mkdir()
    (target / "notes" / "thesis.txt").write_text("do not lose me")
    for again in (certs[:3], certs):
        again.save(target)
        assert (target / "model.skops").read_bytes() == b"the model just read"
        assert (target / "notes" / "thesis.txt").read_text() == "do not lose me"
        assert len(Certificates.load(target)) == len(again) and is_whole(target)
        assert len(list(target.iterdir())) == 5  # three of ours, two of theirs


def test_folders_of_another_kind_are_refused_before_any_work(certs: Certificates, tmp_path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "thesis.txt").write_text("do not lose me")
    for refuse in (check_writable_folder, certs.save):
        with pytest.raises(CertificateError, match=r"notes exists and is not an audit folder; choose another name"):
            refuse(tmp_path / "notes")
    (tmp_path / "file").write_text("x")
    with pytest.raises(CertificateError, match=r"file is a file; an audit needs a folder"):
        check_writable_folder(tmp_path / "file")
    with pytest.raises(CertificateError, match=r"cannot write to .*file is a file"):
        check_writable_folder(tmp_path / "file" / "below")
    assert [p.name for p in (tmp_path / "notes").iterdir()] == ["thesis.txt"]
    (tmp_path / "empty").mkdir()
    for free in ("empty", "deep/er/audit"):
        check_writable_folder(tmp_path / free)
        certs.save(tmp_path / free)
        assert len(Certificates.load(tmp_path / free)) == 12


def test_the_command_line_refuses_a_folder_before_it_reads_anything(tmp_path, capsys) -> None:
    (tmp_path / "thesis.txt").write_text("do not lose me")
    with pytest.raises(SystemExit) as stop:
        main(["audit", "no-model.skops", "no-rows.parquet", "--train", "none.parquet", "--out", str(tmp_path)])
    assert stop.value.code == 2
    assert f"{tmp_path} exists and is not an audit folder" in capsys.readouterr().err.replace("\n", "")
    assert list(bytes_of(tmp_path)) == ["thesis.txt"]


@pytest.mark.parametrize(
    "text", ["", "{", '{"name": "my web app", "start_url": "/"}', '{"format": "fragility-certificates/2"}', "[]"]
)
def test_a_manifest_of_something_else_is_never_replaced(certs: Certificates, tmp_path, text: str) -> None:
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(CertificateError, match=r"is not an audit of this version.*choose another name"):
        certs.save(tmp_path)
    assert bytes_of(tmp_path) == {"manifest.json": text.encode()}


def test_a_file_of_our_name_that_is_not_ours_is_not_replaced(certs: Certificates, tmp_path) -> None:
    certs.save(tmp_path / "a")
    name = next(path.name for path in (tmp_path / "a").glob("certificates-*"))
    certs[:3].save(tmp_path / "b")
    (tmp_path / "b" / name).write_text("not ours")
    before = bytes_of(tmp_path / "b")
    with pytest.raises(CertificateError, match=r"exists and is not a file of an audit; move it away"):
        certs.save(tmp_path / "b")
    assert bytes_of(tmp_path / "b") == before and len(Certificates.load(tmp_path / "b")) == 3


def test_a_damaged_file_of_ours_is_mended_by_writing_again(certs: Certificates, tmp_path) -> None:
    certs.save(tmp_path / "a")
    (table,) = (tmp_path / "a").glob("certificates-*")
    table.write_bytes(table.read_bytes()[:100])
    assert not is_whole(tmp_path / "a")
    certs.save(tmp_path / "a")
    assert is_whole(tmp_path / "a")


def test_a_forged_manifest_cannot_make_us_remove_anything(certs: Certificates, tmp_path) -> None:
    target = certs.save(tmp_path / "a")
    (tmp_path / "precious.txt").write_text("mine")
    (target / "precious.txt").write_text("mine")
    document = json.loads((target / "manifest.json").read_text())
    document["files"] |= {"../precious.txt": "sha256:" + "0" * 64, "precious.txt": "sha256:" + "0" * 64}
    (target / "manifest.json").write_text(manifest_text(document))
    certs[:2].save(target)
    assert (tmp_path / "precious.txt").exists() and (target / "precious.txt").exists() and is_whole(target)


def test_a_linked_folder_is_followed_not_replaced(certs: Certificates, tmp_path) -> None:
    real = tmp_path / "real"
    real.mkdir()
    (tmp_path / "link").symlink_to(real)
    (tmp_path / "ahead").symlink_to(tmp_path / "not yet")
    for name, there in (("link", real), ("ahead", tmp_path / "not yet")):
        certs.save(tmp_path / name)
        assert (tmp_path / name).is_symlink() and is_whole(there)


def test_a_link_in_the_place_of_a_file_is_refused(certs: Certificates, tmp_path) -> None:
    """What it points to is not ours: neither a single output nor a file of an audit goes through it."""
    precious = tmp_path / "precious"
    precious.write_text("old")
    (tmp_path / "to it").symlink_to(precious)
    with pytest.raises(FileExistsError, match="it is a symbolic link, which is never overwritten; choose another name"):
        write_text(tmp_path / "to it", "new")
    audit = certs.save(tmp_path / "audit")
    (audit / "manifest.json").rename(tmp_path / "moved.json")
    (audit / "manifest.json").symlink_to(tmp_path / "moved.json")
    before = (tmp_path / "moved.json").read_bytes()
    with pytest.raises(CertificateError, match="it is a symbolic link"):
        certs[:3].save(audit)
    assert precious.read_text() == "old" and (tmp_path / "moved.json").read_bytes() == before


def test_permissions_of_a_replaced_file_are_kept(tmp_path) -> None:
    write_text(tmp_path / "secret", "old")
    (tmp_path / "secret").chmod(0o600)
    write_text(tmp_path / "secret", "new")
    assert (tmp_path / "secret").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "secret").read_text() == "new"


# --- failures -----------------------------------------------------------------------------------------------


def test_a_failing_disk_leaves_nothing_and_keeps_the_old(certs: Certificates, tmp_path, monkeypatch) -> None:
    certs[:2].save(tmp_path / "a")
    before = bytes_of(tmp_path / "a")

    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    for module, name in ((pq, "write_table"), (os, "fsync"), (os, "replace")):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, full)
            for target in ("a", "new"):
                with pytest.raises(CertificateError, match=r"cannot write the certificates .*No space left on device"):
                    certs.save(tmp_path / target)
        assert bytes_of(tmp_path / "a") == before
        assert [p.name for p in tmp_path.iterdir()] == ["a"]


def test_a_file_size_limit_leaves_nothing(certs: Certificates, tmp_path) -> None:
    """The operating system itself refuses to write more: what a full disk does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    old = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, hard))
    try:
        with pytest.raises(CertificateError, match=r"cannot write the certificates to"):
            certs[:1].save(tmp_path / "a")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, old)
    assert list(tmp_path.iterdir()) == []


def test_an_interrupt_at_any_step_leaves_the_old_or_the_new(certs: Certificates, tmp_path, monkeypatch) -> None:
    few = certs[:3]
    replace, left = os.replace, 0

    def interrupted(*args):
        nonlocal left
        left -= 1
        if left < 0:
            raise KeyboardInterrupt
        replace(*args)

    for done in (0, 1):  # the table is replaced, then the manifest; the protocol is the old one
        few.save(tmp_path / "a")
        before, left = bytes_of(tmp_path / "a"), done
        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", interrupted)
            with pytest.raises(KeyboardInterrupt):
                certs.save(tmp_path / "a")
        assert bytes_of(tmp_path / "a") == before


KILLED_AT_EVERY_STEP = """
import os, shutil, signal, sys
from pathlib import Path
from fragility.audits import Certificates

source, old, home = Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3])
EVENTS = {"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.chmod", "os.listdir", "fcntl.flock"}

def die_at(step):
    count, force = 0, os.fsync
    def tick(torn=None):
        nonlocal count
        count += 1
        if count == step:
            if torn is not None and os.fstat(torn).st_size:
                os.truncate(f"/proc/self/fd/{torn}", os.fstat(torn).st_size // 2)
            os.kill(os.getpid(), signal.SIGKILL)
    def fsync(handle):
        tick(handle)
        force(handle)
        tick()
    os.fsync = fsync
    sys.addaudithook(lambda event, _: tick() if event in EVENTS else None)

step = 0
while True:
    step += 1
    target = home / str(step)
    if old.exists():
        shutil.copytree(old, target)
    child = os.fork()
    if not child:
        certs = Certificates.load(source)
        die_at(step)
        certs.save(target)
        os._exit(0)
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0:
        break
print(step)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="tears a file through /proc")
@pytest.mark.parametrize("before", ["nothing", "another audit", "the same audit", "an audit beside other files"])
def test_killed_at_any_step_the_old_or_the_new_audit_is_whole(certs: Certificates, tmp_path, before: str) -> None:
    """A real SIGKILL before every file operation, and with the file being written cut in half."""
    certs.save(tmp_path / "source")
    old, home = tmp_path / "old", tmp_path / "home"
    if before != "nothing":
        (certs if before == "the same audit" else certs[:3]).save(old)
    if before == "an audit beside other files":
        (old / "model.skops").write_bytes(b"a model")
    home.mkdir()
    command = [sys.executable, "-c", KILLED_AT_EVERY_STEP, *map(str, (tmp_path / "source", old, home))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    steps = int(done.stdout)
    assert steps > 20
    outcomes = set()
    for step in range(1, steps + 1):
        target = home / str(step)
        if (target / "manifest.json").exists():
            assert is_whole(target), step
            outcomes.add(len(Certificates.load(target)))
        else:
            assert before == "nothing" and (not target.exists() or check_writable_folder(target))
            outcomes.add(0)
        certs.save(target)  # the next write succeeds, and clears away what the killed one left
        theirs = {"model.skops"} if before == "an audit beside other files" else set()
        assert set(bytes_of(target)) == set(bytes_of(tmp_path / "source")) | theirs, step
        assert not theirs or (target / "model.skops").read_bytes() == b"a model"
    assert outcomes == {"nothing": {0, 12}, "the same audit": {12}}.get(before, {3, 12})


def test_leftovers_are_removed_only_if_they_are_ours_and_dead(certs: Certificates, tmp_path) -> None:
    target = certs.save(tmp_path / "a")
    whole = set(bytes_of(target))
    dead = {LEFTOVER: b"half", ".fragility-00000000deadbeef.part.parquet": b""}
    foreign = {
        ".fragility-mine.part": b"x",
        ".fragility-0123456789abcdef.part2": b"x",
        "certificates-0123456789abcdef.parquet": b"not of this digest",
        "certificates-.parquet": b"x",
    }
    for name, data in {**dead, **foreign}.items():
        (target / name).write_bytes(data)
    with replacing(target / "live.bin") as live:  # a writer at work holds the lock of its hidden file
        certs.save(target)
        assert set(bytes_of(target)) == whole | set(foreign) | {live.name}
        live.write_bytes(b"done")
    assert set(bytes_of(target)) == whole | set(foreign) | {"live.bin"}


def test_single_files_clear_away_what_a_killed_write_left(tmp_path) -> None:
    script = textwrap.dedent(
        """
        import os, signal, sys
        from fragility.base.files import replacing
        with replacing(sys.argv[1]) as part:
            part.write_text("half")
            os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path / "a.json")], timeout=120)
    assert done.returncode == -signal.SIGKILL
    (left,) = tmp_path.iterdir()
    assert left.name.startswith(".fragility-")
    write_text(tmp_path / "b.json", "{}")
    assert [path.name for path in tmp_path.iterdir()] == ["b.json"]


# --- several at once ----------------------------------------------------------------------------------------

WRITER = """
import sys
from fragility.audits import Certificates
certs = Certificates.load(sys.argv[1])
print("ready", flush=True)
for turn in range(int(sys.argv[3])):
    certs.save(sys.argv[2])
"""


@pytest.mark.slow
def test_writers_and_readers_at_once_never_see_a_mixture(certs: Certificates, tmp_path) -> None:
    sources = [certs[:5].save(tmp_path / "five"), certs.save(tmp_path / "twelve")]
    roots = {Certificates.load(source).manifest.root_digest for source in sources}
    target = certs.save(tmp_path / "target")
    command = [sys.executable, "-c", WRITER]
    writers = [
        subprocess.Popen([*command, str(source), str(target), "25"], stdout=subprocess.PIPE) for source in sources
    ]
    seen = set()
    while any(writer.poll() is None for writer in writers):
        found = Certificates.load(target)
        assert found.manifest.root_digest in roots and len(found) == found.manifest.rows
        seen.add(len(found))
        time.sleep(0.001)
    assert [writer.wait() for writer in writers] == [0, 0]
    for writer in writers:
        writer.stdout.close()
    assert is_whole(target) and len(bytes_of(target)) == 3
    assert seen <= {5, 12}


def test_a_writer_that_never_ends_is_not_waited_for_without_end(certs: Certificates, tmp_path, monkeypatch) -> None:
    target = certs.save(tmp_path / "a")
    monkeypatch.setattr(files, "LOCK_PATIENCE", 0.05)
    with files.exclusive(target), pytest.raises(CertificateError, match=r"another process is writing there"):
        certs.save(target)
    certs.save(target)
    (target / files.LOCK_NAME).write_text("")  # left by a killed writer: nobody holds it
    certs.save(target)
    assert len(bytes_of(target)) == 3


def test_a_reader_finds_the_new_audit_where_the_old_one_goes(certs: Certificates, tmp_path, monkeypatch) -> None:
    """The manifest is read, then the folder is rewritten, then the files are looked for."""
    target = certs[:3].save(tmp_path / "a")
    rewritten = False

    def rewritten_meanwhile(path: Path) -> BinaryIO:
        nonlocal rewritten
        if path.name.startswith("certificates-") and not rewritten:
            rewritten = True
            certs.save(target)
        return open_regular(path)

    monkeypatch.setattr("fragility.base.files.open_regular", rewritten_meanwhile)
    assert len(Certificates.load(target)) == 12


def test_an_audit_in_several_parts_is_read_as_one(certs: Certificates, tmp_path) -> None:
    target = save_in_parts(certs, tmp_path / "a", 5)
    parts = sorted(path.name for path in target.glob("certificates-*"))
    assert [name.split("-")[1] for name in parts] == ["00000", "00001", "00002"]
    assert Certificates.load(target).table.equals(certs.table) and is_whole(target)
    document = json.loads((target / "manifest.json").read_text())
    files = list(document["files"].items())
    for wrong in ([files[1], files[0], *files[2:]], [files[0], *files[2:]], files[:-1], files[-1:]):
        (target / "manifest.json").write_text(manifest_text({**document, "files": dict(wrong)}))
        with pytest.raises(CertificateError, match=r"parts of the certificates in order, from 00000, then the tables"):
            Certificates.load(target)


def test_equal_tables_are_written_with_equal_bytes(certs: Certificates, tmp_path) -> None:
    """However a table came to be: whole, cut from a larger one, put together from pieces, read from a file."""
    expected = encode_part(certs.table)
    pieces = pa.concat_tables([certs.table.slice(0, 5), certs.table.slice(5)])
    framed = pa.concat_tables([certs.table, certs.table, certs.table]).combine_chunks().slice(len(certs), len(certs))
    loaded = Certificates.load(certs.save(tmp_path / "a")).table
    assert all(encode_part(table) == expected for table in (pieces, framed, loaded))


# --- JSON of unknown origin ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[" * 100_000, "nested absurdly deep"),
        ("[" * 100 + "]" * 100, "nested more than 60 deep"),
        ('{"a": 1, "b": 2, "a": 3}', "'a' occurs twice"),
        ('{"a": NaN}', "NaN is not a JSON number"),
        ("[-Infinity]", "-Infinity is not a JSON number"),
        ("[1e999]", "beyond the range of a double"),
        ("[" + "9" * 5000 + "]", "beyond the range of a double"),
        ("{", "Expecting property name"),
    ],
)
def test_json_that_could_be_read_in_two_ways_is_refused(certs: Certificates, tmp_path, text: str, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        parse_json(text)
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(CertificateError, match=told):
        Certificates.load(tmp_path)
    with pytest.raises(ValueError, match=told):
        Protocol.from_json(text)


def test_json_that_is_plain_is_read(certs: Certificates) -> None:
    document = {"a": [1, -2.5, True, None, "x"], "b": {"c": {}}}
    assert parse_json(json.dumps(document)) == document
