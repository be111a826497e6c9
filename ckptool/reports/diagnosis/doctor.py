"""What is wrong with a checkpoint, or behind an error message, and what to type, as a value."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ...checkpoint import Checkpoint, StateDict
from ...disk.files import StrPath, beside, shell_path, shell_quote
from ...disk.urls import open_file
from ...errors import CheckpointError, Unreadable, counted, printable
from ...formats import NothingLeft, format_of, salvage
from ...formats import open as open_checkpoint
from ...formats.base import AnyFormat, Format
from ...formats.sharded import missing_beside
from ...formats.torch_zip import FORMAT as TORCH_ZIP
from ...formats.torch_zip import NO_VERSION
from ...inert.allowed import PLAIN, named_globals
from ...tensor import LazyTensor, Storage, distinct, totals
from ...tree import ByteString, Global, Object, Trail, address, children, component_text, walk
from ...weights import is_training_state
from ..scanning.scan import scan
from ..verify import verify
from .fits import Fit, best_fit
from .knowledge import first_byte, lessons_for
from .leftovers import left_behind


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that was found.

    Attributes:
        name: what kind of thing, in a word, the same for all files ("wrapped", "device").
        what: what was found, in a sentence.
        trouble: it would be in the way of `model.load_state_dict(torch.load(FILE))` on a machine without a GPU, or
            is damage or a danger. Other findings are worth knowing.
        commands: (command, what for) that help with this.
        actions: what else helps.
    """

    name: str
    what: str
    trouble: bool = True
    commands: list[tuple[str, str]] = field(default_factory=list)
    actions: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What is wrong with a file, or behind a message.

    Attributes:
        path: the file, or "".
        kind: what the file is, in a phrase.
        findings: what was found, the most serious first.
        cure: the commands that make the file load, in order; empty if there are none or none is needed.
        fit: how it fits the model, if one was given.
    """

    path: str
    kind: str
    findings: list[Finding]
    cure: list[str]
    fit: Fit | None = None

    @property
    def healthy(self) -> bool:
        """Whether nothing is in the way."""
        return not any(one.trouble for one in self.findings) and (self.fit is None or self.fit.fits)

    def as_json(self) -> dict[str, Any]:
        """The document that `ckptool doctor --json` prints."""
        return {"healthy": self.healthy, **asdict(self)}


def explain(text: str, path: StrPath | None = None) -> list[Finding]:
    """What an error message of torch, safetensors, Lightning and others means, and what helps.

    Args:
        text: the message, or a log with one in it.
        path: the file that it was about, to be put into the commands.
    """
    file = shell_path(path) if path is not None else "FILE"
    out = beside(path, "fixed") if path is not None else "OUT"
    found = []
    for lesson in lessons_for(text):
        byte = first_byte(text) if lesson.name in ("first-byte", "weights-only") else None
        means = lesson.means + (f" {byte[0].upper()}{byte[1:]}." if byte else "")
        named = dict.fromkeys(re.findall(r"size mismatch for ([\w.-]+):", text))
        drop = " ".join(f"--drop {shell_quote(key, 200)}" for key in list(named)[:8]) or "--drop fc"
        told = (command.format(file=file, out=out).replace("--drop fc", drop) for command in lesson.commands)
        commands = [(command, "") for command in told]
        trouble = lesson.name != "nothing-missing"
        found.append(Finding(lesson.name, means, trouble, commands, list(lesson.actions)))
    return found


def doctor(
    path: StrPath,
    model: str | None = None,
    *,
    at: str | None = None,
    progress: Callable[[int], None] | None = None,
) -> Diagnosis:
    """Say what a file is, what is wrong with it, and what makes it load.

    Every byte is read (see `ckptool.verify`); nothing in it runs.

    Args:
        path: the file.
        model: code to check it against, as in `ckptool.reports.diagnosis.fits.fits`. Importing it runs it.
        at: where the weights are in the file, if there are several state dicts.
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
        unopened = _unopened(path, error)
        unopened.findings.extend(_left_behind(path))
        return unopened
    weights, tree = _weights(ckpt, at), _look_through(ckpt)
    findings = [
        *_dangers(path),
        *_damage(ckpt, path, progress),
        *_in_the_way(ckpt, weights, tree),
        *_worth_knowing(ckpt, tree),
        *_left_behind(path),
    ]
    found = best_fit(ckpt, model, at) if model is not None else None
    for line in found.optimizers if found is not None else ():
        command = f"ckptool extract-weights {shell_path(path)} {beside(path, 'weights')}"
        findings.append(Finding("optimizer", line, False, [(command, "for a new optimizer")]))
    cure = _cure(ckpt, weights, findings, found)
    kind = f"{ckpt.format}" + (
        f", {counted(weights.parameters, 'parameter')} in {counted(len(weights), 'tensor')}" if weights else ""
    )
    return Diagnosis(str(path), kind, sorted(findings, key=lambda one: not one.trouble), cure, found)


