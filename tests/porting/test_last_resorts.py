"""Pairs of codes in which neither names nor forms show what belongs together, and only what is computed does.

Each freedom of the search stands beside a model that must not be proved with it.
"""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn

import ckptool
from ckptool.porting.mapping import Mapping

F = nn.functional


def ported(source: nn.Module, own: nn.Module, *inputs: str) -> Mapping:
    """The mapping after a proof, with weights and buffers that are all different."""
    torch.manual_seed(1)
    for p in [*source.parameters(), *own.parameters()]:
        nn.init.normal_(p, std=0.4)
    for b in source.buffers():
        if b.is_floating_point():
            b.copy_(torch.rand_like(b) + 0.5)
    return ckptool.transfer(source.state_dict(), own, inputs=list(inputs), source_model=source, prove=True)


def proved(source: nn.Module, own: nn.Module, *inputs: str) -> Mapping:
    """The mapping, of which outputs on inputs of our own are the judge."""
    mapping = ported(source, own, *inputs)
    assert mapping.proof is not None
    assert mapping.proof["equal"], mapping.proof["text"]
    assert not mapping.having("guessed") + mapping.having("unmapped")
    ckptool.load_into(own, source.state_dict(), mapping=mapping)
    given = [_drawn(text) for text in inputs]
    with torch.no_grad():
        torch.testing.assert_close(own.eval()(*given), source.eval()(*given), rtol=1e-4, atol=1e-5)
    return mapping


def refused(source: nn.Module, own: nn.Module, *inputs: str) -> Mapping:
    mapping = ported(source, own, *inputs)
    assert mapping.proof is not None
    assert not mapping.proof["equal"], mapping.proof["text"]
    return mapping


def _drawn(text: str) -> Any:
    kind, _, rest = text.partition("[")
    sizes, _, high = rest.partition("]<")
    shape = [int(size) for size in sizes.rstrip("]").split(",")]
    return torch.randn(shape) if kind == "float32" else torch.randint(0, int(high), shape)


# -------------------------------------------------------------------------------------------- branches of one input


class Branches(nn.Module):
    """Two branches of two layers on one input, joined with what came before: which is which shows only there."""

    def __init__(self, names: str, order: str, act: Any = torch.relu) -> None:
        super().__init__()
        self.order, self.act = order, act
        for name in names:
            setattr(self, name, nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.ReLU()))
        self.enter, self.pool_1, self.pool_2 = nn.Linear(4, 6), nn.Linear(12, 6), nn.Linear(12, 6)

    def forward(self, x: Any) -> Any:
        one, other = (getattr(self, name) for name in self.order)
        h = self.act(self.pool_1(torch.cat([one(x), self.enter(x)], -1)))
        return self.pool_2(torch.cat([other(x), h], -1))


def test_branches_that_change_places_are_found_where_their_outputs_meet() -> None:
    mapping = proved(Branches("ab", "ab"), Branches("uv", "vu"), "float32[5,4]")
    assert mapping["v.1.weight"].sources == ["a.1.weight"]
    assert mapping.proof is not None
    assert mapping.proof["runs"] < 20


def test_branches_that_meet_in_another_way_are_not_proved() -> None:
    refused(Branches("ab", "ab"), Branches("uv", "vu", act=torch.sin), "float32[5,4]")


class Modulated(nn.Module):
    """Blocks that a code modulates: one layer for scale and shift with a norm in parts, or two with a batch norm."""

    def __init__(self, joined: bool, eps: float = 1e-5) -> None:
        super().__init__()
        self.joined, self.eps = joined, eps
        self.enter = nn.Linear(3, 6)
        self.blocks = nn.ModuleList(nn.Module() for _ in range(2))
        for block in self.blocks:
            if joined:
                block.film, block.step = nn.Linear(5, 12), nn.Linear(6, 6)
                block.register_buffer("mu", torch.zeros(6))
                block.register_buffer("spread", torch.ones(6))
            else:
                block.conv_gamma, block.conv_beta = nn.Linear(5, 6), nn.Linear(5, 6)
                block.bn, block.fc = nn.BatchNorm1d(6, affine=False), nn.Linear(6, 6)

    def forward(self, x: Any, code: Any) -> Any:
        x = self.enter(x)
        for block in self.blocks:
            if self.joined:
                scale, shift = block.film(code).chunk(2, -1)
                x = x + block.step(((x - block.mu) * torch.rsqrt(block.spread + self.eps) * scale + shift).tanh())
            else:
                x = x + block.fc((block.conv_gamma(code) * block.bn(x) + block.conv_beta(code)).tanh())
        return x


