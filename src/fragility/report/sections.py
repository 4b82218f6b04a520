"""The report as sections of blocks, in the order they are read: what HTML and Markdown both render."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import fragility.report.case_words as case_words
import fragility.report.comparison_words as comparison_words
import fragility.report.figures as figures
import fragility.report.phrases as phrases
import fragility.report.words as words
from fragility.intervals import Share
from fragility.report.blocks import (
    Block,
    Cases,
    CaseView,
    Cell,
    Command,
    Facts,
    Figure,
    Link,
    PathStep,
    Section,
    Table,
    TableCell,
    Text,
)
from fragility.report.glossary import GLOSSARY
from fragility.report.opening import difference_cells, finding, opening_of
from fragility.report.phrases import counted, named, of, percent
from fragility.report.summary import (
    AuditNumbers,
    Case,
    ComparedSegments,
    Dependence,
    GroupRole,
    PairedAudits,
    ReliabilityNumbers,
    ReportSummary,
    ReviewView,
)
from fragility.segments import SegmentShares

SHOWN_GROUPS = 12
LISTED_GROUPS = 60
SHOWN_CLASSES = 6
BUDGETS = (0.05, 0.1, 0.2, 0.5)


def sections_of(summary: ReportSummary) -> list[Section]:
    """Return the whole report; the first section opens it, and the contents follow that one."""
    several = len(summary.audits) > 1
    sections = [opening_of(summary)]
    if several:
        sections.append(_side_by_side(summary))
    for number, audit in enumerate(summary.audits, start=1):
        sections += _audit(audit, number, several)
    return [*sections, *_accuracy(summary.audits), *_limits(summary.audits), _glossary()]


def _audit(audit: AuditNumbers, number: int, several: bool) -> list[Section]:
    level, prefix = (3, f"audit-{number}-") if several else (2, "")
    parts: list[Part] = [
        *([("finding", "The finding", finding(audit))] if several else []),  # a single audit's opens the report
        *([_baselines(audit.dependence)] if audit.dependence is not None else []),
        _audited(audit),
        *(_segments(audit, shares, place) for place, shares in enumerate(audit.segments, start=1)),
        _budgets(audit),
        _collapse(audit),
        _losses(audit),
        _groups(audit),
        *([_reliability(audit.reliability)] if audit.reliability is not None else []),
        _map(audit),
        *([_reviews(audit)] if audit.reviews else []),
        _cases(audit, prefix),
    ]
    made = [Section(prefix + key, heading, level, blocks) for key, heading, blocks in parts]
    return [Section(f"audit-{number}", named(audit.facts.name), 2), *made] if several else made


Part: TypeAlias = tuple[str, str, Sequence[Block]]


# --- what was audited ----------------------------------------------------------------------------------------


def _audited(audit: AuditNumbers) -> Part:
    groups = audit.protocol.groups
    width = 3 if any(group.becomes for group in groups) else 2
    lines = [
        (named(group.name), f"{group.columns:,}", case_words.becomes_words(group)) for group in groups[:LISTED_GROUPS]
    ]
    if len(groups) > LISTED_GROUPS:
        lines.append((f"and {len(groups) - LISTED_GROUPS:,} more", "", ""))
    head, rows = ("group", "columns", "becomes when lost")[:width], [line[:width] for line in lines]
    table = Table(f"The {counted(len(groups), 'evidence group')}", head, rows, folded=True, sortable=True)
    blocks: list[Block] = [Text([words.audited(audit)]), Facts(words.protocol_words(audit)), table]
    return "audited", "What was audited", blocks


# --- baselines ----------------------------------------------------------------------------------------------


def _baselines(found: Dependence) -> Part:
    entries = [(f"{one.name}{' (declared)' if place == 0 else ''}", one) for place, one in enumerate(found.baselines)]
    rows: list[Sequence[TableCell]] = [
        (
            name, _share_cell(one.flips_after_one), _share_cell(one.flips_early), phrases.interval(one.flips_early),
            _share_cell(one.never_flips), "none" if one.median_budget > found.depth else f"{one.median_budget:g}",
        )
        for name, one in entries
    ]  # fmt: skip
    head = (
        "lost evidence becomes",
        "flip after one",
        "flip early",
        "95% interval",
        f"not within {found.depth}",
        "median k*",
    )
    caption = (
        f"Share of {counted(found.rows, 'confident prediction')} that flip early, by baseline; lines are 95% intervals."
    )
    figure = Figure([figures.share_chart([(name, one.flips_early) for name, one in entries], "flip early")], caption)
    verdict = words.dependence_words(found)
    told = [
        "The same confident predictions, chosen by a hash of their ids, under every baseline that the model admits. "
        f"The finding {'is ' if found.stable else ''}{verdict}",
        words.dependence_rows_words(found),
        *words.artificial_words(found),
    ]
    table = Table("The finding under each baseline", head, rows)
    return "baselines", "Does the finding depend on the baseline?", [Text(told), figure, table]


# --- segments -----------------------------------------------------------------------------------------------


def _segments(audit: AuditNumbers, shares: SegmentShares, place: int) -> Part:
    numbers = [(one.name, one.confident if audit.confident.rows else one.everything) for one in shares.segments]
    rows: list[Sequence[TableCell]] = [
        (
            named(name), f"{every.rows:,}", f"{own.rows:,}", _share_cell(own.flips_early),
            phrases.interval(own.flips_early) if own.rows else "none", words.median_budget(own), words.mean(own),
        )
        for (name, own), every in zip(numbers, (one.everything for one in shares.segments), strict=True)
    ]  # fmt: skip
    noun = words.focus_noun(audit)
    head = (named(shares.column), "rows", noun, "flip early", "95% interval", "median k*", "mean exposure")
    caption = f"Share of {noun} that flip early, by {named(shares.column)}; lines are 95% intervals."
    entries = [(words.all_of(audit), audit.focus.flips_early)]
    entries += [(named(name), own.flips_early) for name, own in numbers]
    table = Table(f"{noun.capitalize()} by {named(shares.column)}", head, rows, sortable=True)
    figure = Figure([figures.share_chart(entries, "flip early")], caption)
    return f"by-{place}", f"By {named(shares.column)}", [Text([words.segments_words(audit, shares)]), figure, table]


def _share_cell(share: Share) -> TableCell:
    return Cell(of(share.count, share.rows), share.value) if share.rows else "none"


# --- k* and collapse ----------------------------------------------------------------------------------------


def _budgets(audit: AuditNumbers) -> Part:
    everything = figures.folded_budgets(audit.everything)
    confident = figures.folded_budgets(audit.confident)
    rows: list[Sequence[TableCell]] = []
    for (label, every), (_, sure) in zip(everything, confident, strict=True):
        name = {"none": "does not flip", "1": "1 group"}.get(label, f"{label} groups")
        rows.append((name, of(sure, audit.confident.rows), of(every, audit.everything.rows)))
    searched = words.lattice_words(audit)
    told = [words.budget_words(audit)] if searched is None else [words.budget_words(audit), searched]
    table = Table("Predictions by the number of groups lost until they flip", ("flips after", "confident", "all"), rows)
    figure = Figure(
        [figures.budget_chart(audit)], "k*: how many groups are lost, strongest first, until it flips.", table
    )
    return "groups-needed", "How many groups each prediction rests on", [Text(told), figure]


def _collapse(audit: AuditNumbers) -> Part:
    blocks: list[Block] = [Text([words.collapse_words(audit)])]
    focus = audit.focus
    if focus.collapse is not None:
        rows = [
            ("nothing removed" if step == 0 else str(step), percent(q.lower), percent(q.median), percent(q.upper))
            for step, q in enumerate(focus.collapse)
        ]
        head = ("removed", "a quarter lose at most", "half lose at least", "a quarter lose at least")
        table = Table(f"Share of the margin lost by {words.focus_noun(audit)}", head, rows, folded=True)
        caption = f"Share of the margin that {words.focus_noun(audit)} lose as their strongest groups are removed."
        blocks.append(Figure([figures.collapse_chart(audit)], caption, table))
        blocks.append(_class_curves(audit))
    return "collapse", "How the margin collapses", blocks


def _class_curves(audit: AuditNumbers) -> Block:
    curves = audit.focus.class_curves
    drawn = [figures.class_curve(named(one.predicted), one.rows, one.collapse) for one in curves[:SHOWN_CLASSES]]
    left_out = len(curves) - len(drawn)
    others = counted(left_out, "other is", "others are")
    rest = f" The {SHOWN_CLASSES} classes predicted most; {others} left out." if left_out > 0 else ""
    return Figure(drawn, f"The same by predicted class (number of predictions).{rest}", small=True)


# --- three ways ---------------------------------------------------------------------------------------------


def _losses(audit: AuditNumbers) -> Part:
    focus = audit.focus
    drawn = [figures.loss_chart(loss, words.WAY_NAMES[loss.way]) for loss in focus.losses]
    caption = "How many lose how much of the margin; the line marks the median. Grey: more than the axis shows."
    blocks: list[Block] = [
        Text([words.losses_words(audit)]),
        Facts([(words.WAY_NAMES[loss.way], words.WAY_WORDS[loss.way]) for loss in focus.losses]),
        Figure(drawn, caption, small=True),
        _combinations(audit),
        _class_losses(audit),
    ]
    if focus.degradations:
        blocks.append(_degradations(audit))
    return "ways", "The three ways evidence fails, and who is exposed to which", blocks


def _combinations(audit: AuditNumbers) -> Table:
    focus = audit.focus
    rows = [
        (words.combination_words(one.ways), Cell(of(one.rows, focus.rows), one.rows / focus.rows))
        for one in focus.combinations
        if one.rows
    ]
    caption = "Ways in which at least half of the margin is lost"
    return Table(caption, ("exposed to", words.focus_noun(audit)), rows)


def _class_losses(audit: AuditNumbers) -> Table:
    focus = audit.focus
    ways = [f"{words.WAY_NAMES[loss.way].lower()} ≥ 50%" for loss in focus.losses]
    head = ("predicted class", "predictions", "flip after one", "flip early", "95% interval", "mean exposure", *ways)
    rows = [
        (
            named(one.predicted), f"{one.rows:,}", percent(one.flips_after_one.value),
            percent(one.flips_early.value), phrases.interval(one.flips_early), f"{one.mean_exposure:.2f}",
            *(percent(n / one.rows) for n in one.half),
        )
        for one in focus.class_losses[: 2 * SHOWN_CLASSES]
    ]  # fmt: skip
    return Table(f"Who is exposed to which: {words.focus_noun(audit)} by predicted class", head, rows, sortable=True)


def _degradations(audit: AuditNumbers) -> Table:
    focus = audit.focus
    rows = []
    for one in focus.degradations:
        gentle = sum(
            n for n, severity in zip(one.first_flips, audit.protocol.severities, strict=True) if severity <= 0.5
        )
        flipped = Cell(of(one.flips, focus.rows), one.flips / focus.rows)
        rows.append((words.operator_words(one.operator), flipped, of(gentle, focus.rows)))
    head = ("weakened", "flip at some severity", "at half or less")
    return Table(f"Evidence weakened rather than lost: {words.focus_noun(audit)} that flip", head, rows)


# --- groups -------------------------------------------------------------------------------------------------


def _groups(audit: AuditNumbers) -> Part:
    focus = audit.focus
    roles = [role for role in focus.groups if role.first or role.in_set]
    blocks: list[Block] = [Text([words.groups_words(audit)])]
    blocks.append(_role_table("What each group carries", roles[:SHOWN_GROUPS], audit))
    if len(roles) > SHOWN_GROUPS:
        rest = roles[SHOWN_GROUPS:LISTED_GROUPS]
        more = len(roles) - SHOWN_GROUPS - len(rest)
        caption = f"{counted(len(rest), 'more group')}" + (f"; {more:,} others are left out" if more else "")
        blocks.append(_role_table(caption, rest, audit, folded=True))
    unused = words.unused_groups(focus.groups)
    if unused:
        none = "no prediction's strongest evidence and part of no failing set"
        blocks.append(Text([f"{counted(unused, 'group is', 'groups are')} {none}."]))
    if focus.pairs:
        blocks.append(_pair_table(audit))
    return "evidence", "Which evidence carries the decisions", blocks


def _role_table(caption: str, roles: Sequence[GroupRole], audit: AuditNumbers, *, folded: bool = False) -> Table:
    rows_of = audit.focus.rows
    head = ["group", "among the failing groups", "flips alone", "strongest evidence"]
    carried = audit.focus.collapse is not None
    rows: list[Sequence[TableCell]] = []
    for role in roles:
        row: list[TableCell] = [named(role.name), Cell(of(role.in_set, rows_of), role.in_set / rows_of)]
        row += [f"{role.alone:,}", of(role.first, rows_of)]
        rows.append([*row, percent(role.carried or 0.0)] if carried else row)
    return Table(caption, [*head, "mean share of margin"] if carried else head, rows, folded=folded, sortable=True)


def _pair_table(audit: AuditNumbers) -> Table:
    focus = audit.focus
    total = focus.flips_at[1]
    rows = [
        (f"{named(pair.first)} + {named(pair.second)}", Cell(of(pair.rows, total), pair.rows / total))
        for pair in focus.pairs
    ]
    shown = "" if focus.distinct_pairs <= len(rows) else f"; the {len(rows)} most frequent of {focus.distinct_pairs:,}"
    caption = f"Pairs that flip what the stronger of them alone does not{shown}"
    return Table(caption, ("pair", f"of {total:,} that flip after two"), rows, sortable=True)


def _reliability(found: ReliabilityNumbers) -> Part:
    rows: list[Sequence[TableCell]] = [
        (named(name), f"{kept:,.2f}", Cell(percent(kept / found.lost), kept / found.lost))
        for name, kept in found.kept[:SHOWN_GROUPS]
        if kept > 0.0
    ]
    head = ("group", "decisions kept if it never failed", "share of those lost")
    table = Table("Decisions that each group would keep", head, rows)
    blocks: list[Block] = [Text(words.reliability_words(found)), *([table] if rows else [])]
    return "reliable", "What to make reliable first", blocks


# --- confidence, review, cases ------------------------------------------------------------------------------


def _map(audit: AuditNumbers) -> Part:
    caption = "Each cell counts predictions; darker (in dark mode: brighter) is more. Shaded: the exposed corner."
    return "corner", "Confidence against exposure", [
        Text([words.map_words(audit)]),
        Figure([figures.density_chart(audit)], caption),
    ]  # fmt: skip


def _reviews(audit: AuditNumbers) -> Part:
    noun = words.focus_noun(audit)
    blocks: list[Block] = []
    for view in audit.reviews:
        blocks.append(Text(words.review_words(view, noun)))
        if view.found_in_all:
            caption = f"How many of the {view.sought} predictions a review finds, by its size."
            blocks.append(Figure([figures.capture_chart(view)], caption, _review_table(view)))
    return "review", "What a review would find", blocks


def _review_table(view: ReviewView) -> Table:
    rows = []
    for share in BUDGETS:
        place = view.shares.index(share)
        found, other = view.by_exposure[place], view.by_confidence[place]
        reviewed = f"{percent(share)} ({round(share * view.rows):,})"
        rows.append((reviewed, of(found, view.found_in_all), of(other, view.found_in_all)))
    return Table(f"{view.sought.capitalize()} predictions found", ("reviewed", "by exposure", "by confidence"), rows)


def _cases(audit: AuditNumbers, prefix: str) -> Part:
    cases, searched = audit.focus.cases, audit.focus.lattice
    condition = None if searched is None else searched.condition
    keys = [f"{prefix}case-{number}" for number in range(1, len(cases) + 1)]
    told = f"The {counted(len(cases), words.focus_noun(audit)[:-1])} with the largest exposure, most exposed first."
    if not audit.confident.rows:
        told = f"No prediction is {words.confident_words(audit)}. {told}"
    heading = "The most fragile confident cases" if audit.confident.rows else "The most fragile cases"
    views = [_case(case, key, condition, audit) for case, key in zip(cases, keys, strict=True)]
    blocks: list[Block] = [Text([told, *case_words.values_words(audit)]), Facts(case_words.SCORES)]
    return "cases", heading, [*blocks, _case_table(cases, keys), Cases(views)]


def _case_table(cases: Sequence[Case], keys: Sequence[str]) -> Table:
    rows = [
        (
            Link(named(case.id), key), named(case.predicted), f"{case.confidence:.1%}", f"{case.exposure:.3f}",
            f"{case.fds:.3f}", case_words.budget(case),
        )
        for case, key in zip(cases, keys, strict=True)
    ]  # fmt: skip
    head = ("row", "predicts", "confidence", "exposure", "FDS", "k*")
    return Table("The cases at a glance", head, rows, sortable=True)


def _case(case: Case, key: str, condition: str | None, audit: AuditNumbers) -> CaseView:
    scores = f"exposure {case.exposure:.3f} · FDS {case.fds:.3f}"
    flip = "flips" if case.flips_to is None else f"flips to {named(case.flips_to)!r}"
    path = []
    for step, name in enumerate(case.path, start=1):
        place = _place(case, step)
        values = "" if case.values is None else case_words.replaced_words(name, case.values[step - 1])
        path.append(PathStep(named(name), place, values, flip if place == "flip" else ""))
    return CaseView(
        key=key,
        heading=f"Row {named(case.id)}",
        sentence=f"{case_words.case_sentence(case)}.",
        facts=f"confidence {case.confidence:.1%} · {scores} · k* {case_words.budget(case)}",
        path=path,
        smallest=case_words.smallest_words(case, condition),
        curve=figures.case_curve(case),
        command=case_words.review_command(audit, case),
    )


def _place(case: Case, step: int) -> str:
    if not case.flipped or step < case.flip_budget:
        return "before"
    return "flip" if step == case.flip_budget else "after"


# --- several audits, accuracy, limits -----------------------------------------------------------------------


def _side_by_side(summary: ReportSummary) -> Section:
    audits = summary.audits
    notes = [comparison_words.paired_words(pair) for pair in summary.paired]
    head = ("", *(named(audit.facts.name) for audit in audits))
    rows = [(name, *map(measure, audits)) for name, measure in MEASURES]
    table = Table("The audits in numbers", head, rows, wrapped=True)
    blocks: list[Block] = [table, *_shared_table(summary.paired), Text(notes)]
    for pair in summary.paired:
        for one in pair.segments:
            blocks += _compared_segments(pair, one)
    return Section("side-by-side", "The audits side by side", 2, blocks)


def _compared_segments(pair: PairedAudits, compared: ComparedSegments) -> list[Block]:
    """Return how often two audits flip early, segment by segment."""
    rows = [(named(name), *difference_cells(one)) for name, one in compared.segments]
    head = (named(compared.column), named(pair.first), named(pair.second), "difference", "95% interval")
    caption = f"Confident predictions that flip early, by {named(compared.column)}"
    pairs = [(named(name), (one.first, one.second)) for name, one in compared.segments]
    chart = figures.paired_chart(pairs, (named(pair.first), named(pair.second)))
    table = Table(f"{caption}: {comparison_words.pairing(pair)}", head, rows, sortable=True)
    return [Figure([chart], f"{caption}; lines are 95% intervals."), table]


def _right(audit: AuditNumbers) -> str:
    return "no labels" if audit.accuracy is None else phrases.with_interval(audit.accuracy.right)


def _flipping(share: Share) -> str:
    return f"{share.count:,} of {share.rows:,}: {phrases.with_interval(share)}"


def _median(audit: AuditNumbers) -> str:
    return "none confident" if audit.confident.exposure is None else f"{audit.confident.exposure.median:.2f}"


def _strongest(audit: AuditNumbers) -> str:
    return named(max(audit.focus.groups, key=lambda group: group.first).name)


MEASURES = (
    ("model", lambda audit: named(audit.facts.model)),
    ("predictions", lambda audit: f"{audit.facts.rows:,}"),
    ("right", _right),
    ("confident", lambda audit: of(audit.confident.rows, audit.facts.rows)),
    ("confident, flip after one group", lambda audit: _flipping(audit.confident.flips_after_one)),
    ("confident, flip early", lambda audit: _flipping(audit.confident.flips_early)),
    ("confident, do not flip", lambda audit: of(audit.confident.never, audit.confident.rows)),
    ("median exposure of confident", _median),
    ("mean exposure of all", lambda audit: f"{audit.everything.mean_exposure:.2f}"),
    ("strongest evidence most often", _strongest),
    ("groups, depth, baseline", lambda a: f"{len(a.protocol.groups)}, {a.protocol.depth}, {a.protocol.baseline}"),
)


def _shared_table(pairs: Sequence[PairedAudits]) -> list[Block]:
    rows = [
        (
            f"{named(pair.first)} and {named(pair.second)}", f"{pair.shared:,}", of(pair.same_class, pair.shared),
            f"{pair.both_confident:,}", f"{pair.flip_in_both:,}", f"{pair.flip_in_first_only:,}",
            f"{pair.flip_in_second_only:,}",
        )
        for pair in pairs
        if pair.shared
    ]  # fmt: skip
    head = ("audits", "shared rows", "same class", "confident in both", "flip in both", "in the first", "in the second")
    caption = "On the rows that audits share: confident in both, and flipping early"
    return [Table(caption, head, rows)] if rows else []


def _accuracy(audits: Sequence[AuditNumbers]) -> list[Section]:
    labelled = [audit for audit in audits if audit.accuracy is not None]
    if not labelled:
        return []
    blocks: list[Block] = []
    for audit in labelled:
        name = f"{audit.facts.name}: " if len(audits) > 1 else ""
        first, *rest = words.accuracy_words(audit)
        blocks.append(Text([name + first, *rest]))
        if audit.accuracy is not None and audit.accuracy.wrong_exposed.rows >= words.FEWEST_IN_A_FIFTH:
            blocks.append(_fifths(audit))
    return [Section("accuracy", "Right and wrong", 2, blocks)]


def _fifths(audit: AuditNumbers) -> Block:
    assert audit.accuracy is not None
    fifths = audit.accuracy.wrong_by_fifth
    names = ("least exposed fifth", "second", "third", "fourth", "most exposed fifth")
    rows = [
        (name, of(one.count, one.rows), phrases.interval(one))
        for name, one in zip(names, fifths, strict=True)
        if one.rows
    ]
    table = Table(f"Wrong {words.focus_noun(audit)} by exposure", ("", "wrong", "95% interval"), rows)
    caption = "How often predictions are wrong, by fifths of exposure; whiskers are 95% intervals."
    return Figure([figures.fifths_chart(fifths)], caption, table)


def _limits(audits: Sequence[AuditNumbers]) -> list[Section]:
    blocks: list[Block] = [Text(list(words.LIMITS))]
    for audit in audits:
        if audit.facts.partial:
            unseen = phrases.listed([named(reason) for reason in audit.facts.partial])
            blocks.append(Text([f"The fingerprint of {audit.facts.name} could not see everything: {unseen}."]))
    verify: list[Block] = [
        Text(["Every claim can be recomputed from the model, the rows and the folder of the audit. The command:"]),
        *(Command(audit.facts.verify) for audit in audits),
        *(_digests(audit, len(audits) > 1) for audit in audits),
    ]
    return [Section("limits", "Limits", 2, blocks), Section("verify", "How to verify", 2, verify)]


def _glossary() -> Section:
    return Section("glossary", "What the words mean", 2, [Facts(list(GLOSSARY.items()))])


def _digests(audit: AuditNumbers, several: bool) -> Table:
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
    caption = f"What {named(facts.name)} is bound to" if several else "What this audit is bound to"
    return Table(caption, ("what", "value"), rows)
