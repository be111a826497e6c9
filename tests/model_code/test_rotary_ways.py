"""Law: however code turns queries and keys by pairs, a forward pass shows which outputs are a pair."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn

import ckptool
from ckptool.model_code.building import signature_for

COS, SIN = torch.rand(4, 3), torch.rand(4, 3)


def half_negated(x: Any) -> Any:
    one, other = x.chunk(2, -1)
    return x * COS.repeat(1, 2) + torch.cat([-other, one], -1) * SIN.repeat(1, 2)


def half_complex(x: Any) -> Any:
    """As in the code of Gemma by its authors."""
    turned = torch.view_as_complex(torch.stack(torch.chunk(x.float(), 2, dim=-1), dim=-1)) * torch.complex(COS, SIN)
    out = torch.view_as_real(turned).type_as(x)
    return torch.cat(torch.chunk(out, 2, dim=-1), dim=-2).flatten(-2)


def half_by_difference(x: Any) -> Any:
    """As in the code of Phi by its authors."""
    one, other = x.chunk(2, dim=-1)
    return torch.cat([one * COS - other * SIN, one * SIN + other * COS], dim=-1)


def half_sliced(x: Any) -> Any:
    one, other = x[..., :3], x[..., 3:]
    return torch.cat((COS * one - SIN * other, COS * other + SIN * one), -1)


def interleaved_by_difference(x: Any) -> Any:
    one, other = x[..., ::2], x[..., 1::2]
    return torch.stack([one * COS - other * SIN, one * SIN + other * COS], dim=-1).flatten(-2)


def interleaved_complex(x: Any) -> Any:
    """As in the code of Llama by its authors."""
    turned = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2)) * torch.complex(COS, SIN)
    return torch.view_as_real(turned).flatten(-2).type_as(x)


def interleaved_stacked(x: Any) -> Any:
    turned = torch.stack([-x[..., 1::2], x[..., ::2]], -1).flatten(-2)
    return x * COS.repeat_interleave(2, -1) + turned * SIN.repeat_interleave(2, -1)


def by_halves(one: Any, other: Any) -> Any:
    return torch.cat([one * COS - other * SIN, other * COS + one * SIN], -1)


def by_neighbours(one: Any, other: Any) -> Any:
    return torch.stack([one * COS - other * SIN, other * COS + one * SIN], -1).flatten(-2)


def matrices() -> Any:
    return torch.stack([torch.stack([COS, -SIN], -1), torch.stack([SIN, COS], -1)], -2)


def half_unbound(x: Any) -> Any:
    return by_halves(*x.unflatten(-1, (2, 3)).unbind(-2))


def half_narrow(x: Any) -> Any:
    return by_halves(x.narrow(-1, 0, 3), x.narrow(-1, 3, 3))


def half_rolled(x: Any) -> Any:
    return x * COS.repeat(1, 2) + torch.roll(x, 3, -1) * torch.cat([-SIN, SIN], -1)


def half_addcmul(x: Any) -> Any:
    one, other = x.chunk(2, -1)
    return torch.cat([torch.addcmul(one * COS, other, -SIN), torch.addcmul(other * COS, one, SIN)], -1)


def half_in_place(x: Any) -> Any:
    one, other = x.chunk(2, -1)
    turned = torch.cat([-other, one], -1)
    turned *= SIN.repeat(1, 2)
    turned += x * COS.repeat(1, 2)
    return turned


def interleaved_unbound(x: Any) -> Any:
    """As in the code of llama2.c."""
    return by_neighbours(*x.reshape(*x.shape[:-1], -1, 2).unbind(-1))


def interleaved_selected(x: Any) -> Any:
    pairs = x.unflatten(-1, (3, 2))
    return by_neighbours(pairs[..., 0], pairs[..., 1])


def interleaved_chunks(x: Any) -> Any:
    one, other = x.unflatten(-1, (3, 2)).chunk(2, -1)
    return by_neighbours(one.squeeze(-1), other.squeeze(-1))


def interleaved_matrix(x: Any) -> Any:
    return (matrices() @ x.unflatten(-1, (3, 2)).unsqueeze(-1)).squeeze(-1).flatten(-2)


def interleaved_einsum(x: Any) -> Any:
    return torch.einsum("npij,hnpj->hnpi", matrices(), x.unflatten(-1, (3, 2))).flatten(-2)


def interleaved_summed(x: Any) -> Any:
    return (matrices() * x.unflatten(-1, (3, 2)).unsqueeze(-2)).sum(-1).flatten(-2)


def interleaved_columns(x: Any) -> Any:
    """As in the code of Flux."""
    table, pairs = matrices(), x.float().reshape(*x.shape[:-1], -1, 1, 2)
    return (table[..., 0] * pairs[..., 0] + table[..., 1] * pairs[..., 1]).flatten(-2)


def interleaved_sorted(x: Any) -> Any:
    """As in the code of DeepSeek, which rotates halves of neighbours that it sorted before."""
    return half_negated(x.unflatten(-1, (3, 2)).transpose(-1, -2).flatten(-2))


class Attention(nn.Module):
    names = ("q", "k", "v", "out")

    def __init__(self, turn: Callable[[Any], Any]) -> None:
        super().__init__()
        for name in self.names:
            self.add_module(name, nn.Linear(12, 12))
        self.turn = turn

    def forward(self, x: Any) -> Any:
        *layers, out = (self.get_submodule(name) for name in self.names)
        q, k, v = (layer(x).view(4, 2, 6).transpose(0, 1) for layer in layers)
        weights = self.turn(q).reshape(2, 4, 6) @ self.turn(k).reshape(2, 4, 6).transpose(1, 2)
        return out((weights.softmax(-1) @ v).transpose(0, 1).reshape(4, 12))


class Renamed(Attention):
    names = ("wq", "wk", "wv", "wo")


WAYS = [half_negated, half_complex, half_by_difference, half_sliced, half_unbound, half_narrow, half_rolled]
WAYS += [half_addcmul, half_in_place, interleaved_complex, interleaved_stacked, interleaved_by_difference]
WAYS += [interleaved_unbound, interleaved_selected, interleaved_chunks, interleaved_matrix, interleaved_einsum]
WAYS += [interleaved_summed, interleaved_columns, interleaved_sorted]


@pytest.mark.parametrize("turn", WAYS)
def test_a_forward_pass_shows_which_outputs_are_turned_as_a_pair(turn: Callable[[Any], Any]) -> None:
    signature = signature_for(Attention(turn), inputs=[torch.rand(4, 12)])
    facts = {key: entry.facts for key, entry in signature.entries.items()}
    kind = turn.__name__.partition("_")[0]
    assert signature.rotary == kind
    assert [facts[f"{name}.weight"].rotary for name in "qkv"] == [kind, kind, None]
    assert [facts[f"{name}.weight"].turned for name in "qkv"] == [6, 6, 0]


@pytest.mark.parametrize("turn", WAYS)
def test_a_pass_without_values_shows_it_as_well(turn: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Code whose views torch refuses for values that share memory is followed on the meta device, if it is large."""
    monkeypatch.setitem(globals(), "COS", COS.to("meta"))
    monkeypatch.setitem(globals(), "SIN", SIN.to("meta"))
    with torch.device("meta"):
        signature = signature_for(Attention(turn), inputs=[torch.rand(4, 12)])
    assert signature.rotary == turn.__name__.partition("_")[0]


