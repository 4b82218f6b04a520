"""Every document that is read: what each of its fields takes, and the sentence that refuses anything else.

A document that the library itself wrote is changed in one place at a time: a field left out, a field beside it that
nobody knows, and values of every kind in its stead. The answers stand in ``documents.md``, for a reader to look
through; ``WRITE_DOCUMENTS=1 pytest tests/test_schemas.py`` writes that table anew.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import math
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB

import fragility as fg
from fragility.audits import Manifest
from fragility.base.errors import CertificateError, DataError, FragilityError
from fragility.base.schemas import (
    KEY,
    OPTIONAL,
    Count,
    Limit,
    Share,
    check_fields,
    load_json,
    named,
    read_document,
    show_value,
    write_document,
)
from fragility.evidence.rows import Scalar
from fragility.gate.rules import RulesDocument
from fragility.parity import ModelParity
from fragility.trust.proofs import FORMAT as PROOF
from fragility.trust.proofs import ProofDocument

TABLE = Path(__file__).parent / "documents.md"
VALUES = (None, True, -1, 7, 0.5, 1e300, "text", [], {})
UNKNOWN = "surprise"
FOREIGN = re.compile(r"pydantic|https?:|traceback|input should|validation error|value error", re.IGNORECASE)


# --- the documents --------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Document:
    """A document: its name in messages, what reads it, and how the library makes one."""

    what: str
    read: Callable[[Any], Any]
    make: Callable[[Sources], Any]


@dataclasses.dataclass(frozen=True)
class Sources:
    """A model of real data, and what the library makes of it."""

    X: pd.DataFrame
    model: LogisticRegression
    protocol: fg.Protocol
    certs: fg.Certificates


@pytest.fixture(scope="module")
def sources() -> Sources:
    X, y = fg.load_credit_g()
    X = X[["duration", "age", "installment_commitment"]]
    model = LogisticRegression().fit(X[:700], y[:700])
    protocol = fg.Protocol.fit(model, X[:700])
    return Sources(X, model, protocol, fg.audit(model, X[700:], protocol, modes=True))


def make_protocol(sources: Sources) -> Any:
    outages = fg.Outages.from_events([{"age"}, {"duration", "age"}])
    settings = {"sentinels": {"age": [-1.0, ("x / 12", 2.0)]}, "outages": outages, "decision": 0.4}
    return fg.Protocol.fit(sources.model, sources.X[:700], **settings).to_dict()


def make_policy(sources: Sources) -> Any:
    stress = fg.Stress((fg.Mask(0.2), fg.Outages.from_events([{"age"}])), tau_confidence=0.7, draws=2)
    labels = fg.label_brittle(sources.model, sources.X[700:], sources.protocol, stress)
    return fg.ReviewPolicy.fit(sources.certs, labels, risk=0.3).to_dict()


def make_rules(sources: Sources) -> Any:
    rule = {"measure": "exposure", "at_most": 0.5, "mode": "wrong", "by": "predicted", "name": "exposed", "above": 0.3}
    settings = {"confidence": 0.9, "min_confidence": 0.8, "derived_from": ["sha256:1"], "written_for": {"depth": "3"}}
    return {**settings, "rule": [rule, {"measure": "flips_early", "groups": 1, "counted": "path", "allowance": 0.1}]}


def make_stress(sources: Sources) -> Any:
    stressors = (fg.Mask(0.2), fg.Dropout(), fg.Noise(), fg.Donor(), fg.Outages.from_events([{"age"}, {"duration"}]))
    return fg.Stress(stressors).to_dict()


def make_parity(sources: Sources) -> Any:
    other = GaussianNB().fit(sources.X[:700], sources.model.predict(sources.X[:700]))
    document = fg.check_parity(sources.model, other, sources.X[700:760], protocol=sources.protocol).to_dict()
    return {**document, "notes": ["a note"]}


def read_proof(document: Any) -> Any:
    return read_document(document, ProofDocument, "the proof", CertificateError, format=PROOF, ordered=True)


def read_rules(document: Any) -> Any:
    return read_document(document, RulesDocument, "the rules file", DataError, defaults=True)


def make_manifest(sources: Sources) -> Any:
    return sources.certs.manifest.to_dict()


def make_proof(sources: Sources) -> Any:
    return {**fg.prove(sources.certs, sources.certs[0].id), "protocol": {}, "claims": {"id": "A"}}


DOCUMENTS = {
    "protocol": Document("the protocol", fg.Protocol.from_dict, make_protocol),
    "review policy": Document("the review policy", fg.ReviewPolicy.from_dict, make_policy),
    "rules of a gate": Document("the rules file", read_rules, make_rules),
    "stress": Document("the stress", fg.Stress.from_dict, make_stress),
    "manifest": Document("the manifest", Manifest.from_dict, make_manifest),
    "proof": Document("the proof", read_proof, make_proof),
    "comparison of two models": Document("the comparison", ModelParity.from_dict, make_parity),
}


@pytest.fixture(scope="module")
def examples(sources: Sources) -> dict[str, Any]:
    return {name: json.loads(json.dumps(each.make(sources))) for name, each in DOCUMENTS.items()}


# --- every field, changed -------------------------------------------------------------------------------------


def list_places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of each field and entry of a document; of entries that are alike only the first."""
    if path:
        yield path
    if isinstance(value, dict):
        for name, entry in value.items():
            yield from list_places(entry, (*path, name))
    elif isinstance(value, list):
        seen = set()
        for place, entry in enumerate(value):
            shape = tuple(entry) if isinstance(entry, dict) else type(entry).__name__
            if shape not in seen:
                seen.add(shape)
                yield from list_places(entry, (*path, place))


