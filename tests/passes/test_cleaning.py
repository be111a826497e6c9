"""A clean copy is what `torch.load(weights_only=True)` loads, with all that it can hold, and every change is said."""

import argparse
import collections
import dataclasses
import datetime
import decimal
import enum
import fractions
import functools
import pathlib
import pickle
import random
import types
import uuid

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from assemble import Call, Name, pickled
from contract import in_one_folder
from hypothesis import given
from hypothesis import strategies as st
from same import graph
from strategies import checkpoints, tensor_of, torch_values
from test_real_files import assert_same_values

import ckptool
from ckptool.checkpoint import Checkpoint
from ckptool.inert.allowed import HARMLESS, PLAIN, named_globals
from ckptool.tree import ByteString, Dict, Global, List, Object, Set

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning")


class Strategy(enum.Enum):
    NO = "no"


OUT = pathlib.PurePosixPath("/tmp/run")


@dataclasses.dataclass
class Arguments:
    rate: float = 0.1
    out: pathlib.PurePosixPath = OUT
    strategy: Strategy = Strategy.NO


Point = collections.namedtuple("Point", "x y")


class Config(dict):
    """A class of dicts."""


class Names(set):
    """A class of sets."""


class Pair:
    """An object whose state is a tuple."""

    def __init__(self, left, right):
        self.left, self.right = left, right

    def __getstate__(self):
        return self.left, self.right

    def __setstate__(self, state):
        self.left, self.right = state


class Made:
    """An object that is made by a call."""

    def __init__(self, weight, name):
        self.weight, self.name = weight, name

    def __reduce__(self):
        return Made, (self.weight, self.name)


class Box(torch.Tensor):
    """A class of tensors."""


class Callback:
    """An object that calls what it holds."""

    def __init__(self):
        self.function, self.count, self.me = print, 3, self


def parameter():
    made = torch.nn.Parameter(torch.ones(2))
    made.callback = Callback()
    return made


CASES = {
    "path": (pathlib.PurePosixPath("/a/b.c"), "/a/b.c"),
    "relative path": (pathlib.PurePosixPath("a"), "a"),
    "path of Windows": (pathlib.PureWindowsPath("C:\\x\\y"), "C:\\x\\y"),
    "Namespace": (argparse.Namespace(lr=0.1, out=pathlib.PurePosixPath("x")), {"lr": 0.1, "out": "x"}),
    "SimpleNamespace": (types.SimpleNamespace(a=1), {"a": 1}),
    "dataclass": (Arguments(), {"rate": 0.1, "out": "/tmp/run", "strategy": "no"}),
    "defaultdict": (collections.defaultdict(list, {"a": [1]}), {"a": [1]}),
    "empty defaultdict": (collections.defaultdict(list), {}),
    "deque": (collections.deque([1, 2]), [1, 2]),
    "Counter": (collections.Counter("aab"), collections.Counter("aab")),
    "named tuple": (Point(1, 2), (1, 2)),
    "class of dicts": (Config(a=1), {"a": 1}),
    "enum": (Strategy.NO, "no"),
    "date": (datetime.datetime(2024, 5, 6, 7, 8, 9), "2024-05-06T07:08:09"),
    "day": (datetime.date(2024, 5, 6), "2024-05-06"),
    "duration": (datetime.timedelta(hours=1), "1:00:00"),
    "Decimal": (decimal.Decimal("1.50"), "1.50"),
    "Fraction": (fractions.Fraction(1, 3), "1/3"),
    "UUID": (uuid.UUID(int=5), str(uuid.UUID(int=5))),
    "range": (range(2, 9, 3), "range(2, 9, 3)"),
    "numpy number": (np.float64(1.5), 1.5),
    "numpy bool": (np.bool_(True), True),
    "numpy type": (np.dtype("float32"), "float32"),
    "frozenset": (frozenset({1, 2}), {1, 2}),
    "bytes": (b"\0\xff", b"\0\xff"),
    "no bytes": (b"", b""),
    "bytearray": (bytearray(b"x"), bytearray(b"x")),
    "complex": (1 + 2j, 1 + 2j),
    "huge integer": (1 << 3000, hex(1 << 3000)),
    "device": (torch.device("cuda", 1), torch.device("cuda", 1)),
    "size": (torch.Size([1, 2]), torch.Size([1, 2])),
    "type": (torch.bfloat16, torch.bfloat16),
    "set": ({1, "a"}, {1, "a"}),
    "tuple of keys": ({(1, pathlib.PurePosixPath("k")): 2}, {(1, "k"): 2}),
    "class of sets": (Names({1}), [1]),
    "state that is a tuple": (Pair(1, [2]), (1, [2])),
    "array of objects": (np.array([["a", 1], [None, 2.5]], dtype=object), [["a", 1], [None, 2.5]]),
    "array of texts": (np.array([["a", "bcd"]]), [["a", "bcd"]]),
    "array of texts in Fortran's order": (np.asfortranarray([["a", "b"], ["c", "d"]]), [["a", "b"], ["c", "d"]]),
    "array of bytes": (np.array([b"a", b"bcd"]), [b"a", b"bcd"]),
    "numpy text": (np.str_("aé"), "aé"),
    "array of one object": (np.array(None, dtype=object), None),
    "array of nothing": (np.empty((0, 2), dtype=object), []),
    "path as key": ({pathlib.PurePosixPath("k"): 2}, {"k": 2}),
}
SAME = "bytes, no bytes, bytearray, complex, device, size, type, set, Counter".split(", ")
GONE = {
    "function": print,
    "class": Callback,
    "partial": functools.partial(print, 1),
    "bound method": "x".upper,
}


