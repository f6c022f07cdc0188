"""Auto-encoder: compresses data to fewer hidden nodes than inputs, and restores it.

    code = activation(W1 x + b1),    output = sigmoid(W2 code + b2),    loss = mean (output - x)^2

The code is linear by default. The output is not: the sigmoid keeps it between 0 and 1, like a pixel. The
network therefore restores held-out images better than principal components, the best linear code.
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
    """`inputs`: values of one example; `hidden`: nodes of the code, fewer than inputs;
    `activation`: the function after the code."""

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
    """Encoder and decoder; the output has the shape of the input."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Flatten(), nn.Linear(settings.inputs, settings.hidden), _ACTIVATIONS[settings.activation]()
        )
        self.decoder = nn.Sequential(nn.Linear(settings.hidden, settings.inputs), nn.Sigmoid())

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.decoder(self.encoder(inputs))
        return outputs.view(inputs.shape)


def build(settings: Settings) -> Workload:
    """Compress and restore synthetic vectors."""
    return Workload(
        name="autoencoder",
        model=lambda: _model(settings),
        batch=lambda n: torch.rand(n, settings.inputs),
        loss=_loss,
        forward=lambda model, inputs: model(inputs),
        optimizer=lambda params: torch.optim.Adam(params, lr=settings.rate),
        examples=settings.examples,
        default_batch=settings.batch,
    )


def teach(settings: Settings, data: Dataset) -> Lesson:
    """Train with squared error and Adam, without labels; test the error on held-out images."""
    images.fitted(settings, data, "autoencoder")
    train, held_out = data.train["images"], data.held_out["images"]
    fitted = dataclasses.replace(settings, inputs=train[0].numel())
    learn = Stage(
        name="learn",
        epochs=settings.epochs,
        steps=images.steps_of(len(train), settings.batch),
        batches=lambda generator: (batch for (batch,) in images.shuffled(settings.batch, train)(generator)),
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
    """Warn if the hidden layer breaks the guide's rule: fewer hidden nodes than inputs."""
    if settings.hidden < settings.inputs:
        return ()
    return (
        f"{settings.hidden} hidden nodes for {settings.inputs} inputs compress nothing. An auto-encoder "
        "needs fewer hidden nodes than inputs; with more than the optimum it loses accuracy or needs more "
        "epochs (Wuensche 2018, sections II and III.B).",
    )


def _model(settings: Settings) -> nn.Module:
    return weights.initialise(AutoEncoder(settings), settings.init, "autoencoder")


def _loss(model: Any, inputs: Tensor) -> Tensor:
    return F.mse_loss(model(inputs), inputs)


@torch.no_grad()
def _examine(model: nn.Module, held_out: Tensor) -> dict[str, float]:
    (inputs,) = images.on_device_of(model, held_out)
    return {"reconstruction": float(_loss(model, inputs))}


@torch.no_grad()
def _draw(model: nn.Module, held_out: Tensor, folder: Path) -> list[Path]:
    """Two rows: held-out images and their reconstructions. Draws nothing if the examples are not images."""
    (inputs,) = images.on_device_of(model, held_out)
    if inputs.shape[1] not in (1, 3) or inputs.shape[2] == 1:
        return []
    return images.save_sheet(folder, "reconstructions", torch.cat([inputs, model(inputs)]), len(inputs))
