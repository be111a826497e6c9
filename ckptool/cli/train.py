"""`ckptool train`: train a small model in one of the ways people train, and save what such runs save."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import click

from ..errors import RuleError
from ..train.config import (
    AMP,
    BACKENDS,
    CONTAINERS,
    DEPTHS,
    INITS,
    OPTIMIZERS,
    SAVES,
    SCHEDULES,
    TASKS,
    Config,
    split_saves,
)
from ..train.ways import WAYS
from . import _Terminated
from .documents import print_json
from .help import Command, Option
from .options import FileName

_Command = TypeVar("_Command", bound=Callable[..., Any])
_DEFAULT = Config()


class Console:
    """Shows a run on stderr: a line for each epoch, and a bar within it on a terminal.

    It is sent to the process of rank 0 before anything is drawn.
    """

    def __init__(self, *, bars: bool) -> None:
        self._bars = bars
        self._bar: Any = None
        self._first: float | None = None
        self._drawn = 0.0

    def say(self, text: str) -> None:
        """Print a remark."""
        self._clear()
        click.echo(text, err=True)

    def begin_epoch(self, number: int, epochs: int, steps: int) -> None:
        """Remember what the bar is drawn of."""
        self._epoch, self._epochs, self._steps, self._done = number, epochs, steps, 0

    def step(self, loss: float) -> None:
        """Move the bar, a few times a second."""
        self._done += 1
        now = time.monotonic()
        if self._bars and sys.stderr.isatty() and now - self._drawn > 0.1:
            filled = 30 * self._done // self._steps
            bar = "━" * filled + "─" * (30 - filled)
            line = f"\r\x1b[Kepoch {self._epoch}/{self._epochs} {bar} {self._done}/{self._steps}  loss {loss:.4f}"
            click.echo(line, nl=False, err=True)
            self._drawn = now

    def end_epoch(self, epoch: Any) -> None:
        """Print the line of an epoch."""
        self._clear()
        width = len(str(self._epochs))
        accuracy = "" if epoch.accuracy is None else f"  accuracy {100 * epoch.accuracy:5.1f} %"
        click.echo(
            f"epoch {epoch.number:{width}}/{self._epochs}  loss {epoch.loss:8.4f}  test {epoch.test_loss:8.4f}"
            f"{accuracy}  rate {epoch.rate:g}  {epoch.seconds:.1f} s",
            err=True,
        )

    def _clear(self) -> None:
        if self._drawn:
            click.echo("\r\x1b[K", nl=False, err=True)
            self._drawn = 0.0


def _table(rows: dict[str, str]) -> str:
    width = max(map(len, rows))
    return "\b\n" + "\n".join(f"  {name:{width}}  {summary}" for name, summary in rows.items())


_HELP = f"""Train a small model for real, and save checkpoints as such runs do.

It makes files to try other commands on, and shows why keys have 'module.'. The code in ckptool/train is
meant to be read: one loop, and a short class for each strategy. torch is needed.

Tasks:

{_table(TASKS)}

Strategies:

{_table({name: way.title for name, way in WAYS.items()})}

Kinds of --save, each as KIND or KIND:CONTAINER ({", ".join(CONTAINERS)}):

{_table(SAVES)}

Files are named TASK-STRATEGY-KIND and are in the folder of --out.

Examples:

