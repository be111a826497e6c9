"""What a program gives to be saved: dicts of tensors in memory, or tensors one after the other.

Of a generator, each tensor goes to disk when it comes, so that memory holds one. Formats put the sizes of all tensors
before their bytes (safetensors) or their pickle beside them (zip), and a target is written only when the whole plan is
known: until then the bytes wait in a file without a name, beside the target.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from ..checkpoint import Checkpoint, StateDict
from ..disk.addresses import StrPath, is_url
from ..disk.door import unnamed_file
from ..disk.files import Buffer, File
from ..disk.paths import reason
from ..errors import KeyCollision, RuleError, Unwritable, printable
from ..inert.in_memory import FromMemory
from ..tensor import LazyTensor, Storage, contiguous_stride
from ..tree import Dict


def in_memory(value: Any) -> Checkpoint:
    """A dict of tensors as a checkpoint: of torch, where torch was imported, of numpy, and of what was opened."""
    value = dict(value) if isinstance(value, StateDict) else value
    if "torch" in sys.modules:
        from ..torch_bridge import from_torch

        return from_torch(value)
    return Checkpoint(FromMemory().node(value, ""))


def is_generated(value: Any) -> bool:
    """Whether VALUE gives its entries once, one after the other."""
    return isinstance(value, Iterator)


def spooled(pairs: Iterable[tuple[str, Any]], path: StrPath) -> Checkpoint:
    """The (key, value) PAIRS as a flat checkpoint for the target PATH, whose tensors wait on disk.

    Each tensor becomes one of its own: two keys with one tensor are not tied.

    Raises:
        RuleError: what comes is no pair of a key and a value.
        KeyCollision: a key comes twice.
        CannotCarry: a value that is neither a tensor, an array of numpy nor plain data.
        Unwritable: the disk is full, or the folder of PATH cannot be written.
    """
    place = None if is_url(path) else Path(path).absolute().parent
    entries: dict[str, Any] = {}
    starts: dict[str, int] = {}
    try:
        with unnamed_file(folder=place) as spool:
            for key, value in map(_entry, pairs):
                if key in entries:
                    raise KeyCollision(f"the key {printable(repr(key))} comes twice", where=path)
                entries[key] = node = in_memory({key: value}).root.get(key)
                if isinstance(node, LazyTensor):
                    starts[key] = spool.tell()
                    spool.writelines(node.source().chunks())
                    entries[key] = _without_memory(node)
            spool.flush()
            file = File(Path(path), os.dup(spool.fileno())).called(Path(path))
            file.mode = 0o666  # not that of a temporary file
    except OSError as error:
        raise Unwritable(reason(error), where=path) from None
    for key, start in starts.items():
        node = entries[key]
        storage = node.storage.changed(source=file.range(start, node.nbytes))
        entries[key] = node.over(storage)
    return Checkpoint(Dict(list(entries.items())))


def _entry(pair: Any) -> tuple[str, Any]:
    if isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], str):
        return pair
    what = f"a {type(pair).__name__} came where a pair (key, tensor) belongs"
    raise RuleError(what, hint="(key, tensor) for each tensor, as dict.items() gives them")


def _without_memory(node: LazyTensor) -> LazyTensor:
    """A tensor in C order of the same type, sizes and device, whose bytes are elsewhere."""
    storage = Storage(Buffer(memoryview(b"")), node.location, node.storage.dtype)
    stride = contiguous_stride(node.shape)
    return node.changed(storage=storage, stride=stride, offset=0, conj=False, neg=False)
