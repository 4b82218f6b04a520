"""Displays draw what the certificates say, on the axes they are given, and leave matplotlib's settings alone."""

import os
import subprocess
import sys

import matplotlib
import numpy as np
import pytest
from matplotlib.figure import Figure
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import GradientBoostingClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import fragility as fg
from fragility.analysis.displays import MARGIN_LABEL, FragileCalibrationDisplay
from fragility.base.errors import DataError

matplotlib.use("agg")

NUMERIC = ["duration", "credit_amount", "age"]
NOMINAL = ["checking_status", "savings_status", "purpose"]


@pytest.fixture(scope="module", params=["support", "current"])
def certs(request, credit):
    X, y = credit
    X = X[NUMERIC + NOMINAL]
    encode = ColumnTransformer([("n", OneHotEncoder(sparse_output=False), NOMINAL), ("q", StandardScaler(), NUMERIC)])
    model = make_pipeline(encode, GradientBoostingClassifier(n_estimators=60, random_state=0)).fit(X[:600], y[:600])
    protocol = fg.Protocol.fit(model, X[:600], baseline="typical", reading=request.param)
    return fg.audit(model, X[600:800], protocol, engine="blackbox")


@pytest.fixture(autouse=True)
def close_figures():
    yield
    import matplotlib.pyplot as plt

    plt.close("all")


def flipped_position(certs) -> int:
    return int(np.flatnonzero(certs.to_pandas()["flipped"])[0])


def stable_position(certs) -> int:
    return int(np.flatnonzero(~certs.to_pandas()["flipped"])[0])


def test_collapse_shows_margin_groups_and_flip(certs):
    row = flipped_position(certs)
    cert = certs[row]
    display = fg.CollapseDisplay.from_certificates(certs, rows=[row])
    line = display.ax_.lines[1]
    assert np.array_equal(line.get_ydata(), cert.path_margin)
    ticks = [label.get_text() for label in display.ax_.get_xticklabels()]
    assert ticks == ["full record", *(f"− {name}" for name in cert.path)]
    legend = [text.get_text() for text in display.ax_.get_legend().get_texts()]
    groups = "1 group" if cert.flip_budget == 1 else f"{cert.flip_budget} groups"
    assert legend == [f"{cert.predicted!r} at {cert.confidence:.0%}", f"flips to {cert.flips_to!r} after {groups}"]
    ring = display.ax_.lines[-1]
    assert (ring.get_xdata()[0], ring.get_ydata()[0]) == (cert.flip_budget, cert.path_margin[cert.flip_budget])


def test_collapse_without_a_flip_marks_none(certs):
    display = fg.CollapseDisplay.from_certificates(certs, rows=[stable_position(certs)])
    assert display.curves[0].flip_step is None
    assert len(display.ax_.get_legend().get_texts()) == 1


def test_collapse_draws_one_panel_a_row(certs):
    display = fg.CollapseDisplay.from_certificates(certs, rows=[0, 3, -1])
    assert display.ax_.shape == (3,)
    assert [ax.get_title(loc="left") for ax in display.ax_] == [f"row {certs[i].id}" for i in (0, 3, -1)]
    assert display.ax_[0].get_ylabel() == MARGIN_LABEL[certs.protocol.reading]
    assert all(ax.get_xlabel() for ax in display.ax_)


def test_collapse_takes_the_place_of_given_axes(certs):
    figure = Figure()
    ax = figure.add_subplot()
    display = fg.CollapseDisplay.from_certificates(certs, rows=[0], ax=ax)
    assert display.ax_ is ax and display.figure_ is figure
    several = fg.CollapseDisplay.from_certificates(certs, rows=[0, 1], ax=Figure().add_subplot())
    assert len(several.ax_) == 2


@pytest.mark.parametrize(
    ("rows", "message"), [([], "at least one position"), ([200], "below 200, the number of certificates; got 200")]
)
def test_collapse_refuses_rows_that_are_not_there(certs, rows, message):
    with pytest.raises(DataError, match=message):
        fg.CollapseDisplay.from_certificates(certs, rows=rows)


def test_a_display_can_be_drawn_again(certs):
    display = fg.CollapseDisplay.from_certificates(certs)
    first, ax = display.figure_, Figure().add_subplot()
    assert display.plot(ax=ax) is display
    assert display.ax_ is ax and display.figure_ is not first


def test_map_draws_every_prediction_once(certs):
    display = fg.FragilityMapDisplay.from_certificates(certs)
    points = np.concatenate([collection.get_offsets() for collection in display.ax_.collections])
    table = certs.to_pandas()
    assert len(points) == len(table)
    assert np.allclose(np.sort(points[:, 0]), np.sort(table["confidence"]))
    assert np.allclose(np.sort(points[:, 1]), np.sort(table["exposure"]))
    assert display.ax_.get_xlabel() and display.ax_.get_ylabel()


