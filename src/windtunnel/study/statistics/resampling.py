"""The interval of a number computed from rows: resample the rows' processes and compute
the number for each draw.

Processes of one cell differ more than the samples within one, so processes are drawn (Kalibera and Jones
2013). A few processes drawn with replacement vary too little: each row's spread is widened by sqrt(n / (n -
1)), and the whole interval by Student's t for the number of processes (Hesterberg 2015, "expanded percentile
interval").
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy
from numpy.typing import NDArray

from windtunnel.study.rows import StudyRow

DRAWS = 400
_MOST_SAMPLES = 200
_NORMAL = 1.96
_NORMAL_OF_80 = 1.2816
# A median of few processes varies that much more than their mean: 1.16 for three, 1.20 for five, 1.25 for
# many.
_OF_MEDIAN = 1.2
# Student's t, two-sided 95 %, for 1 to 10 degrees of freedom; beyond, 1.96 + 2.4 / df is exact to a
# hundredth.
_STUDENT = (12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
_SURE = 10**6
Floats = NDArray[numpy.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Resampled:
    """The logarithm of a row's seconds, and draws of it. `degrees_of_freedom` counts processes beyond the
    first."""

    middle: float
    draws: Floats
    degrees_of_freedom: int


def draw(row: StudyRow, seed: str) -> Resampled:
    """Resample a row's seconds: by its processes, by the samples of its only process, or by its interval.

    A forecast is drawn by the lanes of its path. A row with a single number and nothing else has no spread.
    """
    assert row.step_seconds is not None
    middle = math.log(row.step_seconds)
    rng = numpy.random.default_rng(zlib.crc32(seed.encode()))
    groups = [numpy.log(numpy.asarray(group, dtype=float)) for group in row.groups if len(group)]
    if len(groups) >= 2:
        return _draw_processes(middle, groups, rng)
    if groups:
        samples = groups[0][:: max(1, len(groups[0]) // _MOST_SAMPLES)]
        medians = numpy.median(rng.choice(samples, (DRAWS, len(samples))), axis=1)
        return Resampled(middle=middle, draws=middle + medians - numpy.median(samples), degrees_of_freedom=0)
    if row.origin == "forecast" and row.environment.get("path"):
        return _draw_path(row, middle)
    if row.low_seconds and row.high_seconds and row.high_seconds > row.low_seconds:
        chance = rng.standard_normal(DRAWS)
        reach = numpy.where(
            chance < 0, middle - math.log(row.low_seconds), math.log(row.high_seconds) - middle
        )
        return Resampled(middle=middle, draws=middle + reach / _NORMAL * chance, degrees_of_freedom=_SURE)
    return Resampled(middle=middle, draws=numpy.full(DRAWS, middle), degrees_of_freedom=_SURE)


def _draw_path(row: StudyRow, middle: float) -> Resampled:
    """Each lane of a forecast's path is slower or faster by one factor, the same in all rows of a device.

    Two rows of one device share the errors of its kernels, so these cancel in a ratio. Errors of a link that
    only one of them uses do not. A spread is an 80 % interval.
    """
    seconds = numpy.zeros(DRAWS)
    for lane, part in row.environment["path"].items():
        shared = numpy.random.default_rng(zlib.crc32(f"{row.device_name} {lane}".encode()))
        sigma = math.log(row.environment["spread"][lane]) / _NORMAL_OF_80
        seconds += part * numpy.exp(sigma * shared.standard_normal(DRAWS))
    whole = sum(row.environment["path"].values())
    return Resampled(middle=middle, draws=middle + numpy.log(seconds / whole), degrees_of_freedom=_SURE)


def _draw_processes(middle: float, groups: Sequence[Floats], rng: numpy.random.Generator) -> Resampled:
    medians = numpy.array([numpy.median(group) for group in groups])
    count = len(medians)
    means = medians[rng.integers(0, count, (DRAWS, count))].mean(axis=1)
    widened = math.sqrt(count / (count - 1)) * (_OF_MEDIAN if count > 2 else 1.0) * (means - medians.mean())
    return Resampled(middle=middle, draws=middle + widened, degrees_of_freedom=count - 1)


def span(middle: float, draws: Floats, degrees_of_freedom: int) -> tuple[float, float]:
    """The interval in which the number would be in 95 of 100 repetitions."""
    low, high = numpy.quantile(draws, [0.025, 0.975])
    wider = student_t(degrees_of_freedom) / _NORMAL
    return float(middle - wider * max(0.0, middle - low)), float(middle + wider * max(0.0, high - middle))


def student_t(degrees_of_freedom: int) -> float:
    """The quantile of Student's t that bounds 95 of 100."""
    if degrees_of_freedom < 1:
        return _NORMAL
    return (
        _STUDENT[degrees_of_freedom - 1]
        if degrees_of_freedom <= len(_STUDENT)
        else _NORMAL + 2.4 / degrees_of_freedom
    )
