"""A tensor that is read in one step is what its opcodes, one by one, make of it."""

import struct

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from same import graph

from ckptool.disk.files import Buffer
from ckptool.errors import Malformed
from ckptool.formats._torch import TorchReader
from ckptool.formats.pickle.reader import NeedsMore, Reader
from ckptool.reports.scanning.following import Recorder
from ckptool.tensor import Storage


class OneByOne(TorchReader):
    def _read_phrase(self, at):
        return at


class Torch:
    """The opcodes of torch's pickler for a dict of tensors, where FIRST values are in the memo already.

    With GAP, that many numbers of the memo are left out before the first tensor. WRONG gives other numbers for some.
    BARE puts what all tensors share into the memo and nothing else, as ckptool does.
    """

    def __init__(self, first=0, *, view=False, protocol=2, wrong=(), gap=0, bare=False):
        self.bare, self.sharing = bare, False
        self.first, self.view, self.protocol, self.wrong, self.gap = first, view, protocol, dict(wrong), gap
        self.known = {}
        self.used = 0

    def put(self):
        if self.bare and not self.sharing:
            return b""
        index = self.wrong.get(self.used, self.first + self.used + self.gap * (self.used > 0))
        self.used += 1
        return self.put_at(index)

    def put_at(self, index):
        return b"q" + bytes([index]) if index < 256 else b"r" + struct.pack("<I", index)

    def once(self, name, opcodes):
        if name in self.known:
            return (
                self.known[name].replace(b"q", b"h", 1) if self.known[name][:1] == b"q" else b"j" + self.known[name][1:]
            )
        self.sharing = True
        put = self.known[name] = self.put()
        self.sharing = False
        return opcodes + put

    def text(self, text):
        return b"X" + struct.pack("<I", len(text)) + text.encode() + self.put()

    def integer(self, n):
        if 0 <= n < 1 << 16:
            return b"K" + bytes([n]) if n < 256 else b"M" + struct.pack("<H", n)
        return b"J" + struct.pack("<i", n) if -1 << 31 <= n < 1 << 31 else b"\x8a\x08" + struct.pack("<q", n)

    def integers(self, numbers):
        if not numbers:
            return b")"
        body = b"".join(map(self.integer, numbers))
        short = len(numbers) <= 3
        return (body + bytes([0x84 + len(numbers)]) if short else b"(" + body + b"t") + self.put()

    def tensor(self, key, kind, location, numel, offset, shape, stride, requires_grad):
        made = self.once("rebuild", b"ctorch._utils\n_rebuild_tensor_v2\n") + b"(("
        made += self.once("storage", b"X\7\0\0\0storage") + self.once(kind, f"ctorch\n{kind}\n".encode())
        made += self.text(key) + self.once(location, b"X" + struct.pack("<I", len(location)) + location.encode())
        made += self.integer(numel) + (b"N" if self.view else b"") + b"t" + self.put() + b"Q" + self.integer(offset)
        made += self.integers(shape) + self.integers(stride) + (b"\x88" if requires_grad else b"\x89")
        made += self.once("ordered", b"ccollections\nOrderedDict\n") + b")R" + self.put() + b"t" + self.put() + b"R"
        return made + self.put()

    def pickled(self, tensors, after=b""):
        already = b"".join(map(self.put_at, range(self.first)))
        made = b"\x80" + bytes([self.protocol]) + b"}" + already + self.put() + b"("
        for number, tensor in enumerate(tensors):
            made += self.text(f"layers.{number}.weight") + self.tensor(*tensor)
        return made + after + b"u."


def storage(key, form):
    if key == "990":
        raise Malformed("the storage is missing")
    return Storage(Buffer(bytes(form.nbytes)), form.location, form.dtype, key)


def told(reader_class, data, *, complete=True):
    """All that a reader can be asked about a pickle."""
    reader = reader_class(data, "x", storage, complete=complete)
    try:
        tree = graph(reader.load(), sharing_of_tuples=False)
    except Malformed as error:
        return str(error)
    except Exception as error:
        return type(error)
    named = [str(one) for one in reader.named]
    return tree, reader.position, named, list(reader.storages), reader.discarded, len(reader.made)


class FollowedOneByOne(Recorder):
    def _read_phrase(self, at):
        return at


def followed(recorder, data):
    """All that a scanner can ask about a pickle."""
    try:
        value, failure = recorder.go_on(data, complete=True), None
    except Malformed as error:
        value, failure = None, str(error)
    done = graph((value, tuple(recorder.made)), sharing_of_tuples=False)
    named = [str(one) for one in recorder.named]
    return done, failure, recorder.position, named, recorder.storages, recorder.contradiction


