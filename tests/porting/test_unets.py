"""The UNet of Stable Diffusion, whose blocks differ in what else is in them: an attention, a sampler, neither."""

from __future__ import annotations

from collections.abc import Iterator

from sides import pairing, signature, wanted

from ckptool.porting.port import port

Shape = tuple[int, ...]


def residual(i: int, o: int) -> Iterator[tuple[str, str, Shape]]:
    """(name in diffusers, name in the original code, sizes) of the layers of a block from I to O channels."""
    yield from (("norm1", "in_layers.0", (i,)), ("conv1", "in_layers.2", (o, i, 3, 3)))
    yield from (("time_emb_proj", "emb_layers.1", (o, 8)), ("norm2", "out_layers.0", (o,)))
    yield "conv2", "out_layers.3", (o, o, 3, 3)
    if i != o:
        yield "conv_shortcut", "skip_connection", (o, i, 1, 1)


def attention(o: int) -> Iterator[tuple[str, str, Shape]]:
    """The same of an attention."""
    yield from ((name, name, sizes) for name, sizes in (("norm", (o,)), ("proj_in", (o, o)), ("to_q", (o, o))))


class UNet:
    """Keys and sizes of both codes, and which key is which."""

    def __init__(self, widths: tuple[int, ...], attends: tuple[bool, ...]) -> None:
        self.source: dict[str, Shape] = {}
        self.target: dict[str, Shape] = {}
        self.truth: dict[str, str] = {}
        own, block, channels, skips = [], 0, widths[0], [widths[0]]
        self._put("conv_in", "input_blocks.0.0", (widths[0], 4, 3, 3))
        for level, width in enumerate(widths):
            own.append(("down_blocks", level, width, attends[level], 2, level < len(widths) - 1))
        for part, level in enumerate(reversed(range(len(widths)))):
            own.append(("up_blocks", part, widths[level], attends[level], 3, level > 0))
        for kind, part, width, attending, count, sampled in own:
            down = kind == "down_blocks"
            theirs, block = ("input_blocks", block or 1) if down else ("output_blocks", 0 if part == 0 else block)
            for at in range(count if attending else 0):
                for name, other, sizes in attention(width):
                    self._put(f"{kind}.{part}.attentions.{at}.{name}", f"{theirs}.{block + at}.1.{other}", sizes)
            for at in range(count):
                inside = channels if down else channels + skips.pop()
                for name, other, sizes in residual(inside, width):
                    self._put(f"{kind}.{part}.resnets.{at}.{name}", f"{theirs}.{block + at}.0.{other}", sizes)
                channels = width
                skips += [width] if down else []
            block += count
            if sampled and down:
                self._put(f"{kind}.{part}.downsamplers.0.conv", f"{theirs}.{block}.0.op", (width, width, 3, 3))
                skips.append(width)
                block += 1
            elif sampled:
                at = f"{theirs}.{block - 1}.{1 + attending}"
                self._put(f"{kind}.{part}.upsamplers.0.conv", f"{at}.conv", (width, width, 3, 3))

    def _put(self, own: str, theirs: str, sizes: Shape) -> None:
        for leaf, shape in (("weight", sizes), ("bias", sizes[:1])):
            self.target[f"{own}.{leaf}"], self.source[f"{theirs}.{leaf}"] = shape, shape
            self.truth[f"{own}.{leaf}"] = f"{theirs}.{leaf}"

    def in_order(self) -> dict[str, Shape]:
        """The keys of the source as the original code registers them: block by block."""

        def place(key: str) -> tuple[bool, int]:
            part, number, *_ = key.split(".")
            return part == "output_blocks", int(number)

        return {key: self.source[key] for key in sorted(self.source, key=place)}


def test_as_many_blocks_with_an_attention_as_other_blocks_of_their_sizes_are_not_taken_for_them() -> None:
    """Two of five blocks of one size have an attention in the original code. In diffusers all five are members of lists
    of blocks, two of them the first of a list, so the two were exchanged with the first ones.
    """
    unet = UNet((16, 32, 32), (True, True, False))
    assert pairing(port(signature(unet.in_order()), wanted(unet.target))) == unet.truth
