"""FSDP 1's flat parameters: which parameters are in one, where, and of what sizes.

Under LOCAL_STATE_DICT a state dict has all parameters of a module in one 1-d ShardedTensor, `MODULE._flat_param`, of
which each rank holds a run of elements. With `use_orig_params`, what a rank has of each parameter is there beside it
under its name, as a 1-d view. Neither says the sizes; one of these does:

    FlatParamShardMetadata     anywhere in the file, as a handle's shard_metadata() gives it: (names, sizes, strides,
                               contiguous, elements, first and last element) of the parameters in this rank's run
    --parts                    "NAME": [SIZES] for each parameter, in the order of the model

Parameters stand one after the other. Under `use_orig_params` each begins at a multiple of 16 bytes (in the type of the
forward pass), and the end is filled up to a multiple of the ranks; what fills up is 42. A layout is taken if it is the
only one that has as many elements, puts each rank's parameters where the rank notes them, and has 42 in its gaps.

Seen in files of torch 2.13; constants: torch/distributed/fsdp/_flat_param.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from ...errors import CannotCarry, Malformed, counted, printable
from ...tensor import LazyTensor
from ...tree import Dict, List, Object
from .flat import Flat
from .pickled import integer, items_of, sizes

_KEYS = ("_flat_param", "flat_param")
_NOTE = ".FlatParamShardMetadata"
_WRAPPER = re.compile(r"(?:^|(?<=\.))(?:_fsdp_wrapped_module|_fpw_module)(?:\.|$)")
_FILLING = 42
#: Elements to whose multiples parameters are moved: none, and 16 bytes of types of 8, 4, 2 and 1 byte.
_STEPS = (1, 2, 4, 8, 16)
#: Nodes of a file among which notes are looked for.
_MOST_NODES = 1_000_000


@dataclass(frozen=True, slots=True)
class Noted:
    """What one rank notes of its run of one flat parameter.

    Attributes:
        module: the key that it stands under, or None.
        shapes: name -> the sizes of the whole parameter, in order.
        runs: name -> (first element, the one behind the last) of the parameter that this rank has.
    """

    module: str | None
    shapes: dict[str, tuple[int, ...]]
    runs: dict[str, tuple[int, int]]


def is_flat(key: Any) -> bool:
    """Whether it is the key that FSDP 1 gives all parameters of a module together."""
    return isinstance(key, str) and key.rpartition(".")[2] in _KEYS


def is_note(node: Any) -> bool:
    """Whether a node is what a rank notes of its flat parameters, or a dict or list of nothing else."""
    if isinstance(node, Object):
        return node.class_name.endswith(_NOTE)
    held = [value for _, value in node.entries] if isinstance(node, Dict) else items_of(node) or []
    return bool(held) and all(isinstance(one, Object) and one.class_name.endswith(_NOTE) for one in held)


def notes_in(root: Any) -> list[Noted]:
    """What a rank's file notes of flat parameters, in its order.

    Raises:
        Malformed: a note does not hold what such a note holds.
    """
    found: list[Noted] = []
    pending: list[tuple[str | None, Any]] = [(None, root)]
    seen: set[int] = set()
    while pending and len(seen) < _MOST_NODES:
        key, node = pending.pop()
        if isinstance(node, Object) and node.class_name.endswith(_NOTE):
            found.append(_note(key, node))
        elif isinstance(node, Dict | List | tuple) and id(node) not in seen:
            seen.add(id(node))
            inner = (
                [(k if isinstance(k, str) else None, v) for k, v in node.entries]
                if isinstance(node, Dict)
                else [(None, one) for one in items_of(node) or []]
            )
            pending += reversed(inner)
    return found


def _note(key: str | None, node: Object) -> Noted:
    values = [items_of(one) for one in node.args] if isinstance(node.args, tuple) else []
    if len(values) == 6 and None not in values:
        names, shapes, _, _, _, offsets = (one or [] for one in values)
        known = [shape for shape in map(sizes, shapes) if shape is not None]
        pairs = [[integer(n) for n in items_of(pair) or []] for pair in offsets]
        runs = [
            (pair[0], pair[1] + 1) for pair in pairs if len(pair) == 2 and pair[0] is not None and pair[1] is not None
        ]
        if len(names) == len(set(map(str, names))) == len(known) == len(runs) and all(
            isinstance(n, str) for n in names
        ):
            module = None if key is None else plain_name(key)
            return Noted(module, dict(zip(names, known, strict=True)), dict(zip(names, runs, strict=True)))
    raise Malformed("holds a FlatParamShardMetadata whose six lists do not have one entry for each parameter")


def plain_name(key: str) -> str:
    """The name of a module or parameter without the wrappers of FSDP 1."""
    return _WRAPPER.sub("", key).removesuffix(".")


def note_of(key: str, before: str, keys: Sequence[str], notes: Sequence[Noted]) -> Noted | None:
    """The note that speaks of one of the flat parameters KEYS: by the name of the module, else by the order.

    BEFORE stands before the names of its parameters.
    """
    named = [one for one in notes if one.module in (plain_name(key), plain_name(before.removesuffix(".")))]
    found = notes[keys.index(key)] if len(notes) == len(keys) else None
    if len(named) == 1 and all(one.module is not None for one in notes):
        found = named[0]
    if found is None:
        return None
    shapes = {before + name: shape for name, shape in found.shapes.items()}
    return Noted(found.module, shapes, {before + name: run for name, run in found.runs.items()})


@dataclass(frozen=True, slots=True)
class Layout:
    """Where parameters are in a flat one.

    Attributes:
        shapes: name -> sizes, in the order in which they stand.
        starts: name -> the first element.
    """

    shapes: Mapping[str, tuple[int, ...]]
    starts: Mapping[str, int]

    @property
    def used(self) -> int:
        """Elements that are parameters."""
        return sum(map(prod, self.shapes.values()))

    def gaps(self, total: int) -> Iterator[tuple[int, int]]:
        """(start, elements) of what belongs to no parameter."""
        at = 0
        for name, shape in self.shapes.items():
            if self.starts[name] > at:
                yield at, self.starts[name] - at
            at = self.starts[name] + prod(shape)
        if total > at:
            yield at, total - at


def whole_notes(key: str, notes: Sequence[Noted | None]) -> dict[str, tuple[int, ...]] | None:
    """name -> sizes of all parameters of one flat one, in order, as the ranks in order note them; None if they do not.

    Raises:
        Malformed: the ranks contradict each other.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    reached: dict[str, int] = {}
    for note in notes:
        for name, shape in note.shapes.items() if note is not None else ():
            first, behind = note.runs[name] if note is not None else (0, 0)
            if shapes.setdefault(name, shape) != shape or reached.get(name, 0) != first or behind <= first:
                raise Malformed(
                    f"{printable(key, 80)}: its ranks note parts of {printable(repr(name), 80)} that leave a gap"
                )
            reached[name] = behind
    if any(reached[name] != prod(shape) for name, shape in shapes.items()):
        odd = next(name for name, shape in shapes.items() if reached[name] != prod(shape))
        raise Malformed(
            f"{printable(key, 80)}: its ranks note {reached[odd]:,} elements of {printable(repr(odd), 80)}, which is "
            f"{list(shapes[odd])}"
        )
    return shapes or None


