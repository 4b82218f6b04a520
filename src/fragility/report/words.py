"""The report's sentences, as plain text: HTML and Markdown say the same words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fragility.report.case_words import case_sentence
from fragility.report.phrases import (
    brief,
    counted,
    difference_told,
    interval,
    listed,
    named,
    of,
    percent,
    with_interval,
)
from fragility.report.summary import (
    Accuracy,
    AuditNumbers,
    Dependence,
    GroupRole,
    LatticeNumbers,
    ProtocolFacts,
    ReliabilityNumbers,
    ReportSummary,
    ReviewView,
    SetNumbers,
    WorstSegment,
)
from fragility.segments import SegmentNumbers, SegmentShares
from fragility.words import artificial_in_words, first_in_words, lost_in_words

SHOWN_ROWS = 20
FEWEST_IN_A_FIFTH = 5
FEW = 30  # fewer wrong or brittle rows than this do not tell two orders apart
BASELINES = {
    "typical": "the most frequent category in training, and the training mean of numbers",
    "mean": "the training mean",
    "median": "the training median of numbers, and the most frequent category in training",
    "zero": "zero",
    "missing": "missing, and the model's own imputer or rule for missing values answers",
    "explicit": "values declared by hand",
}
READINGS = {
    "support": (
        "The margin is the log odds of the predicted class against its best competitor; below zero another class has "
        "taken over, and then all of the margin counts as lost."
    ),
    "support_unbounded": (
        "The margin is the log odds of the predicted class against its best competitor; below zero another class has "
        "taken over, and more than all of the margin can be lost. Pictures cut such losses at 100%."
    ),
    "current": (
        "The margin is the log odds of whichever class leads against the runner-up, as the paper writes it; it never "
        "falls below zero."
    ),
}
WAY_NAMES = {"targeted": "Targeted", "independent": "Independent", "common": "Common"}
WAY_WORDS = {
    "targeted": "the strongest groups go first: the mean share of the margin lost along the removal path",
    "independent": "each group fails on its own: the shares of the margin so lost, added up (may exceed 100%)",
    "common": "all evidence fades together: the mean share of the margin lost over the severities",
}


def focus_noun(audit: AuditNumbers) -> str:
    """Return what the report speaks of."""
    return "confident predictions" if audit.confident.rows else "predictions"


def confident_words(audit: AuditNumbers) -> str:
    """Return what confident means here."""
    return f"at least {percent(audit.min_confidence)} confident"


# --- what was audited ---------------------------------------------------------------------------------------


def title(summary: ReportSummary) -> str:
    """Return the report's name."""
    return f"Fragility report: {listed([audit.facts.name for audit in summary.audits], 4)}"


def byline(summary: ReportSummary) -> str:
    """Return who made the report, what for and when, as far as it was said."""
    said = summary.byline
    parts = [
        "" if said.author is None else f"By {said.author}",
        "" if said.purpose is None else f"Purpose: {said.purpose}",
        said.date or "",
        *(_signed(audit, len(summary.audits) > 1) for audit in summary.audits),
    ]
    return " · ".join(part for part in parts if part)


def _signed(audit: AuditNumbers, several: bool) -> str:
    if audit.facts.signed_by is None:
        return ""
    which = f"{brief(audit.facts.name)}: s" if several else "S"
    return f"{which}ignature of key {audit.facts.signed_by} verified"


def audited(audit: AuditNumbers) -> str:
    """Return what was audited."""
    facts = audit.facts
    classes = listed([brief(label) for label in facts.classes])
    return (
        f"{counted(facts.rows, 'prediction')} of {facts.model}, which tells apart {classes}. For each of them the "
        "audit took evidence away, what matters most first, and recorded where the prediction flips. The result is "
        "a certificate for each row, which anyone with the model and the rows can recompute."
    )


def protocol_words(audit: AuditNumbers) -> list[tuple[str, str]]:
    """Return the protocol in plain words: what may fail, what replaces it, how far the audit went."""
    pi = audit.protocol
    return [
        ("What may fail", _grouping(pi)),
        ("What replaces it", _replacement(pi)),
        ("Removal", _removal(pi)),
        ("Weakening", _weakening(pi)),
        ("Decision", _decision(pi)),
        ("Margin", READINGS[pi.reading] + _smoothing(pi)),
        ("Confident", f"A prediction with a probability of at least {percent(audit.min_confidence)}."),
    ]


