"""Sliders over the values of a case in a real browser: keys, boxes, shading, and what the model answers."""

import pytest
from reviewing import DESK, PHONE, browser
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select
from workbench import Client, saved_audit, started

import fragility as fg
from fragility.models.loading import skops_bytes
from fragility.questions.modes.stability import StabilityIntervals

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def served(audited, tmp_path_factory):
    """The command over an audit with failure modes; makes an address for each browser."""
    folder = tmp_path_factory.mktemp("fields")
    made = saved_audit(
        folder / "audit", audited.model, audited.X[:100], audited.certs.protocol, modes=20,
        ids=audited.certs.table.column("id").to_pylist()[:100],
    )  # fmt: skip
    (folder / "model.skops").write_bytes(skops_bytes(audited.model))
    made.X.assign(loan=made.certs.table.column("id").to_pylist()).to_parquet(folder / "rows.parquet")
    words = ("--model", folder / "model.skops", "--trust", "--data", folder / "rows.parquet", "--id", "loan")
    with started(made, folder / "review.sqlite", *words) as (_, address):
        yield made, Client(address, "Host").new_address


@pytest.fixture(scope="module")
def moving(served) -> tuple[str, str, int, StabilityIntervals]:
    """The id of a row, a field of numbers that flips it above, the row's place, and all intervals."""
    made, _ = served
    found = fg.find_stability_intervals(made.model, made.X, made.certs.protocol)
    for row in range(len(found)):
        for name in ("duration", "credit_amount"):
            if found.interval(row, name).flips_above is not None:
                return str(made.certs[row].id), name, row, found
    raise AssertionError


def open_case(person, row: str) -> None:
    person.go(f"/queue?search={row}")
    person.follow(lambda: person.all("[data-line]")[0].click())
    person.until(lambda: person.find("#wi-fields").get_attribute("data-ready") == "1")


def test_a_slider_asks_the_model_where_the_shaded_part_ends(served, moving, tmp_path):
    row, name, place, found = moving
    one = found.interval(place, name)
    with browser(served[1](), tmp_path / "profile") as ana:
        ana.enter("Ana")
        open_case(ana, row)
        slider = ana.find(f"input[data-field={name}]")
        exact = slider.find_element("xpath", "../..").find_element("css selector", "[data-exact]")
        assert slider.get_attribute("aria-valuetext") == str(one.value) == exact.get_attribute("value")
        described = ana.find(f"#{slider.get_attribute('aria-describedby')}").text
        assert found.describe(place, name) in described and f"flips to '{one.flips_above.predicted}'" in described
        exact.send_keys(Keys.CONTROL, "a")
        exact.send_keys(str(one.high), Keys.TAB)
        ana.until(lambda: ana.text("#wi-verdict") == "holds")
        slider.send_keys(Keys.ARROW_RIGHT)  # one step beyond the end, without a pointer
        ana.until(lambda: one.flips_above.predicted in ana.text("#wi-verdict"))
        assert ana.text("#wi-class") == one.flips_above.predicted and ana.text("#wi-margin").startswith("-")
        assert exact.get_attribute("value") == str(one.flips_above.value) == slider.get_attribute("aria-valuetext")
        answer, rest = (ana.find(css).rect for css in (".answer", "#wi-fields"))
        assert answer["y"] < rest["y"] + rest["height"]
        ana.driver.execute_script("document.getElementById('wi-reset').click()")
        ana.until(lambda: ana.text("#wi-verdict") == "" and exact.get_attribute("value") == str(one.value))
        held = ana.find(f"input[data-field={name}] + svg .held")
        low, high = (float(slider.get_attribute(end)) for end in ("min", "max"))
        right = float(held.get_attribute("x")) + float(held.get_attribute("width"))
        assert right == pytest.approx(100 * (one.high - low) / (high - low), abs=0.01)
        ana.check_quiet()


def test_categories_that_flip_are_marked_and_chosen(served, tmp_path):
    made, new_address = served
    found = fg.find_stability_intervals(made.model, made.X, made.certs.protocol, ["checking_status"])
    place = next(i for i in range(len(found)) if found.interval(i, "checking_status").categories)
    one = found.interval(place, "checking_status")
    with browser(new_address(), tmp_path / "profile") as ben:
        ben.enter("Ben")
        open_case(ben, str(made.certs[place].id))
        choice = Select(ben.find("select[data-field=checking_status]"))
        marked = [option.text for option in choice.options if "flips to" in option.text]
        assert marked == [f"{flip.value} → flips to {flip.predicted}" for flip in one.categories]
        choice.select_by_visible_text(marked[0])
        ben.until(lambda: one.categories[0].predicted in ben.text("#wi-verdict"))
        ben.check_quiet()


@pytest.mark.parametrize(("size", "dark"), [(DESK, False), (PHONE, True)])
def test_pages_with_modes_and_sliders_are_accessible_and_fit(served, moving, tmp_path, size, dark):
    with browser(served[1](), tmp_path / "profile", size, dark) as ana:
        ana.enter("Ana Wide")
        ana.go("/queue?by=wrong&mode=noisy")
        assert ana.findings() == [] and ana.fits()
        ana.follow(lambda: ana.all("[data-line]")[0].click())
        assert "Evidence that is wrong" in ana.text("#h-modes")
        open_case(ana, moving[0])
        ana.driver.execute_script("for (const d of document.querySelectorAll('details.more')) d.open = true")
        assert ana.findings() == [] and ana.fits()
        ana.check_quiet()
