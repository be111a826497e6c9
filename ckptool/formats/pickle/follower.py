"""Following a pickle wherever some unpickler would go with it, to see all that it names and calls.

`Reader` reads what ckptool is going to use and refuses what is odd. A scanner may not: what it refuses, a loader may
run. So this one stops only where the unpicklers of CPython (the one in C and the one in Python) and torch's stop as
well: at an opcode that does not exist, an empty stack, a missing mark or memo, the end of the data. Values that it does
not understand (hexadecimal numbers, buffers, integers of a megabyte) become objects of no class, and it goes on.
Source: `Modules/_pickle.c` and `Lib/pickle.py` of CPython 3.8 to 3.14.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from ...tree import Dict, Global, List, Object, Set
from .python2 import python3_name
from .reader import Reader

#: In place of the class of an object whose class the pickle computes.
COMPUTED_NAME = Global("a name that is computed", "?")
_LARGEST_VALUE = 1024


class Follower(Reader):
    """Reads one pickle for what it names and calls; its tree is not to be trusted.

    Args:
        data, where, persistent, complete: see `Reader`.
        total: bytes that there are, of which DATA may be the beginning.

    Attributes:
        straddles: an opcode goes beyond the end of its frame. The unpickler in C then skips bytes if it reads from a
            file, and none if it reads from memory, so that nobody can say what the pickle does.
    """

    def __init__(
        self,
        data: bytes,
        where: object,
        persistent: Callable[[Any], Any],
        *,
        complete: bool = True,
        total: int | None = None,
    ) -> None:
        super().__init__(data, where, persistent, complete=complete)
        self.straddles = False
        self._total = len(data) if total is None else total

    def _out_of_data(self, length: int) -> None:
        self._complete |= self.position + length > self._total
        super()._out_of_data(length)

    def _take(self, length: int) -> bytes:
        start, end = self.position, self.position + length
        if end > len(self.data):
            self._out_of_data(length)
        if self._frame_end is not None:
            self.straddles |= self._opcode_at < self._frame_end < end
            if self._opcode_at >= self._frame_end:
                self._frame_end = None
        self.position = end
        return self.data[start:end]

    # -- values: none of them can be wrong enough to stop

    def _push_unknown(self) -> None:
        self._push(Object("unknown", None, ()))

    def _number_line(self) -> None:
        line = self._line()
        if line in (b"00", b"01"):
            self._push(line == b"01")
        elif re.fullmatch(rb"-?(0|[1-9][0-9]{,1000})L?", line):
            self._push(int(line.rstrip(b"L")))
        else:
            self._push_unknown()

    def _decimal(self, line: bytes) -> int:
        """The number of a memo. CPython reads it up to a NUL."""
        try:
            return int(line.partition(b"\0")[0].rstrip(b"L"))
        except ValueError:
            return int(self._fail("has a memo without a number"))

    def _long(self, size: int) -> None:
        raw = self._take(self._number(size))
        if len(raw) > _LARGEST_VALUE:
            self._push_unknown()
        else:
            self._push(int.from_bytes(raw, "little", signed=True))

    def _float_line(self) -> None:
        try:
            self._push(float(self._line()))
        except ValueError:
            self._push_unknown()

    def _unicode_line(self) -> None:
        line = self._line()
        try:
            self._push(line.decode("raw-unicode-escape"))
        except UnicodeDecodeError:
            self._push_unknown()

    def _line(self) -> bytes:
        end = self.data.find(b"\n", self.position)
        if end < 0:
            self._out_of_data(1)
        return self._take(end + 1 - self.position)[:-1]

    def _last_line(self) -> bytes:
        """A line. Of one without an end, the unpickler in Python takes all but the last byte, and goes on."""
        if self._complete and self.data.find(b"\n", self.position) < 0:
            return self._take(len(self.data) - self.position)[:-1]
        return self._line()

    def _buffer(self) -> None:
        self._push_unknown()

    # -- containers: whatever has the method that the opcode calls

    def _append(self, items: list[Any]) -> None:
        target = self._stack[-1]
        if isinstance(target, List | Object) or not items:
            super()._append(items)
        elif isinstance(target, Global):
            self._changes(target, items)
        elif not isinstance(target, bytearray):
            self._fail("appends to what has no items")

    def _set_items(self, flat: list[Any]) -> None:
        target = self._stack[-1]
        if len(flat) % 2:
            self._fail("sets a key without a value")
        pairs = list(zip(flat[::2], flat[1::2], strict=True))
        if isinstance(target, Dict):
            target.extend(flat[::2], flat[1::2])
        elif isinstance(target, Object):
            target.steps.append(("entries", pairs))
        elif isinstance(target, Global):
            self._changes(target, flat)
        elif isinstance(target, List):
            target.items.extend(flat)
        elif pairs and not isinstance(target, bytearray):
            self._fail("sets items of what has none")

    def _add_items(self) -> None:
        items = self._pop_mark()
        target = self._stack[-1]
        if isinstance(target, Set):
            target.items.extend(items)
        elif isinstance(target, Object):
            target.steps.append(("items", items))
        elif isinstance(target, Global):
            self._changes(target, items)
        elif items:
            self._fail("adds to what is not a set")

    def _build(self) -> None:
        state = self._stack.pop()
        target = self._stack[-1]
        if isinstance(target, Object):
            target.steps.append(("state", state))
        elif isinstance(target, Dict) and target.ordered:
            target.attributes = state
        elif isinstance(target, Global):
            self._changes(target, [state])

    def _changes(self, target: Global, values: list[Any]) -> None:
        """A class or a function itself is given attributes or items, which counts as a call of something computed."""
        self.made.append(Object("changed", Object("attribute of", target, ()), tuple(values)))

    # -- globals and objects

    def _proto(self) -> None:
        self.protocol = self._number(1)  # the last one decides which names are those of Python 2
        if self.protocol > 5:
            self._fail(f"declares protocol {self.protocol}, which does not exist")
        self._spelled.clear()

    def _frame(self) -> None:
        length = self._number(8)
        self.straddles |= self._frame_end is not None and self._opcode_at < self._frame_end
        self._frame_end = self.position + length if self.position + length <= self._total else None

    def _global(self, module: str, name: str) -> None:
        if self.protocol < 3:
            module, name = python3_name(module, name)
        known = self._named.get((module, name))
        if known is None:
            known = self._named[module, name] = Global(module, name)
        self._push(known)

    def _global_lines(self) -> None:
        start = self.position
        module, name = (self._line().decode("utf-8", "backslashreplace") for _ in range(2))
        self._global(module, name)
        self._spelled[self.data[start : self.position]] = self._stack[-1]

    def _inst(self) -> None:
        module, name = (self._last_line().decode("utf-8", "backslashreplace") for _ in range(2))
        self._global(module, name)  # as Python does: what is named is imported, whether or not a mark follows
        callee = self._stack.pop()
        self._push_made("obj", callee, tuple(self._pop_mark()))

    def _stack_global(self) -> None:
        name, module = self._stack.pop(), self._stack.pop()
        if isinstance(name, str) and isinstance(module, str):
            self._global(module, name)
        elif isinstance(name, str | Object) and isinstance(module, str | Object):
            self._push(self._named.setdefault(("?", "?"), COMPUTED_NAME))
        else:
            self._fail("names a class by something that is not text")

    def _extension(self, size: int) -> None:
        """A class that the reading program has registered under a number."""
        self._push(self._named.setdefault(("copyreg", code := str(self._number(size))), Global("copyreg", code)))

    def _call(self) -> None:
        args, callee = self._stack.pop(), self._stack.pop()
        if isinstance(callee, Global) and isinstance(args, tuple):
            made = self._plain_call(callee, args)
            if isinstance(made, Dict | Set | bytes):
                self._push(made)
                return
        self._push_made("reduce", callee, args)

    def _new(self, how: str) -> None:
        args = self._stack.pop()
        if how == "newobj_ex":
            args = (self._stack.pop(), args)
        self._push_made(how, self._stack.pop(), args)

    def _push_made(self, how: str, callee: Any, args: Any) -> None:
        if not isinstance(callee, Global | Object):
            self._fail("calls what nobody can call")
        if args is None or isinstance(args, bool | int | float):
            self._fail("calls something with arguments that are none")
        super()._push_made(how, callee, args if isinstance(args, tuple) else (args,))


Follower.opcodes = {
    **Reader.opcodes,
    **{
        ord(name): handler
        for name, handler in {
            "I": lambda r: r._number_line(),
            "L": lambda r: r._number_line(),
            "F": lambda r: r._float_line(),
            "V": lambda r: r._unicode_line(),
            "c": lambda r: r._global_lines(),
            "R": lambda r: r._call(),
            "i": lambda r: r._inst(),
            "b": lambda r: r._build(),
            "\x80": lambda r: r._proto(),
            "\x82": lambda r: r._extension(1),
            "\x83": lambda r: r._extension(2),
            "\x84": lambda r: r._extension(4),
            "\x90": lambda r: r._add_items(),
            "\x93": lambda r: r._stack_global(),
            "\x95": lambda r: r._frame(),
            "\x97": lambda r: r._buffer(),
            "\x98": lambda r: r._push(r._stack.pop()),
        }.items()
    },
}
