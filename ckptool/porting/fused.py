"""Projections that are several in one: q, k and v, or gate and up, in blocks or alternating by attention head."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from ..signature import Entry
from . import expression as ex
from .expression import Expr, Shape
from .pieces import Canon, Piece
from .roles import role_of
from .words import Fused, cut, table


def fused_kind(piece: Piece) -> Fused | None:
    """What the name of a piece says that it holds: several projections, or nothing of the kind."""
    words = tuple(word for word in cut(piece.path[-1]) if not word.isdigit()) if piece.path else ()
    return table().fused.get(words) or table().fused.get(words[-2:]) or table().fused.get(words[-1:])


def fused_by_name(key: str) -> bool:
    """Whether the name of a key says that it is several projections in one."""
    path, _ = role_of(tuple(key.split(".")), set())
    words = tuple(word for word in cut(path[-1]) if not word.isdigit()) if path else ()
    return any(phrase in table().fused for phrase in (words, words[-2:], words[-1:]))


def part_label(path: Sequence[str]) -> str | None:
    """Which part of a fused projection a module is by its name: q, k, v, gate, up, or None."""
    words = tuple(word for word in cut(path[-1]) if not word.isdigit()) if path else ()
    for phrase in (words, words[-2:], words[-1:]):
        if phrase in table().parts:
            return table().parts[phrase]
    return None


def fused_shapes(canon: Canon) -> set[Shape]:
    """Sizes of the projections that are fused on one side."""
    return {p.shape for p in canon.pieces.values() if p.role == "weight" and fused_kind(p)}


def split_fused(one: Canon, other: Canon, both: set[Shape]) -> None:
    """Take fused projections apart, unless the other side has them fused, too: BOTH are shapes that both have."""
    fused = [(p, kind) for p in one.pieces.values() if p.role == "weight" and (kind := fused_kind(p))]
    if not fused:
        return
    theirs = Counter(p.shape for p in other.pieces.values() if p.role == "weight")
    own = Counter(p.shape for p in one.pieces.values() if p.role == "weight")
    rows: dict[str, Counter[tuple[int, ...]]] = defaultdict(Counter)
    for p in other.pieces.values():
        label = part_label(p.path)
        if label and p.role == "weight" and len(p.shape) >= 2:
            rows[label][p.shape] += 1
    for weight, kind in fused:
        layout, heads = layout_of(weight.entry, len(kind.parts)) if one.is_target else ("", 0)
        rest = weight.shape[1:]
        apart = any(
            rows[label][_of_rows(size, rest)] for label in kind.parts for size in _part_sizes(weight, kind, rows) or ()
        )
        whole = weight.shape in both or theirs[weight.shape] >= (own[weight.shape] if apart else 1)
        if whole and not _conflicting_layout(one, other, weight, kind):
            continue
        sizes = _part_sizes(weight, kind, rows)
        if sizes is None:
            continue
        alike = all(theirs[_of_rows(size, rest)] >= 1 for size in sizes)
        if not alike and not whole:
            continue
        mha = weight.entry.module == "MultiheadAttention"
        doubtful = not (kind.sure or mha or layout)
        if not one.is_target and doubtful:
            heads = _heads_of(other) or heads
        _take_apart(one, weight, kind.parts, sizes, heads, doubtful)
        bias = one.pieces.get(".".join(weight.path) + "|bias")
        if bias is not None and bias.shape == weight.shape[:1]:
            _take_apart(one, bias, kind.parts, sizes, heads, doubtful)


def _conflicting_layout(one: Canon, other: Canon, weight: Piece, kind: Fused) -> bool:
    """Whether a projection that is fused on both sides is known to be laid out differently."""
    rivals = [p for p in other.pieces.values() if p.role == "weight" and p.shape == weight.shape]
    for rival in rivals:
        theirs = fused_kind(rival)
        if theirs is None or rival.path == weight.path:
            return False
        target = weight if one.is_target else rival
        source_kind = theirs if one.is_target else kind
        if layout_of(target.entry, len(source_kind.parts))[0] == "heads" and source_kind.sure:
            return True
    return False


def layout_of(entry: Entry, parts: int) -> tuple[str, int]:
    """How the forward pass takes a projection of so many PARTS apart: ("block", 0), ("heads", how many), or ("", 0)."""
    kind, inner = entry.notes.get("layout", ("", ()))
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
    """How many attention heads the forward pass makes of what a projection gives, or 0."""
    kind, inner = entry.notes.get("layout", ("", ()))
    return inner[0] if kind == "grouped" and len(inner) == 2 else 0


def _heads_of(canon: Canon) -> int:
    """How many attention heads the code of a model has, as its forward pass shows for separate projections."""
    found = Counter(heads_of(p.entry) for p in canon.pieces.values() if part_label(p.path) == "q" and heads_of(p.entry))
    return found.most_common(1)[0][0] if found else 0


def _part_sizes(weight: Piece, kind: Fused, rows: dict[str, Counter[tuple[int, ...]]]) -> list[int] | None:
    total, rest = weight.shape[0], weight.shape[1:]
    n = len(kind.parts)
    if n == 3 and rows:
        found = {label: [s[0] for s in rows[label] if s[1:] == rest] for label in kind.parts}
        for q in found["q"]:
            for k in found["k"]:
                if q + 2 * k == total and k in found["v"]:
                    return [q, k, k]
    return [total // n] * n if total % n == 0 else None


def _of_rows(size: int, rest: Shape) -> Shape:
    return (size, *rest)


def _block(e: Expr, *, start: int, stop: int) -> Expr:
    return ex.part(e, 0, start, stop)


def _turn_of(e: Expr, *, heads: int, n: int, index: int) -> Expr:
    return Expr("of_heads", (e,), (heads, n, index))


def _take_apart(
    canon: Canon, piece: Piece, parts: Sequence[str], sizes: Sequence[int], heads: int, doubtful: bool
) -> None:
    new: list[tuple[Piece, Callable[[Expr], Expr]]] = []
    at, n = 0, len(parts)
    by_heads = heads > 1 and len(set(sizes)) == 1 and piece.shape[0] % (heads * n) == 0
    for index, (name, size) in enumerate(zip(parts, sizes, strict=True)):
        block = partial(_block, start=at, stop=at + size)
        turns = partial(_turn_of, heads=heads, n=n, index=index)
        chosen, rival = (turns, block) if by_heads else (block, turns if heads > 1 else None)
        doubt: tuple[tuple[str, Expr | None], ...] = ()
        if doubtful:
            other = None if rival is None or canon.is_target else rival(piece.expr)
            doubt = (("the name does not say whether the parts of this projection alternate by attention head", other),)
        new.append(
            (
                replace(
                    piece,
                    path=(*piece.path, name),
                    shape=(size, *piece.shape[1:]),
                    order=piece.order + index / 8,
                    used=None if piece.used is None else piece.used + index / 8,
                    words=(*piece.words, name),
                    doubts=(*piece.doubts, *doubt),
                ),
                chosen,
            )
        )
        at += size
    if by_heads:
        canon.become(piece, new, lambda *e: Expr("by_heads", e, (heads,)))
    else:
        canon.become(piece, new, lambda *e: ex.cat(0, *e))


def _with_zeros_between(q: Expr, v: Expr, *, n: int) -> Expr:
    return ex.cat(0, q, Expr("zeros", (), (n,)), v)


def missing_key_bias(canon: Canon) -> None:
    """`q_bias` and `v_bias` beside a fused projection without a bias: its bias, with zeros for the keys."""
    for piece in list(canon.pieces.values()):
        if piece.role != "bias" or piece.path[-1] != "q_bias" or len(piece.shape) != 1:
            continue
        base = piece.path[:-1]
        other = canon.pieces.get(".".join((*base, "v_bias")) + "|bias")
        fused = next(
            (
                p
                for p in canon.pieces.values()
                if p.path[:-1] == base and p.role == "weight" and cut(p.path[-1]) in table().fused
            ),
            None,
        )
        if other is None or fused is None:
            continue
        n = piece.shape[0]
        if ".".join(fused.path) + "|bias" in canon.pieces or fused.shape[0] != 3 * n:
            continue
        new = replace(piece, path=fused.path, role="bias", shape=(3 * n,))
        canon.merge(
            [piece, other],
            new,
            partial(_with_zeros_between, n=n),
            [partial(_block, start=0, stop=n), partial(_block, start=2 * n, stop=3 * n)],
        )
