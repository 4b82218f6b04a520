"""The manifest: what binds a table of claims to its protocol, model and rows, and names the files that hold them.

Its fields are exactly those of docs/format.md, in that order; nothing else in the code knows their names in JSON. What
the protocol and the format imply is not taken from the manifest but compared with it, so that nobody can change a word
of it in their favour.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, TypeAlias, TypeVar

from fragility.base.canonical import digest_of
from fragility.base.errors import CertificateError
from fragility.base.files import CONTENT_NAME
from fragility.base.schemas import (
    OPTIONAL,
    Count,
    Digest,
    Must,
    check_format,
    is_digest,
    parse_text,
    read_document,
    write_document,
)
from fragility.base.text import BriefRepr
from fragility.blocks.all import BLOCKS, read_declarations
from fragility.blocks.block import Declaration
from fragility.blocks.claims import FORMAT, Extent
from fragility.models import ClassLabel
from fragility.protocol import Protocol

CLAIM = "fragility_witness"
LIMITS = (
    "A witness under the declared protocol, not a proof of robustness: it shows one trajectory on which the prediction "
    "loses support. The greedy flip budget is an upper bound on the smallest failing set, never the minimum."
)
WHAT = "the manifest"
VERSION = re.compile(r"[\w.+!-]{1,64}")


def _are_classes(classes: Sequence[ClassLabel]) -> bool:
    return len({type(label) for label in classes}) == 1 and len(set(classes)) == len(classes) >= 2


def _are_versions(versions: Mapping[str, str]) -> bool:
    return all(VERSION.fullmatch(text) for pair in versions.items() for text in pair)


def _are_files(files: Mapping[str, str]) -> bool:
    return all(is_digest(digest) and digest[7:23] == digest_in_name(name) for name, digest in files.items())


Classes: TypeAlias = Annotated[tuple[ClassLabel, ...], Must("at least two distinct labels of one type", _are_classes)]
Versions: TypeAlias = Annotated[dict[str, str], Must("names of libraries and their versions", _are_versions)]
Declarations: TypeAlias = dict[str, Any]  # name of a block -> its Declaration
Declared = TypeVar("Declared", bound=Declaration)
Files: TypeAlias = Annotated[dict[str, str], Must("file names that begin their own digests", _are_files)]


@dataclass(frozen=True, slots=True)
class AuditedModel:
    """The model that was audited."""

    kind: str
    fingerprint: str
    classes: Classes
    probabilities: str  # how its output becomes probabilities
    partial: tuple[str, ...]  # what the fingerprint cannot see


@dataclass(frozen=True, slots=True)
class AuditedRows:
    """The rows that were audited, of which the certificates here may be a selection."""

    digest: Digest
    rows: Count


@dataclass(frozen=True, slots=True)
class EngineUse:
    """The engine that traced the rows, and how many rows were put to the model for it."""

    name: str
    evaluations: Count
    blackbox_rows: Count  # rows for which the model was asked instead


@dataclass(frozen=True, slots=True, repr=False)
class Manifest(BriefRepr):
    """What an audit says of itself; the fields have the names and the order of the file."""

    format: str
    claim: str
    limits: str
    protocol_digest: Digest
    model: AuditedModel
    input: AuditedRows
    engine: EngineUse
    versions: Versions  # of the libraries that took part, by name
    rows: Count  # certificates that are here
    root_digest: Digest
    claims: Extent
    blocks: Declarations = field(default_factory=dict)  # of the blocks that are there, by name, in the order of BLOCKS
    protocol_signature: Digest | None = None  # digest of the envelope that signed the protocol before the audit
    # Digests by file name; None for an audit in memory.
    files: Files | None = field(default=None, metadata=OPTIONAL)

    @property
    def is_selection(self) -> bool:
        """Whether these are some of the certificates of an audit, such as the most fragile."""
        return self.input.rows != self.rows

    def files_of(self, kind: str) -> list[str]:
        """Return the names of the files that hold certificates, a block, the protocol ..., in order."""
        return [name for name in self.files or {} if kind_of(name) == kind]

    def find_block(self, kind: type[Declared]) -> Declared | None:
        """Return the declaration of this kind; None without such a block."""
        return next((own for own in self.blocks.values() if isinstance(own, kind)), None)

    def without_blocks(self) -> Manifest:
        """Return what the manifest says of the claims alone."""
        return replace(self, blocks={})

    @classmethod
    def from_dict(cls, document: Mapping[str, Any], *, saved: bool = False) -> Manifest:
        """Return the manifest in a document; refuse one that has not exactly the fields and types of the format.

        A saved one also names its files and has its own digest.
        """
        plain = dict(document) if isinstance(document, Mapping) else document
        blocks: dict[str, Declaration] = {}
        if isinstance(plain, dict):
            if saved and "files" not in plain:
                raise CertificateError(f"{WHAT} lacks the field 'files'")
            if "blocks" in plain:
                blocks, plain["blocks"] = read_declarations(plain["blocks"], WHAT), {}
        beside = {"manifest_digest": str} if saved else {}
        read = replace(
            read_document(plain, cls, WHAT, CertificateError, format=FORMAT, beside=beside, ordered=True), blocks=blocks
        )
        if saved:
            read.check_files()
        return read

    def to_dict(self) -> dict[str, Any]:
        """Return the document without its own digest; ``files`` only where they are known."""
        document: dict[str, Any] = write_document(self.without_blocks())
        return document | {"blocks": {name: own.to_dict() for name, own in self.blocks.items()}}

    def check_files(self) -> None:
        """Refuse other files than the parts, the tables beside them that the manifest speaks of, and the documents."""
        files = self.files or {}
        named = [(match["place"], kind_of(name)) for name in files if (match := CONTENT_NAME.fullmatch(name))]
        places = [place_text(i) for i in range(sum(kind == "certificates" for _, kind in named))]
        expected: list[tuple[str | None, str]] = [(place, "certificates") for place in places]
        for name, declared in self.blocks.items():
            expected += [(None, name)] if declared.is_partial else [(place, name) for place in places]
        expected += [(None, "protocol")]
        expected += [(None, "protocol-signature")] if self.protocol_signature is not None else []
        if not places or named != expected:
            raise CertificateError(
                "files in the manifest must name the parts of the certificates in order, from 00000, then the tables "
                "of each block in order, one for each part or one of chosen rows, then one protocol, then the envelope "
                f"of protocol_signature if there is one, got {list(files)[:4]}"
            )
        if self.protocol_signature is not None and list(files.values())[-1] != self.protocol_signature:
            raise CertificateError("files in the manifest must name the envelope of protocol_signature, and no other")

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


def manifest_text(document: Mapping[str, Any]) -> str:
    """Return the text of a manifest's file, with its own digest as last field."""
    body = {key: value for key, value in document.items() if key != "manifest_digest"}
    return (
        json.dumps({**body, "manifest_digest": digest_of(body)}, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    )


def parse_manifest(data: bytes, path: Path) -> dict[str, Any]:
    """Return the document in a manifest's file as it stands; refuse what is not one, or another version."""
    document = parse_text(data, str(path), CertificateError)
    check_format(document, FORMAT, str(path), CertificateError)
    return dict(document)


def named_files(data: bytes, path: Path) -> set[str] | None:
    """Return the files that a manifest names, which may be malformed otherwise; None where that cannot be told."""
    files = parse_manifest(data, path).get("files")
    return set(files) if isinstance(files, dict) else None


# --- checks ---------------------------------------------------------------------------------------------------


def check_words(manifest: Manifest, protocol: Protocol, engines: Sequence[str]) -> None:
    """Refuse a manifest whose words are not those that its protocol and format imply."""
    stated, audited, engine = manifest.to_dict(), manifest.input.rows, manifest.engine
    implied = {
        "format": FORMAT,
        "claim": CLAIM,
        "limits": LIMITS,
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


def _at(document: Mapping[str, Any], path: str) -> Any:
    value: Any = document
    for name in path.split("."):
        value = value[name]
    return value


def kind_of(name: str) -> str:
    """Return what a data file holds, by its name: certificates, protocol, the name of a block; empty for others."""
    match = CONTENT_NAME.fullmatch(name)
    kind = "" if match is None else match["kind"] or match["table"] or match["document"]
    return kind if kind in ("certificates", "protocol", "protocol-signature", *BLOCKS) else ""


def digest_in_name(name: str) -> str | None:
    """Return the digits of the digest that a data file's name holds; None for any other name."""
    match = CONTENT_NAME.fullmatch(name) if kind_of(name) else None
    return None if match is None else match["part"] or match["beside"] or match["digest"]


def place_text(place: int) -> str:
    """Return a part's place as file names have it, e.g. ``00012``."""
    return f"{place:05d}"
