"""What names and code show of a projection: whether it is fused, which part it is, and its layout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import accumulate, pairwise
from typing import TypeVar

from ....model_code.signature import Entry, Gate, Layout
from ...words import Fused, OfLibrary, cut, table
from ..pieces import Canon, Name, Piece, squeezed
from ..roles import role_of

_Meaning = TypeVar("_Meaning")

_CONVOLUTIONS = frozenset("conv dwconv depthwise dw conv1d conv2d conv3d".split())


def fused_kind(piece: Piece) -> Fused | None:
    """Return which projections PIECE holds together (`qkv`: queries, keys and values) by its name; None if the name is
    not one of a fused projection, and for a single number. The name of a tensor that torch's attention has itself
    (`in_proj_weight`) counts first, unless PIECE is a part that was split off it; else the name of its module (`qkv`),
    without numbers.

    The vocabulary gives the result. But `sure` is False for a convolution with kernels of size 1, if the vocabulary is
    sure of the name only for linear layers.
    """
    if not piece.shape:
        return None
    own = table().fused.get(cut(piece.leaf))  # a module may have the name of what torch has as a parameter
    whole = own is not None and own.fixed and piece.last not in own.parts  # and was not taken apart
    kind = own if whole else _fused(own_name(piece.path))
    convolution = len(piece.shape) > 2 and not squeezed(piece.shape[2:])
    return replace(kind, sure=False) if kind is not None and kind.linear and convolution else kind


def fused_by_name(key: str) -> bool:
    """Return whether the module in the name KEY has the name of a fused projection."""
    return _fused(own_name(role_of(tuple(key.split(".")), set())[0])) is not None


def part_label(path: Sequence[str]) -> str | None:
    """Return which part of a fused projection the module at PATH is by its name: "q", "k", "v", "gate" or "up"; None
    for other names.
    """
    return _part(own_name(path))


def own_name(path: Sequence[str]) -> str:
    """Return the last component of PATH that is no number, so that a member of a list has the name of the list; "" if
    there is none.
    """
    return next((component for component in reversed(path) if not component.isdecimal()), "")


@cache
def _fused(name: str) -> Fused | None:
    """Return which projections the component NAME of a path says that a module holds; None if it says none."""
    return _said(cut(name), table().fused)


@cache
def _part(name: str) -> str | None:
    """Return which part of a fused projection the component NAME of a path means (`said_part`), or None."""
    return said_part(cut(name))


def said_part(words: Sequence[str]) -> str | None:
    """Return which part of a fused projection a name with these WORDS is: "q", "k", "v", "gate" or "up"; None for
    others.
    """
    return _said(tuple(words), table().parts)


def _said(every: tuple[str, ...], phrases: Mapping[tuple[str, ...], _Meaning]) -> _Meaning | None:
    """Return the meaning in PHRASES (words -> meaning) of a name with the words EVERY: that of all its words; else that
    of all but numbers; else that of the last two of these; else that of the last one. None if PHRASES has none.

    In the last three, a last word for the kind of convolution is skipped: `qkv_dwconv` is read as `qkv`.
    """
    words = tuple(word for word in every if not word.isdecimal())
    if len(words) > 1 and words[-1] in _CONVOLUTIONS:
        words = words[:-1]
    return next((phrases[one] for one in (every, words, words[-2:], words[-1:]) if one in phrases), None)


def of_library(canon: Canon, path: Sequence[str]) -> OfLibrary | None:
    """Return the conventions of the library that the module at PATH of CANON comes from (whether it stores heads, how
    it pairs rows for rotary embeddings); None if no library is known by names.

    The last component of PATH, or the one before it, has to be a name that the vocabulary has for the library
    (`linear_qkv`), and CANON has to have the weight of another module of the library beside it (`linear_proj`). If the
    vocabulary has names of modules around these (`OfLibrary.within`), they have to follow each other in PATH.
    """
    for end in (len(path), len(path) - 1):
        for known in table().of_library.get(path[end - 1], ()) if end else ():
            around, size = (*path[: end - 1],), len(known.within)
            inside = any(around[at : at + size] == known.within for at in range(end))
            if inside and Name((*around, known.beside), "weight") in canon.pieces:
                return known
    return None


def open_gate(entry: Entry) -> Gate | None:
    """Return the gate of ENTRY, the weight of a linear layer or a convolution that computes a gate and its value in two
    halves, if other code may have these halves swapped; None for other layers, and if the code shows no gate.

    It is also None for a convolution before `glu`: torch defines the order of `glu`, and all known code of such blocks
    calls it. For linear layers before `glu` it is not, because code as often multiplies the halves itself.
    """
    gate = entry.facts.gate
    if gate is None or not (entry.how == "linear" or entry.how.startswith("conv")):
        return None
    return gate if gate.activation != "glu" or entry.how == "linear" else None


def layout_of(entry: Entry, parts: int, sizes: Sequence[int] = ()) -> tuple[str, int]:
    """Return how the forward pass divides the output of the projection ENTRY into its parts.

    Args:
        entry: the weight of the projection.
        parts: how many parts it has.
        sizes: the rows of each part, if they are known; else all have equally many. If they differ (keys and values of
            fewer heads), a reshape alone shows only groups of heads that each hold all parts.
    Returns:
        ("block", 0) if one part follows the other, as the two halves of a gate and its value do; ("heads", number of
        heads or groups) if each head holds a share of all parts; ("", 0) if the forward pass does not show which.
    """
    layout = entry.facts.layout
    if layout.kind == "inside":
        heads = layout.heads or layout.sizes[0]
        return ("heads", heads) if all(size % heads == 0 for size in sizes) else ("", 0)
    if layout.kind == "other":
        return "", 0
    halves = not layout.kind and entry.facts.gate is not None
    if halves or (layout.kind == "block" and _are_blocks(layout, parts, sizes)):
        return "block", 0
    if len(set(sizes)) > 1:  # keys and values of fewer heads: (groups, parts of a group, width)
        inner = layout.sizes
        grouped = len(inner) == 3 and inner[0] * inner[2] == sizes[-1]
        return ("heads", inner[0]) if grouped and layout.kind != "block" else ("", 0)
    found = _layout_of_view(layout.sizes, parts)
    return found if layout.kind != "block" or found[0] == "block" else ("", 0)


def _are_blocks(layout: Layout, parts: int, sizes: Sequence[int]) -> bool:
    """Return whether code takes the parts of a projection as blocks of LAYOUT, one after the other. There are PARTS
    parts, of SIZES rows, or of equally many if SIZES is empty; together they have all rows of LAYOUT, and each but one,
    which may be what is left, is a block that code takes. True if LAYOUT does not say which blocks code takes.
    """
    if not layout.rows:
        return True
    edges = [*accumulate(sizes or [layout.rows // parts] * parts, initial=0)]
    return edges[-1] == layout.rows and len({*pairwise(edges)} - {*layout.blocks}) <= 1


def _layout_of_view(inner: tuple[int, ...], parts: int) -> tuple[str, int]:
    """Return the layout of a projection of PARTS parts, as `layout_of` does, whose output is viewed with the sizes
    INNER.

    [parts, …] is ("block", 0); but [parts, parts, …] with three or more sizes is ("", 0), because it may be either.
    [heads, parts, width] is ("heads", heads), and so is [heads, n] if PARTS divides n: each head then holds all parts.
    In [heads, width, parts], where each number of a head does, it is ("heads", heads * width): heads of width 1.
    Others are ("", 0), and so are no sizes.
    """
    if not inner:
        return "", 0
    if inner[0] == parts:
        return ("block", 0) if len(inner) == 2 or inner[1] != parts else ("", 0)
    if len(inner) == 3 and parts in inner[1:]:
        return "heads", inner[0] if inner[1] == parts else inner[0] * inner[1]
    return ("heads", inner[0]) if len(inner) == 2 and inner[1] % parts == 0 else ("", 0)


def parts_in_code(entry: Entry) -> tuple[str, ...]:
    """Return the parts of the projection ENTRY ("q", "k", "v", "gate", "up") in the order in which code divides its
    output, by the names that the code has for them; () if some name means no part, or the code does not divide it.
    """
    said = tuple(said_part(cut(part.name)) or "" for part in entry.facts.parts)
    return said if all(said) else ()


def heads_of(entry: Entry) -> int:
    """Return into how many attention heads the forward pass reshapes the output of the projection ENTRY, if it reshapes
    it to [heads, width]; else 0.
    """
    inner = entry.facts.layout.sizes
    return inner[0] if len(inner) == 2 else 0