def change(document: Any, path: tuple[Any, ...], act: Callable[[Any, Any], None]) -> Any:
    """Return a copy in which the object or list that holds a place was changed."""
    changed = copy.deepcopy(document)
    here = changed
    for step in path[:-1]:
        here = here[step]
    act(here, path[-1])
    return changed


def refusal(document: Document, changed: Any) -> str | None:
    """Return the sentence that refuses a document; None if it is read."""
    try:
        document.read(changed)
    except FragilityError as error:
        told = str(error)
        assert "\n" not in told and len(told) <= 1000 and not FOREIGN.search(told), told
        return told
    return None


def describe_place(document: Document, example: Any, path: tuple[Any, ...]) -> str:
    """Return the line of the table about one place: what it must be, what it takes, and whether it may be absent."""
    name = ".".join(map(str, path))
    expected, taken, others = set(), [], set()
    for value in VALUES:
        told = refusal(document, change(example, path, lambda here, last, value=value: here.__setitem__(last, value)))
        match = (
            None
            if told is None
            else re.fullmatch(rf"{re.escape(name)} in {document.what} must be (.*), got (.*)", told)
        )
        if match is None:
            taken.append(show_value(value))
            others |= set() if told is None else {told}
        else:
            expected.add(match[1])
            assert match[2] == show_value(value), told
    assert len(expected) < 2, f"{name} is refused in two ways: {expected}"
    absent = "-"
    if not isinstance(path[-1], int):
        told = refusal(document, change(example, path, lambda here, last: here.pop(last)))
        lacking = f"{document.what} lacks the field {name!r}"
        absent = "allowed" if told is None else "refused" if told.startswith(lacking) else told
    then = min(others, key=lambda told: (len(told), told), default="")
    cells = (f"`{name}`", next(iter(expected), "anything"), ", ".join(taken) or "-", absent, then)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def describe_unknown(document: Document, example: Any) -> Iterator[str]:
    """Yield, for each object, what is said of a field in it that nobody knows."""
    objects = [(), *(path for path in list_places(example) if isinstance(find(example, path), dict))]
    for path in objects:
        told = refusal(document, change(example, (*path, UNKNOWN), lambda here, last: here.__setitem__(last, 1)))
        name = ".".join(map(str, (*path, UNKNOWN)))
        if told is not None and f"{document.what} has the unknown field {name!r}; " in told:
            yield f"- {told}"
        else:
            assert told is None or told.startswith(f"{name} in {document.what} must be "), told
            yield f"- the names in `{'.'.join(map(str, path))}` are free" + ("" if told is None else f"; {told}")


def find(document: Any, path: tuple[Any, ...]) -> Any:
    for step in path:
        document = document[step]
    return document


def tabulate(name: str, document: Document, example: Any) -> str:
    whole = (refusal(document, value) for value in (None, [], {}))
    lines = [f"## {name}", "", *(f"- {told or 'an empty one is read'}" for told in whole)]
    if "format" in example:
        lines += [f"- {refusal(document, {**example, 'format': 'another/2'})}"]
    lines += [*describe_unknown(document, example), ""]
    lines += ["| field | must be | takes | left out | and then, if it does not fit the rest |", "|---|---|---|---|---|"]
    lines += [describe_place(document, example, path) for path in list_places(example)]
    return "\n".join(lines)


