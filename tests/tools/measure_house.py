"""How large the library is, and how much of it a reader passes through.

    python tests/tools/measure_house.py                     # of the tree that this file stands in
    python tests/tools/measure_house.py TREE [TREE ...]     # of other trees, side by side, such as a worktree

Modules passed are those of the library in which a function is entered while `fg.audit`, the command `audit` and the
command `verify` run on LightGBM behind a pipeline, with a lattice and other blocks as they are by default. They are
counted by a profile of every thread in the second of two runs, so that imports are not counted.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from statistics import median
from typing import Any

OWN = Path(__file__).resolve().parents[2]
TRAINED, AUDITED = 700, 100


def count_lines(paths: list[Path]) -> list[int]:
    return [len(path.read_text(encoding="utf-8").splitlines()) for path in paths]


def measure_files(tree: Path) -> Iterator[tuple[str, object]]:
    """Give what the files of a tree say, without running it."""
    modules = sorted((tree / "src" / "fragility").rglob("*.py"))
    lines = count_lines(modules)
    yield "lines of src", sum(lines)
    yield "modules", len(modules)
    yield "median module", round(median(lines))
    longest = max(zip(lines, modules, strict=True))
    yield "longest module", f"{longest[0]} ({longest[1].relative_to(tree / 'src' / 'fragility')})"
    layers: dict[str, Any] = {}
    text = (tree / "tests" / "test_layers.py").read_text(encoding="utf-8")
    exec(text[text.index("LAYERS: ") : text.index("\n]\n") + 3], layers)
    yield "layers", len(layers["LAYERS"])
    for room in ("evidence", "auditing"):
        inside = sorted((tree / "src" / "fragility" / room).rglob("*.py"))
        yield f"{room}: lines, modules", f"{sum(count_lines(inside))}, {len(inside)}"
    tests = [path for folder in ("tests", "paper/tests") for path in sorted((tree / folder).rglob("*.py"))]
    yield "lines of tests", sum(count_lines(tests))
    guide = sorted((tree / "docs" / "guide").rglob("*.md"))
    yield "words of the guide", sum(len(path.read_text(encoding="utf-8").split()) for path in guide)


# --- in a process of the tree ---------------------------------------------------------------------------------------


def measure_running(tree: Path) -> Iterator[tuple[str, object]]:
    """Give what a tree says that is imported and run; it stands first on the path."""
    import fragility as fg

    yield "public names", len(fg.__all__)
    commands = list(list_commands())
    yield "commands", len(commands)
    yield "options", sum(param.param_type_name == "option" for one in commands for param in one.params)
    from lightgbm import LGBMClassifier
    from sklearn.compose import make_column_transformer
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder

    X, y = fg.load_credit_g()
    texts = [name for name in X if X[name].dtype.kind not in "iuf"]
    numbers = [name for name in X if name not in texts]
    encoded = make_column_transformer((SimpleImputer(), numbers), (OneHotEncoder(handle_unknown="ignore"), texts))
    encoded.sparse_threshold = 0.0
    model = make_pipeline(encoded, LGBMClassifier(n_estimators=40, num_leaves=15, n_jobs=1, verbose=-1))
    model.fit(X[:TRAINED], y[:TRAINED])
    rows = X[TRAINED : TRAINED + AUDITED].reset_index(drop=True)
    protocol = fg.Protocol.fit(model, X[:TRAINED])
    with tempfile.TemporaryDirectory() as folder:
        import joblib

        os.chdir(folder)
        joblib.dump(model, "model.joblib")
        rows.to_parquet("rows.parquet")
        protocol.save("protocol.json")
        audit = ["audit", "model.joblib", "rows.parquet", "--protocol", "protocol.json", "--trust", "--out"]
        verify = ["verify", "first", "--model", "model.joblib", "--data", "rows.parquet", "--trust"]
        ways: dict[str, Callable[[str], object]] = {
            "passed by fg.audit": lambda turn: fg.audit(model, rows, protocol, progress=False),
            "passed by the command audit": lambda turn: run_command([*audit, turn]),
            "passed by verify": lambda turn: run_command(verify),
        }
        for name, way in ways.items():
            way("first")  # compiles and imports, which is no part of the way
            passed = list_passed(lambda: way("second"), tree / "src" / "fragility")  # noqa: B023
            if os.environ.get("MEASURE_HOUSE_LIST"):
                print(name, *sorted(passed), sep="\n  ", file=sys.stderr)
            yield name, len(passed)


def list_commands(command: Any = None) -> Iterator[Any]:
    """Give every command that does something; those of other packages are left out."""
    import typer.main

    from fragility.cli import app

    command = typer.main.get_command(app) if command is None else command
    inside = getattr(command, "commands", None)
    if inside is None:
        yield command
    for one in () if inside is None else inside.values():
        yield from list_commands(one)


def run_command(words: list[str]) -> None:
    from fragility.cli import main

    told = StringIO()
    try:
        with redirect_stdout(told), redirect_stderr(told):
            main(words)
    except SystemExit as stop:
        if stop.code:
            raise SystemExit(f"fragility {' '.join(words)} ends with {stop.code}: {told.getvalue()}") from stop


def list_passed(way: Callable[[], object], source: Path) -> set[str]:
    """Return the modules of the library in which a function is entered, in any thread."""
    passed: set[str] = set()
    start = str(source) + os.sep

    def note(frame: Any, event: str, argument: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_name != "<module>" and code.co_filename.startswith(start):
            passed.add(code.co_filename[len(start) :])

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        way()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
    return passed


# --- the table ------------------------------------------------------------------------------------------------------


def measure(tree: Path) -> dict[str, object]:
    found = dict(measure_files(tree))
    path = os.pathsep.join([str(tree / "src"), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    given = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    words = [sys.executable, str(Path(__file__).resolve()), "--inside", str(tree)]
    done = subprocess.run(words, env=given, stdout=subprocess.PIPE, text=True, check=True)
    return found | json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("trees", type=Path, nargs="*", default=[OWN])
    parser.add_argument("--list", action="store_true", help="name the modules passed, on standard error")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    trees = [tree.resolve() for tree in given.trees]
    if given.list:
        os.environ["MEASURE_HOUSE_LIST"] = "1"
    if given.inside:
        print(json.dumps(dict(measure_running(trees[0]))))
        return
    columns = [measure(tree) for tree in trees]
    names = list(dict.fromkeys(name for column in columns for name in column))
    widths = [
        max(len(tree.name), *(len(str(value)) for value in column.values()))
        for tree, column in zip(trees, columns, strict=True)
    ]
    print(" " * 28, *(tree.name.rjust(width) for tree, width in zip(trees, widths, strict=True)))
    for name in names:
        cells = (str(column.get(name, "")).rjust(width) for column, width in zip(columns, widths, strict=True))
        print(name.ljust(28), *cells)


if __name__ == "__main__":
    main()
