"""Reads what an HDF5 file says of its datasets, in a child process (see `apart`). No value of a large one is read.

No link that leads to another file is followed, and no dataset whose values stand in one is read: they are listed.
"""

from __future__ import annotations

import io
import json
import os
import sys
from typing import Any

from .apart import limit

_MOST_OBJECTS = 1_000_000
_MOST_CHUNKS = 2_000_000
#: Bytes of a compact dataset, and of an attribute or a text, that are given as they are.
_SMALL = 1 << 16
_LONGEST_TEXT = 64 << 20


class _Part(io.RawIOBase):
    """A part of an open file as a file."""

    def __init__(self, fd: int, offset: int, size: int) -> None:
        self._fd, self._offset, self._size, self._at = fd, offset, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = max(0, offset + (0, self._at, self._size)[whence])
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        length = max(0, min(len(buffer), self._size - self._at))
        data = os.pread(self._fd, length, self._offset + self._at)
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)


def answer(place: str, offset: str, size: str) -> None:
    """Print what is in the part of the file with the descriptor (or path) PLACE."""
    limit()
    try:
        import h5py
    except ImportError:
        print(json.dumps({"missing": "h5py"}))  # noqa: T201 - this is its answer
        return
    fd = int(place) if place.isdigit() else os.open(place, os.O_RDONLY | getattr(os, "O_BINARY", 0))
    try:
        with h5py.File(_Part(fd, int(offset), int(size)), "r") as file:
            found = _Reader(h5py).all_of(file)
    except MemoryError:
        found = {"refused": "it takes more memory than is sensible"}
    except Exception as error:  # whatever the library says of it
        found = {"refused": f"{type(error).__name__}: {error}"[:2000]}
    json.dump(found, sys.stdout)
    sys.stdout.flush()


class _Reader:
    """Walks through a file."""

    def __init__(self, h5py: Any) -> None:
        self.h5py = h5py
        self.datasets: list[dict[str, Any]] = []
        self.groups: dict[str, dict[str, Any]] = {}
        self.outside: list[list[str]] = []
        self.soft: list[list[str]] = []
        self.chunks = 0

    def all_of(self, file: Any) -> dict[str, Any]:
        """Everything that is in the file."""
        seen: dict[Any, str] = {}
        pending = [("", file)]
        self.groups[""] = self._attributes(file)
        count = 0
        while pending:
            path, group = pending.pop()
            for name in group:
                count += 1
                if count > _MOST_OBJECTS:
                    raise ValueError(f"it holds more than {_MOST_OBJECTS:,} objects")
                here = f"{path}/{name}" if path else name
                link = group.get(name, getlink=True)
                if isinstance(link, self.h5py.ExternalLink):
                    self.outside.append([here, f"a link to {link.filename!r}"])
                    continue
                if isinstance(link, self.h5py.SoftLink):
                    self.soft.append([here, link.path])
                    continue
                one = group[name]
                if isinstance(one, self.h5py.Group):
                    key = self.h5py.h5o.get_info(one.id).addr
                    if key in seen:
                        self.soft.append([here, seen[key]])
                        continue
                    seen[key] = here
                    self.groups[here] = self._attributes(one)
                    pending.append((here, one))
                elif isinstance(one, self.h5py.Dataset):
                    self.datasets.append(self._dataset(here, one))
                else:
                    self.datasets.append({"path": here, "kind": "a named type"})
        return {"datasets": self.datasets, "groups": self.groups, "outside": self.outside, "soft": self.soft}

    def _attributes(self, one: Any) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name in one.attrs:
            try:
                value = _plain(one.attrs[name])
            except (OSError, TypeError, ValueError, KeyError, RuntimeError):
                value = None
            if value is not None:
                found[name] = value
        return found

    def _dataset(self, path: str, one: Any) -> dict[str, Any]:
        found: dict[str, Any] = {"path": path, "attributes": self._attributes(one)}
        shape = one.shape
        if shape is None:
            return found | {"kind": "an empty dataset"}
        found["shape"] = [int(n) for n in shape]
        properties = one.id.get_create_plist()
        if one.is_virtual:
            self.outside.append([path, "a virtual dataset, whose values stand in other files"])
            return found | {"kind": "a virtual dataset"}
        if properties.get_layout() == self.h5py.h5d.CONTIGUOUS and properties.get_external_count():
            self.outside.append([path, f"values in {os.fsdecode(properties.get_external(0)[0])!r}"])
            return found | {"kind": "a dataset with values elsewhere"}
        if self.h5py.check_string_dtype(one.dtype):
            small = one.size <= _SMALL and one.id.get_storage_size() <= _LONGEST_TEXT
            return found | {"kind": "text", "text": _plain(one[()]) if small else None}
        dtype = one.dtype
        if dtype.kind not in "biufcV" or dtype.fields or dtype.subdtype or dtype.hasobject:
            return found | {"kind": f"values of type {dtype}"[:200]}
        found |= {"dtype": dtype.str, "bytes": int(one.nbytes)}
        if dtype.kind in "biuf" and not self._is_standard(one):
            return found | {"kind": "numbers of a type that no framework has"}
        layout = properties.get_layout()
        fill = one.fillvalue
        found["fill"] = fill.tobytes().hex() if hasattr(fill, "tobytes") else ""
        if layout == self.h5py.h5d.CHUNKED:
            return found | self._chunks(one, properties)
        at = one.id.get_offset()
        if at is not None:
            return found | {"offset": int(at)}
        if layout == self.h5py.h5d.COMPACT and one.nbytes <= _SMALL:
            return found | {"values": one[()].tobytes().hex()}
        return found  # never written: the fill value all over

    def _is_standard(self, one: Any) -> bool:
        """Whether its numbers stand in the file as numpy has them: HDF5 converts others as they are read."""
        kind = one.id.get_type()
        if isinstance(kind, self.h5py.h5t.TypeEnumID):
            return bool(one.dtype.kind == "b" and kind.get_size() == 1)
        return bool(kind.equal(self.h5py.h5t.py_create(one.dtype)))

    def _chunks(self, one: Any, properties: Any) -> dict[str, Any]:
        filters = []
        for number in range(properties.get_nfilters()):
            code, _, values, name = properties.get_filter(number)
            filters.append([int(code), [int(v) for v in values], name.decode("utf-8", "replace")])
        pieces: list[list[Any]] = []

        def note(info: Any) -> None:
            self.chunks += 1
            if self.chunks > _MOST_CHUNKS:
                raise ValueError(f"it holds more than {_MOST_CHUNKS:,} chunks")
            start = [int(n) for n in info.chunk_offset]
            pieces.append([start, int(info.byte_offset), int(info.size), int(info.filter_mask)])

        one.id.chunk_iter(note)
        return {"chunk": [int(n) for n in one.chunks], "pieces": pieces, "filters": filters}


def _plain(value: Any) -> Any:
    """An attribute as JSON has it; None for one that is no text, number or list of these."""
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    if isinstance(value, str):
        return value if len(value) <= _LONGEST_TEXT else None
    if hasattr(value, "tolist"):
        value = value.tolist() if value.size <= _SMALL else None
        return _plain(value)
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    if isinstance(value, bool | int):
        return value
    return repr(value) if isinstance(value, float) else None
