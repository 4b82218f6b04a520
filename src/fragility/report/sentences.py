"""What only a report says about an audit, as plain text: HTML and Markdown say the same sentences."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from fragility.certificates.comparison import list_differences
from fragility.report.summary import (
    AuditNumbers,
    Case,
    Dependence,
    PairedAudits,
    ProtocolFacts,
    ReliabilityNumbers,
    ReportSummary,
    ReviewView,
    WorstSegment,
)
from fragility.segments import SegmentShares
from fragility.wording import (
    LOSS_NAMES,
    describe_artificial,
    describe_dependence,
    describe_expected_loss,
    describe_failure,
    describe_first_group,
    describe_guarantee,
    describe_operator,
    describe_prediction,
    describe_rule,
    describe_smallest,
    join_names,
    shorten_name,
    write_count,
    write_difference,
    write_interval,
    write_part,
    write_percent,
    write_share,
)

MOST_NAMES = 12  # in one sentence
SHOWN_ROWS = 20
SHOWN_FIELDS = 4  # of a group of many fields
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
WAYS = {
    "targeted": f"{LOSS_NAMES['targeted']}; the mean share of the margin lost along the removal path",
    "independent": f"{LOSS_NAMES['independent']}; the shares of the margin so lost, added up (may exceed 100%)",
    "common": f"{LOSS_NAMES['common']}; the mean share of the margin lost over the severities",
}
COMPARED = {
    "early": "confident predictions that flip early",
    "after_one": "confident predictions that flip after one group",
    "confident_early": "predictions that are confident and flip early",
    "confident": "predictions that are confident",
}
LIMITS = (
    "A certificate is a witness of fragility, not a proof of robustness: it shows one way in which a prediction loses "
    "its support. A prediction that does not flip here may flip under another protocol.",
    "The number of groups a certificate names is an upper bound on the fewest that would do; it is found by removing "
    "the strongest first, not by trying all sets.",
    "Nothing here says that a prediction is wrong. It says what the prediction would be without that evidence.",
    "All numbers hold for this model, these rows and this protocol.",
)


# --- names --------------------------------------------------------------------------------------------------


def name_focus(audit: AuditNumbers) -> str:
    """Return what the report speaks of."""
    return "confident predictions" if audit.confident.rows else "predictions"


def name_all(audit: AuditNumbers) -> str:
    """Return what to call all predictions that the report speaks of, in a picture."""
    return "all confident" if audit.confident.rows else "all predictions"


def count_focus(audit: AuditNumbers, count: int) -> str:
    """Return `1 confident prediction` or `2 confident predictions`."""
    return write_count(count, name_focus(audit)[:-1])


def name_limit(audit: AuditNumbers) -> str:
    """Return what confident means here."""
    return f"at least {write_percent(audit.min_confidence)} confident"


def name_segment(worst: WorstSegment) -> tuple[str, str]:
    """Return what to call a segment and the rows outside it in a picture."""
    if worst.column is not None:
        return f"{shorten_name(worst.column)} {shorten_name(worst.name)}", "all others"
    rest = "all others" if worst.rest_name is None else repr(shorten_name(worst.rest_name))
    return repr(shorten_name(worst.name)), rest


def join_ways(ways: Sequence[str]) -> str:
    """Return a combination of ways of failing as a label."""
    return " and ".join(ways) or "none of them"


def write_budget(case: Case) -> str:
    """Return a case's k*."""
    return str(case.flip_budget) if case.flipped else "no flip"


# --- what was audited ---------------------------------------------------------------------------------------


def write_title(summary: ReportSummary) -> str:
    """Return the report's name."""
    return f"Fragility report: {join_names([audit.facts.name for audit in summary.audits], 4)}"


def write_byline(summary: ReportSummary) -> str:
    """Return who made the report, what for and when, as far as it was said."""
    byline = summary.byline
    parts = [
        "" if byline.author is None else f"By {byline.author}",
        "" if byline.purpose is None else f"Purpose: {byline.purpose}",
        byline.date or "",
    ]
    for audit in summary.audits:
        if audit.facts.signed_by is not None:
            which = f"{shorten_name(audit.facts.name)}: s" if len(summary.audits) > 1 else "S"
            parts.append(f"{which}ignature of key {audit.facts.signed_by} verified")
    return " · ".join(part for part in parts if part)


