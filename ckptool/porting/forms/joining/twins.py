"""Join the layers of modules that are equal in names and sizes, if the other side has one layer for all of them.

A block of a diffusion transformer has shift, scale and gate for its attention and for its feed-forward part. Code
computes the six in one layer, or in two modules of three layers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise

from ...expression import Shape
from ...matching.units import block_of
from ..pieces import Canon, Piece, squeezed
from .families import Family, join_family
from .join import Join, SizeCounts
from .shift_scale_gate import gives_shift_first, shift_first

_Path = tuple[str, ...]


def join_twins(one: Canon, other: Canon) -> None:
    """In each numbered block of ONE, join all layers of its twins into one layer: twins (`_twins`) are modules directly
    in the block that hold two or more layers each, all of one size, with equal names (`a.shift`, `a.scale`, `a.gate`
    and `b.shift`, `b.scale`, `b.gate` become one layer of six parts). OTHER has to have fewer tensors of the size of
    these layers than ONE, and more of the joined size, by exactly the number of joined layers of this size; else
    nothing is joined.

    The joined layer has the layers of the first module first. This order is a question, unless the layers of each
    module are shift, scale and gate by name, and the names of all tensors of OTHER with the joined size say that they
    give the shift first.
    """
    sizes = SizeCounts(one, other)
    plans: dict[Shape, list[tuple[_Path, Family, Join]]] = defaultdict(list)
    for block, modules in _layers_of_modules(one).items():
        for twins in _twins(modules.values(), sizes):
            family, join = _family_of(twins, other)
            plans[squeezed(join.shape(family.parts[0].shape))].append((block, family, join))
    for whole, found in plans.items():
        if len(found) == sizes.wanted(whole):
            for block, family, join in found:
                join_family(one, block, family, join)


def _layers_of_modules(one: Canon) -> dict[_Path, dict[str, dict[_Path, Piece]]]:
    """Return path of a numbered block of ONE -> name of a module directly in it -> path inside of that module -> weight
    of two or more dimensions there. The block is the innermost one around the weight. A layer that is directly in the
    block is no such module, and is left out, and so are weights outside of all blocks.
    """
    blocks: dict[_Path, dict[str, dict[_Path, Piece]]] = defaultdict(lambda: defaultdict(dict))
    for piece in one.pieces.values():
        at = len(block_of(piece.path))
        if 0 < at < len(piece.path) - 1 and piece.role == "weight" and len(piece.shape) > 1:
            blocks[piece.path[:at]][piece.path[at]][piece.path[at + 1 :]] = piece
    return blocks


def _twins(modules: Iterable[dict[_Path, Piece]], sizes: SizeCounts) -> list[list[list[Piece]]]:
    """Return each group of two or more of MODULES (path inside -> layer) that hold layers with the same paths inside
    and the same sizes, as a list of modules, each as a list of its layers in the order of the state dict. A module
    counts if it holds two or more layers, all of one size of which, by SIZES, the other side has fewer tensors.
    """
    alike: dict[tuple[tuple[_Path, Shape], ...], list[list[Piece]]] = defaultdict(list)
    for held in modules:
        look = tuple((path, piece.shape) for path, piece in sorted(held.items()))
        alike[look].append(sorted(held.values(), key=lambda p: p.order))
    return [
        rows
        for look, rows in alike.items()
        if len(rows) > 1 and len(look) > 1 and len({shape for _, shape in look}) == 1 and sizes.wanted(look[0][1]) < 0
    ]


def _family_of(rows: Sequence[Sequence[Piece]], other: Canon) -> tuple[Family, Join]:
    """Return (family of all layers in ROWS, the layers of equal modules, one module after the other; how to join them,
    by rows).

    If the layers of each module are shift, scale and gate by name, and the modules are registered in the order of ROWS,
    the layers of each module are put in the order shift, scale, gate. This order is certain (`numbered` of the family)
    if the names of all tensors of OTHER with the joined sizes surely say that they give the shift first. Else the
    layers stay in the order of ROWS, which is not certain.
    """
    named = [shift_first(row) for row in rows]
    known = None not in named and all(a[0].order < b[0].order for a, b in pairwise(rows))
    parts = tuple(piece for row in (named if known else rows) for piece in row or ())
    join = Join((parts[0].shape[0],) * len(parts), 0)
    whole = squeezed(join.shape(parts[0].shape))
    wholes = [p for p in other.pieces.values() if squeezed(p.shape) == whole]
    return Family(parts, (), numbered=known and all(map(gives_shift_first, wholes))), join