def test_layers_that_the_model_joins_are_found_by_what_they_go_into() -> None:
    mapping = proved(Modulated(joined=False), Modulated(joined=True), "float32[7,3]", "float32[7,5]")
    assert mapping["blocks.1.film.bias"].sources == ["blocks.1.conv_gamma.bias", "blocks.1.conv_beta.bias"]


# -------------------------------------------------------------------------------------------- batch norms in parts


class Normed(nn.Module):
    def __init__(self, eps: float = 1e-5) -> None:
        super().__init__()
        sizes = ((3, 6), (6, 6))
        self.net = nn.ModuleList(
            nn.Sequential(nn.Conv2d(i, o, 3, padding=1, bias=False), nn.BatchNorm2d(o, eps=eps)) for i, o in sizes
        )

    def forward(self, x: Any) -> Any:
        for layer in self.net:
            x = layer(x).relu()
        return x


class InParts(nn.Module):
    """The four vectors of each norm under names that say nothing."""

    def __init__(self, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        for n, (i, o) in enumerate(((3, 6), (6, 6))):
            setattr(self, f"l{n}", nn.Conv2d(i, o, 3, padding=1, bias=False))
            for name in "pqrs":
                self.register_buffer(f"{name}{n}", torch.ones(o))

    def forward(self, x: Any) -> Any:
        for n in range(2):
            p, q, r, s = (getattr(self, f"{name}{n}")[:, None, None] for name in "pqrs")
            x = ((getattr(self, f"l{n}")(x) - p) / torch.sqrt(q + self.eps) * r + s).relu()
        return x


def test_the_vectors_of_a_norm_are_found_by_what_goes_in_and_comes_out() -> None:
    mapping = proved(Normed(), InParts(), "float32[2,3,6,6]")
    assert [mapping[f"{name}1"].sources for name in "pqrs"] == [
        [f"net.1.1.{role}"] for role in ("running_mean", "running_var", "weight", "bias")
    ]


def test_a_norm_in_parts_that_adds_another_number_is_not_proved() -> None:
    refused(Normed(), InParts(eps=0.1), "float32[2,3,6,6]")


class Affine(nn.Module):
    """What is left of the norms: a factor and a shift for each channel, stacked for all layers."""

    def __init__(self, rows: int = 2) -> None:
        super().__init__()
        self.k = nn.ModuleList(nn.Conv2d(i, o, 3, padding=1, bias=False) for i, o in ((3, 6), (6, 6)))
        self.alpha, self.shift = nn.Parameter(torch.ones(rows, 6)), nn.Parameter(torch.zeros(rows, 6))

    def forward(self, x: Any) -> Any:
        for n, layer in enumerate(self.k):
            x = (layer(x) * self.alpha[n][:, None, None] + self.shift[n][:, None, None]).relu()
        return x


def test_norms_become_the_factors_and_shifts_of_a_stack() -> None:
    mapping = proved(Normed(), Affine(), "float32[2,3,6,6]")
    assert {op for op in mapping["alpha"].expr.operations() if "fold" in op} == {"fold_weight"}


def test_a_member_of_the_stack_that_is_never_used_is_asked_about() -> None:
    mapping = ported(Normed(), Affine(rows=3), "float32[2,3,6,6]")
    assert {mapping[key].status for key in ("alpha", "shift")} <= {"guessed", "unmapped"}


def test_an_eps_that_float32_does_not_tell_apart_is_no_other_setting() -> None:
    proved(Normed(eps=0.0010000000474974513), Normed(eps=1e-3), "float32[2,3,6,6]")


class Folded(nn.Module):
    def __init__(self, act: Any = torch.relu) -> None:
        super().__init__()
        self.act = act
        self.one, self.two = nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(6, 6, 3, padding=1)

    def forward(self, x: Any) -> Any:
        return self.act(self.two(self.act(self.one(x))))


def test_norms_go_into_the_layers_before_them() -> None:
    proved(Normed(), Folded(), "float32[2,3,6,6]")


def test_norms_do_not_go_into_layers_with_another_function_behind() -> None:
    refused(Normed(), Folded(act=torch.tanh), "float32[2,3,6,6]")


# -------------------------------------------------------------------------------------------- weights made of weights


class Equalised(nn.Module):
    """Weights with a factor at run time."""

    def __init__(self, what: Any) -> None:
        super().__init__()
        self.what = what
        self.w = nn.ParameterList(nn.Parameter(torch.randn(6, 6)) for _ in range(3))
        self.b = nn.ParameterList(nn.Parameter(torch.randn(6)) for _ in range(3))

    def forward(self, x: Any) -> Any:
        for w, b in zip(self.w, self.b, strict=True):
            x = F.linear(x, self.what(w), b * 0.1).relu()
        return x


def plain() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6), nn.ReLU())


