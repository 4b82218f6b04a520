"""The report as sections of blocks, in the order they are read: what HTML and Markdown both render."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import fragility.report.figures as figures
import fragility.report.sentences as sentences
from fragility.drawing.svg import draw_fifths, draw_paired_shares, draw_shares
from fragility.intervals import Share, share_of
from fragility.report.blocks import (
    Block,
    Cases,
    CaseView,
    Cell,
    Command,
    Facts,
    Figure,
    Lead,
    Link,
    Notice,
    Numbers,
    PathStep,
    Section,
    Table,
    TableCell,
    Text,
)
from fragility.report.summary import (
    AuditNumbers,
    Case,
    Compared,
    Dependence,
    GroupRole,
    PairedAudits,
    ReliabilityNumbers,
    ReportSummary,
    ReviewView,
)
from fragility.segments import SegmentShares
from fragility.wording import (
    GLOSSARY,
    describe_operator,
    join_names,
    shorten_name,
    write_count,
    write_interval,
    write_part,
    write_percent,
    write_points,
    write_points_interval,
    write_share,
)

SHOWN_IN_PICTURE = 4
SHOWN_GROUPS = 12
LISTED_GROUPS = 60
SHOWN_CLASSES = 6
BUDGETS = (0.05, 0.1, 0.2, 0.5)

Part: TypeAlias = tuple[str, str, Sequence[Block]]  # key, heading, blocks
Row: TypeAlias = Sequence[TableCell]


def list_sections(summary: ReportSummary) -> list[Section]:
    """Return the whole report; the first section opens it, and the contents follow that one."""
    several = len(summary.audits) > 1
    sections = [Section("finding", "The finding", 2, _show_finding(summary.audits[0]))]
    if several:
        sections = [_compare(summary), _show_side_by_side(summary)]
    for number, audit in enumerate(summary.audits, start=1):
        level, prefix = (3, f"audit-{number}-") if several else (2, "")
        if several:
            sections.append(Section(f"audit-{number}", shorten_name(audit.facts.name), 2))
        sections += [
            Section(prefix + key, heading, level, blocks)
            for key, heading, blocks in _list_parts(audit, prefix)
            if several or key != "finding"  # a single audit's finding opens the report
        ]
    if any(audit.accuracy is not None for audit in summary.audits):
        sections.append(_show_accuracy(summary.audits))
    return [
        *sections,
        _show_limits(summary.audits),
        _show_verification(summary.audits),
        Section("glossary", "What the words mean", 2, [Facts(list(GLOSSARY.items()))]),
    ]


def _list_parts(audit: AuditNumbers, prefix: str) -> list[Part]:
    return [
        ("finding", "The finding", _show_finding(audit)),
        *([] if audit.dependence is None else [_show_baselines(audit.dependence)]),
        _show_audit(audit),
        *(_show_segments(audit, shares, place) for place, shares in enumerate(audit.segments, start=1)),
        _show_budgets(audit),
        _show_collapse(audit),
        _show_losses(audit),
        _show_groups(audit),
        *([] if audit.reliability is None else [_show_reliability(audit.reliability)]),
        (
            "corner",
            "Confidence against exposure",
            [
                Text([sentences.describe_corner(audit)]),
                Figure(
                    [figures.draw_density(audit)],
                    "Each cell counts predictions; darker (in dark mode: brighter) is more. Shaded: the exposed "
                    "corner.",
                ),
            ],
        ),
        *([_show_reviews(audit)] if audit.reviews else []),
        _show_cases(audit, prefix),
    ]


# --- the first screen ---------------------------------------------------------------------------------------


def _show_finding(audit: AuditNumbers) -> list[Block]:
    """Return what one audit found: how many flip early, a picture of it, and what they rest on."""
    focus, worst = audit.focus, audit.worst
    entries = [(sentences.name_all(audit), focus.flips_early)]
    if worst is not None and (worst.column is not None or len(focus.class_losses) > SHOWN_IN_PICTURE):
        name, rest = sentences.name_segment(worst)
        entries += [(name, worst.flips_early), (rest, worst.rest)]
    elif len(focus.class_losses) > 1:
        shown = focus.class_losses[:SHOWN_IN_PICTURE]
        entries += [(repr(shorten_name(one.predicted)), one.flips_early) for one in shown]
    figure = _draw_shares(entries, f"Share of {sentences.name_focus(audit)} that flip early; lines are 95% intervals.")
    return [
        Lead(sentences.write_headline(audit), figure),
        Numbers(_list_large_numbers(audit)),
        Text([" ".join(sentences.describe_finding(audit))]),
    ]


def _list_large_numbers(audit: AuditNumbers) -> list[tuple[str, str]]:
    focus, rows, accuracy = audit.focus, audit.facts.rows, audit.accuracy
    those, sure = "of those" if audit.confident.rows else "of all", share_of(audit.confident.rows, rows)
    numbers = [(f"{rows:,}", "predictions audited" if rows != 1 else "prediction audited")]
    shares = [
        (sure, f"are {sentences.name_limit(audit)} ({sure.count:,}; {{}})"),
        (focus.flips_after_one, f"{those} flip when one group is lost ({{}})"),
        (focus.flips_early, f"{those} flip early, within two groups ({{}})"),
    ]
    if accuracy is not None:
        shares.insert(0, (accuracy.right, "are right ({})"))
    return numbers + [(write_percent(one.value), text.format(write_interval(one))) for one, text in shares]


def _draw_shares(entries: Sequence[tuple[str, Share]], caption: str) -> Figure:
    rows = [(name, write_part(share.count, share.rows), write_interval(share)) for name, share in entries]
    table = Table("The picture in numbers", ("", "flip early", "95% interval"), rows, folded=True)
    return Figure([draw_shares(entries, "flip early")], caption, table)


def _compare(summary: ReportSummary) -> Section:
    """Return which audit flips early more often, and by how much."""
    entries = [(shorten_name(audit.facts.name), audit.focus.flips_early) for audit in summary.audits]
    caption = "Share of each audit's confident predictions that flip early; lines are 95% intervals."
    blocks: list[Block] = [
        Notice(text) for pair in summary.paired if (text := sentences.describe_protocols(pair)) is not None
    ]
    headlines = [sentences.write_compared_headline(pair) for pair in summary.paired]
    blocks.append(Lead(headlines, _draw_shares(entries, caption)))
    for pair in summary.paired:
        first, second = shorten_name(pair.first), shorten_name(pair.second)
        rows = [(sentences.COMPARED[one.measure], *_write_difference_cells(one)) for one in pair.compared]
        caption = f"{second} against {first}: {sentences.describe_pairing(pair)}"
        blocks.append(Table(caption, ("share", first, second, "difference", "95% interval"), rows))
    return Section("comparison", "The comparison", 2, blocks)


def _write_difference_cells(one: Compared) -> tuple[str, ...]:
    shares = (f"{share.count:,} of {share.rows:,} ({write_percent(share.value)})" for share in (one.first, one.second))
    return *shares, write_points(one.difference.value), write_points_interval(one.difference)


# --- what was audited, baselines, segments ------------------------------------------------------------------


def _show_audit(audit: AuditNumbers) -> Part:
    groups = audit.protocol.groups
    width = 3 if any(group.becomes for group in groups) else 2
    rows = [
        (shorten_name(group.name), f"{group.columns:,}", sentences.list_fields(group.name, group.becomes))[:width]
        for group in groups[:LISTED_GROUPS]
    ]
    if len(groups) > LISTED_GROUPS:
        rows.append((f"and {len(groups) - LISTED_GROUPS:,} more", "", "")[:width])
    head = ("group", "columns", "becomes when lost")[:width]
    table = Table(f"The {write_count(len(groups), 'evidence group')}", head, rows, folded=True, sortable=True)
    blocks: list[Block] = [Text([sentences.describe_audit(audit)]), Facts(sentences.describe_protocol(audit)), table]
    return "audited", "What was audited", blocks


def _show_baselines(found: Dependence) -> Part:
    entries = [(f"{one.name}{' (declared)' if place == 0 else ''}", one) for place, one in enumerate(found.baselines)]
    rows: list[Row] = [
        (
            name,
            _write_share_cell(one.flips_after_one),
            _write_share_cell(one.flips_early),
            write_interval(one.flips_early),
            _write_share_cell(one.never_flips),
            "none" if one.median_budget > found.depth else f"{one.median_budget:g}",
        )
        for name, one in entries
    ]
    unflipped = f"not within {found.depth}"
    head = ("lost evidence becomes", "flip after one", "flip early", "95% interval", unflipped, "median k*")
    predictions = write_count(found.rows, "confident prediction")
    caption = f"Share of {predictions} that flip early, by baseline; lines are 95% intervals."
    picture = draw_shares([(name, one.flips_early) for name, one in entries], "flip early")
    table = Table("The finding under each baseline", head, rows)
    blocks: list[Block] = [Text(sentences.describe_baselines(found)), Figure([picture], caption), table]
    return "baselines", "Does the finding depend on the baseline?", blocks


def _show_segments(audit: AuditNumbers, shares: SegmentShares, place: int) -> Part:
    column, noun, rows = shorten_name(shares.column), sentences.name_focus(audit), list[Row]()
    entries = [(sentences.name_all(audit), audit.focus.flips_early)]
    for one in shares.segments:
        own, name = one.confident if audit.confident.rows else one.everything, shorten_name(one.name)
        entries.append((name, own.flips_early))
        median = "no flip" if own.median_flip_budget is None else str(own.median_flip_budget)
        numbers = (write_interval(own.flips_early), median, f"{own.mean_exposure:.2f}")
        counts = (f"{one.everything.rows:,}", f"{own.rows:,}", _write_share_cell(own.flips_early))
        rows.append((name, *counts, *(numbers if own.rows else ("none",) * 3)))
    caption = f"Share of {noun} that flip early, by {column}; lines are 95% intervals."
    head = (column, "rows", noun, "flip early", "95% interval", "median k*", "mean exposure")
    blocks: list[Block] = [
        Text([sentences.describe_segments(audit, shares)]),
        Figure([draw_shares(entries, "flip early")], caption),
        Table(f"{noun.capitalize()} by {column}", head, rows, sortable=True),
    ]
    return f"by-{place}", f"By {column}", blocks


def _write_share_cell(share: Share) -> TableCell:
    return _write_cell(share.count, share.rows) if share.rows else "none"


def _write_cell(count: int, rows: int) -> Cell:
    return Cell(write_part(count, rows), count / rows)


# --- k*, collapse, three ways -------------------------------------------------------------------------------


def _show_budgets(audit: AuditNumbers) -> Part:
    everything, confident = figures.fold_budgets(audit.everything), figures.fold_budgets(audit.confident)
    rows: list[Row] = []
    for (label, every), (_, sure) in zip(everything, confident, strict=True):
        name = {"none": "does not flip", "1": "1 group"}.get(label, f"{label} groups")
        rows.append((name, write_part(sure, audit.confident.rows), write_part(every, audit.everything.rows)))
    table = Table("Predictions by the number of groups lost until they flip", ("flips after", "confident", "all"), rows)
    caption = "k*: how many groups are lost, strongest first, until it flips."
    figure = Figure([figures.draw_budgets(audit)], caption, table)
    blocks: list[Block] = [Text(sentences.describe_budgets(audit)), figure]
    return "groups-needed", "How many groups each prediction rests on", blocks


def _show_collapse(audit: AuditNumbers) -> Part:
    blocks: list[Block] = [Text([sentences.describe_collapse(audit)])]
    focus, noun = audit.focus, sentences.name_focus(audit)
    if focus.collapse is not None:
        rows = [
            ("nothing removed" if step == 0 else str(step), *map(write_percent, (q.lower, q.median, q.upper)))
            for step, q in enumerate(focus.collapse)
        ]
        head = ("removed", "a quarter lose at most", "half lose at least", "a quarter lose at least")
        table = Table(f"Share of the margin lost by {noun}", head, rows, folded=True)
        caption = f"Share of the margin that {noun} lose as their strongest groups are removed."
        blocks.append(Figure([figures.draw_collapse(audit)], caption, table))
        shown, left_out = focus.class_curves[:SHOWN_CLASSES], len(focus.class_curves) - SHOWN_CLASSES
        drawn = [figures.draw_class_curve(shorten_name(one.predicted), one.rows, one.collapse) for one in shown]
        others = write_count(left_out, "other is", "others are")
        rest = f" The {SHOWN_CLASSES} classes predicted most; {others} left out." if left_out > 0 else ""
        blocks.append(Figure(drawn, f"The same by predicted class (number of predictions).{rest}", small=True))
    return "collapse", "How the margin collapses", blocks


def _show_losses(audit: AuditNumbers) -> Part:
    focus, noun = audit.focus, sentences.name_focus(audit)
    ways = [loss.way for loss in focus.losses]
    drawn = [figures.draw_loss(loss, loss.way.capitalize()) for loss in focus.losses]
    caption = "How many lose how much of the margin; the line marks the median. Grey: more than the axis shows."
    combinations = [
        (sentences.join_ways(one.ways), _write_cell(one.rows, focus.rows)) for one in focus.combinations if one.rows
    ]
    half = [f"{way} ≥ 50%" for way in ways]
    head = ("predicted class", "predictions", "flip after one", "flip early", "95% interval", "mean exposure", *half)
    classes = [
        (
            shorten_name(one.predicted),
            f"{one.rows:,}",
            write_percent(one.flips_after_one.value),
            write_percent(one.flips_early.value),
            write_interval(one.flips_early),
            f"{one.mean_exposure:.2f}",
            *(write_percent(count / one.rows) for count in one.half),
        )
        for one in focus.class_losses[: 2 * SHOWN_CLASSES]
    ]
    blocks: list[Block] = [
        Text([sentences.describe_exposed(audit)]),
        Facts([(way.capitalize(), sentences.WAYS[way]) for way in ways]),
        Figure(drawn, caption, small=True),
        Table("Ways in which at least half of the margin is lost", ("exposed to", noun), combinations),
        Table(f"Who is exposed to which: {noun} by predicted class", head, classes, sortable=True),
    ]
    weakened = []
    for one in focus.degradations:
        severities = zip(one.first_flips, audit.protocol.severities, strict=True)
        gentle = sum(count for count, severity in severities if severity <= 0.5)
        name = describe_operator(one.operator)
        weakened.append((name, _write_cell(one.flips, focus.rows), write_part(gentle, focus.rows)))
    if weakened:
        columns = ("weakened", "flip at some severity", "at half or less")
        blocks.append(Table(f"Evidence weakened rather than lost: {noun} that flip", columns, weakened))
    return "ways", "The three ways evidence fails, and who is exposed to which", blocks


# --- groups -------------------------------------------------------------------------------------------------


def _show_groups(audit: AuditNumbers) -> Part:
    focus = audit.focus
    roles = [role for role in focus.groups if role.first or role.in_set]
    blocks: list[Block] = [
        Text([sentences.describe_groups(audit)]),
        _list_roles("What each group carries", roles[:SHOWN_GROUPS], audit),
    ]
    if len(roles) > SHOWN_GROUPS:
        rest = roles[SHOWN_GROUPS:LISTED_GROUPS]
        more = len(roles) - SHOWN_GROUPS - len(rest)
        caption = write_count(len(rest), "more group") + (f"; {more:,} others are left out" if more else "")
        blocks.append(_list_roles(caption, rest, audit, folded=True))
    unused = len(focus.groups) - len(roles)
    if unused:
        none = "no prediction's strongest evidence and part of no failing set"
        blocks.append(Text([f"{write_count(unused, 'group is', 'groups are')} {none}."]))
    if focus.pairs:
        total, count = focus.flips_at[1], len(focus.pairs)
        rows = [
            (f"{shorten_name(pair.first)} + {shorten_name(pair.second)}", _write_cell(pair.rows, total))
            for pair in focus.pairs
        ]
        shown = "" if focus.distinct_pairs <= count else f"; the {count} most frequent of {focus.distinct_pairs:,}"
        caption = f"Pairs that flip a prediction which the stronger group alone does not flip{shown}"
        blocks.append(Table(caption, ("pair", f"of {total:,} that flip after two"), rows, sortable=True))
    return "evidence", "Which evidence carries the decisions", blocks


def _list_roles(caption: str, roles: Sequence[GroupRole], audit: AuditNumbers, *, folded: bool = False) -> Table:
    rows_of, detailed = audit.focus.rows, audit.focus.collapse is not None
    head = ("group", "among the failing groups", "flips alone", "strongest evidence", "mean share of margin")
    rows: list[Row] = [
        (
            shorten_name(role.name),
            _write_cell(role.in_set, rows_of),
            f"{role.alone:,}",
            write_part(role.first, rows_of),
            *([write_percent(role.carried or 0.0)] if detailed else []),
        )
        for role in roles
    ]
    return Table(caption, head if detailed else head[:-1], rows, folded=folded, sortable=True)


def _show_reliability(found: ReliabilityNumbers) -> Part:
    rows: list[Row] = [
        (shorten_name(name), f"{kept:,.2f}", Cell(write_percent(kept / found.lost), kept / found.lost))
        for name, kept in found.kept[:SHOWN_GROUPS]
        if kept > 0.0
    ]
    blocks: list[Block] = [Text(sentences.describe_reliability(found))]
    if rows:
        head = ("group", "decisions kept if it never failed", "share of those lost")
        blocks.append(Table("Decisions that each group would keep", head, rows))
    return "reliable", "What to make reliable first", blocks


# --- review and cases ---------------------------------------------------------------------------------------


def _show_reviews(audit: AuditNumbers) -> Part:
    blocks: list[Block] = []
    for view in audit.reviews:
        blocks.append(Text(sentences.describe_review(view, sentences.name_focus(audit))))
        if view.found_in_all:
            caption = f"How many of the {view.sought} predictions a review finds, by its size."
            blocks.append(Figure([figures.draw_review(view)], caption, _list_reviewed(view)))
    return "review", "What a review would find", blocks


def _list_reviewed(view: ReviewView) -> Table:
    rows = []
    for share in BUDGETS:
        place = view.shares.index(share)
        found = (write_part(counts[place], view.found_in_all) for counts in (view.by_exposure, view.by_confidence))
        rows.append((f"{write_percent(share)} ({round(share * view.rows):,})", *found))
    return Table(f"{view.sought.capitalize()} predictions found", ("reviewed", "by exposure", "by confidence"), rows)


def _show_cases(audit: AuditNumbers, prefix: str) -> Part:
    cases = [(case, f"{prefix}case-{number}") for number, case in enumerate(audit.focus.cases, start=1)]
    opening = f"The {sentences.count_focus(audit, len(cases))} with the largest exposure, most exposed first."
    if not audit.confident.rows:
        opening = f"No prediction is {sentences.name_limit(audit)}. {opening}"
    rows = [
        (
            Link(shorten_name(case.id), key),
            shorten_name(case.predicted),
            f"{case.confidence:.1%}",
            f"{case.exposure:.3f}",
            f"{case.fds:.3f}",
            sentences.write_budget(case),
        )
        for case, key in cases
    ]
    head = ("row", "predicts", "confidence", "exposure", "FDS", "k*")
    heading = "The most fragile confident cases" if audit.confident.rows else "The most fragile cases"
    blocks: list[Block] = [
        Text([opening, *sentences.describe_values(audit)]),
        Facts([(word, GLOSSARY[word]) for word in ("exposure", "FDS", "k*")]),
        Table("The cases at a glance", head, rows, sortable=True),
        Cases([_show_case(case, key, audit) for case, key in cases]),
    ]
    return "cases", heading, blocks


def _show_case(case: Case, key: str, audit: AuditNumbers) -> CaseView:
    condition = None if audit.focus.lattice is None else audit.focus.lattice.condition
    flip = "flips" if case.flips_to is None else f"flips to {shorten_name(case.flips_to)!r}"
    path = []
    for step, name in enumerate(case.path, start=1):
        flips = case.flipped and step == case.flip_budget
        place = "flip" if flips else "after" if case.flipped and step > case.flip_budget else "before"
        values = () if case.values is None else case.values[step - 1]
        replaced = [(one.field, f"{shorten_name(one.value)} → {shorten_name(one.becomes)}") for one in values]
        path.append(PathStep(shorten_name(name), place, sentences.list_fields(name, replaced), flip if flips else ""))
    scores = f"exposure {case.exposure:.3f} · FDS {case.fds:.3f} · k* {sentences.write_budget(case)}"
    return CaseView(
        key=key,
        heading=f"Row {shorten_name(case.id)}",
        sentence=f"{sentences.describe_case(case)}.",
        facts=f"confidence {case.confidence:.1%} · {scores}",
        path=path,
        smallest=sentences.describe_search(case, condition),
        curve=figures.draw_case(case),
        command=sentences.write_review_command(audit, case),
    )


# --- several audits, accuracy, limits -----------------------------------------------------------------------


def _show_side_by_side(summary: ReportSummary) -> Section:
    audits = summary.audits
    head = ("", *(shorten_name(audit.facts.name) for audit in audits))
    measures = zip(*(_list_measures(audit) for audit in audits), strict=True)
    rows = [(same[0][0], *(value for _, value in same)) for same in measures]
    blocks: list[Block] = [
        Table("The audits in numbers", head, rows, wrapped=True),
        *_list_shared(summary.paired),
        Text([sentences.describe_pair(pair) for pair in summary.paired]),
    ]
    for pair in summary.paired:
        first, second = shorten_name(pair.first), shorten_name(pair.second)
        for compared in pair.segments:
            column = shorten_name(compared.column)
            segments = [(shorten_name(name), one) for name, one in compared.segments]
            caption = f"Confident predictions that flip early, by {column}"
            shares = [(name, (one.first, one.second)) for name, one in segments]
            chart = draw_paired_shares(shares, (first, second))
            blocks.append(Figure([chart], f"{caption}; lines are 95% intervals."))
            cells = [(name, *_write_difference_cells(one)) for name, one in segments]
            head = (column, first, second, "difference", "95% interval")
            blocks.append(Table(f"{caption}: {sentences.describe_pairing(pair)}", head, cells, sortable=True))
    return Section("side-by-side", "The audits side by side", 2, blocks)


def _list_measures(audit: AuditNumbers) -> list[tuple[str, str]]:
    """Return the numbers of one audit that stand beside those of others."""
    sure, pi = audit.confident, audit.protocol
    one, early = (
        f"{share.count:,} of {share.rows:,}: {write_share(share)}" for share in (sure.flips_after_one, sure.flips_early)
    )
    strongest = max(audit.focus.groups, key=lambda group: group.first)
    return [
        ("model", shorten_name(audit.facts.model)),
        ("predictions", f"{audit.facts.rows:,}"),
        ("right", "no labels" if audit.accuracy is None else write_share(audit.accuracy.right)),
        ("confident", write_part(sure.rows, audit.facts.rows)),
        ("confident, flip after one group", one),
        ("confident, flip early", early),
        ("confident, do not flip", write_part(sure.never, sure.rows)),
        (
            "median exposure of confident",
            "none confident" if sure.exposure is None else f"{sure.exposure.median:.2f}",
        ),
        ("mean exposure of all", f"{audit.everything.mean_exposure:.2f}"),
        ("strongest evidence most often", shorten_name(strongest.name)),
        ("groups, depth, baseline", f"{len(pi.groups)}, {pi.depth}, {pi.baseline}"),
    ]


def _list_shared(pairs: Sequence[PairedAudits]) -> list[Block]:
    rows = [
        (
            f"{shorten_name(pair.first)} and {shorten_name(pair.second)}",
            f"{pair.shared:,}",
            write_part(pair.same_class, pair.shared),
            *(
                f"{count:,}"
                for count in (
                    pair.both_confident,
                    pair.flip_in_both,
                    pair.flip_in_first_only,
                    pair.flip_in_second_only,
                )
            ),
        )
        for pair in pairs
        if pair.shared
    ]
    head = ("audits", "shared rows", "same class", "confident in both", "flip in both", "in the first", "in the second")
    caption = "On the rows that audits share: confident in both, and flipping early"
    return [Table(caption, head, rows)] if rows else []


def _show_accuracy(audits: Sequence[AuditNumbers]) -> Section:
    blocks: list[Block] = []
    for audit in audits:
        if audit.accuracy is None:
            continue
        name = f"{audit.facts.name}: " if len(audits) > 1 else ""
        first, *rest = sentences.describe_accuracy(audit)
        blocks.append(Text([name + first, *rest]))
        if audit.accuracy.wrong_exposed.rows >= sentences.FEWEST_IN_A_FIFTH:
            fifths = audit.accuracy.wrong_by_fifth
            names = ("least exposed fifth", "second", "third", "fourth", "most exposed fifth")
            rows = [
                (name, write_part(one.count, one.rows), write_interval(one))
                for name, one in zip(names, fifths, strict=True)
                if one.rows
            ]
            head = ("", "wrong", "95% interval")
            table = Table(f"Wrong {sentences.name_focus(audit)} by exposure", head, rows)
            caption = "How often predictions are wrong, by fifths of exposure; whiskers are 95% intervals."
            blocks.append(Figure([draw_fifths(fifths)], caption, table))
    return Section("accuracy", "Right and wrong", 2, blocks)


def _show_limits(audits: Sequence[AuditNumbers]) -> Section:
    blocks: list[Block] = [Text(sentences.LIMITS)]
    for audit in audits:
        if audit.facts.partial:
            unseen = join_names([shorten_name(reason) for reason in audit.facts.partial], sentences.MOST_NAMES)
            blocks.append(Text([f"The fingerprint of {audit.facts.name} could not see everything: {unseen}."]))
    return Section("limits", "Limits", 2, blocks)


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
        tables.append(Table(f"What {which} is bound to", ("what", "value"), rows))
    opening = "Every claim can be recomputed from the model, the rows and the folder of the audit. The command:"
    blocks: list[Block] = [Text([opening]), *(Command(audit.facts.verify) for audit in audits), *tables]
    return Section("verify", "How to verify", 2, blocks)
