"""Boxes of lazy tensors, read into memory: the values that numpy gives, and the bytes that are needed."""

from math import prod

import pytest
from contract import in_one_folder
from hypothesis import given
from hypothesis import strategies as st

np = pytest.importorskip("numpy")
ml_dtypes = pytest.importorskip("ml_dtypes")

from ckptool.disk.composing import Joined
from ckptool.disk.files import Buffer, File
from ckptool.dtypes import BY_NAME
from ckptool.formats.tiles import Chunk, assemble
from ckptool.passes.casting import Cast
from ckptool.passes.casting import Tally as CastTally
from ckptool.sharding.reading import STEP, read_box
from ckptool.tensor import LazyTensor, Storage, contiguous_stride

FLOAT, HALF = BY_NAME["float32"], BY_NAME["bfloat16"]


class Counting:
    """A source that counts the bytes that are read from it."""

    def __init__(self, data):
        self.data, self.taken, self.most = data, 0, 0

    @property
    def length(self):
        return len(self.data)

    def read(self, offset, length):
        assert 0 <= offset <= offset + length <= len(self.data)
        self.taken, self.most = self.taken + length, max(self.most, length)
        return self.data[offset : offset + length]

    def chunks(self):
        raise AssertionError("the whole was asked for")


def whole(values, source=None):
    """A contiguous lazy tensor of float32 over the bytes of an array."""
    source = Buffer(values.tobytes()) if source is None else source
    return LazyTensor(Storage(source, "cpu", FLOAT), FLOAT, values.shape, contiguous_stride(values.shape))


def raw(values):
    """The same memory as numbers of so many bytes."""
    return np.ndarray(values.shape, f"V{values.itemsize}", values, strides=values.strides)


def box_of(tensor, start, shape, order="C"):
    out = np.full(shape, np.nan, np.float32, order=order)
    read_box(tensor, start, raw(out))
    return out


@st.composite
def boxes(draw):
    """A shape, a box in it, an order of dimensions, and where the whole is cut into tiles."""
    shape = tuple(draw(st.lists(st.integers(1, 6), min_size=0, max_size=4)))
    start = tuple(draw(st.integers(0, n)) for n in shape)
    sizes = tuple(draw(st.integers(0, n - at)) for n, at in zip(shape, start, strict=True))
    turned = tuple(draw(st.permutations(range(len(shape)))))
    cuts = [sorted({0, n, *draw(st.lists(st.integers(0, n), max_size=2))}) for n in shape]
    return shape, start, sizes, turned, cuts


def tiled(values, cuts):
    chunks = []
    for index in np.ndindex(*(len(edges) - 1 for edges in cuts)):
        low = tuple(edges[i] for edges, i in zip(cuts, index, strict=True))
        high = tuple(edges[i + 1] for edges, i in zip(cuts, index, strict=True))
        part = np.ascontiguousarray(values[tuple(slice(a, b) for a, b in zip(low, high, strict=True))])
        chunks.append(Chunk(low, whole(part.reshape([b - a for a, b in zip(low, high, strict=True)]))))
    return whole(values, assemble(values.shape, FLOAT, chunks))


@given(boxes(), st.sampled_from(["bytes", "tiles", "joined", "big-endian", "negative"]), st.sampled_from("CF"))
def test_a_box_has_the_values_that_numpy_gives(case, kind, order):
    shape, start, sizes, turned, cuts = case
    values = np.arange(prod(shape), dtype=np.float32).reshape(shape)
    stored = whole(values)
    if kind == "tiles":
        stored = tiled(values, cuts)
    elif kind == "joined":
        raw = values.tobytes()
        stored = whole(values, Joined((Buffer(raw[:5]), Buffer(raw[5:]))))
    elif kind == "big-endian":
        source = Buffer(values.astype(">f4").tobytes())
        stored = stored.changed(storage=stored.storage.changed(source=source, big_endian=True))
    elif kind == "negative":
        stored = stored.changed(neg=True)
        values = -values
    turned_tensor = stored.changed(
        shape=tuple(shape[d] for d in turned), stride=tuple(stored.stride[d] for d in turned)
    )
    first, count = tuple(start[d] for d in turned), tuple(sizes[d] for d in turned)
    expected = values.transpose(turned)[tuple(slice(a, a + n) for a, n in zip(first, count, strict=True))]
    assert np.array_equal(box_of(turned_tensor, first, count, order=order), expected)


@given(st.data())
def test_a_box_of_any_view_has_its_values(data):
    """Steps of any size, also of 0, in a storage that is larger; the box lies in a larger array."""
    shape = tuple(data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=3)))
    stride = tuple(data.draw(st.integers(0, 40)) for _ in shape)
    stored = np.arange(600, dtype=np.float32)
    offset = data.draw(st.integers(0, 30))
    values = np.lib.stride_tricks.as_strided(stored[offset:], shape, [4 * s for s in stride])
    start = tuple(data.draw(st.integers(0, n - 1)) for n in shape)
    sizes = tuple(data.draw(st.integers(1, n - at)) for n, at in zip(shape, start, strict=True))
    larger = np.zeros([n + 1 for n in sizes], np.float32)
    inner = tuple(slice(1, None) for _ in sizes)
    read_box(whole(stored).changed(shape=shape, stride=stride, offset=offset), start, raw(larger)[inner])
    box = tuple(slice(a, a + n) for a, n in zip(start, sizes, strict=True))
    assert np.array_equal(larger[inner], values[box])
    larger[inner] = 0
    assert not larger.any()


