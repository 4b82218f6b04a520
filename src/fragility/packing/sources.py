"""The sources of a pack, checked to belong together, and the figures that are computed from them.

Besides the audit, a pack may contain an earlier audit, true classes, labels of held-out stress, the rules of a gate,
comparisons of models, a reliability analysis and public keys. Everything else in a pack is derived from these sources
(``writing.derive``).

Each figure is a number with its source, so that a reader of the pack can compute it again. A source is plain JSON, in
one of these forms:

    {"file": F, "pointer": P}                 the value at a JSON pointer (RFC 6901) of a file of the pack
    {"certificates": F, "measure": M, "value": V, "min_confidence": C}
      a measure of the certificates in a folder of the pack (``certificates.measures``); V is the "value" of a share or
      mean, the "count" of rows, the number of "unsettled" rows, or the "total"

Sums are exact before they are rounded, so the order of the rows does not matter.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from fragility.audits import Audit, AuditSummary, StoredAudit, open_audit
from fragility.audits.folder import MANIFEST_FILE, read_manifest
from fragility.audits.measures import list_measures
from fragility.audits.parts import decode_table
from fragility.base.envelopes import read_envelope
from fragility.base.errors import CertificateError, DataError, VerificationError, reason_of
from fragility.base.files import read_bounded, read_json
from fragility.base.ids import id_text
from fragility.blocks.baselines.comparison import STABILITY_WORDS, Stability
from fragility.gate import Gate, GateResult
from fragility.packing.archive import NAME
from fragility.parity import ModelParity
from fragility.questions.reliability.outcomes import FailureProbability
from fragility.scores import CONFIDENT
from fragility.trust.signing import SIGNATURE_FILE, load_public_key, verify_signature

AUDIT, MANIFEST = "audit", "audit/manifest.json"
LABELS, RELIABILITY, VERDICTS, PARITY = "labels.json", "reliability.json", "gate/verdicts.json", "parity"
VALUES = ("value", "count", "unsettled", "total")
Source = dict[str, Any]


@dataclass(frozen=True, slots=True)
class PackFigure:
    """One number of a pack."""

    name: str
    label: str  # what it counts
    value: float | int | str | None  # None if there are no rows to compute it from
    shown: str  # as pages write it
    interval: str | None  # 95% interval of a share
    source: Source

    @property
    def with_interval(self) -> str:
        """The number as pages write it, with the interval of a share."""
        return self.shown if self.interval is None else f"{self.shown} (95% interval {self.interval})"

    @property
    def large(self) -> tuple[str, str]:
        """The number and its label, for display in large type."""
        return self.shown, self.label if self.interval is None else f"{self.label} ({self.interval})"

    def to_dict(self) -> dict[str, Any]:
        """Return the plain form, as in the pack's document."""
        return asdict(self)


class SourceReader:
    """Computes figures from the files of a pack.

    An audit from elsewhere may replace the pack's, and documents in memory may replace files.
    """

    def __init__(self, folder: Path, audit: Audit, documents: Mapping[str, Any] | None = None) -> None:
        self.folder, self.audit = folder, audit
        self._documents: dict[str, Any] = dict(documents or {})
        self._summaries: dict[float, AuditSummary] = {}

    def has(self, name: str) -> bool:
        """Return whether the pack has a document."""
        return name in self._documents or (self.folder / name).exists()

    def document(self, name: str) -> Any:
        """Return a JSON file of the pack."""
        if name not in self._documents:
            if not NAME.fullmatch(name):
                raise CertificateError(f"the source of a figure is {name!r:.80}, which is not a file name of a pack")
            try:
                self._documents[name] = read_json(self.folder / name)
            except (OSError, ValueError) as error:
                reason = reason_of(error)
                raise CertificateError(f"the pack's file {name} cannot be read: {reason}") from error
        return self._documents[name]

    def compute(self, source: Mapping[str, Any]) -> float | int | str | None:
        """Return the value of a source; None if no row has one."""
        if "pointer" in source:
            value: float | int | str | None = _resolve_pointer(self.document(source["file"]), source["pointer"])
            return value
        if "block" in source:
            compared = self.audit.baselines
            if (source["block"], source["value"]) != ("baselines", "verdict") or compared is None:
                raise CertificateError(f"the source of a figure is a block that the audit does not have: {source}")
            return str(compared.verdict)
        if source["value"] not in VALUES:
            raise CertificateError(f"a figure is one of {', '.join(VALUES)} of a measure, got {source['value']!r:.80}")
        measured = self.measure(source)
        return None if source["value"] == "value" and not measured.rows else getattr(measured, source["value"])

    def measure(self, source: Mapping[str, Any]) -> Any:
        """Return the measure that a source names."""
        return self.summarise(source["min_confidence"])[source["measure"]]

    def summarise(self, min_confidence: float) -> AuditSummary:
        """Return every measure of the certificates."""
        if min_confidence not in self._summaries:
            labels = dict(self.document(LABELS)) if self.has(LABELS) else None
            self._summaries[min_confidence] = self.audit.summary(min_confidence=min_confidence, labels=labels)
        return self._summaries[min_confidence]


