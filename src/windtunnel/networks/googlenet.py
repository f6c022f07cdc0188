"""GoogLeNet (Szegedy et al. 2015): inception modules, few parameters for its accuracy.

6,624,904 parameters for 1000 classes, without auxiliary classifiers. This is the variant in use today: batch
normalisation after every convolution, and a 3x3 convolution instead of the paper's 5x5.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from windtunnel.errors import BadRecord
from windtunnel.networks import _photographs

DATA = "images"
LEAST_SIZE = 32  # the image is halved five times

# Table 1 of the paper: channels of the 1x1 branch, the 3x3 branch (reduced, then output), the 5x5 branch
# (reduced, then output) and the pooling branch; None is a pooling between modules.
MODULES: tuple[tuple[int, ...] | None, ...] = (
    (64, 96, 128, 16, 32, 32),
    (128, 128, 192, 32, 96, 64),
    None,
    (192, 96, 208, 16, 48, 64),
    (160, 112, 224, 24, 64, 64),
    (128, 128, 256, 24, 64, 64),
    (112, 144, 288, 32, 64, 64),
    (256, 160, 320, 32, 128, 128),
    None,
    (256, 160, 320, 32, 128, 128),
    (384, 192, 384, 48, 128, 128),
)
PUBLISHED_WIDTH = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """`size`: side of the images in pixels; `width`: channels of the first layer, which scale all others;
    a multiple of 8."""

    classes: int = 1000
    channels: int = 3
    size: int = 224
    width: int = PUBLISHED_WIDTH
    dropout: float = 0.2
    rate: float = 0.01
    init: str = "modern"

    def __post_init__(self) -> None:
        _photographs.check(self, "googlenet", LEAST_SIZE)
        if self.width % 8:
            raise BadRecord(
                f"job googlenet: width must be a multiple of 8, not {self.width}, "
                "or its narrow branches have a fraction of a channel."
            )


class Inception(nn.Module):
    """Four branches over the same input; their outputs are concatenated."""

    def __init__(self, inputs: int, channels: tuple[int, ...]) -> None:
        super().__init__()
        one, narrow_three, three, narrow_five, five, pooled = channels
        self.one = _convolution(inputs, one, 1)
        self.three = nn.Sequential(
            _convolution(inputs, narrow_three, 1), _convolution(narrow_three, three, 3)
        )
        self.five = nn.Sequential(_convolution(inputs, narrow_five, 1), _convolution(narrow_five, five, 3))
        self.pooled = nn.Sequential(nn.MaxPool2d(3, 1, padding=1), _convolution(inputs, pooled, 1))

    def forward(self, images: Tensor) -> Tensor:
        return torch.cat(
            [self.one(images), self.three(images), self.five(images), self.pooled(images)], dim=1
        )


def network(settings: Settings) -> nn.Module:
    """Convolutions, nine inception modules with poolings between, one linear layer; for any image size."""
    wide = settings.width
    layers: list[nn.Module] = [
        _convolution(settings.channels, wide, 7, 2),
        _halving(3),
        _convolution(wide, wide, 1),
        _convolution(wide, 3 * wide, 3),
        _halving(3),
    ]
    inputs = 3 * wide
    for index, published in enumerate(MODULES):
        if published is None:
            layers.append(_halving(3 if index < len(MODULES) // 2 else 2))
            continue
        channels = tuple(count * wide // PUBLISHED_WIDTH for count in published)
        layers.append(Inception(inputs, channels))
        inputs = channels[0] + channels[2] + channels[4] + channels[5]
    head = (
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Dropout(settings.dropout),
        nn.Linear(inputs, settings.classes),
    )
    return _photographs.he_weights(nn.Sequential(*layers, *head))


def _convolution(channels: int, width: int, kernel: int, stride: int = 1) -> nn.Module:
    layers = (
        nn.Conv2d(channels, width, kernel, stride, padding=kernel // 2, bias=False),
        nn.BatchNorm2d(width, eps=0.001),
        nn.ReLU(inplace=True),
    )
    return nn.Sequential(*layers)


def _halving(kernel: int) -> nn.Module:
    return nn.MaxPool2d(kernel, 2, ceil_mode=True)


CLASSIFIER = _photographs.Classifier(
    job="googlenet", network=network, weight_decay=1e-4, least_size=LEAST_SIZE
)
build, teach = CLASSIFIER.build, CLASSIFIER.teach
