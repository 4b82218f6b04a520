"""Smallest failing sets of the most exposed rows: which rows, the same however they were audited, and hard to forge."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import naive_lattice
import pandas as pd
import pyarrow as pa
import pytest
from block_tables import forge_folder, set_cell
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pipelines import fitted

import fragility as fg
from fragility.audits.integrity import check_integrity
from fragility.audits.manifest import manifest_text
from fragility.base.errors import CertificateError, EngineError
from fragility.blocks.choice import RowChoice
from fragility.blocks.lattice import making as _lattice
from fragility.blocks.lattice import values as lattice
from fragility.blocks.lattice.values import LatticeOfRow
from fragility.pages.terms import NOT_SEARCHED
from fragility.pages.wording import ONE_WAY

audit_files = partial(fg.audit_files, baselines=False)  # their tests are in test_dependence
pytest.importorskip("numba")
FEW = 7


@pytest.fixture(scope="module")
def case():
    return fitted("credit_g", "lightgbm", "transformed")


@pytest.fixture(scope="module")
def protocol(case):
    return fg.Protocol.fit(case.model, case.X_train, depth=4, severities=(0.5, 1.0))


@pytest.fixture(scope="module")
def rows(case) -> pd.DataFrame:
    return case.X_test[:90].reset_index(drop=True)


@pytest.fixture
def few(monkeypatch):
    """An audit that searches seven rows."""
    monkeypatch.setattr(_lattice, "MOST_EXPOSED", FEW)
    monkeypatch.setattr(lattice, "MOST_EXPOSED", FEW)


def in_rows(certs: fg.Certificates) -> list[dict[str, Any]]:
    return certs.table.select(["id", "confidence", "exposure", "digest"]).to_pylist()


# --- which rows ---------------------------------------------------------------------------------------------


def test_the_most_exposed_confident_rows_are_searched_by_default(case, protocol, rows, few):
    certs = fg.audit(case.model, rows, protocol)
    assert certs.manifest.blocks["lattice"].rows.most == FEW
    assert certs.ids_of_block("lattice") == naive_lattice.most_exposed(in_rows(certs), FEW)
    chosen = set(certs.ids_of_block("lattice"))
    every = fg.audit(case.model, rows, protocol, lattice=True)
    for own, full in zip(certs, every, strict=True):
        if own.id in chosen:
            assert (own.smallest_set, own.block_digests.get("lattice")) == (
                full.smallest_set,
                full.block_digests.get("lattice"),
            )
            assert own.smallest() == full.smallest()
        else:
            assert own.smallest_state == NOT_SEARCHED == own.smallest() and own.block_digests.get("lattice") is None
            assert (own.smallest_size, own.smallest_set, own.smallest_count) == (None, (), None)
    assert [cert.smallest_state != NOT_SEARCHED for cert in certs.most_fragile(FEW)] == [True] * FEW
    assert certs.summary()["searched"].count == FEW and every.summary()["searched"].count == 90
    assert fg.audit(case.model, rows, protocol, lattice=False).ids_of_block("lattice") == []


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_the_choice_equals_its_slow_twin(data):
    """Ties in exposure included, in any order of rows and however they are cut."""
    n = data.draw(st.integers(1, 30))
    table = pa.table(
        {
            "id": pa.array(range(n)),
            "confidence": data.draw(st.lists(st.sampled_from([0.5, 0.9, 0.99]), min_size=n, max_size=n)),
            "exposure": data.draw(st.lists(st.sampled_from([0.1, 0.2, 0.7]), min_size=n, max_size=n)),
        }
    )
    count = data.draw(st.integers(1, 12))
    expected = naive_lattice.most_exposed(table.to_pylist(), count)
    choice = RowChoice(count, "exposure", 0.9)
    found = table.take(pa.array(choice.choose(table)))
    assert found.column("id").to_pylist() == expected
    turned = table.take(pa.array(data.draw(st.permutations(range(n)))))
    assert turned.take(pa.array(choice.choose(turned))).column("id").to_pylist() == expected


def test_black_boxes_are_searched_only_on_request(case, protocol, rows):
    assert "lattice" not in fg.audit(case.model, rows[:5], protocol, engine="blackbox").manifest.blocks


def test_without_confident_rows_nothing_is_searched(case, protocol, rows, tmp_path):
    unsure = case.model.predict_proba(rows).max(axis=1) < 0.9
    certs = fg.audit(case.model, rows[unsure], protocol)
    assert certs.ids_of_block("lattice") == [] and certs.manifest.blocks["lattice"].rows.most == 1000
    rows[unsure].to_parquet(tmp_path / "rows.parquet")
    stored = audit_files(case.model, tmp_path / "rows.parquet", protocol, tmp_path / "stored", part_rows=10)
    assert stored.manifest.blocks["lattice"] == certs.manifest.blocks["lattice"]
    result = fg.verify(tmp_path / "stored", case.model, rows[unsure])
    assert result.complete and "none of the rows recomputed has the lattice block" in str(result)


def test_an_engine_that_gives_up_costs_no_audit(case, protocol, rows, monkeypatch):
    def gives_up(*_: object, **__: object) -> None:
        raise EngineError("it does not agree")

    monkeypatch.setattr(_lattice, "find_failing_sets", gives_up)
    with pytest.warns(UserWarning, match="smallest failing sets were not searched: it does not agree"):
        assert "lattice" not in fg.audit(case.model, rows[:9], protocol).manifest.blocks


# --- however it was audited ---------------------------------------------------------------------------------


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file() and path.name[0] != "."}


@pytest.mark.repeats
@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_parts_and_resumed_parts_give_the_bytes_of_an_audit_in_memory(
    case, protocol, rows, few, tmp_path, kind, monkeypatch
):
    data = tmp_path / f"rows.{kind}"
    rows.to_parquet(data) if kind == "parquet" else rows.to_csv(data, index=False)
    certs = fg.audit(case.model, rows, protocol)
    expected = next(d for name, d in files_of(certs.save(tmp_path / "a")).items() if name.startswith("lattice-"))
    for part_rows in (1, 13, 90):
        stored = audit_files(case.model, data, protocol, tmp_path / f"b{part_rows}", part_rows=part_rows)
        assert stored.manifest == certs.manifest and stored.ids_of_block("lattice") == certs.ids_of_block("lattice")
        assert expected in files_of(tmp_path / f"b{part_rows}").values()
    assert files_of(tmp_path / "b90") == files_of(tmp_path / "a")

    from fragility.auditing import files as stream

    whole = stream.Journal.write

    def stops(journal, part, files):
        if part.place >= 3:
            raise KeyboardInterrupt
        return whole(journal, part, files)

    monkeypatch.setattr(stream.Journal, "write", stops)
    with pytest.raises(KeyboardInterrupt):
        audit_files(case.model, data, protocol, tmp_path / "c", part_rows=20)
    monkeypatch.setattr(stream.Journal, "write", whole)
    audit_files(case.model, data, protocol, tmp_path / "c", part_rows=20, resume=True)
    plain = audit_files(case.model, data, protocol, tmp_path / "d", part_rows=20)
    assert files_of(tmp_path / "c") == files_of(tmp_path / "d") and plain.ids_of_block("lattice") == certs.ids_of_block(
        "lattice"
    )


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_the_rows_order_changes_no_search(case, protocol, rows, data):
    some = rows.iloc[data.draw(st.permutations(range(30)))[: data.draw(st.integers(1, 30))]]
    turned = some.iloc[::-1]
    one, other = (fg.audit(case.model, which, protocol) for which in (some, turned))
    assert one.ids_of_block("lattice") == other.ids_of_block("lattice")
    assert one.manifest.blocks["lattice"] == other.manifest.blocks["lattice"]


def test_a_selection_keeps_what_was_searched_of_it(case, protocol, rows, few, tmp_path):
    certs = fg.audit(case.model, rows, protocol)
    top = certs.most_fragile(3)
    some = certs.take([*range(0, 90, 3)])
    for chosen in (top, some):
        again = fg.Certificates.load(chosen.save(tmp_path / "s"))
        assert again.table.equals(chosen.table) and again.ids_of_block("lattice") == chosen.ids_of_block("lattice")
        assert fg.verify(tmp_path / "s", case.model, rows)
        shutil.rmtree(tmp_path / "s")


def test_summaries_have_it_too(case, protocol, rows, few, tmp_path):
    rows.to_parquet(tmp_path / "rows.parquet")
    stored = audit_files(case.model, tmp_path / "rows.parquet", protocol, tmp_path / "s", claims="summary")
    certs = fg.audit(case.model, rows, protocol)
    assert stored.manifest.blocks["lattice"] == certs.manifest.blocks["lattice"]
    assert fg.verify(tmp_path / "s", case.model, rows).complete


# --- sentences ----------------------------------------------------------------------------------------------


def test_no_sentence_promises_more_than_was_searched(case, protocol, rows, few):
    certs = fg.audit(case.model, rows, protocol)
    every = fg.audit(case.model, rows, protocol, lattice=True)
    for cert, full in zip(certs, every, strict=True):
        assert "strongest groups" not in cert.sentence()
        unsearched = cert.smallest_state == NOT_SEARCHED
        assert (ONE_WAY in cert.sentence()) == (unsearched and not (cert.flipped and cert.flip_budget <= 2))
        assert ONE_WAY not in full.sentence()
        if full.fewer_suffice:
            assert all(name in full.sentence() for name in full.smallest_set)


def test_a_smaller_known_set_is_in_the_sentence(case, protocol, rows):
    cert = fg.audit(case.model, rows[:1], protocol)[0]
    holds = replace(cert, flipped=False, flip_budget=5, blocks={"lattice": LatticeOfRow("minimum", 2, ("age", "job"))})
    assert "but without age (→ typical) and job (→ skilled) it flips, which the path of 4 removals" in holds.sentence()
    assert "it flips, which the path of 4 removals does not show" in holds.sentence()
    flips = replace(holds, flipped=True, flip_budget=3, path=("a", "b", "c", "d"))
    text = flips.sentence()
    assert "without a, b and c it flips" in text and "the loss of age (→ typical) and job (→ skilled) is enough" in text
    black_box = replace(flips, blocks={})
    assert black_box.sentence().endswith(f"; {ONE_WAY}, and fewer groups may be enough")


# --- forging ------------------------------------------------------------------------------------------------


def forge(folder: Path, change) -> None:
    """Replace the table of searched rows, and make manifest and root agree with it again."""
    forge_folder(folder, "lattice", change)


@pytest.fixture
def saved(case, protocol, rows, few, tmp_path) -> Path:
    return fg.audit(case.model, rows, protocol).save(tmp_path / "audit")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda t: t.slice(1), r"searched rows are not the most exposed .* without row"),
        (lambda t: t.take([1, 0, *range(2, FEW)]), "searched rows are not the most exposed .* in another order"),
        (lambda t: set_cell(t, "id", 10_000), "searched rows are not the most exposed .* without row"),
        (
            lambda t: pa.concat_tables([t, set_cell(t.slice(0, 1), "id", 10_000)]),
            "has 8 rows, and 7 are declared at most",
        ),
        (lambda t: set_cell(t, "id", t.column("id")[1].as_py()), "names a row twice"),
        (lambda t: set_cell(t, "digest", None), "a row without a digest"),
        (lambda t: set_cell(t, "smallest_state", NOT_SEARCHED), "'not searched', which the manifest does not declare"),
        (lambda t: t.drop_columns(["smallest_count"]), "must have the columns id, smallest_state"),
        (lambda t: t.set_column(0, "id", t.column("id").cast(pa.string())), "ids of type string, not int64"),
    ],
    ids=["fewer", "order", "other id", "more", "twice", "no digest", "not searched", "columns", "type"],
)
def test_another_choice_of_rows_is_found_without_the_model(saved, change, told):
    forge(saved, change)
    (check, *_) = check_integrity(saved)
    assert not check.passed
    with pytest.raises(CertificateError, match=told):
        raise CertificateError(check.detail)


def test_a_false_claim_is_found(saved, case, rows, protocol):
    def change(table: pa.Table) -> pa.Table:
        proved = next(i for i, s in enumerate(table.column("smallest_state").to_pylist()) if s == "minimum")
        return set_cell(table, "smallest_count", 1 + table.column("smallest_count")[proved].as_py(), proved)

    forge_folder(saved, "lattice", change, rehash=True)
    assert all(check.passed for check in check_integrity(saved))
    result = fg.verify(saved, case.model, rows)
    assert not result and [check.name for check in result.checks if not check.passed] == ["lattice"]
    assert "smallest_count" in str(result)


def test_another_number_of_rows_is_not_the_format_s(saved):
    document = json.loads((saved / "manifest.json").read_text())
    document["blocks"]["lattice"]["rows"]["most"] = 3
    (saved / "manifest.json").write_text(manifest_text(document))
    (check, *_) = check_integrity(saved)
    assert not check.passed and "blocks.lattice.rows.most in the manifest must be 7, got 3" in check.detail


def test_the_manifest_names_the_table_in_its_place(saved):
    document = json.loads((saved / "manifest.json").read_text())
    part, searched, protocol = document["files"].items()
    for wrong in ([part, protocol], [part, protocol, searched], [searched, part, protocol]):
        (saved / "manifest.json").write_text(manifest_text({**document, "files": dict(wrong)}))
        with pytest.raises(
            CertificateError,
            match="the tables of each block in order",
        ):
            fg.open_audit(saved)


def test_a_lost_table_is_named(saved):
    stored = fg.open_audit(saved)
    next(saved.glob("lattice-*")).unlink()
    with pytest.raises(CertificateError, match=r"is incomplete: lattice-\w+\.parquet is missing"):
        stored.most_fragile(2)
    with pytest.raises(CertificateError, match=r"is incomplete: lattice-\w+\.parquet is missing"):
        fg.Certificates.load(saved)
