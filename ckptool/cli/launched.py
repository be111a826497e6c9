"""The command line under torchrun: which commands its processes do together, and which of them talks to the user."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # one process has no others to find
    from ..ranks import Group

#: Commands that several processes do together. `train` finds its ranks itself; of any other one, rank 0 does all.
_TOGETHER = frozenset(
    "strip-prefix add-prefix rename remap convert extract-weights clean slim average diff verify".split()
)

_group: Group | None = None


def ranks() -> Group | None:
    """This process and the others that do this command together; None where there is one process."""
    return _group


def leads() -> bool:
    """Whether this process talks to the user and writes what is not divided."""
    return _group is None or _group.leads


def begin(words: Sequence[str]) -> bool:
    """Find the other processes, if torchrun started this one. Returns whether there is anything to do here.

    Args:
        words: the command line.

    Raises:
        CheckpointError: they do not find each other, or were started with other commands.
    """
    global _group
    command = next((word for word in words if not word.startswith("-")), "")
    from ..ranks import Group, is_launched, say_nothing

    if not is_launched() or command == "train":
        return True
    group = Group.of_launcher(list(words)) if command in _TOGETHER else None
    if group is None:
        return is_first()
    _group = group
    if not group.leads:
        say_nothing()
    return True


def is_first() -> bool:
    """Whether torchrun gave this process the number 0."""
    import os

    return os.environ["RANK"] == "0"


def failed(error: BaseException) -> str | None:
    """Tell the other processes that this one fails.

    Returns:
        What to put before the message, "" or the number of the rank; None if another process says it.
    """
    if _group is None:
        return ""
    said = _group.fail(error)
    if not isinstance(error, Exception):  # by a signal: rank 0 says so, whoever is the first
        return ""
    sys.stderr = sys.__stderr__ if said else sys.stderr
    if not said:
        return None
    from ..ranks import RankFailed

    is_plain = getattr(error, "on_all_ranks", False) or isinstance(error, RankFailed)
    return "" if is_plain else f"rank {_group.rank} of {_group.size}: "


def reason() -> str:
    """Why another process failed, if one did, for the message of one that the launcher then ended."""
    return _group.reason() if _group is not None else ""


def end() -> None:
    """Leave the others."""
    global _group
    if _group is not None:
        _group.close()
        _group = None
