"""Proof without names: weights are found by what goes into them, in two codings of one model each."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn

import ckptool
from ckptool.model_code.inputs import parse_inputs
from ckptool.porting import expression as ex
from ckptool.porting.expression import Expr
from ckptool.porting.mapping import Entry, Mapping
from ckptool.porting.prove import prove
from ckptool.porting.prove.other_conventions import changes
from ckptool.porting.questions import Question, Reason, ask

F = nn.functional


def proved(source: nn.Module, own: nn.Module, *inputs: str, **options: Any) -> Mapping:
    """The mapping, of which outputs on inputs of our own are the judge."""
    torch.manual_seed(1)
    for p in source.parameters():
        nn.init.normal_(p, std=0.4)
    state = options.pop("state", None) or source.state_dict()
    mapping = ckptool.transfer(state, own, inputs=list(inputs), source_model=source, prove=True, **options)
    assert mapping.proof is not None
    assert mapping.proof["equal"], mapping.proof
    return mapping


def alike(mapping: Mapping, source: nn.Module, own: nn.Module, *inputs: Any, state: Any = None) -> None:
    ckptool.load_into(own, state or source.state_dict(), mapping=mapping)
    with torch.no_grad():
        torch.testing.assert_close(own.eval()(*inputs), source.eval()(*inputs), rtol=1e-4, atol=1e-5)


class Gates(nn.Module):
    """A recurrent cell of eight small layers, its gates in an order of its own."""

    def __init__(self) -> None:
        super().__init__()
        for gate in "fico":
            setattr(self, f"x{gate}", nn.Linear(3, 5))
            setattr(self, f"h{gate}", nn.Linear(5, 5))

    def forward(self, x: Any) -> Any:
        h, c = torch.zeros(len(x), 5), torch.zeros(len(x), 5)
        for t in range(x.shape[1]):
            f, i, g, o = (getattr(self, f"x{n}")(x[:, t]) + getattr(self, f"h{n}")(h) for n in "fico")
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
        return h


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(3, 5, batch_first=True)

    def forward(self, x: Any) -> Any:
        return self.rnn(x)[0][:, -1]


def test_gates_apart_become_a_recurrent_layer() -> None:
    source, own = Gates(), Recurrent()
    mapping = proved(source, own, "float32[2,4,3]")
    alike(mapping, source, own, torch.randn(3, 6, 3))


class Branches(nn.Module):
    """Three branches joined before a layer, in one order or another."""

    def __init__(self, names: str, order: tuple[int, ...]) -> None:
        super().__init__()
        self.order, self.names = order, names
        for name in names[:3]:
            setattr(self, name, nn.Conv2d(3, 4, 1))
        setattr(self, names[3], nn.Conv2d(12, 5, 1))

    def forward(self, x: Any) -> Any:
        parts = [getattr(self, n)(x).relu() for n in self.names[:3]]
        return getattr(self, self.names[3])(torch.cat([parts[i] for i in self.order], 1))


def test_channels_in_the_order_of_another_concatenation() -> None:
    source, own = Branches("abcz", (0, 1, 2)), Branches("abcz", (2, 0, 1))
    mapping = proved(source, own, "float32[2,3,6,6]")
    assert str(mapping["z.weight"].expr) == "cat(1, slice(z.weight, 1, 8, 12), slice(z.weight, 1, 0, 8))"
    alike(mapping, source, own, torch.randn(1, 3, 5, 5))


class Stacked(nn.Module):
    """Several small networks as matrices in three dimensions, inputs first."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Parameter(torch.randn(3, 4, 6)), nn.Parameter(torch.randn(3, 6, 6))
        self.b = nn.Parameter(torch.randn(3, 1, 6))

    def forward(self, x: Any) -> Any:
        x = x.unsqueeze(0).repeat(3, 1, 1)
        return torch.bmm((torch.bmm(x, self.one) + self.b).sin(), self.two)


