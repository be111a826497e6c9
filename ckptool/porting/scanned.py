"""Layers that a framework scans over: every tensor of a block holds that of all layers, along one dimension."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from math import prod

from . import expression as ex
from .pieces import Canon, Piece, unchanged
from .stacked import numbered_lists

#: Tensors that a block has at least; two that begin with the same size may do so by chance.
_FEWEST = 3


def divide_layers(source: Canon, target: Canon) -> None:
    """Take blocks of the source apart of which every tensor holds those of all layers, where the target has them apart.

    Before anything is said of how a tensor is laid out: what is a matrix for each layer looks like one convolution.
    """
    lists = {n: {prod(shape) for shape in shapes} for n, shapes in numbered_lists(target).items()}
    below: dict[tuple[str, ...], list[Piece]] = defaultdict(list)
    for piece in source.pieces.values():
        for depth in range(len(piece.path)):
            below[piece.path[:depth]].append(piece)
    done: list[tuple[str, ...]] = []
    for head, pieces in sorted(below.items(), key=lambda item: len(item[0])):
        if len(pieces) < _FEWEST or any(head[: len(outer)] == outer for outer in done):
            continue
        for dim in (0, 1):
            sizes = {p.shape[dim] if len(p.shape) > dim else 1 for p in pieces}
            n = sizes.pop() if len(sizes) == 1 else 1
            if n > 1 and n in lists and _holds_layers(pieces, dim, lists[n]):
                _divide(source, head, pieces, dim, n)
                done.append(head)
                break


def _holds_layers(pieces: Sequence[Piece], dim: int, inside: set[int]) -> bool:
    """Whether what pieces hold of one layer is what the members of a list do: vectors too, most of all, in size."""
    each = [prod(p.shape) // p.shape[dim] for p in pieces]
    fitting = [any(n == size or n == 2 * size or n == 3 * size or 2 * n == size for n in inside) for size in each]
    vectors = [fits for p, fits in zip(pieces, fitting, strict=True) if len(p.shape) == 2]
    return bool(vectors) and all(vectors) and sum(fitting) >= 0.7 * len(pieces)


def _divide(source: Canon, head: tuple[str, ...], pieces: Sequence[Piece], dim: int, n: int) -> None:
    ordered = sorted(pieces, key=lambda p: p.order)
    first = ordered[0].order
    for place, piece in enumerate(ordered):
        new = [
            (
                replace(
                    piece,
                    path=(*head, str(layer), *piece.path[len(head) :]),
                    shape=(*piece.shape[:dim], *piece.shape[dim + 1 :]),
                    order=first + (layer * len(ordered) + place) * 1e-6,
                ),
                partial(ex.select, dim=dim, index=layer),
            )
            for layer in range(n)
        ]
        source.become(piece, new, unchanged)
