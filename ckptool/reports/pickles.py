"""Every pickle in a file, wherever it is: in archives within archives, behind another one, under any name.

Each is followed by our own machine, so nothing that it names is imported and nothing that it calls is called. What a
pickle would have done before it fails counts as well: a stock unpickler would have done it, too.

For every container there is a walk that accounts for all of its bytes: as a pickle that was followed, as numbers that
no loader unpickles, as something that no unpickler gets to a call in. What cannot be accounted for is a problem, and a
file with a problem is never called safe. What can be read in several ways is looked at in each: a file that begins like
a safetensors file, a picture or nothing at all may still be taken for a pickle by `torch.load`, and one that ends like
a zip archive for one by Python.
"""

from __future__ import annotations

import contextlib
import io
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..dtypes import BY_STORAGE
from ..errors import CheckpointError, Malformed, printable
from ..files import CHUNK, Buffer, File, FileRange, Source, crc32
from ..formats import safetensors, torch_legacy, torch_tar
from ..formats._foreign import OLD_PICKLE, describe
from ..formats._pickle_follow import Follower
from ..formats._pickle_read import NeedsMore
from ..formats._zip import DEFLATED, LOCAL, STORED, Archive, Member, looks_like_zip, open_archive
from ..tree import Global, List, Object, walk
from .programs import program_in, programs_of_archive

_HEAD = 4096
_FIRST_READ = 4096
_LARGEST_PICKLE = 1 << 30
_MOST_IN_A_ROW = 1000
_DEEPEST = 6
_MOST_HEADERS = 100_000
#: A compressed record that grows more than this is a bomb, and is not looked into.
_GROWTH, _SMALL = 100, 1 << 26
#: Bytes that may be read as pickles or inflated, in all: so many, and so many times the size of the file. Every byte is
#: read some two times; pickles of optimizers deflate to a thirtieth.
_FREE, _TIMES = 1 << 22, 32
#: The function that a plain pickle of tensors calls on the bytes of each.
LOADS = "torch.storage._load_from_bytes"


@dataclass(frozen=True, slots=True)
class Pickle:
    """One pickle.

    Attributes:
        place: where it is in the file: `archive/data.pkl`, `model.zip/archive/data.pkl`, with ` #2` for the second of
            several in a row; "" for a file that is one pickle.
        named: every class and function that it names.
        made: every object that it makes or call that it makes, in order.
        failure: why it could not be read to its end, or None.
        opened: its calls of torch's own function that loads a file in the pickle are all looked into.
    """

    place: str
    named: list[Global]
    made: list[Object]
    failure: str | None
    opened: bool = False


@dataclass(slots=True)
class Contents:
    """What was found in a file.

    Attributes:
        kind: what the file is, in a word or a phrase.
        pickles: all pickles, in the order of the file.
        problems: why it cannot be said that these are all.
        notes: what else is worth knowing.
        programs: code that is not pickled: (what it is, where).
        checkpoint: it is of a kind that could hold a pickle, or a checkpoint of another kind.
    """

    kind: str = ""
    pickles: list[Pickle] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    programs: list[tuple[str, str]] = field(default_factory=list)
    checkpoint: bool = True


def find_pickles(file: File) -> Contents:
    """Find and read every pickle of a file."""
    found = Contents()
    _Search(found, file.size).file(file)
    return found


class _Part(File):
    """Bytes within a file, seen as a file of their own."""

    def __init__(self, source: Source, name: str) -> None:
        self.fd = -1
        self.path = Path(name)
        self.size = source.length
        self.mode = 0
        self.identity = (0, 0)
        self._source = source

    def read(self, offset: int, length: int) -> bytes:
        if offset < 0 or length < 0 or offset + length > self.size:
            raise Malformed(f"ends at byte {self.size:,}, but byte {offset + length:,} is needed", where=self.path)
        return bytes(self._source.read(offset, length))

    def read_into(self, view: memoryview, offset: int) -> None:
        view[:] = self.read(offset, len(view))


