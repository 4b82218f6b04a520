"""Evidence that is wrong, not only lost: what failure modes cost predictions, and how far values may move."""

from __future__ import annotations

from collections.abc import Sequence

from fragility.pages.sections import Cell, Facts, Figure, PageBlock, Section, Table, Text
from fragility.pages.svg import draw_paired_shares, draw_share_bar, draw_shares
from fragility.pages.wording import (
    MODE_MEANINGS,
    MODE_WORDS,
    describe_mode,
    join_names,
    shorten_name,
    write_count,
    write_interval,
    write_part,
    write_percent,
    write_share,
)
from fragility.questions.modes.stability import describe_intervals
from fragility.report.figures import draw_exposure
from fragility.report.sentences import count_focus, name_focus
from fragility.report.summary import AuditNumbers, FragileCase, ModeNumbers, ModesNumbers, SetNumbers

SHOWN_UNITS = 10
MEASURE = "are flipped by the failure of one unit with a chance over one half"


def show_modes(audit: AuditNumbers, numbers: ModesNumbers) -> Section:
    """Return what each failure mode costs the assessed predictions, and which units cost and flip most."""
    key, heading, noun = "modes", "Evidence that is wrong, not only lost", name_focus(audit)
    opening = (
        "Evidence does not only go missing: it also arrives wrong. For each failure mode of the protocol the audit "
        "asked what the failure of one unit of evidence costs a prediction, and how likely it flips it."
    )
    blocks: list[PageBlock] = [Text([opening, describe_assessed(audit, numbers)])]
    if not numbers.modes:
        return Section(key, heading, blocks)
    named = [(MODE_WORDS[one.mode][0], one) for one in numbers.modes]
    facts = [(name.capitalize(), f"{_begin(MODE_MEANINGS[one.mode])}. {describe_found(one)}") for name, one in named]
    rows = [
        (name, f"{one.exposure.median:.2f}", write_part(one.flips.count, one.flips.rows), write_interval(one.flips))
        for name, one in named
    ]
    head = ("failure mode", "median exposure", "flipped by one failure", "95% interval")
    table = Table("What the failure of one unit does", head, rows, wrapped=True)
    shares = draw_shares([(name, one.flips) for name, one in named], MEASURE, total=False)
    exposures = [draw_exposure(one, name.capitalize()) for name, one in named]
    blocks += [
        Facts(facts),
        Figure([shares], f"Share of the assessed {noun} that {MEASURE}; lines are 95% intervals.", table),
        Figure(exposures, f"How exposed the {noun} are to each mode; the line marks the median.", small=True),
        *(_list_units(one, numbers.rows) for one in numbers.modes if one.units),
    ]
    return Section(key, heading, blocks)


def describe_assessed(audit: AuditNumbers, numbers: ModesNumbers) -> str:
    """Return how many predictions were assessed, and how they were chosen."""
    total, noun = audit.focus.rows, name_focus(audit)
    which = f"all {count_focus(audit, total)}" if total > 1 else f"the one {noun[:-1]}"
    if numbers.most_confident is None:
        return f"Assessed: {which}."
    rule = (
        f"This audit assesses at most {numbers.most_confident:,} predictions that are at least "
        f"{write_percent(audit.protocol.min_confidence)} confident, drawn by a hash of their content, "
        "which is as good as at random."
    )
    if numbers.rows < total:
        which = (
            f"{numbers.rows:,} of {count_focus(audit, total)}"
            if numbers.rows
            else f"none of {count_focus(audit, total)}"
        )
    return f"Assessed: {which}. {rule}"


