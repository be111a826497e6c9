"""Starting a run: in this process, in several under torch's elastic launcher, or as a rank of the user's torchrun."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import socket
import tempfile
import uuid
from pathlib import Path
from types import FrameType
from urllib.parse import urlsplit

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, record

from ..errors import CheckpointError, RuleError, TrainingFailed, counted
from . import curves, devices, saving
from .config import Config
from .devices import Place
from .loop import Run, Silent, Watcher, train_rank


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
    watcher = watcher or Silent()
    if os.environ.get("RANK", "0") == "0":
        for line in curves.check(config):
            watcher.say(line)
    ranked = config.in_processes and "RANK" in os.environ and "WORLD_SIZE" in os.environ
    if not config.in_processes:
        place = devices.places(config)[0]
        _check_cpu_wrapper(config, place)
        devices.check_batch(config, place)
        saving.check_targets(config)
        return train_rank(config, place, watcher)
    _check_backend(config)
    if ranked:
        return _as_rank(config, _own_place(config), watcher)
    places = devices.places(config)
    devices.check_batch(config, places[0])
    _check_rendezvous(config)
    saving.check_targets(config)
    return _launch(config, places, watcher)


def _launch(config: Config, places: list[Place], watcher: Watcher) -> Run:
    """Start a process for each place, and wait for all of them."""
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)  # it speaks in tracebacks; we, below
    logs = tempfile.mkdtemp(prefix="ckptool-train-")
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
        logs_specs=DefaultLogsSpecs(log_dir=logs),
        start_method="spawn",
    )
    try:
        results = elastic_launch(launch, _rank)(config, places, watcher)
    except ChildFailedError as error:
        raise _explained(error) from None
    except BaseException as error:
        number = getattr(error, "sigval", None)  # torch's SignalException
        if number == signal.SIGINT:
            raise KeyboardInterrupt from None
        if number is not None:
            raise TrainingFailed(f"{signal.Signals(number).name} arrived; all ranks were ended") from None
        raise
    finally:
        shutil.rmtree(logs, ignore_errors=True)
    run: Run = results[0]
    return run


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
    _, _, text = str(failure.message).partition(": ")  # "TypeName: what str() gave"
    head, *rest = text.splitlines() or [f"exit code {failure.exitcode}"]
    hint = next((line.removeprefix("Hint: ") for line in rest if line.startswith("Hint: ")), None)
    evidence = [line.strip() for line in rest if not line.startswith("Hint: ")]
    return TrainingFailed(f"rank {rank} failed: {head.rstrip('.')}", evidence=evidence[:8], hint=hint)


@record
def _rank(config: Config, places: list[Place], watcher: Watcher) -> Run:
    """What each of the launched processes does."""
    parent = os.getppid()

    def interrupted(number: int, frame: FrameType | None) -> None:
        # Ctrl-C reaches every process; the launcher ends its ranks in order. But if it was killed, nobody will.
        if os.getppid() != parent:
            os._exit(1)

    signal.signal(signal.SIGINT, interrupted)
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // world))
    return _as_rank(config, places[rank], watcher)


def _as_rank(config: Config, place: Place, watcher: Watcher) -> Run:
    """Join the other processes, train, and leave them."""
    if place.device.type == "cuda":
        torch.cuda.set_device(place.device)
    backend = _backend(config, place.device)
    # what lies outside: the launcher's own store, a port of the user's, or a file that all can see
    dist.init_process_group(backend, init_method=config.rendezvous, rank=place.rank, world_size=place.world)
    try:
        if "TORCHELASTIC_RUN_ID" in os.environ and place.leads:
            saving.check_targets(config)
        run = train_rank(config, place, watcher)
    except BaseException:
        # No farewell: the others wait for this rank in a collective, and are ended by whoever watches.
        raise
    else:
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
        path = Path(urlsplit(config.rendezvous).path)
        if path.exists():
            raise RuleError("is there already; ranks of another run may have met in it", where=path, hint=f"rm {path}")
        if not path.parent.is_dir():
            raise RuleError("its folder does not exist", where=path, hint=f"mkdir -p {path.parent}")


def _check_cpu_wrapper(config: Config, place: Place) -> None:
    if config.strategy == "data-parallel" and place.device.type == "cpu" and torch.cuda.is_available():
        raise RuleError(
            "torch's DataParallel takes every GPU that it sees",
            where="--devices cpu",
            hint="CUDA_VISIBLE_DEVICES= ckptool train --strategy data-parallel …",
        )
