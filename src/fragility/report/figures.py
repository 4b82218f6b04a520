"""The report's pictures: functions from the summary's numbers to SVG text, with a label for screen readers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import astuple

from fragility.base.shares import Share
from fragility.base.text import shorten
from fragility.pages import drawing
from fragility.pages.drawing import (
    ACCENT,
    FLIP,
    FLIP_TEXT,
    LEFT,
    QUIET,
    RIGHT,
    WIDTH,
    LinearScale,
    MarginCurve,
    draw_curve_svg,
)
from fragility.pages.sections import Figure, Table
from fragility.pages.wording import describe_curve, write_interval, write_known_part, write_percent
from fragility.report.sentences import describe_case
from fragility.report.summary import AuditNumbers, FragileCase, Loss, ModeNumbers, Quartiles, ReviewView, SetNumbers

MIDDLE = (LEFT + RIGHT) / 2
SHOWN_STEPS = 10
DENSITIES = (0.16, 0.34, 0.54, 0.76, 1.0)  # opacity of a cell, by how many predictions it holds
CONFIDENCES = ((0.5, "50%"), (0.9, "90%"), (0.99, "99%"), (0.999, "99.9%"))
QUARTERS = [(tick / 4, f"{tick / 4:.0%}") for tick in range(5)]


def show_shares(entries: Sequence[tuple[str, Share]], caption: str) -> Figure:
    """Return shares that flip early as a figure, with their numbers folded."""
    rows = [(name, write_known_part(share), write_interval(share)) for name, share in entries]
    table = Table("The picture in numbers", ("", "flip early", "95% interval"), rows, folded=True)
    return Figure([drawing.draw_shares(entries)], caption, table)


# --- k* and collapse ----------------------------------------------------------------------------------------


def fold_budgets(audit: AuditNumbers, numbers: SetNumbers) -> list[tuple[str, int]]:
    """Return pairs (number of groups, predictions) by the fewest groups known to flip them; long tails are merged.

    The numbers of groups are the same for every set of predictions. The last entry counts the predictions without a
    known failing set.
    """
    last = max((k for k, count in enumerate(audit.everything.fewest, start=1) if count), default=1)
    steps = list(numbers.fewest[: max(last, len(audit.everything.flips_at))])
    entries = [(str(k), count) for k, count in enumerate(steps[:SHOWN_STEPS], start=1)]
    if len(steps) > SHOWN_STEPS:
        entries = [*entries[:-1], (f"{SHOWN_STEPS}+", sum(steps[SHOWN_STEPS - 1 :]))]
    return [*entries, ("none", numbers.none_known)]


def name_unflipped(audit: AuditNumbers) -> str:
    """Return the label of predictions without a known failing set."""
    holds, unknown = audit.everything.holds, audit.everything.none_known
    return "holds whatever is lost" if holds.count == unknown else f"none known ({holds.count:,} of all hold, proved)"


def draw_budgets(audit: AuditNumbers) -> str:
    """Return how many groups it takes to flip a prediction, confident against all."""
    top, bottom = 40.0, 186.0
    sets = [("confident", audit.confident, ACCENT)] if audit.confident.rows else []
    sets.append(("all predictions", audit.everything, QUIET))
    shares = [[count / numbers.rows for _, count in fold_budgets(audit, numbers)] for _, numbers, _ in sets]
    labels = [label for label, _ in fold_budgets(audit, audit.everything)]
    y = LinearScale(0.0, max(0.1, *(value for values in shares for value in values)) * 1.08, bottom, top)
    slot = (RIGHT - LEFT) / len(labels)
    thick = min(slot * 0.8 / len(sets), 22.0)
    marks = drawing.draw_value_axis(y, [(tick, f"{tick:.0%}") for tick in drawing.list_ticks(0.0, y.high)], LEFT, RIGHT)
    for place, label in enumerate(labels):
        middle = LEFT + slot * (place + 0.5)
        marks.append(drawing.draw_text((middle, bottom + 15), label, anchor="middle"))
        for index, (_, _, colour) in enumerate(sets):
            x, value = middle - thick * len(sets) / 2 + index * thick, shares[index][place]
            marks.append(drawing.draw_bar(x + 0.5, y(value), thick - 1, bottom - y(value), colour=colour))
    marks.append(drawing.draw_text((MIDDLE, bottom + 36), "groups lost until the prediction flips", anchor="middle"))
    marks += drawing.draw_legend([(name, colour, "solid") for name, _, colour in sets])
    spoken = "; ".join(
        f"{name}: " + ", ".join(f"{label} {write_percent(v)}" for label, v in zip(labels, values, strict=True))
        for (name, _, _), values in zip(sets, shares, strict=True)
    )
    label = f"Share of predictions by the number of groups lost until they flip. {spoken}"
    return drawing.draw_picture(WIDTH, 236.0, label, marks)


def draw_collapse(curve: Sequence[Quartiles], everything: Sequence[Quartiles] | None) -> str:
    """Return median and quartiles of the margin lost, removal by removal; `everything` is drawn for comparison."""
    top, bottom, last = 34.0, 186.0, len(curve) - 1
    y, x = LinearScale(0.0, 1.0, bottom, top), LinearScale(0, last, LEFT + 8, RIGHT - 8)
    marks = drawing.draw_value_axis(y, QUARTERS, LEFT, RIGHT) + _draw_quartiles(curve, x, y)
    legend = [("median", ACCENT, "solid"), ("middle half", ACCENT, "faint")]
    if everything is not None:
        medians = [(x(step), y(min(quartiles.median, 1.0))) for step, quartiles in enumerate(everything)]
        marks.append(drawing.draw_polyline(medians, colour=QUIET, dashed=True))
        legend.append(("median of all predictions", QUIET, "dashed"))
    steps = range(0, last + 1, max(1, math.ceil(last / 10)))
    marks += drawing.draw_place_axis(x, [(step, str(step)) for step in steps], bottom)
    marks.append(drawing.draw_text((MIDDLE, bottom + 36), "groups removed, strongest first", anchor="middle"))
    marks += drawing.draw_legend(legend)
    label = f"Median share of the margin lost, by groups removed. {_list_medians(curve)}"
    return drawing.draw_picture(WIDTH, 230.0, label, marks)


def draw_class_curve(name: str, rows: int, curve: Sequence[Quartiles]) -> str:
    """Return a small picture of one class's collapse."""
    left, right, top, bottom = 42.0, 202.0, 26.0, 106.0
    y, x = LinearScale(0.0, 1.0, bottom, top), LinearScale(0, len(curve) - 1, left + 4, right - 4)
    marks = drawing.draw_value_axis(y, QUARTERS[::2], left, right) + _draw_quartiles(curve, x, y)
    steps = [0, (len(curve) - 1) // 2, len(curve) - 1] if len(curve) > 4 else range(len(curve))
    marks += drawing.draw_place_axis(x, [(step, str(step)) for step in steps], bottom)
    marks.append(drawing.draw_text((left, 14), f"{shorten(name, 16)} ({rows:,})", bold=True))
    label = f"Class {name}, {rows} predictions: median share of the margin lost. {_list_medians(curve)}"
    return drawing.draw_picture(208.0, 126.0, label, marks)


def _draw_quartiles(curve: Sequence[Quartiles], x: LinearScale, y: LinearScale) -> list[str]:
    lower, median, upper = (
        [(x(step), y(min(getattr(quartiles, name), 1.0))) for step, quartiles in enumerate(curve)]
        for name in ("lower", "median", "upper")
    )
    return [drawing.draw_band(upper, lower), drawing.draw_polyline(median, width=2.4)]


def _list_medians(curve: Sequence[Quartiles]) -> str:
    return ", ".join(f"{step}: {write_percent(quartiles.median)}" for step, quartiles in enumerate(curve))


def draw_loss(loss: Loss, name: str) -> str:
    """Return the distribution of a loss over the predictions, with its median."""
    open_ended = loss.top > 1.0
    lower, median, upper = (
        f"{loss.top:.0%} or more" if value >= loss.top and open_ended else write_percent(value)
        for value in (loss.quartiles.lower, loss.quartiles.median, loss.quartiles.upper)
    )
    label = (
        f"{name}: of {sum(loss.histogram)} predictions the median loses {median} of the margin, a quarter at most "
        f"{lower}, a quarter at least {upper}; {loss.half} lose half or more."
    )
    ticks = [f"{share * loss.top:.0%}" for share in (0.0, 0.5, 1.0)]
    ticks[-1] += "+" if open_ended else ""
    place = min(loss.quartiles.median / loss.top, 1.0)
    marks = _draw_histogram(name, f"median {median}", loss.histogram, place, ticks, open_ended=open_ended)
    return drawing.draw_picture(212.0, 136.0, label, marks)


def draw_exposure(numbers: ModeNumbers, name: str) -> str:
    """Return the distribution of the exposure to one failure mode over the predictions, with its median."""
    lower, median, upper = (f"{value:.2f}" for value in astuple(numbers.exposure))
    label = (
        f"{name}: of {sum(numbers.histogram)} predictions the median exposure is {median}, of a quarter it is at most "
        f"{lower}, of a quarter at least {upper}."
    )
    note, ticks = f"median exposure {median}", ["0", "0.5", "1"]
    marks = _draw_histogram(name, note, numbers.histogram, numbers.exposure.median, ticks)
    marks.append(drawing.draw_text((106.0, 147.0), "exposure to the mode", anchor="middle"))
    return drawing.draw_picture(212.0, 152.0, label, marks)


def _draw_histogram(
    name: str, note: str, counts: Sequence[int], median: float, ticks: Sequence[str], *, open_ended: bool = False
) -> list[str]:
    """Return a small histogram from 0 to 1, with its median marked and a tick at both ends and the middle."""
    left, right, top, bottom = 8.0, 204.0, 46.0, 116.0
    x, y, width = (
        LinearScale(0.0, 1.0, left, right),
        LinearScale(0, max(counts), bottom, top),
        (right - left) / len(counts),
    )
    marks = [
        drawing.draw_text((left, 14), name, bold=True, size=12),
        drawing.draw_text((left, 30), note, colour="var(--muted, currentColor)"),
    ]
    for place, count in enumerate(counts):
        colour = QUIET if open_ended and place == len(counts) - 1 else ACCENT
        marks.append(
            drawing.draw_bar(left + place * width + 0.5, y(count), width - 1, bottom - y(count), colour=colour)
        )
    marks.append(drawing.draw_line((left, bottom), (right, bottom), colour=QUIET))
    marks.append(drawing.draw_line((x(median), top - 6), (x(median), bottom), colour=FLIP, width=2))
    for share, anchor, text in zip((0.0, 0.5, 1.0), ("start", "middle", "end"), ticks, strict=True):
        marks.append(drawing.draw_text((x(share), bottom + 15), text, anchor=anchor))
    return marks


# --- confidence against exposure ----------------------------------------------------------------------------


def draw_density(audit: AuditNumbers) -> str:
    """Return confidence against exposure as a density, with the exposed corner marked."""
    density = audit.density
    top, bottom = 34.0, 282.0
    x, y = LinearScale(0.0, density.right, LEFT, RIGHT), LinearScale(0.0, 1.0, bottom, top)
    width, height = (RIGHT - LEFT) / density.columns, (bottom - top) / density.lines
    marks = drawing.draw_value_axis(y, [(tick / 4, f"{tick / 4:.2g}") for tick in range(5)], LEFT, RIGHT)
    if audit.confident.rows:
        marks += _draw_corner(audit, x, y)
    most = max(count for _, _, count in density.cells)
    levels: list[list[tuple[float, float]]] = [[] for _ in DENSITIES]
    for column, row, count in density.cells:
        level = round((len(DENSITIES) - 1) * math.log1p(count - 1) / math.log1p(most - 1)) if most > 1 else -1
        levels[level].append((LEFT + column * width, bottom - (row + 1) * height))
    for corners, opacity in zip(levels, DENSITIES, strict=True):
        marks.append(drawing.draw_cells(corners, width - 0.6, height - 0.6, opacity))
    marks += drawing.draw_place_axis(x, [(-math.log10(1 - value), text) for value, text in CONFIDENCES], bottom)
    marks.append(drawing.draw_text((MIDDLE, bottom + 34), "confidence (stretched toward 100%)", anchor="middle"))
    marks.append(drawing.draw_text((LEFT - 36, 16), "exposure"))
    legend = f"1 to {most:,} per cell"
    marks.append(drawing.draw_text((RIGHT, 16), legend, anchor="end"))
    start = RIGHT - 6.2 * len(legend) - len(DENSITIES) * 13 - 6
    marks += [drawing.draw_bar(start + 13 * i, 7, 12, 10, opacity=opacity) for i, opacity in enumerate(DENSITIES)]
    label = f"Density of {audit.facts.rows} predictions by confidence and exposure. "
    label += f"{density.corner} lie in the exposed corner." if audit.confident.rows else "None is confident."
    return drawing.draw_picture(WIDTH, 326.0, label, marks)


def _draw_corner(audit: AuditNumbers, x: LinearScale, y: LinearScale) -> list[str]:
    least = min(audit.min_confidence, 1 - 10**-x.high)
    left, base = x(-math.log10(1 - least)), y(audit.density.threshold)
    text = f"exposed corner: {audit.density.corner:,}"
    return [
        drawing.draw_bar(left, y.end, x.end - left, base - y.end, colour=FLIP, opacity=0.13),
        drawing.draw_line((left, y.end), (left, base), colour=FLIP, width=1.4),
        drawing.draw_line((left, base), (x.end, base), colour=FLIP, width=1.4),
        drawing.draw_text((x.end - 5, y.end + 14), text, anchor="end", colour=FLIP_TEXT, bold=True),
    ]


# --- review and cases ---------------------------------------------------------------------------------------


def draw_review(view: ReviewView) -> str:
    """Return the share of the wrong or brittle predictions that a review of a given size finds."""
    top, bottom = 34.0, 206.0
    x, y = LinearScale(0.0, 1.0, LEFT, RIGHT), LinearScale(0.0, 1.0, bottom, top)
    marks = drawing.draw_value_axis(y, QUARTERS, LEFT, RIGHT)
    marks.append(drawing.draw_line((x(0), y(0)), (x(1), y(1)), colour=QUIET))
    by_exposure, other = (
        [count / view.found_in_all for count in counts] for counts in (view.by_exposure, view.by_confidence)
    )
    for values, colour, dashed in ((other, QUIET, True), (by_exposure, ACCENT, False)):
        points = [(x(share), y(value)) for share, value in zip(view.shares, values, strict=True)]
        marks.append(drawing.draw_polyline(points, colour=colour, width=2.4, dashed=dashed))
    marks += drawing.draw_place_axis(x, QUARTERS, bottom)
    marks.append(drawing.draw_text((MIDDLE, bottom + 36), "share reviewed", anchor="middle"))
    marks += drawing.draw_legend([("by exposure", ACCENT, "solid"), ("by confidence", QUIET, "dashed")])
    marks.append(drawing.draw_text((RIGHT, 16), "thin: at random", anchor="end"))
    spoken = ", ".join(
        f"{share:.0%}: {write_percent(one)} against {write_percent(two)}"
        for share, one, two in zip(view.shares, by_exposure, other, strict=True)
        if share in (0.05, 0.1, 0.2, 0.5)
    )
    label = f"Share of {view.defect} predictions found by exposure against confidence. {spoken}"
    return drawing.draw_picture(WIDTH, 248.0, label, marks)


def draw_case(case: FragileCase) -> str:
    """Return one case's margin along its path; empty if the audit stores no steps."""
    if case.margins is None:
        return ""
    curve = MarginCurve(
        case.id, case.predicted, case.confidence, case.path, case.margins, case.flip_step, case.flips_to
    )
    return draw_curve_svg(curve, describe_curve(case.id, describe_case(case)))
