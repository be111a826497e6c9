"""Matrices with their inputs first or their outputs first: turned on evidence, a guess without."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sides import found, pairing, signature, wanted, worked_out

import ckptool
from ckptool.porting.port import port
from ckptool.porting.questions import Reason

torch = pytest.importorskip("torch")


class Multiplied(torch.nn.Module):
    """Multiplies with matrices of its own from the right: inputs first."""

    def __init__(self, sizes: tuple[tuple[int, ...], ...], name: str = "w") -> None:
        super().__init__()
        for place, shape in enumerate(sizes):
            self.register_parameter(f"{name}{place}", torch.nn.Parameter(torch.randn(shape)))

    def forward(self, x: Any) -> Any:
        for weight in self.parameters():
            x = torch.bmm(x.expand(weight.shape[0], -1, -1), weight)[:1] if weight.ndim == 3 else x @ weight
        return x


def transfer(source: Mapping[str, Any], model: Any, width: int = 6) -> Any:
    from ckptool.model_code.building import signature_of
    from ckptool.porting.sources import match_signature

    return match_signature(source, signature_of(model, inputs=(torch.zeros(1, 3, width),)))


SIZES = st.lists(st.sampled_from([(6, 6), (4, 6, 6)]), min_size=1, max_size=4).map(tuple)


@given(sizes=SIZES)
def test_a_model_gets_its_own_square_matrices_as_they_are(sizes: tuple[tuple[int, ...], ...]) -> None:
    model = Multiplied(sizes)
    mapping = transfer(model.state_dict(), model)
    assert pairing(mapping) == {key: key for key in model.state_dict()}
    assert {entry.status for entry in mapping.entries} == {"mapped"}


@given(sizes=SIZES)
def test_square_matrices_of_another_name_stand_as_the_others_whose_sizes_tell(
    sizes: tuple[tuple[int, ...], ...],
) -> None:
    model = Multiplied((*sizes, (6, 9)))
    source = {key.replace("w", "matrix"): value for key, value in model.state_dict().items()}
    assert pairing(transfer(source, model)) == {key: key.replace("w", "matrix") for key in model.state_dict()}


def test_square_matrices_of_another_name_are_guesses_where_no_size_tells() -> None:
    model = Multiplied(((6, 6),))
    mapping = transfer({"matrix": torch.randn(6, 6)}, model)
    assert {entry.status for entry in mapping.entries} == {"guessed"}
    assert "does not show whether its rows are outputs" in mapping.entries[0].doubts[-1]
    assert len(mapping.entries[0].rivals) == 1


@pytest.mark.parametrize(("name", "likely"), [("W_key", "transpose(W_key)"), ("key_weight", "key_weight")])
def test_a_square_parameter_is_most_likely_multiplied_with_from_the_right_unless_it_is_called_weight(
    name: str, likely: str
) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(6, 6, bias=False))
    made = transfer({name: torch.randn(6, 6)}, model).entries[0]
    assert made.status == "guessed"
    assert str(made.expr) == likely
    assert {str(made.expr), *map(str, made.rivals)} == {name, f"transpose({name})"}


def test_square_matrices_of_linear_layers_are_turned_for_a_model_that_multiplies_with_the_same_names() -> None:
    class Turned(torch.nn.Module):
        def __init__(self, *sizes: int) -> None:
            super().__init__()
            self.weight, self.bias = torch.nn.Parameter(torch.randn(*sizes)), torch.nn.Parameter(torch.randn(sizes[-1]))

        def forward(self, x: Any) -> Any:
            return torch.addmm(self.bias, x[0], self.weight)[None]

    linear = torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.Linear(6, 9), torch.nn.Linear(9, 6))
    model = torch.nn.Sequential(Turned(6, 6), Turned(6, 9), Turned(9, 6))
    mapping = transfer(linear.state_dict(), model)
    assert all(
        str(entry.expr) == f"transpose({entry.target})" for entry in mapping.having("mapped") if "w" in entry.target
    )
    assert len(mapping.having("mapped")) == 6


class Propagating(torch.nn.Module):
    """Layers that multiply with bare matrices from the right, between linear layers."""

    def __init__(self, *sizes: int) -> None:
        super().__init__()
        self.encode = torch.nn.Linear(9, sizes[0])
        for place, (into, out) in enumerate(pairwise(sizes)):
            self.register_parameter(f"theta_{place}", torch.nn.Parameter(torch.randn(into, out)))
        self.steps = len(sizes) - 1

    def forward(self, x: Any) -> Any:
        x = self.encode(x)
        for place in range(self.steps):
            x = torch.relu(x @ getattr(self, f"theta_{place}"))
        return x


@pytest.mark.parametrize("inputs_first", [True, False])
@pytest.mark.parametrize(("sizes", "status"), [((6, 6, 6), "guessed"), ((6, 6, 8), "mapped")])
def test_square_weights_of_a_layer_stand_as_the_others_of_its_name_whose_sizes_tell(
    sizes: tuple[int, ...], status: str, inputs_first: bool
) -> None:
    model = Propagating(*sizes)
    source = {"fcs.0.weight": torch.randn(6, 9), "fcs.0.bias": torch.randn(6)}
    for place, (into, out) in enumerate(pairwise(sizes)):
        source[f"convs.{place}.weight"] = torch.randn(into, out) if inputs_first else torch.randn(out, into)
    mapping = transfer(source, model, 9)
    entries = [found(mapping, f"theta_{n}") for n in range(2)]
    assert {entry.status for entry in entries} == {status}
    for n, entry in enumerate(entries):
        copy = f"convs.{n}.weight"
        if status == "mapped":
            assert str(entry.expr) == (copy if inputs_first else f"transpose({copy})")
        else:
            assert {str(entry.expr), *map(str, entry.rivals)} == {copy, f"transpose({copy})"}


def test_matrices_of_heads_that_are_parameters_on_both_sides_are_copied_with_a_doubt() -> None:
    class Heads(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.edge_message = torch.nn.Parameter(torch.randn(3, 2, 4, 4))
            self.out = torch.nn.Linear(8, 5)

        def forward(self, x: Any) -> Any:
            x = torch.einsum("nhd,rhde->nhe", self.out.weight[:1].reshape(1, 2, 4) * x.mean(), self.edge_message)
            return self.out(x.flatten(1))

    source = {"relation_msg": torch.randn(3, 2, 4, 4), "out.weight": torch.randn(5, 8), "out.bias": torch.randn(5)}
    entry = found(transfer(source, Heads()), "edge_message")
    assert (entry.status, str(entry.expr)) == ("guessed", "relation_msg")


class Attending(torch.nn.Module):
    """Attends with a square matrix, and with one column where WITH_COLUMN."""

    def __init__(self, *, with_column: bool) -> None:
        super().__init__()
        self.projection = torch.nn.Parameter(torch.randn(6, 6))
        self.projection_shift = torch.nn.Parameter(torch.randn(1, 6))
        if with_column:
            self.query = torch.nn.Parameter(torch.randn(6, 1))

    def forward(self, x: Any) -> Any:
        x = torch.tanh(x @ self.projection + self.projection_shift)
        return x @ self.query if hasattr(self, "query") else x


@pytest.mark.parametrize("columns", [(6, 1), (1, 6), None])
def test_a_square_parameter_called_weight_is_no_linear_layer_without_evidence(columns: tuple[int, int] | None) -> None:
    source = {"word_weight": torch.randn(6, 6), "word_bias": torch.randn(1, 6)}
    if columns is not None:
        source["context_weight"] = torch.randn(columns)
    made = found(transfer(source, Attending(with_column=columns is not None)), "projection")
    if columns is None:
        assert made.status == "guessed"
        assert {str(made.expr), *map(str, made.rivals)} == {"word_weight", "transpose(word_weight)"}
    else:
        assert made.status == "mapped"
        assert str(made.expr) == ("word_weight" if columns == (6, 1) else "transpose(word_weight)")


def test_a_column_in_a_part_called_words_is_no_table_of_words() -> None:
    model = torch.nn.ModuleDict({"words": Attending(with_column=True)})
    model.forward = lambda x: model["words"](x)
    source = {f"attention.{key}": value for key, value in model["words"].state_dict().items()}
    assert pairing(transfer(source, model))["words.query"].count("attention.query") == 1


def members(n: int, sizes: list[int]) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {}
    for i in range(n):
        for place, (into, out) in enumerate(pairwise(sizes)):
            found |= {f"members.{i}.fc{place}.weight": (out, into), f"members.{i}.fc{place}.bias": (out,)}
    return found


def stacked(n: int, sizes: list[int], *, inputs_first: bool) -> dict[str, np.ndarray[Any, Any]]:
    found: dict[str, np.ndarray[Any, Any]] = {}
    rng = np.random.default_rng(0)
    for place, (into, out) in enumerate(pairwise(sizes)):
        shape = (n, into, out) if inputs_first else (n, out, into)
        found[f"all.{place}.weight"] = rng.standard_normal(shape).astype(np.float32)
        found[f"all.{place}.bias"] = rng.standard_normal((n, 1, out)).astype(np.float32)
    return found


@given(n=st.integers(2, 5), inputs_first=st.booleans(), depth=st.integers(1, 3))
def test_square_matrices_of_a_stack_stand_as_its_others(n: int, inputs_first: bool, depth: int) -> None:
    sizes = [7, *[9] * (depth + 1), 1]
    source = stacked(n, sizes, inputs_first=inputs_first)
    made = worked_out(source, members(n, sizes))
    for i in range(n):
        for place in range(len(sizes) - 1):
            got, whole = made[f"members.{i}.fc{place}.weight"], source[f"all.{place}.weight"][i]
            assert got.status == "mapped"
            np.testing.assert_array_equal(got.values, whole.T if inputs_first else whole)


def test_a_stack_of_square_matrices_alone_is_in_doubt() -> None:
    shapes = {"all.0.weight": (4, 9, 9), "all.0.bias": (4, 1, 9), "norm.weight": (5,)}
    target = members(4, [9, 9]) | {"norm.weight": (5,)}
    entry = found(port(signature(shapes), wanted(target)), "members.2.fc0.weight")
    assert entry.status == "guessed"
    assert str(entry.rivals[0]) == "select(transpose(all.0.weight), 0, 2)"


def test_a_leaf_behind_a_module_that_is_named_by_scopes_is_read_as_one() -> None:
    source = {f"stack/{part}//norm.{leaf}": (8,) for part in ("row", "column") for leaf in ("offset", "scale")}
    shapes = {f"{part}.norm.{leaf}": (8,) for part in ("row", "column") for leaf in ("weight", "bias")}
    assert pairing(port(signature(source), wanted(shapes))) == {
        f"{part}.norm.{own}": f"stack/{part}//norm.{leaf}"
        for part in ("row", "column")
        for own, leaf in (("weight", "scale"), ("bias", "offset"))
    }


def test_names_with_slashes_and_slots_are_read_as_paths() -> None:
    rng = np.random.default_rng(0)
    source = {
        "stem/stem/kernel:0": (3, 3, 3, 8),
        "stem_bn/stem_bn/gamma:0": (8,),
        "stem_bn/stem_bn/beta:0": (8,),
        "stem_bn/stem_bn/moving_mean:0": (8,),
        "stem_bn/stem_bn/moving_variance:0": (8,),
        "separable/separable/depthwise_kernel:0": (3, 3, 8, 2),
        "separable/separable/pointwise_kernel:0": (1, 1, 16, 12),
        "encoder/layer_0/dense/dense/kernel:0": (12, 5),
        "encoder/layer_1/dense/dense/kernel:0": (5, 6),
    }
    values = {key: rng.standard_normal(shape).astype(np.float32) for key, shape in source.items()}
    target = {
        "stem.weight": (8, 3, 3, 3),
        "bn.weight": (8,),
        "bn.bias": (8,),
        "bn.running_mean": (8,),
        "bn.running_var": (8,),
        "depthwise.weight": (16, 1, 3, 3),
        "pointwise.weight": (12, 16, 1, 1),
        "layers.0.weight": (5, 12),
        "layers.1.weight": (6, 5),
    }
    made = worked_out(values, target)
    assert {entry.status for entry in made.values()} == {"mapped"}
    x = torch.randn(1, 8, 6, 6)
    depthwise = torch.nn.functional.conv2d(x, torch.from_numpy(made["depthwise.weight"].values.copy()), groups=8)
    kernel = values["separable/separable/depthwise_kernel:0"]
    for channel in range(8):
        for multiple in range(2):
            one = torch.from_numpy(kernel[:, :, channel, multiple].copy())[None, None]
            expected = torch.nn.functional.conv2d(x[:, channel : channel + 1], one)
            torch.testing.assert_close(depthwise[:, 2 * channel + multiple], expected[:, 0], rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(made["layers.0.weight"].values, values["encoder/layer_0/dense/dense/kernel:0"].T)


@given(n=st.integers(2, 4), layers=st.integers(1, 2))
def test_matrices_of_all_experts_below_each_other_become_one_for_each(n: int, layers: int) -> None:
    rng = np.random.default_rng(0)
    source: dict[str, np.ndarray[Any, Any]] = {}
    target: dict[str, tuple[int, ...]] = {}
    for layer in range(layers):
        source[f"blocks.{layer}.router.weight"] = rng.standard_normal((n, 6)).astype(np.float32)
        target[f"layers.{layer}.router.weight"] = (n, 6)
        for name in ("w1", "v1", "w2"):
            source[f"blocks.{layer}.experts.{name}"] = rng.standard_normal((n * 5, 6)).astype(np.float32)
        for expert in range(n):
            for name in ("w1", "v1", "w2"):
                target[f"layers.{layer}.experts.{expert}.{name}.weight"] = (6, 5) if name == "w2" else (5, 6)
    made = worked_out(source, target)
    for layer in range(layers):
        for expert in range(n):
            for name in ("w1", "v1", "w2"):
                own = source[f"blocks.{layer}.experts.{name}"][5 * expert : 5 * expert + 5]
                got = made[f"layers.{layer}.experts.{expert}.{name}.weight"].values
                np.testing.assert_array_equal(got, own.T if name == "w2" else own)


def test_how_experts_stand_says_nothing_of_the_layers_beside_them() -> None:
    source = {f"l.{n}.attn.q.{leaf}": size for n in range(2) for leaf, size in {"weight": (8, 8), "bias": (8,)}.items()}
    for n in range(2):
        source |= {f"l.{n}.experts.up_proj": (3, 8, 12), f"l.{n}.experts.up_proj_bias": (3, 12)}
        source |= {f"l.{n}.experts.down_proj": (3, 12, 8), f"l.{n}.experts.down_proj_bias": (3, 8)}
    target = {key.replace("l.", "layers."): size for key, size in source.items() if "attn" in key}
    for n in range(2):
        for e in range(3):
            target |= {f"layers.{n}.experts.{e}.up_proj.weight": (12, 8), f"layers.{n}.experts.{e}.up_proj.bias": (12,)}
            target |= {
                f"layers.{n}.experts.{e}.down_proj.weight": (8, 12),
                f"layers.{n}.experts.{e}.down_proj.bias": (8,),
            }
    mapping = port(signature(source), wanted(target))
    for n in range(2):
        assert pairing(mapping)[f"layers.{n}.attn.q.weight"] == f"l.{n}.attn.q.weight"
        assert (
            pairing(mapping)[f"layers.{n}.experts.1.up_proj.weight"]
            == f"transpose(select(l.{n}.experts.up_proj, 0, 1))"
        )


def test_square_kernels_of_a_model_that_was_not_followed_stand_as_their_name_says() -> None:
    source = {
        "rnn.weight_ih_l0": (32, 6),
        "rnn.weight_hh_l0": (32, 8),
        "rnn.bias_ih_l0": (32,),
        "rnn.bias_hh_l0": (32,),
    }
    target = {f"cell.i{gate}.kernel": (6, 8) for gate in "ifgo"}
    for gate in "ifgo":
        target |= {f"cell.h{gate}.kernel": (8, 8), f"cell.h{gate}.bias": (8,)}
    mapping = port(signature(source), wanted(target))
    assert pairing(mapping)["cell.hf.kernel"] == "transpose(slice(rnn.weight_hh_l0, 0, 8, 16))"


DENSE = {"stem.weight": (12, 5), "stem.bias": (12,), "head.weight": (3, 12), "head.bias": (3,)}


def test_dimensions_of_a_parameter_are_put_in_the_order_of_the_model_where_sizes_allow_one() -> None:
    values = np.random.default_rng(0).standard_normal((5, 1, 64, 8, 6))
    source = {key: np.zeros(shape) for key, shape in DENSE.items()} | {"caps.route": values}
    made = worked_out(source, {"transform": (64, 5, 6, 8)} | DENSE)
    assert made["transform"].status == "mapped"
    np.testing.assert_array_equal(made["transform"].values, values[:, 0].transpose(1, 0, 3, 2))


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ({"route": (5, 6, 6, 8)}, {"transform": (6, 5, 6, 8)}),  # two orders fit
        ({"route": (5, 7, 8), "other": (8, 7, 5)}, {"transform": (7, 5, 8), "more": (7, 8, 5)}),
        ({"route": (5, 7, 8), "other": (5, 7, 8)}, {"transform": (7, 5, 8)}),
    ],
)
def test_where_sizes_leave_more_than_one_order_or_tensor_nothing_is_permuted(
    source: dict[str, tuple[int, ...]], target: dict[str, tuple[int, ...]]
) -> None:
    mapping = port(signature(source | DENSE), wanted(target | DENSE))
    assert "permute" not in str(pairing(mapping))


def test_the_dimensions_of_kernels_of_layers_are_no_parameters_of_their_own() -> None:
    mapping = port(signature({"conv.weight": (5, 7, 3, 2)} | DENSE), wanted({"conv.weight": (7, 5, 3, 2)} | DENSE))
    assert found(mapping, "conv.weight").status == "unmapped"


def test_tables_of_codes_are_not_taken_for_the_averages_that_training_keeps_of_them() -> None:
    source, target = dict[str, tuple[int, ...]](), dict[str, tuple[int, ...]]()
    for n, letter in ((1, "t"), (2, "b")):
        source |= {f"conv_{letter}.weight": (8, 4, n), f"quantize_{letter}.embed": (8, 20)}
        source |= {f"quantize_{letter}.cluster_size": (20,), f"quantize_{letter}.embed_avg": (8, 20)}
        target |= {f"in{n}.weight": (8, 4, n), f"book{n}.codes.weight": (20, 8)}
    mapping = port(signature(source), wanted(target, used=target))
    for n, letter in ((1, "t"), (2, "b")):
        assert found(mapping, f"book{n}.codes.weight").status == "mapped"
        assert pairing(mapping)[f"book{n}.codes.weight"] == f"transpose(quantize_{letter}.embed)"


def test_averages_go_where_the_model_has_them_too() -> None:
    held = {"q.embed": (8, 20), "q.embed_avg": (8, 20), "out.weight": (3, 8)}
    mapping = port(signature({f"book.{key}": shape for key, shape in held.items()}), wanted(held))
    assert pairing(mapping) == {key: f"book.{key}" for key in held}


def test_a_scalar_intercept_is_the_bias_of_the_other_side() -> None:
    source = {"linear.bias": (1,), "linear.fc.weight": (27, 1), "embeddings.weight": (27, 4)}
    mapping = port(signature(source), wanted({"intercept": (), "first_order": (27,), "latent": (27, 4)}))
    expected = {"intercept": "reshape(linear.bias)", "first_order": "reshape(linear.fc.weight, 27)"}
    assert pairing(mapping) == expected | {"latent": "embeddings.weight"}


@pytest.mark.parametrize("widest", [9, 6])
def test_squares_under_a_single_letter_are_turned_for_convolutions_of_size_1_where_others_show_it(widest: int) -> None:
    layers = ((6, widest), (widest, 6), (6, 6))
    model = torch.nn.Sequential(*(torch.nn.Conv1d(into, out, 1) for into, out in layers))
    model.forward = lambda x: model[2](model[1](model[0](x.transpose(1, 2))))
    source = {}
    for place, (into, out) in enumerate(layers):
        source |= {f"steps.nin_{place}.W": torch.randn(into, out), f"steps.nin_{place}.b": torch.randn(out)}
    weight = found(transfer(source, model), "2.weight")
    if widest == 9:
        assert weight.status == "mapped"
        assert "transpose" in str(weight.expr)
    else:
        assert weight.status == "guessed"
        assert {"transpose" in str(expr) for expr in (weight.expr, *weight.rivals)} == {True, False}


def test_kernels_with_height_and_width_first_are_turned_where_most_sizes_say_so() -> None:
    values = {f"c{n}.w": np.random.default_rng(n).standard_normal((3, 3, 4 + n, 5 + n)) for n in range(3)}
    values["d.w"] = np.random.default_rng(9).standard_normal((3, 3, 3, 3))  # no size tells
    target = {f"layers.{n}.weight": (5 + n, 4 + n, 3, 3) for n in range(3)} | {"layers.3.weight": (3, 3, 3, 3)}
    made = worked_out(values, target)
    for key, value in zip(target, values.values(), strict=True):
        np.testing.assert_array_equal(made[key].values, value.transpose(3, 2, 0, 1))


class Bank(torch.nn.Module):
    """All experts at once; the first equation makes of one input what heads of attention would."""

    def __init__(self, sizes: tuple[int, ...], experts: int) -> None:
        super().__init__()
        for place, (into, out) in enumerate(pairwise(sizes), 1):
            self.register_parameter(f"kernel{place}", torch.nn.Parameter(torch.randn(experts, into, out)))
            self.register_parameter(f"bias{place}", torch.nn.Parameter(torch.randn(experts, out)))

    def forward(self, x: Any) -> Any:
        x = torch.einsum("bi,eio->beo", x, self.kernel1) + self.bias1
        return torch.einsum("bei,eio->beo", x.relu(), self.kernel2) + self.bias2


@pytest.mark.parametrize("sizes", [(6, 8, 5), (6, 5, 6), (6, 6, 6)])
def test_experts_in_a_bank_are_the_layers_of_a_list(sizes: tuple[int, int, int]) -> None:
    import ckptool

    a, b, c = sizes
    experts = torch.nn.ModuleList(
        torch.nn.Sequential(torch.nn.Linear(a, b), torch.nn.ReLU(), torch.nn.Linear(b, c)) for _ in range(3)
    )
    model = Bank(sizes, 3)
    ckptool.load_into(model, {f"experts.{key}": value for key, value in experts.state_dict().items()})
    x = torch.randn(4, a)
    torch.testing.assert_close(model(x), torch.stack([expert(x) for expert in experts], 1))


class Inside(torch.nn.Module):
    """A first order term as a module that holds a table, and a bias beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.bias, self.fc = torch.nn.Parameter(torch.randn(1)), torch.nn.Embedding(30, 1)

    def forward(self, x: Any) -> Any:
        return self.fc(x).sum(1) + self.bias


