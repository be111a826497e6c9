"""Buffers that code computes, and that tools leave beside layers: filled or dropped, with nobody's code at hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sides import found, pairing, signature, wanted

from ckptool.porting.forms.canonical import canonical
from ckptool.porting.matching.units import units_of
from ckptool.porting.port import port

LAYERS = {"embed": (20, 8), "blocks.{}.attn.qkv": (24, 8), "blocks.{}.attn.out": (8, 8), "blocks.{}.fc": (16, 8)}

#: Buffer -> its sizes, and whether code has one for the model or one for each attention.
BUFFERS = {
    "position_ids": ((1, 16), False),
    "relative_position_index": ((16, 16), True),
    "inv_freq": ((4,), True),
    "attn_mask": ((4, 4), True),
    "causal_mask": ((1, 1, 16, 16), True),
    "tril": ((8, 8), True),
    "total_ops": ((1,), True),
    "total_params": ((1,), True),
}


def layers(*, renamed: bool = False) -> dict[str, tuple[int, ...]]:
    made = {
        f"{name.format(n)}.weight": shape for name, shape in LAYERS.items() for n in (range(3) if "{" in name else [0])
    }
    if not renamed:
        return made
    return {key.replace("blocks", "layers").replace("attn.out", "attn.proj"): shape for key, shape in made.items()}


def buffers(name: str, blocks: str) -> dict[str, tuple[int, ...]]:
    shape, each = BUFFERS[name]
    return {f"{blocks}.{n}.attn.{name}": shape for n in range(3)} if each else {name: shape}


def with_buffers(shapes: dict[str, tuple[int, ...]], more: dict[str, tuple[int, ...]]) -> object:
    target = wanted({**shapes, **more})
    entries = {key: replace(e, parameter=key in shapes) for key, e in target.entries.items()}
    return replace(target, entries=entries)


@pytest.mark.parametrize("name", BUFFERS)
@pytest.mark.parametrize("renamed", [False, True])
def test_buffers_that_only_the_source_has_are_dropped_and_make_no_layer_a_guess(name: str, renamed: bool) -> None:
    more = buffers(name, "blocks")
    mapping = port(signature({**layers(), **more}), wanted(layers(renamed=renamed)))
    assert {entry.status for entry in mapping.entries} == {"mapped"}
    assert set(mapping.unused) == more.keys()


@pytest.mark.parametrize("name", BUFFERS)
def test_buffers_that_only_the_model_has_need_no_source(name: str) -> None:
    more = buffers(name, "layers")
    mapping = port(signature(layers()), with_buffers(layers(renamed=True), more))
    assert {entry.status for entry in mapping.entries} == {"mapped"}
    assert all(found(mapping, key).default for key in more)


@pytest.mark.parametrize("name", BUFFERS)
def test_buffers_that_both_have_are_filled(name: str) -> None:
    own, theirs = buffers(name, "layers"), buffers(name, "blocks")
    mapping = port(signature({**layers(), **theirs}), with_buffers(layers(renamed=True), own))
    assert {entry.status for entry in mapping.entries} == {"mapped"}
    assert {key: pairing(mapping).get(key) for key in own} == dict(zip(own, theirs, strict=True))


@pytest.mark.parametrize("name", [name for name, (_, each) in BUFFERS.items() if each])
def test_a_buffer_that_tools_leave_in_every_module_is_dropped_everywhere(name: str) -> None:
    shape, _ = BUFFERS[name]
    modules = {key.rpartition(".")[0] for key in layers()}
    around = {f"{parts}.{name}": shape for key in modules for parts in (key, key.rpartition(".")[0] or key)}
    mapping = port(signature({**layers(), **around}), wanted(layers(renamed=True)))
    assert {entry.status for entry in mapping.entries} == {"mapped"}


def test_masks_do_not_keep_heads_with_a_layer_each_from_a_fused_projection() -> None:
    """As in the lecture that many learn GPT from: a module for each head, with a mask of the sizes of all queries."""
    parts = ("key", "query", "value")
    source = {f"blocks.{n}.heads.{h}.{part}.weight": (4, 16) for n in range(2) for h in range(4) for part in parts}
    masks = {f"blocks.{n}.heads.{h}.tril": (16, 16) for n in range(2) for h in range(4)}
    target = {f"h.{n}.attn.c_attn.weight": (48, 16) for n in range(2)}
    mapping = port(signature({**masks, **source}), wanted(target))
    assert {entry.status for entry in mapping.entries} == {"mapped"}
    assert set(mapping.unused) == masks.keys()


@pytest.mark.parametrize(
    ("theirs", "own", "shape"),
    [
        ("map_noise.freqs", "time_proj.weight", (64,)),
        ("codebook.cluster_size", "quantizer.n", (32,)),
        ("rope.freqs", "rotary.theta", (16,)),
        ("enc.mask", "enc.mask_token", (1, 1, 24)),
        ("norm.epsilon", "norm.eps", (1,)),
    ],
)
def test_what_some_models_compute_and_others_learn_is_taken_under_another_name(
    theirs: str, own: str, shape: tuple[int, ...]
) -> None:
    mapping = port(signature({theirs: shape, **layers()}), wanted({own: shape, **layers(renamed=True)}))
    assert pairing(mapping)[own] == theirs


@pytest.mark.parametrize("kind", ["int64", "int32", "bool"])
def test_whole_numbers_are_no_look_alikes_of_weights(kind: str) -> None:
    """A table of indices has the sizes of the layer beside it."""
    file = signature({"attn.lookup": (8, 8), "attn.proj.weight": (8, 8)})
    entries = {k: replace(entry, dtype=kind) if "lookup" in k else entry for k, entry in file.entries.items()}
    index, layer = units_of(canonical(replace(file, entries=entries), wanted({"att.out.weight": (8, 8)}))[0])
    assert index.colour != layer.colour
    mapping = port(replace(file, entries=entries), wanted({"att.out.weight": (8, 8)}))
    assert "attn.lookup" not in pairing(mapping).values()
