"""Starting a run: in this process, in several under torch's elastic launcher, or as a rank of the user's torchrun."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

from .. import errors
from ..disk.door import Directory, is_own_file, scratch_directory
from ..disk.files import shell_path
from ..errors import CheckpointError, RuleError, TrainingFailed, counted
from . import checkpoints, curves, devices
from .children import interrupts_kept_from_children
from .config import Config
from .devices import Place
from .loop import train_rank
from .session import Run, Silent, Watcher

if TYPE_CHECKING:
    from torch.distributed.launcher.api import LaunchConfig


def run(config: Config, watcher: Watcher | None = None) -> Run:
    """Train as CONFIG says, and save checkpoints in its folder.

    Under the user's own torchrun (which sets RANK and WORLD_SIZE) this process becomes one of the ranks; else the
    strategies that need several processes get them here, and all have ended when this returns or raises.

    Args:
        config: what to do.
        watcher: is told how it goes.

    Raises:
        RuleError: an option that cannot work, before anything is started.
        TrainingFailed: a rank died or raised; the message names it. No process is left behind.
        CheckpointError: bad data, a checkpoint that cannot be resumed, a target that cannot be written.
    """
    config.check()
    watcher = Silent() if watcher is None else watcher
    ranked = "RANK" in os.environ and "WORLD_SIZE" in os.environ
    if ranked and not config.way.in_processes and os.environ["WORLD_SIZE"] != "1":
        raise RuleError(
            f"{config.strategy} is one process, and torchrun has started {os.environ['WORLD_SIZE']}",
            where="--strategy",
            hint="start it without torchrun, or --strategy ddp",
        )
    own = _own_place(config) if ranked and config.way.in_processes else None
    places = [own] if own else devices.places(config)
    if config.way.in_processes:
        _check_backend(config)
        if not own:
            _check_rendezvous(config)
    else:
        _check_cpu_wrapper(config, places[0])
    devices.check_batch(config, places[0])
    if places[0].leads:
        for line in curves.check(config):
            watcher.say(line)
        checkpoints.check_targets(config)
    if own:
        return _as_rank(config, own, watcher)
    return _launch(config, places, watcher) if config.way.in_processes else train_rank(config, places[0], watcher)


def _launch(config: Config, places: list[Place], watcher: Watcher) -> Run:
    """Start a process for each place, and wait for all of them."""
    with scratch_directory() as logs:
        return _launched(config, places, watcher, logs)


def _launched(config: Config, places: list[Place], watcher: Watcher, logs: Path) -> Run:
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    launch = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=len(places),
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="127.0.0.1:0",  # the system gives a port that is free
        local_addr="127.0.0.1",
        max_restarts=0,
        monitor_interval=0.1,
        logs_specs=DefaultLogsSpecs(log_dir=os.fspath(logs)),
        start_method="spawn",
    )
    try:
        with _silenced(), _signals(launch), interrupts_kept_from_children():
            results = elastic_launch(launch, _rank)(config, places, watcher, os.getpid())
    except BaseException as error:
        checkpoints.clear(config)  # a rank that is killed while it writes cannot do that itself
        if isinstance(error, ChildFailedError):
            raise _explained(error) from None
        signalled = getattr(error, "sigval", None)  # of torch's SignalException
        if signalled is None:
            raise
    else:
        run: Run = results[0]
        return run
    finally:
        if config.rendezvous.startswith("file://"):
            meeting = _meeting_file(config)
            with contextlib.suppress(OSError), Directory.at(Path(os.path.realpath(meeting.parent))) as folder:
                folder.remove(meeting.name, is_own_file)
    signal.raise_signal(signalled)  # the ranks have ended; now it goes to whoever handles it in this process
    raise TrainingFailed(f"{signal.Signals(signalled).name} arrived; all ranks were ended")


@contextlib.contextmanager
def _silenced() -> Iterator[None]:
    """Within it torch's launcher says nothing: it speaks in tracebacks, and what there is to say is said below."""
    names = [name for name in logging.root.manager.loggerDict if name.startswith(_TALKATIVE)]
    levels = {logger: logger.level for logger in map(logging.getLogger, names)}  # each has a level of its own
    for logger in levels:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in levels.items():
            logger.setLevel(level)


_TALKATIVE = ("torch.distributed.elastic", "torch.multiprocessing")


@contextlib.contextmanager
def _signals(launch: LaunchConfig) -> Iterator[None]:
    """Within it torch's launcher handles the signals that end a process, except those that are ignored here."""
    numbers = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT") if hasattr(signal, name)]
    before = {number: signal.getsignal(number) for number in numbers}
    if hasattr(launch, "signals_to_handle"):  # older torch: all of them; nohup does not help there
        wanted = [number.name for number in numbers if before[number] is not signal.SIG_IGN]
        launch.signals_to_handle = ",".join(wanted)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():  # torch does nothing in another one
            for number, handler in before.items():
                signal.signal(number, handler)


