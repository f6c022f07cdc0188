"""The whole run: how many steps it has, how long it takes and what it costs."""

from __future__ import annotations

import math
from dataclasses import dataclass

from windtunnel import units
from windtunnel.errors import BadInput
from windtunnel.planning.goal import PlanGoal

SEQUENCE = "sequence length "  # how `describe_inputs` begins for sequences
_MILLION = 1e6  # examples that are priced where the length of the run is not known


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLength:
    """Examples of the run. `length` is that of a sequence, in tokens. Without `is_known` a million examples
    stand in, so that numbers of devices can be compared."""

    examples: float
    length: int | None = None
    is_known: bool = True

    def in_words(self) -> str:
        tokens = f" ({self.examples * self.length:.3g} tokens)" if self.length and self.is_known else ""
        return f"{units.digits(self.examples)} examples{tokens}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTotals:
    """A whole run with one plan. `cost` is in the currency of the price; None without one."""

    steps: int
    seconds: float
    device_hours: float
    cost: float | None = None


def length_of(goal: PlanGoal, examples: int | None, inputs: str, job: str) -> RunLength:
    """The length of the run: as given, or once the examples of the job."""
    length = int(inputs.removeprefix(SEQUENCE)) if inputs.startswith(SEQUENCE) else None
    if goal.tokens is not None:
        if length is None:
            raise BadInput(
                f"--tokens counts tokens of sequences, and {job} has none"
                f"{f' (its inputs: {inputs})' if inputs else ''}.",
                hint="Give the length of the run with --examples.",
            )
        return RunLength(examples=goal.tokens / length, length=length)
    given = goal.examples if goal.examples is not None else examples
    if given is not None:
        return RunLength(examples=given, length=length)
    for name, value in (("deadline", goal.deadline_seconds), ("budget", goal.budget)):
        if value is not None:
            raise BadInput(
                f"A {name} needs the length of the run, and {job} does not say how many examples it has.",
                hint="Give --examples or, for sequences, --tokens.",
            )
    return RunLength(examples=_MILLION, length=length, is_known=False)


def totals_of(
    run: RunLength, batch: int, step_seconds: float, devices: int, price: float | None
) -> RunTotals:
    """The run with this many steps of this batch. Only the devices that compute are paid for."""
    steps = math.ceil(run.examples / batch)
    hours = steps * step_seconds * devices / units.HOUR_SECONDS
    return RunTotals(
        steps=steps,
        seconds=steps * step_seconds,
        device_hours=hours,
        cost=None if price is None else hours * price,
    )
