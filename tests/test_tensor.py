import math
import random
import struct
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import ALL, strided, tensor_of

import ckptool
from ckptool.disk.files import Buffer, File, FileRange
from ckptool.dtypes import BY_NAME
from ckptool.errors import CannotCarry, Malformed
from ckptool.tensor import (
    Gathered,
    LazyTensor,
    Storage,
    TensorColumn,
    bytes_of,
    contiguous_stride,
    is_permutation,
    looks_of,
    permuted,
    share_nothing,
    storage_kinds_of,
    stored_and_used,
    untyped,
    views_of,
)


def int32_tensor(shape, stride, offset, numel):
    data = np.arange(numel, dtype="<i4").tobytes()
    return LazyTensor(Storage(Buffer(data)), BY_NAME["int32"], shape, stride, offset)


def expected_values(tensor):
    """The values of an int32 tensor over 0, 1, 2, …, as numpy's own strided view gives them."""
    base = np.frombuffer(bytes(tensor.storage.source.data), "<i4")[tensor.offset :]
    return np.lib.stride_tricks.as_strided(base, tensor.shape, [4 * step for step in tensor.stride])


@st.composite
def boxes(draw):
    numel = draw(st.integers(1, 400))
    shape, stride, offset = draw(strided(numel))
    return int32_tensor(shape, stride, offset, numel)


# --------------------------------------------------------------------------------------------- gathering values


@given(tensor=boxes())
def test_gathered_values_are_those_of_numpy(tensor):
    assert bytes(Gathered(tensor).read(0, tensor.nbytes)) == expected_values(tensor).tobytes()
    assert np.array_equal(tensor.numpy(), expected_values(tensor))


@given(tensor=boxes(), data=st.data())
def test_any_part_of_the_values_can_be_read(tensor, data):
    whole = expected_values(tensor).tobytes()
    start = data.draw(st.integers(0, len(whole)))
    length = data.draw(st.integers(0, len(whole) - start))
    assert bytes(Gathered(tensor).read(start, length)) == whole[start : start + length]
    source = tensor.source()
    assert bytes(source.read(start, length)) == whole[start : start + length]


@given(tensor=boxes())
def test_the_chunks_are_all_values_in_order(tensor):
    source = tensor.source()
    assert b"".join(bytes(chunk) for chunk in source.chunks()) == expected_values(tensor).tobytes()
    assert source.length == tensor.nbytes


def test_chunks_of_a_large_transposed_tensor_are_bounded_and_right(monkeypatch):
    import ckptool.tensor

    monkeypatch.setattr(ckptool.tensor, "_GATHERED", 1000)
    tensor = int32_tensor((37, 41), (1, 37), 0, 37 * 41)
    chunks = [bytes(chunk) for chunk in tensor.source().chunks()]
    assert max(map(len, chunks)) == 1000
    assert b"".join(chunks) == expected_values(tensor).tobytes()


def test_a_few_values_of_a_huge_storage_are_read_without_what_lies_between(tmp_path, bytes_read):
    with open(tmp_path / "sparse", "wb") as file:
        file.truncate(1 << 30)
        file.seek((1 << 29) - 4)
        file.write(b"\x07\0\0\0")
    file = File(tmp_path / "sparse")
    kind = BY_NAME["int32"]
    tensor = LazyTensor(
        Storage(FileRange(file, 0, 1 << 30)), kind, (7, 2, 3), (1 << 25, 1 << 20, 1), (1 << 27) - 1 - (3 << 25)
    )
    assert tensor.numpy()[3, 0, 0] == 7
    assert tensor.numpy().sum() == 7
    assert sum(bytes_read) < 1 << 20


def test_a_contiguous_part_is_a_range_of_the_same_file(tmp_path):
    (tmp_path / "x").write_bytes(bytes(range(100)))
    file = File(tmp_path / "x")
    storage = Storage(FileRange(file, 20, 40))
    part = LazyTensor(storage, BY_NAME["int16"], (3, 2), (2, 1), 4)
    assert part.source() == FileRange(file, 28, 12)
    assert LazyTensor(storage, BY_NAME["int16"], (20,), (1,)).source() is storage.source
    assert LazyTensor(storage, BY_NAME["int16"], (0,), (1,), 20).source().length == 0


