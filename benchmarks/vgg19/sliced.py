"""The features in slices, the classifier in a dict."""

import torch.nn.functional as F
from torch import nn


def convs(before, width, layers):
    return [x for n in range(layers) for x in (nn.Conv2d(width if n else before, width, 3, padding=1), nn.ReLU())]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        pool = nn.MaxPool2d(2)
        self.slice1 = nn.Sequential(*convs(3, 64, 2), pool, *convs(64, 128, 1))
        self.slice2 = nn.Sequential(*convs(128, 128, 1), pool, *convs(128, 256, 1))
        self.slice3 = nn.Sequential(*convs(256, 256, 3), pool, *convs(256, 512, 1))
        self.slice4 = nn.Sequential(*convs(512, 512, 3), pool, *convs(512, 512, 4))
        self.fc = nn.ModuleDict({"a": nn.Linear(25088, 4096), "b": nn.Linear(4096, 4096), "c": nn.Linear(4096, 1000)})

    def forward(self, x):
        x = self.slice4(self.slice3(self.slice2(self.slice1(x))))
        x = F.max_pool2d(x, 2).flatten(1)
        return self.fc["c"](F.relu(self.fc["b"](F.relu(self.fc["a"](x)))))
