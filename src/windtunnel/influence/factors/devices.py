"""The number of devices that share the batch."""

from __future__ import annotations

from collections.abc import Callable

from windtunnel.influence.base import CannotVary, FactorRange, InfluenceFactor, Variant
from windtunnel.influence.setup import VariedSetup
from windtunnel.machine.machine import Machine

_COUNTS = (1, 2, 4, 8)


def _vary(base: VariedSetup) -> list[FactorRange | CannotVary]:
    machine, strategy = base.machine, base.strategy
    own = machine.devices * machine.nodes
    if machine.device.kind == "cpu":
        return [CannotVary(name="devices", reason=f"{machine.name} computes on its CPU, which is one device")]
    if strategy.inference:
        return [CannotVary(name="devices", reason="copies of a network answer queries independently")]
    if strategy.model_parallel > 1 or machine.nodes > 1:
        return [CannotVary(name="devices", reason="the degrees of the strategy fix the number of devices")]
    counts = sorted({own, *(count for count in _COUNTS if base.batch % (count * strategy.accumulate) == 0)})
    if len(counts) == 1:
        reason = f"a batch of {base.batch} cannot be divided among devices; give a larger --batch"
        return [CannotVary(name="devices", reason=reason)]
    variants = tuple(
        Variant(label=str(count), change=_counted(count, base.batch), is_base=count == own)
        for count in counts
    )
    return [FactorRange(name="devices", variants=variants)]


def _counted(count: int, batch: int) -> Callable[[VariedSetup], VariedSetup]:
    """So many devices in the node, with the same batch for all of them together."""

    def change(setup: VariedSetup) -> VariedSetup:
        name = setup.machine.name.rpartition("x")[2] if setup.machine.devices > 1 else setup.machine.name
        machine = (
            setup.machine.with_devices(count)
            if setup.machine.name == "here" or name.endswith((".toml", ".json"))
            else named_node(setup.machine, name, count)
        )
        return setup.on(machine).with_strategy(data_parallel=None, batch=batch)

    return change


def named_node(machine: Machine, name: str, count: int, nodes: int = 1) -> Machine:
    """From the catalogue, with the links of a usual node; any other machine keeps its own links."""
    from windtunnel.errors import WindtunnelError

    inside = name if count == 1 else f"{count}x{name}"
    try:
        return Machine.named(inside if nodes == 1 else f"{nodes}x{inside}")
    except WindtunnelError:
        return machine.with_devices(count * nodes)


FACTOR = InfluenceFactor(
    name="devices",
    group="processing unit",
    what="1, 2, 4 and 8 devices of a node that share the same batch",
    vary=_vary,
)
