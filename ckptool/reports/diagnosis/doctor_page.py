"""The page of `ckptool doctor --html`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ...drawing.page import pair, render, shown
from .doctor_text import NOTHING_FITS, cure_title, fit_share, more_commands, sentence, verdict
from .finding import Diagnosis, Finding
from .fits import Fit


def doctor_page(found: Diagnosis | None, explained: Sequence[Finding] | None = None) -> str:
    """The page of a diagnosis, of what an error message means, or of both: all of what the text says, and what is well.

    Args:
        found: the diagnosis of a file.
        explained: what the error message means, if there was one.
    """
    names: Counter[str] = Counter()
    messages = [
        _finding(replace(one, what=sentence(one)), "message", names, [("", command) for command, _ in one.commands])
        for one in explained or ()
    ]
    if found is None:
        return render({"title": "error message", "messages": messages}, "pairs", "diagnosis")
    findings = [_finding(one, one.name, names, more_commands(found, one)) for one in found.findings]
    return render(
        {
            "title": shown(found.path),
            "summary": shown(found.kind),
            "verdict": verdict(found),
            "healthy": found.healthy,
            "messages": messages,
            "problems": [made for made, one in zip(findings, found.findings, strict=True) if one.trouble],
            "others": [made for made, one in zip(findings, found.findings, strict=True) if not one.trouble],
            "cure": {"title": cure_title(found), "commands": found.cure, "purpose": _purpose(found)},
            "fit": _fit(found.fit) if found.fit is not None else None,
            "checked": found.checked,
        },
        "pairs",
        "diagnosis",
    )


def _finding(one: Finding, name: str, names: Counter[str], commands: list[tuple[str, str]]) -> dict[str, Any]:
    """A finding with the name that a link to it has: the same in every page of the file, as long as it is found."""
    names[name] += 1
    return {
        "id": name if names[name] == 1 else f"{name}-{names[name]}",
        "what": shown(one.what),
        "actions": [shown(action) for action in one.actions],
        "commands": commands,
    }


def _purpose(found: Diagnosis) -> str:
    return found.fit.commands[0][1] if found.cure and found.fit and found.fit.commands else ""


def _fit(fit: Fit) -> dict[str, Any]:
    """How a file fits a model, with a line for each key in the way of that."""
    links = [_link(None, key, "missing") for key in fit.missing]
    links += [_link(key, None, "unexpected") for key in fit.unexpected]
    links += [_link(key, key, "shape", (_shape(ours), _shape(theirs))) for key, ours, theirs in fit.mismatched]
    return {
        "fits": fit.fits,
        "model": shown(fit.model),
        "share": fit_share(fit),
        "nothing": NOTHING_FITS if not fit.fits and not fit.commands else "",
        "left": "in the file",
        "right": "in the model",
        "links": links,
    }


def _link(left: str | None, right: str | None, status: str, shapes: tuple[str, str] | None = None) -> dict[str, Any]:
    details = list(zip(("shape in the file", "shape in the model"), shapes or (), strict=False))
    return pair({"left": left, "right": right, "status": status, "details": details, "about": " | ".join(shapes or ())})


def _shape(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape)) or "scalar"
