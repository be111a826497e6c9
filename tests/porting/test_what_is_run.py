"""Parts that only one of two codes runs, and source code that is followed on the inputs of the model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn

import ckptool


class Part(nn.Module):
    """Two layers, the second of which gives SIZE channels."""

    def __init__(self, size: int = 8) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(8, 16), nn.Linear(16, size)

    def forward(self, x: Any) -> Any:
        return self.fc2(self.fc1(x).relu())


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = Part(), Part(5)

    def forward(self, x: Any) -> Any:
        return self.decoder(self.encoder(x))


class Nested(nn.Module):
    """A net with its encoder inside, and another one outside, which only training needs."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.encoder = Net(), Part()
        self.inp, self.head = nn.Linear(3, 8), nn.Linear(5, 4)

    def forward(self, x: Any, latent: Any = None) -> Any:
        x = self.inp(x)
        if latent is not None:
            x = x + self.encoder(latent)
        return self.head(self.net(x))


class Flat(nn.Module):
    """The same, all in one module, where the one for training, or the one that always runs, has another name."""

    def __init__(self, *, swapped: bool) -> None:
        super().__init__()
        self.swapped = swapped
        self.vae_encoder, self.encoder, self.decoder = Part(), Part(), Part(5)
        self.inp, self.head = nn.Linear(3, 8), nn.Linear(5, 4)

    def forward(self, x: Any, latent: Any = None) -> Any:
        always, sometimes = (self.encoder, self.vae_encoder)[:: -1 if self.swapped else 1]
        x = self.inp(x)
        if latent is not None:
            x = x + sometimes(latent)
        return self.head(self.decoder(always(x)))


@pytest.mark.parametrize("swapped", [False, True])
def test_a_part_that_the_model_runs_is_not_filled_with_one_that_the_code_of_the_source_does_not_run(
    swapped: bool,
) -> None:
    source = Nested()
    mapping = ckptool.transfer(source.state_dict(), Flat(swapped=swapped), source_model=source, inputs=["float32[2,3]"])
    names = ("net.encoder", "encoder") if swapped else ("encoder", "net.encoder")
    for own, theirs in zip(("vae_encoder", "encoder"), names, strict=True):
        for leaf in ("fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"):
            assert str(mapping[f"{own}.{leaf}"].expr) == f"{theirs}.{leaf}"
            assert mapping[f"{own}.{leaf}"].status == "mapped"


class Cameras(nn.Module):
    """Takes the pictures of several cameras; code that is PICKY says of no other number of them why it fails."""

    def __init__(self, picky: bool, names: tuple[str, str]) -> None:
        super().__init__()
        self.picky, self.names = picky, names
        for name in names:
            setattr(self, name, nn.Conv2d(3, 3, 1))

    def forward(self, images: Any) -> Any:
        if self.picky and len(images) != images.shape[1]:
            raise RuntimeError
        first, second = (getattr(self, name) for name in self.names[::-1])
        return sum(second(first(one)) for one in images.unbind(1))


def test_code_of_the_source_for_which_no_input_is_found_is_followed_on_that_of_the_model() -> None:
    source, own = Cameras(True, ("soon", "late")), Cameras(False, ("b", "a"))
    mapping = ckptool.transfer(source.state_dict(), own, source_model=source)
    assert str(mapping["a.weight"].expr) == "late.weight"


class OneOfTwo(nn.Module):
    """Runs the second of two parts with these NAMES."""

    def __init__(self, make: Callable[[], nn.Module], names: tuple[str, str]) -> None:
        super().__init__()
        self.stem, self.head, self.names = nn.Linear(3, 8), nn.Linear(8, 5), names
        for name in names:
            setattr(self, name, make())

    def forward(self, x: Any) -> Any:
        return self.head(getattr(self, self.names[1])(self.stem(x)))


def linear() -> nn.Module:
    return nn.Linear(8, 8)


@pytest.mark.parametrize("make", [linear, Part])
@pytest.mark.parametrize(
    ("theirs", "ours", "certain"),
    [
        (("slow", "fast"), ("slow_net", "fast_net"), True),
        (("slow", "fast"), ("fast_net", "slow_net"), False),
        (("proj_a", "proj_b"), ("proj_a2", "proj_b2"), True),
        (("proj_a", "proj_b"), ("proj_b2", "proj_a2"), False),
        (("one", "two"), ("left", "right"), True),
    ],
)
def test_where_names_contradict_what_the_two_codes_run_there_is_a_question(
    make: Callable[[], nn.Module], theirs: tuple[str, str], ours: tuple[str, str], certain: bool
) -> None:
    source = OneOfTwo(make, theirs)
    mapping = ckptool.transfer(source.state_dict(), OneOfTwo(make, ours), source_model=source, inputs=["float32[2,3]"])
    assert ({entry.status for entry in mapping.entries} == {"mapped"}) is certain
    for own, other in zip(ours, theirs, strict=True):
        entries = [entry for entry in mapping.entries if entry.target.startswith(own)]
        assert not certain or {str(entry.expr).split(".")[0] for entry in entries} == {other}
