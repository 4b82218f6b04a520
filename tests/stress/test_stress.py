"""The label channel: draws that depend on nothing but their key, labels equal to their slow twin, outage logs."""

import importlib
import json
import math
import sys
from dataclasses import replace

import naive_ranking
import numpy as np
import pandas as pd
import pipelines
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from naive import naive_targets
from scipy.sparse import issparse
from sklearn.pipeline import Pipeline

from fragility.base.errors import DataError, ProtocolError
from fragility.engines.oracle import ModelOracle
from fragility.models import Model
from fragility.protocol import Protocol, bind
from fragility.questions.stress import draws as drawing
from fragility.questions.stress.declaration import Stress, outage_events
from fragility.questions.stress.draws import row_keys, strikes, uniforms
from fragility.questions.stress.labels import label_brittle, label_rows, run_stress_rows
from fragility.questions.stress.stressors import Dropout, Layout, Mask, Noise, Outages
from fragility.scores import sigmoid_probabilities

EVENTS = [{"age"}, {"age", "job"}, {"job", "age"}, {"credit_amount"}]


def run_stress(*arguments, **settings):
    return label_brittle(*arguments, **settings).run


@pytest.fixture(scope="module", params=["transformed", "raw"])
def setting(request):
    """A real model in either evidence space, with its protocol and 60 rows."""
    case = pipelines.fitted("credit_g", "lightgbm", request.param)
    protocol = Protocol.fit(case.model, case.X_train, space=request.param)
    return case.model, case.X_test.iloc[:60], protocol


# --- draws -------------------------------------------------------------------------------------------------------


@given(
    seed=st.integers(0, 2**40),
    ids=st.lists(st.one_of(st.integers(-(10**12), 10**12), st.text(max_size=8)), min_size=1, max_size=4),
    draw=st.integers(0, 2**31 - 1),
    position=st.integers(0, 5000),
)
@settings(max_examples=60, deadline=None)
def test_uniforms_equal_their_slow_twin(seed, ids, draw, position):
    u = uniforms(row_keys(seed, "mask", ids), np.array([draw]), np.array([position]))
    assert u[:, 0, 0].tolist() == [naive_ranking.uniform(seed, "mask", i, draw, position) for i in ids]


@given(st.floats(0.0, 1.0), st.integers(0, 1000))
@settings(max_examples=40, deadline=None)
def test_strikes_are_uniforms_below_the_rate(rate, seed):
    keys, draws, positions = row_keys(seed, "dropout", range(7)), np.arange(3), np.arange(50)
    assert np.array_equal(strikes(keys, draws, positions, rate), uniforms(keys, draws, positions) < rate)


def test_draws_of_one_known_key_do_not_change():
    """Written-down values: whoever re-implements the format can check against them."""
    assert [hex(k) for k in row_keys(0, "mask", [7, "a"]).tolist()] == ["0x460114ca285ae12b", "0x1363d653fc7963e3"]
    u = uniforms(row_keys(0, "mask", [7]), np.array([0, 1]), np.array([0, 1]))
    assert u.ravel().tolist() == [0.07008995826786324, 0.8827489890292012, 0.09621358078435593, 0.5705597977416539]


def test_the_generator_is_the_published_splitmix64():
    """The reference sequence of SplitMix64 for seed 1234567."""
    published = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    assert [naive_ranking.splitmix64(1234567, n) for n in range(1, 5)] == published
    u = uniforms(np.array([1234567], dtype=np.uint64), np.array([0]), np.arange(4))
    assert u.ravel().tolist() == [(word >> 11) / 2**53 for word in published]


def test_uniforms_look_uniform_and_independent():
    u = uniforms(row_keys(3, "dropout", range(500)), np.arange(16), np.arange(20))
    assert u.min() >= 0.0 and u.max() < 1.0
    assert u.mean() == pytest.approx(0.5, abs=0.003)
    assert np.histogram(u, 10, (0, 1))[0] / u.size == pytest.approx(0.1, abs=0.003)
    flat = u.reshape(500, -1)
    assert np.abs(np.corrcoef(flat[:, :60].T)[np.triu_indices(60, 1)]).max() < 0.25
    other = uniforms(row_keys(4, "dropout", range(500)), np.arange(16), np.arange(20))
    assert abs(np.corrcoef(u.ravel(), other.ravel())[0, 1]) < 0.01


