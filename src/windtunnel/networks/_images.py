"""What the networks that learn from labelled images share: sizes taken from the data, mini-batches, the plain step."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn import functional

from windtunnel.errors import BadRecord
from windtunnel.job.lesson import Dataset
from windtunnel.networks.definitions.checks import require_positive as require_positive

S = TypeVar("S")
Batches = Callable[[torch.Generator], Iterator[tuple[Tensor, ...]]]


def fitted(settings: S, data: Dataset, job: str) -> S:
    """The same settings with the image size, channels and classes that the data has, as far as the settings know them."""
    if "images" not in data.train:
        raise BadRecord(
            f"job {job}: learns from images, which the data set {data.name} has not.",
            hint="Use digits, images, or a folder of images by class.",
        )
    known = {field.name for field in dataclasses.fields(settings)}  # type: ignore[arg-type]
    return dataclasses.replace(
        settings, **{name: data.facts[name] for name in ("size", "channels", "classes") if name in known}
    )  # type: ignore[type-var]


def steps_of(examples: int, batch: int) -> int:
    """Steps in one epoch."""
    return -(-examples // batch)


def shuffled(batch: int, *columns: Tensor) -> Batches:
    """One epoch after another in the generator's order; batches differ by one example at most, so that none is tiny."""
    examples = len(columns[0])

    def batches(generator: torch.Generator) -> Iterator[tuple[Tensor, ...]]:
        order = torch.randperm(examples, generator=generator)
        for chosen in order.tensor_split(steps_of(examples, batch)):
            yield tuple(column[chosen] for column in columns)

    return batches


def descend(loss: Callable[[Any, Any], Tensor]) -> Callable[[Any, Any, Any], Tensor]:
    """The plain training step: one loss, one optimiser."""

    def step(model: Any, batch: Any, optimizer: Any) -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        value = loss(model, batch)
        value.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return value.detach()

    return step


def beside(model: torch.nn.Module, *tensors: Tensor) -> tuple[Tensor, ...]:
    """The tensors where the model lies."""
    place = next(model.parameters()).device
    return tuple(tensor.to(place) for tensor in tensors)


@contextlib.contextmanager
def examined(model: torch.nn.Module) -> Iterator[None]:
    """The model as it is used, not as it learns; afterwards it is as it was found."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


@torch.no_grad()
def examine_classifier(model: torch.nn.Module, data: Dataset) -> dict[str, float]:
    """Accuracy and loss on the held-out images."""
    shown, labels = beside(model, data.held_out["images"], data.held_out["labels"])
    with examined(model):
        scores = torch.cat([model(part) for part in shown.chunk(steps_of(len(shown), 256))])
    return {
        "accuracy": float((scores.argmax(1) == labels).float().mean()),
        "loss": float(functional.cross_entropy(scores, labels)),
    }


def fixed_noise(*shape: int) -> Tensor:
    """The same normal noise at every call, so that an examination neither varies nor disturbs the training's own draws."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def few(shown: Tensor, count: int = 10) -> Tensor:
    """Some images from first to last, since data may lie in the order of its classes."""
    return shown[torch.linspace(0, len(shown) - 1, min(count, len(shown))).long()]


def save_sheet(folder: Path, name: str, images: Tensor, columns: int) -> list[Path]:
    """One sheet of images in `folder`, row by row."""
    from windtunnel.learning import pictures

    path = folder / f"{name}.png"
    pictures.save_sheet(path, images.detach().cpu().clamp(0, 1), columns)
    return [path]
