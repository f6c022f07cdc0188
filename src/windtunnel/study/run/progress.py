"""The progress of a study and its expected time: at first from forecasts, then from the processes that have
run."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

from windtunnel.measurement.frameworks.task import Task
from windtunnel.measurement.steady import Protocol

_START_SECONDS = 4.0  # starting an interpreter with a framework, before any was timed here
_NEGLIGIBLE = 0.001
_LEAST_STEPS = 8  # first, warm-up and steady steps: the minimum that a child runs, however long they take


@dataclass(frozen=True, slots=True, kw_only=True)
class RunProgress:
    """Processes (or trainings) run and wanted, cells that failed, and the expected seconds that are left."""

    done: int
    wanted: int
    failed: int
    left_seconds: float
    counted: str = "processes"


class Pace:
    """Expected seconds of the remaining work, corrected by the measured times of the same framework."""

    def __init__(self, protocol: Protocol, step_seconds: Callable[[Task], float | None]) -> None:
        self.protocol, self.step_seconds = protocol, step_seconds
        self.pieces = 0
        self._left = defaultdict[str, float](float)
        self._seen: dict[str, tuple[float, float]] = {}
        self._last = time.monotonic()

    def expect(self, task: Task) -> float:
        """Seconds of one process: start, warm-up and timing, or the minimum number of steps if these take
        longer."""
        step = self.step_seconds(task) or 0.0
        return _START_SECONDS + max(self.protocol.warm_seconds + self.protocol.seconds, _LEAST_STEPS * step)

    def add(self, task: Task, pieces: int) -> None:
        """Expect this many more pieces, or fewer if the number is negative."""
        self.pieces += pieces
        self._left[task.label] += pieces * self.expect(task)

    def see(self, task: Task) -> None:
        """Note that a piece is done. If several run at once, the time between two of them counts."""
        now = time.monotonic()
        took, expected = self._seen.get(task.label, (0.0, 0.0))
        self._seen[task.label] = (took + now - self._last, expected + self.expect(task))
        self._last = now

    def start(self) -> None:
        """Work begins now."""
        self._last = time.monotonic()

    def left_seconds(self) -> float:
        took, expected = (sum(each[i] for each in self._seen.values()) for i in (0, 1))
        usual = took / expected if expected else 1.0
        ratios = {label: one[0] / one[1] for label, one in self._seen.items()}
        left = sum(seconds * ratios.get(label, usual) for label, seconds in self._left.items())
        return left if left > _NEGLIGIBLE else 0.0  # rounding errors of the sum
