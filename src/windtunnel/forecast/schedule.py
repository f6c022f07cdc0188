"""Place tasks on lanes. Overlap happens here and nowhere else.

A lane does one thing at a time, in the order given. A task also waits for the tasks it names, and may wait for the end of an
earlier step. Each span remembers what it waited for last, so that the critical path can be walked back. Tasks and spans are
tuples, since a step has thousands of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Task(NamedTuple):
    """`after` are indices of earlier tasks of its step that must have ended; `back` is how many steps ago the step was whose last
    task must have ended too, 0 for none."""

    lane: str
    seconds: float
    part: str
    label: str = ""
    after: tuple[int, ...] = ()
    back: int = 0
    module: str = ""


class Span(NamedTuple):
    """A task in time; `cause` is the task whose end let it start, -1 for the beginning."""

    task: int
    start: float
    end: float
    cause: int


class Lanes:
    """Where every lane stands; steps are placed on them one after another."""

    def __init__(self) -> None:
        self.tasks: list[Task] = []
        self.spans: list[Span] = []
        self.ends: list[float] = []
        self._last: dict[str, tuple[float, int]] = {}
        self._marks: list[int] = []

    def place(self, step: Sequence[Task]) -> None:
        """The earliest spans that keep lanes in order and every task behind what it waits for."""
        spans, last, first = self.spans, self._last, len(self.tasks)
        for number, (lane, seconds, _, _, after, back, _) in enumerate(step, start=first):
            start, cause = last.get(lane, (0.0, -1))
            for other in after:
                end = spans[first + other][2]
                if end > start:
                    start, cause = end, first + other
            if back and len(self._marks) >= back and spans[self._marks[-back]][2] > start:
                cause = self._marks[-back]
                start = spans[cause][2]
            end = start + seconds
            spans.append(Span(number, start, end, cause))
            last[lane] = end, number
        self.tasks += step
        self._marks.append(len(self.tasks) - 1)
        self.ends.append(max(end for end, _ in last.values()))


def place(tasks: Sequence[Task]) -> list[Span]:
    """The spans of one step."""
    lanes = Lanes()
    lanes.place(tasks)
    return lanes.spans
