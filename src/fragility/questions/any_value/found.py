"""What is found whatever the value: budgets with their witnesses, and what decisions do not need."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fragility.base.arrays import Floats, Integers
from fragility.base.errors import DataError
from fragility.models.outputs import ClassLabel
from fragility.pages.results import TOP, Result, without_nan
from fragility.pages.sections import Section, Table, Text, count_cell
from fragility.questions.any_value.deciding import Witness

READ, ASKED = "read", "asked"  # where an answer comes from
CAN, CANNOT, UNKNOWN = 1, 0, -1  # whether a group alone can flip a decision
SAFE, UNSAFE = 1, 0
NOT_COUNTED = -1
NO_BASELINE = "No choice of a baseline can dispute this: every field may take any value of its declared domain."


def _write_share(value: float) -> str:
    return "" if np.isnan(value) else f"{100 * value:.3g}%"


@dataclass(frozen=True, eq=False, repr=False)
class AnyValueBudgets(Result):
    """How many groups must change, to some values of their domains, before each decision flips; n rows, U groups.

    Attributes
    ----------
    id : array of shape (n,)
        The ids of the rows.
    predicted : tuple
        The decision of each row.
    max_size : int
        The largest set of groups that was searched.
    budget : array of shape (n,)
        The size of the smallest set that was found to flip the decision; ``max_size`` + 1 where none was.
    proved : array of shape (n,)
        Every set of up to so many groups was decided, and none of them flips.
    count : array of shape (n,)
        How many sets of that size flip the decision; 0 where none was found, -1 where they were not all decided.
    witnesses : tuple of Witness or None
        Values that flip each decision, as the model itself confirmed.
    alone : array of shape (n, U)
        1 where a group alone can flip the decision, 0 where it cannot, -1 where that is not known.
    chance_one, chance_two : array of shape (n,)
        How likely one field, and two fields, drawn at random, flip the decision with values drawn from the catalogue;
        NaN where that is not known.
    method : tuple of str
        ``read``, or ``asked`` where the model was asked about some values only.
    units : tuple of (str, tuple of str)
        The groups that were varied, and their fields.
    kept : tuple of str
        The fields that keep their own values: immutable ones, and those without a domain.
    """

    _title: ClassVar[str] = "Whatever the value"
    SUFFIXES: ClassVar[tuple[str, ...]] = (".txt", ".md", ".html", ".json", ".csv", ".parquet")

    id: npt.NDArray[Any]
    predicted: tuple[ClassLabel, ...]
    max_size: int
    budget: Integers
    proved: Integers
    count: Integers
    witnesses: tuple[Witness | None, ...]
    alone: Integers
    chance_one: Floats
    chance_two: Floats
    method: tuple[str, ...]
    units: tuple[tuple[str, tuple[str, ...]], ...]
    kept: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.id)

    def witness(self, row: int) -> Witness:
        """Return the values that flip one row.

        Parameters
        ----------
        row : int
            The position of the row.

        Returns
        -------
        Witness
            DataError if none was found.
        """
        found = self.witnesses[row]
        if found is None:
            raise DataError(f"no values that flip row {self.id[row]!r} were found")
        return found

    def state(self, row: int) -> str:
        """Return a row's budget in words.

        Parameters
        ----------
        row : int
            The position of the row.

        Returns
        -------
        str
            ``2``, ``at most 2, at least 1``, or ``at least 3`` where no set was found to flip the decision.
        """
        size, least = int(self.budget[row]), int(self.proved[row]) + 1
        if size > self.max_size:
            return f"at least {least}" + ("" if self.proved[row] >= self.max_size else ", not proved beyond")
        return str(size) if size == least else f"at most {size}, at least {least}"

    def describe(self, row: int) -> str:
        """Say what is known of one row, such as ``no value of any one group flips it; a = 4 and b = none: bad``.

        Parameters
        ----------
        row : int
            The position of the row.

        Returns
        -------
        str
            A sentence without its full stop.
        """
        proved, found = int(self.proved[row]), self.witnesses[row]
        none = {0: "", 1: "no value of any one group flips it"}.get(
            proved, f"no values of any {proved} groups together flip it"
        )
        if found is None:
            return none or "no values that flip it were found; only some were tried"
        return f"{none}; {found.to_text()}" if none else found.to_text()

    def sections(self, top: int = TOP) -> list[Section]:
        n = len(self)
        sizes = [
            (str(size), int(((self.budget == size) & (self.proved == size - 1)).sum()))
            for size in range(1, self.max_size + 1)
        ]
        beyond = int((self.proved >= self.max_size).sum())
        open_rows = n - sum(count for _, count in sizes) - beyond
        sizes += [(f"at least {self.max_size + 1}", beyond)]
        sizes += [("not decided", open_rows)] if open_rows else []
        paragraphs = [
            f"How many of {len(self.units)} groups must change, to some values, before a decision flips. {NO_BASELINE}",
            *([f"Kept as they are: {', '.join(self.kept)}."] if self.kept else []),
        ]
        table = Table(
            f"Budgets of {n} decisions.", ["groups", "decisions"], [[k, count_cell(count, n)] for k, count in sizes]
        )
        order = np.argsort(np.where(np.isnan(self.chance_one), 0.0, -self.chance_one), kind="stable")[:top]
        shown = [
            [str(self.id[i]), self.state(int(i)), self.describe(int(i)), _write_share(float(self.chance_one[i]))]
            for i in order
        ]
        heads = ["row", "budget", "values that flip it", "chance of one field"]
        rows = Table(
            "Decisions that are flipped most easily.", heads, shown, words=3, wrapped=True, more=n - len(order)
        )
        return [Section("any-value", "Whatever the value", [Text(paragraphs), table, rows])]

    def tables(self) -> dict[str, pa.Table]:
        columns = {
            "id": [str(own) for own in self.id],
            "budget": pa.array([int(k) if k <= self.max_size else None for k in self.budget], pa.int64()),
            "proved": pa.array(self.proved.tolist(), pa.int64()),
            "count": pa.array([int(c) if c >= 0 else None for c in self.count], pa.int64()),
            "witness": ["" if own is None else own.to_text() for own in self.witnesses],
            "chance_one": pa.array(self.chance_one.tolist(), pa.float64()),
            "chance_two": pa.array(self.chance_two.tolist(), pa.float64()),
            "method": list(self.method),
        }
        return {"budgets": pa.table(columns)}

    def to_dict(self) -> dict[str, Any]:
        names = [name for name, _ in self.units]
        rows = [
            {
                "id": str(self.id[i]),
                "predicted": self.predicted[i],
                "budget": int(self.budget[i]) if self.budget[i] <= self.max_size else None,
                "proved": int(self.proved[i]),
                "count": int(self.count[i]) if self.count[i] >= 0 else None,
                "witness": None if own is None else {"values": dict(own.values), "predicted": own.predicted},
                "alone": {
                    name: {CAN: True, CANNOT: False}.get(int(state))
                    for name, state in zip(names, self.alone[i], strict=True)
                },
                "chance_one": float(self.chance_one[i]),
                "chance_two": float(self.chance_two[i]),
                "method": self.method[i],
            }
            for i, own in enumerate(self.witnesses)
        ]
        document: dict[str, Any] = without_nan(
            {
                "max_size": self.max_size,
                "units": {name: list(fields) for name, fields in self.units},
                "kept": list(self.kept),
                "rows": rows,
            }
        )
        return document


@dataclass(frozen=True, eq=False, repr=False)
class SafeSets(Result):
    """What each decision does not need, whatever it says; n rows, S sets of fields.

    Attributes
    ----------
    id : array of shape (n,)
        The ids of the rows.
    sets : tuple of (str, tuple of str)
        The sets, and their fields that are free.
    safe : array of shape (n, S)
        1 where no values of the set's fields flip the decision, 0 where some do, -1 where that was not decided.
    witnesses : tuple of tuple of Witness or None
        By row and set: values that flip the decision.
    largest : tuple of tuple of str, or None
        The groups of a large safe set of each row.
    kept : tuple of str
        The fields that keep their own values.
    """

    _title: ClassVar[str] = "What decisions do not need"
    SUFFIXES: ClassVar[tuple[str, ...]] = (".txt", ".md", ".html", ".json", ".csv", ".parquet")

    id: npt.NDArray[Any]
    sets: tuple[tuple[str, tuple[str, ...]], ...]
    safe: Integers
    witnesses: tuple[tuple[Witness | None, ...], ...]
    largest: tuple[tuple[str, ...], ...] | None
    kept: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.id)

    def sections(self, top: int = TOP) -> list[Section]:
        n = len(self)
        counts = [
            [name, *(count_cell(int((self.safe[:, s] == state).sum()), n) for state in (SAFE, UNSAFE, UNKNOWN))]
            for s, (name, _) in enumerate(self.sets)
        ]
        heads = ["set", "cannot change", "can change", "not decided"]
        blocks: list[Any] = [
            Text([f"Which of {n} decisions hold whatever the fields of a set say. {NO_BASELINE}"]),
            Table(f"Decisions that a set can change, of {n}.", heads, counts),
        ]
        if self.largest:
            sizes = np.array([len(own) for own in self.largest])
            blocks.append(
                Text([f"Half of the decisions hold whatever {int(np.median(sizes))} groups or more say together."])
            )
        return [Section("safe-sets", "What decisions do not need", blocks)]

    def tables(self) -> dict[str, pa.Table]:
        pairs = [(i, s) for i in range(len(self)) for s in range(len(self.sets))]
        found = [self.witnesses[i][s] for i, s in pairs]
        columns = {
            "id": [str(self.id[i]) for i, _ in pairs],
            "set": [self.sets[s][0] for _, s in pairs],
            "safe": pa.array([{SAFE: True, UNSAFE: False}.get(int(self.safe[i, s])) for i, s in pairs], pa.bool_()),
            "witness": ["" if own is None else own.to_text() for own in found],
        }
        return {"sets": pa.table(columns)}

    def to_dict(self) -> dict[str, Any]:
        rows = [
            {
                "id": str(self.id[i]),
                "safe": {
                    name: {SAFE: True, UNSAFE: False}.get(int(self.safe[i, s])) for s, (name, _) in enumerate(self.sets)
                },
                "largest": None if self.largest is None else list(self.largest[i]),
            }
            for i in range(len(self))
        ]
        sets = {name: list(fields) for name, fields in self.sets}
        document: dict[str, Any] = without_nan({"sets": sets, "kept": list(self.kept), "rows": rows})
        return document
