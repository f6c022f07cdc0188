"""torch.compile. Its trace takes long (ResNet-50: 15 s), so it is a factor of its own that is asked for."""

from __future__ import annotations

from windtunnel.influence.base import CannotVary, FactorRange, InfluenceFactor, Variant
from windtunnel.influence.factors._sizes import unchanged, with_strategy
from windtunnel.influence.setup import VariedSetup


def _vary(base: VariedSetup) -> list[FactorRange | CannotVary]:
    own, other = base.strategy.execution, "compiled"
    if base.strategy.compiles:
        other = "eager"
    variants = (
        Variant(label=own, change=unchanged, is_base=True),
        Variant(label=other, change=with_strategy(execution=other)),
    )
    return [FactorRange(name="compiled", variants=variants)]


FACTOR = InfluenceFactor(
    name="compiled", group="execution", what="with and without torch.compile", vary=_vary
)
