"""Join the layers of modules that are equal in names and sizes, if the other side has one layer for all of them.

A block of a diffusion transformer has shift, scale and gate for its attention and for its feed-forward part. Code
computes the six in one layer, or in two modules of three layers.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

from ...expression import Shape
from ...matching.units import block_of
from ..pieces import Canon, Piece, squeezed
from .families import Family, join_family
from .join import Join, SizeCounts
from .shift_scale_gate import gives_shift_first, shift_first

_Path = tuple[str, ...]


def join_twins(one: Canon, other: Canon) -> None:
    """Join the layers of modules of ONE that are equal in names and sizes within a numbered block, if OTHER has as many
    more layers that join all of them as there are such blocks.

    Each of the modules holds two or more layers, all of one size, of which OTHER has fewer. The order of the layers is
    a question, unless they are shift, scale and gate by name, and the names of all joined layers of OTHER say that they
    give the shift first.
    """
    sizes = SizeCounts(one, other)
    blocks: dict[_Path, dict[str, dict[_Path, Piece]]] = defaultdict(lambda: defaultdict(dict))
    for piece in one.pieces.values():
        at = len(block_of(piece.path))
        if 0 < at < len(piece.path) - 1 and piece.role == "weight" and len(piece.shape) > 1:
            blocks[piece.path[:at]][piece.path[at]][piece.path[at + 1 :]] = piece
    plans: dict[Shape, list[tuple[_Path, Family, Join]]] = defaultdict(list)
    for block, modules in blocks.items():
        twins: dict[tuple[tuple[_Path, Shape], ...], list[dict[_Path, Piece]]] = defaultdict(list)
        for held in modules.values():
            twins[tuple((path, piece.shape) for path, piece in sorted(held.items()))].append(held)
        for look, alike in twins.items():
            shapes = {shape for _, shape in look}
            if len(alike) < 2 or len(look) < 2 or len(shapes) > 1 or sizes.wanted(look[0][1]) >= 0:
                continue
            rows = [sorted(held.values(), key=lambda p: p.order) for held in alike]
            named = [shift_first(row) for row in rows]
            known = None not in named and all(a[0].order < b[0].order for a, b in pairwise(rows))
            parts = tuple(piece for row in (named if known else rows) for piece in row or ())
            join = Join((parts[0].shape[0],) * len(parts), 0)
            whole = squeezed(join.shape(parts[0].shape))
            numbered = known and all(
                map(gives_shift_first, (p for p in other.pieces.values() if squeezed(p.shape) == whole))
            )
            plans[whole].append((block, Family(parts, (), numbered=numbered), join))
    for whole, found in plans.items():
        if len(found) == sizes.wanted(whole):
            for block, family, join in found:
                join_family(one, block, family, join)
