"""The optimizer: groups of parameters with rates of their own, and how the rate changes over the epochs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, ExponentialLR, LRScheduler, StepLR

from ..errors import NoMatch
from ..keys import Pattern, closest
from .config import SCHEDULES, Config, with_numbers


def build_optimizer(config: Config, model: nn.Module) -> torch.optim.Optimizer:
    """An optimizer for the parameters of MODEL, in a group for each rate.

    Raises:
        NoMatch: a pattern of `--lr-group` matches no parameter.
    """
    rules = [(Pattern.parse(text), rate) for text, rate in config.lr_groups.items()]
    groups: dict[float, list[nn.Parameter]] = {config.lr: []}
    names = [name for name, _ in model.named_parameters()]
    for pattern, _ in rules:
        if not any(map(pattern.matches, names)):
            near = closest(pattern.text, names)
            raise NoMatch(f"no parameter matches {pattern.text!r}", where="--lr-group", evidence=near)
    for name, parameter in model.named_parameters():
        rate = next((rate for pattern, rate in rules if pattern.matches(name)), config.lr)
        groups.setdefault(rate, []).append(parameter)
    listed: list[dict[str, Any]] = [{"params": group, "lr": rate} for rate, group in groups.items() if group]
    if config.optimizer == "sgd":
        return torch.optim.SGD(listed, config.lr, momentum=config.momentum, weight_decay=config.weight_decay)
    adam = torch.optim.Adam if config.optimizer == "adam" else torch.optim.AdamW
    return adam(listed, config.lr, weight_decay=config.weight_decay)


def build_scheduler(config: Config, optimizer: torch.optim.Optimizer) -> LRScheduler | None:
    """What changes the rate after each epoch; None if it stays."""
    name, numbers = with_numbers("--schedule", config.schedule, SCHEDULES)
    if name == "step":
        return StepLR(optimizer, int(numbers[0]), numbers[1])
    if name == "exponential":
        return ExponentialLR(optimizer, numbers[0])
    if name == "cosine":
        return CosineAnnealingLR(optimizer, config.epochs if math.isinf(numbers[0]) else int(numbers[0]))
    return None


def parameter_names(strategy: Any) -> list[list[str]]:
    """The names of the parameters in each group of the optimizer, which numbers them group after group."""
    name_of = {id(parameter): name for name, parameter in strategy.plain.named_parameters()}
    return [[name_of[id(p)] for p in group["params"]] for group in strategy.optimizer.param_groups]


def by_name(state: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """The state of an optimizer with names for keys, as torch.distributed.checkpoint takes it."""
    return {
        "state": {names[number]: entry for number, entry in state["state"].items()},
        "param_groups": [
            {**group, "params": [names[number] for number in group["params"]]} for group in state["param_groups"]
        ],
    }
