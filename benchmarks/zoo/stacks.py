"""Pairs in which one side holds in one tensor what the other has apart: experts, layers, heads."""

from __future__ import annotations

import re
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from . import pair
from .text import attend

# -- experts: apart, in a list or by number; in one tensor, with inputs or outputs first, gate and up apart or in one


class _Feed(nn.Module):
    def __init__(self, d: int, f: int) -> None:
        super().__init__()
        self.w1, self.w3, self.w2 = (
            nn.Linear(d, f, bias=False),
            nn.Linear(d, f, bias=False),
            nn.Linear(f, d, bias=False),
        )

    def forward(self, x: Any) -> Any:
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class _ExpertsApart(nn.Module):
    def __init__(self, d: int, f: int, n: int) -> None:
        super().__init__()
        self.gate = nn.Linear(d, n, bias=False)
        self.experts = nn.ModuleList(_Feed(d, f) for _ in range(n))

    def forward(self, x: Any) -> Any:
        p = self.gate(x).softmax(-1)
        return sum(p[..., i : i + 1] * expert(x) for i, expert in enumerate(self.experts))


class _ExpertsBatched(nn.Module):
    """As grouped products take them: inputs first, gate and up side by side."""

    def __init__(self, d: int, f: int, n: int) -> None:
        super().__init__()
        self.router = nn.Linear(d, n, bias=False)
        self.experts = nn.ParameterDict({"gate_up_proj": torch.randn(n, d, 2 * f), "down_proj": torch.randn(n, f, d)})

    def forward(self, x: Any) -> Any:
        p = self.router(x).softmax(-1)
        y = x.flatten(0, -2).expand(p.shape[-1], -1, -1)
        gate, up = torch.bmm(y, self.experts["gate_up_proj"]).chunk(2, -1)
        out = torch.bmm(F.silu(gate) * up, self.experts["down_proj"]).view(-1, *x.shape)
        return (p.movedim(-1, 0)[..., None] * out).sum(0)


class _ExpertsAsLayers(nn.Module):
    """As layers take them: outputs first, and each expert by its number."""

    def __init__(self, d: int, f: int, n: int) -> None:
        super().__init__()
        self.score = nn.Linear(d, n, bias=False)
        self.wi_gate, self.wi_up = nn.Parameter(torch.randn(n, f, d)), nn.Parameter(torch.randn(n, f, d))
        self.wo = nn.Parameter(torch.randn(n, d, f))

    def forward(self, x: Any) -> Any:
        p = self.score(x).softmax(-1)
        found = 0
        for i in range(p.shape[-1]):
            h = F.silu(F.linear(x, self.wi_gate[i])) * F.linear(x, self.wi_up[i])
            found = found + p[..., i : i + 1] * F.linear(h, self.wo[i])
        return found


class _Sparse(nn.Module):
    def __init__(self, experts: Any, names: tuple[str, str, str], d: int = 12, f: int = 20, n: int = 3) -> None:
        super().__init__()
        norm, mixture, top = names
        self.names = names
        self.layers = nn.ModuleList(nn.ModuleDict({norm: nn.LayerNorm(d), mixture: experts(d, f, n)}) for _ in range(2))
        self.add_module(top, nn.Linear(d, 7))

    def forward(self, x: Any) -> Any:
        norm, mixture, top = self.names
        for layer in self.layers:
            x = x + layer[mixture](layer[norm](x))
        return getattr(self, top)(x)


_SPARSE = {
    "apart": lambda **k: _Sparse(_ExpertsApart, ("ffn_norm", "feed_forward", "output"), **k),
    "batched": lambda **k: _Sparse(_ExpertsBatched, ("post_attention_layernorm", "mlp", "lm_head"), **k),
    "as_layers": lambda **k: _Sparse(_ExpertsAsLayers, ("norm", "moe", "head"), **k),
}


@pair("float32[2,4,12]")
def experts_batched_to_apart() -> tuple[nn.Module, nn.Module]:
    """Gate and up of all experts in one tensor with the inputs first, and a layer for each."""
    return _SPARSE["batched"](), _SPARSE["apart"]()


