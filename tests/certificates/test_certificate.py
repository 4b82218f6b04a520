"""Certificates as table and as files: the same bytes again, nothing half-written, nothing silently dropped."""

from __future__ import annotations

import hashlib
import json
import math
import struct
from dataclasses import replace
from html import escape
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pipelines import fitted

from fragility.auditing.pipeline import audit
from fragility.audits import Certificates, Claims, Manifest
from fragility.audits.manifest import CLAIM, manifest_text
from fragility.base.canonical import combine_digests
from fragility.base.errors import CertificateError
from fragility.blocks.claims import claims_of, contradictions, row_digests, table_of
from fragility.evidence.replacements import value_text
from fragility.pages.wording import name_lost_groups
from fragility.protocol import Protocol

PUBLIC = [
    "id", "predicted", "confidence", "margin", "bare_margin", "flip_budget", "flipped", "rcma", "fds",
    "exposure", "independent_loss", "common_loss", "random_loss", "lambda_attenuate_all", "lambda_attenuate_top1",
    "path", "path_margin", "path_predicted", "path_collapse", "fade_margin", "one_step_drop",
    "one_step_confidence_drop", "already_missing", "digest",
]  # fmt: skip


@pytest.fixture(scope="module")
def certs() -> Certificates:
    case = fitted("credit_g", "lightgbm", "transformed")
    return audit(case.model, case.X_test[:40], Protocol.fit(case.model, case.X_train), engine="blackbox")


def bytes_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def part_of(folder: Path, kind: str) -> Path:
    """The one file of a kind in a folder: manifest, protocol or certificates."""
    (found,) = folder.glob(f"{kind}*")
    return found


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
        assert cert.flips_to == (cert.path_predicted[flips[0]] if flips else None)
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
    shown = flipped._repr_html_()
    assert "<pre" not in shown and shown.count("<svg") == 1 and "<script" not in shown
    assert f"flips to &#x27;{flipped.flips_to}&#x27;" in shown and shown.count("<table") == 2


def test_a_sentence_says_what_takes_the_place_of_lost_evidence(certs: Certificates) -> None:
    flipped = next(cert for cert in certs if cert.flipped)
    lost = flipped.path[0]
    frequent = {part.fields[0]: str(part.values[0][0]) for part in certs.protocol.modes.catalogue}
    nominal = {field.name for field in certs.protocol.fields if field.kind == "nominal"}
    behind = f"but without {lost} (→ {frequent[lost] if lost in nominal else 'typical'})"
    assert behind in flipped.sentence() and behind in str(flipped) and escape(behind) in flipped._repr_html_()
    case = fitted("credit_g", "lightgbm", "transformed")
    raw = audit(case.model, case.X_test[:40], Protocol.fit(case.model, case.X_train, space="raw"), engine="blackbox")
    values = {column.name: value_text(column.baseline) for column in raw.protocol.columns}
    flipped = next(cert for cert in raw if cert.flipped)
    lost = flipped.path[0]
    assert f"but without {lost} (→ {values[lost]})" in flipped.sentence()
    assert raw.take([0])[0].sentence() == raw[0].sentence()


def test_groups_say_what_becomes_of_each_field_that_is_there() -> None:
    becomes = {"money": (("income", "5"), ("debt", "0")), "who": (("age", "40"), ("sex", "f"), ("job", "none"))}
    told = name_lost_groups(["money", "who"], becomes, ())
    assert told == ["money (income → 5, debt → 0)", "who"]  # a longer list is left to pages
    assert name_lost_groups(["money"], becomes, ("debt",)) == ["money (income → 5)"]  # what is missing stays missing


def test_positions_and_ids(certs: Certificates) -> None:
    assert certs[-1].id == certs[39].id
    assert certs.by_id(7).id == 7 and certs.by_id("7").id == 7
    with pytest.raises(CertificateError, match=r"no certificate for row 4711"):
        certs.by_id(4711)
    with pytest.raises(IndexError, match=r"position 40 is outside the 40 certificates"):
        certs[40]
    assert [cert.id for cert in certs] == list(range(40))


