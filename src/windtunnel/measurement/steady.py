"""How long to measure, when one process may stop, and the interval of a median over several processes."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy

from windtunnel.errors import BadRecord

_RESAMPLES = 500
_LEAST_SAMPLES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Protocol:
    """How long to measure. A process stops when it knows its median to `precision`, or after `seconds`.

    At least `processes` run, and up to `most_processes` while their medians do not agree to `precision`.
    """

    processes: int = 2
    most_processes: int = 3
    seconds: float = 1.0
    warm_seconds: float = 0.3
    precision: float = 0.03
    timeout_seconds: float = 600.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("processes", "most_processes", "seconds", "precision", "timeout_seconds"):
            if not getattr(self, name) > 0:
                raise BadRecord(f"protocol: {name} must be above 0, not {getattr(self, name)}.")


Level = Literal["quick", "default", "rigorous"]
LEVELS: dict[Level, Protocol] = {
    "quick": Protocol(processes=2, most_processes=2, seconds=0.3, warm_seconds=0.1, precision=0.05),
    "default": Protocol(),
    "rigorous": Protocol(
        processes=5, most_processes=8, seconds=2.0, warm_seconds=0.5, precision=0.01, timeout_seconds=1200
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """The median of all processes, with an interval in which it would be in 95 of 100 repetitions."""

    median: float
    low: float
    high: float

    @property
    def spread(self) -> float:
        return (self.high - self.low) / 2 / self.median


def interval(groups: Sequence[Sequence[float]], seed: int = 0) -> Interval:
    """Median of the processes' medians with a bootstrap interval: draw processes first, then samples in each.

    The median of n samples drawn from n is the sample at a rank that follows a beta distribution. Drawing
    ranks instead of samples makes this fast enough for the thousands of cells of a study.
    """
    rng = numpy.random.default_rng(seed)
    arrays = [numpy.sort(numpy.asarray(group, dtype=float)) for group in groups if len(group)]
    middle = float(numpy.median([numpy.median(a) for a in arrays]))
    chosen = rng.integers(0, len(arrays), (_RESAMPLES, len(arrays)))
    drawn = numpy.stack([_draw_medians(a, rng, chosen.size) for a in arrays])
    picked = drawn[chosen, numpy.arange(chosen.size).reshape(chosen.shape)]
    low, high = numpy.quantile(numpy.median(picked, axis=1), [0.025, 0.975])
    return Interval(median=middle, low=float(min(low, middle)), high=float(max(high, middle)))


def _draw_medians(ordered: Any, rng: numpy.random.Generator, count: int) -> Any:
    size = len(ordered)
    ranks = rng.beta((size + 1) / 2, (size + 1) / 2, count) * size
    return ordered[numpy.minimum(ranks.astype(int), size - 1)]


def is_precise(samples: Sequence[float], precision: float) -> bool:
    """Whether the median of one process's samples is known well enough (its standard error by order
    statistics)."""
    count = len(samples)
    if count < _LEAST_SAMPLES:
        return False
    ordered = sorted(samples)
    reach = max(1, round(count**0.5))
    low, high = ordered[max(0, count // 2 - reach)], ordered[min(count - 1, count // 2 + reach)]
    return bool((high - low) / 2 <= precision * statistics.median(ordered))
