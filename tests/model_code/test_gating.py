"""Gates that the forward pass of a model shows: what goes through an activation before it is multiplied in."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn
from torch.nn import functional as F

import ckptool
from ckptool.model_code.building import signature_of
from ckptool.porting.questions import Reason
from ckptool.porting.sources import match_signature


class Apart(nn.Module):
    """A gated block of three layers; the layer that is registered GATE-th is the gate."""

    def __init__(self, names: tuple[str, str, str], gate: int, *, both: bool = False) -> None:
        super().__init__()
        self.names, self.gate, self.both = names, gate, both
        for name, (inputs, outputs) in zip(names, ((8, 24), (8, 24), (24, 8)), strict=True):
            self.add_module(name, nn.Linear(inputs, outputs, bias=False))

    def forward(self, x: Any) -> Any:
        one, other, down = (self.get_submodule(name) for name in self.names)
        gate, up = (one, other) if self.gate == 0 else (other, one)
        return down(F.silu(gate(x)) * (up(x).tanh() if self.both else up(x)))


class Joined(nn.Module):
    """The same with one layer for two things, of which the GATE-th half of the outputs is the gate."""

    def __init__(self, gate: int, *, sliced: bool = False, name: str = "inner") -> None:
        super().__init__()
        self.gate, self.sliced, self.name = gate, sliced, name
        self.add_module(name, nn.Linear(8, 48, bias=False))
        self.down = nn.Linear(24, 8, bias=False)

    def forward(self, x: Any) -> Any:
        both = self.get_submodule(self.name)(x)
        halves = (both[..., :24], both[..., 24:]) if self.sliced else both.chunk(2, -1)
        return self.down(F.gelu(halves[self.gate]) * halves[1 - self.gate])


class Net(nn.Module):
    def __init__(self, block: Any) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.block = block
        self.last = nn.Linear(8, 5)

    def forward(self, x: Any) -> Any:
        return self.last(self.block(self.first(x)))


NAMED = ("gate_proj", "up_proj", "down_proj")


def entries(source: nn.Module, model: nn.Module, *, trace: bool = True) -> dict[str, Any]:
    tensors = dict(Net(source).state_dict())
    wanted = signature_of(Net(model), inputs=(torch.zeros(2, 3, 8),), trace=trace)
    mapping = match_signature(tensors, wanted)
    return {entry.target.removeprefix("block."): entry for entry in mapping.entries}


@pytest.mark.parametrize("names", [("fc1", "fc2", "fc3"), ("one", "other", "back")])
@pytest.mark.parametrize("gate", [0, 1])
def test_what_goes_through_the_activation_is_the_gate_whatever_it_is_called(
    names: tuple[str, str, str], gate: int
) -> None:
    made = entries(Apart(NAMED, 0), Apart(names, gate))
    assert str(made[f"{names[gate]}.weight"].expr) == "block.gate_proj.weight"
    assert str(made[f"{names[1 - gate]}.weight"].expr) == "block.up_proj.weight"
    assert {entry.status for entry in made.values()} == {"mapped"}


def test_two_layers_that_both_go_through_an_activation_tell_no_gate() -> None:
    made = entries(Apart(NAMED, 0), Apart(("one", "other", "back"), 0, both=True))
    assert made["one.weight"].status == made["other.weight"].status == "guessed"


def test_which_of_two_layers_without_a_meaning_is_the_gate_is_a_guess_though_the_model_shows_its_own() -> None:
    made = entries(Apart(("w_a", "w_b", "w_c"), 0), Apart(NAMED, 0))
    assert made["gate_proj.weight"].status == made["up_proj.weight"].status == "guessed"


@pytest.mark.parametrize("gate", [0, 1])
@pytest.mark.parametrize("target", [NAMED, ("one", "other", "back")])
@pytest.mark.parametrize(
    "names",
    [("fc_1", "fc_2", "proj"), ("dense_in", "dense_out", "last"), ("expand", "act", "out"), ("lin1", "lin2", "o")],
)
def test_words_of_a_plain_block_tell_no_gate_of_a_gated_one(
    names: tuple[str, str, str], target: tuple[str, str, str], gate: int
) -> None:
    """`fc_1` and `fc_2` are up and down elsewhere; two layers of one size beside a third are neither."""
    made = entries(Apart(names, 0), Apart(target, gate))
    assert made[f"{target[0]}.weight"].status == made[f"{target[1]}.weight"].status == "guessed"


def test_one_layer_that_is_called_as_what_a_gate_is_multiplied_with_tells_the_other() -> None:
    made = entries(Apart(("act", "up", "out"), 0), Apart(("one", "other", "back"), 1))
    assert str(made["one.weight"].expr) == "block.up.weight"
    assert made["one.weight"].status == made["other.weight"].status == "mapped"


@pytest.mark.parametrize("sliced", [False, True])
@pytest.mark.parametrize("name", ["inner", "w13", "gate_up_proj"])
@pytest.mark.parametrize("gate", [0, 1])
def test_the_half_that_goes_through_the_activation_is_that_of_the_gate(gate: int, name: str, sliced: bool) -> None:
    made = entries(Apart(NAMED, 0), Joined(gate, sliced=sliced, name=name))
    parts = ["block.gate_proj.weight", "block.up_proj.weight"]
    assert str(made[f"{name}.weight"].expr) == f"cat(0, {parts[gate]}, {parts[1 - gate]})"
    assert made[f"{name}.weight"].status == "mapped"


def test_which_half_is_the_gate_is_a_guess_where_the_model_was_not_followed() -> None:
    assert entries(Apart(NAMED, 0), Joined(0), trace=False)["inner.weight"].status == "guessed"


def test_which_half_of_a_source_is_the_gate_is_a_guess_though_the_model_shows_its_own() -> None:
    made = entries(Joined(0), Apart(NAMED, 0))
    assert made["gate_proj.weight"].status == made["up_proj.weight"].status == "guessed"


class Waves(Joined):
    """The gate goes through a sigmoid, and what it is multiplied with through a tanh."""

    def forward(self, x: Any) -> Any:
        halves = self.get_submodule(self.name)(x).chunk(2, -1)
        return self.down(halves[self.gate].sigmoid() * halves[1 - self.gate].tanh())


class Fixed(nn.Module):
    """A block whose halves torch takes apart, in the one order that it has."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.add_module(name, nn.Linear(8, 48, bias=False))
        self.down = nn.Linear(24, 8, bias=False)

    def forward(self, x: Any) -> Any:
        return self.down(F.glu(self.get_submodule(self.name)(x), -1))


