"""The workbench in a real browser: what a reviewer does with mouse and keys, on a desk and on a phone.

Needs Debian's chromium and chromium-driver (`make setup-browser`); skipped, with the reason, where they are absent.
"""

from urllib.parse import urlsplit

import pytest
import skops.io
from reviewing import DESK, PHONE, browser
from selenium.webdriver.common.keys import Keys
from workbench import Client, started


@pytest.fixture(scope="module")
def served(audited, tmp_path_factory):
    """The command as a user starts it, with model and rows; makes an address for each browser."""
    folder = tmp_path_factory.mktemp("served")
    skops.io.dump(audited.model, folder / "model.skops")
    rows = audited.X.assign(loan=audited.certs.table.column("id").to_pylist())
    rows.to_parquet(folder / "rows.parquet")
    words = ("--model", folder / "model.skops", "--trust", "--data", folder / "rows.parquet", "--id", "loan")
    with started(audited, folder / "review.sqlite", *words) as (_, address):
        yield Client(address, "Host").new_address


def test_a_decision_in_the_browser(served, tmp_path):
    with browser(served(), tmp_path / "profile") as ana:
        ana.enter("Ana Lima")
        ana.follow(lambda: ana.all("[data-line]")[3].click())
        ana.find("#note").send_keys("checked by telephone")
        ana.follow(lambda: ana.find("button.escalate").click())
        assert "escalated." in ana.text(".notice")
        ana.check_quiet()


@pytest.mark.slow
def test_the_way_of_a_review(served, audited, tmp_path):
    """Open the queue, filter, open a case, use what-if, decide, undo, reload, see it."""
    with browser(served(), tmp_path / "profile") as ana:
        ana.enter("Ana")
        assert urlsplit(ana.driver.current_url).query == "" and "token" not in ana.driver.page_source
        ana.find("#f-label").send_keys("good")
        ana.find("#f-budget").send_keys("all")
        ana.follow(lambda: ana.find(".filter-form button[type=submit]").click())
        assert "label=good" in ana.driver.current_url and "budget=all" in ana.driver.current_url
        assert {cell.text for cell in ana.all("td[data-label=predicted]")} == {"good"}
        ana.follow(lambda: ana.all("[data-line]")[0].click())
        name = ana.text("h1").split()[1]
        cert = audited.certs.by_id(name)
        assert cert.flipped
        ana.driver.execute_script("document.getElementById('wi-path').click()")
        ana.until(lambda: ana.text("#wi-class") == cert.flips_to)
        assert ana.text("#wi-margin") == f"{cert.path_margin[cert.flip_budget]:+.3f}"
        ana.driver.execute_script("document.getElementById('wi-reset').click()")
        ana.until(lambda: ana.text("#wi-class") == cert.predicted)
        assert ana.text("#wi-margin") == f"{cert.margin:+.3f}"
        assert ana.text("#wi-confidence") == f"{cert.confidence:.1%}"
        slider = ana.find(f"input[data-group={cert.path[0]}]")
        slider.send_keys(Keys.END)
        ana.until(lambda: ana.text("#wi-margin") == f"{cert.path_margin[1]:+.3f}")
        case = ana.driver.current_url
        ana.find("#note").send_keys("asked for a payslip")
        ana.find("input[name=advance]").click()
        ana.follow(lambda: ana.find("button.accept").click())
        assert ana.text("h1 .status") == "accepted" and "asked for a payslip" in ana.text(".history")
        ana.follow(lambda: ana.press("u"))
        assert ana.text("h1 .status") == "open"
        ana.driver.get(case)
        ana.follow(ana.driver.refresh)
        history = [line.text for line in ana.all(".history li")]
        assert len(history) == 2 and "undone" in history[0] and "accepted" in history[1] and "(undone)" in history[1]
        ana.check_quiet()


