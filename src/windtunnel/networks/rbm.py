"""Restricted Boltzmann machine: learns without labels which inputs occur together.

Visible units v (the inputs) and hidden units h are on with probability

    p(h|v) = sigmoid(W v + c),    p(v|h) = sigmoid(W^T h + b)

Contrastive divergence (Hinton 2002) trains it: sample h from the data v0, then v from h, k times; this
gives vk. The update raises the probability of the data and lowers that of the samples. With p0 = p(h|v0)
and pk = p(h|vk):

    change of W ~ p0 v0^T - pk vk^T,    change of b ~ v0 - vk,    change of c ~ p0 - pk

There is no loss to differentiate; the step sets the gradients itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from windtunnel.errors import BadRecord
from windtunnel.job.lesson import Dataset, Lesson
from windtunnel.job.workload import Workload
from windtunnel.networks import _images as images
from windtunnel.networks import weights

DATA = "digits"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """`hidden`: hidden units; `k`: rounds of contrastive divergence;
    `visible`: whether reconstructed images are probabilities (less noise) or sampled bits."""

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
    """Every visible unit is connected to every hidden unit; units of one side are not connected."""

    def __init__(self, visible: int, hidden: int) -> None:
        super().__init__()
        # Small weights: every unit starts near a probability of 1/2 (Hinton 2010, section 8).
        self.weight = nn.Parameter(torch.randn(hidden, visible) * 0.01)
        self.visible_bias = nn.Parameter(torch.zeros(visible))
        self.hidden_bias = nn.Parameter(torch.zeros(hidden))

    def hidden(self, visible: Tensor) -> Tensor:
        """The probability that each hidden unit is on."""
        return torch.sigmoid(F.linear(visible, self.weight, self.hidden_bias))

    def visible(self, hidden: Tensor) -> Tensor:
        """The probability that each visible unit is on."""
        return torch.sigmoid(F.linear(hidden, self.weight.t(), self.visible_bias))

    def forward(self, visible: Tensor) -> Tensor:
        """The reconstruction of the input, computed from probabilities without sampling."""
        return self.visible(self.hidden(visible))

    def free_energy(self, visible: Tensor) -> Tensor:
        """F(v) = -v·b - sum log(1 + exp(c + W v)), one number for each example; low for likely inputs."""
        hidden = F.softplus(F.linear(visible, self.weight, self.hidden_bias)).sum(1)
        return -visible @ self.visible_bias - hidden

    def contrast(self, data: Tensor, k: int, binary: bool) -> Tensor:
        """Set the gradients by k rounds of contrastive divergence; return the first round's error."""
        with torch.no_grad():
            data_hidden = self.hidden(data)
            visible, hidden = data, data_hidden
            error = data.new_zeros(())
            for number in range(k):
                visible = self.visible(torch.bernoulli(hidden))
                if number == 0:
                    error = F.mse_loss(visible, data)
                if binary:
                    visible = torch.bernoulli(visible)
                hidden = self.hidden(visible)
            self.weight.grad = ((hidden.t() @ visible - data_hidden.t() @ data) / len(data)).to(self.weight)
            self.visible_bias.grad = (visible - data).mean(0).to(self.weight)
            self.hidden_bias.grad = (hidden - data_hidden).mean(0).to(self.weight)
        return error


def build(settings: Settings) -> Workload:
    """One step of contrastive divergence on synthetic images."""
    return Workload(
        name="rbm",
        model=lambda: _model(settings),
        batch=lambda n: (images.random_images(settings, n),),
        step=_step(settings),
        optimizers=lambda model: _optimizer(settings, model),
        examples=settings.examples,
        default_batch=settings.batch,
    )


def teach(settings: Settings, data: Dataset) -> Lesson:
    """Train by contrastive divergence; test the reconstruction and the free energy of held-out images."""
    settings = images.fitted(settings, data, "rbm")
    train, held_out = data.train["images"], data.held_out["images"]
    learn = images.stage(settings, (train,), lambda model: _optimizer(settings, model), _step(settings))
    return Lesson(
        model=lambda: _model(settings),
        stages=(learn,),
        examine=lambda model: _examine(model, held_out),
        metric="reconstruction",
        better="lower",
        draw=lambda model, folder: _draw(model, images.evenly_spaced(held_out), folder),
    )


def _model(settings: Settings) -> nn.Module:
    return weights.initialise(
        RBM(settings.channels * settings.size**2, settings.hidden), settings.init, "rbm"
    )


def _optimizer(settings: Settings, model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=settings.rate, momentum=settings.momentum)


def _step(settings: Settings) -> Callable[[RBM, tuple[Tensor], torch.optim.Optimizer], Tensor]:
    def step(model: RBM, batch: tuple[Tensor], optimizer: torch.optim.Optimizer) -> Tensor:
        error = model.contrast(batch[0].flatten(1), settings.k, settings.visible == "binary")
        optimizer.step()
        return error

    return step


@torch.no_grad()
def _examine(model: RBM, held_out: Tensor) -> dict[str, float]:
    """`reconstruction`: mean squared error; `energy_gap`: mean free energy of noise minus that of images."""
    noise = torch.rand(held_out.flatten(1).shape, generator=torch.Generator().manual_seed(0))
    real, noise = images.on_device_of(model, held_out.flatten(1), noise)
    gap = model.free_energy(noise).mean() - model.free_energy(real).mean()
    return {"reconstruction": float(F.mse_loss(model(real), real)), "energy_gap": float(gap)}


@torch.no_grad()
def _draw(model: RBM, real: Tensor, folder: Path) -> list[Path]:
    """Two rows: held-out images and their reconstructions."""
    (inputs,) = images.on_device_of(model, real)
    outputs = model(inputs.flatten(1)).view(inputs.shape)
    return images.save_sheet(folder, "reconstructions", torch.cat([inputs, outputs]), len(real))
