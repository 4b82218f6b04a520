"""Sentences about an audit that only reports use, as plain text; HTML and Markdown share them."""

from __future__ import annotations

from collections.abc import Sequence

from fragility.analysis.segments import SegmentShares
from fragility.blocks.baselines.comparison import Stability, describe_under_all
from fragility.pages.terms import ATTAINED
from fragility.pages.wording import (
    begin_sentence,
    describe_artificial,
    describe_early,
    describe_failure,
    describe_few_confident,
    describe_guarantee,
    describe_holding,
    describe_missing,
    describe_operator,
    describe_prediction,
    describe_rule,
    describe_smallest,
    join_names,
    make_sentence,
    name_lost,
    name_lost_groups,
    shorten_name,
    write_count,
    write_difference,
    write_early,
    write_interval,
    write_known,
    write_known_part,
    write_part,
    write_percent,
    write_share,
)
from fragility.report.summary import (
    Accuracy,
    AuditNumbers,
    Dependence,
    FragileCase,
    LatticeNumbers,
    ReportSummary,
    ReviewView,
    WorstSegment,
)

SHOWN_ROWS = 20
SHOWN_SEGMENTS = 4
FEW = 30  # with fewer wrong or brittle rows, a difference between two orders is mostly chance
BASELINES = {
    "typical": "the most frequent category in training, and the training mean of numbers",
    "mean": "the training mean",
    "median": "the training median of numbers, and the most frequent category in training",
    "zero": "zero",
    "missing": "missing, and the model's own imputer or rule for missing values answers",
    "explicit": "values declared by hand",
}
SUPPORT = (
    "The margin is the log odds of the predicted class against its best competitor; below zero another class has taken "
    "over, and "
)
READINGS = {
    "support": f"{SUPPORT}then all of the margin counts as lost.",
    "support_unbounded": f"{SUPPORT}more than all of the margin can be lost. Pictures cut such losses at 100%.",
    "current": (
        "The margin is the log odds of the leading class against the runner-up, as in the paper; it never falls below "
        "zero."
    ),
}


# --- names --------------------------------------------------------------------------------------------------


def name_focus(audit: AuditNumbers) -> str:
    """Return the name of the predictions in focus."""
    return "confident predictions" if audit.confident.rows else "predictions"


def name_all(audit: AuditNumbers) -> str:
    """Return the label of all predictions in focus, for a picture."""
    return "all confident" if audit.confident.rows else "all predictions"


def count_focus(audit: AuditNumbers, count: int) -> str:
    """Return `1 confident prediction` or `2 confident predictions`."""
    return write_count(count, name_focus(audit)[:-1])


def name_limit(audit: AuditNumbers) -> str:
    """Return the definition of confident."""
    return f"at least {write_percent(audit.min_confidence)} confident"


# --- what was audited ---------------------------------------------------------------------------------------


def write_title(summary: ReportSummary) -> str:
    """Return the report's name."""
    return f"Fragility report: {join_names([audit.facts.name for audit in summary.audits], 4)}"


def write_byline(summary: ReportSummary) -> str:
    """Return author, purpose, date and verified signatures, as far as they are given."""
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


def describe_protocol(audit: AuditNumbers) -> list[tuple[str, str]]:
    """Return the protocol in words: groups, baseline, removal, weakening, decision and margin."""
    pi = audit.protocol
    groups, columns = write_count(len(pi.groups), "group"), write_count(pi.columns, "column")
    how = ", declared by hand" if pi.grouping == "declared" else f" ({pi.grouping})"
    grouping = f"{groups} of evidence over {columns}{how}: the fields of a group fail together."
    if pi.grouping == "raw-origin":
        grouping = f"{groups} of evidence, one for each raw field: the {columns} made from a field fail together."
    where = "the raw fields, before the model's own preprocessing" if pi.space == "raw" else "the model's input columns"
    replacement = BASELINES.get(pi.baseline, pi.baseline)
    if pi.baseline not in ("explicit", "missing"):
        replacement += f", fitted on {write_count(pi.training_rows, 'training row')}"
    if pi.artificial:
        replacement += f"; {describe_artificial(pi.baseline, pi.artificial)}"
    depth = "one group is" if pi.depth == 1 else f"up to {pi.depth} groups are"
    removal = "Each group is first removed alone, to measure how much margin it carries. Then "
    weakening = "None was declared."
    if pi.operators:
        severities = [write_percent(severity) for severity in pi.severities]
        listed = severities if len(severities) <= 4 else [*severities[:2], "…", severities[-1]]
        operators = join_names([describe_operator(operator) for operator in pi.operators])
        weakening = f"Evidence is moved toward its replacement by {', '.join(listed)}: {operators}."
    decision = "The class with the largest probability is predicted."
    smoothing = f" First {pi.smoothing:g} is added to the probability of each class; flips do not depend on that."
    return [
        ("What may fail", grouping),
        ("What replaces it", f"In {where}, lost evidence becomes {replacement}."),
        ("Removal", f"{removal}{depth} removed one after another, the strongest first."),
        ("Weakening", weakening),
        ("Decision", decision if pi.decision is None else f"The model predicts {pi.decision}."),
        ("Margin", READINGS[pi.reading] + ("" if pi.smoothing == 0.0 else smoothing)),
        ("Confident", f"A prediction with a probability of at least {write_percent(audit.min_confidence)}."),
    ]