@pytest.mark.slow
def test_everything_by_keyboard(served, tmp_path):
    with browser(served(), tmp_path / "profile") as ben:
        ben.enter("Ben")
        ben.press("?")
        ben.until(lambda: ben.find("#help").is_displayed())
        ben.press(Keys.ESCAPE)
        ben.until(lambda: not ben.find("#help").is_displayed())
        ben.press("j")
        ben.press("j")
        second = ben.focused("textContent")
        assert second == ben.all("[data-line]")[1].text
        ben.follow(lambda: ben.driver.switch_to.active_element.send_keys(Keys.ENTER))
        assert ben.text("h1").split()[1] == second
        ben.follow(lambda: ben.press("k"))
        first = ben.text("h1").split()[1]
        ben.follow(lambda: ben.press("j"))
        assert first != second == ben.text("h1").split()[1]
        ben.press("w")
        assert ben.focused("dataset.group")
        ben.driver.switch_to.active_element.send_keys(Keys.END)
        ben.until(lambda: ben.text("#wi-verdict") != "")
        ben.press("m")
        assert ben.focused("id") == "note"
        ben.driver.switch_to.active_element.send_keys("aejk?")  # letters of a note are letters
        ben.driver.switch_to.active_element.send_keys(Keys.ESCAPE)
        ben.press("r")
        assert ben.focused("name") == "group"
        ben.follow(lambda: ben.press("r"))
        assert "evidence to re-acquire." in ben.text(".notice")
        ben.follow(lambda: ben.press("u"))
        assert ben.text("h1").split()[1] == second and ben.text("h1 .status") == "open"
        ben.follow(lambda: ben.press("e"))
        assert "escalated." in ben.text(".notice")
        ben.follow(lambda: ben.press("g"))
        ben.press("/")
        assert ben.focused("id") == "f-search"
        ben.driver.switch_to.active_element.send_keys(second)
        ben.follow(lambda: ben.driver.switch_to.active_element.send_keys(Keys.ENTER))
        assert [line.text for line in ben.all("[data-line]")] == [second]
        ben.follow(lambda: ben.press("t"))
        assert ben.text("h1") == "Team"
        ben.follow(lambda: ben.press("g"))
        assert [line.text for line in ben.all("[data-line]")] == [second]
        ben.go("/queue")
        ben.follow(lambda: ben.press("n"))
        assert ben.text("h1").startswith("Case")
        ben.check_quiet()


def decisions_of(ana) -> int:
    """How many decisions of this reviewer stand, as Team counts them."""
    ana.go("/team")
    return sum(int(cell.text) for cell in ana.all("#counts tr[data-reviewer='" + ana.text(".person strong") + "'] td"))


@pytest.mark.slow
def test_a_held_key_decides_one_case(served, tmp_path):
    with browser(served(), tmp_path / "profile") as ana:
        ana.enter("Ana Held")
        ana.follow(lambda: ana.press("n"))
        ana.hold("a", 30)
        ana.until(lambda: "accepted." in ana.text(".notice"))
        assert decisions_of(ana) == 1
        ana.go("/queue")
        ana.press("j")
        ana.hold("j", 4)  # through the lines of the queue a held key may run
        assert ana.focused("textContent") == ana.all("[data-line]")[4].text


