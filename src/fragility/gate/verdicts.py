"""Verdicts of a gate, as a page and as JUnit XML."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal, TypeAlias
from xml.etree import ElementTree

import pyarrow as pa

from fragility.base.text import escape_controls, replace_controls
from fragility.gate.rules import PATH, SETS
from fragility.pages.results import TABLE_SUFFIXES, TOP, Result, tabulate, without_nan
from fragility.pages.sections import Cell, Document, Section, Table, Text

RuleOutcome: TypeAlias = Literal["pass", "fail", "inconclusive"]
FROM_ITSELF = (
    "but the rules were derived from this audit, which always keeps to them, so the result says nothing: check a later "
    "audit"
)
GENERATOR = "fragility gate"
SIGNS = {"pass": "✅", "fail": "❌", "inconclusive": "❔"}


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict of a gate on one rule, or on one segment of it.

    Attributes
    ----------
    rule : str
        The title of the rule.
    measure : str
        What it measures.
    segment : str or None
        The segment; None for all rows.
    outcome : str
        ``pass``, ``fail`` or ``inconclusive``.
    value : float
        The value of the measure; NaN if the audit has no rows for it.
    rows : int
        The number of rows that it is computed from.
    earlier : float or None
        The value in the earlier audit; None for a rule with a limit.
    shared : int or None
        How many rows both audits have; None for a rule with a limit.
    lower, upper : float
        One-sided bounds of the value, or of its difference from the earlier audit.
    limit : float
        What the value, or the difference, is compared with.
    larger_is_worse : bool
        Whether the limit is an upper limit; else it is a lower one.
    counted : str or None
        For early flips: ``sets`` over all sets of groups, or ``path`` along the path, which may miss some.
    """

    rule: str
    measure: str
    segment: str | None
    outcome: RuleOutcome
    value: float
    rows: int
    earlier: float | None
    shared: int | None
    lower: float
    upper: float
    limit: float
    larger_is_worse: bool
    counted: str | None = None

    def sentence(self) -> str:
        """Return the verdict in words.

        Returns
        -------
        str
            One sentence, without its full stop.
        """
        segment = "" if self.segment is None else f" [{self.segment}]"
        return escape_controls(f"{self.rule}{segment}: {self.finding()}")

    def finding(self) -> str:
        """Return the value and its bounds beside the limit.

        Returns
        -------
        str
            The sentence without the name of its rule.
        """
        if math.isnan(self.value):
            return "no rows to judge by"
        counting = {
            None: "",
            SETS: ", counted over all sets of groups",
            PATH: ", counted along the path, which may miss some",
        }
        return self._compare() + counting[self.counted]

    def _compare(self) -> str:
        if self.earlier is None:
            ends = f"between {self._write(self.lower)} and {self._write(self.upper)}"
            limit = f"at {'most' if self.larger_is_worse else 'least'} {self._write(self.limit)}"
            return f"{self._known}{self._write(self.value)} of {self.rows:,} rows ({ends}); {limit} is allowed"
        if math.isnan(self.earlier):
            return "the earlier audit has no rows to judge by"
        ends = f"between {self._points(self.lower)} and {self._points(self.upper)}"
        now, before = (f"{self._known}{self._write(share)}" for share in (self.value, self.earlier))
        return (
            f"{now}, was {before}: {self._points(self.value - self.earlier)} "
            f"({ends}); up to {self._points(self.limit)} is allowed"
        )

    @property
    def _known(self) -> str:
        return "at least " if self.counted == PATH else ""

    def _write(self, share: float) -> str:
        return f"{share:.3f}" if self.measure == "auroc" else f"{share:.1%}"

    def _points(self, change: float) -> str:
        return f"{change:+.3f}" if self.measure == "auroc" else f"{100.0 * change:+.1f} points"


