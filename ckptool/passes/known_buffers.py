"""Buffers whose values follow from nothing but the module: newer or older code asks for them, and the file has none.

`num_batches_tracked` came to torch 0.4.1, `position_ids` came to and went from the transformers. Their values are no
training result: a counter that begins at 0, and the numbers 0, 1, 2 ….
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..checkpoint import Checkpoint, StateDict
from ..disk.files import Buffer
from ..dtypes import BY_NAME
from ..errors import NoMatch, counted, printable
from ..tensor import LazyTensor, Storage, contiguous_stride
from ..tree import rebuild, with_entries
from ._plain import Missing
from ._words import changeable, key_evidence

_INT64 = BY_NAME["int64"]
#: The version of the normalisation layers of torch that has the counter.
_COUNTED = 2


@dataclass(frozen=True, slots=True)
class Known:
    """A buffer that is not there: its key, the key that it stands behind, and its shape; it counts up from 0."""

    key: str
    after: str
    shape: tuple[int, ...]

    def values(self) -> bytes:
        """As int64, little-endian."""
        last = self.shape[-1] if self.shape else 1
        return b"".join(number.to_bytes(8, "little") for number in range(last))


def absent(weights: Mapping[str, LazyTensor]) -> Iterator[Known]:
    """The known buffers that WEIGHTS lack, by what stands beside their place."""
    for key, tensor in weights.items():
        module, dot, last = key.rpartition(".")
        head = module + dot
        if last == "running_var" and f"{head}running_mean" in weights:
            if f"{head}num_batches_tracked" not in weights:
                yield Known(f"{head}num_batches_tracked", key, ())
        elif last == "weight" and module.endswith("position_embeddings") and len(tensor.shape) == 2:
            outer = module.removesuffix("position_embeddings")
            if f"{outer}position_ids" not in weights:
                yield Known(f"{outer}position_ids", key, (1, tensor.shape[0]))


def is_known(key: str) -> bool:
    """Whether KEY is the name of a buffer of which the values are known."""
    return key.rpartition(".")[2] in ("num_batches_tracked", "position_ids")


def required(weights: StateDict) -> list[str]:
    """Counters that `load_state_dict(strict=True)` misses: the layer's version says that they are there.

    Without a version, torch adds them itself.
    """
    metadata = weights.metadata or {}
    found = []
    for one in absent(weights.tensors):
        module, _, last = one.key.rpartition(".")
        entry = metadata.get(module)
        version = entry.get("version") if isinstance(entry, Mapping) else None
        if last == "num_batches_tracked" and isinstance(version, int) and version >= _COUNTED:
            found.append(one.key)
    return found


def fill_defaults(ckpt: Checkpoint, *, at: str | None = None, missing: Missing = "error") -> Checkpoint:
    """Add the known buffers that the weights lack, with the values that a new model has for them.

    These are `num_batches_tracked` (0) beside running statistics, and `position_ids` (0, 1, 2 …, of shape [1, N])
    beside position embeddings of N rows. The receipt names them.

    Raises:
        NoMatch: none of them is missing.
    """
    weights = changeable(ckpt, at)
    found = list(absent(weights.tensors))
    if not found:
        if missing == "ok":
            return ckpt.noting("fill-defaults: no known buffer is missing")
        what = "no known buffer is missing (num_batches_tracked, position_ids)"
        raise NoMatch(what, where=ckpt.where, evidence=key_evidence(weights))
    behind: dict[str, list[Known]] = {}
    for one in found:
        behind.setdefault(one.after, []).append(one)
    entries: list[tuple[Any, Any]] = []
    for key, value in weights.node.entries:
        entries.append((key, value))
        entries += [(one.key, _made(one, value.location)) for one in behind.get(str(key), ())]
    root = rebuild(ckpt.root, instead={id(weights.node): with_entries(weights.node, entries)})
    return replace(ckpt, root=root).noting(f"fill-defaults: {_said(found)}, as a new model has them")


def _made(one: Known, location: str) -> LazyTensor:
    data = one.values()
    return LazyTensor(Storage(Buffer(data), location, _INT64), _INT64, one.shape, contiguous_stride(one.shape))


def _said(found: Sequence[Known]) -> str:
    shown = ", ".join(printable(one.key, 80) for one in found[:4])
    more = f" and {len(found) - 4:,} more" if found[4:] else ""
    return f"{counted(len(found), 'buffer')} added: {shown}{more}"