@pair("float32[2,4,12]")
def experts_apart_to_batched() -> tuple[nn.Module, nn.Module]:
    """And back."""
    return _SPARSE["apart"](), _SPARSE["batched"]()


@pair("float32[2,4,12]")
def experts_batched_to_as_layers() -> tuple[nn.Module, nn.Module]:
    """In one tensor on both sides, in other layouts."""
    return _SPARSE["batched"](), _SPARSE["as_layers"]()


@pair("float32[2,4,12]")
def experts_as_layers_to_batched() -> tuple[nn.Module, nn.Module]:
    """And back."""
    return _SPARSE["as_layers"](), _SPARSE["batched"]()


def _numbered(state: dict[str, Any]) -> dict[str, Any]:
    """A list of experts as a module for each number in its name."""
    return {re.sub(r"experts\.(\d+)", r"experts.expert_\1", key): value for key, value in state.items()}


@pair("float32[2,4,12]", prepare=_numbered)
def experts_by_number_to_square_stacks() -> tuple[nn.Module, nn.Module]:
    """Square matrices: only what the model does with a stack says how it stands."""
    return _SPARSE["apart"](f=12), _SPARSE["as_layers"](f=12)


# -- layers that are scanned over, with a dimension for heads


class _Block(nn.Module):
    def __init__(self, d: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.query, self.key, self.value, self.out = (nn.Linear(d, d) for _ in range(4))
        self.up, self.down = nn.Linear(d, 3 * d), nn.Linear(3 * d, d)

    def forward(self, x: Any) -> Any:
        y = self.norm1(x)
        x = x + self.out(attend(self.query(y), self.key(y), self.value(y), self.heads))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class _Scanned(nn.Module):
    def __init__(self, d: int = 12, heads: int = 3, n: int = 4) -> None:
        super().__init__()
        self.embed = nn.Embedding(19, d)
        self.blocks = nn.ModuleList(_Block(d, heads) for _ in range(n))
        self.final = nn.LayerNorm(d)

    def forward(self, x: Any) -> Any:
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        return self.final(x)


class _FusedBlock(nn.Module):
    def __init__(self, d: int, heads: int) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(d)
        self.attn = nn.MultiheadAttention(d, heads, batch_first=True)
        self.ln_2 = nn.LayerNorm(d)
        self.mlp = nn.Sequential(nn.Linear(d, 3 * d), nn.GELU(), nn.Linear(3 * d, d))

    def forward(self, x: Any) -> Any:
        y = self.ln_1(x)
        x = x + self.attn(y, y, y, need_weights=False)[0]
        return x + self.mlp(self.ln_2(x))


class _Listed(nn.Module):
    def __init__(self, d: int = 12, heads: int = 3, n: int = 4) -> None:
        super().__init__()
        self.tokens = nn.Embedding(19, d)
        self.transformer = nn.Sequential(*(_FusedBlock(d, heads) for _ in range(n)))
        self.ln_f = nn.LayerNorm(d)

    def forward(self, x: Any) -> Any:
        return self.ln_f(self.transformer(self.tokens(x)))


def _scanned(axis: int | None, heads: int = 3) -> Any:
    """A file as frameworks with their inputs first write it: all layers in one tensor along AXIS, keys sorted."""
    leaves = {("norm", "weight"): "scale", ("embed", "weight"): "embedding", ("final", "weight"): "scale"}

    def prepare(state: dict[str, Any]) -> dict[str, Any]:
        blocks: dict[str, dict[int, Any]] = {}
        found = {}
        for key, value in state.items():
            *path, layer, leaf = key.split(".")
            leaf = leaves.get((layer.rstrip("12"), leaf), "kernel" if leaf == "weight" else leaf)
            if leaf == "kernel":
                value = value.T
                if layer in ("query", "key", "value"):
                    value = value.unflatten(1, (heads, -1))
                elif layer == "out":
                    value = value.unflatten(0, (heads, -1))
            elif leaf == "bias" and layer in ("query", "key", "value"):
                value = value.unflatten(0, (heads, -1))
            if layer in ("query", "key", "value", "out"):
                layer = f"attention/{layer}"
            if path:
                blocks.setdefault(f"{layer}/{leaf}", {})[int(path[1])] = value
            else:
                found[f"{layer}/{leaf}"] = value
        for inner, layers in blocks.items():
            if axis is None:
                found |= {f"block_{n}/{inner}": value for n, value in layers.items()}
            else:
                found[f"block/{inner}"] = torch.stack([layers[n] for n in sorted(layers)], axis)
        return {f"params/{key}": value.contiguous() for key, value in sorted(found.items())}

    return prepare


@pair("int64[2,5]", prepare=_scanned(0))
def layers_scanned() -> tuple[nn.Module, nn.Module]:
    """All layers in one tensor, the first dimension of each."""
    return _Scanned(), _Listed()


@pair("int64[2,5]", prepare=_scanned(1))
def layers_scanned_second() -> tuple[nn.Module, nn.Module]:
    """The second dimension of each."""
    return _Scanned(), _Listed()


@pair("int64[2,5]", prepare=_scanned(None))
def layers_by_number() -> tuple[nn.Module, nn.Module]:
    """A module for each layer; heads in a dimension of their own."""
    return _Scanned(), _Listed()


# -- attention in equations


class _Equations(nn.Module):
    def __init__(self, d: int, heads: int) -> None:
        super().__init__()
        w = d // heads
        for name in "QKV":
            self.register_parameter(f"W_{name}", nn.Parameter(torch.randn(heads, d, w)))
            self.register_parameter(f"b_{name}", nn.Parameter(torch.randn(heads, w)))
        self.W_O, self.b_O = nn.Parameter(torch.randn(heads, w, d)), nn.Parameter(torch.randn(d))

    def forward(self, x: Any) -> Any:
        q, k, v = (
            torch.einsum("bsd,hdw->bshw", x, getattr(self, f"W_{name}")) + getattr(self, f"b_{name}") for name in "QKV"
        )
        a = (torch.einsum("bqhw,bkhw->bhqk", q, k) / q.shape[-1] ** 0.5).softmax(-1)
        z = torch.einsum("bhqk,bkhw->bqhw", a, v)
        return torch.einsum("bqhw,hwd->bqd", z, self.W_O) + self.b_O


class _Dense(nn.Module):
    def __init__(self, d: int, f: int) -> None:
        super().__init__()
        self.W_in, self.b_in = nn.Parameter(torch.randn(d, f)), nn.Parameter(torch.randn(f))
        self.W_out, self.b_out = nn.Parameter(torch.randn(f, d)), nn.Parameter(torch.randn(d))

    def forward(self, x: Any) -> Any:
        return F.gelu(x @ self.W_in + self.b_in) @ self.W_out + self.b_out


class _Watched(nn.Module):
    def __init__(self, d: int = 12, heads: int = 3) -> None:
        super().__init__()
        self.W_E = nn.Parameter(torch.randn(19, d))
        self.blocks = nn.ModuleList(
            nn.ModuleDict(
                {"ln1": nn.LayerNorm(d), "attn": _Equations(d, heads), "ln2": nn.LayerNorm(d), "mlp": _Dense(d, 3 * d)}
            )
            for _ in range(2)
        )
        self.ln_final = nn.LayerNorm(d)
        self.W_U, self.b_U = nn.Parameter(torch.randn(d, 19)), nn.Parameter(torch.randn(19))

    def forward(self, x: Any) -> Any:
        x = self.W_E[x]
        for block in self.blocks:
            x = x + block["attn"](block["ln1"](x))
            x = x + block["mlp"](block["ln2"](x))
        return self.ln_final(x) @ self.W_U + self.b_U


class _Plain(nn.Module):
    def __init__(self, d: int = 12, heads: int = 3) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(19, d)
        self.layers = nn.Sequential(*(_Block(d, heads) for _ in range(2)))
        self.norm, self.lm_head = nn.LayerNorm(d), nn.Linear(d, 19)

    def forward(self, x: Any) -> Any:
        return self.lm_head(self.norm(self.layers(self.embed_tokens(x))))


@pair("int64[2,5]")
def heads_in_equations_to_layers() -> tuple[nn.Module, nn.Module]:
    """Projections with a dimension for heads, and matrices with the inputs first."""
    return _Watched(), _Plain()


@pair("int64[2,5]")
def heads_in_layers_to_equations() -> tuple[nn.Module, nn.Module]:
    """And back."""
    return _Plain(), _Watched()


# -- an output layer with the matrix of the table, and a bias of its own


class _TiedBias(nn.Module):
    def __init__(self, d: int = 12) -> None:
        super().__init__()
        self.embed, self.mix = nn.Embedding(19, d), nn.Linear(d, d)
        self.head = nn.Linear(d, 19)
        self.head.weight = self.embed.weight

    def forward(self, x: Any) -> Any:
        return self.head(self.mix(self.embed(x)).tanh())


class _TiedLater(nn.Module):
    def __init__(self, d: int = 12) -> None:
        super().__init__()
        self.vocab_bias = nn.Parameter(torch.zeros(19))
        self.words, self.dense = nn.Embedding(19, d), nn.Linear(d, d)

    def forward(self, x: Any) -> Any:
        return F.linear(torch.tanh(self.dense(self.words(x))), self.words.weight, self.vocab_bias)


def _copied(state: dict[str, Any]) -> dict[str, Any]:
    return {key: value.clone() for key, value in state.items()}


@pair("int64[2,5]", prepare=_copied)
def tied_output_with_a_bias() -> tuple[nn.Module, nn.Module]:
    """The file holds the matrix twice; the model has it once, and the bias alone."""
    return _TiedBias(), _TiedLater()


# -- attention in a list of layers, registered otherwise on the other side; a third norm


class _ListedAttention(nn.Module):
    def __init__(self, d: int) -> None:
        super().__init__()
        self.linears = nn.ModuleList(nn.Linear(d, d) for _ in range(4))

    def forward(self, x: Any, memory: Any) -> Any:
        q, k, v = (layer(t) for layer, t in zip(self.linears, (x, memory, memory), strict=False))
        return self.linears[3](attend(q, k, v, 2))


class _NamedAttention(nn.Module):
    def __init__(self, d: int) -> None:
        super().__init__()
        self.out, self.q, self.v, self.k = (nn.Linear(d, d) for _ in range(4))

    def forward(self, x: Any, memory: Any) -> Any:
        return self.out(attend(self.q(x), self.k(memory), self.v(memory), 2))


class _ReaderA(nn.Module):
    def __init__(self, d: int = 8) -> None:
        super().__init__()
        self.self_attn, self.src_attn = _ListedAttention(d), _ListedAttention(d)
        self.ff1, self.ff2 = nn.Linear(d, 2 * d), nn.Linear(2 * d, d)
        self.norm1, self.norm2, self.norm3 = nn.LayerNorm(d), nn.LayerNorm(d), nn.LayerNorm(d)

    def forward(self, x: Any, memory: Any) -> Any:
        x = self.norm1(x + self.self_attn(x, x))
        x = self.norm2(x + self.src_attn(x, memory))
        return self.norm3(x + self.ff2(self.ff1(x).relu()))


class _ReaderB(nn.Module):
    def __init__(self, d: int = 8) -> None:
        super().__init__()
        self.mlp_norm, self.mlp = nn.LayerNorm(d), nn.Sequential(nn.Linear(d, 2 * d), nn.ReLU(), nn.Linear(2 * d, d))
        self.cross_norm, self.cross_attn = nn.LayerNorm(d), _NamedAttention(d)
        self.self_norm, self.self_attn = nn.LayerNorm(d), _NamedAttention(d)

    def forward(self, x: Any, memory: Any) -> Any:
        x = self.self_norm(x + self.self_attn(x, x))
        x = self.cross_norm(x + self.cross_attn(x, memory))
        return self.mlp_norm(x + self.mlp(x))


@pair("float32[2,4,8]", "float32[2,5,8]")
def attention_in_a_list() -> tuple[nn.Module, nn.Module]:
    """Queries, keys, values and outputs by number, and by name in another order; the third norm by what it is of."""
    return _ReaderA(), _ReaderB()
