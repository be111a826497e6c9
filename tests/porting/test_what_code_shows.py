"""The source's code at hand, and nothing proved: what it shows answers questions, and nothing else does."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from sides import found, signature
from torch import nn
from torch.nn import functional as F

import ckptool
from ckptool.model_code.building import signature_for
from ckptool.model_code.trace import signature_of
from ckptool.porting import equal_blocks
from ckptool.porting.port import port
from ckptool.porting.reasons import Reason


def ported(theirs: nn.Module, own: nn.Module, spec: str, *, prefix: str = "", code: bool = True) -> Any:
    state = {prefix + key: value for key, value in theirs.state_dict().items()}
    return ckptool.transfer(state, own, inputs=[spec], source_model=theirs if code else None, prove=False)


def same_outputs(mapping: Any, theirs: nn.Module, own: nn.Module, x: Any, prefix: str = "") -> bool:
    made = mapping.apply({prefix + key: value for key, value in theirs.state_dict().items()}).state_dicts()[0]
    own.load_state_dict({key: torch.from_numpy(tensor.numpy().copy()) for key, tensor in made.tensors.items()})
    with torch.no_grad():
        return torch.allclose(theirs.eval()(x), own.eval()(x), atol=1e-5)


def answers(mapping: Any, key: str) -> list[tuple[Reason, str]]:
    return [(question.reason, question.answer) for question in found(mapping, key).questions]


class Product(nn.Module):
    """Multiplies the outputs of two square layers, which nothing else tells apart."""

    def __init__(self) -> None:
        super().__init__()
        sizes = {"enter": (6, 8), "first": (8, 8), "second": (8, 8), "leave": (8, 16)}
        for name, (width, rows) in sizes.items():
            setattr(self, name, nn.Linear(width, rows, bias=False))

    def forward(self, x: Any) -> Any:
        x = self.enter(x)
        return self.leave(self.first(x) * self.second(x))


def test_what_may_be_in_the_place_of_a_matrix_that_is_transposed_is_transposed_too() -> None:
    file = {"w_in": (6, 8), "alpha": (8, 8), "beta": (8, 8), "w_out": (8, 16)}
    source = {key: torch.zeros(shape) for key, shape in file.items()}
    mapping = ckptool.transfer(source, Product(), inputs=["float32[2,6]"])
    assert [str(rival) for rival in found(mapping, "first.weight").rivals] == ["transpose(beta)"]
    assert [str(rival) for rival in found(mapping, "second.weight").rivals] == ["transpose(alpha)"]


class Head(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(16, width) for _ in range(3))

    def forward(self, x: Any) -> Any:
        return (self.q(x) @ self.k(x).mT / 2).softmax(-1) @ self.v(x)


class Heads(nn.Module):
    """An attention with a module for each head; or with one layer, whose outputs code arranges in the way of ORDER."""

    def __init__(self, heads: int, order: str = "") -> None:
        super().__init__()
        self.count, self.width, self.order = heads, 16 // heads, order
        if order:
            self.qkv, self.proj = nn.Linear(16, 48), nn.Linear(16, 16)
        else:
            self.heads, self.out = nn.ModuleList(Head(16 // heads) for _ in range(heads)), nn.Linear(16, 16)

    def forward(self, x: Any) -> Any:
        if not self.order:
            return self.out(torch.cat([head(x) for head in self.heads], -1))
        n, m, _ = x.shape
        heads, width, y = self.count, self.width, self.qkv(x)
        if self.order == "parts heads width":
            q, k, v = y.reshape(n, m, 3, heads, width).permute(2, 0, 3, 1, 4)
        elif self.order == "heads parts width":
            q, k, v = y.reshape(n, m, heads, 3, width).permute(3, 0, 2, 1, 4)
        elif self.order == "heads, cut":
            q, k, v = y.reshape(n, m, heads, 3 * width).permute(0, 2, 1, 3).chunk(3, -1)
        elif self.order == "heads width parts":
            q, k, v = y.reshape(n, m, heads, width, 3).permute(4, 0, 2, 1, 3)
        elif self.order == "width heads parts":
            q, k, v = y.reshape(n, m, width, heads, 3).permute(4, 0, 3, 1, 2)
        else:
            q, k, v = (part.reshape(n, m, width, heads).permute(0, 3, 1, 2) for part in y.chunk(3, -1))
        return self.proj(((q @ k.mT / 2).softmax(-1) @ v).permute(0, 2, 1, 3).reshape(n, m, 16))


@pytest.mark.parametrize(
    "order",
    [
        "parts heads width",
        "heads parts width",
        "heads, cut",
        "heads width parts",
        "width heads parts",
        "parts, width heads",
    ],
)
def test_heads_with_a_module_each_are_joined_as_the_code_of_one_layer_arranges_them(order: str) -> None:
    theirs, own = Heads(2), Heads(2, order)
    for code in (False, True):
        mapping = ported(theirs, own, "float32[2,5,16]", code=code)
        assert {reason for reason, answer in answers(mapping, "qkv.weight") if not answer} <= {Reason.PARTS_TAKE_TURNS}
        assert same_outputs(mapping, theirs, own, torch.randn(2, 5, 16))
        assert (mapping.having("guessed") == []) == ("width heads" not in order)


# ------------------------------------------------------------------------------------------------------- pictures


class Flat(nn.Module):
    def __init__(self, names: tuple[str, str], last: bool) -> None:
        super().__init__()
        self.names, self.last = names, last
        self.add_module(names[0], nn.Conv2d(3, 5, 3, padding=1))
        self.add_module(names[1], nn.Linear(5 * 4 * 4, 7))

    def forward(self, x: Any) -> Any:
        x = F.relu(getattr(self, self.names[0])(x))
        x = x.permute(0, 2, 3, 1).reshape(len(x), -1) if self.last else x.flatten(1)
        return getattr(self, self.names[1])(x)


@pytest.mark.parametrize("last", [(False, True), (True, False), (True, True)])
@pytest.mark.parametrize("names", [("conv", "fc"), ("stem", "dense")])
def test_the_order_in_which_code_flattens_pictures_is_no_question(names: Any, last: tuple[bool, bool]) -> None:
    theirs, own = Flat(("conv", "fc"), last[0]), Flat(names, last[1])
    mapping = ported(theirs, own, "float32[2,3,4,4]")
    assert mapping.having("guessed") == []
    assert same_outputs(mapping, theirs, own, torch.randn(2, 3, 4, 4))


class Patched(nn.Module):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        if how == "conv":
            self.proj = nn.Conv2d(3, 16, 4, 4)
        else:
            self.embed = nn.Linear(48, 16)
        self.head = nn.Linear(16, 5)

    def forward(self, x: Any) -> Any:
        if self.how == "conv":
            return self.head(self.proj(x).flatten(2).mean(-1))
        if self.how == "unfold":
            rows = F.unfold(x, 4, stride=4).transpose(1, 2)
        else:
            n, c, h, w = x.shape
            cut = x.reshape(n, c, h // 4, 4, w // 4, 4)
            order = (0, 2, 4, 1, 3, 5) if self.how == "chw" else (0, 2, 4, 3, 5, 1)
            rows = cut.permute(*order).reshape(n, -1, 48)
        return self.head(self.embed(rows).mean(1))


@pytest.mark.parametrize("how", ["chw", "hwc", "unfold"])
def test_code_that_cuts_patches_shows_in_which_order_it_lists_their_pixels(how: str) -> None:
    theirs, own = Patched(how), Patched("conv")
    mapping = ported(theirs, own, "float32[2,3,8,12]")
    assert mapping.having("guessed") == []
    assert same_outputs(mapping, theirs, own, torch.randn(2, 3, 8, 12))


def test_the_model_itself_shows_in_which_order_it_lists_the_pixels_of_patches() -> None:
    theirs, own = Patched("conv"), Patched("hwc")
    mapping = ported(theirs, own, "float32[2,3,8,12]", code=False)
    assert mapping.having("guessed") == []
    assert same_outputs(mapping, theirs, own, torch.randn(2, 3, 8, 12))


def test_one_column_of_patches_shows_the_order_of_their_pixels() -> None:
    theirs, own = Patched("conv"), Patched("hwc")
    mapping = ported(theirs, own, "float32[2,3,8,4]", code=False)
    assert mapping.having("guessed") == []
    assert same_outputs(mapping, theirs, own, torch.randn(2, 3, 8, 4))


class Merged(nn.Module):
    """Lists features in an ORDER for a linear layer, or takes them with a convolution: patches of them, or all."""

    def __init__(self, order: str, patches: bool) -> None:
        super().__init__()
        self.order, self.step = order, 2 if patches else 4
        self.stem, self.head = nn.Conv2d(3, 8, 3, padding=1), nn.Linear(16, 5)
        size = self.step
        self.down = nn.Linear(8 * size**2, 16) if order else nn.Conv2d(8, 16, size, size if patches else 1)

    def forward(self, x: Any) -> Any:
        x = self.stem(x)
        if self.order:
            n, c, h, w = x.shape
            if self.step == 4:
                return self.head(self.down((x if self.order == "chw" else x.permute(0, 2, 3, 1)).flatten(1)))
            cut = x.reshape(n, c, h // 2, 2, w // 2, 2)
            cut = cut.permute(0, 2, 4, *((1, 3, 5) if self.order == "chw" else (3, 5, 1)))
            return self.head(self.down(cut.reshape(n, -1, 4 * c)).mean(1))
        return self.head(self.down(x).mean((2, 3)))


@pytest.mark.parametrize(("order", "code"), [("chw", False), ("chw", True), ("hwc", True)])
def test_a_linear_layer_over_all_features_is_a_convolution_in_the_order_of_its_code(order: str, code: bool) -> None:
    theirs, own = Merged(order, patches=False), Merged("", patches=False)
    mapping = ported(theirs, own, "float32[2,3,4,4]", code=code)
    assert mapping.having("guessed") == []
    assert same_outputs(mapping, theirs, own, torch.randn(2, 3, 4, 4))


@pytest.mark.parametrize("order", ["chw", "hwc"])
def test_in_which_order_a_linear_layer_lists_patches_of_features_is_asked(order: str) -> None:
    for code in (False, True):
        mapping = ported(Merged(order, patches=True), Merged("", patches=True), "float32[2,3,4,4]", code=code)
        assert answers(mapping, "down.weight") == [(Reason.PATCHES, "")]


class Frames(Patched):
    """Takes videos with their frames first, one picture after the other."""

    def forward(self, x: Any) -> Any:
        return super().forward(x.reshape(-1, *x.shape[2:]))


def test_frames_of_a_video_are_pictures() -> None:
    theirs, own = Frames("conv"), Frames("hwc")
    mapping = ported(theirs, own, "float32[2,5,3,8,12]", code=False)
    assert mapping.having("guessed") == []
    assert same_outputs(mapping, theirs, own, torch.randn(2, 5, 3, 8, 12))


class Tubes(nn.Module):
    """Takes videos, with a 3d convolution or with a linear layer over tubes that are listed in the order ORDER."""

    def __init__(self, order: str) -> None:
        super().__init__()
        self.order = order
        if order:
            self.embed = nn.Linear(96, 16)
        else:
            self.projection = nn.Conv3d(3, 16, (2, 4, 4), (2, 4, 4))
        self.head = nn.Linear(16, 5)

    def forward(self, x: Any) -> Any:
        if not self.order:
            return self.head(self.projection(x).flatten(2).mean(-1))
        n, c, t, h, w = x.shape
        cut = x.reshape(n, c, t // 2, 2, h // 4, 4, w // 4, 4)
        inside = {"c": 1, "t": 3, "h": 5, "w": 7}
        rows = cut.permute(0, 2, 4, 6, *(inside[letter] for letter in self.order)).reshape(n, -1, 96)
        return self.head(self.embed(rows).mean(1))


@pytest.mark.parametrize("order", ["cthw", "thwc", "tchw"])
@pytest.mark.parametrize("back", [False, True])
def test_tubes_of_videos_are_listed_in_the_order_that_the_code_with_the_linear_layer_shows(
    order: str, back: bool
) -> None:
    theirs, own = (Tubes(order), Tubes("")) if back else (Tubes(""), Tubes(order))
    mapping = ported(theirs, own, "float32[2,3,4,8,8]", code=back)
    assert mapping.having("guessed") == []
    assert same_outputs(mapping, theirs, own, torch.randn(2, 3, 4, 8, 8))


class TubesOfFrames(Tubes):
    """Takes videos with their frames first."""

    def forward(self, x: Any) -> Any:
        return super().forward(x.transpose(1, 2))


@pytest.mark.parametrize("order", ["thwc", "hwtc", "cthw"])
def test_a_video_may_have_its_frames_first(order: str) -> None:
    theirs, own = TubesOfFrames(""), TubesOfFrames(order)
    mapping = ported(theirs, own, "float32[2,4,3,8,12]", code=False)
    assert mapping.having("guessed") == []
    assert same_outputs(mapping, theirs, own, torch.randn(2, 4, 3, 8, 12))


# ---------------------------------------------------------------------------------------------------------- norms


class Gain(nn.Module):
    def __init__(self, plus: float) -> None:
        super().__init__()
        self.plus, self.weight = plus, nn.Parameter(torch.randn(8) * 0.3 + (1 - plus))

    def forward(self, x: Any) -> Any:
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
        return x * (self.plus + self.weight.float()) if self.plus else x * self.weight


class Words(nn.Module):
    """One attention over words and computed positions, with or without a factor on the words."""

    def __init__(
        self, names: tuple[str, str], times: float, *, positions: str = "computed", masked: str = "no"
    ) -> None:
        super().__init__()
        self.names, self.times, self.kind, self.masked = names, times, positions, masked
        self.add_module(names[0], nn.Embedding(20, 16))
        self.add_module(names[1], nn.Module())
        for name in "qkv":
            getattr(self, names[1]).add_module(f"{name}_proj", nn.Linear(16, 16))
        if positions == "learned":
            self.positions = nn.Embedding(8, 16)

    def forward(self, ids: Any) -> Any:
        x = getattr(self, self.names[0])(ids)
        if self.masked == "before":
            x = x.masked_fill((ids == 3)[..., None], 0.0)
        if self.masked == "turned":
            x = (x.mT * self.times).mT
        else:
            x = x * self.times if self.times != 1 else x
        if self.masked == "after":
            x.masked_fill_((ids == 3)[..., None], 0.0)
        places = torch.arange(ids.shape[1])
        if self.kind != "none":
            x = F.dropout(x, training=self.training)
            x = x + (self.positions(places) if self.kind == "learned" else places[:, None].sin())
        q, k, v = (getattr(getattr(self, self.names[1]), f"{name}_proj")(x) for name in "qkv")
        return F.scaled_dot_product_attention(q, k, v)


@pytest.mark.parametrize("times", [(4.0, 1.0), (1.0, 4.0), (4.0, 4.0), (1.0, 1.0)])
def test_code_shows_that_it_multiplies_the_rows_of_a_table(times: tuple[float, float]) -> None:
    theirs, own = Words(("words", "a"), times[0]), Words(("tokens", "b"), times[1])
    mapping = ported(theirs, own, "int64[2,5]")
    assert [e.target for e in mapping.having("guessed")] == (["tokens.weight"] if times[0] != times[1] else [])
    assert same_outputs(mapping, theirs, own, torch.randint(0, 20, (2, 5)))


@pytest.mark.parametrize("positions", ["computed", "none"])
@pytest.mark.parametrize(
    "masked", [("before", "after"), ("after", "before"), ("no", "before"), ("after", "no"), ("turned", "no")]
)
def test_rows_may_be_masked_or_turned_before_or_after_they_are_multiplied(
    masked: tuple[str, str], positions: str
) -> None:
    theirs, own = (
        Words(names, 4.0, masked=kind, positions=positions)
        for names, kind in zip((("words", "a"), ("tokens", "b")), masked, strict=True)
    )
    assert ported(theirs, own, "int64[2,5]").is_sure


@pytest.mark.parametrize("times", [(4.0, 1.0), (1.0, 4.0)])
def test_a_number_on_the_rows_of_a_table_is_none_of_the_layer_that_takes_them(times: tuple[float, float]) -> None:
    theirs, own = Words(("words", "a"), times[0], positions="none"), Words(("tokens", "b"), times[1], positions="none")
    mapping = ported(theirs, own, "int64[2,5]")
    assert [e.target for e in mapping.having("guessed")] == ["tokens.weight"]
    assert same_outputs(mapping, theirs, own, torch.randint(0, 20, (2, 5)))


class Mean(nn.Module):
    """The mean of two layers of other sizes of the input, which a third one takes."""

    def __init__(self, names: tuple[str, str, str], mean: Any) -> None:
        super().__init__()
        self.names, self.mean = names, mean
        for name, sizes in zip(names, ((5, 4), (6, 4), (4, 3)), strict=True):
            self.add_module(name, nn.Linear(*sizes))

    def forward(self, x: Any) -> Any:
        one, other, last = (getattr(self, name) for name in self.names)
        return last(self.mean(one(x[:, :5]), other(x[:, 5:])))


MEANS = {
    "divided": lambda x, y: (x + y) / 2,
    "by div": lambda x, y: (x + y).div(2.0),
    "multiplied": lambda x, y: 0.5 * (x + y),
}


@pytest.mark.parametrize("mean", [*MEANS])
@pytest.mark.parametrize("own", [*MEANS])
def test_to_divide_by_a_number_is_to_multiply_by_its_inverse(mean: str, own: str) -> None:
    theirs, model = Mean(("visn", "box", "out"), MEANS[mean]), Mean(("image", "boxes", "last"), MEANS[own])
    assert ported(theirs, model, "float32[2,11]").is_sure


@pytest.mark.parametrize("spread", [0.25, 1.0, 0.02])
@pytest.mark.parametrize("times", [4.0, 1.0])
@pytest.mark.parametrize("positions", ["computed", "learned", "none"])
def test_a_table_may_be_so_small_because_code_multiplies_its_rows(spread: float, times: float, positions: str) -> None:
    theirs, own = (
        Words(names, n, positions=positions) for names, n in ((("words", "a"), 4.0), (("tokens", "b"), times))
    )
    nn.init.normal_(theirs.words.weight, std=spread)
    mapping = ported(theirs, own, "int64[2,5]", code=False)
    asked = spread == 0.25 and times == 1.0 and positions == "computed"
    assert [e.target for e in mapping.having("guessed")] == (["tokens.weight"] if asked else [])
    if asked:
        assert [str(rival) for rival in found(mapping, "tokens.weight").rivals] == ["scale(words.weight, 4.0)"]


class GatedPair(nn.Module):
    """The first of two layers goes through the activation, whatever the second is called."""

    def __init__(self, names: tuple[str, str], act: Any) -> None:
        super().__init__()
        self.names, self.act = names, act
        for name in names:
            self.add_module(name, nn.Linear(6, 10))
        self.down = nn.Linear(10, 3)

    def forward(self, x: Any) -> Any:
        one, other = (getattr(self, name)(x) for name in self.names)
        return self.down(self.act(one) * other)


class GatedHalves(nn.Module):
    def __init__(self, act: Any) -> None:
        super().__init__()
        self.act, self.wi, self.wo = act, nn.Linear(6, 20), nn.Linear(10, 3)

    def forward(self, x: Any) -> Any:
        value, gate = self.wi(x).chunk(2, -1)
        return self.wo(value * self.act(gate))


class GatedConvolution(nn.Module):
    """One convolution for gate and value, with the gate first, as in DiffWave and Restormer."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.add_module(name, nn.Conv1d(6, 20, 3, padding=1))
        self.down = nn.Conv1d(10, 3, 1)

    def forward(self, x: Any) -> Any:
        gate, value = getattr(self, self.name)(x).chunk(2, 1)
        return self.down(gate.sigmoid() * value.tanh())


