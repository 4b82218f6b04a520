"""audit_files: the folder that an audit in memory writes, whatever the format, the parts or the accident."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command_line import refuse, run
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pipelines import Case, fitted
from pyarrow import fs as arrow_fs

import fragility as fg
from fragility.auditing import files as stream_module
from fragility.auditing.certifying import PartAuditor
from fragility.audits.folder import WORK_FOLDER
from fragility.audits.parts import PART_ROWS
from fragility.base import files
from fragility.base.errors import CertificateError, DataError, ModelError, VerificationError
from fragility.verification.outcome import Verification

audit_files = partial(fg.audit_files, baselines=False)  # their tests are in test_dependence
KINDS = ("parquet", "csv", "csv.gz", "feather", "stream.arrow")


@pytest.fixture(scope="module")
def case() -> Case:
    return fitted("credit_g", "lightgbm", "transformed")


@pytest.fixture(scope="module")
def protocol(case: Case) -> fg.Protocol:
    return fg.Protocol.fit(case.model, case.X_train, depth=4)


@pytest.fixture(scope="module")
def rows(case: Case) -> pd.DataFrame:
    return case.X_test.reset_index(drop=True)


@pytest.fixture(scope="module")
def certs(case: Case, rows: pd.DataFrame, protocol: fg.Protocol) -> fg.Certificates:
    return fg.audit(case.model, rows, protocol)


@pytest.fixture
def table(rows: pd.DataFrame, tmp_path: Path) -> Path:
    rows.to_parquet(tmp_path / "rows.parquet")
    return tmp_path / "rows.parquet"


def write(rows: pd.DataFrame, path: Path) -> Path:
    if path.name.endswith(".parquet"):
        rows.to_parquet(path, row_group_size=37)
    elif path.name.endswith((".csv", ".csv.gz")):
        rows.to_csv(path, index=False)
    elif path.name.endswith(".stream.arrow"):
        table = pa.Table.from_pandas(rows)
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table, max_chunksize=41)
    else:
        rows.to_feather(path)
    return path


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


# --- the same as in memory ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_files_of_every_kind_give_the_bytes_of_an_audit_in_memory(case, rows, protocol, certs, tmp_path, kind) -> None:
    source = write(rows, tmp_path / f"rows.{kind}")
    stored = audit_files(case.model, source, protocol, tmp_path / "files")
    assert content(tmp_path / "files") == content(certs.save(tmp_path / "memory"))
    assert len(stored) == len(certs) and stored.engine == certs.engine == "trees"


@pytest.mark.parametrize("family", ["logistic", "random_forest", "xgboost", "catboost", "mlp"])
@pytest.mark.parametrize("space", ["transformed", pytest.param("raw", marks=pytest.mark.slow)])
def test_every_engine_gives_the_same_rows_in_parts(family, space, tmp_path) -> None:
    case = fitted("credit_g", family, space)
    X = case.X_test.reset_index(drop=True)[:150]
    protocol = fg.Protocol.fit(case.model, case.X_train, depth=3, space=space)
    X.to_parquet(tmp_path / "rows.parquet")
    whole = fg.audit(case.model, X, protocol)
    assert content(whole.save(tmp_path / "memory")) == content(
        audit_files(case.model, tmp_path / "rows.parquet", protocol, tmp_path / "one").folder
    )
    parts = audit_files(case.model, tmp_path / "rows.parquet", protocol, tmp_path / "many", part_rows=47)
    assert len(parts.part_names) == 4 and parts.engine == whole.engine
    assert parts.manifest.root_digest == whole.manifest.root_digest
    assert parts.manifest.input == whole.manifest.input


@settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(part_rows=st.integers(1, 450), row_group=st.integers(1, 450), kind=st.sampled_from(["parquet", "csv"]))
def test_the_size_of_the_parts_changes_nothing_but_the_files(
    case, rows, protocol, certs, tmp_path_factory, part_rows, row_group, kind
) -> None:
    folder = tmp_path_factory.mktemp("parts")
    few = rows[:60] if part_rows < 10 else rows
    whole = certs if len(few) == len(rows) else fg.audit(case.model, few, protocol)
    if kind == "parquet":
        few.to_parquet(folder / "rows.parquet", row_group_size=row_group)
    else:
        few.to_csv(folder / "rows.csv", index=False)
    stored = audit_files(case.model, folder / f"rows.{kind}", protocol, folder / "audit", part_rows=part_rows)
    assert len(stored.part_names) == -(-len(few) // part_rows)
    assert stored.manifest.root_digest == whole.manifest.root_digest
    assert stored.manifest.input == whole.manifest.input
    assert pa.concat_tables(stored.batches()).equals(whole.table)


@pytest.mark.parametrize(
    ("pattern", "names"),
    {
        "*.csv": ["a.csv"],
        "day*/*.csv": ["day1/b.csv"],
        "**/*.csv": ["a.csv", "day1/b.csv", "day1/late/c.csv"],
        "day1/**/[bc].csv": ["day1/b.csv", "day1/late/c.csv"],
    }.items(),
)
def test_a_pattern_names_the_same_files_on_disk_and_in_an_object_store(tmp_path, pattern, names):
    from fragility.tables.formats import find_files

    for name in ("a.csv", "day1/b.csv", "day1/late/c.csv"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x\n1\n")
    stored = arrow_fs.SubTreeFileSystem(str(tmp_path), arrow_fs.LocalFileSystem())
    there = [file.path for file in find_files(pattern, stored)[1]]
    here = [os.path.relpath(file.path, tmp_path) for file in find_files(tmp_path / pattern)[1]]
    assert there == here == names


def test_folders_patterns_and_other_file_systems(case, rows, protocol, certs, tmp_path) -> None:
    home = tmp_path / "rows" / "2026"
    home.mkdir(parents=True)
    for i, start in enumerate(range(0, 400, 90)):
        rows[start : start + 90].reset_index(drop=True).to_parquet(home / f"{i:02d}.parquet")
    (home / "_SUCCESS").write_text("")
    (home / ".hidden.parquet").write_text("not a table")
    local = arrow_fs.SubTreeFileSystem(str(tmp_path), arrow_fs.LocalFileSystem())
    sources = [(tmp_path / "rows", None), (home / "*.parquet", None), (f"file://{home}", None)]
    sources += [("rows/2026", local), ("rows/*/0?.parquet", local)]
    for k, (source, filesystem) in enumerate(sources):
        stored = audit_files(case.model, source, protocol, tmp_path / f"{k}", filesystem=filesystem)
        assert content(stored.folder) == content(certs.save(tmp_path / "memory")), source


def test_ids_labels_and_row_ranges(case, rows, protocol, tmp_path) -> None:
    loans = [f"L{i:04d}" for i in range(len(rows))]
    labelled = rows.assign(loan=loans, risk="good")
    for kind in ("parquet", "csv"):
        source = write(labelled, tmp_path / f"rows.{kind}")
        options = {"id_column": "loan", "target": "risk", "rows": slice(100, 250)}
        stored = audit_files(case.model, source, protocol, tmp_path / kind, part_rows=64, **options)
        expected = fg.audit(case.model, rows[100:250], protocol, ids=loans[100:250])
        assert pa.concat_tables(stored.batches()).equals(expected.table)
    indexed = rows.set_axis(pd.Index(loans, name="loan"))
    indexed.to_parquet(tmp_path / "indexed.parquet")
    stored = audit_files(case.model, tmp_path / "indexed.parquet", protocol, tmp_path / "indexed", part_rows=64)
    assert pa.concat_tables(stored.batches()).equals(fg.audit(case.model, indexed, protocol).table)
    rows[50:].to_parquet(tmp_path / "offset.parquet")
    stored = audit_files(case.model, tmp_path / "offset.parquet", protocol, tmp_path / "offset", part_rows=64)
    assert stored.take([0, 100])[1].id == 150


def test_numbers_as_ids_are_decided_over_the_whole_file(case, rows, protocol, tmp_path) -> None:
    """A part whose ids look like numbers does not make the ids of a table of texts numbers, nor lose their zeros."""
    texts = [f"{i:04d}" for i in range(399)] + ["last"]
    write(rows.assign(loan=texts), tmp_path / "rows.csv")
    stored = audit_files(case.model, tmp_path / "rows.csv", protocol, tmp_path / "a", id_column="loan", part_rows=100)
    assert pa.concat_tables(stored.batches(["id"])).column("id").to_pylist() == texts
    write(rows.assign(loan=[*texts[:399], "0399"]), tmp_path / "rows.csv")
    stored = audit_files(case.model, tmp_path / "rows.csv", protocol, tmp_path / "b", id_column="loan")
    assert stored.by_id("7").id == 7


def test_columns_of_csv_files_have_the_types_of_training(tmp_path) -> None:
    """Decimals that are whole in some part are decimals there too; a text among numbers is named with its line."""
    case = fitted("credit_g", "lightgbm", "transformed")
    X = case.X_train.assign(credit_amount=case.X_train["credit_amount"] + 0.5)
    X_test = case.X_test.reset_index(drop=True)  # its amounts are whole numbers
    model = case.model
    protocol = fg.Protocol.fit(model, X, depth=3)
    X_test.to_csv(tmp_path / "rows.csv", index=False)
    whole = fg.audit(model, X_test, protocol)
    stored = audit_files(model, tmp_path / "rows.csv", protocol, tmp_path / "a", part_rows=90)
    assert stored.manifest.root_digest == whole.manifest.root_digest
    assert stored.manifest.input == whole.manifest.input
    spoiled = X_test.astype({"age": object})
    spoiled.loc[377, "age"] = "old"
    spoiled.to_csv(tmp_path / "rows.csv", index=False)
    with pytest.raises(
        DataError, match=r"rows\.csv, line 379: column 'age' was numeric in the training data, but 'old' is not"
    ):
        audit_files(model, tmp_path / "rows.csv", protocol, tmp_path / "b", part_rows=90)


def test_categories_are_those_of_the_whole_input(tmp_path) -> None:
    case = fitted("credit_g", "lightgbm", "raw")
    X = case.X_test.reset_index(drop=True)
    protocol = fg.Protocol.fit(case.model, case.X_train, depth=3, space="raw")
    assert any(isinstance(dtype, pd.CategoricalDtype) for dtype in X.dtypes)
    X.to_parquet(tmp_path / "rows.parquet", row_group_size=50)
    whole = fg.audit(case.model, pd.read_parquet(tmp_path / "rows.parquet"), protocol)
    stored = audit_files(case.model, tmp_path / "rows.parquet", protocol, tmp_path / "a", part_rows=60)
    assert pa.concat_tables(stored.batches()).equals(whole.table)
    for i in range(0, 400, 80):
        part = X[i : i + 80].reset_index(drop=True)
        nominal = part.select_dtypes("category").columns
        part = part.assign(**{name: part[name].cat.remove_unused_categories() for name in nominal})
        part.to_parquet(tmp_path / f"part{i:03d}.parquet")
    stored = audit_files(case.model, tmp_path / "part*.parquet", protocol, tmp_path / "b")
    assert stored.manifest.root_digest == whole.manifest.root_digest


def test_a_batch_auditor_can_be_shipped(case, rows, protocol, certs) -> None:
    """Rows in any order and any batches, by an auditor that went through pickle: the same rows of the same table."""
    import pickle

    auditor = pickle.loads(pickle.dumps(PartAuditor.prepare(case.model, rows[:100], protocol)))
    shuffled = rows.sample(frac=1.0, random_state=1)
    batches = [auditor.certify(auditor.trace_part(shuffled[i : i + 70])) for i in range(0, 400, 70)]
    together = pa.concat_tables([batch.table for batch in batches]).sort_by("id")
    plain = certs.table.select(together.column_names)  # a batch alone does not know the most exposed rows of all
    assert together.equals(plain)
    arrow = pa.Table.from_pandas(rows[:50])
    assert auditor.certify(auditor.trace_part(arrow)).table.equals(plain.slice(0, 50))


# --- interruptions ------------------------------------------------------------------------------------------

INTERRUPTED = """
import os, pickle, random, signal, sys, time
from pathlib import Path
import fragility as fg
from fragility.auditing.files import audit_files
import fragility.engines.linear