HEADING = """# Documents, and how they are refused

What each field of each document takes, out of null, true, -1, 7, 0.5, 1e+300, 'text', [] and {}; anything else is
refused with the sentence "FIELD in DOCUMENT must be WHAT IT MUST BE, got VALUE". A field left out is refused with
"DOCUMENT lacks the field FIELD". Written by `WRITE_DOCUMENTS=1 pytest tests/test_schemas.py`."""


@pytest.fixture(scope="module")
def tables() -> Iterator[dict[str, str]]:
    """The tables as they are now; written once all are made, if that is asked for."""
    made: dict[str, str] = {}
    yield made
    if len(made) == len(DOCUMENTS) and os.environ.get("WRITE_DOCUMENTS"):
        TABLE.write_text("\n\n".join([HEADING, *(made[name] for name in DOCUMENTS)]) + "\n")


@pytest.mark.parametrize("name", DOCUMENTS)
def test_each_field_is_read_or_refused_in_a_sentence_that_names_it(name, examples, tables):
    document, example = DOCUMENTS[name], examples[name]
    assert refusal(document, example) is None, "what the library wrote is read"
    tables[name] = tabulate(name, document, example)
    if not os.environ.get("WRITE_DOCUMENTS"):
        assert tables[name] in TABLE.read_text(), "another answer than in documents.md; write the table anew and look"


# --- the reader -----------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class Inner:
    """Part of a document."""

    label: Share = dataclasses.field(metadata=named("class"))
    names: tuple[str, ...] = ()
    note: str | None = dataclasses.field(default=None, metadata=OPTIONAL)

    def __post_init__(self) -> None:
        if self.label == 0.5 and self.names:
            raise ValueError("a half has no names")


@dataclasses.dataclass(frozen=True, slots=True)
class Entry:
    """An entry of an object, whose names are free."""

    name: str = dataclasses.field(metadata=KEY)
    size: Count


@dataclasses.dataclass(frozen=True, slots=True)
class Outer:
    """A document with every kind of field."""

    inner: Inner
    cell: Scalar
    limit: Limit
    pair: tuple[int, float]
    inside: tuple[Inner, ...] = ()
    counts: dict[str, Count] = dataclasses.field(default_factory=dict)
    entries: tuple[Entry, ...] = ()


OUTER = {"inner": {"class": 0.25, "names": ["a"]}, "cell": 1, "limit": "inf", "pair": [1, 2]}


def read_outer(*, defaults: bool = True, **changes: Any) -> Outer:
    return read_document({**OUTER, **changes}, Outer, "the document", DataError, defaults=defaults)


def test_values_keep_their_types():
    """1, 1.0, true and "1" are four different cells; a whole number becomes a float where a decimal is expected."""
    for cell in (1, 1.0, True, "1", None):
        assert (type(read_outer(cell=cell).cell), read_outer(cell=cell).cell) == (type(cell), cell)
    read = read_outer()
    assert math.isinf(read.limit) and type(read.pair[1]) is float and read.inner.names == ("a",)
    assert write_document(read) == {**OUTER, "pair": [1, 2.0], "inside": [], "counts": {}, "entries": {}}
    assert read_outer(entries={"b": {"size": 1}, "a": {"size": 2}}).entries == (Entry("b", 1), Entry("a", 2))
    written = write_document(read_outer(entries={"b": {"size": 1}}, inner={"class": 0.1, "names": [], "note": "x"}))
    assert written["entries"] == {"b": {"size": 1}} and written["inner"]["note"] == "x"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pair": [1]}, "pair in the document must be a list of 2, got [1]"),
        ({"pair": [1, 2, 3]}, "pair in the document must be a list of 2, got [1, 2, 3]"),
        ({"pair": [1.0, 2]}, "pair.0 in the document must be a whole number, got 1.0"),
        ({"pair": [1, math.nan]}, "pair.1 in the document must be a number, got nan"),
        ({"limit": math.nan}, "limit in the document must be a number or 'inf', got nan"),
        (
            {"cell": math.inf},
            "cell in the document must be a number, a whole number, true or false, text or null, got inf",
        ),
        ({"cell": [1]}, "cell in the document must be a number, a whole number, true or false, text or null, got [1]"),
        (
            {"inner": {"class": math.inf, "names": []}},
            "inner.class in the document must be a number from 0 to 1, got inf",
        ),
        ({"counts": {"a": -1}}, "counts.a in the document must be a whole number from 0, got -1"),
        (
            {"entries": [{"name": "a", "size": 1}]},
            "entries in the document must be an object, got [{'name': 'a', 'size': 1}]",
        ),
        ({"entries": {"a": {"size": 1}, "b": 3}}, "entries.b in the document must be an object, got 3"),
        ({"entries": {"a": {"size": -1}}}, "entries.a.size in the document must be a whole number from 0, got -1"),
        ({"entries": {"a": {}}}, "the document lacks the field 'entries.a.size'"),
        ({"entries": {"a": {"size": 1, "name": "a"}}}, "entries in the document: 'a' has the unknown field 'name'"),
        (
            {"entries": {"a": {"size": 1, "more": 1}}},
            "the document has the unknown field 'entries.a.more'; the fields of entries.a are size",
        ),
        ({"counts": {7: 1}}, "the names in counts in the document must be text, got 7"),
        ({"inside": [OUTER["inner"], 3]}, "inside.1 in the document must be an object, got 3"),
        ({"inside": [{"class": 0.5, "names": ["a"]}]}, "inside.0 in the document: a half has no names"),
        ({"inside": [{}]}, "the document lacks the field 'inside.0.class'"),
        ({"inner": {"class": "x" * 200}}, "inner.class in the document must be a number from 0 to 1, got '" + "x" * 79),
        ({"pair": [10**5000, "a"]}, "pair.1 in the document must be a number, got 'a'"),
        ({"pair": 10**5000}, "pair in the document must be a list of 2, got a number of thousands of digits"),
    ],
)
def test_the_first_fault_is_named_by_its_path(changes, message):
    with pytest.raises(DataError) as caught:
        read_outer(**{"inside": [], "counts": {}, "entries": {}} | changes, defaults="inside.0.class" in message)
    assert str(caught.value) == message


