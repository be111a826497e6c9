"""The parts that code divides a tensor into, what it calls them, and which tensors of a file they are."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn

from ckptool.model_code.building import signature_of
from ckptool.porting.sources import match_signature


class Apart(nn.Module):
    """Layers with NAMES (name -> outputs) for one input, which nothing else tells apart."""

    def __init__(self, **names: int) -> None:
        super().__init__()
        for name, outputs in names.items():
            self.add_module(name, nn.Linear(6, outputs))


class Joined(nn.Module):
    """One layer that gives several things; subclasses take them apart."""

    rows = 24

    def __init__(self) -> None:
        super().__init__()
        self.every = nn.Linear(6, self.rows)


class Unpacked(Joined):
    def forward(self, x: Any) -> Any:
        dst, src, message = self.every(x).tensor_split(3, dim=-1)
        return dst + src.tanh() * message


class Changed(Joined):
    """What it does with each part at once does not hide its name."""

    def forward(self, x: Any) -> Any:
        message, dst, src = (part.unflatten(-1, (2, 4)) for part in self.every(x).chunk(3, dim=-1))
        return dst + src.tanh() * message


class Sliced(Joined):
    def forward(self, x: Any) -> Any:
        every = self.every(x)
        src = torch.tanh(every[..., :8]) + 1
        message = every[..., 8:16].relu().sqrt()
        self.dst = every[..., 16:]
        return self.dst + src * message


class Stacked(Joined):
    """As code of attentions cuts rows: reshaped, and unpacked along the new dimension."""

    def forward(self, x: Any) -> Any:
        src, dst, message = self.every(x).reshape(len(x), 3, 8).permute(1, 0, 2)
        return dst + src.tanh() * message


class Indexed(Joined):
    """As timm takes queries, keys and values."""

    def forward(self, x: Any) -> Any:
        every = self.every(x).reshape(len(x), 3, 8).permute(1, 0, 2)
        src, dst, message = every[0], every[1].tanh(), every[2]
        return dst + src * message


class IndexedLast(Joined):
    """As LightGlue does, where each number of a head has its query, key and value side by side."""

    def forward(self, x: Any) -> Any:
        every = self.every(x).unflatten(-1, (2, -1, 3))
        message = every[..., 2]
        src, dst = every[..., 0], every[:, :, :, 1]
        return dst + src.tanh() * message


class IndexedFromTheEnd(Joined):
    def forward(self, x: Any) -> Any:
        every = self.every(x).view(len(x), 3, 8)
        message, dst, src = every[:, -3], every[:, -2], every[:, -1]
        return dst + src.tanh() * message


class Token(Joined):
    """One row of several is no part."""

    def forward(self, x: Any) -> Any:
        first = self.every(x)[:, 0]
        return first + self.every(x)[0].sum()


class Nameless(Joined):
    def forward(self, x: Any) -> Any:
        parts = self.every(x).chunk(3, -1)
        return parts[0] + parts[1].tanh() * parts[2]


class Batches(Joined):
    """Halves of a batch are no parts of what a layer gives."""

    def forward(self, x: Any) -> Any:
        src, dst = self.every(x).chunk(2, 0)
        return src + dst.tanh()


class Filtered(Joined):
    """As message passing takes factors: out of the product of the outputs of two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.filters = nn.Linear(6, 24)

    def forward(self, x: Any) -> Any:
        src, dst, message = (self.every(x) * self.filters(x)).split(8, -1)
        return dst + src.tanh() * message


INPUTS = (torch.zeros(4, 6),)


def parts(model: nn.Module, key: str = "every.weight") -> list[tuple[str, int]]:
    return [tuple(part) for part in signature_of(model, inputs=INPUTS).entries[key].facts.parts]


@pytest.mark.parametrize(
    ("model", "names", "size"),
    [
        (Unpacked, ["dst", "src", "message"], 8),
        (Changed, ["message", "dst", "src"], 8),
        (Sliced, ["src", "message", "dst"], 8),
        (Stacked, ["src", "dst", "message"], 0),
        (Indexed, ["src", "dst", "message"], 0),
        (IndexedLast, ["src", "dst", "message"], 0),
        (IndexedFromTheEnd, ["message", "dst", "src"], 0),
        (Token, [], 0),
        (Nameless, ["", "", ""], 8),
        (Batches, ["src", "dst"], 2),
    ],
)
def test_parts_have_the_names_that_code_assigns_them_to(model: Any, names: list[str], size: int) -> None:
    assert parts(model()) == [(name, size) for name in names]


