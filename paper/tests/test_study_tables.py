"""Tables, figures and the reproduction page, from the committed results: nothing here trains."""

import numpy as np
import pandas as pd
import pytest
from study_helpers import REPOSITORY, RESULTS, refuse, run_command

from fragility.base.errors import DataError
from fragility_paper.figures import FIGURES, write_figures
from fragility_paper.results import StudyResults, load_results, save_results
from fragility_paper.table import Table, beside, number
from fragility_paper.tables import all_tables
from fragility_paper.tables.quantities import ranking_values


def test_cells_show_ours_and_the_papers():
    assert beside(0.91234, 0.915) == "0.912 (0.915)"
    assert number(float("nan")) == "–"


def test_a_table_with_a_short_row_is_refused():
    with pytest.raises(DataError, match="a row has 1 cells, the header 2"):
        Table("k", "t", ("a", "b"), (("1",),))


@pytest.fixture(scope="module")
def committed() -> StudyResults:
    if not (RESULTS / "results.parquet").is_file():
        pytest.skip("paper/results is not part of this checkout")
    return load_results(RESULTS)


def test_committed_results_are_small_and_saved_as_they_were_read(committed, tmp_path):
    assert sum(path.stat().st_size for path in RESULTS.rglob("*") if path.is_file()) < 8_000_000
    save_results(committed, tmp_path)
    pd.testing.assert_frame_equal(load_results(tmp_path).table, committed.table)


@pytest.mark.slow  # the page below holds them all
def test_every_table_is_made_from_the_committed_results(committed):
    tables = all_tables(committed)
    for table in tables.values():
        assert table.rows and table.to_markdown().count("\n| ") == len(table.rows) + 1


def test_binary_energy_and_margin_rank_alike_in_the_committed_results(committed):
    energy, margin = (ranking_values(committed, name) for name in ("negative_energy", "margin"))
    binary = energy.index.get_level_values("dataset") != "covertype"
    # Equal but for pairs of rows whose margins differ in the last bit.
    np.testing.assert_allclose(energy[binary], margin[binary], atol=1e-3)


@pytest.mark.slow
def test_every_figure_is_drawn(committed, tmp_path):
    written = write_figures(committed, tmp_path)
    assert [path.stem for path in written] == list(FIGURES["ranking"])
    assert all(path.stat().st_size > 10_000 for path in written)


@pytest.mark.slow
def test_the_figures_of_the_page_are_those_of_the_committed_results(committed, tmp_path):
    """Compared by their pixels, since other versions of libraries may write the same picture in other bytes."""
    from matplotlib.image import imread

    for path in write_figures(committed, tmp_path):
        shown = imread(REPOSITORY / "paper" / "pages" / "images" / "reproduction" / path.name)
        assert np.array_equal(imread(path), shown), f"regenerate {path.name}: fragility study figures paper/results"


@pytest.mark.slow
def test_the_reproduction_page_is_what_the_committed_results_give(tmp_path):
    done = run_command("study", "tables", RESULTS, "--write-docs", tmp_path / "reproduction.md")
    assert done.code == 0, done.err
    page = (REPOSITORY / "paper" / "pages" / "reproduction.md").read_bytes()
    assert (tmp_path / "reproduction.md").read_bytes() == page, (
        "regenerate it: fragility study tables paper/results --write-docs paper/pages/reproduction.md"
    )


def test_one_table_by_name_and_a_name_that_is_none(tmp_path):
    done = run_command("study", "tables", RESULTS, "--table", "readings")
    assert done.out.startswith("### The three readings of the margin")
    assert "unknown table 'reading'; expected one of main-auroc" in refuse(
        "study", "tables", RESULTS, "--table", "reading"
    )
    assert "results.parquet not found" in refuse("study", "tables", tmp_path)


def test_a_table_that_is_asked_for_is_printed_beside_the_results_that_are_written(tmp_path):
    done = run_command("study", "tables", RESULTS, "--table", "readings", "--results", tmp_path / "results")
    assert done.code == 0, done.err
    assert done.out.startswith("### The three readings of the margin")
    assert (tmp_path / "results" / "results.parquet").is_file()
    refuse("study", "tables", RESULTS, "--table", "reading", "--results", tmp_path / "other")
    assert not (tmp_path / "other").exists()