def describe_audit(audit: AuditNumbers) -> str:
    """Return what was audited."""
    facts = audit.facts
    classes = join_names([shorten_name(label) for label in facts.classes], MOST_NAMES)
    return (
        f"{write_count(facts.rows, 'prediction')} of {facts.model}, whose classes are {classes}. For each prediction "
        "the audit removed evidence, the strongest first, and recorded where the prediction flips. The result is one "
        "certificate per row, which anyone with the model and the rows can recompute."
    )


def describe_protocol(audit: AuditNumbers) -> list[tuple[str, str]]:
    """Return what may fail, what replaces it, and how far the audit went."""
    pi = audit.protocol
    groups, columns = write_count(len(pi.groups), "group"), write_count(pi.columns, "column")
    how = {"raw-origin": "", "declared": ", declared by hand"}.get(pi.grouping, f" ({pi.grouping})")
    grouping = f"{groups} of evidence over {columns}{how}: the fields of a group fail together."
    if pi.grouping == "raw-origin":
        grouping = f"{groups} of evidence, one for each raw field: the {columns} made from a field fail together."
    where = "the raw fields, before the model's own preprocessing" if pi.space == "raw" else "the model's input columns"
    replacement = BASELINES.get(pi.baseline, pi.baseline)
    fitted = f", fitted on {write_count(pi.training_rows, 'training row')}"
    fitted = "" if pi.baseline in ("explicit", "missing") else fitted
    artificial = f"; {describe_artificial(pi.baseline, pi.artificial)}" if pi.artificial else ""
    depth = "one group is" if pi.depth == 1 else f"up to {pi.depth} groups are"
    smoothing = f" First {pi.smoothing:g} is added to the probability of each class; flips do not depend on that."
    decision = "The class with the largest probability is predicted."
    return [
        ("What may fail", grouping),
        (
            "What replaces it",
            f"In {where}, lost evidence becomes {replacement}{fitted}{artificial}.",
        ),
        (
            "Removal",
            "Each group is first removed alone, to measure how much margin it carries. Then "
            f"{depth} removed one after another, the strongest first.",
        ),
        ("Weakening", _describe_weakening(pi)),
        ("Decision", decision if pi.decision is None else f"The model predicts {pi.decision}."),
        ("Margin", READINGS[pi.reading] + ("" if pi.smoothing == 0.0 else smoothing)),
        ("Confident", f"A prediction with a probability of at least {write_percent(audit.min_confidence)}."),
    ]


def _describe_weakening(pi: ProtocolFacts) -> str:
    if not pi.operators:
        return "None was declared."
    severities = [write_percent(severity) for severity in pi.severities]
    shown = severities if len(severities) <= 4 else [*severities[:2], "…", severities[-1]]
    operators = join_names([describe_operator(operator) for operator in pi.operators])
    return f"Evidence is moved toward its replacement by {', '.join(shown)}: {operators}."


# --- the finding --------------------------------------------------------------------------------------------


def write_headline(audit: AuditNumbers) -> list[str]:
    """Return the sentences that open the report: how many flip early, and where most of them are."""
    focus, rows = audit.focus, audit.facts.rows
    if rows == 1:
        sure = f"at least {write_percent(audit.min_confidence)} " if audit.confident.rows else "not "
        step = next((step for step, count in enumerate(focus.flips_at, start=1) if count), None)
        lost = "" if step is None else f"{write_count(step, 'group')} of evidence {'is' if step == 1 else 'are'} lost"
        outcome = "no removal flips it" if step is None else f"it flips when {lost}"
        return [f"The one prediction audited is {sure}confident; {outcome}."]
    early = focus.flips_early
    text = (
        f"{early.count:,} of {count_focus(audit, early.rows)} flip early, {write_share(early)}: "
        "they change when one or two groups of evidence are lost."
    )
    if not audit.confident.rows:
        text = f"None of {write_count(rows, 'prediction')} is {name_limit(audit)}. {text}"
    sentences = [text]
    worst, found = audit.worst, audit.dependence
    if worst is not None:
        sentences.append(_describe_worst(worst, "confident " if audit.confident.rows else ""))
    elif len(focus.class_losses) > 1 and early.count:
        sentences.append("No predicted class flips early clearly more often than the others.")
    if found is not None and not found.stable:
        sentences.append(f"This {write_dependence(found)}")
    return sentences


