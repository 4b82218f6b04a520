"""The manifest: what binds a table of claims to its protocol, model and rows, and names the files that hold them.

Its fields are exactly those of docs/format.md, in that order; nothing else in the code knows their names in JSON. What
the protocol and the format imply is not taken from the manifest but compared with it, so that nobody can change a word
of it in their favour.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from fragility.base.canonical import digest_of
from fragility.base.errors import CertificateError
from fragility.base.files import CONTENT_NAME, parse_json
from fragility.base.text import BriefRepr
from fragility.blocks.block import BlockDeclaration
from fragility.blocks.claims import EXTENTS, FORMAT, Extent
from fragility.blocks.intervals.values import IntervalsDeclaration
from fragility.blocks.lattice.values import LatticeDeclaration
from fragility.blocks.modes import ModesDeclaration
from fragility.models import ClassLabel
from fragility.protocol import Protocol

CLAIM = "fragility_witness"
LIMITS = (
    "A witness under the declared protocol, not a proof of robustness: it shows one trajectory on which the prediction "
    "loses support. The greedy flip budget is an upper bound on the smallest failing set, never the minimum."
)
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
VERSION = re.compile(r"[\w.+!-]{1,64}")


@dataclass(frozen=True, slots=True)
class AuditedModel:
    """The model that was audited."""

    kind: str
    fingerprint: str
    classes: tuple[ClassLabel, ...]
    probabilities: str  # how its output becomes probabilities
    partial: tuple[str, ...]  # what the fingerprint cannot see


@dataclass(frozen=True, slots=True)
class AuditedRows:
    """The rows that were audited, of which the certificates here may be a selection."""

    digest: str
    rows: int


@dataclass(frozen=True, slots=True)
class EngineUse:
    """The engine that traced the rows, and how many rows were put to the model for it."""

    name: str
    evaluations: int
    paper_evaluations: int  # what the definitions ask for without any shortcut
    blackbox_rows: int  # rows for which the model was asked instead


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How far a recomputed float may lie from the one claimed."""

    margin: float
    probability: float

    @classmethod
    def of(cls, protocol: Protocol) -> Tolerance:
        """Return the tolerance that follows from a protocol, so that nobody can widen it."""
        return cls(protocol.resolution, protocol.resolution)


@dataclass(frozen=True, slots=True)
class ComparedBaselines:
    """What a comparison of baselines found (``BaselineComparison.section``)."""

    rows: int
    figures: list[dict[str, Any]]  # under each baseline, the declared one first
    rows_by_baselines: list[int]  # how many rows flip early under 0, 1, 2 ... of the baselines
    agreements: list[dict[str, Any]]  # how far each other baseline agrees with the declared one
    verdict: str


