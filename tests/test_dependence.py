"""How much a finding depends on the baseline: equal to audits under each, stable or not by the rule, hard to forge."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import naive_dependence
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from block_tables import forge_folder, put_block, set_cell
from hypothesis import given, settings
from hypothesis import strategies as st
from pipelines import fitted
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

import fragility as fg
from fragility.audits import BaselineComparison
from fragility.audits.integrity import check_integrity
from fragility.base.errors import CertificateError, DataError, ModelError, ProtocolError
from fragility.blocks.baselines import block
from fragility.blocks.baselines import comparison as dependence
from fragility.blocks.choice import RowChoice, with_content
from fragility.evidence.rows import content_keys, read_rows

FAMILIES = ("lightgbm", "logistic", "mlp")


@pytest.fixture(scope="module", params=FAMILIES)
def family(request) -> str:
    return request.param


@pytest.fixture(scope="module")
def case():
    return fitted("credit_g", "lightgbm", "transformed")


@pytest.fixture(scope="module")
def protocol(case) -> fg.Protocol:
    return fg.Protocol.fit(case.model, case.X_train, depth=4, severities=(0.5, 1.0))


@pytest.fixture(scope="module")
def rows(case) -> pd.DataFrame:
    return case.X_test[:120].reset_index(drop=True)


@pytest.fixture(scope="module")
def certs(case, protocol, rows) -> fg.Certificates:
    made = fg.audit(case.model, rows, protocol, baselines=True)
    found = fg.compare_baselines(case.model, rows, protocol, certificates=made)
    assert put_block(made, found).manifest == made.manifest
    return made


# --- what it says -------------------------------------------------------------------------------------------


@pytest.mark.repeats
def test_it_equals_an_audit_under_each_baseline(family):
    own = fitted("credit_g", family, "transformed")
    protocol = fg.Protocol.fit(own.model, own.X_train, depth=4, severities=(0.5, 1.0))
    X = own.X_test[:60]
    found = fg.compare_baselines(own.model, X, protocol)
    assert found.baselines == ("typical", *protocol.alternatives) and len(protocol.alternatives) >= 2
    plain = fg.audit(own.model, X, protocol)
    contents = content_keys(read_rows(X))
    assert list(found.ids) == naive_dependence.chosen(plain.claims.ids, plain.claims.confidence, contents)
    for name in found.baselines:
        under = fg.audit(own.model, X, protocol.with_baseline(name), lattice=False)
        mine = [under.by_id(own_id) for own_id in found.ids]
        assert found.flip_budgets(name).tolist() == [cert.flip_budget for cert in mine]
        assert found.exposures(name) == pytest.approx([cert.exposure for cert in mine], abs=1e-9)
    same = fg.compare_baselines(own.model, X, protocol, certificates=plain)
    assert same.table.equals(found.table)


def test_what_is_missing_moves_under_no_baseline():
    rng = np.random.default_rng(3)
    X = pd.DataFrame(rng.normal(2.0, 1.0, (400, 4)) ** 2, columns=list("abcd"))
    y = (X["a"] + 0.6 * X["b"] - 0.5 * X["c"] + 0.2 * X["d"] > X["a"].median()).to_numpy()
    model = make_pipeline(SimpleImputer(), LogisticRegression(C=3.0)).fit(X, y)
    holes = X.mask(rng.random(X.shape) < 0.3)[:200]
    protocol = fg.Protocol.fit(model, X.mask(rng.random(X.shape) < 0.05), min_confidence=0.8)
    found = fg.compare_baselines(model, holes, protocol)
    assert {"typical", "median", "mean"} <= set(found.baselines)
    impute, decide = model[0], model[-1]
    full = fg.audit(model, holes, protocol, lattice=False)
    place = {own: i for i, own in enumerate(full.claims.ids)}
    for figures in found.figures:
        lost = protocol.with_baseline(figures.baseline)
        toward = np.array([column.baseline for column in lost.columns], dtype=float)
        budgets = []
        for own in found.ids:
            row = holes.iloc[[place[own]]]
            there = np.flatnonzero(row.notna().to_numpy()[0])
            moving = row.copy()
            if lost.space == "raw":
                score = lambda z: float(model.decision_function(pd.DataFrame(z, columns=X.columns))[0])  # noqa: E731
            else:
                moving = pd.DataFrame(impute.transform(row), columns=X.columns)
                score = lambda z: float(decide.decision_function(z)[0])  # noqa: E731
            base = moving.to_numpy(dtype=float)
            side = 1.0 if score(base) > 0 else -1.0

            def lose(fields, base=base, score=score, side=side, toward=toward):
                z = base.copy()
                z[0, fields] = toward[fields]
                return side * score(z)

            order = sorted(there.tolist(), key=lambda j: lose([j]))
            steps = [lose(order[: k + 1]) for k in range(len(order))]
            budgets.append(next((k + 1 for k, margin in enumerate(steps) if margin < 0), 5))
        assert figures.flip_within_one == sum(b <= 1 for b in budgets)
        assert figures.flip_within_two == sum(b <= 2 for b in budgets)
        assert figures.never_flip == sum(b == 5 for b in budgets)
    assert holes.loc[[int(own) for own in found.ids]].isna().to_numpy().sum() > 20


def test_figures_equal_their_slow_twin(certs):
    found = certs.baselines
    for one in found.figures:
        budgets, exposures = found.flip_budgets(one.baseline).tolist(), found.exposures(one.baseline).tolist()
        twin = naive_dependence.figures(budgets, exposures, list(found.ids), found.depth)
        assert {**twin, "most_exposed": tuple(twin["most_exposed"])} == {name: getattr(one, name) for name in twin}
    early = {name: set(np.flatnonzero(found.flip_budgets(name) <= 2).tolist()) for name in found.baselines}
    verdict, agreements = naive_dependence.verdict([early[name] for name in found.baselines], len(found))
    assert found.verdict == verdict and [(one.in_number, one.in_rows) for one in found.agreements] == agreements
    every = set.intersection(*early.values())
    assert found.under_all == tuple(found.ids[i] for i in sorted(every))
    for name in found.baselines:
        others = set().union(*(rows for other, rows in early.items() if other != name))
        assert found.under_only(name) == tuple(found.ids[i] for i in sorted(early[name] - others))
    assert sum(found.to_dict()["rows_by_baselines"]) == len(found)


def compare(*early, rows: int) -> BaselineComparison:
    """A comparison in which these rows flip early: of each baseline a set of places, the declared one first."""
    names = tuple(f"b{i}" for i in range(len(early)))
    claims = [
        (name, np.where(np.isin(np.arange(rows), list(own)), 2, 5), np.zeros(rows))
        for name, own in zip(names, early, strict=True)
    ]
    return BaselineComparison(dependence.comparison_table(list(range(rows)), claims), names, 4)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_the_rule_equals_its_slow_twin(data):
    rows = data.draw(st.integers(1, 500))
    spans = data.draw(
        st.lists(st.tuples(st.integers(0, rows), st.integers(0, rows)).map(sorted), min_size=2, max_size=4)
    )
    early = [set(range(start, end)) for start, end in spans]
    found = compare(*early, rows=rows)
    verdict, agreements = naive_dependence.verdict(early, rows)
    assert found.verdict == verdict
    assert [(one.in_number, one.in_rows) for one in found.agreements] == agreements
    opens = {
        "stable": "the finding is stable",
        "depends": "the finding depends",
        "too_few_rows": "too few rows to tell",
    }
    assert found.sentence().startswith(opens[verdict])


@pytest.mark.parametrize(
    ("counts", "in_number"),
    [
        ((100, 200), "stable"), ((100, 201), "depends"), ((100, 50), "stable"), ((100, 49), "depends"),
        ((0, 10), "stable"), ((0, 11), "depends"), ((5, 15), "stable"), ((5, 16), "depends"),
    ],
)  # fmt: skip
def test_the_edges_of_the_number(counts, in_number):
    """A factor of two, or two percentage points of 500 rows."""
    found = compare(*map(range, counts), rows=500)
    assert found.agreements[0].in_number == in_number


@pytest.mark.parametrize(
    ("both", "in_rows"),
    [(60, "stable"), (59, "too_few_rows"), (50, "too_few_rows"), (41, "too_few_rows"), (40, "depends")],
)
def test_the_edges_of_the_rows(both, in_rows):
    """Of 100 rows that flip early under either baseline so many do under both; Wilson's interval decides about half."""
    found = compare(range(100), range(both), rows=500)
    (one,) = found.agreements
    assert (one.either, one.both, one.in_rows) == (100, both, in_rows)


