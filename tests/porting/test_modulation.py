"""Layers that give scale and shift at once: in which order they do, only code says."""

from __future__ import annotations

from typing import Any

import pytest
from sides import found

torch = pytest.importorskip("torch")


class Modulated(torch.nn.Module):
    """Two norms that are scaled and shifted by what comes from a condition."""

    def __init__(self, prefix: str, *, scale_first_at_last: bool) -> None:
        super().__init__()
        self.prefix, self.scale_first = prefix, scale_first_at_last
        for place, parts in enumerate((3, 3, 2)):
            self.add_module(f"{prefix}{place}", torch.nn.Linear(4, 6 * parts))
            self.add_module(f"{prefix}_body{place}", torch.nn.Linear(6, 6 + place))
        self.norm = torch.nn.LayerNorm(6, elementwise_affine=False)

    def forward(self, x: Any, condition: Any) -> Any:
        for place in range(2):
            shift, scale, gate = getattr(self, f"{self.prefix}{place}")(condition).chunk(3, dim=-1)
            inner = self.norm(x) * (1 + scale[:, None]) + shift[:, None]
            x = x + gate[:, None] * getattr(self, f"{self.prefix}_body{place}")(inner)[..., :6]
        shift, scale = getattr(self, f"{self.prefix}2")(condition).chunk(2, dim=1)
        if self.scale_first:
            shift, scale = scale, shift
        return getattr(self, f"{self.prefix}_body2")(self.norm(x) * (1 + scale)[:, None] + shift[:, None])


INPUTS = (torch.zeros(2, 3, 6), torch.zeros(2, 4))


def transfer(source: Any, target: Any, *, code: bool = False) -> Any:
    from ckptool.model_code.building import signature_of
    from ckptool.porting.sources import match_signature

    told = signature_of(source, inputs=INPUTS) if code else None
    return match_signature(source.state_dict(), signature_of(target, inputs=INPUTS), source_code=told)


def test_a_layer_that_gives_scale_and_shift_in_another_order_than_the_others_is_a_guess() -> None:
    source = Modulated("mod", scale_first_at_last=False)
    mapping = transfer(source, Modulated("ada", scale_first_at_last=True))
    assert {e.target for e in mapping.having("guessed")} == {"ada2.weight", "ada2.bias"}
    made = found(mapping, "ada2.bias")
    assert {str(made.expr), *map(str, made.rivals)} == {
        "mod2.bias",
        "cat(0, slice(mod2.bias, 0, 6, 12), slice(mod2.bias, 0, 0, 6))",
    }


def test_one_order_everywhere_or_equal_names_are_no_doubt() -> None:
    same = transfer(Modulated("mod", scale_first_at_last=False), Modulated("ada", scale_first_at_last=False))
    named = transfer(Modulated("ada", scale_first_at_last=True), Modulated("ada", scale_first_at_last=True))
    assert same.is_sure
    assert named.is_sure


@pytest.mark.parametrize("scale_first", [True, False])
def test_the_code_of_the_source_says_in_which_order_it_has_them(scale_first: bool) -> None:
    source = Modulated("mod", scale_first_at_last=scale_first)
    mapping = transfer(source, Modulated("ada", scale_first_at_last=True), code=True)
    assert mapping.is_sure
    assert found(mapping, "ada2.weight").expr.is_copy == scale_first


class Last(torch.nn.Module):
    """A norm at the end that is scaled and shifted; IN are the names of the layer that gives both, and its parent."""

    def __init__(self, parent: str, name: str, *, scale_first: bool, opaque: bool = False) -> None:
        super().__init__()
        self.names, self.scale_first, self.opaque = (parent, name), scale_first, opaque
        self.add_module(parent, torch.nn.Module())
        getattr(self, parent).add_module(name, torch.nn.Linear(6, 12))
        self.norm = torch.nn.LayerNorm(6, elementwise_affine=False)
        self.out = torch.nn.Linear(6, 7)

    def forward(self, x: Any, condition: Any) -> Any:
        if self.opaque:
            raise RuntimeError("cannot be followed")
        shift, scale = getattr(getattr(self, self.names[0]), self.names[1])(condition).chunk(2, dim=1)
        if self.scale_first:
            shift, scale = scale, shift
        return self.out(self.norm(x) * (1 + scale)[:, None] + shift[:, None])


