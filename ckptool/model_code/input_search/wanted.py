"""Read from an error how many dimensions, and which sizes, a tensor should have."""

from __future__ import annotations

import math
import re

import torch

from ..call import flat
from .attempt import Stop

NUMBER = re.compile(r"\d+")

BY_ELEMENT = frozenset("add mul sub __add__ __mul__ __sub__ __radd__ __rmul__".split())

ATTENTION = frozenset({"scaled_dot_product_attention", "bmm", "baddbmm"})


def wanted_dimensions(stop: Stop) -> list[tuple[int, int]]:
    """Return (number of dimensions that a tensor has, number that it needs) for each way to read the error of STOP,
    each once: [(3, 4)] for "expected 4D input, got 3D". -1 stands for a number that the error does not say: (-1, 3)
    says only what is needed, (-1, -1) only that it is more. If both numbers are known, they differ. [] if the error is
    not about dimensions.
    """
    said = stop.message
    args = [a for a in flat(stop.args) if isinstance(a, torch.Tensor)]
    x, weight = (args[0] if args else None), (args[1] if len(args) > 1 else None)
    found: list[tuple[int, int]] = []
    if stop.name.startswith("conv") and x is not None and weight is not None and x.ndim != weight.ndim:
        found.append((x.ndim, weight.ndim))
    for pattern in (
        r"not enough values to unpack \(expected (?:at least )?(\d+), got (\d+)\)",
        r"number of dims don't match.*has (?P<b>\d+).*length (?P<a>\d+)|length of dims.*(\d+).*(\d+)",
        r"[Ee]xpected (\d)D?\b.*?(?:got|but).*?(\d)D?\b",
    ):
        match = re.search(pattern, said)
        if match:
            numbers = [int(n) for n in match.groups() if n is not None]
            if len(numbers) == 2 and max(numbers) < 7:
                found.append((numbers[1], numbers[0]))
    provided = re.search(
        r"sizes provided \((\d+)\) must be greater or equal to the number of dimensions.*\((\d+)\)", said
    )
    if provided:
        found.append((int(provided[2]), int(provided[1])))
    joined = re.search(r"same number of dimensions: got (\d) and (\d)|Expected (\d)-D tensors, but got (\d)-D", said)
    if joined:  # either may be wrong
        one, other = (int(n) for n in joined.groups() if n is not None)
        found += [(one, other), (other, one)]
    many = re.search(r"too many values to unpack \(expected (\d+)", said)
    if many:
        found.append((-1, int(many[1])))
    missing = re.search(r"Dimension out of range \(expected to be in range of \[-(\d+), \d+\], but got (-?\d+)\)", said)
    if missing:
        beyond = int(missing[2])
        found.append((int(missing[1]), max(beyond + 1, -beyond)))
    if re.search(r"tuple index out of range|too many indices for tensor of dimension (\d)", said):
        found.append((-1, -1))
    sizes = [tuple(map(int, NUMBER.findall(text))) for text in re.findall(r"\[([\d, ]+)\]", said)]
    if "could not be broadcast together" in said and len({len(size) for size in sizes}) == 2:
        found.append((min(map(len, sizes)), max(map(len, sizes))))
    wanted = [int(n) for n in re.findall(r"\b([1-5])-?[dD]\b", said)]
    if wanted and sizes and stop.name:
        found += [(len(size), n) for size in sizes for n in wanted if n != len(size)]
    if (
        stop.name in BY_ELEMENT
        and x is not None
        and weight is not None
        and 1 < min(x.ndim, weight.ndim) < max(x.ndim, weight.ndim)
    ):
        found.append((min(x.ndim, weight.ndim), max(x.ndim, weight.ndim)))
    if x is not None and ("permute" in stop.name or (stop.name == "repeat" and "repeat dims" in said)):
        found.append((x.ndim, len([a for a in flat(stop.args) if isinstance(a, int)])))
    return [(have, want) for have, want in dict.fromkeys(found) if have != want or have < 0]


