"""Forgers who know the format and make every digest anew: each is caught, or has changed nothing that is claimed."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pipelines import fitted

from fragility.auditing.pipeline import audit
from fragility.audits import Certificates
from fragility.audits.integrity import check_integrity
from fragility.audits.manifest import manifest_text
from fragility.base.canonical import combine_digests, digest_bytes
from fragility.base.errors import ProtocolError
from fragility.blocks.claims import MEASURED, context_digest, derived_claims, row_digests
from fragility.evidence.rows import input_row_digests
from fragility.protocol import Protocol, bind
from fragility.verification.outcome import Verification
from fragility.verification.verifying import verify

N = 100


@pytest.fixture(scope="module")
def case():
    return fitted("credit_g", "lightgbm", "transformed")


@pytest.fixture(scope="module")
def rows(case) -> pd.DataFrame:
    return case.X_test[:N]


@pytest.fixture(scope="module")
def certs(case, rows) -> Certificates:
    protocol = Protocol.fit(case.model, case.X_train, depth=4, severities=(0.25, 0.5, 1.0))
    return audit(case.model, rows, protocol, engine="blackbox")


@pytest.fixture(scope="module")
def saved(certs, tmp_path_factory) -> Path:
    return certs.save(tmp_path_factory.mktemp("adversary") / "audit")


def forge_folder(folder: Path, table: pa.Table, protocol: bytes, manifest: dict[str, Any]) -> Path:
    """Write any table, protocol text and manifest as a folder whose files and digests all fit each other."""
    folder.mkdir()
    pq.write_table(table, folder / "table")
    (folder / "protocol").write_bytes(protocol)
    names = {}
    for kind, suffix in (("table", "parquet"), ("protocol", "json")):
        digest = digest_bytes((folder / kind).read_bytes())
        stem = "certificates-00000" if kind == "table" else kind
        names[f"{stem}-{digest[7:23]}.{suffix}"] = digest
        (folder / kind).rename(folder / list(names)[-1])
    (folder / "manifest.json").write_text(manifest_text({**manifest, "files": names}), encoding="utf-8")
    return folder


def forge(certs: Certificates, folder: Path, *, table: pa.Table | None = None, **words: Any) -> Path:
    return forge_folder(
        folder,
        certs.table if table is None else table,
        certs.protocol.to_json().encode(),
        {**certs.manifest.to_dict(), **words},
    )


def failed(verification: Verification) -> list[str]:
    return [check.name for check in verification.checks if not check.passed]


def test_a_forged_folder_that_changes_nothing_verifies(certs, case, rows, tmp_path) -> None:
    """What the forgers below are measured against: their tools write an audit that holds if they change nothing."""
    assert verify(forge(certs, tmp_path / "a"), case.model, rows).complete


# --- hidden rows --------------------------------------------------------------------------------------------


def test_a_selection_of_the_robust_is_not_taken_for_the_whole(certs, case, rows, tmp_path) -> None:
    robust = certs.take(np.argsort(certs.claims.fds)[:3])
    result = verify(robust.save(tmp_path / "a"), case.model, rows)
    assert result and not result.complete
    assert (result.rows_audited, result.rows_present, result.rows_given, result.rows_recomputed) == (100, 3, 100, 3)
    assert str(result).splitlines()[-1] == (
        "verified in part: every claim recomputed holds; 3 of 100 audited rows are here, 97 are not checked; "
        "not checked: that the protocol is fitted on training rows"
    )


def test_a_forger_who_says_that_only_three_rows_were_audited(certs, case, rows, tmp_path) -> None:
    """An audit of the three most robust rows is a true one; that the others have no certificate is said."""
    order = np.argsort(certs.claims.fds)[:3]
    part = certs.take(order)
    bound = bind(case.model, rows.iloc[order], certs.protocol)
    manifest = {
        **part.manifest.to_dict(),
        "input": {"digest": combine_digests(input_row_digests(bound.source)), "rows": 3},
        "engine": {
            **asdict(part.manifest.engine),
            "blackbox_rows": 3,
        },
    }
    folder = forge_folder(tmp_path / "a", part.table, certs.protocol.to_json().encode(), manifest)
    result = verify(folder, case.model, rows)
    assert result and not result.complete and "97 of the 100 rows given have no certificate" in result.verdict
    assert verify(folder, case.model, rows.iloc[order]).complete


def test_rows_counted_to_suit_are_found(certs, case, rows, tmp_path) -> None:
    part = certs[:3]
    for i, (present, audited) in enumerate([(3, 3), (100, 100), (3, 2), (3, 99), (2, 100)]):
        words = {
            "rows": present,
            "input": {**asdict(certs.manifest.input), "rows": audited},
            "root_digest": part.manifest.root_digest,
        }
        folder = forge(certs, tmp_path / f"{i}", table=part.table, **words)
        assert not verify(folder, case.model, rows), (present, audited)


def test_reordered_rows_are_the_same_claims_and_repeated_ones_are_found(certs, case, rows, tmp_path) -> None:
    order = np.random.default_rng(0).permutation(N)
    assert verify(forge(certs, tmp_path / "a", table=certs.table.take(pa.array(order))), case.model, rows).complete
    twice = certs.take([0, 0, *range(2, N)])
    assert "names a row twice" in str(verify(twice.save(tmp_path / "b"), case.model, rows))


# --- samples ------------------------------------------------------------------------------------------------


def lying(certs: Certificates, row: int, nudge: float = 0.0) -> Certificates:
    """Row `row` claims to be unshakeable, consistently; `nudge` moves it within what rounding hides or tolerates."""
    c = certs.claims
    margin, drops = c.path_margin.copy(), c.one_step_drop.copy()
    margin[row], drops[row] = margin[row, 0], nudge
    predicted, thresholds = c.path_predicted.copy(), c.thresholds.copy()
    predicted[row], thresholds[row] = predicted[row, 0], np.inf
    fading = c.fade_margin.copy()
    fading[row] = margin[row, 0]
    changed = {
        "path_margin": margin,
        "path_predicted": predicted,
        "thresholds": thresholds,
        "one_step_drop": drops,
        "fade_margin": fading,
        "bare_margin": np.where(np.arange(len(margin)) == row, margin[:, 0], c.bare_margin),
    }
    told = replace(c, **changed)
    follows = derived_claims({name: getattr(told, name) for name in MEASURED}, certs.protocol)
    return Certificates.build(replace(told, **follows), certs.protocol, certs.manifest)


def test_grinding_digests_does_not_dodge_the_sample(certs, case, rows) -> None:
    """A forger tries many digests for the false row; which rows are recomputed does not depend on them."""
    false = int(np.argmax(certs.claims.fds))
    ground = [lying(certs, false, nudge) for nudge in np.arange(40) * 1e-5]
    digests = [forged.table.column("digest")[false].as_py() for forged in ground]
    assert len(set(digests)) == 40
    hidden = ground[int(np.argmax(digests))]  # sorts behind nearly all honest rows
    assert not verify(hidden, case.model, rows)
    caught = [not verify(hidden, case.model, rows, sample=50, seed=seed) for seed in range(12)]
    assert 1 <= sum(caught) <= 11  # half of the rows: about half of the samples
    same = [not verify(ground[0], case.model, rows, sample=50, seed=seed) for seed in range(12)]
    assert same == caught
    told = verify(certs, case.model, rows, sample=50).verdict
    assert "50 of 100 certificates were recomputed, chosen at random" in told
    assert "1 forged (1%) would escape with probability 0.5" in told


# --- tolerance ----------------------------------------------------------------------------------------------


def test_a_resolution_that_would_forgive_anything_is_no_protocol(certs, case, rows, tmp_path) -> None:
    document = {**certs.protocol.to_dict(), "resolution": 3.0}
    with pytest.raises(ProtocolError, match=r"resolution in the protocol must be a number from 1e-09 to 0\.001"):
        Protocol.from_dict(document)
    text = (json.dumps(document, indent=2, ensure_ascii=False) + "\n").encode()
    result = verify(forge_folder(tmp_path / "a", certs.table, text, certs.manifest.to_dict()), case.model, rows)
    assert failed(result) == ["format"] and "from 1e-09 to 0.001 in margin units, got 3.0" in str(result)


@pytest.mark.parametrize("tolerance", [{"margin": 3.0, "probability": 3.0}, {"margin": "1e-06"}, 1e-6, None, {}])
def test_a_tolerance_of_ones_own_is_found(certs, case, rows, tmp_path, tolerance) -> None:
    result = verify(forge(certs, tmp_path / "a", tolerance=tolerance), case.model, rows)
    assert failed(result) == ["format"] and "tolerance" in str(result)


# --- types --------------------------------------------------------------------------------------------------


def cast(name: str, type_: pa.DataType, change: Callable[[Any], Any] = lambda value: value):
    def forged(table: pa.Table) -> pa.Table:
        values = [change(value) for value in table.column(name).to_pylist()]
        return table.set_column(table.column_names.index(name), name, pa.array(values, type=type_))

    return forged


def at_row_3(name: str, value: Any):
    def forged(table: pa.Table) -> pa.Table:
        values = table.column(name).to_pylist()
        values[3] = value(values[3]) if callable(value) else value
        column = pa.array(values, type=table.schema.field(name).type)
        return table.set_column(table.column_names.index(name), name, column)

    return forged


def noted_field(table: pa.Table) -> pa.Table:
    field = table.schema.field("fds").with_metadata({"note": "a proof of robustness"})
    return table.set_column(table.column_names.index("fds"), field, table.column("fds"))


TYPES: dict[str, tuple[Callable[[pa.Table], pa.Table], str]] = {
    "flip budget + 0.99": (cast("flip_budget", pa.float64(), lambda k: k + 0.99), "'flip_budget' .* type double"),
    "flip budget wider": (cast("flip_budget", pa.int64()), "'flip_budget' .* type int64, not int32"),
    "flip budget beyond": (at_row_3("flip_budget", 6), "flip_budget of row 3"),
    "flip budget 0": (at_row_3("flip_budget", 0), "flip_budget of row 3"),
    "flipped as text": (cast("flipped", pa.string(), str), "'flipped' .* type string, not bool"),
    "flipped as number": (cast("flipped", pa.int8(), int), "'flipped' .* type int8, not bool"),
    "flipped turned": (at_row_3("flipped", lambda value: not value), "flipped of row 3"),
    "confidence as text": (cast("confidence", pa.string(), str), "'confidence' .* type string, not double"),
    "confidence in float32": (cast("confidence", pa.float32()), "'confidence' .* type float"),
    "confidence above 1": (at_row_3("confidence", 1.5), "confidence of row 3"),
    "confidence below 0": (at_row_3("confidence", -0.5), "confidence of row 3"),
    "labels as dictionary": (cast("predicted", pa.dictionary(pa.int32(), pa.string())), "'predicted' .* dictionary"),
    "class unknown": (at_row_3("predicted", "ugly"), "names 'ugly', which the manifest does not declare"),
    "id as float": (cast("id", pa.float64()), "'id' .* type double, not int64 or string"),
    "id null": (at_row_3("id", None), "'id' .* holds 1 nulls"),
    "null margin": (at_row_3("margin", None), "'margin' .* holds 1 nulls"),
    "NaN margin": (at_row_3("margin", float("nan")), "'margin' .* holds NaN"),
    "infinite fds": (at_row_3("fds", float("inf")), "'fds' .* holds NaN or an infinity"),
    "null list": (at_row_3("path", None), "'path' .* holds 1 nulls"),
    "null in a list": (at_row_3("path_margin", lambda v: [*v[:-1], None]), "'path_margin' .* holds 1 nulls"),
    "short list": (at_row_3("path_margin", lambda v: v[:-1]), "'path_margin' .* does not have the length"),
    "group twice": (at_row_3("path", lambda v: [v[0], v[0], *v[2:]]), "path of row 3"),
    "group unknown": (at_row_3("path", lambda v: ["horoscope", *v[1:]]), "names 'horoscope'"),
    "threshold off the grid": (at_row_3("lambda_attenuate_all", 0.3), "thresholds of row 3"),
    "threshold NaN": (at_row_3("lambda_attenuate_all", float("nan")), "'lambda_attenuate_all' .* holds NaN"),
    "margins that begin elsewhere": (at_row_3("path_margin", lambda v: [9.0, *v[1:]]), "path_margin of row 3"),
    "a class that begins elsewhere": (at_row_3("predicted", lambda v: {"good": "bad"}.get(v, "good")), "of row 3"),
    "fds to suit": (at_row_3("fds", 0.01), "fds of row 3"),
    "rcma to suit": (at_row_3("rcma", 0.01), "rcma of row 3"),
    "collapse to suit": (at_row_3("path_collapse", lambda v: [0.0, *(0.5 for _ in v[1:])]), "path_collapse of row 3"),
    "extra column": (lambda t: t.append_column("certified", pa.array(["robust"] * N)), "column 'certified', which"),
    "column twice": (
        lambda t: t.append_column("fds", t.column("fds")),
        "cannot read .* the column 'fds' twice",
    ),
    "missing digest": (lambda t: t.drop_columns(["digest"]), "lacks the column 'digest'"),
    "missing column": (lambda t: t.drop_columns(["margin"]), "lacks the column 'margin'"),
    "reordered columns": (lambda t: t.select(t.column_names[::-1]), "not in the order of the format"),
    "notes on the table": (lambda t: t.replace_schema_metadata({"note": "a proof"}), "carries notes of its own"),
    "notes on a column": (noted_field, "'fds' .* with notes"),
    "no rows": (lambda t: t.slice(0, 0), "declares 100 rows, the table has 0"),
    "no columns": (lambda t: t.select([]), "lacks the column 'id'"),
}


@pytest.mark.parametrize("what", TYPES)
def test_swapped_types_and_impossible_values_are_found(certs, case, rows, tmp_path, what: str) -> None:
    change, told = TYPES[what]
    folder = forge(certs, tmp_path / "a", table=redigested(certs, change(certs.table)))
    result = verify(folder, case.model, rows, sample=1)
    assert failed(result) == ["format"], str(result)
    assert re.search(told, str(result)), str(result)


def redigested(certs: Certificates, table: pa.Table) -> pa.Table:
    """The table with digests made anew where its claims can be read at all."""
    try:
        claims = Certificates(table, certs.protocol, certs.manifest).claims
    except ValueError:
        return table
    model = certs.manifest.model
    context = context_digest(certs.protocol.digest, model.fingerprint, model.classes)
    digests = [f"sha256:{digest.hex()}" for digest in row_digests(claims, context, certs.protocol.resolution)]
    return table.set_column(table.column_names.index("digest"), "digest", pa.array(digests, type=pa.string()))


# --- words --------------------------------------------------------------------------------------------------


def inside(part: str, **words: Any):
    return lambda manifest: {part: {**manifest[part], **words}}


WORDS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "limits": lambda m: {"limits": "A proof of robustness."},
    "claim": lambda m: {"claim": "robustness_proof"},
    "kind": inside("model", kind="LogisticRegression"),
    "probabilities": inside("model", probabilities="calibrated by an expert"),
    "partial": inside("model", partial=["nothing"]),
    "partial as text": inside("model", partial="nothing"),
    "classes turned": inside("model", classes=["good", "bad"]),
    "other classes": inside("model", classes=["reject", "accept"]),
    "classes of two types": inside("model", classes=["bad", 1]),
    "one class": inside("model", classes=["bad"]),
    "a class twice": inside("model", classes=["bad", "bad"]),
    "fingerprint": inside("model", fingerprint="sha256:" + "0" * 64),
    "word in the model": inside("model", certified="yes"),
    "engine": inside("engine", name="oracle"),
    "engine auto": inside("engine", name="auto"),
    "evaluations": inside("engine", evaluations="many"),
    "negative evaluations": inside("engine", evaluations=-1),
    "evaluations as float": inside("engine", evaluations=10.0),
    "evaluations as bool": inside("engine", evaluations=True),
    "evaluations beyond": inside("engine", evaluations=10**300),
    "versions": lambda m: {"versions": ["numpy 2"]},
    "version in words": lambda m: {"versions": {**m["versions"], "numpy": "the best there is"}},
    "version of a number": lambda m: {"versions": {**m["versions"], "numpy": 2}},
    "version of a thing": lambda m: {"versions": {**m["versions"], "proof": "1.0"}},
    "input digest": inside("input", digest="sha256:" + "1" * 64),
    "protocol digest": lambda m: {"protocol_digest": "sha256:" + "1" * 64},
    "root digest": lambda m: {"root_digest": "sha256:" + "1" * 64},
    "rows as text": lambda m: {"rows": "100"},
    "rows as float": lambda m: {"rows": 100.0},
    "unknown field": lambda m: {"certified_by": "a person of trust"},
    "model null": lambda m: {"model": None},
    "input list": lambda m: {"input": [1, 2]},
    "engine text": lambda m: {"engine": "trees"},
    "nested": lambda m: {"versions": {"numpy": {"a": {"b": {}}}}},
}


@pytest.mark.parametrize("what", WORDS)
def test_changed_words_are_found(certs, case, rows, tmp_path, what: str) -> None:
    result = verify(forge(certs, tmp_path / "a", **WORDS[what](certs.manifest.to_dict())), case.model, rows, sample=1)
    assert not result, what
    assert str(result).splitlines()[-1].startswith("NOT verified: ")
    assert "malformed" not in str(result), "an error nobody foresaw"


@pytest.mark.parametrize("files", [None, [], {}, "certificates", {"../x.parquet": "sha256:" + "0" * 64}, {"a": 1}])
def test_files_that_are_none_are_found(certs, case, rows, saved, tmp_path, files) -> None:
    folder = Path(shutil.copytree(saved, tmp_path / "a"))
    document = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(manifest_text({**document, "files": files}))
    result = verify(folder, case.model, rows)
    assert failed(result) == ["format"] and re.search(r"files(\.a)? in the manifest", str(result))


def test_fields_in_another_order_or_left_out_are_found(certs, case, rows, saved, tmp_path) -> None:
    document = json.loads((saved / "manifest.json").read_text())
    folder = Path(shutil.copytree(saved, tmp_path / "a"))
    for key in document:
        fewer = {name: value for name, value in document.items() if name != key}
        (folder / "manifest.json").write_text(manifest_text(fewer))
        assert not verify(folder, case.model, rows, sample=1) or key == "manifest_digest", key
    turned = dict(reversed(document.items()))
    (folder / "manifest.json").write_text(manifest_text(turned))
    assert "not in the order of the format" in str(verify(folder, case.model, rows, sample=1))


def test_classes_under_other_names_are_found(certs, case, rows, tmp_path) -> None:
    """Table and manifest say the same, with every digest anew; the model says otherwise."""
    manifest = replace(certs.manifest, model=replace(certs.manifest.model, classes=("good", "bad")))
    swapped = Certificates.build(certs.claims, certs.protocol, manifest)
    assert "model" in failed(verify(swapped.save(tmp_path / "a"), case.model, rows, sample=1))


def protocol_with(certs: Certificates, **words: Any) -> dict[str, Any]:
    return {**certs.protocol.to_dict(), **words}


def zeroed(document: dict[str, Any], value: Any) -> dict[str, Any]:
    return {**document, "columns": [{**column, "baseline": value} for column in document["columns"]]}


PROTOCOLS: dict[str, Callable[[Certificates], dict[str, Any]]] = {
    "zero, but values": lambda c: zeroed({**c.protocol.to_dict(), "baseline": "zero"}, 1.5),
    "missing, but values": lambda c: protocol_with(c, baseline="missing"),
    "mean, but none": lambda c: zeroed(c.protocol.to_dict(), None),
    "a baseline nobody knows": lambda c: protocol_with(c, baseline="conservative"),
    "a grouping nobody knows": lambda c: protocol_with(c, grouping="by an expert"),
    "groups renamed": lambda c: protocol_with(
        c, groups=[{**g, "name": f"g{i}"} for i, g in enumerate(c.protocol.to_dict()["groups"])]
    ),
    "raw, but columns are not fields": lambda c: protocol_with(c, space="raw"),
    "unknown field": lambda c: protocol_with(c, approved="yes"),
    "number as text": lambda c: protocol_with(c, resolution="1e-06"),
    "weights as text": lambda c: protocol_with(c, weights=["0.3", "0.3", "0.4"]),
    "numbers as booleans": lambda c: protocol_with(c, severities=[0.25, 0.5, True]),
    "a huge number": lambda c: protocol_with(c, resolution=10**400),
    "depth as float": lambda c: protocol_with(c, depth=4.0),
    "training rows in words": lambda c: protocol_with(c, training_rows="a million"),
    "a baseline that is none": lambda c: zeroed(protocol_with(c, baseline="explicit"), {"a": 1}),
    "columns null": lambda c: protocol_with(c, columns=None),
    "groups of nothing": lambda c: protocol_with(c, groups=[None]),
}


@pytest.mark.parametrize("what", PROTOCOLS)
def test_protocols_whose_words_do_not_fit_are_found(certs, case, rows, tmp_path, what: str) -> None:
    """The forger names the protocol's new digest, and makes the rows' digests anew for it."""
    document = PROTOCOLS[what](certs)
    text = (json.dumps(document, indent=2, ensure_ascii=False) + "\n").encode()
    table, words = certs.table, certs.manifest.to_dict()
    try:
        protocol = Protocol.from_dict(document)
        own = Certificates.build(certs.claims, protocol, replace(certs.manifest, protocol_digest=protocol.digest))
        table, words = own.table, own.manifest.to_dict()
    except ValueError:
        pass  # no reader will take it; the folder is written all the same
    result = verify(forge_folder(tmp_path / "a", table, text, words), case.model, rows, sample=1)
    assert failed(result) == ["format"], str(result)
    assert "malformed: " not in str(result) or "the protocol is malformed" in str(result)


# --- chance -------------------------------------------------------------------------------------------------


def flip_bytes(saved: Path, folder: Path, times: int, seed: int) -> None:
    """Change one byte of one file at a time, and see that the folder no longer passes."""
    rng = np.random.default_rng(seed)
    originals = {path: path.read_bytes() for path in sorted(Path(shutil.copytree(saved, folder)).iterdir())}
    assert len(originals) == 3 and all(check.passed for check in check_integrity(folder))
    for turn in range(times):
        path = list(originals)[turn % 3]
        data = bytearray(originals[path])
        place = int(rng.integers(len(data)))
        data[place] ^= int(rng.integers(1, 256))
        path.write_bytes(bytes(data))
        assert not all(check.passed for check in check_integrity(folder)), (path.name, place)
        path.write_bytes(originals[path])


def test_no_changed_byte_passes(saved, tmp_path) -> None:
    flip_bytes(saved, tmp_path / "a", 200, seed=1)


@pytest.mark.slow
def test_no_changed_byte_in_ten_thousand_passes(saved, tmp_path) -> None:
    flip_bytes(saved, tmp_path / "a", 10_000, seed=2)


def test_a_changed_byte_fails_the_whole_verification(saved, case, rows, tmp_path) -> None:
    folder = Path(shutil.copytree(saved, tmp_path / "a"))
    for path in sorted(folder.iterdir()):
        data = path.read_bytes()
        path.write_bytes(data[:50] + bytes([data[50] ^ 1]) + data[51:])
        assert failed(verify(folder, case.model, rows)) == ["format"]
        path.write_bytes(data)
