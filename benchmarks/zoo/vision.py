"""Pairs: pictures."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from . import below, by_name, pair


def _relu(*layers: nn.Module) -> nn.Sequential:
    out: list[nn.Module] = []
    for layer in layers:
        out += [layer, nn.ReLU()]
    return nn.Sequential(*out)


# -- inception: branches that are concatenated


class _BasicConv(nn.Module):
    def __init__(self, i: int, o: int, **k: Any) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv2d(i, o, bias=False, **k), nn.BatchNorm2d(o, eps=1e-3)

    def forward(self, x: Any) -> Any:
        return F.relu(self.bn(self.conv(x)))


class _InceptionA(nn.Module):
    def __init__(self, i: int, a: int, b1: int, b2: int, c1: int, c2: int, d: int) -> None:
        super().__init__()
        self.branch1 = _BasicConv(i, a, kernel_size=1)
        self.branch2 = nn.Sequential(_BasicConv(i, b1, kernel_size=1), _BasicConv(b1, b2, kernel_size=3, padding=1))
        self.branch3 = nn.Sequential(_BasicConv(i, c1, kernel_size=1), _BasicConv(c1, c2, kernel_size=3, padding=1))
        self.branch4 = nn.Sequential(nn.MaxPool2d(3, 1, 1), _BasicConv(i, d, kernel_size=1))

    def forward(self, x: Any) -> Any:
        return torch.cat([self.branch1(x), self.branch2(x), self.branch3(x), self.branch4(x)], 1)


class _CBR(nn.Sequential):
    def __init__(self, i: int, o: int, k: int) -> None:
        super().__init__(nn.Conv2d(i, o, k, padding=k // 2, bias=False), nn.BatchNorm2d(o, eps=1e-3), nn.ReLU())


class _InceptionB(nn.Module):
    def __init__(self, i: int, a: int, b1: int, b2: int, c1: int, c2: int, d: int) -> None:
        super().__init__()
        self.b1x1 = _CBR(i, a, 1)
        self.b3x3_reduce, self.b3x3 = _CBR(i, b1, 1), _CBR(b1, b2, 3)
        self.b5x5_reduce, self.b5x5 = _CBR(i, c1, 1), _CBR(c1, c2, 3)
        self.pool_proj = _CBR(i, d, 1)

    def forward(self, x: Any) -> Any:
        pooled = F.max_pool2d(x, 3, 1, 1)
        one, three, five = self.b1x1(x), self.b3x3(self.b3x3_reduce(x)), self.b5x5(self.b5x5_reduce(x))
        return torch.cat([one, three, five, self.pool_proj(pooled)], 1)


class _GoogA(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = _BasicConv(3, 8, kernel_size=5, stride=2)
        self.inception3a = _InceptionA(8, 4, 6, 8, 2, 4, 4)
        self.inception3b = _InceptionA(20, 8, 8, 12, 4, 8, 4)
        self.fc = nn.Linear(32, 7)

    def forward(self, x: Any) -> Any:
        return self.fc(self.inception3b(self.inception3a(self.conv1(x))).mean((2, 3)))


class _GoogB(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 5, 2, bias=False), nn.BatchNorm2d(8, eps=1e-3), nn.ReLU())
        self.blocks = nn.ModuleList([_InceptionB(8, 4, 6, 8, 2, 4, 4), _InceptionB(20, 8, 8, 12, 4, 8, 4)])
        self.classifier = nn.Linear(32, 7)

    def forward(self, x: Any) -> Any:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.classifier(x.mean((2, 3)))


@pair("float32[2,3,32,32]")
def inception_branches() -> tuple[nn.Module, nn.Module]:
    return _GoogA(), _GoogB()


@pair("float32[2,3,32,32]", prepare=by_name)
def inception_branches_sorted() -> tuple[nn.Module, nn.Module]:
    return _GoogA(), _GoogB()


# -- ConvNeXt: depthwise convolution, layer norm, two pointwise layers (linear here, 1x1 convolutions there)


class _NextBlockA(nn.Module):
    def __init__(self, d: int) -> None:
        super().__init__()
        self.dwconv, self.norm = nn.Conv2d(d, d, 7, padding=3, groups=d), nn.LayerNorm(d, eps=1e-6)
        self.pwconv1, self.pwconv2 = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)
        self.gamma = nn.Parameter(torch.ones(d))

    def forward(self, x: Any) -> Any:
        y = self.dwconv(x).permute(0, 2, 3, 1)
        y = self.gamma * self.pwconv2(F.gelu(self.pwconv1(self.norm(y))))
        return x + y.permute(0, 3, 1, 2)


class _NextNormA(nn.Module):
    def __init__(self, d: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(d)), nn.Parameter(torch.zeros(d))

    def forward(self, x: Any) -> Any:
        return F.layer_norm(x.permute(0, 2, 3, 1), self.weight.shape, self.weight, self.bias, 1e-6).permute(0, 3, 1, 2)


class _NextA(nn.Module):
    def __init__(self, dims: tuple[int, ...] = (8, 16)) -> None:
        super().__init__()
        self.downsample_layers = nn.ModuleList([nn.Sequential(nn.Conv2d(3, dims[0], 4, 4), _NextNormA(dims[0]))])
        for i, o in itertools.pairwise(dims):
            self.downsample_layers.append(nn.Sequential(_NextNormA(i), nn.Conv2d(i, o, 2, 2)))
        self.stages = nn.ModuleList([nn.Sequential(*[_NextBlockA(d) for _ in range(2)]) for d in dims])
        self.norm, self.head = nn.LayerNorm(dims[-1], eps=1e-6), nn.Linear(dims[-1], 9)

    def forward(self, x: Any) -> Any:
        for down, stage in zip(self.downsample_layers, self.stages, strict=True):
            x = stage(down(x))
        return self.head(self.norm(x.mean((2, 3))))


class _NextBlockB(nn.Module):
    def __init__(self, d: int) -> None:
        super().__init__()
        self.layer_scale = nn.Parameter(torch.ones(d, 1, 1))
        self.block = nn.Sequential(
            OrderedDict(
                depthwise=nn.Conv2d(d, d, 7, padding=3, groups=d),
                norm=nn.GroupNorm(1, 1) if d < 0 else _NextNormA(d),
                expand=nn.Conv2d(d, 4 * d, 1),
                act=nn.GELU(),
                project=nn.Conv2d(4 * d, d, 1),
            )
        )

    def forward(self, x: Any) -> Any:
        return x + self.layer_scale * self.block(x)


class _NextB(nn.Module):
    def __init__(self, dims: tuple[int, ...] = (8, 16)) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Sequential(nn.Conv2d(3, dims[0], 4, 4), _NextNormA(dims[0]))]
        for n, d in enumerate(dims):
            layers.append(nn.Sequential(*[_NextBlockB(d) for _ in range(2)]))
            if n + 1 < len(dims):
                layers.append(nn.Sequential(_NextNormA(d), nn.Conv2d(d, dims[n + 1], 2, 2)))
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(nn.LayerNorm(dims[-1], eps=1e-6), nn.Linear(dims[-1], 9))

    def forward(self, x: Any) -> Any:
        return self.classifier(self.features(x).mean((2, 3)))


@pair("float32[2,3,32,32]")
def convnext_linear_to_conv() -> tuple[nn.Module, nn.Module]:
    return _NextA(), _NextB()


@pair("float32[2,3,32,32]")
def convnext_conv_to_linear() -> tuple[nn.Module, nn.Module]:
    return _NextB(), _NextA()


# -- residual nets with squeeze and excitation, shortcut registered first, norms before convolutions


class _SEBlockA(nn.Module):
    def __init__(self, i: int, o: int, s: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(i, o, 3, s, 1, bias=False), nn.BatchNorm2d(o)
        self.conv2, self.bn2 = nn.Conv2d(o, o, 3, 1, 1, bias=False), nn.BatchNorm2d(o)
        self.se = nn.Module()
        self.se.fc1, self.se.fc2 = nn.Linear(o, o // 4), nn.Linear(o // 4, o)
        self.downsample = nn.Sequential(nn.Conv2d(i, o, 1, s, bias=False), nn.BatchNorm2d(o)) if i != o else None

    def forward(self, x: Any) -> Any:
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        w = torch.sigmoid(self.se.fc2(F.relu(self.se.fc1(y.mean((2, 3))))))
        return F.relu(y * w[..., None, None] + (x if self.downsample is None else self.downsample(x)))


class _SENetA(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 8, 3, 1, 1, bias=False), nn.BatchNorm2d(8)
        self.layer1 = nn.Sequential(_SEBlockA(8, 8, 1), _SEBlockA(8, 8, 1))
        self.layer2 = nn.Sequential(_SEBlockA(8, 16, 2), _SEBlockA(16, 16, 1))
        self.fc = nn.Linear(16, 10)

    def forward(self, x: Any) -> Any:
        return self.fc(self.layer2(self.layer1(F.relu(self.bn1(self.conv1(x))))).mean((2, 3)))


class _SEBlockB(nn.Module):
    def __init__(self, i: int, o: int, s: int) -> None:
        super().__init__()
        self.skip_norm = nn.BatchNorm2d(o) if i != o else None
        self.skip = nn.Conv2d(i, o, 1, s, bias=False) if i != o else None
        self.excite, self.squeeze = nn.Conv2d(o // 4, o, 1), nn.Conv2d(o, o // 4, 1)
        self.second_norm, self.first_norm = nn.BatchNorm2d(o), nn.BatchNorm2d(o)
        self.second, self.first = nn.Conv2d(o, o, 3, 1, 1, bias=False), nn.Conv2d(i, o, 3, s, 1, bias=False)

    def forward(self, x: Any) -> Any:
        y = F.relu(self.first_norm(self.first(x)))
        y = self.second_norm(self.second(y))
        y = y * torch.sigmoid(self.excite(F.relu(self.squeeze(y.mean((2, 3), keepdim=True)))))
        return F.relu(y + (x if self.skip is None or self.skip_norm is None else self.skip_norm(self.skip(x))))


class _SENetB(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(16, 10)
        self.body = nn.ModuleList([_SEBlockB(8, 8, 1), _SEBlockB(8, 8, 1), _SEBlockB(8, 16, 2), _SEBlockB(16, 16, 1)])
        self.stem_norm, self.stem = nn.BatchNorm2d(8), nn.Conv2d(3, 8, 3, 1, 1, bias=False)

    def forward(self, x: Any) -> Any:
        x = F.relu(self.stem_norm(self.stem(x)))
        for block in self.body:
            x = block(x)
        return self.head(x.mean((2, 3)))


@pair("float32[2,3,32,32]")
def se_resnet_reversed_registration() -> tuple[nn.Module, nn.Module]:
    return _SENetA(), _SENetB()


@pair("float32[2,3,32,32]")
def se_resnet_back() -> tuple[nn.Module, nn.Module]:
    return _SENetB(), _SENetA()


# -- pre-activation and wide residual nets


class _PreA(nn.Module):
    def __init__(self, i: int, o: int, s: int) -> None:
        super().__init__()
        self.bn1, self.conv1 = nn.BatchNorm2d(i), nn.Conv2d(i, o, 3, s, 1, bias=False)
        self.bn2, self.conv2 = nn.BatchNorm2d(o), nn.Conv2d(o, o, 3, 1, 1, bias=False)
        self.shortcut = nn.Conv2d(i, o, 1, s, bias=False) if i != o else nn.Identity()

    def forward(self, x: Any) -> Any:
        y = F.relu(self.bn1(x))
        skip = self.shortcut(y) if isinstance(self.shortcut, nn.Conv2d) else x
        return self.conv2(F.relu(self.bn2(self.conv1(y)))) + skip


class _WideA(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, 1, 1, bias=False)
        self.block1 = nn.Sequential(_PreA(4, 8, 1), _PreA(8, 8, 1))
        self.block2 = nn.Sequential(_PreA(8, 16, 2), _PreA(16, 16, 1))
        self.block3 = nn.Sequential(_PreA(16, 32, 2), _PreA(32, 32, 1))
        self.bn, self.fc = nn.BatchNorm2d(32), nn.Linear(32, 5)

    def forward(self, x: Any) -> Any:
        x = self.block3(self.block2(self.block1(self.conv(x))))
        return self.fc(F.relu(self.bn(x)).mean((2, 3)))


class _PreB(nn.Module):
    def __init__(self, i: int, o: int, s: int) -> None:
        super().__init__()
        if i != o:
            self.convdim = nn.Conv2d(i, o, 1, s, bias=False)
        self.residual = nn.Sequential(
            nn.Conv2d(i, o, 3, s, 1, bias=False), nn.BatchNorm2d(o), nn.ReLU(), nn.Conv2d(o, o, 3, 1, 1, bias=False)
        )
        self.pre = nn.BatchNorm2d(i)

    def forward(self, x: Any) -> Any:
        y = F.relu(self.pre(x))
        return self.residual(y) + (self.convdim(y) if hasattr(self, "convdim") else x)


class _WideB(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.entry = nn.Conv2d(3, 4, 3, 1, 1, bias=False)
        widths = [4, 8, 16, 32]
        self.groups = nn.ModuleList(
            nn.ModuleList([_PreB(i, o, 1 if i == 4 else 2), _PreB(o, o, 1)]) for i, o in itertools.pairwise(widths)
        )
        self.final, self.out = nn.BatchNorm2d(32), nn.Linear(32, 5)

    def forward(self, x: Any) -> Any:
        x = self.entry(x)
        for group in self.groups:
            for block in group:
                x = block(x)
        return self.out(F.relu(self.final(x)).mean((2, 3)))


@pair("float32[2,3,16,16]")
def wide_resnet_preactivation() -> tuple[nn.Module, nn.Module]:
    return _WideA(), _WideB()


# -- feature pyramid, laterals and outputs in other orders


class _PyramidA(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.c1, self.c2, self.c3 = (nn.Conv2d(i, o, 3, 2, 1) for i, o in ((3, 8), (8, 16), (16, 32)))
        self.lateral = nn.ModuleList([nn.Conv2d(n, 8, 1) for n in (8, 16, 32)])
        self.output = nn.ModuleList([nn.Conv2d(8, 8, 3, 1, 1) for _ in range(3)])

    def forward(self, x: Any) -> Any:
        c1 = F.relu(self.c1(x))
        c2 = F.relu(self.c2(c1))
        c3 = F.relu(self.c3(c2))
        tops = [lateral(c) for lateral, c in zip(self.lateral, (c1, c2, c3), strict=True)]
        tops[1] = tops[1] + F.interpolate(tops[2], scale_factor=2)
        tops[0] = tops[0] + F.interpolate(tops[1], scale_factor=2)
        return torch.cat([o(t).flatten(1) for o, t in zip(self.output, tops, strict=True)], 1)


class _PyramidB(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bottom_up = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.Conv2d(8, 16, 3, 2, 1), nn.Conv2d(16, 32, 3, 2, 1))
        for n, width in ((5, 32), (4, 16), (3, 8)):
            setattr(self, f"fpn_lateral{n}", nn.Conv2d(width, 8, 1))
            setattr(self, f"fpn_output{n}", nn.Conv2d(8, 8, 3, 1, 1))

    def forward(self, x: Any) -> Any:
        seen = []
        for layer in self.bottom_up:
            x = F.relu(layer(x))
            seen.append(x)
        top, out = None, []
        for n, c in zip((5, 4, 3), reversed(seen), strict=True):
            lateral = getattr(self, f"fpn_lateral{n}")(c)
            top = lateral if top is None else lateral + F.interpolate(top, scale_factor=2)
            out.insert(0, getattr(self, f"fpn_output{n}")(top))
        return torch.cat([o.flatten(1) for o in out], 1)


@pair("float32[2,3,32,32]")
def pyramid_counted_otherwise() -> tuple[nn.Module, nn.Module]:
    return _PyramidA(), _PyramidB()


# -- detector heads: two towers of equal shapes


class _RetinaA(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.backbone = _relu(nn.Conv2d(3, 8, 3, 2, 1), nn.Conv2d(8, 8, 3, 2, 1))
        self.cls_subnet = _relu(nn.Conv2d(8, 8, 3, 1, 1), nn.Conv2d(8, 8, 3, 1, 1))
        self.bbox_subnet = _relu(nn.Conv2d(8, 8, 3, 1, 1), nn.Conv2d(8, 8, 3, 1, 1))
        self.cls_score, self.bbox_pred = nn.Conv2d(8, 6, 3, 1, 1), nn.Conv2d(8, 4, 3, 1, 1)

    def forward(self, x: Any) -> Any:
        x = self.backbone(x)
        return torch.cat([self.cls_score(self.cls_subnet(x)), self.bbox_pred(self.bbox_subnet(x))], 1)


class _Tower(nn.Module):
    def __init__(self, out: int) -> None:
        super().__init__()
        self.conv = nn.ModuleList([nn.Conv2d(8, 8, 3, 1, 1), nn.Conv2d(8, 8, 3, 1, 1)])
        self.last = nn.Conv2d(8, out, 3, 1, 1)

    def forward(self, x: Any) -> Any:
        for conv in self.conv:
            x = F.relu(conv(x))
        return self.last(x)


class _RetinaB(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.regression_head, self.classification_head = _Tower(4), _Tower(6)
        self.trunk = nn.ModuleDict({"a": nn.Conv2d(3, 8, 3, 2, 1), "b": nn.Conv2d(8, 8, 3, 2, 1)})

    def forward(self, x: Any) -> Any:
        x = F.relu(self.trunk["b"](F.relu(self.trunk["a"](x))))
        return torch.cat([self.classification_head(x), self.regression_head(x)], 1)


@pair("float32[2,3,32,32]")
def detector_towers() -> tuple[nn.Module, nn.Module]:
    return _RetinaA(), _RetinaB()


# -- MLP mixer, and patches


class _MixA(nn.Module):
    def __init__(self, n: int, d: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.mlp_tokens = nn.ModuleDict({"fc1": nn.Linear(n, 2 * n), "fc2": nn.Linear(2 * n, n)})
        self.mlp_channels = nn.ModuleDict({"fc1": nn.Linear(d, 4 * d), "fc2": nn.Linear(4 * d, d)})

    def forward(self, x: Any) -> Any:
        y = self.norm1(x).transpose(1, 2)
        x = x + self.mlp_tokens["fc2"](F.gelu(self.mlp_tokens["fc1"](y))).transpose(1, 2)
        return x + self.mlp_channels["fc2"](F.gelu(self.mlp_channels["fc1"](self.norm2(x))))


class _MixerA(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 4, 4)
        self.blocks = nn.Sequential(*[_MixA(16, 16) for _ in range(3)])
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, 6)

    def forward(self, x: Any) -> Any:
        return self.head(self.norm(self.blocks(self.stem(x).flatten(2).transpose(1, 2))).mean(1))


class _Residual(nn.Module):
    def __init__(self, d: int, fn: nn.Module) -> None:
        super().__init__()
        self.fn, self.norm = fn, nn.LayerNorm(d)

    def forward(self, x: Any) -> Any:
        return x + self.fn(self.norm(x))


class _MixerB(nn.Module):
    """Token mixing by 1x1 convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(3, 16, 4, 4),
            nn.Flatten(2),
            _Swap(),
            *[
                nn.Sequential(
                    _Residual(16, nn.Sequential(nn.Conv1d(16, 32, 1), nn.GELU(), nn.Conv1d(32, 16, 1))),
                    _Residual(16, nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16))),
                )
                for _ in range(3)
            ],
            nn.LayerNorm(16),
        )
        self.out = nn.Linear(16, 6)

    def forward(self, x: Any) -> Any:
        return self.out(self.net(x).mean(1))