def _weights(ckpt: Checkpoint, at: str | None) -> StateDict | None:
    try:
        return ckpt.state_dict(at)
    except CheckpointError:
        return None


def _left_behind(path: StrPath) -> Iterator[Finding]:
    """What runs of ckptool that were cut off left beside the file, or in the folder."""
    for one in left_behind(path):
        name = printable(one.path.name, 255)
        if one.lives:
            yield Finding("leftover", f"another run of ckptool is writing {name} now", trouble=False)
            continue
        where = shell_path(os.path.relpath(one.path.parent))
        command = (
            f"ckptool doctor {where} --remove-leftovers",
            "which removes what runs that were cut off left behind",
        )
        what = f"a run of ckptool that was cut off left {name} ({counted(one.nbytes, 'byte')})"
        yield Finding("leftover", what, trouble=False, commands=[command])


@dataclass(frozen=True, slots=True)
class _Tree:
    """What one walk through a checkpoint shows.

    Attributes:
        storages: all of them.
        tensors: how many bytes the tensors in it take, those that are one counted once.
        classes: how many objects there are of each class.
        named: the classes and functions that it names.
        python_2: strings of Python 2 are in it.
        on_gpu: the place of the first tensor that belongs on the CPU and is tagged with a GPU, or "".
    """

    storages: list[Storage]
    tensors: int
    classes: Counter[str]
    named: list[str]
    python_2: bool
    on_gpu: str


def _look_through(ckpt: Checkpoint) -> _Tree:
    storages: list[Storage] = []
    tensors: list[LazyTensor] = []
    others: list[tuple[Trail, Any]] = []
    on_gpu = ""
    for trail, node in walk(ckpt.root):
        if isinstance(node, LazyTensor):
            tensors.append(node)
            storages.append(node.storage)
            if not on_gpu and node.location != "cpu" and _belongs_on_cpu(trail, node):
                on_gpu = address(trail)
        elif isinstance(node, Object | Global | ByteString):
            others.append((trail, node))
        elif isinstance(node, Storage):
            storages.append(node)
    return _Tree(
        list(dict.fromkeys(storages)),
        totals(distinct(tensors))[1],
        Counter(node.class_name for _, node in others if isinstance(node, Object)),
        list(named_globals(ckpt.root, others)),
        any(isinstance(node, ByteString) for _, node in others),
        on_gpu,
    )


# -- files that do not open


