"""Opcodes that are done in one loop do what their handlers, one by one, do; also in frames."""

import pickle
import struct
from collections import OrderedDict

from hypothesis import example, given
from hypothesis import strategies as st
from same import graph

from ckptool.errors import Malformed
from ckptool.formats.pickle.follower import Follower
from ckptool.formats.pickle.reader import NeedsMore, Reader


class ByHandlers(Reader):
    def _run_short_opcodes(self, at):
        return at


class FollowedByHandlers(Follower):
    def _run_short_opcodes(self, at):
        return at


def told(reader, read):
    try:
        tree, ends = graph((read(), tuple(reader.made))), None
    except Malformed as error:
        tree, ends = None, str(error)
    except NeedsMore:
        tree, ends = None, "needs more"
    return tree, ends, reader.position, [str(one) for one in reader.named], getattr(reader, "straddles", None)


def assert_alike(data, complete=True):
    made = [kind(data, "x", lambda pid: pid, complete=complete) for kind in (Reader, ByHandlers)]
    assert told(made[0], made[0].load) == told(made[1], made[1].load)
    made = [kind(b"", "x", lambda pid: pid, total=len(data)) for kind in (Follower, FollowedByHandlers)]
    assert told(made[0], lambda: made[0].go_on(data, complete=True)) == told(
        made[1], lambda: made[1].go_on(data, complete=True)
    )


NUMBERS = st.one_of(st.integers(-1, 300), st.integers(-(1 << 40), 1 << 40))
VALUES = st.recursive(
    st.one_of(NUMBERS, st.text(max_size=300), st.booleans(), st.none(), st.just(OrderedDict([("a", 1)]))),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=5).map(tuple),
        st.dictionaries(st.text(max_size=5), inner, max_size=4),
        inner.map(lambda one: [one, one, (one,)]),
    ),
)
CHANGES = st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 255)), max_size=3)


@given(VALUES, st.integers(0, 5), CHANGES, st.integers(0, 1 << 16), st.booleans())
def test_any_pickle_is_read_as_its_handlers_read_it(value, protocol, changes, cut, complete):
    data = bytearray(pickle.dumps(value, protocol))
    for place, byte in changes:
        data[place % len(data)] = byte
    assert_alike(bytes(data[: cut % (4 * len(data))]), complete)


OPCODES = [
    *(b"\x94", b"\x89", b"\x85", b"\x86", b"\x8c\3abc", b"\x8c\xff", b"q\0", b"h\0", b"h\1", b"h\2", b"r\1\0\0\0"),
    *(b"r\2\0\0\0", b"X\2\0\0\0ab", b"X\2\0\0\0\xff\xff", b"K\7", b"M\1\1", b"J\xff\xff\xff\xff", b"j\0\0\0\0", b"("),
    *(b")", b"}", b"t", b"cm\nn\n", b"u", b"s", b"0", b"1", b"2", b"b", b"R", b"\x81", b"p5\n", b"."),
]


@given(st.lists(st.one_of(st.sampled_from(OPCODES), st.integers(0, 12)), max_size=24), st.integers(0, 10))
@example([9, b"X\2\0\0\0ab", b"K\7"], 3)
def test_opcodes_in_any_order_with_frames_of_any_length_are_read_as_their_handlers_read_them(parts, padding):
    framed = [part if isinstance(part, bytes) else b"\x95" + struct.pack("<Q", part) for part in parts]
    assert_alike(b"\x80\4" + b"".join(framed) + b"." + b"N" * padding)
