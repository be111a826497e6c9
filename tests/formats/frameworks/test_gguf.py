"""GGUF files against the package gguf, which llama.cpp publishes."""

import struct

import numpy as np
import pytest

import ckptool
from ckptool.errors import CannotCarry, Malformed
from ckptool.formats.frameworks.gguf import _BLOCKS, _PLAIN

gguf = pytest.importorskip("gguf")
KIND = gguf.GGMLQuantizationType
#: Types whose values the package computes.
COMPUTED = [kind.name for kind in gguf.quants._type_traits if kind.value in _BLOCKS]
PLAIN = {"F32": "f4", "F16": "f2", "F64": "f8", "I8": "i1", "I16": "i2", "I32": "i4", "I64": "i8"}


def blocks(kind, rows=3, columns=2, seed=0):
    """Blocks of a quantized type: bytes at random, with scales that are finite numbers."""
    _, _, size = _BLOCKS[KIND[kind].value]
    return np.random.default_rng(seed).integers(0, 256, (rows, columns * size), np.uint8)


@pytest.fixture
def model(tmp_path):
    """A file with a tensor of every type and with metadata of every kind, written by the package."""
    path = tmp_path / "model.gguf"
    out = gguf.GGUFWriter(str(path), "llama")
    out.add_name("tiny")
    out.add_block_count(2)
    out.add_rope_freq_base(10000.5)
    out.add_bool("some.flag", True)
    out.add_token_list(["<s>", "é", "the", "\u2581a"])
    out.add_token_scores([0.5, -1.0, 2.0, 3.0])
    out.add_array("some.numbers", [1, 2, 3])
    for name, code in PLAIN.items():
        out.add_tensor(f"plain.{name}.weight", np.arange(20).reshape(4, 5).astype(code))
    out.add_tensor("one", np.ones(1, "f4"))
    for kind in COMPUTED:
        out.add_tensor(f"blk.{kind}.weight", blocks(kind), raw_dtype=KIND[kind])
    bf16 = np.array([[0x3F80, 0x4000, 0xC040]], np.uint16)
    out.add_tensor("brain", bf16.view(np.uint8), raw_shape=(1, 6), raw_dtype=KIND.BF16)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()
    return path


def test_the_table_of_types_is_that_of_the_package():
    sizes = {kind.value: (kind.name, *gguf.GGML_QUANT_SIZES[kind]) for kind in KIND}
    for number, known in _BLOCKS.items():
        assert sizes.get(number, known) == known
    assert set(sizes) <= {*_BLOCKS, *_PLAIN}


def test_every_type_has_the_values_that_the_package_computes(model):
    ckpt = ckptool.open(model)
    found = ckpt.state_dict().tensors
    theirs = {tensor.name: tensor for tensor in gguf.GGUFReader(model).tensors}
    assert list(found) == list(theirs)
    for name, tensor in theirs.items():
        shape = tuple(map(int, reversed(tensor.shape)))
        assert found[name].shape == shape
        values = tensor.data
        if tensor.tensor_type in gguf.quants._type_traits:
            with np.errstate(all="ignore"):
                values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        ours = found[name].numpy()
        assert ours.astype(values.dtype).tobytes() == np.ascontiguousarray(values).reshape(shape).tobytes(), name


def test_values_can_be_read_from_anywhere_in_a_tensor(model):
    for tensor in ckptool.open(model).state_dict().tensors.values():
        source = tensor.source()
        whole = bytes(source.read(0, source.length))
        assert whole == b"".join(map(bytes, source.chunks()))
        for start, length in ((0, 4), (36, 100), (source.length - 5, 5), (3, source.length - 3)):
            if start >= 0 and start + length <= source.length:
                assert bytes(source.read(start, length)) == whole[start : start + length]


def test_metadata_are_those_of_the_package(model):
    metadata = ckptool.open(model).metadata
    assert metadata["general.architecture"] == "llama"
    assert metadata["general.name"] == "tiny"
    assert metadata["llama.rope.freq_base"] == "10000.5"
    assert metadata["some.flag"] == "true"
    assert metadata["tokenizer.ggml.tokens"] == '["<s>", "é", "the", "\u2581a"]'
    assert metadata["some.numbers"] == "[1, 2, 3]"


def test_written_again_it_is_the_same_byte_for_byte(model, tmp_path):
    ckptool.save(ckptool.open(model), tmp_path / "again.gguf")
    assert (tmp_path / "again.gguf").read_bytes() == model.read_bytes()