def _resolve_pointer(document: Any, pointer: str) -> Any:
    value = document
    for token in pointer.split("/")[1:]:
        name = token.replace("~1", "/").replace("~0", "~")
        value = value[int(name)] if isinstance(value, list) else value[name]
    return value


# --- figures ----------------------------------------------------------------------------------------------------

SHOWN = {
    "confident": ("count", "of them confident: at least {confident:g}% sure"),
    "early_unsettled": (
        "unsettled",
        "of the confident predictions, of which it is not known whether two groups flip them",
    ),
    "searched": ("count", "predictions whose smallest failing set was searched"),
    "proved": ("count", "of those keep their class whatever groups are lost, proved"),
    "lost": ("total", "{words}"),
}


def describe_source(source: Mapping[str, Any], audit: Audit) -> str:
    """Return in words how a figure is computed."""
    if "pointer" in source:
        return f"{source['file']}, value at {source['pointer']}"
    if "block" in source:
        return f"{source['value']} of the {source['block']} block of the certificates"
    measure = list_measures(audit, labels=True)[source["measure"]]
    sure = f"confidence >= {source['min_confidence']:g}"
    rows = f"certificates with {sure}" if measure.among == "confident" else "all certificates"
    match source["value"], measure.kind:
        case "unsettled", _:
            return f"number of {rows} of which it is not settled whether {measure.formula}"
        case "count", _:
            return f"number of certificates with {sure if source['measure'] == 'confident' else measure.formula}"
        case _, "share":
            return f"share of {rows} that have {measure.formula}"
        case value, _:
            return f"{'sum' if value == 'total' else 'mean'} of {measure.columns[0]} over {rows}"


def list_figures(reader: SourceReader, min_confidence: float) -> list[PackFigure]:
    """Return every figure that the files of a pack hold."""
    figures = []
    for name, label, write, source in _declare_figures(reader, min_confidence):
        value, interval = reader.compute(source), None
        shown = "no rows" if value is None else write(value)
        if source.get("value") == "value" and value is not None:
            share = reader.measure(source)
            interval = f"{share.lower:.1%} to {share.upper:.1%}"
            shown = shown if share.exact else f"at least {shown}"
        figures.append(PackFigure(name, label, value, shown, interval, source))
    return figures


Declared = tuple[str, str, Callable[[Any], str], Source]


def _declare_figures(reader: SourceReader, min_confidence: float) -> Iterator[Declared]:
    """Yield the figures of the certificates and of the other sources, in the order of the pages."""
    audit, measures = reader.audit, list_measures(reader.audit, labels=True)

    def declare(name: str, measure: str | None = None) -> Declared:
        declared = measures[measure or name]
        value, label = SHOWN.get(name, ("value", declared.label))
        label = label.format(confident=100 * min_confidence, words=declared.words)
        write = {"value": "{:.1%}".format, "total": "{:,.1f}".format}.get(value, "{:,}".format)
        source = {"certificates": AUDIT, "measure": measure or name, "value": value}
        return name, label, write, {**source, "min_confidence": min_confidence}

    yield "rows", "predictions audited", "{:,}".format, {"file": MANIFEST, "pointer": "/rows"}
    yield from (declare("confident"), declare("flips_after_one"), declare("flips_early"))
    yield from (declare("early_unsettled", "flips_early"), declare("early_on_path"), declare("holds"))
    if audit.baselines is not None:
        verdict = {"certificates": AUDIT, "block": "baselines", "value": "verdict"}
        yield "baselines", "under other baselines", lambda value: STABILITY_WORDS[Stability(value)], verdict
    exposed = [name for name in measures if name.startswith("exposed")]
    further = ["never_flips", *exposed, "searched", "proved", "lost"]
    further += ["accuracy", "confident_accuracy"] if reader.has(LABELS) else []
    yield from (declare(name) for name in further if name in measures)
    yield from _declare_documents(reader)


