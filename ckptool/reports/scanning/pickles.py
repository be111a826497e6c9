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
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial

from ...disk.files import Buffer, File, FileRange, Source
from ...errors import CheckpointError, printable
from ...formats.beginnings import is_keras, is_legacy, is_safetensors, is_tar
from ...formats.foreign import OLD_PICKLE, describe, packed
from ...formats.pickle.reader import NeedsMore
from ...formats.zip.structure import looks_like_zip
from ...tree import Global, List, Object, walk
from .following import (
    HEAD,
    Behind,
    Budget,
    Loose,
    Part,
    Parts,
    Problem,
    Programs,
    Reading,
    Record,
    Recorder,
    Row,
    TooMuch,
)
from .pickles_in_zip import carved, ends_like_zip, parts_of_zip
from .programs import program_in, programs_of_keras

_FIRST_READ = 4096
_LARGEST_PICKLE = 1 << 30
_MOST_IN_A_ROW = 1000
_DEEPEST = 6
#: Bytes that may be read as pickles or inflated, in all: so many, and so many times the size of the file. Every byte is
#: read some two times; pickles of optimizers deflate to a thirtieth.
_FREE, _TIMES = 1 << 22, 32
#: Bytes that a pickle can begin with: opcodes that take nothing from a stack. No unpickler begins with a persistent id
#: that is text. (A law asks our own machine which bytes these are.)
BEGINNINGS = frozenset(
    bytes([byte]) for byte in b"()BCFGIJKLMNSTUVX]cghijpqr}\x80\x82\x83\x84\x88\x89\x8a\x8b\x8c\x8d\x8e\x8f\x95\x96\x97"
)
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


def find_pickles(file: File, *, opened: bool = False) -> Contents:
    """Find and read every pickle of a file. OPENED: its structure has been checked."""
    found = Contents()
    Search(found, file.size, opened=opened).file(file)
    return found


