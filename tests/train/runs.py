"""What is trained in the tests, and who watches. Ranks import this file; `python -m runs FILE` trains what is in it."""

from __future__ import annotations

import pickle
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ckptool.train
from ckptool.train import Config

#: What all strategies are given: one seed, one permutation of the data, one global batch. Of 84 rows to train with, 80
#: make five steps an epoch, and the last four are dropped.
SAME = Config(
    samples=105,
    batch_size=16,
    drop_last=True,
    epochs=3,
    lr=0.05,
    lr_groups={"fc3.": 0.02},
    schedule="exponential:0.8",
    weight_decay=0.001,
    seed=3,
    devices=("cpu",),
    curves=False,
)

#: Where they differ. Between them they meet in all three ways: env://, tcp://, file://.
HOW = {
    "single": {},
    "data-parallel": {},
    "functional": {},
    "manual": {"nproc": 3},  # 16 samples do not divide evenly by 3
    "average-gradients": {"nproc": 2, "rendezvous": "file://"},
    "ddp": {"nproc": 2, "rendezvous": "tcp://"},
    "fsdp": {"nproc": 2, "accumulate": 2},
}


class Keeper:
    """Keeps what a run has saved after two epochs in a folder `after-2`, and what it was told in `told`."""

    def __init__(self, out: Path) -> None:
        self.out = out

    def say(self, text: str) -> None:
        with open(self.out / "told", "a") as file:
            file.write(text + "\n")

    def begin_epoch(self, number: int, epochs: int, steps: int) -> None:
        self.say(f"epoch {number} of {epochs}: {steps} steps")
        if number == 3:
            shutil.copytree(self.out, self.out / "after-2")

    def step(self, loss: float) -> None:
        pass

    def end_epoch(self, epoch: object) -> None:
        pass


class Slow(Keeper):
    """Makes a run last until it is ended, and says when it has begun."""

    def begin_epoch(self, number: int, epochs: int, steps: int) -> None:
        pass

    def step(self, loss: float) -> None:
        self.say("a step")
        time.sleep(0.1)


def free_port():
    """A port that the system has just given, and gives to nobody else for some time."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def limit_files(room: int) -> None:
    """Let no file grow beyond ROOM bytes, for this process and those that it starts."""
    import resource

    resource.setrlimit(resource.RLIMIT_FSIZE, (room, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


def run_in_forks(forks: Any, config: Config, watcher: Any = None, first: Callable[[], object] | None = None) -> Any:
    """What `ckptool.train.run` does and returns or raises, in a fork whose ranks are forks: see forked.py.

    FIRST is called there before; the fork alone is changed by it.
    """
    with tempfile.TemporaryDirectory() as folder:
        asked, said = Path(folder, "asked"), Path(folder, "said")
        asked.write_bytes(pickle.dumps((config, watcher, first)))
        assert forks.run("runs", [str(asked)], Path.cwd(), said) == 0, said.read_text()
        came = pickle.loads(asked.read_bytes())
        left = forks.left()
        assert left == {}, left
        if isinstance(came, Exception):
            raise came
        return came


def main() -> None:
    """Train what the file in the command line holds, and put there what comes of it."""
    asked = Path(sys.argv[1])
    config, watcher, first = pickle.loads(asked.read_bytes())
    came: Any
    try:
        if first is not None:
            first()
        came = ckptool.train.run(config, watcher)
    except ckptool.CheckpointError as error:
        came = error
    asked.write_bytes(pickle.dumps(came))


if __name__ == "__main__":
    main()