source, home = Path(sys.argv[1]), Path(sys.argv[2])
model, protocol = pickle.loads((home / "model.pkl").read_bytes())
seeds = [int(word) for word in sys.argv[3:]]
# Load and compile here what all children need: they are to be killed at their own files.
audit_files(model, source, protocol, home / "first", id_column="loan", rows=slice(0, 20))

def child(target, resume, die_at=None):
    pid = os.fork()
    if pid:
        return pid
    if die_at is not None:
        count = 0
        def tick(event, _):
            nonlocal count
            if event in ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir"):
                count += 1
                if count == die_at:
                    os.kill(os.getpid(), signal.SIGKILL)
        sys.addaudithook(tick)
    audit_files(model, source, protocol, target, part_rows=26, resume=resume, id_column="loan")
    os._exit(0)

start = time.monotonic()
os.waitpid(child(home / "whole", False), 0)
took = time.monotonic() - start
for seed in seeds:
    random.seed(seed)
    target, resume, kills = home / f"killed{seed}", False, 0
    while True:
        pid = child(target, resume, random.randrange(10, 220) if seed % 2 else None)
        if not seed % 2:
            time.sleep(random.uniform(0, took))
            os.kill(pid, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if code == 0:
            break
        assert code == -signal.SIGKILL, code
        resume, kills = True, kills + 1
        if kills == 2:
            assert os.waitstatus_to_exitcode(os.waitpid(child(target, True), 0)[1]) == 0
            break
    print(seed, kills)
"""


def killed(tmp_path: Path, seeds: list[int]) -> None:
    import pickle

    case = fitted("credit_g", "logistic", "transformed")
    protocol = fg.Protocol.fit(case.model, case.X_train, depth=4)
    rows = case.X_test.reset_index(drop=True)
    rows.assign(loan=[f"L{i}" for i in range(len(rows))]).to_parquet(tmp_path / "rows.parquet")
    (tmp_path / "model.pkl").write_bytes(pickle.dumps((case.model, protocol)))
    command = [sys.executable, "-c", INTERRUPTED, str(tmp_path / "rows.parquet"), str(tmp_path), *map(str, seeds)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    kills = [int(line.split()[1]) for line in done.stdout.splitlines()]
    assert len(kills) == len(seeds) and sum(kills) >= len(seeds) // 2
    expected = content(tmp_path / "whole")
    assert len(expected) == 20
    for seed in seeds:
        assert content(tmp_path / f"killed{seed}") == expected, seed


@pytest.mark.skipif(os.name != "posix", reason="kills processes")
def test_killed_and_resumed_it_ends_with_the_same_bytes(tmp_path) -> None:
    killed(tmp_path, [1, 2])


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="kills processes")
def test_killed_at_twenty_moments_and_resumed_it_ends_with_the_same_bytes(tmp_path) -> None:
    killed(tmp_path, list(range(20)))


def interrupted_after(parts: int, monkeypatch, error: BaseException | None = None) -> None:
    """Let so many parts be finished, then fail."""
    write_part, count = stream_module.Journal.write, 0

    def failing(self, part, data):
        nonlocal count
        count += 1
        if count > parts:
            raise error or KeyboardInterrupt
        return write_part(self, part, data)

    monkeypatch.setattr(stream_module.Journal, "write", failing)


def test_what_is_finished_is_kept_and_an_old_audit_stays_until_the_end(
    case, protocol, certs, table, tmp_path, monkeypatch
) -> None:
    certs[:3].save(tmp_path / "a")
    before = content(tmp_path / "a")
    with monkeypatch.context() as patch:
        interrupted_after(4, patch)
        with pytest.raises(KeyboardInterrupt):
            audit_files(case.model, table, protocol, tmp_path / "a", part_rows=50)
    assert len(fg.open_audit(tmp_path / "a")) == 3
    assert _files(tmp_path / "a") == before
    with pytest.raises(CertificateError, match=r"interrupted audit with 4 finished parts; continue it with resume=Tru"):
        audit_files(case.model, table, protocol, tmp_path / "a", part_rows=50)
    stored = audit_files(case.model, table, protocol, tmp_path / "a", part_rows=50, resume=True)
    audit_files(case.model, table, protocol, tmp_path / "b", part_rows=50)
    assert content(tmp_path / "a") == content(tmp_path / "b") and len(stored) == 400


def _files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def test_only_what_is_missing_is_made_again(case, protocol, table, tmp_path, monkeypatch) -> None:
    with monkeypatch.context() as patch:
        interrupted_after(5, patch)
        with pytest.raises(KeyboardInterrupt):
            audit_files(case.model, table, protocol, tmp_path / "a", part_rows=50)
    work = tmp_path / "a" / WORK_FOLDER
    damaged = next(work.glob("certificates-00002-*"))
    damaged.write_bytes(damaged.read_bytes()[:-1])
    (work / "part-00003.json").write_text("{}")
    next(work.glob("digests-00001*")).unlink()
    flipped = next(work.glob("digests-00004*"))
    flipped.write_bytes(bytes([flipped.read_bytes()[0] ^ 1]) + flipped.read_bytes()[1:])  # one bit
    made = []
    write_part = stream_module.Journal.write
    monkeypatch.setattr(
        stream_module.Journal, "write", lambda self, part, data: made.append(part.place) or write_part(self, part, data)
    )
    audit_files(case.model, table, protocol, tmp_path / "a", part_rows=50, resume=True)
    assert made == [1, 2, 3, 4, 5, 6, 7]
    audit_files(case.model, table, protocol, tmp_path / "b", part_rows=50)
    assert content(tmp_path / "a") == content(tmp_path / "b")


def test_a_run_is_resumed_only_with_what_it_was_begun_with(case, rows, protocol, table, tmp_path, monkeypatch) -> None:
    with monkeypatch.context() as patch:
        interrupted_after(2, patch)
        with pytest.raises(KeyboardInterrupt):
            audit_files(case.model, table, protocol, tmp_path / "a", part_rows=50)

    def resumed(model=case.model, protocol=protocol, source=table, **options):
        return audit_files(model, source, protocol, tmp_path / "a", **{"part_rows": 50, "resume": True, **options})

    other = fitted("credit_g", "logistic", "transformed").model
    deeper = fg.Protocol.fit(case.model, case.X_train, depth=3)
    rows.assign(age=rows["age"] + (rows.index == 20)).to_parquet(tmp_path / "changed.parquet")
    for said, options in {
        "another model": {"model": other, "protocol": fg.Protocol.fit(other, case.X_train, depth=4)},
        "another protocol": {"protocol": deeper},
        "another engine": {"engine": "blackbox"},
        "parts of another size": {"part_rows": 60},
        "another extent of claims": {"claims": "summary"},
        "other id, label or row options": {"target": "class"},
        "other input files": {"source": tmp_path / "changed.parquet"},
    }.items():
        with pytest.raises(DataError, match=f"was begun with {said}; resume it with what it was begun with"):
            resumed(**options)
    assert len(list((tmp_path / "a" / WORK_FOLDER).glob("part-*"))) == 2
    assert len(resumed()) == 400


def test_an_input_that_changed_is_refused_though_its_size_has_not(case, rows, protocol, tmp_path, monkeypatch) -> None:
    source = write(rows, tmp_path / "rows.csv")
    with monkeypatch.context() as patch:
        interrupted_after(3, patch)
        with pytest.raises(KeyboardInterrupt):
            audit_files(case.model, source, protocol, tmp_path / "a", part_rows=50)
    size, age = source.stat().st_size, rows.loc[60, "age"]
    other = 33 if age != 33 else 34
    write(rows.assign(age=rows["age"].where(rows.index != 60, other)), source)
    assert source.stat().st_size == size
    with pytest.raises(DataError, match=r"input has changed since the audit was interrupted: its rows 50 to 99 "):
        audit_files(case.model, source, protocol, tmp_path / "a", part_rows=50, resume=True)
    write(rows, source)
    assert len(audit_files(case.model, source, protocol, tmp_path / "a", part_rows=50, resume=True)) == 400


def test_a_full_disk_costs_no_finished_part(case, protocol, table, tmp_path, monkeypatch) -> None:
    full = OSError(errno.ENOSPC, "No space left on device")
    with monkeypatch.context() as patch:
        interrupted_after(3, patch, full)
        with pytest.raises(CertificateError, match=r"No space left on device \(3 finished parts are kept; go on "):
            audit_files(case.model, table, protocol, tmp_path / "a", part_rows=50)
    with monkeypatch.context() as patch:  # the last step of all: the parts are in their places, the manifest is not
        replace = os.replace

        def no_manifest(source, target):
            if str(target).endswith("manifest.json"):
                raise full
            replace(source, target)

        patch.setattr(os, "replace", no_manifest)
        with pytest.raises(CertificateError, match=r"No space left on device \(8 finished parts are kept"):
            audit_files(case.model, table, protocol, tmp_path / "a", part_rows=50, resume=True)
    interrupted_after(0, monkeypatch)  # nothing is left to be made
    audit_files(case.model, table, protocol, tmp_path / "a", part_rows=50, resume=True)
    monkeypatch.undo()
    audit_files(case.model, table, protocol, tmp_path / "b", part_rows=50)
    assert content(tmp_path / "a") == content(tmp_path / "b")


def test_a_file_size_limit_is_one_sentence(case, protocol, table, tmp_path) -> None:
    """The operating system itself refuses to write more: what a full disk does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    old = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, hard))
    try:
        with pytest.raises(CertificateError, match=r"cannot write the certificates to .*File too large"):
            audit_files(case.model, table, protocol, tmp_path / "a")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, old)
    assert not (tmp_path / "a").exists()


