"""How far a number drawn from rows can be trusted: rows are drawn again, process by process, and the number is taken from each draw.

Processes of one cell differ more than the samples within one, so it is processes that are drawn (Kalibera and Jones 2013). A few of
them vary less than they should when drawn with replacement; each row's spread is mended by sqrt(n / (n - 1)) and the whole interval
by Student's t for the processes there are (Hesterberg 2015, "expanded percentile interval").
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy
from numpy.typing import NDArray

from windtunnel.study.rows import StudyRow as Row

DRAWS = 400
_MOST_SAMPLES = 200
_NORMAL = 1.96
_OF_MEDIAN = 1.2  # a median of few processes scatters that much more than their mean (1.16 for three, 1.20 for five, 1.25 for many)
# Student's t, two-sided 95 %, for 1 to 10 degrees of freedom; beyond, 1.96 + 2.4 / df is right to a hundredth.
_STUDENT = (12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
_SURE = 10**6
Floats = NDArray[numpy.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """The logarithm of a row's seconds: as told, and as it might have come out. `freedom` counts processes beyond the first."""

    middle: float
    draws: Floats
    freedom: int


def draw(row: Row, seed: str) -> Drawn:
    """A row's seconds drawn again: by its processes, else by the samples of its only one, else by the interval it states.

    A row that states a single number is taken at its word.
    """
    assert row.step_seconds is not None
    middle = math.log(row.step_seconds)
    rng = numpy.random.default_rng(zlib.crc32(seed.encode()))
    groups = [numpy.log(numpy.asarray(group, dtype=float)) for group in row.groups if len(group)]
    if len(groups) >= 2:
        return _draw_processes(middle, groups, rng)
    if groups:
        kept = groups[0][:: max(1, len(groups[0]) // _MOST_SAMPLES)]
        found = numpy.median(rng.choice(kept, (DRAWS, len(kept))), axis=1)
        return Drawn(middle=middle, draws=middle + found - numpy.median(kept), freedom=0)
    if row.low_seconds and row.high_seconds and row.high_seconds > row.low_seconds:
        chance = rng.standard_normal(DRAWS)
        reach = numpy.where(
            chance < 0, middle - math.log(row.low_seconds), math.log(row.high_seconds) - middle
        )
        return Drawn(middle=middle, draws=middle + reach / _NORMAL * chance, freedom=_SURE)
    return Drawn(middle=middle, draws=numpy.full(DRAWS, middle), freedom=_SURE)


def _draw_processes(middle: float, groups: Sequence[Floats], rng: numpy.random.Generator) -> Drawn:
    medians = numpy.array([numpy.median(group) for group in groups])
    count = len(medians)
    means = medians[rng.integers(0, count, (DRAWS, count))].mean(axis=1)
    mended = math.sqrt(count / (count - 1)) * (_OF_MEDIAN if count > 2 else 1.0) * (means - medians.mean())
    return Drawn(middle=middle, draws=middle + mended, freedom=count - 1)


def span(middle: float, draws: Floats, freedom: int) -> tuple[float, float]:
    """Where the number would fall in 95 of 100 repetitions."""
    low, high = numpy.quantile(draws, [0.025, 0.975])
    wider = student(freedom) / _NORMAL
    return float(middle - wider * max(0.0, middle - low)), float(middle + wider * max(0.0, high - middle))


def student(freedom: int) -> float:
    """The quantile of Student's t that bounds 95 of 100."""
    if freedom < 1:
        return _NORMAL
    return _STUDENT[freedom - 1] if freedom <= len(_STUDENT) else _NORMAL + 2.4 / freedom
