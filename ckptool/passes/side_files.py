"""Files beside the weights that must say what passes did: the `config.json` of Hugging Face's libraries.

A pass that changes what a configuration says (the type of the numbers, the quantisation) changes the configuration,
and each change is a line. What is written is the new text beside the weights; a single file as the target has none.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from ..checkpoint import Checkpoint, SideFile
from ..disk.addresses import is_remote
from ..disk.documents import read_json
from ..disk.files import File, is_file
from ..errors import CheckpointError, in_words

CONFIG = "config.json"
#: Bytes of a configuration. Those of models have some thousands.
_LARGEST = 4 << 20


def read_side_file(ckpt: Checkpoint, name: str) -> dict[str, Any] | None:
    """What the JSON file NAME beside the weights says, with what passes changed; None if there is none.

    Raises:
        Malformed: it is no JSON.
        Unreadable: it cannot be read.
    """
    changed = ckpt.side_files.get(name)
    if changed is not None and changed.data is None:
        return None
    if changed is not None and changed.data is not None:
        data: bytes = changed.data
    elif ckpt.folder is not None:
        if name not in ckpt.folder.names or ckpt.folder.lying(name) != "file":
            return None
        data = _bytes_of(ckpt.folder.file(name, name))
    else:
        if ckpt.path is None or is_remote(ckpt.path) or not is_file(ckpt.path.parent / name):
            return None
        data = _bytes_of(File(ckpt.path.parent / name))
    found = read_json(data, name)
    return found if isinstance(found, dict) else None


def _bytes_of(file: File) -> bytes:
    return file.read(0, file.size) if file.size <= _LARGEST else b"{}"


def config_of(ckpt: Checkpoint) -> dict[str, Any]:
    """What `config.json` says; nothing if there is none that can be read."""
    try:
        return read_side_file(ckpt, CONFIG) or {}
    except CheckpointError:
        return {}


#: What a configuration calls it: Hugging Face's libraries, and MLX.
_KEYS = ("quantization_config", "quantization")
#: Files of their own that describe a quantisation: of GPTQ, of AWQ and of ModelOpt.
_QUANTIZATIONS = ("quantize_config.json", "quant_config.json", "hf_quant_config.json")


def quantization_of(ckpt: Checkpoint) -> dict[str, Any]:
    """What describes the quantisation: a part of `config.json`, or a file of its own."""
    config = config_of(ckpt)
    for _, node in _levels(config):
        for key in _KEYS:
            found = node.get(key)
            if isinstance(found, dict):
                return found
    for name in _QUANTIZATIONS[:2]:
        try:
            found = read_side_file(ckpt, name)
        except CheckpointError:
            continue
        if found is not None:
            return found if name == _QUANTIZATIONS[0] else {"quant_method": "awq", **found}
    return {}


def with_side_file(ckpt: Checkpoint, name: str, content: dict[str, Any], *lines: str) -> Checkpoint:
    """CKPT with a JSON file beside the weights that says CONTENT. LINES say what changed."""
    before = ckpt.side_files.get(name)
    data = json.dumps(content, indent=2, ensure_ascii=False).encode() + b"\n"
    told = (*(before.lines if before else ()), *lines)
    return replace(ckpt, side_files={**ckpt.side_files, name: SideFile(data, told)})


def without_quantization(ckpt: Checkpoint) -> Checkpoint:
    """CKPT whose `config.json` says nothing of a quantisation, without other files that do."""
    config = config_of(ckpt)
    if ckpt.folder is None:
        return ckpt
    gone = SideFile(None, ("left behind: it describes the quantisation that was undone",))
    ckpt = replace(
        ckpt, side_files=ckpt.side_files | {name: gone for name in _QUANTIZATIONS if name in ckpt.folder.names}
    )
    found = [f"{path}{key}" for path, node in _levels(config) for key in _KEYS if key in node]
    if not found:
        return ckpt
    for _, node in _levels(config):
        for key in _KEYS:
            node.pop(key, None)
    places = ", ".join(found)
    return with_side_file(ckpt, CONFIG, config, f"{places} removed")


def with_dtype(ckpt: Checkpoint, dtype: str) -> Checkpoint:
    """CKPT whose `config.json` says that the weights are of the type DTYPE, wherever it names a type."""
    config = config_of(ckpt)
    lines = []
    for path, node in _levels(config):
        for name in ("torch_dtype", "dtype"):
            old = node.get(name)
            if isinstance(old, str) and old != "auto" and old.removeprefix("torch.") != dtype:
                node[name] = dtype
                lines.append(f"{path}{name} {in_words(old)} -> '{dtype}'")
    return with_side_file(ckpt, CONFIG, config, *lines) if lines and ckpt.folder is not None else ckpt


def _levels(config: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """A configuration and those of its parts (`text_config`), each with its path."""
    yield "", config
    for name, value in config.items():
        if isinstance(value, dict) and name.endswith("_config") and name != "quantization_config":
            yield f"{name}.", value
