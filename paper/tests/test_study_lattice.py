"""The lattice of a unit: the same as the public searches say, and what it knows of the mask stressor without draws."""

from dataclasses import replace

import numpy as np
import pytest
from study_helpers import TINY

import fragility as fg
from fragility_paper.data import Dataset, load
from fragility_paper.library import auroc, label_rows, run_stress_rows
from fragility_paper.plan import FAILURE_RATES, Unit
from fragility_paper.tidy import Recorder
from fragility_paper.unit import fit_unit
from fragility_paper.unit.exact_mask import best_ceiling, drawn_ceiling, labelled
from fragility_paper.unit.lattice import MASK_RATE, lattice_of
from fragility_paper.unit.rows import AuditedRows
from fragility_paper.unit.work import Clock, Work


@pytest.fixture(scope="module")
def credit_g() -> Dataset:
    return load("credit_g")


def work_on(data: Dataset, model: str, n: int = 8) -> tuple[Work, AuditedRows]:
    fitted = fit_unit(Unit("credit_g", model, 0), data, TINY)
    positions = fitted.split.test[:n]
    rows = AuditedRows(fitted, positions, fitted.probabilities(positions), fitted.certify(positions))
    return Work(fitted, TINY, Recorder("credit_g", model, 0), Clock(), 0), rows


@pytest.mark.slow
@pytest.mark.parametrize("model", ["logreg", "rf", "lightgbm"])
def test_one_pass_gives_what_the_public_functions_give(credit_g, model):
    work, rows = work_on(credit_g, model)
    fitted, X = work.fitted, work.fitted.rows(rows.positions)
    lattice = lattice_of(work, rows)
    found = fg.find_failing_sets(fitted.model, X, fitted.protocol, progress=False)
    assert lattice.decided.all() and np.array_equal(lattice.smallest, found.size)
    assert np.array_equal(lattice.sets[lattice.found], found.count[lattice.found])
    for rate in FAILURE_RATES:
        chance = fg.assess_reliability(fitted.model, X, fitted.protocol, rate, progress=False)
        np.testing.assert_allclose(lattice.p_flip[rate], chance.p_flip, atol=1e-12)
        if rate == MASK_RATE and lattice.expected_margin is not None:
            np.testing.assert_allclose(lattice.expected_margin, chance.expected_margin, atol=1e-12)
    assert (lattice.expected_margin is None) == (model == "rf")
    assert (lattice.within(fitted.protocol.depth) <= rows.certs.claims.flip_budget).all()


@pytest.mark.slow
def test_networks_have_no_lattice(credit_g):
    assert lattice_of(*work_on(credit_g, "mlp")) is None


@pytest.mark.slow
def test_many_draws_of_the_mask_tend_to_the_expected_margin_and_to_p_flip(credit_g):
    work, rows = work_on(credit_g, "lightgbm", 6)
    lattice = lattice_of(work, rows)
    stress = replace(fg.Stress((fg.Mask(MASK_RATE),)), draws=4_000)
    drawn = label_rows(run_stress_rows(rows.oracle, work.fitted.protocol, stress), stress)
    margins = drawn.run.draw_margin[:, 0]
    error = margins.std(axis=1) / np.sqrt(stress.draws)
    assert (np.abs(margins.mean(axis=1) - lattice.expected_margin) < 5 * error).all()
    share = drawn.run.draw_flip[:, 0].mean(axis=1)
    chance = lattice.p_flip[MASK_RATE]
    assert (np.abs(share - chance) < 5 * np.sqrt(chance * (1 - chance) / stress.draws) + 1e-3).all()


def test_ceilings_without_draws_are_the_means_over_many_draws():
    generator = np.random.default_rng(0)
    chance, draws = generator.beta(0.3, 2.0, size=60), 16
    best, again = [], []
    for _ in range(1_500):
        first, second = generator.binomial(draws, chance), generator.binomial(draws, chance)
        best.append(auroc(chance, first > 0))
        again.append(auroc(second / draws, first > 0))
    assert best_ceiling(chance, draws) == pytest.approx(np.mean(best), abs=5e-3)
    assert drawn_ceiling(chance, draws) == pytest.approx(np.mean(again), abs=5e-3)
    assert drawn_ceiling(chance, draws) < best_ceiling(chance, draws)


def test_labels_that_are_certain_leave_nothing_or_everything_to_rank():
    assert np.isnan(best_ceiling(np.zeros(5), 16))
    assert best_ceiling(np.array([0.0, 0.0, 1.0]), 16) == pytest.approx(1.0)
    np.testing.assert_allclose(labelled(np.array([0.0, 0.5, 1.0]), 2), [0.0, 0.75, 1.0], atol=1e-12)