@pytest.mark.slow
def test_going_on_skipping_parking_and_commenting(audited, tmp_path):
    """j j a leads to the fourth case, n skips, p puts aside, c comments; Back offers no stale undo."""
    with started(audited, tmp_path / "review.sqlite") as (_, address), browser(address, tmp_path / "profile") as ana:
        ana.enter("Ana")
        ana.go("/queue?budget=20")
        order = [line.text for line in ana.all("[data-line]")]
        assert len(order) > 4

        def here() -> str:
            return ana.text("h1").split()[1]

        ana.follow(lambda: ana.press("n"))
        assert here() == order[0] and ana.text(".place") == f"1 of {len(order)}"
        ana.follow(lambda: ana.press("j"))
        ana.follow(lambda: ana.press("j"))
        ana.follow(lambda: ana.press("a"))
        assert here() == order[3] and ana.text(".place") == f"4 of {len(order)}"
        assert f"Case {order[2]}: accepted." in ana.text(".notice")
        ana.follow(lambda: ana.press("n"))  # skip: the one after, nothing is written
        assert here() == order[4]
        ana.press("m")
        ana.driver.switch_to.active_element.send_keys("called, nobody there")
        ana.driver.switch_to.active_element.send_keys(Keys.ESCAPE)
        ana.follow(lambda: ana.press("c"))
        assert here() == order[4] and "comment." in ana.text(".notice") and ana.text("h1 .status") == "open"
        ana.press("y")
        assert ana.focused("id") == "reason"
        ana.choose("#reason", 8)
        ana.press(Keys.ESCAPE)
        ana.follow(lambda: ana.press("p"))
        assert f"Case {order[4]}: parked." in ana.text(".notice") and here() == (order[5:] + order)[0]
        while "No open case is left" not in ana.driver.page_source:
            ana.follow(lambda: ana.press("e"))
        assert "(1 parked)" in ana.text(".notice") and f"{len(order) - 1} of {len(order)} decided" in ana.text(
            ".progress"
        )
        ana.follow(lambda: ana.press("n"))  # and it says so again
        assert "No open case is left in this view (1 parked)." in ana.text(".notice")
        ana.go("/queue?budget=20&status=park")
        assert [line.text for line in ana.all("[data-line]")] == [order[4]]
        ana.follow(lambda: ana.all("[data-line]")[0].click())
        ana.follow(lambda: ana.press("a"))
        ana.go("/queue?budget=20")
        assert f"{len(order)} of {len(order)} decided" in ana.text(".progress")
        ana.follow(lambda: ana.all("[data-line]")[0].click())
        ana.find("input[name=advance]").click()
        ana.follow(lambda: ana.press("a"))
        assert "accepted." in ana.text(".notice")
        ana.follow(lambda: ana.press("u"))
        ana.driver.back()
        ana.until(lambda: ana.driver.execute_script("return document.readyState") == "complete")
        assert not any("accepted." in notice.text for notice in ana.all(".notice"))
        ana.check_quiet()


@pytest.mark.slow
def test_a_phone_shows_k_and_says_that_a_table_goes_on(served, tmp_path):
    with browser(served(), tmp_path / "profile", PHONE) as ana:
        ana.enter("Ana Phone")
        assert ana.find("td[data-label='k*']").is_displayed()
        ana.follow(lambda: ana.all("[data-line]")[0].click())
        clipped = """return [...document.querySelectorAll('main table')].filter((table) => !table.closest('.scroll')
          && table.scrollWidth > table.parentElement.clientWidth + 1).length"""
        assert ana.driver.execute_script(clipped) == 0 and len(ana.all(".scroll table")) >= 3
        shadow = "return getComputedStyle(document.querySelector('.scroll')).backgroundImage.includes('gradient')"
        assert ana.driver.execute_script(shadow)


@pytest.mark.slow
def test_twenty_cases_with_twenty_one_keys(served, tmp_path):
    with browser(served(), tmp_path / "profile") as ana:
        ana.enter("Ana Fast")
        ana.go("/queue?budget=all&confident=0")
        ana.follow(lambda: ana.press("n"))
        for _ in range(20):
            ana.follow(lambda: ana.press("a"))
        assert decisions_of(ana) == 20


@pytest.mark.slow
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("size", [DESK, PHONE], ids=["desk", "phone"])
def test_axe_finds_nothing_on_any_page_and_all_fit(served, tmp_path, size, dark):
    with browser(served(), tmp_path / "profile", size, dark) as eva:
        eva.driver.get(eva.address)
        findings = eva.findings()
        eva.enter(f"Eva {size[0]} {dark}")
        first = urlsplit(eva.find("[data-line]").get_attribute("href"))
        eva.go("/queue?budget=all&confident=0&page=2")
        for path in (None, f"{first.path}?{first.query}", "/team", "/bulk", "/who", "/queue?search=none", "/nothing"):
            if path is not None:
                eva.go(path)
            findings += [f"{path}: {finding}" for finding in eva.findings()]
            assert eva.fits(), f"{path} is wider than the screen"
        eva.go(f"{first.path}?{first.query}")
        eva.press("r")
        eva.press("?")
        findings += [f"open: {finding}" for finding in eva.findings()]
        assert findings == []


