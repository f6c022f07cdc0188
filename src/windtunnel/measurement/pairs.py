"""One pair of processes of a comparison: both are alive, and they step in turn.

A round is four turns, A B B A; the next round is B A A B. So another program that starts or stops, or a
drifting clock rate, affects both sides equally. Turns have random lengths: otherwise a program that runs
every 0.1 or 0.2 s would disturb the same turn of each round. The ratio of a pair is the median of the ratios
of each turn of B to each turn of A of the same round. So up to half of the ratios may be far off.
"""

from __future__ import annotations

import itertools
import math
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from windtunnel.errors import MeasurementFailed
from windtunnel.measurement import children
from windtunnel.measurement.children import RunningChild
from windtunnel.measurement.report import ProcessReport

TURN_SECONDS = 0.025
TURN_VARIES = 0.5  # each turn is up to this share shorter or longer
_ORDERS = ((0, 1, 1, 0), (1, 0, 0, 1))
_LEAST_ROUNDS = 3
Start = Callable[[int], RunningChild]


@dataclass(frozen=True, slots=True, kw_only=True)
class PairReport:
    """The reports of the two processes of a pair. `interrupted`: the user stopped it after some rounds."""

    a: ProcessReport
    b: ProcessReport
    interrupted: bool = False

    @property
    def rounds(self) -> int:
        return min(len(self.a.turns), len(self.b.turns)) // 2

    @property
    def logs(self) -> list[float]:
        """The logarithm of the seconds of B over those of A, for each pair of turns of the same round."""
        a, b = turn_logs(self.a), turn_logs(self.b)
        starts = range(0, 2 * self.rounds, 2)
        return [theirs - ours for i in starts for ours in a[i : i + 2] for theirs in b[i : i + 2]]

    @property
    def log(self) -> float:
        """The logarithm of the pair's ratio."""
        return statistics.median(self.logs)


def turn_logs(report: ProcessReport) -> list[float]:
    """The logarithm of the median sample of each turn."""
    ends = [0, *itertools.accumulate(report.turns)]
    turns = (report.steady[first:end] for first, end in itertools.pairwise(ends))
    return [math.log(statistics.median(turn)) for turn in turns]


def run_pair(starts: Sequence[Start], names: Sequence[str], number: int, seconds: float) -> PairReport:
    """Start both sides, let them step in turn for about `seconds`, and end both.

    Raises MeasurementFailed, with the side and the reason, if a side has no report. An interrupt ends the
    rounds; the samples so far are kept.
    """
    living = dict[int, RunningChild]()
    try:
        for place in (0, 1) if number % 2 == 0 else (1, 0):
            living[place] = starts[place](number)
        for place, child in living.items():
            _await_turn(child, names[place])
        interrupted = _take_rounds(living, names, seconds, random.Random(number))
        reports = [_report(living[place], names[place]) for place in (0, 1)]
    finally:
        for child in living.values():
            child.abandon()
    return PairReport(a=reports[0], b=reports[1], interrupted=interrupted)


def _take_rounds(
    living: dict[int, RunningChild], names: Sequence[str], seconds: float, lengths: random.Random
) -> bool:
    """Whether the user interrupted the rounds; an interrupt before the first one ends the pair."""
    end, rounds = time.monotonic() + seconds, 0
    try:
        while rounds < _LEAST_ROUNDS or time.monotonic() < end:
            for place in _ORDERS[rounds % 2]:
                varied = lengths.uniform(1.0 - TURN_VARIES, 1.0 + TURN_VARIES)
                living[place].tell(str(TURN_SECONDS * varied))
                _await_turn(living[place], names[place])
            rounds += 1
    except KeyboardInterrupt:
        if not rounds:
            raise
        return True
    return False


def _await_turn(child: RunningChild, name: str) -> None:
    if not child.listen("turn"):
        _report(child, name)
        raise MeasurementFailed(f"{name}: a process ended before its turn.", state="no result")


def _report(child: RunningChild, name: str) -> ProcessReport:
    try:
        return children.report_of(child.finish())
    except MeasurementFailed as error:
        raise MeasurementFailed(f"{name}: {error.message}", state=error.state, hint=error.hint) from error
