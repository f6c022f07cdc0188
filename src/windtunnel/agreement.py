"""How well two columns of figures agree, and whether that is well enough. Arithmetic only."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from windtunnel.errors import BadRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """Errors are predicted over measured less one: `median` and `ninetieth` percentile without their sign, `worst` with it.

    `bias` is the median and `lowest` the least of the signed errors.
    """

    rows: int
    median: float
    ninetieth: float
    worst: float
    bias: float
    lowest: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance:
    """The most that median, ninetieth percentile and bias (without its sign) may be, and the least that the lowest error may be."""

    median: float | None = None
    ninetieth: float | None = None
    bias: float | None = None
    lowest: float | None = None

    def __str__(self) -> str:
        told = (
            ("median", self.median),
            ("90th", self.ninetieth),
            ("bias", self.bias),
            ("lowest", self.lowest),
        )
        return ", ".join(f"{name} {value:.0%}" for name, value in told if value is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """The least and the most that a share may be."""

    least: float = 0.0
    most: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.least <= self.most <= 1:
            raise BadRecord(f"least and most must be shares in this order, not {self.least} and {self.most}.")

    def __str__(self) -> str:
        return f"{self.least:.0%} to {self.most:.0%}"


def error_of(predicted: float, measured: float) -> float:
    """0.1 where the prediction is a tenth above what was measured."""
    return predicted / measured - 1


def agree(errors: Sequence[float]) -> Agreement:
    """The errors of at least one row, summed up."""
    sizes = sorted(abs(error) for error in errors)
    return Agreement(
        rows=len(errors),
        median=statistics.median(sizes),
        ninetieth=quantile(sizes, 0.9),
        worst=max(errors, key=abs),
        bias=statistics.median(errors),
        lowest=min(errors),
    )


def quantile(ordered: Sequence[float], share: float) -> float:
    """The value below which `share` of the ordered values lie, on the line between the two nearest."""
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def slowdowns(found: Agreement, asked: Tolerance) -> tuple[str, ...]:
    """In what the agreement is worse than asked; nothing where it is well enough."""
    sizes = (
        ("median", found.median, asked.median),
        ("90th", found.ninetieth, asked.ninetieth),
        ("bias", abs(found.bias), asked.bias),
    )
    over = [name for name, value, most in sizes if most is not None and value > most]
    return tuple(over + (["lowest"] if asked.lowest is not None and found.lowest < asked.lowest else []))
