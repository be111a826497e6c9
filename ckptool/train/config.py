"""What a run is told: every option, its default, and what is refused before anything starts."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from difflib import get_close_matches
from typing import Any

from ..disk.files import StrPath
from ..errors import RuleError, printable
from .ways import WAYS, Way

#: Task -> what it is, in a line. What they are made of is in `tasks`.
TASKS = {
    "housing": "regression of 13 features with a 13-16-32-1 net; --data FILE.csv, else 506 synthetic rows",
    "cnn": "a small convolutional net on synthetic images of 3x32x32, 10 classes",
    "lenet": "LeNet-5 on synthetic images of 1x28x28, 10 classes",
    "vgg": "VGG in torchvision's naming, narrow unless --width 1; synthetic images of 3x32x32",
    "imagefolder": "the small convolutional net on your own images; --data FOLDER with a folder for each class",
}

#: What can be saved -> what it is.
SAVES = {
    "wrapped": "the state dict of the model as it was trained, with the prefix of its wrapper",
    "unwrapped": "the state dict of the model itself",
    "full": "a training checkpoint: model, optimizer, scheduler, epoch, RNG states, an argparse.Namespace",
    "full-2018": "the same with what a wrapped optimizer's own state_dict() gives: nothing (--wrap-optimizer)",
    "model": "the whole model, pickled",
    "compiled": "the state dict of the model in torch.compile (eager backend); trains compiled",
    "ema": "the state dict of an AveragedModel with a moving average of the weights",
    "dcp": "a directory of torch.distributed.checkpoint: model, optimizer, progress",
}
#: The containers of single files -> the end of their names.
CONTAINERS = {"zip": ".pth", "legacy": ".legacy.pth", "safetensors": ".safetensors"}
#: The saves that are tensors and nothing else.
WEIGHTS_ONLY = ("wrapped", "unwrapped", "compiled", "ema")

#: Schemes and schedules -> the numbers that may follow them after colons, as they are if none are given.
INITS: dict[str, tuple[float, ...]] = {"default": (), "xavier": (), "kaiming": (), "constant": (0.01,)}
SCHEDULES: dict[str, tuple[float, ...]] = {"none": (), "step": (10, 0.1), "exponential": (0.9,), "cosine": (math.inf,)}
OPTIMIZERS = ("sgd", "adam", "adamw")
AMP = ("none", "bf16", "fp16")
BACKENDS = ("auto", "gloo", "nccl", "mpi")
DEPTHS = (11, 13, 16, 19)


@dataclass(frozen=True)
class Save:
    """One thing to be saved: a kind out of SAVES in a container out of CONTAINERS ("dcp" has its own)."""

    kind: str
    container: str = "zip"

    @classmethod
    def parse(cls, text: str) -> Save:
        """Read KIND or KIND:CONTAINER.

        Raises:
            RuleError: there is no such kind or container, or the container cannot hold that kind.
        """
        kind, _, container = text.partition(":")
        _one_of("--save", kind, SAVES)
        save = cls(kind, container or "zip")
        _one_of("--save", save.container, CONTAINERS)
        if container and kind == "dcp":
            raise RuleError("dcp is a directory and takes no container", where=f"--save {text}", hint="--save dcp")
        if save.container == "safetensors" and kind not in WEIGHTS_ONLY:
            raise RuleError(
                f"safetensors holds tensors and nothing else, and {kind!r} is more than that",
                where=f"--save {text}",
                hint=f"--save {kind}, or --save wrapped:safetensors",
            )
        return save

    def name(self, task: str, strategy: str) -> str:
        """The name of the file: TASK-STRATEGY-KIND and the suffix of the container."""
        return f"{task}-{strategy}-{self.kind}{'' if self.kind == 'dcp' else CONTAINERS[self.container]}"

    def __str__(self) -> str:
        return self.kind if self.container == "zip" else f"{self.kind}:{self.container}"


@dataclass(frozen=True)
class Config:
    """Everything that a run is told. What is not given has the default of `ckptool train`, which explains each.

    Attributes:
        task, strategy: names out of TASKS and WAYS.
        out: folder for what is saved; made if it is not there.
        devices: "auto", "cpu", "cuda", or a list such as ("cuda:0", "cuda:1").
        nproc: processes, or replicas of `manual` on a CPU; None: as many as there are devices.
        batch_size: samples of one optimizer step over all devices, divided by `accumulate`.
        lr_groups: pattern of parameter names (see `ckptool.keys`) -> learning rate; the first that matches counts.
        schedule: with its numbers after colons: "step:10:0.1", "exponential:0.9", "cosine".
        save: kinds of SAVES, each with an optional container after a colon.
        resume: a checkpoint of this or another strategy to go on from.
    """

    task: str = "housing"
    strategy: str = "single"
    out: StrPath = "run"
    wrap_optimizer: bool = False
    devices: tuple[str, ...] = ("auto",)
    nproc: int | None = None
    backend: str = "auto"
    rendezvous: str = "env://"
    epochs: int = 10
    batch_size: int = 32
    drop_last: bool = False
    accumulate: int = 1
    optimizer: str = "sgd"
    lr: float = 0.01
    lr_groups: Mapping[str, float] = field(default_factory=dict)
    momentum: float = 0.9
    weight_decay: float = 0.0
    schedule: str = "none"
    init: str = "default"
    amp: str = "none"
    seed: int = 0
    data: StrPath | None = None
    target: str | None = None
    labels: StrPath | None = None
    samples: int | None = None
    test_fraction: float = 0.2
    workers: int = 0
    depth: int = 11
    width: float = 0.0625
    batch_norm: bool = False
    classes: int = 10
    image_size: int = 64
    save: tuple[str, ...] = ()
    save_every: int = 1
    resume: StrPath | None = None
    overwrite: bool = False
    curves: bool = True
    tensorboard: bool = False
    verbose: bool = False

    @property
    def way(self) -> Way:
        """What the strategy is."""
        return WAYS[self.strategy]

    @property
    def saves(self) -> tuple[Save, ...]:
        """What is saved. Unless something else is asked for: the weights, and what a run can be resumed from."""
        return tuple(dict.fromkeys(Save.parse(text) for text in self.save or self.way.saves))

    @property
    def compiles(self) -> bool:
        """Whether the model is trained through torch.compile."""
        return any(save.kind == "compiled" for save in self.saves)

    def as_namespace(self) -> argparse.Namespace:
        """The options as training scripts keep them in their checkpoints. Says nothing about this machine."""
        plain = {name: value for name, value in asdict(self).items() if name not in ("out", "data", "labels", "resume")}
        return argparse.Namespace(**{name: _plain(value) for name, value in plain.items()})

    def check(self) -> None:
        """Refuse what cannot work, before anything is started.

        Raises:
            RuleError: an option has a value that does not exist, or two options contradict each other.
        """
        _one_of("--task", self.task, TASKS)
        _one_of("--strategy", self.strategy, WAYS)
        _one_of("--optimizer", self.optimizer, OPTIMIZERS)
        with_numbers("--init", self.init, INITS)
        name, numbers = with_numbers("--schedule", self.schedule, SCHEDULES)
        if any(number <= 0 for number in numbers) or (name in ("step", "cosine") and numbers[0] < 1):
            raise RuleError(
                f"{printable(self.schedule)} has a number that is too small",
                where="--schedule",
                hint="--schedule step:10:0.1",
            )
        _one_of("--amp", self.amp, AMP)
        _one_of("--backend", self.backend, BACKENDS)
        for option in ("epochs", "batch_size", "accumulate", "classes", "image_size"):
            _at_least(option, getattr(self, option), 1)
        for option in ("workers", "save_every", "seed"):
            _at_least(option, getattr(self, option), 0)
        for option in ("samples", "nproc"):
            if getattr(self, option) is not None:
                _at_least(option, getattr(self, option), 1)
        if self.depth not in DEPTHS:
            raise RuleError(f"VGG has {', '.join(map(str, DEPTHS))} layers, not {self.depth}", where="--depth")
        if self.seed >= 1 << 32:
            raise RuleError("must be less than 2**32", where="--seed")
        for option in ("lr", "width"):
            if not 0 < getattr(self, option) < math.inf:
                raise RuleError("must be more than 0", where=f"--{option}")
        if not all(0 < rate < math.inf for rate in self.lr_groups.values()):
            raise RuleError("a rate must be more than 0", where="--lr-group")
        if not 0 <= self.momentum < 1:
            raise RuleError("must be 0 or more, and less than 1", where="--momentum", hint="--momentum 0.9")
        if not 0 <= self.weight_decay < math.inf:
            raise RuleError("must be 0 or more", where="--weight-decay")
        if not self.devices:
            raise RuleError("names no device", where="--devices", hint="--devices cpu")
        if not 0 < self.test_fraction < 1:
            raise RuleError("must be between 0 and 1", where="--test-fraction", hint="--test-fraction 0.2")
        if any(save.kind == "full-2018" for save in self.saves) and not self.wrap_optimizer:
            raise RuleError("belongs to --wrap-optimizer", where="--save full-2018", hint="--save full")
        if self.wrap_optimizer and not self.way.wraps_optimizer:
            wrapping = " or ".join(name for name, way in WAYS.items() if way.wraps_optimizer)
            raise RuleError(f"belongs to --strategy {wrapping}", where="--wrap-optimizer")
        self._check_way()
        if not self.rendezvous.startswith(("env://", "tcp://", "file://")):
            raise RuleError(
                f"{printable(self.rendezvous)} is not a rendezvous",
                where="--rendezvous",
                hint="--rendezvous env://, tcp://127.0.0.1:PORT or file:///PATH",
            )
        if self.task == "imagefolder" and self.data is None:
            raise RuleError("needs a folder of images", where="--task imagefolder", hint="add --data FOLDER")
        if self.data is not None and self.task not in ("housing", "imagefolder"):
            raise RuleError(f"the task {self.task} makes its own data", where="--data")
        if self.data is not None and self.samples is not None:
            raise RuleError("is for synthetic samples, and --data gives real ones", where="--samples")
        for option, task in (("target", "housing"), ("labels", "imagefolder")):
            if getattr(self, option) is not None and (self.task != task or self.data is None):
                raise RuleError(f"belongs to --task {task} --data", where=f"--{option}")

    def _check_way(self) -> None:
        """Refuse what the strategy cannot do."""
        name, way = self.strategy, self.way
        for kind, why in way.never_saves.items():
            if any(save.kind == kind for save in self.saves):
                raise RuleError(why, where=f"--save {kind} with {name}", hint=f"--save {','.join(way.saves)}")
        if self.amp != "none" and way.amp and self.amp not in way.amp:
            only = " or ".join(way.amp)
            raise RuleError(f"{name} is trained in {only} here", where=f"--amp {self.amp}", hint=f"--amp {way.amp[0]}")


def split_saves(text: str) -> tuple[str, ...]:
    """The saves in TEXT, which commas or spaces separate."""
    return tuple(part for part in text.replace(",", " ").split() if part)


def with_numbers(option: str, text: str, known: Mapping[str, tuple[float, ...]]) -> tuple[str, tuple[float, ...]]:
    """Read NAME or NAME:NUMBER:…; numbers that are not given are those of KNOWN.

    Raises:
        RuleError: there is no such name, or what follows it are not such numbers.
    """
    name, *given = text.split(":")
    _one_of(option, name, known)
    try:
        numbers = tuple(float(number) for number in given)
        if len(numbers) > len(known[name]) or not all(map(math.isfinite, numbers)):
            raise ValueError
    except ValueError:
        usual = "".join(f":{number:g}" for number in known[name] if number < math.inf)
        raise RuleError(f"{printable(text)} is not understood", where=option, hint=f"{option} {name}{usual}") from None
    return name, numbers + known[name][len(numbers) :]


def _one_of(option: str, value: str, known: Any) -> None:
    if value not in known:
        near = get_close_matches(value, list(known), 1)
        raise RuleError(
            f"there is no {printable(value, 40)!r}",
            where=option,
            evidence=[f"known: {', '.join(known)}"],
            hint=f"{option} {near[0]}" if near else None,
        )


def _at_least(option: str, value: int, least: int) -> None:
    if value < least:
        raise RuleError(f"must be {least} or more, not {value}", where=f"--{option.replace('_', '-')}")


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, tuple):
        return list(value)
    return os.fspath(value) if isinstance(value, os.PathLike) else value


#: The names of all options, for those who build a Config from a mapping.
OPTIONS = tuple(f.name for f in fields(Config))
