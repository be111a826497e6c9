"""A run as it stands: its epochs, what changes while it trains, and who is told of it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from torch.optim.swa_utils import AveragedModel

from .config import Config
from .devices import Place


@dataclass(frozen=True)
class Epoch:
    """What one epoch came to.

    Attributes:
        number: from 1.
        loss: mean over the training samples, while the weights changed.
        test_loss: mean over the test samples, after it.
        accuracy: part of the test samples whose class was right; None for a regression.
        rate: learning rate of the first group.
        seconds: on the clock; not kept in checkpoints, so that the same run gives the same file.
    """

    number: int
    loss: float
    test_loss: float
    accuracy: float | None
    rate: float
    seconds: float = 0.0


@dataclass(frozen=True)
class Run:
    """What a run came to: its epochs, those of the run that it resumed included, and the files that it wrote."""

    history: tuple[Epoch, ...]
    files: tuple[Path, ...]
    remarks: tuple[str, ...] = ()


class Watcher(Protocol):
    """Is told how a run goes. Lives in the process of rank 0, to which it is sent as a pickle."""

    def say(self, text: str) -> None:
        """A remark in a line."""

    def begin_epoch(self, number: int, epochs: int, steps: int) -> None:
        """An epoch begins."""

    def step(self, loss: float) -> None:
        """The optimizer has made a step."""

    def end_epoch(self, epoch: Epoch) -> None:
        """An epoch is over."""


class Silent:
    """Says nothing."""

    def say(self, text: str) -> None:
        """Say nothing."""

    def begin_epoch(self, number: int, epochs: int, steps: int) -> None:
        """Say nothing."""

    def step(self, loss: float) -> None:
        """Say nothing."""

    def end_epoch(self, epoch: Epoch) -> None:
        """Say nothing."""


@dataclass
class Session:
    """A run in one of its processes: everything that changes while it trains, and that a checkpoint keeps."""

    config: Config
    place: Place
    strategy: Any
    scheduler: Any
    average: AveragedModel | None
    classes: tuple[str, ...]
    history: list[Epoch] = field(default_factory=list)
    #: What this run has written, and may replace when it saves again.
    saved: set[Path] = field(default_factory=set)

    @property
    def epoch(self) -> int:
        """Epochs that are over."""
        return len(self.history)


def plain_history(history: list[Epoch]) -> list[dict[str, Any]]:
    """A history as plain data, as checkpoints keep it."""
    return [{name: value for name, value in asdict(epoch).items() if name != "seconds"} for epoch in history]
