"""The sources of a pack: the audit and what else was handed in, where each lies, and whether they belong together.

An earlier audit, true classes, labels of held-out stress, the rules of a gate, comparisons of models, a reliability
analysis and public keys may lie beside the audit. Everything else in a pack follows from them (``deriving``).
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from fragility.audits import Audit, StoredAudit, open_audit
from fragility.audits.folder import MANIFEST_FILE, read_manifest
from fragility.audits.parts import decode_table
from fragility.base.envelopes import read_envelope
from fragility.base.errors import CertificateError, DataError, VerificationError
from fragility.base.files import read_bounded, read_json
from fragility.base.ids import id_text
from fragility.gate import Gate, GateResult
from fragility.packing.figures import (
    AUDIT,
    LABELS,
    PARITY,
    RELIABILITY,
    VERDICTS,
    SourceReader,
    list_parities,
)
from fragility.parity import ModelParity
from fragility.questions.reliability.outcomes import FailureProbability
from fragility.scores import CONFIDENT
from fragility.trust.keys import load_public_key
from fragility.trust.signing import SIGNATURE_FILE, verify_signature

EARLIER, STRESS, RULES = "earlier", "stress.parquet", "gate/rules.toml"
AUDIT_KEY, PACK_KEY = "keys/audit.pub", "keys/pack.pub"
PROTOCOL, VERDICTS_TEXT, REPORT, REPORT_NUMBERS = "protocol.json", "gate/verdicts.md", "report.html", "report.json"
INDEX, CARD = "index.html", "model-card.md"
DERIVED = (PROTOCOL, REPORT, REPORT_NUMBERS, VERDICTS, VERDICTS_TEXT, INDEX, CARD)
KEY_LIMIT = 2**20
STRESS_SIZE, STRESS_ROW = 2**20, 2**12  # bytes that a table of labels may take, and for each of its rows
SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class PackSettings:
    """What a pack says beyond its sources; kept in its document, so that pages can be made again."""

    title: str = "Evidence pack"
    min_confidence: float = CONFIDENT
    certificates: bool = True  # whether the certificates themselves are in the pack
    author: str | None = None
    purpose: str | None = None
    date: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.min_confidence, float) or not 0.0 <= self.min_confidence <= 1.0:
            raise DataError(f"min_confidence must lie between 0 and 1, got {self.min_confidence!r:.80}")
        if not isinstance(self.certificates, bool):
            raise DataError(f"certificates of a pack must be true or false, got {self.certificates!r:.80}")
        for name in ("title", "author", "purpose", "date"):
            value = getattr(self, name)
            if not isinstance(value, str) and (name == "title" or value is not None):
                raise DataError(f"{name} of a pack must be text, got {value!r:.80}")
            if value is not None and SURROGATE.search(value):
                raise DataError(f"{name} of a pack holds a lone surrogate, which no file can; got {value!r:.80}")

    @classmethod
    def from_dict(cls, document: Any) -> PackSettings:
        """Return the settings in a pack's document; floats are written in hexadecimal there."""
        names = {one.name for one in fields(cls)}
        if not isinstance(document, Mapping) or set(document) != names:
            raise CertificateError(f"the settings of a pack are exactly {', '.join(sorted(names))}")
        try:
            return cls(**{**document, "min_confidence": float.fromhex(document["min_confidence"])})
        except (TypeError, ValueError, OverflowError) as error:
            raise CertificateError(f"the settings of the pack are damaged: {error}") from error


@dataclass(frozen=True, eq=False)
class Evidence:
    """What the sources of a pack say, read and brought together."""

    folder: Path
    settings: PackSettings
    audit: StoredAudit
    signers: tuple[str, ...]  # key ids that the audit's envelope names, whether or not the signatures are valid
    verified: str | None  # the key under which the audit's signature is valid
    parities: tuple[ModelParity, ...]
    gate: Gate | None
    verdicts: GateResult | None
    reliability: FailureProbability | None
    labels: Mapping[Hashable, Any] | None
    stress: pa.Table | None


def read_evidence(folder: Path, settings: PackSettings, audit: StoredAudit | None = None) -> Evidence:
    """Read the sources of a pack; refuse what does not belong together. ``audit`` where it does not lie in the pack."""
    opened = open_audit(folder / AUDIT) if audit is None else audit
    labels = None if not (folder / LABELS).exists() else read_labels(folder)
    stress = _read_stress(folder / STRESS, opened) if (folder / STRESS).exists() else None
    parities = tuple(ModelParity.load(folder / name) for name in list_parities(folder))
    for compared in parities:
        if compared.a.fingerprint != opened.manifest.model.fingerprint:
            raise DataError(
                f"the comparison of {compared.a.name} with {compared.b.name} is of another model than the audit's; "
                "compare the audited model with its artefact"
            )
    gate = Gate.load(folder / RULES) if (folder / RULES).exists() else None
    verdicts = None if gate is None else _judge(gate, opened, folder, labels, stress)
    signers, verified = _read_signers(folder, opened)
    reliability = _read_reliability(folder, opened) if (folder / RELIABILITY).exists() else None
    return Evidence(folder, settings, opened, signers, verified, parities, gate, verdicts, reliability, labels, stress)


