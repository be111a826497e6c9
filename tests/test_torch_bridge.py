import copy
import io
import os
import warnings
import zipfile
from collections import Counter, OrderedDict, defaultdict

import pytest

torch = pytest.importorskip("torch")

from assemble import Call, Name, body, pickled
from hypothesis import given
from hypothesis import strategies as st
from same import graph
from strategies import torch_values

import ckptool
from ckptool.passes.locations import new_location, parse_rules
from ckptool.torch_bridge import Inert, from_torch, move


def saved(value, path):
    torch.save(value, path)
    return path


@pytest.fixture
def tagged(tmp_path):
    """A file whose storages say cpu, cuda:0 and cuda:1, as a training run on two devices would leave it."""
    tensors = {place: torch.arange(4.0) + n for n, place in enumerate(["cpu", "cuda:0", "cuda:1"])}
    tensors["view"] = tensors["cuda:1"][1:3]
    ckpt = from_torch(tensors)
    places = iter(["cpu", "cuda:0", "cuda:1"])

    from ckptool.checkpoint import map_storages

    ckptool.save(map_storages(ckpt, lambda storage: storage.changed(location=next(places))), tmp_path / "x.pth")
    return tmp_path / "x.pth"


def outcome(load, path, target):
    """What a loader gives, or the kind of its error."""
    try:
        return graph(load(path, map_location=target))
    except Exception as error:
        return type(error)


MAP_LOCATIONS = {
    "nothing": lambda: None,
    "a text": lambda: "cpu",
    "a device": lambda: torch.device("cpu"),
    "a dict": lambda: {"cuda:0": "cpu", "cuda:1": "cpu"},
    "a dict of some": lambda: {"cuda:0": "cpu"},
    "a dict of others": lambda: {"cuda:7": "cpu"},
    "a function": lambda: lambda storage, location: storage,
    "a function that moves": lambda: lambda storage, location: storage.cpu() if location != "cpu" else None,
    "a function that declines": lambda: lambda storage, location: None,
    "a device that is not there": lambda: "cuda:5",
    "a device that nobody knows": lambda: "abacus",
    "a function of locations": lambda: lambda storage, location: storage if location.startswith("cuda") else None,
}


@pytest.mark.parametrize("name", MAP_LOCATIONS)
def test_map_location_means_what_it_means_in_torch(tagged, name):
    target = MAP_LOCATIONS[name]()
    expected = outcome(lambda path, **options: torch.load(path, weights_only=False, **options), tagged, target)
    assert outcome(ckptool.load, tagged, target) == expected


def test_a_function_is_told_the_locations_that_torch_tells_it(tagged):
    asked = {torch.load: [], ckptool.load: []}
    for load, places in asked.items():
        load(
            tagged,
            map_location=lambda storage, place, places=places: (
                places.append((type(storage).__name__, place)) or storage
            ),
        )
    assert asked[ckptool.load] == asked[torch.load]


@pytest.mark.parametrize("target", ["meta", torch.device("meta")])
def test_on_meta_there_are_shapes_and_no_bytes(tagged, target, bytes_read):
    loaded = ckptool.load(tagged, target)
    expected = torch.load(tagged, target)
    assert graph(loaded, storages=False) == graph(expected, storages=False)
    assert {tensor.device.type for tensor in loaded.values()} == {"meta"}
    assert sum(bytes_read) < 20_000


ON_META = {
    "transposed": lambda: torch.empty(3, 4, device="meta").t(),
    "channels last": lambda: torch.empty(2, 3, 4, 5, device="meta").to(memory_format=torch.channels_last),
    "a parameter": lambda: torch.nn.Parameter(torch.empty(3, 4, device="meta").t()),
    "expanded": lambda: torch.empty(3, 1, device="meta").expand(3, 7),
    "a slice": lambda: torch.empty(10, device="meta", dtype=torch.uint16)[2::2],
    "empty": lambda: torch.empty(0, 3, device="meta"),
    "a scalar": lambda: torch.empty((), device="meta"),
}


@pytest.mark.parametrize("kind", ON_META)
def test_a_meta_tensor_has_the_strides_that_it_had(tmp_path, kind):
    torch.save({"w": ON_META[kind]()}, tmp_path / "x")
    expected, found = torch.load(tmp_path / "x")["w"], ckptool.load(tmp_path / "x")["w"]
    assert (type(found), found.dtype, found.shape, found.stride(), found.requires_grad) == (
        type(expected), expected.dtype, expected.shape, expected.stride(), expected.requires_grad
    )  # fmt: skip