class Search:
    """The search through one file, with a budget of bytes.

    Args:
        found: what was found, which it fills.
        size: bytes of the file.
        opened: the structure of the file has been checked.

    Attributes:
        budget: bytes that may still be read as pickles or inflated.
    """

    def __init__(self, found: Contents, size: int, *, opened: bool = False) -> None:
        self.found = found
        self.opened = opened
        self.budget = Budget(_FREE + _TIMES * size)

    def file(self, file: File) -> None:
        """Look at a whole file, in every way in which a program may read it."""
        try:
            self._whole(file)
        except CheckpointError as error:
            self.problem("", error)

    def _whole(self, file: File) -> None:
        found, whole = self.found, FileRange(file, 0, file.size)
        head = file.read(0, min(HEAD, file.size))
        found.kind = self.look(whole, head, "", 0) or ""
        if not found.kind:
            if self.attempt(whole, 0, ""):
                found.kind = "pickle"
            elif kind := self._without_pickles(file, head):
                found.kind = kind
            elif what := packed(head):
                found.kind = what
                found.problems.append(f"it is {what}, which is not looked into; unpack it and scan what comes out")
            else:
                what = describe(head, file.size, file.path)[0]
                found.kind, found.checkpoint = what, False
                found.problems.append(f"not a checkpoint that can be scanned: {what}")
        elif found.kind not in ("pickle", "torch-legacy") and self.attempt(whole, 0, ""):
            found.notes.append(f"it begins like a {found.kind}, and is a pickle as well")
        if not looks_like_zip(head) and ends_like_zip(file):
            found.checkpoint = True
            found.problems.append("it ends like a zip archive; programs disagree on what it is")
            self._all_of(carved(whole, "", 0, file.size, self.budget), 0)

    def _without_pickles(self, file: File, head: bytes) -> str:
        """The name of a format that holds no pickle, if the file is of one; its structure is checked."""
        from ...formats import WITHOUT_PICKLES

        kind = next((f for f in WITHOUT_PICKLES if f.sniff(head, file)), None)
        if kind is None:
            return ""
        with self.reporting(""):
            self.found.programs += programs_of_keras(kind.open(file).metadata)
        return kind.name

    def look(self, source: Source, head: bytes, place: str, depth: int) -> str | None:
        """Look at what begins with HEAD. Returns what it is, or None if it is nothing that holds pickles."""
        if depth > _DEEPEST:
            self.problem(place, f"archives are nested more than {_DEEPEST} deep")
            return "archive"
        if looks_like_zip(head):
            if not place:
                self._code_of_keras(source, head)
            return self._all_of(parts_of_zip(source, place, self.budget, partial(self._follow, depth)), depth)
        if is_tar(head):  # as with safetensors below, what only such files need is imported when there is one
            from .pickles_in_tar import parts_of_tar

            return self._all_of(parts_of_tar(source, place, partial(self._follow, depth)), depth)
        if is_legacy(head):
            return self._legacy(source, place, depth)
        if head.startswith(b"\x93NUMPY"):
            return self._npy(source, head, place, depth)
        if re.match(rb"\x80[\x00-\x05]", head) or OLD_PICKLE.match(head):
            self.in_a_row(source, 0, place, depth)
            return "pickle"
        if is_safetensors(head) or place.endswith(".safetensors"):
            from ...formats.flat.safetensors import check_safetensors

            with self.reporting(place):
                if place or not self.opened:
                    check_safetensors(Part(source, place))
            return "safetensors"
        return None

    def _code_of_keras(self, source: Source, head: bytes) -> None:
        """Note the code in the configuration of a model of Keras, which is an archive."""
        if is_keras(head) and isinstance(source, FileRange):
            from ...formats.frameworks.keras import configuration

            with self.reporting(""):
                self.found.programs += programs_of_keras(configuration(source.file))

    def _all_of(self, parts: Parts, depth: int) -> str:
        """Look at all that a container is made of. Returns what it is."""
        while True:
            try:
                part = next(parts)
            except StopIteration as end:
                return str(end.value)
            if isinstance(part, Problem):
                self.problem(part.place, part.what)
            elif isinstance(part, Programs):
                self.found.programs += part.found
            else:
                with self.reporting(part.place):
                    self._one_of(part, depth)

    def _one_of(self, part: Record | Loose | Row | Behind, depth: int) -> None:
        if isinstance(part, Loose):
            self.attempt(part.source, part.start, part.place)
        elif isinstance(part, Row):
            self.in_a_row(part.source, 0, part.place, depth)
        elif isinstance(part, Behind):
            self.rest(part.source, part.at, part.place, part.what, depth)
        else:
            self._record(part.source, part.place, depth)

    def _record(self, source: Source, here: str, depth: int) -> None:
        """Look at one record of an archive, whatever it is."""
        head = bytes(source.read(0, min(HEAD, source.length)))
        if program := program_in(head):
            self.found.programs.append((program, here))
        known = self.look(source, head, here, depth + 1) or self.attempt(source, 0, here, depth + 1)
        if not known and (what := packed(head)):
            self.problem(here, f"it is {what}, which is not looked into")

    def _follow(self, depth: int, source: Source, place: str) -> Reading:
        """Follow a pickle that a loader of a container reads, and note what it does."""
        reading = self.read(source, 0)
        self.add(place, reading, depth)
        return reading

    def rest(self, source: Source, at: int, place: str, what: str, depth: int) -> None:
        """What follows the end of WHAT: something that a program reads next, or bytes that nobody unpickles."""
        if at >= source.length:
            return
        rest = FileRange(Part(source, place), at, source.length - at)
        head = rest.read(0, min(HEAD, rest.length))
        behind = f"{place} behind the {what}".strip()
        if self.look(rest, head, behind, depth + 1) is None and not self.attempt(rest, 0, behind):
            self.note(place, f"{rest.length:,} bytes follow the {what}")

    # -- pickles

    def read(self, source: Source, start: int) -> Reading:
        """Follow the pickle at START."""
        left, data = source.length - start, b""
        reading = Reading(Recorder(b"", complete=True, total=left))
        while True:
            have = min(max(_FIRST_READ, 8 * len(data)), left)
            try:
                self.budget.spend(have - len(data))
                data += bytes(source.read(start + len(data), have - len(data)))
            except TooMuch as error:
                reading.failure, reading.certain = error.what, False
                return reading
            try:
                reading.value = reading.reader.go_on(data, complete=have == left)
            except NeedsMore:
                if have < _LARGEST_PICKLE:
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

    def add(self, place: str, reading: Reading, depth: int) -> None:
        """Note a pickle, and look into the files of torch that it holds."""
        reader, at = reading.reader, len(self.found.pickles)
        opened = self._open_streams(place, reading, depth)
        self.found.pickles.insert(at, Pickle(place, reader.named, reader.made, reading.failure, opened))
        for what in (reading.failure, reader.contradiction):
            if what:
                self.problem(place, f"the pickle {what}")

    def _open_streams(self, place: str, reading: Reading, depth: int) -> bool:
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
            with self.reporting(here):
                if self.look(Buffer(stream), stream[:HEAD], here, depth + 1) is None:
                    return False
        return True

    def attempt(self, source: Source, start: int, place: str, depth: int = 0) -> bool:
        """Look at what may be a pickle, and say whether it is one that does something: calls, or names to its end."""
        at = start
        if bytes(source.read(at, min(1, source.length - at))) not in BEGINNINGS:  # most of what is tried
            return False
        for _ in range(_MOST_IN_A_ROW):
            reading = self.read(source, at)
            if reading.calls:
                self.in_a_row(source, at, place, depth)
                return True
            at += reading.reader.position
            if reading.failure or at >= source.length:
                return False
        self.problem(place, f"more than {_MOST_IN_A_ROW:,} pickles follow one another")
        return True

    def in_a_row(self, source: Source, start: int, place: str, depth: int) -> None:
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
            if is_legacy(head) or (reading.failure and plain):
                self.rest(source, at, place, "end of the pickle", depth)
                break
            if number > _MOST_IN_A_ROW:
                self.problem(place, f"more than {_MOST_IN_A_ROW:,} pickles follow one another; not looked at further")
                break
            self.add(f"{place} #{number}".strip(), reading, depth)
            at += reading.reader.position

    def _legacy(self, source: Source, place: str, depth: int) -> str:
        """Five pickles, the storages of the fourth in the order of the fifth, then perhaps something else."""
        at = 0
        tree = reading = Reading(Recorder(b"", complete=True, total=0))
        for number in range(1, 6):
            reading = self.read(source, at)
            self.add(f"{place} #{number}".strip(), reading, depth)
            if reading.failure:
                return "torch-legacy"
            at += reading.reader.position
            if number == 4:
                tree = reading
        listed = reading.value.items if isinstance(reading.value, List) else []
        keys = [str(key) for key in listed if isinstance(key, str | int)]
        storages = tree.reader.storages
        if len(set(keys)) != len(listed) or set(keys) != set(storages):
            self.problem(place, "its list of storages is not that of its tensors")
        end = at + sum(8 + storages.get(key, 0) for key in keys)
        if end > source.length:
            self.problem(place, f"it is cut short: {end - source.length:,} bytes of its storages are missing")
        self.rest(source, end, place, "last storage", depth)
        return "torch-legacy"

    def _npy(self, source: Source, head: bytes, place: str, depth: int) -> str:
        """A header, then the values: those of an array of objects are a pickle. Another array may follow."""
        size = 2 if head[6:7] == b"\1" else 4
        start = 8 + size + int.from_bytes(head[8 : 8 + size], "little")
        if start > source.length:
            self.problem(place, "its numpy array is cut short")
        elif not self.attempt(source, start, place):
            from ...formats.frameworks.numpy_files import bytes_behind

            values = bytes_behind(bytes(source.read(0, start)))
            if values is None:
                self.problem(place, "its numpy header cannot be read")
            else:
                self.rest(source, start + values, place, "array", depth)
        return "numpy array"

    # -- what to say

    def problem(self, place: str, what: str | CheckpointError) -> None:
        """Say why not all can be accounted for."""
        text = what if isinstance(what, str) else "; ".join((what.what.rstrip(":"), *what.evidence[:1]))
        self.found.problems.append(f"{printable(place, 80)}: {text}" if place else text)

    def note(self, place: str, what: str) -> None:
        """Say what else is worth knowing."""
        self.found.notes.append(f"{printable(place, 80)}: {what}" if place else what)

    @contextlib.contextmanager
    def reporting(self, place: str) -> Iterator[None]:
        """Let what cannot be read at PLACE be a problem, and go on."""
        try:
            yield
        except CheckpointError as error:
            self.problem(place, error)
