"""Residual networks (He et al. 2016): each block adds its output to its input."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class Basic(nn.Module):
    """Two 3x3 convolutions beside a shortcut."""

    expansion = 1

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *_convolution(channels, width, 3, stride), nn.ReLU(inplace=True), *_convolution(width, width, 3)
        )
        self.shortcut = _shortcut(channels, width, stride)

    def forward(self, images: Tensor) -> Tensor:
        return torch.relu(self.body(images) + self.shortcut(images))


class Bottleneck(nn.Module):
    """1x1 to narrow, 3x3, 1x1 to widen; the 3x3 has the stride, as in today's published weights."""

    expansion = 4

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        wide = width * self.expansion
        narrow = (
            *_convolution(channels, width, 1),
            nn.ReLU(inplace=True),
            *_convolution(width, width, 3, stride),
            nn.ReLU(inplace=True),
        )
        self.body = nn.Sequential(*narrow, *_convolution(width, wide, 1))
        self.shortcut = _shortcut(channels, wide, stride)

    def forward(self, images: Tensor) -> Tensor:
        return torch.relu(self.body(images) + self.shortcut(images))


def residual_network(
    block: type[Basic] | type[Bottleneck], blocks: Sequence[int], channels: int, width: int, classes: int
) -> nn.Sequential:
    """The stem, four groups of blocks that each double the width and halve the image, one linear layer."""
    layers: list[nn.Module] = [
        *_convolution(channels, width, 7, 2),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, padding=1),
    ]
    current = width
    for group, count in enumerate(blocks):
        for index in range(count):
            stride = 2 if group > 0 and index == 0 else 1
            layers.append(block(current, width * 2**group, stride))
            current = width * 2**group * block.expansion
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(current, classes))


def _convolution(channels: int, width: int, kernel: int, stride: int = 1) -> tuple[nn.Module, nn.Module]:
    return nn.Conv2d(channels, width, kernel, stride, padding=kernel // 2, bias=False), nn.BatchNorm2d(width)


def _shortcut(channels: int, width: int, stride: int) -> nn.Module:
    if stride == 1 and channels == width:
        return nn.Identity()
    return nn.Sequential(nn.Conv2d(channels, width, 1, stride, bias=False), nn.BatchNorm2d(width))