LAST = (torch.zeros(2, 3, 6), torch.zeros(2, 6))


def ported(source: Any, target: Any, inputs: Any = LAST) -> Any:
    from ckptool.model_code.building import signature_of
    from ckptool.porting.sources import match_signature

    return match_signature(source.state_dict(), signature_of(target, inputs=inputs))


TURNED = "cat(0, slice(final.{0}.bias, 0, 6, 12), slice(final.{0}.bias, 0, 0, 6))"


@pytest.mark.parametrize("name", ["adaLN_modulation", "mod"])
def test_the_name_for_code_that_shifts_first_turns_the_layer_of_a_model_that_scales_first(name: str) -> None:
    source = Last("final", name, scale_first=False)
    made = found(ported(source, Last("last_norm", "linear", scale_first=True)), "last_norm.linear.bias")
    assert made.status == "guessed"
    assert str(made.expr) == TURNED.format(name)
    assert [str(rival) for rival in made.rivals] == [f"final.{name}.bias"]


def test_names_that_say_no_order_leave_the_layer_as_it_is_in_doubt() -> None:
    for scale_first in (True, False):
        mapping = ported(Last("final", "lin", scale_first=True), Last("last_norm", "linear", scale_first=scale_first))
        made = found(mapping, "last_norm.linear.bias")
        assert (made.status, str(made.expr)) == ("guessed", "final.lin.bias")


def test_a_model_that_shifts_first_takes_a_layer_that_is_called_so_as_it_is() -> None:
    source = Last("final", "adaLN_modulation", scale_first=False)
    assert ported(source, Last("last_norm", "linear", scale_first=False)).is_sure


def test_where_the_model_could_not_be_followed_a_layer_for_scale_and_shift_is_a_guess() -> None:
    source = Last("final", "adaLN_modulation", scale_first=False)
    mapping = ported(source, Last("last_norm", "linear", scale_first=True, opaque=True))
    assert {e.target for e in mapping.having("guessed")} == {"last_norm.linear.weight", "last_norm.linear.bias"}


class Gated(torch.nn.Module):
    """A feed-forward layer whose first matrix gives gate and value."""

    def __init__(self, names: tuple[str, str], activation: Any, *, gate_first: bool) -> None:
        super().__init__()
        self.names, self.activation, self.gate_first = names, activation, gate_first
        self.add_module(names[0], torch.nn.Linear(6, 20))
        self.add_module(names[1], torch.nn.Linear(10, 6))

    def forward(self, x: Any) -> Any:
        gate, value = getattr(self, self.names[0])(x).chunk(2, dim=-1)
        if not self.gate_first:
            gate, value = value, gate
        return getattr(self, self.names[1])(self.activation(gate) * value)


GATED = (torch.zeros(2, 3, 6),)


@pytest.mark.parametrize("activation", ["silu", "gelu"])
@pytest.mark.parametrize("gate_first", [True, False])
def test_which_half_is_the_gate_is_a_guess_by_what_it_goes_through(activation: str, gate_first: bool) -> None:
    function = getattr(torch.nn.functional, activation)
    source = Gated(("widen", "narrow"), function, gate_first=gate_first)
    made = found(ported(source, Gated(("fc1", "fc2"), function, gate_first=gate_first), GATED), "fc1.weight")
    assert made.status == "guessed"
    assert made.expr.is_copy == (gate_first == (activation == "silu"))
    assert len(made.rivals) == 1


def test_a_name_that_says_gate_and_up_says_which_half_it_is() -> None:
    silu = torch.nn.functional.silu
    source = Gated(("gate_up_proj", "down_proj"), silu, gate_first=True)
    assert ported(source, Gated(("fc1", "fc2"), silu, gate_first=True), GATED).is_sure
    made = found(ported(source, Gated(("fc1", "fc2"), silu, gate_first=False), GATED), "fc1.weight")
    assert made.status == "guessed"
    assert str(made.expr).startswith("cat(0, slice(gate_up_proj.weight, 0, 10, 20)")
