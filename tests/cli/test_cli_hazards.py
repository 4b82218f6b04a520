"""Files and words of unknown origin: nothing precious is overwritten, nothing hangs, no terminal is commanded."""

import gzip
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.ipc
import pytest
from command_line import COLUMNS, audit_words, refuse, run, verify_words

import fragility as fg
from fragility.base.text import escape_controls

# --- what no output replaces --------------------------------------------------------------------------------


@pytest.fixture
def precious(made, tmp_path):
    """A folder with an audit, a key, models and decisions, and what each file is in words."""
    audit = fg.Certificates.load(made / "audit").save(tmp_path / "audit")
    fg.generate_keys(tmp_path / "key.json")
    (tmp_path / "model.skops").write_bytes((made / "model.skops").read_bytes())
    (tmp_path / "booster.json").write_text('{"learner":{"attributes":{}},"version":[3,0,0]}')
    (tmp_path / "booster.txt").write_text("tree\nversion=v4\n")
    (tmp_path / "decisions.json").write_bytes(b"SQLite format 3\0 and so on")
    (tmp_path / "notes").write_text("notes")
    (tmp_path / "link.json").symlink_to(tmp_path / "notes")
    part = next(path.name for path in audit.iterdir() if path.name.startswith("certificates-"))
    protocol = next(path.name for path in audit.iterdir() if path.name.startswith("protocol-"))
    kinds = {
        "audit/manifest.json": "a file of an audit",
        f"audit/{part}": "a file of an audit",
        f"audit/{protocol}": "a file of an audit",
        "key.json": "a key",
        "key.json.pub": "a key",
        "model.skops": "a model",
        "booster.json": "a model",
        "booster.txt": "a model",
        "decisions.json": "a database",
        "link.json": "a symbolic link",
    }
    return tmp_path, kinds


def test_prove_overwrites_nothing_precious(precious):
    folder, kinds = precious
    for name, kind in kinds.items():
        before = (folder / name).read_bytes()
        said = refuse("sign", "prove", folder / "audit", "--row", "L0703", "--out", folder / name)
        assert f"--out {folder / name} is {kind}, which is never overwritten; choose another name" in said
        with pytest.raises(fg.FragilityError, match=f"it is {kind}, which is never overwritten"):
            fg.prove(folder / "audit", "L0703", folder / name)
        assert (folder / name).read_bytes() == before
    assert run("sign", "prove", folder / "audit", "--row", "L0703", "--out", folder / "proof.json").code == 0
    assert (
        run("sign", "prove", folder / "audit", "--row", "L0704", "--out", folder / "proof.json").code == 0
    )  # its own kind


@pytest.mark.parametrize("name", ["audit/manifest.json", "key.json", "booster.json", "link.json"])
def test_other_commands_overwrite_nothing_precious(precious, made, name):
    folder, kinds = precious
    before = (folder / name).read_bytes()
    rows = ["--model", made / "model.skops", "--data", made / "test.parquet", *COLUMNS]
    commands = [
        ["report", folder / "audit", "--out", folder / name],
        ["protocol", "write", folder / name, "--model", made / "model.skops", "--train", made / "train.parquet",
         *COLUMNS],
        ["reliability", folder / "audit", *rows, "--rates", "0.1", "--out", folder / name],
    ]  # fmt: skip
    for words in commands:
        assert f"is {kinds[name]}, which is never overwritten" in refuse(*words), words
    assert (folder / name).read_bytes() == before


def test_sign_does_not_write_through_a_link(precious):
    folder, _ = precious
    (folder / "audit" / "signature.dsse.json").symlink_to(folder / "notes")
    said = refuse("sign", folder / "audit", "--key", folder / "key.json")
    assert "it is a symbolic link, which is never overwritten" in said
    assert (folder / "notes").read_text() == "notes"


# --- files that could hang or crash a reader ----------------------------------------------------------------


def stress_words(folder, data):
    """A command that reads its rows at once, not part by part as `audit` does."""
    return ["evaluate", "labels", folder / "audit", "--model", folder / "model.skops", "--data", data, *COLUMNS]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
@pytest.mark.parametrize("which", ["manifest.json", "certificates-", "protocol-"])
@pytest.mark.parametrize("what", ["pipe", "device"])
def test_a_pipe_or_device_in_an_audit_is_refused(made, tmp_path, which, what):
    audit = fg.Certificates.load(made / "audit").save(tmp_path / "audit")
    path = next(path for path in audit.iterdir() if path.name.startswith(which))
    path.unlink()
    if what == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    assert f"cannot read {path}: it is not a regular file" in refuse("show", audit)
    done = run(*[audit if word == made / "audit" else word for word in verify_words(made)])
    assert done.code in (1, 2) and "it is not a regular file" in done.out + done.err


def test_wrong_offsets_in_an_arrow_file_are_refused(made, tmp_path):
    """Arrow follows an offset that points outside of its buffer, and the process ends."""
    rows = pa.Table.from_pandas(pd.read_parquet(made / "test.parquet"), preserve_index=False)
    for name in ("purpose", "risk"):  # a field, and the labels, which are read after the audit
        column = rows.column(name).combine_chunks()
        offsets = np.frombuffer(column.buffers()[1], dtype=np.int32).copy()
        offsets[7] = 2**30
        broken = pa.Array.from_buffers(
            column.type, len(column), [None, pa.py_buffer(offsets.tobytes()), column.buffers()[2]]
        )
        table = rows.set_column(rows.column_names.index(name), name, broken)
        with pa.ipc.new_file(tmp_path / "rows.arrow", table.schema) as sink:
            sink.write_table(table)
        said = refuse(*audit_words(made, tmp_path / "rows.arrow"), "--out", tmp_path / "audit")
        assert "could not be read as arrow" in said and not (tmp_path / "audit").exists()
        assert "could not be read as arrow" in refuse(*stress_words(made, tmp_path / "rows.arrow"))


