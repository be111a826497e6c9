"""Tensors that hold a list of layers or experts along their first dimension."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from . import expression as ex
from .expression import Expr, Shape
from .fused import fused_kind
from .layouts import turn
from .pieces import Canon, Piece, squeezed
from .words import cut, table, telling_words


def unstack(one: Canon, other: Canon) -> None:
    """Take apart tensors that hold a list of layers or experts, where the other side has such a list."""
    lists = _lists(other)
    if not lists:
        return
    _stand_up(one, other)
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
    turned = {key: _turned(members, lists[key[1]]) for key, members in groups.items()}
    everywhere: Counter[bool] = sum(turned.values(), Counter())
    for (path, n), members in groups.items():
        inside = lists[n]
        fitting = [p for p in members if _fits_inside(p, inside)]
        big = [p for p in fitting if len(p.shape) >= 3]
        if not big:
            continue
        first = min(fitting, key=lambda p: p.order)
        for place, piece in enumerate(sorted(fitting, key=lambda p: p.order)):
            if len(piece.shape) == 3:
                piece = _laid_out(one, piece, inside, turned[path, n] or everywhere)
            _unstacked(one, piece, n, first, place, len(fitting))


def _stand_up(one: Canon, other: Canon) -> None:
    """See matrices that hold those of all experts below each other, [experts * rows, columns], as a stack of them."""
    theirs = Counter(squeezed(p.shape) for p in other.pieces.values())
    inside = _lists(other, of=table().experts)
    for piece in list(one.pieces.values()):
        if len(piece.shape) != 2 or theirs[piece.shape] or not table().experts & set(piece.words):
            continue
        for n, shapes in inside.items():
            rows, columns = piece.shape[0] // n, piece.shape[1]
            if piece.shape[0] == n * rows and {(rows, columns), (columns, rows)} & shapes:
                shape = (n, rows, columns)
                flat = partial(ex.reshape, shape=piece.shape)
                one.become(piece, [(replace(piece, shape=shape), partial(ex.reshape, shape=shape))], flat)
                break


def _turned(members: list[Piece], inside: set[Shape]) -> Counter[bool]:
    """How many of the matrices in a stack have to be turned to fit a list of matrices, where their sizes tell."""
    ways = [(p.shape[1:] in inside, p.shape[:0:-1] in inside) for p in members if len(p.shape) == 3]
    return Counter(turned for as_is, turned in ways if as_is != turned)


def _laid_out(one: Canon, piece: Piece, inside: set[Shape], votes: Counter[bool]) -> Piece:
    """A stack of matrices, turned as the others of its stack whose sizes tell; in doubt where none tells."""
    rows, columns = piece.shape[1:]
    if rows != columns:
        wanted = (columns, rows) in inside and (rows, columns) not in inside
        return turn(one, piece) if wanted else piece
    if votes[True] > votes[False]:
        return turn(one, piece)
    if votes or piece.expr.op not in ("key", "transpose") or (one.is_target and one.signature.traced):
        return piece
    reason = "whether these matrices stand with their inputs or their outputs first is in the code only"
    rival = None if one.is_target else ex.transpose(piece.expr)
    doubted = replace(piece, doubts=(*piece.doubts, (reason, rival)))
    one.pieces[piece.name] = doubted
    return doubted


def _fits_inside(piece: Piece, inside: set[Shape]) -> bool:
    """Whether what one element of a stacked tensor holds is in the members of a list: as it is, turned, or in parts."""
    shape = piece.shape[1:]
    if squeezed(shape) in inside or (len(shape) == 2 and shape[::-1] in inside):
        return True
    kind = fused_kind(piece)
    return kind is not None and shape[0] % len(kind.parts) == 0 and (shape[0] // len(kind.parts), *shape[1:]) in inside


def _lists(canon: Canon, of: frozenset[str] = frozenset()) -> dict[int, set[Shape]]:
    """Numbered lists of equal members: length -> shapes that their members hold. OF: words of which a list has one."""
    members: dict[tuple[tuple[str, ...], tuple[str, ...]], dict[int, Shape]] = defaultdict(dict)
    for piece in canon.pieces.values():
        for at, component in enumerate(piece.path):
            if component.isdigit() and (not of or (at and of & set(cut(piece.path[at - 1])))):
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
            doubts=tuple((why, None if rival is None else ex.select(rival, 0, i)) for why, rival in piece.doubts),
            shape=piece.shape[1:],
            order=first.order + (i * of + place) * 1e-6,
            used=None if piece.used is None or first.used is None else first.used + (i * of + place) * 1e-6,
        )
        new.append((made, partial(ex.select, dim=0, index=i)))
    canon.become(piece, new, lambda *e: ex.stack(*e))


#: Why it is not certain which layer of a list has which part of several tensors.
_WHICH_FIRST = "the layers of a list stand in {}: which of these comes first is in the code only"


def unstack_together(one: Canon, other: Canon) -> None:
    """Take apart tensors that hold a list of layers together, some layers each, where the other side has that list.

    As where the first layer has a table of its own, [1, n, d], and the others one for all of them, [layers - 1, n, d].
    """
    lists = _lists(other)
    theirs = Counter(squeezed(p.shape) for p in other.pieces.values())
    own = Counter(squeezed(p.shape) for p in one.pieces.values())
    groups: dict[tuple[tuple[str, ...], Shape], list[Piece]] = defaultdict(list)
    for piece in one.pieces.values():
        if piece.role == "weight" and len(piece.shape) > 2:
            groups[piece.path[:-1], squeezed(piece.shape[1:])].append(piece)
    for (_, rest), members in groups.items():
        n, alone = sum(p.shape[0] for p in members), sum(squeezed(p.shape) == rest for p in members)
        inside = next((shape for shape in (rest, rest[::-1]) if shape in lists.get(n, ())), None)
        if len(members) < 2 or inside is None or theirs[inside] != n or own[rest] != alone:
            continue
        if alone == len(members) or not frozenset.intersection(*(telling_words(p.path) for p in members)):
            continue
        if inside != rest:
            members = [turn(one, p) for p in members]
        _in_a_row(one, sorted(members, key=lambda p: p.order if p.used is None else p.used))


def _in_a_row(canon: Canon, members: list[Piece]) -> None:
    """Take apart tensors of which each holds the layers after those of the one before it."""
    why = _WHICH_FIRST.format(" and ".join(".".join(p.path) for p in members))
    backwards = [ex.select(p.expr, 0, i) for p in members[::-1] for i in range(p.shape[0])]
    layer = 0
    for piece in members:
        new: list[tuple[Piece, Callable[[Expr], Expr]]] = []
        for i in range(piece.shape[0]):
            made = replace(
                piece,
                path=(*piece.path[:-1], str(layer), piece.path[-1]),
                shape=piece.shape[1:],
                order=members[0].order + layer * 1e-6,
                used=None if piece.used is None or members[0].used is None else members[0].used + layer * 1e-6,
                doubts=(*piece.doubts, (why, None if canon.is_target else backwards[layer])),
            )
            new.append((made, partial(ex.select, dim=0, index=i)))
            layer += 1
        canon.become(piece, new, lambda *e: ex.stack(*e))