def test_the_halves_of_a_convolution_stay_as_they_are_as_a_guess() -> None:
    theirs, own = GatedConvolution("dilated"), GatedConvolution("mix")
    mapping = ported(theirs, own, "float32[2,6,5]", code=False)
    assert {e.target for e in mapping.having("guessed")} == {"mix.weight", "mix.bias"}
    assert same_outputs(mapping, theirs, own, torch.randn(2, 6, 5))


@pytest.mark.parametrize("names", [("fc1", "gate"), ("gate_proj", "up_proj"), ("gate", "fc1")])
@pytest.mark.parametrize("code", [False, True])
def test_a_layer_called_gate_may_be_the_one_without_activation(names: tuple[str, str], code: bool) -> None:
    theirs, own = GatedPair(names, F.gelu), GatedHalves(F.gelu)
    mapping = ported(theirs, own, "float32[2,6]", code=code)
    sure = code or "up_proj" in names
    assert mapping.having("guessed") == ([] if sure else [found(mapping, "wi.weight"), found(mapping, "wi.bias")])
    if sure or names[0] == "gate":
        assert same_outputs(mapping, theirs, own, torch.randn(2, 6))
    else:
        first, second = (f"{name}.weight" for name in names)
        (option,) = [str(rival) for rival in found(mapping, "wi.weight").rivals]
        assert option == f"cat(0, {second}, {first})"


