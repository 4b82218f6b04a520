"""Certificates as table and as files: the same bytes again, nothing half-written, nothing silently dropped."""

from __future__ import annotations

import json
import math
import os
import resource
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pipelines import fitted

from fragility.audit import audit
from fragility.canonical import combine_digests
from fragility.certificates import CLAIM, Certificates, Claims, claims_of, manifest_text, row_digests, table_of
from fragility.errors import CertificateError
from fragility.protocol import Protocol

FILES = {"certificates.parquet", "manifest.json", "protocol.json"}
PUBLIC = [
    "id", "predicted", "confidence", "margin", "flip_budget", "flipped", "rcma", "fds",
    "lambda_attenuate_all", "lambda_attenuate_top1",
    "path", "path_margin", "path_predicted", "path_collapse", "one_step_drop", "digest",
]  # fmt: skip


@pytest.fixture(scope="module")
def certs() -> Certificates:
    case = fitted("credit_g", "lightgbm", "transformed")
    return audit(case.model, case.X_test[:40], Protocol.fit(case.model, case.X_train), engine="blackbox")


def bytes_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


# --- the table --------------------------------------------------------------------------------------------


def test_columns_have_the_names_documents_rely_on(certs: Certificates) -> None:
    pandas = certs.to_pandas()
    assert list(pandas.columns) == PUBLIC
    assert len(pandas) == len(certs) == 40
    polars = pytest.importorskip("polars")
    table = certs.to_polars()
    assert isinstance(table, polars.DataFrame) and table.columns == PUBLIC
    assert set(PUBLIC) <= set(certs.to_arrow().column_names)


def test_rows_say_what_the_claims_say(certs: Certificates) -> None:
    pandas, claims = certs.to_pandas(), certs.claims
    groups, classes = certs.protocol.group_names, certs.classes
    k = certs.protocol.depth
    for i, row in pandas.iterrows():
        assert row["predicted"] == classes[claims.predicted[i]]
        assert list(row["path"]) == [groups[g] for g in claims.path[i]] and len(row["path"]) == k
        assert list(row["path_predicted"]) == [classes[c] for c in claims.path_predicted[i]]
        assert len(row["path_margin"]) == len(row["path_collapse"]) == len(row["path_predicted"]) == k + 1
        assert row["path_collapse"][0] == 0.0 and row["path_margin"][0] == row["margin"]
        assert len(row["one_step_drop"]) == len(groups)
        for j, operator in enumerate(certs.protocol.operators):
            stored = row[f"lambda_{operator}"]
            assert (math.isinf(claims.thresholds[i, j]) and np.isnan(stored)) or stored == claims.thresholds[i, j]
    nulls = certs.to_arrow().column("lambda_attenuate_top1").null_count
    assert nulls == int(np.isinf(claims.thresholds[:, 1]).sum()) > 0


def test_budget_is_the_first_flip_of_the_path(certs: Certificates) -> None:
    for cert in certs:
        flips = [k for k, label in enumerate(cert.path_predicted) if label != cert.predicted]
        assert cert.flipped is bool(flips)
        assert cert.flip_budget == (flips[0] if flips else certs.protocol.depth + 1)
        assert cert.failing_groups == (cert.path[: flips[0]] if flips else ())
        assert cert.turns_to == (cert.path_predicted[flips[0]] if flips else None)
        assert 0.0 <= cert.rcma <= 1.0 and 0.0 <= cert.fds < 1.0


def test_one_certificate_reads_as_a_story(certs: Certificates) -> None:
    flipped = next(cert for cert in certs if cert.flipped)
    text = str(flipped)
    assert text == repr(flipped)
    for name in flipped.path:
        assert f"- {name}" in text
    assert text.count("<- flips") == 1
    assert f"k* = {flipped.flip_budget}" in text and f"RCMA = {flipped.rcma:.3f}" in text
    assert flipped.sentence().startswith(f"{flipped.predicted!r} at ") and "but without" in flipped.sentence()
    assert flipped.failing_groups[-1] in flipped.sentence()
    holds = next(cert for cert in certs if not cert.flipped)
    assert "<- flips" not in str(holds) and "(no flip)" in str(holds)
    assert "<pre>" in flipped._repr_html_() and "<script" not in flipped._repr_html_()


def test_positions_and_ids(certs: Certificates) -> None:
    assert certs[-1].id == certs[39].id
    assert certs.by_id(7).id == 7 and certs.by_id("7").id == 7
    with pytest.raises(CertificateError, match=r"no certificate for row 4711"):
        certs.by_id(4711)
    with pytest.raises(IndexError, match=r"position 40 is outside the 40 certificates"):
        certs[40]
    assert [cert.id for cert in certs] == list(range(40))


