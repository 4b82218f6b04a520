"""The verifier in one file is the end-to-end oracle: it proves what `verify` believes, and refuses what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from audited_cases import CASES, SMALL, Audited, make_audit, make_ordinary
from forging_everything import list_forgeries
from forging_folders import forge
from ordinary_cells import MADE_CELLS, PUBLIC_CELLS, Cell

import fragility as fg

# --- honest audits --------------------------------------------------------------------------------------------

FAST = 9  # every so many cells are audited by `make test`


def mark_slow(cells: list[Cell]) -> list[object]:
    marks = [[] if place % FAST == 0 else [pytest.mark.slow] for place in range(len(cells))]
    return [pytest.param(cell, id=str(cell), marks=own) for cell, own in zip(cells, marks, strict=True)]


@pytest.mark.parametrize("cell", mark_slow([*MADE_CELLS, *PUBLIC_CELLS]))
def test_ordinary_audits_are_proved(cell: Cell, tmp_path: Path) -> None:
    """With all blocks, in the space of the cell, and rows as its source has them."""
    case = make_ordinary(cell, tmp_path / "audit")
    result = case.check(limit=512)
    assert result.exit_code == 0, str(result)
    manifest = json.loads((case.folder / "manifest.json").read_text())
    assert (
        {"lattice", "modes", "intervals", "any_value", "baselines"} >= set(manifest["blocks"]) >= {"lattice", "modes"}
    )


# --- forged audits --------------------------------------------------------------------------------------------

# The library alone can tell what a model is called, what its fingerprint covers and what versions there were.
STATEMENTS = ("manifest: model.", "manifest: versions.", "manifest: engine.")


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Audited:
    return make_audit(SMALL, tmp_path_factory.mktemp("oracle") / "audit")


@pytest.fixture(scope="module")
def with_matrix(tmp_path_factory: pytest.TempPathFactory) -> Audited:
    return make_audit(CASES["logistic regression"], tmp_path_factory.mktemp("oracle") / "audit")


def find_disagreements(case: Audited, home: Path, part: slice) -> dict[str, str]:
    """Forgeries that `verify` refuses and the verifier in one file does not, with why."""
    found = {}
    for place, (name, changes) in enumerate(list(list_forgeries(case.folder).items())[part]):
        if name.startswith(STATEMENTS):
            continue
        folder = forge(case.folder, home / str(place), **changes)
        refused = case.check(folder, limit=256).exit_code == 1 or case.check(folder, limit=20_000).exit_code == 1
        if not refused and (why := refuse(case, folder)):
            found[name] = why
    return found


def refuse(case: Audited, folder: Path) -> str:
    try:
        result = fg.verify(folder, case.model, case.X, train=case.X_train)
    except fg.FragilityError as error:
        return str(error)
    return "; ".join(check.detail for check in result.checks if not check.passed)


EVERY = 8


def test_forgeries_that_verify_refuses_are_refused(case: Audited, tmp_path: Path) -> None:
    """Each column of each table, and each value of protocol and manifest, is changed by itself."""
    assert len(list_forgeries(case.folder)) > 350
    assert find_disagreements(case, tmp_path, slice(0, None, EVERY)) == {}


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1, EVERY))
def test_other_forgeries_are_refused(case: Audited, tmp_path: Path, first: int) -> None:
    assert find_disagreements(case, tmp_path, slice(first, None, EVERY)) == {}


@pytest.mark.slow
@pytest.mark.parametrize("first", range(EVERY))
def test_forgeries_in_the_transformed_space_are_refused(with_matrix: Audited, tmp_path: Path, first: int) -> None:
    assert find_disagreements(with_matrix, tmp_path, slice(first, None, EVERY)) == {}