class GatedBlock(nn.Module):
    """The layers NAMES: the first goes through the activation, the second is multiplied with it, the third is last."""

    def __init__(self, *names: str) -> None:
        super().__init__()
        self.names, self.ffn = names, nn.Module()
        for name in sorted(names):
            self.ffn.add_module(name, nn.Linear(6, 10) if name in names[:2] else nn.Linear(10, 6))

    def forward(self, x: Any) -> Any:
        one, other, last = (getattr(self.ffn, name) for name in self.names)
        return last(F.gelu(one(x)) * other(x))


@pytest.mark.parametrize("theirs", [("fc1", "gate", "fc2"), ("gate_proj", "up_proj", "down_proj")])
def test_what_both_sides_call_gate_is_one_layer_unless_the_file_also_names_the_other(theirs: tuple[str, ...]) -> None:
    """The model sends the layer beside its gate through the activation, as code like RetNet's does, but not code that
    calls the two gate and up.
    """
    source, own = GatedBlock(*theirs), GatedBlock("inp", "gate", "out")
    mapping = ported(source, own, "float32[2,6]", code=False)
    assert same_outputs(mapping, source, own, torch.randn(2, 6))


def test_a_layer_called_gate_is_the_one_that_goes_through_a_sigmoid() -> None:
    theirs, own = GatedPair(("gate", "fc1"), torch.sigmoid), GatedHalves(torch.sigmoid)
    mapping = ported(theirs, own, "float32[2,6]", code=False)
    assert mapping.having("guessed") == []
    assert same_outputs(mapping, theirs, own, torch.randn(2, 6))


@pytest.mark.parametrize("theirs", [("fc1", "gate"), ("gate", "fc1")])
@pytest.mark.parametrize("own", [("w1", "w3", "w2"), ("gate_proj", "up_proj", "down_proj")])
@pytest.mark.parametrize("code", [False, True])
def test_a_layer_called_gate_beside_the_first_of_a_network_is_a_guess_unless_code_shows_it(
    theirs: tuple[str, str], own: tuple[str, str, str], code: bool
) -> None:
    source, model = GatedBlock(*theirs, "fc2"), GatedBlock(*own)
    mapping = ported(source, model, "float32[2,6]", code=code)
    gated = {f"ffn.{name}.{part}" for name in own[:2] for part in ("weight", "bias")}
    assert {entry.target for entry in mapping.having("guessed")} == (set() if code else gated)
    for entry in mapping.having("guessed"):
        part = entry.target.rpartition(".")[2]
        assert {str(entry.expr), *map(str, entry.rivals)} == {f"ffn.{name}.{part}" for name in theirs}
    if code or theirs[0] == "gate":
        assert same_outputs(mapping, source, model, torch.randn(2, 6))


def test_the_gates_of_two_layers_that_go_through_a_sigmoid_are_called_so() -> None:
    theirs, own = GatedPair(("gate", "fc1"), torch.sigmoid), GatedPair(("one", "two"), torch.sigmoid)
    mapping = ported(theirs, own, "float32[2,6]", code=False)
    assert mapping.having("guessed") == []
    assert same_outputs(mapping, theirs, own, torch.randn(2, 6))


class Frozen(nn.Module):
    """A batch norm that is computed by hand, with buffers only."""

    def __init__(self, eps: float) -> None:
        super().__init__()
        self.eps = eps
        for name in ("weight", "bias", "running_mean", "running_var"):
            self.register_buffer(name, torch.rand(4) + 0.5)

    def forward(self, x: Any) -> Any:
        scale = self.weight * (self.running_var + self.eps).rsqrt()
        shift = self.bias - self.running_mean * scale
        return x * scale.reshape(1, -1, 1, 1) + shift.reshape(1, -1, 1, 1)


class WithStatistics(nn.Module):
    def __init__(self, names: tuple[str, str], norm: nn.Module) -> None:
        super().__init__()
        self.names = names
        self.add_module(names[0], nn.Conv2d(3, 4, 3))
        self.add_module(names[1], norm)

    def forward(self, x: Any) -> Any:
        return getattr(self, self.names[1])(getattr(self, self.names[0])(x))


@pytest.mark.parametrize("eps", [1e-5, 0.5])
def test_the_eps_of_a_norm_that_code_computes_itself_is_a_setting_and_no_part_of_its_variance(eps: float) -> None:
    theirs, own = WithStatistics(("conv", "bn"), Frozen(eps)), WithStatistics(("stem", "norm"), nn.BatchNorm2d(4))
    mapping = ported(theirs, own, "float32[2,3,6,6]")
    assert mapping.having("guessed") == []
    assert same_outputs(mapping, theirs, own, torch.randn(2, 3, 6, 6)) == (eps == 1e-5)
    assert found(mapping, "norm.running_var").expr.is_copy


class Normed(nn.Module):
    def __init__(self, names: tuple[str, str], plus: float) -> None:
        super().__init__()
        self.names = names
        self.add_module(names[0], Gain(plus))
        self.add_module(names[1], nn.Linear(8, 4))

    def forward(self, x: Any) -> Any:
        return getattr(self, self.names[1])(getattr(self, self.names[0])(x))


@pytest.mark.parametrize("plus", [(1.0, 0.0), (0.0, 1.0), (1.0, 1.0)])
@pytest.mark.parametrize("prefix", ["", "module."])
def test_what_code_adds_to_the_weights_of_a_norm_is_no_question(plus: tuple[float, float], prefix: str) -> None:
    theirs, own = Normed(("norm", "fc"), plus[0]), Normed(("ln", "out"), plus[1])
    mapping = ported(theirs, own, "float32[2,8]", prefix=prefix)
    assert mapping.having("guessed") == []
    assert same_outputs(mapping, theirs, own, torch.randn(2, 8), prefix)


class Conved(nn.Module):
    def __init__(self, *, norm: bool, between: bool = False) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 5, 3, bias=not norm)
        self.bn = nn.BatchNorm2d(5, eps=1e-3) if norm else nn.Identity()
        self.between, self.fc = between, nn.Linear(5, 4)
        if norm:
            self.bn.running_var.uniform_(0.5, 2)
            self.bn.running_mean.normal_()

    def forward(self, x: Any) -> Any:
        x = self.conv(x)
        return self.fc(F.relu(self.bn(F.relu(x) if self.between else x)).mean((2, 3)))


