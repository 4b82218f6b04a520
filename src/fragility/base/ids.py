"""Matching rows by id: two tables of the same rows meet here and nowhere else.

Ids are compared as text, because a file may give back "7" for 7. Where there are too many to be kept, they are compared
by 16 bytes of a digest of that text.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fragility.base.errors import Advice, DataError


def id_text(own_id: object) -> str:
    """Return the text by which an id is compared: 7 and "7" are one id, and so are 0.0 and -0.0."""
    return "0.0" if isinstance(own_id, float) and own_id == 0.0 else str(own_id)


def places_by_id(wanted: Sequence[object], given: Sequence[object]) -> tuple[npt.NDArray[np.int64], list[object]]:
    """Return the place in ``given`` of every wanted id that is there, and the wanted ids that are not."""
    place = {id_text(own_id): index for index, own_id in enumerate(given)}
    at = [place.get(id_text(own_id)) for own_id in wanted]
    missing = [own_id for own_id, at_place in zip(wanted, at, strict=True) if at_place is None]
    return np.array([at_place for at_place in at if at_place is not None], dtype=np.int64), missing


class IdSpan:
    """The smallest and the largest of some ids, which may come part by part: whole numbers by size, others as text."""

    def __init__(self, ids: Iterable[object] = ()) -> None:
        self._ends: list[str] = []
        self._numbers = True
        self.add(ids)

    @classmethod
    def of_tables(cls, tables: Iterable[Any]) -> IdSpan:
        """Return the span of the ids in tables that come one after the other."""
        span = cls()
        for table in tables:
            span.add(table.column("id").to_pylist())
        return span

    def add(self, ids: Iterable[object]) -> None:
        """Take in the ids of a part."""
        texts = [*self._ends, *map(str, ids)]
        self._numbers = all(len(own_id) < 20 and own_id.removeprefix("-").isdecimal() for own_id in texts)
        if texts:
            self._ends = [choose(texts, key=int if self._numbers else str) for choose in (min, max)]

    def __str__(self) -> str:
        return " to ".join(end if self._numbers else repr(end) for end in self._ends) or "none"


GIVE_AUDITED = Advice(
    "give the audited rows with the ids of the audit",
    "give the audited rows, and name the column with the audit's ids by --id",
)


def say_other_rows(lacking: int, count: int, first: object, audited: IdSpan, given: IdSpan) -> tuple[str, Advice]:
    """Return the message about rows and an audit that do not belong together."""
    return (
        f"the rows are not the ones that were audited: {lacking} of the {count} audited rows are not among them "
        f"(first: {first!r}; ids of the audit: {audited}; ids of the rows: {given}); ",
        GIVE_AUDITED,
    )


def say_unlabelled(lacking: int, count: int, first: object, audited: IdSpan, labelled: IdSpan) -> tuple[str, Advice]:
    """Return the message about labels that do not cover the rows of an audit."""
    return (
        f"{lacking} of the {count} audited rows have no label (first: {first!r}; ids of the audit: {audited}; ids of "
        f"the labels: {labelled}); label every row, and name the column with ",
        Advice("the ids the audit was made with", "the audit's ids by --id"),
    )


class RowLabels:
    """What is known of rows by id, looked up part by part; audited rows without a label are refused at the end."""

    def __init__(self, labels: Mapping[Any, Any]) -> None:
        self.values = {id_text(own_id): label for own_id, label in labels.items()}
        self._lacking, self._ids, self._rows = list[object](), IdSpan(), 0

    def find(self, ids: Sequence[object]) -> list[Any]:
        """Return the labels of the next rows; None for a row without one."""
        labels = [self.values.get(id_text(own_id)) for own_id in ids]
        self._rows += len(ids)
        self._ids.add(ids)
        self._lacking += [own_id for own_id, label in zip(ids, labels, strict=True) if label is None]
        return labels

    def check(self) -> None:
        """Refuse labels that lack one of the rows looked up."""
        if lacking := self._lacking:
            raise DataError(*say_unlabelled(len(lacking), self._rows, lacking[0], self._ids, IdSpan(self.values)))


SAME_CONFIDENCE = 1e-3  # engines and single precision round by less


def check_same_rows(ids: Sequence[object], audited: npt.ArrayLike, given: npt.ArrayLike) -> None:
    """Refuse rows that share ids with audited ones but not the model's confidence: the ids are of other rows."""
    there, here = np.asarray(audited), np.asarray(given)
    other = np.flatnonzero(np.abs(there - here) > SAME_CONFIDENCE)
    if len(other):
        i = int(other[0])
        raise DataError(
            f"the ids are those of other rows: {len(other)} of {len(ids)} have another confidence than in the audit "
            f"(first: row {ids[i]!r}, {there[i]:.4g} in the audit, here {here[i]:.4g}); ",
            GIVE_AUDITED,
        )


KEY_BYTES = 16
LONGEST_RUN = 2_000_000  # keys that are sorted together; merging all of them would hold them twice


def id_keys(ids: Sequence[object]) -> npt.NDArray[np.bytes_]:
    """Return 16 bytes for each id, different for different ids and the same for 7 and "7"."""
    packed = b"".join(hashlib.blake2b(id_text(own_id).encode(), digest_size=KEY_BYTES).digest() for own_id in ids)
    return np.frombuffer(packed, dtype=f"S{KEY_BYTES}")


class SeenIds:
    """The ids of parts that came one after the other: 16 bytes each, in a few sorted runs that grow by merging."""

    def __init__(self) -> None:
        self._runs: list[npt.NDArray[np.bytes_]] = []

    def add(self, ids: Sequence[object]) -> object | None:
        """Add the ids of a part; return one that was there before, in this part or an earlier one, or None."""
        twice = self.add_keys(id_keys(ids))
        return None if twice is None else ids[twice]

    def add_keys(self, keys: npt.NDArray[np.bytes_]) -> int | None:
        """Add the ids with these keys; return the position of one that was there before, or None."""
        again = self.contains(keys)
        if again.any():
            return int(np.argmax(again))
        run, first = np.unique(keys, return_index=True)
        if len(run) < len(keys):
            return int(np.setdiff1d(np.arange(len(keys)), first)[0])
        while self._runs and len(self._runs[-1]) <= min(2 * len(run), LONGEST_RUN - len(run)):
            run = np.sort(np.concatenate([self._runs.pop(), run]), kind="stable")
        self._runs.append(run)
        return None

    def contains(self, keys: npt.NDArray[np.bytes_]) -> npt.NDArray[np.bool_]:
        """Return which keys belong to ids that were added."""
        seen = np.zeros(len(keys), dtype=bool)
        for run in self._runs:
            place = np.minimum(np.searchsorted(run, keys), len(run) - 1)
            seen |= run[place] == keys
        return seen
