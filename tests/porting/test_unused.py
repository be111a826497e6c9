"""Keys without a source, which a proof makes of tensors that nothing uses; and code whose weights lie apart."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import numpy as np
from torch import nn

import ckptool
from ckptool.model_code.inputs import parse_inputs
from ckptool.porting import expression as ex
from ckptool.porting.expression import Shape
from ckptool.porting.forms.own_code import named_alike
from ckptool.porting.mapping import Mapping
from ckptool.porting.prove import prove
from ckptool.porting.prove.dimensions import bordered, ways

F = nn.functional


def tried(source: nn.Module, own: nn.Module, *inputs: str) -> Mapping:
    """The mapping after a proof, with random weights."""
    torch.manual_seed(3)
    for p in source.parameters():
        nn.init.normal_(p, std=0.5)
    return ckptool.transfer(source.state_dict(), own, inputs=list(inputs), source_model=source, prove=True)


def filled(source: nn.Module, own: nn.Module, *inputs: str) -> Mapping:
    """The mapping, which has to be proved by tensors that nothing used."""
    mapping = tried(source, own, *inputs)
    assert mapping.proof is not None
    assert mapping.proof["equal"], mapping.proof
    assert any("unused" in change for change in mapping.proof["changes"])
    assert not [e for e in mapping.entries if e.status != "mapped"]
    return mapping


def refused(source: nn.Module, own: nn.Module, *inputs: str) -> None:
    mapping = tried(source, own, *inputs)
    assert mapping.proof is not None
    assert not mapping.proof["equal"]


# ------------------------------------------------------------------------------------------------ the rearrangements

SHAPES: list[tuple[Shape, Shape]] = [
    ((3, 1, 4), (1, 3, 4)),
    ((2, 3, 5, 2), (4, 3, 5)),
    ((4, 6, 1), (2, 4, 3)),
    ((3, 4, 4), (1, 4, 12)),
    ((1, 3, 4), (3, 4, 1)),
    ((2, 6, 5), (2, 5, 6)),
    ((1, 4), (4,)),
]


@pytest.mark.parametrize(("have", "want"), SHAPES, ids=str)
def test_a_way_does_what_numpy_does(have: Shape, want: Shape) -> None:
    values = np.arange(np.prod(have), dtype=np.float32).reshape(have)
    shapes = {f"s{i}": have[1:] for i in range(have[0])}
    source = {key: torch.from_numpy(values[i].copy()) for i, key in enumerate(shapes)}
    found = ways(have, want)
    assert found
    tensors = ckptool.porting.applying.open_source(source).state_dict().tensors
    for way in found:
        made = way.made([ex.of(key) for key in shapes], have[1:], want[0], want[1:], shapes)
        assert made is not None
        factors = values.reshape([size for axis in way.factors for size in axis])
        expected = factors.transpose([one for axis in way.order for one in axis]).reshape(want)
        for i, x in enumerate(made):
            told = ex.lazy(x, tensors)
            assert np.array_equal(told.numpy(), expected[i]), (way, str(x))


def test_the_first_way_is_the_plainest() -> None:
    (first, *_) = ways((3, 4), (1, 3, 4))
    made = first.made([ex.of(k) for k in "abc"], (4,), 1, (3, 4), dict.fromkeys("abc", (4,)))
    assert list(map(str, made or ())) == ["cat(0, reshape(a, 1, 4), reshape(b, 1, 4), reshape(c, 1, 4))"]
    assert not ways((3, 4), (1, 3, 5))


# --------------------------------------------------------------------------------------------------- vectors, stacked


class Mixed(nn.Module):
    """Three vectors mix what comes with what came before."""

    def __init__(self, d: int = 6) -> None:
        super().__init__()
        self.into = nn.Linear(4, d)
        self.u, self.v, self.w, self.end = (nn.Parameter(torch.zeros(1, 1, d)) for _ in range(4))
        self.a, self.b, self.c = nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, d)

    def forward(self, x: Any) -> Any:
        x = self.into(x)
        old = F.pad(x, (0, 0, 1, 0))[:, :-1]
        a, b, c = (m(x * v + old * (1 - v)) for m, v in ((self.a, self.u), (self.b, self.v), (self.c, self.w)))
        return (a.sigmoid() * b + c.tanh()) * self.end


class MixedAtOnce(nn.Module):
    def __init__(self, d: int = 6, *, slope: bool = False) -> None:
        super().__init__()
        self.into, self.mixes, self.gain = nn.Linear(4, d), nn.Parameter(torch.zeros(3, d)), nn.Parameter(torch.ones(d))
        self.a, self.b, self.c = nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, d)
        self.slope = slope

    def forward(self, x: Any) -> Any:
        x = self.into(x)
        old = F.pad(x, (0, 0, 1, 0))[:, :-1]
        a, b, c = (m(torch.lerp(old, x, v)) for m, v in zip((self.a, self.b, self.c), self.mixes, strict=True))
        return (a.sigmoid() * b + (c.sin() if self.slope else c.tanh())) * self.gain


def test_vectors_apart_become_the_rows_of_a_matrix() -> None:
    mapping = filled(Mixed(), MixedAtOnce(), "float32[2,5,4]")
    assert mapping["mixes"].sources == ["u", "v", "w"]


def test_a_filling_proves_nothing_if_the_codes_differ() -> None:
    refused(Mixed(), MixedAtOnce(slope=True), "float32[2,5,4]")


# ------------------------------------------------------------------------------------------------- numbers in two parts


class Spectral(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(2, 5), nn.Linear(3, 2)
        self.kernel = nn.Parameter(torch.zeros(5, 3, 4, 2))

    def forward(self, x: Any) -> Any:
        f = torch.fft.rfft(self.into(x), dim=1)[:, :4]
        g = torch.einsum("bki,iok->bko", f, torch.view_as_complex(self.kernel))
        return self.out(torch.fft.irfft(g, n=8, dim=1))


class InTwoParts(nn.Module):
    """Its names do not say which part is real: names would be enough for matching."""

    def __init__(self, sign: int = 1) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(2, 5), nn.Linear(3, 2)
        self.u, self.v = nn.Parameter(torch.zeros(4, 5, 3)), nn.Parameter(torch.zeros(4, 5, 3))
        self.sign = sign

    def forward(self, x: Any) -> Any:
        f = torch.fft.rfft(self.into(x), dim=1)[:, :4]
        re = torch.einsum("bki,kio->bko", f.real, self.u) - torch.einsum("bki,kio->bko", f.imag, self.v)
        im = torch.einsum("bki,kio->bko", f.real, self.v) + torch.einsum("bki,kio->bko", f.imag, self.u)
        return self.out(torch.fft.irfft(torch.complex(re, im * self.sign), n=8, dim=1))


def test_a_complex_kernel_becomes_two_real_ones() -> None:
    mapping = filled(Spectral(), InTwoParts(), "float32[2,8,2]")
    assert str(mapping["u"].expr) == "permute(select(kernel, 3, 0), 2, 0, 1)"
    assert str(mapping["v"].expr) == "permute(select(kernel, 3, 1), 2, 0, 1)"


def test_no_order_of_parts_is_proved_if_the_code_turns_a_sign() -> None:
    refused(Spectral(), InTwoParts(sign=-1), "float32[2,8,2]")


# ----------------------------------------------------------------------------------------- layers that are added


class Added(nn.Module):
    def __init__(self, d: int = 6) -> None:
        super().__init__()
        self.node, self.edge = nn.Linear(4, d), nn.Linear(2, d)
        self.here, self.there, self.along, self.leave = (nn.Linear(d, d) for _ in range(4))

    def forward(self, x: Any, e: Any) -> Any:
        h, e = self.node(x), self.edge(e)
        m = self.there(h)[:, None] + self.here(h)[None] + self.along(e)
        return self.leave(F.silu(m)).sum(1)


class Joined(nn.Module):
    def __init__(self, d: int = 6) -> None:
        super().__init__()
        self.points, self.links = nn.Linear(4, d), nn.Linear(2, d)
        self.phi = nn.Sequential(nn.Linear(3 * d, d), nn.SiLU(), nn.Linear(d, d))

    def forward(self, x: Any, e: Any) -> Any:
        h, e = self.points(x), self.links(e)
        n = len(h)
        return self.phi(torch.cat([h[:, None].expand(n, n, -1), e, h[None].expand(n, n, -1)], -1)).sum(1)


def test_layers_that_are_added_become_one_with_a_sum_of_biases() -> None:
    mapping = filled(Added(), Joined(), "float32[3,4]", "float32[3,3,2]")
    assert str(mapping["phi.0.weight"].expr) == "cat(1, there.weight, along.weight, here.weight)"
    assert set(mapping["phi.0.bias"].sources) == {"there.bias", "along.bias", "here.bias"}


# -------------------------------------------------------------------------------------------------- recurrent layers


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.into, self.rnn = nn.Linear(3, 5), nn.GRU(5, 4, batch_first=True)

    def forward(self, x: Any) -> Any:
        return self.rnn(self.into(x).relu())[0]


class UpdateFirst(nn.Module):
    """The same with matrices of inputs first, and its gates in another order."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Linear(3, 5)
        self.kernel, self.inner = nn.Parameter(torch.zeros(5, 12)), nn.Parameter(torch.zeros(4, 12))
        self.bias = nn.Parameter(torch.zeros(2, 12))

    def forward(self, x: Any) -> Any:
        h, out = x.new_zeros(len(x), 4), []
        for step in self.encode(x).relu().unbind(1):
            a, b = step @ self.kernel + self.bias[0], h @ self.inner + self.bias[1]
            keep, reset = torch.sigmoid(a[:, :4] + b[:, :4]), torch.sigmoid(a[:, 4:8] + b[:, 4:8])
            h = keep * h + (1 - keep) * torch.tanh(a[:, 8:] + reset * b[:, 8:])
            out.append(h)
        return torch.stack(out, 1)


