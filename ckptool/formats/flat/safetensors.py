"""safetensors: a header of JSON, then the tensors in C order. One flat set of names; no sharing, strides or locations.

    8 bytes   length N of the header, little-endian
    N bytes   {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}, …, "__metadata__": {text: text}}
              padded with spaces so that the data begin at a multiple of 8
    the rest  the data; offsets count from its start and tile it without holes

Read more strictly than by the reference (no repeated names, the header begins with "{"): what it refuses, we refuse.
What we write: names in registration order, data by falling item size (so that each is aligned), `format: pt`, and one
metadata entry `ckptool` that notes what the format cannot say: that the order of the keys is the true one (by their
CRC-32, since other programs sort them and keep the note), which tensors were tied, strides, and `_metadata`. Reading
restores it.

`safetensors.torch.save_model` (0.8) stores one of the keys that share memory, the first in alphabetical order of those
that cover all of it, and notes each other one in the header as {"its name": "the one that is there"}; `load_model`
wants a file without the others. Such notes are read, and with `ties="drop"` they are written.
"""

from __future__ import annotations

import json
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from ...checkpoint import Checkpoint, StateDict, around, ties_of
from ...disk.composing import Piece
from ...disk.documents import read_json, through_json
from ...disk.files import Buffer, File
from ...dtypes import BY_SAFETENSORS
from ...errors import CannotCarry, Malformed, counted, printable
from ...inert.in_memory import from_plain, to_plain
from ...inert.other_tensors import as_dense, other_tensor
from ...tensor import LazyTensor, NumberedStorage, TensorColumn, is_permutation, kind_of, permuted
from ...tree import ABSENT, Dict, Pairs, attributes_of, metadata_of
from ..base import Draft, Format
from ..beginnings import LARGEST_HEADER, is_safetensors, joined_ranges, length_of_header
from .header import HeaderTable, check_tiling, has_half_a_pair, read_header

_NOTE = "ckptool"


def sniff(head: bytes, file: object = None) -> bool:
    """Whether HEAD may be the beginning of a safetensors file: a header length that makes sense, then `{`."""
    return is_safetensors(head)


def open_safetensors(file: File, broken: dict[int, str] | None = None) -> Checkpoint:
    """Open a safetensors file: its header is read, no tensor is.

    With BROKEN, tensors that are not whole are no error but noted there: the id of their storage, and why.
    """
    header = read_header(file)
    names, kinds, metadata = header.names, header.kinds, header.metadata
    table, likes = HeaderTable(file, header), {}
    for kind, number in dict(zip(kinds, range(len(kinds)), strict=True)).items():
        storage = NumberedStorage(table, number, kind_of("cpu", kind.dtype if kind.dtype.storage else None))
        likes[kind] = LazyTensor(storage, kind.dtype, kind.shape, kind.stride)
    entries = Pairs([*names], TensorColumn(table, list(map(likes.__getitem__, kinds))), names)
    if broken is None:
        check_tiling(file, header)
    else:
        for (_, tensor), begin, end in zip(entries, header.begins, header.ends, strict=True):
            if header.start + end > file.size:
                there = max(file.size - header.start - begin, 0)
                broken[id(tensor.storage)] = f"is cut short: {there:,} of {end - begin:,} bytes are there"
    note = _read_note(metadata.get(_NOTE)) or {}
    in_order = "order" in note and note["order"] == _order(names)
    lost = "the order of its keys is that of the header; how they were saved is not known"
    root = Dict(entries, ordered=True)
    _restore(root, note)
    tied = _named_ties(metadata, names)
    for (_, tensor), (_, restored) in zip(entries, root.entries, strict=True) if broken else ():
        if broken and id(tensor.storage) in broken:  # a permuted one has a storage of its own
            broken[id(restored.storage)] = broken[id(tensor.storage)]
    root.entries = _with_tied(root.entries, tied, note.get("places"))
    perhaps = tuple(_perhaps_parts(tied, note))
    return Checkpoint(
        root,
        "safetensors",
        file.path,
        file.size,
        # `format: pt` says nothing of the weights; every writer for torch adds it, and so do we
        metadata={
            key: value
            for key, value in metadata.items()
            if key != _NOTE and key not in tied and (key, value) != ("format", "pt")
        },
        order_preserved=in_order,
        warnings=(*(() if in_order else (lost,)), *perhaps),
        lost_form=perhaps,
        tied_names=tuple(tied),
    )