def test_most_fragile_are_confident_and_sorted(certs: Certificates) -> None:
    confident = int((certs.claims.confidence >= 0.8).sum())
    top = certs.most_fragile(5, min_confidence=0.8)
    assert len(top) == min(5, confident) > 2
    fds = [cert.fds for cert in top]
    assert fds == sorted(fds, reverse=True) and all(cert.confidence >= 0.8 for cert in top)
    left = [c.fds for c in certs if c.confidence >= 0.8 and c.id not in {t.id for t in top}]
    assert not left or max(left) <= fds[-1]
    assert len(certs.most_fragile(10, min_confidence=1.1)) == 0
    assert [c.digest for c in top] == [certs.by_id(c.id).digest for c in top]


def test_a_mask_selects_where_it_is_true(certs: Certificates) -> None:
    mask = certs.claims.flipped
    assert [c.id for c in certs.take(mask)] == np.flatnonzero(mask).tolist()
    assert [c.id for c in certs.take(mask.tolist())] == np.flatnonzero(mask).tolist()
    assert len(certs.take([])) == 0


def test_an_empty_selection_can_be_shown_and_saved(certs: Certificates, tmp_path) -> None:
    none = certs.most_fragile(10, min_confidence=1.1)
    assert "0 certificates" in repr(none) and none.to_pandas().shape == (0, len(PUBLIC))
    none.save(tmp_path / "none")
    assert len(Certificates.load(tmp_path / "none")) == 0


@pytest.mark.parametrize("labels", [["a", "b"], [0, 1], [False, True], [0.5, 1.5]])
def test_class_labels_of_every_kind_survive_the_file(certs: Certificates, labels, tmp_path) -> None:
    manifest = {**certs.manifest, "model": {**certs.manifest["model"], "classes": labels}}
    relabelled = Certificates.build(certs.claims, certs.protocol, manifest)
    relabelled.save(tmp_path / "a")
    again = Certificates.load(tmp_path / "a")
    assert list(again.classes) == labels
    np.testing.assert_array_equal(again.claims.predicted, certs.claims.predicted)
    assert again[0].predicted in labels and type(again[0].predicted) is type(labels[0])


def test_table_and_claims_are_inverses(certs: Certificates) -> None:
    claims = certs.claims
    digests = [bytes.fromhex(text.removeprefix("sha256:")) for text in certs.table.column("digest").to_pylist()]
    table = table_of(claims, digests, certs.protocol, certs.classes)
    assert table.equals(certs.table)
    again = claims_of(table, certs.protocol, certs.classes)
    for name in Claims.__dataclass_fields__:
        np.testing.assert_array_equal(getattr(again, name), getattr(claims, name), err_msg=name)


# --- digests ----------------------------------------------------------------------------------------------


def test_every_claim_is_in_its_row_digest(certs: Certificates) -> None:
    claims, context = certs.claims, b"context"
    before = row_digests(claims, context)
    assert len(set(before)) == len(before)
    for name in Claims.__dataclass_fields__:
        if name == "ids":
            other = {"ids": ("x", *claims.ids[1:])}
        else:
            values = getattr(claims, name).copy()
            first = values[0] if values.ndim == 1 else values[0, -1]
            changed = not first if values.dtype == bool else first + 1 if values.dtype.kind == "i" else None
            if changed is None:
                changed = 0.05 if np.isinf(first) else np.nextafter(first, np.inf)
            values[(0,) if values.ndim == 1 else (0, -1)] = changed
            other = {name: values}
        after = row_digests(
            Claims(**{**{f: getattr(claims, f) for f in Claims.__dataclass_fields__}, **other}), context
        )
        assert after[0] != before[0], name
        assert after[1:] == before[1:], name
    assert row_digests(claims, b"another context")[0] != before[0]


def test_root_digest_ignores_row_order_and_nothing_else(certs: Certificates) -> None:
    order = np.random.default_rng(0).permutation(len(certs))
    assert certs.take(order).manifest["root_digest"] == certs.manifest["root_digest"]
    assert certs.take(order[1:]).manifest["root_digest"] != certs.manifest["root_digest"]
    raw = [bytes.fromhex(text.removeprefix("sha256:")) for text in certs.table.column("digest").to_pylist()]
    assert combine_digests(raw) == certs.manifest["root_digest"]


