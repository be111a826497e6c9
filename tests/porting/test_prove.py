"""Proof: conventions that no name and no shape shows are settled by comparing outputs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn

import ckptool
from ckptool.errors import CannotCarry
from ckptool.model_code.inputs import parse_inputs
from ckptool.porting import expression as ex
from ckptool.porting.prove import prove
from ckptool.porting.questions import Reason, ask


class Attention(nn.Module):
    """Two heads; how the rows of the fused projection are laid out is the caller's."""

    def __init__(self, alternate: bool) -> None:
        super().__init__()
        self.qkv, self.out, self.alternate = nn.Linear(8, 24), nn.Linear(8, 8), alternate

    def forward(self, x: Any) -> Any:
        n, t, _ = x.shape
        both = self.qkv(x)
        if self.alternate:
            q, k, v = both.view(n, t, 2, 3, 4).permute(3, 0, 2, 1, 4)
        else:
            q, k, v = both.view(n, t, 3, 2, 4).permute(2, 0, 3, 1, 4)
        return self.out(nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, t, 8))


class Rotary(nn.Module):
    """One head, turned by pairs that stand side by side, or half a head apart."""

    def __init__(self, interleaved: bool) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(8, 8, bias=False) for _ in range(3))
        self.interleaved = interleaved

    def turned(self, x: Any) -> Any:
        angle = torch.arange(x.shape[1], device=x.device)[:, None] * torch.tensor(
            [1.0, 0.5, 0.1, 0.01], device=x.device
        )
        cos, sin = angle.cos(), angle.sin()
        if self.interleaved:
            a, b = x[..., 0::2], x[..., 1::2]
            return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)
        a, b = x.chunk(2, -1)
        return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)

    def forward(self, x: Any) -> Any:
        q, k = self.turned(self.q_proj(x)), self.turned(self.k_proj(x))
        return (q @ k.transpose(1, 2)).softmax(-1) @ self.v_proj(x)


class Flat(nn.Module):
    """A linear layer after feature maps, flattened channels first or last."""

    def __init__(self, last: bool) -> None:
        super().__init__()
        self.conv, self.fc, self.last = nn.Conv2d(3, 4, 3, 2), nn.Linear(4 * 9, 5), last

    def forward(self, x: Any) -> Any:
        x = self.conv(x)
        return self.fc((x.permute(0, 2, 3, 1) if self.last else x).flatten(1))


class Centred(nn.Module):
    """A norm that takes its weight as it is, or adds one."""

    def __init__(self, one: float) -> None:
        super().__init__()
        self.first, self.second, self.one = nn.Linear(6, 6), nn.Linear(6, 6), one
        self.norm_weight = nn.Parameter(torch.rand(6))

    def forward(self, x: Any) -> Any:
        x = self.first(x)
        x = x / x.pow(2).mean(-1, keepdim=True).sqrt() * (self.norm_weight + self.one)
        return self.second(x)


class Twins(nn.Module):
    """Three equal layers, used in another order than they are named."""

    def __init__(self, order: str) -> None:
        super().__init__()
        for name in sorted(order):
            setattr(self, name, nn.Linear(5, 5))
        self.order = order

    def forward(self, x: Any) -> Any:
        for name in self.order:
            x = getattr(self, name)(x).sin()
        return x