class Wide(torch.nn.Module):
    """A model of a table and a network, with a first order term of one form or the other."""

    def __init__(self, *, inside: bool) -> None:
        super().__init__()
        self.table, self.score = torch.nn.Embedding(30, 6), torch.nn.Linear(6, 1)
        if inside:
            self.linear = Inside()
        else:
            self.wide, self.wide_bias = torch.nn.Embedding(30, 1), torch.nn.Parameter(torch.randn(1))

    def forward(self, x: Any) -> Any:
        y = self.score(self.table(x).sum(1))
        return y + (self.linear(x) if hasattr(self, "linear") else self.wide(x).sum(1) + self.wide_bias)


@pytest.mark.parametrize("inside", [True, False])
def test_the_bias_of_a_table_may_stand_beside_it_or_beside_the_module_that_holds_it(inside: bool) -> None:
    import ckptool

    theirs, own = Wide(inside=inside), Wide(inside=not inside)
    ckptool.load_into(own, theirs.state_dict())
    x = torch.randint(0, 30, (4, 3))
    torch.testing.assert_close(own(x), theirs(x))


class Grouped(torch.nn.Module):
    """A mixture of experts that keeps them in one stack and multiplies by groups of rows."""

    def __init__(self, *, inputs_first: bool) -> None:
        super().__init__()
        self.gate = torch.nn.Linear(8, 4)
        self.experts = torch.nn.Parameter(torch.randn(4, 8, 8))
        self.inputs_first = inputs_first

    def forward(self, x: Any) -> Any:
        chosen, order = self.gate(x).argmax(-1).sort()
        ends = torch.bincount(chosen, minlength=4).cumsum(0).to(torch.int32)
        stack = self.experts if self.inputs_first else self.experts.transpose(1, 2)
        return torch.nn.functional.grouped_mm(x[order], stack, offs=ends)


