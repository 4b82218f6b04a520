"""Commands of other packages: found, listed, broken, missing. Real distributions on the path of a new process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

GREETING = '''
import typer

app = typer.Typer()


@app.command()
def greet(name: str) -> None:
    """Say hello."""
    typer.echo(f"hello {name}")
'''


def install(folder: Path, distribution: str, commands: dict[str, str]) -> Path:
    """Write the metadata of an installed package that adds commands."""
    place = folder / f"{distribution.replace('-', '_')}-1.0.dist-info"
    place.mkdir(parents=True)
    (place / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
    lines = [f"{name} = {value}" for name, value in commands.items()]
    (place / "entry_points.txt").write_text("\n".join(["[fragility.commands]", *lines]) + "\n")
    return folder


def fragility(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path}
    command = [sys.executable, "-m", "fragility", *words]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


@pytest.fixture
def greeting(tmp_path) -> Path:
    (tmp_path / "greeting.py").write_text(GREETING)
    return install(tmp_path, "greeting", {"greet": "greeting:app"})


def test_an_extension_adds_a_command(greeting):
    done = fragility(greeting, "greet", "you")
    assert (done.returncode, done.stdout) == (0, "hello you\n"), done.stderr
    assert "Say hello." in fragility(greeting, "greet", "--help").stdout
    assert "From the package greeting." in fragility(greeting, "--help").stdout  # listed without being imported


def test_an_extension_cannot_replace_a_command(greeting):
    install(greeting, "impostor", {"audit": "greeting:app"})
    assert "Audit a model's predictions" in fragility(greeting, "audit", "--help").stdout


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("no_such_module:app", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("greeting:nothing", "AttributeError"),
        ("greeting:greet", "TypeError: greeting:greet is a function, expected a typer.Typer"),
    ],
)
def test_a_broken_extension_is_one_sentence(greeting, value, reason):
    install(greeting, "broken-thing", {"broken": value})
    done = fragility(greeting, "broken")
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.count("\n") == 1 and "Traceback" not in done.stderr
    assert "`fragility broken` comes from broken-thing 1.0, which cannot be loaded" in done.stderr
    assert reason in done.stderr


def test_a_broken_extension_breaks_nothing_else(greeting):
    install(greeting, "broken-thing", {"broken": "no_such_module:app"})
    assert fragility(greeting, "greet", "you").stdout == "hello you\n"
    listed = fragility(greeting, "--help")
    assert listed.returncode == 0 and "greet" in listed.stdout and "audit" in listed.stdout
    assert "Traceback" not in listed.stderr


@pytest.mark.parametrize("command", ["study", "bench"])
def test_the_study_says_how_to_get_it(tmp_path, command):
    # A package of that name without commands comes first on the path and hides the one that may be installed.
    done = fragility(install(tmp_path, "fragility-paper", {}), command, "run")
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert f"`fragility {command}` belongs to the paper's study" in done.stderr
    assert "run `pip install ./paper`" in done.stderr


def test_an_unknown_command_is_still_unknown(greeting):
    done = fragility(greeting, "gret")
    assert done.returncode == 2 and "there is no command gret; did you mean greet?" in done.stderr