def test_gates_in_another_order_are_found_with_the_matrices() -> None:
    mapping = filled(Recurrent(), UpdateFirst(), "float32[2,4,3]")
    assert mapping["bias"].sources == ["rnn.bias_ih_l0", "rnn.bias_hh_l0"]


class Levels(nn.Module):
    def __init__(self, count: int) -> None:
        super().__init__()
        self.into, self.rnn = nn.Linear(2, 5), nn.LSTM(5, 3, count, batch_first=True)

    def forward(self, x: Any) -> Any:
        return self.rnn(self.into(x))[0]


class WithOneBias(nn.Module):
    """The same, step by step, with one bias for the input and the state."""

    def __init__(self, count: int, *, again: bool = False) -> None:
        super().__init__()
        self.levels = nn.ModuleList(self.level(3 if number else 5) for number in range(count))
        self.encode, self.again = nn.Linear(2, 5), again

    def level(self, width: int) -> nn.ParameterDict:
        sizes = {"A": (width, 12), "B": (3, 12), "d": (12,)}  # names that say nothing
        return nn.ParameterDict({name: nn.Parameter(torch.rand(size)) for name, size in sizes.items()})

    def forward(self, x: Any) -> Any:
        x = self.encode(x)
        for level in self.levels:
            h, c, out = x.new_zeros(len(x), 3), 0, []
            for step in x.unbind(1):
                i, f, g, o = (step @ level["A"] + h @ level["B"] + level["d"] * (1 + self.again)).chunk(4, -1)
                c = f.sigmoid() * c + i.sigmoid() * g.tanh()
                h = o.sigmoid() * torch.tanh(c)
                out.append(h)
            x = torch.stack(out, 1)
        return x