@pytest.fixture(scope="module")
def twelve_rows():
    """Rows under stress, and the answers of all of them together."""
    case = pipelines.fitted("credit_g", "lightgbm", "transformed")
    protocol, X = Protocol.fit(case.model, case.X_train), case.X_test.iloc[:12]
    return case.model, X, protocol, run_stress(case.model, X, protocol, Stress(draws=4, seed=5))


@given(order=st.permutations(range(12)), cut=st.integers(1, 11), byte_budget=st.sampled_from([1, 10_000, 10**8]))
@settings(max_examples=8, deadline=None)
def test_a_rows_margins_do_not_depend_on_order_partition_or_batch(twelve_rows, order, cut, byte_budget):
    model, X, protocol, whole = twelve_rows
    shuffled = X.iloc[list(order)]
    parts = [shuffled.iloc[:cut], shuffled.iloc[cut:]]
    runs = [run_stress(model, part, protocol, whole.stress, byte_budget=byte_budget) for part in parts]
    got = np.concatenate([run.draw_margin for run in runs])
    assert np.array_equal(got, whole.draw_margin[list(order)])


@given(rate=st.floats(0.0, 1.0), n=st.integers(0, 600), n_draws=st.integers(1, 5), units=st.integers(1, 9))
@settings(max_examples=20, deadline=None)
def test_compiled_draws_strike_what_the_uniforms_say(rate, n, n_draws, units):
    pytest.importorskip("numba")
    importlib.import_module(drawing.KERNELS)
    keys, numbers, positions = row_keys(1, "mask", range(n)), np.arange(n_draws), np.arange(units)
    struck = strikes(keys, numbers, positions, rate)
    assert np.array_equal(struck, uniforms(keys, numbers, positions) < rate)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(drawing, "KERNELS", "not loaded")
        assert np.array_equal(strikes(keys, numbers, positions, rate), struck)


def test_severities_share_their_random_numbers(setting):
    model, X, protocol = setting
    rows = bind(model, X, protocol)
    layout = Layout.of(protocol, rows)
    x, keys = rows.dense(0, 60), row_keys(0, "mask", rows.ids)
    mild, hard = (stressed(Mask(rate), rows, x, keys, np.arange(4), layout) for rate in (0.1, 0.5))
    touched = ~_same(mild, x[:, None, :])
    assert touched.any()
    assert _same(mild[touched], hard[touched]).all()


def stressed(stressor, rows, x, keys, draws, layout):
    """The cells of every draw, (n, draws, d); some stressors say only what they remove."""
    if isinstance(stressor, Noise):
        return stressor.stress_rows(x, keys, draws, layout)
    return rows.stressed(x, stressor.stress_rows(x, keys, draws, layout)).reshape(len(x), len(draws), -1)


def _same(a, b):
    return (a == b) | (np.isnan(a) & np.isnan(b))


def test_stressors_equal_their_slow_twins(setting):
    model, X, protocol = setting
    rows = bind(model, X.iloc[:5], protocol)
    layout = Layout.of(protocol, rows)
    x, ids, draws = rows.dense(0, 5), rows.ids, np.arange(3)
    stressors = [Mask(0.4), Dropout(0.4), Noise(0.4), Outages.from_events(EVENTS)]
    got = [stressed(s, rows, x, row_keys(9, s.kind, ids), draws, layout) for s in stressors]
    one_field = [names[0] for names in layout.fields]
    for r, sample in enumerate(ids):
        for t in draws.tolist():
            group = layout.column_group.tolist()
            twins = [
                naive_ranking.masked(x[r], rows.baseline, group, layout.n_groups, 0.4, 9, sample, t),
                naive_ranking.dropped(x[r], rows.baseline, 0.4, 9, sample, t),
                naive_ranking.noised(x[r], layout.spread, 0.4, 9, sample, t),
                naive_ranking.outage(x[r], rows.baseline, group, one_field, EVENTS, 9, sample, t),
            ]
            for array, twin in zip(got, twins, strict=True):
                np.testing.assert_allclose(array[r, t], twin, rtol=1e-15, atol=1e-12)


