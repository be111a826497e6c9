"""The flow of a model: each use of its weights in a forward pass, with the input and output of that use.

Each operation is observed where torch runs it (a `TorchDispatchMode`), so code may use its weights in any way: in
layers, as bare parameters, sliced, transposed, joined. An input or output is stored as one fingerprint for each
channel, which does not depend on layout, or on the order of channels and positions. By these, equal channels are found
in two models, whatever their codes do with them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from collections.abc import Mapping as MappingOf
from dataclasses import dataclass, field, replace
from itertools import chain
from math import prod
from typing import Any

import torch

from ..expression import Expr, Shape
from ..forms.pieces import substituted
from .code_steps import Step
from .fingerprints import APART, NOISE, Known

#: Where a tensor is in what a model returns: keys, names of fields and indices.
Place = tuple[str | int, ...]

#: Kinds of uses that make each channel of all, and kinds that go channel by channel.
MATRICES = frozenset({"linear", "conv"})
VECTORS = frozenset({"norm", "scale", "shift", "depthwise"})


@dataclass(frozen=True, slots=True)
class Held:
    """A weight as an operation takes it: for example transposed, or as a part of a parameter.

    Attributes:
        keys: the keys of the state dict that it is made of.
        expr: the expression over these keys, or None if no expression makes it.
        shape: its sizes as the operation takes it; for a matrix, outputs first.
    """

    keys: tuple[str, ...]
    expr: Expr | None
    shape: Shape

    @property
    def is_computed(self) -> bool:
        """Return whether the code computes the weight from its keys, so that its values do not show theirs: no
        expression makes the weight, or its expression adds or multiplies tensors (`add`, `mul`). A weight times a
        number is not computed.
        """
        return self.expr is None or not _COMPUTED.isdisjoint(self.expr.operations())


#: Operations whose result does not show what each of their tensors was.
_COMPUTED = frozenset({"add", "mul"})


@dataclass(slots=True)
class Use:
    """One use of weights: an operation of a forward pass that takes at least one weight.

    Attributes:
        index: the place of the use in the order of execution.
        kind: "linear", "conv", "deconv", "depthwise", "grouped conv", "grouped deconv", "table", "norm", "scale",
            "shift" or the name of another operation.
        held: the weights by their roles: "weight", "bias", …
        taken: fingerprints of the input, one row per channel, in order; None if its channels are not known.
        given: fingerprints of the output, one row per channel, in order.
        before: the indices of the uses whose outputs this use takes, with nothing but steps between.
        bare: fingerprints of the output before the bias is added; None without a bias, or if nobody asked for them.
        steps: the operations without weights between the uses in `before` and this one, in order.
        step: the operation itself, if it has settings; else None.
    """

    index: int
    kind: str
    held: dict[str, Held]
    taken: torch.Tensor | None
    given: torch.Tensor
    before: frozenset[int] = frozenset()
    bare: torch.Tensor | None = None
    steps: tuple[Step, ...] = ()
    step: Step | None = None

    @property
    def keys(self) -> tuple[str, ...]:
        """Return every key that the use reads, each once."""
        return tuple(dict.fromkeys(key for held in self.held.values() for key in held.keys))

    @property
    def told(self) -> tuple[Any, ...]:
        """Return a value that is equal for two uses of the same weights in the same way (equal kind, roles, keys and
        expressions), such as two rounds of a loop.
        """
        return self.kind, *((role, held.keys, held.expr) for role, held in self.held.items())

    @property
    def rows(self) -> int:
        """Return the number of channels of the output."""
        return len(self.given)

    @property
    def family(self) -> str:
        """Return "matrix" for linear layers and convolutions ("linear", "conv"), "vector" for norms, scales, shifts and
        depthwise convolutions, else the kind of this use. Weights of one family could replace each other.
        """
        return "matrix" if self.kind in MATRICES else "vector" if self.kind in VECTORS else self.kind

    def is_like(self, other: Use) -> bool:
        """Return whether this use and OTHER could exchange their weights: they are of one kind, or both are matrices
        (see `family`).
        """
        return self.kind == other.kind or (self.kind in MATRICES and other.kind in MATRICES)


@dataclass(slots=True)
class Flow:
    """A forward pass: the uses of weights in the order of execution, and the outputs.

    Attributes:
        uses: the uses, in the order of execution.
        outputs: the floating point tensors that the model returns.
        behind: for each output, the indices of the last uses that it is made of.
        tails: for each output, the operations without weights between the uses in `behind` and it.
        places: for each output, its place in what the model returns.
        apart: how far fingerprints of the same channel may lie apart, relative to the channel and to the largest of
            all.
    """

    uses: list[Use]
    outputs: list[torch.Tensor]
    behind: list[frozenset[int]] = field(default_factory=list)
    tails: list[tuple[Step, ...]] = field(default_factory=list)
    places: list[Place] = field(default_factory=list)
    apart: tuple[float, float] = (APART, NOISE)
    _repeated: dict[tuple[Any, ...], Use] | None = field(default=None, repr=False)
    _known: Known | None = field(default=None, repr=False)
    _entries: Known | None = field(default=None, repr=False)
    _silent: frozenset[int] | None = field(default=None, repr=False)
    _idle: frozenset[int] = field(default=frozenset(), repr=False)

    @property
    def repeated(self) -> dict[tuple[Any, ...], Use]:
        """Return `Use.told` -> one use that joins all runs, for weights that are used several times in the same way, as
        in a loop over time (see `_repeated`). Left out are those whose outputs have unlike numbers of channels. {} if
        there are none.
        """
        if self._repeated is None:
            self._repeated = _repeated(self.uses)
        return self._repeated

    @property
    def known(self) -> Known:
        """Return the set of all channels in the outputs of the uses of weights, also of loops as a whole (`repeated`)
        and, where they are known, before biases are added. A channel of zeros is always in it.
        """
        if self._known is None:
            every = chain(self.uses, self.repeated.values())
            bare = [use.bare for use in self.uses if use.bare is not None]
            self._known = Known(chain((use.given for use in every), bare), self.apart)
        return self._known

    def with_outputs(self, places: Sequence[int]) -> Flow:
        """Return the same flow with only the outputs whose indices are in PLACES, in that order."""
        outputs, behind = [self.outputs[i] for i in places], [self.behind[i] for i in places]
        tails = [self.tails[i] for i in places if self.tails]
        return replace(self, outputs=outputs, behind=behind, tails=tails, places=[self.places[i] for i in places])

    def tell_apart_by(self, channel: float, noise: float) -> None:
        """Set how far two equal channels may differ from here on: by CHANNEL, relative to the channel, plus NOISE,
        relative to the largest channel.
        """
        self.apart, self._known, self._entries = (channel, noise), None, None

    def gives(self, given: torch.Tensor) -> bool:
        """Return whether each channel of GIVEN (fingerprints, one row each) is in the output of some use in this flow;
        they may be of several uses, in any order. If all of GIVEN are zero: whether one use gives as many channels, all
        zero.
        """
        if self._silent is None:
            self._silent = _all_zero(use.given for use in self.uses)
        return len(given) in self._silent if is_silent(given) else self.known.holds(given)

    def takes(self, taken: torch.Tensor) -> bool:
        """Return whether each channel of TAKEN (fingerprints, one row each) is in the input of some use in this flow;
        they may be of several uses, in any order. If all of TAKEN are zero, as after weights that are still 0: whether
        one use takes as many channels, all zero.
        """
        if self._entries is None:
            inputs = [use.taken for use in chain(self.uses, self.repeated.values()) if use.taken is not None]
            self._entries, self._idle = Known(inputs, self.apart), _all_zero(inputs)
        return len(taken) in self._idle if is_silent(taken) else self._entries.holds(taken)

    def bias(self, use: Use) -> Held | None:
        """Return the bias of USE; None if there is none. For a linear layer or convolution without a bias of its own,
        this is the bias that a later operation, one of the next 15 uses, adds to the output of USE alone; None if that
        does not have one number for each output channel of USE.
        """
        if "bias" in use.held or use.kind not in MATRICES:
            return use.held.get("bias")
        for other in self._next(use, 15):
            if other.kind == "shift" and other.before == frozenset({use.index}) and "bias" in other.held:
                held = other.held["bias"]
                return held if prod(held.shape) == use.rows else None
        return None

    def after(self, use: Use) -> frozenset[int]:
        """Return the indices of those of the next three uses that only add something, such as a bias, to the output of
        USE: their kind is "shift", and no other use is directly before them. Empty if there are none.
        """
        near = self._next(use, 3)
        return frozenset(u.index for u in near if u.kind == "shift" and u.before == frozenset({use.index}))

    def _next(self, use: Use, count: int) -> list[Use]:
        """Return the next COUNT uses after USE, or as many as there are. Some may be missing before it (see
        `OwnCode.seen`), so its index is no place in the list.
        """
        first = bisect_right(self.uses, use.index, key=lambda one: one.index)
        return self.uses[first : first + count]

    def reaching(self, ends: Iterable[int]) -> set[int]:
        """Return the indices ENDS of uses, and those of all uses that their inputs depend on."""
        reached: set[int] = set()
        open_ = set(ends)
        while open_:
            reached |= open_
            open_ = {i for at in open_ for i in self.uses[at].before} - reached
        return reached

    def depending(self, starts: Iterable[int]) -> set[int]:
        """Return the indices STARTS of uses, and those of all uses whose inputs depend on them."""
        reached = set(starts)
        for use in self.uses:
            if not reached.isdisjoint(use.before):
                reached.add(use.index)
        return reached

    def renamed(self, made_of: MappingOf[str, Expr]) -> Flow:
        """Return the same forward pass with its weights as expressions over other keys. MADE_OF has old key -> its
        expression over the new keys. If an old key is not in MADE_OF, the weights that are made of it have no
        expression, and only the new keys of their other old keys.
        """
        uses = [_renamed(use, made_of) for use in self.uses]
        return Flow(uses, self.outputs, self.behind, self.tails, self.places, self.apart)


def is_silent(channels: torch.Tensor) -> bool:
    """Return whether all of CHANNELS (fingerprints, one row each) are zero."""
    return not bool(channels[:, 0].any())


def _all_zero(several: Iterable[torch.Tensor]) -> frozenset[int]:
    """Return the numbers of channels of those of SEVERAL, fingerprints each, in which all channels are zero."""
    return frozenset(len(channels) for channels in several if is_silent(channels))


def _renamed(use: Use, made_of: MappingOf[str, Expr]) -> Use:
    """Return USE with its weights as expressions over other keys, as `Flow.renamed` does: MADE_OF has old key -> its
    expression over the new keys. A weight with an old key that is not in MADE_OF has no expression then.
    """
    held = {}
    for role, one in use.held.items():
        keys = dict.fromkeys(key for own in one.keys for key in (made_of[own].keys() if own in made_of else ()))
        known = one.expr is not None and all(key in made_of for key in one.keys)
        expr = substituted(one.expr, dict(made_of)) if known and one.expr is not None else None
        held[role] = replace(one, keys=tuple(keys), expr=expr)
    return replace(use, held=held)


def _repeated(uses: Sequence[Use]) -> dict[tuple[Any, ...], Use]:
    """Return `Use.told` -> a joined use, for each group of two or more of USES with the same weights used in the same
    way (equal `Use.told`). Groups whose outputs have unlike numbers of channels are left out; {} if there are no
    groups.

    The joined use has the index and weights of the first, and fingerprints as of one output with the values of all
    outputs (`_together`). Its input is made likewise, if all inputs are known, with equally many channels; else None.
    """
    groups: dict[tuple[Any, ...], list[Use]] = {}
    for use in uses:
        groups.setdefault(use.told, []).append(use)
    out = {}
    for told, group in groups.items():
        first = group[0]
        if len(group) < 2 or any(u.given.shape != first.given.shape for u in group):
            continue
        inputs = [u.taken for u in group if u.taken is not None]
        taken = _together(inputs) if len(inputs) == len(group) and len({len(t) for t in inputs}) == 1 else None
        out[told] = Use(first.index, first.kind, first.held, taken, _together([u.given for u in group]))
    return out


def _together(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the fingerprints (one row of six numbers per channel) of a tensor that comes in parts of equal size, as if
    it were in one piece. PARTS has the fingerprints of each part, with the same channels in the same order.
    """
    x = torch.stack(list(parts))
    cubes = (x[..., 3] ** 3).mean(0)
    return torch.stack(
        [
            (x[..., 0] ** 2).mean(0).sqrt(),
            x[..., 1].mean(0),
            x[..., 2].mean(0),
            cubes.sign() * cubes.abs().pow(1 / 3),
            x[..., 4].amax(0),
            x[..., 5].amin(0),
        ],
        dim=1,
    )


__all__ = ["MATRICES", "VECTORS", "Flow", "Held", "Use", "is_silent"]
