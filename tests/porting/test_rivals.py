"""The last gate: a pair whose swap fits as well is a guess, whatever evidence made it."""

from __future__ import annotations

from typing import Any

from sides import pairing, signature, wanted

from ckptool.porting.port import port


def doubted(mapping: Any) -> set[str]:
    return {e.target for e in mapping.having("guessed")}


def test_a_word_that_the_order_contradicts_decides_nothing() -> None:
    source = {"enc.fc_q.weight": (8, 8), "enc.ln.weight": (8,), "enc.fc_o.weight": (16, 8), "enc.ln1.weight": (8,)}
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
