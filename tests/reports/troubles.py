"""Files as people have them when they ask for help: how each is made, how torch fails on it, and what is found."""

import io
import os
import pickle
import shlex
import struct
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from argparse import Namespace
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
import torch

import ckptool
from ckptool.checkpoint import Checkpoint, map_storages
from ckptool.cli import main
from ckptool.tree import Dict, Global, Object


class Net(torch.nn.Module):
    def __init__(self, classes=3):
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.BatchNorm1d(5))
        self.fc = torch.nn.Linear(5, classes)


def typed(command):
    """Run a command line as it was shown, and return its exit code and its words."""
    words = shlex.split(command)
    assert words[0] == "ckptool"
    try:
        main(words[1:])
    except SystemExit as left:
        return left.code or 0, words


def weights(prefix=""):
    torch.manual_seed(0)
    return OrderedDict((prefix + key, value) for key, value in Net().state_dict().items())


def load_plain(path):
    """What a script does on a machine without a GPU."""
    Net().load_state_dict(torch.load(path))


def load_inner(path):
    Net().load_state_dict(torch.load(path)["state_dict"])


def tagged(place):
    def make(path):
        torch.save(weights(), path)
        ckptool.save(ckptool.map_location(ckptool.open(path), f"cpu={place}"), path, overwrite=True)

    return make


def saved(value, **options):
    return lambda path: torch.save(value() if callable(value) else value, path, **options)


def written(data):
    return lambda path: path.write_bytes(data)


def cut(size, **options):
    def make(path):
        saved({**weights(), "w": torch.randn(200, 200)}, **options)(path)
        data = path.read_bytes()
        path.write_bytes(data[:size])

    return make


def zipped_again(name, *, method=zipfile.ZIP_STORED, extra=()):
    def make(path):
        torch.save({**weights(), "zeros": torch.zeros(99, 99)} if method else weights(), path)
        with zipfile.ZipFile(path) as old:
            records = [(name(record.filename), old.read(record)) for record in old.infolist()]
        with zipfile.ZipFile(path, "w", method) as new:
            for record, data in [*records, *extra]:
                if record:
                    new.writestr(record, data)

    return make


def save_file(path):
    from safetensors.torch import save_file

    save_file(dict(weights()), path)
    return path


def open_file(path):
    from safetensors.torch import load_file

    load_file(path)


def safetensors(change):
    def make(path):
        data = save_file(path).read_bytes()
        path.write_bytes(change(data))

    return make


def evil(path):
    call = Object("reduce", Global("posix", "system"), ("true",))
    found = ckptool.from_torch(dict(weights()))
    ckptool.save(Checkpoint(Dict([("state_dict", found.root), ("x", call)])), path, keep_objects=True)


def stranger(path):
    """A whole model whose class is nowhere."""
    sys.modules["models_of_others"] = sys.modules[__name__]
    Net.__module__ = "models_of_others"
    try:
        torch.save(Net(), path)
    finally:
        Net.__module__ = __name__
        del sys.modules["models_of_others"]


def windows_path(path):
    found = ckptool.from_torch(dict(weights()))
    where = Object("reduce", Global("pathlib", "WindowsPath"), ("C:\\", "runs"))
    ckptool.save(Checkpoint(Dict([("state_dict", found.root), ("dir", where)])), path, keep_objects=True)


def unpickled(path):
    torch.load(path, weights_only=False)


def with_damage(where, new):
    """A file of torch.save with NEW in place of what stands at WHERE, the offset of a record or a number."""

    def make(path):
        torch.save(weights(), path)
        data = bytearray(path.read_bytes())
        with zipfile.ZipFile(path) as archive:
            at = next((r.header_offset for r in archive.infolist() if r.filename.endswith(f"/{where}")), where)
        data[at : at + len(new)] = new
        path.write_bytes(data)

    return make


def with_version(number):
    """A file of a torch that is NUMBER - 3 versions of the container younger than this one."""

    def make(path):
        torch.save(weights(), path)
        with zipfile.ZipFile(path) as old:
            records = [(one.filename, old.read(one)) for one in old.infolist()]
        with zipfile.ZipFile(path, "w") as new:
            for name, data in records:
                new.writestr(name, str(number).encode() if name.endswith("/version") else data)

    return make


