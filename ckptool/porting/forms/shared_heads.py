"""Keys and values of the source with fewer heads than the queries, or keys without biases."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from .. import expression as ex
from ..expression import Expr, Shape
from ..questions import Reason
from .pieces import Canon, Piece
from .projections import fused_by_name, heads_of, part_label


def repeat_shared_heads(source: Canon, target: Canon) -> None:
    """Repeat the heads of keys and values of the source, if the model has one for each head of queries.

    Queries that share a head are usually adjacent (Ainslie et al., "GQA: Training Generalized Multi-Query Transformer
    Models", 2023), so each head is repeated in place. Other code repeats all heads one after the other; therefore this
    is a question, unless there is only one head.
    """
    wanted = _heads(target)
    for parts in _attentions(source):
        if parts["k"].shape != parts["v"].shape:
            continue
        rows, fewer, rest = parts["q"].shape[0], parts["k"].shape[0], parts["k"].shape[1:]
        heads = wanted.get((rows, *rest), 0)
        if not 0 < fewer < rows or rows % fewer or heads == 0 or rows % heads or fewer % (rows // heads):
            continue
        for piece in (parts["k"], parts["v"]):
            for role in ("weight", "bias"):
                own = source.pieces.get(piece.name.beside(role))
                if own is not None and own.shape[:1] == (fewer,):
                    _repeat(source, own, fewer * heads // rows, rows // fewer)


def add_key_biases(source: Canon, target: Canon) -> None:
    """Add biases of zeros to keys of the source, if the model has biases of keys and the source has biases only for
    queries and values.

    A bias of keys does not change the result of an attention, and some code has none.
    """
    if not any(part_label(p.path) == "k" and p.role == "bias" for p in target.pieces.values()):
        return
    for parts in _attentions(source):
        biases = {part: source.pieces.get(p.name.beside("bias")) for part, p in parts.items()}
        value = biases["v"]
        if biases["q"] is not None and value is not None and biases["k"] is None:
            shape = parts["k"].shape[:1]
            source.put(replace(value, path=parts["k"].path, shape=shape, expr=ex.zeros(*shape)))


def _attentions(source: Canon) -> list[dict[str, Piece]]:
    """Return, for each attention with all three, "q", "k" and "v" -> its matrix."""
    blocks: dict[tuple[str, ...], dict[str, Piece]] = defaultdict(dict)
    for piece in source.pieces.values():
        label = part_label(piece.path)
        if label in ("q", "k", "v") and piece.role == "weight" and len(piece.shape) > 1:
            inside = 2 if fused_by_name(piece.entry.key) else 1  # a fused projection that was taken apart is a module
            blocks[piece.path[:-inside]][label] = piece
    return [parts for parts in blocks.values() if len(parts) == 3]


def _heads(target: Canon) -> dict[Shape, int]:
    """Return sizes of the model's key matrices -> number of heads that its code makes of them; {} if the matrices have
    different sizes.
    """
    keys = [p for p in target.pieces.values() if part_label(p.path) == "k" and p.role == "weight" and len(p.shape) > 1]
    found = {p.shape: heads_of(p.entry) or p.entry.facts.heads for p in keys}
    return found if len(found) == 1 else {}


def _repeat(source: Canon, piece: Piece, groups: int, times: int) -> None:
    """Replace PIECE, a weight or bias of keys or values, by one in which each of GROUPS groups of rows (its heads) is
    repeated TIMES times in place. With several groups it gets a question.
    """
    make: Callable[[Expr], Expr] = partial(_in_place, groups=groups, times=times)
    made = replace(piece, shape=(piece.shape[0] * times, *piece.shape[1:]))
    if groups > 1:
        made = made.asking(Reason.SHARED_HEADS, str(groups), str(times), option=ex.cat(0, *[piece.expr] * times))
    source.become(piece, [(made, make)], lambda e: e)


def _in_place(e: Expr, *, groups: int, times: int) -> Expr:
    return ex.by_heads(groups, *[e] * times) if groups > 1 else ex.cat(0, *[e] * times)