def wanted_sizes(stop: Stop, x: torch.Tensor | None, weight: torch.Tensor | None) -> list[tuple[int, int]]:
    """Return (size that a tensor has, size that it needs), different and above 0, for each way to read the error of
    STOP, each once; [] if there is none. Pairs that the sizes of X and WEIGHT show come before those that the message
    of the error says. If it is open which of the two tensors is wrong, both (a, b) and (b, a) are there.

    X and WEIGHT are the first two tensors of the operation that failed, or None.
    """
    said, name = stop.message, stop.name
    found: list[tuple[int, int]] = []
    if x is not None and weight is not None:
        if name.startswith("conv") and x.ndim >= weight.ndim - 1:
            channels = x.shape[1] if x.ndim == weight.ndim else x.shape[0]
            groups = re.search(r"groups=(\d+)", said)
            times = int(groups[1]) if groups else 1
            wanted = weight.shape[0] if "transpose" in name else weight.shape[1] * times
            if channels != wanted:
                found.append((channels, wanted))
        elif name == "linear" and x.shape and weight.ndim == 2:
            found.append((x.shape[-1], weight.shape[1]))
        elif name in ("layer_norm", "group_norm", "batch_norm", "rms_norm", "instance_norm"):
            width = weight.shape[-1] if weight.ndim else 0
            have = x.shape[-1] if name in ("layer_norm", "rms_norm") else x.shape[1 if x.ndim > 1 else 0]
            found.append((have, width))
        elif name in ("matmul", "__matmul__", "mm", "bmm", "addmm", "__rmatmul__") and x.ndim and weight.ndim:
            a, b = [one for one in flat(stop.args) if isinstance(one, torch.Tensor)][-2:]
            inner = b.shape[-2] if b.ndim > 1 else b.shape[-1]
            found += [(a.shape[-1], inner), (inner, a.shape[-1])]
            if a.ndim > 2 and b.ndim > 2 and a.shape[0] != b.shape[0]:
                found += [(a.shape[0], b.shape[0]), (b.shape[0], a.shape[0])]
    patterns = (
        r"size of tensor a \((\d+)\) must match the size of tensor b \((\d+)\)",
        r"input\.size\(-1\) must be equal to input_size\. Expected (?P<b>\d+), got (?P<a>\d+)",
        r"to have (?P<b>\d+) channels, but got (?P<a>\d+)",
        r"running_mean should contain (?P<a>\d+) elements not (?P<b>\d+)",
        r"Expected size (\d+) but got size (\d+)",
        r"subscript \w+ has size (\d+) for operand \d+ which does not broadcast with previously seen size (\d+)",
        r"expanded size of the tensor \((?P<b>\d+)\) must match the existing size \((?P<a>\d+)\)",
        r"expected (?P<b>\d+),? (?:but )?(?:got|was|found) (?P<a>\d+)",
        r"shapes cannot be multiplied \(\d+x(\d+) and (\d+)x\d+\)",
        r"[Ww]as expecting embedding dimension of (?P<b>\d+), but got (?P<a>\d+)",
        r"expecting key weights shape of \(\d+, (?P<a>\d+)\), but got torch.Size\(\[\d+, (?P<b>\d+)\]\)",
    )
    for pattern in patterns:
        match = re.search(pattern, said)
        if match and len(match.groups()) == 2:
            named = match.groupdict()
            a, b = (int(named["a"]), int(named["b"])) if named else (int(match[1]), int(match[2]))
            found.append((a, b))
            if not named:
                found.append((b, a))
    beyond = re.search(r"index (\d+) is out of bounds for dimension \d+ with size (\d+)", said)
    if beyond:
        found.append((int(beyond[2]), int(beyond[1]) + 1))
    view = re.search(r"shape '\[([-\d, ]+)\]' is invalid for input of size (\d+)", said)
    if view:
        known = math.prod(n for n in map(int, re.findall(r"-?\d+", view[1])) if n > 0)
        found += [(int(view[2]), known)]
    divided = re.search(r"Provided sizes \[([-\d, ]+)\] don't multiply up to the size of dim \d+ \((\d+)\)", said)
    if divided:
        found.append((int(divided[2]), math.prod(n for n in map(int, re.findall(r"-?\d+", divided[1])) if n > 0)))
    return [(have, want) for have, want in dict.fromkeys(found) if have != want and have > 0 and want > 0]


__all__ = ["ATTENTION", "BY_ELEMENT", "NUMBER", "wanted_dimensions", "wanted_sizes"]
