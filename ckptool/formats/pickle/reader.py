"""Reading pickles without running them: a small machine for every opcode of protocols 0 to 5.

What the stock unpickler would import becomes a `Global`, what it would call becomes an `Object`; nothing is imported,
called, hashed or compared, and no length is believed before it is checked against what is there. (The stock unpickler
with stand-in classes is not enough: deep tuples as dict keys crash it, doubled ones hang it, declared lengths make
it allocate.) Opcodes are those of CPython's `pickletools`; an opcode that straddles a frame, on which readers
disagree, is refused.
"""

from __future__ import annotations

import codecs
import struct
from collections.abc import Callable
from typing import Any

from ...errors import printable
from ...tree import ABSENT, ByteString, Dict, Global, List, Object, Set
from .machine import Machine
from .machine import NeedsMore as NeedsMore
from .python2 import python3_name

#: Bytes of the longest integer that is read. Python's own limit for decimal text is of that size, too.
_LONGEST_INTEGER = 1024
#: Values in the largest tuple, counted through tuples within tuples, that may be a key of a dict.
_LARGEST_KEY = 10_000


class Reader(Machine):
    """Reads one pickle. Its arguments and attributes are those of `Machine`."""

    # -- scalars

    def _int_line(self) -> None:
        line = self._line()
        self._push({b"00": False, b"01": True}.get(line, ABSENT))
        if self._stack[-1] is ABSENT:
            self._stack[-1] = self._decimal(line)

    def _decimal(self, line: bytes) -> int:
        try:
            if len(line) > 2 * _LONGEST_INTEGER:
                raise ValueError
            return int(line.rstrip(b"L"))
        except ValueError:
            return int(self._fail(f"has a number that is none: {printable(repr(line[:40]))}"))

    def _long(self, size: int) -> None:
        length = self._number(size)
        if length > _LONGEST_INTEGER:
            self._fail(f"has an integer of {length:,} bytes")
        self._push(int.from_bytes(self._take(length), "little", signed=True))

    def _float_line(self) -> None:
        line = self._line()
        try:
            self._push(float(line))
        except ValueError:
            self._fail(f"has a number that is none: {printable(repr(line[:40]))}")

    def _text(self, raw: bytes) -> None:
        try:
            self._push(raw.decode("utf-8", "surrogatepass"))
        except UnicodeDecodeError:
            self._fail("has a text that is not UTF-8")

    def _unicode_line(self) -> None:
        try:
            self._push(self._line().decode("raw-unicode-escape"))
        except UnicodeDecodeError:
            self._fail("has a text with a wrong escape")

    def _string_line(self) -> None:
        line = self._line().strip()
        if len(line) < 2 or line[:1] != line[-1:] or line[:1] not in (b"'", b'"'):
            self._fail("has a string without quotes")
        try:
            raw = codecs.escape_decode(line[1:-1])[0]
        except ValueError:
            self._fail("has a string with a wrong escape")
        self._push(ByteString(raw))

    # -- containers

    def _append(self, items: list[Any]) -> None:
        target = self._stack[-1]
        if isinstance(target, List):
            target.items.extend(items)
        elif isinstance(target, Object):
            _step(target, "items").extend(items)
        elif items:
            self._fail(f"appends to {_kind(target)}")

    def _set_items(self, flat: list[Any]) -> None:
        target = self._stack[-1]
        if len(flat) % 2:
            self._fail("sets a key without a value")
        keys, values = flat[::2], flat[1::2]
        if not set(map(type, keys)) <= {str, int}:
            for key in keys:
                self._check_hashable(key)
        if isinstance(target, Dict):
            target.extend(keys, values)
        elif isinstance(target, Object):
            _step(target, "entries").extend(zip(keys, values, strict=True))
        elif keys:
            self._fail(f"sets items of {_kind(target)}")

    def _dict_from_mark(self) -> None:
        flat = self._pop_mark()
        self._push(Dict())
        self._set_items(flat)

    def _add_items(self) -> None:
        items = self._pop_mark()
        target = self._stack[-1]
        if not isinstance(target, Set) or target.frozen:
            self._fail(f"adds to {_kind(target)}")
        for item in items:
            self._check_hashable(item)
        target.items.extend(items)

    def _check_hashable(self, key: Any) -> None:
        """Refuse what no dict or set can hold, or what would take Python for ever to hash."""
        if not isinstance(key, tuple):
            if isinstance(key, List | Dict | bytearray) or (isinstance(key, Set) and not key.frozen):
                self._fail(f"has {_kind(key)} as a key")
            return
        known, pending = self._keys, [key]  # each tuple is looked at once, however many keys it is in
        while pending:
            part = pending[-1]
            if id(part) in known:
                pending.pop()
                continue
            inner = [item for item in part if isinstance(item, tuple) and id(item) not in known]
            if inner:
                pending += inner
                continue
            size = 1
            for item in part:
                if isinstance(item, tuple):
                    size += known[id(item)][1]
                else:
                    self._check_hashable(item)
                    size += 1
            if size > _LARGEST_KEY:
                self._fail("has a key that is too large to be one")
            known[id(part)] = part, size
            pending.pop()

    def _tuple(self, length: int) -> None:
        stack = self._stack
        if len(stack) < length:
            self._fail("takes a value from an empty stack")
        items = tuple(stack[-length:])
        del stack[-length:]
        stack.append(items)

    # -- globals and objects

    def _global(self, module: str, name: str) -> None:
        if not module or not name:
            self._fail("names a class without a name")
        if self.protocol < 3:
            module, name = python3_name(module, name)
        known = self._named.get((module, name))
        if known is None:
            known = self._named[module, name] = Global(module, name)
        self._push(known)

    def _global_lines(self) -> None:
        start = self.position
        try:
            module, name = self._line().decode("utf-8"), self._line().decode("utf-8")
        except UnicodeDecodeError:
            self._fail("names a class that is not UTF-8")
        self._global(module, name)
        self._spelled[self.data[start : self.position]] = self._stack[-1]

    def _stack_global(self) -> None:
        name, module = self._stack.pop(), self._stack.pop()
        if not isinstance(name, str) or not isinstance(module, str):
            self._fail("names a class by something that is not text")
        self._global(module, name)

    def _call(self) -> None:
        args, callee = self._stack.pop(), self._stack.pop()
        if not isinstance(callee, Global | Object) or not isinstance(args, tuple):
            self._fail(f"calls {_kind(callee)} with {_kind(args)}")
        made = self._plain_call(callee, args) if isinstance(callee, Global) else ABSENT
        if made is ABSENT:
            made = self._rebuild(callee, args)
        if made is ABSENT:
            self._push_made("reduce", callee, args)
        else:
            self._push(made)

    def _push_made(self, how: str, callee: Any, args: tuple[Any, ...]) -> None:
        made = Object(how, callee, args)
        self.made.append(made)
        self._push(made)

    def _plain_call(self, callee: Global, args: tuple[Any, ...]) -> Any:
        """The containers and byte strings that protocol 2 can only spell as calls."""
        if callee.module == "collections" and callee.name == "OrderedDict":
            if not args:
                return Dict(ordered=True)
            if len(args) == 1 and isinstance(args[0], List):  # Python 2 lists the pairs as the argument
                pairs = [pair.items if isinstance(pair, List) else pair for pair in args[0].items]
                if all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in pairs):
                    return Dict([(key, value) for key, value in pairs], ordered=True)
        elif callee.module == "builtins" and callee.name in ("set", "frozenset"):
            if len(args) == 1 and isinstance(args[0], List):
                return Set(list(args[0].items), frozen=callee.name == "frozenset")
            if not args:
                return Set(frozen=callee.name == "frozenset")
        elif callee.module == "_codecs" and callee.name == "encode":
            if len(args) == 2 and isinstance(args[0], str) and args[1] == "latin1":
                return self._encode(args[0])
        elif callee.module == "builtins" and callee.name == "bytes" and not args:
            return b""
        return ABSENT

    def _encode(self, text: str) -> Any:
        """The bytes that protocol 2 writes as text. Kept per text, so that a repeated one cannot multiply memory."""
        known = self._encoded.get(id(text))
        if known is None:
            try:
                known = self._encoded[id(text)] = text.encode("latin-1")
            except UnicodeEncodeError:
                return ABSENT
            self._texts.append(text)  # keeps it alive, so that its id stays its own
        return known

    def _new(self, how: str) -> None:
        args = self._stack.pop()
        if how == "newobj_ex":
            args = (self._stack.pop(), args)
        callee = self._stack.pop()
        if not isinstance(callee, Global | Object) or not isinstance(args, tuple):
            self._fail(f"makes an object of {_kind(callee)} with {_kind(args)}")
        self._push_made(how, callee, args)

    def _inst(self) -> None:
        self._global_lines()
        callee = self._stack.pop()
        self._push_made("obj", callee, tuple(self._pop_mark()))

    def _obj(self) -> None:
        args = self._pop_mark()
        if not args or not isinstance(args[0], Global | Object):
            self._fail(f"makes an object of {_kind(args[0]) if args else 'no class'}")
        self._push_made("obj", args[0], tuple(args[1:]))

    def _build(self) -> None:
        state = self._stack.pop()
        target = self._stack[-1]
        if isinstance(target, Object):
            target.steps.append(("state", state))
        elif isinstance(target, Dict) and target.ordered and target.attributes is ABSENT:
            target.attributes = state
        else:
            self._fail(f"sets the state of {_kind(target)}")

    def _persistent_id(self, pid: Any) -> None:
        self._push(self._storage(pid))

    def _storage(self, pid: Any) -> Any:
        """What a persistent id stands for."""
        return self._persistent(pid) if self._persistent else self._fail("has a persistent id")

    def _rebuild(self, callee: Any, args: Any) -> Any:
        """What a call makes, if it does not become an `Object`; else ABSENT."""
        return ABSENT

    # -- protocol

    def _proto(self) -> None:
        protocol = self._number(1)
        if protocol > 5:
            self._fail(f"declares protocol {protocol}, which does not exist")
        self.protocol = protocol
        self._spelled.clear()  # names of Python 2 are read as those of Python 3, but not in all protocols

    def _frame(self) -> None:
        length = self._number(8)
        if self._frame_end is not None and self._opcode_at < self._frame_end:
            self._fail("begins a frame within a frame")
        if self.position + length > len(self.data):
            self._out_of_data(length)
        self._frame_end = self.position + length