def test_equal_shares_of_other_rows_depend_on_the_baseline_in_rows():
    found = compare(range(69), range(55, 122), rows=500)
    (one,) = found.agreements
    assert (one.in_number, one.in_rows, found.verdict) == ("stable", "depends", "depends")
    assert found.sentence() == (
        "the finding depends on the baseline, in rows: of 500 confident predictions, 14% flip early under b0, 13% "
        "under b1, but not the same rows: of the 122 that flip early under b0 or b1 14 do under both, 11% (95% "
        "interval 7% to 18%)"
    )
    assert found.to_dict()["agreements"][0]["in_rows"] == "depends"


def test_a_stable_finding_says_where_one_group_tells_otherwise():
    """The verdict is about two groups; a reader of the table sees the column of one group beside it."""
    ones = {"b0": 40, "b1": 40, "b2": 0}  # of the 50 rows that flip early under each, so many flip within one
    claims = [
        (name, np.select([np.arange(500) < n, np.arange(500) < 50], [1, 2], 5), np.zeros(500))
        for name, n in ones.items()
    ]
    found = BaselineComparison(dependence.comparison_table(list(range(500)), claims), tuple(ones), 4)
    assert found.verdict == "stable"
    assert found.sentence().endswith("; not so within one group: 8% flip under b0, but 0% under b2")
    name = dependence.name_stability(found)
    assert name == "stable across baselines (within two groups; within one it differs under b2)"
    alike = BaselineComparison(found.table, ("b0", "b1"), 4)
    assert "one group" not in alike.sentence() and dependence.name_stability(alike) == "stable across baselines"