def check_safetensors(file: File) -> None:
    """Refuse a file that `open_safetensors` refuses, without making a checkpoint of it."""
    check_tiling(file, read_header(file))


def _read_note(text: str | None) -> dict[str, Any] | None:
    """Our own note, or None if there is none that can be understood."""
    try:
        note = read_json(text) if text else None
    except Malformed:
        return None
    return note if isinstance(note, dict) and note.get("version") == 1 else None


def _restore(root: Dict, note: dict[str, Any]) -> None:
    """Put back what the note says: strides, ties, `_metadata`. What does not fit the tensors is passed over."""
    strides, ties_noted = _pairs(note.get("strides")), _pairs(note.get("ties"))
    by_name = dict(root.entries) if strides or ties_noted else {}
    for name, stride in strides:
        tensor = by_name.get(name)
        if tensor is None or not isinstance(stride, list) or not all(type(n) is int and n >= 0 for n in stride):
            continue
        if len(stride) == len(tensor.shape) and tensor.numel and is_permutation(tensor.shape, tuple(stride)):
            by_name[name] = permuted(tensor, tuple(stride))
    ties: dict[str, object] = defaultdict(object)
    for name, kept in ties_noted:
        one, other = by_name.get(name), by_name.get(kept) if isinstance(kept, str) else None
        if (
            one is None
            or other is None
            or (one.dtype, one.shape, one.stride) != (other.dtype, other.shape, other.stride)
        ):
            continue
        for tensor in (one, other):
            tensor.storage.tie_to(ties[kept])
    root.entries = list(by_name.items()) or root.entries
    metadata = note.get("_metadata")
    if isinstance(metadata, dict):
        node = from_plain(metadata)
        node.ordered = True
        root.attributes = Dict([("_metadata", node)])


def _named_ties(metadata: dict[str, str], names: dict[str, None]) -> dict[str, str]:
    """What notes of `save_model` say: a key that is not in the file -> the one whose tensor it is."""
    if not set(metadata) - {_NOTE, "format"}:
        return {}
    return {key: kept for key, kept in metadata.items() if kept in names and key not in names and key != _NOTE}


def _perhaps_parts(tied: dict[str, str], note: dict[str, Any]) -> list[str]:
    """What `save_model` does not say of the keys that it leaves out. What we leave out is all of the other."""
    if not tied or note.get("places"):
        return []
    one, other = next(iter(tied.items()))
    shown = f"{printable(one, 60)} of {printable(other, 60)}" + (", …" if len(tied) > 1 else "")
    return [f"whether a key that save_model left out was all of the other or a part of it is not known ({shown})"]


def _with_tied(entries: Sequence[tuple[Any, Any]], tied: dict[str, str], places: Any) -> Sequence[tuple[Any, Any]]:
    """ENTRIES with keys of tensors that are there under another name: in their PLACES if these are noted, or last."""
    if not tied:
        return entries
    tensors = dict(entries)
    noted = {key: place for key, place in _pairs(places) if type(place) is int and place >= 0}
    done = list(entries)
    for key in sorted(tied, key=lambda key: (noted.get(key, len(entries) + len(tied)), key)):
        done.insert(noted.get(key, len(done)), (key, tensors[tied[key]]))
    return done


def dropped_ties(ckpt: Checkpoint, tensors: dict[str, LazyTensor]) -> dict[str, str]:
    """The keys that `save_model` would leave out of the file -> the key that is stored; {} if all are to be stored."""
    if ckpt.ties != "drop" and (ckpt.ties or not ckpt.tied_names):
        return {}
    return {key: min(keys) for keys in ties_of(tensors) for key in keys if key != min(keys)}


def _order(keys: Iterable[str]) -> str:
    """A checksum of keys in their order."""
    return f"{zlib.crc32(chr(0).join(keys).encode('utf-8', 'surrogatepass')):08x}"


def _pairs(value: Any) -> list[tuple[str, Any]]:
    return list(value.items()) if isinstance(value, dict) else []


