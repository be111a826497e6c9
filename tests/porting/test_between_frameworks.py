"""Files of other frameworks in code of torch: what comes out is what the framework computed (fixtures/frameworks)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ckptool

torch = pytest.importorskip("torch")
nn = torch.nn

HERE = Path(__file__).parents[2] / "fixtures" / "frameworks"
COMPUTED = np.load(HERE / "ports" / "ports.npz")


class Images(nn.Module):
    """Layers over images in the order of their arguments, the mean over all pixels, and a linear layer or two."""

    def __init__(self, *layers: Any, heads: tuple[Any, ...]) -> None:
        super().__init__()
        self.body = nn.Sequential(*layers)
        self.heads = nn.Sequential(*heads)

    def forward(self, x: Any) -> Any:
        return self.heads(self.body(x).mean((2, 3)))


def of_keras() -> Any:
    norm = nn.BatchNorm2d(4, eps=1e-3)
    deep = nn.Conv2d(4, 8, 3, groups=4)
    return Images(nn.Conv2d(4, 4, 3, padding=1), norm, deep, nn.ConvTranspose2d(8, 8, 3), heads=(nn.Linear(8, 8),))


def of_tensorflow() -> Any:
    body = (nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 8, 3, groups=4, bias=False))
    return Images(*body, nn.ConvTranspose2d(8, 8, 3, bias=False), heads=(nn.Linear(8, 8),))


def of_tflite() -> Any:
    body = (nn.Conv2d(4, 4, 3), nn.ReLU(), nn.Conv2d(4, 8, 3, groups=4))
    return Images(*body, nn.ConvTranspose2d(8, 8, 3, bias=False), heads=(nn.Linear(8, 8),))


def of_mlx() -> Any:
    body = (nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 8, 3, groups=4))
    return Images(*body, nn.ConvTranspose2d(8, 3, (3, 2)), heads=(nn.Linear(3, 3),))


def of_paddle() -> Any:
    body = (nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.ConvTranspose2d(4, 4, 3))
    return Images(*body, heads=(nn.Linear(4, 4), nn.Linear(4, 4)))


class Attention(nn.Module):
    """An attention of two heads of three channels each."""

    def __init__(self) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 6)
        self.out_proj = nn.Linear(6, 6)

    def forward(self, x: Any) -> Any:
        q, k, v = (layer(x).unflatten(-1, (2, 3)).transpose(1, 2) for layer in (self.q_proj, self.k_proj, self.v_proj))
        return self.out_proj(nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class OfFlax(nn.Module):
    """A convolution, a transposed one, an attention over the pixels, and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm, self.up = nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4), nn.ConvTranspose2d(4, 6, 3)
        self.attn, self.ln, self.head = Attention(), nn.LayerNorm(6), nn.Linear(6, 6)

    def forward(self, x: Any) -> Any:
        x = self.up(self.norm(self.stem(x))).relu().flatten(2).mT
        return self.head(self.ln(x + self.attn(x)).mean(1))


class OfONNX(nn.Module):
    """Convolutions, a linear layer over the columns, and an LSTM."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm, self.up = nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4), nn.ConvTranspose2d(4, 6, 3, bias=False)
        self.fc, self.rnn, self.out = nn.Linear(6, 6), nn.LSTM(6, 6), nn.Linear(6, 6, bias=False)

    def forward(self, x: Any) -> Any:
        x = self.up(self.norm(self.stem(x))).relu().mean(3).permute(2, 0, 1)
        return self.out(self.rnn(self.fc(x))[1][0][0])


class Text(nn.Module):
    """A table, two recurrent layers, a norm, a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.lstm, self.gru = nn.Embedding(6, 6), nn.LSTM(6, 6, batch_first=True), nn.GRU(6, 6)
        self.norm, self.fc = nn.LayerNorm(6), nn.Linear(6, 6)

    def forward(self, x: Any) -> Any:
        x = self.lstm(self.embed(x))[0].transpose(0, 1)
        return self.fc(self.norm(self.gru(x)[1][0]))


PORTS = {
    "images.keras": of_keras,
    "text.weights.h5": Text,
    "flax.msgpack": OfFlax,
    "tf1.ckpt.index": of_tensorflow,
    "tf2.index": of_tensorflow,
    "tfjs/model.json": of_tensorflow,
    "float.tflite": of_tflite,
    "onnx.onnx": OfONNX,
    "mlx.safetensors": of_mlx,
    "paddle.pdparams": of_paddle,
}


def opened(name: str) -> Any:
    if name.endswith((".keras", ".h5")):
        pytest.importorskip("h5py")
    return ckptool.open(HERE / "ports" / name)


