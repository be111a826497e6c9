"""Gates of recurrent cells: a layer for each, or all of them in one matrix in the order of torch."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate, pairwise

from . import expression as ex
from .expression import Expr, Shape
from .layouts import is_bare
from .pieces import Canon, Piece
from .words import Cell, cut, table

_Path = tuple[str, ...]
_Held = dict[tuple[str, str], Piece]  # (side, gate) -> matrix

#: Words that say no more than that something is a layer.
_NOISE = frozenset("linear lin weight fc layer gate gates proj dense net kernel".split())
_SIDES = ("ih", "hh")
#: Why it is not certain how a matrix of a cell is laid out.
INPUT_FIRST = "whether this matrix takes the input or the hidden state first is in the code only"
_WHICH_WAY = "whether these matrices stand with their inputs or their outputs first is in the code only"
GATE_ORDER = "in which order the gates stand in this matrix is in the code only"


def join_gates(one: Canon, other: Canon) -> None:
    """Join gates that stand apart, where the other side has a layer that holds them in one matrix or kernel."""
    layers = any(piece.role == "weight_ih" for piece in other.pieces.values())
    wholes = {p.shape for p in other.pieces.values() if p.role == "weight" and len(p.shape) > 1}
    for depth in (1, 2):
        scopes: dict[_Path, list[Piece]] = defaultdict(list)
        for piece in one.pieces.values():
            if piece.role == "weight" and len(piece.path) >= depth:
                scopes[piece.path[:-depth]].append(piece)
        for scope, pieces in scopes.items():
            _join_scope(one, scope, pieces, depth, None if layers else wholes)
    if layers:
        _name_sides(one)


def are_gates(components: Sequence[str]) -> bool:
    """Whether these components are the names of all gates of one cell."""
    for cell in table().cells:
        said = [_gate_alone(_tokens([component]), cell) for component in components]
        if len(said) == len(cell.gates) and {key[1] for key in said if key is not None} == set(cell.gates):
            return True
    return False


def _join_scope(one: Canon, scope: _Path, pieces: list[Piece], depth: int, wholes: set[Shape] | None) -> None:
    """Join the gates of one cell; if there are WHOLES, only to one over the input and the hidden state at once."""
    matrices = [p for p in pieces if len(p.shape) >= 2]
    for cell in table().cells:
        for read in _READINGS:
            said = [(p, read(_tokens(p.path[-depth:]), cell)) for p in matrices]
            held = {key: p for p, key in said if key is not None}
            wanted = {(side, gate) for side in _SIDES for gate in cell.gates}
            counted = [key for _, key in said if key is not None]
            if len(counted) != len(held):
                continue
            if held.keys() == wanted and (wholes is None or _whole(held, cell) in wholes):
                _join(one, scope, cell, held, pieces, depth)
                return
            if wholes is None and held.keys() == {("", gate) for gate in cell.gates}:
                _join(one, scope, cell, _cut_in_two(one, held), pieces, depth)
                return


def _whole(held: _Held, cell: Cell) -> Shape | None:
    """The sizes of one layer for all gates over the input and the hidden state side by side."""
    ih, hh = (held[side, cell.gates[0]].shape for side in _SIDES)
    return (ih[0] * len(cell.gates), ih[1] + hh[1], *ih[2:]) if len(ih) == len(hh) else None


def _tokens(components: Sequence[str]) -> tuple[str, ...]:
    return tuple(word for component in components for word in cut(component) if word not in _NOISE)


_Reading = Callable[[tuple[str, ...], Cell], "tuple[str, str] | None"]


def _side_then_gate(tokens: tuple[str, ...], cell: Cell) -> tuple[str, str] | None:
    if len(tokens) != 2 or tokens[0] not in table().cell_sides or tokens[1] not in cell.words:
        return None
    return table().cell_sides[tokens[0]], cell.words[tokens[1]]


def _gate_then_side(tokens: tuple[str, ...], cell: Cell) -> tuple[str, str] | None:
    return _side_then_gate(tokens[::-1], cell)


def _in_one_word(tokens: tuple[str, ...], cell: Cell) -> tuple[str, str] | None:
    tokens = _without_letter(tokens)
    return _side_then_gate(tuple(tokens[0]), cell) if len(tokens) == 1 and len(tokens[0]) == 2 else None


def _without_letter(tokens: tuple[str, ...]) -> tuple[str, ...]:
    """The words of a name without the letter that stands for a weight: `W_xi` and `Wxi` are xi."""
    if tokens[:1] in (("w",), ("u",)):
        return tokens[1:]
    return (tokens[0][1:],) if len(tokens) == 1 and len(tokens[0]) == 3 and tokens[0][0] == "w" else tokens


def _in_one_word_turned(tokens: tuple[str, ...], cell: Cell) -> tuple[str, str] | None:
    tokens = _without_letter(tokens)
    return _gate_then_side(tuple(tokens[0]), cell) if len(tokens) == 1 and len(tokens[0]) == 2 else None


def _after_a_letter(tokens: tuple[str, ...], cell: Cell) -> tuple[str, str] | None:
    return _side_then_gate(tokens[1:], cell) if tokens[:1] == ("w",) else None


def _gate_alone(tokens: tuple[str, ...], cell: Cell) -> tuple[str, str] | None:
    tokens = tokens[1:] if tokens[:1] == ("w",) else tokens
    return ("", cell.words[tokens[0]]) if len(tokens) == 1 and tokens[0] in cell.words else None


_READINGS: tuple[_Reading, ...] = (
    _side_then_gate,
    _gate_then_side,
    _after_a_letter,
    _in_one_word,
    _in_one_word_turned,
    _gate_alone,
)


def _cut_in_two(one: Canon, held: _Held) -> _Held:
    """Matrices that take the input and the hidden state side by side, as two each."""
    found: _Held = {}
    for (_, gate), piece in held.items():
        rows, columns, *rest = piece.shape
        if rest or columns <= rows:
            return {}
        edges = (0, columns - rows, columns)
        turned = (0, rows, columns)
        new: list[tuple[Piece, Callable[[Expr], Expr]]] = []
        for place, side in enumerate(_SIDES):
            rival = None if one.is_target else ex.part(piece.expr, 1, *((rows, columns), turned[:2])[place])
            shape = (rows, edges[place + 1] - edges[place])
            doubts = (*piece.doubts, (INPUT_FIRST, rival))
            made = replace(piece, path=(*piece.path, side), shape=shape, order=piece.order + place / 8, doubts=doubts)
            new.append((made, partial(ex.part, dim=1, start=edges[place], stop=edges[place + 1])))
        one.become(piece, new, lambda *e: ex.cat(1, *e))
        for side, (made, _) in zip(_SIDES, new, strict=True):
            found[side, gate] = one.pieces[made.name]
    return found


def _join(one: Canon, scope: _Path, cell: Cell, held: _Held, pieces: list[Piece], depth: int) -> None:
    """Join the matrices of a cell, and their biases, in the order of torch."""
    rows = {p.shape[0] for p in held.values()}
    if not held or any(held["hh", gate].shape != held["hh", cell.gates[0]].shape for gate in cell.gates):
        return
    width = held["hh", cell.gates[0]].shape[0]
    doubts: tuple[tuple[str, Expr | None], ...] = ()
    ranks = {len(p.shape) for p in held.values()}
    if ranks != {2} and (len(ranks) > 1 or rows != {width}):
        return
    if rows != {width}:  # parameters of their own, with the inputs first
        if {held["ih", gate].shape[1] for gate in cell.gates} != {width}:
            return
        held = {key: _turned(one, p) for key, p in held.items()}
    elif {p.shape for p in held.values()} == {(width, width)} and is_bare(held["ih", cell.gates[0]]):
        doubts = ((_WHICH_WAY, None),)
    lone = {
        cell.words[tokens[1]]: p
        for p in pieces
        if len(p.shape) == 1
        and len(tokens := _tokens(p.path[-depth:])) == 2
        and tokens[0] in ("b", "bias")
        and tokens[1] in cell.words
    }
    first = held["ih", cell.gates[0]]
    for place, side in enumerate(_SIDES):
        own = [held[side, gate] for gate in cell.gates]
        biases = [one.pieces.get(".".join(_layer(p)) + "|bias") for p in own]
        new = replace(
            first,
            path=scope or ("cell",),
            role=f"weight_{side}",
            shape=(width * len(own), *own[0].shape[1:]),
            order=first.order + place / 8,
            words=tuple(w for c in scope for w in cut(c)),
            doubts=(*(d for p in own for d in p.doubts), *doubts),
        )
        _stack(one, own, new)
        if any(b is not None for b in biases):
            _stack(one, biases, replace(new, role=f"bias_{side}", shape=(width * len(own),)))
    if lone.keys() == set(cell.gates):
        made = replace(
            first, path=scope or ("cell",), role="bias_ih", shape=(width * len(lone),), order=first.order + 1 / 4
        )
        _stack(one, [lone[gate] for gate in cell.gates], made)


def _layer(piece: Piece) -> _Path:
    """The path of the layer that a matrix was cut from, where it was."""
    return piece.path[:-1] if piece.path[-1] in _SIDES else piece.path


def _turned(one: Canon, piece: Piece) -> Piece:
    made = replace(piece, shape=piece.shape[::-1])
    one.become(piece, [(made, ex.transpose)], ex.transpose)
    return one.pieces[made.name]


def _stack(one: Canon, parts: Sequence[Piece | None], new: Piece) -> None:
    """Several pieces one after the other as one; those that are missing are zeros."""
    there = [p for p in parts if p is not None]
    size = new.shape[0] // len(parts)
    gaps = [p is None for p in parts]

    def down(*e: Expr) -> Expr:
        given: Iterator[Expr] = iter(e)
        return ex.cat(0, *(Expr("zeros", (), (size,)) if gap else next(given) for gap in gaps))

    edges = list(pairwise(accumulate([0, *[size] * len(parts)])))
    up = [partial(ex.part, dim=0, start=a, stop=b) for (a, b), gap in zip(edges, gaps, strict=True) if not gap]
    one.merge(there, new, down, up)


def _name_sides(one: Canon) -> None:
    """Layers that hold all gates of one side each, as the two matrices of a cell; the order of the gates is a doubt."""
    scopes: dict[_Path, dict[str, list[Piece]]] = defaultdict(lambda: defaultdict(list))
    for piece in one.pieces.values():
        side = table().cell_matrices.get(cut(piece.path[-1])) if piece.path else None
        if side is not None and piece.role in ("weight", "bias"):
            scopes[piece.path[:-1]][side].append(piece)
    for scope, sides in scopes.items():
        weights = {side: next((p for p in found if p.role == "weight"), None) for side, found in sides.items()}
        ih, hh = weights.get("ih"), weights.get("hh")
        if ih is None or hh is None or len(hh.shape) != 2 or ih.shape[0] != hh.shape[0]:
            continue
        cell = next((c for c in table().cells if hh.shape[0] == len(c.gates) * hh.shape[1]), None)
        if cell is None:
            continue
        for side, found in sides.items():
            for piece in found:
                rival = None if one.is_target else reordered(piece.expr, piece.shape[0], cell.other, cell.gates)
                doubts = (*piece.doubts, (GATE_ORDER, rival))
                made = replace(piece, path=scope or ("cell",), role=f"{piece.role}_{side}", doubts=doubts)
                one.become(piece, [(made, lambda e: e)], lambda e: e)


def reordered(e: Expr, rows: int, have: Iterable[str], want: Iterable[str]) -> Expr:
    """The blocks of rows of a matrix, which stand in the order HAVE, in the order WANT."""
    have = list(have)
    size = rows // len(have)
    return ex.cat(0, *(ex.part(e, 0, size * at, size * (at + 1)) for at in (have.index(gate) for gate in want)))


def of_recurrent_kernels(source: Canon) -> None:
    """Gates that stand beside a `recurrent_kernel`, in the order of torch; of two biases in one tensor, two."""
    for hh in [p for p in source.pieces.values() if p.leaf == "recurrent_kernel"]:
        if hh.role != "weight_hh" or len(hh.shape) != 2 or not hh.shape[1]:
            continue
        cell = next((c for c in table().cells if hh.shape[0] == len(c.gates) * hh.shape[1]), None)
        if cell is None:
            continue
        bias = source.pieces.get(".".join(hh.path) + "|bias_ih")
        if bias is not None and bias.shape == (2, hh.shape[0]):
            both = [
                (replace(bias, role=f"bias_{side}", shape=bias.shape[1:]), partial(ex.select, dim=0, index=place))
                for place, side in enumerate(_SIDES)
            ]
            source.become(bias, both, lambda *e: ex.stack(*e))
        if cell.recurrent_kernel == cell.gates:
            continue
        for role in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
            piece = source.pieces.get(".".join(hh.path) + "|" + role)
            if piece is not None and piece.shape[0] == hh.shape[0]:
                order = partial(reordered, rows=piece.shape[0], have=cell.recurrent_kernel, want=cell.gates)
                source.become(piece, [(piece, order)], lambda e: e)
