"""The command line, run in this process, and the words of commands that many tests give."""

from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

import pytest

from fragility.cli import main

NUMERIC = ["duration", "credit_amount", "age"]
NOMINAL = ["checking_status", "savings_status", "purpose"]
COLUMNS = ["--target", "risk", "--id", "loan"]


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str


def run(*words: object) -> Done:
    """Run `fragility WORDS` in this process."""
    out, err = StringIO(), StringIO()
    with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as stop:
        main([str(word) for word in words])
    return Done(stop.value.code or 0, out.getvalue(), err.getvalue())


def refuse(*words: object) -> str:
    """Run a command that must fail with exit code 2 and one sentence, and return the sentence."""
    done = run(*words)
    assert done.code == 2, done
    assert "Traceback" not in done.err
    assert done.err.startswith("fragility: ") and done.err.count("\n") == 1, done.err
    return done.err


def audit_words(folder: Path, data: str = "test.parquet", model: str = "model.skops") -> list[object]:
    return ["audit", folder / model, folder / data, "--train", folder / "train.parquet", *COLUMNS]


def verify_words(folder: Path) -> list[object]:
    return ["verify", folder / "audit", "--model", folder / "model.skops", "--data", folder / "test.parquet", *COLUMNS]


def replaced(words: list[object], option: str, value: object) -> list[object]:
    place = words.index(option) + 1
    return [*words[:place], value, *words[place + 1 :]]
