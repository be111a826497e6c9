"""Gates of recurrent cells: a layer for each gate, or all gates in one matrix, in the order in which torch stacks them.

A side is "ih" (on the input) or "hh" (on the hidden state), "" if a name has none. A gate is the letter of a gate of a
given cell. A reading (`_READINGS`) takes the words of a layer's name to two words, for a side and for a gate, whose
meaning is (side, gate).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import accumulate, pairwise

from .. import expression as ex
from ..expression import Expr, Shape
from ..questions import Question, Reason
from ..words import RecurrentCell, cut, table
from .layouts import is_bare, turn
from .pieces import Canon, Name, Piece

_Path = tuple[str, ...]
_Held = dict[tuple[str, str], Piece]  # (side, gate) -> matrix
_Gates = tuple[str, tuple[str, ...]]  # (side, gates)

#: Words that say no more than that something is a layer.
_NOISE = frozenset("linear lin weight fc layer gate gates proj dense net kernel".split())
_SIDES = ("ih", "hh")
_BIAS = ("b", "bias")


def join_gates(source: Canon, target: Canon) -> None:
    """Join, on both sides, the layers of single gates of each recurrent cell, known by their names (`W_xi`, `W_hi`),
    into one `weight_ih` and one `weight_hh`, with their biases (`_join`). A side joins all its cells if the other side
    has a tensor with the role `weight_ih`; else only those cells for which the other side has one weight with the sizes
    of all gates together, over the concatenated input and hidden state. The source comes first, and what it has then
    counts for the target.

    Before that, matrices of several gates that are named by their letters (`W_iou`) are split (`_divide_letters`); if
    any were split, and both sides then have a layer for each gate, both sides join all their cells. A side that joins
    all its cells also gets torch's roles for layers that hold all gates already (`_name_sides`). At the end, layers of
    single gates that were not joined and whose names say no side (`convz`, `convr`, `convq`) get the words "cell",
    "gate" and the letter of the gate (`_name_apart`).
    """
    lettered = [_divide_letters(one, other) for one, other in ((source, target), (target, source))]
    both = any(lettered) and _has_gates(source) and _has_gates(target)
    for one, other in ((source, target), (target, source)):
        _join_all(one, other, layers=both or any(piece.role == "weight_ih" for piece in other.pieces.values()))
    for one in (source, target):
        _name_apart(one)


def _join_all(one: Canon, other: Canon, *, layers: bool) -> None:
    """Join the layers of single gates in ONE, weights one or two components below a module, into layers of this module
    for all gates (`_join_scope`). If LAYERS, all cells are joined, and then layers that hold all gates get torch's
    names (`_name_sides`). Else only cells are joined whose layer for all gates, over the concatenated input and hidden
    state, has the sizes of a weight of OTHER.
    """
    wholes = {p.shape for p in other.pieces.values() if p.role == "weight" and len(p.shape) > 1}
    for depth in (1, 2):
        for scope, pieces in _weights_in(one, depth).items():
            _join_scope(one, scope, pieces, depth, None if layers else wholes)
    if layers:
        _name_sides(one)


def _name_apart(one: Canon) -> None:
    """Add ("cell", "gate", letter of the gate) to the words of layers of ONE that are each one gate of a recurrent
    cell.

    In a module with three or more weights, those with two or more dimensions, equal sizes and equal numbers in their
    names are a group. All of a group get the words if their names are those of all gates of one kind of cell, each
    once, and say no side (input or hidden state): `W_i`, `W_f`, `W_g`, `W_o`. Else none of the group gets them. A
    module may have several groups: `convz1`, `convr1`, `convq1` and `convz2`, `convr2`, `convq2`.
    """
    for pieces in _weights_in(one, 1).values():
        for held in _numbered_alike(pieces) if len(pieces) > 2 else ():
            for cell in table().cells:
                said = {
                    name: key[1] for name, tokens in held.items() if (key := _meaning(_alone(tokens), cell)) is not None
                }
                if len(said) == len(held) and sorted(said.values()) == sorted(cell.gates):
                    for name, gate in said.items():
                        piece = one.pieces[name]
                        one.pieces[name] = replace(piece, words=(*piece.words, "cell", "gate", gate))


def _numbered_alike(pieces: Sequence[Piece]) -> list[dict[Name, _Path]]:
    """Return PIECES in groups, one for each combination of sizes and of the numbers in the last component of the path;
    tensors with less than two dimensions are left out. A group is name of a piece -> the words of that component,
    without numbers and without words that say no more than "layer" (`_NOISE`). Of a word such as "convz", only the
    letter is there (`_of_kind`): `convz1` and `convr1` of one size are a group, with ("z",) and ("r",).
    """
    rows: dict[tuple[Shape, _Path], dict[Name, _Path]] = defaultdict(dict)
    for piece in [p for p in pieces if len(p.shape) > 1]:
        tokens = _tokens(piece.path[-1:])
        numbers = tuple(token for token in tokens if token.isdecimal())
        rows[piece.shape, numbers][piece.name] = tuple(_of_kind(t) for t in tokens if not t.isdecimal())
    return list(rows.values())


def _of_kind(word: str) -> str:
    """Return the last letter of WORD if what is before it is a word for a layer ("convz" -> "z", "fcr" -> "r"); else
    WORD.
    """
    return word[-1] if word[:-1] in ("conv", *_NOISE) else word


def _weights_in(one: Canon, depth: int) -> dict[_Path, list[Piece]]:
    """Return path of a module -> the weights of ONE whose path is DEPTH components longer. Modules without any are left
    out.
    """
    scopes: dict[_Path, list[Piece]] = defaultdict(list)
    for piece in one.pieces.values():
        if piece.role == "weight" and len(piece.path) >= depth:
            scopes[piece.path[:-depth]].append(piece)
    return scopes


def _has_gates(one: Canon) -> bool:
    """Return whether some module of ONE has a weight for every gate of one kind of recurrent cell on the input, and one
    for every gate on the hidden state, by names of one pattern (one of `_READINGS`, such as `W_xi`, `W_hi`). The
    weights are all one, or all two components below the module. Their sizes do not matter.
    """
    return any(
        {key for p in pieces if (key := _meaning(read(_tokens(p.path[-depth:])), cell)) is not None} >= _all_of(cell)
        for depth in (1, 2)
        for pieces in _weights_in(one, depth).values()
        for cell in table().cells
        for read in _READINGS
    )


def _all_of(cell: RecurrentCell) -> set[tuple[str, str]]:
    """Return (side, gate) for both sides and all gates of CELL."""
    return {(side, gate) for side in _SIDES for gate in cell.gates}


def _divide_letters(one: Canon, other: Canon) -> bool:
    """Split the matrices of ONE that hold several gates of a recurrent cell, named by letters (`W_iou`), into a layer
    for each gate (`ih_i`, `ih_o`, `ih_g`), in each module whose matrices together hold all gates of the cell, for the
    input and for the hidden state (`_spelled_gates`). Return whether any matrix was split.

    Matrices of one gate in such a module stay whole, but get names of this kind. A vector of the module that is named
    as the bias of all gates (`bias_ifgo`) is split, too (`b_i`, `b_f` …), if it has a value for each row of all gates.
    Nothing is split in a module if OTHER has a weight with the sizes of a matrix of several gates in it.
    """
    theirs = {p.shape for p in other.pieces.values() if p.role == "weight"}
    found = False
    for scope, pieces in _weights_in(one, 1).items():
        matrices = [p for p in pieces if len(p.shape) == 2]
        for cell in table().cells:
            spelled = _spelled_gates(matrices, cell, theirs)
            for piece, (side, letters) in spelled:
                found = True
                _divide(one, scope, piece, side, letters)
            for piece in [p for p in pieces if len(p.shape) == 1] if spelled else ():
                rows = spelled[0][0].shape[0] // len(spelled[0][1][1])
                letters = _spelled_after_bias(_tokens(piece.path[-1:]), cell)
                if letters and piece.shape[0] == len(letters) * rows:
                    _divide(one, scope, piece, "b", letters)
    return found


def _spelled_gates(matrices: Sequence[Piece], cell: RecurrentCell, theirs: set[Shape]) -> list[tuple[Piece, _Gates]]:
    """Return (matrix, (side, gates)) for those of MATRICES, all in one module, whose names say which gates of CELL they
    hold: several gates, by their letters (`_several_gates`), or one gate, by one of the patterns `_READINGS`. The side
    is "ih" (input) or "hh" (hidden state). The first pattern counts with which these matrices hold each gate exactly
    once for either side, with equally many rows for each gate. Matrices with other names are left out.

    [] if there is no such pattern, if no matrix holds several gates, or if a matrix of several gates has sizes in
    THEIRS, the sizes of the other side's weights.
    """
    several = {p.name: said for p in matrices if (said := _several_gates(_tokens(p.path[-1:]), cell))}
    if not several or any(p.shape in theirs for p in matrices if p.name in several):
        return []
    for read in _READINGS:
        keys = {p.name: key for p in matrices if (key := _meaning(read(_tokens(p.path[-1:])), cell))}
        alone: dict[Name, _Gates] = {name: (side, (gate,)) for name, (side, gate) in keys.items()}
        known = [(p, said) for p in matrices if (said := several.get(p.name) or alone.get(p.name))]
        gates = [(side, gate) for _, (side, letters) in known for gate in letters]
        rows = {divmod(p.shape[0], len(letters)) for p, (_, letters) in known}
        if sorted(gates) == sorted(_all_of(cell)) and len(rows) == 1 and not next(iter(rows))[1]:
            return known
    return []


def _spelled_after_bias(tokens: tuple[str, ...], cell: RecurrentCell) -> tuple[str, ...]:
    """Return the gates of CELL in the order in which the name of a bias spells their letters. TOKENS are the words of
    the name: ("bias", "ifgo") gives ("i", "f", "g", "o"). () if the name is not a word for a bias and one word that
    spells each gate exactly once.
    """
    gates = tuple(cell.words.get(letter, "") for letter in tokens[1]) if len(tokens) == 2 and tokens[0] in _BIAS else ()
    return gates if set(gates) == set(cell.gates) and len(gates) == len(cell.gates) else ()


def _several_gates(tokens: tuple[str, ...], cell: RecurrentCell) -> _Gates | None:
    """Return (side, gates) of a matrix whose name, in words TOKENS, has a word or letter for its side and letters for
    two or more gates of CELL, in either order (`ioux`, `W_iou`, `h_rz`): ("ih", ("i", "o", "g")) for `W_iou` of an
    LSTM, the gates in the order of the letters. The side is "ih" (input) or "hh" (hidden state). None for other names.

    A name that is only the letters of all gates (`ifgo`) has the side "ih", although it does not tell.
    """
    word = tokens[0] if len(tokens) == 1 else ""
    if len(word) == len(cell.gates) == len({cell.words.get(letter) for letter in word} - {None}):
        return "ih", tuple(cell.words[letter] for letter in word)  # of all gates: what the side is, the other one says
    ways = [(word[-1:], word[:-1]), (word[:1], word[1:])] if word else [tokens, tokens[::-1]]
    for way in ways:
        if len(way) == 2 and way[0] in table().cell_sides and len(way[1]) > 1:
            gates = tuple(cell.words.get(letter, "") for letter in way[1])
            if len(set(gates) - {""}) == len(way[1]):
                return table().cell_sides[way[0]], gates
    return None


def _divide(one: Canon, scope: _Path, piece: Piece, side: str, gates: Sequence[str]) -> None:
    """Split PIECE of ONE, and the bias in its module, if there is one, into equal blocks of rows, one for each of GATES
    in their order. Each block has the role of the tensor that it was cut from, and the path SCOPE with `SIDE_GATE`
    behind it ("ih_i"). PIECE is a matrix of the SIDE "ih" or "hh", or a vector of biases with the SIDE "b". With one
    gate, nothing is cut, and both tensors only get this path.
    """
    for whole in (piece, one.pieces.get(piece.name.beside("bias"))):
        if whole is None or not whole.shape:
            continue
        size = whole.shape[0] // len(gates)
        new: list[tuple[Piece, Callable[[Expr], Expr]]] = []
        for at, gate in enumerate(gates):
            path, shape = (*scope, f"{side}_{gate}"), (size, *whole.shape[1:])
            made = replace(whole, path=path, shape=shape, order=whole.order + at / 8)
            new.append((made, partial(ex.part, dim=0, start=at * size, stop=(at + 1) * size)))
        if len(gates) == 1:
            one.change(whole, new[0][0])
        else:
            one.become(whole, new, partial(ex.cat, 0))


def are_gates(components: Sequence[str]) -> bool:
    """Return whether COMPONENTS are the names of all gates of one kind of recurrent cell, each gate once, in any order
    and without a side: `reset`, `update`, `new`, or `W_i`, `W_f`, `W_g`, `W_o`.
    """
    for cell in table().cells:
        said = [_meaning(_alone(_tokens((component,))), cell) for component in components]
        if len(said) == len(cell.gates) and {key[1] for key in said if key is not None} == set(cell.gates):
            return True
    return False


def _join_scope(one: Canon, scope: _Path, pieces: list[Piece], depth: int, wholes: set[Shape] | None) -> None:
    """Join the gates of one recurrent cell in the module SCOPE of ONE (`_join`), if the names of PIECES say that
    exactly one matrix or kernel holds each gate on the input, and one each gate on the hidden state. The first kind of
    cell counts, and for it the first pattern of names (`_READINGS`), with which they say so; if there is none, nothing
    is done. PIECES are the weights DEPTH components below SCOPE; those with names of other patterns do not count, and
    vectors may be biases.

    WHOLES are the sizes of the other side's weights: the gates are joined only if the layer for all of them, over the
    concatenated input and hidden state, has one of these sizes. If WHOLES is None, they are joined in any case; then
    also gates with a single matrix each, over input and hidden state, which is split in two first (`_cut_in_two`).
    """
    matrices = [p for p in pieces if len(p.shape) >= 2]
    for cell in table().cells:
        with_w = any(_tokens(p.path[-depth:])[:1] == ("w",) for p in matrices)
        for read in (read for read in _READINGS if not (with_w and read is _u_and_v)):
            said = [(key, p) for p in matrices if (key := _meaning(read(_tokens(p.path[-depth:])), cell)) is not None]
            held = dict(said)
            if len(said) != len(held):
                continue
            if held.keys() == _all_of(cell) and (wholes is None or _whole(held, cell) in wholes):
                _join(one, scope, cell, held, pieces, depth)
                return
            if wholes is None and held.keys() == {("", gate) for gate in cell.gates}:
                _join(one, scope, cell, _cut_in_two(one, held), pieces, depth)
                return


def _whole(held: _Held, cell: RecurrentCell) -> Shape | None:
    """Return the sizes of one layer for all gates of CELL over the concatenated input and hidden state. None if the
    layers HELD on the two have different numbers of dimensions.
    """
    ih, hh = (held[side, cell.gates[0]].shape for side in _SIDES)
    return (ih[0] * len(cell.gates), ih[1] + hh[1], *ih[2:]) if len(ih) == len(hh) else None


@cache
def _tokens(components: tuple[str, ...]) -> tuple[str, ...]:
    """Return the words of COMPONENTS of a path, without those that only say that something is a layer (`_NOISE`)."""
    return tuple(word for component in components for word in cut(component) if word not in _NOISE)


def _two_letters(words: _Path) -> _Path:
    """Return the two letters of a name that has no more than these: ("x", "i") for `xi`. A "w" or "u" for a weight may
    be before them, as a word of its own (`W_xi`, `U_hi`); "w" also without a separator (`Wxi`). () for other names.
    WORDS are the words of the name.
    """
    if words[:1] in (("w",), ("u",)):
        words = words[1:]
    elif len(words) == 1 and len(words[0]) == 3 and words[0][0] == "w":
        words = (words[0][1:],)
    return tuple(words[0]) if len(words) == 1 and len(words[0]) == 2 else ()


def _alone(words: _Path) -> _Path:
    """Return "" and WORDS, without "w" before them: for the name of a gate without a side (`i`, `W_i`)."""
    return ("", *(words[1:] if words[:1] == ("w",) else words))


def _u_and_v(words: _Path) -> _Path:
    """Return WORDS with a word for the input in place of "u", and one for the hidden state in place of "v" (`U_i`,
    `V_i`); () if they do not begin with one of the two. `_join_scope` does not use this reading where a name beside
    them begins with "w": then "u" stands for the hidden state.
    """
    side = {"u": "ih", "v": "hh"}.get(words[0] if words else "")
    return (side, *words[1:]) if side else ()


#: The readings: a side and a gate, a gate and a side; these after "w"; these as two letters; "u" and "v" and a gate; a
#: gate alone.
_READINGS: tuple[Callable[[_Path], _Path], ...] = (
    lambda words: words,
    lambda words: words[::-1],
    lambda words: words[1:] if words[:1] == ("w",) else (),
    _two_letters,
    lambda words: _two_letters(words)[::-1],
    _u_and_v,
    _alone,
)


def _meaning(words: _Path, cell: RecurrentCell) -> tuple[str, str] | None:
    """Return (side, gate) for WORDS, if they are two: a word for a side of the cell ("ih" for the input, "hh" for the
    hidden state) or "", and a word for a gate of CELL: ("ih", "f") for ("x", "forget"). The side of "" is "". None for
    all other words, also for one alone.
    """
    sides = table().cell_sides
    if len(words) != 2 or words[1] not in cell.words or words[0] not in ("", *sides):
        return None
    return sides.get(words[0], ""), cell.words[words[1]]


def _cut_in_two(one: Canon, held: _Held) -> _Held:
    """Split each matrix of HELD, (side, gate) -> matrix over the concatenated input and hidden state, into a matrix for
    each of the two (`_halves`), with a question unless the code shows which comes first. Return (side, gate) -> the new
    matrix, for the sides "ih" and "hh". {}, without a change, if HELD is empty, or if its matrices differ in size, are
    not wider than high, or have more than two dimensions.
    """
    sizes = {piece.shape for piece in held.values()}
    if len(sizes) != 1 or any(len(shape) != 2 or shape[1] <= shape[0] for shape in sizes):
        return {}  # before any is split: what does not become one cell stays whole
    found: _Held = {}
    for (_, gate), piece in held.items():
        new = _halves(piece, asked=not one.is_target)
        made = one.become(piece, list(new.values()), lambda *e: ex.cat(1, *e))
        found |= {(side, gate): half for side, half in zip(new, made, strict=True)}
    return found


def _halves(piece: Piece, *, asked: bool) -> dict[str, tuple[Piece, Callable[[Expr], Expr]]]:
    """Return side ("ih", "hh") -> (new matrix, the function that cuts it out of PIECE), in the order of the columns in
    PIECE, which holds those for the input and those for the hidden state; the latter are as many as its rows. The side
    is the last component of the new path. Nothing is replaced here.

    The hidden state comes first if the code shows it, else last. If the code does not show either, both new matrices
    have a question about it; if ASKED, its option is the columns for the other order, else it has none.
    """
    rows, columns = piece.shape
    hidden = piece.entry.facts.hidden
    spans = {"ih": (0, columns - rows), "hh": (columns - rows, columns)}
    others = {"ih": (rows, columns), "hh": (0, rows)}
    if hidden == 0:
        spans = {"hh": others["hh"], "ih": others["ih"]}
    new: dict[str, tuple[Piece, Callable[[Expr], Expr]]] = {}
    for place, (side, (start, stop)) in enumerate(spans.items()):
        made = replace(piece, path=(*piece.path, side), shape=(rows, stop - start), order=piece.order + place / 8)
        if hidden is None:
            option = ex.part(piece.expr, 1, *others[side]) if asked else None
            made = made.asking(Reason.HIDDEN_FIRST, option=option)
        new[side] = made, partial(ex.part, dim=1, start=start, stop=stop)
    return new


def _join(one: Canon, scope: _Path, cell: RecurrentCell, held: _Held, pieces: list[Piece], depth: int) -> None:
    """Replace the matrices of a recurrent cell, and their biases, by `weight_ih`, `weight_hh`, `bias_ih`, `bias_hh` in
    the module SCOPE ("cell" if it is the outermost), with the gates in torch's order. Vectors among PIECES that are
    biases by name, one for each gate, become `bias_ih`; if a gate has none, all of them stay. Nothing is done if the
    sizes are not those of one cell (`_in_torch_layout`).

    If all matrices are square and of one size, and the matrix of the first gate on the input is an `nn.Parameter` of
    its own (`is_bare`), all of them may have inputs first: the new matrices and the biases of the old ones have a
    question about it, unless the code shows it for each matrix.

    Args:
        one: the side.
        scope: the path of the module around the layers.
        cell: the kind of the cell.
        held: (side, gate) -> matrix, for all sides and gates.
        pieces: the weights DEPTH components below SCOPE, among which are vectors for the gates (`_lone_biases`).
        depth: how many components the paths of PIECES are longer than SCOPE.
    """
    held = _in_torch_layout(one, cell, held)
    if not held:
        return
    first = held["ih", cell.gates[0]]
    width = first.shape[0]
    unsure = {p.shape for p in held.values()} == {(width, width)} and is_bare(first)
    unsure = unsure and any(p.entry.facts.inputs_first is None for p in held.values())
    lone = _lone_biases(cell, [p for p in pieces if p.shape == (width,)], depth)
    new = replace(first, path=scope or ("cell",), words=tuple(w for c in scope for w in cut(c)))
    for place, side in enumerate(_SIDES):
        own = [held[side, gate] for gate in cell.gates]
        _join_side(one, own, replace(new, order=first.order + place / 8), side, unsure=unsure)
    if lone.keys() == set(cell.gates):
        made = replace(new, role="bias_ih", shape=(width * len(lone),), order=first.order + 1 / 4, words=first.words)
        _stack(one, [lone[gate] for gate in cell.gates], made)


def _in_torch_layout(one: Canon, cell: RecurrentCell, held: _Held) -> _Held:
    """Return HELD, (side, gate) -> matrix or kernel of CELL, with outputs first. It is HELD as it is if the tensors on
    the input ("ih") and on the hidden state ("hh") have equally many rows and dimensions. Else all are transposed in
    ONE, and the new ones returned, if they are matrices, and those on the input have as many columns as those on the
    hidden state have rows.

    {}, without a change, if HELD is empty, if the gates of a side have several sizes, or if neither layout fits.
    """
    if not held or any(len({held[side, gate].shape for gate in cell.gates}) > 1 for side in _SIDES):
        return {}
    ih, hh = (held[side, cell.gates[0]].shape for side in _SIDES)
    if len(ih) == len(hh) and ih[0] == hh[0]:
        return held
    if len(ih) != 2 or len(hh) != 2 or ih[1] != hh[0]:
        return {}
    return {key: turn(one, p) for key, p in held.items()}


def _lone_biases(cell: RecurrentCell, vectors: Sequence[Piece], depth: int) -> dict[str, Piece]:
    """Return gate of CELL -> the one of VECTORS whose name, the last DEPTH components of its path, is a word for a bias
    and the gate (`b_i`). Other vectors are left out.
    """
    named = [(p, _tokens(p.path[-depth:])) for p in vectors]
    said = [(p, tokens) for p, tokens in named if len(tokens) == 2 and tokens[0] in _BIAS]
    return {cell.words[tokens[1]]: p for p, tokens in said if tokens[1] in cell.words}


def _join_side(one: Canon, own: Sequence[Piece], new: Piece, side: str, *, unsure: bool) -> None:
    """Replace OWN, the matrices of the gates of one SIDE of a cell, by one matrix with the role `weight_SIDE`, and
    their biases by one with the role `bias_SIDE`; both have the path and order of NEW. A missing bias is zeros. If
    there are no biases, or one has another length than a gate has rows, none is joined.

    Both new pieces have the questions of all OWN (`_asked_of`), the one for the biases without options; if UNSURE, also
    the question whether the matrices have inputs first.
    """
    width = own[0].shape[0]
    biases = [one.pieces.get(Name(_layer(p), "bias")) for p in own]
    new = replace(new, role=f"weight_{side}", shape=(width * len(own), *own[0].shape[1:]), questions=_asked_of(own))
    if unsure:
        new = new.asking(Reason.INPUTS_FIRST_OF_SEVERAL)
    _stack(one, own, new)
    if {b.shape for b in biases if b is not None} == {(width,)}:
        asked = tuple(q.about() for q in new.questions)
        _stack(one, biases, replace(new, role=f"bias_{side}", shape=(width * len(own),), questions=asked))


def _asked_of(gates: Sequence[Piece]) -> tuple[Question[Expr], ...]:
    """Return the questions of GATES, each once, for the one matrix that GATES become. If a question has as many options
    in all of GATES as there are GATES, one each, these are concatenated by rows to its only option; else it has none.
    """
    found = []
    for question in dict.fromkeys(q.about() for p in gates for q in p.questions):
        options = [x for p in gates for q in p.questions if q.about() == question for x in q.options]
        found.append(question.about(ex.cat(0, *options)) if len(options) == len(gates) else question)
    return tuple(found)


def _layer(piece: Piece) -> _Path:
    """Return the path of the matrix PIECE, without a last component "ih" or "hh", which `_cut_in_two` adds."""
    return piece.path[:-1] if piece.last in _SIDES else piece.path


def _stack(one: Canon, parts: Sequence[Piece | None], new: Piece) -> None:
    """Replace PARTS of ONE by NEW, in which they follow one another along dimension 0. Where PARTS has None, NEW has as
    many zeros as one part has values (its rows divided by the number of PARTS); only vectors may have such gaps.
    """
    there = [p for p in parts if p is not None]
    size = new.shape[0] // len(parts)
    gaps = [p is None for p in parts]

    def down(*e: Expr) -> Expr:
        given: Iterator[Expr] = iter(e)
        return ex.cat(0, *(ex.zeros(size) if gap else next(given) for gap in gaps))

    edges = list(pairwise(accumulate([0, *[size] * len(parts)])))
    up = [partial(ex.part, dim=0, start=a, stop=b) for (a, b), gap in zip(edges, gaps, strict=True) if not gap]
    one.merge(there, new, down, up)


def _name_sides(one: Canon) -> None:
    """Give the two layers of a recurrent cell, for the input and for the hidden state (`_named_sides`), torch's names
    (`weight_ih`, `weight_hh`), and the path of the module around them ("cell" for the outermost); their biases become
    `bias_ih` and `bias_hh`. A bias of that module itself, with as many values as the weights have rows, becomes
    `bias_ih`, too. The gates are put in torch's order (`_order_gates`). Nothing changes in a module that lacks one of
    the weights, whose weights have different numbers of rows, or whose weight on the hidden state has not as many rows
    for each gate as columns (`_cell_of`).
    """
    for scope, sides in _named_sides(one).items():
        ih, hh = (next((p for p in sides[side] if p.role == "weight"), None) for side in _SIDES)
        cell = None if ih is None or hh is None or ih.shape[:1] != hh.shape[:1] else _cell_of(hh)
        if cell is None or hh is None:
            continue
        lone = one.pieces.get(Name(scope, "bias"))
        if lone is not None and lone.shape == hh.shape[:1]:
            sides[""].append(lone)
        for side, piece in [(side, piece) for side, found in sides.items() for piece in found]:
            role = f"{piece.role}_{side}" if side else "bias_ih"
            _order_gates(one, piece, replace(piece, path=scope or ("cell",), role=role), cell)


def _named_sides(one: Canon) -> dict[_Path, dict[str, list[Piece]]]:
    """Return path of a module -> side ("ih" for the input, "hh" for the hidden state) -> the weights and biases of the
    layers on that side, by names such as `i2h` and `h2h`. The last component of the path is such a name, and the module
    is the one around it (`cell` for `cell.i2h.weight`); or the last name of a weight is one, other than "weight" (`W`,
    `U`), and the module is that of the weight. Modules without such names are left out.
    """
    scopes: dict[_Path, dict[str, list[Piece]]] = defaultdict(lambda: defaultdict(list))
    for piece in one.pieces.values():
        by_leaf = piece.role == "weight" and piece.leaf != "weight" and piece.leaf != piece.last
        side = table().cell_matrices.get(cut(piece.leaf if by_leaf else piece.last))
        if side is not None and piece.role in ("weight", "bias"):
            scopes[piece.path if by_leaf else piece.path[:-1]][side].append(piece)
    return scopes


def _cell_of(hh: Piece) -> RecurrentCell | None:
    """Return the first kind of cell for which the matrix HH on the hidden state has as many rows for each gate as it
    has columns; None if there is none, or if HH is no matrix.
    """
    if len(hh.shape) != 2:
        return None
    return next((c for c in table().cells if hh.shape[0] == len(c.gates) * hh.shape[1]), None)


def _order_gates(one: Canon, piece: Piece, new: Piece, cell: RecurrentCell) -> None:
    """Replace PIECE, a tensor of ONE with the rows of all gates of CELL, by NEW, with the gates in torch's order. If
    the code shows the order of these gates for PIECE, the rows are moved, where it is not torch's, and nothing is
    asked. If it does not show it, the rows stay as they are, and NEW gets a question; on the source, the rows taken
    from the other usual order (`CELL.other`) are its option, on the target it has none.
    """
    rows, have = piece.shape[0], piece.entry.facts.gates
    if sorted(have) != sorted(cell.gates):
        rival = None if one.is_target else reordered(piece.expr, rows, cell.other, cell.gates)
        one.change(piece, new.asking(Reason.GATE_ORDER, ", ".join(cell.gates), option=rival))
    else:
        down, up = (partial(reordered, rows=rows, have=a, want=b) for a, b in ((have, cell.gates), (cell.gates, have)))
        one.change(piece, new, down, up)


def reordered(e: Expr, rows: int, have: Sequence[str], want: Sequence[str]) -> Expr:
    """Return the tensor E with ROWS rows, one block of equally many rows for each gate, with the blocks moved from the
    order HAVE to the order WANT, names of gates; E itself if these are equal.
    """
    if have == want:
        return e
    size = rows // len(have)
    return ex.cat(0, *(ex.part(e, 0, size * at, size * (at + 1)) for at in (have.index(gate) for gate in want)))


def of_recurrent_kernels(source: Canon) -> None:
    """Bring layers of the source with a `recurrent_kernel` (Keras), which has the role `weight_hh`, into torch's form:
    a bias [2, rows] is split into `bias_ih` and `bias_hh`, and in weights and biases the gates are moved from the order
    of Keras into torch's, without a question (only those of a GRU, because the orders of an LSTM are equal).

    The kind of the cell follows from the sizes (`_cell_of`): layers whose `recurrent_kernel` has not as many rows for
    each gate as columns, for any kind, stay as they are.
    """
    for hh in [p for p in source.pieces.values() if p.leaf == "recurrent_kernel" and p.role == "weight_hh"]:
        cell = _cell_of(hh)
        if cell is None:
            continue
        bias = source.pieces.get(hh.name.beside("bias_ih"))
        if bias is not None and bias.shape == (2, hh.shape[0]):
            _split_bias(source, bias)
        for role in ("weight_ih", "weight_hh", "bias_ih", "bias_hh") if cell.recurrent_kernel != cell.gates else ():
            piece = source.pieces.get(hh.name.beside(role))
            if piece is not None and piece.shape[0] == hh.shape[0]:
                order = partial(reordered, rows=piece.shape[0], have=cell.recurrent_kernel, want=cell.gates)
                source.change(piece, piece, order)


def _split_bias(source: Canon, bias: Piece) -> None:
    """Split BIAS, [2, rows], into `bias_ih` and `bias_hh`, [rows] each."""
    both = [
        (replace(bias, role=f"bias_{side}", shape=bias.shape[1:]), partial(ex.select, dim=0, index=place))
        for place, side in enumerate(_SIDES)
    ]
    source.become(bias, both, lambda *e: ex.stack(*e))
