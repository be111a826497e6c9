"""The signature of a model or a file: keys with shapes, in order, and what code shows about their use.

A `Signature` holds no values. The signature of a file is its keys and shapes. The signature of a model in code (see
`ckptool.model_code.building`) also has the classes of modules, which entries share memory, and when and how each is
first used in a forward pass.
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
    """The place of a weight in the graph of a forward pass.

    Attributes:
        number: its number, counted from 0 in the order in which weights are used.
        before: all weights that its first input was computed from, and those with a lower number that meet their first
            input in the same call, as the weight of its layer for a bias: bit N is set for the weight with number N.
    """

    number: int
    before: int

    @property
    def bit(self) -> int:
        """Return the integer in which only the bit of this weight is set: `1 << number`, as in `before` of other
        weights.
        """
        return 1 << self.number

    def into(self, other: Flow) -> bool:
        """Return whether the first input of OTHER was computed from this weight, directly or through other weights
        (`before`). False for a weight and itself.
        """
        return self.number != other.number and bool(other.before & self.bit)

    def beside(self, other: Flow) -> bool:
        """Return whether this weight and OTHER are parallel: the first input of neither was computed from the other.
        False for a weight and itself.
        """
        return self.number != other.number and not (self.into(other) or other.into(self))


class Flattened(NamedTuple):
    """Images [n, c, h, w] that are flattened before a linear layer, or that are made of the rows it gives. Sequences
    have a height of 1, and the height of volumes is that of all their slices, one below the other.

    Attributes:
        order: the letters of their dimensions in the order in which they are when they are flattened, or right after
            they were made: "nchw", "nhwc" ….
        c, h, w: their sizes: channels, height and width.
    """

    order: str
    c: int
    h: int
    w: int


class BehindLayer(NamedTuple):
    """The layer directly before a batch norm, with nothing between the two.

    Attributes:
        weight: the key of that layer's weight.
        eps: the number that the norm adds to the variance.
    """

    weight: str
    eps: float


class Gate(NamedTuple):
    """The gate of a layer that computes both a gate and the value that it multiplies, each in one half of its output.

    Attributes:
        half: which half of the output is the gate, 0 or 1.
        activation: the name of the activation of the gate ("silu"); "glu" if torch's function `glu` does all of this.
        far: whether the value goes through further layers before the gate multiplies it.
    """

    half: int
    activation: str
    far: bool = False

    @property
    def is_sigmoid(self) -> bool:
        """Return whether the activation is a sigmoid ("sigmoid", "hardsigmoid"), as that of torch's `glu` is."""
        return self.activation in ("sigmoid", "hardsigmoid", "glu")


class Bypass(NamedTuple):
    """Equal parts of a layer's output, all but one of which go through layers of their own before they are joined.

    Attributes:
        parts: how many there are.
        place: which of them goes past these layers, counted from 0.
        dim: the dimension of the weight that holds these channels: 0 where it makes them, 1 where it takes them.
        layer: the key of the weight whose output is cut.
        joined: the orders in which layers take the parts. Each part is a number: its place, plus N times the number of
            parts if N layers or sums changed it (of two parts: 0, 1, and 3 for the second behind a layer). () if two
            parts would have the same number.
    """

    parts: int
    place: int
    dim: int
    layer: str
    joined: tuple[tuple[int, ...], ...] = ()

    @property
    def in_place(self) -> bool:
        """Return whether all layers take each part once, changed or not, in the order in which they were cut. False if
        `joined` is ().
        """
        orders = [[one % self.parts for one in order] for order in self.joined]
        return bool(orders) and all(order == [*range(self.parts)] for order in orders)


class Axis(NamedTuple):
    """One axis of a picture or a video, or of its patches.

    Attributes:
        letter: "c", or "t", "h" or "w" (time, height, width): in a patch, the place in it. A capital is the place of
            the patch, and "N" the number of the picture.
        size: how many there are.
    """

    letter: str
    size: int


class Neighbours(NamedTuple):
    """Neighbours of a feature map that stand side by side in the channels that a layer takes.

    Attributes:
        order: the neighbours, each as its place among them row by row, in the order in which they stand.
        by_channel: whether all neighbours of the first channel come first, and not all channels of one neighbour.
        in_line: whether they are in one row or column of the map, as where code flattens its height alone.
    """

    order: tuple[int, ...]
    by_channel: bool
    in_line: bool = False


