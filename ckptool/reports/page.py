"""Reports as one page of HTML: what is better looked at than read.

A page is one file. It asks for nothing on the network, and everything that comes out of a checkpoint is in it as JSON,
which its script puts on the screen as text only. `page.html` beside this file is that page without its data.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

from ..errors import printable
from ..tree import names_in
from .inspect import Inspection, TensorReport


def inspect_page(reports: Sequence[Inspection], stats: Sequence[Sequence[dict[str, Any] | None]] | None = None) -> str:
    """The page of `ckptool inspect --html`: a zoomable treemap of bytes beside a tree that can be searched.

    Args:
        reports: one for each file.
        stats: for each file and tensor its statistics, with a histogram where there is one.
    """
    return render(
        {
            "title": ", ".join(_shown(report.path) for report in reports[:3]) + (", …" if len(reports) > 3 else ""),
            "parameters": sum(one.parameters for report in reports for one in report.state_dicts),
            "notes": [_shown(text) for report in reports for text in report.warnings]
            + [f"{what}: {command}" for report in reports for command, what in report.suggestions],
            "files": [_file(report, stats[number] if stats else None) for number, report in enumerate(reports)],
        }
    )


def pairs_page(
    title: str, left: str, right: str, links: Sequence[dict[str, Any]], *, summary: str = "", notes: Sequence[str] = ()
) -> str:
    """The page of `diff` and `transfer`: two columns, with a line for each pair, coloured by its status.

    Args:
        left, right: the names of the columns.
        links: each with `left` and `right` (a key, or None), `status` (a word, which filters the list), and `details`,
            (name, value) pairs that are shown when it is chosen; also `about`, a few words beside it, and `via`, a word
            on the line for what happens on the way.
    """
    return render(
        {
            "title": _shown(title),
            "left": _shown(left),
            "right": _shown(right),
            "links": [_link(link) for link in links],
            "summary": summary,
            "notes": [_shown(note) for note in notes],
        }
    )


def _link(link: dict[str, Any]) -> dict[str, Any]:
    names = {side: _shown(link[side]) if link[side] is not None else None for side in ("left", "right")}
    return {**link, **names, "details": [(name, _shown(str(value))) for name, value in link["details"]]}


def render(data: dict[str, Any]) -> str:
    """The page with DATA in it. `<` is written as an escape, so that no text in it can end the element it stands in."""
    text = json.dumps(data, ensure_ascii=True, separators=(",", ":")).replace("<", "\\u003c")
    template = files("ckptool.reports").joinpath("page.html").read_text(encoding="utf-8")
    return template.replace("{{DATA}}", text, 1)


def _file(report: Inspection, stats: Sequence[dict[str, Any] | None] | None) -> dict[str, Any]:
    """The tensors of a file in columns, which are a third of the size of as many records."""
    tensors = report.tensors
    columns: dict[str, Any] = {
        "path": [[_shown(part) for part in _parts(one)] for one in tensors],
        "dtype": [one.dtype for one in tensors],
        "shape": [one.shape for one in tensors],
        "location": [_shown(one.location) for one in tensors],
        "storage": [one.storage for one in tensors],
        "own": _own_bytes(report),
    }
    if stats:
        columns["stats"] = list(stats)
    return {"path": _shown(report.path), "format": report.format, "tensors": columns}


def _own_bytes(report: Inspection) -> list[int]:
    """The bytes of each tensor, 0 for all but the first of those that are tied."""
    group_of = {key: number for number, group in enumerate(report.ties) for key in group}
    seen: set[tuple[int, int | None]] = set()
    own = []
    for one in report.tensors:
        group = group_of.get(one.key or "")
        tied = group is not None and (group, one.storage) in seen
        if group is not None:
            seen.add((group, one.storage))
        own.append(0 if tied else one.bytes)
    return own


def _parts(tensor: TensorReport) -> list[str]:
    """The way to a tensor: through the tree of the file, then through the modules of its key."""
    key = tensor.key
    path = names_in(tensor.path)
    if key is None:
        return path
    return [*path[:-1], *key.split(".")]


def _shown(text: str) -> str:
    return printable(text, 2000)