@pytest.mark.skipif(not hasattr(torch.nn.functional, "grouped_mm"), reason="newer torch")
@pytest.mark.parametrize("inputs_first", [True, False])
def test_a_stack_of_experts_that_takes_groups_of_rows_is_seen_to_have_inputs_or_outputs_first(
    inputs_first: bool,
) -> None:
    from ckptool.model_code.building import signature_of
    from ckptool.porting.sources import match_signature

    model = Grouped(inputs_first=inputs_first)
    apart = {"gate.weight": torch.randn(4, 8), "gate.bias": torch.randn(4)}
    apart |= {f"experts.{i}.weight": torch.randn(8, 8) for i in range(4)}
    stack = found(match_signature(apart, signature_of(model)), "experts")  # no inputs are given: they are found
    joined = f"stack({', '.join(f'experts.{i}.weight' for i in range(4))})"
    assert (str(stack.expr), stack.status) == (f"transpose({joined})" if inputs_first else joined, "mapped")


def test_a_parameter_that_stands_turned_says_nothing_of_layers_of_its_name() -> None:
    body = {"body.proj.weight": (8, 8), "body.proj.bias": (8,), "body.fc.weight": (12, 8)}
    mapping = port(signature({**body, "tower.proj": (8, 5)}), wanted({**body, "tower_projection.weight": (5, 8)}))
    assert pairing(mapping)["tower_projection.weight"] == "transpose(tower.proj)"
    assert pairing(mapping)["body.proj.weight"] == "body.proj.weight"


