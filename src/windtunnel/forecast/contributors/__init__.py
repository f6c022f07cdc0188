"""Contributors add the tasks of a step to its lanes: one file for each kind of work, all behind one contract.

A contributor adds tasks with `StepBuilder.add` and names the ones that others wait for:

| name      | task                        | added by                                                     |
|-----------|-----------------------------|--------------------------------------------------------------|
| `begin`   | the host's calls of a step  | `StepCalls`                                                  |
| `loaded`  | the batch is in host memory | `BatchLoading`, `DirectReads`                                |
| `taken`   | a loader may start anew     | `BatchLoading`                                               |
| `batch`   | the copy of the batch       | `BatchCopy`                                                  |
| `kernels` | the last kernel of the step | `CpuOps`, `GpuOps`, `CapturedOps` (`begin` if there is none), |
|           |                             | `WorkerOps`, `RepeatedOps`                                   |

To add a lane (a loader, a network link, a pipeline stage): write a contributor in a file of its own and add
it to `contributors_of`. Several workers: `forecast/parallel.py` chooses among `WorkerOps`, `RepeatedOps` and
`Stages`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from windtunnel.forecast.contributors.copies import DirectReads, batch_copy
from windtunnel.forecast.contributors.loading import BatchLoading
from windtunnel.forecast.contributors.ops import CapturedOps, CpuOps, GpuOps, StepCalls
from windtunnel.forecast.feeding import FedBatch, feed_of
from windtunnel.forecast.price import Price, threads_of
from windtunnel.forecast.profile import Profile
from windtunnel.forecast.schedule import Step, StepBuilder
from windtunnel.machine.machine import LaunchCosts, Machine
from windtunnel.strategy import Strategy
from windtunnel.trace import Trace


class Contributor(Protocol):
    def add_to(self, step: StepBuilder) -> None:
        """Add this contributor's tasks to a step. Every step of a steady run gets the same."""


def contributors_of(
    trace: Trace, prices: Sequence[Price], machine: Machine, strategy: Strategy, profile: Profile
) -> list[Contributor]:
    """The contributors of a step of this strategy on this machine, in the order in which they add their
    tasks."""
    costs = machine.launch_costs
    assert costs is not None
    computes = machine.device.kind == "cpu"
    if strategy.execution == "graph" and not computes:
        captured = CapturedOps(ops=trace.ops, prices=prices, launch_seconds=costs.graph_seconds)
        return [StepCalls(seconds=0.0), captured]
    seconds = call_seconds(trace, costs)
    host_seconds = seconds + sum(price.host_seconds for price in prices)
    device_seconds = sum(price.device_seconds for price in prices)
    threads = min(threads_of(machine, strategy), machine.device.cores or 1) if computes else 0
    training = host_seconds + threads * device_seconds
    ops = CpuOps(ops=trace.ops, prices=prices) if computes else GpuOps(ops=trace.ops, prices=prices)
    feeders = feeders_of(FedBatch.of(trace), machine, strategy, profile, training)
    return [StepCalls(seconds=seconds, is_device=computes), *feeders, ops]


def feeders_of(
    batch: FedBatch, machine: Machine, strategy: Strategy, profile: Profile, training_seconds: float
) -> list[Contributor]:
    """The contributors that bring a batch to the device. `training_seconds`: core seconds of the training
    process in a step."""
    feeders: list[Contributor] = []
    computes = machine.device.kind == "cpu"
    if strategy.direct:
        feeders.append(DirectReads(feed=feed_of(batch, machine, strategy), prefetch=strategy.prefetch))
    elif strategy.is_loaded:
        feeders.append(
            BatchLoading(
                feed=feed_of(batch, machine, strategy),
                loaders=strategy.loaders,
                load_ahead=strategy.load_ahead,
                training_seconds=training_seconds,
                waits=computes or not strategy.prefetch,
            )
        )
    if strategy.data != "resident" and not computes:
        feeders.append(batch_copy(batch.bytes, machine, strategy, profile))
    return feeders


def build_step(contributors: Sequence[Contributor]) -> Step:
    """One step with the tasks of all of them."""
    step = StepBuilder()
    for contributor in contributors:
        contributor.add_to(step)
    return step.build()


def call_seconds(trace: Trace, costs: LaunchCosts) -> float:
    """Host seconds of the calls of backward and of the optimizer, in addition to their ops."""
    return costs.backward_seconds * trace.backward_calls + costs.update_seconds * trace.update_calls
