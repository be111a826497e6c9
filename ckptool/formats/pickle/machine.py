"""The machine that reads pickles: its data, its stack, its memo, and one loop for the opcodes that are most of a file.

`reader` says what the opcodes mean. See there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from ...errors import Malformed
from ...tree import Dict, Global, Object

_LONGEST_LINE = 1 << 20
#: And of a class or function that is looked for among those that were named before.
_LONGEST_NAME = 256


class NeedsMore(Exception):
    """The pickle goes on beyond the bytes at hand; the caller reads more of the file and starts again or goes on."""


class Later:
    """In place of a value in the memo that is made when it is asked for, as few are: see `Machine._make_later`.

    Attributes:
        place: how many such values stand before it that were put there with it.
        like: what it is made of.
    """

    __slots__ = ("like", "place")

    def __init__(self, place: int, like: Any) -> None:
        self.place = place
        self.like = like


class Machine:
    """What reads one pickle, opcode by opcode: its data, its stack and its memo. `Reader` adds what opcodes mean.

    Args:
        data: bytes, of which the pickle may be the beginning.
        where: the file, for messages.
        persistent: turns a persistent id into a node, in a reader that has no `_storage` of its own.
        complete: DATA is all there is. Otherwise running out of it raises `NeedsMore`.
        start: where the pickle starts in DATA.

    Attributes:
        protocol: the protocol that the pickle declared last. It decides which names are those of Python 2.
        discarded: calls whose result the pickle throws away. They leave no trace in the tree.
        made: every object, in the order in which they are made, whether or not the tree holds them.
        opcodes: what to do for each opcode.
    """

    opcodes: ClassVar[Mapping[int, Callable[[Any], None]]]

    def __init__(
        self,
        data: bytes,
        where: object,
        persistent: Callable[[Any], Any] | None = None,
        *,
        complete: bool = True,
        start: int = 0,
    ) -> None:
        self.data = data
        self.where = where
        self.position = start
        self.protocol = 0
        self.discarded = 0
        self.made: list[Object] = []
        self._start = start
        self._complete = complete
        self._persistent = persistent
        self._stack: list[Any] = []
        self._marks: list[list[Any]] = []
        self._memo: list[Any] = []  # under 0, 1, 2 …, as picklers count
        self._memo_beyond: dict[int, Any] = {}  # under larger numbers
        #: What subclasses know about phrases. It holds as long as the memo, which grows, is not overwritten.
        self._phrases: dict[Any, Any] = {}
        self._named: dict[tuple[str, str], Global] = {}
        self._spelled: dict[bytes, Global] = {}  # the two lines of an opcode that names one
        self._encoded: dict[int, bytes] = {}
        self._texts: list[str] = []
        self._frame_end: int | None = None
        self._opcode_at = start
        self._keys: dict[int, tuple[tuple[Any, ...], int]] = {}  # id of a tuple -> the tuple, how many values it has

    def load(self) -> Any:
        """Return the tree that the pickle describes; `position` is then just after its STOP."""
        data, table = self.data, self.opcodes
        at, ended = self.position, True
        try:
            while True:
                at = self._run_short_opcodes(self.position)
                if at >= len(data):
                    self.position = at
                    self._out_of_data(1)
                self._opcode_at = at
                self.position = at + 1
                opcode = data[at]
                if opcode == 0x2E:  # STOP
                    break
                handler = table.get(opcode)
                if handler is None:
                    return self._fail(f"has no opcode {opcode:#04x}", at)
                handler(self)
            value = self._stack.pop()
        except IndexError:
            self._fail("takes a value from an empty stack", self.position - 1)
        except NeedsMore:
            self.position, ended = at, False  # no opcode does anything before it has all its bytes
            raise
        finally:
            if ended:
                self._persistent = None  # mostly a method of this reader: many pickles leave no cycles behind
        self._discard(self._stack)
        for below in self._marks:
            self._discard(below)
        self._memo, self._memo_beyond = [], {}
        return value

    def go_on(self, data: bytes, *, complete: bool) -> Any:
        """As `load`, from where it ran out of data. DATA begins with those that there were; COMPLETE: it is all."""
        self.data, self._complete = data, complete
        return self.load()

    def _run_short_opcodes(self, at: int) -> int:
        """Do the opcodes from AT on that most of torch's pickles are made of, in one loop: a call of a handler for each
        takes longer. Returns where another one stands. None of them can be wrong but by its memo number, an empty stack
        or its text, and those cases are left to their handlers, as are the last bytes of the data and of a frame.
        """
        if self._frame_end is not None and at >= self._frame_end:
            self._frame_end = None
        data, stack, memo = self.data, self._stack, self._memo
        whole = len(data) if self._frame_end is None else min(len(data), self._frame_end)
        last = whole - 5
        while at < last:
            opcode = data[at]
            if opcode >= 0x80:
                if opcode == 0x94:  # MEMOIZE
                    if not stack or self._memo_beyond:
                        break
                    memo.append(stack[-1])
                elif opcode == 0x89:  # NEWFALSE
                    stack.append(False)
                elif opcode == 0x85:  # TUPLE1
                    if not stack:
                        break
                    stack[-1] = (stack[-1],)
                elif opcode == 0x86:  # TUPLE2
                    if len(stack) < 2:
                        break
                    stack[-2:] = ((stack[-2], stack[-1]),)
                elif opcode == 0x8C:  # SHORT_BINUNICODE
                    begin = at + 2
                    end = begin + data[at + 1]
                    if end > whole:
                        break
                    try:
                        stack.append(str(data[begin:end], "utf-8", "surrogatepass"))
                    except UnicodeDecodeError:
                        break
                    at = end
                    continue
                else:
                    break
                at += 1
            elif opcode == 0x71:  # BINPUT
                if not stack:
                    break
                self._remember(data[at + 1], stack[-1])
                at += 2
            elif opcode == 0x68:  # BINGET
                if data[at + 2] == data[at + 3] == 0x28 and (behind := self._read_phrase(at)) > at:
                    at = behind
                    continue
                index = data[at + 1]
                if index >= len(memo):
                    break
                value = memo[index]
                stack.append(value if type(value) is not Later else self._made_later(index))
                at += 2
            elif opcode == 0x72:  # LONG_BINPUT
                if not stack:
                    break
                index = int.from_bytes(data[at + 1 : at + 5], "little")
                if index == len(memo) and not self._memo_beyond:
                    memo.append(stack[-1])
                else:
                    self._remember(index, stack[-1])
                at += 5
            elif opcode == 0x58:  # BINUNICODE
                begin = at + 5
                end = begin + int.from_bytes(data[at + 1 : begin], "little")
                if end > whole:
                    break
                try:
                    stack.append(str(data[begin:end], "utf-8", "surrogatepass"))
                except UnicodeDecodeError:
                    break
                at = end
            elif opcode == 0x4B:  # BININT1
                stack.append(data[at + 1])
                at += 2
            elif opcode == 0x4D:  # BININT2
                stack.append(data[at + 1] | data[at + 2] << 8)
                at += 3
            elif opcode == 0x6A:  # LONG_BINGET
                if data[at + 5 : at + 7] == b"((" and (behind := self._read_phrase(at)) > at:
                    at = behind
                    continue
                index = int.from_bytes(data[at + 1 : at + 5], "little")
                if index >= len(memo):
                    break
                value = memo[index]
                stack.append(value if type(value) is not Later else self._made_later(index))
                at += 5
            elif opcode == 0x28:  # MARK
                self._marks.append(stack)
                stack = self._stack = []
                at += 1
            elif opcode == 0x29:  # EMPTY_TUPLE
                stack.append(())
                at += 1
            elif opcode == 0x7D:  # EMPTY_DICT
                stack.append(Dict())
                at += 1
            elif opcode == 0x74:  # TUPLE
                if not self._marks:
                    break
                items = tuple(stack)
                stack = self._stack = self._marks.pop()
                stack.append(items)
                at += 1
            elif opcode == 0x4A:  # BININT
                stack.append(int.from_bytes(data[at + 1 : at + 5], "little", signed=True))
                at += 5
            elif opcode == 0x63:  # GLOBAL
                end = data.find(b"\n", data.find(b"\n", at, at + _LONGEST_NAME) + 1, at + _LONGEST_NAME)
                named = self._spelled.get(data[at + 1 : end + 1])
                if named is None or end >= whole:
                    break
                stack.append(named)
                at = end + 1
            else:
                break
        return at

    def _read_phrase(self, at: int) -> int:
        """Do at once what a run of opcodes from AT on does, if a subclass knows it. Returns where it ends, or AT."""
        return at

    def _make_later(self, start: int, like: Any) -> None:
        """Put what `Later` stands for into the memo, from the place START on."""

    def _made_later(self, index: int) -> Any:
        """The value under INDEX of the memo, made now if it is not."""
        value = self._memo[index]
        if type(value) is Later:
            self._make_later(index - value.place, value.like)
            value = self._memo[index]
        return value

    @property
    def named(self) -> list[Global]:
        """Every class and function that it names, in the order in which they are first named."""
        return list(self._named.values())

    # -- taking bytes

    def _fail(self, what: str, at: int | None = None) -> Any:
        at = self.position if at is None else at
        raise Malformed(f"its pickle {what} (byte {at - self._start:,})", where=self.where)

    def _out_of_data(self, length: int) -> None:
        if not self._complete:
            raise NeedsMore
        raise Malformed(
            "its pickle is cut short"
            if length == 1
            else f"its pickle is cut short: it wants {length:,} bytes at byte {self.position - self._start:,}",
            where=self.where,
            hint="the download or copy did not finish; compare the size with the source",
        )

    def _take(self, length: int) -> bytes:
        start = self.position
        end = start + length
        if end > len(self.data):
            self._out_of_data(length)
        if self._frame_end is not None:
            if self._opcode_at >= self._frame_end:
                self._frame_end = None
            elif end > self._frame_end:
                self._fail("has an opcode that straddles a frame")
        self.position = end
        return self.data[start:end]

    def _number(self, size: int) -> int:
        start = self.position
        end = start + size
        if self._frame_end is None and end <= len(self.data):  # as `_take`; half of all opcodes come here
            self.position = end
            return int.from_bytes(self.data[start:end], "little")
        return int.from_bytes(self._take(size), "little")

    def _line(self) -> bytes:
        end = self.data.find(b"\n", self.position, self.position + _LONGEST_LINE)
        if end < 0:
            if len(self.data) - self.position >= _LONGEST_LINE:
                self._fail("has a line that does not end")
            self._out_of_data(1)
        return self._take(end + 1 - self.position)[:-1]

    # -- the stack

    def _push(self, value: Any) -> None:
        self._stack.append(value)

    def _pop_mark(self) -> list[Any]:
        if not self._marks:
            self._fail("has no mark where it needs one")
        items = self._stack
        self._stack = self._marks.pop()
        return items

    def _push_after_mark(self, make: Callable[[list[Any]], Any]) -> None:
        items = self._pop_mark()
        self._push(make(items))

    def _mark(self) -> None:
        self._marks.append(self._stack)
        self._stack = []

    def _discard(self, values: list[Any]) -> None:
        self.discarded += sum(isinstance(value, Object) for value in values)

    def _pop(self) -> None:
        if self._stack:
            self._discard([self._stack.pop()])
        else:
            self._pop_mark()

    # -- memo

    def _get(self, index: int) -> None:
        if 0 <= index < len(self._memo):
            self._push(self._made_later(index))
        elif index in self._memo_beyond:
            self._push(self._memo_beyond[index])
        else:
            self._fail(f"refers to memo {index}, which was never set")

    def _put(self, index: int) -> None:
        if index < 0:
            self._fail("sets a memo with a negative number")
        self._remember(index, self._stack[-1])

    def _remember(self, index: int, value: Any) -> None:
        if index > len(self._memo):
            self._memo_beyond[index] = value
        elif index == len(self._memo):
            self._memo.append(value)
            self._memo_beyond.pop(index, None)
        else:
            if (
                type(self._memo[index - 1]) is Later
            ):  # the last of those that were put there with it is what they are of
                self._made_later(index - 1)
            self._made_later(index)
            self._memo[index] = value
            self._phrases.clear()