def test_square_weights_of_haiku_are_turned_as_those_are_whose_sizes_show_it() -> None:
    """Haiku and Sonnet call them `weights`, with inputs first."""
    source = {"up.weights": (12, 24), "up.bias": (24,), "gate.weights": (12, 12), "gate.bias": (12,)}
    target = {"up.weight": (24, 12), "up.bias": (24,), "gate.weight": (12, 12), "gate.bias": (12,)}
    mapping = port(signature(source), wanted(target, used=target))
    assert {str(mapping[f"{name}.weight"].expr) for name in ("up", "gate")} == {
        "transpose(up.weights)",
        "transpose(gate.weights)",
    }


@pytest.mark.parametrize(("how", "certain"), [("exp", True), ("matmul", False)])
def test_parameters_that_the_model_multiplies_with_no_inputs_are_as_their_sizes_say(how: str, certain: bool) -> None:
    """Layers have their sizes turned, by chance, and stand so that no order tells."""
    source = {"kernel.log_A": (16, 4), "kernel.A_imag": (16, 4), "head.weight": (4, 16), "last.weight": (4, 16)}
    target = {"one.weight": (4, 16), "two.weight": (4, 16), "ssm.decay": (16, 4), "ssm.frequency": (16, 4)}
    plain = wanted(target, used=target)
    taken = {key: replace(plain.entries[key], how=how) for key in ("ssm.decay", "ssm.frequency")}
    mapping = port(signature(source), replace(plain, entries={**plain.entries, **taken}))
    asked = {question.reason for key in taken for question in found(mapping, key).questions}
    assert (Reason.INPUTS_FIRST not in asked) == certain