def _unopened(path: StrPath, error: CheckpointError) -> Diagnosis:
    """Why a file does not open, and whether `repair` helps."""
    what = error.what.rstrip(":") + (f" ({'; '.join(error.evidence[:2])})" if error.evidence else "")
    actions = [error.hint] if error.hint else []
    file, out = shell_path(path), beside(path, "repaired")
    again = "copy or download it again if there is a whole one"
    cure: list[str] = []
    try:
        found = salvage(path)
    except CheckpointError as refused:
        finding = Finding("unreadable", what, actions=actions)
        if isinstance(refused, NothingLeft):
            finding.actions.append(refused.what)
    else:
        command = f"ckptool repair {file} {out}"
        if not (found.wrong or found.lost):
            finding = Finding("unreadable", what, actions=actions)
        elif not found.lost:
            finding = Finding("repairable", what, commands=[(command, "which loses nothing")])
        elif found.hopeless:
            none = f"none of its {counted(found.tensors, 'tensor')} is whole, so none can be saved"
            finding = Finding("damaged", f"{what}; {none}", actions=[again])
        else:
            lost = f"{found.kept:,} of {counted(found.tensors, 'tensor')} are whole; lost: " + ", ".join(
                printable(name, 60) for name, _ in found.lost[:6]
            )
            lost += f" and {len(found.lost) - 6:,} more" if len(found.lost) > 6 else ""
            command += " --allow-loss"
            finding = Finding("damaged", f"{what}; {lost}", True, [(command, "to save what is whole")], [again])
        cure = [command, f"ckptool doctor {out}"] if finding.commands else []
    broken = open_file(path)
    size = broken.size
    broken.close()
    return Diagnosis(str(path), f"{size:,} bytes", [finding], cure)


# -- files that open


def _dangers(path: StrPath) -> Iterator[Finding]:
    try:
        found = scan(path, opened=True)
    except CheckpointError:  # a folder
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


def _damage(ckpt: Checkpoint, path: StrPath, progress: Callable[[int], None] | None) -> Iterator[Finding]:
    try:
        found = verify(ckpt, progress=progress)
    except CheckpointError as error:
        yield Finding("damaged", error.what)
        return
    if found.damage:
        more = f" and {len(found.damage) - 3:,} more" if len(found.damage) > 3 else ""
        what = f"bytes have changed since it was saved, which torch.load does not notice: {'; '.join(found.damage[:3])}"
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
    command = f"ckptool repair {shell_path(path)} {beside(path, 'rest')} --allow-loss"
    return f"; {found.kept:,} of {counted(found.tensors, 'tensor')} are whole", [(command, "to keep what is whole")]


def _in_the_way(ckpt: Checkpoint, weights: StateDict | None, tree: _Tree) -> Iterator[Finding]:
    """What keeps a plain model on a machine without a GPU from loading it."""
    file = shell_path(ckpt.where)
    found = ckpt.state_dicts()
    if ckpt.part_of:
        yield _one_part(ckpt)
    if not found:
        yield Finding("no-weights", "there is no state dict in it", commands=[(f"ckptool inspect {file}", "")])
    elif weights is None:
        paths = ", ".join(printable(one.path, 40) for one in found[:6])
        yield Finding("several", f"it holds {len(found)} state dicts: {paths}; --at names one", False)
    for one in [weights] if weights else found:
        if one.wrappers:
            said = " and ".join(
                f"{name!r} in {count:,} of {counted(len(one), 'key')}" for name, count in one.wrappers.items()
            )
            where = f" at {printable(one.path, 40)}" if len(found) > 1 else ""
            yield Finding("wrapped", f"the names{where} are those of a wrapped model: {said}")
        placeholders = sum(t.shape in ((0,), (1,)) for t in one.tensors.values())
        if placeholders > 4 and placeholders == len(one.tensors):
            what = "all its tensors have 0 or 1 elements: placeholders of DeepSpeed ZeRO-3"
            yield Finding("zero-3", what, actions=["the weights are in the *_optim_states.pt files beside it"])
    if weights is not None and weights.model is not None:
        what = f"a whole model is pickled in it (class {printable(weights.model.class_name, 60)}), not its weights"
        yield Finding("pickled-model", what)
    elif weights is not None and weights.path:
        yield Finding("envelope", f"the weights are one entry of it, {printable(weights.path, 60)!r}", False)
    places = Counter(storage.location for storage in tree.storages)
    if any(place not in ("cpu", "meta") for place in places):
        said = ", ".join(f"{printable(place, 20)} x{count:,}" for place, count in places.most_common(6))
        yield Finding("device", f"its storages are tagged with devices that must be there: {said}")
    yield from _beyond_weights_only(ckpt, tree)


