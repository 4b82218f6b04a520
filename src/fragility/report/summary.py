"""The report's summary: everything a report says about one or several audits, as plain typed numbers.

Rendering reads these classes and nothing else, so HTML, Markdown and JSON cannot say different things. Counts are
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
WAYS = ("targeted", "independent", "common")


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """One evidence group as the protocol declares it."""

    name: str
    columns: int
    becomes: tuple[tuple[str, str], ...]  # (field, what it becomes when it is lost), as far as it is known


@dataclass(frozen=True, slots=True)
class ProtocolFacts:
    """The protocol, as far as the report shows it."""

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
    exposure_weights: tuple[float, float, float]
    training_rows: int
    digest: str


@dataclass(frozen=True, slots=True)
class AuditFacts:
    """What was audited: the model, the rows, and what binds them."""

    name: str
    model: str
    classes: tuple[str, ...]
    rows: int
    engine: str
    evaluations: int
    probabilities: str
    partial: tuple[str, ...]  # what the fingerprint could not see
    model_fingerprint: str
    input_digest: str
    root_digest: str
    versions: Mapping[str, str]
    limits: str
    verify: str  # the command that recomputes every claim
    folder: str | None  # where it lies; None in memory
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
    """How much of the margin one way of failing takes. Histogram: equal bins from 0 to `top`, the last one open."""

    way: str
    quartiles: Quartiles
    half: int  # predictions that lose at least half of their margin this way
    top: float
    histogram: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ClassLosses:
    """Who is exposed to what, by predicted class: rows that lose at least half of their margin, by way."""

    predicted: str
    rows: int
    flips_after_one: Share
    flips_early: Share
    mean_exposure: float
    half: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LossCombination:
    """How many predictions lose at least half of their margin in exactly these ways."""

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
    """What one evidence group carries."""

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
    """Confidence against exposure as counts. Confidence c lies at -log10(1 - c), cut at `right`."""

    right: float
    columns: int
    lines: int
    cells: tuple[tuple[int, int, int], ...]  # (column, line, predictions), only where there are any
    threshold: float  # exposure from which the most exposed fifth begins
    corner: int  # predictions of the set in the exposed corner


@dataclass(frozen=True, slots=True)
class FieldValue:
    """A field of a row: its value, and what it becomes when it is lost, as texts."""

    field: str
    value: str
    becomes: str


@dataclass(frozen=True, slots=True)
class CaseMode:
    """What one failure mode costs one prediction, and the unit whose failure flips it most likely."""

    mode: str
    exposure: float
    weakest: str | None  # None where no evidence can fail in this way
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
    margins: tuple[float, ...] | None  # None where the audit holds summary claims only
    flips_to: str | None
    thresholds: Mapping[str, float | None]
    smallest: SmallestSet | None
    modes: tuple[CaseMode, ...] | None  # None where the row has no modes block
    intervals: tuple[StabilityInterval, ...] | None  # by field; None where the row has no intervals block
    becomes: Mapping[str, tuple[tuple[str, str], ...]]  # by group of the path or smallest set: fields, as far as told
    values: tuple[tuple[FieldValue, ...], ...] | None = None  # of each group of the path; None without rows

    @property
    def flip_step(self) -> int | None:
        """The removal that flips it; None where the path does not."""
        return self.flip_budget if self.flipped else None


@dataclass(frozen=True, slots=True)
class SmallestSet:
    """What the search over all subsets found for one prediction."""

    state: str  # minimum, upper bound, none ... proved, not decided, or not searched
    size: int | None  # None: none was found
    groups: tuple[str, ...]
    count: int | None  # how many sets of that size
    failure_probability: float | None
    failure_interval: tuple[float, float] | None  # None where the probability is exact


@dataclass(frozen=True, slots=True)
class LatticeNumbers:
    """What the search over all subsets says of a set of predictions."""

    condition: str | None  # how evidence fails, in words; None where no failures were declared
    searched: int  # predictions that were searched; all other counts are of these
    fewer: int  # predictions that fewer groups flip than the path needs, or that the path does not flip at all
    minimum: int  # predictions whose smallest failing set is proved
    none_proved: int  # predictions that no loss of whole groups flips, proved
    by_size: tuple[tuple[int, int], ...]  # (groups, predictions whose smallest set found has so many)
    none_found: int
    expected_lost: float | None  # sum of the failure probabilities


@dataclass(frozen=True, slots=True)
class UnitNumbers:
    """What the failure of one unit of evidence costs the assessed predictions."""

    name: str
    lost: float  # mean share of the margin that it is expected to cost, each counted from 0 to 1
    flip_chance: float  # mean chance that it flips a prediction
    flips: int  # predictions that it flips with a chance over one half


@dataclass(frozen=True, slots=True)
class ModeNumbers:
    """What one failure mode costs the assessed predictions."""

    mode: str
    exposure: Quartiles
    histogram: tuple[int, ...]  # of exposure, in equal bins from 0 to 1
    flips: Share  # predictions that the failure of some single unit flips with a chance over one half
    units: tuple[UnitNumbers, ...]  # the most likely to flip predictions first


@dataclass(frozen=True, slots=True)
class ModesNumbers:
    """What the failure modes of an audit cost a set of predictions, as far as they were assessed."""

    rows: int  # predictions assessed; all counts are of these
    most_confident: int | None  # how many confident rows were assessed at most, by content; None: every row was
    modes: tuple[ModeNumbers, ...]  # none where no row of the set was assessed


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
    none_known: int  # predictions of which no failing set is known
    alone_exact: bool  # whether `alone` of each group counts every row; else only those where it is the strongest
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
    modes: ModesNumbers | None  # None where the audit has no modes block
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
        """Whether a fifth holds enough rows to compare."""
        return self.wrong_exposed.rows >= FEWEST_IN_A_FIFTH


@dataclass(frozen=True, slots=True)
class ReviewView:
    """What a review of limited size finds, ordered by exposure and by confidence (least first)."""

    defect: str  # "wrong" or "brittle"
    rows: int
    found_in_all: int
    shares: tuple[float, ...]
    by_exposure: tuple[int, ...]  # of the wrong or brittle, how many lie in the first share of rows
    by_confidence: tuple[int, ...]
    policy: Mapping[str, Any]  # the rule of the review policy, over the score `by`
    by: str  # of the scores tried the one that sends least to review, or the first where none attains the risk
    tried: tuple[str, ...]  # scores that the level was divided among
    risk: float
    confidence: float


@dataclass(frozen=True, slots=True)
class BaselineNumbers:
    """The compared predictions under one baseline."""

    name: str
    artificial: tuple[str, ...]  # fields for which it is a value that no training row has
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
    sentence: str  # and with the shares it follows from
    baselines: tuple[BaselineNumbers, ...]  # the declared one first
    agreements: tuple[BaselineAgreement, ...]  # of each other baseline with the declared one
    under_all: tuple[str, ...]  # ids of those that flip early under every baseline
    under_only: tuple[tuple[str, int], ...]  # how many flip early under one baseline and no other


@dataclass(frozen=True, slots=True)
class ReliabilityNumbers:
    """How many decisions are expected to be lost, and how many each group would keep."""

    condition: str  # how evidence fails, in words
    recorded: bool  # False: at declared rates, each group independently of the others
    rows: int
    exact: int  # rows whose probability is exact
    lost: float
    kept: tuple[tuple[str, float], ...]  # (group, decisions kept if it never failed), most first


@dataclass(frozen=True, slots=True)
class AuditNumbers:
    """Everything the report says of one audit."""

    facts: AuditFacts
    protocol: ProtocolFacts
    min_confidence: float
    everything: SetNumbers
    confident: SetNumbers
    worst: WorstSegment | None
    segments: tuple[SegmentShares, ...]  # by each column asked for
    density: DensityMap
    accuracy: Accuracy | None
    reviews: tuple[ReviewView, ...]
    detailed: bool  # False where the audit holds summary claims only
    dependence: Dependence | None = None  # None where other baselines were not compared
    reliability: ReliabilityNumbers | None = None  # None where no failure probabilities were given
    any_value: AnyValueNumbers | None = None  # None without an any_value block
    lacks_field: str | None = None  # a field that the rows given lack, so that no case shows its values

    @property
    def focus(self) -> SetNumbers:
        """The subject of the report: the confident predictions, or all predictions if none is confident."""
        return self.confident if self.confident.rows else self.everything


@dataclass(frozen=True, slots=True)
class AnyValueNumbers:
    """How many groups must change, to any values, before the predictions that were searched flip."""

    rows: int
    most_exposed: int | None  # confident predictions that the audit searches at most; None: it searches all
    groups: int  # that are varied
    budgets: tuple[tuple[str, int, int], ...]  # in words: predictions with it, and those of them that losing two flips


@dataclass(frozen=True, slots=True)
class WorstSegment:
    """The segment that flips early clearly more often than the other rows of the set."""

    column: str | None  # None: the predicted class
    name: str
    flips_early: Share
    rest_name: str | None  # where the rest is one segment only
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
class ChangedRows:
    """What happened to some rows from one audit to another, how many they are, and the first of them."""

    words: str
    rows: int
    first: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PairedAudits:
    """Two audits over the rows they share, matched by id; where they share none, over all rows of each."""

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
    changed: tuple[ChangedRows, ...]  # none where no row is shared; the last of them changed their label
    right: tuple[int, int] | None  # of those, the ones right in the second audit and in the first; None without labels

    @property
    def comparable(self) -> bool:
        """Whether both audits ask the same question, so that a difference in flips is the models'."""
        return not any(one.decides_flips for one in self.differences)


@dataclass(frozen=True, slots=True)
class Byline:
    """Who made the report, what for and when, as far as it was said; nothing here is looked up."""

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
    measured: tuple[AuditSummary, ...] = ()  # every measure of each audit, where there are several

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values; what is undefined is null."""
        plain: dict[str, Any] = without_nan(asdict(self))
        return {"format": FORMAT, **plain}
