"""Evidence that is not there cannot be lost: what audits, searches and labels say of rows with missing values."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from gaps import BLOCKS, MODELS, Gappy, GapTwin, gappy, twin_of
from naive import naive_absent_groups, naive_certificate, naive_smallest_failing_sets
from naive_modes import mode_loss
from naive_reliability import naive_failures
from sklearn.ensemble import HistGradientBoostingClassifier
from twins import assert_equal

import fragility as fg
from fragility.analysis.hardening.twins import Hardening, TwinMaker
from fragility.evidence.rows import read_rows
from fragility.protocol import Protocol

PLACES = [0, 1, 2, 3, 4, 6, 7]  # the first lacks nothing, the fourth everything
NATIVE = {"explainable": "trees", "voting": "wrapped", "calibrated": "wrapped", "mlp": "neural"}


def native_of(name: str) -> str:
    return NATIVE.get(name, "linear" if name.startswith("logistic") else "trees")


def fit(case: Gappy, space: str, **settings: Any) -> Protocol:
    if settings.pop("blocks", False) and space == "raw":
        settings["groups"] = {block: [f for f in fields if f in case.X] for block, fields in BLOCKS.items()}
    return Protocol.fit(case.model, case.X_train, space=space, **settings)


def slow_certificate(twin: GapTwin, i: int, protocol: Protocol) -> dict[str, Any]:
    return naive_certificate(
        twin.probabilities, twin.rows[i], twin.baseline, twin.groups, protocol.depth, protocol.operators,
        protocol.severities, protocol.reading, protocol.weights, protocol.resolution, twin.stepwise, twin.whole,
        exposure_weights=protocol.exposure_weights, smoothing=protocol.smoothing, absent=twin.absent[i],
    )  # fmt: skip


@pytest.mark.samples
@pytest.mark.parametrize("depth", [None, 3])
@pytest.mark.parametrize("name", MODELS)
def test_certificates_equal_the_slow_twin_in_the_transformed_space(name: str, depth: int | None) -> None:
    case = gappy(name)
    protocol = fit(case, "transformed", **({} if depth is None else {"depth": depth}))
    twin = twin_of(case, protocol, PLACES)
    for engine in ("blackbox", native_of(name)):
        certs = fg.audit(case.model, case.X.iloc[PLACES], protocol, engine=engine)
        assert certs.manifest.engine.blackbox_rows in (0, len(PLACES))
        for i in range(len(PLACES)):
            assert_equal(certs, i, slow_certificate(twin, i, protocol), f"{name} {engine} row {i}")
            for g in naive_absent_groups(twin.groups, twin.absent[i]):
                assert certs.claims.one_step_drop[i, g] == 0.0


RAW = ("logistic", "random_forest", "lightgbm", "xgboost", "catboost", "hist_gradient_boosting", "voting", "calibrated")


@pytest.mark.samples
@pytest.mark.parametrize("blocks", [False, True])
@pytest.mark.parametrize("name", RAW)
def test_certificates_equal_the_slow_twin_in_the_raw_space(name: str, blocks: bool) -> None:
    case = gappy(name)
    protocol = fit(case, "raw", blocks=blocks)
    twin = twin_of(case, protocol, PLACES[:5])
    certs = fg.audit(case.model, case.X.iloc[PLACES[:5]], protocol)
    for i in range(5):
        assert_equal(certs, i, slow_certificate(twin, i, protocol), f"{name} row {i}")


@pytest.mark.samples
@pytest.mark.parametrize("space", ["transformed", "raw"])
@pytest.mark.parametrize("name", MODELS)
def test_engines_and_black_box_agree_on_rows_with_gaps(name: str, space: str) -> None:
    case = gappy(name)
    protocol = fit(case, space, blocks=True)
    X = case.X.iloc[:60]
    native, asked = (fg.audit(case.model, X, protocol, engine=engine) for engine in ("auto", "blackbox"))
    np.testing.assert_allclose(native.claims.path_margin, asked.claims.path_margin, atol=1e-7)
    assert (native.claims.flip_budget == asked.claims.flip_budget).all()
    assert (native.claims.path == asked.claims.path).all()
    assert fg.verify(native, case.model, X)


@pytest.mark.samples
@pytest.mark.parametrize("space", ["transformed", "raw"])
@pytest.mark.parametrize("name", MODELS)
def test_smallest_sets_equal_the_slow_twin(name: str, space: str) -> None:
    case = gappy(name)
    protocol = fit(case, space, blocks=True)
    places = [i for i in range(30) if len(case.missing(i)) > 1][:8]
    twin = twin_of(case, protocol, places)
    for engine in ("auto", "blackbox"):
        found = fg.find_failing_sets(case.model, case.X.iloc[places], protocol, engine=engine)
        for i in range(len(places)):
            expected = naive_smallest_failing_sets(
                twin.probabilities, twin.rows[i], twin.baseline, twin.groups, protocol.resolution, absent=twin.absent[i]
            )
            assert found.count[i] in (len(expected), -1), f"{name} {engine} row {i}"
            removed = tuple(np.flatnonzero(found.removed[i]).tolist())
            assert removed == (expected[0] if expected else ()), f"{name} {engine} row {i}"


@pytest.mark.samples
@pytest.mark.parametrize("space", ["transformed", "raw"])
@pytest.mark.parametrize("name", MODELS)
def test_what_a_missing_field_would_become_changes_no_claim(name: str, space: str) -> None:
    """A field that is missing in every row may have any baseline."""
    case, gone = gappy(name), "age"
    protocol = fit(case, space)
    X = case.X.iloc[:40].assign(**{gone: np.nan})
    moved = {column for group in protocol.groups if group.name == gone for column in group.columns}
    far = tuple(replace(c, baseline=60.0) if c.name in moved else c for c in protocol.columns)
    told = []
    for each in (protocol, replace(protocol, columns=far)):
        rows = fg.audit(case.model, X, each, lattice=True, rates=0.1, modes=True, intervals=False)
        labels = fg.label_brittle(case.model, X, each).to_pandas()
        told.append((rows, labels))
    (first, labels), (second, others) = told
    for column in first.table.column_names:
        if "digest" not in column:
            assert first.table.column(column).equals(second.table.column(column)), column
    pd.testing.assert_frame_equal(labels, others)


# --- failure modes, probabilities, hardening --------------------------------------------------------------------


def raw_asker(case: Gappy) -> Any:
    """The model's own answer for one raw row."""
    model = fg.Model.wrap(case.model)

    def probabilities(row: dict[str, Any]) -> list[float]:
        plain = {name: [np.nan if value is None else value] for name, value in row.items()}
        return list(model.probabilities(pd.DataFrame(plain).astype(case.X[list(row)].dtypes))[0])

    return probabilities


