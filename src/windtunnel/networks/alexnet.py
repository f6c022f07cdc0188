"""AlexNet (Krizhevsky, Sutskever and Hinton 2012): the first deep convolutional network to win ImageNet.

This is the version with one column (Krizhevsky 2014): 61,100,840 parameters for 1000 classes.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from windtunnel.networks import _photographs

DATA = "images"
LEAST_SIZE = 63  # a smaller image leaves no whole window for the third pooling
GRID = 6  # side of the feature maps that the fully connected layers receive, for any size of image


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """`size`: side of the images in pixels; `width`: channels of the first layer, which scale all others;
    `hidden`: nodes of the fully connected layers."""

    classes: int = 1000
    channels: int = 3
    size: int = 224
    width: int = 64
    hidden: int = 4096
    dropout: float = 0.5
    rate: float = 0.01
    init: str = "modern"

    def __post_init__(self) -> None:
        _photographs.check(self, "alexnet", LEAST_SIZE, ("width", "hidden"))


def network(settings: Settings) -> nn.Module:
    """Five convolutions, then three fully connected layers, which have most of the weights."""
    wide, hidden = settings.width, settings.hidden
    model = nn.Sequential(
        *_convolution(settings.channels, wide, 11, stride=4, padding=2),
        nn.MaxPool2d(3, 2),
        *_convolution(wide, 3 * wide, 5, padding=2),
        nn.MaxPool2d(3, 2),
        *_convolution(3 * wide, 6 * wide, 3, padding=1),
        *_convolution(6 * wide, 4 * wide, 3, padding=1),
        *_convolution(4 * wide, 4 * wide, 3, padding=1),
        nn.MaxPool2d(3, 2),
        nn.AdaptiveAvgPool2d(GRID),
        nn.Flatten(),
        nn.Dropout(settings.dropout),
        nn.Linear(4 * wide * GRID**2, hidden),
        nn.ReLU(inplace=True),
        nn.Dropout(settings.dropout),
        nn.Linear(hidden, hidden),
        nn.ReLU(inplace=True),
        nn.Linear(hidden, settings.classes),
    )
    return _photographs.he_weights(model)


def _convolution(
    channels: int, width: int, kernel: int, *, padding: int, stride: int = 1
) -> tuple[nn.Module, nn.Module]:
    return nn.Conv2d(channels, width, kernel, stride, padding), nn.ReLU(inplace=True)


CLASSIFIER = _photographs.Classifier(job="alexnet", network=network, weight_decay=5e-4, least_size=LEAST_SIZE)
build, teach = CLASSIFIER.build, CLASSIFIER.teach
