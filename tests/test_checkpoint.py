"""The two primitives under every pass, and what a Checkpoint and a StateDict say of themselves."""

from collections import OrderedDict
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ckptool
from ckptool import Checkpoint, LazyTensor, StateDict, Storage
from ckptool.checkpoint import map_storages
from ckptool.disk.files import Buffer
from ckptool.dtypes import BY_NAME
from ckptool.errors import KeyCollision
from ckptool.inert.in_memory import from_plain, to_plain
from ckptool.passes.rekeying import rekey
from ckptool.tree import ABSENT, ByteString, Dict, Global, List, Object, Set, metadata_of

FLOAT32 = BY_NAME["float32"]


def storage(location="cpu", nbytes=8, **more):
    return Storage(Buffer(bytes(nbytes)), location, FLOAT32, **more)


def tensor(over=None, shape=(2,), stride=(1,), offset=0):
    return LazyTensor(over or storage(), FLOAT32, shape, stride, offset)


def versions(**modules):
    """`_metadata` as torch keeps it: module path -> {"version": n}; `_` is the root."""
    entries = [(path.strip("_").replace("__", "."), Dict([("version", n)])) for path, n in modules.items()]
    return Dict([("_metadata", Dict(entries, ordered=True))])


# -------------------------------------------------------------------------------------------------------- rekey


def rekeyed(node, renamed, root=None):
    ckpt = Checkpoint(root or node)
    return rekey(ckpt, StateDict(node, ""), renamed)


def test_keys_are_renamed_and_dropped_where_they_stand():
    values = [tensor() for _ in range(4)]
    node = Dict(list(zip("abcd", values, strict=True)), ordered=True)
    done = rekeyed(node, {"a": "x", "c": None, "d": "y.z"}).root
    assert done.entries == [("x", values[0]), ("b", values[1]), ("y.z", values[3])]
    assert done.ordered
    assert [key for key, _ in node.entries] == ["a", "b", "c", "d"]


def test_entries_whose_key_is_no_text_stay():
    node = Dict([(0, 1), ("a", tensor()), (None, 2), (("t",), 3)])
    assert [key for key, _ in rekeyed(node, {"a": "b"}).root.entries] == [0, "b", None, ("t",)]


def test_keys_that_stay_stay_byte_strings_and_keys_that_change_become_text():
    node = Dict([(ByteString(b"a"), tensor()), (ByteString(b"b"), tensor())])
    first, second = (key for key, _ in rekeyed(node, {"a": "x", "b": "b"}).root.entries)
    assert (type(first), type(second)) == (str, ByteString)


def test_keys_may_be_exchanged():
    one, other = tensor(), tensor()
    assert rekeyed(Dict([("a", one), ("b", other)]), {"a": "b", "b": "a"}).root.entries == [("b", one), ("a", other)]


@pytest.mark.parametrize(
    ("renamed", "evidence"),
    [
        ({"a": "b"}, ("a   (renamed)", "b   (unchanged)")),
        ({"a": "x", "b": "x"}, ("a   (renamed)", "b   (renamed)")),
        ({"b": "a"}, ("a   (unchanged)", "b   (renamed)")),
    ],
)
def test_two_keys_never_become_one(renamed, evidence):
    with pytest.raises(KeyCollision) as raised:
        rekeyed(Dict([("a", tensor()), ("b", tensor())]), renamed)
    assert raised.value.evidence == evidence


def test_a_key_may_take_the_name_of_one_that_is_dropped():
    kept = tensor()
    assert rekeyed(Dict([("a", kept), ("b", tensor())]), {"a": "b", "b": None}).root.entries == [("b", kept)]


def test_other_attributes_of_a_state_dict_are_kept():
    node = Dict([("a.w", tensor())], True, Dict([("note", "x"), ("_metadata", Dict([("", 1), ("a", 2)])), ("n", 3)]))
    done = rekeyed(node, {"a.w": "b.w"}).root
    assert [key for key, _ in done.attributes.entries] == ["note", "_metadata", "n"]
    assert metadata_of(done).entries == [("", 1), ("b", 2)]


