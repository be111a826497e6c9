"""Join modules that are one module on the other side, under a name that spells theirs, or as interleaved lists."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations

from ...expression import Shape
from ..layouts import is_bare, turn
from ..pieces import Canon, Name, Piece, squeezed
from ..spelled import MOST_SPELLED, spelled
from .families import Family, join_of_family, siblings, spelled_parts
from .join import SizeCounts, move
from .lists import plan_of_list
from .named_by_code import order_by_code

_Path = tuple[str, ...]

_Content = dict[tuple[_Path, str], Piece]

_Look = tuple[tuple[tuple[_Path, str], Shape], ...]

#: Of so many modules beside each other some may be parts of one.
_MOST_BESIDE = 8


def turn_spelled(one: Canon, other: Canon) -> None:
    """Transpose those bare matrices of OTHER (`is_bare`: an `nn.Parameter` that is no weight of a layer) that hold the
    joined rows of layers of one module of ONE, with inputs first: [inputs, rows of all layers]. The name of the matrix
    has to spell those of the layers (`conv_zr` for `conv_z` and `conv_r`). Square matrices stay.

    The layers are all matrices of the module with equally many inputs that may be parts of one tensor (`siblings`), two
    to four. Nothing is joined here, and ONE is not changed.
    """
    wholes = [p for p in other.pieces.values() if is_bare(p) and len(p.shape) == 2 and p.shape[0] != p.shape[1]]
    turned: set[Name] = set()
    for parts in _of_equal_inputs(one, other) if wholes else ():
        shape = (parts[0].shape[1], sum(p.shape[0] for p in parts))
        there = [p for p in wholes if p.shape == shape] if 1 < len(parts) <= MOST_SPELLED else []
        if there and spelled_parts(parts, {p.last for p in there}) is not None:
            turned |= {p.name for p in there if spelled_parts(parts, {p.last}) is not None}
    for name in turned:
        turn(other, other.pieces[name])


def _of_equal_inputs(one: Canon, other: Canon) -> Iterator[list[Piece]]:
    """Yield, for each module of ONE and each number of inputs, the list of the matrices in the module with this number
    of inputs that may be parts of one tensor of OTHER (`siblings`). A list may have one matrix only.
    """
    for pieces in siblings(one, other).values():
        rows: dict[int, list[Piece]] = defaultdict(list)
        for piece in pieces:
            if len(piece.shape) == 2:
                rows[piece.shape[1]].append(piece)
        yield from rows.values()


def unwrap(one: Canon, other: Canon) -> None:
    """Move each layer of ONE that is alone in its module, with a number as its name, to the place of this module, if
    ONE has more tensors of the sizes of its weight than OTHER: `digit1.0` becomes `digit1`, beside `digit2`. So code
    writes a head in a `Sequential` of its own. A layer stays if the name of its module is a number, too. OTHER is not
    changed.
    """
    sizes = SizeCounts(one, other)
    inside: dict[_Path, set[_Path]] = defaultdict(set)
    for piece in one.pieces.values():
        for at in range(1, len(piece.path)):
            inside[piece.path[:at]].add(piece.path)
    own = {piece.path for piece in one.pieces.values()}
    for piece in [p for p in one.pieces.values() if p.role == "weight" and sizes.wanted(p.shape) < 0]:
        around = piece.path[:-1]
        alone = piece.last.isdecimal() and inside.get(around) == {piece.path} and around not in own
        if alone and not around[-1].isdecimal():
            move(one, piece.path, around)


def line_up(one: Canon, other: Canon) -> None:
    """Move the layers with one name in several modules of ONE beside each other, if OTHER has, for each such name, one
    layer that joins them (`_are_wanted`): `filters.0` and `gates.0` get the paths `filters+gates.0.filters` and
    `filters+gates.0.gates`, and so do `filters.1` and `gates.1`. Nothing is joined here, and OTHER is not changed.

    The modules (`filters`, `gates`) are in one module, are no members of a list, and hold layers of the same names, two
    or more, with equal sizes but for their rows (`_alike`). Of each group of such modules, two to four are moved: the
    first choice, of the most modules, for which OTHER has such layers (`_some_of`; only four of more than eight). A
    group stays if code divides the output of a layer of OTHER into the layers of one of its modules (`_are_parts`).
    """
    sizes = SizeCounts(one, other)
    named = [p for p in other.pieces.values() if p.entry.facts.parts and sizes.wanted(p.shape) > 0]
    for parent, modules in _alike(one):
        if any(_are_parts([*held.values()], named) for held in modules.values()):
            continue  # of one module, which is nearer
        for some in _some_of(list(modules)):
            places = modules[some[0]].keys()
            if _are_wanted([[modules[name][at] for name in some] for at in places], sizes):
                for at in places:
                    for name in some:
                        move(one, modules[name][at].path, (*parent, "+".join(some), at, name))
                break


def _are_parts(layers: Sequence[Piece], wholes: Sequence[Piece]) -> bool:
    """Return whether code divides the output of one of WHOLES into parts that are LAYERS by their names and rows, in
    some order (`order_by_code`). Only WHOLES count whose sizes after the first are those of LAYERS.
    """
    rows = [layer.shape[0] for layer in layers]
    fitting = [whole for whole in wholes if whole.shape[1:] == layers[0].shape[1:]]
    return order_by_code(layers, rows, 0, fitting) is not None


def _alike(one: Canon) -> list[tuple[_Path, dict[str, dict[str, Piece]]]]:
    """Return (path of the module around, name of a module -> name of a layer in it -> its weight) for each group of two
    or more modules in one module of ONE that hold the same layers: two or more, with equal names, and weights of equal
    sizes but for their rows. Members of lists are left out, and modules with a weight of no dimension. The weights are
    in the order of their names.
    """
    modules: dict[_Path, dict[str, dict[str, Piece]]] = defaultdict(lambda: defaultdict(dict))
    for piece in one.pieces.values():
        if piece.role == "weight" and len(piece.path) > 1 and not piece.path[-2].isdecimal():
            modules[piece.path[:-2]][piece.path[-2]][piece.last] = piece
    found: list[tuple[_Path, dict[str, dict[str, Piece]]]] = []
    for parent, named in modules.items():
        beside: dict[tuple[tuple[str, Shape], ...], dict[str, dict[str, Piece]]] = defaultdict(dict)
        for name, held in named.items():
            ordered = {at: held[at] for at in sorted(held)}
            if not all(piece.shape for piece in ordered.values()):
                continue
            beside[tuple((at, piece.shape[1:]) for at, piece in ordered.items())][name] = ordered
        found += [(parent, some) for places, some in beside.items() if len(places) > 1 and len(some) > 1]
    return found


def _some_of(names: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Yield every choice of four of NAMES (of all, if there are fewer), then those of fewer, down to two; of more than
    eight names, only the choices of four.
    """
    most = min(len(names), MOST_SPELLED)
    for count in range(most, 1, -1) if len(names) <= _MOST_BESIDE else [most]:
        yield from combinations(names, count)