def test_noise_stays_within_its_bound_and_leaves_nominal_columns_alone(setting):
    model, X, protocol = setting
    rows = bind(model, X, protocol)
    layout = Layout.of(protocol, rows)
    x = rows.dense(0, 60)
    moved = Noise(0.3).stress_rows(x, row_keys(0, "noise", rows.ids), np.arange(8), layout)
    numeric = np.asarray([column.kind == "numeric" for column in protocol.columns])
    assert 0 < numeric.sum() < len(numeric)
    assert np.array_equal(moved[:, :, ~numeric], np.repeat(x[:, None, ~numeric], 8, axis=1), equal_nan=True)
    shift = np.abs(moved - x[:, None, :])[:, :, numeric]
    spread = np.asarray([column.spread for column in protocol.columns if column.kind == "numeric"], dtype=float)
    assert np.nanmax(shift / spread) <= 0.3 + 1e-9
    assert np.nanmax(shift / spread) > 0.29


def test_rates_of_zero_and_one_do_nothing_and_everything(setting):
    model, X, protocol = setting
    rows = bind(model, X, protocol)
    layout = Layout.of(protocol, rows)
    x, keys, draws = rows.dense(0, 60), row_keys(0, "mask", rows.ids), np.arange(2)
    for none, everything in ((Mask(0.0), Mask(1.0)), (Dropout(0.0), Dropout(1.0))):
        assert _same(stressed(none, rows, x, keys, draws, layout), x[:, None, :]).all()
        assert _same(stressed(everything, rows, x, keys, draws, layout), rows.baseline).all()
    assert _same(Noise(0.0).stress_rows(x, keys, draws, layout), x[:, None, :]).all()


# --- labels ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", ["expected", "any"])
def test_labels_equal_their_slow_twin(setting, rule):
    model, X, protocol = setting
    stress = Stress(draws=6, rule=rule, tau_confidence=0.6, tau_collapse=0.3, seed=2)
    labels = label_brittle(model, X, protocol, stress)
    run = labels.run
    for r in range(len(labels)):
        margins = run.draw_margin[r].tolist()
        flips = [[m < -protocol.resolution for m in of_stressor] for of_stressor in margins]
        brittle, rate, _ = naive_ranking.naive_label(
            run.margin[r], run.confidence[r], margins, flips, rule=rule, tau_confidence=0.6, tau_collapse=0.3
        )
        assert labels.brittle[r] == brittle
        assert labels.brittle_rate[r] == pytest.approx(rate, abs=1e-12)
    assert labels.brittle.any() and not labels.brittle.all()


@pytest.fixture(scope="module")
def some_run():
    case = pipelines.fitted("credit_g", "logistic", "transformed")
    return run_stress(case.model, case.X_test[:1], Protocol.fit(case.model, case.X_train), Stress(draws=2))


HALF = 0.5 / (1.0 + 1e-8)  # what is lost from a margin of 1 to a margin of one half
MARGINS = [-1.0, -2e-6, -5e-7, 0.0, 0.5, 1.0, 2.0, 3.0]


