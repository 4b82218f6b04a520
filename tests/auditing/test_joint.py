"""Audits of files with the lattice block, the protocol's signature and the report: as an audit in memory has them."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import joblib
import numpy as np
import pandas as pd
import pytest
from block_tables import put_block, save_in_parts
from command_line import run
from pipelines import Case, fitted

import fragility as fg
from fragility.auditing import files as stream_module
from fragility.audits.comparison import compare_audits
from fragility.base.errors import CertificateError, DataError
from fragility.cli import tables
from fragility.cli.tables import labels_of, open_data
from fragility.report import verify_command

audit_files = partial(fg.audit_files, baselines=False)  # their tests are in test_dependence
pytest.importorskip("numba")
ROWS, PART = 90, 40
WAYS = {"lattice": {"lattice": True}, "rates": {"rates": 0.05}}


@pytest.fixture(scope="module", params=["lightgbm", "logistic", "mlp"])
def case(request: pytest.FixtureRequest) -> Case:
    return fitted("credit_g", request.param, "transformed")


@pytest.fixture(scope="module")
def trees() -> Case:
    return fitted("credit_g", "lightgbm", "transformed")


def declared(case: Case) -> fg.Protocol:
    halves = {name: f"half {place % 6}" for place, name in enumerate(case.X_train.columns)}
    return fg.Protocol.fit(case.model, case.X_train, groups=halves, depth=4, severities=(0.5, 1.0))


def rows_of(case: Case, path: Path) -> pd.DataFrame:
    rows = case.X_test.reset_index(drop=True)[:ROWS]
    rows.to_parquet(path)
    return rows


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


# --- the block ----------------------------------------------------------------------------------------------


@pytest.mark.repeats
@pytest.mark.parametrize("way", WAYS)
def test_the_block_of_files_is_the_block_in_memory_byte_for_byte(case, tmp_path, way) -> None:
    protocol, source = declared(case), tmp_path / "rows.parquet"
    rows = rows_of(case, source)
    whole = fg.audit(case.model, rows, protocol, **WAYS[way])
    stored = audit_files(case.model, source, protocol, tmp_path / "files", **WAYS[way])
    assert content(stored.folder) == content(whole.save(tmp_path / "memory"))
    parts = audit_files(case.model, source, protocol, tmp_path / "parts", part_rows=PART, **WAYS[way])
    assert len(parts.part_names) == 3
    assert parts.manifest.blocks["lattice"] == whole.manifest.blocks["lattice"]
    found = fg.Certificates.load(parts.folder).table
    if whole.engine == "blackbox":  # a network without torch: its last digits depend on how many rows are asked at once
        exact = ["id", "digest", "lattice_digest"]
        assert found.select(exact).equals(whole.table.select(exact))
    else:
        assert found.equals(whole.table)


@pytest.mark.samples
@pytest.mark.parametrize("claims", ["full", "summary"])
def test_a_stored_audit_with_the_block_is_verified_part_by_part(case, tmp_path, claims) -> None:
    protocol, source = declared(case), tmp_path / "rows.parquet"
    rows = rows_of(case, source)
    stored = audit_files(case.model, source, protocol, tmp_path / "files", rates=0.05, claims=claims, part_rows=PART)
    found = fg.verify(stored.folder, case.model, rows)
    assert found.complete and [check.name for check in found.checks][-1] == "lattice"
    assert "90 rows searched again" in found.checks[-1].detail
    assert fg.verify(stored.folder, case.model, rows, sample=7, seed=1).rows_recomputed == 7


def test_a_block_forged_in_a_later_part_is_found(trees, tmp_path) -> None:
    protocol, source = declared(trees), tmp_path / "rows.parquet"
    rows = rows_of(trees, source)
    certs = fg.audit(trees.model, rows, protocol, rates=0.05)
    block = certs.lattice
    assert block is not None and block.failure_probability is not None
    likely = np.where(np.arange(ROWS) == 60, 0.999, block.failure_probability)
    lie = replace(block, failure_probability=likely, failure_low=likely, failure_high=likely)
    forged = put_block(certs, lie, certs.manifest.blocks["lattice"])
    save_in_parts(forged, tmp_path / "forged", PART)
    found = fg.verify(tmp_path / "forged", trees.model, rows)
    assert [check.name for check in found.checks if not check.passed] == ["lattice"]
    assert {difference.row for difference in found.checks[-1].differences} == {60}


def test_a_stored_audit_tells_the_block_as_its_certificates_do(trees, tmp_path) -> None:
    source = tmp_path / "rows.parquet"
    rows_of(trees, source)
    stored = audit_files(trees.model, source, declared(trees), tmp_path / "files", rates=0.05, part_rows=PART)
    certs = fg.Certificates.load(stored.folder)
    assert stored.manifest.blocks["lattice"] == certs.manifest.blocks["lattice"] is not None
    assert stored.by_id(57) == certs.by_id(57) and stored.by_id(57).failure_probability is not None
    worst = stored.most_fragile(5, min_confidence=0.0, by="failure_probability")
    assert worst.table.equals(certs.most_fragile(5, min_confidence=0.0, by="failure_probability").table)
    ours, theirs = stored.summary(), certs.summary()
    assert all(ours[name] == theirs[name] for name in ("fewer_suffice", "proved"))
    assert ours["lost"].total == pytest.approx(theirs["lost"].total) and ours["lost"].total > 0.0
    assert ours["mean_smallest_size"].value == pytest.approx(theirs["mean_smallest_size"].value)
    plain = audit_files(trees.model, source, declared(trees), tmp_path / "plain")
    with pytest.raises(CertificateError, match="have no failure_probability: audit with rates"):
        plain.most_fragile(by="failure_probability")
    assert not len(compare_audits(plain, stored, 0.9).began)


def test_an_interrupted_block_goes_on_to_the_same_bytes_and_to_no_others(trees, tmp_path, monkeypatch) -> None:
    protocol, source = declared(trees), tmp_path / "rows.parquet"
    rows_of(trees, source)
    given = (trees.model, source, protocol)
    whole = audit_files(*given, tmp_path / "whole", rates=0.05, part_rows=PART)
    write = stream_module.FolderSink.write

    def fail_at_last(sink, part):
        if part.place == 2:
            raise OSError(28, "No space left on device")
        return write(sink, part)

    monkeypatch.setattr(stream_module.FolderSink, "write", fail_at_last)
    with pytest.raises(CertificateError, match="2 finished parts are kept"):
        audit_files(*given, tmp_path / "cut", rates=0.05, part_rows=PART)
    monkeypatch.undo()
    for others in ({"rates": 0.06}, {"lattice": True}, {}):
        with pytest.raises(DataError, match="other choices about the lattice block"):
            audit_files(*given, tmp_path / "cut", part_rows=PART, resume=True, **others)
    again = audit_files(*given, tmp_path / "cut", rates=0.05, part_rows=PART, resume=True)
    assert content(again.folder) == content(whole.folder)


# --- signature and report -----------------------------------------------------------------------------------


def test_the_protocols_signature_goes_with_files_as_in_memory(trees, tmp_path) -> None:
    pytest.importorskip("securesystemslib")
    protocol, source = declared(trees), tmp_path / "rows.parquet"
    rows = rows_of(trees, source)
    protocol.save(tmp_path / "protocol.json")
    public = fg.generate_keys(tmp_path / "key")
    envelope = fg.sign(tmp_path / "protocol.json", tmp_path / "key")
    certs = fg.audit(trees.model, rows, protocol).with_protocol_signature(envelope)
    stored = audit_files(trees.model, source, protocol, tmp_path / "files", protocol_signature=envelope)
    assert content(stored.folder) == content(certs.save(tmp_path / "memory"))
    assert stored.protocol_signature == envelope.read_bytes()
    assert stored.take([3]).save(tmp_path / "few").is_dir()
    fg.sign(stored.folder, tmp_path / "key")
    assert fg.verify_signature(stored.folder, public)
    assert list(stored.manifest.to_dict())[-3:] == ["claims", "blocks", "protocol_signature"]
    with pytest.raises(CertificateError, match="signs the protocol"):
        other = fg.Protocol.fit(trees.model, trees.X_train, depth=2)
        audit_files(trees.model, source, other, tmp_path / "other", protocol_signature=envelope)


@pytest.mark.parametrize("given", [{}, {"rates": 0.05}, {"claims": "summary"}])
def test_the_report_of_a_stored_audit_is_that_of_its_certificates(trees, tmp_path, given) -> None:
    source = tmp_path / "rows.parquet"
    rows_of(trees, source)
    stored = audit_files(trees.model, source, declared(trees), tmp_path / "files", part_rows=PART, **given)
    certs = fg.Certificates.load(stored.folder)
    labels = dict(enumerate(trees.model.predict(trees.X_test[:ROWS])))
    for words in ({}, {"labels": labels}):
        ours, theirs = fg.Report.of(stored, **words), fg.Report.of(certs, **words)
        assert without_commands(ours.to_html()) == without_commands(theirs.to_html())


@pytest.mark.parametrize(
    "kind", ["parquet", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("csv", "feather"))]
)
def test_the_command_writes_the_report_with_the_labels_of_the_file(trees, tmp_path, kind) -> None:
    rows = trees.X_test.reset_index(drop=True)[:ROWS].assign(truth=trees.model.predict(trees.X_test[:ROWS]))
    rows.loc[::7, "truth"] = rows["truth"].iloc[0]
    rows.insert(0, "loan", [f"L{i:03d}" for i in range(ROWS)])
    source, model, folder = tmp_path / f"rows.{kind}", tmp_path / "model.joblib", tmp_path / "audit"
    rows.to_csv(source, index=False) if kind == "csv" else getattr(rows, f"to_{kind}")(source)
    declared(trees).save(tmp_path / "protocol.json")
    joblib.dump(trees.model, model)
    found = ("--target", "truth", "--id", "loan", "--trust")
    done = run(
        *("audit", model, source, "--protocol", tmp_path / "protocol.json", *found),
        *("--rates", "0.05", "--part-rows", PART, "--out", folder),
    )
    assert done.code == 0 and "are expected to be lost" in done.out, done
    labels = dict(zip(rows["loan"], rows["truth"], strict=True))
    command = verify_command(folder, "--model", str(model), "--data", str(source), *found)
    made = fg.Report.of(fg.Certificates.load(folder), name=str(folder), labels=labels, verify=command)
    assert made.summary.audits[0].accuracy is not None
    written = (folder / "report.html").read_text(encoding="utf-8")
    assert "are right" in written and "are right" in made.to_html()
    assert run("verify", folder, "--model", model, "--data", source, *found).code == 0


def test_labels_that_would_take_long_to_read_are_left_out_of_the_report(trees, tmp_path, monkeypatch) -> None:
    source = tmp_path / "rows.parquet"
    rows = trees.X_test.reset_index(drop=True)[:ROWS].assign(truth=trees.model.predict(trees.X_test[:ROWS]))
    rows.to_parquet(source)
    found = open_data(source, None, target="truth", rows="10:30")
    assert labels_of(found, 20, trees.model.classes_) == dict(enumerate(rows["truth"][10:30], start=10))
    assert labels_of(found, 20, ["something", "else"]) is None
    monkeypatch.setattr(tables, "MOST_LABELLED", 19)
    assert labels_of(found, 20, trees.model.classes_) is None


def without_commands(html: str) -> str:
    """Return a report without the commands that open a folder's cases in the workbench."""
    return re.sub(r'<p class="small">Open it in the workbench:.*?</p>', "", html)