@dataclass(frozen=True, slots=True, repr=False)
class Manifest(BriefRepr):
    """What an audit says of itself; the fields have the names and the order of the file."""

    format: str
    claim: str
    limits: str
    protocol_digest: str
    training_digest: str
    model: AuditedModel
    input: AuditedRows
    engine: EngineUse
    tolerance: Tolerance
    versions: dict[str, str]  # of the libraries that took part, by name
    rows: int  # certificates that are here
    root_digest: str
    claims: Extent
    lattice: LatticeDeclaration | None = None  # None without a lattice block
    modes: ModesDeclaration | None = None  # None without a modes block
    intervals: IntervalsDeclaration | None = None  # None without an intervals block
    baselines: ComparedBaselines | None = None  # None where baselines were not compared
    protocol_signature: str | None = None  # digest of the envelope that signed the protocol before the audit
    files: dict[str, str] | None = None  # digests by file name; None for an audit in memory
    lattice_root_digest: str | None = None  # in the file, the last field of lattice
    modes_root_digest: str | None = None  # in the file, the last field of modes
    intervals_root_digest: str | None = None  # in the file, the last field of intervals

    @property
    def beside(self) -> dict[str, BlockDeclaration]:
        """The blocks that stand in tables of their own, by name, in the order of their files."""
        blocks = {"modes": self.modes, "intervals": self.intervals}
        return {name: declared for name, declared in blocks.items() if declared is not None}

    @property
    def is_selection(self) -> bool:
        """Whether these are some of the certificates of an audit, such as the most fragile."""
        return self.input.rows != self.rows

    def files_of(self, kind: str) -> list[str]:
        """Return the names of the files that hold certificates, searched, baselines, protocol ..., in order."""
        return [name for name in self.files or {} if kind_of(name) == kind]

    @classmethod
    def from_dict(cls, document: Mapping[str, Any], *, saved: bool = False) -> Manifest:
        """Return the manifest in a document; refuse one that has not exactly the fields and types of the format.

        A saved one also names its files and has its own digest.
        """
        _check_document(document, saved)
        own = {name: value for name, value in document.items() if name != "manifest_digest"}
        model, baselines = own["model"], own["baselines"]
        typed: dict[str, Any] = {
            "model": AuditedModel(**{**model, "classes": tuple(model["classes"]), "partial": tuple(model["partial"])}),
            "input": AuditedRows(**own["input"]),
            "engine": EngineUse(**own["engine"]),
            "tolerance": Tolerance(**own["tolerance"]),
            "baselines": baselines and ComparedBaselines(**baselines),
        }
        for name, declaration in BLOCKS.items():
            if own[name] is not None:
                declared = dict(own[name])
                typed[f"{name}_root_digest"] = declared.pop("root_digest")
                typed[name] = declaration(**declared)
        return cls(**{**own, **typed})

    def to_dict(self) -> dict[str, Any]:
        """Return the document without its own digest; ``files`` only where they are known."""
        document = asdict(self)
        document["model"] |= {"classes": list(self.model.classes), "partial": list(self.model.partial)}
        for name in BLOCKS:
            root = document.pop(f"{name}_root_digest")
            if document[name] is not None:
                document[name]["root_digest"] = root
        if self.files is None:
            del document["files"]
        return document

    @classmethod
    def from_bytes(cls, data: bytes, path: Path) -> Manifest:
        """Return the manifest in a file's bytes; refuse any that are not those that ``to_bytes`` writes."""
        manifest = cls.from_dict(parse_manifest(data, path), saved=True)
        if data != manifest.to_bytes():
            raise CertificateError(f"{path} was changed after it was written: its digest is not its own")
        return manifest

    def to_bytes(self) -> bytes:
        """Return the content of the manifest's file."""
        return manifest_text(self.to_dict()).encode()


BLOCKS: dict[str, type[LatticeDeclaration] | type[BlockDeclaration]] = {
    "lattice": LatticeDeclaration,
    "modes": ModesDeclaration,
    "intervals": IntervalsDeclaration,
}
BLOCK_FIELDS = {
    name: (*(field.name for field in fields(declaration)), "root_digest") for name, declaration in BLOCKS.items()
}
SAVED_FIELDS = (
    *(field.name for field in fields(Manifest) if not field.name.endswith("_root_digest")),
    "manifest_digest",
)
BASELINES = tuple(field.name for field in fields(ComparedBaselines))
PARTS = {
    name: tuple(field.name for field in fields(part))
    for name, part in {"model": AuditedModel, "input": AuditedRows, "engine": EngineUse, "tolerance": Tolerance}.items()
}