def test_enormous_and_negative_ids_have_digests(certs: Certificates) -> None:
    case = fitted("credit_g", "lightgbm", "transformed")
    for ids in ([-5, 2**62, 0], ["ä", "", "x" * 500]):
        few = audit(case.model, case.X_test[:3], certs.protocol, ids=ids, engine="blackbox")
        assert [cert.id for cert in few] == ids
        assert len({cert.digest for cert in few}) == 3


# --- files ------------------------------------------------------------------------------------------------


def test_saved_loaded_and_saved_again_gives_the_same_bytes(certs: Certificates, tmp_path) -> None:
    certs.save(tmp_path / "one")
    assert set(bytes_of(tmp_path / "one")) == FILES
    again = Certificates.load(tmp_path / "one")
    again.save(tmp_path / "two")
    assert bytes_of(tmp_path / "one") == bytes_of(tmp_path / "two")
    assert again.table.equals(certs.table) and again.protocol == certs.protocol
    assert again.manifest["root_digest"] == certs.manifest["root_digest"]
    again.save(tmp_path / "one")  # over itself
    assert bytes_of(tmp_path / "one") == bytes_of(tmp_path / "two")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["one", "two"]


@settings(max_examples=10, deadline=None)
@given(st.lists(st.integers(0, 39), unique=True, min_size=1, max_size=40))
def test_any_selection_survives_the_files(certs: Certificates, tmp_path_factory, positions: list[int]) -> None:
    folder = tmp_path_factory.mktemp("selection")
    part = certs.take(positions)
    part.save(folder / "a")
    again = Certificates.load(folder / "a")
    again.save(folder / "b")
    assert bytes_of(folder / "a") == bytes_of(folder / "b")
    assert [c.digest for c in again] == [certs[i].digest for i in positions]


def test_the_manifest_states_claim_limits_and_cost(certs: Certificates, tmp_path) -> None:
    certs.save(tmp_path / "a")
    manifest = json.loads((tmp_path / "a" / "manifest.json").read_text())
    assert manifest["format"] == "fragility-certificates/1" and manifest["claim"] == CLAIM == "fragility_witness"
    assert "not a proof of robustness" in manifest["limits"] and "upper bound" in manifest["limits"]
    assert manifest["protocol_digest"] == certs.protocol.digest and manifest["rows"] == 40
    assert manifest["training_digest"] == certs.protocol.training_digest
    assert manifest["engine"]["paper_evaluations"] == 40 * (1 + 20 + 10 + 2 * 10)
    assert 0 < manifest["engine"]["evaluations"] < manifest["engine"]["paper_evaluations"]
    assert {"python", "fragility", "numpy", "lightgbm"} <= set(manifest["versions"])
    assert set(manifest["files"]) == FILES - {"manifest.json"}


def test_unknown_fields_and_columns_are_kept(certs: Certificates, tmp_path) -> None:
    noted = Certificates(
        certs.table.append_column("reviewer_note", pa.array(["?"] * len(certs))),
        certs.protocol,
        {**certs.manifest, "department": {"name": "retail", "quota": 0.05}},
    )
    noted.save(tmp_path / "a")
    again = Certificates.load(tmp_path / "a")
    assert again.manifest["department"] == {"name": "retail", "quota": 0.05}
    assert "reviewer_note" in again.to_arrow().column_names
    again.save(tmp_path / "b")
    assert bytes_of(tmp_path / "a") == bytes_of(tmp_path / "b")


def rewrite_manifest(folder: Path, **changes) -> None:
    document = {**json.loads((folder / "manifest.json").read_text()), **changes}
    (folder / "manifest.json").write_text(manifest_text(document), encoding="utf-8")


def test_a_newer_major_version_is_refused_and_a_minor_one_read(certs: Certificates, tmp_path) -> None:
    certs.save(tmp_path / "a")
    rewrite_manifest(tmp_path / "a", format="fragility-certificates/1.7")
    assert len(Certificates.load(tmp_path / "a")) == 40
    for version in ("fragility-certificates/2", "fragility-certificates/10", "other/1", None, 3):
        rewrite_manifest(tmp_path / "a", format=version)
        with pytest.raises(CertificateError, match=r"this version reads 'fragility-certificates/1'"):
            Certificates.load(tmp_path / "a")