def test_a_factor_of_a_weight_at_run_time_goes_into_the_weight() -> None:
    mapping = proved(Equalised(lambda w: w * 0.5), plain(), "float32[4,6]")
    assert str(mapping["2.weight"].expr) == "scale(w.1, 0.5)"
    assert str(mapping["2.bias"].expr) == "scale(b.1, 0.1)"


def test_what_no_expression_computes_is_not_proved() -> None:
    refused(Equalised(lambda w: w.exp()), plain(), "float32[4,6]")


class Positions(nn.Module):
    """A table of positions, or the sum of two tables behind a token of its own."""

    def __init__(self, joint: bool) -> None:
        super().__init__()
        self.joint = joint
        self.enter, self.leave = nn.Linear(5, 6), nn.Linear(6, 6)
        if joint:
            self.where = nn.Parameter(torch.randn(1, 13, 6))
        else:
            self.s, self.t = nn.Parameter(torch.randn(1, 4, 6)), nn.Parameter(torch.randn(1, 3, 6))
            self.c = nn.Parameter(torch.randn(1, 1, 6))

    def forward(self, x: Any) -> Any:
        if self.joint:
            return self.leave((self.enter(x) + self.where).tanh())
        grid = (self.t[:, :, None] + self.s[:, None]).flatten(1, 2)
        return self.leave((self.enter(x) + torch.cat([self.c, grid], 1)).tanh())


def test_a_table_that_the_source_computes_from_tables_is_written_as_it_computes_it() -> None:
    mapping = proved(Positions(joint=False), Positions(joint=True), "float32[2,13,5]")
    assert mapping["where"].sources == ["c", "s", "t"]


# -------------------------------------------------------------------------------------------- other layers, same values


class Larger(nn.Module):
    """Upsampling by transposed convolutions, or by plain ones and a shuffle."""

    def __init__(self, shuffles: bool, between: Any = torch.relu) -> None:
        super().__init__()
        self.shuffles, self.between = shuffles, between
        self.enter, self.leave = nn.Conv2d(3, 6, 1), nn.Conv2d(4, 2, 1)
        if shuffles:
            self.grow = nn.ModuleList([nn.Conv2d(6, 24, 1), nn.Conv2d(6, 16, 1)])
        else:
            self.up1, self.up2 = nn.ConvTranspose2d(6, 6, 2, 2), nn.ConvTranspose2d(6, 4, 2, 2)

    def forward(self, x: Any) -> Any:
        x = self.enter(x).relu()
        if not self.shuffles:
            return self.leave(self.up2(self.up1(x).relu()).relu())
        for layer in self.grow:
            x = F.pixel_shuffle(self.between(layer(x)), 2)
        return self.leave(x)


def test_a_transposed_convolution_becomes_one_before_a_shuffle() -> None:
    proved(Larger(shuffles=False), Larger(shuffles=True), "float32[1,3,4,4]")


def test_a_shuffle_behind_what_mixes_its_channels_is_not_proved() -> None:
    refused(Larger(shuffles=False), Larger(shuffles=True, between=lambda x: x.softmax(1)), "float32[1,3,4,4]")


class Looked(nn.Module):
    """Words looked up in a table, or as ones that a matrix is given."""

    def __init__(self, ones: bool, twice: bool = False) -> None:
        super().__init__()
        self.ones, self.twice = ones, twice
        self.t = nn.Linear(9, 6) if ones else nn.Embedding(9, 6)
        self.leave = nn.Linear(6, 4)

    def forward(self, words: Any) -> Any:
        if not self.ones:
            return self.leave(self.t(words).relu())
        given = F.one_hot(words, 9).float()
        return self.leave(self.t(given + given.flip(1) if self.twice else given).relu())


@pytest.mark.parametrize("ones", [True, False])
def test_a_table_is_a_matrix_that_ones_are_given_to(ones: bool) -> None:
    proved(Looked(not ones), Looked(ones), "int64[3,5]<9")