@settings(max_examples=200, deadline=None)
@given(st.data(), st.sampled_from(["expected", "any"]), st.sampled_from([0.25, HALF, 0.75]))
def test_rules_and_thresholds_decide_as_their_slow_twin_at_every_edge(some_run, data, rule, tau_collapse):
    """Margins and flips of draws are given apart: the one is smoothed, the other is not."""
    stressors, draws = len(some_run.stress.stressors), some_run.stress.draws
    several = st.lists(st.sampled_from(MARGINS), min_size=draws, max_size=draws)
    drawn = st.lists(several, min_size=stressors, max_size=stressors)
    margins = data.draw(drawn)
    flips = [[data.draw(st.booleans()) for _ in of_stressor] for of_stressor in margins]
    margin, confidence = data.draw(st.sampled_from([-5e-7, 0.0, 1.0, 2.0])), data.draw(st.sampled_from([0.89, 0.9, 1]))
    run = replace(
        some_run,
        margin=np.array([margin]),
        confidence=np.array([float(confidence)]),
        draw_margin=np.array([margins]),
        draw_flip=np.array([flips]),
    )
    labels = label_rows(run, replace(some_run.stress, rule=rule, tau_collapse=tau_collapse))
    brittle, rate, statistic = naive_ranking.naive_label(
        margin, confidence, margins, flips, rule=rule, tau_confidence=0.9, tau_collapse=tau_collapse
    )
    assert labels.brittle.tolist() == [brittle] and labels.high_confidence.tolist() == [confidence >= 0.9]
    assert labels.brittle_rate[0] == pytest.approx(rate) and labels.statistic[0] == pytest.approx(statistic, rel=1e-9)
    assert (
        labels.brittle_by.any()
        == naive_ranking.naive_label(
            margin, 1.0, margins, flips, rule=rule, tau_confidence=0.9, tau_collapse=tau_collapse
        )[0]
    )


def test_a_mean_margin_of_nothing_is_no_flip(some_run):
    """A decision at a threshold of its own can be confident with no margin to lose."""
    run = replace(
        some_run,
        margin=np.zeros(1),
        confidence=np.ones(1),
        draw_margin=np.zeros_like(some_run.draw_margin),
        draw_flip=np.zeros_like(some_run.draw_flip),
    )
    assert not label_rows(run, some_run.stress).brittle.any()
    below = replace(run, draw_margin=run.draw_margin - 1e-9)
    assert label_rows(below, some_run.stress).brittle.all()


def test_a_draw_flips_below_the_resolution_and_at_the_declared_threshold():
    """Rows hold one number, their log odds; with it gone, the intercept decides."""
    for intercept, decision, flips in [(-5e-7, None, False), (-2e-6, None, True), (0.5, 0.6, False), (0.3, 0.6, True)]:
        model = Model.wrap(lambda rows, b=intercept: sigmoid_probabilities(rows[:, 0] + b), classes=[0, 1])
        X = np.array([[4.0], [6.0]])
        protocol = Protocol.fit(model, X, baseline="zero", decision=decision)
        run = run_stress(model, X, protocol, Stress((Mask(1.0),), draws=1))
        assert run.draw_flip.tolist() == [[[flips]], [[flips]]]
        assert run.predicted.tolist() == [1, 1]


def test_margins_equal_one_state_at_a_time(setting):
    model, X, protocol = setting
    rows = bind(model, X.iloc[:4], protocol)
    layout = Layout.of(protocol, rows)
    run = run_stress_rows(ModelOracle(rows), protocol, Stress(draws=3, seed=1))
    for r, sample in enumerate(rows.ids):
        x = rows.dense(r, r + 1)[0]
        gaps = X.iloc[r].isna()
        absent = [protocol.space == "raw" and bool(gaps[c.name]) for c in protocol.columns]
        target = naive_targets(x, rows.baseline, absent)
        p = rows.predict(x[None])[0]
        assert run.confidence[r] == p.max() and run.predicted[r] == p.argmax()
        for t in range(3):
            state = naive_ranking.masked(x, target, layout.column_group.tolist(), layout.n_groups, 0.3, 1, sample, t)
            margin = naive_ranking.naive_support_margin(rows.predict(np.asarray(state)[None])[0], p.argmax())
            assert run.draw_margin[r, 0, t] == pytest.approx(margin, rel=1e-9, abs=1e-9)


