"""U-Net (Ronneberger, Fischer and Brox 2015): segmentation, a class for every pixel of an image.

The way down halves the image four times and finds what is in it; the way up doubles it four times and finds
where it is. 31,030,658 parameters for 2 classes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from windtunnel.errors import BadRecord
from windtunnel.job.lesson import Dataset, Lesson, Stage
from windtunnel.job.workload import Workload, forward_inputs
from windtunnel.networks import _images, _photographs, weights

DATA = "images"
HALVINGS = 4
STRIDE = 2**HALVINGS
LESSON_BATCH = 4
LEAST_UNPADDED = 188  # the smallest image for which convolutions without padding leave an output


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """`size`: side of the images in pixels; `width`: channels at full size, doubled at every halving;
    `padded`: convolutions keep the size. As published they do not: 572x572 pixels give a 388x388 output."""

    classes: int = 2
    channels: int = 1
    size: int = 572
    padded: bool = False
    width: int = 64
    dropout: float = 0.5
    rate: float = 0.01
    momentum: float = 0.99
    init: str = "modern"

    def __post_init__(self) -> None:
        _photographs.check(self, "unet", STRIDE if self.padded else LEAST_UNPADDED)
        if not 0 <= self.momentum < 1:
            raise BadRecord(f"job unet: momentum must be from 0 to below 1, not {self.momentum}.")
        first = STRIDE if self.padded else LEAST_UNPADDED
        if (self.size - first) % STRIDE:
            near = first + (self.size - first) // STRIDE * STRIDE
            raise BadRecord(
                f"job unet: size {self.size} cannot be halved {HALVINGS} times.",
                hint=f"Use {near} or {near + STRIDE}.",
            )

    @property
    def map_size(self) -> int:
        """Side of the output in pixels; without padding, 92 are lost on each side."""
        return self.size if self.padded else self.size - 184


class UNet(nn.Module):
    """Four halvings, four doublings; each level going up also gets the output of its level going down."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        padding = 1 if settings.padded else 0
        widths = [settings.width * 2**i for i in range(HALVINGS + 1)]
        self.down = nn.ModuleList(
            _pair(channels, wide, padding)
            for channels, wide in zip([settings.channels, *widths], widths, strict=False)
        )
        self.dropout = nn.Dropout(settings.dropout)
        self.widen = nn.ModuleList(nn.ConvTranspose2d(2 * wide, wide, 2, 2) for wide in reversed(widths[:-1]))
        self.up = nn.ModuleList(_pair(2 * wide, wide, padding) for wide in reversed(widths[:-1]))
        self.head = nn.Conv2d(settings.width, settings.classes, 1)
        _photographs.he_weights(self)

    def forward(self, pictures: Tensor) -> Tensor:
        skips: list[Tensor] = []
        for depth, pair in enumerate(self.down):
            pictures = pair(F.max_pool2d(pictures, 2) if depth else pictures)
            # The paper applies dropout at the end of the way down, where the feature map is smallest.
            pictures = self.dropout(pictures) if depth == HALVINGS else pictures
            skips.append(pictures)
        skips.pop()
        for widen, pair in zip(self.widen, self.up, strict=True):
            wider = widen(pictures)
            pictures = pair(torch.cat([_middle(skips.pop(), wider.shape[-1]), wider], dim=1))
        scores: Tensor = self.head(pictures)
        return scores


def build(settings: Settings) -> Workload:
    """One random image in a batch, since the paper prefers large images to large batches."""

    def batch(n: int) -> tuple[Tensor, Tensor]:
        pixels = torch.rand(n, settings.channels, settings.size, settings.size)
        return pixels, torch.randint(0, settings.classes, (n, settings.map_size, settings.map_size))

    return Workload(
        name="unet",
        model=lambda: weights.initialise(UNet(settings), settings.init, "unet"),
        batch=batch,
        loss=_images.classification_loss,
        forward=forward_inputs,
        optimizer=lambda params: _optimizer(settings, params),
        default_batch=1,
    )