def _grouping(pi: ProtocolFacts) -> str:
    groups = counted(len(pi.groups), "group")
    columns = counted(pi.columns, "column")
    if pi.grouping == "raw-origin":
        return f"{groups} of evidence, one for each raw field: the {columns} made from a field fail together."
    if pi.grouping == "declared":
        return f"{groups} of evidence over {columns}, declared by hand: the fields of a group fail together."
    return f"{groups} of evidence over {columns} ({pi.grouping}): the fields of a group fail together."


def _replacement(pi: ProtocolFacts) -> str:
    where = "the raw fields, before the model's own preprocessing" if pi.space == "raw" else "the model's input columns"
    known = BASELINES.get(pi.baseline, pi.baseline)
    fitted = f", fitted on {counted(pi.training_rows, 'training row')}"
    fitted = "" if pi.baseline in ("explicit", "missing") else fitted
    artificial = f"; {artificial_in_words(pi.baseline, pi.artificial)}" if pi.artificial else ""
    return f"In {where}, lost evidence becomes {known}{fitted}{artificial}."


def _removal(pi: ProtocolFacts) -> str:
    return (
        "Each group is first removed alone, to see how much margin it carries; then "
        f"{'one group is' if pi.depth == 1 else f'up to {pi.depth} groups are'} removed one after another, the "
        "strongest first."
    )


def _smoothing(pi: ProtocolFacts) -> str:
    if pi.smoothing == 0.0:
        return ""
    return f" First {pi.smoothing:g} is added to the probability of each class; flips do not depend on that."


def _weakening(pi: ProtocolFacts) -> str:
    if not pi.operators:
        return "None was declared."
    severities = [percent(severity) for severity in pi.severities]
    shown = severities if len(severities) <= 4 else [*severities[:2], "…", severities[-1]]
    return f"Evidence is moved toward its replacement by {', '.join(shown)}: {listed(_operators(pi.operators))}."


def _operators(operators: Sequence[str]) -> list[str]:
    return [operator_words(operator) for operator in operators]


def operator_words(operator: str) -> str:
    """Return an operator in words."""
    if operator == "attenuate_all":
        return "all groups together"
    width = operator.removeprefix("attenuate_top")
    return "the strongest group alone" if width == "1" else f"the {width} strongest groups"


def _decision(pi: ProtocolFacts) -> str:
    if pi.decision is None:
        return "The class with the largest probability is predicted."
    return f"The model predicts {pi.decision}."


# --- the finding --------------------------------------------------------------------------------------------


EARLY_MEANS = "they change when one or two groups of evidence are lost"


def headline(audit: AuditNumbers) -> list[str]:
    """Return the sentences that open the report: how many flip early, and where most of them are."""
    focus, rows = audit.focus, audit.facts.rows
    if rows == 1:
        return [f"The one prediction audited is {_sure(audit)}confident; {_single(focus)}."]
    early = focus.flips_early
    some = f"{early.count:,} of {counted(early.rows, focus_noun(audit)[:-1])}"
    told = f"{some} flip early, {with_interval(early)}: {EARLY_MEANS}."
    opening = [] if audit.confident.rows else [f"None of {counted(rows, 'prediction')} is {confident_words(audit)}."]
    where, found = _where(audit), audit.dependence
    depends = None if found is None or found.stable else f"This {dependence_words(found)}"
    return [" ".join([*opening, told]), *(sentence for sentence in (where, depends) if sentence is not None)]


def _sure(audit: AuditNumbers) -> str:
    return f"at least {percent(audit.min_confidence)} " if audit.confident.rows else "not "


def _single(focus: SetNumbers) -> str:
    step = next((step for step, count in enumerate(focus.flips_at, start=1) if count), None)
    if step is None:
        return "no removal flips it"
    return f"it flips when {counted(step, 'group')} of evidence {'is' if step == 1 else 'are'} lost"


def _where(audit: AuditNumbers) -> str | None:
    """Return where the predictions that flip early are; None where there is nothing to tell apart."""
    worst = audit.worst
    if worst is not None:
        early = worst.flips_early
        some = f"{early.count:,} of {early.rows:,} {_segment(worst, audit)}"
        rest = f"{percent(worst.rest.value)} ({interval(worst.rest)}) of {_rest(worst)}"
        return f"{some} flip early, {with_interval(early)}, against {rest}."
    if len(audit.focus.class_losses) < 2 or not audit.focus.flips_early.count:
        return None
    return "No predicted class flips early clearly more often than the others."


def _segment(worst: WorstSegment, audit: AuditNumbers) -> str:
    sure = "confident " if audit.confident.rows else ""
    if worst.column is None:
        return f"{sure}{brief(worst.name)!r} predictions"
    return f"{sure}predictions with {brief(worst.column)} {brief(worst.name)}"


