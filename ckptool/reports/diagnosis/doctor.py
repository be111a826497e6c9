"""What is wrong with a checkpoint, or behind an error message, and what to type, as a value."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ...adapters.adapter_layers import is_adapter
from ...checkpoint import Checkpoint, StateDict, around
from ...disk.addresses import is_url
from ...disk.files import StrPath, beside, is_file, is_folder, shell_path, shell_quote
from ...disk.journals import Journaled, has_journal
from ...disk.urls import open_file
from ...errors import CheckpointError, UnknownFormat, Unreadable, counted, printable
from ...formats import NothingLeft, salvage
from ...formats import open as open_checkpoint
from ...formats.base import FolderFormat, Format
from ...inert.allowed import PLAIN
from ...keys import common_prefix
from ...tensor import LazyTensor, distinct, totals, views_of
from ...tree import children, component_text, walk
from ...weights import is_training_state
from ..scanning.scan import Scan, scan
from ..verify import Verification, verify
from .checked import checked
from .cures import cure, keeping_all
from .finding import Diagnosis, Finding
from .fits import best_fit
from .in_folders import in_folder
from .in_headers import Tree, in_headers, kind_of, look_through, weights_in
from .leftovers import left_behind
from .obstacles import BY_NAME, strangers
from .rescue import repairing


def doctor(
    path: StrPath,
    model: str | None = None,
    *,
    at: str | None = None,
    kwargs: Mapping[str, Any] | None = None,
    progress: Callable[[int], None] | None = None,
) -> Diagnosis:
    """Say what a file is, what is wrong with it, and what makes it load.

    Every byte is read (see `ckptool.verify`); nothing in it runs.

    Args:
        path: the file.
        model: code to check it against, as in `ckptool.reports.diagnosis.fits.fits`. Importing it runs it.
        at: where the weights are in the file, if there are several state dicts.
        kwargs: arguments for the class or function that makes the model.
        progress: called with the number of bytes that were read, each time.

    Raises:
        Unreadable: the file cannot be opened at all.
        CheckpointError: the model cannot be built.
    """
    try:
        ckpt = open_checkpoint(path)
    except Unreadable:
        raise
    except CheckpointError as error:
        unopened = _unopened_folder(path, error) if is_folder(path) else _unopened(path, error)
        unopened.findings.extend(_left_behind(path))
        return unopened
    weights, tree = weights_in(ckpt, at), look_through(ckpt)
    scanned, read = _scanned(path), _read(ckpt, progress)
    findings = [
        *_dangers(path, scanned),
        *_damage(path, read),
        *in_headers(ckpt, weights, tree),
        *_worth_knowing(ckpt, weights, tree),
        *_left_behind(path),
    ]
    whole = read if isinstance(read, Verification) else None
    well = checked(ckpt, kind_of(ckpt), weights, {one.name for one in findings}, whole, scanned)
    found = best_fit(ckpt, model, at, kwargs) if model is not None else None
    for line in found.optimizers if found is not None else ():
        command = f"ckptool extract-weights {shell_path(path)} {beside(path, 'weights')}"
        findings.append(Finding("optimizer", line, False, [(command, "for a new optimizer")]))
    if found is not None and found.fits:  # the code of the model knows better
        findings = [one for one in findings if one.name not in BY_NAME | {"prefix"}]
        weights = weights_in(ckpt, found.at)
    names = {one.name for one in findings if one.trouble}
    if (other := keeping_all(ckpt, weights, names)) is not None:
        listed = around(ckpt, weights) if weights is not None else []
        more = ", …" if listed[_BESIDE:] else ""
        what = f"beside the weights: {', '.join(listed[:_BESIDE])}{more}"
        findings.append(Finding("beside", what, False, [other]))
    kind = f"{ckpt.format}" + (
        f", {counted(weights.parameters, 'parameter')} in {counted(len(weights), 'tensor')}" if weights else ""
    )
    commands = cure(ckpt, weights, findings, found)
    return Diagnosis(str(path), kind, sorted(findings, key=lambda one: not one.trouble), commands, found, well)


#: Entries beside the weights that are named.
_BESIDE = 6


def _left_behind(path: StrPath) -> Iterator[Finding]:
    """What runs of ckptool that were cut off left beside the file, or in the folder."""
    if not is_url(path) and is_file(path) and has_journal(path):
        file = open_file(path)
        for note in file.notes:
            yield Finding("patch", note, trouble=isinstance(file, Journaled))
        file.close()
    for one in left_behind(path):
        name = printable(one.path.name, 255)
        if one.lives:
            yield Finding("leftover", f"another run of ckptool is writing {name} now", trouble=False)
            continue
        where = shell_path(os.path.relpath(one.path.parent))
        command = (
            f"ckptool doctor {where} --remove-leftovers",
            "to remove what interrupted runs left behind",
        )
        what = f"an interrupted run of ckptool left {name} ({counted(one.nbytes, 'byte')})"
        yield Finding("leftover", what, trouble=False, commands=[command])


# -- files that do not open


def _unopened_folder(path: StrPath, error: CheckpointError) -> Diagnosis:
    """What is in a folder that is no checkpoint, or why it is none that can be read."""
    found = list(in_folder(path))
    if not isinstance(error, UnknownFormat):  # it is a checkpoint: of its parts, those that are damaged count
        found = [one for one in found if one.name == "damaged" and not one.what.startswith(f"{_part(path, error)}: ")]
    if not found or not isinstance(error, UnknownFormat):
        part = _part(path, error)
        what = (f"{part}: " if part else "") + error.what.rstrip(":")
        what += f" ({'; '.join(error.evidence[:3])})" if error.evidence else ""
        found.insert(0, Finding("unreadable", what, actions=[error.hint] if error.hint else []))
    return Diagnosis(str(path), "a folder", found, [])


def _part(path: StrPath, error: CheckpointError) -> str:
    """The name of the file in the folder PATH that an error is about, or ""."""
    at = os.path.relpath(error.where, path) if error.where and not is_url(error.where) else os.curdir
    return "" if at == os.curdir or at.startswith(os.pardir) else printable(at, 100)


def _unopened(path: StrPath, error: CheckpointError) -> Diagnosis:
    """Why a file does not open, and whether `repair` helps."""
    what = error.what.rstrip(":") + (f" ({'; '.join(error.evidence[:2])})" if error.evidence else "")
    actions = [error.hint] if error.hint else []
    out = beside(path, "repaired")
    again = "copy or download it again if there is a whole one"
    cure: list[str] = []
    try:
        found = salvage(path)
    except CheckpointError as refused:
        finding = Finding("unreadable", what, actions=actions)
        if isinstance(refused, NothingLeft):
            finding.actions.append(refused.what)
    else:
        command = repairing(path, found)
        if found.lost and found.hopeless:
            none = f"none of its {counted(found.tensors, 'tensor')} is whole, so none can be saved"
            finding = Finding("damaged", f"{what}; {none}", actions=[again])
        elif command is None:
            finding = Finding("unreadable", what, actions=actions)
        elif not found.lost:
            finding = Finding("repairable", what, commands=[(command, "to repair it without loss")])
        else:
            lost = f"{found.kept:,} of {counted(found.tensors, 'tensor')} are whole; lost: " + ", ".join(
                printable(name, 60) for name, _ in found.lost[:6]
            )
            lost += f" and {len(found.lost) - 6:,} more" if len(found.lost) > 6 else ""
            finding = Finding("damaged", f"{what}; {lost}", True, [(command, "to save what is whole")], [again])
        cure = [command, f"ckptool doctor {out}"] if command else []
    broken = open_file(path)
    size = broken.size
    broken.close()
    return Diagnosis(str(path), f"{size:,} bytes", [finding], cure)


# -- files that open


def _scanned(path: StrPath) -> Scan | None:
    try:
        return scan(path, opened=True)
    except CheckpointError:  # a folder
        return None


def _read(ckpt: Checkpoint, progress: Callable[[int], None] | None) -> Verification | CheckpointError:
    try:
        return verify(ckpt, progress=progress)
    except CheckpointError as error:
        return error


def _dangers(path: StrPath, found: Scan | None) -> Iterator[Finding]:
    if found is None:
        return
    bad = [one for one in found.findings if one.group == "code execution" and not one.name.startswith("torch.")]
    if bad:
        names = ", ".join(printable(one.name, 60) for one in bad[:4])
        yield Finding(
            "code-execution",
            f"unpickling it would call or import {names}: it may run anything",
            commands=[(f"ckptool scan {shell_path(path)}", "to see all of it; nothing runs")],
            actions=["do not load it with weights_only=False"],
        )


def _damage(path: StrPath, found: Verification | CheckpointError) -> Iterator[Finding]:
    if isinstance(found, CheckpointError):
        yield Finding("damaged", found.what)
        return
    if found.damage:
        more = f" and {len(found.damage) - 3:,} more" if len(found.damage) > 3 else ""
        what = f"bytes have changed since it was saved, and torch.load does not notice: {'; '.join(found.damage[:3])}"
        whole, command = _rest(path)
        yield Finding("bit-rot", what + more + whole, True, command, ["copy or download it again"])
    if found.doubts:
        more = f" and {len(found.doubts) - 3:,} more" if len(found.doubts) > 3 else ""
        yield Finding("odd-values", f"perhaps wrong: {'; '.join(found.doubts[:3])}{more}", False)


def _rest(path: StrPath) -> tuple[str, list[tuple[str, str]]]:
    """What `repair` would leave of a damaged file, and the command for it if that is anything."""
    try:
        found = salvage(path)
    except CheckpointError:  # of a format that is not repaired
        return "", []
    if not (found.wrong or found.lost):
        return "", []
    if found.hopeless:
        return f"; none of its {counted(found.tensors, 'tensor')} is whole", []
    command = repairing(path, found, "rest") or ""
    return f"; {found.kept:,} of {counted(found.tensors, 'tensor')} are whole", [(command, "to keep what is whole")]


def _common_prefix(weights: StateDict) -> str:
    """What all names begin with, if there are several modules below it and it is no wrapper's."""
    prefix = common_prefix(weights)
    if not prefix or weights.wrappers or weights.model is not None or strangers(weights):
        return ""
    inner = {
        key.removeprefix(f"{prefix}.").partition(".")[0] for key in weights if key.count(".") > prefix.count(".") + 1
    }
    return prefix if len(inner) > 1 else ""


