"""Figures of a pack: each number with its source, so that whoever has the pack can compute it again.

A source is plain JSON, and one of two:

    {"file": F, "pointer": P}                 the value at a JSON pointer (RFC 6901) of a file of the pack
    {"certificates": F, "measure": M, "value": V, "min_confidence": C}
      a measure of the certificates in a folder of the pack (``certificates.measures``); V is what of it: the "value" of
      a share or mean, the "count" of rows, how many are "unsettled", or the "total"

Sums are exact before they are rounded, so the order of the rows does not matter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fragility.audits import Audit, AuditSummary
from fragility.audits.measures import list_measures
from fragility.base.errors import CertificateError
from fragility.base.files import read_json
from fragility.blocks.baselines.comparison import STABILITY_WORDS, Stability
from fragility.packing.archive import NAME

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
    interval: str | None  # of a share: its 95% interval
    source: Source

    @property
    def told(self) -> str:
        """What pages write, with the interval of a share."""
        return self.shown if self.interval is None else f"{self.shown} (95% interval {self.interval})"

    def to_dict(self) -> dict[str, Any]:
        """Return the plain form, as the pack's own document has it."""
        return asdict(self)


class SourceReader:
    """Computes figures from the files of a pack.

    An audit that lies elsewhere may stand in for the pack's own, and documents in memory for files.
    """

    def __init__(self, folder: Path, audit: Audit, documents: Mapping[str, Any] | None = None) -> None:
        self.folder, self.audit = folder, audit
        self._documents: dict[str, Any] = dict(documents or {})
        self._summaries: dict[float, AuditSummary] = {}

    def has(self, name: str) -> bool:
        """Whether the pack has a document."""
        return name in self._documents or (self.folder / name).exists()

    def document(self, name: str) -> Any:
        """Return a JSON file of the pack."""
        if name not in self._documents:
            if not NAME.fullmatch(name):
                raise CertificateError(f"a figure is said to come from {name!r:.80}, which no file of a pack is called")
            try:
                self._documents[name] = read_json(self.folder / name)
            except (OSError, ValueError) as error:
                told = getattr(error, "strerror", None) or error
                raise CertificateError(f"the pack's file {name} cannot be read: {told}") from error
        return self._documents[name]

    def compute(self, source: Mapping[str, Any]) -> float | int | str | None:
        """Return the value that a source stands for; None if no row has one."""
        if "pointer" in source:
            value: float | int | str | None = _resolve_pointer(self.document(source["file"]), source["pointer"])
            return value
        if source["value"] not in VALUES:
            raise CertificateError(f"a figure is one of {', '.join(VALUES)} of a measure, got {source['value']!r:.80}")
        found = self.measure(source)
        return None if source["value"] == "value" and not found.rows else getattr(found, source["value"])

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


# --- what a pack tells ------------------------------------------------------------------------------------------

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
    found = []
    for name, label, write, source in _declare_figures(reader, min_confidence):
        value, interval = reader.compute(source), None
        shown = "no rows" if value is None else write(value)
        if source.get("value") == "value" and value is not None:
            share = reader.measure(source)
            interval = f"{share.lower:.1%} to {share.upper:.1%}"
            shown = shown if share.exact else f"at least {shown}"
        found.append(PackFigure(name, label, value, shown, interval, source))
    return found


Declared = tuple[str, str, Callable[[Any], str], Source]


def _declare_figures(reader: SourceReader, min_confidence: float) -> Iterator[Declared]:
    """Yield what certificates show, and what lies beside them, in the order of the pages."""
    audit, measures = reader.audit, list_measures(reader.audit, labels=True)

    def declare(name: str, measure: str | None = None) -> Declared:
        own = measures[measure or name]
        value, label = SHOWN.get(name, ("value", own.label))
        label = label.format(confident=100 * min_confidence, words=own.words)
        write = {"value": _write_share, "total": _write_number}.get(value, _write_count)
        source = {"certificates": AUDIT, "measure": measure or name, "value": value}
        return name, label, write, {**source, "min_confidence": min_confidence}

    yield "rows", "predictions audited", _write_count, {"file": MANIFEST, "pointer": "/rows"}
    yield from (declare("confident"), declare("flips_after_one"), declare("flips_early"))
    yield from (declare("early_unsettled", "flips_early"), declare("early_on_path"), declare("holds"))
    if audit.manifest.baselines is not None:
        verdict = {"file": MANIFEST, "pointer": "/baselines/verdict"}
        yield "baselines", "under other baselines", lambda value: STABILITY_WORDS[Stability(value)], verdict
    exposed = [name for name in measures if name.startswith("exposed")]
    further = ["never_flips", *exposed, "searched", "proved", "lost"]
    further += ["accuracy", "confident_accuracy"] if reader.has(LABELS) else []
    yield from (declare(name) for name in further if name in measures)
    yield from _declare_documents(reader)


def _declare_documents(reader: SourceReader) -> Iterator[Declared]:
    """Yield the figures of what lies beside the certificates."""
    if reader.has(VERDICTS) and not reader.document(VERDICTS).get("from_itself"):
        yield "gate", "is the verdict of the gate", str, {"file": VERDICTS, "pointer": "/outcome"}
    if reader.has(RELIABILITY):
        lost = {"file": RELIABILITY, "pointer": "/decisions_lost"}
        yield "reliability_lost", "decisions expected to be lost, by the reliability analysis", _write_number, lost
        first = {"file": RELIABILITY, "pointer": "/groups/0/group"}
        yield "reliability_first", "is the field to make reliable first", str, first
    for place, name in enumerate(list_parities(reader.folder)):
        label = f"model as audited: {reader.document(name)['b']['name']}"
        yield f"parity_{place}", label, _write_agreement, {"file": name, "pointer": "/agrees"}


def list_parities(folder: Path) -> list[str]:
    """Return the comparisons of a pack, in order."""
    return [f"{PARITY}/{place}.json" for place in range(len(list((folder / PARITY).glob("*.json"))))]


def _write_count(value: Any) -> str:
    return f"{value:,}"


def _write_share(value: Any) -> str:
    return f"{value:.1%}"


def _write_number(value: Any) -> str:
    return f"{value:,.1f}"


def _write_agreement(agrees: Any) -> str:
    return "the same" if agrees else "NOT the same"