def test_two_audits_into_one_folder(case, protocol, table, tmp_path) -> None:
    (tmp_path / "a").mkdir()
    refused = pytest.raises(CertificateError, match=r"another process is writing there; wait for it to end")
    with files.exclusive(tmp_path / "a"), refused:
        audit_files(case.model, table, protocol, tmp_path / "a")
    assert len(audit_files(case.model, table, protocol, tmp_path / "a")) == 400


def test_other_files_stay_and_foreign_folders_are_refused(case, protocol, certs, table, tmp_path) -> None:
    certs.save(tmp_path / "a")
    (tmp_path / "a" / "notes.txt").write_text("mine")
    audit_files(case.model, table, protocol, tmp_path / "a", part_rows=100)
    assert (tmp_path / "a" / "notes.txt").read_text() == "mine"
    assert len(content(tmp_path / "a")) == 4 + 3 + 1  # parts; searched rows, protocol, manifest; theirs
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "thesis.txt").write_text("do not lose me")
    with pytest.raises(CertificateError, match=r"exists and is not an audit folder"):
        audit_files(case.model, table, protocol, tmp_path / "b")
    assert list(_files(tmp_path / "b")) == ["thesis.txt"]


# --- bad input ----------------------------------------------------------------------------------------------


def test_what_cannot_be_read_is_named(case, rows, protocol, tmp_path) -> None:
    for name, data, said in [
        ("rows.parquet", b"PAR1 but not really", r"rows\.parquet could not be read as parquet"),
        ("rows.feather", b"ARROW1 no", r"rows\.feather could not be read as arrow"),
        ("rows.csv", b"a,b\n1,2\n1,2,3\n", r"rows\.csv, line 3: 3 fields, but the header has 2"),
        ("rows.csv", b"", r"rows\.csv could not be read as csv: No columns"),
        ("rows.csv", b"age\n", r"rows\.csv holds no rows"),
        ("rows.xlsx", b"", r"unknown kind '\.xlsx'"),
    ]:
        (tmp_path / name).write_bytes(data)
        with pytest.raises(DataError, match=said):
            audit_files(case.model, tmp_path / name, protocol, tmp_path / "a")
    for source, said in [
        (tmp_path / "none.parquet", "does not exist"),
        (tmp_path / "*.pq", "names no table"),
        ("nonsense://x/y.parquet", "cannot open nonsense://x/y.parquet"),
    ]:
        with pytest.raises(DataError, match=said):
            audit_files(case.model, source, protocol, tmp_path / "a")
    rows[:5].to_parquet(tmp_path / "1.parquet")
    rows[:5].drop(columns="age").to_parquet(tmp_path / "2.parquet")
    with pytest.raises(DataError, match=r"2\.parquet differ from those of the files before it, for example 'age'"):
        audit_files(case.model, tmp_path / "[12].parquet", protocol, tmp_path / "a")
    assert not (tmp_path / "a").exists()


