"""Evidence that is not there cannot be lost: what audits, searches and labels say of rows with missing values."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from gaps import BLOCKS, MODELS, Gappy, GapTwin, gappy, twin_of
from naive import naive_absent_groups, naive_certificate, naive_smallest_failing_sets
from twins import assert_equal

import fragility as fg
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


@pytest.mark.parametrize("blocks", [False, True])
@pytest.mark.parametrize("name", RAW)
def test_certificates_equal_the_slow_twin_in_the_raw_space(name: str, blocks: bool) -> None:
    case = gappy(name)
    protocol = fit(case, "raw", blocks=blocks)
    twin = twin_of(case, protocol, PLACES[:5])
    certs = fg.audit(case.model, case.X.iloc[PLACES[:5]], protocol)
    for i in range(5):
        assert_equal(certs, i, slow_certificate(twin, i, protocol), f"{name} row {i}")


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
