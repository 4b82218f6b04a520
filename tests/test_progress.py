"""Progress bars: for long work that somebody watches, and for nobody else."""

import os
import subprocess
import sys
import textwrap

import pytest

from fragility.base import progress
from fragility.base.progress import progress_bar


def test_long_work_shows_how_far_it_is(monkeypatch, capsys):
    monkeypatch.setattr(progress, "SHOW_AFTER_SECONDS", 0.0)
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes the captured stream for a terminal
    with progress_bar("auditing", True) as report:
        report(3, 5)
    shown = capsys.readouterr()
    assert "auditing" in shown.err and "3/5" in shown.err and shown.out == ""
    assert "rows/s" in shown.err


def test_the_bar_goes_when_the_work_fails(monkeypatch, capsys):
    monkeypatch.setattr(progress, "SHOW_AFTER_SECONDS", 0.0)
    monkeypatch.setenv("FORCE_COLOR", "1")
    with pytest.raises(ZeroDivisionError), progress_bar("auditing", True) as report:
        report(1, 5)
        raise ZeroDivisionError
    assert capsys.readouterr().err.endswith("\x1b[2K")  # its line is wiped


def test_short_work_shows_nothing(capsys):
    with progress_bar("auditing", True) as report:
        report(1, 1)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("wanted", [None, False])
def test_without_a_terminal_nothing_is_reported(wanted):
    with progress_bar("auditing", wanted) as report:
        assert report is None


def test_a_function_is_told_instead():
    told = []
    with progress_bar("auditing", lambda *state: told.append(state)) as report:
        report(1, 2)
        report(2, 2)
    assert told == [(1, 2), (2, 2)]


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_a_terminal_gets_the_bar_without_asking():
    code = """
        from fragility.base import progress
        progress.SHOW_AFTER_SECONDS = 0.0
        with progress.progress_bar("auditing") as report:
            report(2, 7)
    """
    import pty

    ours, theirs = pty.openpty()
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], stderr=theirs, check=True, timeout=120)
    os.close(theirs)
    assert b"2/7" in os.read(ours, 100_000)
    os.close(ours)
