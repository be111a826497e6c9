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
import types
import uuid

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from contract import in_one_folder
from hypothesis import given
from same import graph
from strategies import checkpoints, torch_values
from test_real_files import assert_same_values

import ckptool
from ckptool.objects import PLAIN, named_globals

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
    "path as key": ({pathlib.PurePosixPath("k"): 2}, {"k": 2}),
}
SAME = "bytes, no bytes, bytearray, complex, device, size, type, set, Counter".split(", ")
GONE = {
    "function": print,
    "class": Callback,
    "partial": functools.partial(print, 1),
    "bound method": "x".upper,
    "generator": torch.Generator(),
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


def test_objects_that_hold_themselves_are_dicts_that_do(tmp_path):
    found, _ = cleaned(tmp_path, {"callback": Callback(), "w": torch.ones(1)})
    assert found["callback"]["me"] is found["callback"]
    assert found["callback"]["count"] == 3
    assert "function" not in found["callback"]


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


@pytest.mark.parametrize("protocol", range(6))
def test_a_plain_pickle_can_be_cleaned(tmp_path, protocol):
    value = {"w": torch.ones(2), "args": argparse.Namespace(a=1), "n": np.ones(2), "raw": b"\0", "no": b"", "s": {1}}
    (tmp_path / "x.pkl").write_bytes(pickle.dumps(value, protocol))
    ckptool.save(ckptool.clean(ckptool.open(tmp_path / "x.pkl")), tmp_path / "y.pth")
    found = torch.load(tmp_path / "y.pth", weights_only=True)
    assert (found["args"], found["raw"], found["no"], found["s"]) == ({"a": 1}, b"\0", b"", {1})
    assert torch.equal(found["n"], torch.ones(2, dtype=torch.float64))