@pytest.mark.parametrize("container", [True, False], ids=["zip", "legacy"])
def test_a_mapped_file_is_not_read_and_not_changed(tmp_path, container, bytes_read):
    value = {"big": torch.arange(1 << 20), "view": torch.arange(1 << 20)[5:9]}
    torch.save(value, tmp_path / "x", _use_new_zipfile_serialization=container)
    before = (tmp_path / "x").read_bytes()
    loaded = ckptool.load(tmp_path / "x", mmap=True)
    assert sum(bytes_read) < 1 << 20
    assert torch.equal(loaded["big"], value["big"])
    assert torch.equal(loaded["view"], value["view"])
    loaded["big"].zero_()
    assert (tmp_path / "x").read_bytes() == before


def test_a_mapped_tensor_outlives_everything_else(tmp_path):
    torch.save({"x": torch.arange(1000)}, tmp_path / "x")
    tensor = ckptool.load(tmp_path / "x", mmap=True)["x"]
    (tmp_path / "x").unlink()
    assert tensor.sum() == 499_500


@pytest.mark.skipif(not os.path.exists("/dev/fd/0"), reason="an open file has no name here")
def test_what_was_opened_is_mapped_whatever_its_name_leads_to_meanwhile(tmp_path):
    torch.save({"x": torch.arange(1000)}, tmp_path / "x")
    torch.save({"x": torch.arange(1000) + 7}, tmp_path / "y")
    ckpt = ckptool.open(tmp_path / "x")
    (tmp_path / "x").unlink()
    (tmp_path / "x").symlink_to("y")
    assert ckptool.load(ckpt, mmap=True)["x"].sum() == 499_500


def test_tensors_that_share_memory_share_it_again(tmp_path):
    base = torch.zeros(4)
    loaded = ckptool.load(saved({"a": base, "b": base[1:], "c": base}, tmp_path / "x"))
    loaded["a"][1] = 7
    assert loaded["b"][0] == 7
    assert loaded["a"] is loaded["c"]


def test_containers_that_hold_themselves_are_loaded(tmp_path):
    value = {"list": [1], "tensor": torch.ones(1)}
    value["list"].append(value)
    value["pair"] = (value["list"], value)
    assert graph(ckptool.load(saved(value, tmp_path / "x"))) == graph(value)


class Config:
    def __init__(self):
        self.lr = 0.5
        self.weights = torch.ones(2)
        self.itself = self


class Listing(list):
    pass


def test_an_object_of_a_class_is_inert_and_shows_what_it_would_have_been(tmp_path):
    made = Listing([1, 2])
    made.name = "x"
    loaded = ckptool.load(saved({"config": Config(), "listing": made}, tmp_path / "x"))
    config, listing = loaded["config"], loaded["listing"]
    assert isinstance(config, Inert)
    assert config.class_name == f"{__name__}.Config"
    assert config.state["lr"] == 0.5
    assert torch.equal(config.state["weights"], torch.ones(2))
    assert config.state["itself"] is config
    assert (listing.items, listing.state) == ([1, 2], {"name": "x"})
    assert repr(config) == f"<inert {__name__}.Config>"


def test_a_class_that_is_named_is_inert_too(tmp_path):
    loaded = ckptool.load(saved({"class": Config, "function": print, "dtype": torch.float16}, tmp_path / "x"))
    assert loaded["class"].class_name == f"{__name__}.Config"
    assert isinstance(loaded["function"], Inert)
    assert loaded["dtype"] is torch.float16


PLAIN = {
    "counter": Counter("abca"),
    "default": defaultdict(list, {"a": [1]}),
    "ordered": OrderedDict(b=1, a=2),
    "complex": 1 + 2j,
    "bytes": b"\0\xff",
    "no bytes": b"",
    "bytearray": bytearray(b"ab"),
    "no bytearray": bytearray(),
    "set": {1, 2},
    "frozenset": frozenset({1}),
    "size": torch.Size([1, 2]),
    "device": torch.device("cuda:3"),
    "no index": torch.device("mps"),
    "dtype": torch.bfloat16,
    "range": range(1, 9, 2),
    "slice": slice(1, None, 2),
    "big": 1 << 100,
}


@pytest.mark.parametrize("protocol", [2, 4, 5])
@pytest.mark.parametrize("name", PLAIN)
def test_plain_data_is_what_it_was(tmp_path, name, protocol):
    torch.save({"x": PLAIN[name]}, tmp_path / "x", pickle_protocol=protocol)
    loaded = ckptool.load(tmp_path / "x")["x"]
    assert type(loaded) is type(PLAIN[name])
    assert loaded == PLAIN[name]


def test_texts_are_plain_texts(tmp_path):
    """A byte string of Python 2 has a class of its own in the tree, which nobody should meet outside."""
    from ckptool.tree import ByteString, Dict

    ckptool.save(ckptool.Checkpoint(Dict([(ByteString(b"key"), ByteString(b"value"))])), tmp_path / "x")
    loaded = ckptool.load(tmp_path / "x")
    assert [type(part) for pair in loaded.items() for part in pair] == [str, str]


