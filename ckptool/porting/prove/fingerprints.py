"""Identify channels of a tensor by a few numbers that do not depend on its layout or on the order of elements in a
channel.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

import torch


def fingerprints(values: torch.Tensor, dim: int) -> torch.Tensor:
    """Return a tensor with one row of six numbers for each channel of VALUES along dimension DIM: root mean square,
    mean, mean magnitude, cube root of the mean cube, maximum, minimum, in float64. The order of elements in a channel
    does not matter; NaN and infinity count as 0. A channel without elements has zeros; VALUES without dimensions are
    one channel.
    """
    x = values.detach()
    if not x.ndim:
        x = x.reshape(1)
    x = x.movedim(dim, 0)
    if not x.numel():
        return torch.zeros(len(x), 6, dtype=torch.float64)
    step = max(_AT_ONCE * len(x) // x.numel(), 1)
    return torch.cat([_of_rows(x[first : first + step]) for first in range(0, len(x), step)])


#: Elements that are worked on at once, in double precision and several times.
_AT_ONCE = 1 << 20


def _of_rows(values: torch.Tensor) -> torch.Tensor:
    """Return `fingerprints` of VALUES, which has elements, along its first dimension, all computed at once: six numbers
    per channel, in float64.
    """
    x = values.double().reshape(len(values), -1)
    x = torch.nan_to_num(x, nan=0.0, posinf=0.0, neginf=0.0)  # masked places
    squares = x * x
    cubes = (squares * x).mean(1)
    return torch.stack(
        [
            squares.mean(1).sqrt(),
            x.mean(1),
            x.abs().mean(1),
            cubes.sign() * cubes.abs().pow(1 / 3),
            x.amax(1),
            x.amin(1),
        ],
        dim=1,
    )


#: How far fingerprints of the same channel may lie apart, relative to the channel and to the largest of all.
APART, NOISE = 1e-3, 1e-5


def pairing(wanted: torch.Tensor, have: torch.Tensor) -> list[int] | None:
    """Return, for each channel of WANTED, the index of the equal channel in HAVE, each index once: [0, 1, …] if they
    are in the same order. Both are fingerprints, one row per channel. Channels are equal if their numbers differ by at
    most 1e-3 of the root mean square of the channel in WANTED plus 1e-5 of the largest root mean square of both. If a
    channel has several equal ones, `_assigned` says which is taken.

    None if WANTED and HAVE do not hold the same channels, equally many, or if they are in another order and more than
    8,192.
    """
    if wanted.shape != have.shape:
        return None
    allowed = _allowed(wanted, have)
    if bool(((wanted - have).abs() <= allowed).all()):
        return list(range(len(have)))
    total = (wanted.sum(0) - have.sum(0)).abs()
    if bool((total > allowed.sum(0) + allowed.max() * 4).any()) or len(wanted) > 8192:
        return None
    return _assigned(wanted, have, allowed)


def places(wanted: torch.Tensor, have: torch.Tensor) -> list[int] | None:
    """Return, for each channel of WANTED, its place in HAVE, which may have more channels, each place once; both are
    fingerprints, compared as in `pairing`. None if a channel has no place, if one of the two is empty, or if HAVE has
    more than 8,192 channels.
    """
    if not len(wanted) or not len(have) or len(have) > 8192:
        return None
    return _assigned(wanted, have, _allowed(wanted, have))


def _assigned(wanted: torch.Tensor, have: torch.Tensor, allowed: torch.Tensor) -> list[int] | None:
    """Return, for each channel of WANTED, the index of an equal channel in HAVE, each index once. None if a channel has
    no equal one, if two channels fit the same index and no other, or if no free index is left for one. Both are
    fingerprints, one row per channel; ALLOWED has, for each channel of WANTED, how far its numbers may differ.

    A channel that fits several indices (such as one of all zeros) takes the index after that of the channel before it;
    if that is not free or does not fit, the index before that of the channel after it; else the first free one that
    fits.
    """
    fitting = _fitting(wanted, have, allowed)
    if fitting is None:
        return None
    found = [places[0] if len(places) == 1 else -1 for places in fitting]
    sure = [at for at in found if at >= 0]
    if len(set(sure)) < len(sure):
        return None
    free = set(range(len(have))).difference(sure)
    open_ = [place for place, at in enumerate(found) if at < 0]
    for step in (1, -1):
        for place in open_ if step > 0 else reversed(open_):
            before = found[place - step] if 0 <= place - step < len(found) else -1
            if found[place] < 0 <= before and before + step in free and before + step in fitting[place]:
                found[place] = before + step
                free.discard(before + step)
    for place in open_:
        if found[place] < 0:
            at = next((at for at in sorted(fitting[place]) if at in free), None)
            if at is None:
                return None
            found[place] = at
            free.discard(at)
    return found


def _fitting(wanted: torch.Tensor, have: torch.Tensor, allowed: torch.Tensor) -> list[list[int]] | None:
    """Return, for each channel of WANTED, its places in HAVE: those of the channels that differ from it by at most its
    number in ALLOWED. None if a channel has none.
    """
    top, by_top = have[:, 4].sort()
    low = torch.searchsorted(top.contiguous(), (wanted[:, 4] - allowed[:, 0]).contiguous()).tolist()
    high = torch.searchsorted(top.contiguous(), (wanted[:, 4] + allowed[:, 0]).contiguous(), right=True).tolist()
    fitting: list[list[int]] = []
    for place in range(len(wanted)):
        near = by_top[low[place] : high[place]]
        same = ((have[near] - wanted[place]).abs() <= allowed[place]).all(1)
        fitting.append(near[same].tolist())
        if not fitting[-1]:
            return None
    return fitting


def _allowed(wanted: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Return, for each channel of WANTED, in a column, how far the numbers of an equal channel of OTHER may be from its
    own: 1e-3 of its root mean square plus 1e-5 of the largest root mean square of both.
    """
    largest = float(max(wanted[:, 0].max(), other[:, 0].max())) if len(wanted) and len(other) else 0.0
    return (APART * wanted[:, :1] + NOISE * largest).expand(-1, 1) + 1e-12


