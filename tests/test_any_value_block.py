"""The any_value block of certificates: what the search says, the same from any batch, and hard to forge."""

from __future__ import annotations

import json

import numpy as np
import pytest
from block_tables import forge_folder, set_cell
from pipelines import fitted
from sklearn.linear_model import LogisticRegression

import fragility as fg
from fragility.audits.integrity import check_integrity
from fragility.base.errors import DataError
from fragility.blocks.any_value import AnyValueDeclaration
from fragility.verification.verifying import verify

pytest.importorskip("numba")
FAMILIES = [("lightgbm", "transformed"), ("logistic", "transformed"), ("lightgbm", "raw")]


def declared_case(family, space="transformed", dataset="credit_g"):
    case = fitted(dataset, family, space)
    return case, fg.Protocol.fit(case.model, case.X_train, space=space, catalogue=6, depth=3)


def failed(result):
    return [check.name for check in result.checks if not check.passed]


@pytest.mark.parametrize(("family", "space"), FAMILIES)
def test_a_block_says_what_the_search_says_and_verifies(family, space, tmp_path):
    case, protocol = declared_case(family, space)
    X = case.X_test[:6]
    certs = fg.audit(case.model, X, protocol, any_value=True, lattice=False)
    found = fg.find_any_value_budgets(case.model, X, protocol, progress=False)
    for row, cert in enumerate(certs):
        one = cert.blocks["any_value"]
        assert (one.budget or 3, one.proved) == (found.budget[row], found.proved[row])
        assert one.witness == found.witnesses[row] and one.sentence() == found.describe(row)
        assert [{True: 1, False: 0, None: -1}[own] for own in one.alone.values()] == found.alone[row].tolist()
    assert certs.manifest.find_block(AnyValueDeclaration).engine == {"lightgbm": "trees", "logistic": "linear"}[family]
    result = verify(certs.save(tmp_path / "audit"), case.model, X)
    assert result.complete and result.checks[-1].name == "any_value", str(result)


def test_a_row_s_block_depends_on_no_other_row():
    case, protocol = declared_case("lightgbm")
    X = case.X_test[:8]
    whole = fg.audit(case.model, X, protocol, any_value=True, lattice=False)
    digests = {cert.id: cert.block_digests["any_value"] for cert in whole}
    part = fg.audit(case.model, X[3:5], protocol, any_value=True, lattice=False)
    assert all(cert.block_digests["any_value"] == digests[cert.id] for cert in part)


def test_the_most_exposed_rows_may_be_chosen(tmp_path):
    case, protocol = declared_case("lightgbm")
    certs = fg.audit(case.model, case.X_test[:60], protocol, any_value=5, lattice=False)
    assert sum(cert.blocks.get("any_value") is not None for cert in certs) == 5
    assert verify(certs.save(tmp_path / "audit"), case.model, case.X_test[:60]).complete
    with pytest.raises(DataError, match="any_value must be at least 1"):
        fg.audit(case.model, case.X_test[:6], protocol, any_value=0)


FORGERIES = {
    "a smaller budget is denied": ("any_value_proved", 0),
    "a witness that flips nothing": ("any_value_witness", None),
    "a group that can": ("any_value_alone", None),
}


@pytest.mark.parametrize("name", list(FORGERIES))
def test_a_forged_claim_does_not_verify(name, tmp_path):
    case, protocol = declared_case("lightgbm")
    X = case.X_test[:12]
    certs = fg.audit(case.model, X, protocol, any_value=True, lattice=False)
    table = certs.block_table("any_value")
    budgets = np.array(table.column("any_value_budget").to_pylist())
    alone = table.column("any_value_alone").to_pylist()
    if name == "a smaller budget is denied":
        row, value, column = int(np.flatnonzero(budgets == 2)[0]), 0, "any_value_proved"
        change = lambda t: set_cell(set_cell(t, column, value, row), "any_value_sets", -1, row)  # noqa: E731
    elif name == "a witness that flips nothing":
        row = int(np.flatnonzero(budgets <= 2)[0])
        values, predicted = json.loads(table.column("any_value_witness")[row].as_py())
        own = {key: X.iloc[row][key] for key in values}
        plain = {key: value.item() if hasattr(value, "item") else value for key, value in own.items()}
        text = json.dumps([plain, predicted], ensure_ascii=False, separators=(",", ":"))
        change = lambda t: set_cell(t, "any_value_witness", text, row)  # noqa: E731
    else:
        row = next(i for i, own in enumerate(alone) if sum(own) > 1)
        turned = [0 if u == alone[row].index(1) else own for u, own in enumerate(alone[row])]
        count = sum(turned)
        change = lambda t: set_cell(set_cell(t, "any_value_alone", turned, row), "any_value_sets", count, row)  # noqa: E731
    folder = certs.save(tmp_path / "audit")
    forge_folder(folder, "any_value", change, rehash=True)
    assert "any_value" in failed(verify(folder, case.model, X))