def test_few_confident_rows_are_too_few_to_tell():
    found = compare({0, 1}, {0, 1}, rows=5)
    assert found.verdict == "too_few_rows" and found.disagreeing == ()
    assert found.sentence() == (
        "too few rows to tell whether the finding depends on the baseline: 5 predictions were confident and could be "
        "compared, and 30 are needed"
    )
    assert compare(set(), set(), rows=30).verdict == "stable"
    assert compare({0, 1, 2}, {0, 1, 2}, rows=30).verdict == "too_few_rows"


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_the_choice_by_content_equals_its_slow_twin(data):
    """Copies included, in any order of the rows and whatever their certificates say."""
    n, count = data.draw(st.integers(1, 40)), data.draw(st.integers(1, 12))
    confidence = data.draw(st.lists(st.sampled_from([0.5, 0.9, 0.99]), min_size=n, max_size=n))
    contents = [bytes([cell]) * 16 for cell in data.draw(st.lists(st.integers(1, 9), min_size=n, max_size=n))]
    table = pa.table({"id": list(range(n)), "confidence": confidence, "exposure": np.random.default_rng(n).random(n)})
    table, choice = with_content(table, contents), RowChoice(count, "content", 0.9)
    expected = naive_dependence.chosen(range(n), confidence, contents, most=count)
    assert table.take(pa.array(choice.choose(table))).column("id").to_pylist() == expected
    turned = table.take(pa.array(data.draw(st.permutations(range(n)))))
    assert turned.take(pa.array(choice.choose(turned))).column("id").to_pylist() == expected
    assert choice.keep_candidates(table, set(expected)).column("id").to_pylist() == expected


