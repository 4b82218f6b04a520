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
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pipelines import fitted

import fragility as fg
from fragility.audits.integrity import check_integrity
from fragility.audits.manifest import manifest_text
from fragility.audits.parts import beside_name, encode_part
from fragility.base.canonical import digest_bytes
from fragility.base.errors import CertificateError, EngineError
from fragility.blocks.choice import RowChoice
from fragility.blocks.lattice import making as _lattice
from fragility.blocks.lattice import values as lattice
from fragility.pages.terms import NOT_SEARCHED
from fragility.pages.wording import ONE_WAY

audit_files = partial(fg.audit_files, other_baselines=False)  # their tests are in test_dependence
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
    assert certs.manifest.lattice.most_exposed == FEW
    assert certs.searched_ids == naive_lattice.most_exposed(in_rows(certs), FEW)
    chosen = set(certs.searched_ids)
    every = fg.audit(case.model, rows, protocol, lattice=True)
    for own, full in zip(certs, every, strict=True):
        if own.id in chosen:
            assert (own.smallest_set, own.lattice_digest) == (full.smallest_set, full.lattice_digest)
            assert own.smallest() == full.smallest()
        else:
            assert own.smallest_state == NOT_SEARCHED == own.smallest() and own.lattice_digest is None
            assert (own.smallest_size, own.smallest_set, own.smallest_count) == (None, (), None)
    assert [cert.smallest_state != NOT_SEARCHED for cert in certs.most_fragile(FEW)] == [True] * FEW
    assert certs.summary()["searched"].count == FEW and every.summary()["searched"].count == 90
    assert fg.audit(case.model, rows, protocol, lattice=False).searched_ids == []


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
    assert fg.audit(case.model, rows[:5], protocol, engine="blackbox").manifest.lattice is None


def test_without_confident_rows_nothing_is_searched(case, protocol, rows, tmp_path):
    unsure = case.model.predict_proba(rows).max(axis=1) < 0.9
    certs = fg.audit(case.model, rows[unsure], protocol)
    assert certs.searched_ids == [] and certs.manifest.lattice.most_exposed == 1000
    rows[unsure].to_parquet(tmp_path / "rows.parquet")
    stored = audit_files(case.model, tmp_path / "rows.parquet", protocol, tmp_path / "stored", part_rows=10)
    assert stored.manifest.lattice == certs.manifest.lattice
    result = fg.verify(tmp_path / "stored", case.model, rows[unsure])
    assert result.complete and "none of these rows was searched" in str(result)


def test_an_engine_that_gives_up_costs_no_audit(case, protocol, rows, monkeypatch):
    def gives_up(*_: object, **__: object) -> None:
        raise EngineError("it does not agree")

    monkeypatch.setattr(_lattice, "find_failing_sets", gives_up)
    with pytest.warns(UserWarning, match="smallest failing sets were not searched: it does not agree"):
        assert fg.audit(case.model, rows[:9], protocol).manifest.lattice is None


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
    expected = next(d for name, d in files_of(certs.save(tmp_path / "a")).items() if name.startswith("searched-"))
    for part_rows in (1, 13, 90):
        stored = audit_files(case.model, data, protocol, tmp_path / f"b{part_rows}", part_rows=part_rows)
        assert stored.manifest == certs.manifest and stored.searched_ids == certs.searched_ids
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
    assert files_of(tmp_path / "c") == files_of(tmp_path / "d") and plain.searched_ids == certs.searched_ids


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_the_rows_order_changes_no_search(case, protocol, rows, data):
    some = rows.iloc[data.draw(st.permutations(range(30)))[: data.draw(st.integers(1, 30))]]
    turned = some.iloc[::-1]
    one, other = (fg.audit(case.model, which, protocol) for which in (some, turned))
    assert one.searched_ids == other.searched_ids
    assert one.manifest.lattice == other.manifest.lattice


def test_a_selection_keeps_what_was_searched_of_it(case, protocol, rows, few, tmp_path):
    certs = fg.audit(case.model, rows, protocol)
    top = certs.most_fragile(3)
    some = certs.take([*range(0, 90, 3)])
    for chosen in (top, some):
        again = fg.Certificates.load(chosen.save(tmp_path / "s"))
        assert again.table.equals(chosen.table) and again.searched_ids == chosen.searched_ids
        assert fg.verify(tmp_path / "s", case.model, rows)
        shutil.rmtree(tmp_path / "s")


def test_summaries_have_it_too(case, protocol, rows, few, tmp_path):
    rows.to_parquet(tmp_path / "rows.parquet")
    stored = audit_files(case.model, tmp_path / "rows.parquet", protocol, tmp_path / "s", claims="summary")
    certs = fg.audit(case.model, rows, protocol)
    assert stored.manifest.lattice == certs.manifest.lattice
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
    holds = replace(
        cert, flipped=False, flip_budget=5, smallest_state="minimum", smallest_size=2, smallest_set=("age", "job")
    )
    assert "but without age (→ typical) and job (→ typical) it flips, which the path of 4 removals" in holds.sentence()
    assert "it flips, which the path of 4 removals does not show" in holds.sentence()
    flips = replace(holds, flipped=True, flip_budget=3, path=("a", "b", "c", "d"))
    text = flips.sentence()
    assert "without a, b and c it flips" in text and "the loss of age (→ typical) and job (→ typical) is enough" in text
    black_box = replace(flips, smallest_state=None, smallest_size=None, smallest_set=None)
    assert black_box.sentence().endswith(f"; {ONE_WAY}, and fewer groups may be enough")


