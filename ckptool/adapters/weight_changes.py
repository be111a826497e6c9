"""From the tensors of one layer of an adapter to what is done to the base's weight, with every shape checked."""

from __future__ import annotations

from math import prod

from ..passes.computing import Factor, Rows, factor, flat
from ..tensor import LazyTensor
from .delta_rows import (
    Added,
    Change,
    Decomposed,
    Experts,
    Hadamard,
    Kronecker,
    KroneckerOfPeft,
    Product,
    Scaled,
    Tucker,
    Whole,
)
from .settings import Settings


class Misfit(Exception):
    """Why a layer does not fit, in words."""


_Parts = dict[str, LazyTensor]


def shown(*tensors: LazyTensor) -> str:
    """Shapes for a message."""
    return " and ".join(str(list(tensor.shape)) for tensor in tensors)


def _take(parts: _Parts, name: str) -> LazyTensor:
    if name not in parts:
        raise Misfit(f"lacks its part {name}")
    return parts.pop(name)


def _matrix(tensor: LazyTensor) -> Factor:
    """A factor as a matrix: the first dimension by all others."""
    if not tensor.shape:
        raise Misfit("has a factor without dimensions")
    if not tensor.dtype.is_floating or tensor.dtype.numpy is None:
        raise Misfit(f"has a factor of the type {tensor.dtype.name}")
    return factor(tensor, flat(tensor.shape))


def _fits(change: Change, base: LazyTensor, parts: str) -> Change:
    if change.shape != flat(base.shape):
        raise Misfit(f"{parts} give {list(change.shape)}, the base has {list(base.shape)}")
    return change


def low_rank(parts: _Parts, base: LazyTensor, turned: bool) -> tuple[Change, int]:
    """B A of a linear layer, a convolution or an embedding, and its rank."""
    if "embedding a" in parts:
        a, b = _take(parts, "embedding a"), _take(parts, "embedding b")
        turned = True
    else:
        a, b = _take(parts, "a"), _take(parts, "b")
    middle = parts.pop("mid", None)
    one, other = _matrix(b), _matrix(a)
    rank = other.shape[0]
    if middle is not None:
        if len(middle.shape) < 3 or middle.shape[:2] != (rank, rank) or one.shape[1] != rank:
            raise Misfit(f"its factors have the shapes {shown(a, middle, b)}")
        # B is (out, r, 1, 1), and A (r, in, 1, 1)
        return _fits(Tucker(factor(middle), _Turned.of(b, one.shape), other), base, shown(a, middle, b)), rank
    if one.shape[1] != rank:
        raise Misfit(f"its factors have the shapes {shown(a, b)}")
    return _fits(Product(one, other, turned), base, shown(a, b)), rank


class _Turned:
    """A factor whose dimensions are exchanged."""

    @staticmethod
    def of(tensor: LazyTensor, shape: tuple[int, ...]) -> Factor:
        columns = LazyTensor(
            tensor.storage, tensor.dtype, (shape[1], shape[0]), (tensor.stride[1], tensor.stride[0]), tensor.offset
        )
        return factor(columns)


def hadamard(parts: _Parts, base: LazyTensor) -> tuple[Change, int]:
    """LoHa."""
    halves: list[Change] = []
    rank = 0
    for number in "12":
        a, b = _take(parts, f"hada_w{number}_a"), _take(parts, f"hada_w{number}_b")
        kernel = parts.pop(f"hada_t{number}", None)
        rank = b.shape[0] if b.shape else 0
        if kernel is not None:
            if len(kernel.shape) < 3 or (*a.shape[:1], *b.shape[:1]) != kernel.shape[:2]:
                raise Misfit(f"its factors have the shapes {shown(kernel, a, b)}")
            halves.append(_fits(Tucker(factor(kernel), _matrix(a), _matrix(b)), base, shown(kernel, a, b)))
            continue
        one, other = _matrix(a), _matrix(b)
        if one.shape[1] != other.shape[0]:
            raise Misfit(f"its factors have the shapes {shown(a, b)}")
        halves.append(_fits(Product(one, other), base, shown(a, b)))
    return Hadamard(*halves), rank


def kronecker(parts: _Parts, base: LazyTensor, *, of_peft: bool) -> tuple[Change, int | None]:
    """LoKr, and the rank where its factors tell."""
    kernel = base.shape[2] if len(base.shape) == 3 and of_peft and base.shape[2] != 1 else 0
    if kernel and parts.get("lokr_w2", parts.get("lokr_t2")) is not None:
        one, rank_of_one = _half(parts, "lokr_w1", None)
        other, rank_of_other = _half(parts, "lokr_w2", parts.pop("lokr_t2", None))
        return _fits(KroneckerOfPeft(one, other, kernel), base, "its factors"), rank_of_one or rank_of_other
    one, rank_of_one = _half(parts, "lokr_w1", None)
    other, rank_of_other = _half(parts, "lokr_w2", parts.pop("lokr_t2", None))
    return _fits(Kronecker(one, other), base, "its factors"), rank_of_one or rank_of_other


