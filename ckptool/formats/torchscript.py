"""torchscript: a program with its weights, as torch.jit.save and _save_for_lite_interpreter write it. Read only.

    TOP/data.pkl           the module: objects of classes __torch__.…, whose state gives their attributes by name
    TOP/data/KEY           storages of data.pkl
    TOP/constants.pkl      a tuple of the tensors that the code calls CONSTANTS.c0, …; all weights of a frozen module
    TOP/constants/KEY      their storages
    TOP/code/….py          the program, compressed. `__parameters__` and `__buffers__` say which attributes are weights
    TOP/bytecode.pkl       in archives for mobile devices
    TOP/extra/…            files of the user

The modules are shown as pickled ones are (`_parameters`, `_buffers`, `_modules`), so that their state dict is recovered
in the same way. Keys cannot be renamed: the code names them.
"""

from __future__ import annotations

import re
from typing import Any

from ..checkpoint import Checkpoint
from ..disk.files import File
from ..errors import Malformed, counted
from ..inert.decode import check_all
from ..inert.other_tensors import stands_for_a_tensor
from ..inert.pickled_models import find_modules
from ..tensor import LazyTensor
from ..tree import Dict, Global, List, Object, rebuild, walk
from ._records import is_big_endian, read_pickle, storages_of
from ._torch import TorchReader
from .base import Format
from .zip.archive import Archive, holds_record, open_archive

_LARGEST_SOURCE = 1 << 24
_CLASS = re.compile(r"^class (\w+)\((?:Module|NamedTuple|Interface|Enum)?.*\):\n((?:  __\w+__ = \[.*\]\n)*)", re.M)
_NAMES = re.compile(r"  __(parameters|buffers)__ = \[(.*)\]\n")
#: A text in quotes. One that nobody closes goes to the end, so that no other is looked for in it.
_QUOTED = re.compile(r'"((?:[^"\\]|\\.|\\\Z)*)(?:"|\Z)')

SEALED = "is a TorchScript archive: its program names the weights, so that it cannot be written with other ones"


def open_torchscript(file: File) -> Checkpoint:
    """Open a TorchScript archive: its pickles are read, and of its code the lists of parameters and buffers."""
    archive = open_archive(file)
    where = file.path
    big_endian = is_big_endian(archive)
    reader = TorchReader(
        read_pickle(archive, "data.pkl"), where, storages_of(archive, "data/{}", big_endian=big_endian)
    )
    root = reader.load()
    constants = TorchReader(
        read_pickle(archive, "constants.pkl"), where, storages_of(archive, "constants/{}", big_endian=big_endian)
    )
    held = constants.load()
    module, guessed = _as_modules(root, archive)
    entries: list[tuple[Any, Any]] = [("data", module)]
    if isinstance(held, tuple) and held:  # of a frozen module, they are its weights
        named = Dict([(f"c{index}", value) for index, value in enumerate(held)])
        entries.append(("constants", held if find_modules(module) else named))
    folders: dict[str, list[Any]] = {}
    for name in archive.members:
        first = name.partition("/")[0]
        if name not in ("data.pkl", "constants.pkl", "version", "byteorder") and first not in _SHOWN_ELSEWHERE:
            folders.setdefault(first, []).append(name)
    entries += [(folder, List(names)) for folder, names in folders.items()]
    warnings = [*check_all([*reader.others, *constants.others], where)]
    if guessed:
        classes = counted(guessed, "class", "classes")
        warnings.append(f"its code does not say which attributes of {classes} are weights; all tensors count")
    return Checkpoint(
        Dict(entries),
        "torchscript",
        where,
        file.size,
        warnings=tuple(warnings),
        lost_content=reader.lost_content(),
        sealed=SEALED,
    )


_SHOWN_ELSEWHERE = ("data", "constants", ".data", ".format_version", ".storage_alignment")


def _as_modules(root: Any, archive: Archive) -> tuple[Any, int]:
    """ROOT with its modules in the form of pickled ones, and of how many classes the code does not tell the weights."""
    code = _Code(archive)
    instead: dict[int, Any] = {}
    for _, node in walk(root):
        if not isinstance(node, Object) or not isinstance(node.callee, Global) or not isinstance(node.state, Dict):
            continue
        if not node.callee.module.startswith("__torch__") and node.callee.module != "__torch__":
            continue
        weights = code.weights_of(node.callee)
        parts: dict[str, list[tuple[Any, Any]]] = {"_parameters": [], "_buffers": [], "_modules": []}
        others: list[tuple[Any, Any]] = []
        for name, value in node.state.entries:
            tensor = isinstance(value, LazyTensor) or stands_for_a_tensor(value)
            if isinstance(value, Object) and isinstance(value.state, Dict) and not tensor:
                parts["_modules"].append((name, value))
            elif tensor and (weights is None or name in weights["parameters"]):
                parts["_parameters"].append((name, value))
            elif tensor and weights is not None and name in weights["buffers"]:
                parts["_buffers"].append((name, value))
            else:
                others.append((name, value))
        state = Dict([(part, Dict(pairs, ordered=True)) for part, pairs in parts.items()] + others)
        instead[id(node)] = Object(node.how, node.callee, node.args, [("state", state)])
    return rebuild(root, instead=instead), len(code.unknown)


class _Code:
    """What the program says of its classes. It is text to us, and is not compiled."""

    def __init__(self, archive: Archive) -> None:
        self._archive = archive
        self._files: dict[str, dict[str, dict[str, set[str]]]] = {}
        self.unknown: set[Global] = set()

    def weights_of(self, cls: Global) -> dict[str, set[str]] | None:
        """Names of the parameters and buffers of a class, or None if the code is silent (as before torch 1.6)."""
        name = f"code/{cls.module.replace('.', '/')}.py"
        if name not in self._files:
            self._files[name] = self._read(name)
        found = self._files[name].get(cls.name)
        if found is None:
            self.unknown.add(cls)
        return found

    def _read(self, name: str) -> dict[str, dict[str, set[str]]]:
        if name not in self._archive.members:
            return {}
        try:
            text = self._archive.read(name, _LARGEST_SOURCE).decode("utf-8")
        except UnicodeDecodeError:
            raise Malformed("its code is not UTF-8", where=self._archive.file.path) from None
        classes = {}
        for match in _CLASS.finditer(text):
            names = {part: set(_QUOTED.findall(listed)) for part, listed in _NAMES.findall(match[2])}
            if {"parameters", "buffers"} <= names.keys():
                classes[match[1]] = names
        return classes


FORMAT = Format(
    name="torchscript",
    aliases=("jit",),
    suffixes=(),
    summary="a program with its weights, from torch.jit.save, also for mobile devices",
    carries="parameters and buffers as a state dict, constants, other attributes; the program is listed only",
    pickles=True,
    sniff=lambda head, file: holds_record(file, "constants.pkl"),
    open=open_torchscript,
    loader="other",
    checksums=True,
)
