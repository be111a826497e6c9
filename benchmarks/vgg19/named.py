"""Layers named by block and place."""

import torch.nn.functional as F
from torch import nn

BLOCKS = ((2, 64), (2, 128), (4, 256), (4, 512), (4, 512))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        before = 3
        for block, (layers, width) in enumerate(BLOCKS, 1):
            for layer in range(1, layers + 1):
                setattr(self, f"conv{block}_{layer}", nn.Conv2d(before, width, 3, padding=1))
                before = width
        self.fc6, self.fc7, self.fc8 = nn.Linear(25088, 4096), nn.Linear(4096, 4096), nn.Linear(4096, 1000)

    def forward(self, x):
        for block, (layers, _) in enumerate(BLOCKS, 1):
            for layer in range(1, layers + 1):
                x = F.relu(getattr(self, f"conv{block}_{layer}")(x))
            x = F.max_pool2d(x, 2)
        return self.fc8(F.relu(self.fc7(F.relu(self.fc6(x.flatten(1))))))
