"""Layers that only the file or only the model has, beside layers of equal sizes: what was certain stays right or is
asked about.
"""

from __future__ import annotations

from typing import Any

import pytest
from sides import found, pairing, signature, wanted

from ckptool.porting.forms.canonical import canonical
from ckptool.porting.matching.match import Matching
from ckptool.porting.matching.units import units_of
from ckptool.porting.port import port
from ckptool.porting.rivals.spare import doubt_beside_spares

Shapes = dict[str, tuple[int, ...]]


def layer(name: str, rows: int, columns: int) -> Shapes:
    return {f"{name}.weight": (rows, columns), f"{name}.bias": (rows,)}


def reasons(entry: Any) -> set[str]:
    return {question.reason.name for question in entry.questions if not question.answer}


SOURCE = layer("classifier.0", 64, 32) | layer("classifier.3", 64, 64)
TARGET = layer("fc6", 64, 32) | layer("fc7", 64, 64) | layer("fc8", 10, 64)


def test_a_layer_that_is_called_like_its_neighbours_is_taken_before_one_that_is_not() -> None:
    source = SOURCE | layer("classifier.extra", 10, 64) | layer("classifier.6", 10, 64)
    entry = found(port(signature(source), wanted(TARGET, used=TARGET)), "fc8.weight")
    assert str(entry.expr) == "classifier.6.weight"
    assert entry.status == "guessed"
    assert reasons(entry) == {"SPARE_BESIDE"}
    assert [str(option) for question in entry.questions for option in question.options] == ["classifier.extra.weight"]


def test_the_first_layers_of_a_list_are_no_question() -> None:
    source = SOURCE | layer("classifier.6", 10, 64) | layer("classifier.9", 10, 64)
    assert found(port(signature(source), wanted(TARGET, used=TARGET)), "fc8.weight").status == "mapped"


def test_a_look_alike_in_the_module_that_no_name_tells_apart_is_a_question() -> None:
    source = SOURCE | layer("classifier.red", 10, 64) | layer("classifier.blue", 10, 64)
    assert found(port(signature(source), wanted(TARGET, used=TARGET)), "fc8.weight").status == "guessed"


def test_a_look_alike_in_a_part_that_the_model_lacks_is_no_question() -> None:
    """An encoder is taken from an autoencoder; one layer of the decoder alone says nothing."""
    source: Shapes = {"cls_token": (1, 1, 8), "pos_embed": (1, 17, 8)} | layer("embed", 8, 48)
    source |= {"decoder_pos_embed": (1, 17, 8)}
    target: Shapes = {"class_token": (1, 1, 8), "position": (1, 17, 8)}
    entry = found(port(signature(source), wanted(target)), "position")
    assert (str(entry.expr), entry.status) == ("pos_embed", "guessed")
    source |= layer("decoder_embed", 4, 8)
    entry = found(port(signature(source), wanted(target)), "position")
    assert (str(entry.expr), entry.status) == ("pos_embed", "mapped")


def test_the_layer_that_other_blocks_use_is_taken() -> None:
    source: Shapes = {}
    target: Shapes = {}
    for n in range(3):
        source |= layer(f"h.{n}.mix.q", 8, 8) | (layer(f"h.{n}.mix.extra", 8, 8) if n == 1 else {})
        source |= layer(f"h.{n}.after.dense", 8, 8) | layer(f"h.{n}.wide", 32, 8)
        target |= (
            layer(f"layers.{n}.mix.q", 8, 8) | layer(f"layers.{n}.mix.close", 8, 8) | layer(f"layers.{n}.fc", 32, 8)
        )
    mapping = port(signature(source), wanted(target, used=target))
    assert {pairing(mapping)[f"layers.{n}.mix.close.weight"] for n in range(3)} == {
        f"h.{n}.after.dense.weight" for n in range(3)
    }


def stage(head: str, names: tuple[str, ...]) -> Shapes:
    made: Shapes = {}
    for name in names:
        made |= {f"{head}.{name}.weight": (8,) if "bn" in name else (8, 8, 3, 3)}
        if "bn" in name:
            made |= {f"{head}.{name}.{role}": (8,) for role in ("bias", "running_mean", "running_var")}
    return made


