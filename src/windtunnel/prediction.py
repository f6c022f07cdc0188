"""predict: trace a job, then forecast it. The one place where the recorder and the arithmetic meet."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from windtunnel import units
from windtunnel.errors import DoesNotFit
from windtunnel.forecast.forecast import Forecast, forecast
from windtunnel.forecast.memory import account
from windtunnel.machine import Machine
from windtunnel.results import Memory
from windtunnel.strategy import MOST_BATCH, Strategy
from windtunnel.trace import Trace
from windtunnel.workload import Workload

_PROBE_BATCH = 1024


def trace(workload: Workload, strategy: Strategy, target: str) -> Trace:
    """What one steady step of the job does on a "cpu" or a "gpu"."""
    from windtunnel.trace.record import record

    return record(workload, strategy, target)


def workspace_of(recorded: Trace, machine: Machine, strategy: Strategy) -> Sequence[float] | None:
    """Bytes that each op of a trace needs beside its tensors while it runs; None where nobody knows."""
    return None


def predict(workload: Workload, machine: Machine, strategy: Strategy | None = None) -> Forecast:
    """The step's time, memory and bottleneck on a machine that need not be here. Raises DoesNotFit where it would not."""
    strategy = strategy or Strategy()
    recorded = trace(workload, strategy, machine.unit.kind)
    memory = account(recorded, machine, strategy, workspace_of(recorded, machine, strategy))
    if memory.fits is False:
        raise _does_not_fit(workload, machine, strategy, recorded.batch, memory)
    return dataclasses.replace(forecast(recorded, machine, strategy, workload.examples), memory=memory)


def largest_batch(workload: Workload, machine: Machine, strategy: Strategy) -> int:
    """The largest batch whose step fits (to about one in a hundred), 0 if not even the smallest does.

    It is a whole number of examples for each micro-batch. Memory grows nearly in proportion to it, so a line through two of them
    gives a first guess, which is then tried.
    """
    capacity = machine.unit.memory_bytes or float("inf")
    most = MOST_BATCH // strategy.accumulate

    def total(local: int) -> float:
        tried = dataclasses.replace(strategy, batch=local * strategy.accumulate)
        recorded = trace(workload, tried, machine.unit.kind)
        return account(recorded, machine, tried, workspace_of(recorded, machine, tried)).total_bytes

    one, many = total(1), total(_PROBE_BATCH)
    if one > capacity:
        return 0
    slope = max((many - one) / (_PROBE_BATCH - 1), 1.0)
    good, bad = 1, min(most, int((capacity - one) / slope) + 2)
    while bad < most and total(bad) <= capacity:
        good, bad = bad, min(most, bad + max(1, bad // 50))
    middle = max(good, bad - max(1, bad // 50))
    while bad - good > max(1, good // 100):
        good, bad = (middle, bad) if total(middle) <= capacity else (good, middle)
        middle = (good + bad) // 2
    return good * strategy.accumulate


def _does_not_fit(workload: Workload, machine: Machine, strategy: Strategy, batch: int, memory: Memory) -> DoesNotFit:
    parts = sorted(memory.parts.items(), key=lambda item: -item[1])
    told = ", ".join(f"{name} {units.show(size, 'B')}" for name, size in parts)
    most, least = largest_batch(workload, machine, strategy), strategy.accumulate
    advice = (
        f"Largest batch that fits: {most}." if most else f"Not even a batch of {least} fits: a smaller network, lower precision or a larger unit is needed."
    )
    needs, has = units.show(memory.total_bytes, "B"), units.show(memory.capacity_bytes or 0, "B")
    return DoesNotFit(f"{workload.name} at batch {batch} needs {needs} on each unit; {machine.name} has {has}.\n    {told}", hint=advice)
