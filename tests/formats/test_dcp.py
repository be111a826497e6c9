import json
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from contract import FolderContract, bytes_at, everything_in, in_one_folder, weights_of
from hypothesis import given
from hypothesis import strategies as st
from strategies import DENSE, checkpoints, flat_checkpoints, state_dict_of, tensor_of

import ckptool
from ckptool.checkpoint import Checkpoint
from ckptool.disk.composing import Joined
from ckptool.disk.files import Buffer, FileRange
from ckptool.dtypes import BY_NAME
from ckptool.errors import CheckpointError
from ckptool.formats import _dcp_metadata as records
from ckptool.formats.pickle.reader import Reader
from ckptool.formats.pickle.writer import write_pickle
from ckptool.formats.tiles import Chunk, assemble
from ckptool.tensor import LazyTensor, Storage
from ckptool.tree import Dict, Global, List, Object, walk

FIXTURES = Path(__file__).parents[2] / "fixtures" / "trained"


class TestDcp(FolderContract):
    name = "dcp"
    checkpoints = flat_checkpoints()
    dtypes = tuple(DENSE)

    def held(self, ckpt):
        return weights_of(ckpt)

    def divided(self, ckpt):
        return {"max_shard_size": 24}


def write(path, slices, items):
    """A directory of the given files and items."""
    path.mkdir()
    for name, data in slices.items():
        (path / name).write_bytes(data)
    (path / ".metadata").write_bytes(records.write_metadata(items))


def zipped(value):
    """A slice: what torch.save writes of a tensor, or of another value."""
    with tempfile.TemporaryDirectory() as folder:
        ckptool.save(Checkpoint(value), Path(folder) / "x.pth")
        return (Path(folder) / "x.pth").read_bytes()


def rewritten(path, change):
    """Read `.metadata`, change its tree, and write it back."""
    root = Reader(path.read_bytes(), "", lambda pid: None).load()
    change(root)
    path.write_bytes(write_pickle(root, lambda storage: ""))


def divided(path, boxes, shape=(4, 6), dtype="float32"):
    """A directory with one tensor of SHAPE, whose element i is i, in chunks BOXES: (offsets, sizes)."""
    slices, listed, at = b"", [], 0
    for offsets, sizes in boxes:
        part = box_of(offsets, sizes, shape, dtype)
        data = zipped(part)
        listed.append(records.Box(offsets, sizes, records.Slice("__0_0.distcp", at, len(data))))
        slices, at = slices + data, at + len(data)
    write(path, {"__0_0.distcp": slices}, [records.Item("w", ("w",), listed, BY_NAME[dtype], shape)])


def box_of(offsets, sizes, shape, dtype="float32"):
    import numpy as np

    whole = np.arange(np.prod(shape)).reshape(shape).astype(dtype)
    part = whole[tuple(slice(o, o + s) for o, s in zip(offsets, sizes, strict=True))]
    return tensor_of(dtype, sizes, np.ascontiguousarray(part).tobytes())


def refused(path, kind=ckptool.Malformed):
    with pytest.raises(kind) as caught:
        ckptool.open(path)
    return str(caught.value)


# -- chunks


@st.composite
def tilings(draw):
    """A shape and boxes that tile it: cut again and again, in any dimension."""
    shape = tuple(draw(st.lists(st.integers(1, 6), min_size=1, max_size=4)))
    boxes = [((0,) * len(shape), shape)]
    for _ in range(draw(st.integers(0, 6))):
        offsets, sizes = boxes.pop(draw(st.integers(0, len(boxes) - 1)))
        dim = draw(st.integers(0, len(shape) - 1))
        cut = draw(st.integers(0, sizes[dim]))
        for start, size in ((0, cut), (cut, sizes[dim] - cut)):
            boxes.append(
                (
                    (*offsets[:dim], offsets[dim] + start, *offsets[dim + 1 :]),
                    (*sizes[:dim], size, *sizes[dim + 1 :]),
                )
            )
    return shape, draw(st.permutations(boxes))


