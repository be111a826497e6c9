"""Complex numbers: a tensor for the real parts and one for the imaginary parts, or one tensor with both at its end.

`torch.view_as_complex` takes a last dimension of two, the real part first. Code that avoids complex numbers has two
parameters, whose names say which is which.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from ... import expression as ex
from ...expression import Expr, Shape
from ...words import cut, table
from ..pieces import Canon, Piece

_Key = tuple[tuple[str, ...], tuple[str, ...], Shape]


def join_complex_parts(one: Canon, other: Canon) -> None:
    """Join the real and imaginary parts of complex weights of ONE (`_halves`) to tensors whose last dimension holds
    both, the real part first. `w_real` and `w_imag` become `w`; a name of nothing but the word for the part becomes
    `complex`.

    They are joined if OTHER has more tensors of the joined sizes (in any order of dimensions) than ONE, by exactly the
    number of such pairs in ONE, and if ONE has no other weight with the new name. Else they stay as they are. There is
    no question.
    """
    both = {key: held for key, held in _halves(one).items() if len(held) == 2}
    made = Counter(_sizes((*shape, 2)) for _, _, shape in both)
    own, theirs = (Counter(_sizes(p.shape) for p in side.pieces.values()) for side in (one, other))
    for (module, stem, shape), held in both.items():
        whole = _sizes((*shape, 2))
        if theirs[whole] - own[whole] != made[whole]:
            continue
        parts = (held["real"], held["imaginary"])
        first = min(parts, key=lambda p: p.order)
        new = replace(
            first,
            path=(*module, "_".join(stem) or "complex"),
            shape=(*shape, 2),
            words=tuple(word for word in first.words if word not in table().complex_parts),
        )
        if new.name in one.pieces:
            continue
        up: list[Callable[[Expr], Expr]] = [partial(ex.select, dim=len(shape), index=place) for place in (0, 1)]
        one.merge(parts, new, partial(_at_the_end, rank=len(shape)), up)


def _halves(one: Canon) -> dict[_Key, dict[str, Piece]]:
    """Return (path of the module around, words of the last name without that for the part, sizes) -> part ("real",
    "imaginary") -> weight of ONE, for the weights whose last name has a word for a part of a complex number (`w_real`,
    `w_imag`); the first such word counts. A weight of which ONE has only one part is there, too, with that part alone.
    Of two weights for one part that are equal in all of this (`w_real` and `real_w`), the last counts.
    """
    halves: dict[_Key, dict[str, Piece]] = defaultdict(dict)
    for piece in one.pieces.values():
        words = cut(piece.last)
        said = complex_part(words)
        if piece.role == "weight" and said is not None:
            at, part = said
            halves[piece.path[:-1], (*words[:at], *words[at + 1 :]), piece.shape][part] = piece
    return halves


def complex_part(words: Sequence[str]) -> tuple[int, str] | None:
    """Return (place, part) of the first of WORDS that means a part of a complex number ("real", "imaginary"); None if
    none does.
    """
    known = table().complex_parts
    return next(((at, known[word]) for at, word in enumerate(words) if word in known), None)


def _sizes(shape: Shape) -> Shape:
    """Return the sizes in SHAPE, sorted."""
    return tuple(sorted(shape))


def _at_the_end(*parts: Expr, rank: int) -> Expr:
    """Return the expression of PARTS, of RANK dimensions each, stacked along a new last dimension."""
    return ex.permute(ex.stack(*parts), *range(1, rank + 1), 0)
