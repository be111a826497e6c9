"""onnx: the weights of an ONNX model: initialisers and constants. The graph is left behind. Read only.

A model is one message of protobuf (see `protobuf`); numbers of fields and types are those of `onnx.proto`. Values of
a tensor stand in `raw_data`, as lists of numbers, or in another file beside the model: {location, offset, length}. Of
the graph it is read which operator takes which weight (see `onnx_roles`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import prod
from typing import Any

from ...checkpoint import Checkpoint
from ...disk.files import File, Source
from ...disk.inside import Folder
from ...disk.urls import folder_of
from ...dtypes import BY_NAME, DType
from ...errors import CannotCarry, Malformed, counted, printable
from ...tensor import LazyTensor
from ..base import Format
from .cursor import Cursor
from .found import checked_shape, named, tensor_at, tensor_over, wrong_size
from .onnx_roles import Node, roles_in
from .protobuf import BYTES, VARINT, Field, fields, floats, inside, numbers, stored_as, text_of

_TYPES = {
    1: "float32",
    2: "uint8",
    3: "int8",
    4: "uint16",
    5: "int16",
    6: "int32",
    7: "int64",
    9: "bool",
    10: "float16",
    11: "float64",
    12: "uint32",
    13: "uint64",
    14: "complex64",
    15: "complex128",
    16: "bfloat16",
    17: "float8_e4m3fn",
    18: "float8_e4m3fnuz",
    19: "float8_e5m2",
    20: "float8_e5m2fnuz",
    24: "float8_e8m0fnu",
}
_WORDS = {8: "texts", 21: "uint4", 22: "int4", 23: "float4"}
#: Fields of a model, with their types on the wire, and the most that one is looked at for.
_OF_MODEL = {1: VARINT, 2: BYTES, 3: BYTES, 4: BYTES, 5: VARINT, 6: BYTES, 7: BYTES, 8: BYTES, 14: BYTES, 20: BYTES}
_OF_MODEL |= {25: BYTES, 26: BYTES}
_MOST_LOOKED_AT = 10_000
_DEEPEST = 50
_FLOATS, _INT32, _INT64, _RAW, _DOUBLES, _UINT64, _EXTERNAL = 4, 5, 7, 9, 10, 11, 13


@dataclass(slots=True)
class _Found:
    """What was met in a model."""

    file: File
    entries: list[tuple[str, LazyTensor]] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    beside: dict[str, int] = field(default_factory=dict)
    folder: Folder | None = None


def open_onnx(file: File) -> Checkpoint:
    """Open a model: the names, shapes and places of its weights are read, no weight is."""
    model = Cursor(file, what="its protobuf")
    found = _Found(file)
    metadata: dict[str, str] = {}
    for one in fields(model):
        if one.number == 7 and one.kind == BYTES:
            _graph(inside(model, one), found, "", 0, {})
        elif one.number in (2, 3) and one.kind == BYTES:
            metadata["onnx.producer" if one.number == 2 else "onnx.producer_version"] = text_of(model, one)
        elif one.number == 14 and one.kind == BYTES:
            key, value = _pair(inside(model, one))
            metadata[key] = value
        elif one.number == 20 and one.kind == BYTES:
            found.lost.append("what the model holds for training (training_info)")
        elif one.number == 25 and one.kind == BYTES:
            _function(inside(model, one), found)
    left = (f"left out: the graph of {counted(len(found.nodes), 'node')}",)
    shapes = {key: tensor.shape for key, tensor in found.entries}
    roles = roles_in(found.nodes, shapes, {key for key, tensor in found.entries if tensor.dtype.is_floating})
    return Checkpoint(
        named(found.entries, file.path),
        "onnx",
        file.path,
        file.size + sum(found.beside.values()),
        metadata=metadata,
        warnings=tuple(found.lost),
        lost_content=tuple(found.lost),
        lost_form=left,
        framework="onnx",
        roles=roles,
    )


def _pair(message: Cursor) -> tuple[str, str]:
    """A `StringStringEntryProto`."""
    known = {one.number: text_of(message, one) for one in fields(message) if one.kind == BYTES and one.number in (1, 2)}
    return known.get(1, ""), known.get(2, "")


#: Names as nodes of a graph use them -> in full, with the node and attribute of the graph that has them.
_Scope = dict[str, str]


def _graph(graph: Cursor, found: _Found, prefix: str, depth: int, outer: _Scope) -> None:
    """The initialisers of a `GraphProto`, and the constants among its nodes. Names of OUTER graphs hold in it, too."""
    if depth > _DEEPEST:
        raise graph.bad(f"has graphs nested more than {_DEEPEST} deep")
    scope, nodes = dict(outer), []
    for one in fields(graph):
        if one.kind != BYTES:
            continue
        if one.number == 1:
            nodes.append(one)
        elif one.number == 5:
            name = _add(inside(graph, one), found, prefix, None)
            scope[name] = prefix + name
        elif one.number == 15:
            found.lost.append(f"a sparse tensor {_sparse_name(inside(graph, one), prefix)}")
    for one in nodes:
        _node(inside(graph, one), found, prefix, depth, scope)


def _function(function: Cursor, found: _Found) -> None:
    """The constants of a `FunctionProto`."""
    name, nodes = "", []
    for one in fields(function):
        if one.number == 1 and one.kind == BYTES:
            name = text_of(function, one)
        elif one.number == 7 and one.kind == BYTES:
            nodes.append(one)
    scope: _Scope = {}
    for one in nodes:
        _node(inside(function, one), found, f"{name}/", 0, scope)


def _sparse_name(message: Cursor, prefix: str) -> str:
    for one in fields(message):
        if one.number == 1 and one.kind == BYTES:
            values = inside(message, one)
            for inner in fields(values):
                if inner.number == 8 and inner.kind == BYTES:
                    return printable(prefix + text_of(values, inner), 80)
    return "without a name"


def _node(node: Cursor, found: _Found, prefix: str, depth: int, scope: _Scope) -> None:
    """The tensors among the attributes of a `NodeProto`, and those of graphs within it."""
    texts: dict[int, list[str]] = {1: [], 2: [], 3: [], 4: []}
    attributes = []
    for one in fields(node):
        if one.kind != BYTES:
            continue
        if one.number in texts:
            texts[one.number].append(text_of(node, one))
        elif one.number == 5:
            attributes.append(one)
    outputs = texts[2]
    made = Node(
        "".join(texts[4]), [scope.get(n, prefix + n) if n else "" for n in texts[1]], [prefix + n for n in outputs]
    )
    found.nodes.append(made)
    scope.update((n, prefix + n) for n in outputs if n)
    here = "".join(texts[3]) or (outputs[0] if outputs else str(len(found.nodes)))
    for one in attributes:
        attribute = inside(node, one)
        word = ""
        for inner in fields(attribute):
            if inner.number in (3, 8):
                made.numbers.setdefault(word, []).extend(numbers(attribute, [inner]))
            if inner.kind != BYTES:
                continue
            if inner.number == 1:
                word = text_of(attribute, inner)
            elif inner.number == 5:
                _add(inside(attribute, inner), found, prefix, outputs[0] if outputs else f"{here}/{word}")
            elif inner.number in (6, 11):
                _graph(inside(attribute, inner), found, f"{prefix}{here}/{word}/", depth + 1, scope)
            elif inner.number == 10:
                _add(inside(attribute, inner), found, prefix, f"{here}/{word}/{inner.start}")
            elif inner.number in (22, 23):
                found.lost.append(f"a sparse tensor in the node {printable(here, 80)}")


def _add(message: Cursor, found: _Found, prefix: str, name: str | None) -> str:
    """A `TensorProto` under its own name, or NAME. Returns the name."""
    kept: dict[int, list[Field]] = {}
    shape: list[int] = []
    kind, outside = 0, False
    own = ""
    for one in fields(message):
        if one.number == 1:
            shape += numbers(message, [one])
        elif one.number == 2:
            kind = one.value
        elif one.number == 8 and one.kind == BYTES:
            own = text_of(message, one)
        elif one.number == 14:
            outside = one.value == 1
        elif one.number == 3:
            raise CannotCarry("has tensors that are divided into segments, which are not read", where=found.file.path)
        else:
            kept.setdefault(one.number, []).append(one)
    name = own if name is None else name
    key = prefix + name
    dtype = BY_NAME.get(_TYPES.get(kind, ""))
    if dtype is None:
        found.lost.append(f"the tensor {printable(key, 80)} of {_WORDS.get(kind, f'type {kind}')}")
        return name
    checked_shape(shape, dtype, key, found.file.path)
    tensor = _elsewhere(message, kept, found, dtype, shape, key) if outside else None
    found.entries.append((key, tensor or _here(message, kept, found, dtype, shape, key)))
    return name


def _here(
    message: Cursor, kept: dict[int, list[Field]], found: _Found, dtype: DType, shape: list[int], key: str
) -> LazyTensor:
    """A tensor whose values stand in the model."""
    raw = kept.get(_RAW, [])
    if raw and raw[-1].kind == BYTES:
        return tensor_at(found.file, raw[-1].start, dtype, shape, key, length=raw[-1].value)
    source: Source
    if dtype.name in ("float32", "complex64"):
        source = floats(message, kept.get(_FLOATS, []))
    elif dtype.name in ("float64", "complex128"):
        source = floats(message, kept.get(_DOUBLES, []))
    else:
        number = {"int64": _INT64, "uint32": _UINT64, "uint64": _UINT64}.get(dtype.name, _INT32)
        source = stored_as(numbers(message, kept.get(number, [])), dtype)
    nbytes = prod(shape) * dtype.itemsize
    if source.length != nbytes:
        raise wrong_size(key, dtype.name, shape, nbytes, source.length, found.file.path)
    return tensor_over(source, dtype, shape, key)


def _elsewhere(
    message: Cursor, kept: dict[int, list[Field]], found: _Found, dtype: DType, shape: list[int], key: str
) -> LazyTensor:
    """A tensor whose values stand in another file beside the model."""
    said: dict[str, str] = dict(_pair(inside(message, one)) for one in kept.get(_EXTERNAL, []) if one.kind == BYTES)
    where = found.file.path
    offset, length = (_number(said, word, key, where) for word in ("offset", "length"))
    if found.folder is None:
        found.folder = folder_of(where)
    location = said.get("location", "").removeprefix("./")
    known = found.folder.file(location, where.name)
    found.beside[location] = known.size
    nbytes = prod(shape) * dtype.itemsize
    return tensor_at(known, offset or 0, dtype, shape, key, length=nbytes if length is None else length)


def _number(said: dict[str, str], word: str, key: str, where: object) -> int | None:
    text = said.get(word)
    if text is None:
        return None
    if not text.isascii() or not text.isdecimal() or len(text) > 18:
        raise Malformed(f"the {word} of {printable(repr(key), 80)} is not a number: {printable(text, 40)}", where=where)
    return int(text)


def _is_model(head: bytes, file: Any) -> bool:
    """Whether a file is, to its end, made of fields that a model has, one of them a graph."""
    if not head or head[0] >> 3 not in _OF_MODEL or file.size < 8:
        return False
    seen = set()
    try:
        for count, one in enumerate(_looked_at(file)):
            if _OF_MODEL.get(one.number) != one.kind or count > _MOST_LOOKED_AT:
                return False
            seen.add(one.number)
    except Malformed:
        return {1, 7} <= seen
    return {1, 7} <= seen


def _looked_at(file: Any) -> Iterator[Field]:
    return fields(Cursor(file))


FORMAT = Format(
    name="onnx",
    aliases=(),
    suffixes=(),
    summary="an ONNX model, also with its weights in files beside it",
    carries="initialisers and constants under their names; the graph is not read",
    pickles=False,
    sniff=_is_model,
    open=open_onnx,
    loader="other",
)