def draft_safetensors(ckpt: Checkpoint) -> Draft:
    """Lay out the weights of a checkpoint as a safetensors file; what else is in it would be lost and is listed."""
    weights = ckpt.state_dict()
    content = around(ckpt, weights) + _not_tensors(weights)
    dense = {key: (value if isinstance(value, LazyTensor) else as_dense(value)) for key, value in weights.items()}
    tensors = {key: t for key, t in dense.items() if t is not None and _obstacle(key, t) is None}
    dropped = dropped_ties(ckpt, tensors)
    places = {key: place for place, key in enumerate(tensors) if key in dropped}
    tensors = {key: t for key, t in tensors.items() if key not in dropped}
    ties = {other: keys[0] for keys in ties_of(tensors) for other in keys[1:]}
    strides = {
        key: list(t.stride)
        for key, t in tensors.items()
        if not t.is_contiguous and t.numel and is_permutation(t.shape, t.stride)
    }
    order = {"order": _order(tensors)} if ckpt.order_preserved else {}
    note: dict[str, Any] = {"version": 1, **order, "ties": ties, "strides": strides}
    note |= {"places": places} if places else {}
    form = _dropped(dropped) + _form(tensors, ties, strides) + _simplified(weights)
    metadata = metadata_of(weights.node)
    if metadata is not None:
        try:
            plain = {str(path): to_plain(value) for path, value in metadata.entries}
            note["_metadata"] = through_json(plain)
            if note["_metadata"] != plain:
                form.append("in the _metadata, what JSON does not have (tuples, keys that are not text) is changed")
        except (TypeError, ValueError, RecursionError):
            form.append("the _metadata of the state dict, which are not plain data, are left out")
    header: dict[str, Any] = {"__metadata__": {"format": "pt", **dropped, **ckpt.metadata, _NOTE: _text_of(note)}}
    data: list[Piece] = []
    offsets: dict[str, tuple[int, int]] = {}
    position = 0
    for key in sorted(tensors, key=lambda key: -tensors[key].dtype.itemsize):  # stable: else in registration order
        t = tensors[key]
        offsets[key] = (position, position + t.nbytes)
        position += t.nbytes
        if t.nbytes:
            data.append(t.source())
    for key, t in tensors.items():
        shape = [*t.shape[:-1], t.shape[-1] * t.dtype.packed] if t.dtype.packed > 1 else list(t.shape)
        header[key] = {"dtype": t.dtype.safetensors, "shape": shape, "data_offsets": list(offsets[key])}
    try:
        raw = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:
        raise CannotCarry("its text metadata are not text (half of a surrogate pair)", where=ckpt.where) from None
    joined = joined_ranges(data)
    raw = raw.ljust(length_of_header(len(raw), len(tensors), position, joined))
    if len(raw) > LARGEST_HEADER:
        raise CannotCarry(f"the header would have {len(raw):,} bytes; safetensors reads at most 100,000,000")
    pieces: list[Piece] = [Buffer(len(raw).to_bytes(8, "little") + raw), *joined]
    return Draft(pieces, tuple(form), tuple(content), "a new file, tensors copied as they are")


def those_that_fit(entries: Iterable[tuple[Any, Any]]) -> list[tuple[str, LazyTensor]]:
    """The entries of a state dict that a safetensors file can hold, as the dense tensors that they stand for."""
    fitting = [(key, as_dense(value)) for key, value in entries if _obstacle(key, value) is None]
    return [(key, tensor) for key, tensor in fitting if tensor is not None]


def _obstacle(key: Any, value: Any) -> tuple[str, str] | None:
    """What keeps an entry of a state dict out of a safetensors file, as (one, several), or None."""
    if not isinstance(key, str):
        return "key that is not text", "keys that are not text"
    if not isinstance(value, LazyTensor):
        other = other_tensor(value)
        if other is None:
            return "value that is not a tensor", "values that are not tensors"
        if other.dense is None:
            return f"{other.words} tensor", f"{other.words} tensors"
        if other.attributes:
            return "tensor with attributes", "tensors with attributes"
        value = other.dense
    if not value.dtype.safetensors or (value.dtype.packed > 1 and not value.shape):
        return f"tensor of {value.dtype.name}", f"tensors of {value.dtype.name}"
    if key == "__metadata__" or has_half_a_pair(key):
        return "key that no header can have", "keys that no header can have"
    return None


def _text_of(note: dict[str, Any]) -> str:
    text = json.dumps(note, ensure_ascii=False)
    return json.dumps(note) if has_half_a_pair(text) else text


def _not_tensors(weights: StateDict) -> list[str]:
    """Entries of the state dict itself that the format cannot hold."""
    lines: list[str] = []
    kinds: dict[tuple[str, str], list[str]] = {}
    for key, value in weights.node.entries:
        obstacle = _obstacle(key, value)
        if obstacle:
            kinds.setdefault(obstacle, []).append(str(key))
    for kind, keys in kinds.items():
        shown = ", ".join(printable(key, 60) for key in keys[:4])
        lines.append(f"{counted(len(keys), *kind)}: {shown}{', …' if len(keys) > 4 else ''}")
    attributes = attributes_of(weights.node)
    if isinstance(attributes, Dict):
        others = [str(key) for key, _ in attributes.entries if key != "_metadata"]
        lines += [f"attributes of the state dict: {printable(', '.join(others))}"] if others else []
    elif attributes is not ABSENT:
        lines.append("attributes of the state dict")
    return lines


