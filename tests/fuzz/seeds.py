"""Valid files for the mutants to start from, each made by the program that people make such files with.

A seed is a dict of names and bytes: a file has one entry, a folder several. What has to be made by torch is made once
and kept in a folder, so that the interpreter of atheris, which has no torch, reads the same bytes.
"""

import contextlib
import io
import json
import pickle
import shutil
import struct
import sys
import tarfile
import tempfile
import warnings
from collections import Counter, OrderedDict, defaultdict
from pathlib import Path
from types import SimpleNamespace

#: Families of formats whose seeds are folders.
FOLDERS = ("dcp", "sharded", "ranks", "framework-folders")
#: Families whose files are parsed in a child process, and how many times fewer mutants are asked of.
CHILDREN = {"hdf5": 30}
FAMILIES = (
    "pickle",
    "zip",
    "safetensors",
    "legacy",
    "tar",
    "torchscript",
    "pt2",
    "package",
    "npz",
    "frameworks",
    *CHILDREN,
    *FOLDERS,
)
#: Runs of trainers, of which each rank wrote files of its own: archive -> folders in it.
RUNS = {
    "deepspeed": "zero0-bf16 zero2-bf16 zero2-three-ranks zero3-bf16 zero3-fp16 pipeline-zero1 experts".split(),
    "megatron": "tp2pp2 interleaved experts-tp2 adam adam-distributed adam-experts-distributed".split(),
}
RUNS["deepspeed"].append("zero2-bf16-universal/global_step3_universal")
#: Files of other frameworks that are read in this process and stand alone.
FRAMEWORKS = "equinox.eqx flax.msgpack flax-chunked.msgpack float.tflite int8.tflite gguf.gguf mlx.npy".split()
FRAMEWORKS += "onnx.onnx tf1-v1.ckpt joblib.joblib joblib-zlib.joblib paddle.pdparams plain.pkl".split()
FRAMEWORKS += ["layers/onnx.onnx", "layers/float.tflite", "layers/flax.msgpack", "layers/paddle.pdparams"]
HDF5 = ("keras.keras", "packed.h5")
#: Folders of them, and files that lie in one folder: the first is the one that is opened.
FRAMEWORK_FOLDERS = ("orbax-ocdbt", "orbax-ocdbt-zarr3", "orbax-zarr", "ocdbt-tree", "tfjs", "saved_model")
TOGETHER = {"tf2": ("tf2.index", "tf2.data-00000-of-00001"), "onnx": ("onnx-external.onnx", "onnx-external.data")}
#: Files that are opened in the place of their folder.
OPENED = ("model.json", "onnx-external.onnx")


def plain_pickles():
    """Pickles of every protocol, of what checkpoints hold beside tensors."""
    twice = [1, 2]
    value = {
        "epoch": 3,
        "lr": 0.1,
        "name": "run é",
        "raw": b"\x00\xff",
        "flags": (True, False, None),
        "long": 2**70,
        "negative": -5,
        "twice": [twice, twice],
        "set": {1, 2},
        "nested": {"a": [{"b": (1, (2, (3,)))}]},
        "ordered": OrderedDict(a=1, b=2),
        "counter": Counter("aab"),
        "default": defaultdict(list, {1: [2]}),
        "space": SimpleNamespace(a=1, b=[2]),
        "frozen": frozenset([3]),
        "array": bytearray(b"abc"),
    }
    value["itself"] = value["twice"]
    for protocol in range(6):
        yield f"protocol-{protocol}.pkl", pickle.dumps(value, protocol)
    with contextlib.suppress(ImportError):
        import numpy

        arrays = {"w": numpy.arange(6, dtype="f4").reshape(2, 3), "s": numpy.float64(2.5), "i": numpy.arange(3)}
        yield "numpy.pkl", pickle.dumps(arrays, 4)


def tensors():
    """A state dict with tensors of many types, views and ties."""
    import torch

    made = torch.Generator().manual_seed(0)
    base = torch.rand(6, 4, generator=made)
    return OrderedDict(
        {
            "module.w": base,
            "module.rows": base[1:3],
            "module.turned": base.t(),
            "module.tied": base,
            "module.half": torch.rand(5, generator=made).half(),
            "module.brain": torch.rand(5, generator=made).bfloat16(),
            "module.count": torch.arange(6).view(2, 3),
            "module.flags": torch.tensor([True, False]),
            "module.bytes": torch.arange(5, dtype=torch.uint8),
            "module.complex": torch.rand(2, dtype=torch.complex64, generator=made),
            "module.empty": torch.empty(0, 3),
            "module.scalar": torch.tensor(3.5),
        }
    )


