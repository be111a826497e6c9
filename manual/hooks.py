"""What `mkdocs.yml` calls: pages that are made, and files outside of `docs/` that pages link to.

The pages are written for readers of the repository. On the site, README.md is the first page, and any other file of
the repository that a page links to is found under `files/`.
"""

from __future__ import annotations

import posixpath
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from manual import commands, library, mappings, problems  # noqa: E402

_LINK = re.compile(r"(?<=\]\()([^)\s#]+)(?=[)#])")
_CODE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)


def on_config(config: Any) -> None:
    """Put a page for each command below the commands."""
    for entry in config.nav:
        if "Commands" in entry:
            entry["Commands"] += [{one.name: f"commands/{one.name}.md"} for one in commands.told()]


def on_files(files: Files, config: Any) -> None:
    """Add the pages that are made, README.md, and what pages link to."""
    for path, text in _made():
        files.append(File.generated(config, path, content=text))
    wanted = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", ROOT / "CHANGELOG.md"]
    wanted += sorted((ROOT / "docs").glob("*.md"))
    seen = set(wanted)
    while wanted:
        source = wanted.pop()
        if not source.is_relative_to(ROOT / "docs"):
            files.append(File.generated(config, _place(source), abs_src_path=str(source)))
        if source.suffix == ".md":
            new = {_meant(source, link) for link in _links(source.read_text(encoding="utf-8"))} - seen
            wanted += (found := sorted(one for one in new if one.is_file()))
            seen |= set(found)


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Let links lead to where files are on the site."""
    source = Path(page.file.abs_src_path) if page.file.abs_src_path else None
    if source is None:
        return markdown

    def moved(link: re.Match[str]) -> str:
        meant = _meant(source, link[1])
        if "://" in link[1] or not meant.is_file():
            return link[1]
        return posixpath.relpath(_place(meant), posixpath.dirname(page.file.src_uri) or ".")

    pieces = _CODE.split(markdown)
    pieces[::2] = [_LINK.sub(moved, text) for text in pieces[::2]]
    return "".join(pieces)


def _made() -> Iterator[tuple[str, str]]:
    """(place, Markdown) of every page that is made."""
    yield "commands/index.md", commands.index()
    for one in commands.told():
        yield f"commands/{one.name}.md", commands.page(one)
    for name, text in problems.pages():
        yield f"problems/{name}.md", text
    yield "mappings.md", mappings.page()
    yield "reference.md", library.page()


def _links(text: str) -> list[str]:
    return [link for piece in _CODE.split(text)[::2] for link in _LINK.findall(piece) if "://" not in link]


def _meant(source: Path, link: str) -> Path:
    """The file that a LINK in the file SOURCE leads to."""
    return (source.parent / link).resolve()


def _place(source: Path) -> str:
    """Where a file of the repository is on the site."""
    inside = source.relative_to(ROOT).as_posix()
    if inside == "README.md":
        return "index.md"
    return inside.removeprefix("docs/") if inside.startswith("docs/") else f"files/{inside}"
