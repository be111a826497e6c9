"""Proofs of models with inputs or outputs of one size, which could change places."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn

import ckptool


class Moments(nn.Module):
    """One layer gives mean and variance, in this order or the other; the outputs are mean and variance."""

    def __init__(self, *, variance_first: bool) -> None:
        super().__init__()
        self.stem, self.stats, self.variance_first = nn.Linear(3, 5), nn.Linear(5, 8), variance_first

    def forward(self, x: Any) -> Any:
        one, other = self.stats(self.stem(x).relu()).chunk(2, -1)
        return (other, one) if self.variance_first else (one, other)


class Apart(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.mean, self.logvar = nn.Linear(3, 5), nn.Linear(5, 4), nn.Linear(5, 4)

    def forward(self, x: Any) -> Any:
        h = self.stem(x).relu()
        return self.mean(h), self.logvar(h)


class Turned(Apart):
    """The same model, which returns the variance first."""

    def forward(self, x: Any) -> Any:
        mean, logvar = super().forward(x)
        return logvar, mean


def random(model: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    for p in model.parameters():
        nn.init.normal_(p, std=0.5)
    return model.eval()


def transferred(source: nn.Module, model: nn.Module, *inputs: str) -> Any:
    return ckptool.transfer(source.state_dict(), model, source_model=source, prove=True, inputs=list(inputs) or None)


@pytest.mark.parametrize("variance_first", [False, True])
def test_each_of_two_outputs_of_one_size_has_to_be_equal_in_its_place(variance_first: bool) -> None:
    source, model = random(Moments(variance_first=variance_first)), Apart().eval()
    mapping = transferred(source, model, "float32[2,3]")
    assert str(mapping["mean.weight"].expr) == f"slice(stats.weight, 0, {'4, 8' if variance_first else '0, 4'})"
    assert mapping.proof["equal"]
    assert not mapping.having("guessed")


def test_a_model_that_returns_its_outputs_in_another_order_is_proved_with_this_doubt() -> None:
    source, model = random(Apart()), Turned().eval()
    mapping = transferred(source, model, "float32[2,3]")
    assert mapping.proof["equal"]
    assert "changed places" in mapping.proof["text"]
    assert "check in both codes which output comes first" in mapping["mean.weight"].doubts[-1]
    assert {entry.target for entry in mapping.having("guessed")} == {
        f"{layer}.{leaf}" for layer in ("mean", "logvar") for leaf in ("weight", "bias")
    }


class Heads(nn.Module):
    """A stem and heads NAMES, of which the first has another size; the outputs are those of RETURNED."""

    def __init__(self, names: str, returned: str) -> None:
        super().__init__()
        self.stem, self.returned = nn.Linear(3, 6), returned
        for at, name in enumerate(names):
            self.add_module(name, nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 2 if at else 5)))

    def forward(self, x: Any) -> Any:
        h = self.stem(x).relu()
        return [getattr(self, name)(h) for name in self.returned]


def test_the_places_of_outputs_answer_which_of_two_heads_is_which() -> None:
    source, model = random(Heads("prs", "psr")), Heads("abc", "abc").eval()
    doubtful = ckptool.transfer(source.state_dict(), model, source_model=source, inputs=["float32[2,3]"], prove=False)
    assert {"b.0.weight", "c.0.weight"} <= {entry.target for entry in doubtful.having("guessed")}
    mapping = transferred(source, model, "float32[2,3]")
    assert mapping.proof["equal"]
    assert not mapping.having("guessed")
    assert [str(mapping[f"{name}.2.weight"].expr) for name in "abc"] == ["p.2.weight", "s.2.weight", "r.2.weight"]


class Sum(nn.Module):
    """A critic with a layer for the state and one for the action."""

    def __init__(self) -> None:
        super().__init__()
        self.obs_fc, self.act_fc, self.out = nn.Linear(4, 6), nn.Linear(4, 6, bias=False), nn.Linear(6, 2)

    def forward(self, state: Any, action: Any) -> Any:
        return self.out((self.obs_fc(state) + self.act_fc(action)).relu())


class Joined(nn.Module):
    """The same critic with one layer for both, in which the action comes first."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 6), nn.Linear(6, 2)

    def forward(self, state: Any, action: Any) -> Any:
        return self.last(self.first(torch.cat([action, state], -1)).relu())


def test_inputs_of_one_size_stay_in_their_places_while_weights_are_searched_for() -> None:
    source, model = random(Sum()), Joined().eval()
    mapping = transferred(source, model)
    assert mapping.proof["equal"], mapping.proof
    assert mapping["first.weight"].sources == ["act_fc.weight", "obs_fc.weight"]
    assert not mapping.having("guessed")


class Swapped(Sum):
    """The same critic, which takes the action first."""

    def forward(self, a: Any, s: Any) -> Any:
        return super().forward(s, a)


def test_a_model_that_takes_its_inputs_in_another_order_is_proved_with_a_doubt() -> None:
    source, model = random(Sum()), Swapped().eval()
    mapping = transferred(source, model, "float32[2,4]", "float32[2,4]")
    assert mapping.proof["equal"], mapping.proof
    assert {"obs_fc.weight", "act_fc.weight"} <= {entry.target for entry in mapping.having("guessed")}
    assert mapping["out.weight"].status == "mapped"
    assert "changed places" in mapping.proof["text"]


class Named(Apart):
    """The same two heads, whose outputs have names, in any order."""

    def __init__(self, *, first: str) -> None:
        super().__init__()
        self.first = first

    def forward(self, x: Any) -> Any:
        mean, logvar = super().forward(x)
        both = {"mean": mean, "var": logvar}
        return {name: both[name] for name in sorted(both, key=lambda name: name != self.first)}