def cleaned(tmp_path, value, name="y.pth"):
    """(what weights_only loads of the clean copy of a file with VALUE, the lines that say what was changed)."""
    torch.save(value, tmp_path / "x.pth")
    receipt = ckptool.save(ckptool.clean(ckptool.open(tmp_path / "x.pth")), tmp_path / name, overwrite=True)
    return torch.load(tmp_path / name, weights_only=True), receipt.steps


@pytest.mark.parametrize("name", CASES)
def test_plain_data_are_kept_and_objects_become_what_they_hold(tmp_path, name):
    value, expected = CASES[name]
    found, steps = cleaned(tmp_path, {"value": value, "w": torch.ones(2)})
    assert found["value"] == expected
    assert type(found["value"]) is type(expected)
    changed = [step for step in steps if step.startswith("clean value")]
    assert bool(changed) == (name not in SAME)


@pytest.mark.parametrize("name", GONE)
def test_what_would_have_to_be_run_is_left_out_and_said(tmp_path, name):
    found, steps = cleaned(tmp_path, {"gone": GONE[name], "listed": [1, GONE[name], 2], "w": torch.ones(2)})
    assert found["listed"] == [1, None, 2]
    assert set(found) == {"listed", "w"}
    assert any(step.startswith("clean gone: ") and step.endswith("left out") for step in steps)
    assert any(step.startswith("clean listed/1: ") for step in steps)


def test_tensors_are_kept_as_they_are_with_what_they_share(tmp_path):
    shared = torch.arange(6.0).reshape(2, 3)
    value = {
        "a": shared.t(),
        "b": shared[1:],
        "p": torch.nn.Parameter(torch.ones(2)),
        "sparse": torch.eye(3).to_sparse(),
        "csr": torch.eye(3).to_sparse_csr(),
        "q": torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8),
        "meta": torch.empty(2, device="meta"),
        "conj": torch.ones(2, dtype=torch.complex64).conj(),
        "storage": torch.ones(2).untyped_storage(),
    }
    found, steps = cleaned(tmp_path, value)
    assert steps == ("clean: nothing had to be changed",)
    assert list(found) == list(value)
    assert found["a"].data_ptr() == found["b"].data_ptr() - 12
    assert torch.equal(found["sparse"].to_dense(), torch.eye(3))
    assert torch.equal(found["csr"].to_dense(), torch.eye(3))
    assert torch.equal(found["q"].dequantize(), value["q"].dequantize())
    assert found["conj"].is_conj()


def test_tensors_of_other_classes_and_arrays_become_plain_tensors(tmp_path):
    value = {"box": torch.arange(3.0).as_subclass(Box), "array": np.arange(3), "p": parameter()}
    found, steps = cleaned(tmp_path, value)
    assert [type(found[key]) for key in found] == [torch.Tensor, torch.Tensor, torch.nn.Parameter]
    assert found["array"].tolist() == [0, 1, 2]
    text = "\n".join(steps)
    assert "clean box: a tensor of class test_cleaning.Box -> a plain tensor" in text
    assert "clean array: a numpy array -> a tensor" in text
    assert "without callback" in text


