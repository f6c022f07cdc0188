"""The influence of a factor: how far its range stretches a measure, with an interval, and the ranking.

Influence is the largest over the smallest value of a measure over the plausible range of one factor, all else
equal; time, energy and price are those of one example.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from windtunnel.influence.base import Group, Measure, VariedStep

MEASURES: tuple[Measure, ...] = ("time", "memory", "energy", "price")
INFLUENCE = (
    "influence: the largest over the smallest value over the range of one factor, all else equal; time, "
    "energy and price are those of one example"
)
# The error of a ratio of two forecasts of one network on one machine: four of five ratios of tuning rows are
# within this factor (H200: 15 pairs, 1.16; Ice Lake: 3 pairs, 1.13).
SAME_MACHINE_SPREAD = 1.16
_SAME_MEMORY = 1.02  # the 90th percentile of the error of forecast memory is 1.4 % (docs/accuracy.md)


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeEffect:
    """The influence on one measure: the ratio with its interval, and the values at both ends."""

    ratio: float
    low: float
    high: float
    least: VariedStep
    most: VariedStep

    @property
    def is_clear(self) -> bool:
        """Whether the interval of the ratio excludes 1."""
        return self.low > 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FactorInfluence:
    """One factor with the forecasts over its range."""

    name: str
    group: Group
    steps: tuple[VariedStep, ...]
    learns: bool = False
    left_out: tuple[str, ...] = ()
    note: str = ""

    @property
    def base(self) -> VariedStep | None:
        return next((step for step in self.steps if step.is_base), None)

    def effect(self, measure: Measure = "time") -> RangeEffect | None:
        """None where fewer than two values are known."""
        known = [(step.value(measure), step) for step in self.steps]
        values = [(value, step) for value, step in known if value is not None and value > 0]
        if len(values) < 2:
            return None
        (small, least), (large, most) = (
            min(values, key=lambda pair: pair[0]),
            max(values, key=lambda pair: pair[0]),
        )
        ratio, spread = large / small, _spread(least, most, measure)
        return RangeEffect(
            ratio=ratio, low=max(1.0, ratio / spread), high=ratio * spread, least=least, most=most
        )


def _spread(least: VariedStep, most: VariedStep, measure: Measure) -> float:
    """The factor within which the ratio of two steps should lie, either way.

    Forecasts of one network on one machine share most of their errors. Those of two networks or machines do
    not: their spreads are independent.
    Stated times come from one study, whose runs share their machine.
    """
    if least is most:
        return 1.0
    if measure == "memory":
        return _SAME_MEMORY
    if least.source and most.source:
        return SAME_MACHINE_SPREAD
    if (least.job, least.machine) == (most.job, most.machine):
        own = abs(least.log_spread - most.log_spread)  # different lanes bound the two
        return math.exp(math.hypot(math.log(SAME_MACHINE_SPREAD), own))
    return math.exp(math.hypot(least.log_spread, most.log_spread))


def ranked(factors: Sequence[FactorInfluence], measure: Measure = "time") -> list[FactorInfluence]:
    """The factors with a known effect: clear ones first, each part from large to small, then by name."""
    known = [(factor.effect(measure), factor) for factor in factors]

    def order(pair: tuple[RangeEffect, FactorInfluence]) -> tuple[bool, float, str]:
        effect, factor = pair
        return not effect.is_clear, -effect.ratio, factor.name

    return [factor for _, factor in sorted(((e, f) for e, f in known if e is not None), key=order)]
