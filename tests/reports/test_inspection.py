"""`ckptool inspect`: what stands beside the weights is named, and values are described as numpy would describe them."""

import argparse
import json
import math
import pathlib
import pickle
import sys
import types

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ckptool
from ckptool import tree
from ckptool.checkpoint import Checkpoint
from ckptool.disk.files import Buffer
from ckptool.dtypes import BY_NAME
from ckptool.reports.comparing.numbers import statistics
from ckptool.reports.inspect import describe, inspect, narrowed, statistics_of
from ckptool.reports.inspect_text import inspect_text
from ckptool.reports.training import _FRAMEWORKS, settings_of
from ckptool.tensor import LazyTensor, Storage, contiguous_stride
from ckptool.tree import Dict, Global, List, Object


def tensor(array, location="cpu"):
    array = np.ascontiguousarray(array)
    kind = BY_NAME[array.dtype.name]
    return LazyTensor(
        Storage(Buffer(array.tobytes()), location, kind), kind, array.shape, contiguous_stride(array.shape)
    )


def weights(layers=3):
    return Dict(
        [(f"layers.{n}.{leaf}", tensor(np.ones((4, 4), "float32"))) for n in range(layers) for leaf in "ab"], True
    )


@pytest.mark.parametrize(("name", "group"), [(name, group) for name, groups in _FRAMEWORKS for group in groups])
def test_each_framework_is_told_by_its_entries(name, group):
    ckpt = Checkpoint(Dict([(key, 1) for key in sorted(group)]))
    assert describe(ckpt).training.framework == name


def test_a_plain_state_dict_is_of_no_framework():
    found = describe(Checkpoint(weights())).training
    assert (found.framework, found.progress, found.state, found.settings) == ("", [], [], [])


def adam(lr=0.001):
    moments = [
        (n, Dict([("exp_avg", tensor(np.zeros(4, "f4"))), ("exp_avg_sq", tensor(np.zeros(4, "f4")))])) for n in (0, 1)
    ]
    group = Dict([("lr", lr), ("betas", (0.9, 0.999)), ("params", List([0, 1]))])
    return Dict([("state", Dict(moments)), ("param_groups", List([group]))])


def test_training_state_and_settings_are_shown_without_making_an_object():
    namespace = Object(
        "reduce", Global("argparse", "Namespace"), (), [("state", Dict([("lr", 0.1), ("deep", Dict([("n", 2)]))]))]
    )
    root = Dict([("epoch", 3), ("model", weights()), ("optimizer", adam()), ("args", namespace)])
    found = describe(Checkpoint(root))
    assert found.training.progress == [("epoch", "3")]
    assert found.training.state == [
        ("optimizer", "Adam or alike, 4 tensors, 1 group of 2 parameters, lr 0.001, betas 0.9, 0.999", 64)
    ]
    assert found.training.settings == [("args/lr", "0.1"), ("args/deep/n", "2")]
    assert found.slim == 64


class OmegaNode:
    """Stands in for a node of OmegaConf, whose pickles have this state."""

    def __init__(self, **state):
        vars(self).update(_metadata={"optional": True, "key": None}, _parent=None, _flags_cache=None, **state)


def test_settings_of_omegaconf_are_what_it_holds(tmp_path, monkeypatch):
    module = types.ModuleType("omegaconf.dictconfig")
    for name in ("DictConfig", "AnyNode"):
        setattr(module, name, type(name, (OmegaNode,), {"__module__": "omegaconf.dictconfig"}))
    monkeypatch.setitem(sys.modules, "omegaconf", types.ModuleType("omegaconf"))
    monkeypatch.setitem(sys.modules, "omegaconf.dictconfig", module)
    config = module.DictConfig(_content={"lr": module.AnyNode(_val=0.5)})
    vars(config)["_content"]["deep"] = deep = module.DictConfig(_content={"n": module.AnyNode(_val=3)})
    deep._parent = config
    (tmp_path / "x.pkl").write_bytes(pickle.dumps({"cfg": config, "hparams": deep}, protocol=2))
    settings = inspect(tmp_path / "x.pkl").training.settings
    assert settings == [("cfg/lr", "0.5"), ("cfg/deep/n", "3"), ("hparams/n", "3")]


def test_settings_are_what_json_can_have(tmp_path):
    held = {
        "hyper_parameters": {
            "sizes": (1, 2), "args": argparse.Namespace(n=np.int64(3), out=pathlib.PurePosixPath("/runs")), 7: None,
            "nan": float("nan"), "w": np.ones((2, 3), "float32"), "run": print,
        },
        "model": {"fc.weight": np.ones((2, 3))}, "epoch": 3,
    }  # fmt: skip
    (tmp_path / "x.pkl").write_bytes(pickle.dumps(held, protocol=2))
    found = settings_of(ckptool.open(tmp_path / "x.pkl"))
    assert json.loads(json.dumps(found, allow_nan=False)) == {"hyper_parameters": {
        "sizes": [1, 2], "args": {"n": 3, "out": "/runs"}, "7": None, "nan": "nan", "w": "tensor float32 [2, 3]",
    }}  # fmt: skip


