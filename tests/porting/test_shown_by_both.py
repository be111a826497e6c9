"""Orders of parts and places of norms that the forward passes of both codes show."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
nn = torch.nn

import ckptool
from ckptool.model_code.building import fill
from ckptool.porting.applying import apply


def outputs_are_equal(source: Any, target: Any, x: Any) -> bool:
    """Port SOURCE into TARGET by what their forward passes show, and compare what they give for X."""
    source, target = source.eval(), target.eval()
    given = {"inputs": (x,), "source_inputs": (x,)}
    mapping = ckptool.transfer(source.state_dict(), target, source_model=source, prove=False, **given)
    assert not mapping.having("unmapped"), str(mapping)
    fill(target, apply(mapping, source.state_dict()))
    with torch.no_grad():
        return torch.allclose(source(x), target(x), atol=1e-5)


class Modulated(nn.Module):
    """Two norms whose scale and shift are parts of one output; ORDER says what each part is."""

    def __init__(self, names: str, order: str) -> None:
        super().__init__()
        self.order = order.split()
        self.first, self.name = names.split()
        self.add_module(self.first, nn.Linear(8, 8))
        self.add_module(self.name, nn.Linear(8, 8 * len(self.order)))

    def forward(self, x: Any) -> Any:
        condition = getattr(self, self.first)(x)
        part = dict(zip(self.order, getattr(self, self.name)(condition).chunk(len(self.order), -1), strict=True))
        x = nn.functional.layer_norm(x, (8,)) * (1 + part["scale1"]) + part["shift1"]
        x = torch.relu(x)
        return nn.functional.layer_norm(x, (8,)) * (1 + part["scale2"]) + part["shift2"]


@pytest.mark.parametrize("theirs", ["scale1 shift1 scale2 shift2", "shift1 scale1 scale2 shift2"])
def test_scale_and_shift_of_two_norms_come_into_the_order_of_the_model(theirs: str) -> None:
    torch.manual_seed(0)
    source, target = Modulated("cond ada", theirs), Modulated("embed mod", "shift1 scale1 shift2 scale2")
    assert outputs_are_equal(source, target, torch.randn(2, 3, 8))


class Fused(nn.Module):
    """An attention with one projection, whose parts code cuts in this ORDER."""

    def __init__(self, names: str, order: str) -> None:
        super().__init__()
        self.order, self.names = order, names.split()
        projection, out = self.names
        self.add_module(projection, nn.Linear(8, 24))
        self.add_module(out, nn.Linear(8, 8))

    def forward(self, x: Any) -> Any:
        projection, out = (getattr(self, name) for name in self.names)
        if self.order == "qkv":
            q, k, v = projection(x).chunk(3, -1)
        else:
            k, v, q = projection(x).chunk(3, -1)
        return out(torch.softmax(q @ k.mT, -1) @ v)


@pytest.mark.parametrize(("theirs", "own"), [("qkv", "kvq"), ("kvq", "qkv"), ("kvq", "kvq")])
def test_queries_keys_and_values_come_into_the_order_of_the_model(theirs: str, own: str) -> None:
    torch.manual_seed(0)
    assert outputs_are_equal(Fused("qkv proj", theirs), Fused("to_qkv to_out", own), torch.randn(2, 3, 8))


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8)
        self.conv2, self.bn2 = nn.Conv2d(8, 12, 3, bias=False), nn.BatchNorm2d(12)
        self.fc = nn.Linear(12, 4)

    def forward(self, x: Any) -> Any:
        x = self.bn1(self.conv1(x)).relu()
        return self.fc(self.bn2(self.conv2(x)).relu().mean((2, 3)))


class HalfFolded(nn.Module):
    """Its second convolution has the name of the source's first one."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8)
        self.conv1, self.fc = nn.Conv2d(8, 12, 3), nn.Linear(12, 4)

    def forward(self, x: Any) -> Any:
        return self.fc(self.conv1(self.norm(self.stem(x)).relu()).relu().mean((2, 3)))


def test_a_norm_is_folded_into_a_layer_with_the_name_of_one_that_has_a_norm_in_the_file() -> None:
    torch.manual_seed(0)
    source = Normed()
    for norm in (source.bn1, source.bn2):
        norm.running_mean.uniform_(-1, 1)
        norm.running_var.uniform_(0.5, 2)
    assert outputs_are_equal(source, HalfFolded(), torch.randn(2, 3, 16, 16))
