"""Ranks to which something happens. Processes that are started import this file."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass

import torch

from ckptool.train import devices
from ckptool.train.devices import Place


@dataclass(frozen=True)
class Doomed(Place):
    """The place of a rank to which something happens as soon as it begins to train."""

    fate: str = ""

    @property
    def leads(self) -> bool:
        if "RANK" in os.environ and self.fate == "raise":
            raise ValueError("no more\nthan this")
        if "RANK" in os.environ:
            os.kill(os.getpid(), getattr(signal, self.fate))
            time.sleep(60)
        return self.rank == 0


def doom(fate: str) -> None:
    """Let the next run of this process have two ranks, the second of which meets FATE."""
    cpu = (torch.device("cpu"),)
    devices.places = lambda config: [Place(cpu, 0, 2), Doomed(cpu, 1, 2, 1, fate)]
