"""Biases that stand apart from the matrices that they belong to."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from .pieces import Canon, Piece, unchanged
from .words import numbers


def attach_biases(one: Canon, other: Canon) -> None:
    """Biases that stand apart from their matrices, as the biases of those, where the other side has none apart."""
    lone = _lone_biases(one)
    if not lone or _lone_biases(other):
        return
    matrices = [
        p
        for p in one.pieces.values()
        if p.role == "weight" and len(p.shape) >= 2 and ".".join(p.path) + "|bias" not in one.pieces
    ]
    for piece in lone:
        fitting = [m for m in matrices if m.shape[0] == piece.shape[0]]
        same = [m for m in fitting if numbers(m.path) == numbers(piece.path)]
        if len(same) != 1 and piece.used is not None:
            same = sorted((m for m in fitting if m.used is not None and m.used < piece.used), key=lambda m: m.used or 0)
        owner = same[-1] if same else fitting[0] if len(fitting) == 1 else None
        if owner is not None:
            matrices.remove(owner)
            one.become(piece, [(replace(piece, path=owner.path, role="bias"), unchanged)], unchanged)


def _lone_biases(canon: Canon) -> list[Piece]:
    together = Counter(piece.path for piece in canon.pieces.values())
    return [
        piece
        for piece in canon.pieces.values()
        if len(piece.shape) == 1
        and together[piece.path] == 1
        and ({"bias", "biases"} & {*piece.words, piece.role} or piece.path[-1:] == ("b",))
    ]