def test_a_batch_norm_is_folded_with_the_eps_of_the_code() -> None:
    theirs, own = Conved(norm=True), Conved(norm=False)
    mapping = ported(theirs, own, "float32[2,3,6,6]")
    assert mapping.having("guessed") == []
    assert "eps 0.001" in str(answers(mapping, "conv.weight"))
    assert same_outputs(mapping, theirs, own, torch.randn(2, 3, 6, 6))


@pytest.mark.parametrize("code", [False, True])
@pytest.mark.parametrize(
    ("new", "reason"),
    [
        ({"token": nn.Parameter(torch.zeros(5))}, Reason.FOLDED_NORM),
        ({"last": nn.LayerNorm(5)}, Reason.UNREAD_NORM),
        ({"mean": nn.Parameter(torch.zeros(5)), "spread": nn.Parameter(torch.ones(5))}, Reason.UNREAD_NORM),
    ],
)
def test_a_norm_is_folded_and_if_something_new_in_the_model_may_be_it_this_is_asked(
    new: Any, reason: Any, code: Any
) -> None:
    own = Conved(norm=False)
    for name, one in new.items():
        setattr(own, name, one)
    mapping = ported(Conved(norm=True), own, "float32[2,3,6,6]", code=code)
    for key in ("conv.weight", "conv.bias"):
        entry = found(mapping, key)
        if reason is Reason.UNREAD_NORM and key == "conv.bias":  # which has no source then
            assert entry.expr is None
            continue
        assert [question.reason for question in entry.questions] == [reason]
        assert ("fold" in str(entry.expr)) == (reason is Reason.FOLDED_NORM)
        assert entry.status == ("mapped" if code and reason is Reason.FOLDED_NORM else "guessed")


class Tokened(nn.Module):
    """A linear layer of tokens with a batch norm of its channels, as in LeViT; or with the norm folded in."""

    def __init__(self, *, norm: bool, added: bool = False) -> None:
        super().__init__()
        self.fc, self.added = nn.Linear(6, 5, bias=not norm), added
        self.bn = nn.BatchNorm1d(5, eps=1e-3) if norm else nn.Identity()
        self.out = nn.Linear(5, 4)
        if norm:
            self.bn.running_var.uniform_(0.5, 2)
            self.bn.running_mean.normal_()

    def forward(self, x: Any) -> Any:
        y = self.fc(x)
        z = self.bn(y.flatten(0, 1)).reshape_as(y)
        return self.out(F.relu(z + y if self.added else z))


@pytest.mark.parametrize("added", [False, True])
def test_a_batch_norm_of_flattened_tokens_follows_their_layer_unless_code_uses_its_output_elsewhere(
    added: bool,
) -> None:
    theirs, own = Tokened(norm=True, added=added), Tokened(norm=False)
    mapping = ported(theirs, own, "float32[2,3,6]")
    assert (mapping.having("guessed") == []) != added
    assert added or same_outputs(mapping, theirs, own, torch.randn(2, 3, 6))


def test_a_batch_norm_that_does_not_follow_its_layer_at_once_stays_a_question() -> None:
    mapping = ported(Conved(norm=True, between=True), Conved(norm=False), "float32[2,3,6,6]")
    assert {entry.target for entry in mapping.having("guessed")} >= {"conv.weight", "conv.bias"}


# ------------------------------------------------------------------------------------------------------ attention


def turned(x: Any, how: str) -> Any:
    """Rotary embedding of x [batch, heads, places, width]."""
    width = x.shape[-1]
    if how.startswith("part"):
        some = width // 2
        return torch.cat((turned(x[..., :some], how.removeprefix("part ")), x[..., some:]), -1)
    angles = torch.outer(torch.arange(x.shape[2]).float(), 0.5 ** torch.arange(width // 2).float())
    if how == "sorted":
        x = x.view(*x.shape[:-1], width // 2, 2).transpose(-1, -2).reshape(x.shape)
    if how in ("half", "sorted"):
        cos, sin = angles.cos().repeat(1, 2), angles.sin().repeat(1, 2)
        a, b = x.chunk(2, -1)
        return x * cos + torch.cat((-b, a), -1) * sin
    cos, sin = angles.cos().repeat_interleave(2, -1), angles.sin().repeat_interleave(2, -1)
    return x * cos + torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2) * sin


class Rotated(nn.Module):
    def __init__(self, names: tuple[str, ...], how: str) -> None:
        super().__init__()
        self.names, self.how = names, how
        for name in names:
            self.add_module(name, nn.Linear(16, 16))

    def forward(self, x: Any) -> Any:
        q, k, v, out = (getattr(self, name) for name in self.names)
        q, k, v = (layer(x).view(*x.shape[:2], 2, 8).transpose(1, 2) for layer in (q, k, v))
        y = F.scaled_dot_product_attention(turned(q, self.how), turned(k, self.how), v)
        return out(y.transpose(1, 2).reshape(x.shape))


OF_FILE, OF_MODEL = ("query", "key", "value", "dense"), ("q_lin", "k_lin", "v_lin", "o_lin")


@pytest.mark.parametrize(
    "how",
    [
        ("half", "half"),
        ("pairs", "half"),
        ("half", "pairs"),
        ("part half", "part half"),
        ("sorted", "half"),
        ("half", "sorted"),
        ("sorted", "pairs"),
    ],
)
@pytest.mark.parametrize("names", [OF_FILE, OF_MODEL])
def test_how_code_pairs_the_rows_of_rotary_embeddings_is_no_question(how: tuple[str, str], names: Any) -> None:
    theirs, own = Rotated(OF_FILE, how[0]), Rotated(names, how[1])
    mapping = ported(theirs, own, "float32[2,5,16]")
    assert mapping.having("guessed") == []
    assert same_outputs(mapping, theirs, own, torch.randn(2, 5, 16))
    assert (
        Reason.ROTARY,
        f"the source's code pairs {'neighbours' if how[0] in ('pairs', 'sorted') else 'halves'}",
    ) in answers(mapping, f"{names[0]}.weight")


def test_pairs_of_a_part_of_each_head_stay_a_question() -> None:
    mapping = ported(Rotated(OF_FILE, "part pairs"), Rotated(OF_MODEL, "part half"), "float32[2,5,16]")
    assert {entry.target for entry in mapping.having("guessed")} >= {"q_lin.weight", "k_lin.weight"}


class Fused(nn.Module):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        if how == "apart":
            self.q_proj, self.k_proj, self.v_proj = (nn.Linear(12, 12) for _ in range(3))
        else:
            self.query_key_value = nn.Linear(12, 36)
        self.out = nn.Linear(12, 12)

    def forward(self, x: Any) -> Any:
        n, length, width = x.shape
        if self.how == "apart":
            q, k, v = (f(x).view(n, length, 3, 4) for f in (self.q_proj, self.k_proj, self.v_proj))
        elif self.how == "heads":
            q, k, v = self.query_key_value(x).view(n, length, 3, 12).chunk(3, -1)
        else:
            q, k, v = (part.reshape(n, length, 3, 4) for part in self.query_key_value(x).chunk(3, -1))
        y = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))
        return self.out(y.transpose(1, 2).reshape(n, length, width))


@pytest.mark.parametrize("how", ["heads", "blocks"])
def test_how_code_cuts_a_fused_projection_is_no_question(how: str) -> None:
    theirs, own = Fused(how), Fused("apart")
    mapping = ported(theirs, own, "float32[2,5,12]")
    assert mapping.having("guessed") == []
    assert same_outputs(mapping, theirs, own, torch.randn(2, 5, 12))


def test_explaining_a_key_tells_what_the_code_of_the_source_answered() -> None:
    theirs, own = Rotated(OF_FILE, "pairs"), Rotated(OF_MODEL, "half")
    told = " ".join(ported(theirs, own, "float32[2,5,16]").explain("q_lin.weight").split())
    assert "(answered: the source's code pairs neighbours)" in told


# ------------------------------------------------------------------------------------------------ layers used again


class Again(nn.Module):
    """One block for every round."""

    def __init__(self, rounds: int) -> None:
        super().__init__()
        self.rounds, self.into = rounds, nn.Linear(3, 6)
        self.layer = nn.ModuleList([nn.ModuleDict({"up": nn.Linear(6, 12), "down": nn.Linear(12, 6)})])

    def forward(self, x: Any) -> Any:
        x = self.into(x)
        for _ in range(self.rounds):
            x = x + self.layer[0]["down"](self.layer[0]["up"](x).relu())
        return x


class Unrolled(Again):
    def __init__(self, rounds: int) -> None:
        super().__init__(rounds)
        blocks = (nn.ModuleDict({"up": nn.Linear(6, 12), "down": nn.Linear(12, 6)}) for _ in range(rounds))
        self.layer = nn.ModuleList(blocks)

    def forward(self, x: Any) -> Any:
        x = self.into(x)
        for block in self.layer:
            x = x + block["down"](block["up"](x).relu())
        return x