def test_whole_models_become_their_state_dicts(tmp_path):
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    optimizer = torch.optim.Adam(model.parameters())
    found, steps = cleaned(tmp_path, {"model": model, "optimizer": optimizer, "epoch": 3})
    assert_same_values(found["model"], model.state_dict())
    assert found["epoch"] == 3
    assert found["optimizer"]["defaults"]["lr"] == 0.001
    assert "clean model: torch.nn.modules.container.Sequential -> its state dict of 7 keys" in steps


def test_functions_that_would_change_a_state_dict_are_mentioned(tmp_path):
    model = torch.nn.Linear(1, 1)
    model._register_state_dict_hook(print)
    _, steps = cleaned(tmp_path, model)
    assert steps[0].endswith("Linear -> its state dict of 2 keys; functions that change it are not run")


def test_objects_that_hold_themselves_are_dicts_that_do(tmp_path):
    found, _ = cleaned(tmp_path, {"callback": Callback(), "w": torch.ones(1)})
    assert found["callback"]["me"] is found["callback"]
    assert found["callback"]["count"] == 3
    assert "function" not in found["callback"]


def test_tensors_are_kept_wherever_they_are_in_objects(tmp_path):
    found, steps = cleaned(
        tmp_path, {"made": Made(torch.ones(2), "x"), "g": torch.Generator(), "p": Pair(torch.ones(1), 2)}
    )
    assert found["made"][0].tolist() == [1, 1]
    assert found["made"][1] == "x"
    assert found["g"][2].dtype == torch.uint8
    assert found["p"][0].tolist() == [1]
    assert "clean made: test_cleaning.Made -> its arguments" in steps


def test_what_an_object_holds_beside_its_entries_is_named(tmp_path):
    config = Config(a=1)
    config.source = "x"
    numbers = Numbers([1, 2])
    numbers.unit = "m"
    found, steps = cleaned(tmp_path, {"config": config, "numbers": numbers, "w": torch.ones(1)})
    assert found["config"] == {"a": 1}
    assert found["numbers"] == [1, 2]
    assert "clean config: test_cleaning.Config -> a dict of 1 without the attributes source" in steps
    assert "clean numbers: test_cleaning.Numbers -> a list of 2 without the attributes unit" in steps


class Numbers(list):
    """A class of lists."""


def test_of_two_keys_that_become_one_the_one_that_was_plain_stays(tmp_path):
    value = {pathlib.PurePosixPath("a"): 1, "a": 2, pathlib.PurePosixPath("b"): 3}
    found, steps = cleaned(tmp_path, {"files": value, "w": torch.ones(1)})
    assert found["files"] == {"a": 2, "b": 3}
    assert "clean files/#0: an entry whose key became 'a', as another -> left out" in steps


def test_devices_and_sizes_can_be_keys(tmp_path):
    value = {torch.device("cpu"): 1, torch.Size([1]): 2, 1j: 3}
    found, steps = cleaned(tmp_path, {"x": value})
    assert (found["x"], steps) == (value, ("clean: nothing had to be changed",))


def test_a_key_that_would_take_for_ever_to_hash_is_left_out(tmp_path):
    made = Object("newobj", Global("some", "Pair"), (1, 2))
    for _ in range(60):
        made = Object("newobj", Global("some", "Pair"), (made, made))
    ckpt = Checkpoint(Dict([("set", Set([made])), ("dict", Dict([(made, 1)])), ("w", 1)]))
    ckptool.save(ckptool.clean(ckpt), tmp_path / "y.pth")
    found = torch.load(tmp_path / "y.pth", weights_only=True)
    assert (found["dict"], type(found["set"]), found["w"]) == ({}, list, 1)


