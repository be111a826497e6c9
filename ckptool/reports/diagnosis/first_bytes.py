"""What the first byte of a file says about it, where torch.load or pickle names that byte in its message."""

from __future__ import annotations

import re

#: What a file begins with that torch.load or pickle cannot read: byte -> what it is.
FIRST_BYTES: dict[int, str] = {
    0x76: "a Git LFS pointer: a text that begins with 'version https://git-lfs…'; run `git lfs pull`",
    0x3C: "a web page or XML: a login, quota or error page was saved in place of the file",
    0x0A: "a web page or a text that begins with blank lines",
    0x0D: "a web page or a text that begins with blank lines",
    0x7B: "JSON: an error message of a server, or the index of a sharded checkpoint",
    0x1F: "a gzip file: gunzip < FILE > OUT unpacks it, whatever it is called",
    0x50: "a zip archive whose first record is damaged",
    0x00: "a file that begins with zeros: its writing was cut off, or it is a sparse copy",
    0x47: "a valid pickle with an opcode (BINFLOAT) that this torch does not read; a newer torch does",
    0x95: "a valid pickle of protocol 4 (FRAME), which this torch does not read; a newer torch does",
}


def first_byte(text: str) -> str | None:
    """What the byte is that a message names (`invalid load key, 'v'`, `Unsupported operand 118`), or None."""
    found = re.search(r"invalid load key, '(\\x([0-9a-f]{2})|\\?(.))'", text)
    if found:
        char = {"n": "\n", "r": "\r"}.get(found[3], found[3]) if found[1].startswith("\\") else found[3]
        number = int(found[2], 16) if found[2] else ord(char)
    else:
        operand = re.search(r"Unsupported operand (\d{1,3})", text)
        if not operand:
            return None
        number = int(operand[1])
    known = FIRST_BYTES.get(number)
    shown = f"its first byte is {number} (0x{number:02x})"
    return (
        f"{shown}: {known}" if known else f"{shown}, which begins no pickle: not a file of torch.save, or a damaged one"
    )
