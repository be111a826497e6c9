"""What equal sizes hide: kernels and scores the other way round, norms that add 1, factors, and branches left out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from sides import found, signature, wanted

from ckptool.model_code.signature import Facts, Flow, Part, Signature
from ckptool.porting.port import port
from ckptool.porting.questions import Question, Reason, ask, still_open
from ckptool.porting.rivals.both_flows import settle_by_flow


def known(side: Signature, **of: Any) -> Signature:
    """Return SIDE with these facts of all its entries."""
    return replace(side, entries={key: replace(entry, **of) for key, entry in side.entries.items()})


def asked(entry: Any) -> list[str]:
    return [question.reason.name for question in still_open(entry.questions)]


KERNELS = {"0.weight": (8, 8, 3, 3), "0.bias": (8,), "1.weight": (8, 8, 3, 3), "1.bias": (8,)}


@pytest.mark.parametrize(("name", "asks"), [("deconv_layers", ["KERNEL_BY_NAME"]), ("conv_layers", [])])
def test_a_name_alone_makes_a_square_transposed_kernel_a_question(name: str, asks: list[str]) -> None:
    source = signature({f"{name}.{key}": shape for key, shape in KERNELS.items()})
    target = known(wanted({f"up.{key}": shape for key, shape in KERNELS.items()}), module="Conv2d", how="conv2d")
    assert asked(found(port(source, target), "up.1.weight")) == asks


def test_square_kernels_follow_the_sizes_of_their_list() -> None:
    shapes = KERNELS | {"2.weight": (8, 1, 3, 3), "2.bias": (1,)}
    source = signature({f"decoder.{key}": shape for key, shape in shapes.items()})
    shapes = shapes | {"2.weight": (1, 8, 3, 3)}
    target = known(wanted({f"up.{key}": shape for key, shape in shapes.items()}), module="Conv2d", how="conv2d")
    entry = found(port(source, target), "up.0.weight")
    assert str(entry.expr) == "flip(permute(decoder.0.weight, 1, 0, 2, 3), 2, 3)"
    assert asked(entry) == ["TURNED_KERNEL"]


@pytest.mark.parametrize(("shape", "asks"), [((6, 6), ["SQUARE_SCORES"]), ((6, 5), [])])
def test_square_scores_of_another_name_may_be_the_other_way_round(shape: tuple[int, int], asks: list[str]) -> None:
    source = signature({"crf.transitions": shape, "head.weight": (6, 9)})
    target = known(wanted({"trans": shape}), module="Tagger", how="__getitem__")
    assert asked(found(port(source, target), "trans")) == asks


@pytest.mark.parametrize(("keys", "asks"), [(("gamma",), ["MAY_ADD_1"]), (("gamma", "beta"), []), (("weight",), [])])
def test_gamma_without_a_bias_may_want_1_added(keys: tuple[str, ...], asks: list[str]) -> None:
    source = signature({f"layer.norm.{key}": (24,) for key in keys})
    target = known(wanted({"block.norm.weight": (24,), "block.norm.bias": (24,)}), module="LayerNorm", how="layer_norm")
    if len(keys) == 1:
        target = replace(target, entries={k: e for k, e in target.entries.items() if k.endswith("weight")})
    values = {f"layer.norm.{key}": np.linspace(0.5, 1.5, 24) for key in keys}
    assert asked(found(port(source, target, values=values.get), "block.norm.weight")) == asks


@pytest.mark.parametrize(("spread", "asks"), [(100.0, ["EQUALISED_BIAS"]), (0.25, [])])
def test_very_wide_weights_of_few_inputs_have_a_multiplier_that_the_biases_have_too(
    spread: float, asks: list[str]
) -> None:
    rng = np.random.default_rng(0)
    shapes = {f"{n}.{role}": shape for n in range(4) for role, shape in (("weight", (16, 16)), ("bias", (16,)))}
    source = {key.replace(".", "fc.", 1).join(("m", "")): rng.standard_normal(s) * spread for key, s in shapes.items()}
    target = known(wanted({f"mlp.{key}": shape for key, shape in shapes.items()}), module="Linear", how="linear")
    made = port(signature({key: value.shape for key, value in source.items()}), target, values=source.get)
    entry = found(made, "mlp.1.bias")
    assert asked(entry) == asks
    assert [str(rival) for rival in entry.rivals] == ([f"scale({entry.expr}, 0.01)"] if asks else [])


@pytest.mark.parametrize(("spread", "bias", "asks"), [(1.0, 0.5, ["EQUALISED_OUTPUT"]), (1.0, 0.0, []), (0.1, 0.5, [])])
def test_a_factor_of_equalised_weights_may_be_on_the_output_with_its_bias(
    spread: float, bias: float, asks: list[str]
) -> None:
    rng = np.random.default_rng(0)
    weights = {f"m{n}.fc.weight": rng.standard_normal((16, 64)) * spread for n in range(4)}
    source = weights | {f"m{n}.fc.bias": np.full(16, bias) for n in range(4)}
    target = known(
        wanted({key.replace("fc.", ""): v.shape for key, v in source.items()}), module="Linear", how="linear"
    )
    made = port(signature({key: value.shape for key, value in source.items()}), target, values=source.get)
    entry = found(made, "m1.bias")
    assert asked(entry) == asks
    factors = [(2 / 64) ** 0.5, (1 / 64) ** 0.5] if asks else []
    assert [str(rival) for rival in entry.rivals] == [f"scale({entry.expr}, {factor})" for factor in factors]


@pytest.mark.parametrize(
    ("names", "takes", "asks"),
    [
        (("v", "sv", "s"), (Part("norm", 3), Part("scalar", 3)), {"mlp.0": 1, "mlp.2": 5}),
        (("v", "sv", "s"), (Part("norm", 2), Part("scalar", 4)), {"mlp.0": 0, "mlp.2": 5}),
        (("query", "key", "value"), (Part("norm", 3), Part("scalar", 3)), {"mlp.0": 0, "mlp.2": 0}),
    ],
)
def test_all_orders_of_thirds_are_options_and_so_are_those_of_halves_in_their_module(
    names: tuple[str, ...], takes: tuple[Part, ...], asks: dict[str, int]
) -> None:
    source = signature({"context.0.weight": (5, 6), "context.1.weight": (12, 5)})
    target = known(wanted({"mlp.0.weight": (5, 6), "mlp.2.weight": (12, 5)}), module="Linear", how="linear")
    facts = {"mlp.0": Facts(takes=takes), "mlp.2": Facts(parts=tuple(Part(name, 4) for name in names))}
    entries = {key: replace(e, facts=facts[key.removesuffix(".weight")]) for key, e in target.entries.items()}
    made = port(source, replace(target, entries=entries))
    assert {key: len(found(made, f"{key}.weight").rivals) for key in facts} == asks


@pytest.mark.parametrize(("sizes", "asks"), [((4, 4), 1), ((2, 6), 0)])
def test_halves_of_an_output_beside_thirds_have_the_other_order_as_an_option(sizes: tuple[int, int], asks: int) -> None:
    source = signature({"mix.0.weight": (8, 5), "context.0.weight": (5, 6), "context.1.weight": (12, 5)})
    shapes = {"vec.weight": (8, 5), "mlp.0.weight": (5, 6), "mlp.2.weight": (12, 5)}
    target = known(wanted(shapes), module="Linear", how="linear")
    parts = {"vec": ("vec1", "vec2"), "mlp.2": ("v", "sv", "s")}
    facts = {
        path: Facts(parts=tuple(map(Part, names, sizes if path == "vec" else (4, 4, 4))))
        for path, names in parts.items()
    }
    entries = {
        key: replace(e, facts=facts.get(key.removesuffix(".weight"), e.facts)) for key, e in target.entries.items()
    }
    made = port(source, replace(target, entries=entries))
    assert len(found(made, "vec.weight").rivals) == asks


@pytest.mark.parametrize(("before", "after", "asks"), [(0, 3, True), (1, 3, False), (0, 1, False)])
def test_a_branch_that_flows_into_what_the_model_takes_and_that_it_lacks_is_asked_about(
    before: int, after: int, asks: bool
) -> None:
    shapes = {"block.dense.conv.weight": (8, 3, 3, 3), "block.side.conv.weight": (8, 3, 1, 1), "head.weight": (5, 8)}
    flows = dict(zip(shapes, (Flow(0, 0), Flow(1, before), Flow(2, after)), strict=True))
    source = signature(shapes)
    entries = {
        key: replace(entry, used=flows[key].number, how="conv2d", facts=Facts(flow=flows[key]))
        for key, entry in source.entries.items()
    }
    target = wanted({"block.dense.weight": (8, 3, 3, 3), "head.weight": (5, 8)})
    mapping = port(replace(source, entries=entries, traced=True), target)
    assert ("LEFT_OUT_BESIDE" in asked(found(mapping, "block.dense.weight"))) == asks


@pytest.mark.parametrize(("rows", "rank", "asks"), [(24, 2, True), (8, 2, True), (24, 20, False), (7, 2, False)])
def test_two_matrices_of_low_rank_that_wrap_a_layer_under_names_of_their_own_are_asked_about(
    rows: int, rank: int, asks: bool
) -> None:
    shapes = {
        "attn.qkv.qkv.weight": (24, 24),
        "attn.qkv.linear_a_q.weight": (rank, 24),
        "attn.qkv.linear_b_q.weight": (rows, rank),
        "attn.proj.weight": (24, 24),
    }
    mapping = port(signature(shapes), wanted({"attn.qkv.weight": (24, 24), "attn.proj.weight": (24, 24)}))
    assert ("LEFT_BESIDE" in asked(found(mapping, "attn.qkv.weight"))) == asks
    assert "LEFT_BESIDE" not in asked(found(mapping, "attn.proj.weight"))


@pytest.mark.parametrize("told_by_source", [True, False])
def test_tables_that_sizes_of_one_tell_apart_on_one_side_only_are_a_question(told_by_source: bool) -> None:
    bare = {"mix.tall": (6, 4), "mix.broad": (6, 4)}
    along = {"attn.rel_h": (1, 6, 1, 4), "attn.rel_w": (1, 6, 4, 1)}
    source, target = (along, bare) if told_by_source else (bare, along)
    mapping = port(signature(source), wanted(target))
    for entry, (other, shape) in zip(mapping.entries, reversed(list(source.items())), strict=True):
        sizes = ", ".join(map(str, target[entry.target]))
        assert entry.status == "guessed"
        assert [str(rival) for rival in entry.rivals] == [f"reshape({other}, {sizes})"], shape
    assert port(signature(along), wanted(along)).is_sure
    assert port(signature(along), wanted({f"x.{key}": shape for key, shape in along.items()})).is_sure
    beside = {"cls_token": (1, 1, 4), "norm.weight": (4,)}
    assert port(signature(beside), wanted({"class_embedding": (4,), "final_norm.weight": (4,)})).is_sure


@dataclass
class Layer:
    """A unit in a chain of layers: each flows into all later ones."""

    place: int
    questions: list[Question[Any]]
    colour: tuple[int, ...] = (8, 8)
    attends: str = ""

    @property
    def flow(self) -> Flow:
        return Flow(self.place, (1 << self.place) - 1)

    @property
    def doubts(self) -> list[Question[Any]]:
        return [question for question in self.questions if question.is_open]


@pytest.mark.parametrize(
    ("at", "sources", "settles"), [(1, (0, 1, 2), True), (2, (0, 1, 2), False), (1, (1, 0, 2), False)]
)
def test_a_pair_of_one_shape_is_confirmed_between_the_same_layers_and_not_at_the_end(
    at: int, sources: tuple[int, ...], settles: bool
) -> None:
    targets = [Layer(n, [ask(Reason.ONLY_ITS_SHAPE)] if n == at else []) for n in range(3)]
    pairs = [(t, Layer(n, [])) for t, n in zip(targets, sources, strict=True)]
    settle_by_flow(SimpleNamespace(pairs=pairs, unpaired=lambda side: []))
    assert (not targets[at].doubts) == settles
