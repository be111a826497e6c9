"""Needs about where tensors are tagged to be, and about what else is pickled beside them."""

import argparse
import functools
import pathlib
import pickle
import sys
import types
from pathlib import Path

import numpy
import pytest
import torch
from typing_user import FIXTURES, Net, error_of, loads, net, on_device, same


def places(path):
    """The devices that a file is tagged with, as torch sees them."""
    seen = set()

    def note(storage, place):
        seen.add(place)
        return storage

    torch.load(path, map_location=note, weights_only=False)
    return seen


@pytest.mark.parametrize("legacy", [False, True])
def test_02_a_file_of_a_gpu_loads_where_there_is_none(user, legacy):
    model = net()
    on_device("cuda:0", model.state_dict(), "gpu.pth", _use_new_zipfile_serialization=not legacy)
    error = error_of(loads, "gpu.pth")
    assert "torch.cuda.is_available() is False" in str(error)
    assert same(loads(user.cures("gpu.pth", error=error)).state_dict(), model.state_dict())
    assert same(loads(user.cures("gpu.pth", says="13 storages were saved on cuda:0")).state_dict(), model.state_dict())
    user.types("ckptool remap gpu.pth cpu.pth --map-location cpu")
    assert places("cpu.pth") == {"cpu"}


def test_02_tensors_inside_a_pickled_dataset_are_reached(user):
    Dataset = type("Dataset", (), {"__module__": "their_code"})
    sys.modules["their_code"] = types.ModuleType("their_code")
    sys.modules["their_code"].Dataset = Dataset
    data = Dataset()
    data.samples = torch.rand(5, 2)
    on_device("cuda:3", data, "data.pt")
    user.types("ckptool remap data.pt here.pt -m cpu --keep-objects")
    assert torch.equal(torch.load("here.pt", weights_only=False).samples, data.samples)
    del sys.modules["their_code"]
    seen = user.asks("ckptool doctor data.pt")  # without the code
    user.follows(seen, 0)
    assert torch.equal(torch.load(user.follows(seen, 1))["samples"], data.samples)


def test_03_gpus_are_numbered_anew_in_all_files_of_a_folder(user):
    model = net()
    for number in (1, 2, 3):
        Path(f"ckpts/run{number}").mkdir(parents=True)
        on_device(f"cuda:{number}", model.state_dict(), f"ckpts/run{number}/best.pth")
    user.types("ckptool remap ckpts/ --in-place -r -m cuda:1=cuda:0,cuda:2=cuda:0,cuda:3=cuda:0 --if-present")
    for number in (1, 2, 3):
        assert places(f"ckpts/run{number}/best.pth") == {"cuda:0"}
    on_device("cuda:1", model.state_dict(), "one.pth")
    error = (
        "RuntimeError: Attempting to deserialize object on CUDA device 1 but torch.cuda.device_count() is 1. "
        "Please use torch.load with map_location to map your storages to an existing device."
    )
    assert places(user.cures("one.pth", error=error)) == {"cuda:0"}


def test_13_a_file_that_fills_the_gpu_of_every_rank_is_named_and_moved(user):
    on_device("cuda:0", {"state_dict": net().state_dict()}, "oom.pt")
    error = "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total of 7.79 GiB"
    out = user.cures("oom.pt", error=error, says="fills the same GPU")
    assert places(out) == {"cpu"}


@pytest.mark.parametrize("place", ["mps", "mps:0", "xla:0", "npu:1", "privateuseone:0", "hpu", "CPU", "cpu:0"])
def test_46_any_device_becomes_the_cpu(user, place):
    model = net()
    on_device(place, model.state_dict(), "odd.pth")
    user.types("ckptool remap odd.pth here.pth -m cpu")
    assert same(loads("here.pth").state_dict(), model.state_dict())


def test_46_numbers_that_mps_has_not_are_cast(user):
    torch.save({key: v.double() if v.is_floating_point() else v for key, v in net().state_dict().items()}, "m.pth")
    error = (
        "TypeError: Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't support float64. "
        "Please use float32 instead."
    )
    out = user.cures("m.pth", error=error)
    assert torch.load(out)["fc.weight"].dtype == torch.float32


def with_objects():
    """What a careless script saves beside the weights."""
    return {
        "state_dict": net().state_dict(),
        "args": argparse.Namespace(lr=0.1, out=pathlib.PurePosixPath("/runs/1")),
        "best": numpy.float64(0.75),
        "init": functools.partial(torch.nn.init.normal_, std=0.02),
        "act": torch.nn.ReLU(),
    }


def test_04_a_file_that_weights_only_refuses_is_read_without_trusting_it(user):
    torch.save(with_objects(), "last.pth")
    error = error_of(torch.load, "last.pth")
    assert "Weights only load failed" in str(error)
    out = user.cures("last.pth", error=error)
    assert same(loads(out).state_dict(), net().state_dict())
    seen = user.asks("ckptool scan last.pth")
    for name in ("functools.partial", "torch.nn.modules.activation.ReLU"):
        assert name in seen.text
    user.types("ckptool clean last.pth clean.pth")
    cleaned = torch.load("clean.pth", weights_only=True)
    assert (cleaned["args"], cleaned["best"]) == ({"lr": 0.1, "out": "/runs/1"}, 0.75)


