"""How devices exchange their gradients, where there are several."""

from __future__ import annotations

from windtunnel.influence.base import CannotVary, FactorRange, InfluenceFactor, Variant
from windtunnel.influence.factors._sizes import with_strategy
from windtunnel.influence.setup import VariedSetup

_WAYS = ("buckets", "tensors", "after", "server", "server-after")


def _vary(base: VariedSetup) -> list[FactorRange | CannotVary]:
    strategy, count = base.strategy, base.machine.devices * base.machine.nodes
    if count == 1:
        kind, name = base.machine.device.kind, base.machine.name
        several = "4xh100" if name == "here" else f"4x1x{name}" if kind == "cpu" else f"4x{name}"
        reason = f"one device exchanges nothing; ask with several, such as --on {several}"
        return [CannotVary(name="exchange", reason=reason)]
    if strategy.inference or strategy.shard != "none" or strategy.model_parallel > 1:
        return [CannotVary(name="exchange", reason="it is a choice of plain data parallelism in training")]
    own = strategy.exchange
    variants = tuple(
        Variant(label=way, change=with_strategy(exchange=way), is_base=way == own) for way in _WAYS
    )
    return [FactorRange(name="exchange", variants=variants)]


FACTOR = InfluenceFactor(
    name="exchange", group="data flow", what="all ways to sum gradients, synchronous ones", vary=_vary
)
