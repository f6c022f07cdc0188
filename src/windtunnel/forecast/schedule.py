"""Place tasks on lanes. Overlap and contention happen here and nowhere else.

A lane does one task at a time, in the order in which the tasks were added. A task also waits for the tasks it
names, of its own step or of an earlier one. Each span remembers which task it waited for last, so that the
critical path can be followed back.

>>> step = StepBuilder()
>>> launch = step.add(LaneTask(HOST, 1.0, "launch"))
>>> kernel = step.add(LaneTask(DEVICE, 3.0, "compute"), after=(launch,))
>>> [(span.start, span.end) for span in place(step.build()).spans]
[(0.0, 1.0), (1.0, 4.0)]
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol


class Lane(NamedTuple):
    """A resource that works through its tasks one by one: "host", "device" or "copy" of one worker."""

    kind: str
    worker: int = 0


HOST, DEVICE, COPY = Lane("host"), Lane("device"), Lane("copy")


class Wait(NamedTuple):
    """The end of the task of this name, in this step or `steps_ago` steps before it."""

    name: str
    steps_ago: int = 0
    worker: int = 0


class Contention(NamedTuple):
    """While `lane` is busy, the task takes `slowdown` times as long."""

    lane: Lane
    slowdown: float


class LaneTask(NamedTuple):
    """Work on a lane. `part` is what its time counts as, `module` the module of the network it belongs to."""

    lane: Lane
    seconds: float
    part: str
    label: str = ""
    module: str = ""
    contention: tuple[Contention, ...] = ()


class Step(NamedTuple):
    """The tasks of one step and what each must wait for.

    `after` has positions of earlier tasks of the step, `earlier` pairs of a position and how many steps ago.
    At the beginning of a run, a wait for a step that does not exist is over.
    """

    tasks: tuple[LaneTask, ...]
    after: tuple[tuple[int, ...], ...]
    earlier: tuple[tuple[tuple[int, int], ...], ...]

    @property
    def reach(self) -> int:
        """How many steps back the furthest wait goes."""
        return max((steps_ago for waits in self.earlier for _, steps_ago in waits), default=0)


class Span(NamedTuple):
    """A task in time. `cause` is the task whose end let it start, -1 for the beginning of the run."""

    task: int
    start: float
    end: float
    cause: int


class StepBuilder:
    """Collects the tasks of one step. Contributors add to it one after another; names connect what they
    add."""

    def __init__(self) -> None:
        self._tasks: list[LaneTask] = []
        self._after: list[Sequence[int | Wait]] = []
        self._names: dict[tuple[str, int], int] = {}

    def add(self, task: LaneTask, after: Sequence[int | Wait] = (), name: str = "") -> int:
        """Add a task behind the others of its lane. The result is its position, which later tasks can wait
        for."""
        position = len(self._tasks)
        self._tasks.append(task)
        self._after.append(after)
        if name:
            self.name(position, name, task.lane.worker)
        return position

    def name(self, position: int, name: str, worker: int = 0) -> None:
        """Let other tasks wait for the task at this position by name. A name given again moves to the new
        task."""
        self._names[name, worker] = position

    def has(self, name: str, worker: int = 0) -> bool:
        """Whether a task of this name has been added."""
        return (name, worker) in self._names

    def build(self) -> Step:
        """The step, with every name turned into a position."""
        resolved = [self._resolve(position, waits) for position, waits in enumerate(self._after)]
        after, earlier = zip(*resolved, strict=True) if resolved else ((), ())
        return Step(tuple(self._tasks), after, earlier)

    def _resolve(
        self, position: int, waits: Sequence[int | Wait]
    ) -> tuple[tuple[int, ...], tuple[tuple[int, int], ...]]:
        after, earlier = [], []
        for wait in waits:
            if not isinstance(wait, Wait):
                after.append(wait)
                continue
            target = self._names.get((wait.name, wait.worker))
            if target is None or (not wait.steps_ago and target >= position):
                raise ValueError(f"Task {position} waits for {wait}, but no earlier task has this name.")
            if wait.steps_ago:
                earlier.append((target, wait.steps_ago))
            else:
                after.append(target)
        return tuple(after), tuple(earlier)


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Equal steps in a row. `step_ends` says when all work up to the end of each step was done."""

    tasks: tuple[LaneTask, ...]
    spans: tuple[Span, ...]
    step_ends: tuple[float, ...]


def place(step: Step, steps: int = 1) -> Schedule:
    """Place so many equal steps: each task as early as its lane and its waits allow."""
    return scheduler_of(step).run(steps)


def scheduler_of(step: Step) -> Scheduler:
    """The scheduler that this step needs."""
    return _Contended(step) if any(task.contention for task in step.tasks) else _Uncontended(step)


class Scheduler(Protocol):
    def run(self, steps: int) -> Schedule:
        """Place so many steps, from the beginning of the run."""


