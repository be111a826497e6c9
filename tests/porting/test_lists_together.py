"""Lists that the source registers one after the other, and runs from their end, or together."""

from __future__ import annotations

from sides import pairing, signature, wanted

from ckptool.porting.port import port

Shape = tuple[int, ...]


def layers(shapes: dict[str, Shape]) -> dict[str, Shape]:
    return {
        f"{name}.{leaf}": s for name, shape in shapes.items() for leaf, s in (("weight", shape), ("bias", shape[:1]))
    }


def test_levels_of_a_decoder_that_stand_first_in_the_file_and_run_last_keep_their_blocks_together() -> None:
    """The coarsest level has attention, and the finest another width. So a block between two with attention is of the
    coarsest level, though the file has two levels of its sizes, and lists the other one first.
    """
    truth: dict[str, str] = {}
    sizes: dict[str, Shape] = {}
    place = 0
    for level in (2, 1, 0):
        i, o = (32, 16) if level == 0 else (32, 32)
        for block in range(2):
            inside = {"norm1": (i,), "conv1": (o, i, 3, 3), "norm2": (o,), "conv2": (o, o, 3, 3)}
            inside |= {"nin_shortcut": (o, i, 1, 1)} if i != o else {}
            for n, (name, shape) in enumerate(inside.items()):
                own = f"decoder.{place}.body.{n}" if n < 4 else f"decoder.{place}.skip"
                truth[own], sizes[own] = f"decoder.up.{level}.block.{block}.{name}", shape
            place += 1
            i = o
            for name, shape in (
                {"norm": (32,), "q": (32, 32, 1, 1), "out": (32, 32, 1, 1)}.items() if level == 2 else ()
            ):
                own = f"decoder.{place}.{name}"
                truth[own], sizes[own] = f"decoder.up.2.attn.{block}.{name}", shape
            place += level == 2
        if level:
            own = f"decoder.{place}.conv"
            truth[own], sizes[own] = f"decoder.up.{level}.upsample.conv", (32, 32, 3, 3)
            place += 1
    source = {truth[own]: sizes[own] for own in sizes}
    source = {key: source[key] for key in sorted(source, key=lambda key: key.split(".")[2])}
    found = pairing(port(signature(layers(source)), wanted(layers(sizes), used=layers(sizes))))
    assert found == {f"{own}.{leaf}": f"{key}.{leaf}" for own, key in truth.items() for leaf in ("weight", "bias")}


def test_two_lists_that_may_run_together_are_a_guess() -> None:
    """`convs1.0`, `convs2.0`, `convs1.1`, `convs2.1`, or one list after the other: the file has no order of calls."""
    source = {
        f"resblocks.{block}.convs{n}.{at}": (8, 8, 3 + 4 * block) for block in (0, 1) for n in (1, 2) for at in (0, 1)
    }
    target = {
        f"branches.{block}.{at}.{name}": (8, 8, 3 + 4 * block)
        for block in (0, 1)
        for at in (0, 1)
        for name in ("dilated", "conv")
    }
    source, target = {"pre": (8, 4, 7)} | source, {"inp": (8, 4, 7)} | target
    mapping = port(signature(layers(source)), wanted(layers(target), used=layers(target)))
    asked = {entry.target for entry in mapping.entries if entry.status == "guessed"}
    assert asked == {key for key in layers(target) if ".0.conv." in key or ".1.dilated." in key}  # which would change
