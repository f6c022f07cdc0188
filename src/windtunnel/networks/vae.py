"""Variational auto-encoder, told the class: what it generates follows a specification.

The encoder gives each image a cloud of codes, the sampler draws one, the decoder turns it back into an image; encoder and
decoder are both told the class. Training raises a bound on the images' log-likelihood (Kingma and Welling 2014):
how well the image comes back, less how far the cloud is from the standard normal that generation draws from.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from windtunnel.job.lesson import Dataset, Lesson, Stage
from windtunnel.job.workload import Workload
from windtunnel.networks import _images as images
from windtunnel.networks import weights

DATA = "digits"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """`code`: numbers an image is squeezed into; `hidden`: nodes of the one hidden layer on either side."""

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
    """Encoder, sampler and decoder."""

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

    def encode(self, shown: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Middle and log-variance of each image's cloud of codes."""
        middle, log_variance = self.encoder(self._with_class(shown.flatten(1), labels)).chunk(2, 1)
        return middle, log_variance

    def decode(self, code: Tensor, labels: Tensor) -> Tensor:
        """The image in 0..1 that the code stands for."""
        image: Tensor = self.decoder(self._with_class(code, labels)).view(-1, *self.shape)
        return image

    def forward(self, shown: Tensor, labels: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """The two parts of the bound, in nats an image: the reconstruction's log-likelihood, and the codes' divergence from the normal.

        Pixels are normal around the decoded image with one learned deviation. (Grey pixels counted as bits would hide most of
        what an image has of its own, and all images of a class would come out alike.)
        """
        middle, log_variance = self.encode(shown, labels)
        image = self.decode(
            middle + noise * torch.exp(log_variance / 2), labels
        )  # drawn so that gradients pass through
        missed = ((shown - image) * torch.exp(-self.log_deviation)).square()
        likelihood = -(missed / 2 + self.log_deviation + math.log(2 * math.pi) / 2).sum() / len(shown)
        divergence = (middle.square() + log_variance.exp() - log_variance - 1).sum() / 2 / len(shown)
        return likelihood, divergence

    def _with_class(self, values: Tensor, labels: Tensor) -> Tensor:
        return torch.cat([values, F.one_hot(labels, self.classes).to(values.dtype)], 1)


@torch.no_grad()
def generate(model: VAE, labels: Tensor, noise: Tensor | None = None) -> Tensor:
    """A new image of each class asked for, in 0..1."""
    code = torch.randn(len(labels), model.code) if noise is None else noise
    wanted, drawn = images.beside(model, labels, code)
    return model.decode(drawn, wanted)


def build(settings: Settings) -> Workload:
    """One step on synthetic images."""

    def batch(n: int) -> tuple[Tensor, Tensor]:
        return torch.rand(n, settings.channels, settings.size, settings.size), torch.randint(
            0, settings.classes, (n,)
        )

    return Workload(
        name="vae",
        model=lambda: _model(settings),
        batch=batch,
        loss=_loss,
        optimizer=lambda params: torch.optim.Adam(params, lr=settings.rate),
        examples=settings.examples,
        default_batch=settings.batch,
    )


def teach(settings: Settings, data: Dataset) -> Lesson:
    """Raise the bound; examined by the bound on images never seen; draws ten images of every class."""
    settings = images.fitted(settings, data, "vae")
    learn = Stage(
        name="learn",
        epochs=settings.epochs,
        steps=images.steps_of(len(data.train["images"]), settings.batch),
        batches=images.shuffled(settings.batch, data.train["images"], data.train["labels"]),
        optimizers=lambda model: torch.optim.Adam(model.parameters(), lr=settings.rate),
        step=images.descend(_loss),
    )
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
    missing: Tensor = divergence - likelihood
    return missing


@torch.no_grad()
def _examine(model: VAE, data: Dataset) -> dict[str, float]:
    noise = images.fixed_noise(len(data.held_out["images"]), model.code)
    likelihood, divergence = model(
        *images.beside(model, data.held_out["images"], data.held_out["labels"], noise)
    )
    return {
        "bound": float(likelihood - divergence),
        "divergence": float(divergence),
        "deviation": float(model.log_deviation.exp()),
    }


def _draw(model: VAE, folder: Path) -> list[Path]:
    """One row a class."""
    labels = torch.arange(model.classes).repeat_interleave(10)
    return images.save_sheet(
        folder, "generated", generate(model, labels, images.fixed_noise(len(labels), model.code)), 10
    )
