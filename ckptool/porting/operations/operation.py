"""An operation, and an expression of operations over tensors of the source.

An `Expr` is a value: it names an operation, and holds what that works on. Everything that is known of the operation
itself is in one subclass of `Operation`.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any

from ...errors import RuleError, printable
from .storages import Computed, over

if TYPE_CHECKING:
    import numpy as np

    from ...tensor import LazyTensor

Shape = tuple[int, ...]
Number = int | float | str


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
        if self.is_copy:
            return [self.key]
        return list(dict.fromkeys(key for arg in self.args for key in arg.keys()))  # noqa: SIM118 - a method of ours

    def operations(self) -> list[str]:
        """The names of the operations in it, from the inside out, once each."""
        inner = [name for arg in self.args for name in arg.operations()]
        return list(dict.fromkeys(inner + ([] if self.is_copy else [self.op])))

    def rename(self, new: Callable[[str], str]) -> Expr:
        """The same on other keys."""
        return self.replaced(lambda key: of(new(key)))

    def replaced(self, new: Callable[[str], Expr]) -> Expr:
        """The same with NEW(key) in place of each key."""
        if self.is_copy:
            return new(self.key)
        return replace(self, args=tuple(arg.replaced(new) for arg in self.args))

    def written(self, name: Callable[[str], str]) -> str:
        """The text in a mapping file, where NAME writes a key."""
        if self.is_copy:
            return name(self.key)
        words = OPERATIONS[self.op].first
        params, args = list(map(str, self.params)), [arg.written(name) for arg in self.args]
        return f"{self.op}({', '.join(params[:words] + args + params[words:])})"

    def __str__(self) -> str:
        return self.written(lambda key: key if _PLAIN.fullmatch(key) else json.dumps(key))


_PLAIN = re.compile(r"[\w.\-{}/]+")


def of(key: str) -> Expr:
    """The tensor KEY as it is."""
    return Expr("key", (), (key,))


class Operation(ABC):
    """What can be done with tensors: its text, the sizes it gives, how it is computed, simplified and undone.

    Attributes:
        name: how mapping files write it.
        usage: an example of how it is written, with the names of its arguments.
        summary: what it gives.
        first: number of parameters that are written before the tensors.
        takes: number of tensors it works on (0: any number, at least one; -1: none).
        params: the parameters, as `fits` spells them.
        helper: a function that the text in torch calls, as code; "" where torch has what it takes.
        calls: whether that text holds the tensors in the brackets of a call, and no dot or operator beside them.
        infix: whether that text is a sum or a product, which goes in brackets before a dot.
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

    def fits(self, params: Sequence[Number]) -> bool:
        """Whether these are its parameters, by kind: i is an integer from 0 on, f another number, w a word."""
        return re.fullmatch(self.params, "".join(map(_kind, params))) is not None

    @abstractmethod
    def shape(self, shapes: Sequence[Shape], params: tuple[Any, ...]) -> Shape:
        """The sizes of the result, for the sizes of the tensors it works on.

        Raises:
            RuleError: they do not fit.
        """

    @abstractmethod
    def result(
        self, parts: Sequence[LazyTensor], params: tuple[Any, ...], shape: Shape, like: LazyTensor
    ) -> LazyTensor:
        """The result, of sizes SHAPE. What works on no tensor has the type and the place of LIKE."""

    @abstractmethod
    def torch_text(self, args: Sequence[str], params: tuple[Any, ...], like: str) -> str:
        """The result as an expression of Python over the texts ARGS of tensors of torch.

        What works on no tensor has the type and the place of LIKE.
        """

    def simplified(self, x: Expr, shapes: Mapping[str, Shape]) -> Expr:
        """X, a call of this operation on simplified arguments, in fewer steps where that is possible."""
        return x

    def undone(self, x: Expr, value: Expr, shapes: Mapping[str, Shape]) -> Sequence[Expr] | None:
        """Each argument of X, made from VALUE, which is what X gives; None where values are lost."""
        return None


