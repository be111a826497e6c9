"""What an error message means, and with the file at hand one plan that both of them choose."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ...checkpoint import Checkpoint, StateDict
from ...disk.files import StrPath
from ...disk.paths import beside, shell_path, shell_quote
from ...errors import CheckpointError
from ...formats import open as open_checkpoint
from ...keys.known_buffers import COMPUTED
from ...passes import recipes
from .cures import key_options, steps_of
from .doctor import doctor
from .finding import Diagnosis, Finding
from .first_bytes import first_byte
from .fits import by_names
from .lessons import lessons_for

#: Commands that only look. A plan is made of others.
_LOOKING = ("ckptool doctor ", "ckptool inspect ", "ckptool verify ", "ckptool scan ")
#: Bytes that a valid pickle may have.
_VALID = ("(0x47)", "(0x95)")


def explain(text: str, path: StrPath | None = None, model: str | None = None) -> list[Finding]:
    """What an error message of torch, safetensors, Lightning and others means, and what helps.

    Args:
        text: the message, or a log with one in it.
        path: the file that it was about, to be put into the commands.
        model: the code that it is loaded into, to be put into them.
    """
    file = shell_path(path) if path is not None else "FILE"
    out = beside(path, "fixed") if path is not None else "OUT"
    code = shell_path(model) if model is not None else "MODEL.py"
    key = shell_quote(_missing_entry(text) or "state_dict", 200)
    found = []
    for lesson in lessons_for(text):
        byte = first_byte(text) if lesson.name in ("first-byte", "weights-only") else None
        means = lesson.means
        if byte and any(valid in byte for valid in _VALID):
            means = "the pickle has an opcode that this torch does not read."
        means += f" {byte[0].upper()}{byte[1:]}." if byte else ""
        named = dict.fromkeys(re.findall(r"size mismatch for ([\w.-]+):", text))
        drop = " ".join(f"--drop {shell_quote(name, 200)}" for name in list(named)[:8]) or "--drop fc"
        told = (
            command.format(file=file, out=out, key=key).replace("--drop fc", drop).replace("MODEL.py", code)
            for command in lesson.commands
        )
        actions = [action.replace("{file}", file).replace("{out}", out) for action in lesson.actions]
        trouble = lesson.name != "nothing-missing"
        found.append(Finding(lesson.name, means, trouble, [(command, "") for command in told], actions))
    return found


def _missing_entry(text: str) -> str:
    """The key of a `KeyError`."""
    found = re.search(r"KeyError: ['\"]([\w.-]+)['\"]", text)
    return found[1] if found else ""


def advise(
    text: str,
    path: StrPath,
    model: str | None = None,
    *,
    at: str | None = None,
    kwargs: Mapping[str, Any] | None = None,
    progress: Callable[[int], None] | None = None,
) -> tuple[list[Finding], Diagnosis]:
    """What a message means, and what the file that it is about is, with one plan: the `cure` of the diagnosis.

    What the message names decides (the keys that are missing, the GPU that there is, the key that a script looks for);
    what else is in the way of loading the file goes with it.

    Args:
        text: the message, or a log with one in it.
        path: the file, as for `doctor`.
        model: the model's code, as for `doctor`.
        at: where the weights are in the file, as for `doctor`.
        kwargs: arguments of the model, as for `doctor`.
        progress: called with the number of bytes that were read, as for `doctor`.

    Raises:
        CheckpointError: as `doctor`.
    """
    messages = explain(text, path, model)
    found = doctor(path, model, at=at, kwargs=kwargs, progress=progress)
    plan = found.cure
    if messages and not (found.fit is not None and not found.fit.fits):
        try:
            ckpt = open_checkpoint(path)
        except CheckpointError:
            pass
        else:
            plan = _plan(text, messages, ckpt, found, at)
    own = (f"ckptool doctor {shell_path(path)}",)
    looks = [replace(one, commands=[(c, w) for c, w in one.commands if _to_look(c, own, plan)]) for one in messages]
    findings = found.findings
    if found.healthy and any(one.trouble for one in messages):  # what the file alone does not show
        rest = "" if plan else "; the file itself does not show it"
        findings = [Finding("message", f"the problem that the message describes{rest}"), *findings]
    return [_of_this_file(one, found) for one in looks], replace(found, cure=plan, findings=findings)


def _to_look(command: str, own: tuple[str, ...], plan: Sequence[str]) -> bool:
    """Whether a command of a lesson that only looks is shown beside the PLAN for the file."""
    if not command.startswith(_LOOKING) or command.startswith(own):
        return False
    return not plan or command.startswith("ckptool scan ")


def _of_this_file(one: Finding, found: Diagnosis) -> Finding:
    """A lesson without what the file itself says better."""
    if one.name in ("envelope", "no-envelope") and any(other.name == "envelope" for other in found.findings):
        return replace(one, actions=[])
    return one


def _plan(text: str, messages: Sequence[Finding], ckpt: Checkpoint, found: Diagnosis, at: str | None) -> list[str]:
    """The commands that a message and a file choose together."""
    names = {one.name for one in messages}
    others = {one.name for one in found.findings if one.trouble}
    try:
        weights = ckpt.state_dict(at)
    except CheckpointError:
        return found.cure
    if weights.model is not None or ckpt.sealed or others & {"part", "zero-3", "adapter", "packed", "no-parameters"}:
        return found.cure
    file, out = shell_path(ckpt.where), beside(ckpt.where, "fixed")
    place = ["--map-location", "cpu"] if "device" in others else []
    if "device-index" in names:
        place = ["--map-location", "cuda:*=cuda:0"]
    extract = ["--extract"] if weights.path or "strangers" in others else []
    options: list[str] | None = None
    if "no-envelope" in names and (key := _missing_entry(text)):
        options = [*key_options(weights), *place, "--wrap", key]
    elif "size-mismatch" in names:
        named = dict.fromkeys(re.findall(r"size mismatch for ([\w.-]+):", text))
        here = {short: old for old, short in _renamed(weights).items()}
        drops = [name for name in list(named)[:8] if name in here]
        options = [*extract, *key_options(weights), *(w for name in drops for w in ("--drop", name)), *place]
    elif (asked := _asked_for(text, weights)) is not None:
        chosen = _named_as(weights, asked)
        options = None if chosen is None else [*extract, *chosen, *place]
    elif "module-missing" in names and not weights.wrappers:
        options = [*extract, "--add-prefix", "module.", *place]
    elif "device-index" in names:
        options = [*place] if not found.cure or "device" in others else None
    if options is None:
        rewriting = [c for one in messages for c, _ in one.commands if not c.startswith(_LOOKING)]
        opened = "MODEL.py" not in " ".join(rewriting[:1])
        return found.cure or (rewriting[:1] if opened and not others else [])
    kept = ["--at", weights.path] if len(ckpt.state_dicts()) > 1 else []
    return [" ".join(["ckptool convert", file, out, *(shell_quote(word, 200) for word in [*options, *kept])])]


def _named_as(weights: StateDict, asked: list[str]) -> list[str] | None:
    """Options of `convert` that give the weights the keys that are ASKED for, known buffers among them filled in."""
    # torch adds these itself where it finds no version of the layer, so that no message says that they are missing
    counters = [f"{key.removesuffix('running_var')}num_batches_tracked" for key in asked if key.endswith("running_var")]
    chosen = by_names(list(weights), list(dict.fromkeys([*asked, *counters]))) or by_names(list(weights), asked)
    if chosen is not None:
        return chosen
    kept = [key for key in asked if key in weights or key.rpartition(".")[2] not in COMPUTED]
    chosen = by_names(list(weights), kept) if len(kept) < len(asked) else None
    if chosen is None:
        return None
    options = [*chosen, "--fill-buffers"]
    try:
        done = recipes.result(Checkpoint(weights.node, at=""), steps_of(options))
    except CheckpointError:
        return None
    return options if set(done.state_dict("")) == set(asked) else None


def _renamed(weights: StateDict) -> dict[str, str]:
    from ...keys import unwrap

    return unwrap(list(weights))


_LISTS = (
    (r"[Mm]issing key\(s\) in state_dict: ([^\n]*)", r"[Uu]nexpected key\(s\) in state_dict: ([^\n]*)"),
    (r"missing_keys=\[([^\]]*)\]", r"unexpected_keys=\[([^\]]*)\]"),
)


def _asked_for(text: str, weights: StateDict) -> list[str] | None:
    """The keys that the model has, by a message that lists what is missing and what is unexpected; None if none does.

    A list that was cut off ("…", "...") tells too little.
    """
    for missing, unexpected in _LISTS:
        lists: list[Any] = [re.search(pattern, text) for pattern in (missing, unexpected)]
        if not any(lists):
            continue
        first, second = ([] if one is None else re.findall(r"['\"]([^'\"]+)['\"]", one[1]) for one in lists)
        if any(one is not None and ("..." in one[1] or "…" in one[1]) for one in lists):
            return None
        if not set(second) <= set(weights) or set(first) & set(weights):
            return None  # it was not this file
        gone = set(second)
        return [key for key in weights if key not in gone] + first
    return None
