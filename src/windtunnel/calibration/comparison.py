"""Compare two profiles of this machine, the one in use and a new one, by what was measured here."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass

# Two measurements of one step differ by this much: a profile with an error larger by less is not worse.
_NOISE = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class StepComparison:
    """A real step as it was measured, and as both profiles forecast it."""

    name: str
    threads: int | None
    measured_seconds: float
    before_seconds: float
    after_seconds: float

    @property
    def before_error(self) -> float:
        return self.before_seconds / self.measured_seconds - 1

    @property
    def after_error(self) -> float:
        return self.after_seconds / self.measured_seconds - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """`before` names the profile in use. `before_row_errors` and `after_row_errors`: forecast over measured
    of rows that no fit has seen, as logarithms; empty if none were held out."""

    before: str
    steps: tuple[StepComparison, ...]
    before_row_errors: tuple[float, ...] = ()
    after_row_errors: tuple[float, ...] = ()

    @property
    def before_step_error(self) -> float:
        return _median_error(step.before_error for step in self.steps)

    @property
    def after_step_error(self) -> float:
        return _median_error(step.after_error for step in self.steps)

    @property
    def before_row_error(self) -> float:
        return _median_error(map(math.expm1, self.before_row_errors))

    @property
    def after_row_error(self) -> float:
        return _median_error(map(math.expm1, self.after_row_errors))

    @property
    def is_better(self) -> bool:
        """Whether the new profile is better on the rows and no worse on the steps."""
        rows_better = not self.after_row_errors or self.after_row_error < self.before_row_error
        return rows_better and self.after_step_error <= self.before_step_error + _NOISE

    def plain(self) -> dict[str, object]:
        """Plain data for JSON."""
        return {
            "before": self.before,
            "is_better": self.is_better,
            "before_step_error": self.before_step_error,
            "after_step_error": self.after_step_error,
            "before_row_error": self.before_row_error,
            "after_row_error": self.after_row_error,
            "held_out_rows": len(self.after_row_errors),
            "steps": [
                {
                    "name": step.name,
                    "threads": step.threads,
                    "measured_seconds": step.measured_seconds,
                    "before_error": step.before_error,
                    "after_error": step.after_error,
                }
                for step in self.steps
            ],
        }

    def lines(self) -> list[str]:
        """As text: every step, then the medians."""
        lines = [f"real steps: measured, forecast by {self.before}, forecast by the new profile"]
        for step in self.steps:
            threads = f", {step.threads} threads" if step.threads else ""
            name = f"{step.name}{threads}"
            lines.append(
                f"  {name:<36}{step.measured_seconds * 1e3:>9.2f} ms"
                f"{step.before_error:>+9.0%}{step.after_error:>+9.0%}"
            )
        lines.append(
            f"  {'median error':<36}{'':>12}{self.before_step_error:>9.0%}{self.after_step_error:>9.0%}"
        )
        if self.after_row_errors:
            title = f"median error of {len(self.after_row_errors):,} ops not fitted"
            lines.append(f"  {title:<36}{'':>12}{self.before_row_error:>9.0%}{self.after_row_error:>9.0%}")
        return lines


def _median_error(errors: Iterable[float]) -> float:
    absolute = [abs(error) for error in errors]
    return statistics.median(absolute) if absolute else 0.0
