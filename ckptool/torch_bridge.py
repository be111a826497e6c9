"""The door to torch: values of a checkpoint as torch tensors, and torch tensors as a checkpoint.

torch is imported here and nowhere else in the core.
"""

from __future__ import annotations

import contextlib
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Mapping
from typing import Any

import torch

from .checkpoint import Checkpoint, map_storages
from .disk.files import CHUNK, Buffer, File, FileRange
from .dtypes import BY_NAME, BY_STORAGE
from .errors import CannotCarry, printable
from .inert.decode import check_indices
from .inert.in_memory import FromMemory
from .inert.inert_object import Inert
from .inert.other_tensors import OtherTensor, other_tensor, stands_for_a_tensor
from .tensor import LazyTensor, Storage
from .tree import ABSENT, Dict, Global, List, Object, Set

#: As in torch.load: a device, a dict of locations, a function of (storage, location), or None.
MapLocation = Any

_FACTORIES: dict[str, Callable[[], Any]] = {
    f"builtins.{kind.__name__}": kind for kind in (list, dict, set, int, float, str, tuple)
}
_NUMBERS = {f"builtins.{kind.__name__}": kind for kind in (complex, slice, range)}


def to_torch(tensor: LazyTensor) -> torch.Tensor:
    """One lazy tensor as a torch tensor on the CPU, read now."""
    made: torch.Tensor = Loader("cpu", mmap=False).value(tensor)
    return made.detach()