def test_rows_are_not_chosen_by_their_names(case, protocol, rows):
    """Other ids for the same rows, and the same rows in another order, leave the choice as it is."""
    own = fg.compare_baselines(case.model, rows, protocol)
    named = fg.compare_baselines(case.model, rows, protocol, ids=[f"x{i * 7}" for i in range(len(rows))])
    assert {f"x{i * 7}" for i in own.ids} == set(named.ids)


def test_a_shallow_path_flips_nothing_by_not_flipping(case, rows):
    shallow = fg.Protocol.fit(case.model, case.X_train, depth=1, severities=(1.0,))
    found = fg.compare_baselines(case.model, rows, shallow)
    for one in found.figures:
        assert one.flip_within_one == one.flip_within_two == len(found) - one.never_flip


def test_it_reads_as_a_table_and_as_plain_values(certs):
    text, found = str(certs.baselines), certs.baselines
    assert (
        "typical (declared)" in text
        and "within two groups under all 4 baselines tried (typical" in text
        and found.sentence() in text
    )
    document = found.to_dict()
    assert json.loads(json.dumps(document)) == document
    assert {one["baseline"] for one in document["figures"]} == set(found.baselines) == set(document["under_only"])
    assert found.to_pandas().columns[1] == "flip_budget_typical"


def test_what_cannot_be_compared_is_one_sentence(case, protocol, rows, certs):
    with pytest.raises(ProtocolError, match="stores no other baseline that the model admits"):
        fg.compare_baselines(case.model, rows, protocol.with_baseline("missing"))
    with pytest.raises(CertificateError, match="made under another protocol"):
        fg.compare_baselines(case.model, rows, fg.Protocol.fit(case.model, case.X_train, depth=2), certificates=certs)
    with pytest.raises(CertificateError, match="is not among the rows given"):
        fg.compare_baselines(case.model, rows[:3], protocol, certificates=certs)
    other = fitted("credit_g", "logistic", "transformed").model
    with pytest.raises(CertificateError, match="are of another model"):
        fg.compare_baselines(other, rows, protocol, certificates=certs)
    unsure = rows[case.model.predict_proba(rows).max(axis=1) < 0.9]
    with pytest.raises(CertificateError, match="no prediction is confident"):
        fg.compare_baselines(case.model, unsure, protocol)
    with pytest.raises(CertificateError, match="is of other rows"):
        put_block(certs[:20], certs.baselines)


# --- with the certificates ----------------------------------------------------------------------------------


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file() and path.name[0] != "."}


@pytest.mark.parametrize("kind", ["parquet", pytest.param("csv", marks=pytest.mark.slow)])
def test_files_give_the_bytes_of_an_audit_in_memory(case, protocol, rows, certs, tmp_path, kind, monkeypatch):
    monkeypatch.setattr("fragility.blocks.baselines.block.COMPARED_ROWS", 9)
    made = fg.audit(case.model, rows, protocol, baselines=True)
    assert len(made.baselines) == 9
    expected = files_of(made.save(tmp_path / "memory"))
    data = tmp_path / f"rows.{kind}"
    rows.to_parquet(data) if kind == "parquet" else rows.to_csv(data, index=False)
    for part_rows in (1, 17, 200):
        stored = fg.audit_files(case.model, data, protocol, tmp_path / f"{part_rows}", part_rows=part_rows)
        assert stored.manifest == made.manifest and stored.baselines.table.equals(made.baselines.table)
    assert files_of(tmp_path / "200") == expected
    off = fg.audit_files(case.model, data, protocol, tmp_path / "off", baselines=False)
    assert "baselines" not in off.manifest.blocks and off.baselines is None


