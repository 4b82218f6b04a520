"""The tool that measures the library: it counts files as they are, and a module where a function of it is entered."""

from __future__ import annotations

import importlib.util
import threading
from pathlib import Path

import fragility as fg
from fragility.scores import sigmoid_probabilities

TREE = Path(__file__).resolve().parents[1]


def load_tool():
    spec = importlib.util.spec_from_file_location("measure_house", TREE / "tests" / "tools" / "measure_house.py")
    assert spec is not None and spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    return tool


def test_files_are_counted() -> None:
    measured = dict(load_tool().measure_files(TREE))
    modules = list((TREE / "src" / "fragility").rglob("*.py"))
    assert measured["modules"] == len(modules)
    assert measured["lines of src"] == sum(len(path.read_text(encoding="utf-8").splitlines()) for path in modules)
    assert measured["layers"] > 10


def test_a_module_is_passed_where_a_function_of_it_is_entered_in_any_thread() -> None:
    source = Path(fg.__file__).parent

    def ask_in_a_thread() -> None:
        asking = threading.Thread(target=sigmoid_probabilities, args=(0.0,))
        asking.start()
        asking.join()

    assert load_tool().list_passed(ask_in_a_thread, source) == {"scores.py"}
    assert load_tool().list_passed(lambda: None, source) == set()
