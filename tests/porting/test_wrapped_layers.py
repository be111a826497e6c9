"""Layers in wrappers and norms without weights, as generators of pictures have them."""

from __future__ import annotations

from typing import Any

import pytest
from sides import found, pairing, signature, wanted

from ckptool.model_code.signature import Entry, Signature
from ckptool.porting.port import port

torch = pytest.importorskip("torch")
nn = torch.nn


class SpectralNorm(nn.Module):  # type: ignore[misc]
    """As code from before torch had its own: the weight is a plain tensor that the wrapper sets in each call."""

    def __init__(self, module: Any) -> None:
        super().__init__()
        self.module = module
        weight = module.weight
        del module._parameters["weight"]
        module.weight_u = nn.Parameter(torch.randn(len(weight)), requires_grad=False)
        module.weight_v = nn.Parameter(torch.randn(weight[0].numel()), requires_grad=False)
        module.weight_bar = nn.Parameter(weight.data)

    def forward(self, x: Any) -> Any:
        w, u, v = self.module.weight_bar, self.module.weight_u, self.module.weight_v
        self.module.weight = w / u.dot(w.reshape(len(w), -1).mv(v))
        return self.module(x)


def test_a_wrapper_with_names_of_its_own_is_a_spectral_norm() -> None:
    source = {"l.0.module.bias": (8,), "l.0.module.weight_u": (8,), "l.0.module.weight_v": (36,)}
    source |= {"l.0.module.weight_bar": (8, 4, 3, 3)}
    mapping = port(signature(source), wanted({"first.weight": (8, 4, 3, 3), "first.bias": (8,)}))
    assert pairing(mapping) == {
        "first.weight": "spectral_norm(l.0.module.weight_bar, l.0.module.weight_u, l.0.module.weight_v)",
        "first.bias": "l.0.module.bias",
    }


@pytest.mark.parametrize("transposed", [True, False])
def test_inputs_of_code_whose_layers_have_no_weight_yet_are_guessed(transposed: bool) -> None:
    """The wrapper makes the weight in its first call."""
    from ckptool.model_code.building import signature_of

    kind = nn.ConvTranspose2d if transposed else nn.Conv2d
    told = signature_of(nn.Sequential(SpectralNorm(kind(3, 8, 3)), nn.ReLU(), nn.Conv2d(8, 2, 1)))
    assert told.traced