def test_rows_are_read_and_nothing_else():
    values = np.arange(100_000, dtype=np.float32).reshape(100, 1000)
    source = Counting(values.tobytes())
    assert np.array_equal(box_of(whole(values, source), (20, 0), (30, 1000)), values[20:50])
    assert source.taken == 30 * 1000 * 4


def test_of_long_rows_only_the_columns_are_read():
    values = np.arange(400_000, dtype=np.float32).reshape(100, 4000)
    source = Counting(values.tobytes())
    assert np.array_equal(box_of(whole(values, source), (0, 2000), (100, 2000)), values[:, 2000:])
    assert source.taken == 100 * 2000 * 4


def test_columns_of_short_rows_are_read_in_bounded_pieces():
    values = np.arange(6_000_000, dtype=np.float32).reshape(-1, 100)
    source = Counting(values.tobytes())
    assert np.array_equal(box_of(whole(values, source), (0, 30), (len(values), 40)), values[:, 30:70])
    assert source.taken < values.nbytes
    assert source.most <= STEP


def test_a_column_of_a_matrix_of_far_rows_is_read_number_by_number():
    values = np.arange(100_000, dtype=np.float32).reshape(20, 5000)
    source = Counting(values.tobytes())
    assert np.array_equal(box_of(whole(values, source), (0, 3), (20, 1)), values[:, 3:4])
    assert source.taken == 20 * 4


def test_a_transposed_matrix_is_read_by_the_rows_of_the_file():
    values = np.arange(4_000_000, dtype=np.float32).reshape(1000, 4000)
    source = Counting(values.tobytes())
    turned = whole(values, source).changed(shape=(4000, 1000), stride=(1, 4000))
    assert np.array_equal(box_of(turned, (1000, 0), (2000, 1000)), values.T[1000:3000])
    assert source.taken == 2000 * 1000 * 4


def test_only_tiles_that_the_box_meets_are_read():
    values = np.arange(1_600_000, dtype=np.float32).reshape(200, 8000)
    sources = [Counting(np.ascontiguousarray(part).tobytes()) for part in np.split(values, 4, axis=1)]
    tiles = [Chunk((0, 2000 * n), whole(np.empty((200, 2000), np.float32), one)) for n, one in enumerate(sources)]
    tensor = whole(values, assemble(values.shape, FLOAT, tiles))
    assert np.array_equal(box_of(tensor, (0, 2900), (200, 3100)), values[:, 2900:6000])
    assert [one.taken for one in sources] == [0, 200 * 1100 * 4, 200 * 2000 * 4, 0]


def test_a_cast_is_computed_for_the_box_alone():
    values = np.arange(100_000, dtype=np.float32).reshape(100, 1000)
    source = Counting(values.tobytes())
    tally = CastTally()
    cast = whole(values, Cast(source, FLOAT, HALF, tally)).changed(dtype=HALF)
    out = np.empty((10, 1000), np.uint16)
    read_box(cast, (50, 0), raw(out))
    assert np.array_equal(
        (out.astype(np.uint32) << 16).view(np.float32), values[50:60].astype(ml_dtypes.bfloat16).astype("f4")
    )
    assert (source.taken, tally.values) == (10 * 1000 * 4, 10 * 1000)


@pytest.fixture
def file(tmp_path):
    values = np.arange(1_000_000, dtype=np.float32)
    path = tmp_path / "values"
    path.write_bytes(b"head" + values.tobytes())
    return File(path), values


def test_rows_of_a_file_go_to_their_place_directly(file, monkeypatch):
    """Nothing is in memory twice: the system is given the memory of the array."""
    opened, values = file
    monkeypatch.setattr(File, "read", None)
    tensor = whole(values, opened.range(4, values.nbytes)).changed(shape=(1000, 1000), stride=(1000, 1))
    assert np.array_equal(box_of(tensor, (10, 0), (900, 1000)), values.reshape(1000, 1000)[10:910])


@in_one_folder
@given(st.integers(0, 999), st.integers(1, 1000), st.sampled_from("CF"))
def test_a_file_gives_what_memory_gives(file, first, count, order):
    opened, values = file
    tensor = whole(values, opened.range(4, values.nbytes)).changed(shape=(1000, 1000), stride=(1000, 1))
    count = min(count, 1000 - first)
    expected = values.reshape(1000, 1000)[5:95, first : first + count]
    assert np.array_equal(box_of(tensor, (5, first), (90, count), order=order), expected)
