"""Protocols: what is accepted, what is refused and in which words, and that a file is the protocol."""

from __future__ import annotations

import contextlib
import json
import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pipelines import fitted, preprocessing, split
from sklearn.compose import make_column_transformer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder

from fragility.base.errors import EvidenceError, ModelError, ProtocolError
from fragility.evidence.modes import NO_MODES
from fragility.models import Model
from fragility.protocol import Protocol, bind


@pytest.fixture(scope="module")
def case():
    return fitted("credit_g", "lightgbm", "transformed")


@pytest.fixture(scope="module")
def protocol(case) -> Protocol:
    return Protocol.fit(case.model, case.X_train)


def test_defaults_are_the_specifications(protocol: Protocol) -> None:
    assert protocol.space == "transformed" and protocol.grouping == "raw-origin" and protocol.baseline == "typical"
    assert protocol.operators == ("attenuate_all", "attenuate_top1")
    assert protocol.severities == (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
    assert protocol.depth == 10 and protocol.reading == "support" and protocol.resolution == 1e-6
    assert protocol.weights == (1 / 3, 1 / 3, 1 / 3)
    assert len(protocol.groups) == 20 and protocol.training_rows == 600


def test_a_protocol_is_shown_in_one_line_and_as_a_table(protocol: Protocol) -> None:
    told = repr(protocol)
    assert len(told) < 200 and "\n" not in told
    assert (
        f"{len(protocol.groups)} groups over {len(protocol.columns)} columns" in told and protocol.digest[:19] in told
    )
    page = protocol._repr_html_()
    assert page.startswith("<table>") and protocol.digest in page and protocol.group_names[0] in page
    groups = (replace(protocol.groups[0], name="<script>"), *protocol.groups[1:])
    renamed = replace(protocol, grouping="declared", groups=groups, modes=NO_MODES, domains=())
    assert "<script>" not in renamed._repr_html_()


def test_the_papers_protocol(case) -> None:
    paper = Protocol.paper(case.model, case.X_train)
    assert (paper.reading, paper.baseline, paper.depth) == ("current", "mean", 10)
    assert Protocol.paper(case.model, case.X_train, depth=3).depth == 3


def test_depth_is_ten_or_all_groups() -> None:
    X = split("credit_g").X_train[["age", "duration"]]
    model = LogisticRegression().fit(X, split("credit_g").y_train)
    assert Protocol.fit(model, X).depth == 2
    declared = Protocol.fit(model, X, depth=np.int64(1))
    assert declared.depth == 1 and Protocol.from_json(declared.to_json()) == declared


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"depth": 21}, r"depth must be a whole number from 1 to the number of groups, 20, got 21"),
        ({"depth": 0}, r"depth .* got 0"),
        ({"depth": 2.0}, r"depth must be a whole number .* got 2\.0"),
        ({"depth": True}, r"depth .* got true"),
        ({"reading": "literal"}, r"reading must be one of support, current, support_unbounded, got 'literal'"),
        ({"severities": ()}, r"severities must rise strictly within \(0, 1\], got \[\]"),
        ({"severities": (0.0, 0.5)}, r"severities must rise strictly"),
        ({"severities": (0.5, 0.5)}, r"severities must rise strictly"),
        ({"severities": (0.5, 0.2)}, r"severities must rise strictly"),
        ({"severities": (0.5, 1.1)}, r"severities must rise strictly"),
        ({"severities": (0.5, math.nan)}, r"severities\.1 must be a number, got nan"),
        ({"weights": (1.0, 1.0)}, r"weights must be three numbers .* got 2"),
        ({"weights": (1.0, -1.0, 1.0)}, r"weights.1 must be a number from 0"),
        ({"weights": (0.0, 0.0, 0.0)}, r"weights .* not all 0"),
        ({"weights": (1.0, math.inf, 1.0)}, r"weights\.1 must be a number from 0, got inf"),
        ({"resolution": 0.0}, r"resolution must be a number from 1e-09 to 0\.001 in margin units, got 0\.0"),
        ({"resolution": 3.0}, r"resolution must be a number from 1e-09 to 0\.001 in margin units, got 3\.0"),
        ({"resolution": math.nan}, r"resolution must be a number from"),
        ({"operators": ("attenuate_top0",)}, r"attenuate_topJ with J from 1 to 20.*got 'attenuate_top0'"),
        ({"operators": ("attenuate_top21",)}, r"attenuate_topJ with J from 1 to 20"),
        ({"operators": ("remove_all",)}, r"got 'remove_all'"),
        ({"operators": ("attenuate_all", "attenuate_all")}, r"operators must be distinct"),
    ],
    ids=str,
)
def test_settings_that_cannot_be_are_refused(case, changes: dict, message: str) -> None:
    with pytest.raises(ProtocolError, match=message):
        Protocol.fit(case.model, case.X_train, **changes)


