"""predict: trace a job, then forecast it. The one place where the recorder and the arithmetic meet."""

from __future__ import annotations

import dataclasses

from windtunnel import units
from windtunnel.errors import DoesNotFit
from windtunnel.forecast.forecast import Forecast, forecast
from windtunnel.forecast.memory import account
from windtunnel.machine import Machine
from windtunnel.strategy import MOST_BATCH, Strategy
from windtunnel.trace import Trace
from windtunnel.workload import Workload

_PROBE_BATCH = 1024


def trace(workload: Workload, strategy: Strategy, target: str) -> Trace:
    """What one steady step of the job does on a "cpu" or a "gpu"."""
    from windtunnel.trace.record import record

    return record(workload, strategy, target)


def predict(workload: Workload, machine: Machine, strategy: Strategy | None = None) -> Forecast:
    """The step's time, memory and bottleneck on a machine that need not be here. Raises DoesNotFit where it would not."""
    strategy = strategy or Strategy()
    recorded = trace(workload, strategy, machine.unit.kind)
    memory = account(recorded, machine, strategy)
    if memory.fits is False:
        raise _does_not_fit(workload, machine, strategy, recorded)
    return forecast(recorded, machine, strategy, workload.examples)


def largest_batch(workload: Workload, machine: Machine, strategy: Strategy) -> int:
    """The largest batch whose step fits (to about one in a hundred), 0 if not even one example does.

    Memory grows nearly in proportion to the batch, so a line through two batches gives a first guess, which is then tried.
    """
    capacity = machine.unit.memory_bytes or float("inf")

    def total(batch: int) -> float:
        recorded = trace(workload, dataclasses.replace(strategy, batch=batch), machine.unit.kind)
        return account(recorded, machine, strategy).total_bytes

    one, many = total(1), total(_PROBE_BATCH)
    if one > capacity:
        return 0
    slope = max((many - one) / (_PROBE_BATCH - 1), 1.0)
    good, bad = 1, min(MOST_BATCH, int((capacity - one) / slope) + 2)
    while bad < MOST_BATCH and total(bad) <= capacity:
        good, bad = bad, min(MOST_BATCH, bad + max(1, bad // 50))
    middle = max(good, bad - max(1, bad // 50))
    while bad - good > max(1, good // 100):
        good, bad = (middle, bad) if total(middle) <= capacity else (good, middle)
        middle = (good + bad) // 2
    return good


def _does_not_fit(workload: Workload, machine: Machine, strategy: Strategy, recorded: Trace) -> DoesNotFit:
    memory = account(recorded, machine, strategy)
    parts = sorted(memory.parts.items(), key=lambda item: -item[1])
    told = ", ".join(f"{name} {units.show(size, 'B')}" for name, size in parts)
    most = largest_batch(workload, machine, strategy)
    advice = f"Largest batch that fits: {most}." if most else "Not even a batch of 1 fits: a smaller network, lower precision or a larger unit is needed."
    return DoesNotFit(
        f"{workload.name} at batch {recorded.batch} needs {units.show(memory.total_bytes, 'B')} on each unit; {machine.name} has {units.show(memory.capacity_bytes or 0, 'B')}.\n    {told}",
        hint=advice,
    )
