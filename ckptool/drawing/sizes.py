"""Sizes, counts and tables as people read them."""

from __future__ import annotations

from collections.abc import Sequence

from .styles import width_of


def size_text(nbytes: int) -> str:
    """A size in the decimal units of disks and downloads: 548.1 MB."""
    size = float(nbytes)
    for unit in ("bytes", "kB", "MB", "GB", "TB"):
        if size < 1000 or unit == "TB":
            break
        size /= 1000
    return f"{nbytes:,} bytes" if unit == "bytes" else f"{size:.1f} {unit}"


def count_text(count: int) -> str:
    """A number of parameters: 143.7 M."""
    for limit, unit in ((10**12, "T"), (10**9, "G"), (10**6, "M")):
        if count >= limit:
            return f"{count / limit:.1f} {unit}"
    return f"{count:,}"


def parameters_text(count: int) -> str:
    """So many parameters: `143.7 M parameters`, `1 parameter`."""
    return f"{count_text(count)} {'parameter' if count == 1 else 'parameters'}"


def percent(part: int, whole: int) -> str:
    """PART of WHOLE in percent, 100 % for all of them only."""
    share = 100 * part / whole if whole else 100.0
    return f"{min(share, 99.99) if part < whole else share:.4g} %"


def table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Rows as aligned columns; the last column is not padded."""
    if not rows:
        return []
    widths = [max(width_of(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [
        "  ".join(cell + " " * (width - width_of(cell)) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
