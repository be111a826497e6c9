"""Which devices a run gets, and which process works on which of them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ..errors import RuleError, counted
from .config import Config

_CPU = torch.device("cpu")


@dataclass(frozen=True)
class Place:
    """Where one process of a run works.

    Attributes:
        devices: its devices, the first one in charge; a CPU stands here more than once for logical replicas.
        rank: its number among all processes.
        world: how many processes there are.
        local_rank: its number among those of this machine.
    """

    devices: tuple[torch.device, ...]
    rank: int = 0
    world: int = 1
    local_rank: int = 0

    @property
    def device(self) -> torch.device:
        """The device in charge."""
        return self.devices[0]

    @property
    def leads(self) -> bool:
        """Whether this process speaks and writes for all of them."""
        return self.rank == 0


def choose(names: Sequence[str]) -> list[torch.device]:
    """The devices that the words of `--devices` name; GPUs are numbered as CUDA_VISIBLE_DEVICES shows them.

    Args:
        names: "auto" (all GPUs, else the CPU), "cpu", "cuda" (all GPUs), "cuda:1" or "1".

    Raises:
        RuleError: a device that is not there, or GPUs and a CPU together.
    """
    there = torch.cuda.device_count() if torch.cuda.is_available() else 0
    every = [torch.device("cuda", number) for number in range(there)]
    chosen: list[torch.device] = []
    for name in names:
        if name == "auto":
            chosen += every or [_CPU]
        elif name == "cpu":
            chosen.append(_CPU)
        elif name == "cuda" and there:
            chosen += every
        else:
            number = name.removeprefix("cuda:")
            if name != "cuda" and not number.isdecimal():
                raise RuleError(
                    f"{name!r} is not a device", where="--devices", hint="--devices cpu, or --devices cuda:0,cuda:1"
                )
            if not there or int(number) >= there:
                visible = os.environ.get("CUDA_VISIBLE_DEVICES")
                shown = "" if visible is None else f" (CUDA_VISIBLE_DEVICES is {visible!r})"
                raise RuleError(
                    f"there is no {name if name == 'cuda' else f'cuda:{number}'}; "
                    f"this machine shows {counted(there, 'GPU')}{shown}",
                    where="--devices",
                    hint=f"--devices {','.join(map(str, every)) or 'cpu'}",
                )
            chosen.append(every[int(number)])
    if len({device.type for device in chosen}) > 1:
        raise RuleError("GPUs and a CPU cannot share the work", where="--devices", hint="--devices cuda")
    if len(set(chosen)) < len(chosen):
        raise RuleError("the same device is named twice", where="--devices", hint="--nproc N, for several on a CPU")
    return chosen


def places(config: Config) -> list[Place]:
    """One place for each process of a run on this machine.

    Raises:
        RuleError: more devices are asked for than there are.
    """
    devices = choose(config.devices)
    on_cpu = devices[0].type == "cpu"
    if config.nproc is not None and not on_cpu and config.nproc > len(devices):
        raise RuleError(
            f"{config.nproc} are more than the {counted(len(devices), 'GPU')} that may be used",
            where="--nproc",
            hint=f"--nproc {len(devices)}, or --devices cpu",
        )
    if config.way.in_processes:
        count = config.nproc or len(devices)
        each = [_CPU] * count if on_cpu else devices
        return [Place((each[rank],), rank, count, rank) for rank in range(count)]
    if config.way.devices == "one":
        return [Place((devices[0],))]
    if config.way.devices == "replicas" and on_cpu:
        return [Place((_CPU,) * (config.nproc or 2))]
    return [Place(tuple(devices if config.nproc is None else devices[: config.nproc]))]


def check_batch(config: Config, place: Place) -> int:
    """Samples that one process takes for one forward pass.

    Raises:
        RuleError: the batch does not reach for all devices, or cannot be divided as asked.
    """
    sharing = place.world if config.way.in_processes else len(place.devices)
    smallest = sharing * config.accumulate
    if config.batch_size < smallest:
        raise RuleError(
            f"a batch of {config.batch_size} is smaller than the {counted(sharing, 'device')} that share it"
            + (f" in {config.accumulate} steps" if config.accumulate > 1 else ""),
            where="--batch-size",
            hint=f"--batch-size {smallest}",
        )
    parts = config.accumulate * (place.world if config.way.in_processes else 1)
    if config.batch_size % parts:
        raise RuleError(
            f"{config.batch_size} cannot be divided by {parts} (processes times accumulated passes)",
            where="--batch-size",
            hint=f"--batch-size {(config.batch_size // parts + 1) * parts}",
        )
    return config.batch_size // parts


def remarks(config: Config, place: Place) -> list[str]:
    """What a person should know about a strategy on the devices at hand, so that nobody believes to see a speed-up."""
    way = config.way
    on_cpu, alone = place.device.type == "cpu", len(place.devices) == 1
    lines: list[str] = []
    if way.on_cpu and on_cpu:
        lines.append(way.on_cpu.format(replicas=counted(len(place.devices), "logical replica")))
    elif way.on_one_gpu and not on_cpu and alone:
        lines.append(way.on_one_gpu)
    if config.wrap_optimizer and not on_cpu and alone:
        lines.append(
            "one GPU: torch's DataParallel calls .to(device) on what it wraps, which an optimizer does not have; "
            "the optimizer is not wrapped"
        )
    if way.in_processes and on_cpu and place.world > 1:
        lines.append(f"no GPU: {place.world} processes on the CPU, joined by gloo")
    single = not way.in_processes and way.devices != "replicas"
    if config.nproc and config.nproc > 1 and single and on_cpu:
        lines.append(
            f"--nproc {config.nproc} has no meaning for {config.strategy} on a CPU: it is one process with one model"
        )
    return lines


def describe(devices: Sequence[torch.device]) -> list[str]:
    """The devices at hand with their memory, a line each."""
    lines = []
    for device in dict.fromkeys(devices):
        if device.type == "cuda":
            free, total = torch.cuda.mem_get_info(device)
            name = torch.cuda.get_device_name(device)
            lines.append(f"{device}: {name}, {free / 2**30:.1f} of {total / 2**30:.1f} GiB free")
        else:
            lines.append(
                f"cpu: {counted(os.cpu_count() or 1, 'core')}{_memory()}, torch uses {torch.get_num_threads()}"
            )
    return lines


def _memory() -> str:
    try:
        page = os.sysconf("SC_PAGE_SIZE")
        return (
            f", {page * os.sysconf('SC_AVPHYS_PAGES') / 2**30:.1f} of "
            f"{page * os.sysconf('SC_PHYS_PAGES') / 2**30:.1f} GiB free"
        )
    except (ValueError, OSError, AttributeError):
        return ""
