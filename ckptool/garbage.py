"""When the garbage collector looks at what. A program of this library's users has it on, the command line has not."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def only_new_objects() -> Iterator[None]:
    """Let the collector look at objects made from here on alone: a large model would have it look at all others again
    and again.
    """
    ours = gc.isenabled() and not gc.get_freeze_count()
    if ours:
        gc.freeze()
    try:
        yield
    finally:
        if ours:
            gc.unfreeze()


@contextlib.contextmanager
def all_kept() -> Iterator[None]:
    """Spare the collector work in which next to nothing becomes garbage. It looks at what was made there afterwards."""
    ours = gc.isenabled()
    if ours:
        gc.disable()
    try:
        yield
    finally:
        if ours:
            gc.enable()


__all__ = ["all_kept", "only_new_objects"]
