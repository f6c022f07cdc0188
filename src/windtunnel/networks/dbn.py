"""Deep belief network: restricted Boltzmann machines stacked and taught layer by layer without labels, then tuned with labels.

Each machine learns from what the one below it makes of the images (Hinton, Osindero and Teh 2006). Back-propagation then only
adjusts what was found, at a lowered rate; it needs far fewer labels than learning from nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from windtunnel.errors import BadRecord
from windtunnel.job.lesson import Dataset, Lesson, Stage
from windtunnel.job.workload import Workload
from windtunnel.networks import _images as images
from windtunnel.networks import weights
from windtunnel.networks.rbm import RBM

DATA = "digits"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """`labels`: how many labelled examples the tuning may see, 0 for all. `rate` belongs to the pretraining, `tune_rate` to what follows."""

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
    """The machines, used upwards only, and a readout of the classes."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        widths = (settings.channels * settings.size**2, *settings.layers)
        self.machines = nn.ModuleList(_machine(below, above) for below, above in itertools.pairwise(widths))
        self.readout = nn.Linear(widths[-1], settings.classes)

    def up(self, shown: Tensor, layers: int) -> Tensor:
        """What the first `layers` machines make of the images."""
        state = shown.flatten(1)
        for machine in itertools.islice(self.machines, layers):
            state = machine.hidden(state)  # type: ignore[operator]
        return state

    def forward(self, shown: Tensor) -> Tensor:
        scores: Tensor = self.readout(self.up(shown, len(self.machines)))
        return scores

    def upward_parameters(self) -> Iterator[nn.Parameter]:
        """What tuning changes: the way up needs no visible biases."""
        return (parameter for name, parameter in self.named_parameters() if not name.endswith("visible_bias"))


def build(settings: Settings) -> Workload:
    """The tuning step, on synthetic images; the pretraining step of a layer is that of the job rbm."""

    def batch(n: int) -> tuple[Tensor, Tensor]:
        return torch.rand(n, settings.channels, settings.size, settings.size), torch.randint(
            0, settings.classes, (n,)
        )

    return Workload(
        name="dbn",
        model=lambda: _model(settings),
        batch=batch,
        step=images.descend(_loss),
        optimizers=lambda model: _tuner(settings, model),
        examples=settings.examples,
        default_batch=settings.batch,
    )


def teach(settings: Settings, data: Dataset) -> Lesson:
    """One stage a machine on all images, then one with those labels the settings allow."""
    settings = images.fitted(settings, data, "dbn")
    available = len(data.train["labels"])
    if settings.labels > available:
        raise BadRecord(
            f"job dbn: labels is {settings.labels}, but {data.name} has {available} examples to learn from.",
            hint="Use labels=0 for all.",
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
    """What can be done but works against the network's own idea."""
    if settings.pretrain and settings.tune_rate >= settings.rate:
        return (
            f"tune_rate {settings.tune_rate:g} is not below rate {settings.rate:g}: tuning is to adjust slightly what pretraining found, not to undo it",
        )
    return ()


def _pretrain(settings: Settings, layer: int, shown: Tensor) -> Stage:
    def step(model: DBN, batch: tuple[Tensor], optimizer: Any) -> Tensor:
        with torch.no_grad():
            below = model.up(batch[0], layer)
        error: Tensor = model.machines[layer].contrast(below, settings.k, False)  # type: ignore[operator]
        optimizer.step()
        return error

    return Stage(
        name=f"pretrain layer {layer + 1}",
        epochs=settings.epochs,
        steps=images.steps_of(len(shown), settings.batch),
        batches=images.shuffled(settings.batch, shown),
        optimizers=lambda model: torch.optim.SGD(
            model.machines[layer].parameters(), lr=settings.rate, momentum=0.5
        ),
        step=step,
    )


def _tune(settings: Settings, data: Dataset) -> Stage:
    chosen = _balanced(data.train["labels"], settings.labels or len(data.train["labels"]))
    return Stage(
        name="tune",
        epochs=settings.tune_epochs,
        steps=images.steps_of(len(chosen), settings.batch),
        batches=images.shuffled(settings.batch, data.train["images"][chosen], data.train["labels"][chosen]),
        optimizers=lambda model: _tuner(settings, model),
        step=images.descend(_loss),
    )


def _balanced(labels: Tensor, wanted: int) -> Tensor:
    """The places of `wanted` examples, taking the first of every class, then the second of every class, and so on."""
    one_hot = F.one_hot(labels)
    turn = one_hot.cumsum(0).gather(1, labels[:, None]).flatten()
    return (turn * one_hot.shape[1] + labels).argsort()[:wanted]


def _machine(visible: int, hidden: int) -> RBM:
    """A machine that starts as a plain layer does, so that the network without pretraining has a fair start too."""
    machine = RBM(visible, hidden)
    nn.init.xavier_uniform_(machine.weight)
    return machine


def _model(settings: Settings) -> nn.Module:
    return weights.initialise(DBN(settings), settings.init, "dbn")


def _tuner(settings: Settings, model: DBN) -> Any:
    return torch.optim.Adam(model.upward_parameters(), lr=settings.tune_rate)


def _loss(model: Any, pair: tuple[Tensor, Tensor]) -> Tensor:
    return F.cross_entropy(model(pair[0]), pair[1])
