"""A new head gets nothing from another head, also in a model in which every layer has sizes of its own."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
nn = torch.nn

import ckptool


class Head(nn.Module):  # type: ignore[misc]
    """A layer, a norm (or none), and an output layer."""

    def __init__(self, width: int, outputs: int, *, norm: bool) -> None:
        super().__init__()
        self.dense = nn.Linear(width, width)
        self.layer_norm = nn.LayerNorm(width) if norm else None
        self.out_proj = nn.Linear(width, outputs)

    def forward(self, x: Any) -> Any:
        x = self.dense(x).tanh()
        return self.out_proj(x if self.layer_norm is None else self.layer_norm(x))


class Model(nn.Module):  # type: ignore[misc]
    """A stack of layers, each wider than the one before, and the heads of a pretraining, or a new one."""

    def __init__(self, *, pretraining: bool) -> None:
        super().__init__()
        self.encoder = nn.ModuleList(nn.Linear(8 + n, 9 + n) for n in range(6))
        self.small = nn.Linear(14, 5)
        if pretraining:
            self.lm_head, self.dist_head = Head(14, 40, norm=True), Head(5, 1, norm=True)
        else:
            self.classification_heads = nn.ModuleDict({"energy": Head(14, 3, norm=False)})

    def forward(self, x: Any) -> Any:
        for layer in self.encoder:
            x = layer(x).relu()
        y = self.small(x)
        if hasattr(self, "lm_head"):
            return self.lm_head(x), self.dist_head(y)
        return self.classification_heads["energy"](x), y


@pytest.mark.parametrize("code", [False, True])
def test_a_new_head_stays_empty_where_only_its_sizes_fit_another_one(code: bool) -> None:
    source, target = Model(pretraining=True), Model(pretraining=False)
    more = {"source_model": source, "prove": False} if code else {}
    mapping = ckptool.transfer(source.state_dict(), target, inputs=["float32[2,8]"], **more)
    assert {entry.target for entry in mapping.having("unmapped")} == {
        key for key in target.state_dict() if key.startswith("classification_heads")
    }
    assert not mapping.having("guessed")
