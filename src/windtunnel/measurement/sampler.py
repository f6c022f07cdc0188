"""The timing loop inside a child. It is independent of frameworks."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable

from windtunnel.measurement.process import Emit
from windtunnel.measurement.report import DISTURBED, STEADY
from windtunnel.measurement.steady import Protocol, is_precise

_SAMPLE_SECONDS = {"cpu": 0.0005, "gpu": 0.02}
_LAUNCHED_STEPS = 5
_LEAST_STEADY = 3
_CHECK_AGAIN = 1.1
_LINEAR_SECONDS = 0.4
_MOST_LINEAR = 100
# Another program may run for a tenth of a second or longer: samples of a shorter time may all be disturbed.
_LEAST_SECONDS = 0.3
_WINDOW_SECONDS = 0.025
_SETTLE_SECONDS = 0.0015
_LOOPS = 4  # in each reading of the reference loop
_LOOP_SUMS = 3000


def sample_seconds(device: str) -> float:
    """The minimum length of a sample: much longer than the clock's resolution, and than one wait for a
    GPU."""
    return _SAMPLE_SECONDS["cpu" if device == "cpu" else "gpu"]


class Sampler:
    """Times groups of steps long enough for the clock; reports them between samples, never during one.

    With `watches`, it reads the reference loop between windows of samples.
    """

    def __init__(
        self,
        step: Callable[[], object],
        sync: Callable[[], None],
        least_seconds: float,
        emit: Emit,
        *,
        watches: bool = False,
    ) -> None:
        self.step, self.sync, self.least, self.emit, self.watches = step, sync, least_seconds, emit, watches
        self.group, self.one = 1, 0.0  # steps to a sample, and the seconds of one
        self.seconds: list[float] = []
        # Readings of the reference loop: the number of samples before, and the seconds of one loop.
        self.readings: list[tuple[int, float]] = []

    def first(self) -> float:
        seconds = self._time(1)
        self._report("first", [seconds], 1)
        return seconds

    def warm_up(self, cap: float) -> None:
        """Step until two halves of the last steps agree or `cap` seconds are over; then choose the steps of a
        sample."""
        begin, seen = time.perf_counter(), list[float]()
        while time.perf_counter() - begin < cap or len(seen) < 2:
            seen.append(self._time(1))
            if len(seen) >= 8 and alike(seen[-8:-4], seen[-4:]) and time.perf_counter() - begin > cap / 4:
                break
        self._report("warm", seen, 1)
        self.one = statistics.median(seen[-4:])
        self.group = max(1, round(self.least / max(self.one, 1e-9) + 0.5))

    def steady(self, protocol: Protocol) -> str:
        """Sample until the median is precise or the time is up. Returns which of the two."""
        self._read_loop()
        begin, reported, due = time.perf_counter(), 0, float(_LEAST_STEADY)
        least, stopped = max(protocol.seconds / 4, _LEAST_SECONDS), ""
        while not stopped:
            self.seconds.append(self._time(self.group) / self.group)
            elapsed = time.perf_counter() - begin
            if elapsed > _WINDOW_SECONDS * len(self.readings):
                self._read_loop()
            if len(self.seconds) >= _LEAST_STEADY and elapsed > protocol.seconds:
                stopped = "time"
            elif elapsed > least and len(self.seconds) >= due:
                # Not often, because the check evicts the step's data from the caches and slows the next
                # sample.
                due = len(self.seconds) * _CHECK_AGAIN
                stopped = "precision" if is_precise(self.seconds, protocol.precision / 2) else ""
            if stopped or len(self.seconds) - reported >= 1000:
                self._report(STEADY, self.seconds[reported:], self.group)
                reported = len(self.seconds)
        self._read_loop()
        return stopped

    def turn(self, seconds: float, interruptions: Callable[[], int] = lambda: 0) -> int:
        """Sample for `seconds` after another process stepped. Returns the number of samples that count.

        Samples during which another program took the core are left out, by the system's count of
        `interruptions` and never by their own time. If that leaves none, all count.
        """
        if self.one < _WINDOW_SECONDS:
            self._time(self.group)  # refill the caches, or the first sample would be slower
        begin, whole, disturbed = time.perf_counter(), list[float](), list[float]()
        while not (whole or disturbed) or time.perf_counter() - begin < seconds:
            before = interruptions()
            sample = self._time(self.group) / self.group
            (whole if interruptions() == before else disturbed).append(sample)
        if whole and disturbed:
            self._report(DISTURBED, disturbed, self.group)
        counted = whole or disturbed
        self.seconds += counted
        self._report(STEADY, counted, self.group)
        return len(counted)

    def _read_loop(self) -> None:
        """Run the reference loop, before and after every few samples.

        A core that ran wide vector code is a fifth slower for a millisecond after it. That belongs to the
        step, so the first loops are thrown away until it is over.
        """
        if not self.watches:
            return
        settled = time.perf_counter() + _SETTLE_SECONDS
        while time.perf_counter() < settled:
            reference_loop()
        self.readings.append((len(self.seconds), statistics.median(reference_loop() for _ in range(_LOOPS))))
        if self.one < _WINDOW_SECONDS:
            self._time(1)  # refill the caches, or the next sample would be slower

    def linearity(self) -> float:
        """The time of two groups of steps over that of one: 2 if the clock waits for the device, near 1 if it
        does not.

        Both are timed alternately and summed, so that another program slows them alike; slow steps are timed
        once.
        """
        end = time.perf_counter() + _LINEAR_SECONDS
        ones, twos = list[float](), list[float]()
        while not ones or (time.perf_counter() < end and len(ones) < _MOST_LINEAR):
            ones.append(self._time(self.group))
            twos.append(self._time(2 * self.group))
        return sum(twos) / sum(ones)

    def host_seconds(self) -> float:
        """How long the host takes to launch a step on an idle device."""
        return statistics.median(self._launch_seconds() for _ in range(_LAUNCHED_STEPS))

    def _launch_seconds(self) -> float:
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

    def _report(self, phase: str, seconds: list[float], steps: int) -> None:
        self.emit({"kind": "samples", "phase": phase, "steps": steps, "seconds": seconds})


def reference_loop() -> float:
    """Seconds of a fixed piece of Python work: how fast this core is now, independent of the framework.

    Its numbers are small ones, which Python caches: the layout of the process's memory must not matter.
    """
    start, total = time.perf_counter(), 0
    for _ in itertools.repeat(None, _LOOP_SUMS):
        total = (total + 3) & 127
    return time.perf_counter() - start


def alike(left: list[float], right: list[float]) -> bool:
    a, b = statistics.median(left), statistics.median(right)
    return abs(a - b) <= 0.05 * max(a, b)
