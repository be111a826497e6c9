"""`ckptool.salvage` of files without checksums: what bytes that are missing, too many or changed make of them.

A legacy file has the number of elements before each storage, which shows that bytes moved. A safetensors file has
nothing between its tensors.
"""

import struct

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from strategies import state_dict_of, tensor_of

import ckptool

MISSING, ADDED, FLIPPED, COPIED = "missing", "added", "flipped", "copied"


def checkpoint(arrays):
    """A state dict of arrays, each over a storage of its own."""
    return state_dict_of(
        {f"w{n}": tensor_of(array.dtype.name, array.shape, array.tobytes()) for n, array in enumerate(arrays)}
    )


def legacy(folder, arrays):
    """(path, where each storage begins with its count): a legacy file."""
    path = folder / "in.pth"
    ckptool.save(checkpoint(arrays), path, format="torch-legacy", overwrite=True)
    tensors = ckptool.open(path).state_dict().tensors
    places = [tensors[f"w{n}"].storage.source.offset - 8 for n in range(len(arrays))]
    assert path.read_bytes()[places[0] : places[0] + 8] == struct.pack("<q", arrays[0].size)
    return path, places


def damaged(data, edits):
    """DATA after EDITS (kind, where, length), which count in the data as they were."""
    out = bytearray(data)
    for kind, at, length in sorted(edits, key=lambda edit: -edit[1]):
        if kind == MISSING:
            del out[at : at + length]
        elif kind == ADDED:
            out[at:at] = bytes((at * 7 + n * 31 + 1) & 255 for n in range(length))
        elif kind == COPIED:  # as a download that went on at the wrong place
            out[at:at] = out[max(at - length, 0) : at]
        elif at < len(out):
            out[at] ^= 1 + length % 255
    return bytes(out)


@st.composite
def contents(draw):
    """Arrays of few sizes, as a model has them: noise and zeros. (An integer could look like a count.)"""
    sizes = draw(st.lists(st.sampled_from([0, 1, 2, 5, 16]), min_size=1, max_size=3))
    arrays = []
    for n in range(draw(st.integers(1, 8))):
        size = sizes[n % len(sizes)]
        noise = np.random.default_rng(n).standard_normal(size).astype(draw(st.sampled_from(["float32", "float64"])))
        arrays.append(noise * draw(st.booleans()))
    return arrays


EDITS = st.tuples(st.sampled_from([MISSING, ADDED, FLIPPED, COPIED]), st.integers(0, 1 << 16), st.integers(1, 300))


def kept_and_changed(folder, arrays, edits):
    """Names of tensors that `salvage` keeps though their values are other ones, after EDITS behind the pickles."""
    path, places = legacy(folder, arrays)
    data = path.read_bytes()
    room = len(data) - places[0]
    edits = [(kind, places[0] + at % room, length) for kind, at, length in edits]
    made = damaged(data, edits)
    assume(made != data)
    path.write_bytes(made)
    try:
        found = ckptool.salvage(path)
    except ckptool.CheckpointError:
        return []
    ends = [*places[1:], len(data)]
    flipped = {
        f"w{n}"
        for kind, at, _ in edits
        for n, (begin, end) in enumerate(zip(places, ends, strict=True))
        if kind == FLIPPED and begin + 8 <= at < end
    }
    after = found.checkpoint.state_dict().tensors if found.kept else {}
    lost = {name for name, _ in found.lost}
    assert after.keys() | lost == {f"w{n}" for n in range(len(arrays))}
    return [
        name
        for name, tensor in after.items()
        if name not in flipped and tensor.numpy().tobytes() != arrays[int(name[1:])].tobytes()
    ]


@given(contents(), EDITS, st.lists(EDITS.map(lambda edit: (FLIPPED, *edit[1:])), max_size=2))
@example(
    [np.full(5, n, "float32") for n in range(6)], (MISSING, 30, 28), []
)  # just as long as a storage with its count
@example([np.full(5, n, "float32") for n in range(6)], (COPIED, 70, 28), [])
@example([np.full(4, n, "float32") for n in range(4)], (MISSING, 24, 64), [])
def test_no_tensor_of_a_legacy_file_is_kept_that_bytes_moved_in(tmp_path_factory, arrays, edit, flips):
    assert kept_and_changed(tmp_path_factory.mktemp("legacy"), arrays, [edit, *flips]) == []


def test_the_storage_before_a_count_that_moved_is_given_up(tmp_path):
    path, places = legacy(tmp_path, [np.full(100, n, "float32") for n in range(4)])
    data = path.read_bytes()
    path.write_bytes(damaged(data, [(MISSING, places[1] + 50, 64)]))
    found = ckptool.salvage(path)
    assert [name for name, _ in found.lost] == ["w1", "w2", "w3"]
    assert found.lost[0][1] == "64 bytes are missing in it or before it"
    assert found.wrong == ("64 bytes of its tensors are missing",)
    path.write_bytes(damaged(data, [(ADDED, places[3] + 50, 64)]))
    found = ckptool.salvage(path)
    assert found.lost == (("w3", "64 bytes are too many in it or before it"),)


def test_where_the_length_is_right_only_what_is_beside_a_wrong_count_is_given_up(tmp_path):
    path, places = legacy(tmp_path, [np.full(100, n, "float32") for n in range(5)])
    path.write_bytes(damaged(path.read_bytes(), [(FLIPPED, places[2], 1)]))
    found = ckptool.salvage(path)
    assert [name for name, _ in found.lost] == ["w1", "w2"]
    assert found.lost[0][1] == "the count behind it is wrong, so bytes of it may have moved"


@pytest.mark.parametrize(
    ("format_", "words"),
    [
        ("torch-legacy", "legacy files have no checksums: bytes that changed within a tensor do not show"),
        ("safetensors", "nothing in a safetensors file could tell whether bytes in the middle are missing or changed"),
    ],
)
def test_what_nothing_could_show_is_said(tmp_path, format_, words):
    path = tmp_path / "in"
    ckptool.save(checkpoint([np.arange(50.0), np.arange(9.0)]), path, format=format_)
    path.write_bytes(path.read_bytes()[:-8])
    found = ckptool.salvage(path)
    assert found.unseen == (words,)
    plan = ckptool.plan(found.checkpoint, tmp_path / "out", allow_loss=True)
    assert plan.steps[-1] == f"note: {words}"


def test_of_a_zip_archive_without_checksums_it_is_said_how_many(torch, tmp_path):
    before = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(False)
    try:
        torch.save({"a": torch.ones(3), "b": torch.ones(4)}, tmp_path / "in.pth")
    finally:
        torch.serialization.set_crc32_options(before)
    (tmp_path / "in.pth").write_bytes((tmp_path / "in.pth").read_bytes()[:-30])
    found = ckptool.salvage(tmp_path / "in.pth")
    assert found.unseen == ("the checksums of 2 storages were not recorded: changed bytes do not show",)


def test_a_permuted_tensor_that_is_cut_is_lost(tmp_path):
    array = np.arange(600.0).reshape(20, 30)
    first, second = tensor_of("float64", (20, 30), array.tobytes()), tensor_of("float64", (30, 20), array.tobytes())
    turned = ckptool.LazyTensor(second.storage, second.dtype, (20, 30), (1, 20))
    path = tmp_path / "in.safetensors"
    ckptool.save(state_dict_of({"a": first, "b": turned}), path)
    assert ckptool.salvage(path).wrong == ()
    path.write_bytes(path.read_bytes()[:-8])
    found = ckptool.salvage(path)
    assert [name for name, _ in found.lost] == ["b"]
