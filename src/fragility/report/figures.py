"""The report's pictures: functions from the summary's numbers to SVG text. Each reads aloud what it shows."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fragility.drawing.curve import collapse_curve
from fragility.drawing.svg import (
    ACCENT,
    FLIP,
    INK,
    QUIET,
    Scale,
    area,
    bar,
    cells,
    dot,
    line,
    picture,
    place_axis,
    polyline,
    tidy_ticks,
    value_axis,
    words,
)
from fragility.intervals import Share
from fragility.report.sentences import describe_case
from fragility.report.summary import AuditNumbers, Case, Loss, Quartiles, ReviewView, SetNumbers
from fragility.text import shorten
from fragility.wording import write_percent

WIDTH, LEFT, RIGHT = 440.0, 44.0, 424.0
FLIP_WORDS = "var(--flip-text, currentColor)"
SHOWN_STEPS = 10
DENSITIES = (0.16, 0.34, 0.54, 0.76, 1.0)  # opacity of a cell, by how many predictions it holds
CONFIDENCES = ((0.5, "50%"), (0.9, "90%"), (0.99, "99%"), (0.999, "99.9%"))


# --- shares with intervals ----------------------------------------------------------------------------------


def draw_shares(entries: Sequence[tuple[str, Share]], verb: str) -> str:
    """Return one line per entry: its share as a dot, its interval as a line, its count in words."""
    left, right, top, step = 128.0, 330.0, 20.0, 25.0
    bottom = top + step * len(entries)
    x = Scale(0.0, min(1.0, 1.05 * max(0.1, *(share.upper for _, share in entries if share.rows), 0.1)), left, right)
    ticks = [tick for tick in tidy_ticks(0.0, x.high) if tick <= 1.0]
    marks = [line((x(tick), top - 4), (x(tick), bottom - 6)) for tick in ticks]
    marks += place_axis(x, [(tick, write_percent(tick)) for tick in ticks], bottom - 6)
    for place, (name, share) in enumerate(entries):
        y = top + step * (place + 0.5) - 4
        colour = QUIET if place == 0 else ACCENT
        marks.append(words((left - 10, y + 4), shorten(name, 20), anchor="end", bold=place == 0))
        if share.rows:
            marks.append(line((x(share.lower), y), (x(share.upper), y), colour=colour, width=2.4))
            marks.append(dot((x(share.value), y), 4.5, colour=colour))
        marks.append(words((right + 12, y + 4), f"{share.count:,} of {share.rows:,}"))
    told = "; ".join(
        f"{name}: {share.count} of {share.rows} {verb}, {write_percent(share.value)}, 95% interval "
        f"{write_percent(share.lower)} to {write_percent(share.upper)}"
        for name, share in entries
    )
    return picture(WIDTH, bottom + 16, f"Share that {verb}. {told}", marks)


def draw_paired_shares(entries: Sequence[tuple[str, tuple[Share, Share]]], names: tuple[str, str]) -> str:
    """Return two shares per entry with their intervals, one audit above the other."""
    left, right, top, step = 128.0, 424.0, 44.0, 34.0
    bottom = top + step * len(entries)
    uppers = [share.upper for _, both in entries for share in both if share.rows]
    x = Scale(0.0, min(1.0, 1.05 * max(0.1, *uppers, 0.1)), left, right)
    ticks = [tick for tick in tidy_ticks(0.0, x.high) if tick <= 1.0]
    marks = [line((x(tick), top - 4), (x(tick), bottom - 6)) for tick in ticks]
    marks += place_axis(x, [(tick, write_percent(tick)) for tick in ticks], bottom - 6)
    for place, (name, both) in enumerate(entries):
        y = top + step * (place + 0.5) - 4
        marks.append(words((left - 10, y + 4), shorten(name, 20), anchor="end"))
        for offset, share, colour in zip((-6, 6), both, (QUIET, ACCENT), strict=True):
            if share.rows:
                ends = (x(share.lower), y + offset), (x(share.upper), y + offset)
                marks += [line(*ends, colour=colour, width=2.4), dot((x(share.value), y + offset), 4, colour=colour)]
    marks += _legend([(shorten(names[0], 24), QUIET, False), (shorten(names[1], 24), ACCENT, False)])
    told = "; ".join(
        f"{name}: {write_percent(one.value)} against {write_percent(two.value)}" for name, (one, two) in entries
    )
    return picture(WIDTH, bottom + 16, f"Share that flips early, {names[0]} against {names[1]}. {told}", marks)


# --- k* -----------------------------------------------------------------------------------------------------


def fold_budgets(numbers: SetNumbers) -> list[tuple[str, int]]:
    """Return (how many groups, predictions) with long tails folded; the last entry is for those that never flip."""
    steps = list(numbers.flips_at)
    shown = [(str(k), count) for k, count in enumerate(steps[:SHOWN_STEPS], start=1)]
    if len(steps) > SHOWN_STEPS:
        shown = [*shown[:-1], (f"{SHOWN_STEPS}+", sum(steps[SHOWN_STEPS - 1 :]))]
    return [*shown, ("none", numbers.never)]


def draw_budgets(audit: AuditNumbers) -> str:
    """Return how many groups it takes to flip a prediction, confident against all."""
    height, top, bottom = 236.0, 40.0, 186.0
    sets = [("confident", audit.confident, ACCENT)] if audit.confident.rows else []
    sets.append(("all predictions", audit.everything, QUIET))
    shares = [[count / numbers.rows for _, count in fold_budgets(numbers)] for _, numbers, _ in sets]
    labels = [label for label, _ in fold_budgets(audit.everything)]
    y = Scale(0.0, max(0.1, *(value for each in shares for value in each)) * 1.08, bottom, top)
    slot = (RIGHT - LEFT) / len(labels)
    thick = min(slot * 0.8 / len(sets), 22.0)
    marks = value_axis(y, [(tick, f"{tick:.0%}") for tick in tidy_ticks(0.0, y.high)], LEFT, RIGHT)
    for place, label in enumerate(labels):
        middle = LEFT + slot * (place + 0.5)
        marks.append(words((middle, bottom + 15), label, anchor="middle"))
        for index, (_, _, colour) in enumerate(sets):
            x, value = middle - thick * len(sets) / 2 + index * thick, shares[index][place]
            marks.append(bar(x + 0.5, y(value), thick - 1, bottom - y(value), colour=colour))
    marks += [words(((LEFT + RIGHT) / 2, bottom + 36), "groups lost until the prediction flips", anchor="middle")]
    marks += _legend([(name, colour, False) for name, _, colour in sets])
    told = "; ".join(
        f"{name}: " + ", ".join(f"{label} {write_percent(v)}" for label, v in zip(labels, each, strict=True))
        for (name, _, _), each in zip(sets, shares, strict=True)
    )
    return picture(WIDTH, height, f"Share of predictions by the number of groups lost until they flip. {told}", marks)


def _legend(entries: Sequence[tuple[str, str, bool]], y: float = 16.0, left: float = LEFT) -> list[str]:
    """Return coloured samples with their names on one line; (name, colour, whether it is a dashed line)."""
    marks, x = [], left
    for name, colour, dashed in entries:
        sample = line((x, y - 4), (x + 14, y - 4), colour=colour, width=2.4, dashed=True) if dashed else None
        marks += [sample or bar(x, y - 9, 12, 10, colour=colour), words((x + 19, y), name)]
        x += 19 + 6.3 * len(name) + 20
    return marks


# --- collapse -----------------------------------------------------------------------------------------------


def draw_collapse(audit: AuditNumbers) -> str:
    """Return median and quartiles of the margin lost, removal by removal."""
    focus, everything = audit.focus.collapse, audit.everything.collapse
    if focus is None or everything is None:
        return ""
    bottom, top = 186.0, 34.0
    y, x = Scale(0.0, 1.0, bottom, top), Scale(0, len(focus) - 1, LEFT + 8, RIGHT - 8)
    marks = value_axis(y, [(tick / 4, f"{tick / 4:.0%}") for tick in range(5)], LEFT, RIGHT)
    marks += _band(focus, x, y)
    legend = [("median", ACCENT, False), ("middle half", ACCENT, False)]
    if audit.confident.rows:
        marks.append(polyline(_line([each.median for each in everything], x, y), colour=QUIET, dashed=True))
        legend.append(("median of all predictions", QUIET, True))
    marks += place_axis(x, [(step, str(step)) for step in _few(len(focus) - 1)], bottom)
    marks.append(words(((LEFT + RIGHT) / 2, bottom + 36), "groups removed, strongest first", anchor="middle"))
    marks += _band_legend(legend)
    told = ", ".join(f"{step}: {write_percent(each.median)}" for step, each in enumerate(focus))
    return picture(WIDTH, 230.0, f"Median share of the margin lost, by groups removed. {told}", marks)


def _band_legend(entries: Sequence[tuple[str, str, bool]]) -> list[str]:
    marks = _legend(entries)
    marks[2] = marks[2].replace("/>", ' fill-opacity="0.22"/>')  # the sample of the band is as faint as the band
    return marks


def _band(curve: Sequence[Quartiles], x: Scale, y: Scale) -> list[str]:
    upper, lower = (_line([getattr(each, name) for each in curve], x, y) for name in ("upper", "lower"))
    return [area(upper, lower, opacity=0.22), polyline(_line([each.median for each in curve], x, y), width=2.4)]


def _line(values: Sequence[float], x: Scale, y: Scale) -> list[tuple[float, float]]:
    return [(x(step), y(min(value, 1.0))) for step, value in enumerate(values)]


def _few(last: int) -> list[int]:
    every = max(1, math.ceil(last / 10))
    return list(range(0, last + 1, every))


def draw_class_curve(name: str, rows: int, curve: Sequence[Quartiles]) -> str:
    """Return one class's collapse, small, to stand beside the others."""
    left, right, top, bottom = 42.0, 202.0, 26.0, 106.0
    y, x = Scale(0.0, 1.0, bottom, top), Scale(0, len(curve) - 1, left + 4, right - 4)
    marks = value_axis(y, [(0.0, "0%"), (0.5, "50%"), (1.0, "100%")], left, right)
    marks += _band(curve, x, y)
    steps = [0, (len(curve) - 1) // 2, len(curve) - 1] if len(curve) > 4 else range(len(curve))
    marks += place_axis(x, [(step, str(step)) for step in steps], bottom)
    marks.append(words((left, 14), f"{shorten(name, 16)} ({rows:,})", bold=True))
    told = ", ".join(f"{step}: {write_percent(each.median)}" for step, each in enumerate(curve))
    return picture(208.0, 126.0, f"Class {name}, {rows} predictions: median share of the margin lost. {told}", marks)


# --- three ways ---------------------------------------------------------------------------------------------


def draw_loss(loss: Loss, name: str) -> str:
    """Return how a loss is spread over the predictions, with its median."""
    left, right, top, bottom = 8.0, 204.0, 46.0, 116.0
    total, most = sum(loss.histogram), max(loss.histogram)
    y, x = Scale(0, most, bottom, top), Scale(0.0, loss.top, left, right)
    width = (right - left) / len(loss.histogram)
    marks = [words((left, 14), name, bold=True, size=12)]
    marks.append(
        words((left, 30), f"median {_beyond(loss.quartiles.median, loss.top)}", colour="var(--muted, currentColor)")
    )
    for place, count in enumerate(loss.histogram):
        open_ended = place == len(loss.histogram) - 1
        colour = QUIET if open_ended and loss.top > 1.0 else ACCENT
        marks.append(bar(left + place * width + 0.5, y(count), width - 1, bottom - y(count), colour=colour))
    marks.append(line((left, bottom), (right, bottom), colour=QUIET))
    middle = x(min(loss.quartiles.median, loss.top))
    marks.append(line((middle, top - 6), (middle, bottom), colour=FLIP, width=2))
    ends = ((0.0, "0%", "start"), (loss.top / 2, f"{loss.top / 2:.0%}", "middle"))
    marks += [words((x(value), bottom + 15), label, anchor=anchor) for value, label, anchor in ends]
    marks.append(words((right, bottom + 15), f"{loss.top:.0%}{'+' if loss.top > 1 else ''}", anchor="end"))
    told = f"{name}: of {total} predictions the median loses {_beyond(loss.quartiles.median, loss.top)} of the margin, "
    told += f"a quarter at most {_beyond(loss.quartiles.lower, loss.top)}, a quarter at least "
    told += f"{_beyond(loss.quartiles.upper, loss.top)}; {loss.half} lose half or more."
    return picture(212.0, 136.0, told, marks)


def _beyond(value: float, top: float) -> str:
    return f"{top:.0%} or more" if value >= top > 1.0 else write_percent(value)


# --- confidence against exposure ----------------------------------------------------------------------------


def draw_density(audit: AuditNumbers) -> str:
    """Return confidence against exposure as a density, with the exposed corner marked."""
    density = audit.density
    top, bottom = 34.0, 282.0
    x, y = Scale(0.0, density.right, LEFT, RIGHT), Scale(0.0, 1.0, bottom, top)
    width, height = (RIGHT - LEFT) / density.columns, (bottom - top) / density.lines
    marks = value_axis(y, [(tick / 4, f"{tick / 4:.2g}") for tick in range(5)], LEFT, RIGHT)
    marks += _corner(audit, x, y)
    most = max(count for _, _, count in density.cells)
    levels: list[list[tuple[float, float]]] = [[] for _ in DENSITIES]
    for column, row, count in density.cells:
        level = round((len(DENSITIES) - 1) * math.log1p(count - 1) / math.log1p(most - 1)) if most > 1 else -1
        levels[level].append((LEFT + column * width, bottom - (row + 1) * height))
    marks += [
        cells(corners, width - 0.6, height - 0.6, opacity=opacity)
        for corners, opacity in zip(levels, DENSITIES, strict=True)
    ]
    ticks = [(-math.log10(1 - value), label) for value, label in CONFIDENCES]
    marks += place_axis(x, ticks, bottom)
    marks.append(words(((LEFT + RIGHT) / 2, bottom + 34), "confidence (stretched toward 100%)", anchor="middle"))
    marks.append(words((LEFT - 36, 16), "exposure"))
    marks += _density_legend(most)
    told = f"Density of {audit.facts.rows} predictions by confidence and exposure. "
    told += f"{density.corner} lie in the exposed corner." if audit.confident.rows else "None is confident."
    return picture(WIDTH, 326.0, told, marks)


def _corner(audit: AuditNumbers, x: Scale, y: Scale) -> list[str]:
    if not audit.confident.rows:
        return []
    least = min(audit.min_confidence, 1 - 10**-x.high)
    left, base = x(-math.log10(1 - least)), y(audit.density.threshold)
    return [
        bar(left, y.end, x.end - left, base - y.end, colour=FLIP, opacity=0.13),
        line((left, y.end), (left, base), colour=FLIP, width=1.4),
        line((left, base), (x.end, base), colour=FLIP, width=1.4),
        words(
            (x.end - 5, y.end + 14),
            f"exposed corner: {audit.density.corner:,}",
            anchor="end",
            colour=FLIP_WORDS,
            bold=True,
        ),
    ]


def _density_legend(most: int) -> list[str]:
    end = RIGHT
    marks = [words((end, 16), f"1 to {most:,} a cell", anchor="end")]
    start = end - 6.2 * len(f"1 to {most:,} a cell") - len(DENSITIES) * 13 - 6
    return marks + [bar(start + 13 * i, 7, 12, 10, opacity=opacity) for i, opacity in enumerate(DENSITIES)]


# --- labels -------------------------------------------------------------------------------------------------


def draw_review(view: ReviewView) -> str:
    """Return the share of what is sought that a review of a given size finds."""
    if not view.found_in_all:
        return ""
    top, bottom = 34.0, 206.0
    x, y = Scale(0.0, 1.0, LEFT, RIGHT), Scale(0.0, 1.0, bottom, top)
    marks = value_axis(y, [(tick / 4, f"{tick / 4:.0%}") for tick in range(5)], LEFT, RIGHT)
    marks.append(line((x(0), y(0)), (x(1), y(1)), colour=QUIET, dashed=False))
    for values, colour, dashed in ((view.by_confidence, QUIET, True), (view.by_exposure, ACCENT, False)):
        points = [(x(share), y(value / view.found_in_all)) for share, value in zip(view.shares, values, strict=True)]
        marks.append(polyline(points, colour=colour, width=2.4, dashed=dashed))
    marks += place_axis(x, [(tick / 4, f"{tick / 4:.0%}") for tick in range(5)], bottom)
    marks.append(words(((LEFT + RIGHT) / 2, bottom + 36), "share reviewed", anchor="middle"))
    marks += _legend([("by exposure", ACCENT, False), ("by confidence", QUIET, True)])
    marks.append(words((RIGHT, 16), "thin: at random", anchor="end"))
    told = ", ".join(
        f"{share:.0%}: {write_percent(found / view.found_in_all)} against {write_percent(other / view.found_in_all)}"
        for share, found, other in zip(view.shares, view.by_exposure, view.by_confidence, strict=True)
        if share in (0.05, 0.1, 0.2, 0.5)
    )
    return picture(
        WIDTH, 248.0, f"Share of {view.sought} predictions found by exposure against confidence. {told}", marks
    )


def draw_fifths(fifths: Sequence[Share]) -> str:
    """Return how often predictions are wrong, by fifths of exposure, with intervals."""
    top, bottom = 20.0, 166.0
    y = Scale(0.0, max(0.02, *(rate.upper for rate in fifths)) * 1.05, bottom, top)
    slot = (RIGHT - LEFT) / len(fifths)
    marks = value_axis(y, [(tick, write_percent(tick)) for tick in tidy_ticks(0.0, y.high)], LEFT, RIGHT)
    names = ("least exposed", "second", "third", "fourth", "most exposed")
    for place, (rate, name) in enumerate(zip(fifths, names, strict=True)):
        middle = LEFT + slot * (place + 0.5)
        marks.append(words((middle, bottom + 15), name, anchor="middle"))
        marks.append(bar(middle - 20, y(rate.value), 40, bottom - y(rate.value), opacity=0.75))
        marks += _whisker(middle, y(rate.lower), y(rate.upper))
    marks.append(words(((LEFT + RIGHT) / 2, bottom + 36), "fifths by exposure", anchor="middle"))
    told = ", ".join(f"{name} {write_percent(rate.value)}" for name, rate in zip(names, fifths, strict=True))
    return picture(WIDTH, 208.0, f"Share of predictions that are wrong, by fifths of exposure: {told}", marks)


def _whisker(x: float, low: float, high: float) -> list[str]:
    ends = [line((x - 5, y), (x + 5, y), colour=INK, width=1.4) for y in (low, high)]
    return [line((x, low), (x, high), colour=INK, width=1.4), *ends]


# --- rows of tables and cases -------------------------------------------------------------------------------


def draw_case(case: Case) -> str:
    """Return one case's margin along its path."""
    if case.margins is None:
        return ""
    label = f"Row {case.id}, margin as groups are removed: {describe_case(case)}"
    return collapse_curve(case.margins, case.flip_budget if case.flipped else None, label)
