"""Nothing from a file is imported or run: an audit hook of the interpreter watches while every kind of file is used."""

import io
import pickle
import struct
import sys
import tarfile
import zipfile

import pytest
from formats.assemble import Call, Name, Ordered, Stored, body, pickled

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
import pathlib, sys
import numpy, ml_dtypes, click, rich.console
import ckptool, ckptool.cli.rewrite, ckptool.cli.inspect
from ckptool.reports.inspect import inspect
from ckptool.reports.render import inspect_text

folder, canary = pathlib.Path(sys.argv[1]), pathlib.Path("canary")
seen = []
armed = False

def watch(event, args):
    if armed and (event in ("import", "exec", "compile", "marshal.loads") or event.startswith(
        ("os.system", "os.exec", "os.posix_spawn", "os.fork", "subprocess", "socket", "ctypes", "pty", "pickle"))):
        seen.append((event, str(args)[:80]))

sys.addaudithook(watch)

def save(ckpt, name, **options):
    ckptool.save(ckpt, folder / name, overwrite=True, allow_loss=True, **options)

def use(path):
    used = 0
    for act in (
        lambda: inspect_text(inspect(path)),
        lambda: save(ckptool.open(path), "out.pth", keep_objects=True),
        lambda: save(ckptool.clean(ckptool.open(path)), "out.pth"),
        lambda: save(ckptool.extract(ckptool.open(path)), "out.safetensors"),
        lambda: save(ckptool.open(path), "out.safetensors"),
    ):
        try:
            act()
            used += 1
        except ckptool.CheckpointError as error:
            str(error)
    return used

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
print(min(counts.values()), len(counts), *[name for name, count in counts.items() if count < 2])
"""


EVIL = """open('canary', 'w').close()

def run(*args):
    pass

class Anything:
    pass
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "evil_module.py").write_text(
        "open('canary', 'w').close()\n\n\ndef run(*args):\n    pass\n\n\nclass Anything:\n    pass\n"
    )
    for name, data in files().items():
        (tmp_path / f"{name}.in").write_bytes(data)
    return tmp_path


def test_no_class_from_a_file_is_ever_imported_and_nothing_runs(folder, in_new_python):
    printed = in_new_python(PROGRAM, folder, PYTHONPATH=f"{folder}")
    assert int(printed.split()[0]) >= 3, printed  # each file could be used in several ways
    assert printed.split()[1] == str(len(files()))


def test_the_same_files_do_run_where_pickles_are_loaded(folder):
    """So that the test above cannot pass because the files are harmless."""
    sys.path.insert(0, str(folder))
    try:
        pickle.loads(files()["pickle"])
    finally:
        sys.path.remove(str(folder))
        sys.modules.pop("evil_module", None)
    assert (folder / "canary").exists()
