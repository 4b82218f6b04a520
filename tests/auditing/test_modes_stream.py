"""The modes and intervals blocks of audits of files: the bytes of an audit in memory, interrupted or not."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command_line import refuse, run
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pipelines import Case, fitted

import fragility as fg
from fragility.auditing.parts import TableAuditor
from fragility.audits.integrity import check_integrity
from fragility.base.errors import CertificateError, DataError, ProtocolError

pytest.importorskip("numba")
ROWS = 90
WANTED = [(True, 5), (7, True), (["wrong"], ["age", "purpose"])]  # modes and intervals


@pytest.fixture(scope="module")
def case() -> Case:
    return fitted("credit_g", "lightgbm", "transformed")


@pytest.fixture(scope="module")
def protocol(case: Case) -> fg.Protocol:
    return fg.Protocol.fit(case.model, case.X_train, catalogue=4, depth=3)


@pytest.fixture(scope="module")
def rows(case: Case) -> pd.DataFrame:
    return case.X_test[:ROWS].reset_index(drop=True)


@pytest.fixture
def table(rows: pd.DataFrame, tmp_path: Path) -> Path:
    rows.to_parquet(tmp_path / "rows.parquet", index=False)
    return tmp_path / "rows.parquet"


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix in (".json", ".parquet")}


@pytest.mark.repeats
@pytest.mark.parametrize(("wanted", "intervals"), WANTED)
def test_files_give_the_bytes_of_an_audit_in_memory(case, rows, protocol, table, tmp_path, wanted, intervals):
    certs = fg.audit(case.model, rows, protocol, modes=wanted, intervals=intervals)
    certs.save(tmp_path / "memory")
    options = {"modes": wanted, "intervals": intervals, "baselines": False}
    fg.audit_files(case.model, table, protocol, tmp_path / "files", **options)
    assert content(tmp_path / "files") == content(tmp_path / "memory")
    cut = fg.audit_files(case.model, table, protocol, tmp_path / "cut", part_rows=40, **options)
    assert cut.manifest == certs.manifest and cut.ids_of_block("modes") == certs.ids_of_block("modes")
    assert fg.Certificates.load(cut.folder).table == certs.table
    assert len(list(cut.folder.glob("modes-*.parquet"))) == (1 if wanted == 7 else 3)
    assert len(list(cut.folder.glob("intervals-*.parquet"))) == (1 if intervals == 5 else 3)
    assert cut.ids_of_block("intervals") == certs.ids_of_block("intervals")
    assert fg.verify(cut.folder, case.model, rows).complete


@settings(max_examples=3, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(part_rows=st.integers(1, 12), count=st.one_of(st.just(True), st.integers(1, 8)))
def test_the_size_of_the_parts_changes_no_block(case, rows, protocol, tmp_path_factory, part_rows, count):
    folder, rows = tmp_path_factory.mktemp("parts"), rows[:10]
    rows.to_csv(folder / "rows.csv", index=False)
    certs = fg.audit(case.model, rows, protocol, modes=count, intervals=count, lattice=False)
    stored = fg.audit_files(
        case.model, folder / "rows.csv", protocol, folder / "audit", part_rows=part_rows, modes=count, intervals=count,
        lattice=False, baselines=False,
    )  # fmt: skip
    assert stored.manifest == certs.manifest
    assert fg.Certificates.load(folder / "audit").table == certs.table


def test_a_summary_has_its_block_too(case, rows, protocol, table, tmp_path):
    both = {"modes": True, "intervals": ["age"]}
    certs = fg.audit(case.model, rows, protocol, **both)
    stored = fg.audit_files(case.model, table, protocol, tmp_path / "audit", claims="summary", **both)
    assert stored.manifest.blocks["modes"].root_digest == certs.manifest.blocks["modes"].root_digest
    assert stored.manifest.blocks["intervals"].root_digest == certs.manifest.blocks["intervals"].root_digest
    assert fg.verify(stored, case.model, rows).complete
    assert stored.certificate(3).modes == certs[3].modes and stored.certificate(3).intervals == certs[3].intervals


def test_a_cluster_s_table_has_the_blocks_of_every_row(case, rows, protocol):
    certs = fg.audit(case.model, rows, protocol, modes=["lost"], intervals=["age", "purpose"], lattice=False)
    given = pa.Table.from_pandas(rows.assign(key=range(len(rows))), preserve_index=False)
    options = {"engine": "auto", "claims": "full", "byte_budget": 1 << 26, "in_folder": False}
    made = TableAuditor.prepare(
        case.model,
        given,
        protocol,
        "key",
        None,
        wanted={"modes": ["lost"], "intervals": ["age", "purpose"]},
        **options,
    )
    found = made(given.slice(20, 30))
    assert found.equals(certs.table.slice(20, 30).combine_chunks()) and found.schema == made.schema(pa.int64())
    assert made(given.slice(0, 0)).schema == found.schema
    for name in ("modes", "intervals"):
        with pytest.raises(DataError, match=f"{name}=7 chooses among all rows, and only an audit with out sees them"):
            TableAuditor.prepare(case.model, given, protocol, "key", None, wanted={name: 7}, **options)


def test_modes_of_other_rows_are_refused(case, protocol, table, tmp_path):
    folder = fg.audit_files(case.model, table, protocol, tmp_path / "audit", modes=True, part_rows=45).folder
    first, second = sorted(folder.glob("modes-*.parquet"))
    document = json.loads((folder / "manifest.json").read_text())
    from fragility.audits.manifest import manifest_text
    from fragility.audits.parts import encode_block, part_name
    from fragility.base.canonical import digest_bytes

    table_of_first = pq.read_table(second)
    data = encode_block(table_of_first)
    name = part_name(0, data, "modes")
    (folder / name).write_bytes(data)
    document["files"] = {
        name if own == first.name else own: digest_bytes(data) if own == first.name else digest
        for own, digest in document["files"].items()
    }
    (folder / "manifest.json").write_text(manifest_text(document))
    assert "is of other rows than the part of its place" in check_integrity(folder)[0].detail
    with pytest.raises(CertificateError, match="is of other rows than the part of its place"):
        fg.Certificates.load(folder)


# --- the command line ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def files(case, rows, protocol, tmp_path_factory) -> Path:
    import joblib

    folder = tmp_path_factory.mktemp("cli")
    joblib.dump(case.model, folder / "model.joblib")
    rows.assign(loan=[f"L{i}" for i in range(len(rows))]).to_parquet(folder / "rows.parquet", index=False)
    protocol.save(folder / "protocol.json")
    return folder


def audit_with(files: Path, out: Path, *words: object) -> list[object]:
    return [
        "audit", files / "model.joblib", files / "rows.parquet", "--protocol", files / "protocol.json", "--id", "loan",
        "--trust", "--out", out, *words,
    ]  # fmt: skip


def test_the_command_assesses_some_confident_rows_and_says_so(files, tmp_path):
    done = run(*audit_with(files, tmp_path / "audit"))
    assert done.code == 0, done.err
    audit = fg.open_audit(tmp_path / "audit")
    assert audit.manifest.blocks["modes"].rows.most == 2000 and 0 < len(audit.ids_of_block("modes")) < ROWS
    count = len(audit.ids_of_block("modes"))
    told = f"failure modes lost, wrong and noisy of {count} confident predictions; --modes all assesses"
    assert told in " ".join(done.out.split())
    shown = run("show", tmp_path / "audit", "--row", audit.ids_of_block("modes")[0])
    assert "exposure to wrong values" in shown.out and "exposure to noisy values" in shown.out
    best = run("show", tmp_path / "audit", "--score", "wrong", "-n", "3")
    assert best.code == 0 and "if wrong" in best.out
    none = run("show", tmp_path / "audit", "--score", "wrong", "--min-confidence", "1.0")
    assert "with assessed failure modes" in " ".join(none.out.split())


def test_the_command_finds_stability_intervals(files, tmp_path):
    for wrong in ("0", "some", "-3"):
        told = refuse(*audit_with(files, tmp_path / "audit", "--modes", "none", f"--intervals={wrong}"))
        assert f"--intervals must be all, none, or how many confident rows to search at most, got '{wrong}'" in told
    options = ("--modes", "none", "--lattice", "none", "--other-baselines", "none")
    done = run(*audit_with(files, tmp_path / "audit", "--intervals", "5", *options))
    audit = fg.open_audit(tmp_path / "audit")
    assert (
        done.code == 0
        and audit.manifest.blocks["intervals"].rows.most == 5
        and len(audit.ids_of_block("intervals")) == 5
    )
    told = "stability intervals of 20 fields of 5 confident predictions; --intervals all finds every one"
    assert told in " ".join(done.out.split())
    shown = run("show", tmp_path / "audit", "--row", audit.ids_of_block("intervals")[0])
    for sentence in audit.by_id(audit.ids_of_block("intervals")[0]).interval_sentences():
        assert " ".join(sentence.split()) in " ".join(shown.out.split())
    done = run(*audit_with(files, tmp_path / "all", "--intervals", "all", "--engine", "blackbox", *options))
    assert done.code == 0 and f"stability intervals of 20 fields of all {ROWS} predictions" in done.out
    assert fg.open_audit(tmp_path / "all").manifest.blocks["intervals"].engine == "blackbox"
    assert "stability intervals are tried at the values of the catalogue: up to" in " ".join(done.err.split())


def test_the_command_assesses_every_row_or_none(files, tmp_path):
    done = run(*audit_with(files, tmp_path / "all", "--modes", "all"))
    assert done.code == 0 and f"of all {ROWS} predictions" in done.out
    assert fg.open_audit(tmp_path / "all").manifest.blocks["modes"].rows is None
    done = run(*audit_with(files, tmp_path / "none", "--modes", "none"))
    assert done.code == 0 and "failure modes" not in done.out
    assert "modes" not in fg.open_audit(tmp_path / "none").manifest.blocks
    told = refuse("show", tmp_path / "none", "--score", "wrong")
    assert "do not say what the failure mode 'wrong' costs: audit with --modes" in told


def test_a_model_that_can_only_be_asked_announces_its_cost(files, protocol, tmp_path):
    done = run(*audit_with(files, tmp_path / "audit", "--engine", "blackbox", "--other-baselines", "none"))
    from fragility.questions.modes.losses import count_values

    each = sum(count_values(protocol, mode) for mode in ("lost", "wrong", "noisy"))
    assert f"up to {2000 * each:,} model evaluations; --modes none leaves them out" in " ".join(done.err.split())


def test_a_protocol_without_modes_is_audited_without_them(case, files, tmp_path):
    fg.Protocol.fit(case.model, case.X_train, modes=()).save(tmp_path / "plain.json")
    words = [tmp_path / "plain.json" if word == files / "protocol.json" else word for word in audit_with(files, "")]
    words[words.index("")] = tmp_path / "audit"
    assert run(*words).code == 0
    assert "modes" not in fg.open_audit(tmp_path / "audit").manifest.blocks
    assert "declares no failure modes" in refuse(*words, "--overwrite", "--modes", "all")


def test_protocol_show_lists_the_modes(files, protocol):
    done = run("protocol", "show", files / "protocol.json")
    values = sum(len(entry.values) for entry in protocol.modes.catalogue)
    assert "lost, wrong, noisy" in done.out
    assert f"{values} values of {len(protocol.modes.catalogue)} groups" in done.out
    assert "0.3 training standard deviations" in done.out


def test_a_model_that_is_rarely_sure_is_not_judged_by_a_few_rows(files, tmp_path):
    """Where confident begins is declared once, and every later step counts by it."""
    words = ["audit", files / "model.joblib", files / "rows.parquet", "--train", files / "rows.parquet", "--id", "loan"]
    quick = ["--trust", "--lattice", "none", "--modes", "none", "--depth", "2"]
    done = run(*words, *quick, "--min-confidence", "0.999", "--out", tmp_path / "strict")
    told = " ".join(done.out.split())
    assert done.code == 0 and "confident, too few to judge the model by; an audit with a lower limit" in told, done.err
    report = " ".join((tmp_path / "strict" / "report.html").read_text().split())
    assert "are at least 100% confident, too few" in report or "is at least 100% confident, too few" in report
    done = run(*words, *quick, "--min-confidence", "0.6", "--out", tmp_path / "audit")
    audit = fg.open_audit(tmp_path / "audit")
    sure = int((pa.concat_tables(audit.batches(["confidence"])).column("confidence").to_numpy() >= 0.6).sum())
    assert done.code == 0 and audit.protocol.min_confidence == 0.6 and sure >= 30
    assert f"{sure} predictions are at least 60% confident" in done.out and "too few to judge" not in done.out
    assert audit.summary()["confident"].count == sure == fg.Report.of(audit).summary.audits[0].confident.rows
    assert len(audit.baselines) == min(sure, 500) and fg.Gate.derive(audit).min_confidence == 0.6
    assert f"({sure / len(audit):.1%})" in run("report", tmp_path / "audit", tmp_path / "strict").out
    with pytest.raises(ProtocolError, match="min_confidence must be a number of at least 0 and below 1, got 1"):
        replace(audit.protocol, min_confidence=1)
