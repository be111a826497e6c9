"""Layers that a framework scans over: each tensor of a block holds all layers, along one dimension."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import prod

from .. import expression as ex
from .pieces import Canon, Piece, unchanged
from .stacked import counted

_Path = tuple[str, ...]

#: Tensors that a block has at least; two that begin with the same size may do so by chance.
_FEWEST = 3
#: How far the sizes of a block and of a layer may differ, as a share: some code has a bias or a scale more.
_NEARLY = 0.05


def divide_layers(source: Canon, target: Canon) -> None:
    """Split tensors of the source that each hold one weight of all layers, along the first or second dimension, into
    one tensor for each layer: `blocks.fc.kernel` [12, m, n] -> `blocks.0.fc.kernel` … [m, n].

    All tensors below a module, three or more, are split together, if the target has a list of so many layers with about
    these sizes (`_dimension`), and has none of these tensors itself, by name and sizes. Modules whose totals of
    elements fit exactly come first, then those whose totals differ by up to 5 percent; of both, outer modules come
    before inner ones. Nothing inside or around a module that was split is split again. This comes before the steps
    about layouts, because a stack of matrices has as many dimensions as a convolution.
    """
    lists: dict[int, list[list[int]]] = defaultdict(list)
    for n, sizes in _lists(target):
        lists[n].append(sizes)
    below: dict[_Path, list[Piece]] = defaultdict(list)
    for piece in source.pieces.values():
        for depth in range(len(piece.path)):
            below[piece.path[:depth]].append(piece)
    done: list[_Path] = []
    for tolerance in (0.0, _NEARLY):
        for head, pieces in sorted(below.items(), key=lambda item: len(item[0])):
            if len(pieces) < _FEWEST or any(head[: len(one)] == one or one[: len(head)] == head for one in done):
                continue
            dim = None if any(target.has(piece) for piece in pieces) else _dimension(pieces, lists, tolerance)
            if dim is not None:
                _divide(source, head, pieces, dim)
                done.append(head)


def _dimension(pieces: Sequence[Piece], lists: Mapping[int, Sequence[Sequence[int]]], tolerance: float) -> int | None:
    """Return the first dimension, 0 or 1, in which all PIECES are equally long, above 1, and hold a list of so many
    layers (`_holds`, with the share TOLERANCE); None if there is none. LISTS has number of members -> elements of each
    tensor in a member, for the lists of the target.
    """
    for dim in (0, 1):
        counts = {p.shape[dim] if len(p.shape) > dim else 1 for p in pieces}
        n = counts.pop() if len(counts) == 1 else 1
        if n > 1 and any(_holds(pieces, dim, inside, tolerance) for inside in lists.get(n, ())):
            return dim
    return None


def _lists(target: Canon) -> Iterator[tuple[int, list[int]]]:
    """Yield (number of members, [number of elements of each tensor in the first member]) for each numbered list of the
    target (`layers.0` or `layer_0`) with two or more members that all have the same total of elements.
    """
    found: dict[tuple[_Path, str], dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for piece in target.pieces.values():
        for at, component in enumerate(piece.path):
            number = counted(component)
            if number is not None:
                found[piece.path[:at], number[0]][number[1]].append(prod(piece.shape))
    for members in found.values():
        if len(members) > 1 and len({sum(sizes) for sizes in members.values()}) == 1:
            yield len(members), next(iter(members.values()))


def _holds(pieces: Sequence[Piece], dim: int, inside: Sequence[int], tolerance: float) -> bool:
    """Return whether PIECES, cut along dimension DIM, may be the layers of a list. INSIDE has the number of elements of
    each tensor in a member of this list. All of these have to be true:

      - The elements of one layer of PIECES differ from the sum of INSIDE by at most the share TOLERANCE of that sum.
      - At least one of PIECES holds a vector for each layer (it has two dimensions), and each of these fits a tensor of
        INSIDE (`_fits`).
      - At least 70 percent of all PIECES fit a tensor of INSIDE.
    """
    each = [prod(p.shape) // p.shape[dim] for p in pieces]
    if abs(sum(each) - sum(inside)) > tolerance * sum(inside):
        return False
    fitting = [_fits(size, inside) for size in each]
    vectors = [fits for p, fits in zip(pieces, fitting, strict=True) if len(p.shape) == 2]
    return bool(vectors) and all(vectors) and sum(fitting) >= 0.7 * len(pieces)


def _fits(size: int, inside: Iterable[int]) -> bool:
    """Return whether a tensor of SIZE elements may be one of the tensors with INSIDE elements, a half or third of one,
    or two or three that are equally large.
    """
    return any(n in (size, 2 * size, 3 * size) or size in (2 * n, 3 * n) for n in inside)


def _divide(source: Canon, head: _Path, pieces: Sequence[Piece], dim: int) -> None:
    """Split PIECES of SOURCE, all those below the module HEAD, along dimension DIM into the members of a list in HEAD.
    The tensors of a member come one after the other, in the order of PIECES.
    """
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
            for layer in range(piece.shape[dim])
        ]
        source.become(piece, new, unchanged)