def test_sparse_rows_are_stressed_as_dense_ones_are():
    """One fitted estimator behind two preparations that differ only in how they hand over the matrix."""
    case = pipelines.fitted("credit_g", "logistic", "transformed")
    prepare = pipelines.preprocessing(case.X_train, sparse=True).fit(case.X_train)
    models = [case.model, Pipeline([("prepare", prepare), ("model", case.model[-1])])]
    protocols = [Protocol.fit(model, case.X_train) for model in models]
    X = case.X_test.iloc[:50]
    assert [issparse(bind(m, X, p).matrix) for m, p in zip(models, protocols, strict=True)] == [False, True]
    dense, sparse = (
        label_brittle(m, X, p, Stress(draws=3), byte_budget=10**5) for m, p in zip(models, protocols, strict=True)
    )
    assert dense.mean_margin == pytest.approx(sparse.mean_margin, abs=1e-9)


def test_any_finds_at_least_what_expected_finds(setting):
    """The mean collapse can reach tau only if some draw does."""
    model, X, protocol = setting
    expected = label_brittle(model, X, protocol, Stress(tau_confidence=0.7))
    loose = expected.relabel(rule="any")
    assert (loose.brittle | ~expected.brittle).all()
    assert loose.brittle.sum() > expected.brittle.sum()


def test_relabel_equals_labelling_afresh(setting):
    model, X, protocol = setting
    first = label_brittle(model, X, protocol, Stress())
    again = label_brittle(model, X, protocol, Stress(tau_confidence=0.85, tau_collapse=0.25, rule="any"))
    moved = first.relabel(tau_confidence=0.85, tau_collapse=0.25, rule="any")
    assert np.array_equal(moved.brittle, again.brittle)
    assert np.array_equal(moved.kappa, again.kappa)
    assert moved.stress == again.stress


def test_labels_do_not_depend_on_the_reading(setting):
    model, X, protocol = setting
    labels = [label_brittle(model, X, replace(protocol, reading=r)).kappa for r in ("support", "current")]
    assert np.array_equal(*labels)


def test_no_engine_changes_a_label(setting):
    model, X, protocol = setting
    runs = [run_stress(model, X, protocol, Stress(draws=2), engine=engine) for engine in ("auto", "blackbox")]
    assert np.array_equal(runs[0].draw_margin, runs[1].draw_margin)


def test_bound_rows_are_labelled_and_progress_is_told(setting):
    model, X, protocol = setting
    told = []
    bound = bind(model, X, protocol)
    labels = label_brittle(
        model, bound, protocol, Stress(draws=2), byte_budget=10**4, progress=lambda *done: told.append(done)
    )
    assert np.array_equal(labels.kappa, label_brittle(model, X, protocol, Stress(draws=2)).kappa)
    assert told[-1] == (60, 60) and len(told) > 1


def test_labels_are_written_whole_as_their_name_says(setting, tmp_path):
    model, X, protocol = setting
    labels = label_brittle(model, X, protocol, Stress(draws=2))
    labels.save(tmp_path / "labels.parquet")
    labels.save(tmp_path / "labels.csv")
    for table in (pd.read_parquet(tmp_path / "labels.parquet"), pd.read_csv(tmp_path / "labels.csv")):
        assert table["brittle"].tolist() == labels.brittle.tolist()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["labels.csv", "labels.parquet"]
    with pytest.raises(DataError, match=r"must end in \.parquet or \.csv"):
        labels.save(tmp_path / "labels.json")


def test_tables_and_counts(setting):
    model, X, protocol = setting
    labels = label_brittle(model, X, protocol, Stress(tau_confidence=0.6))
    table = labels.to_pandas()
    assert table["id"].tolist() == X.index.tolist()
    assert {"confidence", "brittle", "brittle_rate", "kappa_mask(0.3)", "flip_noise(0.3)"} <= set(table.columns)
    counts = labels.counts()
    assert counts["rows"] == 60
    assert counts["high-confidence rows"] == int((table["confidence"] >= 0.6).sum())
    assert counts["brittle rows"] == int(table["brittle"].sum())
    assert max(v for k, v in counts.items() if k.startswith("brittle by")) <= counts["brittle rows"]


