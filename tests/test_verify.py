"""verify: what holds is confirmed, and whatever is changed is found, whoever recomputed the digests."""

from __future__ import annotations

import copy
import json
import math
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pipelines import fitted
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import fragility as fg
from fragility.auditing.pipeline import audit
from fragility.audits import Certificates, Claims
from fragility.audits.manifest import manifest_text
from fragility.base.errors import VerificationError
from fragility.blocks.claims import MEASURED, derived_claims
from fragility.models import Model
from fragility.protocol import Protocol
from fragility.verification.training import find_difference
from fragility.verification.verifying import _choose_rows, verify

N = 12


@pytest.fixture(scope="module")
def case():
    return fitted("credit_g", "lightgbm", "transformed")


@pytest.fixture(scope="module")
def certs(case) -> Certificates:
    protocol = Protocol.fit(case.model, case.X_train, depth=4, severities=(0.25, 0.5, 1.0))
    return audit(case.model, case.X_test[:N], protocol, engine="blackbox")


@pytest.fixture(scope="module")
def saved(certs, tmp_path_factory) -> Path:
    return certs.save(tmp_path_factory.mktemp("verify") / "audit")


@pytest.fixture
def folder(saved, tmp_path) -> Path:
    """A copy that a test may damage."""
    return Path(shutil.copytree(saved, tmp_path / "audit"))


def part_of(folder: Path, kind: str) -> Path:
    """The one file of a kind in a folder: manifest, protocol or certificates."""
    (found,) = folder.glob(f"{kind}*")
    return found


def failed(verification) -> list[str]:
    return [check.name for check in verification.checks if not check.passed]


# --- what holds -------------------------------------------------------------------------------------------


@pytest.mark.samples
@pytest.mark.parametrize("space", ["transformed", "raw"])
@pytest.mark.parametrize("reading", ["support", "current", "support_unbounded"])
@pytest.mark.parametrize("family", ["logistic", "lightgbm", "xgboost", "mlp"])
def test_what_was_audited_is_verified(family: str, reading: str, space: str, tmp_path) -> None:
    own = fitted("credit_g", family, space)
    protocol = Protocol.fit(own.model, own.X_train, space=space, reading=reading, depth=5)
    certificates = audit(own.model, own.X_test[:6], protocol)
    certificates.save(tmp_path / "a")
    result = verify(tmp_path / "a", own.model, own.X_test[:6])
    assert result, str(result)
    assert [check.name for check in result.checks] == [
        "format",
        "digests",
        "protocol",
        "model",
        "input",
        "recomputation",
        *(["lattice"] if certificates.lattice is not None else []),
    ]
    told = (
        "verified: every claim of all 6 certificates holds; not checked: that the protocol is fitted on training rows"
    )
    assert str(result).splitlines()[-1] == told == result.verdict
    assert result.complete and "margins within 1e-06" in str(result)
    assert verify(certificates, own.model, own.X_test[:6])


def test_rows_may_come_in_another_order_with_others_and_columns_turned(saved, case) -> None:
    X = case.X_test[: N + 20].sample(frac=1.0, random_state=1)[case.X_test.columns[::-1]]
    result = verify(saved, case.model, X)
    assert result and not result.complete
    assert result.verdict.startswith("verified in part")
    assert "20 of the 32 rows given have no certificate" in result.verdict


def test_a_sample_recomputes_some_and_checks_all_digests(saved, case) -> None:
    result = verify(saved, case.model, case.X_test[:N], sample=3)
    assert result and "3 of 12 rows recomputed" in str(result)
    assert not result.complete and (result.rows_recomputed, result.rows_present) == (3, 12)
    assert verify(saved, case.model, case.X_test[:N], sample=10**6).complete
    with pytest.raises(VerificationError, match=r"sample must be at least 1 row, got 0"):
        verify(saved, case.model, case.X_test[:N], sample=0)


def test_a_selection_of_certificates_verifies_against_the_data(certs, case, tmp_path) -> None:
    top = certs.most_fragile(4, min_confidence=0.0)
    top.save(tmp_path / "top")
    result = verify(tmp_path / "top", case.model, case.X_test[:N])
    assert result, str(result)
    assert not result.complete and (result.rows_audited, result.rows_present, result.rows_given) == (12, 4, 12)
    assert result.verdict.startswith("verified in part")
    assert result.verdict.endswith(
        "4 of 12 audited rows are here, 8 are not checked; not checked: that the protocol is fitted on training rows"
    )
    result = verify(tmp_path / "top", case.model, case.X_test[: N + 1])
    assert failed(result) == ["input"] and "4 certificates were selected from an audit of 12 rows" in str(result)
    changed = case.X_test[:N].copy()
    changed.loc[0, "age"] += 1
    assert "input" in failed(verify(tmp_path / "top", case.model, changed))