def assert_read_alike(data, *, complete=True):
    assert told(TorchReader, data, complete=complete) == told(OneByOne, data, complete=complete)
    readers = [kind(b"", complete=True, total=len(data)) for kind in (Recorder, FollowedOneByOne)]
    assert followed(readers[0], data) == followed(readers[1], data)


SIZES = st.lists(st.one_of(st.integers(0, 4), st.sampled_from([300, 70_000, -1, 1 << 33])), max_size=5)
TENSORS = st.tuples(
    st.sampled_from(["0", "1", "990", "4242424242", "x", "é"]),
    st.sampled_from(["FloatStorage", "LongStorage", "UntypedStorage", "NoStorage"]),
    st.sampled_from(["cpu", "cuda:1"]),
    st.sampled_from([0, 4, 24, 1000, -1]),
    st.sampled_from([0, 0, 0, 1, 999, -1]),
    SIZES,
    SIZES,
    st.booleans(),
)
PLAIN = ("100", "FloatStorage", "cpu", 24, 0, [2, 3, 4], [12, 4, 1], False)
FITTING = st.integers(0, 300).map(lambda n: (str(n), "FloatStorage", "cpu", 24, 0, [2, 3, 4], [12, 4, 1], False))


@given(
    st.lists(FITTING, max_size=4),
    st.lists(TENSORS, max_size=3),
    st.sampled_from([0, 200, 240, 255, 256, 256, 70_000]),
    st.sampled_from([0, 0, 0, 1, 70_000]),
    st.booleans(),
    st.sampled_from([2, 2, 3, 4]),
    st.booleans(),
)
def test_tensors_are_read_as_their_opcodes_say(fitting, odd, first, gap, view, protocol, bare):
    data = Torch(first, view=view, protocol=protocol, gap=gap, bare=bare).pickled([*fitting, *odd])
    assert_read_alike(data)


@given(
    st.lists(FITTING, min_size=2, max_size=4),
    st.sampled_from([0, 240, 256, 256]),
    st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 255)), max_size=2),
    st.integers(0, 1 << 16),
    st.booleans(),
    st.booleans(),
)
@example([PLAIN, PLAIN, ("0", *PLAIN[1:]), PLAIN], 256, [(7154, 139)], 200, False, False)  # the key is an integer
@example(
    [("10", *PLAIN[1:]), PLAIN, PLAIN, PLAIN], 0, [], 14783, False, True
)  # the data end before the length of a key
def test_damaged_tensors_are_read_or_refused_as_their_opcodes_say(fitting, first, changes, cut, complete, bare):
    data = bytearray(Torch(first, bare=bare).pickled(fitting))
    begin = data.index(b"X")  # behind what only fills the memo
    for place, value in changes:
        data[begin + place % (len(data) - begin)] = value
    data = bytes(data[: begin + cut % (len(data) - begin) * 4])
    assert_read_alike(data, complete=complete)


@given(
    st.lists(FITTING, min_size=2, max_size=4),
    st.sampled_from([0, 250, 300, 300]),
    st.dictionaries(st.integers(0, 40), st.integers(0, 40), max_size=4),
)
def test_what_a_tensor_puts_over_what_it_gets_is_what_it_gets(fitting, first, wrong):
    wrong = {place: first + number for place, number in wrong.items()}
    data = Torch(first, wrong=wrong).pickled(fitting)
    assert_read_alike(data)


@pytest.mark.parametrize("first", [0, 300])
@pytest.mark.parametrize("third", [False, True])
@pytest.mark.parametrize(("place", "number"), [(15, 6), (15, 10), (16, 10), (17, 10), (18, 10), (18, 2), (18, 4)])
def test_a_tensor_that_covers_what_it_or_the_next_one_gets_is_read_by_its_opcodes(place, number, third, first):
    tensors = [(key, "FloatStorage", "cpu", 24, 0, [2, 3], [3, 1], False) for key in "01234"[: 3 + 2 * third]]
    data = Torch(first, wrong={place + 8 * third: first + number}).pickled(tensors)
    assert_read_alike(data)


def test_a_storage_that_is_not_there_is_named_also_after_other_tensors():
    tensors = [(key, "FloatStorage", "cpu", 24, 0, [2, 3], [3, 1], False) for key in ("0", "1", "990")]
    assert "the storage is missing" in told(TorchReader, Torch().pickled(tensors))


