"""Layers that share their weights in the source, and have their own in the model."""

from __future__ import annotations

import pytest
from sides import found, pairing, signature, wanted

from ckptool.porting.port import port

Shapes = dict[str, tuple[int, ...]]

#: A layer as the source names it -> as the model does: two norms and four squares that only their names tell apart.
NAMES = {
    "attention.query": "query",
    "attention.key": "key",
    "attention.value": "value",
    "attention.dense": "out",
    "attention.LayerNorm": "attention_norm",
    "ffn": "intermediate",
    "ffn_output": "output",
    "full_layer_layer_norm": "output_norm",
}


def layer(prefix: str, names: list[str], width: int = 8) -> Shapes:
    sizes = {"ffn": (2 * width, width), "intermediate": (2 * width, width)}
    sizes |= {"ffn_output": (width, 2 * width), "output": (width, 2 * width)}
    found: Shapes = {}
    for name in names:
        weight = (width,) if "norm" in name.lower() else sizes.get(name, (width, width))
        found |= {f"{prefix}.{name}.weight": weight, f"{prefix}.{name}.bias": weight[:1]}
    return found


@pytest.mark.parametrize("depth", [2, 3])
def test_every_layer_of_the_model_gets_the_one_that_the_source_has(depth: int) -> None:
    source = {"embed.weight": (30, 8)} | layer("encoder.group.0.inner.0", list(NAMES)) | {"pooler.weight": (8, 8)}
    target: Shapes = {"embed.weight": (30, 8)}
    for n in range(depth):
        target |= layer(f"layers.{n}", list(NAMES.values()))
    target["pooler.weight"] = (8, 8)
    mapping = port(signature(source), wanted(target, used=target))
    for old, new in NAMES.items():
        for leaf in ("weight", "bias"):
            first = found(mapping, f"layers.0.{new}.{leaf}")
            assert (first.status, str(first.expr)) == ("mapped", f"encoder.group.0.inner.0.{old}.{leaf}")
            for n in range(1, depth):
                entry = found(mapping, f"layers.{n}.{new}.{leaf}")
                assert (entry.status, str(entry.expr)) == ("guessed", str(first.expr))
                assert "the source has one layer for all of" in str(entry.doubts[0])
    assert mapping.unused == ()


def test_two_towers_get_each_the_layer_of_their_own() -> None:
    names = list(NAMES.values())
    source = layer("encoder.shared", names) | layer("decoder.shared", names, width=12)
    target: Shapes = {}
    for tower, width in (("encoder", 8), ("decoder", 12)):
        for n in range(2):
            target |= layer(f"{tower}.layers.{n}", names, width)
    mapping = pairing(port(signature(source), wanted(target, used=target)))
    assert mapping == {key: key.replace("layers.0", "shared").replace("layers.1", "shared") for key in target}


def test_a_deeper_model_than_the_source_is_none_that_shares_its_layers() -> None:
    names = list(NAMES.values())
    source = {key: size for n in range(2) for key, size in layer(f"layers.{n}", names).items()}
    target = {key: size for n in range(3) for key, size in layer(f"layers.{n}", names).items()}
    mapping = port(signature(source), wanted(target, used=target))
    assert pairing(mapping) == {key: key for key in source}
    assert {e.target for e in mapping.having("unmapped")} == set(target) - set(source)


@pytest.mark.parametrize(
    ("kept", "of", "renamed"),
    [
        (("left.0", "left.1", "right.1"), "two lists", False),
        (("left.0", "left.1", "right.1"), "two lists", True),
        (("left.1",), "one list", False),
    ],
)
def test_blocks_that_are_missing_of_a_list_do_not_shift_the_others(
    kept: tuple[str, ...], of: str, renamed: bool
) -> None:
    names = list(NAMES.values())
    target: Shapes = {"embed.weight": (30, 8)}
    for block in ("left.0", "left.1", "right.0", "right.1") if of == "two lists" else ("left.0", "left.1"):
        target |= layer(block, names)
    source: Shapes = {"embed.weight": (30, 8)}
    for block in kept:
        source |= layer(block.replace("left", "first").replace("right", "second") if renamed else block, names)
    mapping = port(signature(source), wanted(target, used=target))
    for entry in mapping.having("mapped"):
        own = str(entry.expr).replace("first", "left").replace("second", "right")
        assert own == entry.target
