"""Two sides over a range of sizes: their times, where one overtakes the other, and the words for it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from windtunnel import records, units
from windtunnel.displays import Displayed, display, facts, table
from windtunnel.records import Plain

Origin = Literal["measured", "forecast"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTiming:
    """Seconds of one step with an interval."""

    seconds: float
    low_seconds: float
    high_seconds: float
    origin: Origin = "forecast"


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """Both sides at one value; a side that failed is named in `errors` and has no timing."""

    value: int
    timings: Mapping[str, StepTiming] = field(default_factory=dict)
    errors: Mapping[str, str] = field(default_factory=dict)
    origin: Origin = "forecast"

    def ratio(self, between: tuple[str, str]) -> tuple[float, float, float] | None:
        """Seconds of the first over those of the second, with the interval that follows from theirs."""
        if any(side not in self.timings for side in between):
            return None
        a, b = (self.timings[side] for side in between)
        middle = math.log(a.seconds / b.seconds)
        up = math.hypot(math.log(a.high_seconds / a.seconds), math.log(b.seconds / b.low_seconds))
        down = math.hypot(math.log(a.seconds / a.low_seconds), math.log(b.high_seconds / b.seconds))
        return math.exp(middle), math.exp(middle - down), math.exp(middle + up)

    def sign(self, between: tuple[str, str]) -> int | None:
        """-1 if the first is clearly faster, 1 if the second is, 0 for neither; None if a side failed."""
        ratio = self.ratio(between)
        return None if ratio is None else (1 if ratio[1] > 1 else -1 if ratio[2] < 1 else 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossing:
    """`faster` is faster from `at` on; the true value is between `low` and `high`."""

    at: float
    low: float
    high: float
    faster: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossover(Displayed):
    """Where one of two sides overtakes the other, over a range of one setting.

    `points` have the times of both sides, `crossings` where they cross with intervals. `forecast_at` is
    the crossing by forecast alone, None where there is none.
    """

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
        """The crossing, where there is exactly one."""
        return self.crossings[0].at if len(self.crossings) == 1 else None

    def plain(self) -> Plain:
        data: Plain = records.plain(self)
        ratios = [{"value": p.value, "origin": p.origin, "ratio": p.ratio(self.between)} for p in self.points]
        return {**data, "at": self.at, "sentence": self.sentence(), "ratios": ratios}

    def sentence(self) -> str:
        one, other = self.between
        if not self.crossings:
            return self._no_crossing()
        parts = [
            f"{c.faster} overtakes at {self.over} = {_whole(c.at)} ({_whole(c.low)} to {_whole(c.high)})"
            for c in self.crossings
        ]
        count = f", {len(parts)} crossings" if len(parts) > 1 else ""
        return f"{one} or {other} for {self.job}{count}: {'; then '.join(parts)}."

    def _no_crossing(self) -> str:
        one, other = self.between
        points = self._compared_points()
        ratios = [(ratio[0], p.value) for p in points if (ratio := p.ratio(self.between))]
        if not ratios:
            return f"{one} or {other} for {self.job}: nothing could be compared."
        whole = f"from {self.over} = {ratios[0][1]:,} to {ratios[-1][1]:,}"
        measured = [p for p in points if p.origin == "measured"]
        signs = {p.sign(self.between) for p in measured} - {None, 0}
        if measured and not signs:
            return f"{one} and {other} show no clear difference {whole}."
        ahead = 1 if (1 in signs if signs else ratios[0][0] > 1) else -1
        gains = sorted((ratio**ahead, value) for ratio, value in ratios)
        least, most = (f"{units.digits(gain)} times at {value:,}" for gain, value in (gains[0], gains[-1]))
        unclear = ", ".join(f"{p.value:,}" for p in measured if p.sign(self.between) == 0)
        doubt = f" There is no clear difference at {unclear}." if unclear else ""
        faster = other if ahead == 1 else one
        return f"{faster} is faster {whole}: {least}, {most}. They do not cross.{doubt}"

    def _compared_points(self) -> list[Point]:
        """The measured points if there are any, otherwise the forecasts."""
        measured = [p for p in self.points if p.origin == "measured"]
        return measured if any(p.sign(self.between) is not None for p in measured) else list(self.points)

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self) -> list[str]:
        one, other = self.between
        sides = "; ".join(f"{side}: {origin}" for side, origin in self.origins.items())
        lines = [self.sentence(), f"  {sides}"]
        if self.forecast_at is not None and any(p.origin == "measured" for p in self.points):
            lines.append(f"  by forecast alone: {self.over} = {_whole(self.forecast_at)}")
        lines.append(f"  {self.over:>8}  {one:>20}  {other:>20}  {one} / {other}")
        lines += [self._line(p) for p in sorted(self.points, key=lambda p: (p.value, p.origin))]
        return lines + [f"  caution  {caution}" for caution in self.cautions]

    def _repr_html_(self) -> str:
        one, other = self.between
        points = sorted(self.points, key=lambda p: (p.value, p.origin))
        head = (self.over, one, other, f"{one} / {other}")
        sides = [*self.origins.items(), *(("caution", caution) for caution in self.cautions)]
        return display(self.sentence(), table(head, [self._cells(point) for point in points]), facts(sides))

    def _line(self, point: Point) -> str:
        value, one, other, last = self._cells(point)
        return f"  {value:>8}  {one:>20}  {other:>20}  {last}"

    def _cells(self, point: Point) -> tuple[str, str, str, str]:
        """The value, both sides' times and their ratio."""
        cells = []
        for side in self.between:
            timing = point.timings.get(side)
            cells.append(f"{units.show(timing.seconds, 's')} {timing.origin}" if timing else "failed")
        ratio = point.ratio(self.between)
        if ratio:
            middle, low, high = map(units.digits, ratio)
            last = f"{middle} ({low} to {high})"
        else:
            last = "; ".join(point.errors.values()).splitlines()[0]
        return f"{point.value:,}", cells[0], cells[1], last


def _whole(value: float) -> str:
    return f"{round(value):,}"
