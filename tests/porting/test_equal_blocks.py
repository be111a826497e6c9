"""Of many equal blocks a few are matched, and the result is that of matching all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
from sides import pairing, signature, wanted

from ckptool.model_code.signature import Facts, Flow, Signature
from ckptool.porting import equal_blocks
from ckptool.porting import port as porting
from ckptool.porting.equal_blocks import shortened
from ckptool.porting.explaining import explained
from ckptool.porting.expression import of
from ckptool.porting.port import port

pytestmark = pytest.mark.same_without_torch

Shapes = dict[str, tuple[int, ...]]
#: Blocks that are matched here. Names sort differently by letters and by numbers from the tenth on.
FEW = 12
MANY = 2 * FEW + 2


@pytest.fixture(autouse=True)
def few_blocks() -> Iterator[None]:
    with mock.patch.object(equal_blocks, "_MATCHED", FEW):
        yield


#: Name in a block of the model -> name in a block of the source, and the shape of both.
LAYER = {
    "ln_1": ("norm1", (8,)),
    "attn.query": ("self_attn.q_proj", (8, 8)),
    "attn.key": ("self_attn.k_proj", (8, 8)),
    "attn.value": ("self_attn.v_proj", (8, 8)),
    "attn.out": ("self_attn.o_proj", (8, 8)),
    "ln_2": ("norm2", (8,)),
    "mlp.up": ("feed_forward.up_proj", (24, 8)),
    "mlp.down": ("feed_forward.down_proj", (8, 24)),
}


def block(own: str, theirs: str) -> tuple[Shapes, Shapes]:
    """The tensors of one layer: of the model, of the source."""
    target = {f"{own}.{name}.weight": shape for name, (_, shape) in LAYER.items()}
    source = {f"{theirs}.{name}.weight": shape for name, shape in LAYER.values()}
    return target, source


def stack(count: int, first: int = 0) -> tuple[Shapes, Shapes]:
    target: Shapes = {"embed.weight": (50, 8)}
    source: Shapes = {"wte.weight": (50, 8)}
    for n in range(count):
        own, theirs = block(f"layers.{n}", f"model.blocks.{n + first}")
        target |= own
        source |= theirs
    return target | {"head.weight": (5, 8)}, source | {"classifier.weight": (5, 8)}


def apart(count: int) -> tuple[Shapes, Shapes]:
    """The source has a list for each part of a block."""
    target, _ = stack(count)
    source = {"wte.weight": (50, 8), "classifier.weight": (5, 8)}
    for name, shape in LAYER.values():
        source |= {f"{name.replace('.', '_')}s.{n}.weight": shape for n in range(count)}
    return target, source


def experts(count: int) -> tuple[Shapes, Shapes]:
    """Long lists inside of a long list."""
    target: Shapes = {}
    source: Shapes = {}
    for layer in range(count):
        target[f"layers.{layer}.gate.weight"] = source[f"h.{layer}.router.weight"] = (count + 2, 8)
        for n in range(count + 2):
            for own, theirs, shape in (("up", "w_up", (12, 8)), ("down", "w_down", (8, 12))):
                target[f"layers.{layer}.experts.{n}.{own}.weight"] = shape
                source[f"h.{layer}.moe.experts.{n}.{theirs}.weight"] = shape
    return target, source


def two_stacks(count: int) -> tuple[Shapes, Shapes]:
    """Only the lengths of two lists tell them apart."""
    sides: tuple[Shapes, Shapes] = ({}, {})
    for name, other, length in (("a", "x", count), ("b", "y", count + 5)):
        for n in range(length):
            for side, found in zip(sides, block(f"{name}.{n}", f"{other}.{n}"), strict=True):
                side.update(found)
    return sides[0], dict(sorted(sides[1].items(), key=lambda item: item[0][0] != "y"))


CASES: dict[str, Callable[[], tuple[Signature, Signature]]] = {
    "a stack": lambda: both(*stack(MANY)),
    "a stack that is counted from 1": lambda: both(*stack(MANY, 1)),
    "a stack that was not followed": lambda: both(*stack(MANY), followed=False),
    "keys in alphabetical order": lambda: both(*stack(MANY), in_order=False),
    "a list for each part": lambda: both(*apart(MANY)),
    "lists of two lengths": lambda: both(*two_stacks(MANY)),
}


def both(
    target: Shapes, source: Shapes, *, followed: bool = True, in_order: bool = True
) -> tuple[Signature, Signature]:
    if not in_order:
        source = dict(sorted(source.items()))
    return signature(source), wanted(target, used=target if followed else None)


def whole(source: Signature, target: Signature, **more: Any) -> Any:
    """The mapping that matches every block."""
    with mock.patch.object(porting, "shortened", return_value=None):
        return port(source, target, **more)


def said(mapping: Any) -> list[Any]:
    return [(one.target, str(one.expr), one.status, one.doubts, one.rivals) for one in mapping.entries]


@pytest.mark.parametrize("case", CASES)
def test_a_few_blocks_show_what_all_of_them_do(case: str) -> None:
    source, target = CASES[case]()
    assert shortened(source, target) is not None
    found = port(source, target)
    assert any("equal blocks" in note for note in found.notes)
    assert said(found) == said(whole(source, target))
    assert found.source_shapes.keys() == source.entries.keys()
    assert not found.unused


def test_lists_in_lists_are_shortened_one_after_the_other() -> None:
    source, target = both(*experts(MANY))
    found = port(source, target)
    assert pairing(found)["layers.25.experts.27.down.weight"] == "h.25.moe.experts.27.w_down.weight"
    assert len(found.notes) == 2
    assert found.is_sure
    assert not found.unused


def test_matching_of_more_equal_blocks_takes_no_more_rounds_of_the_rules() -> None:
    def cost(count: int) -> int:
        source, target = both(*stack(count))
        with mock.patch.object(porting, "Matcher", wraps=porting.Matcher) as made:
            port(source, target)
        return sum(len(side.pieces) for call in made.call_args_list for side in call.args)

    assert cost(100) == cost(MANY)


def changed(signature: Signature, key: str, **more: Any) -> Signature:
    return replace(signature, entries={**signature.entries, key: replace(signature.entries[key], **more)})


def flowing(target: Signature) -> Signature:
    """The model with a graph in which each tensor takes what the one before it gives."""
    entries = {
        key: replace(entry, facts=Facts(flow=Flow(at, (1 << at) - 1)))
        for at, (key, entry) in enumerate(target.entries.items())
    }
    return replace(target, entries=entries)


def test_tensors_that_the_forward_pass_does_not_use_may_be_in_equal_blocks() -> None:
    source, target = both(*stack(MANY))
    target = flowing(target)
    for n in range(MANY):
        target = changed(target, f"layers.{n}.ln_2.weight", used=None, facts=Facts())
    assert shortened(source, target) is not None


def test_blocks_with_a_graph_are_equal_if_each_takes_what_the_one_before_it_takes() -> None:
    source, target = both(*stack(MANY))
    target = flowing(target)
    assert shortened(source, target) is not None
    odd = "layers.20.mlp.up.weight"
    flow = target.entries[odd].facts.flow
    assert flow is not None
    skips = Facts(flow=flow._replace(before=flow.before & ~(1 << 100)))
    assert shortened(source, changed(target, odd, facts=skips)) is None


DIFFERENT: dict[str, Any] = {
    "size": {"shape": (32, 8)},
    "type": {"dtype": "bfloat16"},
    "use": {"how": "einsum"},
    "class": {"module": "Conv1d"},
    "place in the order of execution": {"used": 7},
    "what the pass shows": {"facts": Facts(heads=2)},
    "tie": {"tied": "layers.3.mlp.up.weight"},
}


@pytest.mark.parametrize("what", DIFFERENT)
def test_all_is_matched_if_one_block_has_another(what: str) -> None:
    source, target = both(*stack(MANY))
    assert shortened(source, changed(target, "layers.20.mlp.up.weight", **DIFFERENT[what])) is None


def test_all_is_matched_if_one_block_has_one_more_tensor() -> None:
    target, source = stack(MANY)
    assert shortened(*both(target, source | {"model.blocks.20.extra.weight": (3,)})) is None


def test_all_is_matched_if_one_block_was_registered_elsewhere() -> None:
    target, source = stack(MANY)
    moved = {key: shape for key, shape in source.items() if ".20." not in key} | source
    assert shortened(*both(target, moved)) is None


def test_all_is_matched_if_another_tensor_is_tied_to_a_block() -> None:
    source, target = both(*stack(MANY))
    shapes = source.entries["wte.weight"]
    assert shapes.tied is None
    assert shortened(changed(source, "classifier.weight", tied="model.blocks.22.norm1.weight"), target) is None


def test_blocks_before_the_equal_ones_are_matched_as_they_are() -> None:
    sides = [
        {key: (16, *shape[1:]) if ".0." in key and "up" in key else shape for key, shape in side.items()}
        for side in stack(MANY)
    ]
    source, target = both(sides[0], sides[1])
    assert shortened(source, target) is not None
    assert said(port(source, target)) == said(whole(source, target))


def test_all_is_matched_if_values_of_buffers_were_compared() -> None:
    """Equal values in the blocks that were matched say nothing of the values in the others."""
    source, target = both(*stack(MANY))
    for name in LAYER:
        for n in range(MANY):
            target = changed(target, f"layers.{n}.{name}.weight", parameter=name != "ln_1")
    short = shortened(source, target)
    assert short is not None
    made = port(short.source, short.target)
    assert short.carried(made, {"model.blocks.3.norm2.weight"}) is not None
    assert short.carried(made, {"model.blocks.3.norm1.weight"}) is None


def test_all_is_matched_if_equal_blocks_do_not_have_one_result() -> None:
    source, target = both(*stack(MANY))
    short = shortened(source, target)
    assert short is not None
    made = port(short.source, short.target)
    entries = [
        replace(one, expr=of("wte.weight")) if one.target == "layers.4.ln_1.weight" else one for one in made.entries
    ]
    assert short.carried(replace(made, entries=tuple(entries)), set()) is None


def test_the_explanation_names_the_block_that_was_matched() -> None:
    text = explained(port(*both(*stack(MANY))), "layers.22.mlp.up.weight")
    assert "Its block is equal to that of layers.11.mlp.up.weight" in text


def test_the_explanation_of_a_part_names_the_units_of_its_own_block() -> None:
    target: Shapes = {"embed.weight": (50, 8)}
    source: Shapes = {"wte.weight": (50, 8)}
    for n in range(MANY):
        target |= {f"h.{n}.attn.qkv.weight": (24, 8), f"h.{n}.attn.out.weight": (8, 8)}
        source |= {f"layers.{n + 1}.attn.{name}_proj.weight": (8, 8) for name in "qkvo"}
    short, all_of_them = (made(*both(target, source)) for made in (port, whole))
    assert len([*short["h.22.attn.qkv.weight"].way]) == 3
    for key in target:
        ways = [[(part.target, part.source) for part in one[key].way] for one in (short, all_of_them)]
        assert ways[0] == ways[1]