class Times(torch.nn.Module):
    """Multiplies with a matrix: `x @ W`, or `x @ W.T` where OUTPUTS_FIRST."""

    def __init__(self, *, outputs_first: bool, outputs: int = 6) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(outputs, 6))
        self.outputs_first = outputs_first

    def forward(self, x: Any) -> Any:
        return x @ (self.weight.T if self.outputs_first else self.weight)


def of_two(first: str, second: str, layer: torch.nn.Module) -> torch.nn.Module:
    return torch.nn.Sequential(OrderedDict({first: layer, second: torch.nn.Linear(len(layer.weight), 4)}))


@pytest.mark.parametrize("theirs", [True, False])
@pytest.mark.parametrize("own", [True, False])
def test_the_code_of_the_source_shows_the_layout_of_a_square_matrix(theirs: bool, own: bool) -> None:
    source, model = (
        of_two("one", "two", Times(outputs_first=theirs)),
        of_two("first", "second", Times(outputs_first=own)),
    )
    inputs = [torch.randn(2, 6)]
    mapping = ckptool.transfer(source.state_dict(), model, source_model=source, inputs=inputs, prove=False)
    entry = found(mapping, "first.weight")
    assert (entry.status, str(entry.expr)) == ("mapped", "one.weight" if theirs == own else "transpose(one.weight)")
    without = found(ckptool.transfer(source.state_dict(), model, inputs=inputs), "first.weight")
    assert without.status == ("mapped" if own else "guessed"), "torch's layout is the usual one"


