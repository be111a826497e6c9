"""Train for real on one or several devices, and save what such runs save: `ckptool train`.

    run = ckptool.train.run(ckptool.train.Config(task="housing", strategy="ddp", nproc=2, out="run"))
    run.history[-1].loss, run.files

Where to read: `strategies` has the ways of training, one short class each; `loop` the loop that all of them go
through; `tasks`, `models` and `data` what is learned; `saving` and `resume` what is kept; `launch` how processes start.

torch is needed. It is imported when `run` is first used, so that the options can be shown without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy import lazily
from .config import Config, Save

if TYPE_CHECKING:
    from .launch import run
    from .session import Epoch, Run, Watcher

__all__ = ["Config", "Epoch", "Run", "Save", "Watcher", "run"]

_HOMES = {"run": "launch", "Epoch": "session", "Run": "session", "Watcher": "session"}


__getattr__ = lazily(__name__, _HOMES, globals())
