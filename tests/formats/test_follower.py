"""Following pickles: whatever some unpickler of CPython calls or imports, we see."""

import contextlib
import io
import pickle
import pickletools
import struct

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ckptool.errors import Malformed
from ckptool.formats.pickle.follower import Follower

NAMED, CALLED = [], []


class Watched(type):
    """A class whose instances have every method that an unpickler calls; making or calling one is written down."""

    def __call__(cls, *args, **kwargs):
        return made(cls)

    def __getattr__(cls, name):
        raise AttributeError(name)


def made(cls):
    CALLED.append(cls.__name__)
    return object.__new__(cls)


def watched(name):
    members = {
        method: lambda self, *args: None for method in ("append", "extend", "add", "__setitem__", "__setstate__")
    }
    members["__new__"] = lambda cls, *args, **kwargs: made(cls)
    members["__call__"] = lambda self, *args, **kwargs: made(type(self))
    return Watched(name, (), members)


def find_class(self, module, name):
    NAMED.append((module, name))
    return watched(f"{module}.{name}")


class InC(pickle.Unpickler):
    find_class = find_class

    def persistent_load(self, pid):
        return None


class InPython(pickle._Unpickler):
    find_class = find_class

    def persistent_load(self, pid):
        return None


def oracle(unpickler, data):
    """What an unpickler of CPython names and calls before it ends or fails."""
    NAMED.clear()
    CALLED.clear()
    with contextlib.suppress(Exception):
        unpickler(io.BytesIO(data)).load()
    return list(NAMED), list(CALLED)


def followed(data):
    follower = Follower(data, "x", lambda pid: None)
    with contextlib.suppress(Malformed):
        follower.load()
    return follower


def sees_all(data):
    follower = followed(data)
    if follower.straddles:  # what those do depends on how they read
        return
    names = {(found.module, found.name) for found in follower.named}
    for unpickler in (InC, InPython):
        named, called = oracle(unpickler, data)
        # The unpickler in Python also imports what the last line names that has no end, and then fails.
        cut = {pair for pair in named[-1:] if data[:-1].endswith(pair[1].encode("utf-8", "replace"))}
        assert set(named) - cut <= names, (unpickler, data)
        assert len(called) <= len(follower.made), (unpickler, data)


CALL = b"cm\nf\n)R"
PRELUDES = [
    b"I0x10\n0",
    b"I017\n0",
    b"I1\0junk\n0",
    b"F1.5\0junk\n0",
    b"L1_0\n0",
    b"\x8b\xd0\x07\0\0" + b"\1" * 2000 + b"0",
    b"C\x01a\x980",
    b"\x95\x08" + bytes(7),
    b"\x95\xff\xff" + bytes(6),
    b"]K\1aK\0K\2s0",
    b"\x96\1" + bytes(7) + b"aK\1a0",
    b"V" + b"a" * (1 << 20) + b"\n0",
    b"S'" + b"a" * 3000 + b"'\n0",
    b"]Nb0",
    b"}]Ns0",
    b"Np5\0x\n0g5\n0",
    b"\x80\x04\x80\x02",
    b"]N(tb0",
    b"cm\ng\n(}X\1\0\0\0aNst0",
    b"U\2osU\1x\x930",
    b"(K\1K\2t}0",
]


@pytest.mark.parametrize("prelude", PRELUDES)
def test_no_odd_value_stops_it_before_a_call(prelude):
    sees_all(prelude + CALL + b".")
    assert "m.f" in {str(found.callee) for found in followed(prelude + CALL + b".").made}


@pytest.mark.parametrize(
    "target",
    [b"cm\nf\n(X\1\0\0\0kNtb.", b"cm\nf\nNa.", b"cm\nf\nNNs.", b"cm\nf\n(N\x90.", b"cm\nf\n(NNu.", b"cm\nf\n}b."],
)
def test_changing_a_class_itself_counts_as_a_call(target):
    assert followed(target).made


def test_a_class_by_number_and_one_by_a_computed_name_are_names():
    assert str(followed(b"\x82\x05.").named[0]) == "copyreg.5"
    assert followed(b"cm\nf\n)RX\1\0\0\0x\x93)R.").named[1].name == "?"


@pytest.mark.parametrize("frames", [b"\x95\3" + bytes(7), b"\x95\x20" + bytes(7) + b"\x95\x02" + bytes(7)])
def test_opcodes_across_the_end_of_a_frame_are_noticed_and_passed(frames):
    follower = followed(frames + CALL + b"." + bytes(30))
    assert follower.straddles
    assert follower.made


def test_every_opcode_that_python_has_is_known():
    assert {ord(opcode.code) for opcode in pickletools.opcodes} - {ord(".")} <= set(Follower.opcodes)


INDICES = [b"1", b"0 ", b"01", b"1L", b"+1", b"1\0x"]
LINES = [b"I", b"L", b"F", b"S", b"V"]


SCRAPS = st.one_of(
    st.sampled_from(
        [bytes([code]) for code in b"(.012NQR)abdelostu]}\x81\x85\x86\x87\x88\x89\x8f\x90\x91\x92\x93\x94\x97\x98"]
        + PRELUDES
        + [CALL, b"cm\nf\n", b"(im\nf\n", b"\x80\x02", b"\x80\x04", b"X\1\0\0\0a", b"U\1a", b"\x8c\x01b", b"P1\n"]
        + [b"K\0", b"M\1\2", b"q\0", b"h\0", b"q\1", b"h\1", b"r\0\0\0\0", b"g0\n", b"p1\n", b"\x8e" + bytes(8)]
    ),
    st.builds(lambda code, text: code + text + b"\n", st.sampled_from(LINES), st.binary(max_size=6)),
    st.builds(lambda code, text: code + text + b"\n", st.sampled_from([b"g", b"p"]), st.sampled_from(INDICES)),
    st.builds(lambda n: b"\x95" + struct.pack("<Q", n), st.integers(0, 20)),
    st.builds(lambda n: b"\x8a" + bytes([n]) + bytes(n), st.integers(0, 20)),
    st.binary(min_size=1, max_size=3),
)


@settings(max_examples=20 * settings.default.max_examples)
@given(st.lists(SCRAPS, max_size=30).map(b"".join))
@example(b"cm\nf\n(lR.")
@example(b"i")
@example(b"(im\nfx")
def test_it_sees_what_the_unpicklers_of_python_name_and_call(data):
    sees_all(data)


@settings(max_examples=5 * settings.default.max_examples)
@given(st.lists(SCRAPS, max_size=20).map(b"".join))
@example(b"i")
def test_it_sees_what_they_call_in_the_end(data):
    sees_all(data + CALL + b"(" + CALL + b"ocm\nf\n)\x81cm\nf\n)}\x92.")