@pytest.mark.parametrize("attributes", [ABSENT, Dict([]), Dict([("_metadata", None)]), 3])
def test_a_state_dict_without_metadata_gets_none(attributes):
    done = rekeyed(Dict([("a.w", tensor())], True, attributes), {"a.w": "b.w"}).root
    assert metadata_of(done) is None


METADATA = [
    # keys before -> after; modules before, modules after (with the version that says which is which)
    pytest.param({"module.a.w": "a.w"}, {"_": 1, "module": 2, "module__a": 3}, {"": 2, "a": 3}, id="a wrapper goes"),
    pytest.param({"a.w": "module.a.w"}, {"_": 2, "a": 3}, {"": 1, "module": 2, "module.a": 3}, id="a wrapper comes"),
    pytest.param({"a.w": "x.y.a.w"}, {"_": 2, "a": 3}, {"": 1, "x": 1, "x.y": 2, "x.y.a": 3}, id="two wrappers come"),
    pytest.param({"x.y.a.w": "a.w"}, {"_": 1, "x": 2, "x__y": 3, "x__y__a": 4}, {"": 3, "a": 4}, id="two wrappers go"),
    pytest.param(
        {"a.module.w": "a.w", "b": "b"}, {"_": 1, "a": 2, "a__module": 3}, {"": 1, "a": 3}, id="a wrapper inside goes"
    ),
    pytest.param(
        {"a.module.w": "a.w"},
        {"_": 1, "a": 2, "a__module": 3},
        {"": 1, "a": 3},
        id="and no other key is left as it was",
    ),
    pytest.param(
        {"module.a.module.w": "a.w"},
        {"_": 1, "module": 2, "module__a": 3, "module__a__module": 4},
        {"": 2, "a": 4},
        id="outside and inside",
    ),
    pytest.param(
        {"module.module.w": "module.w"}, {"_": 1, "module": 2, "module__module": 3}, {"": 2, "module": 3}, id="twice"
    ),
    pytest.param(
        {"a.w": "b.w"}, {"_": 1, "a": 2, "a__relu": 3, "relu": 4}, {"": 1, "b": 2, "b.relu": 3, "relu": 4}, id="renamed"
    ),
    pytest.param({"a.w": "b.w", "b.w": "a.w"}, {"_": 1, "a": 2, "b": 3}, {"": 1, "b": 2, "a": 3}, id="exchanged"),
    pytest.param({"a.x.w": "c.y.w"}, {"_": 1, "a": 2, "a__x": 3}, {"": 1, "c": 2, "c.y": 3}, id="two names change"),
    pytest.param({"a.w": "a.w", "b.w": None}, {"_": 1, "a": 2, "b": 3, "b__relu": 4}, {"": 1, "a": 2}, id="dropped"),
    pytest.param(
        {"a.w": "b.w", "b.v": "b.v"}, {"_": 1, "a": 2, "b": 3}, {"": 1, "b": 3}, id="merged into one that stays"
    ),
    pytest.param(
        {"layer1.w": "blocks.1.w", "h": "h"}, {"_": 1, "layer1": 2}, {"": 1, "blocks.1": 2}, id="one name becomes two"
    ),
    pytest.param(
        {"blocks.1.w": "layer1.w", "h": "h"}, {"_": 1, "blocks": 2, "blocks__1": 3}, {"": 1, "layer1": 3}, id="and back"
    ),
    pytest.param(
        {"conv.w": "enc.conv.w", "fc.w": "dec.fc.w"},
        {"_": 5, "conv": 2, "fc": 3},
        {"": 5, "enc.conv": 2, "dec.fc": 3},
        id="into two new modules",
    ),
    pytest.param({"w": "v"}, {"_": 5, "relu": 2}, {"": 5, "relu": 2}, id="a parameter of the root"),
    pytest.param({"a.w": "a.x.w"}, {"_": 1, "a": 2}, {"": 1, "a.x": 2}, id="a wrapper comes inside"),
    pytest.param(
        {"a.b.c.w": "a.x.w"},
        {"_": 1, "a": 2, "a__b": 3, "a__b__c": 4},
        {"": 1, "a": 2, "a.x": 4},
        id="two names become one",
    ),
]


