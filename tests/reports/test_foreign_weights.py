"""What doctor says of weights of other frameworks, and of quantised ones; its commands are typed."""

import contextlib
import io
import shlex
import zipfile
from pathlib import Path

import pytest

import ckptool
from ckptool.cli import main

FIXTURES = Path(__file__).parents[2] / "fixtures"
QUANTIZED = (
    "mlx-4",
    "bnb-nf4",
    "gptq-4",
    "awq",
    "ct-pack4",
    "ct-nvfp4",
    "ct-mxfp4",
    "gpt-oss",
    "fp8-blocks",
    "ao-int8",
)


def found(path, name):
    return next((one for one in ckptool.doctor(path).findings if one.name == name), None)


def typed(command):
    words = shlex.split(command)
    assert words[0] == "ckptool"
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out), pytest.raises(SystemExit) as ended:
        main(words[1:])
    return ended.value.code, out.getvalue()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("layers/keras.keras", "a file of Keras, which torch.load does not read; axes of its tensors are HWIM, HWIO"),
        ("layers/flax.msgpack", "a file of Flax, which torch.load does not read; axes of its tensors are HWIO, IIO"),
        (
            "layers/float.tflite",
            "a file of TensorFlow Lite, which torch.load does not read; axes of its",
        ),
        ("layers/onnx.onnx", "a file of ONNX, which torch.load does not read; axes of its tensors are IO, IOHW"),
        ("layers/mlx.safetensors", "weights of MLX; axes of its tensors are OHWI, OWI, which torch's layers order"),
        ("layers/paddle.pdparams", "weights of Paddle; axes of its tensors are IO, IOHW, which torch's layers order"),
        ("gguf.gguf", "a file of llama.cpp, which torch.load does not read"),
        ("orbax-ocdbt", "a file of Orbax, which torch.load does not read; axes of its tensors are IO"),
        ("saved_model", "a file of TensorFlow, which torch.load does not read; axes of its tensors are HWIO"),
        ("tfjs/model.json", "a file of TensorFlow.js, which torch.load does not read"),
        ("equinox.eqx", "a file of equinox, which torch.load does not read"),
        ("joblib.joblib", "a file of joblib, which torch.load does not read"),
        ("stored.npz", "a file of NumPy, which torch.load does not read"),
    ],
)
def test_a_file_of_another_framework_is_named_with_the_command(tmp_path, name, said):
    for package, endings in (("h5py", (".keras",)), ("gguf", (".gguf",)), ("zstandard", ("orbax-ocdbt",))):
        if name.endswith(endings):
            pytest.importorskip(package)
    finding = found(FIXTURES / "frameworks" / name, "framework")
    assert finding.what.startswith(said)
    assert finding.actions[0].startswith("ckptool transfer ")
    for command, _ in finding.commands:
        words = shlex.split(command)
        code, told = typed(shlex.join([*words[:-1], str(tmp_path / "out.safetensors")]))
        assert code == 0, told
        assert ckptool.open(tmp_path / "out.safetensors").state_dict().parameters


def test_a_file_of_torch_is_no_file_of_another_framework():
    assert found(FIXTURES / "trained" / "cnn-ddp-wrapped.pth", "framework") is None
    assert found(FIXTURES / "frameworks" / "mlx.safetensors", "framework") is None  # its axes are those of torch


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("quantized")
    with zipfile.ZipFile(FIXTURES / "quantized.zip") as archive:
        archive.extractall(folder)
    return folder


@pytest.mark.parametrize("case", QUANTIZED)
def test_a_quantised_file_is_named_with_its_family_and_the_command_that_opens_it(written, case):
    finding = found(written / case, "packed")
    assert finding.what.startswith("quantised: ")
    ((command, _),) = finding.commands
    assert command.endswith(" --dequantize")
    code, told = typed(command)
    assert code == 0, told
    plain = Path(shlex.split(command)[3])
    assert found(plain, "packed") is None


def test_a_quantised_pickle_of_torchao_is_opened_by_the_command(written):
    finding = found(written / "ao-int4-pickle" / "model.pt", "packed")
    assert finding.what == "quantised: 1 weight (torchao.quantization.IntxUnpackedToInt8Tensor): 0.weight"
    assert typed(finding.commands[0][0])[0] == 0


def test_bits_and_groups_are_said(written):
    assert "(GPTQ, 4 bits, a scale for groups of 16): m.qweight" in found(written / "gptq-4", "packed").what
    assert "1 of MLX, 4 bits, a scale for groups of 64" in found(written / "mlx-4", "packed").what


def test_what_cannot_be_dequantised_says_why():
    finding = found(FIXTURES / "frameworks" / "mlx-4bit.safetensors", "packed")
    assert finding.commands == []
    assert "of which config.json does not say how many bits" in finding.actions[-1]
