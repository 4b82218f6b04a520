"""The report as sections of blocks, in their order, which HTML and Markdown render."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

import fragility.report.figures as figures
import fragility.report.sentences as sentences
from fragility.analysis.segments import SegmentShares
from fragility.base.shares import share_of
from fragility.base.text import shorten
from fragility.pages.drawing import draw_fifths, draw_share_bar, draw_shares
from fragility.pages.sections import (
    Cases,
    CaseView,
    Cell,
    Facts,
    Figure,
    Lead,
    Numbers,
    PageBlock,
    PathStep,
    Section,
    ShellCommand,
    Table,
    TableCell,
    Text,
    count_cell,
)
from fragility.pages.terms import GLOSSARY, LOSS_NAMES
from fragility.pages.wording import (
    describe_expected_loss,
    describe_first_group,
    describe_operator,
    describe_replacement,
    join_names,
    shorten_name,
    write_count,
    write_interval,
    write_known,
    write_part,
    write_percent,
)
from fragility.report.chapters import (
    list_case_intervals,
    list_case_modes,
    show_any_value,
    show_comparison,
    show_modes,
    show_parities,
    show_side_by_side,
)
from fragility.report.sentences import count_focus, name_all, name_focus, name_limit
from fragility.report.summary import AuditNumbers, Dependence, FragileCase, GroupRole, ReliabilityNumbers, ReportSummary
from fragility.report.tally import count_first

SHOWN_IN_PICTURE = 4
SHOWN_GROUPS = 12
LISTED_GROUPS = 60
SHOWN_CLASSES = 6
SHOWN_FIELDS = 4  # of a group of many fields
MOST_NAMES = 12  # in one sentence
BUDGETS = (0.05, 0.1, 0.2, 0.5)
FIFTHS = ("least exposed fifth", "second", "third", "fourth", "most exposed fifth")
WAYS = {
    "targeted": f"{LOSS_NAMES['targeted']}; the mean share of the margin lost along the removal path",
    "independent": f"{LOSS_NAMES['independent']}; the sum of the shares of the margin lost (may exceed 100%)",
    "random": f"{LOSS_NAMES['random']}; the share of the margin lost if every group is lost at the same rate",
    "common": f"{LOSS_NAMES['common']}; the mean share of the margin lost over the severities",
}
UPPER_LIMIT = (
    "The number of groups k* of a certificate is an upper bound on the smallest number: it is computed by removing the "
    "strongest group first. {}"
)
LIMITS = (
    "A certificate is a witness of fragility, not a proof of robustness: it shows one way in which a prediction loses "
    "its support. A prediction that does not flip here may flip under another protocol.",
    "Nothing here says that a prediction is wrong. It says what the prediction would be without that evidence.",
    "All numbers hold for this model, these rows and this protocol.",
)


def list_sections(summary: ReportSummary) -> list[Section]:
    """Return all sections of the report; the table of contents follows the first one."""
    audits, several = summary.audits, len(summary.audits) > 1
    sections = list_comparison(summary)
    for number, audit in enumerate(audits, start=1):
        prefix = f"audit-{number}-" if several else ""
        of_audit = _list_own_sections(audit, prefix)
        if several:
            sections.append(Section(f"audit-{number}", shorten_name(audit.facts.name)))
            of_audit = [section._replace(key=prefix + section.key, level=3) for section in of_audit]
        sections += of_audit
    if any(audit.accuracy is not None for audit in audits):
        sections.append(_show_accuracy(audits))
    if summary.parities:
        sections.append(show_parities(summary.parities))
    glossary = Section("glossary", "What the words mean", [Facts(list(GLOSSARY.items()))])
    return [*sections, _show_limits(audits), _show_verification(audits), glossary]


def list_comparison(summary: ReportSummary) -> list[Section]:
    """Return the comparison of several audits; empty for one audit."""
    return [show_comparison(summary), show_side_by_side(summary)] if len(summary.audits) > 1 else []


def _list_own_sections(audit: AuditNumbers, prefix: str) -> list[Section]:
    """Return the sections about one audit; `prefix` makes the keys of its cases unique."""
    return [
        _show_finding(audit),
        *([] if audit.dependence is None else [_show_baselines(audit.dependence)]),
        _show_audit(audit),
        *(_show_segments(audit, shares, place) for place, shares in enumerate(audit.segments, start=1)),
        _show_budgets(audit),
        _show_collapse(audit),
        _show_losses(audit),
        _show_groups(audit),
        *([] if audit.focus.modes is None else [show_modes(audit, audit.focus.modes)]),
        *([] if audit.any_value is None else [show_any_value(audit.any_value)]),
        *([] if audit.reliability is None else [_show_reliability(audit.reliability)]),
        _show_corner(audit),
        *([_show_reviews(audit)] if audit.reviews else []),
        _show_cases(audit, prefix),
    ]


# --- the finding, baselines, segments -----------------------------------------------------------------------


def _show_finding(audit: AuditNumbers) -> Section:
    """Return the finding of one audit: how many predictions flip early, as text and picture, and what they rest on."""
    focus, worst = audit.focus, audit.worst
    entries = [(name_all(audit), focus.flips_early)]
    if worst is not None and (worst.column is not None or len(focus.class_losses) > SHOWN_IN_PICTURE):
        name, rest = repr(shorten_name(worst.name)), "all others"
        if worst.column is not None:
            name = f"{shorten_name(worst.column)} {shorten_name(worst.name)}"
        elif worst.rest_name is not None:
            rest = repr(shorten_name(worst.rest_name))
        entries += [(name, worst.flips_early), (rest, worst.rest)]
    elif len(focus.class_losses) > 1:
        shown = focus.class_losses[:SHOWN_IN_PICTURE]
        entries += [(repr(shorten_name(one.predicted)), one.flips_early) for one in shown]
    caption = f"Share of {name_focus(audit)} that flip early; lines are 95% intervals."
    blocks: list[PageBlock] = [
        Lead(sentences.write_headline(audit), figures.show_shares(entries, caption)),
        Numbers(_list_large_numbers(audit)),
        Text([" ".join(sentences.describe_finding(audit))]),
    ]
    return Section("finding", "The finding", blocks)


def _list_large_numbers(audit: AuditNumbers) -> list[tuple[str, str]]:
    focus, rows, accuracy = audit.focus, audit.facts.rows, audit.accuracy
    those, sure = "of those" if audit.confident.rows else "of all", share_of(audit.confident.rows, rows)
    shares = [] if accuracy is None else [(accuracy.right, "are right ({})")]
    shares += [
        (sure, f"are {name_limit(audit)} ({sure.count:,}; {{}})"),
        (focus.flips_after_one, f"{those} flip when one group is lost ({{}})"),
        (focus.flips_early, f"{those} flip early, within two groups ({{}})"),
    ]
    numbers = [(write_known(share), text.format(write_interval(share))) for share, text in shares]
    return [(f"{rows:,}", "predictions audited" if rows != 1 else "prediction audited"), *numbers]


def _show_audit(audit: AuditNumbers) -> Section:
    facts, groups = audit.facts, audit.protocol.groups
    classes = join_names([shorten_name(label) for label in facts.classes], MOST_NAMES)
    text = (
        f"{write_count(facts.rows, 'prediction')} of {facts.model}, whose classes are {classes}. For each prediction "
        "the audit removed evidence, the strongest first, and recorded where the prediction flips. The result is one "
        "certificate per row, which anyone with the model and the rows can recompute."
    )
    width = 3 if any(group.becomes for group in groups) else 2
    rows = [
        (shorten_name(group.name), f"{group.columns:,}", _list_fields(group.name, group.becomes))[:width]
        for group in groups[:LISTED_GROUPS]
    ]
    if len(groups) > LISTED_GROUPS:
        rows.append((f"and {len(groups) - LISTED_GROUPS:,} more", "", "")[:width])
    head = ("group", "columns", "becomes when lost")[:width]
    table = Table(f"The {write_count(len(groups), 'evidence group')}", head, rows, folded=True, sortable=True)
    return Section("audited", "What was audited", [Text([text]), Facts(sentences.describe_protocol(audit)), table])


def _list_fields(group: str, fields: Sequence[tuple[str, str]]) -> str:
    """Return the fields of a group with a text for each; a field named like its group appears without its name."""
    shown = [
        f"{'' if name == group else shorten_name(name) + ' '}{shorten_name(text)}"
        for name, text in fields[:SHOWN_FIELDS]
    ]
    more = [f"{len(fields) - SHOWN_FIELDS} more fields"] if len(fields) > SHOWN_FIELDS else []
    return ", ".join([*shown, *more])


def _show_baselines(dependence: Dependence) -> Section:
    entries = [
        (f"{one.name}{' (declared)' if place == 0 else ''}", one) for place, one in enumerate(dependence.baselines)
    ]
    rows = [
        (
            name,
            count_cell(one.flips_after_one.count, dependence.rows),
            count_cell(one.flips_early.count, dependence.rows),
            write_interval(one.flips_early),
            count_cell(one.never_flips.count, dependence.rows),
            "none" if one.median_budget > dependence.depth else f"{one.median_budget:g}",
        )
        for name, one in entries
    ]
    unflipped = f"not within {dependence.depth}"
    head = ("lost evidence becomes", "flip after one", "flip early", "95% interval", unflipped, "median k*")
    caption = f"Share of {write_count(dependence.rows, 'confident prediction')} that flip early, by baseline"
    picture = draw_shares([(name, one.flips_early) for name, one in entries])
    blocks: list[PageBlock] = [
        Text(sentences.describe_baselines(dependence)),
        Figure([picture], f"{caption}; lines are 95% intervals."),
        Table("The finding under each baseline", head, rows),
    ]
    return Section("baselines", "Does the finding depend on the baseline?", blocks)


def _show_segments(audit: AuditNumbers, shares: SegmentShares, place: int) -> Section:
    column, noun, rows = shorten_name(shares.column), name_focus(audit), list[Sequence[TableCell]]()
    entries = []
    for segment in shares.segments:
        focus, name = segment.confident if audit.confident.rows else segment.everything, shorten_name(segment.name)
        entries.append((name, focus.flips_early))
        median = "no flip" if focus.median_flip_budget is None else str(focus.median_flip_budget)
        standardised = "unknown" if focus.standardised is None else write_percent(focus.standardised)
        numbers = (write_interval(focus.flips_early), standardised, median, f"{focus.mean_exposure:.2f}")
        counts = (f"{segment.everything.rows:,}", f"{focus.rows:,}", count_cell(focus.flips_early.count, focus.rows))
        rows.append((name, *counts, *(numbers if focus.rows else ("none",) * 4)))
    picture = draw_shares([(name_all(audit), audit.focus.flips_early), *entries])
    head = (column, "rows", noun, "flip early", "95% interval", "standardised", "median k*", "mean exposure")
    blocks: list[PageBlock] = [
        Text(sentences.describe_segments(shares, audit)),
        Figure([picture], f"Share of {noun} that flip early, by {column}; lines are 95% intervals."),
        Table(f"{noun.capitalize()} by {column}", head, rows, sortable=True),
        _show_within_classes(audit, shares),
    ]
    return Section(f"by-{place}", f"By {column}", blocks)


def _show_within_classes(audit: AuditNumbers, shares: SegmentShares) -> Table:
    """Return how many predictions of each segment flip early among those of one class, the most frequent classes."""
    labels = [segment.predicted for segment in audit.focus.class_losses[:SHOWN_CLASSES]]
    places = [shares.classes.index(label) for label in labels]
    rows = []
    for segment in shares.segments:
        numbers = segment.confident if audit.confident.rows else segment.everything
        cells = [count_cell(numbers.by_class[place].count, numbers.by_class[place].rows) for place in places]
        rows.append((shorten_name(segment.name), *cells))
    head = (shorten_name(shares.column), *(f"predicted {shorten_name(label)!r}" for label in labels))
    return Table("Those that flip early, within each predicted class", head, rows, sortable=True)


# --- k*, collapse, four ways --------------------------------------------------------------------------------


def _show_budgets(audit: AuditNumbers) -> Section:
    folded = (figures.fold_budgets(audit, numbers) for numbers in (audit.everything, audit.confident))
    rows = []
    for (label, every), (_, sure) in zip(*folded, strict=True):
        name = {"none": figures.name_unflipped(audit), "1": "1 group"}.get(label, f"{label} groups")
        rows.append((name, write_part(sure, audit.confident.rows), write_part(every, audit.everything.rows)))
    table = Table("Predictions by the fewest groups known to flip them", ("flips after", "confident", "all"), rows)
    caption = (
        "The fewest groups whose loss is known to flip it: of the smallest failing set where sets were searched, else "
        "of the path, strongest group first."
    )
    figure = Figure([figures.draw_budgets(audit)], caption, table)
    heading = "How many groups each prediction rests on"
    return Section("groups-needed", heading, [Text(sentences.describe_budgets(audit)), figure])


def _show_collapse(audit: AuditNumbers) -> Section:
    key, heading, curve, noun = "collapse", "How the margin collapses", audit.focus.collapse, name_focus(audit)
    if curve is None:
        text = "This audit stores a summary of each certificate, without the steps of its path, so there is no curve."
        return Section(key, heading, [Text([text])])
    last = len(curve) - 1
    steps = [step for step in (1, 3) if step < last] + [last]
    lost = [f"{write_percent(curve[step].median)} after {write_count(step, 'removal')}" for step in steps]
    text = f"Half of the {noun} have lost at least this share of their margin: {join_names(lost)}."
    rows = [
        ("nothing removed" if step == 0 else str(step), *map(write_percent, (q.lower, q.median, q.upper)))
        for step, q in enumerate(curve)
    ]
    head = ("removed", "a quarter lose at most", "half lose at least", "a quarter lose at least")
    table = Table(f"Share of the margin lost by {noun}", head, rows, folded=True)
    caption = f"Share of the margin that {noun} lose as their strongest groups are removed."
    curves, left_out = audit.focus.class_curves[:SHOWN_CLASSES], len(audit.focus.class_curves) - SHOWN_CLASSES
    pictures = [figures.draw_class_curve(shorten_name(one.predicted), one.rows, one.collapse) for one in curves]
    others = write_count(left_out, "other is", "others are")
    rest = f" The {SHOWN_CLASSES} classes predicted most; {others} left out." if left_out > 0 else ""
    everything = audit.everything.collapse if audit.confident.rows else None
    blocks: list[PageBlock] = [
        Text([text]),
        Figure([figures.draw_collapse(curve, everything)], caption, table),
        Figure(pictures, f"The same by predicted class (number of predictions).{rest}", small=True),
    ]
    return Section(key, heading, blocks)


def _show_losses(audit: AuditNumbers) -> Section:
    focus, noun = audit.focus, name_focus(audit)
    ways = [loss.way for loss in focus.losses]
    lose_half = [f"{write_part(loss.half, focus.rows)} to {loss.way} failure" for loss in focus.losses]
    absent = " The protocol does not fade all evidence together, so common failure is left out."
    text = (
        "Evidence can fail in four ways, and a prediction may be exposed to one and not to another. Of "
        f"{count_focus(audit, focus.rows)}, these lose at least half of their margin: {join_names(lose_half)}."
        f"{'' if len(ways) == 4 else absent}"
    )
    pictures = [figures.draw_loss(loss, loss.way.capitalize()) for loss in focus.losses]
    caption = "How many lose how much of the margin; the line marks the median. Grey: more than the axis shows."
    combinations = [
        (" and ".join(one.ways) or "none of them", count_cell(one.rows, focus.rows))
        for one in focus.combinations
        if one.rows
    ]
    half = [f"{way} ≥ 50%" for way in ways]
    head = ("predicted class", "predictions", "flip after one", "flip early", "95% interval", "mean exposure", *half)
    classes = [
        (
            shorten_name(one.predicted),
            f"{one.rows:,}",
            write_known(one.flips_after_one),
            write_known(one.flips_early),
            write_interval(one.flips_early),
            f"{one.mean_exposure:.2f}",
            *(write_percent(count / one.rows) for count in one.half),
        )
        for one in focus.class_losses[: 2 * SHOWN_CLASSES]
    ]
    blocks: list[PageBlock] = [
        Text([text]),
        Facts([(way.capitalize(), WAYS[way]) for way in ways]),
        Figure(pictures, caption, small=True),
        Table("Ways in which at least half of the margin is lost", ("exposed to", noun), combinations),
        Table(f"Who is exposed to which: {noun} by predicted class", head, classes, sortable=True),
    ]
    weakened = []
    for one in focus.degradations:
        severities = zip(one.first_flips, audit.protocol.severities, strict=True)
        gentle = sum(count for count, severity in severities if severity <= 0.5)
        name = describe_operator(one.operator)
        weakened.append((name, count_cell(one.flips, focus.rows), write_part(gentle, focus.rows)))
    if weakened:
        columns = ("weakened", "flip at some severity", "at half or less")
        blocks.append(Table(f"Evidence weakened rather than lost: {noun} that flip", columns, weakened))
    return Section("ways", "The four ways evidence fails, and who is exposed to which", blocks)


# --- groups -------------------------------------------------------------------------------------------------


def _show_groups(audit: AuditNumbers) -> Section:
    focus = audit.focus
    flipping, failing = focus.rows - focus.never, [group for group in focus.groups if group.in_set]
    text = f"No group is among the failing groups of any of the {name_focus(audit)}: none of them flips."
    if failing:
        names = join_names([f"{shorten_name(group.name)} ({group.in_set:,})" for group in failing[:3]])
        verb = "flips" if flipping == 1 else "flip"
        text = f"{count_focus(audit, flipping)} {verb}; the groups whose loss flips most of them are {names}."
    roles = [role for role in focus.groups if role.first or role.in_set]
    blocks: list[PageBlock] = [Text([text]), _list_roles("What each group carries", roles[:SHOWN_GROUPS], audit)]
    if len(roles) > SHOWN_GROUPS:
        rest = roles[SHOWN_GROUPS:LISTED_GROUPS]
        more = len(roles) - SHOWN_GROUPS - len(rest)
        caption = write_count(len(rest), "more group") + (f"; {more:,} others are left out" if more else "")
        blocks.append(_list_roles(caption, rest, audit)._replace(folded=True))
    unused = len(focus.groups) - len(roles)
    if unused:
        none = "no prediction's strongest evidence and part of no failing set"
        blocks.append(Text([f"{write_count(unused, 'group is', 'groups are')} {none}."]))
    if focus.pairs:
        total, count = focus.flips_at[1], len(focus.pairs)
        rows = [
            (f"{shorten_name(pair.first)} + {shorten_name(pair.second)}", count_cell(pair.rows, total))
            for pair in focus.pairs
        ]
        shown = "" if focus.distinct_pairs <= count else f"; the {count} most frequent of {focus.distinct_pairs:,}"
        caption = f"Pairs that flip a prediction which the stronger group alone does not flip{shown}"
        blocks.append(Table(caption, ("pair", f"of {total:,} that flip after two"), rows, sortable=True))
    return Section("evidence", "Which evidence carries the decisions", blocks)


def _list_roles(caption: str, roles: Sequence[GroupRole], audit: AuditNumbers) -> Table:
    total, width = audit.focus.rows, 4 if audit.focus.collapse is None else 5  # summary claims hold no drops
    head = ("group", "among the failing groups", "flips alone", "strongest evidence", "mean share of margin")
    rows = [
        (
            shorten_name(role.name),
            count_cell(role.in_set, total),
            f"{role.alone:,}",
            write_part(role.first, total),
            write_percent(role.carried or 0.0),
        )[:width]
        for role in roles
    ]
    return Table(caption, head[:width], rows, sortable=True)


def _show_reliability(reliability: ReliabilityNumbers) -> Section:
    group, kept = reliability.kept[0]
    first = describe_first_group(shorten_name(group), kept, reliability.lost)
    assumed = None if reliability.recorded else "The rates were declared, not measured; groups fail independently."
    lost = describe_expected_loss(reliability.lost, reliability.rows, reliability.exact, reliability.condition)
    blocks: list[PageBlock] = [Text([text for text in (lost, first, assumed) if text is not None])]
    rows = [
        (
            shorten_name(name),
            f"{kept:,.2f}",
            Cell(write_percent(kept / reliability.lost), draw_share_bar(kept / reliability.lost)),
        )
        for name, kept in reliability.kept[:SHOWN_GROUPS]
        if kept > 0.0
    ]
    if rows:
        head = ("group", "decisions kept if it never failed", "share of those lost")
        blocks.append(Table("Decisions that each group would keep", head, rows))
    return Section("reliable", "What to make reliable first", blocks)


# --- the corner, review and cases ---------------------------------------------------------------------------


def _show_corner(audit: AuditNumbers) -> Section:
    density = audit.density
    text = (
        "Exposure is near 0 for a prediction that rests on much evidence and near 1 for one that rests on little. The "
        f"exposed corner contains {write_count(density.corner, 'prediction')}, {name_limit(audit)} and in the most "
        f"exposed fifth of these (exposure of {density.threshold:.2f} or more): confident, but with little support."
    )
    if not audit.confident.rows:
        text = (
            f"No prediction is {name_limit(audit)}, so there is no exposed corner; the most exposed fifth of all "
            f"predictions begins at an exposure of {density.threshold:.2f}."
        )
    caption = "Each cell counts predictions; darker (in dark mode: brighter) is more. Shaded: the exposed corner."
    blocks: list[PageBlock] = [Text([text]), Figure([figures.draw_density(audit)], caption)]
    return Section("corner", "Confidence against exposure", blocks)


def _show_reviews(audit: AuditNumbers) -> Section:
    blocks: list[PageBlock] = []
    for view in audit.reviews:
        blocks.append(Text(sentences.describe_review(view, name_focus(audit))))
        if not view.found_in_all:
            continue
        rows = []
        for share in BUDGETS:
            place = view.shares.index(share)
            counts_found = (
                write_part(counts[place], view.found_in_all) for counts in (view.by_exposure, view.by_confidence)
            )
            rows.append((f"{write_percent(share)} ({count_first(share, view.rows):,})", *counts_found))
        head = ("reviewed", "by exposure", "by confidence")
        table = Table(f"{view.defect.capitalize()} predictions found", head, rows)
        caption = f"How many of the {view.defect} predictions a review finds, by its size."
        blocks.append(Figure([figures.draw_review(view)], caption, table))
    return Section("review", "What a review would find", blocks)


def _show_cases(audit: AuditNumbers, prefix: str) -> Section:
    cases = [(case, f"{prefix}case-{number}") for number, case in enumerate(audit.focus.cases, start=1)]
    opening = f"The {count_focus(audit, len(cases))} with the largest exposure, most exposed first."
    text = [opening if audit.confident.rows else f"No prediction is {name_limit(audit)}. {opening}"]
    if audit.lacks_field is not None:
        text.append(f"Their values are not shown: the given rows lack the field {shorten_name(audit.lacks_field)}.")
    elif any(case.values is not None for case, _ in cases):
        text.append(
            "Each group of the path shows the row's value and, after the arrow, the value that replaces it when lost."
        )
    rows = [
        (
            Cell(shorten_name(case.id), link=f"#{key}"),
            shorten_name(case.predicted),
            f"{case.confidence:.1%}",
            f"{case.exposure:.3f}",
            f"{case.fds:.3f}",
            str(case.flip_step or "no flip"),
        )
        for case, key in cases
    ]
    head = ("row", "predicts", "confidence", "exposure", "FDS", "k*")
    heading = "The most fragile confident cases" if audit.confident.rows else "The most fragile cases"
    blocks: list[PageBlock] = [
        Text(text),
        Facts([(word, GLOSSARY[word]) for word in ("exposure", "FDS", "k*")]),
        Table("The cases at a glance", head, rows, sortable=True),
        Cases([_show_case(case, key, audit) for case, key in cases]),
    ]
    return Section("cases", heading, blocks)


def _show_case(case: FragileCase, key: str, audit: AuditNumbers) -> CaseView:
    flip = "flips" if case.flips_to is None else f"flips to {shorten_name(case.flips_to)!r}"
    path, flip_step, folder = [], case.flip_step, audit.facts.folder
    for step, name in enumerate(case.path, start=1):
        place = "flip" if step == flip_step else "after" if flip_step is not None and step > flip_step else "before"
        values = () if case.values is None else case.values[step - 1]
        replaced = [(one.field, describe_replacement(one.value, one.becomes)) for one in values]
        flips = flip if place == "flip" else ""
        path.append(PathStep(shorten_name(name), place, _list_fields(name, replaced), flips))
    scores = f"exposure {case.exposure:.3f} · FDS {case.fds:.3f} · k* {flip_step or 'no flip'}"
    return CaseView(
        key=key,
        heading=f"Row {shorten_name(case.id)}",
        sentence=f"{sentences.describe_case(case)}.",
        facts=f"confidence {case.confidence:.1%} · {scores}",
        path=path,
        smallest=sentences.describe_search(case, audit.focus.lattice),
        modes=list_case_modes(case),
        intervals=list_case_intervals(case),
        curve=figures.draw_case(case),
        command=None if folder is None else f"fragility review {shlex.quote(folder)} --row {shlex.quote(case.id)}",
    )


# --- accuracy, limits, verification -------------------------------------------------------------------------


def _show_accuracy(audits: Sequence[AuditNumbers]) -> Section:
    blocks: list[PageBlock] = []
    for audit in audits:
        if audit.accuracy is None:
            continue
        name = f"{audit.facts.name}: " if len(audits) > 1 else ""
        right, wrong = sentences.describe_accuracy(audit, audit.accuracy)
        blocks.append(Text([name + right, wrong]))
        if audit.accuracy.enough_rows:
            fifths = audit.accuracy.wrong_by_fifth
            rows = [
                (name, write_part(one.count, one.rows), write_interval(one))
                for name, one in zip(FIFTHS, fifths, strict=True)
            ]
            table = Table(f"Wrong {name_focus(audit)} by exposure", ("", "wrong", "95% interval"), rows)
            caption = "How often predictions are wrong, by fifths of exposure; whiskers are 95% intervals."
            blocks.append(Figure([draw_fifths(fifths)], caption, table))
    return Section("accuracy", "Right and wrong", blocks)


def _show_limits(audits: Sequence[AuditNumbers]) -> Section:
    blocks: list[PageBlock] = [
        Text([*LIMITS[:1], UPPER_LIMIT.format(sentences.describe_searched(audits)), *LIMITS[1:]])
    ]
    for audit in audits:
        if audit.facts.partial:
            unseen = join_names([shorten(reason, 200) for reason in audit.facts.partial], MOST_NAMES)
            blocks.append(Text([f"The fingerprint of {audit.facts.name} does not cover {unseen}."]))
    return Section("limits", "Limits", blocks)


def _show_verification(audits: Sequence[AuditNumbers]) -> Section:
    tables = []
    for audit in audits:
        facts = audit.facts
        rows = [
            ("model fingerprint", facts.model_fingerprint),
            ("protocol", audit.protocol.digest),
            ("input rows", facts.input_digest),
            ("certificates (root digest)", facts.root_digest),
            ("engine", f"{facts.engine}, {facts.evaluations:,} model evaluations"),
            ("probabilities", facts.probabilities),
            ("versions", ", ".join(f"{name} {version}" for name, version in facts.versions.items())),
        ]
        which = shorten_name(facts.name) if len(audits) > 1 else "this audit"
        tables.append(Table(f"The identity of {which}", ("what", "value"), rows))
    opening = "Every claim can be recomputed from the model, the rows and the folder of the audit. The command:"
    blocks: list[PageBlock] = [Text([opening]), *(ShellCommand(audit.facts.verify) for audit in audits), *tables]
    return Section("verify", "How to verify", blocks)
