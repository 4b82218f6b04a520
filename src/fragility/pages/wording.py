"""Every sentence about a certificate, a probability, a review rule or a condition, with one wording per fact.

Functions take plain values and return text that is not escaped. Reports, notebooks, the command line and the workbench
use these sentences; sentences of the report about a whole audit are in `report/sentences.py`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from fragility.base.shares import Share, ShareDifference
from fragility.base.text import shorten
from fragility.pages.terms import (
    ATTAINED,
    BRACKETED,
    LOSS_NAMES,
    MINIMUM,
    MISSING,
    MODE_WORDS,
    NONE_AT_ALL,
    NOT_SEARCHED,
    NOT_WHOLE,
    UNLISTED,
)

SHOWN_DIGITS = 6

ONE_WAY = "the path is only one way to lose it"
RARE = 1e-4  # probabilities below it are "practically never"
FEW_CONFIDENT = 30  # confident predictions; shares of fewer are not informative
SHOWN_FIELDS = 3  # names of a list in the middle of a sentence
SHOWN_LOSSES = 2  # a sentence names the replacements of a lost group with at most this many fields
LONGEST_NAME = 80  # long enough for an id that is a SHA-256 digest
# --- numbers and names --------------------------------------------------------------------------------------


def write_percent(share: float) -> str:
    """Return a share in percent; only small shares have a decimal."""
    if math.isnan(share):
        return "none"
    return (f"{share:.1%}" if 0 < abs(share) < 0.0995 else f"{share:.0%}").replace(".0%", "%")


def write_part(count: int, rows: int) -> str:
    """Return `12 (30%)`."""
    return f"{count:,} ({write_percent(count / rows)})" if rows else f"{count:,}"


def write_count(count: int, noun: str, plural: str | None = None) -> str:
    """Return `1 row` or `2 rows`."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def write_interval(share: Share) -> str:
    """Return `20% to 30%`."""
    return f"{write_percent(share.lower)} to {write_percent(share.upper)}"


def write_known(share: Share) -> str:
    """Return `25%`, or `at least 25%` if some rows are unsettled."""
    return f"{'' if share.exact else 'at least '}{write_percent(share.value)}"


def write_known_part(share: Share) -> str:
    """Return `12 (30%)`, or `at least 12 (30%)` if some rows are unsettled."""
    return f"{'' if share.exact else 'at least '}{write_part(share.count, share.rows)}"


def write_share(share: Share) -> str:
    """Return `25% (95% interval 20% to 30%)`, or `at least 25% (...)` if some rows are unsettled."""
    return f"{write_known(share)} (95% interval {write_interval(share)})" if share.rows else "no rows"


def write_early(early: Share, noun: str, which: str = "") -> str:
    """Return `at least 12 of 40 predictions flip early, 30% (95% interval 18% to 45%)`.

    noun: the singular. which: a suffix, such as ` with housing free`.
    """
    least = "" if early.exact else "at least "
    share = f"{write_percent(early.value)} (95% interval {write_interval(early)})"
    verb = "flips" if early.rows == 1 else "flip"
    return f"{least}{early.count:,} of {write_count(early.rows, noun)}{which} {verb} early, {share}"


def describe_counting(early: Share, on_path: int) -> str:
    """Return a sentence on how early flips were counted: over all pairs of groups, or partly along the path only.

    on_path: how many of them the path finds.
    """
    if early.exact:
        on_paths = "all" if on_path == early.count else f"{on_path:,}"
        return f"All pairs of groups count; the path, the strongest group first, finds {on_paths} of them."
    path = "" if on_path == early.count else f" (the path finds {on_path:,} of them)"
    return (
        f"For {write_count(early.unsettled, 'other')} not every pair of groups was tried, so the number may be "
        f"larger{path}."
    )


def describe_early(early: Share, noun: str, on_path: int) -> str:
    """Return how many predictions flip early, what that means and how they were counted, in sentences."""
    text = begin_sentence(write_early(early, noun))
    return f"{text}: they change when one or two groups of evidence are lost. {describe_counting(early, on_path)}"


def describe_holding(holds: Share) -> str:
    """Return how many predictions hold whatever groups are lost; no full stop."""
    return f"{write_known_part(holds)} {'holds' if holds.count == 1 else 'hold'} whatever groups are lost"