def _rest(worst: WorstSegment) -> str:
    if worst.column is None and worst.rest_name is not None:
        return repr(brief(worst.rest_name))
    return "the others"


def segment_label(worst: WorstSegment) -> str:
    """Return a segment's name for a picture."""
    return repr(named(worst.name)) if worst.column is None else f"{named(worst.column)} {named(worst.name)}"


def rest_label(worst: WorstSegment) -> str:
    """Return what to call the rows outside a segment in a picture."""
    return repr(named(worst.rest_name)) if worst.column is None and worst.rest_name is not None else "all others"


def all_of(audit: AuditNumbers) -> str:
    """Return what to call all predictions that the report speaks of."""
    return "all confident" if audit.confident.rows else "all predictions"


def finding(audit: AuditNumbers) -> list[str]:
    """Return what the predictions rest on, and what that means."""
    found = audit.dependence
    stable = [f"The finding is {dependence_words(found)}"] if found is not None and found.stable else []
    return [_on_what(audit), _so_what(audit), *stable]


def dependence_words(found: Dependence) -> str:
    """Return whether the finding depends on the baseline, to follow on the finding."""
    own, *others = found.baselines
    some = counted(found.rows, "confident prediction")
    said = f"of {some}, {percent(own.flips_early.value)} flip early under {own.name}"
    if found.stable:
        told = listed([f"{percent(one.flips_early.value)} under {one.name}" for one in others])
        return f"stable across baselines: {said}, {told}."
    apart = [f"{percent(one.flips_early.value)} under {one.name}" for one in others if one.name in found.disagreeing]
    return f"depends on the baseline: {said}, but {listed(apart)}."


def dependence_rows_words(found: Dependence) -> str:
    """Return which predictions flip early whatever the baseline, and how many under only one."""
    every = found.under_all
    shown = f": rows {listed([brief(own) for own in every], SHOWN_ROWS)}" if every else ""
    disputed = " Nobody can dispute these by the choice of a baseline." if every else ""
    only = [f"{count:,} under {name}" for name, count in found.under_only if count]
    rest = f" Under one baseline only: {listed(only)}." if only else ""
    count = counted(len(every), "prediction flips", "predictions flip")
    return f"{count} early under all {len(found.baselines)} baselines{shown}.{disputed}{rest}"


def artificial_words(found: Dependence) -> list[str]:
    """Return which of the baselines that disagree are values that the model has not seen."""
    return [
        f"{told[0].upper()}{told[1:]}."
        for one in found.baselines
        if one.artificial and one.name in (found.baselines[0].name, *found.disagreeing)
        for told in [artificial_in_words(one.name, one.artificial)]
    ]


def _on_what(audit: AuditNumbers) -> str:
    focus = audit.focus
    strongest = max(focus.groups, key=lambda group: group.first)
    leaning = brief(strongest.name)
    flipping = max(focus.groups, key=lambda group: group.alone)
    opening = f"They lean most on {leaning}, the strongest evidence of {of(strongest.first, focus.rows)}"
    if focus.rows == 1:
        opening = f"It leans most on {leaning}"
    if not flipping.alone:
        return f"{opening}; no single group flips any of them." if focus.rows > 1 else f"{opening}."
    if flipping.name == strongest.name:
        return f"{opening}; losing it alone flips {flipping.alone:,}."
    return f"{opening}; losing {brief(flipping.name)} alone flips the most, {flipping.alone:,}."


def _so_what(audit: AuditNumbers) -> str:
    if audit.accuracy is not None and audit.accuracy.wrong_exposed.rows >= FEWEST_IN_A_FIFTH:
        return accuracy_words(audit)[-1]
    worst = audit.focus.cases[0]
    which = "It is" if audit.focus.rows == 1 else "The most exposed of them is"
    return f"{which} row {brief(worst.id)}: {case_sentence(worst)}."


# --- sections -----------------------------------------------------------------------------------------------


def budget_words(audit: AuditNumbers) -> str:
    """Return how many predictions rest on one, two, three groups."""
    focus = audit.focus
    places = list(enumerate(("one removal", "two", "three"), start=1))[: len(focus.flips_at)]
    told = [f"{of(focus.within(k), focus.rows)} within {place}" for k, place in places]
    flipping = listed([told[0].replace(" within", " flip within"), *told[1:]])
    return (
        f"Of {counted(focus.rows, focus_noun(audit)[:-1])}, {flipping}; {of(focus.never, focus.rows)} do not flip "
        f"within {counted(audit.protocol.depth, 'removal')}."
    )