class Layout(NamedTuple):
    """How a forward pass splits the output of a fused projection: along its last dimension, for a convolution along its
    channels.

    Attributes:
        kind: "block" (code takes outputs in a row as a part), "inside" (it takes a share of each head), "other" (it
            takes parts in another way, or in several), "grouped" (it only reshapes this dimension to several), or "" if
            it is not known.
        sizes: if it is reshaped, the two or three sizes that replace this dimension; else ().
        rows: how many outputs there are; 0 if code takes no parts.
        heads: how many heads have a share in each part, if it is "inside"; else 0.
        blocks: the outputs in a row that code takes, each as (first, first behind them), if it is "block".
    """

    kind: str = ""
    sizes: tuple[int, ...] = ()
    rows: int = 0
    heads: int = 0
    blocks: tuple[tuple[int, int], ...] = ()


class Part(NamedTuple):
    """A part of the output of a layer, or of its input.

    Attributes:
        name: "q", "k" or "v", if the attention that takes it shows this; else what the code calls it, "" if it has no
            name.
        size: its size along the dimension that is divided or concatenated; 0 if each part is a whole member of that
            dimension, or if it is an input, whose size may be guessed.
    """

    name: str
    size: int


_UNKNOWN = Layout()


#: Functions that multiply with a matrix.
PRODUCTS = frozenset(
    "linear einsum matmul __matmul__ __rmatmul__ mm bmm mv addmm baddbmm addmv inner tensordot grouped_mm"
    " _grouped_mm".split()
)


@dataclass(slots=True)
class Facts:
    """What a forward pass shows about a weight, apart from when it is used. Only a tracer fills it, but for the heads
    of torch's attention (`nn.MultiheadAttention`), which its module names.

    Attributes:
        flow: its place in the graph, or None if it is not known.
        joined: the layers whose concatenated outputs it takes, each with its channels; () if there is only one, or if
            one of them feeds another.
        place: the place of its output among those of other layers that are concatenated with it, or None.
        flattened: how the images that it takes are flattened, or None if it takes none. Rows that also become images
            count as flattened ones.
        unflattened: how its output becomes images, or None if it does not. The weight and bias of a linear layer have
            this fact, and so do the tensors that are combined with its output number by number, such as those of a norm
            between the layer and the reshape, another layer whose output is added, or a table whose rows are.
        merged: the sizes of the two dimensions that the code flattens into the channels that it takes, or None.
        layout: how its output is split.
        heads: number of attention heads of one part of its output, or 0.
        rotary: how a rotary embedding pairs its output ("half", "interleaved", also if the code moves neighbours into
            halves before it rotates these; "unknown" if it is multiplied by a table, and it is not seen what is added
            then); None if it rotates none.
        turned: how many outputs of each attention head are rotated, or 0 if that is not known.
        gate: which half of its output is a gate for the other half, and the activation of the gate; or None.
        runs: how often the function that takes it first takes it in the whole pass.
        input: a number, the same for layers of which each took the same tensor (one object) last; None if that is not
            known.
        beside_gate: "gate" or "up" for two layers with one input, of which one is the gate of the other.
        by_sigmoid: whether the gate goes through a sigmoid, for layers with `beside_gate`.
        opens: "gate" or "up" like `beside_gate`, for two layers that both go through an activation, of which only that
            of the gate is a sigmoid.
        added: the keys of the weights whose outputs the code adds to its output, as it is.
        attends: what its output is in the attention that takes it: "q", "k" or "v"; "" if that is not known, or if it
            is several of these.
        modulates: for each part of its output, "add" (a shift), "mul" (a scale), or "".
        inputs_first: whether its layout is [in, out]; None if that is not known.
        dims: for each of its dimensions "input", "output" or "both", if an einsum shows it; else ().
        looked_up: whether a product with `one_hot` takes its rows, or its columns.
        plus: the number that the code adds to it before it is used, 0 for none; None if that is not known.
        times: the number by which the code multiplies one of these: the weight before it is used, the rows that are
            looked up in it, or the input of its layer; 1 for none, None if that is not known.
        rows: the first function that takes the rows that are looked up in it; "added" if it adds something to them; ""
            if there is none.
        behind: for the running mean of a batch norm, the layer directly before the norm, if nothing is between them.
        bypasses: the parts of its channels, if one of them goes past the layers that take the others: of what it gives,
            of what it takes, or both.
        parts: the parts that the code divides its output into, in order.
        takes: the tensors that the code concatenates to its input, in order.
        gates: the gates of an LSTM in the order of its rows ("i", "f", "o", "g"), if the code shows them.
        hidden: which of the two tensors that the code concatenates to its input is the hidden state, 0 or 1; None if
            that is not known.
        pixels: the order in which each row that it takes lists the numbers of a patch (c, h, w; t, h, w, c for a
            video), if the code shows it.
        neighbours: the neighbours of a feature map that it takes side by side, or None.
        overlaps: whether it is the kernel of a convolution that moves it by less than its size.
    """

    flow: Flow | None = None
    joined: Parts = ()
    place: int | None = None
    flattened: Flattened | None = None
    unflattened: Flattened | None = None
    merged: tuple[int, int] | None = None
    layout: Layout = _UNKNOWN
    heads: int = 0
    rotary: str | None = None
    turned: int = 0
    gate: Gate | None = None
    runs: int = 0
    input: int | None = None
    beside_gate: str = ""
    by_sigmoid: bool = False
    opens: str = ""
    added: frozenset[str] = frozenset()
    attends: str = ""
    modulates: tuple[str, ...] = ()
    inputs_first: bool | None = None
    dims: tuple[str, ...] = ()
    looked_up: bool = False
    plus: float | None = None
    times: float | None = None
    rows: str = ""
    behind: BehindLayer | None = None
    bypasses: tuple[Bypass, ...] = ()
    parts: tuple[Part, ...] = ()
    takes: tuple[Part, ...] = ()
    gates: tuple[str, ...] = ()
    hidden: int | None = None
    pixels: tuple[Axis, ...] = ()
    neighbours: Neighbours | None = None
    overlaps: bool = False

    def under(self, names: Mapping[str, str]) -> Facts:
        """Return these facts with the keys of other weights in `joined`, `added`, `bypasses` and `behind` renamed by
        NAMES (old key -> new key).

        A key that is not in NAMES becomes "" in `behind`, and stays in the others.
        """
        joined = tuple((names.get(key, key), count) for key, count in self.joined)
        behind = None if self.behind is None else self.behind._replace(weight=names.get(self.behind.weight, ""))
        bypasses = tuple(one._replace(layer=names.get(one.layer, one.layer)) for one in self.bypasses)
        added = frozenset(names.get(key, key) for key in self.added)
        return replace(self, joined=joined, behind=behind, bypasses=bypasses, added=added)


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor of a state dict.

    Attributes:
        key: its dotted name.
        shape: its sizes.
        dtype: name of its element type ("float32").
        parameter: whether it is trained (a buffer is not); None if only a file is known.
        module: name of the class that holds it ("Conv2d"), "" if only a file is known.
        tied: key of an earlier entry that is the same tensor, or None.
        used: place in the order of execution, or None if it is not known.
        how: the function that first takes it ("linear", "matmul", "conv2d"), "" if that is not known.
        facts: what the forward pass shows beyond that.
        stated: its role in the framework that wrote the file, if the file states it, or None.
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
        """Return the number of elements of the tensor."""
        return prod(self.shape)

    @property
    def of_instance_norm(self) -> bool:
        """Return whether an instance norm of torch holds it. Up to version 0.4, these kept statistics that nothing
        used.
        """
        return self.module.startswith("InstanceNorm")