class Known:
    """A set of channels, stored as fingerprints, in which other channels can be looked up. A channel of zeros is always
    in it.

    Args:
        groups: the channels, in tensors with one row per channel.
        apart: how far the numbers of equal channels may differ, relative to the channel that is looked up, and to the
            largest that is looked up with it.
    """

    def __init__(self, groups: Iterable[torch.Tensor], apart: tuple[float, float] = (APART, NOISE)) -> None:
        rows = torch.cat([torch.zeros(1, 6, dtype=torch.float64), *groups])
        self.rows = rows[rows[:, 4].argsort()]
        self._tops = self.rows[:, 4].contiguous()
        self.apart = apart

    def holds(self, wanted: torch.Tensor) -> bool:
        """Return whether every channel of WANTED is in the set, within the tolerance `apart`. WANTED has fingerprints,
        one row per channel, and at least one row. For each channel, only the first 4,096 channels of the set with
        nearly the same maximum are looked at.
        """
        other = [at for at, row in enumerate(_as_bytes(wanted)) if row not in self._exact]
        if not other:
            return True
        low = (self.apart[0] * wanted[:, 0] + self.apart[1] * float(wanted[:, 0].max()) + 1e-12)[other]
        wanted = wanted[other]
        first = torch.searchsorted(self._tops, wanted[:, 4] - low)
        last = torch.searchsorted(self._tops, wanted[:, 4] + low, right=True)
        open_ = torch.arange(len(wanted))
        step, width = 0, 1
        while len(open_) and step < _LOOKED_AT:
            if bool((first[open_] + step >= last[open_]).any()):
                return False
            at = first[open_, None] + torch.arange(step, step + width)
            near = self.rows[at.clamp(max=len(self.rows) - 1)]
            same = ((near - wanted[open_, None]).abs() <= low[open_, None, None]).all(2) & (at < last[open_, None])
            open_ = open_[~same.any(1)]
            step += width
            width = max(min(2 * width, _AT_ONCE // max(8 * len(open_), 1), _LOOKED_AT - step), 1)
        return not len(open_)

    @cached_property
    def _exact(self) -> frozenset[bytes]:
        """Return the channels as bytes: those of a right port are mostly equal to the last bit, and found at once."""
        return frozenset(_as_bytes(self.rows))


def _as_bytes(rows: torch.Tensor) -> list[bytes]:
    """Return each of ROWS, which are fingerprints, as bytes."""
    whole = (rows + 0.0).contiguous().numpy().tobytes()  # -0.0 becomes 0.0
    return [whole[at : at + 48] for at in range(0, len(whole), 48)]


#: Channels of nearly the same maximum that are looked at for each that is looked up.
_LOOKED_AT = 4096


__all__ = ["APART", "NOISE", "Known", "fingerprints", "pairing", "places"]
