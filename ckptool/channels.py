"""Which layers the channels of a tensor come from, through concatenations of branches.

A layer that takes several branches side by side has their order in its own weights, and no shape shows that order.
Only branches that run beside each other count: where one comes out of the other, as in a skip connection, code has no
choice of which was registered first.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from typing import Any

#: Parts of a row of channels: (key of the weight that made them, how many).
Parts = tuple[tuple[str, int], ...]

_JOINS = frozenset("cat concat concatenate".split())


class Channels:
    """Follows channels from layer to layer.

    Args:
        buffers: keys that are no weights.

    Attributes:
        joined: key -> the parts that its weight takes side by side, where there are several.
    """

    def __init__(self, buffers: Container[str] = ()) -> None:
        self._buffers = buffers
        self.joined: dict[str, Parts] = {}
        self._of: dict[int, tuple[bool, Parts]] = {}  # whether they are the last dimension or the second; and what
        self._behind: dict[int, int] = {}  # weights that went into a tensor, as bits
        self._before: dict[str, int] = {}  # and into the input of each weight
        self._bit: dict[str, int] = {}

    def see(self, name: str, args: Any, kwargs: Any, result: Any, keys: Mapping[int, str]) -> None:
        """Learn from one call of a function.

        Args:
            name, args, kwargs, result: of the call. All tensors have to stay alive, so that ids stay their own.
            keys: id of a parameter or buffer -> its key.
        """
        behind = 0
        for value in () if name.startswith("new_") or name.endswith("_like") else _flat((args, kwargs)):
            behind |= self._behind.get(id(value), 0)
            if id(value) in keys and keys[id(value)] not in self._buffers:
                behind |= 1  # some weight
        shape = getattr(result, "shape", None)
        if shape is None:
            if behind and isinstance(result, tuple | list):
                self._behind.update((id(part), behind) for part in _flat(result))
            return
        first = args[0] if args else kwargs.get("input")
        held = self._of.get(id(first))
        weight = keys.get(id(args[1])) if len(args) > 1 else None
        if weight is not None and (name.startswith("conv") or name == "linear"):
            last = name == "linear"
            if held is not None and held[0] is last and sum(n for _, n in held[1]) == args[1].shape[1]:
                self._join(weight, held[1])
            self._before.setdefault(weight, behind)
            behind |= 1 << self._bit.setdefault(weight, len(self._bit) + 1)
            self._of[id(result)] = last, ((weight, shape[-1 if last else 1]),)
        elif name in _JOINS and isinstance(first, tuple | list):
            made = self._side_by_side(first, kwargs.get("dim", args[1] if len(args) > 1 else 0), len(shape))
            if made is not None:
                self._of[id(result)] = made
        elif held is not None:
            if name == "batch_norm":
                for value in _flat((args[1:], kwargs)):
                    if id(value) in keys:
                        self._join(keys[id(value)], held[1])
            passed = self._passed_on(held, shape)
            if passed is not None:
                self._of[id(result)] = passed
        if behind:
            self._behind[id(result)] = behind

    def learned(self, value: Any) -> bool:
        """Whether weights went into a tensor."""
        return id(value) in self._behind

    def _side_by_side(self, parts: Any, dim: Any, rank: int) -> tuple[bool, Parts] | None:
        held = [self._of.get(id(part)) for part in parts]
        if not isinstance(dim, int) or any(one is None for one in held) or len({one[0] for one in held if one}) != 1:
            return None
        last = next(one[0] for one in held if one)
        if dim % rank != (rank - 1 if last else 1):
            return None
        return last, tuple(part for one in held if one for part in one[1])

    @staticmethod
    def _passed_on(held: tuple[bool, Parts], shape: Any) -> tuple[bool, Parts] | None:
        last, parts = held
        wide = sum(n for _, n in parts)
        if len(shape) == 2 and shape[1] == wide:
            return True, parts  # maps of one pixel are flat
        if len(shape) > 2 and shape[-1 if last else 1] == wide:
            return held
        return None

    def _join(self, key: str, parts: Parts) -> None:
        names = [name for name, _ in parts]
        apart = len(set(names)) == len(names) and not any(
            self._before[other] >> self._bit[name] & 1 for name in names for other in names
        )
        if len(parts) > 1 and apart:
            self.joined.setdefault(key, parts)


def _flat(value: Any) -> Iterator[Any]:
    if isinstance(value, tuple | list):
        for item in value:
            yield from _flat(item)
    elif isinstance(value, dict):
        yield from _flat(list(value.values()))
    else:
        yield value