@pytest.mark.parametrize("first", ["mean", "var"])
def test_outputs_with_equal_names_are_equal_by_name(first: str) -> None:
    source, model = random(Named(first="mean")), Named(first=first).eval()
    mapping = transferred(source, model, "float32[2,3]")
    assert mapping.proof["equal"]
    assert not mapping.having("guessed")
    assert mapping["mean.weight"].sources == ["mean.weight"]


class Boxes(nn.Module):
    """Two heads that a search may exchange; NAMES are those of their outputs, in the order of the heads."""

    def __init__(self, heads: tuple[str, str], names: tuple[str, str]) -> None:
        super().__init__()
        self.stem, self.heads, self.names = nn.Linear(3, 5), heads, names
        for head in heads:
            self.add_module(head, nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2)))

    def forward(self, x: Any) -> Any:
        h = self.stem(x).relu()
        return {name: getattr(self, head)(h) for head, name in zip(self.heads, self.names, strict=True)}


@pytest.mark.parametrize("names", [("width_height", "regression_offset"), ("regression_offset", "width_height")])
def test_outputs_are_told_apart_by_names_that_stand_for_each_other(names: tuple[str, str]) -> None:
    source, model = random(Boxes(("wh", "reg"), ("wh", "reg"))), Boxes(("one", "two"), names).eval()
    mapping = transferred(source, model, "float32[2,3]")
    assert mapping.proof["equal"], mapping.proof
    assert not mapping.having("guessed")
    assert mapping["one.0.weight"].sources == ["wh.0.weight" if names[0] == "width_height" else "reg.0.weight"]


@pytest.mark.parametrize("names", [("size", "place"), ("wide_hood", "width_height")])
def test_outputs_whose_names_stand_for_none_or_for_several_are_proved_with_a_doubt(names: tuple[str, str]) -> None:
    source, model = random(Boxes(("wh", "reg"), ("wh", "reg"))), Boxes(("one", "two"), names).eval()
    mapping = ckptool.transfer(
        source.state_dict(), model, source_model=source, prove=True, inputs=["float32[2,3]"], hints=["wh=two"]
    )
    assert {"one.0.weight", "two.0.weight"} <= {entry.target for entry in mapping.having("guessed")}


class Ordered(Sum):
    """A sum over two inputs by the same names, in the other order, with layers of other names."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = self.obs_fc, self.act_fc
        del self.obs_fc, self.act_fc

    def forward(self, action: Any, state: Any) -> Any:
        return self.out((self.one(state) + self.two(action)).relu())


def test_inputs_with_equal_names_are_linked_by_name() -> None:
    source, model = random(Sum()), Ordered().eval()
    mapping = transferred(source, model, "float32[2,4]", "float32[2,4]")
    assert mapping.proof["equal"], mapping.proof
    assert mapping["one.weight"].sources == ["obs_fc.weight"]
    assert not mapping.having("guessed")


class More(Apart):
    """The same outputs behind the hidden layer, which only this code returns."""

    def forward(self, x: Any) -> Any:
        h = self.stem(x).relu()
        return h, self.mean(h), self.logvar(h)


def test_outputs_of_one_size_keep_their_order_beside_other_outputs() -> None:
    source, model = random(Moments(variance_first=True)), More().eval()
    mapping = transferred(source, model, "float32[2,3]")
    assert str(mapping["mean.weight"].expr) == "slice(stats.weight, 0, 4, 8)" or mapping.having("guessed")


class Ups(nn.Module):
    """Three equal blocks, which run from the first to the last or from the last to the first."""

    def __init__(self, row: str, inner: str, *, back: bool) -> None:
        super().__init__()
        self.row, self.inner, self.back = row, inner, back
        blocks = [nn.ModuleDict({f"{inner}1": nn.Linear(4, 4), f"{inner}2": nn.LayerNorm(4)}) for _ in range(3)]
        setattr(self, row, nn.ModuleList(blocks))

    def forward(self, x: Any) -> Any:
        blocks = list(getattr(self, self.row))
        for block in reversed(blocks) if self.back else blocks:
            x = block[f"{self.inner}2"](block[f"{self.inner}1"](x)).relu()
        return x


def test_a_hint_that_was_not_followed_leaves_a_doubt() -> None:
    source, model = Ups("ups", "conv", back=False), Ups("up", "fuse", back=True)
    mapping = ckptool.transfer(source.state_dict(), model, hints=["ups.0=up.2"], inputs=["float32[2,4]"])
    entry = mapping["up.2.fuse1.weight"]
    assert entry.sources == ["ups.0.conv1.weight"] or "the hint ups.0=up.2 was not followed" in str(entry.doubts)
    every = ckptool.transfer(
        source.state_dict(), model, hints=["ups.0=up.2", "ups.1=up.1", "ups.2=up.0"], inputs=["float32[2,4]"]
    )
    assert every["up.2.fuse1.weight"].sources == ["ups.0.conv1.weight"]
    assert not every.having("guessed")


def test_a_picture_that_only_one_code_turns_is_a_question() -> None:
    class Net(nn.Module):
        def __init__(self, name: str, turn: bool) -> None:
            super().__init__()
            self.name, self.turn = name, turn
            self.add_module(name, nn.Linear(25, 4))

        def forward(self, x: Any) -> Any:
            return getattr(self, self.name)((x.transpose(1, 2) if self.turn else x).flatten(1))

    torch.manual_seed(0)
    source = Net("a", turn=True)
    mapping = ckptool.transfer(
        source.state_dict(), Net("b", turn=False), source_model=source, inputs=["float32[2,5,5]"], prove=True
    )
    assert str(mapping["b.weight"].expr) != "a.weight" or mapping["b.weight"].status == "guessed"