class _Uncontended:
    """Tasks keep their seconds, so one pass over the list places each behind those it waits for."""

    def __init__(self, step: Step) -> None:
        self._step = step
        self._spans: list[Span] = []
        self._ends: list[float] = []
        self._last: dict[Lane, tuple[float, int]] = {}

    def run(self, steps: int) -> Schedule:
        while len(self._ends) < steps:
            self._place_step(len(self._ends))
            self._ends.append(max(end for end, _ in self._last.values()))
        return Schedule(tasks=self._step.tasks * steps, spans=tuple(self._spans), step_ends=tuple(self._ends))

    def _place_step(self, number: int) -> None:
        spans, last, size = self._spans, self._last, len(self._step.tasks)
        index = first = number * size
        for (lane, seconds, *_), after, earlier in zip(*self._step, strict=True):
            start, cause = last.get(lane, (0.0, -1))
            for position in after:
                end = spans[first + position][2]
                if end > start:
                    start, cause = end, first + position
            for position, steps_ago in earlier:
                if number >= steps_ago:
                    other = first - steps_ago * size + position
                    end = spans[other][2]
                    if end > start:
                        start, cause = end, other
            end = start + seconds
            spans.append(Span(index, start, end, cause))
            last[lane] = end, index
            index += 1


class _Contended:
    """Tasks slow each other down while they overlap, so time advances from event to event over all lanes."""

    def __init__(self, step: Step) -> None:
        self._step = step

    def run(self, steps: int) -> Schedule:
        size = len(self._step.tasks)
        self._tasks = self._step.tasks * steps
        self._queues: dict[Lane, list[int]] = defaultdict(list)
        for index in reversed(range(len(self._tasks))):  # the next task of a lane is the last of its list
            self._queues[self._tasks[index].lane].append(index)
        self._done: dict[int, Span] = {}
        self._heads = {lane: self._waits(queue[-1]) for lane, queue in self._queues.items()}
        self._previous: dict[Lane, int] = {}
        self._running: dict[Lane, _Running] = {}
        now = 0.0
        while self._start_ready(now) or self._running:
            now = min(running.end for running in self._running.values())
            self._finish(now)
        spans = tuple(self._done[index] for index in range(len(self._tasks)))
        last_ends = itertools.accumulate((span.end for span in spans), max)
        ends = tuple(itertools.islice(last_ends, size - 1, None, size))
        return Schedule(tasks=self._tasks, spans=spans, step_ends=ends)

    def _start_ready(self, now: float) -> bool:
        """Start the next task of every idle lane whose waits are over; whether there was one."""
        started, done, running = False, self._done, self._running
        for lane, waits in list(self._heads.items()):
            if lane in running or not all(wait in done for wait in waits):
                continue
            queue = self._queues[lane]
            index = queue.pop()
            seconds = self._tasks[index].seconds
            running[lane] = _Running(index, self._cause(index, waits), now, now, seconds, now + seconds)
            started = True
            if queue:
                self._heads[lane] = self._waits(queue[-1])
            else:
                del self._heads[lane]
        if started:
            self._update_rates(now)
        return started

    def _waits(self, index: int) -> list[int]:
        size = len(self._step.tasks)
        number, position = divmod(index, size)
        first = index - position
        waits = [first + target for target in self._step.after[position]]
        for target, steps_ago in self._step.earlier[position]:
            if number >= steps_ago:
                waits.append(first - steps_ago * size + target)
        return waits

    def _cause(self, index: int, waits: Sequence[int]) -> int:
        """The task that ended last among those it waited for and the one before it on its lane."""
        cause = self._previous.get(self._tasks[index].lane, -1)
        end = self._done[cause].end if cause >= 0 else 0.0
        for other in waits:
            if self._done[other].end > end:
                cause, end = other, self._done[other].end
        return cause

    def _finish(self, now: float) -> None:
        for lane, running in list(self._running.items()):
            if running.end <= now:
                self._done[running.task] = Span(running.task, running.start, now, running.cause)
                self._previous[lane] = running.task
                del self._running[lane]
        self._update_rates(now)

    def _update_rates(self, now: float) -> None:
        """When the set of busy lanes changes, what is left of a task takes another time."""
        for lane, running in self._running.items():
            slowdown = math.prod(
                contention.slowdown
                for contention in self._tasks[running.task].contention
                if contention.lane in self._running
            )
            if slowdown != running.slowdown:
                left = running.left - (now - running.since) / running.slowdown
                end = now + left * slowdown
                self._running[lane] = running._replace(since=now, left=left, end=end, slowdown=slowdown)


class _Running(NamedTuple):
    """A task under way: `left` seconds of undisturbed work since `since`."""

    task: int
    cause: int
    start: float
    since: float
    left: float
    end: float
    slowdown: float = 1.0
