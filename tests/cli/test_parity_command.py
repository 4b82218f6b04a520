"""`fragility parity` as a user meets it."""

import json
import sys

import joblib
import pandas as pd
import pytest
from command_line import NOMINAL, NUMERIC, refuse, run

import fragility as fg
from fragility.parity import ModelParity

FILES = ("model.joblib", "test.parquet", "audit")


@pytest.fixture(scope="module")
def served(made, model):
    """Beside the files of `made`: a file of the same model, and a module whose function reads a missing age as 0."""
    joblib.dump(model, made / "again.joblib", compress=3)
    code = f"import fragility as fg\\nmodel = fg.load_model(r'{made / 'model.joblib'}', trust=True)\\n"
    code += "ask = lambda rows: model.estimator.predict_proba(rows.assign(age=rows['age'] + (rows['age'] > 60)))\\n"
    (made / "served_for_parity.py").write_text(
        code.replace("\\n", "\n") + "predict = fg.Model.wrap(ask, classes=[0, 1])\n"
    )
    sys.path.insert(0, str(made))
    yield made
    sys.path.remove(str(made))


def parity(folder, other, *more):
    return (
        *("parity", folder / "model.joblib", other, "--data", folder / "test.parquet"),
        *("--target", "risk", "--id", "loan", "--trust", "--most-rows", 20, *more),
    )


def test_the_same_model_in_another_file_passes(served):
    done = run(*parity(served, served / "again.joblib", "--protocol", served / "audit"))
    assert done.code == 0, done.err
    assert "again.joblib answers as" in done.out and "rows: 20 of 60, those with the smallest digests" in done.out


def test_an_artefact_that_differs_fails_with_code_1(served, tmp_path):
    files = [tmp_path / name for name in ("parity.json", "parity.csv", "row.csv")]
    done = run(
        *parity(served, "served_for_parity:predict", "--out", files[0], "--out", files[1], "--example", files[2])
    )
    assert done.code == 1, done.err
    found = ModelParity.load(files[0])
    assert not found and "is not the same model as" in done.out and "smallest example: row L" in done.out
    assert pd.read_csv(files[1])["unit"].iloc[0] == found.reveals[0].unit
    assert list(pd.read_csv(files[2]).columns) == NUMERIC + NOMINAL
    report = run("report", served / "audit", "--parity", files[0], "--out", tmp_path / "r.md")
    assert report.code == 0, report.err
    text = (tmp_path / "r.md").read_text()
    assert (
        "## Is the deployed model the one that was audited?" in text and "served_for_parity:predict is not the" in text
    )
    loose = run(*parity(served, "served_for_parity:predict", "--tolerance", "0.9", "--example", tmp_path / "none.csv"))
    document = json.loads(files[0].read_text())
    assert [one["row"] for one in document["examples"]] == [{}] * len(document["examples"])  # names of fields alone
    run(*parity(served, "served_for_parity:predict", "--values", "--out", tmp_path / "whole.json"))
    assert all(one["row"] for one in json.loads((tmp_path / "whole.json").read_text())["examples"])
    differing = document["kinds"][0]["labels"]
    assert loose.code == (1 if differing else loose.code)


def test_no_example_is_written_where_artefacts_agree(served, tmp_path):
    done = run(*parity(served, served / "again.joblib", "--example", tmp_path / "row.csv", "--most-rows", 3))
    assert done.code == 0 and "the artefacts agree, so there is no example to write" in done.err
    assert not (tmp_path / "row.csv").exists()


def test_bad_input_is_refused_in_one_sentence(served, tmp_path):
    same = refuse(*parity(served, served / "model.joblib"))
    assert "MODEL_A and MODEL_B are both" in same
    assert "must end in .json or .txt or .parquet or .csv" in refuse(
        *parity(served, served / "again.joblib", "--out", tmp_path / "x.html")
    )
    assert "there is no model file" in refuse(*parity(served, served / "nothing.skops"))
    taken = refuse(*parity(served, served / "again.joblib", "--out", served / "test.parquet" / "x.json"))
    assert "lies in a folder that does not exist" in taken
    assert "--trust" in refuse(*[word for word in parity(served, served / "again.joblib") if word != "--trust"])


def test_a_report_refuses_a_comparison_of_another_model(served, tmp_path):
    model, rows = fg.load_model(served / "model.joblib", trust=True), pd.read_parquet(served / "test.parquet")
    other = fg.Model.wrap(lambda rows: model.probabilities(rows), classes=["bad", "good"])
    fg.check_parity(other, model, rows[NUMERIC + NOMINAL][:4]).save(tmp_path / "other.json")
    words = ("report", served / "audit", "--parity", tmp_path / "other.json", "--out", tmp_path / "r.md")
    assert "the comparison of model_a with model_b is of another model than the audit's" in refuse(*words)
