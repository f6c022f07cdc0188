"""Place tasks on lanes. Overlap happens here and nowhere else.

A lane does one thing at a time, in the order given. A task also waits for the tasks it names.
Each span remembers what it waited for last, so that the critical path can be walked back. Tasks and spans are tuples, since
a step has thousands of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Task(NamedTuple):
    """`after` are indices of earlier tasks that must have ended."""

    lane: str
    seconds: float
    part: str
    label: str = ""
    after: tuple[int, ...] = ()


class Span(NamedTuple):
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
            if spans[other].end > start:
                start, cause = spans[other].end, other
        spans.append(Span(index, start, start + task.seconds, cause))
        last_on[task.lane] = index
    return spans