def _describe_worst(worst: WorstSegment, sure: str) -> str:
    early, name, rest = worst.flips_early, shorten_name(worst.name), "the others"
    rows = f"{sure}{name!r} predictions"
    if worst.column is not None:
        rows = f"{sure}predictions with {shorten_name(worst.column)} {name}"
    elif worst.rest_name is not None:
        rest = repr(shorten_name(worst.rest_name))
    return (
        f"{early.count:,} of {early.rows:,} {rows} flip early, {write_share(early)}, against "
        f"{write_percent(worst.rest.value)} ({write_interval(worst.rest)}) of {rest}."
    )


def describe_finding(audit: AuditNumbers) -> list[str]:
    """Return what the predictions rest on, and what that means."""
    focus, found = audit.focus, audit.dependence
    strongest = max(focus.groups, key=lambda group: group.first)
    flipping = max(focus.groups, key=lambda group: group.alone)
    rests = f"They lean most on {shorten_name(strongest.name)}, the strongest evidence of "
    rests += write_part(strongest.first, focus.rows)
    if focus.rows == 1:
        rests = f"It leans most on {shorten_name(strongest.name)}"
    if not flipping.alone:
        rests += "; no single group flips any of them" if focus.rows > 1 else ""
    elif flipping.name == strongest.name:
        rests += f"; losing it alone flips {flipping.alone:,}"
    else:
        rests += f"; losing {shorten_name(flipping.name)} alone flips the most, {flipping.alone:,}"
    if audit.accuracy is not None and audit.accuracy.wrong_exposed.rows >= FEWEST_IN_A_FIFTH:
        meaning = describe_accuracy(audit)[-1]
    else:
        which = "It is" if focus.rows == 1 else "The most exposed of them is"
        meaning = f"{which} row {shorten_name(focus.cases[0].id)}: {describe_case(focus.cases[0])}."
    stable = [f"The finding is {write_dependence(found)}"] if found is not None and found.stable else []
    return [f"{rests}.", meaning, *stable]


def write_dependence(found: Dependence) -> str:
    """Return whether the finding depends on the baseline, to follow on the finding."""
    own, *others = [
        (one.name, write_percent(one.flips_early.value))
        for place, one in enumerate(found.baselines)
        if place == 0 or found.stable or one.name in found.disagreeing
    ]
    return f"{describe_dependence(found.rows, own, others, stable=found.stable)}."


def describe_baselines(found: Dependence) -> list[str]:
    """Return which predictions flip early whatever the baseline, and which baselines the model has never seen."""
    every = found.under_all
    shown = f": rows {join_names([shorten_name(own) for own in every], SHOWN_ROWS)}" if every else ""
    disputed = " Nobody can dispute these by the choice of a baseline." if every else ""
    only = [f"{count:,} under {name}" for name, count in found.under_only if count]
    rest = f" Under one baseline only: {join_names(only)}." if only else ""
    count = write_count(len(every), "prediction flips", "predictions flip")
    artificial = [
        describe_artificial(one.name, one.artificial)
        for one in found.baselines
        if one.artificial and one.name in (found.baselines[0].name, *found.disagreeing)
    ]
    return [
        "The same confident predictions, chosen by a hash of their ids, under every baseline that the model admits. "
        f"The finding {'is ' if found.stable else ''}{write_dependence(found)}",
        f"{count} early under all {len(found.baselines)} baselines{shown}.{disputed}{rest}",
        *(f"{text[0].upper()}{text[1:]}." for text in artificial),
    ]


