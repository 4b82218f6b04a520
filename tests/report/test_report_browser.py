"""The report in a real browser: accessible, no wider than a phone, nothing fetched, nothing complained about."""

from __future__ import annotations

import pytest
from browser import axe_violations, chromium, prefer, resize
from small_audits import small_audit, small_labels, whole_numbers

import fragility as fg

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def driver():
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def address(tmp_path_factory) -> str:
    one, other = small_audit(120, classes=3, modes=True), small_audit(120, modes=30)
    rows = whole_numbers(120, 1).to_numpy()
    report = fg.Report.of({"audits/three": one, "audits/two-classes": other}, rows=rows, by="x0:-2,2")
    said = {"author": "A. Author", "purpose": "annual review", "date": "2026-11-16", "signed_by": "ab12cd34ef567890"}
    labelled = fg.Report.of(one, labels=small_labels(one), rows=rows, by=["x0:-2,2", "x1"], **said)
    folder = tmp_path_factory.mktemp("report")
    report.save(folder / "several.html")
    labelled.save(folder / "labelled.html")
    return folder.as_uri()


@pytest.mark.parametrize("page", ["labelled.html", "several.html"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(driver, address, page: str, scheme: str) -> None:
    resize(driver, 1200)
    prefer(driver, scheme)
    # The page forbids scripts but its own, axe is one: the policy is left out, the page is otherwise as it is.
    driver.get("about:blank")
    driver.execute_cdp_cmd("Page.setBypassCSP", {"enabled": True})
    driver.get(f"{address}/{page}")
    assert axe_violations(driver) == []


@pytest.mark.parametrize("width", [320, 360, 390, 768, 1280])
@pytest.mark.parametrize("page", ["labelled.html", "several.html"])
def test_the_page_is_never_wider_than_the_window(driver, address, page: str, width: int) -> None:
    resize(driver, width)
    driver.get(f"{address}/{page}")
    inner, scroll = driver.execute_script("return [window.innerWidth, document.documentElement.scrollWidth]")
    assert scroll <= inner == width
    small = driver.execute_script(
        "return [...document.querySelectorAll('svg.chart text, svg.curve text')].filter(text =>"
        " text.getBoundingClientRect().height < 7).length"
    )
    assert small == 0


def test_no_label_of_a_picture_is_cut_or_covered(driver, address) -> None:
    resize(driver, 1280)
    driver.get(f"{address}/labelled.html")
    cut, covered = driver.execute_script(
        """
        let cut = [], covered = [];
        for (const svg of document.querySelectorAll('svg.chart, svg.curve')) {
          const frame = svg.getBoundingClientRect();
          const boxes = [...svg.querySelectorAll('text')].map(text => [text.textContent, text.getBoundingClientRect()]);
          for (const [words, box] of boxes)
            if (box.left < frame.left - 1 || box.right > frame.right + 1 || box.bottom > frame.bottom + 1)
              cut.push(words);
          boxes.forEach(([a, one], i) => boxes.slice(i + 1).forEach(([b, two]) => {
            const across = Math.min(one.right, two.right) - Math.max(one.left, two.left);
            const down = Math.min(one.bottom, two.bottom) - Math.max(one.top, two.top);
            if (across > 2 && down > 5) covered.push(a + ' / ' + b);
          }));
        }
        return [cut, covered];
        """
    )
    assert cut == [] and covered == []


def test_nothing_is_fetched_and_nothing_complained_about(driver, address) -> None:
    driver.get(f"{address}/labelled.html")
    assert driver.execute_script("return performance.getEntriesByType('resource').length") == 0
    assert [entry for entry in driver.get_log("browser") if "several.html" not in entry["message"]] == []


@pytest.mark.parametrize("page", ["labelled.html", "several.html"])
@pytest.mark.parametrize(("width", "height"), [(1280, 900), (390, 844)])
def test_the_first_screen_shows_the_finding_and_its_picture(
    driver, address, page: str, width: int, height: int
) -> None:
    resize(driver, width, height)
    driver.get(f"{address}/{page}")
    bottoms = driver.execute_script(
        """
        const opening = document.querySelector("main > section");
        const bottom = element => element.getBoundingClientRect().bottom;
        return [...opening.querySelectorAll("p.lead"), opening.querySelector("svg")].map(bottom);
        """
    )
    assert len(bottoms) >= 2 and max(bottoms) <= height
    contents, protocol = driver.execute_script(
        "return ['nav', '[id$=audited]'].map(s => document.querySelector(s).getBoundingClientRect().top)"
    )
    assert max(bottoms) < contents < protocol


def rows_of(driver, table: str) -> list[str]:
    return driver.execute_script(f"return [...document.querySelector('{table}').tBodies[0].rows].map(r => r.innerText)")


def test_tables_are_sorted_by_their_headings_under_the_pages_own_policy(driver, address) -> None:
    driver.execute_cdp_cmd("Page.setBypassCSP", {"enabled": False})
    resize(driver, 1280)
    driver.get(f"{address}/labelled.html")
    table = "#cases table.sortable"
    written = rows_of(driver, table)
    heads = driver.find_elements("css selector", f"{table} th[scope=col]")
    assert [head.get_attribute("aria-sort") for head in heads] == ["none"] * len(heads)
    confidence = heads[2].find_element("css selector", "button")
    confidence.click()
    assert heads[2].get_attribute("aria-sort") == "ascending"
    rising = [float(row.split("\t")[2].rstrip("%")) for row in rows_of(driver, table)]
    assert rising == sorted(rising) and sorted(rows_of(driver, table)) == sorted(written)
    confidence.send_keys(" ")  # a button works from the keyboard too
    assert heads[2].get_attribute("aria-sort") == "descending"
    falling = [float(row.split("\t")[2].rstrip("%")) for row in rows_of(driver, table)]
    assert falling == sorted(falling, reverse=True)
    heads[3].find_element("css selector", "button").click()
    assert [head.get_attribute("aria-sort") for head in heads[2:4]] == ["none", "ascending"]
    assert driver.get_log("browser") == []


def test_without_scripts_tables_stand_as_written(driver, address) -> None:
    driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        driver.get(f"{address}/labelled.html")
        assert driver.find_elements("css selector", "#cases table.sortable tbody tr")
        assert not driver.find_elements("css selector", "table.sortable button")
    finally:
        driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