def _one_part(ckpt: Checkpoint) -> Finding:
    missing = missing_beside(Path(ckpt.where))
    if missing:
        names = ", ".join(printable(name, 80) for name in missing[:3]) + (", …" if missing[3:] else "")
        return Finding("part", f"it is {ckpt.part_of}; not beside it: {names}", actions=["fetch the others"])
    folder = Path(ckpt.where).parent
    command = f"ckptool convert {shell_path(folder)} {beside(ckpt.where, 'whole')}"
    return Finding("part", f"it is {ckpt.part_of}", True, [(command, "which takes all of them")])


def _beyond_weights_only(ckpt: Checkpoint, tree: _Tree) -> Iterator[Finding]:
    if NO_VERSION in ckpt.warnings:
        yield Finding("no-version", NO_VERSION)
    if ckpt.sealed:
        yield Finding("sealed", printable(ckpt.sealed, 200))
        return
    suffix = Path(ckpt.where).suffix.lower()
    loader = _kind(ckpt).loader
    if loader == "safetensors":
        if suffix in TORCH_ZIP.suffixes:
            what = f"it is a safetensors file, which torch.load does not read, under the name of a {suffix} file"
            yield Finding("misnamed", what, actions=["or load it with safetensors.torch.load_file"])
        return
    if suffix == ".safetensors":
        yield Finding("misnamed", f"it is a {ckpt.format} file, which safetensors does not read, in spite of its name")
    if loader == "pickle":
        yield Finding("old-container", f"a {ckpt.format} file, which torch.load reads without weights_only at most")
    beyond = [name for name in tree.named if name not in PLAIN]
    if beyond:
        said = ", ".join(printable(name, 60) for name in sorted(beyond, key=lambda name: -tree.classes[name])[:4])
        more = f" and {len(beyond) - 4:,} more" if len(beyond) > 4 else ""
        yield Finding("weights-only", f"torch.load refuses it with weights_only=True, since it names {said}{more}")


def _worth_knowing(ckpt: Checkpoint, tree: _Tree) -> Iterator[Finding]:
    file = shell_path(ckpt.where)
    kind = _kind(ckpt)
    mapped = kind.mapped and kind.loader == "weights_only"
    if mapped and isinstance(kind, Format) and any(hasattr(storage.source, "packed") for storage in tree.storages):
        command = f"ckptool repair {file} {beside(ckpt.where, 'repaired')}"
        yield Finding("compressed", "it is compressed, so torch cannot map it (mmap=True)", False, [(command, "")])
    if not kind.mapped:
        command = f"ckptool convert {file} {beside(ckpt.where, 'zip')} -t torch-zip"
        what = "a legacy file: torch cannot map it (mmap=True)"
        yield Finding("legacy", what, False, [(command, "to make it one that can be mapped")])
    if tree.python_2:
        yield Finding("python-2", "strings of Python 2 are in it; torch.load may need encoding='latin1'", False)
    used, stored = tree.tensors, sum(storage.nbytes for storage in tree.storages)
    if stored > 2 * used and stored - used > 1 << 20:
        what = f"its tensors use {used:,} of {stored:,} stored bytes: views of larger ones were saved"
        yield Finding("views", what, False, [(f"ckptool convert {file} OUT.safetensors", "which stores what is used")])
    training = _training_bytes(ckpt)
    if training * 3 > ckpt.nbytes > 1 << 20:
        yield Finding("training-state", f"{training:,} of {ckpt.nbytes:,} bytes are training state", False)
    if tree.on_gpu:
        what = "states of random generators and steps of Adam belong on the CPU"
        yield Finding("cpu-state", f"{printable(tree.on_gpu, 60)} is tagged with a GPU; {what}", False)


def _training_bytes(ckpt: Checkpoint) -> int:
    tops = {id(child): child for part, child in children(ckpt.root) if is_training_state(component_text(part))}
    nodes = (node for child in tops.values() for _, node in walk(child))
    return totals(distinct(node for node in nodes if isinstance(node, LazyTensor)))[1]


#: Components of a path, the last of them, that are looked at.
_NEAR = 32