def teach(settings: Settings, data: Dataset) -> Lesson:
    """Learn to find the bright regions of images; the correct masks are computed from the images."""
    resized, cautions = _photographs.resized(
        "unet", settings.size, data, _photographs.ImageSizes(STRIDE, multiple=STRIDE)
    )
    fitted = dataclasses.replace(
        settings, classes=2, channels=data.facts["channels"], size=resized.facts["size"], padded=True
    )
    train, held_out = (
        (part["images"], _bright(part["images"])) for part in (resized.train, resized.held_out)
    )
    stage = Stage(
        name="train",
        epochs=10,
        steps=_images.steps_of(len(train[0]), LESSON_BATCH),
        batches=_images.shuffled(LESSON_BATCH, *train),
        optimizers=lambda model: _optimizer(fitted, model.parameters()),
        step=_images.descend(_images.classification_loss),
    )
    return Lesson(
        model=lambda: weights.initialise(UNet(fitted), fitted.init, "unet"),
        stages=(stage,),
        examine=lambda model: _examine(model, *held_out),
        metric="overlap",
        better="higher",
        draw=lambda model, folder: _draw(model, *held_out, folder),
        cautions=(*cautions, *caution(settings)),
    )


def caution(settings: Settings) -> tuple[str, ...]:
    """Say that training uses padded convolutions whatever the settings say."""
    if settings.padded:
        return ()
    return ("unet trains with padded convolutions (padded=true), so that small images keep their borders.",)


def _pair(channels: int, width: int, padding: int) -> nn.Sequential:
    first, second = (
        nn.Conv2d(channels, width, 3, padding=padding),
        nn.Conv2d(width, width, 3, padding=padding),
    )
    return nn.Sequential(first, nn.ReLU(inplace=True), second, nn.ReLU(inplace=True))


def _middle(pictures: Tensor, size: int) -> Tensor:
    """The centre of a feature map, as large as the map on the way up, which is smaller without padding."""
    edge = (pictures.shape[-1] - size) // 2
    return pictures[..., edge : edge + size, edge : edge + size]


def _optimizer(settings: Settings, params: Iterable[Any]) -> torch.optim.Optimizer:
    return torch.optim.SGD(params, lr=settings.rate, momentum=settings.momentum)


def _bright(pictures: Tensor) -> Tensor:
    """1 for pixels whose surrounding 5x5 pixels are brighter on average than the whole image."""
    grey = pictures.mean(1, keepdim=True)
    around = F.avg_pool2d(grey, 5, stride=1, padding=2, count_include_pad=False)
    return (around > grey.mean((2, 3), keepdim=True)).long().squeeze(1)


@torch.no_grad()
def _marked(model: nn.Module, pictures: Tensor) -> Tensor:
    """The masks that the network predicts."""
    (inputs,) = _images.on_device_of(model, pictures)
    with _images.evaluation_mode(model):
        return torch.cat([model(part).argmax(1) for part in torch.split(inputs, LESSON_BATCH)]).cpu()


def _examine(model: nn.Module, pictures: Tensor, masks: Tensor) -> dict[str, float]:
    """Overlap (intersection over union): pixels in both masks / pixels in at least one."""
    predicted = _marked(model, pictures)
    both, either = (predicted & masks).sum(), (predicted | masks).sum()
    return {
        "overlap": float(both / either.clamp(min=1)),
        "accuracy": float((predicted == masks).float().mean()),
    }


def _draw(model: nn.Module, pictures: Tensor, masks: Tensor, folder: Path) -> list[Path]:
    """Three rows: images, their correct masks, and the masks that the network predicts."""
    count = min(8, len(pictures))
    rows = [
        (pictures[:count].mean(1) + 1) / 2,
        masks[:count].float(),
        _marked(model, pictures[:count]).float(),
    ]
    return _images.save_sheet(folder, "marked", torch.cat(rows).unsqueeze(1), count)
