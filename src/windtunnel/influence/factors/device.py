"""The processing unit: the CPU of the host, an older and a newer GPU."""

from __future__ import annotations

import functools
from collections.abc import Callable

from windtunnel.errors import WindtunnelError
from windtunnel.influence.base import CannotVary, FactorRange, InfluenceFactor, Variant
from windtunnel.influence.factors._sizes import unchanged
from windtunnel.influence.setup import VariedSetup
from windtunnel.machine.machine import Machine, names


def _vary(base: VariedSetup) -> list[FactorRange | CannotVary]:
    machine = base.machine
    if machine.devices * machine.nodes > 1:
        reason = f"{machine.name} has several devices; ask with one of them"
        return [CannotVary(name="device", reason=reason)]
    own = Variant(label=machine.name, change=unchanged, is_base=True)
    others = [*_cpus(machine), *_gpus(machine)]
    variants = (own, *(Variant(label=other.name, change=_on(other)) for other in others))
    return [FactorRange(name="device", variants=variants)]


def _on(machine: Machine) -> Callable[[VariedSetup], VariedSetup]:
    return lambda setup: setup.on(machine)


def _cpus(machine: Machine) -> list[Machine]:
    """The CPU of a GPU's host, where the catalogue has it with its rates."""
    if machine.device.kind == "cpu":
        return []
    known = [Machine.named(name) for name in names()]
    same = [m for m in known if m.device.kind == "cpu" and m.device.model == machine.host.model]
    if same:
        return same[:1]
    try:
        own = machine.with_cpu_only()
    except WindtunnelError:
        return []
    return [own] if own.device.flop_rates.get("fp32") and own.device.memory_rate else []


def _gpus(machine: Machine) -> list[Machine]:
    """The best GPU of the generation before and of the one after; for a CPU, those around its year.

    A CPU without a year, such as that of this machine, is of today: it gets the two newest generations.
    """
    generations = best_of_generations()
    own = machine.device.compute_capability
    if machine.device.kind == "gpu" and own is not None:
        older = [gpu for gpu in generations if int(_capability(gpu)) < int(own)]
        newer = [gpu for gpu in generations if int(_capability(gpu)) > int(own)]
    elif machine.year is None:
        return list(generations[-2:])
    else:
        older = [gpu for gpu in generations if (gpu.year or 0) <= machine.year]
        newer = [gpu for gpu in generations if (gpu.year or 0) > machine.year]
    return [*older[-1:], *newer[:1]]


@functools.cache
def best_of_generations() -> tuple[Machine, ...]:
    """For each generation of NVIDIA's GPUs, the one with the fastest memory, from old to new."""
    best: dict[int, Machine] = {}
    for name in names():
        machine = Machine.named(name)
        device = machine.device
        if device.kind == "cpu" or device.compute_capability is None or machine.link is None:
            continue
        generation = int(device.compute_capability)
        if generation not in best or _rate(machine) > _rate(best[generation]):
            best[generation] = machine
    return tuple(best[generation] for generation in sorted(best))


def _capability(machine: Machine) -> float:
    return machine.device.compute_capability or 0.0


def _rate(machine: Machine) -> float:
    return machine.device.memory_rate or 0.0


FACTOR = InfluenceFactor(
    name="device",
    group="processing unit",
    what="the host's CPU, the best GPU of the generation before and of the one after",
    vary=_vary,
)
