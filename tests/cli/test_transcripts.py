"""Commands and what they answer, as a user would note them down.

A transcript has commands, each after a dollar sign, and below a command what it prints: results, then notes. Three dots
stand for anything, a last line `[exit 1]` for an exit code other than 0. Lines after a blank line are remarks.
"""

import doctest
import re
import shlex
import shutil
from pathlib import Path

import pytest
from command_line import run

TRANSCRIPTS = sorted((Path(__file__).parent / "transcripts").glob("*.txt"))
MATCH = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
EXIT = re.compile(r"\[exit (\d+)\]\n$")


def read_transcript(path: Path) -> list[tuple[str, str]]:
    """Return each command with what it is to print."""
    blocks = path.read_text(encoding="utf-8").split("\n$ ")[1:]
    return [(block.split("\n", 1)[0], block.partition("\n")[2].split("\n\n")[0].rstrip() + "\n") for block in blocks]


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: path.stem)
def test_commands_answer_as_noted(made, tmp_path, monkeypatch, path):
    pytest.importorskip("securesystemslib")
    shutil.copytree(made, tmp_path / "work")
    monkeypatch.chdir(tmp_path / "work")
    for command, expected in read_transcript(path):
        program, *words = shlex.split(command)
        assert program == "fragility"
        done = run(*words)
        code = EXIT.search(expected)
        expected = EXIT.sub("", expected)
        printed = f"{done.out}{done.err}"
        assert done.code == (int(code[1]) if code else 0), f"$ {command}\n{printed}"
        found = doctest.OutputChecker().check_output(expected, printed, MATCH)
        assert found, f"$ {command}\nexpected\n{expected}\nprinted\n{printed}"