@pytest.mark.parametrize("key", ["every.weight", "filters.weight"])
def test_parts_of_a_product_are_parts_of_both_layers(key: str) -> None:
    assert parts(Filtered(), key) == [("src", 8), ("dst", 8), ("message", 8)]


def ported(source: nn.Module, target: nn.Module, key: str = "every.weight") -> tuple[str, list[str], bool]:
    mapping = match_signature(source.state_dict(), signature_of(target, inputs=INPUTS))
    found = next(entry for entry in mapping.entries if entry.target == key)
    return str(found.expr), sorted(map(str, found.rivals)), not found.doubts


@pytest.mark.parametrize(
    ("model", "order"),
    [(Unpacked, "cba"), (Changed, "acb"), (Sliced, "bac"), (Stacked, "bca")],
)
def test_joined_tensors_are_in_the_order_of_these_names(model: Any, order: str) -> None:
    names = {"a": "a_message", "b": "b_src", "c": "c_dst"}
    made = f"cat(0, {', '.join(f'{names[letter]}.weight' for letter in order)})"
    assert ported(Apart(a_message=8, b_src=8, c_dst=8), model()) == (made, [], True)


def test_of_more_tensors_those_are_joined_that_the_names_choose_and_one_more_is_told_by_what_is_left() -> None:
    class Beside(Unpacked):
        def __init__(self) -> None:
            super().__init__()
            self.edges = nn.Linear(6, 8)

        def forward(self, x: Any) -> Any:
            return super().forward(x) + self.edges(x)

    source = Apart(a_edge=8, b_message=8, c_dst=8, d_own=8)
    made = "cat(0, c_dst.weight, d_own.weight, b_message.weight)"  # src is what has no other name
    assert ported(source, Beside()) == (made, [], True)
    assert ported(source, Beside(), "edges.weight")[0] == "a_edge.weight"


def test_names_that_say_nothing_leave_the_order_a_guess() -> None:
    source = Apart(one=8, two=8, green=8)
    assert not ported(source, Unpacked())[2]
    assert not ported(Apart(a_message=8, b_src=8, c_dst=8), Nameless())[2]


def test_halves_of_a_batch_order_nothing() -> None:
    assert not ported(Apart(b_dst=12, a_src=12), Batches())[2]


def test_sizes_tell_parts_whose_names_say_nothing() -> None:
    class Uneven(Joined):
        def forward(self, x: Any) -> Any:
            amount, place = self.every(x).split([8, 16], -1)
            return amount.sum() * place

    assert ported(Apart(x1=16, x2=8), Uneven())[0] == "cat(0, x2.weight, x1.weight)"


def test_the_columns_of_a_table_are_told_too() -> None:
    class Tables(nn.Module):
        def __init__(self, *names: str, width: int = 4) -> None:
            super().__init__()
            for name in names:
                self.add_module(name, nn.Embedding(9, width))

        def forward(self, ids: Any) -> Any:
            imaginary, real = self.every(ids).chunk(2, -1)
            return torch.complex(real, imaginary).abs()

    target = signature_of(Tables("every", width=8), inputs=(torch.zeros(3, dtype=torch.int64),))
    mapping = match_signature(Tables("rel_re", "rel_im").state_dict(), target)
    assert [(str(entry.expr), entry.doubts) for entry in mapping.entries] == [
        ("cat(1, rel_im.weight, rel_re.weight)", ())
    ]


def test_a_projection_has_the_order_that_code_gives_its_parts_whatever_its_own_name_says() -> None:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.kv = nn.Linear(6, 6), nn.Linear(6, 12)

        def forward(self, x: Any) -> Any:
            v, k = self.kv(x).chunk(2, -1)
            return (self.q(x) @ k.mT).softmax(-1) @ v

    source = Apart(to_q=6, to_k=6, to_v=6)
    assert ported(source, Attention(), "kv.weight") == ("cat(0, to_v.weight, to_k.weight)", [], True)


class Members(nn.Module):
    """A table whose rows are used one by one, under names."""

    def __init__(self) -> None:
        super().__init__()
        self.every, self.last = nn.Parameter(torch.zeros(2, 6)), nn.Linear(6, 3)

    def forward(self, x: Any) -> Any:
        receptance, key = (x * row for row in self.every)
        return self.last(receptance.sigmoid() * key)


