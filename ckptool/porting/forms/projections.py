"""What names and code show of a projection: whether it is fused, which part it is, and its layout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import TypeVar

from ...model_code.signature import Entry, Gate
from ..words import Fused, OfLibrary, cut, table
from .pieces import Canon, Name, Piece, squeezed
from .roles import role_of

_Meaning = TypeVar("_Meaning")

_CONVOLUTIONS = frozenset("conv dwconv depthwise dw conv1d conv2d conv3d".split())


def fused_kind(piece: Piece) -> Fused | None:
    """Return which projections a piece holds by its name (`qkv`), or None if it is not fused."""
    if not piece.shape:
        return None
    own = table().fused.get(cut(piece.leaf))  # a module may have the name of what torch has as a parameter
    whole = own is not None and own.fixed and piece.last not in own.parts  # and was not taken apart
    kind = own if whole else _fused(_named(piece.path))
    convolution = len(piece.shape) > 2 and not squeezed(piece.shape[2:])
    return replace(kind, sure=False) if kind is not None and kind.linear and convolution else kind


def fused_by_name(key: str) -> bool:
    """Return whether the name of a key says that it is a fused projection."""
    return _fused(_named(role_of(tuple(key.split(".")), set())[0])) is not None


def part_label(path: Sequence[str]) -> str | None:
    """Return which part of a fused projection a module is by its name: q, k, v, gate, up, or None."""
    return _part(_named(path))


def _named(path: Sequence[str]) -> str:
    """Return the last component of a path that is no number: a member of a list has the name of the list."""
    return next((component for component in reversed(path) if not component.isdecimal()), "")


@cache
def _fused(name: str) -> Fused | None:
    return _said(name, table().fused)


@cache
def _part(name: str) -> str | None:
    return _said(name, table().parts)


def _said(name: str, phrases: Mapping[tuple[str, ...], _Meaning]) -> _Meaning | None:
    """Return the meaning of a name in PHRASES: with its numbers, without, or by its last two words or its last; None if
    it has none.

    A word for the kind of convolution is skipped: `qkv_dwconv`.
    """
    every = cut(name)
    words = tuple(word for word in every if not word.isdecimal())
    if len(words) > 1 and words[-1] in _CONVOLUTIONS:
        words = words[:-1]
    return next((phrases[one] for one in (every, words, words[-2:], words[-1:]) if one in phrases), None)


def of_library(canon: Canon, path: Sequence[str]) -> OfLibrary | None:
    """Return the conventions of the library that the module at PATH comes from, by its name and the names beside it; or
    None.
    """
    for end in (len(path), len(path) - 1):
        known = table().of_library.get(path[end - 1]) if end else None
        if known is not None and Name((*path[: end - 1], known.beside), "weight") in canon.pieces:
            return known
    return None


def open_gate(entry: Entry) -> Gate | None:
    """Return the gate of a layer that also returns the value, if other code may have the halves swapped.

    It is None for a convolution before `glu`, whose order torch defines: all known code of such blocks calls it. Beside
    linear layers, code as often multiplies the halves itself.
    """
    gate = entry.facts.gate
    if gate is None or not (entry.how == "linear" or entry.how.startswith("conv")):
        return None
    return gate if gate.activation != "glu" or entry.how == "linear" else None


def layout_of(entry: Entry, parts: int, sizes: Sequence[int] = ()) -> tuple[str, int]:
    """Return how the forward pass splits a projection of PARTS parts, of SIZES if these are known: ("block", 0) for one
    part after the other, ("heads", how many heads), or ("", 0) if it does not show it.
    """
    kind, inner = entry.facts.layout
    if kind != "block" and len(set(sizes)) > 1:  # keys and values of fewer heads: (groups, parts of a group, width)
        grouped = len(inner) == 3 and inner[0] * inner[2] == sizes[-1]
        return ("heads", inner[0]) if grouped else ("", 0)
    if kind == "inside":
        return "heads", inner[0]
    if kind == "block" or (inner and inner[0] == parts != inner[1]):
        return "block", 0
    if len(inner) == 3 and inner[1] == parts != inner[0]:
        return "heads", inner[0]
    if len(inner) == 2 and inner[0] == parts:
        return "block", 0
    if len(inner) == 2 and inner[1] % parts == 0:  # what is cut into heads first holds its parts inside of each
        return "heads", inner[0]
    return "", 0


def heads_of(entry: Entry) -> int:
    """Return how many attention heads the forward pass makes of the output of a projection, or 0."""
    kind, inner = entry.facts.layout
    return inner[0] if kind in ("grouped", "inside") and len(inner) == 2 else 0