def put_into_a_zip(name):
    def make(path):
        torch.save(weights(), path)
        data = path.read_bytes()
        with zipfile.ZipFile(path, "w") as new:
            new.writestr(name, data)

    return make


def written_by_two(path):
    """A legacy file with the bytes of another process where the count of a storage was."""
    torch.save({**weights(), "w": torch.randn(200, 200)}, path, _use_new_zipfile_serialization=False)
    source = ckptool.open(path).state_dict()["w"].storage.source
    data = bytearray(path.read_bytes())
    data[source.offset - 8 : source.offset] = bytes(range(8, 16))
    path.write_bytes(data)


def placeholders(path):
    """What DeepSpeed ZeRO-3 leaves in place of weights that are divided among processes."""
    torch.save(OrderedDict((key, value.new_empty(0)) for key, value in weights().items()), path)


def before_0_1_10(path):
    """A tar file, as torch wrote them before 0.1.10."""
    state = {key: value for key, value in weights().items() if value.dtype == torch.float32}

    class Tree(pickle.Pickler):
        def persistent_id(self, value):
            return next((str(n) for n, (_, one) in enumerate(state.items()) if one is value), None)

    tree = io.BytesIO()
    Tree(tree, 2).dump(OrderedDict(state))
    storages, tensors = pickle.dumps(len(state), 2), pickle.dumps(len(state), 2)
    for number, value in enumerate(state.values()):
        storages += pickle.dumps((100 + number, "cpu", torch.FloatStorage), 2)
        storages += struct.pack("<q", value.numel()) + value.numpy().tobytes()
        tensors += pickle.dumps((number, 100 + number, torch.FloatTensor), 2)
        tensors += struct.pack(f"<ii{2 * value.ndim + 1}q", value.ndim, 0, *value.shape, *value.stride(), 0)
    members = {
        "sys_info": pickle.dumps({"protocol_version": 1000, "little_endian": True}, 2),
        "pickle": tree.getvalue(), "tensors": tensors, "storages": storages + pickle.dumps([], 2),
    }  # fmt: skip
    with tarfile.open(path, "w") as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))


def header_like_a_pickle(path):
    """A safetensors file whose header is as long as makes its first two bytes those of pickle protocol 104."""
    from safetensors.torch import save, save_file

    state, wanted = dict(weights()), 0x6880
    now = int.from_bytes(save(state, {"note": ""})[:8], "little")
    save_file(state, path, {"note": " " * (wanted - now)})
    assert path.read_bytes()[:2] == bytes([0x80, 104])


def numpy_inside(path):
    torch.save({"state_dict": weights(), "best": numpy.float64(0.5), "mean": numpy.ones(3)}, path)


def with_numpy_1(path):
    """Read where there is no `numpy._core`, as in numpy 1; the message is Python's."""
    with zipfile.ZipFile(path) as archive:
        data = archive.read(next(name for name in archive.namelist() if name.endswith("/data.pkl")))
    script = """
import pickle, sys

class Anything(dict):
    def __init__(self, *args): pass
    def __setstate__(self, state): pass
    def __call__(self, *args): return Anything()

class Reader(pickle.Unpickler):
    def persistent_load(self, pid): return Anything()
    def find_class(self, module, name):
        return super().find_class(module, name) if module.startswith("numpy") else Anything()

Reader(sys.stdin.buffer).load()
"""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "numpy").mkdir()
        (Path(folder) / "numpy" / "__init__.py").write_text("__version__ = '1.26.4'\n")
        here = {**os.environ, "PYTHONPATH": folder}
        ran = subprocess.run([sys.executable, "-S", "-c", script], input=data, capture_output=True, env=here)
    if ran.returncode:
        raise RuntimeError(ran.stderr.decode().splitlines()[-1])


def load_with_numpy_1(path):
    found = torch.load(path)
    Net().load_state_dict(found.get("state_dict", found))
    with_numpy_1(path)


def with_gpu_states(path):
    """A checkpoint whose random states and steps were moved to a GPU with the rest."""
    model = Net()
    optimizer = torch.optim.Adam(model.parameters())
    model.fc(torch.ones(1, 5)).sum().backward()
    optimizer.step()
    value = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "rng_state": torch.get_rng_state()}
    found = map_storages(ckptool.from_torch(value), lambda storage: storage.changed(location="cuda:0"))
    ckptool.save(found, path)


