"""Queries, keys and values that the forward pass of a model shows, whatever they are called."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn
from torch.nn import functional as F

import ckptool
from ckptool.model_code.building import signature_of
from ckptool.model_code.following.attention import _blocks, _regrouped


def by_matmul(q: Any, k: Any, v: Any) -> Any:
    return (q @ k.transpose(-1, -2) / 2).softmax(-1) @ v


def with_keys_first(q: Any, k: Any, v: Any) -> Any:
    scores = torch.bmm(k, q.transpose(1, 2)).masked_fill(torch.zeros(5, 5, dtype=torch.bool), -1.0)
    return torch.bmm(F.softmax(scores, dim=1).transpose(1, 2), v)


def turned_before_the_softmax(q: Any, k: Any, v: Any) -> Any:
    return torch.bmm(torch.softmax(torch.bmm(k, q.transpose(1, 2)).permute(0, 2, 1) * 0.5, dim=-1), v)


def by_einsum(q: Any, k: Any, v: Any) -> Any:
    weights = torch.einsum("bjc,bic->bij", k, q).softmax(dim=2)
    return torch.einsum("bij,bjc->bic", F.dropout(weights, 0.0), v)


def in_two_dimensions(q: Any, k: Any, v: Any) -> Any:
    q, k, v = (x.view(len(x), 5, 1, -1) for x in (q, k, v))
    scores = torch.einsum("bhwc,bijc->bhwij", q, k)
    scores = scores.reshape(len(q), 5, 1, 5).softmax(-1).reshape(len(q), 5, 1, 5, 1)
    return torch.einsum("bhwij,bijc->bhwc", scores, v).flatten(1, 2)


def by_torch(q: Any, k: Any, v: Any) -> Any:
    return F.scaled_dot_product_attention(q, k, v)


def with_heads(q: Any, k: Any, v: Any) -> Any:
    q, k, v = (x.unflatten(-1, (2, 3)).transpose(1, 2) for x in (q, k, v))
    return (torch.matmul(q, k.mT) + torch.ones(5, 5)).softmax(-1).matmul(v).transpose(1, 2).flatten(2)


WAYS = [by_matmul, with_keys_first, turned_before_the_softmax, by_einsum, in_two_dimensions, by_torch, with_heads]


class Net(nn.Module):
    """An attention with layers that are registered, and run, in the order of NAMES, whose letters are q, k and v."""

    def __init__(self, way: Any, names: dict[str, str]) -> None:
        super().__init__()
        self.way, self.names = way, names
        for name in names:
            self.add_module(name, nn.Linear(6, 6))
        self.out = nn.Linear(6, 4)

    def forward(self, x: Any) -> Any:
        made = {letter: self.get_submodule(name)(x) for name, letter in self.names.items()}
        return self.out(x + self.way(made["q"], made["k"], made["v"]))


@pytest.mark.parametrize("way", WAYS)
def test_what_the_softmax_adds_up_over_are_the_keys(way: Any) -> None:
    found = signature_of(Net(way, {"a": "k", "b": "v", "c": "q"}), inputs=(torch.zeros(2, 5, 6),))
    assert {key[0]: e.facts.attends for key, e in found.entries.items() if key.endswith("weight")} == {
        "a": "k",
        "b": "v",
        "c": "q",
        "o": "",
    }


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("order", ["kvq", "vqk", "qkv"])
def test_two_codes_tell_queries_keys_and_values_whatever_their_order_and_names(way: Any, order: str) -> None:
    source = Net(by_torch, {"NIN_0": "q", "NIN_1": "k", "NIN_2": "v"})
    model = Net(way, {f"part_{letter}": letter for letter in order})
    mapping = ckptool.transfer(source.state_dict(), model, source_model=source, inputs=["float32[2,5,6]"], prove=False)
    assert not mapping.having("guessed") + mapping.having("unmapped")
    ckptool.load_into(model, source.state_dict(), mapping=mapping)
    theirs = {letter: name for name, letter in source.names.items()}
    for name, letter in model.names.items():
        assert torch.equal(model.get_submodule(name).weight, source.get_submodule(theirs[letter]).weight)


def test_a_layer_that_gives_queries_and_keys_has_no_role() -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.both, self.value = nn.Linear(6, 6), nn.Linear(6, 6)

        def forward(self, x: Any) -> Any:
            return F.scaled_dot_product_attention(self.both(x), self.both(x), self.value(x))

    found = signature_of(Both(), inputs=(torch.zeros(2, 5, 6),))
    assert [found.entries[f"{name}.weight"].facts.attends for name in ("both", "value")] == ["", "v"]


@pytest.mark.parametrize(
    ("before", "after", "blocks"),
    [
        ((2, 8, 8, 8, 8), (2, 8, 8, 64), [(1, 1), (1, 1), (1, 1), (2, 1)]),
        ((6, 4), (3, 8), [(2, 2)]),
        ((24,), (2, 3, 4), [(1, 3)]),
        ((2, 3, 4), (2, 3, 1, 4), [(1, 1), (1, 1), (1, 2)]),
    ],
)
def test_dimensions_that_become_others_are_told_by_their_sizes(before: Any, after: Any, blocks: Any) -> None:
    assert _blocks(before, after) == blocks


def test_a_dimension_that_several_become_belongs_to_whom_all_of_them_do() -> None:
    assert _regrouped((None, 0, 0, 1, 1), (2, 8, 8, 8, 8), (2, 64, 64)) == (None, 0, 1)
    assert _regrouped((None, 0, 1), (2, 8, 8), (2, 64)) == (None, None)


def roles_of(model: nn.Module, *inputs: Any) -> dict[str, str]:
    entries = signature_of(model, inputs=inputs or (torch.zeros(2, 5, 6),)).entries
    return {key.removesuffix(".weight"): e.facts.attends for key, e in entries.items() if key.endswith(".weight")}


class Named(nn.Module):
    def __init__(self, *, learned: bool = False) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(6, 6) for _ in range(3))
        self.query = nn.Parameter(torch.zeros(1, 5, 6)) if learned else None

    def forward(self, x: Any) -> Any:
        query = self.a(x)
        if self.query is not None:
            query = self.query.expand(len(x), -1, -1)
        return F.scaled_dot_product_attention(value=self.c(x), key=self.b(x), query=query)


@pytest.mark.parametrize("learned", [True, False])
def test_what_torchs_attention_takes_is_told_by_its_name_though_the_queries_are_no_output(learned: bool) -> None:
    found = roles_of(Named(learned=learned))
    assert (found["b"], found["c"]) == ("k", "v")
    assert found["a"] == ("" if learned else "q")


class Pooled(nn.Module):
    """Multiplies with what a softmax gives number by number, and then attends to the result as usual."""

    def __init__(self) -> None:
        super().__init__()
        for name in ("a", "b", "c", "q", "k", "v"):
            self.add_module(name, nn.Linear(6, 6))

    def forward(self, x: Any) -> Any:
        weights = (self.a(x) @ self.b(x).mT).softmax(-1)
        x = (weights[..., None] * self.c(x)[:, None]).sum(2)
        scores = self.q(x) @ self.k(x).permute(dims=(0, 2, 1))
        return scores.softmax(-1) @ self.v(x)


def test_what_is_computed_with_the_weights_of_one_attention_are_not_those_of_the_next() -> None:
    found = roles_of(Pooled())
    assert [found[name] for name in "abqkv"] == ["q", "k", "q", "k", "v"]


class Fused(nn.Module):
    """One layer for queries, keys and values, which the code takes in the order of LETTERS."""

    letters = "kqv"

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(6), nn.Linear(6, 18), nn.Linear(6, 4)

    def forward(self, x: Any) -> Any:
        return self.out(x + with_heads(*self.taken(self.qkv(self.norm(x)))))


class ByNumbers(Fused):
    def taken(self, every: Any) -> Any:
        parts = every.chunk(3, -1)
        return parts[1], parts[0], parts[2]


class Exchanged(Fused):
    """Its first names for the parts are not what they are."""

    def taken(self, every: Any) -> Any:
        every = every.unflatten(-1, (3, 6)).permute(2, 0, 1, 3)
        q, k, v = every[0], every[1], every[2]
        q, k = k, q
        return q, k, v


class FromTheEnd(Fused):
    letters = "vkq"

    def taken(self, every: Any) -> Any:
        every = every.unflatten(-1, (3, 6))
        return every[:, :, -1], every[:, :, -2], every[:, :, -3]


class PartsOfParts(Fused):
    """As code that rotates some numbers of each head, and not the first token."""

    letters = "vqk"

    def taken(self, every: Any) -> Any:
        a, b, c = every[..., :6], every[..., 6:12], every[..., 12:]
        b, c = (torch.cat([torch.cat([x[:, :1], -x[:, 1:]], 1)[..., :2], x[..., 2:]], -1) for x in (b, c))
        return b, c, a


class OfSomeTokens(Fused):
    letters = "vkq"

    def taken(self, every: Any) -> Any:
        v, k, q = torch.cat([every[:, :1], every[:, 1:]], 1).split(6, -1)
        return q, k, v


@pytest.mark.parametrize("model", [ByNumbers, Exchanged, FromTheEnd, PartsOfParts, OfSomeTokens])
def test_what_an_attention_does_with_parts_of_a_layer_decides_whatever_code_calls_them(model: Any) -> None:
    class Apart(Fused):
        def __init__(self) -> None:
            super().__init__()
            self.qkv = None
            for letter in "qkv":
                self.add_module(f"{letter}_proj", nn.Linear(6, 6))

        def forward(self, x: Any) -> Any:
            y = self.norm(x)
            return self.out(x + with_heads(self.q_proj(y), self.k_proj(y), self.v_proj(y)))

    one, other, x = Apart(), model(), torch.rand(2, 5, 6)
    mapping = ckptool.transfer(one.state_dict(), other, inputs=[x])
    assert str(next(entry for entry in mapping.entries if entry.target == "qkv.weight").expr) == (
        f"cat(0, {', '.join(f'{letter}_proj.weight' for letter in model.letters)})"
    )
    assert not mapping.having("guessed") + mapping.having("unmapped")


def test_a_layer_whose_output_is_taken_in_part_keeps_its_role() -> None:
    class First(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = (nn.Linear(6, 6) for _ in range(3))

        def forward(self, x: Any) -> Any:
            return by_torch(self.a(x)[:, :1], self.b(x), self.c(x))

    assert roles_of(First()) == {"a": "q", "b": "k", "c": "v"}
