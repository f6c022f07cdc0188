"""The fully connected network of the guide's Table I, with the layers Shi et al. 2016 give."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from windtunnel.job.lesson import Dataset, Lesson, Stage
from windtunnel.job.workload import Workload, forward_inputs
from windtunnel.networks import _images as images
from windtunnel.networks import weights
from windtunnel.networks.definitions.fcn5 import Settings as Settings

DATA = "digits"


def build(settings: Settings) -> Workload:
    """Sigmoid layers, softmax cross-entropy, gradient descent, mini-batches of 64 synthetic examples."""

    def batch(n: int) -> tuple[Tensor, Tensor]:
        return torch.rand(n, settings.layers[0]), torch.randint(0, settings.layers[-1], (n,))

    return Workload(
        name="fcn5",
        model=lambda: _model(settings.layers, settings.init),
        batch=batch,
        loss=_loss,
        forward=forward_inputs,
        optimizer=lambda params: torch.optim.SGD(params, lr=settings.rate),
        examples=settings.examples,
        default_batch=64,
    )


def teach(settings: Settings, data: Dataset) -> Lesson:
    """The same hidden layers, with the inputs and classes of the data.

    The lesson uses Adam, because gradient descent through sigmoids takes days.
    """
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
