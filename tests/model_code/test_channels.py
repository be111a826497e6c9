"""Branches that a layer takes side by side: their order is in its weights, and no shape shows it."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
nn = torch.nn


class Branches(nn.Module):  # type: ignore[misc]
    """Convolutions of several sizes over one input, side by side, and a layer over them."""

    def __init__(self, names: str = "abc", joined: str = "abc", norm: bool = False) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 1)
        for name in names:
            self.add_module(name, nn.Conv2d(4, 5, kernel_size=SIZES[name], padding=SIZES[name] // 2))
        self.norm = nn.BatchNorm2d(5 * len(names)) if norm else nn.Identity()
        self.last = nn.Conv2d(5 * len(names), 6, 1)
        self.joined = joined

    def forward(self, x: Any) -> Any:
        x = self.stem(x).relu()
        return self.last(self.norm(torch.cat([getattr(self, name)(x).relu() for name in self.joined], 1)))


SIZES = {"a": 1, "b": 3, "c": 5}


def mapping(source: Any, target: Any, source_code: Any = None, **inputs: Any) -> Any:
    from ckptool.model_code.building import signature_of
    from ckptool.porting.sources import match_signature

    renamed = {f"net.{key}": value for key, value in source.state_dict().items()}
    shape = inputs.get("inputs", (1, 3, 8, 8))
    code = signature_of(source, inputs=(torch.zeros(shape),)) if source_code else None
    if code is not None:
        renamed = dict(source.state_dict())
    return match_signature(renamed, signature_of(target, inputs=(torch.zeros(shape),)), source_code=code)


def test_branches_joined_as_they_are_registered_are_no_doubt() -> None:
    found = mapping(Branches("cab", "cab"), Branches("abc", "cab"))
    assert {entry.status for entry in found.entries} == {"mapped"}


@pytest.mark.parametrize("norm", [False, True])
def test_branches_that_the_source_registers_in_another_order_make_the_layer_over_them_a_guess(norm: bool) -> None:
    source, target = Branches("abc", "abc", norm), Branches("cab", "cab", norm)
    found = mapping(source, target)
    guessed = {entry.target for entry in found.having("guessed")}
    over = {f"norm.{leaf}" for leaf in ("weight", "bias", "running_mean", "running_var")} if norm else set()
    assert guessed >= {"last.weight", *over}
    assert guessed <= {"last.weight", "norm.num_batches_tracked", *over}
    from ckptool.porting.applying import apply

    for value in source.parameters():
        nn.init.normal_(value)
    if norm:
        nn.init.normal_(source.norm.running_mean)
    state = {f"net.{key}": value for key, value in source.state_dict().items()}
    target.load_state_dict(_tensors(apply(found, state)))
    x = torch.randn(1, 3, 8, 8)
    torch.testing.assert_close(target.eval()(x), source.eval()(x), rtol=1e-3, atol=1e-4)


class Pyramid(nn.Module):  # type: ignore[misc]
    """Equal branches, one of them over what all pixels have in common, in the order in which NAMES registers them."""

    def __init__(self, names: str, *, pooled_first: bool) -> None:
        super().__init__()
        self.stem, self.first = nn.Conv2d(3, 4, 1), pooled_first
        for name in names:
            self.add_module(f"branch_{name}", nn.Sequential(nn.Conv2d(4, 5, 1, bias=False), nn.BatchNorm2d(5)))
        self.last = nn.Conv2d(15, 6, 1)

    def forward(self, x: Any) -> Any:
        x = self.stem(x).relu()
        pooled = self.branch_p(x.mean((2, 3), keepdim=True)) if self.first else None
        parts = [self.branch_x(x), self.branch_y(x[..., :1, :])]
        pooled = self.branch_p(x.mean((2, 3), keepdim=True)) if pooled is None else pooled
        return self.last(torch.cat([part.expand(-1, -1, *x.shape[2:]) for part in (*parts, pooled)], 1))


@pytest.mark.parametrize("names", ["pxy", "xyp"])
def test_branches_are_counted_in_the_order_in_which_the_layer_over_them_takes_them(names: str) -> None:
    """Pooled features are computed first in some code, and their channels come last in all."""
    from ckptool.model_code.building import signature_of
    from ckptool.porting.applying import apply
    from ckptool.porting.sources import match_signature

    source, target = Pyramid("xyp", pooled_first=False).eval(), Pyramid(names, pooled_first=True).eval()
    for tensor in source.state_dict().values():
        if tensor.is_floating_point():
            tensor.uniform_(0.5, 1.5)
    state = {
        key.replace("branch_", "convs.").translate(str.maketrans("xyp", "012"))
        if "branch" in key
        else f"net.{key}": value
        for key, value in source.state_dict().items()
    }
    found = match_signature(state, signature_of(target, inputs=(torch.zeros(1, 3, 8, 8),)))
    target.load_state_dict(_tensors(apply(found, state)))
    x = torch.randn(1, 3, 8, 8)
    torch.testing.assert_close(target(x), source(x))


def _tensors(checkpoint: Any) -> dict[str, Any]:
    from ckptool.torch_bridge import to_torch

    return {key: to_torch(tensor) for key, tensor in checkpoint.state_dict().tensors.items()}


def test_with_the_code_of_the_source_the_channels_are_moved_and_nothing_is_guessed() -> None:
    found = mapping(Branches("abc", "bca"), Branches("abc", "abc"), source_code=True)
    assert {entry.status for entry in found.entries} == {"mapped"}
    assert str(found["last.weight"].expr) == ("cat(1, slice(last.weight, 1, 10, 15), slice(last.weight, 1, 0, 10))")


class Skips(nn.Module):  # type: ignore[misc]
    """A layer that takes what goes on and what came before, as networks with skip connections do."""

    def __init__(self, later_first: bool) -> None:
        super().__init__()
        self.down, self.inner, self.up = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 5, 3, padding=1), nn.Conv2d(9, 2, 1)
        self.later_first = later_first

    def forward(self, x: Any) -> Any:
        early = self.down(x).relu()
        late = self.inner(early)
        return self.up(torch.cat([late, early] if self.later_first else [early, late], 1))


@pytest.mark.parametrize("later_first", [False, True])
def test_a_skip_connection_is_no_branch(later_first: bool) -> None:
    found = mapping(Skips(later_first), Skips(later_first))
    assert {entry.status for entry in found.entries} == {"mapped"}


class Waves(nn.Module):  # type: ignore[misc]
    """Positions as waves, and features: halves or neighbours of the one are turned, or of the other."""

    def __init__(self, of_features: bool, halves: bool) -> None:
        super().__init__()
        self.inner, self.of_features, self.halves = nn.Linear(4, 4), of_features, halves
        self.register_buffer("rates", torch.ones(4))

    def forward(self, x: Any) -> Any:
        x = self.inner(x)
        waves = torch.ones_like(x).cumsum(-1) * self.rates  # of the sizes of features, and of nothing else of them
        taken = x if self.of_features else waves
        turned = torch.stack([-taken[..., 1::2], taken[..., 0::2]], -1).flatten(-2)
        if self.halves:
            one, other = taken.chunk(2, -1)
            turned = torch.cat([-other, one], -1)
        return x + (taken * self.rates.cos() + turned * self.rates.sin())


@pytest.mark.parametrize("halves", [False, True])
@pytest.mark.parametrize("of_features", [False, True])
def test_only_what_weights_went_into_is_turned_as_rotary_embeddings_do(of_features: bool, halves: bool) -> None:
    from ckptool.model_code.building import signature_of

    found = signature_of(Waves(of_features, halves), inputs=(torch.zeros(1, 3, 4),))
    assert found.traced
    assert found.rotary == (("half" if halves else "interleaved") if of_features else None)


class Towers(nn.Module):  # type: ignore[misc]
    """Linear layers over one input, side by side."""

    def __init__(self, names: str, joined: str) -> None:
        super().__init__()
        for name in names:
            self.add_module(name, nn.Linear(4, 3 + SIZES[name]))
        self.last, self.joined = nn.Linear(sum(3 + SIZES[name] for name in names), 2), joined

    def forward(self, x: Any) -> Any:
        return self.last(torch.cat([getattr(self, name)(x) for name in self.joined], -1))


def test_towers_of_linear_layers_are_branches_too() -> None:
    assert {e.status for e in mapping(Towers("abc", "abc"), Towers("abc", "abc"), inputs=(2, 4)).entries} == {"mapped"}
    found = mapping(Towers("abc", "abc"), Towers("bca", "bca"), inputs=(2, 4))
    assert found["last.weight"].status == "guessed"
    moved = "cat(1, slice(net.last.weight, 1, 4, 18), slice(net.last.weight, 1, 0, 4))"
    assert str(found["last.weight"].expr) == moved


class Tables(nn.Module):  # type: ignore[misc]
    """Rows of two tables side by side."""

    def __init__(self, names: str, joined: str) -> None:
        super().__init__()
        for name in names:
            self.add_module(name, nn.Embedding(20 + SIZES[name], 4))
        self.last, self.joined = nn.Linear(8, 2), joined

    def forward(self, x: Any) -> Any:
        rows = x.long().clamp(0, 9)[:, 0]
        return self.last(torch.cat([getattr(self, name)(rows) for name in self.joined], -1))


def test_rows_of_tables_are_branches_too() -> None:
    kept = mapping(Tables("ab", "ab"), Tables("ab", "ab"), inputs=(2, 4))
    assert {e.status for e in kept.entries} == {"mapped"}
    found = mapping(Tables("ab", "ab"), Tables("ba", "ba"), inputs=(2, 4))
    assert found["last.weight"].status == "guessed"


class UnequalTowers(nn.Module):  # type: ignore[misc]
    """Two towers over one input, whose outputs a layer takes side by side in the order of their registration."""

    def __init__(self, registered: str, **names: str) -> None:
        super().__init__()
        self.names = {"a": names.get("a", "a"), "b": names.get("b", "b"), "c": names.get("c", "c")}
        layers = {"a": nn.Conv2d(3, 4, 1), "b": nn.Conv2d(3, 5, 1), "c": nn.Conv2d(5, 4, 1)}
        for letter in registered:
            self.add_module(self.names[letter], layers[letter])
        self.last = nn.Conv2d(8, 6, 1)
        self.a_first = registered.startswith("a")

    def forward(self, x: Any) -> Any:
        a, b, c = (getattr(self, name) for name in self.names.values())
        both = [a(x).relu(), c(b(x).relu())]
        return self.last(torch.cat(both if self.a_first else both[::-1], 1))


def test_towers_whose_first_layers_are_registered_in_another_order_are_asked_about() -> None:
    names, target = {"a": "single", "b": "entry", "c": "exit"}, UnequalTowers("abc")
    found = mapping(UnequalTowers("bac", **names), target)
    assert {entry.target for entry in found.having("guessed")} == {"last.weight"}
    assert str(found["last.weight"].expr) == "cat(1, slice(net.last.weight, 1, 4, 8), slice(net.last.weight, 1, 0, 4))"
    assert not mapping(UnequalTowers("abc", **names), target).having("guessed")
