"""Evidence that makes a pair certain, each beside what looks like it and is not: that stays a guess."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from sides import found, pairing, signature, wanted

from ckptool.porting.port import port

Shapes = dict[str, tuple[int, ...]]


def status(mapping: Any, key: str) -> str:
    return str(found(mapping, key).status)


# -- a shape that nothing else has


def flowing(shapes: Shapes, *, way: list[str]) -> Any:
    """A model that uses its weights one after the other, in the order of WAY."""
    model = wanted(shapes, used=way)
    place = {key: n for n, key in enumerate(way)}
    entries = {key: replace(e, notes={"flow": (place[key], (1 << place[key]) - 1)}) for key, e in model.entries.items()}
    return replace(model, entries=entries)


BODY: Shapes = {"body.0.weight": (16, 16), "body.0.bias": (16,), "body.1.weight": (12, 16), "body.1.bias": (12,)}


def within(*, first: bool) -> tuple[Shapes, Shapes]:
    """A layer of a size of its own, before or after the others, under two names; the source has a thing of its own."""
    own, theirs = {"look.weight": (16, 9)}, {"w_p.weight": (16, 9)}
    table: Shapes = {"table": (1, 7, 16)}
    theirs_body = {key.replace("body", "steps"): size for key, size in BODY.items()}
    return (own | BODY, theirs | table | theirs_body) if first else (BODY | own, theirs_body | table | theirs)


def test_what_only_its_shape_tells_is_certain_where_it_is_on_the_way_to_the_rest_on_both_sides() -> None:
    target, source = within(first=True)
    mapping = port(signature(source), flowing(target, way=list(target)))
    assert pairing(mapping)["look.weight"] == "w_p.weight"
    assert status(mapping, "look.weight") == "mapped"


def test_what_only_its_shape_tells_is_a_guess_where_one_side_has_it_at_its_end() -> None:
    target, source = within(first=True)
    _, at_the_end = within(first=False)
    mapping = port(signature(at_the_end), flowing(target, way=list(target)))
    assert status(mapping, "look.weight") != "mapped"
    mapping = port(signature(source), flowing(target, way=[*BODY, "look.weight"]))
    assert status(mapping, "look.weight") != "mapped"


def test_what_only_its_shape_tells_is_a_guess_where_the_model_wants_more_than_there_is() -> None:
    target, source = within(first=True)
    target["extra.weight"] = (5, 12)
    mapping = port(signature(source), flowing(target, way=list(target)))
    assert status(mapping, "look.weight") != "mapped"


# -- one tensor in place of several


@pytest.mark.parametrize(
    ("parts", "whole", "order"),
    [
        (("conv_z", "conv_r"), "conv_zr", (0, 1)),
        (("convz1", "convr1"), "convzr1", (0, 1)),
        (("convz1", "convr1"), "convrz1", (1, 0)),
        (("scale_proj", "shift_proj"), "shift_scale_proj", (1, 0)),
        (("conv1a", "conv1b"), "whole", (0, 1)),
    ],
)
def test_parts_stand_in_the_order_in_which_the_name_of_the_whole_spells_them_or_letters_count_them(
    parts: tuple[str, str], whole: str, order: tuple[int, int]
) -> None:
    apart: Shapes = {f"cell.{name}.weight": (8, 6, 3, 3) for name in parts} | {"cell.last.weight": (5, 8, 3, 3)}
    together: Shapes = {f"cell.{whole}.weight": (16, 6, 3, 3), "cell.last.weight": (5, 8, 3, 3)}
    one = port(signature(apart), wanted(together))
    joined = ", ".join(f"cell.{parts[i]}.weight" for i in order)
    assert pairing(one)[f"cell.{whole}.weight"] == f"cat(0, {joined})"
    assert status(one, f"cell.{whole}.weight") == "mapped"
    other = port(signature(together), wanted(apart))
    for place, i in enumerate(order):
        key = f"cell.{parts[i]}.weight"
        assert pairing(other)[key] == f"slice(cell.{whole}.weight, 0, {8 * place}, {8 * place + 8})"
        assert status(other, key) == "mapped"


@pytest.mark.parametrize(
    ("parts", "whole"),
    [(("convz", "convr"), "conv_both"), (("conv_b", "conv_a"), "whole"), (("conv1b", "conv1a"), "whole")],
)
def test_parts_whose_order_no_name_spells_are_guesses(parts: tuple[str, str], whole: str) -> None:
    apart: Shapes = {f"cell.{name}.weight": (8, 6, 3, 3) for name in parts} | {"cell.last.weight": (5, 8, 3, 3)}
    together: Shapes = {f"cell.{whole}.weight": (16, 6, 3, 3), "cell.last.weight": (5, 8, 3, 3)}
    assert status(port(signature(apart), wanted(together)), f"cell.{whole}.weight") == "guessed"
    mapping = port(signature(together), wanted(apart))
    assert {status(mapping, f"cell.{name}.weight") for name in parts} == {"guessed"}


# -- a linear layer that is a convolution


@pytest.mark.parametrize("size", [(2, 2), (2, 2, 2)])
def test_a_linear_layer_over_all_of_its_feature_maps_is_a_convolution_over_them(size: tuple[int, ...]) -> None:
    body: Shapes = {"conv.weight": (6, 3, *(3 for _ in size)), "conv.bias": (6,)}
    target: Shapes = {**body, "fc.weight": (10, 6, *size), "fc.bias": (10,)}
    source: Shapes = {**body, "fc.weight": (10, 6 * 2 ** len(size)), "fc.bias": (10,)}
    mapping = port(signature(source), wanted(target, used=target))
    assert status(mapping, "fc.weight") == "mapped"


def test_in_which_order_a_linear_layer_takes_what_a_convolution_takes_is_a_guess_elsewhere() -> None:
    target: Shapes = {"patch.weight": (10, 3, 2, 2, 2), "head.weight": (4, 10)}
    mapping = port(signature({**target, "patch.weight": (10, 24)}), wanted(target, used=target))
    assert status(mapping, "patch.weight") == "guessed"
    keras: Shapes = {"conv/kernel": (3, 3, 3, 6), "conv/bias": (6,), "fc/kernel": (24, 10), "fc/bias": (10,)}
    target = {"conv.weight": (6, 3, 3, 3), "conv.bias": (6,), "fc.weight": (10, 6, 2, 2), "fc.bias": (10,)}
    mapping = port(signature(keras), wanted(target, used=target))
    assert status(mapping, "fc.weight") != "mapped"


@pytest.mark.parametrize(("how", "expected"), [("conv_transpose1d", "mapped"), ("conv1d", "guessed")])
def test_a_matrix_that_makes_frames_is_the_kernel_of_a_transposed_convolution(how: str, expected: str) -> None:
    body: Shapes = {"encoder.weight": (16, 1, 8)}
    model = wanted({**body, "decoder.filters": (16, 1, 8)}, used=[*body, "decoder.filters"])
    entries = dict(model.entries)
    entries["decoder.filters"] = replace(entries["decoder.filters"], how=how)
    mapping = port(signature({**body, "decoder.basis.weight": (8, 16)}), replace(model, entries=entries))
    assert "transpose(decoder.basis.weight)" in pairing(mapping)["decoder.filters"]
    assert status(mapping, "decoder.filters") == expected


# -- another name where all else has the same


def test_another_name_in_the_middle_of_equal_ones_is_certain_where_both_sides_hold_nothing_else() -> None:
    body: Shapes = {f"stages.{n}.weight": (6, 6, 3, 3) for n in range(1, 9)}
    target: Shapes = {"stem.weight": (6, 3, 7, 7), **body, "norm.weight": (12,), "out.weight": (5, 12)}
    source = {{"stem.weight": "embedder.convolution.weight"}.get(key, key): size for key, size in target.items()}
    assert status(port(signature(source), flowing(target, way=list(target))), "stem.weight") == "mapped"
    more = {**source, "other.weight": (3, 3, 9)}
    assert status(port(signature(more), flowing(target, way=list(target))), "stem.weight") == "guessed"
