"""A factor on the last output is a question of the last weights where one was asked, and the outputs answer it."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn

import ckptool
from ckptool.porting.mapping import Mapping

F = nn.functional


class Equalised(nn.Module):
    """Layers whose outputs are multiplied by INNER, the last one by LAST; norms hide the other factors."""

    def __init__(self, last: float, inner: float = 0.125) -> None:
        super().__init__()
        self.inner = inner
        self.scaleLayers = nn.ModuleList([nn.ModuleDict({"module": nn.Linear(64, 64)}) for _ in range(4)])
        self.last = last

    def forward(self, x: Any) -> Any:
        for number, layer in enumerate(self.scaleLayers):
            x = layer["module"](x) * (self.last if number == 3 else self.inner)
            x = F.normalize(x, dim=-1) if number < 3 else x
        return x


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dense, self.wide, self.narrow, self.rgb = (nn.Linear(64, 64) for _ in range(4))

    def forward(self, x: Any) -> Any:
        for layer in (self.dense, self.wide, self.narrow):
            x = F.normalize(layer(x), dim=-1)
        return self.rgb(x)


def tried(last: float, inner: float = 0.125) -> Mapping:
    torch.manual_seed(3)
    source = Equalised(last, inner)
    for p in source.parameters():
        nn.init.normal_(p)
    return ckptool.transfer(source.state_dict(), Plain(), inputs=["float32[2,64]"], source_model=source, prove=True)


def test_a_factor_behind_the_last_layer_becomes_one_of_its_weights() -> None:
    mapping = tried(0.125)
    assert mapping.proof is not None
    assert mapping.proof["equal"], mapping.proof
    assert str(mapping["rgb.weight"].expr) == "scale(scaleLayers.3.module.weight, 0.125)"
    assert str(mapping["rgb.bias"].expr) == "scale(scaleLayers.3.module.bias, 0.125)"


def test_factors_that_norms_hide_are_taken_as_the_outputs_show_the_last() -> None:
    mapping = tried(0.125)
    for number, name in enumerate(("dense", "wide", "narrow")):
        assert str(mapping[f"{name}.weight"].expr) == f"scale(scaleLayers.{number}.module.weight, 0.125)"
        assert mapping[f"{name}.bias"].status == "mapped"


def test_layers_that_the_code_does_not_multiply_get_no_factor() -> None:
    mapping = tried(0.125, inner=0.7)
    assert mapping.proof is not None
    assert mapping.proof["equal"], mapping.proof
    assert str(mapping["wide.weight"].expr) == "scaleLayers.1.module.weight"


def test_a_factor_that_is_no_option_is_not_proved() -> None:
    mapping = tried(0.3)
    assert mapping.proof is not None
    assert not mapping.proof["equal"]


class Modulated(nn.Module):
    """A matrix whose columns the input scales and whose rows are then of one length, as StyleGAN2 has it. What it is
    applied to comes from two vectors that have each other's names in the other code.
    """

    def __init__(self, factor: float, *, turned: bool) -> None:
        super().__init__()
        self.factor, self.turned = factor, turned
        self.style, self.weight = nn.Linear(5, 6), nn.Parameter(torch.randn(7, 6))
        self.one, self.two, self.head = nn.Parameter(torch.randn(6)), nn.Parameter(torch.randn(6)), nn.Linear(7, 4)

    def forward(self, style: Any, x: Any) -> Any:
        weight = self.weight * self.factor if self.factor != 1 else self.weight
        weight = weight * self.style(style)[:, None]
        weight = weight * (weight.square().sum(2, keepdim=True) + 1e-12).rsqrt()
        first, second = (self.two, self.one) if self.turned else (self.one, self.two)
        x = (x * first).tanh() * second
        return self.head((weight @ x[..., None]).squeeze(2))


def test_a_factor_that_the_code_divides_away_is_not_taken_for_one_of_the_weight() -> None:
    torch.manual_seed(3)
    source, own = Modulated(1 / 12, turned=False), Modulated(1, turned=True)
    inputs = ["float32[2,5]", "float32[2,6]"]
    mapping = ckptool.transfer(source.state_dict(), own, inputs=inputs, source_model=source, prove=True)
    assert mapping.proof is not None
    assert mapping.proof["equal"], mapping.proof
    assert str(mapping["two"].expr) == "one"
    assert str(mapping["weight"].expr) == "weight"
    assert "they do not show a factor of 1 key (weight)" in mapping.proof["text"]


class OfInputs(nn.Module):
    """Two linear layers, a convolution and one more layer, whose inputs are multiplied in different ways."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.d, self.e = (nn.Linear(6, 6) for _ in range(4))
        self.c = nn.Conv1d(3, 3, 1)

    def forward(self, x: Any) -> Any:
        x = torch.tanh(self.a(F.dropout(x * 0.5, 0.1, self.training)))
        x = torch.tanh(self.c(0.25 * x * 0.5))
        x = x.mul_(3.0).add_(1.0)
        x = torch.tanh(self.b(x))
        return self.d(self.d(x) * 2.0) + self.e(x * 4.0)


