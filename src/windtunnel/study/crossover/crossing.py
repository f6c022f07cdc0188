"""Two sides over a range of sizes: their times, the places where one overtakes the other, and how that reads."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from windtunnel import records, units

Origin = Literal["measured", "forecast"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Seconds of one step with an interval."""

    seconds: float
    low_seconds: float
    high_seconds: float
    origin: Origin = "forecast"


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """Both sides at one value; a side that failed is named in `errors` and has no timing."""

    value: int
    timings: Mapping[str, Timing] = field(default_factory=dict)
    errors: Mapping[str, str] = field(default_factory=dict)
    origin: Origin = "forecast"

    def ratio(self, between: tuple[str, str]) -> tuple[float, float, float] | None:
        """Seconds of the first over those of the second, with the interval that theirs allow."""
        if any(side not in self.timings for side in between):
            return None
        a, b = (self.timings[side] for side in between)
        middle = math.log(a.seconds / b.seconds)
        up = math.hypot(math.log(a.high_seconds / a.seconds), math.log(b.seconds / b.low_seconds))
        down = math.hypot(math.log(a.seconds / a.low_seconds), math.log(b.high_seconds / b.seconds))
        return math.exp(middle), math.exp(middle - down), math.exp(middle + up)

    def sign(self, between: tuple[str, str]) -> int | None:
        """-1 where the first is surely faster, 1 where the second is, 0 where it cannot be told; None where a side failed."""
        found = self.ratio(between)
        return None if found is None else (1 if found[1] > 1 else -1 if found[2] < 1 else 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossing:
    """`faster` takes over at `at`; the true place lies between `low` and `high`."""

    at: float
    low: float
    high: float
    faster: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossover:
    """What was found. `forecast_at` is what the forecast alone says; None where it sees no crossing, or cannot be made."""

    job: str
    over: str
    low: int
    high: int
    between: tuple[str, str]
    points: tuple[Point, ...]
    crossings: tuple[Crossing, ...]
    origins: Mapping[str, str]
    forecast_at: float | None = None
    cautions: tuple[str, ...] = ()

    @property
    def at(self) -> float | None:
        """The place, where there is just one."""
        return self.crossings[0].at if len(self.crossings) == 1 else None

    def plain(self) -> dict[str, Any]:
        data: dict[str, Any] = records.plain(self)
        ratios = [{"value": p.value, "origin": p.origin, "ratio": p.ratio(self.between)} for p in self.points]
        return {**data, "at": self.at, "sentence": self.sentence(), "ratios": ratios}

    def sentence(self) -> str:
        one, other = self.between
        if not self.crossings:
            return self._never()
        told = [
            f"{c.faster} overtakes at {self.over} = {_whole(c.at)} ({_whole(c.low)} to {_whole(c.high)})"
            for c in self.crossings
        ]
        more = f", {len(told)} crossings" if len(told) > 1 else ""
        return f"{one} or {other} for {self.job}{more}: {'; then '.join(told)}."

    def _never(self) -> str:
        one, other = self.between
        judged = self._judged()
        ratios = [(found[0], p.value) for p in judged if (found := p.ratio(self.between))]
        if not ratios:
            return f"{one} or {other} for {self.job}: nothing could be compared."
        signs = {p.sign(self.between) for p in judged if p.origin == "measured"} - {None, 0}
        if any(p.origin == "measured" for p in judged) and not signs:
            return f"{one} and {other} cannot be told apart from {self.over} = {ratios[0][1]:,} to {ratios[-1][1]:,}."
        ahead = 1 if (1 in signs if signs else ratios[0][0] > 1) else -1
        gains = sorted((ratio**ahead, value) for ratio, value in ratios)
        unsure = [f"{p.value:,}" for p in judged if p.origin == "measured" and p.sign(self.between) == 0]
        doubt = f" It cannot be told at {', '.join(unsure)}." if unsure else ""
        return (
            f"{other if ahead == 1 else one} is faster from {self.over} = {ratios[0][1]:,} to {ratios[-1][1]:,}: "
            f"{units.digits(gains[0][0])} times at {gains[0][1]:,}, {units.digits(gains[-1][0])} times at {gains[-1][1]:,}. They do not cross.{doubt}"
        )

    def _judged(self) -> list[Point]:
        """Measured points where there are any, else forecasts."""
        measured = [p for p in self.points if p.origin == "measured"]
        return measured if any(p.sign(self.between) is not None for p in measured) else list(self.points)

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self) -> list[str]:
        one, other = self.between
        sides = "; ".join(f"{side}: {told}" for side, told in self.origins.items())
        lines = [self.sentence(), f"  {sides}"]
        if self.forecast_at is not None and any(p.origin == "measured" for p in self.points):
            lines.append(f"  by forecast alone: {self.over} = {_whole(self.forecast_at)}")
        lines.append(f"  {self.over:>8}  {one:>20}  {other:>20}  {one} / {other}")
        lines += [self._line(p) for p in sorted(self.points, key=lambda p: (p.value, p.origin))]
        return lines + [f"  caution  {caution}" for caution in self.cautions]

    def _line(self, point: Point) -> str:
        cells = []
        for side in self.between:
            timing = point.timings.get(side)
            cells.append(f"{units.show(timing.seconds, 's')} {timing.origin}" if timing else "failed")
        found = point.ratio(self.between)
        ratio = (
            f"{units.digits(found[0])} ({units.digits(found[1])} to {units.digits(found[2])})"
            if found
            else "; ".join(point.errors.values()).splitlines()[0]
        )
        return f"  {point.value:>8,}  {cells[0]:>20}  {cells[1]:>20}  {ratio}"


def _whole(value: float) -> str:
    return f"{round(value):,}"