@pytest.mark.parametrize("rounds", [3, 2])
def test_code_that_uses_a_layer_as_often_as_the_model_has_it_answers_whether_it_is_shared(rounds: int) -> None:
    theirs, own = Again(rounds), Unrolled(3)
    mapping = ported(theirs, own, "float32[2,3]")
    assert (mapping.having("guessed") == []) == (rounds == 3)
    assert rounds != 3 or same_outputs(mapping, theirs, own, torch.randn(2, 3))


class Shared(nn.Module):
    """An encoder that a part of the model holds under another name, or another encoder for the same input."""

    def __init__(self, *, tied: bool) -> None:
        super().__init__()
        self.encoder, self.head = nn.Sequential(nn.Linear(3, 6), nn.Tanh()), nn.Linear(6, 2)
        self.other = self.encoder if tied else nn.Sequential(nn.Linear(3, 6), nn.Tanh())

    def forward(self, x: Any) -> Any:
        return self.head(self.other(x) if self.other is self.encoder else self.encoder(x) + self.other(x))


@pytest.mark.parametrize("tied", [True, False])
def test_a_second_name_of_a_layer_is_no_layer_beside_it(tied: bool) -> None:
    own = nn.ModuleDict({"encoder": nn.Sequential(nn.Linear(3, 6), nn.Tanh()), "head": nn.Linear(6, 2)})
    own.forward = lambda x: own["head"](own["encoder"](x))
    mapping = ported(Shared(tied=tied), own, "float32[2,3]")
    asked = {question.reason for entry in mapping.having("guessed") for question in entry.questions}
    assert (Reason.LEFT_OUT_BESIDE in asked) == (not tied)


class Blocks(nn.Module):
    """Blocks that compute filters of the same edges, each by a net that it holds under two names, or under one."""

    def __init__(self, *, twice: bool) -> None:
        super().__init__()
        self.into, self.blocks = nn.Linear(3, 6), nn.ModuleList()
        for _ in range(3):
            net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 6))
            held = {"net": net, "conv": nn.ModuleDict({"net": net, "out": nn.Linear(6, 6)})}
            self.blocks.append(nn.ModuleDict(held if twice else {"filter": net, "out": nn.Linear(6, 6)}))
        self.twice = twice

    def forward(self, x: Any) -> Any:
        edges, x = x[:, :4], self.into(x[:, 4:])
        for block in self.blocks:
            filters, out = (block["net"], block["conv"]["out"]) if self.twice else (block["filter"], block["out"])
            x = x + out(x * filters(edges))
        return x


def test_another_name_of_a_layer_that_another_key_reads_is_not_left_out() -> None:
    theirs, own = Blocks(twice=True), Blocks(twice=False)
    mapping = ported(theirs, own, "float32[2,7]")
    assert mapping.having("guessed") == []
    assert same_outputs(mapping, theirs, own, torch.randn(2, 7))


class Tower(nn.Module):
    """A body, and a last layer beside it. The file has a layer of the body that nothing runs, too."""

    def __init__(self, last: str, *, spare: bool) -> None:
        super().__init__()
        self.body = nn.ModuleDict({name: nn.Linear(6 + n, 7 + n) for n, name in enumerate("abcdefg")})
        if spare:
            self.body["pooler"] = nn.Linear(6, 6)
        self.last = last
        self.add_module(last, nn.Linear(13, 4))

    def forward(self, x: Any) -> Any:
        for name in "abcdefg":
            x = self.body[name](x).tanh()
        return self.get_submodule(self.last)(x)


@pytest.mark.parametrize("code", [True, False])
def test_a_last_layer_of_another_name_is_a_guess_if_both_codes_run_it_last_and_new_else(code: bool) -> None:
    theirs, own = Tower("2", spare=True), Tower("dense", spare=False)
    mapping = ported(theirs, own, "float32[2,6]", code=code)
    assert found(mapping, "dense.weight").status == ("guessed" if code else "unmapped")
    assert not code or same_outputs(mapping, theirs, own, torch.randn(2, 6))


# ------------------------------------------------------------------------------------------ places in both graphs


class TwoWays(nn.Module):
    """Two branches of one look, each with an end of its own, and registered in any order."""

    def __init__(self, names: dict[str, str], order: str, *, apart: bool = True) -> None:
        super().__init__()
        sizes = {"left": (6, 6), "right": (6, 6), "wide": (6, 9), "narrow": (6, 4 if apart else 9)}
        for part in order.split():
            self.add_module(names[part], nn.Linear(*sizes[part]))
        self.names = names

    def forward(self, x: Any) -> Any:
        made = {part: getattr(self, name) for part, name in self.names.items()}
        return torch.cat([made["wide"](made["left"](x).tanh()), made["narrow"](made["right"](x).relu())], -1)


THEIRS = {"left": "red", "right": "blue", "wide": "iron", "narrow": "gold"}
OWN = {"left": "a", "right": "b", "wide": "c", "narrow": "d"}


@pytest.mark.parametrize("order", ["left right wide narrow", "narrow right left wide", "right left narrow wide"])
def test_parallel_branches_are_told_by_what_each_feeds_in_both_codes(order: str) -> None:
    theirs, own = TwoWays(THEIRS, "left right wide narrow"), TwoWays(OWN, order)
    mapping = ported(theirs, own, "float32[2,6]")
    assert mapping.having("guessed") == []
    assert same_outputs(mapping, theirs, own, torch.randn(2, 6))
    assert ported(theirs, own, "float32[2,6]", code=False).having("guessed")


def test_branches_with_equal_places_in_both_graphs_stay_a_question() -> None:
    theirs = TwoWays(THEIRS, "left right wide narrow", apart=False)
    own = TwoWays(OWN, "right left narrow wide", apart=False)
    mapping = ported(theirs, own, "float32[2,6]")
    assert {entry.target for entry in mapping.having("guessed")} >= {"a.weight", "b.weight"}


class Gated(nn.Module):
    def __init__(self, *, joined: bool, block: int) -> None:
        super().__init__()
        self.joined = joined
        self.blocks = nn.ModuleList()
        for _ in range(block):
            one = nn.Module()
            if joined:
                one.wi = nn.Linear(6, 16, bias=False)
            else:
                one.fc1, one.gate = nn.Linear(6, 8, bias=False), nn.Linear(6, 8, bias=False)
            one.fc2 = nn.Linear(8, 6, bias=False)
            self.blocks.append(one)

    def forward(self, x: Any) -> Any:
        for one in self.blocks:
            if self.joined:
                gate, up = one.wi(x).chunk(2, -1)
                x = x + one.fc2(gate * F.gelu(up))
            else:
                x = x + one.fc2(F.gelu(one.fc1(x)) * one.gate(x))
        return x


def test_what_both_codes_activate_counts_more_than_what_they_call_the_gate() -> None:
    theirs, own = Gated(joined=False, block=3), Gated(joined=True, block=3)
    mapping = ported(theirs, own, "float32[2,6]")
    assert same_outputs(mapping, theirs, own, torch.randn(2, 6))


class Masked(nn.Module):
    """A gated convolution: what goes through a sigmoid opens what goes through another activation."""

    def __init__(self, *, joined: bool) -> None:
        super().__init__()
        self.joined = joined
        if joined:
            self.conv = nn.Conv2d(3, 8, 3)
        else:
            self.mask_conv, self.conv2d = nn.Conv2d(3, 4, 3), nn.Conv2d(3, 4, 3)

    def forward(self, x: Any) -> Any:
        made, mask = self.conv(x).chunk(2, 1) if self.joined else (self.conv2d(x), self.mask_conv(x))
        return F.elu(made) * torch.sigmoid(mask)


def test_of_two_layers_with_activations_the_one_before_a_sigmoid_is_the_gate() -> None:
    theirs, own = Masked(joined=False), Masked(joined=True)
    mapping = ported(theirs, own, "float32[2,3,6,6]")
    assert mapping.having("guessed") == []
    assert same_outputs(mapping, theirs, own, torch.randn(2, 3, 6, 6))
    assert ported(theirs, own, "float32[2,3,6,6]", code=False).having("guessed")


class Highway(nn.Module):
    """A highway layer, whose gate is called GATE; it runs after the other layer unless it runs FIRST."""

    def __init__(self, gate: str, other: str, *, first: bool) -> None:
        super().__init__()
        self.names, self.first = (gate, other), first
        self.blocks = nn.ModuleList(nn.ModuleDict({other: nn.Linear(8, 8), gate: nn.Linear(8, 8)}) for _ in range(3))
        self.out = nn.Linear(8, 3)

    def forward(self, x: Any) -> Any:
        gate, other = self.names
        for block in self.blocks:
            if self.first:
                t = torch.sigmoid(block[gate](x))
                x = x + t * (F.relu(block[other](x)) - x)
            else:
                h = F.relu(block[other](x))
                t = torch.sigmoid(block[gate](x))
                x = h * t + x * (1 - t)
        return self.out(x)


@pytest.mark.parametrize("first", [(False, True), (True, False), (False, False)])
def test_the_gate_of_a_highway_layer_is_known_in_both_codes_whichever_layer_runs_first(
    first: tuple[bool, bool],
) -> None:
    theirs, own = Highway("T", "H", first=first[0]), Highway("carry", "candidate", first=first[1])
    mapping = ported(theirs, own, "float32[2,8]")
    assert mapping.having("guessed") == []
    assert same_outputs(mapping, theirs, own, torch.randn(2, 8))


