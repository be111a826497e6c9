"""Branches that the source runs in parallel, added and each with a batch norm, where the model has one layer."""

from __future__ import annotations

from typing import Any

import pytest
from sides import found, signature, wanted

from ckptool.porting.port import port

torch = pytest.importorskip("torch")
nn = torch.nn

Layers = dict[str, Any]


def conv(inputs: int, outputs: int, kernel: Any, groups: int = 1, **more: Any) -> Any:
    sizes = (kernel, kernel) if isinstance(kernel, int) else kernel
    return nn.Conv2d(inputs, outputs, sizes, padding=[n // 2 for n in sizes], groups=groups, bias=False, **more)


class Block(nn.Module):
    """Branches by their names, as lists of layers: one without a layer is a batch norm of the input."""

    def __init__(self, branches: dict[str, list[str]], layers: Layers) -> None:
        super().__init__()
        self.branches = [*branches.values()]
        for name, layer in layers.items():
            *parents, leaf = name.split(".")
            inner: Any = self
            for parent in parents:
                if not hasattr(inner, parent):
                    inner.add_module(parent, nn.Module())
                inner = getattr(inner, parent)
            inner.add_module(leaf, layer)

    def forward(self, x: Any) -> Any:
        made = []
        for names in self.branches:
            y = x
            for name in names:
                y = self.get_submodule(name)(y)
            made.append(y)
        return torch.relu(sum(made[1:], made[0]))


def block(inputs: int, outputs: int, style: str) -> Any:
    """A block as the code of STYLE names it."""
    same = inputs == outputs

    def norm() -> Any:
        return nn.BatchNorm2d(outputs, eps=1e-3)

    layers: Layers
    if style == "RepVGG":
        layers = {"rbr_identity": norm()} if same else {}
        layers |= {"rbr_dense.conv": conv(inputs, outputs, 3), "rbr_dense.bn": norm()}
        layers |= {"rbr_1x1.conv": conv(inputs, outputs, 1), "rbr_1x1.bn": norm()}
    elif style == "YOLOv7":
        layers = {"rbr_dense.0": conv(inputs, outputs, 3), "rbr_dense.1": norm()}
        layers |= {"rbr_1x1.0": conv(inputs, outputs, 1), "rbr_1x1.1": norm()}
    elif style == "RT-DETR":
        layers = {"conv1.conv": conv(inputs, outputs, 3), "conv1.norm": norm()}
        layers |= {"conv2.conv": conv(inputs, outputs, 1), "conv2.norm": norm()}
    elif style == "Ultralytics":
        layers = {"bn": norm()} if same else {}
        layers |= {"conv1.conv": conv(inputs, outputs, 3), "conv1.bn": norm()}
        layers |= {"conv2.conv": conv(inputs, outputs, 1), "conv2.bn": norm()}
    elif style == "ACNet":
        layers = {"square_conv": conv(inputs, outputs, 3), "square_bn": norm()}
        layers |= {"ver_conv": conv(inputs, outputs, (3, 1)), "ver_bn": norm()}
        layers |= {"hor_conv": conv(inputs, outputs, (1, 3)), "hor_bn": norm()}
    else:  # MobileOne: two of one size in the first block, and depthwise ones
        groups = inputs if same else 1
        layers = {"rbr_skip": norm()} if same else {}
        for n in range(1 + (not same)):
            layers |= {f"rbr_conv.{n}.conv": conv(inputs, outputs, 3, groups), f"rbr_conv.{n}.bn": norm()}
        layers |= {"rbr_scale.conv": conv(inputs, outputs, 1, groups), "rbr_scale.bn": norm()}
    branches: dict[str, list[str]] = {}
    for name, layer in layers.items():
        place = name.rpartition(".")[0] or name.partition("_")[0]
        alone = isinstance(layer, nn.BatchNorm2d) and not branches
        branches.setdefault("alone" if alone else place, []).append(name)
    return Block(branches, layers)


STYLES = ["RepVGG", "YOLOv7", "RT-DETR", "Ultralytics", "ACNet", "MobileOne"]
SIZES = [(3, 8), (8, 8), (8, 12), (12, 12), (12, 12)]


class Trained(nn.Module):
    def __init__(self, style: str) -> None:
        super().__init__()
        self.stages = nn.Sequential(*(block(*sizes, style) for sizes in SIZES))
        self.head = nn.Linear(12, 5)

    def forward(self, x: Any) -> Any:
        return self.head(self.stages(x).mean((2, 3)))


class Deployed(nn.Module):
    def __init__(self, style: str) -> None:
        super().__init__()
        depthwise = style == "MobileOne"
        self.stages = nn.ModuleList()
        for inputs, outputs in SIZES:
            one = nn.Module()
            one.reparam = nn.Conv2d(
                inputs, outputs, 3, padding=1, groups=inputs if depthwise and inputs == outputs else 1
            )
            self.stages.append(one)
        self.head = nn.Linear(12, 5)

    def forward(self, x: Any) -> Any:
        for one in self.stages:
            x = torch.relu(one.reparam(x))
        return self.head(x.mean((2, 3)))


def trained(style: str) -> Any:
    torch.manual_seed(0)
    source = Trained(style).eval()
    with torch.no_grad():
        for tensor in source.state_dict().values():
            if tensor.is_floating_point():
                tensor.uniform_(0.2, 1.0)
    return source


def outputs_are_equal(mapping: Any, source: Any, target: Any) -> bool:
    from ckptool.model_code.building import fill
    from ckptool.porting.applying import apply

    fill(target, apply(mapping, source.state_dict()))
    x = torch.rand(2, 3, 8, 8)
    with torch.no_grad():
        one, other = source(x), target(x)
    return bool((one - other).abs().max() < 1e-4 * one.abs().max())


@pytest.mark.parametrize("style", STYLES)
def test_branches_are_added_into_one_kernel_and_with_code_their_outputs_are_equal(style: str) -> None:
    import ckptool

    source, target = trained(style), Deployed(style).eval()
    inputs = (torch.rand(1, 3, 8, 8),)
    mapping = ckptool.transfer(source.state_dict(), target, source_model=source, inputs=inputs, source_inputs=inputs)
    assert mapping.is_sure, str(mapping)
    assert not mapping.having("unmapped")
    assert all("num_batches_tracked" in key for key in mapping.unused)
    assert outputs_are_equal(mapping, source, target)


#: ACNet has its layers and norms in one module, where sorted keys do not show which norm is behind which layer.
SORTED = [style for style in STYLES if style != "ACNet"]


@pytest.mark.parametrize(("style", "in_order"), [*((one, True) for one in STYLES), *((one, False) for one in SORTED)])
def test_without_code_the_sum_is_a_question_whose_option_is_one_branch(style: str, in_order: bool) -> None:
    import ckptool

    source, target = trained(style), Deployed(style).eval()
    weights = source.state_dict()
    given = weights if in_order else {key: weights[key] for key in sorted(weights)}
    mapping = ckptool.transfer(given, target)
    asked = found(mapping, "stages.1.reparam.weight")
    assert "PARALLEL" in {one.reason.name for one in asked.questions if one.is_open}
    assert any("add" not in option.operations() for option in asked.rivals)
    assert all("num_batches_tracked" in key for key in mapping.unused)


def test_layers_in_a_row_are_no_branches() -> None:
    """A basic block has two layers of one size in one module, and a norm behind each."""
    layers = {f"b.{part}{n}.{leaf}": (8,) for n in (1, 2) for part in ("bn",) for leaf in ("weight", "bias")}
    layers |= {f"b.bn{n}.running_{leaf}": (8,) for n in (1, 2) for leaf in ("mean", "var")}
    kernels = {f"b.conv{n}.weight": (8, 8, 3, 3) for n in (1, 2)}
    target = {f"b.conv{n}.{leaf}": kernels["b.conv1.weight"][: 4 if leaf == "weight" else 1]
              for n in (1, 2) for leaf in ("weight", "bias")}  # fmt: skip
    made = port(signature({**kernels, **layers}), wanted(target))
    assert all("add" not in entry.expr.operations() for entry in made.entries if entry.expr is not None)