def ported(name: str, model: Any) -> Any:
    """The mapping of a file, and what the model gives with it."""
    x = torch.from_numpy(COMPUTED[f"{name}|x"])
    x = x if x.is_floating_point() else x.long()
    mapping = ckptool.transfer(opened(name), model, inputs=(x,))
    weights = mapping.apply(opened(name)).state_dict()
    state = {key: torch.from_numpy(np.array(tensor.numpy())) for key, tensor in weights.items()}
    model.load_state_dict(state)
    with torch.no_grad():
        return mapping, model.eval()(x)


@pytest.mark.parametrize("name", PORTS)
def test_a_model_of_another_framework_computes_in_torch_what_it_computed_there(name: str) -> None:
    mapping, y = ported(name, PORTS[name]())
    np.testing.assert_allclose(y.numpy(), COMPUTED[f"{name}|y"], rtol=1e-4, atol=1e-5)
    assert mapping.is_sure


def test_constants_of_a_graph_fill_nothing_and_are_named() -> None:
    mapping = ckptool.transfer(opened("float.tflite"), of_tflite())
    assert "Mean/reduction_indices" in mapping.unused


# ------------------------------------------------------------------------------------ a layer of each kind, by itself

LAYERS = np.load(HERE / "layers" / "layers.npz")
ALONE = {
    "keras.keras": {
        "dense/kernel": nn.Linear(5, 4),
        "conv/kernel": nn.Conv2d(3, 4, (2, 3)),
        "deep/kernel": nn.Conv2d(3, 6, (2, 3), groups=3),
        "back/kernel": nn.ConvTranspose2d(3, 4, (2, 3)),
        "table/embeddings": nn.Embedding(7, 3),
        "mixed/kernel": nn.Linear(5, 6, bias=False),
    },
    "flax.msgpack": {
        "Conv_0/kernel": nn.Conv2d(3, 4, (2, 3), bias=False),
        "Conv_1/kernel": nn.Conv2d(3, 6, (2, 3), groups=3, bias=False),
        "Dense_0/kernel": nn.Linear(5, 4, bias=False),
        "Embed_0/embedding": nn.Embedding(7, 3),
    },
    "mlx.safetensors": {
        "conv.weight": nn.Conv2d(3, 4, (2, 3), bias=False),
        "deep.weight": nn.Conv2d(3, 6, (2, 3), groups=3, bias=False),
        "conv1d.weight": nn.Conv1d(5, 4, 2, bias=False),
        "linear.weight": nn.Linear(5, 4, bias=False),
        "embed_tokens.weight": nn.Embedding(7, 3),
    },
    "paddle.pdparams": {
        "linear.weight": nn.Linear(5, 4, bias=False),
        "conv.weight": nn.Conv2d(3, 4, (2, 3), bias=False),
        "deep.weight": nn.Conv2d(3, 6, (2, 3), groups=3, bias=False),
        "back.weight": nn.ConvTranspose2d(3, 4, (2, 3), bias=False),
        "table.weight": nn.Embedding(7, 3),
    },
    "tf2.index": {
        "a": nn.Conv2d(3, 4, (2, 3), bias=False),
        "b": nn.Conv2d(3, 6, (2, 3), groups=3, bias=False),
        "c": nn.ConvTranspose2d(3, 4, (2, 3), bias=False),
        "d": nn.Linear(5, 4, bias=False),
        "e": nn.Embedding(7, 3),
    },
}


@pytest.mark.parametrize("name", ALONE)
def test_each_layer_computes_alone_what_it_computed_there(name: str) -> None:
    if name.endswith(".keras"):
        pytest.importorskip("h5py")
    ckpt = ckptool.open(HERE / "layers" / name)
    model = nn.ModuleDict({f"part{place}": layer for place, layer in enumerate(ALONE[name].values())})
    mapping = ckptool.transfer(ckpt, model)
    assert mapping.is_sure or mapping.unused  # the file of Flax holds an attention, too, and another norm
    state = {key: torch.from_numpy(np.array(t.numpy())) for key, t in mapping.apply(ckpt).state_dict().items()}
    for key in [key for key in state if key.endswith("bias")]:
        state[key] = torch.zeros_like(state[key])  # what is stored was computed without
    model.load_state_dict(state)
    for weight, layer in zip(ALONE[name], model.values(), strict=True):
        expected = LAYERS[f"{name}|{weight}|y"]
        with torch.no_grad():
            y = layer(torch.from_numpy(LAYERS[f"{name}|{weight}|x"]))
        np.testing.assert_allclose(y.reshape(expected.shape).numpy(), expected, rtol=1e-5, atol=1e-4, err_msg=weight)


# ------------------------------------------------------------------------------------ where sizes say nothing