def training():
    """What a training script saves: weights, optimizer, settings."""
    import torch

    weights = {"fc.weight": torch.nn.Parameter(torch.ones(3, 4)), "fc.bias": torch.nn.Parameter(torch.zeros(3))}
    state = {0: {"step": torch.tensor(1.0), "exp_avg": torch.rand(3, 4, generator=torch.Generator().manual_seed(1))}}
    groups = [{"lr": 0.1, "betas": (0.9, 0.999), "params": [0, 1]}]
    return {
        "epoch": 3,
        "state_dict": weights,
        "optimizer": {"state": state, "param_groups": groups},
        "note": "hi",
        "best": None,
        "args": SimpleNamespace(lr=0.1),
    }


def unusual():
    """Tensors that are no dense ones, and dtypes that few have."""
    import torch

    return {
        "coo": torch.eye(2).to_sparse(),
        "csr": torch.eye(2).to_sparse_csr(),
        "quantized": torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8),
        "meta": torch.empty(2, device="meta"),
        "conj": torch.ones(2, dtype=torch.complex64).conj(),
        "float8": torch.ones(3).to(torch.float8_e4m3fn),
        "nested": torch.nested.nested_tensor([torch.ones(1), torch.ones(2)]),
        "size": torch.Size([1, 2]),
        "dtype": torch.float16,
        "device": torch.device("cpu"),
    }


def torch_files(**options):
    import torch

    for name, value in (("weights", tensors()), ("training", training()), ("unusual", unusual())):
        out = io.BytesIO()
        torch.save(value, out, **options)
        yield f"{name}.pth", out.getvalue()


def safetensors_files():
    from safetensors.torch import save

    dense = {key: value.contiguous().clone() for key, value in tensors().items()}
    yield "plain.safetensors", save(dense, metadata={"format": "pt", "note": "hi"})
    yield "few.safetensors", save({"w": dense["module.w"]})
    yield "ours.safetensors", by_ckptool(tensors(), "ours.safetensors")


def by_ckptool(value, name, **options):
    """A file of ours, which has a note in it."""
    import ckptool

    with tempfile.TemporaryDirectory() as folder:
        ckptool.save(value, Path(folder) / name, **options)
        return (Path(folder) / name).read_bytes()


def tar_files():
    """What torch before 0.1.10 wrote, laid out by hand: no such torch can be installed."""
    import torch.nn  # noqa: F401 - by its name alone, in a pickle

    def pickled(value):
        return pickle.dumps(value, 2)

    def tensor(key, storage, kind, shape, stride, offset):
        head = b"\x80\x02(" + pickled(key)[2:-1] + pickled(storage)[2:-1] + b"ctorch\n" + kind + b"Tensor\nt."
        return (
            head
            + struct.pack("<ii", len(shape), 0)
            + struct.pack(f"<{len(shape)}q{len(stride)}qq", *shape, *stride, offset)
        )

    def storage(key, kind, count, data):
        head = b"\x80\x02(" + pickled(key)[2:-1] + b"X\3\0\0\0cpuctorch\n" + kind + b"Storage\nt."
        return head + struct.pack("<q", count) + data

    tree = b"\x80\x02}(X\1\0\0\0wX\1\0\0\x001QX\1\0\0\0vX\1\0\0\x002QX\1\0\0\0iX\1\0\0\x003QX\5\0\0\0epochK\x05u."
    parts = {
        "sys_info": pickled({"protocol_version": 1000, "little_endian": True, "type_sizes": {"int": 4}}),
        "pickle": tree,
        "tensors": pickled(3)
        + tensor(1, 11, b"Float", (2, 3), (3, 1), 0)
        + tensor(2, 12, b"Float", (2,), (1,), 1)
        + tensor(3, 13, b"Long", (2,), (1,), 0),
        "storages": pickled(2)
        + storage(11, b"Float", 6, struct.pack("<6f", *range(6)))
        + storage(13, b"Long", 2, struct.pack("<2q", 7, 8))
        + pickled([(12, 11, 2, 3)]),
    }
    for form in (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w", format=form) as archive:
            for name, data in parts.items():
                member = tarfile.TarInfo(name)
                member.size = len(data)
                if form == tarfile.PAX_FORMAT:
                    member.pax_headers = {"mtime": "1.5"}
                archive.addfile(member, io.BytesIO(data))
        yield f"form-{form}.pt", out.getvalue()


def programs(folder):
    """TorchScript, an exported program, a package."""
    import torch

    net = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3)).eval()
    with contextlib.redirect_stderr(io.StringIO()):
        scripted = torch.jit.script(net)
        scripted.save(str(folder / "scripted.pt"))
        scripted._save_for_lite_interpreter(str(folder / "mobile.ptl"))
        torch.jit.trace(net, torch.ones(1, 2)).save(str(folder / "traced.pt"))
    for name in ("scripted.pt", "mobile.ptl", "traced.pt"):
        yield "torchscript", name, (folder / name).read_bytes()
    torch.export.save(torch.export.export(net, (torch.ones(1, 2),)), str(folder / "exported.pt2"))
    yield "pt2", "exported.pt2", (folder / "exported.pt2").read_bytes()
    with torch.package.PackageExporter(str(folder / "package.pt")) as exporter:
        exporter.extern("torch.**")
        exporter.save_pickle("weights", "weights.pkl", dict(tensors()))
        exporter.save_text("notes", "readme.txt", "hello")
    yield "package", "package.pt", (folder / "package.pt").read_bytes()