def _declare_documents(reader: SourceReader) -> Iterator[Declared]:
    """Yield the figures of the sources beside the certificates."""
    if reader.has(VERDICTS) and not reader.document(VERDICTS).get("from_itself"):
        yield "gate", "is the verdict of the gate", str, {"file": VERDICTS, "pointer": "/outcome"}
    if reader.has(RELIABILITY):
        lost = {"file": RELIABILITY, "pointer": "/decisions_lost"}
        yield "reliability_lost", "decisions expected to be lost, by the reliability analysis", "{:,.1f}".format, lost
        first = {"file": RELIABILITY, "pointer": "/groups/0/group"}
        yield "reliability_first", "is the field to make reliable first", str, first
    for place, name in enumerate(list_parities(reader.folder)):
        label = f"model as audited: {reader.document(name)['b']['name']}"
        write = {True: "the same", False: "NOT the same"}.__getitem__
        yield f"parity_{place}", label, write, {"file": name, "pointer": "/agrees"}


def list_parities(folder: Path) -> list[str]:
    """Return the comparisons of a pack, in order."""
    return [f"{PARITY}/{place}.json" for place in range(len(list((folder / PARITY).glob("*.json"))))]


# --- evidence -------------------------------------------------------------------------------------------------

EARLIER, STRESS, RULES = "earlier", "stress.parquet", "gate/rules.toml"
AUDIT_KEY, PACK_KEY = "keys/audit.pub", "keys/pack.pub"
PROTOCOL, VERDICTS_TEXT, REPORT, REPORT_NUMBERS = "protocol.json", "gate/verdicts.md", "report.html", "report.json"
INDEX, CARD = "index.html", "model-card.md"
CHECKER = "fragility_check.py"  # the verifier that shares no code with the library: packed, never imported
DERIVED = (PROTOCOL, REPORT, REPORT_NUMBERS, VERDICTS, VERDICTS_TEXT, INDEX, CARD, CHECKER)
KEY_LIMIT = 2**20
STRESS_SIZE, STRESS_ROW = 2**20, 2**12  # bytes that a table of labels may take, and for each of its rows
SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class PackSettings:
    """The settings of a pack; its document stores them, so that pages can be made again."""

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
                raise DataError(
                    f"{name} of a pack contains a lone surrogate, which UTF-8 cannot encode; got {value!r:.80}"
                )

    @classmethod
    def from_dict(cls, document: Any) -> PackSettings:
        """Return the settings in a pack's document; floats are written in hexadecimal there."""
        names = {setting.name for setting in fields(cls)}
        if not isinstance(document, Mapping) or set(document) != names:
            raise CertificateError(f"the settings of a pack must be exactly {', '.join(sorted(names))}")
        try:
            return cls(**{**document, "min_confidence": float.fromhex(document["min_confidence"])})
        except (TypeError, ValueError, OverflowError) as error:
            raise CertificateError(f"the settings of the pack are damaged: {error}") from error


@dataclass(frozen=True, eq=False)
class Evidence:
    """The sources of a pack, read and checked to belong together."""

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
    """Read the sources of a pack; refuse those that do not belong together. ``audit``: if it is not in the pack."""
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
    reliability = None
    if (folder / RELIABILITY).exists():  # of the audited rows, and in agreement with itself
        reliability = FailureProbability.from_dict(SourceReader(folder, opened).document(RELIABILITY))
        reliability.check_audit(opened)
    return Evidence(folder, settings, opened, signers, verified, parities, gate, verdicts, reliability, labels, stress)


