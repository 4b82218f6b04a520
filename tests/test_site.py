"""The site's parts that can be checked without building it; `make docs` builds it and checks its links."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import fragility as fg

REPOSITORY = Path(__file__).resolve().parents[1]
DOCS = REPOSITORY / "docs"
STUDY = REPOSITORY / "paper" / "pages"


def check_links(site: Path) -> subprocess.CompletedProcess:
    command = [sys.executable, str(DOCS / "check_links.py"), str(site)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def write_site(folder: Path, **pages: str) -> Path:
    for name, body in pages.items():
        (folder / f"{name}.html").write_text(f"<html><body>{body}</body></html>", encoding="utf-8")
    return folder


def test_sound_links_pass(tmp_path):
    body = '<a href="other.html#here">x</a><a href="#">top</a><a href="https://example.org/none">far</a>'
    done = check_links(write_site(tmp_path, index=body, other='<p id="here"><img src="other.html"></p>'))
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ('<a href="gone.html">x</a>', "index.html: gone.html (no such file)"),
        ('<img src="gone.png">', "index.html: gone.png (no such file)"),
        ('<a href="other.html#gone">x</a>', "index.html: other.html#gone (no such anchor)"),
        ('<a href="#gone">x</a>', "index.html: #gone (no such anchor)"),
    ],
)
def test_a_link_that_leads_nowhere_fails(tmp_path, body, told):
    done = check_links(write_site(tmp_path, index=body, other=""))
    assert (done.returncode, done.stderr.strip()) == (1, told)


def test_a_folder_without_a_site_is_refused(tmp_path):
    done = check_links(tmp_path)
    assert done.returncode == 2
    assert "build it with make docs" in done.stderr


def test_the_reference_lists_every_public_name():
    text = (DOCS / "api" / "index.md").read_text(encoding="utf-8")
    listed = re.findall(r"^   (\w+)$", text, re.MULTILINE)
    assert sorted(listed) == sorted(set(fg.__all__) - {"__version__"})


@pytest.mark.parametrize("folder", [DOCS / "guide", DOCS / "decisions", STUDY], ids=lambda folder: folder.name)
def test_every_page_is_in_the_table_of_contents(folder):
    trees = re.findall(r"^```\{toctree\}\n(.*?)^```", (folder / "index.md").read_text(encoding="utf-8"), re.M | re.S)
    pages = sorted({path.stem for path in folder.glob("*.md")} - {"index"})
    assert pages == sorted(re.findall(r"^([\w-]+)$", "\n".join(trees), re.MULTILINE))


def test_the_guide_stands_under_four_headings_and_keeps_to_its_length():
    pages = {path.stem: path.read_text(encoding="utf-8") for path in (DOCS / "guide").glob("*.md")}
    captions = re.findall(r"^:caption: (.*)$", pages["index"], re.MULTILINE)
    assert captions == ["Tutorial", "How to", "Concepts", "Reference"]
    counts = {name: sum(any(map(str.isalnum, word)) for word in text.split()) for name, text in pages.items()}
    counts.pop("command-line")  # most of it is made from the help
    assert sum(counts.values()) <= 30_000, f"say more in fewer words, or move study tables out of the guide: {counts}"


def test_decisions_are_numbered_without_gaps_and_listed_by_their_titles():
    pages = sorted((DOCS / "decisions").glob("0*.md"))
    assert [int(page.name[:4]) for page in pages] == list(range(1, len(pages) + 1))
    titles = [page.read_text(encoding="utf-8").splitlines()[0].removeprefix("# ") for page in pages]
    listed = re.findall(r"^- \[(.*)\]\((.*)\)$", (DOCS / "decisions" / "index.md").read_text(encoding="utf-8"), re.M)
    assert listed == [(title, page.name) for title, page in zip(titles, pages, strict=True)]


def test_the_start_page_runs():
    (code,) = re.findall(r"^```python\n(.*?)^```", (DOCS / "index.md").read_text(encoding="utf-8"), re.M | re.S)
    exec(code, {})


def test_every_picture_of_the_docs_is_shown():
    sources = [REPOSITORY / "README.md", *DOCS.rglob("*.md"), *STUDY.glob("*.md")]
    pages = "\n".join(path.read_text(encoding="utf-8") for path in sources)
    pictures = [*(DOCS / "images").rglob("*.png"), *(STUDY / "images").rglob("*.png")]
    unused = [path.name for path in pictures if f"/{path.name})" not in pages]
    assert not unused
