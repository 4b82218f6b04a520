"""The report as people get it: the same bytes, everything from data as text, small, offline, in the declared order.

`FRAGILITY_GOLDEN=write pytest tests/report/test_report_pages.py -k golden` writes the golden files anew, after a change
of the report that is meant; look at the difference before committing it.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
from dataclasses import replace
from html.parser import HTMLParser
from importlib.resources import files
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from small_audits import CLASSES, declared_model, small_audit, small_labels, whole_numbers

import fragility as fg
from fragility.base.errors import DataError
from fragility.pages.sections import escape_markdown, escape_paragraph
from fragility.pages.terms import GLOSSARY
from fragility.report import is_report, save_beside, verify_command

GOLDEN = Path(__file__).parent / "golden"
WRITE = os.environ.get("FRAGILITY_GOLDEN") == "write"
HEADINGS = (
    "The finding",
    "What was audited",
    "How many groups each prediction rests on",
    "How the margin collapses",
    "The four ways evidence fails, and who is exposed to which",
    "Which evidence carries the decisions",
    "Evidence that is wrong, not only lost",
    "Confidence against exposure",
    "What a review would find",
    "The most fragile confident cases",
    "Right and wrong",
    "Limits",
    "How to verify",
    "What the words mean",
)
VOID = {"meta", "br", "img", "hr", "link", "input"}


class Page(HTMLParser):
    """Elements, attributes and words of a page; refuses a tag that closes what was not open."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.headings: list[tuple[int, str]] = []
        self.words = ""
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        if re.fullmatch(r"h\d", tag):
            self.headings.append((int(tag[1]), ""))

    def handle_startendtag(self, tag, attrs) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag) -> None:
        assert self.open and self.open.pop() == tag, tag

    def handle_data(self, data) -> None:
        self.words += data
        if self.open and re.fullmatch(r"h\d", self.open[-1]):
            level, text = self.headings[-1]
            self.headings[-1] = (level, text + data)


def without_machine(report: fg.Report) -> fg.Report:
    """The same report without what depends on installed versions: they are facts of the run, not of the report."""
    audits = tuple(
        replace(
            audit,
            facts=replace(
                audit.facts, versions={"fragility": "0"}, model_fingerprint="sha256:m", input_digest="sha256:i",
                root_digest="sha256:r", engine="linear", evaluations=0,
            ),
            protocol=replace(audit.protocol, digest="sha256:p"),
        )
        for audit in report.summary.audits
    )  # fmt: skip
    return fg.Report(replace(report.summary, audits=audits))


@pytest.fixture(scope="module")
def golden() -> fg.Report:
    certs = small_audit(60, modes=True)
    return without_machine(fg.Report.of(certs, name="golden", labels=small_labels(certs), risk=0.4))


@pytest.mark.parametrize("suffix", [".html", ".md", ".json"])
def test_the_same_audit_gives_the_golden_bytes(golden, tmp_path, suffix: str) -> None:
    made = golden.save(tmp_path / f"report{suffix}").read_bytes()
    target = GOLDEN / f"report{suffix}"
    if WRITE:
        target.write_bytes(made)
    assert made == target.read_bytes()
    assert made == golden.save(tmp_path / f"again{suffix}").read_bytes()


def test_sections_come_in_the_declared_order(golden) -> None:
    two = fg.Report.of({"a": small_audit(60), "b": small_audit(60, classes=3)}, labels=None)
    page, several = Page(golden.to_html()), Page(two.to_html())
    told = [text for level, text in page.headings if level == 2]
    assert told == [HEADINGS[0], "Contents", *HEADINGS[1:]]
    compared = ["The comparison", "Contents", "The audits side by side", "a", "b", *HEADINGS[-3:]]
    assert [text for level, text in several.headings if level == 2] == compared
    within = [text for level, text in several.headings if level == 3]
    assert within == [h for h in HEADINGS[:10] if h not in ("What a review would find", HEADINGS[6])] * 2
    for found in (page, several):
        levels = [level for level, _ in found.headings]
        assert levels[0] == 1 and levels.count(1) == 1
        assert all(after <= before + 1 for before, after in pairwise(levels))
    marks = [line.removeprefix("## ") for line in golden.to_markdown().splitlines() if line.startswith("## ")]
    assert marks == list(HEADINGS)