# --- other model, other rows ------------------------------------------------------------------------------


def test_another_model_is_noticed(saved, case) -> None:
    other = copy.deepcopy(case.model)
    booster = other[-1].booster_
    for leaf in range(3):
        booster.set_leaf_output(0, leaf, booster.get_leaf_output(0, leaf) + 0.4)
    assert not np.allclose(other.predict_proba(case.X_test[:N]), case.model.predict_proba(case.X_test[:N]))
    result = verify(saved, other, case.X_test[:N])
    assert "model" in failed(result) and "recomputation" in failed(result)
    assert "claimed" in str(result) and "recomputed" in str(result)


def test_a_model_that_predicts_the_same_but_is_not_it_is_noticed(saved, case) -> None:
    other = copy.deepcopy(case.model)
    scaler = other[0].named_transformers_["numeric"][-1]
    scaler.mean_ = scaler.mean_ + 1e-13
    assert failed(verify(saved, other, case.X_test[:N])) == ["model"]


@pytest.mark.parametrize("change", ["cell", "category", "swapped ids"])
def test_other_rows_are_noticed(saved, case, change: str) -> None:
    X = case.X_test[:N].copy()
    if change == "cell":
        X.loc[5, "age"] += 1
    elif change == "category":
        X.loc[5, "purpose"] = "vacation"
    else:
        X.index = [1, 0, *range(2, N)]
    assert "input" in failed(verify(saved, case.model, X))


def test_rows_that_lack_an_audited_one_cannot_be_checked(saved, case) -> None:
    told = (
        rf"1 of the {N} audited rows are not among them \(first: 0; ids of the audit: 0 to {N - 1}; ids of the rows: 1 "
    )
    with pytest.raises(VerificationError, match=told):
        verify(saved, case.model, case.X_test[1:N])


def test_the_chance_to_escape_a_sample_is_the_hypergeometric_one(saved, case) -> None:
    result = verify(saved, case.model, case.X_test[:N], sample=3, seed=0)
    for forged in range(N + 1):
        expected = math.comb(N - forged, 3) / math.comb(N, 3)
        assert result.escape_probability(forged) == pytest.approx(expected)
    assert "1 forged (8%) would escape with probability 0.75" in result.verdict
    assert verify(saved, case.model, case.X_test[:N]).escape_probability(1) == 0.0


def test_a_seed_repeats_a_sample_and_none_does_not() -> None:
    assert (_choose_rows(1000, 10, 7) == _choose_rows(1000, 10, 7)).all() and (
        _choose_rows(1000, 10, 7) != _choose_rows(1000, 10, 8)
    ).any()
    assert len({tuple(_choose_rows(1000, 10, None)) for _ in range(20)}) == 20
    drawn = np.sum([_choose_rows(20, 5, seed) for seed in range(2000)], axis=0)
    assert drawn.sum() == 10_000 and abs(drawn - 500).max() < 100  # every row alike: 5 sigma is about 97


def test_nothing_is_not_verified(certs, case) -> None:
    result = verify(certs.take([]), case.model, case.X_test[:N])
    assert not result and "there is no certificate here, so there is nothing to verify" in str(result)
    assert result.verdict == "NOT verified: format failed"


def test_what_a_fingerprint_does_not_cover_is_repeated(certs, case, monkeypatch) -> None:
    reasons = ("a function compiled in C",)
    monkeypatch.setattr(Model, "fingerprint_partial", reasons)
    own = audit(case.model, case.X_test[:3], certs.protocol, engine="blackbox")
    assert own.manifest.model.partial == reasons
    result = verify(own, case.model, case.X_test[:3])
    assert result and "; its fingerprint does not cover a function compiled in C" in str(result)
    monkeypatch.setattr(Model, "fingerprint_partial", ())
    assert failed(verify(own, case.model, case.X_test[:3])) == ["model"]


