"""Channels that are cut into parts, one of which passes unchanged: only code says which one."""

from __future__ import annotations

from typing import Any

import pytest
from sides import found, pairing

torch = pytest.importorskip("torch")


class Widths(torch.nn.Module):
    """A block of a Res2Net: three of four parts go through a layer each, the first or the last one through none."""

    def __init__(self, names: str, *, first_passes: bool) -> None:
        super().__init__()
        self.names, self.first_passes = names.split(), first_passes
        before, norm, inner, after = self.names
        self.add_module(before, torch.nn.Conv1d(8, 12, 1))
        self.add_module(norm, torch.nn.BatchNorm1d(12))
        self.add_module(inner, torch.nn.ModuleList(torch.nn.Conv1d(3, 3, 3, padding=1) for _ in range(3)))
        self.add_module(after, torch.nn.Conv1d(12, 8, 1))

    def forward(self, x: Any) -> Any:
        before, norm, inner, after = (getattr(self, name) for name in self.names)
        parts = list(norm(torch.relu(before(x))).chunk(4, dim=1))
        passing = parts.pop(0) if self.first_passes else parts.pop()
        done: list[Any] = []
        for layer, part in zip(inner, parts, strict=True):
            done.append(layer(part + done[-1] if done else part).relu())
        return after(torch.cat([passing, *done] if self.first_passes else [*done, passing], dim=1))


OURS, THEIRS = "conv1 bn1 convs conv3", "reduce norm scales expand"
INPUTS = (torch.zeros(2, 8, 5),)
#: What has its channels in the order of the parts.
IN_PARTS = {f"conv1.{leaf}" for leaf in ("weight", "bias")} | {"conv3.weight"}
IN_PARTS |= {f"bn1.{leaf}" for leaf in ("weight", "bias", "running_mean", "running_var")}


def transfer(source: Any, target: Any, *, code: bool = False) -> Any:
    from ckptool.model_code.building import signature_of
    from ckptool.porting.sources import match_signature

    told = signature_of(source, inputs=INPUTS) if code else None
    return match_signature(source.state_dict(), signature_of(target, inputs=INPUTS), source_code=told)


def test_which_part_passes_is_a_question_about_all_that_has_these_channels() -> None:
    mapping = transfer(Widths(THEIRS, first_passes=True), Widths(OURS, first_passes=False))
    assert {e.target for e in mapping.having("guessed") if e.parameter or "running" in e.target} == IN_PARTS
    assert found(mapping, "conv3.bias").status == "mapped"
    asked = found(mapping, "conv3.weight")
    assert [str(r) for r in asked.rivals] == ["cat(1, slice(expand.weight, 1, 3, 12), slice(expand.weight, 1, 0, 3))"]


def test_equal_names_are_no_question() -> None:
    assert transfer(Widths(OURS, first_passes=True), Widths(OURS, first_passes=True)).is_sure


@pytest.mark.parametrize("first", [True, False])
def test_the_code_of_the_source_answers_it_and_outputs_are_equal(first: bool) -> None:
    torch.manual_seed(0)
    source, target = Widths(THEIRS, first_passes=True).eval(), Widths(OURS, first_passes=first).eval()
    source.norm.running_mean.uniform_(-1, 1)
    mapping = transfer(source, target, code=True)
    assert mapping.is_sure
    assert (pairing(mapping)["conv1.weight"] == "reduce.weight") is first

    from ckptool.model_code.building import fill
    from ckptool.porting.applying import apply

    fill(target, apply(mapping, source.state_dict()))
    x = torch.randn(2, 8, 5)
    assert torch.allclose(source(x), target(x), atol=1e-6)


class Apart(Widths):
    """The same block, with a layer for each part, so that none passes."""

    def __init__(self, names: str) -> None:
        super().__init__(names, first_passes=False)
        getattr(self, self.names[2]).append(torch.nn.Conv1d(3, 3, 3, padding=1))

    def forward(self, x: Any) -> Any:
        before, norm, inner, after = (getattr(self, name) for name in self.names)
        parts = norm(torch.relu(before(x))).chunk(4, dim=1)
        return after(torch.cat([layer(part) for layer, part in zip(inner, parts, strict=True)], dim=1))


def test_where_every_part_has_a_layer_nothing_is_asked_about_a_part_that_passes() -> None:
    from ckptool.model_code.building import signature_of

    target = signature_of(Apart(OURS), inputs=INPUTS)
    assert not any(entry.facts.bypasses for entry in target.entries.values())


class Staged(torch.nn.Module):
    """A block of YOLOv8: the second half goes through a layer with a shortcut, and all that there is is joined."""

    def __init__(self, names: str, *, order: tuple[int, ...]) -> None:
        super().__init__()
        self.names, self.order = names.split(), order
        before, inner, after = self.names
        self.add_module(before, torch.nn.Conv1d(8, 12, 1))
        self.add_module(inner, torch.nn.Conv1d(6, 6, 1))
        self.add_module(after, torch.nn.Conv1d(6 * len(order), 8, 1))

    def forward(self, x: Any) -> Any:
        before, inner, after = (getattr(self, name) for name in self.names)
        one, two = before(x).chunk(2, dim=1)
        parts = [one, two, two + inner(two).relu()]
        if len(self.order) > len(parts):
            parts.append(parts[-1] + inner(parts[-1]).relu())
        return after(torch.cat([parts[at] for at in self.order], dim=1))


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (0, 2, 1)])
def test_parts_that_both_codes_join_in_one_order_are_no_question_and_those_of_two_orders_are(
    order: tuple[int, ...],
) -> None:
    source, target = Staged("cv1 m cv2", order=(0, 1, 2)), Staged("enter unit leave", order=order)
    assert transfer(source, target, code=True).is_sure is (order == (0, 1, 2))
    assert not transfer(source, target).is_sure


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 1, 3, 2)])
def test_two_changes_of_one_part_are_told_apart(order: tuple[int, ...]) -> None:
    source, target = Staged("cv1 m cv2", order=(0, 1, 2, 3)), Staged("enter unit leave", order=order)
    assert transfer(source, target, code=True).is_sure is (order == (0, 1, 2, 3))