def describe_found(numbers: ModeNumbers) -> str:
    """Return how exposed the assessed predictions are to a mode, and which unit flips most of them."""
    if not numbers.units:
        return "No evidence can fail in this way."
    exposed = f"Median exposure {numbers.exposure.median:.2f}."
    count, rows = numbers.flips.count, write_count(numbers.flips.rows, "prediction")
    if not count:
        return (
            f"{exposed} No single unit flips any of {rows} with a chance over one half "
            f"({write_interval(numbers.flips)})."
        )
    most, verb = max(numbers.units, key=lambda unit: unit.flips), "is" if count == 1 else "are"
    failed = MODE_WORDS[numbers.mode][1].format(shorten_name(most.name))
    return (
        f"{exposed} {count:,} of {rows} {verb} flipped by the failure of one unit with a chance over one half, "
        f"{write_share(numbers.flips)}; most often by {failed} ({most.flips:,})."
    )


def _list_units(numbers: ModeNumbers, rows: int) -> Table:
    """Return the units whose failure flips most."""
    shown = numbers.units[:SHOWN_UNITS]
    cells = [
        (
            shorten_name(unit.name),
            write_percent(unit.lost),
            Cell(write_percent(unit.flip_chance), draw_share_bar(unit.flip_chance)),
            write_part(unit.flips, rows),
        )
        for unit in shown
    ]
    more = f"; the {len(shown)} of {len(numbers.units):,} that flip most" if len(numbers.units) > len(shown) else ""
    head = ("unit", "expected loss of margin", "mean flip chance", "chance over one half")
    return Table(f"{MODE_WORDS[numbers.mode][0].capitalize()}: what each unit costs{more}", head, cells, sortable=True)


def list_case_modes(case: FragileCase) -> list[str]:
    """Return one sentence per failure mode: how exposed a case is to it, and its weakest unit."""
    sentences = []
    for one in case.modes or ():
        weakest = None if one.weakest is None else shorten_name(one.weakest)
        sentences.append(f"{_begin(describe_mode(one.mode, one.exposure, weakest, one.flip_chance))}.")
    return sentences


def list_case_intervals(case: FragileCase) -> list[str]:
    """Return how far single values of a case may move before the decision flips, the least room first."""
    return [] if case.intervals is None else [f"{_begin(sentence)}." for sentence in describe_intervals(case.intervals)]


# --- several audits -----------------------------------------------------------------------------------------


def compare_modes(audits: Sequence[AuditNumbers]) -> list[PageBlock]:
    """Return the failure modes that all audits assessed, side by side; nothing where they share none."""
    by_audit = [_by_mode(audit.focus) for audit in audits]
    shared = [mode for mode in by_audit[0] if all(mode in numbers for numbers in by_audit[1:])]
    if not shared:
        return []
    names = [shorten_name(audit.facts.name) for audit in audits]
    rows = []
    for mode in shared:
        numbers, name = [modes[mode] for modes in by_audit], MODE_WORDS[mode][0]
        shares = [f"{write_part(one.flips.count, one.flips.rows)}: {write_interval(one.flips)}" for one in numbers]
        rows.append((f"{name}: median exposure", *(f"{one.exposure.median:.2f}" for one in numbers)))
        rows.append((f"{name}: flipped by one failure", *shares))
    counts = [f"{modes[shared[0]].flips.rows:,} of {name}" for modes, name in zip(by_audit, names, strict=True)]
    blocks: list[PageBlock] = [Table(f"Failure modes, of {join_names(counts)}", ("", *names), rows, wrapped=True)]
    if len(audits) == 2:
        first, second = by_audit
        entries = [(MODE_WORDS[mode][0], (first[mode].flips, second[mode].flips)) for mode in shared]
        picture = draw_paired_shares(entries, (names[0], names[1]), MEASURE)
        caption = f"Share of the assessed predictions that {MEASURE}; lines are 95% intervals."
        blocks.append(Figure([picture], caption))
    return blocks


def _by_mode(numbers: SetNumbers) -> dict[str, ModeNumbers]:
    return {} if numbers.modes is None else {one.mode: one for one in numbers.modes.modes}


def _begin(text: str) -> str:
    """Return a text with a capital letter at its beginning."""
    return text[0].upper() + text[1:]