@pytest.mark.parametrize("how", ["glu", "split"])
def test_a_convolution_before_glu_shows_its_gate_to_a_linear_layer(how: str) -> None:
    class Mixed(nn.Module):
        def __init__(self, conv: bool, name: str) -> None:
            super().__init__()
            self.conv, self.name = conv, name
            self.add_module(name, nn.Conv1d(6, 12, 1) if conv else nn.Linear(6, 12))

        def forward(self, x: Any) -> Any:
            layer = getattr(self, self.name)
            if self.conv:
                return F.glu(layer(x.mT), 1).mT
            if how == "glu":
                return F.glu(layer(x), -1)
            value, gate = layer(x).chunk(2, -1)
            return value * gate.sigmoid()

    theirs, own = Mixed(True, "output_linear"), Mixed(False, "mix")
    mapping = ported(theirs, own, "float32[2,5,6]")
    assert mapping.having("guessed") == []
    assert same_outputs(mapping, theirs, own, torch.randn(2, 5, 6))


def test_the_order_of_pixels_of_one_channel_is_no_question() -> None:
    class Cut(nn.Module):
        def __init__(self, linear: bool) -> None:
            super().__init__()
            self.embed = nn.Linear(16, 6) if linear else nn.Conv2d(1, 6, 4, 4)
            self.linear = linear
            self.head = nn.Linear(6, 3)

        def forward(self, x: Any) -> Any:
            rows = F.unfold(x, 4, stride=4).mT
            return self.head((self.embed(rows) if self.linear else self.embed(x).flatten(2).mT).mean(1))

    theirs, own = Cut(True), Cut(False)
    mapping = ported(theirs, own, "float32[2,1,8,8]", code=False)
    assert mapping.having("guessed") == []
    assert same_outputs(mapping, theirs, own, torch.randn(2, 1, 8, 8))


class OneProjection(nn.Module):
    """An attention, with queries, keys and values in one layer; PARTS says in which order, HOW how it is cut."""

    def __init__(self, name: str, how: str, parts: str = "qkv") -> None:
        super().__init__()
        self.name, self.how, self.parts = name, how, parts
        self.add_module(name, nn.Linear(8, 24, bias=False))
        self.head = nn.Linear(8, 3)

    def forward(self, x: Any) -> Any:
        n, t, w = x.shape
        fused = getattr(self, self.name)(x)
        if self.how == "by heads":
            q, k, v = fused.view(n, t, 2, 12).transpose(1, 2).chunk(3, dim=-1)
        elif self.how == "view":
            q, k, v = fused.view(n, t, 3, 2, 4).permute(2, 0, 3, 1, 4)
        elif self.parts == "qkv":
            q, k, v = fused.chunk(3, dim=-1)
        else:
            q, v, k = fused.chunk(3, dim=-1)
        if self.how == "chunk":
            q, k, v = (part.view(n, t, 2, 4).transpose(1, 2) for part in (q, k, v))
        return self.head(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, t, w))


def test_codes_that_cut_a_projection_in_different_orders_are_asked_about_or_right() -> None:
    source, model = OneProjection("Wqkv", "chunk", "qvk"), OneProjection("to_qkv", "view")
    mapping = ported(source, model, "float32[2,5,8]")
    assert mapping.having("guessed") or same_outputs(mapping, source, model, torch.randn(2, 5, 8))


@pytest.mark.parametrize("theirs", ["chunk", "view", "by heads"])
@pytest.mark.parametrize("own", ["chunk", "view"])
def test_a_projection_that_the_model_cuts_into_blocks_is_no_question_with_both_codes(theirs: str, own: str) -> None:
    source, model = OneProjection("Wqkv", theirs), OneProjection("to_qkv", own)
    mapping = ported(source, model, "float32[2,5,8]")
    assert mapping.having("guessed") == []
    assert same_outputs(mapping, source, model, torch.randn(2, 5, 8))
    assert ported(source, model, "float32[2,5,8]", code=False).having("guessed") != []


class Stages(nn.Module):
    """Blocks under the given names, one after the other."""

    def __init__(self, *names: str, layers: tuple[str, str]) -> None:
        super().__init__()
        self.names, self.layers = names, layers
        for name in names:
            block = nn.ModuleDict({layer: nn.Conv2d(4, 4, 3, padding=1) for layer in layers})
            self.add_module(name, block)
        self.first, self.last = nn.Conv2d(3, 4, 1), nn.Linear(4, 5)

    def forward(self, x: Any) -> Any:
        x = self.first(x)
        for name in self.names:
            block = getattr(self, name)
            x = x + block[self.layers[1]](block[self.layers[0]](x).relu())
        return self.last(x.mean((2, 3)))


def test_blocks_whose_numbers_are_no_order_are_no_question_where_both_codes_run_them_in_one() -> None:
    theirs = Stages("conv_23", "conv_3", "conv_34", "conv_4", layers=("conv1", "conv2"))
    own = Stages("block_0", "block_1", "block_2", "block_3", layers=("deep", "wide"))
    mapping = ported(theirs, own, "float32[1,3,4,4]")
    assert not mapping.having("guessed")
    assert same_outputs(mapping, theirs, own, torch.randn(1, 3, 4, 4))


@pytest.mark.parametrize("ways", [(1, 0.5), (0.5, 1), (2, 0.25), (0.5,)])
def test_rows_of_a_table_may_be_multiplied_several_times(ways: tuple[float, ...]) -> None:
    class Net(nn.Module):
        def __init__(self, ways: tuple[float, ...]) -> None:
            super().__init__()
            self.words, self.out, self.ways = nn.Embedding(9, 8), nn.Linear(8, 4), ways

        def forward(self, x: Any) -> Any:
            x = self.words(x)
            for number in self.ways:
                x = x * number
            return self.out(x)

    inputs = [torch.randint(9, (2, 5))]
    source, model = Net((0.5,)), Net(ways)  # a factor of 0.5 on both sides
    found = ckptool.transfer(source.state_dict(), model, source_model=source, inputs=inputs, prove=False)
    assert (found["words.weight"].status, str(found["words.weight"].expr)) == ("mapped", "words.weight")


# ------------------------------------------------------------------------------------------------------------- sums


class Neighbours(nn.Module):
    """A layer for itself and one for its neighbours, whose outputs are added; with one bias in a layer, or beside."""

    def __init__(self, *, beside: bool, adds: bool = True) -> None:
        super().__init__()
        self.beside, self.adds = beside, adds
        if beside:
            self.fc_self, self.fc_neigh = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
            self.bias = nn.Parameter(torch.randn(4))
        else:
            self.lin_l, self.lin_r = nn.Linear(4, 4), nn.Linear(4, 4, bias=False)

    def forward(self, x: Any) -> Any:
        if self.beside:
            return self.fc_self(x) + self.fc_neigh(x.roll(1, 0)) + self.bias
        root, others = self.lin_r(x), self.lin_l(x.roll(1, 0))
        return others + root if self.adds else others * root


class Graph(nn.Module):
    def __init__(self, **how: bool) -> None:
        super().__init__()
        self.into = nn.Linear(3, 4)
        self.layers = nn.ModuleList(Neighbours(**how) for _ in range(2))

    def forward(self, x: Any) -> Any:
        x = self.into(x)
        for layer in self.layers:
            x = layer(x).relu()
        return x


@pytest.mark.parametrize("turned", [True, False])
@pytest.mark.parametrize("adds", [True, False])
def test_the_bias_of_a_sum_is_no_question_if_code_adds_the_outputs(adds: bool, turned: bool) -> None:
    theirs, own = Graph(beside=False, adds=adds), Graph(beside=True)
    if turned and adds:
        theirs, own = own, theirs
    mapping = ported(theirs, own, "float32[5,3]")
    asked = [reason for key in ("layers.0.bias", "layers.0.lin_l.bias") for reason in reasons(mapping, key)]
    assert (Reason.BIAS_OF_SUM in asked) == (not adds)


def reasons(mapping: Any, key: str) -> list[Reason]:
    """The reasons of the open questions about KEY; none if there is no such key."""
    return [q.reason for entry in mapping.entries if entry.target == key for q in entry.questions if q.is_open]


# ----------------------------------------------------------------------------------------- concatenated channels


class Upwards(nn.Module):
    """Two branches, concatenated in one order or the other, that a transposed convolution takes."""

    def __init__(self, names: tuple[str, str, str], *, turned: bool, out: int) -> None:
        super().__init__()
        self.names, self.turned = names, turned
        self.add_module(names[0], nn.Conv2d(3, 4, 3, padding=1))
        self.add_module(names[1], nn.Conv2d(3, 2, 1))
        self.add_module(names[2], nn.ConvTranspose2d(6, out, 2, stride=2))

    def forward(self, x: Any) -> Any:
        wide, narrow, up = (self.get_submodule(name) for name in self.names)
        made = [wide(x).tanh(), narrow(x).tanh()]
        return up(torch.cat(made[::-1] if self.turned else made, 1))


