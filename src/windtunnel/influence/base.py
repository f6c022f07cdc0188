"""The contract of factors: what each varies, over which range, and what the forecasts of the range say."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from windtunnel.influence.setup import VariedSetup

# The guide's parts: III.A-D choice of the network, III.E-I of the processing unit, IV.B data flow. What it
# does not rank is "execution".
Group = Literal["network", "processing unit", "data flow", "execution"]
Measure = Literal["time", "memory", "energy", "price"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StatedTime:
    """Seconds for an example that a study states, where no forecast can be made."""

    example_seconds: float
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One value of a factor, and how it changes a setup. `stated`: its time is not forecast but stated."""

    label: str
    change: Callable[[VariedSetup], VariedSetup]
    is_base: bool = False
    stated: StatedTime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FactorRange:
    """The values of one factor. `note`: what was assumed, or where stated times come from."""

    name: str
    variants: tuple[Variant, ...] = ()
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CannotVary:
    """Why a factor cannot be varied here."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class InfluenceFactor:
    """One factor. `vary(base)` gives its range around the base, or says why there is none.

    `learns`: the factor also changes how many steps training needs, which no forecast knows.
    """

    name: str
    group: Group
    what: str
    vary: Callable[[VariedSetup], list[FactorRange | CannotVary]]
    learns: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class VariedStep:
    """The forecast with one value of a factor, for one example; energy and price where they are known."""

    label: str
    is_base: bool
    example_seconds: float
    low_seconds: float
    high_seconds: float
    step_seconds: float | None = None
    memory_bytes: float | None = None
    energy_joules: float | None = None
    price: float | None = None
    job: str = ""
    machine: str = ""
    bound_by: str = ""
    source: str = ""

    def value(self, measure: Measure) -> float | None:
        return {
            "time": self.example_seconds,
            "memory": self.memory_bytes,
            "energy": self.energy_joules,
            "price": self.price,
        }[measure]

    @property
    def log_spread(self) -> float:
        """Half of the logarithm of the interval's width."""
        return math.log(self.high_seconds / self.low_seconds) / 2