@pytest.mark.parametrize("gate", [0, 1])
def test_halves_that_are_sliced_are_asked_about_as_those_that_are_cut(gate: int) -> None:
    of_both = [
        entries(Joined(gate, name="mixed"), Joined(gate, sliced=sliced))["inner.weight"] for sliced in (False, True)
    ]
    assert of_both[0] == of_both[1]
    assert of_both[0].doubts == (Reason.GATE_HALF.says,)


@pytest.mark.parametrize("gate", [0, 1])
def test_the_half_of_a_sigmoid_is_asked_about_though_the_other_goes_through_an_activation_as_well(gate: int) -> None:
    made = entries(Waves(gate, name="mixed"), Waves(1))["inner.weight"]
    assert made.doubts == (Reason.GATE_HALF.says,)
    assert len(made.rivals) == 1


def test_halves_that_one_function_of_torch_takes_in_the_model_may_be_the_other_way_round_in_the_source() -> None:
    made = entries(Fixed("mixed"), Fixed("inner"))["inner.weight"]
    assert made.doubts == (Reason.GATE_HALF.says,)
    assert str(made.expr) == "block.mixed.weight"


class Points(nn.Module):
    """The convolution module of a conformer: one function of torch, or a tanh and a sigmoid."""

    def __init__(self, name: str, *, glu: bool) -> None:
        super().__init__()
        self.name, self.glu = name, glu
        self.add_module(name, nn.Conv1d(8, 48, 1))
        self.down = nn.Conv1d(24, 8, 1)

    def forward(self, x: Any) -> Any:
        both = self.get_submodule(self.name)(x.mT)
        value, gate = both.chunk(2, 1)
        return self.down(F.glu(both, 1) if self.glu else value.tanh() * gate.sigmoid()).mT


