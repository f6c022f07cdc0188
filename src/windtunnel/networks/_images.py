"""Shared by networks that learn from images: sizes from the data, mini-batches, a training step, tests."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol, TypeVar

import torch
from torch import Tensor
from torch.nn import functional

from windtunnel.errors import BadRecord
from windtunnel.job.lesson import Dataset, Stage
from windtunnel.job.workload import Batch, Loss, Model, Optimizers
from windtunnel.networks.definitions.checks import require_positive as require_positive

S = TypeVar("S")
Batches = Callable[[torch.Generator], Iterator[tuple[Tensor, ...]]]


def require_images(data: Dataset, job: str) -> None:
    """Raise an error unless the data set has images."""
    if "images" not in data.train:
        raise BadRecord(
            f"job {job}: learns from images, but the data set {data.name} has none.",
            hint="Use --data digits, --data images, or a folder with one subfolder of images for each class.",
        )


def fitted(settings: S, data: Dataset, job: str) -> S:
    """The settings with the data set's image size, channels and classes, if the network has such settings."""
    require_images(data, job)
    known = {field.name for field in dataclasses.fields(settings)}  # type: ignore[arg-type]
    return dataclasses.replace(
        settings, **{name: data.facts[name] for name in ("size", "channels", "classes") if name in known}
    )  # type: ignore[type-var]


class _ImageSizes(Protocol):
    @property
    def channels(self) -> int: ...
    @property
    def size(self) -> int: ...


class _ClassifierSizes(_ImageSizes, Protocol):
    @property
    def classes(self) -> int: ...


def random_images(settings: _ImageSizes, n: int) -> Tensor:
    """Synthetic square images with values from 0 to 1."""
    return torch.rand(n, settings.channels, settings.size, settings.size)


def random_labelled_images(settings: _ClassifierSizes, n: int) -> tuple[Tensor, Tensor]:
    """Synthetic images with random labels."""
    return random_images(settings, n), torch.randint(0, settings.classes, (n,))


def steps_of(examples: int, batch: int) -> int:
    """Steps in one epoch."""
    return -(-examples // batch)


def shuffled(batch: int, *columns: Tensor) -> Batches:
    """Return a function that yields one epoch of shuffled batches.

    The last batch is not a small remainder: the sizes of batches differ by one example at most.
    """
    examples = len(columns[0])

    def batches(generator: torch.Generator) -> Iterator[tuple[Tensor, ...]]:
        order = torch.randperm(examples, generator=generator)
        for indices in order.tensor_split(steps_of(examples, batch)):
            yield tuple(column[indices] for column in columns)

    return batches


class _Schedule(Protocol):
    @property
    def batch(self) -> int: ...
    @property
    def epochs(self) -> int: ...


def stage(
    settings: _Schedule,
    columns: tuple[Tensor, ...],
    optimizers: Callable[[Model], Optimizers],
    step: Callable[[Model, Batch, Optimizers], Tensor],
    name: str = "learn",
) -> Stage:
    """A stage over shuffled batches of `columns` (images, or images and labels)."""
    return Stage(
        name=name,
        epochs=settings.epochs,
        steps=steps_of(len(columns[0]), settings.batch),
        batches=shuffled(settings.batch, *columns),
        optimizers=optimizers,
        step=step,
    )


def descend(loss: Loss) -> Callable[[Model, Batch, torch.optim.Optimizer], Tensor]:
    """The usual training step: forward, backward, update, with one loss and one optimiser."""

    def step(model: Model, batch: Batch, optimizer: torch.optim.Optimizer) -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        value = loss(model, batch)
        value.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return value.detach()

    return step


class _AdamSchedule(_Schedule, Protocol):
    @property
    def rate(self) -> float: ...


def adam_stage(settings: _AdamSchedule, columns: tuple[Tensor, ...], loss: Loss) -> Stage:
    """The usual stage: one loss, and Adam at the network's rate."""
    return stage(
        settings,
        columns,
        lambda model: torch.optim.Adam(model.parameters(), lr=settings.rate),
        descend(loss),
    )


def labelled(data: Dataset) -> tuple[Tensor, Tensor]:
    """The training images and their labels."""
    return data.train["images"], data.train["labels"]


def classification_loss(model: Model, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Cross-entropy between the network's scores and the labels."""
    inputs, labels = batch
    return functional.cross_entropy(model(inputs), labels)


def device_of(model: torch.nn.Module) -> torch.device:
    """The device of the network's parameters."""
    return next(model.parameters()).device


def on_device_of(model: torch.nn.Module, *tensors: Tensor) -> tuple[Tensor, ...]:
    """The tensors, moved to the network's device."""
    device = device_of(model)
    return tuple(tensor.to(device) for tensor in tensors)


@contextlib.contextmanager
def evaluation_mode(model: torch.nn.Module) -> Iterator[None]:
    """Switch off dropout and the updates of batch normalisation; restore the earlier mode afterwards."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


@torch.no_grad()
def examine_classifier(model: torch.nn.Module, data: Dataset) -> dict[str, float]:
    """Accuracy and loss on the held-out images."""
    inputs, labels = on_device_of(model, data.held_out["images"], data.held_out["labels"])
    with evaluation_mode(model):
        scores = torch.cat([model(part) for part in inputs.chunk(steps_of(len(inputs), 256))])
    return {
        "accuracy": float((scores.argmax(1) == labels).float().mean()),
        "loss": float(functional.cross_entropy(scores, labels)),
    }


def fixed_noise(*shape: int) -> Tensor:
    """Normal noise, the same at every call: tests are repeatable and do not change the training."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def evenly_spaced(images: Tensor, count: int = 10) -> Tensor:
    """`count` images at equal distances, so that all classes occur even if the data is sorted by class."""
    return images[torch.linspace(0, len(images) - 1, min(count, len(images))).long()]


def save_sheet(folder: Path, name: str, images: Tensor, columns: int) -> list[Path]:
    """Write images to one PNG file in `folder`, row by row."""
    from windtunnel.learning import pictures

    path = folder / f"{name}.png"
    pictures.save_sheet(path, images.detach().cpu().clamp(0, 1), columns)
    return [path]