def test_a_cut_line_is_not_read_as_missing_values(made, tmp_path):
    lines = (made / "test.csv").read_text().splitlines()
    fields = len(lines[0].split(","))
    lines[10] = ",".join(lines[10].split(",")[:3])
    (tmp_path / "cut.csv").write_text("\n".join(lines) + "\n")
    for words in (
        [*audit_words(made, tmp_path / "cut.csv"), "--out", tmp_path / "audit"],
        stress_words(made, tmp_path / "cut.csv"),
    ):
        said = refuse(*words)
        assert f"line 11: 3 fields, but the header has {fields}; the line may be truncated" in said, said
    assert not (tmp_path / "audit").exists()


def test_quoted_line_ends_and_other_separators_are_no_cut_lines(tmp_path):
    from fragility.tables.formats import CsvFormat
    from fragility.tables.sources import open_source

    frame = pd.DataFrame({"a": [1.5, 2.5], "b": ["two\nlines", 'a "quote"; and, more']})
    frame.to_csv(tmp_path / "rows.csv", index=False, sep=";", decimal=",", encoding="utf-16")
    source = open_source(tmp_path / "rows.csv", csv=CsvFormat(";", "utf-16", ","))
    pd.testing.assert_frame_equal(source.head(5).frame, frame)


def test_a_cut_gzip_file_and_a_nul_byte_are_told(made, tmp_path):
    whole = gzip.compress((made / "test.csv").read_bytes())
    (tmp_path / "cut.csv.gz").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "nul.csv").write_bytes(b"a,b\n1,2\n3,\x004\n")
    for name, told in (("cut.csv.gz", "is not a complete gzip file"), ("nul.csv", "line 3: a NUL byte")):
        assert told in refuse(*audit_words(made, tmp_path / name), "--out", tmp_path / "audit")
        assert told in refuse(*stress_words(made, tmp_path / name))


# --- words that would command a terminal --------------------------------------------------------------------

CLEAR = "\x1b[2J\x1b[Hverified: every claim of all 60 certificates holds"


def test_control_characters_are_written_out():
    assert escape_controls("a\x1b[2Jb\x9b\u202ec\td\ne") == "a\\x1b[2Jb\\x9b\\u202ec\\td\\ne"
    assert escape_controls("é ü 漢\n", lines=True) == "é ü 漢\n"


def test_ids_cannot_command_the_terminal(table, model, made, tmp_path):
    rows = table[700:720].reset_index(drop=True)
    rows["loan"] = [f"{CLEAR}\nrow {i}" for i in range(len(rows))]
    rows.to_parquet(tmp_path / "rows.parquet")
    done = run(*audit_words(made, tmp_path / "rows.parquet"), "--out", tmp_path / "audit")
    assert done.code == 0, done.err
    rows["duration"] += 1  # so that claims do not hold
    rows.to_parquet(tmp_path / "other.parquet")
    for words in (
        ["show", tmp_path / "audit", "--min-confidence", "0"],
        ["show", tmp_path / "audit", "--row", rows["loan"][3]],
        ["show", tmp_path / "audit", "--row", CLEAR],
        ["verify", tmp_path / "audit", "--model", made / "model.skops", "--data", tmp_path / "other.parquet", *COLUMNS],
        ["report", made / "audit", tmp_path / "audit"],
    ):
        done = run(*words)
        said = done.out + done.err
        assert "\x1b" not in said and "\nverified" not in said and "\nrow " not in said, words


def test_rates_that_are_no_numbers_are_refused(made, tmp_path):
    (tmp_path / "rates.json").write_text('{"age": true}')
    words = ["reliability", made / "audit", "--model", made / "model.skops", "--data", made / "test.parquet", *COLUMNS]
    assert "must be a number from 0 to 1, got True" in refuse(*words, "--rates", tmp_path / "rates.json")


# --- SIGTERM ------------------------------------------------------------------------------------------------


def test_sigterm_says_what_was_written(made, tmp_path):
    code = (
        "import pathlib, sys, time\n"
        "import fragility.cli.audit as command\n"
        "def wait(*_, **__):\n"
        "    pathlib.Path('started').touch()\n"
        "    for _ in range(600):\n"
        "        time.sleep(0.1)\n"
        "command.read_training = wait\n"
        "from fragility.cli import main\n"
        "main(sys.argv[1:])\n"
    )
    words = [sys.executable, "-c", code, *map(str, audit_words(made)), "--out", "audit"]
    process = subprocess.Popen(words, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while not (tmp_path / "started").exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (143, "fragility: terminated; nothing was written\n")


def test_two_zeros_are_one_id_and_nothing_is_written(table, made, tmp_path):
    rows = table[700:720].reset_index(drop=True)
    rows["loan"] = [0.0, -0.0, *map(float, range(2, len(rows)))]
    rows.to_parquet(tmp_path / "rows.parquet")
    said = refuse(*audit_words(made, tmp_path / "rows.parquet"), "--out", tmp_path / "audit")
    assert "ids must be distinct, '-0.0' appears twice" in said or "ids must be distinct, 0.0 appears 2 times" in said
    assert not (tmp_path / "audit").exists()