def test_an_unreadable_part_of_the_input_costs_nothing_that_is_finished(
    case, rows, protocol, tmp_path, monkeypatch
) -> None:
    monkeypatch.setattr(stream_module, "FIRST_ROWS", 64)
    home = tmp_path / "rows"
    home.mkdir()
    for i in range(4):
        rows[100 * i : 100 * i + 100].reset_index(drop=True).to_parquet(home / f"{i}.parquet")
    good = (home / "3.parquet").read_bytes()
    (home / "3.parquet").write_bytes(good[:500] + b"\0" * 200 + good[700:])
    with pytest.raises(DataError, match=r"3\.parquet could not be read.*3 finished parts are kept; go on"):
        audit_files(case.model, home, protocol, tmp_path / "a", part_rows=100)
    (home / "3.parquet").write_bytes(good)
    assert len(audit_files(case.model, home, protocol, tmp_path / "a", part_rows=100, resume=True)) == 400


def test_ids_that_come_twice_are_found_in_whatever_parts(case, rows, protocol, tmp_path) -> None:
    write(rows.assign(loan=[*range(399), 7]), tmp_path / "rows.parquet")
    for part_rows in (400, 60):
        with pytest.raises(DataError, match=r"ids must be distinct, 7 appears"):
            audit_files(
                case.model, tmp_path / "rows.parquet", protocol, tmp_path / "a", id_column="loan", part_rows=part_rows
            )
        shutil.rmtree(tmp_path / "a", ignore_errors=True)


