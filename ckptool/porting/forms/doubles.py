"""Layers that a file holds twice: the same values under two names, because the code registers a layer twice.

In torch files both names share one storage. In other files, and if the weights were copied, only the values show it.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile

from ...model_code.signature import Signature
from ...tensor import LazyTensor

#: So many bytes from the start tell most tensors apart.
_SAMPLE = 64
#: A layer of vectors alone (a norm) is one with another if so many of them, that are not one value, are equal.
_VECTORS = 3


def doubles(tensors: Mapping[str, LazyTensor], keys: Collection[str]) -> dict[str, str]:
    """Return key -> earlier key with the same values, for layers that repeat an earlier layer.

    A layer needs a matrix or kernel with unequal values, or several such vectors (a norm with its statistics): vectors
    of ones are always equal. A layer with only a matrix (a word table) may be equal to the matrix of a layer that also
    has a bias, and that bias to a single bias.
    Args:
        tensors: the state dict. The first bytes are read of tensors with equal sizes, all bytes if these are equal.
        keys: the keys to compare.
    """
    layers: dict[str, list[str]] = defaultdict(list)
    alike: dict[object, list[str]] = defaultdict(list)
    for key in keys:
        layers[key.rpartition(".")[0]].append(key)
        alike[(tensors[key].shape, tensors[key].dtype.name)].append(key)
    content: dict[str, bytes] = {}
    for group in alike.values():
        starts: dict[bytes, list[str]] = defaultdict(list)
        for key in group if len(group) > 1 else ():
            starts[_start(tensors[key])].append(key)
        for same in starts.values():
            content.update((key, _digest(tensors[key])) for key in same if len(same) > 1)
    found: dict[str, str] = {}
    first: dict[object, str] = {}
    for path, inside in layers.items():
        if any(key not in content for key in inside):
            continue
        if not any(_tells(tensors[key]) for key in inside) and sum(_varies(tensors[key]) for key in inside) < _VECTORS:
            continue
        look = frozenset((key.rpartition(".")[2], content[key]) for key in inside)
        earlier = first.setdefault(look, path)
        if earlier != path:
            found.update((key, ".".join(filter(None, (earlier, key.rpartition(".")[2])))) for key in inside)
    alone = {content[one]: one for (one, *more) in layers.values() if not more and one in content and one not in found}
    for inside in layers.values():  # an output layer with the matrix of a table, and a bias, which may be alone, too
        for key in sorted(inside, key=lambda one: -len(tensors[one].shape)) if len(inside) > 1 else ():
            other = alone.get(content.get(key, b""))
            if other is None or key in found or tensors[other].shape != tensors[key].shape:
                continue
            of_table = any(one in found for one in inside) and _varies(tensors[key])
            found |= {key: other} if of_table or _tells(tensors[key]) else {}
    return found


def are_equal(tensors: Sequence[LazyTensor]) -> bool:
    """Return whether TENSORS, of one size and type, have the same bytes. Tensors that differ early are not read to the
    end.
    """
    return len({_start(tensor) for tensor in tensors}) == 1 and len({_digest(tensor) for tensor in tensors}) == 1


def _start(tensor: LazyTensor) -> bytes:
    return bytes(tensor.source().read(0, min(_SAMPLE, tensor.nbytes)))


def _digest(tensor: LazyTensor) -> bytes:
    digest = hashlib.sha256()
    for chunk in tensor.source().chunks():
        digest.update(chunk)
    return digest.digest()


def _tells(tensor: LazyTensor) -> bool:
    """Return whether TENSOR is no vector, and its first bytes hold unequal values, so that an equal tensor is a copy of
    it.
    """
    return sum(n > 1 for n in tensor.shape) > 1 and _varies(tensor)


def _varies(tensor: LazyTensor) -> bool:
    """Return whether TENSOR has unequal values in its first 64 bytes."""
    start = _start(tensor)
    size = tensor.dtype.itemsize
    return start != start[:size] * (len(start) // size)


def called_as_in(source: Signature, target: Signature) -> Signature:
    """Return the source with each layer that a block holds under two names under the name that the target has.

    Code may register a norm as a part of the block, and again in a list of layers. Neither name is better.
    """
    ends = {(tuple(key.split(".")[-_END:]), entry.shape) for key, entry in target.entries.items()}
    entries = dict(source.entries)
    for key, entry in source.entries.items():
        first = entry.tied
        if first is None or entries[first].tied is not None or not _in_one_block(key, first):
            continue
        own, earlier = ((tuple(name.split(".")[-_END:]), entry.shape) in ends for name in (key, first))
        if own and not earlier:
            entries |= {k: replace(e, tied=key) for k, e in entries.items() if e.tied == first}
            entries |= {key: replace(entry, tied=None), first: replace(entries[first], tied=key)}
    return replace(source, entries=entries)


#: So many last components of a key are the name of a layer in its block.
_END = 3


def _in_one_block(one: str, other: str) -> bool:
    """Return whether the keys ONE and OTHER are in one numbered block, and differ only in their last components, at
    most three.
    """
    a, b = one.split("."), other.split(".")
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))
    return any(component.isdecimal() for component in a[:same]) and max(len(a), len(b)) - same <= _END
