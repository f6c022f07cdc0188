"""Learning curves of several forms over one axis of time, as lines of text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from windtunnel import units
from windtunnel.learning.pictures import spark

_WIDTH = 48


@dataclass(frozen=True, slots=True, kw_only=True)
class LearningCurve:
    """A metric on held-out data over seconds, in the order of time."""

    name: str
    metric: str
    points: tuple[tuple[float, float], ...]


def curve_lines(curves: Sequence[LearningCurve]) -> list[str]:
    """One line for each curve on the same scales. A curve ends where its training ended."""
    drawn = [curve for curve in curves if curve.points]
    if not drawn:
        return []
    end = max(curve.points[-1][0] for curve in drawn)
    values = [value for curve in drawn for _, value in curve.points]
    low, high = min(values), max(values)
    lines = [
        f"  {drawn[0].metric} from {low:.4g} to {high:.4g}, against time from 0 to {units.show(end, 's')}"
    ]
    return lines + [f"  {curve.name:9}{_line(curve, end, low, high)}" for curve in drawn]


def _line(curve: LearningCurve, end: float, low: float, high: float) -> str:
    """The value at the end of each column's time, up to where the training ended."""
    columns = max(1, round(_WIDTH * curve.points[-1][0] / end)) if end else 1
    ends = [end * (column + 1) / _WIDTH for column in range(columns - 1)]
    known = [[value for seconds, value in curve.points if seconds <= now] for now in ends]
    values = [each[-1] if each else curve.points[0][1] for each in known] + [curve.points[-1][1]]
    # The ends of the scale are drawn with every line and cut off again, so that all lines share it.
    return spark([low, high, *values], width=_WIDTH + 2)[2:]
