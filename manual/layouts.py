"""The bytes of small files, drawn: `python -m manual.layouts` writes them into docs/formats.md.

What is drawn is read from fixtures with the readers of the standard library, not with our own.
"""

from __future__ import annotations

import io
import json
import pickletools
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "formats.md"
_SHOWN = 8


class Part(NamedTuple):
    """A run of bytes: where it begins, how long it is, and what it is."""

    at: int
    size: int
    means: str


def torch_zip(data: bytes) -> Iterator[Part]:
    """The parts of a zip archive of torch.save."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        entries = archive.infolist()
        directory = archive.start_dir
    for entry in entries:
        fixed = entry.header_offset + 30
        name, extra = (int.from_bytes(data[fixed - 4 + 2 * i : fixed - 2 + 2 * i], "little") for i in (0, 1))
        begin = fixed + name + extra
        yield Part(entry.header_offset, begin - entry.header_offset, f"local header of {entry.filename}")
        yield Part(begin, entry.file_size, entry.filename)
    yield Part(directory, 0, f"directory of {len(entries)} records")
    yield Part(data.rindex(b"PK\x05\x06"), 0, "end of the archive")


def torch_legacy(data: bytes) -> Iterator[Part]:
    """The parts of a legacy file of torch.save."""
    file = io.BytesIO(data)
    for means in ("magic number", "protocol version", "byte order and sizes of this machine", "the tree"):
        at = file.tell()
        for _ in pickletools.genops(file):
            pass
        yield Part(at, file.tell() - at, f"pickle: {means}")
    at = file.tell()
    keys = [value for _, value, _ in pickletools.genops(file) if isinstance(value, str)]
    yield Part(at, file.tell() - at, f"pickle: the keys of {len(keys)} storages, in the order of the data")
    at = file.tell()
    for key in keys:
        count = int.from_bytes(data[at : at + 8], "little")
        yield Part(at, 8, f"{count} elements in storage {key}")
        yield Part(at + 8, 4 * count, "their values, float32")
        at += 8 + 4 * count


def safetensors(data: bytes) -> Iterator[Part]:
    """The parts of a safetensors file."""
    length = int.from_bytes(data[:8], "little")
    yield Part(0, 8, f"length of the header, {length}")
    yield Part(8, length, "header: JSON, filled up with spaces")
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        begin, end = entry["data_offsets"]
        yield Part(8 + length + begin, end - begin, f"{name}: {entry['dtype']} {entry['shape']}")


#: Format, as docs/formats.md marks its drawing -> the file that is drawn, and what divides it.
DRAWN = {
    "torch-zip": ("fixtures/trained/housing-functional-unwrapped.pth", torch_zip),
    "torch-legacy": ("fixtures/trained/housing-functional-unwrapped.legacy.pth", torch_legacy),
    "safetensors": ("fixtures/trained/housing-functional-unwrapped.safetensors", safetensors),
}


def drawing(name: str) -> str:
    """The drawing of a format, as a block of Markdown."""
    path, parts = DRAWN[name]
    data = (ROOT / path).read_bytes()
    found = list(parts(data))
    ends = [part.at for part in found[1:]] + [len(data)]
    lines = ["```text", f"{path}, {len(data):,} bytes", ""]
    lines += [f"{'offset':>6}  {'size':>5}  {'first bytes':<{3 * _SHOWN - 1}}  {'':{_SHOWN}}  what it is"]
    for part, end in zip(found, ends, strict=True):
        size = part.size or end - part.at
        lines.append(_line(part.at, data[part.at : part.at + size], part.means))
        if end > part.at + size:
            lines.append(_line(part.at + size, data[part.at + size : end], "descriptor of the record"))
    return "\n".join([*lines, "```"])


def _line(at: int, data: bytes, means: str) -> str:
    head = data[:_SHOWN]
    text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in head)
    return f"{at:>6}  {len(data):>5}  {head.hex(' '):<{3 * _SHOWN - 1}}  {text:{_SHOWN}}  {means}"


def with_drawings(text: str) -> str:
    """The page TEXT with all drawings as they are now."""
    for name in DRAWN:
        begin, end = f"<!-- make pictures: {name} -->\n", "\n<!-- end of make pictures -->"
        pattern = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.DOTALL)
        text = pattern.sub(lambda _, name=name, begin=begin, end=end: begin + drawing(name) + end, text)  # type: ignore[misc]
    return text


if __name__ == "__main__":
    PAGE.write_text(with_drawings(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
