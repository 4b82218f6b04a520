"""ResMLPClassifier: the loss against its slow twin, scikit-learn's contract, determinism, files, refusals."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import tracemalloc
from dataclasses import replace
from pathlib import Path

import naive_training as naive
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from pipelines import preprocessing, split
from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.datasets import make_classification
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, KFold
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import fragility
from fragility.analysis.resmlp import FragilityPenalty, ResMLPClassifier
from fragility.base.errors import DataError, EvidenceError, ModelError
from fragility.protocol import Protocol

torch = pytest.importorskip("torch", reason="the residual MLP needs the torch extra")
from fragility.analysis.resmlp import network as net  # noqa: E402 (after the skip)

# Mini-batches, dropout and the early-stopping split draw by row: a row of weight 2 cannot train exactly like two rows.
STOCHASTIC = {
    "check_sample_weight_equivalence_on_dense_data": "rows are drawn into mini-batches, dropout and validation",
    "check_sample_weight_equivalence_on_sparse_data": "rows are drawn into mini-batches, dropout and validation",
}


def small(**changes) -> ResMLPClassifier:
    parameters = {"width": 16, "blocks": 2, "max_epochs": 8, "batch_size": 32, "device": "cpu", "random_state": 0}
    return ResMLPClassifier(**{**parameters, **changes})


def data(n: int = 300, n_classes: int = 2, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    X, y = make_classification(
        n, 8, n_informative=5, n_redundant=1, n_classes=n_classes, class_sep=1.5, random_state=seed
    )
    return X, y


def same_weights(a: ResMLPClassifier, b: ResMLPClassifier) -> bool:
    left, right = a.network_.state_dict(), b.network_.state_dict()
    return all(torch.equal(left[name], right[name]) for name in left)


# --- the loss -------------------------------------------------------------------------------------------------


@given(
    seed=st.integers(0, 10_000),
    n=st.integers(1, 6),
    n_classes=st.integers(2, 4),
    alpha=st.floats(0, 3),
    beta=st.floats(0, 2),
    floor=st.sampled_from([1e-8, 0.1]),
    weighted=st.booleans(),
)
def test_the_loss_equals_its_slow_twin(seed, n, n_classes, alpha, beta, floor, weighted):
    rng = np.random.default_rng(seed)
    z, twin = rng.normal(size=(n, n_classes)) * 2, rng.normal(size=(n, n_classes)) * 2
    y, w = rng.integers(0, n_classes, n), rng.random(n) if weighted else None
    stress = net.EvidenceStress(np.arange(1), np.zeros(1), alpha=alpha, beta=beta, margin_floor=floor)
    loss = net.fragility_loss(
        torch.tensor(z), torch.tensor(twin), torch.tensor(y), stress, None if w is None else torch.tensor(w)
    )
    assert float(loss) == pytest.approx(naive.mean_loss(z, twin, y, alpha, beta, floor, w), rel=1e-10)


def test_without_weight_the_loss_is_the_cross_entropy():
    z, y = torch.randn(5, 3, dtype=torch.float64), torch.tensor([0, 1, 2, 0, 1])
    stress = net.EvidenceStress(np.arange(1), np.zeros(1), alpha=0.0)
    assert torch.equal(net.fragility_loss(z, z - 1, y, stress), net.nominal_loss(z, y))


def test_an_unchanged_twin_costs_nothing():
    z, y = torch.randn(5, 3, dtype=torch.float64), torch.tensor([0, 1, 2, 0, 1])
    stress = net.EvidenceStress(np.arange(1), np.zeros(1), alpha=7.0, beta=3.0)
    assert float(net.fragility_loss(z, z, y, stress)) == pytest.approx(float(net.nominal_loss(z, y)))


def tiny_network(n_classes: int) -> net.ResidualNetwork:
    return net.new_network(net.NetworkShape(3, n_classes, width=4, blocks=2), seed=5).double()


@pytest.mark.parametrize("n_classes", [2, 3])
def test_the_network_equals_its_slow_twin(n_classes):
    network = tiny_network(n_classes)
    weights = {name: tensor.numpy() for name, tensor in network.state_dict().items()}
    rows = np.random.default_rng(0).normal(size=(4, 3))
    expected = [naive.forward(weights, row, blocks=2) for row in rows]
    np.testing.assert_allclose(network(torch.tensor(rows)).detach().numpy(), expected, rtol=1e-12)


@pytest.mark.parametrize("n_classes", [2, 3])
def test_the_gradient_equals_finite_differences(n_classes):
    rng = np.random.default_rng(2)
    rows, codes = rng.normal(size=(3, 3)), rng.integers(0, n_classes, 3)
    twins = 0.6 * rows
    stress = net.EvidenceStress(np.arange(3), np.zeros(3), alpha=0.8, beta=0.4)
    network = tiny_network(n_classes)
    logits, twin_logits = network(torch.tensor(rows)), network(torch.tensor(twins))
    net.fragility_loss(logits, twin_logits, torch.tensor(codes), stress).backward()
    sizes = net.support_margins(logits, twin_logits)[0].detach().abs().numpy()
    weights = {name: tensor.numpy().copy() for name, tensor in network.state_dict().items()}

    def slow_loss() -> float:
        z = np.array([naive.forward(weights, row, 2) for row in rows])
        t = np.array([naive.forward(weights, row, 2) for row in twins])
        return naive.mean_loss(z, t, codes, 0.8, 0.4, sizes=sizes)

    for name, parameter in network.named_parameters():
        expected = naive.finite_differences(slow_loss, weights[name])
        np.testing.assert_allclose(parameter.grad.numpy(), expected, rtol=2e-5, atol=2e-7, err_msg=name)


# --- twins ----------------------------------------------------------------------------------------------------


@settings(max_examples=30)
@given(seed=st.integers(0, 10_000), n_groups=st.integers(1, 6), least=st.integers(1, 3), more=st.integers(0, 3))
def test_twins_degrade_the_declared_number_of_groups_by_the_declared_severity(seed, n_groups, least, more):
    column_group = np.concatenate([np.arange(n_groups), np.arange(n_groups)])
    stress = net.EvidenceStress(
        column_group, np.full(2 * n_groups, 5.0), min_groups=least, max_groups=least + more, min_severity=0.2
    )
    twin = net.BatchTwins(stress, torch.Generator().manual_seed(seed), torch.float64)
    x = torch.zeros(40, 2 * n_groups, dtype=torch.float64)
    moved = twin(x).numpy() / 5.0
    assert np.array_equal(moved[:, :n_groups], moved[:, n_groups:])  # a group's columns move together
    for row in moved[:, :n_groups]:
        drawn = row[row > 0]
        assert min(least, n_groups) <= len(drawn) <= min(least + more, n_groups)
        assert np.allclose(drawn, drawn[0])
        assert 0.2 <= drawn[0] <= 0.5


def test_every_number_of_groups_and_every_group_is_drawn_about_equally_often():
    stress = net.EvidenceStress(np.arange(5), np.ones(5))
    severity = net.BatchTwins(stress, torch.Generator().manual_seed(1)).group_severity(20_000).numpy()
    counts = np.bincount((severity > 0).sum(axis=1), minlength=4) / 20_000
    np.testing.assert_allclose(counts, [0, 1 / 3, 1 / 3, 1 / 3], atol=0.02)
    np.testing.assert_allclose((severity > 0).mean(axis=0), 0.4, atol=0.02)
    assert severity[severity > 0].mean() == pytest.approx(0.3, abs=0.005)


# --- randomness -----------------------------------------------------------------------------------------------


def test_alpha_zero_equals_the_plain_model_bit_for_bit():
    X, y = data()
    plain = small().fit(X, y)
    regularised = small(penalty=FragilityPenalty(alpha=0.0, beta=0.7)).fit(X, y)
    assert same_weights(plain, regularised)
    assert np.array_equal(plain.predict_proba(X), regularised.predict_proba(X))
    assert plain.fingerprint() == regularised.fingerprint()


def test_a_penalised_run_shuffles_and_drops_as_the_plain_run_does():
    x = torch.ones(6, 4)
    plain = net.SeededDropout(0.5, torch.Generator().manual_seed(3))
    paired = net.SeededDropout(0.5, *(torch.Generator().manual_seed(seed) for seed in (3, 4)))
    for _ in range(3):
        assert torch.equal(plain(x), paired(torch.cat([x, x]))[:6])
    seeds = [net.stream_seed(0, name) for name in net.STREAMS]
    assert len(set(seeds)) == len(seeds)


def test_a_vanishing_alpha_leaves_the_plain_path_of_the_network():
    X, y = data()
    plain = small(max_epochs=2, gradient_clip=None).fit(X, y)
    almost = small(max_epochs=2, gradient_clip=None, penalty=FragilityPenalty(alpha=1e-30)).fit(X, y)
    np.testing.assert_allclose(plain.predict_proba(X), almost.predict_proba(X), atol=1e-4)


@pytest.mark.parametrize("penalty", [None, FragilityPenalty()])
def test_a_seed_fixes_the_weights_whatever_the_ambient_threads(penalty):
    X, y = data()
    before = torch.get_num_threads()
    first = small(penalty=penalty).fit(X, y)
    try:
        torch.set_num_threads(2 if before == 1 else 1)
        second = small(penalty=penalty).fit(X, y)
    finally:
        torch.set_num_threads(before)
    assert same_weights(first, second)
    assert not same_weights(first, small(penalty=penalty, random_state=1).fit(X, y))


def test_training_leaves_the_global_generators_and_thread_count_alone():
    X, y = data()
    torch_state, threads = torch.get_rng_state(), torch.get_num_threads()
    numpy_state = np.random.get_state()[1].copy()  # noqa: NPY002 (the global generator is what is watched)
    small(penalty=FragilityPenalty()).fit(X, y)
    assert torch.equal(torch_state, torch.get_rng_state())
    assert np.array_equal(numpy_state, np.random.get_state()[1])  # noqa: NPY002
    assert threads == torch.get_num_threads()


def test_the_penalty_makes_twins_differ_less():
    X, y = data(600)
    X = StandardScaler().fit_transform(X)
    plain = small(max_epochs=25, random_state=1).fit(X, y)
    steady = small(max_epochs=25, random_state=1, penalty=FragilityPenalty(alpha=2.0)).fit(X, y)
    degraded = np.where(np.arange(8) < 3, 0.5 * X, X)

    def drift(model: ResMLPClassifier) -> float:
        return float(np.abs(model.predict_proba(X) - model.predict_proba(degraded)).mean())

    assert drift(steady) < drift(plain)


# --- scikit-learn's contract ----------------------------------------------------------------------------------


@pytest.mark.slow
@parametrize_with_checks(
    [
        ResMLPClassifier(device="cpu"),
        ResMLPClassifier(device="cpu", penalty=FragilityPenalty(), width=32, max_epochs=30),
    ],
    expected_failed_checks=lambda _: STOCHASTIC,
)
def test_scikit_learn_contract(estimator, check):
    check(estimator)


def test_a_whole_number_weight_is_close_to_repetition_in_a_full_batch():
    X, y = data(120)
    weights = np.random.default_rng(0).integers(0, 4, 120)
    full = {"dropout": 0.0, "validation_fraction": 0.0, "batch_size": 1000, "max_epochs": 20}
    weighted = small(**full).fit(X, y, sample_weight=weights)
    repeated = small(**full).fit(X.repeat(weights, axis=0), y.repeat(weights))
    np.testing.assert_allclose(weighted.predict_proba(X), repeated.predict_proba(X), atol=1e-4)


def test_zero_weight_equals_leaving_the_row_out_and_the_unit_of_weights_is_free():
    X, y = data(200)
    weights = np.where(np.arange(200) % 3 == 0, 0.0, 1.0)
    left_out = small().fit(X[weights > 0], y[weights > 0], sample_weight=np.ones(int(weights.sum())))
    assert same_weights(left_out, small().fit(X, y, sample_weight=weights))
    assert same_weights(left_out, small().fit(X, y, sample_weight=8 * weights))


@pytest.mark.parametrize(
    "labels",
    [
        ["no", "yes"],
        [False, True],
        [-3, 7],
        [1.0, 2.0],
        np.array(["b", "a"], dtype=object),
    ],
    ids=["text", "truth", "integers", "floats", "objects"],
)
def test_labels_of_any_kind(labels, tmp_path):
    X, y = data()
    named = np.asarray(labels)[y]
    model = small(max_epochs=15).fit(X, named)
    assert list(model.classes_) == sorted(set(named.tolist()))
    assert (model.predict(X) == named).mean() > 0.8
    model.save(tmp_path / "m.safetensors")
    again = ResMLPClassifier.load(tmp_path / "m.safetensors")
    assert again.classes_.dtype == model.classes_.dtype
    assert np.array_equal(again.predict(X), model.predict(X))


def test_many_classes():
    X, y = data(600, n_classes=3)
    model = small(max_epochs=20, penalty=FragilityPenalty()).fit(X, y)
    p = model.predict_proba(X)
    assert p.shape == (600, 3)
    np.testing.assert_allclose(p.sum(axis=1), 1.0)
    assert model.score(X, y) > 0.7


def test_tables_in_pandas_polars_and_set_output():
    pl = pytest.importorskip("polars")
    X, y = data()
    names = [f"c{i}" for i in range(8)]
    frame = pd.DataFrame(X, columns=names)
    model = small().fit(frame, y)
    assert list(model.feature_names_in_) == names
    expected = model.predict_proba(frame)
    polars_model = small().fit(pl.DataFrame(frame), y)
    assert np.array_equal(expected, polars_model.predict_proba(pl.DataFrame(frame)))
    for output in ("pandas", "polars"):
        pipeline = make_pipeline(StandardScaler(), small()).set_output(transform=output).fit(frame, y)
        assert list(pipeline[-1].feature_names_in_) == names
        assert pipeline.predict_proba(frame).shape == (300, 2)


def test_sparse_rows_give_the_dense_result():
    X, y = data()
    X[np.abs(X) < 0.7] = 0.0
    dense = small(penalty=FragilityPenalty()).fit(X, y)
    sparse = small(penalty=FragilityPenalty()).fit(sp.csr_array(X), y)
    assert same_weights(dense, sparse)
    np.testing.assert_allclose(dense.predict_proba(X), sparse.predict_proba(sp.csc_array(X)), rtol=1e-12)


def test_clone_and_grid_search_over_penalties():
    X, y = data(200)
    penalties = [None, FragilityPenalty(alpha=0.5), FragilityPenalty(alpha=1.0, groups=[[0, 1], range(2, 8)])]
    search = GridSearchCV(small(max_epochs=3), {"penalty": penalties, "width": [8]}, cv=2).fit(X, y)
    assert search.best_params_["penalty"] in penalties
    model = small(penalty=penalties[2])
    copy = clone(model)
    assert copy.penalty == model.penalty
    assert copy.get_params()["penalty"] == penalties[2]


def test_pickle_keeps_the_model():
    X, y = data()
    model = small(penalty=FragilityPenalty()).fit(X, y)
    again = pickle.loads(pickle.dumps(model))
    assert np.array_equal(again.predict_proba(X), model.predict_proba(X))
    assert again.fingerprint() == model.fingerprint()


def test_predictions_do_not_depend_on_the_batch():
    X, y = data()
    model = small().fit(X, y)
    together = model.decision_logits(X)
    alone = np.vstack([model.decision_logits(X[i : i + 1]) for i in range(len(X))])
    np.testing.assert_allclose(together, alone, rtol=0, atol=1e-12)


# --- early stopping -------------------------------------------------------------------------------------------


def test_the_best_epoch_is_kept_and_patience_ends_training():
    X, y = data(400)
    noisy = np.where(np.random.default_rng(0).random(400) < 0.3, 1 - y, y)
    model = small(max_epochs=60, patience=4, width=64, learning_rate=5e-3).fit(X, noisy)
    losses = [epoch.validation_nll for epoch in model.history_]
    assert model.best_epoch_ == int(np.argmin(losses)) + 1
    assert model.n_iter_ == len(losses) == model.best_epoch_ + 4 < 60
    shorter = small(max_epochs=model.best_epoch_, patience=4, width=64, learning_rate=5e-3).fit(X, noisy)
    assert same_weights(model, shorter)


def test_own_validation_rows_replace_the_split():
    X, y = data(400)
    names = np.array(["no", "yes"])
    model = small().fit(X[:300], names[y[:300]], X_validation=X[300:], y_validation=names[y[300:]])
    p = model.predict_proba(X[300:])[np.arange(100), y[300:]]
    assert model.history_[model.best_epoch_ - 1].validation_nll == pytest.approx(-np.log(p).mean(), rel=1e-5)


def test_without_validation_every_epoch_runs_and_the_last_weights_stay():
    X, y = data()
    model = small(validation_fraction=0.0, patience=1).fit(X, y)
    assert model.n_iter_ == model.best_epoch_ == 8
    assert all(epoch.validation_nll is None for epoch in model.history_)


def test_validation_split_keeps_every_class_in_training():
    X, y = data(60)
    y = y.astype(object)
    y[:1] = 2  # a class of one row
    model = small().fit(X, y.astype(int))
    assert list(model.classes_) == [0, 1, 2]


def test_progress_is_told_to_a_function_and_shown_to_nobody_else(capsys):
    X, y = data()
    small().fit(X, y)
    assert capsys.readouterr() == ("", "")
    told = []
    small(progress=lambda *epochs: told.append(epochs), max_epochs=2).fit(X, y)
    assert told == [(1, 2), (2, 2)]
    assert capsys.readouterr() == ("", "")


# --- groups and baselines -------------------------------------------------------------------------------------


def test_groups_by_position_by_name_by_label_and_from_tracing_agree():
    part = split("credit_g")
    prepare = preprocessing(part.X_train).set_output(transform="pandas").fit(part.X_train)
    matrix = prepare.transform(part.X_train)
    names = list(matrix.columns)
    pipeline = Pipeline([("prepare", prepare), ("model", small(max_epochs=1))]).fit(part.X_train, part.y_train)
    protocol = Protocol.fit(pipeline, part.X_train)
    by_protocol = FragilityPenalty(groups=protocol, baseline=protocol)
    expected = by_protocol.column_group(len(names))
    # the protocol lists groups in its own order; what matters is which columns move together
    partition = {frozenset(np.flatnonzero(expected == g)) for g in range(expected.max() + 1)}
    by_name = FragilityPenalty(groups=[list(group.columns) for group in protocol.groups])
    by_label = FragilityPenalty(groups=expected)
    by_tracing = FragilityPenalty(groups=prepare)
    for penalty in (by_name, by_label, by_tracing):
        found = penalty.column_group(len(names), names)
        assert {frozenset(np.flatnonzero(found == g)) for g in range(found.max() + 1)} == partition
    assert by_protocol.baseline_vector(matrix).tolist() == [column.baseline for column in protocol.columns]
    np.testing.assert_allclose(by_tracing.baseline_vector(matrix), matrix.mean(axis=0), atol=1e-12)
    assert len(partition) == 20


def test_groups_of_a_preprocessing_hold_in_folds_with_other_categories():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.normal(size=90), "job": np.resize(["clerk", "cook"], 90), "b": rng.normal(size=90)})
    frame.loc[frame.index[:3], "job"] = "actor"  # in no other fold
    y = (frame["a"] + frame["b"] > 0).to_numpy()
    encode = OneHotEncoder(handle_unknown="ignore", sparse_output=False)
    prepare = make_column_transformer((encode, ["job"]), remainder=StandardScaler())
    named = clone(prepare).set_output(transform="pandas")
    penalty = FragilityPenalty(groups=clone(named).fit(frame))
    folds = list(KFold(3).split(frame))
    assert "actor" not in set(frame["job"].iloc[folds[0][0]])
    search = GridSearchCV(
        Pipeline([("prepare", named), ("net", small(max_epochs=2, penalty=penalty))]),
        {"net__penalty": [penalty, replace(penalty, alpha=1.0)]},
        cv=folds,
        error_score="raise",
    ).fit(frame, y)
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    first = clone(named).fit(frame.iloc[folds[0][0]])
    names = list(first.get_feature_names_out())
    found = penalty.column_group(len(names), names)
    assert len(names) == 4 and len({found[names.index(f"onehotencoder__job_{job}")] for job in ("clerk", "cook")}) == 1
    assert sorted(np.bincount(found)) == [1, 1, 2]
    with pytest.raises(EvidenceError, match="makes 5 columns, and the rows have 4, without its names for them; let"):
        Pipeline([("prepare", prepare), ("net", small(penalty=penalty))]).fit(frame.iloc[folds[0][0]], y[folds[0][0]])
    with pytest.raises(EvidenceError, match="the rows have the column 'onehotencoder__job_actor', which the prep"):
        Pipeline([("prepare", named), ("net", small(penalty=FragilityPenalty(groups=first)))]).fit(frame, y)
    with pytest.raises(EvidenceError, match=r"this ColumnTransformer is not fitted, .* groups=clone\(prepare\)"):
        FragilityPenalty(groups=clone(prepare))
    assert FragilityPenalty.from_dict(json.loads(json.dumps(penalty.to_dict()))) == penalty


def test_a_penalty_is_a_value():
    a = FragilityPenalty(groups=[[0, 1], [2]], baseline=np.array([1.0, 2.0, 3.0]))
    assert a == FragilityPenalty(groups=((0, 1), (2,)), baseline=(1, 2, 3))
    assert hash(a) == hash(FragilityPenalty.from_dict(json.loads(json.dumps(a.to_dict()))))


# --- files ----------------------------------------------------------------------------------------------------


def test_save_and_load_give_the_same_model_and_the_same_bytes(tmp_path):
    X, y = data()
    frame = pd.DataFrame(X, columns=[f"c{i}" for i in range(8)])
    penalty = FragilityPenalty(groups=[[f"c{i}" for i in range(4)], [f"c{i}" for i in range(4, 8)]])
    model = small(penalty=penalty).fit(frame, np.array(["no", "yes"])[y])
    model.save(tmp_path / "a.safetensors")
    again = ResMLPClassifier.load(tmp_path / "a.safetensors")
    assert np.array_equal(again.predict_proba(frame), model.predict_proba(frame))
    assert again.get_params() == model.get_params()
    assert again.fingerprint() == model.fingerprint()
    assert (again.history_, again.best_epoch_, again.n_features_in_) == (model.history_, model.best_epoch_, 8)
    again.save(tmp_path / "b.safetensors")
    assert (tmp_path / "a.safetensors").read_bytes() == (tmp_path / "b.safetensors").read_bytes()
    assert clone(again).fit(frame, np.array(["no", "yes"])[y]).fingerprint() == model.fingerprint()


def test_a_pipeline_travels_in_a_skops_file_that_holds_no_other_unknown_type(tmp_path):
    from skops import io

    part = split("credit_g")
    penalty = FragilityPenalty(groups=preprocessing(part.X_train).fit(part.X_train))
    steps = [("prepare", preprocessing(part.X_train)), ("model", small(max_epochs=2, penalty=penalty))]
    pipeline = Pipeline(steps).fit(part.X_train, part.y_train)
    io.dump(pipeline, tmp_path / "m.skops")
    unknown = io.get_untrusted_types(file=tmp_path / "m.skops")
    of_preprocessing = io.get_untrusted_types(data=io.dumps(pipeline[:-1]))
    assert set(unknown) - set(of_preprocessing) == {"fragility.analysis.resmlp.classifier.ResMLPClassifier"}
    again = io.load(tmp_path / "m.skops", trusted=unknown)
    assert np.array_equal(again.predict_proba(part.X_test), pipeline.predict_proba(part.X_test))
    assert again[-1].get_params() == pipeline[-1].get_params()
    assert again[-1].fingerprint() == pipeline[-1].fingerprint()


def test_the_fingerprint_follows_weights_and_classes_only():
    X, y = data()
    model = small().fit(X, y)
    print_before = model.fingerprint()
    assert print_before.startswith("sha256:")
    assert clone(model).set_params(progress=False).fit(X, y).fingerprint() == print_before
    assert small().fit(X, y.astype(str)).fingerprint() != print_before
    with torch.no_grad():
        model.network_.head.bias[0] += 1e-3
    assert model.fingerprint() != print_before


def test_a_changed_file_is_refused(tmp_path):
    X, y = data()
    path = tmp_path / "m.safetensors"
    small().fit(X, y).save(path)
    data_bytes = bytearray(path.read_bytes())
    data_bytes[-1] ^= 1
    path.write_bytes(bytes(data_bytes))
    with pytest.raises(ModelError, match="weights and header do not belong together"):
        ResMLPClassifier.load(path)


def test_files_that_are_no_models_are_refused(tmp_path):
    from safetensors.numpy import save_file

    with pytest.raises(ModelError, match="cannot read the model"):
        ResMLPClassifier.load(tmp_path / "absent.safetensors")
    (tmp_path / "text.safetensors").write_text("hello")
    with pytest.raises(ModelError, match="cannot read the model"):
        ResMLPClassifier.load(tmp_path / "text.safetensors")
    save_file({"w": np.zeros(2)}, tmp_path / "other.safetensors")
    with pytest.raises(ModelError, match="expected a model of format 'fragility-resmlp/1'"):
        ResMLPClassifier.load(tmp_path / "other.safetensors")
    header = json.dumps({"format": "fragility-resmlp/1"})
    save_file({"w": np.zeros(2)}, tmp_path / "empty.safetensors", metadata={"fragility": header})
    with pytest.raises(ModelError, match="the header lacks or misnames a field: 'parameters'"):
        ResMLPClassifier.load(tmp_path / "empty.safetensors")


def test_arrays_of_another_shape_are_refused(tmp_path):
    from safetensors import safe_open
    from safetensors.numpy import save_file

    X, y = data()
    path = tmp_path / "m.safetensors"
    small().fit(X, y).save(path)
    with safe_open(path, framework="numpy") as file:
        metadata, arrays = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    arrays["head.bias"] = np.zeros(3, dtype=np.float32)
    save_file(arrays, path, metadata=metadata)
    with pytest.raises(ModelError, match=r"the arrays \['head.bias'\] are missing, unknown or not of the shape"):
        ResMLPClassifier.load(path)


@pytest.mark.parametrize("change", [{"blocks": 10**9}, {"width": 10**9}, {"n_classes": 10**9}, {"blocks": 1}])
def test_a_header_cannot_ask_for_more_memory_than_the_file_holds(tmp_path, change):
    from safetensors import safe_open
    from safetensors.numpy import save_file

    X, y = data()
    path = tmp_path / "m.safetensors"
    small().fit(X, y).save(path)
    with safe_open(path, framework="numpy") as file:
        header = json.loads(file.metadata()["fragility"])
        arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    header["shape"].update(change)
    save_file(arrays, path, metadata={"fragility": json.dumps(header)})
    with pytest.raises(ModelError, match="missing, unknown or not of the shape"):
        ResMLPClassifier.load(path)


@pytest.mark.parametrize("blocks", [1, 3])
def test_parameter_shapes_are_those_of_the_network(blocks):
    shape = net.NetworkShape(5, 4, 6, blocks)
    built = {name: tuple(tensor.shape) for name, tensor in net.ResidualNetwork(shape).state_dict().items()}
    assert net.parameter_shapes(shape) == built


# --- standing alone -------------------------------------------------------------------------------------------

ALONE = """
import importlib, sys, types
import numpy as np
for name in ("sklearn", "scipy", "pandas", "pyarrow"):
    sys.modules[name] = None  # an import of it now fails