CASES: dict[str, tuple[Callable[[Any], nn.Module], Any, Any, str]] = {
    "fused parts that alternate by head": (Attention, True, False, "float32[2,5,8]"),
    "and the other way round": (Attention, False, True, "float32[2,5,8]"),
    "rotary pairs": (Rotary, True, False, "float32[2,6,8]"),
    "rotary pairs, back": (Rotary, False, True, "float32[2,6,8]"),
    "flattened with channels last": (Flat, True, False, "float32[2,3,8,8]"),
    "flattened with channels first": (Flat, False, True, "float32[2,3,8,8]"),
    "norm weights around one": (Centred, 1.0, 0.0, "float32[2,6]"),
    "equal layers in another order": (Twins, "abc", "zxy", "float32[2,5]"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_convention_that_only_code_shows_is_found_by_trial(case: str) -> None:
    kind, theirs, ours, spec = CASES[case]
    torch.manual_seed(0)
    source, own = kind(theirs).eval(), kind(ours).eval()
    mapping = ckptool.transfer(source.state_dict(), own, inputs=[spec], source_model=source, prove=True)
    assert mapping.proof is not None
    assert mapping.proof["equal"], mapping.proof
    ckptool.load_into(own, source.state_dict(), mapping=mapping, accept_guesses=True)
    x = torch.randn(*(int(n) for n in spec[8:-1].split(",")))
    with torch.no_grad():
        torch.testing.assert_close(own(x), source(x), rtol=1e-4, atol=1e-5)


def test_inputs_are_worked_out_from_the_first_layers() -> None:
    torch.manual_seed(0)
    source, own = Flat(False).eval(), Flat(False).eval()
    mapping = ckptool.transfer(source.state_dict(), own, source_model=source, prove=True)
    assert mapping.proof is not None
    assert mapping.proof["equal"]
    assert "float32[2,3," in mapping.proof["text"]


def test_the_first_divergence_is_named() -> None:
    torch.manual_seed(0)

    class Chain(nn.Module):
        def __init__(self, slope: float) -> None:
            super().__init__()
            self.one, self.two, self.three, self.slope = nn.Linear(4, 5), nn.Linear(5, 6), nn.Linear(6, 3), slope

        def forward(self, x: Any) -> Any:
            x = nn.functional.leaky_relu(self.two(self.one(x)), self.slope)
            return self.three(x)

    source = Chain(0.1).eval()
    mapping = ckptool.transfer(source.state_dict(), Chain(0.7).eval(), source_model=source, prove=True)
    assert mapping.proof is not None
    assert not mapping.proof["equal"]
    assert mapping.proof["first_divergence"] == "three"
    told = mapping.proof["layers"]
    assert [(row["layer"], row["source"], row["first"]) for row in told] == [
        ("one", "one", False),
        ("two", "two", False),
        ("three", "three", True),
    ]
    assert max(row["difference"] for row in told[:2]) < 1e-5 < 1e-2 < told[2]["difference"]
    lines = str(mapping).splitlines()
    table = next(n for n, line in enumerate(lines) if line.split()[:2] == ["differs", "by"])
    rows = [line.split() for line in lines[table + 1 : -1]]
    assert [row[-1] for row in rows] == ["one", "two", "three"]
    assert [row[0] == ">" for row in rows] == [False, False, True]


def test_what_the_outputs_do_not_feel_stays_a_guess() -> None:
    """Two layers whose results are thrown away: equal outputs say nothing about them."""

    class Idle(nn.Module):
        def __init__(self, names: str) -> None:
            super().__init__()
            self.stem = nn.Linear(4, 4)
            for name in names:
                setattr(self, name, nn.Linear(3, 3))
            self.names = names

        def forward(self, x: Any) -> Any:
            return self.stem(x)

    torch.manual_seed(0)
    source, own = Idle("ab").eval(), Idle("yx").eval()
    state = dict(sorted(source.state_dict().items()))
    mapping = ckptool.transfer(state, own, inputs=["float32[2,4]"])
    guessed = {e.target for e in mapping.having("guessed")}
    proved = prove(mapping, state, source, own, inputs=parse_inputs(["float32[2,4]"]))
    assert proved.proof is not None
    assert proved.proof["equal"]
    assert {e.target for e in proved.having("guessed")} == guessed


def test_inputs_on_which_nothing_can_be_compared_do_not_hide_what_trials_would_find() -> None:
    """The same input again and again, as frames, fits a model of linear layers too: no output is of one size then."""

    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = nn.ModuleList([nn.Linear(10, 7), nn.Linear(7, 4)])
            self.back = nn.ParameterList([torch.rand(7), torch.rand(10)])

        def forward(self, x: Any) -> Any:
            for layer in self.encoder:
                x = layer(x).relu()
            x = nn.functional.linear(x, self.encoder[1].weight.t(), self.back[0]).relu()
            return nn.functional.linear(x, self.encoder[0].weight.t(), self.back[1])

    class Free(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.enc = nn.Sequential(nn.Linear(10, 7), nn.ReLU(), nn.Linear(7, 4), nn.ReLU())
            self.dec = nn.Sequential(nn.Linear(4, 7), nn.ReLU(), nn.Linear(7, 10))

        def forward(self, x: Any) -> Any:
            return self.dec(self.enc(x))

    torch.manual_seed(0)
    source, own = Tied().eval(), Free().eval()
    mapping = ckptool.transfer(source.state_dict(), own, source_model=source, prove=True)
    assert mapping.proof is not None
    assert mapping.proof["equal"], mapping.proof
    ckptool.load_into(own, source.state_dict(), mapping=mapping)
    x = torch.randn(3, 10)
    with torch.no_grad():
        torch.testing.assert_close(own(x), source(x))


class Stage(nn.Module):
    def __init__(self, first: str, second: str) -> None:
        super().__init__()
        setattr(self, first, nn.Linear(5, 5))
        setattr(self, second, nn.Linear(5, 5))
        self.names = first, second

    def forward(self, x: Any, skip: Any = None) -> Any:
        x = x if skip is None else x + getattr(self, self.names[0])(skip).relu()
        return getattr(self, self.names[1])(x).sin()


class Stages(nn.Module):
    """The first stage that runs has nothing to skip to, and a layer that is never used."""

    def __init__(self, names: list[str], first: str, second: str) -> None:
        super().__init__()
        self.steps = nn.ModuleDict({name: Stage(first, second) for name in names})
        self.order = names

    def forward(self, a: Any, b: Any) -> Any:
        x = a
        for number, name in enumerate(self.order):
            x = self.steps[name](x, b if number else None)
        return x


def test_a_layer_that_is_never_run_goes_where_its_block_went() -> None:
    torch.manual_seed(0)
    source = Stages(["refine4", "refine3", "refine2"], "skip", "out").eval()
    own = Stages(["0", "1", "2"], "residual1", "residual2").eval()
    state = dict(sorted(source.state_dict().items()))
    given = parse_inputs(["float32[2,5]", "float32[2,5]"])
    wrong = ckptool.transfer(state, own, inputs=["float32[2,5]", "float32[2,5]"])
    changed = []
    for e in wrong.entries:
        _, block, name, kind = e.target.split(".")
        key = f"steps.refine{2 + int(block)}.{'skip' if name == 'residual1' else 'out'}.{kind}"
        changed.append(replace(e, questions=(), expr=ex.of(key)))
    wrong = wrong.with_entries(changed)
    proved = prove(wrong, state, source, own, inputs=given)
    assert proved.proof is not None
    assert proved.proof["equal"], proved.proof
    for block, stage in {"0": "refine4", "1": "refine3", "2": "refine2"}.items():
        for name, layer in {"residual1": "skip", "residual2": "out"}.items():
            assert str(proved[f"steps.{block}.{name}.weight"].expr) == f"steps.{stage}.{layer}.weight"


def test_counters_go_with_the_statistics_that_a_proof_finds() -> None:
    """Two halves of one convolution and its norm, as in YOLOv8: no name and no size says so."""

    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cv1, self.bn = nn.Conv2d(3, 8, 1, bias=False), nn.BatchNorm2d(8)
            self.inner, self.cv2 = nn.Conv2d(4, 4, 3, 1, 1), nn.Conv2d(12, 5, 1)

        def forward(self, x: Any) -> Any:
            one, other = self.bn(self.cv1(x)).relu().chunk(2, 1)
            return self.cv2(torch.cat([one, other, self.inner(other)], 1))

    class Halves(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.short, self.main = nn.Conv2d(3, 4, 1, bias=False), nn.Conv2d(3, 4, 1, bias=False)
            self.short_norm, self.main_norm = nn.BatchNorm2d(4), nn.BatchNorm2d(4)
            self.step, self.last = nn.Conv2d(4, 4, 3, 1, 1), nn.Conv2d(12, 5, 1)

        def forward(self, x: Any) -> Any:
            short, main = self.short_norm(self.short(x)).relu(), self.main_norm(self.main(x)).relu()
            return self.last(torch.cat([short, main, self.step(main)], 1))

    torch.manual_seed(0)
    source, own = Whole().eval(), Halves().eval()
    nn.init.uniform_(source.bn.weight)
    source.bn.running_mean.normal_()
    source.bn.num_batches_tracked.fill_(77)
    mapping = ckptool.transfer(source.state_dict(), own, source_model=source, prove=True, inputs=["float32[2,3,4,4]"])
    assert mapping.proof is not None
    assert mapping.proof["equal"]
    for name in ("short_norm", "main_norm"):
        assert str(mapping[f"{name}.num_batches_tracked"].expr) == "bn.num_batches_tracked"


@pytest.mark.parametrize("sizes", [((2, 3, 7), (6, 7)), ((2, 1, 7), (2, 7)), ((6, 7), (3, 2, 7))])
def test_a_model_that_takes_as_many_numbers_in_other_sizes_is_given_the_same(
    sizes: tuple[tuple[int, ...], tuple[int, ...]],
) -> None:
    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.out = nn.Embedding(20, 6), nn.Linear(6, 3)

        def forward(self, ids: Any) -> Any:
            return self.out(self.words(ids.reshape(-1, 7)).cumsum(1))

    torch.manual_seed(0)
    source, own = Words().eval(), Words().eval()
    theirs, given = (f"int64[{','.join(map(str, size))}]<20" for size in sizes)
    state = {f"net.{key}": value for key, value in source.state_dict().items()}
    mapping = ckptool.transfer(state, own, source_model=source, prove=True, inputs=[given], source_inputs=[theirs])
    assert mapping.proof is not None
    assert mapping.proof["equal"]


def test_inputs_of_the_source_in_another_form_are_given_beside_those_of_the_model() -> None:
    class Channels(nn.Module):
        def __init__(self, last: bool) -> None:
            super().__init__()
            self.one, self.two, self.last = nn.Linear(4, 6), nn.Linear(6, 3), last

        def forward(self, x: Any) -> Any:
            return self.two(self.one(x if self.last else x.transpose(1, 2)).relu())

    torch.manual_seed(0)
    source, own = Channels(last=False).eval(), Channels(last=True).eval()
    given = {"inputs": ["float32[2,5,4]"], "source_inputs": ["float32[2,4,5]"]}
    mapping = ckptool.transfer(source.state_dict(), own, source_model=source, prove=True, **given)
    assert mapping.proof is not None
    assert mapping.proof["equal"]
    with pytest.raises(CannotCarry, match="the source's code cannot be run on float32"):
        ckptool.transfer(
            source.state_dict(), own, source_model=source, prove=True, inputs=["float32[2,5,4]"],
            source_inputs=["float32[2,5,7]"],
        )  # fmt: skip
    with pytest.raises(CannotCarry, match="the model cannot be run on float32"):
        ckptool.transfer(source.state_dict(), own, source_model=source, prove=True, inputs=["float32[2,5,7]"])


class Enlarge(nn.Module):
    """Pictures of twice the size; which channel goes to which pixel is the caller's."""

    def __init__(self, *, depth_first: bool, scale: float = 1.0) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(6, 12, 3, padding=1)
        self.depth_first, self.scale = depth_first, scale

    def forward(self, x: Any) -> Any:
        made = self.last(torch.relu(self.first(x)))
        if not self.depth_first:
            return nn.functional.pixel_shuffle(made, 2) * self.scale
        n, _, h, w = made.shape
        return made.view(n, 2, 2, 3, h, w).permute(0, 3, 4, 1, 5, 2).reshape(n, 3, 2 * h, 2 * w) * self.scale


@pytest.mark.parametrize(
    ("theirs", "equal"),
    [
        ({"depth_first": True}, False),
        ({"depth_first": True, "scale": 2.0}, False),
        ({"depth_first": False, "scale": 2.0}, True),
    ],
)
def test_outputs_that_hold_the_same_values_in_another_order_are_not_equal(theirs: dict[str, Any], equal: bool) -> None:
    """A factor behind the last layer is no matter of weights; which channel goes to which pixel is one."""
    torch.manual_seed(0)
    source, own = Enlarge(**theirs).eval(), Enlarge(depth_first=False).eval()
    mapping = ckptool.transfer(source.state_dict(), own, inputs=["float32[1,3,4,4]"], source_model=source, prove=True)
    assert mapping.proof is not None
    assert mapping.proof["equal"] is equal


TURNS: dict[str, Callable[[Any], Any]] = {
    "rows": lambda x: x,
    "columns": lambda x: x.permute(0, 3, 2, 1),
    "columns in one step": lambda x: x.transpose(1, -1),
    "columns of each map": lambda x: x.permute(0, 1, 3, 2),
    "channels last": lambda x: x.movedim(1, -1),
}


class Turned(nn.Module):
    """Feature maps flattened by rows, as most code does, or in another order."""

    def __init__(self, turn: str) -> None:
        super().__init__()
        self.conv, self.fc, self.turn = nn.Conv2d(3, 4, 3, 2), nn.Linear(4 * 12, 5), turn

    def forward(self, x: Any) -> Any:
        return self.fc(TURNS[self.turn](self.conv(x)).flatten(1))


@pytest.mark.parametrize("turn", TURNS)
def test_features_that_the_model_flattens_in_another_order_are_a_guess_that_is_right(turn: str) -> None:
    """The likely source of a model that turns maps as no framework does turns them, too: rows are then the option."""
    torch.manual_seed(0)
    source, own = Turned("rows").eval(), Turned(turn).eval()
    theirs = {key.replace("conv", "first").replace("fc", "last"): value for key, value in source.state_dict().items()}
    mapping = ckptool.transfer(theirs, own, inputs=["float32[2,3,7,9]"])
    made = mapping["fc.weight"]
    assert made.status == ("mapped" if turn == "rows" else "guessed")
    if turn.startswith("columns"):
        assert str(made.expr) == "last.weight"
        chosen = replace(made, expr=made.rivals[0])
        mapping = type(mapping).of(mapping.with_entries([chosen if e is made else e for e in mapping.entries]))
    ckptool.load_into(own, theirs, mapping=mapping, accept_guesses=True)
    with torch.no_grad():
        x = torch.randn(2, 3, 7, 9)
        torch.testing.assert_close(own(x), source(x))


class Scaling(nn.Module):
    """Code that scales its pictures itself, around the layers that other code has alone."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 1))

    def forward(self, x: Any) -> Any:
        return self.layers((x - 0.4) / 0.3)


def test_a_proof_says_where_the_model_begins_if_that_is_inside_of_the_code_of_the_source() -> None:
    torch.manual_seed(0)
    source = Scaling()
    own = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 1))
    mapping = ckptool.transfer(source.state_dict(), own, source_model=source, prove=True)
    assert mapping.proof is not None
    assert mapping.proof["equal"]
    assert mapping.proof["text"].startswith("outputs are equal on float32[")
    assert "as layers of the source's code takes it" in mapping.proof["text"]


def test_a_part_that_is_given_other_words_than_the_whole_is_compared_on_these_also_with_given_inputs() -> None:
    """As the discriminator of ELECTRA, which reads words that the generator has replaced."""

    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.out = nn.Embedding(20, 6), nn.Linear(6, 3)

        def forward(self, ids: Any) -> Any:
            return self.out(self.words(ids))

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.generator, self.discriminator = nn.Embedding(20, 20), Reader()

        def forward(self, ids: Any) -> Any:
            return self.discriminator(self.generator(ids).argmax(-1))

    torch.manual_seed(0)
    source, own = Both(), Reader()
    ids = [torch.randint(20, (2, 7))]
    mapping = ckptool.transfer(source.state_dict(), own, source_model=source, inputs=ids, prove=True)
    assert mapping.proof is not None
    assert mapping.proof["equal"]
    assert "as discriminator of the source's code takes it" in mapping.proof["text"]


def test_a_norm_that_the_code_has_frozen_stays_frozen() -> None:
    class Frozen(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4)), nn.Linear(4, 2)
            self.body.eval()

        def forward(self, x: Any) -> Any:
            return self.head(self.body(x).relu())

    torch.manual_seed(0)
    source, own = Frozen(), Frozen()
    modes = [module.training for module in own.modules()]
    mapping = ckptool.transfer(source.state_dict(), own, source_model=source, prove=True)
    assert mapping.proof is not None
    assert mapping.proof["equal"]
    assert [[module.training for module in model.modules()] for model in (source, own)] == [modes, modes]


@pytest.mark.parametrize("turned", [False, True])
def test_what_the_last_block_throws_away_is_as_in_the_blocks_before_it(turned: bool) -> None:
    class Blocks(nn.Module):
        """Each block passes one result on and gives another one; what the last one passes on, nobody takes."""

        def __init__(self, row: str, names: str) -> None:
            super().__init__()
            self.stem, self.row, self.names = nn.Linear(4, 4), row, names.split()
            members = (nn.ModuleDict({name: nn.Linear(4, 4) for name in self.names}) for _ in range(3))
            self.add_module(row, nn.ModuleList(members))

        def forward(self, x: Any) -> Any:
            x, out = self.stem(x), 0
            for block in getattr(self, self.row):
                keep, give, idle = (block[name] for name in self.names)
                x, out = keep(x).tanh(), out + give(x)
                idle(x.detach())
            return out

    torch.manual_seed(0)
    source, own = Blocks("units", "keep give idle").eval(), Blocks("blocks", "k g i").eval()
    state = source.state_dict()
    found = ckptool.transfer(state, own)
    theirs = dict(zip("kgi", ("keep", "give", "idle"), strict=True))
    entries = []
    for entry in found.entries:
        rest = entry.target.split(".")[1:]
        if rest[1:]:
            number, name, leaf = rest
            other = {"k": "i", "i": "k"}.get(name, name) if turned and number == "2" else name
            new = ex.of(f"units.{number}.{theirs[other]}.{leaf}")
            entry = replace(entry, expr=new, questions=()).asking(ask(Reason.NOT_FELT))
        entries.append(entry)
    mapping = prove(found.with_entries(entries), state, source, own, inputs=parse_inputs(["float32[2,4]"]))
    assert mapping.proof is not None
    assert mapping.proof["equal"], mapping.proof
    assert mapping["blocks.2.g.weight"].status == "mapped"
    assert (mapping["blocks.2.k.weight"].status == "mapped") == (not turned)


@pytest.mark.parametrize("proof", [False, True])
def test_a_port_leaves_the_random_numbers_of_torch_alone(proof: bool) -> None:
    source, model = (
        nn.Sequential(nn.Linear(4, 4), nn.Dropout(), nn.Linear(4, 4)),
        nn.Sequential(*map(nn.Linear, (4, 4), (4, 4))),
    )
    before = torch.get_rng_state()
    ckptool.transfer(source.state_dict(), model, source_model=source, inputs=["float32[2,4]"], prove=proof)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("proof", [True, False, None])
def test_a_port_changes_no_value_of_a_module_that_it_is_given(proof: bool | None) -> None:
    modules = [nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4)) for _ in range(2)]
    weights = {key: value + 1 for key, value in modules[0].state_dict().items()}
    before = [{key: value.clone() for key, value in one.state_dict().items()} for one in modules]
    source, model = modules
    mapping = ckptool.transfer(weights, model, source_model=source, inputs=["float32[2,4]"], prove=proof)
    assert (mapping.proof is None) == (proof is False)
    for one, values in zip(modules, before, strict=True):
        torch.testing.assert_close(one.state_dict(), values, rtol=0, atol=0)
        assert one.training


class InPlace(nn.Module):
    """Code that changes what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, x: Any) -> Any:
        x -= 1
        return self.two(self.one(x).relu())


@pytest.mark.parametrize("how", [{}, {"source_model": InPlace(), "prove": True}], ids=["alone", "with a proof"])
def test_given_inputs_stay_as_they_are_though_code_changes_them(how: dict[str, Any]) -> None:
    x = torch.zeros(2, 4)
    mapping = ckptool.transfer(InPlace().state_dict(), InPlace(), inputs=[x], **how)
    assert torch.equal(x, torch.zeros(2, 4))
    assert not how or (mapping.proof or {})["equal"]


class Inside(nn.Module):
    """Code with CORE inside, and STEP before it."""

    def __init__(self, step: Callable[[Any], Any], core: nn.Module) -> None:
        super().__init__()
        self.step, self.inp, self.core = step, nn.Linear(7, 4), core

    def forward(self, x: Any) -> Any:
        return self.core(torch.tanh(self.inp(self.step(x))))


class Shifted(InPlace):
    def forward(self, x: Any) -> Any:
        return self.two(self.one(x - 1).relu())


BEFORE: dict[str, Callable[[Any], Any]] = {
    "times 2": lambda x: x * 2,
    "in place": lambda x: x.sub_(3),
    "random": lambda x: x + torch.randn_like(x),
}


@pytest.mark.parametrize("step", BEFORE.values(), ids=BEFORE)
@pytest.mark.parametrize("core", [InPlace, Shifted])
def test_a_part_gets_what_the_code_around_it_gives_it(step: Callable[[Any], Any], core: type[nn.Module]) -> None:
    torch.manual_seed(0)
    source = Inside(step, core())
    mapping = ckptool.transfer(source.state_dict(), core(), source_model=source, prove=True)
    assert mapping.proof is not None
    assert mapping.proof["equal"], mapping.proof["text"]


@pytest.mark.parametrize("inputs", [None, ["float32[3,4]"]], ids=["found", "given"])
def test_two_exchanged_layers_are_not_taken_for_a_model_that_begins_at_the_second(inputs: list[str] | None) -> None:
    class Two(nn.Module):
        def __init__(self, *names: str) -> None:
            super().__init__()
            self.names = names
            for name in names:
                self.add_module(name, nn.Linear(4, 4))

        def forward(self, x: Any) -> Any:
            one, two = (getattr(self, name) for name in self.names)
            return two(one(x).relu())

    torch.manual_seed(0)
    source, own = Two("one", "two"), Two("p", "q")
    mapping = ckptool.transfer(source.state_dict(), own)
    swapped = {"p": "two", "q": "one"}
    wrong = [replace(e, expr=ex.of(f"{swapped[e.target[0]]}.{e.target[2:]}"), questions=()) for e in mapping.entries]
    given = None if inputs is None else parse_inputs(inputs)
    found = prove(mapping.with_entries(wrong), source.state_dict(), source, own, inputs=given)
    assert found.proof is not None
    assert found.proof["equal"], found.proof["text"]
    assert [str(e.expr) for e in found.entries] == ["one.weight", "one.bias", "two.weight", "two.bias"]


class Tied(nn.Module):
    """Two layers, the first of which has a second name, before or after its own."""

    def __init__(self, *names: str) -> None:
        super().__init__()
        self.layers = nn.ModuleDict({name: nn.Linear(4, 4) for name in dict.fromkeys(name[0] for name in names)})
        for name in names:
            self.add_module(name, self.layers[name[0]])
        del self.layers
        self.names = names

    def forward(self, x: Any) -> Any:
        return self.q(self.p(x).relu())


@pytest.mark.parametrize("names", [("p", "q"), ("p", "q", "p2"), ("p", "p2", "q"), ("q", "p2", "p", "q2")], ids=str)
@pytest.mark.parametrize("second", ["one", "two"])
def test_all_keys_of_one_tensor_have_what_a_proof_shows(names: tuple[str, ...], second: str) -> None:
    """SECOND is where the second names of both layers get their weights from, before the proof."""
    torch.manual_seed(0)
    source, own = nn.Sequential(), Tied(*names)
    source.add_module("one", nn.Linear(4, 4))
    source.add_module("relu", nn.ReLU())
    source.add_module("two", nn.Linear(4, 4))
    before = {"p": "two", "q": "one", "p2": second, "q2": second}
    entries = []
    for e in ckptool.transfer(source.state_dict(), own).entries:
        module, leaf = e.target.split(".")
        entries.append(replace(e, expr=ex.of(f"{before[module]}.{leaf}"), questions=()))
    mapping = ckptool.transfer(source.state_dict(), own).with_entries(entries)
    x = torch.randn(3, 4)
    found = ckptool.porting.Mapping.of(prove(mapping, source.state_dict(), source, own, inputs=[x]))
    assert found.proof is not None
    assert found.proof["equal"], found.proof["text"]
    assert found.is_sure
    fresh = Tied(*names)
    ckptool.load_into(fresh, source.state_dict(), mapping=found)
    assert torch.allclose(fresh(x), source(x), atol=1e-6)
    assert {str(e.expr) for e in found.entries if e.target.startswith("p")} == {"one.weight", "one.bias"}


def test_a_doubt_about_one_key_of_a_tensor_is_settled_with_the_others_and_each_keeps_its_source() -> None:
    torch.manual_seed(0)
    source, own = Tied("p", "q", "p2"), Tied("p", "q", "p2")
    mapping = ckptool.transfer(source.state_dict(), own)
    of_second = {"p2.weight": ex.of("p2.weight")}  # as a file has it that stores both
    made = [replace(e, expr=of_second.get(e.target, e.expr)) for e in mapping.entries]
    asked = [e.asking(ask(Reason.NOT_FELT)) if e.target == "p2.weight" else e for e in made]
    found = prove(mapping.with_entries(asked), source.state_dict(), source, own, inputs=[torch.randn(3, 4)])
    assert found.proof is not None
    assert found.proof["equal"]
    assert found.proof["unfelt"] == []
    assert found.is_sure
    assert [e.expr for e in found.entries] == [e.expr for e in made]


class Scaled(nn.Module):
    """Code that takes a plain value, too."""

    def __init__(self, one: str, two: str) -> None:
        super().__init__()
        self.names = one, two
        self.add_module(one, nn.Linear(4, 5))
        self.add_module(two, nn.Linear(5, 3))

    def forward(self, x: Any, scale: Any, mode: str = "relu") -> Any:
        one, two = (getattr(self, name) for name in self.names)
        return two(getattr(torch, mode)(one(x) * scale))


@pytest.mark.parametrize(
    "inputs",
    [
        {"inputs": [torch.ones(2, 4), 0.5]},
        {"inputs": [torch.ones(2, 4), 2, "tanh"]},
        {"inputs": {"x": torch.ones(2, 4), "scale": 0.5}},
        {"source_inputs": [torch.ones(2, 4), 0.5]},
        {"inputs": [torch.ones(2, 4), 0.5], "source_inputs": {"scale": 0.5, "x": torch.ones(2, 4)}},
    ],
    ids=["position", "text", "name", "of the source", "of both"],
)
def test_plain_values_are_inputs_too(inputs: dict[str, Any]) -> None:
    torch.manual_seed(0)
    source, own = Scaled("f", "g"), Scaled("one", "two")
    mapping = ckptool.transfer(source.state_dict(), own, source_model=source, prove=True, **inputs)
    assert mapping.proof is not None
    assert mapping.proof["equal"], mapping.proof["text"]


def test_a_given_tensor_may_be_larger_than_all_that_are_searched_for() -> None:
    torch.manual_seed(0)
    source, own = (nn.Sequential(nn.Conv2d(3, 4, 1, stride=8), nn.ReLU(), nn.Conv2d(4, 2, 1)) for _ in range(2))
    x = torch.randn(1, 3, 1024, 1024)
    mapping = ckptool.transfer(source.state_dict(), own, source_model=source, inputs=[x], prove=True)
    assert mapping.proof is not None
    assert mapping.proof["equal"]


@pytest.mark.parametrize("given", ["float32[1,3,8,8]", torch.randn(1, 3, 8, 8)], ids=["a spec", "a tensor"])
def test_given_inputs_on_which_the_code_of_the_source_stops_are_refused(given: Any) -> None:
    class Last(nn.Sequential):
        def forward(self, x: Any) -> Any:
            return super().forward(x.permute(0, 3, 1, 2))

    layers = [nn.Conv2d(3, 4, 1), nn.ReLU(), nn.Conv2d(4, 2, 1)]
    with pytest.raises(CannotCarry, match="the source's code cannot be run on"):
        ckptool.transfer(
            Last(*layers).state_dict(), nn.Sequential(*layers), source_model=Last(*layers), inputs=[given], prove=True
        )


def test_a_right_mapping_is_run_at_most_once_with_the_same_values_beside_the_search_for_inputs() -> None:
    torch.manual_seed(0)
    source, own = Tied("p", "q"), Tied("p", "q")
    runs: list[Any] = []
    own.register_forward_pre_hook(lambda _, args: runs.append((args[0].dtype, args[0].sum().item())))
    mapping = ckptool.transfer(source.state_dict(), own)
    found = prove(mapping, source.state_dict(), source, own, inputs=parse_inputs(["float32[3,4]"]))
    assert found.proof is not None
    assert found.proof["equal"]
    first, *others = Counter(runs).most_common()
    assert first[1] <= 3  # to find inputs, to compare, and for gradients
    assert {count for _, count in others} == {1}
