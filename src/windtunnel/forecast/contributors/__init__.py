"""Contributors add the tasks of a step to its lanes: one file for each kind of work, all behind one contract.

A contributor adds tasks with `StepBuilder.add` and names the ones that others wait for:

| name      | task                        | added by                                                     |
|-----------|-----------------------------|--------------------------------------------------------------|
| `begin`   | the host's calls of a step  | `StepCalls`                                                  |
| `batch`   | the copy of the batch       | `BatchCopy`                                                  |
| `kernels` | the last kernel of the step | `CpuOps`, `GpuOps`, `CapturedOps` (`begin` if there is none) |

To add a lane (a loader, a network link, a pipeline stage): write a contributor in a file of its own and add
it to `contributors_of`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from windtunnel.forecast.contributors.copies import BatchCopy, copy_seconds
from windtunnel.forecast.contributors.ops import CapturedOps, CpuOps, GpuOps, StepCalls
from windtunnel.forecast.price import Price
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
    """Who takes part in a step of this strategy on this machine, in the order in which they add their
    tasks."""
    costs = machine.launch_costs
    assert costs is not None
    if machine.device.kind == "cpu":
        calls = StepCalls(seconds=_call_seconds(trace, costs), is_device=True)
        return [calls, CpuOps(ops=trace.ops, prices=prices)]
    if strategy.execution == "graph":
        captured = CapturedOps(ops=trace.ops, prices=prices, launch_seconds=costs.graph_seconds)
        return [StepCalls(seconds=0.0), captured]
    calls, ops = StepCalls(seconds=_call_seconds(trace, costs)), GpuOps(ops=trace.ops, prices=prices)
    if strategy.data == "resident":
        return [calls, ops]
    seconds = copy_seconds(trace, machine, strategy, profile)
    return [calls, BatchCopy(seconds=seconds, prefetch=strategy.prefetch), ops]


def build_step(contributors: Sequence[Contributor]) -> Step:
    """One step with the tasks of all of them."""
    step = StepBuilder()
    for contributor in contributors:
        contributor.add_to(step)
    return step.build()


def _call_seconds(trace: Trace, costs: LaunchCosts) -> float:
    """What the calls of backward and of the optimizer cost the host beside their ops."""
    return costs.backward_seconds * trace.backward_calls + costs.update_seconds * trace.update_calls