def write_points(difference: float) -> str:
    """Return a difference of shares in percentage points."""
    return "none" if math.isnan(difference) else f"{100 * difference:+.1f} points"


def write_points_interval(difference: ShareDifference) -> str:
    """Return the ends of a difference's interval in percentage points."""
    return f"{100 * difference.lower:+.1f} to {100 * difference.upper:+.1f}"


def write_difference(difference: ShareDifference) -> str:
    """Return `+2.0 points (95% interval +1.0 to +3.0)`."""
    return f"{write_points(difference.value)} (95% interval {write_points_interval(difference)})"


def join_names(names: Sequence[str], most: int | None = None) -> str:
    """Return `a, b and c`; names beyond ``most`` are counted."""
    if most is not None and len(names) > most:
        return f"{', '.join(names[:most])} and {len(names) - most} more"
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def begin_sentence(text: str) -> str:
    """Return a text with a capital letter at its beginning."""
    return text[:1].upper() + text[1:]


def make_sentence(text: str) -> str:
    """Return a text with a capital letter at its beginning and a full stop at its end."""
    return f"{begin_sentence(text)}."


def shorten_name(name: object) -> str:
    """Return a name from data, shortened if it is long."""
    return shorten(name, LONGEST_NAME)


# --- how far a value may move -------------------------------------------------------------------------------


def describe_stability(
    field: str, value: object, state: str, ends: tuple[object, object], flips: tuple[object | None, object | None]
) -> str:
    """Return how far a number or date may move before the decision flips.

    ends: low and high of the interval. flips: the nearest values below and above that flip it, or None.
    """
    if reason := _describe_no_interval(field, state):
        return reason
    if flips == (None, None):
        return f"no value of {field} {'tried' if state == BRACKETED else 'in training'} flips it"
    (low, high), (below, above) = (write_end(ends[0], up=True), write_end(ends[1], up=False)), flips
    if below is None:
        where = f"at most {high}"
    else:
        where = f"at least {low}" if above is None else f"between {low} and {high}"
    text = f"stable while {field} is {where} (now {write_end(value)})"
    if state != BRACKETED:
        return text
    flip_values = " and ".join(write_end(flip) for flip in flips if flip is not None)
    return f"{text}, as far as tried; it flips at {flip_values}"


def describe_flipping_categories(field: str, value: object, state: str, flips: Sequence[object]) -> str:
    """Return which categories of a nominal field flip the decision."""
    if reason := _describe_no_interval(field, state):
        return reason
    if not flips:
        return f"no listed value of {field} flips it"
    return f"flips if {field} is {' or '.join(repr(flip) for flip in flips)} (now {value!r})"


def describe_other_fields(more: int, cannot: int, as_tried: int, unknown: int) -> str:
    """Summarise the fields whose stability intervals are not described one by one.

    more: the number of fields that can flip the decision alone. cannot: fields that cannot, by any value of their
    training range or any listed category. as_tried: fields that did not at any value that was tried. unknown: fields
    without an interval, such as missing ones.
    """
    parts = [f"{write_count(more, 'more field')} can flip it alone"] if more else []
    if cannot:
        its = "its" if cannot == 1 else "their"
        parts.append(
            f"{write_count(cannot, 'field')} cannot flip it alone within {its} training range or listed categories"
        )
    parts += [f"{write_count(as_tried, 'field')} did not flip it alone at any value that was tried"] if as_tried else []
    parts += [f"{write_count(unknown, 'field has', 'fields have')} no stable interval"] if unknown else []
    return "; ".join(parts) or "each field can flip it alone"


def describe_turns(flips: Sequence[tuple[object, object]]) -> str:
    """Return `flips to 'bad' at 28`, given values and the class predicted at each; empty without any."""
    by_class: dict[object, list[str]] = {}
    for value, label in flips:
        by_class.setdefault(label, []).append(write_end(value))
    return "; ".join(f"flips to {label!r} at {join_names(values)}" for label, values in by_class.items())


def _describe_no_interval(field: str, state: str) -> str | None:
    return {
        MISSING: f"{field} is missing, so it has no stable interval",
        NOT_WHOLE: f"{field} is not whole, as in training, so it has no stable interval",
        UNLISTED: f"the protocol lists no values of {field}",
    }.get(state)


