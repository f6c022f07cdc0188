"""Predict a step: record its trace, then forecast it. The recorder and the arithmetic meet only here."""

from __future__ import annotations

import dataclasses
import functools

from windtunnel import units
from windtunnel.errors import BadInput, BadJob, DoesNotFit
from windtunnel.forecast.allocator import Rounding
from windtunnel.forecast.compiled import fuse
from windtunnel.forecast.forecast import Forecast, ForecastStep, forecast_step, memory_of_workers
from windtunnel.forecast.memory import DeviceMemory, account
from windtunnel.forecast.parallel import MOST_TRACED, parallel_step
from windtunnel.forecast.price import workspaces
from windtunnel.forecast.workers import share_of_batch, spread_over
from windtunnel.isolation.jobs import Containment, containment_of, optimizer_of
from windtunnel.job.stored import StoredData
from windtunnel.job.workload import Workload
from windtunnel.machine.machine import Machine
from windtunnel.machine.profiles import profile_for
from windtunnel.memory_advice import Shortage, advice, fewest_that_fit, largest_that_fits
from windtunnel.strategy import LOADED, MOST_BATCH, Strategy
from windtunnel.trace import StoredExample, Trace

_MOST_DEVICES = 4096  # the largest number that `fewest_devices` tries


def trace(workload: Workload, strategy: Strategy, target: str) -> Trace:
    """Record one steady step of the job on a "cpu" or a "gpu"; with several workers, the step of one of
    them."""
    containment = containment_of(workload)
    if containment is not None:
        return containment.trace(workload, strategy, target)
    from windtunnel.trace.record import record

    if strategy.is_parallel:
        return _trace_worker(workload, strategy, target)
    if not strategy.compiles:
        return record(workload, strategy, target)
    if target == "cpu":
        return fuse(record(workload, strategy, target))
    try:
        return record(workload, strategy, target, compiled=True)
    except BadJob as error:
        # If the job itself is at fault, tracing the eager step raises a clearer error.
        fused = fuse(record(workload, strategy, target), for_gpu=True)
        return dataclasses.replace(fused, cautions=(*fused.cautions, _not_compiled(error)))


def _trace_worker(workload: Workload, strategy: Strategy, target: str) -> Trace:
    """Record the step of one worker: its share of the batch, with at most MOST_TRACED micro-batches."""
    from windtunnel.trace.record import record

    data, times = strategy.data_parallel or 1, strategy.accumulate
    batch = strategy.batch or workload.default_batch * data
    micro_batch = share_of_batch(strategy, batch) // times
    traced = min(times, MOST_TRACED)
    worker = dataclasses.replace(strategy, batch=micro_batch * traced, accumulate=traced)
    found = record(workload, worker, target)
    return dataclasses.replace(found, batch=batch)


def _not_compiled(error: BadJob) -> str:
    reason = error.message.splitlines()[0][:200]
    return (
        "PyTorch's compiler could not trace this step here, so the eager step is fused by a simple rule, "
        f"whose gains were 11 % off at the median of 26 networks ({reason})"
    )


def predict(
    workload: Workload, machine: Machine, strategy: Strategy | None = None, *, isolate: bool = False
) -> Forecast:
    """Predict time, memory and bottleneck of one step. The machine need not be available.

    `predict(Workload.named("resnet50"), Machine.named("h200"), Strategy(batch=64))`. The default strategy is
    the job's own batch in PyTorch's default precision, with the data in device memory.

    `isolate`: trace the step in a process of its own, so that a job that exits, crashes or hangs raises
    JobStopped here. Raises DoesNotFit if the step needs more memory than the device has.
    """
    if not isolate:
        return predict_with_timeline(workload, machine, strategy).forecast
    containment = Containment()
    try:
        return predict_with_timeline(containment.take(workload), machine, strategy).forecast
    finally:
        containment.end()


def predict_with_timeline(
    workload: Workload, machine: Machine, strategy: Strategy | None = None
) -> ForecastStep:
    """The forecast, and the timeline behind it, from one trace."""
    strategy = spread_over(strategy or Strategy(), machine)
    return _forecast(trace(workload, strategy, machine.device.kind), workload, machine, strategy)


def forecast_trace(recorded: Trace, workload: Workload, machine: Machine, strategy: Strategy) -> Forecast:
    """Forecast a recorded step. Machines with the same kind of device can share a trace.

    A trace is valid for the degrees with which it was recorded; without degrees, it is the step of one
    worker.
    """
    if machine.devices * machine.nodes > 1 and strategy.data_parallel is None:
        strategy = dataclasses.replace(strategy, data_parallel=1)
    return _forecast(recorded, workload, machine, strategy).forecast


