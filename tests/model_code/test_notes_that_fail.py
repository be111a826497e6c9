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


class Passing(torch.nn.Module):
    """Two convolutions, whose outputs code concatenates, behind a FIRST step of any kind."""

    def __init__(self, first):
        super().__init__()
        self.first = first
        self.scale, self.two, self.freq = (torch.nn.Parameter(torch.ones(sizes)) for sizes in ((), (2,), (4,)))
        self.one, self.other = torch.nn.Conv2d(3, 4, 1), torch.nn.Conv2d(3, 4, 1)
        self.table, self.last = torch.nn.Linear(3, 1), torch.nn.Conv2d(8, 2, 1)

    def forward(self, x):
        number = self.first(self, x)
        return self.last(torch.cat([self.one(x) * number, self.other(x)], 1))


@pytest.mark.parametrize("first", [
    lambda model, x: model.scale.exp().view(1),
    lambda model, x: model.two[0] * 1,
    lambda model, x: (model.one(x) * x[:, :1]).sum(dim=(2, 3))[0, 0],
    lambda model, x: torch.einsum("bn,d->bnd", model.table(x.mean((2, 3))), model.freq).mean(),
    lambda model, x: torch.nn.functional.linear(x.mean((1, 2))[:, :4], model.freq).mean(),
], ids=["view", "element", "sum", "einsum", "vector"])  # fmt: skip
def test_tensors_without_dimensions_and_sums_over_several_stop_no_note(first):
    told = signature_of(Passing(first), inputs=(torch.zeros(2, 3, 8, 8),))
    assert told.traced
    assert [key for key, _ in told.entries["last.weight"].facts.joined] == ["one.weight", "other.weight"]


def test_an_activation_is_no_part_of_the_output_that_is_added():
    class Added(torch.nn.Module):
        def __init__(self, *, activated):
            super().__init__()
            self.a, self.b, self.activated = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4), activated

        def forward(self, x):
            first = self.a(x).relu() if self.activated else self.a(x)
            return first + self.b(x)

    for activated in (False, True):
        facts = signature_of(Added(activated=activated), inputs=(torch.zeros(2, 4),)).entries["a.weight"].facts
        assert facts.added == (frozenset() if activated else {"b.weight"})


def test_inputs_that_a_sum_in_place_refuses_are_not_taken():
    class Positions(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.pos = torch.nn.Conv2d(3, 8, 16, 16), torch.nn.Parameter(torch.zeros(1, 36, 8))

        def forward(self, x):
            x = self.conv(x).flatten(2).transpose(1, 2)
            x += self.pos
            return x

    told = signature_of(Positions())
    assert told.inputs == "float32[2,3,96,96]"


@pytest.mark.parametrize(("use", "plus", "times"), [
    (lambda w: w / 2, 0.0, 0.5), (lambda w: w - 1, None, 1.0),
    (lambda w: 1 - w, None, 1.0),
], ids=["halved", "less 1", "from 1"])  # fmt: skip
def test_a_number_that_divides_is_a_factor_and_one_that_is_subtracted_is_not_known(use, plus, times):
    class Changed(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.w = torch.nn.Parameter(torch.ones(4, 4))

        def forward(self, x):
            return torch.nn.functional.linear(x, use(self.w))

    facts = signature_of(Changed(), inputs=(torch.zeros(2, 4),)).entries["w"].facts
    assert (facts.plus, facts.times) == (plus, times)


class Routed(torch.nn.Module):
    """Queries that a rotary embedding turns, then a choice of experts, twice."""

    def __init__(self):
        super().__init__()
        self.queries = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(2))
        self.gates = torch.nn.ModuleList(torch.nn.Linear(8, 4) for _ in range(2))

    def forward(self, x):
        angles = torch.outer(torch.arange(x.shape[1]).float(), torch.ones(4)).repeat(1, 2)
        for query, gate in zip(self.queries, self.gates, strict=True):
            q = query(x)
            one, other = q.chunk(2, -1)
            q = q * angles.cos() + torch.cat([-other, one], -1) * angles.sin()
            weights, chosen = torch.topk(gate(q @ q.mT @ q), 2)
            x = x + q * weights.softmax(-1).sum(-1, keepdim=True) + chosen.float().mean()
        return x


def test_layers_behind_a_choice_of_experts_are_seen_to_be_rotated():
    told = signature_of(Routed(), inputs=(torch.zeros(2, 3, 8),))
    assert [told.entries[f"queries.{n}.weight"].facts.rotary for n in (0, 1)] == ["half", "half"]


def test_after_a_note_that_fails_it_is_not_known_how_layers_are_rotated(monkeypatch):
    see, calls = Channels.see, []

    def fails(self, call, *given):
        calls.extend([call.name] if call.name == "topk" else [])
        if calls:
            raise KeyError("a mistake")
        return see(self, call, *given)

    monkeypatch.setattr(forward_pass, "strict", False)
    monkeypatch.setattr(Channels, "see", fails)
    told = signature_of(Routed(), inputs=(torch.zeros(2, 3, 8),))
    assert [told.entries[f"queries.{n}.weight"].facts.rotary for n in (0, 1)] == ["half", "unknown"]
