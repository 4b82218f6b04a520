"""The report's summary: everything a report says about one or several audits, as plain typed numbers.

Rendering reads only these classes, so that HTML, Markdown and JSON agree. Counts are
exact. Quantiles come from fine histograms, so that memory does not grow with the number of rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from fragility.analysis.segments import SegmentShares
from fragility.audits import AuditSummary
from fragility.audits.comparison import SettingDifference
from fragility.base.shares import Share, ShareDifference
from fragility.base.text import BriefRepr
from fragility.blocks.baselines.comparison import BaselineAgreement, Stability
from fragility.pages.results import without_nan
from fragility.parity import ModelParity
from fragility.questions.modes.stability import StabilityInterval

FORMAT = "fragility-report/1"
FEWEST_IN_A_FIFTH = 5
WAYS = ("targeted", "independent", "random", "common")


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """One evidence group as the protocol declares it."""

    name: str
    columns: int
    becomes: tuple[tuple[str, str], ...]  # (field, its replacement when lost), as far as known


@dataclass(frozen=True, slots=True)
class ProtocolFacts:
    """The parts of the protocol that the report shows."""

    space: str
    grouping: str
    groups: tuple[GroupFacts, ...]
    fields: int
    columns: int
    baseline: str
    artificial: tuple[str, ...]
    operators: tuple[str, ...]
    severities: tuple[float, ...]
    depth: int
    reading: str
    decision: str | None
    resolution: float
    smoothing: float
    min_confidence: float
    exposure_weights: tuple[float, float, float, float]
    training_rows: int
    digest: str


@dataclass(frozen=True, slots=True)
class AuditFacts:
    """The audited model and rows, and their digests."""

    name: str
    model: str
    classes: tuple[str, ...]
    rows: int
    engine: str
    evaluations: int
    probabilities: str
    partial: tuple[str, ...]  # what the fingerprint does not cover
    model_fingerprint: str
    input_digest: str
    root_digest: str
    versions: Mapping[str, str]
    limits: str
    verify: str  # the command that recomputes every claim
    folder: str | None  # of the audit; None if it is in memory
    signed_by: str | None  # the key whose signature was verified, if one was


@dataclass(frozen=True, slots=True)
class Quartiles:
    """Median and quartiles; of n values the ceil(q n)-th smallest, at the histogram's resolution."""

    lower: float
    median: float
    upper: float


@dataclass(frozen=True, slots=True)
class ClassCurve:
    """Share of the margin lost after 0, 1, 2 ... removals, to a tenth of a percent, among predictions of one class."""

    predicted: str
    rows: int
    collapse: tuple[Quartiles, ...]


@dataclass(frozen=True, slots=True)
class Loss:
    """The share of the margin that one kind of loss costs. Histogram: equal bins from 0 to `top`, the last one open."""

    way: str
    quartiles: Quartiles
    half: int  # predictions that lose at least half of their margin this way
    top: float
    histogram: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ClassLosses:
    """Exposure by predicted class: rows that lose at least half of their margin, by kind of loss."""

    predicted: str
    rows: int
    flips_after_one: Share
    flips_early: Share
    mean_exposure: float
    half: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LossCombination:
    """How many predictions lose at least half of their margin by exactly these kinds of loss."""

    ways: tuple[str, ...]
    rows: int


@dataclass(frozen=True, slots=True)
class OperatorFlips:
    """One operator of the protocol: how many predictions flip at some severity, and at which first."""

    operator: str
    flips: int
    first_flips: tuple[int, ...]  # by severity of the grid


@dataclass(frozen=True, slots=True)
class GroupRole:
    """The role of one evidence group for the decisions."""

    name: str
    first: int  # predictions whose strongest group it is
    alone: int  # predictions that flip when it alone is lost
    in_set: int  # predictions whose failing groups include it
    carried: float | None  # mean share of the margin lost with it alone, each counted from 0 to 1


@dataclass(frozen=True, slots=True)
class GroupPair:
    """Two groups whose loss flips a prediction that the stronger of them alone does not flip."""

    first: str
    second: str
    rows: int


