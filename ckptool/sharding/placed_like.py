"""A state dict that is read for the places of another one: each rank its part of every `DTensor`."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import torch

from ..checkpoint import Checkpoint
from ..errors import CannotCarry, NotFound, counted, printable
from ..inert.in_memory import to_plain
from ..inert.other_tensors import as_dense, stands_for_a_tensor
from ..keys import closest
from ..tensor import LazyTensor
from ..torch_bridge import Loader
from ..tree import is_mapping, metadata_of
from .into_memory import fill_tensors, shares_of
from .placing import identity_of, is_sharded


def load_like(ckpt: Checkpoint, like: Mapping[str, Any]) -> dict[str, Any]:
    """The values of the keys of LIKE, as tensors of its types that lie where its tensors do.

    Args:
        ckpt: an open checkpoint.
        like: `model.state_dict()`, or a dict of such dicts that stand in the checkpoint under the same names.

    Raises:
        NotFound: there are keys that the checkpoint does not have.
        RuleError: sizes differ.
        CannotCarry: something that is to be a dense tensor is none in the checkpoint; or as `fill_tensors`.
    """
    flat = not any(isinstance(value, Mapping) for value in like.values())
    made = _Made(ckpt)
    result = made.dict(like, ckpt.state_dict().node if flat else ckpt.root, "")
    made.read()
    return result


class _Made:
    """The result as it grows: first all of its tensors without values, so that what is missing is said before."""

    def __init__(self, ckpt: Checkpoint) -> None:
        self._ckpt = ckpt
        self._loader = Loader("cpu", mmap=False)
        self._missing: list[str] = []
        self._there: list[str] = []
        self._targets: dict[str, Any] = {}
        self._values: dict[str, LazyTensor] = {}
        self._holders: dict[str, tuple[dict[str, Any], str]] = {}
        self._others: list[tuple[dict[str, Any], str, Any]] = []

    def dict(self, like: Mapping[str, Any], node: Any, path: str) -> dict[str, Any]:
        """A dict with the keys of LIKE, whose values are in NODE, a dict of the tree."""
        entries = {str(key): value for key, value in node.entries} if is_mapping(node) else {}
        self._there += [f"{path}{key}" for key in entries]
        made: dict[str, Any] = OrderedDict() if isinstance(like, OrderedDict) else {}
        ties: dict[Any, str] = {}  # a tensor -> the key that the checkpoint has of it
        for key, value in like.items():
            if isinstance(value, torch.Tensor) and str(key) in entries:
                ties.setdefault(identity_of(value), str(key))
        for key, value in like.items():
            name = f"{path}{key}"
            held = str(key)
            if isinstance(value, torch.Tensor) and held not in entries:
                held = ties.get(identity_of(value), held)
            made[key] = None  # in the order of LIKE
            if held not in entries:
                self._missing.append(name)
            elif isinstance(value, torch.Tensor):
                self._targets[name] = value
                self._values[name] = self._dense(name, entries[held])
                self._holders[name] = (made, key)
            elif isinstance(value, Mapping):
                made[key] = self.dict(value, entries[held], f"{name}/")
            else:
                self._others.append((made, key, entries[held]))
        metadata = metadata_of(node) if is_mapping(node) else None
        if metadata is not None and isinstance(made, OrderedDict):
            made._metadata = {str(at): to_plain(value) for at, value in metadata.entries}  # type: ignore[attr-defined]
        return made

    def _dense(self, name: str, value: Any) -> LazyTensor:
        dense = as_dense(value) if isinstance(value, LazyTensor) or stands_for_a_tensor(value) else None
        if dense is None:
            raise CannotCarry(f"{printable(name)} is not a dense tensor in it", where=self._ckpt.where)
        return dense

    def read(self) -> None:
        """Give all tensors memory and read their values."""
        if self._missing:
            near = closest(self._missing[0], self._there)
            verb = "is" if len(self._missing) == 1 else "are"
            raise NotFound(
                f"{counted(len(self._missing), 'key')} of `like` {verb} not in it",
                where=self._ckpt.where,
                evidence=[printable(name, 100) for name in self._missing[:5]]
                + ([f"did you mean: {', '.join(map(printable, near))}"] if near else []),
                hint="ckptool.load_into(model, …) finds keys of other names" if near else None,
            )
        shares_of(self._targets, self._values)
        made: dict[Any, Any] = {}
        targets: dict[str, Any] = {}
        values: dict[str, LazyTensor] = {}
        for name, like in self._targets.items():
            one = (identity_of(like), self._values[name].identity)
            if one not in made:
                made[one] = targets[name] = _empty_like(like)
                values[name] = self._values[name]
            holder, key = self._holders[name]
            holder[key] = made[one]
        fill_tensors(targets, values)
        for holder, key, node in self._others:
            holder[key] = self._loader.value(node)


def _empty_like(tensor: Any) -> Any:
    """Memory for the values of a tensor, where it is; for one on the meta device, on that of its mesh, or the CPU."""
    device = tensor.device
    if tensor.is_meta:
        device = torch.device(tensor.device_mesh.device_type if is_sharded(tensor) else "cpu")
    return torch.empty_like(tensor.detach(), device=device, requires_grad=False)


__all__ = ["load_like"]
