"""The ops of a step: launched by the host one by one, or all at once as a captured graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from windtunnel.forecast.price import Price
from windtunnel.forecast.schedule import Lane, LaneTask, StepBuilder, Wait
from windtunnel.trace import WAIT, Op


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCalls:
    """What the host spends on calls in addition to ops: backward, the optimizer's step.

    A host that computes itself (`is_device`) begins a step when it has finished the one before.
    """

    seconds: float
    is_device: bool = False
    worker: int = 0

    def add_to(self, step: StepBuilder) -> None:
        after = (Wait("kernels", steps_ago=1, worker=self.worker),) if self.is_device else ()
        task = LaneTask(Lane("host", self.worker), self.seconds, "launch", "step")
        begin = step.add(task, after=after, name="begin")
        step.name(begin, "kernels", self.worker)  # until a kernel follows


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuOps:
    """A CPU computes an op before it launches the next one. Host and device are one processor with two
    lanes."""

    ops: Sequence[Op]
    prices: Sequence[Price]
    worker: int = 0

    def add_to(self, step: StepBuilder) -> None:
        host, device = Lane("host", self.worker), Lane("device", self.worker)
        kernel: tuple[int, ...] = ()
        for op, price in zip(self.ops, self.prices, strict=True):
            kernel = (step.add(_launch(host, op, price), after=kernel),)
            if price.device_seconds:
                task = LaneTask(device, price.device_seconds, _part_of(op), op.name, op.module)
                kernel = (step.add(task, after=kernel),)
        for last in kernel:
            step.name(last, "kernels", self.worker)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuOps:
    """The host runs ahead until it reads a value. The device starts an op when it is launched and the op
    before has ended."""

    ops: Sequence[Op]
    prices: Sequence[Price]
    worker: int = 0

    def add_to(self, step: StepBuilder) -> None:
        host, device = Lane("host", self.worker), Lane("device", self.worker)
        batch = _batch(step, self.worker)
        kernel = None
        for op, price in zip(self.ops, self.prices, strict=True):
            before = (kernel,) if kernel is not None and op.name == WAIT else ()
            launch = step.add(_launch(host, op, price), after=before)
            if price.device_seconds:
                kernel = step.add(_kernel(device, op, price), after=(launch, *batch))
                batch = ()
        if kernel is not None:
            step.name(kernel, "kernels", self.worker)


@dataclass(frozen=True, slots=True, kw_only=True)
class CapturedOps:
    """A captured step is one launch; its kernels follow each other without the host."""

    ops: Sequence[Op]
    prices: Sequence[Price]
    launch_seconds: float
    worker: int = 0

    def add_to(self, step: StepBuilder) -> None:
        last = step.add(LaneTask(Lane("host", self.worker), self.launch_seconds, "launch", "graph"))
        device = Lane("device", self.worker)
        after: tuple[int | Wait, ...] = (last, *_batch(step, self.worker))
        for op, price in zip(self.ops, self.prices, strict=True):
            if price.device_seconds:
                last = step.add(_kernel(device, op, price), after=after)
                after = ()
        step.name(last, "kernels", self.worker)


def _batch(step: StepBuilder, worker: int) -> tuple[Wait, ...]:
    """What the first kernel waits for when its batch is copied in this step."""
    return (Wait("batch", worker=worker),) if step.has("batch", worker) else ()


def _launch(host: Lane, op: Op, price: Price) -> LaneTask:
    return LaneTask(host, price.host_seconds, "launch", op.name, op.module)


def _kernel(device: Lane, op: Op, price: Price) -> LaneTask:
    """The kernels of one op with the pauses before them."""
    return LaneTask(device, price.device_seconds + price.gap_seconds, _part_of(op), op.name, op.module)


def _part_of(op: Op) -> str:
    return "update" if op.phase == "update" else "compute"
