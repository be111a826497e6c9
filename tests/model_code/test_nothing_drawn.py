"""A model without values is built without drawing any, for which torch would import its compiler."""

import pytest

torch = pytest.importorskip("torch")

from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from ckptool.model_code.building import ModelSource, build


class Drawing(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(3, 4)
        self.scale = nn.Parameter(torch.empty(4).normal_())
        nn.init.kaiming_normal_(self.table.weight)
        nn.init.xavier_normal_(tensor=self.table.weight)
        nn.init.normal_(tensor=self.table.weight)
        nn.init.orthogonal_(self.table.weight)
        self.register_buffer("known", torch.empty(5, device="cpu").normal_())


class Drawn(TorchDispatchMode):
    """Notes the devices on which normal numbers are drawn."""

    def __init__(self):
        super().__init__()
        self.devices = []

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        if operation is torch.ops.aten.normal_.default:
            self.devices.append(args[0].device.type)
            return args[0]
        return operation(*args, **(kwargs or {}))


def test_normal_numbers_are_drawn_only_where_there_is_memory():
    with Drawn() as drawn:
        model = build(ModelSource("drawing.py", "Drawing", Drawing, False))
    assert model.table.weight.is_meta
    assert model.scale.is_meta
    assert drawn.devices == ["cpu"]
