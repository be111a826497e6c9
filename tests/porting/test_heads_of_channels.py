"""Attentions of 1d convolutions, whose channels have heads inside or outside, in models of linear layers."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import nn

import ckptool
from ckptool.porting.reasons import Reason


def attend(q: Any, k: Any, v: Any) -> Any:
    """Of [batch, heads, tokens, width] each."""
    return (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v


class OfConvolutions(nn.Module):
    """An attention of 1d convolutions of two heads, which it makes of the channels as (width, heads) with INSIDE, else
    as (heads, width). The three layers are a list with LISTED.
    """

    def __init__(self, *, inside: bool, listed: bool = True) -> None:
        super().__init__()
        self.inside, self.listed, self.attn = inside, listed, nn.Module()
        self.attn.merge = nn.Conv1d(8, 8, 1)
        layers = [nn.Conv1d(8, 8, 1) for _ in range(3)]
        if listed:
            self.attn.proj = nn.ModuleList(layers)
        else:
            self.attn.q, self.attn.k, self.attn.v = layers

    def forward(self, x: Any) -> Any:
        x = x.mT
        layers = self.attn.proj if self.listed else (self.attn.q, self.attn.k, self.attn.v)
        if self.inside:
            q, k, v = (one(x).view(len(x), 4, 2, -1).permute(0, 2, 3, 1) for one in layers)
            made = attend(q, k, v).permute(0, 3, 1, 2)
        else:
            q, k, v = (one(x).view(len(x), 2, 4, -1).permute(0, 1, 3, 2) for one in layers)
            made = attend(q, k, v).permute(0, 1, 3, 2)
        return self.attn.merge(made.reshape(len(x), 8, -1)).mT


class OfTorch(nn.Module):
    """torch's own attention. It needs two inputs, which nobody guesses, with HIDDEN."""

    def __init__(self, *, hidden: bool = False) -> None:
        super().__init__()
        self.hidden = hidden
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: Any, context: Any = None) -> Any:
        if self.hidden:
            x = x[context["no such name"]]
        return self.attention(x, x, x, need_weights=False)[0]


class Fused(nn.Module):
    """One linear layer for queries, keys and values, which code views as parts, heads, width, or as heads first."""

    def __init__(self, *, heads_first: bool = False) -> None:
        super().__init__()
        self.heads_first = heads_first
        self.qkv, self.out_proj = nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, x: Any) -> Any:
        b, n, _ = x.shape
        if self.heads_first:
            q, k, v = self.qkv(x).view(b, n, 2, 3, 4).permute(3, 0, 2, 1, 4)
        else:
            q, k, v = self.qkv(x).view(b, n, 3, 2, 4).permute(2, 0, 3, 1, 4)
        return self.out_proj(attend(q, k, v).transpose(1, 2).reshape(b, n, 8))


class Apart(nn.Module):
    """A linear layer each for queries, keys and values."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out_proj = (nn.Linear(8, 8) for _ in range(4))

    def forward(self, x: Any) -> Any:
        q, k, v = (one(x).view(*x.shape[:2], 2, 4).transpose(1, 2) for one in (self.query, self.key, self.value))
        return self.out_proj(attend(q, k, v).transpose(1, 2).flatten(2))


MODELS = {
    "torch's": OfTorch,
    "fused": Fused,
    "fused by heads": lambda: Fused(heads_first=True),
    "apart": Apart,
}


def same_outputs(mapping: Any, source: nn.Module, model: nn.Module) -> bool:
    made = mapping.apply(source.state_dict()).state_dicts()[0]
    model.load_state_dict({key: torch.from_numpy(tensor.numpy().copy()) for key, tensor in made.tensors.items()})
    x = torch.randn(2, 5, 8)
    with torch.no_grad():
        return torch.allclose(source.eval()(x), model.eval()(x), atol=1e-5)


@pytest.mark.parametrize("model", MODELS)
def test_it_is_asked_whether_channels_have_heads_inside_if_no_code_of_the_source_is_there(model: str) -> None:
    mapping = ckptool.transfer(OfConvolutions(inside=True).state_dict(), MODELS[model](), inputs=["float32[2,5,8]"])
    asked = {e.target: [q.reason for q in e.questions] for e in mapping.entries}
    out_bias = next(key for key in asked if "out_proj" in key and key.endswith("bias"))
    assert asked.pop(out_bias) == []
    assert {*map(tuple, asked.values())} == {(Reason.HEADS_INSIDE,)}


def test_heads_of_an_attention_of_torch_are_known_if_the_model_cannot_run() -> None:
    mapping = ckptool.transfer(OfConvolutions(inside=True).state_dict(), OfTorch(hidden=True))
    asked = mapping["attention.in_proj_weight"].questions
    assert [q.reason for q in asked if not q.answer] == [Reason.HEADS_INSIDE]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("listed", [True, False], ids=["listed", "named"])
@pytest.mark.parametrize("inside", [True, False], ids=["inside", "outside"])
def test_code_of_the_source_shows_whether_channels_have_heads_inside(inside: bool, listed: bool, model: str) -> None:
    torch.manual_seed(0)
    source, own = OfConvolutions(inside=inside, listed=listed), MODELS[model]()
    mapping = ckptool.transfer(source.state_dict(), own, inputs=["float32[2,5,8]"], source_model=source, prove=False)
    assert mapping.is_sure
    assert same_outputs(mapping, source, own)
