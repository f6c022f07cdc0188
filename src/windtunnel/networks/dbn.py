"""Deep belief network: classifies images when few of them have labels (Hinton, Osindero and Teh 2006).

It is a stack of restricted Boltzmann machines. Each is pretrained without labels, on the outputs of the one
below. Then the whole network is tuned with labels, by back-propagation at a low learning rate. This needs
far fewer labels than training from random weights.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from windtunnel.errors import BadRecord
from windtunnel.job.lesson import Dataset, Lesson, Stage
from windtunnel.job.workload import Workload, forward_inputs
from windtunnel.networks import _images as images
from windtunnel.networks import weights
from windtunnel.networks.rbm import RBM

DATA = "digits"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """`layers`: hidden units of each machine; `labels`: labelled examples used for tuning, 0 for all;
    `k`: rounds of contrastive divergence; `rate`: learning rate of the pretraining;
    `epochs`: passes of the pretraining; `tune_rate`: learning rate of the tuning with labels;
    `tune_epochs`: passes of that tuning."""

    size: int = 8
    channels: int = 1
    classes: int = 10
    layers: tuple[int, ...] = (128, 128)
    labels: int = 0
    pretrain: bool = True
    k: int = 1
    rate: float = 0.1
    tune_rate: float = 0.001
    batch: int = 32
    epochs: int = 20
    tune_epochs: int = 60
    examples: int = 1437
    init: str = "modern"

    def __post_init__(self) -> None:
        counts = ("size", "channels", "classes", "k", "batch", "epochs", "tune_epochs", "examples")
        images.require_positive(self, (*counts, "rate", "tune_rate"), "dbn")
        if not self.layers or min(self.layers) < 1:
            raise BadRecord(f"job dbn: layers must be at least one width above 0, not {self.layers}.")
        if self.labels < 0:
            raise BadRecord(f"job dbn: labels must be 0 (all) or more, not {self.labels}.")
        weights.bound_of(self.init, "dbn")


class DBN(nn.Module):
    """The machines, used from visible to hidden units only, and a linear layer that scores the classes."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        widths = (settings.channels * settings.size**2, *settings.layers)
        self.machines = nn.ModuleList(_machine(below, above) for below, above in itertools.pairwise(widths))
        self.readout = nn.Linear(widths[-1], settings.classes)

    def up(self, images: Tensor, layers: int) -> Tensor:
        """The outputs of the first `layers` machines."""
        state = images.flatten(1)
        for machine in itertools.islice(self.machines, layers):
            state = machine.hidden(state)  # type: ignore[operator]
        return state

    def forward(self, images: Tensor) -> Tensor:
        scores: Tensor = self.readout(self.up(images, len(self.machines)))
        return scores

    def upward_parameters(self) -> Iterator[nn.Parameter]:
        """The parameters that tuning changes: all except the visible biases, which are not used."""
        return (parameter for name, parameter in self.named_parameters() if not name.endswith("visible_bias"))


def build(settings: Settings) -> Workload:
    """The tuning step on synthetic images. (The job rbm is the pretraining step of one layer.)"""
    return Workload(
        name="dbn",
        model=lambda: _model(settings),
        batch=lambda n: images.random_labelled_images(settings, n),
        step=images.descend(images.classification_loss),
        forward=forward_inputs,
        optimizers=lambda model: _tuner(settings, model),
        examples=settings.examples,
        default_batch=settings.batch,
    )


def teach(settings: Settings, data: Dataset) -> Lesson:
    """Pretrain each machine on all images, then tune the network with the labelled ones."""
    settings = images.fitted(settings, data, "dbn")
    available = len(data.train["labels"])
    if settings.labels > available:
        raise BadRecord(
            f"job dbn: labels is {settings.labels}, but {data.name} has only {available} training examples.",
            hint="Use labels=0 for all of them.",
        )
    pretraining = (
        [_pretrain(settings, layer, data.train["images"]) for layer in range(len(settings.layers))]
        if settings.pretrain
        else []
    )
    return Lesson(
        model=lambda: _model(settings),
        stages=(*pretraining, _tune(settings, data)),
        examine=lambda model: images.examine_classifier(model, data),
        metric="accuracy",
        better="higher",
        cautions=caution(settings),
    )


def caution(settings: Settings) -> tuple[str, ...]:
    """Warn if the learning rate of the tuning is so high that it undoes the pretraining."""
    if settings.pretrain and settings.tune_rate >= settings.rate:
        return (
            f"tune_rate {settings.tune_rate:g} is not below rate {settings.rate:g}: "
            "tuning should change the pretrained weights only slightly, not undo them.",
        )
    return ()


def _pretrain(settings: Settings, layer: int, train: Tensor) -> Stage:
    def step(model: DBN, batch: tuple[Tensor], optimizer: torch.optim.Optimizer) -> Tensor:
        with torch.no_grad():
            inputs = model.up(batch[0], layer)
        error: Tensor = model.machines[layer].contrast(inputs, settings.k, False)  # type: ignore[operator]
        optimizer.step()
        return error

    return Stage(
        name=f"pretrain layer {layer + 1}",
        epochs=settings.epochs,
        steps=images.steps_of(len(train), settings.batch),
        batches=images.shuffled(settings.batch, train),
        optimizers=lambda model: torch.optim.SGD(
            model.machines[layer].parameters(), lr=settings.rate, momentum=0.5
        ),
        step=step,
    )


def _tune(settings: Settings, data: Dataset) -> Stage:
    labelled = _balanced(data.train["labels"], settings.labels or len(data.train["labels"]))
    return Stage(
        name="tune",
        epochs=settings.tune_epochs,
        steps=images.steps_of(len(labelled), settings.batch),
        batches=images.shuffled(
            settings.batch, data.train["images"][labelled], data.train["labels"][labelled]
        ),
        optimizers=lambda model: _tuner(settings, model),
        step=images.descend(images.classification_loss),
    )


def _balanced(labels: Tensor, count: int) -> Tensor:
    """Indices of `count` examples: the first of every class, then the second of every class, and so on."""
    one_hot = F.one_hot(labels)
    number = one_hot.cumsum(0).gather(1, labels[:, None]).flatten()
    return (number * one_hot.shape[1] + labels).argsort()[:count]


def _machine(visible: int, hidden: int) -> RBM:
    """A machine with the initial weights of an ordinary layer: a fair start for pretrain=false."""
    machine = RBM(visible, hidden)
    nn.init.xavier_uniform_(machine.weight)
    return machine


def _model(settings: Settings) -> nn.Module:
    return weights.initialise(DBN(settings), settings.init, "dbn")


def _tuner(settings: Settings, model: DBN) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.upward_parameters(), lr=settings.tune_rate)