def test_one_bias_is_the_sum_of_the_two_that_a_recurrent_layer_has_at_each_level() -> None:
    mapping = filled(Levels(2), WithOneBias(2), "float32[2,3,2]")
    assert [mapping[f"levels.{n}.d"].sources for n in (0, 1)] == [
        [f"rnn.bias_ih_l{n}", f"rnn.bias_hh_l{n}"] for n in (0, 1)
    ]


def test_no_sum_is_proved_if_the_code_adds_the_bias_twice() -> None:
    refused(Levels(1), WithOneBias(1, again=True), "float32[2,3,2]")


# ------------------------------------------------------------------------------------------------- borders, and beside


class Terms(nn.Module):
    """A score of pairs with a term for each of the two, and two other scores without one of the terms."""

    def __init__(self, d: int = 5) -> None:
        super().__init__()
        self.left, self.right, self.factor = nn.Linear(3, d), nn.Linear(3, d), 1.0
        self.U, self.u = nn.Parameter(torch.zeros(d, d)), nn.Parameter(torch.zeros(d))
        self.V, self.v, self.w = (nn.Parameter(torch.zeros(2, *size)) for size in ((d, d), (d,), (d,)))
        self.c = nn.Parameter(torch.zeros(2))

    def forward(self, x: Any) -> Any:
        a, b = self.left(x).tanh(), self.right(x).sigmoid()
        one = a @ self.U @ b.T + b @ self.u * self.factor
        two = torch.einsum("xi,lij,yj->lxy", a, self.V, b)
        return one, two + (self.v @ a.T)[:, :, None] + (self.w @ b.T)[:, None] + self.c[:, None, None]