def test_the_page_opens_offline_and_runs_its_own_script_only(golden) -> None:
    page = Page(golden.to_html())
    names = [tag for tag, _ in page.tags]
    assert not set(names) & {"iframe", "link", "object", "embed", "form", "img"} and names.count("script") == 1
    script = files("fragility.pages").joinpath("templates", "page.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"<script>{script}</script>" in golden.to_html() and f"script-src 'sha256-{digest}'" in golden.to_html()
    assert "<script" not in golden._repr_html_()
    addresses = [value for _, given in page.tags for name, value in given.items() if name in ("href", "src", "action")]
    assert addresses and all(str(address).startswith("#") for address in addresses)
    identifiers = {given["id"] for _, given in page.tags if "id" in given}
    assert {str(address)[1:] for address in addresses} <= identifiers
    assert not any(name.startswith("on") for _, given in page.tags for name in given)
    assert golden.to_html().replace("http://www.w3.org/2000/svg", "").count("http") == golden.to_html().count(
        "http-equiv"
    )
    assert "url(" not in golden.to_html() and "@import" not in golden.to_html()


def test_pictures_have_words(golden) -> None:
    page = Page(golden.to_html())
    pictures = [given for tag, given in page.tags if tag == "svg"]
    assert len(pictures) > 25
    for given in pictures:
        assert given.get("aria-hidden") == "true" or (given["role"] == "img" and len(str(given["aria-label"])) > 20)


HOSTILE = (
    "</svg></table></style><script>alert(1)</script>\"'&`|*_<img src=x onerror=alert(2)>\x00\x07\ud800\u202e\u2066"
)


def hostile_report() -> fg.Report:
    """Fields, classes, ids, the audit's name and its command are all markup."""
    fields = [f"{name}<script>alert('{name}')</script>&" for name in ("a", "b", "c", "d", "e", "f")]
    labels = [f"{label}<b>{HOSTILE[:60]}" for label in CLASSES[2]]
    model = declared_model(labels=labels)
    rows, training = whole_numbers(80, 1, fields), whole_numbers(50, 0, fields)
    model.feature_names_in_ = rows.columns.to_numpy(dtype=object)
    protocol = fg.Protocol.fit(model, training)
    certs = fg.audit(model, rows, protocol, ids=[f"{i}<i>{HOSTILE[:20]}" for i in range(80)], progress=False)
    return fg.Report.of(certs, name=HOSTILE, verify=f"fragility verify {HOSTILE}", labels=small_labels(certs))


def test_everything_from_data_is_text(tmp_path) -> None:
    report = hostile_report()
    page = Page(report.to_html())
    assert not {tag for tag, _ in page.tags} & {"img", "b>", "i"}
    assert [tag for tag, _ in page.tags].count("script") == 1
    assert not any(name.startswith("on") for _, given in page.tags for name in given)
    assert "<script>alert('a')</script>&" in page.words and "</svg></table>" in page.words
    assert not {"\x00", "\x07", "\u202e", "\u2066"} & set(report.to_html())
    report.to_html().encode("utf-8")  # no lone surrogate is left
    Page(report._repr_html_())
    for line in report.to_markdown().splitlines():
        if not line.startswith("fragility verify"):  # in a fence, where everything is text
            assert not re.search(r"(?<!\\)<", line), line
    assert json.loads(report.save(tmp_path / "report.json").read_text(encoding="utf-8")) == report.to_dict()


def test_markdown_shows_text_as_it_is() -> None:
    assert escape_markdown("a_b *c* _d_ `e` | [f](g) <h>") == r"a_b \*c\* \_d\_ \`e\` \| \[f\](g) \<h\>"
    assert escape_markdown("two\nlines") == "two lines"
    assert (
        escape_paragraph("- not a list") == r"\- not a list"
        and escape_paragraph("# not a heading") == r"\# not a heading"
    )
    assert (
        escape_paragraph("1. not a list") == "1\u2060. not a list"
        and escape_paragraph("1.4% of rows") == "1.4% of rows"
    )


def test_markdown_and_page_say_the_same_numbers(golden) -> None:
    words = " ".join(Page(golden.to_html()).words.split())
    for line in golden.to_markdown().splitlines():
        cells = [cell.strip().replace("\\", "") for cell in line.strip("|").split("|")] if line.startswith("|") else []
        for cell in cells:
            assert cell.startswith("---") or " ".join(cell.split()) in words, cell
    document = golden.to_dict()["audits"][0]
    rows = document["confident"]["rows"]
    assert f"**{rows / 60:.0%}** are at least 90% confident ({rows}; 38% to 62%)" in golden.to_markdown()
    for case in document["confident"]["cases"]:
        assert f"### Row {case['id']}" in golden.to_markdown() and f"exposure {case['exposure']:.3f}" in words


def test_the_size_does_not_grow_with_the_rows() -> None:
    certs = small_audit(2000, classes=3)
    many = fg.Certificates(pa.concat_tables([certs.table] * 60), certs.protocol, certs.manifest)
    few, large = fg.Report.of(certs[:400]), fg.Report.of(many)
    sizes = [
        (len(report.to_html()), len(report.to_markdown()), len(json.dumps(report.to_dict()))) for report in (few, large)
    ]
    assert all(after < 1.35 * before for before, after in zip(*sizes, strict=True))
    assert max(max(size) for size in sizes) < 2_000_000


def test_sets_of_unsure_predictions_may_be_larger_than_those_of_confident_ones_and_than_the_path() -> None:
    X, y = fg.load_credit_g()
    X = X.select_dtypes("number")
    model = make_pipeline(StandardScaler(), LogisticRegression()).fit(X[:700], y[:700])
    certs = fg.audit(model, X[700:760], fg.Protocol.fit(model, X[:700], depth=1), lattice=True)
    sizes = [(cert.confidence, cert.smallest_size or 0) for cert in certs]
    largest, surest = max(size for _, size in sizes), max(sizes)
    assert largest > max(1, surest[1])
    report = fg.Report.of(certs, min_confidence=surest[0])
    assert f">{largest} groups<" in report.to_html() and f"{largest} groups" in report.to_markdown()


def test_many_groups_and_classes_are_folded() -> None:
    fields = [f"field_{number:04}_with_a_long_name_that_goes_on" for number in range(400)]
    model = declared_model(3)
    model.coef_ = np.random.default_rng(0).normal(size=(3, 400)) / 8
    model.n_features_in_ = 400
    rows = whole_numbers(60, 3, fields)
    certs = fg.audit(model, rows.to_numpy(), fg.Protocol.fit(model, rows.to_numpy(), depth=400), progress=False)
    page = fg.Report.of(certs).to_html()
    assert len(page) < 2_000_000 and "and 340 more" in page and "10+" in page


def test_the_guides_glossary_has_every_word_of_the_report(golden) -> None:
    guide = (Path(__file__).parents[2] / "docs" / "guide" / "glossary.md").read_text(encoding="utf-8")
    for word in GLOSSARY:
        assert f"**{word}**".replace("k*", r"k\*").replace("lambda*", r"lambda\*") in guide, word
        assert f"<dt>{word}</dt>" in golden.to_html()
    words = Page(golden.to_html()).words
    for score in ("FDS", "exposure", "RCMA", "k*", "lambda*", "confident", "flips early", "brittle"):
        assert score in GLOSSARY and score in words


# --- colours ------------------------------------------------------------------------------------------------


def luminance(colour: str) -> float:
    digits = colour.lstrip("#")
    digits = "".join(2 * d for d in digits) if len(digits) == 3 else digits
    parts = [int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    r, g, b = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_words_and_marks_stand_out_from_the_paper() -> None:
    style = files("fragility.pages").joinpath("templates", "page.css").read_text(encoding="utf-8")
    palettes = [dict(re.findall(r"--([\w-]+): (#\w+)", block)) for block in re.findall(r"{[^{}]*--paper[^{}]*}", style)]
    assert len(palettes) == 3  # light, dark, print
    for colours in palettes:
        for word in ("ink", "muted", "flip-text", "accent"):
            assert contrast(colours[word], colours["paper"]) >= 4.5, word
        for mark in ("flip", "quiet"):
            assert contrast(colours[mark], colours["paper"]) >= 3.0, mark
        assert contrast(colours["ink"], colours["soft"]) >= 4.5


# --- files --------------------------------------------------------------------------------------------------


def test_a_report_is_saved_by_its_suffix_and_replaces_only_reports(golden, tmp_path) -> None:
    with pytest.raises(DataError, match=r"report\.pdf must end in \.txt or \.md or \.html or \.json"):
        golden.save(tmp_path / "report.pdf")
    with pytest.raises(DataError, match=r"cannot write .*report\.html: No such file"):
        golden.save(tmp_path / "absent" / "report.html")
    assert save_beside(golden, tmp_path) == tmp_path / "report.html" and is_report(tmp_path / "report.html")
    assert save_beside(golden, tmp_path) is not None
    (tmp_path / "report.html").write_text("my own")
    assert save_beside(golden, tmp_path) is None and (tmp_path / "report.html").read_text() == "my own"
    assert not is_report(tmp_path / "absent.html")


def test_the_command_is_quoted_for_a_shell() -> None:
    assert verify_command("my audit") == "fragility verify 'my audit' --model MODEL --data DATA"
    assert verify_command("a", "--model", "m; rm x") == "fragility verify a --model 'm; rm x'"


def test_a_notebook_shows_the_report(golden) -> None:
    shown = golden._repr_html_()
    assert shown.startswith("<style>.fragility-report {") and "<html" not in shown and "body {" not in shown
    assert repr(golden).startswith("Report: At least 21 of 30 confident predictions flip early, 70% (95% interval")
