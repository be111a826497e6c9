"""Weights that code computes from other tensors are ported to plain weights and back, with equal outputs."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from sides import found, pairing, signature, wanted
from torch.nn.utils import prune

import ckptool
from ckptool.porting.port import port

Wrap = Callable[..., Any]
nn = torch.nn


class Product(nn.Module):  # type: ignore[misc, name-defined]
    """A layer that multiplies with inputs first."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(inputs, outputs)), nn.Parameter(torch.randn(outputs))

    def forward(self, x: Any) -> Any:
        return x @ self.weight + self.bias


class Layers(nn.Module):  # type: ignore[misc, name-defined]
    def __init__(self, wrap: Wrap = lambda layer: layer, *, width: int = 7) -> None:
        super().__init__()
        self.conv = wrap(nn.Conv1d(4, 6, 3))
        self.mix = wrap(Product(6, width)) if width else nn.Tanh()
        self.head = wrap(nn.Linear(width or 6, 5))

    def forward(self, x: Any) -> Any:
        return self.head(torch.tanh(self.mix(self.conv(x).mean(-1))))


def normed(layer: Any, dim: int | None, *, old: bool = False) -> Any:
    """A layer with weight norm, whose norms are none that its directions have by themselves."""
    wrap = torch.nn.utils.weight_norm if old else torch.nn.utils.parametrizations.weight_norm
    dim = dim if dim is None else min(dim, layer.weight.ndim - 1)
    with pytest.warns(FutureWarning) if old else torch.no_grad():
        made = wrap(layer, dim=dim)
    with torch.no_grad():
        for name, value in made.named_parameters():
            if name.endswith(("original0", "_g")):
                value.mul_(torch.rand(value.shape) + 1)
    return made


def compared(source: Any, target: Any) -> list[ckptool.MappingEntry]:
    """Load the weights of SOURCE into TARGET, compare their outputs, and return the entries."""
    mapping = ckptool.transfer(source.state_dict(), target)
    ckptool.load_into(target, source.state_dict(), mapping=mapping, accept_guesses=True)
    x = torch.randn(2, 4, 9)
    torch.testing.assert_close(target(x), source(x), rtol=1e-4, atol=1e-5)
    return list(mapping.entries)


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("dim", [0, 1, 2, None])
def test_a_weight_norm_over_any_dimension_becomes_a_plain_weight_and_back(dim: int | None, old: bool) -> None:
    torch.manual_seed(0)
    plain, made = Layers(), Layers(lambda layer: normed(layer, dim, old=old))
    for source, target in ((made, plain), (plain, made)):
        assert {entry.status for entry in compared(source, target)} == {"mapped"}


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("dim", [0, 1, None])
def test_a_square_matrix_with_weight_norm_and_inputs_first_is_a_guess_where_the_other_side_has_none(
    dim: int | None, old: bool
) -> None:
    torch.manual_seed(0)
    plain, made = Layers(width=6), Layers(lambda layer: normed(layer, dim, old=old), width=6)
    for source, target in ((plain, made), (made, plain)):
        entries = ckptool.transfer(source.state_dict(), target).entries
        assert {e.status for e in entries if "weight" in e.target and e.target.startswith("mix")} == {"guessed"}
        assert {e.status for e in entries if not e.target.startswith("mix.")} == {"mapped"}


@pytest.mark.parametrize(("have", "want"), [(0, 2), (2, 0), (None, 1), (1, None)])
def test_a_weight_norm_over_one_dimension_becomes_one_over_another(have: int | None, want: int | None) -> None:
    torch.manual_seed(0)
    source, target = (Layers(lambda layer, dim=dim: normed(layer, dim), width=0) for dim in (have, want))
    assert {entry.status for entry in compared(source, target)} == {"mapped"}


@pytest.mark.parametrize("sizes", [(6, 4), (3, 8), (5, 1), (2, 3, 1)])
def test_what_cannot_be_the_norms_of_a_weight_is_not_merged_into_it(sizes: tuple[int, ...]) -> None:
    parts = {"fc.weight_g": sizes, "fc.weight_v": (3, 8)}
    for source, target in ((parts, {"fc.weight": (3, 8)}), ({"fc.weight": (3, 8)}, parts)):
        made = port(signature({**source, "out.weight": (5, 3)}), wanted({**target, "out.weight": (5, 3)}))
        assert not any("norm" in expr for expr in pairing(made).values())
        assert found(made, min(target)).status != "mapped"


class Chain(nn.Module):  # type: ignore[misc, name-defined]
    """Layers called NAME1 to NAME3, of which those with a number in PRUNED are pruned."""

    def __init__(self, name: str, pruned: Collection[int]) -> None:
        super().__init__()
        self.names = [f"{name}{n}" for n in (1, 2, 3)]
        for n, layer in zip(self.names, (nn.Linear(8, 6), nn.Linear(6, 5), nn.Linear(5, 4)), strict=True):
            self.add_module(n, prune.l1_unstructured(layer, "weight", 0.5) if int(n[-1]) in pruned else layer)

    def forward(self, x: Any) -> Any:
        for name in self.names:
            x = torch.tanh(getattr(self, name)(x))
        return x


@pytest.mark.parametrize("own", [(), (1,), (2, 3), (1, 2, 3)])
@pytest.mark.parametrize("theirs", [(), (2,), (1, 3), (1, 2, 3)])
@pytest.mark.parametrize("name", ["fc", "layer"])
def test_masks_are_merged_of_the_layers_that_only_one_side_has_pruned(
    name: str, theirs: tuple[int, ...], own: tuple[int, ...]
) -> None:
    torch.manual_seed(0)
    source, target = Chain(name, theirs), Chain("fc", own)
    mapping = ckptool.transfer(source.state_dict(), target)
    ckptool.load_into(target, source.state_dict(), mapping=mapping, accept_guesses=True)
    x = torch.randn(2, 8)
    torch.testing.assert_close(target(x), source(x))
    guessed = {entry.target for entry in mapping.entries if entry.status == "guessed"}
    assert guessed == {f"fc{n}.weight_{leaf}" for n in {*own} - {*theirs} for leaf in ("orig", "mask")}
