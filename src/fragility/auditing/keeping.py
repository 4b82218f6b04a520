"""Rows kept for the end of an audit: which rows are looked at more closely is known only when all were audited.

Every part hands over those of its rows that may be among them, and rows that cannot be any more are let go as parts
come in. So no row is read twice, wherever it came from, and what is held does not grow with the number of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd
import pyarrow as pa

from fragility.certificates import COMPARED_CLAIMS, RANKED, most_exposed, rows_to_compare

KEPT_CLAIMS = tuple(dict.fromkeys((*COMPARED_CLAIMS, *RANKED)))


@dataclass(frozen=True, eq=False)
class KeptRows:
    """Some rows: their raw fields, their ids, and the claims by which rows are chosen."""

    frame: pd.DataFrame
    ids: list[Any]
    claims: pa.Table  # the columns KEPT_CLAIMS

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, positions: Sequence[int]) -> KeptRows:
        """Return the rows at these positions."""
        chosen = list(positions)
        claims = self.claims.take(pa.array(chosen, type=pa.int64()))
        return KeptRows(self.frame.iloc[chosen], [self.ids[i] for i in chosen], claims)


@dataclass(frozen=True)
class Choice:
    """Which rows are wanted in the end."""

    most_exposed: int = 0  # so many of the confident rows with the largest exposure
    compared: bool = False  # the confident rows that are compared under other baselines

    def __bool__(self) -> bool:
        return self.most_exposed > 0 or self.compared

    def exposed(self, claims: pa.Table) -> list[int]:
        """Return the positions of the most exposed rows, the most exposed first."""
        return most_exposed(claims, self.most_exposed).tolist() if self.most_exposed else []

    def to_compare(self, claims: pa.Table) -> list[int]:
        """Return the positions of the rows to compare, in the order of the comparison."""
        ids, confidence = claims.column("id").to_pylist(), claims.column("confidence").to_numpy()
        return rows_to_compare(ids, confidence).tolist() if self.compared else []

    def of(self, claims: pa.Table) -> list[int]:
        """Return the positions of all rows that are wanted among these, in their order."""
        return sorted({*self.exposed(claims), *self.to_compare(claims)})

    def among(self, frame: pd.DataFrame, ids: list[Any], certificates: pa.Table) -> KeptRows:
        """Return the rows of a part that may be wanted in the end."""
        claims = certificates.select(list(KEPT_CLAIMS))
        return KeptRows(frame, ids, claims).take(self.of(claims))


@dataclass
class Keeper:
    """The rows that are wanted among those of all parts so far."""

    choice: Choice
    parts: dict[int, KeptRows] = field(default_factory=dict)  # by the place of the part
    none: KeptRows | None = None  # no rows, of the types that all have

    def add(self, place: int, rows: KeptRows | None) -> None:
        """Take the rows of another part, and let go of those that are not wanted any more."""
        if rows is None:
            return
        self.none = self.none or rows.take([])
        self.parts[place] = rows
        wanted = self.choice.of(pa.concat_tables([part.claims for part in self.parts.values()]))
        start, left = 0, dict[int, KeptRows]()
        for own, part in self.parts.items():
            kept = [i - start for i in wanted if start <= i < start + len(part)]
            start += len(part)
            if kept:
                left[own] = part.take(kept) if len(kept) < len(part) else part
        self.parts = left

    def chosen(self, choose: Callable[[pa.Table], list[int]]) -> list[KeptRows]:
        """Return the rows that a function chooses by their claims, at least one piece, each in the order it gives."""
        pieces = self._alike()
        wanted, start, out = choose(pa.concat_tables([piece.claims for piece in pieces])), 0, list[KeptRows]()
        for piece in pieces:
            mine = [place - start for place in wanted if start <= place < start + len(piece)]
            start += len(piece)
            out += [piece.take(mine)] if mine else []
        return out or [pieces[0].take([])]

    def _alike(self) -> list[KeptRows]:
        """Return the rows of all parts, at least one piece; parts whose fields have the same types are together."""
        found: dict[tuple[Any, ...], list[KeptRows]] = {}
        for place in sorted(self.parts):
            part = self.parts[place]
            found.setdefault((*part.frame.columns, *part.frame.dtypes), []).append(part)
        assert self.none is not None  # an audit has a part
        return [_together(parts) for parts in found.values()] or [self.none]


def _together(parts: list[KeptRows]) -> KeptRows:
    if len(parts) == 1:
        return parts[0]
    return KeptRows(
        pd.concat([part.frame for part in parts], ignore_index=True),
        [own_id for part in parts for own_id in part.ids],
        pa.concat_tables([part.claims for part in parts]),
    )