def manifest_text(document: Mapping[str, Any]) -> str:
    """Return the text of a manifest's file, with its own digest as last field."""
    body = {key: value for key, value in document.items() if key != "manifest_digest"}
    return (
        json.dumps({**body, "manifest_digest": digest_of(body)}, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    )


def parse_manifest(data: bytes, path: Path) -> dict[str, Any]:
    """Return the document in a manifest's file as it stands; refuse what is not one, or another version."""
    try:
        document = parse_json(data.decode("utf-8"))
    except ValueError as error:
        raise CertificateError(f"cannot read {path}: {error}") from error
    version = document.get("format") if isinstance(document, dict) else None
    if version != FORMAT:
        raise CertificateError(f"{path} has format {version!r}, this version reads {FORMAT!r}; use another fragility")
    return dict(document)


def named_files(data: bytes, path: Path) -> set[str] | None:
    """Return the files that a manifest names, which may be malformed otherwise; None where that cannot be told."""
    files = parse_manifest(data, path).get("files")
    return set(files) if isinstance(files, dict) else None


# --- checks ---------------------------------------------------------------------------------------------------


def is_digest(value: Any) -> bool:
    """Whether a value is ``sha256:`` and 64 hexadecimal digits."""
    return isinstance(value, str) and DIGEST.fullmatch(value) is not None


def _names_versions(value: Any) -> bool:
    return isinstance(value, Mapping) and all(
        isinstance(text, str) and VERSION.fullmatch(text) for pair in value.items() for text in pair
    )


def _is_list_of(values: Any, kind: type) -> bool:
    return isinstance(values, list) and all(type(value) is kind for value in values)


# What the values of single fields must be.
RULES: tuple[tuple[str, Callable[[Any], bool], tuple[str, ...]], ...] = (
    (
        "a whole number from 0",
        lambda value: type(value) is int and 0 <= value < 2**53,
        ("rows", "input.rows", "engine.evaluations", "engine.paper_evaluations", "engine.blackbox_rows"),
    ),
    ("a digest", is_digest, ("protocol_digest", "root_digest", "input.digest")),
    ("null or a digest", lambda value: value is None or is_digest(value), ("protocol_signature",)),
    (
        "text",
        lambda value: isinstance(value, str),
        ("training_digest", "engine.name", "model.kind", "model.fingerprint", "model.probabilities"),
    ),
    ("a list of text", lambda value: _is_list_of(value, str), ("model.partial",)),
    ("names of libraries and their versions", _names_versions, ("versions",)),
    (f"one of {', '.join(EXTENTS)}", lambda value: value in EXTENTS, ("claims",)),
)


def _check_document(document: Mapping[str, Any], saved: bool) -> None:
    _check_names("the manifest", document, SAVED_FIELDS if saved else SAVED_FIELDS[:-2])
    for part, names in PARTS.items():
        _check_names(f"{part} in the manifest", document[part], names)
    for wanted, holds, paths in RULES:
        for path in paths:
            _require(path, wanted, _at(document, path), holds(_at(document, path)))
    check_classes(document["model"]["classes"])
    for block, names in BLOCK_FIELDS.items():
        if document[block] is not None:
            _check_names(f"{block} in the manifest", document[block], names)
            root = document[block]["root_digest"]
            _require(f"{block}.root_digest", "a digest", root, is_digest(root))
    for block, name in (("lattice", "most_exposed"), ("modes", "most_confident"), ("intervals", "most_exposed")):
        if document[block] is not None:
            most = document[block][name]
            whole = type(most) is int and 1 <= most < 2**53
            _require(f"{block}.{name}", "null or a whole number from 1", most, most is None or whole)
    if document["modes"] is not None:
        units = document["modes"]["units"]
        listed = isinstance(units, dict) and all(_is_list_of(names, str) for names in units.values())
        _require("modes.units", "an object of lists of text", units, listed)
    if document["intervals"] is not None:
        for name in ("fields", "single"):
            names = document["intervals"][name]
            _require(f"intervals.{name}", "a list of text", names, _is_list_of(names, str))
    if document["baselines"] is not None:
        _check_names("baselines in the manifest", document["baselines"], BASELINES)
    if saved:
        _check_files(document)


def check_words(manifest: Manifest, protocol: Protocol, engines: Sequence[str]) -> None:
    """Refuse a manifest whose words are not those that its protocol and format imply."""
    stated, audited, engine = manifest.to_dict(), manifest.input.rows, manifest.engine
    implied = {
        "format": FORMAT,
        "claim": CLAIM,
        "limits": LIMITS,
        "training_digest": protocol.training_digest,
        "tolerance": asdict(Tolerance.of(protocol)),
        "engine.paper_evaluations": audited * protocol.states_per_row,
    }
    for path, value in implied.items():
        if not identical(_at(stated, path), value):
            raise CertificateError(
                f"the manifest states {path} {_at(stated, path)!r}, its protocol and format imply {value!r}"
            )
    if engine.name not in engines:
        raise CertificateError(f"the manifest names the engine {engine.name!r}, which does not exist")
    if engine.blackbox_rows > audited or (engine.name == "blackbox" and engine.blackbox_rows != audited):
        raise CertificateError(
            f"the manifest states engine.blackbox_rows {engine.blackbox_rows} of {audited} audited rows, by the "
            f"engine {engine.name!r}"
        )
    if audited < manifest.rows:
        raise CertificateError(f"the manifest declares {manifest.rows} certificates of {audited} audited rows")


def identical(a: Any, b: Any) -> bool:
    """True for equal JSON values of equal types: 1, 1.0, true and "1" are four different values."""
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(identical(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(identical, a, b))
    return bool(a == b)


def _check_names(where: str, value: Any, names: Sequence[str]) -> None:
    if not isinstance(value, Mapping):
        raise CertificateError(f"{where} must be an object, got {type(value).__name__}")
    for name in names:
        if name not in value:
            raise CertificateError(f"{where} lacks the field {name!r}")
    for name in value:
        if name not in names:
            raise CertificateError(f"{where} has a field {name!r}, which the format does not know")
    if list(value) != list(names):
        raise CertificateError(f"the fields of {where} are not in the order of the format")


def _at(document: Mapping[str, Any], path: str) -> Any:
    value: Any = document
    for name in path.split("."):
        value = value[name]
    return value


def _require(path: str, wanted: str, value: Any, holds: bool) -> None:
    if not holds:
        raise CertificateError(f"{path} in the manifest must be {wanted}, got {value!r:.80}")


def check_classes(classes: Any) -> None:
    alike = any(_is_list_of(classes, kind) for kind in (str, int, bool, float))
    distinct = alike and len(set(classes)) == len(classes) >= 2
    _require("model.classes", "at least two distinct labels of one type", classes, distinct)


def kind_of(name: str) -> str:
    """Return what a data file holds, by its name: certificates, searched, baselines, protocol ..."""
    match = CONTENT_NAME.fullmatch(name)
    return "" if match is None else match["kind"] or match["beside"] or match["document"]


def _check_files(document: Mapping[str, Any]) -> None:
    """Refuse other files than the parts, the tables beside them that the manifest speaks of, and the documents."""
    files, lattice = document["files"], document["lattice"]
    named = isinstance(files, Mapping) and all(
        is_digest(digest) and isinstance(name, str) and digest[7:23] == digest_in_name(name)
        for name, digest in files.items()
    )
    _require("files", "file names that begin their own digests", files, bool(named))
    blocks = {name: document[name] for name in ("modes", "intervals") if document[name] is not None}
    most = {"modes": "most_confident", "intervals": "most_exposed"}
    partial = {name: declared[most[name]] is not None for name, declared in blocks.items()}
    beside = {
        "searched": lattice is not None and lattice["most_exposed"] is not None,
        **partial,
        "baselines": document["baselines"] is not None,
        "protocol": True,
        "protocol-signature": document["protocol_signature"] is not None,
    }
    found = [(match["place"], kind_of(name)) for name in files if (match := CONTENT_NAME.fullmatch(name))]
    places = [place_text(i) for i in range(sum(kind == "certificates" for _, kind in found))]
    in_parts = ["certificates", *(name for name in blocks if not partial[name])]
    expected: list[tuple[str | None, str]] = [(place, kind) for kind in in_parts for place in places]
    expected += [(None, kind) for kind, there in beside.items() if there]
    if not places or found != expected:
        raise CertificateError(
            "files in the manifest must name the parts of the certificates in order, from 00000, then the modes and "
            "the intervals of each part if every row has them, the table of searched rows if only some were, that of "
            "the modes and that of the intervals if some rows have them, that of the baselines if they were compared, "
            "then one protocol, then the envelope of protocol_signature if there is one, got "
            f"{list(files)[:4]}"
        )
    signature = document["protocol_signature"]
    if signature is not None and list(files.values())[-1] != signature:
        raise CertificateError("files in the manifest must name the envelope of protocol_signature, and no other")


def digest_in_name(name: str) -> str | None:
    """Return the digits of the digest that a data file's name holds; None for any other name."""
    match = CONTENT_NAME.fullmatch(name)
    return None if match is None else match["part"] or match["table"] or match["digest"]


def place_text(place: int) -> str:
    """Return a part's place as file names have it, e.g. ``00012``."""
    return f"{place:05d}"
