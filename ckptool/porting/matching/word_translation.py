"""Translate the words and numbers that tell look-alikes apart on one side into those of the other side.

`smooth_fine` and `smooth_mid` differ in one word, `merge1` and `merge2` in a number. If `lateral_fine` is known to be
`output1` and `lateral_mid` to be `output2`, these words and numbers mean the same for `smooth` and `merge`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from ..words import words_of

Path = tuple[str, ...]


def translation(
    own: Sequence[Path], theirs: Sequence[Path], known: Iterable[tuple[Path, Path]]
) -> dict[Path, Path] | None:
    """Return which of several look-alikes of the target is which of the source, by the words that tell them apart.

    Known pairs show which word of the target means which word of the source: if `left` is `l` elsewhere, it is here.
    Args:
        own, theirs: paths of equally many parts of each side.
        known: paths of pairs, (of the target, of the source).
    Returns:
        Path of the target -> path of the source. None if the parts do not differ by one word each, if numbers tell them
        apart on both sides, or if the known pairs show no translation, or several.
    """
    ours, others = _apart(own), _apart(theirs)
    if ours is None or others is None or (_numbers(ours) and _numbers(others)):
        return None
    votes: dict[tuple[Path, Path], dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for target, source in known:
        a, b = words_of(target), words_of(source)
        for i, word in enumerate(a):
            if word in ours:
                for j, other in enumerate(b):
                    if other in others:
                        votes[(*a[:i], "", *a[i + 1 :]), (*b[:j], "", *b[j + 1 :])][word].add(other)
    said = {
        tuple(sorted((word, next(iter(meant))) for word, meant in met.items()))
        for met in votes.values()
        if len(met) == len(ours)
        and all(len(meant) == 1 for meant in met.values())
        and len(set().union(*met.values())) == len(ours)
    }
    if len(said) != 1:
        return None
    return {ours[word]: others[other] for word, other in next(iter(said))}


def _apart(paths: Sequence[Path]) -> dict[str, Path] | None:
    """Return word -> path, for paths that differ from each other in one word at the same place; None for others."""
    cut_up = [words_of(path) for path in paths]
    if len(paths) < 2 or len({len(words) for words in cut_up}) != 1:
        return None
    columns = [column for column in zip(*cut_up, strict=True) if len(set(column)) > 1]
    if len(columns) != 1 or len(set(columns[0])) < len(paths):
        return None
    return dict(zip(columns[0], paths, strict=True))


def _numbers(words: Iterable[str]) -> bool:
    return all(word.isdecimal() for word in words)