def test_operators_may_be_written_as_calls(case) -> None:
    assert Protocol.fit(case.model, case.X_train, operators=["attenuate_top(3)"]).operators == ("attenuate_top3",)


def test_groups_must_partition_the_columns(protocol: Protocol) -> None:
    first, second, *rest = protocol.groups
    with pytest.raises(ProtocolError, match=r"is in both groups 'duration' and 'credit_amount'"):
        replace(protocol, groups=(first, replace(second, columns=(*second.columns, first.columns[0])), *rest))
    with pytest.raises(ProtocolError, match=r"left out \['numeric__duration'\]"):
        replace(protocol, groups=(second, *rest))
    with pytest.raises(ProtocolError, match=r"group 'duration' has no columns"):
        replace(protocol, groups=(replace(first, columns=()), second, *rest))
    with pytest.raises(ProtocolError, match=r"unknown \['salary'\]"):
        replace(protocol, groups=(replace(first, columns=(*first.columns, "salary")), second, *rest))
    with pytest.raises(ProtocolError, match=r"group names must be distinct"):
        replace(protocol, groups=(first, replace(second, name=first.name), *rest))
    with pytest.raises(ProtocolError, match=r"at least one evidence group"):
        replace(protocol, groups=())


# --- files ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("space", ["transformed", "raw"])
@pytest.mark.parametrize("baseline", ["mean", "typical", "missing"])
def test_a_file_is_the_protocol(space: str, baseline: str, tmp_path) -> None:
    case = fitted("credit_g", "lightgbm", space)
    protocol = Protocol.fit(
        case.model,
        case.X_train,
        space=None if baseline == "missing" else space,
        baseline=baseline,
        operators=["attenuate_top(2)"],
    )
    path = tmp_path / "protocol.json"
    protocol.save(path)
    again = Protocol.load(path)
    assert again == protocol and again.digest == protocol.digest
    first = path.read_bytes()
    again.save(path)
    assert path.read_bytes() == first
    assert [p.name for p in tmp_path.iterdir()] == ["protocol.json"]


def test_digests_do_not_depend_on_row_or_column_order(case, protocol: Protocol) -> None:
    shuffled = case.X_train.sample(frac=1.0, random_state=3)
    columns = Protocol.fit(case.model, case.X_train[case.X_train.columns[::-1]])
    assert columns.digest == protocol.digest
    assert Protocol.fit(case.model, shuffled).training_digest == protocol.training_digest
    assert Protocol.fit(case.model, case.X_train[:-1]).training_digest != protocol.training_digest


def leaves(value, path=()):
    if isinstance(value, dict):
        for key, item in value.items():
            yield from leaves(item, (*path, key))
    elif isinstance(value, list):
        for i, item in enumerate(value):
            yield from leaves(item, (*path, i))
    else:
        yield path, value


def altered(value):
    """A value of the same kind that is not this one."""
    if value is None:
        return 1.0
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, float):
        return math.nextafter(value, math.inf)
    return value + "x"


def replaced(document, path, value):
    copy = json.loads(json.dumps(document))
    here = copy
    for step in path[:-1]:
        here = here[step]
    here[path[-1]] = value
    return copy


