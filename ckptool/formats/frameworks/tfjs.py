"""tfjs: the weights of TensorFlow.js: a JSON document that names them, and files of their bytes beside it. Read only.

    {"weightsManifest": [{"paths": ["group1-shard1of2.bin", …],
                          "weights": [{"name", "shape", "dtype", "quantization": {"dtype", "scale", "min"}}, …]}, …]}

The files of a group, one after the other, hold its weights, one after the other. Quantized weights are integers that
stand for number * scale + min; the two are `NAME/scale` and `NAME/min` here. Halved ones (float16) are float16 here.
`modelTopology` is a configuration of Keras or a graph of TensorFlow; it tells what each weight is.
"""

from __future__ import annotations

import struct
from math import prod
from typing import Any

from ...checkpoint import Checkpoint, Role
from ...disk.composing import Joined
from ...disk.documents import read_json
from ...disk.files import Buffer, File, FileRange, Source
from ...disk.urls import folder_of
from ...dtypes import BY_NAME
from ...errors import CannotCarry, Malformed, counted, printable
from ...tensor import LazyTensor
from ..base import Format
from .found import checked_shape, named, tensor_over
from .keras_names import layers_in, role_in_keras

_LARGEST = 1 << 28
_TYPES = ("float32", "float16", "int32", "uint8", "uint16", "bool", "complex64")
_NORM = {1: ("gamma", ""), 2: ("beta", ""), 3: ("moving_mean", ""), 4: ("moving_variance", "")}
#: Operator of TensorFlow -> place among its inputs -> (part, axes).
_OPERATORS: dict[str, dict[int, tuple[str, str]]] = {
    "Conv2D": {1: ("kernel", "HWIO")},
    "_FusedConv2D": {1: ("kernel", "HWIO"), 2: ("bias", "")},
    "DepthwiseConv2dNative": {1: ("depthwise_kernel", "HWIM")},
    "FusedDepthwiseConv2dNative": {1: ("depthwise_kernel", "HWIM"), 2: ("bias", "")},
    "_FusedDepthwiseConv2dNative": {1: ("depthwise_kernel", "HWIM"), 2: ("bias", "")},
    "Conv2DBackpropInput": {1: ("kernel", "HWOI")},
    "Conv3D": {1: ("kernel", "DHWIO")},
    "MatMul": {1: ("kernel", "IO")},
    "_FusedMatMul": {1: ("kernel", "IO"), 2: ("bias", "")},
    "BiasAdd": {1: ("bias", "")},
    "FusedBatchNorm": _NORM,
    "FusedBatchNormV2": _NORM,
    "FusedBatchNormV3": _NORM,
    "GatherV2": {0: ("embeddings", "VO")},
    "Prelu": {1: ("alpha", "")},
}
_MANIFEST = b'"weightsManifest"'


def open_tfjs(file: File) -> Checkpoint:
    """Open a model by its JSON document: names and places of its weights are read, no weight is."""
    document = read_json(file.read(0, min(file.size, _LARGEST)), file.path)
    groups = document.get("weightsManifest") if isinstance(document, dict) else None
    if not isinstance(groups, list) or not all(isinstance(group, dict) for group in groups):
        raise Malformed("its weightsManifest is not valid", where=file.path)
    folder = folder_of(file.path)
    entries: list[tuple[str, LazyTensor]] = []
    size, lost = file.size, []
    for group in groups:
        paths, weights = group.get("paths"), group.get("weights")
        if not isinstance(paths, list) or not isinstance(weights, list):
            raise Malformed("a group of its weightsManifest has no paths or weights", where=file.path)
        files = [folder.file(str(path), file.path.name) for path in paths]
        size += sum(one.size for one in files)
        bytes_ = Joined(tuple(FileRange(one, 0, one.size) for one in files if one.size))
        at = 0
        for weight in weights:
            made, at = _weight(weight, bytes_, at, file)
            entries += made
        if at < bytes_.length:
            lost.append(f"{counted(bytes_.length - at, 'byte')} that follow the last weight of a group")
    names = {key for key, _ in entries}  # what a quantized one is scaled by stands below its name
    weights = {key: tensor for key, tensor in entries if key.rpartition("/")[0] not in names}
    left = ("left out: the layers of the model (modelTopology)",) if document.get("modelTopology") else ()
    return Checkpoint(
        named(entries, file.path),
        "tfjs",
        file.path,
        size,
        warnings=tuple(lost),
        lost_form=(*lost, *left),
        framework="tensorflow.js",
        roles=_roles(document.get("modelTopology"), weights),
    )