class Wrapped(torch.Tensor):
    """A tensor that keeps its values in an attribute, as a part of a DTensor and tensors of other libraries do."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, (4, 3), dtype=inner.dtype)

    def __init__(self, inner):
        self.inner, self.rank = inner, 1

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        raise NotImplementedError

    def __reduce_ex__(self, protocol):
        arguments = Wrapped, self.dtype, (4, 3), (3, 1), 0, self.layout, self.device, False
        return torch._tensor._rebuild_from_type_v2, (
            torch._utils._rebuild_wrapper_subclass,
            Wrapped,
            arguments,
            {"inner": self.inner, "rank": 1},
        )


def test_tensors_that_have_no_plain_form_become_their_parts(tmp_path):
    jagged = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
    sparse = torch.nn.Parameter(torch.eye(2).to_sparse())
    sparse.callback = Callback()
    found, steps = cleaned(tmp_path, {"wrapped": Wrapped(torch.ones(2, 3)), "jagged": jagged, "sparse": sparse})
    assert found["wrapped"]["inner"].shape == (2, 3)
    assert found["jagged"]["values"].tolist() == [1] * 5
    assert torch.equal(found["sparse"].to_dense(), torch.eye(2))
    text = "\n".join(steps)
    assert "clean wrapped: a tensor of class test_cleaning.Wrapped -> a dict of its parts (inner) without rank" in text
    assert "clean sparse: a sparse_coo tensor with attributes -> a sparse_coo one without callback" in text


HOSTILE = {
    "size": Call("torch.Size", "abc"),
    "device": Call("torch.device", "bogus", 1),
    "number of a device": Call("torch.device", "cuda", -5),
    "layout": Call("torch.serialization._get_layout", "torch.none"),
    "counter": Call("collections.Counter", 5),
    "bytes without end": Call("builtins.bytearray", 1 << 40),
    "complex": Call("builtins.complex", 10**400, 0),
    "parameter": Call("torch.nn.parameter.Parameter", "x"),
    "rebuilt": Call("torch._utils._rebuild_parameter", "x", True, {}),
    "array": Call("numpy.core.multiarray._reconstruct", Name("numpy.ndarray"), (0,), b"b"),
    "run": Call("os.system", "true"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_calls_that_would_fail_are_not_in_a_clean_copy(tmp_path, name):
    (tmp_path / "x.pkl").write_bytes(pickled({"it": HOSTILE[name], "listed": [HOSTILE[name]], "n": 1}))
    ckptool.save(ckptool.clean(ckptool.open(tmp_path / "x.pkl")), tmp_path / "y.pth")
    assert torch.load(tmp_path / "y.pth", weights_only=True)["n"] == 1


class OmegaNode:
    """Stands in for a node of OmegaConf, whose pickles have this state."""

    def __init__(self, **state):
        vars(self).update(state, _parent=None, _metadata=None, _flags_cache=None)


def test_omegaconf_is_what_it_holds(tmp_path, monkeypatch):
    import sys

    module = types.ModuleType("omegaconf.dictconfig")
    module.DictConfig = type("DictConfig", (OmegaNode,), {"__module__": "omegaconf.dictconfig"})
    module.AnyNode = type("AnyNode", (OmegaNode,), {"__module__": "omegaconf.dictconfig"})
    monkeypatch.setitem(sys.modules, "omegaconf", types.ModuleType("omegaconf"))
    monkeypatch.setitem(sys.modules, "omegaconf.dictconfig", module)
    config = module.DictConfig(_content={"lr": module.AnyNode(_val=0.5), "deep": module.DictConfig(_content={})})
    found, _ = cleaned(tmp_path, {"hyper_parameters": config, "w": torch.ones(1)})
    assert found["hyper_parameters"] == {"lr": 0.5, "deep": {}}


def test_many_changes_of_one_kind_share_a_line(tmp_path):
    found, steps = cleaned(tmp_path, {"losses": [np.float64(n) for n in range(50)], "w": torch.ones(1)})
    assert found["losses"] == list(range(50))
    assert steps == ("clean losses/{} (50 places): a numpy float64 -> a number",)


def test_what_is_nested_without_end_is_cut(tmp_path):
    value = []
    for _ in range(400):
        value = [value]
    found, steps = cleaned(tmp_path, {"deep": value, "w": torch.ones(1)})
    assert isinstance(found["deep"], list)
    assert any("nested too deeply -> left out" in step for step in steps)


@in_one_folder
@given(ckpt=checkpoints())
def test_any_checkpoint_of_plain_data_stays_as_it_is_but_for_what_torch_cannot_say(tmp_path, ckpt):
    done = ckptool.clean(ckpt)
    assert set(named_globals(done.root)) <= PLAIN
    ckptool.save(done, tmp_path / "x", format="torch-zip", overwrite=True)
    if done.history == ("clean: nothing had to be changed",):
        assert graph(done.root) == graph(ckpt.root)
        assert graph(torch.load(tmp_path / "x", weights_only=True, map_location=lambda s, _: s)) is not None


@in_one_folder
@given(value=torch_values(weights_only=False))
def test_weights_only_loads_every_clean_copy(tmp_path, value):
    torch.save(value, tmp_path / "x")
    ckptool.save(ckptool.clean(ckptool.open(tmp_path / "x")), tmp_path / "y", overwrite=True, format="torch-zip")
    torch.load(tmp_path / "y", weights_only=True)


class Objects:
    """Makes trees of objects of every class that is known and of others, with arguments and states of any kind."""

    names = (
        *sorted(PLAIN),
        *sorted(HARMLESS),
        *"""some.Thing os.system functools.partial omegaconf.dictconfig.DictConfig torch.jit._pickle.restore_type_tag
        numpy.ma.core._mareconstruct torch.nn.modules.linear.Linear torch.autograd.variable.Variable""".split(),
    )
    scalars = (None, True, -5, 1 << 3000, 3.5, b"\xff", ByteString(b"k\xff"), *"a cuda:1 torch.sparse_coo f8".split())

    def __init__(self, seed):
        self.random, self.made = random.Random(seed), []

    def some(self, depth, most=4):
        return [self.any(depth) for _ in range(self.random.randrange(most))]

    def pairs(self, depth):
        keys = ["a", "b", 1, (1, "a"), *([self.any(1)] if self.random.random() < 0.3 else [])]
        return [(self.random.choice(keys), item) for item in self.some(depth)]

    def any(self, depth):
        chosen = self.random.randrange(12 if depth else 4)
        if chosen < 2:
            return self.random.choice(self.scalars)
        if chosen == 2:
            return tensor_of("float32")
        if chosen == 3:
            return self.random.choice(self.made) if self.made else self.name()
        if chosen == 4:
            return tuple(self.some(depth - 1))
        if chosen == 5:
            return self.random.choice([self.name(), tensor_of("float32").storage, bytearray(b"x")])
        node = self.random.choice([List, Dict, Set, Object, Object, Object])
        if node is Object:
            how = self.random.choice(["reduce", "newobj", "obj"])
            node = Object(how, self.name(), tuple(self.some(depth - 1, 5)))
            self.made.append(node)
            for kind in self.random.sample(["items", "entries", "state"], self.random.randrange(3)):
                fill = {"items": self.some, "entries": self.pairs, "state": self.any}[kind]
                node.steps.append((kind, fill(depth - 1)))
            return node
        node = node()
        self.made.append(node)
        if isinstance(node, Dict):
            node.entries, node.ordered = self.pairs(depth - 1), self.random.random() < 0.5
        else:
            node.items = self.some(depth - 1)
        return node

    def name(self):
        return Global(*self.random.choice(self.names).rpartition(".")[::2])


@in_one_folder
@given(seed=st.integers(0, 1 << 32))
def test_weights_only_loads_what_is_left_of_any_objects(tmp_path, seed):
    trees = [Objects(seed + number).any(5) for number in range(10)]  # in one file, since each file takes a sync
    ckpt = Checkpoint(Dict([("any", List(trees)), ("w", tensor_of("float32"))]))
    ckptool.save(ckptool.clean(ckpt), tmp_path / "y", overwrite=True, format="torch-zip")
    assert torch.load(tmp_path / "y", weights_only=True)["w"].shape == (3,)


def itself():
    """A tuple that a list in it holds."""
    inner = List()
    inner.items = [1, (inner, "x")]
    return inner.items[1]


def test_a_tuple_that_holds_itself_becomes_a_list_since_weights_only_cannot_make_one(tmp_path):
    # A pickle makes such a tuple and takes the list off the stack again, which weights_only does not know.
    ckpt = Checkpoint(Dict([("any", itself()), ("w", tensor_of("float32"))]))
    receipt = ckptool.save(ckptool.clean(ckpt), tmp_path / "y.pth")
    assert receipt.steps == ("clean any: a tuple that holds itself -> a list",)
    held = torch.load(tmp_path / "y.pth", weights_only=True)["any"]
    assert held[0] == [1, held]
    assert held[0][1] is held
    assert held[1] == "x"


def test_a_tuple_that_holds_itself_becomes_a_list_where_what_came_first_is_left_out(tmp_path):
    held = itself()
    function = Global("os", "system")
    ckpt = Checkpoint(Dict([(Object("reduce", function, (held[0],)), 1), ("any", held), ("w", tensor_of("float32"))]))
    ckptool.save(ckptool.clean(ckpt), tmp_path / "y.pth")
    assert isinstance(torch.load(tmp_path / "y.pth", weights_only=True)["any"][0], list)


def test_text_of_python_2_in_the_attributes_of_a_parameter_becomes_text(tmp_path):
    state = Dict([("title", ByteString(b"k\xff"))])
    callee = Global("torch._utils", "_rebuild_parameter_with_state")
    parameter = Object("reduce", callee, (tensor_of("float32"), True, Dict(ordered=True), state))
    ckptool.save(ckptool.clean(Checkpoint(Dict([("w", parameter)]))), tmp_path / "y.pth")
    assert torch.load(tmp_path / "y.pth", weights_only=True)["w"].title == "k\xff"


def test_parameters_whose_attributes_hold_the_whole_file_are_looked_at_once(tmp_path):
    """Each attribute leads to all other parameters, and from each of them to all others again."""
    root = Dict()
    callee = Global("torch._utils", "_rebuild_parameter_with_state")
    states = [Dict([("owner", root), ("n", n)]) for n in range(30)]
    made = [Object("reduce", callee, (tensor_of("float32"), True, Dict(ordered=True), state)) for state in states]
    root.entries = [(f"w{n}", one) for n, one in enumerate(made)]
    receipt = ckptool.save(ckptool.clean(Checkpoint(root)), tmp_path / "y.pth")
    assert len(receipt.steps) == 30
    assert "a plain tensor without owner, n" in receipt.steps[0]
    assert len(torch.load(tmp_path / "y.pth", weights_only=True)) == 30


@pytest.mark.parametrize("grad", ["cuda:1", 1, None, Dict()])
@pytest.mark.parametrize("state", [None, Dict([("a", 1)])])
def test_the_arguments_of_a_parameter_that_torch_cannot_make_are_kept(tmp_path, grad, state):
    for_hooks = Dict([("hook", 1)], ordered=True)
    called = ("_rebuild_parameter", ()) if state is None else ("_rebuild_parameter_with_state", (state,))
    parameter = Object("reduce", Global("torch._utils", called[0]), (tensor_of("float32"), grad, for_hooks, *called[1]))
    ckptool.save(ckptool.clean(Checkpoint(Dict([("w", parameter)]))), tmp_path / "y.pth")
    assert torch.load(tmp_path / "y.pth", weights_only=True)["w"][0].shape == (3,)


@pytest.mark.parametrize("state", ["x", (1, 2, 3), Dict([(1, "a")]), tensor_of("float32")])
def test_what_torch_cannot_set_as_attributes_of_a_parameter_is_kept_beside_it(tmp_path, state):
    callee = Global("torch._utils", "_rebuild_parameter_with_state")
    parameter = Object("reduce", callee, (tensor_of("float32"), True, Dict(ordered=True), state))
    ckptool.save(ckptool.clean(Checkpoint(Dict([("w", parameter)]))), tmp_path / "y.pth")
    found = torch.load(tmp_path / "y.pth", weights_only=True)["w"]
    assert found[0].shape == (3,)
    assert len(found) == 4


@pytest.mark.parametrize("how", ["newobj", "obj"])
def test_calls_are_written_in_the_one_way_that_weights_only_knows(tmp_path, how):
    size = Object(how, Global("torch", "Size"), ((2, 3),))
    meta = Object(how, Global("torch._utils", "_rebuild_meta_tensor_no_storage"), (FLOAT, (2,), (1,), False))
    parameter = Object("reduce", Global("torch.nn.parameter", "Parameter"), (tensor_of("float32"), True, None, None))
    ckpt = Checkpoint(Dict([("size", size), ("meta", meta), ("parameter", parameter), ("w", 1)]))
    ckptool.save(ckptool.clean(ckpt), tmp_path / "y.pth")
    found = torch.load(tmp_path / "y.pth", weights_only=True)
    assert found["size"] == (2, 3)
    assert isinstance(found["parameter"], torch.nn.Parameter)


FLOAT = Global("torch", "float32")


@pytest.mark.parametrize("protocol", range(6))
def test_a_plain_pickle_can_be_cleaned(tmp_path, protocol):
    value = {"w": torch.ones(2), "args": argparse.Namespace(a=1), "n": np.ones(2), "raw": b"\0", "no": b"", "s": {1}}
    (tmp_path / "x.pkl").write_bytes(pickle.dumps(value, protocol))
    ckptool.save(ckptool.clean(ckptool.open(tmp_path / "x.pkl")), tmp_path / "y.pth")
    found = torch.load(tmp_path / "y.pth", weights_only=True)
    assert (found["args"], found["raw"], found["no"], found["s"]) == ({"a": 1}, b"\0", b"", {1})
    assert torch.equal(found["n"], torch.ones(2, dtype=torch.float64))