def raw_row(case: Gappy, i: int) -> dict[str, Any]:
    return {name: None if pd.isna(value) else value for name, value in case.X.iloc[i].items()}


def catalogue_of(protocol: Protocol) -> dict[str, list[tuple[dict[str, Any], float]]]:
    found = {}
    for entry in protocol.modes.catalogue:
        total = sum(entry.counts)
        pairs = zip(entry.values, entry.counts, strict=True)
        found[entry.group] = [(dict(zip(entry.fields, values, strict=True)), n / total) for values, n in pairs]
    return found


@pytest.mark.parametrize("blocks", [False, True])
@pytest.mark.parametrize("name", ["logistic, indicators", "random_forest", "lightgbm", "voting", "catboost"])
def test_wrong_values_of_what_is_missing_cost_nothing(name: str, blocks: bool) -> None:
    case, places = gappy(name), [1, 2, 3, 6]
    protocol = fit(case, "raw", blocks=blocks, catalogue=3)
    values = catalogue_of(protocol)
    units = [values[group] for group in protocol.group_names]
    found = fg.assess_modes(case.model, case.X.iloc[places], protocol, ["wrong"])["wrong"]
    for at, i in enumerate(places):
        own = mode_loss(raw_asker(case), raw_row(case, i), units, smoothing=protocol.smoothing)
        np.testing.assert_allclose(found.drop[at], own["drop"], atol=1e-6)
        np.testing.assert_allclose(found.flip_chance[at], own["flip_chance"], atol=1e-12)
        for u, group in enumerate(protocol.groups):
            if set(group.columns) <= set(case.missing(i)):
                assert found.drop[at, u] == found.flip_chance[at, u] == 0.0


@pytest.mark.parametrize("name", ["logistic", "lightgbm", "calibrated"])
def test_what_is_missing_cannot_fail(name: str) -> None:
    case, places = gappy(name), [1, 2, 3, 6, 7]
    protocol = fit(case, "raw", catalogue=2)
    values, replaced = catalogue_of(protocol), {c.name: c.baseline for c in protocol.columns}
    rates = {f: {"lost": 0.2, "wrong": 0.1} for f in ("duration", "age", "credit_amount")} | {"purpose": {"lost": 0.3}}
    found = fg.assess_reliability(case.model, case.X.iloc[places], protocol, rates)
    for at, i in enumerate(places):
        ways = [
            [({f: replaced[f]}, own["lost"])] + [(cells, own.get("wrong", 0.0) * w) for cells, w in values[f]]
            for f, own in rates.items()
        ]
        ways = [[one for one in some if one[1] > 0.0] for some in ways]
        own = naive_failures(raw_asker(case), raw_row(case, i), ways, protocol.resolution)
        assert found.p_flip[at] == pytest.approx(own["p_flip"], abs=1e-12)
        assert found.one_failure is not None
        assert found.one_failure[at] == pytest.approx(own["one_failure"], abs=1e-12)
        told = [found.importance[at, protocol.group_names.index(f)] for f in rates]
        np.testing.assert_allclose(told, own["importance"], atol=1e-12)
    drawn = fg.assess_reliability(case.model, case.X.iloc[places], protocol, 0.1, draws=16, engine="blackbox")
    for at, i in enumerate(places):
        gone = [protocol.group_names.index(f) for f in case.missing(i)]
        assert (drawn.importance[at, gone] == 0.0).all() and (drawn.kept[at, gone] == 0.0).all()