@pytest.mark.parametrize("dtype", [d for d in ALL if d.numpy], ids=str)
def test_numpy_gives_every_type_that_it_has(dtype):
    array = tensor_of(dtype, (2, 3)).numpy()
    assert array.shape == (2, 3)
    assert array.dtype.name == dtype.numpy
    assert array.dtype.itemsize == dtype.itemsize
    assert array.tobytes() == tensor_of(dtype, (2, 3)).storage.source.data
    array.reshape(-1)[0] = array.reshape(-1)[1]  # it is the caller's own


@pytest.mark.parametrize("dtype", [d for d in ALL if not d.numpy], ids=str)
def test_numpy_refuses_types_that_it_does_not_have(dtype):
    with pytest.raises(CannotCarry, match="numpy has no type"):
        tensor_of(dtype, (2,)).numpy()


def test_a_tensor_of_a_few_bytes_is_not_expanded_to_terabytes():
    tensor = LazyTensor(Storage(Buffer(bytes(4))), BY_NAME["float32"], (1 << 20, 1 << 20), (0, 0))
    tensor.check()
    with pytest.raises(CannotCarry, match="expands 4 stored bytes"):
        tensor.source()


def test_a_tensor_expanded_within_reason_is_gathered():
    tensor = LazyTensor(Storage(Buffer(b"\1\0\0\0")), BY_NAME["int32"], (1000, 1000), (0, 0))
    assert tensor.numpy().sum() == 1_000_000


def test_values_are_gathered_by_several_threads_at_once(tmp_path):
    (tmp_path / "x").write_bytes(np.arange(10_000, dtype="<i4").tobytes())
    tensor = LazyTensor(Storage(FileRange(File(tmp_path / "x"), 0, 40_000)), BY_NAME["int32"], (100, 100), (1, 100))
    expected = np.arange(10_000).reshape(100, 100).T
    wrong = []

    def read():
        chance = random.Random(threading.get_ident())
        for _ in range(50):
            start = chance.randrange(10_000)
            got = np.frombuffer(bytes(tensor.source().read(start * 4, 4)), "<i4")
            if got[0] != expected.reshape(-1)[start]:
                wrong.append(start)

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


# -------------------------------------------------------------------------------------- conjugates and negatives

FLIPPED = ["float16", "float32", "float64", "bfloat16", "complex64", "complex128"]


@pytest.mark.parametrize("flags", [{"neg": True}, {"conj": True}, {"conj": True, "neg": True}], ids=str)
@pytest.mark.parametrize("name", FLIPPED)
def test_conjugate_and_negative_views_have_the_values_that_torch_resolves(torch, name, flags):
    dtype = BY_NAME[name]
    if "conj" in flags and not dtype.is_complex:
        pytest.skip("only complex numbers have a conjugate")
    theirs = torch.arange(1, 25).to(getattr(torch, name))  # no zero: torch does not agree with itself on its sign
    if dtype.is_complex:
        theirs = theirs - 0.5j
    tensor = tensor_of(dtype, (24,), bytes(theirs.untyped_storage().tolist())).changed(**flags)
    view = torch._conj(theirs) if tensor.conj else theirs
    view = torch._neg_view(view) if tensor.neg else view
    resolved = torch.empty(view.shape, dtype=view.dtype).copy_(view.resolve_conj().resolve_neg())
    assert bytes(tensor.source().read(0, tensor.nbytes)) == bytes(resolved.untyped_storage().tolist())


def test_parts_of_a_strided_conjugate_are_read_right():
    data = struct.pack("<12f", *range(1, 13))
    tensor = LazyTensor(Storage(Buffer(data)), BY_NAME["complex64"], (2, 3), (1, 2), conj=True)
    expected = np.frombuffer(data, "<c8").reshape(3, 2).T.conj()
    assert np.array_equal(tensor.numpy(), expected)
    for start in range(0, 48, 4):
        assert bytes(tensor.source().read(start, 4)) == expected.tobytes()[start : start + 4]