def _half(parts: _Parts, name: str, kernel: LazyTensor | None) -> tuple[Change, int | None]:
    if name in parts:
        return Whole(_matrix(parts.pop(name))), None
    a, b = _take(parts, f"{name}_a"), _take(parts, f"{name}_b")
    one, other = _matrix(a), _matrix(b)
    if kernel is not None:
        if len(kernel.shape) < 3 or (one.shape[0], other.shape[0]) != kernel.shape[:2]:
            raise Misfit(f"its factors have the shapes {shown(kernel, a, b)}")
        return Tucker(factor(kernel), one, other), other.shape[0]
    if one.shape[1] != other.shape[0]:
        raise Misfit(f"its factors have the shapes {shown(a, b)}")
    return Product(one, other), other.shape[0]


def difference(parts: _Parts, base: LazyTensor) -> Change:
    """A difference that is stored whole."""
    return _fits(Whole(_matrix(_take(parts, "diff"))), base, "its difference")


def scaled(parts: _Parts, base: LazyTensor, before: Rows, settings: Settings, module: str) -> tuple[Rows, bool]:
    """IA3: the weight with its rows or columns multiplied, and whether its bias is multiplied too."""
    by = _take(parts, "ia3")
    if not by.shape or not by.numel or not by.dtype.is_floating or by.dtype.numpy is None:
        raise Misfit(f"its numbers are {by.dtype.name} {list(by.shape)}")
    inputs = by.shape[0] == 1 and by.numel != 1
    if len(by.shape) > 2 or by.numel == 1:
        inputs = settings.matches_feedforward(module)
    by_column = inputs != (settings.flag("fan_in_fan_out") and len(base.shape) == 2)
    along = base.shape[1 if by_column else 0] if len(base.shape) > 1 else 0
    if by.numel != along:
        raise Misfit(f"its numbers are {list(by.shape)}, the base has {list(base.shape)}")
    return Scaled(before, factor(by), by_column), not inputs


def experts(parts: _Parts, base: tuple[int, ...], turned_if_square: bool | None) -> tuple[Change, int] | None:
    """B A of the experts in a parameter of shape (experts, d0, d1), and the rank; None if it does not fit."""
    a, b = parts.get("a"), parts.get("b")
    if a is None or b is None or len(a.shape) != 2 or len(b.shape) != 2 or a.shape[0] != b.shape[1]:
        return None
    if len(base) == 2:
        return (Product(_matrix(b), _matrix(a)), a.shape[0]) if base == (b.shape[0], a.shape[1]) else None
    count, *each = base
    outer, inner = b.shape[0], a.shape[1]
    if len(each) != 2 or not count or a.shape[0] % count or sorted(each) != sorted((outer, inner)):
        return None
    turned = each == [inner, outer] if inner != outer else turned_if_square
    if turned is None:
        raise Misfit(f"is square ({list(base)}), and nothing says which way its experts are stored")
    return Experts(_matrix(b), _matrix(a), count, turned), a.shape[0] // count


def put_onto(
    base: LazyTensor,
    before: Rows,
    plain: Rows,
    change: Change,
    scale: float,
    magnitude: LazyTensor | None,
    *,
    of_peft: bool,
) -> Rows:
    """The weight with a change, brought to the magnitudes that were learnt if there are any.

    Of the sizes [1, n, 1, 1] they are of the outputs in files of PEFT, which exchanges dimensions, and of the inputs in
    those of LyCORIS (`wd_on_out` false), whose [n, 1, 1, 1] are of the outputs.
    """
    if magnitude is None:
        return Added(before, change, scale)
    by_column = getattr(change, "turned", False)
    rows, columns = flat(base.shape)
    shape = magnitude.shape
    across = len(shape) == 2 and shape[0] == 1 and columns != 1 and len(base.shape) == 2
    if not of_peft and len(shape) > 1 and shape[0] == 1 and columns != 1 and len(base.shape) > 1 and not by_column:
        by_column, across, columns = True, False, base.shape[1]
    if magnitude.numel != (columns if by_column else rows) or prod(shape) != max(shape) or across:
        raise Misfit(f"its magnitudes are {list(shape)}, the base has {list(base.shape)}")
    return Decomposed(before, plain, change, scale, factor(magnitude), by_column)