def test_words_that_are_no_choice(case, protocol, table, tmp_path) -> None:
    for said, options in {
        r"claims must be one of full, summary, got 'few'": {"claims": "few"},
        r"part_rows must be at least 1, got 0": {"part_rows": 0},
        r"counted forward, one by one": {"rows": slice(-5, None)},
        r"the id column 'loan' is not in rows\.parquet": {"id_column": "loan"},
        r"rows 900: selects none of the rows": {"rows": slice(900, None)},
    }.items():
        with pytest.raises(DataError, match=said):
            audit_files(case.model, table, protocol, tmp_path / "a", **options)


def test_a_model_that_contradicts_itself_in_a_later_part_is_refused(case, rows, protocol, table, tmp_path) -> None:
    class Fickle:
        classes_ = case.model.classes_
        feature_names_in_ = np.array(rows.columns)
        n_features_in_ = rows.shape[1]

        def predict_proba(self, X):
            return case.model.predict_proba(X)

        def predict(self, X):
            labels = case.model.predict(X)
            return np.where(X["age"] == 74, "bad" if labels[0] == "good" else "good", labels)

    raw = fg.Protocol.fit(Fickle(), case.X_train.query("age != 74"), depth=3, space="raw")
    rows.assign(age=rows["age"].where(rows.index != 390, 74)).query("age != 74 or index == 390").to_parquet(table)
    with pytest.raises(ModelError, match=r"the predict of Fickle differs"):
        audit_files(Fickle(), table, raw, tmp_path / "a", part_rows=50)


