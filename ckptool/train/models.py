"""The networks that are trained, and how their weights begin."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from .config import INITS, with_numbers


class HousingNet(nn.Module):
    """13 features -> 16 -> 32 -> 1 value. Input [N, 13], output [N, 1]."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(13, 16)
        self.fc2 = nn.Linear(16, 32)
        self.fc3 = nn.Linear(32, 1)

    def forward(self, features: Tensor) -> Tensor:
        """Predict a value for each row."""
        hidden = torch.relu(self.fc1(features))
        hidden = torch.relu(self.fc2(hidden))
        output: Tensor = self.fc3(hidden)
        return output


class ConvNet(nn.Module):
    """Two convolutions with batch norm and a classifier. Input [N, 3, H, W] of any size, output [N, classes]."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, padding=1)
        self.bn1 = nn.BatchNorm2d(16)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.bn2 = nn.BatchNorm2d(32)
        self.pool = nn.AdaptiveAvgPool2d(2)
        self.fc = nn.Linear(32 * 2 * 2, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Score each class."""
        hidden = torch.max_pool2d(torch.relu(self.bn1(self.conv1(images))), 2)
        hidden = self.pool(torch.relu(self.bn2(self.conv2(hidden))))
        scores: Tensor = self.fc(hidden.flatten(1))
        return scores


class LeNet(nn.Module):
    """LeNet-5 with ReLU and max pooling, as it is taught today. Input [N, 1, 28, 28], output [N, classes]."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, 5, padding=2)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.fc1 = nn.Linear(16 * 5 * 5, 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Score each class."""
        hidden = torch.max_pool2d(torch.relu(self.conv1(images)), 2)
        hidden = torch.max_pool2d(torch.relu(self.conv2(hidden)), 2)
        hidden = torch.relu(self.fc1(hidden.flatten(1)))
        scores: Tensor = self.fc3(torch.relu(self.fc2(hidden)))
        return scores


class VGG(nn.Module):
    """VGG with torchvision's names: `features.N`, `classifier.0`, `.3` and `.6`. Input [N, 3, H, W], H and W from 32.

    Args:
        depth: 11, 13, 16 or 19 layers with weights (Simonyan and Zisserman 2014, columns A, B, D, E).
        width: all numbers of channels times this. With 1 and 1000 classes, VGG19 has its 143,667,240 parameters.
        batch_norm: a BatchNorm2d after each convolution, as in torchvision's vgg19_bn.
        classes: outputs.
    """

    def __init__(self, depth: int = 11, width: float = 1.0, *, batch_norm: bool = False, classes: int = 1000) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = 3
        for stage, repeats in zip((64, 128, 256, 512, 512), _REPEATS[depth], strict=True):
            for _ in range(repeats):
                wide = max(1, round(stage * width))
                layers.append(nn.Conv2d(channels, wide, 3, padding=1))
                layers += [nn.BatchNorm2d(wide)] if batch_norm else []
                layers.append(nn.ReLU(inplace=True))
                channels = wide
            layers.append(nn.MaxPool2d(2))
        hidden = max(1, round(4096 * width))
        self.features = nn.Sequential(*layers)
        self.avgpool = nn.AdaptiveAvgPool2d(7)
        self.classifier = nn.Sequential(
            nn.Linear(channels * 7 * 7, hidden),
            nn.ReLU(inplace=True),
            nn.Dropout(),
            nn.Linear(hidden, hidden),
            nn.ReLU(inplace=True),
            nn.Dropout(),
            nn.Linear(hidden, classes),
        )
        self._begin(width)

    def _begin(self, width: float) -> None:
        """As torchvision does; but the deviation of 0.01 that it has for linear layers fits their real size, and a
        narrow VGG would not learn from it."""
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            elif isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, 0, 0.01 / math.sqrt(width))
            else:
                continue
            nn.init.zeros_(module.bias)

    def forward(self, images: Tensor) -> Tensor:
        """Score each class."""
        scores: Tensor = self.classifier(self.avgpool(self.features(images)).flatten(1))
        return scores


#: Depth -> convolutions in each of the five stages.
_REPEATS = {11: (1, 1, 2, 2, 2), 13: (2, 2, 2, 2, 2), 16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}


def initialise(model: nn.Module, scheme: str) -> None:
    """Let the weights begin by a scheme: convolutions and linear layers by SCHEME, their biases with 0, norms with 1.

    Args:
        model: changed where it is.
        scheme: "xavier" (uniform; Glorot and Bengio 2010), "kaiming" (normal, fan out; He et al. 2015),
            "constant" or "constant:VALUE" (0.01), or "default": as the layers, or a VGG, begin by themselves.
    """
    name, numbers = with_numbers("--init", scheme, INITS)
    if name == "default":
        return

    def begin(module: nn.Module) -> None:
        if isinstance(module, nn.Conv2d | nn.Linear):
            if name == "xavier":
                nn.init.xavier_uniform_(module.weight)
            elif name == "kaiming":
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            else:
                nn.init.constant_(module.weight, numbers[0])
        elif isinstance(module, nn.BatchNorm2d):
            nn.init.ones_(module.weight)
        else:
            return
        if module.bias is not None:
            nn.init.zeros_(module.bias)

    model.apply(begin)