def test_a_convolution_before_torchs_glu_keeps_its_halves_and_one_before_tanh_and_sigmoid_is_asked_about() -> None:
    assert entries(Points("mixed", glu=True), Points("inner", glu=True))["inner.weight"].status == "mapped"
    made = entries(Points("mixed", glu=False), Points("inner", glu=False))["inner.weight"]
    assert made.doubts == (Reason.GATE_HALF.says,)


class Dilated(nn.Module):
    """Layers of which each adds what a tanh and a sigmoid give: with a list for each kind, or in blocks."""

    def __init__(self, *, blocks: bool, gate: int = 1, names: tuple[str, str] = ("filters", "gates")) -> None:
        super().__init__()
        self.blocks, self.gate, self.names, depth = blocks, gate, names, 3
        if blocks:
            self.layers = nn.ModuleList(nn.ModuleDict({"both": nn.Conv1d(4, 12, 2)}) for _ in range(depth))
        else:
            for name in names:
                self.add_module(name, nn.ModuleList(nn.Conv1d(4, 6, 2) for _ in range(depth)))
        self.skips = nn.ModuleList(nn.Conv1d(6, 5, 1) for _ in range(depth))
        self.backs = nn.ModuleList(nn.Conv1d(6, 4, 1) for _ in range(depth))

    def forward(self, x: Any) -> Any:
        total: Any = 0
        for n, (skip, back) in enumerate(zip(self.skips, self.backs, strict=True)):
            padded = F.pad(x, (1, 0))
            if self.blocks:
                halves = self.layers[n]["both"](padded).chunk(2, 1)
                wave, gate = halves[1 - self.gate], halves[self.gate]
            else:
                wave, gate = (self.get_submodule(f"{name}.{n}")(padded) for name in ("filters", "gates"))
            mixed = torch.tanh(wave) * torch.sigmoid(gate)
            x, total = x + back(mixed), total + skip(mixed)
        return total


@pytest.mark.parametrize("names", [("filters", "gates"), ("gates", "filters")])
@pytest.mark.parametrize("gate", [0, 1])
def test_lists_beside_each_other_are_one_list_of_layers_in_which_the_sigmoid_takes_the_gate(
    gate: int, names: tuple[str, str]
) -> None:
    source, target = Dilated(blocks=False, names=names), Dilated(blocks=True, gate=gate)
    x = torch.randn(2, 4, 9)
    mapping = match_signature(dict(source.state_dict()), signature_of(target, inputs=(torch.zeros(2, 4, 9),)))
    assert {entry.status for entry in mapping.entries} == {"mapped"}
    assert mapping.unused == ()
    ckptool.load_into(target, source.state_dict(), mapping=mapping)
    torch.testing.assert_close(target(x), source(x))


@pytest.mark.parametrize("gate", [0, 1])
def test_blocks_are_taken_apart_into_the_lists_of_a_model(gate: int) -> None:
    source, target = Dilated(blocks=True), Dilated(blocks=False)
    mapping = match_signature(dict(source.state_dict()), signature_of(target, inputs=(torch.zeros(2, 4, 9),)))
    parts = {
        entry.target: str(entry.expr) for entry in mapping.entries if entry.target.startswith(("filters", "gates"))
    }
    assert parts["filters.1.weight"] == "slice(layers.1.both.weight, 0, 0, 6)"
    assert parts["gates.1.weight"] == "slice(layers.1.both.weight, 0, 6, 12)"
    guessed = {entry.target for entry in mapping.having("guessed")}
    assert guessed == set(parts), "which half is the gate is in the source's code only"