def test_what_cannot_be_checked_is_said_so(saved, case, tmp_path) -> None:
    with pytest.raises(VerificationError, match=r"is not a folder; give the folder an audit was saved to"):
        verify(tmp_path / "nothing", case.model, case.X_test[:N])
    with pytest.raises(VerificationError, match=r"the model cannot be used"):
        verify(saved, object(), case.X_test[:N])
    with pytest.raises(VerificationError, match=r"the rows cannot be audited: the model expects column 'age'"):
        verify(saved, case.model, case.X_test[:N].drop(columns="age"))
    other = fitted("adult", "lightgbm", "transformed")
    assert not verify(saved, other.model, other.X_test[:N])


# --- altered claims ---------------------------------------------------------------------------------------


def altered_cell(value):
    """The smallest change that says something else: floats by a little more than the format's units."""
    if value is None:
        return 0.25
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, float):
        return value + 2e-6
    if isinstance(value, list):
        return [*value[:-1], altered_cell(value[-1])] if value else [0.25]
    return value + "x"


def with_cell(table: pa.Table, name: str, row: int, value) -> pa.Table:
    column = table.column(name)
    values = column.to_pylist()
    values[row] = value
    return table.set_column(table.column_names.index(name), name, pa.array(values, type=column.type))


COLUMNS = [
    "id", "predicted", "confidence", "margin", "bare_margin", "flip_budget", "flipped", "rcma", "fds", "exposure",
    "independent_loss", "common_loss", "random_loss", "lambda_attenuate_all", "lambda_attenuate_top1", "path",
    "path_margin", "path_predicted", "path_collapse", "fade_margin", "one_step_drop", "one_step_confidence_drop",
    "already_missing", "digest",
]  # fmt: skip


@pytest.mark.parametrize("where", ["folder", "memory"])
@pytest.mark.parametrize("name", COLUMNS)
def test_any_altered_field_of_a_row_is_found(certs, case, name: str, where: str, tmp_path) -> None:
    """Changed by the smallest step that means something, digests left alone."""
    assert set(certs.table.column_names) == set(COLUMNS)
    for row in (0, N - 1):
        cell = certs.table.column(name)[row].as_py()
        table = with_cell(certs.table, name, row, ["age"] if name == "already_missing" else altered_cell(cell))
        changed = Certificates(table, certs.protocol, certs.manifest)
        if where == "folder":
            # The folder is written with digests of files and manifest that fit: only the rows' own do not.
            result = verify(changed.save(tmp_path / f"{row}"), case.model, case.X_test[:N], sample=1)
        else:
            result = verify(changed, case.model, case.X_test[:N], sample=1)
        assert not result
        assert {"format", "digests"} & set(failed(result))


def forged(certs: Certificates, **changes) -> Certificates:
    """Certificates with other claims and every digest made anew: what a forger would write."""
    own = {name: getattr(certs.claims, name) for name in Claims.__dataclass_fields__}
    return Certificates.build(Claims(**{**own, **changes}), certs.protocol, certs.manifest)


def step_of(name: str, values: np.ndarray) -> np.ndarray:
    """Claims in row 3 changed by enough to matter: exact ones at all, floats beyond the declared resolution."""
    out = values.copy()
    place = (3,) if values.ndim == 1 else (3, -1)
    if values.dtype == bool:
        out[place] = not out[place]
    elif name == "thresholds":
        out[place] = 0.5 if out[place] != 0.5 else 0.25
    elif name == "path":
        out[3] = np.roll(out[3], 1)
    elif values.dtype.kind == "i":
        out[place] = out[place] - 1 if out[place] > 0 else out[place] + 1
    else:
        out[place] += 1e-3
    return out


@pytest.mark.parametrize("name", [f for f in Claims.__dataclass_fields__ if f != "ids"])
def test_a_forgers_claim_is_found_whether_or_not_it_contradicts_the_others(certs, case, name: str, tmp_path) -> None:
    changed = forged(certs, **{name: step_of(name, getattr(certs.claims, name))})
    result = verify(changed.save(tmp_path / "a"), case.model, case.X_test[:N])
    assert failed(result) in (["format"], ["recomputation"]), str(result)
    check = result.checks[0] if failed(result) == ["format"] else result.checks[-1]
    if check.name == "format":
        assert "of row 3" in check.detail and "contradict the other claims" in check.detail
    else:
        assert {difference.row for difference in check.differences} == {3}
        assert name in {difference.field for difference in check.differences}
        assert f"row 3, {name}: claimed" in str(result)


