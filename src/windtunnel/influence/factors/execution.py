"""How the step is launched: op by op, or as one captured graph; compiled only if asked for."""

from __future__ import annotations

from windtunnel.influence.base import CannotVary, FactorRange, InfluenceFactor, Variant
from windtunnel.influence.factors._sizes import with_strategy
from windtunnel.influence.setup import VariedSetup


def _vary(base: VariedSetup) -> list[FactorRange | CannotVary]:
    own = base.strategy.execution
    if base.machine.device.kind == "cpu":
        reason = f"a CPU captures no graph ({base.machine.name}); --compiled adds torch.compile"
        return [CannotVary(name="execution", reason=reason)]
    if base.strategy.data != "resident":
        reason = f"a captured graph reads its batch from device memory, not data={base.strategy.data}"
        return [CannotVary(name="execution", reason=reason)]
    modes = list(dict.fromkeys((own, "eager", "graph")))
    variants = tuple(
        Variant(label=mode, change=with_strategy(execution=mode), is_base=mode == own) for mode in modes
    )
    return [FactorRange(name="execution", variants=variants)]


FACTOR = InfluenceFactor(
    name="execution", group="execution", what="op by op, or as one captured graph", vary=_vary
)
