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
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from ...errors import Malformed, printable
from ...tree import ABSENT, ByteString, Dict, Global, List, Object, Set
from .python2 import python3_name

#: Bytes of the longest integer that is read. Python's own limit for decimal text is of that size, too.
_LONGEST_INTEGER = 1024
_LONGEST_LINE = 1 << 20
#: And of a class or function that is looked for among those that were named before.
_LONGEST_NAME = 256
#: Values in the largest tuple, counted through tuples within tuples, that may be a key of a dict.
_LARGEST_KEY = 10_000


class NeedsMore(Exception):
    """The pickle goes on beyond the bytes at hand; the caller reads more of the file and starts again."""


class Reader:
    """Reads one pickle.

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

    opcodes: ClassVar[Mapping[int, Callable[[Reader], None]]]

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
        try:
            while True:
                at = self.position
                if self._frame_end is None:
                    at = self._run_short_opcodes(at)
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
        finally:
            self._persistent = None  # mostly a method of this reader: files with many pickles leave no cycles behind
        self._discard(self._stack)
        for below in self._marks:
            self._discard(below)
        self._memo, self._memo_beyond = [], {}
        return value

    def _run_short_opcodes(self, at: int) -> int:
        """Do the opcodes from AT on that most of torch's pickles are made of, in one loop: a call of a handler for each
        takes longer. Returns where another one stands. None of them can be wrong but by its memo number, an empty stack
        or its text, and those cases are left to their handlers, as are the last bytes of the data.
        """
        data, stack, memo, last = self.data, self._stack, self._memo, len(self.data) - 5
        while at < last:
            opcode = data[at]
            if opcode == 0x71:  # BINPUT
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
                stack.append(memo[index])
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
                if end > len(data):
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
                stack.append(memo[index])
                at += 5
            elif opcode == 0x28:  # MARK
                self._marks.append(stack)
                stack = self._stack = []
                at += 1
            elif opcode == 0x89:  # NEWFALSE
                stack.append(False)
                at += 1
            elif opcode == 0x29:  # EMPTY_TUPLE
                stack.append(())
                at += 1
            elif opcode == 0x74:  # TUPLE
                if not self._marks:
                    break
                items = tuple(stack)
                stack = self._stack = self._marks.pop()
                stack.append(items)
                at += 1
            elif opcode == 0x63:  # GLOBAL
                end = data.find(b"\n", data.find(b"\n", at, at + _LONGEST_NAME) + 1, at + _LONGEST_NAME)
                named = self._spelled.get(data[at + 1 : end + 1])
                if named is None:
                    break
                stack.append(named)
                at = end + 1
            else:
                break
        return at

    def _read_phrase(self, at: int) -> int:
        """Do at once what a run of opcodes from AT on does, if a subclass knows it. Returns where it ends, or AT."""
        return at

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
        keys = flat[::2]
        pairs = list(zip(keys, flat[1::2], strict=True))
        if not set(map(type, keys)) <= {str, int}:
            for key in keys:
                self._check_hashable(key)
        if isinstance(target, Dict):
            target.entries.extend(pairs)
        elif isinstance(target, Object):
            _step(target, "entries").extend(pairs)
        elif pairs:
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

    # -- memo

    def _get(self, index: int) -> None:
        if 0 <= index < len(self._memo):
            self._push(self._memo[index])
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
            self._memo[index] = value
            self._phrases.clear()

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
            self._fail("names a class by something that is no text")
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
