"""What flows through a model: uses of weights, as expressions, and channels that are found again in any order."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from ckptool.porting import expression as ex
from ckptool.porting.prove.fingerprints import APART, NOISE, Known, fingerprints, pairing
from ckptool.porting.prove.recorder import follow
from ckptool.porting.prove.source_code import OwnCode
from ckptool.torch_bridge import from_torch, to_torch

VIEWS: dict[str, Callable[[Any], Any]] = {
    "as it is": lambda w: w,
    "transposed": lambda w: w.t(),
    "rows": lambda w: w[2:5],
    "rows, transposed": lambda w: w[2:5].t(),
    "columns": lambda w: w[:, 1:4],
    "one row": lambda w: w[3],
    "cut in three": lambda w: w.chunk(3)[1],
    "by heads": lambda w: w.view(2, 3, 6)[1],
    "copied": lambda w: w.t().contiguous(),
    "joined": lambda w: torch.cat([w[3:], w[:3]]),
    "one column more": lambda w: w.unsqueeze(-1).squeeze(-1),
    "times a number": lambda w: w * 0.5,
    "by a number, and a number less": lambda w: w / 3 - 1,
    "negative": lambda w: -w,
    "the sum of two": lambda w: w + w.t(),
    "one row taken from all": lambda w: w - w[:1],
    "a grid of sums": lambda w: w[:2, None] + w[None, 3:],
    "times one column": lambda w: w * w[:, :1],
    "tiled": lambda w: w.repeat(2, 1),
    "tiled in a new dimension": lambda w: w.repeat(2, 1, 3),
    "each row twice": lambda w: w.repeat_interleave(2, 0),
    "one row for all": lambda w: torch.cat([w[:1].expand(3, -1), w]),
    "stacked": lambda w: torch.stack([w, w.t()], 1),
    "flipped": lambda w: w.flip(1),
    "other rows": lambda w: w.index_select(0, torch.tensor([4, 5, 0, 1, 3, 2])),
}


class Views(nn.Module):
    def __init__(self, view: Callable[[Any], Any]) -> None:
        super().__init__()
        self.w, self.view = nn.Parameter(torch.randn(6, 6)), view

    def forward(self, x: Any) -> Any:
        return x[0, 0] * self.view(self.w)


@pytest.mark.parametrize("name", VIEWS)
def test_however_code_takes_a_weight_the_expression_says_it(name: str) -> None:
    model = Views(VIEWS[name])
    flow = follow(model, [torch.randn(2, 2)])
    assert flow is not None
    held = flow.uses[0].held["weight"]
    assert held.expr is not None
    tensors = from_torch(model.state_dict()).state_dicts()[0].tensors
    torch.testing.assert_close(to_torch(ex.lazy(held.expr, tensors)), VIEWS[name](model.w).detach())


COMPUTED: dict[str, Callable[[Any], Any]] = {
    "exponential": lambda w: w.exp(),
    "centred": lambda w: w - w.mean(),
    "spread": lambda w: w * w.std(0),
    "summed": lambda w: w.cumsum(0),
}


@pytest.mark.parametrize("name", COMPUTED)
def test_what_no_expression_computes_is_known_by_its_keys_alone(name: str) -> None:
    flow = follow(Views(COMPUTED[name]), [torch.randn(2, 2)])
    assert flow is not None
    held = flow.uses[0].held["weight"]
    assert (held.keys, held.expr) == (("w",), None)
    assert held.is_computed


def test_a_chain_of_sums_does_not_make_an_expression_without_end() -> None:
    def doubled(w: Any) -> Any:
        for _ in range(40):
            w = w + w
        return w

    flow = follow(Views(doubled), [torch.randn(2, 2)])
    assert flow is not None
    assert flow.uses[0].held["weight"].expr is None


def test_layers_are_seen_with_what_they_take_and_after_what() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 5, bias=False))
    flow = follow(model.train(), [torch.randn(2, 3, 4, 4)])
    assert flow is not None
    assert [(u.kind, u.keys[0], u.rows, sorted(u.before)) for u in flow.uses] == [
        ("conv", "0.weight", 4, []),
        ("norm", "1.weight", 4, [0]),
        ("linear", "4.weight", 5, [1]),
    ]
    assert set(flow.uses[1].held) == {"weight", "bias", "running_mean", "running_var"}
    assert flow.behind == [frozenset({2})]
    assert model.training


class BiasesLater(nn.Module):
    """Two layers of which the code adds the biases afterwards."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Parameter(torch.randn(4, 3)), nn.Parameter(torch.randn(5, 3))
        self.b = nn.Parameter(torch.randn(5))

    def forward(self, x: Any) -> Any:
        return x @ self.one.t(), x @ self.two.t() + self.b


def test_a_bias_that_is_added_later_is_found_behind_a_use_that_the_file_lacks() -> None:
    flow = follow(BiasesLater(), [torch.randn(2, 3)])
    assert flow is not None
    held = OwnCode({key: ex.of(key) for key in ("two", "b")}, missing=frozenset({"one"})).seen(flow)
    assert [use.keys for use in held.uses] == [("two",), ("b",)]
    bias = held.bias(held.uses[0])
    assert bias is not None
    assert bias.keys == ("b",)
    assert held.after(held.uses[0]) == {held.uses[1].index}


