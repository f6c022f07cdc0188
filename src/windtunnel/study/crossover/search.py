"""Search for a crossover of one job: forecasts first, then measurements near it."""

from __future__ import annotations

import time

from windtunnel import units
from windtunnel.errors import BadInput
from windtunnel.measurement.store import Store
from windtunnel.strategy import Strategy
from windtunnel.study.crossover.crossing import Crossover
from windtunnel.study.crossover.crossover import find
from windtunnel.study.crossover.sides import Sides


def crossover(
    job: str,
    over: str,
    between: str = "cpu,cuda",
    *,
    strategy: Strategy | None = None,
    budget_seconds: float = 600.0,
    **settings: object,
) -> Crossover:
    """Find the value of a setting at which one of two sides overtakes the other.

    `over` is the setting with its range ("n_rec=10..5000"). `between` names two of: cpu, cuda, a machine, or
    framework:variant. Other settings of the job are keywords. A budget of 0 seconds measures nothing.
    """
    name, low, high = parse_over(over)
    sides = Sides(
        job=job,
        over=name,
        between=parse_between(between),
        settings=settings,
        strategy=strategy or Strategy(),
        store=Store() if budget_seconds > 0 else None,
    )
    return search(sides, low, high, budget_seconds)


def search(sides: Sides, low: int, high: int, budget_seconds: float) -> Crossover:
    """Search between `low` and `high`; no further value is measured after this many seconds."""
    sides.check(low)
    sides.check(high)
    end = time.monotonic() + budget_seconds
    return find(
        sides.job,
        (sides.over, low, high),
        sides.between,
        forecast=sides.forecast,
        measure=sides.measure if budget_seconds > 0 else None,
        is_time_up=lambda: time.monotonic() > end,
    )


def parse_over(text: str) -> tuple[str, int, int]:
    """The setting and the two ends of its range in "n_rec=10..5000"."""
    name, _, values = text.partition("=")
    low, high = units.parse_range(values) or (None, None)
    if not name or low is None or high is None or not (low.is_integer() and high.is_integer()):
        raise BadInput(
            f"{text!r} is not a setting with a range of whole numbers.",
            hint="Write it like --over n_rec=10..5000",
        )
    return name, int(low), int(high)


def parse_between(text: str) -> tuple[str, str]:
    """The two sides in "cpu,cuda"."""
    sides = [word.strip() for word in text.split(",") if word.strip()]
    if len(sides) != 2:
        raise BadInput(
            f"{text!r} does not name two sides.",
            hint="Write it like --between cpu,cuda or --between torch:loop,jax:scan",
        )
    return sides[0], sides[1]