def _are_wanted(blocks: Sequence[Sequence[Piece]], sizes: SizeCounts) -> bool:
    """Return whether OTHER has the tensors that BLOCKS make if the tensors of each block are joined to one. All of
    these have to be true, by SIZES, the counts of both sides:

      - the tensors of each block can be joined (`join_of_family`);
      - of each size of a tensor in BLOCKS, ONE has more tensors than OTHER, by at least as many as BLOCKS has;
      - of each joined size, OTHER has more tensors than ONE, by at least as many as there are blocks with this size.
    """
    joins = [join_of_family(Family(tuple(parts), (), numbered=False), sizes) for parts in blocks]
    parts = Counter(squeezed(part.shape) for block in blocks for part in block)
    if None in joins or any(-sizes.wanted(shape) < count for shape, count in parts.items()):
        return False
    wholes = Counter(squeezed(j.shape(parts[0].shape)) for j, parts in zip(joins, blocks, strict=True) if j)
    return all(count <= sizes.wanted(shape) for shape, count in wholes.items())


def count_spelled(one: Canon, other: Canon) -> None:
    """Move modules of ONE that are one module in OTHER into a list, so that the list can be joined later: `main_conv`
    and `short_conv`, each a layer with its norm, which are `main_short_conv` in OTHER, become `main_conv+short_conv.0`
    and `main_conv+short_conv.1`. Nothing is joined here, and OTHER is not changed.

    The modules are in one module, have equal contents, are no single layers, and are no members of a list. The name of
    the module in OTHER spells theirs, in the order of the list; it has the same tensors, with the rows of all of them
    together (`_spelled_by_one`); and the list can be joined (`plan_of_list`). Two to four modules become one list;
    others of the same contents may become further lists, until one cannot be joined. More than eight modules of the
    same contents stay.
    """
    wholes: dict[_Look, set[str]] = defaultdict(set)
    for named in _modules(other).values():
        for name, content in named.items():
            wholes[_look(content)].add(name)
    sizes = SizeCounts(one, other)
    for parent, named in _modules(one).items():
        alike: dict[_Look, list[str]] = defaultdict(list)
        for name, content in named.items():
            alike[_look(content)].append(name)
        for names in alike.values():
            while names and (members := _spelled_by_one(names, named[names[0]], wholes)):
                contents = [named[name] for name in members]
                inner = {key: {at: content[key] for at, content in enumerate(contents)} for key in contents[0]}
                if plan_of_list(inner, sizes) is None:
                    break
                _into_list(one, (*parent, "+".join(members)), contents, len(parent) + 1)
                names = [name for name in names if name not in members]


