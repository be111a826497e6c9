"""Adapters and quantised weights that contradict themselves: one clear error, or a result that can be read."""

import contextlib
import json
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ckptool
from ckptool.adapters.adapter_summary import summary_of
from ckptool.checkpoint import Checkpoint, SideFile
from ckptool.disk.files import Buffer
from ckptool.dtypes import BY_NAME
from ckptool.errors import CheckpointError
from ckptool.passes.packed import grain, packed_in
from ckptool.tensor import LazyTensor, Storage, contiguous_stride
from ckptool.tree import Dict
from tests.adapters.conftest import cases

SHAPES = st.sampled_from([(), (0,), (1,), (2,), (2, 8), (8, 2), (1, 8), (8, 1), (8, 8), (2, 2, 1, 1), (3, 0)])
TYPES = st.sampled_from(["float32", "int8", "uint8", "int32", "int64", "float8_e4m3fn", "bfloat16", "bool", "float64"])
ADAPTERS = sorted(name for name in cases() if not name.startswith(("two-", "dora-and")))


def tensor(shape, dtype):
    kind = BY_NAME[dtype]
    count = 1
    for size in shape:
        count *= size
    storage = Storage(Buffer((b"\x01\x02\x03" * 400)[: count * kind.itemsize]), "cpu", kind)
    return LazyTensor(storage, kind, shape, contiguous_stride(shape))


def mutated(ckpt, data):
    """A checkpoint with some of its tensors left out, renamed, or replaced by others."""
    entries = []
    for key, value in ckpt.root.entries:
        what = data.draw(st.sampled_from(["keep"] * 6 + ["drop", "shape", "rename"]))
        if what == "drop":
            continue
        if what == "shape":
            value = tensor(data.draw(SHAPES), data.draw(TYPES))
        if what == "rename":
            key = data.draw(
                st.sampled_from([f"{key}.x", key.rpartition(".")[0], f"x.{key}", "lora_A", "a.lora_A.b.c.d"])
            )
        entries.append((key, value))
    return replace(ckpt, root=Dict(list(dict(entries).items()), True))


def readable(ckpt):
    for one in ckpt.state_dict().tensors.values():
        source = one.source()
        assert len(bytes(source.read(0, source.length))) == one.nbytes


@pytest.mark.parametrize("case", ADAPTERS)
@settings(max_examples=12)
@given(data=st.data())
def test_an_odd_adapter_is_merged_or_refused(written, case, data):
    base = ckptool.open(written / "bases" / cases()[case]["base"])
    adapter = mutated(ckptool.open(written / "adapters" / case), data)
    try:
        config = json.loads((written / "adapters" / case / "adapter_config.json").read_text())
    except FileNotFoundError:
        config = None
    if config is not None:
        odd = st.sampled_from([None, True, 0, -1, 2, "x", [1], {"q_proj": 1}, {"embed_tokens": [0]}, 1e300])
        name = data.draw(st.sampled_from(sorted(config)))
        config[name] = data.draw(odd)
        side = {"adapter_config.json": SideFile(json.dumps(config).encode(), ())}
        adapter = replace(adapter, side_files=side)
    with contextlib.suppress(CheckpointError):
        summary_of(adapter)
        readable(ckptool.merge_lora(base, adapter))


ARCHIVE = Path(__file__).parents[2] / "fixtures" / "quantized.zip"
with zipfile.ZipFile(ARCHIVE) as _archive:
    PACKED = sorted(
        name.partition("/")[0]
        for name in _archive.namelist()
        if name.endswith("/model.safetensors") and "bnb-n" not in name
    )


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("packed")
    with zipfile.ZipFile(ARCHIVE) as archive:
        archive.extractall(folder)
    return folder


@pytest.mark.parametrize("case", PACKED)
@settings(max_examples=12)
@given(data=st.data())
def test_an_odd_quantised_weight_is_dequantised_or_refused(packed, case, data):
    ckpt: Checkpoint = mutated(ckptool.open(packed / case), data)
    path = packed / case / "config.json"
    config = json.loads(path.read_text()) if path.exists() else {}
    inner = config.get("quantization_config")
    if isinstance(inner, dict) and inner:
        name = data.draw(st.sampled_from(sorted(inner)))
        inner[name] = data.draw(st.sampled_from([None, True, 0, -1, 3, 4, "x", [1], {"a": {"weights": 3}}, 1.5]))
        ckpt = replace(ckpt, side_files={"config.json": SideFile(json.dumps(config).encode(), ())})
    with contextlib.suppress(CheckpointError):
        weights = ckpt.state_dict()
        for one in packed_in(weights):
            grain(one, weights.tensors, inner if isinstance(inner, dict) else {})
        readable(ckptool.dequantize(ckpt))
