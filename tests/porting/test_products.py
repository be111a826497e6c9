"""Law: however code multiplies with a matrix, both codes show whether the matrix is copied or transposed."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn

import ckptool
from ckptool.model_code.building import signature_for

#: Ways to multiply x of shape [batch, inputs] with a matrix, and whether it has inputs first.
WAYS: dict[str, tuple[Callable[[Any, Any], Any], bool]] = {
    "x @ w": (lambda x, w: x @ w, True),
    "x @ w.T": (lambda x, w: x @ w.T, False),
    "x @ w.mT": (lambda x, w: x @ w.mT, False),
    "x @ w.t()": (lambda x, w: x @ w.t(), False),
    "x @ w.data": (lambda x, w: x @ w.data, True),
    "(w @ x.T).T": (lambda x, w: (w @ x.T).T, False),
    "(w.T @ x.T).T": (lambda x, w: (w.T @ x.T).T, True),
    "w.clone().T.__rmatmul__(x)": (lambda x, w: w.clone().T.__rmatmul__(x), False),
    "addmm(0, x, w)": (lambda x, w: torch.addmm(x.new_zeros(1), x, w), True),
    "addmm(0, w, x.T).T": (lambda x, w: torch.addmm(x.new_zeros(1), w, x.T).T, False),
    "mv(w, row)": (lambda x, w: torch.stack([torch.mv(w, row) for row in x]), False),
    "inner(x, w)": (lambda x, w: torch.inner(x, w), False),
    "tensordot(x, w, 1)": (lambda x, w: torch.tensordot(x, w, dims=1), True),
    "tensordot(x, w, ([1], [1]))": (lambda x, w: torch.tensordot(x, w, dims=([1], [1])), False),
    "tensordot(w, x, ([-2], [1])).T": (lambda x, w: torch.tensordot(w, x, dims=([-2], [1])).T, True),
    "einsum(bi,oi->bo)": (lambda x, w: torch.einsum("bi,oi->bo", x, w), False),
    "einsum(bi,io->bo)": (lambda x, w: torch.einsum("bi,io->bo", x, w), True),
    "linear(x, w)": (lambda x, w: nn.functional.linear(x, w), False),
    "linear(x, w.T)": (lambda x, w: nn.functional.linear(x, w.T), True),
    "matmul(x, other=w)": (lambda x, w: torch.matmul(x, other=w), True),
    "linear(weight=w, input=x)": (lambda x, w: nn.functional.linear(weight=w, input=x), False),
}


class Net(nn.Module):
    """A square matrix of its own between two layers. NAMES are those of the three."""

    def __init__(self, way: str, *names: str) -> None:
        super().__init__()
        self.way, self.names = WAYS[way][0], names
        self.add_module(names[0], nn.Linear(6, 6))
        self.register_parameter(names[1], nn.Parameter(torch.randn(6, 6)))
        self.add_module(names[2], nn.Linear(6, 4))

    def forward(self, x: Any) -> Any:
        first, matrix, last = (getattr(self, name) for name in self.names)
        return last(self.way(first(x).relu(), matrix))


@pytest.mark.parametrize("way", WAYS)
def test_a_forward_pass_shows_whether_a_matrix_has_inputs_first(way: str) -> None:
    model = Net(way, "a", "mix", "z")
    entry = signature_for(model, inputs=[torch.randn(3, 6)]).entries["mix"]
    assert (entry.used, entry.facts.inputs_first) == (2, WAYS[way][1])


#: What code makes of a matrix, each number in its place, before it multiplies.
COMPUTED: dict[str, Callable[[Any], Any]] = {
    "normalize": lambda w: nn.functional.normalize(w),
    "renorm, times": lambda w: w.renorm(2, 1, 1e-5).mul(1e5),
    "less its mean": lambda w: w - w.mean(),
    "over its norm, clamped": lambda w: (w / w.norm(dim=0, keepdim=True)).clamp(-1, 1),
    "absolute": lambda w: w.abs() + 1e-3,
    "softplus": lambda w: nn.functional.softplus(w),
}


@pytest.mark.parametrize("computed", COMPUTED)
@pytest.mark.parametrize(
    "way", ["x @ w", "x @ w.T", "(w @ x.T).T", "linear(x, w)", "linear(x, w.T)", "einsum(bi,io->bo)"]
)
def test_a_matrix_that_is_computed_from_a_parameter_shows_the_same(computed: str, way: str) -> None:
    model = Net(way, "a", "mix", "z")
    model.way = lambda x, w: WAYS[way][0](x, COMPUTED[computed](w))
    entry = signature_for(model, inputs=[torch.randn(3, 6)]).entries["mix"]
    assert entry.facts.inputs_first == WAYS[way][1]


def test_a_parameter_that_layers_take_is_data_and_shows_no_layout() -> None:
    """Learned features of nodes, whose neighbours are summed first."""

    class Nodes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.nodes, self.places, self.w = (nn.Parameter(torch.randn(6, 6)) for _ in range(3))
            self.out = nn.Linear(6, 4)

        def forward(self, near: Any) -> Any:
            seen = near @ (near + self.places)  # what is computed from data is no weight
            return self.out(self.nodes) + self.out(near @ self.nodes @ self.w) + self.out(self.nodes @ self.w + seen)

    entries = signature_for(Nodes(), inputs=[torch.randn(6, 6)]).entries
    shown = {key: entries[key].facts.inputs_first for key in ("nodes", "places", "w")}
    assert shown == {"nodes": None, "places": None, "w": True}


PAIRS = [(one, other) for number, (one, other) in enumerate(product(WAYS, WAYS)) if number % 11 == 0]


@pytest.mark.parametrize(("theirs", "own"), PAIRS)
def test_the_code_of_both_sides_decides_and_a_proof_agrees(theirs: str, own: str) -> None:
    torch.manual_seed(0)
    source, model = Net(theirs, "a", "mix", "z").eval(), Net(own, "first", "blend", "last").eval()
    right = "mix" if WAYS[theirs][1] == WAYS[own][1] else "transpose(mix)"
    inputs = [torch.randn(3, 6)]
    by_names = ckptool.transfer(source.state_dict(), model, inputs=inputs)["blend"]
    assert by_names.status == "guessed"
    assert right in [str(by_names.expr), *map(str, by_names.rivals)]
    by_code = ckptool.transfer(source.state_dict(), model, source_model=source, inputs=inputs, prove=False)["blend"]
    assert (by_code.status, str(by_code.expr)) == ("mapped", right)
    proved = ckptool.transfer(source.state_dict(), model, source_model=source, inputs=inputs, prove=True)
    assert proved.proof is not None
    assert proved.proof["equal"]
    assert str(proved["blend"].expr) == right


def test_a_square_matrix_that_is_multiplied_element_by_element_and_summed_is_a_guess_without_code() -> None:
    class Summed(Net):
        def __init__(self) -> None:
            super().__init__("x @ w", "first", "blend", "last")
            self.way = lambda x, w: (x[:, None, :] * w).sum(-1)

    source, model = Net("x @ w", "a", "mix", "z"), Summed()
    entry = ckptool.transfer(source.state_dict(), model, inputs=[torch.randn(3, 6)])["blend"]
    assert (entry.status, str(entry.expr), [*map(str, entry.rivals)]) == ("guessed", "mix", ["transpose(mix)"])


def test_a_square_matrix_that_the_code_normalizes_is_a_guess_without_the_code_of_the_file() -> None:
    class Cosines(nn.Module):
        def __init__(self, way: str) -> None:
            super().__init__()
            self.weight, self.way = nn.Parameter(torch.randn(6, 6)), WAYS[way][0]

        def forward(self, x: Any) -> Any:
            return self.way(nn.functional.normalize(x), nn.functional.normalize(self.weight))

    inputs = [torch.randn(3, 8)]
    source = nn.Sequential(OrderedDict(fc5=nn.Linear(8, 6), fc6=Cosines("x @ w")))
    model = nn.Sequential(OrderedDict(body=nn.Linear(8, 6), head=Cosines("linear(x, w)")))
    alone = ckptool.transfer(source.state_dict(), model, inputs=inputs)["head.weight"]
    assert (alone.status, [*map(str, alone.rivals)]) == ("guessed", ["transpose(fc6.weight)"])
    known = ckptool.transfer(source.state_dict(), model, source_model=source, inputs=inputs, prove=False)["head.weight"]
    assert (known.status, str(known.expr)) == ("mapped", "transpose(fc6.weight)")


ONE_HOT = nn.functional.one_hot
#: Ways to take rows of a table by a product, and whether the table is stored with a column for each row.
LOOKUPS: dict[str, tuple[Callable[[Any, Any], Any], bool]] = {
    "one_hot @ w": (lambda at, w: ONE_HOT(at, 6).float() @ w, False),
    "one_hot @ w.T": (lambda at, w: ONE_HOT(at, 6).to(w.dtype) @ w.T, True),
    "w[None].matmul(one_hot)": (lambda at, w: (w @ ONE_HOT(at, 6).type_as(w).mT).mT, True),
    "einsum(bi,io->bo)": (lambda at, w: torch.einsum("bi,io->bo", ONE_HOT(at, 6).float(), w), False),
    "einsum(oi,bi->bo)": (lambda at, w: torch.einsum("oi,bi->bo", w, ONE_HOT(at, 6).float()), True),
}


class Rows(nn.Module):
    """A square table, of which rows are taken, and a layer."""

    def __init__(self, way: str, *names: str) -> None:
        super().__init__()
        self.way, self.names = LOOKUPS[way][0] if way else None, names
        table = nn.Embedding(6, 6) if self.way is None else nn.Parameter(torch.randn(6, 6))
        self.register_parameter(names[0], table) if self.way else self.add_module(names[0], table)
        self.add_module(names[1], nn.Linear(6, 4))

    def forward(self, at: Any) -> Any:
        table, last = (getattr(self, name) for name in self.names)
        return last(self.way(at, table) if self.way else table(at))


@pytest.mark.parametrize("way", LOOKUPS)
def test_a_table_whose_rows_a_product_with_one_hot_takes_is_an_embedding(way: str) -> None:
    inputs = [torch.randint(6, (5,))]
    source, model = Rows(way, "bias_by_place", "out"), Rows("", "places", "head")
    known = ckptool.transfer(source.state_dict(), model, source_model=source, inputs=inputs, prove=False)
    wanted = "transpose(bias_by_place)" if LOOKUPS[way][1] else "bias_by_place"
    assert (known["places.weight"].status, str(known["places.weight"].expr)) == ("mapped", wanted)
    back = ckptool.transfer(model.state_dict(), source, source_model=model, inputs=inputs, prove=False)["bias_by_place"]
    assert (back.status, str(back.expr)) == ("mapped", wanted.replace("bias_by_place", "places.weight"))


@pytest.mark.parametrize("outputs", [6, 8])
@pytest.mark.parametrize("rows", ["plain", "joined"])
def test_a_matrix_that_a_product_with_one_hot_takes_is_a_layer_where_the_other_code_has_one(
    outputs: int, rows: str
) -> None:
    class Condition(nn.Module):
        def __init__(self, *names: str, own: bool) -> None:
            super().__init__()
            self.names, inputs = names, 6 if rows == "plain" else 12
            layer = nn.Parameter(torch.randn(inputs, outputs)) if own else nn.Linear(inputs, outputs, bias=False)
            self.register_parameter(names[0], layer) if own else self.add_module(names[0], layer)
            self.add_module(names[1], nn.Linear(outputs, 3))

        def forward(self, at: Any) -> Any:
            seen = ONE_HOT(at, 6).float()
            seen = seen if rows == "plain" else seen.reshape(-1, 12)
            layer, head = (getattr(self, name) for name in self.names)
            return head(layer(seen) if isinstance(layer, nn.Module) else seen @ layer)

    inputs = [torch.randint(6, (4,))]
    source, model = Condition("w", "out", own=True), Condition("cond", "head", own=False)
    known = ckptool.transfer(source.state_dict(), model, source_model=source, inputs=inputs, prove=False)["cond.weight"]
    assert (known.status, str(known.expr)) == ("mapped", "transpose(w)")
    back = ckptool.transfer(model.state_dict(), source, source_model=model, inputs=inputs, prove=False)["w"]
    assert (back.status, str(back.expr)) == ("mapped", "transpose(cond.weight)")


@pytest.mark.parametrize("own", ["x @ w", "linear(x, w)", "einsum(bi,io->bo)", "x @ w.T"])
@pytest.mark.parametrize("theirs", ["x @ w", "x @ w.T"])
def test_a_row_that_is_added_behind_a_product_does_not_turn_the_matrix_once_more(theirs: str, own: str) -> None:
    class WithRow(Net):
        def __init__(self, way: str, row: str, *names: str) -> None:
            super().__init__(way, *names)
            self.row = row
            self.register_parameter(row, nn.Parameter(torch.randn(1, 6)))
            self.way = lambda x, w: WAYS[way][0](x, w) + getattr(self, row)

    source, model = WithRow(theirs, "mix_bias", "a", "mix_weight", "z"), WithRow(own, "bias", "first", "blend", "last")
    inputs = [torch.randn(3, 6)]
    right = "mix_weight" if WAYS[theirs][1] == WAYS[own][1] else "transpose(mix_weight)"
    entry = ckptool.transfer(source.state_dict(), model, source_model=source, inputs=inputs, prove=False)["blend"]
    assert (entry.status, str(entry.expr)) == ("mapped", right)


@pytest.mark.parametrize("own", ["x @ w", "linear(x, w)"])
def test_a_square_parameter_of_another_name_that_the_code_normalizes_is_a_guess_too(own: str) -> None:
    model = Net(own, "first", "centers", "last")
    model.way = lambda x, w: WAYS[own][0](x, nn.functional.normalize(w, dim=0))
    source = Net("x @ w", "a", "prototypes", "z")
    entry = ckptool.transfer(source.state_dict(), model, inputs=[torch.randn(3, 6)])["centers"]
    assert entry.status == "guessed"
    assert {"prototypes", "transpose(prototypes)"} <= {str(entry.expr), *map(str, entry.rivals)}
