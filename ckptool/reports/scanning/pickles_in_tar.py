"""Pickles in tar archives: those of torch before 0.1.10, and any others."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Any

from ...disk.files import CHUNK, FileRange, Source
from ...errors import CheckpointError, Malformed, printable
from ...formats import torch_tar
from .following import Behind, Follow, Part, Parts, Problem, Record, Row

#: Bytes of the longest header, that is of a long name, that is read.
_LARGEST_HEADER = 1 << 20


def parts_of_tar(source: Source, place: str, follow: Follow) -> Parts:
    """All that a tar archive holds."""
    import tarfile

    members: dict[str, FileRange] = {}
    names = set()
    end = 0
    try:
        with tarfile.open(fileobj=_Stream(source), mode="r:") as tar:
            for info in tar:
                here = f"{place}/{info.name}".lstrip("/")
                if info.size < 0:  # tarfile of some versions of Python goes back by so much, for ever
                    yield Problem(here, "its size is a negative number")
                    break
                if info.name in names:
                    yield Problem(here, "it is there twice; readers disagree on which counts")
                names.add(info.name)
                if info.isdir():
                    continue
                if info.sparse is not None or not info.isreg() or info.offset_data + info.size > source.length:
                    yield Problem(here, "it is not a whole and plain file, and not looked into")
                    continue
                members[info.name] = FileRange(Part(source, here), info.offset_data, info.size)
                end = info.offset_data + info.size
    except (tarfile.TarError, ValueError, OSError, OverflowError) as error:
        yield Problem(place, f"its tar archive is damaged ({printable(str(error), 80)})")
    torch = {"pickle", "storages"} <= members.keys()
    for name, member in members.items():
        here = f"{place}/{name}".lstrip("/")
        if not torch or name not in ("sys_info", "pickle", "tensors", "storages"):
            yield Record(member, here)
        elif name in ("sys_info", "pickle"):
            yield Row(member, here)
    if torch:
        yield from _tar_storages(members, place, follow)
    for at in range(end, source.length, CHUNK):
        if bytes(source.read(at, min(CHUNK, source.length - at))).strip(b"\0"):
            yield Problem(place, "something follows the members of its tar archive; not looked into")
            break
    return "tar archive of torch before 0.1.10" if torch else "tar archive"


def _tar_storages(members: dict[str, FileRange], place: str, follow: Follow) -> Parts:
    """Pickles and numbers in turn, as torch reads them."""
    streams = {
        name: _TarStream(
            member.file, member.offset, member.offset + member.length, follow, f"{place}/{name}".lstrip("/")
        )
        for name, member in members.items()
        if name in ("storages", "tensors")
    }
    try:
        storages, bases = torch_tar.read_storages(streams["storages"])
        if "tensors" in streams:
            torch_tar.read_tensors(streams["tensors"], storages, bases)
    except CheckpointError as error:
        yield Problem(place, error)
    for name, stream in streams.items():
        yield Behind(members[name], stream.at - members[name].offset, stream.place, "last number")
    return "tar archive of torch before 0.1.10"


@dataclass(slots=True)
class _TarStream(torch_tar.Stream):
    """A member of a tar archive, whose pickles are followed as they are read."""

    follow: Follow
    place: str

    def pickle(self) -> Any:
        """What the next pickle holds."""
        reading = self.follow(FileRange(self.file, self.at, self.end - self.at), self.place)
        if reading.failure:
            raise Malformed("its pickles and numbers are not those that torch writes")
        self.at += reading.reader.position
        return reading.value


class _Stream(io.RawIOBase):
    """A source as a stream, for tarfile, which reads headers in one piece, however long they say that they are."""

    def __init__(self, source: Source) -> None:
        self._source, self._at = source, 0

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = 0, /) -> int:
        self._at = max(0, offset)
        return self._at

    def read(self, size: int = -1, /) -> bytes:
        if not 0 <= size <= _LARGEST_HEADER:
            raise OSError(f"a header of {size:,} bytes")
        begin = min(self._at, self._source.length)
        self._at = min(begin + size, self._source.length)
        return bytes(self._source.read(begin, self._at - begin))
