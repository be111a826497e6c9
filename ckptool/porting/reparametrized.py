"""Weights that are computed from others: weight norm, spectral norm, low-rank adapters."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import replace

from .expression import Expr
from .pieces import Canon, Piece


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


def merge_lora(source: Canon, scale: float | None) -> None:
    """Low-rank adapters into the weights that they adapt."""
    by_base: dict[tuple[str, ...], dict[str, Piece]] = defaultdict(dict)
    for piece in source.pieces.values():
        for at, component in enumerate(piece.path):
            which = re.fullmatch(r"lora_(A|B|down|up)", component)
            if which:
                by_base[piece.path[:at]]["a" if which[1] in ("A", "down") else "b"] = piece
    if not by_base:
        return
    for base, pair in by_base.items():
        for middle in ((*base, "base_layer"), base):
            w = source.pieces.get(".".join(middle) + "|weight")
            if w is not None:
                break
        if w is None or len(pair) != 2:
            continue
        factor = 1.0 if scale is None else scale
        doubts = (("the scale of the low-rank adapters is not in the file", None),) if scale is None else ()
        source.merge(
            [w, pair["a"], pair["b"]],
            replace(w, path=base, words=tuple(x for x in w.words if x not in ("base", "layer")), doubts=doubts),
            lambda a, b, c, factor=factor: Expr("lora", (a, b, c), (factor,)),
            [],
        )
    for piece in list(source.pieces.values()):
        if "base_layer" in piece.path:
            path = tuple(c for c in piece.path if c != "base_layer")
            source.become(piece, [(replace(piece, path=path), lambda e: e)], lambda e: e)
    source.notes.append("low-rank adapters are merged into the weights that they adapt")