class Modulated(nn.Module):  # type: ignore[misc]
    """A batch norm without weights, with factors and shifts for each place: in one layer, or in a layer each."""

    def __init__(self, channels: int, parts: tuple[str, ...]) -> None:
        super().__init__()
        self.bn = nn.BatchNorm2d(channels, affine=False)
        self.shared = nn.Conv2d(3, 5, 3, padding=1)
        self.parts = parts
        for name in parts:
            self.add_module(name, nn.Conv2d(5, channels * 2 // len(parts), 3, padding=1))

    def forward(self, x: Any, layout: Any) -> Any:
        hidden = self.shared(layout).relu()
        if len(self.parts) == 2:
            gamma, beta = (getattr(self, name)(hidden) for name in self.parts)
            return self.bn(x) * (1 + gamma) + beta
        scale, shift = getattr(self, self.parts[0])(hidden).chunk(2, 1)
        return self.bn(x) * (1 + scale) + shift


class Block(nn.Module):  # type: ignore[misc]
    """Two modulated norms of one size, each before its convolution."""

    def __init__(self, names: tuple[str, ...], parts: tuple[str, ...], *, norms_last: bool) -> None:
        super().__init__()
        layers = {names[0]: nn.Conv2d(4, 4, 3, padding=1), names[1]: nn.Conv2d(4, 4, 3, padding=1)}
        norms = {names[2]: Modulated(4, parts), names[3]: Modulated(4, parts)}
        for name in names if norms_last else (names[2], names[0], names[3], names[1]):
            self.add_module(name, {**layers, **norms}[name])
        self.names = names

    def forward(self, x: Any, layout: Any) -> Any:
        first, second, one, other = (getattr(self, name) for name in self.names)
        return second(other(first(one(x, layout)), layout))


INPUTS = (torch.zeros(2, 4, 6, 6), torch.zeros(2, 3, 6, 6))


def test_factors_and_shifts_of_one_norm_are_joined_and_not_those_of_two() -> None:
    """Both would have the sizes of the one layer in the model. The norms, which have statistics alone, follow."""
    from ckptool.model_code.building import signature_of
    from ckptool.porting.sources import match_signature

    source = Block(("conv_0", "conv_1", "norm_0", "norm_1"), ("mlp_gamma", "mlp_beta"), norms_last=True)
    target = Block(("conv1", "conv2", "norm1", "norm2"), ("modulation",), norms_last=False)
    mapping = match_signature(
        source.state_dict(),
        signature_of(target, inputs=INPUTS),
        source_code=signature_of(source, inputs=INPUTS),
    )
    for own, theirs in (("norm1", "norm_0"), ("norm2", "norm_1")):
        made = found(mapping, f"{own}.modulation.weight")
        assert str(made.expr) == f"cat(0, {theirs}.mlp_gamma.weight, {theirs}.mlp_beta.weight)"
        assert str(found(mapping, f"{own}.bn.running_mean").expr) == f"{theirs}.bn.running_mean"
        assert str(found(mapping, f"{own}.shared.weight").expr) == f"{theirs}.shared.weight"


def test_heads_that_are_alone_in_a_container_are_parts_of_one_head() -> None:
    source = {"trunk.weight": (9, 6), "length.0.weight": (7, 9), "length.0.bias": (7,)}
    for n in range(1, 4):
        source |= {f"digit{n}.0.weight": (11, 9), f"digit{n}.0.bias": (11,)}
    shapes = {"body.weight": (9, 6), "digits.weight": (33, 9), "digits.bias": (33,)}
    mapping = port(signature(source), wanted(shapes | {"length.weight": (7, 9), "length.bias": (7,)}))
    assert pairing(mapping)["digits.weight"] == "cat(0, digit1.0.weight, digit2.0.weight, digit3.0.weight)"
    assert pairing(mapping)["length.bias"] == "length.0.bias"
    assert mapping.is_sure


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("old", [True, False])
@pytest.mark.parametrize("channels", [(8, 5), (6, 6)])
@pytest.mark.parametrize("kind", [nn.ConvTranspose2d, nn.Conv2d])
def test_the_spectral_norm_of_a_transposed_convolution_counts_its_outputs(old: bool, channels: Any, kind: Any) -> None:
    """These are its second dimension. With as many inputs as outputs, the kind of the layer in the model tells."""
    import ckptool

    normed = nn.utils.spectral_norm if old else nn.utils.parametrizations.spectral_norm
    source = nn.Sequential(normed(kind(*channels, 3)), nn.ReLU(), nn.Conv2d(channels[1], 2, 1))
    x = torch.randn(2, channels[0], 5, 5)
    source.train()(x)
    target = nn.Sequential(kind(*channels, 3), nn.ReLU(), nn.Conv2d(channels[1], 2, 1)).eval()
    ckptool.load_into(target, source.state_dict())
    with torch.no_grad():
        torch.testing.assert_close(target(x), source.eval()(x))


def test_a_spectral_norm_that_may_count_along_either_dimension_is_a_guess() -> None:
    source = {
        f"{name}.{leaf}": shape for name in "ab" for leaf, shape in (("weight_orig", (6, 6, 3, 3)), ("weight_u", (6,)))
    }
    source |= {f"{name}.weight_v": (54,) for name in "ab"}
    kinds = {"a.weight": "conv2d", "b.weight": "conv_transpose2d"}
    told = Signature("Net", {key: Entry(key, (6, 6, 3, 3), how=how) for key, how in kinds.items()})
    mapping = port(signature(source), told)
    assert {entry.status for entry in mapping.entries} == {"guessed"}
    assert "spectral_norm(permute(" in " ".join(map(str, found(mapping, "a.weight").rivals))


def test_the_outputs_of_a_transposed_convolution_take_the_norm_behind_it() -> None:
    """They are its second dimension: a norm behind it was left out without a word."""
    import ckptool

    for channels in ((6, 4), (5, 5)):
        norm = nn.BatchNorm2d(channels[1])
        for tensor in (norm.weight, norm.bias, norm.running_mean, norm.running_var):
            tensor.data = torch.rand_like(tensor) + 0.5
        source = nn.Sequential(nn.ConvTranspose2d(*channels, 3), norm, nn.ReLU(), nn.Conv2d(channels[1], 2, 1)).eval()
        target = nn.Sequential(nn.ConvTranspose2d(*channels, 3), nn.ReLU(), nn.Conv2d(channels[1], 2, 1)).eval()
        mapping = ckptool.load_into(target, source.state_dict(), accept_guesses=True)
        assert found(mapping, "0.weight").status == "guessed"
        x = torch.randn(2, channels[0], 5, 5)
        with torch.no_grad():
            torch.testing.assert_close(target(x), source(x))
