"""Which rows and names of a block are asked for, and which rows it covers: one rule for every block.

A block that does not cover all rows covers a declared number of the confident ones at most:

    exposure   those with the largest exposure; equal ones by the hashes of their ids
    content    those whose raw values have the smallest hashes; equal ones, which are copies, by the hashes of their ids

The first are the rows that people ask about. The second are as good as drawn at random. Neither their certificates nor
their ids take part in it, so an author cannot try digests until the choice suits him: he would have to change the rows.
A reader without the rows cannot repeat that choice, and checks what follows from the certificates alone.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence, Set
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fragility.base.arrays import Integers
from fragility.base.errors import DataError
from fragility.base.ids import id_keys
from fragility.base.schemas import Positive
from fragility.engines.choice import SELF_CHECK_ROWS, choose_oracle
from fragility.evidence import EvidenceRows
from fragility.evidence.rows import CONTENT_BYTES

CONTENT = "content"  # a column of 16 bytes per row, by which rows are chosen where they are at hand
CLAIMS_TO_CHOOSE = ("id", "confidence", "exposure")


By: TypeAlias = Literal["exposure", "content"]
# True for all names and rows, some names, or all names of so many confident rows at most; None and False for no block.
Wanted: TypeAlias = bool | int | str | Sequence[str] | None


@dataclass(frozen=True, slots=True)
class ChosenRows:
    """What a manifest says of the rows that a block has: so many confident ones at most."""

    most: Positive
    by: By


@dataclass(frozen=True, slots=True)
class RowChoice:
    """So many of the confident rows, at most."""

    count: int
    by: By
    min_confidence: float

    def choose(self, table: pa.Table) -> Integers:
        """Return the positions of the chosen rows, in the order in which the block lists them.

        table: the columns CLAIMS_TO_CHOOSE of all rows of an audit, or of those that may be chosen; and CONTENT, where
        that decides.
        """
        places = self.find_confident(table)
        if self.by == "exposure":
            exposure = table.column("exposure").to_numpy()
            if len(places) > self.count:
                own = exposure[places]
                places = places[own >= np.partition(own, -self.count)[-self.count]]
            return places[np.lexsort((_id_keys(table, places), -exposure[places]))[: self.count]]
        content = (
            table.column(CONTENT).take(pa.array(places)).to_numpy(zero_copy_only=False).astype(f"S{CONTENT_BYTES}")
        )
        places = places[np.lexsort((_id_keys(table, places), content))[: self.count]]
        return self.sort_by_id(table, places)

    def order(self, table: pa.Table) -> Integers:
        """Return the positions of rows that were chosen, in the order in which the block lists them."""
        places = np.arange(len(table))
        if self.by == "content":
            return self.sort_by_id(table, places)
        return np.lexsort((_id_keys(table, places), -table.column("exposure").to_numpy()))

    def find_confident(self, table: pa.Table) -> Integers:
        """Return the positions of the confident rows."""
        return np.flatnonzero(table.column("confidence").to_numpy() >= self.min_confidence)

    def sort_by_id(self, table: pa.Table, places: Integers) -> Integers:
        """Return positions in the order of the hashes of the rows' ids."""
        return places[np.argsort(_id_keys(table, places), kind="stable")]

    def keep_candidates(self, table: pa.Table, covered: Set[Hashable]) -> pa.Table:
        """Return the rows that decide whether a block may cover these: the chosen ones, or those covered."""
        if self.by == "exposure":
            return table.take(pa.array(self.choose(table)))
        confident = self.find_confident(table)
        ids = table.column("id").take(pa.array(confident)).to_pylist()
        places = confident[np.fromiter((own in covered for own in ids), dtype=bool, count=len(ids))]
        return table.take(pa.array(self.sort_by_id(table, places)))

    def find_fault(
        self, candidates: pa.Table, confident: int, covered: Sequence[Hashable], *, whole: bool = True
    ) -> str | None:
        """Return why a block cannot cover these rows, by what certificates alone say; None if it may.

        candidates: kept from all rows of an audit, of which so many are confident. whole: whether these are all rows of
        the audit, and not a selection of them.
        """
        most = min(self.count, confident)
        if self.by == "content" and len(covered) != most and (whole or len(covered) > most):
            return f"with {len(covered)} rows instead of {most}"
        return compare_ids(covered, candidates.column("id").to_pylist())


def compare_ids(covered: Sequence[Hashable], expected: Sequence[Hashable]) -> str | None:
    """Return how the rows that a block covers differ from those expected; None if they are the same."""
    if list(covered) == list(expected):
        return None
    missing = [own for own in expected if own not in set(covered)]
    if len(covered) > len(expected):
        return f"with {len(covered)} rows instead of {len(expected)}"
    if not missing and len(covered) == len(expected):
        return "in another order"
    return f"without row {missing[0]!r}" if missing else f"with {len(covered)} rows instead of {len(expected)}"


def with_content(table: pa.Table, keys: Sequence[bytes]) -> pa.Table:
    """Return a table of claims with the column by which rows are chosen."""
    return table.append_column(CONTENT, pa.array(keys, type=pa.binary(CONTENT_BYTES)))


def _id_keys(table: pa.Table, places: Integers) -> npt.NDArray[np.bytes_]:
    return id_keys(table.column("id").take(pa.array(places)).to_pylist())


# --- what was asked for -------------------------------------------------------------------------------------


def read_wanted(wanted: Any, block: str, verb: str) -> tuple[list[str] | None, int | None]:
    """Return the names wanted and the most confident rows; None for all of them. The words are for errors."""
    if not isinstance(wanted, (int, np.integer)):
        return [wanted] if isinstance(wanted, str) else list(wanted), None
    most = None if wanted is True else int(wanted)
    if most is not None and most < 1:
        raise DataError(f"{block} must be at least 1 where it says how many confident rows to {verb}, got {wanted}")
    return None, most


def name_engine(rows: EvidenceRows, engine: str) -> str:
    """Return the engine that answers for these rows: a native one that agrees with the model on the first, or none."""
    return choose_oracle(rows.between(0, SELF_CHECK_ROWS), engine).name
