"""When to stop timing, and what the samples say."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy

from windtunnel.errors import BadRecord

_RESAMPLES = 500
_LEAST_SAMPLES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Protocol:
    """How long to measure. A child stops when its median is known to `precision`, or at its cap of `seconds`.

    At least `processes` children are run; more, up to `most_processes`, while their medians do not agree to `precision`.
    """

    processes: int = 3
    most_processes: int = 5
    seconds: float = 2.0
    warm_seconds: float = 0.5
    precision: float = 0.02
    timeout_seconds: float = 600.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("processes", "most_processes", "seconds", "precision", "timeout_seconds"):
            if not getattr(self, name) > 0:
                raise BadRecord(f"protocol: {name} must be above 0, not {getattr(self, name)}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """The median of all processes and where it would fall in 95 of 100 repetitions."""

    median: float
    low: float
    high: float

    @property
    def spread(self) -> float:
        return (self.high - self.low) / 2 / self.median


def interval(groups: Sequence[Sequence[float]], seed: int = 0) -> Interval:
    """Median of the processes' medians with a bootstrap interval: processes are drawn first, then samples in each."""
    rng = numpy.random.default_rng(seed)
    arrays = [numpy.asarray(group, dtype=float) for group in groups if len(group)]
    middle = float(numpy.median([numpy.median(a) for a in arrays]))
    drawn = numpy.empty(_RESAMPLES)
    for i in range(_RESAMPLES):
        chosen = rng.integers(0, len(arrays), len(arrays))
        drawn[i] = numpy.median([numpy.median(rng.choice(arrays[c], len(arrays[c]))) for c in chosen])
    low, high = numpy.quantile(drawn, [0.025, 0.975])
    return Interval(median=middle, low=float(min(low, middle)), high=float(max(high, middle)))


def is_precise(samples: Sequence[float], precision: float) -> bool:
    """Whether the median of one process's samples is known well enough (its standard error by order statistics)."""
    count = len(samples)
    if count < _LEAST_SAMPLES:
        return False
    ordered = sorted(samples)
    reach = max(1, round(count**0.5))
    low, high = ordered[max(0, count // 2 - reach)], ordered[min(count - 1, count // 2 + reach)]
    return bool((high - low) / 2 <= precision * statistics.median(ordered))
