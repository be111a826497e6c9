"""What a target tensor is made of: expressions over the tensors of a source.

    layer1.0.conv1.weight                            a copy
    transpose(h.0.attn.c_attn.weight)                the last two dimensions swapped
    slice(blocks.0.attn.qkv.weight, 0, 0, 768)       rows 0 to 767 of dimension 0
    cat(0, q.weight, k.weight, v.weight)             joined along dimension 0

A key that is not plain (letters, digits, `_`, `.`, `-`, `/`) stands in double quotes, as in JSON. An expression is a
value: it can be written down, read back, inverted where that is possible, and turned into a `LazyTensor` that moves no
byte until it is written. What only rearranges (a slice, a transposition) is a view of the source and keeps its type;
what computes does so in float32 and rounds once.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import gcd, isfinite, prod
from typing import Any

from ..errors import RuleError, printable
from ..tensor import LazyTensor
from .operations import OPERATIONS, Number, Shape, contiguous, result


@dataclass(frozen=True, slots=True)
class Expr:
    """An operation on expressions, or a key (`op` is "key", and its name the one parameter).

    Attributes:
        op: its name in `OPERATIONS`.
        args: the expressions that it takes.
        params: its other arguments.
    """

    op: str
    args: tuple[Expr, ...] = ()
    params: tuple[Number, ...] = ()

    @property
    def key(self) -> str:
        """The key of a plain copy."""
        assert self.op == "key"
        return str(self.params[0])

    @property
    def is_copy(self) -> bool:
        """Whether it is a tensor of the source as it is."""
        return self.op == "key"

    def keys(self) -> list[str]:
        """The keys that it reads, once each, in order."""
        if self.op == "key":
            return [self.key]
        return list(dict.fromkeys(key for arg in self.args for key in arg.keys()))  # noqa: SIM118 - a method of ours

    def operations(self) -> list[str]:
        """The names of the operations in it, from the inside out, once each."""
        inner = [name for arg in self.args for name in arg.operations()]
        return list(dict.fromkeys(inner + ([] if self.op == "key" else [self.op])))

    def rename(self, new: Callable[[str], str]) -> Expr:
        """The same on other keys."""
        if self.op == "key":
            return of(new(self.key))
        return replace(self, args=tuple(arg.rename(new) for arg in self.args))

    def __str__(self) -> str:
        if self.op == "key":
            return self.key if _PLAIN.fullmatch(self.key) else json.dumps(self.key)
        words = OPERATIONS[self.op].first
        params, args = list(map(str, self.params)), list(map(str, self.args))
        return f"{self.op}({', '.join(params[:words] + args + params[words:])})"


_PLAIN = re.compile(r"[\w.\-{}/]+")


def of(key: str) -> Expr:
    """The tensor KEY as it is."""
    return Expr("key", (), (key,))


def transpose(x: Expr) -> Expr:
    """X with its last two dimensions swapped."""
    return x.args[0] if x.op == "transpose" else Expr("transpose", (x,))


def permute(x: Expr, *dims: int) -> Expr:
    """X with its dimensions in another order, as torch.permute."""
    if dims == tuple(range(len(dims))):
        return x
    if x.op == "permute":
        return permute(x.args[0], *(int(x.params[d]) for d in dims))
    return Expr("permute", (x,), dims)


def reshape(x: Expr, shape: Sequence[int], old: Sequence[int] | None = None) -> Expr:
    """X with other sizes; X itself if OLD, its sizes, are these."""
    if old is not None and tuple(shape) == tuple(old):
        return x
    if x.op == "reshape":
        x = x.args[0]
    return Expr("reshape", (x,), tuple(shape))


def part(x: Expr, dim: int, start: int, stop: int) -> Expr:
    """The elements START to STOP (excluded) of dimension DIM."""
    if x.op == "cat" and x.params == (dim,):
        return Expr("slice", (x,), (dim, start, stop))
    return Expr("slice", (x,), (dim, start, stop))


def select(x: Expr, dim: int, index: int) -> Expr:
    """Element INDEX of dimension DIM, which goes away."""
    return Expr("select", (x,), (dim, index))


def of_heads(x: Expr, heads: int, rows: Sequence[int]) -> list[Expr]:
    """The parts of X that alternate by head, where each head holds so many ROWS of each."""
    unit = gcd(*rows)
    n, at, found = sum(rows) // unit, 0, []
    for row in rows:
        edges = (at, at + row // unit)
        found.append(Expr("of_heads", (x,), (heads, n, *(edges if row > unit else edges[:1]))))
        at = edges[1]
    return found


def cat(dim: int, *parts: Expr) -> Expr:
    """PARTS joined along DIM."""
    if len(parts) == 1:
        return parts[0]
    return Expr("cat", parts, (dim,))


def stack(*parts: Expr) -> Expr:
    """PARTS along a new first dimension."""
    return Expr("stack", parts)


def _whole(parts: Sequence[Expr], op: str, fits: Callable[[Expr], bool]) -> Expr | None:
    if all(p.op == op and fits(p) and p.args == parts[0].args for p in parts):
        return parts[0].args[0]
    return None


def _merged(parts: Sequence[Expr], dim: int) -> list[Expr]:
    """The parts of a `cat` in as few as can be: those of parts that are joined themselves, neighbours as one."""
    out: list[Expr] = []
    for x in parts:
        for one in x.args if x.op == "cat" and int(x.params[0]) == dim else (x,):
            last = out[-1] if out else None
            if (
                last is not None
                and last.op == one.op == "slice"
                and last.args == one.args
                and last.params[0] == one.params[0] == dim
                and last.params[2] == one.params[1]
            ):
                out[-1] = replace(last, params=(dim, last.params[1], one.params[2]))
            else:
                out.append(one)
    return out


def simplified(x: Expr, shapes: Mapping[str, Shape]) -> Expr:
    """The same in fewer steps: what was taken apart and put together again is a copy."""
    if x.op == "key":
        return x
    args = tuple(simplified(arg, shapes) for arg in x.args)
    x = replace(x, args=args)
    inner = args[0] if args else x
    if x.op == "transpose" and inner.op == "transpose":
        return inner.args[0]
    if x.op == "permute":
        if x.params == tuple(range(len(x.params))):
            return inner
        if inner.op == "permute":
            return simplified(replace(x, args=inner.args, params=tuple(inner.params[int(d)] for d in x.params)), shapes)
    if x.op == "reshape":
        while inner.op == "reshape":
            inner = inner.args[0]
        if shape_of(inner, shapes) == x.params:
            return inner
        return replace(x, args=(inner,))
    if x.op == "cat":
        args = tuple(_merged(args, int(x.params[0])))
        inner, x = args[0], replace(x, args=args)
        if len(args) == 1:
            return simplified(inner, shapes) if inner.op == "slice" else inner
        whole = _whole(args, "slice", lambda p: p.params[0] == x.params[0])
        if whole is not None:
            edges = [(int(p.params[1]), int(p.params[2])) for p in args]
            full = shape_of(whole, shapes)[int(x.params[0])]
            if edges[0][0] == 0 and edges[-1][1] == full and all(a[1] == b[0] for a, b in pairwise(edges)):
                return whole
    if x.op == "by_heads":
        whole = _whole(args, "of_heads", lambda p: p.params[0] == x.params[0])
        if whole is not None and _all_of_heads([p.params for p in args]):
            return whole
    if x.op == "stack":
        whole = _whole(args, "select", lambda p: p.params[0] == 0)
        if whole is not None and [p.params[1] for p in args] == list(range(shape_of(whole, shapes)[0])):
            return whole
    if x.op == "slice":
        dim, start, stop = map(int, x.params)
        if start == 0 and stop == shape_of(inner, shapes)[dim]:
            return inner
        if inner.op == "slice" and int(inner.params[0]) == dim:
            first = int(inner.params[1])
            return simplified(part(inner.args[0], dim, first + start, first + stop), shapes)
        if inner.op == "cat" and int(inner.params[0]) == dim:
            at, kept = 0, []
            for piece in inner.args:
                size = shape_of(piece, shapes)[dim]
                low, high = max(start - at, 0), min(stop - at, size)
                if low < high:
                    kept.append(piece if (low, high) == (0, size) else part(piece, dim, low, high))
                at += size
            return simplified(cat(dim, *kept), shapes)
        if inner.op == "reshape" and dim == 0 and shape_of(inner.args[0], shapes)[:1] == inner.params[:1]:
            rows = simplified(part(inner.args[0], 0, start, stop), shapes)
            return simplified(reshape(rows, (stop - start, *(int(n) for n in inner.params[1:]))), shapes)
        if inner.op == "zeros" and dim == 0:
            return replace(inner, params=(stop - start, *inner.params[1:]))
    if x.op == "select" and inner.op == "stack" and x.params[0] == 0:
        return inner.args[int(x.params[1])]
    return x


def shape_of(x: Expr, shapes: Mapping[str, Shape]) -> Shape:
    """The sizes of what X gives, for the sizes of the source.

    Raises:
        RuleError: an operation does not fit, or a key is not there.
    """
    if x.op == "key":
        if x.key not in shapes:
            raise RuleError(f"there is no {printable(x.key)} in the source")
        return tuple(shapes[x.key])
    operation = OPERATIONS[x.op]
    inner = [shape_of(arg, shapes) for arg in x.args]
    first, rest = x.params[: operation.first], x.params[operation.first :]
    return operation.shape(*first, *inner, *rest)


#: Elements that any step of an expression may give, unless the tensors that it reads have an eighth of that.
_MOST_ELEMENTS = 1 << 28


def lazy(x: Expr, tensors: Mapping[str, LazyTensor]) -> LazyTensor:
    """What X gives as a tensor over TENSORS that is read when it is written.

    Raises:
        RuleError: an operation does not fit, or gives far more than the tensors hold (`repeat(x, 0, 1000000000)`).
    """
    shapes = {key: tensors[key].shape for key in x.keys()}  # noqa: SIM118
    most = max(_MOST_ELEMENTS, 8 * sum(map(prod, shapes.values())))

    def made(x: Expr) -> LazyTensor:
        if x.op == "key":
            return tensors[x.key]
        shape = shape_of(x, shapes)
        if prod(shape) > most:
            raise RuleError(f"{x.op} gives {prod(shape):,} elements, far more than the source has")
        parts = [made(arg) for arg in x.args]
        return result(x.op, parts, x.params, shape, parts[0] if parts else next(iter(tensors.values())))

    return made(x)


# --------------------------------------------------------------------------------------------------- from text

_TOKEN = re.compile(r'\s*("[^"\\]*(?:\\.[^"\\]*)*"|[(),]|[^\s(),"]+)')
#: Operations within each other. What ckptool writes has a handful.
DEEPEST = 64


def parse(text: str) -> Expr:
    """The expression that TEXT says.

    Raises:
        RuleError: it says none.
    """
    tokens: list[str] = []
    at, end = 0, len(text.rstrip())
    while at < end:
        found = _TOKEN.match(text, at)
        if found is None:
            raise RuleError(f"cannot read the expression {printable(text)!r}")
        tokens.append(found[1])
        at = found.end()
    reader = _Reader(tokens, text)
    made = reader.expression()
    if reader.tokens:
        raise RuleError(f"cannot read the expression {printable(text)!r}")
    return made


class _Reader:
    def __init__(self, tokens: list[str], text: str) -> None:
        self.tokens, self.text = tokens[::-1], text  # the next one is the last

    def expression(self, depth: int = 0) -> Expr:
        if not self.tokens:
            raise RuleError(f"the expression {printable(self.text)!r} ends too early")
        head = self.tokens.pop()
        if head in ("(", ")", ","):
            raise self._unreadable()
        if not self.tokens or self.tokens[-1] != "(":
            return of(self._unquoted(head) if head.startswith('"') else head)
        if head not in OPERATIONS:
            raise RuleError(
                f"there is no operation {printable(head)!r}", evidence=[f"there are {', '.join(OPERATIONS)}"]
            )
        if depth == DEEPEST:
            raise RuleError(f"the expression {printable(self.text)!r} has more than {DEEPEST} operations in each other")
        return self._call(head, depth)

    def _call(self, name: str, depth: int) -> Expr:
        operation = OPERATIONS[name]
        self.tokens.pop()
        params: list[Number] = []
        args: list[Expr] = []
        count = 0
        while True:
            if not self.tokens:
                raise RuleError(f"the expression {printable(self.text)!r} has no closing bracket")
            if self.tokens[-1] == ")":
                self.tokens.pop()
                break
            if count < operation.first or operation.takes < 0 or (operation.takes and len(args) == operation.takes):
                params.append(_number(self.tokens.pop()))
            else:
                args.append(self.expression(depth + 1))
            count += 1
            if self.tokens and self.tokens[-1] == ",":
                self.tokens.pop()
        if not args and operation.takes >= 0:
            raise RuleError(f"{name}() in {printable(self.text)!r} has nothing to work on")
        if (operation.takes > 0 and len(args) != operation.takes) or not operation.fits(params):
            raise RuleError(
                f"{name}() in {printable(self.text)!r} is given something else than it takes",
                evidence=[operation.summary],
            )
        return Expr(name, tuple(args), tuple(params))

    def _unquoted(self, token: str) -> str:
        try:
            return str(json.loads(token))
        except ValueError:
            raise self._unreadable() from None

    def _unreadable(self) -> RuleError:
        return RuleError(f"cannot read the expression {printable(self.text)!r}")


_INTEGER = re.compile(r"-?[0-9]{1,18}")
_REAL = re.compile(r"-?[0-9]{1,20}(\.[0-9]{0,20})?(e[-+]?[0-9]{1,3})?")


def _number(text: str) -> Number:
    if _INTEGER.fullmatch(text):
        return int(text)
    return float(text) if _REAL.fullmatch(text) and isfinite(float(text)) else text


# ---------------------------------------------------------------------------------------------------- inversion


def inverted(target: str | Expr, x: Expr, shapes: Mapping[str, Shape]) -> dict[str, list[tuple[Expr, Any]]] | None:
    """How the keys that X reads come back from TARGET, what X is to give, or None where values are lost.

    Gives, for each key, the pieces that are known of it: (expression over TARGET, (kind, details) of the piece); a
    whole key is one piece with the kind "all".
    """
    out: dict[str, list[tuple[Expr, Any]]] = {}
    if not _undo(x, of(target) if isinstance(target, str) else target, ("all",), out, shapes):
        return None
    return out


def _undo(
    x: Expr, value: Expr, piece: Any, out: dict[str, list[tuple[Expr, Any]]], shapes: Mapping[str, Shape]
) -> bool:
    if x.op == "key":
        out.setdefault(x.key, []).append((value, piece))
        return True
    if x.op == "zeros":
        return True
    inner = x.args[0]
    if x.op == "transpose":
        return _undo(inner, transpose(value), piece, out, shapes)
    if x.op == "permute":
        back = [0] * len(x.params)
        for new, old in enumerate(x.params):
            back[int(old)] = new
        return _undo(inner, permute(value, *back), piece, out, shapes)
    if x.op == "reshape":
        return _undo(inner, reshape(value, shape_of(inner, shapes)), piece, out, shapes)
    if x.op == "rotary":
        other = "half" if x.params[1] == "interleaved" else "interleaved"
        return _undo(inner, Expr("rotary", (value,), (x.params[0], other)), piece, out, shapes)
    if x.op == "flatten":
        other = "nchw" if x.params[3] == "nhwc" else "nhwc"
        return _undo(inner, Expr("flatten", (value,), (*x.params[:3], other)), piece, out, shapes)
    if x.op in ("shift", "scale"):
        amount = float(x.params[0])
        if x.op == "scale" and not (amount and isfinite(1 / amount)):
            return False
        back_to = -amount if x.op == "shift" else 1 / amount
        return _undo(inner, Expr(x.op, (value,), (back_to,)), piece, out, shapes)
    if x.op == "cat":
        dim, at = int(x.params[0]), 0
        for arg in x.args:
            size = shape_of(arg, shapes)[dim]
            if not _undo(arg, Expr("slice", (value,), (dim, at, at + size)), piece, out, shapes):
                return False
            at += size
        return True
    if x.op == "stack":
        return all(_undo(arg, select(value, 0, i), piece, out, shapes) for i, arg in enumerate(x.args))
    if x.op == "by_heads":
        heads = int(x.params[0])
        rows = [shape_of(arg, shapes)[0] // heads for arg in x.args]
        return all(
            _undo(arg, made, piece, out, shapes) for arg, made in zip(x.args, of_heads(value, heads, rows), strict=True)
        )
    if x.op in ("slice", "select", "of_heads") and inner.op == "key":
        return _undo(inner, value, (x.op, *x.params), out, shapes)
    return False


def reassembled(pieces: Sequence[tuple[Expr, Any]], shape: Shape) -> Expr | None:
    """One tensor of sizes SHAPE from its PIECES (see `inverted`), or None if some are missing."""
    for value, piece in pieces:
        if piece[0] == "all":
            return value
    kind = pieces[0][1][0]
    if any(piece[0] != kind for _, piece in pieces):
        return None
    if kind == "slice":
        dim = pieces[0][1][1]
        ordered = sorted(pieces, key=lambda item: item[1][2])
        edges = [(p[2], p[3]) for _, p in ordered]
        if any(p[1] != dim for _, p in ordered) or edges[0][0] != 0 or edges[-1][1] != shape[dim]:
            return None
        if any(a[1] != b[0] for a, b in pairwise(edges)):
            return None
        return Expr("cat", tuple(value for value, _ in ordered), (dim,)) if len(ordered) > 1 else ordered[0][0]
    if kind == "select":
        ordered = sorted(pieces, key=lambda item: item[1][2])
        if any(p[1] != 0 for _, p in ordered) or [p[2] for _, p in ordered] != list(range(shape[0])):
            return None
        return stack(*(value for value, _ in ordered))
    ordered = sorted(pieces, key=lambda item: item[1][3])
    if not _all_of_heads([p[1:] for _, p in ordered]):
        return None
    return Expr("by_heads", tuple(value for value, _ in ordered), (ordered[0][1][1],))


def _all_of_heads(parts: Sequence[Sequence[Any]]) -> bool:
    """Whether the parameters of some `of_heads` are those of all parts of one tensor, in order."""
    edges = [(p[2], p[3] if len(p) > 3 else p[2] + 1) for p in parts]
    whole = edges[0][0] == 0 and edges[-1][1] == parts[0][1]
    return whole and all(a[1] == b[0] for a, b in pairwise(edges)) and len({tuple(p[:2]) for p in parts}) == 1


__all__ = [
    "OPERATIONS",
    "Expr",
    "Shape",
    "cat",
    "contiguous",
    "inverted",
    "lazy",
    "of",
    "of_heads",
    "parse",
    "part",
    "permute",
    "reassembled",
    "reshape",
    "select",
    "shape_of",
    "simplified",
    "stack",
    "transpose",
]