@pytest.mark.parametrize("reads", [True, False])
def test_a_buffer_of_a_layer_counts_as_part_of_it_unless_the_code_of_the_source_never_reads_it(reads: bool) -> None:
    class Centred(Times):
        def __init__(self) -> None:
            super().__init__(outputs_first=True, outputs=5)
            self.register_buffer("center", torch.randn(6))

        def forward(self, x: Any) -> Any:
            return super().forward(x - self.center if reads else x)

    source, model = of_two("one", "two", Centred()), of_two("first", "second", Times(outputs_first=True, outputs=5))
    mapping = ckptool.transfer(source.state_dict(), model, source_model=source, inputs=[torch.randn(2, 6)], prove=False)
    assert found(mapping, "first.weight").status == ("guessed" if reads else "mapped")


class Spectral(torch.nn.Module):
    """Multiplies each mode of a picture with a matrix, as a Fourier neural operator does."""

    def __init__(self, names: tuple[str, ...], equation: str) -> None:
        super().__init__()
        self.names, self.equation = names, equation
        self.lift = torch.nn.Linear(3, 6)
        for name in names:
            self.register_parameter(name, torch.nn.Parameter(torch.randn(6, 6, 4, 4)))

    def forward(self, x: Any) -> Any:
        x = self.lift(x).permute(0, 3, 1, 2)
        for name in self.names:
            x = torch.einsum(self.equation, x, getattr(self, name))
        return x