def test_branches_and_their_norms_change_places_together() -> None:
    """The model has a layer more at its beginning, and runs the other branch first."""
    theirs = ("high_conv", "high_bn", "low_conv", "low_bn", "fuse_conv", "fuse_bn")
    own = ("bn_fuse", "bn_lowres", "bn_highres", "lowres", "fuse", "highres")
    source = stage("stage1", theirs) | stage("stage2", theirs) | layer("head", 4, 8)
    target = layer("fc", 4, 8) | stage("stages.0", own) | stage("stages.1", own) | {"conv_in.weight": (8, 3, 3, 3)}
    runs = ("lowres", "bn_lowres", "highres", "bn_highres", "fuse", "bn_fuse")
    used = [
        "conv_in.weight",
        *(key for n in (0, 1) for name in runs for key in target if key.startswith(f"stages.{n}.{name}.")),
        "fc.weight",
        "fc.bias",
    ]
    mapping = port(signature(source), wanted(target, used=used))
    for n in (0, 1):
        for name in ("lowres", "highres"):
            assert pairing(mapping)[f"stages.{n}.{name}.weight"] == f"stage{n + 1}.{name[:-3]}_conv.weight"
            assert pairing(mapping)[f"stages.{n}.bn_{name}.weight"] == f"stage{n + 1}.{name[:-3]}_bn.weight"


def branch(name: str, left_out: str = "") -> Shapes:
    made = {f"{name}.conv1.weight": (8, 3, 3, 3), f"{name}.conv2.weight": (16, 8, 3, 3), f"{name}.fc.weight": (4, 16)}
    return {key: shape for key, shape in made.items() if key != f"{name}.{left_out}.weight"}


@pytest.mark.parametrize("lost", ["conv1", "conv2", "fc"])
def test_a_layer_is_not_taken_from_the_twin_of_its_module_in_silence(lost: str) -> None:
    source = branch("online_encoder", lost) | branch("target_encoder")
    entry = found(port(signature(source), wanted(branch("online_encoder"))), f"online_encoder.{lost}.weight")
    assert entry.status != "mapped"


def test_a_norm_outside_of_all_blocks_is_no_norm_of_a_block_in_silence() -> None:
    source: Shapes = {"transformer.norm.weight": (8,)}
    target: Shapes = {}
    for n in range(2):
        source |= layer(f"transformer.layers.{n}.0.qkv", 24, 8) | layer(f"transformer.layers.{n}.0.out", 8, 8)
        target |= layer(f"layers.{n}.att.qkv", 24, 8) | layer(f"layers.{n}.att.out", 8, 8)
        target |= {f"layers.{n}.norm.weight": (8,)}
    source |= {"transformer.layers.1.1.norm.weight": (8,)}
    entry = found(port(signature(source), wanted(target, used=target)), "layers.0.norm.weight")
    assert entry.status != "mapped"


def test_keys_that_are_sorted_in_each_part_have_no_order() -> None:
    """A file of two sorted ones: `final_norm` is before `norm` by name only."""
    source: Shapes = {}
    target: Shapes = {}
    for n in range(2):
        for name, size in (("attention.q", (8, 8)), ("final_layer_norm", (8,)), ("layer_norm", (8,)), ("up", (32, 8))):
            source |= {f"encoder.{n}.{name}.bias": size[:1], f"encoder.{n}.{name}.weight": size}
        target |= layer(f"blocks.{n}.attn.q", 8, 8) | {f"blocks.{n}.norm1.{role}": (8,) for role in ("weight", "bias")}
        target |= layer(f"blocks.{n}.fc1", 32, 8) | {f"blocks.{n}.norm2.{role}": (8,) for role in ("weight", "bias")}
    head = {"classifier.bias": (4,), "classifier.weight": (4, 8)}
    mapping = port(signature(source | head), wanted(target | layer("head", 4, 8), used=target | layer("head", 4, 8)))
    assert {pairing(mapping)[f"blocks.{n}.norm2.weight"] for n in (0, 1)} == {
        f"encoder.{n}.final_layer_norm.weight" for n in (0, 1)
    }


def test_a_new_block_takes_nothing_from_a_spare_layer_of_another_block_in_silence() -> None:
    source: Shapes = {}
    target: Shapes = {}
    for n in range(4):
        source |= layer(f"blocks.{n}.lin1", 20 + n, 10 + n) | layer(f"blocks.{n}.lin2", 11 + n, 20 + n)
        target |= layer(f"layers.{n}.fc1", 20 + n, 10 + n) | layer(f"layers.{n}.fc2", 11 + n, 20 + n)
    source |= layer("blocks.1.lin3", 33, 17)
    target |= layer("layers.3.fc1", 33, 17) | layer("layers.3.fc2", 40, 33)
    mapping = port(signature(source), wanted(target))
    assert found(mapping, "layers.3.fc1.weight").status == "guessed"
    assert {e.status for e in mapping.entries if not e.target.startswith("layers.3.")} == {"mapped"}


