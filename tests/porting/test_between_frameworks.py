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
