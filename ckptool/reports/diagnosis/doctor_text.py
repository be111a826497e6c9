"""A diagnosis as text for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...drawing.screen import Block, Part, screen, section
from ...drawing.sizes import parameters_text, percent
from ...drawing.styles import paint
from ...errors import counted, printable
from .finding import Diagnosis, Finding
from .fits import Fit

_SHOWN = 12


def doctor_text(found: Diagnosis, *, everything: bool = False, width: int = 120, only_problems: bool = False) -> str:
    """What is wrong with a file, for a person: what is in the way, what is worth knowing, and what to type.

    Args:
        found: the diagnosis.
        everything: show all of it. Else the text fits on a screen.
        width: columns to fill. Commands are never folded.
        only_problems: leave out what is only worth knowing.
    """
    return screen(_parts(found, everything, only_problems), width, everything=everything)


def explanation_text(
    findings: Sequence[Finding], *, everything: bool = False, width: int = 120, file: bool = False
) -> str:
    """What an error message means, for a person. With FILE, what is said about the file follows."""
    if not findings:
        more = "" if file else " `ckptool doctor FILE` looks at the file itself."
        return f"ckptool does not know this error message.{more}"
    lines = [line for number, one in enumerate(findings) for line in ([""] if number else []) + list(_explained(one))]
    return screen(lines, width, everything=everything)


def _explained(one: Finding) -> Iterator[str]:
    yield sentence(one)
    yield from (f"    {paint(command, 'command')}" for command, _ in one.commands)
    yield from (f"  - {action}" for action in one.actions)


def verdict(found: Diagnosis) -> str:
    """What a diagnosis comes to, in a few words."""
    trouble = sum(one.trouble for one in found.findings)
    if trouble:
        return f"{counted(trouble, 'problem')} found"
    return "it does not fit the model" if found.fit and not found.fit.fits else "no problem found"


def cure_title(found: Diagnosis) -> str:
    """What stands above the commands of a cure."""
    return "to fix it, run" if len(found.cure) == 1 else "to fix it, run in this order"


def more_commands(found: Diagnosis, one: Finding) -> list[tuple[str, str]]:
    """The (what for, command) of a finding that the cure does not have already."""
    if one.trouble:
        return [(what or "to see more", command) for command, what in one.commands if command not in found.cure]
    done = {_without_out(command) for command in found.cure}
    return [(what or "for that", command) for command, what in one.commands if _without_out(command) not in done]


def sentence(one: Finding) -> str:
    """What an error message means, as a sentence."""
    return f"{one.what[0].upper()}{one.what[1:]}"


def _parts(found: Diagnosis, everything: bool, only_problems: bool) -> Iterator[Part]:
    trouble = [one for one in found.findings if one.trouble]
    others = [one for one in found.findings if not one.trouble and not only_problems]
    said = paint(verdict(found), "good" if found.healthy else "bad")
    yield f"{paint(printable(found.path), 'name')}: {said} ({printable(found.kind)})"
    numbered = [
        [f"{paint(f'{n}.', 'heading')} {one.what}", *(f"   - {action}" for action in one.actions)]
        for n, one in enumerate(trouble, 1)
    ]
    yield Block(items=numbered, indent="  ")
    if found.fit is not None:
        yield from fit_lines(found.fit, everything)
    if found.cure:
        yield from section(cure_title(found), [paint(command, "command") for command in found.cure])
        if found.fit and found.fit.commands:
            yield f"    ({found.fit.commands[0][1]})"
    for what, command in (more for one in trouble for more in more_commands(found, one)):
        yield from section(what, [paint(command, "command")])
    yield from section("worth knowing", [one.what for one in others])
    for what, command in (more for one in others for more in more_commands(found, one)):
        yield from section(what, [paint(command, "command")])
    if everything and not only_problems:
        yield from section("checked, without a problem", found.checked)


def _without_out(command: str) -> tuple[str, ...]:
    """The words of a command `ckptool NAME IN OUT …` but OUT."""
    words = command.split()
    return (*words[:3], *words[4:])


def fit_lines(fit: Fit, everything: bool) -> Iterator[str]:
    """How a file fits a model."""
    yield ""
    said = paint("fits", "good") if fit.fits else paint("DOES NOT FIT", "bad")
    yield f"  {paint(printable(fit.model), 'name')}: {said}, {fit_share(fit)}"
    groups = (
        ("missing in the file", [printable(key, 80) for key in fit.missing]),
        ("not in the model", [printable(key, 80) for key in fit.unexpected]),
        ("other shapes", [f"{printable(key, 60)} {file} | {model}" for key, file, model in fit.mismatched]),
    )
    for title, lines in groups:
        if lines:
            shown = lines if everything else lines[:_SHOWN]
            more = f", … {len(lines) - len(shown):,} more" if len(lines) > len(shown) else ""
            yield f"    {title} ({len(lines):,}): {', '.join(shown)}{more}"
    if not fit.fits and not fit.commands:
        yield f"    {NOTHING_FITS}"


def fit_share(fit: Fit) -> str:
    """How much of a model a file has."""
    met, whole = fit.parameters
    return f"{fit.common[0]:,} of {counted(fit.common[1], 'key')}, {percent(met, whole)} of {parameters_text(whole)}"


NOTHING_FITS = "nothing of the file fits by name, shape or structure: it is of another model, or of other sizes"
