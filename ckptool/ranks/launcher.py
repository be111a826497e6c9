"""What torchrun gives the processes that it starts: their numbers, a store that all reach, a place for a reason."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from ..errors import CheckpointError, printable, require


def is_launched(environment: Mapping[str, str] | None = None) -> bool:
    """Return whether torchrun started this process as one of several."""
    known = os.environ if environment is None else environment
    return "TORCHELASTIC_RUN_ID" in known and "RANK" in known and known.get("WORLD_SIZE", "1") != "1"


def store_of_launcher(environment: Mapping[str, str] | None, seconds: float, hint: str) -> tuple[Any, int, int]:
    """Return the store of the torchrun that started this process, the number of this rank, and the number of ranks.

    Args:
        environment: in place of that of this process.
        seconds: how long to wait for the store.
        hint: what an error proposes.

    Raises:
        NotInstalled: torch is missing.
        CheckpointError: the store does not answer.
    """
    known = os.environ if environment is None else environment
    require("a process that torchrun started", "torch", extra="torch")
    import torch.distributed as dist

    try:
        store, rank, size = next(iter(dist.rendezvous("env://", timeout=timedelta(seconds=seconds))))
    except (RuntimeError, ValueError) as error:
        place = f"{known.get('MASTER_ADDR', '?')}:{known.get('MASTER_PORT', '?')}"
        raise CheckpointError(
            f"rank {known['RANK']} of {known['WORLD_SIZE']} does not find the others at {place}",
            evidence=[printable(str(error).split("\n")[0], 200)],
            hint=hint,
        ) from None
    return dist.PrefixStore("ckptool", store), rank, size


def tell_launcher(error: BaseException) -> None:
    """Leave the reason where torchrun looks for it, for its own summary of what failed."""
    with contextlib.suppress(Exception):
        from torch.distributed.elastic.multiprocessing.errors import get_error_handler

        get_error_handler().record_exception(error)


def say_nothing() -> None:
    """Let this process print nothing more: rank 0 talks to the user."""
    sys.stdout = sys.stderr = io.StringIO()