class _Recorder(Follower):
    """Follows a pickle and remembers the storages that its persistent ids name."""

    def __init__(self, data: bytes, *, complete: bool, total: int) -> None:
        super().__init__(data, "", self._id, complete=complete, total=total)
        self.storages: dict[str, int] = {}
        self.contradiction: str | None = None

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


@dataclass(slots=True)
class _Reading:
    """How far one pickle could be followed.

    Attributes:
        reader: what it names and makes, and where it ends.
        value: what it leaves.
        failure: why it ends before its end, or None.
        certain: nobody else gets further. Otherwise it was given up.
    """

    reader: _Recorder
    value: Any = None
    failure: str | None = None
    certain: bool = True

    @property
    def calls(self) -> bool:
        """Whether it is a pickle that does something, or may be."""
        return bool(self.reader.made) or (bool(self.reader.named) and not self.failure) or not self.certain


class _TooMuch(Malformed):
    """The budget of the file is spent."""


class _Inflating:
    """A compressed record as a source, inflated only as far as somebody reads."""

    def __init__(self, archive: Archive, member: Member, search: _Search) -> None:
        self.length = member.size
        self._chunks = archive.inflate(member)
        import tempfile

        self._file = tempfile.SpooledTemporaryFile(CHUNK)  # noqa: SIM115 - it lives as long as this source
        self._have = 0
        self._search = search

    def read(self, offset: int, length: int) -> bytes:
        """LENGTH bytes from OFFSET."""
        while self._have < offset + length or self._have == self.length:
            chunk = next(self._chunks, None)  # behind the last one, the sizes are compared
            if chunk is None:
                break
            self._search.spend(len(chunk))
            self._file.seek(self._have)
            self._file.write(chunk)
            self._have += len(chunk)
        self._file.seek(offset)
        return self._file.read(length)

    def chunks(self) -> Iterator[bytes]:
        """All bytes."""
        for at in range(0, self.length, CHUNK):
            yield self.read(at, min(CHUNK, self.length - at))

    def __del__(self) -> None:
        self._file.close()


@dataclass(slots=True)
class _TarStream(torch_tar.Stream):
    """A member of a tar archive, whose pickles are followed as they are read."""

    search: _Search
    place: str
    depth: int

    def pickle(self) -> Any:
        """What the next pickle holds."""
        reading = self.search.read(FileRange(self.file, self.at, self.end - self.at), 0)
        self.search.add(self.place, reading, self.depth)
        if reading.failure:
            raise Malformed("its pickles and numbers are not those that torch writes")
        self.at += reading.reader.position
        return reading.value


