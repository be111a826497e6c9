"""A first layer of another number of input channels: rules with names, guesses unless one is asked for."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import ckptool
from ckptool.errors import RuleError
from ckptool.porting import expression as ex
from ckptool.porting.expression import Expr
from ckptool.porting.holes.remedies import by_rule, remedy
from ckptool.porting.mapping import Entry, Mapping


def net(channels: int) -> nn.Module:
    torch.manual_seed(channels)
    return nn.Sequential(nn.Conv2d(channels, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.Flatten(1))


def kernel(have: int, wanted: int, rule: str | None = None) -> tuple[Any, Any, ckptool.Mapping]:
    source, own = net(have), net(wanted)
    mapping = ckptool.transfer(source.state_dict(), own, input_channels=rule, inputs=[f"float32[2,{wanted},9,9]"])
    ckptool.load_into(own, source.state_dict(), mapping=mapping, accept_guesses=True)
    return source[0].weight.detach(), own[0].weight.detach(), mapping


@settings(max_examples=25, deadline=None)
@given(st.sampled_from([1, 2, 3, 4, 6, 9, 13]), st.sampled_from([1, 2, 3, 4, 6, 9, 13]))
def test_any_number_of_channels_is_filled_from_any_other_as_a_guess(have: int, wanted: int) -> None:
    _, _, mapping = kernel(have, wanted)
    statuses = {e.target: e.status for e in mapping.entries}
    same = "mapped" if have == wanted else "guessed"
    assert (statuses.pop("0.weight"), statuses.pop("0.bias")) == (same, same)
    assert set(statuses.values()) == {"mapped"}


@pytest.mark.parametrize("wanted", [4, 6, 8, 13])
def test_channels_are_repeated_as_timm_does_it(wanted: int) -> None:
    """Repeated in turn until there are enough, times 3 by their number: a picture of equal channels gives the same."""
    old, new, _ = kernel(3, wanted)
    expected = old.repeat(1, -(-wanted // 3), 1, 1)[:, :wanted] * (3 / wanted)
    torch.testing.assert_close(new, expected)


def test_to_grey_channels_are_summed() -> None:
    old, new, mapping = kernel(3, 1)
    torch.testing.assert_close(new, old.sum(1, keepdim=True))
    said = "input channels is 3 in the file and 1 in the model, so its channels were summed to 1; check"
    assert said in mapping["0.weight"].doubts[0]


@pytest.mark.parametrize("stored", [False, True], ids=["matched", "by a mapping"])
def test_a_rule_that_is_asked_for_when_a_model_is_loaded_needs_no_acceptance(stored: bool) -> None:
    source, own = net(3), net(1)
    mapping = ckptool.transfer(source.state_dict(), own, inputs=["float32[2,1,9,9]"]) if stored else None
    found = ckptool.load_into(own, source.state_dict(), mapping=mapping, input_channels="mean")
    assert found.is_sure
    torch.testing.assert_close(own[0].weight, source[0].weight.mean(1, keepdim=True))


CASES: dict[tuple[int, int, str], Any] = {
    (3, 4, "zeros"): lambda w: torch.cat([w, torch.zeros_like(w[:, :1])], 1),
    (3, 4, "mean"): lambda w: w.sum(1, keepdim=True).repeat(1, 4, 1, 1) / 4,
    (3, 1, "mean"): lambda w: w.mean(1, keepdim=True),
    (3, 1, "first"): lambda w: w[:, :1],
    (13, 3, "first"): lambda w: w[:, :3],
    (4, 3, "sum"): lambda w: w[:, :3] + torch.cat([w[:, 3:], torch.zeros_like(w[:, :2])], 1),
    (6, 3, "sum"): lambda w: w[:, :3] + w[:, 3:],
    (1, 3, "repeat"): lambda w: w.repeat(1, 3, 1, 1) / 3,
}


@pytest.mark.parametrize("text", ["scale(k, 0.5)", "add(k, b)", "mul(k, zeros(8))", "sum(k, 3)"])
@pytest.mark.parametrize("channels", [(3, 1), (3, 4), (3, 6), (6, 3), (4, 3), (1, 3)])
def test_operations_that_make_the_kernel_of_the_file_are_not_taken_for_a_rule(
    text: str, channels: tuple[int, int]
) -> None:
    old, new = ((8, n, 5, 5) for n in channels)

    def ways(kernel: Expr) -> dict[str, Expr]:
        found = remedy(new, old, kernel, None, is_input=True)
        assert found is not None
        mapping = Mapping((Entry("w", new, found[0], questions=(found[1],)),), ())
        made = {}
        for rule in ("repeat", "sum", "mean", "zeros", "first"):
            with suppress(RuleError):
                made[rule] = by_rule(mapping, rule)["w"].expr
        return made

    plain = ways(ex.of("k"))
    assert len(plain) > 1
    made = ex.parse(text)
    assert ways(made) == {rule: one.replaced(lambda key: made) for rule, one in plain.items()}


@pytest.mark.parametrize("case", CASES)
def test_a_rule_that_is_asked_for_is_no_guess(case: tuple[int, int, str]) -> None:
    old, new, mapping = kernel(*case)
    torch.testing.assert_close(new, CASES[case](old))
    assert mapping.is_sure


def test_a_rule_that_does_not_lead_there_is_refused() -> None:
    with pytest.raises(RuleError, match="'zeros' does not lead from 3 input channels to 1"):
        kernel(3, 1, "zeros")


def test_layers_inside_of_a_model_are_not_cut_to_size() -> None:
    """Which channels an inner layer takes is no matter of pictures."""
    source = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 6, 3), nn.Conv2d(6, 4, 3))
    own = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 7, 3), nn.Conv2d(7, 4, 3))
    mapping = ckptool.transfer(source.state_dict(), own, inputs=["float32[2,3,9,9]"])
    assert {e.status for e in mapping.entries if e.target in ("1.weight", "2.weight")} == {"unmapped"}
