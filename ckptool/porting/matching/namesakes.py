"""Find pieces that both sides have under one name, below any prefix of each side: `backbone.conv1` and
`encoder.conv1`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from ..expression import Shape
from ..forms.pieces import Canon, Name, Piece

_Path = tuple[str, ...]

#: How many matrices, and what share of those below a prefix, have to be there under another for the two to be one.
_SEVERAL, _MOST = 4, 0.8
#: So many prefixes may have the same name below them and count, each for one.
_FEW = 4


def namesakes(one: Canon, other: Canon) -> set[Name]:
    """Return the names of pieces of ONE that OTHER has with the same sizes, below the same or another prefix. Such a
    piece is taken as it is, and not as a part of a larger tensor.

    Another prefix counts if at least 4 matrices, and at least 80 percent of those below one of the two prefixes, have a
    namesake below the other.
    """
    found = {name for name, piece in one.pieces.items() if _fits(piece, other.pieces.get(name))}
    below, there = _below(one), _below(other)
    wanted: dict[_Path, list[_Path]] = defaultdict(list)
    for (own, theirs), n in _votes(one, other).items():
        if n >= _SEVERAL and n >= _MOST * min(below[own], there[theirs]):
            wanted[own].append(theirs)
    for name, piece in one.pieces.items():
        for at in range(len(piece.path)):
            for theirs in wanted.get(piece.path[:at], ()):
                if _fits(piece, other.pieces.get(Name((*theirs, *piece.path[at:]), piece.role))):
                    found.add(name)
    return found


def _fits(piece: Piece, namesake: Piece | None) -> bool:
    return namesake is not None and namesake.shape == piece.shape


def _matrices(canon: Canon) -> Iterator[Piece]:
    return (p for p in canon.pieces.values() if p.role == "weight" and len(p.shape) > 1)


def _below(canon: Canon) -> Counter[_Path]:
    """Return prefix of a path -> number of matrices (weights with two or more dimensions) below it."""
    return Counter(piece.path[:at] for piece in _matrices(canon) for at in range(len(piece.path)))


def _votes(one: Canon, other: Canon) -> Counter[tuple[_Path, _Path]]:
    """Return (prefix of ONE, prefix of OTHER) -> number of matrices of ONE with a matrix of OTHER of equal sizes and an
    equal path below the two prefixes. A matrix counts for its shortest prefix with such matrices alone, and for the
    first four of these.
    """
    endings: dict[tuple[_Path, Shape], list[_Path]] = defaultdict(list)
    for piece in _matrices(other):
        for at in range(len(piece.path)):
            endings[piece.path[at:], piece.shape].append(piece.path[:at])
    votes: Counter[tuple[_Path, _Path]] = Counter()
    for piece in _matrices(one):
        for at in range(len(piece.path)):
            found = endings.get((piece.path[at:], piece.shape))
            if found:
                votes.update((piece.path[:at], theirs) for theirs in found[:_FEW])
                break
    return votes
