"""Operations between layers: what they do, and what runs one in the place of another."""

from __future__ import annotations

import math
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn

from ckptool.porting import expression as ex
from ckptool.porting.mapping import Entry
from ckptool.porting.prove.code_steps import instead, step_of
from ckptool.porting.prove.other_settings import settings
from ckptool.porting.prove.recorder import follow
from ckptool.porting.prove.verdict import judge

aten = torch.ops.aten
X = torch.linspace(-2, 2, 7)
INPUT = torch.linspace(-2, 2, 8).reshape(2, 4)


@pytest.mark.parametrize(
    ("func", "args", "kwargs", "added", "factor"),
    [
        (aten.add.Tensor, (X, 2), {"alpha": 3}, 6.0, None),
        (aten.sub.Tensor, (X, 2), {}, -2.0, None),
        (aten.sub.Tensor, (X, 2), {"alpha": 3}, -6.0, None),
        (aten.div.Tensor, (X, 4), {}, None, 0.25),
        (aten.div.Tensor_mode, (X, 4), {"rounding_mode": "floor"}, None, None),
        (aten.div.Tensor, (X, math.inf), {}, None, None),
        (aten.mul.Tensor, (X, True), {}, None, 1.0),
    ],
)
def test_what_a_step_adds_and_multiplies_by(func: Any, args: Any, kwargs: Any, added: Any, factor: Any) -> None:
    step = step_of(0, func, args, kwargs)
    assert step is not None
    assert (step.added, step.factor) == (added, factor)


def test_a_step_that_works_in_place_keeps_its_settings_where_it_runs_instead_of_another() -> None:
    step = step_of(0, aten.gelu_.default, (X,), {"approximate": "tanh"})
    assert step is not None
    made = instead(step)(aten.relu.default, [X], {})
    assert torch.equal(made, torch.nn.functional.gelu(X, approximate="tanh"))
    assert X[0] == -2


def test_outputs_without_numbers_are_not_compared_by_their_places() -> None:
    from ckptool.porting.prove.flow import Flow
    from ckptool.porting.prove.outputs import in_their_places

    def flow(*outputs: Any) -> Any:
        made = Flow.__new__(Flow)
        object.__setattr__(made, "outputs", outputs)
        object.__setattr__(made, "places", ((0,), (1,)))
        return made

    one, other = flow(X, torch.zeros(0)), flow(X.clone(), torch.zeros(0))
    assert in_their_places(one, other, 1e-5)


def test_single_numbers_in_projections_have_no_rows_to_arrange() -> None:
    from ckptool.porting.prove import other_conventions

    shapes = {"attn.q_proj.weight": (8, 8), "attn.q_proj.input_scale": (), "attn.qkv.alpha": ()}
    made = [(Entry(key, shape, ex.of(key)), ex.of(key)) for key, shape in shapes.items()]
    for changes in (other_conventions._rotary_orders(made), other_conventions._fused_by_heads(made)):
        assert not any("scale" in key or "alpha" in key for _, new in changes for key in new)


class Between(nn.Module):
    """Two layers with WHAT between them."""

    def __init__(self, what: Any) -> None:
        super().__init__()
        self.what, self.one, self.two = what, nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Any) -> Any:
        return self.two(self.what(self.one(x)))


#: Name of a step -> what it does.
STEPS: dict[str, Any] = {
    "floor": torch.floor,
    "rounds down": lambda x: torch.div(x, 0.1, rounding_mode="floor"),
    "rounds to 0": lambda x: torch.div(x, 0.1, rounding_mode="trunc"),
    "whole times": lambda x: x // 0.1,
    "rounds": torch.round,
    "times 0": lambda x: x * 0,
    "by infinity": lambda x: x / math.inf,
    "plus": lambda x: x + 2,
    "times": lambda x: x * 3,
}
NO_STEPS: dict[str, Any] = {
    "plus 0": lambda x: x + 0,
    "minus 0": lambda x: x - 0,
    "times 1": lambda x: x * 1,
    "times True": lambda x: x * True,
}


@pytest.mark.parametrize("what", STEPS.values(), ids=STEPS)
def test_arithmetic_that_only_one_code_does_is_a_setting_that_differs(what: Any) -> None:
    source, own = Between(what), Between(nn.Identity())
    keys = {key: Entry(key, tuple(t.shape), ex.of(key)) for key, t in own.state_dict().items()}
    own.load_state_dict(source.state_dict())
    theirs, seen = (follow(model, [INPUT]) for model in (source, own))
    assert theirs is not None
    assert seen is not None
    (found,) = settings(theirs, seen, keys, {})
    assert found.places == [("two", "two")]
    with_it = follow(own, [INPUT], swaps=found.swaps)
    assert with_it is not None
    assert judge(theirs, with_it, keys).equal


@pytest.mark.parametrize("what", NO_STEPS.values(), ids=NO_STEPS)
def test_arithmetic_that_changes_nothing_is_no_setting(what: Any) -> None:
    source, own = Between(what), Between(nn.Identity())
    keys = {key: Entry(key, tuple(t.shape), ex.of(key)) for key, t in own.state_dict().items()}
    theirs, seen = (follow(model, [INPUT]) for model in (source, own))
    assert theirs is not None
    assert seen is not None
    assert settings(theirs, seen, keys, {}) == []