def write_end(value: object, *, up: bool | None = None) -> str:
    """Return an end of an interval; long decimals are rounded up or down so that they stay inside the interval."""
    if not isinstance(value, float):
        return f"{value}"
    short = f"{value:.{SHOWN_DIGITS}g}"
    if up is None or float(short) == value or not math.isfinite(value):
        return short
    unit = 10.0 ** (math.floor(math.log10(abs(value))) - SHOWN_DIGITS + 1)
    return f"{(math.ceil if up else math.floor)(value / unit) * unit:.{SHOWN_DIGITS}g}"


# --- one prediction -----------------------------------------------------------------------------------------


def describe_prediction(
    predicted: object,
    confidence: float,
    path: Sequence[str],
    flip_budget: int | None,
    flips_to: object | None,
    smallest: Sequence[str],
    state: str | None,
    thresholds: Iterable[float | None],
    unmoved: Collection[str] = (),
) -> str:
    """Return what was predicted, how surely, and what it takes to flip it.

    flip_budget, flips_to: None if the path does not flip it, or if the class is unknown.
    smallest, state: the smallest failing set known and how far it is proved; empty and None without a search.
    thresholds: the severities at which weakened evidence flips it, or None.
    unmoved: groups of the path whose values equal their replacements, so that losing them changes nothing.
    """
    opening = f"{predicted!r} at {confidence:.0%}"
    if not path:
        return f"{opening}, and nothing is left to lose: every field is missing"
    removals = f"the path of {len(path)} removals" if len(path) != 1 else "its one removal"
    fewer = smallest if smallest and (flip_budget is None or len(smallest) < flip_budget) else ()
    unsearched = state is None or state == NOT_SEARCHED
    if flip_budget is not None:
        flips = "it flips" if flips_to is None else f"it flips to {flips_to!r}"
        lost = path[:flip_budget]
        still = [name for name in lost if name in unmoved]
        text = f"{opening}, but without {join_names([name for name in lost if name not in unmoved] or lost)} {flips}"
        if 0 < len(still) < len(lost):
            text += f"; {join_names(still)} {'stays as it is' if len(still) == 1 else 'stay as they are'}"
        if fewer:
            return f"{text}; the loss of {join_names(fewer)} is enough"
        # The first step of the path tries every group alone, so if two flip it, no single group does.
        return f"{text}; {ONE_WAY}, and fewer groups may be enough" if unsearched and flip_budget > 2 else text
    if fewer:
        return f"{opening}, but without {join_names(fewer)} it flips, which {removals} does not show"
    weakest = min((severity for severity in thresholds if severity is not None), default=None)
    weakened = "" if weakest is None else f", but evidence weakened by {weakest:.0%} does"
    if state == NONE_AT_ALL:
        return f"{opening}, and no loss of whole groups flips it{weakened}"
    text = f"{opening}, and {removals} does not flip it{weakened}"
    return f"{text}; {ONE_WAY}" if unsearched else text


def name_lost(group: str, values: Sequence[tuple[str, str | None, str]]) -> str:
    """Return `duration (48 → 20.9)`, a lost group with its replacement; without it if the group has many fields.

    values: the name, value and replacement of each field. The value is None if unknown, as in `duration (→ 20.9)`.
    """
    changes = []
    for field, value, becomes in values:
        change = f"→ {shorten_name(becomes)}" if value is None else describe_replacement(value, becomes)
        changes.append(change if field == group else f"{shorten_name(field)} {change}")
    return f"{shorten_name(group)} ({', '.join(changes)})" if 0 < len(changes) <= SHOWN_LOSSES else shorten_name(group)


def name_lost_groups(
    groups: Iterable[str], becomes: Mapping[str, Sequence[tuple[str, str]]], missing: Collection[str]
) -> list[str]:
    """Return `duration (→ 20.9)` for each group, without the values of the row.

    becomes: the fields of each group with their replacements. missing: fields without a value, which do not change.
    """
    return [
        name_lost(group, [(f, None, to) for f, to in becomes.get(group, ()) if f not in missing]) for group in groups
    ]


