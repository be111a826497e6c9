"""Words and numbers that tell like parts apart mean the same wherever they stand."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sides import found, pairing, signature, wanted

from ckptool.model_code.signature import Facts, Flow
from ckptool.porting.forms.roles import counted_by_letters
from ckptool.porting.matching.series import translation
from ckptool.porting.matching.units import hard_conflict
from ckptool.porting.port import port
from ckptool.porting.words import words_of

WORDS = ("fine", "mid", "coarse", "deepest")


@given(numbers=st.permutations(range(4)), n=st.integers(2, 4), noise=st.booleans())
def test_what_is_known_of_others_says_which_word_is_which_number(numbers: list[int], n: int, noise: bool) -> None:
    means = dict(zip(WORDS[:n], numbers, strict=False))
    known = [((f"lateral_{word}", "conv"), (f"output{number}", "0")) for word, number in means.items()]
    if noise:
        known.append((("stem", "conv"), ("body", "0")))
    own, theirs = [(f"smooth_{word}",) for word in means], [(f"merge{number}",) for number in sorted(means.values())]
    assert translation(own, theirs, known) == {
        (f"smooth_{word}",): (f"merge{number}",) for word, number in means.items()
    }


def test_what_contradicts_itself_says_nothing() -> None:
    known = [(("a_fine",), ("b1",)), (("a_mid",), ("b2",)), (("c_fine",), ("d2",)), (("c_mid",), ("d1",))]
    assert translation([("s_fine",), ("s_mid",)], [("m1",), ("m2",)], known) is None
    assert translation([("s_fine",), ("s_mid",)], [("m1",), ("m2",)], known[:1]) is None


def test_levels_that_are_used_from_the_coarsest_on_get_what_their_words_say() -> None:
    """A pyramid: each lateral layer has sizes of its own, those that smooth are alike; the source numbers by level."""
    own = {"smooth_mid": (4, 4, 3, 3), "smooth_fine": (4, 4, 3, 3), "lateral_fine": (4, 8, 1, 1)}
    own |= {"lateral_mid": (4, 16, 1, 1), "lateral_coarse": (4, 32, 1, 1)}
    number = {"fine": 1, "mid": 2, "coarse": 3}
    names = {name: f"{'merge' if 'smooth' in name else 'output'}{number[name.split('_')[1]]}" for name in own}
    shapes, source = {}, {}
    for name in sorted(own, key=lambda name: names[name]):
        source |= {f"{names[name]}.0.weight": own[name], f"{names[name]}.1.weight": (4,), f"{names[name]}.1.bias": (4,)}
    for name, shape in own.items():
        shapes |= {f"{name}.conv.weight": shape, f"{name}.norm.weight": (4,), f"{name}.norm.bias": (4,)}
    mapping = port(signature(source), wanted(shapes, used=shapes))
    for name in own:
        for mine, theirs in {"conv.weight": "0.weight", "norm.weight": "1.weight", "norm.bias": "1.bias"}.items():
            assert str(found(mapping, f"{name}.{mine}").expr) == f"{names[name]}.{theirs}"


@given(n=st.integers(2, 5), order=st.randoms(use_true_random=False))
def test_letters_that_count_are_numbers(n: int, order: random.Random) -> None:
    own = [f"step_{letter}" for letter in "abcde"[:n]]
    layers = dict.fromkeys(own, (8, 8))
    shuffled = list(range(n))
    order.shuffle(shuffled)
    source = {f"blocks.{block}.step{place + 1}.weight": (8, 8) for block in range(2) for place in shuffled}
    target = {f"body.{block}.{name}.weight": size for block in range(2) for name, size in layers.items()}
    mapping = port(signature(source), wanted(target))
    for block in range(2):
        for place, name in enumerate(own):
            assert str(found(mapping, f"body.{block}.{name}.weight").expr) == f"blocks.{block}.step{place + 1}.weight"


def test_letters_with_a_gap_or_beside_numbers_do_not_count() -> None:
    for names in (("to_a", "to_c"), ("to_b", "to_c"), ("to_a", "to_b", "to_1"), ("lora_a", "lora_b"), ("a", "b")):
        assert counted_by_letters([("block", name) for name in names]) == {}
    assert counted_by_letters([("x", "to_a"), ("x", "to_b", "in")]) == {
        ("x", "to_a"): ("x", "to_1"),
        ("x", "to_b", "in"): ("x", "to_2", "in"),
    }


def test_what_scales_and_what_shifts_is_told_by_the_letters_for_them() -> None:
    layers = {"0.weight": (8, 4), "0.bias": (8,), "2.weight": (4, 8), "2.bias": (4,)}
    theirs = {f"{name}.{n}.{leaf}": size for name in "ts" for n in range(2) for leaf, size in layers.items()}
    own = {
        f"couplings.{n}.{name}.{leaf}": size
        for n in range(2)
        for name in ("log_scale", "shift")
        for leaf, size in layers.items()
    }
    mapping = port(signature(theirs), wanted(own, used=own))
    assert str(found(mapping, "couplings.1.log_scale.2.weight").expr) == "s.1.2.weight"
    assert str(found(mapping, "couplings.1.shift.2.weight").expr) == "t.1.2.weight"


@given(order=st.permutations(["mean", "spread", "rest"]), n=st.integers(2, 4))
def test_a_step_is_never_one_of_the_parts_that_all_steps_have(order: list[str], n: int) -> None:
    theirs = {f"{part}_net.{step}.weight": (8, 8) for part in order[:n] for step in range(min(n, len(order)))}
    own = {f"steps.{step}.{part}.weight": (8, 8) for step in range(min(n, len(order))) for part in sorted(order[:n])}
    mapping = port(signature(theirs), wanted(own, used=own))
    for entry in mapping.having("mapped"):
        _, step, part, _ = entry.target.split(".")
        assert str(entry.expr) == f"{part}_net.{step}.weight"


@pytest.mark.parametrize(
    ("theirs", "own"),
    [
        ("crossattention.self.query", "crossattention.attention.query"),
        ("decoder.encoders.0.w_1", "decoder.layers.0.conv1"),
        ("text2mel.postnet.conv", "speech_postnet.conv"),
    ],
)
def test_words_that_stand_within_the_name_of_something_else_speak_of_nothing(theirs: str, own: str) -> None:
    assert hard_conflict(words_of(own.split(".")), words_of(theirs.split("."))) is None
    assert hard_conflict(words_of(["decoder", "layers"]), words_of(["encoder", "encoders"])) is not None
    assert hard_conflict(words_of(["crossattention", "q"]), words_of(["attention", "self", "q"])) is not None
    assert hard_conflict(words_of(["text", "proj"]), words_of(["audio", "2", "mel"])) is not None


def test_the_layers_of_an_added_stream_are_those_of_the_context() -> None:
    """Two streams of equal sizes share an attention; the source has a module for each, the model has names for one."""
    own: dict[str, tuple[int, ...]] = {}
    for place in range(2):
        at = f"blocks.{place}."
        own |= {f"{at}attn.to_{one}.weight": (8, 8) for one in "qkv"}
        own |= {f"{at}attn.add_{one}_proj.weight": (8, 8) for one in "qkv"}
        own |= {f"{at}attn.to_out.weight": (8, 8), f"{at}attn.to_add_out.weight": (8, 8)}
        own |= {f"{at}ff.up.weight": (20, 8), f"{at}ff_context.up.weight": (20, 8)}
    parts = {"qkv": (24, 8), "proj": (8, 8)}
    theirs = {
        f"joint.{place}.{stream}.attn.{part}.weight": shape
        for place in range(2)
        for stream in ("context_block", "x_block")
        for part, shape in parts.items()
    }
    theirs |= {f"joint.{n}.{s}.mlp.fc1.weight": (20, 8) for n in range(2) for s in ("context_block", "x_block")}
    mapping = port(signature(theirs, ordered=False), wanted(own))
    assert mapping.is_sure
    assert str(found(mapping, "blocks.1.attn.add_k_proj.weight").expr) == (
        "slice(joint.1.context_block.attn.qkv.weight, 0, 8, 16)"
    )
    assert str(found(mapping, "blocks.0.attn.to_out.weight").expr) == "joint.0.x_block.attn.proj.weight"


def test_the_layer_behind_an_attention_is_none_for_places_whatever_the_order() -> None:
    """`o_net`, `r_net` of one code; `w_rel`, `w_out` of another, which uses them in the other order."""
    theirs, own = {}, {}
    for n in range(2):
        at = f"layers.{n}."
        theirs |= {f"{at}attn.{name}.weight": (8, 8) for name in ("q_net", "k_net", "v_net", "o_net", "r_net")}
        own |= {f"{at}{name}.weight": (8, 8) for name in ("w_query", "w_key", "w_value", "w_rel", "w_out")}
    mapping = port(signature(theirs), wanted(own, used=own))
    assert str(found(mapping, "layers.1.w_out.weight").expr) == "layers.1.attn.o_net.weight"
    assert str(found(mapping, "layers.1.w_rel.weight").expr) == "layers.1.attn.r_net.weight"


@pytest.mark.parametrize(
    ("theirs", "own"),
    [
        (("att_src", "att_dst"), ("attn_r", "attn_l")),
        (("lin_l.weight", "lin_r.weight"), ("root.weight", "neigh.weight")),
        (("decoder.embed.weight", "encoder.embed.weight"), ("source_embedding.weight", "target_embedding.weight")),
        (("W_g.weight", "W_x.weight"), ("theta.weight", "phi.weight")),
        (("reg.weight", "wh.weight"), ("size_head.weight", "offset_head.weight")),
        (("attention_a.weight", "attention_b.weight"), ("attention_U.weight", "attention_V.weight")),
        (("r_r_bias", "r_w_bias"), ("pos_bias_u", "pos_bias_v")),
        (("last_layernorm.weight", "norm1.weight"), ("ln_1.weight", "final_norm.weight")),
    ],
)
def test_two_sides_are_told_by_what_the_field_calls_them(theirs: tuple[str, str], own: tuple[str, str]) -> None:
    """The second name of one is the first of the other, whatever the order."""
    layer = {"lin.weight": (12, 8), "bias": (12,)}
    sides: list[dict[str, tuple[int, ...]]] = []
    for stem, names in (("convs", theirs), ("layers", own)):
        sides.append(
            {
                f"{stem}.{n}.{key}": size
                for n in range(2)
                for key, size in (layer | dict.fromkeys(names, (6, 8))).items()
            }
        )
    mapping = port(signature(sides[0]), wanted(sides[1], used=sides[1]))
    for n in range(2):
        assert str(found(mapping, f"layers.{n}.{own[0]}").expr) == f"convs.{n}.{theirs[1]}"
        assert str(found(mapping, f"layers.{n}.{own[1]}").expr) == f"convs.{n}.{theirs[0]}"


def test_capital_letters_count_as_small_ones_do() -> None:
    assert counted_by_letters([("netD_A", "in"), ("netD_B",), ("blockA",), ("blockB",)]) == {
        ("netD_A", "in"): ("netD_1", "in"),
        ("netD_B",): ("netD_2",),
        ("blockA",): ("block1",),
        ("blockB",): ("block2",),
    }
    for names in (("lora_A", "lora_B"), ("A", "B"), ("netA", "netB", "net1"), ("to_a", "to_B"), ("xB", "xC")):
        assert counted_by_letters([("block", name) for name in names]) == {}


def test_from_one_domain_to_another_and_back_is_said_by_two_letters() -> None:
    for there, back in (("netG_A2B", "netG_B2A"), ("netG_AtoB", "netG_BtoA"), ("netG_a_to_b", "netG_b_to_a")):
        found = counted_by_letters([("x", there, "in"), ("x", back)])
        assert found == {("x", there, "in"): ("x", "netG_ab", "in"), ("x", back): ("x", "netG_ba")}
    for names in (("b1a", "b2a", "b3a"), ("netG_A2B", "netD_B2A"), ("b2b", "x"), ("a2b",)):
        assert counted_by_letters([(name,) for name in names]) == {}


def test_letters_behind_a_number_are_counted_within_it() -> None:
    source = {f"conv{n}.weight": (8, 8, 3, 3) for n in range(1, 13)}
    target = {f"conv{n}{letter}.weight": (8, 8, 3, 3) for n in range(1, 7) for letter in "AB"}
    mapping = port(signature(source), wanted(target, used=target))
    assert pairing(mapping) == dict(zip(target, source, strict=True))


def test_towers_that_run_beside_each_other_are_told_by_the_domains_in_their_names() -> None:
    layers = {"0.weight": (8, 3, 3, 3), "2.weight": (8, 8, 3, 3)}
    theirs = {
        f"{net}.{key}": size for net in ("netG_A2B", "netG_B2A", "netD_A", "netD_B") for key, size in layers.items()
    }
    own = {f"{net}.{key}": size for net in ("disc_a", "disc_b", "gen_b2a", "gen_a2b") for key, size in layers.items()}
    mapping = port(signature(theirs), wanted(own, used=own))
    of = {"disc_a": "netD_A", "disc_b": "netD_B", "gen_b2a": "netG_B2A", "gen_a2b": "netG_A2B"}
    assert pairing(mapping) == {key: key.replace(net := key.split(".")[0], of[net]) for key in own}
    assert not mapping.having("guessed")


def test_letters_that_both_sides_say_are_words_and_count_nothing() -> None:
    """Five layers that run beside each other, registered in one order and used in another."""
    letters = "ABCDE"
    theirs = {f"layers.{n}.{letter}.weight": (8, 8) for n in range(2) for letter in letters}
    own = {f"convs.{n}.lin_{letter}.weight": (8, 8) for n in range(2) for letter in letters}
    used = [f"convs.{n}.lin_{letter}.weight" for n in range(2) for letter in "DECBA"]
    model = wanted(own, used=used)
    flows = {
        key: replace(e, facts=Facts(Flow(at, 31 * ("1" in key)))) for at, (key, e) in enumerate(model.entries.items())
    }
    mapping = port(signature(theirs), replace(model, entries=flows))
    assert pairing(mapping) == dict(zip(own, theirs, strict=True))
    assert not mapping.having("guessed")