# --- sections -----------------------------------------------------------------------------------------------


def describe_budgets(audit: AuditNumbers) -> list[str]:
    """Return how many predictions rest on one, two, three groups, and what a search of all subsets adds."""
    focus, found = audit.focus, audit.focus.lattice
    places = ("flip within one removal", "within two", "within three")[: len(focus.flips_at)]
    flipping = [f"{write_part(focus.within(k), focus.rows)} {place}" for k, place in enumerate(places, start=1)]
    text = (
        f"Of {count_focus(audit, focus.rows)}, {join_names(flipping)}; {write_part(focus.never, focus.rows)} do not "
        f"flip within {write_count(audit.protocol.depth, 'removal')}."
    )
    if found is None:
        return [text]
    rows = "each of them" if found.searched == focus.rows else f"the {write_count(found.searched, 'most exposed one')}"
    searched = (
        f"All subsets of groups were searched for {rows}. For {write_part(found.fewer, found.searched)} of them "
        "a failing set was found that is smaller than the path's, or although the path found none. For "
        f"{write_part(found.minimum, found.searched)} the smallest failing set is proved."
    )
    if found.expected_lost is not None and found.condition is not None:
        searched += f" {found.condition.capitalize()}, about {found.expected_lost:,.1f} of {focus.rows:,} are lost."
    return [text, searched]


def describe_collapse(audit: AuditNumbers) -> str:
    """Return how fast the margin is lost."""
    curve = audit.focus.collapse
    if curve is None:
        return "This audit holds a summary of each certificate, without the steps of its path: there is no curve."
    last = len(curve) - 1
    steps = [step for step in (1, 3) if step < last] + [last]
    lost = [f"{write_percent(curve[step].median)} after {write_count(step, 'removal')}" for step in steps]
    return f"Half of the {name_focus(audit)} have lost at least this share of their margin: {join_names(lost)}."


def describe_exposed(audit: AuditNumbers) -> str:
    """Return how many are exposed to which way of failing."""
    focus = audit.focus
    half = [f"{write_part(loss.half, focus.rows)} to {loss.way} failure" for loss in focus.losses]
    absent = " The protocol does not fade all evidence together, so common failure is left out."
    return (
        "Evidence can fail in three ways, and a prediction may be exposed to one and not to another. Of "
        f"{count_focus(audit, focus.rows)}, so many lose at least half of their margin: {join_names(half)}."
        f"{'' if len(focus.losses) == 3 else absent}"
    )


def describe_groups(audit: AuditNumbers) -> str:
    """Return which groups flip predictions most often."""
    failing = [group for group in audit.focus.groups if group.in_set]
    if not failing:
        return f"No group is among the failing groups of any of the {name_focus(audit)}: none of them flips."
    flipping = audit.focus.rows - audit.focus.never
    names = join_names([f"{shorten_name(group.name)} ({group.in_set:,})" for group in failing[:3]])
    verb = "flips" if flipping == 1 else "flip"
    return f"{count_focus(audit, flipping)} {verb}; the groups whose loss flips most of them are {names}."


def describe_corner(audit: AuditNumbers) -> str:
    """Return what the exposed corner holds."""
    density = audit.density
    if not audit.confident.rows:
        return (
            f"No prediction is {name_limit(audit)}, so there is no exposed corner; the most exposed fifth of all "
            f"predictions begins at an exposure of {density.threshold:.2f}."
        )
    return (
        "Exposure is 0 where a prediction rests on much and nears 1 where it rests on little. The exposed corner holds "
        f"{write_count(density.corner, 'prediction')}, {name_limit(audit)} and in the most exposed fifth of these "
        f"(exposure of {density.threshold:.2f} or more): what looks safest there rests on least."
    )


