"""The classifier as convolutions, and registered first."""

import torch.nn.functional as F
from torch import nn


class Stage(nn.Module):
    def __init__(self, before, width, layers):
        super().__init__()
        self.layers = nn.ModuleList(
            [nn.Conv2d(before if n == 0 else width, width, 3, padding=1) for n in range(layers)]
        )

    def forward(self, x):
        for layer in self.layers:
            x = F.relu(layer(x))
        return F.max_pool2d(x, 2)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.score, self.fc7, self.fc6 = nn.Conv2d(4096, 1000, 1), nn.Conv2d(4096, 4096, 1), nn.Conv2d(512, 4096, 7)
        sizes = ((3, 64, 2), (64, 128, 2), (128, 256, 4), (256, 512, 4), (512, 512, 4))
        self.stages = nn.ModuleList([Stage(*size) for size in sizes])

    def forward(self, x):
        for stage in self.stages:
            x = stage(x)
        return self.score(F.relu(self.fc7(F.relu(self.fc6(x))))).flatten(1)