def read_folder(folder):
    """The files of a folder."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def folders(folder):
    """Folders of torch.distributed.checkpoint and of huggingface_hub."""
    import torch.distributed.checkpoint as dcp
    from huggingface_hub import save_torch_state_dict, split_torch_state_dict_into_shards
    from safetensors.torch import save_file

    weights = {key.removeprefix("module."): value.contiguous().clone() for key, value in tensors().items()}
    dcp.save({"model": weights, "epoch": 3, "names": ["a", "b"]}, checkpoint_id=str(folder / "dcp"), no_dist=True)
    yield "dcp", "distributed", read_folder(folder / "dcp")
    for name in ("saved", "bin", "split"):
        (folder / name).mkdir()
    save_torch_state_dict(weights, folder / "saved", max_shard_size=100)
    yield "sharded", "saved", read_folder(folder / "saved")
    save_torch_state_dict(weights, folder / "bin", max_shard_size=100, safe_serialization=False)
    yield "sharded", "bin", read_folder(folder / "bin")
    split = split_torch_state_dict_into_shards(weights, max_shard_size=64)
    for name, keys in split.filename_to_tensors.items():
        save_file({key: weights[key] for key in keys}, folder / "split" / name, metadata={"format": "pt"})
    index = {"metadata": split.metadata, "weight_map": split.tensor_to_filename}
    (folder / "split" / "model.safetensors.index.json").write_text(json.dumps(index, indent=2))
    yield "sharded", "split", read_folder(folder / "split")


def runs(folder):
    """What the ranks of DeepSpeed and of Megatron wrote."""
    for trainer, names in RUNS.items():
        with tarfile.open(Path(__file__).parents[2] / "fixtures" / trainer / "runs.tar.xz") as packed:
            packed.extractall(folder / trainer, filter="data")
        for name in names:
            files = read_folder(folder / trainer / name)
            own = {n: d for n, d in files.items() if not n.startswith(("dist/", "expected", "zero_to_fp32"))}
            yield "ranks", name.replace("/", "-"), own


def write(folder):
    """Write the seeds of all families to FOLDER/FAMILY/NAME."""
    shutil.rmtree(folder, ignore_errors=True)
    with warnings.catch_warnings(), tempfile.TemporaryDirectory() as scratch:
        warnings.simplefilter("ignore")
        for name, data in plain_pickles():
            _write(folder, "pickle", name, {"": data})
        zipped = {}
        for protocol in (2, 4):
            zipped.update({f"{protocol}-{name}": data for name, data in torch_files(pickle_protocol=protocol)})
        zipped["ours.pth"] = by_ckptool(tensors(), "ours.pth")
        for name, data in zipped.items():
            _write(folder, "zip", name, {"": data})
            _write(folder, "pickle", name, {"": data})
        for name, data in torch_files(_use_new_zipfile_serialization=False):
            _write(folder, "legacy", name, {"": data})
        for name, data in safetensors_files():
            _write(folder, "safetensors", name, {"": data})
        for name, data in tar_files():
            _write(folder, "tar", name, {"": data})
        real = Path(__file__).parents[2] / "fixtures" / "frameworks"
        for name in FRAMEWORKS:
            _write(folder, "frameworks", name.replace("/", "-"), {"": (real / name).read_bytes()})
        for name in HDF5:
            _write(folder, "hdf5", name, {"": (real / name).read_bytes()})
        for name in FRAMEWORK_FOLDERS:
            _write(folder, "framework-folders", name, read_folder(real / name))
        for name, files in TOGETHER.items():
            _write(folder, "framework-folders", name, {inner: (real / inner).read_bytes() for inner in files})
        for name in ("stored.npz", "packed.npz", "mlx.npz"):
            _write(folder, "npz", name, {"": (real / name).read_bytes()})
        for family, name, data in programs(Path(scratch)):
            _write(folder, family, name, {"": data})
        for family, name, files in (*folders(Path(scratch)), *runs(Path(scratch))):
            _write(folder, family, name, files)
    (folder / "complete").write_text(sys.version)


def _write(folder, family, name, files):
    place = folder / family / name
    place.parent.mkdir(parents=True, exist_ok=True)
    for inner, data in files.items():
        if inner:
            (place / inner).parent.mkdir(parents=True, exist_ok=True)
        (place / inner if inner else place).write_bytes(data)


def read(folder, family):
    """[(name, files)] of a family, in the order of their names. They are made first if they are not there."""
    if not (folder / "complete").exists():
        write(folder)
    return [
        (place.name, read_folder(place) if place.is_dir() else {"": place.read_bytes()})
        for place in sorted((folder / family).iterdir())
    ]
