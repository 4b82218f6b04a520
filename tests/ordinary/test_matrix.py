"""Ordinary tables x models x preparations x spaces x ways of use; in each cell what a user would run and check."""

import pytest
from ordinary_cells import FRESH_CELLS, MADE_CELLS, PUBLIC_CELLS, whole_matrix
from ordinary_known import KNOWN
from ordinary_ways import USES, audit, prepare


def as_cases(cells):
    """Return cells as cases; those known to fail say why."""
    for cell in cells:
        reason = KNOWN.get(str(cell))
        marks = [] if reason is None else [pytest.mark.xfail(reason=reason, strict=False)]
        yield pytest.param(cell, id=str(cell), marks=marks)


@pytest.mark.parametrize("cell", as_cases([*MADE_CELLS, *FRESH_CELLS, *PUBLIC_CELLS]))
def test_cell(cell, tmp_path, fitted_models):
    work = prepare(cell, tmp_path, fitted_models)
    audit(work)
    USES[cell.way](work)


@pytest.mark.slow
@pytest.mark.parametrize("cell", as_cases(whole_matrix()))
def test_other_cell(cell, tmp_path, fitted_models):
    work = prepare(cell, tmp_path, fitted_models)
    audit(work)
    USES[cell.way](work)
