"""What is learned: for each task its data, its network, and its loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from . import data, models
from .config import Config
from .data import Data


@dataclass(frozen=True)
class Task:
    """One thing to learn.

    Attributes:
        data: reads or makes the samples.
        network: makes the network for them.
        loss: the mean over a batch of what is minimised.
    """

    data: Callable[[Config], Data]
    network: Callable[[Config, Data], nn.Module]
    loss: Callable[[], nn.Module] = nn.CrossEntropyLoss


TASKS = {
    "housing": Task(data.housing, lambda config, data: models.HousingNet(), nn.MSELoss),
    "cnn": Task(
        lambda config: data.gratings(config, (3, 32, 32), 1000),
        lambda config, data: models.ConvNet(len(data.classes)),
    ),
    "lenet": Task(
        lambda config: data.gratings(config, (1, 28, 28), 1000),
        lambda config, data: models.LeNet(len(data.classes)),
    ),
    "vgg": Task(
        lambda config: data.gratings(config, (3, 32, 32), 1000),
        lambda config, data: models.VGG(
            config.depth, config.width, batch_norm=config.batch_norm, classes=len(data.classes)
        ),
    ),
    "imagefolder": Task(data.image_folder, lambda config, data: models.ConvNet(len(data.classes))),
}


def network(config: Config, data: Data) -> nn.Module:
    """The network of a run with its first weights."""
    model = TASKS[config.task].network(config, data)
    models.initialise(model, config.init)
    return model