def _worth_knowing(ckpt: Checkpoint, weights: StateDict | None, tree: Tree) -> Iterator[Finding]:
    file = shell_path(ckpt.where)
    kind = kind_of(ckpt)
    mapped = kind.mapped and kind.loader == "weights_only"
    if mapped and isinstance(kind, Format) and any(hasattr(storage.source, "packed") for storage in tree.storages):
        command = f"ckptool repair {file} {beside(ckpt.where, 'repaired')}"
        yield Finding(
            "compressed",
            "it is compressed, so torch cannot map it (mmap=True)",
            False,
            [(command, "to make a file that torch can map")],
        )
    if weights is not None and kind.loader == "other" and isinstance(kind, FolderFormat) and not kind.of_ranks:
        command = f"ckptool convert {file} {beside(ckpt.where, 'whole', '.pth')} --extract"
        what = f"its own loader reads it ({kind.name}), and torch.load does not"
        yield Finding("own-loader", what, False, [(command, "to make a plain file of its weights")])
    if not kind.mapped:
        command = f"ckptool convert {file} {beside(ckpt.where, 'zip')} -t torch-zip"
        what = "a legacy file: torch cannot map it (mmap=True)"
        allowed = all(
            name in PLAIN for name in tree.named
        )  # else it is cleaned or extracted, which makes it a zip, too
        commands = [(command, "to make a file that torch can map")] if allowed else []
        yield Finding("legacy", what, False, commands)
    if tree.python_2:
        yield Finding("python-2", "strings of Python 2 are in it; torch.load may need encoding='latin1'", False)
    if weights is not None and not is_adapter(weights) and (prefix := _common_prefix(weights)):
        out = beside(ckpt.where, "plain")
        at = ["--at", shell_quote(weights.path, 200)] if len(ckpt.state_dicts()) > 1 else []
        options = ["--extract"] if weights.path else []
        words = ["ckptool convert", file, out, *options, "--strip-prefix", shell_quote(f"{prefix}.", 200), *at]
        what = f"all names begin with {printable(prefix, 60)!r}, which is not the name of a known wrapper"
        unless = f"if the model's names do not begin with {printable(prefix, 60)!r}"
        yield Finding("prefix", what, False, [(" ".join(words), unless)])
    used, stored = _bytes_of(tree.tensors), sum(storage.nbytes for storage in tree.storages)
    if stored > 2 * used and stored - used > 1 << 20:
        what = f"its tensors use {used:,} of {stored:,} stored bytes: views of larger ones were saved"
        command = f"ckptool convert {file} {beside(ckpt.where, 'small')} --compact"
        yield Finding("views", what, False, [(command, "to store only what its tensors use")])
    training = _training_bytes(ckpt)
    if training * 3 > ckpt.nbytes > 1 << 20:
        yield Finding("training-state", f"{training:,} of {ckpt.nbytes:,} bytes are training state", False)
    if tree.on_gpu:
        what = "states of random generators and steps of Adam belong on the CPU"
        yield Finding("cpu-state", f"{printable(tree.on_gpu, 60)} is tagged with a GPU; {what}", False)


def _training_bytes(ckpt: Checkpoint) -> int:
    tops = {id(child): child for part, child in children(ckpt.root) if is_training_state(component_text(part))}
    nodes = (node for child in tops.values() for _, node in walk(child))
    return _bytes_of([node for node in nodes if isinstance(node, LazyTensor)])


def _bytes_of(tensors: Sequence[LazyTensor]) -> int:
    """How many bytes TENSORS take, those that are one counted once."""
    return totals(views_of(distinct(tensors)))[1]