def test_a_matrix_that_is_given_several_ones_is_no_table() -> None:
    refused(Looked(ones=False), Looked(ones=True, twice=True), "int64[3,5]<9")


class Columns(nn.Module):
    """A table for each column, or one for all, with two rows of its own in front."""

    def __init__(self, names: str, apart: bool, between: int = 0) -> None:
        super().__init__()
        self.apart, sizes = apart, (3, 5, 4)
        if apart:
            self.columns = nn.ModuleDict({name: nn.Embedding(n, 6) for name, n in zip(names, sizes, strict=True)})
        else:
            self.category_embeds = nn.Embedding(sum(sizes) + 2 + between, 6)
            self.register_buffer("offset", torch.tensor([2, 5 + between, 10 + between]))
        self.leave = nn.Linear(18, 2)

    def forward(self, words: Any) -> Any:
        if self.apart:
            x = torch.stack([table(words[:, i]) for i, table in enumerate(self.columns.values())], 1)
        else:
            x = self.category_embeds(words + self.offset)
        return self.leave(x.flatten(1).tanh())


def test_tables_of_columns_are_cut_from_one_behind_rows_of_its_own() -> None:
    mapping = proved(Columns("abc", apart=False), Columns("abc", apart=True), "int64[6,3]<3")
    assert str(mapping["columns.b.weight"].expr) == "slice(category_embeds.weight, 0, 5, 10)"


def test_tables_with_rows_between_them_are_not_proved_by_cutting_one_after_the_other() -> None:
    refused(Columns("abc", apart=False, between=1), Columns("abc", apart=True), "int64[6,3]<3")


# -------------------------------------------------------------------------------------------- outputs


class Heads(nn.Module):
    """Heads of one size with names, whose outputs are probabilities or not."""

    def __init__(self, names: dict[str, str], probabilities: bool, *, named: bool = True) -> None:
        super().__init__()
        self.names, self.probabilities, self.named = names, probabilities, named
        self.body = nn.Linear(4, 8)
        for layer in names.values():
            setattr(self, layer, nn.Linear(8, 3))

    def forward(self, x: Any) -> Any:
        x = self.body(x).relu()
        out = {name: getattr(self, layer)(x) for name, layer in self.names.items()}
        out = {name: y.softmax(-1) for name, y in out.items()} if self.probabilities else out
        return out if self.named else tuple(out.values())


_SAME = {"core": "core", "edge": "edge", "kind": "kind"}


def test_several_named_outputs_may_differ_in_what_follows_their_layers() -> None:
    mapping = ported(Heads(_SAME, False), Heads(_SAME, True), "float32[5,4]")
    assert mapping.proof is not None
    assert mapping.proof["equal"]
    assert "outputs differ in what follows" in mapping.proof["text"]


def test_layers_of_outputs_with_exchanged_names_are_not_proved_by_what_they_give() -> None:
    """Each layer gives what one in the source gives, under another name."""
    turned = {"core": "edge", "edge": "core", "kind": "kind"}
    mapping = ported(Heads(_SAME, False), Heads(turned, True), "float32[5,4]")
    assert mapping.proof is not None
    assert not mapping.proof["equal"] or mapping["edge.weight"].sources == ["core.weight"]


def test_outputs_without_names_that_differ_in_what_follows_are_not_proved() -> None:
    refused(Heads(_SAME, False, named=False), Heads(_SAME, True, named=False), "float32[5,4]")


class Biased(nn.Module):
    """Attention with a table that is added to the scores, and outputs of a size of its own."""

    def __init__(self, turned: bool, size: int, *, extra: bool = False) -> None:
        super().__init__()
        self.turned, self.extra = turned, extra
        self.words, self.q, self.k = nn.Embedding(9, 6), nn.Linear(6, 6), nn.Linear(6, 6)
        self.last, self.head = nn.Linear(6, 6), nn.Linear(6, size)
        table = torch.randn(2, 5) if turned else torch.randn(5, 2)
        setattr(self, "dist" if turned else "relative_attention_bias", nn.Parameter(table))

    def forward(self, words: Any) -> Any:
        x = self.words(words)
        n, t, _ = x.shape
        q, k = (layer(x).view(n, t, 2, 3).transpose(1, 2) for layer in (self.q, self.k))
        places = (torch.arange(t)[:, None] - torch.arange(t)).abs()
        added = self.dist[:, places] if self.turned else self.relative_attention_bias[places].permute(2, 0, 1)
        scores = q @ k.mT + (added * words.float().mean() if self.extra else added + 0 * words.sum())
        x = self.last(torch.einsum("bhqk,bkd->bqd", scores.softmax(-1), x))
        return self.head(x)


