"""Weights that are no plain tensors of torch: of other frameworks, and quantised. What they are, and the way on."""

from __future__ import annotations

from collections.abc import Iterator

from ...checkpoint import Checkpoint, StateDict
from ...disk.files import beside, shell_path
from ...errors import CheckpointError, counted, printable
from ...formats import format_of
from ...formats.base import FolderFormat
from ...passes.packed import grain, kinds_of_packed, packed_in
from ...passes.side_files import quantization_of
from .finding import Finding

#: `Checkpoint.framework` -> how people call it.
_NAMES = {
    "keras": "Keras",
    "tensorflow": "TensorFlow",
    "tflite": "TensorFlow Lite",
    "tensorflow.js": "TensorFlow.js",
    "flax": "Flax",
    "orbax": "Orbax",
    "onnx": "ONNX",
    "mlx": "MLX",
    "paddle": "Paddle",
    "llama.cpp": "llama.cpp",
    "numpy": "NumPy",
    "equinox": "equinox",
    "joblib": "joblib",
}
#: Orders of axes that torch's layers have too.
_OF_TORCH = frozenset(("", "OI", "OIW", "OIHW", "OIDHW", "VO", "NOI", "NO"))


def of_a_framework(ckpt: Checkpoint, weights: StateDict | None) -> Iterator[Finding]:
    """Whether another framework than torch wrote it, which orders its axes in another way."""
    kind = format_of(ckpt)
    reads = kind is None or kind.loader != "other"
    of_torch = reads or bool(ckpt.sealed) or isinstance(kind, FolderFormat)  # which loads those in other ways
    if not ckpt.framework and of_torch:
        return
    name = _NAMES.get(ckpt.framework, ckpt.framework or "another program")
    other = sorted({role.axes for role in ckpt.roles.values()} - _OF_TORCH)
    if reads and not other:
        return
    what = f"weights of {name}" if reads else f"a file of {name}, which torch.load does not read"
    if other:
        shown = ", ".join(printable(axes, 20) for axes in other[:8])
        what += f"; axes of its tensors are {shown}, which torch's layers order in another way"
    place = shell_path(ckpt.where)
    commands = []
    if weights is not None and len(ckpt.state_dicts()) == 1:
        out = beside(ckpt.where, "weights", ".safetensors")
        commands = [(f"ckptool extract-weights {place} {out}", "to extract them with their names and axes")]
    actions = [f"ckptool transfer {place} MODEL.py   puts them into a model of PyTorch"]
    yield Finding("framework", what, commands=commands, actions=actions)


def quantised(ckpt: Checkpoint, weights: StateDict, where: str) -> Iterator[Finding]:
    """Whether weights are quantised over several tensors, by whom, and whether they can be dequantised.

    Args:
        ckpt: the file.
        weights: the weights.
        where: where they are in it, in words, if there are others.
    """
    packed = packed_in(weights)
    objects = [other for other in weights.others.values() if other.class_name.startswith("torchao.")]
    if not packed and not objects:
        return
    config = quantization_of(ckpt)
    kinds: dict[str, int] = {}
    for alike in kinds_of_packed(weights):
        family, (bits, shared) = alike[0].family, grain(alike[0], weights.tensors, config)
        words = [family] + ([f"{bits} bits"] if bits and str(bits) not in family else [])
        words += [f"a scale for {shared}"] if shared else []
        said = ", ".join(words)
        kinds[said] = kinds.get(said, 0) + len(alike)
    for other in objects:
        said = printable(other.class_name, 80)
        kinds[said] = kinds.get(said, 0) + 1
    listed = [f"{count:,} of {said}" if len(kinds) > 1 else said for said, count in list(kinds.items())[:4]]
    first = printable(packed[0].name, 60) if packed else next(iter(weights.others))
    many = counted(len(packed) + len(objects), "weight")
    what = f"quantised: {many}{where} ({'; '.join(listed)}{'; …' if kinds.keys() - list(kinds)[:4] else ''}): {first}"
    actions = ["it loads into a model that was built with the same quantisation"]
    from ...passes.dequantizing import try_dequantizing  # with all that it knows of formats

    try:
        try_dequantizing(ckpt, at=weights.path)
    except CheckpointError as error:
        actions.append(f"it cannot be dequantised: {error.evidence[0] if error.evidence else error.what}")
        yield Finding("packed", what, actions=actions)
        return
    command = f"ckptool convert {shell_path(ckpt.where)} {beside(ckpt.where, 'plain')} --dequantize"
    command += " --extract" if weights.path or objects else ""
    yield Finding("packed", what, commands=[(command, "to make plain tensors of them")], actions=actions)
