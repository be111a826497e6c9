"""Files that are no checkpoint, or none that is read: told by their first bytes, with what to do about it.

Most of "invalid load key" and "Unsupported operand" is one of these.
"""

from __future__ import annotations

import codecs
import contextlib
import re
import zlib
from pathlib import Path

from ..disk.paths import beside, is_there, shell_path, shell_quote
from ..errors import printable

#: (offset, bytes, what it is, the program that unpacks it or a hint)
_MAGIC: tuple[tuple[int, bytes, str, str | None], ...] = (
    (0, b"\x1f\x8b", "a gzip file", "gunzip"),
    (0, b"BZh", "a bzip2 file", "bunzip2"),
    (0, b"\xfd7zXZ", "an xz file", "unxz"),
    (0, b"\x28\xb5\x2f\xfd", "a zstd file", "unzstd"),
    (0, b"7z\xbc\xaf", "a 7z archive", "7z x"),
    (0, b"Rar!", "a rar archive", "unrar x"),
    (0, b"ggml", "a GGML file (llama.cpp)", None),
    (0, b"TFL3", "a TensorFlow Lite model", None),
    (0, b"PYTORCH1", "a preview of the torch container that no release reads", None),
    (0, b"\x89PNG", "a picture (PNG)", None),
    (0, b"\xff\xd8\xff", "a picture (JPEG)", None),
    (0, b"%PDF", "a PDF document", None),
    (0, b"\x7fELF", "a program (ELF)", None),
    (0, b"#!", "a script", None),
    (2, b"\x03\x04", "a zip archive whose beginning is damaged", "copy or download it again"),
)

_ONNX = re.compile(rb"\x08[\x01-\x20]\x12.(?:pytorch|tf2onnx|onnx|keras2onnx|skl2onnx)")
#: How pickles of protocol 0 and 1, which have no header, begin: a dict, a list, or an object of some class.
OLD_PICKLE = re.compile(
    rb"\(?[dl]p\d+\n|[}\]]q[\x00-\x7f]|\(?[ci](?:__\w+__|collections|copy_?reg|numpy|torch|sklearn)[\w.]*\n\w+\n"
)

#: Endings of files that are meant to be texts.
_TEXTS = (".py", ".txt", ".md", ".json", ".yaml", ".yml", ".toml", ".cfg", ".log", ".csv")
_AGAIN = "download it again; look at the address, the login and the quota"


def describe(head: bytes, size: int, path: Path) -> tuple[str, str | None]:
    """What a file is that no format takes: a phrase, and a hint or None. HEAD are its first bytes (some 4 KB)."""
    if not size:
        return "the file is empty", "copy or download it again"
    if not head[:64].strip(b"\0"):
        return "it begins with zeros, as a file does whose writing was cut off", "copy or download it again"
    pointer = re.match(rb"version https://git-lfs[^\n]*\n(?:[^\n]*\n)*?size (\d{1,18})", head)
    if pointer:
        real = int(pointer[1])
        return (
            f"a Git LFS pointer ({size:,} bytes); the real file has {real:,} bytes",
            f"git lfs pull --include {shell_quote(path.name)}",
        )
    for offset, magic, what, hint in _MAGIC:
        if head[offset : offset + len(magic)] == magic:
            return what, _unpacking(hint, path) if hint in _UNPACKERS else hint
    if head[257:262] == b"ustar":
        return (
            "a tar archive (what torch.save writes is none, even if it is called .pth.tar)",
            f"tar -xf {shell_path(path)}",
        )
    if _ONNX.match(head):
        return "an ONNX model", None
    what, hint = _text(head, size)
    return what, None if hint == _AGAIN and path.suffix.lower() in _TEXTS else hint


#: Programs that unpack, each with the endings that it takes off; those without take files out of an archive.
_UNPACKERS = {
    "gunzip": (".gz", ".gzip"),
    "bunzip2": (".bz2",),
    "unxz": (".xz",),
    "unzstd": (".zst", ".zstd"),
    "7z x": (),
    "unrar x": (),
}


def _unpacking(program: str | None, path: Path) -> str:
    """The command that unpacks a file, whatever its name is."""
    endings = _UNPACKERS[program or ""]
    if not endings:
        return f"{program} {shell_path(path)}"
    whole = path.with_suffix("") if path.suffix.lower() in endings else path
    out = shell_path(whole) if whole != path and not is_there(whole) else beside(whole, "unpacked")
    return f"{program} < {shell_path(path)} > {out}   # then: ckptool doctor {out}"


def describe_zip(names: list[str]) -> str:
    """What a zip archive of these members is, which torch.save did not make."""
    if "serialized_exported_program.json" in names:
        return "an exported program (.pt2) of torch 2.1 to 2.7; its serialized_state_dict.pt is a checkpoint: unzip it"
    inner = next((name for name in names if name.endswith((".pth", ".pt", ".bin", ".ckpt", ".safetensors"))), None)
    if inner:
        return f"a zip archive with a checkpoint in it ({printable(inner, 60)}); unpack it first"
    shown = ", ".join(printable(name, 40) for name in names[:5])
    return f"a zip archive, but none of torch's: it holds {shown}"


def _text(head: bytes, size: int) -> tuple[str, str | None]:
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        head = head.decode("utf-16", "ignore").encode()
    start = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    shown = printable(start[:60].decode("utf-8", "replace").splitlines()[0]) if start else ""
    if start[:1] == b"<":
        kind = "a web page (HTML)" if re.match(rb"<(!doctype\s+html|html|head|body)", start, re.I) else "XML or HTML"
        return f"{kind}, as a login, quota or error page is saved in place of a file", _AGAIN
    if start[:1] in (b"{", b"["):
        if b'"weight_map"' in head:
            return "the index of a sharded checkpoint, which names files but holds no tensor", None
        return f"JSON: {shown}", _AGAIN if size < 1 << 16 else None
    if start and _is_text(head, whole=size <= len(head)):
        return f"a text: {shown}", _AGAIN if size < 1 << 16 else None
    return f"its first bytes, {head[:8].hex(' ')}, are those of no format that ckptool knows", None


def _is_text(head: bytes, *, whole: bool) -> bool:
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(head, whole)  # else its last character may be cut
    except UnicodeDecodeError:
        return False
    return text.translate(_NOT_PRINTED).isprintable()


#: What is in texts beside printable characters.
_NOT_PRINTED = dict.fromkeys(map(ord, "\t\r\n\f\x1b\ufeff"))


#: Signatures of compressed data in which Python's libraries find a pickle: joblib, pandas and others open them.
_PACKED = (
    (b"\x1f\x8b", "a gzip file"),
    (b"BZh", "a bzip2 file"),
    (b"\xfd7zXZ", "an xz file"),
    (b"\x5d\0\0", "an lzma file"),
    (b"\x28\xb5\x2f\xfd", "a zstd file"),
    (b"\x04\x22\x4d\x18", "an lz4 file"),
    (b"7z\xbc\xaf", "a 7z archive"),
    (b"Rar!", "a rar archive"),
)
_PACKED_MAGIC = tuple(magic for magic, _ in _PACKED)


def packed(head: bytes) -> str | None:
    """What kind of compressed data begins with HEAD, or None."""
    if head.startswith(_PACKED_MAGIC):
        return next(what for magic, what in _PACKED if head.startswith(magic))
    if len(head) > 2 and head[0] & 15 == 8 and head[0] < 0x80 and int.from_bytes(head[:2], "big") % 31 == 0:
        with contextlib.suppress(zlib.error):
            zlib.decompressobj().decompress(head, 4096)
            return "a zlib stream"
    return None