def consistent(certs: Certificates, **changes) -> Certificates:
    """A cleverer forger's certificates: whatever follows from the changed claims is changed too."""
    c = replace(certs.claims, **changes)
    if "path_margin" in changes:
        c = replace(c, margin=c.path_margin[:, 0])
    if "path_predicted" in changes:
        c = replace(c, predicted=c.path_predicted[:, 0])
    follows = derived_claims({name: getattr(c, name) for name in MEASURED}, certs.protocol)
    return Certificates.build(replace(c, **follows), certs.protocol, certs.manifest)


@pytest.mark.parametrize("name", ["path_margin", "path_predicted", "thresholds", "path", "one_step_drop", "confidence"])
def test_a_consistent_forger_fails_the_recomputation(certs, case, name: str, tmp_path) -> None:
    changed = consistent(certs, **{name: step_of(name, getattr(certs.claims, name))})
    result = verify(changed.save(tmp_path / "a"), case.model, case.X_test[:N])
    assert failed(result) == ["recomputation"], str(result)
    assert {difference.row for difference in result.checks[-1].differences} == {3}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_numbers_that_are_none_are_found(certs, case, value: float) -> None:
    for name in ("margin", "fds", "rcma", "confidence", "path_margin", "one_step_drop"):
        values = getattr(certs.claims, name).copy()
        values[2] = value
        result = verify(forged(certs, **{name: values}), case.model, case.X_test[:N])
        assert failed(result) == ["format"] and "holds NaN or an infinity" in str(result)


def test_a_left_out_a_repeated_and_a_foreign_row_are_found(certs, case) -> None:
    shorter = Certificates(certs.table.slice(1), certs.protocol, certs.manifest)
    assert not verify(shorter, case.model, case.X_test[:N])
    twice = Certificates(pa.concat_tables([certs.table, certs.table.slice(0, 1)]), certs.protocol, certs.manifest)
    assert not verify(twice, case.model, case.X_test[:N])
    result = verify(certs.take([0, 0, *range(2, N)]), case.model, case.X_test[:N])
    assert failed(result) == ["format"] and "twice" in str(result)
    foreign = forged(certs, ids=("somebody", *map(str, certs.claims.ids[1:])))
    with pytest.raises(VerificationError, match=rf"1 of the {N} audited rows are not among them \(first: 'somebody'"):
        verify(foreign, case.model, case.X_test[:N])


# --- altered protocol and manifest ------------------------------------------------------------------------


def leaves(value, path=()):
    if isinstance(value, dict):
        for key, item in value.items():
            yield from leaves(item, (*path, key))
    elif isinstance(value, list):
        for i, item in enumerate(value):
            yield from leaves(item, (*path, i))
    else:
        yield path, value


def edited(document, path, value):
    out = copy.deepcopy(document)
    here = out
    for step in path[:-1]:
        here = here[step]
    here[path[-1]] = value
    return out


def test_any_altered_value_of_the_protocol_is_found(folder, case) -> None:
    file = part_of(folder, "protocol")
    document = json.loads(file.read_text())
    for path, value in leaves(document):
        if path[0] == "columns" and path[1] > 3:
            continue  # the columns are alike
        changed = edited(document, path, altered_cell(value))
        file.write_text(json.dumps(changed, indent=2) + "\n")
        assert not verify(folder, case.model, case.X_test[:N], sample=1), path


def test_any_altered_value_of_the_manifest_is_found(folder, case) -> None:
    document = json.loads((folder / "manifest.json").read_text())
    places = list(leaves(document))
    assert len(places) > 20
    for path, value in places:
        changed = edited(document, path, altered_cell(value))
        (folder / "manifest.json").write_text(json.dumps(changed, indent=2, ensure_ascii=False) + "\n")
        assert not verify(folder, case.model, case.X_test[:N], sample=1), path


FREE = {("engine", "evaluations")}  # about the run; a recomputation elsewhere cannot confirm it


def test_a_forger_who_signs_the_manifest_anew_is_found_where_it_matters(folder, case) -> None:
    document = json.loads((folder / "manifest.json").read_text())
    for path, value in leaves(document):
        if path[0] in ("versions", "manifest_digest") or path in FREE:
            continue
        text = manifest_text(edited(document, path, altered_cell(value)))
        (folder / "manifest.json").write_text(text, encoding="utf-8")
        assert not verify(folder, case.model, case.X_test[:N], sample=1), path


