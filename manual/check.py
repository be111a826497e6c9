"""Whether the built site is whole: `python -m manual.check build/site`.

Every link leads to a page and an anchor that exist, and nothing is fetched from another host.
"""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

#: Element and attribute -> what a browser fetches by itself.
_FETCHED = {
    ("script", "src"),
    ("link", "href"),
    ("img", "src"),
    ("iframe", "src"),
    ("source", "src"),
    ("object", "data"),
}


class _Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.fetched: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("id", "name") and value:
                self.ids.add(value)
            if (tag, name) in _FETCHED and value:
                self.fetched.append(value)
            if tag == "a" and name == "href" and value:
                self.links.append(value)


def faults(folder: Path) -> list[str]:
    """What is wrong with the site in FOLDER, a line each."""
    pages = {path.resolve(): _Page(path.read_text(encoding="utf-8")) for path in sorted(folder.rglob("*.html"))}
    found = [] if pages else [f"{folder}: no page"]
    for path, page in pages.items():
        found += [f"{path.name}: fetches {url}" for url in page.fetched if urlsplit(url).netloc]
        for link in [*page.links, *page.fetched]:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            to = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if path.name == "404.html" and not to.is_relative_to(folder.resolve()):
                continue  # written for the root of a server
            if not to.exists():
                found.append(f"{path.name}: no {link}")
            elif parts.fragment and to in pages and unquote(parts.fragment) not in pages[to].ids:
                found.append(f"{path.name}: no anchor {link}")
    return found


if __name__ == "__main__":
    wrong = faults(Path(sys.argv[1]))
    print(*wrong, sep="\n", file=sys.stderr)
    sys.exit(1 if wrong else 0)
