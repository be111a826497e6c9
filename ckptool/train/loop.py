"""The training loop: the same for every task and every strategy."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader

from ..disk.interrupts import put_off_signals
from ..errors import CheckpointError, TrainingFailed, counted
from . import checkpoints, devices, resume
from .children import loaders_start, no_child_left
from .config import Config
from .data import unburied
from .devices import Place
from .optim import build_optimizer, build_scheduler
from .session import Epoch, Run, Session, Silent, Watcher
from .strategies import STRATEGIES
from .tasks import TASKS, network

#: Part of the moving average that stays at each step.
_EMA_DECAY = 0.99


@no_child_left()
def train_rank(config: Config, place: Place, watcher: Watcher) -> Run:
    """Train in this process: all there is to do for most strategies, one rank's part for the distributed ones.

    Raises:
        CheckpointError: bad input, or a loss that is no number.
    """
    watcher = watcher if place.leads else Silent()
    batch = devices.check_batch(config, place)
    task = TASKS[config.task]
    data = task.data(config)
    torch.manual_seed(config.seed)  # all processes begin with the same weights
    model = network(config, data)
    before = resume.read(config.resume) if config.resume is not None else None
    if before:
        before.load_weights(model, config.resume)
    strategy = STRATEGIES[config.strategy](config, place, model, lambda module: build_optimizer(config, module))
    scheduler = build_scheduler(config, strategy.optimizer)
    average = None
    if any(save.kind == "ema" for save in config.saves):
        average = AveragedModel(strategy.plain, multi_avg_fn=get_ema_multi_avg_fn(_EMA_DECAY))
    session = Session(config, place, strategy, scheduler, average, data.classes)
    torch.manual_seed(config.seed + place.rank)  # from here on each process draws its own numbers
    remarks = devices.remarks(config, place)
    if before:
        remarks += before.restore(session)
    for line in remarks:
        watcher.say(line)
    if config.verbose:
        for line in devices.describe(place.devices):
            watcher.say(line)

    loss_of = task.loss()
    sampler = strategy.sampler(data.train)
    pinned = torch.accelerator.is_available()
    draws = torch.Generator()  # of the workers that load
    start = loaders_start() if config.workers else None
    loader = DataLoader(
        data.train,
        batch,
        sampler=sampler,
        drop_last=config.drop_last,
        num_workers=config.workers,
        pin_memory=pinned,
        generator=draws,
        multiprocessing_context=start,
    )
    tests = DataLoader(
        data.test,
        batch,
        num_workers=config.workers,
        pin_memory=pinned,
        multiprocessing_context=start,
    )
    steps = math.ceil(len(loader) / config.accumulate)
    if not steps:
        raise TrainingFailed(
            f"{counted(len(data.train), 'sample')} are less than one batch, and --drop-last leaves the last one out",
            where="--batch-size",
        )
    files: list[Path] = []
    first = session.epoch + 1
    for number in range(first, config.epochs + 1):
        began = time.perf_counter()
        sampler.set_epoch(number)
        draws.manual_seed((config.seed + number) * 65_536 + place.rank)  # a run that is resumed draws the same
        watcher.begin_epoch(number, config.epochs, steps)
        rate = strategy.optimizer.param_groups[0]["lr"]
        with _shown_sizes(session, watcher) if config.verbose and number == first else contextlib.nullcontext():
            loss = _train_epoch(session, loader, loss_of, watcher)
        test_loss, accuracy = _test(session, tests, loss_of)
        if scheduler:
            scheduler.step()
        epoch = Epoch(number, loss, test_loss, accuracy, rate, time.perf_counter() - began)
        session.history.append(epoch)
        watcher.end_epoch(epoch)
        if number == config.epochs or (config.save_every and number % config.save_every == 0):
            files = checkpoints.save(session)
    if not files:
        raise TrainingFailed(
            f"the checkpoint has {counted(session.epoch, 'epoch')} behind it; there is nothing left to train",
            where=config.resume or "--epochs",
            hint=f"--epochs {session.epoch + config.epochs}",
        )
    return Run(tuple(session.history), tuple(files), tuple(remarks))


def _train_epoch(session: Session, loader: Any, loss_of: Any, watcher: Watcher) -> float:
    """Train with every sample once. Returns the mean loss."""
    strategy, config = session.strategy, session.config
    strategy.train()
    total = torch.zeros(2, dtype=torch.float64)  # sum of the losses of all samples, number of samples
    for batches in _in_groups(loader, config.accumulate):
        samples = sum(len(inputs) for inputs, _ in batches)
        mean = 0.0
        for place, (inputs, targets) in enumerate(batches, 1):
            share = len(inputs) / samples
            loss = strategy.backward(inputs, targets, loss_of, share, last=place == len(batches))
            mean += loss.item() * share
        if not math.isfinite(mean):
            raise TrainingFailed(
                f"the loss is {mean} in epoch {session.epoch + 1}",
                where=f"rank {session.place.rank}" if session.place.world > 1 else "",
                hint=f"--lr {config.lr / 10:g}" + (", or --amp bf16" if config.amp == "fp16" else ""),
            )
        strategy.step()
        if session.average is not None:
            session.average.update_parameters(strategy.plain)
        total += torch.tensor([mean * samples, samples], dtype=torch.float64)
        watcher.step(mean)
    loss_sum, count = strategy.total(total).tolist()
    return float(loss_sum / count)


def _in_groups(loader: Any, size: int) -> Iterator[list[tuple[Tensor, Tensor]]]:
    """The batches of one step of the optimizer; the last step may have fewer."""
    group: list[tuple[Tensor, Tensor]] = []
    for batch in _batches(loader):
        group.append(batch)
        if len(group) == size:
            yield group
            group = []
    if group:
        yield group


def _batches(loader: Any) -> Iterator[tuple[Tensor, Tensor]]:
    with put_off_signals():
        batches = iter(loader)  # starts the processes that load
    try:
        yield from batches
    except CheckpointError as error:
        raise unburied(error) from None


@torch.no_grad()
def _test(session: Session, loader: Any, loss_of: Any) -> tuple[float, float | None]:
    """Mean loss and accuracy over the test samples. Every process goes through all of them: there are few, and shards
    of equal length would count some twice."""
    strategy = session.strategy
    strategy.train(False)
    loss_sum = right = count = 0.0
    for inputs, targets in _batches(loader):
        with strategy.autocast():
            outputs = strategy.forward(inputs)
        targets = targets.to(outputs.device)
        loss_sum += loss_of(outputs.float(), targets).item() * len(inputs)
        count += len(inputs)
        if session.classes:
            right += (outputs.argmax(1) == targets).sum().item()
    return loss_sum / count, right / count if session.classes else None


@contextlib.contextmanager
def _shown_sizes(session: Session, watcher: Watcher) -> Iterator[None]:
    """Within it, say for the first batches how large they are outside the model and inside each replica."""
    strategy = session.strategy
    left = 2  # batches
    backward = strategy.backward

    def inside(module: Any, inputs: tuple[Tensor, ...]) -> None:
        if left >= 0:
            watcher.say(f"  inside the model: {len(inputs[0])} samples on {inputs[0].device}")

    def outside(inputs: Tensor, *rest: Any, **options: Any) -> Tensor:
        nonlocal left
        left -= 1
        if left >= 0:
            watcher.say(f"a batch of {len(inputs)}" + (" for rank 0" if session.place.world > 1 else ""))
        result: Tensor = backward(inputs, *rest, **options)
        return result

    models = getattr(strategy, "replicas", [strategy.plain])
    hooks = [model.register_forward_pre_hook(inside) for model in models]
    strategy.backward = outside
    try:
        yield
    finally:
        del strategy.backward
        for hook in hooks:
            hook.remove()