# --- summaries, progress, command line ----------------------------------------------------------------------


def test_a_summary_holds_the_scores_and_verifies(case, rows, protocol, certs, table, tmp_path) -> None:
    stored = audit_files(case.model, table, protocol, tmp_path / "a", claims="summary", part_rows=150)
    whole = pa.concat_tables(stored.batches())
    assert whole.equals(certs.table.select(whole.column_names)) and "path_margin" not in whole.column_names
    assert stored.manifest.root_digest == certs.manifest.root_digest
    assert fg.verify(tmp_path / "a", case.model, rows).complete
    one = stored.by_id(5)
    assert one.path == certs[5].path and one.path_margin == () and "removed in this order" in one.story()

    def checked(name: str, values: list) -> Verification:
        forged = whole.set_column(whole.column_names.index(name), name, pa.array(values))
        return fg.verify(fg.Certificates(forged, protocol, stored.manifest), case.model, rows)

    rcma, digests = whole.column("rcma").to_pylist(), whole.column("digest").to_pylist()
    assert "claims contradict the other claims of their rows: fds of row 0" in str(checked("rcma", [0.123, *rcma[1:]]))
    margins = whole.column("margin").to_pylist()
    assert "row 0, margin: claimed 9.0" in str(checked("margin", [9.0, *margins[1:]]))
    result = checked("digest", [digests[1], digests[0], *digests[2:]])  # the root is the same
    assert [check.name for check in result.checks if not check.passed] == ["recomputation"]
    assert "row 0, digest" in str(result)


