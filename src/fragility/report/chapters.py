"""The longer sections of the report: several audits side by side, failure modes, and the deployed model.

Several audits: which one flips early more often, by how much, and their numbers side by side. Failure modes: the cost
of wrong or noisy evidence, and how far values may move. Deployment: whether the deployed model is the audited one,
according to comparisons with other artefacts.
"""

from __future__ import annotations

from collections.abc import Sequence

from fragility.audits import AuditSummary
from fragility.audits.comparison import list_differences
from fragility.pages.drawing import draw_paired_shares, draw_share_bar, draw_shares
from fragility.pages.sections import Cell, Facts, Figure, Lead, Notice, PageBlock, Section, Table, Text
from fragility.pages.terms import MODE_MEANINGS, MODE_WORDS
from fragility.pages.wording import (
    begin_sentence,
    describe_mode,
    join_names,
    make_sentence,
    shorten_name,
    write_count,
    write_difference,
    write_interval,
    write_part,
    write_percent,
    write_points,
    write_points_interval,
    write_share,
)
from fragility.parity.result import (
    CLEAN,
    ModelParity,
    describe_change,
    describe_verdict,
    tabulate_kinds,
    tabulate_reveals,
)
from fragility.questions.modes.stability import describe_intervals
from fragility.report.figures import draw_exposure, show_shares
from fragility.report.sentences import count_focus, name_focus
from fragility.report.summary import (
    AnyValueNumbers,
    AuditNumbers,
    Compared,
    FragileCase,
    ModeNumbers,
    ModesNumbers,
    PairedAudits,
    ReportSummary,
)

# --- several audits -------------------------------------------------------------------------------------------

COMPARED = {
    "early": "confident predictions that flip early",
    "after_one": "confident predictions that flip after one group",
    "confident_early": "predictions that are confident and flip early",
    "confident": "predictions that are confident",
}


# The rows of the table of several audits: measures and their labels.
MEASURES = {
    "accuracy": "accuracy",
    "confident_accuracy": "accuracy of confident predictions",
    "confident": "confident predictions",
    "flips_after_one": "confident, flip after one group",
    "flips_early": "confident, flip early",
    "holds": "confident, hold whatever is lost",
    "mean_confidence": "mean confidence",
    "mean_margin": "mean margin m(x)",
    "mean_flip_budget": "mean flip budget k*",
    "never_flips": "never flips on the path",
    "mean_fds": "mean FDS",
    "mean_exposure": "mean exposure",
    "mean_rcma": "mean targeted loss (RCMA)",
    "median_independent_loss": "median independent loss",
    "mean_independent_loss": "mean independent loss",
    "mean_random_loss": "mean random loss",
    "mean_common_loss": "mean common loss",
    "confident_mean_fds": "mean FDS of confident predictions",
    "confident_mean_exposure": "mean exposure of confident predictions",
    "fewer_suffice": "a smaller failing set than the path found",
    "path_missed": "the path does not flip it, but a failing set exists",
    "proved": "no loss of groups flips it",
    "unsettled": "smallest set not settled",
    "mean_smallest_size": "mean smallest set",
    "lost": "decisions expected to be lost",
}
FADING = "no_flip_under_"  # prefix of the measures of fading, one per operator
COUNTED = ("fewer_suffice", "path_missed", "proved", "unsettled")  # shown as counts, since few rows are searched


def show_comparison(summary: ReportSummary) -> Section:
    """Return which audit flips early more often, and by how much."""
    warnings = [_warn_of_protocols(pair) for pair in summary.paired if pair.differences]
    warnings += _warn_of_rows_and_failures(summary)
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
        return f"{second} and {first} are not comparable: their protocols differ. {shares}"
    if early.difference.lower <= 0 <= early.difference.upper:
        return f"{second} and {first} do not clearly differ. {shares}"
    return f"{second} flips early {'more' if early.difference.lower > 0 else 'less'} often than {first}. {shares}"


def _warn_of_protocols(pair: PairedAudits) -> str:
    differences = list_differences(pair.differences)
    text = f"{shorten_name(pair.second)} has another protocol than {shorten_name(pair.first)}: {differences}."
    if not pair.comparable:
        return f"Not comparable: {text} What differs below may come from the protocol, not from the model."
    if any(one.scales_scores for one in pair.differences):
        return f"{text} RCMA, FDS and exposure are not on the same scale; flips are comparable."
    return text


