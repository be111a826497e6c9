"""Checkpoints that other projects published, rewritten and checked against what torch makes of them.

They lie in `fixtures/real` (see the README there). Where the folder is missing, nothing here runs.
"""

import warnings
from collections import OrderedDict
from pathlib import Path

import pytest
from same import graph

import ckptool
from ckptool.errors import UnknownFormat
from ckptool.inert.allowed import beyond_plain_data

FOLDER = Path(__file__).parent.parent / "fixtures" / "real"
FILES = sorted(path for path in FOLDER.glob("*") if path.is_file() and path.suffix not in (".md", ".json", ".toml"))

each_file = pytest.mark.parametrize("path", FILES, ids=lambda path: path.name[-40:])


def opened(path):
    try:
        return ckptool.open(path)
    except UnknownFormat as error:
        if "ckptool does not read these yet" in error.what:
            pytest.skip(error.what)
        raise


def save(ckpt, path):
    """Write as asked for, with the objects that only --keep-objects writes."""
    return ckptool.save(ckpt, path, format=ckpt.format, allow_loss=bool(ckpt.lost_content), keep_objects=True)


def without_origin(ckpt):
    """The same checkpoint made anew, so that writing cannot fall back on the bytes of the file that it came from."""
    return ckptool.Checkpoint(ckpt.root, ckpt.format, metadata=ckpt.metadata)