def _read_stress(path: Path, audit: Audit) -> pa.Table:
    """Return labels of held-out stress; refuse a table larger than one of the audited rows can be."""
    try:
        data = read_bounded(path, STRESS_SIZE + STRESS_ROW * audit.manifest.rows)
    except (OSError, ValueError) as error:
        raise CertificateError(f"cannot read {STRESS}: {getattr(error, 'strerror', None) or error}") from error
    return decode_table(data, STRESS, most_rows=audit.manifest.rows)


def _judge(gate: Gate, audit: Audit, folder: Path, labels: Any, stress: Any) -> GateResult:
    column = next((rule.by for rule in gate.rules if rule.by not in (None, "predicted")), None)
    if column is not None:
        raise DataError(
            f"a rule cuts by {column!r}, a column of the audited rows, which a pack does not hold; leave that rule out"
        )
    earlier = open_audit(folder / EARLIER) if (folder / EARLIER).exists() else None
    return gate.check(audit, earlier, labels=labels, stress=stress)


def read_labels(folder: Path) -> dict[Hashable, Any]:
    """Return the true classes by id, as text."""
    try:
        pairs = [(id_text(own_id), label) for own_id, label in read_json(folder / LABELS)]
    except (OSError, TypeError, ValueError) as error:
        raise CertificateError(f"{LABELS} must hold pairs of an id and a class") from error
    labels: dict[Hashable, Any] = dict(pairs)
    if len(labels) < len(pairs):
        raise CertificateError(f"{LABELS} must hold each id once")
    return labels


def _read_reliability(folder: Path, audit: Audit) -> FailureProbability:
    """Return a reliability analysis; refuse one of another audit, or one that contradicts itself."""
    reliability = FailureProbability.from_dict(SourceReader(folder, audit).document(RELIABILITY))
    reliability.check_audit(audit)
    return reliability


def _read_signers(folder: Path, audit: StoredAudit) -> tuple[tuple[str, ...], str | None]:
    """Return who is said to have signed the audit, and the key of the pack under which that holds."""
    path = folder / AUDIT / SIGNATURE_FILE
    if not path.exists():
        if (folder / AUDIT_KEY).exists():
            raise VerificationError("the audit is not signed, so there is nothing to verify with a public key")
        return (), None
    envelope = read_envelope(read_bounded(path, KEY_LIMIT), path.name)
    named = tuple(signature.keyid or "a key without an id" for signature in envelope.signatures)
    if not (folder / AUDIT_KEY).exists():
        return named, None
    outcome = verify_signature(audit.folder, folder / AUDIT_KEY, signature=path)
    if not outcome:
        failed = next(check for check in outcome.checks if not check.passed)
        raise VerificationError(f"the signature of the audit does not hold ({failed.name}: {failed.detail})")
    return named, str(load_public_key(folder / AUDIT_KEY).keyid)


class Given(NamedTuple):
    """A source of a pack, and what of it can be checked without the model and the rows."""

    name: str
    checked: str


def list_given(folder: Path) -> list[Given]:
    """Return what a pack was made from, beside rules and keys, in words."""
    given = {
        EARLIER: Given("the earlier audit", "its digests"),
        LABELS: Given("the true classes", "that each audited row has one"),
        STRESS: Given("the labels of held-out stress", "nothing"),
        RELIABILITY: Given("the reliability analysis", "that it is of the audited rows, and adds up"),
        PARITY: Given("the comparisons of models", "that they name the audited model"),
    }
    there = [given_source for name, given_source in given.items() if (folder / name).exists()]
    return [Given("the certificates", "their digests, and that they agree with their manifest"), *there]


def list_sources(folder: Path, settings: PackSettings) -> list[str]:
    """Return the files of a pack that are its sources; it has no others but those derived from them."""
    files = [f"{AUDIT}/{name}" for name in audit_files(folder / AUDIT, certificates=settings.certificates)]
    if (folder / RULES).exists() and (folder / EARLIER).exists():
        files += [f"{EARLIER}/{name}" for name in audit_files(folder / EARLIER, certificates=True)]
    single = (RULES, LABELS, STRESS, RELIABILITY, AUDIT_KEY, PACK_KEY)
    return [*files, *(name for name in single if (folder / name).exists()), *list_parities(folder)]


def audit_files(folder: Path, *, certificates: bool) -> list[str]:
    """Return the files of an audit folder that belong into a pack: what its manifest names, and its signature."""
    manifest = read_manifest(folder)
    documents = [*manifest.files_of("protocol"), *manifest.files_of("protocol-signature")]
    named = list(manifest.files or {}) if certificates else documents
    return [MANIFEST_FILE, *named, *([SIGNATURE_FILE] if (folder / SIGNATURE_FILE).is_file() else [])]
