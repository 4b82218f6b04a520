"""`fragility bench`: that it measures what it says, on data and models small enough to wait for."""

import json

import numpy as np
import pytest
from study_helpers import data_folder, refuse, run_command

from fragility_paper.bench import MODELS, Bench, cost_of, many_states
from fragility_paper.bench.costs import measure
from fragility_paper.bench.goals import GOALS, Goal, Result, Sizes, run_goals
from fragility_paper.bench.report import markdown, report
from fragility_paper.bench.runs import Growth, made_up, run_scaling
from fragility_paper.bench.streaming import measured, prepare
from fragility_paper.data import load
from fragility_paper.library import choose_oracle

SMALL = Sizes("credit_g", "credit_g", share=0.005, trees=5, forest=5, rounds=2, repeats=1)


def test_contenders_take_turns():
    seen = []
    medians = measure({"a": lambda: seen.append("a"), "b": lambda: seen.append("b")}, repeats=3)
    assert seen == ["a", "b"] * 4  # one round to warm up, then three
    assert set(medians) == {"a", "b"} and all(seconds >= 0 for seconds in medians.values())


def test_costs_of_a_linear_model():
    bench = Bench.prepare(load("credit_g"), MODELS["LogisticRegression"](), 700)
    assert len(bench.rows) == 700  # more than the 500 held-out rows: they are repeated
    cost = cost_of("logistic", bench, 1)
    assert (cost.engine, cost.groups, cost.states_per_row) == ("linear", 20, 1 + 20 + 10 + 20)
    assert cost.explainer is None and cost.blackbox is not None
    assert cost.rows_per_second == pytest.approx(700 / cost.certificate)
    assert cost.over_native_pass == pytest.approx(cost.certificate / cost.native_pass)


@pytest.mark.parametrize("name", ["LogisticRegression", "HistGradientBoosting 200"])
def test_many_states_are_timed_against_a_pass(name):
    bench = Bench.prepare(load("credit_g"), MODELS[name](), 60)
    assert set(many_states.many_states_costs(bench, 1)) == {"mask", "dropout"}
    uses = many_states.uses_costs(bench, 1)
    assert set(uses) == {"labels by mask", "labels by dropout", "random orders", "beam search"}
    assert all(passes > 0 for passes in uses.values())


def test_every_chunk_of_rows_is_answered(monkeypatch):
    monkeypatch.setattr(many_states, "CHUNK_ROWS", 25)
    bench = Bench.prepare(load("credit_g"), MODELS["LogisticRegression"](), 60)
    asked = []

    oracle = choose_oracle(bench.rows)
    monkeypatch.setattr(
        oracle, "answer_states", lambda x, states: asked.append((len(x), len(states), states.by_column))
    )
    many_states._answering(oracle, by_column=True)()
    assert asked == [(25, 1200, True), (25, 1200, True), (10, 480, True)]


def test_many_states_of_each_model_are_plain_rows():
    told = []
    found = many_states.run_many_states(["credit_g"], ["LogisticRegression"], 30, 1, None, told.append)
    assert [(row["dataset"], row["model"], row["engine"], row["rows"]) for row in found] == [
        ("credit_g", "LogisticRegression", "linear", 30)
    ]
    assert told == ["credit_g: LogisticRegression, 48 states of each row"]


@pytest.mark.parametrize("name", [name for name in MODELS if name.endswith("categories")])
def test_models_that_take_categories_are_handed_the_raw_table(name):
    bench = Bench.prepare(load("credit_g"), MODELS[name](), 100)
    assert bench.protocol.space == "raw" and bench.engine == "trees"
    assert str(bench.test["purpose"].dtype) == "category" and bench.test["age"].dtype == "int64"


def test_the_command_prints_a_table_and_writes_json(tmp_path):
    words = ("--dataset", "credit_g", "--model", "LogisticRegression", "--rows", 100, "--repeats", 1)
    done = run_command("bench", *words, "--out", tmp_path / "bench.json")
    assert done.code == 0, done.err
    assert "| credit_g | LogisticRegression | linear |" in done.out
    document = json.loads((tmp_path / "bench.json").read_text())
    assert document["models"][0]["rows"] == 100 and document["scaling"] == []


def test_unknown_names():
    assert "unknown model 'Oracle'" in refuse("bench", "--dataset", "credit_g", "--model", "Oracle")
    assert "nowhere" in refuse("bench", "--dataset", "nowhere", "--model", "LogisticRegression")


# --- goals -------------------------------------------------------------------------------------------------------


def test_a_goal_is_met_only_if_every_round_meets_it():
    def verdict(*found):
        return Result("work", "9", 5.0, "passes", found).verdict

    assert [verdict(4.0, 5.0), verdict(4.0, 5.1), verdict(6.0, 5.1)] == ["met", "met once", "missed"]
    assert verdict(4.0, None) == "not measured"


def test_every_goal_is_measured_twice_in_rounds():
    asked = []

    def goal(name):
        return Goal(name, "9", 5.0, lambda _: float(asked.append(name) or len(asked)))

    found = run_goals(SMALL, lambda _: None, [goal("one"), goal("two")])
    assert asked == ["one", "two", "one", "two"]
    assert [row["found"] for row in found["goals"]] == [[1.0, 3.0], [2.0, 4.0]]


@pytest.mark.slow
def test_the_whole_table_of_goals_on_a_small_data_set():
    said = []
    document = report(1, goals=run_goals(SMALL, said.append))
    assert len(said) == 2 * len(GOALS)
    assert json.loads(json.dumps(document)) == document
    for row in document["goals"]:
        assert row["verdict"] == "not measured" or all(value > 0 for value in row["found"])
    text = markdown(document)
    assert text.count("at most") == len(GOALS)
    assert "| fixed cost of audit(), LightGBM, in seconds | 0.275 s | at most 0.15 s |" in text
    assert [row["bench"] for row in document["parts"]] == ["LightGBM, 54 groups", "LightGBM", "XGBoost"]
    assert "in passes over all rows of the end-to-end lines: LightGBM" in text


def test_goals_have_sizes_of_their_own():
    assert "leave out --dataset" in refuse("bench", "--goals", "--dataset", "credit_g")


# --- growth ------------------------------------------------------------------------------------------------------


def test_growth_with_groups_and_classes():
    growth = Growth(rows=(), groups=(4, 30), classes=(2, 20), trees=(), depths=(), audited=60, made=600, rounds=2)
    found = run_scaling(None, growth, lambda _: None)
    assert [(row["grows"], row["value"]) for row in found] == [
        ("groups", 4),
        ("groups", 30),
        ("classes", 2),
        ("classes", 20),
    ]
    assert [row["groups"] for row in found] == [4, 30, 20, 20]
    assert all(row["engine"] == "trees" and row["rows"] == 60 for row in found)
    assert "| groups | 30 |" in markdown(report(1, scaling=found))
    assert len(np.unique(made_up(600, 20, 20)[1])) == 20


@pytest.mark.slow
def test_memory_is_measured_in_a_process_of_its_own(tmp_path):
    if not (data_folder() / "covertype.parquet").exists():
        pytest.skip("needs covertype.parquet")
    X = prepare(tmp_path, data_folder(), trees=2)
    found = measured(tmp_path, X, 200)
    assert found["rows"] == 200 and found["engine"] == "trees" and found["peak_mib"] > 50
    assert "| 200 |" in markdown(report(1, memory=[found]))