def stated(tensors: dict[str, Any], framework: str, roles: dict[str, Any]) -> Any:
    """A checkpoint in memory of which another framework states the roles."""
    from dataclasses import replace

    from ckptool.torch_bridge import from_torch

    return replace(from_torch(tensors), framework=framework, roles=roles)


def role(layer: str, part: str, axes: str, told_by: str) -> Any:
    from ckptool.checkpoint import Role

    return Role(layer, part, axes, told_by)


def test_a_square_matrix_of_the_same_name_is_turned_where_its_class_says_so() -> None:
    weight = torch.randn(4, 4)
    model = nn.Sequential(nn.Linear(4, 4, bias=False))
    ckpt = stated({"0.weight": weight}, "paddle", {"0.weight": role("linear", "kernel", "IO", "class")})
    mapping = ckptool.load_into(model, ckpt)
    assert mapping.is_sure
    assert torch.equal(model[0].weight, weight.T)


def test_a_square_matrix_that_stands_as_in_torch_is_taken_as_it_is() -> None:
    weight = torch.randn(4, 4)
    model = nn.Sequential(nn.Linear(4, 4, bias=False))
    ckpt = stated({"kernel": weight}, "onnx", {"kernel": role("Gemm", "kernel", "OI", "operator")})
    ckptool.load_into(model, ckpt)
    assert torch.equal(model[0].weight, weight)


@pytest.mark.parametrize("told_by", ["name", "class"])
def test_a_kernel_whose_sizes_fit_both_ways_is_a_question_only_where_a_name_tells(told_by: str) -> None:
    weight = torch.randn(4, 3, 3, 3)
    layer = "" if told_by == "name" else "Conv2d"
    ckpt = stated({"conv.weight": weight}, "mlx", {"conv.weight": role(layer, "kernel", "OHWI", told_by)})
    model = nn.ModuleDict({"conv": nn.Conv2d(3, 4, 3, bias=False)})
    (entry,) = ckptool.transfer(ckpt, model).entries
    assert str(entry.expr) == "permute(conv.weight, 0, 3, 1, 2)"
    assert entry.status == ("guessed" if told_by == "name" else "mapped")
    assert [str(option) for q in entry.questions for option in q.options] == ["conv.weight"] or told_by == "class"


def test_kernels_that_were_taken_over_from_torch_as_they_were_are_seen_by_their_sizes() -> None:
    roles = {f"{n}.weight": role("", "kernel", "OHWI", "name") for n in (0, 1)}
    kernels = {"0.weight": torch.randn(8, 4, 3, 3), "1.weight": torch.randn(8, 8, 3, 3)}
    model = nn.Sequential(nn.Conv2d(4, 8, 3, bias=False), nn.Conv2d(8, 8, 3, bias=False))
    mapping = ckptool.transfer(stated(kernels, "mlx", roles), model)
    assert [str(entry.expr) for entry in mapping.entries] == ["0.weight", "1.weight"]


@pytest.mark.parametrize(("channels", "sure"), [((4, 6), True), ((4, 4), False)])
def test_a_mirrored_kernel_is_certain_where_its_sizes_show_which_axis_is_which(
    channels: tuple[int, int], sure: bool
) -> None:
    inputs, outputs = channels
    ckpt = stated(
        {"ConvTranspose_0/kernel": torch.randn(3, 3, inputs, outputs)},
        "flax",
        {"ConvTranspose_0/kernel": role("ConvTranspose", "kernel", "HWIO", "name")},
    )
    mapping = ckptool.transfer(ckpt, nn.ModuleDict({"up": nn.ConvTranspose2d(inputs, outputs, 3, bias=False)}))
    (entry,) = mapping.entries
    assert str(entry.expr) == "flip(permute(ConvTranspose_0/kernel, 2, 3, 0, 1), 2, 3)"
    assert mapping.is_sure is sure


def test_what_a_layer_holds_alone_is_known_for_what_it_is() -> None:
    from ckptool.model_code.signature import Signature, of_state_dict
    from ckptool.porting.forms.canonical import canonical
    from ckptool.porting.forms.pieces import Name

    roles = {"norm/beta": role("LayerNormalization", "beta", "", "class")}
    ckpt = stated({"norm/beta": torch.randn(4)}, "keras", roles)
    source, _ = canonical(of_state_dict(ckpt.state_dict(), ckpt), Signature("Net", {}))
    assert list(source.pieces) == [Name(("norm",), "bias")]