def test_the_corner_holds_the_most_fragile_confident_predictions(certs):
    display = fg.FragilityMapDisplay.from_certificates(certs, min_confidence=0.8, share=0.25)
    table = certs.to_pandas()
    confident = table[table["confidence"] >= 0.8]
    assert display.in_corner.sum() >= 0.25 * len(confident)
    inside, outside = table[display.in_corner], confident[~confident.index.isin(table.index[display.in_corner])]
    assert (inside["confidence"] >= 0.8).all()
    assert inside["exposure"].min() >= outside["exposure"].max()
    label = display.ax_.patches[0].get_label()
    assert label == f"exposed corner: {display.in_corner.sum()} predictions"


def test_map_without_confident_predictions_has_no_corner(certs):
    display = fg.FragilityMapDisplay.from_certificates(certs, min_confidence=1.0)
    assert np.isnan(display.threshold) and not display.in_corner.any() and not display.ax_.patches


@pytest.mark.parametrize("share", [0.0, 1.5])
def test_map_refuses_a_share_that_is_none(certs, share):
    with pytest.raises(DataError, match=r"share must lie in \(0, 1\]"):
        fg.FragilityMapDisplay.from_certificates(certs, share=share)


def test_the_users_style_is_left_as_it_was(certs):
    before = dict(matplotlib.rcParams)
    fg.CollapseDisplay.from_certificates(certs)
    fg.FragilityMapDisplay.from_certificates(certs)
    assert dict(matplotlib.rcParams) == before


# --- calibration --------------------------------------------------------------------------------------------------


def stated_rows(n: int = 2000):
    """Probabilities of two classes, columns drawn by them, and any FDS."""
    rng = np.random.default_rng(0)
    share, fds = rng.uniform(0.05, 0.95, n), rng.beta(2, 3, n)
    return np.column_stack([1 - share, share]), (rng.random(n) < share).astype(int), fds


def test_reliability_draws_both_panels_with_labels():
    p, y, fds = stated_rows()
    display = FragileCalibrationDisplay.from_predictions(y, {"raw": p, "sharper": p**2 / (p**2).sum(1)[:, None]}, fds)
    titles = [ax.get_title(loc="left") for ax in display.ax_]
    assert titles == ["All rows (n = 2,000)", "Most fragile 20% (n = 400)"]
    assert all("confidence" in ax.get_xlabel() for ax in display.ax_)
    assert "accuracy" in display.ax_[0].get_ylabel()
    assert len(display.ax_[0].get_lines()) == 1 + 2
    figure = Figure()
    assert display.plot(list(figure.subplots(1, 2))).figure_ is figure
    assert len(display.plot(Figure().add_subplot()).ax_) == 2


def test_reliability_of_one_model_and_of_labels_by_name():
    p, y, fds = stated_rows()
    single = FragileCalibrationDisplay.from_predictions(y, p, fds, bins=5)
    assert list(single.curves["fragile"]) == ["model"]
    assert single.curves["fragile"]["model"].count.sum() == 400
    named = FragileCalibrationDisplay.from_predictions(np.array(["no", "yes"])[y], p, fds, classes=("no", "yes"))
    assert named.curves["all"]["model"].count.sum() == 2000
    with pytest.raises(DataError, match="2 axes were expected, one for each panel, got 1"):
        single.plot([Figure().add_subplot()])
    with pytest.raises(DataError, match="at least one array of probabilities is needed"):
        FragileCalibrationDisplay.from_predictions(y, {}, fds)


def test_the_first_figure_leaves_the_settings_that_its_backend_makes(tmp_path):
    """As a notebook's backend does, this one declares when it is loaded that figures are shown as they are made."""
    (tmp_path / "shown.py").write_text(
        "import matplotlib\nfrom matplotlib.backends.backend_agg import *\nmatplotlib.interactive(True)\n"
        "matplotlib.rcParams['figure.dpi'] = 72\n"
    )
    script = """
import matplotlib, numpy as np
from fragility.pages.drawing import ReliabilityDisplay
display = ReliabilityDisplay(["a", "b"], [3.0, 1.0], 4.0, 10, "each group fails with rate 0.1").plot()
assert matplotlib.get_backend() == "module://shown", matplotlib.get_backend()
assert matplotlib.is_interactive() and matplotlib.rcParams["figure.dpi"] == 72
assert matplotlib.rcParams["axes.grid"] is False and display.figure_.get_facecolor() == (1.0, 1.0, 1.0, 1.0)
"""
    given = {**os.environ, "MPLBACKEND": "module://shown"}
    given["PYTHONPATH"] = os.pathsep.join([str(tmp_path), *sys.path])
    subprocess.run([sys.executable, "-c", script], env=given, check=True, timeout=60)


def test_an_opened_folder_is_drawn_as_certificates_are(certs, tmp_path):
    stored = fg.open_audit(certs.save(tmp_path / "audit"))
    ours, theirs = (fg.FragilityMapDisplay.from_certificates(one, by="fds") for one in (certs, stored))
    assert np.array_equal(ours.score, theirs.score) and np.array_equal(ours.in_corner, theirs.in_corner)
    curves = [fg.CollapseDisplay.from_certificates(one, rows=[-1]).curves for one in (certs, stored)]
    assert curves[0] == curves[1]
