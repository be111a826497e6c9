"""The optimizer: groups of parameters with rates of their own, and how the rate changes over the epochs."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, ExponentialLR, LRScheduler, StepLR

from ..errors import NoMatch, RuleError
from ..keys import Pattern, closest
from .config import Config


def build_optimizer(config: Config, model: nn.Module) -> torch.optim.Optimizer:
    """An optimizer for the parameters of MODEL, in a group for each rate.

    Raises:
        NoMatch: a pattern of `--lr-group` matches no parameter.
    """
    rules = [(Pattern.parse(text), rate) for text, rate in config.lr_groups.items()]
    groups: dict[float, list[nn.Parameter]] = {config.lr: []}
    used = set()
    names = [name for name, _ in model.named_parameters()]
    for name, parameter in model.named_parameters():
        pattern, rate = next(((p, rate) for p, rate in rules if p.matches(name)), (None, config.lr))
        used.add(pattern)
        groups.setdefault(rate, []).append(parameter)
    for pattern, _ in rules:
        if pattern not in used:
            near = closest(pattern.text, names)
            raise NoMatch(f"no parameter matches {pattern.text!r}", where="--lr-group", evidence=near)
    listed: list[dict[str, Any]] = [{"params": group, "lr": rate} for rate, group in groups.items() if group]
    if config.optimizer == "sgd":
        return torch.optim.SGD(listed, config.lr, momentum=config.momentum, weight_decay=config.weight_decay)
    adam = torch.optim.Adam if config.optimizer == "adam" else torch.optim.AdamW
    return adam(listed, config.lr, weight_decay=config.weight_decay)


def build_scheduler(config: Config, optimizer: torch.optim.Optimizer) -> LRScheduler | None:
    """What changes the rate after each epoch; None if it stays.

    Raises:
        RuleError: the numbers after the name of the schedule are none.
    """
    name, *numbers = config.schedule.split(":")
    try:
        if name == "step":
            size, factor = [*numbers, *("10", "0.1")[len(numbers) :]]
            return StepLR(optimizer, int(size), float(factor))
        if name == "exponential":
            (factor,) = numbers or ["0.9"]
            return ExponentialLR(optimizer, float(factor))
        if name == "cosine":
            (length,) = numbers or [str(config.epochs)]
            return CosineAnnealingLR(optimizer, int(length))
    except ValueError:
        raise RuleError(
            f"{config.schedule!r} is no schedule",
            where="--schedule",
            hint="--schedule step:10:0.1, exponential:0.9 or cosine",
        ) from None
    return None


def parameter_names(strategy: Any) -> list[list[str]]:
    """The names of the parameters in each group of the optimizer, which numbers them group after group."""
    name_of = {id(parameter): name for name, parameter in strategy.plain.named_parameters()}
    return [[name_of[id(p)] for p in group["params"]] for group in strategy.optimizer.param_groups]
