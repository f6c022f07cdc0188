"""CPU threads: from one to all logical processors."""

from __future__ import annotations

from windtunnel.forecast.price import threads_of
from windtunnel.influence.base import CannotVary, FactorRange, InfluenceFactor, Variant
from windtunnel.influence.factors._sizes import with_strategy
from windtunnel.influence.setup import VariedSetup


def _vary(base: VariedSetup) -> list[FactorRange | CannotVary]:
    device = base.machine.device
    if device.kind != "cpu":
        reason = f"the threads of {base.machine.name}'s host have no effect on a forecast for its GPU"
        return [CannotVary(name="threads", reason=reason)]
    cores, own = device.cores or 1, threads_of(base.machine, base.strategy)
    values = sorted({1, max(1, cores // 2), cores, own})
    if len(values) == 1:
        return [CannotVary(name="threads", reason=f"{base.machine.name} has one core")]
    variants = tuple(
        Variant(label=str(value), change=with_strategy(threads=value), is_base=value == own)
        for value in values
    )
    return [FactorRange(name="threads", variants=variants)]


FACTOR = InfluenceFactor(
    name="threads", group="processing unit", what="one thread to one for each core", vary=_vary
)
