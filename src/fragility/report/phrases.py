"""Numbers and names as the report writes them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fragility.drawing.svg import shortened
from fragility.intervals import Difference, Share

LONGEST_NAME = 80
LONGEST_IN_SENTENCE = 60


def percent(share: float) -> str:
    """Return a share as a person would say it: a decimal only where it is small."""
    if math.isnan(share):
        return "none"
    return (f"{share:.1%}" if 0 < abs(share) < 0.0995 else f"{share:.0%}").replace(".0%", "%")


def of(count: int, rows: int) -> str:
    """Return a count with its share."""
    return f"{count:,} ({percent(count / rows)})" if rows else f"{count:,}"


def interval(share: Share) -> str:
    """Return the ends of a share's interval."""
    return f"{percent(share.lower)} to {percent(share.upper)}"


def with_interval(share: Share) -> str:
    """Return a share with its interval."""
    return f"{percent(share.value)} (95% interval {interval(share)})" if share.rows else "no rows"


def counted(count: int, thing: str, things: str | None = None) -> str:
    """Return a number with its noun."""
    return f"{count:,} {thing if count == 1 else things or thing + 's'}"


def listed(names: Sequence[str], most: int = 12) -> str:
    """Return names in a sentence, those beyond `most` counted."""
    if len(names) > most:
        return f"{', '.join(names[:most])} and {len(names) - most} more"
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def named(text: str) -> str:
    """Return a name from data, cut where it would fill a page."""
    return shortened(text, LONGEST_NAME)


def brief(name: str) -> str:
    """Return a name from data, cut where it would burst a sentence; tables show more of it."""
    return shortened(name, LONGEST_IN_SENTENCE)


def points(difference: float) -> str:
    """Return a difference of shares in percentage points."""
    return "none" if math.isnan(difference) else f"{100 * difference:+.1f} points"


def difference_told(difference: Difference) -> str:
    """Return a difference with its interval."""
    return f"{points(difference.value)} (95% interval {points_interval(difference)})"


def points_interval(difference: Difference) -> str:
    """Return the ends of a difference's interval in percentage points."""
    return f"{100 * difference.lower:+.1f} to {100 * difference.upper:+.1f}"
