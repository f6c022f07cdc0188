"""Place tasks on lanes. Overlap happens here and nowhere else.

A lane does one thing at a time, in the order given. A task also waits for the tasks it names, and for a delay after them.
Each span remembers what it waited for last, so that the critical path can be walked back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """`after` are indices of earlier tasks; `delay` passes between the last of them and the start."""

    lane: str
    seconds: float
    part: str
    label: str = ""
    after: tuple[int, ...] = ()
    delay: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A task in time; `cause` is the task whose end let it start, -1 for the beginning."""

    task: int
    start: float
    end: float
    cause: int


def place(tasks: Sequence[Task]) -> list[Span]:
    """The earliest spans that keep lanes in order and every task behind what it waits for."""
    spans: list[Span] = []
    last_on: dict[str, int] = {}
    for index, task in enumerate(tasks):
        start, cause = 0.0, -1
        before = last_on.get(task.lane)
        if before is not None:
            start, cause = spans[before].end, before
        for other in task.after:
            ready = spans[other].end + task.delay
            if ready > start:
                start, cause = ready, other
        spans.append(Span(task=index, start=start, end=start + task.seconds, cause=cause))
        last_on[task.lane] = index
    return spans