def _roles(topology: Any, tensors: dict[str, LazyTensor]) -> dict[str, Role]:
    """What each weight is, by the graph or by the classes of the layers."""
    nodes = topology.get("node") if isinstance(topology, dict) else None
    if not isinstance(nodes, list):
        layers = layers_in(topology)
        roles = {
            name: role_in_keras(name, len(tensor.shape), layers, Role(), frozenset())
            for name, tensor in (tensors.items() if layers else ())
        }
        return {name: role for name, role in roles.items() if role.layer}
    found: dict[str, Role] = {}
    for node in nodes:
        said = node if isinstance(node, dict) else {}
        kind, inputs = str(said.get("op")), said.get("input")
        for place, (part, axes) in _OPERATORS.get(kind, {}).items():
            name = str(inputs[place]).partition(":")[0] if isinstance(inputs, list) and place < len(inputs) else ""
            tensor = tensors.get(name)
            if tensor is None or (axes and len(axes) != len(tensor.shape)):
                continue
            found.setdefault(name, Role(kind, part, "OI" if axes == "IO" and _is_turned(said) else axes, "operator"))
    return found


def _is_turned(node: dict[str, Any]) -> bool:
    """Whether a product takes its second factor transposed."""
    attributes = node.get("attr")
    turned = attributes.get("transpose_b") if isinstance(attributes, dict) else None
    return isinstance(turned, dict) and turned.get("b") is True


def _weight(weight: Any, held: Joined, at: int, file: File) -> tuple[list[tuple[str, LazyTensor]], int]:
    """A weight and what it is scaled by, and where the next one begins."""
    said = weight if isinstance(weight, dict) else {}
    name, shape, kind = said.get("name"), said.get("shape"), said.get("dtype")
    quantized = said.get("quantization") if isinstance(said.get("quantization"), dict) else {}
    stored = quantized.get("dtype", kind) if isinstance(quantized, dict) else kind
    if not isinstance(name, str) or not isinstance(shape, list):
        raise Malformed("a weight of its weightsManifest has no name or shape", where=file.path)
    if stored not in _TYPES:
        raise CannotCarry(
            f"{printable(repr(name), 80)} has the type {printable(str(stored), 40)}, which is not read", where=file.path
        )
    dtype = BY_NAME[stored]
    checked_shape(shape, dtype, name, file.path)
    nbytes = prod(shape) * dtype.itemsize
    if at + nbytes > held.length:
        raise Malformed(
            f"{printable(repr(name), 80)} reaches beyond the files of its group",
            where=file.path,
            evidence=[f"it ends at byte {at + nbytes:,}, and they have {held.length:,}"],
            hint="the download or copy did not finish; fetch the missing files",
        )
    part = held.part(at, nbytes)
    source: Source = part.parts[0] if len(part.parts) == 1 else part
    made = [(name, tensor_over(source, dtype, shape, name))]
    for word in ("scale", "min"):
        number = quantized.get(word) if isinstance(quantized, dict) else None
        if isinstance(number, int | float):
            key = f"{name}/{word}"
            made.append((key, tensor_over(Buffer(struct.pack("<d", number)), BY_NAME["float64"], (), key)))
    return made, at + nbytes


def _is_manifest(head: bytes, file: Any) -> bool:
    """Whether a JSON document names weights. The layers may stand before them."""
    if head.lstrip()[:1] != b"{" or not (_MANIFEST in head or b'"modelTopology"' in head or b'"format"' in head):
        return False
    return _MANIFEST in head or (file.size <= _LARGEST and _MANIFEST in file.read(0, file.size))


FORMAT = Format(
    name="tfjs",
    aliases=(),
    suffixes=(),
    summary="weights of TensorFlow.js: model.json with the files that it names",
    carries="tensors under their names, quantized ones with what they are scaled by; the layers are not read",
    pickles=False,
    sniff=_is_manifest,
    open=open_tfjs,
    loader="other",
)