@pytest.mark.parametrize(("renamed", "before", "after"), METADATA)
def test_metadata_follows_the_keys(renamed, before, after):
    node = Dict([(key, tensor()) for key in renamed], True, versions(**before))
    done = StateDict(rekeyed(node, renamed).root, "")
    assert list(done.metadata.items()) == [(path, {"version": n}) for path, n in after.items()]


def test_renaming_nothing_changes_nothing():
    node = Dict([("a.w", tensor())], True, versions(_=4, a=5, x=6))
    done = rekeyed(node, {"a.w": "a.w"})
    assert StateDict(done.root, "").metadata == StateDict(node, "").metadata
    assert done.history == ()


# -------------------------------------------------------------------------------------------------- map_storages


def test_storages_are_replaced_wherever_they_are_and_once_each():
    shared, alone, bare = storage(key="shared"), storage(key="alone"), storage(key="bare")
    root = Dict(
        [
            ("a", tensor(shared)),
            ("b", tensor(shared, (1,), offset=1)),
            ("list", List([tensor(alone), (tensor(shared),)])),
            ("set", Set([1, 2])),
            ("object", Object("reduce", Global("m", "f"), (bare, shared), [("state", Dict([("x", tensor(alone))]))])),
        ],
        True,
        Dict([("extra", tensor(shared))]),
    )
    asked = []

    def change(old):
        asked.append(old)
        return storage("cuda:0", key=old.key)

    done = map_storages(Checkpoint(root), change)
    assert sorted(s.key for s in asked) == ["alone", "bare", "shared"]
    assert [s.key for s in done.storages()] == [s.key for s in Checkpoint(root).storages()]
    assert {s.location for s in done.storages()} == {"cuda:0"}
    assert done.root.get("a").storage is done.root.get("b").storage is done.root.get("object").args[1]
    assert done.root.get("b").offset == 1
    assert {s.location for s in Checkpoint(root).storages()} == {"cpu"}


def test_a_tree_that_contains_itself_still_does():
    root = Dict([("w", tensor())])
    items = List([root])
    root.entries += [("self", root), ("list", items), ("tuple", (items, root))]
    done = map_storages(Checkpoint(root), lambda s: s).root
    assert done is not root
    assert done.get("self") is done is done.get("list").items[0] is done.get("tuple")[1]
    assert done.get("tuple")[0] is done.get("list")


def test_a_very_deep_tree_is_no_danger():
    node = Dict([("w", tensor())])
    for _ in range(20_000):
        node = List([node])
    done = map_storages(Checkpoint(node), lambda s: storage("cuda:0"))
    assert [s.location for s in done.storages()] == ["cuda:0"]


# ---------------------------------------------------------------------------------------- what a Checkpoint says


def test_tensors_come_at_every_place_and_storages_once_in_the_order_of_the_file():
    one, other = storage(key="1"), storage(key="2")
    first = tensor(one)
    root = Dict([("x", first), ("again", first), ("y", Dict([(0, tensor(other)), ("0", tensor(one))])), ("e", "text")])
    assert [path for path, _ in Checkpoint(root).tensors()] == ["x", "again", "y/0", 'y/"0"']
    assert [s.key for s in Checkpoint(root).storages()] == ["1", "2"]


@pytest.mark.parametrize("root", [None, 3, "text", Dict([]), List([]), ()])
def test_a_checkpoint_may_hold_no_tensor_at_all(root):
    ckpt = Checkpoint(root)
    assert (list(ckpt.tensors()), ckpt.storages(), ckpt.state_dicts()) == ([], [], [])


def test_what_was_done_is_added_to_the_history_of_a_copy():
    ckpt = Checkpoint(None, history=("one",))
    assert ckpt.noting("two", "three").history == ("one", "two", "three")
    assert ckpt.history == ("one",)


