"""Apply a mapping to a source. This module does not import matching, which an existing mapping does not need."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Mapping as MappingOf
from contextlib import suppress
from dataclasses import replace
from typing import Any

from ..checkpoint import Checkpoint
from ..disk.files import Buffer
from ..dtypes import BY_NAME
from ..errors import CannotCarry, NotFound, RuleError, counted, printable
from ..formats import open as open_checkpoint
from ..inert.other_tensors import others_in
from ..keys import closest
from ..keys.known_buffers import is_counter
from ..tensor import LazyTensor, Storage, contiguous_stride
from ..tree import Dict, is_mapping, rebuild
from . import expression as ex
from .mapping import Entry, Mapping


def open_source(source: Any) -> Checkpoint:
    """Return SOURCE, a path, a Checkpoint or a dict of torch tensors, as a Checkpoint. Numpy arrays of a Checkpoint or
    file that stores its weights as arrays become tensors (see `_with_arrays`); those in a dict stay as they are.

    Raises:
        CheckpointError: the file cannot be read, or a dict holds a value that no checkpoint can.
    """
    if isinstance(source, Checkpoint):
        return _with_arrays(source)
    if isinstance(source, MappingOf):
        from ..torch_bridge import from_torch

        return from_torch(source)
    return _with_arrays(open_checkpoint(source))


def _with_arrays(ckpt: Checkpoint) -> Checkpoint:
    """Return CKPT with plain tensors in place of its numpy arrays, and of all other objects that hold the values of one
    plain tensor, if it is from Paddle or joblib, or if its state dicts hold arrays and no tensors; else as it is.
    Arrays that no tensor can hold, such as arrays of text, stay.
    """
    found = ckpt.state_dicts()
    arrays = any(other.kind == "numpy" for one in found for other in one.others.values())
    if ckpt.framework not in ("paddle", "joblib") and (any(one.tensors for one in found) or not arrays):
        return ckpt
    dense = {id(node): other.dense for _, node, other in others_in(ckpt.root) if other.dense is not None}
    return replace(ckpt, root=rebuild(ckpt.root, instead=dense)) if dense else ckpt


def source_tensors(source: Any, mapping: Mapping) -> dict[str, LazyTensor]:
    """Return key -> tensor for the keys that MAPPING reads from SOURCE, a path, a Checkpoint or a dict of torch
    tensors.

    A key is looked up in the state dict at the path `at` of MAPPING, or in the only one of SOURCE if it has no `at`. If
    that state dict lacks a key, "PATH/KEY" is KEY in the state dict at PATH (cut at the last "/"). A key without "/"
    that it lacks is KEY in the root of the file, if the mapping has a path (`at`) and the root is a dict.

    Raises:
        NotFound: the source lacks some of these keys, or has no state dict at one of these paths.
        Ambiguous: MAPPING has no `at`, and SOURCE has several state dicts.
    """
    ckpt = open_source(source)
    weights = ckpt.state_dict(mapping.at)
    own = weights.tensors
    found: dict[str, LazyTensor] = {}
    missing = []
    for key in dict.fromkeys(key for e in mapping.entries for key in e.sources):
        if key in own:
            found[key] = own[key]
            continue
        path, _, inner = key.rpartition("/")
        beside = mapping.at and is_mapping(ckpt.root)  # a tensor of the root, beside the state dict of the mapping
        other = ckpt.state_dict(path).tensors.get(inner) if path or beside else None
        if other is None:
            missing.append(key)
        else:
            found[key] = other
    if missing:
        near = closest(missing[0], list(own))
        raise NotFound(
            f"{counted(len(missing), 'key')} of the mapping {'is' if len(missing) == 1 else 'are'} not in it",
            where=ckpt.where,
            evidence=[printable(key, 100) for key in missing[:5]]
            + ([f"did you mean: {', '.join(map(printable, near))}"] if near else []),
        )
    return found


def apply(
    mapping: Mapping, source: Any, initial: Callable[[Sequence[str]], MappingOf[str, LazyTensor]] | None = None
) -> Checkpoint:
    """Return the state dict of the target, made of SOURCE by MAPPING, as a Checkpoint, in the order of the mapping.
    Tensors are read when they are written; keys with equal expressions share one tensor. Tensors made of the source
    have the types of the source, not those of the model.

    The result has the `metadata` of the mapping, the format and path of SOURCE, and in its history a line about how
    many tensors were copied, computed and left. Guesses are applied like all other entries.

    Args:
        mapping: from `transfer`, or read from a file.
        source: a path, a Checkpoint or a dict of torch tensors.
        initial: returns key -> the model's initial value for a list of keys: those without an expression that are no
            counters, also if they need no source. Without it these keys are left out. Counters without an expression
            are 0 in either case.

    Raises:
        NotFound: the source lacks a key that the mapping reads.
        Ambiguous: the mapping has no path of the state dict, and the source has several state dicts.
        RuleError: an expression cannot be applied to the sizes of the source, or gives other sizes than the model's
            (which a mapping that was read does not know).
    """
    ckpt = open_source(source)
    tensors = source_tensors(ckpt, mapping)
    made: dict[str, LazyTensor] = {}
    left: list[str] = []
    same: dict[ex.Expr, LazyTensor] = {}
    like = next(iter(tensors.values()), None)
    for entry in mapping.entries:
        if entry.expr is not None:
            if entry.expr not in same:
                same[entry.expr] = _own(ex.lazy(entry.expr, tensors))
            tensor = same[entry.expr]
            if tensor.shape != entry.shape and mapping.source_shapes:  # a mapping that was read knows no shapes
                raise RuleError(
                    f"{printable(entry.target)} wants {list(entry.shape)}; {entry.expr} gives {list(tensor.shape)}",
                    where=ckpt.where,
                )
            made[entry.target] = tensor
        elif is_counter(entry.target):
            made[entry.target] = _zero(entry, like)
        else:
            left.append(entry.target)
    if left and initial is not None:
        made.update(initial(left))
    node = Dict([(e.target, made[e.target]) for e in mapping.entries if e.target in made], ordered=True)
    if mapping.metadata is not None:
        node.attributes = Dict([("_metadata", _tree(mapping.metadata))])
    copied = sum(e.expr is not None and e.expr.is_copy for e in mapping.entries)
    computed = sum(e.expr is not None and not e.expr.is_copy for e in mapping.entries)
    lines = [
        f"transfer: {counted(copied, 'tensor')} copied, {computed:,} rearranged, "
        f"{len(left):,} left as the model has them"
    ]
    return Checkpoint(node, ckpt.format, ckpt.path, ckpt.nbytes, lost_form=(), history=(*ckpt.history, *lines))


def _own(tensor: LazyTensor) -> LazyTensor:
    """Return TENSOR as a plain tensor (no parameter, no gradient) that shares its storage with no other values. If its
    storage has more or fewer bytes than its values, or is big-endian and has them in another order than the tensor,
    they are copied into another storage when they are written.
    """
    plain = tensor.changed(requires_grad=False, parameter=False)
    if tensor.fills_storage or (tensor.storage.nbytes == tensor.nbytes and not tensor.storage.big_endian):
        return plain
    return ex.contiguous(plain)


def _zero(entry: Entry, like: LazyTensor | None) -> LazyTensor:
    dtype = BY_NAME[entry.dtype]
    storage = Storage(Buffer(bytes(dtype.itemsize * max(entry.numel, 1))), like.location if like else "cpu", dtype)
    return LazyTensor(storage, dtype, entry.shape, contiguous_stride(entry.shape))


def _tree(value: Any) -> Any:
    if isinstance(value, MappingOf):
        return Dict([(str(k), _tree(v)) for k, v in value.items()], ordered=True)
    return value


def require_types(mapping: Mapping, ckpt: Checkpoint) -> None:
    """Raise CannotCarry if an entry of MAPPING reads complex weights of CKPT and its tensor in the model is real: torch
    would drop half of each value. Entries with a type that ckptool does not know are passed over. If CKPT lacks a key
    that MAPPING reads, nothing is looked at: `source_tensors` refuses such a mapping.

    Raises:
        CannotCarry: there are such weights; the message names the first.
        Ambiguous: as in `source_tensors`.
    """
    tensors: dict[str, LazyTensor] = {}
    with suppress(NotFound):
        tensors = source_tensors(ckpt, mapping)
    for entry in mapping.entries:
        wanted = BY_NAME.get(entry.dtype)
        held = [tensors[key] for key in entry.sources if key in tensors]
        if wanted is not None and not wanted.is_complex and any(tensor.dtype.is_complex for tensor in held):
            what = f"{printable(entry.target)} is {wanted.name} in the model, and complex in the file"
            raise CannotCarry(what, where=ckpt.where)
