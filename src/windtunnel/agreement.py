"""Compare predicted with measured values: errors, their summary, and limits on them. Arithmetic only."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from windtunnel.errors import BadRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """A summary of relative errors, predicted / measured - 1.

    `median` and `ninetieth` percentile are of absolute errors. `worst` (the largest in absolute value),
    `bias` (the median) and `lowest` (the minimum) are signed.
    """

    rows: int
    median: float
    ninetieth: float
    worst: float
    bias: float
    lowest: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance:
    """Upper limits on median, ninetieth percentile, worst error and absolute bias; a lower limit on the
    lowest error."""

    median: float | None = None
    ninetieth: float | None = None
    worst: float | None = None
    bias: float | None = None
    lowest: float | None = None

    def __str__(self) -> str:
        limits = (
            ("median", self.median),
            ("90th", self.ninetieth),
            ("worst", self.worst),
            ("bias", self.bias),
            ("lowest", self.lowest),
        )
        return ", ".join(f"{name} {value:.0%}" for name, value in limits if value is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareRange:
    """The smallest and the largest allowed share."""

    least: float = 0.0
    most: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.least <= self.most <= 1:
            raise BadRecord(
                f"least and most must be from 0 to 1 and in this order, not {self.least} and {self.most}."
            )

    def __str__(self) -> str:
        return f"{self.least:.0%} to {self.most:.0%}"


def error_of(predicted: float, measured: float) -> float:
    """The relative error: 0.1 if the prediction is 10% above the measurement."""
    return predicted / measured - 1


def agree(errors: Sequence[float]) -> Agreement:
    """Summarise the relative errors of at least one row."""
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
    """The value below which `share` of the sorted values lie, interpolated linearly."""
    position = share * (len(ordered) - 1)
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (position - below) * (ordered[above] - ordered[below])


def exceeded(agreement: Agreement, tolerance: Tolerance) -> tuple[str, ...]:
    """Names of the limits that the agreement breaks; empty if it breaks none."""
    limits = (
        ("median", agreement.median, tolerance.median),
        ("90th", agreement.ninetieth, tolerance.ninetieth),
        ("worst", abs(agreement.worst), tolerance.worst),
        ("bias", abs(agreement.bias), tolerance.bias),
    )
    over = [name for name, value, most in limits if most is not None and value > most]
    if tolerance.lowest is not None and agreement.lowest < tolerance.lowest:
        over.append("lowest")
    return tuple(over)