@pytest.mark.parametrize("value", [10.0**9, 0.25, "plenty", None], ids=["beyond", "no whole number", "text", "missing"])
def test_a_witness_of_values_that_the_field_may_not_take_does_not_verify(value, tmp_path):
    """The values may well flip the decision, and another witness may be there: what is told is not what may happen."""
    X, y = fg.load_credit_g()
    X = X[["duration", "age", "credit_amount"]]
    model = LogisticRegression(max_iter=2000).fit(X[:700], y[:700])
    train, X = X[:700], X[700:720]
    certs = fg.audit(model, X, fg.Protocol.fit(model, train), any_value=True, lattice=False)
    row, told = next((i, one.any_value.witness) for i, one in enumerate(certs) if one.any_value.budget == 1)
    (name,) = told.values
    made = value if value != 0.25 else told.values[name] + value
    text = json.dumps([{**told.values, name: made}, told.predicted], ensure_ascii=False, separators=(",", ":"))
    folder = certs.save(tmp_path / "audit")
    forge_folder(folder, "any_value", lambda t: set_cell(t, "any_value_witness", text, row), rehash=True)
    result = verify(folder, model, X)
    assert failed(result) == ["any_value"]
    assert any("is not in the domain" in str(one) for check in result.checks for one in check.differences)


def test_what_contradicts_itself_is_found_without_the_model(tmp_path):
    case, protocol = declared_case("lightgbm")
    certs = fg.audit(case.model, case.X_test[:6], protocol, any_value=True, lattice=False)
    for column, value in (
        ("any_value_budget", 9),
        ("any_value_proved", 7),
        ("any_value_sets", 0),
        ("any_value_chance_one", 2.0),
    ):
        folder = certs.save(tmp_path / column)
        forge_folder(folder, "any_value", lambda t, c=column, v=value: set_cell(t, c, v), rehash=True)
        assert not all(check.passed for check in check_integrity(folder)), column


def test_the_measures_and_the_gate_read_it():
    case, protocol = declared_case("lightgbm")
    X = case.X_test[:60]
    certs = fg.audit(case.model, X, protocol, any_value=True, lattice=False)
    summary = certs.summary()
    sure = [cert.any_value.budget for cert in certs if cert.confidence >= protocol.min_confidence]
    for name, groups in (("changes_with_one", 1), ("changes_early", 2)):
        share = summary[name]
        assert (share.count, share.rows) == (sum(k is not None and k <= groups for k in sure), len(sure))
    rule = fg.Rule(measure="any_value_budget", groups=1, at_most=1.0)
    assert fg.Gate((rule,)).check(certs).outcome == "pass"
    with pytest.raises(DataError, match="audit with any_value=True"):
        fg.Gate((rule,)).check(fg.audit(case.model, X, protocol, lattice=False))
    with pytest.raises(DataError, match=r"the audit leaves .* open"):
        fg.Gate((rule,)).check(fg.audit(case.model, X, protocol, any_value=2, lattice=False))
    assert "whatever the value: " in next(str(cert) for cert in certs)


def test_the_report_sets_it_beside_the_path():
    case, protocol = declared_case("lightgbm")
    certs = fg.audit(case.model, case.X_test[:60], protocol, any_value=10, lattice=False)
    text = fg.Report.of(certs).to_markdown()
    assert (
        "No choice of a baseline can dispute this" in text and "10 confident predictions, the most exposed ones" in text
    )
    assert "No choice of a baseline" not in fg.Report.of(fg.audit(case.model, case.X_test[:9], protocol)).to_markdown()


def test_the_report_names_the_groups_that_predictions_do_not_need():
    case = fitted("credit_g", "lightgbm", "raw")
    groups = {"accounts": ["checking_status", "savings_status"], "person": ["age", "personal_status", "num_dependents"]}
    rest = [name for name in case.X_train if not any(name in own for own in groups.values())]
    protocol = fg.Protocol.fit(case.model, case.X_train, groups=groups | {name: [name] for name in rest}, space="raw")
    certs = fg.audit(case.model, case.X_test[:40], protocol, any_value=True, lattice=False)
    held = sum(cert.any_value.alone["accounts"] is False for cert in certs)
    text = fg.Report.of(certs).to_markdown()
    assert f"no values of the 2 fields of accounts can change {held / 40:.0%} of the 40 predictions" in text
    assert "What each group alone can change, whatever it says" in text
