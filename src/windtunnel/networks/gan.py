"""Generative adversarial network (Goodfellow et al. 2014): two networks that train against each other.

The generator G makes images from noise z; the discriminator D gives each image a score, the logit of the
probability that it is real. With the sigmoid s, one step minimises first the loss of D, then that of G:

    loss of D = mean over real x and generated G(z) of  -log s(D(x)) - log(1 - s(D(G(z))))
    loss of G = mean of  -log s(D(G(z)))
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from windtunnel.errors import BadRecord
from windtunnel.job.lesson import Dataset, Lesson
from windtunnel.job.workload import Workload
from windtunnel.networks import _images as images
from windtunnel.networks import weights
from windtunnel.records import Plain

DATA = "digits"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """`noise`: random numbers from which an image is made; `hidden`: nodes of each hidden layer;
    `instance_noise`: deviation of the noise added to the images that the discriminator sees."""

    size: int = 8
    channels: int = 1
    noise: int = 16
    hidden: int = 128
    instance_noise: float = 0.1
    rate: float = 0.004
    batch: int = 64
    epochs: int = 40
    examples: int = 1437
    init: str = "modern"

    def __post_init__(self) -> None:
        images.require_positive(
            self, ("size", "channels", "noise", "hidden", "rate", "batch", "epochs", "examples"), "gan"
        )
        if not 0 <= self.instance_noise < float("inf"):
            raise BadRecord(f"job gan: instance_noise must be 0 or more, not {self.instance_noise}.")
        if self.batch < 2:
            raise BadRecord(
                "job gan: batch must be at least 2, since the generator uses batch normalisation."
            )
        weights.bound_of(self.init, "gan")


class InstanceNoise(nn.Module):
    """Adds noise to the discriminator's inputs during training (Sønderby et al. 2017).

    Real and generated images then always overlap, so the discriminator cannot separate them perfectly.
    """

    def __init__(self, deviation: float) -> None:
        super().__init__()
        self.deviation = deviation

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs + self.deviation * torch.randn_like(inputs) if self.training else inputs


class GAN(nn.Module):
    """Generator and discriminator, each a network with two hidden layers."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.shape, self.noise = (settings.channels, settings.size, settings.size), settings.noise
        pixels, hidden = settings.channels * settings.size**2, settings.hidden
        layers: list[nn.Module] = []
        for wide in (settings.noise, hidden):
            layers += [nn.Linear(wide, hidden), nn.BatchNorm1d(hidden), nn.ReLU()]
        self.generator = nn.Sequential(*layers, nn.Linear(hidden, pixels), nn.Sigmoid())
        layers = [nn.Flatten(), InstanceNoise(settings.instance_noise)]
        for wide in (pixels, hidden):
            layers += [nn.Linear(wide, hidden), nn.LeakyReLU(0.2)]
        self.discriminator = nn.Sequential(*layers, nn.Linear(hidden, 1))

    def forward(self, noise: Tensor) -> Tensor:
        """The images that the generator makes from this noise, with values from 0 to 1."""
        image: Tensor = self.generator(noise).view(-1, *self.shape)
        return image


@torch.no_grad()
def generate(model: GAN, noise: Tensor) -> Tensor:
    """New images, one for each row of noise."""
    (noise,) = images.on_device_of(model, noise)
    with images.evaluation_mode(model):
        generated: Tensor = model(noise)
    return generated


def build(settings: Settings) -> Workload:
    """One step of both networks on synthetic images."""
    return Workload(
        name="gan",
        model=lambda: _model(settings),
        batch=lambda n: (images.random_images(settings, n),),
        step=_step,
        optimizers=lambda model: _optimizers(settings, model),
        examples=settings.examples,
        default_batch=settings.batch,
    )


def teach(settings: Settings, data: Dataset) -> Lesson:
    """Train both networks; test how far generated images are from held-out ones; draw a sheet of images."""
    settings = images.fitted(settings, data, "gan")
    play = images.stage(
        settings, (data.train["images"],), lambda model: _optimizers(settings, model), _step, name="play"
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


def _optimizers(settings: Settings, model: GAN) -> Plain:
    """Adam without momentum (beta1 = 0): the other network's update changes the gradient at every step."""
    parts = {"generator": model.generator, "discriminator": model.discriminator}
    return {
        name: torch.optim.Adam(part.parameters(), lr=settings.rate, betas=(0.0, 0.99))
        for name, part in parts.items()
    }


def _step(model: GAN, batch: tuple[Tensor], optimizers: Plain) -> Tensor:
    """Update the discriminator, then the generator; return the generator's loss."""
    (real,) = batch
    generated = model(torch.randn(len(real), model.noise, device=real.device))
    optimizers["discriminator"].zero_grad(set_to_none=True)
    scores = model.discriminator(torch.cat([real, generated.detach()]))
    labels = torch.cat([torch.ones_like(scores[: len(real)]), torch.zeros_like(scores[len(real) :])])
    F.binary_cross_entropy_with_logits(scores, labels).backward()  # type: ignore[no-untyped-call]
    optimizers["discriminator"].step()

    optimizers["generator"].zero_grad(set_to_none=True)
    scores = model.discriminator(generated)
    loss = F.binary_cross_entropy_with_logits(scores, torch.ones_like(scores))
    loss.backward(inputs=list(model.generator.parameters()))  # type: ignore[no-untyped-call]
    optimizers["generator"].step()
    return loss.detach()


@torch.no_grad()
def _examine(model: GAN, held_out: Tensor) -> dict[str, float]:
    """Compare generated with held-out images, X and Y, by their mean distances.

    distance  energy distance (Székely and Rizzo 2013), 2 E|X-Y| - E|X-X'| - E|Y-Y'|; 0 if both agree
    spread    E|X-X'| / E|Y-Y'|; far below 1 if the generator makes only a few kinds of image
    """
    (real,) = images.on_device_of(model, held_out.flatten(1))
    generated = generate(model, images.fixed_noise(len(real), model.noise)).flatten(1)
    between, among_real, among_generated = (
        torch.cdist(a, b).mean() for a, b in ((real, generated), (real, real), (generated, generated))
    )
    return {
        "distance": float(2 * between - among_real - among_generated),
        "spread": float(among_generated / among_real),
    }


def _draw(model: GAN, folder: Path) -> list[Path]:
    return images.save_sheet(folder, "generated", generate(model, images.fixed_noise(100, model.noise)), 10)