# --- the finding --------------------------------------------------------------------------------------------


def write_headline(audit: AuditNumbers) -> list[str]:
    """Return the opening sentences of the report: how many predictions flip early, and in which segment most."""
    focus, rows = audit.focus, audit.facts.rows
    if rows == 1:
        sure = f"at least {write_percent(audit.min_confidence)} " if audit.confident.rows else "not "
        outcome = "no removal flips it"
        if not focus.never:
            step = focus.flips_at.index(1) + 1
            outcome = f"it flips when {write_count(step, 'group of evidence is', 'groups of evidence are')} lost"
        return [f"The one prediction audited is {sure}confident; {outcome}."]
    early = focus.flips_early
    text = describe_early(early, name_focus(audit)[:-1], focus.early_on_path)
    few = describe_few_confident(audit.confident.rows, rows, audit.min_confidence)
    sentences = [text] if few is None else [make_sentence(few), text]
    if audit.worst is not None:
        sentences.append(_describe_worst(audit.worst, "confident " if audit.confident.rows else ""))
    elif len(focus.class_losses) > 1 and early.count:
        sentences.append("No predicted class flips early clearly more often than the others.")
    if audit.dependence is not None and audit.dependence.verdict is Stability.DEPENDS:
        sentences.append(make_sentence(audit.dependence.sentence))
    return sentences


def _describe_worst(worst: WorstSegment, sure: str) -> str:
    early, name, rest = worst.flips_early, shorten_name(worst.name), "the others"
    rows, which = f"{sure}{name!r} prediction", ""
    if worst.column is not None:
        rows, which = f"{sure}prediction", f" with {shorten_name(worst.column)} {name}"
    elif worst.rest_name is not None:
        rest = repr(shorten_name(worst.rest_name))
    return (
        f"{begin_sentence(write_early(early, rows, which))}, against "
        f"{write_known(worst.rest)} ({write_interval(worst.rest)}) of {rest}."
    )


def describe_finding(audit: AuditNumbers) -> list[str]:
    """Return what the predictions rest on, and the consequence."""
    focus, dependence, accuracy = audit.focus, audit.dependence, audit.accuracy
    strongest, flipping = focus.strongest, max(focus.groups, key=lambda group: group.alone)
    rests = f"It relies most on {shorten_name(strongest.name)}"
    if focus.rows > 1:
        count = write_part(strongest.first, focus.rows)
        rests = f"They rely most on {shorten_name(strongest.name)}, the strongest evidence of {count}"
    if not flipping.alone:
        rests += "; no single group flips any of them" if focus.rows > 1 else ""
    else:
        which = "it" if flipping.name == strongest.name else shorten_name(flipping.name)
        least = "" if focus.alone_exact else "at least "
        rests += f"; losing {which} alone flips {least}{flipping.alone:,}"
        rests += "" if flipping.name == strongest.name else ", the most"
    if accuracy is not None and accuracy.enough_rows:
        _, meaning = describe_accuracy(audit, accuracy)
    else:
        which = "It is" if focus.rows == 1 else "The most exposed of them is"
        meaning = f"{which} row {shorten_name(focus.cases[0].id)}: {describe_case(focus.cases[0])}."
    known = dependence is not None and dependence.verdict is not Stability.DEPENDS  # which opens the report instead
    return [f"{rests}.", meaning, *([make_sentence(dependence.sentence)] if dependence is not None and known else [])]


def describe_baselines(dependence: Dependence) -> list[str]:
    """Describe which predictions flip early under every baseline, and which baselines the model has never seen."""
    every = dependence.under_all
    listed = f": rows {join_names([shorten_name(row_id) for row_id in every], SHOWN_ROWS)}" if every else ""
    names = [one.name for one in dependence.baselines]
    only = [f"{count:,} under {name}" for name, count in dependence.under_only if count]
    rest = f" Under one baseline only: {join_names(only)}." if only else ""
    agreeing = [one.baseline for one in dependence.agreements if one.stability is Stability.STABLE]
    artificial = [
        describe_artificial(one.name, one.artificial)
        for one in dependence.baselines
        if one.artificial and one.name not in agreeing
    ]
    return [
        "The same confident predictions, drawn by a hash of their content, under every baseline that the model admits. "
        + make_sentence(dependence.sentence),
        f"{describe_under_all(len(every), dependence.rows, names)}{listed}.{rest}",
        *map(make_sentence, artificial),
    ]


