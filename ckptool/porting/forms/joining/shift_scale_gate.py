"""Shift, scale and gate of a norm: in one layer, whose name may say their order, or in a layer each."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ...words import cut, table
from ..pieces import Piece

#: In the order in which all code of diffusion transformers has them in one layer.
_MODULATION = ("shift", "scale", "gate")


def said_affine(words: Collection[str]) -> str | None:
    """Return which part of a modulation WORDS name: "scale" if "gamma" or "scale" is among them, "shift" if "beta" or
    "shift" is. None if they name neither, or both.
    """
    said = {part for part, named in _AFFINE.items() if not named.isdisjoint(words)}
    return said.pop() if len(said) == 1 else None


_AFFINE = {"scale": frozenset({"gamma", "scale"}), "shift": frozenset({"beta", "shift"})}


def shift_first(row: Sequence[Piece]) -> tuple[Piece, ...] | None:
    """Return the layers ROW in the order shift, scale and, if there is one, gate. The first of the words "shift",
    "scale" and "gate" in the last component of a layer's path says which it is. None if a layer has no such word, if
    two layers have the same, or if shift or scale is missing.
    """
    said = {next((word for word in cut(piece.last) if word in _MODULATION), ""): piece for piece in row}
    whole = len(said) == len(row) and said.keys() in ({*_MODULATION}, {*_MODULATION[:2]})
    return tuple(said[name] for name in _MODULATION if name in said) if whole else None


def gives_shift_first(piece: Piece) -> bool:
    """Return whether the words of PIECE have a phrase (`adaLN_modulation`) of which the vocabulary (`modulation`) is
    sure that such layers give the shift first, and so shift, scale and gate in this order.
    """
    words = piece.words
    spans = (words[a:b] for a in range(len(words)) for b in range(a + 1, len(words) + 1))
    return ("shift", True) in {table().modulation.get(span) for span in spans}
