"""Split layers whose names spell the parts in them: `qkvg_proj` for `q_proj`, `k_proj`, `v_proj` and `gate_proj`."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from ...expression import Shape
from ...words import cut
from ..pieces import Canon, Piece, flat_kernel
from .projections import fused_kind
from .taking_apart import Form, take_apart_with_bias

#: The matrices of one module by the first letters of what is their own in their names.
_Initials = dict[str, list[Piece]]


def split_by_initials(one: Canon, other: Canon) -> None:
    """Split each layer of ONE whose name has a word that spells layers that OTHER has in one module, and its bias
    (`_form`). The first such word counts. Layers that OTHER has itself, and those that a fused projection is known by,
    stay whole.
    """
    matrices = [p for p in one.pieces.values() if p.role == "weight" and len(p.shape) > 1 and not other.has(p)]
    wholes = [p for p in matrices if any(map(_spells, cut(p.last))) and fused_kind(p) is None]
    modules = _initials(other) if wholes else []
    for weight in wholes:
        form = next(_forms(weight, modules), None)
        if form is not None:
            take_apart_with_bias(one, weight, form)


def _spells(word: str) -> bool:
    """Return whether WORD has two or more letters, all different."""
    return len(word) > 1 and len(set(word)) == len(word)


def _initials(canon: Canon) -> list[_Initials]:
    """Return, for each module of CANON with matrices, first letter of a name -> the matrices whose name begins with it.
    Words that more than half of the matrices in the module share are skipped before.
    """
    siblings: dict[tuple[str, ...], list[Piece]] = defaultdict(list)
    for p in canon.pieces.values():
        if p.path and p.role == "weight" and len(p.shape) > 1:
            siblings[p.path[:-1]].append(p)
    return [_by_letter(pieces) for pieces in siblings.values()]


def _by_letter(pieces: Sequence[Piece]) -> _Initials:
    """Return first letter -> those of PIECES whose name begins with it, after words that more than half of them have.
    A name of such words only is left out.
    """
    common = Counter(word for p in pieces for word in dict.fromkeys(cut(p.last)))
    letters: _Initials = defaultdict(list)
    for p in pieces:
        own = [word for word in cut(p.last) if 2 * common[word] <= len(pieces)]
        if own:
            letters[own[0][0]].append(p)
    return letters


def _forms(weight: Piece, modules: Sequence[_Initials]) -> Iterator[Form]:
    """Yield, for each word in the name of WEIGHT that spells parts in MODULES, how to split WEIGHT into them. A word
    about whose parts the modules do not agree is left out.
    """
    for word in filter(_spells, cut(weight.last)):
        forms = {form for letters in modules if (form := _form(word, flat_kernel(weight.shape), letters)) is not None}
        if len(forms) == 1:
            yield forms.pop()


def _form(word: str, whole: Shape, letters: _Initials) -> Form | None:
    """Return how to split a layer of sizes WHOLE into the matrices of the module LETTERS that the letters of WORD are
    the first letters of, in this order. None if a letter does not stand for exactly one matrix there, or if their rows
    do not add up to those of the whole, or if their other sizes differ from its, or if two letters may be another word
    (`_are_meant`).
    """
    parts = [letters[letter][0] for letter in word if len(letters.get(letter, ())) == 1]
    sizes = tuple(p.shape[0] for p in parts)
    fits = sum(sizes) == whole[0] and all(flat_kernel(p.shape)[1:] == whole[1:] for p in parts)
    if len(parts) < len(word) or not fits or (len(word) == 2 and not _are_meant(word, parts)):
        return None
    return Form(tuple(p.last for p in parts), sizes)


def _are_meant(word: str, parts: Sequence[Piece]) -> bool:
    """Return whether the two letters of WORD are words of the names of PARTS, of equal rows: `zr` for `conv_z` and
    `conv_r`. Two letters are a word too often, and keys and values of other rows may stand in each head.
    """
    named = all(letter in cut(p.last) for letter, p in zip(word, parts, strict=True))
    return named and len({p.shape[0] for p in parts}) == 1


__all__ = ["split_by_initials"]
