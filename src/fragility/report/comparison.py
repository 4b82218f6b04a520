"""Several audits: which flips early more often, by how much, and their numbers side by side."""

from __future__ import annotations

from fragility.audits.comparison import list_differences
from fragility.pages.sections import Figure, Lead, Notice, PageBlock, Section, Table, Text
from fragility.pages.svg import draw_paired_shares
from fragility.pages.wording import (
    shorten_name,
    write_count,
    write_difference,
    write_known_part,
    write_part,
    write_percent,
    write_points,
    write_points_interval,
    write_share,
)
from fragility.report.figures import show_shares
from fragility.report.modes import compare_modes
from fragility.report.summary import AuditNumbers, Compared, PairedAudits, ReportSummary

COMPARED = {
    "early": "confident predictions that flip early",
    "after_one": "confident predictions that flip after one group",
    "confident_early": "predictions that are confident and flip early",
    "confident": "predictions that are confident",
}


def show_comparison(summary: ReportSummary) -> Section:
    """Return which audit flips early more often, and by how much."""
    warnings = [_warn_of_protocols(pair) for pair in summary.paired if pair.differences]
    entries = [(shorten_name(audit.facts.name), audit.focus.flips_early) for audit in summary.audits]
    caption = "Share of each audit's confident predictions that flip early; lines are 95% intervals."
    headlines = [_write_headline(pair) for pair in summary.paired]
    tables = []
    for pair in summary.paired:
        first, second = shorten_name(pair.first), shorten_name(pair.second)
        rows = [(COMPARED[one.measure], *_write_difference_cells(one)) for one in pair.compared]
        head = ("share", first, second, "difference", "95% interval")
        tables.append(Table(f"{second} against {first}: {_describe_pairing(pair)}", head, rows))
    blocks: list[PageBlock] = [*map(Notice, warnings), Lead(headlines, show_shares(entries, caption)), *tables]
    return Section("comparison", "The comparison", blocks)


def _write_headline(pair: PairedAudits) -> str:
    """Return which of two audits flips early more often, with the difference."""
    first, second = shorten_name(pair.first), shorten_name(pair.second)
    early = next(one for one in pair.compared if one.measure == "early")
    if not early.first.rows or not early.second.rows:
        return f"{second} and {first} have no confident predictions to compare."
    rows = (
        f"Of {write_count(pair.both_confident, 'row')} confident in both" if pair.shared else "Of their confident rows"
    )
    shares = (
        f"{rows}, {write_percent(early.second.value)} against {write_percent(early.first.value)} flip early: "
        f"{write_difference(early.difference)}."
    )
    if not pair.comparable:
        return f"{second} and {first} do not compare: their protocols differ. {shares}"
    if early.difference.lower <= 0 <= early.difference.upper:
        return f"{second} and {first} do not clearly differ. {shares}"
    return f"{second} flips early {'more' if early.difference.lower > 0 else 'less'} often than {first}. {shares}"


def _warn_of_protocols(pair: PairedAudits) -> str:
    differences = list_differences(pair.differences)
    text = f"{shorten_name(pair.second)} has another protocol than {shorten_name(pair.first)}: {differences}."
    if not pair.comparable:
        return f"Not comparable: {text} What differs below may come from the protocol, not from the model."
    if any(one.scales_scores for one in pair.differences):
        return f"{text} RCMA, FDS and exposure are not on the same scale; flips compare."
    return text


def _describe_pairing(pair: PairedAudits) -> str:
    """Return which rows two audits are compared on, and how flips are counted."""
    counted = "flips over all sets of groups" if pair.by_sets else "flips along the paths"
    if not pair.shared:
        return f"no row in common, so each audit's own rows (Newcombe's interval), {counted}"
    rows = write_count(pair.shared, "shared row")
    return f"{rows}, {pair.both_confident:,} confident in both (Tango's paired interval), {counted}"


def _write_difference_cells(one: Compared) -> tuple[str, ...]:
    shares = (f"{share.count:,} of {share.rows:,} ({write_percent(share.value)})" for share in (one.first, one.second))
    return *shares, write_points(one.difference.value), write_points_interval(one.difference)


def show_side_by_side(summary: ReportSummary) -> Section:
    """Return the numbers of all audits, the rows they share, and shares by segment."""
    head = ("", *(shorten_name(audit.facts.name) for audit in summary.audits))
    measures = zip(*(_list_measures(audit) for audit in summary.audits), strict=True)
    rows = [(same[0][0], *(value for _, value in same)) for same in measures]
    blocks: list[PageBlock] = [Table("The audits in numbers", head, rows, wrapped=True)]
    shared = [
        (
            f"{shorten_name(pair.first)} and {shorten_name(pair.second)}",
            f"{pair.shared:,}",
            write_part(pair.same_class, pair.shared),
            f"{pair.both_confident:,}",
            f"{pair.flip_in_both:,}",
            f"{pair.flip_in_first_only:,}",
            f"{pair.flip_in_second_only:,}",
        )
        for pair in summary.paired
        if pair.shared
    ]
    if shared:
        both = ("confident in both", "flip in both", "in the first", "in the second")
        caption = "On the rows that audits share: confident in both, and flipping early"
        blocks.append(Table(caption, ("audits", "shared rows", "same class", *both), shared))
    blocks.append(Text([_describe_shared_rows(pair) for pair in summary.paired]))
    blocks += compare_modes(summary.audits)
    for pair in summary.paired:
        first, second = shorten_name(pair.first), shorten_name(pair.second)
        for compared in pair.segments:
            column = shorten_name(compared.column)
            segments = [(shorten_name(name), one) for name, one in compared.segments]
            caption = f"Confident predictions that flip early, by {column}"
            chart = draw_paired_shares([(name, (one.first, one.second)) for name, one in segments], (first, second))
            blocks.append(Figure([chart], f"{caption}; lines are 95% intervals."))
            cells = [(name, *_write_difference_cells(one)) for name, one in segments]
            head = (column, first, second, "difference", "95% interval")
            blocks.append(Table(f"{caption}: {_describe_pairing(pair)}", head, cells, sortable=True))
    return Section("side-by-side", "The audits side by side", blocks)


def _list_measures(audit: AuditNumbers) -> list[tuple[str, str]]:
    """Return the numbers of one audit that stand beside those of others."""
    sure, pi = audit.confident, audit.protocol
    one, early = (
        f"{share.count:,} of {share.rows:,}: {write_share(share)}" for share in (sure.flips_after_one, sure.flips_early)
    )
    return [
        ("model", shorten_name(audit.facts.model)),
        ("predictions", f"{audit.facts.rows:,}"),
        ("right", "no labels" if audit.accuracy is None else write_share(audit.accuracy.right)),
        ("confident", write_part(sure.rows, audit.facts.rows)),
        ("confident, flip after one group", one),
        ("confident, flip early", early),
        ("confident, hold whatever is lost", write_known_part(sure.holds)),
        ("median exposure of confident", f"{sure.exposure.median:.2f}" if sure.exposure else "none confident"),
        ("mean exposure of all", f"{audit.everything.mean_exposure:.2f}"),
        ("strongest evidence most often", shorten_name(audit.focus.strongest.name)),
        ("groups, depth, baseline", f"{len(pi.groups)}, {pi.depth}, {pi.baseline}"),
        ("under other baselines", "not compared" if audit.dependence is None else audit.dependence.short),
    ]


def _describe_shared_rows(pair: PairedAudits) -> str:
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
