"""Torch tensors filled with the values of lazy ones: whole, or the part that this rank holds of a `DTensor`.

Nothing is read but what is kept. Values of the same type go from the file to the memory of the tensor; others, and
those for another device, pass through a few megabytes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Container, Iterator, Mapping
from math import prod
from typing import TYPE_CHECKING, Any

import torch

from ..errors import CannotCarry, Malformed, RuleError, Unreadable, printable
from ..tensor import LazyTensor
from .placing import Share, has_sharded, is_sharded, share_of
from .reading import STEP, read_box

if TYPE_CHECKING:
    import numpy as np


def fill_tensors(targets: Mapping[str, torch.Tensor], values: Mapping[str, LazyTensor]) -> None:
    """Put VALUES into the memory of TARGETS, each into the tensor of its name. All is checked before any is read.

    Args:
        targets: torch tensors, and DTensors, of which this rank's part is read.
        values: of the sizes of the targets. What has another type is converted, as torch's `copy_` does.

    Raises:
        CheckpointError: as `shares_of`, or the file cannot be read.
    """
    shares = shares_of(targets, values)
    with torch.no_grad():
        for key, tensor in values.items():
            _fill(targets[key], shares[key], tensor)


@contextlib.contextmanager
def naming_the_rank(tensors: Any) -> Iterator[None]:
    """Say which rank it was that could not read a file, where TENSORS (nested dicts and lists) are shared by several.

    What does not fit, all ranks find alike; what cannot be read may be so on one of them.
    """
    try:
        yield
    except (Malformed, Unreadable) as error:
        if has_sharded(tensors):
            error.what += f" (by rank {torch.distributed.get_rank()})"
        raise


def shares_of(targets: Mapping[str, torch.Tensor], values: Mapping[str, LazyTensor]) -> dict[str, Share]:
    """What this rank takes of each of VALUES. It is the same on all ranks whether this raises.

    Raises:
        RuleError: sizes differ.
        CannotCarry: a DTensor is one term of a sum (`Partial`), or torch does not convert a type to another.
    """
    shares = {}
    for key, tensor in values.items():
        own = targets[key]
        _require_copy(key, tensor, own)
        if tuple(own.shape) != tensor.shape:
            raise RuleError(f"{printable(key)} is to be {list(own.shape)}, and the source has {list(tensor.shape)}")
        shares[key] = share_of(key, own)
    return shares


def _require_copy(key: str, tensor: LazyTensor, own: torch.Tensor) -> None:
    """Refuse a tensor whose values torch cannot put into the target's, or not without losing half of them.

    Raises:
        CannotCarry: it says why.
    """
    same = str(own.dtype) == f"torch.{tensor.dtype.name}"
    if same or not (tensor.dtype.is_complex and not own.is_complex()):
        if tensor.dtype.numpy is not None or same:
            return
        what = f"has the type {tensor.dtype.name}, which torch does not convert to {own.dtype}"
    else:
        what = f"is complex, and {own.dtype} is wanted there"
    raise CannotCarry(f"{printable(key)} {what}")


def _fill(own: Any, share: Share, tensor: LazyTensor) -> None:
    local = own._local_tensor if is_sharded(own) else own
    for one in share.slices:
        _put(local[one.within] if local.ndim else local, tensor, one.start)
    changed = getattr(torch.autograd.graph, "increment_version", None)  # not in every torch
    if changed is not None and not local.is_inference():
        changed(local)  # as by any change in place, so that autograd does not take it for what it was


def _put(target: torch.Tensor, tensor: LazyTensor, start: tuple[int, ...]) -> None:
    """Fill TARGET with the box of TENSOR that begins at START."""
    kind = getattr(torch, tensor.dtype.name)
    lazy = target.is_conj() or target.is_neg()
    if target.dtype == kind and target.device.type == "cpu" and target.layout == torch.strided and not lazy:
        read_box(tensor, start, raw_memory(target))
        return
    for piece in pieces_of(tuple(target.shape), max(STEP // tensor.dtype.itemsize, 1)):
        some = torch.empty([part.stop - part.start for part in piece], dtype=kind)
        read_box(tensor, tuple(at + part.start for at, part in zip(start, piece, strict=True)), raw_memory(some))
        target[piece].copy_(some)


def raw_memory(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """The memory of a tensor on the CPU as an array of raw elements."""
    import numpy as np

    item = tensor.element_size()
    memory = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage()).numpy()
    strides = tuple(step * item for step in tensor.stride())
    if not tensor.numel():
        return np.empty(tuple(tensor.shape), f"V{item}")
    seen: np.ndarray[Any, Any] = np.ndarray(
        tuple(tensor.shape), f"V{item}", memory, tensor.storage_offset() * item, strides
    )
    return seen


def pieces_of(shape: tuple[int, ...], most: int) -> list[tuple[slice, ...]]:
    """Boxes of at most MOST elements that cover SHAPE."""
    if not prod(shape):
        return []
    if prod(shape) <= most or not shape:
        return [tuple(slice(0, size) for size in shape)]
    row = prod(shape[1:])
    if row > most:
        return [(slice(at, at + 1), *rest) for at in range(shape[0]) for rest in pieces_of(shape[1:], most)]
    rows = most // row
    rest = tuple(slice(0, size) for size in shape[1:])
    return [(slice(at, min(at + rows, shape[0])), *rest) for at in range(0, shape[0], rows)]


def memory_for(model: torch.nn.Module, keys: Container[str]) -> dict[str, Any]:
    """The state dict of MODEL, after what of KEYS is on the meta device was given memory there.

    A DTensor is given memory on the device of its mesh, and another tensor on that of the DTensors of the model. What
    is tied stays tied, and an optimizer that holds the parameters keeps them.

    Raises:
        CannotCarry: nothing in the model is a DTensor, so that no device is named; or something of its state dict has
            no memory and is not among KEYS, so that it would have no values.
    """
    state: dict[str, Any] = model.state_dict()
    hollow = [key for key, value in state.items() if isinstance(value, torch.Tensor) and value.is_meta]
    device = next((value.device_mesh.device_type for value in state.values() if is_sharded(value)), None)
    for key in hollow:
        if device is None and key in keys:
            raise CannotCarry(
                f"{printable(key)} is on the meta device and has no memory",
                hint="model.to_empty(device='cpu') gives it some",
            )
        if device is not None and key not in keys:
            raise CannotCarry(
                f"{printable(key)} is on the meta device and has no memory, and nothing in the source goes there",
                hint=f"model.to_empty(device={device!r}), and then the values that it is to begin with",
            )
    if device is None or not hollow:
        return state
    wanted = set(hollow)
    ids = {id(tensor) for name, tensor in _live(model).items() if name in wanted}
    made: dict[int, Any] = {}

    def real(tensor: Any) -> Any:
        if id(tensor) not in ids or not tensor.is_meta:
            return tensor
        if id(tensor) not in made:
            made[id(tensor)] = torch.empty_like(tensor, device=device)
        return made[id(tensor)]

    ties = _ties(model)
    model._apply(real)  # as `to_empty`; FSDP takes note of it
    for (module, name), *others in ties:
        for other, its_name in others:
            other._parameters[its_name] = module._parameters[name]
    return dict(model.state_dict())


def _live(model: torch.nn.Module) -> dict[str, Any]:
    return dict(model.named_parameters(remove_duplicate=False)) | dict(model.named_buffers(remove_duplicate=False))


def _ties(model: torch.nn.Module) -> list[list[tuple[torch.nn.Module, str]]]:
    """The parameters that are in several places: where each is."""
    places: dict[int, list[tuple[torch.nn.Module, str]]] = {}
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                places.setdefault(id(parameter), []).append((module, name))
    return [found for found in places.values() if len(found) > 1]


__all__ = ["fill_tensors", "memory_for", "naming_the_rank", "pieces_of", "raw_memory", "shares_of"]