\b
ckptool train --task housing --strategy ddp --nproc 2 --out run
ckptool train --task vgg --save wrapped,unwrapped:safetensors --out run
ckptool train --resume run/housing-ddp-full.pth --epochs 20 --out run
torchrun --nproc-per-node 2 -m ckptool train --strategy fsdp --out run
"""


def _several(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(part for value in values for part in split_saves(value))


def _rates(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[str, float]:
    rates = {}
    for value in values:
        pattern, _, rate = value.rpartition("=")
        try:
            rates[pattern] = float(rate)
        except ValueError:
            pattern = ""
        if not pattern:
            raise RuleError(f"{value!r} is not PATTERN=RATE", where="--lr-group", hint="--lr-group 'classifier.=0.001'")
    return rates


def _option(name: str, help: str, **more: Any) -> Callable[[_Command], _Command]:
    """An option whose default is the one of Config, shown in the help."""
    field = name.removeprefix("--").replace("-", "_")
    default = getattr(_DEFAULT, field)
    if isinstance(default, bool):
        more.setdefault("is_flag", True)
    elif default is not None:
        more.setdefault("show_default", True)
        more.setdefault("type", type(default))
    return click.option(*more.pop("short", ()), name, field, default=default, help=help, cls=Option, **more)


@click.command(cls=Command, help=_HELP)
@_option("--task", "The task to learn.", metavar="TASK")
@_option("--strategy", "How the training uses several devices.", metavar="STRATEGY")
@click.option(
    "--output", "--out", "-o", "out", type=FileName(), metavar="DIR", required=True, help="Folder for the files."
)
@click.option(
    "--devices",
    multiple=True,
    callback=_several,
    metavar="LIST",
    help="cpu, cuda, or cuda:0,cuda:1. Default: all GPUs, else the CPU.",
    cls=Option,
    heading="Process",
)
@_option(
    "--nproc", "Number of processes; for `manual` on a CPU, of replicas.", type=int, metavar="N", heading="Process"
)
@_option("--wrap-optimizer", "With data-parallel: wrap the optimizer too, as in 2018.", heading="Process")
@_option("--epochs", "Epochs in all, those before --resume included.")
@click.option("--save", multiple=True, callback=_several, metavar="KINDS", help="What to save. Default: wrapped,full.")
@_option("--save-every", "Save after every N epochs; 0: after the last only.", metavar="N")
@_option("--resume", "Continue this run; any strategy may have saved it.", type=FileName(), metavar="FILE")
@_option("--overwrite", "Replace the files of another run in DIR.", heading="Output")
@_option("--batch-size", "Samples of a step, over all devices.", heading="Learning")
@_option("--accumulate", "Forward passes whose gradients make a step.", metavar="N", heading="Learning")
@_option("--drop-last", "Leave out the last batch if it is smaller.", heading="Learning")
@_option("--optimizer", f"{', '.join(OPTIMIZERS)}.", metavar="NAME", heading="Learning")
@_option("--lr", "Learning rate.", heading="Learning")
@click.option(
    "--lr-group",
    "lr_groups",
    multiple=True,
    callback=_rates,
    metavar="PATTERN=RATE",
    help="Another rate for the parameters that match.",
    cls=Option,
    heading="Learning",
)
@_option("--momentum", "Momentum of sgd.", heading="Learning")
@_option("--weight-decay", "Weight decay of the optimizer.", heading="Learning")
@_option("--schedule", f"{', '.join(SCHEDULES)}; with numbers: step:10:0.1.", metavar="NAME", heading="Learning")
@_option("--init", f"{', '.join(INITS)}; with a number: constant:0.01.", metavar="SCHEME", heading="Learning")
@_option("--amp", f"Mixed precision: {', '.join(AMP)}.", metavar="TYPE", heading="Learning")
@_option("--seed", "Seed of all random numbers.", heading="Learning")
@_option("--data", "Table of `housing`, or folder of `imagefolder`.", type=FileName(), metavar="PATH", heading="Data")
@_option("--target", "Column to predict. Default: the last.", type=str, metavar="NAME", heading="Data")
@_option("--labels", "A JSON file with the number of each class.", type=FileName(), metavar="FILE", heading="Data")
@_option("--samples", "Number of synthetic samples.", type=int, metavar="N", heading="Data")
@_option("--test-fraction", "Share of the samples to test with.", heading="Data")
@_option("--workers", "Number of processes that load data.", metavar="N", heading="Data")
@_option("--depth", f"Layers of `vgg`: {', '.join(map(str, DEPTHS))}.", heading="Model")
@_option("--width", "Channels of `vgg`, as a part of the real ones; 1 is the real VGG.", heading="Model")
@_option("--batch-norm", "Batch norm in `vgg`.", heading="Model")
@_option("--classes", "Number of classes of synthetic images.", heading="Data")
@_option("--image-size", "Scale images of a folder to this size.", heading="Data")
@_option("--backend", f"{', '.join(BACKENDS)}; auto is nccl on GPUs, else gloo.", metavar="NAME", heading="Process")
@_option(
    "--rendezvous", "Where processes meet: env://, tcp://HOST:PORT, file:///PATH.", metavar="URL", heading="Process"
)
@click.option(
    "--curves/--no-curves",
    default=True,
    help="Draw the curves of loss and accuracy as a PNG.",
    cls=Option,
    heading="Output",
)
@_option("--tensorboard", "Write logs for TensorBoard.", heading="Output")
@click.option(
    "--json", "as_json", is_flag=True, help="Print the result of the run as JSON.", cls=Option, heading="Output"
)
@click.option("-q", "--quiet", is_flag=True, help="Print nothing.", cls=Option, heading="Output")
@_option("--verbose", "Show devices, and batch sizes outside and inside the model.", short=("-v",), heading="Output")
def train(as_json: bool, quiet: bool, **options: Any) -> None:
    """See _HELP."""
    gc.enable()  # a run leaves much behind
    options["devices"] = options["devices"] or _DEFAULT.devices
    config = Config(**options)
    config.check()
    from ..train import run

    if os.environ.get("RANK", "0") != "0":  # under torchrun, one process speaks for all
        quiet, as_json = True, False
    try:
        with _children_leave_current_folder():
            done = run(config, None if quiet else Console(bars=not as_json))
    except (KeyboardInterrupt, _Terminated) as error:
        interrupted = isinstance(error, KeyboardInterrupt)
        what = "interrupted" if interrupted else "terminated"
        click.echo(f"Error: {what}; what was saved before is whole", err=True)
        raise click.exceptions.Exit(130 if interrupted else 143) from None
    if as_json:
        print_json("train", _document(config, done))
    elif not quiet:
        for path in done.files:
            click.echo(f"wrote {path}", err=True)


@contextlib.contextmanager
def _children_leave_current_folder() -> Iterator[None]:
    """Let processes that are started within it import nothing from there. (Python before 3.11 does not know how.)"""
    before = os.environ.get("PYTHONSAFEPATH")
    os.environ["PYTHONSAFEPATH"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONSAFEPATH"]
        else:
            os.environ["PYTHONSAFEPATH"] = before


def _document(config: Config, done: Any) -> dict[str, Any]:
    from dataclasses import asdict

    return {
        "task": config.task,
        "strategy": config.strategy,
        "history": [asdict(epoch) for epoch in done.history],
        "files": [os.fspath(path) for path in done.files],
        "remarks": list(done.remarks),
    }
