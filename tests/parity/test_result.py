"""A comparison as text, table and file."""

import io
import json

import numpy as np
import pandas as pd
import pytest

import fragility as fg
from fragility.parity import ModelParity


@pytest.fixture(scope="module")
def found(numbers):
    model, rows = numbers
    one, other = (
        fg.Model.wrap(lambda table, v=value: model.predict_proba(table.fillna(v)), classes=["bad", "good"])
        for value in (0, 30)
    )
    return fg.check_parity(one, other, rows[:12], names=("zero\x1b[2J", "thirty"))


def test_a_saved_comparison_is_read_back(found, tmp_path):
    found.save(tmp_path / "parity.json")
    assert ModelParity.load(tmp_path / "parity.json") == found
    document = json.loads((tmp_path / "parity.json").read_text())
    assert document["format"] == "fragility-parity/1" and document["agrees"] is False


def test_what_is_no_comparison_is_refused(found, tmp_path):
    plain = json.loads(json.dumps(found.to_dict()))
    with pytest.raises(fg.DataError, match="the comparison contradicts itself: its verdict does not follow from its"):
        ModelParity.from_dict(plain | {"agrees": True})
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(fg.DataError, match="is not valid JSON"):
        ModelParity.load(tmp_path / "broken.json")
    with pytest.raises(fg.DataError, match="cannot read the comparison"):
        ModelParity.load(tmp_path / "absent.json")
    with pytest.raises(
        fg.DataError, match="the kinds compared are clean, lost, missing, wrong, noisy, path, faded, got 'stale'"
    ):
        found["stale"]


def test_the_text_and_the_table_say_the_same(found):
    text, table = str(found), found.to_pandas()
    assert "\x1b" not in text and "zero\\x1b[2J" in text
    assert "answers differ in" in text and "unmodified rows show no difference" in text
    assert list(table["kind"].unique()) == ["missing"] and set(table["unit"]) == {
        "duration",
        "age",
        "installment_commitment",
    }
    assert table["differing"].sum() == found["missing"].differing == 36 == found["missing"].alarms
    assert "and 2 more" in found.to_text(top=1)


def test_the_example_can_be_pasted(found):
    example = found.smallest
    (name,) = example.changed
    assert example.row[name] is None and f"{name} missing instead of" in str(found)
    table = pd.read_csv(io.StringIO(example.to_csv()))
    pd.testing.assert_frame_equal(table, example.to_pandas())
    pasted = eval(example.to_python(), {"float": float})
    assert np.isnan(pasted[name]) and {k: v for k, v in pasted.items() if k != name} == {
        k: v for k, v in example.row.items() if k != name
    }