def describe_replacement(value: str, becomes: str) -> str:
    """Return `48 → 20.9`, or that the value equals its replacement."""
    value, becomes = shorten_name(value), shorten_name(becomes)
    return f"{value}, already its replacement" if value == becomes else f"{value} → {becomes}"


def describe_missing(fields: Sequence[str]) -> str | None:
    """Return `already missing: age and purpose`, the fields without a value; None if there are none."""
    return f"already missing: {join_names(list(fields), SHOWN_FIELDS)}" if fields else None


def describe_smallest(state: str, groups: Sequence[str], count: int | None, flip_budget: int | None) -> str:
    """Return `duration and purpose; no smaller set flips it; 3 sets of 2 groups flip it; the path needs 4`.

    flip_budget: None if the path does not flip the prediction.
    """
    if not groups:
        return state
    parts = [join_names(groups)]
    parts.append("no smaller set flips it" if state == MINIMUM else "it is not settled whether a smaller set flips it")
    if count is not None and count > 1:
        sets = "single groups" if len(groups) == 1 else f"sets of {len(groups)} groups"
        parts.append(f"{count:,} {sets} flip it")
    if flip_budget is None:
        parts.append("the path does not flip it")
    elif len(groups) < flip_budget:
        parts.append(f"the path needs {flip_budget}")
    return "; ".join(parts)


def describe_losses(
    targeted: float, independent: float, random: float, common: float | None, strongest: str | None
) -> list[tuple[str, str]]:
    """Return how much of the margin each kind of loss costs.

    common: None if evidence does not fade; strongest: None if no evidence is left to lose.
    """
    cost = f"{independent:.0%} of the margin" if independent < 1.0 else f"{independent:.1f} times the margin"
    losses = {
        "targeted": f"{targeted:.0%} of the margin lost along the path, on average",
        "independent": f"losing one group at a time costs {cost} in total",
    }
    if strongest is not None:
        losses["independent"] += f"; {strongest} costs the most"
    losses["random"] = f"{random:.0%} of the margin lost as every group fails at random, on average"
    if common is not None:
        losses["common"] = f"{common:.0%} of the margin lost as all evidence fades, on average"
    return [(LOSS_NAMES[way], text) for way, text in losses.items()]


def describe_mode(mode: str, exposure: float, unit: str | None, chance: float) -> str:
    """Return `exposure to wrong values 0.41; a wrong checking_status flips it with probability 0.62`.

    "Exposure" alone always means the score over all ways of losing evidence, so this one names its mode.

    unit, chance: the unit most likely to flip the prediction if it fails, and its probability; None without units.
    """
    mode_name = MODE_WORDS[mode][0]
    if unit is None:
        return f"{mode_name}: no evidence can fail in this way"
    weakest = "none of them alone flips it" if chance <= 0.0 else describe_flip(mode, unit, chance)
    return f"exposure to {mode_name} {exposure:.2f}; {weakest}"


def describe_flip(mode: str, unit: str, chance: float) -> str:
    """Return `a wrong checking_status flips it with probability 0.62`."""
    failed = MODE_WORDS[mode][1].format(unit)
    if chance <= 0.0 or chance >= 1.0:
        return f"{failed} {'never' if chance <= 0.0 else 'always'} flips it"
    likely = f"{chance:.2f}" if 0.005 <= chance < 0.995 else "below 0.01" if chance < 0.5 else "above 0.99"
    return f"{failed} flips it with probability {likely}"


def describe_operator(operator: str) -> str:
    """Return which groups an operator weakens."""
    if operator == "attenuate_all":
        return "all groups together"
    width = operator.removeprefix("attenuate_top")
    return "the strongest group alone" if width == "1" else f"the {width} strongest groups"


def describe_threshold(severity: float | None) -> str:
    """Return lambda* in words."""
    return "no severity flips it" if severity is None else f"flips at severity {severity:g}"


def describe_curve(row: object, sentence: str) -> str:
    """Return the text of a margin curve for screen readers."""
    return f"The margin of row {row} as its strongest groups are removed: {sentence}"


# --- probabilities and conditions ---------------------------------------------------------------------------


def describe_chance(probability: float, exact: bool = True) -> str:
    """Return `lost in 1 of 8 cases`; an estimated probability of 0 reads "practically never"."""
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


