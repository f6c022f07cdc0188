"""Restricted Boltzmann machine: one layer of hidden units that learns what belongs together, without labels.

Trained by contrastive divergence (Hinton 2002): let the data set the hidden units, let these make up data again, k times;
strengthen what the data shows and weaken what the machine makes up. There is no loss to differentiate.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

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
    """`k`: rounds of contrastive divergence. `visible`: whether made-up images are probabilities (less noise) or drawn as bits."""

    size: int = 8
    channels: int = 1
    hidden: int = 128
    k: int = 1
    visible: Literal["probability", "binary"] = "probability"
    rate: float = 0.1
    momentum: float = 0.5
    batch: int = 32
    epochs: int = 30
    examples: int = 1437
    init: str = "modern"

    def __post_init__(self) -> None:
        images.require_positive(
            self, ("size", "channels", "hidden", "k", "rate", "batch", "epochs", "examples"), "rbm"
        )
        if not 0 <= self.momentum < 1:
            raise BadRecord(f"job rbm: momentum must be from 0 to below 1, not {self.momentum}.")
        weights.bound_of(self.init, "rbm")


class RBM(nn.Module):
    """Visible and hidden units, all connected to each other across and none within a side."""

    def __init__(self, visible: int, hidden: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(
            torch.randn(hidden, visible) * 0.01
        )  # small, so that no unit is sure of anything (Hinton 2010, section 8)
        self.visible_bias = nn.Parameter(torch.zeros(visible))
        self.hidden_bias = nn.Parameter(torch.zeros(hidden))

    def hidden(self, visible: Tensor) -> Tensor:
        """How likely each hidden unit is on."""
        return torch.sigmoid(F.linear(visible, self.weight, self.hidden_bias))

    def visible(self, hidden: Tensor) -> Tensor:
        """How likely each visible unit is on."""
        return torch.sigmoid(F.linear(hidden, self.weight.t(), self.visible_bias))

    def forward(self, visible: Tensor) -> Tensor:
        """The reconstruction: up and down once, without drawing."""
        return self.visible(self.hidden(visible))

    def free_energy(self, visible: Tensor) -> Tensor:
        """F(v) = -v·b - sum log(1 + exp(c + W v)): low for what the machine holds likely, one number an example."""
        return -visible @ self.visible_bias - F.softplus(
            F.linear(visible, self.weight, self.hidden_bias)
        ).sum(1)

    def contrast(self, data: Tensor, k: int, binary: bool) -> Tensor:
        """Set the gradients of k rounds of contrastive divergence; returns the squared error of the first reconstruction."""
        with torch.no_grad():
            awake = self.hidden(data)
            dreamt, asleep = data, awake
            error = data.new_zeros(())
            for turn in range(k):
                dreamt = self.visible(torch.bernoulli(asleep))
                if turn == 0:
                    error = F.mse_loss(dreamt, data)
                if binary:
                    dreamt = torch.bernoulli(dreamt)
                asleep = self.hidden(dreamt)
            self.weight.grad = ((asleep.t() @ dreamt - awake.t() @ data) / len(data)).to(self.weight)
            self.visible_bias.grad = (dreamt - data).mean(0).to(self.weight)
            self.hidden_bias.grad = (asleep - awake).mean(0).to(self.weight)
        return error


def build(settings: Settings) -> Workload:
    """One step of contrastive divergence on synthetic images."""
    return Workload(
        name="rbm",
        model=lambda: _model(settings),
        batch=lambda n: (torch.rand(n, settings.channels, settings.size, settings.size),),
        step=_step(settings),
        optimizers=lambda model: _optimizer(settings, model),
        examples=settings.examples,
        default_batch=settings.batch,
    )


def teach(settings: Settings, data: Dataset) -> Lesson:
    """Contrastive divergence on the images; examined by reconstruction, and by free energy against noise."""
    settings = images.fitted(settings, data, "rbm")
    shown, held_out = data.train["images"], data.held_out["images"]
    learn = Stage(
        name="learn",
        epochs=settings.epochs,
        steps=images.steps_of(len(shown), settings.batch),
        batches=images.shuffled(settings.batch, shown),
        optimizers=lambda model: _optimizer(settings, model),
        step=_step(settings),
    )
    return Lesson(
        model=lambda: _model(settings),
        stages=(learn,),
        examine=lambda model: _examine(model, held_out),
        metric="reconstruction",
        better="lower",
        draw=lambda model, folder: _draw(model, images.few(held_out), folder),
    )


def _model(settings: Settings) -> nn.Module:
    return weights.initialise(
        RBM(settings.channels * settings.size**2, settings.hidden), settings.init, "rbm"
    )


def _optimizer(settings: Settings, model: nn.Module) -> Any:
    return torch.optim.SGD(model.parameters(), lr=settings.rate, momentum=settings.momentum)


def _step(settings: Settings) -> Any:
    def step(model: RBM, batch: tuple[Tensor], optimizer: Any) -> Tensor:
        error = model.contrast(batch[0].flatten(1), settings.k, settings.visible == "binary")
        optimizer.step()
        return error

    return step


@torch.no_grad()
def _examine(model: RBM, held_out: Tensor) -> dict[str, float]:
    """`energy_gap`: how much higher the free energy of noise lies than that of images, on average."""
    (real,) = images.beside(model, held_out.flatten(1))
    (noise,) = images.beside(
        model, torch.rand(held_out.flatten(1).shape, generator=torch.Generator().manual_seed(0))
    )
    gap = model.free_energy(noise).mean() - model.free_energy(real).mean()
    return {"reconstruction": float(F.mse_loss(model(real), real)), "energy_gap": float(gap)}


@torch.no_grad()
def _draw(model: RBM, real: Tensor, folder: Path) -> list[Path]:
    """Images never seen, and under each what the machine makes of it."""
    (place,) = images.beside(model, real)
    again = model(place.flatten(1)).view(place.shape)
    return images.save_sheet(folder, "reconstructions", torch.cat([place, again]), len(real))