class _Swap(nn.Module):
    def forward(self, x: Any) -> Any:
        return x.transpose(1, 2)


@pair("float32[2,3,16,16]")
def mixer_tokens_by_convolution() -> tuple[nn.Module, nn.Module]:
    return _MixerA(), _MixerB()


@pair("float32[2,3,16,16]", prepare=below("student."))
def mixer_back() -> tuple[nn.Module, nn.Module]:
    return _MixerB(), _MixerA()


# -- depthwise separable convolutions, inverted residuals


class _Inverted(nn.Module):
    def __init__(self, i: int, o: int, t: int) -> None:
        super().__init__()
        m = i * t
        self.conv = nn.Sequential(
            nn.Conv2d(i, m, 1, bias=False), nn.BatchNorm2d(m), nn.ReLU6(),
            nn.Conv2d(m, m, 3, 1, 1, groups=m, bias=False), nn.BatchNorm2d(m), nn.ReLU6(),
            nn.Conv2d(m, o, 1, bias=False), nn.BatchNorm2d(o),
        )  # fmt: skip
        self.same = i == o

    def forward(self, x: Any) -> Any:
        return x + self.conv(x) if self.same else self.conv(x)


class _InvertedNamed(nn.Module):
    def __init__(self, i: int, o: int, t: int) -> None:
        super().__init__()
        m = i * t
        self.bn_expand, self.bn_depth, self.bn_project = nn.BatchNorm2d(m), nn.BatchNorm2d(m), nn.BatchNorm2d(o)
        self.project, self.depth = nn.Conv2d(m, o, 1, bias=False), nn.Conv2d(m, m, 3, 1, 1, groups=m, bias=False)
        self.expand = nn.Conv2d(i, m, 1, bias=False)
        self.same = i == o

    def forward(self, x: Any) -> Any:
        y = F.relu6(self.bn_expand(self.expand(x)))
        y = self.bn_project(self.project(F.relu6(self.bn_depth(self.depth(y)))))
        return x + y if self.same else y


