"""Lists that go through the levels of another list: counted as they are used, or by level."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from sides import pairing, signature, wanted

from ckptool.model_code.signature import Facts, Flow, Signature
from ckptool.porting.port import port
from ckptool.porting.sources import _hinted

Shapes = dict[str, tuple[int, ...]]
#: Channels of the feature maps of three levels.
LEVELS = (3, 5, 7)


def decoder(levels: str, rises: str, leaves: Mapping[str, tuple[int, ...]]) -> Shapes:
    """Feature maps of three levels brought to one size, and a block for each; names count with {}."""
    found: Shapes = {levels.format(n): (8, channels, 1, 1) for n, channels in enumerate(LEVELS)}
    for n in range(3):
        found |= {f"{rises.format(n)}{leaf}": shape for leaf, shape in leaves.items()}
    return found


def coarse_to_fine(shapes: Shapes, *, by_level: bool) -> Signature:
    """What a model wants that begins with its last level, with all that a forward pass showed to flow into each."""
    levels = list(shapes)[:3]
    rises = [[key for key in shapes if key not in levels and str(n) in key.split(".")] for n in range(3)]
    if by_level:
        rises.reverse()
    used = [*levels, *(key for part in rises for key in part)]
    place = {key: n for n, key in enumerate(used)}
    before = dict.fromkeys(levels, 0)
    held = 0
    for n, part in enumerate(rises):
        held |= 1 << place[levels[2 - n]]
        for key in part:
            before[key] = held
            held |= 1 << place[key]
    made = wanted(shapes, used=used)
    return replace(
        made, entries={k: replace(e, facts=Facts(Flow(place[k], before[k]))) for k, e in made.entries.items()}
    )


BLOCK = {".mix.weight": (8, 8, 3, 3), ".top.weight": (8, 8, 1, 1)}
LAYER = {".weight": (8, 8, 3, 3)}


@pytest.mark.parametrize("leaves", [BLOCK, LAYER])
def test_blocks_that_the_source_names_as_the_levels_that_they_take_are_found_from_the_other_end(
    leaves: Shapes,
) -> None:
    source = decoder("scratch.level{}_in.weight", "scratch.refine{}", leaves)
    target = decoder("neck.convs.{}.weight", "fusion.layers.{}", leaves)
    mapping = port(signature(source), coarse_to_fine(target, by_level=False))
    for n in range(3):
        for leaf in leaves:
            assert pairing(mapping)[f"fusion.layers.{n}{leaf}"] == f"scratch.refine{2 - n}{leaf}"
    assert {e.target for e in mapping.having("guessed")} == {key for key in target if "layers" in key}


@pytest.mark.parametrize("leaves", [BLOCK, LAYER])
def test_blocks_in_a_list_may_be_counted_either_way_and_stay_as_they_are_as_a_guess(leaves: Shapes) -> None:
    source = decoder("shrink.{}.weight", "steps.{}", leaves)
    target = decoder("neck.convs.{}.weight", "fusion.layers.{}", leaves)
    mapping = port(signature(source), coarse_to_fine(target, by_level=False))
    for n in range(3):
        for leaf in leaves:
            assert pairing(mapping)[f"fusion.layers.{n}{leaf}"] == f"steps.{n}{leaf}"
    assert {e.target for e in mapping.having("guessed")} == {key for key in target if "layers" in key}


@pytest.mark.parametrize("leaves", [BLOCK, LAYER])
def test_the_numbers_of_the_levels_do_not_number_the_blocks_beside_them(leaves: Shapes) -> None:
    source = decoder("scratch.level{}_in.weight", "scratch.refine{}", leaves)
    target = decoder("adapters.{}.weight", "fusion.{}", leaves)
    mapping = port(signature(source), coarse_to_fine(target, by_level=False))
    for n in range(3):
        assert pairing(mapping)[f"adapters.{n}.weight"] == f"scratch.level{n}_in.weight"
        for leaf in leaves:
            assert pairing(mapping)[f"fusion.{n}{leaf}"] == f"scratch.refine{2 - n}{leaf}"
    assert {e.target for e in mapping.having("guessed")} == {key for key in target if "fusion" in key}


#: Two layers on the level that a block takes, and two on its sum with what comes from the block before; then the last.
FUSION = ("beside.step1", "beside.step2", "mix.step1", "mix.step2", "out")


def fusing(levels: str, blocks: list[str], leaves: tuple[str, ...]) -> Signature:
    """What code has whose BLOCKS, in the order in which it runs them, take a level each, the last one first. LEAVES are
    what it calls the layers of a block; it does not run the first two of the first block.
    """
    shapes: Shapes = {levels.format(n): (8, channels, 1, 1) for n, channels in enumerate(LEVELS)}
    flows = {key: Flow(n, 0) for n, key in enumerate(shapes)}
    last = 0
    for level, block in zip([*flows][::-1], blocks, strict=True):
        before = flows[level].bit
        for leaf in leaves if last else leaves[2:]:
            if leaf == leaves[2]:
                before |= last
            flows[f"{block}.{leaf}.weight"] = flow = Flow(len(flows), before)
            before |= flow.bit
        last = before
    for block in sorted(blocks):
        shapes |= {f"{block}.{leaf}.weight": (8, 8, 1, 1) if leaf == leaves[-1] else (8, 8, 3, 3) for leaf in leaves}
    made = wanted(shapes, used=flows)
    entries = made.entries.items()
    return replace(made, entries={k: replace(e, facts=Facts(flows[k])) if k in flows else e for k, e in entries})


def test_blocks_that_run_in_one_order_in_both_codes_are_certain_also_if_they_begin_beside_each_other() -> None:
    target = fusing("adapters.{}.weight", [f"fusion.{n}" for n in range(3)], FUSION)
    target = replace(target, entries={k: e for k, e in target.entries.items() if "0.beside" not in k or "fus" not in k})
    leaves = dict(zip(FUSION, ("unit1.conv1", "unit1.conv2", "unit2.conv1", "unit2.conv2", "out_conv"), strict=True))
    source = fusing("scratch.level{}_in.weight", [f"scratch.refine{2 - n}" for n in range(3)], (*leaves.values(),))
    followed, stored = port(source, target), port(signature({k: e.shape for k, e in source.entries.items()}), target)
    for key in (key for key in target.entries if key.startswith("fusion")):
        _, number, leaf = key.removesuffix(".weight").split(".", 2)
        for mapping in (followed, stored):
            assert pairing(mapping)[key] == f"scratch.refine{2 - int(number)}.{leaves[leaf]}.weight"
        assert (followed[key].status, stored[key].status) == ("mapped", "guessed")


#: A block of four layers of unlike sizes.
FOUR = {"first": 1, "query": 3, "key": 5, "last": 7}


def attending(levels: str, blocks: list[str], *, fused: bool) -> Signature:
    """What code has whose BLOCKS, in the order in which it runs them, take a level each, the last first. Queries and
    keys are beside each other, or parts of one layer if FUSED: both come before whatever takes one of them.
    """
    shapes: Shapes = {levels.format(n): (8, channels, 1, 1) for n, channels in enumerate(LEVELS)}
    flows = {key: Flow(n, 0) for n, key in enumerate(shapes)}
    before = 0
    for level, block in zip([*flows][::-1], blocks, strict=True):
        before |= flows[level].bit
        for leaf in FOUR:
            flows[f"{block}.{leaf}.weight"] = flow = Flow(len(flows), before)
            before |= flow.bit if leaf != "query" or fused else 0
        before |= flows[f"{block}.query.weight"].bit
    for block in sorted(blocks):
        shapes |= {f"{block}.{leaf}.weight": (8, 8, size, size) for leaf, size in FOUR.items()}
    made = wanted(shapes, used=flows)
    return replace(made, entries={k: replace(e, facts=Facts(flows[k])) for k, e in made.entries.items()})


def test_layers_that_prove_the_place_of_their_block_prove_it_for_the_others_in_it() -> None:
    target = attending("adapters.{}.weight", [f"fusion.{n}" for n in range(3)], fused=False)
    source = attending("scratch.level{}_in.weight", [f"scratch.refine{2 - n}" for n in range(3)], fused=True)
    assert len(port(signature({k: e.shape for k, e in source.entries.items()}), target).having("guessed")) == 3 * 4
    mapping = port(source, target)
    assert mapping.having("guessed") == []
    assert pairing(mapping)["fusion.0.query.weight"] == "scratch.refine2.query.weight"


@pytest.mark.parametrize("leaves", [BLOCK, LAYER])
def test_equal_names_count_alike(leaves: Shapes) -> None:
    shapes = decoder("neck.convs.{}.weight", "fusion.layers.{}", leaves)
    mapping = port(signature(shapes), coarse_to_fine(shapes, by_level=False))
    assert pairing(mapping) == {key: key for key in shapes}
    assert mapping.is_sure


def test_blocks_of_unlike_sizes_show_how_they_are_counted() -> None:
    def sized(levels: str, rises: str) -> Shapes:
        found: Shapes = {levels.format(n): (8, channels, 1, 1) for n, channels in enumerate(LEVELS)}
        for n in range(3):
            found |= {f"{rises.format(n)}.mix.weight": (8, 8, 3, 3), f"{rises.format(n)}.top.weight": (8, 9 + n, 1, 1)}
        return found

    source, target = sized("level{}_in.weight", "refine{}"), sized("neck.convs.{}.weight", "layers.{}")
    mapping = port(signature(source), coarse_to_fine(target, by_level=False))
    for n in range(3):
        assert pairing(mapping)[f"layers.{n}.mix.weight"] == f"refine{n}.mix.weight"
    assert mapping.is_sure


def test_numbers_that_are_sizes_on_one_side_and_not_on_the_other_are_a_guess() -> None:
    """`scale.0` may see the smallest picture; `discriminators.0` of the model sees the whole one."""

    def side(name: str) -> Shapes:
        return {f"{name}.{n}.{leaf}": (8, 8, 3, 3) for n in range(3) for leaf in ("first.weight", "last.weight")}

    own = side("discriminators")
    place = {key: n for n, key in enumerate(own)}
    made = wanted(own, used=own)
    target = replace(made, entries={k: replace(e, facts=Facts(Flow(place[k], 0))) for k, e in made.entries.items()})
    assert {e.status for e in port(signature(side("scales")), target).entries} == {"guessed"}
    assert {e.status for e in port(signature(side("critics")), target).entries} == {"mapped"}
    assert {e.status for e in port(signature(side("scales")), made).entries} == {
        "mapped"
    }  # nothing is known of its use


def test_a_model_that_runs_a_list_from_its_end_asks_which_block_of_the_source_runs_first() -> None:
    def blocks(row: str, *leaves: str) -> Shapes:
        shapes = dict(zip(leaves, ((8, 8, 3, 3), (8,)), strict=True))
        return {f"{row}.{n}.{leaf}.weight": shape for n in range(3) for leaf, shape in shapes.items()}

    source = {"in.weight": (8, 3, 1, 1)} | blocks("ups", "conv", "bn")
    target = {"entry.weight": (8, 3, 1, 1)} | blocks("up", "fuse.0", "fuse.1")
    forwards = followed(target, list(target))
    assert not port(signature(source), forwards).having("guessed")
    backwards = followed(
        target, ["entry.weight", *(key for n in (2, 1, 0) for key in target if key.startswith(f"up.{n}."))]
    )
    mapping = port(signature(source), backwards)
    assert {entry.target for entry in mapping.having("guessed")} == set(target) - {"entry.weight"}
    assert "from the last to the first" in mapping["up.0.fuse.0.weight"].doubts[0]


def test_a_hint_for_each_block_turns_a_list_as_the_question_about_it_says() -> None:
    source = decoder("shrink.{}.weight", "steps.{}", BLOCK)
    target = coarse_to_fine(decoder("neck.convs.{}.weight", "fusion.layers.{}", BLOCK), by_level=False)
    asked = port(signature(source), target)["fusion.layers.0.mix.weight"].doubts
    assert "pair the first with the last and so on, each pair with a --hint OLD=NEW" in asked[0]
    hinted, old = _hinted(signature(source), [f"steps.{n}=fusion.layers.{2 - n}" for n in range(3)])
    names = {new: key for key, new in old.items()}
    mapping = port(hinted, target)
    for n in range(3):
        for leaf in BLOCK:
            entry = mapping[f"fusion.layers.{n}{leaf}"]
            assert (entry.status, [names[key] for key in entry.sources]) == ("mapped", [f"steps.{2 - n}{leaf}"])


def followed(shapes: Shapes, used: list[str]) -> Signature:
    """What a model wants whose layers each take the output of the one before in USED."""
    made = wanted(shapes, used=used)
    flows = {key: Flow(n, (1 << n) - 1) for n, key in enumerate(used)}
    return replace(made, entries={k: replace(e, facts=Facts(flows[k])) for k, e in made.entries.items()})


def test_a_list_beside_one_that_is_counted_from_opposite_ends_is_a_guess() -> None:
    """Lateral layers of a pyramid, whose sizes show it, and the smoothing ones, which are all alike."""
    laterals = {n: (8, 4 + n, 1, 1) for n in range(3)}
    target = {f"stages.{n}.weight": (4 + n, 4 + n - 1, 3, 3) for n in range(3)}
    source = {f"layer{n + 1}.weight": shape for n, shape in enumerate(target.values())}
    target |= {f"lateral.{n}.weight": shape for n, shape in laterals.items()}
    target |= {f"output.{n}.weight": (8, 8, 3, 3) for n in range(3)}
    source |= {f"smooth{n + 1}.weight": (8, 8, 3, 3) for n in range(3)}
    source |= {f"lat{n + 1}.weight": laterals[2 - n] for n in range(3)}
    entries = {entry.target: entry for entry in port(signature(source), wanted(target, used=target)).entries}
    assert str(entries["lateral.0.weight"].expr) == "lat3.weight"
    assert {entries[f"stages.{n}.weight"].status for n in range(3)} == {"mapped"}
    assert {entries[f"output.{n}.weight"].status for n in (0, 2)} == {"guessed"}


def test_a_list_is_counted_as_the_one_beside_it_also_if_a_further_layer_has_its_sizes() -> None:
    """Smoothing layers of a pyramid, which a coarser level has as well, beside lateral ones, whose sizes show it."""
    laterals = {n: (8, 4 + n, 1, 1) for n in range(3)}
    target = {f"pyramid.lateral{n + 3}.weight": laterals[n] for n in (2, 1, 0)}
    target |= {f"pyramid.smooth{n}.weight": (8, 8, 3, 3) for n in (3, 4, 5)} | {"pyramid.extra6.weight": (8, 8, 3, 3)}
    source = {f"fpn.lat_layers.{n}.weight": laterals[2 - n] for n in range(3)}
    source |= {f"fpn.pred_layers.{n}.weight": (8, 8, 3, 3) for n in range(3)}
    source |= {"fpn.downsample_layers.0.weight": (8, 8, 3, 3)}
    mapping = port(signature(source), wanted(target, used=target))
    held = {f"pyramid.smooth{n + 3}.weight": f"fpn.pred_layers.{2 - n}.weight" for n in range(3)}
    assert pairing(mapping).items() >= held.items()
    assert {"pyramid.smooth3.weight", "pyramid.smooth5.weight"} <= {e.target for e in mapping.having("guessed")}
    assert mapping["pyramid.extra6.weight"].sources == ["fpn.downsample_layers.0.weight"]
