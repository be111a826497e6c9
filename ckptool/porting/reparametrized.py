"""Weights that are computed from others: weight norm, spectral norm, pruning masks."""

from __future__ import annotations

from dataclasses import replace

from .doubts import Doubt
from .expression import Expr
from .pieces import Canon, unchanged


def merge_norms(one: Canon, other: Canon) -> None:
    """Weight norm and spectral norm as a plain weight, where the other side has no such thing, or none of that size."""
    roles = {piece.role for piece in other.pieces.values()}
    normed, plain = ({p.shape for p in other.pieces.values() if p.role == role} for role in ("weight_v", "weight"))
    for g in [p for p in one.pieces.values() if p.role == "weight_g"]:
        v = one.pieces.get(".".join(g.path) + "|weight_v")
        if v is None or ("weight_g" in roles and (v.shape in normed or v.shape not in plain)):
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


def merge_masks(source: Canon, target: Canon) -> None:
    """Pruned weights (`weight_orig` times `weight_mask`) as plain ones, where the two sides are not pruned alike."""
    pruned = {id(side): [p for p in side.pieces.values() if p.role.endswith("_mask")] for side in (source, target)}
    if len(pruned[id(source)]) == len(pruned[id(target)]):
        return
    for one, other in ((source, target), (target, source)):
        kept = {p.name for p in pruned[id(one)]} & {p.name for p in pruned[id(other)]}
        for mask in pruned[id(one)]:
            role = mask.role.removesuffix("_mask")
            whole = one.pieces.get(f"{'.'.join(mask.path)}|{role}_orig")
            if whole is None or mask.name in kept or whole.shape != mask.shape:
                continue
            new = replace(whole, role=role)
            if one.is_target:
                why = "which elements count as pruned is read from the zeros of the source"
                new = replace(new, doubts=(*new.doubts, Doubt(why)))
            one.merge(
                [whole, mask], new, lambda a, b: Expr("mul", (a, b)), [unchanged, lambda e: Expr("nonzero", (e,))]
            )


def name_unknown(one: Canon, other: Canon) -> None:
    """Weights that something computes from what is stored, which no tensor shows: plain ones, with a doubt."""
    for piece in [p for p in one.pieces.values() if p.role.endswith("_orig")]:
        base = piece.role.removesuffix("_orig")
        beside = [p for p in one.pieces.values() if p.path == piece.path and p.role.startswith(f"{base}_")]
        if len(beside) > 1 or any(p.role == piece.role for p in other.pieces.values()):
            continue
        whose = "the model computes its" if one.is_target else "the source computed its"
        why = f"{whose} {base} from this tensor by a parametrization that only code shows"
        new = replace(piece, role=base, doubts=(*piece.doubts, Doubt(why)))
        one.become(piece, [(new, unchanged)], unchanged)