@dataclass(frozen=True, slots=True, repr=False)
class GateResult(Result):
    """The verdicts of a gate. It is true unless a rule failed.

    Attributes
    ----------
    verdicts : tuple of Verdict
        One for each rule, or for each segment of it.
    confidence : float
        The level at which all of them hold together.
    models, against : tuple of str
        The audited models, by kind and fingerprint, and the models of the earlier audits, if any.
    stability : tuple of str
        For each audit in ``models``, whether its finding depends on the baseline; rules judge the declared baseline.
    from_itself : bool
        Whether the rules were derived from an audit that they judge, so that passing carries no information.
    """

    verdicts: tuple[Verdict, ...]
    confidence: float
    models: tuple[str, ...]
    against: tuple[str, ...] = ()
    stability: tuple[str, ...] = ()
    from_itself: bool = False

    SUFFIXES: ClassVar[tuple[str, ...]] = (".json", ".xml", ".md", ".txt", ".html", *TABLE_SUFFIXES)

    def __bool__(self) -> bool:
        return self.outcome != "fail"

    @property
    def outcome(self) -> RuleOutcome:
        """``fail`` if a rule failed, else ``inconclusive`` if one is, else ``pass``."""
        outcomes = {verdict.outcome for verdict in self.verdicts}
        return "fail" if "fail" in outcomes else "inconclusive" if "inconclusive" in outcomes else "pass"

    def to_dict(self) -> dict[str, Any]:
        return {"outcome": self.outcome, **without_nan(asdict(self))}

    def sections(self, top: int = TOP) -> list[Section]:
        sentences = [f"{line}." for line in (*self._tell_stability(), self._conclude())]
        return [Section("verdicts", "", [self.tabulate(), Text(sentences)])]

    def tabulate(self) -> Table:
        """Return the verdicts as a table of a page.

        Returns
        -------
        Table
            One row per verdict.
        """
        rows = [
            (
                Cell(verdict.outcome, amiss=verdict.outcome != "pass"),
                verdict.rule,
                "all rows" if verdict.segment is None else verdict.segment,
                verdict.finding(),
            )
            for verdict in self.verdicts
        ]
        return Table("", ("verdict", "rule", "segment", "finding"), rows, words=4)

    def tables(self) -> dict[str, pa.Table]:
        return {"verdicts": tabulate(Verdict, self.verdicts)}

    def _tell_stability(self) -> list[str]:
        """Return whether the findings depend on the baseline: one line, or one per model if they differ."""
        if len(set(self.stability)) <= 1:
            return [f"The finding under the declared baseline: {stability}" for stability in self.stability[:1]]
        return [f"{model}: {stability}" for model, stability in zip(self.models, self.stability, strict=True)]

    def _conclude(self) -> str:
        counts = {outcome: sum(v.outcome == outcome for v in self.verdicts) for outcome in SIGNS}
        counted = ", ".join(f"{count} {outcome}" for outcome, count in counts.items() if count)
        sides = [len(side) for side in (self.models, self.against) if side]
        sizes = [f"{count} retrained models" if count > 1 else "one model" for count in sides]
        about = f"about {' against '.join(sizes)}, by their means; " if max(sides) > 1 else ""
        text = f"{self.outcome}: {counted} ({about}the verdicts hold together with {self.confidence:.0%} confidence)"
        return f"{text}; {FROM_ITSELF}" if self.from_itself else text

    def to_junit(self) -> str:
        """Return the verdicts as a JUnit test suite, which most CI systems show.

        Returns
        -------
        str
            XML: a failed rule is a failure, an inconclusive one is skipped.
        """
        counts = {outcome: str(sum(v.outcome == outcome for v in self.verdicts)) for outcome in SIGNS}
        suite = ElementTree.Element(
            "testsuite",
            name="fragility gate",
            tests=str(len(self.verdicts)),
            failures=counts["fail"],
            skipped=counts["inconclusive"],
            errors="0",
        )
        occurrences = Counter[tuple[str, str]]()
        for verdict in self.verdicts:
            segment = "" if verdict.segment is None else f" [{verdict.segment}]"
            name = replace_controls(f"{verdict.rule}{segment}")
            occurrences[verdict.measure, name] += 1
            if (times := occurrences[verdict.measure, name]) > 1:  # CI systems keep only one test per name
                name += f" ({times})"
            case = ElementTree.SubElement(suite, "testcase", classname=f"gate.{verdict.measure}", name=name)
            if verdict.outcome != "pass":
                kind = "failure" if verdict.outcome == "fail" else "skipped"
                ElementTree.SubElement(case, kind, message=replace_controls(verdict.finding()))
        ElementTree.indent(suite)
        return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(suite, encoding="unicode") + "\n"

    def _forms(self) -> Mapping[str, Callable[[], str]]:
        return {**super(GateResult, self)._forms(), ".xml": self.to_junit}

    def _document(self) -> Document:
        title = f"Evidence gate: {SIGNS[self.outcome]} {self.outcome}"
        against = f"; against: {', '.join(self.against)}" if self.against else ""
        return Document(title, f"Audited: {', '.join(self.models)}{against}", self.sections(), GENERATOR)

    def _headline(self) -> str:
        return self._conclude()
