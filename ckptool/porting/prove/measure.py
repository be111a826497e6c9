"""Measure how far two models are apart, and how far rounding alone can take them apart, by running both in float64,
too.

The effect of rounding is measured on the network itself: its outputs in float32 against its outputs in float64. Two
codes that compute the same may differ by a few times that effect in float32, and by far less in float64. A different
setting (the eps of a norm) therefore shows in float64, however small its effect is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import permutations

import torch

from .flow import Flow

#: Times what rounding does to the outputs that two models that compute the same may be apart.
_TIMES = 4.0
#: What rounding does to one number of float32, relative to it; and the most that counts as rounding at all.
_STEP, _MOST = 2.0**-24, 1e-3
#: How much finer double precision is than float32: 29 bits, of which 9 are left to the order of sums.
_FINER = 2.0**-20


@dataclass(frozen=True, slots=True)
class Measured:
    """The measured difference, in the units of the outputs, at the output that is farthest apart for its bound.

    Attributes:
        difference: the largest difference between the two models, in float64.
        bound: the largest difference that rounding in float32 explains: four times its effect on either model, but at
            most a thousandth of `largest`.
        largest: the largest value of this output in the source's code; 1 if all are 0.
        of_outputs: whether outputs were compared; else the outputs of each layer, relative to their largest value.
    """

    difference: float
    bound: float
    largest: float
    of_outputs: bool = True

    @property
    def is_equal(self) -> bool:
        """Return whether rounding in float32 explains the difference: it is at most the bound."""
        return self.difference <= self.bound

    @property
    def is_exact(self) -> bool:
        """Return whether rounding in float64 explains the difference (it is at most a millionth of the bound), so that
        both models compute the same with equal constants.
        """
        return self.difference <= self.bound * _FINER

    @property
    def times(self) -> float:
        """Return the difference as a multiple of the bound."""
        return self.difference / self.bound

    def __str__(self) -> str:
        told = f"up to {_short(self.difference)} where rounding explains {self.bound:.1e}"
        return f"{told} and the largest is {self.largest:.2g}" if self.of_outputs else f"{told} of the largest"


def measured(
    expected: Flow, seen: Flow, wide_expected: Flow, wide_seen: Flow, blurred: Flow | None = None
) -> Measured | None:
    """Return how far the outputs of two models are apart, in float64. None if no two outputs can be compared: they need
    equally many numbers, and more than one unless each model has one output only (`of_one_size`). None also if the
    outputs of a model have other sizes in float32 than in float64, as with a setting that was changed in between.

    Each output of the source's code is compared with the nearest output of the model, and the worst of these
    comparisons counts; then each output of the model likewise with those of the source's code. The better of the two is
    returned, since either code may give more outputs. An output that can be compared with none does not count. Nearest
    and worst are meant relative to `Measured.bound`.

    Args:
        expected, seen: the flows of the source's code and of the model, in float32.
        wide_expected, wide_seen: the same in float64.
        blurred: the flow of the model on inputs that are as far off as the saved ones may be; None for exact inputs.
    """
    sides = (expected.outputs, wide_expected.outputs), (seen.outputs, wide_seen.outputs)
    if any([t.shape for t in narrow] != [t.shape for t in wide] for narrow, wide in sides):
        return None
    noise = [[_apart(a, b) for a, b in zip(*side, strict=True)] for side in sides]
    if blurred is not None:
        more = [_apart(a, b) for a, b in zip(wide_seen.outputs, blurred.outputs, strict=False)]
        noise[1] = [max(pair) for pair in zip(noise[1], more, strict=False)]
    alone = len(expected.outputs) == len(seen.outputs) == 1
    found = {
        (i, j): _measured(a, b, max(noise[0][i], noise[1][j]))
        for i, a in enumerate(wide_expected.outputs)
        for j, b in enumerate(wide_seen.outputs)
        if of_one_size(a, b, alone)
    }
    if not found:
        return None
    worst = []
    for side in (0, 1):  # either side may give more: hidden states, or what is computed of several outputs
        nearest = [
            min((m for at, m in found.items() if at[side] == place), key=lambda m: m.times)
            for place in {at[side] for at in found}
        ]
        worst.append(max(nearest, key=lambda m: m.times))
    return min(worst, key=lambda m: m.times)


def _measured(a: torch.Tensor, b: torch.Tensor, noise: float) -> Measured:
    """Return the difference between A, an output of the source's code, and B, one of the model, both in float64 and
    with equally many numbers; the dimensions of A are taken in the order in which it is least (`orders`).

    NOISE is how far rounding in float32 moves either. The bound is four times NOISE (at least that of one rounding of
    the largest number of A), but at most a thousandth of the largest number of A.
    """
    difference = min(_apart(x, y) for x, y in orders(a, b))
    largest = float(torch.nan_to_num(a.double(), 0.0, 0.0, 0.0).abs().max()) or 1.0
    rounding = max(noise, _STEP * largest)
    return Measured(difference, min(_TIMES * rounding, _MOST * largest), largest)


def _short(value: float) -> str:
    """Return VALUE with two digits, as text; "0" for 0."""
    return f"{value:.1e}" if value else "0"


def noise_of_uses(narrow: Flow, wide: Flow) -> float:
    """Return how far rounding in float32 moves the fingerprints in the outputs of layers. NARROW and WIDE are the flows
    of one model in float32 and in float64.

    For each layer, the largest difference is divided by the largest root mean square of its channels; the largest of
    these is returned, but at least 2^-24 and at most 2.5e-4. 2.5e-4 also if NARROW and WIDE do not have equally many
    uses of weights. Layers with outputs of unequal sizes do not count.
    """
    if len(narrow.uses) != len(wide.uses):
        return _MOST / _TIMES
    apart = [
        float((a.given - b.given).abs().max()) / (float(b.given[:, 0].max()) or 1.0)
        for a, b in zip(narrow.uses, wide.uses, strict=True)
        if a.given.shape == b.given.shape and len(a.given)
    ]
    return min(max([_STEP, *apart]), _MOST / _TIMES)


def sharpened(expected: Flow, seen: Flow, wide_expected: Flow, wide_seen: Flow) -> float:
    """Return how far rounding in float32 may move equal channels apart, relative to the largest: four times its effect
    on either model. Also let WIDE_EXPECTED, the source's flow in float64, compare channels with this tolerance.
    EXPECTED and SEEN are the flows of both models in float32, WIDE_SEEN is that of the model in float64.
    """
    share = _TIMES * max(noise_of_uses(expected, wide_expected), noise_of_uses(seen, wide_seen))
    wide_expected.tell_apart_by(share, share)
    return share


def orders(a: torch.Tensor, b: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield (A, B), in float64 and without dimensions of 1, once for each order of the dimensions of A in which A has
    the sizes of B.

    If they do not have the same sizes in some order, or more than four dimensions: once, both flattened.
    """
    a, b = a.detach().double().squeeze(), b.detach().double().squeeze()
    if sorted(a.shape) == sorted(b.shape) and a.ndim <= 4:
        for order in permutations(range(a.ndim)):
            if tuple(a.shape[i] for i in order) == tuple(b.shape):
                yield a.permute(order), b
    else:
        yield a.reshape(-1), b.reshape(-1)


def _apart(a: torch.Tensor, b: torch.Tensor) -> float:
    """Return the largest difference between the finite numbers of A and B, of one size: 0 if neither has any, infinity
    if a number is finite in one of the two only.
    """
    a, b = a.detach().double(), b.detach().double()
    finite = torch.isfinite(a)
    if not torch.equal(finite, torch.isfinite(b)):
        return float("inf")
    return float((a - b)[finite].abs().max()) if bool(finite.any()) else 0.0


def of_one_size(a: torch.Tensor, b: torch.Tensor, alone: bool) -> bool:
    """Return whether the outputs A and B can be compared: they have equally many numbers, and more than one, unless
    each is the only output of its model (ALONE).
    """
    return a.numel() == b.numel() and (alone or a.numel() > 1)


__all__ = ["Measured", "measured", "noise_of_uses", "of_one_size", "orders", "sharpened"]
