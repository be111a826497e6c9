"""Names that agree on both sides and outweigh an order, each beside what looks like it and stays a guess."""

from __future__ import annotations

from typing import Any

from sides import pairing, signature, wanted

from ckptool.porting.forms.spelled import spelled
from ckptool.porting.port import port

Shapes = dict[str, tuple[int, ...]]


def guessed(mapping: Any) -> set[str]:
    return {entry.target for entry in mapping.entries if entry.status == "guessed"}


def test_gate_and_up_on_both_sides_outweigh_the_order_of_both() -> None:
    source = {f"layers.{n}.{name}.weight": (16, 8) for n in range(2) for name in ("w_gate", "up_proj")}
    target = {f"h.{n}.{name}.weight": (16, 8) for n in range(2) for name in ("wi_1", "wi_0")}
    mapping = port(signature(source), wanted(target, used=target))
    assert pairing(mapping)["h.1.wi_0.weight"] == "layers.1.w_gate.weight"
    assert not guessed(mapping)


def test_words_for_places_do_not_outweigh_an_order() -> None:
    source = {f"layers.{n}.{name}.weight": (8,) for n in range(2) for name in ("ln_after", "ln_before")}
    target = {f"h.{n}.{name}.weight": (8,) for n in range(2) for name in ("norm1", "norm2")}
    assert guessed(port(signature(source), wanted(target, used=target)))


def test_a_model_that_names_one_of_two_copies_gets_that_one() -> None:
    part: Shapes = {"conv1.weight": (8, 2, 5, 5), "conv1.bias": (8,), "embed.weight": (10, 12), "embed.bias": (10,)}
    source = {f"net.branch_{side}.{key}": size for side in ("left", "right") for key, size in part.items()}
    right = port(signature(source), wanted({f"branch_right.{key}": size for key, size in part.items()}))
    assert pairing(right)["branch_right.conv1.weight"] == "net.branch_right.conv1.weight"
    assert not guessed(right)
    neither = {f"trunk.{key}": size for key, size in part.items()}
    assert guessed(port(signature(source), wanted(neither))) == neither.keys()


def test_a_layer_between_two_blocks_may_be_counted_among_either() -> None:
    blocks: Shapes = {
        "0.mix.weight": (8, 7),
        "0.fold.weight": (8, 5),
        "1.mix.weight": (16, 6),
        "1.fold.weight": (16, 4),
    }
    items = list(blocks.items())

    def side(name: str, block: int, *, at: int) -> Shapes:
        own = [*items[:at], (f"{block}.downsample.weight", (16, 8)), *items[at:]]
        return {f"{name}.{key}": size for key, size in own} | {"head.weight": (3, 16)}

    target = side("layers", 1, at=2)
    mapping = port(signature(side("stages", 0, at=2)), wanted(target, used=target))
    assert pairing(mapping)["layers.1.downsample.weight"] == "stages.0.downsample.weight"
    assert not guessed(mapping)
    elsewhere = port(signature(side("stages", 0, at=0)), wanted(target, used=target))
    assert guessed(elsewhere) == {"layers.1.downsample.weight"}


def test_the_name_of_a_whole_may_cut_the_names_of_its_parts_short() -> None:
    assert spelled(["b1", "b2_reduce", "b3_reduce"], {"merged_b2r_b1_b3r"}) == (1, 0, 2)
    assert spelled(["b1", "b2_reduce", "b3_reduce"], {"merged_b2p_b1_b3p"}) is None


def test_short_words_for_what_a_model_sees_and_reads_are_known() -> None:
    """LXMERT calls its two streams lang and visn."""
    source = {"lang_fc.weight": (8, 8), "visn_fc.weight": (8, 8)}
    mapping = port(signature(source), wanted({"image_proj.weight": (8, 8), "text_proj.weight": (8, 8)}))
    assert pairing(mapping) == {"image_proj.weight": "visn_fc.weight", "text_proj.weight": "lang_fc.weight"}
    assert {entry.status for entry in mapping.entries} == {"mapped"}


def test_the_layers_of_a_generator_that_give_pictures_keep_their_own_styles() -> None:
    """StyleGAN2 is coded with to_rgb and modulation, each kind in a list, and with torgb and affine in blocks."""

    def side(modules: dict[str, tuple[int, ...]], style: str) -> Shapes:
        shapes: Shapes = {}
        for name, size in modules.items():
            shapes |= {
                f"{name}.weight": size,
                f"{name}.{style}.weight": (size[1], 24),
                f"{name}.{style}.bias": size[1:2],
            }
        return shapes

    conv, picture, narrow = (16, 16, 3, 3), (3, 16, 1, 1), (3, 12, 1, 1)
    own = {"b4.conv1": conv, "b4.torgb": picture, "b8.conv0": conv, "b8.conv1": conv, "b8.torgb": picture}
    own |= {"b16.conv0": (12, 16, 3, 3), "b16.conv1": (12, 12, 3, 3), "b16.torgb": narrow}
    names = ("conv1", "to_rgb1", "convs.0", "convs.1", "to_rgbs.0", "convs.2", "convs.3", "to_rgbs.1")
    theirs = dict(sorted(zip((f"{name}.conv" for name in names), own.values(), strict=True)))
    target = side(own, "affine")
    mapping = port(signature(side(theirs, "modulation")), wanted(target, used=target))
    assert pairing(mapping)["b8.torgb.affine.weight"] == "to_rgbs.0.conv.modulation.weight"
    assert not [key for key in guessed(mapping) if "torgb" in key]
