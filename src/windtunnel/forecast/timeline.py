"""The steady training step as spans on lanes, and the account of where its time goes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from windtunnel.forecast.price import Price
from windtunnel.forecast.schedule import Lanes, Span, Task
from windtunnel.machine.machine import LaunchCosts, Machine
from windtunnel.strategy import Strategy
from windtunnel.trace import Trace

_MOST_STEPS = 8
_STEADY = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """Several steps in a row; the last one, from `begin` to `end`, is steady."""

    tasks: tuple[Task, ...]
    spans: tuple[Span, ...]
    begin: float
    end: float

    @property
    def step_seconds(self) -> float:
        return self.end - self.begin

    def parts(self) -> dict[str, float]:
        """The critical path of the steady step, walked back from its end: seconds by part, summing to the step."""
        parts: dict[str, float] = {}
        ends = [span.end for span in self.spans]
        index = ends.index(max(ends))
        now = self.end
        while index >= 0 and now > self.begin:
            span = self.spans[index]
            _add(parts, "waiting", now - max(span.end, self.begin))
            now = min(now, span.end)
            _add(parts, self.tasks[index].part, now - max(span.start, self.begin))
            now, index = span.start, span.cause
        _add(parts, "waiting", now - self.begin)
        return parts


def lay_out(
    trace: Trace, prices: Sequence[Price], machine: Machine, strategy: Strategy, copy_seconds: float = 0.0
) -> Timeline:
    """Repeat the step until its period is steady. `copy_seconds` is what a batch takes to the device where it is streamed."""
    step = _step(trace, prices, machine, strategy, copy_seconds)
    lanes = Lanes()
    for _ in range(_MOST_STEPS):
        lanes.place(step)
        ends = lanes.ends
        if len(ends) > 2 and abs((ends[-1] - ends[-2]) - (ends[-2] - ends[-3])) <= _STEADY * ends[-1]:
            break
    return Timeline(
        tasks=tuple(lanes.tasks), spans=tuple(lanes.spans), begin=lanes.ends[-2], end=lanes.ends[-1]
    )


def _step(
    trace: Trace, prices: Sequence[Price], machine: Machine, strategy: Strategy, copy_seconds: float
) -> list[Task]:
    """One step's tasks; every step of a steady run has the same."""
    launch_costs = machine.launch_costs
    assert launch_costs is not None
    calls = (
        launch_costs.backward_seconds * trace.backward_calls
        + launch_costs.update_seconds * trace.update_calls
    )
    captured = machine.device.kind == "gpu" and strategy.execution == "graph"
    tasks = [Task(lane="host", seconds=0.0 if captured else calls, part="launch", label="step")]
    streamed = strategy.data == "streamed" and machine.device.kind == "gpu"
    ready = _add_copy(tasks, copy_seconds, strategy.prefetch) if streamed else ()
    if machine.device.kind == "cpu":
        _add_cpu_ops(tasks, trace, prices)
    elif captured:
        _add_graph(tasks, trace, prices, launch_costs, ready)
    else:
        _add_gpu_ops(tasks, trace, prices, ready)
    return tasks


def _add_copy(tasks: list[Task], seconds: float, prefetch: int) -> tuple[int, ...]:
    """A streamed batch crosses the link every step: the host waits for it, or, prefetched, it runs ahead."""
    here = len(tasks)
    if prefetch:
        tasks.append(Task(lane="copy", seconds=seconds, part="copy", label="batch", back=1 + prefetch))
        return (here,)
    # It stands in one queue with the kernels, behind those of the step before.
    tasks.append(Task(lane="copy", seconds=seconds, part="copy", label="batch", after=(here - 1,), back=1))
    tasks.append(Task(lane="host", seconds=0.0, part="copy", label="batch arrived", after=(here,)))
    return (here,)


def _add_cpu_ops(tasks: list[Task], trace: Trace, prices: Sequence[Price]) -> None:
    """A CPU does what it launches before it launches the next: one lane."""
    for op, price in zip(trace.ops, prices, strict=True):
        tasks.append(Task("host", price.host_seconds, "launch", op.name, (), 0, op.module))
        if price.device_seconds:
            tasks.append(
                Task("host", price.device_seconds, _device_part(op.phase), op.name, (), 0, op.module)
            )


def _add_gpu_ops(tasks: list[Task], trace: Trace, prices: Sequence[Price], ready: tuple[int, ...]) -> None:
    """The host runs ahead; the device starts an op when it was launched and the one before has ended."""
    for op, price in zip(trace.ops, prices, strict=True):
        tasks.append(Task("host", price.host_seconds, "launch", op.name, (), 0, op.module))
        if price.device_seconds:
            after = (len(tasks) - 1, *ready)
            tasks.append(
                Task(
                    "device",
                    price.device_seconds + price.gap_seconds,
                    _device_part(op.phase),
                    op.name,
                    after,
                    0,
                    op.module,
                )
            )
            ready = ()


def _add_graph(
    tasks: list[Task],
    trace: Trace,
    prices: Sequence[Price],
    launch_costs: LaunchCosts,
    ready: tuple[int, ...],
) -> None:
    """A captured step is one launch; its kernels follow each other without the host."""
    tasks.append(Task(lane="host", seconds=launch_costs.graph_seconds, part="launch", label="graph"))
    after: tuple[int, ...] = (len(tasks) - 1, *ready)
    for op, price in zip(trace.ops, prices, strict=True):
        if price.device_seconds:
            tasks.append(
                Task(
                    "device",
                    price.device_seconds + price.gap_seconds,
                    _device_part(op.phase),
                    op.name,
                    after,
                    0,
                    op.module,
                )
            )
            after = ()


def _device_part(phase: str) -> str:
    return "update" if phase == "update" else "compute"


def _add(parts: dict[str, float], part: str, seconds: float) -> None:
    if seconds > 0:
        parts[part] = parts.get(part, 0.0) + seconds
