"""ResNet-18 (He et al. 2016): a stem, four groups of two residual blocks, and one linear layer."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy

from windtunnel.networks.definitions import Array, Start, Trial, count_batches, held, scaled, zeros
from windtunnel.networks.definitions.checks import check_images

LEAST_SIZE = 32  # the image is halved five times
SYNTHETIC_EXAMPLES = 1_281_167  # as many as ImageNet's training set has
# The last blocks see one pixel per image. With two images, batch normalisation amplifies rounding errors.
_SMALL = {"classes": 7, "size": 32, "width": 4, "rate": 0.001}
TRIALS = (Trial(settings=_SMALL, batch=16, optimizer="momentum", data="streamed"),)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """`width`: channels after the first layer; each of the later three groups doubles it.

    `rate`: the published 0.1 for 256 images, scaled to 32.
    """

    classes: int = 1000
    channels: int = 3
    size: int = 224
    width: int = 64
    rate: float = 0.0125
    init: str = held("modern")

    def __post_init__(self) -> None:
        check_images(self, "resnet18", LEAST_SIZE)

    @property
    def examples(self) -> int:
        return SYNTHETIC_EXAMPLES


@dataclass(frozen=True, slots=True, kw_only=True)
class ResidualBlock:
    """Two 3x3 convolutions beside a shortcut, which has a convolution of its own where the shape changes."""

    name: str
    channels: int
    width: int
    stride: int

    @property
    def has_convolution(self) -> bool:
        return self.stride != 1 or self.channels != self.width


def blocks(width: int) -> list[ResidualBlock]:
    """All blocks in the order of use."""
    rows = []
    channels = width
    for group, index in itertools.product(range(4), range(2)):
        wide = width * 2**group
        stride = 2 if group > 0 and index == 0 else 1
        rows.append(ResidualBlock(name=f"{group}.{index}", channels=channels, width=wide, stride=stride))
        channels = wide
    return rows


def start(settings: Settings, batch: int, rng: numpy.random.Generator) -> Start:
    """Images are (batch, channels, height, width).

    Each kernel is followed by scale and shift of its normalisation.
    """
    weights = _convolution(rng, "stem", 7, settings.channels, settings.width)
    for block in blocks(settings.width):
        weights |= _convolution(rng, f"{block.name}.first", 3, block.channels, block.width)
        weights |= _convolution(rng, f"{block.name}.second", 3, block.width, block.width)
        if block.has_convolution:
            weights |= _convolution(rng, f"{block.name}.shortcut", 1, block.channels, block.width)
    weights["w_head"] = scaled(rng, 8 * settings.width, settings.classes)
    weights["b_head"] = zeros(settings.classes)
    shape = (batch, settings.channels, settings.size, settings.size)
    count = count_batches(batch * settings.channels * settings.size**2)
    return Start(
        weights=weights,
        inputs=rng.random((count, *shape), dtype=numpy.float32),
        targets=rng.integers(0, settings.classes, (count, batch)),
        loss="cross-entropy",
        activation="relu",
    )


def _convolution(
    rng: numpy.random.Generator, name: str, kernel: int, channels: int, width: int
) -> dict[str, Array]:
    """He et al. 2015: the kernel keeps the variance of what relu lets through."""
    spread = numpy.float32((2 / (kernel * kernel * width)) ** 0.5)
    drawn = rng.standard_normal((kernel, kernel, channels, width), dtype=numpy.float32)
    return {
        f"{name}.kernel": drawn * spread,
        f"{name}.scale": numpy.ones(width, numpy.float32),
        f"{name}.shift": zeros(width),
    }