def test_stress_leaves_what_is_missing_and_outages_take_only_the_rest() -> None:
    case = gappy("lightgbm")
    protocol = fit(case, "raw")
    X = case.X.iloc[[3, 8, 13]].assign(**dict.fromkeys(case.X.columns, np.nan)).astype(case.X.dtypes)
    log = fg.Outages.from_events([{"age", "purpose"}, {"duration"}])
    stress = fg.Stress((fg.Mask(0.9), fg.Dropout(0.9), fg.Noise(2.0), fg.Donor(0.9), log))
    labels = fg.label_brittle(case.model, X, protocol, stress, donors=case.X_train.dropna().iloc[:20])
    assert (labels.run.draw_margin == labels.run.margin[:, None, None]).all()


def test_twins_lack_what_their_rows_lack() -> None:
    X, y = gappy("xgboost").X_train[:60], (np.arange(60) % 3 == 0).astype(int)
    X = X.assign(age=X["age"].where(np.arange(60) % 2 == 0))
    model = HistGradientBoostingClassifier(max_iter=5, random_state=0).fit(X, y)
    protocol = fg.Protocol.fit(model, X, space="transformed")
    rows = read_rows(X)
    plan = Hardening(0.9, 4, "mask", None, 1, ("lost", "noisy"))
    maker = TwinMaker.of(plan, protocol, None, rows, None, X)
    twins = np.asarray(maker.stack_twins(np.arange(60), np.arange(60, dtype=np.uint64)))[60:].reshape(4, 60, -1)
    gone = X.isna().to_numpy()
    assert np.isnan(twins[:, gone]).all() and not np.isnan(twins[:, ~gone]).any()
    assert (twins[:, ~gone] != X.to_numpy()[~gone]).any()


# --- what is said of it -------------------------------------------------------------------------------------------


def test_certificates_name_what_is_missing_and_leave_it_off_the_path(tmp_path: Path) -> None:
    case = gappy("logistic")
    protocol = fit(case, "transformed")
    certs = fg.audit(case.model, case.X.iloc[PLACES], protocol, lattice=True)
    assert fg.Certificates.load(certs.save(tmp_path / "audit")).table.equals(certs.table)
    for cert, i in zip(certs, PLACES, strict=True):
        missing = case.missing(i)
        assert list(cert.already_missing) == missing
        assert not set(cert.path) & set(missing) and len(cert.path) == min(protocol.depth, 8 - len(missing))
        assert len(cert.path_margin) == len(cert.path) + 1
        assert not set(cert.smallest_set) & set(missing)
        told = f"already missing: {missing[0]}" if missing else "already missing"
        assert (told in cert.sentence()) is bool(missing)
        assert all(told in text for text in (str(cert), cert._repr_html_())) or not missing
    whole = certs[3]
    assert whole.path == () and not whole.flipped and whole.rcma == whole.independent_loss == 0.0
    assert "nothing is left to lose" in whole.sentence()
    report = fg.Report.of(certs)
    assert "already missing" in report.to_markdown()


def test_a_row_by_itself_has_the_certificate_of_the_table() -> None:
    case = gappy("lightgbm")
    protocol = fit(case, "transformed")
    X = case.X.iloc[:12]
    auditor, whole = fg.Auditor(case.model, protocol), fg.audit(case.model, X, protocol)
    alone = [auditor.certify(X.iloc[[i]])[0].digest for i in range(len(X))]
    assert alone == [cert.digest for cert in whole]


def test_equal_cells_are_one_state_only_where_the_same_is_missing() -> None:
    """An imputed value and the same value that came: the one cannot be lost, the other can."""
    case = gappy("logistic")
    protocol = fit(case, "transformed")
    middle = float(case.X_train["age"].median())
    X = case.X.iloc[[0, 0]].reset_index(drop=True).assign(age=[middle, np.nan])
    for engine in ("blackbox", "linear"):
        there, gone = fg.audit(case.model, X, protocol, engine=engine)
        assert there.margin == gone.margin and gone.one_step_drop["age"] == 0.0 != there.one_step_drop["age"]
