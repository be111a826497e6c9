"""Pairs whose weights are laid out in another way: gates, groups, stacks, adapters, branches, kernels, scopes."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from . import pair
from .text import attend

# -- a cell of four layers for each gate, and nn.LSTM


class _Gates(nn.Module):
    def __init__(self, width: int = 6, hidden: int = 8) -> None:
        super().__init__()
        for gate in ("output", "cell", "forget", "input"):
            self.add_module(f"{gate}_x", nn.Linear(width, hidden))
            self.add_module(f"{gate}_h", nn.Linear(hidden, hidden))

    def forward(self, x: Any) -> Any:
        h = c = x.new_zeros(x.shape[0], 8)
        found = []
        for now in x.unbind(1):
            i, f, g, o = (
                getattr(self, f"{gate}_x")(now) + getattr(self, f"{gate}_h")(h)
                for gate in ("input", "forget", "cell", "output")
            )
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
            found.append(h)
        return torch.stack(found, 1)


class _TaggerA(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.cell, self.tags = nn.Embedding(11, 6), _Gates(), nn.Linear(8, 5)

    def forward(self, x: Any) -> Any:
        return self.tags(self.cell(self.embed(x)))


class _TaggerB(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.recurrent = nn.Embedding(11, 6), nn.LSTM(6, 8, batch_first=True)
        self.out = nn.Linear(8, 5)

    def forward(self, x: Any) -> Any:
        return self.out(self.recurrent(self.words(x))[0])


@pair("int64[2,5]")
def gates_apart() -> tuple[nn.Module, nn.Module]:
    """A layer for each gate, in another order."""
    return _TaggerA(), _TaggerB()


@pair("int64[2,5]")
def gates_joined() -> tuple[nn.Module, nn.Module]:
    """And back: biases of both sides are there."""
    return _TaggerB(), _TaggerA()


# -- fewer keys than queries


class _GroupedA(nn.Module):
    def __init__(self, d: int = 12) -> None:
        super().__init__()
        self.input_norm, self.query_key_value = nn.LayerNorm(d), nn.Linear(d, d + 2 * 3)
        self.dense = nn.Linear(d, d)

    def forward(self, x: Any) -> Any:
        q, k, v = self.query_key_value(self.input_norm(x)).split([12, 3, 3], -1)
        return x + self.dense(attend(q, k.repeat(1, 1, 4), v.repeat(1, 1, 4), 4))


class _GroupedB(nn.Module):
    def __init__(self, d: int = 12) -> None:
        super().__init__()
        self.to_out, self.to_kv, self.to_q = nn.Linear(d, d), nn.Linear(d, 6), nn.Linear(d, d)
        self.norm = nn.LayerNorm(d)

    def forward(self, x: Any) -> Any:
        y = self.norm(x)
        k, v = self.to_kv(y).chunk(2, -1)
        q = self.to_q(y).unflatten(-1, (4, 3)).transpose(1, 2)
        k, v = (t[:, None].expand(-1, 4, -1, -1) for t in (k, v))
        a = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return x + self.to_out(a)


@pair("float32[2,5,12]")
def one_head_of_keys() -> tuple[nn.Module, nn.Module]:
    """Queries, and keys and values of one head, out of one layer."""
    return nn.Sequential(_GroupedA(), _GroupedA()), nn.Sequential(_GroupedB(), _GroupedB())


# -- critics in one tensor


class _EnsembleLayer(nn.Module):
    def __init__(self, n: int, into: int, out: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(n, into, out)), nn.Parameter(torch.randn(n, 1, out))

    def forward(self, x: Any) -> Any:
        return torch.baddbmm(self.bias, x, self.weight)


class _CriticsA(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q = nn.Sequential(
            _EnsembleLayer(3, 5, 8), nn.ReLU(), _EnsembleLayer(3, 8, 8), nn.ReLU(), _EnsembleLayer(3, 8, 1)
        )

    def forward(self, x: Any) -> Any:
        return self.q(x.expand(3, -1, -1))


class _CriticsB(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.members = nn.ModuleList(
            nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1)) for _ in range(3)
        )

    def forward(self, x: Any) -> Any:
        return torch.stack([member(x) for member in self.members])


@pair("float32[4,5]")
def critics_in_one() -> tuple[nn.Module, nn.Module]:
    """A stack of matrices with their inputs first, one of them square."""
    return _CriticsA(), _CriticsB()


# -- adapters with a scale of their own


class _Adapted(nn.Module):
    def __init__(self, into: int, out: int, rank: int, alpha: float) -> None:
        super().__init__()
        self.org_module = nn.Linear(into, out)
        self.lora_down, self.lora_up = nn.Linear(into, rank, bias=False), nn.Linear(rank, out, bias=False)
        self.register_buffer("alpha", torch.tensor(alpha))

    def forward(self, x: Any) -> Any:
        scale = self.alpha / self.lora_down.weight.shape[0]
        return self.org_module(x) + scale * self.lora_up(self.lora_down(x))


class _AdaptedNet(nn.Module):
    def __init__(self, *, adapted: bool) -> None:
        super().__init__()
        if adapted:
            self.first, self.second = _Adapted(6, 8, 2, 3.0), _Adapted(8, 8, 4, 1.0)
        else:
            self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 8)
        self.last = nn.Linear(8, 3)

    def forward(self, x: Any) -> Any:
        return self.last(self.second(self.first(x).relu()).relu())


@pair("float32[4,6]")
def adapters_with_alpha() -> tuple[nn.Module, nn.Module]:
    """Low-rank adapters around layers, each with a rank and an alpha of its own."""
    return _AdaptedNet(adapted=True), _AdaptedNet(adapted=False)


# -- branches joined in another order


class _BranchesA(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3, padding=1)
        self.point, self.wide = nn.Conv2d(6, 4, 1), nn.Conv2d(6, 4, 5, padding=2)
        self.pooled, self.merge = nn.Conv2d(6, 4, 3, padding=1), nn.Conv2d(12, 5, 1)

    def forward(self, x: Any) -> Any:
        x = self.stem(x).relu()
        return self.merge(torch.cat([self.point(x), self.wide(x), self.pooled(x)], 1).relu()).mean((2, 3))


class _BranchesB(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.entry = nn.Conv2d(3, 6, 3, padding=1)
        self.context, self.one = nn.Conv2d(6, 4, 3, padding=1), nn.Conv2d(6, 4, 1)
        self.five, self.fuse = nn.Conv2d(6, 4, 5, padding=2), nn.Conv2d(12, 5, 1)

    def forward(self, x: Any) -> Any:
        x = F.relu(self.entry(x))
        return self.fuse(F.relu(torch.cat([self.context(x), self.one(x), self.five(x)], 1))).mean((2, 3))


@pair("float32[2,3,8,8]", hint="the order of the branches is in the two codes")
def branches_in_another_order() -> tuple[nn.Module, nn.Module]:
    """The last branch of one is the first of the other."""
    return _BranchesA(), _BranchesB()


# -- sentences seen as maps, and as rows


class _SentencesA(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 6)
        self.convs = nn.ModuleList([nn.Conv2d(1, 5, (k, 6)) for k in (2, 3, 4)])
        self.fc = nn.Linear(15, 2)

    def forward(self, x: Any) -> Any:
        x = self.embed(x)[:, None]
        return self.fc(torch.cat([conv(x).relu().squeeze(3).amax(2) for conv in self.convs], 1))


class _SentencesB(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(11, 6)
        self.two, self.three, self.four = nn.Conv1d(6, 5, 2), nn.Conv1d(6, 5, 3), nn.Conv1d(6, 5, 4)
        self.label = nn.Linear(15, 2)

    def forward(self, x: Any) -> Any:
        x = self.words(x).transpose(1, 2)
        return self.label(torch.cat([F.relu(c(x)).amax(-1) for c in (self.two, self.three, self.four)], -1))


@pair("int64[2,7]")
def kernels_over_maps() -> tuple[nn.Module, nn.Module]:
    """Convolutions over all of a row of one channel, and over its columns as channels."""
    return _SentencesA(), _SentencesB()


# -- variables named by scopes


def _by_scopes(state: dict[str, Any]) -> dict[str, Any]:
    """The weights as a framework with inputs last and scopes in its names would save them, sorted."""
    leaves = {"running_mean": "moving_mean", "running_var": "moving_variance", "bias": "beta", "weight": "gamma"}
    found = {}
    for key, value in state.items():
        layer, leaf = key.split(".")
        if leaf == "num_batches_tracked":
            continue
        if value.ndim == 4:
            depthwise = value.shape[1] == 1
            name = "depthwise_kernel" if depthwise else "kernel"
            value, leaf = value.permute(2, 3, 0, 1) if depthwise else value.permute(2, 3, 1, 0), name
        elif value.ndim == 2:
            value, leaf = value.T, "kernel"
        elif layer.endswith("_bn"):
            leaf = leaves[leaf]
        found[f"{layer}/{layer}/{leaf}:0"] = value.contiguous()
    return dict(sorted(found.items()))


class _ScopesA(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv1_bn = nn.Conv2d(3, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6)
        self.conv_dw_1, self.conv_dw_1_bn = nn.Conv2d(6, 6, 3, groups=6, bias=False), nn.BatchNorm2d(6)
        self.conv_pw_1, self.conv_pw_1_bn = nn.Conv2d(6, 8, 1, bias=False), nn.BatchNorm2d(8)
        self.dense = nn.Linear(8, 4)

    def forward(self, x: Any) -> Any:
        x = self.conv1_bn(self.conv1(x)).relu()
        x = self.conv_dw_1_bn(self.conv_dw_1(x)).relu()
        return self.dense(self.conv_pw_1_bn(self.conv_pw_1(x)).relu().mean((2, 3)))


class _ScopesB(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Sequential(nn.Conv2d(3, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6), nn.ReLU()),
            nn.Sequential(nn.Conv2d(6, 6, 3, groups=6, bias=False), nn.BatchNorm2d(6), nn.ReLU()),
            nn.Sequential(nn.Conv2d(6, 8, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU()),
        )
        self.classify = nn.Linear(8, 4)

    def forward(self, x: Any) -> Any:
        return self.classify(self.body(x).mean((2, 3)))


@pair("float32[2,3,8,8]", prepare=_by_scopes)
def names_by_scopes() -> tuple[nn.Module, nn.Module]:
    """Slashes, slots, kernels with their inputs first, and norms named after the layer before them."""
    return _ScopesA(), _ScopesB()
