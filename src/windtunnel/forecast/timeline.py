"""The steady training step as spans on lanes, and the account of where its time goes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from windtunnel.forecast.schedule import Lane, LaneTask, Span, Step, scheduler_of

_MIN_STEPS = 3
_MAX_PERIOD = 4
_TOLERANCE = 1e-6
_WAITING = LaneTask(Lane(""), 0.0, "waiting")  # belongs to no lane


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """Several equal steps in a row. The steady period, from `begin` to `end`, is the last step, or the last
    few (`period_steps`) where the lengths of steps repeat in a pattern.

    `is_steady` is False if no pattern was found: then the lengths of steps still change, and the last one
    stands for all. `spreads`: for each kind of lane, the factor either way within which its seconds are
    known; empty where they are exact.
    """

    tasks: tuple[LaneTask, ...]
    spans: tuple[Span, ...]
    begin: float
    end: float
    tasks_per_step: int
    period_steps: int = 1
    is_steady: bool = True
    spreads: Mapping[str, float] = field(default_factory=dict)
    _known_path: dict[tuple[str, str], float] = field(default_factory=dict, compare=False, repr=False)

    @property
    def step_seconds(self) -> float:
        """A step of the steady period, on average."""
        return (self.end - self.begin) / self.period_steps

    @property
    def step(self) -> tuple[LaneTask, ...]:
        """The tasks of one step."""
        return self.tasks[: self.tasks_per_step]

    def parts(self) -> dict[str, float]:
        """Seconds of the critical path by part; they sum to the step."""
        parts: dict[str, float] = {}
        for (part, _), seconds in self.critical_path().items():
            parts[part] = parts.get(part, 0.0) + seconds
        return parts

    def critical_path(self) -> dict[tuple[str, str], float]:
        """Seconds of a steady step by part and kind of lane, followed back from its end. Folded work counts
        for the lanes that it is made of. "waiting" belongs to no lane."""
        path = self._known_path
        if not path:
            for task, seconds in self._critical_spans():
                if seconds > 0:
                    key = task.part, task.limited_by or task.lane.kind
                    path[key] = path.get(key, 0.0) + seconds / self.period_steps
        return dict(path)

    def labels_of(self, part: str) -> dict[str, float]:
        """Seconds of the critical path in one part, by the labels of its tasks."""
        labels: dict[str, float] = {}
        for task, seconds in self._critical_spans():
            if seconds > 0 and task.part == part:
                labels[task.label] = labels.get(task.label, 0.0) + seconds / self.period_steps
        return labels

    def _critical_spans(self) -> Iterator[tuple[LaneTask, float]]:
        ends = [span.end for span in self.spans]
        index, now = ends.index(max(ends)), self.end
        while index >= 0 and now > self.begin:
            span, task = self.spans[index], self.tasks[index]
            yield _WAITING, now - max(span.end, self.begin)
            now = min(now, span.end)
            yield task, now - max(span.start, self.begin)
            now, index = span.start, span.cause
        yield _WAITING, now - self.begin

    def busy_shares(self) -> dict[str, float]:
        """The share of a steady step in which each kind of lane of the first worker works, busiest first."""
        shares: dict[str, float] = {}
        for task in self.step:
            if task.lane.worker == 0:
                share = task.seconds / self.step_seconds if self.step_seconds else 0.0
                shares[task.lane.kind] = shares.get(task.lane.kind, 0.0) + share
        return dict(sorted(shares.items(), key=lambda item: -item[1]))

    def busy_seconds(self, *kinds: str, worker: int = 0) -> float:
        """The work of one step on the lanes of these kinds."""
        lanes = {Lane(kind, worker) for kind in kinds}
        return sum(task.seconds for task in self.step if task.lane in lanes)


def steady_timeline(step: Step) -> Timeline:
    """Repeat the step until its length no longer changes, or changes in a pattern of a few steps."""
    reach = step.reach
    scheduler, steps = scheduler_of(step), max(_MIN_STEPS, reach + 2)
    last = 2 * steps + 3 * max(_MAX_PERIOD, reach)
    schedule = scheduler.run(steps)
    while not (period := _period(schedule.step_ends, reach)) and steps < last:
        steps += 1
        schedule = scheduler.run(steps)
    return Timeline(
        tasks=schedule.tasks,
        spans=schedule.spans,
        begin=schedule.step_ends[-1 - (period or 1)],
        end=schedule.step_ends[-1],
        tasks_per_step=len(step.tasks),
        period_steps=period or 1,
        is_steady=period > 0,
    )


def _period(ends: Sequence[float], reach: int) -> int:
    """After how many steps the lengths of steps repeat; 0 if they do not.

    Tasks wait for tasks up to `reach` steps back, so a pattern counts only if it holds for as many steps.
    """
    lengths = [end - begin for begin, end in itertools.pairwise(ends)]
    for period in range(1, max(_MAX_PERIOD, reach) + 1):
        recent = lengths[-period - max(1, reach) :]
        pairs = zip(recent[:-period], recent[period:], strict=True)
        if len(recent) == period + max(1, reach) and all(
            abs(b - a) <= _TOLERANCE * ends[-1] for a, b in pairs
        ):
            return period
    return 0