@pytest.mark.slow
def test_what_has_the_focus_is_never_behind_the_decision_bar(served, tmp_path):
    with browser(served(), tmp_path / "profile") as ana:
        ana.enter("Ana")
        ana.follow(lambda: ana.all("[data-line]")[0].click())
        hidden = ana.driver.execute_script(
            """const bar = document.querySelector('.decide'), bad = [];
            for (const one of document.querySelectorAll('main a, main button, main input, main summary')) {
              if (bar.contains(one) || one.type === 'hidden' || !one.checkVisibility()) continue;
              one.focus();
              if (one.getBoundingClientRect().bottom > bar.getBoundingClientRect().top) bad.push(one.outerHTML);
            }
            return bad;"""
        )
        assert hidden == []


@pytest.mark.slow
def test_names_with_spaces_and_controls_in_filters_and_text(strange, tmp_path):
    """Every class and group that a filter offers finds its cases; no name reverses the words around it."""
    rows = strange.X.assign(loan=strange.certs.table.column("id").to_pylist())
    rows.to_parquet(tmp_path / "rows.parquet")
    words = ("--data", tmp_path / "rows.parquet", "--id", "loan")
    with (
        started(strange, tmp_path / "review.sqlite", *words) as (_, address),
        browser(address, tmp_path / "profile") as ana,
    ):
        ana.enter("Ana")
        found = []
        for place in (1, 2):
            ana.go("/queue?budget=all&confident=0")
            ana.choose("#f-label", place)
            ana.follow(lambda: ana.find(".filter-form button[type=submit]").click())
            found.append(int(ana.text(".found strong")))
        assert sum(found) == 100 and all(found)
        for place in range(1, 5):
            ana.go("/queue?budget=all&confident=0")
            ana.choose("#f-group", place)
            ana.follow(lambda: ana.find(".filter-form button[type=submit]").click())
            assert int(ana.text(".found strong")) > 0
        ana.go("/queue?budget=all&confident=0")
        ana.choose("#f-field-1", 4)  # a nominal field: its values are offered
        offered = "return [...document.querySelectorAll('#f-list-1 option')].map((option) => option.value)"
        ana.until(lambda: len(ana.driver.execute_script(offered)) > 2)
        value = ana.driver.execute_script(offered)[0]
        assert value.startswith(" ")
        ana.find("#f-value-1").send_keys(value)
        ana.follow(lambda: ana.find(".filter-form button[type=submit]").click())
        assert int(ana.text(".found strong")) == (strange.X.iloc[:, 3] == value).sum()
        ana.follow(lambda: ana.all("[data-line]")[0].click())
        isolated = """return [...document.querySelectorAll('main *')].every((one) => [...one.childNodes].every((node) =>
          node.nodeType !== 3 || !/[\\u0590-\\u05ff]/.test(node.data) || one.closest('bdi, option, text, title')))"""
        assert ana.driver.execute_script(isolated)
        assert not ana.driver.execute_script(
            "return /[\\u202a-\\u202e\\u2066\\u2067\\u0000-\\u0008]/.test(document.body.textContent)"
        )
        assert ana.findings() == []


@pytest.mark.slow
def test_markup_runs_nothing(hostile, tmp_path):
    with started(hostile, tmp_path / "review.sqlite") as (_, address), browser(address, tmp_path / "profile") as eve:
        eve.enter("<script>window.broken = 'name'</script>")
        eve.go("/queue?budget=all&confident=0")
        eve.follow(lambda: eve.all("[data-line]")[0].click())
        eve.find("#note").send_keys("<img src=x onerror='window.broken = 1'>")
        eve.find("input[name=advance]").click()
        eve.follow(lambda: eve.find("button.accept").click())
        assert "<img src=x onerror='window.broken = 1'>" in eve.text(".history")
        assert eve.text("h1").startswith("Case <script>window.broken=")
        for path in ("/team", "/queue?search=%3Cscript%3E", "/who"):
            eve.go(path)
        assert eve.driver.execute_script("return window.broken === undefined")
        eve.check_quiet()