def test_what_is_renamed_and_dropped_keeps_its_blocks_and_the_metadata(model, tmp_path):
    ckpt = ckptool.rename(ckptool.open(model), ["blk=layer"])
    ckpt = ckptool.drop(ckpt, ["plain.*"])
    ckptool.save(ckpt, tmp_path / "new.gguf")
    before, after = gguf.GGUFReader(model), gguf.GGUFReader(tmp_path / "new.gguf")
    kept = {t.name.replace("blk.", "layer."): t for t in before.tensors if not t.name.startswith("plain")}
    assert [t.name for t in after.tensors] == list(kept)
    for tensor in after.tensors:
        assert tensor.tensor_type == kept[tensor.name].tensor_type
        assert tensor.data.tobytes() == kept[tensor.name].data.tobytes()
    fields = [name for name in before.fields if not name.startswith("GGUF.")]
    assert fields == [name for name in after.fields if not name.startswith("GGUF.")]
    assert all(before.fields[name].contents() == after.fields[name].contents() for name in fields)


def test_converted_it_has_float32_values_and_says_so(model, tmp_path):
    ckpt = ckptool.open(model)
    assert f"{len(COMPUTED) - ('BF16' in COMPUTED)} tensors are quantized" in ckpt.warnings[0]
    ckptool.save(ckpt, tmp_path / "out.safetensors")
    back = ckptool.open(tmp_path / "out.safetensors")
    assert back.metadata["general.name"] == "tiny"
    assert back.state_dict()["blk.Q4_K.weight"].dtype.name == "float32"
    assert ckptool.diff(tmp_path / "out.safetensors", model).same


def test_it_is_not_made_of_another_format(tmp_path):
    np.savez(tmp_path / "a.npz", w=np.ones(32, "f4"))
    with pytest.raises(CannotCarry, match="only one that was read as GGUF has the metadata"):
        ckptool.save(ckptool.open(tmp_path / "a.npz"), tmp_path / "b.gguf")
    assert not (tmp_path / "b.gguf").exists()


def test_big_endian_files_are_read(tmp_path):
    out = gguf.GGUFWriter(str(tmp_path / "be.gguf"), "llama", endianess=gguf.GGUFEndian.BIG)
    out.add_tensor("w", np.arange(6, dtype="f4").reshape(2, 3))
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()
    ckpt = ckptool.open(tmp_path / "be.gguf")
    assert ckpt.state_dict()["w"].numpy().tolist() == [[0, 1, 2], [3, 4, 5]]
    ckptool.save(ckpt, tmp_path / "again.gguf")
    assert (tmp_path / "again.gguf").read_bytes() == (tmp_path / "be.gguf").read_bytes()


def made(infos, metadata=b"", entries=0, data=b"", tensors=None):
    """A file laid out by hand: INFOS are (name, dimensions, type, offset)."""
    listed = b"".join(
        struct.pack("<Q", len(name)) + name + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)
        for name, dims, kind, offset in infos
    )
    head = b"GGUF" + struct.pack("<IQQ", 3, len(infos) if tensors is None else tensors, entries) + metadata + listed
    return head + bytes(-len(head) % 32) + data


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (made([(b"a", (4,), 0, 1 << 40)], data=bytes(64)), "reaches beyond the end of the file"),
        (made([(b"a", (4,), 0, (1 << 64) - 32)], data=bytes(64)), "reaches beyond the end of the file"),
        (made([(b"a", (4,), 0, 0), (b"b", (4,), 0, 0)], data=bytes(64)), "two tensors overlap"),
        (made([(b"a", (16,), 0, 0), (b"b", (4,), 0, 32)], data=bytes(64)), "two tensors overlap"),
        (made([(b"a", (4,), 0, 7)], data=bytes(64)), "is not a multiple of 32"),
        (made([(b"a", (4,), 99, 0)], data=bytes(64)), "has the type 99, which"),
        (made([(b"a", (33,), 8, 0)], data=bytes(64)), "blocks have 32"),
        (made([(b"a", (1 << 63, 1 << 63), 0, 0)], data=bytes(64)), "is none"),
        (made([(b"a", (4,), 0, 0), (b"a", (4,), 0, 32)], data=bytes(64)), "two tensors have the name"),
        (made([], tensors=1 << 60), "more than the file has room for"),
        (made([], metadata=struct.pack("<Q1sIIQ", 1, b"k", 9, 0, 1 << 60), entries=1), "cut short"),
        (made([], metadata=struct.pack("<Q1sI", 1, b"k", 77), entries=1), "unknown type 77"),
        (made([], metadata=struct.pack("<Q17sII", 17, b"general.alignment", 4, 3), entries=1), "alignment"),
    ],
)
def test_a_file_that_lies_is_refused_in_a_line(tmp_path, raw, said):
    (tmp_path / "x.gguf").write_bytes(raw)
    with pytest.raises((Malformed, CannotCarry)) as raised:
        ckptool.open(tmp_path / "x.gguf")
    assert said in str(raised.value)
    assert len(str(raised.value).splitlines()) <= 3


def test_a_file_that_is_cut_short_is_refused(model):
    raw = model.read_bytes()
    for end in range(0, len(raw) - 32, 397):  # the last bytes are padding
        model.write_bytes(raw[:end])
        with pytest.raises(ckptool.CheckpointError):
            ckptool.open(model)
