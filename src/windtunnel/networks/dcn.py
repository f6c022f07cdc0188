"""Deep convolutional network: classifies images.

Each layer is a 3x3 convolution, batch normalisation, ReLU and a 2x2 max pooling that halves the image. A
linear layer turns the last feature maps into a score for each class.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch
from torch import nn

from windtunnel.errors import BadRecord
from windtunnel.job.lesson import Dataset, Lesson
from windtunnel.job.workload import Workload, forward_inputs
from windtunnel.networks import _images as images
from windtunnel.networks import weights

DATA = "digits"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """`size`: side of the images in pixels; `widths`: number of feature maps of each layer."""

    size: int = 8
    channels: int = 1
    classes: int = 10
    widths: tuple[int, ...] = (32, 64, 128)
    rate: float = 0.002
    batch: int = 64
    epochs: int = 10
    examples: int = 1437
    init: str = "modern"

    def __post_init__(self) -> None:
        images.require_positive(
            self, ("size", "channels", "classes", "rate", "batch", "epochs", "examples"), "dcn"
        )
        if not self.widths or min(self.widths) < 1:
            raise BadRecord(f"job dcn: widths must be at least one width above 0, not {self.widths}.")
        if self.size < 2 ** len(self.widths):
            raise BadRecord(
                f"job dcn: widths has {len(self.widths)} layers, and each halves the image: "
                f"too many for a size of {self.size}.",
                hint=f"Use at most {self.size.bit_length() - 1} widths for this size.",
            )
        weights.bound_of(self.init, "dcn")


def build(settings: Settings) -> Workload:
    """Classify synthetic images."""
    return Workload(
        name="dcn",
        model=lambda: _model(settings),
        batch=lambda n: images.random_labelled_images(settings, n),
        loss=images.classification_loss,
        forward=forward_inputs,
        optimizer=lambda params: torch.optim.Adam(params, lr=settings.rate),
        examples=settings.examples,
        default_batch=settings.batch,
    )


def teach(settings: Settings, data: Dataset) -> Lesson:
    """Train with cross-entropy and Adam; test the accuracy on held-out images."""
    settings = images.fitted(settings, data, "dcn")
    learn = images.adam_stage(settings, images.labelled(data), images.classification_loss)
    return Lesson(
        model=lambda: _model(settings),
        stages=(learn,),
        examine=lambda model: images.examine_classifier(model, data),
        metric="accuracy",
        better="higher",
    )


def _model(settings: Settings) -> nn.Module:
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise((settings.channels, *settings.widths)):
        layers += [
            nn.Conv2d(before, after, 3, padding=1, bias=False),
            nn.BatchNorm2d(after),
            nn.ReLU(),
            nn.MaxPool2d(2),
        ]
    left = settings.size // 2 ** len(settings.widths)
    layers += [nn.Flatten(), nn.Linear(settings.widths[-1] * left**2, settings.classes)]
    return weights.initialise(nn.Sequential(*layers), settings.init, "dcn")
