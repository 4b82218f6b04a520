"""Figures of a pack: each number with its source, so that whoever has the pack can compute it again.

A source is plain JSON, and one of two:

    {"file": F, "pointer": P}                       the value at a JSON pointer (RFC 6901) of a file of the pack
    {"certificates": F, "where": W, "aggregate": A} computed from the table of certificates in a folder of the pack
      W   conditions [column, operator, value] that a row must meet, all of them; a missing value meets none
      A   "count" of such rows; "share" of them that meet "holds", another condition; "mean" or "sum" of "column";
          "accuracy": the share whose predicted class is that of the file "labels"

A column is one of the table, or one of two that follow from it (``certificates.flips``): "fewest_groups", the size of
the smallest failing set known, and "proved_groups": no set of up to so many groups flips the prediction, proved.

A sum is exact before it is rounded (math.fsum), so the order of the rows does not matter.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from fragility.arrays import Booleans
from fragility.blocks.baselines.comparison import STABILITY_WORDS, Stability
from fragility.certificates import Audit
from fragility.certificates.flips import bound_flips, flip_columns
from fragility.errors import CertificateError
from fragility.files import read_json
from fragility.gate.checking import EXPOSED
from fragility.ids import id_text
from fragility.intervals import share_of
from fragility.packing.archive import NAME
from fragility.scores import EARLY
from fragility.wording import NONE_AT_ALL, NOT_SEARCHED

AUDIT, MANIFEST = "audit", "audit/manifest.json"
LABELS, RELIABILITY, VERDICTS, PARITY = "labels.json", "reliability.json", "gate/verdicts.json", "parity"
FEWEST, PROVED = FOLLOWING = ("fewest_groups", "proved_groups")
COUNTED = ("count", "share", "accuracy")
COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">=": operator.ge,
    ">": operator.gt,
    "==": operator.eq,
    "!=": operator.ne,
}
Source = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Figure:
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
        """Return the value that a source stands for."""
        if "pointer" in source:
            value: float | int | str | None = _resolve_pointer(self.document(source["file"]), source["pointer"])
            return value
        if source["aggregate"] in COUNTED:
            held, rows = self.count(source)
            return rows if source["aggregate"] == "count" else held / rows if rows else None
        values, _ = self._add(source)  # those that are there: a missing one counts neither above nor below
        total = math.fsum(values)
        return total if source["aggregate"] == "sum" else total / len(values) if values else None

    def count(self, source: Mapping[str, Any]) -> tuple[int, int]:
        """Return how many rows have what a share is of, and of how many."""
        sums, rows = self._add(source)
        return round(math.fsum(sums)), rows

    def _add(self, source: Mapping[str, Any]) -> tuple[list[float], int]:
        """Return what the rows that meet a source's conditions add to it, and how many they are."""
        where, aggregate = source["where"], source["aggregate"]
        conditions = [*where, *([source["holds"]] if aggregate == "share" else [])]
        columns = list(dict.fromkeys([*(column for column, *_ in conditions), *_further_columns(source)]))
        rows, sums = 0, list[float]()
        labels = self._read_labels(source["labels"]) if aggregate == "accuracy" else {}
        for batch in self.audit.batches(self._columns_behind(columns)):
            table = self._read(batch, columns)
            chosen = np.ones(len(batch), dtype=bool)
            for condition in where:
                chosen &= _meets(table, condition)
            rows += int(chosen.sum())
            if aggregate == "share":
                sums.append(float((chosen & _meets(table, source["holds"])).sum()))
            elif aggregate == "accuracy":
                ids, predicted = table["id"][chosen], table["predicted"][chosen]
                sums.append(float(sum(labels[id_text(i)] == str(p) for i, p in zip(ids, predicted, strict=True))))
            elif aggregate in ("mean", "sum"):
                values = table[source["column"]][chosen].astype(np.float64)
                sums += values[~np.isnan(values)].tolist()
        return sums, rows

    def _columns_behind(self, columns: Sequence[str]) -> list[str]:
        declared = self.audit.manifest.lattice
        stored = [name for name in columns if name not in FOLLOWING]
        followed = flip_columns(declared) if len(stored) < len(columns) else []
        return list(dict.fromkeys([*stored, *followed])) or ["id"]

    def _read(self, batch: pa.Table, columns: Sequence[str]) -> dict[str, Any]:
        """Return columns of a table, and those that follow from it."""
        followed: dict[str, Any] = {}
        if any(name in FOLLOWING for name in columns):
            bounds = bound_flips(batch, self.audit.protocol, self.audit.manifest.lattice)
            followed = {FEWEST: bounds.fewest, PROVED: bounds.proved}
        stored = (name for name in columns if name not in FOLLOWING)
        return followed | {name: batch.column(name).to_numpy(zero_copy_only=False) for name in stored}

    def _read_labels(self, name: str) -> dict[str, str]:
        return {id_text(own_id): str(label) for own_id, label in self.document(name)}


