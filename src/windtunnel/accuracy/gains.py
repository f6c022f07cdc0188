"""The gain of torch.compile: each compiled row with the eager row of the same case."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from windtunnel.agreement import error_of

if TYPE_CHECKING:
    from windtunnel.accuracy.validation import Pair

GainQuantity = Literal["step", "gain", "memory"]
GAIN_QUANTITIES: tuple[GainQuantity, ...] = ("step", "gain", "memory")


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """A compiled row and its eager row. The gain is eager seconds over compiled seconds of a step.

    The baseline says that compiling changes nothing: it takes the forecast of the eager row.
    """

    eager: Pair
    compiled: Pair

    def predicted(self, quantity: GainQuantity) -> float | None:
        if quantity == "gain":
            return _ratio(self.eager.predicted("step"), self.compiled.predicted("step"))
        return self.compiled.predicted(quantity)

    def measured(self, quantity: GainQuantity) -> float | None:
        if quantity == "gain":
            return _ratio(self.eager.row.step_seconds, self.compiled.row.step_seconds)
        return self.compiled.row.measured(quantity)

    def error(self, quantity: GainQuantity) -> float | None:
        return _error(self.predicted(quantity), self.measured(quantity))

    def baseline_error(self, quantity: GainQuantity) -> float | None:
        """The error of "no gain" on this row, if the forecast can be judged on it too."""
        if self.error(quantity) is None:
            return None
        unchanged = 1.0 if quantity == "gain" else self.eager.predicted(quantity)
        return _error(unchanged, self.measured(quantity))

    def plain(self) -> dict[str, object]:
        """Plain data for JSON."""
        return {
            "case": str(self.compiled.row.case),
            **{
                quantity: {
                    "predicted": self.predicted(quantity),
                    "measured": self.measured(quantity),
                    "error": self.error(quantity),
                    "no_gain_error": self.baseline_error(quantity),
                }
                for quantity in GAIN_QUANTITIES
            },
        }


def find_gains(pairs: Sequence[Pair]) -> list[Gain]:
    """Every compiled row whose case was also run eagerly."""
    eager = {pair.row.case.key: pair for pair in pairs if pair.row.case.execution == "eager"}
    gains = []
    for pair in pairs:
        if pair.row.case.execution == "compiled":
            partner = eager.get(dataclasses.replace(pair.row.case, execution="eager").key)
            if partner is not None:
                gains.append(Gain(eager=partner, compiled=pair))
    return gains


def _ratio(above: float | None, below: float | None) -> float | None:
    return None if above is None or below is None else above / below


def _error(predicted: float | None, measured: float | None) -> float | None:
    return None if predicted is None or measured is None else error_of(predicted, measured)
