"""The side of an image."""

from __future__ import annotations

from windtunnel.influence.base import InfluenceFactor
from windtunnel.influence.factors._sizes import halved_and_doubled

FACTOR = InfluenceFactor(
    name="image size",
    group="network",
    what="half to twice the side of an image",
    vary=halved_and_doubled("image size", "image"),
    learns=True,
)