def test_a_flow_over_other_keys_tells_channels_apart_as_before() -> None:
    flow = follow(BiasesLater(), [torch.randn(2, 3)])
    assert flow is not None
    flow.tell_apart_by(0.25, 0.5)
    assert flow.renamed({key: ex.of(f"new.{key}") for key in ("one", "two", "b")}).apart == (0.25, 0.5)


PRODUCTS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "addmm": lambda x, w, b: torch.addmm(b, x, w.t()),
    "addmm, weight first": lambda x, w, b: torch.addmm(b[:, None], w, x.t()),
    "baddbmm": lambda x, w, b: torch.baddbmm(b, x[None], w.t()[None]),
    "addmv": lambda x, w, b: torch.addmv(b, w, x[0]),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_a_product_that_adds_a_bias_is_a_layer_with_it(name: str) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w, self.b = nn.Parameter(torch.randn(4, 3)), nn.Parameter(torch.randn(4))

        def forward(self, x: Any) -> Any:
            return PRODUCTS[name](x, self.w, self.b)

    flow = follow(Net(), [torch.randn(5, 3)])
    assert flow is not None
    assert [(use.kind, {role: one.keys for role, one in use.held.items()}) for use in flow.uses] == [
        ("linear", {"weight": ("w",), "bias": ("b",)})
    ]


def test_a_recurrent_layer_is_seen_step_by_step() -> None:
    flow = follow(nn.LSTM(3, 4), [torch.randn(5, 2, 3)])
    assert flow is not None
    keys = [u.keys for u in flow.uses]
    assert keys[0][0] == "weight_ih_l0"
    assert sum("weight_hh_l0" in k for k in keys) == 5
    assert any("weight_hh_l0" in told[1][1] for told in flow.repeated)


def test_a_constant_that_a_kernel_made_of_data_is_applied_to_is_a_use() -> None:
    class Constant(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.const = nn.Parameter(torch.randn(1, 3, 4, 4))

        def forward(self, style: Any) -> Any:
            return nn.functional.conv2d(self.const, style.reshape(2, 3, 1, 1))

    flow = follow(Constant(), [torch.randn(2, 3)])
    assert flow is not None
    assert [use.keys for use in flow.uses] == [("const",)]


def test_a_model_that_raises_has_no_flow() -> None:
    assert follow(nn.Linear(3, 4), [torch.randn(2, 5)]) is None


@settings(max_examples=50, deadline=None)
@given(st.permutations(range(9)), st.integers(0, 3), st.integers(0, 1 << 30))
def test_channels_are_found_in_any_order(order: list[int], dim: int, seed: int) -> None:
    x = torch.randn(9, 3, 4, 5, generator=torch.Generator().manual_seed(seed))
    moved = x[torch.tensor(order)].movedim(0, dim)
    wanted, have = fingerprints(moved, dim), fingerprints(x.flip(1), 0)
    assert pairing(wanted, have) == order
    assert Known([have]).holds(wanted)
    assert not Known([have]).holds(fingerprints(moved + 0.5, dim))


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 300), st.integers(1, 8), st.sampled_from([0.0, 1e-4, 1e-2]), st.integers(0, 1 << 30))
def test_a_channel_is_found_exactly_if_one_of_the_set_is_near(many: int, few: int, noise: float, seed: int) -> None:
    """Also among many of nearly the same maximum."""
    drawn = torch.Generator().manual_seed(seed)
    have = fingerprints(
        torch.randint(1, 3, (many, 5), generator=drawn) + torch.rand(many, 1, generator=drawn) * 0.01, 0
    )
    wanted = have[torch.randint(many, (few,), generator=drawn)]
    wanted = wanted + torch.randn(few, 6, generator=drawn, dtype=wanted.dtype) * noise
    near = APART * wanted[:, :1] + NOISE * wanted[:, 0].max() + 1e-12
    each = [bool(((have - row).abs() <= allowed).all(1).any()) for row, allowed in zip(wanted, near, strict=True)]
    assert Known([have]).holds(wanted) == all(each)


def test_channels_that_look_alike_stay_beside_their_neighbours() -> None:
    """Three of each half are 0 everywhere, and the halves change places."""
    x = torch.randn(12, 20)
    x[[1, 2, 5, 6, 7, 11]] = 0
    swapped = torch.cat([x[6:], x[:6]])
    assert pairing(fingerprints(swapped, 0), fingerprints(x, 0)) == [*range(6, 12), *range(6)]


COMPILED = """
import sys, torch
from ckptool.porting.prove.recorder import follow

class Net(torch.nn.Module):
    def __init__(self, what):
        super().__init__()
        self.what, self.weight, self.last = what, torch.nn.Parameter(torch.ones(4, 4)), torch.nn.Linear(4, 2)

    def forward(self, x):
        return self.last(self.what(x, self.weight))

def used(what):
    flow = follow(Net(what), [torch.ones(2, 4)], wider=True)
    return [(use.kind, use.keys, [step.name for step in use.steps]) for use in flow.uses]

def what(x, weight):
    return torch.relu(x @ weight) + 1

plain = used(what)
assert "torch._dynamo" not in sys.modules
assert used(torch.compile(what, backend="eager")) == plain, plain
"""


def test_compiled_code_is_followed_as_any_other_and_no_other_code_imports_the_compiler() -> None:
    subprocess.run([sys.executable, "-c", COMPILED], check=True)
