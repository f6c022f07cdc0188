"""predict: trace a job, then forecast it. The one place where the recorder and the arithmetic meet."""

from __future__ import annotations

import dataclasses

from windtunnel import units
from windtunnel.errors import DoesNotFit
from windtunnel.forecast.forecast import Forecast, forecast
from windtunnel.forecast.memory import account
from windtunnel.machine import Machine
from windtunnel.strategy import Strategy
from windtunnel.trace import Trace
from windtunnel.workload import Workload


def trace(workload: Workload, strategy: Strategy, target: str) -> Trace:
    """What one steady step of the job does on a "cpu" or a "gpu"."""
    from windtunnel.trace.record import record

    return record(workload, strategy, target)


def predict(workload: Workload, machine: Machine, strategy: Strategy | None = None) -> Forecast:
    """The step's time, memory and bottleneck on a machine that need not be here. Raises DoesNotFit where it would not."""
    strategy = strategy or Strategy()
    recorded = trace(workload, strategy, machine.unit.kind)
    memory = account(recorded, machine, strategy.execution)
    if memory.fits is False:
        raise _does_not_fit(workload, machine, strategy, recorded)
    return forecast(recorded, machine, strategy, workload.examples)


def largest_batch(workload: Workload, machine: Machine, strategy: Strategy) -> int:
    """The largest batch whose step fits, 0 if not even one example does; found by doubling, then halving the gap."""

    def fits(batch: int) -> bool:
        recorded = trace(workload, dataclasses.replace(strategy, batch=batch), machine.unit.kind)
        return account(recorded, machine, strategy.execution).fits is not False

    if not fits(1):
        return 0
    good, bad = 1, 2
    while fits(bad):
        good, bad = bad, bad * 2
        if bad > 2**32:
            return good
    while bad - good > max(1, good // 64):
        middle = (good + bad) // 2
        good, bad = (middle, bad) if fits(middle) else (good, middle)
    return good


def _does_not_fit(workload: Workload, machine: Machine, strategy: Strategy, recorded: Trace) -> DoesNotFit:
    memory = account(recorded, machine, strategy.execution)
    parts = sorted(memory.parts.items(), key=lambda item: -item[1])
    told = ", ".join(f"{name} {units.show(size, 'B')}" for name, size in parts)
    most = largest_batch(workload, machine, strategy)
    advice = f"Largest batch that fits: {most}." if most else "Not even a batch of 1 fits: a smaller network, lower precision or a larger unit is needed."
    return DoesNotFit(
        f"{workload.name} at batch {recorded.batch} needs {units.show(memory.total_bytes, 'B')} on each unit; {machine.name} has {units.show(memory.capacity_bytes or 0, 'B')}.\n    {told}",
        hint=advice,
    )
