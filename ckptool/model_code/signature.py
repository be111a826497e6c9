"""What a model wants, or what a file offers: keys with shapes, in order, and what code says about their use.

A `Signature` holds no values. That of a file is its keys and shapes; that of a model in code (see
`ckptool.model_code.building`) also knows the classes of modules, which entries share memory, when each is first used in
a forward pass, and how.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

from ..checkpoint import StateDict


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor of a state dict.

    Attributes:
        key: its dotted name.
        shape: its sizes.
        dtype: name of its element type ("float32").
        parameter: whether it is trained (a buffer is not); None where only a file is known.
        module: name of the class that holds it ("Conv2d"), "" where only a file is known.
        tied: key of an earlier entry that is the same tensor, or None.
        used: place in the execution order of the forward pass, or None if it is not known.
        how: the function that first takes it ("linear", "matmul", "conv2d"), "" if that is not known.
        notes: what the forward pass shows beyond that, such as the layout of a fused projection; "flow": a number of
            its own and, as bits, the numbers of all parameters that went into what it is first used on.
    """

    key: str
    shape: tuple[int, ...]
    dtype: str = "float32"
    parameter: bool | None = None
    module: str = ""
    tied: str | None = None
    used: int | None = None
    how: str = ""
    notes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def numel(self) -> int:
        """Number of elements."""
        return prod(self.shape)


@dataclass(frozen=True, slots=True)
class Signature:
    """The entries of a state dict, in order.

    Attributes:
        name: what it is the signature of, for messages.
        entries: by key, in the order in which they were registered (or saved).
        ordered: whether that order means anything; a format may have sorted the keys.
        traced: whether a forward pass was followed, so that `Entry.used` is known.
        inputs: the inputs of that pass, for messages.
        rotary: how the code turns queries and keys ("half", "interleaved", "unknown"), or None if it does not.
        metadata: the `_metadata` of the model's own state dict.
        ties: whether the code, not only the initial values, makes entries one.
        cuts: sizes in which the forward pass cuts tensors into unequal parts.
    """

    name: str
    entries: Mapping[str, Entry]
    ordered: bool = True
    traced: bool = False
    inputs: str = ""
    rotary: str | None = None
    metadata: Mapping[str, Any] | None = None
    cuts: frozenset[tuple[int, ...]] = frozenset()

    @property
    def parameters(self) -> int:
        """Number of elements of all entries, tied ones counted once."""
        return sum(entry.numel for entry in self.entries.values() if entry.tied is None)


def of_state_dict(weights: StateDict, name: str, *, ordered: bool = True) -> Signature:
    """The signature of the state dict of a file. Entries that are no dense tensors are left out."""
    first: dict[Any, str] = {}
    entries = {}
    for key, tensor in weights.tensors.items():
        tied = first.setdefault(tensor.identity, key) if tensor.numel else key
        entries[key] = Entry(key, tensor.shape, tensor.dtype.name, tied=None if tied == key else tied)
    return Signature(name, entries, ordered=ordered)
