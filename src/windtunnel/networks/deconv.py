"""Deconvolutional network: makes an image from a small code.

Its input is an image shrunk to a few pixels, its output the image at full size. Each layer is a transposed
convolution that doubles the image, the reverse of a layer of a convolutional network.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
    """`size`: side of the images in pixels; `code`: side of the shrunk image in pixels;
    `width`: feature maps of the first layer, halved at every doubling of the side."""

    size: int = 8
    channels: int = 1
    code: int = 4
    width: int = 64
    rate: float = 0.003
    batch: int = 64
    epochs: int = 20
    examples: int = 1437
    init: str = "modern"

    def __post_init__(self) -> None:
        images.require_positive(
            self, ("size", "channels", "code", "width", "rate", "batch", "epochs", "examples"), "deconv"
        )
        if self.code >= self.size:
            raise BadRecord(
                f"job deconv: code must be below the size of the image, {self.size}, not {self.code}."
            )
        weights.bound_of(self.init, "deconv")


class Deconv(nn.Module):
    """Doubles the code until it is at least as large as the image, with fewer feature maps at each doubling.

    If doubling does not give exactly the size of the image, the result is shrunk to it.
    """

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.size = settings.size
        self.shrink = nn.AdaptiveAvgPool2d(settings.code)  # makes the code: each pixel is the mean of a patch
        doublings = (-(-settings.size // settings.code) - 1).bit_length()
        widths = [max(8, settings.width >> number) for number in range(doublings + 1)]
        layers: list[nn.Module] = [nn.Conv2d(settings.channels, widths[0], 3, padding=1), nn.ReLU()]
        for before, after in itertools.pairwise(widths):
            layers += [nn.ConvTranspose2d(before, after, 4, stride=2, padding=1), nn.ReLU()]
        self.layers = nn.Sequential(*layers, nn.Conv2d(widths[-1], settings.channels, 3, padding=1))

    def forward(self, code: Tensor) -> Tensor:
        image: Tensor = torch.sigmoid(self.layers(code))
        if image.shape[-1] == self.size:
            return image
        return F.interpolate(image, size=(self.size, self.size), mode="bilinear")


def build(settings: Settings) -> Workload:
    """One step on synthetic images."""
    return Workload(
        name="deconv",
        model=lambda: _model(settings),
        batch=lambda n: (images.random_images(settings, n),),
        loss=_loss,
        forward=lambda model, batch: model(model.shrink(batch[0])),
        optimizer=lambda params: torch.optim.Adam(params, lr=settings.rate),
        examples=settings.examples,
        default_batch=settings.batch,
    )


def teach(settings: Settings, data: Dataset) -> Lesson:
    """Train with squared error and Adam; compare with simple enlarging on held-out images."""
    settings = images.fitted(settings, data, "deconv")
    train, held_out = data.train["images"], data.held_out["images"]
    learn = images.adam_stage(settings, (train,), _loss)
    return Lesson(
        model=lambda: _model(settings),
        stages=(learn,),
        examine=lambda model: _examine(model, held_out),
        metric="error",
        better="lower",
        draw=lambda model, folder: _draw(model, images.evenly_spaced(held_out), folder),
    )


def _model(settings: Settings) -> nn.Module:
    return weights.initialise(Deconv(settings), settings.init, "deconv")


def _loss(model: Any, batch: tuple[Tensor]) -> Tensor:
    return F.mse_loss(model(model.shrink(batch[0])), batch[0])


def _enlarged(model: Deconv, code: Tensor, mode: str) -> Tensor:
    return F.interpolate(code, size=(model.size, model.size), mode=mode)


@torch.no_grad()
def _examine(model: Deconv, held_out: Tensor) -> dict[str, float]:
    """`error`: mean squared error; `nearest`, `bilinear`: the same for enlarging without a network."""
    (real,) = images.on_device_of(model, held_out)
    code: Tensor = model.shrink(real)
    made = {
        "error": model(code),
        "nearest": _enlarged(model, code, "nearest"),
        "bilinear": _enlarged(model, code, "bilinear"),
    }
    return {name: float(F.mse_loss(image, real)) for name, image in made.items()}


@torch.no_grad()
def _draw(model: Deconv, held_out: Tensor, folder: Path) -> list[Path]:
    """Three rows: the codes, the network's images, and the original images."""
    (real,) = images.on_device_of(model, held_out)
    code: Tensor = model.shrink(real)
    return images.save_sheet(
        folder, "enlarged", torch.cat([_enlarged(model, code, "nearest"), model(code), real]), len(real)
    )
