"""Proofs of deep models: what one block shows is tried in all, and a search says what it is at and ends in time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn

import ckptool

F = nn.functional


class Block(nn.Module):
    def __init__(self, name: str, turned: bool) -> None:
        super().__init__()
        self.name, self.turned = name, turned
        self.norm = nn.LayerNorm(8)
        setattr(self, name, nn.Linear(8, 16))
        self.down = nn.Linear(8, 8)

    def forward(self, x: Any) -> Any:
        a, b = getattr(self, self.name)(self.norm(x)).chunk(2, -1)
        if self.turned:
            a, b = b, a
        return x + self.down(
            F.softplus(a) * b.tanh()
        )  # both go through an activation: neither shows that it is the gate


class Deep(nn.Module):
    """A list of blocks; in some of them the halves of a layer change places."""

    def __init__(self, name: str, blocks: int, turned: Any) -> None:
        super().__init__()
        self.stem = nn.Linear(4, 8)
        self.blocks = nn.ModuleList(Block(name, turned(n)) for n in range(blocks))

    def forward(self, x: Any) -> Any:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return x


def pair(blocks: int, turned: Any) -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    source, own = Deep("both", blocks, lambda n: False), Deep("wide", blocks, turned)
    for p in source.parameters():
        nn.init.normal_(p, std=0.4)
    return source, own


def test_what_holds_in_one_block_is_tried_in_all_at_once() -> None:
    source, own = pair(24, lambda n: True)
    mapping = ckptool.transfer(source.state_dict(), own, inputs=["float32[2,4]"], source_model=source, prove=True)
    assert mapping.proof is not None
    assert mapping.proof["equal"], mapping.proof
    assert mapping.proof["runs"] < 24
    assert str(mapping["blocks.23.wide.bias"].expr).startswith("cat(0, slice(blocks.23.both.bias, 0, 8, 16)")


def test_what_does_not_hold_in_all_blocks_is_tried_in_each() -> None:
    source, own = pair(5, lambda n: n % 2)
    mapping = ckptool.transfer(source.state_dict(), own, inputs=["float32[2,4]"], source_model=source, prove=True)
    assert mapping.proof is not None
    assert mapping.proof["equal"], mapping.proof
    assert [mapping[f"blocks.{n}.wide.bias"].expr.is_copy for n in range(5)] == [True, False, True, False, True]


def test_a_search_that_has_had_its_time_says_so() -> None:
    source, own = pair(3, lambda n: True)
    mapping = ckptool.transfer(
        source.state_dict(), own, inputs=["float32[2,4]"], source_model=source, prove=True, patience=0
    )
    assert mapping.proof is not None
    assert not mapping.proof["equal"]
    assert mapping.proof["stopped"] == "time"
    assert mapping.proof["text"].endswith("the search had its 0 s (--patience gives it more)")


def test_a_proof_without_time_left_tries_no_settings_either() -> None:
    source, own = (torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.LayerNorm(4, eps=eps)) for eps in (1e-5, 1e-2))
    told: list[str] = []
    mapping = ckptool.transfer(
        source.state_dict(),
        own,
        inputs=["float32[2,4]"],
        source_model=source,
        prove=True,
        patience=0,
        progress=told.append,
    )
    assert mapping.proof is not None
    assert (mapping.proof["equal"], mapping.proof["stopped"]) == (False, "time")
    assert not any(line.startswith("trying") for line in told)


def test_a_proof_tells_what_it_is_at() -> None:
    source, own = pair(3, lambda n: True)
    told: list[str] = []
    ckptool.transfer(
        source.state_dict(), own, inputs=["float32[2,4]"], source_model=source, prove=True, progress=told.append
    )
    assert told[0] == "loading the file into the code that it came from"
    assert any(line.endswith("of 10 uses of weights agree, looking for what makes more agree") for line in told)
    assert any("in vain: " in line for line in told)
    assert told[-1] == "looking which keys outputs depend on"


class _Branches(nn.Module):
    """Parallel convolutions of equal sizes with other dilations, concatenated, the nearest first; with SEPARABLE, each
    is a depthwise one with a pointwise one and a norm behind it.
    """

    def __init__(self, names: Sequence[str], registered: Sequence[int], *, separable: bool = False) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, 2, 1)
        self.names = names
        for at in registered:
            reach = {"padding": 6 * at + 6, "dilation": 6 * at + 6}
            if separable:
                parts = nn.Conv2d(8, 8, 3, groups=8, **reach), nn.Conv2d(8, 4, 1), nn.BatchNorm2d(4)
                self.add_module(names[at], nn.Sequential(*parts))
            else:
                self.add_module(names[at], nn.Conv2d(8, 4, 3, **reach))
        self.last = nn.Conv2d(12, 5, 1)

    def forward(self, x: Any) -> Any:
        x = self.first(x)
        return self.last(torch.cat([getattr(self, name)(x).relu() for name in self.names], 1))


@pytest.mark.parametrize(("size", "status"), [(8, "guessed"), (64, "mapped")])
def test_branches_with_other_dilations_stay_a_guess_if_the_inputs_are_too_small(size: int, status: str) -> None:
    torch.manual_seed(0)
    source = _Branches(["a", "b", "c"], [0, 1, 2]).eval()
    model = _Branches(["near", "middle", "wide"], [2, 1, 0]).eval()
    found = ckptool.transfer(
        source.state_dict(), model, source_model=source, prove=True, inputs=[torch.randn(1, 3, size, size)]
    )
    assert found.proof is not None
    assert found.proof["equal"]
    assert ("larger inputs" in found.proof["text"]) == (status == "guessed")
    assert {found[f"{name}.weight"].status for name in (*model.names, "last")} == {status}


def test_whole_branches_stay_a_guess_up_to_the_layer_that_takes_all_of_them() -> None:
    torch.manual_seed(0)
    source = _Branches(["a", "b", "c"], [0, 1, 2], separable=True).eval()
    model = _Branches(["near", "middle", "wide"], [2, 1, 0], separable=True).eval()
    for part in source.modules():
        if isinstance(part, nn.BatchNorm2d):
            nn.init.normal_(part.running_mean)
    inputs = [torch.randn(1, 3, 8, 8)]
    found = ckptool.transfer(source.state_dict(), model, source_model=source, prove=True, inputs=inputs)
    assert found.proof is not None
    assert found.proof["equal"]
    ends = [f"{name}.{leaf}" for name in model.names for leaf in ("0.weight", "1.weight", "2.running_mean")]
    assert {found[key].status for key in (*ends, "last.weight")} == {"guessed"}
