"""The number of layers."""

from __future__ import annotations

from windtunnel.influence.base import InfluenceFactor
from windtunnel.influence.factors._sizes import halved_and_doubled

FACTOR = InfluenceFactor(
    name="depth",
    group="network",
    what="half to twice the number of layers",
    vary=halved_and_doubled("depth", "depth"),
    learns=True,
)