def calls_of(work) -> int:
    """How many functions are called, of Python and of C, while `work` runs."""
    seen: list[str] = []
    before = sys.getprofile()
    sys.setprofile(lambda _frame, event, _function: seen.append(event) if event in ("call", "c_call") else None)
    try:
        work()
    finally:
        sys.setprofile(before)
    return len(seen)


@pytest.mark.parametrize("stressor", [Mask(), Dropout(), Noise()], ids=lambda stressor: stressor.kind)
def test_stressed_rows_are_made_in_blocks(stressor):
    """The study asks for 16 draws of 110 columns and thousands of rows: no function is called once a row."""
    n, d = 2000, 110
    layout = Layout(np.arange(d) // 5, 22, np.ones(d), tuple((f"f{j // 5}",) for j in range(d)))
    keys = row_keys(0, stressor.kind, range(n))
    draws = np.arange(16)

    def made():
        return stressor.stress_rows(np.ones((n, d)), keys, draws, layout)

    made()  # where compiled draws are used, the first call finds and loads them
    assert calls_of(made) < n / 2


# --- outage logs -------------------------------------------------------------------------------------------------


def test_all_forms_of_a_log_say_the_same():
    long = pd.DataFrame({"event": [1, 2, 2, 3, 3, 4], "field": ["age", "age", "job", "job", "age", "credit_amount"]})
    wide = pd.DataFrame(
        {
            "event": ["a", "b", "c", "d", "e"],
            "age": [True, True, True, False, False],
            "job": [False, True, True, False, False],
            "credit_amount": [False, False, False, True, False],
        }
    )
    rows = pd.DataFrame(
        {
            "age": [-9, -9, -9, 30, 41],
            "job": ["clerk", "?", "?", "clerk", "clerk"],
            "credit_amount": [1.0, 2.0, 3.0, math.nan, 5.0],
        }
    )
    markers = {"age": [-9], "job": ["?"], "credit_amount": [None]}
    expected = Stress((Outages.from_events(EVENTS),))
    for log in (EVENTS, long, pa.Table.from_pandas(long), wide, pa.Table.from_pandas(wide)):
        assert Stress.from_outages(log) == expected
    assert Stress.from_outages(rows, markers=markers) == expected
    assert Stress.from_outages(rows, markers=[-9, "?", None]) == expected
    assert expected.stressors[0].events == 4


def test_polars_logs():
    polars = pytest.importorskip("polars")
    log = polars.DataFrame({"event": [1, 1, 2], "field": ["job", "age", "age"]})
    assert outage_events(log) == [("age", "job"), ("age",)]
    rows = polars.DataFrame({"age": [1, None], "job": ["?", "x"]})
    assert outage_events(rows, markers=["?", None]) == [("job",), ("age",)]


def test_fields_restrict_a_log():
    assert outage_events([{"age", "shoe"}, {"shoe"}], fields=["age"]) == [("age",)]


def test_events_are_drawn_in_proportion_and_remove_their_groups(setting):
    model, X, protocol = setting
    rows = bind(model, X, protocol)
    layout = Layout.of(protocol, rows)
    outages = Outages.from_events(EVENTS)
    drawn = outages.draw_patterns(row_keys(0, "outages", range(3000)), np.arange(4))
    share = np.bincount(drawn.ravel(), minlength=3) / drawn.size
    assert outages.patterns == (("age",), ("age", "job"), ("credit_amount",))
    assert share == pytest.approx([0.25, 0.5, 0.25], abs=0.02)
    removed = outages.removed_groups(layout)
    names = [{protocol.group_names[g] for g in np.flatnonzero(row)} for row in removed]
    assert names == [{"age"}, {"age", "job"}, {"credit_amount"}]


def test_a_field_in_a_domain_block_takes_its_block_along():
    case = pipelines.fitted("credit_g", "lightgbm", "transformed")
    blocks = {name: "person" if name in {"age", "job"} else "rest" for name in case.X_train.columns}
    protocol = Protocol.fit(case.model, case.X_train, groups=blocks)
    layout = Layout.of(protocol, bind(case.model, case.X_test, protocol))
    removed = Outages.from_events([{"age"}]).removed_groups(layout)
    assert [protocol.group_names[g] for g in np.flatnonzero(removed[0])] == ["person"]


def test_the_naturalistic_proxy_on_credit_g():
    case = pipelines.fitted("credit_g", "logistic", "transformed")
    markers = {
        "checking_status": ["no checking"],
        "savings_status": ["no known savings"],
        "property_magnitude": ["no known property"],
    }
    protocol = Protocol.fit(case.model, case.X_train)
    stress = Stress.from_outages(case.X_train, markers=markers, tau_confidence=0.7)
    assert stress.stressors[0].fields == tuple(sorted(markers))
    gone = case.X_train[list(markers)].isin([v for values in markers.values() for v in values])
    assert stress.stressors[0].events == int(gone.any(axis=1).sum())
    labels = label_brittle(case.model, case.X_test, protocol, stress)
    assert labels.kappa.shape == (len(case.X_test), 1)
    assert 0 < labels.brittle.sum() < labels.high_confidence.sum()


# --- declarations ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "stress", [Stress(), Stress.at(0.1), Stress((Outages.from_events(EVENTS), Mask(0.2)), rule="any", seed=4)]
)
def test_a_stress_survives_its_plain_form(stress):
    assert Stress.from_dict(json.loads(json.dumps(stress.to_dict()))) == stress


