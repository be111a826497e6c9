"""What `inspect` suggests: what `doctor` would, as far as headers and pickles tell."""

from __future__ import annotations

from collections.abc import Sequence

from ...checkpoint import Checkpoint, StateDict
from ...disk.paths import beside, shell_path
from ...errors import printable
from ...keys.wrappers import WRAPPERS
from .in_headers import in_headers, look_through, weights_in

#: Commands that only look.
_LOOKING = ("ckptool inspect ", "ckptool scan ")
#: What wrappers put into names -> who does; for the most frequent one in fewer words.
_WRAPPED_BY = {f"{one.component}.": one.producer for one in WRAPPERS} | {"module.": "DataParallel or DDP"}


def suggestions(ckpt: Checkpoint) -> list[tuple[str, str]]:
    """The commands that make a file load, in order, each with what all of them together do; [] if none is needed.

    They are tried on paper, as `cure` says. Where nothing makes a file load, it is the first command that helps.
    """
    weights, tree = weights_in(ckpt), look_through(ckpt)
    places = [place for place in tree.locations if place not in ("cpu", "meta")]
    findings = in_headers(ckpt, weights, tree)
    told = {command: what for one in findings for command, what in one.commands if not command.startswith(_LOOKING)}
    commands = [*told][:1]
    if any(one.trouble for one in findings):
        from .cures import cure  # with all passes

        commands = cure(ckpt, weights, findings, None) or commands
    if not commands and (options := _improving(weights, places)):
        command = "convert" if "--extract" in options else "remap"
        commands = [" ".join(["ckptool", command, shell_path(ckpt.where), beside(ckpt.where, "fixed"), *options])]
    purpose = told.get(commands[0]) or _purpose(commands, weights, places) if commands else ""
    return [(command, purpose) for command in commands]


def _improving(weights: StateDict | None, places: Sequence[str]) -> list[str]:
    """Options that help with a file that no command makes load, or that its own loader loads already."""
    options = ["--extract"] if weights is not None and weights.path else []
    return [*options, "--map-location", "cpu"] if places else options


def _purpose(commands: Sequence[str], weights: StateDict | None, places: Sequence[str]) -> str:
    """What commands do, by their options."""
    words = " ".join(commands).split()
    if len(commands) > 1 and "--at" in words:
        return "to take one of its state dicts"
    done = []
    if "--extract" in words or "extract-weights" in words:
        done.append("keep only the weights")
    elif "clean" in words:
        done.append("turn its objects into plain data")
    if ("--unwrap" in words or "strip-prefix" in words) and weights is not None:
        done.append(f"remove {' and '.join(map(repr, weights.wrappers))}")
    if "--map-location" in words:
        done.append(f"load it without {' and '.join(printable(place, 20) for place in places)}")
    if len(done) == 1 and done[0].startswith("remove ") and weights is not None:
        done = [f"{done[0]} ({' and '.join(_WRAPPED_BY[name] for name in weights.wrappers)})"]
    first, last = ", ".join(done[:-1]), done[-1] if done else "make it load"
    return f"to {first} and {last}" if first else f"to {last}"
