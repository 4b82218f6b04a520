"""The cells of the ordinary-use matrix: table x model x preparation x space x groups x source x ways; a selection."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import combinations, product
from typing import NamedTuple

import ordinary_models as models
import ordinary_tables as tables

WAYS = ("python", "report", "gate", "pack", "compare", "policy", "guard", "parity", "blocks", "evaluate")
AT_ONCE = 2  # ways that share the audit of a cell of the selection

# Each field alone, fields that say nearly the same together, or as a JSON file declares.
GROUPS = ("fields", "merged", "declared")
# What holds the rows: files of either kind, given to the commands, or a table in memory.
SOURCES = ("parquet", "csv", "polars")


class Cell(NamedTuple):
    table: str
    model: str
    preparation: str
    space: str
    groups: str
    source: str
    ways: tuple[str, ...]

    def __str__(self) -> str:
        return "-".join([*self[:-1], "+".join(self.ways)])


def is_possible(table: str, model: str, preparation: str, space: str, groups: str, source: str) -> bool:
    """Whether people would build this: numbers to impute, categories to hand over, columns that can be traced."""
    kind = tables.KIND[table]
    if model.endswith("-own"):  # takes the table as it is, in the types of pandas
        holds_names = kind != "numeric" and table not in NUMBERS
        return preparation == "simple" and space == "default" and holds_names and source == "parquet"
    if kind == "nominal":
        return preparation in ("simple", "pca") and (space == "raw" or preparation == "simple")
    if preparation in models.CROSSING:
        return space == "raw"
    if preparation in ("knn", "iterative"):  # each number that is filled comes from several fields
        return kind == "holes" and (space == "raw" or groups != "declared")
    return True


NUMBERS = ("digits", "wine", "heloc", "default", "cancer")
Place = tuple[str, ...]  # a cell but for its ways


def list_places(names: list[str]) -> Iterator[Place]:
    for table, model, preparation, space, groups, source in product(
        names, models.KIND, models.PREPARATIONS, models.SPACES, GROUPS, SOURCES
    ):
        if is_possible(table, model, preparation, space, groups, source):
            yield table, model, preparation, space, groups, source


def kinds_of(place: Place) -> tuple[str, ...]:
    table, model, preparation, *others = place
    return (tables.KIND[table], models.KIND[model], models.PREPARATIONS[preparation], *others)


def choose_pairwise(places: list[Place]) -> list[Cell]:
    """Return few cells in which every possible pair of levels appears: greedily, and the same on any machine.

    The levels are the kinds of tables, of models and of preparations, those of the other factors, and the ways; tables,
    models and preparations of a kind take turns.
    """
    alike: dict[tuple[str, ...], list[Place]] = {}
    for place in places:
        alike.setdefault(kinds_of(place), []).append(place)
    bits: dict[tuple[int, str, int, str], int] = {}

    def mark(pairs: Iterator[tuple[int, str, int, str]]) -> int:
        return sum(1 << bits.setdefault(pair, len(bits)) for pair in pairs)

    shows = {own: mark((i, own[i], j, own[j]) for i, j in combinations(range(len(own)), 2)) for own in alike}
    adds = {own: {way: mark((i, kind, -1, way) for i, kind in enumerate(own)) for way in WAYS} for own in alike}
    missing, turns, used = (1 << len(bits)) - 1, Counter[tuple[int, str]](), Counter[str]()

    def choose_ways(own: tuple[str, ...]) -> tuple[int, tuple[str, ...]]:
        """Return the pairs that a cell would add, and its ways."""
        left, ways = missing & ~shows[own], list[str]()
        for _ in range(AT_ONCE):
            best = max(WAYS, key=lambda way: ((adds[own][way] & left).bit_count(), -used[way]))
            if ways and not adds[own][best] & left:
                break
            ways.append(best)
            left &= ~adds[own][best]
        return missing & ~left, tuple(ways)

    chosen: list[Cell] = []
    while missing:
        offers = {own: choose_ways(own) for own in alike}
        most = max(gain.bit_count() for gain, _ in offers.values())
        equal = [own for own, (gain, _) in offers.items() if gain.bit_count() == most]
        best = min(equal, key=lambda own: sum(turns[level] for level in enumerate(own)))
        gain, ways = offers[best]
        missing &= ~gain
        place = min(alike[best], key=lambda place: sum(used[name] for name in place[:3]))
        chosen.append(Cell(*place, ways))
        turns.update(enumerate(best))
        used.update([*place[:3], *ways])
    return chosen


def all_of(kinds: dict[str, dict[str, object]]) -> list[str]:
    return [name for own in kinds.values() for name in own]


# On tables that are made or come with scikit-learn. The first cells show most pairs: every change runs so many of them,
# in which every level of every factor appears, and more than nine in ten pairs.
MADE_CELLS = choose_pairwise(list(list_places(all_of(tables.MADE))))
FIRST = 28
# On public tables, where they are found.
PUBLIC_CELLS = [
    Cell("bank", "logistic", "simple", "default", "fields", "csv", ("gate",)),
    Cell("bank-nominal", "voting", "simple", "default", "declared", "parquet", ("report",)),
    Cell("adult-holes", "lightgbm", "simple", "default", "fields", "csv", ("pack",)),
    Cell("heloc", "calibrated", "simple", "default", "merged", "parquet", ("gate",)),
    Cell("default", "forest", "simple", "default", "merged", "polars", ("gate",)),
    Cell("electricity", "xgboost-own", "simple", "default", "fields", "parquet", ("python", "evaluate")),
    Cell("covertype", "hist-own", "simple", "default", "fields", "parquet", ("guard",)),
]
SLOW_PUBLIC_CELLS = [
    Cell("adult-holes", "logistic", "knn", "raw", "fields", "parquet", ("blocks",)),
    Cell("default", "forest", "simple", "default", "merged", "polars", ("compare",)),
]
# Audited in whole processes as well, which cost seconds to start.
FRESH_CELLS = [
    Cell("mixed", "lightgbm", "simple", "default", "fields", "parquet", ()),
    Cell("categorical", "xgboost-own", "simple", "default", "fields", "parquet", ()),
]


def whole_matrix() -> list[Cell]:
    """Return every table x model x preparation; spaces, groups, sources and ways take turns."""
    alike: dict[Place, list[Place]] = {}
    for place in list_places([*all_of(tables.MADE), *all_of(tables.PUBLIC)]):
        alike.setdefault(place[:3], []).append(place)
    turns = enumerate(alike.values())
    return [Cell(*own[(7 * turn) % len(own)], (WAYS[turn % len(WAYS)],)) for turn, own in turns]
