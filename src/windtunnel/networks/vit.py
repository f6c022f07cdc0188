"""The Vision Transformer, ViT-B/16 (Dosovitskiy et al. 2021): a transformer encoder over patches of an image.

86,567,656 parameters for 1000 classes at 224x224 pixels.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from windtunnel.errors import BadRecord
from windtunnel.job.lesson import Dataset, Lesson
from windtunnel.job.workload import Workload
from windtunnel.networks import _images, _photographs
from windtunnel.networks._transformer import INITIAL_SPREAD, Shape, adamw, check_shape, small_weights, stack

DATA = "images"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """`size`: side of the images in pixels; `patch`: side of the patches, which are the tokens of the
    sequence; `width`: numbers for each token; `heads`: attention heads."""

    classes: int = 1000
    channels: int = 3
    size: int = 224
    patch: int = 16
    layers: int = 12
    width: int = 768
    heads: int = 12
    dropout: float = 0.0
    rate: float = 3e-4
    init: str = "modern"

    def __post_init__(self) -> None:
        check_shape("vit", self.shape)
        _images.require_positive(self, ("patch",), "vit")
        _photographs.check(self, "vit", self.patch)
        if self.size % self.patch:
            raise BadRecord(f"job vit: patch must divide size; {self.patch} does not divide {self.size}.")

    @property
    def shape(self) -> Shape:
        """Layers, width and heads, and the variant of the blocks."""
        return Shape(
            layers=self.layers, width=self.width, heads=self.heads, dropout=self.dropout, epsilon=1e-6
        )


class VisionTransformer(nn.Module):
    """A linear map of each patch, a class token in front, learned positions, transformer blocks.

    A linear layer classifies the image from the final state of the class token.
    """

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        patches = (settings.size // settings.patch) ** 2
        self.patches = nn.Conv2d(settings.channels, settings.width, settings.patch, settings.patch)
        self.token = nn.Parameter(torch.zeros(1, 1, settings.width))
        self.positions = nn.Parameter(
            torch.empty(1, patches + 1, settings.width).normal_(0.0, INITIAL_SPREAD)
        )
        self.dropout = nn.Dropout(settings.dropout)
        self.blocks = stack(settings.shape)
        self.norm = nn.LayerNorm(settings.width, eps=settings.shape.epsilon)
        self.head = nn.Linear(settings.width, settings.classes)
        small_weights(self)

    def forward(self, pictures: Tensor) -> Tensor:
        patches = self.patches(pictures).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.token.expand(len(patches), -1, -1), patches], dim=1)
        states = self.blocks(self.dropout(tokens + self.positions))
        scores: Tensor = self.head(self.norm(states[:, 0]))
        return scores


def build(settings: Settings) -> Workload:
    """Batches of 32 random photographs."""
    return _photographs.build("vit", settings, VisionTransformer, lambda params: adamw(params, settings.rate))


def teach(settings: Settings, data: Dataset) -> Lesson:
    """Learn the classes of a data set of images, cut into whole patches."""
    least = settings.patch
    return _photographs.teach(
        "vit",
        settings,
        data,
        VisionTransformer,
        lambda params: adamw(params, settings.rate),
        _photographs.ImageSizes(least, multiple=least),
    )
