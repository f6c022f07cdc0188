"""Place tasks on lanes. Overlap and contention happen here and nowhere else.

A lane does one task at a time, in the order in which the tasks were added. A task also waits for the tasks it names, of its own step
or of an earlier one. Each span remembers which task it waited for last, so that the critical path can be followed back.

>>> step = StepBuilder()
>>> launch = step.add(HOST, 1.0, "launch")
>>> kernel = step.add(DEVICE, 3.0, "compute", after=(launch,))
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


class Task(NamedTuple):
    """Work on a lane.

    `after` has positions of earlier tasks of the same step, `earlier` pairs of a position and how many steps ago: all of them must
    have ended before this task starts. A step that does not exist, because the run has only begun, is not waited for.
    """

    lane: Lane
    seconds: float
    part: str
    label: str = ""
    after: tuple[int, ...] = ()
    earlier: tuple[tuple[int, int], ...] = ()
    contention: tuple[Contention, ...] = ()
    module: str = ""


class Span(NamedTuple):
    """A task in time. `cause` is the task whose end let it start, -1 for the beginning of the run."""

    task: int
    start: float
    end: float
    cause: int


class StepBuilder:
    """Collects the tasks of one step. Contributors add to it in turn; names connect what they add."""

    def __init__(self) -> None:
        self._tasks: list[Task] = []
        self._names: dict[tuple[str, int], int] = {}
        self._waits: list[tuple[int, tuple[Wait, ...]]] = []

    def add(
        self,
        lane: Lane,
        seconds: float,
        part: str,
        label: str = "",
        *,
        after: Sequence[int | Wait] = (),
        name: str = "",
        contention: tuple[Contention, ...] = (),
        module: str = "",
    ) -> int:
        """Add a task behind the others of its lane; its position in the step, which later tasks can wait for."""
        position = len(self._tasks)
        positions = tuple(wait for wait in after if not isinstance(wait, Wait))
        if len(positions) < len(after):
            self._waits.append((position, tuple(wait for wait in after if isinstance(wait, Wait))))
        self._tasks.append(Task(lane, seconds, part, label, positions, (), contention, module))
        if name:
            self.name(position, name, lane.worker)
        return position

    def name(self, position: int, name: str, worker: int = 0) -> None:
        """Let other tasks wait for the task at this position by name; the last task that gets a name keeps it."""
        self._names[name, worker] = position

    def has(self, name: str, worker: int = 0) -> bool:
        """Whether a task of this name has been added."""
        return (name, worker) in self._names

    def build(self) -> tuple[Task, ...]:
        """All tasks, with every name turned into a position."""
        tasks = list(self._tasks)
        for position, waits in self._waits:
            after, earlier = list(tasks[position].after), []
            for wait in waits:
                target = self._names.get((wait.name, wait.worker))
                if target is None or (not wait.steps_ago and target >= position):
                    raise ValueError(f"Task {position} waits for {wait}, which no earlier task is called.")
                if wait.steps_ago:
                    earlier.append((target, wait.steps_ago))
                else:
                    after.append(target)
            tasks[position] = tasks[position]._replace(after=tuple(after), earlier=tuple(earlier))
        return tuple(tasks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Equal steps in a row. `step_ends` says when all work up to the end of each step was done."""

    tasks: tuple[Task, ...]
    spans: tuple[Span, ...]
    step_ends: tuple[float, ...]


def place(step: Sequence[Task], steps: int = 1) -> Schedule:
    """The earliest spans of so many equal steps that keep lanes in order and every task behind what it waits for."""
    return scheduler_of(step).run(steps)


def scheduler_of(step: Sequence[Task]) -> Scheduler:
    """What places this step as often as it is asked to."""
    return _Contended(step) if any(task.contention for task in step) else _Uncontended(step)


class Scheduler(Protocol):
    def run(self, steps: int) -> Schedule:
        """So many steps from the beginning of the run."""


class _Uncontended:
    """Tasks keep their seconds, so each can be placed as soon as those before it are: one pass over the list."""

    def __init__(self, step: Sequence[Task]) -> None:
        self._step = tuple(step)
        self._spans: list[Span] = []
        self._ends: list[float] = []
        self._last: dict[Lane, tuple[float, int]] = {}

    def run(self, steps: int) -> Schedule:
        while len(self._ends) < steps:
            self._place_step(len(self._ends))
            self._ends.append(max(end for end, _ in self._last.values()))
        return Schedule(tasks=self._step * steps, spans=tuple(self._spans), step_ends=tuple(self._ends))

    def _place_step(self, number: int) -> None:
        step, spans, last = self._step, self._spans, self._last
        first = number * len(step)
        for index, (lane, seconds, _, _, after, earlier, _, _) in enumerate(step, start=first):
            start, cause = last.get(lane, (0.0, -1))
            for position in after:
                end = spans[first + position][2]
                if end > start:
                    start, cause = end, first + position
            for position, steps_ago in earlier:
                if number >= steps_ago:
                    other = first - steps_ago * len(step) + position
                    end = spans[other][2]
                    if end > start:
                        start, cause = end, other
            end = start + seconds
            spans.append(Span(index, start, end, cause))
            last[lane] = end, index


class _Contended:
    """Tasks slow each other down while they overlap, so time advances from event to event over all lanes."""

    def __init__(self, step: Sequence[Task]) -> None:
        self._step = tuple(step)

    def run(self, steps: int) -> Schedule:
        self._tasks = self._step * steps
        self._queues: dict[Lane, list[int]] = defaultdict(list)
        for index in reversed(range(len(self._tasks))):  # the next task of a lane is the last of its list
            self._queues[self._tasks[index].lane].append(index)
        self._done: dict[int, Span] = {}
        self._previous: dict[Lane, int] = {}
        self._running: dict[Lane, _Running] = {}
        now = 0.0
        while self._start_ready(now) or self._running:
            now = min(running.end for running in self._running.values())
            self._finish(now)
        spans = tuple(self._done[index] for index in range(len(self._tasks)))
        last_ends = itertools.accumulate((span.end for span in spans), max)
        ends = tuple(itertools.islice(last_ends, len(self._step) - 1, None, len(self._step)))
        return Schedule(tasks=self._tasks, spans=spans, step_ends=ends)

    def _start_ready(self, now: float) -> bool:
        """Start the next task of every idle lane whose waits are over; whether there was one."""
        started = False
        for lane, queue in self._queues.items():
            if queue and lane not in self._running and all(w in self._done for w in self._waits(queue[-1])):
                index = queue.pop()
                seconds = self._tasks[index].seconds
                self._running[lane] = _Running(index, self._cause(index), now, now, seconds, now + seconds)
                started = True
        if started:
            self._update_rates(now)
        return started

    def _waits(self, index: int) -> list[int]:
        number, position = divmod(index, len(self._step))
        task = self._tasks[index]
        first = index - position
        earlier = [first - ago * len(self._step) + target for target, ago in task.earlier if number >= ago]
        return [*(first + target for target in task.after), *earlier]

    def _cause(self, index: int) -> int:
        """The task that ended last among those it waited for and the one before it on its lane."""
        cause = self._previous.get(self._tasks[index].lane, -1)
        end = self._done[cause].end if cause >= 0 else 0.0
        for other in self._waits(index):
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