def test_independent_draws_differ():
    stress = Stress(seed=3)
    assert stress.independent().seed != 3
    assert replace(stress.independent(), seed=3) == stress


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Mask(1.5), "mask: rate must be between 0 and 1, got 1.5"),
        (lambda: Noise(-1.0), "noise: extent must be a finite number of at least 0, got -1.0"),
        (lambda: Noise(float("inf")), "noise: extent must be a finite number of at least 0, got inf"),
        (lambda: Stress(rule="some"), "rule of a stress must be one of"),
        (lambda: Stress(draws=0), "draws of a stress must be a whole number from 1 to 2147483647, got 0"),
        (lambda: Stress(stressors=()), "at least one stressor"),
        (lambda: Stress(stressors=(Mask(), Mask())), "stressors must differ"),
        (lambda: Stress(tau_confidence=90), "tau_confidence of a stress must be a number from 0 to 1, got 90"),
        (lambda: Stress(tau_collapse=0.0), "tau_collapse of a stress must be a positive number"),
        (lambda: Stress.from_dict({**Stress().to_dict(), "stressors": [{"kind": "rain"}]}), "'rain'"),
    ],
)
def test_wrong_declarations_are_refused(make, message):
    with pytest.raises(ProtocolError, match=message):
        make()


@pytest.mark.parametrize(
    ("log", "markers", "message"),
    [
        ([set()], None, "at least one event"),
        (pd.DataFrame({"a": [1, 2]}), None, r"of which \['a'\] are not boolean"),
        (pd.DataFrame({"a": [1]}), {"b": ["?"]}, r"name columns \['b'\]"),
        (pd.DataFrame({"a": ["?"]}), {"a": "?"}, "must be a list of values"),
    ],
)
def test_wrong_logs_are_refused(log, markers, message):
    with pytest.raises(DataError, match=message):
        Stress.from_outages(log, markers=markers)


def test_an_unknown_field_is_named(setting):
    model, X, protocol = setting
    with pytest.raises(ProtocolError, match=r"has no fields \['shoe'\]"):
        label_brittle(model, X, protocol, Stress.from_outages([{"shoe"}]))


def test_label_rows_is_pure():
    case = pipelines.fitted("credit_g", "logistic", "transformed")
    protocol = Protocol.fit(case.model, case.X_train)
    run = run_stress(case.model, case.X_test, protocol, Stress(draws=2))
    before = run.draw_margin.copy()
    label_rows(run, Stress(draws=2, rule="any"))
    assert np.array_equal(run.draw_margin, before)
