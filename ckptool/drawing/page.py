"""Pages of HTML, for what is better looked at than read.

A page is one file. It asks for nothing on the network, and everything that comes out of a checkpoint is in it as JSON,
which its script puts on the screen as text only. `page.html` beside this file has what pages share: the style, lists
and commands. The `.js` files draw what each shows: `treemap` for inspect, `pairs` for diff, transfer
and, within `diagnosis`, for doctor.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

from ..errors import printable


def pairs_page(
    title: str,
    left: str,
    right: str,
    links: Sequence[dict[str, Any]],
    *,
    summary: str = "",
    notes: Sequence[str] = (),
    commands: Sequence[tuple[str, str]] = (),
) -> str:
    """The page of `diff` and `transfer`: two columns, with a line for each pair, coloured by its status.

    Args:
        left, right: the names of the columns.
        links: each with `left` and `right` (a key, or None), `status` (a word, which filters the list), and `details`,
            (name, value) pairs that are shown when it is chosen; also `about`, a few words beside it, and `via`, a word
            on the line for what happens on the way.
        summary, notes: what stands on top.
        commands: (command, what for), each with a button that copies it.
    """
    return render(
        {
            "title": shown(title),
            "left": shown(left),
            "right": shown(right),
            "links": [pair(link) for link in links],
            "summary": summary,
            "notes": [shown(note) for note in notes],
            "commands": list(commands),
        },
        "pairs",
    )


def pair(link: dict[str, Any]) -> dict[str, Any]:
    """A link as `pairs.js` takes it: its names printable, and cut."""
    names = {side: shown(link[side]) if link[side] is not None else None for side in ("left", "right")}
    return {**link, **names, "details": [(name, shown(str(value))) for name, value in link["details"]]}


def render(data: dict[str, Any], *scripts: str) -> str:
    """The page that SCRIPTS draw of DATA. `<` is written as an escape, so that no text ends its element."""
    text = json.dumps(data, ensure_ascii=True, separators=(",", ":")).replace("<", "\\u003c")
    page, *drawing = (_beside(name) for name in ("page.html", *(f"{name}.js" for name in scripts)))
    # the data last: a key in it may be named {{SCRIPT}}
    return page.replace("{{SCRIPT}}", "\n".join(drawing), 1).replace("{{DATA}}", text, 1)


def _beside(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def shown(text: str) -> str:
    """A text of a checkpoint for a page: printable, and cut."""
    return printable(text, 2000)