def resume(path):
    """Go on with training on a machine without that GPU."""
    saved = torch.load(path)
    model = Net()
    model.load_state_dict(saved["model"])
    optimizer = torch.optim.Adam(model.parameters())
    optimizer.load_state_dict(saved["optimizer"])
    model.fc(torch.ones(1, 5)).sum().backward()
    optimizer.step()
    torch.set_rng_state(saved["rng_state"])


def on_one_gpu(path):
    """What torch says where there is one GPU, and the file wants the fourth."""
    seen, count = torch.cuda.is_available, torch.cuda.device_count
    torch.cuda.is_available, torch.cuda.device_count = (lambda: True), (lambda: 1)
    try:
        torch.load(path)
    finally:
        torch.cuda.is_available, torch.cuda.device_count = seen, count


def mapped(path):
    torch.load(path, mmap=True)["fc.weight"].sum()


@dataclass
class Trouble:
    """How it is made and fails; the lesson about the message; what doctor finds; how it loads when it is repaired."""

    make: Any
    fail: Any
    lesson: str
    finding: str
    works: Any = load_plain
    name: str = "a.pth"


TROUBLES = {
    "saved from DataParallel": Trouble(saved(lambda: weights("module.")), load_plain, "module-unexpected", "wrapped"),
    "saved from torch.compile": Trouble(saved(lambda: weights("_orig_mod.")), load_plain, "compile-prefix", "wrapped"),
    "both": Trouble(saved(lambda: weights("module._orig_mod.")), load_plain, "compile-prefix", "wrapped"),
    "a checkpoint for weights": Trouble(
        saved(lambda: {"epoch": 3, "state_dict": weights()}), load_plain, "envelope", "envelope"
    ),
    "a whole model": Trouble(stranger, unpickled, "no-module", "pickled-model"),
    "a whole model where weights are wanted": Trouble(
        saved(Net), lambda path: Net().load_state_dict(torch.load(path, weights_only=False)), "no-dict", "pickled-model"
    ),
    "tagged with a GPU": Trouble(tagged("cuda:1"), load_plain, "device-absent", "device"),
    "tagged with mps": Trouble(tagged("mps"), load_plain, "device-unknown", "device"),
    "tagged with hpu": Trouble(tagged("hpu"), load_plain, "device-unknown", "device"),
    "tagged with xla": Trouble(tagged("xla:0"), load_plain, "device-unknown", "device"),
    "with a Namespace": Trouble(
        saved(lambda: {"state_dict": weights(), "args": Namespace(lr=1)}), load_inner, "weights-only", "weights-only"
    ),
    "with a path of Windows": Trouble(windows_path, unpickled, "paths", "weights-only"),
    "that runs a command": Trouble(evil, load_plain, "code-execution", "code-execution"),
    "flat": Trouble(zipped_again(lambda name: name.partition("/")[2]), load_plain, "rezipped", "repairable"),
    "zipped by macOS": Trouble(
        zipped_again(lambda name: name, extra=[("__MACOSX/a/._data.pkl", b"x")]), load_plain, "rezipped", "repairable"
    ),
    "without its version": Trouble(
        zipped_again(lambda name: "" if name.endswith("/version") else name), load_plain, "no-version", "no-version"
    ),
    "compressed, and mapped": Trouble(
        zipped_again(lambda name: name, method=zipfile.ZIP_DEFLATED), mapped, "mmap-compressed", "compressed", mapped
    ),
    "legacy, and mapped": Trouble(
        saved(weights, _use_new_zipfile_serialization=False), mapped, "mmap-legacy", "legacy", mapped
    ),
    "a small zip that is cut short": Trouble(cut(30_000), load_plain, "no-directory-small", "damaged", torch.load),
    "a zip that is cut short": Trouble(cut(150_000), load_plain, "no-directory", "damaged", torch.load),
    "of a GPU that is not there, among others": Trouble(tagged("cuda:3"), on_one_gpu, "device-index", "device"),
    "states of training on a GPU": Trouble(with_gpu_states, resume, "device-absent", "cpu-state",
        lambda path: Net().load_state_dict(torch.load(path)),
    ),
    "arrays of numpy 2 where there is numpy 1": Trouble(
        numpy_inside, with_numpy_1, "numpy-core", "weights-only", load_with_numpy_1
    ),
    "placeholders of DeepSpeed": Trouble(placeholders, load_plain, "zero-3", "zero-3", None),
    "a zip whose first header is zeros": Trouble(
        with_damage("data.pkl", bytes(30)), load_plain, "first-byte", "repairable"
    ),
    "a zip whose first header is damaged, read as a pickle": Trouble(
        with_damage("data.pkl", b"PK\0\0"), unpickled, "persistent-id", "repairable"
    ),
    "a zip with a damaged header within": Trouble(
        with_damage("data/3", bytes(4)), load_plain, "cut-record", "repairable"
    ),
    "a zip with the checkpoint in it": Trouble(put_into_a_zip("net.pth"), load_plain, "rezipped", "repairable"),
    "a zip with the checkpoint in a folder": Trouble(
        put_into_a_zip("download/net.pth"), load_plain, "no-version", "repairable"
    ),
    "of a torch to come": Trouble(with_version(11), load_plain, "old-torch-version", "unreadable", None),
    "written by two processes": Trouble(written_by_two, load_plain, "cut-legacy", "damaged", torch.load),
    "of torch before 0.1.10": Trouble(before_0_1_10, load_plain, "legacy-tar", "old-container"),
    "weights in a plain pickle": Trouble(
        lambda path: path.write_bytes(pickle.dumps(weights())), unpickled, "magic-number", "old-container"
    ),
    "legacy and cut short": Trouble(
        cut(-9, _use_new_zipfile_serialization=False), load_plain, "cut-legacy", "damaged", torch.load
    ),
    "legacy and cut short in its pickle": Trouble(
        cut(300, _use_new_zipfile_serialization=False), load_plain, "cut-global", "unreadable", None
    ),
    "empty": Trouble(written(b""), load_plain, "empty", "unreadable", None),
    "zeros": Trouble(written(bytes(4096)), load_plain, "legacy-tar", "unreadable", None),
    "a Git LFS pointer": Trouble(
        written(b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 99\n"),
        load_plain, "first-byte", "unreadable", None,
    ),
    "a web page behind blank lines": Trouble(
        written(b"\n\n<html>quota</html>"), unpickled, "first-byte", "unreadable", None
    ),
    "a web page": Trouble(
        written(b"<!DOCTYPE html><html>quota</html>"), load_plain, "first-byte", "unreadable", None
    ),
    "JSON": Trouble(written(b'{"error": "not found"}'), unpickled, "first-byte", "unreadable", None),
    "gzip": Trouble(written(b"\x1f\x8b\x08" + bytes(60)), unpickled, "first-byte", "unreadable", None),
    "a plain pickle": Trouble(
        written(pickle.dumps(5)), unpickled, "magic-number", "no-weights", None
    ),
    "a pickle called safetensors": Trouble(
        saved(weights), open_file, "header-too-large", "misnamed", open_file, "a.safetensors"
    ),
    "safetensors under the name of a torch file": Trouble(save_file, load_plain, "first-byte", "misnamed"),
    "an empty safetensors file": Trouble(
        written(b""), open_file, "header-too-small", "unreadable", None, "a.safetensors"
    ),
    "safetensors cut short": Trouble(
        safetensors(lambda data: data[:-50]), open_file, "not-covered", "damaged", open_file, "a.safetensors"
    ),
    "safetensors with bytes behind its end": Trouble(
        safetensors(lambda data: data + b"x"), open_file, "not-covered", "repairable", open_file, "a.safetensors"
    ),
    "safetensors with a damaged header": Trouble(
        safetensors(lambda data: data.replace(b'"F32"', b'"F31"', 1)),
        open_file, "header-damaged", "unreadable", None, "a.safetensors",
    ),
    "safetensors cut short in its header": Trouble(
        safetensors(lambda data: data[:100]), open_file, "header-too-small", "unreadable", None, "a.safetensors"
    ),
    "safetensors with a header that is not text": Trouble(
        safetensors(lambda data: data.replace(b'"F32"', b'"\xff32"', 1)),
        open_file, "header-damaged", "unreadable", None, "a.safetensors",
    ),
    "safetensors read as a pickle": Trouble(
        header_like_a_pickle, lambda path: pickle.loads(path.read_bytes()), "protocol", "misnamed",
    ),
}  # fmt: skip


# -- messages that have no file of their own, or one that is fine


def optimizer_of_another_model(path):
    torch.optim.SGD(Net().parameters(), lr=1).load_state_dict(torch.optim.SGD([torch.zeros(1)], lr=1).state_dict())


def optimizer_with_other_groups(path):
    both = [{"params": [torch.zeros(1)]}, {"params": [torch.zeros(1)]}]
    torch.optim.SGD(both, lr=1).load_state_dict(torch.optim.SGD([torch.zeros(1)], lr=1).state_dict())


def tied(path):
    from safetensors.torch import save_file

    torch.save({"a": (one := torch.ones(3, 3)), "b": one}, path)
    save_file(torch.load(path), path.with_suffix(".safetensors"))


def strided(path):
    from safetensors.torch import save_file

    torch.save({"a": torch.ones(3, 2).t()}, path)
    save_file(torch.load(path), path.with_suffix(".safetensors"))


def with_numbers(path):
    from safetensors.torch import save_file

    torch.save({"epoch": 3, "state_dict": weights()}, path)
    save_file(torch.load(path), path.with_suffix(".safetensors"))


def program(path):
    torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), path)
    torch.load(path)