@given(tiling=tilings(), data=st.data())
def test_a_tensor_is_put_together_from_chunks_of_any_division(tiling, data):
    import numpy as np

    shape, boxes = tiling
    chunks = [Chunk(offsets, box_of(offsets, sizes, shape, "int16")) for offsets, sizes in boxes]
    source = assemble(shape, BY_NAME["int16"], chunks)
    expected = np.arange(np.prod(shape)).astype("int16").tobytes()
    assert b"".join(map(bytes, source.chunks())) == expected
    assert source.length == len(expected)
    start = data.draw(st.integers(0, len(expected)))
    length = data.draw(st.integers(0, len(expected) - start))
    assert bytes(source.read(start, length)) == expected[start : start + length]


@given(tiling=tilings(), data=st.data())
def test_a_hole_or_an_overlap_is_refused_whatever_the_division(tiling, data):
    shape, boxes = tiling
    chunks = [Chunk(offsets, box_of(offsets, sizes, shape)) for offsets, sizes in boxes]
    chosen = data.draw(st.sampled_from([chunk for chunk in chunks if chunk.values.numel]))
    rest = [chunk for chunk in chunks if chunk is not chosen]
    with pytest.raises(ckptool.Malformed, match="leave a hole"):
        assemble(shape, BY_NAME["float32"], rest)
    with pytest.raises(ckptool.Malformed, match="overlap"):
        assemble(shape, BY_NAME["float32"], [*chunks, chosen])
    beyond = tuple(offset + size for offset, size in zip(chosen.offsets, shape, strict=True))
    with pytest.raises(ckptool.Malformed, match="reaches beyond"):
        assemble(shape, BY_NAME["float32"], [*rest, replace(chosen, offsets=beyond)])


def test_chunks_that_no_plane_divides_are_compared_with_each_other():
    """A pinwheel: five boxes of which no cut leaves all whole."""
    boxes = [((0, 0), (2, 1)), ((0, 1), (1, 2)), ((1, 2), (2, 1)), ((2, 0), (1, 2)), ((1, 1), (1, 1))]
    chunks = [Chunk(offsets, box_of(offsets, sizes, (3, 3))) for offsets, sizes in boxes]
    assert assemble((3, 3), BY_NAME["float32"], chunks).length == 36
    moved = [*chunks[:-1], replace(chunks[-1], offsets=(1, 0))]
    with pytest.raises(ckptool.Malformed, match="two chunks overlap: sizes"):
        assemble((3, 3), BY_NAME["float32"], moved)


def herringbone(side):
    """Boxes of 2 x 1 and 1 x 2 of which no plane leaves all whole, but for those at the edges."""
    places = [(x, y) for x in range(side) for y in range(side)]
    upright = [((x, y), (2, 1)) for x, y in places if (x - y) % 4 == 0 and x + 2 <= side]
    return upright + [((x, y), (1, 2)) for x, y in places if (x - y) % 4 == 3 and y + 2 <= side]


