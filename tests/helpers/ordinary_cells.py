"""The cells of the ordinary-use matrix: table x model x preparation x space x way, and a pairwise selection of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import combinations, product
from typing import NamedTuple

import ordinary_models as models
import ordinary_tables as tables

WAYS = ("python", "report", "gate", "pack", "compare", "policy", "guard", "parity", "blocks")


class Cell(NamedTuple):
    table: str
    model: str
    preparation: str
    space: str
    way: str

    def __str__(self) -> str:
        return "-".join(self)


FACTORS = Cell._fields


def is_possible(table: str, model: str, preparation: str, space: str) -> bool:
    """Whether people would build this: numbers to impute, categories to hand over, columns that can be traced."""
    kind = tables.KIND[table]
    if model.endswith("-own"):  # takes the table as it is
        return preparation == "simple" and space == "default" and (kind != "numeric" and table not in NUMBERS)
    if kind == "nominal":
        return preparation in ("simple", "pca") and (space == "raw" or preparation == "simple")
    if preparation in models.CROSSING:
        return space == "raw"
    return preparation not in ("knn", "iterative") or kind == "holes"


NUMBERS = ("digits", "wine", "heloc", "default", "cancer")


def kinds_of(cell: Cell) -> tuple[str, ...]:
    preparation = models.PREPARATIONS[cell.preparation]
    return (tables.KIND[cell.table], models.KIND[cell.model], preparation, cell.space, cell.way)


def list_cells(names: list[str]) -> Iterator[Cell]:
    for table, model, preparation, space in product(names, models.KIND, models.PREPARATIONS, models.SPACES):
        if is_possible(table, model, preparation, space):
            for way in WAYS:
                yield Cell(table, model, preparation, space, way)


def choose_pairwise(cells: list[Cell]) -> list[Cell]:
    """Return few cells in which every possible pair of levels appears: greedily, and the same on any machine.

    The levels are the kinds of tables, of models and of preparations; those of a kind take turns.
    """
    alike: dict[tuple[str, ...], list[Cell]] = {}
    for cell in cells:
        alike.setdefault(kinds_of(cell), []).append(cell)
    bits: dict[tuple[int, str, int, str], int] = {}
    covers = {}  # a bit for each pair of levels
    for levels in alike:
        pairs = ((i, levels[i], j, levels[j]) for i, j in combinations(range(len(levels)), 2))
        covers[levels] = sum(1 << bits.setdefault(pair, len(bits)) for pair in pairs)
    missing, turns, used = (1 << len(bits)) - 1, Counter[tuple[int, str]](), Counter[str]()
    chosen: list[Cell] = []
    while missing:
        gains = {levels: (own & missing).bit_count() for levels, own in covers.items()}
        most = max(gains.values())
        equal = [levels for levels, gain in gains.items() if gain == most]
        best = min(equal, key=lambda levels: sum(turns[place] for place in enumerate(levels)))
        missing &= ~covers[best]
        chosen.append(min(alike[best], key=lambda cell: sum(used[level] for level in cell[:3])))
        turns.update(enumerate(best))
        used.update(chosen[-1][:3])
    return chosen


def all_of(kinds: dict[str, dict[str, object]]) -> list[str]:
    return [name for own in kinds.values() for name in own]


# What every change runs: on tables that are made or come with scikit-learn, and on each public one where it is found.
MADE_CELLS = choose_pairwise(list(list_cells(all_of(tables.MADE))))
PUBLIC_CELLS = [
    Cell("bank", "logistic", "simple", "default", "gate"),
    Cell("bank-nominal", "voting", "simple", "default", "report"),
    Cell("adult-holes", "lightgbm", "simple", "default", "pack"),
    Cell("adult-holes", "logistic", "knn", "raw", "blocks"),
    Cell("heloc", "calibrated", "simple", "default", "gate"),
    Cell("default", "forest", "simple", "default", "compare"),
    Cell("electricity", "xgboost-own", "simple", "default", "python"),
    Cell("covertype", "hist-own", "simple", "default", "guard"),
]
# Whole processes, which cost seconds to start.
FRESH_CELLS = [
    Cell("mixed", "lightgbm", "simple", "default", "fresh_processes"),
    Cell("categorical", "xgboost-own", "simple", "default", "fresh_processes"),
]


def whole_matrix() -> list[Cell]:
    """Return every table x model x preparation; spaces and ways take turns, so that each pair of levels appears."""
    alike: dict[tuple[str, ...], list[Cell]] = {}
    for cell in list_cells([*all_of(tables.MADE), *all_of(tables.PUBLIC)]):
        alike.setdefault(cell[:3], []).append(cell)
    turns = [own[(4 * place) % len(own)] for place, own in enumerate(alike.values())]
    fast = {*MADE_CELLS, *PUBLIC_CELLS}
    return [cell for cell in turns if cell not in fast]
