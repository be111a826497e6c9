"""What passes on keys share: the state dict that they change, and words for their messages."""

from __future__ import annotations

from collections.abc import Sequence

from .. import keys as names
from ..checkpoint import Checkpoint, StateDict
from ..disk.paths import beside, shell_path, shell_quote
from ..errors import RuleError, counted, printable

#: What `--ties` takes.
TIES = ("keep", "drop", "clone")


def changeable(ckpt: Checkpoint, at: str | None) -> StateDict:
    """The state dict whose keys a pass changes.

    Raises:
        RuleError: its keys are attributes of a pickled model, which cannot be renamed there.
    """
    weights = ckpt.state_dict(at)
    if ckpt.sealed:
        raise RuleError(ckpt.sealed, where=ckpt.where, hint=extract_hint(ckpt, weights))
    if weights.model is not None:
        raise RuleError(
            f"its keys are attributes of a whole pickled model ({printable(weights.model.class_name, 80)}), and its "
            "code needs them as they are",
            where=ckpt.where,
            hint=extract_hint(ckpt, weights),
        )
    return weights


def file_of(ckpt: Checkpoint) -> str:
    return shell_path(ckpt.where) if ckpt.path else "IN"


def extract_hint(ckpt: Checkpoint, weights: StateDict) -> str:
    at = f" --at {shell_quote(weights.path, 200)}" if len(ckpt.state_dicts()) > 1 else ""
    out = beside(ckpt.where, "weights", ".safetensors")
    return f"ckptool extract-weights {file_of(ckpt)} {out}{at}   # takes the weights out of it first"


def rename_instead(head: str, stripped: Sequence[str], without: Sequence[str]) -> tuple[str, ...]:
    """Options of `convert` that take a prefix off the keys that have it, and leave those WITHOUT it out."""
    patterns = names.heads(without, stripped)
    drops = [word for pattern in patterns for word in ("--drop", pattern)] if len(patterns) <= _MOST_DROPPED else []
    return ("--rename", f"{head}=", *drops)


_MOST_DROPPED = 8


def rename_hint(ckpt: Checkpoint, instead: Sequence[str], at: str | None) -> str:
    """The command with the options INSTEAD."""
    place = "" if at is None else f" --at {shell_quote(at, 200)}"
    options = " ".join(shell_quote(word, 200) for word in instead)
    return told_instead(f"ckptool convert {file_of(ckpt)} {beside(ckpt.where, 'plain')} {options}{place}")


def told_instead(command: str) -> str:
    """COMMAND, and what it does."""
    if " --drop " not in command:
        return f"{command}   # changes only the keys that have it"
    return f"{command}   # keeps those that have it, without it; without --drop the others stay as they are"


def within(weights: StateDict) -> str:
    return f" in {printable(weights.path, 60)}" if weights.path else ""


def few(listed: Sequence[str], limit: int = 5) -> list[str]:
    shown = [printable(key, 100) for key in listed[:limit]]
    return shown + ([f"… and {len(listed) - limit:,} more"] if len(listed) > limit else [])


def key_evidence(weights: StateDict, wanted: str = "") -> list[str]:
    leading = names.leading(list(weights))
    shown = ", ".join(f"'{printable(name, 60)}' ({count:,})" for name, count in leading[:6])
    lines = [
        f"the {counted(len(weights), 'key starts', 'keys start')} with: {shown}{', …' if len(leading) > 6 else ''}"
    ]
    near = names.closest(wanted, list(weights)) if wanted else []
    return lines + ([f"did you mean: {', '.join(printable(key, 80) for key in near)}"] if near else [])


def prefix_hint(weights: StateDict) -> str | None:
    common = names.common_prefix(list(weights))
    return f"--prefix {shell_quote(common.split('.')[0] + '.', 200)}" if common else None
