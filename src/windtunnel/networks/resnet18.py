"""ResNet-18 (He et al. 2016): 11,689,512 parameters for 1000 classes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from windtunnel.job.lesson import Dataset, Lesson
from windtunnel.job.workload import Workload
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


def build(settings: Settings) -> Workload:
    """Batches of 32 random photographs."""
    return _photographs.build("resnet18", settings, network, lambda params: _optimizer(settings, params))


def teach(settings: Settings, data: Dataset) -> Lesson:
    """Learn the classes of a data set of images."""
    return _photographs.teach(
        "resnet18", settings, data, network, lambda params: _optimizer(settings, params), least=LEAST_SIZE
    )


def _optimizer(settings: Settings, params: Iterable[Any]) -> torch.optim.Optimizer:
    return torch.optim.SGD(params, lr=settings.rate, momentum=0.9, weight_decay=1e-4)
