"""Operations, and expressions: nested operations over tensors of the source.

An `Expr` is an immutable value that names its operation and holds its arguments. All that is known of an operation is
in one subclass of `Operation`.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar

from ...errors import RuleError, printable
from .storages import Computed, over

if TYPE_CHECKING:
    import numpy as np

    from ...tensor import LazyTensor

Shape = tuple[int, ...]
Number = int | float | str


@dataclass(frozen=True, slots=True)
class Expr:
    """An operation with its arguments, or a key of the source (`op` is "key", and the key is the only parameter).

    Attributes:
        op: the name of the operation in `OPERATIONS`.
        args: the expressions that the operation takes.
        params: its other arguments (numbers, words).
    """

    op: str
    args: tuple[Expr, ...] = ()
    params: tuple[Number, ...] = ()

    @property
    def key(self) -> str:
        """Return the key, if this is a tensor of the source without any operation. Other expressions fail an
        assertion.
        """
        assert self.op == "key"
        return str(self.params[0])

    @property
    def is_copy(self) -> bool:
        """Return whether this is a tensor of the source without any operation."""
        return self.op == "key"

    def keys(self) -> list[str]:
        """Return the keys of the source that the expression reads, each once, in the order of its text; [] if it reads
        none (`zeros`).
        """
        if self.is_copy:
            return [self.key]
        return list(dict.fromkeys(key for arg in self.args for key in arg.keys()))  # noqa: SIM118 - a method of ours

    def operations(self) -> list[str]:
        """Return the names of the operations in the expression, each once, inner ones before those around them; [] for
        a copy.
        """
        inner = [name for arg in self.args for name in arg.operations()]
        return list(dict.fromkeys(inner + ([] if self.is_copy else [self.op])))

    def rename(self, new: Callable[[str], str]) -> Expr:
        """Return the expression with NEW(key) in place of each key that it reads."""
        return self.replaced(lambda key: of(new(key)))

    def replaced(self, new: Callable[[str], Expr]) -> Expr:
        """Return the expression with the expression NEW(key) in place of each key."""
        if self.is_copy:
            return new(self.key)
        return replace(self, args=tuple(arg.replaced(new) for arg in self.args))

    def written(self, name: Callable[[str], str]) -> str:
        """Return the text of the expression for a mapping file, `slice(a.weight, 0, 0, 4)` or `cat(0, a, b)`: the first
        few parameters stand before the tensors (`Operation.first`), the others behind them. A copy is the key alone.
        NAME returns the text of a key, for instance with quotes.
        """
        if self.is_copy:
            return name(self.key)
        words = OPERATIONS[self.op].first
        params, args = list(map(str, self.params)), [arg.written(name) for arg in self.args]
        return f"{self.op}({', '.join(params[:words] + args + params[words:])})"

    def __str__(self) -> str:
        return self.written(lambda key: key if _PLAIN.fullmatch(key) else json.dumps(key))


_PLAIN = re.compile(r"[\w.\-{}/]+")


def of(key: str) -> Expr:
    """Return the expression of the tensor KEY of the source as it is."""
    return Expr("key", (), (key,))


class Operation(ABC):
    """A kind of operation: how it is written, which sizes it gives, how it is computed, simplified and inverted.

    Attributes:
        name: how mapping files write it.
        usage: an example of how it is written, with the names of its arguments.
        summary: its result, in words.
        first: number of parameters that are written before the tensors.
        takes: number of tensors that it takes (0: one or more; -1: none).
        params: a pattern for the kinds of its parameters, see `fits`.
        helper: code of a function that the torch code calls; "" if torch alone is enough.
        calls: whether the torch code has the tensors only as arguments of a call, without a dot or operator after them.
        infix: whether the torch code is a sum or a product, which needs brackets before a dot.
        keeps_sizes: whether the result has the sizes of its only tensor, so that `taken` gives them.
        moves: whether each value of the result is a value of one of its tensors, in another place, or 0.
    """

    name: str
    usage: str
    summary: str
    first: int = 0
    takes: int = 1
    params: str = ""
    helper: str = ""
    calls: bool = False
    infix: bool = False
    keeps_sizes: bool = False
    moves: bool = False

    def fits(self, params: Sequence[Number]) -> bool:
        """Return whether PARAMS are of the kinds in the pattern `params`, a regular expression with a letter for each
        of them: i is an integer from 0 on, f another number, w a word.
        """
        return re.fullmatch(self.params, "".join(map(_kind, params))) is not None

    @abstractmethod
    def shape(self, shapes: Sequence[Shape], params: tuple[Any, ...]) -> Shape:
        """Return the sizes of the result for SHAPES, the sizes of its tensors, and PARAMS, its other arguments.

        Raises:
            RuleError: the operation cannot be applied to these.
        """

    @abstractmethod
    def result(
        self, parts: Sequence[LazyTensor], params: tuple[Any, ...], shape: Shape, like: LazyTensor
    ) -> LazyTensor:
        """Return the result as a lazy tensor of sizes SHAPE, for the tensors PARTS and the other arguments PARAMS. LIKE
        gives type and device if the operation reads no tensor.
        """

    def taken(self, shape: Shape, params: tuple[Any, ...], count: int) -> list[Shape]:
        """Return the sizes of the COUNT tensors that the operation reads if its result has SHAPE, as far as SHAPE shows
        them: a tensor that is cut may be larger, and tensors that are joined are taken to be of equal sizes. [] if
        SHAPE shows nothing. PARAMS are its other arguments. An operation without a method of its own returns [SHAPE] if
        `keeps_sizes` is set, else [].
        """
        return [shape] if self.keeps_sizes else []

    @abstractmethod
    def torch_text(self, args: Sequence[str], params: tuple[Any, ...], like: str) -> str:
        """Return Python code for the result. ARGS are the codes of its torch tensors, PARAMS its other arguments.

        LIKE, the code of a tensor, gives type and device if the operation reads no tensor.
        """

    def simplified(self, x: Expr, shapes: Mapping[str, Shape]) -> Expr:
        """Return an expression that equals X, an expression of this operation, with fewer operations if possible; else
        X. The arguments of X are simplified already; SHAPES are the sizes of the source.
        """
        return x

    def undone(self, x: Expr, value: Expr, shapes: Mapping[str, Shape]) -> Sequence[Expr] | None:
        """Return how to get the arguments of X back from its result: an expression over VALUE for each argument, in
        their order. X is an expression of this operation, and VALUE the expression of its result. None if X loses
        values; that is the result of operations without a method of their own. SHAPES has the sizes of each key of the
        source.
        """
        return None


class View(Operation):
    """An operation that only rearranges or drops values: its result is a view that copies no bytes."""

    moves = True

    @abstractmethod
    def view(self, x: LazyTensor, params: tuple[Any, ...]) -> LazyTensor:
        """Return the result for the only tensor X and the other arguments PARAMS, as a view of X."""

    def result(
        self, parts: Sequence[LazyTensor], params: tuple[Any, ...], shape: Shape, like: LazyTensor
    ) -> LazyTensor:
        """Return the result as a view of the only tensor, PARTS[0]."""
        return self.view(parts[0], params)


class Calculation(Operation):
    """An operation that computes values when they are written.

    The result has the widest type of its tensors (`widest`; of the first `typed` ones, if that is not None). It is
    computed in that type if it is float64 or complex, else in float32, and rounded once. If all tensors are whole
    numbers, it is computed with these, and cut off.
    """

    typed: ClassVar[int | None] = None

    @abstractmethod
    def compute(self, arrays: Sequence[np.ndarray[Any, Any]], params: tuple[Any, ...]) -> np.ndarray[Any, Any]:
        """Return the values of the result, computed from ARRAYS, the values of its tensors, and PARAMS, its other
        arguments.
        """

    def result(
        self, parts: Sequence[LazyTensor], params: tuple[Any, ...], shape: Shape, like: LazyTensor
    ) -> LazyTensor:
        """Return a lazy tensor of sizes SHAPE whose bytes are computed from PARTS each time they are read. It has the
        widest type of PARTS, or of the first `typed` of them.
        """
        like = widest(parts[: self.typed])
        length = prod(shape) * like.dtype.itemsize
        return over(Computed(partial(self.compute, params=params), parts, like, length), like, shape)

    def torch_text(self, args: Sequence[str], params: tuple[Any, ...], like: str) -> str:
        """Return the torch code: a call of the helper, which has the name of the operation, for the texts ARGS, then
        PARAMS. If the pattern `params` is `REAL`, PARAMS are written as floats (2 as 2.0).
        """
        numbers = map(float, params) if self.params == REAL else params
        return f"{self.name}({listed([*args, *numbers])})"


#: Every operation that a mapping may name, by name; filled by the package, which lists them.
OPERATIONS: dict[str, Operation] = {}


def torch_text(x: Expr, name: Callable[[str], str], like: str) -> str:
    """Return Python code that computes the result of X from torch tensors. NAME(key) returns the code of the tensor of
    a key, which is the whole result for a copy; LIKE is the code of any tensor, which gives zeros their type and
    device. An argument that is a sum or a product (`Operation.infix`) gets brackets, unless the operation around it is
    a call (`Operation.calls`). The functions that the code calls are those of `torch_helpers`.
    """
    if x.is_copy:
        return name(x.key)
    operation, args = OPERATIONS[x.op], []
    for arg in x.args:
        text = torch_text(arg, name, like)
        bare = operation.calls or arg.is_copy or not OPERATIONS[arg.op].infix
        args.append(text if bare else f"({text})")
    return operation.torch_text(args, x.params, like)


def torch_helpers(x: Expr) -> dict[str, str]:
    """Return name of an operation -> code of the function that `torch_text` of X may call for it, for all operations in
    X that have such a helper; inner ones come first. `add` is there for sums of two as well, which need no call.
    """
    found = {name: helper for arg in x.args for name, helper in torch_helpers(arg).items()}
    if not x.is_copy and (helper := OPERATIONS[x.op].helper):
        found[x.op] = helper
    return found


def listed(items: Iterable[Any]) -> str:
    """Return ITEMS as text with commas between them."""
    return ", ".join(map(str, items))


def shape_of(x: Expr, shapes: Mapping[str, Shape]) -> Shape:
    """Return the sizes of the result of X. SHAPES has the sizes of each key of the source.

    Raises:
        RuleError: an operation cannot be applied to these sizes, or the source lacks a key.
    """
    if x.is_copy:
        if x.key not in shapes:
            raise RuleError(f"there is no {printable(x.key)} in the source")
        return tuple(shapes[x.key])
    return OPERATIONS[x.op].shape([shape_of(arg, shapes) for arg in x.args], x.params)


def shapes_read(x: Expr, shape: Shape, found: MutableMapping[str, Shape]) -> None:
    """Add to FOUND (key -> sizes) the sizes that the source tensors read by X need, if the result of X has the sizes
    SHAPE. Nothing is returned. Keys inside of an operation whose result does not show the sizes of its tensors
    (`Operation.taken` is []: `reshape`, `lora`) are left out.

    If FOUND already has sizes of equally many dimensions for a key, the larger of the two counts in each dimension,
    because the tensor may be read in several parts; sizes of another number of dimensions are replaced by the new ones.
    """
    if x.is_copy:
        before = found.get(x.key, ())
        found[x.key] = tuple(map(max, before, shape)) if len(before) == len(shape) else shape
        return
    for arg, inner in zip(x.args, OPERATIONS[x.op].taken(shape, x.params, len(x.args)), strict=False):
        shapes_read(arg, inner, found)


def simplified(x: Expr, shapes: Mapping[str, Shape]) -> Expr:
    """Return an expression that equals X with fewer operations, or X if there is none: parts that were cut and joined
    again are a copy. The arguments of X are simplified first, from the inside out, then X by the rules of its operation
    (`Operation.simplified`). SHAPES has the sizes of each key.
    """
    if x.is_copy:
        return x
    x = replace(x, args=tuple(simplified(arg, shapes) for arg in x.args))
    return OPERATIONS[x.op].simplified(x, shapes)


def widest(parts: Sequence[LazyTensor]) -> LazyTensor:
    """Return the one of PARTS whose type the result made from all of them gets: the first with the largest elements, in
    bytes, of those whose type is complex; of those that are floating point, if there are none; else of all.
    """
    return max(parts, key=lambda part: (part.dtype.is_complex, part.dtype.is_floating, part.dtype.itemsize))


def need(condition: bool, what: str) -> None:
    """Raise RuleError with the sentence WHAT unless CONDITION is true."""
    if not condition:
        raise RuleError(printable(what, 300))


def _kind(param: Number) -> str:
    """Return the letter for the kind of PARAM: "w" for a word, "i" for an integer from 0 on, "f" for another number."""
    if isinstance(param, str):
        return "w"
    return "i" if isinstance(param, int) and param >= 0 else "f"


#: A parameter that may be any number.
REAL = "[if]"