def test_settings_that_would_grow_without_end_are_refused(tmp_path):
    value = {"lr": 0.1}
    for _ in range(40):
        value = {"a": value, "b": value}
    (tmp_path / "x.pkl").write_bytes(pickle.dumps({"args": value}))
    with pytest.raises(ckptool.CannotCarry, match="more than 100,000 values"):
        settings_of(ckptool.open(tmp_path / "x.pkl"))


def test_settings_that_stand_in_themselves_are_cut_there(tmp_path):
    value = {"lr": 0.1}
    value.update(a=value, b=[value])
    (tmp_path / "x.pkl").write_bytes(pickle.dumps({"args": value}))
    assert settings_of(ckptool.open(tmp_path / "x.pkl")) == {"args": {"lr": 0.1, "a": "…", "b": ["…"]}}


def test_numbers_of_numpy_are_shown(tmp_path):
    held = {"best_fitness": np.float64(0.75), "best": np.float32(0.5), "count": np.int64(3), "ok": np.bool_(True)}
    held["model"] = {"fc.weight": np.ones((2, 3)), "fc.bias": np.ones(2)}
    (tmp_path / "x.pkl").write_bytes(pickle.dumps(held, protocol=2))
    found = inspect(tmp_path / "x.pkl")
    assert found.training.progress == [("best_fitness", "0.75")]
    told = dict(found.others)
    assert [told[name].split()[-1] for name in ("best", "count", "ok")] == ["0.5", "3", "True"]


def test_what_is_stored_and_what_is_used(tmp_path):
    whole = tensor(np.zeros(1000, "float32"))
    part = LazyTensor(whole.storage, whole.dtype, (10,), (1,), 5)
    ckptool.save(Checkpoint(Dict([("w", part), ("v", tensor(np.zeros(3, "f4")))], True)), tmp_path / "a.pth")
    found = inspect(tmp_path / "a.pth")
    assert (found.stored, found.used) == (4012, 52)
    assert "4.0 kB of the 4.0 kB stored are not used by any tensor" in inspect_text(found)


def test_a_filter_keeps_what_fits_and_must_fit_something():
    seen = describe(Checkpoint(weights()))
    assert [t.key for t in narrowed(seen, "layers.1").tensors] == ["layers.1.a", "layers.1.b"]
    with pytest.raises(ckptool.NoMatch):
        narrowed(seen, "absent")


def test_layers_that_look_alike_are_one_line_though_they_are_stored_in_other_ways():
    whole = weights()
    entries = dict(whole.entries)
    entries["layers.1.a"] = entries["layers.1.a"].changed(requires_grad=True)
    entries["layers.2.b"] = entries["layers.2.b"].changed(stride=(1, 4))
    text = inspect_text(describe(Checkpoint(Dict(list(entries.items()), True)))).splitlines()
    assert [line.split() for line in text if "layers" in line] == [
        ["layers.{0..2}", "x3", "384", "bytes", "a", "[4,", "4]", "b", "[4,", "4]"]
    ]


@pytest.mark.parametrize("slashes", ["/", "//"])
def test_modules_of_names_with_slashes_have_lines_of_their_own(tmp_path, slashes):
    """JAX code writes them into .npz files; AlphaFold's has two slashes before the name of a parameter."""
    shapes = {f"Net/layers/{n}/attention{slashes}{leaf}": (2, 2) for n in range(3) for leaf in ("w", "b")}
    np.savez(tmp_path / "x.npz", **{key: np.ones(shape, "float32") for key, shape in shapes.items()})
    assert list(ckptool.open(tmp_path / "x.npz").state_dict().keys()) == list(shapes)
    row = " ".join(inspect_text(inspect(tmp_path / "x.npz")).split("Net/layers/")[1].split()[:9])
    name = f"{{0..2}}/attention{slashes[1:]}"
    assert row == f"{name} x3 96 bytes w [2, 2] b [2,"


@pytest.mark.parametrize("dot", [".", "/"])
def test_a_name_with_empty_components_is_shown_whole(dot):
    names = [f"a{dot}{dot}b", f"{dot}d", "d", f"{dot}{dot}e", dot]
    whole = Checkpoint(Dict([(name, tensor(np.ones(4, "float32"))) for name in names], True))
    rows = [line.split() for line in inspect_text(describe(whole)).splitlines() if "[4]" in line]
    assert [(row[0], [word for word in row if word[-1] in f"bde{dot}"][-3:]) for row in rows] == [
        (f"a{dot}", [f"a{dot}", "b"]),
        ("(top", [f"{dot}d", "d", dot]),
        (dot, [dot, "e"]),
    ]
    if dot == ".":
        totals = [line.split()[0] for line in inspect_text(describe(whole), depth=1).splitlines() if "tensor" in line]
        assert totals == ["a", '""', "d"]


def test_a_line_of_layers_has_the_bytes_of_each_of_them(tmp_path):
    torch = pytest.importorskip("torch")
    state = {f"layers.{n}.w": torch.diag((torch.arange(5) > n).float()).to_sparse() for n in range(3)}
    torch.save(state, tmp_path / "a.pth")
    seen = inspect(tmp_path / "a.pth")
    line = next(line for line in inspect_text(seen).splitlines() if line.lstrip().startswith("layers"))
    whole = sum(one.bytes for one in seen.tensors if one.kind == "sparse_coo")
    assert line.split()[:4] == ["layers.{0..2}", "x3", str(whole), "bytes"]


