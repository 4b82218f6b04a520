"""Words that searches, certificates and reports share: how far a smallest set is proved, and how likely a loss is."""

from __future__ import annotations

from collections.abc import Sequence

MINIMUM = "minimum"
UPPER_BOUND = "upper bound"
NONE_AT_ALL = "none at all, proved"
UNDECIDED = "not decided"
NOT_SEARCHED = "not searched"
RARE = 1e-4
SHOWN = 3  # names of a list in the middle of a sentence


def none_up_to(size: int) -> str:
    return f"none up to {size}, proved"


def and_words(names: Sequence[str]) -> str:
    """`a, b and c`."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


ONE_WAY = "the path is only one way to lose it"


def flips_in_words(
    path: Sequence[str],
    flip_budget: int | None,
    flips_to: str | None,
    smallest: Sequence[str],
    state: str | None,
    weakest: float | None,
) -> str:
    """Return what it takes to flip a prediction, to follow on what was predicted.

    path: the groups in order of removal; the first ``flip_budget`` of them flip it, None: all of them do not.
    smallest, state: the smallest failing set known and how far it is proved; empty and None where nothing was searched.
    weakest: the mildest weakening of evidence that flips it; None: none does.
    """
    removals = f"the path of {len(path)} removals" if len(path) != 1 else "its one removal"
    fewer = smallest if smallest and (flip_budget is None or len(smallest) < flip_budget) else ()
    unsearched = state is None or state == NOT_SEARCHED
    if flip_budget is not None:
        told = f", but without {and_words(path[:flip_budget])} it flips{'' if flips_to is None else f' to {flips_to}'}"
        if fewer:
            return f"{told}; the loss of {and_words(fewer)} is enough"
        # Each group was removed alone, so where two flip it no single one does.
        return f"{told}; {ONE_WAY}, and fewer groups may do" if unsearched and flip_budget > 2 else told
    if fewer:
        return f", but without {and_words(fewer)} it flips, which {removals} does not show"
    weakened = "" if weakest is None else f", but evidence weakened by {weakest:.0%} does"
    if state == NONE_AT_ALL:
        return f", and no loss of whole groups flips it{weakened}"
    told = f", and {removals} does not flip it{weakened}"
    return f"{told}; {ONE_WAY}" if unsearched else told


def artificial_in_words(baseline: str, fields: Sequence[str]) -> str:
    """`for 9 nominal fields (job, marital, ...) the baseline mean is a value that no training row has`."""
    shown = f"{', '.join(fields[:SHOWN])}{', ...' if len(fields) > SHOWN else ''}"
    noun = "field" if len(fields) == 1 else "fields"
    if baseline == "missing":
        return f"{len(fields)} {noun} ({shown}) had no missing value in training: the model has never seen one there"
    return f"for {len(fields)} nominal {noun} ({shown}) the baseline {baseline} is a value that no training row has"


def chance_in_words(probability: float, exact: bool = True) -> str:
    """`lost in 1 of 8 cases`; a probability of 0 that is only an estimate is not called never."""
    if probability <= 0.0:
        return "never lost" if exact else "practically never lost"
    if probability >= 1.0:
        return "always lost" if exact else "practically always lost"
    if probability < RARE:
        return f"practically never lost (in fewer than 1 of {round(1 / RARE):,} cases)"
    if probability > 1.0 - RARE:
        return f"practically always lost (in all but fewer than 1 of {round(1 / RARE):,} cases)"
    if probability <= 0.35:
        return f"lost in 1 of {round(1.0 / probability):,} cases"
    if probability < 0.95:
        return f"lost in {round(10 * probability)} of 10 cases"
    return f"lost in all but 1 of {round(1.0 / (1.0 - probability)):,} cases"


def share_in_words(rate: float) -> str:
    return f"{100.0 * rate:.4g}% of the time"


def rates_in_words(rates: Sequence[float], thing: str) -> str:
    """`if each field is missing 5% of the time`."""
    if len(set(rates)) == 1:
        return f"if each {thing} is missing {share_in_words(rates[0])}"
    return "at the declared rates"


def lost_in_words(lost: float, rows: int, exact: int, condition: str) -> str:
    """How many of so many decisions are expected to be lost; exact: for how many rows that is exact."""
    how = "exact for every row" if exact == rows else f"exact for {exact:,} rows, the others by quasi-random subsets"
    return f"{lost:,.1f} of {rows:,} decisions ({lost / max(rows, 1):.1%}) are expected to be lost {condition}; {how}."


def first_in_words(group: str, kept: float, lost: float) -> str | None:
    """Which group to make reliable first; None where that would keep no decision."""
    if kept <= 0.0:
        return None
    share = f"{kept:,.1f} of the {lost:,.1f} would be kept ({kept / lost:.0%})"
    return f"Make {group} reliable first: if it never failed, {share}."


def events_in_words(events: int) -> str:
    return f"when one of {events} recorded outages strikes"
