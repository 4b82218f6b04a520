"""The gallery's examples run as a reader would run them, each in a folder of its own."""

import runpy
from importlib.util import find_spec
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
NEEDS = {"plot_native_categories": "lightgbm", "plot_side_by_side": "shap"}


@pytest.mark.parametrize("example", sorted(EXAMPLES.glob("plot_*.py")), ids=lambda path: path.stem)
def test_example_runs(example, tmp_path, monkeypatch):
    import matplotlib
    import matplotlib.pyplot as plt

    library = NEEDS.get(example.stem)
    if library and find_spec(library) is None:
        pytest.skip(f"{example.name} needs {library}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(EXAMPLES)  # as for a script, whose folder comes first
    with matplotlib.rc_context({"backend": "agg"}):
        runpy.run_path(str(example), run_name="__main__")
        drawn = plt.get_fignums()
        plt.close("all")
    assert drawn, "the gallery shows a picture of every example"
