"""Runs of opcodes that make a dense tensor, which files of many tensors consist of, done at once.

Once the names that all tensors share are in the memo, the opcodes of a tensor differ from those of the one before in
the key of its storage and in the numbers of the memo, which go on counting. So they are compared with those as one
number. What is odd in any way is left to the opcodes, one by one.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from ...records import record
from ...tree import Global
from .machine import Later, Machine

#: A dense tensor once the names that all tensors share are in the memo: as torch pickles it, with each value PUT into
#: the memo, and as ckptool does, with none. GET takes a value from the memo.
_OPCODES = (
    rb"""(GET \(\( GET GET) X (.)\0\0\0 ([0-9]+) PUT    # _rebuild_tensor_v2, ("storage", class, key,
    (GET INTEGER N? t) PUT                          # location, elements, and in legacy files None): a storage
    (Q INTEGER TUPLE) (?:(?<!\)) PUT)?              # offset, shape
    (TUPLE) (?:(?<!\)) PUT)?                        # stride
    ([\x88\x89] GET) \) R PUT                       # requires_grad, no hooks: OrderedDict()
    t PUT R PUT""".replace(b"GET", b"(?:h.|j....)")
    .replace(b"TUPLE", rb"(?:\)|\(?INTEGER{1,64}[t\x85-\x87](?=r))")  # () is not put into the memo
    .replace(b"INTEGER", rb"(?:K.|M..|J....)")
)
_MEMOIZED, _BARE = (
    re.compile(opcodes, re.DOTALL | re.VERBOSE)
    for opcodes in (_OPCODES.replace(b"PUT", b"r(....)"), _OPCODES.replace(b"PUT", b"()").replace(b"(?=r)", b""))
)
#: Numbers 0, 1, 2 … of four bytes each, seen as one number, and as many ones: a multiple of them makes it 5, 6, 7 …
_COUNTED = {
    4 * count: (sum(i << 32 * i for i in range(count)), sum(1 << 32 * i for i in range(count)))
    for count in (0, 5, 6, 7)
}
#: The groups of the numbers under which it puts values into the memo.
_PUTS = (4, 6, 8, 10, 12, 13, 14)
_REBUILD, _ORDERED_DICT = ("torch._utils", "_rebuild_tensor_v2"), ("collections", "OrderedDict")


def _got(raw: bytes) -> tuple[int, bytes]:
    """The number of the memo that an opcode takes a value from, and what follows that opcode."""
    return (raw[1], raw[2:]) if raw[:1] == b"h" else (int.from_bytes(raw[1:5], "little"), raw[5:])


def _integer(raw: bytes) -> tuple[int, bytes]:
    """The integer that an opcode pushes, and what follows that opcode."""
    end = {b"K": 2, b"M": 3, b"J": 5}[raw[:1]]
    return int.from_bytes(raw[1:end], "little", signed=end == 5), raw[end:]


def _tuple_of(raw: bytes) -> tuple[int, ...] | None:
    """The tuple that opcodes make of integers, or None if that is not what they do."""
    marked = raw[:1] == b"("
    rest, found = raw[marked:], []
    while rest[:1] in (b"K", b"M", b"J"):
        integer, rest = _integer(rest)
        found.append(integer)
    return tuple(found) if rest == (b"t" if marked else b")\x85\x86\x87"[len(found) : len(found) + 1]) else None


@record(frozen=True, eq=False, slots=True)
class Phrase:
    """What a phrase makes a tensor of.

    Attributes:
        callee: the function that is called.
        pid: the persistent id of the storage.
        offset, shape, stride, requires_grad: as the function is given them.
    """

    callee: Global
    pid: tuple[Any, ...]
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    requires_grad: bool


#: Makes the tensor over the storage of another key. Gives None where the opcodes have to say what is wrong.
Maker = Callable[[str], Any]


@record(frozen=True, eq=False, slots=True)
class _Kind:
    """Tensors whose opcodes differ in the key of their storage and the numbers of the memo alone.

    Attributes:
        phrase: the first of them.
        make: makes them.
        memo: what stands for the parts of each in the memo, until somebody asks for them.
        head: its bytes up to the key of the storage, with the opcode of that (but not its length).
        tail: those behind it, as a number, if the numbers that count in the memo began at 0.
        ones: what they grow by for each value in the memo.
        length: how many bytes there are behind the key.
    """

    phrase: Phrase
    make: Maker
    memo: tuple[Later, ...]
    head: bytes
    tail: int
    ones: int
    length: int


class Phrases(Machine):
    """A machine that makes dense tensors at once. A subclass says of what, in `_maker` and `_arguments`."""

    def _maker(self, first: Phrase) -> Maker | None:
        """What makes the tensors that differ from FIRST in the key of their storage alone, exactly as a call of an
        opcode makes them; None if FIRST itself is odd.
        """
        return None

    def _arguments(self, made: Any, like: Phrase) -> tuple[str, tuple[Any, ...]]:
        """The key of the storage of a tensor that a maker made, and the arguments of its call."""
        raise NotImplementedError

    def _read_phrase(self, at: int) -> int:
        """A dense tensor, and the entries of a dict that follow it and hold others of its kind."""
        if self._frame_end is not None:  # a phrase could go beyond it; torch's pickler writes no frames
            return at
        kind: _Kind | None = self._phrases.get(None)  # mostly, it is as the one before
        behind = self._read_again(at, kind) if kind is not None else at
        if behind > at:
            return behind
        found = _MEMOIZED.match(self.data, at) or _BARE.match(self.data, at)
        if found is None or self._memo_beyond:
            return at
        head, length, key, p1, numel, p2, shape, p3, stride, p4, grad, p5, p6, p7 = found.groups(b"")
        puts = b"".join((p1, p2, p3, p4, p5, p6, p7))
        counted, ones = _COUNTED[len(puts)]
        if int.from_bytes(puts, "little") != counted + len(self._memo) * ones or len(key) != length[0]:
            return at
        told = (head, numel, shape, stride, grad, len(puts))
        kind = self._phrases.get(told)
        if kind is None:
            kind = self._kind(found)
            if kind is None:
                return at
            self._phrases[told] = kind
        self._phrases[None] = kind
        return self._read_again(at, kind)

    def _read_again(self, at: int, kind: _Kind) -> int:
        """Tensors that are as those of KIND but for their storage and the numbers of the memo, from AT on, with the
        keys between them. Returns where something else begins.
        """
        data, memo, stack = self.data, self._memo, self._stack
        head, tail, ones, length = kind.head, kind.tail, kind.ones, kind.length
        make, parts, last = kind.make, kind.memo, len(data) - length
        skip, put = len(head) + 4, 5 if ones else 0
        expected, each = tail + len(memo) * ones, (len(parts) + 2) * ones  # a tensor, its parts and the next key
        while data.startswith(head, at) and not self._memo_beyond:
            begin = at + skip
            end = begin + int.from_bytes(data[begin - 4 : begin], "little")
            if end > last:  # also if the data end before BEGIN
                break
            digits = data[begin:end]
            if not digits.isdigit():
                break
            if int.from_bytes(data[end : end + length], "little") != expected:
                break
            made = make(digits.decode())
            if made is None:
                break
            if put:
                memo += parts
                memo.append(made)
            stack.append(made)
            at = end + length
            begin = at + 5  # of the next key
            if data[at : at + 1] != b"X":
                break
            end = begin + int.from_bytes(data[at + 1 : begin], "little")
            behind = end + put
            if not data.startswith(head, behind):
                break
            if put and data[end:behind] != b"r" + len(memo).to_bytes(4, "little"):
                break
            try:
                text = str(data[begin:end], "utf-8", "surrogatepass")
            except UnicodeDecodeError:
                break
            if put:
                memo.append(text)
            stack.append(text)
            at = behind
            expected += each
        return at

    def _kind(self, found: re.Match[bytes]) -> _Kind | None:
        """The kind of a tensor that is made by a phrase, or None if that is odd."""
        head, _, key, _, numel, _, shape, p3, stride, p4, grad, _, _, _ = found.groups(b"")
        place, numel = _got(numel)
        elements, end = _integer(numel)
        offset, shape = _integer(shape[1:])
        sizes, steps = _tuple_of(shape), _tuple_of(stride)
        callee_at, rest = _got(head)
        word_at, rest = _got(rest[2:])
        memo, taken = self._memo, (callee_at, word_at, _got(rest)[0], place, _got(grad[1:])[0])
        if (
            sizes is None
            or steps is None
            or max(taken) >= len(memo)
            or (found.re is _MEMOIZED and (bool(sizes), bool(steps)) != (bool(p3), bool(p4)))
        ):
            return None
        callee, word, cls, location, hooks = map(self._made_later, taken)
        rebuild, ordered_dict = self._named.get(_REBUILD), self._named.get(_ORDERED_DICT)
        if rebuild is None or callee is not rebuild or hooks is not ordered_dict:
            return None
        pid = (word, cls, key.decode(), location, elements, None)[: 5 + len(end) - 1]
        first = Phrase(rebuild, pid, offset, sizes, steps, grad[:1] == b"\x88")
        make = self._maker(first)
        if make is None:
            return None
        begin, length = found.end(3), found.end() - found.end(3)
        puts = [found.start(group) - begin for group in _PUTS if found[group]]
        tail = bytearray(self.data[begin : found.end()])
        for number, put in enumerate(puts):
            tail[put : put + 4] = number.to_bytes(4, "little")
        ones = sum(1 << 8 * put for put in puts)
        parts = tuple(Later(number, (first, len(puts) - 1)) for number in range(len(puts) - 1))
        return _Kind(first, make, parts, head + b"X", int.from_bytes(tail, "little"), ones, length)

    def _make_later(self, start: int, like: tuple[Phrase, int]) -> None:
        """The parts of a tensor: key, persistent id, shape, stride, hooks, and the arguments of the call."""
        first, count = like
        memo, sizes, steps = self._memo, first.shape, first.stride
        name, args = self._arguments(memo[start + count], first)
        pid = (*first.pid[:2], name, *first.pid[3:])
        parts = (name, pid, *((sizes,) if sizes else ()), *((steps,) if steps else ()))
        memo[start : start + count] = [*parts, args[-1], args]
