"""The fully connected network of the guide's Table I, with the layers Shi et al. 2016 give."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from windtunnel.errors import BadRecord
from windtunnel.job.lesson import Dataset, Lesson, Stage
from windtunnel.job.workload import Workload
from windtunnel.networks import _images as images
from windtunnel.networks import weights

DATA = "digits"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Widths from input to output, so that a scaled-down copy can be tried first. A lesson has a rate (of Adam) and batch of its own."""

    layers: tuple[int, ...] = (26752, 2048, 2048, 2048, 26752)
    rate: float = 0.01
    examples: int = 4096
    lesson_rate: float = 0.001
    lesson_batch: int = 64
    epochs: int = 20
    init: str = "modern"

    def __post_init__(self) -> None:
        if len(self.layers) < 2 or min(self.layers) < 1:
            raise BadRecord(f"job fcn5: layers must be at least two widths above 0, not {self.layers}.")
        if self.examples < 1 or not self.rate > 0:
            raise BadRecord(
                f"job fcn5: examples and rate must be above 0, not {self.examples} and {self.rate}."
            )
        images.require_positive(self, ("lesson_rate", "lesson_batch", "epochs"), "fcn5")
        weights.bound_of(self.init, "fcn5")


def build(settings: Settings) -> Workload:
    """Sigmoid layers, softmax cross-entropy, plain gradient descent, mini-batches of 64 synthetic examples."""

    def batch(n: int) -> tuple[Tensor, Tensor]:
        return torch.rand(n, settings.layers[0]), torch.randint(0, settings.layers[-1], (n,))

    return Workload(
        name="fcn5",
        model=lambda: _model(settings.layers, settings.init),
        batch=batch,
        loss=_loss,
        optimizer=lambda params: torch.optim.SGD(params, lr=settings.rate),
        examples=settings.examples,
        default_batch=64,
    )


def teach(settings: Settings, data: Dataset) -> Lesson:
    """The same hidden layers between as many inputs and classes as the data has, taught by Adam: plain descent through sigmoids takes days."""
    images.fitted(settings, data, "fcn5")
    shown = data.train["images"]
    layers = (shown[0].numel(), *settings.layers[1:-1], data.facts["classes"])
    learn = Stage(
        name="learn",
        epochs=settings.epochs,
        steps=images.steps_of(len(shown), settings.lesson_batch),
        batches=images.shuffled(settings.lesson_batch, shown, data.train["labels"]),
        optimizers=lambda model: torch.optim.Adam(model.parameters(), lr=settings.lesson_rate),
        step=images.descend(_loss),
    )
    return Lesson(
        model=lambda: _model(layers, settings.init),
        stages=(learn,),
        examine=lambda model: images.examine_classifier(model, data),
        metric="accuracy",
        better="higher",
    )


def _model(widths: tuple[int, ...], init: str) -> nn.Module:
    layers: list[nn.Module] = [nn.Flatten()]
    for wide, narrow in itertools.pairwise(widths):
        layers += [nn.Linear(wide, narrow), nn.Sigmoid()]
    return weights.initialise(nn.Sequential(*layers[:-1]), init, "fcn5")


def _loss(model: nn.Module, pair: tuple[Tensor, Tensor]) -> Tensor:
    return F.cross_entropy(model(pair[0]), pair[1])