@pytest.mark.parametrize("name", ["protocol", "manifest"])
def test_a_removed_or_added_field_is_found(folder, case, name: str) -> None:
    file = part_of(folder, name)
    document = json.loads(file.read_text())
    for key in document:
        fewer = {k: v for k, v in document.items() if k != key}
        file.write_text(json.dumps(fewer, indent=2, ensure_ascii=False) + "\n")
        assert not verify(folder, case.model, case.X_test[:N], sample=1), key
    file.write_text(json.dumps({**document, "note": "harmless"}, indent=2, ensure_ascii=False) + "\n")
    assert not verify(folder, case.model, case.X_test[:N], sample=1)


def test_a_protocol_of_another_audit_is_found(certs, case, tmp_path) -> None:
    """Rows bound to one protocol, folder and manifest rewritten around another one with the same shape."""
    other = Protocol.from_dict({**certs.protocol.to_dict(), "reading": "current"})
    swapped = Certificates(certs.table, other, replace(certs.manifest, protocol_digest=other.digest))
    result = verify(swapped.save(tmp_path / "a"), case.model, case.X_test[:N], sample=2)
    assert {"format", "digests"} & set(failed(result))


@pytest.mark.parametrize("name", ["certificates", "protocol", "manifest"])
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_one_flipped_bit_in_any_file_is_found(folder, case, name: str, data: st.DataObject) -> None:
    path = part_of(folder, name)
    good = path.read_bytes()
    position = data.draw(st.integers(0, len(good) - 1))
    bit = data.draw(st.integers(0, 7))
    bad = bytearray(good)
    bad[position] ^= 1 << bit
    path.write_bytes(bytes(bad))
    try:
        assert not verify(folder, case.model, case.X_test[:N], sample=1)
    finally:
        path.write_bytes(good)


def test_an_added_or_missing_file_byte_is_found(folder, case) -> None:
    for name in ("certificates", "protocol", "manifest"):
        file = part_of(folder, name)
        good = file.read_bytes()
        for bad in (good + b"\n", good[:-1], b"", b" " + good):
            file.write_bytes(bad)
            assert not verify(folder, case.model, case.X_test[:N], sample=1), name
        file.write_bytes(good)
    assert verify(folder, case.model, case.X_test[:N])


def test_missing_files_are_a_failed_format_check(folder, case) -> None:
    part_of(folder, "certificates").unlink()
    result = verify(folder, case.model, case.X_test[:N])
    assert failed(result) == ["format"] and "is incomplete: certificates-" in str(result)


def test_differences_are_listed_but_not_without_end(case, certs) -> None:
    many = consistent(certs, path_margin=certs.claims.path_margin + 0.5, confidence=certs.claims.confidence - 0.1)
    result = verify(many, case.model, case.X_test[:N])
    text = str(result)
    assert "12 rows do not hold" in text and re.search(r"and \d+ more", text)
    assert isinstance(result.checks[-1].differences[0].claimed, float)


def test_frames_of_other_kinds_verify_too(saved, case) -> None:
    polars = pytest.importorskip("polars")
    ids = list(range(N))
    assert verify(saved, case.model, pa.Table.from_pandas(case.X_test[:N]), ids=ids)
    frame = case.X_test[:N].astype({"age": "float64"})  # an integer read back as a float is the same value
    assert verify(saved, case.model, frame)
    plain = fitted("credit_g", "logistic", "transformed")
    certificates = audit(plain.model, case.X_test[:N], Protocol.fit(plain.model, plain.X_train), engine="blackbox")
    assert verify(certificates, plain.model, polars.from_pandas(case.X_test[:N]).to_pandas(), ids=ids)


# --- what is proved, and what is not ------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["lightgbm", "logistic"])
def test_a_baseline_that_suits_its_author_is_found_with_the_training_rows(family):
    """Certificates follow from model, rows and protocol; only training rows tell whether the baseline is theirs."""
    own = fitted("credit_g", family, "transformed")
    protocol, X = fg.Protocol.fit(own.model, own.X_train, depth=3, severities=(0.5, 1.0)), own.X_test[:12]
    honest = fg.verify(fg.audit(own.model, X, protocol, lattice=False), own.model, X, train=own.X_train)
    assert honest.complete and honest.verdict.endswith("and the protocol is fitted on the training rows given")
    assert "that these are the rows the model was trained on" in honest.not_proved
    kind = next(place for place, column in enumerate(protocol.columns) if column.kind == "numeric")
    moved = replace(protocol.columns[kind], baseline=protocol.columns[kind].baseline + 0.5)
    columns = (*protocol.columns[:kind], moved, *protocol.columns[kind + 1 :])
    made = fg.audit(own.model, X, replace(protocol, columns=columns), lattice=False)
    believed = fg.verify(made, own.model, X)
    assert believed and "not checked: that the protocol is fitted on training rows" in believed.verdict
    assert believed.not_proved[0] == "that the protocol is fitted on training rows"
    result = fg.verify(made, own.model, X, train=own.X_train)
    assert [check.name for check in result.checks if not check.passed] == ["training"]
    name, told = protocol.columns[kind].name, str(result.checks[-1].differences[0])
    assert [difference.field for difference in result.checks[-1].differences] == [f"protocol.columns.{name}.baseline"]
    assert told.endswith(f"claimed {moved.baseline}, recomputed {protocol.columns[kind].baseline}")
    document = json.loads(json.dumps(result.to_dict()))
    assert document["verdict"] == "NOT verified: training failed" and document["proved"] == []


