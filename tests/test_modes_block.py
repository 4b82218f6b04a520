"""The modes block of certificates: equal to its slow twin, the same from every engine, and hard to forge."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from block_tables import declare, put_block
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from naive_modes import frequencies, mid_quantiles, mode_loss
from pipelines import fitted, raw_row_table

import fragility as fg
from fragility.audits import Certificates
from fragility.audits.integrity import check_integrity
from fragility.base.errors import CertificateError, DataError, ProtocolError
from fragility.blocks.choice import ChosenRows
from fragility.blocks.modes import ModesClaims, ModesDeclaration
from fragility.questions.modes.losses import count_values
from fragility.verification.outcome import Verification
from fragility.verification.verifying import verify

pytest.importorskip("numba")
VALUES = 5  # of the catalogue
FAMILIES = [("lightgbm", "transformed"), ("logistic", "transformed"), ("mlp", "transformed"), ("lightgbm", "raw")]


def declared_case(family: str, space: str = "transformed", dataset: str = "credit_g", **settings: Any):
    case = fitted(dataset, family, space)
    protocol = fg.Protocol.fit(case.model, case.X_train, space=space, catalogue=VALUES, depth=3, **settings)
    return case, protocol


# --- what a block says --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("family", "space"), FAMILIES)
def test_a_block_says_what_its_slow_twin_says(family, space):
    case, protocol = declared_case(family, space)
    X = case.X_test[:1]
    certs = fg.audit(case.model, X, protocol, modes=["wrong"])
    assert certs.manifest.blocks["modes"].units == {"wrong": list(protocol.group_names)}
    units = []
    for name in protocol.group_names:
        column = case.X_train[name]
        known = column.astype(object).tolist()
        weights = (mid_quantiles if column.dtype.kind in "if" else frequencies)(known, VALUES)
        units.append([({name: value}, weight) for value, weight in weights.items()])
    for cert, (_, x) in zip(certs, X.astype(object).iterrows(), strict=True):
        truth = mode_loss(
            lambda row: case.model.predict_proba(raw_row_table(case, list(row.values())))[0],
            dict(x), units, smoothing=protocol.smoothing,
        )  # fmt: skip
        cost = cert.modes["wrong"]
        assert list(cost.drop.values()) == pytest.approx(truth["drop"], abs=1e-6)
        assert list(cost.flip_chance.values()) == pytest.approx(truth["flip_chance"], abs=1e-9)
        assert cost.exposure == pytest.approx(truth["exposure"], abs=1e-5)


@pytest.mark.samples
@pytest.mark.parametrize(("family", "space"), [*FAMILIES, ("random_forest", "transformed"), ("catboost", "raw")])
@pytest.mark.parametrize("dataset", ["credit_g", "credit_g_property"])
def test_certificates_with_a_block_verify(family, space, dataset, tmp_path):
    case, protocol = declared_case(family, space, dataset)
    X = case.X_test[:12]
    certs = fg.audit(case.model, X, protocol, modes=True)
    assert certs.manifest.blocks["modes"].modes == protocol.modes.declared == ("lost", "wrong", "noisy")
    assert np.allclose(certs.modes["lost"].drop, certs.claims.one_step_drop, atol=2 * protocol.resolution)
    assert np.allclose(certs.modes["lost"].exposure, -np.expm1(-certs.claims.independent_loss), atol=1e-5)
    result = verify(certs.save(tmp_path / "audit"), case.model, X)
    assert result.complete and result.checks[-1].name == "modes", str(result)


def test_every_mode_that_certificates_can_hold():
    case = fitted("credit_g", "lightgbm", "raw")
    protocol = fg.Protocol.fit(
        case.model, case.X_train, space="raw", catalogue=3, sentinels={"duration": [-999, "x * 12"]},
        outages=fg.Outages.from_events([["duration", "age"]] * 2 + [["purpose"]]), modes=("lost", "stale"),
    )  # fmt: skip
    X = case.X_test[:8]
    certs = fg.audit(case.model, X, protocol, modes=True)
    assert certs.manifest.blocks["modes"].units["sentinel"] == ["duration"]
    assert certs.manifest.blocks["modes"].units["outage"] == ["the whole record"]
    assert certs.manifest.blocks["modes"].modes == ("lost", "sentinel", "outage")  # stale needs rows of another time
    assert verify(certs, case.model, X).complete
    direct = fg.assess_modes(case.model, X, protocol, ["lost", "sentinel", "outage"])
    for mode in certs.modes.units:
        assert certs.modes[mode].drop == pytest.approx(direct[mode].drop)
        assert certs.modes[mode].exposure == pytest.approx(direct[mode].exposure)
    assert [count_values(protocol, mode) for mode in certs.modes.units] == [len(protocol.groups), 2, 2]
    told = certs[0].story()
    assert "exposure to error codes" in told and "exposure to recorded outages" in told


@pytest.mark.parametrize("family", ["lightgbm", "random_forest", "logistic"])
def test_engines_agree_on_every_digest(family):
    case, protocol = declared_case(family)
    X = case.X_test[:15]
    read, asked = (fg.audit(case.model, X, protocol, modes=True, engine=name) for name in ("auto", "blackbox"))
    assert read.manifest.blocks["modes"].engine != asked.manifest.blocks["modes"].engine == "blackbox"
    assert read.table.column("modes_digest") == asked.table.column("modes_digest")
    assert read.manifest.blocks["modes"].root_digest == asked.manifest.blocks["modes"].root_digest


@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 1000), family=st.sampled_from(["lightgbm", "logistic"]), data=st.data())
def test_a_row_s_block_depends_on_no_other_row(seed, family, data):
    case, protocol = declared_case(family)
    X = case.X_test[:20]
    order = np.random.default_rng(seed).permutation(20)[: data.draw(st.integers(1, 20))]
    byte_budget = data.draw(st.sampled_from([1 << 16, 1 << 28]))
    whole = fg.audit(case.model, X, protocol, modes=True).take(order)
    part = fg.audit(case.model, X.iloc[order], protocol, modes=True, byte_budget=byte_budget)
    assert part.table.column("modes_digest") == whole.table.column("modes_digest")
    assert part.manifest.blocks["modes"].root_digest == whole.manifest.blocks["modes"].root_digest


def test_the_block_changes_nothing_else():
    case, protocol = declared_case("lightgbm")
    X = case.X_test[:10]
    plain, other = (fg.audit(case.model, X, protocol, modes=modes) for modes in (None, ["noisy"]))
    assert "modes" not in plain.manifest.blocks and plain.modes is None and plain[0].modes is None
    assert plain[0].mode_sentences() == []
    assert other.table.select(plain.table.column_names) == plain.table
    assert other.manifest.root_digest == plain.manifest.root_digest
    assert other.table.column_names[len(plain.table.column_names) :] == [
        "exposure_noisy", "mode_drop_noisy", "flip_chance_noisy", "modes_digest",
    ]  # fmt: skip
    every = fg.audit(case.model, X, protocol, lattice=True)
    searched_again = put_block(other, every.lattice, every.manifest.blocks["lattice"])
    assert searched_again.table.column_names[-1] == "modes_digest"
    assert searched_again.manifest.blocks["modes"].root_digest == other.manifest.blocks["modes"].root_digest
    assert verify(searched_again, case.model, X).complete


def test_some_confident_rows_are_drawn_by_their_content():
    case, protocol = declared_case("lightgbm")
    X = case.X_test[:80]
    certs = fg.audit(case.model, X, protocol, modes=5)
    confident = {c.id for c in certs if c.confidence >= 0.9}
    assert len(confident) > 5 and len(certs.ids_of_block("modes")) == 5 and set(certs.ids_of_block("modes")) < confident
    named = fg.audit(case.model, X, protocol, modes=5, ids=[f"row {own}" for own in X.index])
    assert set(named.ids_of_block("modes")) == {
        f"row {own}" for own in certs.ids_of_block("modes")
    }  # whatever the rows are called
    assert set(certs.modes.ids) == set(certs.ids_of_block("modes")) and len(certs.modes) == 5
    assert sum(cert.modes is not None for cert in certs) == 5
    whole = fg.audit(case.model, X, protocol, modes=True)
    for own in certs.ids_of_block("modes"):
        assert certs.by_id(own).block_digests.get("modes") == whole.by_id(own).block_digests.get("modes")
    turned = fg.audit(case.model, X.iloc[::-1], protocol, modes=5)
    assert turned.ids_of_block("modes") == certs.ids_of_block("modes")
    assert turned.manifest.blocks["modes"].root_digest == certs.manifest.blocks["modes"].root_digest
    assert verify(certs, case.model, X).complete


@pytest.mark.parametrize(
    ("wanted", "error", "told"),
    [
        (["stale"], DataError, "needs the rows of an earlier time"),
        (["horoscope"], ProtocolError, "declares the modes lost, wrong, noisy, got 'horoscope'"),
        ([], ProtocolError, "got none"),
        (0, DataError, "at least 1"),
    ],
)
def test_modes_that_cannot_be_assessed_are_refused(wanted, error, told):
    case, protocol = declared_case("logistic")
    with pytest.raises(error, match=told):
        fg.audit(case.model, case.X_test[:3], protocol, modes=wanted)


def test_a_protocol_without_modes_is_refused():
    case, protocol = declared_case("logistic", modes=())
    with pytest.raises(ProtocolError, match="declares no failure modes"):
        fg.audit(case.model, case.X_test[:3], protocol, modes=True)


# --- reading ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def case_and_protocol():
    return declared_case("lightgbm")


@pytest.fixture(scope="module")
def rows(case_and_protocol):
    return case_and_protocol[0].X_test[:40]


@pytest.fixture(scope="module")
def certs(case_and_protocol, rows) -> Certificates:
    case, protocol = case_and_protocol
    return fg.audit(case.model, rows, protocol, modes=True)


@pytest.fixture(scope="module")
def some(case_and_protocol, rows) -> Certificates:
    case, protocol = case_and_protocol
    return fg.audit(case.model, rows, protocol, modes=6)


def test_rankings_by_mode(certs, some, tmp_path):
    best = certs.most_fragile(5, min_confidence=0.0, by="wrong")
    assert np.array_equal(best.score("wrong"), np.sort(certs.modes["wrong"].exposure)[::-1][:5])
    assert fg.open_audit(certs.save(tmp_path / "a")).most_fragile(5, 0.0, by="noisy").table == (
        certs.most_fragile(5, 0.0, by="noisy").table
    )
    assert set(some.most_fragile(99, by="lost").claims.ids) == set(some.ids_of_block("modes"))
    with pytest.raises(CertificateError, match=f"{len(some) - 6} of the {len(some)} certificates do not say what"):
        some.score("wrong")
    for by in ("sentinel", "stale"):
        with pytest.raises(CertificateError, match=f"what the failure mode '{by}' costs: audit with modes=True"):
            certs.most_fragile(by=by)


def test_a_certificate_says_its_block_in_words(certs):
    cert = next(c for c in certs if 0.1 < max(c.modes["wrong"].flip_chance.values()) < 0.9)
    cost = cert.modes["wrong"]
    wanted = f"exposure to wrong values {cost.exposure:.2f}; a wrong {cost.weakest} flips it with probability "
    assert f"{wanted}{cost.flip_chance[cost.weakest]:.2f}" in cert.story()
    with pytest.raises(ProtocolError, match="the block has the modes lost, wrong, noisy, got 'stale'"):
        certs.modes["stale"]


def test_proofs_and_statements_are_those_of_the_audit_without_a_block(certs, case_and_protocol, rows):
    case, protocol = case_and_protocol
    plain = fg.audit(case.model, rows, protocol)
    own = rows.index[3]
    assert fg.prove(certs, own) == fg.prove(plain, own)
    assert fg.verify_proof(fg.prove(certs, own), root=certs.manifest.root_digest)


# --- forgers ------------------------------------------------------------------------------------------------


def forged(certs: Certificates, **changes: Any) -> Certificates:
    """The certificates with other claims in the block, and every digest made anew."""
    return put_block(certs, replace(certs.modes, **changes), certs.manifest.blocks["modes"])


def failed(result: Verification) -> list[str]:
    return [check.name for check in result.checks if not check.passed]


def test_a_block_made_anew_without_changes_verifies(certs, case_and_protocol, rows):
    assert verify(forged(certs), case_and_protocol[0].model, rows).complete


def calmed(certs: Certificates, by: float = 0.01) -> dict[str, Any]:
    """A wrong value costs one row less margin than it does, and its exposure follows."""
    block, start = certs.modes, len(certs.modes.units["lost"])
    drop = block.drop.copy()
    drop[4, start + int(np.argmax(np.abs(drop[4, start : start + len(block.units["wrong"])])))] -= by
    made = ModesClaims.of_margins(block.ids, block.units, certs.claims.margin, drop, block.flip_chance)
    return {"drop": made.drop, "exposure": made.exposure}


def never_flips(certs: Certificates) -> dict[str, Any]:
    chance, start = certs.modes.flip_chance.copy(), len(certs.modes.units["lost"])
    chance[np.argmax(chance[:, start:].max(axis=1)), start:] = 0.0
    return {"flip_chance": chance}


def lost_never_flips(certs: Certificates) -> dict[str, Any]:
    chance = certs.modes.flip_chance.copy()
    chance[:, : len(certs.modes.units["lost"])] = 0.0
    return {"flip_chance": chance}


def rows_exchanged(certs: Certificates) -> dict[str, Any]:
    chance = certs.modes.flip_chance
    calm, fragile = np.argsort(chance.sum(axis=1))[[0, -1]]
    order = np.arange(len(certs))
    order[[calm, fragile]] = fragile, calm
    return {"flip_chance": chance[order]}


RECOMPUTED: dict[str, Callable[[Certificates], dict[str, Any]]] = {
    "a smaller loss": calmed,
    "a loss beyond the tolerance": lambda c: calmed(c, 1e-5),
    "no flip": never_flips,
    "no flip by a loss": lost_never_flips,
    "rows exchanged": rows_exchanged,
}


@pytest.mark.parametrize("name", RECOMPUTED)
def test_a_forged_block_with_digests_of_its_own_is_recomputed(name, certs, case_and_protocol, rows):
    made = forged(certs, **RECOMPUTED[name](certs))
    assert all(check.passed for check in check_integrity(made))
    result = verify(made, case_and_protocol[0].model, rows)
    assert failed(result) == ["modes"], str(result)


def at(certs: Certificates, name: str, place: tuple[int, int], value: float) -> dict[str, Any]:
    values = getattr(certs.modes, name).copy()
    values[place] = value
    return {name: values}


CONTRADICTED: dict[str, tuple[Callable[[Certificates], dict[str, Any]], str]] = {
    "exposure that does not follow": (lambda c: at(c, "exposure", (2, 1), 0.0), "exposure_wrong of row"),
    "exposure of another margin": (
        lambda c: at(c, "exposure", (2, 0), float(c.modes.exposure[2, 0]) + 1e-7), "exposure_lost of row",
    ),
    "chance above 1": (lambda c: at(c, "flip_chance", (3, -1), 1.5), "flip_chance_noisy of row"),
    "chance below 0": (lambda c: at(c, "flip_chance", (3, 30), -0.5), "flip_chance_wrong of row"),
    "half a loss": (lambda c: at(c, "flip_chance", (3, 0), 0.5), "flip_chance_lost of row"),
    "a loss unlike one_step_drop": (
        lambda c: {
            "drop": (drop := at(c, "drop", (5, 0), float(c.modes.drop[5, 0]) + 1e-4)["drop"]),
            "exposure": ModesClaims.of_margins(
                c.modes.ids, c.modes.units, c.claims.margin, drop, c.modes.flip_chance
            ).exposure,
        },
        "mode_drop_lost of row",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CONTRADICTED)
def test_a_block_that_contradicts_its_row_is_refused(name, certs):
    change, told = CONTRADICTED[name]
    first = check_integrity(forged(certs, **change(certs)))[0]
    assert not first.passed and told in first.detail


def test_a_changed_block_with_its_old_digests_is_noticed(certs):
    changed = forged(certs, **calmed(certs)).table
    kept = changed.set_column(
        changed.column_names.index("modes_digest"), "modes_digest", certs.table.column("modes_digest")
    )
    checks = check_integrity(Certificates(kept, certs.protocol, certs.manifest))
    assert [check.name for check in checks if not check.passed] == ["digests"]
    assert {difference.field for difference in checks[1].differences} >= {"modes_digest"}


def test_claims_without_a_digest_are_refused(some):
    uncovered = int(np.flatnonzero(~some.blocks["modes"].covered(some.table))[0])
    values = some.table.column("exposure_wrong").to_pylist()
    values[uncovered] = 0.1
    place = some.table.column_names.index("exposure_wrong")
    table = some.table.set_column(place, "exposure_wrong", pa.array(values, type=pa.float64()))
    first = check_integrity(Certificates(table, some.protocol, some.manifest))[0]
    assert not first.passed and "a row has claims of the modes block and no modes_digest" in first.detail


DECLARATIONS: dict[str, tuple[Callable[[ModesDeclaration], ModesDeclaration], str]] = {
    "units left out": (
        lambda d: replace(d, units={**d.units, "wrong": d.units["wrong"][1:]}), "modes.units.wrong in the manifest",
    ),
    "units renamed": (lambda d: replace(d, units={**d.units, "lost": d.units["lost"][::-1]}), "modes.units.lost"),
    "unknown mode": (lambda d: replace(d, units={**d.units, "stale": ["x"]}), "must name modes of the protocol"),
    "another order": (lambda d: replace(d, units=dict(reversed(d.units.items()))), "in their order"),
    "no mode": (lambda d: replace(d, units={}), "must name modes of the protocol"),
    "an impossible count": (lambda d: replace(d, rows=ChosenRows(0, "content")), "a whole number from 1, got 0"),
    "units that are no lists": (lambda d: replace(d, units={"lost": 3}), "units.lost in the manifest must be a list"),
    "half a count": (lambda d: replace(d, rows=ChosenRows(1.5, "content")), "a whole number from 1, got 1.5"),
    "an unknown engine": (lambda d: replace(d, engine="oracle"), "'oracle', which does not exist there"),
}  # fmt: skip


@pytest.mark.parametrize("name", DECLARATIONS)
def test_a_declaration_that_is_not_the_protocol_s_is_refused(name, certs):
    change, told = DECLARATIONS[name]
    declared = change(certs.manifest.blocks["modes"])
    first = check_integrity(Certificates(certs.table, certs.protocol, declare(certs.manifest, "modes", declared)))[0]
    assert not first.passed and told in first.detail


def test_fewer_modes_than_were_assessed_have_other_digests(certs, case_and_protocol, rows):
    """Leaving a mode out is declared; a digest made for all of them does not fit the rest."""
    case, protocol = case_and_protocol
    few = fg.audit(case.model, rows, protocol, modes=["lost", "wrong"])
    assert verify(few, case.model, rows).complete
    assert not set(few.table.column("modes_digest").to_pylist()) & set(certs.table.column("modes_digest").to_pylist())


def test_an_engine_that_cannot_have_answered_is_refused(certs, case_and_protocol, rows):
    declared = replace(certs.manifest.blocks["modes"], engine="linear")
    made = Certificates(certs.table, certs.protocol, declare(certs.manifest, "modes", declared))
    result = verify(made, case_and_protocol[0].model, rows)
    assert failed(result) == ["modes"] and "can never have read this model" in str(result)


def test_the_author_cannot_choose_which_rows_are_assessed(case_and_protocol, rows):
    """Claims may be off by rounding, which changes their digests; other confident rows than those drawn are refused."""
    case, protocol = case_and_protocol
    some = fg.audit(case.model, rows, protocol, modes=3)
    declared = some.manifest.blocks["modes"]
    confident = np.flatnonzero(some.table.column("confidence").to_numpy() >= 0.9).tolist()
    others = [i for i in confident if some.table.column("id")[i].as_py() not in some.ids_of_block("modes")][
        : len(some.ids_of_block("modes"))
    ]
    order = declared.choice(protocol).order(some.table.take(pa.array(others)))
    places = [others[i] for i in order]
    whole = fg.audit(case.model, rows, protocol, modes=True)
    block = whole.block_table("modes").take(pa.array(places))
    forged = fg.audit(case.model, rows, protocol).with_block("modes", declared, block)
    assert all(check.passed for check in check_integrity(forged))
    result = verify(forged, case.model, rows)
    assert failed(result) == [
        "choice"
    ] and "are not the confident ones of this audit that their content chooses" in str(result)
    assert verify(some, case.model, rows).complete