def _simplified(weights: StateDict) -> list[str]:
    """Tensors of other kinds that are stored as the plain tensors that they are in the end."""
    kinds = Counter(
        ("numpy array", "numpy arrays")
        if other.kind == "numpy"
        else tuple(f"{noun} of class {printable(other.class_name, 80)}" for noun in ("tensor", "tensors"))
        for other in weights.others.values()
        if other.dense is not None and (other.kind == "numpy" or other.class_name)
    )
    return [
        counted(count, f"{one} is stored as a plain tensor", f"{several} are stored as plain tensors")
        for (one, several), count in kinds.items()
    ]


def _dropped(dropped: dict[str, str]) -> list[str]:
    if not dropped:
        return []
    shown = ", ".join(f"{printable(a, 60)} = {printable(b, 60)}" for a, b in list(dropped.items())[:3])
    many = counted(len(dropped), "tied key is noted and not stored", "tied keys are noted and not stored")
    return [f"{many}, as load_model of safetensors wants it: {shown}{', …' if len(dropped) > 3 else ''}"]


def _form(tensors: dict[str, LazyTensor], ties: dict[str, str], strides: dict[str, list[int]]) -> list[str]:
    """What changes in form: said in the receipt, and noted in the file where that can be."""
    form: list[str] = []
    if ties:
        shown = ", ".join(f"{printable(a, 60)} = {printable(b, 60)}" for a, b in list(ties.items())[:3])
        many = counted(len(ties), "tied key is stored twice", "tied keys are stored twice")
        form.append(f"{many}, and noted: {shown}{', …' if len(ties) > 3 else ''}")
        form.append("load_model of safetensors refuses both names of a tie; --ties drop writes what it takes")
    if strides:
        they = counted(len(strides), "permuted tensor is stored", "permuted tensors are stored")
        form.append(f"{they} in C order; {'its' if len(strides) == 1 else 'their'} strides are noted")
    other = sum(not t.is_contiguous and key not in strides and t.numel > 0 for key, t in tensors.items())
    if other:
        form.append(counted(other, "strided tensor is stored in C order", "strided tensors are stored in C order"))
    shared = Counter(t.storage.identity for key, t in tensors.items() if key not in ties and t.numel)
    views = sum(shared[t.storage.identity] > 1 for key, t in tensors.items() if key not in ties and t.numel)
    if views:
        form.append(
            counted(
                views,
                "tensor that is a part of a shared storage is stored on its own",
                "tensors that are parts of shared storages are stored on their own",
            )
        )
    located = Counter(t.location for t in tensors.values() if t.location != "cpu")
    for location, count in located.items():
        they = counted(count, "tensor is not recorded; it loads", "tensors is not recorded; they load")
        form.append(f"the location {printable(location)} of {they} on cpu")
    unused = sum(t.nbytes < t.storage.nbytes and shared[t.storage.identity] == 1 for t in tensors.values())
    if unused:
        leave = counted(unused, "tensor leaves parts of its storage", "tensors leave parts of their storages")
        form.append(f"{leave} behind that no tensor uses")
    resolved = sum(t.conj or t.neg for t in tensors.values())
    if resolved:
        kind = "lazily conjugated or negated"
        one, several = f"{kind} tensor is stored as its values", f"{kind} tensors are stored as their values"
        form.append(counted(resolved, one, several))
    parameters = sum(t.parameter or t.requires_grad for t in tensors.values())
    if parameters:
        form.append(f"that {counted(parameters, 'tensor requires', 'tensors require')} gradients is not recorded")
    return form


FORMAT = Format(
    name="safetensors",
    aliases=(),
    suffixes=(".safetensors",),
    summary="a flat set of tensors behind a JSON header",
    carries=f"tensors of {len(BY_SAFETENSORS)} types, text metadata; noted: order, ties, permuted strides, _metadata",
    pickles=False,
    sniff=sniff,
    open=open_safetensors,
    draft=draft_safetensors,
    loader="safetensors",
    kept_as="safetensors",
    flat=True,
)
