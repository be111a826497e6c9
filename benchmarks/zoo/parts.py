"""Pairs in which one side holds in several tensors what the other holds in one."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from . import pair

# -- a module for each attention head, or all heads in one projection


class _Head(nn.Module):
    def __init__(self, d: int, width: int, length: int) -> None:
        super().__init__()
        self.register_buffer("seen", torch.tril(torch.ones(length, length)), persistent=False)
        self.values = nn.Linear(d, width, bias=False)
        self.keys = nn.Linear(d, width, bias=False)
        self.queries = nn.Linear(d, width, bias=False)
        self.width = width

    def forward(self, x: Any) -> Any:
        scores = self.queries(x) @ self.keys(x).transpose(1, 2) / self.width**0.5
        return scores.masked_fill(self.seen == 0, float("-inf")).softmax(-1) @ self.values(x)


class _HeadsApart(nn.Module):
    def __init__(self, d: int = 12, heads: int = 3, length: int = 5) -> None:
        super().__init__()
        self.words = nn.Embedding(11, d)
        self.rounds = nn.ModuleList()
        for _ in range(2):
            self.rounds.append(
                nn.ModuleDict(
                    {
                        "listeners": nn.ModuleList(_Head(d, d // heads, length) for _ in range(heads)),
                        "blend": nn.Linear(d, d),
                        "calm": nn.LayerNorm(d),
                    }
                )
            )
        self.speak = nn.Linear(d, 7)

    def forward(self, x: Any) -> Any:
        x = self.words(x)
        for one in self.rounds:
            y = one["calm"](x)
            x = x + one["blend"](torch.cat([head(y) for head in one["listeners"]], -1))
        return self.speak(x)


class _HeadsTogether(nn.Module):
    def __init__(self, d: int = 12, heads: int = 3) -> None:
        super().__init__()
        self.out = nn.Linear(d, 7)
        self.blocks = nn.ModuleList(
            nn.ModuleDict({"to_qkv": nn.Linear(d, 3 * d, bias=False), "norm": nn.LayerNorm(d), "proj": nn.Linear(d, d)})
            for _ in range(2)
        )
        self.embed = nn.Embedding(11, d)
        self.heads = heads

    def forward(self, x: Any) -> Any:
        x = self.embed(x)
        b, n, d = x.shape
        for block in self.blocks:
            qkv = block["to_qkv"](block["norm"](x)).reshape(b, n, 3, self.heads, d // self.heads)
            q, k, v = qkv.permute(2, 0, 3, 1, 4)
            x = x + block["proj"](
                F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, n, d)
            )
        return self.out(x)


@pair("int64[2,5]<11")
def heads_apart_to_fused() -> tuple[nn.Module, nn.Module]:
    return _HeadsApart(), _HeadsTogether()


@pair("int64[2,5]<11")
def fused_to_heads_apart() -> tuple[nn.Module, nn.Module]:
    return _HeadsTogether(), _HeadsApart()


# -- parallel paths, or one grouped convolution


class _Lane(nn.Module):
    def __init__(self, c: int, width: int) -> None:
        super().__init__()
        self.widen = nn.Conv2d(width, c, 1, bias=False)
        self.narrow = nn.Conv2d(c, width, 1, bias=False)
        self.look = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.calm = nn.BatchNorm2d(width)

    def forward(self, x: Any) -> Any:
        return self.widen(F.relu(self.look(F.relu(self.calm(self.narrow(x))))))


class _Lanes(nn.Module):
    def __init__(self, c: int = 10, width: int = 3, lanes: int = 4) -> None:
        super().__init__()
        self.stem = nn.Conv2d(2, c, 3)
        self.roads = nn.ModuleList(nn.ModuleList(_Lane(c, width) for _ in range(lanes)) for _ in range(2))
        self.head = nn.Linear(c, 5)

    def forward(self, x: Any) -> Any:
        x = self.stem(x)
        for road in self.roads:
            x = F.relu(x + sum(lane(x) for lane in road))
        return self.head(x.mean((2, 3)))


class _Grouped(nn.Module):
    def __init__(self, c: int = 10, width: int = 3, groups: int = 4) -> None:
        super().__init__()
        w = width * groups
        self.conv1 = nn.Conv2d(2, c, 3)
        self.layer = nn.ModuleList(
            nn.ModuleList(
                [
                    nn.Conv2d(c, w, 1, bias=False),
                    nn.BatchNorm2d(w),
                    nn.Conv2d(w, w, 3, padding=1, groups=groups, bias=False),
                    nn.Conv2d(w, c, 1, bias=False),
                ]
            )
            for _ in range(2)
        )
        self.fc = nn.Linear(c, 5)

    def forward(self, x: Any) -> Any:
        x = self.conv1(x)
        for reduce, norm, conv, expand in self.layer:
            x = F.relu(x + expand(F.relu(conv(F.relu(norm(reduce(x)))))))
        return self.fc(x.mean((2, 3)))


@pair("float32[2,2,9,9]")
def paths_to_groups() -> tuple[nn.Module, nn.Module]:
    return _Lanes(), _Grouped()


@pair("float32[2,2,9,9]")
def groups_to_paths() -> tuple[nn.Module, nn.Module]:
    return _Grouped(), _Lanes()


# -- a table for each field, or one with offsets

_FIELDS = {"city": 5, "device": 3, "hour": 8}


class _Tables(nn.Module):
    def __init__(self, d: int = 4) -> None:
        super().__init__()
        self.tables = nn.ModuleDict({name: nn.Embedding(n, d) for name, n in _FIELDS.items()})
        self.rank = nn.Sequential(nn.Linear(d * 3, 6), nn.ReLU(), nn.Linear(6, 1))

    def forward(self, x: Any) -> Any:
        return self.rank(torch.cat([t(x[:, i]) for i, t in enumerate(self.tables.values())], -1))


class _OneTable(nn.Module):
    def __init__(self, d: int = 4) -> None:
        super().__init__()
        self.embedding = nn.Embedding(sum(_FIELDS.values()), d)
        self.starts = [0, 5, 8]
        self.mlp = nn.Sequential(nn.Linear(d * 3, 6), nn.ReLU(), nn.Linear(6, 1))

    def forward(self, x: Any) -> Any:
        return self.mlp(self.embedding(x + torch.tensor(self.starts)).flatten(1))


@pair("int64[4,3]<3", hint="in which order fields with names stand in one table is in the code only")
def tables_to_offsets() -> tuple[nn.Module, nn.Module]:
    return _Tables(), _OneTable()


# -- a detection head in one convolution, by anchor, or a convolution for each of its meanings


class _ByAnchor(nn.Module):
    def __init__(self, c: int = 6, anchors: int = 2, classes: int = 3) -> None:
        super().__init__()
        self.trunk = nn.Conv2d(3, c, 3)
        self.detect = nn.Conv2d(c, anchors * (5 + classes), 1)
        self.anchors = anchors

    def forward(self, x: Any) -> Any:
        y = self.detect(F.silu(self.trunk(x)))
        b, _, h, w = y.shape
        return y.reshape(b, self.anchors, -1, h, w)


class _ByMeaning(nn.Module):
    def __init__(self, c: int = 6, anchors: int = 2, classes: int = 3) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, c, 3)
        self.cls = nn.Conv2d(c, anchors * classes, 1)
        self.obj = nn.Conv2d(c, anchors, 1)
        self.box = nn.Conv2d(c, anchors * 4, 1)
        self.anchors = anchors

    def forward(self, x: Any) -> Any:
        y = F.silu(self.stem(x))
        parts = []
        for layer in (self.box, self.obj, self.cls):
            z = layer(y)
            parts.append(z.reshape(z.shape[0], self.anchors, -1, *z.shape[2:]))
        return torch.cat(parts, 2)


@pair("float32[2,3,7,7]", hint="whether the rows of a detection head alternate by anchor is in the code only")
def detection_head_by_meaning() -> tuple[nn.Module, nn.Module]:
    return _ByAnchor(), _ByMeaning()


@pair("float32[2,3,7,7]", hint="whether the rows of a detection head alternate by anchor is in the code only")
def detection_head_by_anchor() -> tuple[nn.Module, nn.Module]:
    return _ByMeaning(), _ByAnchor()


# -- weights with masks, or without


class _Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.second = nn.Linear(8, 8)
        self.third = nn.Linear(8, 3)

    def forward(self, x: Any) -> Any:
        return self.third(F.relu(self.second(F.relu(self.first(x)))))


def _pruned(*names: str) -> nn.Module:
    from torch.nn.utils import prune

    net = _Small()
    for name in names:
        prune.random_unstructured(getattr(net, name), "weight", 0.4)
    return net


@pair("float32[4,6]")
def pruned_to_plain() -> tuple[nn.Module, nn.Module]:
    return _pruned("first", "second", "third"), _Small()


@pair("float32[4,6]")
def some_pruned_to_plain() -> tuple[nn.Module, nn.Module]:
    return _pruned("second"), _Small()


@pair("float32[4,6]", hint="which elements count as pruned is no content of a plain weight")
def plain_to_pruned() -> tuple[nn.Module, nn.Module]:
    return _Small(), _pruned("first", "second", "third")


@pair("float32[4,6]")
def pruned_to_pruned() -> tuple[nn.Module, nn.Module]:
    return _pruned("first", "second", "third"), _pruned("first", "second", "third")


# -- a cell with one matrix over the input and the hidden state, or the layers of torch


class _OneMatrix(nn.Module):
    def __init__(self, *, hidden_first: bool, gates: str = "ifgo") -> None:
        super().__init__()
        self.kernel = nn.Linear(5 + 6, 6 * len(gates))
        self.read = nn.Linear(6, 3)
        self.hidden_first, self.gates = hidden_first, gates

    def forward(self, x: Any) -> Any:
        h = c = x.new_zeros(x.shape[0], 6)
        for step in x.unbind(1):
            both = torch.cat([h, step] if self.hidden_first else [step, h], -1)
            at = dict(zip(self.gates, self.kernel(both).chunk(len(self.gates), -1), strict=True))
            if len(self.gates) == 1:
                h = torch.tanh(at["h"])
                continue
            c = torch.sigmoid(at["f"]) * c + torch.sigmoid(at["i"]) * torch.tanh(at["g"])
            h = torch.sigmoid(at["o"]) * torch.tanh(c)
        return self.read(h)


class _OfTorch(nn.Module):
    def __init__(self, layer: type[nn.Module]) -> None:
        super().__init__()
        self.head = nn.Linear(6, 3)
        self.rnn = layer(5, 6, batch_first=True)

    def forward(self, x: Any) -> Any:
        return self.head(self.rnn(x)[0][:, -1])


_SIDE = "whether a matrix takes the input or the hidden state first is in the code only"


@pair("float32[2,4,5]", hint=_SIDE)
def one_matrix_to_rnn() -> tuple[nn.Module, nn.Module]:
    return _OneMatrix(hidden_first=False, gates="h"), _OfTorch(nn.RNN)


@pair("float32[2,4,5]", hint=_SIDE)
def one_matrix_hidden_first_to_lstm() -> tuple[nn.Module, nn.Module]:
    return _OneMatrix(hidden_first=True), _OfTorch(nn.LSTM)


@pair("float32[2,4,5]")
def lstm_to_one_matrix() -> tuple[nn.Module, nn.Module]:
    return _OfTorch(nn.LSTM), _OneMatrix(hidden_first=False)


# -- a convolutional cell: one convolution for all gates, or eight


class _OneConvolution(nn.Module):
    def __init__(self, c: int = 2, d: int = 3) -> None:
        super().__init__()
        self.conv = nn.Conv2d(c + d, 4 * d, 3, padding=1)
        self.see = nn.Conv2d(d, 2, 1)
        self.d = d

    def forward(self, x: Any) -> Any:
        h = c = x.new_zeros(x.shape[0], self.d, *x.shape[3:])
        for step in x.unbind(1):
            i, f, o, g = self.conv(torch.cat([step, h], 1)).chunk(4, 1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
        return self.see(h)


class _EightConvolutions(nn.Module):
    def __init__(self, c: int = 2, d: int = 3) -> None:
        super().__init__()
        for gate in "gfoi":
            setattr(self, f"x_{gate}", nn.Conv2d(c, d, 3, padding=1, bias=False))
            setattr(self, f"h_{gate}", nn.Conv2d(d, d, 3, padding=1))
        self.out = nn.Conv2d(d, 2, 1)
        self.d = d

    def forward(self, x: Any) -> Any:
        h = c = x.new_zeros(x.shape[0], self.d, *x.shape[3:])
        for step in x.unbind(1):
            i, f, o, g = (getattr(self, f"x_{n}")(step) + getattr(self, f"h_{n}")(h) for n in "ifog")
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
        return self.out(h)


@pair("float32[2,3,2,6,6]", hint="in which order the gates of a convolution stand is in the code only")
def one_convolution_to_eight() -> tuple[nn.Module, nn.Module]:
    return _OneConvolution(), _EightConvolutions()


@pair("float32[2,3,2,6,6]", hint="in which order the gates of a convolution stand is in the code only")
def eight_convolutions_to_one() -> tuple[nn.Module, nn.Module]:
    return _EightConvolutions(), _OneConvolution()


# -- attention by a sum: one layer over both states side by side, or a layer for each


class _ScoreOfBoth(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(4, 6)
        self.attn = nn.Linear(6 + 5, 8)
        self.v = nn.Linear(8, 1, bias=False)
        self.start = nn.Parameter(torch.randn(5))

    def forward(self, x: Any) -> Any:
        states = torch.tanh(self.embed(x))
        now = self.start.expand(*x.shape[:2], 5)
        return (self.v(torch.tanh(self.attn(torch.cat([now, states], -1)))).softmax(1) * states).sum(1)


class _ScoreOfEach(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.to_energy = nn.Linear(8, 1, bias=False)
        self.over_states = nn.Linear(6, 8, bias=False)
        self.over_now = nn.Linear(5, 8)
        self.first = nn.Parameter(torch.randn(5))
        self.inputs = nn.Linear(4, 6)

    def forward(self, x: Any) -> Any:
        states = torch.tanh(self.inputs(x))
        energy = self.to_energy(torch.tanh(self.over_now(self.first) + self.over_states(states)))
        return (energy.softmax(1) * states).sum(1)


_WHICH = "which columns of a layer belong to which of its inputs is in the code only"


@pair("float32[2,7,4]", hint=_WHICH)
def one_layer_to_two() -> tuple[nn.Module, nn.Module]:
    return _ScoreOfBoth(), _ScoreOfEach()


@pair("float32[2,7,4]")
def two_layers_to_one() -> tuple[nn.Module, nn.Module]:
    return _ScoreOfEach(), _ScoreOfBoth()


# -- a position for the class token in the table, or apart


class _Positions(nn.Module):
    def __init__(self, *, together: bool) -> None:
        super().__init__()
        self.patches = nn.Linear(5, 6)
        if together:
            self.pos_embed = nn.Parameter(torch.zeros(1, 9, 6))
        else:
            self.pos_embed = nn.Parameter(torch.zeros(1, 8, 6))
            self.pos_embed_cls = nn.Parameter(torch.zeros(1, 1, 6))
        self.cls_token = nn.Parameter(torch.zeros(1, 2, 6)[:, :1])
        self.block = nn.TransformerEncoderLayer(6, 2, 12, 0.0, batch_first=True)
        self.head = nn.Linear(6, 3)
        self.together = together

    def forward(self, x: Any) -> Any:
        table = self.pos_embed if self.together else torch.cat([self.pos_embed_cls, self.pos_embed], 1)
        x = torch.cat([self.cls_token.expand(len(x), -1, -1), self.patches(x)], 1) + table
        return self.head(self.block(x)[:, 0])


@pair("float32[2,8,5]")
def class_position_into_table() -> tuple[nn.Module, nn.Module]:
    return _Positions(together=False), _Positions(together=True)


@pair("float32[2,8,5]", hint="whether the class token stands first or last in a table is in the code only")
def class_position_out_of_table() -> tuple[nn.Module, nn.Module]:
    return _Positions(together=True), _Positions(together=False)


# -- heads of several tasks, one layer each or all in one


class _Tasks(nn.Module):
    def __init__(self, *, together: bool) -> None:
        super().__init__()
        self.stem = nn.Linear(4, 6)
        self.heads = nn.Linear(6, 9) if together else nn.ModuleList(nn.Linear(6, n) for n in (2, 4, 3))
        self.together = together

    def forward(self, x: Any) -> Any:
        x = F.relu(self.stem(x))
        return self.heads(x) if self.together else torch.cat([head(x) for head in self.heads], -1)


@pair("float32[5,4]")
def list_of_heads_to_one() -> tuple[nn.Module, nn.Module]:
    return _Tasks(together=False), _Tasks(together=True)


@pair("float32[5,4]")
def one_head_to_list() -> tuple[nn.Module, nn.Module]:
    return _Tasks(together=True), _Tasks(together=False)


# -- a batch norm in one layer, or its statistics in one and its scale and shift in another


class _Scale(nn.Module):
    def __init__(self, c: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(c)), nn.Parameter(torch.randn(c))

    def forward(self, x: Any) -> Any:
        return x * self.weight[:, None, None] + self.bias[:, None, None]


class _Whitened(nn.Module):
    """Layers by what they do and a number, as descriptions of networks in text name them."""

    def __init__(self) -> None:
        super().__init__()
        for n, (a, b) in enumerate(((3, 6), (6, 6), (6, 6)), 1):
            self.add_module(f"map{n}", nn.Conv2d(a, b, 3, padding=1, bias=False))
        for n in (1, 2, 3):
            self.add_module(f"whiten{n}", nn.BatchNorm2d(6, affine=False))
            self.add_module(f"tune{n}", _Scale(6))
        self.answer = nn.Linear(6, 4)

    def forward(self, x: Any) -> Any:
        for n in (1, 2, 3):
            x = getattr(self, f"whiten{n}")(getattr(self, f"map{n}")(x))
            x = F.relu(getattr(self, f"tune{n}")(x))
        return self.answer(x.mean((2, 3)))


class _Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.steps = nn.ModuleList(
            nn.Sequential(nn.Conv2d(a, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6), nn.ReLU()) for a in (3, 6, 6)
        )
        self.head = nn.Linear(6, 4)

    def forward(self, x: Any) -> Any:
        for step in self.steps:
            x = step(x)
        return self.head(x.mean((2, 3)))


@pair("float32[2,3,8,8]")
def statistics_and_scale_to_batch_norm() -> tuple[nn.Module, nn.Module]:
    return _Whitened(), _Normed()


@pair("float32[2,3,8,8]")
def batch_norm_to_statistics_and_scale() -> tuple[nn.Module, nn.Module]:
    return _Normed(), _Whitened()


# -- learned tokens that each layer has, or that stand in two tensors: of the first layer, and of all others


class _Prompted(nn.Module):
    def __init__(self, *, apart: bool, depth: int = 3) -> None:
        super().__init__()
        if apart:
            self.layers = nn.ModuleList(
                nn.ModuleDict({"hints": nn.ParameterList([torch.randn(2, 6)]), "mix": nn.Linear(6, 6)})
                for _ in range(depth)
            )
        else:
            self.hints = nn.Parameter(torch.randn(1, 2, 6))
            self.deep_hints = nn.Parameter(torch.randn(depth - 1, 2, 6))
            self.steps = nn.ModuleList(nn.Linear(6, 6) for _ in range(depth))
        self.apart = apart
        self.top = nn.Linear(6, 3)

    def forward(self, x: Any) -> Any:
        if self.apart:
            parts = [(layer["hints"][0], layer["mix"]) for layer in self.layers]
        else:
            parts = list(zip(torch.cat([self.hints, self.deep_hints]), self.steps, strict=True))
        for hints, mix in parts:
            weights = (x @ hints.T).softmax(-1)
            x = x + torch.tanh(mix(x + weights @ hints))
        return self.top(x)


@pair("float32[2,4,6]")
def tokens_of_layers_together_to_apart() -> tuple[nn.Module, nn.Module]:
    return _Prompted(apart=False), _Prompted(apart=True)


@pair("float32[2,4,6]")
def tokens_of_layers_apart_to_together() -> tuple[nn.Module, nn.Module]:
    return _Prompted(apart=True), _Prompted(apart=False)