def of_main(path):
    """A class that was defined in a script."""
    stranger(path)
    sys.modules["models_of_others"] = type(sys)("__main__")
    try:
        torch.load(path, weights_only=False)
    finally:
        del sys.modules["models_of_others"]


def of_python_2(path):
    path.write_bytes(b"\x80\x02}q\x00U\x04caf\xe9K\x01s.")
    pickle.loads(path.read_bytes())


def read_with_pickle(path):
    torch.save(weights(), path, _use_new_zipfile_serialization=False)
    with path.open("rb") as file:
        for _ in range(4):
            pickle.load(file)


def without_a_record(path):
    zipped_again(lambda name: "" if name.endswith("data/3") else name)(path)
    torch.load(path)


def to_a_full_disk(path):
    torch.save(torch.zeros(10), "/dev/full")


def loaded_without_strict(path):
    raise RuntimeError(str(Net().load_state_dict(weights("net."), strict=False)))  # as scripts print it


def a_key_that_dcp_does_not_hold(path):
    import torch.distributed.checkpoint as dcp

    dcp.save({"model": weights()}, checkpoint_id=path.with_suffix(""))
    try:
        dcp.load({"net": weights()}, checkpoint_id=path.with_suffix(""))
    except BaseException as error:  # its class is none of the ordinary ones
        raise RuntimeError(str(error)) from None