class Loader:
    """Makes objects of torch out of a tree, as `torch.load` would."""

    def __init__(self, map_location: MapLocation, *, mmap: bool) -> None:
        self._map_location = map_location
        self._mmap = mmap
        self._maps: dict[int, Any] = {}
        self._storages: dict[int, Any] = {}
        self._made: dict[int, Any] = {}
        self._fills: list[tuple[Any, Any]] = []

    def value(self, root: Any) -> Any:
        """What the tree below ROOT stands for."""
        result = self._begin(root)
        while self._fills:
            made, node = self._fills.pop()
            self._fill(made, node)
        return result

    # -- storages and tensors

    def _storage(self, storage: Storage) -> Any:
        if id(storage) not in self._storages:
            self._storages[id(storage)] = self._restored(storage)
        return self._storages[id(storage)]

    def _restored(self, storage: Storage) -> Any:
        place, target = storage.location, self._map_location
        if isinstance(target, Mapping):
            place = str(target.get(place, place))
        elif isinstance(target, str | torch.device):
            place = str(target)
        if place == "meta":
            return torch.UntypedStorage(storage.nbytes, device="meta")
        made = self._read(storage)
        if target is not None and not isinstance(target, str | torch.device | Mapping):
            moved = target(made, place)
            if moved is not None:
                return moved
        return torch.serialization.default_restore_location(made, place)

    def _read(self, storage: Storage) -> Any:
        source = storage.source
        if self._mmap and isinstance(source, FileRange) and source.file.fd >= 0:
            return self._mapped(source.file)[source.offset : source.offset + source.length]
        made = torch.UntypedStorage(storage.nbytes)
        if storage.nbytes:
            view = memoryview(torch.empty(0, dtype=torch.uint8).set_(made).numpy())
            if isinstance(source, FileRange):  # straight into the memory of the tensor
                for at in range(0, source.length, CHUNK):
                    source.file.read_into(view[at : at + CHUNK], source.offset + at)
                return made
            at = 0
            for chunk in source.chunks():
                view[at : at + len(chunk)] = chunk
                at += len(chunk)
        return made

    def _mapped(self, file: File) -> Any:
        if id(file) not in self._maps:
            # not shared: changes of the tensors stay in memory
            self._maps[id(file)] = torch.UntypedStorage.from_file(file.name_while_open, False, file.size)
        return self._maps[id(file)]

    def _tensor(self, node: LazyTensor) -> Any:
        made = torch.empty(0, dtype=getattr(torch, node.dtype.name), device=self._storage(node.storage).device)
        made.set_(self._storage(node.storage), node.offset, node.shape, node.stride)
        return _finished(made, node.conj, node.neg, node.parameter, node.requires_grad)

    def _other(self, node: Object) -> Any:
        """A tensor that is no dense one, or a numpy array; None where it would be an object of a class."""
        other = other_tensor(node)
        if other is None or other.kind == "subclass":
            return None
        check_indices(other)
        if other.kind == "quantized":
            return self._quantized(node, other)
        if other.kind == "numpy" and other.dense is not None:
            array = other.dense.numpy()
            return array if array.shape or "scalar" not in str(node.callee) else array[()]
        if other.kind == "meta":
            dtype: Any = getattr(torch, other.dtype.name)  # type: ignore[union-attr]
            try:
                made = torch.empty_strided(other.shape, other.detail, dtype=dtype, device="meta")
            except (NotImplementedError, RuntimeError):  # of quantized types, for one
                raise CannotCarry(f"torch has no meta tensor of {other.dtype.name} and such sizes") from None  # type: ignore[union-attr]
            return _finished(made, False, False, other.parameter, other.requires_grad)
        if other.dense is not None:
            return self._with_attributes(self._tensor(other.dense), node)
        parts = [self._tensor(part.changed(requires_grad=False)) for part in other.parts.values()]
        if other.kind == "sparse_coo":
            made = torch.sparse_coo_tensor(*parts, other.shape, is_coalesced=other.detail, check_invariants=False)
        elif other.kind.startswith("sparse"):
            layout = getattr(torch, other.kind)
            made = torch.sparse_compressed_tensor(*parts, other.shape, layout=layout, check_invariants=False)
        elif other.kind == "nested" and other.detail is None:
            made = torch._nested_view_from_buffer(*(part.contiguous() for part in parts))
        else:
            return None
        return _finished(made, False, False, other.parameter, other.requires_grad)

    def _quantized(self, node: Object, other: OtherTensor) -> Any:
        while node.callee.name != "_rebuild_qtensor":  # a parameter around it
            node = node.args[0]
        storage, offset, shape, stride, scheme = node.args[:5]
        quantizer = (getattr(torch, scheme[0].name), *(self._begin(part) for part in scheme[1:]))
        made = torch._utils._rebuild_qtensor(
            self._begin(storage), offset, self._begin(shape), self._begin(stride), quantizer, False, OrderedDict()
        )
        return _finished(made, False, False, other.parameter, other.requires_grad)

    def _with_attributes(self, made: Any, node: Object) -> Any:
        for part in node.args[-1] if isinstance(node.args[-1], tuple) else node.args[-1:]:
            for name, value in part.entries if isinstance(part, Dict) else ():
                if isinstance(name, str) and name.isidentifier() and not hasattr(torch.Tensor, name):
                    setattr(made, name, self._begin(value))
        return made

    # -- containers

    def _begin(self, node: Any) -> Any:
        """The value of a node; what is in a container is filled in later, so that cycles come out as they were."""
        if isinstance(node, str):
            return str(node)
        if node is None or node is ABSENT or isinstance(node, bytes | int | float):
            return node
        if id(node) in self._made:
            return self._made[id(node)]
        made = self._new(node)
        self._made[id(node)] = made
        return made

    def _key(self, node: Any) -> Any:
        """The value of a node that stands where Python takes nothing that changes."""
        made = self._begin(node)
        try:
            hash(made)
        except TypeError:
            raise CannotCarry(f"has a {type(made).__name__} as a key, which Python does not take") from None
        return made

    def _new(self, node: Any) -> Any:
        if isinstance(node, tuple):
            return tuple(self._begin(item) for item in node)
        if isinstance(node, LazyTensor):
            return self._tensor(node)
        if isinstance(node, Storage):
            untyped = self._storage(node)
            dtype = getattr(torch, node.dtype.name) if node.dtype else None
            return torch.storage.TypedStorage(wrap_storage=untyped, dtype=dtype, _internal=True) if dtype else untyped
        if isinstance(node, Global):
            return self._global(node)
        if isinstance(node, Set):
            return (frozenset if node.frozen else set)(self._key(item) for item in node.items)
        if isinstance(node, bytearray):
            return bytearray(node)
        made: Any
        if isinstance(node, Dict):
            made = OrderedDict() if node.ordered else {}
        elif isinstance(node, List):
            made = []
        elif isinstance(node, Object):
            other = self._other(node) if stands_for_a_tensor(node) else None
            if other is not None:
                return other
            made = self._object(node)
        else:
            return node
        self._fills.append((made, node))
        return made

    def _global(self, node: Global) -> Any:
        known = node.module == "torch" and (node.name in BY_NAME or node.name.endswith("Storage"))
        return getattr(torch, node.name) if known and hasattr(torch, node.name) else Inert(str(node))

    def _object(self, node: Object) -> Any:
        with contextlib.suppress(TypeError, ValueError, OverflowError, RuntimeError):  # arguments that it cannot have
            made = self._plain(str(node.callee), node.args if isinstance(node.args, tuple) else ())
            if made is not ABSENT:
                return made
        return Inert(node.class_name)

    def _plain(self, name: str, args: tuple[Any, ...]) -> Any:
        """A plain value that a call of NAME makes, or ABSENT."""
        if name == "torch.Size" and len(args) == 1 and isinstance(args[0], tuple):
            return torch.Size(args[0])
        if name == "torch.device" and args and all(isinstance(arg, str | int) for arg in args):
            return torch.device(*(str(arg) if isinstance(arg, str) else arg for arg in args))
        if name == "collections.Counter" and (not args or isinstance(args[0], Dict)):
            return Counter()
        if name == "collections.defaultdict" and len(args) == 1 and str(args[0]) in _FACTORIES:
            return defaultdict(_FACTORIES[str(args[0])])
        if name == "builtins.bytearray" and all(isinstance(arg, bytes) for arg in args):
            return bytearray(*args[:1])
        if name in _NUMBERS and all(isinstance(arg, int | float | None) for arg in args):
            return _NUMBERS[name](*args)
        return ABSENT

    def _fill(self, made: Any, node: Any) -> None:
        if isinstance(node, List):
            made.extend(self._begin(item) for item in node.items)
        elif isinstance(node, Dict):
            for key, value in node.entries:
                made[self._key(key)] = self._begin(value)
            if isinstance(node.attributes, Dict):
                vars(made).update({str(k): self._begin(v) for k, v in node.attributes.entries})
        elif isinstance(made, Inert):
            made.args = self._begin(node.args)
            made.state = None if node.state is ABSENT else self._begin(node.state)
            made.items = [self._begin(item) for item in node.items]
            made.entries = [(self._begin(key), self._begin(value)) for key, value in node.entries]
        elif isinstance(made, dict):
            if isinstance(made, Counter) and node.args:  # the counts are its argument, those of a defaultdict follow
                self._fill(made, node.args[0])
            for key, value in node.entries:  # not update(): that of a Counter counts
                made[self._key(key)] = self._begin(value)


