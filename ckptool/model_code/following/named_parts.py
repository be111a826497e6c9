"""Find the parts that code divides the output of a layer into: their sizes, and what the code calls them.

`gate, value = self.both(x).chunk(2, -1)` says more than any name of a module: which rows of `both` are the gate. The
names are read from the text of the code, at the line that is running.
"""

from __future__ import annotations

import ast
import linecache
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ..call import ADDS, CUTS, JOINS, Call
from ..signature import PRODUCTS, Part

#: Functions that divide a tensor into parts.
_DIVIDES = CUTS | {"unbind"}

#: Of more parts of one tensor, none has a name of its own.
_MOST = 16


#: Python functions of torch that call others, and where they are.
_TORCH = str(Path(torch.__file__).parent)
_THROUGH = frozenset(f"{_TORCH}/{name}.py" for name in ("_tensor", "functional", "overrides"))


class Place(NamedTuple):
    """Where a part is.

    Attributes:
        whole: the id of the tensor that it is a part of.
        dim: the dimension along which it was taken out; -1 for one of the results of a function such as `chunk`.
        start: where it begins there; of such results, which of them it is.
    """

    whole: int
    dim: int
    start: int


class NamedParts:
    """Follows how the outputs of weights are divided.

    Attributes:
        takes: key of a weight -> the tensors that are concatenated to its input, in order.
    """

    def __init__(self) -> None:
        self.takes: dict[str, tuple[Part, ...]] = {}
        self._joined: dict[int, tuple[int, int, tuple[Part, ...]]] = {}  # dimension, number of dimensions, parts
        self._taken: dict[tuple[int, int], dict[tuple[int, int], Part]] = defaultdict(dict)  # by start and stop
        self._found: dict[str, list[dict[Place, Part]]] = defaultdict(list)  # key of a weight -> each way to divide it
        self._part_of: dict[int, tuple[str, Place]] = {}  # by the id of a part

    def part_of(self, value: Any) -> tuple[str, Place] | None:
        """Return (key, place) of the tensor VALUE, if it is a part of a tensor that was computed with the weight KEY;
        None for others.
        """
        return self._part_of.get(id(value))

    def parts(self, key: str, roles: Mapping[Place | None, str]) -> tuple[Part, ...]:
        """Return the parts that the code first divides the output of the weight KEY into, in order; () if it divides it
        into none. ROLES has place of a part -> what it is in an attention: "q", "k", "v", or "". If some parts have
        such a role, those of the first way to divide the output that have one are returned, with their roles in place
        of their names in the code. A name that is the role of another part is then left out.
        """
        ways = self._found.get(key) or [{}]
        way = next((one for one in ways if any(roles.get(place) for place in one)), ways[0])
        said = {role for place in way if (role := roles.get(place))}
        return tuple(
            part._replace(name=roles.get(place) or ("" if part.name in said else part.name))
            for place, part in way.items()
        )

    def see_inputs(self, call: Call, keys: Mapping[int, str], learned: Callable[[Any], bool]) -> None:
        """Note which tensors CALL concatenates, or, in `takes`, that the weight in CALL takes an earlier concatenation.

        A concatenation counts if it joins 2 to 16 tensors along the second or the last dimension. A weight takes it if
        the concatenation is the first argument of CALL and the weight the second one: in a convolution or an addition
        (of a table with as many dimensions), if it joins along the second dimension; in a product, if it joins
        along the last. The first note for a weight stays.

        Args:
            call: the call, after it has run.
            keys: id of a weight -> its key.
            learned: tensor -> whether it was computed from weights. The size of a part that was not is noted as 0,
                because sizes of inputs may be guessed.
        """
        if call.name in JOINS and isinstance(call.first, tuple | list) and 1 < len(call.first) <= _MOST:
            whole = call.result.shape
            dim = next((d for d, n in enumerate(whole) if n != call.first[0].shape[d]), None)
            if dim in (1, len(whole) - 1):
                names = _names_of_joined(call.name, len(call.first))
                sizes = [one.shape[dim] if learned(one) else 0 for one in call.first]
                self._joined[id(call.result)] = dim, len(whole), tuple(map(Part, names, sizes))
        elif (found := self._joined.get(id(call.first))) and len(call.args) > 1 and (key := keys.get(id(call.args[1]))):
            dim, rank, parts = found
            added = call.name in ADDS and call.args[1].ndim == rank  # a table of places has the same parts
            if dim == (1 if added or call.name.startswith("conv") else rank - 1 if call.name in PRODUCTS else None):
                self.takes.setdefault(key, parts)

    def see(self, call: Call, key: str) -> None:
        """Note the parts that CALL divides its first argument into, a tensor that was computed with the weight KEY.

        They are the 2 to 16 results of `chunk`, `split` or `unbind`; or up to 16 slices or elements of one dimension
        (`x[:, :4]`, `x[0]`), in the order of their places. A call with one of these is remembered, and they are noted
        with the call with which they cover the dimension without a gap or an overlap. Each part has its name in the
        code, or "", and its size along the dimension that is divided; 0 for `unbind` and for elements. After 16 ways to
        divide the output of a weight, no others are noted.
        """
        if len(self._found[key]) == _MOST:
            return
        if call.name in _DIVIDES and isinstance(call.result, tuple | list):
            parts = [part for part in call.result if isinstance(part, torch.Tensor)]
            if 1 < len(parts) <= _MOST:
                pairs = enumerate(zip(call.first.shape, parts[0].shape, strict=False))
                dim = next((d for d, (whole, part) in pairs if whole != part), 0)
                sizes = [0 if call.name == "unbind" else part.shape[dim] for part in parts]
                places = [Place(id(call.first), -1, number) for number in range(len(parts))]
                self._part_of.update((id(part), (key, at)) for part, at in zip(parts, places, strict=True))
                self._found[key].append(dict(zip(places, map(Part, _names(call.name, len(parts)), sizes), strict=True)))
        elif call.name == "__getitem__" and (taken := slice_of(call.first, call.args[1])) is not None:
            dim, start, stop = taken
            self._take(call, key, dim, (start, stop), Part(_name_of_slice(), stop - start))
        elif call.name == "__getitem__" and (element := _element_of(call.first, call.args[1])) is not None:
            dim, place = element
            name = _name_of_element(place, call.first.shape[dim])
            self._take(call, key, dim, (place, place + 1), Part(name, 0))

    def _take(self, call: Call, key: str, dim: int, span: tuple[int, int], part: Part) -> None:
        """Note that CALL takes PART of its first tensor: SPAN (start, stop) of the dimension DIM. If all that was taken
        of this dimension, two parts or more, covers it without a gap or an overlap, note the parts of the weight KEY.
        After 16 parts of a dimension, no others are remembered; of two parts with one SPAN, the first counts.
        """
        self._part_of[id(call.result)] = key, Place(id(call.first), dim, span[0])
        known = self._taken[id(call.first), dim]
        if len(known) < _MOST:
            known.setdefault(span, part)
        edges = [0, *(stop for _, stop in sorted(known))]
        if (
            [start for start, _ in sorted(known)] == edges[:-1]
            and edges[-1] == call.first.shape[dim]
            and len(known) > 1
        ):
            self._found[key].append({Place(id(call.first), dim, at[0]): known[at] for at in sorted(known)})


