"""The way of one key: steps, rules for it and against its rivals, questions, and what decided."""

from __future__ import annotations

import pytest
from sides import signature, wanted

from ckptool.errors import NotFound
from ckptool.porting.explaining import explained, rows_of
from ckptool.porting.mapping import Mapping
from ckptool.porting.port import port
from ckptool.porting.rule_examples import examples
from ckptool.porting.rule_examples import signature as side_of
from ckptool.porting.tables import rule

FUSED = {"blocks.0.attn.qkv.weight": (24, 8), "blocks.0.norm.weight": (8,)}
APART = {f"layers.0.attn.{part}_proj.weight": (8, 8) for part in "qkv"} | {"layers.0.norm.weight": (8,)}
TOWERS = {f"{tower}.{n}.weight": (8, 8) for tower in ("left", "right") for n in range(2)}


def test_the_steps_that_made_a_part_are_told() -> None:
    text = explained(port(signature(FUSED), wanted(APART)), "layers.0.attn.k_proj.weight")
    row = rule("fused projections")
    assert row is not None
    assert row.says in text
    assert "is made of slice(blocks.0.attn.qkv.weight, 0, 8, 16)" in text


def test_the_rule_that_told_a_module_from_its_rivals_names_these() -> None:
    text = explained(port(signature(FUSED), wanted(APART)), "layers.0.attn.k_proj.weight")
    row = rule("words that exclude each other")
    assert row is not None
    assert row.says in " ".join(text.split())
    assert "So it is not blocks.0.attn.qkv.q, blocks.0.attn.qkv.v." in " ".join(text.split())


def test_what_told_a_layer_from_the_tensor_that_it_got_by_an_exchange_is_not_told() -> None:
    example = examples()["places in both graphs"]
    sides = (side_of(side, is_target=side is example.target) for side in (example.source, example.target))
    text = " ".join(explained(port(*sides), "layer_1.weight").split())
    assert "is made of layer2.weight" in text
    assert "So it is not" not in text


def test_operations_say_what_they_do_and_what_the_file_does_not_hold_has_no_step() -> None:
    lstm = {"lstm.kernel": (3, 16), "lstm.recurrent_kernel": (4, 16), "lstm.bias": (16,)}
    own = {"l.weight_ih_l0": (16, 3), "l.weight_hh_l0": (16, 4), "l.bias_ih_l0": (16,), "l.bias_hh_l0": (16,)}
    mapping = port(signature(lstm), wanted(own))
    text = explained(mapping, "l.weight_ih_l0")
    assert "transpose(x): x with its last two dimensions swapped" in text
    assert "in the file:" in text
    zeros = explained(mapping, "l.bias_hh_l0")
    assert "is made of zeros(16)" in zeros
    assert "in the file:" not in zeros


def test_a_guess_says_what_is_asked_and_with_which_options() -> None:
    towers = {key.replace("left", "a").replace("right", "b"): shape for key, shape in TOWERS.items()}
    mapping = port(signature(TOWERS, ordered=False), wanted(towers))
    guess = mapping.having("guessed")[0]
    text = " ".join(explained(mapping, guess.target, 200).split())
    assert all(doubt in text for doubt in guess.doubts)
    assert all(f"option: {rival}" in text for rival in guess.rivals)
    assert "a question is open, so this is a guess" in text


def test_what_has_no_source_shows_where_the_tensors_of_its_sizes_go() -> None:
    mapping = port(signature({"fc.weight": (3, 4)}), wanted({"fc.weight": (3, 4), "pos.weight": (3, 4)}))
    assert mapping["pos.weight"].status == "unmapped"
    assert "fc.weight, which goes to fc.weight" in explained(mapping, "pos.weight")


def test_a_key_of_the_file_says_who_reads_it() -> None:
    text = explained(port(signature(FUSED), wanted(APART)), "blocks.0.attn.qkv.weight")
    assert "is read by 3 keys of the model" in text
    assert "layers.0.attn.v_proj.weight <- slice(blocks.0.attn.qkv.weight, 0, 16, 24) (mapped)" in text


def test_a_key_of_the_file_that_nothing_reads_says_so() -> None:
    mapping = port(signature({"fc.weight": (3, 4), "more.weight": (9, 4)}), wanted({"fc.weight": (3, 4)}))
    text = explained(mapping, "more.weight")
    assert "is not read by any key of the model" in text
    assert "no key of the model has its sizes" in text


@pytest.mark.parametrize("key", [*FUSED, *APART])
def test_every_key_of_both_sides_has_a_way(key: str) -> None:
    assert explained(port(signature(FUSED), wanted(APART)), key).startswith(f"{key} (")


def test_a_key_that_neither_side_has_is_refused_with_the_nearest() -> None:
    with pytest.raises(NotFound, match=r"neither Net nor the file has a key 'blocks.0.norm'") as raised:
        explained(port(signature(FUSED), wanted(APART)), "blocks.0.norm")
    assert "blocks.0.norm.weight" in raised.value.evidence[0]


def test_ways_make_no_two_mappings_different() -> None:
    mapping = port(signature(FUSED), wanted(APART))
    assert mapping.entries[0].way
    assert mapping.with_entries(mapping.entries) == mapping


def test_the_page_shows_the_way_of_a_key() -> None:
    mapping = port(signature(FUSED), wanted(APART))
    labels = [label for label, _ in rows_of(mapping["layers.0.attn.k_proj.weight"])]
    assert labels[0] == "operation"
    assert "told apart" in labels


def test_a_mapping_from_a_file_is_explained_as_far_as_the_file_says_it() -> None:
    mapping = port(signature(FUSED), wanted(APART))
    bare = Mapping(tuple(entry.settled("the mapping file") for entry in mapping.entries), (), mapping.source_shapes)
    assert "the mapping file" in explained(bare, "layers.0.norm.weight")