def describe_failure(probability: float, condition: str, interval: tuple[float, float] | None) -> str:
    """Return `lost in 1 of 8 cases if each field is missing 5% of the time`; interval: None if it is exact."""
    chance = f"{describe_chance(probability, interval is None)} {condition}"
    return chance if interval is None else f"{chance} (95% interval {interval[0]:.2%} to {interval[1]:.2%})"


def describe_change(
    fields: Sequence[str], probability: float, interval: tuple[float, float] | None, changes_to: object | None
) -> str:
    """Return `knowing income would change the decision with probability 12.5%, to 'bad'`, and what that rests on.

    interval: None if exact.
    """
    knowing = f"knowing {join_names(fields)}"
    if changes_to is None:
        if interval is None:
            return f"{knowing} would not change the decision"
        return f"{knowing} would hardly change the decision (95% interval 0% to {write_percent(interval[1])})"
    likely = write_percent(probability)
    if interval is not None:
        likely += f" (95% interval {write_percent(interval[0])} to {write_percent(interval[1])})"
    text = f"{knowing} would change the decision with probability {likely}, to {changes_to!r}"
    return f"{text}, as long as being unknown does not depend on the value"


def describe_standins(values: Mapping[str, object]) -> str:
    """Return `the model has no answer without purpose, so its baseline 'radio/tv' stands in`."""
    names = [*values]
    if len(names) == 1:
        return f"the model has no answer without {names[0]}, so its baseline {values[names[0]]!r} stands in"
    listed = join_names([f"{value!r} for {name}" for name, value in values.items()])
    return f"the model has no answer without {join_names(names)}, so their baselines stand in: {listed}"


def describe_acquire(field: str, reduction: float, probability: float) -> str:
    """Return `fetch income first: with it, the probability of a change is expected to fall from 12% to 3%`."""
    falls = f"fall from {write_percent(probability)} to {write_percent(max(probability - reduction, 0.0))}"
    return f"fetch {field} first: with it, the probability of a change is expected to {falls}"


def describe_rates(rates: Sequence[float], thing: str) -> str:
    """Return `if each field is missing 5% of the time`."""
    if len(set(rates)) == 1:
        return f"if each {thing} is missing {100.0 * rates[0]:.4g}% of the time"
    return "at the declared rates"


def describe_mode_rates(lost: Sequence[float], wrong: Sequence[float], thing: str) -> str:
    """Return `if each field is missing 2% and wrong 0.5% of the time`."""
    if len(set(lost)) == len(set(wrong)) == 1:
        return f"if each {thing} is missing {100.0 * lost[0]:.4g}% and wrong {100.0 * wrong[0]:.4g}% of the time"
    return "at the declared rates of missing and wrong values"


def describe_single_failures(lost: float) -> str:
    """Return how many of the expected losses are due to one failure alone."""
    return f"{lost:,.1f} of them are lost by a single failure, which is exact."


def describe_events(events: int) -> str:
    """Return the condition that one of the recorded outages occurs."""
    return f"when one of {events} recorded outages strikes"


def describe_expected_loss(lost: float, rows: int, exact: int, condition: str) -> str:
    """Return how many decisions are expected to be lost; exact: the number of rows with an exact probability."""
    how = "exact for every row" if exact == rows else f"exact for {exact:,} rows, the others by quasi-random subsets"
    return f"{lost:,.1f} of {rows:,} decisions ({lost / max(rows, 1):.1%}) are expected to be lost {condition}; {how}."


def describe_first_group(group: str, kept: float, lost: float) -> str | None:
    """Return which group to make reliable first; None if that would keep no decision."""
    if kept <= 0.0:
        return None
    share = f"{kept:,.1f} of the {lost:,.1f} would be kept ({kept / lost:.0%})"
    return f"Make {group} reliable first: if it never failed, {share}."


# --- baselines and review rules -----------------------------------------------------------------------------


def describe_artificial(baseline: str, fields: Sequence[str]) -> str:
    """Return `for 9 nominal fields (job, marital, ...) the baseline mean is a value that no training row has`."""
    names = f"{', '.join(fields[:SHOWN_FIELDS])}{', ...' if len(fields) > SHOWN_FIELDS else ''}"
    if baseline == "missing":
        count = write_count(len(fields), "field")
        return f"{count} ({names}) had no missing value in training, so the model has never seen one there"
    count = write_count(len(fields), "nominal field")
    return f"for {count} ({names}) the baseline {baseline} is a value that no training row has"