# --- forging ------------------------------------------------------------------------------------------------


def forge(folder: Path, change) -> None:
    """Replace the table of searched rows, and make manifest and root agree with it again."""
    from fragility.base.canonical import combine_digests
    from fragility.blocks.claims import digest_from_text

    document = json.loads((folder / "manifest.json").read_text())
    name = next(name for name in document["files"] if name.startswith("searched-"))
    table = change(pq.read_table(folder / name))
    data = encode_part(table)
    new = beside_name("searched", data)
    (folder / name).unlink()
    (folder / new).write_bytes(data)
    document["files"] = {
        (new if own == name else own): (digest_bytes(data) if own == name else digest)
        for own, digest in document["files"].items()
    }
    digests = [digest_from_text(text) for text in table.column("lattice_digest").drop_null().to_pylist()]
    document["lattice"]["root_digest"] = combine_digests(digests)
    (folder / "manifest.json").write_text(manifest_text(document))


@pytest.fixture
def saved(case, protocol, rows, few, tmp_path) -> Path:
    return fg.audit(case.model, rows, protocol).save(tmp_path / "audit")


def set_cell(table: pa.Table, name: str, value: object, row: int = 0) -> pa.Table:
    values = table.column(name).to_pylist()
    values[row] = value
    kind = table.schema.field(name)
    return table.set_column(table.column_names.index(name), kind, pa.array(values, type=kind.type))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda t: t.slice(1), r"rows searched are not the most exposed .* without row"),
        (lambda t: t.take([1, 0, *range(2, FEW)]), "rows searched are not the most exposed .* in another order"),
        (lambda t: set_cell(t, "id", 10_000), "rows searched are not the most exposed .* without row"),
        (
            lambda t: pa.concat_tables([t, set_cell(t.slice(0, 1), "id", 10_000)]),
            "has 8 rows, and 7 are declared at most",
        ),
        (lambda t: set_cell(t, "id", t.column("id")[1].as_py()), "names a row twice"),
        (lambda t: set_cell(t, "lattice_digest", None), "a row without a digest"),
        (lambda t: set_cell(t, "smallest_state", NOT_SEARCHED), "says 'not searched'"),
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
    from fragility.blocks.claims import digest_text
    from fragility.blocks.lattice.values import lattice_claims_of, lattice_context, lattice_digests

    stored = fg.open_audit(saved)
    declared = stored.lattice_declaration
    assert declared is not None

    def change(table: pa.Table) -> pa.Table:
        proved = next(i for i, s in enumerate(table.column("smallest_state").to_pylist()) if s == "minimum")
        table = set_cell(table, "smallest_count", 1 + table.column("smallest_count")[proved].as_py(), proved)
        claims = lattice_claims_of(table, declared, protocol)
        model = stored.manifest.model
        context = lattice_context(stored.manifest.protocol_digest, model.fingerprint, model.classes, declared)
        digests = lattice_digests(claims, context)
        return set_cell(table, "lattice_digest", digest_text(digests[proved]), proved)

    forge(saved, change)
    assert all(check.passed for check in check_integrity(saved))
    result = fg.verify(saved, case.model, rows)
    assert not result and [check.name for check in result.checks if not check.passed] == ["lattice"]
    assert "smallest_count" in str(result)


def test_another_number_of_rows_is_not_the_format_s(saved):
    document = json.loads((saved / "manifest.json").read_text())
    document["lattice"]["most_exposed"] = 3
    (saved / "manifest.json").write_text(manifest_text(document))
    (check, *_) = check_integrity(saved)
    assert not check.passed and "lattice.most_exposed in the manifest must be 7, got 3" in check.detail


def test_the_manifest_names_the_table_in_its_place(saved):
    document = json.loads((saved / "manifest.json").read_text())
    part, searched, protocol = document["files"].items()
    for wrong in ([part, protocol], [part, protocol, searched], [searched, part, protocol]):
        (saved / "manifest.json").write_text(manifest_text({**document, "files": dict(wrong)}))
        with pytest.raises(
            CertificateError,
            match="the table of searched rows if only some were, that of the modes",
        ):
            fg.open_audit(saved)


def test_a_lost_table_is_named(saved):
    stored = fg.open_audit(saved)
    next(saved.glob("searched-*")).unlink()
    with pytest.raises(CertificateError, match=r"is incomplete: searched-\w+\.parquet is missing"):
        stored.most_fragile(2)
    with pytest.raises(CertificateError, match=r"is incomplete: searched-\w+\.parquet is missing"):
        fg.Certificates.load(saved)