@pytest.mark.parametrize("own", ["bihw,iohw->bohw", "bihw,oihw->bohw"])
@pytest.mark.parametrize("theirs", ["bixy,ioxy->boxy", "bixy,oixy->boxy"])
def test_a_matrix_for_each_mode_is_not_turned_along_the_modes(theirs: str, own: str) -> None:
    source, model = Spectral(("weights1", "weights2"), theirs), Spectral(("w_pos", "w_neg"), own)
    mapping = ckptool.transfer(
        source.state_dict(), model, source_model=source, inputs=["float32[2,4,4,3]"], prove=False
    )
    assert not mapping.having("guessed")
    turned = theirs[5:7] != own[5:7]
    assert str(mapping["w_pos"].expr) == ("permute(weights1, 1, 0, 2, 3)" if turned else "weights1")
    by_names = ckptool.transfer(source.state_dict(), model, inputs=["float32[2,4,4,3]"])
    assert str(by_names["w_pos"].expr) == "weights1"
    assert bool(by_names.having("guessed")) == (own == "bihw,oihw->bohw")


class StackedSpectral(Spectral):
    """The same with the matrices of both layers in one parameter, whose members are taken one by one."""

    def __init__(self, name: str, equation: str) -> None:
        super().__init__((), equation)
        self.name = name
        self.register_parameter(name, torch.nn.Parameter(torch.randn(2, 6, 6, 4, 4)))

    def forward(self, x: Any) -> Any:
        x = self.lift(x).permute(0, 3, 1, 2)
        for weight in getattr(self, self.name):
            x = torch.einsum(self.equation, x, weight)
        return x


