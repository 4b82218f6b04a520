"""The tool that shows that a restructuring changes no byte: one tree makes equal folders, and differences are named."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from places import data_folder

TOOL = Path(__file__).parent / "tools" / "golden.py"


def golden(*words: object) -> tuple[int, str]:
    environment = os.environ | {"FRAGILITY_DATA": str(data_folder())}
    given = [sys.executable, str(TOOL), *map(str, words)]
    done = subprocess.run(given, env=environment, capture_output=True, text=True, timeout=500)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.slow
def test_one_tree_makes_the_same_folder_twice(tmp_path) -> None:
    if not (data_folder() / "adult.parquet").exists():
        pytest.skip("adult.parquet not found; set FRAGILITY_DATA to the folder that holds it")
    for name in ("one", "other"):
        code, told = golden("make", tmp_path / name, "--quick")
        assert code == 0, told
    code, told = golden("compare", tmp_path / "one", tmp_path / "other")
    assert code == 0, told
    assert told.startswith("0 of ") and int(told.split()[2]) > 30
    code, told = golden("make", tmp_path / "one", "--quick")
    assert code == 2 and "is not empty" in told


def test_what_differs_is_named_with_its_place(tmp_path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()
    for name, text in (("made.json", "{}"), ("said.txt", "one\ntwo\n"), ("gone.txt", "")):
        (old / name).write_text(text)
    pq.write_table(pa.table({"id": [1, 2], "fds": [0.0, float("nan")]}), old / "part.parquet")
    (old / "model.joblib").write_bytes(b"what another library writes")
    shutil.copytree(old, new)
    assert golden("compare", old, new) == (0, "0 of 4 files differ\n")
    (new / "gone.txt").rename(new / "come.txt")
    (new / "said.txt").write_text("one\n2\n")
    (new / "model.joblib").write_bytes(b"other bytes of it")
    pq.write_table(pa.table({"id": [1, 2], "fds": [-0.0, float("nan")]}), new / "part.parquet")
    code, told = golden("compare", old, new)
    assert code == 1
    assert told.splitlines() == [
        "added: come.txt",
        "missing: gone.txt",
        "changed: part.parquet: column fds, row 0: 0.0, then -0.0",
        "changed: said.txt: line 2: 'two', then '2'",
        "4 of 5 files differ",
    ]
    (new / "made.json").unlink()
    code, told = golden("compare", old, new)
    assert code == 2 and "is no finished golden folder" in told