def slice_of(whole: Any, index: Any) -> tuple[int, int, int] | None:
    """Return (dimension, start, stop) of what INDEX takes of the tensor WHOLE, if it cuts one dimension only: (1, 0, 4)
    for `x[:, :4]`, (2, 4, 8) for `x[..., 4:]` of three dimensions and size 8.

    None if INDEX has something else than slices and `...` in it, if it cuts no dimension or several (each slice but `:`
    is a cut), if the slice takes steps or nothing, or if its ends are neither integers nor left out.
    """
    places = list(index) if isinstance(index, tuple) else [index]
    if not all(one is Ellipsis or isinstance(one, slice) for one in places):
        return None
    if Ellipsis in places:
        at = places.index(Ellipsis)
        places[at : at + 1] = [slice(None)] * (whole.ndim - len(places) + 1)
    taken = [(dim, one) for dim, one in enumerate(places) if one != slice(None)]
    if len(taken) != 1 or not all(isinstance(n, int | None) for n in (taken[0][1].start, taken[0][1].stop)):
        return None
    dim, one = taken[0]
    start, stop, step = one.indices(whole.shape[dim])
    return (dim, start, stop) if step == 1 and start < stop else None


def _element_of(whole: Any, index: Any) -> tuple[int, int] | None:
    """Return (dimension, place) of the element that INDEX takes of the tensor WHOLE: (0, 1) for `x[1]`, (2, 0) for
    `x[..., 0]` of three dimensions. None if INDEX has not just one integer, and nothing else but `:` and `...`.
    """
    places = list(index) if isinstance(index, tuple) else [index]
    numbers = [at for at, one in enumerate(places) if type(one) is int]
    others = [one for one in places if type(one) is not int]
    if len(numbers) != 1 or not all(
        one is Ellipsis or (isinstance(one, slice) and one == slice(None)) for one in others
    ):
        return None
    at = numbers[0]
    dim = at if Ellipsis not in places[:at] else whole.ndim - (len(places) - at)
    return dim, places[at] % whole.shape[dim]


