"""ResNet-18 (He et al. 2016): 11,689,512 parameters for 1000 classes."""

from __future__ import annotations

from torch import nn

from windtunnel.networks import _photographs
from windtunnel.networks._residual import Basic, residual_network
from windtunnel.networks.definitions.resnet18 import LEAST_SIZE
from windtunnel.networks.definitions.resnet18 import Settings as Settings

DATA = "images"


def network(settings: Settings) -> nn.Module:
    """The layers, with fresh weights."""
    return _photographs.he_weights(
        residual_network(Basic, (2, 2, 2, 2), settings.channels, settings.width, settings.classes)
    )


CLASSIFIER = _photographs.Classifier(
    job="resnet18", network=network, weight_decay=1e-4, least_size=LEAST_SIZE
)
build, teach = CLASSIFIER.build, CLASSIFIER.teach