def test_progress_counts_rows(case, protocol, table, tmp_path) -> None:
    seen: list[tuple[int, int]] = []
    report = lambda done, total: seen.append((done, total))  # noqa: E731
    audit_files(case.model, table, protocol, tmp_path / "a", part_rows=150, progress=report)
    assert seen == [(150, 400), (300, 400), (400, 400)]


def test_verify_reads_files_and_folders_in_parts(case, rows, protocol, tmp_path) -> None:
    from fragility.tables.sources import open_source

    shuffled = rows.sample(frac=1.0, random_state=3).rename_axis("loan").reset_index()
    shuffled.to_parquet(tmp_path / "shuffled.parquet")
    rows.assign(loan=range(400)).to_parquet(tmp_path / "rows.parquet")
    options = {"id_column": "loan"}
    audit_files(case.model, tmp_path / "rows.parquet", protocol, tmp_path / "a", part_rows=70, **options)
    for name in ("rows", "shuffled"):
        source = open_source(tmp_path / f"{name}.parquet", fields=protocol.fields, **options)
        assert fg.verify(tmp_path / "a", case.model, source).complete
    few = open_source(tmp_path / "rows.parquet", fields=protocol.fields, rows=slice(0, 100), **options)
    with pytest.raises(VerificationError, match=r"300 of the 400 audited rows are not among them .*: 0 to 99\)"):
        fg.verify(tmp_path / "a", case.model, few)


