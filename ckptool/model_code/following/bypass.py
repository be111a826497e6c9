"""Find layers whose output is cut into equal parts, of which one goes past the layers that take the others.

In a Res2Net (Gao et al., 2019) each part but one goes through a layer of its own, and all parts are joined again. Code
leaves out the first part, or the last. No shape shows which, and the layers before and after hold their channels in
this order.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from ..call import ADDS, CUTS, JOINS, Call
from ..signature import Bypass
from .moved import Moved


class _Part(NamedTuple):
    """The part of a layer's output that a tensor is.

    Attributes:
        key: the key of the layer's weight.
        place: which part it is, counted from 0.
        parts: how many parts there are.
        changed: how often it was changed: by a layer that took it, or by a sum with it. 0 for the part itself.
    """

    key: str
    place: int
    parts: int
    changed: int = 0


class Bypasses:
    """Follows the parts of each layer's output until layers take them, or until they are joined again.

    Args:
        moved: shows which outputs a tensor holds.
    """

    def __init__(self, moved: Moved) -> None:
        self._moved = moved
        self._output: dict[int, str] = {}  # id of a tensor -> the weight whose output it is, or comes from by values
        self._on_the_way: dict[str, list[str]] = {}  # that weight -> parameters that work on its channels, as of norms
        self._parts: dict[int, _Part] = {}
        self._through: dict[int, _Part] = {}  # outputs of layers that took a part
        self._joined: dict[int, tuple[_Part, ...]] = {}  # parts side by side, those that went through layers as well
        self._known: tuple[dict[int, Any], ...] = (self._output, self._parts, self._through, self._joined)
        self._count: dict[str, int] = {}
        self._taken: dict[str, set[int]] = {}
        self._consumers: dict[str, list[tuple[str, tuple[_Part, ...]]]] = {}

    def see(self, call: Call, keys: Mapping[int, str]) -> None:
        """Note what CALL, which has run, shows about parts, for `found`. KEYS has id of a parameter or buffer -> its
        key. CALL is one of these:

        - a cut (`chunk`, `split`) of the output of a layer into equal blocks of its channels. An output that is cut a
          second time is left out of `found`;
        - a concatenation of parts of one output, or of what layers made of them, or of joined parts: the result is
          joined parts. Nothing is noted if one of the tensors is none of these;
        - a layer with a weight of the model (`linear`, or a convolution that is not transposed): it takes a part, or
          joined parts, and its result is the output of this layer;
        - any other function with one result: `_pass_on`.
        """
        name, first, result = call.name, call.first, call.result
        if name in CUTS and isinstance(result, tuple | list):
            self._cut(first, result)
        elif not hasattr(result, "shape"):
            return
        elif name in JOINS and isinstance(first, tuple | list):
            self._join(first, result)
        elif name == "linear" or (name.startswith("conv") and not name.startswith("conv_transpose")):
            self._layer(first, call.args, result, keys)
        else:
            self._pass_on(call, keys)

    def _cut(self, whole: Any, parts: Any) -> None:
        """Note the tensors PARTS, into which WHOLE was cut, each with its place from 0. Nothing is noted unless WHOLE
        is the output of a layer and each of PARTS an equal block of its channels, in order. An output that was cut
        before keeps its first parts, and no longer counts for `found`.
        """
        key = self._output.get(id(whole))
        shares = [self._moved.share_of(part) for part in parts] if key is not None else []
        if key is None or not all(share and share.is_part(n, len(parts)) for n, share in enumerate(shares)):
            return
        if key in self._count:
            self._count[key] = 0  # cut again: which parts are meant is not known
            return
        self._count[key] = len(parts)
        self._parts.update((id(part), _Part(key, place, len(parts))) for place, part in enumerate(parts))

    def _layer(self, data: Any, args: Any, result: Any, keys: Mapping[int, str]) -> None:
        """Note that RESULT is the output of the layer whose weight is the second of ARGS. If DATA, which the layer
        takes, is a part, note that a layer takes this part, and that RESULT is the part, changed once more. If DATA is
        joined parts, note that the layer takes these. Nothing is noted if the weight is not among KEYS (id of a
        parameter or buffer -> its key).
        """
        weight = keys.get(id(args[1])) if len(args) > 1 else None
        if weight is None:
            return
        self._output[id(result)] = weight
        if (part := self._parts.get(id(data))) is not None:
            self._taken.setdefault(part.key, set()).add(part.place)
            self._through[id(result)] = part._replace(changed=part.changed + 1)
        for part in {one.key: one for one in self._joined.get(id(data), ())}.values():
            held = self._joined[id(data)]
            self._consumers.setdefault(part.key, []).append((weight, held))

    def _join(self, tensors: Any, result: Any) -> None:
        """Note that RESULT, a concatenation of TENSORS, is joined parts, in this order. Nothing is noted unless each of
        TENSORS is a part, what a layer made of a part, or joined parts, all of one output.
        """
        held: list[_Part] = []
        for tensor in tensors:
            at = id(tensor)
            one = self._through.get(at) or self._parts.get(at)
            more = self._joined.get(at) if one is None else (one,)
            if not more:
                return
            held += more
        if len({part.key for part in held}) == 1:
            self._joined[id(result)] = tuple(held)

    def _pass_on(self, call: Call, keys: Mapping[int, str]) -> None:
        """Note that the result of CALL, such as a norm or an activation, counts as the same as its argument: the output
        of a layer, a part of one, the output of a layer that took a part, or joined parts. KEYS is as in `see`.

        The argument is the only tensor in CALL with the sizes of the result; parameters do not count. Of two such
        tensors that are added, the one that is a part counts, if just one is. Nothing is noted if there are several, or
        none. If CALL adds something to a part, the result is this part, changed once more. If the argument is the
        output of a layer that was not cut yet, the parameters in CALL are noted to work on its channels.
        """
        tensors, result = call.tensors, call.result
        data = [t for t in tensors if id(t) not in keys and tuple(t.shape) == tuple(result.shape)]
        if call.name in ADDS and len(data) == 2:
            data = [t for t in data if id(t) in self._parts] or data
        if len(data) != 1:
            return
        at = id(data[0])
        for known in self._known:
            if at in known:
                known[id(result)] = known[at]
        if call.name in ADDS and at in self._parts:
            part = self._parts[at]
            self._parts[id(result)] = part._replace(changed=part.changed + 1)
        if (key := self._output.get(at)) is not None and key not in self._count:
            self._on_the_way.setdefault(key, []).extend(keys[id(t)] for t in tensors if id(t) in keys)

    def found(self) -> dict[str, tuple[Bypass, ...]]:
        """Return key of a weight -> its `Bypass`es, by what all calls have shown; {} if there are none, as usual.

        A layer's output that was cut into equal parts counts if just one part goes past all layers, and a layer takes
        the parts after they were joined. Outputs that were cut twice are left out. The layer that is cut and parameters
        behind it (norms) get a `Bypass` of dimension 0; the layers that take the joined parts, one of dimension 1. If
        `a` is cut into two parts, of which the last goes past, and `b` takes both in order: `a.weight` -> Bypass(2, 1,
        0, "a.weight", ((2, 1),)), `b.weight` -> the same with dimension 1, each in a tuple.
        """
        made: dict[str, tuple[Bypass, ...]] = {}
        for key, count in self._count.items():
            past = set(range(count)) - self._taken.get(key, set())
            takers = self._consumers.get(key, ())
            if len(past) != 1 or not takers or count < 2:
                continue
            (place,) = past
            joined = {tuple(one.place + count * one.changed for one in held) for _, held in takers}
            told = all(len(set(order)) == len(order) for order in joined)  # else several changes of one part
            gives = Bypass(count, place, 0, key, tuple(sorted(joined)) if told else ())
            for name in dict.fromkeys((key, *self._on_the_way.get(key, ()))):
                made[name] = (*made.get(name, ()), gives)
            for name in dict.fromkeys(name for name, _ in takers):
                made[name] = (*made.get(name, ()), gives._replace(dim=1))
        return made