def _read_stress(path: Path, audit: Audit) -> pa.Table:
    """Return labels of held-out stress; refuse a table larger than one of the audited rows can be."""
    try:
        data = read_bounded(path, STRESS_SIZE + STRESS_ROW * audit.manifest.rows)
    except (OSError, ValueError) as error:
        raise CertificateError(f"cannot read {STRESS}: {reason_of(error)}") from error
    return decode_table(data, STRESS, most_rows=audit.manifest.rows)


def _judge(gate: Gate, audit: Audit, folder: Path, labels: Any, stress: Any) -> GateResult:
    column = next((rule.by for rule in gate.rules if rule.by not in (None, "predicted")), None)
    if column is not None:
        raise DataError(
            f"a rule groups by {column!r}, a column of the audited rows, which a pack does not contain; remove the rule"
        )
    earlier = open_audit(folder / EARLIER) if (folder / EARLIER).exists() else None
    return gate.check(audit, earlier, labels=labels, stress=stress)


def read_labels(folder: Path) -> dict[Hashable, Any]:
    """Return the true classes by id, as text."""
    try:
        pairs = [(id_text(row_id), label) for row_id, label in read_json(folder / LABELS)]
    except (OSError, TypeError, ValueError) as error:
        raise CertificateError(f"{LABELS} must hold pairs of an id and a class") from error
    labels: dict[Hashable, Any] = dict(pairs)
    if len(labels) < len(pairs):
        raise CertificateError(f"{LABELS} must hold each id once")
    return labels


def _read_signers(folder: Path, audit: StoredAudit) -> tuple[tuple[str, ...], str | None]:
    """Return the key ids in the audit's envelope, and the key in the pack under which the signature is valid."""
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


class TrustedSource(NamedTuple):
    """A source of a pack, and which part of it can be checked without the model and the rows."""

    name: str
    checked: str


def list_trusted(folder: Path) -> list[TrustedSource]:
    """Return the sources of a pack, except rules and keys, that ``verify_pack`` has to trust."""
    sources = {
        EARLIER: TrustedSource("the earlier audit", "its digests"),
        LABELS: TrustedSource("the true classes", "that each audited row has one"),
        STRESS: TrustedSource("the labels of held-out stress", "nothing"),
        RELIABILITY: TrustedSource("the reliability analysis", "that it is of the audited rows, and adds up"),
        PARITY: TrustedSource("the comparisons of models", "that they name the audited model"),
    }
    present = [source for name, source in sources.items() if (folder / name).exists()]
    return [TrustedSource("the certificates", "their digests, and that they agree with their manifest"), *present]


def list_sources(folder: Path, settings: PackSettings) -> list[str]:
    """Return the files of a pack that are its sources; all other files are derived from them."""
    files = [f"{AUDIT}/{name}" for name in audit_files(folder / AUDIT, certificates=settings.certificates)]
    if (folder / RULES).exists() and (folder / EARLIER).exists():
        files += [f"{EARLIER}/{name}" for name in audit_files(folder / EARLIER, certificates=True)]
    single = (RULES, LABELS, STRESS, RELIABILITY, AUDIT_KEY, PACK_KEY)
    return [*files, *(name for name in single if (folder / name).exists()), *list_parities(folder)]


def read_checker() -> str:
    """Return the text of the verifier in one file, which every pack has a copy of.

    It lies beside the package, or in `verifier` of a source tree. The search path is not asked: in the folder of a
    pack, that would find the copy which is to be compared.
    """
    package = Path(__file__).parents[1]
    for path in (package.parent / CHECKER, package.parents[1] / "verifier" / CHECKER):
        if path.is_file():
            return path.read_bytes().decode()
    raise DataError(f"{CHECKER}, which every pack has a copy of, is not installed beside fragility; install it again")


def audit_files(folder: Path, *, certificates: bool) -> list[str]:
    """Return the files of an audit folder that belong into a pack: the manifest, its files, and its signature."""
    manifest = read_manifest(folder)
    documents = [*manifest.files_of("protocol"), *manifest.files_of("protocol-signature")]
    files = list(manifest.files or {}) if certificates else documents
    return [MANIFEST_FILE, *files, *([SIGNATURE_FILE] if (folder / SIGNATURE_FILE).is_file() else [])]
