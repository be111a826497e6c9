"""What the two sides hold in another form: buffers, masks, lists, concatenations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from sides import pairing, signature, wanted

from ckptool.porting.port import port
from ckptool.signature import Entry, Signature

Shapes = Mapping[str, tuple[int, ...]]


def with_buffers(target: Signature, *, kinds: Mapping[str, str]) -> Signature:
    """The same, in which some keys are buffers of a type."""
    entries = {
        key: Entry(key, e.shape, kinds[key], parameter=False, used=e.used) if key in kinds else e
        for key, e in target.entries.items()
    }
    return Signature(target.name, entries, traced=target.traced)


CODEBOOKS: Shapes = {
    "encoder.weight": (16, 8),
    **{f"vq.{n}._codebook.{leaf}": shape for n in (0, 1) for leaf, shape in {"embed": (32, 16), "hits": (32,)}.items()},
}


def test_buffers_that_were_learned_are_ported_under_other_names() -> None:
    shapes = {key.replace("vq.", "quantizer.").replace("_codebook", "book"): s for key, s in CODEBOOKS.items()}
    target = with_buffers(wanted(shapes), kinds={key: "float32" for key in shapes if "book" in key})
    mapping = port(signature(CODEBOOKS), target)
    assert pairing(mapping) == dict(zip(shapes, CODEBOOKS, strict=True))


def test_a_buffer_is_not_called_computed_while_something_that_fits_goes_nowhere() -> None:
    target = with_buffers(wanted({"encoder.weight": (16, 8), "scan": (32, 16)}), kinds={"scan": "float32"})
    source = signature({"encoder.weight": (16, 8), "a.left": (16, 32), "a.right": (16, 32)})
    entry = next(e for e in port(source, target).entries if e.target == "scan")
    assert entry.status == "unmapped"
    assert "a.left" in entry.doubts[0]


def test_a_buffer_of_indices_is_computed_whatever_floats_are_left_over() -> None:
    target = with_buffers(wanted({"encoder.weight": (16, 8), "positions": (16,)}), kinds={"positions": "int64"})
    mapping = port(signature({"encoder.weight": (16, 8), "left.over": (16,)}), target)
    entry = next(e for e in mapping.entries if e.target == "positions")
    assert entry.default
    assert mapping.is_sure


def test_matrices_with_the_inputs_first_on_both_sides_are_copied() -> None:
    """A model whose forward pass could not be followed: the biases say how its matrices stand."""
    shapes = {"up.weight": (8, 32), "up.bias": (32,), "down.weight": (32, 8), "down.bias": (8,)}
    shapes |= {f"{n}.mix.{leaf}": s for n in (0, 1) for leaf, s in {"weight": (8, 8), "bias": (8,)}.items()}
    source = {f"h.{key}": shape for key, shape in shapes.items()}
    target = replace(wanted(shapes, used=[]), traced=False)
    assert pairing(port(signature(source), target)) == dict(zip(shapes, source, strict=True))
