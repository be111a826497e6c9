"""Weights that are computed from others: weight norm and spectral norm."""

from __future__ import annotations

from dataclasses import replace

from .expression import Expr
from .pieces import Canon


def merge_norms(one: Canon, other: Canon) -> None:
    """Weight norm and spectral norm as a plain weight, where the other side has no such thing."""
    roles = {piece.role for piece in other.pieces.values()}
    for g in [p for p in one.pieces.values() if p.role == "weight_g"]:
        v = one.pieces.get(".".join(g.path) + "|weight_v")
        if v is None or "weight_g" in roles:
            continue
        new = replace(v, role="weight")
        one.merge([g, v], new, lambda a, b: Expr("weight_norm", (a, b)), [lambda e: Expr("norm", (e,)), lambda e: e])
    for w in [p for p in one.pieces.values() if p.role == "weight_orig"]:
        if "weight_orig" in roles:
            continue
        u = one.pieces.get(".".join(w.path) + "|weight_u")
        v = one.pieces.get(".".join(w.path) + "|weight_sv")
        if u is None or v is None or one.is_target:
            continue
        one.merge([w, u, v], replace(w, role="weight"), lambda a, b, c: Expr("spectral_norm", (a, b, c)), [])
