"""The rehearsal of a stress: balanced draws of its own, which rank rows by how this stress breaks them."""

from dataclasses import replace

import naive_ranking
import numpy as np
import pipelines
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fragility as fg
from fragility.audits.audit import read_rehearsal
from fragility.engines.choice import choose_oracle
from fragility.engines.oracle import ModelOracle
from fragility.engines.trace import TraceStates
from fragility.protocol import bind
from fragility.questions.stress.draws import BalancedDraws, mirrored, row_keys, strikes, uniforms
from fragility.questions.stress.labels import label_rows, rehearse_rows, run_stress_rows
from fragility.questions.stress.stressors import Donor, Dropout, Layout, Mask, Noise


@pytest.fixture(scope="module")
def case():
    own = pipelines.fitted("credit_g", "lightgbm", "transformed")
    X = own.X_test[:60].copy()
    X.iloc[::7, [1, 4]] = np.nan
    return own.model, X, fg.Protocol.fit(own.model, own.X_train)


@pytest.fixture(scope="module")
def rows(case):
    model, X, protocol = case
    return bind(model, X, protocol)


# --- balance ------------------------------------------------------------------------------------------------


@given(
    *(st.integers(1, 9), st.integers(1, 12), st.floats(0.0, 1.0), st.integers(0, 2**31 - 1)),
)
@settings(max_examples=80, deadline=None)
def test_every_position_is_struck_equally_often_within_a_row(count, positions, rate, seed):
    keys, places = row_keys(seed, "rehearsal mask", range(5)), np.arange(positions)
    u = uniforms(keys, BalancedDraws(count), places)
    assert ((u >= 0.0) & (u < 1.0)).all()
    ordered = np.sort(u, axis=1)
    steps = np.arange(count)[:, None] / count
    assert (ordered >= steps - 1e-12).all() and (ordered < steps + 1 / count + 1e-12).all()
    struck = strikes(keys, BalancedDraws(count), places, rate)
    np.testing.assert_array_equal(struck, u < rate)
    times = struck.sum(axis=1)
    assert (np.ptp(times, axis=1) <= 1).all()
    assert (np.abs(times.sum(axis=1) - rate * count * positions) <= 1 + 1e-9).all()


@given(st.integers(1, 12), st.integers(0, 2**31 - 1))
@settings(max_examples=40, deadline=None)
def test_noise_comes_in_antithetic_pairs(count, seed):
    keys = row_keys(seed, "rehearsal noise", range(4))
    u = mirrored(keys, BalancedDraws(2 * count), np.arange(3))
    np.testing.assert_array_equal(u[:, count:], 1.0 - u[:, :count])
    np.testing.assert_allclose((2.0 * u - 1.0).sum(axis=1), 0.0, atol=1e-12)


def test_balanced_draws_are_uniform_over_rows():
    keys = row_keys(0, "rehearsal mask", range(4000))
    u = uniforms(keys, BalancedDraws(4), np.arange(3))
    for t in range(4):
        for j in range(3):
            counts = np.histogram(u[:, t, j], bins=10, range=(0, 1))[0]
            assert ((counts - 400) ** 2 / 400).sum() < 40  # chi-squared with 9 degrees of freedom: 1 in 100,000


# --- the score ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", ["expected", "any"])
def test_the_score_equals_its_slow_twin(case, rows, rule):
    _, _, protocol = case
    stress = fg.Stress((Mask(0.2), Dropout(0.3), Noise(0.4)), rule=rule, seed=3)
    few = rows.take(range(12))
    run = rehearse_rows(choose_oracle(few), protocol, stress)
    count = run.stress.draws
    assert count % 2 == 0 and 3 * count < TraceStates.of(protocol, few).per_row <= 3 * (count + 2)
    score, layout = label_rows(run, stress).statistic, Layout.of(protocol, few)
    absent = few.spared(0, len(few)).cells
    for i in range(len(few)):
        x = few.dense(i, i + 1)[0]
        p = few.predict(x[None])[0]
        original, confidence = int(run.predicted[i]), float(p[run.predicted[i]])
        margins, flips = [], []
        for stressor in stress.stressors:
            target = np.where(absent[i], x, few.baseline)
            copies = naive_ranking.rehearsed_rows(
                *(stressor.kind, x.tolist(), target.tolist(), layout.column_group.tolist(), layout.n_groups),
                *(layout.spread.tolist(), stressor._severity[1], 3, few.ids[i], count),
            )
            copies = np.where(absent[i], x, np.array(copies))
            own = [naive_ranking.naive_support_margin(few.predict(copy[None])[0], original) for copy in copies]
            margins.append(own)
            flips.append([m < -protocol.resolution for m in own])
        _, _, statistic = naive_ranking.naive_label(
            *(naive_ranking.naive_support_margin(p, original), confidence, margins, flips),
            **{"rule": rule, "tau_confidence": 0.9, "tau_collapse": 0.5},
        )
        assert score[i] == pytest.approx(statistic, rel=1e-7, abs=1e-9)


