"""Nothing from a file is imported or run: an audit hook of the interpreter watches while every kind of file is used."""

import io
import pickle
import struct
import sys
import tarfile
import zipfile

import pytest
from assemble import Call, Name, Ordered, Stored, body, pickled

MAGIC = 0x1950A86A20F9469CFC6C
DATA = struct.pack("<4f", *range(4))


def tensor(*pid):
    return Call("torch._utils._rebuild_tensor_v2", Stored(("storage", *pid)), 0, (4,), (1,), False, Ordered())


def payload(*pid):
    """A tree that names a module which is there to be imported, in every way that a pickle can name one."""
    weight = tensor(*pid)
    return {
        "state_dict": Ordered({"w": weight, "b": weight}),
        "class": Name("evil_module.Anything"),
        "call": Call("evil_module.run", "x"),
        "nested": [Call("evil_module.Anything"), (Call("os.system", "touch canary"),)],
        "getattr": Call("builtins.getattr", Name("evil_module.Anything"), "attr"),
        "eval": Call("builtins.eval", "__import__('evil_module')"),
        "reconstructed": Call("copyreg._reconstructor", Name("evil_module.Anything"), Name("builtins.object"), None),
        "partial": Call("functools.partial", Name("evil_module.run"), 1),
        "tensor class": Call(
            "torch._tensor._rebuild_from_type_v2",
            Name("torch._utils._rebuild_tensor_v2"),
            Name("evil_module.Tensor"),
            (Stored(("storage", *pid)), 0, (4,), (1,), False, Ordered()),
            {},
        ),
    }


FLOATS = Name("torch.FloatStorage")


def zipped(members):
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for name, data in members.items():
            archive.writestr(f"x/{name}", data)
    return made.getvalue()


def instance(cls, state):
    """The pickle of an object of a class, with a state."""
    return b"\x80\x02" + body(Name(cls)) + b")\x81" + body(state) + b"b."


def files():
    pid = (FLOATS, "0", "cpu", 4)
    weights = {"_parameters": {"w": tensor(*pid)}, "_buffers": {}, "_modules": {}, "hook": Name("evil_module.run")}
    legacy = b"".join([
        *(pickled(part) for part in (MAGIC, 1001, {}, payload(*pid, None), ["0"])),
        struct.pack("<q", 4),
        DATA,
    ])  # fmt: skip
    archive = io.BytesIO()
    members = {
        "sys_info": pickled({}),
        "pickle": pickled({"w": Stored("1"), "evil": Call("evil_module.run"), "class": Name("evil_module.Anything")}),
        "tensors": pickled(1) + pickled((1, 7, Name("evil_module.Tensor"))) + struct.pack("<ii3q", 1, 0, 4, 1, 0),
        "storages": pickled(1) + pickled((7, "cpu", FLOATS)) + struct.pack("<q", 4) + DATA + pickled([]),
    }
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    code = b'import evil_module\nclass Net(Module):\n  __parameters__ = ["w", ]\n  __buffers__ = []\n'
    stored = {"data/0": DATA, "version": b"3"}
    return {
        "zip": zipped({"data.pkl": pickled(payload(*pid)), **stored}),
        "whole model": zipped({"data.pkl": instance("evil_module.Net", weights), **stored}),
        "legacy": legacy,
        "tar": archive.getvalue(),
        "torchscript": zipped(
            {
                "data.pkl": instance("__torch__.Net", {"w": tensor(*pid), "other": Name("evil_module.run")}),
                "constants.pkl": pickled((payload(*pid),)),
                "constants/0": DATA,
                "code/__torch__.py": code,
                **stored,
            }
        ),
        "package": zipped(
            {
                "m/m.pkl": pickled(payload(FLOATS, 0, "cpu", 4)),
                "m/__init__.py": b"import evil_module",
                ".data/extern_modules": b"evil_module\n",
                ".data/0.storage": DATA,
            }
        ),
        "pickle": pickled({"evil": Call("evil_module.run"), "class": Name("evil_module.Anything")}),
    }


PROGRAM = """
import contextlib, io, os, pathlib, sys
import numpy, ml_dtypes, click, rich.console
import ckptool
from ckptool.cli import _COMMANDS, cli, main

os.fsync = lambda descriptor: None  # thousands of files that nobody needs
folder, canary, with_torch = pathlib.Path(sys.argv[1]), pathlib.Path("canary"), sys.argv[2:] == ["torch"]
REQUIRED = {"rename": ["--rename", "w=v"], "remap": ["--map-location", "cpu"]}
WRITTEN = (["x.pth"], ["x.pth", "-t", "legacy"], ["x.safetensors"])
WATCHED = ("os.system", "os.exec", "os.posix_spawn", "os.fork", "subprocess", "socket", "ctypes", "pty", "pickle")
seen = []
armed = False

def watch(event, args):
    if armed and (event in ("import", "exec", "compile", "marshal.loads") or event.startswith(WATCHED)):
        seen.append((event, str(args)[:80]))

sys.addaudithook(watch)

def command_lines(path):
    for name in _COMMANDS:
        if name in ("train", "formats"):  # what train --resume reads is shown in test_trained.py
            continue
        options = {word for one in cli.get_command(click.Context(cli), name).params for word in one.opts}
        command = [name, *REQUIRED.get(name, ())]
        if "--keep-objects" in options:
            optional = ["--allow-loss", "--keep-objects", "--overwrite", "--if-present"]
            for out in WRITTEN:
                yield [*command, path, *out, *optional]
            yield [*command, path, "x.pth", "--overwrite"]
            if name == "convert":
                yield [*command, path, "x.pth", *optional, "--to-dense", "--dequantize", "--unwrap", "--extract"]
        else:
            yield [*command, path]
            for flag in {"--json", "--verbose"} & options:
                yield [*command, path, flag]
            if "--html" in options:
                yield [*command, path, "--html", "x.html"]

def use(path):
    done = 0
    for words in command_lines(str(path)):
        said = io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            try:
                main(words)
            except SystemExit as left:
                done += left.code in (0, 1)
        assert "failed unexpectedly" not in said.getvalue(), (words, said.getvalue())
    if with_torch:
        try:
            ckptool.load(path, map_location="cpu")
            done += 1
        except ckptool.CheckpointError as error:
            str(error)
    return done

paths = sorted(path for path in folder.iterdir() if path.suffix == ".in")
for path in paths:  # what ckptool itself imports when it is first needed
    use(path)
armed = True
before = set(sys.modules)
counts = {path.stem: use(path) for path in paths}
armed = False
assert not seen, seen
assert "evil_module" not in sys.modules and set(sys.modules) == before
assert not canary.exists()
print(min(counts.values()), len(counts), *[f"{name}:{count}" for name, count in counts.items()])
"""


