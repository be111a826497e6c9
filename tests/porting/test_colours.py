"""Proofs on equal numbers say nothing about what the channels of pictures stand for."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn

import ckptool


class Caffe(nn.Module):
    """Takes pictures as OpenCV reads them, in BGR."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.out = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 3, 1)

    def forward(self, x: Any) -> Any:
        return self.out(self.conv(x).relu())


class Pictures(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 3, 1)

    def forward(self, rgb: Any) -> Any:
        return self.head(self.stem(rgb).relu())


class Silent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 3, 1)

    def forward(self, x: Any) -> Any:
        return self.head(self.stem(x).relu())


def proved(own: nn.Module) -> Any:
    torch.manual_seed(0)
    source = Caffe()
    mapping = ckptool.transfer(
        source.state_dict(), own, inputs=["float32[2,3,8,8]"], source_model=source, prove=True
    )  # fmt: skip
    assert mapping.proof is not None
    assert mapping.proof["equal"]
    return mapping


def test_the_first_layer_is_a_guess_where_the_codes_speak_of_other_orders_of_colours() -> None:
    mapping = proved(Pictures())
    assert [entry.target for entry in mapping.having("guessed")] == ["stem.weight"]
    entry = mapping["stem.weight"]
    assert entry.doubts[0].startswith("the source's code mentions BGR and the model's code mentions RGB")
    turned = "cat(1, slice(conv.weight, 1, 2, 3), slice(conv.weight, 1, 1, 2), slice(conv.weight, 1, 0, 1))"
    assert str(entry.rivals[0]) == turned


def test_code_that_speaks_of_no_order_of_colours_raises_no_doubt() -> None:
    assert not proved(Silent()).having("guessed")


class Turned(nn.Module):
    """Takes pictures in RGB and turns them before the layers that were trained on BGR."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 3, 1))

    def forward(self, x: Any) -> Any:
        return self.layers(x[:, [2, 1, 0]])


def test_weights_are_turned_where_the_code_of_the_source_turns_its_pictures_first() -> None:
    """The model is not given what the layers inside take: it takes the same pictures as that code."""
    torch.manual_seed(0)
    source, own = Turned(), Silent()
    mapping = ckptool.transfer(source.state_dict(), own, source_model=source, prove=True)
    assert mapping.proof is not None
    assert mapping.proof["equal"]
    assert str(mapping["stem.weight"].expr).startswith("cat(1, slice(layers.0.weight, 1, 2, 3)")
    ckptool.load_into(own, source.state_dict(), mapping=mapping)
    x = torch.randn(2, 3, 9, 9)
    torch.testing.assert_close(own(x), source(x))