@dataclass(frozen=True, slots=True)
class DensityMap:
    """Confidence against exposure as counts. The position of confidence c is -log10(1 - c), at most `right`."""

    right: float
    columns: int
    lines: int
    cells: tuple[tuple[int, int, int], ...]  # (column, line, predictions) of the cells that are not empty
    threshold: float  # exposure from which the most exposed fifth begins
    corner: int  # predictions of the set in the exposed corner


@dataclass(frozen=True, slots=True)
class FieldValue:
    """A field of a row with its value and the replacement when it is lost, as text."""

    field: str
    value: str
    becomes: str


@dataclass(frozen=True, slots=True)
class CaseMode:
    """The cost of one failure mode for one prediction, and the unit that is most likely to flip it."""

    mode: str
    exposure: float
    weakest: str | None  # None if no evidence can fail in this way
    flip_chance: float


@dataclass(frozen=True, slots=True)
class FragileCase:
    """One of the most fragile predictions."""

    id: str
    predicted: str
    confidence: float
    exposure: float
    fds: float
    flip_budget: int
    flipped: bool
    path: tuple[str, ...]
    already_missing: tuple[str, ...]  # fields without a value
    margins: tuple[float, ...] | None  # None if the audit stores summary claims only
    flips_to: str | None
    thresholds: Mapping[str, float | None]
    smallest: SmallestSet | None
    modes: tuple[CaseMode, ...] | None  # None if the row has no modes block
    intervals: tuple[StabilityInterval, ...] | None  # by field; None if the row has no intervals block
    becomes: Mapping[str, tuple[tuple[str, str], ...]]  # group of the path or smallest set -> fields and replacements
    values: tuple[tuple[FieldValue, ...], ...] | None = None  # of each group of the path; None without rows

    @property
    def flip_step(self) -> int | None:
        """The removal that flips it; None if the path does not flip it."""
        return self.flip_budget if self.flipped else None


@dataclass(frozen=True, slots=True)
class SmallestSet:
    """The result of the search over all subsets for one prediction."""

    state: str  # minimum, upper bound, none ... proved, not decided, or not searched
    size: int | None  # None: none was found
    groups: tuple[str, ...]
    count: int | None  # how many sets of that size
    failure_probability: float | None
    failure_interval: tuple[float, float] | None  # None if the probability is exact


@dataclass(frozen=True, slots=True)
class LatticeNumbers:
    """The results of the search over all subsets for a set of predictions."""

    condition: str | None  # how evidence fails, in words; None if no failures were declared
    searched: int  # predictions that were searched; all other counts are of these
    fewer: int  # predictions that fewer groups flip than the path needs, or that the path does not flip at all
    minimum: int  # predictions whose smallest failing set is proved
    none_proved: int  # predictions that no loss of whole groups flips, proved
    by_size: tuple[tuple[int, int], ...]  # (groups, predictions whose smallest set found has so many)
    none_found: int
    expected_lost: float | None  # sum of the failure probabilities


@dataclass(frozen=True, slots=True)
class UnitNumbers:
    """The cost of the failure of one unit of evidence for the assessed predictions."""

    name: str
    lost: float  # mean share of the margin that it is expected to cost, each counted from 0 to 1
    flip_chance: float  # mean chance that it flips a prediction
    flips: int  # predictions that it flips with a chance over one half


@dataclass(frozen=True, slots=True)
class ModeNumbers:
    """The cost of one failure mode for the assessed predictions."""

    mode: str
    exposure: Quartiles
    histogram: tuple[int, ...]  # of exposure, in equal bins from 0 to 1
    flips: Share  # predictions that the failure of some single unit flips with a chance over one half
    units: tuple[UnitNumbers, ...]  # the most likely to flip predictions first


@dataclass(frozen=True, slots=True)
class ModesNumbers:
    """The cost of the failure modes for the assessed predictions of a set."""

    rows: int  # predictions assessed; all counts are of these
    most_confident: int | None  # the largest number of confident rows to assess; None if every row was assessed
    modes: tuple[ModeNumbers, ...]  # empty if no row of the set was assessed


