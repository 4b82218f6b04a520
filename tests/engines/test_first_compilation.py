"""The first audit of a tree model on a machine says why it takes so long."""

import os
import subprocess
import sys

import pytest

pytest.importorskip("numba")

ASK = """
from fragility.engines.trees.scoring import announce_compilation, walk_states
from pathlib import Path
import sys
if sys.argv[1:]:
    index = Path(walk_states._cache._cache_file._index_path)
    index.parent.mkdir(parents=True, exist_ok=True)
    index.touch()  # as an earlier process leaves it
announce_compilation()
announce_compilation()
"""


@pytest.mark.parametrize("compiled", [False, True])
def test_a_compilation_is_announced_once_and_only_where_nothing_is_kept(compiled, tmp_path):
    given = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    words = [sys.executable, "-c", ASK, *(["kept"] if compiled else [])]
    said = subprocess.run(words, env=given, capture_output=True, text=True, check=True).stderr
    sentence = "compiling the engine for this machine, which takes about half a minute, once\n"
    assert said == ("" if compiled else sentence)