class WithOnes(nn.Module):
    def __init__(self, d: int = 5) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(3, d), nn.Linear(3, d)
        self.one, self.two = nn.Parameter(torch.zeros(d + 1, d)), nn.Parameter(torch.zeros(2, d + 1, d + 1))

    def forward(self, x: Any) -> Any:
        a, b = (F.pad(y, (0, 1), value=1.0) for y in (self.a(x).tanh(), self.b(x).sigmoid()))
        return a @ self.one @ b[:, :-1].T, torch.einsum("xi,lij,yj->lxy", a, self.two, b)


def test_terms_for_one_input_become_the_border_of_a_matrix() -> None:
    mapping = filled(Terms(), WithOnes(), "float32[4,3]")
    assert str(mapping["one"].expr) == "cat(0, U, reshape(u, 1, 5))"
    assert mapping["two"].sources == ["V", "w", "v", "c"]


def test_no_border_is_proved_if_the_code_multiplies_a_term() -> None:
    source = Terms()
    source.factor = 0.5
    refused(source, WithOnes(), "float32[4,3]")


class Relations(nn.Module):
    def __init__(self, *, turn: bool = False) -> None:
        super().__init__()
        self.into = nn.Linear(3, 4)
        self.loop, self.turn = nn.Linear(4, 4), turn
        self.kinds = nn.ModuleList(nn.Linear(4, 4, bias=False) for _ in range(5))

    def forward(self, x: Any) -> Any:
        x = self.into(x)
        gone = sum((kind(x) * (n + 1)).roll(n + 1, 0) for n, kind in enumerate(self.kinds))
        return torch.tanh(self.loop(x) + (gone.sin() if self.turn else gone))


