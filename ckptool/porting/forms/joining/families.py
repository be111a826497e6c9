"""Families: tensors of one module whose names belong together and that are one tensor on the other side.

The order of the parts is a question, unless their names count or the name of the joined tensor spells it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import pairwise
from math import gcd
from operator import or_
from typing import NamedTuple

from ... import expression as ex
from ...expression import Shape
from ...matching.namesakes import namesakes
from ...matching.units import template
from ...questions import Reason
from ...words import cut, label, table
from ..fusing.projections import part_label, said_part
from ..pieces import Canon, Name, Piece, squeezed
from ..spelled import spelled
from .join import Join, SizeCounts, merge, merge_sum
from .named_by_code import order_by_code, parts_by_code, words_apart
from .shift_scale_gate import gives_shift_first, shift_first

_Path = tuple[str, ...]

_LETTERS = "abcdefgh"


def siblings(one: Canon, other: Canon) -> dict[_Path, list[Piece]]:
    """Return path of a module of ONE -> the weights of the layers directly in it that may be parts of one tensor of
    OTHER. Left out are weights that OTHER has with the same sizes and the same path, as it is or below another prefix
    (`namesakes`), those of keys or values with fewer heads than in OTHER (`_of_fewer_heads`), and modules of which no
    weight is left.

    If such a module has a weight itself (`words.weight` beside `words.more.weight`), and this weight and all of these
    have two or more dimensions, it is added as the last, even if OTHER has it under the same name.
    """
    siblings: dict[_Path, list[Piece]] = defaultdict(list)
    labelled = {(label, p.shape) for p in other.pieces.values() if (label := part_label(p.path)) and len(p.shape) > 1}
    there = namesakes(one, other)
    for piece in one.pieces.values():
        if piece.role == "weight" and piece.path and piece.name not in there and not _of_fewer_heads(piece, labelled):
            siblings[piece.path[:-1]].append(piece)
    for parent, held in siblings.items():  # what is called by its module alone: `words.weight` beside `words.more`
        own = one.pieces.get(Name(parent, "weight"))
        if own is not None and all(len(p.shape) > 1 for p in (own, *held)):
            held.append(own)
    return siblings


def _of_fewer_heads(piece: Piece, labelled: set[tuple[str, Shape]]) -> bool:
    """Return whether PIECE is a weight for keys or values, by its name, and the other side has a weight for the same
    with two or more times its rows (a multiple) and equal other sizes. LABELLED has (part, sizes) for the weights of
    the other side that are parts of projections by name: "q", "k", "v", "gate" or "up".
    """
    which = part_label(piece.path)
    return which in ("k", "v") and any(
        label == which
        and shape[1:] == piece.shape[1:]
        and 0 < piece.shape[0] < shape[0]
        and shape[0] % piece.shape[0] == 0
        for label, shape in labelled
    )


def join_families(one: Canon, other: Canon) -> bool:
    """Join families of ONE (weights in one module that may be parts of one tensor, by code, names and sizes), and their
    biases if these fit, where OTHER has more tensors of the joined sizes than ONE. Return whether any were joined.

    For each joined size, let N be how many more tensors of it OTHER has. If at most N families may become tensors of
    this size, all of them are joined. If there are more, one of these groups is joined, or none if it has more than N:

      - the families whose order of parts names or code show (`_order`; numbers, as in `fc1`, `fc2`, do not count);
      - if there are none, the families whose module has a path that, without numbers, at most N of the families have.
        The order of their parts is a question.

    A joined tensor has a question, unless names or code show the order of its parts for certain. ONE is changed.
    """
    sizes = SizeCounts(one, other)
    wholes: dict[Shape, list[Piece]] = defaultdict(list)
    for piece in other.pieces.values():
        wholes[squeezed(piece.shape)].append(piece)
    made: dict[Shape, list[tuple[_Path, Family, Join, _Order]]] = defaultdict(list)
    for parent, family, join in _plans(one, other, sizes):
        whole = squeezed(join.shape(family.parts[0].shape))
        made[whole].append((parent, family, join, _order(family, join, wholes[whole])))
    joined = False
    for whole, found in made.items():
        if len(found) > sizes.wanted(whole):
            blocks = Counter(template(plan[0]) for plan in found)
            few = [plan for plan in found if blocks[template(plan[0])] <= sizes.wanted(whole)]
            asked_for = [(parent, replace(family, numbered=False), join, order) for parent, family, join, order in few]
            found = [plan for plan in found if plan[-1].parts is not None] or asked_for
        for parent, family, join, order in found if len(found) <= sizes.wanted(whole) else ():
            join_family(one, parent, *_ordered(family, join, order))
            joined = True
    return joined


def _plans(one: Canon, other: Canon, sizes: SizeCounts) -> list[tuple[_Path, Family, Join]]:
    """Return (path of the module, family, how to join it) for each family of ONE that can be joined, because OTHER has
    more tensors of the joined sizes (`join_of_family`), and none of whose parts feeds another (`_in_turn`). No tensor
    is in two of these families: the first with it counts; families that the code of OTHER names (`parts_by_code`) come
    first in a module. Nothing is joined here. SIZES counts the tensors of both sides.
    """
    plans: list[tuple[_Path, Family, Join]] = []
    taken: set[Name] = set()
    lacking = [p for p in other.pieces.values() if (p.entry.facts.parts or p.entry.facts.takes)]
    lacking = [p for p in lacking if sizes.wanted(p.shape) > 0]
    for parent, pieces in siblings(one, other).items():
        surplus = [p for p in pieces if sizes.wanted(p.shape) < 0] if lacking else []
        by_code = parts_by_code(surplus, lacking, other)
        for family in (*(Family(parts, (), numbered=True) for parts in by_code), *families(pieces, sizes)):
            join = join_of_family(family, sizes)
            if join is not None and not taken & {p.name for p in family.parts} and not _in_turn(family, join):
                taken |= {p.name for p in family.parts}
                plans.append((parent, family, join))
    return plans


def _in_turn(family: Family, join: Join) -> bool:
    """Return whether FAMILY cannot be one layer, because the output of one part flows into the input of another part,
    and JOIN makes the parts rows of one matrix (JOIN.dim is 0): a layer computes all of its outputs at once. False if
    JOIN joins along another dimension, and for parts whose place in the graph of the forward pass is not known.
    """
    flows = [flow for part in family.parts if (flow := part.entry.facts.flow) is not None]
    given = reduce(or_, (flow.bit for flow in flows), 0)
    return join.dim == 0 and any(flow.before & given & ~flow.bit for flow in flows)


def _ordered(family: Family, join: Join, order: _Order) -> tuple[Family, Join]:
    """Return (FAMILY, JOIN) with the parts, and their sizes, in ORDER, and with `numbered` of the family set to whether
    ORDER is certain. Both are returned as they are if ORDER has no parts.

    If code shows ORDER, the parts follow one another (JOIN.turns is 1). Else `by_heads` of the family is set for rows
    of queries, keys and values, by their names, that are not all of one size: a name such as `qkv` gives their order,
    but not whether it is that of the whole tensor or of the rows of each head.
    """
    if order.parts is None:
        return family, join
    of_heads = join.dim == 0 and len(set(join.sizes)) > 1 and all(_label(p.words) for p in order.parts)
    by_heads = family.by_heads or (of_heads and not order.by_code)
    turned = replace(join, turns=1) if order.by_code else join
    made = replace(family, parts=order.parts, numbered=order.told, by_heads=by_heads)
    sizes = {part.name: size for part, size in zip(family.parts, join.sizes, strict=True)}
    return made, replace(turned, sizes=tuple(sizes[part.name] for part in order.parts))


class _Order(NamedTuple):
    """The order of parts in the tensor that they become.

    Attributes:
        parts: the parts in this order; None if nothing shows it.
        told: whether this order is certain. It has no meaning without parts.
        by_code: whether code of the other side shows it, which divides the output of the joined tensor, or concatenates
            its input.
    """

    parts: tuple[Piece, ...] | None
    told: bool = True
    by_code: bool = False


def _order(family: Family, join: Join, wholes: Sequence[Piece]) -> _Order:
    """Return the order of the parts of FAMILY in WHOLES, the tensors of the other side with the sizes to which JOIN
    joins the parts, and whether it is certain. Its `parts` is None if nothing shows an order.

    The first of these that shows an order counts:
      - a name of WHOLES that spells the parts, or that gives shift, scale and gate, if the parts are named so: certain;
      - a gate and its value (`_by_gate`), if the code of the parts shows that one of them is a gate or a value;
      - code that divides the outputs of WHOLES, or concatenates their inputs (`order_by_code`): certain, unless the
        parts are gate and value, and their names do not surely say so;
      - a gate and its value by name alone (`_by_gate`);
      - for rows, unless FAMILY.numbered: the code of the parts, which concatenates their outputs: not certain.
    """
    named = spelled_parts(family.parts, {piece.last for piece in wholes if piece.path})
    if named is None and any(map(gives_shift_first, wholes)):
        named = shift_first(family.parts)
    if named is not None:
        return _Order(named)
    by_gate, told = _by_gate(family.parts, wholes)
    by_code = order_by_code(family.parts, join.sizes, join.dim, wholes)
    seen = by_gate is not None and any(p.entry.facts.beside_gate or p.entry.facts.opens for p in family.parts)
    if by_code is not None and not seen:
        return _Order(by_code, told, by_code=True)
    if by_gate is None and join.dim == 0 and not family.numbered:
        return _Order(_as_concatenated(family.parts), told=False)
    return _Order(by_gate, told)


def _as_concatenated(parts: Sequence[Piece]) -> tuple[Piece, ...] | None:
    """Return PARTS in the order in which their code concatenates their outputs; None if it is not known to concatenate
    the output of each of them, or if two of PARTS have one place.
    """
    places = {part.entry.facts.place: part for part in parts}
    if None in places or len(places) < len(parts):
        return None
    return tuple(places[at] for at in sorted(places, key=lambda at: at or 0))


def spelled_parts(parts: Sequence[Piece], wholes: set[str]) -> tuple[Piece, ...] | None:
    """Return PARTS in the order in which one of WHOLES, names of tensors of the other side, spells their last names
    (`spelled`): (`conv_z`, `conv_r`) for `conv_zr`. None if no name does, or if several orders are spelled.
    """
    order = spelled([part.last for part in parts], wholes)
    return None if order is None else tuple(parts[at] for at in order)


def _by_gate(parts: Sequence[Piece], wholes: Sequence[Piece]) -> tuple[tuple[Piece, ...] | None, bool]:
    """Return (gate and value in the order in which the forward pass splits WHOLES, the joined tensors; whether it is
    certain which of PARTS is the gate). (None, True) if PARTS are not two, of which just one is the gate, or if the
    order is not known: a tensor of WHOLES shows no gate, or two of them show it in different halves.

    The gate is the layer that goes through the activation. The code of PARTS shows it for certain. Else the name of the
    gate counts; it is certain if the activation is a sigmoid, or if one of the names means the value ("up"): code that
    adds a layer to a feed-forward network may call that layer the gate, and pass the first layer of the network through
    the activation.
    """
    seen = {piece.entry.facts.gate for piece in wholes}
    halves = {None if gate is None else gate.half for gate in seen}
    opened = [part for part in parts if "gate" in (part.entry.facts.beside_gate, part.entry.facts.opens)]
    words = dict(zip((part.name for part in parts), words_apart([part.words for part in parts]), strict=True))
    said = {name: {said_part(own), *own} for name, own in words.items()}
    named = [part for part in parts if {"gate", "gates"} & said[part.name]]
    gates = opened or named
    if len(parts) != 2 or len(gates) != 1 or len(halves) != 1 or halves == {None}:
        return None, True
    sigmoid = all(gate is not None and gate.is_sigmoid for gate in seen)
    told = bool(opened) or sigmoid or any("up" in one for one in said.values())
    return tuple(sorted(parts, key=lambda part: (part is gates[0]) != (halves == {0}))), told


@dataclass(frozen=True, slots=True)
class Family:
    """Tensors of one module whose names or sizes say that they may be parts of one tensor.

    Attributes:
        parts: the parts, in order.
        stem: the words that their names share, () if that is not known.
        numbered: whether the order of the parts is certain, as by numbers in their names.
        turns: whether the parts may be interleaved.
        by_heads: whether the parts may be stored head by head, which is a question.
    """

    parts: tuple[Piece, ...]
    stem: _Path
    numbered: bool
    turns: bool = False
    by_heads: bool = False


def families(pieces: list[Piece], sizes: SizeCounts) -> list[Family]:
    """Return the families of PIECES, tensors of one module: groups of tensors that may be parts of one tensor, the
    likeliest first. A tensor may be in several families. Tensors of a size of which, by SIZES, the other side has at
    least as many as this side are in none.

    The families are, in this order: names that the vocabulary lists together, in an order that is certain
    (`_listed_together`); three or more tensors of one size whose names differ only in the last word; all members of a
    list (`0`, `1` …, which are in no other family), if their sizes differ; names that differ in a number, in a letter,
    or in q, k and v (`_counted`); matrices and kernels that take one input (`_of_one_input`); update and reset gates;
    names that the vocabulary lists together in no certain order; tensors whose sizes differ in one dimension, or in
    none (`_of_like_sizes`).
    """
    pieces = sorted((p for p in pieces if sizes.wanted(p.shape) < 0), key=lambda p: p.order)
    members = sorted((p for p in pieces if p.last.isdecimal()), key=lambda p: int(p.last))
    pieces = [p for p in pieces if not p.last.isdecimal()]
    of_list = [Family(tuple(members), (), numbered=True)] if len({p.shape for p in members}) > 1 else []
    listed = _listed_together(pieces)
    return [
        *(family for family in listed if family.numbered),
        *_of_one_stem(pieces),
        *of_list,
        *_counted(pieces),
        *_of_one_input(pieces),
        *_of_gates(pieces),
        *(family for family in listed if not family.numbered),
        *_of_like_sizes(pieces),
    ]


def _counted(pieces: list[Piece]) -> list[Family]:
    """Return a family for each two or more of PIECES whose names differ only in the number at the end (`fc1`, `fc2`);
    then for those that differ in a letter that counts (`conv1a`, `conv1b`, see `_counts`); then for those that differ
    in the word for queries, keys or values. The parts are in the order of the numbers, of the alphabet, or q, k, v.
    The order is certain (`numbered`) for numbers and letters without a gap, never for q, k, v. Sizes do not matter.
    """
    found = []
    for known in (_number, _letter, _label):
        groups: dict[_Path, dict[str, Piece]] = defaultdict(dict)
        for piece in pieces:
            said = known(cut(piece.last))
            if said is not None:
                groups[said[1]][said[0]] = piece
        for stem, members in [(stem, members) for stem, members in groups.items() if len(members) > 1]:
            ordered = tuple(members[k] for k in sorted(members, key=int))
            if known is not _letter or _counts(members, ordered):
                found.append(Family(ordered, stem, known is not _label and _in_a_row([int(k) for k in members])))
    return found


def _of_one_input(pieces: list[Piece]) -> list[Family]:
    """Return a family for each two or more matrices or kernels among PIECES that have equal sizes and take the same
    tensor as their input, as the forward pass shows. The parts are in the order of PIECES, which is not certain
    (`numbered` is False). Those whose input is not known are left out.
    """
    groups: dict[tuple[int, Shape], list[Piece]] = defaultdict(list)
    for piece in pieces:
        taken = piece.entry.facts.input
        if taken is not None and len(piece.shape) > 1:
            groups[taken, piece.shape].append(piece)
    return [Family(tuple(group), (), numbered=False) for group in groups.values() if len(group) > 1]


def _listed_together(pieces: list[Piece]) -> list[Family]:
    """Return a family for each row of outputs that the vocabulary lists together (`mean` and `logvar`), if the names of
    PIECES mean enough outputs of the row: two, or all if the row says so. The parts are in the order of the row; the
    order is certain (`numbered`), and the parts may be interleaved (`turns`), if the row says so. If several of PIECES
    mean one output, the last counts.
    """
    found = []
    for kinds in table().together:
        labelled = {part: p for p in pieces if (part := kinds.label(cut(p.last))) is not None}
        if len(labelled) >= kinds.needed:
            parts = tuple(labelled[k] for k in kinds.parts if k in labelled)
            found.append(Family(parts, (), numbered=kinds.sure, turns=kinds.turns))
    return found


def _of_like_sizes(pieces: list[Piece]) -> list[Family]:
    """Return families of tensors among PIECES whose sizes differ at most in the first dimension, or at most in the
    second. For each such group of two or more: all of the group, then those that share a word (`_of_one_word`), then
    the tables of positions (`_of_positions`). The order is not certain, but for some tables of positions.

    The order is that of PIECES. But in a group that differs in the second dimension, tables [1, n, d] have those of one
    row, [1, 1, d], first, and other tensors are in the order of their use in the forward pass, if it is known.
    """
    alike: dict[tuple[int, Shape], list[Piece]] = defaultdict(list)
    for piece in pieces:
        for dim in range(min(len(piece.shape), 2)):
            alike[dim, (*piece.shape[:dim], 0, *piece.shape[dim + 1 :])].append(piece)
    found = []
    for (dim, rest), group in alike.items():
        if dim == 1 and rest[0] == 1:
            group.sort(key=lambda p: p.shape[1] != 1)
        elif dim == 1 and all(p.used is not None for p in group):
            group.sort(key=lambda p: p.used or 0)
        if len(group) > 1:
            found.append(Family(tuple(group), (), numbered=False))
            found += _of_one_word(group)
            found += _of_positions(group, dim)
    return found


def _of_positions(group: Sequence[Piece], dim: int) -> list[Family]:
    """Return [the family of those tensors of GROUP that are tables of positions by their names], if there are two or
    more of these, and also other tensors in GROUP (usually a token for the class, which is not joined here); else [].
    DIM is the dimension in which the sizes of GROUP differ. The parts are in the order of GROUP, which is certain if
    DIM is 1 and the first table is a single row for a token (`_is_token`).
    """
    tables = [p for p in group if label(table().group("embedding"), p.words) == "position"]
    if not 1 < len(tables) < len(group):
        return []
    return [Family(tuple(tables), (), numbered=dim == 1 and _is_token(tables[0]))]


def _is_token(piece: Piece) -> bool:
    """Return whether PIECE, a table [1, rows, size], has one row, and "cls", "class" or "token" in its name."""
    return piece.shape[1] == 1 and not {"cls", "class", "token"}.isdisjoint(piece.words)


def _of_one_word(group: Sequence[Piece]) -> list[Family]:
    """Return a family for each word that the last names of two or more tensors of GROUP have, but not of all: these
    tensors in the order of GROUP, which is not certain. The families of the words of the first tensor come first, those
    of its last word before those of earlier words, because the last word says what a tensor is; then the families of
    further words of the second tensor, and so on.
    """
    having: dict[str, list[Piece]] = defaultdict(list)
    for piece in group:
        for word in dict.fromkeys(reversed(cut(piece.last))):
            having[word].append(piece)
    return [Family(tuple(some), (), numbered=False) for some in having.values() if 1 < len(some) < len(group)]


def _of_one_stem(pieces: list[Piece]) -> list[Family]:
    """Return a family for each three or more of PIECES with equal sizes whose names differ only in the last word, which
    is no number: `mix_r`, `mix_k`, `mix_v`.
    """
    groups: dict[tuple[_Path, Shape], list[Piece]] = defaultdict(list)
    for piece in pieces:
        words = cut(piece.last)
        if len(words) > 1 and not words[-1].isdecimal():
            groups[words[:-1], piece.shape].append(piece)
    return [Family(tuple(group), stem, numbered=False) for (stem, _), group in groups.items() if len(group) > 2]


def _of_gates(pieces: list[Piece]) -> list[Family]:
    """Return a family of two for each update gate among PIECES with a reset gate of equal sizes: names that differ only
    in the last letter, z and r (`convz`, `convr`). The two gates of a GRU share an input; the candidate does not.
    """
    named = {piece.last: piece for piece in pieces}
    both = [(one, named.get(f"{name[:-1]}r")) for name, one in named.items() if name[-1:] == "z"]
    return [Family((one, other), (), numbered=False) for one, other in both if other and one.shape == other.shape]


def _in_a_row(numbers: Sequence[int]) -> bool:
    """Return whether NUMBERS, which are all different, have no gap. `w1` and `w3` without `w2` do not say which comes
    first.
    """
    return max(numbers) - min(numbers) == len(numbers) - 1


def _number(words: _Path) -> tuple[str, _Path] | None:
    """Return (number, other words) for a name whose last word is a number (`fc1`); None for other names, and for a
    number alone. WORDS are the words of the name.
    """
    if len(words) < 2 or not words[-1].isdecimal():
        return None
    return words[-1], words[:-1]


def _letter(words: _Path) -> tuple[str, _Path] | None:
    """Return (place of the letter in the alphabet, other words) for a name that counts by a letter from a to h after
    a number (`conv1a`, `conv1b`: "0" and "1", with ("conv", "1")); None for other names. WORDS are the words of the
    name.
    """
    if len(words) < 3 or len(words[-1]) > 1 or words[-1] not in _LETTERS or not words[-2].isdecimal():
        return None
    return str(_LETTERS.index(words[-1])), words[:-1]


def _counts(members: dict[str, Piece], ordered: Sequence[Piece]) -> bool:
    """Return whether the letters of MEMBERS (place in the alphabet -> tensor) count: a, b and so on without a gap,
    registered in that order. ORDERED has the same tensors by their letters.
    """
    places = {int(k) for k in members}
    return places == set(range(len(members))) and all(a.order < b.order for a, b in pairwise(ordered))


def _label(words: _Path) -> tuple[str, _Path] | None:
    """Return (place, other words) for a name of several WORDS, one of which means queries ("0"), keys ("1") or values
    ("2"): ("1", ("scale",)) for ("k", "scale"). None for other names.
    """
    for at, word in enumerate(words):
        said = table().parts.get((word,))
        if said in ("q", "k", "v") and len(words) > 1:
            return str("qkv".index(said)), (*words[:at], *words[at + 1 :])
    return None


def join_of_family(family: Family, sizes: SizeCounts) -> Join | None:
    """Return how to join the parts of FAMILY: the first of these ways that their sizes allow, and of whose joined sizes
    the other side has more tensors than this side, by SIZES; None if there is none.

      - Along the first dimension, if the parts have two or more dimensions and all other sizes are equal: one after the
        other; if FAMILY.turns, interleaved in slices, the largest number that divides the rows of each part.
      - Along the second dimension, one after the other, if the parts have two or more and all other sizes are equal.
      - Stacked along a new first dimension, if all sizes are equal, and not all of them 1.
    """
    shapes = [p.shape for p in family.parts]
    ways = []
    if len({shape[1:] for shape in shapes}) == 1 and len(shapes[0]) > 1:
        rows = tuple(shape[0] for shape in shapes)
        ways.append(Join(rows, 0, gcd(*rows) if family.turns else 1))
    if len({(shape[:1], shape[2:]) for shape in shapes}) == 1 and min(map(len, shapes)) > 1:
        ways.append(Join(tuple(shape[1] for shape in shapes), 1))
    if len(set(shapes)) == 1 and len(squeezed(shapes[0])) > 0:
        ways.append(Join((1,) * len(shapes), None))
    return next((way for way in ways if sizes.wanted(way.shape(shapes[0])) > 0), None)


def join_family(one: Canon, parent: _Path, family: Family, join: Join) -> None:
    """Replace the weights of FAMILY in the side ONE by one tensor, joined as JOIN says. Its path is PARENT with each
    word that the names of the parts share (FAMILY.stem) as a component, or, without such words, with all names joined
    by "+" as one component (`w1+w3`). The biases are joined in the same way, if each weight has one and the sizes fit;
    for weights joined along their second dimension (inputs), all biases that there are are added up, if their sizes are
    equal. Other biases stay.

    A joined weight or bias has a question: whether its parts are stored head by head, if FAMILY.by_heads; else about
    their order, unless FAMILY.numbered. A sum of biases has none of these. If the stem of the names is a word for a
    role in torch (`q_scale`, `k_scale`: a weight; `q_shift`, `k_shift`: a bias), and no part has a bias beside it, the
    tensor gets this role and the name `parts`.
    """
    layers = any(p.name.beside("bias") in one.pieces for p in family.parts)  # whose names say nothing of roles
    leaf = None if layers else table().leaves.get(family.stem)  # q_scale and q_shift are weight and bias of one thing
    stem = ("parts",) if leaf is not None else family.stem or ("+".join(p.last for p in family.parts),)
    words = tuple(word for component in (*parent, *family.stem) for word in cut(component))
    for role in ("weight", "bias"):
        found = [m for p in family.parts if (m := one.pieces.get(p.name.beside(role))) is not None]
        if role == "bias" and join.dim == 1 and found:
            merge_sum(one, found, replace(found[0], path=(*parent, *stem), words=words))
        elif len(found) == len(family.parts) and (role == "weight" or _fits_bias(join, [m.shape for m in found])):
            new = replace(found[0], path=(*parent, *stem), role=leaf or role, words=words, questions=())
            if family.by_heads:
                new = new.asking(Reason.JOINED_BY_HEADS)
            elif not family.numbered:
                new = asked(one, found, new, join)
            merge(one, found, new, join)


def _fits_bias(join: Join, shapes: Sequence[Shape]) -> bool:
    """Return whether biases with these SHAPES can be joined as JOIN joins their weights. If it stacks the weights, the
    biases have to have equal sizes; if it joins them along their rows (dimension 0), each bias has to have as many rows
    as its weight. False if it joins them along their second dimension.
    """
    if join.dim is None:
        return len(set(shapes)) == 1
    return join.dim == 0 and all(shapes) and tuple(shape[0] for shape in shapes) == join.sizes


def asked(one: Canon, parts: Sequence[Piece], new: Piece, join: Join) -> Piece:
    """Return the joined tensor NEW with a question about the order of its PARTS, the pieces of ONE that JOIN joins.
    Nothing is joined here.

    The question has one option: for interleaved parts (JOIN.turns above 1), the parts one after the other; for two
    parts that follow one another, the reverse order. For three or more parts that follow one another, it has no option.
    """
    rest = parts[0].shape[1:]
    places = range(len(parts))
    if join.turns > 1:
        why, other = Reason.PARTS_TAKE_TURNS, replace(join, turns=1)
    elif len(parts) == 2:
        why, other, places = Reason.ORDER_OF_PARTS, replace(join, sizes=join.sizes[::-1]), places[::-1]
    else:
        return new.asking(Reason.ORDER_OF_PARTS)
    if one.is_target:
        own = ex.of(new.name.hole)
        there = {place: other.part(own, index=i, rest=rest) for i, place in enumerate(places)}
        return new.asking(why, option=join.whole(*(there[i] for i in range(len(parts))), rest=rest))
    return new.asking(why, option=other.whole(*(parts[i].expr for i in places), rest=rest))