class _Search:
    def __init__(self, found: Contents, size: int) -> None:
        self.found = found
        self._left = _FREE + _TIMES * size

    def spend(self, length: int) -> None:
        """Take LENGTH bytes off the budget, or raise `_TooMuch`."""
        if length > self._left:
            raise _TooMuch("needs more reading than a file of its size should; not looked at further")
        self._left -= length

    def file(self, file: File) -> None:
        """Look at a whole file, in every way in which a program may read it."""
        try:
            self._whole(file)
        except CheckpointError as error:
            self._problem("", error)

    def _whole(self, file: File) -> None:
        found, whole = self.found, FileRange(file, 0, file.size)
        head = file.read(0, min(_HEAD, file.size))
        found.kind = self._look(whole, head, "", 0) or ""
        if not found.kind:
            if self._attempt(whole, 0, ""):
                found.kind = "pickle"
            elif packed := _packed(head):
                found.kind = packed
                found.problems.append(f"it is {packed}, which is not looked into; unpack it and scan what comes out")
            else:
                what, _ = describe(head, file.size, file.path)
                found.kind, found.checkpoint = what, False
                found.problems.append(f"not a checkpoint that can be scanned: {what}")
        elif found.kind not in ("pickle", "torch-legacy") and self._attempt(whole, 0, ""):
            found.notes.append(f"it begins like a {found.kind}, and is a pickle as well")
        if not looks_like_zip(head) and _ends_like_zip(file):
            found.checkpoint = True
            found.problems.append("it ends like a zip archive; programs disagree on what it is")
            self._carve(whole, "", 0, file.size)

    def _look(self, source: Source, head: bytes, place: str, depth: int) -> str | None:
        """Look at what begins with HEAD. Returns what it is, or None if it is nothing that holds pickles."""
        if depth > _DEEPEST:
            self._problem(place, f"archives are nested more than {_DEEPEST} deep")
            return "archive"
        if looks_like_zip(head):
            return self._zip(source, place, depth)
        if _is_tar(head):
            return self._tar(source, place, depth)
        if torch_legacy.sniff(head):
            return self._legacy(source, place, depth)
        if head.startswith(b"\x93NUMPY"):
            return self._npy(source, head, place, depth)
        if re.match(rb"\x80[\x00-\x05]", head) or OLD_PICKLE.match(head):
            self._in_a_row(source, 0, place, depth)
            return "pickle"
        if safetensors.sniff(head) or place.endswith(".safetensors"):
            with self._reporting(place):
                safetensors.open_safetensors(_Part(source, place))
            return "safetensors"
        return None

    def _rest(self, source: Source, at: int, place: str, what: str, depth: int) -> None:
        """What follows the end of WHAT: something that a program reads next, or bytes that nobody unpickles."""
        if at >= source.length:
            return
        rest = FileRange(_Part(source, place), at, source.length - at)
        head = rest.read(0, min(_HEAD, rest.length))
        behind = f"{place} behind the {what}".strip()
        if self._look(rest, head, behind, depth + 1) is None and not self._attempt(rest, 0, behind):
            self._note(place, f"{rest.length:,} bytes follow the {what}")

    # -- pickles

    def read(self, source: Source, start: int) -> _Reading:
        """Follow the pickle at START."""
        have, left = _FIRST_READ, source.length - start
        reading = _Reading(_Recorder(b"", complete=True, total=left))
        while True:
            length = min(have, left)
            try:
                self.spend(length)
                data = bytes(source.read(start, length))
            except _TooMuch as error:
                reading.failure, reading.certain = error.what, False
                return reading
            reading.reader = _Recorder(data, complete=length == left, total=left)
            try:
                reading.value = reading.reader.load()
            except NeedsMore:
                if have < _LARGEST_PICKLE:
                    have *= 8
                    continue
                reading.failure, reading.certain = f"is larger than {_LARGEST_PICKLE:,} bytes", False
            except CheckpointError as error:
                reading.failure = error.what.removeprefix("its pickle ")
            except (MemoryError, OverflowError, RecursionError) as error:
                reading.failure = f"is too deep or too large to be read ({type(error).__name__})"
                reading.certain = False
            if reading.reader.straddles:
                reading.failure, reading.certain = "has an opcode that straddles a frame, which is read two ways", False
            return reading

    def add(self, place: str, reading: _Reading, depth: int) -> None:
        reader, at = reading.reader, len(self.found.pickles)
        opened = self._open_streams(place, reading, depth)
        self.found.pickles.insert(at, Pickle(place, reader.named, reader.made, reading.failure, opened))
        for what in (reading.failure, reader.contradiction):
            if what:
                self._problem(place, f"the pickle {what}")

    def _open_streams(self, place: str, reading: _Reading, depth: int) -> bool:
        """Look into the files of torch.save that a plain pickle of tensors holds as byte strings.

        Returns whether that accounts for the function that loads them: it is called on bytes, and nothing else has it.
        """
        function = next((found for found in reading.reader.named if str(found) == LOADS), None)
        if function is None or reading.failure:
            return False
        streams: dict[int, bytes] = {}
        uses = 0
        for _, node in walk((reading.value, *reading.reader.made)):
            uses += node is function
            if isinstance(node, Object) and node.callee is function:
                if len(node.args) != 1 or not isinstance(node.args[0], bytes):
                    return False
                streams[id(node.args[0])] = node.args[0]
                uses -= 1
        if uses:
            return False
        for number, stream in enumerate(streams.values(), start=1):
            here = f"{place} tensor {number}".strip()
            with self._reporting(here):
                if self._look(Buffer(stream), stream[:_HEAD], here, depth + 1) is None:
                    return False
        return True

    def _attempt(self, source: Source, start: int, place: str, depth: int = 0) -> bool:
        """Look at what may be a pickle, and say whether it is one that does something: calls, or names to its end."""
        at = start
        if bytes(source.read(at, min(1, source.length - at))) == b"P":  # no unpickler begins with a persistent id
            return False
        for _ in range(_MOST_IN_A_ROW):
            reading = self.read(source, at)
            if reading.calls:
                self._in_a_row(source, at, place, depth)
                return True
            at += reading.reader.position
            if reading.failure or at >= source.length:
                return False
        self._problem(place, f"more than {_MOST_IN_A_ROW:,} pickles follow one another")
        return True

    def _in_a_row(self, source: Source, start: int, place: str, depth: int) -> None:
        """The pickle at START, and those that follow it."""
        reading = self.read(source, start)
        self.add(place, reading, depth)
        at = start + reading.reader.position
        number = 1
        while not reading.failure and at < source.length:
            number += 1
            head = bytes(source.read(at, min(64, source.length - at)))
            reading = self.read(source, at)
            plain = not reading.calls and not re.match(rb"\x80[\x00-\x05]", head)
            if torch_legacy.sniff(head) or (reading.failure and plain):
                self._rest(source, at, place, "end of the pickle", depth)
                break
            if number > _MOST_IN_A_ROW:
                self._problem(place, f"more than {_MOST_IN_A_ROW:,} pickles follow one another; not looked at further")
                break
            self.add(f"{place} #{number}".strip(), reading, depth)
            at += reading.reader.position

    def _legacy(self, source: Source, place: str, depth: int) -> str:
        """Five pickles, the storages of the fourth in the order of the fifth, then perhaps something else."""
        at = 0
        tree = reading = _Reading(_Recorder(b"", complete=True, total=0))
        for number in range(1, 6):
            reading = self.read(source, at)
            self.add(f"{place} #{number}".strip(), reading, depth)
            if reading.failure:
                return "torch-legacy"
            at += reading.reader.position
            if number == 4:
                tree = reading
        keys = [str(key) for key in reading.value.items] if isinstance(reading.value, List) else []
        storages = tree.reader.storages
        if len(set(keys)) != len(keys) or set(keys) != set(storages):
            self._problem(place, "its list of storages is not that of its tensors")
        end = at + sum(8 + storages.get(key, 0) for key in keys)
        if end > source.length:
            self._problem(place, f"it is cut short: {end - source.length:,} bytes of its storages are missing")
        self._rest(source, end, place, "last storage", depth)
        return "torch-legacy"

    def _npy(self, source: Source, head: bytes, place: str, depth: int) -> str:
        """A header, then the values: those of an array of objects are a pickle. Another array may follow."""
        size = 2 if head[6:7] == b"\1" else 4
        start = 8 + size + int.from_bytes(head[8 : 8 + size], "little")
        if start > source.length:
            self._problem(place, "its numpy array is cut short")
        elif not self._attempt(source, start, place):
            try:
                end = start + _npy_bytes(bytes(source.read(0, start)))
            except Exception:  # whatever numpy thinks of a header
                self._problem(place, "its numpy header cannot be read")
            else:
                self._rest(source, end, place, "array", depth)
        return "numpy array"

    # -- archives

    def _zip(self, source: Source, place: str, depth: int) -> str:
        try:
            file = source.file if isinstance(source, FileRange) and not place else _Part(source, place)
            archive = open_archive(file, any_layout=True)
        except CheckpointError as error:
            parts = list(_archives_in_a_row(source))
            if sum(part.file.size for part in parts) != source.length:
                self._problem(place, error)
                self._carve(source, place, 0, source.length)
                return "zip archive"
            for number, part in enumerate(parts, start=1):
                self._records(part, f"{place} #{number}".strip(), depth)
            return "zip archives in a row"
        return self._records(archive, place, depth)

    def _records(self, archive: Archive, place: str, depth: int) -> str:
        source = archive.file.range(0, archive.file.size)
        kind = _zip_kind(archive)
        done = self._data_pickles(archive, place, kind, depth)
        for name, member in archive.members.items():
            if name in done or not member.size:
                continue
            here = f"{place}/{name}".lstrip("/")
            with self._reporting(here):
                self._member(self._inside(archive, member), here, name, depth)
        self.found.programs += programs_of_archive(archive, place, kind)
        end = 0  # what stands between the records, and is in no directory
        for member in sorted(archive.members.values(), key=lambda member: member.header):
            if member.header - end >= LOCAL.size:
                self._carve(source, place, end, member.header)
            end = member.start + member.compressed
        if archive.directory - end >= LOCAL.size:
            self._carve(source, place, end, archive.directory)
        return kind

    def _inside(self, archive: Archive, member: Member) -> Source:
        """The payload of a record, inflated as far as it is read."""
        if member.method != DEFLATED:
            return archive.range(member.name)
        if member.size > max(_SMALL, _GROWTH * member.compressed):
            grows = f"it grows from {member.compressed:,} to {member.size:,} bytes; not looked into"
            raise Malformed(grows)
        return _Inflating(archive, member, self)

    def _data_pickles(self, archive: Archive, place: str, kind: str, depth: int) -> set[str]:
        """Read the pickles that torch reads, and return their names and those of the storages that they use.

        Where a loader would take another record than `data/NUMBER` for a pickle, none is passed over.
        """
        done = set()
        for name, member in archive.members.items():
            stem, _, suffix = name.rpartition(".")
            if suffix.lower() != "pkl" or not member.size:
                continue
            done.add(name)
            here = f"{place}/{name}".lstrip("/")
            with self._reporting(here):
                source = self._inside(archive, member)
                reading = self.read(source, 0)
                self.add(here, reading, depth)
                if member.crc and crc32(source) != member.crc:
                    self._problem(here, "its checksum does not match; torch does not look at it")
                if not reading.failure:
                    self._rest(source, reading.reader.position, here, "end of the pickle", depth)
                if kind in ("torch-zip", "TorchScript archive") and stem.rpartition("/")[2] in ("data", "constants"):
                    done |= {f"{stem}/{key}" for key in reading.reader.storages if re.fullmatch("[0-9]+", key)}
        return done

    def _member(self, source: Source, here: str, name: str, depth: int) -> None:
        head = bytes(source.read(0, min(_HEAD, source.length)))
        if program := program_in(head):
            self.found.programs.append((program, here))
        known = self._look(source, head, here, depth + 1) or self._attempt(source, 0, here, depth + 1)
        if not known and (packed := _packed(head)):
            self._problem(here, f"it is {packed}, which is not looked into")

    def _carve(self, source: Source, place: str, begin: int, end: int) -> None:
        """Look at what follows every local header, directory or not: some program may believe in it."""
        try:
            for at in _found(source, b"PK\3\4", _MOST_HEADERS, begin, end):
                if at + LOCAL.size > source.length:
                    return
                fields = LOCAL.unpack(bytes(source.read(at, LOCAL.size)))
                method, named, extra = fields[2], fields[-2], fields[-1]
                start = at + LOCAL.size + named + extra
                if start >= source.length:
                    continue
                name = bytes(source.read(at + LOCAL.size, named)).decode("utf-8", "backslashreplace")
                here = f"{place}/{name}".lstrip("/")
                self.spend(LOCAL.size)
                if method == STORED:
                    self._attempt(source, start, here)
                elif method == DEFLATED:
                    self._attempt(Buffer(self._inflated(source, start)), 0, here)
        except _TooMuch as error:
            self._problem(place, error)

    def _inflated(self, source: Source, start: int) -> bytes:
        """What a deflated stream at START becomes, as far as it can be inflated and the budget goes."""
        stream, most = zlib.decompressobj(-zlib.MAX_WBITS), min(_SMALL, self._left // 4)
        out = bytearray()
        with contextlib.suppress(zlib.error):
            for at in range(start, source.length, _FIRST_READ):
                out += stream.decompress(bytes(source.read(at, min(_FIRST_READ, source.length - at))), most - len(out))
                if stream.eof or len(out) >= most:
                    break
        self.spend(len(out) + _FIRST_READ)
        return bytes(out)

    def _tar(self, source: Source, place: str, depth: int) -> str:
        import tarfile

        members: dict[str, FileRange] = {}
        names = set()
        end = 0
        try:
            with tarfile.open(fileobj=io.BufferedReader(_Stream(source)), mode="r:") as tar:
                for info in tar:
                    here = f"{place}/{info.name}".lstrip("/")
                    if info.name in names:
                        self._problem(here, "it is there twice; readers disagree on which counts")
                    names.add(info.name)
                    if info.isdir():
                        continue
                    if info.sparse is not None or not info.isreg() or info.offset_data + info.size > source.length:
                        self._problem(here, "it is no whole and plain file, and not looked into")
                        continue
                    members[info.name] = FileRange(_Part(source, here), info.offset_data, info.size)
                    end = info.offset_data + info.size
        except (tarfile.TarError, ValueError, OSError, OverflowError) as error:
            self._problem(place, f"its tar archive is damaged ({printable(str(error), 80)})")
        torch = {"pickle", "storages"} <= members.keys()
        for name, member in members.items():
            here = f"{place}/{name}".lstrip("/")
            with self._reporting(here):
                if not torch or name not in ("sys_info", "pickle", "tensors", "storages"):
                    self._member(member, here, name, depth)
                elif name in ("sys_info", "pickle"):
                    self._in_a_row(member, 0, here, depth)
        if torch:
            self._tar_storages(members, place, depth)
        for at in range(end, source.length, CHUNK):
            if bytes(source.read(at, min(CHUNK, source.length - at))).strip(b"\0"):
                self._problem(place, "something follows the members of its tar archive; not looked into")
                break
        return "tar archive of torch before 0.1.10" if torch else "tar archive"

    def _tar_storages(self, members: dict[str, FileRange], place: str, depth: int) -> None:
        """Pickles and numbers in turn, as torch reads them."""
        streams = {
            name: _TarStream(
                member.file, member.offset, member.offset + member.length, self, f"{place}/{name}".lstrip("/"), depth
            )
            for name, member in members.items()
            if name in ("storages", "tensors")
        }
        with self._reporting(place):
            storages, bases = torch_tar.read_storages(streams["storages"])
            if "tensors" in streams:
                torch_tar.read_tensors(streams["tensors"], storages, bases)
        for name, stream in streams.items():
            self._rest(members[name], stream.at - members[name].offset, stream.place, "last number", depth)

    # -- what to say

    def _problem(self, place: str, what: str | CheckpointError) -> None:
        text = what if isinstance(what, str) else "; ".join((what.what.rstrip(":"), *what.evidence[:1]))
        self.found.problems.append(f"{printable(place, 80)}: {text}" if place else text)

    def _note(self, place: str, what: str) -> None:
        self.found.notes.append(f"{printable(place, 80)}: {what}" if place else what)

    @contextlib.contextmanager
    def _reporting(self, place: str) -> Iterator[None]:
        try:
            yield
        except CheckpointError as error:
            self._problem(place, error)


class _Stream(io.RawIOBase):
    """A source as a stream, for tarfile."""

    def __init__(self, source: Source) -> None:
        self._source, self._at = source, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = max(0, offset + (0, self._at, self._source.length)[whence])
        return self._at

    def readinto(self, buffer: Any) -> int:
        length = max(0, min(len(buffer), self._source.length - self._at))
        buffer[:length] = self._source.read(self._at, length)
        self._at += length
        return length


def _is_tar(head: bytes) -> bool:
    """Whether HEAD begins with a tar header whose checksum holds; torch.load believes it before anything else."""
    checksum = head[148:156].split(b"\0")[0]
    if len(head) < 512 or not (
        checksum[:1] in (b"\x80", b"\xff") or re.search(rb"[0-7]", checksum) or _sums_to_zero(head)
    ):
        return False  # which spares most files the import
    import tarfile

    try:
        tarfile.TarInfo.frombuf(head[:512], "utf-8", "surrogateescape")
    except (tarfile.HeaderError, ValueError):
        return False
    return True


def _sums_to_zero(head: bytes) -> bool:
    """Whether a header without a checksum fits it: some readers add the bytes as signed numbers."""
    rest = head[:148] + head[156:512]
    return 256 + sum(rest) - 256 * sum(byte > 127 for byte in rest) == 0


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


def _packed(head: bytes) -> str | None:
    """What kind of compressed data begins with HEAD, or None."""
    for magic, what in _PACKED:
        if head.startswith(magic):
            return what
    if len(head) > 2 and head[0] & 15 == 8 and head[0] < 0x80 and int.from_bytes(head[:2], "big") % 31 == 0:
        with contextlib.suppress(zlib.error):
            zlib.decompressobj().decompress(head, _HEAD)
            return "a zlib stream"
    return None


def _npy_bytes(header: bytes) -> int:
    """Bytes of the values that follow the header of a numpy array."""
    import math
    import warnings

    from numpy.lib import format as npy

    file = io.BytesIO(header)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        reader = npy.read_array_header_1_0 if npy.read_magic(file) == (1, 0) else npy.read_array_header_2_0
        shape, _, dtype = reader(file)
    if min(shape, default=0) < 0:
        raise ValueError
    return math.prod(shape) * dtype.itemsize


def _ends_like_zip(file: File) -> bool:
    """Whether an end record stands near the end of a file that does not begin as an archive: torch takes the last one
    that leads to a directory, whatever follows it."""
    size = min(file.size, 22 + 0xFFFF + 4096)
    base = file.size - size
    tail = file.read(base, size)
    at = tail.rfind(b"PK\5\6")
    while at >= 0:
        if len(tail) - at >= 22:
            length, offset = (int.from_bytes(tail[at + byte : at + byte + 4], "little") for byte in (12, 16))
            places = {offset, base + at - length, base + at - length - 76}
            if any(0 <= place <= file.size - 4 and file.read(place, 4) == b"PK\1\2" for place in places):
                return True
        at = tail.rfind(b"PK\5\6", 0, at)
    return False


def _archives_in_a_row(source: Source) -> Iterator[Archive]:
    """The archives that follow one another in a file, as torch.distributed.checkpoint writes its tensors."""
    whole = _Part(source, "")
    begin = 0
    for at in _found(source, b"PK\5\6", _MOST_HEADERS):
        end = at + 22  # torch writes no comment
        if at < begin or end > source.length:
            continue
        with contextlib.suppress(CheckpointError):
            yield open_archive(_Part(FileRange(whole, begin, end - begin), ""), any_layout=True)
            begin = end


def _found(source: Source, signature: bytes, most: int, begin: int = 0, end: int | None = None) -> Iterator[int]:
    """Where SIGNATURE stands between BEGIN and END, from the front."""
    step, count = 1 << 22, 0
    end = source.length if end is None else end
    for base in range(begin, end, step):
        data = bytes(source.read(base, min(step + len(signature) - 1, end - base)))
        at = data.find(signature)
        while at >= 0 and count < most:
            yield base + at
            count += 1
            at = data.find(signature, at + len(signature))


def _zip_kind(archive: Archive) -> str:
    """What kind of zip archive it is, to the loaders that unpickle most first."""
    names = {name.rpartition("/")[2] for name in archive.members}
    if "extern_modules" in names:
        return "torch.package archive"
    if "archive_format" in names or "serialized_exported_program.json" in names:
        return "exported program"
    if "constants.pkl" in names:
        return "TorchScript archive"
    if "data.pkl" in names:
        return "torch-zip"
    return "numpy archive" if any(name.endswith(".npy") for name in names) else "zip archive"
