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
    """Return the names of pieces of ONE that OTHER has with the same sizes, below the same or another prefix. Such a
    piece is taken as it is, and not as a part of a larger tensor.

    Another prefix counts if at least 4 matrices, and at least 80 percent of those below one of the two prefixes, have a
    namesake below the other.
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
    """Return whether there is a NAMESAKE, and it has the sizes of PIECE."""
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
    """Return (prefix of ONE, prefix of OTHER) -> number of items of ONE with an item of OTHER of an equal look and an
    equal path below the two prefixes. An item counts for its shortest prefix with such items alone, and for the first
    four of these. ONE and OTHER have (path, look) of each item.
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