def _warn_of_rows_and_failures(summary: ReportSummary) -> list[str]:
    """Return warnings if the audits cover different rows, or declare different failures."""
    rows = {(audit.facts.rows, pair.shared) for audit in summary.audits for pair in summary.paired}
    warnings = ["The audits cover different rows."] if any(own != shared for own, shared in rows) else []
    lattices = [audit.everything.lattice for audit in summary.audits]
    conditions = {one.condition for one in lattices if one is not None and one.condition is not None}
    if len(conditions) > 1:
        warnings.append(
            f"Decisions are expected to be lost under different conditions: {'; '.join(sorted(conditions))}."
        )
    return warnings


def _describe_pairing(pair: PairedAudits) -> str:
    """Return which rows two audits are compared on, and how flips are counted."""
    counting = "flips over all sets of groups" if pair.by_sets else "flips along the paths"
    if not pair.shared:
        return f"no row in common, so each audit's own rows (Newcombe's interval), {counting}"
    rows = write_count(pair.shared, "shared row")
    return f"{rows}, {pair.both_confident:,} confident in both (Tango's paired interval), {counting}"


def _write_difference_cells(one: Compared) -> tuple[str, ...]:
    shares = (f"{share.count:,} of {share.rows:,} ({write_percent(share.value)})" for share in (one.first, one.second))
    return *shares, write_points(one.difference.value), write_points_interval(one.difference)


def show_side_by_side(summary: ReportSummary) -> Section:
    """Return the numbers of all audits, the rows they share, and shares by segment."""
    head = ("", *(shorten_name(audit.facts.name) for audit in summary.audits))
    facts = zip(*(_list_facts(audit) for audit in summary.audits), strict=True)
    rows = [(same[0][0], *(value for _, value in same)) for same in facts]
    fading = [name for name in summary.measured[0].measures if name.startswith(FADING)]
    for name, words in {**MEASURES, **{name: name.replace("_", " ", 3) for name in fading}}.items():
        if name == "mean_common_loss" or any(name in measured for measured in summary.measured):
            rows.append((words, *(_write_measure(measured, name) for measured in summary.measured)))
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
        columns = ("confident in both", "flip in both", "in the first", "in the second")
        caption = "On the rows that audits share: confident in both, and flipping early"
        blocks.append(Table(caption, ("audits", "shared rows", "same class", *columns), shared))
    blocks.append(Text([_describe_shared_rows(pair) for pair in summary.paired]))
    blocks += [_list_changes(pair) for pair in summary.paired if pair.changed]
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


def _list_facts(audit: AuditNumbers) -> list[tuple[str, str]]:
    """Return facts about an audit that are not measures."""
    sure, pi = audit.confident, audit.protocol
    return [
        ("model", shorten_name(audit.facts.model)),
        ("predictions", f"{audit.facts.rows:,}"),
        ("groups, depth, baseline", f"{len(pi.groups)}, {pi.depth}, {pi.baseline}"),
        ("strongest evidence most often", shorten_name(audit.focus.strongest.name)),
        ("median exposure of confident", f"{sure.exposure.median:.2f}" if sure.exposure else "none confident"),
        ("under other baselines", "not compared" if audit.dependence is None else audit.dependence.short),
    ]


def _write_measure(measured: AuditSummary, name: str) -> str:
    """Return a measure of an audit as text; `>=` marks a share with unsettled predictions."""
    if name not in measured:
        return "no labels" if name == "accuracy" else "-"
    value = measured[name]
    if name in COUNTED:
        return f"{value.count:,}"
    if name == "lost":
        return f"{value.total:.1f}"
    if not value.rows:
        return "-" if name == "mean_smallest_size" else "none confident"
    if not hasattr(value, "count"):
        return f"{value.value:.3f}"
    share = f"{'' if value.exact else '>= '}{value.value:.1%}"
    return f"{value.count:,} ({share})" if name == "confident" else share


def _list_changes(pair: PairedAudits) -> Table:
    """Return a table of the rows that changed between two audits, with the first ids."""
    rows = [(one.words, f"{one.rows:,}", ", ".join(map(shorten_name, one.first))) for one in pair.changed]
    if pair.right is not None:
        now, before = pair.right
        rows += [("of these, right now", f"{now:,}", ""), ("of these, right before", f"{before:,}", "")]
    counted = "over all sets of groups" if pair.by_sets else "along the paths"
    caption = f"From {shorten_name(pair.first)} to {shorten_name(pair.second)}: rows that changed, flips {counted}"
    if not pair.comparable:
        caption += "; the protocols differ, so these counts do not compare the models"
    return Table(caption, ("", "rows", "the first"), rows, wrapped=True)


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