def test_a_negative_view_of_integers_is_negated():
    plain = tensor_of("int32")
    assert np.array_equal(plain.changed(neg=True).numpy(), -plain.numpy())


def test_a_negative_view_of_booleans_is_refused():
    with pytest.raises(CannotCarry, match="lazily negated tensor of bool"):
        tensor_of("bool").changed(neg=True).numpy()


# ------------------------------------------------------------------------------------------------------- bounds


@st.composite
def claims(draw):
    """What a file may say of a tensor over 40 bytes, true or not."""
    rank = draw(st.integers(0, 4))
    shape = tuple(draw(st.lists(st.integers(0, 6), min_size=rank, max_size=rank)))
    stride = tuple(draw(st.lists(st.integers(0, 12), min_size=rank, max_size=rank)))
    return shape, stride, draw(st.integers(0, 12))


@given(claim=claims())
def test_a_view_is_refused_just_when_one_of_its_elements_is_outside(claim):
    shape, stride, offset = claim
    tensor = LazyTensor(Storage(Buffer(bytes(40))), BY_NAME["float32"], shape, stride, offset)
    indices = np.indices(shape).reshape(len(shape), math.prod(shape))
    reached = offset + (np.array(stride, dtype=int) @ indices if shape else np.zeros(1, dtype=int))
    if reached.size and reached.max() >= 10:
        with pytest.raises(Malformed, match="reaches to byte"):
            tensor.check()
    else:
        tensor.check()
        assert tensor.numpy().shape == shape


@given(claim=claims())
def test_a_view_that_torch_refuses_is_refused(torch, claim):
    shape, stride, offset = claim
    storage = torch.UntypedStorage(40)
    tensor = LazyTensor(Storage(Buffer(bytes(40))), BY_NAME["float32"], shape, stride, offset)
    try:
        torch.empty(0).set_(storage, offset, shape, stride)
    except RuntimeError:
        with pytest.raises(Malformed):
            tensor.check()
    if storage.nbytes() != 40:  # torch made the storage larger instead of refusing
        with pytest.raises(Malformed):
            tensor.check()


@pytest.mark.parametrize(
    ("shape", "stride", "offset", "problem"),
    [
        ((2,), (1, 1), 0, "1 sizes but 2 strides"),
        ((-1,), (1,), 0, "negative"),
        ((2,), (-1,), 1, "negative"),
        ((2,), (1,), -1, "negative"),
        ((1,) * 65, (1,) * 65, 0, "dimensions"),
        ((1 << 32, 1 << 32), (0, 0), 0, "more elements"),
        ((0,), (1,), 1 << 63, "more elements"),
        ((2,), (1 << 62,), 0, "reaches to byte"),
        ((1,), (1,), 1 << 62, "reaches to byte"),
    ],
)
def test_a_view_that_cannot_be_is_refused_with_its_reason(shape, stride, offset, problem):
    with pytest.raises(Malformed, match=problem) as caught:
        LazyTensor(Storage(Buffer(bytes(40)), key="7"), BY_NAME["float32"], shape, stride, offset).check("x.pt", "w")
    assert str(caught.value).startswith("x.pt: a tensor w over storage '7'")


# ------------------------------------------------------------------------------------------------------ strides


@given(shape=st.lists(st.integers(0, 4), max_size=5).map(tuple))
def test_contiguous_strides_are_those_of_torch(torch, shape):
    assert contiguous_stride(shape) == torch.empty(shape).stride()
    assert tensor_of("float32", shape).is_contiguous == torch.empty(shape).is_contiguous()


@given(claim=claims())
def test_contiguity_is_as_torch_sees_it(torch, claim):
    shape, stride, _ = claim
    theirs = torch.empty(10_000).as_strided(shape, stride)
    assert LazyTensor(Storage(Buffer(b"")), BY_NAME["float32"], shape, stride).is_contiguous == theirs.is_contiguous()


