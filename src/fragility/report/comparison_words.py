"""The sentences about audits side by side."""

from __future__ import annotations

from fragility.comparability import list_differences
from fragility.report.phrases import brief, counted, difference_told, of, percent
from fragility.report.summary import PairedAudits

COMPARED = {
    "early": "confident predictions that flip early",
    "after_one": "confident predictions that flip after one group",
    "confident_early": "predictions that are confident and flip early",
    "confident": "predictions that are confident",
}


def pairing(pair: PairedAudits) -> str:
    """Return which rows two audits are compared on."""
    if not pair.shared:
        return "no row in common, so each audit's own rows (Newcombe's interval)"
    return f"{counted(pair.shared, 'shared row')}, {pair.both_confident:,} confident in both (Tango's paired interval)"


def compared_headline(pair: PairedAudits) -> str:
    """Return which of two audits flips early more often, with the difference."""
    early = next(one for one in pair.compared if one.measure == "early")
    if not early.first.rows or not early.second.rows:
        return f"{brief(pair.second)} and {brief(pair.first)} have no confident predictions to compare."
    rows = f"Of {counted(pair.both_confident, 'row')} confident in both" if pair.shared else "Of their confident rows"
    shares = f"{percent(early.second.value)} against {percent(early.first.value)} flip early"
    told = f"{rows}, {shares}: {difference_told(early.difference)}"
    if not pair.comparable:
        return f"{brief(pair.second)} and {brief(pair.first)} do not compare: their protocols differ. {told}."
    names = f"{brief(pair.second)} flips early {{}} often than {brief(pair.first)}."
    if early.difference.lower > 0:
        return f"{names.format('more')} {told}."
    if early.difference.upper < 0:
        return f"{names.format('less')} {told}."
    return f"{brief(pair.second)} and {brief(pair.first)} do not clearly differ. {told}."


def protocols_differ(pair: PairedAudits) -> str | None:
    """Return a warning where two audits were made under different protocols; None where they were not."""
    if not pair.differences:
        return None
    told = f"{brief(pair.second)} has another protocol than {brief(pair.first)}: {list_differences(pair.differences)}."
    if not pair.comparable:
        return f"Not comparable: {told} What differs below may come from the protocol, not from the model."
    if any(one.scales_scores for one in pair.differences):
        return f"{told} RCMA, FDS and exposure are not on the same scale; flips compare."
    return told


def paired_words(pair: PairedAudits) -> str:
    """Return what two audits say about the rows they share."""
    if not pair.shared:
        return f"{pair.first} and {pair.second} share no row, so only their totals can be compared."
    ranks = (
        ""
        if pair.rank_correlation is None
        else f" Their exposures rank rows alike to {pair.rank_correlation:.2f} (Spearman)."
    )
    return (
        f"{pair.first} and {pair.second} share {counted(pair.shared, 'row')} and predict the same class on "
        f"{of(pair.same_class, pair.shared)}. {counted(pair.both_confident, 'row is', 'rows are')} confident in both: "
        f"{pair.flip_in_both:,} flip early in both, {pair.flip_in_first_only:,} only in {pair.first}, "
        f"{pair.flip_in_second_only:,} only in {pair.second}.{ranks}"
    )
