"""Train for real on one or several devices, and save what such runs save: `ckptool train`.

    run = ckptool.train.run(ckptool.train.Config(task="housing", strategy="ddp", nproc=2, out="run"))
    run.history[-1].loss, run.files

Where to read: `strategies` has the ways of training, one short class each; `loop` the loop that all of them go
through; `tasks`, `models` and `data` what is learned; `saving` and `resume` what is kept; `launch` how processes start.

torch is needed. It is imported when `run` is first used, so that the options can be shown without it. If torch is
not installed, `from ckptool.train import run` raises `ckptool.NotInstalled`, which is an ImportError.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..errors import require
from ..lazy import lazily
from .config import Config, Save

if TYPE_CHECKING:
    from .launch import run
    from .session import Epoch, Run, Watcher

__all__ = ["Config", "Epoch", "Run", "Save", "Watcher", "run"]

_HOMES = {"run": "launch", "Epoch": "session", "Run": "session", "Watcher": "session"}

_imported = lazily(__name__, _HOMES, globals())


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        require("training", "torch", extra="train")
    return _imported(name)
