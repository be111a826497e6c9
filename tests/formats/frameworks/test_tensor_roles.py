"""What is said of tensors is what their layers compute (fixtures/frameworks/layers), and follows them."""

from pathlib import Path

import numpy as np
import pytest

import ckptool
from ckptool.checkpoint import Role
from ckptool.formats.frameworks.onnx_roles import Node, roles_in
from ckptool.formats.frameworks.tensor_roles import roles_by_name
from ckptool.inert.other_tensors import as_dense

torch = pytest.importorskip("torch")

HERE = Path(__file__).parents[3] / "fixtures" / "frameworks" / "layers"
COMPUTED = np.load(HERE / "layers.npz")
CASES = sorted({tuple(name.split("|")[:2]) for name in COMPUTED.files})


def opened(name):
    if name.endswith((".keras", ".h5")):
        pytest.importorskip("h5py")
    return ckptool.open(HERE / name)


def in_order(values, axes, order):
    """The values with their axes in ORDER, those that are divided as one."""
    at = [place for letter in order for place, other in enumerate(axes) if other == letter]
    turned = np.transpose(values, at)
    sizes = [int(np.prod([n for n, letter in zip(values.shape, axes, strict=True) if letter == one])) for one in order]
    return torch.from_numpy(np.ascontiguousarray(turned)).reshape(sizes).double()


def computed(role, values, x):
    """What torch computes with a weight whose role is known, and the letters alone decide how it is turned."""
    space = "".join(letter for letter in "DHW" if letter in role.axes)
    if role.axes == "VO":
        return torch.nn.functional.embedding(torch.from_numpy(x), torch.from_numpy(values).double())
    x = torch.from_numpy(x).double()
    if not space:
        weight = in_order(values, role.axes, "OI")
        inputs = sum(n for n, letter in zip(values.shape, role.axes, strict=True) if letter == "I") and weight.shape[1]
        return x.reshape(*x.shape[: x.ndim - role.axes.count("I")], inputs) @ weight.T
    if "M" in role.axes:
        kernel = in_order(values, role.axes, f"IM{space}").flatten(0, 1).unsqueeze(1)
    else:
        kernel = in_order(values, role.axes, f"OI{space}")
    if "transpose" in role.layer.lower() or role.layer in ("back", "TRANSPOSE_CONV"):
        return torch.nn.functional.conv_transpose2d(x, kernel.transpose(0, 1))
    convolution = torch.nn.functional.conv1d if space == "W" else torch.nn.functional.conv2d
    return convolution(x, kernel, groups=x.shape[1] // kernel.shape[1])


@pytest.mark.parametrize(("file", "weight"), CASES)
def test_the_axes_that_are_stated_are_those_the_framework_computes_with(file, weight):
    ckpt = opened(file)
    role = ckpt.roles[weight]
    values = as_dense(ckpt.state_dict()[weight]).numpy()
    assert len(role.axes) == values.ndim
    expected = COMPUTED[f"{file}|{weight}|y"]
    found = computed(role, values.astype("f4"), COMPUTED[f"{file}|{weight}|x"])
    np.testing.assert_allclose(found.reshape(expected.shape).numpy(), expected, rtol=1e-5, atol=1e-4)


def test_every_kind_of_file_has_layers_to_be_checked():
    assert {file.rpartition(".")[2] for file, _ in CASES} == {
        "keras", "msgpack", "onnx", "safetensors", "pdparams", "index", "tflite",
    }  # fmt: skip
    axes = {opened(file).roles[weight].axes for file, weight in CASES}
    assert axes >= {"HWIO", "HWIM", "HWOI", "OIHW", "IOHW", "OHWI", "IHWO", "IO", "OI", "IOO", "IIO", "VO"}


def test_it_is_stated_what_a_role_was_told_by():
    assert opened("onnx.onnx").roles["behind"] == Role("MatMul", "kernel", "OI", "operator")
    assert opened("paddle.pdparams").roles["norm._variance"] == Role("batch_norm2d", "moving_variance", "", "class")
    assert opened("flax.msgpack").roles["LayerNorm_0/bias"] == Role("LayerNorm", "beta", "", "name")
    assert opened("onnx.onnx").roles["lstm.r"].axes == "NOI"
    assert opened("onnx.onnx").roles["bias"] == Role("MatMul", "bias", "", "operator")


def test_variables_of_tensorflow_have_the_names_that_their_layers_gave_them():
    roles = opened("tf2.index").roles  # its keys are a, b, c: only the graph of objects says more
    assert roles["b"] == Role("depthwise_conv2d", "depthwise_kernel", "HWIM", "name")
    assert roles["c"].axes == "HWOI"


def test_roles_follow_their_keys():
    ckpt = ckptool.rename(opened("onnx.onnx"), ["conv=stem.weight"])
    assert ckpt.roles["stem.weight"].axes == "OIHW"


class _Shaped:
    def __init__(self, *shape):
        self.shape = shape


@pytest.mark.parametrize(
    ("framework", "name", "shape", "axes"),
    [
        ("flax", "layers/attention/query/kernel", (4, 2, 3), ""),  # nothing beside it says that it is an attention
        ("flax", "decoder/mlp/wi/kernel", (4, 12, 3), ""),  # a stack of layers, or a convolution: not told
        ("flax", "Conv_0/kernel", (3, 5, 6), "WIO"),
        ("flax", "net/Dense_0/kernel/value", (5, 6), "IO"),
        ("tensorflow", "bert/output_weights", (2, 5), ""),
        ("tensorflow", "Conv2d_1/depthwise_weights", (3, 3, 8, 1), "HWIM"),
        ("mlx", "conv.weight", (8, 3, 3, 4), "OHWI"),
        ("mlx", "norm.weight", (8,), ""),
        ("llama.cpp", "blk.0.ffn_up_exps.weight", (4, 8, 6), "NOI"),
        ("llama.cpp", "blk.0.ssm_conv1d.weight", (8, 4), ""),
        ("llama.cpp", "v.patch_embd.weight", (8, 3, 14, 14), "OIHW"),
        ("numpy", "Transformer/Dense_0/kernel", (4, 8), "IO"),
        ("numpy", "weight", (4, 8), ""),
        ("", "a/kernel", (4, 8), ""),
    ],
)
def test_names_tell_axes_where_they_leave_no_doubt(framework, name, shape, axes):
    assert roles_by_name(framework, {name: _Shaped(*shape)}).get(name, Role()).axes == axes


def test_a_weight_of_several_operators_has_what_all_of_them_say():
    nodes = [Node("MatMul", ["x", "w"], ["y"]), Node("Gemm", ["x", "w"], ["z"], {"transB": [1]})]
    assert roles_in(nodes, {"w": (2, 3)}, {"w"})["w"] == Role("", "kernel", "", "operator")
    tied = [Node("Gather", ["w", "i"], ["y"]), Node("Gemm", ["x", "w"], ["z"], {"transB": [1]})]
    assert roles_in(tied, {"w": (2, 3)}, {"w"})["w"].axes == "VO"


def test_a_graph_that_goes_in_circles_is_followed_once():
    nodes = [Node("Identity", ["w"], ["v"]), Node("Identity", ["v"], ["w"]), Node("Conv", ["x", "v"], ["y"])]
    assert roles_in(nodes, {"w": (2, 3, 4, 5)}, {"w"})["w"].axes == "OIHW"