def collapse_words(audit: AuditNumbers) -> str:
    """Return how fast the margin goes."""
    curve = audit.focus.collapse
    if curve is None:
        return (
            "This audit holds a summary of each certificate, without the steps in between: there is no curve to draw."
        )
    last = len(curve) - 1
    steps = [step for step in (1, 3) if step < last] + [last]
    told = [f"{percent(curve[step].median)} after {counted(step, 'removal')}" for step in steps]
    return f"Half of the {focus_noun(audit)} have lost at least this share of their margin: {listed(told)}."


def losses_words(audit: AuditNumbers) -> str:
    """Return who is exposed to which way of failing."""
    focus = audit.focus
    half = [f"{of(loss.half, focus.rows)} to {loss.way} failure" for loss in focus.losses]
    absent = " The protocol does not fade all evidence together, so common failure is left out."
    return (
        "Evidence can fail in three ways, and a prediction may be exposed to one and not to another. Of "
        f"{counted(focus.rows, focus_noun(audit)[:-1])}, so many lose at least half of their margin: {listed(half)}."
        f"{'' if len(focus.losses) == 3 else absent}"
    )


def combination_words(ways: Sequence[str]) -> str:
    """Return a combination of ways as a label."""
    return "none of them" if not ways else " and ".join(WAY_NAMES[way].lower() for way in ways)


def groups_words(audit: AuditNumbers) -> str:
    """Return which evidence carries the decisions."""
    focus = audit.focus
    failing = [group for group in focus.groups if group.in_set]
    if not failing:
        return f"No group is among the failing groups of any of the {focus_noun(audit)}: none of them flips."
    top = failing[: min(3, len(failing))]
    told = listed([f"{brief(group.name)} ({group.in_set:,})" for group in top])
    flipping = focus.rows - focus.never
    return (
        f"{counted(flipping, focus_noun(audit)[:-1])} {'flips' if flipping == 1 else 'flip'}; the groups whose "
        f"loss does it most often: {told}."
    )


def unused_groups(groups: Sequence[GroupRole]) -> int:
    """Return how many groups are neither first nor failing for any prediction."""
    return sum(1 for group in groups if not group.first and not group.in_set)


def map_words(audit: AuditNumbers) -> str:
    """Return what the exposed corner holds."""
    density = audit.density
    if not audit.confident.rows:
        return (
            f"No prediction is {confident_words(audit)}, so there is no exposed corner; the most exposed fifth of all "
            f"predictions begins at an exposure of {density.threshold:.2f}."
        )
    return (
        "Exposure is 0 where a prediction rests on much and nears 1 where it rests on little. The exposed corner holds "
        f"{counted(density.corner, 'prediction')}, {confident_words(audit)} and in the most exposed fifth of these "
        f"(exposure of {density.threshold:.2f} or more): what looks safest there rests on least."
    )


def review_words(view: ReviewView, noun: str) -> list[str]:
    """Return what a review would find, and the policy that labels support."""
    if not view.found_in_all:
        return [
            f"None of the {view.rows:,} labelled {noun} is {view.sought}; there is nothing to find.",
            policy_words(view, noun),
        ]
    place = view.shares.index(0.2)
    found, other = (of(counts[place], view.found_in_all) for counts in (view.by_exposure, view.by_confidence))
    return [
        f"{of(view.found_in_all, view.rows)} of the labelled {noun} are {view.sought}. A review of one in five finds "
        f"{found} by exposure, {other} by confidence, the least confident first.{_few(view.found_in_all)}",
        policy_words(view, noun),
    ]


def _few(found: int) -> str:
    return " With so few, a difference between the two orders is mostly chance." if found < FEW else ""


def policy_words(view: ReviewView, noun: str) -> str:
    """Return the review policy in words."""
    rule, risk, sure = view.policy, percent(view.risk), percent(view.confidence)
    if rule["reviews_nothing"]:
        head = (
            f"Policy: none of the {noun} need review; at most {risk} of them are {view.sought}, with probability {sure}"
        )
        head += f" (bound {percent(rule['bound'])})."
    elif rule["state"] == "attained":
        head = (
            f"Policy: review the {percent(rule['review_share'])} of the {noun} with an exposure of at least "
            f"{rule['threshold']:.3f}; of the rest at most {risk} are {view.sought}, with probability {sure} (bound "
            f"{percent(rule['bound'])} from {rule['unreviewed_brittle']:,} of {rule['unreviewed']:,} labelled rows)."
        )
    else:
        head = f"Policy: review all {noun}. A rate of at most {risk} {view.sought} among unreviewed ones cannot be "
        head += f"promised from {counted(int(rule['rows']), 'labelled row')}; {_needed(rule)}."
    return f"{head} This holds for rows drawn like the labelled ones{_stress(view)}."


