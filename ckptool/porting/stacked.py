"""Tensors that hold a list of layers or experts along their first dimension."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from . import expression as ex
from .expression import Expr, Shape
from .fused import fused_kind
from .pieces import Canon, Piece, squeezed


def unstack(one: Canon, other: Canon) -> None:
    """Take apart tensors that hold a list of layers or experts, where the other side has such a list."""
    lists = _lists(other)
    if not lists:
        return
    theirs = Counter(squeezed(p.shape) for p in other.pieces.values())
    own = Counter(squeezed(p.shape) for p in one.pieces.values())
    groups: dict[tuple[tuple[str, ...], int], list[Piece]] = defaultdict(list)
    for piece in one.pieces.values():
        if (
            len(piece.shape) >= 2
            and piece.shape[0] in lists
            and theirs[squeezed(piece.shape)] < own[squeezed(piece.shape)]
        ):
            groups[(piece.path[:-1], piece.shape[0])].append(piece)
    for (_, n), members in groups.items():
        inside = lists[n]
        fitting = [p for p in members if _fits_inside(p, inside)]
        big = [p for p in fitting if len(p.shape) >= 3]
        if not big:
            continue
        first = min(fitting, key=lambda p: p.order)
        for place, piece in enumerate(sorted(fitting, key=lambda p: p.order)):
            _unstacked(one, piece, n, first, place, len(fitting))


def _fits_inside(piece: Piece, inside: set[Shape]) -> bool:
    """Whether what one element of a stacked tensor holds is in the members of a list: as it is, turned, or in parts."""
    shape = piece.shape[1:]
    if squeezed(shape) in inside or (len(shape) == 2 and shape[::-1] in inside):
        return True
    kind = fused_kind(piece)
    return kind is not None and shape[0] % len(kind.parts) == 0 and (shape[0] // len(kind.parts), *shape[1:]) in inside


def _lists(canon: Canon) -> dict[int, set[Shape]]:
    """Numbered lists of equal members: length -> shapes that their members hold."""
    members: dict[tuple[tuple[str, ...], tuple[str, ...]], dict[int, Shape]] = defaultdict(dict)
    for piece in canon.pieces.values():
        for at, component in enumerate(piece.path):
            if component.isdigit():
                members[(piece.path[:at], (*piece.path[at + 1 :], piece.role))][int(component)] = piece.shape
    found: dict[int, set[Shape]] = defaultdict(set)
    for shapes in members.values():
        if len(shapes) > 1 and len(set(shapes.values())) == 1:
            found[len(shapes)].add(squeezed(next(iter(shapes.values()))))
    return found


def _unstacked(canon: Canon, piece: Piece, n: int, first: Piece, place: int, of: int) -> None:
    """Take apart one tensor of a list, so that its parts stand layer by layer among those of the others."""
    new: list[tuple[Piece, Callable[[Expr], Expr]]] = []
    cut_at = len(piece.path) - 1
    for i in range(n):
        made = replace(
            piece,
            path=(*piece.path[:cut_at], str(i), *piece.path[cut_at:]),
            shape=piece.shape[1:],
            order=first.order + (i * of + place) * 1e-6,
            used=None if piece.used is None or first.used is None else first.used + (i * of + place) * 1e-6,
        )
        new.append((made, partial(ex.select, dim=0, index=i)))
    canon.become(piece, new, lambda *e: ex.stack(*e))