def test_slices_give_certificates_and_other_things_a_sentence(certs: Certificates) -> None:
    few = certs[5:8]
    assert isinstance(few, Certificates) and [cert.id for cert in few] == [5, 6, 7]
    assert [cert.id for cert in certs[::-10]] == [39, 29, 19, 9] and len(certs[40:]) == 0
    assert certs[np.int64(3)].id == 3 and certs[np.uint8(3)].id == 3
    for junk in ("3", 3.0, None, True, [1, 2], np.array([1, 2])):
        with pytest.raises(TypeError, match=r"certificates are counted by whole numbers or taken by a slice"):
            certs[junk]
    assert [cert.id for cert in certs.take([-1, 0])] == [39, 0]
    with pytest.raises(IndexError, match=r"position 40 is outside the 40 certificates"):
        certs.take([0, 40])
    with pytest.raises(IndexError, match=r"a mask over the 40 certificates has 40 entries, got shape \(2,\)"):
        certs.take([True, False])
    with pytest.raises(TypeError, match=r"whole numbers"):
        certs.take([0.5])


def test_a_notebook_shows_the_most_fragile_and_a_curve(certs: Certificates) -> None:
    shown = certs._repr_html_()
    assert shown.count("<tr") == 1 + len(certs.most_fragile(10)) and "rest on least" in shown
    assert shown.count("<svg") == 1
    assert certs[:0]._repr_html_().count("<table") == 0


def test_there_is_one_summary(certs: Certificates) -> None:
    summary = certs.summary(min_confidence=0.8)
    assert summary.rows == 40 and summary["confident"].count == int((certs.claims.confidence >= 0.8).sum())
    assert summary["mean_fds"].value == pytest.approx(certs.claims.fds.mean())
    assert f"mean FDS {summary['mean_fds'].value:.3f}" in repr(certs)


def test_most_fragile_are_confident_and_sorted(certs: Certificates) -> None:
    confident = int((certs.claims.confidence >= 0.8).sum())
    top = certs.most_fragile(5, min_confidence=0.8)
    assert len(top) == min(5, confident) > 2
    for by in ("exposure", "fds"):
        top = certs.most_fragile(5, min_confidence=0.8, by=by)
        score = [getattr(cert, by) for cert in top]
        assert score == sorted(score, reverse=True) and all(cert.confidence >= 0.8 for cert in top)
        left = [getattr(c, by) for c in certs if c.confidence >= 0.8 and c.id not in {t.id for t in top}]
        assert not left or max(left) <= score[-1]
    assert [c.id for c in certs.most_fragile(5)] == [c.id for c in certs.most_fragile(5, by="exposure")]
    with pytest.raises(CertificateError, match="ranked by one of exposure, fds"):
        certs.most_fragile(5, by="beauty")
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
    manifest = replace(certs.manifest, model=replace(certs.manifest.model, classes=tuple(labels)))
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


MEASURED = {
    "predicted", "confidence", "bare_margin", "flip_budget", "flipped", "thresholds", "path", "path_margin",
    "path_predicted",
    "fade_margin", "one_step_drop", "one_step_confidence_drop", "already_missing",
}  # fmt: skip


def with_change(claims: Claims, name: str) -> Claims:
    """Row 0 with one claim changed by a little more than the format's units."""
    if name == "ids":
        return replace(claims, ids=("x", *claims.ids[1:]))
    values = getattr(claims, name).copy()
    place = (0,) if values.ndim == 1 else (0, 0 if name == "fade_margin" else -1)
    first = values[place]
    if name == "fade_margin" and np.isnan(first):
        first = 0.0
    changed = not first if values.dtype == bool else first + 1 if values.dtype.kind == "i" else first + 2e-6
    values[place] = 0.05 if np.isinf(first) else changed
    return replace(claims, **{name: values})


def test_every_claim_is_in_its_row_digest_or_follows_from_those_that_are(certs: Certificates) -> None:
    claims, context, resolution = certs.claims, b"context", certs.protocol.resolution
    before = row_digests(claims, context, resolution)
    assert len(set(before)) == len(before)
    assert contradictions(claims, certs.protocol) == []
    for name in Claims.__dataclass_fields__:
        other = with_change(claims, name)
        after = row_digests(other, context, resolution)
        assert after[1:] == before[1:], name
        if name in MEASURED | {"ids"}:
            assert after[0] != before[0], name
        else:
            assert (0, name) in contradictions(other, certs.protocol) or name == "margin"
            assert {position for position, _ in contradictions(other, certs.protocol)} == {0}
    assert row_digests(claims, b"another context", resolution)[0] != before[0]


