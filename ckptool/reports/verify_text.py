"""A verification as text for a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..errors import printable
from .render import section, size_text, wrapped

if TYPE_CHECKING:
    from .fits import Fit
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
    verdict = found.verdict(strict=strict, fits=fit is None or fit.fits)
    text = "\n".join(wrapped(_lines(found, verdict, everything), width))
    if fit is not None:
        from .doctor_text import fit_lines

        text += "\n" + "\n".join(wrapped(fit_lines(fit), width))
        text += "".join(f"\n\n  {what}:\n    {command}" for command, what in fit.commands)
    if found.against is not None and not found.against.same:
        from .diff_text import diff_text

        text += "\n\n" + diff_text(found.against, everything=everything, width=width)
    return text


def _lines(found: Verification, verdict: str, everything: bool) -> Iterator[str]:
    yield f"{printable(found.path)}: {verdict}, {found.format}, {size_text(found.bytes)}"
    matched, unknown = found.checksums
    words = f"{matched:,} checksums agree" if matched else "no checksum to hold against"
    yield f"  {size_text(found.read)} read; {words}{f', {unknown:,} were not recorded' if matched and unknown else ''}"
    if found.against is not None and found.against.same:
        yield f"  the weights are those of {printable(found.against.right)}"
    if found.digest:
        yield f"  digest of the weights: {found.digest}"
    if everything:
        yield from section("digests", [f"{digest}  {printable(name)}" for name, digest in found.digests.items()], True)
    yield from section("damage", found.damage, everything)
    yield from section("perhaps wrong", found.doubts, everything)
    yield from section("notes", [printable(line) for line in found.notes], everything)