# --- sections -----------------------------------------------------------------------------------------------


def describe_budgets(audit: AuditNumbers) -> list[str]:
    """Return how many predictions flip after one, two or three groups, along the path and over all subsets."""
    focus, lattice = audit.focus, audit.focus.lattice
    places = ("flip within one removal", "within two", "within three")[: len(focus.flips_at)]
    flipping = [f"{write_part(sum(focus.flips_at[:k]), focus.rows)} {place}" for k, place in enumerate(places, start=1)]
    text = (
        f"Along the path, the strongest group first: of {count_focus(audit, focus.rows)}, {join_names(flipping)}; "
        f"{write_part(focus.never, focus.rows)} do not flip within its {write_count(audit.protocol.depth, 'removal')}."
    )
    if lattice is None:
        return [f"{text} Other sets of groups were not searched, so fewer groups may be enough."]
    one, early = focus.flips_after_one, focus.flips_early
    counts = [
        f"{write_known_part(share)} {flips}"
        for share, flips in ((one, "flip when some single group is lost"), (early, "when some one or two are"))
    ]
    every = f"Whichever groups are lost: {join_names(counts)}; {describe_holding(focus.holds)}."
    rows = "each" if lattice.searched == focus.rows else f"{lattice.searched:,}"
    fewer, minimum = (write_part(count, lattice.searched) for count in (lattice.fewer, lattice.minimum))
    searched = (
        f"All subsets of groups were searched for {rows} of them. For {fewer} of these a failing set exists that is "
        "smaller than the path's, or the path does not flip the prediction at all. "
        f"For {minimum} the smallest failing set is proved."
    )
    if lattice.expected_lost is not None and lattice.condition is not None:
        searched += f" {lattice.condition.capitalize()}, about {lattice.expected_lost:,.1f} of {focus.rows:,} are lost."
    return [every, text, searched]


def describe_searched(audits: Sequence[AuditNumbers]) -> str:
    """Return a sentence on how many predictions were searched over all sets, besides the path."""
    numbers = [(audit.focus.rows, audit.focus.lattice) for audit in audits]
    searched = sum(0 if lattice is None else lattice.searched for _, lattice in numbers)
    settled = sum(0 if lattice is None else lattice.minimum + lattice.none_proved for _, lattice in numbers)
    rows = sum(count for count, _ in numbers)
    if not searched:
        return "Other sets were not searched."
    which = f"all {rows:,}" if searched == rows else f"{searched:,} of {rows:,}"
    sure = f"for {'each of them' if settled == searched else f'{settled:,}'} the smallest number is proved"
    return f"For {which} {name_focus(audits[0])} all sets of groups were searched as well, and {sure}."


def describe_segments(shares: SegmentShares, audit: AuditNumbers) -> list[str]:
    """Return which segments flip early clearly more or less often, and whether their predicted classes explain it."""
    column, focus = shorten_name(shares.column), "confident" if audit.confident.rows else "everything"
    segments = [(shorten_name(one.name), numbers) for one in shares.segments if (numbers := getattr(one, focus)).rows]
    if len(segments) < 2:
        return [f"All {name_focus(audit)} are in one segment of {column}."]
    clear = sorted((one for one in segments if one[1].differs), key=lambda one: -one[1].flips_early.value)
    ends = dict.fromkeys([*clear[:1], *clear[-1:]])
    noun = name_focus(audit)
    texts = [" ".join(f"Where {column} is {name}, {write_early(one.flips_early, noun[:-1])}." for name, one in ends)]
    if not clear:
        counted = f"{write_count(len(segments), 'segment')} of {column}"
        test = "Fisher's exact test, corrected for their number, 5%"
        texts = [f"None of the {counted} flips early clearly more or less often than the others ({test})."]
    rates = [
        f"{name} {write_percent(numbers.standardised)}"
        for name, numbers in segments
        if numbers.standardised is not None
    ]
    note = f" (shares with the predicted classes of all: {join_names(rates, SHOWN_SEGMENTS)})" if rates else ""
    explained = [name for name, numbers in clear if not numbers.differs_within_class]
    remaining = [name for name, numbers in segments if numbers.differs_within_class]
    if explained:
        texts.append(
            f"Within predicted classes the difference of {join_names(explained, SHOWN_SEGMENTS)} disappears{note}: it "
            "comes from which classes are predicted there."
        )
    if remaining:
        verb = "differs" if len(remaining) == 1 else "differ"
        texts.append(
            f"Within predicted classes {join_names(remaining, SHOWN_SEGMENTS)} {verb} clearly from the others"
            f"{'' if explained else note}."
        )
    return texts


