"""The manifest: what binds a table of claims to its protocol, model and rows, and names the files that hold them.

Its fields are exactly those of docs/format.md, in that order. What the protocol and the format imply is not taken from
the manifest but compared with it, so no word of it can be changed in anyone's favour.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from fragility.canonical import digest_of
from fragility.certificates.claims import EXTENTS
from fragility.certificates.digests import FORMAT
from fragility.certificates.lattice import DECLARED
from fragility.errors import CertificateError
from fragility.protocol import Protocol

CLAIM = "fragility_witness"
LIMITS = (
    "A witness under the declared protocol, not a proof of robustness: it shows one trajectory on which the prediction "
    "loses support. The greedy flip budget is an upper bound on the smallest failing set, never the minimum."
)
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
# <what>-<first 16 digits of the file's SHA-256>: a name has one content for ever, so writing spoils nothing being read.
# A part of the certificates has its place in the input before that, counted from 00000.
CONTENT_NAME = re.compile(
    r"(?P<kind>certificates)-(?P<place>\d{5,})-(?P<part>[0-9a-f]{16})\.parquet"
    r"|(?P<beside>searched|baselines)-(?P<table>[0-9a-f]{16})\.parquet"
    r"|(?P<document>protocol|protocol-signature)-(?P<digest>[0-9a-f]{16})\.json"
)
VERSION = re.compile(r"[\w.+!-]{1,64}")

FIELDS = (
    *("format", "claim", "limits", "protocol_digest", "training_digest", "model", "input", "engine", "tolerance"),
    *("versions", "rows", "root_digest", "claims", "lattice", "baselines", "protocol_signature"),
)
SAVED_FIELDS = (*FIELDS, "files", "manifest_digest")
LATTICE = (*DECLARED, "root_digest")
BASELINES = ("rows", "figures", "rows_by_baselines", "verdict")
PARTS = {
    "model": ("kind", "fingerprint", "classes", "probabilities", "partial"),
    "input": ("digest", "rows"),
    "engine": ("name", "evaluations", "paper_evaluations", "blackbox_rows"),
    "tolerance": ("margin", "probability"),
}
COUNTS = (
    *(("rows",), ("input", "rows")),
    *(("engine", "evaluations"), ("engine", "paper_evaluations"), ("engine", "blackbox_rows")),
)
DIGESTS = (("protocol_digest",), ("root_digest",), ("input", "digest"))
TEXTS = (
    *(("training_digest",), ("engine", "name")),
    *(("model", "kind"), ("model", "fingerprint"), ("model", "probabilities")),
)


def manifest_text(document: Mapping[str, Any]) -> str:
    """Return the manifest's file text, with its own digest as last field."""
    body = {key: value for key, value in document.items() if key != "manifest_digest"}
    return (
        json.dumps({**body, "manifest_digest": digest_of(body)}, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    )


def check_manifest(manifest: Mapping[str, Any], *, saved: bool) -> None:
    """Refuse a manifest that has not exactly the fields and types of the format."""
    _check_names("the manifest", manifest, SAVED_FIELDS if saved else FIELDS)
    for part, names in PARTS.items():
        _check_names(f"{part} in the manifest", manifest[part], names)
    for path in COUNTS:
        value = _at(manifest, path)
        _require(path, "a whole number from 0", value, type(value) is int and 0 <= value < 2**53)
    for path in DIGESTS:
        _require(path, "a digest", _at(manifest, path), _is_digest(_at(manifest, path)))
    for path in TEXTS:
        _require(path, "text", _at(manifest, path), isinstance(_at(manifest, path), str))
    check_classes(manifest["model"]["classes"])
    reasons = manifest["model"]["partial"]
    _require(("model", "partial"), "a list of text", reasons, _is_list_of(reasons, str))
    _check_versions(manifest["versions"])
    _require(("claims",), f"one of {', '.join(EXTENTS)}", manifest["claims"], manifest["claims"] in EXTENTS)
    if manifest["lattice"] is not None:
        _check_names("lattice in the manifest", manifest["lattice"], LATTICE)
        root = manifest["lattice"]["root_digest"]
        _require(("lattice", "root_digest"), "a digest", root, _is_digest(root))
    if manifest["baselines"] is not None:
        _check_names("baselines in the manifest", manifest["baselines"], BASELINES)
    signature = manifest["protocol_signature"]
    _require(("protocol_signature",), "null or a digest", signature, signature is None or _is_digest(signature))
    if saved:
        _check_files(manifest["files"], [*tables_beside(manifest), "protocol"], signature)


def check_words(manifest: Mapping[str, Any], protocol: Protocol, engines: Sequence[str]) -> None:
    """Refuse a manifest whose words are not those that its protocol and format imply."""
    audited = manifest["input"]["rows"]
    implied = {
        ("format",): FORMAT,
        ("claim",): CLAIM,
        ("limits",): LIMITS,
        ("training_digest",): protocol.training_digest,
        ("tolerance",): declared_tolerance(protocol),
        ("engine", "paper_evaluations"): audited * protocol.states_per_row,
    }
    for path, value in implied.items():
        if not identical(_at(manifest, path), value):
            raise CertificateError(
                f"the manifest states {'.'.join(path)} {_at(manifest, path)!r}, its protocol and format imply {value!r}"
            )
    if manifest["engine"]["name"] not in engines:
        raise CertificateError(f"the manifest names the engine {manifest['engine']['name']!r}, which does not exist")
    engine, asked = manifest["engine"]["name"], manifest["engine"]["blackbox_rows"]
    if asked > audited or (engine == "blackbox" and asked != audited):
        raise CertificateError(
            f"the manifest states engine.blackbox_rows {asked} of {audited} audited rows, by the engine {engine!r}"
        )
    if audited < manifest["rows"]:
        raise CertificateError(f"the manifest declares {manifest['rows']} certificates of {audited} audited rows")


def declared_tolerance(protocol: Protocol) -> dict[str, float]:
    """Return how far a recomputed float may lie; it follows from the protocol, so nobody can widen it."""
    return {"margin": protocol.resolution, "probability": protocol.resolution}


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


def _at(manifest: Mapping[str, Any], path: Sequence[str]) -> Any:
    value: Any = manifest
    for name in path:
        value = value[name]
    return value


def _require(path: Sequence[str], wanted: str, value: Any, holds: bool) -> None:
    if not holds:
        raise CertificateError(f"{'.'.join(path)} in the manifest must be {wanted}, got {value!r:.80}")


def _is_digest(value: Any) -> bool:
    return isinstance(value, str) and DIGEST.fullmatch(value) is not None


def _is_list_of(values: Any, kind: type) -> bool:
    return isinstance(values, list) and all(type(value) is kind for value in values)


def check_classes(classes: Any) -> None:
    alike = any(_is_list_of(classes, kind) for kind in (str, int, bool, float))
    distinct = alike and len(set(classes)) == len(classes) >= 2
    _require(("model", "classes"), "at least two distinct labels of one type", classes, distinct)


def _check_versions(versions: Any) -> None:
    texts = isinstance(versions, Mapping) and all(
        isinstance(text, str) and VERSION.fullmatch(text) for pair in versions.items() for text in pair
    )
    _require(("versions",), "names of libraries and their versions", versions, texts)


def kind_of(name: str) -> str:
    """Return what a data file holds, by its name: certificates, searched, baselines, protocol ..."""
    match = CONTENT_NAME.fullmatch(name)
    return "" if match is None else match["kind"] or match["beside"] or match["document"]


def tables_beside(manifest: Mapping[str, Any]) -> list[str]:
    """Return the kinds of tables that lie beside the parts, in the order in which the manifest names them."""
    lattice = manifest["lattice"]
    searched = lattice is not None and lattice["most_exposed"] is not None
    compared = manifest["baselines"] is not None
    return [*(["searched"] if searched else []), *(["baselines"] if compared else [])]


def _check_files(files: Any, others: list[str], signature: str | None) -> None:
    named = isinstance(files, Mapping) and all(
        _is_digest(digest) and isinstance(name, str) and digest[7:23] == digest_in_name(name)
        for name, digest in files.items()
    )
    _require(("files",), "file names that begin their own digests", files, bool(named))
    documents = others if signature is None else [*others, "protocol-signature"]
    parts = len(files) - len(documents)
    named_as = [(match["place"], kind_of(name)) for name in files if (match := CONTENT_NAME.fullmatch(name))]
    expected = [*((place_text(i), "certificates") for i in range(parts)), *((None, kind) for kind in documents)]
    if parts < 1 or named_as != expected:
        raise CertificateError(
            "files in the manifest must name the parts of the certificates in order, from 00000, then the table of "
            "searched rows if only some were, that of the baselines if they were compared, then one protocol, then the "
            f"envelope of protocol_signature if there is one, got {list(files)[:4]}"
        )
    if signature is not None and list(files.values())[-1] != signature:
        raise CertificateError("files in the manifest must name the envelope of protocol_signature, and no other")


def digest_in_name(name: str) -> str | None:
    """Return the digits of the digest that a data file's name holds; None for any other name."""
    match = CONTENT_NAME.fullmatch(name)
    return None if match is None else match["part"] or match["table"] or match["digest"]


def place_text(place: int) -> str:
    """Return a part's place as file names have it, e.g. ``00012``."""
    return f"{place:05d}"