class Conditioned(nn.Module):
    """A gated block in which a condition is added to both parts, of layers of their own, or of one layer for both."""

    def __init__(self, *, joined: bool, first: str = "tanh") -> None:
        super().__init__()
        self.joined, self.first = joined, first
        for name, inputs in (("own", 8), ("cond", 4)):
            if joined:
                self.add_module(name, nn.Conv1d(inputs, 16, 1))
            else:
                self.add_module(f"{name}_a", nn.Conv1d(inputs, 8, 1))
                self.add_module(f"{name}_b", nn.Conv1d(inputs, 8, 1))
        self.back = nn.Conv1d(8, 8, 1)

    def forward(self, x: Any, y: Any) -> Any:
        if self.joined:
            (a, b), (c, d) = self.own(x).split(8, dim=1), self.cond(y).chunk(2, 1)
        else:
            a, b, c, d = self.own_a(x), self.own_b(x), self.cond_a(y), self.cond_b(y)
        a, b = a + c, b + d
        return self.back(a.tanh() * b.sigmoid() if self.first == "tanh" else a.sigmoid() * b.tanh())


@pytest.mark.parametrize("theirs", ["tanh", "sigmoid"])
@pytest.mark.parametrize("ours", ["tanh", "sigmoid"])
def test_a_gate_is_found_behind_the_sum_with_a_condition(ours: str, theirs: str) -> None:
    source, model = Conditioned(joined=True, first=theirs), Conditioned(joined=False, first=ours)
    given = ["float32[2,8,5]", "float32[2,4,5]"]
    mapping = ckptool.transfer(source.state_dict(), model, source_model=source, inputs=given, prove=False)
    assert not mapping.having("guessed") + mapping.having("unmapped")
    ckptool.load_into(model, source.state_dict(), mapping=mapping)
    inputs = torch.rand(2, 8, 5), torch.rand(2, 4, 5)
    torch.testing.assert_close(model(*inputs), source(*inputs))


class FarBlock(nn.Module):
    """A value that goes through further layers before its gate multiplies it, in one layer with the gate or two."""

    def __init__(self, *, joined: bool, gate: int = 1) -> None:
        super().__init__()
        self.joined, self.gate = joined, gate
        if joined:
            self.into = nn.Linear(8, 24)
        else:
            self.one, self.two = nn.Linear(8, 12), nn.Linear(8, 12)
        self.conv, self.step = nn.Conv1d(12, 12, 3, padding=1, groups=12), nn.Linear(12, 12)
        self.out = nn.Linear(12, 8)

    def forward(self, x: Any) -> Any:
        halves = self.into(x).chunk(2, -1) if self.joined else (self.one(x), self.two(x))
        value, gate = halves[1 - self.gate], halves[self.gate]
        value = F.silu(self.conv(value.transpose(1, 2)).transpose(1, 2))
        value = value * torch.sigmoid(self.step(value)) + value
        return self.out(value * F.silu(gate))


class FarModel(nn.Module):
    def __init__(self, **how: Any) -> None:
        super().__init__()
        self.first, self.block, self.last = nn.Linear(8, 8), FarBlock(**how), nn.Linear(8, 5)

    def forward(self, x: Any) -> Any:
        return self.last(self.block(self.first(x)))


