"""Layers that a file holds twice: the same values under two names, as code has it that registers a layer twice.

Files of torch show this by one storage for both; in others, and where the weights were copied, only the values do.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

from ..tensor import LazyTensor

#: So many bytes from the start tell most tensors apart.
_SAMPLE = 64


def doubles(tensors: Mapping[str, LazyTensor], keys: Collection[str]) -> dict[str, str]:
    """Keys of layers that hold what an earlier layer holds, each with the key there.

    Only layers with a matrix or a kernel of unequal values count: vectors of ones are not one vector. What holds a
    matrix alone (a table of words) may be one with that of a layer that holds a bias, too.

    Args:
        tensors: the state dict. Of those that look alike the first bytes are read, of equal ones all.
        keys: those that count.
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
        if any(key not in content for key in inside) or not any(_tells(tensors[key]) for key in inside):
            continue
        look = frozenset((key.rpartition(".")[2], content[key]) for key in inside)
        earlier = first.setdefault(look, path)
        if earlier != path:
            found.update((key, ".".join(filter(None, (earlier, key.rpartition(".")[2])))) for key in inside)
    tables = {content[one]: one for (one, *more) in layers.values() if not more and one in content and one not in found}
    for inside in layers.values():  # an output layer with the matrix of a table, and a bias of its own
        for key in inside if len(inside) > 1 else ():
            table = tables.get(content.get(key, b""))
            if table is not None and key not in found and tensors[table].shape == tensors[key].shape:
                found |= {key: table} if _tells(tensors[key]) else {}
    return found


def are_equal(tensors: Sequence[LazyTensor]) -> bool:
    """Whether tensors of one size and type hold the same bytes. Those that differ early are not read to the end."""
    return len({_start(tensor) for tensor in tensors}) == 1 and len({_digest(tensor) for tensor in tensors}) == 1


def _start(tensor: LazyTensor) -> bytes:
    return bytes(tensor.source().read(0, min(_SAMPLE, tensor.nbytes)))


def _digest(tensor: LazyTensor) -> bytes:
    digest = hashlib.sha256()
    for chunk in tensor.source().chunks():
        digest.update(chunk)
    return digest.digest()


def _tells(tensor: LazyTensor) -> bool:
    """Whether a tensor has two dimensions and is not the same everywhere, as far as its start shows."""
    start = _start(tensor)
    size = tensor.dtype.itemsize
    return sum(n > 1 for n in tensor.shape) > 1 and start != start[:size] * (len(start) // size)
