"""What a plan is for: fastest, cheapest or smallest, within a deadline or a budget."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from windtunnel import records
from windtunnel.errors import BadInput
from windtunnel.strategy import Precision

Aim = Literal["fastest", "cheapest", "smallest"]
_MOST_BATCHES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanGoal:
    """What is wanted of a plan.

    aim               fastest: least time; cheapest: fewest device-hours; smallest: fewest devices. Default:
                      fastest; cheapest if there is a deadline and no budget
    deadline_seconds  the whole run ends within this time
    budget            the whole run costs at most this; needs a price
    price             what one device costs for one hour, in any currency
    examples, tokens  the length of the run; default: the examples of the job, once
    """

    aim: Aim | None = None
    deadline_seconds: float | None = None
    budget: float | None = None
    price: float | None = None
    examples: float | None = None
    tokens: float | None = None

    def __post_init__(self) -> None:
        records.convert(self.aim, Aim | None, "plan: aim")
        for name in ("deadline_seconds", "budget", "price", "examples", "tokens"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                words = name.removesuffix("_seconds")
                raise BadInput(f"plan: {words} must be above 0, not {value:g}.", hint=f"Give --{words}.")
        if self.budget is not None and self.price is None:
            raise BadInput(
                f"A budget of {self.budget:g} needs a price.",
                hint="Say what one device costs for an hour: --price 2.5",
            )
        if self.examples is not None and self.tokens is not None:
            raise BadInput("The length of the run is given twice.", hint="Give --examples or --tokens.")

    @property
    def wanted(self) -> Aim:
        """The aim, or what the limits imply."""
        if self.aim is not None:
            return self.aim
        return "cheapest" if self.deadline_seconds is not None and self.budget is None else "fastest"

    def in_words(self) -> str:
        limits = [
            *(["within the deadline"] if self.deadline_seconds is not None else []),
            *(["within the budget"] if self.budget is not None else []),
        ]
        return " ".join([self.wanted, " and ".join(limits)]).strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanChoices:
    """What the search may vary in addition to the degrees. Empty: as in the strategy.

    batches     global batches to try
    precisions  number formats to try
    """

    batches: tuple[int, ...] = ()
    precisions: tuple[Precision, ...] = ()

    def __post_init__(self) -> None:
        for batch in self.batches:
            if not isinstance(batch, int) or batch < 1:
                raise BadInput(f"plan: a batch must be a whole number above 0, not {batch!r}.")
        if len(set(self.batches)) > _MOST_BATCHES:
            raise BadInput(
                f"plan: {len(set(self.batches))} batches are too many; at most {_MOST_BATCHES} are tried."
            )
        for precision in self.precisions:
            records.convert(precision, Precision, "plan: precision")