def _further_columns(source: Mapping[str, Any]) -> list[str]:
    return (
        ["id", "predicted"] if source["aggregate"] == "accuracy" else [source["column"]] if "column" in source else []
    )


def _meets(table: Mapping[str, Any], condition: Any) -> Booleans:
    column, compare, value = condition
    known, met = ~pd.isna(table[column]), np.zeros(len(table[column]), dtype=bool)
    met[known] = COMPARE[compare](table[column][known], value)
    return met


def _resolve_pointer(document: Any, pointer: str) -> Any:
    value = document
    for token in pointer.split("/")[1:]:
        name = token.replace("~1", "/").replace("~0", "~")
        value = value[int(name)] if isinstance(value, list) else value[name]
    return value


def describe_source(source: Mapping[str, Any]) -> str:
    """Return in words how a figure is computed."""
    if "pointer" in source:
        return f"{source['file']}, value at {source['pointer']}"
    rows = " and ".join(" ".join(map(str, condition)) for condition in source["where"])
    rows = f"certificates with {rows}" if rows else "all certificates"
    match source["aggregate"]:
        case "count":
            return f"number of {rows}"
        case "share":
            return f"share of {rows} that have {' '.join(map(str, source['holds']))}"
        case "accuracy":
            return f"share of {rows} whose predicted class is that of {source['labels']}"
        case aggregate:
            return f"{aggregate} of {source['column']} over {rows}"


# --- what a pack tells ------------------------------------------------------------------------------------------


def list_figures(reader: SourceReader, min_confidence: float) -> list[Figure]:
    """Return every figure that the files of a pack hold."""
    declared = [*_declare_claims(reader.audit, min_confidence), *_declare_documents(reader, min_confidence)]
    found = []
    for name, label, write, source in declared:
        value, interval = reader.compute(source), None
        shown = "no rows" if value is None else write(value)
        if source.get("aggregate") in ("share", "accuracy") and value is not None:
            share = share_of(*reader.count(source))
            interval = f"{share.lower:.1%} to {share.upper:.1%}"
            if name in UNSETTLED and reader.count(UNSETTLED[name](min_confidence, reader.audit))[1]:
                shown = f"at least {shown}"
        found.append(Figure(name, label, value, shown, interval, source))
    return found


Declared = tuple[str, str, Callable[[Any], str], Source]