@pytest.mark.parametrize("name", sorted(FILES))
@pytest.mark.parametrize("damage", ["missing", "empty", "truncated", "junk"])
def test_damaged_folders_are_refused_in_words(certs: Certificates, tmp_path, name: str, damage: str) -> None:
    certs.save(tmp_path / "a")
    path = tmp_path / "a" / name
    data = path.read_bytes()
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes({"empty": b"", "truncated": data[: len(data) // 2], "junk": b"\x00\xff" * 50}[damage])
    with pytest.raises(ValueError, match=r"manifest\.json|protocol|certificates\.parquet") as caught:
        Certificates.load(tmp_path / "a")
    assert type(caught.value).__module__ == "fragility.errors"


def test_an_absent_folder_is_refused(tmp_path) -> None:
    with pytest.raises(CertificateError, match=r"is not an audit folder: manifest\.json is missing"):
        Certificates.load(tmp_path / "nothing")


def test_a_table_that_lacks_columns_or_lengths_is_refused(certs: Certificates) -> None:
    lacking = Certificates(certs.table.drop_columns(["margin"]), certs.protocol, certs.manifest)
    with pytest.raises(CertificateError, match=r"lacks the column 'margin'"):
        _ = lacking.claims
    other = Protocol.from_dict({**certs.protocol.to_dict(), "depth": 9})
    with pytest.raises(CertificateError, match=r"'path' .* does not have the length the protocol declares"):
        _ = Certificates(certs.table, other, certs.manifest).claims
    wrong = certs.table.set_column(1, "predicted", pa.array(["ugly"] * 40))
    with pytest.raises(CertificateError, match=r"'predicted' names 'ugly', which the manifest does not declare"):
        _ = Certificates(wrong, certs.protocol, certs.manifest).claims


def test_only_audit_folders_are_replaced(certs: Certificates, tmp_path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "thesis.txt").write_text("do not lose me")
    with pytest.raises(CertificateError, match=r"notes exists and is not an audit folder; choose another name"):
        certs.save(tmp_path / "notes")
    assert (tmp_path / "notes" / "thesis.txt").read_text() == "do not lose me"
    (tmp_path / "file").write_text("x")
    with pytest.raises(CertificateError, match=r"file exists and is not an audit folder"):
        certs.save(tmp_path / "file")
    with pytest.raises(CertificateError, match=r"cannot write the certificates to"):
        certs.save(tmp_path / "file" / "below")
    (tmp_path / "empty").mkdir()
    certs.save(tmp_path / "empty")
    certs.save(tmp_path / "deep" / "er" / "audit")
    assert len(Certificates.load(tmp_path / "deep" / "er" / "audit")) == 40


def test_a_failing_disk_leaves_nothing_and_keeps_the_old(certs: Certificates, tmp_path, monkeypatch) -> None:
    few = certs.take([0, 1])
    few.save(tmp_path / "a")
    before = bytes_of(tmp_path / "a")

    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pq, "write_table", full)
    for target in ("a", "new"):
        with pytest.raises(CertificateError, match=r"cannot write the certificates to .*No space left on device"):
            certs.save(tmp_path / target)
    assert bytes_of(tmp_path / "a") == before
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


def test_a_file_size_limit_leaves_nothing(certs: Certificates, tmp_path) -> None:
    """The operating system itself refuses to write more: what a full disk does."""
    few = certs.take([0])
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    old = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, hard))
    try:
        with pytest.raises(CertificateError, match=r"cannot write the certificates to"):
            few.save(tmp_path / "a")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, old)
    assert list(tmp_path.iterdir()) == []


def test_an_interrupt_leaves_nothing_half_written(certs: Certificates, tmp_path, monkeypatch) -> None:
    def interrupted(self, folder):
        (folder / "certificates.parquet").write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(Certificates, "_write_into", interrupted)
    with pytest.raises(KeyboardInterrupt):
        certs.save(tmp_path / "a")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.name != "posix", reason="kills a process")
def test_a_killed_run_leaves_no_folder_that_looks_finished(certs: Certificates, tmp_path) -> None:
    certs.save(tmp_path / "source")
    script = textwrap.dedent(
        """
        import os, signal, sys
        import pyarrow.parquet as pq
        from fragility.certificates import Certificates
        certs = Certificates.load(sys.argv[1])
        original = pq.write_table
        def dying(table, where, **options):
            original(table, where, **options)
            os.kill(os.getpid(), signal.SIGKILL)
        pq.write_table = dying
        certs.save(sys.argv[2])
        """
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "source"), str(tmp_path / "target")], timeout=120
    )
    assert done.returncode == -signal.SIGKILL
    assert not (tmp_path / "target").exists()
    certs.save(tmp_path / "target")  # and the name is free for the next try
    assert len(Certificates.load(tmp_path / "target")) == 40