@pytest.mark.parametrize("ids", ["whole numbers", "texts", "both"])
def test_rows_are_hashed_as_the_format_says(certs: Certificates, ids: str, monkeypatch: pytest.MonkeyPatch) -> None:
    claims = certs.claims
    texts = tuple(f"row {i}" for i in range(len(claims)))
    own = {"whole numbers": tuple(range(-3, len(claims) - 3)), "texts": texts, "both": (7, *texts[1:])}[ids]
    claims, context, units = replace(claims, ids=own), bytes(range(32)), certs.protocol.resolution
    digests = row_digests(claims, context, units)
    for i, own_id in enumerate(own):
        text = str(own_id).encode()
        whole = isinstance(own_id, int)
        data = b"i" + struct.pack("<q", own_id) if whole else b"s" + struct.pack("<I", len(text)) + text
        numbers = [claims.predicted[i], np.rint(claims.confidence[i] * 2**20)]
        numbers += [np.rint(claims.bare_margin[i] / units) + 0.0, claims.flip_budget[i], claims.flipped[i]]
        numbers += [math.nan if np.isinf(severity) else severity for severity in claims.thresholds[i]]
        numbers += [*claims.path[i], *(np.rint(claims.path_margin[i] / units) + 0.0), *claims.path_predicted[i]]
        numbers += [math.nan if np.isnan(margin) else np.rint(margin / units) + 0.0 for margin in claims.fade_margin[i]]
        numbers += [*(np.rint(claims.one_step_drop[i] / units) + 0.0)]
        numbers += [*(np.rint(claims.one_step_confidence_drop[i] * 2**20) + 0.0), *claims.already_missing[i]]
        data += struct.pack(f"<{len(numbers)}d", *numbers)
        assert digests[i] == hashlib.sha256(context + data).digest()
    monkeypatch.setattr("fragility.blocks.claims.BLOCK_BYTES", 1500)
    assert row_digests(claims, context, units) == digests


def test_rounding_noise_does_not_reach_the_digest(certs: Certificates) -> None:
    claims, rng = certs.claims, np.random.default_rng(0)
    noisy = {
        name: getattr(claims, name) + rng.uniform(-1e-13, 1e-13, getattr(claims, name).shape)
        for name in ("confidence", "margin", "path_margin", "one_step_drop", "one_step_confidence_drop", "rcma", "fds")
    }
    before = row_digests(claims, b"", certs.protocol.resolution)
    assert row_digests(replace(claims, **noisy), b"", certs.protocol.resolution) == before
    zero = replace(claims, one_step_drop=np.zeros_like(claims.one_step_drop))
    negative = replace(claims, one_step_drop=np.full_like(claims.one_step_drop, -0.0))
    assert row_digests(zero, b"", 1e-6) == row_digests(negative, b"", 1e-6)


@pytest.mark.parametrize("share", [1 / 128, 3 / 256, 0.5 + 1 / 2048, 0.005, 1 / 3])
def test_vote_shares_lie_away_from_the_edges_of_the_rounding(certs: Certificates, share: float) -> None:
    """1 / 128 lies exactly between two multiples of 1e-6, where one bit of noise would decide."""
    one, two = (
        row_digests(replace(certs.claims, confidence=np.full(len(certs), value)), b"", 1e-6)
        for value in (np.nextafter(share, 0.0), np.nextafter(share, 1.0))
    )
    assert one == two


def test_root_digest_ignores_row_order_and_nothing_else(certs: Certificates) -> None:
    order = np.random.default_rng(0).permutation(len(certs))
    assert certs.take(order).manifest.root_digest == certs.manifest.root_digest
    assert certs.take(order[1:]).manifest.root_digest != certs.manifest.root_digest
    raw = [bytes.fromhex(text.removeprefix("sha256:")) for text in certs.table.column("digest").to_pylist()]
    assert combine_digests(raw) == certs.manifest.root_digest


def test_enormous_and_negative_ids_have_digests(certs: Certificates) -> None:
    case = fitted("credit_g", "lightgbm", "transformed")
    for ids in ([-5, 2**62, 0], ["ä", "", "x" * 500]):
        few = audit(case.model, case.X_test[:3], certs.protocol, ids=ids, engine="blackbox")
        assert [cert.id for cert in few] == ids
        assert len({cert.digest for cert in few}) == 3


