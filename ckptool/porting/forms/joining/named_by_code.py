"""Parts of a tensor by the code that divides it: by what it calls the parts, and by their sizes.

In `gate, up = self.both(x).chunk(2, -1)` the names are `gate` and `up`; the tensors of the other side whose names say
the same are the parts of `both`, in this order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from functools import reduce
from operator import and_

from ....model_code.signature import Part
from ...words import cut, labels, shared, table
from ..pieces import Canon, Piece
from ..projections import said_part

#: Of so many tensors of one module some may be parts of one.
_MOST_BESIDE = 12


def order_by_code(
    parts: Sequence[Piece], sizes: Sequence[int], dim: int | None, wholes: Sequence[Piece]
) -> tuple[Piece, ...] | None:
    """Return PARTS, with SIZES along the dimension DIM, in the order in which the code divides WHOLES, the tensors that
    they may be; None if it does not show it, or shows several orders.
    """
    divided = {_divided(whole, dim) for whole in wholes} - {()}
    orders = {_assigned(parts, sizes, found) for found in divided if len(found) == len(parts)} - {None}
    return tuple(parts[place] for place in orders.pop() or ()) if len(orders) == 1 else None


def parts_by_code(pieces: Sequence[Piece], wholes: Sequence[Piece], other: Canon) -> Iterator[tuple[Piece, ...]]:
    """Yield those of PIECES, tensors of one module, that the code of the side OTHER names as the parts of one of
    WHOLES, tensors that this side lacks.
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
    """Return the parts into which code divides the output of WHOLE, or of which it makes the input, if the dimension
    DIM holds them; else ().
    """
    gives = 1 if whole.entry.how == "embedding" else 0
    given = dim in (gives, None)
    parts = whole.entry.facts.parts if given else whole.entry.facts.takes
    sizes = [part.size for part in parts]
    if given and not any(sizes):
        return parts if dim != 1 else ()
    known = dim is not None and dim < len(whole.shape) and sum(sizes) == whole.shape[dim]
    return parts if known or (0 in sizes and not given) else ()


def _assigned(
    pieces: Sequence[Piece], sizes: Sequence[int], parts: Sequence[Part], named: Sequence[bool] = ()
) -> tuple[int, ...] | None:
    """Return the places of those of PIECES that are PARTS of one tensor, by the words of their names and by their
    SIZES; None if some part may be several of them, or none.

    What has no word in common with any part is the last part, if it alone has this size. NAMED says which of PIECES
    have the name of another tensor of the other side: none of these is chosen for its size.
    """
    own = words_apart([piece.words for piece in pieces])
    theirs = words_apart([cut(part.name) for part in parts])
    fits = {
        (place, at): _says(own[place], theirs[at])
        for place, size in enumerate(sizes)
        for at, part in enumerate(parts)
        if part.size in (0, size)
    }
    found: dict[int, int] = {}
    while fits:
        most = max(fits.values())
        pairs = [both for both, said in fits.items() if said == most and (said or not (named and named[both[0]]))]
        alone = [both for both in pairs if sum(both[0] == p or both[1] == at for p, at in pairs) == 1]
        if not alone or most < 0 or not (most or found or len({part.size for part in parts}) > 1):
            break
        found.update((at, place) for place, at in alone)
        fits = {(p, at): said for (p, at), said in fits.items() if p not in found.values() and at not in found}
    return tuple(found[at] for at in sorted(found)) if len(found) == len(parts) else None


def words_apart(named: Sequence[Sequence[str]]) -> list[tuple[str, ...]]:
    """Return the words of each name in NAMED that not all of them have, or not all as often."""
    common = reduce(and_, map(Counter, named))
    return [tuple((Counter(words) - common).elements()) for words in named]


def _says(own: Sequence[str], theirs: Sequence[str]) -> int:
    """Return how much the words OWN of a part and THEIRS, those of the code for it, say that they mean the same: 2 for
    a word, 1 for the first letter of a word, 0 for nothing, -1 if they mean different things.
    """
    for meaning in (said_part, _complex):
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
    """Return whether LETTERS, a name of letters alone, has one that WORDS begin with."""
    alone = len(letters) > 0 and all(len(letter) == 1 for letter in letters)
    return alone and any(word.startswith(letters[0]) for word in words)


def _complex(words: Collection[str]) -> str | None:
    return next((table().complex_parts[word] for word in words if word in table().complex_parts), None)


__all__ = ["order_by_code", "parts_by_code", "words_apart"]
