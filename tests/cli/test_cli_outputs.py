"""What a command writes: refused before the work where it cannot be, and truly told of after Ctrl-C."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from command_line import COLUMNS, audit_words, refuse, run

import fragility as fg
from fragility.cli.outputs import describe_interruption, forget_outputs, plan_files, plan_folder

# --- Ctrl-C -------------------------------------------------------------------------------------------------


def interrupted(words: list[object], slow_library: str, folder: Path) -> subprocess.CompletedProcess:
    """Run `fragility WORDS` in `folder`, press Ctrl-C while it imports `slow_library`, and return what it said."""
    path, started = folder / "slow", folder / "started"
    (path / slow_library).mkdir(parents=True)
    # In short naps: a signal that comes just before a nap begins is only seen when it ends.
    naps = "for _ in range(600):\n    time.sleep(0.1)\n"
    code = f"import pathlib, time\npathlib.Path({str(started)!r}).touch()\n{naps}"
    (path / slow_library / "__init__.py").write_text(code)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(path), os.environ.get("PYTHONPATH", "")])}
    process = subprocess.Popen(
        [sys.executable, "-m", "fragility", *map(str, words)], cwd=folder, env=environment,
        stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    deadline = time.monotonic() + 120
    while not started.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    assert started.exists(), process.communicate()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def test_interrupted_while_the_command_line_is_imported(tmp_path):
    done = interrupted(["--version"], "typer", tmp_path)
    assert (done.returncode, done.stderr) == (130, "fragility: interrupted; nothing was written\n")


def test_interrupted_while_the_library_is_imported(made, tmp_path):
    done = interrupted([*audit_words(made), "--out", "audit"], "pandas", tmp_path)
    assert (done.returncode, done.stderr) == (130, "fragility: interrupted; nothing was written\n")


def test_interrupted_while_reading(made, tmp_path):
    """A command that writes nothing need not say so."""
    done = interrupted(["show", made / "audit"], "pandas", tmp_path)
    assert (done.returncode, done.stderr) == (130, "fragility: interrupted\n")


@pytest.mark.slow
def test_an_interrupted_demo_leaves_nothing(tmp_path):
    """Model and rows are the last things it makes: interrupted there, not even the certificates are written."""
    done = interrupted(["demo", "--out", "results/demo"], "skops", tmp_path)
    assert (done.returncode, done.stderr) == (130, "fragility: interrupted; nothing was written\n")
    assert not (tmp_path / "results").exists()


def test_interrupted_after_the_first_of_two_files(made, tmp_path):
    words = [
        "reliability",
        made / "audit",
        "--model",
        made / "model.joblib",
        "--trust",
        "--data",
        made / "test.parquet",
    ]
    files = ["--rates", "0.1", "--out", "lost.json", "--out", "fields.png"]
    done = interrupted([*words, *COLUMNS, *files], "matplotlib", tmp_path)
    assert done.returncode == 130
    assert done.stderr.endswith("fragility: interrupted; written, perhaps incompletely: lost.json\n")
    assert (tmp_path / "lost.json").exists() and not (tmp_path / "fields.png").exists()


def test_what_was_written_is_read_from_the_disk(tmp_path):
    forget_outputs()
    assert describe_interruption() == "interrupted"
    old, new, folder = tmp_path / "old.json", tmp_path / "new.json", tmp_path / "audit"
    old.write_text("{}")
    folder.mkdir()
    plan_files({"--json": old, "--csv": new}, {})
    plan_folder(folder)
    assert describe_interruption() == "interrupted; nothing was written"
    new.write_text("")
    assert describe_interruption().endswith(f": {new}")
    old.write_text("{} ")
    (folder / "certificates.parquet").write_text("")
    assert describe_interruption().endswith(f": {old}, {new}, {folder}")
    forget_outputs()


# --- places that cannot be written --------------------------------------------------------------------------

GONE = "gone.skops"  # whoever reads the model before looking at the output would complain of this one


def refused_out(made, out: Path) -> str:
    return refuse(*audit_words(made, model=GONE), "--out", out)


def test_a_file_in_place_of_a_folder(made, tmp_path):
    (tmp_path / "thesis.doc").write_text("precious")
    assert "is a file; an audit needs a folder" in refused_out(made, tmp_path / "thesis.doc")
    assert "thesis.doc is a file; choose another name" in refused_out(made, tmp_path / "thesis.doc" / "audit")


def test_a_folder_of_other_things(made, tmp_path):
    (tmp_path / "thesis.doc").write_text("precious")
    assert "is not an audit folder" in refused_out(made, tmp_path)
    assert "is not an audit folder" in refuse("demo", "--out", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.doc"]


def test_folders_that_will_do(made, tmp_path):
    (tmp_path / "empty").mkdir()
    for folder in (tmp_path / "empty", tmp_path / "new" / "deeper", made / "audit"):
        assert GONE in refused_out(made, folder)


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission(made, tmp_path):
    (tmp_path / "locked").mkdir(mode=0o500)
    assert "no permission" in refused_out(made, tmp_path / "locked" / "audit")


def file_commands(made, tmp_path) -> dict[str, list[object]]:
    """Command and option -> words that end just before the file to write."""
    source = ["--model", made / GONE, "--data", made / "test.parquet", *COLUMNS]
    missing = ["evaluate", "missing", made / GONE, made / "test.parquet", "--protocol", made / "audit"]
    return {
        "protocol write FILE": [
            "protocol", "write", "--model", made / GONE, "--train", made / "train.parquet", *COLUMNS
        ],
        "evaluate labels --out": ["evaluate", "labels", made / "audit", *source, "--out"],
        "evaluate --out": ["evaluate", made / "audit", *source, "--out"],
        "evaluate missing --out": [*missing, "--out"],
        "reliability --out": ["reliability", made / "audit", *source, "--rates", "0.1", "--out"],
        "parity --example": ["parity", made / GONE, made / "model.skops", *source[2:], "--example"],
    }  # fmt: skip


FILES = list(file_commands(Path(), Path()))


@pytest.mark.parametrize("command", FILES)
def test_files_that_cannot_be_written_are_refused_before_the_work(made, tmp_path, command):
    words = file_commands(made, tmp_path)[command]
    option = command.split()[-1]
    (tmp_path / "folder.csv").mkdir()
    assert f"{option} {tmp_path / 'folder.csv'} is a folder" in refuse(*words, tmp_path / "folder.csv")
    assert f"make {tmp_path / 'gone'} first" in refuse(*words, tmp_path / "gone" / "file.csv")


@pytest.mark.parametrize("command", [name for name in FILES if name not in ("protocol write FILE", "parity --example")])
def test_no_command_writes_over_what_it_reads(made, tmp_path, command):
    words = file_commands(made, tmp_path)[command]
    before = (made / "test.parquet").read_bytes()
    assert f"both name {made / 'test.parquet'}" in refuse(*words, made / "test.parquet")
    assert (made / "test.parquet").read_bytes() == before


def test_two_outputs_need_two_files(made, tmp_path):
    words = file_commands(made, tmp_path)["parity --example"]
    said = refuse(*words, tmp_path / "x.csv", "--out", tmp_path / "x.csv")
    assert f"--example and --out (.csv) both name {tmp_path / 'x.csv'}; give --example another file" in said
    words = file_commands(made, tmp_path)["evaluate --out"]
    said = refuse(*words, tmp_path / "x.json", "--out", tmp_path / "y.json")
    assert "--out names two files of the same kind; name each kind once: .json, .txt, .parquet or .csv" in said
    assert "must end in .json or .txt" in refuse(*words, tmp_path / "x.xlsx")


@pytest.mark.slow
def test_the_demo_writes_everything_at_the_end(tmp_path):
    assert run("demo", "--out", tmp_path / "demo").code == 0
    names = {path.name for path in (tmp_path / "demo").iterdir()}
    assert {"manifest.json", "model.skops", "train.parquet", "test.parquet", "report.html"} <= names
    assert len(fg.Certificates.load(tmp_path / "demo")) == 300
