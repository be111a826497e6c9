"""Pickles put together by hand, for what no pickler writes: wrong arguments, odd persistent ids, old strings."""

import struct
from dataclasses import dataclass


class Name(str):
    """The dotted name of a class or function."""

    __slots__ = ()


class Call:
    """CALLEE(*ARGS)."""

    def __init__(self, callee, *args):
        self.callee, self.args = callee, args


@dataclass
class Stored:
    """What a persistent id stands for."""

    pid: object


class Ordered(dict):
    """A collections.OrderedDict."""


def pickled(value):
    """VALUE as a pickle of protocol 2."""
    return b"\x80\x02" + body(value) + b"."


def body(value):
    if isinstance(value, Name):
        module, _, name = value.rpartition(".")
        return f"c{module}\n{name}\n".encode()
    if isinstance(value, Call):
        return body(Name(value.callee)) + body(value.args) + b"R"
    if isinstance(value, Stored):
        return body(value.pid) + b"Q"
    if isinstance(value, bool) or value is None:
        return {True: b"\x88", False: b"\x89", None: b"N"}[value]
    if isinstance(value, float):
        return b"G" + struct.pack(">d", value)
    if isinstance(value, int):
        raw = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
        return b"\x8a" + bytes([len(raw)]) + raw
    if isinstance(value, str):
        raw = value.encode()
        return b"X" + struct.pack("<I", len(raw)) + raw
    if isinstance(value, bytes):
        return b"T" + struct.pack("<I", len(value)) + value  # a str of Python 2
    if isinstance(value, tuple):
        return b"(" + b"".join(map(body, value)) + b"t"
    if isinstance(value, list):
        return b"](" + b"".join(map(body, value)) + b"e"
    begin = b"ccollections\nOrderedDict\n)R" if isinstance(value, Ordered) else b"}"
    return begin + b"(" + b"".join(body(key) + body(item) for key, item in value.items()) + b"u"