def _explained(error: ChildFailedError) -> CheckpointError:
    """The first failure among the ranks in a line, with the number of its rank."""
    rank, failure = error.get_first_failure()
    if failure.exitcode < 0:
        return TrainingFailed(
            f"rank {rank} was killed by {failure.signal_name()}; the other ranks were ended",
            hint="too little memory is the usual reason; try a smaller --batch-size"
            if failure.exitcode == -9
            else None,
        )
    message = failure.error_file_data.get("message")
    if not isinstance(message, dict):
        return TrainingFailed(
            f"rank {rank} ended with exit code {failure.exitcode} before it began to train",
            hint="a script that calls run must do so below `if __name__ == '__main__':`, since each process imports it",
        )
    kind, _, text = message["message"].partition(": ")  # what str() gave, after the name of the class
    head, *rest = text.splitlines() or [""]
    if not hasattr(errors, kind):
        head = f"{kind}: {head}"
    hint = next((line.removeprefix("Hint: ") for line in rest if line.startswith("Hint: ")), None)
    evidence = [line.strip() for line in rest if not line.startswith("Hint: ")]
    return TrainingFailed(f"rank {rank} failed: {head.rstrip('.')}", evidence=evidence[:8], hint=hint)


def _rank(config: Config, places: list[Place], watcher: Watcher, launcher: int) -> Run:
    """What each of the launched processes does."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # ends it without a word
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    threading.Thread(target=_end_with, args=(launcher,), daemon=True).start()
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // world))
    try:
        return _as_rank(config, places[rank], watcher)
    except RuntimeError as error:
        if not isinstance(error, CheckpointError):
            time.sleep(1)  # perhaps only a witness: another rank broke off. It is to be seen first
        raise


def _end_with(launcher: int) -> None:
    """End this process when the launcher is gone, also if it was killed and could not say so."""
    while os.getppid() == launcher:
        time.sleep(0.3)
    os._exit(1)


def _as_rank(config: Config, place: Place, watcher: Watcher) -> Run:
    """Join the other processes, train, and leave them."""
    if place.device.type == "cuda":
        torch.cuda.set_device(place.device)
    backend = _backend(config, place.device)
    # what lies outside: the launcher's own store, a port of the user's, or a file that all can see
    if config.rendezvous.startswith("tcp://"):
        os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "False"  # else no rank opens the port, and all wait for it
    dist.init_process_group(backend, init_method=config.rendezvous, rank=place.rank, world_size=place.world)
    run = train_rank(config, place, watcher)
    # If that fails there is no farewell: the others wait in a collective, and are ended by whoever watches.
    dist.destroy_process_group()
    return run


def _own_place(config: Config) -> Place:
    """The place of this process, of which the user's torchrun says which rank it is."""
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    local = int(os.environ.get("LOCAL_RANK", rank))
    if config.nproc not in (None, world, int(os.environ.get("LOCAL_WORLD_SIZE", world))):
        raise RuleError(f"torchrun has started {world} processes", where="--nproc", hint="leave out --nproc")
    chosen = devices.choose(config.devices)
    if chosen[0].type == "cpu":
        return Place((chosen[0],), rank, world, local)
    if local >= len(chosen):
        raise RuleError(
            f"torchrun has started rank {local} on a machine with {counted(len(chosen), 'GPU')} to use",
            where="--devices",
            hint=f"torchrun --nproc-per-node {len(chosen)}, or --devices cpu",
        )
    return Place((chosen[local],), rank, world, local)


def _backend(config: Config, device: torch.device) -> str:
    if config.backend != "auto":
        return config.backend
    return "nccl" if device.type == "cuda" else "gloo"


def _check_backend(config: Config) -> None:
    """Refuse a backend that this torch does not have, or that cannot work here."""
    if config.backend == "mpi" and not dist.is_mpi_available():
        raise RuleError(
            "this torch was built without MPI (no binary release has it); it must be built from source on a machine "
            "with MPI",
            where="--backend mpi",
            hint="--backend gloo",
        )
    if config.backend == "nccl" and not (dist.is_nccl_available() and torch.cuda.is_available()):
        raise RuleError("nccl joins GPUs, and there is none to be seen", where="--backend nccl", hint="--backend gloo")


def _check_rendezvous(config: Config) -> None:
    """Refuse a port that is taken, or a file that is left from another run, before processes wait at it."""
    if config.rendezvous.startswith("tcp://"):
        parts = urlsplit(config.rendezvous)
        try:
            host, port = parts.hostname, parts.port
        except ValueError:
            host = port = None
        if not host or not port:
            raise RuleError(
                f"{config.rendezvous} names no host and port",
                where="--rendezvous",
                hint="--rendezvous tcp://127.0.0.1:29500",
            )
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError as error:
                raise RuleError(
                    f"port {port} of {host} cannot be used: {(error.strerror or str(error)).lower()}",
                    where="--rendezvous",
                    hint="another port, or leave out --rendezvous: then a free one is found",
                ) from None
    elif config.rendezvous.startswith("file://"):
        path = _meeting_file(config)
        if path.exists():
            raise RuleError(
                "is there already; ranks of another run may have met in it", where=path, hint=f"rm {shell_path(path)}"
            )
        if not path.parent.is_dir():
            raise RuleError("its folder does not exist", where=path, hint=f"mkdir -p {shell_path(path.parent)}")


def _meeting_file(config: Config) -> Path:
    return Path(unquote(urlsplit(config.rendezvous).path))


def _check_cpu_wrapper(config: Config, place: Place) -> None:
    if config.way.takes_every_gpu and place.device.type == "cpu" and torch.cuda.is_available():
        raise RuleError(
            "torch's DataParallel takes every GPU that it sees",
            where="--devices cpu",
            hint="CUDA_VISIBLE_DEVICES= ckptool train --strategy data-parallel …",
        )