def test_a_text_of_the_memo_between_bare_tensors_is_read_by_its_opcodes():
    torch = Torch(bare=True)
    tensors = [(str(n), "FloatStorage", "cpu", 24, 0, [2, 3], [3, 1], False) for n in range(6)]
    data = torch.pickled(tensors)
    put, got = b"layers.2.weight" + b"q\7", b"h\7"
    again = data.replace(b"layers.2.weight", put).replace(b"X\x0f\0\0\0layers.4.weight", got)
    assert len(told(TorchReader, again)[3]) == 6
    assert_read_alike(again)


@pytest.mark.parametrize("first", [0, 250, 256, 300])
def test_all_that_a_tensor_puts_into_the_memo_can_be_taken_from_it(first):
    torch = Torch(first)
    data = torch.pickled([(str(n), "FloatStorage", "cpu", 24, 0, [2, 3], [3, 1], False) for n in range(3)])
    for index in range(first + torch.used):
        again = data[:-2] + b"X\1\0\0\0aj" + struct.pack("<I", index) + b"u."
        assert_read_alike(again)


def test_tensors_as_torch_and_ckptool_write_them_take_a_step_each():
    calls = []

    class Counting(TorchReader):
        pass

    def counting(code, handler):
        return lambda reader: (calls.append(code), handler(reader))[1]

    Counting.opcodes = {code: counting(code, handler) for code, handler in Reader.opcodes.items()}
    Followed = type("Followed", (Recorder,), {"opcodes": {c: counting(c, h) for c, h in Recorder.opcodes.items()}})
    tensors = [
        (str(n), "FloatStorage", "cpu", 24, 0, [2, 3, 4][: n % 4], [1, 1, 1][: n % 4], n % 2) for n in range(500)
    ]
    reader = Counting(Torch().pickled(tensors), "x", storage)
    assert len(reader.load().entries) == 500
    assert len(calls) < 350  # 8 for each of the first 36, whose numbers in the memo are of one byte
    assert len(reader.storages) == 500
    calls.clear()
    assert len(Counting(Torch(256).pickled(tensors), "x", storage).load().entries) == 500
    assert len(calls) < 30
    calls.clear()
    assert len(Counting(Torch(bare=True).pickled(tensors), "x", storage).load().entries) == 500
    assert len(calls) < 20
    calls.clear()
    data = Torch(256).pickled(tensors)
    assert len(Followed(data, complete=True, total=len(data)).load().entries) == 500
    assert len(calls) < 30


def test_tensors_with_one_storage_of_two_classes_are_read_as_their_opcodes_say():
    kinds = ["FloatStorage", "IntStorage", "DoubleStorage", "FloatStorage", "IntStorage"]
    sizes = {"FloatStorage": 4, "IntStorage": 4, "DoubleStorage": 2}
    tensors = [("7", kind, "cpu", sizes[kind], 0, [2], [1], False) for kind in kinds]
    data = Torch(256).pickled([("6", *tensors[0][1:]), ("5", *tensors[2][1:]), ("4", *tensors[1][1:]), *tensors])
    assert_read_alike(data)


def test_a_key_of_another_length_than_it_says_makes_no_storage():
    data = Torch(256).pickled([(key, "FloatStorage", "cpu", 24, 0, [2], [1], False) for key in ("100", "200", "300")])
    data = data.replace(b"X\3\0\0\x00300", b"X\2\0\0\x00300")
    assert_read_alike(data)


@given(
    st.lists(FITTING, min_size=2, max_size=4),
    st.sampled_from([0, 256]),
    st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 255)), max_size=1),
    st.lists(st.integers(1, 1500), max_size=3),
)
def test_a_pickle_that_is_read_in_parts_is_followed_as_at_once(fitting, first, changes, sizes):
    after = b"X\1\0\0\0n\x95\7\0\0\0\0\0\0\0cm\nf\n)RX\1\0\0\0mI12\nX\1\0\0\0ocos\nsystem\n(S'a'\ntR"
    data = bytearray(Torch(first).pickled(fitting, after=after))
    for place, value in changes:
        data[place % len(data)] = value
    data = bytes(data)
    at_once = Recorder(data, complete=True, total=len(data))
    in_parts = Recorder(b"", complete=False, total=len(data))
    for size in sorted(sizes):
        try:
            in_parts.go_on(data[:size], complete=size >= len(data))
        except NeedsMore:
            continue
        except Malformed:
            pass
        break  # at its end, or at what nobody reads beyond
    else:
        assert followed(in_parts, data) == followed(at_once, data)