def test_lines_are_sorted_and_summed_up_as_asked():
    root = Dict(
        [("b.x.w", tensor(np.zeros(2, "f4"))), ("a.w", tensor(np.zeros(9, "f4"))), ("b.y.w", tensor(np.zeros(3, "f4")))]
    )
    seen = describe(Checkpoint(root))

    def lines(**options):
        return [line.split()[0] for line in inspect_text(seen, **options).splitlines() if line.startswith("    ")][1:]

    assert lines() == ["b.x", "a", "b.y"]
    assert lines(sort="name") == ["a", "b.x", "b.y"]
    assert lines(sort="size") == ["a", "b.y", "b.x"]
    assert lines(depth=1) == ["b", "a"]
    assert "b  2 tensors  5 parameters  20 bytes" in inspect_text(seen, depth=1)


@given(st.lists(st.floats(width=32), min_size=1, max_size=200))
def test_statistics_are_those_of_numpy(numbers):
    array = np.array(numbers, "float32")
    found = statistics(tensor(array))
    finite = array[np.isfinite(array)].astype("float64")
    assert (found.elements, found.zeros) == (len(array), np.count_nonzero(array == 0))
    assert (found.nan, found.infinite) == (np.isnan(array).sum(), np.isinf(array).sum())
    if not finite.size:
        assert math.isnan(found.mean)
        return
    assert (found.min, found.max) == (finite.min(), finite.max())
    assert found.mean == pytest.approx(finite.mean(), rel=1e-9, abs=abs(finite).max() * 1e-12)
    assert found.std == pytest.approx(finite.std(), rel=1e-6, abs=abs(finite).max() * 1e-9)
    assert sum(found.histogram) == finite.size
    if finite.max() > finite.min():
        assert found.histogram[0] > 0
        assert found.histogram[-1] > 0


def test_statistics_of_a_large_tensor_are_joined_from_its_parts():
    array = np.random.default_rng(0).normal(1000, 3, 1_000_003).astype("float32")
    found = statistics(tensor(array))
    assert found.mean == pytest.approx(array.astype("float64").mean(), rel=1e-12)
    assert found.std == pytest.approx(array.astype("float64").std(), rel=1e-9)
    assert np.allclose(found.histogram, np.histogram(array.astype("float64"), 40)[0], atol=2)


@pytest.mark.parametrize("name", ["int64", "uint8", "bool", "bfloat16", "float8_e5m2", "complex64"])
def test_every_type_of_number_has_statistics(name):
    kind = BY_NAME[name]
    found = statistics(LazyTensor(Storage(Buffer(bytes(4 * kind.itemsize))), kind, (4,), (1,)))
    assert (found.min, found.max, found.zeros) == (0, 0, 8 if kind.is_complex else 4)


def test_types_that_cannot_be_computed_with_have_none(tmp_path):
    kind = BY_NAME["bits8"]
    assert statistics(LazyTensor(Storage(Buffer(b"1234")), kind, (4,), (1,))) is None
    ckptool.save(Checkpoint(weights()), tmp_path / "a.pth")
    assert len(statistics_of(tmp_path / "a.pth", inspect(tmp_path / "a.pth"))) == 6


def test_a_tree_is_walked_once_however_much_is_told_of_it(monkeypatch):
    root = Dict([("model", weights()), ("optimizer", Dict([("state", Dict()), ("param_groups", List())]))])
    looks = []
    monkeypatch.setattr(tree, "children", lambda node, real=tree.children: (looks.append(node), real(node))[1])
    describe(Checkpoint(root))
    assert sum(node is root for node in looks) == 1


def test_no_tensor_of_a_safetensors_file_is_made_to_report_it(tmp_path, monkeypatch):
    path = tmp_path / "a.safetensors"
    ckptool.save({f"module.layers.{at}.w": np.zeros((2, 2), np.float32) for at in range(100)}, path)
    made = []
    over = LazyTensor.over
    monkeypatch.setattr(LazyTensor, "over", lambda self, storage: made.append(storage) or over(self, storage))
    seen = inspect(path)
    assert "module.layers.{0..99}" in inspect_text(seen)
    assert seen.suggestions
    assert made == []


def test_tensors_that_are_one_are_counted_once_also_beside_other_views():
    one = tensor(np.ones((4, 4), "float32"))
    part = LazyTensor(one.storage, one.dtype, (4,), (1,), 4)
    seen = describe(Checkpoint(Dict([("a", one), ("part", part), ("b", one), ("c", tensor(np.ones(3, "float32")))])))
    assert (seen.state_dicts[0].parameters, seen.state_dicts[0].bytes) == (16 + 4 + 3, 4 * 23)
    assert (seen.stored, seen.used, seen.ties) == (76, 76, [["a", "b"]])
    assert [t.storage for t in seen.tensors] == [0, 0, 0, 1]