@pytest.mark.parametrize("first", ["extra.", ""])
def test_which_of_two_stacks_of_experts_is_meant_is_a_question(first: str) -> None:
    stacks: Shapes = {"gate_up_proj": (3, 20, 6), "down_proj": (3, 6, 10)}
    source: Shapes = {}
    for prefix in (first, "" if first else "extra."):
        source |= {prefix + key: shape for key, shape in stacks.items()}
    target: Shapes = {}
    for n in range(3):
        target |= {f"experts.{n}.{leaf}.weight": (10, 6) for leaf in ("w1", "w3")}
        target |= {f"experts.{n}.w2.weight": (6, 10)}
    mapping = port(signature(source), wanted(target, used=target))
    assert {entry.status for entry in mapping.entries} == {"guessed"}
    assert {reason for entry in mapping.entries for reason in reasons(entry)} == {"SPARE_BESIDE"}


@pytest.mark.parametrize("names", [("fc1", "fc2"), ("fc", "fc2"), ("fc_1", "fc_2")])
def test_of_two_layers_that_differ_in_a_number_only_the_first_is_no_worse(names: tuple[str, str]) -> None:
    source = layer("net.stem", 8, 5) | layer(f"net.{names[0]}", 8, 8) | layer(f"net.{names[1]}", 8, 8)
    target = layer("body.enter", 8, 5) | layer("body.fc", 8, 8)
    entry = found(port(signature(source), wanted(target, used=target)), "body.fc.weight")
    assert (str(entry.expr), entry.status) == (f"net.{names[0]}.weight", "guessed")
    assert [str(o) for question in entry.questions for o in question.options] == [f"net.{names[1]}.weight"]


def test_what_was_taken_from_beside_a_layer_is_free_no_more_and_what_it_replaces_is_free() -> None:
    source = {f"n.{name}.weight": (8, 8) for name in ("fc1", "other", "last", "fc2")}
    target = {f"m.{name}.weight": (8, 8) for name in ("alpha", "beta", "gamma")}
    sources, targets = map(units_of, canonical(signature(source), wanted(target)))
    matching = Matching([*zip(targets, sources, strict=False)], [], sources[3:], [])
    doubt_beside_spares(matching)
    taken = {s.last for _, s in matching.pairs}
    assert taken == {"fc1", "fc2", "last"}
    assert [unit.last for unit in matching.free_sources] == ["other"]
    asked = {option.last for question in targets[2].questions for option in question.options}
    assert asked == {"other"}


def test_a_norm_outside_of_all_blocks_has_none_of_a_block_whose_own_is_from_outside_in_silence() -> None:
    """The encoder of a T5 has its last norm outside of its blocks on both sides."""
    source: Shapes = {"shared.weight": (50, 8)}
    target: Shapes = {"token_emb.weight": (50, 8)}
    target |= {f"{part}_pos_bias.embedding.weight": (16, 4) for part in ("enc", "dec")}
    for part, kinds in (("encoder", ["SelfAttention"]), ("decoder", ["SelfAttention", "EncDecAttention"])):
        for n in range(3):
            for at, kind in enumerate(kinds):
                layer_ = f"{part}.block.{n}.layer.{at}"
                source |= {f"{layer_}.{kind}.{one}.weight": (8, 8) for one in "qkvo"}
                source |= {f"{layer_}.layer_norm.weight": (8,)}
                name = ("attn", "cross_attn")[at]
                target |= {f"{part}_layers.{n}.{name}_norm.gain": (8,)}
                target |= {f"{part}_layers.{n}.{name}.to_{one}.weight": (8, 8) for one in ("q", "k", "v", "out")}
            layer_ = f"{part}.block.{n}.layer.{len(kinds)}"
            source |= {f"{layer_}.DenseReluDense.{one}.weight": (16, 8) for one in ("wi_0", "wi_1")}
            source |= {f"{layer_}.DenseReluDense.wo.weight": (8, 16), f"{layer_}.layer_norm.weight": (8,)}
            target |= {f"{part}_layers.{n}.ff_norm.gain": (8,), f"{part}_layers.{n}.ff.down.weight": (8, 16)}
            target |= {f"{part}_layers.{n}.ff.{one}.weight": (16, 8) for one in ("gate", "up")}
        source |= {f"{part}.final_layer_norm.weight": (8,)}
    target |= {f"{part}_norm.gain": (8,) for part in ("encoder", "decoder")} | {"to_logits.weight": (50, 8)}
    bias = "block.0.layer.0.SelfAttention.relative_attention_bias.weight"
    source |= {f"{part}.{bias}": (16, 4) for part in ("encoder", "decoder")} | {"lm_head.weight": (50, 8)}
    mapping = port(signature(source), wanted(target, used=target))
    for part in ("encoder", "decoder"):
        entry = found(mapping, f"{part}_norm.gain")
        assert entry.status == "guessed" or str(entry.expr) == f"{part}.final_layer_norm.weight"