@dataclass(frozen=True, slots=True)
class Signature:
    """The entries of a state dict, in order.

    Attributes:
        name: the name of the file or model, for messages.
        entries: by key, in the order in which they were registered (or saved).
        ordered: whether that order is meaningful; a format may have sorted the keys.
        traced: whether a forward pass was followed, so that `Entry.used` is known.
        inputs: the inputs of that pass, for messages.
        rotary: how the code rotates queries and keys ("half", "interleaved", "unknown"), or None if it does not.
        metadata: the `_metadata` of the model's own state dict.
        framework: the framework that wrote the file, "" for torch or if it is not known.
    """

    name: str
    entries: Mapping[str, Entry]
    ordered: bool = True
    traced: bool = False
    inputs: str = ""
    rotary: str | None = None
    metadata: Mapping[str, Any] | None = None
    framework: str = ""


def of_state_dict(weights: StateDict, ckpt: Checkpoint, *, ordered: bool = True) -> Signature:
    """Return the signature of WEIGHTS, a state dict of a file: its dense tensors with shape and dtype, in its order;
    other entries are left out.

    A tensor with elements that is the same in the file as earlier ones is tied to the first of these. What only code
    shows (class, parameter or buffer, use) is unknown.

    Args:
        weights: the state dict.
        ckpt: the file, which gives the name, and may state the framework that wrote it and the roles of tensors there.
        ordered: whether the order of the keys is meaningful.
    """
    first: dict[Any, str] = {}
    entries = {}
    for key, tensor in weights.tensors.items():
        tied = first.setdefault(tensor.identity, key) if tensor.numel else key
        stated = ckpt.roles.get(key)
        entries[key] = Entry(key, tensor.shape, tensor.dtype.name, tied=None if tied == key else tied, stated=stated)
    return Signature(ckpt.where, entries, ordered=ordered, framework=ckpt.framework)