@pytest.mark.parametrize("theirs", [0, 1])
@pytest.mark.parametrize("ours", [0, 1])
@pytest.mark.parametrize("joined", [(True, False), (False, True), (True, True)])
def test_a_gate_is_found_behind_the_further_layers_of_its_value(
    joined: tuple[bool, bool], ours: int, theirs: int
) -> None:
    source, model = (FarModel(joined=j, gate=g) for j, g in zip(joined, (theirs, ours), strict=True))
    mapping = ckptool.transfer(source.state_dict(), model, source_model=source, inputs=["float32[2,6,8]"], prove=False)
    assert not mapping.having("guessed") + mapping.having("unmapped")
    ckptool.load_into(model, source.state_dict(), mapping=mapping)
    x = torch.rand(2, 6, 8)
    torch.testing.assert_close(model(x), source(x))


@pytest.mark.parametrize("gate", [0, 1])
def test_the_value_is_first_if_it_goes_through_further_layers_and_no_code_says_more(gate: int) -> None:
    source, model = FarModel(joined=True).state_dict(), FarModel(joined=True, gate=gate)
    renamed = {key.replace("into", "in_proj"): value for key, value in source.items()}
    mapping = ckptool.transfer(renamed, model, inputs=["float32[2,6,8]"])
    (entry,) = [entry for entry in mapping.entries if entry.target == "block.into.weight"]
    assert [question.reason for question in entry.questions] == ([Reason.GATE_HALF] if gate == 0 else [])
    assert entry.expr is not None
    assert entry.expr.is_copy == (gate == 1)


class Cell(nn.Module):
    """A recurrent cell of convolutions, with two of its gates in one layer or apart."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        if how == "joined":
            self.conv_zr = nn.Conv2d(5, 6, 1)
        else:
            self.reset_gate, self.update_gate = nn.Conv2d(5, 3, 1), nn.Conv2d(5, 3, 1)
        self.out_gate = nn.Conv2d(5, 3, 1)

    def forward(self, x: Any, h: Any) -> Any:
        both = torch.cat([x, h], 1)
        if self.how == "joined":
            z, r = self.conv_zr(both).sigmoid().chunk(2, 1)
        else:
            z, r = self.update_gate(both).sigmoid(), self.reset_gate(both).sigmoid()
        n = self.out_gate(torch.cat([x, h * r], 1)).tanh()
        return torch.lerp(h, n, z) if self.how == "joined" else h * (1 - z) + n * z


class Film(nn.Module):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.cell, self.head = Cell(how), nn.Linear(3, 4)

    def forward(self, frames: Any) -> Any:
        h = frames.new_zeros(len(frames), 3, 4, 4)
        for x in frames.unbind(1):
            h = self.cell(x, h)
        return self.head(h.mean((2, 3)))


@pytest.mark.parametrize("how", [("joined", "apart"), ("apart", "joined")])
def test_a_recurrent_cell_tells_its_update_gate_from_its_reset_gate(how: tuple[str, str]) -> None:
    source, model = map(Film, how)
    mapping = ckptool.transfer(
        source.state_dict(), model, source_model=source, inputs=["float32[2,3,2,4,4]"], prove=False
    )
    assert not mapping.having("guessed") + mapping.having("unmapped")
    ckptool.load_into(model, source.state_dict(), mapping=mapping)
    frames = torch.rand(2, 3, 2, 4, 4)
    torch.testing.assert_close(model(frames), source(frames))


class Context(nn.Module):
    """A hidden state and an input of a recurrent cell, both from one layer: neither is the gate of the other."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.update, self.new = nn.Conv2d(3, 8, 1), nn.Conv2d(8, 4, 1), nn.Conv2d(8, 4, 1)

    def forward(self, x: Any) -> Any:
        h, given = self.conv(x).chunk(2, 1)
        h, given = h.tanh(), given.relu()
        z, n = (layer(torch.cat([h, given], 1)) for layer in (self.update, self.new))
        return (1 - z.sigmoid()) * h + z.sigmoid() * n.tanh()


def test_a_hidden_state_is_no_gate_of_the_input() -> None:
    found = signature_of(Context(), inputs=(torch.zeros(2, 3, 4, 4),))
    assert found.entries["conv.weight"].facts.gate is None
