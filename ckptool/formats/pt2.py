"""pt2: an exported program with its weights, as torch.export.save writes it since torch 2.8. Read only.

    TOP/archive_format                        "pt2"
    TOP/models/NAME.json                      the program
    TOP/data/weights/NAME_weights_config.json    {"config": {key: {"path_name": "weight_0", "is_param": true,
                                              "use_pickle": false, "tensor_meta": {dtype, sizes, strides, …}}}}
    TOP/data/weights/weight_N                 the bytes of a storage
    TOP/data/constants/…                      the same for constants
    TOP/data/sample_inputs/NAME.pt            a file of torch.save

Numbers stand for element types as in `torch/_export/serde/schema.py`; checked against torch 2.13. Keys cannot be
renamed: the program names them.
"""

from __future__ import annotations

from typing import Any

from ..checkpoint import Checkpoint
from ..disk.documents import read_json
from ..disk.files import File
from ..dtypes import BY_EXPORTED
from ..errors import Malformed, printable
from ..inert.tags import is_device
from ..tensor import MOST_DIMENSIONS, LazyTensor, Storage
from ..tree import Dict, List
from ._records import is_big_endian
from .base import Format
from .zip.archive import Archive, holds_record, open_archive

_LARGEST_CONFIG = 1 << 28
_STRIDED = 7

SEALED = "is an exported program: it names its weights, so that it cannot be written with other ones"


def open_pt2(file: File) -> Checkpoint:
    """Open an exported program: its lists of weights and constants are read, no weight and no program is."""
    archive = open_archive(file)
    weights = _configs(archive, "data/weights/", "_weights_config.json")
    constants = _configs(archive, "data/constants/", "_constants_config.json")
    lost: list[str] = []
    storages: dict[str, Storage] = {}
    found = {name: _tensors(archive, "data/weights/", config, storages, lost) for name, config in weights.items()}
    held = {name: _tensors(archive, "data/constants/", config, storages, lost) for name, config in constants.items()}
    single = len(found) == 1
    entries: list[tuple[Any, Any]] = [("state_dict" if single else name, tensors) for name, tensors in found.items()]
    entries += [("constants" if single else f"{name}/constants", node) for name, node in held.items() if node.entries]
    known = ("data/weights/", "data/constants/", ".data/", "archive_", "byteorder", "version")
    entries.append(("records", List([name for name in archive.members if not name.startswith(known)])))
    return Checkpoint(
        Dict(entries), "pt2", file.path, file.size, warnings=tuple(lost), lost_content=tuple(lost), sealed=SEALED
    )


def _configs(archive: Archive, folder: str, ending: str) -> dict[str, dict[str, Any]]:
    """The list of tensors of each program in the archive."""
    found = {}
    for name in archive.members:
        if name.startswith(folder) and name.endswith(ending):
            try:
                config = read_json(archive.read(name, _LARGEST_CONFIG))["config"]
                found[name[len(folder) : -len(ending)]] = dict(config)
            except (ValueError, KeyError, TypeError):
                raise Malformed(
                    f"its {printable(name, 80)} is not a list of tensors", where=archive.file.path
                ) from None
    return found


def _tensors(
    archive: Archive, folder: str, config: dict[str, Any], storages: dict[str, Storage], lost: list[str]
) -> Dict:
    entries: list[tuple[Any, Any]] = []
    for key, entry in config.items():
        if not isinstance(key, str):  # a list of pairs in place of a dict
            raise Malformed(f"the key {printable(repr(key), 80)} is not text", where=archive.file.path)
        if isinstance(entry, dict) and (entry.get("use_pickle") or not isinstance(entry.get("tensor_meta"), dict)):
            lost.append(f"{printable(key, 80)}, which is pickled in a file of its own")
            continue
        try:
            tensor = _tensor(archive, folder + _word(entry["path_name"]), entry, storages)
        except (KeyError, TypeError, ValueError):
            raise Malformed(
                f"the entry of {printable(repr(key), 80)} is not a tensor", where=archive.file.path
            ) from None
        tensor.check(archive.file.path, printable(key, 80))
        entries.append((key, tensor))
    return Dict(entries, ordered=True)


def _tensor(archive: Archive, record: str, entry: dict[str, Any], storages: dict[str, Storage]) -> LazyTensor:
    meta = entry["tensor_meta"]
    if type(meta["dtype"]) is not int:
        raise TypeError
    dtype = BY_EXPORTED[meta["dtype"]]
    sizes, strides = ([_number(n) for n in meta[part]] for part in ("sizes", "strides"))
    if meta["layout"] != _STRIDED or len(sizes) > MOST_DIMENSIONS or record not in archive.members:
        raise ValueError
    location = _location(meta["device"])
    if record not in storages:
        member = archive.members[record]
        typed = dtype if dtype.storage and member.size % dtype.itemsize == 0 else None
        storages[record] = Storage(
            archive.source(record), location, typed, record, member.crc or None, is_big_endian(archive)
        )
    grad = meta.get("requires_grad") is True
    offset = _number(meta["storage_offset"])
    parameter = entry.get("is_param") is True
    return LazyTensor(storages[record], dtype, tuple(sizes), tuple(strides), offset, grad, parameter)


def _location(device: Any) -> str:
    """A device of the schema, {"type": "cuda", "index": 1}, as torch writes it."""
    kind, index = device["type"], device["index"]
    if not is_device((kind,) if index is None else (kind, index)):
        raise ValueError
    return str(kind) if index is None or kind == "cpu" else f"{kind}:{index}"


def _number(value: Any) -> int:
    """An integer of the schema, {"as_int": 3}. A size that is a symbol is no size of a weight."""
    number = value["as_int"]
    if type(number) is not int or not 0 <= number < 1 << 62:
        raise ValueError
    return number


def _word(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError
    return value


FORMAT = Format(
    name="pt2",
    aliases=("exported-program",),
    suffixes=(),
    summary="an exported program, from torch.export.save (torch 2.8 and later)",
    carries="weights as a state dict, constants; the program is listed only",
    pickles=False,
    sniff=lambda head, file: holds_record(file, "archive_format"),
    open=open_pt2,
    loader="other",
    checksums=True,
)
