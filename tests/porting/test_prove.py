"""Proof: conventions that no name and no shape shows are settled by comparing outputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn

import ckptool
from ckptool.inputs import parse_inputs
from ckptool.porting.prove import prove


class Attention(nn.Module):
    """Two heads; how the rows of the fused projection are laid out is the caller's."""

    def __init__(self, alternate: bool) -> None:
        super().__init__()
        self.qkv, self.out, self.alternate = nn.Linear(8, 24), nn.Linear(8, 8), alternate

    def forward(self, x: Any) -> Any:
        n, t, _ = x.shape
        both = self.qkv(x)
        if self.alternate:
            q, k, v = both.view(n, t, 2, 3, 4).permute(3, 0, 2, 1, 4)
        else:
            q, k, v = both.view(n, t, 3, 2, 4).permute(2, 0, 3, 1, 4)
        return self.out(nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, t, 8))


class Rotary(nn.Module):
    """One head, turned by pairs that stand side by side, or half a head apart."""

    def __init__(self, interleaved: bool) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(8, 8, bias=False) for _ in range(3))
        self.interleaved = interleaved

    def turned(self, x: Any) -> Any:
        angle = torch.arange(x.shape[1], device=x.device)[:, None] * torch.tensor(
            [1.0, 0.5, 0.1, 0.01], device=x.device
        )
        cos, sin = angle.cos(), angle.sin()
        if self.interleaved:
            a, b = x[..., 0::2], x[..., 1::2]
            return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)
        a, b = x.chunk(2, -1)
        return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)

    def forward(self, x: Any) -> Any:
        q, k = self.turned(self.q_proj(x)), self.turned(self.k_proj(x))
        return (q @ k.transpose(1, 2)).softmax(-1) @ self.v_proj(x)


class Flat(nn.Module):
    """A linear layer after feature maps, flattened channels first or last."""

    def __init__(self, last: bool) -> None:
        super().__init__()
        self.conv, self.fc, self.last = nn.Conv2d(3, 4, 3, 2), nn.Linear(4 * 9, 5), last

    def forward(self, x: Any) -> Any:
        x = self.conv(x)
        return self.fc((x.permute(0, 2, 3, 1) if self.last else x).flatten(1))


class Centred(nn.Module):
    """A norm that takes its weight as it is, or adds one."""

    def __init__(self, one: float) -> None:
        super().__init__()
        self.first, self.second, self.one = nn.Linear(6, 6), nn.Linear(6, 6), one
        self.norm_weight = nn.Parameter(torch.rand(6))

    def forward(self, x: Any) -> Any:
        x = self.first(x)
        x = x / x.pow(2).mean(-1, keepdim=True).sqrt() * (self.norm_weight + self.one)
        return self.second(x)


class Twins(nn.Module):
    """Three equal layers, used in another order than they are named."""

    def __init__(self, order: str) -> None:
        super().__init__()
        for name in sorted(order):
            setattr(self, name, nn.Linear(5, 5))
        self.order = order

    def forward(self, x: Any) -> Any:
        for name in self.order:
            x = getattr(self, name)(x).sin()
        return x


CASES: dict[str, tuple[Callable[[Any], nn.Module], Any, Any, str]] = {
    "fused parts that alternate by head": (Attention, True, False, "float32[2,5,8]"),
    "and the other way round": (Attention, False, True, "float32[2,5,8]"),
    "rotary pairs": (Rotary, True, False, "float32[2,6,8]"),
    "rotary pairs, back": (Rotary, False, True, "float32[2,6,8]"),
    "flattened with channels last": (Flat, True, False, "float32[2,3,8,8]"),
    "flattened with channels first": (Flat, False, True, "float32[2,3,8,8]"),
    "norm weights around one": (Centred, 1.0, 0.0, "float32[2,6]"),
    "equal layers in another order": (Twins, "abc", "zxy", "float32[2,5]"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_convention_that_only_code_shows_is_found_by_trial(case: str) -> None:
    kind, theirs, ours, spec = CASES[case]
    torch.manual_seed(0)
    source, own = kind(theirs).eval(), kind(ours).eval()
    mapping = ckptool.transfer(source.state_dict(), own, inputs=[spec], source_model=source, prove=True)
    assert mapping.proof is not None
    assert mapping.proof["equal"], mapping.proof
    ckptool.load_into(own, source.state_dict(), mapping=mapping, accept_guesses=True)
    x = torch.randn(*(int(n) for n in spec[8:-1].split(",")))
    with torch.no_grad():
        torch.testing.assert_close(own(x), source(x), rtol=1e-4, atol=1e-5)


def test_inputs_are_worked_out_from_the_first_layers() -> None:
    torch.manual_seed(0)
    source, own = Flat(False).eval(), Flat(False).eval()
    mapping = ckptool.transfer(source.state_dict(), own, source_model=source, prove=True)
    assert mapping.proof is not None
    assert mapping.proof["equal"]
    assert "float32[2,3," in mapping.proof["text"]


def test_the_first_divergence_is_named() -> None:
    torch.manual_seed(0)

    class Chain(nn.Module):
        def __init__(self, slope: float) -> None:
            super().__init__()
            self.one, self.two, self.three, self.slope = nn.Linear(4, 5), nn.Linear(5, 6), nn.Linear(6, 3), slope

        def forward(self, x: Any) -> Any:
            x = nn.functional.leaky_relu(self.two(self.one(x)), self.slope)
            return self.three(x)

    source = Chain(0.1).eval()
    mapping = ckptool.transfer(source.state_dict(), Chain(0.7).eval(), source_model=source, prove=True)
    assert mapping.proof is not None
    assert not mapping.proof["equal"]
    assert mapping.proof["first_divergence"] == "three"


def test_what_the_outputs_do_not_feel_stays_a_guess() -> None:
    """Two layers whose results are thrown away: equal outputs say nothing about them."""

    class Idle(nn.Module):
        def __init__(self, names: str) -> None:
            super().__init__()
            self.stem = nn.Linear(4, 4)
            for name in names:
                setattr(self, name, nn.Linear(3, 3))
            self.names = names

        def forward(self, x: Any) -> Any:
            return self.stem(x)

    torch.manual_seed(0)
    source, own = Idle("ab").eval(), Idle("yx").eval()
    state = dict(sorted(source.state_dict().items()))
    mapping = ckptool.transfer(state, own, inputs=["float32[2,4]"])
    guessed = {e.target for e in mapping.having("guessed")}
    proved = prove(mapping, state, source, own, inputs=parse_inputs(["float32[2,4]"]))
    assert proved.proof is not None
    assert proved.proof["equal"]
    assert {e.target for e in proved.having("guessed")} == guessed