@given(st.permutations(range(20)), st.integers(1, 20), st.sampled_from([2**13, 2**16, 2**28]))
@settings(max_examples=12, deadline=None)
def test_no_batch_order_or_company_changes_a_score(case, rows, order, cut, byte_budget):
    _, _, protocol = case
    stress = fg.Stress()
    whole = rehearse_rows(choose_oracle(rows.take(range(20))), protocol, stress).draw_margin
    part = rows.take(list(order)[:cut])
    found = rehearse_rows(choose_oracle(part), protocol, stress, byte_budget=byte_budget).draw_margin
    np.testing.assert_allclose(found, whole[list(order)[:cut]], rtol=0, atol=1e-12)


def test_no_engine_changes_a_score(case, rows):
    _, _, protocol = case
    for stress in (fg.Stress(), fg.Stress.from_outages([{"age"}, {"duration", "age"}]), fg.Stress((Donor(),))):
        donors = rows.dense()[:9] if stress.stressors[0].kind == "donor" else None
        own = rehearse_rows(choose_oracle(rows), protocol, stress, donors=donors).draw_margin
        asked = rehearse_rows(ModelOracle(rows), protocol, stress, donors=donors).draw_margin
        np.testing.assert_allclose(own, asked, rtol=1e-9, atol=1e-9)


def test_it_shares_no_draw_with_the_labels(case, rows):
    """Whatever the seeds: the rehearsal has streams of its own."""
    _, _, protocol = case
    stress = fg.Stress((Dropout(0.5),))
    few = rows.take(range(5))
    own = rehearse_rows(choose_oracle(few), protocol, stress)
    count = own.stress.draws
    same = run_stress_rows(choose_oracle(few), protocol, replace(stress, draws=count))
    other = run_stress_rows(choose_oracle(few), protocol, replace(stress, draws=count, seed=1))
    alike = [np.mean(own.draw_margin == run.draw_margin) for run in (same, other)]
    assert max(alike) < 0.5
    keys = [row_keys(0, stream, range(9)) for stream in ("dropout", "rehearsal dropout")]
    assert not np.isin(*keys).any()


def test_balance_lessens_the_noise_of_the_score(case, rows):
    """Against the mean of many draws, balanced ones err less than as many independent ones."""
    _, _, protocol = case
    stress = fg.Stress((Mask(0.3),))
    oracle = choose_oracle(rows)
    truth = run_stress_rows(oracle, protocol, replace(stress, draws=2000, seed=7)).draw_margin.mean(axis=2)
    own = rehearse_rows(oracle, protocol, replace(stress, stressors=(Mask(0.3), Dropout(0.3), Noise(0.3))))
    count = own.stress.draws
    error = np.abs(own.draw_margin[:, :1].mean(axis=2) - truth).mean()
    independent = run_stress_rows(oracle, protocol, replace(stress, draws=count, seed=5)).draw_margin.mean(axis=2)
    assert error < 0.7 * np.abs(independent - truth).mean()


# --- where it is offered ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def labelled(case):
    model, X, protocol = case
    certs = fg.audit(model, X, protocol, lattice=False)
    return certs, fg.label_brittle(model, X, protocol, fg.Stress(tau_confidence=0.6))


def test_labels_have_it_and_rank_predictions(case, labelled, tmp_path):
    model, X, protocol = case
    certs, labels = labelled
    labels.save(tmp_path / "labels.parquet")
    table = pq.read_table(tmp_path / "labels.parquet")
    assert read_rehearsal(table) == read_rehearsal(labels)
    values = np.array(list(read_rehearsal(labels).values()))[:, 0]
    np.testing.assert_array_equal(certs.score("rehearsal", labels=table), values)
    sure = certs.claims.confidence >= 0.6
    best = certs.most_fragile(5, 0.6, "rehearsal", labels=labels)
    order = [i for i in np.argsort(-values, kind="stable") if sure[i]][:5]
    assert best.claims.ids == tuple(certs.claims.ids[i] for i in order)
    again = labels.relabel(rule="any")
    assert (again.rehearsal <= 1.0).all() and (again.rehearsal != labels.rehearsal).any()
    with pytest.raises(fg.FragilityError, match="no part of certificates"):
        certs.most_fragile(5, by="rehearsal")
    with pytest.raises(fg.FragilityError, match="no rehearsal of their stress"):
        certs.score("rehearsal", labels=table.drop_columns(["rehearsal"]))
    with pytest.raises(fg.FragilityError, match="no rehearsal for 50 of the 60 certificates"):
        certs.score("rehearsal", labels=table[:10])
    bare = fg.label_brittle(model, X, protocol, fg.Stress(draws=2), rehearsal=False)
    assert bare.rehearsal is None and "rehearsal" not in bare.to_arrow().column_names


def test_evaluate_judges_it(case, labelled):
    model, X, _ = case
    certs, _ = labelled
    found = fg.evaluate(
        certs, model, X, stress=fg.Stress(tau_confidence=0.6), by="rehearsal", baselines=fg.Baselines(0, 0, 200)
    )
    assert found.report.result("rehearsal").kind == "rehearsal"
    assert "the rehearsal of this stress" in found.verdict.sentence or found.verdict.state == "cannot be judged"
