"""Quantized modules of torch: what they put into a state dict beside their parameters and buffers.

They keep their weights packed for the machine that runs them. In a pickled model a convolution is a tuple of its
attributes, and other weights are a `torch.ScriptObject` whose state holds the plain tensors; `state_dict()` has those
tensors under names of its own. Source: `torch/ao/nn/quantized` of torch 2.13 (versions 3 of Linear, 1 of the others),
`_save_to_state_dict` and `__getstate__`.
"""

from __future__ import annotations

import struct
from typing import Any

from ..disk.files import Buffer
from ..dtypes import BY_NAME
from ..tensor import LazyTensor, Storage
from ..tree import Aside, List, Mapped, Object, Trail

#: (name in the state dict, value, its place: below the module, or below its attributes)
Entry = tuple[str, Any, Trail]

_LINEAR = ("Linear", "LinearReLU", "LinearLeakyReLU", "LinearTanh")
_CELLS = ("RNNCell", "LSTMCell", "GRUCell")
_CONVOLUTION = 15  # values in the state of a convolution; weight, bias, scale and zero point are 10 to 13


def _names(node: Object) -> tuple[str, str]:
    """(module, class) of a quantized module of torch, else two empty texts."""
    module, _, name = node.class_name.rpartition(".")
    of_torch = module.startswith(("torch.ao.nn.", "torch.nn."))
    return (module, name) if of_torch and "quantized" in module.split(".") else ("", "")


def is_convolution(node: Any) -> bool:
    """Whether a node is a quantized convolution, whose state is a tuple."""
    if not isinstance(node, Object) or type(node.state) is not tuple or len(node.state) != _CONVOLUTION:
        return False
    return _names(node)[1].startswith("Conv") and _scalars(*node.state[12:14]) is not None


def of_convolution(node: Object) -> list[Entry]:
    """What a quantized convolution puts into a state dict."""
    scale, zero = _scalars(*node.state[12:14]) or (None, None)
    named = {"weight": node.state[10], "bias": node.state[11], "scale": scale, "zero_point": zero}
    at = (None, Aside("@state"))
    return [(name, value, (at, index)) for index, (name, value) in enumerate(named.items(), 10)]


def of_attributes(node: Object, state: Mapped) -> list[Entry]:
    """What a quantized module whose attributes are STATE puts into a state dict, behind its parameters and buffers."""
    module, name = _names(node)
    held = {key: value for key, value in state.entries if isinstance(key, str)}
    found: list[Entry] = []
    if name in (*_LINEAR, "QFunctional"):
        scalars = _scalars(held.get("scale"), held.get("zero_point"))
        found = [(key, value, (None, key)) for key, value in zip(("scale", "zero_point"), scalars or (), strict=False)]
    elif name == "LinearPackedParams":
        found = _packed(held, "_packed_params", _weight_and_bias(held.get("_packed_params")))
    elif name == "EmbeddingPackedParams":
        found = _packed(held, "_packed_weight", _embedding(held.get("_packed_weight")))
    elif name == "PackedParameter" or name in _CELLS:  # as they are: torch does not unpack these
        names = ("param",) if name == "PackedParameter" else ("_packed_weight_ih", "_packed_weight_hh")
        found = [(key, held[key], (None, key)) for key in names if is_packed(held.get(key))]
    elif ".reference." in module:
        found = [(key, held[key], (None, key)) for key in ("weight_qscheme", "weight_dtype") if key in held]
    return found


def version(node: Object) -> int | None:
    """The version of its state dict, or None if the class is none that is known here."""
    module, name = _names(node)
    if name in _LINEAR and ".sparse." not in module:
        return 4 if ".dynamic." in module else 3
    if name == "LinearPackedParams" and ".sparse." not in module:
        return 3
    return 2 if name in ("LSTM", "GRU") and ".dynamic." in module else None


def is_packed(value: Any) -> bool:
    """Whether a value is an object of torch's C++ code, such as packed weights."""
    return isinstance(value, Object) and value.class_name in ("torch.ScriptObject", "torch._C.ScriptObject")


def _packed(held: dict[str, Any], name: str, value: Any) -> list[Entry]:
    if value is None or "dtype" not in held:
        return []
    return [("dtype", held["dtype"], (None, "dtype")), (name, value, (None, name))]


def _inner(packed: Any, cls: str) -> Any:
    """The state of packed weights of the class CLS: (state, qualified name) is what torch pickles."""
    state = packed.state if is_packed(packed) else None
    if type(state) is not tuple or len(state) != 2 or not isinstance(state[1], str):
        return None
    return state[0] if state[1].endswith(f".quantized.{cls}") else None


def _weight_and_bias(packed: Any) -> Any:
    inner = _inner(packed, "LinearPackedParamsBase")
    return inner if type(inner) is tuple and len(inner) == 2 else None


def _embedding(packed: Any) -> Any:
    inner = _inner(packed, "EmbeddingPackedParamsBase")  # version, tensors, numbers, numbers
    tensors = inner[1] if type(inner) is tuple and len(inner) == 4 else None
    return tensors.items[0] if isinstance(tensors, List) and len(tensors.items) == 1 else None


def _scalars(scale: Any, zero: Any) -> tuple[Any, Any] | None:
    """A scale and a zero point as `torch.tensor` makes tensors of them."""
    if isinstance(scale, LazyTensor) and isinstance(zero, LazyTensor):
        return scale, zero
    if type(scale) is not float or type(zero) is not int or not -(1 << 63) <= zero < 1 << 63:
        return None
    try:
        raw = struct.pack("<f", scale)
    except OverflowError:
        raw = struct.pack("<f", float("inf") if scale > 0 else float("-inf"))
    return _scalar(raw, "float32"), _scalar(struct.pack("<q", zero), "int64")


def _scalar(raw: bytes, dtype: str) -> LazyTensor:
    return LazyTensor(Storage(Buffer(raw), "cpu", BY_NAME[dtype], "made"), BY_NAME[dtype], (), ())
