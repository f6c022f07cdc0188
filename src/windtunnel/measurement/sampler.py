"""The timing loop inside a child. It needs no framework and knows none."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable
from typing import Any

from windtunnel.measurement.process import Emit
from windtunnel.measurement.steady import Protocol, is_precise

SAMPLE_SECONDS = {"cpu": 0.0005, "gpu": 0.02, "cuda": 0.02}
_ISSUED_STEPS = 5
_LEAST_STEADY = 3
_ASKED_AGAIN = 1.1
_LINEAR_SECONDS = 0.4
_MOST_LINEAR = 100
_UNDECIDED_SECONDS = (
    0.3  # a neighbour stays for a tenth of a second and more: samples that agree for less may all be his
)
_FELT_SECONDS = 0.025
_REST_SECONDS = 0.0015
_BEATS = 4  # each time it is felt
_BEAT_SUMS = 3000


class Sampler:
    """Times groups of steps long enough for the clock; tells of them between samples, never during one."""

    def __init__(
        self,
        step: Callable[[], Any],
        sync: Callable[[], None],
        least_seconds: float,
        emit: Emit,
        *,
        feels: bool = False,
    ) -> None:
        self.step, self.sync, self.least, self.emit, self.feels = step, sync, least_seconds, emit, feels
        self.group, self.one = 1, 0.0  # steps to a sample, and what one takes
        self.seconds: list[float] = []
        self.pulse: list[
            tuple[int, float]
        ] = []  # after how many samples it was felt, and the seconds of a beat then

    def first(self) -> float:
        seconds = self._time(1)
        self._tell("first", [seconds], 1)
        return seconds

    def warm_up(self, cap: float) -> None:
        """Until two halves of the last steps agree or the cap is reached; then choose how many steps make a sample."""
        begin, seen = time.perf_counter(), list[float]()
        while time.perf_counter() - begin < cap or len(seen) < 2:
            seen.append(self._time(1))
            if len(seen) >= 8 and alike(seen[-8:-4], seen[-4:]) and time.perf_counter() - begin > cap / 4:
                break
        self._tell("warm", seen, 1)
        self.one = statistics.median(seen[-4:])
        self.group = max(1, round(self.least / max(self.one, 1e-9) + 0.5))

    def steady(self, protocol: Protocol) -> str:
        """Sample until the median is precise or the time is up; say which."""
        self._feel()
        begin, told, due = time.perf_counter(), 0, float(_LEAST_STEADY)
        least, stopped = max(protocol.seconds / 4, _UNDECIDED_SECONDS), ""
        while not stopped:
            self.seconds.append(self._time(self.group) / self.group)
            elapsed = time.perf_counter() - begin
            if elapsed > _FELT_SECONDS * len(self.pulse):
                self._feel()
            if len(self.seconds) >= _LEAST_STEADY and elapsed > protocol.seconds:
                stopped = "time"
            elif elapsed > least and len(self.seconds) >= due:
                due = (
                    len(self.seconds) * _ASKED_AGAIN
                )  # seldom: what the question leaves in the caches slows the next sample
                stopped = "precision" if is_precise(self.seconds, protocol.precision / 2) else ""
            if stopped or len(self.seconds) - told >= 1000:
                self._tell("steady", self.seconds[told:], self.group)
                told = len(self.seconds)
        self._feel()
        return stopped

    def _feel(self) -> None:
        """How fast the machine is, before and after every few samples. A core that ran wide vector code is a fifth slower for a millisecond
        after it: that belongs to the step and is not the machine's doing, so plain work comes first until it is over."""
        if not self.feels:
            return
        rested = time.perf_counter() + _REST_SECONDS
        while time.perf_counter() < rested:
            beat()
        self.pulse.append((len(self.seconds), statistics.median(beat() for _ in range(_BEATS))))
        if self.one < _FELT_SECONDS:
            self._time(1)  # what the beats left in the caches would slow the next sample

    def linearity(self) -> float:
        """Two groups of steps queued together over one: 2 where the clock waits for the device, near 1 where it does not.

        Both are taken in turn and summed, so that a neighbour on the machine stretches them alike; where steps are slow there is one of each.
        """
        end = time.perf_counter() + _LINEAR_SECONDS
        ones, twos = list[float](), list[float]()
        while not ones or (time.perf_counter() < end and len(ones) < _MOST_LINEAR):
            ones.append(self._time(self.group))
            twos.append(self._time(2 * self.group))
        return sum(twos) / sum(ones)

    def host_seconds(self) -> float:
        """How long the host takes to launch a step to a device that has nothing else to do."""
        return statistics.median(self._launch_costs() for _ in range(_ISSUED_STEPS))

    def _launch_costs(self) -> float:
        self.sync()
        start = time.perf_counter()
        self.step()
        return time.perf_counter() - start

    def _time(self, steps: int) -> float:
        start = time.perf_counter()
        for _ in range(steps):
            self.step()
        self.sync()
        return time.perf_counter() - start

    def _tell(self, phase: str, seconds: list[float], steps: int) -> None:
        self.emit({"kind": "samples", "phase": phase, "steps": steps, "seconds": seconds})


def beat() -> float:
    """Seconds of a fixed piece of plain work: how fast this core is just now, whatever the framework. Its numbers are small ones, which
    Python keeps ready: how the process's memory lies must not matter."""
    start, total = time.perf_counter(), 0
    for _ in itertools.repeat(None, _BEAT_SUMS):
        total = (total + 3) & 127
    return time.perf_counter() - start


def alike(left: list[float], right: list[float]) -> bool:
    a, b = statistics.median(left), statistics.median(right)
    return abs(a - b) <= 0.05 * max(a, b)
