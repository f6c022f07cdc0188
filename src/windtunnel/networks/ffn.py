"""Feed-forward network: inputs, hidden nodes in one layer or several, outputs; each feeds the next layer."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from windtunnel.job.lesson import Dataset, Lesson
from windtunnel.job.workload import Workload, forward_inputs
from windtunnel.networks import _images as images
from windtunnel.networks import weights
from windtunnel.networks.definitions.ffn import Settings as Settings

DATA = "digits"


def build(settings: Settings) -> Workload:
    """Classify synthetic vectors."""

    def batch(n: int) -> tuple[Tensor, Tensor]:
        return torch.rand(n, settings.inputs), torch.randint(0, settings.classes, (n,))

    return Workload(
        name="ffn",
        model=lambda: _model(settings),
        batch=batch,
        loss=_loss,
        forward=forward_inputs,
        optimizer=lambda params: torch.optim.Adam(params, lr=settings.rate),
        examples=settings.examples,
        default_batch=settings.batch,
    )


def teach(settings: Settings, data: Dataset) -> Lesson:
    """Cross-entropy and Adam on images or rows of a table; the exam is the accuracy on held-out examples."""
    images.fitted(settings, data, "ffn")
    shown = data.train["images"]
    fitted = dataclasses.replace(settings, inputs=shown[0].numel(), classes=data.facts["classes"])
    learn = images.adam_stage(settings, images.labelled(data), _loss)
    return Lesson(
        model=lambda: _model(fitted),
        stages=(learn,),
        examine=lambda model: images.examine_classifier(model, data),
        metric="accuracy",
        better="higher",
        cautions=caution(fitted),
    )


def caution(settings: Settings) -> tuple[str, ...]:
    """The guide's rule for the hidden layer."""
    if settings.nodes >= settings.inputs:
        return ()
    return (
        f"{settings.nodes} hidden nodes for {settings.inputs} inputs: a feed-forward network profits when "
        "the hidden layer has as many nodes as there are inputs, or more (Wuensche 2018, section III.B).",
    )


def _model(settings: Settings) -> nn.Module:
    layers: list[nn.Module] = [nn.Flatten()]
    for before, after in itertools.pairwise((settings.inputs, *[settings.nodes] * settings.layers)):
        layers += [nn.Linear(before, after), nn.ReLU()]
    layers.append(nn.Linear(settings.nodes, settings.classes))
    return weights.initialise(nn.Sequential(*layers), settings.init, "ffn")


def _loss(model: Any, pair: tuple[Tensor, Tensor]) -> Tensor:
    return F.cross_entropy(model(pair[0]), pair[1])