def test_parameters_and_gradients_are_as_they_were(tmp_path):
    value = {
        "parameter": torch.nn.Parameter(torch.ones(2)),
        "frozen": torch.nn.Parameter(torch.ones(2), requires_grad=False),
        "leaf": torch.ones(2, requires_grad=True),
        "plain": torch.ones(2),
    }
    loaded = ckptool.load(saved(value, tmp_path / "x"))
    for key, tensor in value.items():
        assert type(loaded[key]) is type(tensor)
        assert loaded[key].requires_grad == tensor.requires_grad
        assert loaded[key].is_leaf


def test_safetensors_files_are_loaded_with_their_ties(tmp_path):
    weight = torch.arange(6.0)
    ckptool.save({"a": weight, "b": weight, "c": weight.clone()}, tmp_path / "x.safetensors")
    loaded = ckptool.load(tmp_path / "x.safetensors")
    assert loaded["a"].data_ptr() == loaded["b"].data_ptr() != loaded["c"].data_ptr()


# -------------------------------------------------------------------------------------------------- from torch


@given(value=torch_values())
def test_tensors_become_a_tree_of_the_same_graph(value):
    assert graph(from_torch(value).root) == graph(value)


def test_the_memory_of_tensors_is_not_copied():
    tensor = torch.zeros(4)
    node = from_torch({"x": tensor}).state_dict()["x"]
    tensor[0] = 1.0
    assert node.numpy()[0] == 1.0


class Wrapper(torch.Tensor):
    """A tensor around another one, as torchao's: its own storage has a size and no bytes."""

    @staticmethod
    def __new__(cls, values):
        return torch.Tensor._make_wrapper_subclass(cls, values.shape, dtype=values.dtype)

    def __init__(self, values):
        self.values_of_it = values

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise NotImplementedError(func)


ONLY_TORCH_CAN_SAVE = {
    "meta": lambda: torch.ones(2, device="meta"),
    "sparse": lambda: torch.ones(2).to_sparse(),
    "quantized": lambda: torch.quantize_per_tensor(torch.ones(2), 1.0, 0, torch.qint8),
    "an object": Config,
    "a module": lambda: torch.nn.Linear(1, 1),
    "a subclass": lambda: Listing([1]),
    "a nested tensor": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
    "a wrapper": lambda: Wrapper(torch.ones(2, 3)),
}


@pytest.mark.parametrize("name", ONLY_TORCH_CAN_SAVE)
def test_what_only_torch_can_save_is_refused_with_its_place(name):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that quantized tensors are deprecated
        value = ONLY_TORCH_CAN_SAVE[name]()
    with pytest.raises(ckptool.CannotCarry, match="outer/0/inner"):
        from_torch({"outer": [{"inner": value}]})


def held_as_module(net):
    return torch.nn.Sequential(OrderedDict(module=net))


@pytest.mark.parametrize("wrap", [torch.nn.DataParallel, held_as_module])
def test_stripping_what_data_parallel_adds_gives_the_metadata_of_the_plain_model(tmp_path, wrap):
    torch.manual_seed(0)
    plain = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Linear(2, 2))
    )
    torch.save(wrap(copy.deepcopy(plain)).state_dict(), tmp_path / "wrapped")
    torch.save(plain.state_dict(), tmp_path / "plain")
    ckptool.save(ckptool.strip_prefix(ckptool.open(tmp_path / "wrapped"), "module."), tmp_path / "stripped")
    stripped, expected = torch.load(tmp_path / "stripped"), torch.load(tmp_path / "plain")
    assert graph(stripped) == graph(expected)
    assert dict(stripped._metadata) == dict(expected._metadata)
    ckptool.save(ckptool.add_prefix(ckptool.open(tmp_path / "plain"), "module."), tmp_path / "added")
    added, wrapped = torch.load(tmp_path / "added"), torch.load(tmp_path / "wrapped")
    assert list(added) == list(wrapped)
    assert dict(added._metadata) == dict(wrapped._metadata)
    plain.load_state_dict(stripped)
    wrap(plain).load_state_dict(added)


# -------------------------------------------------------------------------------------------------------- moving


def place(rule):
    """Where storages go by a rule."""
    return lambda device: new_location(device, parse_rules(rule))


def test_moving_keeps_ties_views_and_parameters():
    weight = torch.nn.Parameter(torch.arange(4.0))
    value = OrderedDict(weight=weight, tied=weight, view=weight.detach()[1:], other=torch.ones(1))
    value._metadata = OrderedDict()
    moved = move(value, place("cpu=meta"))
    assert {tensor.device.type for tensor in moved.values()} == {"meta"}
    assert type(moved["weight"]) is torch.nn.Parameter
    assert moved["view"].storage_offset() == 1
    assert moved["weight"].untyped_storage()._cdata == moved["view"].untyped_storage()._cdata
    assert moved._metadata is value._metadata
    assert type(moved) is OrderedDict