def test_the_command_line_resumes(case, rows, protocol, tmp_path, monkeypatch) -> None:
    import joblib

    joblib.dump(case.model, tmp_path / "model.joblib")
    protocol.save(tmp_path / "protocol.json")
    rows[:80].to_parquet(tmp_path / "rows.parquet")
    words = ["audit", tmp_path / "model.joblib", tmp_path / "rows.parquet", "--trust", "--part-rows", "20"]
    words += ["--protocol", tmp_path / "protocol.json", "--out", tmp_path / "a"]
    with monkeypatch.context() as patch:
        interrupted_after(3, patch)
        stopped = run(*words)
        assert stopped.code == 130 and "3 finished parts" in stopped.err and "--resume" in stopped.err
    assert "continue it with --resume, or remove" in refuse(*words)
    assert run(*words, "--resume").code == 0
    assert run(*words[:-1], tmp_path / "b", "--claims", "summary").code == 0
    assert fg.open_audit(tmp_path / "b").extent == "summary"
    for folder in ("a", "b"):
        given = ["--model", tmp_path / "model.joblib", "--trust", "--data", tmp_path / "rows.parquet"]
        checked = run("verify", tmp_path / folder, *given)
        assert checked.code == 0 and "every claim of all 80 certificates holds" in checked.out
        assert run("show", tmp_path / folder).code == run("show", tmp_path / folder, "--row", "7").code == 0
    assert run("report", tmp_path / "a", tmp_path / "b").code == 0


def test_an_audit_interrupted_in_its_report_is_not_made_again(case, rows, protocol, tmp_path, monkeypatch) -> None:
    import joblib

    from fragility.cli import audit as command

    joblib.dump(case.model, tmp_path / "model.joblib")
    protocol.save(tmp_path / "protocol.json")
    rows = rows[:80]
    rows.to_parquet(tmp_path / "rows.parquet")
    words = ["audit", tmp_path / "model.joblib", tmp_path / "rows.parquet", "--trust", "--part-rows", "30"]
    words += ["--protocol", tmp_path / "protocol.json", "--out", tmp_path / "a"]

    def interrupt(*args, **kwargs):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(command, "save_after_audit", interrupt)
        assert run(*words).code == 130
    made = content(tmp_path / "a")
    assert "report.html" not in made
    with monkeypatch.context() as patch:
        patch.setattr(PartAuditor, "trace", interrupt)
        assert run(*words, "--resume").code == 0
        assert (tmp_path / "a" / "report.html").exists()
        assert {name: data for name, data in content(tmp_path / "a").items() if name in made} == made
        for other in (
            ["--part-rows", "20"],
            ["--claims", "summary"],
            ["--lattice", "none"],
            ["--other-baselines", "none"],
        ):
            assert run(*words, *other, "--resume").code == 130  # another audit, which is made
        rows[1:].to_parquet(tmp_path / "rows.parquet")
        assert run(*words, "--resume").code == 130


PEAK = """
import resource, sys
from pathlib import Path
import joblib
import fragility as fg
home = Path(sys.argv[1])
protocol = fg.Protocol.load(home / "protocol.json")
fg.audit_files(joblib.load(home / "model.joblib"), home / sys.argv[2], protocol, home / sys.argv[3], part_rows=10000)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_input(tmp_path) -> None:
    """From 100,000 to 500,000 rows, the peak grows by little more than the 64 bytes of digests that each row has."""
    import joblib

    case = fitted("credit_g", "logistic", "transformed")
    X = case.X_test.reset_index(drop=True)
    joblib.dump(case.model, tmp_path / "model.joblib")
    fg.Protocol.fit(case.model, case.X_train, depth=4).save(tmp_path / "protocol.json")
    peaks = []
    for thousand in (100, 500):
        part = pa.Table.from_pandas(pd.concat([X] * 25, ignore_index=True), preserve_index=False)
        with pq.ParquetWriter(tmp_path / f"{thousand}.parquet", part.schema) as writer:
            for _ in range(thousand // 10):
                writer.write_table(part)
        command = [sys.executable, "-c", PEAK, str(tmp_path), f"{thousand}.parquet", f"audit{thousand}"]
        peaks.append(int(subprocess.run(command, capture_output=True, text=True, check=True).stdout))
    assert peaks[1] - peaks[0] < 120, peaks


def test_parts_are_of_the_size_that_is_documented() -> None:
    assert PART_ROWS == 50_000