def test_the_order_of_fields_may_be_part_of_a_format():
    reordered = {"inner": {"names": [], "class": 1.0}, "cell": 1, "limit": 1.0, "pair": [1, 2.0]}
    read_document(reordered, Outer, "the document", DataError, defaults=True)
    with pytest.raises(DataError, match="the fields of inner in the document are not in the order of the format"):
        read_document(reordered, Outer, "the document", DataError, defaults=True, ordered=True)
    with pytest.raises(DataError, match="the document lacks the field 'inside'"):
        read_document(OUTER, Outer, "the document", DataError)


def test_what_is_made_in_python_is_held_to_the_same_conditions():
    """Scalars of numpy pass for the numbers that they hold."""
    check_fields(Inner(np.float64(0.3), ["a"]), "an inner", DataError)
    with pytest.raises(DataError, match=r"^label of an inner must be a number from 0 to 1, got 7\.0$"):
        check_fields(Inner(np.float32(7)), "an inner", DataError)
    with pytest.raises(DataError, match=r"^label must be a number from 0 to 1, got nan$"):
        check_fields(Inner(math.nan), "", DataError)
    with pytest.raises(DataError, match=r"^pair\.1 of an outer must be a number, got inf$"):
        check_fields(Outer(Inner(0.5), 1, 1.0, (1, math.inf)), "an outer", DataError)
    outer = Outer(Inner(0.5), 1, 1.0, (1, 2.0), (Inner(0.5), Inner("x")), entries=(Entry("a", 1),))
    with pytest.raises(DataError, match=r"^inside\.1\.label of an outer must be a number from 0 to 1, got 'x'$"):
        check_fields(outer, "an outer", DataError)


def test_files_that_are_no_documents_are_refused_in_a_sentence(tmp_path):
    for data, message in (
        (b"{", "is not valid JSON: Expecting"),
        (b"\xff", "is not valid JSON: 'utf-8'"),
        (b'{"a": 1, "a": 2}', "is not valid JSON: the name 'a' occurs twice"),
        (b"[NaN]", "is not valid JSON: NaN is not a JSON number"),
        (b"[" * 100_000, "is not valid JSON: it is nested"),
        (b"[]", r"^the document must be an object, got \[\]$"),
    ):
        (tmp_path / "a.json").write_bytes(data)
        with pytest.raises(DataError, match=message):
            read_document(load_json(tmp_path / "a.json", "the document", DataError), Outer, "the document", DataError)
    with pytest.raises(DataError, match=r"cannot read the document .*none\.json: No such file"):
        read_document(load_json(tmp_path / "none.json", "the document", DataError), Outer, "the document", DataError)


def test_a_document_of_many_faults_is_refused_soon():
    """The first fault ends a list."""
    with pytest.raises(DataError, match=r"inside\.0 in the document must be an object, got 0"):
        read_outer(inside=list(range(1_000_000)))
