"""Check every internal link of the built site: the file must be there, and the anchor in it.

    python docs/check_links.py docs/_build/html

Links to other sites are not fetched.
"""

import sys
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LINKS = {"a": "href", "link": "href", "img": "src", "script": "src", "source": "src"}
TOP_OF_PAGE = ("", "top")  # every browser knows these


@dataclass
class Page(HTMLParser):
    """One page: the anchors it has and the places it links to."""

    path: Path
    anchors: set[str] = field(default_factory=set)
    targets: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()
        self.feed(self.path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.anchors.update(value for name in ("id", "name") if (value := values.get(name)))
        target = values.get(LINKS.get(tag, ""))
        if target is not None:
            self.targets.append(target)


def broken_links(site: Path) -> list[str]:
    """Return one line for each link that leads nowhere."""
    pages = {path.resolve(): Page(path) for path in sorted(site.rglob("*.html")) if "_static" not in path.parts}
    return [
        f"{path.relative_to(site.resolve())}: {target} ({reason})"
        for path, page in pages.items()
        for target in page.targets
        if (reason := _fault(path, target, pages))
    ]


def _fault(origin: Path, target: str, pages: dict[Path, Page]) -> str | None:
    """Return why a link leads nowhere, or None."""
    parts = urlsplit(target)
    if parts.scheme or parts.netloc:
        return None
    found = (origin.parent / unquote(parts.path)).resolve() if parts.path else origin
    if not found.is_file():
        return "no such file"
    anchor = unquote(parts.fragment)
    if anchor not in TOP_OF_PAGE and found in pages and anchor not in pages[found].anchors:
        return "no such anchor"
    return None


def main() -> int:
    site = Path(sys.argv[1])
    if not (site / "index.html").is_file():
        print(f"there is no site in {site}; build it with make docs", file=sys.stderr)
        return 2
    broken = broken_links(site)
    for line in broken:
        print(line, file=sys.stderr)
    print(f"{len(broken)} broken links in {len(list(site.rglob('*.html')))} pages of {site}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
