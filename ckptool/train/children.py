"""Processes that load data, and ranks: started so that neither a lock nor Ctrl-C is theirs, and ended."""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import threading
from collections.abc import Iterator
from multiprocessing import resource_tracker
from multiprocessing.context import BaseContext

from . import data


def loaders_start() -> BaseContext:
    """How the processes that load data are started.

    A plain fork of this process copies locks that its other threads hold (of the backend, of OpenMP, of whoever called
    as a library), and a child that wants one of them waits for ever. A server without threads is forked instead; it
    has imported all that a child needs, so that those of the next epoch start as fast as by a plain fork.
    """
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")  # all that Windows has
    from multiprocessing import forkserver

    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["__main__", data.__name__])
    with interrupts_kept_from_children():
        forkserver.ensure_running()
    return context


@contextlib.contextmanager
def no_child_left() -> Iterator[None]:
    """End the processes that were started within it when it fails. One that is just starting would say in a traceback
    that what it should share with this process is gone."""
    before = multiprocessing.active_children()
    try:
        yield
    except BaseException:
        for child in multiprocessing.active_children():
            if child not in before:
                child.terminate()
                child.join()
        raise


@contextlib.contextmanager
def interrupts_kept_from_children() -> Iterator[None]:
    """Ctrl-C reaches every process of a terminal. Python would answer with a traceback in each child that is still
    importing torch, so children are born with SIGINT blocked: they inherit the mask of the thread that starts them.
    This process still gets it, in another thread, from where Python brings it to the main one."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # when multiprocessing starts it, it unblocks SIGINT
    over = threading.Event()
    listener = threading.Thread(target=over.wait, daemon=True)
    listener.start()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        over.set()
        listener.join()
