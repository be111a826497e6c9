"""Following one pickle, and the bytes that it may be in, for those who look for all pickles of a file."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...disk.files import File, Source
from ...dtypes import BY_STORAGE
from ...errors import CheckpointError, Malformed, printable
from ...formats.pickle.follower import Follower
from ...formats.pickle.phrases import Maker, Phrase, Phrases
from ...records import record
from ...tree import Dict, Global, Object

#: Bytes of a file that tell what it is.
HEAD = 4096


class Part(File):
    """Bytes within a file, seen as a file of their own."""

    def __init__(self, source: Source, name: str) -> None:
        self.fd = -1
        self.path = Path(name)
        self.size = source.length
        self.mode = 0
        self.identity = (0, 0)
        self._source = source

    def read(self, offset: int, length: int) -> bytes:
        """LENGTH bytes from OFFSET of this part."""
        if offset < 0 or length < 0 or offset + length > self.size:
            raise Malformed(f"ends at byte {self.size:,}, but byte {offset + length:,} is needed", where=self.path)
        return bytes(self._source.read(offset, length))

    def read_into(self, view: memoryview, offset: int) -> None:
        """Fill VIEW with the bytes from OFFSET of this part."""
        view[:] = self.read(offset, len(view))


class Recorder(Phrases, Follower):
    """Follows a pickle and remembers the storages that its persistent ids name."""

    def __init__(self, data: bytes, *, complete: bool, total: int) -> None:
        super().__init__(data, "", self._id, complete=complete, total=total)
        self.storages: dict[str, int] = {}
        self.contradiction: str | None = None
        self._keys_of: dict[int, str] = {}  # id of the call of a tensor that was made at once -> key of its storage

    def _id(self, pid: Any) -> Any:
        if isinstance(pid, tuple) and len(pid) == 4 and pid[0] == "module":
            return pid[1]  # the class of a whole saved module, which torch gives back
        if isinstance(pid, tuple) and len(pid) == 3 and isinstance(pid[0], Global):
            return pid[0]  # the same, in tar files
        if isinstance(pid, tuple) and len(pid) >= 5:
            _, cls, key, _, numel = pid[:5]
            if isinstance(cls, Global) and isinstance(key, str | int) and isinstance(numel, int):
                dtype = BY_STORAGE.get(cls.name)
                if dtype is None and cls.name != "UntypedStorage":
                    self.contradiction = f"has a storage of the unknown class {printable(str(cls), 80)}"
                size = max(numel, 0) * (dtype.itemsize if dtype else 1)
                if self.storages.setdefault(str(key), size) != size:
                    self.contradiction = f"gives the storage {printable(str(key), 40)} two sizes"
        return Object("persistent", None, ())

    def _maker(self, first: Phrase) -> Maker | None:
        pid = first.pid
        self._id(pid)
        storages, key = self.storages, pid[2]
        size = storages.get(key)
        if size is None:
            return None
        callee, offset, shape, stride = first.callee, first.offset, first.shape, first.stride
        requires_grad, calls, keys = first.requires_grad, self.made, self._keys_of

        def make(key: str) -> Object | None:
            if storages.setdefault(key, size) != size:
                return None
            args = (Object("persistent", None, ()), offset, shape, stride, requires_grad, Dict([], True))
            made = Object("reduce", callee, args)
            calls.append(made)
            keys[id(made)] = key
            return made

        return make

    def _arguments(self, made: Object, like: Phrase) -> tuple[str, tuple[Any, ...]]:
        return self._keys_of[id(made)], made.args


@dataclass(slots=True)
class Reading:
    """How far one pickle could be followed.

    Attributes:
        reader: what it names and makes, and where it ends.
        value: what it leaves.
        failure: why it ends before its end, or None.
        certain: nobody else gets further. Otherwise it was given up.
    """

    reader: Recorder
    value: Any = None
    failure: str | None = None
    certain: bool = True

    @property
    def calls(self) -> bool:
        """Whether it is a pickle that does something, or may be."""
        return bool(self.reader.made) or (bool(self.reader.named) and not self.failure) or not self.certain


@record(frozen=True, slots=True)
class Record:
    """A part of a container that may be anything."""

    source: Source
    place: str


@record(frozen=True, slots=True)
class Loose:
    """Bytes from START on that no container speaks of, and that some program may take for a pickle."""

    source: Source
    start: int
    place: str


@record(frozen=True, slots=True)
class Row:
    """A pickle, and those that follow it."""

    source: Source
    place: str


@record(frozen=True, slots=True)
class Behind:
    """What follows the end of WHAT, from AT on."""

    source: Source
    at: int
    place: str
    what: str


@record(frozen=True, slots=True)
class Problem:
    """Why not all of a container can be accounted for."""

    place: str
    what: str | CheckpointError


@record(frozen=True, slots=True)
class Programs:
    """Code that is not pickled: (what it is, where)."""

    found: list[tuple[str, str]]


#: What a container is made of. Its walk returns what it is.
Parts = Generator[Record | Loose | Row | Behind | Problem | Programs, None, str]
#: Follows a pickle that a loader of the container reads, and notes what it does, under the name of a place.
Follow = Callable[[Source, str], Reading]


class Budget:
    """Bytes that may still be read as pickles or inflated, for one file.

    Attributes:
        left: how many.
    """

    def __init__(self, left: int) -> None:
        self.left = left

    def spend(self, length: int) -> None:
        """Take LENGTH bytes off, or raise `TooMuch`."""
        if length > self.left:
            raise TooMuch("needs more reading than a file of its size should; not looked at further")
        self.left -= length


class TooMuch(Malformed):
    """The budget of the file is spent."""