def test_every_field_is_in_the_digest_or_refused() -> None:
    """Any one value changed: another digest, or a protocol that is refused."""
    X, y = split("credit_g").X_train[["duration", "age", "purpose", "housing"]], split("credit_g").y_train
    model = make_pipeline(preprocessing(X), LogisticRegression(max_iter=400)).fit(X, y)
    protocol = Protocol.fit(model, X, catalogue=6)
    document = json.loads(protocol.to_json())
    seen = {protocol.digest}
    accepted = 0
    for path, value in leaves(document):
        if path[0] == "columns" and path[1] > 8:
            continue  # the columns are alike
        try:
            digest = Protocol.from_dict(replaced(document, path, altered(value))).digest
        except ProtocolError:
            continue
        assert digest not in seen, path
        accepted += 1
        seen.add(digest)
    assert accepted > 20


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_malformed_documents_are_refused_as_such(protocol: Protocol, data: st.DataObject) -> None:
    """Whatever stands in place of a value, the answer is a protocol or a ProtocolError, never another error."""
    document = json.loads(protocol.to_json())
    path, _ = data.draw(st.sampled_from(list(leaves(document))))
    junk = data.draw(st.sampled_from([None, "", "x", -1, 0, 1.5, [], {}, [None], {"a": 1}, True, 1e400]))
    depth = data.draw(st.integers(1, len(path)))
    with contextlib.suppress(ProtocolError):
        assert Protocol.from_dict(replaced(document, path[:depth], junk)).digest


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda d: d.pop("weights"), r"the protocol lacks the field 'weights'"),
        (lambda d: d["columns"][0].update(baseline="high"), r"the baseline of .* must be a number or null, got 'high'"),
    ],
)
def test_documents_that_are_no_protocol_are_refused(protocol: Protocol, edit, message: str) -> None:
    document = json.loads(protocol.to_json())
    edit(document)
    with pytest.raises(ProtocolError, match=message):
        Protocol.from_dict(document)
    with pytest.raises(ProtocolError):
        Protocol.from_json(json.dumps(document))


def test_unreadable_files_are_refused(tmp_path) -> None:
    with pytest.raises(ProtocolError, match=r"cannot read the protocol .*absent\.json: No such file"):
        Protocol.load(tmp_path / "absent.json")
    (tmp_path / "half.json").write_text('{"format": "fragility-protocol/1", "space"')
    with pytest.raises(ProtocolError, match=r"the protocol .*half\.json is not valid JSON"):
        Protocol.load(tmp_path / "half.json")
    (tmp_path / "list.json").write_text("[1, 2]")
    with pytest.raises(ProtocolError, match=r"must be an object, got \[1, 2\]"):
        Protocol.load(tmp_path / "list.json")
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ProtocolError):
        Protocol.load(tmp_path / "bytes.json")


def test_unwritable_places_are_refused_and_nothing_is_left(protocol: Protocol, tmp_path) -> None:
    with pytest.raises(ProtocolError, match=r"cannot write the protocol to .*No such file"):
        protocol.save(tmp_path / "nowhere" / "protocol.json")
    (tmp_path / "folder").mkdir()
    with pytest.raises(ProtocolError, match=r"cannot write the protocol to"):
        protocol.save(tmp_path / "folder")
    assert [p.name for p in tmp_path.iterdir()] == ["folder"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"resolution": 1e-15}, r"resolution in the protocol must be a number from 1e-09 to 0\.001 in margin units"),
        ({"groups": "renamed"}, r"grouping 'raw-origin', but groups are not named after fields"),
    ],
)
def test_one_validator_reads_protocols_for_audit_and_verify(protocol: Protocol, change, message, tmp_path) -> None:
    document = protocol.to_dict()
    if change == {"groups": "renamed"}:
        document["groups"][0]["name"] = "another name"
    else:
        document |= change
    with pytest.raises(ProtocolError, match=message):
        Protocol.from_dict(document)


