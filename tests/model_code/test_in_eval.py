"""A forward pass that only looks leaves nothing behind."""

import threading

import pytest

torch = pytest.importorskip("torch")

from torch import nn

from ckptool.model_code.in_eval import in_eval
from ckptool.model_code.trace import signature_of


class Frozen(nn.Module):
    """A model in training with a frozen norm, which nothing can copy."""

    def __init__(self):
        super().__init__()
        self.lock = threading.Lock()
        self.layer, self.norm, self.drop = nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout()
        self.norm.eval()

    def forward(self, x):
        return self.drop(self.norm(self.layer(x)))


def test_a_norm_that_is_frozen_in_a_training_stays_frozen():
    model = Frozen()
    assert signature_of(model).traced
    assert [model.training, model.layer.training, model.norm.training, model.drop.training] == [True, True, False, True]


def test_a_pass_that_raises_leaves_modes_and_random_numbers_as_they_were():
    model, state = Frozen(), torch.get_rng_state()

    def drawing():
        with in_eval(model, "cpu"):
            assert not any(module.training for module in model.modules())
            raise ZeroDivisionError(torch.rand(3))

    with pytest.raises(ZeroDivisionError):
        drawing()
    assert [model.training, model.norm.training, model.drop.training] == [True, False, True]
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("elsewhere", ["meta", "cpu"])
@pytest.mark.parametrize("device", ["meta", "cpu"])
def test_code_makes_tensors_on_the_device_of_the_model_wherever_they_are_made_by_default(device, elsewhere):
    with torch.device(elsewhere), in_eval(nn.Identity(), device):
        assert torch.arange(3).device.type == device


def test_code_may_do_more_when_training_begins_again():
    class Merging(nn.Linear):
        merged = False

        def train(self, mode=True):
            self.merged = not mode
            return super().train(mode)

    model = Merging(3, 4)
    with in_eval(model, "cpu"):
        assert model.merged
    assert not model.merged
