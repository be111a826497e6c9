"""Memory does not grow with what is converted. Inputs are made of holes, so that they take no room on the disk."""

import json
import os
import sys
import tracemalloc

import numpy as np
import pytest

import ckptool

resource = pytest.importorskip("resource")
pytestmark = pytest.mark.same_without_torch
if sys.platform != "linux":
    pytest.skip("address spaces are limited and measured as Linux does it", allow_module_level=True)

GB = 10**9

#: Runs the command line with at most 1 GiB beyond the address space that the interpreter has with ckptool imported.
LIMITED = """
import re, resource, sys
from ckptool.cli import main
import ckptool.cli.rewrite, ckptool.formats, numpy, ml_dtypes

def kilobytes(what):
    with open("/proc/self/status") as status:
        return int(re.search(what + r":\\s+(\\d+) kB", status.read())[1])

resource.setrlimit(resource.RLIMIT_AS, ((kilobytes("VmSize") << 10) + (1 << 30),) * 2)
try:
    main(sys.argv[1:])
finally:
    print(kilobytes("VmHWM") >> 10)
"""


def sparse_shards(folder, sizes, shard=5 * GB):
    """A sharded checkpoint of float32 tensors of SIZES bytes, all zeros, that takes no room. Returns its keys."""
    folder.mkdir()
    shards, filled = [[]], 0
    for number, size in enumerate(sizes):
        if filled + size > shard and shards[-1]:
            shards.append([])
            filled = 0
        shards[-1].append((f"layers.{number}.weight", size))
        filled += size
    weight_map = {}
    for number, held in enumerate(shards, 1):
        name = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        header, at = {}, 0
        for key, size in held:
            header[key] = {"dtype": "F32", "shape": [size // 4], "data_offsets": [at, at + size]}
            weight_map[key] = name
            at += size
        raw = json.dumps(header).encode()
        raw += b" " * (-len(raw) % 8)
        with open(folder / name, "wb") as file:
            file.write(len(raw).to_bytes(8, "little") + raw)
            file.truncate(8 + len(raw) + at)
    index = {"metadata": {"total_size": sum(sizes)}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return list(weight_map)


def test_40_gb_of_shards_and_a_tensor_larger_than_memory_pass_through_one_gigabyte(tmp_path, in_new_python):
    keys = sparse_shards(tmp_path / "in", [2 * GB] * 8 + [24 * GB])
    out = tmp_path / "out.safetensors"
    done = in_new_python(LIMITED, "convert", tmp_path / "in", out, "--add-prefix", "net.", "-q")
    assert int(done.split()[-1]) < 200
    assert list(ckptool.open(out).state_dict()) == [f"net.{key}" for key in keys]
    assert out.stat().st_size > 40 * GB
    assert out.stat().st_blocks * 512 < 10**8  # holes stay holes
    back = in_new_python(LIMITED, "convert", out, tmp_path / "back", "--max-shard-size", "5GB", "-q")
    assert int(back.split()[-1]) < 200
    assert len(list((tmp_path / "back").glob("*.safetensors"))) == 5


@pytest.mark.parametrize(("name", "options"), [("out.pth", "--cast bf16"), ("out", "-t dcp --cast e4m3")])
def test_values_are_computed_and_checksums_taken_in_one_gigabyte(tmp_path, in_new_python, name, options):
    sparse_shards(tmp_path / "in", [GB // 2, GB // 8])
    done = in_new_python(LIMITED, "convert", tmp_path / "in", tmp_path / name, *options.split(), "-q")
    assert int(done.split()[-1]) < 300
    assert [t.numel for t in ckptool.open(tmp_path / name).state_dict().values()] == [GB // 8, GB // 32]


def test_what_is_between_holes_is_copied(tmp_path):
    if not hasattr(os, "SEEK_DATA"):
        pytest.skip("this system has no SEEK_DATA")
    from ckptool.disk.files import File, FileRange
    from ckptool.disk.writing import write_pieces

    with open(tmp_path / "in", "wb") as file:
        for at in (3_000_000, 20_000_001, 20_300_000, 59_999_990):
            file.seek(at)
            file.write(b"data %d" % at)
        file.truncate(64 << 20)
    source = File(tmp_path / "in")
    pieces = [FileRange(source, 5, 30_000_000), FileRange(source, 1 << 20, (63 << 20) - 7)]
    with open(tmp_path / "out", "wb", buffering=0) as out:
        write_pieces(out, pieces)
    expected = b"".join(source.read(piece.offset, piece.length) for piece in pieces)
    assert (tmp_path / "out").read_bytes() == expected


#: Runs the command line and prints how many bytes of Python's objects there were at most at once.
MEASURED = """
import sys, tracemalloc
from ckptool.cli import main
import ckptool.cli.rewrite, ckptool.formats.torch_zip, ckptool.passes.by_key

tracemalloc.start()
try:
    main(sys.argv[1:])
finally:
    print(tracemalloc.get_traced_memory()[1])
"""


def test_a_strip_keeps_less_than_650_bytes_of_a_tensor(tmp_path, in_new_python):
    count = 20_000
    entries = {
        f"module.layers.{number // 10}.part{number % 10}.weight": np.zeros(1, "float32") for number in range(count)
    }
    ckptool.save(entries, tmp_path / "in.pth")
    done = in_new_python(MEASURED, "strip-prefix", tmp_path / "in.pth", tmp_path / "out.pth")
    assert int(done.split()[-1]) < 650 * count


@pytest.mark.parametrize("name", ["a.pth", "a.safetensors"])
def test_an_open_checkpoint_keeps_less_than_320_bytes_of_a_tensor(tmp_path, name):
    count = 20_000
    ckptool.save({f"layers.{number}.weight": np.zeros(1, "float32") for number in range(count)}, tmp_path / name)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        opened = ckptool.open(tmp_path / name)
        kept = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert len(opened.root.entries) == count
    assert kept < 320 * count
