"""predict: trace a job, then forecast it. The one place where the recorder and the arithmetic meet."""

from __future__ import annotations

import dataclasses

from windtunnel import units
from windtunnel.errors import DoesNotFit
from windtunnel.forecast.compiled import fuse
from windtunnel.forecast.forecast import Forecast, forecast_timeline, forecast_with_timeline
from windtunnel.forecast.memory import account
from windtunnel.forecast.price import workspaces
from windtunnel.forecast.timeline import Timeline
from windtunnel.job.workload import Workload
from windtunnel.machine.machine import Machine
from windtunnel.machine.profiles import profile_for
from windtunnel.results import Memory
from windtunnel.strategy import MOST_BATCH, Strategy
from windtunnel.trace import Trace

_PROBE_BATCH = 1024


def trace(workload: Workload, strategy: Strategy, target: str) -> Trace:
    """What one steady step of the job does on a "cpu" or a "gpu"."""
    from windtunnel.trace.record import record

    recorded = record(workload, strategy, target)
    return fuse(recorded) if strategy.execution == "compiled" else recorded


def predict(workload: Workload, machine: Machine, strategy: Strategy | None = None) -> Forecast:
    """The step's time, memory and bottleneck on a machine that need not be here. Raises DoesNotFit where it would not."""
    strategy = strategy or Strategy()
    return price(trace(workload, strategy, machine.device.kind), workload, machine, strategy)


def predict_with_timeline(
    workload: Workload, machine: Machine, strategy: Strategy
) -> tuple[Forecast, Timeline]:
    """The forecast and the schedule behind it, from one trace."""
    recorded = trace(workload, strategy, machine.device.kind)
    return _price(recorded, workload, machine, strategy)


def price(recorded: Trace, workload: Workload, machine: Machine, strategy: Strategy) -> Forecast:
    """The forecast of a step that was traced before: another machine or strategy that keeps the trace needs no new one."""
    return _price(recorded, workload, machine, strategy)[0]


def _price(
    recorded: Trace, workload: Workload, machine: Machine, strategy: Strategy
) -> tuple[Forecast, Timeline]:
    found, schedule = forecast_with_timeline(
        recorded, machine, strategy, profile_for(machine), workload.examples
    )
    if found.memory.fits is False:
        raise _does_not_fit(workload, machine, strategy, recorded.batch, found.memory)
    return found, schedule


def timeline(workload: Workload, machine: Machine, strategy: Strategy) -> Timeline:
    """The schedule behind a job's forecast."""
    return forecast_timeline(
        trace(workload, strategy, machine.device.kind), machine, strategy, profile_for(machine)
    )


def largest_batch(workload: Workload, machine: Machine, strategy: Strategy) -> int:
    """The largest batch whose step fits (to about one in a hundred), 0 if not even the smallest does.

    It is a whole number of examples for each micro-batch. Memory grows nearly in proportion to it, so a line through two of them
    gives a first guess, which is then tried.
    """
    capacity, profile = machine.device.memory_bytes or float("inf"), profile_for(machine)
    most = MOST_BATCH // strategy.accumulate

    def total(local: int) -> float:
        tried = dataclasses.replace(strategy, batch=local * strategy.accumulate)
        recorded = trace(workload, tried, machine.device.kind)
        return account(recorded, machine, tried, workspaces(recorded, machine, tried, profile)).total_bytes

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


def _does_not_fit(
    workload: Workload, machine: Machine, strategy: Strategy, batch: int, memory: Memory
) -> DoesNotFit:
    parts = sorted(memory.parts.items(), key=lambda item: -item[1])
    told = ", ".join(f"{name} {units.show(size, 'B')}" for name, size in parts)
    most, least = largest_batch(workload, machine, strategy), strategy.accumulate
    advice = (
        f"Largest batch that fits: {most}."
        if most
        else f"Not even a batch of {least} fits: a smaller network, lower precision or a larger device is needed."
    )
    needs, has = units.show(memory.total_bytes, "B"), units.show(memory.capacity_bytes or 0, "B")
    return DoesNotFit(
        f"{workload.name} at batch {batch} needs {needs} on each device; {machine.name} has {has}.\n    {told}",
        hint=advice,
    )
