"""Take a tensor of several parts apart into a tensor for each part."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, pairwise

from ... import expression as ex
from ...expression import Expr
from ...questions import Question
from ...words import cut
from ..pieces import Canon, Piece

#: How far from each other the parts of a tensor stand: less than the members of a list that was in one tensor.
_STEP = 1e-7


@dataclass(frozen=True, slots=True)
class Form:
    """How to split a projection.

    Attributes:
        parts: the names of the parts, in their order.
        sizes: rows of each part.
        heads: number of heads that each hold rows of all parts, or 0 if the parts follow one another.
        doubt: the question about it; None if it is certain.
        rival: another form that is as likely, as (parts, sizes, heads); None if there is none.
    """

    parts: tuple[str, ...]
    sizes: tuple[int, ...]
    heads: int = 0
    doubt: Question[Expr] | None = None
    rival: tuple[tuple[str, ...], tuple[int, ...], int] | None = None


def take_apart_with_bias(canon: Canon, weight: Piece, form: Form) -> None:
    """Replace WEIGHT in CANON by its parts, and in the same way its bias, if it has one that is a vector with as many
    values as WEIGHT has rows; FORM says how (`take_apart`). Another bias stays whole.
    """
    bias = canon.pieces.get(weight.name.beside("bias"))
    take_apart(canon, weight, form)
    if bias is not None and bias.shape == weight.shape[:1]:
        take_apart(canon, bias, form)


def take_apart(canon: Canon, piece: Piece, form: Form) -> None:
    """Replace PIECE in CANON by its parts, as FORM says: the part "q" of `attn.qkv` is `attn.qkv.q`, with the role of
    PIECE. If FORM has a question, each part gets it. For a source, its option is the part with the same name by the
    other form (`FORM.rival`), if there is one; for a target, it has no option.
    """
    new: list[tuple[Piece, Callable[[Expr], Expr]]] = []
    for index, part in enumerate(_parts(piece, form)):
        rival = None if canon.is_target else _in_rival(piece, form, index)
        new.append((_asked(part, form, rival), partial(_nth, form=form, index=index)))
    canon.become(piece, new, partial(_together, form=form))


def merge_parts(canon: Canon, held: Mapping[int, Piece], whole: Piece, form: Form) -> None:
    """Replace the pieces HELD, number of a part of FORM -> its piece, in CANON by one piece WHOLE, in which the parts
    are arranged as FORM says. Zeros take the place of parts that HELD lacks.
    """

    def together(*exprs: Expr) -> Expr:
        given = dict(zip(held, exprs, strict=True))
        return _together(*(given.get(at, ex.zeros(size)) for at, size in enumerate(form.sizes)), form=form)

    canon.merge([*held.values()], whole, together, [partial(_nth, form=form, index=at) for at in held])


def _parts(piece: Piece, form: Form) -> list[Piece]:
    """Return the parts of PIECE by FORM, in its order: `attn.qkv.q` … of `attn.qkv`, each with its rows and its name
    among its words. They still have the expression of PIECE, which is not changed.
    """
    return [
        replace(
            piece,
            path=(*piece.path, name),
            shape=(size, *piece.shape[1:]),
            order=piece.order + index * _STEP,
            used=None if piece.used is None else piece.used + index * _STEP,
            words=(*piece.words, *cut(name)),
        )
        for index, (name, size) in enumerate(zip(form.parts, form.sizes, strict=True))
    ]


def _in_rival(piece: Piece, form: Form, index: int) -> Expr | None:
    """Return the expression of the part of PIECE that has the name of part number INDEX of FORM, if PIECE is cut as the
    other form (`FORM.rival`) says; None if FORM has no other form.
    """
    if form.rival is None:
        return None
    parts, sizes, heads = form.rival
    return _rows_of(piece.expr, sizes, heads)[parts.index(form.parts[index])]


def _asked(part: Piece, form: Form, option: Expr | None) -> Piece:
    """Return PART with the question of FORM, whose only option is OPTION (none if that is None); PART as it is if FORM
    has no question.
    """
    if form.doubt is None:
        return part
    return part.asked(form.doubt.about(*(() if option is None else (option,))))


def _rows_of(e: Expr, sizes: Sequence[int], heads: int) -> list[Expr]:
    """Return the expressions of the parts of the projection E, which have SIZES rows, in this order. They follow one
    another in E; if HEADS is over 1, E is stored head by head, and a part is made of its share of rows in each head.
    """
    if heads > 1:
        return ex.cut_by_heads(e, heads, [size // heads for size in sizes])
    edges = [0, *accumulate(sizes)]
    return [ex.part(e, 0, start, stop) for start, stop in pairwise(edges)]


def _nth(e: Expr, *, form: Form, index: int) -> Expr:
    return _rows_of(e, form.sizes, form.heads)[index]


def _together(*parts: Expr, form: Form) -> Expr:
    """Return the projection that PARTS make up by FORM."""
    return ex.by_heads(form.heads, *parts) if form.heads > 1 else ex.cat(0, *parts)


__all__ = ["Form", "merge_parts", "take_apart", "take_apart_with_bias"]
