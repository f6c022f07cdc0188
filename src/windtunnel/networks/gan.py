"""Generative adversarial network: two players who teach each other (Goodfellow et al. 2014).

The generator makes images out of noise; the discriminator tells real from made. Each has its own optimiser: the
discriminator learns to tell them apart, the generator to be taken for real.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
    """`noise`: random numbers an image is made from. `haze` blurs the discriminator's sight, so that it does not win outright."""

    size: int = 8
    channels: int = 1
    noise: int = 16
    hidden: int = 128
    haze: float = 0.1
    rate: float = 0.004
    batch: int = 64
    epochs: int = 40
    examples: int = 1437
    init: str = "modern"

    def __post_init__(self) -> None:
        images.require_positive(
            self, ("size", "channels", "noise", "hidden", "rate", "batch", "epochs", "examples"), "gan"
        )
        if not 0 <= self.haze < float("inf"):
            raise BadRecord(f"job gan: haze must be 0 or more, not {self.haze}.")
        if self.batch < 2:
            raise BadRecord(
                "job gan: batch must be 2 or more, since the generator normalises over the batch."
            )
        weights.bound_of(self.init, "gan")


class Haze(nn.Module):
    """Noise over what the discriminator sees while it learns, real and made alike, so that the two always overlap (Sønderby et al. 2017)."""

    def __init__(self, deviation: float) -> None:
        super().__init__()
        self.deviation = deviation

    def forward(self, shown: Tensor) -> Tensor:
        return shown + self.deviation * torch.randn_like(shown) if self.training else shown


class GAN(nn.Module):
    """Both players."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.shape, self.noise = (settings.channels, settings.size, settings.size), settings.noise
        pixels, hidden = settings.channels * settings.size**2, settings.hidden
        made: list[nn.Module] = []
        for wide in (settings.noise, hidden):
            made += [nn.Linear(wide, hidden), nn.BatchNorm1d(hidden), nn.ReLU()]
        self.generator = nn.Sequential(*made, nn.Linear(hidden, pixels), nn.Sigmoid())
        seen: list[nn.Module] = [nn.Flatten(), Haze(settings.haze)]
        for wide in (pixels, hidden):
            seen += [nn.Linear(wide, hidden), nn.LeakyReLU(0.2)]
        self.discriminator = nn.Sequential(*seen, nn.Linear(hidden, 1))

    def forward(self, noise: Tensor) -> Tensor:
        """The images made of this noise, in 0..1."""
        image: Tensor = self.generator(noise).view(-1, *self.shape)
        return image


@torch.no_grad()
def generate(model: GAN, noise: Tensor) -> Tensor:
    """New images, one for each row of noise."""
    (drawn,) = images.beside(model, noise)
    with images.examined(model):
        made: Tensor = model(drawn)
    return made


def build(settings: Settings) -> Workload:
    """One turn of both players on synthetic images."""
    return Workload(
        name="gan",
        model=lambda: _model(settings),
        batch=lambda n: (torch.rand(n, settings.channels, settings.size, settings.size),),
        step=_step,
        optimizers=lambda model: _optimizers(settings, model),
        examples=settings.examples,
        default_batch=settings.batch,
    )


def teach(settings: Settings, data: Dataset) -> Lesson:
    """Both players in turn; examined by how far what is made lies from images never seen; draws a sheet of what it makes."""
    settings = images.fitted(settings, data, "gan")
    play = Stage(
        name="play",
        epochs=settings.epochs,
        steps=images.steps_of(len(data.train["images"]), settings.batch),
        batches=images.shuffled(settings.batch, data.train["images"]),
        optimizers=lambda model: _optimizers(settings, model),
        step=_step,
    )
    return Lesson(
        model=lambda: _model(settings),
        stages=(play,),
        examine=lambda model: _examine(model, data.held_out["images"]),
        metric="distance",
        better="lower",
        draw=_draw,
    )


def _model(settings: Settings) -> nn.Module:
    return weights.initialise(GAN(settings), settings.init, "gan")


def _optimizers(settings: Settings, model: GAN) -> dict[str, Any]:
    """Without momentum, since the opponent's move changes the slope at every step."""
    players = {"generator": model.generator, "discriminator": model.discriminator}
    return {
        name: torch.optim.Adam(player.parameters(), lr=settings.rate, betas=(0.0, 0.99))
        for name, player in players.items()
    }


def _step(model: GAN, batch: tuple[Tensor], optimizers: dict[str, Any]) -> Tensor:
    """First the discriminator's move, then the generator's; returns the generator's loss."""
    (real,) = batch
    made = model(torch.randn(len(real), model.noise, device=real.device))
    optimizers["discriminator"].zero_grad(set_to_none=True)
    scores = model.discriminator(torch.cat([real, made.detach()]))
    truth = torch.cat([torch.ones_like(scores[: len(real)]), torch.zeros_like(scores[len(real) :])])
    F.binary_cross_entropy_with_logits(scores, truth).backward()  # type: ignore[no-untyped-call]
    optimizers["discriminator"].step()

    optimizers["generator"].zero_grad(set_to_none=True)
    scores = model.discriminator(made)
    loss = F.binary_cross_entropy_with_logits(scores, torch.ones_like(scores))
    loss.backward(inputs=list(model.generator.parameters()))  # type: ignore[no-untyped-call]
    optimizers["generator"].step()
    return loss.detach()


@torch.no_grad()
def _examine(model: GAN, held_out: Tensor) -> dict[str, float]:
    """`distance`: the energy distance (Székely and Rizzo 2013) of made images from real ones, 0 when both are spread alike.

    `spread`: how far made images lie from each other, beside real ones: far below 1 when few kinds are made over and over.
    """
    (real,) = images.beside(model, held_out.flatten(1))
    made = generate(model, images.fixed_noise(len(real), model.noise)).flatten(1)
    across, among_real, among_made = (
        torch.cdist(a, b).mean() for a, b in ((real, made), (real, real), (made, made))
    )
    return {"distance": float(2 * across - among_real - among_made), "spread": float(among_made / among_real)}


def _draw(model: GAN, folder: Path) -> list[Path]:
    return images.save_sheet(folder, "generated", generate(model, images.fixed_noise(100, model.noise)), 10)
