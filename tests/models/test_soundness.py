"""Damaged booster files are found out in a process of their own; the one that asks lives on."""

from __future__ import annotations

import json
import re
import resource
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fragility as fg
from fragility.base.errors import ModelError
from fragility.models.soundness import fault_of_tree, fault_of_trees


@pytest.fixture(scope="module")
def boosters(tmp_path_factory) -> Path:
    import lightgbm
    import xgboost

    folder = tmp_path_factory.mktemp("boosters")
    X, y = fg.load_credit_g()
    X, y = X.select_dtypes("number"), (y == "good").astype(int)
    settings = {"objective": "binary", "verbose": -1, "num_leaves": 6, "num_threads": 1}
    lightgbm.train(settings, lightgbm.Dataset(X, y), 3).save_model(folder / "model.txt")
    booster = xgboost.train({"objective": "binary:logistic", "max_depth": 3, "nthread": 1}, xgboost.DMatrix(X, y), 3)
    booster.save_model(folder / "model.json")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("child", ["99", "0", "-100"])
def test_a_lightgbm_node_out_of_range_is_refused(boosters: Path, tmp_path: Path, child: str) -> None:
    text = re.sub(r"left_child=\S+", f"left_child={child}", (boosters / "model.txt").read_text(), count=1)
    (tmp_path / "model.txt").write_text(text)
    with pytest.raises(ModelError, match=r"is damaged: .*(out of range|reached in two ways)"):
        fg.load_model(tmp_path / "model.txt")


@pytest.mark.parametrize(
    ("sound", "broken"),
    [
        ("[use_quantized_grad: 0]", "[use_quantized_grad8 0]"),
        ("[seed: 0]", "seed: 0"),
        ("tree_sizes=", "tree_sizes=9"),
        ("num_tree_per_iteration=1", "num_tree_per_iteration=1000000"),
    ],
)
def test_a_lightgbm_header_that_its_library_would_read_beyond_is_refused(
    boosters: Path, tmp_path: Path, sound: str, broken: str
) -> None:
    text = (boosters / "model.txt").read_text()
    assert sound in text
    (tmp_path / "model.txt").write_text(text.replace(sound, broken))
    with pytest.raises(
        ModelError, match=r"is damaged: (a parameter cannot be read|the sizes of its trees|.* per iteration)"
    ):
        fg.load_model(tmp_path / "model.txt")


@pytest.mark.slow
@pytest.mark.parametrize("child", [999, 0, 2**31 - 1])
def test_an_xgboost_node_out_of_range_is_refused(boosters: Path, tmp_path: Path, child: int) -> None:
    document = json.loads((boosters / "model.json").read_text())
    document["learner"]["gradient_booster"]["model"]["trees"][0]["left_children"][0] = child
    (tmp_path / "model.json").write_text(json.dumps(document))
    with pytest.raises(ModelError, match=r"is damaged|cannot load"):
        fg.load_model(tmp_path / "model.json")


def test_an_xgboost_file_that_asks_for_absurd_memory_is_refused_within_bounds(boosters: Path, tmp_path: Path) -> None:
    """A billion classes take gigabytes; the process on trial may not have them."""
    document = json.loads((boosters / "model.json").read_text())
    document["learner"]["learner_model_param"]["num_class"] = "1000000000"
    (tmp_path / "model.json").write_text(json.dumps(document))
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    with pytest.raises(ModelError, match=r"cannot load the model|is damaged"):
        fg.load_model(tmp_path / "model.json")
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss <= max(before, 3 * 2**20)  # KiB


@pytest.mark.slow
def test_cut_off_boosters_are_refused(boosters: Path, tmp_path: Path) -> None:
    for name in ("model.txt", "model.json"):
        data = (boosters / name).read_bytes()
        (tmp_path / name).write_bytes(data[: len(data) // 2])
        with pytest.raises(ModelError):
            fg.load_model(tmp_path / name)
        assert fg.load_model(boosters / name).fingerprint.startswith("sha256:")


def test_what_is_a_tree() -> None:
    leaf = np.array([False, True, True])
    zero = np.zeros(3, dtype=int)
    assert fault_of_tree(np.array([1, -1, -1]), np.array([2, -1, -1]), leaf, zero, 1) is None
    assert "out of range" in fault_of_tree(np.array([1, -1, -1]), np.array([3, -1, -1]), leaf, zero, 1)
    assert "two ways" in fault_of_tree(np.array([1, -1, -1]), np.array([1, -1, -1]), leaf, zero, 1)
    assert "two ways" in fault_of_tree(np.array([0, -1, -1]), np.array([2, -1, -1]), leaf, zero, 1)
    assert "column" in fault_of_tree(np.array([1, -1, -1]), np.array([2, -1, -1]), leaf, zero + 1, 1)


@given(data=st.data())
@settings(max_examples=200, deadline=None)
def test_trees_together_are_judged_as_one_by_one(data: st.DataObject) -> None:
    """A child of one tree may not lie in the next one, although the arrays go on there."""
    sizes = data.draw(st.lists(st.sampled_from([1, 3, 5]), min_size=1, max_size=4))
    trees = [_grown(size) for size in sizes]
    for _ in range(data.draw(st.integers(0, 2))):
        damaged = trees[data.draw(st.integers(0, len(trees) - 1))]
        array = damaged[data.draw(st.sampled_from([0, 1, 3]))]
        array[data.draw(st.integers(0, len(array) - 1))] = data.draw(st.integers(-2, 7))
    faults = [fault_of_tree(*tree, 2) for tree in trees]
    together = fault_of_trees(*map(np.concatenate, zip(*trees, strict=True)), np.cumsum([0, *sizes]), 2)
    assert (together is None) == (set(faults) == {None})
    assert together in faults


def _grown(size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """A chain: every inner node has a leaf on its left."""
    inner = size // 2
    left, right = np.full(size, -1), np.full(size, -1)
    left[:inner], right[:inner] = inner + np.arange(inner), 1 + np.arange(inner)
    if inner:
        right[inner - 1] = size - 1
    return left, right, np.arange(size) >= inner, np.zeros(size, dtype=np.int64)
