"""How MLX quantised a weight: bits, columns of a group and mode, by `config.json` or by widths (see `mlx_weights`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: Mode without biases -> bits, columns of a group.
MODES = {"mxfp4": (4, 32), "nvfp4": (4, 16), "mxfp8": (8, 32)}
BITS, _GROUPS = (2, 3, 4, 5, 6, 8), (32, 64, 128)


def settings_of(
    config: Mapping[str, Any], module: str, words: int, groups: int, plain: bool
) -> tuple[int, int, str] | None:
    """Bits, columns of a group and mode of the weight of a MODULE, as CONFIG says, or else as its width tells.

    Args:
        config: the `quantization` of `config.json`.
        module: name of the weight's module.
        words: uint32 of a row.
        groups: scales of a row.
        plain: the scales have biases beside them.
    """
    own = config.get(module)
    said = {**config, **own} if isinstance(own, dict) else config
    bits, group, mode = said.get("bits"), said.get("group_size"), said.get("mode", "affine")
    if type(bits) is int and type(group) is int and isinstance(mode, str):
        return (bits, group, mode) if words * 32 == groups * group * bits else None
    if not groups or words * 32 % groups:
        return None
    width = words * 32 // groups
    if plain:
        found = [(b, g, "affine") for b in BITS for g in _GROUPS if b * g == width]
    else:
        found = [(b, g, mode) for mode, (b, g) in MODES.items() if b * g == width]
    return found[0] if len(found) == 1 else None
