import re
import struct

import pytest
from assemble import Call, Name, Ordered, Stored, body, pickled
from contract import PickleContract, everything_in, sample, weights_of
from strategies import TYPED, checkpoints, state_dict_of, tensor_of

import ckptool

MAGIC = 0x1950A86A20F9469CFC6C
INFO = {"protocol_version": 1001, "little_endian": True, "type_sizes": {"short": 2, "int": 4, "long": 4}}


class TestTorchLegacy(PickleContract):
    name = "torch-legacy"
    dtypes = tuple(TYPED)
    checkpoints = checkpoints(dtypes=tuple(TYPED))

    def test_what_torch_cannot_load_from_a_legacy_file_is_not_written_to_one(self, tmp_path):
        with pytest.raises(ckptool.CannotCarry, match="torch cannot load untyped storages"):
            self.save(state_dict_of({"x": tensor_of("float8_e5m2")}), tmp_path / "x")


# ---------------------------------------------------------------------------------------------- files made by hand


def legacy(path, root, storages, keys=None, *, magic=MAGIC, version=1001, info=INFO, junk=b""):
    """A legacy file. STORAGES: key -> (number of elements, bytes)."""
    keys = list(storages) if keys is None else keys
    parts = [pickled(magic), pickled(version), pickled(info), pickled(root), pickled(keys)]
    for numel, data in storages.values():
        parts += [struct.pack("<q", numel), data]
    path.write_bytes(b"".join(parts) + junk)
    return path


def stored(key, numel=4, view=None, kind="FloatStorage", location="cpu"):
    return Stored(("storage", Name(f"torch.{kind}"), key, location, numel, view))


def rebuilt(storage, offset=0, shape=(4,), stride=(1,)):
    return Call("torch._utils._rebuild_tensor_v2", storage, offset, shape, stride, False, Ordered())


DATA = bytes(range(16))


def values_of(path):
    return everything_in(ckptool.open(path))


def test_a_file_made_by_hand_is_read(tmp_path):
    legacy(tmp_path / "x", {"w": rebuilt(stored("94412"))}, {"94412": (4, DATA)})
    ckpt = ckptool.open(tmp_path / "x")
    assert ckpt.format == "torch-legacy"
    assert values_of(tmp_path / "x") == [DATA]


def test_storages_stand_in_the_order_of_the_list_and_not_of_the_tensors(tmp_path):
    root = {"a": rebuilt(stored("1")), "b": rebuilt(stored("2"))}
    legacy(tmp_path / "x", root, {"2": (4, b"b" * 16), "1": (4, b"a" * 16)})
    assert values_of(tmp_path / "x") == [b"a" * 16, b"b" * 16]


def test_tensors_over_views_are_tensors_over_the_root_storage(tmp_path):
    root = {
        "whole": rebuilt(stored("7")),
        "part": rebuilt(stored("7", view=("8", 1, 3)), 1, (2,)),
        "same": rebuilt(stored("7", view=("8", 1, 3)), 0, (3,)),
    }
    legacy(tmp_path / "x", root, {"7": (4, DATA)})
    ckpt = ckptool.open(tmp_path / "x")
    tensors = dict(ckpt.state_dict())
    assert values_of(tmp_path / "x") == [DATA, DATA[8:16], DATA[4:16]]
    assert [tensor.offset for tensor in tensors.values()] == [0, 2, 1]
    assert len({id(tensor.storage) for tensor in tensors.values()}) == 1
    ckptool.save(ckpt, tmp_path / "y", format="torch-zip")
    assert weights_of(ckptool.open(tmp_path / "y")) == weights_of(ckpt)


def test_a_bare_storage_that_is_a_view_has_the_bytes_of_its_part(tmp_path):
    legacy(tmp_path / "x", {"s": stored("7", view=("8", 1, 2))}, {"7": (4, DATA)})
    ckpt = ckptool.open(tmp_path / "x")
    (storage,) = ckpt.storages()
    assert bytes(storage.source.read(0, storage.nbytes)) == DATA[4:12]