def _names_of_joined(function: str, count: int) -> Sequence[str]:
    """Return what the running statement of the model calls the COUNT tensors that FUNCTION concatenates, in order; ""
    for a tensor without a name.

    All are "" if the statement has not just one call of FUNCTION with a list or tuple of COUNT expressions.
    """
    calls = (one for one in ast.walk(_running()) if isinstance(one, ast.Call) and one.args)
    found = [
        call.args[0].elts
        for call in calls
        if isinstance(call.args[0], ast.Tuple | ast.List)
        if len(call.args[0].elts) == count and ast.unparse(call.func).rpartition(".")[2] == function
    ]
    return [_name(one) for one in found[0]] if len(found) == 1 else [""] * count


def _names(function: str, count: int) -> Sequence[str]:
    """Return the names that the running statement of the model gives to the COUNT results of the function FUNCTION, in
    order; "" for a result without a name.

    All are "" if the statement does not assign the results of FUNCTION, as `_gives` understands it, to COUNT targets.
    """
    target, value = _assigned()
    targets = target.elts if isinstance(target, ast.Tuple | ast.List) else ()
    return [_name(one) for one in targets] if len(targets) == count and _gives(value, function) else [""] * count


def _gives(value: ast.AST, function: str) -> bool:
    """Return whether the expression VALUE is a call of FUNCTION, or makes something of each of its results: `[f(part)
    for part in x.chunk(2)]`, `map(f, x.chunk(2))`. Only the last part of the name of what is called counts (`chunk`).

    For `unbind`, it may be any expression but a call of `chunk`, `split` and the like, because a tensor is unpacked by
    `unbind` (`a, b = x`).
    """
    if isinstance(value, ast.GeneratorExp | ast.ListComp):
        value = value.generators[0].iter
    if isinstance(value, ast.Call) and ast.unparse(value.func) == "map":
        value = value.args[-1]
    called = ast.unparse(value.func).rpartition(".")[2] if isinstance(value, ast.Call) else ""
    return called == function or (function == "unbind" and called not in _DIVIDES)  # as which a tensor is unpacked


