"""The record of a run, in lines of JSON: what belongs to it, and what it has finished. See `ckptool.disk.work`."""

from __future__ import annotations

import contextlib
import json
import os
from typing import Any

from .door import Directory, is_plain_name

RECORD = "record"
_LARGEST_RECORD = 64 << 20


def read(own: Directory) -> tuple[dict[str, Any] | None, int]:
    """The record in a directory and its descriptor, or None if there is none that counts."""
    try:
        fd = own.reopen(RECORD)
    except OSError:
        return None, -1
    beginning = _beginning_of_record(own)
    with contextlib.suppress(OSError, ValueError, RecursionError):
        if os.read(fd, len(beginning)) == beginning:
            os.lseek(fd, 0, os.SEEK_SET)
            return _parse(fd), fd
    os.close(fd)
    return None, -1


def _beginning_of_record(own: Directory) -> bytes:
    """How the record of a run in a directory begins. No other text is parsed: it may be large, and costs memory."""
    return json.dumps({"ckptool": 2, "made": number(own.own_status())}).encode()[:-1] + b", "


def _parse(fd: int) -> dict[str, Any]:
    """What a record says. A last line that was cut off does not count.

    Raises:
        ValueError: it is no record.
    """
    text = b""
    while part := os.read(fd, 1 << 20):
        text += part
        if len(text) > _LARGEST_RECORD:
            raise ValueError
    first, *rest = text.split(b"\n")[:-1] or [b""]
    content: Any = json.loads(first)
    if not {"target", "plan", "new", "names"} <= content.keys():
        raise ValueError
    if not isinstance(content["names"], list | None) or not all(map(is_plain_name, _named(content))):
        raise ValueError
    content |= {"finished": {}, "parts": [], "old": {}}
    for line in rest:
        more = json.loads(line)
        if isinstance(more, dict) and _is_part(more.get("part")):
            content["parts"].append(more["part"])
        if isinstance(more, dict) and isinstance(more.get("anew"), list):
            content["parts"] = [part for part in content["parts"] if part[0] not in more["anew"]]
        for kind in ("finished", "old"):
            if isinstance(more, dict) and isinstance(more.get(kind), dict):
                content[kind] |= more[kind]
    parsed: dict[str, Any] = content
    return parsed


def _is_part(said: Any) -> bool:
    """Whether a line tells of a part: the name of its file, where it begins and ends, and checksums of pieces."""
    return (
        isinstance(said, list)
        and len(said) == 4
        and isinstance(said[0], str | None)
        and all(type(number) is int for number in said[1:3])
        and isinstance(said[3], list)
        and all(isinstance(one, list) and len(one) == 2 and all(type(n) is int for n in one) for one in said[3])
    )


def _named(content: dict[str, Any]) -> list[Any]:
    """All that a record names in its first line."""
    return [content["target"], *(content["names"] or ())]


def append(fd: int, content: dict[str, Any]) -> None:
    """Add a line to a record. Nothing that was written before can be lost by it."""
    os.lseek(fd, 0, os.SEEK_END)
    line = memoryview(json.dumps(content).encode() + b"\n")
    while line:
        line = line[os.write(fd, line) :]


def mark(own: Directory) -> str:
    """A digest of the first line of the record in a directory."""
    import hashlib

    try:
        with os.fdopen(own.open_to_read(RECORD), "rb") as record:
            return hashlib.sha256(record.readline(_LARGEST_RECORD)).hexdigest()
    except FileNotFoundError:
        return ""


def number(status: os.stat_result) -> list[int]:
    """What tells a directory or file from any other one: its device and inode."""
    return [status.st_dev, status.st_ino]
