"""How long one example is: timesteps, tokens or the depth of a tree."""

from __future__ import annotations

from windtunnel.influence.base import InfluenceFactor
from windtunnel.influence.factors._sizes import halved_and_doubled

FACTOR = InfluenceFactor(
    name="timesteps",
    group="network",
    what="half to twice the timesteps of an example",
    vary=halved_and_doubled("timesteps", "length"),
    learns=True,
)