def test_09_a_whole_model_gives_its_weights_without_its_code(user):
    module = types.ModuleType("models.yolo")
    sys.modules["models"], sys.modules["models.yolo"] = types.ModuleType("models"), module
    module.Model = type("Model", (Net,), {"__module__": "models.yolo"})
    torch.manual_seed(1)
    model, ema = module.Model().half(), module.Model().half()
    model.register_buffer("anchors", torch.rand(3), persistent=False)
    torch.save(model, "whole.pt")
    torch.save({"epoch": -1, "model": model, "ema": ema, "optimizer": None}, "yolo.pt")
    del sys.modules["models"], sys.modules["models.yolo"]
    error = error_of(torch.load, "whole.pt", weights_only=False)
    assert "No module named 'models'" in str(error)
    out = user.cures("whole.pt", error=error)
    assert same(torch.load(out), model.state_dict())
    seen = user.asks("ckptool doctor yolo.pt", says="2 state dicts: model, ema")
    assert same(torch.load(user.follows(seen, 0)), model.state_dict())
    assert same(torch.load(user.follows(seen, 1)), ema.state_dict())
    user.types("ckptool slim yolo.pt slim.pt --weights ema")
    assert same(torch.load("slim.pt"), ema.state_dict())


def test_30_paths_of_another_system_become_text(user):
    class WindowsPath(pathlib.PurePosixPath):
        def __reduce__(self):
            return pathlib.WindowsPath, ("C:\\data", "x.pth")

    torch.save({"state_dict": net().state_dict(), "opt": {"data": WindowsPath("x")}}, "win.pt")
    error = error_of(torch.load, "win.pt", weights_only=False)
    assert "cannot instantiate 'WindowsPath'" in str(error)
    assert same(loads(user.cures("win.pt", error=error)).state_dict(), net().state_dict())
    user.types("ckptool clean win.pt all.pt")
    assert "x.pth" in torch.load("all.pt")["opt"]["data"]


def test_31_a_file_that_attacks_is_named_and_its_weights_are_taken_out(user, monkeypatch):
    class Attack:
        def __reduce__(self):
            return Path.touch, (Path("attacked"),)

    torch.save({"state_dict": net().state_dict(), "x": Attack()}, "evil.pth")
    assert user.asks("ckptool scan evil.pth").text
    assert same(loads(user.cures("evil.pth", says="it may run anything")).state_dict(), net().state_dict())
    user.types("ckptool convert evil.pth safe.safetensors --extract")
    assert not Path("attacked").exists()
    torch.load("evil.pth", weights_only=False)
    assert Path("attacked").exists()  # it was one


def test_43_pickles_of_python_2_and_of_another_numpy_are_read(user):
    legacy = FIXTURES / "trained" / "housing-data-parallel-full-2018.pth"
    Path("old.pth").write_bytes(legacy.read_bytes())
    assert user.tries("ckptool inspect old.pth").code == 0
    array = pickle.dumps({"w": numpy.arange(6.0).reshape(2, 3)}, protocol=2)
    old, new = b"numpy.core.multiarray", b"numpy._core.multiarray"
    other = array.replace(new, old) if new in array else array.replace(old, new)
    Path("other.pkl").write_bytes(other.replace(b"_reconstruct", b"_reconstruct"))
    error = "ModuleNotFoundError: No module named 'numpy._core'"
    out = user.cures("other.pkl", error=error)
    assert torch.equal(torch.as_tensor(torch.load(out)["w"]), torch.arange(6.0, dtype=torch.float64).reshape(2, 3))
    python_2 = b"\x80\x02}q\x00(U\x04nameq\x01U\x03\xe9t\xe9q\x02U\x01wq\x03cnumpy.core.multiarray\nscalar\nq\x04cnumpy\ndtype\nq\x05U\x02f8K\x00K\x01\x87Rq\x06(K\x03U\x01<NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tbU\x08\x00\x00\x00\x00\x00\x00\xf8?\x86Ru."  # noqa: E501
    Path("py2.pkl").write_bytes(python_2)
    user.types("ckptool clean py2.pkl now.pth")
    assert torch.load("now.pth") == {"name": "été", "w": 1.5}


def test_43_what_numpy_does_not_load_without_pickle_is_explained_and_read(user):
    numpy.save("weights.npy", {"fc.weight": numpy.ones((2, 3), "float32"), "fc.bias": numpy.zeros(2, "float32")})
    error = error_of(numpy.load, "weights.npy")
    assert "allow_pickle=False" in str(error)
    assert "a dict that numpy.save pickled" in user.asks("ckptool doctor weights.npy --error",
                                                         f"ValueError: {error}").text  # fmt: skip