class Apart(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.member = nn.ModuleList(
            nn.ModuleDict({"enter": nn.Linear(4, 6), "leave": nn.Linear(6, 6, bias=False)}) for _ in range(3)
        )

    def forward(self, x: Any) -> Any:
        return torch.stack([m["leave"](m["enter"](x).sin()) for m in self.member])


def test_matrices_on_top_of_each_other_become_layers() -> None:
    source, own = Stacked(), Apart()
    mapping = proved(source, own, "float32[7,4]")
    assert mapping["member.1.leave.weight"].sources == ["two"]
    alike(mapping, source, own, torch.randn(2, 4))


class Tied(nn.Module):
    """A decoder that is its encoder, transposed."""

    def __init__(self) -> None:
        super().__init__()
        self.enc, self.out = nn.Linear(6, 4), nn.Parameter(torch.randn(6))

    def forward(self, x: Any) -> Any:
        return F.linear(self.enc(x).tanh(), self.enc.weight.t(), self.out)


def test_a_weight_that_the_code_uses_twice_fills_both_layers() -> None:
    source, own = Tied(), nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 6))
    mapping = proved(source, own, "float32[3,6]")
    assert str(mapping["2.weight"].expr) == "transpose(enc.weight)"
    alike(mapping, source, own, torch.randn(2, 6))


class Attention(nn.Module):
    """Two heads, with a fused projection in the order q, v, k of each of two devices, or one layer for each."""

    def __init__(self, fused: bool) -> None:
        super().__init__()
        self.fused = fused
        if fused:
            self.mixed, self.leave = nn.Linear(8, 24), nn.Linear(8, 8)
        else:
            self.to_k, self.to_v, self.to_q = (nn.Linear(8, 8) for _ in range(3))
            self.to_out = nn.Linear(8, 8)

    def forward(self, x: Any) -> Any:
        n, t, _ = x.shape
        if self.fused:
            q, v, k = self.mixed(x).view(n, t, 2, 3, 4).permute(3, 0, 2, 1, 4)
        else:
            q, k, v = (m(x).view(n, t, 2, 4).transpose(1, 2) for m in (self.to_q, self.to_k, self.to_v))
        out = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, t, 8)
        return (self.leave if self.fused else self.to_out)(out)


@pytest.mark.parametrize("fused", [True, False])
def test_queries_keys_and_values_in_an_order_of_their_own(fused: bool) -> None:
    source, own = Attention(fused), Attention(not fused)
    mapping = proved(source, own, "float32[2,5,8]")
    alike(mapping, source, own, torch.randn(1, 7, 8))


def test_the_bias_of_keys_is_said_to_have_no_influence() -> None:
    source, own = Attention(False), Attention(False)
    mapping = proved(source, own, "float32[2,5,8]")
    assert mapping.proof is not None
    assert mapping.proof["unfelt"] == ["to_k.bias"]
    assert mapping.proof["text"].endswith("they do not depend on 1 key (to_k.bias)")
    assert mapping["to_k.bias"].evidence != "proved by equal outputs"


class Shared(nn.Module):
    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(5, 5) for _ in range(layers))

    def forward(self, x: Any) -> Any:
        for i in range(3):
            x = self.layers[i % len(self.layers)](x).tanh()
        return x


def test_one_layer_that_runs_three_times_fills_three() -> None:
    source, own = Shared(1), Shared(3)
    mapping = proved(source, own, "float32[4,5]")
    assert [e.sources for e in mapping.entries] == [["layers.0.weight"], ["layers.0.bias"]] * 3
    alike(mapping, source, own, torch.randn(2, 5))


def test_the_file_may_call_things_otherwise_than_its_code() -> None:
    """What is found in the code is written in the keys of the file."""
    source, own = Branches("abcz", (0, 1, 2)), Branches("abcz", (1, 2, 0))
    state = {f"net.module.{key}": value for key, value in source.state_dict().items()}
    torch.manual_seed(1)
    mapping = ckptool.transfer(state, own, inputs=["float32[2,3,6,6]"], source_model=source, prove=True)
    assert mapping["z.weight"].sources == ["net.module.z.weight"]
    alike(mapping, source, own, torch.randn(1, 3, 5, 5), state=state)


def test_a_part_of_a_model_is_compared_inside() -> None:
    """The source goes on after what the model is: no output is of the same size."""
    source = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 3))
    own = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 6))
    mapping = ckptool.transfer(source.state_dict(), own, inputs=["float32[5,4]"], source_model=source, prove=True)
    assert mapping.proof is not None
    assert mapping.proof["equal"]
    assert mapping.proof["text"].startswith("2 of 2 uses of weights give the same on float32[5,4]")


