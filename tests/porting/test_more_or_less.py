"""A module less or more on either side: what stays is ported as it was, or in doubt."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sides import found, pairing, signature, wanted

from ckptool.porting.port import port

pytestmark = pytest.mark.same_without_torch

Shapes = dict[str, tuple[int, ...]]

#: As VGG16 is laid out, but for its sizes.
WIDTHS = ((8, 8), (12, 12), (16, 16, 16), (20, 20, 20), (20, 20, 20))


def by_number() -> Shapes:
    made: Shapes = {}
    before, at = 3, 0
    for widths in WIDTHS:
        for width in widths:
            made[f"features.{at}.weight"], made[f"features.{at}.bias"] = (width, before, 3, 3), (width,)
            before, at = width, at + 2
        at += 1
    made["classifier.0.weight"], made["classifier.3.weight"] = (30, 20 * 49), (10, 30)
    return made


def by_name() -> Shapes:
    names = [f"conv{b}_{n}.{leaf}" for b, ws in enumerate(WIDTHS, 1) for n in range(1, len(ws) + 1) for leaf in LEAVES]
    names += ["fc6.weight", "fc7.weight"]
    return dict(zip(names, by_number().values(), strict=True))


LEAVES = ("weight", "bias")


def residual() -> Shapes:
    made: Shapes = {"conv1.weight": (8, 3, 7, 7)}
    before = 8
    for stage, width in enumerate((8, 16, 24), 1):
        for block in range(2):
            base = f"layer{stage}.{block}"
            for place, into in ((1, before), (2, width)):
                made[f"{base}.conv{place}.weight"] = (width, into, 3, 3)
                made |= {f"{base}.bn{place}.{leaf}": (width,) for leaf in (*LEAVES, "running_mean", "running_var")}
            if into != before:
                made[f"{base}.downsample.0.weight"] = (width, before, 1, 1)
            before = width
    made["fc.weight"] = (10, 24)
    return made


def residual_elsewhere() -> Shapes:
    def name(key: str) -> str:
        for own, theirs in (("layer", "stage"), ("conv", "layers."), ("bn", "norms."), ("downsample.0", "side")):
            key = key.replace(own, theirs)
        return key

    return {name(key): shape for key, shape in residual().items()}


def without(shapes: Shapes, module: str) -> Shapes:
    return {key: shape for key, shape in shapes.items() if key.rpartition(".")[0] != module}


def modules(shapes: Shapes) -> list[str]:
    return list(dict.fromkeys(key.rpartition(".")[0] for key in shapes))


#: Of what is left, so much at least is still certain.
_CERTAIN = 0.3
SIDES = [(by_number, by_name), (residual, residual_elsewhere), (residual, residual)]


@pytest.mark.parametrize(("theirs", "ours"), SIDES)
@settings(max_examples=settings.default.max_examples // 4, deadline=None)
@given(data=st.data())
def test_without_a_module_of_either_side_what_is_certain_is_right(
    theirs: Callable[[], Shapes], ours: Callable[[], Shapes], data: st.DataObject
) -> None:
    source, target = theirs(), ours()
    truth = dict(zip(target, source, strict=True))
    gone = data.draw(st.sampled_from(modules(source)))
    for s, t in (
        (without(source, gone), target),
        (source, without(target, modules(target)[modules(source).index(gone)])),
    ):
        for used in (None, list(t)):
            mapping = port(signature(s), wanted(t, used=used))
            for entry in mapping.entries:
                if entry.status == "mapped" and not entry.default:
                    assert str(entry.expr) == truth[entry.target], gone
            assert sum(entry.status == "mapped" for entry in mapping.entries) >= _CERTAIN * len(mapping.entries), gone


@pytest.mark.parametrize("side", ["source", "target"])
@pytest.mark.parametrize(("theirs", "ours"), SIDES)
def test_a_prefix_of_either_side_changes_nothing(
    theirs: Callable[[], Shapes], ours: Callable[[], Shapes], side: str
) -> None:
    source, target = theirs(), ours()
    plain = port(signature(source), wanted(target, used=target))
    below = {f"wrapped.inner.{key}": shape for key, shape in (source if side == "source" else target).items()}
    moved = (
        port(signature(below), wanted(target, used=target))
        if side == "source"
        else port(signature(source), wanted(below, used=below))
    )
    assert [e.status for e in moved.entries] == [e.status for e in plain.entries]
    assert [str(e.expr).replace("wrapped.inner.", "") for e in moved.entries] == [str(e.expr) for e in plain.entries]


def test_where_one_side_has_a_layer_more_in_a_row_any_of_them_may_be_the_one_left_out() -> None:
    source, target = by_number(), without(by_name(), "conv4_2")
    mapping = port(signature(source), wanted(target, used=target))
    assert {e.status for e in mapping.entries if e.target.startswith(("conv4_3", "conv5"))} == {"guessed"}
    assert {e.status for e in mapping.entries if e.target.startswith(("conv1", "conv2", "fc"))} == {"mapped"}
    cut_off = {key: shape for key, shape in by_name().items() if not key.startswith(("conv5", "fc"))}
    kept = port(signature(source), wanted(cut_off, used=cut_off))
    assert {e.status for e in kept.entries} == {"mapped"}


def test_a_norm_in_another_place_is_no_replacement_for_one_that_the_file_lacks() -> None:
    source: Shapes = {}
    target: Shapes = {}
    for n in range(3):
        source |= {
            f"block.{n}.layer_norm.weight": (8,),
            f"block.{n}.wi.weight": (16, 8),
            f"block.{n}.wo.weight": (8, 16),
        }
        target |= {
            f"layers.{n}.norm1.weight": (8,),
            f"layers.{n}.up.weight": (16, 8),
            f"layers.{n}.down.weight": (8, 16),
        }
    source |= {"final_layer_norm.weight": (8,), "head.weight": (30, 8)}
    target |= {"norm.weight": (8,), "head.weight": (30, 8)}
    fewer = without(target, "layers.0.norm1")
    mapping = port(signature(source), wanted(fewer, used=fewer))
    last = found(mapping, "norm.weight")
    assert last.status != "mapped" or str(last.expr) == "final_layer_norm.weight"


def test_what_a_tower_of_text_holds_is_not_that_of_a_tower_of_images_below_equal_names() -> None:
    def tower(name: str) -> Shapes:
        return {f"{name}.embed.weight": (9, 8)} | {f"{name}.blocks.{n}.weight": (8, 8) for n in range(3)}

    source = tower("text") | without(tower("visual"), "visual.embed")
    target = tower("image_encoder")
    mapping = port(signature(source), wanted(target, used=target))
    assert not [e for e in mapping.entries if e.status == "mapped" and "text" in str(e.expr)]


def test_an_auxiliary_head_is_not_taken_for_the_main_one_for_certain() -> None:
    body: Shapes = {f"backbone.{n}.weight": (8, 8 + n, 3, 3) for n in range(6)}
    heads = {
        name: {f"{name}.0.weight": (4, 8, 3, 3), f"{name}.1.weight": (2, 4, 1, 1)} for name in ("head", "aux_head")
    }
    target = body | heads["head"]
    mapping = port(signature(body | heads["aux_head"]), wanted(target, used=target))
    assert "mapped" not in {found(mapping, key).status for key in heads["head"]}
    both = port(signature(body | heads["aux_head"] | heads["head"]), wanted(target, used=target))
    assert {e.status for e in both.entries} == {"mapped"}


@pytest.mark.parametrize("prefix", ["", "model."])
def test_a_new_norm_takes_none_of_a_tower_that_the_model_does_not_have(prefix: str) -> None:
    source: Shapes = {}
    for tower, inputs in (("text", 50), ("visual", 27)):
        source |= {f"{tower}.embed.weight": (8, inputs), f"{tower}.blocks.0.weight": (8, 8), f"{tower}.ln.weight": (8,)}
    target = {key.replace("visual", "image_encoder"): shape for key, shape in source.items() if "visual" in key}
    target |= {"neck.conv.weight": (5, 8), "neck.bn.weight": (8,)}
    source, target = ({prefix + key: shape for key, shape in side.items()} for side in (source, target))
    mapping = port(signature(source), wanted(target, used=target))
    assert found(mapping, f"{prefix}neck.bn.weight").status != "mapped"
    assert pairing(mapping)[f"{prefix}image_encoder.ln.weight"] == f"{prefix}visual.ln.weight"


def test_what_its_name_excludes_is_no_rival_that_was_left_without_a_source() -> None:
    source: Shapes = {"encoder.basis.weight": (24, 1, 8), "mask.weight": (7, 24), "decoder.signals.weight": (8, 24)}
    target: Shapes = {"analysis.weight": (24, 1, 8), "mask.weight": (7, 24), "synthesis.weight": (24, 1, 8)}
    mapping = port(signature(source), wanted(target, used=target))
    assert (found(mapping, "analysis.weight").status, str(found(mapping, "analysis.weight").expr)) == (
        "mapped",
        "encoder.basis.weight",
    )


@pytest.mark.parametrize("prefix", ["backbone.", "encoder."])
def test_a_new_head_takes_nothing_of_one_that_the_model_does_not_have(prefix: str) -> None:
    body: Shapes = {
        f"layer{n}.{leaf}": (8, 8 + n, 3, 3) if leaf == "weight" else (8,) for n in range(6) for leaf in LEAVES
    }
    head: Shapes = {
        "rpn.head.conv.weight": (8, 8, 1, 1),
        "rpn.head.conv.bias": (8,),
        "rpn.head.boxes.weight": (12, 8, 1, 1),
    }
    new: Shapes = {"keypoints.0.weight": (8, 8, 1, 1), "keypoints.0.bias": (8,), "keypoints.2.weight": (4, 8, 1, 1)}
    source = {f"backbone.{key}": shape for key, shape in body.items()} | head
    target = {prefix + key: shape for key, shape in body.items()} | new
    mapping = port(signature(source), wanted(target, used=target))
    assert {e.target for e in mapping.having("unmapped")} == set(new)
    assert {e.status for e in mapping.entries if e.target not in new} == {"mapped"}
