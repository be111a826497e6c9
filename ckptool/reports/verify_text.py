"""A verification as text for a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..drawing.screen import Part, screen, section
from ..drawing.sizes import size_text
from ..drawing.styles import Meaning, paint
from ..errors import printable

if TYPE_CHECKING:
    from .diagnosis.fits import Fit
    from .verify import Verification


def verify_text(
    found: Verification, fit: Fit | None = None, *, strict: bool = False, everything: bool = False, width: int = 120
) -> str:
    """What reading every byte of a file showed, for a person: the verdict, then what it follows from.

    Args:
        found: the report.
        fit: how it fits a model, if that was asked for.
        strict: what is perhaps wrong counts for the verdict.
        everything: list everything, also the digest of each tensor.
        width: columns to fill.
    """
    return screen(_parts(found, fit, strict, everything), width, everything=everything)


def _parts(found: Verification, fit: Fit | None, strict: bool, everything: bool) -> Iterator[Part]:
    yield from _lines(found, found.verdict(strict=strict, fits=fit is None or fit.fits), everything)
    if fit is not None:
        from .diagnosis.doctor_text import fit_lines

        yield from fit_lines(fit, everything)
        for command, what in fit.commands:
            yield from section(what, [paint(command, "command")])
    if found.against is not None and not found.against.same:
        from .comparing.diff_text import diff_parts

        yield ""
        yield from diff_parts(found.against, everything)


def _lines(found: Verification, verdict: str, everything: bool) -> Iterator[Part]:
    colour: Meaning = "good" if verdict == "sound" else "bad"
    yield f"{paint(printable(found.path), 'name')}: {paint(verdict, colour)}, {found.format}, {size_text(found.bytes)}"
    matched, unknown = found.checksums
    words = f"{matched:,} checksums agree" if matched else "no checksums in this file"
    yield f"  {size_text(found.read)} read; {words}{f', {unknown:,} were not recorded' if matched and unknown else ''}"
    if found.against is not None and found.against.same:
        yield f"  the weights are those of {printable(found.against.right)}"
    if found.digest:
        yield f"  digest of the weights: {found.digest}"
    if everything:
        yield from section("digests", [f"{digest}  {printable(name)}" for name, digest in found.digests.items()])
    yield from section("damage", found.damage)
    yield from section("perhaps wrong", found.doubts)
    yield from section("notes", [printable(line) for line in found.notes])
