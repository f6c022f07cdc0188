"""Auto-encoder: fewer hidden nodes than inputs, decoded back to as many outputs, so that only what matters gets through.

The hidden nodes are linear by default. The outputs are not: they know that a pixel lies between 0 and 1, and that is why the
network comes closer to images it never saw than principal components, the best of all linear codes.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from windtunnel.job.lesson import Dataset, Lesson, Stage
from windtunnel.job.workload import Workload
from windtunnel.networks import _images as images
from windtunnel.networks import weights

DATA = "digits"
_ACTIVATIONS = {"linear": nn.Identity, "tanh": nn.Tanh, "sigmoid": nn.Sigmoid, "relu": nn.ReLU}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """`hidden`: nodes of the code, fewer than inputs."""

    inputs: int = 64
    hidden: int = 16
    activation: Literal["linear", "tanh", "sigmoid", "relu"] = "linear"
    rate: float = 0.01
    batch: int = 64
    epochs: int = 60
    examples: int = 1442
    init: str = "modern"

    def __post_init__(self) -> None:
        images.require_positive(
            self, ("inputs", "hidden", "rate", "batch", "epochs", "examples"), "autoencoder"
        )
        weights.bound_of(self.init, "autoencoder")


class AutoEncoder(nn.Module):
    """Gives back a picture of the shape it was shown."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Flatten(), nn.Linear(settings.inputs, settings.hidden), _ACTIVATIONS[settings.activation]()
        )
        self.decoder = nn.Sequential(nn.Linear(settings.hidden, settings.inputs), nn.Sigmoid())

    def forward(self, shown: Tensor) -> Tensor:
        again: Tensor = self.decoder(self.encoder(shown))
        return again.view(shown.shape)


def build(settings: Settings) -> Workload:
    """Compress and restore synthetic vectors."""
    return Workload(
        name="autoencoder",
        model=lambda: _model(settings),
        batch=lambda n: torch.rand(n, settings.inputs),
        loss=_loss,
        optimizer=lambda params: torch.optim.Adam(params, lr=settings.rate),
        examples=settings.examples,
        default_batch=settings.batch,
    )


def teach(settings: Settings, data: Dataset) -> Lesson:
    """Squared error and Adam, without labels; examined by the error on what was never seen."""
    images.fitted(settings, data, "autoencoder")
    shown, held_out = data.train["images"], data.held_out["images"]
    fitted = dataclasses.replace(settings, inputs=shown[0].numel())
    learn = Stage(
        name="learn",
        epochs=settings.epochs,
        steps=images.steps_of(len(shown), settings.batch),
        batches=lambda generator: (batch for (batch,) in images.shuffled(settings.batch, shown)(generator)),
        optimizers=lambda model: torch.optim.Adam(model.parameters(), lr=settings.rate),
        step=images.descend(_loss),
    )
    return Lesson(
        model=lambda: _model(fitted),
        stages=(learn,),
        examine=lambda model: _examine(model, held_out),
        metric="reconstruction",
        better="lower",
        draw=lambda model, folder: _draw(model, held_out[::36][:10], folder),
        cautions=caution(fitted),
    )


def caution(settings: Settings) -> tuple[str, ...]:
    """The guide's rule for the hidden layer."""
    if settings.hidden < settings.inputs:
        return ()
    return (
        f"{settings.hidden} hidden nodes for {settings.inputs} inputs compress nothing: an auto-encoder has fewer hidden nodes than inputs, "
        "and above the optimum it loses accuracy or needs more epochs (Wuensche 2018, sections II and III.B).",
    )


def _model(settings: Settings) -> nn.Module:
    return weights.initialise(AutoEncoder(settings), settings.init, "autoencoder")


def _loss(model: Any, shown: Tensor) -> Tensor:
    return F.mse_loss(model(shown), shown)


@torch.no_grad()
def _examine(model: nn.Module, held_out: Tensor) -> dict[str, float]:
    (shown,) = images.beside(model, held_out)
    return {"reconstruction": float(_loss(model, shown))}


@torch.no_grad()
def _draw(model: nn.Module, held_out: Tensor, folder: Path) -> list[Path]:
    """Images never seen, and under each what came through the hidden layer."""
    (shown,) = images.beside(model, held_out)
    if shown.shape[1] not in (1, 3) or shown.shape[2] == 1:
        return []
    return images.save_sheet(folder, "reconstructions", torch.cat([shown, model(shown)]), len(shown))