class Vectors(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mix_key, self.mix_receptance = nn.Parameter(torch.zeros(6)), nn.Parameter(torch.zeros(6))
        self.head = nn.Linear(6, 3)


def test_rows_of_a_parameter_are_the_vectors_that_code_calls_so() -> None:
    assert parts(Members(), "every") == [("receptance", 0), ("key", 0)]
    assert ported(Vectors(), Members(), "every") == ("stack(mix_receptance, mix_key)", [], True)


class Heads(nn.Module):
    """Layers whose outputs are concatenated in another order than they are registered in."""

    def __init__(self, *names: str) -> None:
        super().__init__()
        self.names = names
        for name, outputs in (("age", 5), ("sex", 2), ("mood", 3)):
            self.add_module(name, nn.Linear(6, outputs))

    def forward(self, x: Any) -> Any:
        return torch.cat([self.get_submodule(name)(x).log_softmax(-1) for name in self.names], -1)


@pytest.mark.parametrize(
    ("order", "rows"),
    [(("sex", "mood", "age"), (5, 10)), (("age", "sex", "mood"), (0, 5)), (("mood", "age", "sex"), (3, 8))],
)
def test_parts_of_one_layer_are_guessed_to_stand_as_code_concatenates_them(
    order: tuple[str, ...], rows: tuple[int, int]
) -> None:
    made, _, certain = ported(Apart(all=10), Heads(*order), "age.weight")
    assert (made, certain) == (f"slice(all.weight, 0, {rows[0]}, {rows[1]})", False)


class Critic(nn.Module):
    """A layer over a concatenation, whose parts have other sizes than guessed inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.every, self.last = nn.Linear(6, 7), nn.Linear(7, 1)

    def forward(self, state: Any, action: Any) -> Any:
        return self.last(self.every(torch.cat([action, state.float()], dim=-1)).relu())


class Edges(Critic):
    def forward(self, sender: Any, receiver: Any) -> Any:
        both = torch.cat((receiver, sender[:, :3]), -1)
        return self.last(self.every(both))


@pytest.mark.parametrize(
    ("model", "names", "order"),
    [
        (Critic, ("obs_fc", "act_fc"), ("act_fc", "obs_fc")),
        (Critic, ("act_fc", "obs_fc"), ("act_fc", "obs_fc")),
        (Edges, ("src", "dst"), ("dst", "src")),
    ],
)
def test_columns_stand_as_code_concatenates_what_it_calls_so(
    model: Any, names: tuple[str, str], order: tuple[str, str]
) -> None:
    source = {f"{name}.weight": torch.randn(7, 3) for name in names}
    source |= {f"{names[0]}.bias": torch.zeros(7), "out.weight": torch.zeros(1, 7), "out.bias": torch.zeros(1)}
    inputs = (torch.zeros(4, 3 if model is Edges else 2), torch.zeros(4, 3 if model is Edges else 4))
    mapping = match_signature(source, signature_of(model(), inputs=inputs))
    found = next(entry for entry in mapping.entries if entry.target == "every.weight")
    assert str(found.expr) == f"cat(1, {order[0]}.weight, {order[1]}.weight)"
    assert not found.doubts


def test_several_maps_in_one_argument_and_the_nodes_of_a_graph_are_found_as_inputs() -> None:
    class Levels(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.level, self.mix = nn.Parameter(torch.zeros(2, 6)), nn.Linear(6, 6)

        def forward(self, *maps: Any) -> Any:
            rows = torch.cat([one.flatten(2) for one in maps], 2).mT
            of_level = torch.tensor([one[0, 0].numel() for one in maps])
            return self.mix(rows + self.level.repeat_interleave(of_level, 0))

    class Graph(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.atoms, self.bonds = nn.Embedding(9, 6), nn.Embedding(4, 6)

        def forward(self, atoms: Any, bonds: Any, edge_index: Any) -> Any:
            nodes = self.atoms(atoms)
            return torch.zeros_like(nodes).index_add_(0, edge_index[1], nodes[edge_index[0]] + self.bonds(bonds))

    assert signature_of(Levels()).inputs == "float32[2,6,8,8] float32[2,6,8,8]"
    assert signature_of(Graph()).inputs == "int64[2]<4 int64[20]<4 int64[2,20]<2"