for name, folder in (("fragility", sys.argv[1]), ("fragility.analysis.resmlp", sys.argv[1] + "/analysis/resmlp")):
    sys.modules[name] = types.ModuleType(name)  # no package, only the place of its modules
    sys.modules[name].__path__ = [folder]
core = importlib.import_module("fragility.analysis.resmlp.network")
x = np.random.default_rng(0).normal(size=(200, 4)).astype(np.float32)
rows = core.NetworkRows(x, (x[:, 0] > 0).astype(np.int64))
stress = core.EvidenceStress(np.array([0, 0, 1, 1]), x.mean(axis=0))
shape, plan = core.NetworkShape(4, 2, 8, 1), core.TrainingPlan(max_epochs=2)
print(core.train_network(rows, shape, plan, validation=rows, stress=stress).best_epoch)
own = {name for name in sys.modules if name.startswith("fragility.")}
assert own == {"fragility.analysis.resmlp", "fragility.analysis.resmlp.network"}, own
"""


def test_the_training_core_needs_numpy_and_torch_alone():
    folder = Path(fragility.__file__).parent
    done = subprocess.run([sys.executable, "-c", ALONE, str(folder)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "2"


def test_training_copies_no_more_than_batches():
    X, y = data(20_000)
    X = np.hstack([X] * 8)
    model = small(max_epochs=1, width=8, blocks=1)
    tracemalloc.start()
    try:
        model.fit(X, y)
        _, peak = tracemalloc.get_traced_memory()  # numpy's memory; torch holds the batch, its activations, the weights
    finally:
        tracemalloc.stop()
    assert peak < X.nbytes / 2


# --- refusals -------------------------------------------------------------------------------------------------


def test_missing_values_are_refused():
    X, y = data()
    X[3, 2] = np.nan
    with pytest.raises(ValueError, match=r"ResMLPClassifier does not accept missing values"):
        small().fit(X, y)


def test_unfitted_models_say_so(tmp_path):
    for use in (lambda m: m.predict_proba([[0.0]]), lambda m: m.fingerprint(), lambda m: m.save(tmp_path / "m")):
        with pytest.raises(NotFittedError):
            use(small())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"width": 0}, "width must be a whole number of at least 1, got 0"),
        ({"max_epochs": 2.5}, "max_epochs must be a whole number of at least 1, got 2.5"),
        ({"dropout": 1.0}, r"dropout must be a number in \[0, 1\), got 1.0"),
        ({"learning_rate": 0.0}, "learning_rate must be a number"),
        ({"gradient_clip": -1}, "gradient_clip must be a positive number or None, got -1"),
        ({"device": "tpu"}, "device must be 'auto', 'cpu' or 'cuda', got 'tpu'"),
        ({"n_jobs": 0}, "n_jobs must be None or a whole number other than 0, got 0"),
        ({"progress": "yes"}, "progress must be None, True, False or a function, got 'yes'"),
        ({"penalty": 0.5}, "penalty must be None or a FragilityPenalty, got float"),
    ],
)
def test_bad_parameters_are_refused(changes, message):
    with pytest.raises(ModelError, match=message):
        small(**changes).fit(*data())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"alpha": -1.0}, "alpha must be a number of at least 0, got -1.0"),
        ({"beta": float("nan")}, "beta must be a number of at least 0, got nan"),
        ({"min_groups": 3, "max_groups": 2}, "1 <= min_groups <= max_groups, got 3 and 2"),
        ({"min_severity": 0.6}, "got 0.6 and 0.5"),
        ({"margin_floor": 0.0}, "margin_floor must be a positive number, got 0.0"),
        ({"groups": "raw-origin"}, "groups must be None, a Protocol, a sequence"),
        ({"groups": []}, "groups must name at least one group, got none"),
        ({"groups": [[0], 1]}, "got a mixture"),
        ({"groups": [[0.5]]}, "a column must be a position"),
        ({"baseline": "median"}, "baseline must be 'mean', a vector or a Protocol, got 'median'"),
        ({"baseline": [0.0, np.nan]}, "one finite number for each column"),
    ],
)
def test_bad_penalties_are_refused(changes, message):
    with pytest.raises(EvidenceError, match=message):
        FragilityPenalty(**changes)


@pytest.mark.parametrize(
    ("penalty", "message"),
    [
        (FragilityPenalty(groups=[[0, 1], [1, 2]]), "column 1 is in the groups at positions 0 and 1"),
        (FragilityPenalty(groups=[[0, 1], [2, 3]]), r"cover 4 of the 8 columns; left out are \[4, 5, 6, 7\]"),
        (FragilityPenalty(groups=[[0, 9]]), "the groups name column 9; positions go from 0 to 7"),
        (FragilityPenalty(groups=[["age"]]), "the rows have no column names"),
        (FragilityPenalty(groups=[[0, 1, 2, 3], [4, 5, 6, 7]], min_groups=3), "only 2 evidence groups"),
        (FragilityPenalty(baseline=[0.0]), "one number for each of the 8 columns, got 1"),
    ],
)
def test_penalties_that_do_not_fit_the_columns_are_refused(penalty, message):
    with pytest.raises(EvidenceError, match=message):
        small(penalty=penalty).fit(*data())


def test_group_names_not_among_the_columns_are_refused():
    X, y = data()
    with pytest.raises(EvidenceError, match="the groups name the column 'age', which is not among"):
        small(penalty=FragilityPenalty(groups=[["age"]])).fit(pd.DataFrame(X).add_prefix("c"), y)


def test_other_bad_input_is_refused(tmp_path):
    X, y = data()
    with pytest.raises(DataError, match="at least 2 classes were expected in y, got one class"):
        small().fit(X, np.zeros(len(X)))
    with pytest.raises(DataError, match="belong together"):
        small().fit(X, y, X_validation=X)
    with pytest.raises(DataError, match="y holds 5, not among the model's classes"):
        small().fit(X, y, X_validation=X[:1], y_validation=[5])
    with pytest.raises(DataError, match="X_validation has 2 rows, y_validation 1 labels"):
        small().fit(X, y, X_validation=X[:2], y_validation=[0])
    with pytest.raises(DataError, match="training diverged"):
        small(gradient_clip=None).fit(X * 1e38, y)
    with pytest.raises(ModelError, match=r"must end in \.safetensors, got 'm\.pkl'"):
        small().fit(X, y).save(tmp_path / "m.pkl")
    if not torch.cuda.is_available():
        with pytest.raises(ModelError, match="torch finds no CUDA device"):
            small(device="cuda").fit(X, y)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_training_on_a_gpu_learns_the_same_task():
    X, y = data(600)
    model = small(device="cuda", max_epochs=20, penalty=FragilityPenalty()).fit(X, y)
    on_cpu = clone(model).set_params(device="cpu").fit(X, y)
    assert model.score(X, y) == pytest.approx(on_cpu.score(X, y), abs=0.05)
    assert next(model.network_.parameters()).device.type == "cpu"
