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
    from ckptool.architecture import signature_of
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
