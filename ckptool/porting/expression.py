"""Expressions over the tensors of a source, which make the tensors of a target.

    layer1.0.conv1.weight                            a copy
    transpose(h.0.attn.c_attn.weight)                the last two dimensions swapped
    slice(blocks.0.attn.qkv.weight, 0, 0, 768)       rows 0 to 767 of dimension 0
    cat(0, q.weight, k.weight, v.weight)             joined along dimension 0

A key with characters other than letters, digits, `_`, `.`, `-`, `/` is in double quotes, as in JSON. An expression is
an immutable value: it can be written as text, parsed, inverted if no values are lost, and turned into a `LazyTensor`
that is read when it is written. An operation that only rearranges (a slice, a transposition) is a view of the source
and keeps its type. One that computes does so in float32, or in float64 if a tensor has that type, and rounds once.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping, Sequence
from math import isfinite, prod

from ..errors import RuleError, printable
from ..tensor import LazyTensor
from .operations import OPERATIONS
from .operations.arithmetic import add, eye, flip, mul, nonzero, scale, shift, summed, unscaled, unshifted, zeros
from .operations.cutting import (
    Cut,
    by_heads,
    cat,
    cut_by_heads,
    is_selected,
    of_heads,
    part,
    rows_cut,
    rows_joined,
    select,
    stack,
)
from .operations.operation import (
    Expr,
    Number,
    Operation,
    Shape,
    of,
    shape_of,
    shapes_read,
    simplified,
    torch_helpers,
    torch_text,
)
from .operations.rearranging import flatten, is_transposed, permute, reshape, rotary, transpose, unreshaped
from .operations.reparametrizing import (
    fold_bias,
    fold_weight,
    lora,
    lora_alpha,
    norm,
    normed_dimension,
    rescaled,
    spectral_norm,
    weight_norm,
)
from .operations.resizing import grow, pad, repeat, resize, rows_grown
from .operations.storages import contiguous

#: Elements that any step of an expression may give, unless the tensors that it reads have an eighth of that.
_MOST_ELEMENTS = 1 << 28


def lazy(x: Expr, tensors: Mapping[str, LazyTensor]) -> LazyTensor:
    """Return the result of the expression X over TENSORS (key -> tensor, with all keys of X) as a lazy tensor: sizes
    are checked here, values are read later.

    An operation that takes no tensor (`zeros(2, 3)`) gives the element type of the first of TENSORS.

    Raises:
        RuleError: an operation cannot be applied to these sizes; a step gives more than 2**28 elements and more than
            eight times those of all tensors that X reads (`repeat(x, 0, 1000000000)`); or TENSORS is empty.
    """
    like = next(iter(tensors.values()), None)
    if like is None:
        raise RuleError(f"the source has no tensors, so {printable(str(x))} has no element type")
    shapes = {key: tensors[key].shape for key in x.keys()}  # noqa: SIM118
    most = max(_MOST_ELEMENTS, 8 * sum(map(prod, shapes.values())))

    def made(x: Expr) -> LazyTensor:
        """Return the result of X, a part of the whole expression, as a lazy tensor. Raises: as `lazy`."""
        if x.is_copy:
            return tensors[x.key]
        shape = shape_of(x, shapes)
        if prod(shape) > most:
            raise RuleError(f"{x.op} gives {prod(shape):,} elements, far more than the source has")
        parts = [made(arg) for arg in x.args]
        return OPERATIONS[x.op].result(parts, x.params, shape, like)

    return made(x)


# --------------------------------------------------------------------------------------------------- from text

_TOKEN = re.compile(r'\s*("[^"\\]*(?:\\.[^"\\]*)*"|[(),]|[^\s(),"]+)')
_FORM = "an expression is a key, or an operation such as cat(0, q.weight, k.weight); odd keys stand in double quotes"
#: Operations within each other. What ckptool writes has a handful.
_DEEPEST = 64


def parse(text: str) -> Expr:
    """Return TEXT, such as `cat(0, q.weight, k.weight)`, as an expression. A name without a bracket behind it, or a
    text in double quotes, is a key: alone, it is a copy.

    Raises:
        RuleError: the text is no expression, names an unknown operation, gives an operation something else than it
            takes, or has more than 64 operations in each other.
    """
    tokens: list[str] = []
    at, end = 0, len(text.rstrip())
    while at < end:
        found = _TOKEN.match(text, at)
        if found is None:
            raise RuleError(f"cannot read the expression {printable(text)!r}", hint=_FORM)
        tokens.append(found[1])
        at = found.end()
    reader = _Reader(tokens, text)
    made = reader.expression()
    if reader.tokens:
        raise RuleError(f"cannot read the expression {printable(text)!r}", hint=_FORM)
    return made


class _Reader:
    """Reads one expression off tokens (keys, names of operations, numbers, brackets and commas).

    Attributes:
        tokens: the tokens that are left, the next one last.
        text: the whole expression, for messages.
    """

    def __init__(self, tokens: list[str], text: str) -> None:
        self.tokens, self.text = tokens[::-1], text  # the next one is the last

    def expression(self, depth: int = 0) -> Expr:
        """Take one expression off the tokens and return it: an operation if a bracket follows its name, else a copy of
        a key. DEPTH is the number of operations around it. Raises RuleError as `parse`.
        """
        if not self.tokens:
            raise RuleError(f"the expression {printable(self.text)!r} ends too early", hint=_FORM)
        head = self.tokens.pop()
        if head in ("(", ")", ","):
            raise self._unreadable()
        if not self.tokens or self.tokens[-1] != "(":
            return of(self._unquoted(head) if head.startswith('"') else head)
        if head not in OPERATIONS:
            near = difflib.get_close_matches(head[:40], OPERATIONS, 1)
            meant = (
                f"{OPERATIONS[near[0]].usage}: {OPERATIONS[near[0]].summary}"
                if near
                else "they are in docs/transfer.md"
            )
            raise RuleError(
                f"there is no operation {printable(head)!r}",
                evidence=[f"there are {', '.join(OPERATIONS)}"],
                hint=f"did you mean {meant}" if near else meant,
            )
        if depth == _DEEPEST:
            raise RuleError(
                f"the expression {printable(self.text)!r} has more than {_DEEPEST} operations in each other"
            )
        return self._call(head, depth)

    def _call(self, name: str, depth: int) -> Expr:
        """Take the arguments of the operation NAME off the tokens, from its opening to its closing bracket, and return
        the operation with them. An operation says how many numbers come first (`first`) and how many expressions it
        takes (`takes`: 0 for any number of at least one, -1 for none); numbers follow these. Commas may be left out.
        Raises RuleError as `parse`.
        """
        operation = OPERATIONS[name]
        self.tokens.pop()
        params: list[Number] = []
        args: list[Expr] = []
        count = 0
        while True:
            if not self.tokens:
                raise RuleError(f"the expression {printable(self.text)!r} has no closing bracket", hint=_FORM)
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
            raise RuleError(f"{name}() in {printable(self.text)!r} has nothing to work on", hint=_written(operation))
        if (operation.takes > 0 and len(args) != operation.takes) or not operation.fits(params):
            raise RuleError(
                f"{name}() in {printable(self.text)!r} is given something else than it takes", hint=_written(operation)
            )
        return Expr(name, tuple(args), tuple(params))

    def _unquoted(self, token: str) -> str:
        try:
            return str(json.loads(token))
        except ValueError:
            raise self._unreadable() from None

    def _unreadable(self) -> RuleError:
        return RuleError(f"cannot read the expression {printable(self.text)!r}", hint=_FORM)


def _written(operation: Operation) -> str:
    return f"it is written {operation.usage}: {operation.summary}"


_INTEGER = re.compile(r"-?[0-9]{1,18}")
_REAL = re.compile(r"-?[0-9]{1,20}(\.[0-9]{0,20})?(e[-+]?[0-9]{1,3})?")


def _number(text: str) -> Number:
    """Return the argument TEXT as an int, as a finite float, or as it is if it is a word (`half`) or no such number."""
    if _INTEGER.fullmatch(text):
        return int(text)
    return float(text) if _REAL.fullmatch(text) and isfinite(float(text)) else text


# ---------------------------------------------------------------------------------------------------- inversion


def inverted(target: str | Expr, x: Expr, shapes: Mapping[str, Shape]) -> dict[str, list[tuple[Expr, Expr]]] | None:
    """Return how to make the keys that X reads from TARGET, a key or an expression that is the result of X; None if an
    operation of X loses values (`Operation.undone`). SHAPES has the sizes of the keys that X reads.

    The result is key -> [(expression over TARGET, the part of the key that it gives: the key itself, or a cut of it)].
    For `cat(0, a, slice(b, 0, 0, 2))` of t it is a -> [(the first rows of t, a)], b -> [(the others, slice(b, 0, 0,
    2))]. A cut of a key (`slice`, `select`, `of_heads`) loses nothing here, although it gives a part of the key only:
    see `reassembled`. A cut of another expression (`slice(transpose(b), 0, 0, 2)`) loses values.
    """
    out: dict[str, list[tuple[Expr, Expr]]] = {}
    return out if _undo(x, of(target) if isinstance(target, str) else target, out, shapes) else None


def _undo(x: Expr, value: Expr, out: dict[str, list[tuple[Expr, Expr]]], shapes: Mapping[str, Shape]) -> bool:
    """Add to OUT, as `inverted` returns it, how the keys that X reads are made from VALUE, the result of X. Return
    whether no operation of X loses values; if one does, OUT may have some of the keys.
    """
    operation = None if x.is_copy else OPERATIONS[x.op]
    if operation is None or (isinstance(operation, Cut) and x.args[0].is_copy):
        out.setdefault(x.keys()[0], []).append((value, x))
        return True
    back = operation.undone(x, value, shapes)
    return back is not None and all(_undo(arg, made, out, shapes) for arg, made in zip(x.args, back, strict=True))


def reassembled(pieces: Sequence[tuple[Expr, Expr]], shape: Shape) -> Expr | None:
    """Return the expression that puts one tensor of sizes SHAPE together from PIECES: one or more of (expression, part
    of the tensor that it gives), in any order, as `inverted` returns them for a key: `cat(0, x, y)` for x, which gives
    `slice(b, 0, 0, 2)`, and y, which gives `slice(b, 0, 2, 4)`. If a part is the whole tensor (the key itself), the
    expression of the first such piece is returned alone.

    None if the parts are cuts of different kinds, or do not make up the whole tensor.
    """
    for value, piece in pieces:
        if piece.is_copy:
            return value
    cut = OPERATIONS[pieces[0][1].op]
    if not isinstance(cut, Cut) or any(piece.op != cut.name for _, piece in pieces):
        return None
    ordered = sorted(pieces, key=lambda item: cut.begins(item[1].params))
    return cut.whole([value for value, _ in ordered], [piece.params for _, piece in ordered], shape)


__all__ = [
    "OPERATIONS",
    "Expr",
    "Shape",
    "add",
    "by_heads",
    "cat",
    "contiguous",
    "cut_by_heads",
    "eye",
    "flatten",
    "flip",
    "fold_bias",
    "fold_weight",
    "grow",
    "inverted",
    "is_selected",
    "is_transposed",
    "lazy",
    "lora",
    "lora_alpha",
    "mul",
    "nonzero",
    "norm",
    "normed_dimension",
    "of",
    "of_heads",
    "pad",
    "parse",
    "part",
    "permute",
    "reassembled",
    "repeat",
    "rescaled",
    "reshape",
    "resize",
    "rotary",
    "rows_cut",
    "rows_grown",
    "rows_joined",
    "scale",
    "select",
    "shape_of",
    "shapes_read",
    "shift",
    "simplified",
    "spectral_norm",
    "stack",
    "summed",
    "torch_helpers",
    "torch_text",
    "transpose",
    "unreshaped",
    "unscaled",
    "unshifted",
    "weight_norm",
    "zeros",
]