def describe_few_confident(confident: int, rows: int, min_confidence: float) -> str | None:
    """Return a warning that too few predictions are confident for informative shares; None if there are enough."""
    if confident >= FEW_CONFIDENT or confident == rows:
        return None
    few = f"only {confident:,} of {write_count(rows, 'prediction')}" if confident else f"none of {rows:,} predictions"
    verb = "is" if confident < 2 else "are"
    return (
        f"{few} {verb} at least {write_percent(min_confidence)} confident, too few to judge the model by; an audit "
        "with a lower limit (--min-confidence, min_confidence of the protocol) counts more"
    )


def name_score(by: str) -> str:
    """Return `exposure to wrong values` for a failure mode; other scores have their own name."""
    return f"exposure to {MODE_WORDS[by][0]}" if by in MODE_WORDS else by


def describe_unscored(count: int, by: str) -> str:
    """Return how a review policy treats predictions without its score; count: labelled predictions without it."""
    lacked = f"{write_count(count, 'labelled confident prediction')} had none and did not take part"
    return f"Predictions without a figure for {name_score(by)} are reviewed; {lacked}."


def describe_rule(
    rule: Mapping[str, Any], among: str, by: str, risk: float, confidence: float, defect: str = "brittle"
) -> str:
    """Return one rule of a review policy.

    rule: the fields of a `ReviewRule`; an infinite threshold (None in JSON) reviews nothing.
    among: the predictions it is about; by: the score that orders them; defect: what the review is to detect.
    """
    promise = f"at most {write_percent(risk)} {{}} are {defect}, with probability {confidence:.0%}"
    if rule["state"] != ATTAINED:
        needed = rule["rows_needed"]
        rows = write_count(rule["rows"], "labelled row")
        more = "no number of rows would suffice" if needed is None else f"about {needed:,} would be needed"
        return (
            f"Review all {among}: ranked by {name_score(by)}, a rate of at most {write_percent(risk)} {defect} among "
            f"the unreviewed is not attainable with {rows}; {more} at the rate observed."
        )
    counts = f"{rule['unreviewed_brittle']:,} of {rule['unreviewed']:,} labelled rows"
    bound = f"(bound {rule['bound']:.2%} from {counts})"
    if rule["threshold"] is None or math.isinf(rule["threshold"]):
        return f"None of the {among} need review: {promise.format('of them')} {bound}."
    score = f"{name_score(by)} of at least {rule['threshold']:.4g}"
    if by == "confidence":  # the least confident are reviewed first: the score is minus the confidence
        score = f"a confidence of at most {-rule['threshold']:.4g}"
    which = f"the {write_percent(rule['review_share'])} of {among} with {score}"
    return f"Review {which}: {promise.format('of the rest')} {bound}."


def describe_choice(by: str, tried: Sequence[str]) -> str:
    """Return which score a review policy uses, if it was chosen among several."""
    listed = join_names([name_score(name) for name in tried])
    return f"Ranked by {name_score(by)}, which of {listed} needs the least review; the guarantee allows for the choice."


def describe_other_scores(attained: Sequence[tuple[str, float]], tried: Sequence[str]) -> str:
    """Return which other scores support a review policy if the requested one does not.

    attained: their names and the shares that they send to review; tried: the names of all scores tried.
    """
    if not attained:
        return f"Nor is it by any other score that was tried: {join_names(list(tried))}."
    listed = ", ".join(f"{name_score(name)} (review {write_percent(share)})" for name, share in attained)
    return f"It is attainable by another score: {listed}."


def describe_guarantee(defect: str = "brittle", stressors: Sequence[str] = ()) -> str:
    """Return the scope of a review policy's guarantee; stressors: their names, if the labels declare them."""
    names = f" ({', '.join(stressors)})" if stressors else ""
    stress = f" and for the declared stress{names}" if defect == "brittle" else ""
    return f"Holds for rows drawn like the labelled ones{stress}; it says nothing of other populations or failures."
