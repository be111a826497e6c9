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
    """Split each layer of ONE, with its bias, if a word of its name spells the first letters of layers that OTHER has
    in one module: `qkvg_proj` into `q_proj`, `k_proj`, `v_proj`, `gate_proj`. The first word of the name that does, and
    whose layers fit by their sizes (`_forms`), counts. A layer stays whole if OTHER has a layer with its name and
    sizes, or if its name is that of a fused projection in the vocabulary (`qkv`), which other rules split.
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
    """Return one dict for each module of CANON that has matrices or kernels directly in it: first letter -> those of
    these weights whose names begin with it, after words that more than half of the names have are taken out
    (`_by_letter`). Of modules with equal names and sizes, as the blocks of a deep model have, only the first has a
    dict.
    """
    siblings: dict[tuple[str, ...], list[Piece]] = defaultdict(list)
    for p in canon.pieces.values():
        if p.path and p.role == "weight" and len(p.shape) > 1:
            siblings[p.path[:-1]].append(p)
    alike = {tuple((p.last, p.shape) for p in pieces): pieces for pieces in reversed(siblings.values())}
    return [_by_letter(pieces) for pieces in reversed(alike.values())]


def _by_letter(pieces: Sequence[Piece]) -> _Initials:
    """Return first letter -> those of PIECES whose last name begins with it, if words that more than half of PIECES
    have in their names are taken out before: "q" for `attn_q` beside `attn_k` and `attn_v`. A name with no other words
    is left out.
    """
    common = Counter(word for p in pieces for word in dict.fromkeys(cut(p.last)))
    letters: _Initials = defaultdict(list)
    for p in pieces:
        own = [word for word in cut(p.last) if 2 * common[word] <= len(pieces)]
        if own:
            letters[own[0][0]].append(p)
    return letters


def _forms(weight: Piece, modules: Sequence[_Initials]) -> Iterator[Form]:
    """Yield how to split WEIGHT, once for each word in its name whose letters are the first letters of matrices in one
    of MODULES (`_form`). A word is left out if two of MODULES give parts with different names or sizes. MODULES has,
    for each module, first letter -> matrices.
    """
    for word in filter(_spells, cut(weight.last)):
        forms = {form for letters in modules if (form := _form(word, flat_kernel(weight.shape), letters)) is not None}
        if len(forms) == 1:
            yield forms.pop()


def _form(word: str, whole: Shape, letters: _Initials) -> Form | None:
    """Return how to split a layer of sizes WHOLE into one part for each letter of WORD, in this order, one after the
    other: each part has the name and rows of the matrix that LETTERS, first letter -> matrices of one module, has for
    the letter.

    None if LETTERS does not have exactly one matrix for some letter, if the rows of the matrices do not add up to those
    of WHOLE, if their other sizes differ from those of WHOLE, or if WORD has two letters that may be another word
    (`_are_meant`).
    """
    parts = [letters[letter][0] for letter in word if len(letters.get(letter, ())) == 1]
    sizes = tuple(p.shape[0] for p in parts)
    fits = sum(sizes) == whole[0] and all(flat_kernel(p.shape)[1:] == whole[1:] for p in parts)
    if len(parts) < len(word) or not fits or (len(word) == 2 and not _are_meant(word, parts)):
        return None
    return Form(tuple(p.last for p in parts), sizes)


def _are_meant(word: str, parts: Sequence[Piece]) -> bool:
    """Return whether each of the two letters of WORD is a word of the name of its part in PARTS, and both parts have
    equally many rows: `zr` for `conv_z` and `conv_r`. Two letters are a word too often, and keys and values with
    unequal rows may stand in each head.
    """
    named = all(letter in cut(p.last) for letter, p in zip(word, parts, strict=True))
    return named and len({p.shape[0] for p in parts}) == 1


__all__ = ["split_by_initials"]