def test_matrices_that_an_export_numbered_are_turned_once() -> None:
    weight, bias = torch.randn(4, 4), torch.randn(4)
    roles = {
        "onnx::MatMul_7": role("MatMul", "kernel", "IO", "operator"),
        "fc.bias": role("MatMul", "bias", "", "operator"),
    }
    model = nn.ModuleDict({"fc": nn.Linear(4, 4)})
    mapping = ckptool.transfer(stated({"fc.bias": bias, "onnx::MatMul_7": weight}, "onnx", roles), model)
    assert [str(entry.expr) for entry in mapping.entries] == ['transpose("onnx::MatMul_7")', "fc.bias"]
    assert mapping.is_sure


def test_a_dense_layer_is_not_exchanged_in_silence_with_a_part_of_an_attention_of_its_size(torch):
    """The word `head` is in the name of Flax's attention, and speaks for another pair than what the file states."""
    import numpy as np

    from ckptool.checkpoint import Role
    from ckptool.inert.in_memory import FromMemory

    layer = "MultiHeadDotProductAttention"
    layers = [(f"{layer}_0/{part}", layer, (6, 2, 3), "IOO") for part in ("query", "key", "value")]
    layers += [(f"{layer}_0/out", layer, (2, 3, 6), "IIO"), ("Dense_0", "Dense", (6, 6), "IO")]
    arrays = {f"{name}/kernel": shape for name, _, shape, _ in layers}
    roles = {f"{name}/kernel": Role(kind, "kernel", axes, "name") for name, kind, _, axes in layers}
    node = FromMemory().node({key: np.ones(shape, "f4") for key, shape in sorted(arrays.items())}, "")
    source = ckptool.Checkpoint(node, "flax", framework="flax", roles=roles)
    net = torch.nn.Module()
    for name in ("q_proj", "k_proj", "v_proj", "out_proj", "head"):
        net.add_module(name, torch.nn.Linear(6, 6, bias=False))
    mapping = ckptool.transfer(source, net)
    for target, wanted in (("q_proj", "query"), ("k_proj", "key"), ("v_proj", "value"), ("head", "Dense_0")):
        entry = mapping[f"{target}.weight"]
        assert entry.status != "mapped" or wanted in str(entry.expr), (target, str(entry.expr))
        assert entry.expr is not None


def test_tensors_beside_the_modules_of_a_tree_are_read(torch):
    """In a tree of modules, positions and a temperature stand beside dicts, and not in one with other tensors."""

    def dense(rows, columns):
        return {"kernel": torch.randn(rows, columns), "bias": torch.randn(columns)}

    layers = {
        f"layer_{n}": {"fc1": dense(6, 8), "fc2": dense(8, 6), "norm": {"scale": torch.rand(6) + 1}} for n in range(4)
    }
    tree = {"params": {"temperature": torch.tensor(2.0), "encoder": {"pos_embedding": torch.randn(1, 5, 6), **layers}}}
    net = torch.nn.Module()
    net.temperature = torch.nn.Parameter(torch.tensor(1.0))
    net.encoder = torch.nn.Module()
    net.encoder.positions = torch.nn.Parameter(torch.randn(5, 6))
    net.encoder.layers = torch.nn.ModuleList()
    for _ in range(4):
        layer = torch.nn.ModuleDict({"fc1": torch.nn.Linear(6, 8), "fc2": torch.nn.Linear(8, 6)})
        layer["norm"] = torch.nn.RMSNorm(6)
        net.encoder.layers.append(layer)
    ckptool.load_into(net, tree, mapping=ckptool.transfer(tree, net))
    assert net.temperature == 2.0
    assert net.encoder.positions.equal(tree["params"]["encoder"]["pos_embedding"][0])
    assert net.encoder.layers[3]["fc2"].weight.equal(layers["layer_3"]["fc2"]["kernel"].T)


@pytest.mark.parametrize("lacking", [{"gamma"}, {"beta"}, {"gamma", "beta"}, set()])
def test_a_batch_norm_of_keras_without_scale_or_shift_multiplies_by_1_and_adds_0(torch, lacking):
    source = {"stem/kernel:0": torch.randn(3, 3, 3, 8)}
    leaves = {"gamma", "beta", "moving_mean", "moving_variance"} - lacking
    source |= {f"stem_bn/{leaf}:0": torch.rand(8) + 1 for leaf in sorted(leaves)}
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3, bias=False), torch.nn.BatchNorm2d(8))
    torch.nn.init.zeros_(net[1].weight)
    mapping = ckptool.transfer(source, net)
    assert mapping.is_sure
    ckptool.load_into(net, source, mapping=mapping)
    for leaf, value, neutral in (("gamma", net[1].weight, torch.ones(8)), ("beta", net[1].bias, torch.zeros(8))):
        assert value.equal(source.get(f"stem_bn/{leaf}:0", neutral))
