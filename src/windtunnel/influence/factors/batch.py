"""Examples in a step."""

from __future__ import annotations

from windtunnel.influence.base import CannotVary, FactorRange, InfluenceFactor, Variant
from windtunnel.influence.factors._sizes import with_strategy
from windtunnel.influence.setup import VariedSetup

_EITHER_WAY = 8  # times smaller and larger; people move the batch further than they move sizes


def _vary(base: VariedSetup) -> list[FactorRange | CannotVary]:
    own, times = base.batch, base.strategy.accumulate * (base.machine.devices * base.machine.nodes)
    values = {own, *(own * factor for factor in (_EITHER_WAY // 2, _EITHER_WAY))}
    smaller = own // _EITHER_WAY or 1
    values |= {smaller} if smaller % times == 0 else set()
    variants = tuple(
        Variant(label=str(value), change=with_strategy(batch=value), is_base=value == own)
        for value in sorted(values)
    )
    return [FactorRange(name="batch", variants=variants)]


FACTOR = InfluenceFactor(
    name="batch", group="execution", what="an eighth to eight times the batch", vary=_vary, learns=True
)