def test_tables_may_be_parameters_and_angles_may_be_learned() -> None:
    class Learned(Attention):
        def __init__(self, turn: Any) -> None:
            super().__init__(turn)
            self.cos, self.sin = nn.Parameter(COS, requires_grad=False), nn.Parameter(SIN, requires_grad=False)
            self.angles = nn.Parameter(torch.rand(1, 3))

        def forward(self, x: Any) -> Any:
            angles = torch.arange(4.0)[:, None] @ self.angles
            for cos, sin, layer in ((self.cos, self.sin, self.q), (angles.cos(), angles.sin(), self.k)):
                pairs = layer(x).view(4, 2, 3, 2)
                one, other = pairs.transpose(0, 1).unbind(-1)
                x = x + torch.stack([one * cos - other * sin, one * sin + other * cos], -1).transpose(0, 1).flatten(1)
            return x

    entries = signature_for(Learned(half_negated), inputs=[torch.rand(4, 12)]).entries
    assert [entries[f"{name}.weight"].facts.rotary for name in "qk"] == ["interleaved"] * 2
    assert [entries[f"{name}.weight"].facts.turned for name in "qk"] == [6, 6]


def test_two_outputs_of_each_head_are_halves_however_code_takes_them() -> None:
    def turn(x: Any) -> Any:
        one, other = x[..., 0:2:2], x[..., 1:2]
        cos, sin = COS[:, :1], SIN[:, :1]
        return torch.cat([one * cos - other * sin, other * cos + one * sin, x[..., 2:]], -1)

    facts = signature_for(Attention(turn), inputs=[torch.rand(4, 12)]).entries["q.weight"].facts
    assert (facts.rotary, facts.turned) == ("half", 2)


def shuffled(x: Any) -> Any:
    """Moves what it rotates by an index, whose values a forward pass without values does not have."""
    return x * COS.repeat(1, 2) + x[..., torch.tensor([3, 4, 5, 0, 1, 2])] * SIN.repeat(1, 2)


def shuffled_complex(x: Any) -> Any:
    return interleaved_complex(x[..., torch.tensor([0, 3, 1, 4, 2, 5])])


def mirrored(x: Any) -> Any:
    return x * COS.repeat(1, 2) + x.flip(-1) * SIN.repeat(1, 2)


@pytest.mark.parametrize("turn", [shuffled, shuffled_complex, mirrored])
def test_where_pairs_are_neither_halves_nor_neighbours_or_not_seen_it_is_asked(turn: Callable[[Any], Any]) -> None:
    signature = signature_for(Attention(turn), inputs=[torch.rand(4, 12)])
    assert [signature.entries[f"{name}.weight"].facts.rotary for name in "qkv"] == ["unknown", "unknown", None]
    source, names = Attention(half_negated), ("q", "k", "v", "out")
    named = {
        key.replace(name, f"{name}_proj"): value
        for name in names
        for key, value in source.state_dict().items()
        if key.startswith(f"{name}.")
    }
    mapping = ckptool.transfer(named, Attention(turn), inputs=[torch.rand(4, 12)])
    doubts = {entry.target: entry.status for entry in mapping.entries}
    assert [doubts[f"{name}.weight"] for name in "qkv"] == ["guessed", "guessed", "mapped"]


@pytest.mark.parametrize("turn", WAYS)
@pytest.mark.parametrize("start", [half_negated, interleaved_by_difference])
def test_rows_are_ordered_so_that_both_codes_give_equal_outputs(
    start: Callable[[Any], Any], turn: Callable[[Any], Any]
) -> None:
    source, model, inputs = Attention(start), Renamed(turn), [torch.rand(4, 12)]
    mapping = ckptool.transfer(source.state_dict(), model, source_model=source, inputs=inputs, prove=False)
    assert not mapping.having("guessed") + mapping.having("unmapped")
    ckptool.load_into(model, source.state_dict(), mapping=mapping)
    assert torch.allclose(model(*inputs), source(*inputs), atol=1e-5)