def _needed(rule: Mapping[str, object]) -> str:
    needed = rule["rows_needed"]
    return "no number of rows would do at the rate observed" if needed is None else f"about {needed:,} would be needed"


def _stress(view: ReviewView) -> str:
    return " and for the declared stress" if view.sought == "brittle" else ""


def accuracy_words(audit: AuditNumbers) -> list[str]:
    """Return how often predictions are right, and whether fragile ones are wrong more often."""
    found = audit.accuracy
    if found is None:
        return []
    told = [f"{with_interval(found.right)} of all predictions are right"]
    if audit.confident.rows:
        told[0] += f", {with_interval(found.right_in_focus)} of the confident ones"
    return [f"{told[0]}.", _wrong_more_often(found, focus_noun(audit))]


def _wrong_more_often(found: Accuracy, noun: str) -> str:
    if found.wrong_exposed.rows < FEWEST_IN_A_FIFTH:
        return f"Too few {noun} are labelled to say whether fragile ones are wrong more often."
    difference = found.difference
    rates = (
        f"The most exposed fifth of the {noun} is wrong {percent(found.wrong_exposed.value)} of the time, the others "
        f"{percent(found.wrong_rest.value)}"
    )
    told = f"a difference of {difference_told(difference)}"
    if difference.lower > 0:
        return f"{rates}: {told}, so fragile predictions are wrong more often."
    if difference.upper < 0:
        return f"{rates}: {told}, so fragile predictions are wrong less often here."
    return f"{rates}: {told}; these labels do not settle whether fragile predictions are wrong more often."


def lattice_words(audit: AuditNumbers) -> str | None:
    """Return what the search over all subsets says of the predictions together; None where there was none."""
    found, focus = audit.focus.lattice, audit.focus
    if found is None:
        return None
    told = (
        f"A search over all subsets of {'their groups' if found.searched == focus.rows else _searched_rows(found)} "
        f"flips {of(found.fewer, found.searched)} of them with fewer groups than their path names, and proves the "
        f"smallest set of {of(found.minimum, found.searched)}."
    )
    if found.expected_lost is None or found.condition is None:
        return told
    return f"{told} {found.condition.capitalize()}, about {found.expected_lost:,.1f} of {focus.rows:,} are lost."


def reliability_words(found: ReliabilityNumbers) -> list[str]:
    """Return how many decisions are expected to be lost, and what to make reliable first."""
    group, kept = found.kept[0]
    first = first_in_words(brief(group), kept, found.lost)
    assumed = None if found.recorded else "The rates were declared, not measured; groups fail independently."
    lost = lost_in_words(found.lost, found.rows, found.exact, found.condition)
    return [told for told in (lost, first, assumed) if told is not None]


def _searched_rows(found: LatticeNumbers) -> str:
    return f"the {counted(found.searched, 'most exposed one', 'most exposed')}"


def segments_words(audit: AuditNumbers, shares: SegmentShares) -> str:
    """Return which segment of a column flips early most often, and which least."""
    numbers = [(one.name, one.confident if audit.confident.rows else one.everything) for one in shares.segments]
    known = [(name, own.flips_early) for name, own in numbers if own.rows]
    if len(known) < 2:
        return f"All {focus_noun(audit)} are in one segment of {brief(shares.column)}."
    most, least = (pick(known, key=lambda entry: entry[1].value) for pick in (max, min))
    return (
        f"Most often where {brief(shares.column)} is {brief(most[0])}: {most[1].count:,} of {most[1].rows:,} flip "
        f"early, {with_interval(most[1])}. Least often where it is {brief(least[0])}: {least[1].count:,} of "
        f"{least[1].rows:,}, {with_interval(least[1])}."
    )


def median_budget(numbers: SegmentNumbers) -> str:
    """Return the median k* of a segment."""
    if not numbers.rows:
        return "none"
    return "no flip" if numbers.median_flip_budget is None else str(numbers.median_flip_budget)


def mean(numbers: SegmentNumbers) -> str:
    """Return the mean exposure of a segment."""
    return f"{numbers.mean_exposure:.2f}" if numbers.rows else "none"


LIMITS = (
    "A certificate is a witness of fragility, not a proof of robustness: it shows one way in which a prediction loses "
    "its support. A prediction that does not flip here may flip under another protocol.",
    "The number of groups a certificate names is an upper bound on the fewest that would do; it is found by removing "
    "the strongest first, not by trying all sets.",
    "Nothing here says that a prediction is wrong. It says what the prediction would be without that evidence.",
    "All numbers hold for this model, these rows and this protocol.",
)