def _step(target: Object, kind: str) -> list[Any]:
    """The list that further items or entries of TARGET go to: a new one if something else came in between."""
    if not target.steps or target.steps[-1][0] != kind:
        target.steps.append((kind, []))
    made: list[Any] = target.steps[-1][1]
    return made


def _kind(value: Any) -> str:
    if isinstance(value, Global):
        return f"the global {printable(str(value), 80)}"
    return "None" if value is None else f"a {type(value).__name__.lower()}"


_FLOAT = struct.Struct(">d")
_Handler = Callable[[Reader], None]

_HANDLERS: dict[str | int, _Handler] = {
    # strings, as Python 3, 2 and 0 wrote them
    "X": lambda r: r._text(r._take(r._number(4))),
    0x8C: lambda r: r._text(r._take(r._number(1))),
    0x8D: lambda r: r._text(r._take(r._number(8))),
    "V": Reader._unicode_line,
    "U": lambda r: r._push(ByteString(r._take(r._number(1)))),
    "T": lambda r: r._push(ByteString(r._take(r._number(4)))),
    "S": Reader._string_line,
    "C": lambda r: r._push(r._take(r._number(1))),
    "B": lambda r: r._push(r._take(r._number(4))),
    0x8E: lambda r: r._push(r._take(r._number(8))),
    0x96: lambda r: r._push(bytearray(r._take(r._number(8)))),
    # numbers and constants
    "K": lambda r: r._push(r._number(1)),
    "M": lambda r: r._push(r._number(2)),
    "J": lambda r: r._push(int.from_bytes(r._take(4), "little", signed=True)),
    0x8A: lambda r: r._long(1),
    0x8B: lambda r: r._long(4),
    "I": Reader._int_line,
    "L": lambda r: r._push(r._decimal(r._line())),
    "G": lambda r: r._push(_FLOAT.unpack(r._take(8))[0]),
    "F": Reader._float_line,
    "N": lambda r: r._push(None),
    0x88: lambda r: r._push(True),
    0x89: lambda r: r._push(False),
    # memo
    "h": lambda r: r._get(r._number(1)),
    "j": lambda r: r._get(r._number(4)),
    "g": lambda r: r._get(r._decimal(r._line())),
    "q": lambda r: r._put(r._number(1)),
    "r": lambda r: r._put(r._number(4)),
    "p": lambda r: r._put(r._decimal(r._line())),
    0x94: lambda r: r._put(len(r._memo) + len(r._memo_beyond)),
    # containers
    "(": Reader._mark,
    ")": lambda r: r._push(()),
    0x85: lambda r: r._tuple(1),
    0x86: lambda r: r._tuple(2),
    0x87: lambda r: r._tuple(3),
    "t": lambda r: r._push_after_mark(tuple),
    "]": lambda r: r._push(List()),
    "l": lambda r: r._push_after_mark(List),
    "a": lambda r: r._append([r._stack.pop()]),
    "e": lambda r: r._append(r._pop_mark()),
    "}": lambda r: r._push(Dict()),
    "d": Reader._dict_from_mark,
    "s": lambda r: r._set_items([r._stack.pop(-2), r._stack.pop()]),
    "u": lambda r: r._set_items(r._pop_mark()),
    0x8F: lambda r: r._push(Set()),
    0x90: Reader._add_items,
    0x91: lambda r: r._push_after_mark(lambda items: Set(items, frozen=True)),
    # globals and objects
    "c": Reader._global_lines,
    0x93: Reader._stack_global,
    "R": Reader._call,
    0x81: lambda r: r._new("newobj"),
    0x92: lambda r: r._new("newobj_ex"),
    "i": Reader._inst,
    "o": Reader._obj,
    "b": Reader._build,
    "Q": lambda r: r._persistent_id(r._stack.pop()),
    "P": lambda r: r._persistent_id(r._line().decode("ascii", "replace")),
    # the machine itself
    0x80: Reader._proto,
    0x95: Reader._frame,
    "0": Reader._pop,
    "1": lambda r: r._discard(r._pop_mark()),
    "2": lambda r: r._push(r._stack[-1]),
}
Reader.opcodes = {ord(name) if isinstance(name, str) else name: handler for name, handler in _HANDLERS.items()}
