"""Find pieces that both sides have under one name, below any prefix of each side: `backbone.conv1` and
`encoder.conv1`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator

from ..forms.pieces import Canon, Name, Piece

_Path = tuple[str, ...]

#: How many matrices, and what share of those below a prefix, have to be there under another for the two to be one.
_SEVERAL, _MOST = 4, 0.8
#: So many prefixes may have the same name below them and count, each for one.
_FEW = 4


def namesakes(one: Canon, other: Canon) -> set[Name]:
    """Return the names of pieces of ONE that have a namesake in OTHER, the other side: a piece with the same sizes, the
    same role, and the same path, as it is or below another prefix (`backbone.conv1` and `encoder.conv1`). Such a piece
    is taken as it is, and not as a part of a larger tensor.

    Two prefixes count for each other if at least 4 matrices (weights with two or more dimensions) below that of ONE
    have a namesake below that of OTHER, and these are at least 80 percent of the matrices below the prefix with fewer.
    A matrix counts only for its shortest prefix with a namesake (`prefix_votes`).
    """
    found = {name for name, piece in one.pieces.items() if _fits(piece, other.pieces.get(name))}
    below, there = _below(one), _below(other)
    wanted: dict[_Path, list[_Path]] = defaultdict(list)
    votes = prefix_votes(*(((p.path, p.shape) for p in _matrices(side)) for side in (one, other)))
    for (own, theirs), n in votes.items():
        if n >= _SEVERAL and n >= _MOST * min(below[own], there[theirs]):
            wanted[own].append(theirs)
    for name, piece in one.pieces.items():
        for at in range(len(piece.path)):
            for theirs in wanted.get(piece.path[:at], ()):
                if _fits(piece, other.pieces.get(Name((*theirs, *piece.path[at:]), piece.role))):
                    found.add(name)
    return found


def _fits(piece: Piece, namesake: Piece | None) -> bool:
    """Return whether NAMESAKE is not None, and has the sizes of PIECE."""
    return namesake is not None and namesake.shape == piece.shape


def _matrices(canon: Canon) -> Iterator[Piece]:
    """Return the weights of CANON with two or more dimensions."""
    return (p for p in canon.pieces.values() if p.role == "weight" and len(p.shape) > 1)


def _below(canon: Canon) -> Counter[_Path]:
    """Return prefix of a path -> number of matrices (`_matrices`) below it."""
    return Counter(piece.path[:at] for piece in _matrices(canon) for at in range(len(piece.path)))


def prefix_votes(
    one: Iterable[tuple[_Path, Hashable]], other: Iterable[tuple[_Path, Hashable]]
) -> Counter[tuple[_Path, _Path]]:
    """Return (prefix of ONE, prefix of OTHER) -> number of votes: how many items of ONE have an item of OTHER with an
    equal look and an equal path below these prefixes. ONE and OTHER have (path, look) of each item; a look is any
    value, such as the sizes.

    An item of ONE votes only for its shortest prefix for which OTHER has such items, and for the prefixes of the first
    four of these. An item without any does not vote. Couples without votes are not in the result.
    """
    endings: dict[tuple[_Path, Hashable], list[_Path]] = defaultdict(list)
    for path, look in other:
        for at in range(len(path)):
            endings[path[at:], look].append(path[:at])
    votes: Counter[tuple[_Path, _Path]] = Counter()
    for path, look in one:
        for at in range(len(path)):
            if (path[at:], look) in endings:
                votes.update((path[:at], theirs) for theirs in endings[path[at:], look][:_FEW])
                break
    return votes