def test_origins_that_nobody_found_are_none_of_the_training_rows():
    """In the raw space nothing but stability intervals reads them, so that a forger may hope that nobody looks."""
    own = fitted("credit_g", "logistic", "transformed")
    protocol = fg.Protocol.fit(own.model, own.X_train, space="raw")
    swapped = replace(protocol, inputs=tuple(replace(each, fields=("age",)) for each in protocol.inputs))
    X = own.X_test[:5]
    assert verify(audit(own.model, X, protocol), own.model, X, train=own.X_train).complete
    result = verify(audit(own.model, X, swapped), own.model, X, train=own.X_train)
    assert failed(result) == ["training"] and result.checks[-1].differences[0].field.startswith("protocol.inputs.")


@pytest.mark.parametrize(
    ("claimed", "found", "told"),
    [
        ([{"field": "age", "low": 1.0}], [{"field": "age", "low": 2.0}], ("of.age.low", "1.0", "2.0")),
        ([{"field": "age"}], [{"field": "sex"}], ("of.0.field", "age", "sex")),
        ({"a": {"values": [1, 2, 3]}}, {"a": {"values": [1, 2, 4]}}, ("of.a.values.2", "3", "4")),
        ([1, 2], [1, 2, 3], ("of", "2 entries", "3 entries")),
        ({"mean": 1}, {}, ("of.mean", "1", "nothing")),
        (1, 1.0, ("of", "1", "1.0")),
        ("a" * 90 + "b", "a" * 90 + "c", ("of", f"...{'a' * 20}b", f"...{'a' * 20}c")),
    ],
)
def test_a_difference_from_the_training_rows_shows_where_it_lies(claimed, found, told):
    assert find_difference("of", claimed, found) == told


def test_a_page_beside_the_certificates_is_not_proved(certs, case, tmp_path):
    """Anyone may write a page into the folder of an honest audit."""
    folder = certs.save(tmp_path / "a")
    assert not any("report.html" in told for told in verify(folder, case.model, case.X_test, sample=2).not_proved)
    (folder / "report.html").write_text("0% flip")
    result = verify(folder, case.model, case.X_test, sample=2)
    assert result and "what report.html in the folder says: make it again from the certificates" in result.not_proved


@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint32"])
def test_columns_of_narrow_whole_numbers_verify(dtype):
    """The verifier asks the preprocessing about -7 and 1000, which such a column cannot hold."""
    X = pd.DataFrame({"a": np.linspace(-1, 1, 60), "count": np.arange(60).astype(dtype)})
    model = make_pipeline(StandardScaler(), LogisticRegression()).fit(X, np.arange(60) % 3 == 0)
    protocol = Protocol.fit(model, X, space="transformed")
    assert verify(audit(model, X[:5], protocol, modes=True), model, X[:5], train=X).complete


def test_another_kind_of_model_is_another_fingerprint_whatever_it_answers():
    """A model that refuses missing cells is not the one audited: that is said, and not what it lacks."""
    X, y = fg.load_credit_g()
    X = X[["duration", "age", "installment_commitment"]].astype(float)
    X.iloc[::7, 0] = np.nan
    audited, other = HistGradientBoostingClassifier(max_iter=5).fit(X, y), LogisticRegression().fit(X.fillna(0.0), y)
    result = fg.verify(fg.audit(audited, X[:30], fg.Protocol.fit(audited, X)), other, X[:30])
    assert "model" in [check.name for check in result.checks if not check.passed]
    assert "fingerprint: claimed" in str(result)