def test_it_is_kept_saved_verified_and_left_out_of_selections(case, rows, certs, tmp_path):
    loaded = fg.Certificates.load(certs.save(tmp_path / "a"))
    assert loaded.baselines.table.equals(certs.baselines.table) and loaded.manifest == certs.manifest
    result = fg.verify(tmp_path / "a", case.model, rows)
    assert result.complete and result.checks[-1].name == "baselines"
    n = len(certs.baselines)
    assert f"{n} rows recomputed under median, missing and mean, every claim holds" in str(result)
    assert fg.verify(certs, case.model, rows).complete
    top = certs.most_fragile(3)
    assert top.baselines is None and "baselines" not in top.manifest.blocks and fg.verify(top, case.model, rows)
    sampled = fg.verify(certs, case.model, rows, sample=10, seed=0)
    assert sampled and not sampled.complete


def test_a_model_that_refuses_another_baseline_costs_no_audit(case, protocol, rows, tmp_path, monkeypatch):
    def refuses(*_: object) -> None:
        raise ModelError("it answers by chance")

    rows.to_parquet(tmp_path / "rows.parquet")
    monkeypatch.setattr(block, "bind_under", refuses)
    with pytest.warns(UserWarning, match="was not compared under other baselines: it answers by chance"):
        stored = fg.audit_files(case.model, tmp_path / "rows.parquet", protocol, tmp_path / "a")
    assert stored.baselines is None and len(stored) == 120


def test_resuming_needs_the_same_choice(case, protocol, rows, tmp_path, monkeypatch):
    from fragility.auditing import files as stream

    rows.to_parquet(tmp_path / "rows.parquet")
    given = (case.model, tmp_path / "rows.parquet", protocol, tmp_path / "a")
    whole = stream.Journal.write

    def stops(journal, part, files):
        if part.place >= 2:
            raise KeyboardInterrupt
        return whole(journal, part, files)

    monkeypatch.setattr(stream.Journal, "write", stops)
    with pytest.raises(KeyboardInterrupt):
        fg.audit_files(*given, part_rows=40)
    monkeypatch.undo()
    with pytest.raises(DataError, match="other choices about the baselines block"):
        fg.audit_files(*given, part_rows=40, baselines=False, resume=True)
    resumed = fg.audit_files(*given, part_rows=40, resume=True)
    plain = fg.audit_files(*given[:3], tmp_path / "b", part_rows=40)
    assert resumed.manifest == plain.manifest and files_of(tmp_path / "a") == files_of(tmp_path / "b")


# --- forging ------------------------------------------------------------------------------------------------


@pytest.fixture
def saved(certs, tmp_path) -> Path:
    return certs.save(tmp_path / "audit")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda t: t.slice(1), "that their content chooses: with"),
        (lambda t: t.take([1, 0, *range(2, len(t))]), "that their content chooses: in another order"),
        (lambda t: set_cell(t, "id", 10_000), "that their content chooses: with"),
        (lambda t: set_cell(t, "exposure_typical", 0.5), "1 claims contradict .* exposure_typical of row"),
        (lambda t: set_cell(t, "flip_budget_typical", 3), "1 claims contradict .* flip_budget_typical of row"),
        (lambda t: set_cell(t, "flip_budget_mean", 9), "an impossible flip budget or exposure under mean"),
        (lambda t: set_cell(t, "exposure_mean", 1.5), "an impossible flip budget or exposure under mean"),
        (lambda t: set_cell(t, "exposure_mean", None), "holds 1 nulls"),
        (lambda t: t.drop_columns(["exposure_mean", "flip_budget_mean"]), "must have the columns id, flip_budget"),
        (lambda t: t.slice(0, 0), "that their content chooses: with 0 rows"),
    ],
    ids=["fewer", "order", "id", "declared", "budget of it", "budget", "exposure", "null", "baseline", "none"],
)
def test_what_contradicts_the_certificates_is_found_without_the_model(saved, change, told):
    forge_folder(saved, "baselines", change)
    (check, *_) = check_integrity(saved)
    assert not check.passed
    with pytest.raises(CertificateError, match=told):
        raise CertificateError(check.detail)


