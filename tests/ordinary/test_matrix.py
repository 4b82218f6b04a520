"""Ordinary tables x models x preparations x ... x ways of use; in each cell what a user would run and check."""

from itertools import combinations

import pytest
from ordinary_cells import (
    FIRST,
    FRESH_CELLS,
    MADE_CELLS,
    PUBLIC_CELLS,
    SLOW_PUBLIC_CELLS,
    WAYS,
    kinds_of,
    whole_matrix,
)
from ordinary_known import KNOWN
from ordinary_ways import USES, audit, compare_fresh_processes, prepare


def as_cases(cells):
    """Return cells as cases; those known to fail say why."""
    cases = []
    for cell in cells:
        reason = KNOWN.get(str(cell))
        marks = [] if reason is None else [pytest.mark.xfail(reason=reason, strict=False)]
        cases.append(pytest.param(cell, id=str(cell), marks=marks))
    return cases


def use(cell, folder, models):
    work = prepare(cell, folder, models)
    audit(work)
    for way in cell.ways:
        USES[way](work)


@pytest.mark.parametrize("cell", as_cases([*MADE_CELLS[:FIRST], *PUBLIC_CELLS]))
def test_cell(cell, tmp_path, fitted_models):
    use(cell, tmp_path, fitted_models)


def test_the_first_cells_have_every_level_and_nine_pairs_in_ten():
    def pairs(cells):
        kinds = [[*enumerate(kinds_of(cell[:-1])), *((-1, way) for way in cell.ways)] for cell in cells]
        return {pair for own in kinds for pair in combinations(own, 2)}

    first = MADE_CELLS[:FIRST]
    for place in range(len(first[0]) - 1):
        assert {cell[place] for cell in first} == {cell[place] for cell in MADE_CELLS}
    assert {way for cell in first for way in cell.ways} == set(WAYS)
    assert len(pairs(first)) > 0.9 * len(pairs(MADE_CELLS))


def test_fresh_processes_write_the_same_bytes(tmp_path, fitted_models):
    works = []
    for cell in FRESH_CELLS:
        (tmp_path / cell.table).mkdir()
        works.append(prepare(cell, tmp_path / cell.table, fitted_models))
        audit(works[-1])
    compare_fresh_processes(works)


@pytest.mark.slow
@pytest.mark.parametrize("cell", as_cases([*MADE_CELLS[FIRST:], *SLOW_PUBLIC_CELLS, *whole_matrix()]))
def test_other_cell(cell, tmp_path, fitted_models):
    use(cell, tmp_path, fitted_models)
