"""Predict a step: record its trace, then forecast it. The recorder and the arithmetic meet only here."""

from __future__ import annotations

import dataclasses

from windtunnel import units
from windtunnel.errors import BadJob, DoesNotFit
from windtunnel.fitting import Shortage, advice, largest_that_fits
from windtunnel.forecast.allocator import Rounding
from windtunnel.forecast.compiled import fuse
from windtunnel.forecast.forecast import Forecast, ForecastStep, forecast_step
from windtunnel.forecast.memory import DeviceMemory, account
from windtunnel.forecast.price import workspaces
from windtunnel.job.workload import Workload
from windtunnel.machine.machine import Machine
from windtunnel.machine.profiles import profile_for
from windtunnel.strategy import MOST_BATCH, Strategy
from windtunnel.trace import Trace


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
        return dataclasses.replace(fused, cautions=(*fused.cautions, _not_compiled(error)))


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


def memory_of(workload: Workload, machine: Machine, strategy: Strategy) -> DeviceMemory:
    """The memory of one step, without its time."""
    recorded, profile = trace(workload, strategy, machine.device.kind), profile_for(machine)
    needs = workspaces(recorded, machine, strategy, profile)
    return account(recorded, machine, strategy, needs, Rounding(**profile.rounding))


def largest_batch(workload: Workload, machine: Machine, strategy: Strategy) -> int:
    """The largest batch whose step fits, to about 1 %; 0 if none does. It is a multiple of `accumulate`."""
    capacity = machine.device.memory_bytes
    limit = MOST_BATCH // strategy.accumulate
    if capacity is None:
        return limit * strategy.accumulate

    def total(micro_batch: int) -> float:
        trial = dataclasses.replace(strategy, batch=micro_batch * strategy.accumulate)
        return memory_of(workload, machine, trial).total_bytes

    return largest_that_fits(total, capacity, limit) * strategy.accumulate


def _does_not_fit(workload: Workload, machine: Machine, strategy: Strategy, forecast: Forecast) -> DoesNotFit:
    memory = forecast.memory
    assert isinstance(memory, DeviceMemory)
    parts = sorted(memory.needed_parts.items(), key=lambda item: -item[1])
    shares = ", ".join(f"{name} {units.show(size, 'B')}" for name, size in parts)
    needed, capacity = units.show(memory.total_bytes, "B"), units.show(memory.capacity_bytes or 0, "B")
    shortage = Shortage(
        memory_of=lambda changed: memory_of(workload, machine, changed),
        strategy=dataclasses.replace(strategy, batch=forecast.batch),
        memory=memory,
        low_precision="fp16" if "bf16" not in machine.device.flop_rates else "bf16",
    )
    return DoesNotFit(
        f"{workload.name} at batch {forecast.batch} needs {needed} on each device; "
        f"{machine.name} has {capacity}.\n    {shares}",
        hint="\n    ".join(advice(shortage)),
    )
