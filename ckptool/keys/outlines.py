"""What keys have in them apart from the numbers: of a hundred thousand keys, mostly a few lines."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

_DIGITS_AS_ZEROS = {ord(digit): "0" for digit in "123456789"}
#: Keys that are looked at together.
_AT_ONCE = 4096


def outline(keys: Iterable[str]) -> str:
    r"""Return KEYS with every digit as 0, each text once on a line of its own, with a line's end before and behind.

    A word without digits is in a key where it is in the outline; a key ends with it where the outline has it before
    "\n", and begins with it where the outline has it behind "\n".
    """
    lines: dict[str, None] = {}
    left = iter(keys)
    while some := list(islice(left, _AT_ONCE)):
        lines |= dict.fromkeys("\n".join(some).translate(_DIGITS_AS_ZEROS).split("\n"))
    return "\n".join(["", *lines, ""])