class WithLoopLast(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Linear(3, 4)
        self.weight, self.bias = nn.Parameter(torch.zeros(6, 4, 4)), nn.Parameter(torch.zeros(4))

    def forward(self, x: Any) -> Any:
        every = torch.einsum("ni,rio->rno", self.encode(x), self.weight)
        gone = torch.stack([(every[n] * (n + 1)).roll(n + 1, 0) for n in range(5)]).sum(0)
        return torch.tanh(every[5] + gone + self.bias)


def test_a_list_and_one_more_layer_of_its_module_become_one_stack() -> None:
    mapping = filled(Relations(), WithLoopLast(), "float32[4,3]")
    assert mapping["weight"].sources == [*(f"kinds.{n}.weight" for n in range(5)), "loop.weight"]


def test_no_stack_is_proved_if_the_code_changes_what_its_layers_give() -> None:
    refused(Relations(turn=True), WithLoopLast(), "float32[4,3]")


# --------------------------------------------------------------------------- what is left, and what belongs to it


class Tokens(nn.Module):
    """A row of a matrix for each number, and a vector that nothing uses."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.offset = nn.Parameter(torch.zeros(3, 5)), nn.Parameter(torch.zeros(3, 5))
        self.spare = nn.Parameter(torch.zeros(3, 5))
        self.out = nn.Linear(5, 2)

    def forward(self, x: Any) -> Any:
        return self.out((x[..., None] * self.scale + self.offset).tanh().prod(1))


class TokensApart(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.each, self.score = nn.ModuleList(nn.Linear(1, 5) for _ in range(3)), nn.Linear(5, 2)

    def forward(self, x: Any) -> Any:
        rows = torch.stack([m(x[:, i : i + 1]) for i, m in enumerate(self.each)], 1)
        return self.score(rows.tanh().prod(1))


def test_a_matrix_becomes_a_layer_for_each_row_and_what_the_code_leaves_stays_unused() -> None:
    mapping = filled(Tokens(), TokensApart(), "float32[4,3]")
    assert all(mapping[f"each.{i}.weight"].sources == ["scale"] for i in range(3))
    assert all(mapping[f"each.{i}.bias"].sources == ["offset"] for i in range(3))


# ------------------------------------------------------------------------------------------------- the source's code


def test_repeated_names_of_modules_count_except_in_paths() -> None:
    nested = {"low.low.weight": (3, 3), "low.weight": (3, 3)}
    assert named_alike(nested, nested) == [{key: key for key in nested}]
    assert named_alike({"conv.kernel": (2,)}, {"conv/conv/kernel:0": (2,)}) == [{"conv.kernel": "conv/conv/kernel:0"}]


class Pair(nn.Module):
    """Two nets of one class, of which the forward pass runs the second."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)) for _ in range(2))

    def forward(self, x: Any) -> Any:
        return self.second(x)


def test_code_of_several_nets_is_loaded_from_a_file_that_has_them_apart() -> None:
    torch.manual_seed(5)
    source, own = Pair(), nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    state = {"nets": {"first": source.first.state_dict(), "second": source.second.state_dict()}, "steps": 7}
    mapping = ckptool.transfer(state, own, inputs=["float32[2,3]"], source_model=source, prove=True)
    assert mapping.proof is not None
    assert mapping.proof["equal"]
    made = mapping.apply(state).state_dict().tensors
    assert np.array_equal(made["0.weight"].numpy(), source.second[0].weight.detach().numpy())


# ------------------------------------------------------------------------------- neighbours, and chunks of one layer


class Tables(nn.Module):
    """Two pairs of tables of one size, of which one pair is multiplied and one is joined."""

    def __init__(self, names: str) -> None:
        super().__init__()
        self.names = names
        for name in names:
            setattr(self, name, nn.Embedding(7, 4))
        self.deep, self.out = nn.Linear(8, 5), nn.Linear(9, 1)

    def forward(self, one: Any, other: Any) -> Any:
        a, b, c, d = (getattr(self, name) for name in sorted(self.names))
        h = self.deep(torch.cat([c(one), d(other)], -1)).relu()
        return self.out(torch.cat([a(one) * b(other), h], -1))


def test_pairs_of_tables_change_places_together() -> None:
    source, own = Tables("abcd"), Tables("abcd")
    state = source.state_dict()
    wrong = ckptool.transfer(state, own, inputs=["int64[6]<7", "int64[6]<7"], source_model=source, prove=False)
    now = {f"{a}.weight": ex.of(f"{b}.weight") for a, b in zip("abcd", "cdab", strict=True)}
    exchanged = [replace(e, expr=now.get(e.target, e.expr)) for e in wrong.entries]
    inputs = parse_inputs(["int64[6]<7", "int64[6]<7"])
    mapping = prove(wrong.with_entries(exchanged), state, source, own, inputs=inputs)
    assert mapping.proof is not None
    assert mapping.proof["equal"], mapping.proof
    assert [str(mapping[key].expr) for key in now] == [*now]
    assert "what goes before its partner" in mapping.proof["changes"]


class Modulated(nn.Module):
    """Scale, shift and gate of each of two layers, apart or as chunks of one layer."""

    def __init__(self, *, joined: bool) -> None:
        super().__init__()
        self.joined = joined
        self.given, self.into = nn.Linear(2, 4), nn.Linear(3, 6)
        for i in "12":
            if joined:
                setattr(self, f"modulation{i}", nn.Linear(4, 18))
            else:
                for part in ("shift", "scale", "gate"):
                    setattr(self, f"{part}{i}", nn.Linear(4, 6))
            setattr(self, f"mix{i}", nn.Linear(6, 6))

    def forward(self, x: Any, c: Any) -> Any:
        x, c = self.into(x), F.silu(self.given(c))
        for i in "12":
            if self.joined:
                gate, shift, scale = getattr(self, f"modulation{i}")(c).chunk(3, -1)
            else:
                shift, scale, gate = (getattr(self, f"{part}{i}")(c) for part in ("shift", "scale", "gate"))
            x = x + gate * getattr(self, f"mix{i}")(F.layer_norm(x, (6,)) * (1 + scale) + shift).tanh()
        return x


def test_chunks_of_one_layer_are_put_in_the_order_of_the_code() -> None:
    source, own = Modulated(joined=False), Modulated(joined=True)
    mapping = tried(source, own, "float32[5,3]", "float32[5,2]")
    assert mapping.proof is not None
    assert mapping.proof["equal"], mapping.proof
    assert str(mapping["modulation1.bias"].expr) == "cat(0, gate1.bias, shift1.bias, scale1.bias)"


class Columns(nn.Module):
    """Rows for each column of numbers, and for a token; their weights and biases are in two tensors, or apart."""

    def __init__(self, *, apart: bool) -> None:
        super().__init__()
        self.apart = apart
        if apart:
            self.weights, self.biases = nn.Parameter(torch.randn(4, 6)), nn.Parameter(torch.randn(4, 6))
            self.extra, self.cls_token = nn.Parameter(torch.randn(3, 6)), nn.Parameter(torch.randn(1, 1, 6))
        else:
            self.weight, self.bias = nn.Parameter(torch.randn(5, 6)), nn.Parameter(torch.randn(7, 6))
        self.mix, self.norm, self.head = nn.Linear(6, 6), nn.LayerNorm(6), nn.Linear(6, 1)

    def forward(self, x: Any) -> Any:
        if self.apart:
            rows = torch.cat([x[..., None] * self.weights + self.biases, self.extra.expand(len(x), 3, 6)], 1)
            rows = torch.cat([self.cls_token.expand(len(x), 1, 6), rows], 1)
        else:
            one = torch.ones(len(x), 1)
            rows = torch.cat([torch.cat([one, x], 1)[..., None] * self.weight, torch.zeros(len(x), 3, 6)], 1)
            rows = rows + torch.cat([torch.zeros(1, 6), self.bias])
        rows = rows + F.scaled_dot_product_attention(rows, rows, self.mix(rows))
        return self.head(self.norm(rows)[:, 0].relu())


def test_all_keys_are_cut_from_fewer_tensors_at_once() -> None:
    source, own = Columns(apart=False), Columns(apart=True)
    mapping = filled(source, own, "float32[5,4]")
    assert str(mapping["cls_token"].expr) == "reshape(slice(weight, 0, 0, 1), 1, 1, 6)"
    assert [str(mapping[key].expr) for key in ("weights", "biases", "extra")] == [
        "slice(weight, 0, 1, 5)",
        "slice(bias, 0, 0, 4)",
        "slice(bias, 0, 4, 7)",
    ]


@pytest.mark.parametrize(("core", "axis"), [((2, 5), 0), ((1, 5), 0), ((1, 1, 4), 1), ((1,), 0)], ids=str)
def test_a_border_may_be_as_wide_as_what_it_is_put_around(core: Shape, axis: int) -> None:
    shapes = {"core": core, "edge": tuple(1 if d == axis else size for d, size in enumerate(core))}
    source = {key: torch.rand(shape) for key, shape in shapes.items()}
    tensors = ckptool.porting.applying.open_source(source).state_dict().tensors
    expected = torch.cat([*source.values()], axis)
    made = [ex.lazy(x, tensors).numpy() for _, _, x in bordered(tuple(expected.shape), shapes)]
    assert any(np.array_equal(expected, one) for one in made)
