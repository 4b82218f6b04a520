"""What is run: profiles, units and configurations; and the paper's printed values."""

import json

import numpy as np
import pytest
from study_helpers import LOGREG, TINY

from fragility.base.errors import DataError
from fragility_paper import paper_values
from fragility_paper.data import DATASETS
from fragility_paper.plan import PROFILES, Unit, profile_named, unit_config, units_of


def test_the_paper_profile_has_189_units_seed_by_seed():
    units = units_of(profile_named("paper"))
    assert len(units) == len(set(units)) == 189
    assert [unit.seed for unit in units] == [0] * 63 + [1] * 63 + [2] * 63
    assert round(59 / 189, 4) == paper_values.MAIN_DELTA["cfc_rcma"][3]


def test_profiles_have_their_declared_sizes():
    assert len(units_of(profile_named("quick"))) == 9
    assert PROFILES["paper"].audited_rows == PROFILES["paper"].rcma_rows == 2000
    assert PROFILES["paper"].shap_rows >= 256


def test_only_covertype_is_capped_and_full_lifts_it():
    profile = profile_named("paper")
    assert {name: profile.rows_to_train(name) for name in DATASETS if profile.rows_to_train(name)} == {
        "covertype": 100_000
    }
    assert profile_named("paper", full=True).rows_to_train("covertype") is None


def test_an_unknown_profile_lists_the_known_ones():
    known = (
        "smoke, quick, typical-smoke, typical, harden-smoke, harden, harden-modes-smoke, harden-modes, modes-smoke, "
        "modes, paper"
    )
    with pytest.raises(DataError, match=f"unknown profile 'huge'; expected one of {known}"):
        profile_named("huge")


def test_the_config_says_what_decides_the_numbers():
    config = json.loads(json.dumps(unit_config(LOGREG, TINY)))
    assert config["model"]["settings"] == {"C": 1.0, "max_iter": 500}
    assert config["data_content_sha256"] == DATASETS["credit_g"].content_sha256
    assert config["extras"] is True and unit_config(Unit("credit_g", "rf", 1), TINY)["extras"] is False


def test_the_printed_values_agree_with_each_other_where_they_should():
    for score, row in paper_values.SCORE_COMPARISON.items():
        assert np.mean(list(row.values())) == pytest.approx(paper_values.MAIN_CI[score][0], abs=0.0015)
    for dataset, model in paper_values.LOWEST_RCMA.items():
        column = {name: row[dataset] for name, row in paper_values.MAIN_RCMA.items()}
        assert min(column, key=column.get) == model
    cases = [row[0] for name, row in paper_values.GREEDY_EXACT_BEAM.items() if name != "mean"]
    assert sum(cases) == paper_values.GREEDY_EXACT_BEAM["mean"][0]


def test_the_papers_contradictions_are_in_its_values():
    assert paper_values.MAIN_CI["negative_energy"][0] != paper_values.MAIN_CI["margin"][0]
    assert paper_values.REVIEW_BUDGET["cfc_fds"][2] != paper_values.CAPTURE_20_IN_TEXT
    assert paper_values.ATTRIBUTION["cfc_rcma"] != paper_values.MAIN_CI["cfc_rcma"][0]
