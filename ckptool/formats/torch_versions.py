"""What a torch of some version cannot load from a pickle: types and calls that are younger than it is.

Versions are those of torch's release notes; what came between 1.13 and 2.13 was seen by running both. Tensors in the
form that ckptool writes came with torch 0.4. Objects of classes are not judged: that is a matter of the class.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

from ..dtypes import BY_NAME
from ..errors import RuleError, printable
from ..tensor import LazyTensor, Storage
from ..tree import Global, Object, walk

Version = tuple[int, int]

_TENSORS: Version = (0, 4)  # _rebuild_tensor_v2
_UNTYPED: Version = (2, 1)  # tensors over storages without a type, whose own type is named (_rebuild_tensor_v3)
_BARE: Version = (2, 0)  # torch.UntypedStorage under this name
_FLAGS: Version = (2, 0)  # lazily conjugated and negated tensors
_CALLS: dict[str, tuple[str, Version]] = {
    "torch._utils._rebuild_qtensor": ("quantized tensors", (1, 3)),
    "torch._utils._rebuild_meta_tensor_no_storage": ("meta tensors", (1, 13)),
    "torch._utils._rebuild_nested_tensor": ("nested tensors", (2, 0)),
    "torch._utils._rebuild_parameter_with_state": ("parameters with attributes", (2, 0)),
    "torch._tensor._rebuild_from_type_v2": ("tensors with attributes or of other classes", (1, 12)),
    "torch._utils._rebuild_wrapper_subclass": ("tensors of other classes", (2, 0)),
}
_LAYOUTS: dict[str, Version] = {"torch.sparse_coo": (1, 0)}  # others are written in this form since 2.0
_COALESCED: Version = (2, 1)
#: The first that reads zip archives.
FIRST_ZIP: Version = (1, 6)
#: Before it, torch was built for numpy 1, which has no `numpy._core`.
_NUMPY_2: Version = (2, 3)


#: Major versions that are complete -> their last minor one.
_LAST_MINOR = {0: 4, 1: 13}


def parse_target(text: str) -> Version:
    """The version in `torch==1.6`, `torch==1.6.0` or `1.6`.

    Raises:
        RuleError: it is none.
    """
    match = re.match(r"(?:torch\s*==\s*)?(\d{1,3})\.(\d{1,3})(?:\.[\w.+]*)?\Z", text.strip())
    if match is None:
        raise RuleError(f"{printable(text, 40)!r} is not a version of torch", where="--for", hint="--for torch==1.6")
    version = int(match[1]), int(match[2])
    if version[1] > _LAST_MINOR.get(version[0], version[1]):
        what = f"there was no torch {version[0]}.{version[1]}; torch {version[0]} ended with {version[0]}."
        raise RuleError(f"{what}{_LAST_MINOR[version[0]]}", where="--for", hint="--for torch==1.6")
    return version


def impossible(root: Any, target: Version, *, zipped: bool) -> list[str]:
    """What the torch of version TARGET cannot load of the tree below ROOT, a line each, with how often it is there.

    Args:
        root: the tree.
        target: (major, minor).
        zipped: the pickle stands in a zip archive.
    """
    found: Counter[tuple[str, Version]] = Counter()
    for _, node in walk(root):
        if isinstance(node, LazyTensor):
            found[f"tensors of {node.dtype.name}", _since_dtype(node)] += 1
            if node.conj or node.neg:
                found["lazily conjugated or negated tensors", _FLAGS] += 1
        elif isinstance(node, Object) and isinstance(node.callee, Global):
            name = str(node.callee)
            if name in _CALLS:
                found[_CALLS[name]] += 1
            elif name == "torch._utils._rebuild_sparse_tensor":
                since = _since_sparse(node)
                found["coalesced sparse tensors" if since == _COALESCED else "sparse tensors", since] += 1
        elif isinstance(node, Storage) and node.dtype is None:
            found["storages without a type", _BARE] += 1
        elif isinstance(node, Global) and node.module.startswith("numpy._core"):
            found["numpy objects under the names of numpy 2", _NUMPY_2] += 1
        elif (
            isinstance(node, Global)
            and node.module == "torch"
            and (dtype := BY_NAME.get(node.name))
            and dtype.since > _TENSORS
        ):
            found[f"the type {node}", dtype.since] += 1
    lines = [
        f"{what}: {count:,} (since torch {_text(since)})" for (what, since), count in found.items() if since > target
    ]
    if zipped and target < FIRST_ZIP:
        lines.insert(0, f"the zip archive (since torch {_text(FIRST_ZIP)})")
    return lines


def _since_dtype(tensor: LazyTensor) -> Version:
    since = tensor.dtype.since
    return max(since, _UNTYPED) if tensor.storage.dtype is None else since


def _since_sparse(node: Object) -> Version:
    layout = node.args[0].args[0] if isinstance(node.args[0], Object) and node.args[0].args else node.args[0]
    if isinstance(node.args[1], tuple) and len(node.args[1]) > 3 and str(layout) == "torch.sparse_coo":
        return _COALESCED
    return _LAYOUTS.get(str(layout), (2, 0))


def _text(version: Version) -> str:
    return f"{version[0]}.{version[1]}"
