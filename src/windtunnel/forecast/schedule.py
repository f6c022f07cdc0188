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
from collections.abc import Iterable, Sequence
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
    """Work on a lane. `part` is what its time counts as, `module` the module of the network it belongs to.

    `limited_by`: the kind of lane whose speed sets the duration, if it is not the task's own lane. Folded
    work is on one lane, but consists of launches, kernels and collectives.
    """

    lane: Lane
    seconds: float
    part: str
    label: str = ""
    module: str = ""
    contention: tuple[Contention, ...] = ()
    limited_by: str = ""


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
        """Name the task at this position, so that other tasks can wait for it. A name that is given again
        moves to the new task."""
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
    """Place this many equal steps: each task as early as its lane and its waits allow."""
    return scheduler_of(step).run(steps)


def scheduler_of(step: Step) -> Scheduler:
    """The scheduler that this step needs."""
    return _Contended(step) if any(task.contention for task in step.tasks) else _Uncontended(step)


class Scheduler(Protocol):
    def run(self, steps: int) -> Schedule:
        """Place this many steps, from the beginning of the run."""


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
    """Tasks slow each other down while they overlap, so time advances from event to event over all lanes.

    Lanes are numbers here, and a task is its place in the run: a step of a large job has thousands of events.
    A lane that waits for no other lane, such as a host that launches ahead, is placed at once and needs no
    events.
    """

    def __init__(self, step: Step) -> None:
        self._step, size = step, len(step.tasks)
        numbers = {lane: number for number, lane in enumerate(dict.fromkeys(t.lane for t in step.tasks))}
        self._lanes = [numbers[task.lane] for task in step.tasks]
        self._contention = [
            [(numbers[lane], slowdown) for lane, slowdown in task.contention if lane in numbers]
            for task in step.tasks
        ]
        # How far back in the run the tasks are that a task waits for.
        self._back = [
            [position - t for t in after] + [position - t + ago * size for t, ago in earlier]
            for position, (after, earlier) in enumerate(zip(step.after, step.earlier, strict=True))
        ]
        watched = {lane for contention in self._contention for lane, _ in contention}
        each_task = zip(self._lanes, self._back, self._contention, strict=True)
        waiting = {lane for lane, *others in each_task if any(others)}
        self._events = watched | waiting  # the lanes that need them

    def run(self, steps: int) -> Schedule:
        size = len(self._step.tasks)
        tasks = self._step.tasks * steps
        self._spans: list[Span | None] = [None] * len(tasks)
        self._ends = [math.inf] * len(tasks)
        queues: list[list[int]] = [[] for _ in range(max(self._lanes) + 1)]
        for index in reversed(range(len(tasks))):  # the next task of a lane is the last of its list
            queues[self._lanes[index % size]].append(index)
        for lane, queue in enumerate(queues):
            if lane not in self._events:
                self._place_ahead(reversed(queue))
        self._queues = {lane: queues[lane] for lane in self._events}
        self._heads = {lane: self._waits(queue[-1]) for lane, queue in self._queues.items()}
        self._previous = [-1] * len(queues)
        self._running: dict[int, _Running] = {}
        now = 0.0
        while (now := self._next_event(now)) < math.inf:
            self._finish(now)
        spans = tuple(span for span in self._spans if span is not None)
        last_ends = itertools.accumulate((span.end for span in spans), max)
        ends = tuple(itertools.islice(last_ends, size - 1, None, size))
        return Schedule(tasks=tasks, spans=spans, step_ends=ends)

    def _place_ahead(self, queue: Iterable[int]) -> None:
        """Place the tasks of a lane one after another."""
        end, before, size = 0.0, -1, len(self._lanes)
        for index in queue:
            start, end = end, end + self._step.tasks[index % size].seconds
            self._spans[index], self._ends[index] = Span(index, start, end, before), end
            before = index

    def _next_event(self, now: float) -> float:
        """Start the tasks that can start now. Return when the next one ends or can start."""
        ends, running, previous = self._ends, self._running, self._previous
        started, next_start = [], math.inf
        for lane, waits in self._heads.items():
            if lane in running:
                continue
            # The task that ended last among those it waits for and the one before it on its lane.
            cause = previous[lane]
            latest = ends[cause] if cause >= 0 else 0.0
            for wait in waits:
                if ends[wait] > latest:
                    cause, latest = wait, ends[wait]
            if latest <= now:
                started.append((lane, cause))
            elif latest < next_start:
                next_start = latest
        for lane, cause in started:
            self._start(lane, cause, now)
        if started:
            self._update_rates(now)
        return min([next_start, *[each.end for each in running.values()]])

    def _start(self, lane: int, cause: int, now: float) -> None:
        queue = self._queues[lane]
        index = queue.pop()
        position = index % len(self._lanes)
        seconds, contention = self._step.tasks[position].seconds, self._contention[position]
        self._running[lane] = _Running(index, cause, now, seconds, contention)
        if queue:
            self._heads[lane] = self._waits(queue[-1])
        else:
            del self._heads[lane]

    def _waits(self, index: int) -> list[int]:
        """The tasks that a task waits for; those of steps before the run are over."""
        return [index - back for back in self._back[index % len(self._lanes)] if back <= index]

    def _finish(self, now: float) -> None:
        ended = [(lane, running) for lane, running in self._running.items() if running.end <= now]
        for lane, running in ended:
            index = running.task
            self._spans[index] = Span(index, running.start, now, running.cause)
            self._ends[index] = now
            self._previous[lane] = index
            del self._running[lane]
        if ended:
            self._update_rates(now)

    def _update_rates(self, now: float) -> None:
        """When the set of busy lanes changes, the rest of a task takes more or less time."""
        for running in self._running.values():
            if not running.contention:
                continue
            slowdown = 1.0
            for lane, factor in running.contention:
                if lane in self._running:
                    slowdown *= factor
            if slowdown != running.slowdown:
                running.left -= (now - running.since) / running.slowdown
                running.since, running.slowdown = now, slowdown
                running.end = now + running.left * slowdown


class _Running:
    """A task under way: `left` seconds of undisturbed work since `since`."""

    __slots__ = ("cause", "contention", "end", "left", "since", "slowdown", "start", "task")

    def __init__(
        self, task: int, cause: int, now: float, seconds: float, contention: Sequence[tuple[int, float]]
    ) -> None:
        self.task, self.cause, self.contention = task, cause, contention
        self.start = self.since = now
        self.left, self.end, self.slowdown = seconds, now + seconds, 1.0