def test_a_head_without_a_source_is_said_to_be_left_out() -> None:
    source = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
    own = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 7))
    mapping = ckptool.transfer(source.state_dict(), own, inputs=["float32[5,4]"], source_model=source, prove=True)
    assert mapping.proof is not None
    assert mapping.proof["equal"]
    assert "all before 2.weight, which has no source" in mapping.proof["text"]
    assert mapping["2.weight"].status == "unmapped"


def test_what_holds_on_one_input_only_is_not_proved() -> None:
    class Picky(nn.Module):
        """Looks at what goes in."""

        def __init__(self, odd: bool) -> None:
            super().__init__()
            self.layer, self.odd = nn.Linear(4, 4), odd

        def forward(self, x: Any) -> Any:
            first = torch.randn(5, 4, generator=torch.Generator().manual_seed(20))
            return self.layer(x) * (2 if self.odd and not torch.equal(x, first) else 1)

    source, own = Picky(True), Picky(False)
    mapping = ckptool.transfer(source.state_dict(), own, inputs=["float32[5,4]"], source_model=source, prove=True)
    assert mapping.proof is not None
    assert not mapping.proof["equal"]
    assert "though not on other values" in mapping.proof["text"]


class Scaled(nn.Module):
    """Blocks with a shortcut, whose factors code begins with 0, as it does where blocks are to be added slowly."""

    def __init__(self, names: tuple[str, str, str], first: bool) -> None:
        super().__init__()
        self.names = names
        self.blocks = nn.ModuleList(nn.Module() for _ in range(3))
        for block in self.blocks:
            made = [nn.Linear(6, 6), nn.Linear(6, 6), nn.Parameter(torch.zeros(6))]
            order = (2, 0, 1) if first else (0, 1, 2)
            for place in order:
                setattr(block, names[place], made[place])
        self.out = nn.Linear(6, 6)

    def forward(self, x: Any) -> Any:
        a, b, c = self.names
        for block in self.blocks:
            x = x + getattr(block, b)(getattr(block, a)(x).tanh()) * getattr(block, c)
        return x + self.out(x)


def test_a_factor_of_0_that_has_no_source_yet_agrees_with_nothing() -> None:
    """What comes out of it is 0, whatever went in: that shows nothing about the layers before it."""
    source, own = Scaled(("one", "two", "gamma"), True), Scaled(("up", "down", "factor"), False)
    torch.manual_seed(1)
    for p in source.parameters():
        nn.init.normal_(p, std=0.4)
    state = source.state_dict()
    given = parse_inputs(["float32[4,6]"])
    found = ckptool.transfer(state, own, inputs=["float32[4,6]"])
    missing = [
        replace(e, expr=None, questions=())
        if e.target.endswith("factor") or e.target.startswith("blocks.1.down")
        else e
        for e in found.entries
    ]
    mapping = prove(found.with_entries(missing), state, source.eval(), own.eval(), inputs=given)
    assert mapping.proof is not None
    assert mapping.proof["equal"], mapping.proof
    alike(mapping, source, own, torch.randn(3, 6))


class Channelwise(nn.Module):
    """A layer for each channel of a series, twice."""

    def __init__(self, together: bool) -> None:
        super().__init__()
        self.together = together
        for name in ("trend", "rest") if together else ("a", "b"):
            if together:
                self.register_parameter(f"{name}_weight", nn.Parameter(torch.randn(3, 4, 8)))
                self.register_parameter(f"{name}_bias", nn.Parameter(torch.randn(3, 4)))
            else:
                setattr(self, name, nn.ModuleList(nn.Linear(8, 4) for _ in range(3)))

    def forward(self, x: Any) -> Any:
        rest = x - x.mean(-1, keepdim=True)
        if self.together:
            a = torch.einsum("bci,coi->bco", x, self.trend_weight) + self.trend_bias
            return a + (torch.einsum("bci,coi->bco", rest, self.rest_weight) + self.rest_bias)
        parts = zip(self.a, self.b, strict=True)
        return torch.stack([a(rest[:, i]) + b(x[:, i]) for i, (a, b) in enumerate(parts)], 1)


def test_layers_of_channels_become_one_weight_and_one_bias() -> None:
    source, own = Channelwise(together=False), Channelwise(together=True)
    mapping = proved(source, own, "float32[2,3,8]")
    assert mapping["trend_weight"].sources == [f"b.{n}.weight" for n in range(3)]
    alike(mapping, source, own, torch.randn(5, 3, 8))


