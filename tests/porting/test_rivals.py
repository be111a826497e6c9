"""The last gate: a pair whose swap fits as well is a guess, whatever evidence made it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from sides import found, pairing, signature, wanted

from ckptool.model_code.signature import Facts, Flow
from ckptool.porting.port import port
from ckptool.porting.questions import Reason


def doubted(mapping: Any) -> set[str]:
    return {e.target for e in mapping.having("guessed")}


def test_a_word_that_the_order_contradicts_decides_nothing() -> None:
    source = {"e.fc_q.weight": (8, 8), "e.ln_after.weight": (8,), "e.fc_o.weight": (16, 8), "e.ln_before.weight": (8,)}
    target = {"a.query.weight": (8, 8), "a.norm_attn.weight": (8,), "a.rows.weight": (16, 8), "a.norm_ff.weight": (8,)}
    mapping = port(signature(source), wanted(target, used=target))
    assert doubted(mapping) == {"a.norm_attn.weight", "a.norm_ff.weight"}


def test_gate_and_up_are_a_guess_where_only_one_side_says_which_is_which() -> None:
    source = {"mlp.w1.weight": (16, 8), "mlp.w2.weight": (16, 8), "mlp.c_proj.weight": (8, 16)}
    target = {"ffn.gate_proj.weight": (16, 8), "ffn.up_proj.weight": (16, 8), "ffn.down_proj.weight": (8, 16)}
    mapping = port(signature(source), wanted(target, used=target))
    assert doubted(mapping) == {"ffn.gate_proj.weight", "ffn.up_proj.weight"}


def test_shared_words_decide_against_an_order() -> None:
    source = {"attn.alpha_map.weight": (8, 8), "attn.beta_map.weight": (8, 8), "out.weight": (4, 8)}
    target = {"att.beta_lin.weight": (8, 8), "att.alpha_lin.weight": (8, 8), "head.weight": (4, 8)}
    mapping = port(signature(source), wanted(target, used=target))
    assert pairing(mapping)["att.beta_lin.weight"] == "attn.beta_map.weight"
    assert pairing(mapping)["att.alpha_lin.weight"] == "attn.alpha_map.weight"
    assert doubted(mapping) == set()


def test_layers_that_stand_reversed_with_nothing_else_to_tell_are_all_guesses() -> None:
    source = {"a.weight": (8, 8), "b.weight": (8, 8)}
    target = {"x.weight": (8, 8), "y.weight": (8, 8)}
    mapping = port(signature(source), wanted(target, used=["y.weight", "x.weight"]))
    assert doubted(mapping) == {"x.weight", "y.weight"}


def test_a_part_whose_content_fits_one_part_only_is_certain() -> None:
    source = {f"style.{n}.weight": (8, 8) for n in range(3)} | {"mod.weight": (8, 8), "conv.weight": (8, 8, 3, 3)}
    target = {"synth.affine.weight": (8, 8), "synth.conv.weight": (8, 8, 3, 3)}
    target |= {f"mapping.fc{n}.weight": (8, 8) for n in range(3)}
    mapping = port(signature(source), wanted(target))
    right = {e.target for e in mapping.having("mapped")}
    assert {
        k for k, v in pairing(mapping).items() if k in right and not v.startswith(("style", "conv", "mod"))
    } == set()
    for n in range(3):
        assert pairing(mapping)[f"mapping.fc{n}.weight"] == f"style.{n}.weight"


def test_a_block_of_which_one_part_comes_from_elsewhere_is_doubted() -> None:
    names = [("a.weight", (8, 8)), ("b.weight", (8, 4)), ("c.weight", (4, 8))]
    source = {f"up.{n}.{name}": shape for n in range(3) for name, shape in names}
    target = {f"up_blocks.{n}.{name}": shape for n in range(3) for name, shape in names}
    mapping = port(signature(source), wanted(target, used=target))
    assert doubted(mapping) == set()
    assert all(pairing(mapping)[key] == key.replace("up_blocks", "up") for key in target)


def test_a_shortcut_that_is_registered_first_is_known_by_its_name() -> None:
    source = {"layer.shortcut.weight": (8, 8, 1, 1), "layer.a.weight": (8, 8, 1, 1), "layer.b.weight": (4, 8, 3, 3)}
    target = {"conv1.weight": (8, 8, 1, 1), "conv2.weight": (4, 8, 3, 3), "downsample.weight": (8, 8, 1, 1)}
    mapping = port(signature(source), wanted(target, used=target))
    assert pairing(mapping)["downsample.weight"] == "layer.shortcut.weight"
    assert pairing(mapping)["conv1.weight"] == "layer.a.weight"


def test_norms_counted_from_zero_are_the_first_and_the_second() -> None:
    source = {"b.ln0.weight": (8,), "b.q.weight": (8, 4), "b.ln1.weight": (8,), "b.o.weight": (4, 8)}
    target = {"b.norm_attn.weight": (8,), "b.q.weight": (8, 4), "b.norm_ff.weight": (8,), "b.o.weight": (4, 8)}
    mapping = port(signature(source), wanted(target, used=target))
    assert pairing(mapping)["b.norm_attn.weight"] == "b.ln0.weight"
    assert pairing(mapping)["b.norm_ff.weight"] == "b.ln1.weight"
    assert doubted(mapping) == set()


@pytest.mark.parametrize(("first", "status"), [("norm1", "guessed"), ("norm0", "mapped")])
def test_two_layers_that_a_file_lists_against_their_numbers_are_guesses(first: str, status: str) -> None:
    """The FT-Transformer of its authors lists norm1 before norm0. The model has each part of a block apart."""
    source, target = {}, {}
    for n in range(2):
        block = {f"attention.{name}": (8, 8) for name in ("W_q", "W_k", "W_v", "W_out")}
        block |= {"linear0": (16, 8), "linear1": (8, 16)}
        norms = sorted(("norm0", "norm1"), reverse=first == "norm1")
        source |= {f"layers.{n}.{name}.weight": size for name, size in (block | dict.fromkeys(norms, (8,))).items()}
        own = {"0.norm": (8,), "0.to_qkv": (24, 8), "0.to_out": (8, 8), "1.0": (8,), "1.1": (16, 8), "1.4": (8, 16)}
        target |= {f"layers.{n}.{name}.weight": size for name, size in own.items()}
    mapping = port(signature(source), wanted(target, used=target))
    assert {found(mapping, f"layers.{n}.{name}.weight").status for n in range(2) for name in ("0.norm", "1.0")} == {
        status
    }


def test_words_cut_short_are_the_words_they_come_from() -> None:
    source = {"net.residual_map.weight": (8, 8), "net.skip_map.weight": (8, 8), "net.out.weight": (4, 8)}
    target = {"net.skip.weight": (8, 8), "net.resid.weight": (8, 8), "net.out.weight": (4, 8)}
    mapping = port(signature(source), wanted(target, used=target))
    assert pairing(mapping)["net.resid.weight"] == "net.residual_map.weight"
    assert doubted(mapping) == set()


def test_equal_parts_whose_lists_are_nested_the_other_way_are_guesses() -> None:
    sizes = {"0": (8, 4), "2": (8, 8), "4": (4, 8)}
    source = {f"{part}.{n}.{at}.weight": s for part in "ts" for n in range(3) for at, s in sizes.items()}
    target = {
        f"couplings.{n}.{part}.{at}.weight": s
        for n in range(3)
        for part in ("log_scale", "shift")
        for at, s in sizes.items()
    }
    mapping = port(signature(source), wanted(target, used=target))
    assert doubted(mapping) == set(target)


def test_two_equal_parts_that_names_would_swap_are_guesses() -> None:
    branch = {"conv.weight": (8, 8, 1, 1), "bn.weight": (8,)}
    source = {f"head.aspp1.0.{k}": s for k, s in branch.items()} | {
        f"head.avg_pool.1.{k}": s for k, s in branch.items()
    }
    target = {f"h.image_pool.1.{k}": s for k, s in branch.items()} | {f"h.aspp.0.{k}": s for k, s in branch.items()}
    mapping = port(signature({**source, "out.weight": (4, 8)}), wanted(t := {**target, "out.weight": (4, 8)}, used=t))
    right = {k: v for k, v in pairing(mapping).items() if ("pool" in k) == ("pool" in v)}
    assert doubted(mapping) >= {*target} - {*right}


def test_what_is_left_in_a_layer_that_was_taken_makes_it_a_guess() -> None:
    source = {"fc.weight": (8, 8), "fc.weight_scale": (8,), "out.weight": (4, 8)}
    mapping = port(signature(source), wanted({"fc.weight": (8, 8), "out.weight": (4, 8)}))
    assert doubted(mapping) == {"fc.weight"}
    assert "fc.weight_scale" in found(mapping, "fc.weight").doubts[0]


def test_a_new_head_after_layers_that_kept_their_names_is_left_open() -> None:
    body = {f"body.{n}.conv.weight": (8, 8, 3, 3) for n in range(6)}
    target = {**body, "head.weight": (4, 8)}
    mapping = port(signature({**body, "projector.weight": (4, 8)}), wanted(target, used=target))
    assert [e.target for e in mapping.having("unmapped")] == ["head.weight"]


def test_a_shape_that_nothing_else_has_is_a_guess() -> None:
    source = {"emb_rel.weight": (9, 8), "fc.weight": (8, 30), "b": (7,), "x.weight": (3, 5), "y.weight": (5, 5)}
    target = {"relation.weight": (9, 8), "to_entity.weight": (8, 30), "z.weight": (6, 5), "y.weight": (5, 5)}
    mapping = port(signature(source), wanted(target, used=target))
    assert pairing(mapping)["to_entity.weight"] == "fc.weight"
    assert "to_entity.weight" in doubted(mapping)


def test_two_parts_that_may_be_exchanged_as_a_whole_do_not_vouch_for_each_other() -> None:
    def branch(path: str, conv: str, norm: str, size: int) -> dict[str, tuple[int, ...]]:
        return {f"{path}.{conv}.weight": (12, 16, size, size), f"{path}.{norm}.weight": (12,)}

    source = branch("a.one", "conv", "bn", 1) | branch("a.two", "conv", "bn", 3)
    source |= branch("a.global_pool", "1", "2", 1) | {"a.last.weight": (5, 36, 1, 1)}
    target = branch("head.pool.1", "conv", "bn", 1) | branch("head.parts.0", "conv", "bn", 1)
    target |= branch("head.parts.1", "conv", "bn", 3) | {"head.fuse.weight": (5, 36, 1, 1)}
    mapping = port(signature(source), wanted(target, used=target))
    for entry in mapping.entries:
        if entry.status == "mapped" and ".pool." in entry.target:
            assert all("pool" in key for key in entry.sources)


def test_the_last_dropped_copy_beside_a_wrapped_weight_is_not_taken() -> None:
    source = {"rnn.weight_hh_l0_raw": (16, 4), "rnn.module.weight_hh_l0": (16, 4), "rnn.module.weight_ih_l0": (16, 3)}
    mapping = port(signature(source), wanted({"lstm.weight_ih_l0": (16, 3), "lstm.weight_hh_l0": (16, 4)}))
    assert pairing(mapping)["lstm.weight_hh_l0"] == "rnn.weight_hh_l0_raw"


def test_a_list_is_counted_from_the_other_end_where_members_of_other_sizes_show_it() -> None:
    """`levels.{}.up` of a decoder is used from the last level on; the file counts in the order of use."""
    source = {f"enc.{n}.weight": size for n, size in enumerate([(8, 2, 3, 3), (12, 8, 3, 3), (16, 12, 3, 3)])}
    source |= {f"dec.{n}.weight": size for n, size in enumerate([(12, 16, 3, 3), (12, 24, 3, 3), (12, 24, 3, 3)])}
    target = {"flow.weight": (2, 20, 3, 3)}
    for n, (inside, outside, up) in enumerate([(2, 8, 24), (8, 12, 24), (12, 16, 16)]):
        target |= {f"levels.{n}.down.weight": (outside, inside, 3, 3), f"levels.{n}.up.weight": (12, up, 3, 3)}
    source["flow.weight"] = (2, 20, 3, 3)
    mapping = port(signature(source), wanted(target))
    assert {k: v for k, v in pairing(mapping).items() if ".up." in k} == {
        f"levels.{n}.up.weight": f"dec.{2 - n}.weight" for n in range(3)
    }


def test_one_layer_that_is_used_next_to_it_and_counted_with_it_vouches_for_nobody() -> None:
    """A gate over channels is registered after the convolution that it stands before."""
    theirs = {"conv1": (16, 8, 1, 1), "conv2": (16, 1, 3, 3), "conv3": (8, 8, 1, 1), "sca.1": (8, 8, 1, 1)}
    theirs |= {"conv4": (16, 8, 1, 1), "conv5": (8, 8, 1, 1), "norm1": (8,), "norm2": (8,)}
    theirs = {"0." + name: size for name, size in theirs.items()}
    ours = {"norm": (8,), "expand": (16, 8, 1, 1), "spatial": (16, 1, 3, 3), "channel": (8, 8, 1, 1)}
    ours |= {"project": (8, 8, 1, 1), "ffn_norm": (8,), "ffn_expand": (16, 8, 1, 1), "ffn_project": (8, 8, 1, 1)}
    ours = {"blocks.0." + name: size for name, size in ours.items()}
    source = {f"enc.{n}.{name}.weight": size for n in range(2) for name, size in theirs.items()}
    target = {f"down.{n}.{name}.weight": size for n in range(2) for name, size in ours.items()}
    mapping = port(signature(source), wanted(target, used=target))
    assert doubted(mapping) >= {f"down.{n}.blocks.0.{name}.weight" for n in range(2) for name in ("channel", "project")}


@pytest.mark.parametrize("name", ["post_attention_norm", "after_attn_norm", "norm_after_attn"])
def test_what_comes_after_attention_is_no_part_of_it(name: str) -> None:
    block = {"attention.rows.weight": (12, 8), "attention.rows.norm.weight": (8,), "attention.back.weight": (8, 4)}
    block |= {"mlp.rows.weight": (20, 8), "mlp.rows.norm.weight": (8,), "mlp.back.weight": (8, 20)}
    source = {f"layers.{n}.{key}": shape for n in range(2) for key, shape in block.items()}
    used = {"norm.weight": (8,), "attn.a.weight": (12, 8), "attn.b.weight": (8, 4)}
    used |= {f"{name}.weight": (8,), "ff.a.weight": (20, 8), "ff.b.weight": (8, 20)}
    target = {f"blocks.{n}.{key}": shape for n in range(2) for key, shape in used.items()}
    mapping = port(signature(source), wanted(target, used=target))
    for n in range(2):
        assert pairing(mapping)[f"blocks.{n}.{name}.weight"] == f"layers.{n}.mlp.rows.norm.weight"
        assert pairing(mapping)[f"blocks.{n}.norm.weight"] == f"layers.{n}.attention.rows.norm.weight"


def test_of_a_row_of_layers_none_is_the_first_or_the_second_of_a_gate() -> None:
    rows = {f"style.fc{n}.weight": (6, 6) for n in range(4)} | {"out.weight": (5, 6)}
    source = dict(zip(("style.fc0", "style.one", "style.down", "style.fc3", "out"), rows.values(), strict=True))
    mapping = port(signature({f"{key}.weight": shape for key, shape in source.items()}), wanted(rows, used=rows))
    wrong = {"style.fc1.weight": "style.down.weight", "style.fc2.weight": "style.one.weight"}
    assert not wrong.items() & {key: pairing(mapping)[key] for key in wrong}.items()


@pytest.mark.parametrize("parts", [("attn_a", "attn_b"), ("attn1", "attn2"), ("near", "far")])
def test_a_part_is_never_counted_with_another_block_in_silence(parts: tuple[str, str]) -> None:
    source: dict[str, tuple[int, ...]] = {}
    target: dict[str, tuple[int, ...]] = {}
    for kind in ("own_mixers", "other_mixers"):
        for n in (3, 5):
            source |= {f"stack.{kind}.{n}.{leaf}.weight": (8, 8) for leaf in ("wq", "wk", "wv", "wo")}
    for kind, shape in (("wide", (16, 8)), ("narrow", (8, 16)), ("norms", (8,))):
        source |= {f"stack.{kind}.{n}.weight": shape for n in (3, 5)}
    for n in range(2):
        target |= {f"layers.{n}.{part}.{x}_proj.weight": (8, 8) for part in parts for x in "kvqo"}
        target |= {f"layers.{n}.fc1.weight": (16, 8), f"layers.{n}.fc2.weight": (8, 16), f"layers.{n}.ln.weight": (8,)}
    mapping = port(signature(source), wanted(target, used=target))
    numbers = {"0": "3", "1": "5"}
    for entry in mapping.having("mapped"):
        assert str(entry.expr).split(".")[2] == numbers[entry.target.split(".")[1]], entry


@pytest.mark.parametrize("words", [("norm_a", "second_norm"), ("first_norm", "norm_b")])
def test_a_name_may_say_in_a_word_which_of_its_kind_it_is(words: tuple[str, str]) -> None:
    convolutions = {"begin": (6, 6, 1, 1), "middle": (6, 2, 3, 3)}
    source = {f"blocks.1.{name}.weight": shape for name, shape in sorted(convolutions.items())}
    leaves = ("bias", "running_mean", "running_var", "weight")
    source |= {f"blocks.1.{name}.{leaf}": (6,) for name in words for leaf in leaves}
    used = {
        f"stage.0.{name}.{leaf}": shape
        for n, conv in enumerate(convolutions.values(), 1)
        for name, leaf, shape in [(f"conv{n}", "weight", conv), *((f"bn{n}", leaf, (6,)) for leaf in leaves)]
    }
    mapping = port(signature(dict(sorted(source.items())), ordered=False), wanted(used, used=used))
    for n, name in enumerate(words, 1):
        assert pairing(mapping)[f"stage.0.bn{n}.weight"] == f"blocks.1.{name}.weight"


def test_what_is_in_doubt_about_one_direction_of_a_recurrent_layer_is_about_the_other() -> None:
    source: dict[str, tuple[int, ...]] = {"net.top.weight": (5, 8)}
    target: dict[str, tuple[int, ...]] = {"stem.weight": (6, 3)}
    for n, width in ((1, 6), (2, 8), (3, 8)):
        gru = {"weight_ih": (12, width), "weight_hh": (12, 4), "bias_ih": (12,), "bias_hh": (12,)}
        leaves = {f"{kind}_l0{way}": shape for way in ("", "_reverse") for kind, shape in gru.items()}
        target |= {f"level{n}.norm.{leaf}": (8,) for leaf in ("weight", "bias") if n > 1}
        target |= {f"level{n}.gru.{leaf}": shape for leaf, shape in leaves.items()}
    names = {"level1": "reed", "level2": "birch", "level3": "alder", "gru": "umber", "norm": "zinc"}
    for level in ("level3", "level2", "level1"):
        for part in ("gru", "norm"):
            inside = {key: shape for key, shape in target.items() if key.startswith(f"{level}.{part}")}
            source |= {f"net.{names[level]}.{names[part]}.{k.split('.')[2]}": shape for k, shape in inside.items()}
    source["net.foot.weight"] = target["stem.weight"]
    target["head.weight"] = source["net.top.weight"]
    mapping = port(signature(source), wanted(target, used=target))
    for n in (2, 3):
        assert {e.status for e in mapping.entries if e.target.startswith(f"level{n}.gru")} == {"guessed"}


def _points(*, lists: bool) -> dict[str, tuple[int, ...]]:
    """A net over points and one in it, each with convolutions and layers and a norm behind each: as lists, or by kinds
    with all norms at the end."""
    found: dict[str, tuple[int, ...]] = {}
    for own, theirs, last in (("tnet.", "feat.stn.", (9, 8)), ("", "feat.", (5, 12))):
        layers: dict[str, tuple[int, ...]] = {}
        norms: dict[str, tuple[int, ...]] = {}
        for kind, sizes in (("conv", ((8, 3, 1), (16, 8, 1), (32, 16, 1))), ("fc", ((16, 32), (last[1], 16)))):
            around = "" if (own, kind) == ("", "fc") else theirs
            for n, size in enumerate(sizes):
                listed = f"{own}{'points' if kind == 'conv' else 'head'}"
                layer = f"{listed}.{3 * n}" if lists else f"{around}{kind}{n + 1}"
                behind = 3 * (kind == "fc" and around == theirs)
                norm = f"{listed}.{3 * n + 1}" if lists else f"{around}bn{n + 1 + behind}"
                layers |= {f"{layer}.weight": size, f"{layer}.bias": size[:1]}
                norms |= {f"{norm}.{leaf}": size[:1] for leaf in ("weight", "bias", "running_mean", "running_var")}
        layers[f"{own}head.6.weight" if lists else f"{theirs if own else ''}fc3.weight"] = last
        found |= layers | norms
    return found


def test_what_a_module_holds_does_not_come_from_outside_of_the_one_that_all_else_in_it_comes_from() -> None:
    """The norms of a tower are counted as those of the net are, and some are as wide."""
    source, target = _points(lists=False), _points(lists=True)
    want = dict(zip(target, source, strict=True))
    way = sorted(target, key=lambda key: (not key.startswith("tnet"), "head" in key, int(key.split(".")[-2])))
    mapping = port(signature(source), wanted({key: target[key] for key in way}, used=way))
    assert pairing(mapping) == want
    assert doubted(mapping) == set()


def test_initials_tell_two_tensors_apart_or_leave_a_question() -> None:
    shapes = {"TA": (6, 10), "TC": (6, 10)}
    mapping = port(signature(shapes), wanted({"time_C": (6, 10), "time_A": (6, 10)}))
    for own, theirs in (("time_C", "TC"), ("time_A", "TA")):
        entry = found(mapping, own)
        assert str(entry.expr) == theirs or entry.status == "guessed"


def test_layers_that_code_got_later_by_their_names_do_not_show_by_their_place_when_they_run() -> None:
    inner = {"norm1.weight": (8,), "attn.qkv.weight": (24, 8), "attn.proj.weight": (8, 8)}
    later = {"temporal_norm1.weight": (8,), "temporal_attn.qkv.weight": (24, 8), "temporal_attn.proj.weight": (8, 8)}
    last = {"mlp.0.weight": (16, 8), "mlp.2.weight": (8, 16)}
    source = {f"blocks.{n}.{name}": size for n in range(2) for name, size in {**inner, **later, **last}.items()}
    names = {"ln.weight": (8,), "to_qkv.weight": (24, 8), "to_out.weight": (8, 8)}
    block = {f"{part}.{name}": size for part in "ab" for name, size in names.items()}
    block |= {"fc1.weight": (16, 8), "fc2.weight": (8, 16)}
    target = {f"layers.{n}.{name}": size for n in range(2) for name, size in block.items()}
    mapping = port(signature(source), wanted(target, used=target))
    for part, rival in (("a", "blocks.0.temporal_attn.qkv.weight"), ("b", "blocks.0.attn.qkv.weight")):
        entry = found(mapping, f"layers.0.{part}.to_qkv.weight")
        assert Reason.NAMED_AS_ADDED in [question.reason for question in entry.questions]
        assert rival in map(str, entry.rivals)
    assert found(mapping, "layers.0.fc1.weight").status == "mapped"


@pytest.mark.parametrize(("way", "status"), [("up", "mapped"), ("down", "guessed")])
def test_a_list_that_the_model_runs_from_its_end_counts_as_the_list_beside_it(way: str, status: str) -> None:
    """Sizes tell the lateral layers of a pyramid apart; of its outputs, which look alike, only numbers do."""
    widths = (12, 16, 20)
    target = {f"fpn.inner.{n}.weight": (8, width) for n, width in enumerate(widths)}
    target |= {f"fpn.layer.{n}.weight": (8, 8, 3) for n in range(3)}
    numbers = (2, 3, 4) if way == "up" else (4, 3, 2)
    source = {}
    for n, width in zip(numbers, widths, strict=True):
        source |= {f"neck.lateral{n}.weight": (8, width), f"neck.output{n}.weight": (8, 8, 3)}
    used = [f"fpn.{part}.{n}.weight" for n in (2, 1, 0) for part in ("inner", "layer")]
    mapping = port(signature(source), wanted(target, used=used))
    for n, number in enumerate((2, 3, 4)):
        entry = found(mapping, f"fpn.layer.{n}.weight")
        assert (entry.status, str(entry.expr)) == (status, f"neck.output{number}.weight") or way == "down"
        assert entry.status == status or str(entry.expr) == f"neck.output{numbers[n]}.weight"


@pytest.mark.parametrize(("used", "status"), [(("stride4", "stride8"), "mapped"), (("stride8", "stride4"), "guessed")])
def test_numbers_with_gaps_count_parallel_layers_if_the_model_runs_them_in_that_order(
    used: tuple[str, str], status: str
) -> None:
    source = {f"head.{kind}.{n}.weight": shape for kind, shape in HEADS.items() for n in (0, 1)}
    target = {f"levels.{level}.to_{kind}.weight": HEADS[kind] for level in ("stride8", "stride4") for kind in HEADS}
    way = [f"levels.{level}.to_{kind}.weight" for level in used for kind in HEADS]
    model = wanted(target, used=way)
    beside = {key: replace(e, facts=Facts(flow=Flow(way.index(key), 0))) for key, e in model.entries.items()}
    mapping = port(signature(source), replace(model, entries=beside))
    for kind in HEADS:
        entry = found(mapping, f"levels.stride4.to_{kind}.weight")
        assert entry.status == status
        assert status == "guessed" or str(entry.expr) == f"head.{kind}.0.weight"


@pytest.mark.parametrize("around", ["", "net."])
def test_the_outermost_list_counts_parallel_layers_as_one_inside_of_a_module_does(around: str) -> None:
    source = {f"layers.stride{n}.mix.weight": (8, 8) for n in (8, 16, 32)}
    target = {f"{around}{n}.conv.weight": (8, 8) for n in range(3)}
    model = wanted(target, used=target)
    beside = {key: replace(e, facts=Facts(flow=Flow(at, 0))) for at, (key, e) in enumerate(model.entries.items())}
    mapping = port(signature(source), replace(model, entries=beside))
    assert pairing(mapping) == dict(zip(target, source, strict=True))
    assert not mapping.having("guessed")


HEADS = {"box": (4, 16), "score": (1, 16), "kind": (7, 16)}


@pytest.mark.parametrize(("inner", "status"), [("mlps.{}.norms.0", "mapped"), ("others.{}", "guessed")])
def test_a_module_that_runs_as_a_whole_holds_what_runs_between_its_layers(inner: str, status: str) -> None:
    target, source = {}, {}
    for n in range(3):
        layers = {"net.0": {"weight": (8, 6)}, "net.1": NORM, "net.3": {"weight": (6, 8)}, "net.4": NORM}
        target |= {f"layers.{n}.{part}.{leaf}": size for part, held in layers.items() for leaf, size in held.items()}
        source |= {f"mlps.{n}.linears.0.weight": (8, 6), f"mlps.{n}.linears.1.weight": (6, 8)}
        source |= {f"{inner.format(n)}.{leaf}": shape for leaf, shape in NORM.items()}
    source |= {f"norms.{n}.{leaf}": shape for n in range(3) for leaf, shape in NORM.items()}
    mapping = port(signature(source), wanted(target, used=target))
    for n in range(3):
        entry = found(mapping, f"layers.{n}.net.1.weight")
        assert entry.status == status
        assert status == "guessed" or str(entry.expr) == f"mlps.{n}.norms.0.weight"


NORM = dict.fromkeys(("weight", "bias", "running_mean", "running_var"), (8,))


def test_one_series_of_numbers_in_a_block_tells_no_layer_with_a_name_where_orders_differ() -> None:
    """The attention of the source, which its code runs before the third convolution, is registered after it; scales are
    registered first, and norms last.
    """
    norm, square, wide, deep = ((8,), (8, 8, 1, 1), (16, 8, 1, 1), (16, 1, 3, 3))

    def blocks(row: str, held: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
        leaves = {f"{row}.{n}.{name}": shape for n in range(2) for name, shape in held.items()}
        shapes: dict[str, tuple[int, ...]] = {}
        for name, shape in leaves.items():
            shapes |= {name: shape} if shape[0] == 1 else {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
        return shapes

    scale = (1, 8, 1, 1)
    spatial = {"norm": norm, "expand": wide, "depthwise": deep, "channel_attention": square, "project": square}
    channel = {"norm": norm, "expand": wide, "project": square, "scale": scale}
    held = {f"spatial.{name}": shape for name, shape in (spatial | {"scale": scale}).items()}
    target = blocks("blocks", held | {f"channel.{name}": shape for name, shape in channel.items()})
    source = {"beta": scale, "gamma": scale, "conv1": wide, "conv2": deep, "conv3": square, "sca.1": square}
    source |= {"conv4": wide, "conv5": square, "norm1": norm, "norm2": norm}
    mapping = port(signature(blocks("body", source)), wanted(target, used=target))
    guessed = {entry.target for entry in mapping.having("guessed")}
    assert {
        f"blocks.{n}.spatial.{name}.weight" for n in range(2) for name in ("channel_attention", "project")
    } <= guessed
