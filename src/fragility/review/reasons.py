"""Reasons for a decision: a code that is kept with it, and words that a page shows for it.

A file of reasons is plain text in UTF-8, one reason per line, its code before the first colon:

    confirmed: the decisive evidence was confirmed
    doubtful: the decisive evidence is doubtful

Blank lines, and lines that begin with #, say nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from fragility.errors import DataError
from fragility.files import read_bounded
from fragility.review.store import LONGEST_REASON

LARGEST_FILE = 2**20

DEFAULT_REASONS: Mapping[str, str] = {
    "confirmed": "the decisive evidence was confirmed",
    "plausible": "the rest of the record supports the prediction",
    "immaterial": "the outcome would be the same either way",
    "doubtful": "the decisive evidence is doubtful",
    "outdated": "the decisive evidence is out of date",
    "incomplete": "evidence is missing from the record",
    "contradiction": "the record contradicts itself",
    "waiting": "an answer is awaited",
    "other": "see the note",
}


def read_reasons(path: Path) -> dict[str, str]:
    """Return the reasons of a file, code to words, in their order."""
    try:
        text = read_bounded(path, LARGEST_FILE).decode("utf-8-sig")
    except (OSError, ValueError) as error:
        raise DataError(f"cannot read the reasons in {path}: {error}") from error
    found: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        code, colon, words = (part.strip() for part in line.partition(":"))
        if not (code and colon and words) or len(code) > LONGEST_REASON:
            raise DataError(
                f"line {number} of {path} must be a code of at most {LONGEST_REASON} characters, a colon and words, "
                f"got {line[:60]!r}"
            )
        if code in found:
            raise DataError(f"line {number} of {path} names the code {code!r} again; each reason has one of its own")
        found[code] = words
    if not found:
        raise DataError(f"{path} holds no reason; write lines such as `confirmed: the evidence was confirmed`")
    return found
