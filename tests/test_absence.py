"""Evidence that is not there cannot be lost: what audits, searches and labels say of rows with missing values."""

from __future__ import annotations

from typing import Any

import pytest
from gaps import BLOCKS, MODELS, Gappy, GapTwin, gappy, twin_of
from naive import naive_absent_groups, naive_certificate
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