def _name_of_slice() -> str:
    """Return the name that the running statement of the model assigns to, if its right side has just one slice: "gate"
    for `gate = x[:, a:b]`, also for `gate = f(x[:, a:b])`. "" for another statement or target, no slice, or several.
    """
    target, value = _assigned()
    slices = [one for one in ast.walk(value) if isinstance(one, ast.Subscript) and ":" in ast.unparse(one.slice)]
    return _name(target) if len(slices) == 1 else ""


def _name_of_element(place: int, count: int) -> str:
    """Return the name that the running statement of the model assigns the element PLACE of COUNT to: "k" for 1 of 3 in
    `q, k, v = x[0], x[1], x[2]`, for `k = x[1]` and for `k = x[-2]`. "" if it assigns none, or several.
    """
    target, value = _assigned()
    pairs = [(target, value)]
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
        pairs = list(zip(target.elts, value.elts, strict=True))
    found = [own for own, taken in pairs if [one % count for one in _places_in(taken)] == [place]]
    return _name(found[0]) if len(found) == 1 else ""


def _places_in(value: ast.AST) -> list[int]:
    """Return the integers in all indices of the expression VALUE: [1] for `x[..., 1]`, [-1] for `x[..., -1]`."""
    parts = [one for sub in ast.walk(value) if isinstance(sub, ast.Subscript) for one in ast.walk(sub.slice)]
    negative = {one.operand for one in parts if isinstance(one, ast.UnaryOp) and isinstance(one.op, ast.USub)}
    numbers = [(one.value, one in negative) for one in parts if isinstance(one, ast.Constant)]
    return [-one if turned else one for one, turned in numbers if type(one) is int]


def _name(one: ast.AST) -> str:
    """Return the last part of the name in the expression ONE: "b" for `a.b`, and also for `a.b[0]` and for a method of
    it, `a.b.view(…)`; "f" for the call `f(…)`; "" for other expressions.
    """
    while isinstance(one, ast.Subscript | ast.Call):
        inner = one.func if isinstance(one, ast.Call) else one.value
        one = inner.value if isinstance(one, ast.Call) and isinstance(inner, ast.Attribute) else inner
    return one.id if isinstance(one, ast.Name) else one.attr if isinstance(one, ast.Attribute) else ""


def _assigned() -> tuple[ast.AST, ast.AST]:
    """Return (target, value) of the assignment that the code of the model is running, its last target if there are
    several; two empty statements if it runs no plain assignment (`=`, without an annotation).
    """
    running = _running()
    return (running.targets[-1], running.value) if isinstance(running, ast.Assign) else (_NOTHING, _NOTHING)


def _running() -> ast.AST:
    """Return the syntax tree of the statement that the code of the model is running: a plain assignment, a `return` or
    an expression.

    The code of the model is the first caller, from the inside out, that is neither in this package nor one of torch's
    own functions in Python. An empty statement (`pass`) if that is other code of torch, or if there is no such
    statement, or several, at its line.
    """
    frame = sys._getframe(1)
    while frame.f_back is not None and (
        frame.f_code.co_filename in _THROUGH or frame.f_globals.get("__package__") == __package__
    ):
        frame = frame.f_back
    path = frame.f_code.co_filename
    if path.startswith(_TORCH):
        return _NOTHING
    linecache.checkcache(path)
    text = "".join(linecache.getlines(path, frame.f_globals))
    found = [one for one in _statements(text) if one.lineno <= frame.f_lineno <= (one.end_lineno or one.lineno)]
    return found[0] if len(found) == 1 else _NOTHING


_NOTHING = ast.Pass()


@lru_cache(maxsize=16)
def _statements(text: str) -> tuple[ast.Assign | ast.Return | ast.Expr, ...]:
    """Return the plain assignments, `return` statements and expression statements in the Python code TEXT, wherever
    they are in it; () if it is not valid.
    """
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return ()
    return tuple(node for node in ast.walk(tree) if isinstance(node, ast.Assign | ast.Return | ast.Expr))


__all__ = ["NamedParts", "Place", "slice_of"]