class Relations(nn.Module):
    """Nodes of a graph that have no features but a table, so that some of a layer is made of weights alone."""

    def __init__(self, layers: bool) -> None:
        super().__init__()
        self.nodes = nn.Embedding(5, 6)
        self.layers = layers
        if layers:
            self.itself, self.others = nn.Linear(6, 4), nn.ModuleList(nn.Linear(6, 4, bias=False) for _ in range(2))
        else:
            self.weight, self.root = nn.Parameter(torch.randn(2, 6, 4)), nn.Parameter(torch.randn(6, 4))
            self.bias = nn.Parameter(torch.randn(4))

    def forward(self, graph: Any) -> Any:
        x, edges = self.nodes.weight, graph.softmax(-1)
        if self.layers:
            return self.itself(x) + sum(one(edge @ x) for one, edge in zip(self.others, edges, strict=True))
        out = x @ self.root + self.bias
        for edge, weight in zip(edges, self.weight, strict=True):
            out = out + (edge @ x) @ weight
        return out


def test_what_is_made_of_weights_alone_is_found_by_what_it_is_made_of() -> None:
    source, own = Relations(layers=False), Relations(layers=True)
    mapping = proved(source, own, "float32[2,5,5]")
    assert str(mapping["itself.weight"].expr) == "transpose(root)"
    alike(mapping, source, own, torch.randn(2, 5, 5))


class Levels(nn.Module):
    """A stem, and heads that take what it gives: those of the source, or others of the same sizes."""

    def __init__(self, stem: str, heads: tuple[str, ...], last: int | None) -> None:
        super().__init__()
        setattr(self, stem, nn.Linear(4, 6))
        for name in heads:
            setattr(self, name, nn.Linear(6, 6))
        self.names = stem, heads
        if last is not None:
            self.last = nn.Linear(6, last)

    def forward(self, x: Any) -> Any:
        stem, heads = self.names
        x = getattr(self, stem)(x).tanh()
        each = [getattr(self, name)(x).tanh() for name in heads]
        return self.last(sum(each)) if hasattr(self, "last") else each


def test_layers_before_a_new_head_are_not_proved_by_giving_what_those_give_that_fill_them() -> None:
    """They would agree with whatever they are filled with, as nothing that follows is in the source."""
    source, own = Levels("stem", ("box", "label", "depth"), None), Levels("body", ("first", "second"), 7)
    mapping = proved(source, own, "float32[5,4]")
    assert mapping["body.weight"].status == "mapped"
    for head in ("first", "second"):
        assert mapping[f"{head}.weight"].status in ("guessed", "unmapped")


class Normalised(nn.Module):
    """What goes in is centred by statistics that are no parameters."""

    def __init__(self, mean: str, std: str, inner: bool) -> None:
        super().__init__()
        self.register_buffer(mean, torch.linspace(-1, 1, 6) if inner else torch.zeros(6))
        self.register_buffer(std, torch.linspace(0.5, 2, 6) if inner else torch.ones(6))
        self.names = mean, std
        made = [nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)]
        if inner:
            self.policy = nn.Sequential(*made)
        else:
            self.one, self.two = made[0], made[2]

    def forward(self, x: Any) -> Any:
        mean, std = (getattr(self, name) for name in self.names)
        x = (x - mean) / std
        return self.policy(x).sin() if hasattr(self, "policy") else self.two(self.one(x).tanh()).sin()


def test_a_model_is_given_what_the_whole_source_takes_if_that_agrees_nearly_as_far() -> None:
    source, own = Normalised("mean", "std", inner=True), Normalised("shift", "scale", inner=False)
    torch.manual_seed(1)
    state = source.state_dict()
    found = ckptool.transfer(state, own)
    missing = [replace(e, expr=None) if e.target == "shift" else e for e in found.entries]
    mapping = prove(found.with_entries(missing), state, source.eval(), own.eval())
    assert mapping.proof is not None
    assert mapping.proof["equal"], mapping.proof
    assert str(mapping["shift"].expr) == "mean"


