"""Parts that only one of two codes runs, and source code that is followed on the inputs of the model."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
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


LEAVES = ("fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias")


@pytest.mark.parametrize("swapped", [False, True])
def test_a_part_that_only_the_model_runs_is_a_question_if_the_code_of_the_source_runs_a_look_alike(
    swapped: bool,
) -> None:
    source = Nested()
    mapping = ckptool.transfer(
        source.state_dict(), Flat(swapped=swapped), source_model=source, inputs=["float32[2,3]"], prove=False
    )
    others = {"vae_encoder": "encoder", "encoder": "net.encoder"}
    for own, leaf in product(others, LEAVES):
        entry = mapping[f"{own}.{leaf}"]
        assert entry.status == ("mapped" if swapped else "guessed")
        assert swapped or f"{others[own]}.{leaf}" in {str(entry.expr), *(str(option) for option in entry.rivals)}


def test_a_proof_shows_which_of_two_look_alikes_the_model_is_to_run() -> None:
    source = Nested()
    mapping = ckptool.transfer(
        source.state_dict(), Flat(swapped=False), source_model=source, inputs=["float32[2,3]"], prove=True
    )
    for leaf in LEAVES:
        assert str(mapping[f"encoder.{leaf}"].expr) == f"net.encoder.{leaf}"
        assert mapping[f"encoder.{leaf}"].status == "mapped"


class Two(nn.Module):
    """Two towers and two layers, each called NAMES, of which it runs one of each: the first, or else the SECOND."""

    def __init__(self, *names: str, second: bool) -> None:
        super().__init__()
        self.runs = names[second::2]
        for name, made in zip(names, (Part(), Part(), nn.Linear(8, 6), nn.Linear(8, 6)), strict=True):
            self.add_module(name, made)
        self.stem, self.head = nn.Linear(3, 8), nn.Linear(6, 5)

    def forward(self, x: Any) -> Any:
        x = self.stem(x)
        for name in self.runs:
            x = getattr(self, name)(x)
        return self.head(x)


@pytest.mark.parametrize(
    ("own", "theirs"),
    [
        ("netG_A netG_B", "G_A G_B"),
        ("online_encoder target_encoder", "online_net target_net"),
        ("backbone backbone_slow", "backbone slow"),
        ("front_view rear_view", "front rear"),
    ],
)
def test_parts_keep_the_weights_that_names_say_as_a_question_if_each_code_runs_another_one(
    own: str, theirs: str
) -> None:
    source, model = Two(*theirs.split(), "neck_a", "neck_b", second=True), Two(*own.split(), "a", "b", second=False)
    mapping = ckptool.transfer(source.state_dict(), model, source_model=source, inputs=["float32[2,3]"], prove=False)
    pairs = dict(zip((*own.split(), "a", "b"), (*theirs.split(), "neck_a", "neck_b"), strict=True))
    for key in model.state_dict():
        part, _, leaf = key.partition(".")
        assert str(mapping[key].expr) == f"{pairs.get(part, part)}.{leaf}"
        assert mapping[key].status == ("guessed" if part in pairs else "mapped")


def test_parts_with_equal_names_in_both_codes_are_no_question_if_each_code_runs_another_one() -> None:
    names = ("left", "right", "neck_a", "neck_b")
    source, model = Two(*names, second=True), Two(*names, second=False)
    mapping = ckptool.transfer(source.state_dict(), model, source_model=source, inputs=["float32[2,3]"], prove=False)
    assert all(entry.status == "mapped" and str(entry.expr) == entry.target for entry in mapping.entries)


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
    mapping = ckptool.transfer(source.state_dict(), own, source_model=source, prove=False)
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
    mapping = ckptool.transfer(
        source.state_dict(), OneOfTwo(make, ours), source_model=source, inputs=["float32[2,3]"], prove=False
    )
    assert ({entry.status for entry in mapping.entries} == {"mapped"}) is certain
    for own, other in zip(ours, theirs, strict=True):
        entries = [entry for entry in mapping.entries if entry.target.startswith(own)]
        assert not certain or {str(entry.expr).split(".")[0] for entry in entries} == {other}