def _into_list(one: Canon, head: _Path, contents: Sequence[_Content], depth: int) -> None:
    """Move the modules of ONE with these CONTENTS to the paths HEAD.0, HEAD.1 …, in order: `main_conv.bn` to
    `main_conv+short_conv.0.bn`. DEPTH is how many components the present path of such a module has.
    """
    for at, content in enumerate(contents):
        for path in dict.fromkeys(piece.path for piece in content.values()):
            move(one, path, (*head, str(at), *path[depth:]))


def _spelled_by_one(names: Sequence[str], content: _Content, wholes: Mapping[_Look, set[str]]) -> list[str]:
    """Return two to four of NAMES in the order in which the name of a module in WHOLES spells them, if the tensors of
    that module have the sizes of CONTENT with as many times the rows as there are names: twice for two. The fewest
    names that are found count, and the first of several choices. [] if there is no such module, or if there are more
    than eight NAMES.

    Args:
        names: names of modules with equal contents.
        content: the tensors of one of them.
        wholes: look of a module of the other side (see `_look`) -> names of the modules with this look.
    """
    for n in range(2, min(len(names), MOST_SPELLED) + 1) if len(names) <= _MOST_BESIDE else ():
        spoken = wholes.get(_look(content, n), set())
        for some in combinations(names, n) if spoken else ():
            if (order := spelled(some, spoken)) is not None:
                return [some[at] for at in order]
    return []


def _modules(canon: Canon) -> dict[_Path, dict[str, _Content]]:
    """Return path of a module -> name of a module directly in it -> the tensors of all modules inside of that one, as
    (path inside of it, role) -> piece. Tensors that the inner module holds itself are not in its content. Inner modules
    without modules in them (single layers), and members of lists, are left out.
    """
    held: dict[_Path, dict[str, _Content]] = defaultdict(lambda: defaultdict(dict))
    for piece in canon.pieces.values():
        for at, name in enumerate(piece.path[:-1]):
            if not name.isdecimal():
                held[piece.path[:at]][name][piece.path[at + 1 :], piece.role] = piece
    return held


def _look(content: _Content, times: int = 1) -> _Look:
    """Return the paths, roles and sizes in CONTENT, the tensors of a module, in order; with TIMES as many rows, as for
    several such modules joined. It is equal for modules with equal tensors.
    """
    return tuple(sorted((key, (times * p.shape[0], *p.shape[1:]) if p.shape else ()) for key, p in content.items()))