@pytest.mark.parametrize("own", ["bihw,iohw->bohw", "bihw,oihw->bohw"])
@pytest.mark.parametrize("theirs", ["bixy,ioxy->boxy", "bixy,oixy->boxy"])
@pytest.mark.parametrize("stacked", [False, True])
def test_a_stack_of_matrices_for_each_mode_is_not_turned_along_the_modes(stacked: bool, theirs: str, own: str) -> None:
    turned = theirs[5:7] != own[5:7]
    inputs = ["float32[2,4,4,3]"]
    if stacked:
        source, model = StackedSpectral("weight", theirs), Spectral(("weights1", "weights2"), own)
        key, plain = "weights1", "select(weight, 0, 0)"
        moved = f"permute({plain}, 1, 0, 2, 3)"
    else:
        source, model = Spectral(("weights1", "weights2"), theirs), StackedSpectral("weight", own)
        key, plain = "weight", "stack(weights1, weights2)"
        moved = "stack(permute(weights1, 1, 0, 2, 3), permute(weights2, 1, 0, 2, 3))"
    by_code = ckptool.transfer(source.state_dict(), model, source_model=source, inputs=inputs, prove=False)[key]
    assert (by_code.status, str(by_code.expr)) == ("mapped", moved if turned else plain)
    by_names = ckptool.transfer(source.state_dict(), model, inputs=inputs)[key]
    asks = own == "bihw,oihw->bohw"
    assert (by_names.status, str(by_names.expr)) == ("guessed" if asks else "mapped", plain)
