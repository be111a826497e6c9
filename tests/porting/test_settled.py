"""Evidence that settles what orders leave open, each beside what looks like it and stays a guess."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from sides import found, pairing, signature, wanted

from ckptool.model_code.signature import Facts, Flattened, Flow
from ckptool.porting.port import port

Shapes = dict[str, tuple[int, ...]]


def in_series(shapes: Shapes, way: list[str], **how: str) -> Any:
    """A model that runs its layers one after the other, in the order of WAY."""
    model = wanted(shapes, used=way)
    entries = dict(model.entries)
    for n, key in enumerate(way):
        facts = Facts(Flow(n, (1 << n) - 1))
        entries[key] = replace(entries[key], facts=facts, how=how.get(key.split(".")[0], "linear"))
    return replace(model, entries=entries)


def status(mapping: Any, key: str) -> str:
    return str(found(mapping, key).status)


# -- orders


NORM = ("weight", "bias", "running_mean", "running_var")


def norms(*names: str, blocks: int, size: int = 8) -> Shapes:
    return {f"{name.format(n)}.{leaf}": (size,) for n in range(blocks) for name in names for leaf in NORM}


@pytest.mark.parametrize("numbers", ["01", "10"])
def test_norms_in_series_are_certain_where_the_file_lists_them_as_the_model_runs_them(numbers: str) -> None:
    """The model registers its norms backwards. One block lacks the first norm, so that the block says which is left."""
    first, second = (f"_blocks.{{}}._bn{number}" for number in numbers)
    source = {**norms("_blocks.0._bn1", blocks=1), **{
        key: shape for n in (1, 2) for name in (first, second) for key, shape in norms(name.format(n), blocks=1).items()
    }}  # fmt: skip
    own = {**norms("body.0.mid", blocks=1), **{
        key: shape for n in (1, 2) for key, shape in norms(f"body.{n}.mid", f"body.{n}.in", blocks=1).items()
    }}  # fmt: skip
    way = ["body.0.mid.weight", *(f"body.{n}.{name}.weight" for n in (1, 2) for name in ("in", "mid"))]
    mapping = port(signature(source), in_series(own, way))
    settled = numbers == "01"
    assert (pairing(mapping)["body.1.mid.weight"] == "_blocks.1._bn1.weight") or not settled
    assert (status(mapping, "body.1.mid.weight") == "mapped") == settled


def test_places_in_one_list_of_a_sorted_file_are_the_order_of_layers_in_series() -> None:
    own: Shapes = {"stem.weight": (8, 3)}
    source: Shapes = {"0.weight": (8, 3)}
    for n in range(2):
        own |= {f"mix.{n}.a.weight": (8, 8), f"mix.{n}.b.weight": (8, 8)}
        source |= {f"{n + 1}.0.fn.0.weight": (8, 8), f"{n + 1}.3.weight": (8, 8)}
    mapping = port(signature(source, ordered=False), in_series(own, list(own)))
    assert pairing(mapping)["mix.1.a.weight"] == "2.0.fn.0.weight"
    assert {entry.status for entry in mapping.entries} == {"mapped"}
    beside = wanted(own, used=list(own))  # nothing says that one flows into the other
    assert status(port(signature(source, ordered=False), beside), "mix.1.a.weight") == "guessed"


# -- contents


def test_a_layer_with_a_bias_and_one_without_are_told_apart_whatever_the_order_of_registration() -> None:
    own: Shapes = {"output.weight": (30, 8), "output.bias": (30,), "words.weight": (30, 8), "body.weight": (8, 8)}
    source: Shapes = {"embed.lut.weight": (30, 8), "layer.weight": (8, 8), "generator.proj.weight": (30, 8)}
    source |= {"generator.proj.bias": (30,)}
    mapping = port(signature(source), in_series(own, ["words.weight", "body.weight", "output.weight", "output.bias"]))
    assert pairing(mapping)["words.weight"] == "embed.lut.weight"
    assert {entry.status for entry in mapping.entries} == {"mapped"}


def test_a_table_of_words_is_not_exchanged_with_an_output_layer_that_has_its_sizes() -> None:
    own: Shapes = {"nucleotides.weight": (12, 8), "body.0.weight": (8, 8), "predict.weight": (12, 8)}
    source: Shapes = {"lm_head.weight": (12, 8), "trunk.embedding.weight": (12, 8), "trunk.layers.0.weight": (8, 8)}
    mapping = port(signature(source), in_series(own, list(own), nucleotides="embedding"))
    assert pairing(mapping)["nucleotides.weight"] == "trunk.embedding.weight"
    assert {entry.status for entry in mapping.entries} == {"mapped"}


@pytest.mark.parametrize(("more", "expected"), [(1, "mapped"), (4, "guessed")])
def test_a_few_tensors_that_nothing_in_the_model_looks_like_do_not_make_all_else_uncertain(
    more: int, expected: str
) -> None:
    own: Shapes = {f"b.{n}.x.weight": (n + 3, n + 2) for n in range(10)}
    source: Shapes = {f"m{n}.lin.weight": (n + 3, n + 2) for n in range(10)}
    source |= {f"spare{n}": (40 + n, 50) for n in range(more)}
    own = {f"{'zyxwvutsrq'[n]}.weight": shape for n, shape in enumerate(own.values())}
    mapping = port(signature(source, ordered=False), wanted(own))
    assert (status(mapping, "z.weight") == "mapped") == (expected == "mapped")


@pytest.mark.parametrize(("name", "certain"), [("count", True), ("scale", False)])
def test_the_count_of_samples_beside_statistics_is_nothing_that_a_layer_needs(name: str, certain: bool) -> None:
    theirs: Shapes = {"obs.running_mean": (6,), "obs.running_var": (6,), f"obs.{name}": (), "a.weight": (4, 6)}
    own: Shapes = {"obs.running_mean": (6,), "obs.running_var": (6,), "a.weight": (4, 6)}
    assert (status(port(signature(theirs), wanted(own)), "obs.running_mean") == "mapped") == certain


# -- what names say


@pytest.mark.parametrize(("name", "certain"), [("adaLN_modulation", True), ("modulation", False)])
def test_shift_scale_and_gate_stand_in_the_order_that_the_name_of_the_one_layer_says(name: str, certain: bool) -> None:
    source = {f"blocks.{n}.{name}.1.weight": (48, 8) for n in range(2)}
    source |= {f"blocks.{n}.fc.weight": (20, 8) for n in range(2)}
    own: Shapes = {}
    for n in range(2):
        own |= {f"l.{n}.{part}.{leaf}.weight": (8, 8) for part in ("m1", "m2") for leaf in ("scale", "shift", "gate")}
        own |= {f"l.{n}.up.weight": (20, 8)}
    mapping = port(signature(source), wanted(own, used=list(own)))
    assert (status(mapping, "l.0.m1.shift.weight") == "mapped") == certain
    if certain:
        expected = {"m1.shift": 0, "m1.scale": 8, "m1.gate": 16, "m2.shift": 24, "m2.scale": 32, "m2.gate": 40}
        for part, at in expected.items():
            assert pairing(mapping)[f"l.1.{part}.weight"] == f"slice(blocks.1.{name}.1.weight, 0, {at}, {at + 8})"


def test_a_table_along_the_height_is_one_of_rows_and_one_along_the_width_of_columns() -> None:
    own: Shapes = {"grid.along_width": (10, 6), "grid.along_height": (10, 6)}
    source: Shapes = {"pos.row_embed.weight": (10, 6), "pos.col_embed.weight": (10, 6)}
    mapping = port(signature(source), wanted(own, used=list(own)))
    assert pairing(mapping) == {
        "grid.along_width": "pos.col_embed.weight",
        "grid.along_height": "pos.row_embed.weight",
    }


def test_memory_and_state_of_an_additive_attention_are_its_keys_and_queries() -> None:
    own: Shapes = {"att_memory.weight": (8, 8), "att_state.weight": (8, 8), "att_energy.weight": (1, 8)}
    source: Shapes = {f"attention.{name}.weight": (8, 8) for name in ("Wa", "Ua")} | {"attention.Va.weight": (1, 8)}
    mapping = port(signature(source), wanted(own, used=list(own)))
    assert pairing(mapping)["att_memory.weight"] == "attention.Ua.weight"
    assert {entry.status for entry in mapping.entries} == {"mapped"}


# -- conventions


@pytest.mark.parametrize(("order", "kept"), [("nwhc", True), ("ncwh", True), ("nhwc", False)])
def test_a_model_that_turns_maps_as_no_framework_does_has_weights_in_that_order(order: str, kept: bool) -> None:
    own: Shapes = {"conv.weight": (4, 3, 3, 3), "neck.weight": (5, 24)}
    model = wanted(own, used=list(own))
    flattened = Facts(flattened=Flattened(order, 4, 2, 3))
    neck = replace(model.entries["neck.weight"], facts=flattened, how="linear")
    model = replace(model, entries={**model.entries, "neck.weight": neck})
    entry = found(port(signature({"c.weight": (4, 3, 3, 3), "dense.weight": (5, 24)}), model), "neck.weight")
    assert entry.status == "guessed"
    assert entry.expr.is_copy == kept
    assert len(entry.rivals) == 1


def test_a_matrix_is_transposed_where_nothing_in_the_model_has_its_sizes_as_they_are() -> None:
    """Other parameters, which fit either way by their sizes, stand as in the model: they say nothing about this one."""
    own: Shapes = {f"own.{name}_weight": (5, 7) for name in ("one", "two", "three")}
    source: Shapes = {f"body.{name}_weight": (5, 7) for name in ("row", "time", "word")}
    own |= {"own.top.weight": (7, 5), "own.linear_z.weight": (4, 12)}
    source |= {"body.head.weight": (7, 5), "body.feat_2d_weights": (12, 4)}
    made = pairing(port(signature(source), wanted(own, used=list(own))))
    assert made["own.linear_z.weight"] == "transpose(body.feat_2d_weights)"
    assert made["own.one_weight"] == "body.row_weight"