def describe_review(view: ReviewView, noun: str) -> list[str]:
    """Return what a review would find, and the policy that labels support."""
    rule = describe_rule(view.policy, noun, "exposure", view.risk, view.confidence, view.sought)
    policy = f"Policy: {rule[0].lower()}{rule[1:]} {describe_guarantee(view.sought)}"
    if not view.found_in_all:
        return [f"None of the {view.rows:,} labelled {noun} is {view.sought}; there is nothing to find.", policy]
    place = view.shares.index(0.2)
    found, other = (write_part(counts[place], view.found_in_all) for counts in (view.by_exposure, view.by_confidence))
    few = " With so few, a difference between the two orders is mostly chance." if view.found_in_all < FEW else ""
    return [
        f"{write_part(view.found_in_all, view.rows)} of the labelled {noun} are {view.sought}. A review of one in five "
        f"finds {found} by exposure, {other} by confidence, the least confident first.{few}",
        policy,
    ]


def describe_accuracy(audit: AuditNumbers) -> list[str]:
    """Return how often predictions are right, and whether fragile ones are wrong more often."""
    found, noun = audit.accuracy, name_focus(audit)
    if found is None:
        return []
    sure = f", {write_share(found.right_in_focus)} of the confident ones" if audit.confident.rows else ""
    right = f"{write_share(found.right)} of all predictions are right{sure}."
    if found.wrong_exposed.rows < FEWEST_IN_A_FIFTH:
        return [right, f"Too few {noun} are labelled to say whether fragile ones are wrong more often."]
    verdict = "; these labels do not settle whether fragile predictions are wrong more often."
    if found.difference.lower > 0:
        verdict = ", so fragile predictions are wrong more often."
    elif found.difference.upper < 0:
        verdict = ", so fragile predictions are wrong less often here."
    wrong = (
        f"The most exposed fifth of the {noun} is wrong {write_percent(found.wrong_exposed.value)} of the time, the "
        f"others {write_percent(found.wrong_rest.value)}: a difference of {write_difference(found.difference)}{verdict}"
    )
    return [right, wrong]


def describe_reliability(found: ReliabilityNumbers) -> list[str]:
    """Return how many decisions are expected to be lost, and what to make reliable first."""
    group, kept = found.kept[0]
    first = describe_first_group(shorten_name(group), kept, found.lost)
    assumed = None if found.recorded else "The rates were declared, not measured; groups fail independently."
    lost = describe_expected_loss(found.lost, found.rows, found.exact, found.condition)
    return [text for text in (lost, first, assumed) if text is not None]


def describe_segments(audit: AuditNumbers, shares: SegmentShares) -> str:
    """Return which segment of a column flips early most often, and which least."""
    numbers = [(one.name, one.confident if audit.confident.rows else one.everything) for one in shares.segments]
    known = [(shorten_name(name), own.flips_early) for name, own in numbers if own.rows]
    column = shorten_name(shares.column)
    if len(known) < 2:
        return f"All {name_focus(audit)} are in one segment of {column}."
    most, least = (pick(known, key=lambda entry: entry[1].value) for pick in (max, min))
    return (
        f"Most often where {column} is {most[0]}: {most[1].count:,} of {most[1].rows:,} flip early, "
        f"{write_share(most[1])}. Least often where it is {least[0]}: {least[1].count:,} of {least[1].rows:,}, "
        f"{write_share(least[1])}."
    )


# --- cases --------------------------------------------------------------------------------------------------


def describe_values(audit: AuditNumbers) -> list[str]:
    """Return how to read the values of cases, or why there are none."""
    if audit.lacks_field is not None:
        return [f"Their values are not shown: the rows given lack the field {shorten_name(audit.lacks_field)}."]
    if any(case.values is not None for case in audit.focus.cases):
        return ["Each group of the path shows the row's own value and, after the arrow, what replaces it when lost."]
    return []


def list_fields(group: str, fields: Sequence[tuple[str, str]]) -> str:
    """Return the fields of a group with a text for each; a field with the name of its group is not named again."""
    shown = [
        f"{'' if name == group else shorten_name(name) + ' '}{shorten_name(text)}"
        for name, text in fields[:SHOWN_FIELDS]
    ]
    more = [f"{len(fields) - SHOWN_FIELDS} more fields"] if len(fields) > SHOWN_FIELDS else []
    return ", ".join([*shown, *more])