def test_moving_a_conjugate_view_keeps_its_value():
    value = {
        "x": torch.conj(torch.tensor([1 + 2j])),
        "y": torch._neg_view(torch.ones(2)),
        "z": torch.ones(2).to_sparse(),
    }
    moved = move(value, place("cpu=meta"))
    assert (moved["x"].is_conj(), moved["y"].is_neg()) == (True, True)
    assert moved["z"].layout == torch.sparse_coo


def test_moving_to_where_it_is_changes_nothing():
    value = {"a": torch.ones(1), "n": 3, "list": [torch.ones(1)]}
    moved = move(value, place("cpu"))
    assert moved["a"] is value["a"]
    assert moved["list"][0] is value["list"][0]
    assert moved["n"] == 3


# ------------------------------------------------------------------------------------------------- the promises


def test_loading_runs_nothing_that_is_in_the_file(tmp_path):
    marker = tmp_path / "executed"

    class Evil:
        def __reduce__(self):
            import os

            return os.system, (f"touch {marker}",)

    torch.save({"evil": Evil(), "x": torch.ones(1)}, tmp_path / "x")
    loaded = ckptool.load(tmp_path / "x")
    assert loaded["evil"].class_name in ("posix.system", "nt.system")
    assert not marker.exists()


@pytest.mark.parametrize(
    "made",
    [
        Call("torch.Size", (None,)),
        Call("torch.device", "abacus"),
        Call("builtins.range", 1, 2, 0),
        Call("builtins.complex", None),
        Name("torch.OddStorage"),
    ],
    ids=["no numbers", "no device", "no range", "no number", "no storage"],
)
def test_what_its_own_class_would_not_make_stays_inert(tmp_path, made):
    (tmp_path / "x").write_bytes(pickled({"made": made}))
    assert isinstance(ckptool.load(tmp_path / "x")["made"], Inert)


@pytest.mark.parametrize(
    "key", [Call("collections.defaultdict", Name("builtins.list")), (Call("collections.Counter"),)]
)
def test_a_key_that_python_does_not_take_is_refused(tmp_path, key):
    (tmp_path / "x").write_bytes(b"\x80\x02}" + body(key) + b"K\x01s.")
    with pytest.raises(ckptool.CannotCarry, match=r"x: has a .* as a key, which Python does not take"):
        ckptool.load(tmp_path / "x")


def test_a_quantized_tensor_with_a_flag_that_is_none_is_loaded_without_it(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that quantized tensors are deprecated
        quantized = torch.quantize_per_tensor(torch.ones(2), 1.0, 0, torch.qint8)
        torch.save({"q": quantized}, tmp_path / "x", _use_new_zipfile_serialization=False)
        data = (tmp_path / "x").read_bytes()
        flag = data.index(b"\x89", data.index(b"per_tensor_affine"))
        (tmp_path / "x").write_bytes(data[:flag] + b"}" + data[flag + 1 :])
        loaded = ckptool.load(tmp_path / "x")["q"]
        assert loaded.equal(quantized)
    assert not loaded.requires_grad


def test_a_compressed_tensor_that_goes_on_behind_its_size_is_refused(tmp_path):
    torch.save({"w": torch.arange(2)}, tmp_path / "x")
    with zipfile.ZipFile(tmp_path / "x") as old, zipfile.ZipFile(tmp_path / "y", "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            new.writestr(name, old.read(name) + (bytes(4) if name.endswith("data/0") else b""))
        record = new.getinfo("x/data/0")
        begin = new.start_dir
    data = bytearray((tmp_path / "y").read_bytes())
    entry = data.index(b"x/data/0", begin) - 46
    for at in (record.header_offset + 22, entry + 24):
        assert data[at : at + 4] == b"\x14\0\0\0"
        data[at] = 16
    (tmp_path / "y").write_bytes(data)
    with pytest.raises(ckptool.Malformed, match="does not inflate to the 16 bytes"):
        ckptool.load(tmp_path / "y")


def test_a_file_object_is_no_path(tmp_path):
    torch.save({}, tmp_path / "x")
    with pytest.raises((TypeError, ckptool.Unreadable)), open(tmp_path / "x", "rb") as file:
        ckptool.load(io.BytesIO(file.read()))


@given(data=st.data())
def test_what_was_loaded_can_be_saved_again(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("again")
    value = data.draw(torch_values())
    ckptool.save(value, folder / "x.pth")
    loaded = ckptool.load(folder / "x.pth")
    ckptool.save(loaded, folder / "y.pth")
    assert graph(ckptool.open(folder / "y.pth").root) == graph(ckptool.open(folder / "x.pth").root)