@pytest.mark.parametrize("name", ["flip_budget_mean", "flip_budget_missing", "exposure_median"])
def test_a_false_claim_under_another_baseline_is_found(saved, case, rows, name):
    def change(table: pa.Table) -> pa.Table:
        value = table.column(name)[3].as_py()
        return set_cell(table, name, (2 if value == 1 else 1) if "budget" in name else value + 1e-3, 3)

    forge_folder(saved, "baselines", change, rehash=True)
    assert all(check.passed for check in check_integrity(saved))
    result = fg.verify(saved, case.model, rows)
    assert not result and [check.name for check in result.checks if not check.passed] == ["baselines"]
    assert f"{name}: claimed" in str(result) and "1 row does not hold" in str(result)


def test_a_lost_table_is_named(saved):
    stored = fg.open_audit(saved)
    next(saved.glob("baselines-*")).unlink()
    with pytest.raises(CertificateError, match=r"is incomplete: baselines-\w+\.parquet is missing"):
        _ = stored.baselines
    with pytest.raises(CertificateError, match=r"is incomplete: baselines-\w+\.parquet is missing"):
        fg.Certificates.load(saved)


def test_a_folder_holds_the_comparison_of_as_many_rows_as_can_be_compared(load_data, tmp_path):
    X, y = load_data("bank_marketing", "y")
    X, y = X.select_dtypes("number")[:3000], y[:3000]
    model = LogisticRegression(max_iter=300).fit(X, y)
    audit = fg.audit(model, X, fg.Protocol.fit(model, X), lattice=False, baselines=True)
    assert len(audit.baselines) == dependence.COMPARED_ROWS and len(audit.baselines.baselines) == 3
    stored = fg.open_audit(audit.save(tmp_path / "audit"))
    assert stored.baselines.table.equals(audit.baselines.table)
    assert fg.verify(stored, model, X, sample=20)


# --- which baselines there are ------------------------------------------------------------------------------


def test_a_baseline_cannot_be_left_out_in_silence(protocol):
    document = protocol.to_dict()
    del document["alternatives"]["missing"], document["alternatives"]["mean"]
    with pytest.raises(ProtocolError, match="beside typical, median it must refuse missing, mean, got none"):
        fg.Protocol.from_dict(document)


@pytest.mark.parametrize("space", ["transformed", "raw"])
def test_a_baseline_said_to_be_refused_is_put_to_the_model(space, rows):
    own = fitted("credit_g", "lightgbm", space)
    protocol = fg.Protocol.fit(own.model, own.X_train, depth=4, severities=(0.5, 1.0))
    kept = tuple(other for other in protocol.stored if other.name == "median")
    forged = replace(protocol, stored=kept, refused=("missing", "mean"))
    X = own.X_test[:60].reset_index(drop=True)
    certs = fg.audit(own.model, X, forged, lattice=False, baselines=True)
    result = fg.verify(certs, own.model, X)
    assert [check.name for check in result.checks if not check.passed] == ["refused"]
    assert "protocol.refused: claimed missing, recomputed the model admits it" in str(result)
    assert "protocol.refused: claimed mean, recomputed the model admits it" in str(result)


def test_a_model_that_refuses_missing_values_is_verified(rows):
    X = rows[["duration", "age", "installment_commitment"]]
    model = LogisticRegression().fit(X, rows.index % 2)
    protocol = fg.Protocol.fit(model, X)
    assert protocol.alternatives == ("median", "mean") and protocol.refused == ("missing",)
    result = fg.verify(fg.audit(model, X, protocol), model, X)
    assert result.complete and "missing is refused by the model" in str(result)
