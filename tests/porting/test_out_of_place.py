"""A layer that is new in the model, and one of the file that is left over: equal sizes do not make them one."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace

import pytest
from effort import calls
from sides import signature, wanted

from ckptool.porting.holes.out_of_place import _crossed, _inverted
from ckptool.porting.port import port

Shapes = dict[str, tuple[int, ...]]

OWN = ("attn.query", "attn.value", "attn.output", "norm_one", "up", "down", "norm_two")
THEIRS = ("self.q", "self.v", "self.proj", "ln_1", "mlp.fc1", "mlp.fc2", "ln_2")


def blocks(head: str, names: tuple[str, ...], count: int = 3) -> Shapes:
    sizes = ((8, 8), (8, 8), (8, 8), (8,), (32, 8), (8, 32), (8,))
    made: Shapes = {}
    for n in range(count):
        for name, size in zip(names, sizes, strict=True):
            made[f"{head}.{n}.{name}.weight"], made[f"{head}.{n}.{name}.bias"] = size, size[:1]
    return made


def without(shapes: Shapes, module: str) -> Shapes:
    return {key: shape for key, shape in shapes.items() if not key.startswith(module + ".")}


TRUTH = dict(zip(blocks("layers", OWN), blocks("h", THEIRS), strict=True))


#: Each pair of layers at one of three pairs of blocks, and each layer at all of them.
PLACES = ((0, 1), (1, 0), (2, 0))


@pytest.mark.parametrize(
    ("here", "there", "lost", "left"),
    [(*PLACES[(i + j) % len(PLACES)], lost, left) for i, lost in enumerate(OWN) for j, left in enumerate(OWN)],
)
def test_what_is_left_over_in_another_block_is_not_taken(here: int, there: int, lost: str, left: str) -> None:
    """The file lacks LOST in block HERE, and the model LEFT in block THERE."""
    source = without(blocks("h", THEIRS), f"h.{here}.{THEIRS[OWN.index(lost)]}")
    target = without(blocks("layers", OWN), f"layers.{there}.{left}")
    mapping = port(signature(source), wanted(target))
    wrong = [e for e in mapping.having("mapped") if e.sources and e.sources != [TRUTH[e.target]]]
    assert wrong == [], [(e.target, str(e.expr), e.evidence) for e in wrong]


def test_blocks_that_are_whole_stay_certain() -> None:
    mapping = port(signature(blocks("h", THEIRS)), wanted(blocks("layers", OWN)))
    assert {e.target: e.sources for e in mapping.having("mapped")} == {own: [theirs] for own, theirs in TRUTH.items()}


def test_parts_that_list_the_blocks_are_certain_for_blocks_that_list_the_parts() -> None:
    """A 1 at the end of a name is no block, and the lists of the two sides are not the same lists."""
    source, target, truth = {}, {}, {}
    for n in range(3):
        for own, theirs, size in (
            ("layer_norm1.{}", "layers.{}.ln_before", (8,)),
            ("up.{}", "layers.{}.mlp.fc1", (32, 8)),
            ("down.{}", "layers.{}.mlp.fc2", (8, 32)),
            ("layer_norm2.{}", "layers.{}.ln_after", (8,)),
        ):
            for role, shape in (("weight", size), ("bias", size[:1])):
                source[f"{theirs.format(n)}.{role}"] = target[f"{own.format(n)}.{role}"] = shape
                truth[f"{own.format(n)}.{role}"] = [f"{theirs.format(n)}.{role}"]
    mapping = port(signature(source), wanted(target))
    assert {e.target: e.sources for e in mapping.having("mapped")} == truth


def test_a_block_that_lacks_its_first_layer_counts_from_another_number() -> None:
    """As in MobileNetV2: the first block does not expand, so that its last norm is layer 2 and not layer 3."""
    source, target, truth = {}, {}, {}
    for n in range(4):
        layers = (("expand", (48, 8)), ("middle", (48, 48)), ("project", (8, 48)), ("norm", (8,)))[int(n == 0) :]
        for number, (name, size) in enumerate(layers):
            own, theirs = f"stages.{n}.{name}.weight", f"features.{n + 1}.conv.{number}.weight"
            source[theirs] = target[own] = size
            truth[own] = [theirs]
    mapping = port(signature(source), wanted(target))
    assert {e.target: e.sources for e in mapping.having("mapped")} == truth


@pytest.mark.parametrize("order", [[2, 1, 0, 3], [3, 2, 1, 0], [0, 1, 3, 2]])
def test_only_blocks_that_change_places_are_asked_about(order: list[int]) -> None:
    """Each against each says which; one pass has to find the same."""
    best = list(enumerate(order))
    found = {i for (i, _), _ in _inverted(best, best)}
    assert found == {i for i, j in best for k, m in best if (i < k and j > m) or (i > k and j < m)}


def test_comparing_blocks_that_all_differ_costs_in_proportion_to_their_number():
    def cost(count):
        pieces = [{"weight": SimpleNamespace(shape=(number, number))} for number in range(count)]
        inside = {number: {"conv": (SimpleNamespace(pieces=held), None)} for number, held in enumerate(pieces)}
        votes = Counter({(number, count - number): 2 for number in range(count)})
        return calls(lambda: list(_crossed(inside, (None, "{}"), votes)))

    assert cost(400) < 12 * cost(40)