def test_where_it_came_from_is_said_in_messages():
    assert Checkpoint(None).where == ""
    assert Checkpoint(None, path=Path("a/b.pth")).where == str(Path("a/b.pth"))
    assert repr(Checkpoint(None, path=Path("b.pth"))) == "Checkpoint('b.pth', 0 storages)"
    assert repr(Checkpoint(Dict([("a", tensor())]))) == "Checkpoint('memory', 1 storage)"


# ----------------------------------------------------------------------------------------- what a StateDict says


def test_a_state_dict_is_a_mapping_in_the_order_of_the_file():
    a, b = tensor(), tensor()
    state_dict = StateDict(Dict([("b", b), ("n", 3), ("a", a), (0, 1)]), "model")
    assert list(state_dict) == ["b", "n", "a"]
    assert (len(state_dict), state_dict["a"], state_dict.get("x")) == (3, a, None)
    assert state_dict.tensors == {"b": b, "a": a}
    assert repr(state_dict) == "StateDict('model', 3 keys)"


def test_ties_are_the_same_view_of_the_same_storage_and_count_once():
    shared = storage(nbytes=16)
    views = {
        "whole": tensor(shared, (4,)),
        "tied": tensor(shared, (4,)),
        "half": tensor(shared, (2,)),
        "other half": tensor(shared, (2,), offset=2),
        "square": tensor(shared, (2, 2), (2, 1)),
        "alone": tensor(),
        "empty": tensor(shared, (0,)),
        "also empty": tensor(shared, (0,)),
    }
    state_dict = StateDict(Dict(list(views.items())), "")
    assert state_dict.ties() == [["whole", "tied"]]
    assert state_dict.parameters == 4 + 2 + 2 + 4 + 2


def test_ties_that_a_note_claims_count_as_ties():
    tie = object()
    entries = [("a", tensor(storage(tie=tie))), ("b", tensor(storage(tie=tie))), ("c", tensor(storage(tie=object())))]
    assert StateDict(Dict(entries), "").ties() == [["a", "b"]]


def test_metadata_are_given_as_plain_values():
    state_dict = StateDict(Dict([("a.w", tensor())], True, versions(_=1, a=2)), "")
    assert state_dict.metadata == {"": {"version": 1}, "a": {"version": 2}}
    assert StateDict(Dict([]), "").metadata is None


# -------------------------------------------------------------------------------------------------- plain values

PLAIN = st.recursive(
    st.none() | st.integers() | st.text(max_size=4) | st.floats(allow_nan=False) | st.binary(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=3) | st.integers(), inner, max_size=3)
        | st.dictionaries(st.text(max_size=3), inner, max_size=3).map(OrderedDict)
    ),
    max_leaves=12,
)


@given(PLAIN)
def test_plain_values_become_a_tree_and_come_back_as_they_were(value):
    again = to_plain(from_plain(value))
    assert repr(again) == repr(value)


def test_metadata_of_plain_values_come_back():
    value = OrderedDict(a=1)
    value._metadata = OrderedDict({"": {"version": 1}})
    again = to_plain(from_plain({"model": value}))["model"]
    assert again._metadata == value._metadata
    assert type(again._metadata) is OrderedDict


def test_a_file_and_its_checkpoint_agree_with_torch_about_ties_parameters_and_metadata(tmp_path):
    torch = pytest.importorskip("torch")
    model = torch.nn.ModuleDict({"embed": torch.nn.Embedding(5, 3), "bn": torch.nn.BatchNorm1d(3)})
    model["head"] = torch.nn.Linear(3, 5)
    model["head"].weight = model["embed"].weight
    torch.save(model.state_dict(), tmp_path / "in.pth")
    state_dict = ckptool.open(tmp_path / "in.pth").state_dict()
    assert list(state_dict) == list(model.state_dict())
    assert state_dict.ties() == [["embed.weight", "head.weight"]]
    assert state_dict.parameters == sum(t.numel() for t in [*model.parameters(), *model.buffers()])
    assert state_dict.metadata == dict(model.state_dict()._metadata)
