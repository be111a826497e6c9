"""The ways of training, as far as they can be told without torch: what they are, and what belongs to each.

The classes that train are in `strategies`, under the same names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Way:
    """One way of spreading a run over devices.

    Attributes:
        title: what it is, in a line.
        in_processes: it runs a process for each device.
        devices: "one", "all", or "replicas" where a CPU counts as several.
        on_cpu: what a person should know where there is no GPU; may name `{replicas}`.
        on_one_gpu: what a person should know where there is one.
        takes_every_gpu: torch gives it every GPU that it sees, whatever was asked for.
        wraps_optimizer: the optimizer can be wrapped as well.
        saves: what is saved, unless something else is asked for.
        never_saves: kinds that it cannot save -> why.
        amp: the only types for mixed precision, or () for all.
    """

    title: str
    in_processes: bool = False
    devices: str = "all"
    on_cpu: str = ""
    on_one_gpu: str = ""
    takes_every_gpu: bool = False
    wraps_optimizer: bool = False
    saves: tuple[str, ...] = ("wrapped", "full")
    never_saves: Mapping[str, str] = field(default_factory=dict)
    amp: tuple[str, ...] = ()


WAYS = {
    "single": Way("one device", devices="one"),
    "data-parallel": Way(
        "nn.DataParallel: one process, the batch split over several GPUs",
        on_cpu="no GPU: torch's DataParallel runs the module on the CPU without splitting the batch; nothing gets "
        "faster, but the keys have 'module.' anyway",
        on_one_gpu="one GPU: DataParallel does not split the batch; the keys have 'module.' anyway",
        takes_every_gpu=True,
        wraps_optimizer=True,
    ),
    "functional": Way(
        "nn.parallel.data_parallel: the same split, without a wrapper",
        on_cpu="no GPU: torch's data_parallel refuses to run, so the module is called directly; its keys have no "
        "'module.'",
    ),
    "manual": Way(
        "replicas, scatter and allreduce written out by hand, in one process",
        devices="replicas",
        on_cpu="no GPU: {replicas} on the CPU, one after the other",
    ),
    "average-gradients": Way("processes that average every gradient by hand", in_processes=True),
    "ddp": Way("DistributedDataParallel: a process for each device", in_processes=True),
    "fsdp": Way(
        "fully_shard (FSDP2): a process for each device, parameters in shards",
        in_processes=True,
        saves=("wrapped", "full", "dcp"),
        never_saves={
            "model": "the classes that fully_shard makes cannot be pickled",
            "ema": "AveragedModel copies the model, which fully_shard does not allow",
        },
        amp=("bf16",),
    ),
}