@st.composite
def permutations(draw):
    shape = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    order = draw(st.permutations(range(len(shape))))
    base = contiguous_stride(tuple(shape))
    return tuple(shape[d] for d in order), tuple(base[d] for d in order)


@given(case=permutations())
def test_a_permuted_tensor_has_the_same_values_in_another_layout(case):
    shape, stride = case
    numel = math.prod(shape)
    assert is_permutation(shape, stride)
    values = int32_tensor(shape, contiguous_stride(shape), 0, numel)
    laid_out = permuted(values, stride)
    assert laid_out.stride == stride
    assert laid_out.storage.nbytes == values.nbytes
    assert np.array_equal(laid_out.numpy(), values.numpy())
    raw = np.frombuffer(bytes(laid_out.storage.source.read(0, numel * 4)), "<i4")
    assert np.array_equal(np.lib.stride_tricks.as_strided(raw, shape, [4 * s for s in stride]), values.numpy())


@pytest.mark.parametrize(
    ("shape", "stride", "expected"),
    [
        ((2, 3), (3, 1), True),
        ((2, 3), (1, 2), True),
        ((2, 3), (0, 1), False),
        ((2, 3), (6, 2), False),
        ((1, 3), (7, 1), True),
        ((2, 2), (1, 1), False),
        ((), (), True),
    ],
)
def test_a_permutation_reorders_dimensions_without_gaps(shape, stride, expected):
    assert is_permutation(shape, stride) == expected


# ----------------------------------------------------------------------------------------------------- the rest


def test_storages_are_compared_by_identity_and_tensors_by_what_they_view():
    storage = Storage(Buffer(bytes(16)))
    assert storage != Storage(Buffer(bytes(16)))
    tensor = LazyTensor(storage, BY_NAME["float32"], (4,), (1,))
    same = LazyTensor(storage, BY_NAME["float32"], (4,), (1,))
    assert tensor != same
    assert tensor.identity == same.identity
    others = [
        tensor.changed(dtype=BY_NAME["int32"]),
        tensor.changed(neg=True),
        tensor.changed(offset=1, shape=(3,)),
        tensor.changed(storage=Storage(Buffer(bytes(16)))),
    ]
    assert tensor.identity not in [other.identity for other in others]


def test_storages_that_a_note_ties_have_one_identity():
    tie = object()
    one, other = Storage(Buffer(b"a"), tie=tie), Storage(Buffer(b"a"), tie=tie)
    assert one.identity == other.identity != Storage(Buffer(b"a")).identity


@pytest.mark.parametrize(
    ("dtype", "class_name", "numel"),
    [("float32", "FloatStorage", 4), ("float8_e5m2", "UntypedStorage", 16), (None, "UntypedStorage", 16)],
)
def test_a_storage_is_named_and_counted_as_torch_does(dtype, class_name, numel):
    storage = Storage(Buffer(bytes(16)), dtype=dtype and BY_NAME[dtype])
    if storage.dtype and storage.dtype.storage is None:
        storage = storage.changed(dtype=None)
    assert (storage.class_name, storage.numel) == (class_name, numel)


def test_bytes_of_a_storage_are_a_tensor_of_uint8():
    tensor = bytes_of(untyped(Buffer(b"\1\2\3"), "cuda:0", "k"))
    assert (tensor.dtype.name, tensor.shape, tensor.location) == ("uint8", (3,), "cuda:0")
    assert tensor.fills_storage
    assert tensor.numpy().tolist() == [1, 2, 3]


def test_what_a_tensor_shows_of_itself_is_short():
    tensor = tensor_of("float32", (2, 3), location="cuda:1")
    assert repr(tensor) == "LazyTensor(float32, [2, 3], cuda:1)"
    assert repr(tensor.storage.changed(key="7")) == "Storage('7', 24 bytes, cuda:1)"


def tells_what_its_tensors_do(column):
    said = list(looks_of(column)), list(storage_kinds_of(column)), share_nothing(column), stored_and_used(column)
    made = list(column)
    assert said == (list(looks_of(made)), list(storage_kinds_of(made)), share_nothing(made), stored_and_used(made))
    assert views_of(column) == views_of(made)
    assert [column[at] for at in range(len(column))] == made == column[:]
    assert list(reversed(column)) == made[::-1]
    return made