@pytest.mark.parametrize("out", [5, 6])
@pytest.mark.parametrize("turned", [True, False])
def test_code_shows_the_order_of_channels_that_a_transposed_convolution_takes(turned: bool, out: int) -> None:
    theirs = Upwards(("wide", "narrow", "up"), turned=turned, out=out)
    own = Upwards(("a", "b", "c"), turned=False, out=out)
    mapping = ported(theirs, own, "float32[2,3,4,4]")
    assert mapping.having("guessed") == []
    assert same_outputs(mapping, theirs, own, torch.randn(2, 3, 4, 4))


class Tokens(nn.Module):
    """A layer for each of five tokens, and one that takes the numbers of all tokens, in either order."""

    def __init__(self, channels_first: bool, width: int = 6) -> None:
        super().__init__()
        self.each, self.head = nn.Linear(3, width), nn.Linear(5 * width, 2)
        self.channels_first = channels_first

    def forward(self, x: Any) -> Any:
        x = torch.relu(self.each(x))
        if self.channels_first:
            x = x.transpose(1, 2)
        return self.head(x.flatten(1))


@pytest.mark.parametrize(("first", "second"), [(True, False), (False, True), (True, True)])
def test_tokens_that_both_codes_flatten_in_their_own_orders_become_those_of_the_model(
    first: bool, second: bool
) -> None:
    theirs, own = Tokens(first), Tokens(second)
    mapping = ported(theirs, own, "float32[2,5,3]")
    assert same_outputs(mapping, theirs, own, torch.randn(2, 5, 3))
    assert not mapping.having("guessed")


def point_and_depth(dim: int, out: int) -> nn.Module:
    return nn.ModuleDict({"point": nn.Conv2d(dim, out, 1), "depth": nn.Conv2d(out, out, 3, padding=1, groups=out)})


class Restored(nn.Module):
    """Attention between channels, as in networks that restore pictures: one projection for all, or one for each."""

    def __init__(self, together: bool, dim: int = 8) -> None:
        super().__init__()
        self.together = together
        if together:
            self.qkv = nn.Conv2d(dim, 3 * dim, 1)
            self.qkv_dwconv = nn.Conv2d(3 * dim, 3 * dim, 3, padding=1, groups=3 * dim)
        else:
            self.to_q, self.to_k, self.to_v = (point_and_depth(dim, dim) for _ in range(3))
        self.out = nn.Conv2d(dim, dim, 1)

    def forward(self, x: Any) -> Any:
        if self.together:
            parts = self.qkv_dwconv(self.qkv(x)).chunk(3, dim=1)
        else:
            parts = [one["depth"](one["point"](x)) for one in (self.to_q, self.to_k, self.to_v)]
        q, k, v = (part.unflatten(1, (2, -1)).flatten(-2) for part in parts)
        mixed = (F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(-2, -1)).softmax(-1) @ v
        return self.out(mixed.flatten(1, 2).unflatten(-1, x.shape[2:]))


def test_convolutions_whose_channels_code_divides_in_blocks_hold_no_heads_in_turn() -> None:
    theirs, own = Restored(True), Restored(False)
    mapping = ported(theirs, own, "float32[2,8,6,6]")
    assert same_outputs(mapping, theirs, own, torch.randn(2, 8, 6, 6))
    assert not mapping.having("guessed")


@pytest.mark.parametrize("up", [True, False])
def test_stacks_of_one_size_of_which_code_multiplies_one_from_the_other_side_are_stored_alike(up: bool) -> None:
    class Crossed(nn.Module):
        def __init__(self, names: tuple[str, str]) -> None:
            super().__init__()
            self.names = names
            for name in names:
                self.register_parameter(name, nn.Parameter(torch.randn(2, 3, 10, 4)))
            self.out = nn.Linear(10, 2)

        def forward(self, x: Any) -> Any:
            v, u = (getattr(self, name) for name in self.names)
            for layer in range(2):
                low = torch.einsum("bd,edr->ber", x, v[layer])
                x = x + torch.einsum("ber,edr->bd", low.tanh(), u[layer])
            return self.out(x)

    theirs, own = Crossed(("V_list", "U_list")), Crossed(("proj_down", "proj_up"))
    mapping = ported(theirs, own, "float32[5,10]", code=up)
    assert {entry.target: str(entry.expr) for entry in mapping.entries} == {
        "proj_up": "U_list",
        "proj_down": "V_list",
        "out.weight": "out.weight",
        "out.bias": "out.bias",
    }


class Branched(nn.Module):
    """Tokens with a batch norm, of which code uses the values before the norm, too, in one way or another."""

    def __init__(self, how: str, norm: bool) -> None:
        super().__init__()
        self.how, self.fc = how, nn.Linear(6, 5, bias=not norm)
        self.bn, self.other = (
            nn.BatchNorm1d(5, eps=1e-3) if norm and name in how else nn.Identity() for name in ("", "two")
        )
        self.out = nn.Linear(5, 4)
        for one in self.modules():
            if isinstance(one, nn.BatchNorm1d):
                one.running_var.uniform_(0.5, 2)
                one.running_mean.normal_()

    def forward(self, x: Any) -> Any:
        y = self.fc(x)
        if self.how == "sibling":
            return self.out(F.relu(self.bn(y.flatten(0, 1)) + y.flatten(0, 1)))
        if self.how == "chain":
            return self.out(F.relu(self.bn(y.flatten(0, 1).view(-1, 5)).view(y.shape) + y))
        return self.out(F.relu(self.bn(y.flatten(0, 1)) + self.other(y.flatten(0, 1))))


@pytest.mark.parametrize("how", ["sibling", "chain", "two norms"])
def test_a_batch_norm_beside_another_use_of_its_layer_is_not_folded_without_a_question(how: str) -> None:
    theirs, own = Branched(how, norm=True), Branched(how, norm=False)
    mapping = ported(theirs, own, "float32[2,3,6]")
    folded = [answer for reason, answer in answers(mapping, "fc.weight") if reason is Reason.FOLDED_NORM]
    assert folded == [""]


THEIR_NAMES = "_deep _bn1 _project _bn2", "_expand _bn0 _deep _bn1 _project _bn2"
OUR_NAMES = "conv_dw bn1 conv_pw bn2", "conv_pw bn1 conv_dw bn2 conv_pwl bn3"


class Chain(nn.Module):
    """Blocks of layers, each with its norm. FIRST and OTHERS have the names of a layer and of its norm, in turn."""

    def __init__(self, first: str, others: str) -> None:
        super().__init__()
        self.blocks = nn.ModuleList()
        for names, sizes in ((first, (8, 8, 4)), (others, (4, 8, 8, 8)), (others, (8, 8, 8, 8))):
            block, given = nn.Module(), names.split()
            for at, (a, b) in enumerate(itertools.pairwise(sizes)):
                block.add_module(given[2 * at], nn.Linear(a, b))
                block.add_module(given[2 * at + 1], nn.LayerNorm(b))
            self.blocks.append(block)

    def forward(self, x: Any) -> Any:
        for block in self.blocks:
            for layer in block.children():
                x = layer(x)
        return x


def test_the_only_layer_of_its_sizes_in_a_block_is_certain_whatever_other_blocks_call_it() -> None:
    """As in an EfficientNet of timm, where the first block has `conv_pw` for what is `conv_pwl` in the others."""
    source, target = Chain(*THEIR_NAMES), Chain(*OUR_NAMES)
    alone = ported(source, target, "float32[2,8]", code=False)
    assert alone["blocks.0.conv_pw.weight"].status == "mapped"
    assert str(alone["blocks.0.conv_pw.weight"].expr) == "blocks.0._project.weight"


class Mobile(nn.Module):
    """The beginning of a MobileNet: a convolution, then blocks of a depthwise and a pointwise one, all with norms."""

    def __init__(self) -> None:
        super().__init__()

        def block(a: int, b: int) -> nn.Module:
            deep = nn.Conv2d(a, a, 3, groups=a, bias=False)
            return nn.Sequential(deep, nn.BatchNorm2d(a), nn.ReLU(), nn.Conv2d(a, b, 1, bias=False), nn.BatchNorm2d(b))

        first = nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8))
        self.model = nn.Sequential(first, block(8, 8), block(8, 12), block(12, 12), block(12, 16))

    def forward(self, x: Any) -> Any:
        return self.model(x)


def test_a_norm_belongs_to_the_layer_that_has_its_whole_name_and_not_to_one_with_more_words() -> None:
    """Keras calls the first norm `conv1_bn`; the name of `conv_dw_1` has all words of that as well."""
    widths = {"conv1": 8}
    for n, (a, b) in enumerate(((8, 8), (8, 12), (12, 12), (12, 16)), 1):
        widths |= {f"conv_dw_{n}": a, f"conv_pw_{n}": b}
    source: dict[str, tuple[int, ...]] = {"conv1.kernel": (3, 3, 3, 8)}
    for (_, before), (name, width) in itertools.pairwise(widths.items()):
        if "dw" in name:
            source[f"{name}.depthwise_kernel"] = (3, 3, width, 1)
        else:
            source[f"{name}.kernel"] = (1, 1, before, width)
    leaves = ("gamma", "beta", "moving_mean", "moving_variance")
    source |= {f"{name}_bn.{leaf}": (width,) for name, width in widths.items() for leaf in leaves}
    wanted = signature_for(Mobile(), inputs=[torch.randn(1, 3, 12, 12)])
    mapping = port(signature(dict(sorted(source.items())), ordered=False), wanted)
    norms = [entry for entry in mapping.entries if entry.target.endswith("running_var")]
    assert [str(entry.expr) for entry in norms] == [f"{name}_bn.moving_variance" for name in widths]