@dataclass(frozen=True, slots=True)
class SetNumbers:
    """One set of predictions: all of them, or the confident ones."""

    rows: int
    flips_at: tuple[int, ...]  # predictions that flip at the 1st, 2nd ... removal
    never: int  # predictions that no removal of the path flips
    flips_after_one: Share
    flips_early: Share
    early_on_path: int  # of those that flip early, the ones that the path finds
    holds: Share  # predictions that no loss of whole groups flips
    fewest: tuple[int, ...]  # predictions whose smallest known failing set has 1, 2 ... groups
    none_known: int  # predictions without a known failing set
    alone_exact: bool  # whether `alone` of each group counts every row, or only rows whose strongest group it is
    mean_confidence: float
    mean_exposure: float
    exposure: Quartiles | None
    collapse: tuple[Quartiles, ...] | None
    class_curves: tuple[ClassCurve, ...]
    losses: tuple[Loss, ...]
    class_losses: tuple[ClassLosses, ...]
    combinations: tuple[LossCombination, ...]
    degradations: tuple[OperatorFlips, ...]
    groups: tuple[GroupRole, ...]
    pairs: tuple[GroupPair, ...]
    distinct_pairs: int
    lattice: LatticeNumbers | None
    modes: ModesNumbers | None  # None if the audit has no modes block
    cases: tuple[FragileCase, ...]

    @property
    def strongest(self) -> GroupRole:
        """The group that is most often the strongest."""
        return max(self.groups, key=lambda group: group.first)


@dataclass(frozen=True, slots=True)
class Accuracy:
    """How often predictions are right, and whether fragile ones are wrong more often."""

    right: Share
    right_in_focus: Share
    wrong_by_fifth: tuple[Share, ...]  # least exposed fifth first
    wrong_exposed: Share  # the most exposed fifth
    wrong_rest: Share
    difference: ShareDifference  # exposed minus rest

    @property
    def enough_rows(self) -> bool:
        """Whether a fifth has enough rows to compare."""
        return self.wrong_exposed.rows >= FEWEST_IN_A_FIFTH


@dataclass(frozen=True, slots=True)
class ReviewView:
    """What a review of limited size finds, ordered by exposure and by confidence (least first)."""

    defect: str  # "wrong" or "brittle"
    rows: int
    found_in_all: int
    shares: tuple[float, ...]
    by_exposure: tuple[int, ...]  # how many wrong or brittle rows are in the first share of rows
    by_confidence: tuple[int, ...]
    policy: Mapping[str, Any]  # the rule of the review policy, over the score `by`
    by: str  # the score that sends the fewest rows to review, or the first one if none attains the risk
    tried: tuple[str, ...]  # the scores among which the level was divided
    risk: float
    confidence: float


@dataclass(frozen=True, slots=True)
class BaselineNumbers:
    """The compared predictions under one baseline."""

    name: str
    artificial: tuple[str, ...]  # fields whose baseline is a value that no training row has
    flips_after_one: Share
    flips_early: Share
    never_flips: Share
    median_budget: float


@dataclass(frozen=True, slots=True)
class Dependence:
    """The same confident predictions under every baseline that the model admits."""

    rows: int
    depth: int
    verdict: Stability
    short: str  # the verdict in a few words
    sentence: str  # the verdict with its shares
    baselines: tuple[BaselineNumbers, ...]  # the declared one first
    agreements: tuple[BaselineAgreement, ...]  # of each other baseline with the declared one
    under_all: tuple[str, ...]  # ids of those that flip early under every baseline
    under_only: tuple[tuple[str, int], ...]  # how many flip early under one baseline and no other


@dataclass(frozen=True, slots=True)
class ReliabilityNumbers:
    """How many decisions are expected to be lost, and how many each group would keep."""

    condition: str  # how evidence fails, in words
    recorded: bool  # from recorded outages; else at declared rates, independently for each group
    rows: int
    exact: int  # rows whose probability is exact
    lost: float
    kept: tuple[tuple[str, float], ...]  # (group, decisions kept if it never failed), most first


