"""ResNet-50 (He et al. 2016): 50 layers in residual blocks, the most common benchmark for image networks.

25,557,032 parameters for 1000 classes.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from windtunnel.networks import _photographs
from windtunnel.networks._residual import Bottleneck, residual_network

DATA = "images"
LEAST_SIZE = 32  # the image is halved five times


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """`size`: side of the images in pixels; `width`: channels of the first layer, doubled by each of the
    later three groups; `rate`: the published 0.1 for a batch of 256, scaled to a batch of 32."""

    classes: int = 1000
    channels: int = 3
    size: int = 224
    width: int = 64
    rate: float = 0.0125
    init: str = "modern"

    def __post_init__(self) -> None:
        _photographs.check(self, "resnet50", LEAST_SIZE)


def network(settings: Settings) -> nn.Module:
    """A new network with random weights."""
    return _photographs.he_weights(
        residual_network(Bottleneck, (3, 4, 6, 3), settings.channels, settings.width, settings.classes)
    )


CLASSIFIER = _photographs.Classifier(
    job="resnet50", network=network, weight_decay=1e-4, least_size=LEAST_SIZE
)
build, teach = CLASSIFIER.build, CLASSIFIER.teach
