"""The ops of one of several workers: chunks of kernels, and collectives on the lanes of links.

Ops between two synchronization points become one chunk of few tasks. So the schedule of a whole step has
hundreds of tasks, not tens of thousands.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from windtunnel.forecast.collectives import SLOWDOWN_BESIDE_COLLECTIVE
from windtunnel.forecast.links import NETWORK, PEER, Links
from windtunnel.forecast.price import Price
from windtunnel.forecast.schedule import Contention, Lane, LaneTask, StepBuilder, Wait
from windtunnel.forecast.timeline import Timeline, steady_timeline
from windtunnel.trace import WAIT, Op


class Chunk(NamedTuple):
    """Ops in a row, as the host launches and the device runs them.

    The device can end `tail` seconds after the last launch at the earliest. With that, a chunk ends when its
    ops would end one by one: the latest of all "launched, and then all kernels from there on".
    """

    part: str
    label: str
    first_launch: float
    host: float
    device: float
    tail: float


def chunk_of(ops: Sequence[Op], prices: Sequence[Price], on_host: bool = True) -> Chunk:
    """The ops as one chunk. Without `on_host` a captured graph launches them."""
    launched, ran, latest = 0.0, 0.0, 0.0
    for price in prices:
        launched += price.host_seconds if on_host else 0.0
        latest = max(latest, launched - ran)  # how long the device has idled when this op begins
        ran += price.device_seconds + price.gap_seconds
    first = prices[0].host_seconds if on_host else 0.0
    tail = min(ran, max(0.0, latest + ran - launched))
    part = "update" if ops[-1].phase == "update" else "compute"
    return Chunk(part, ops[0].module or ops[0].name, first, launched, ran, tail)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOps:
    """The ops of a worker, with its collectives. `is_device`: the host itself computes (a CPU)."""

    ops: Sequence[Op]
    prices: Sequence[Price]
    links: Links
    is_device: bool = False
    is_captured: bool = False
    worker: int = 0

    def add_to(self, step: StepBuilder) -> None:
        _WorkerTasks(self, step).run()


class _WorkerTasks:
    """Adds the tasks of a worker to a step, and keeps the tasks for which the next one waits."""

    def __init__(self, ops: WorkerOps, step: StepBuilder) -> None:
        self._of, self._step = ops, step
        worker = ops.worker
        self._host, self._device = Lane("host", worker), Lane("device", worker)
        beside = [Contention(Lane(kind, worker), SLOWDOWN_BESIDE_COLLECTIVE) for kind in (PEER, NETWORK)]
        self._contention = tuple(beside) if _has_overlap(ops.ops) else ()
        self._marks: dict[str, int] = {}
        self._kernel: int | None = None
        self._batch: tuple[Wait, ...] = (Wait("batch", worker=worker),) if step.has("batch", worker) else ()

    def run(self) -> None:
        for ops, prices in _pieces(self._of.ops, self._of.prices):
            if ops[0].collective is not None:
                self._add_collective(ops[0], prices[0])
            else:
                self._add_chunk(ops, prices)
        if self._kernel is not None:
            self._step.name(self._kernel, "kernels", self._of.worker)
        elif not self._step.has("kernels", self._of.worker):
            self._step.name(self._launch(0.0, "end"), "kernels", self._of.worker)

    def _add_collective(self, op: Op, price: Price) -> None:
        assert op.collective is not None
        launch = self._launch(0.0 if self._of.is_captured else price.host_seconds, op.name)
        before: list[int | Wait] = [launch, *self._waits(op)]
        if op.collective.follows and self._kernel is not None:
            before.append(self._kernel)
        if self._kernel is None:  # what it sends was computed in the step before
            before.append(Wait("kernels", steps_ago=1, worker=self._of.worker))
        lane, seconds = self._of.links.carry(op.collective)
        task = LaneTask(Lane(lane, self._of.worker), seconds, "communication", op.collective.kind, op.module)
        self._note(op, self._step.add(task, after=before))

    def _add_chunk(self, ops: Sequence[Op], prices: Sequence[Price]) -> None:
        chunk = chunk_of(ops, prices, not self._of.is_captured)
        waits = self._waits(ops[0])
        stops = ops[0].name == WAIT and self._kernel is not None
        if self._of.is_device:
            self._kernel = self._launch(chunk.host, chunk.label, after=self._after_kernel())
            self._run(chunk, chunk.device, [self._kernel, *waits])
        else:
            host_after = self._after_kernel() if stops else ()
            first = self._launch(chunk.first_launch, chunk.label, after=host_after)
            rest = self._launch(chunk.host - chunk.first_launch, chunk.label)
            self._run(chunk, chunk.device - chunk.tail, [first, *waits, *self._batch])
            self._run(chunk, chunk.tail, [rest])
            self._batch = ()
        if self._kernel is not None:
            self._note(ops[-1], self._kernel)

    def _run(self, chunk: Chunk, seconds: float, after: Sequence[int | Wait]) -> None:
        if seconds <= 0 and len(after) <= 1:
            return
        contention = self._contention if seconds > 0 else ()
        task = LaneTask(self._device, max(0.0, seconds), chunk.part, chunk.label, contention=contention)
        self._kernel = self._step.add(task, after=after)

    def _launch(self, seconds: float, label: str, after: Sequence[int] = ()) -> int:
        return self._step.add(LaneTask(self._host, max(0.0, seconds), "launch", label), after=after)

    def _after_kernel(self) -> tuple[int, ...]:
        return () if self._kernel is None else (self._kernel,)

    def _waits(self, op: Op) -> list[int]:
        return [self._marks[mark] for mark in op.waits if mark in self._marks]

    def _note(self, op: Op, position: int) -> None:
        if op.mark:
            self._marks[op.mark] = position


def _pieces(ops: Sequence[Op], prices: Sequence[Price]) -> Iterator[tuple[Sequence[Op], Sequence[Price]]]:
    """The ops cut where one waits or is waited for, where the host waits, and before the update."""
    start = 0
    for position, op in enumerate(ops):
        begins = op.collective is not None or op.waits or op.name == WAIT
        if position > start and (begins or op.phase != ops[position - 1].phase):
            yield ops[start:position], prices[start:position]
            start = position
        if op.collective is not None or op.mark:
            yield ops[start : position + 1], prices[start : position + 1]
            start = position + 1
    if start < len(ops):
        yield ops[start:], prices[start:]


def _has_overlap(ops: Sequence[Op]) -> bool:
    """Whether a collective may overlap kernels: the op after it does not wait for it."""
    for position, op in enumerate(ops[:-1]):
        if op.collective is not None and op.mark not in ops[position + 1].waits:
            return True
    return False


class Segment(NamedTuple):
    """Repeated ops folded into one: the seconds of a repetition by part and kind of lane, and those of the
    host."""

    path: Mapping[tuple[str, str], float]
    host_seconds: float

    @property
    def seconds(self) -> float:
        return sum(self.path.values())

    def tasks(self, lane: Lane, label: str, times: int = 1) -> Iterator[LaneTask]:
        """The repetitions as tasks of one lane; their `limited_by` names the lane whose speed sets the
        duration."""
        for (part, kind), seconds in self.path.items():
            yield LaneTask(lane, seconds * times, part, label, limited_by=kind)


def segment_of(ops: WorkerOps) -> Segment:
    """Schedule the ops by themselves, again and again, until a repetition takes a steady time."""
    if not ops.ops:
        return Segment({}, 0.0)
    step = StepBuilder()
    ops.add_to(step)
    timeline: Timeline = steady_timeline(step.build())
    return Segment(timeline.critical_path(), timeline.busy_seconds("host", worker=ops.worker))


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatedOps:
    """Equal micro-batches between the first and the last, folded: scheduled once and repeated."""

    segment: Segment
    times: int
    worker: int = 0

    def add_to(self, step: StepBuilder) -> None:
        host, device = Lane("host", self.worker), Lane("device", self.worker)
        step.add(LaneTask(host, self.segment.host_seconds * self.times, "launch", "micro-batches"))
        last = None
        for task in self.segment.tasks(device, "micro-batches", self.times):
            last = step.add(task)
        if last is not None:
            step.name(last, "kernels", self.worker)
