"""Law: however code turns queries and keys by pairs, a forward pass shows which outputs are a pair."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn

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
    return x * COS.repeat_interleave(2, -1) + torch.stack([-x[..., 1::2], x[..., ::2]], -1).flatten(-2)


class Attention(nn.Module):
    def __init__(self, turn: Callable[[Any], Any]) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(12, 12) for _ in range(4))
        self.turn = turn

    def forward(self, x: Any) -> Any:
        q, k, v = (layer(x).view(4, 2, 6).transpose(0, 1) for layer in (self.q, self.k, self.v))
        weights = self.turn(q).reshape(2, 4, 6) @ self.turn(k).reshape(2, 4, 6).transpose(1, 2)
        return self.out((weights.softmax(-1) @ v).transpose(0, 1).reshape(4, 12))


WAYS = [half_negated, half_complex, half_by_difference, half_sliced]
WAYS += [interleaved_complex, interleaved_stacked, interleaved_by_difference]


@pytest.mark.parametrize("turn", WAYS)
def test_a_forward_pass_shows_which_outputs_are_turned_as_a_pair(turn: Callable[[Any], Any]) -> None:
    signature = signature_for(Attention(turn), inputs=[torch.rand(4, 12)])
    facts = {key: entry.facts for key, entry in signature.entries.items()}
    kind = turn.__name__.partition("_")[0]
    assert signature.rotary == kind
    assert [facts[f"{name}.weight"].rotary for name in "qkv"] == [kind, kind, None]