def _finished(made: Any, conj: bool, neg: bool, parameter: bool, requires_grad: bool) -> Any:
    requires_grad = requires_grad and (made.is_floating_point() or made.is_complex())  # torch knows no other
    """A tensor over its storage, with all else that a tensor can be."""
    made = torch._conj(made) if conj else made
    made = torch._neg_view(made) if neg else made
    if parameter:
        return torch.nn.Parameter(made, requires_grad)
    return made.requires_grad_() if requires_grad else made


# -- from torch


def from_torch(value: Any) -> Checkpoint:
    """A dict of torch tensors (nested, with lists and scalars) as a checkpoint, without copying their memory.

    Raises:
        CannotCarry: a value of another class, which only torch.save can write.
    """
    maker = FromTorch()
    ckpt = Checkpoint(maker.node(value, ""))
    # what is seen as several types is bytes to the pickle, and each tensor names its own
    return map_storages(ckpt, lambda s: s.changed(dtype=None) if id(s) in maker.mixed else s) if maker.mixed else ckpt


class FromTorch(FromMemory):
    """Makes nodes of a tree out of torch tensors and plain values."""

    def __init__(self) -> None:
        super().__init__()
        self._storages: dict[int, Storage] = {}
        self.mixed: set[int] = set()  # storages that tensors of several types share

    def leaf(self, value: Any, path: str) -> Any:
        """The node for what is no container."""
        if isinstance(value, torch.Tensor):
            return self.tensor(value, path)
        if isinstance(value, torch.Size):
            return Object("reduce", Global("torch", "Size"), (tuple(value),))
        return super().leaf(value, path)

    def tensor(self, tensor: Any, path: str) -> LazyTensor:
        """A tensor with the memory that it has here."""
        if hasattr(tensor, "device_mesh"):
            raise CannotCarry(
                f"{printable(path)} is a DTensor, of which this process holds a part",
                hint="ckptool.save(state_dict, …), called by every rank, writes them; tensor.full_tensor() gathers one",
            )
        is_dense = tensor.layout == torch.strided and not tensor.is_nested
        if not is_dense or tensor.is_quantized or tensor.device.type == "meta":
            raise CannotCarry(f"{printable(path)} is not a dense tensor with data")
        dtype = BY_NAME[str(tensor.dtype).removeprefix("torch.")]
        untyped = tensor.untyped_storage()
        if tensor.numel() and not _has_memory(untyped):
            raise CannotCarry(f"{printable(path)} is a {type(tensor).__name__}, whose values are in its attributes")
        storage = self._storages.get(untyped._cdata)
        if storage is None:
            self._alive.append(untyped)
            on_cpu = untyped.cpu()
            data = torch.empty(0, dtype=torch.uint8).set_(on_cpu).numpy()
            typed = dtype if dtype.storage in BY_STORAGE and untyped.nbytes() % dtype.itemsize == 0 else None
            place = torch.serialization.location_tag(untyped)
            storage = Storage(Buffer(memoryview(data)), place, typed)
            self._storages[untyped._cdata] = storage
        if storage.dtype is not None and storage.dtype != dtype:
            self.mixed.add(id(storage))
        made = LazyTensor(
            storage,
            dtype,
            tuple(tensor.shape),
            tuple(tensor.stride()),
            tensor.storage_offset(),
            tensor.requires_grad,
            isinstance(tensor, torch.nn.Parameter),
            tensor.is_conj(),
            tensor.is_neg(),
        )
        made.check(name=path)
        return made