# --- failure modes --------------------------------------------------------------------------------------------

SHOWN_UNITS = 10
SHOWN_SAFE = 10
MEASURE = "are flipped by the failure of one unit with a chance over one half"


def show_modes(audit: AuditNumbers, numbers: ModesNumbers) -> Section:
    """Return the cost of each failure mode for the assessed predictions, and the units that flip most of them."""
    key, heading, noun = "modes", "Evidence that is wrong, not only lost", name_focus(audit)
    opening = (
        "Evidence may not only be missing but also wrong. For each failure mode of the protocol the audit computed how "
        "much margin the failure of one unit of evidence costs a prediction, and how likely the failure flips it."
    )
    blocks: list[PageBlock] = [Text([opening, describe_assessed(audit, numbers)])]
    if not numbers.modes:
        return Section(key, heading, blocks)
    by_name = [(MODE_WORDS[one.mode][0], one) for one in numbers.modes]
    facts = [
        (name.capitalize(), f"{begin_sentence(MODE_MEANINGS[one.mode])}. {describe_found(one)}")
        for name, one in by_name
    ]
    rows = [
        (name, f"{one.exposure.median:.2f}", write_part(one.flips.count, one.flips.rows), write_interval(one.flips))
        for name, one in by_name
    ]
    head = ("failure mode", "median exposure", "flipped by one failure", "95% interval")
    table = Table("What the failure of one unit does", head, rows, wrapped=True)
    shares = draw_shares([(name, one.flips) for name, one in by_name], MEASURE, total=False)
    exposures = [draw_exposure(one, name.capitalize()) for name, one in by_name]
    blocks += [
        Facts(facts),
        Figure([shares], f"Share of the assessed {noun} that {MEASURE}; lines are 95% intervals.", table),
        Figure(exposures, f"How exposed the {noun} are to each mode; the line marks the median.", small=True),
        *(_list_units(one, numbers.rows) for one in numbers.modes if one.units),
    ]
    return Section(key, heading, blocks)


def show_any_value(numbers: AnyValueNumbers) -> Section:
    """Return how many groups must change, to any values, before predictions flip, beside what losing groups does."""
    which = f"all {numbers.rows:,} predictions"
    if numbers.most_exposed is not None:
        which = f"{numbers.rows:,} confident predictions, the most exposed ones"
    opening = (
        f"Every finding above depends on the values that replace lost evidence. This one does not: for {which}, the "
        f"audit searched how many of {numbers.groups} groups must change, to any values of their domains, before the "
        "decision flips. No choice of a baseline can dispute this."
    )
    rows = [(name, write_part(count, numbers.rows), write_part(early, count)) for name, count, early in numbers.budgets]
    head = ("groups that must change", "predictions", "of these flip within two lost groups (k* at most 2)")
    table = Table("How many groups must change before a prediction flips", head, rows, wrapped=True)
    return Section("any-value", "Whatever the value", [Text([opening]), table, *_show_safe(numbers)])


def _show_safe(numbers: AnyValueNumbers) -> list[Text | Table]:
    """Return which groups the predictions do not need, whatever they say."""
    known = [own for own in numbers.safe if own.holds]
    if not known:
        return []
    best = known[0]
    what = f"no value of {best.name}" if best.fields == 1 else f"no values of the {best.fields} fields of {best.name}"
    share = write_percent(best.holds / numbers.rows)
    text = (
        f"Evidence that a prediction does not need, whatever it says: {what} can change {share} of the "
        f"{numbers.rows:,} predictions, all other fields being as they are."
    )
    rows = [
        (
            own.name,
            f"{own.fields:,}",
            write_part(own.holds, numbers.rows),
            write_part(own.flips, numbers.rows),
            f"{numbers.rows - own.holds - own.flips:,}",
        )
        for own in numbers.safe[:SHOWN_SAFE]
    ]
    head = ("group", "fields", "predictions it cannot change", "predictions it can change", "not known")
    more = len(numbers.safe) - len(rows)
    return [Text([text]), Table("What each group alone can change, whatever it says", head, rows, more=more)]


