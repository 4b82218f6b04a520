"""The headline: which segment of the predictions flips early clearly more often than the rest.

A segment is named only if its difference from the rest stays above zero in Newcombe's interval at the level
1 - 0.05 / m, with m the number of segments looked at (Bonferroni): the more one looks, the more one finds by chance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fragility.intervals import Share, difference_of, normal_quantile, share_of
from fragility.report.summary import WorstSegment

ALPHA = 0.05


@dataclass(frozen=True)
class Segmentation:
    """The predictions cut into segments by the predicted class or by a column."""

    column: str | None  # None: the predicted class
    segments: Sequence[tuple[str, Share]]  # (name, share that flips early)


def find_worst(segmentations: Sequence[Segmentation]) -> WorstSegment | None:
    """Return the segment that differs most clearly from the rest; None where none does."""
    looked_at = [one for one in segmentations if len(one.segments) > 1]
    count = sum(len(one.segments) for one in looked_at)
    if not count:
        return None
    z = normal_quantile(1 - ALPHA / count)
    found = [
        (_lower_bound(early, _rest(one, place), z), one, place)
        for one in looked_at
        for place, (_, early) in enumerate(one.segments)
    ]
    bound, one, place = max(found, key=lambda entry: entry[0])
    return _named(one, place) if bound > 0 else None


def _rest(one: Segmentation, place: int) -> Share:
    others = [early for other, (_, early) in enumerate(one.segments) if other != place]
    return share_of(sum(early.count for early in others), sum(early.rows for early in others))


def _lower_bound(early: Share, rest: Share, z: float) -> float:
    if not early.rows or not rest.rows:
        return -1.0
    return difference_of(share_of(early.count, early.rows, z), share_of(rest.count, rest.rows, z)).lower


def _named(one: Segmentation, place: int) -> WorstSegment:
    name, early = one.segments[place]
    rest = _rest(one, place)
    others = [other for at, (other, _) in enumerate(one.segments) if at != place]
    return WorstSegment(
        one.column, name, early, others[0] if len(others) == 1 else None, rest, difference_of(early, rest)
    )
