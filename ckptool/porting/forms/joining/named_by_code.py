"""Parts of a tensor by the code that divides it: by what it calls the parts, and by their sizes.

In `gate, up = self.both(x).chunk(2, -1)` the names are `gate` and `up`; the tensors of the other side whose names say
the same are the parts of `both`, in this order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence, Set
from functools import reduce
from operator import and_

from ....model_code.signature import Part
from ...words import cut, labels, shared
from ..fusing.projections import layout_of, said_part
from ..pieces import Canon, Piece
from .complex_parts import complex_part
from .shift_scale_gate import said_affine

#: Of so many tensors of one module some may be parts of one.
_MOST_BESIDE = 12


def order_by_code(
    parts: Sequence[Piece], sizes: Sequence[int], dim: int | None, wholes: Sequence[Piece]
) -> tuple[Piece, ...] | None:
    """Return PARTS in the order in which the code of the other side has them in WHOLES, the tensors of that side that
    may hold PARTS: code that divides the output of one of WHOLES into as many parts, or concatenates its input of them.
    The names that the code has for its parts are compared with those of PARTS, and SIZES, the sizes of PARTS along the
    dimension DIM (None: each is a member of a stack), with theirs (`_assigned`). None if no code shows an order, or if
    the codes of WHOLES show several.
    """
    divided = {_divided(whole, dim) for whole in wholes} - {()}
    orders = {_assigned(parts, sizes, found) for found in divided if len(found) == len(parts)} - {None}
    return tuple(parts[place] for place in orders.pop() or ()) if len(orders) == 1 else None


def parts_by_code(pieces: Sequence[Piece], wholes: Sequence[Piece], other: Canon) -> Iterator[tuple[Piece, ...]]:
    """Yield those of PIECES that are the parts of one of WHOLES, by the names that code has for the parts, in the order
    of the code: once for each different way in which code divides the output of a tensor of WHOLES into two or more
    parts, or concatenates its input of them, if all have names; the ways with most parts first. A way is left out if
    one of its parts is not found among PIECES, or is not clear (`_assigned`).

    Args:
        pieces: tensors of one module. Nothing is yielded for more than twelve, or if all of them would be parts.
        wholes: tensors of the other side which this side lacks.
        other: the other side. A piece that shares a word of its name, and its sizes, with a weight there is no part
            for its size alone.
    """
    divided = dict.fromkeys((dim, _divided(whole, dim)) for whole in wholes for dim in (0, 1))
    for dim, found in sorted(divided, key=lambda one: -len(one[1])):  # `k, r` may be some of `k, v, r`
        if 1 < len(found) < len(pieces) <= _MOST_BESIDE and all(part.name for part in found):
            beside = [p for p in other.pieces.values() if p.role == "weight"]
            named = [any(p.shape == one.shape and shared(cut(one.last), cut(p.last)) for p in beside) for one in pieces]
            sizes = [one.shape[dim] if dim < len(one.shape) else -1 for one in pieces]
            order = _assigned(pieces, sizes, found, named)
            if order is not None:
                yield tuple(pieces[place] for place in order)


def _divided(whole: Piece, dim: int | None) -> tuple[Part, ...]:
    """Return the parts of WHOLE along the dimension DIM that code shows. If DIM holds the outputs of WHOLE (0, but 1
    for an embedding table; or None, for a stack), they are the parts into which code divides its output; else they are
    the tensors that code concatenates to its input.

    () if code shows none, or if the sizes of the parts do not add up to the size of DIM, as for DIM None. The sum does
    not matter in two cases:

      - One of the inputs has an unknown size (0).
      - All outputs have the size 0, because each is a whole member of the first dimension. But they are () if DIM is 1,
        or if each head, or number, holds all parts (`layout_of`).
    """
    gives = 1 if whole.entry.how == "embedding" else 0
    given = dim in (gives, None)
    parts = whole.entry.facts.parts if given else whole.entry.facts.takes
    sizes = [part.size for part in parts]
    if given and parts and not any(sizes):
        in_blocks = layout_of(whole.entry, len(parts))[0] != "heads"
        return parts if dim != 1 and in_blocks else ()
    known = dim is not None and dim < len(whole.shape) and sum(sizes) == whole.shape[dim]
    return parts if known or (0 in sizes and not given) else ()


def _assigned(
    pieces: Sequence[Piece], sizes: Sequence[int], parts: Sequence[Part], named: Sequence[bool] = ()
) -> tuple[int, ...] | None:
    """Return, for each of PARTS in order, the place in PIECES of the piece that is this part. None if some part may be
    several of PIECES, or none.

    A piece may be a part if its size in SIZES is that of the part (a part of size 0 fits all). Again and again, of the
    pieces and parts that are left, those whose names say most that they mean the same (`_says`) are paired, if neither
    is in another such pair (`_clearest`). Names that exclude each other are never paired. Names that say nothing are
    paired only if another part was found before, or the sizes of PARTS differ; and never for a piece for which NAMED is
    True, because it has the name of another tensor of the other side.
    """
    own = words_apart([piece.words for piece in pieces])
    theirs = words_apart([cut(part.name) for part in parts])
    fits = {
        (place, at): _says(own[place], theirs[at])
        for place, size in enumerate(sizes)
        for at, part in enumerate(parts)
        if part.size in (0, size)
    }
    free = {place for place in range(len(pieces)) if not (named and named[place])}
    differ = len({part.size for part in parts}) > 1
    found: dict[int, int] = {}
    while fits:
        clearest = _clearest(fits, free, silent=differ or bool(found))
        if not clearest:
            break
        found.update((at, place) for place, at in clearest)
        fits = {(p, at): said for (p, at), said in fits.items() if p not in found.values() and at not in found}
    return tuple(found[at] for at in sorted(found)) if len(found) == len(parts) else None


def _clearest(fits: dict[tuple[int, int], int], free: Set[int], *, silent: bool) -> list[tuple[int, int]]:
    """Return the clearest pairs (piece, part) of FITS, (place of the piece, place of the part) -> what their names say
    (`_says`): those of the pairs with the highest value whose piece and part are both in no other of these pairs. [] if
    there is none, or if all names exclude each other (-1).

    If the highest value is 0 (no names say anything), the result is [] unless SILENT, and only pieces in FREE count.
    """
    most = max(fits.values())
    pairs = [both for both, said in fits.items() if said == most and (said or both[0] in free)]
    if most < 0 or not (most or silent):
        return []
    return [both for both in pairs if sum(both[0] == p or both[1] == at for p, at in pairs) == 1]


def words_apart(named: Sequence[Sequence[str]]) -> list[tuple[str, ...]]:
    """Return the words of each name in NAMED, one or more lists of words, without those that all names have:
    [("gate",), ("up",)] for ("gate", "proj") and ("up", "proj"). A word that all have, but some more often, is only
    taken out as often as the name with the fewest has it.
    """
    common = reduce(and_, map(Counter, named))
    return [tuple((Counter(words) - common).elements()) for words in named]


def _says(own: Sequence[str], theirs: Sequence[str]) -> int:
    """Return how much the words OWN of a name and THEIRS, those of the code for a part, say that they mean the same.
    The first of these that applies decides:

    - Both name a part of a fused projection, of a complex number or of a modulation (scale, shift): 2 for the same
      part, else -1.
    - They have an equal label in a group of words, or a word in common: 2.
    - One of the two is only single letters, the first of which begins a word of the other: 1.
    - Else 0.
    """
    for meaning in (said_part, _complex, said_affine):
        a, b = meaning(own), meaning(theirs)
        if a is not None and b is not None:
            return 2 if a == b else -1
    for hard in (True, False):
        one, other = (labels(tuple(words), hard=hard) for words in (own, theirs))
        if any(one[name] == other[name] for name in one.keys() & other.keys()):
            return 2
    if shared(own, theirs):
        return 2
    return int(_begins(own, theirs) or _begins(theirs, own))


def _begins(letters: Sequence[str], words: Sequence[str]) -> bool:
    """Return whether LETTERS, the words of a name, are all single letters, and one of WORDS begins with the first of
    them: ("g",) for ("gate", "proj"). False for no LETTERS.
    """
    alone = len(letters) > 0 and all(len(letter) == 1 for letter in letters)
    return alone and any(word.startswith(letters[0]) for word in words)


def _complex(words: Sequence[str]) -> str | None:
    """Return which part of a complex number WORDS name ("real", "imaginary"), by the first that does; None for none."""
    said = complex_part(words)
    return None if said is None else said[1]


__all__ = ["order_by_code", "parts_by_code", "words_apart"]
