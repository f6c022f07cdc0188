"""Variational auto-encoder that knows the class: generates new images of a chosen class.

The encoder maps an image x and its class y to a normal distribution of codes, q(z|x,y) = N(mu, sigma^2).
The decoder maps a sampled code z and the class back to an image. Training maximises a lower bound of
log p(x|y), the log-likelihood of the images (Kingma and Welling 2014):

    bound = E[log p(x|z,y)] - KL(q(z|x,y) || N(0, 1))

The first term is the quality of the reconstruction. The second keeps the codes close to the standard normal
distribution, from which generation samples them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from windtunnel.job.lesson import Dataset, Lesson
from windtunnel.job.workload import Workload
from windtunnel.networks import _images as images
from windtunnel.networks import weights

DATA = "digits"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """`size`: side of the images in pixels; `code`: numbers in the code of an image;
    `hidden`: nodes of the hidden layers of encoder and decoder, which have one each."""

    size: int = 8
    channels: int = 1
    classes: int = 10
    hidden: int = 256
    code: int = 8
    rate: float = 0.002
    batch: int = 64
    epochs: int = 40
    examples: int = 1437
    init: str = "modern"

    def __post_init__(self) -> None:
        images.require_positive(
            self,
            ("size", "channels", "classes", "hidden", "code", "rate", "batch", "epochs", "examples"),
            "vae",
        )
        weights.bound_of(self.init, "vae")


class VAE(nn.Module):
    """Encoder and decoder, each with one hidden layer."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.shape = (settings.channels, settings.size, settings.size)
        self.code, self.classes = settings.code, settings.classes
        pixels = settings.channels * settings.size**2
        self.encoder = nn.Sequential(
            nn.Linear(pixels + settings.classes, settings.hidden),
            nn.ReLU(),
            nn.Linear(settings.hidden, 2 * settings.code),
        )
        self.decoder = nn.Sequential(
            nn.Linear(settings.code + settings.classes, settings.hidden),
            nn.ReLU(),
            nn.Linear(settings.hidden, pixels),
            nn.Sigmoid(),
        )
        self.log_deviation = nn.Parameter(torch.tensor(-1.0))

    def encode(self, inputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log-variance of each image's distribution of codes."""
        mean, log_variance = self.encoder(self._with_class(inputs.flatten(1), labels)).chunk(2, 1)
        return mean, log_variance

    def decode(self, code: Tensor, labels: Tensor) -> Tensor:
        """The image of each code, with values from 0 to 1."""
        image: Tensor = self.decoder(self._with_class(code, labels)).view(-1, *self.shape)
        return image

    def forward(self, inputs: Tensor, labels: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """The two terms of the bound, in nats per image: log-likelihood of the image, KL divergence.

        Pixels are normal around the decoded image, with one learned deviation. (Grey pixels as bits, the
        usual choice, would hide most differences between images: all images of a class would look alike.)
        """
        mean, log_variance = self.encode(inputs, labels)
        # Sample as mean + noise x deviation, so that gradients reach mean and deviation.
        image = self.decode(mean + noise * torch.exp(log_variance / 2), labels)
        error = ((inputs - image) * torch.exp(-self.log_deviation)).square()
        likelihood = -(error / 2 + self.log_deviation + math.log(2 * math.pi) / 2).sum() / len(inputs)
        divergence = (mean.square() + log_variance.exp() - log_variance - 1).sum() / 2 / len(inputs)
        return likelihood, divergence

    def _with_class(self, values: Tensor, labels: Tensor) -> Tensor:
        return torch.cat([values, F.one_hot(labels, self.classes).to(values.dtype)], 1)


@torch.no_grad()
def generate(model: VAE, labels: Tensor, noise: Tensor | None = None) -> Tensor:
    """A new image for each label, with values from 0 to 1."""
    code = torch.randn(len(labels), model.code) if noise is None else noise
    labels, code = images.on_device_of(model, labels, code)
    return model.decode(code, labels)


def build(settings: Settings) -> Workload:
    """One step on synthetic images."""
    return Workload(
        name="vae",
        model=lambda: _model(settings),
        batch=lambda n: images.random_labelled_images(settings, n),
        loss=_loss,
        optimizer=lambda params: torch.optim.Adam(params, lr=settings.rate),
        examples=settings.examples,
        default_batch=settings.batch,
    )


def teach(settings: Settings, data: Dataset) -> Lesson:
    """Maximise the bound; test it on held-out images; draw ten images of every class."""
    settings = images.fitted(settings, data, "vae")
    learn = images.adam_stage(settings, images.labelled(data), _loss)
    return Lesson(
        model=lambda: _model(settings),
        stages=(learn,),
        examine=lambda model: _examine(model, data),
        metric="bound",
        better="higher",
        draw=_draw,
    )


def _model(settings: Settings) -> nn.Module:
    return weights.initialise(VAE(settings), settings.init, "vae")


def _loss(model: Any, pair: tuple[Tensor, Tensor]) -> Tensor:
    likelihood, divergence = model(*pair, torch.randn(len(pair[0]), model.code, device=pair[0].device))
    loss: Tensor = divergence - likelihood
    return loss


@torch.no_grad()
def _examine(model: VAE, data: Dataset) -> dict[str, float]:
    noise = images.fixed_noise(len(data.held_out["images"]), model.code)
    likelihood, divergence = model(
        *images.on_device_of(model, data.held_out["images"], data.held_out["labels"], noise)
    )
    return {
        "bound": float(likelihood - divergence),
        "divergence": float(divergence),
        "deviation": float(model.log_deviation.exp()),
    }


def _draw(model: VAE, folder: Path) -> list[Path]:
    """One row of images for each class."""
    labels = torch.arange(model.classes).repeat_interleave(10)
    return images.save_sheet(
        folder, "generated", generate(model, labels, images.fixed_noise(len(labels), model.code)), 10
    )