def a_pickled_dict_of_numpy(path):
    numpy.save(path.with_suffix(".npy"), {"w": numpy.ones(2)})
    numpy.load(path.with_suffix(".npy"))


def opened_as_a_tar(path):
    torch.save(weights(), path)
    with tarfile.open(path):
        pass


#: Lesson -> (how the message comes about, whether what is advised can be typed for the file that is left).
SITUATIONS = {
    "no-envelope": (lambda path: weights()["state_dict"], False),
    "weights-are-no-model": (lambda path: weights().eval(), False),
    "size-mismatch": (lambda path: Net().load_state_dict(Net(9).state_dict()), False),
    "module-missing": (lambda path: torch.nn.DataParallel(Net()).load_state_dict(weights()), False),
    "missing-and-unexpected": (lambda path: Net().load_state_dict(weights("backbone.")), False),
    "optimizer-groups": (optimizer_of_another_model, False),
    "optimizer-groups, too": (optimizer_with_other_groups, False),
    "rng-state": (lambda path: torch.set_rng_state(torch.zeros(3)), False),
    "shared": (tied, True),
    "not-carried": (strided, True),
    "not-carried, too": (with_numbers, True),
    "torchscript": (program, True),
    "attribute-of-main": (of_main, True),
    "python-2": (of_python_2, True),
    "persistent-id": (read_with_pickle, False),
    "cut-record": (without_a_record, True),
    "disk-full": (to_a_full_disk, False),
    "incompatible-keys": (loaded_without_strict, False),
    "dcp-missing": (a_key_that_dcp_does_not_hold, False),
    "allow-pickle": (a_pickled_dict_of_numpy, False),
    "not-a-tar": (opened_as_a_tar, False),
    "no-parent": (lambda path: torch.save({}, "absent/a.pth"), False),
    "meta": (lambda path: torch.empty(1, device="meta").to("cpu"), False),
}
