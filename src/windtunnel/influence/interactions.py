"""Two factors together: does their joint effect equal the product of both alone?"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from windtunnel import units
from windtunnel.errors import WindtunnelError
from windtunnel.influence.base import Variant
from windtunnel.influence.setup import VariedForecasts, VariedSetup, why_not

TOP = 3
_INDEPENDENT = 1.1  # a joint effect within this factor of the product: half of the error of a ratio


@dataclass(frozen=True, slots=True, kw_only=True)
class StrongFactor:
    """A factor with the value whose effect is strongest."""

    name: str
    variant: Variant


@dataclass(frozen=True, slots=True, kw_only=True)
class Interaction:
    """A 2 x 2: seconds for an example at the base, with each change alone and with both.

    `reason`: why both cannot be had together.
    """

    first: str
    second: str
    first_label: str
    second_label: str
    base_seconds: float
    first_seconds: float
    second_seconds: float
    both_seconds: float | None = None
    reason: str = ""

    @property
    def product_seconds(self) -> float:
        """What both together would take if each had the effect that it has alone."""
        return self.first_seconds * self.second_seconds / self.base_seconds

    @property
    def ratio(self) -> float | None:
        """Both together over the product; 1 if the factors do not interact."""
        return None if self.both_seconds is None else self.both_seconds / self.product_seconds

    def reading(self) -> str:
        """One line that says what the 2 x 2 means."""
        if self.both_seconds is None or self.ratio is None:
            return f"not possible together: {self.reason}"
        both, product = self.both_seconds / self.base_seconds, self.product_seconds / self.base_seconds
        numbers = f"together x{units.digits(both)}, product of both alone x{units.digits(product)}"
        if 1 / _INDEPENDENT <= self.ratio <= _INDEPENDENT:
            return f"{numbers}: they do not interact"
        more = self.ratio > 1
        if product >= 1:
            return f"{numbers}: together they cost {'more' if more else 'less'} than the product"
        return f"{numbers}: together they gain {'less' if more else 'more'} than the product"


def interact(
    base: VariedSetup, strong: Sequence[StrongFactor], forecaster: VariedForecasts
) -> tuple[Interaction, ...]:
    """Each pair of factors, both at their strongest value."""
    return tuple(
        _pair(base, first, second, forecaster) for first, second in itertools.combinations(strong, 2)
    )


def _pair(
    base: VariedSetup, first: StrongFactor, second: StrongFactor, forecaster: VariedForecasts
) -> Interaction:
    def seconds(setup: VariedSetup) -> float:
        forecast = forecaster.forecast(setup)
        return forecast.step_seconds / forecast.batch

    found = Interaction(
        first=first.name,
        second=second.name,
        first_label=first.variant.label,
        second_label=second.variant.label,
        base_seconds=seconds(base),
        first_seconds=seconds(first.variant.change(base)),
        second_seconds=seconds(second.variant.change(base)),
    )
    return _with_both(found, base, (first.variant, second.variant), forecaster)


def _with_both(
    found: Interaction, base: VariedSetup, pair: tuple[Variant, Variant], forecaster: VariedForecasts
) -> Interaction:
    import dataclasses

    try:
        both = forecaster.forecast(pair[1].change(pair[0].change(base)))
    except WindtunnelError as error:
        return dataclasses.replace(found, reason=why_not(error))
    if both.memory.fits is False:
        return dataclasses.replace(found, reason="it does not fit the memory")
    return dataclasses.replace(found, both_seconds=both.step_seconds / both.batch)