def test_keys_without_a_source_are_looked_for_if_no_outputs_are_compared() -> None:
    mapping = ported(Biased(False, 3), Biased(True, 4), "int64[2,5]<9")
    assert str(mapping["dist"].expr) == "transpose(relative_attention_bias)"
    assert mapping["dist"].status == "mapped"


def test_a_table_that_does_another_thing_is_not_filled_where_no_outputs_are_compared() -> None:
    mapping = ported(Biased(False, 3), Biased(True, 4, extra=True), "int64[2,5]<9")
    assert mapping["dist"].status != "mapped"


class Encoder(nn.Module):
    """An encoder with the head that it was trained with, or with a new one."""

    def __init__(self, new: bool) -> None:
        super().__init__()
        self.new = new
        self.enter, self.inner = nn.Linear(4, 6), nn.Linear(6, 6)
        if new:
            self.attention, self.head = nn.Sequential(nn.Linear(6, 3), nn.Tanh(), nn.Linear(3, 1)), nn.Linear(6, 7)
        else:
            self.decoder = nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 2))

    def forward(self, x: Any) -> Any:
        x = self.inner(self.enter(x).relu()).relu()
        return self.head((self.attention(x).softmax(1) * x).sum(1)) if self.new else self.decoder(x)


def test_a_new_head_that_takes_what_the_old_one_took_is_not_filled() -> None:
    """With rows of the old head it would give what these give, which nothing after it confirms."""
    mapping = ported(Encoder(new=False), Encoder(new=True), "float32[2,5,4]")
    assert mapping.proof is not None
    assert "no outputs are of one size" in mapping.proof["text"]
    assert {e.target.split(".")[0] for e in mapping.having("unmapped")} == {"attention", "head"}


class Infomax(nn.Module):
    """An encoder with the discriminator that it was trained with (Velickovic et al., 2018), or with a classifier."""

    def __init__(self, new: bool) -> None:
        super().__init__()
        self.new, self.encoder = new, nn.Linear(4, 6)
        if new:
            self.hidden, self.out = nn.Linear(6, 6), nn.Linear(6, 3)
        else:
            self.score = nn.Bilinear(6, 6, 1, bias=False)

    def forward(self, x: Any) -> Any:
        x = self.encoder(x)
        if self.new:
            return self.out(self.hidden(x).relu())
        return self.score(x, x.mean(1, keepdim=True).expand_as(x).contiguous())


def test_a_matrix_of_two_inputs_is_not_that_of_a_new_layer() -> None:
    mapping = ported(Infomax(new=False), Infomax(new=True), "float32[2,5,4]")
    assert {e.target for e in mapping.having("mapped")} == {"encoder.weight", "encoder.bias"}
    assert mapping["hidden.weight"].status == "unmapped"
    assert "no layer of the source's code gives what this layer gives" in mapping["hidden.weight"].doubts[0]


class Loose(nn.Module):
    """Two models and two vectors that a program holds beside them."""

    def __init__(self, names: tuple[str, str, str]) -> None:
        super().__init__()
        self.names = names
        setattr(self, names[0], nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6)))
        self.register_buffer(names[1], torch.zeros(1, 6))
        self.register_buffer(names[2], torch.ones(1, 6))

    def forward(self, x: Any) -> Any:
        net, mean, std = (getattr(self, name) for name in self.names)
        return (net(x) - mean) / std


def test_what_stands_beside_a_state_dict_is_loaded_into_the_code_as_well(tmp_path: Any) -> None:
    source, own = Loose(("teacher", "teacher_mean", "teacher_std")), Loose(("net", "mean", "std"))
    source.teacher_mean.copy_(torch.randn(1, 6))
    source.teacher_std.copy_(torch.rand(1, 6) + 0.5)
    loose = {name: getattr(source, name).clone() for name in ("teacher_mean", "teacher_std")}
    torch.save({"teacher": source.teacher.state_dict(), **loose, "epoch": 3}, tmp_path / "loose.pt")
    code = Loose(("teacher", "teacher_mean", "teacher_std"))
    mapping = ckptool.transfer(tmp_path / "loose.pt", own, inputs=["float32[3,4]"], source_model=code, prove=True)
    assert mapping.proof is not None
    assert mapping.proof["equal"], mapping.proof["text"]