def describe_case(case: Case) -> str:
    """Return one sentence for someone who decides about a case."""
    found = case.smallest
    return describe_prediction(
        shorten_name(case.predicted),
        case.confidence,
        [shorten_name(name) for name in case.path],
        case.flip_budget if case.flipped else None,
        None if case.flips_to is None else shorten_name(case.flips_to),
        [] if found is None else [shorten_name(name) for name in found.groups],
        None if found is None else found.state,
        case.thresholds.values(),
    )


def describe_search(case: Case, condition: str | None) -> str | None:
    """Return what the search over all subsets adds to the path; None where there was none."""
    found = case.smallest
    if found is None:
        return None
    groups, budget = [shorten_name(name) for name in found.groups], case.flip_budget if case.flipped else None
    text = f"Smallest failing set: {describe_smallest(found.state, groups, found.count, budget)}."
    if found.failure_probability is None or condition is None:
        return text
    return f"{text} The decision is {describe_failure(found.failure_probability, condition, found.failure_interval)}."


def write_review_command(audit: AuditNumbers, case: Case) -> str | None:
    """Return the command that opens a case in the workbench; None for an audit that lies in no folder."""
    folder = audit.facts.folder
    return None if folder is None else f"fragility review {shlex.quote(folder)} --row {shlex.quote(case.id)}"


# --- audits side by side ------------------------------------------------------------------------------------


def describe_pairing(pair: PairedAudits) -> str:
    """Return which rows two audits are compared on."""
    if not pair.shared:
        return "no row in common, so each audit's own rows (Newcombe's interval)"
    rows = write_count(pair.shared, "shared row")
    return f"{rows}, {pair.both_confident:,} confident in both (Tango's paired interval)"


def write_compared_headline(pair: PairedAudits) -> str:
    """Return which of two audits flips early more often, with the difference."""
    first, second = shorten_name(pair.first), shorten_name(pair.second)
    early = next(one for one in pair.compared if one.measure == "early")
    if not early.first.rows or not early.second.rows:
        return f"{second} and {first} have no confident predictions to compare."
    rows = "Of their confident rows"
    if pair.shared:
        rows = f"Of {write_count(pair.both_confident, 'row')} confident in both"
    shares = (
        f"{rows}, {write_percent(early.second.value)} against {write_percent(early.first.value)} flip early: "
        f"{write_difference(early.difference)}."
    )
    if not pair.comparable:
        return f"{second} and {first} do not compare: their protocols differ. {shares}"
    if early.difference.lower <= 0 <= early.difference.upper:
        return f"{second} and {first} do not clearly differ. {shares}"
    return f"{second} flips early {'more' if early.difference.lower > 0 else 'less'} often than {first}. {shares}"


def describe_protocols(pair: PairedAudits) -> str | None:
    """Return a warning where two audits were made under different protocols, else None."""
    if not pair.differences:
        return None
    differences = list_differences(pair.differences)
    text = f"{shorten_name(pair.second)} has another protocol than {shorten_name(pair.first)}: {differences}."
    if not pair.comparable:
        return f"Not comparable: {text} What differs below may come from the protocol, not from the model."
    if any(one.scales_scores for one in pair.differences):
        return f"{text} RCMA, FDS and exposure are not on the same scale; flips compare."
    return text


def describe_pair(pair: PairedAudits) -> str:
    """Return what two audits say about the rows they share."""
    if not pair.shared:
        return f"{pair.first} and {pair.second} share no row, so only their totals can be compared."
    ranks = ""
    if pair.rank_correlation is not None:
        ranks = f" The rank correlation of their exposures is {pair.rank_correlation:.2f} (Spearman)."
    return (
        f"{pair.first} and {pair.second} share {write_count(pair.shared, 'row')} and predict the same class on "
        f"{write_part(pair.same_class, pair.shared)}. "
        f"{write_count(pair.both_confident, 'row is', 'rows are')} confident in both: {pair.flip_in_both:,} flip early "
        f"in both, {pair.flip_in_first_only:,} only in {pair.first}, {pair.flip_in_second_only:,} only in "
        f"{pair.second}.{ranks}"
    )
