"""Which settings of two protocols differ, and what cannot be compared because of it."""

from dataclasses import replace

import pytest
from small_audits import declared_model, small_audit, whole_numbers

import fragility as fg
from fragility.audits.comparison import (
    compare_audits,
    differences_between,
    differences_in_stress,
    list_differences,
)
from fragility.models.outputs import Decision


def protocol(**declared):
    return fg.Protocol.fit(declared_model(), whole_numbers(50, 0).to_numpy(), **declared)


PLAIN = protocol(baseline="mean")


def test_equal_protocols_do_not_differ():
    assert differences_between(PLAIN, protocol(baseline="mean")) == ()


@pytest.mark.parametrize(
    ("setting", "told", "changed"),
    [
        ("baseline", "mean against zero", {"baseline": "zero"}),
        ("reading", "support against current", {"reading": "current"}),
        ("decision", "the larger probability against", {"decision": 0.3}),
        ("groups", "6, raw-origin against 2, declared", {"groups": {f"x{i}": "ab"[i % 2] for i in range(6)}}),
    ],
)
def test_what_decides_flips_is_named(setting, told, changed):
    found = {one.setting: one for one in differences_between(PLAIN, protocol(**{"baseline": "mean", **changed}))}
    assert found[setting].decides_flips and told in str(found[setting])


@pytest.mark.parametrize(
    ("setting", "changed"),
    [
        ("depth", {"depth": 4}),
        ("operators", {"operators": ("attenuate_all",)}),
        ("severities", {"severities": (0.5, 1.0)}),
        ("weights of FDS", {"weights": (1.0, 0.0, 0.0)}),
        ("weights of exposure", {"exposure_weights": (1.0, 1.0, 0.0, 1.0)}),
        ("resolution", {"resolution": 1e-5}),
        ("smoothing", {"smoothing": 0.01}),
    ],
)
def test_what_only_scales_scores_leaves_flips_comparable(setting, changed):
    (found,) = differences_between(PLAIN, protocol(baseline="mean", **changed))
    assert (found.setting, found.decides_flips, found.scales_scores) == (setting, False, True)


def test_held_out_stress_reads_smoothed_margins_and_no_path():
    changed = replace(PLAIN, smoothing=0.01, depth=1, reading="current")
    assert list_differences(differences_in_stress(PLAIN, changed)) == "smoothing (0 against 0.01)"


def test_a_path_of_one_group_says_nothing_about_two():
    (found,) = differences_between(PLAIN, replace(PLAIN, depth=1))
    assert found.setting == "depth" and found.decides_flips


def test_groups_of_the_same_names_with_other_columns_differ():
    first, swapped = (
        protocol(baseline="mean", groups={f"x{i}": names[i % 2] for i in range(6)}) for names in ("ab", "ba")
    )
    (found,) = differences_between(first, swapped)
    assert found.setting == "groups" and found.decides_flips and "others" in found.second


def test_explicit_values_are_compared_value_by_value():
    one, two = (protocol(baseline=[0.0] * 5 + [value]) for value in (0.0, 1.0))
    assert [found.setting for found in differences_between(one, two)] == ["baseline"]
    assert differences_between(one, one) == ()


def test_a_baseline_fitted_on_other_rows_is_named_but_compares():
    other = fg.Protocol.fit(declared_model(), whole_numbers(60, 5).to_numpy(), baseline="mean")
    (found,) = differences_between(PLAIN, other)
    assert (found.setting, found.decides_flips, found.scales_scores) == ("training rows", False, False)
    assert str(found) == "training rows (50 rows against 60 rows, others)"


def test_what_decides_flips_comes_first_in_words():
    changed = replace(PLAIN, depth=4, decision=Decision("repaid", 0.4))
    told = list_differences(differences_between(PLAIN, changed))
    assert told.startswith("decision (") and told.endswith(") and depth (6 against 4)")


def test_a_change_of_protocol_is_not_told_as_the_model_s_merit():
    """One model under two baselines: nothing "no longer flips early"."""
    same_model = [small_audit(200, baseline=baseline) for baseline in ("mean", [5.0, -5.0, 5.0, 5.0, 5.0, 5.0])]
    told = compare_audits(*same_model, 0.5).to_text()
    assert "no longer" not in told
    assert "baseline (mean against explicit)" in told and "do not compare the models" in told
    assert "under the first protocol only" in told
    both = [set(certs.table.column("id").to_pylist()) for certs in same_model]
    assert both[0] == both[1] and "200 rows in common" in told
    again = compare_audits(same_model[0], small_audit(200, baseline="mean"), 0.5)
    assert again.comparable and "no longer flip early: 0" in again.to_text()