KINDS = st.lists(st.tuples(st.sampled_from(["float32", "int8"]), st.lists(st.integers(0, 3), max_size=2)), min_size=1)


@given(KINDS)
def test_a_column_tells_of_its_tensors_what_they_tell_themselves(tmp_path_factory, kinds):
    path = tmp_path_factory.mktemp("column") / "a.safetensors"
    arrays = {f"layers.{at}.w": np.zeros(shape, dtype) for at, (dtype, shape) in enumerate(kinds)}
    ckptool.save(arrays, path)
    column = ckptool.open(path).state_dict().column
    assert isinstance(column, TensorColumn)
    made = tells_what_its_tensors_do(column)
    assert [tensor.shape for tensor in made] == [array.shape for array in arrays.values()]


@given(KINDS, st.booleans(), st.sampled_from(["", "state_dict"]))
def test_so_does_that_of_an_archive_with_many_tensors(tmp_path_factory, kinds, tied, under):
    arrays = {f"layers.{at}.w": np.zeros(kinds[at % len(kinds)][1], kinds[at % len(kinds)][0]) for at in range(80)}
    if tied:
        arrays["head.w"] = arrays["layers.3.w"]
    path = tmp_path_factory.mktemp("column") / "a.pth"
    ckptool.save({under: arrays, "epoch": 3} if under else arrays, path)
    opened = ckptool.open(path).state_dict()
    assert isinstance(opened.column, TensorColumn) != tied
    assert [(key, tensor.shape) for key, tensor in opened.tensors.items()] == [(k, a.shape) for k, a in arrays.items()]
    if not tied:
        tells_what_its_tensors_do(opened.column)


@given(KINDS, st.integers(1, 5))
def test_so_does_that_of_several_shards(tmp_path_factory, kinds, shards):
    folder = tmp_path_factory.mktemp("column")
    arrays = {}
    for shard in range(1, shards + 1):
        here = {f"{shard}.{at}.w": np.full(shape, 7 * shard + at, dtype) for at, (dtype, shape) in enumerate(kinds)}
        ckptool.save(here, folder / f"model-{shard:05d}-of-{shards:05d}.safetensors")
        arrays |= here
    opened = ckptool.open(folder).state_dict()
    made = tells_what_its_tensors_do(opened.column)
    assert isinstance(opened.column, TensorColumn)
    assert [(one.storage.key, one.storage.crc, one.nbytes) for one in made] == [
        (key, None, array.nbytes) for key, array in arrays.items()
    ]
    assert all((opened[key].numpy() == array).all() for key, array in arrays.items())


@pytest.mark.parametrize(
    "change",
    [
        lambda tensors: tensors[::-1],
        lambda tensors: tensors[:-1],
        lambda tensors: [*tensors, tensors[0]],
        lambda tensors: [*tensors[:-1], tensor_of("float32", (2,))],
        lambda tensors: [tensor_of("float32", (2,)) for _ in tensors],
    ],
    ids=["another order", "one less", "one twice", "one of another file", "all of other files"],
)
def test_tensors_that_are_not_those_of_a_table_one_by_one_make_no_column(tmp_path, change):
    ckptool.save({f"{at}.w": np.zeros(2, "float32") for at in range(80)}, tmp_path / "a.pth")
    tensors = list(ckptool.open(tmp_path / "a.pth").state_dict().column)
    assert TensorColumn.holding(tensors) is not None
    assert TensorColumn.holding(change(tensors)) is None


def test_tensors_of_two_tables_make_no_column(tmp_path):
    for name in ("a.pth", "b.pth"):
        ckptool.save({f"{at}.w": np.zeros(2, "float32") for at in range(80)}, tmp_path / name)
    a, b = (list(ckptool.open(tmp_path / name).state_dict().column) for name in ("a.pth", "b.pth"))
    assert TensorColumn.holding([*a[:40], *b[40:]]) is None
