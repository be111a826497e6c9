"""Parts of one tensor, whose order the model's code shows by the sizes in which it cuts it."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn

from ckptool.model_code.building import signature_of
from ckptool.porting.sources import match_signature


class Table(nn.Module):
    """One table for several things; CUT are the sizes that it is cut into."""

    def __init__(self, rows: int, *, cut: Any = None) -> None:
        super().__init__()
        self.everything = nn.Embedding(rows, 6)
        self.last = nn.Linear(6, 4)
        self.cut = cut

    def forward(self, x: Any) -> Any:
        nodes = self.everything.weight * 2
        if isinstance(self.cut, int):
            parts = [nodes[: self.cut], nodes[self.cut :, ...]]
        else:
            parts = nodes.split(list(self.cut)) if self.cut else [nodes, nodes]
        return self.last(parts[0]).sum() + self.last(parts[1]).sum() + x.sum()


def entry(sizes: dict[str, int], model: nn.Module) -> Any:
    tensors = {f"tables.{name}.weight": torch.randn(rows, 6) for name, rows in sizes.items()}
    tensors |= {"out.weight": torch.randn(4, 6), "out.bias": torch.randn(4)}
    mapping = match_signature(tensors, signature_of(model, inputs=(torch.zeros(3),)))
    return next(e for e in mapping.entries if e.target == "everything.weight")


TWO = {"readers": 7, "books": 11}
FOUR = {"age": 3, "city": 9, "day": 7, "kind": 6}
TWINS = {**FOUR, "kind": 9}


@pytest.mark.parametrize(
    ("sizes", "model", "order"),
    [
        (TWO, Table(18, cut=(7, 11)), "readers books"),
        (TWO, Table(18, cut=(11, 7)), "books readers"),
        (TWO, Table(18, cut=7), "readers books"),
        (TWO, Table(18, cut=11), "books readers"),
    ],
)
def test_parts_stand_in_the_order_in_which_the_code_of_the_model_has_their_sizes(
    sizes: dict[str, int], model: nn.Module, order: str
) -> None:
    found = entry(sizes, model)
    assert str(found.expr) == f"cat(0, {', '.join(f'tables.{name}.weight' for name in order.split())})"
    assert found.status == "mapped"


@pytest.mark.parametrize(
    ("sizes", "model"),
    [
        (TWO, Table(18)),
        ({"readers": 9, "books": 9}, Table(18, cut=(9, 9))),
        (TWINS, Table(28, cut=(3, 9, 7, 9))),
    ],
    ids=["nothing is known", "equal sizes", "equal ones among others"],
)
def test_parts_stand_in_any_order_where_the_code_of_the_model_does_not_tell_them_apart(
    sizes: dict[str, int], model: nn.Module
) -> None:
    assert entry(sizes, model).status == "guessed"


class Detector(nn.Module):
    """Boxes and classes of all anchors in one layer, the one after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.predict = nn.Conv2d(8, 15, 1)

    def forward(self, x: Any) -> Any:
        made = self.predict(x)
        return made[:, :3], made[:, 3:]


def test_parts_that_could_take_turns_do_not_where_the_code_cuts_them_off_whole() -> None:
    tensors = {
        f"head.{name}.weight": torch.randn(rows, 8, 1, 1) for name, rows in (("bbox_pred", 12), ("cls_logits", 3))
    }
    mapping = match_signature(tensors, signature_of(Detector(), inputs=(torch.zeros(1, 8, 4, 4),)))
    found = next(e for e in mapping.entries if e.target == "predict.weight")
    assert str(found.expr) == "cat(0, head.cls_logits.weight, head.bbox_pred.weight)"
    assert found.status == "mapped"


class Sliced(Table):
    """A table that is never cut, and inputs that are."""

    def forward(self, x: Any) -> Any:
        return super().forward(torch.cat([x[:, :11] * 2, x[:, 11:]], 1))


def test_what_the_code_cuts_that_no_weight_made_says_nothing_of_parts() -> None:
    model = Sliced(18)
    tensors = {f"tables.{name}.weight": torch.randn(rows, 6) for name, rows in TWO.items()}
    tensors |= {"out.weight": torch.randn(4, 6), "out.bias": torch.randn(4)}
    mapping = match_signature(tensors, signature_of(model, inputs=(torch.zeros(2, 18),)))
    assert next(e for e in mapping.entries if e.target == "everything.weight").status == "guessed"
