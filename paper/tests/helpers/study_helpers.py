"""What the tests of the study share: where things lie, a profile small enough to wait for, and the command line."""

import os
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

import pytest

from fragility.cli import main
from fragility_paper.plan import Profile, Unit

REPOSITORY = Path(__file__).resolve().parents[3]
RESULTS = REPOSITORY / "paper" / "results"

TINY = Profile(
    name="tiny",
    datasets=("credit_g",),
    models=("logreg", "rf"),
    seeds=(0, 1),
    audited_rows=30,
    rcma_rows=30,
    validation_rows=30,
    calibration_rows=40,
    draws=4,
    extra_rows=20,
    shap_rows=8,
    search_rows=3,
    search_evaluations=220,
    random_orders=1,
)
LOGREG = Unit("credit_g", "logreg", 0)


def data_folder() -> Path:
    """The folder with the benchmark data sets, whether or not it exists."""
    return Path(os.environ.get("FRAGILITY_DATA") or REPOSITORY.parent / "shared" / "data")


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str


def run_command(*words: object) -> Done:
    """Run `fragility WORDS` in this process."""
    out, err = StringIO(), StringIO()
    with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as stop:
        main([str(word) for word in words])
    return Done(int(stop.value.code or 0), out.getvalue(), err.getvalue())


def refuse(*words: object) -> str:
    """Run a command that must fail with exit code 2 and one sentence, and return the sentence."""
    done = run_command(*words)
    assert done.code == 2, done
    assert done.err.startswith("fragility: ") and done.err.count("\n") == 1, done.err
    return done.err