@pytest.mark.parametrize("kind", ["cuda.FloatStorage", "FloatStorage"])
def test_storage_classes_of_cuda_are_those_of_torch(tmp_path, kind):
    legacy(tmp_path / "x", {"w": rebuilt(stored("0", kind=kind, location="cuda:1"))}, {"0": (4, DATA)})
    tensor = ckptool.open(tmp_path / "x").state_dict()["w"]
    assert (tensor.dtype.name, tensor.location) == ("float32", "cuda:1")


def test_names_and_keys_of_python_2_are_text(tmp_path):
    storage = Stored((b"storage", Name("torch.FloatStorage"), b"94412", b"cpu", 4, None))
    legacy(tmp_path / "x", Ordered({b"conv.weight": rebuilt(storage)}), {"94412": (4, DATA)}, [b"94412"])
    ckpt = ckptool.open(tmp_path / "x")
    assert list(ckpt.state_dict()) == ["conv.weight"]
    assert values_of(tmp_path / "x") == [DATA]
    ckptool.save(ckpt, tmp_path / "y", format="torch-zip")
    assert b"U\x0bconv.weight" in (tmp_path / "y").read_bytes()  # still the byte string that it was
    renamed = ckptool.rename(ckpt, {"conv.": "first."})
    assert list(renamed.state_dict()) == ["first.weight"]


def test_bytes_behind_the_last_storage_are_noticed(tmp_path):
    legacy(tmp_path / "x", {"w": rebuilt(stored("0"))}, {"0": (4, DATA)}, junk=b"junk")
    ckpt = ckptool.open(tmp_path / "x")
    assert ckpt.warnings == ckpt.lost_form == ("4 bytes that follow the last storage",)


def test_source_code_of_classes_is_left_behind_and_said_so(tmp_path):
    module = Stored(("module", Name("mymodels.Net"), "mymodels.py", "class Net: ..."))
    call = body(module) + b")\x81" + body({"weight": rebuilt(stored("0"))}) + b"b"
    parts = [pickled(MAGIC), pickled(1001), pickled(INFO), b"\x80\x02" + call + b".", pickled(["0"])]
    (tmp_path / "x").write_bytes(b"".join(parts) + struct.pack("<q", 4) + DATA)
    ckpt = ckptool.open(tmp_path / "x")
    assert ckpt.root.class_name == "mymodels.Net"
    assert "the source code of 1 " in ckpt.lost_form[0]
    assert "mymodels.Net" in ckpt.lost_form[0]


@pytest.mark.parametrize("protocol", range(6))
def test_the_magic_number_is_recognised_in_every_pickle_protocol(protocol):
    import pickle

    from ckptool.formats.torch_legacy import sniff

    assert sniff(pickle.dumps(MAGIC, protocol))


def test_a_pickle_larger_than_the_first_read_is_read_whole(tmp_path, bytes_read):
    root = {f"layer.{n:05}.weight": rebuilt(stored(str(n))) for n in range(6000)}
    legacy(tmp_path / "x", root, {str(n): (4, DATA) for n in range(6000)})
    ckpt = ckptool.open(tmp_path / "x")
    assert len(ckpt.state_dict()) == 6000
    assert max(bytes_read) >= (1 << 18) * 4


def test_a_big_storage_is_not_read_before_its_bytes_are_wanted(tmp_path, bytes_read):
    legacy(tmp_path / "x", {"w": rebuilt(stored("0", 1 << 20), 5, (2,))}, {"0": (1 << 20, bytes(4 << 20))})
    ckpt = ckptool.open(tmp_path / "x")
    assert sum(bytes_read) < 1 << 19
    assert values_of(tmp_path / "x") == [bytes(8)]
    assert len(list(ckpt.tensors())) == 1