def test_a_protocol_for_other_columns_is_refused(case, protocol: Protocol) -> None:
    other = fitted("adult", "lightgbm", "transformed")
    with pytest.raises(ProtocolError, match=r"made for the columns \['checking_status'.*fit a protocol for this model"):
        bind(other.model, other.X_test[:3], protocol)


def test_a_protocol_for_another_encoding_of_the_same_fields_is_refused(case, protocol: Protocol) -> None:
    data = split("credit_g")
    few = make_pipeline(preprocessing(data.X_train), LogisticRegression(max_iter=200)).fit(
        data.X_train[:30], data.y_train[:30]
    )
    with pytest.raises(ProtocolError, match=r"fit a protocol for this model"):
        bind(few, data.X_test[:3], protocol)


def test_a_raw_protocol_serves_any_model_of_the_same_fields() -> None:
    """The raw space belongs to the data, not to one preprocessing."""
    one, two = fitted("credit_g", "logistic", "transformed"), fitted("credit_g", "random_forest", "transformed")
    protocol = Protocol.fit(one.model, one.X_train, space="raw")
    rows = bind(two.model, two.X_test[:4], protocol)
    np.testing.assert_allclose(rows.predict(rows.dense()), two.model.predict_proba(two.X_test[:4]), atol=1e-12)


def test_durations_as_raw_evidence_are_refused_by_name() -> None:
    data = split("credit_g")
    X = pd.DataFrame({"age": data.X_train["age"], "wait": pd.to_timedelta(data.X_train["duration"] % 5, unit="D")})
    pipeline = make_pipeline(
        make_column_transformer((OneHotEncoder(), ["wait"]), remainder="passthrough"), LogisticRegression(max_iter=500)
    ).fit(X, data.y_train)
    with pytest.raises(EvidenceError, match=r"the baseline of column 'wait' would be Timedelta.*numbers or text"):
        Protocol.fit(pipeline, X, space="raw")
    assert Protocol.fit(pipeline, X).group_names == ("wait", "age")


# --- faults of the model --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (lambda n: np.full((n, 3), 1 / 3), r"^the model's probabilities must have shape"),
        (lambda n: np.full((n, 2), 4.5), r"^the model's output is not a probability"),
        (lambda n: 1 / 0, r"^the model failed on these rows: ZeroDivisionError"),
    ],
    ids=["shape", "logits", "exception"],
)
@pytest.mark.parametrize("space", ["transformed", "raw"])
def test_faults_of_the_model_are_not_laid_on_the_baseline(fault, message: str, space: str) -> None:
    X = split("credit_g").X_train[["age", "duration"]].astype(float)
    model = Model.wrap(lambda rows: fault(len(rows)), classes=["bad", "good"])
    with pytest.raises(ModelError, match=message):
        Protocol.fit(model, X, space=space)


def test_training_rows_that_become_infinite_are_refused_by_name() -> None:
    data = split("credit_g")
    X = data.X_train[["age", "duration"]].assign(age=lambda X: X["age"] - X["age"].min())
    log = FunctionTransformer(lambda X: np.log(X.clip(lower=1e-9)), feature_names_out="one-to-one")
    pipeline = make_pipeline(log, LogisticRegression(max_iter=500)).fit(X, data.y_train)
    pipeline[0].set_params(func=lambda X: np.log(X))
    with np.errstate(divide="ignore"), pytest.raises(EvidenceError, match=r"infinite value .* in column 'age'"):
        Protocol.fit(pipeline, X, space="transformed")


@pytest.mark.parametrize("grouping", ["", "merged", "merged at 1e9", ["raw-origin"], None, 3])
def test_a_grouping_that_the_format_does_not_know_is_refused(grouping: object, protocol: Protocol) -> None:
    document = {**protocol.to_dict(), "grouping": grouping}
    with pytest.raises(ProtocolError, match=r"grouping .*must be raw-origin, declared or merged"):
        Protocol.from_dict(document)