@dataclass(frozen=True, slots=True)
class AuditNumbers:
    """All numbers of the report about one audit."""

    facts: AuditFacts
    protocol: ProtocolFacts
    min_confidence: float
    everything: SetNumbers
    confident: SetNumbers
    worst: WorstSegment | None
    segments: tuple[SegmentShares, ...]  # one per column of `by`
    density: DensityMap
    accuracy: Accuracy | None
    reviews: tuple[ReviewView, ...]
    detailed: bool  # False if the audit stores summary claims only
    dependence: Dependence | None = None  # None if other baselines were not compared
    reliability: ReliabilityNumbers | None = None  # None if no failure probabilities were given
    any_value: AnyValueNumbers | None = None  # None without an any_value block
    lacks_field: str | None = None  # a field that the given rows lack, so that no case shows values

    @property
    def focus(self) -> SetNumbers:
        """The subject of the report: the confident predictions, or all predictions if none is confident."""
        return self.confident if self.confident.rows else self.everything


@dataclass(frozen=True, slots=True)
class AnyValueNumbers:
    """How many groups must change, to any values, before the predictions that were searched flip."""

    rows: int
    most_exposed: int | None  # confident predictions that the audit searches at most; None: it searches all
    groups: int  # number of groups that vary
    budgets: tuple[tuple[str, int, int], ...]  # (budget in words, predictions, of these flip early)
    safe: tuple[SafeGroup, ...]  # groups of several fields come first, and those that hold most predictions


@dataclass(frozen=True, slots=True)
class SafeGroup:
    """What one group, whatever it says, can do to the predictions that were searched."""

    name: str
    fields: int  # that are varied
    holds: int  # predictions that no values of it flip
    flips: int  # predictions that some values of it flip; of the others that is not known


@dataclass(frozen=True, slots=True)
class WorstSegment:
    """The segment that flips early clearly more often than the other rows of the set."""

    column: str | None  # None: the predicted class
    name: str
    flips_early: Share
    rest_name: str | None  # the other segment, if there is only one
    rest: Share
    difference: ShareDifference


@dataclass(frozen=True, slots=True)
class Compared:
    """One share in two audits, and its difference, the second minus the first."""

    measure: str  # a key of comparison.COMPARED
    first: Share
    second: Share
    difference: ShareDifference


@dataclass(frozen=True, slots=True)
class ComparedSegments:
    """The confident predictions that flip early in two audits, segment by segment of one column."""

    column: str
    segments: tuple[tuple[str, Compared], ...]


@dataclass(frozen=True, slots=True)
class RowChanges:
    """The rows with one kind of change between two audits: the change in words, their number, and the first ids."""

    words: str
    rows: int
    first: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PairedAudits:
    """Two audits, compared over the rows they share, matched by id, or over all rows of each if they share none."""

    first: str
    second: str
    differences: tuple[SettingDifference, ...]  # between their protocols
    shared: int
    same_class: int
    both_confident: int
    flip_in_both: int  # of those confident in both, the ones that flip early
    flip_in_first_only: int
    flip_in_second_only: int
    compared: tuple[Compared, ...]
    segments: tuple[ComparedSegments, ...]
    by_sets: bool  # whether flips are counted over all sets of groups, which all audits searched; else along the path
    rank_correlation: float | None  # Spearman, of exposure over the shared rows
    changed: tuple[RowChanges, ...]  # empty if no row is shared; the last entry is the rows whose class changed
    right: tuple[int, int] | None  # of those, the ones right in the second audit and in the first; None without labels

    @property
    def comparable(self) -> bool:
        """Whether both protocols define flips alike, so that a difference is due to the models."""
        return not any(one.decides_flips for one in self.differences)


@dataclass(frozen=True, slots=True)
class Byline:
    """Author, purpose and date of the report, as given by the user."""

    author: str | None = None
    purpose: str | None = None
    date: str | None = None


@dataclass(frozen=True, slots=True, repr=False)
class ReportSummary(BriefRepr):
    """The summary of one or several audits."""

    audits: tuple[AuditNumbers, ...]
    paired: tuple[PairedAudits, ...]  # each audit after the first, against the first
    byline: Byline
    parities: tuple[ModelParity, ...] = ()  # comparisons of an audited model with other artefacts of it
    measured: tuple[AuditSummary, ...] = ()  # every measure of each audit, if there are several

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values; undefined numbers are null."""
        plain: dict[str, Any] = without_nan(asdict(self))
        return {"format": FORMAT, **plain}