# --- files ------------------------------------------------------------------------------------------------


def test_saved_loaded_and_saved_again_gives_the_same_bytes(certs: Certificates, tmp_path) -> None:
    certs.save(tmp_path / "one")
    assert [name.split("-")[0] for name in sorted(bytes_of(tmp_path / "one"))] == [
        "certificates",
        "manifest.json",
        "protocol",
    ]
    again = Certificates.load(tmp_path / "one")
    again.save(tmp_path / "two")
    assert bytes_of(tmp_path / "one") == bytes_of(tmp_path / "two")
    assert again.table.equals(certs.table) and again.protocol == certs.protocol
    assert again.manifest.root_digest == certs.manifest.root_digest
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
    assert 0 < manifest["engine"]["evaluations"] < 40 * certs.protocol.states_per_row == 40 * (1 + 20 + 10 + 2 * 10)
    assert {"python", "fragility", "numpy", "lightgbm"} <= set(manifest["versions"])
    assert set(manifest["files"]) == set(bytes_of(tmp_path / "a")) - {"manifest.json"}
    assert manifest["model"]["partial"] == []


def test_unknown_fields_and_columns_are_refused_before_anything_is_written(certs: Certificates, tmp_path) -> None:
    noted = certs.table.append_column("reviewer_note", pa.array(["?"] * len(certs)))
    with pytest.raises(CertificateError, match=r"has a column 'reviewer_note', which the format does not know"):
        Certificates(noted, certs.protocol, certs.manifest).save(tmp_path / "a")
    with pytest.raises(CertificateError, match=r"the manifest has the unknown field 'department'"):
        Manifest.from_dict({**certs.manifest.to_dict(), "department": "retail"})
    assert list(tmp_path.iterdir()) == []


def rewrite_manifest(folder: Path, **changes) -> None:
    document = {**json.loads((folder / "manifest.json").read_text()), **changes}
    (folder / "manifest.json").write_text(manifest_text(document), encoding="utf-8")


def test_another_version_is_refused(certs: Certificates, tmp_path) -> None:
    certs.save(tmp_path / "a")
    for version in ("fragility-certificates/1.7", "fragility-certificates/2", "other/1", None, 3, [], {}):
        rewrite_manifest(tmp_path / "a", format=version)
        with pytest.raises(CertificateError, match=r"this version reads 'fragility-certificates/1'"):
            Certificates.load(tmp_path / "a")


@pytest.mark.parametrize("name", ["certificates", "manifest", "protocol"])
@pytest.mark.parametrize("damage", ["missing", "empty", "truncated", "junk"])
def test_damaged_folders_are_refused_in_words(certs: Certificates, tmp_path, name: str, damage: str) -> None:
    certs.save(tmp_path / "a")
    path = part_of(tmp_path / "a", name)
    data = path.read_bytes()
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes({"empty": b"", "truncated": data[: len(data) // 2], "junk": b"\x00\xff" * 50}[damage])
    with pytest.raises(ValueError, match=r"manifest\.json|protocol-|certificates-") as caught:
        Certificates.load(tmp_path / "a")
    assert type(caught.value).__module__ == "fragility.base.errors"


def test_an_absent_folder_is_refused(tmp_path) -> None:
    with pytest.raises(CertificateError, match=r"is not an audit folder: manifest\.json is missing"):
        Certificates.load(tmp_path / "nothing")


def test_a_table_that_lacks_columns_or_lengths_is_refused(certs: Certificates) -> None:
    lacking = Certificates(certs.table.drop_columns(["margin"]), certs.protocol, certs.manifest)
    with pytest.raises(CertificateError, match=r"lacks the column 'margin'"):
        _ = lacking.claims
    other = Protocol.from_dict({**certs.protocol.to_dict(), "depth": 9})
    with pytest.raises(CertificateError, match=r"'path' .* not have the length the protocol declares, 9"):
        _ = Certificates(certs.table, other, certs.manifest).claims
    wrong = certs.table.set_column(1, "predicted", pa.array(["ugly"] * 40))
    with pytest.raises(CertificateError, match=r"'predicted' names 'ugly', which the manifest does not declare"):
        _ = Certificates(wrong, certs.protocol, certs.manifest).claims
