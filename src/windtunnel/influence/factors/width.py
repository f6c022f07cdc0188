"""The nodes, channels or features of the layers."""

from __future__ import annotations

from windtunnel.influence.base import InfluenceFactor
from windtunnel.influence.factors._sizes import halved_and_doubled

FACTOR = InfluenceFactor(
    name="width",
    group="network",
    what="half to twice the nodes of the layers",
    vary=halved_and_doubled("width", "width"),
    learns=True,
)