def _belongs_on_cpu(trail: Trail, tensor: LazyTensor) -> bool:
    if tensor.dtype.name != "uint8" and tensor.shape:
        return False
    parts: list[str] = []
    while trail is not None and len(parts) < _NEAR:
        trail, component = trail
        parts.append(str(component))
    rng = tensor.dtype.name == "uint8" and any("rng" in part.lower() for part in parts)
    return rng or (parts[:1] == ["step"] and not tensor.shape and "state" in parts)


# -- the cure


def _cure(ckpt: Checkpoint, weights: StateDict | None, findings: list[Finding], fit: Fit | None) -> list[str]:
    """The command that takes all that is in the way out of it at once."""
    names = {one.name for one in findings if one.trouble}
    if "no-version" in names:  # the first of several, then: what is written has it
        repaired = beside(ckpt.where, "repaired")
        again = [f"ckptool doctor {repaired}"] if len(names) > 1 else []
        return [f"ckptool repair {shell_path(ckpt.where)} {repaired}", *again]
    file, out = shell_path(ckpt.where), beside(ckpt.where, "fixed")
    on_cpu = ["--map-location", "cpu"] if "device" in names else []
    if fit is not None and not fit.fits:
        if not fit.commands:
            return []
        command = fit.commands[0][0]
        if " convert " in command or not on_cpu:
            extract = ["--extract"] if "weights-only" in names and "--extract" not in command else []
            return [" ".join([command, *extract, *on_cpu])]
        return [command]
    several = len(ckpt.state_dicts()) > 1 and weights is not None
    at = ["--at", shell_quote(weights.path, 200)] if several and weights is not None else []
    if weights is None and ckpt.state_dicts() and names & {"wrapped", "device", "weights-only"}:
        return [_one_of_several(ckpt, one, on_cpu) for one in ckpt.state_dicts()[:4]]
    wrapped = ["--unwrap"] if "wrapped" in names and weights is not None else []
    inner = weights is not None and (bool(weights.path) or weights.model is not None)
    if "misnamed" in names:
        kind = (
            ["-t", "torch-zip", *wrapped]
            if _kind(ckpt).loader == "safetensors"
            else ["--extract", *wrapped, *on_cpu, *at]
        )
        return [" ".join(["ckptool convert", file, out, *kind])]
    objects = names & {"weights-only", "pickled-model", "code-execution", "sealed", "old-container"}
    if not (wrapped or on_cpu or objects):
        return []
    if (objects and inner) or "sealed" in names or "pickled-model" in names:
        return [" ".join(["ckptool convert", file, out, "--extract", *wrapped, *on_cpu, *at, *_container(ckpt)])]
    if not objects:
        short = wrapped and weights is not None and list(weights.wrappers) == ["module."] and not on_cpu
        if short and weights is not None and all(key.startswith("module.") for key in weights):
            return [" ".join(["ckptool strip-prefix", file, out, *at])]
        return [" ".join(["ckptool convert", file, out, *wrapped, *on_cpu, *at])]
    if "old-container" in names and not names & {"weights-only", "code-execution"}:
        return [" ".join(["ckptool convert", file, out, *wrapped, *on_cpu, *at, *_container(ckpt)])]
    clean = beside(ckpt.where, "clean") if wrapped or on_cpu else out
    first = f"ckptool clean {file} {clean}"
    return [first] if clean == out else [first, " ".join(["ckptool convert", clean, out, *wrapped, *on_cpu, *at])]


def _one_of_several(ckpt: Checkpoint, one: StateDict, on_cpu: list[str]) -> str:
    file, out = shell_path(ckpt.where), beside(ckpt.where, re.sub(r"\W+", "-", one.path) or "root")
    wrapped = ["--unwrap"] if one.wrappers else []
    at = shell_quote(one.path, 200)
    return " ".join(["ckptool convert", file, out, "--extract", "--at", at, *wrapped, *on_cpu, *_container(ckpt)])


def _container(ckpt: Checkpoint) -> list[str]:
    """The format has to be named where that of the file cannot be written."""
    return ["-t", "torch-zip"] if _kind(ckpt).draft is None else []


def _kind(ckpt: Checkpoint) -> AnyFormat:
    kind = format_of(ckpt)
    assert kind is not None  # it was opened
    return kind