class View(Operation):
    """An operation that only rearranges or leaves out values: its result is a view that moves no byte."""

    @abstractmethod
    def view(self, x: LazyTensor, params: tuple[Any, ...]) -> LazyTensor:
        """The result as a view of X."""

    def result(
        self, parts: Sequence[LazyTensor], params: tuple[Any, ...], shape: Shape, like: LazyTensor
    ) -> LazyTensor:
        """A view of the one tensor."""
        return self.view(parts[0], params)


class Calculation(Operation):
    """An operation that computes: in float32 (float64 stays), when it is written; rounded once, to the widest type."""

    @abstractmethod
    def compute(self, arrays: Sequence[np.ndarray[Any, Any]], params: tuple[Any, ...]) -> np.ndarray[Any, Any]:
        """The values of the result."""

    def result(
        self, parts: Sequence[LazyTensor], params: tuple[Any, ...], shape: Shape, like: LazyTensor
    ) -> LazyTensor:
        """A tensor over bytes that are computed when they are read."""
        like = widest(parts)
        length = prod(shape) * like.dtype.itemsize
        return over(Computed(partial(self.compute, params=params), parts, like, length), like, shape)


#: Every operation that a mapping may name, by name; filled by the package, which lists them.
OPERATIONS: dict[str, Operation] = {}


def torch_text(x: Expr, name: Callable[[str], str], like: str) -> str:
    """X as an expression of Python over tensors of torch, where NAME writes a key. Its helpers are `torch_helpers`."""
    if x.is_copy:
        return name(x.key)
    operation, args = OPERATIONS[x.op], []
    for arg in x.args:
        text = torch_text(arg, name, like)
        bare = operation.calls or arg.is_copy or not OPERATIONS[arg.op].infix
        args.append(text if bare else f"({text})")
    return operation.torch_text(args, x.params, like)


def torch_helpers(x: Expr) -> dict[str, str]:
    """The functions that `torch_text` calls, by the operation, as code."""
    found = {name: helper for arg in x.args for name, helper in torch_helpers(arg).items()}
    if not x.is_copy and (helper := OPERATIONS[x.op].helper):
        found[x.op] = helper
    return found


def listed(items: Iterable[Any]) -> str:
    """ITEMS with commas between."""
    return ", ".join(map(str, items))


def shape_of(x: Expr, shapes: Mapping[str, Shape]) -> Shape:
    """The sizes of what X gives, for the sizes of the source.

    Raises:
        RuleError: an operation does not fit, or a key is not there.
    """
    if x.is_copy:
        if x.key not in shapes:
            raise RuleError(f"there is no {printable(x.key)} in the source")
        return tuple(shapes[x.key])
    return OPERATIONS[x.op].shape([shape_of(arg, shapes) for arg in x.args], x.params)


def simplified(x: Expr, shapes: Mapping[str, Shape]) -> Expr:
    """The same in fewer steps: what was taken apart and put together again is a copy."""
    if x.is_copy:
        return x
    x = replace(x, args=tuple(simplified(arg, shapes) for arg in x.args))
    return OPERATIONS[x.op].simplified(x, shapes)


def widest(parts: Sequence[LazyTensor]) -> LazyTensor:
    """The first of the tensors whose elements have the most bytes: its type is that of what is made of them all."""
    return max(parts, key=lambda part: part.dtype.itemsize)


def need(condition: bool, what: str) -> None:
    """Refuse what does not fit, in one sentence.

    Raises:
        RuleError: the condition does not hold.
    """
    if not condition:
        raise RuleError(printable(what, 300))


def _kind(param: Number) -> str:
    if isinstance(param, str):
        return "w"
    return "i" if isinstance(param, int) and param >= 0 else "f"


#: A parameter that may be any number.
REAL = "[if]"