class OfNothing(OfInputs):
    def forward(self, x: Any) -> Any:
        x = torch.tanh(self.c(torch.tanh(self.a(x))))
        x = torch.tanh(self.b(x.mul_(3.0).add_(1.0)))
        return self.d(self.d(x) * 2.0) + self.e(4.0 * x)


def test_a_factor_of_a_layers_input_in_the_sources_code_becomes_one_of_its_weight() -> None:
    source = OfInputs()
    mapping = ckptool.transfer(
        source.state_dict(), OfNothing(), inputs=["float32[2,3,6]"], source_model=source, prove=False
    )
    exprs = {entry.target: str(entry.expr) for entry in mapping.entries}
    assert exprs.pop("a.weight") == "scale(a.weight, 0.5)"
    assert exprs.pop("c.weight") == "scale(c.weight, 0.125)"
    assert all(key == expr for key, expr in exprs.items())
    assert mapping["a.weight"].status == "guessed"
    assert mapping["b.weight"].status == "mapped"


class Words(nn.Module):
    """Rows of a table, multiplied, and a last layer whose weight is the table itself, or one of its own."""

    def __init__(self, tied: bool) -> None:
        super().__init__()
        self.table, self.mid, self.out = nn.Embedding(9, 16), nn.Linear(16, 16), nn.Linear(16, 9, bias=False)
        if tied:
            self.out.weight = self.table.weight

    def forward(self, tokens: Any) -> Any:
        return self.out(torch.tanh(self.mid(self.table(tokens) * 4.0)))


def test_the_factor_of_a_table_is_none_of_the_last_layer_that_is_tied_to_it() -> None:
    source = Words(tied=True)
    apart = {key: value.clone() for key, value in source.state_dict().items()}  # a file that does not tell the tie
    mapping = ckptool.transfer(apart, Words(tied=False), source_model=source, prove=False)
    assert str(mapping["out.weight"].expr) == "out.weight"
    assert not mapping.having("guessed")


@pytest.mark.parametrize("all_layers", [False, True])
def test_a_factor_of_the_first_layer_alone_is_one_of_the_pictures(all_layers: bool) -> None:
    """As in super-resolution, where one code takes values from 0 to 1, and the other from 0 to 255."""

    class Net(nn.Module):
        def __init__(self, names: str, times: float) -> None:
            super().__init__()
            self.times, self.names = times, names.split()
            for name, (i, o) in zip(self.names, ((3, 6), (6, 7), (7, 5)), strict=True):
                self.add_module(name, nn.Conv2d(i, o, 3))

        def forward(self, x: Any) -> Any:
            x = x * self.times
            for name in self.names:
                x = getattr(self, name)(x)
                x = x * self.times if all_layers else x.relu()
            return x

    theirs, own = Net("head body tail", 1.0), Net("conv_first conv_mid conv_last", 255.0)
    mapping = ckptool.transfer(
        theirs.state_dict(), own, source_model=theirs, inputs=["float32[2,3,16,16]"], prove=False
    )
    first = mapping["conv_first.weight"]
    assert first.status == "guessed"
    assert str(first.expr).startswith("scale(head.weight" if all_layers else "head.weight")
    assert [str(rival).startswith("scale") for rival in first.rivals] == [not all_layers]


def test_a_proof_that_begins_behind_the_factor_of_an_input_leaves_the_question_about_it() -> None:
    class Net(nn.Module):
        def __init__(self, names: str, times: float) -> None:
            super().__init__()
            self.times, self.names = times, names.split()
            for name, (i, o) in zip(self.names, ((3, 6), (6, 7)), strict=True):
                self.add_module(name, nn.Conv2d(i, o, 3))

        def forward(self, x: Any) -> Any:
            first, second = (getattr(self, name) for name in self.names)
            return second(first(x * self.times).relu())

    theirs, own = Net("a b", 1 / 255), Net("c d", 1.0)
    mapping = ckptool.transfer(theirs.state_dict(), own, source_model=theirs)
    assert str(mapping["c.weight"].expr) == "a.weight"
    assert mapping["c.weight"].status == "guessed"


class Activated(nn.Module):
    """Two layers with an activation between them."""

    def __init__(self, names: str, activation: Any) -> None:
        super().__init__()
        self.names, self.activation = names.split(), activation
        for name in self.names:
            self.add_module(name, nn.Linear(8, 8))

    def forward(self, x: Any) -> Any:
        first, second = (getattr(self, name) for name in self.names)
        return second(self.activation(first(x)))


@pytest.mark.parametrize(("by_hand", "called"), [
    (lambda x: x * F.relu6(x + 3.0) / 6.0, F.hardswish),
    (lambda x: x * (1 + torch.erf(x / 2**0.5)) * 0.5, F.gelu),
])  # fmt: skip
def test_the_number_of_an_activation_is_no_factor_of_the_layer_behind_it(by_hand: Any, called: Any) -> None:
    torch.manual_seed(0)
    source, target = Activated("fc1 fc2", by_hand), Activated("lower upper", called)
    inputs = ["float32[2,8]"]
    mapping = ckptool.transfer(source.state_dict(), target, inputs=inputs, source_model=source, prove=False)
    assert str(mapping["upper.weight"].expr) == "fc2.weight"
    assert not mapping["upper.weight"].doubts