EVIL = """open('canary', 'w').close()

def run(*args):
    pass

class Anything:
    pass
"""

EVIL_WITH_TORCH = """open('canary', 'w').close()
import torch

class Thing:
    def __init__(self):
        self.weight, self.rate = torch.ones(2), 0.1

class Box(torch.Tensor):
    pass

class Config(dict):
    pass

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.norm, self.thing = torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2), Thing()

    def forward(self, x):
        return self.fc(x)

class Plain(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(2, 2)

    def forward(self, x):
        return self.fc(x)
"""

GENERATOR = """
import os, pathlib, pickle, sys, warnings
folder = pathlib.Path(sys.argv[1])
(folder / "elsewhere").mkdir()
os.chdir(folder / "elsewhere")  # where its canary tells nothing
warnings.simplefilter("ignore")
import torch, evil_module as evil

def save(name, value, **options):
    torch.save(value, folder / f"{name}.in", **options)

marked = torch.nn.Parameter(torch.ones(2))
marked.thing = evil.Thing()
pieces = [torch.ones(1), torch.ones(2)]
tensors = {
    "coo": torch.eye(2).to_sparse(),
    "csr": torch.eye(2).to_sparse_csr(),
    "quantized": torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8),
    "nested": torch.nested.nested_tensor(pieces),
    "jagged": torch.nested.nested_tensor(pieces, layout=torch.jagged),
    "meta": torch.empty(2, device="meta"),
    "conj": torch.ones(1, dtype=torch.complex64).conj(),
    "box": torch.ones(3).as_subclass(evil.Box),
    "marked": marked,
}
net = evil.Net()
mixed = {"state_dict": net.state_dict(), "thing": evil.Thing(), "config": evil.Config(a=1), "class": evil.Thing,
         "optimizer": torch.optim.Adam(net.parameters())}
save("tensors", tensors)
for zipped in (True, False):
    form = "zip" if zipped else "legacy"
    save(f"model {form}", net, _use_new_zipfile_serialization=zipped)
    save(f"mixed {form}", mixed, _use_new_zipfile_serialization=zipped)
save("parallel", torch.nn.DataParallel(net))
save("compiled", torch.compile(net, backend="eager"))
save("protocol 4", mixed, pickle_protocol=4)
for protocol in range(6):
    (folder / f"pickle {protocol}.in").write_bytes(pickle.dumps(mixed, protocol))
scripted = torch.jit.script(evil.Plain())
scripted.save(str(folder / "scripted.in"))
scripted._save_for_lite_interpreter(str(folder / "mobile.in"))
with torch.package.PackageExporter(str(folder / "package.in")) as exporter:
    exporter.extern("torch.**")
    exporter.intern("evil_module")
    exporter.save_pickle("nets", "net.pkl", net)
torch.export.save(torch.export.export(evil.Plain(), (torch.ones(1, 2),)), str(folder / "x.pt2"))
(folder / "x.pt2").rename(folder / "exported.in")
print(len(list(folder.glob("*.in"))))
"""


@pytest.fixture
def empty(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def folder(empty):
    (empty / "evil_module.py").write_text(EVIL)
    for name, data in files().items():
        (empty / f"{name}.in").write_bytes(data)
    (empty / "shards.in").mkdir()
    (empty / "shards.in" / "pytorch_model.bin").write_bytes(files()["zip"])
    return empty


def test_no_class_from_a_file_is_ever_imported_and_nothing_runs(folder, in_new_python):
    printed = in_new_python(PROGRAM, folder, PYTHONPATH=f"{folder}")
    assert int(printed.split()[0]) >= 5, printed  # each file could be used in several ways
    assert printed.split()[1] == str(len(files()) + 1)


def test_none_is_imported_from_what_torch_saves_either(torch, empty, in_new_python):
    (empty / "evil_module.py").write_text(EVIL_WITH_TORCH)
    made = in_new_python(GENERATOR, empty, PYTHONPATH=f"{empty}")
    printed = in_new_python(PROGRAM, empty, "torch", PYTHONPATH=f"{empty}")
    assert int(printed.split()[0]) >= 10, printed
    assert printed.split()[1] == made


def test_the_same_files_do_run_where_pickles_are_loaded(folder):
    """So that the test above cannot pass because the files are harmless."""
    sys.path.insert(0, str(folder))
    try:
        pickle.loads(files()["pickle"])
    finally:
        sys.path.remove(str(folder))
        sys.modules.pop("evil_module", None)
    assert (folder / "canary").exists()