def test_thousands_of_chunks_that_interlock_are_refused_without_comparing_each_with_each():
    shape = (200, 200)
    chunks = [Chunk(offsets, box_of(offsets, sizes, shape)) for offsets, sizes in herringbone(200)]
    with pytest.raises(ckptool.Malformed, match="leave a hole"):
        assemble(shape, BY_NAME["float32"], chunks)
    held = sum(chunk.values.numel for chunk in chunks)
    more = [replace(chunks[0], values=tensor_of("float32", (2, 1)))] * ((200 * 200 - held) // 2 + 1)
    with pytest.raises(ckptool.Malformed, match="interlock"):
        assemble(shape, BY_NAME["float32"], [*chunks, *more])


def test_a_chunk_that_stands_in_very_many_places_is_refused():
    one = tensor_of("float32", (1 << 16,))
    chunks = [Chunk((place << 16,), one) for place in range(300)]
    with pytest.raises(ckptool.CannotCarry, match="expand 262,144 stored bytes to 78,643,200"):
        assemble((300 << 16,), BY_NAME["float32"], chunks)
    assert assemble((3 << 16,), BY_NAME["float32"], chunks[:3]).length == 3 << 18


def test_a_huge_chunk_of_a_few_bytes_is_refused():
    tensor = tensor_of("float32", (1,))
    huge = LazyTensor(tensor.storage, tensor.dtype, (1 << 20, 1 << 20), (0, 0))
    for shape, offsets in (((1 << 20, 1 << 20), (0, 0)), ((1 << 20, 1 << 21), (0, 1 << 20))):
        first = [Chunk((0, 0), huge)] if any(offsets) else []
        with pytest.raises(ckptool.CannotCarry, match="expands 4 stored bytes"):
            assemble(shape, BY_NAME["float32"], [*first, Chunk(offsets, huge)])


def test_chunks_of_rows_are_copied_without_being_gathered(tmp_path):
    divided(tmp_path / "x", [((2, 0), (2, 6)), ((0, 0), (2, 6))])
    source = ckptool.open(tmp_path / "x").state_dict()["w"].storage.source
    assert isinstance(source, Joined)
    assert all(isinstance(part, FileRange) for part in source.parts)


def test_a_lone_chunk_that_is_elsewhere_is_refused(tmp_path):
    data = zipped(box_of((0,), (4,), (4,)))
    box = records.Box((100,), (4,), records.Slice("__0_0.distcp", 0, len(data)))
    item = records.Item("w", ("w",), [box], BY_NAME["float32"], (4,))
    write(tmp_path / "out", {"__0_0.distcp": data}, [item])
    assert "'w': a chunk of sizes [4] at [100] reaches beyond [4]" in refused(tmp_path / "out")


def test_a_chunk_that_is_missing_or_twice_there_is_refused_with_the_name(tmp_path):
    divided(tmp_path / "hole", [((0, 0), (2, 6)), ((3, 0), (1, 6))])
    message = refused(tmp_path / "hole")
    assert "'w': its 2 chunks leave a hole: they hold 18 of 24 elements" in message
    divided(tmp_path / "twice", [((0, 0), (4, 4)), ((0, 3), (4, 3))])
    assert "'w': two chunks overlap: sizes [4, 4] at [0, 0], and sizes [4, 3] at [0, 3]" in refused(tmp_path / "twice")


@pytest.mark.parametrize("boxes", [[((0, 0), (2, 6)), ((2, 0), (2, 6))], [((0, 0), (4, 2)), ((0, 2), (4, 4))]])
def test_damage_in_a_chunk_is_found_by_its_checksum(tmp_path, boxes):
    divided(tmp_path / "x", boxes)
    sound = ckptool.verify(tmp_path / "x")
    assert (sound.damage, sound.checksums) == ([], (2, 0))
    slices = tmp_path / "x" / "__0_0.distcp"
    data = bytearray(slices.read_bytes())
    data[data.index(box_of(*boxes[1], (4, 6)).storage.source.data)] ^= 1
    slices.write_bytes(data)
    assert [line.split(":")[0] for line in ckptool.verify(tmp_path / "x").damage] == ["w, chunk 2"]


def test_the_metadata_of_torch_are_records_that_hold_data(tmp_path):
    report = ckptool.scan(FIXTURES / "housing-fsdp-dcp" / ".metadata")
    assert report.verdict == "safe"


# -- what is said is checked against what is there


def one(path, item=None, data=None, **changes):
    """A directory with one slice, in which something may be wrong."""
    data = zipped(tensor_of("float32", (4, 6))) if data is None else data
    place = records.Slice(**{"file": "__0_0.distcp", "offset": 0, "length": len(data), **changes})
    box = records.Box((0, 0), (4, 6), place)
    write(path, {"__0_0.distcp": data}, [item or records.Item("w", ("w",), [box], BY_NAME["float32"], (4, 6))])


def test_slices_lie_inside_their_file_and_do_not_overlap(tmp_path):
    one(tmp_path / "x", length=10**9)
    assert "is cut short: its slices reach to byte 1,000,000,000" in refused(tmp_path / "x")
    data = zipped(tensor_of("float32", (4, 6)))
    boxes = [records.Box((0,), (1,), records.Slice("a.distcp", start, len(data))) for start in (0, 8)]
    items = [records.Item(f"w{n}", None, [box], BY_NAME["float32"], (1,)) for n, box in enumerate(boxes)]
    write(tmp_path / "y", {"a.distcp": data + bytes(8)}, items)
    assert "two of its slices overlap at byte 8" in refused(tmp_path / "y")


def test_sizes_beyond_any_memory_are_refused_though_nothing_is_in_them(tmp_path):
    for shape in ((0, 1 << 62, 1 << 62), (0, *[1 << 40] * 30)):
        item = records.Item("w", ("w",), [], BY_NAME["float32"], shape)
        write(tmp_path / str(len(shape)), {"__0_0.distcp": zipped(7)}, [item])
        assert "more elements or dimensions than any memory" in refused(tmp_path / str(len(shape)))


def test_a_slice_that_holds_another_tensor_is_refused(tmp_path):
    one(tmp_path / "x", data=zipped(tensor_of("float64", (4, 6))))
    assert "a slice holds float64 of [4, 6], where the .metadata say float32 of [4, 6]" in refused(tmp_path / "x")
    one(tmp_path / "y", data=zipped("text"))
    assert "a slice holds no tensor" in refused(tmp_path / "y")


@pytest.mark.parametrize("name", ["../x.distcp", "/etc/passwd", "a/b.distcp", "C:x"])
def test_slices_outside_of_the_folder_are_refused(tmp_path, name):
    one(tmp_path / "x", file=name)
    assert "not a plain file name" in refused(tmp_path / "x")


@pytest.mark.parametrize("name", [".metadata", "__0_0.distcp"])
def test_a_part_that_is_a_link_out_of_the_folder_is_refused(tmp_path, name):
    one(tmp_path / "x")
    (tmp_path / "x" / name).rename(tmp_path / "elsewhere")
    (tmp_path / "x" / name).symlink_to("../elsewhere")
    with pytest.raises(ckptool.Unreadable, match="is a link out of the folder, and is not followed"):
        ckptool.open(tmp_path / "x")


def test_a_save_that_did_not_finish_is_said_to_be_that(tmp_path):
    one(tmp_path / "x")
    (tmp_path / "x" / ".metadata").unlink()
    message = refused(tmp_path / "x")
    assert "has slices but no .metadata, which is written last: the save did not finish" in message
    one(tmp_path / "y", file="__1_0.distcp")
    assert "names '__1_0.distcp', which is not in the folder" in refused(tmp_path / "y")


def test_slices_through_an_extension_are_named(tmp_path):
    def compressed(root):
        info = next(n for _, n in walk(root) if isinstance(n, Object) and str(n.callee).endswith("._StorageInfo"))
        info.state.entries.append(("transform_descriptors", List(["stream.zstd/1"])))

    one(tmp_path / "x")
    rewritten(tmp_path / "x" / ".metadata", compressed)
    message = refused(tmp_path / "x", ckptool.CannotCarry)
    assert "is stored through stream.zstd/1, which ckptool does not undo" in message


def test_metadata_that_would_run_something_are_read_and_named(tmp_path):
    one(tmp_path / "x")
    call = Object("reduce", Global("os", "system"), ("touch owned",))
    rewritten(tmp_path / "x" / ".metadata", lambda root: root.state.entries.append(("more", call)))
    ckpt = ckptool.open(tmp_path / "x")
    assert ckpt.warnings == ("its .metadata name what torch would import to read them: os.system",)
    ckptool.save(ckpt, tmp_path / "y")
    assert b"os\nsystem" not in (tmp_path / "y" / ".metadata").read_bytes()


def in_info(name, value):
    def change(parts):
        info = next(n for _, n in walk(parts["storage_data"]) if getattr(n, "class_name", "").endswith("._StorageInfo"))
        info.state.entries.append((name, value))

    return change


DAMAGE = {
    "steps that are a number": in_info("transform_descriptors", 5),
    "steps that are true": in_info("transform_descriptors", True),
    "steps that are a dict": in_info("transform_descriptors", Dict([("a", 1)])),
    "no list of tensors": lambda parts: parts["state_dict_metadata"].entries.clear(),
    "an entry that is none": lambda parts: parts["state_dict_metadata"].entries.append(("v", 3)),
    "an entry twice": lambda parts: doubled(parts["state_dict_metadata"]),
    "no slices": lambda parts: parts["storage_data"].entries.clear(),
    "a slice twice": lambda parts: doubled(parts["storage_data"]),
    "a path that starts with a number": lambda parts: parts["planner_data"].entries.append(("w", (3,))),
    "an empty path": lambda parts: parts["planner_data"].entries.append(("w", ())),
}


def doubled(node):
    node.entries.append(node.entries[0])


@pytest.mark.parametrize("damage", DAMAGE)
def test_metadata_that_contradict_themselves_are_refused(tmp_path, damage):
    one(tmp_path / "x")
    path = tmp_path / "x" / ".metadata"
    rewritten(path, lambda root: DAMAGE[damage](dict(root.state.entries)))
    assert str(path) in refused(tmp_path / "x")


@pytest.mark.parametrize(
    "paths", [[("a", 10**9)], [("a", -1)], [("a", 0), ("a", "b")], [("a",), ("a", "b")], [("a",), ("a",)]]
)
def test_paths_that_make_no_tree_are_refused(tmp_path, paths):
    data = zipped(7)
    items = [
        records.Item(f"n{number}", path, [records.Box((), (), records.Slice("a.distcp", 0, len(data)))])
        for number, path in enumerate(paths)
    ]
    write(tmp_path / "x", {"a.distcp": data}, items)
    message = refused(tmp_path / "x")
    assert "list that lacks items" in message or "two values at the path" in message


def test_items_that_torch_left_out_of_a_list_are_none(tmp_path):
    box = records.Box((), (), records.Slice("a.distcp", 0, len(zipped(7))))
    write(tmp_path / "x", {"a.distcp": zipped(7)}, [records.Item("a.2", ("a", 2), [box])])
    ckpt = ckptool.open(tmp_path / "x")
    assert ckpt.root.get("a").items == [None, None, 7]
    assert ckpt.warnings == ("a list in it lacks 2 items, as if they had been empty dicts",)


def test_without_paths_names_are_keys(tmp_path):
    def flat(root):
        root.state.entries[:] = [(key, None if key == "planner_data" else value) for key, value in root.state.entries]

    box = records.Box((), (), records.Slice("a.distcp", 0, len(zipped(7))))
    write(tmp_path / "x", {"a.distcp": zipped(7)}, [records.Item("model.w", ("model", "w"), [box])])
    rewritten(tmp_path / "x" / ".metadata", flat)
    ckpt = ckptool.open(tmp_path / "x")
    assert ckpt.root.entries == [("model.w", 7)]
    assert "do not tell where its values are in the tree" in ckpt.warnings[0]


def test_a_file_of_the_folder_leads_to_the_folder(tmp_path):
    one(tmp_path / "x")
    assert ckptool.open(tmp_path / "x" / ".metadata").format == "dcp"
    with pytest.raises(ckptool.UnknownFormat) as caught:
        ckptool.open(tmp_path / "x" / "__0_0.distcp")
    assert "is a part of a folder of torch.distributed.checkpoint" in str(caught.value)
    assert caught.value.hint == f"name {tmp_path / 'x'}"


# -- whole checkpoints


@in_one_folder
@given(data=st.data())
def test_any_checkpoint_is_refused_or_comes_back_with_all_its_tensors(tmp_path, data):
    ckpt = data.draw(checkpoints())
    try:
        ckptool.save(ckpt, tmp_path / "x", format="dcp", overwrite=True, keep_objects=True)
    except CheckpointError:
        return
    back = ckptool.open(tmp_path / "x")
    values = {bytes(value) for value in everything_in(ckpt)}
    assert {bytes(value) for value in everything_in(back)} == values
    assert [key for key, _ in back.root.entries] == [key for key, _ in ckpt.root.entries]
    assert back.root.ordered == ckpt.root.ordered


def test_a_training_checkpoint_keeps_its_tree(tmp_path):
    ckpt = ckptool.open(FIXTURES / "housing-ddp-full.pth")
    planned = ckptool.save(ckpt, tmp_path / "x", format="dcp", keep_objects=True)
    assert planned.format == "dcp"
    back = ckptool.open(tmp_path / "x")
    ckptool.save(back, tmp_path / "y.pth")
    again = ckptool.open(tmp_path / "y.pth")
    assert [path for path, _ in again.tensors()] == [path for path, _ in ckpt.tensors()]
    assert everything_in(again) == everything_in(ckpt)
    assert again.state_dict("model").metadata == ckpt.state_dict("model").metadata
    numbers = [key for key, _ in ckpt.root.get("optimizer").get("state").entries]
    assert [key for key, _ in again.root.get("optimizer").get("state").entries] == numbers == list(range(len(numbers)))


def test_a_note_is_not_believed_after_somebody_else_wrote_there(tmp_path):
    ckptool.save(state_dict_of({"a": tensor_of("float32")}, {"": 2}), tmp_path / "x", format="dcp")
    assert ckptool.open(tmp_path / "x").state_dict().metadata == {"": {"version": 2}}
    ckptool.save(ckptool.open(FIXTURES / "housing-ddp-dcp"), tmp_path / "y")
    note = tmp_path / "x" / ".ckptool-note.json"
    shutil.copy(tmp_path / "y" / ".metadata", tmp_path / "x")
    for slices in (tmp_path / "y").glob("*.distcp"):
        shutil.copy(slices, tmp_path / "x")
    assert json.loads(note.read_text())["dicts"]
    assert not ckptool.open(tmp_path / "x").root.ordered


def test_two_values_of_one_name_are_refused_with_both(tmp_path):
    tree = Checkpoint(Dict([("a.b", tensor_of("float32")), ("a", Dict([("b", tensor_of("float32"))]))]))
    with pytest.raises(ckptool.CannotCarry) as caught:
        ckptool.save(tree, tmp_path / "x", format="dcp")
    assert "would both call 'a.b'" in str(caught.value)
    assert "a.b" in caught.value.evidence
    assert "a/b" in caught.value.evidence


def test_keys_are_renamed_and_devices_kept(tmp_path):
    entries = {"module.a": tensor_of("float32", location="cuda:1"), "module.b": tensor_of("int8")}
    ckptool.save(state_dict_of(entries), tmp_path / "x", format="dcp")
    ckpt = ckptool.strip_prefix(ckptool.open(tmp_path / "x"))
    ckptool.save(ckpt, tmp_path / "y")
    back = ckptool.open(tmp_path / "y")
    assert back.format == "dcp"
    assert {key: t.location for key, t in back.state_dict().items()} == {"a": "cuda:1", "b": "cpu"}


def test_a_tied_tensor_is_stored_once(tmp_path):
    tensor = tensor_of("float32", (100, 100))
    ckptool.save(state_dict_of({"a": tensor, "b": tensor}), tmp_path / "x", format="dcp")
    assert (tmp_path / "x" / "__0_0.distcp").stat().st_size < 2 * tensor.nbytes
    assert ckptool.open(tmp_path / "x").state_dict().ties() == [["a", "b"]]


@pytest.mark.parametrize("flags", [{}, {"neg": True}])
def test_a_part_that_is_transposed_stays_transposed(tmp_path, flags):
    storage = tensor_of("float32", (20,)).storage
    tensor = LazyTensor(storage, BY_NAME["float32"], (3, 4), (1, 3), 5, **flags)
    ckptool.save(state_dict_of({"a": tensor}), tmp_path / "x", format="dcp")
    back = ckptool.open(tmp_path / "x").state_dict()["a"]
    assert back.stride == (1, 3)
    assert bytes(back.source().read(0, 48)) == bytes(tensor.source().read(0, 48))


def test_a_slice_of_a_large_storage_does_not_bring_it_along(tmp_path):
    storage = Storage(Buffer(bytes(1 << 20)), dtype=BY_NAME["uint8"])
    part = LazyTensor(storage, BY_NAME["uint8"], (10,), (1,), 100)
    planned = ckptool.save(state_dict_of({"a": part}), tmp_path / "x", format="dcp")
    assert planned.nbytes < 10_000
    assert planned.form == ("1 tensor that is a part of a storage is stored on its own",)


@pytest.mark.parametrize("root", [List([tensor_of("float32")]), tensor_of("float32"), Dict([((1, 2), 3)])])
def test_what_is_no_dict_of_names_is_refused(tmp_path, root):
    with pytest.raises(ckptool.CannotCarry):
        ckptool.save(Checkpoint(root), tmp_path / "x", format="dcp")


def test_a_folder_of_slices_is_replaced_and_nothing_else(tmp_path):
    ckptool.save(state_dict_of({"a": tensor_of("float32")}), tmp_path / "x", format="dcp")
    before = bytes_at(tmp_path / "x")
    ckptool.save(ckptool.add_prefix(ckptool.open(tmp_path / "x"), "p."), tmp_path / "x", overwrite=True)
    assert bytes_at(tmp_path / "x") != before
    (tmp_path / "x" / "notes.txt").write_text("keep")
    ckptool.save(ckptool.open(tmp_path / "x"), tmp_path / "x", overwrite=True)  # carried along
    assert (tmp_path / "x" / "notes.txt").read_text() == "keep"
    with pytest.raises(ckptool.Unwritable, match=r"1 other thing"):
        ckptool.save(state_dict_of({"a": tensor_of("float32")}), tmp_path / "x", format="dcp", overwrite=True)
