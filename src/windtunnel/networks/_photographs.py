"""Shared by networks that classify photographs: checks, synthetic batches, and a lesson on small images."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from windtunnel.errors import BadRecord
from windtunnel.job.lesson import Dataset, Lesson, Stage
from windtunnel.job.workload import Workload, forward_inputs
from windtunnel.networks import _images, weights
from windtunnel.networks.definitions.checks import PhotographSettings, check_images
from windtunnel.networks.definitions.resnet18 import SYNTHETIC_EXAMPLES

LESSON_BATCH = 16
check = check_images


S = TypeVar("S", bound=PhotographSettings)
Optimizer = Callable[[Iterable[Any]], torch.optim.Optimizer]


def he_weights(model: nn.Module) -> nn.Module:
    """He et al. 2015: convolutions keep the variance after relu. Deep networks do not learn without it."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    return model


def build(
    job: str, settings: S, network: Callable[[S], nn.Module], optimizer: Optimizer, default_batch: int = 32
) -> Workload:
    """A job that classifies random images of the size in the settings."""
    return Workload(
        name=job,
        model=lambda: weights.initialise(network(settings), settings.init, job),
        batch=lambda n: _images.random_labelled_images(settings, n),
        loss=_loss,
        forward=forward_inputs,
        optimizer=optimizer,
        examples=SYNTHETIC_EXAMPLES,
        default_batch=default_batch,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Classifier(Generic[S]):
    """A network that classifies photographs, trained with SGD and momentum 0.9, as its authors did."""

    job: str
    network: Callable[[S], nn.Module]
    weight_decay: float
    least_size: int

    def build(self, settings: S) -> Workload:
        """Batches of 32 random photographs."""
        return build(self.job, settings, self.network, self._optimizer(settings))

    def teach(self, settings: S, data: Dataset) -> Lesson:
        """Learn the classes of a data set of images."""
        sizes = ImageSizes(self.least_size)
        return teach(self.job, settings, data, self.network, self._optimizer(settings), sizes)

    def _optimizer(self, settings: S) -> Optimizer:
        return lambda params: torch.optim.SGD(
            params, lr=settings.rate, momentum=0.9, weight_decay=self.weight_decay
        )


class ImageSizes(NamedTuple):
    """Image sizes that a network accepts: at least `least` pixels, in multiples of `multiple`."""

    least: int
    multiple: int = 1


def teach(
    job: str,
    settings: S,
    data: Dataset,
    network: Callable[[S], nn.Module],
    optimizer: Optimizer,
    sizes: ImageSizes,
) -> Lesson:
    """Learn the classes of a data set of images, at its own size where the network allows it."""
    brought, cautions = resized(job, settings.size, data, sizes)
    fitted = _images.fitted(settings, brought, job)
    train = brought.train["images"], brought.train["labels"]
    stage = Stage(
        name="train",
        epochs=20,
        steps=_images.steps_of(len(train[0]), LESSON_BATCH),
        batches=_images.shuffled(LESSON_BATCH, *train),
        optimizers=lambda model: optimizer(model.parameters()),
        step=_images.descend(_loss),
    )
    return Lesson(
        model=lambda: weights.initialise(network(fitted), fitted.init, job),
        stages=(stage,),
        examine=lambda model: _images.examine_classifier(model, brought),
        metric="accuracy",
        better="higher",
        cautions=cautions,
    )


def resized(job: str, largest: int, data: Dataset, sizes: ImageSizes) -> tuple[Dataset, tuple[str, ...]]:
    """The images at their own size within the limits of setting and network, with values around 0.

    The second part of the result is a caution where the size changed.
    """
    _images.require_images(data, job)
    if len(data.train["images"]) < 2:
        raise BadRecord(
            f"job {job}: {data.name} has fewer than 2 images to learn from, too few for batch normalisation."
        )
    own = tuple(data.train["images"].shape[-2:])
    size = -(-max(sizes.least, min(largest, *own)) // sizes.multiple) * sizes.multiple
    parts = [{**part, "images": _bring(part["images"], size)} for part in (data.train, data.held_out)]
    brought = dataclasses.replace(data, train=parts[0], held_out=parts[1], facts={**data.facts, "size": size})
    if own == (size, size):
        return brought, ()
    return brought, (
        f"{job} is taught on images of {data.name} brought from {own[0]}x{own[1]} to {size}x{size} pixels.",
    )


def _bring(pictures: Tensor, size: int) -> Tensor:
    if tuple(pictures.shape[-2:]) != (size, size):
        pictures = F.interpolate(pictures, (size, size), mode="bilinear", align_corners=False)
    return pictures * 2 - 1


def _loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])
