"""The first screen: the finding of one audit, or the comparison of several, before anything else."""

from __future__ import annotations

from collections.abc import Sequence

import fragility.report.comparison_words as comparison_words
import fragility.report.figures as figures
import fragility.report.phrases as phrases
import fragility.report.words as words
from fragility.intervals import Share, share_of
from fragility.report.blocks import Block, Figure, Lead, Notice, Numbers, Section, Table, Text
from fragility.report.phrases import named, of, percent
from fragility.report.summary import AuditNumbers, Compared, PairedAudits, ReportSummary

SHOWN_IN_PICTURE = 4


def opening_of(summary: ReportSummary) -> Section:
    """Return the section that opens the report."""
    if len(summary.audits) > 1:
        return comparison(summary)
    return Section("finding", "The finding", 2, finding(summary.audits[0]))


# --- one audit ----------------------------------------------------------------------------------------------


def finding(audit: AuditNumbers) -> list[Block]:
    """Return what one audit found: who flips early, a picture of it, and what they rest on."""
    return [
        Lead(words.headline(audit), _early_figure(audit)),
        Numbers(_large_numbers(audit)),
        Text([" ".join(words.finding(audit))]),
    ]


def _early_figure(audit: AuditNumbers) -> Figure:
    entries = [(words.all_of(audit), audit.focus.flips_early), *_picked_segments(audit)]
    caption = f"Share of {words.focus_noun(audit)} that flip early; lines are 95% intervals."
    return Figure([figures.share_chart(entries, "flip early")], caption, _share_table(entries))


def _picked_segments(audit: AuditNumbers) -> list[tuple[str, Share]]:
    """Return the worst segment and its rest, or the predicted classes."""
    worst = audit.worst
    if worst is not None and (worst.column is not None or len(audit.focus.class_losses) > SHOWN_IN_PICTURE):
        return [(words.segment_label(worst), worst.flips_early), (words.rest_label(worst), worst.rest)]
    classes = audit.focus.class_losses[:SHOWN_IN_PICTURE]
    return [(repr(named(one.predicted)), one.flips_early) for one in classes] if len(classes) > 1 else []


def _share_table(entries: Sequence[tuple[str, Share]]) -> Table:
    rows = [(name, of(share.count, share.rows), phrases.interval(share)) for name, share in entries]
    return Table("The picture in numbers", ("", "flip early", "95% interval"), rows, folded=True)


def _large_numbers(audit: AuditNumbers) -> list[tuple[str, str]]:
    focus, rows = audit.focus, audit.facts.rows
    those, sure = "of those" if audit.confident.rows else "of all", share_of(audit.confident.rows, rows)
    numbers = [
        (f"{rows:,}", "predictions audited" if rows != 1 else "prediction audited"),
        (
            percent(audit.confident.rows / rows),
            f"are {words.confident_words(audit)} ({audit.confident.rows:,}; {phrases.interval(sure)})",
        ),
        (
            percent(focus.flips_after_one.value),
            f"{those} flip when one group is lost ({phrases.interval(focus.flips_after_one)})",
        ),
        (
            percent(focus.flips_early.value),
            f"{those} flip early, within two groups ({phrases.interval(focus.flips_early)})",
        ),
    ]
    if audit.accuracy is not None:
        right = audit.accuracy.right
        numbers.insert(1, (percent(right.value), f"are right ({phrases.interval(right)})"))
    return numbers


# --- several audits -----------------------------------------------------------------------------------------


def comparison(summary: ReportSummary) -> Section:
    """Return which audit flips early more often, and by how much."""
    entries = [(named(audit.facts.name), audit.focus.flips_early) for audit in summary.audits]
    caption = "Share of each audit's confident predictions that flip early; lines are 95% intervals."
    figure = Figure([figures.share_chart(entries, "flip early")], caption, _share_table(entries))
    notices = [Notice(told) for pair in summary.paired if (told := comparison_words.protocols_differ(pair)) is not None]
    lead = Lead([comparison_words.compared_headline(pair) for pair in summary.paired], figure)
    tables = [_difference_table(pair) for pair in summary.paired]
    return Section("comparison", "The comparison", 2, [*notices, lead, *tables])


def _difference_table(pair: PairedAudits) -> Table:
    rows = [(comparison_words.COMPARED[one.measure], *difference_cells(one)) for one in pair.compared]
    caption = f"{named(pair.second)} against {named(pair.first)}: {comparison_words.pairing(pair)}"
    head = ("share", named(pair.first), named(pair.second), "difference", "95% interval")
    return Table(caption, head, rows)


def difference_cells(one: Compared) -> tuple[str, ...]:
    """Return both shares, their difference and its interval."""
    shares = (f"{share.count:,} of {share.rows:,} ({percent(share.value)})" for share in (one.first, one.second))
    difference = one.difference
    return *shares, phrases.points(difference.value), phrases.points_interval(difference)
