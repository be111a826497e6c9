"""Files of other frameworks that lie: one line says so, and nothing is written."""

import random
import shutil
import struct
import zipfile
from pathlib import Path

import pytest

import ckptool
from ckptool.disk.composing import Joined
from ckptool.disk.files import FileRange
from ckptool.errors import Ambiguous, CheckpointError, Malformed, RuleError
from ckptool.formats.frameworks.filtered_chunks import crc32c
from ckptool.formats.frameworks.tensorflow import slice_key

HERE = Path(__file__).parents[3] / "fixtures" / "frameworks"
#: Files that no child process reads, with what lies beside them.
FILES = {
    "flax.msgpack": [],
    "flax-chunked.msgpack": [],
    "equinox.eqx": [],
    "onnx.onnx": [],
    "onnx-external.onnx": ["onnx-external.data"],
    "tf2.index": ["tf2.data-00000-of-00001"],
    "tf1-v1.ckpt": [],
    "tf1-v2.ckpt.index": ["tf1-v2.ckpt.data-00000-of-00001"],
    "float.tflite": [],
    "int8.tflite": [],
    "mlx.npz": [],
    "mlx.npy": [],
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_with_changed_bytes_is_read_or_refused_in_a_line(tmp_path, name):
    made = random.Random(name)
    for other in FILES[name]:
        shutil.copy(HERE / other, tmp_path)
    raw = (HERE / name).read_bytes()
    for _ in range(150):
        changed = bytearray(raw)
        for _ in range(made.randint(1, 3)):
            kind, at = made.random(), made.randrange(len(changed))
            if kind < 0.5:
                changed[at] = made.choice((0, 1, 0x7F, 0x80, 0xFF, made.randrange(256)))
            elif kind < 0.7:
                changed[at : at + 4] = struct.pack("<I", made.choice((0, 0xFFFFFFFF, 0x7FFFFFFF, len(raw))))
            elif kind < 0.85:
                del changed[at : at + made.randint(1, 20)]
            else:
                changed = changed[: max(at, 1)]
        if not changed:
            continue
        (tmp_path / name).write_bytes(changed)
        try:
            ckpt = ckptool.open(tmp_path / name)
            ckptool.save(ckpt, tmp_path / "out.pth", overwrite=True, allow_loss=True)
        except CheckpointError as error:
            assert error.what  # noqa: PT017 - each is a line of its own
            assert "\n" not in error.what  # noqa: PT017


@pytest.mark.parametrize("name", [n for n in FILES if n not in ("mlx.npz",)])
def test_values_stay_in_the_file(name):
    sources = [tensor.storage.source for _, tensor in ckptool.open(HERE / name).tensors() if tensor.nbytes > 100]
    assert all(isinstance(source, FileRange | Joined) for source in sources)


@pytest.mark.parametrize("location", ["../secret.bin", "/etc/passwd", "a/../../secret.bin", "..", "C:secret", ""])
def test_external_data_of_onnx_outside_of_its_folder_is_refused(tmp_path, location):
    (tmp_path / "secret.bin").write_bytes(bytes(4000))
    (tmp_path / "model").mkdir()
    old = (HERE / "onnx-external.onnx").read_bytes()
    inner = b"\n\x08location\x12\x12onnx-external.data"
    assert inner in old
    # the lengths of the messages around it follow: those of the entry, the tensor and the graph
    new = location.ljust(len("onnx-external.data"), "/" if location.startswith("/") else " ")[:18].encode()
    (tmp_path / "model" / "m.onnx").write_bytes(old.replace(b"onnx-external.data", new))
    with pytest.raises(CheckpointError) as raised:
        ckptool.open(tmp_path / "model" / "m.onnx")
    assert "not a plain file name" in str(raised.value) or "is not in the folder" in str(raised.value)


def test_external_data_of_onnx_through_a_link_out_of_its_folder_are_refused(tmp_path):
    (tmp_path / "secret.bin").write_bytes(bytes(4000))
    (tmp_path / "model").mkdir()
    shutil.copy(HERE / "onnx-external.onnx", tmp_path / "model")
    (tmp_path / "model" / "onnx-external.data").symlink_to(tmp_path / "secret.bin")
    with pytest.raises(CheckpointError, match="link"):
        ckptool.open(tmp_path / "model" / "onnx-external.onnx")


def test_a_checkpoint_of_tensorflow_without_its_data_names_the_file(tmp_path):
    shutil.copy(HERE / "tf2.index", tmp_path)
    with pytest.raises(Malformed, match=r"names 'tf2.data-00000-of-00001', which is not in the folder"):
        ckptool.open(tmp_path / "tf2.index")


def test_a_damaged_index_of_tensorflow_is_told_by_its_checksum(tmp_path):
    for name in ("tf2.index", "tf2.data-00000-of-00001"):
        shutil.copy(HERE / name, tmp_path)
    raw = bytearray((tmp_path / "tf2.index").read_bytes())
    raw[40] ^= 1
    (tmp_path / "tf2.index").write_bytes(raw)
    with pytest.raises(Malformed, match="CRC-32C"):
        ckptool.open(tmp_path / "tf2.index")


def test_the_checksum_is_that_of_castagnoli():
    assert crc32c(b"123456789") == 0xE3069283


def test_keys_of_slices_sort_as_their_numbers_do():
    extents = [[(start, 50)] for start in (0, 1, 63, 64, 100, 8191, 8192, 1 << 20, 1 << 40, (1 << 62) - 1)]
    keys = [slice_key("w", one) for one in extents]
    assert keys == sorted(keys)
    assert slice_key("bert/table", [(2, 2), (0, -1)]) == b"\0bert/table\0\1\1\2\x82\x82\x80\x7f"


def test_a_folder_with_several_checkpoints_of_tensorflow_asks_which(tmp_path):
    for number in (1, 2):
        for end in (".index", ".data-00000-of-00001"):
            shutil.copy(HERE / f"tf2{end}", tmp_path / f"ckpt-{number}{end}")
    with pytest.raises(Ambiguous, match="holds 2 checkpoints of TensorFlow"):
        ckptool.open(tmp_path)
    (tmp_path / "ckpt-2.index").unlink()
    assert len(ckptool.open(tmp_path).state_dict()) == 4


@pytest.mark.parametrize("suffix", [".onnx", ".h5", ".keras", ".msgpack", ".tflite", ".npy"])
def test_what_is_only_read_is_refused_as_a_target(tmp_path, suffix):
    with pytest.raises(RuleError, match="does not write"):
        ckptool.save(ckptool.open(HERE / "mlx.npz"), tmp_path / f"out{suffix}")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["flax", "onnx", "hdf5", "tensorflow", "tflite", "saved-model", "keras"])