def _forecast(recorded: Trace, workload: Workload, machine: Machine, strategy: Strategy) -> ForecastStep:
    step = forecast_any(recorded, workload, machine, strategy)
    if step.forecast.memory.fits is False:
        raise _does_not_fit(workload, machine, strategy, step.forecast)
    return step


def forecast_any(recorded: Trace, workload: Workload, machine: Machine, strategy: Strategy) -> ForecastStep:
    """Forecast a recorded step whose degrees are known. A step that does not fit is no error here:
    `memory.fits` is False."""
    if workload.data is not None and strategy.data in LOADED:
        recorded = dataclasses.replace(recorded, stored=_stored_example(workload.data))
    return forecast_step(recorded, machine, strategy, profile_for(machine), workload.examples)


@functools.lru_cache(maxsize=64)
def _stored_example(data: StoredData) -> StoredExample:
    """The job's stored data as a forecast needs it. The job's own decoder is timed here, once."""
    timed = data.decode_seconds is None and data.decode is not None
    return StoredExample(
        bytes=data.example_bytes,
        decode_seconds=data.timed(),
        examples=data.examples,
        examples_per_file=data.examples_per_file,
        origin="decode() was timed on this machine, and counts as if it took as long there" if timed else "",
    )


def memory_of(workload: Workload, machine: Machine, strategy: Strategy) -> DeviceMemory:
    """The memory of one step, without its time."""
    strategy = spread_over(strategy, machine)
    recorded, profile = trace(workload, strategy, machine.device.kind), profile_for(machine)
    if strategy.is_parallel:
        return memory_of_workers(parallel_step(recorded, machine, strategy, profile))
    needs = workspaces(recorded, machine, strategy, profile)
    return account(recorded, machine, strategy, needs, Rounding(**profile.rounding))


def largest_batch(workload: Workload, machine: Machine, strategy: Strategy) -> int:
    """The largest batch whose step fits, to about 1 %; 0 if none does.

    It is a multiple of `accumulate`, and of the number of data-parallel workers.
    """
    strategy = spread_over(strategy, machine)
    capacity, times = machine.device.memory_bytes, strategy.accumulate * (strategy.data_parallel or 1)
    limit = MOST_BATCH // times
    if capacity is None:
        return limit * times

    def total(micro_batch: int) -> float:
        trial = dataclasses.replace(strategy, batch=micro_batch * times)
        return memory_of(workload, machine, trial).total_bytes

    return largest_that_fits(total, capacity, limit) * times


def fewest_devices(workload: Workload, machine: Machine, strategy: Strategy) -> int:
    """The smallest number of devices of this kind on which the step fits with the same batch; 0 if none.

    Keeps the degrees of the strategy and adds data-parallel workers. Tries the product of the degrees times
    powers of two.
    """
    batch = strategy.batch or workload.default_batch * (spread_over(strategy, machine).data_parallel or 1)

    def fits(count: int) -> bool:
        data = count // strategy.model_parallel
        if batch % (data * strategy.accumulate) or (strategy.shard != "none" and data == 1):
            return False
        trial = dataclasses.replace(strategy, batch=batch, data_parallel=data)
        return memory_of(workload, machine.with_devices(count), trial).fits is not False

    return fewest_that_fit(fits, strategy.model_parallel, _MOST_DEVICES)


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
        optimizer="" if strategy.inference else strategy.optimizer or optimizer_of(workload),
    )
    return DoesNotFit(
        f"{workload.name} at batch {forecast.batch} needs {needed} on each device; "
        f"{machine.name} has {capacity}.\n    {shares}",
        hint="\n    ".join([*advice(shortage), *_devices_line(workload, machine, shortage.strategy)]),
    )


def _devices_line(workload: Workload, machine: Machine, strategy: Strategy) -> list[str]:
    """The smallest number of devices that fits, for a job with one optimizer whose state can be sharded."""
    if machine.device.kind == "cpu" or strategy.inference or workload.loss is None:
        return []
    sharded = dataclasses.replace(strategy, shard="weights", exchange="buckets")
    ways = [strategy, *([sharded] if strategy.pipeline_parallel == 1 and strategy.shard != "weights" else [])]
    for way in ways:
        try:
            count = fewest_devices(workload, machine, way)
        except BadInput:
            continue
        if count:
            with_shard = " with --shard weights" if way is not strategy else ""
            return [f"Smallest number of devices that fits{with_shard}: {count}."]
    return []