def layout(
    key: str,
    shapes: Mapping[str, tuple[int, ...]],
    flat: Flat,
    world: int,
    lengths: Sequence[int],
    notes: Sequence[Noted | None],
) -> Layout:
    """Where each of SHAPES is in a flat parameter.

    Args:
        key: its name.
        shapes: name -> sizes of its parameters, in order.
        flat: its elements.
        world: how many ranks there are.
        lengths: how many elements each rank has of it.
        notes: what each rank notes of it.

    Raises:
        Malformed: they do not add up.
        CannotCarry: they may stand in several ways.
    """
    found: dict[tuple[int, ...], Layout] = {}
    for step in _STEPS:
        at, starts = 0, {}
        for name, shape in shapes.items():
            at = -(-at // step) * step
            starts[name] = at
            at += prod(shape)
        end = at if step == 1 else -(-at // world) * world
        made = Layout(shapes, starts)
        if end == flat.numel and _as_noted(made, lengths, notes) and filled(made, flat):
            found.setdefault(tuple(starts.values()), made)
    if not found:
        count = sum(map(prod, shapes.values()))
        raise Malformed(
            f"{printable(key, 80)} has {flat.numel:,} elements, and its {counted(len(shapes), 'parameter')} need "
            f"{count:,}",
            evidence=[f"{printable(name, 80)}: {list(shape)}" for name, shape in list(shapes.items())[:6]],
            hint="the names and sizes are of another module, or not in its order",
        )
    if len(found) > 1:
        raise CannotCarry(
            f"{printable(key, 80)} has its parameters in one of {len(found)} places, and no file says which"
        )
    return next(iter(found.values()))


def _as_noted(made: Layout, lengths: Sequence[int], notes: Sequence[Noted | None]) -> bool:
    """Whether each rank has of each parameter what it notes."""
    begin = 0
    for length, note in zip(lengths, notes, strict=True):
        if note is not None:
            there = {}
            for name, shape in made.shapes.items():
                start = made.starts[name]
                low, high = max(start, begin), min(start + prod(shape), begin + length)
                if low < high:
                    there[name] = (low - start, high - start)
            if there != note.runs:
                return False
        begin += length
    return True


def filled(made: Layout, flat: Flat) -> bool:
    """Whether what fills up is what FSDP puts there."""
    for start, count in made.gaps(flat.numel):
        for part in flat.cut(start, count):
            if part.dtype.numpy is None or not (part.numpy().astype("float64") == _FILLING).all():
                return False
    return True


def pieces_of(values: Sequence[tuple[int, LazyTensor]], held: Sequence[LazyTensor | None]) -> tuple[int, int] | None:
    """(first element in the flat parameter, elements) of a parameter of which each rank has a view; None if it is none.

    Args:
        values: of each rank the offset and values of its run of the flat parameter.
        held: of each rank what stands under the name of the parameter.
    """
    start, count = None, 0
    for (offset, run), tensor in zip(values, held, strict=True):
        if tensor is None or len(tensor.shape) != 1:
            return None
        if not tensor.numel:
            continue
        begin = offset + tensor.offset - run.offset
        if tensor.storage.identity != run.storage.identity or tensor.stride != (1,) or run.stride != (1,):
            return None
        if begin < offset or begin + tensor.numel > offset + run.numel:
            return None
        if start is not None and begin != start + count:
            return None
        start = begin if start is None else start
        count += tensor.numel
    return None if start is None else (start, count)
