"""VGG-16 (Simonyan and Zisserman 2015, configuration D): many plain 3x3 convolutions.

138,357,544 parameters for 1000 classes.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from windtunnel.networks import _photographs

DATA = "images"
LEAST_SIZE = 32  # the image is halved five times
GRID = 7  # side of the feature maps that the fully connected layers receive, for any size of image
GROUPS = ((1, 2), (2, 2), (4, 3), (8, 3), (8, 3))  # (multiple of the width, convolutions) between poolings


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """`size`: side of the images in pixels; `width`: channels of the first group, which scale all others;
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
        _photographs.check(self, "vgg16", LEAST_SIZE, ("width", "hidden"))


def network(settings: Settings) -> nn.Module:
    """Thirteen 3x3 convolutions in five groups, then three fully connected layers."""
    layers: list[nn.Module] = []
    channels, hidden = settings.channels, settings.hidden
    for multiple, count in GROUPS:
        for _ in range(count):
            layers += [nn.Conv2d(channels, multiple * settings.width, 3, padding=1), nn.ReLU(inplace=True)]
            channels = multiple * settings.width
        layers.append(nn.MaxPool2d(2))
    layers += [nn.AdaptiveAvgPool2d(GRID), nn.Flatten()]
    for nodes in (channels * GRID**2, hidden):
        layers += [nn.Linear(nodes, hidden), nn.ReLU(inplace=True), nn.Dropout(settings.dropout)]
    return _photographs.he_weights(nn.Sequential(*layers, nn.Linear(hidden, settings.classes)))


CLASSIFIER = _photographs.Classifier(job="vgg16", network=network, weight_decay=5e-4, least_size=LEAST_SIZE)
build, teach = CLASSIFIER.build, CLASSIFIER.teach