def torch_load(path, **options):
    """What torch itself makes of a file, or a skip if it cannot: it needs classes that are not installed."""
    torch = pytest.importorskip("torch")
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        return load_file(path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the source code of a pickled class has changed since
            return torch.load(path, weights_only=True, **options)
    except Exception as error:
        if type(error).__name__ == "UnpicklingError" and "Unsupported" in str(error):
            pytest.skip(f"torch refuses it: {str(error).splitlines()[0][:80]}")
        raise


def assert_same_values(one, other):
    """Equal containers, order and `_metadata` included, and equal tensors, bit for bit and in the same layout."""
    import torch

    assert type(one) is type(other)
    if isinstance(one, torch.Tensor):
        assert (one.dtype, one.shape, one.stride(), one.device) == (
            other.dtype,
            other.shape,
            other.stride(),
            other.device,
        )
        assert one.requires_grad == other.requires_grad
        assert one.contiguous().view(-1).view(torch.uint8).equal(other.contiguous().view(-1).view(torch.uint8))
    elif isinstance(one, dict):
        assert list(one) == list(other)
        for key in one:
            assert_same_values(one[key], other[key])
        assert getattr(one, "_metadata", None) == getattr(other, "_metadata", None)
    elif isinstance(one, list | tuple):
        assert len(one) == len(other)
        for ours, theirs in zip(one, other, strict=True):
            assert_same_values(ours, theirs)
    else:
        assert one == other


def storages_of(value):
    """Which tensors share memory, as numbers in the order of the file."""
    import torch

    numbers = {}

    def visit(value):
        if isinstance(value, torch.Tensor):
            return numbers.setdefault(value.untyped_storage()._cdata, len(numbers))
        if isinstance(value, dict):
            return [visit(item) for item in value.values()]
        return [visit(item) for item in value] if isinstance(value, list | tuple) else None

    return visit(value)


@each_file
def test_the_tree_is_the_object_graph_that_torch_makes(path):
    ckpt = opened(path)
    if beyond_plain_data(ckpt.root) or ckpt.format == "safetensors":
        pytest.skip("not a file that torch.load(weights_only=True) reads")
    loaded = torch_load(path, map_location="cpu")
    on_cpu = ckptool.map_location(ckpt, "cpu")
    assert graph(on_cpu.root, sharing_of_tuples=False) == graph(loaded, sharing_of_tuples=False)


@each_file
def test_load_gives_what_torch_gives(path):
    opened(path)
    expected = torch_load(path, map_location="cpu") if path.suffix != ".safetensors" else torch_load(path)
    ours = ckptool.load(path, map_location="cpu")
    if path.suffix == ".safetensors":
        assert ours.keys() == expected.keys()
        ours, expected = dict(ours), {key: expected[key] for key in ours}
    assert_same_values(ours, expected)
    assert storages_of(ours) == storages_of(expected)


@pytest.mark.parametrize("anew", [False, True], ids=["from its file", "made anew"])
@each_file
def test_written_back_it_is_the_same_object_graph(path, tmp_path, anew):
    ckpt = opened(path)
    save(without_origin(ckpt) if anew else ckpt, tmp_path / "out")
    assert graph(ckptool.open(tmp_path / "out").root) == graph(ckpt.root)


@each_file
def test_a_remap_there_and_back_is_the_same_object_graph(path, tmp_path):
    ckpt = opened(path)
    places = sorted({storage.location for storage in ckpt.storages()} - {"cpu"})
    there = {place: f"xpu:{number}" for number, place in enumerate(places)}
    if not there:
        pytest.skip("everything in it is on the CPU")
    save(ckptool.map_location(ckpt, there), tmp_path / "there")
    moved = ckptool.open(tmp_path / "there")
    assert {storage.location for storage in moved.storages()} - {"cpu"} == set(there.values())
    back = ckptool.map_location(moved, {new: old for old, new in there.items()})
    save(back, tmp_path / "back")
    assert graph(ckptool.open(tmp_path / "back").root) == graph(ckpt.root)


@each_file
def test_mapped_to_the_cpu_it_loads_without_a_gpu_and_with_the_same_values(path, tmp_path):
    ckpt = opened(path)
    save(ckptool.map_location(ckpt, "cpu"), tmp_path / f"out{path.suffix}")
    assert {storage.location for storage in ckptool.open(tmp_path / f"out{path.suffix}").storages()} <= {"cpu"}
    if ckpt.format != "safetensors":
        before, after = torch_load(path, map_location="cpu"), torch_load(tmp_path / f"out{path.suffix}")
        assert_same_values(after, before)
        assert storages_of(after) == storages_of(before)


@each_file
def test_without_its_wrapper_it_holds_the_same_values_in_the_same_order(path, tmp_path):
    ckpt = opened(path)
    found = ckpt.state_dicts()
    if len(found) != 1 or not all(key.startswith("module.") for key in found[0]):
        pytest.skip("its keys do not start with 'module.'")
    at = found[0].path
    save(ckptool.strip_prefix(ckpt), tmp_path / "out")
    stripped = ckptool.open(tmp_path / "out")
    assert list(stripped.state_dict(at)) == [key.removeprefix("module.") for key in found[0]]
    save(ckptool.add_prefix(stripped), tmp_path / "again")
    again = ckptool.open(tmp_path / "again")
    assert graph(again.root) == graph(ckpt.root)
    before, after = torch_load(path, map_location="cpu"), torch_load(tmp_path / "out", map_location="cpu")
    for part in at.split("/") if at else []:
        before, after = before[part], after[part]
    assert_same_values(OrderedDict((f"module.{key}", value) for key, value in after.items()), OrderedDict(before))


@each_file
def test_what_it_holds_of_other_classes_is_written_only_when_asked_for(path, tmp_path):
    assert_objects_need_to_be_asked_for(path, tmp_path / "out")


@pytest.mark.parametrize("new", [True, False], ids=["zip", "legacy"])
def test_a_whole_module_is_written_only_when_asked_for(tmp_path, new):
    torch = pytest.importorskip("torch")
    module = torch.nn.DataParallel(torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU()))
    torch.save({"model": module, "epoch": 1}, tmp_path / "in", _use_new_zipfile_serialization=new)
    assert_objects_need_to_be_asked_for(tmp_path / "in", tmp_path / "out")
    loaded = torch.load(tmp_path / "out", weights_only=False)["model"]
    assert str(loaded) == str(module)
    assert_same_values(loaded.state_dict(), module.state_dict())


def assert_objects_need_to_be_asked_for(path, out):
    ckpt = opened(path)
    objects = beyond_plain_data(ckpt.root)
    if objects:
        with pytest.raises(ckptool.CannotCarry) as raised:
            ckptool.save(ckpt, out, format=ckpt.format)
        assert not out.exists()
        assert all(any(name in line for line in raised.value.evidence) for name in list(objects)[:3])
    receipt = ckptool.save(ckpt, out, format=ckpt.format, keep_objects=bool(objects))
    assert receipt.objects == dict(objects)
    assert graph(ckptool.open(out).root) == graph(ckpt.root)


@each_file
def test_the_file_itself_is_not_touched(path, tmp_path):
    before = path.read_bytes()
    ckpt = opened(path)
    save(ckptool.map_location(ckpt, "cpu"), tmp_path / "out")
    assert path.read_bytes() == before
