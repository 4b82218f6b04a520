"""What watch writes: names of unknown origin are harmless in the page, in Prometheus text and on the terminal."""

import datetime as dt
import re
from html.parser import HTMLParser

import pytest
from browser import AXE, chromium
from watched_logs import write_log

import fragility as fg
from fragility.apps.watching import Alarm
from fragility.apps.watching.outcome import escape_label
from fragility.report import is_report

HOSTILE = 'in<b>&"co\\me\n\u202e\x1b[2J'


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hostile") / "log"
    return fg.watch(write_log(folder, days=10, rows=150, outage=(HOSTILE, 8, 0.3, 99), rename={"income": HOSTILE}))


class Tags(HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags, self.text = [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text.append(data)


def test_names_are_escaped_in_the_page(hostile):
    page = hostile.to_html()
    assert "in<b>" not in page and "\u202e" not in page and "\x1b" not in page
    parsed = Tags()
    parsed.feed(page)
    assert not [tag for tag, _ in parsed.tags if tag == "b"]
    assert any('in<b>&"co' in text for text in parsed.text)


def test_the_page_opens_offline_and_shows_alarms_first(hostile, tmp_path):
    page = hostile.to_html()
    assert page == hostile.to_html()
    addresses = set(re.findall(r'https?://[^\s"<]+', page))
    assert addresses <= {"http://www.w3.org/2000/svg"} and "default-src 'none'" in page
    assert page.index('class="notice"') < page.index("<svg") and page.count('role="note"') == 1
    assert 'content="fragility watch"' in page
    hostile.save(tmp_path / "page.html")
    assert not is_report(tmp_path / "page.html")
    for heading in ("Now", "All alarms", "Decisions expected to be lost", "Fields", "Day by day"):
        assert f">{heading}<" in page


def test_prometheus_text_can_be_read_back(hostile):
    text = hostile.to_prometheus()
    sample = re.compile(r'^fragility_watch_\w+(\{(\w+="(?:[^"\\\n]|\\\\|\\"|\\n)*",?)+\})? \S+$')
    lines = text.splitlines()
    assert text.endswith("\n") and all(line.startswith("# ") or sample.match(line) for line in lines)
    assert "fragility_watch_alarms_open 1.0" in lines
    assert 'field="in<b>&\\"co\\\\me\\n\ufffd\ufffd[2J"' in text
    assert escape_label('a"b\\c\nd\r') == 'a\\"b\\\\c\\nd\ufffd'
    parser = pytest.importorskip("prometheus_client.parser", reason="prometheus-client is not installed")
    families = {family.name: family for family in parser.text_string_to_metric_families(text)}
    names = {each.labels["field"] for each in families["fragility_watch_missing_ratio"].samples}
    assert HOSTILE.replace("\u202e", "\ufffd").replace("\x1b", "\ufffd") in names
    (alarm,) = families["fragility_watch_alarm"].samples
    assert alarm.labels["measure"] == "missing" and alarm.labels["raised"] == str(hostile.alarms[0].day)


def test_the_terminal_shows_controls_instead_of_obeying_them(hostile):
    text = hostile.to_text(replay=True)
    assert "\x1b" not in text and "\u202e" not in text and "\\x1b" in text
    assert "\n" not in hostile.alarms[0].sentence()


def test_an_alarm_is_told_in_its_own_terms():
    day = dt.date(2026, 1, 5)
    common = {"day": day, "decision_number": 9, "since": day, "decisions": 50, "changed": None, "closed": day}
    fall = Alarm("decision", "yes", "down", value=0.2, reference=0.4, bound=0.3, affected=10, **common)
    assert fall.sentence() == (
        "decisions for yes: raised on 2026-01-05; 20% since 2026-01-05 until 2026-01-05, was 40% (at least 30% is "
        "admitted); 10 decisions fewer than in the reference"
    )
    odd = Alarm("out_of_range", "age", "up", value=0.2, reference=0.0, bound=0.01, affected=1, **common)
    assert odd.sentence().endswith("(at most 1% is admitted); 1 decision made on such a value")


@pytest.mark.slow
def test_the_page_is_sound_in_a_browser(hostile, tmp_path):
    path = hostile.save(tmp_path / "page.html")
    with chromium("--window-size=390,900") as browser:
        browser.get(path.as_uri())
        assert not [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
        assert browser.execute_script("return document.documentElement.scrollWidth <= window.innerWidth")
        browser.execute_script(AXE.read_text(encoding="utf-8"))
        found = browser.execute_async_script("axe.run().then(arguments[arguments.length - 1])")
        assert [violation["id"] for violation in found["violations"]] == []
