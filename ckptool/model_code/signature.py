"""What a model wants, or what a file offers: keys with shapes, in order, and what code says about their use.

A `Signature` holds no values. That of a file is its keys and shapes; that of a model in code (see
`ckptool.model_code.building`) also knows the classes of modules, which entries share memory, when each is first used in
a forward pass, and how.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any, NamedTuple

from ..checkpoint import Checkpoint, Role, StateDict

#: Parts of a row of channels: (key of the weight that makes them, how many).
Parts = tuple[tuple[str, int], ...]


class Flow(NamedTuple):
    """Where a weight stands in the graph of a forward pass.

    Attributes:
        number: its own, counted from 0 in the order in which weights are met.
        before: as bits, the numbers of all weights that went into what it is first used on.
    """

    number: int
    before: int

    @property
    def bit(self) -> int:
        """Its own number as a bit."""
        return 1 << self.number

    def into(self, other: Flow) -> bool:
        """Whether what this weight gives goes into what another is used on."""
        return self.number != other.number and bool(other.before & self.bit)

    def beside(self, other: Flow) -> bool:
        """Whether neither of two weights is used on what the other gives."""
        return self.number != other.number and not (self.into(other) or other.into(self))


class Flattened(NamedTuple):
    """Images [n, c, h, w] that are flattened before a linear layer.

    Attributes:
        order: in which order their dimensions are then, "nchw" or another.
        c, h, w: channels, height and width.
    """

    order: str
    c: int
    h: int
    w: int


class BehindLayer(NamedTuple):
    """A batch norm of which the input is what another layer gives, with nothing done in between.

    Attributes:
        weight: the key of that layer's weight.
        eps: what the norm adds to the variance.
    """

    weight: str
    eps: float


class Gate(NamedTuple):
    """The gate of a layer that computes a gate and what it is multiplied with at once.

    Attributes:
        half: which half of its outputs is the gate, 0 or 1.
        activation: the function that the gate goes through, "glu" if one function of torch does all of this.
    """

    half: int
    activation: str


class Layout(NamedTuple):
    """How a forward pass takes the outputs of a fused projection apart.

    Attributes:
        kind: "block" (one part after the other), "grouped" (reshaped first), "inside" (reshaped first, and cut in the
            last of the sizes), or nothing where that is not known.
        sizes: if reshaped, the two or three sizes that the outputs get in place of one.
    """

    kind: str = ""
    sizes: tuple[int, ...] = ()


_UNKNOWN = Layout()


@dataclass(slots=True)
class Facts:
    """What a forward pass shows about a weight, beyond when it is used. A tracer fills it; nothing else changes it.

    Attributes:
        flow: where it stands in the graph.
        joined: the layers whose outputs it takes side by side, where there are several.
        flattened: how the images that it takes are flattened.
        layout: how its outputs are taken apart.
        heads: how many attention heads one part of its outputs is seen as, or 0.
        rotary: in which order a rotary embedding turns its outputs ("half", "interleaved"); "unknown" where the pass
            sorts the pairs before it turns them; None where it turns none.
        turned: how many outputs of each attention head are turned, or 0 where that is not known.
        gate: which half of its outputs is a gate for the other half, or None.
        beside_gate: "gate" or "up" for one of two layers with one input, of which one is the gate of the other.
        modulates: for each part of its outputs, "add" (a shift), "mul" (a scale), or nothing.
        inputs_first: whether it stands with its inputs first ([in, out]); None where that is not known.
        dims: for each of its dimensions "input", "output" or "both", where an einsum says so.
        plus: the number that is added to it before it is used, 0 for none; None where that is not known.
        behind: for the statistics of a batch norm, the layer before it, where nothing is between them.
        pixels: the order in which each of its rows lists the numbers of a patch ("chw", "hwc"), where that is seen.
    """

    flow: Flow | None = None
    joined: Parts = ()
    flattened: Flattened | None = None
    layout: Layout = _UNKNOWN
    heads: int = 0
    rotary: str | None = None
    turned: int = 0
    gate: Gate | None = None
    beside_gate: str = ""
    modulates: tuple[str, ...] = ()
    inputs_first: bool | None = None
    dims: tuple[str, ...] = ()
    plus: float | None = None
    behind: BehindLayer | None = None
    pixels: str = ""

    def under(self, names: Mapping[str, str]) -> Facts:
        """The same with the keys of other weights under the NAMES that they have elsewhere."""
        joined = tuple((names.get(key, key), count) for key, count in self.joined)
        behind = None if self.behind is None else self.behind._replace(weight=names.get(self.behind.weight, ""))
        return replace(self, joined=joined, behind=behind)


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
        facts: what the forward pass shows beyond that.
        stated: what it is in the framework that wrote it, where a file of another framework says so, or None.
    """

    key: str
    shape: tuple[int, ...]
    dtype: str = "float32"
    parameter: bool | None = None
    module: str = ""
    tied: str | None = None
    used: int | None = None
    how: str = ""
    facts: Facts = field(default_factory=Facts)
    stated: Role | None = None

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
        cuts: sizes in which the forward pass cuts tensors into unequal parts.
        framework: the framework that wrote the file, "" for torch or if it is not known.
    """

    name: str
    entries: Mapping[str, Entry]
    ordered: bool = True
    traced: bool = False
    inputs: str = ""
    rotary: str | None = None
    metadata: Mapping[str, Any] | None = None
    cuts: frozenset[tuple[int, ...]] = frozenset()
    framework: str = ""

    @property
    def parameters(self) -> int:
        """Number of elements of all entries, tied ones counted once."""
        return sum(entry.numel for entry in self.entries.values() if entry.tied is None)


def of_state_dict(weights: StateDict, ckpt: Checkpoint, *, ordered: bool = True) -> Signature:
    """The signature of a state dict of a file. Entries that are no dense tensors are left out.

    Args:
        weights: the state dict.
        ckpt: the file, which may say what the tensors are in the framework that wrote it.
        ordered: whether the order of the keys means anything.
    """
    first: dict[Any, str] = {}
    entries = {}
    for key, tensor in weights.tensors.items():
        tied = first.setdefault(tensor.identity, key) if tensor.numel else key
        stated = ckpt.roles.get(key)
        entries[key] = Entry(key, tensor.shape, tensor.dtype.name, tied=None if tied == key else tied, stated=stated)
    return Signature(ckpt.where, entries, ordered=ordered, framework=ckpt.framework)
