"""Files as people have them when they ask for help: how each is made, how torch fails on it, and what is found."""

import pickle
import sys
import zipfile
from argparse import Namespace
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import torch

import ckptool
from ckptool.checkpoint import Checkpoint
from ckptool.tree import Dict, Global, Object


class Net(torch.nn.Module):
    def __init__(self, classes=3):
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.BatchNorm1d(5))
        self.fc = torch.nn.Linear(5, classes)


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


def mapped(path):
    torch.load(path, mmap=True)["fc.weight"].sum()


@dataclass
class Trouble:
    """How it is made and fails; the lesson about the message; what doctor finds; how it loads when it is mended."""

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
    "a web page": Trouble(
        written(b"<!DOCTYPE html><html>quota</html>"), load_plain, "first-byte", "unreadable", None
    ),
    "JSON": Trouble(written(b'{"error": "not found"}'), unpickled, "first-byte", "unreadable", None),
    "gzip": Trouble(written(b"\x1f\x8b\x08" + bytes(60)), unpickled, "first-byte", "unreadable", None),
    "a plain pickle": Trouble(
        written(pickle.dumps(5)), unpickled, "magic-number", "no-weights", None
    ),
    "a pickle called safetensors": Trouble(
        saved(weights), open_file, "header-too-large", "", None, "a.safetensors"
    ),
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
    "safetensors read as a pickle": Trouble(
        save_file, lambda path: pickle.loads(b"\x80" + path.read_bytes()), "protocol", "", None, "a.safetensors"
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
    "no-parent": (lambda path: torch.save({}, "absent/a.pth"), False),
    "meta": (lambda path: torch.empty(1, device="meta").to("cpu"), False),
}
