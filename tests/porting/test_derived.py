"""Law: the expression of a tensor that code computes from weights alone gives the values that torch computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import numpy as np
from sides import lazy_tensor

from ckptool.porting import expression as ex
from ckptool.porting.prove.derived import Derived
from ckptool.torch_bridge import to_torch

add, sub, mul, div = torch.add, torch.sub, torch.mul, torch.div
CALLS: list[tuple[str, Callable[..., Any], tuple[Any, ...]]] = [
    (name, call, args)
    for name, call in (("add", add), ("sub", sub), ("mul", mul), ("div", div))
    for number in (0, 2, -0.5)
    for args in (("w", number), (number, "w"))
    if not (name in ("sub", "div") and args[0] != "w")
] + [
    ("neg", torch.neg, ("w",)),
    ("flip", torch.flip, ("w", (0,))),
    ("add", add, ("w", "v")),
    ("sub", sub, ("w", "v")),
    ("mul", mul, ("w", "v")),
]


@pytest.mark.parametrize(("name", "call", "args"), CALLS)
def test_an_expression_gives_what_torch_computes_or_there_is_none(
    name: str, call: Callable[..., Any], args: tuple[Any, ...]
) -> None:
    arrays = {key: np.random.default_rng(n).normal(size=(3, 4)) for n, key in enumerate("wv")}
    weights = {key: torch.from_numpy(values) for key, values in arrays.items()}
    names = {id(weight): key for key, weight in weights.items()}

    def known(tensor: Any) -> Any:
        return ex.of(names[id(tensor)]) if id(tensor) in names else None

    given = [weights.get(one, one) if isinstance(one, str) else one for one in args]
    out = call(*(torch.tensor(one) if isinstance(one, int | float) and call is sub else one for one in given))
    made = Derived(known, {key: values.shape for key, values in arrays.items()}).of(name, given, {}, out)
    if made is None:
        assert name in ("mul", "div")
        assert 0 in args, "a factor of 0 has no inverse"
        return
    tensors = {key: lazy_tensor(values) for key, values in arrays.items()}
    assert torch.equal(to_torch(ex.lazy(made, tensors)), out)