class _MobileA(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU6()),
            _Inverted(8, 8, 2), _Inverted(8, 12, 3), _Inverted(12, 12, 3),
        )  # fmt: skip
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(12, 4))

    def forward(self, x: Any) -> Any:
        return self.classifier(self.features(x).mean((2, 3)))


class _MobileB(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.first = nn.BatchNorm2d(8), nn.Conv2d(3, 8, 3, 2, 1, bias=False)
        self.stages = nn.ModuleList([_InvertedNamed(8, 8, 2), _InvertedNamed(8, 12, 3), _InvertedNamed(12, 12, 3)])
        self.last = nn.Linear(12, 4)

    def forward(self, x: Any) -> Any:
        x = F.relu6(self.norm(self.first(x)))
        for stage in self.stages:
            x = stage(x)
        return self.last(x.mean((2, 3)))


@pair("float32[2,3,16,16]")
def inverted_residuals_norms_first() -> tuple[nn.Module, nn.Module]:
    return _MobileA(), _MobileB()


@pair("float32[2,3,16,16]", prepare=lambda s: {k: v for k, v in s.items() if "num_batches" not in k})
def inverted_residuals_back_without_counters() -> tuple[nn.Module, nn.Module]:
    return _MobileB(), _MobileA()


# -- segmentation with dilated branches of equal shape


class _AsppA(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, 2, 1)
        self.convs = nn.ModuleList(
            [nn.Conv2d(8, 8, 1), *[nn.Conv2d(8, 8, 3, padding=r, dilation=r) for r in (1, 2, 3)]]
        )
        self.project, self.head = nn.Conv2d(32, 8, 1), nn.Conv2d(8, 5, 1)

    def forward(self, x: Any) -> Any:
        x = F.relu(self.stem(x))
        return self.head(F.relu(self.project(torch.cat([F.relu(c(x)) for c in self.convs], 1))))


class _AsppB(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Conv2d(3, 8, 3, 2, 1)
        self.aspp0 = nn.Conv2d(8, 8, 1)
        self.aspp1, self.aspp2, self.aspp3 = (nn.Conv2d(8, 8, 3, padding=r, dilation=r) for r in (1, 2, 3))
        self.fuse, self.predict = nn.Conv2d(32, 8, 1), nn.Conv2d(8, 5, 1)

    def forward(self, x: Any) -> Any:
        x = F.relu(self.encoder(x))
        each = [F.relu(c(x)) for c in (self.aspp0, self.aspp1, self.aspp2, self.aspp3)]
        return self.predict(F.relu(self.fuse(torch.cat(each, 1))))


@pair("float32[2,3,16,16]")
def dilated_branches() -> tuple[nn.Module, nn.Module]:
    return _AsppA(), _AsppB()


# -- a detector's neck that is not in the source, a new head


class _WithNeck(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.backbone = _SENetA()
        del self.backbone.fc
        self.neck, self.head = nn.Conv2d(16, 16, 3, 1, 1), nn.Conv2d(16, 16, 3, 1, 1)

    def forward(self, x: Any) -> Any:
        b = self.backbone
        return self.head(self.neck(b.layer2(b.layer1(F.relu(b.bn1(b.conv1(x)))))))


@pair("float32[2,3,32,32]", new=("neck.weight", "neck.bias", "head.weight", "head.bias"))
def backbone_with_a_new_neck() -> tuple[nn.Module, nn.Module]:
    return _SENetA(), _WithNeck()


class _SENetFive(_SENetA):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(16, 5)


@pair("float32[2,3,32,32]", new=("fc.weight", "fc.bias"))
def another_number_of_classes() -> tuple[nn.Module, nn.Module]:
    return _SENetA(), _SENetFive()


# -- dense layers, where widths grow


class _DenseA(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv0 = nn.Conv2d(3, 8, 3, 1, 1, bias=False)
        self.block = nn.ModuleDict(
            {
                f"denselayer{n + 1}": nn.ModuleDict(
                    {
                        "norm1": nn.BatchNorm2d(8 + 4 * n),
                        "conv1": nn.Conv2d(8 + 4 * n, 16, 1, bias=False),
                        "norm2": nn.BatchNorm2d(16),
                        "conv2": nn.Conv2d(16, 4, 3, 1, 1, bias=False),
                    }
                )
                for n in range(4)
            }
        )
        self.classifier = nn.Linear(24, 3)

    def forward(self, x: Any) -> Any:
        x = self.conv0(x)
        for layer in self.block.values():
            y = layer["conv1"](F.relu(layer["norm1"](x)))
            x = torch.cat([x, layer["conv2"](F.relu(layer["norm2"](y)))], 1)
        return self.classifier(x.mean((2, 3)))


class _DenseB(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.start = nn.Conv2d(3, 8, 3, 1, 1, bias=False)
        self.bottleneck = nn.ModuleList([nn.Conv2d(8 + 4 * n, 16, 1, bias=False) for n in range(4)])
        self.grow = nn.ModuleList([nn.Conv2d(16, 4, 3, 1, 1, bias=False) for n in range(4)])
        self.pre = nn.ModuleList([nn.BatchNorm2d(8 + 4 * n) for n in range(4)])
        self.mid = nn.ModuleList([nn.BatchNorm2d(16) for n in range(4)])
        self.end = nn.Linear(24, 3)

    def forward(self, x: Any) -> Any:
        x = self.start(x)
        for b, g, p, m in zip(self.bottleneck, self.grow, self.pre, self.mid, strict=True):
            x = torch.cat([x, g(F.relu(m(b(F.relu(p(x))))))], 1)
        return self.end(x.mean((2, 3)))


@pair("float32[2,3,16,16]")
def dense_layers_to_lists_by_kind() -> tuple[nn.Module, nn.Module]:
    return _DenseA(), _DenseB()


@pair("float32[2,3,16,16]")
def dense_layers_from_lists_by_kind() -> tuple[nn.Module, nn.Module]:
    return _DenseB(), _DenseA()