# ----------------------------------------------------------------------------------- layouts of fused projections


class Attends(nn.Module):
    """Two layers of attention whose fused projection, called NAME, is cut head by head if BY_HEADS, else in blocks."""

    def __init__(self, name: str, *, by_heads: bool) -> None:
        super().__init__()
        self.by_heads, self.name = by_heads, name
        self.blocks = nn.ModuleList()
        for _ in range(2):
            block = nn.Module()
            block.attn = nn.Module()
            block.attn.add_module(name, nn.Linear(8, 24))
            block.attn.out_proj = nn.Linear(8, 8)
            self.blocks.append(block)

    def forward(self, x: Any) -> Any:
        for block in self.blocks:
            made = getattr(block.attn, self.name)(x)
            if self.by_heads:
                q, k, v = made.reshape(*x.shape[:2], 4, 6).permute(0, 2, 1, 3).chunk(3, dim=-1)
            else:
                q, k, v = (part.unflatten(-1, (4, 2)).transpose(1, 2) for part in made.chunk(3, -1))
            scores = torch.softmax(q @ k.transpose(-2, -1) / 2**0.5, -1)
            x = x + block.attn.out_proj((scores @ v).permute(0, 2, 1, 3).reshape(x.shape))
        return x


class OfTorch(nn.Module):
    """The same with torch's own attention."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList()
        for _ in range(2):
            block = nn.Module()
            block.attn = nn.MultiheadAttention(8, 4, batch_first=True)
            self.blocks.append(block)

    def forward(self, x: Any) -> Any:
        for block in self.blocks:
            x = x + block.attn(x, x, x, need_weights=False)[0]
        return x


@pytest.mark.parametrize("name", ["qkv", "qkv_proj", "to_qkv"])
@pytest.mark.parametrize(("theirs", "own"), [(True, False), (False, True), (True, True), (True, None), (False, None)])
def test_a_fused_projection_is_rearranged_if_the_two_codes_cut_it_in_two_ways(
    name: str, theirs: bool, own: bool | None
) -> None:
    torch.manual_seed(0)
    source = Attends(name, by_heads=theirs)
    model = OfTorch() if own is None else Attends("qkv", by_heads=own)
    mapping = ported(source, model, "float32[2,5,8]")
    assert mapping.is_sure
    assert same_outputs(mapping, source, model, torch.randn(2, 5, 8))


class InOne(nn.Module):
    """A layer of a gate and its value, called FUSED, that code cuts in halves, or in SHARES that each hold both."""

    def __init__(self, fused: str, after: str, *, shares: int) -> None:
        super().__init__()
        self.names, self.shares = (fused, after), shares
        self.mlp = nn.ModuleDict({fused: nn.Linear(8, 24), after: nn.Linear(12, 8)})

    def forward(self, x: Any) -> Any:
        both, after = (self.mlp[name] for name in self.names)
        if self.shares:
            parts = both(x).view(*x.shape[:-1], self.shares, 2, 12 // self.shares).unbind(-2)
            gate, value = (part.reshape(*x.shape[:-1], 12) for part in parts)
        else:
            gate, value = both(x).chunk(2, -1)
        return after(torch.nn.functional.silu(gate) * value)


@pytest.mark.parametrize("own", [0, 3, 12])
@pytest.mark.parametrize("theirs", [0, 3, 12])
def test_a_gate_and_its_value_in_one_are_rearranged_if_the_two_codes_cut_them_in_two_ways(
    theirs: int, own: int
) -> None:
    torch.manual_seed(0)
    source, model = InOne("w12", "w3", shares=theirs), InOne("gate_up_proj", "down_proj", shares=own)
    mapping = ported(source, model, "float32[2,3,8]")
    assert mapping.is_sure
    assert same_outputs(mapping, source, model, torch.randn(2, 3, 8))


@pytest.mark.parametrize(("theirs", "place"), [(0, 0), (12, 1)])
def test_it_is_asked_whether_the_rows_of_a_gate_and_its_value_take_turns_if_only_the_code_of_the_model_shows_it(
    theirs: int, place: int
) -> None:
    torch.manual_seed(0)
    source, model = InOne("w12", "w3", shares=theirs), InOne("gate_up_proj", "down_proj", shares=12)
    mapping = ported(source, model, "float32[2,3,8]", code=False)
    options = {}
    for key in ("mlp.gate_up_proj.weight", "mlp.gate_up_proj.bias"):
        assert answers(mapping, key) == [(Reason.ROWS_TAKE_TURNS, "")]
        entry = found(mapping, key)
        options[key] = [entry.expr, *entry.rivals][place]
    entries = [replace(e, expr=options.get(e.target, e.expr)) for e in mapping.entries]
    assert same_outputs(ckptool.Mapping.of(replace(mapping, entries=entries)), source, model, torch.randn(2, 3, 8))


class Split(nn.Module):
    """The same with a layer for each, keys first, as in BART."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList()
        for _ in range(2):
            block = nn.Module()
            block.attn = nn.Module()
            for name in ("k_proj", "v_proj", "q_proj", "out_proj"):
                block.attn.add_module(name, nn.Linear(8, 8))
            self.blocks.append(block)

    def forward(self, x: Any) -> Any:
        for block in self.blocks:
            at = block.attn
            q, k, v = (layer(x).unflatten(-1, (4, 2)).transpose(1, 2) for layer in (at.q_proj, at.k_proj, at.v_proj))
            scores = torch.softmax(q @ k.transpose(-2, -1) / 2**0.5, -1)
            x = x + at.out_proj((scores @ v).permute(0, 2, 1, 3).reshape(x.shape))
        return x


@pytest.mark.parametrize("name", ["qkv", "qkv_proj", "in_proj"])
def test_code_that_names_the_parts_of_a_projection_shows_their_order(name: str) -> None:
    torch.manual_seed(0)
    source, model = Attends(name, by_heads=False), Split()
    mapping = ported(source, model, "float32[2,5,8]")
    assert mapping.is_sure
    assert same_outputs(mapping, source, model, torch.randn(2, 5, 8))


class Block(nn.Module):
    """Queries, keys and values of one tensor, a gate, a norm of batches, and channels that go past a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(8, 8) for _ in range(3))
        self.memory_k, self.gate, self.up, self.down = (nn.Linear(8, 8) for _ in range(4))
        self.inner, self.bn = nn.Linear(4, 4), nn.BatchNorm1d(8)

    def forward(self, x: Any, memory: Any) -> Any:
        x = x + torch.softmax(self.q(x) @ self.k(x).T, -1) @ self.v(x) + self.memory_k(memory)
        past, changed = (F.silu(self.gate(x)) * self.up(x)).chunk(2, -1)
        return self.bn(self.down(torch.cat([past, self.inner(changed)], -1)))


class Deep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.memory = nn.Linear(8, 8), nn.Linear(8, 8)
        self.layers = nn.ModuleList(Block() for _ in range(2 * 4 + 2))

    def forward(self, x: Any) -> Any:
        x, memory = self.stem(x), self.memory(x)
        for layer in self.layers:
            x = layer(x, memory)
        return x


def test_what_a_forward_pass_shows_of_equal_blocks_is_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fact that holds a place, a count or the name of another tensor would tell each block from the others, and all
    of them would be matched.
    """
    monkeypatch.setattr(equal_blocks, "_MATCHED", 4)
    target = signature_of(Deep(), inputs=(torch.zeros(4, 8),))
    assert target.traced
    source = signature({key.replace("layers.", "h."): entry.shape for key, entry in target.entries.items()})
    assert equal_blocks.shortened(source, target) is not None


# ------------------------------------------------------------------------------------- a fused layer of another name


class FusedUnderAnotherName(nn.Module):
    """Its rows lie as (position of a head, part): a reshape and three picks cut them, no name says so."""

    def __init__(self) -> None:
        super().__init__()
        self.proj, self.out = nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, x: Any) -> Any:
        parts = self.proj(x).reshape(*x.shape[:2], 8, 3)
        q, k, v = parts[..., 0], parts[..., 1], parts[..., 2]
        return self.out(torch.softmax(q @ k.transpose(1, 2), -1) @ v)


class ThreeApart(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(8, 8) for _ in range(4))

    def forward(self, x: Any) -> Any:
        return self.out(torch.softmax(self.q(x) @ self.k(x).transpose(1, 2), -1) @ self.v(x))


def test_a_fused_layer_whose_name_says_nothing_is_never_taken_apart_with_certainty() -> None:
    torch.manual_seed(0)
    theirs, own = FusedUnderAnotherName(), ThreeApart()
    mapping = ported(theirs, own, "float32[2,5,8]")
    certain = {entry.target for entry in mapping.entries if entry.target[0] in "qkv" and entry.status == "mapped"}
    assert certain == set() or same_outputs(mapping, theirs, own, torch.randn(2, 5, 8))
