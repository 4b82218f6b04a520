"""Whether what hardening gained carries over to failures that training did not use."""

import math

import numpy as np
import pytest
from small_audits import declared_model, whole_numbers

import fragility as fg
from fragility.analysis.hardening.assessment import Judged, Transfer, assess_transfer
from fragility.base.shares import paired_difference

TRAINED = (Judged("baseline mean (as in training)", 0.593, 0.009),)


@pytest.mark.parametrize(
    ("before", "after", "gained"),
    [(0.593, 0.009, True), (0.012, 0.010, False), (0.30, 0.28, False), (0.30, 0.26, True), (0.02, 0.0, True)],
)
def test_a_trifle_is_no_gain(before, after, gained):
    assert Judged("noise", before, after).gained is gained


def test_no_confident_prediction_is_no_gain():
    assert not Judged("noise", math.nan, 0.0).gained and not Judged("noise", 0.5, math.nan).gained


def test_a_gain_under_the_trained_baseline_alone_is_said_to_be_that():
    found = Transfer(TRAINED, (Judged("values of other rows", 0.008, 0.007), Judged("noise", 0.002, 0.001)))
    assert found.only_as_trained
    assert found.sentence() == (
        "Fewer confident predictions break: baseline mean (as in training) 0.593 -> 0.009. The gain appears only under "
        "the baseline that the model was trained with, not under values of other rows 0.008 -> 0.007 and noise 0.002 "
        "-> 0.001: do not count on it."
    )


def test_a_gain_that_carries_over_says_where_to():
    found = Transfer(TRAINED, (Judged("values of other rows", 0.172, 0.148), Judged("noise", 0.02, 0.02)))
    assert not found.only_as_trained
    assert found.sentence().endswith(
        "The gain carries over to values of other rows 0.172 -> 0.148, not to noise 0.020 -> 0.020."
    )


def test_without_a_gain_nothing_is_claimed():
    found = Transfer((Judged("baseline typical (as in training)", 0.1, 0.1),), (Judged("noise", 0.3, 0.1),))
    assert not found.only_as_trained and found.sentence().startswith("Hardly fewer confident predictions break")


def test_each_judge_is_its_own_held_out_stress():
    model, X_train, X = declared_model(), whole_numbers(80, 0).to_numpy(), whole_numbers(150, 1).to_numpy()
    milder = declared_model()
    milder.coef_ = model.coef_ / 2
    protocol = fg.Protocol.fit(model, X_train)
    found = assess_transfer(model, milder, X, X_train, (protocol, protocol))
    lost = (fg.Mask(), fg.Dropout())
    judges = {f"baseline {protocol.baseline} (as in training)": (protocol, lost)}
    judges |= {f"baseline {name}": (protocol.with_baseline(name), lost) for name in protocol.alternatives}
    judges |= {"values of other rows": (protocol, (fg.Donor(),)), "noise": (protocol, (fg.Noise(),))}
    assert [judged.by for judged in (*found.trained, *found.others)] == list(judges) and protocol.alternatives
    for judged in (*found.trained, *found.others):
        declared, stressors = judges[judged.by]
        for share, one in ((judged.before, model), (judged.after, milder)):
            labels = fg.label_brittle(one, X, declared, fg.Stress(stressors), donors=X_train)
            assert share == pytest.approx(np.mean(labels.brittle[labels.high_confidence]))
    assert found.lines()[1][0].strip() == found.trained[0].by == f"baseline {protocol.baseline} (as in training)"


def test_failures_that_training_used_are_not_called_a_transfer():
    model, X_train, X = declared_model(), whole_numbers(80, 0).to_numpy(), whole_numbers(60, 1).to_numpy()
    protocol = fg.Protocol.fit(model, X_train)
    plain = assess_transfer(model, model, X, X_train, (protocol, protocol))
    found = assess_transfer(model, model, X, X_train, (protocol, protocol), modes=("lost", "wrong"))
    assert [judged.by for judged in found.trained] == [
        f"baseline {protocol.baseline} (as in training)",
        "values of other rows (as in training)",
    ]
    assert [judged.by for judged in found.others] == [j.by for j in plain.others if j.by != "values of other rows"]
    assert len(found.lines()) == len(plain.lines())
    donors = Judged("values of other rows (as in training)", 0.2, 0.1)
    both = Transfer((*TRAINED, donors), (Judged("noise", 0.002, 0.001),))
    assert "only under the failures that the model was trained with, not under noise" in both.sentence()
    assert Transfer((*TRAINED, donors), ()).sentence().endswith("(as in training) 0.200 -> 0.100.")


def test_a_fall_that_chance_explains_is_not_called_a_gain():
    """On 107 rows a share of 0.346 that falls to 0.270 may be luck: 16 rows mended, 8 spoilt."""
    few = Judged("baseline typical (as in training)", 0.346, 0.270, paired_difference(8, 16, 107), 107)
    many = Judged("baseline typical (as in training)", 0.346, 0.270, paired_difference(80, 160, 1070), 1070)
    assert few.fell and not few.gained and many.gained
    assert Transfer((few,), ()).sentence().startswith("Too few rows to tell whether fewer confident predictions break")
    assert "on 107 rows confident both times" in str(few) and few.difference.upper > 0.0
    assert Transfer((many,), ()).sentence().startswith("Fewer confident predictions break: ")
