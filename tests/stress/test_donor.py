"""Values of other rows instead of a baseline: drawn as declared, the same in any batch, in both spaces."""

import numpy as np
import pipelines
import pytest

import fragility as fg
from fragility.base.errors import ProtocolError
from fragility.evidence import EvidenceRows
from fragility.protocol import bind
from fragility.questions.stress.draws import row_keys, uniforms
from fragility.questions.stress.labels import with_donors
from fragility.questions.stress.stressors import Donor, Layout

STRESS = fg.Stress((Donor(0.4),), draws=6, tau_confidence=0.6)


@pytest.fixture(scope="module", params=[("logistic", "transformed"), ("lightgbm", "raw")], ids="-".join)
def case(request):
    found = pipelines.fitted("credit_g", *request.param)
    return found, fg.Protocol.fit(found.model, found.X_train, space=request.param[1], baseline="typical")


def test_each_struck_group_takes_the_values_of_a_donor_drawn_for_it(case):
    found, protocol = case
    X = found.X_test[:12]
    rows, donors = with_donors(bind(found.model, X, protocol), found.model, X, found.X_train[:200], protocol)
    assert isinstance(rows, EvidenceRows) and donors.shape == (200, rows.width)
    x, layout = rows.dense(), Layout.of(protocol, rows, donors)
    keys, draws = row_keys(3, "donor", rows.ids), np.arange(4)
    stressed = Donor(0.4).stress_rows(x, keys, draws, layout)
    n_groups = layout.n_groups
    for i in range(len(x)):
        for draw in draws:
            u = uniforms(keys[i : i + 1], draws[draw : draw + 1], np.arange(2 * n_groups))[0, 0]
            for j, g in enumerate(rows.column_group):
                expected = donors[int(u[n_groups + g] * len(donors)), j] if u[g] < 0.4 else x[i, j]
                np.testing.assert_equal(stressed[i, draw, j], expected)


def test_labels_depend_neither_on_batches_nor_on_the_order_of_donors(case):
    found, protocol = case
    X, train = found.X_test[:30], found.X_train[:150]
    whole = fg.label_brittle(found.model, X, protocol, STRESS, donors=train)
    shuffled = fg.label_brittle(found.model, X, protocol, STRESS, donors=train.sample(frac=1.0, random_state=1))
    np.testing.assert_allclose(shuffled.run.draw_margin, whole.run.draw_margin, atol=1e-9)
    part = fg.label_brittle(found.model, X[10:20], protocol, STRESS, donors=train, byte_budget=1)
    np.testing.assert_allclose(part.run.draw_margin, whole.run.draw_margin[10:20], atol=1e-9)


def test_nothing_is_lent_without_donors(case):
    found, protocol = case
    with pytest.raises(ProtocolError, match="another row's values are needed; give training rows with donors="):
        fg.label_brittle(found.model, found.X_test[:3], protocol, STRESS)


def test_it_travels_as_plain_values():
    assert fg.Stress.from_dict(STRESS.to_dict()) == STRESS
    with pytest.raises(ProtocolError, match="donor: rate must be between 0 and 1"):
        Donor(1.5)
