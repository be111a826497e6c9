"""A note on a forward pass that fails costs the notes after it, and not the order in which layers run."""

import pytest

torch = pytest.importorskip("torch")

from ckptool.model_code.call import every_second
from ckptool.model_code.following import forward_pass
from ckptool.model_code.following.channels import Channels
from ckptool.model_code.trace import signature_of


def test_a_note_that_fails_does_not_stop_the_pass(monkeypatch):
    def fails(*_):
        raise KeyError("a mistake")

    monkeypatch.setattr(forward_pass, "strict", False)
    monkeypatch.setattr(Channels, "see", fails)
    told = signature_of(torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.Conv2d(4, 2, 1)))
    assert told.traced
    assert [entry.used for entry in told.entries.values()] == [0, 1, 2, 3]


def test_a_filter_that_is_a_buffer_is_no_layer():
    """As anti-aliased code has it: what is concatenated behind it comes from the layer before."""

    class Blurred(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.other = torch.nn.Conv2d(3, 4, 1), torch.nn.Conv2d(3, 4, 1)
            self.register_buffer("blur", torch.ones(1, 1, 3, 3))
            self.last = torch.nn.Conv2d(8, 2, 1)

        def forward(self, x):
            blurred = torch.nn.functional.conv2d(self.one(x), self.blur.expand(4, -1, -1, -1), padding=1, groups=4)
            return self.last(torch.cat([blurred, self.other(x)], 1))

    told = signature_of(Blurred(), inputs=(torch.zeros(2, 3, 8, 8),))
    assert told.traced
    assert [key for key, _ in told.entries["last.weight"].facts.joined] == ["one.weight", "other.weight"]


def test_halves_of_a_batch_are_no_halves_of_outputs():
    class Twice(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.proj, self.last = torch.nn.Linear(6, 8), torch.nn.Linear(8, 2)

        def forward(self, x):
            one, other = self.proj(torch.cat([x, x])).chunk(2)
            return self.last(one * other.sigmoid())

    facts = signature_of(Twice(), inputs=(torch.zeros(3, 6),)).entries["proj.weight"].facts
    assert not facts.layout.kind
    assert facts.gate is None


@pytest.mark.parametrize(
    ("index", "rotary"), [((..., slice(None, None, 2)), True), ((slice(None), slice(None, None, 2)), False)]
)
def test_every_second_place_is_not_every_second_number(index, rotary):
    x = torch.zeros(2, 6, 8)
    assert every_second((x, index)) == rotary