def _has_memory(untyped: Any) -> bool:
    """Whether a storage of torch has bytes: those of a wrapper around other tensors have a size, and none."""
    try:
        return bool(untyped.data_ptr())
    except RuntimeError:
        return False


def devices(value: Any) -> set[str]:
    """The devices of all torch tensors in a dict, and in dicts and lists in it."""
    if isinstance(value, torch.Tensor):
        return {str(value.device)}
    inner = value.values() if isinstance(value, Mapping) else value if type(value) in (list, tuple) else ()
    return set().union(*map(devices, inner))


def move(tensors: Mapping[str, Any], place_of: Callable[[str], str | None]) -> dict[str, Any]:
    """The same dict with its torch tensors on other devices; tensors that share memory still do.

    Args:
        tensors: a dict of tensors, and of dicts and lists of them.
        place_of: the device for what is on a device, or None for what stays.
    """
    moved: dict[int, Any] = {}

    def to(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            place = place_of(str(value.device))
            if place is None or place == str(value.device):
                return value
            if value.layout != torch.strided or value.is_quantized:
                return value.to(place)
            storage = value.untyped_storage()
            if storage._cdata not in moved:
                moved[storage._cdata] = (
                    torch.UntypedStorage(storage.nbytes(), device="meta")
                    if place == "meta"
                    else storage.to(device=torch.device(place))
                )
            made = torch.empty(0, dtype=value.dtype, device=place)
            made.set_(moved[storage._cdata], value.storage_offset(), value.shape, value.stride())
            parameter = isinstance(value, torch.nn.Parameter)
            return _finished(made, value.is_conj(), value.is_neg(), parameter, value.requires_grad)
        if isinstance(value, Mapping):
            made_dict: Any = OrderedDict() if isinstance(value, OrderedDict) else {}
            made_dict.update((key, to(item)) for key, item in value.items())
            if hasattr(value, "_metadata"):
                made_dict._metadata = value._metadata
            return made_dict
        return type(value)(to(item) for item in value) if type(value) in (list, tuple) else value

    result: dict[str, Any] = to(tensors)
    return result


__all__ = ["FromTorch", "Loader", "devices", "from_torch", "move", "to_torch"]
