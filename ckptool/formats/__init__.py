"""The formats, and the way from a path to a checkpoint and back: detect, open, plan, save."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..checkpoint import Checkpoint, map_storages
from ..errors import CannotCarry, CheckpointError, RuleError, UnknownFormat, printable
from ..files import File, FileRange, StrPath, beside, same_bytes, shell_quote
from ..objects import beyond_plain_data
from ..tensor import Storage
from ..vintage import impossible, parse_target
from ..writing import check_target, replacing, write_pieces
from . import plain_pickle, pt2, safetensors, torch_legacy, torch_package, torch_tar, torch_zip, torchscript
from ._foreign import describe
from .base import Draft, Format

#: In the order in which they are tried.
FORMATS: tuple[Format, ...] = (
    torch_zip.FORMAT,
    torch_legacy.FORMAT,
    safetensors.FORMAT,
    torchscript.FORMAT,
    torch_package.FORMAT,
    pt2.FORMAT,
    torch_tar.FORMAT,
    plain_pickle.FORMAT,
)

_HEAD = 4096
#: Suffixes that promise a format which is none of ours.
_NOT_WRITTEN = frozenset(".onnx .npz .npy .gguf .h5 .hdf5 .keras .msgpack .pb .tflite .zip .json .pt2 .jit".split())


def find_format(name: str) -> Format:
    """The format that is called NAME.

    Raises:
        RuleError: there is none.
    """
    for format_ in FORMATS:
        if name.lower() in (format_.name, *format_.aliases):
            return format_
    known = ", ".join(format_.name for format_ in FORMATS if format_.draft)
    raise RuleError(f"there is no format {printable(name)!r}; there are {known}", where="--to", hint="ckptool formats")


def detect(path: StrPath) -> str:
    """The name of the format of a file ("torch-zip"), from its first bytes.

    Raises:
        UnknownFormat: it is no checkpoint; the message says what it is instead.
        Unreadable: it cannot be opened.
    """
    return _detect(File(path)).name


def _detect(file: File) -> Format:
    head = file.read(0, min(_HEAD, file.size))
    for format_ in FORMATS:
        if format_.sniff(head, file):
            return format_
    what, hint = describe(head, file.size, file.path)
    if file.path.suffix == ".safetensors" and "no format that" in what:
        return safetensors.FORMAT  # it says itself what is wrong with its header
    raise UnknownFormat(f"not a checkpoint that can be read: {what}", where=file.path, hint=hint)


def open(path: StrPath, *, format: str | None = None) -> Checkpoint:
    """Open a checkpoint: headers and pickles are read, tensors stay in the file until they are asked for.

    Nothing in the file is run or imported. The file stays open as long as something refers to its tensors.

    Raises:
        UnknownFormat: it is no checkpoint.
        Malformed: it contradicts itself or is cut short.
        Unreadable: it cannot be opened.
    """
    file = File(path)
    chosen = find_format(format) if format else _detect(file)
    try:
        return chosen.open(file)
    except CheckpointError as error:
        error.where = error.where or str(path)
        raise
    except (RecursionError, MemoryError, OverflowError) as error:
        raise CannotCarry(f"is too deep or too large to be read ({type(error).__name__})", where=path) from None


@dataclass(frozen=True, slots=True)
class Plan:
    """What will be written, before a byte is. Also the receipt, once it is.

    Attributes:
        path: the target.
        format: name of its format.
        nbytes: its exact size.
        steps: what the passes did, a line each.
        form: what changes in form, without loss of content.
        content: content that is lost, as was allowed.
        objects: classes beyond plain data that are carried, as was asked for, with their numbers.
        how: how the bytes come about.
    """

    path: Path
    format: str
    nbytes: int
    steps: tuple[str, ...]
    form: tuple[str, ...]
    content: tuple[str, ...]
    objects: dict[str, int]
    how: str
    draft: Draft

    def as_json(self) -> dict[str, Any]:
        """The receipt as plain data."""
        return {
            "path": str(self.path),
            "format": self.format,
            "bytes": self.nbytes,
            "steps": list(self.steps),
            "form": list(self.form),
            "lost": list(self.content),
            "objects": self.objects,
            "how": self.how,
        }


def target_format(ckpt: Checkpoint, path: StrPath, format: str | None = None) -> Format:
    """The format that a checkpoint is written in: as asked for, as the suffix says, or as it came."""
    if format:
        return find_format(format)
    suffix = Path(path).suffix.lower()
    if suffix in _NOT_WRITTEN:
        raise RuleError(
            f"ckptool does not write {suffix} files", where=path, hint="choose another suffix, or a format with --to"
        )
    if suffix == ".safetensors":
        return safetensors.FORMAT
    if ckpt.format == "torch-legacy":
        return torch_legacy.FORMAT
    if ckpt.format == "safetensors" and suffix not in torch_zip.FORMAT.suffixes:
        return safetensors.FORMAT
    return torch_zip.FORMAT


def plan(
    ckpt: Any,
    path: StrPath,
    *,
    format: str | None = None,
    allow_loss: bool = False,
    keep_objects: bool = False,
    for_torch: str | None = None,
) -> Plan:
    """Work out what writing CKPT to PATH would give, without writing.

    Args:
        ckpt: a Checkpoint, or a dict of torch tensors.
        path: the target; its suffix chooses the format if FORMAT does not.
        format: name of the format.
        allow_loss: accept that the format cannot hold all content.
        keep_objects: write objects of any class back to a pickle as they came.
        for_torch: "torch==1.6" refuses what that version cannot load.

    Raises:
        CannotCarry: content would be lost, an object would be written that may run code when it is loaded, or
            FOR_TORCH cannot load it.
    """
    if not isinstance(ckpt, Checkpoint):
        from ..model import from_torch

        ckpt = from_torch(ckpt)
    chosen = target_format(ckpt, path, format)
    if chosen.draft is None:
        raise RuleError(f"ckptool reads {chosen.name} and does not write it", where="--to", hint="ckptool formats")
    if ckpt.sealed and chosen.pickles:
        out = beside(ckpt.where, "weights", ".safetensors")
        raise CannotCarry(
            ckpt.sealed,
            where=ckpt.where,
            hint=f"ckptool extract-weights {shell_quote(printable(ckpt.where))} {out} takes the weights out of it",
        )
    if for_torch is not None:
        _require_readable(ckpt, chosen, for_torch)
    ckpt = settle_ties(ckpt)
    try:
        draft = chosen.draft(ckpt)
    except CheckpointError as error:
        error.where = error.where or ckpt.where
        raise
    content = (
        *draft.content,
        *ckpt.lost_content,
        *(() if chosen is torch_zip.FORMAT else torch_zip.extra_members(ckpt)),
    )
    if content and not allow_loss:
        raise _loss(ckpt, chosen, content)
    objects = beyond_plain_data(ckpt.root) if chosen.pickles else {}
    if objects and not keep_objects:
        raise _live_objects(ckpt, dict(objects))
    form = (*draft.form, *ckpt.lost_form)
    if not ckpt.order_preserved:
        form = (*form, "the keys stand in the order of the old header; how they were saved is not known")
    return Plan(Path(path), chosen.name, draft.nbytes, ckpt.history, form, content, dict(objects), draft.how, draft)


def save(
    ckpt: Any,
    path: StrPath,
    *,
    format: str | None = None,
    overwrite: bool = False,
    backup: str | None = None,
    allow_loss: bool = False,
    keep_objects: bool = False,
    for_torch: str | None = None,
    progress: Callable[[int], None] | None = None,
) -> Plan:
    """Write a checkpoint (or a dict of torch tensors) to PATH, whole or not at all.

    The file that the checkpoint came from may be the target: it is replaced when the new one is complete and on disk.

    Args:
        ckpt, path, format, allow_loss, keep_objects, for_torch: see `plan`.
        overwrite: allow PATH to exist.
        backup: suffix under which an old PATH is kept.
        progress: called with the number of bytes, each time some were written.

    Returns:
        What was written, with what changed in form and what was lost.

    Raises:
        CannotCarry: as `plan`.
        OutputExists, Unwritable: the target may not be, or cannot be, written.
    """
    check_target(path, overwrite=overwrite)
    receipt = plan(ckpt, path, format=format, allow_loss=allow_loss, keep_objects=keep_objects, for_torch=for_torch)
    write(receipt, overwrite=overwrite, backup=backup, progress=progress)
    return receipt


def write(
    planned: Plan,
    *,
    overwrite: bool = False,
    backup: str | None = None,
    progress: Callable[[int], None] | None = None,
) -> None:
    """Carry out a plan."""
    pieces = planned.draft.pieces
    mode = next((piece.file.mode & 0o777 for piece in pieces if isinstance(piece, FileRange)), 0o666)  # as cp does
    with replacing(planned.path, size=planned.nbytes, overwrite=overwrite, backup=backup, mode=mode) as out:
        write_pieces(out, pieces, progress)


def settle_ties(ckpt: Checkpoint) -> Checkpoint:
    """Hold ties that a note claims against the bytes: what is equal becomes one storage, what differs is set apart."""
    ties: dict[int, Storage] = {}
    broken: list[str] = []

    def settled(storage: Storage) -> Storage:
        if storage.tie is None:
            return storage
        first = ties.setdefault(id(storage.tie), storage)
        if first is not storage and not same_bytes(first.source, storage.source):
            broken.append(f"note: {printable(storage.key)} is no longer tied to {printable(first.key)}: they differ")
            return replace(storage, tie=None)
        return alone.setdefault(id(storage.tie), replace(first, tie=None))

    alone: dict[int, Storage] = {}
    if all(storage.tie is None for storage in ckpt.storages()):
        return ckpt
    done = map_storages(ckpt, settled)
    return done.noting(*broken)


#: Kind of tensor -> the option that makes dense ones of it.
_DECODED = {"sparse": "--to-dense", "quantized": "--dequantize"}


def _require_readable(ckpt: Checkpoint, chosen: Format, for_torch: str) -> None:
    """Refuse what a version of torch cannot load. Other programs read safetensors files, whatever the torch."""
    version = parse_target(for_torch)
    lines = impossible(ckpt.root, version, zipped=chosen is torch_zip.FORMAT) if chosen.pickles else []
    if lines:
        kinds = {other.kind.split("_")[0] for _, other in ckpt.other_tensors()}
        ways = [f"{option} makes dense tensors of {kind} ones" for kind, option in _DECODED.items() if kind in kinds]
        if lines[0].startswith("the zip archive"):
            ways.insert(0, "-t legacy writes what every torch reads")
        if any("numpy" in line for line in lines):
            ways.append("ckptool clean makes tensors of numpy arrays")
        raise CannotCarry(
            f"torch {version[0]}.{version[1]} cannot load all of it:",
            where=ckpt.where,
            evidence=lines,
            hint="; ".join(ways) or None,
        )


def _loss(ckpt: Checkpoint, chosen: Format, content: tuple[str, ...]) -> CannotCarry:
    outer = [state_dict.path for state_dict in ckpt.state_dicts()]
    kinds = {other.kind.split("_")[0] for _, other in ckpt.other_tensors()} if not chosen.pickles else set()
    ways = [f"{option} makes dense tensors of {kind} ones" for kind, option in _DECODED.items() if kind in kinds]
    hint = "; ".join([*ways, "--allow-loss writes the rest"])
    if not chosen.pickles and len(outer) == 1 and outer[0]:
        hint = f"--extract keeps the weights at {printable(outer[0], 60)} only; a .pth file keeps everything"
    return CannotCarry(
        f"{chosen.name} cannot hold all of it; these would be lost:",
        where=ckpt.where,
        evidence=[*content[:12], *([f"… and {len(content) - 12:,} more"] if len(content) > 12 else [])],
        hint=hint,
    )


def _live_objects(ckpt: Checkpoint, objects: dict[str, int]) -> CannotCarry:
    named = sorted(objects.items(), key=lambda item: -item[1])
    weights = ckpt.state_dicts()
    where = shell_quote(printable(ckpt.where)) if ckpt.path else "IN"
    ways = ["--keep-objects writes them as they came (whoever loads the file runs what they name)"]
    if weights and weights[0].path:
        at = f" --at {shell_quote(printable(weights[0].path))}" if len(weights) > 1 else ""
        out = beside(ckpt.where, "weights")
        ways.insert(0, f"ckptool convert {where} {out} --extract{at} keeps the weights only")
    return CannotCarry(
        "holds objects that may run code when a pickle with them is loaded:",
        where=ckpt.where,
        evidence=[f"{printable(name, 100)} ({count:,})" for name, count in named[:12]]
        + ([f"… and {len(named) - 12:,} more classes"] if len(named) > 12 else []),
        hint="; ".join(ways),
    )
