"""Manifests: files of JSON with the digests of weights, which another copy of them can be held against."""

from __future__ import annotations

import json
from collections.abc import Iterator

from ..disk.documents import read_json
from ..disk.files import StrPath
from ..disk.targets import write_side_output
from ..disk.urls import open_file
from ..errors import Malformed, printable

_MANIFEST = "ckptool-manifest"
_LARGEST_MANIFEST = 1 << 28


def total_digest(digests: dict[str, str]) -> str:
    """One digest of all weights: SHA-256 over their names and digests, in the order of the names."""
    import hashlib

    told = hashlib.sha256()
    for name in sorted(digests):
        told.update(f"{json.dumps(name)} {digests[name]}\n".encode())
    return told.hexdigest()


def write_manifest(path: StrPath, digests: dict[str, str], *, overwrite: bool = False) -> None:
    """Write the digests of weights to a file of JSON."""
    document = {_MANIFEST: 1, "digest": total_digest(digests), "tensors": dict(sorted(digests.items()))}
    write_side_output("manifest", path, json.dumps(document, indent=1) + "\n", overwrite=overwrite)


def read_manifest(path: StrPath) -> dict[str, str]:
    """The digests that a manifest holds.

    Raises:
        Unreadable: there is no such file.
        Malformed: it is no manifest, or was changed.
    """
    file = open_file(path)
    if file.size > _LARGEST_MANIFEST:
        raise Malformed(f"has {file.size:,} bytes; a manifest has at most {_LARGEST_MANIFEST:,}", where=path)
    try:
        document = read_json(file.read(0, file.size))
        tensors = document["tensors"] if document[_MANIFEST] == 1 else None
        digest = document["digest"]
    except (ValueError, TypeError, KeyError):
        tensors = digest = None
    if not isinstance(tensors, dict) or not all(isinstance(value, str) for value in tensors.values()):
        hint = "ckptool verify FILE --write-manifest MANIFEST makes one"
        raise Malformed("is not a ckptool manifest", where=path, hint=hint)
    if digest != total_digest(tensors):
        raise Malformed("was changed: its digests do not add up to the one that it states", where=path)
    return tensors


def against_manifest(found: dict[str, str], expected: dict[str, str]) -> Iterator[str]:
    """Lines on the digests that FOUND has and a manifest does not EXPECT, and the other way round."""
    for name in expected:
        if name not in found:
            yield f"{printable(name, 80)}: is in the manifest and not in the file"
        elif found[name] != expected[name]:
            yield f"{printable(name, 80)}: its digest is not that of the manifest"
    yield from (f"{printable(name, 80)}: is not in the manifest" for name in found if name not in expected)