def describe_review(view: ReviewView, noun: str) -> list[str]:
    """Return what a review would find, and the policy that the labels support."""
    rule = describe_rule(view.policy, noun, view.by, view.risk, view.confidence, view.defect)
    if view.policy["state"] == ATTAINED:
        tried = f"{join_names(view.tried)} were tried as scores, with the level divided among them."
    else:
        others = [name for name in view.tried if name != view.by]
        tried = f"Nor is it ranked by {join_names(others)}; the level is divided among the scores."
    policy = f"Policy: {rule[0].lower()}{rule[1:]} {tried} {describe_guarantee(view.defect)}"
    if not view.found_in_all:
        return [f"None of the {view.rows:,} labelled {noun} is {view.defect}, so a review finds nothing.", policy]
    place = view.shares.index(0.2)
    by_exposure, other = (
        write_part(counts[place], view.found_in_all) for counts in (view.by_exposure, view.by_confidence)
    )
    few = " With so few, a difference between the two orders is mostly chance." if view.found_in_all < FEW else ""
    return [
        f"{write_part(view.found_in_all, view.rows)} of the labelled {noun} are {view.defect}. A review of one in five "
        f"finds {by_exposure} by exposure, {other} by confidence, the least confident first.{few}",
        policy,
    ]


def describe_accuracy(audit: AuditNumbers, accuracy: Accuracy) -> tuple[str, str]:
    """Return how often predictions are right, and whether fragile ones are wrong more often."""
    noun = name_focus(audit)
    sure = f", {write_share(accuracy.right_in_focus)} of the confident ones" if audit.confident.rows else ""
    right = f"{write_share(accuracy.right)} of all predictions are right{sure}."
    if not accuracy.enough_rows:
        return right, f"Too few {noun} are labelled to say whether fragile ones are wrong more often."
    verdict = "; these labels do not settle whether fragile predictions are wrong more often."
    if accuracy.difference.lower > 0:
        verdict = ", so fragile predictions are wrong more often."
    elif accuracy.difference.upper < 0:
        verdict = ", so fragile predictions are wrong less often here."
    return right, (
        f"The most exposed fifth of the {noun} is wrong {write_percent(accuracy.wrong_exposed.value)} of the time, the "
        f"others {write_percent(accuracy.wrong_rest.value)}: a difference of {write_difference(accuracy.difference)}"
        f"{verdict}"
    )


# --- cases --------------------------------------------------------------------------------------------------


def name_case_losses(case: FragileCase) -> tuple[dict[str, str], list[str]]:
    """Return `duration (48 → 20.9)` for each group, and which groups already have their replacement values.

    Without the row's values it is `duration (→ 20.9)`.
    """
    groups = list(case.becomes)
    names = dict(zip(groups, name_lost_groups(groups, case.becomes, case.already_missing), strict=True))
    unmoved = []
    for name, values in zip(case.path, case.values or (), strict=False):
        moved = [one for one in values if one.field not in case.already_missing]
        if moved:
            names[name] = name_lost(name, [(one.field, one.value, one.becomes) for one in moved])
            unmoved += [names[name]] if all(one.value == one.becomes for one in moved) else []
    return names, unmoved


def describe_case(case: FragileCase) -> str:
    """Return one sentence about a case, with the lost values and their replacements if they are known."""
    smallest, (names, unmoved) = case.smallest, name_case_losses(case)
    sentence = describe_prediction(
        shorten_name(case.predicted),
        case.confidence,
        [names[name] for name in case.path],
        case.flip_step,
        None if case.flips_to is None else shorten_name(case.flips_to),
        [] if smallest is None else [names[name] for name in smallest.groups],
        None if smallest is None else smallest.state,
        case.thresholds.values(),
        unmoved,
    )
    missing = describe_missing([shorten_name(name) for name in case.already_missing])
    return sentence if missing is None else f"{sentence}; {missing}"


def describe_search(case: FragileCase, numbers: LatticeNumbers | None) -> str | None:
    """Return the result of the search over all subsets; None if there was none."""
    smallest = case.smallest
    if smallest is None:
        return None
    groups = [shorten_name(name) for name in smallest.groups]
    text = f"Smallest failing set: {describe_smallest(smallest.state, groups, smallest.count, case.flip_step)}."
    if smallest.failure_probability is None or numbers is None or numbers.condition is None:
        return text
    failure = describe_failure(smallest.failure_probability, numbers.condition, smallest.failure_interval)
    return f"{text} The decision is {failure}."