ONE = {"w": rebuilt(stored("0"))}
CONTRADICTIONS = {
    "another version": ({"version": 1000}, "has protocol version 1000, not 1001"),
    "no key in the list": ({"keys": []}, "its list names 0"),
    "a key too many": ({"keys": ["0", "1"]}, "used by no tensor: 1"),
    "a key twice": ({"keys": ["0", "0"]}, "lists a storage twice"),
    "another key": ({"keys": ["1"]}, "not in the list: 0"),
    "a list that is none": ({"keys": {}}, "has no list of storage keys"),
    "keys that are not text": ({"keys": [None]}, "has no list of storage keys"),
    "another number of elements": ({"storages": {"0": (5, DATA)}}, "has 5 elements where it stands"),
    "a negative number of elements": ({"storages": {"0": (-1, DATA)}}, "has -1 elements where it stands"),
    "a storage that is cut short": ({"storages": {"0": (4, DATA[:-1])}}, "is cut short"),
    "no number of elements": ({"storages": {}, "keys": ["0"]}, "is cut short"),
    "a storage larger than the file": (
        {"root": {"w": rebuilt(stored("0", 1 << 40))}},
        "should have 4,398,046,511,104 bytes",
    ),
    "two sizes": ({"root": [rebuilt(stored("0")), rebuilt(stored("0", 3), 0, (1,))]}, "two sizes"),
    "a view beyond its storage": (
        {"root": {"w": rebuilt(stored("0", view=("1", 2, 3)), 0, (1,))}},
        "a view of elements 2 to 5 of a storage of 4",
    ),
    "a negative view": ({"root": {"w": rebuilt(stored("0", view=("1", -1, 2)), 0, (1,))}}, "a view of elements -1"),
    "a view that is none": (
        {"root": {"w": rebuilt(stored("0", view=("1", 2)))}},
        "view metadata that torch does not write",
    ),
    "a tensor beyond its view": (
        {"root": {"w": rebuilt(stored("0", view=("1", 0, 2)), 0, (3,))}},
        "reaches to byte 12 of a storage of 8 bytes",
    ),
    "no view at all": (
        {"root": {"w": rebuilt(Stored(("storage", Name("torch.FloatStorage"), "0", "cpu", 4)))}},
        "without view metadata",
    ),
}


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_a_file_that_contradicts_itself_is_refused(tmp_path, name):
    changes, message = CONTRADICTIONS[name]
    arguments = {"root": ONE, "storages": {"0": (4, DATA)}, **changes}
    legacy(tmp_path / "x", **arguments)
    with pytest.raises(ckptool.Malformed, match=re.escape(message)):
        ckptool.open(tmp_path / "x")


def test_another_magic_number_is_no_legacy_file(tmp_path):
    legacy(tmp_path / "x", ONE, {"0": (4, DATA)}, magic=MAGIC + 1)
    with pytest.raises(ckptool.Malformed, match=r"a plain pickle with .* bytes behind its end"):
        ckptool.open(tmp_path / "x")


def test_a_call_hidden_beside_the_tree_is_refused(tmp_path):
    hidden = b"\x80\x02" + body(Call("os.system", "true")) + b"0" + body(INFO) + b"."
    parts = [pickled(MAGIC), pickled(1001), hidden, pickled(ONE), pickled(["0"])]
    (tmp_path / "x").write_bytes(b"".join(parts) + struct.pack("<q", 4) + DATA)
    with pytest.raises(ckptool.Malformed, match="calls in a pickle that only holds plain data"):
        ckptool.open(tmp_path / "x")


def test_byte_order_that_the_header_states_is_not_used_as_torch_does_not_use_it(tmp_path):
    legacy(tmp_path / "x", ONE, {"0": (4, DATA)}, info={**INFO, "little_endian": False})
    assert values_of(tmp_path / "x") == [DATA]


def test_legacy_files_stay_legacy_files_unless_asked(tmp_path):
    ckptool.save(sample(), tmp_path / "x", format="torch-legacy")
    ckptool.save(ckptool.open(tmp_path / "x"), tmp_path / "y.pth")
    assert ckptool.detect(tmp_path / "y.pth") == "torch-legacy"