def test_a_format_that_is_only_read_is_refused_by_name(tmp_path, name):
    with pytest.raises(RuleError):
        ckptool.save(ckptool.open(HERE / "mlx.npz"), tmp_path / "out", format=name)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", [n for n in FILES if n != "tf2.index"])
def test_a_scan_says_that_there_is_no_pickle(name):
    found = ckptool.scan(HERE / name)
    assert (found.verdict, found.pickles) == ("safe", [])


def test_a_scan_names_a_lambda_layer_of_keras(tmp_path):
    config = b'{"config": {"layers": [{"class_name": "Lambda", "config": {"function": "4wE"}}]}}'
    with zipfile.ZipFile(HERE / "keras.keras") as old, zipfile.ZipFile(tmp_path / "a.keras", "w") as new:
        for name in old.namelist():
            new.writestr(name, config if name == "config.json" else old.read(name))
    found = ckptool.scan(tmp_path / "a.keras")
    assert found.verdict == "unsafe"
    assert [one.name for one in found.findings] == ["a Lambda layer, whose code Keras runs"]
    assert ckptool.scan(HERE / "keras.keras").verdict == "safe"


def test_what_a_scan_cannot_read_is_no_safe_file(tmp_path):
    (tmp_path / "x.msgpack").write_bytes((HERE / "flax.msgpack").read_bytes()[:-3])
    assert ckptool.scan(tmp_path / "x.msgpack").verdict == "unknown"
