"""Models of equal weights that differ in a setting of their code: a proof measures that, and names the setting."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn
from torch.nn import functional as F

import ckptool
from ckptool.model_code.inputs import parse_inputs
from ckptool.porting import expression as ex
from ckptool.porting.prove import prove
from ckptool.porting.prove.flow import Flow
from ckptool.porting.prove.measure import measured

PICTURE, SEQUENCE = "float32[2,3,8,8]", "float32[2,6,8]"


class Pictures(nn.Module):
    """Convolutions and norms of pictures, with every setting that the weights do not show."""

    def __init__(
        self,
        *,
        names: str = "one two three",
        eps: float = 1e-5,
        momentum: float = 0.1,
        act: nn.Module | None = None,
        padding_mode: str = "zeros",
        groups: int = 2,
        drop: float = 0.0,
        flip: bool = False,
    ) -> None:
        super().__init__()
        first, second, third = names.split()
        body = nn.ModuleDict()
        body[first] = nn.Conv2d(3, 8, 3, padding=1, padding_mode=padding_mode)
        body[first + "_norm"] = nn.BatchNorm2d(8, eps=eps, momentum=momentum)
        body[second] = nn.Conv2d(8, 8, 3, padding=1, padding_mode=padding_mode)
        body[second + "_norm"] = nn.GroupNorm(groups, 8, eps=eps)
        body[third] = nn.Linear(72, 5)
        self.body, self.act, self.drop, self.flip = body, act or nn.ReLU(), drop, flip

    def forward(self, x: Any) -> Any:
        one, norm, two, second, three = self.body.values()
        x = x.flip(1) if self.flip else x
        x = self.act(norm(one(x)))
        x = F.dropout(x, self.drop, training=True) if self.drop else x
        x = self.act(second(two(x)))
        x = F.adaptive_avg_pool2d(x, 3)
        return three(x.flatten(1))


class Sequences(nn.Module):
    """A block of attention and a feed-forward layer, written out or with the functions of torch."""

    def __init__(
        self,
        *,
        names: str = "q k v o up down norm",
        scale: float | None = 4**-0.5,
        eps: float = 1e-5,
        act: Any = F.gelu,
        rms: bool = False,
        fused: bool = False,
        heads: int = 2,
    ) -> None:
        super().__init__()
        self.names = names.split()
        for name, (rows, columns) in zip(self.names, [(8, 8)] * 4 + [(32, 8), (8, 32)], strict=False):
            self.add_module(name, nn.Linear(columns, rows))
        self.add_module(self.names[6], nn.LayerNorm(8, eps=eps))
        self.scale, self.eps, self.act, self.rms, self.fused, self.heads = scale, eps, act, rms, fused, heads

    def forward(self, x: Any) -> Any:
        q, k, v, o, up, down, norm = (getattr(self, name) for name in self.names)
        if self.rms:
            h = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * norm.weight + norm.bias
        else:
            h = norm(x)
        a, b, c = (f(h).view(*x.shape[:2], self.heads, -1).transpose(1, 2) for f in (q, k, v))
        if self.fused:
            h = F.scaled_dot_product_attention(a, b, c, scale=self.scale)
        else:
            h = a @ b.transpose(-1, -2)
            h = (h if self.scale is None else h * self.scale).softmax(-1) @ c
        x = x + o(h.transpose(1, 2).reshape(x.shape))
        return down(self.act(up(x)))


def proved(source: nn.Module, own: nn.Module, spec: str) -> Any:
    torch.manual_seed(3)
    for one in source.modules():  # as after training: norms are not at their beginnings
        if isinstance(one, nn.BatchNorm2d):
            one.running_mean.normal_(0, 0.3)
            one.running_var.uniform_(0.2, 1.5)
    source, own = source.eval(), own.eval()
    mapping = ckptool.transfer(source.state_dict(), own, source_model=source, prove=True, inputs=[spec])
    assert mapping.proof is not None
    return mapping


OTHER = "first second last"
WORDS = "query key value out fc1 fc2 ln"

#: What differs, in which model, and words that the sentence about it has to have.
APART: dict[str, tuple[type[nn.Module], dict[str, Any], dict[str, Any], list[str]]] = {
    "eps of norms": (Pictures, {"eps": 1e-3}, {}, ["eps 0.001", "1e-05", "one_norm", "first_norm"]),
    "eps of norms, ten times": (Pictures, {"eps": 1e-6}, {}, ["eps 1e-06", "1e-05"]),
    "eps of a layer norm": (Sequences, {"eps": 1e-3}, {}, ["eps 0.001", "1e-05", "norm", "ln"]),
    "eps of a layer norm, ten times": (Sequences, {"eps": 1e-6}, {}, ["eps 1e-06", "1e-05"]),
    "eps of a norm that is written out": (Sequences, {"rms": True, "eps": 1e-3}, {"rms": True}, ["0.001", "1e-05"]),
    "activation": (Pictures, {"act": nn.SiLU()}, {}, ["silu", "relu"]),
    "slope": (Pictures, {"act": nn.LeakyReLU(0.2)}, {"act": nn.LeakyReLU(0.01)}, ["0.2", "0.01", "leaky_relu"]),
    "approximation of GELU": (Pictures, {"act": nn.GELU("tanh")}, {"act": nn.GELU()}, ["gelu", "tanh", "none"]),
    "GELU in a feed-forward layer": (
        Sequences,
        {"act": lambda x: F.gelu(x, approximate="tanh")},
        {},
        ["gelu", "tanh", "none"],
    ),
    "padding": (Pictures, {"padding_mode": "reflect"}, {}, ["padding_mode", "reflect", "zeros"]),
    "padding in a circle": (Pictures, {"padding_mode": "circular"}, {}, ["padding_mode", "circular", "zeros"]),
    "groups of a norm": (Pictures, {"groups": 4}, {}, ["groups", "4", "2"]),
    "scale of attention": (Sequences, {"scale": 0.25}, {}, ["0.25", "0.5", "scale"]),
    "attention without scale": (Sequences, {"scale": None}, {}, ["0.5", "scale"]),
    "scale of fused attention": (Sequences, {"scale": 0.25, "fused": True}, {"fused": True}, ["0.25", "0.5", "scale"]),
    "dropout left on": (Pictures, {}, {"drop": 0.1}, ["dropout", "0.1"]),
}


@pytest.mark.parametrize("case", APART)
def test_a_setting_that_differs_is_named_and_no_weight_is_changed_for_it(case: str) -> None:
    kind, theirs, ours, words = APART[case]
    spec, other = (PICTURE, OTHER) if kind is Pictures else (SEQUENCE, WORDS)
    torch.manual_seed(0)
    source, own = kind(**theirs), kind(names=other, **ours)
    mapping = proved(source, own, spec)
    proof = mapping.proof
    assert not proof["equal"], proof
    assert proof["causes"], proof["text"]
    for word in words:
        assert word in proof["text"], (word, proof["text"])
    assert proof["difference"] > proof["bound"] > 0
    plain = ckptool.transfer(source.state_dict(), own, inputs=[spec])
    assert [e.expr for e in mapping.entries] == [e.expr for e in plain.entries]


class Small(nn.Module):
    def __init__(self, eps: float = 1e-5) -> None:
        super().__init__()
        self.conv, self.norm, self.dense = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, eps=eps), nn.Linear(4, 6)

    def forward(self, x: torch.Tensor) -> Any:
        return self.dense(self.norm(self.conv(x)).mean((2, 3)))


@pytest.mark.parametrize("eps", [1e-4, 5e-3, 6e-3, 7e-3, 1e-2])
def test_a_setting_is_named_however_little_it_changes(eps: float) -> None:
    """Between 5e-3 and 7e-3 the first inputs of this model hide the difference, and others show it."""
    torch.manual_seed(0)
    source, own = Small().eval(), Small(eps).eval()
    proof = ckptool.transfer(source.state_dict(), own, source_model=source, prove=True, inputs=[PICTURE]).proof
    assert proof is not None
    assert not proof["equal"]
    assert [one["setting"] for one in proof["causes"]] == ["eps"], proof["text"]


@pytest.mark.parametrize(
    ("kind", "theirs"),
    [
        (Pictures, {"momentum": 0.01}),
        (Sequences, {"fused": True}),
        (Sequences, {"act": lambda x: 0.5 * x * (1 + torch.erf(x / 2**0.5))}),
        (Pictures, {"act": lambda x: x.clamp(min=0)}),
    ],
)
def test_code_that_computes_the_same_in_another_way_is_proved_with_its_measure(kind: Any, theirs: Any) -> None:
    spec, other = (PICTURE, OTHER) if kind is Pictures else (SEQUENCE, WORDS)
    torch.manual_seed(0)
    mapping = proved(kind(**theirs), kind(names=other), spec)
    proof = mapping.proof
    assert proof["equal"], proof
    assert 0 <= proof["difference"] <= proof["bound"] < 1e-4 * proof["largest"]
    shown = f"{proof['difference']:.1e}" if proof["difference"] else "0"
    assert f"up to {shown} where rounding explains {proof['bound']:.1e}" in proof["text"]
    assert mapping.is_sure


class Branches(nn.Module):
    """Two layers of one size by their NAMES, of which the first has an activation before it."""

    def __init__(self, names: str, act: Any = torch.tanh) -> None:
        super().__init__()
        self.names, self.act, self.stem = names.split(), act, nn.Linear(3, 4)
        for name in self.names:
            self.add_module(name, nn.Linear(4, 5))
        self.out = nn.Linear(5, 2)

    def forward(self, x: Any) -> Any:
        one, other = (getattr(self, name) for name in self.names)
        x = self.stem(x)
        return self.out(one(self.act(x)) + other(x))


@pytest.mark.parametrize("act", [torch.tanh, torch.sin], ids=["tanh", "sin"])
def test_layers_that_were_exchanged_are_no_difference_of_settings(act: Any) -> None:
    torch.manual_seed(0)
    source, model = Branches("p q").eval(), Branches("a b", act).eval()
    state, given = source.state_dict(), parse_inputs(["float32[2,3]"])
    found = ckptool.transfer(state, model)
    exchanged = {"a": "q", "b": "p"}
    entries = []
    for entry in found.entries:
        layer, _, leaf = entry.target.partition(".")
        entries.append(replace(entry, expr=ex.of(f"{exchanged.get(layer, layer)}.{leaf}"), questions=()))
    mapping = prove(found.with_entries(entries), state, source, model, inputs=given)
    assert mapping.proof is not None
    assert mapping.proof["equal"] == (act is torch.tanh), mapping.proof
    if act is torch.tanh:
        assert not mapping.proof["causes"]
        assert mapping["a.weight"].sources == ["p.weight"]


@pytest.mark.parametrize(("apart", "said"), [(2e-7, True), (1e-4, False)])
def test_a_choice_that_changes_nothing_measurable_is_named(apart: float, said: bool) -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = nn.Linear(4, 5), nn.Linear(5, 5), nn.Linear(5, 3)
            self.one, self.two = nn.Parameter(torch.rand(5) + 1), nn.Parameter(torch.rand(5) + 1)

        def forward(self, x: Any) -> Any:
            return self.c(self.b(self.a(x) * self.one).tanh() * self.two)

    torch.manual_seed(0)
    source = Scaled().eval()
    source.two.data = source.one.data * (1 + apart)
    model = Scaled().eval()
    mapping = ckptool.transfer(
        source.state_dict(),
        model,
        source_model=source,
        prove=True,
        inputs=["float32[2,4]"],
        hints=["one=two", "two=one"],
    )
    assert mapping.proof is not None
    assert mapping.proof["equal"] or not said
    assert ("nothing measurable changes if weights are exchanged of one and two" in mapping.proof["text"]) == said


class Pyramid(nn.Module):
    def __init__(self, head: bool) -> None:
        super().__init__()
        self.a = nn.Conv2d(3, 4, 3, stride=2, padding=1)
        self.b = nn.Conv2d(4, 4, 3, padding=1)
        if head:
            self.lateral = nn.ModuleList([nn.Conv2d(4, 6, 1), nn.Conv2d(4, 6, 1)])
            self.head = nn.Conv2d(6, 5, 1)

    def forward(self, x: Any) -> Any:
        a = self.a(x).relu()
        b = self.b(a).relu()
        if not hasattr(self, "head"):
            return b
        y = self.head(self.lateral[1](b) + self.lateral[0](a))
        return nn.functional.interpolate(y, size=x.shape[-2:], mode="bilinear", align_corners=False)


def test_a_new_head_that_enlarges_its_output_is_left_out_of_the_proof() -> None:
    torch.manual_seed(0)
    source, own = Pyramid(False), Pyramid(True)
    mapping = ckptool.transfer(source.state_dict(), own, inputs=["float32[1,3,8,8]"], source_model=source, prove=True)
    assert mapping.proof is not None
    assert mapping.proof["equal"]
    assert "all before lateral.1.weight, which has no source" in mapping.proof["text"]


def test_an_output_without_one_finite_number_is_infinitely_far_from_one_that_has_some() -> None:
    some, none = (Flow([], [torch.full((2, 3), number)]) for number in (1.0, float("nan")))
    apart = measured(some, none, some, none)
    assert apart is not None
    assert apart.difference == float("inf")
    assert not apart.is_equal


class Softplus(nn.Module):
    """Two layers with a shifted softplus between them, as SchNet has it."""

    def __init__(self, shift: float) -> None:
        super().__init__()
        self.one, self.two, self.shift = nn.Linear(8, 8), nn.Linear(8, 8), shift

    def forward(self, x: Any) -> Any:
        return self.two(F.softplus(self.one(x)) - self.shift)


def test_a_number_that_one_code_rounded_to_float32_is_the_same_number() -> None:
    torch.manual_seed(0)
    source, own = Softplus(torch.log(torch.tensor(2.0)).item()), Softplus(0.6931471805599453)
    assert source.shift != own.shift
    mapping = ckptool.transfer(source.state_dict(), own, inputs=["float32[2,8]"], source_model=source, prove=True)
    assert mapping.proof is not None
    assert mapping.proof["equal"], mapping.proof["text"]


class Quantised(nn.Module):
    """Vectors replaced by the nearest of a table, whose distances one code computes with a factor."""

    def __init__(self, halved: bool, merged: bool) -> None:
        super().__init__()
        self.enter, self.table, self.leave = nn.Linear(8, 8), nn.Embedding(6, 8), nn.Linear(8, 8)
        self.halved = halved
        if not merged:
            self.leave = nn.utils.parametrizations.weight_norm(self.leave)

    def forward(self, x: Any) -> Any:
        x, table = F.normalize(self.enter(x)), F.normalize(self.table.weight)
        if self.halved:
            return self.leave(self.table((x @ table.t()).argmax(-1)))
        far = x.pow(2).sum(1, keepdim=True) - 2 * x @ table.t() + table.pow(2).sum(1, keepdim=True).t()
        return self.leave(self.table((-far).max(1)[1]))


def test_a_factor_of_distances_is_no_cause_of_outputs_that_are_equal_up_to_a_merged_weight_norm() -> None:
    torch.manual_seed(0)
    source, own = Quantised(False, merged=False), Quantised(True, merged=True)
    mapping = ckptool.transfer(source.state_dict(), own, inputs=["float32[5,8]"], source_model=source, prove=True)
    assert mapping.proof is not None
    assert mapping.proof["equal"], mapping.proof["text"]