def _declare_claims(audit: Audit, min_confidence: float) -> Iterator[Declared]:
    """Yield the figures that follow from certificates alone."""
    confident = [["confidence", ">=", min_confidence]]
    yield "rows", "predictions audited", _write_count, {"file": MANIFEST, "pointer": "/rows"}
    yield "confident", f"of them confident: at least {100 * min_confidence:g}% sure", _write_count, _count(confident)
    for name, groups, lost in (("flips_after_one", 1, "one group is"), ("flips_early", EARLY, "one or two groups are")):
        fewest = [FEWEST, "<=", groups]
        yield name, f"of the confident predictions flip when {lost} lost", _write_share, _share(confident, fewest)
    label = "of the confident predictions, of which it is not known whether two groups flip them"
    yield "early_unsettled", label, _write_count, _unsettled(EARLY)(min_confidence, audit)
    on_path = _share(confident, ["flip_budget", "<=", min(EARLY, audit.protocol.depth)])
    yield "early_on_path", "of the confident predictions flip within two groups of the path", _write_share, on_path
    holds = _share(confident, [PROVED, ">=", len(audit.protocol.groups)])
    yield "holds", "of the confident predictions hold whatever groups are lost, proved", _write_share, holds
    if audit.manifest.baselines is not None:
        verdict = {"file": MANIFEST, "pointer": "/baselines/verdict"}
        yield "baselines", "under other baselines", lambda value: STABILITY_WORDS[Stability(value)], verdict
    never = _share([], ["flipped", "==", False])
    yield "never_flips", "of all predictions keep their class along the whole path", _write_share, never
    exposed = _share(confident, ["exposure", ">", EXPOSED])
    yield "exposed", f"of the confident predictions have an exposure above {EXPOSED:g}", _write_share, exposed
    modes, lattice = audit.modes_declaration, audit.lattice_declaration
    for mode in () if modes is None else modes.units:
        column = f"exposure_{mode}"
        known = [*confident, [column, ">=", 0.0]]  # the rows whose failure modes were assessed
        label = f"of the confident predictions have an exposure to {mode} values above {EXPOSED:g}"
        yield f"exposed_{mode}", label, _write_share, _share(known, [column, ">", EXPOSED])
    if lattice is not None:
        searched, none = ["smallest_state", "!=", NOT_SEARCHED], ["smallest_state", "==", NONE_AT_ALL]
        yield "searched", "predictions whose smallest failing set was searched", _write_count, _count([searched])
        yield "proved", "of those keep their class whatever groups are lost, proved", _write_count, _count([none])
        if lattice.has_failures:
            lost_decisions = {**_count([]), "aggregate": "sum", "column": "failure_probability"}
            yield "lost", "decisions expected to be lost at the declared rates", _write_number, lost_decisions


def _declare_documents(reader: SourceReader, min_confidence: float) -> Iterator[Declared]:
    """Yield the figures of what lies beside the certificates."""
    if reader.has(LABELS):
        right: Source = {**_count([]), "aggregate": "accuracy", "labels": LABELS}
        yield "accuracy", "of all predictions are right", _write_share, right
        confident = {**right, "where": [["confidence", ">=", min_confidence]]}
        yield "confident_accuracy", "of the confident predictions are right", _write_share, confident
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


def _unsettled(groups: int) -> Callable[[float, Audit], Source]:
    """Return what counts the confident rows of which it is not known whether so many groups flip them."""
    return lambda least, audit: _count(
        [["confidence", ">=", least], [FEWEST, ">", groups], [PROVED, "<", min(groups, len(audit.protocol.groups))]]
    )


def _count_open(least: float, audit: Audit) -> Source:
    """Return what counts the confident rows of which it is not known whether they hold whatever is lost."""
    every = len(audit.protocol.groups)
    return _count([["confidence", ">=", least], [FEWEST, ">", every], [PROVED, "<", every]])


UNSETTLED = {"flips_after_one": _unsettled(1), "flips_early": _unsettled(EARLY), "holds": _count_open}


def _count(where: list[Any]) -> Source:
    return {"certificates": AUDIT, "where": where, "aggregate": "count"}


def _share(where: list[Any], holds: list[Any]) -> Source:
    return {**_count(where), "aggregate": "share", "holds": holds}


def _write_count(value: Any) -> str:
    return f"{value:,}"


def _write_share(value: Any) -> str:
    return f"{value:.1%}"


def _write_number(value: Any) -> str:
    return f"{value:,.1f}"


def _write_agreement(agrees: Any) -> str:
    return "the same" if agrees else "NOT the same"