def describe_assessed(audit: AuditNumbers, numbers: ModesNumbers) -> str:
    """Return how many predictions were assessed, and how they were chosen."""
    total, noun = audit.focus.rows, name_focus(audit)
    which = f"all {count_focus(audit, total)}" if total > 1 else f"the one {noun[:-1]}"
    if numbers.most_confident is None:
        return f"Assessed: {which}."
    rule = (
        f"This audit assesses at most {numbers.most_confident:,} predictions that are at least "
        f"{write_percent(audit.protocol.min_confidence)} confident, drawn by a hash of their content, "
        "which is equivalent to a random sample."
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
    units = numbers.units[:SHOWN_UNITS]
    cells = [
        (
            shorten_name(unit.name),
            write_percent(unit.lost),
            Cell(write_percent(unit.flip_chance), draw_share_bar(unit.flip_chance)),
            write_part(unit.flips, rows),
        )
        for unit in units
    ]
    more = f"; the {len(units)} of {len(numbers.units):,} that flip most" if len(numbers.units) > len(units) else ""
    head = ("unit", "expected loss of margin", "mean flip chance", "chance over one half")
    return Table(f"{MODE_WORDS[numbers.mode][0].capitalize()}: what each unit costs{more}", head, cells, sortable=True)


def list_case_modes(case: FragileCase) -> list[str]:
    """Return one sentence per failure mode: how exposed a case is to it, and its weakest unit."""
    sentences = []
    for one in case.modes or ():
        weakest = None if one.weakest is None else shorten_name(one.weakest)
        sentences.append(make_sentence(describe_mode(one.mode, one.exposure, weakest, one.flip_chance)))
    return sentences


def list_case_intervals(case: FragileCase) -> list[str]:
    """Return how far single values of a case may move before the decision flips, the least room first."""
    return (
        [] if case.intervals is None else [make_sentence(sentence) for sentence in describe_intervals(case.intervals)]
    )


def compare_modes(audits: Sequence[AuditNumbers]) -> list[PageBlock]:
    """Return the failure modes that all audits assessed, side by side; empty if there are none."""
    assessed = [() if audit.focus.modes is None else audit.focus.modes.modes for audit in audits]
    by_audit = [{one.mode: one for one in modes} for modes in assessed]
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


# --- the deployed model ---------------------------------------------------------------------------------------

SHOWN_REVEALS = 10
OPENING = (
    "The audit is about one model file. The model in production may be another artefact: a converted file, the file of "
    "a booster, a service. Both predicted the same rows, unchanged and with lost, missing, wrong and noisy evidence, "
    "because converters often agree on clean rows and differ elsewhere."
)


def show_parities(parities: Sequence[ModelParity]) -> Section:
    """Return the comparisons, one after the other."""
    blocks: list[PageBlock] = [Text([OPENING])]
    for one in parities:
        blocks += _show_parity(one)
    return Section("parity", "Is the deployed model the one that was audited?", blocks)


def _show_parity(parity: ModelParity) -> list[PageBlock]:
    verdict = f"{describe_verdict(parity)}."
    blocks: list[PageBlock] = [Text([verdict]) if parity.agrees else Notice(verdict)]
    few = "" if parity.rows == parity.rows_given else f" of {parity.rows_given:,}, those with the smallest digests"
    facts = [
        ("A, the reference", f"{parity.a.name} ({parity.a.kind}), fingerprint {parity.a.fingerprint}"),
        ("B", f"{parity.b.name} ({parity.b.kind}), fingerprint {parity.b.fingerprint}, columns by {parity.b.columns}"),
        ("Rows", f"{parity.rows:,}{few}"),
        ("Tolerance", f"{parity.tolerance:g} in probability; a label that differs within it of a tie is no difference"),
        *(("Note", note) for note in parity.notes),
    ]
    head, *rows = tabulate_kinds(parity)
    caption = f"States of {parity.a.name} and {parity.b.name}"
    blocks += [Facts(facts), Table(caption, head, rows, wrapped=True)]
    if parity.reveals:
        head, *rows = tabulate_reveals(parity, SHOWN_REVEALS)
        blocks.append(Table("What reveals a difference, most labels first", head, rows, wrapped=True))
    example = parity.smallest
    if example is not None:
        entries = [
            ("Smallest example", describe_change(example)),
            ("A", str(example.a)),
            ("B", str(example.b)),
            *([("The row, to paste", example.to_python())] if example.row else []),
        ]
        if example.kind == CLEAN:
            entries[0] = ("Example", describe_change(example))
        blocks.append(Facts(entries))
    return blocks
