"""Predict a step: record its trace, then forecast it. The recorder and the arithmetic meet only here."""

from __future__ import annotations

import dataclasses

from windtunnel import units
from windtunnel.errors import BadJob, DoesNotFit
from windtunnel.forecast.compiled import fuse
from windtunnel.forecast.forecast import Forecast, ForecastStep, forecast_step
from windtunnel.forecast.memory import account
from windtunnel.forecast.price import workspaces
from windtunnel.job.workload import Workload
from windtunnel.machine.machine import Machine
from windtunnel.machine.profiles import profile_for
from windtunnel.results import Memory
from windtunnel.strategy import MOST_BATCH, Strategy
from windtunnel.trace import Trace

_LARGE_BATCH = 1024  # the second point of the line through memory and batch


def trace(workload: Workload, strategy: Strategy, target: str) -> Trace:
    """What one steady step of the job does on a "cpu" or a "gpu"."""
    from windtunnel.trace.record import record

    if not strategy.compiles:
        return record(workload, strategy, target)
    if target == "cpu":
        return fuse(record(workload, strategy, target))
    try:
        return record(workload, strategy, target, compiled=True)
    except BadJob as error:
        # The eager step says what is wrong with the job, if anything is.
        fused = fuse(record(workload, strategy, target))
        return dataclasses.replace(fused, notes=(_not_compiled(error),))


def _not_compiled(error: BadJob) -> str:
    reason = error.message.splitlines()[0][:200]
    return (
        "PyTorch's compiler could not trace this step here, so the eager step is fused by a simple rule, "
        f"which was 30 % off on 7 networks ({reason})"
    )


def predict(workload: Workload, machine: Machine, strategy: Strategy | None = None) -> Forecast:
    """Predict time, memory and bottleneck of one step on a machine that need not be here.

    Raises DoesNotFit if the step needs more memory than the device has.
    """
    return predict_with_timeline(workload, machine, strategy).forecast


def predict_with_timeline(
    workload: Workload, machine: Machine, strategy: Strategy | None = None
) -> ForecastStep:
    """The forecast, and the timeline behind it, from one trace."""
    strategy = strategy or Strategy()
    return _forecast(trace(workload, strategy, machine.device.kind), workload, machine, strategy)


def forecast_trace(recorded: Trace, workload: Workload, machine: Machine, strategy: Strategy) -> Forecast:
    """Forecast a recorded step. Machines with the same kind of device can share a trace."""
    return _forecast(recorded, workload, machine, strategy).forecast


def _forecast(recorded: Trace, workload: Workload, machine: Machine, strategy: Strategy) -> ForecastStep:
    step = forecast_step(recorded, machine, strategy, profile_for(machine), workload.examples)
    if step.forecast.memory.fits is False:
        raise _does_not_fit(workload, machine, strategy, step.forecast)
    return step


def largest_batch(workload: Workload, machine: Machine, strategy: Strategy) -> int:
    """The largest batch whose step fits, to about 1 %; 0 if none does.

    It is a multiple of `accumulate`. Memory grows nearly in proportion to the batch, so a line through two
    batches gives the first guess; a search around it follows.
    """
    capacity, profile = machine.device.memory_bytes or float("inf"), profile_for(machine)
    limit = MOST_BATCH // strategy.accumulate

    def total(micro_batch: int) -> float:
        trial = dataclasses.replace(strategy, batch=micro_batch * strategy.accumulate)
        recorded = trace(workload, trial, machine.device.kind)
        return account(recorded, machine, trial, workspaces(recorded, machine, trial, profile)).total_bytes

    one, many = total(1), total(_LARGE_BATCH)
    if one > capacity:
        return 0
    slope = max((many - one) / (_LARGE_BATCH - 1), 1.0)
    fits, too_large = 1, min(limit, int((capacity - one) / slope) + 2)
    while too_large < limit and total(too_large) <= capacity:
        fits, too_large = too_large, min(limit, too_large + max(1, too_large // 50))
    middle = max(fits, too_large - max(1, too_large // 50))
    while too_large - fits > max(1, fits // 100):
        fits, too_large = (middle, too_large) if total(middle) <= capacity else (fits, middle)
        middle = (fits + too_large) // 2
    return fits * strategy.accumulate


def _does_not_fit(workload: Workload, machine: Machine, strategy: Strategy, forecast: Forecast) -> DoesNotFit:
    memory: Memory = forecast.memory
    parts = sorted(memory.parts.items(), key=lambda item: -item[1])
    shares = ", ".join(f"{name} {units.show(size, 'B')}" for name, size in parts)
    largest = largest_batch(workload, machine, strategy)
    advice = (
        f"Largest batch that fits: {largest}."
        if largest
        else f"Not even a batch of {strategy.accumulate} fits: use a smaller network, a lower precision "
        "or a device with more memory."
    )
    needed, capacity = units.show(memory.total_bytes, "B"), units.show(memory.capacity_bytes or 0, "B")
    return DoesNotFit(
        f"{workload.name} at batch {forecast.batch} needs {needed} on each device; "
        f"{machine.name} has {capacity}.\n    {shares}",
        hint=advice,
    )