class Seeing(nn.Module):
    """A model behind a norm, itself behind an encoder whose blocks take the same sizes as the norm does."""

    def __init__(self, encoder: bool, norm: str, last: int) -> None:
        super().__init__()
        if encoder:
            self.words = nn.Embedding(20, 6)
            self.encoder = nn.Sequential(
                *(nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 6), nn.Tanh()) for _ in range(2))
            )
        setattr(self, norm, nn.LayerNorm(6))
        self.one, self.two, self.begin = nn.Linear(6, 6), nn.Linear(6, last), norm

    def forward(self, x: Any) -> Any:
        x = self.encoder(self.words(x)) if hasattr(self, "encoder") else x
        return self.two(self.one(getattr(self, self.begin)(x)).tanh())


def test_a_part_that_begins_with_a_layer_is_given_what_that_layer_takes() -> None:
    source, own = Seeing(True, "norm", 5), Seeing(False, "norm", 7)
    torch.manual_seed(1)
    for p in source.parameters():
        nn.init.uniform_(p, 0.5, 1.5) if p.ndim == 1 else nn.init.normal_(p, std=0.4)
    mapping = ckptool.transfer(source.state_dict(), own, source_model=source, prove=True)
    assert mapping.proof is not None
    assert mapping.proof["equal"], mapping.proof
    assert mapping["norm.weight"].sources == ["norm.weight"]
    assert "all before two.weight, which has no source" in mapping.proof["text"]


class Edges(nn.Module):
    """The first layer of an edge convolution, as one matrix for a point and its distance or as two that are added; what
    follows is the same, but the norms have each other's names.
    """

    def __init__(self, apart: bool) -> None:
        super().__init__()
        self.apart = apart
        if apart:
            self.centre, self.offset = nn.Linear(4, 6, bias=False), nn.Linear(4, 6, bias=False)
        else:
            self.edge = nn.Linear(8, 6, bias=False)
        self.one, self.mid, self.two = nn.LayerNorm(6), nn.Linear(6, 6), nn.LayerNorm(6)

    def forward(self, x: Any, y: Any) -> Any:
        if self.apart:
            return self.one(self.mid(self.two(self.centre(x) + self.offset(y - x)).relu()))
        return self.two(self.mid(self.one(self.edge(torch.cat([x, y - x], -1))).relu()))


def test_layers_that_one_code_adds_up_show_that_the_layer_after_them_is_wrong() -> None:
    source, own = Edges(False), Edges(True)
    mapping = proved(source, own, "float32[2,5,4]", "float32[2,5,4]")
    assert str(mapping["two.weight"].expr) == "one.weight"
    alike(mapping, source, own, torch.randn(2, 3, 4), torch.randn(2, 3, 4))


class Gated(nn.Module):
    """The gate of GTrXL (Parisotto et al., 2019): a candidate that takes the gated stream, so that only two of three
    matrices of the stream can be joined. Both codes join in an order of their own.
    """

    def __init__(self, joined: bool) -> None:
        super().__init__()
        self.joined = joined
        if joined:
            self.inp, self.mem = nn.Linear(4, 12, bias=False), nn.Linear(4, 8, bias=False)
            self.mem_h, self.forget = nn.Linear(4, 4, bias=False), nn.Parameter(torch.randn(4))
        else:
            for name in ("Wr", "Ur", "Wz", "Uz", "Wg", "Ug"):
                setattr(self, name, nn.Linear(4, 4, bias=False))
            self.bg = nn.Parameter(torch.randn(4))

    def forward(self, x: Any, y: Any) -> Any:
        if self.joined:
            (iz, ir, ih), (mz, mr) = self.inp(y).chunk(3, -1), self.mem(x).chunk(2, -1)
            z, r = (iz + mz - self.forget).sigmoid(), (ir + mr).sigmoid()
            return torch.lerp(x, (ih + self.mem_h(r * x)).tanh(), z)
        r, z = (self.Wr(y) + self.Ur(x)).sigmoid(), (self.Wz(y) + self.Uz(x) - self.bg).sigmoid()
        return (1 - z) * x + z * (self.Wg(y) + self.Ug(r * x)).tanh()


def test_gates_of_which_one_matrix_lacks_some_change_their_order_together() -> None:
    source, own = Gated(False), Gated(True)
    mapping = proved(source, own, "float32[2,5,4]", "float32[2,5,4]")
    assert str(mapping["mem.weight"].expr) == "cat(0, Uz.weight, Ur.weight)"
    alike(mapping, source, own, torch.randn(2, 3, 4), torch.randn(2, 3, 4))


def test_rows_that_are_certain_stay_where_others_may_alternate_by_head() -> None:
    parts = [ex.cat(0, ex.of(f"{name}.a"), ex.of(f"{name}.b")) for name in ("sure", "open")]
    asked: Question[Expr] = ask(Reason.JOINED_LAYERS, "a", "rows")
    entries = {"sure": Entry("sure", (24, 4), parts[0]), "open": Entry("open", (32, 4), parts[1], questions=(asked,))}
    found = [new for label, new in changes(entries, {}) if label == "parts that alternate by 4 heads"]
    assert found == [{"open": ex.by_heads(4, *parts[1].args)}]


def test_some_rows_of_a_table_do_not_keep_parts_from_being_cut_by_heads() -> None:
    parts = {name: ex.part(ex.of("qkv"), 0, 8 * n, 8 * n + 8) for n, name in enumerate("qkv")}
    parts |= {name: ex.part(ex.of("gate_up"), 0, 6 * n, 6 * n + 6) for n, name in enumerate(("gate", "up"))}
    parts["places"] = ex.part(ex.of("table"), 0, 0, 7)
    entries = {name: Entry(name, (x.params[2] - x.params[1], 4), x) for name, x in parts.items()}
    shapes = {"qkv": (24, 4), "gate_up": (12, 4), "table": (9, 4)}
    found = [new for label, new in changes(entries, shapes) if label == "parts that alternate by 2 heads"]
    assert found == [
        {name: ex.of_heads(ex.of("qkv"), 2, 3, n) for n, name in enumerate("qkv")},
        {name: ex.of_heads(ex.of("gate_up"), 2, 2, n) for n, name in enumerate(("gate", "up"))},
    ]


@pytest.mark.parametrize("rows", [16, 24])
def test_two_blocks_of_a_tensor_with_more_rows_are_not_its_parts(rows: int) -> None:
    parts = {name: ex.part(ex.of("fused"), 0, 8 * n, 8 * n + 8) for n, name in enumerate(("one", "other"))}
    entries = {name: Entry(name, (8, 4), x) for name, x in parts.items()}
    labels = {label for label, _ in changes(entries, {"fused": (rows, 4)})}
    assert ("parts that alternate by 2 heads" in labels) == (rows == 16)


class CellWithProjection(nn.Module):
    """An LSTM whose state is projected, step by step."""

    def __init__(self) -> None:
        super().__init__()
        self.input_linearity = nn.Linear(6, 32, bias=False)
        self.state_linearity = nn.Linear(6, 32)
        self.state_projection = nn.Linear(8, 6, bias=False)

    def forward(self, x: Any) -> Any:
        h, c = torch.zeros(len(x), 6), torch.zeros(len(x), 8)
        steps = []
        for t in range(x.shape[1]):
            i, f, g, o = (self.input_linearity(x[:, t]) + self.state_linearity(h)).chunk(4, 1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = self.state_projection(o.sigmoid() * c.tanh())
            steps.append(h)
        return torch.stack(steps, 1)


class BothWays(nn.Module):
    """Two layers that read a sequence from its two ends."""

    def __init__(self, ahead: str, back: str, own: bool) -> None:
        super().__init__()
        for name in (ahead, back):
            setattr(self, name, nn.LSTM(6, 8, proj_size=6, batch_first=True) if own else CellWithProjection())
        self.out = nn.Linear(12, 3)
        self.names, self.own = (ahead, back), own

    def forward(self, x: Any) -> Any:
        ahead, back = (getattr(self, name)(one) for name, one in zip(self.names, (x, x.flip(1)), strict=True))
        a, b = (ahead[0], back[0]) if self.own else (ahead, back)
        return self.out(torch.cat([a, b.flip(1)], 2))


@pytest.mark.parametrize("steps", [3, 5, 7, 12])
def test_two_layers_that_read_a_sequence_from_its_two_ends_get_different_weights(steps: int) -> None:
    source, own = BothWays("forward_layer_0", "backward_layer_0", own=False), BothWays("ahead", "behind", own=True)
    mapping = proved(source, own, f"float32[2,{steps},6]")
    alike(mapping, source, own, torch.randn(3, 9, 6))
