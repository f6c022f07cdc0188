"""Where one device or framework overtakes another: first by forecast, then by a few measurements near there.

`find` depends on neither clocks nor frameworks: it calls two functions that return seconds. A side that
cannot be measured here is forecast, and marked so.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping

from windtunnel.errors import BadInput, Unavailable, WindtunnelError
from windtunnel.study.crossover.crossing import Crossing, Crossover, Point, StepTiming

ForecastSide = Callable[[str, int], StepTiming]
MeasureSide = Callable[[str, int, int], StepTiming]
GRID = 7
_NARROW_FORECAST = 1.05  # a bracket this narrow needs no further forecast
_NARROW = 1.2  # a bracket this narrow needs no further measurement
_MOST_VALUES = 14  # values of the setting that are measured
_MOST_REPEATS = 3  # measurements of one value while neither side is clearly faster


def find(
    job: str,
    over: tuple[str, int, int],
    between: tuple[str, str],
    *,
    forecast: ForecastSide,
    measure: MeasureSide | None = None,
    is_time_up: Callable[[], bool] = lambda: False,
) -> Crossover:
    """The value in `over` (name, low, high) where one of `between` overtakes the other.

    `forecast(side, value)` and `measure(side, value, again)` return timings, or raise an error of ours;
    Unavailable means that a side cannot be forecast, or measured here, at all. `again` counts earlier
    measurements of the value.
    """
    _check(over, between)
    name, low, high = over
    search = _Search(low, high, between, forecast, measure, is_time_up)
    search.by_forecast()
    expected = search.crossings()
    if measure is not None:
        search.by_measurement(expected)
    forecast_at = expected[0].at if len(expected) == 1 else None
    return Crossover(
        job=job,
        over=name,
        low=low,
        high=high,
        between=between,
        points=search.table(),
        crossings=tuple(search.crossings()),
        origins=search.origins(),
        forecast_at=forecast_at,
        cautions=tuple(search.cautions),
    )


def _check(over: tuple[str, int, int], between: tuple[str, str]) -> None:
    name, low, high = over
    if not (0 < low < high):
        raise BadInput(
            f"{name} must go from a number above 0 to a larger one, not from {low} to {high}.",
            hint=f"For example {name}=10..5000",
        )
    if between[0] == between[1]:
        raise BadInput(
            f"{between[0]} cannot overtake itself.",
            hint="Name two devices or frameworks, for example --between cpu,cuda",
        )


class _Search:
    """The points so far, and the choice of the next one."""

    def __init__(
        self,
        low: int,
        high: int,
        between: tuple[str, str],
        forecast: ForecastSide,
        measure: MeasureSide | None,
        is_time_up: Callable[[], bool],
    ) -> None:
        self.low, self.high, self.between = low, high, between
        self.forecast, self.measure, self.is_time_up = forecast, measure, is_time_up
        self.forecasts: dict[int, Point] = {}
        self.measured: dict[int, Point] = {}
        self.counts: dict[int, int] = {}
        self.absent: dict[str, str] = {}  # sides that cannot be measured here, and why
        self.no_forecast = ""  # why a side cannot be forecast at all
        self.cautions: list[str] = []

    # By forecast: a coarse grid finds several crossings, bisection narrows each.

    def by_forecast(self) -> None:
        for value in _grid(self.low, self.high, GRID):
            self._forecast(value)
            if self.no_forecast:
                self._caution(f"no forecast: {self.no_forecast}")
                self.forecasts.clear()
                return
        for a, b in self._brackets(self.forecasts, by_number=True):
            while b / a > _NARROW_FORECAST and b - a > 1:
                middle = _middle(a, b)
                side = self._faster(self._forecast(middle))
                if side is None:
                    break
                a, b = (middle, b) if side == self._faster(self.forecasts[a]) else (a, middle)

    def _forecast(self, value: int) -> Point:
        timings, errors = {}, {}
        for side in self.between:
            try:
                timings[side] = self.forecast(side, value)
            except Unavailable as error:
                self.no_forecast = error.message
                break
            except WindtunnelError as error:
                errors[side] = error.message
        self.forecasts[value] = Point(value=value, timings=timings, errors=errors)
        return self.forecasts[value]

    # By measurement: near each expected crossing, then outwards until it is bracketed, then inwards.

    def by_measurement(self, expected: list[Crossing]) -> None:
        for crossing in expected:
            start = min(self.high, max(self.low, round(crossing.at)))
            self._measure(start)
            self._bracket(start, crossing)
        if not self._brackets(self.measured):
            # The forecast was wrong, or had no crossing: search the whole range.
            for value in (self.low, self.high, *_grid(self.low, self.high, 5)):
                self._measure(value)
        self._bisect()
        self._settle()
        if self.is_time_up():
            self._caution("the time limit came before the interval was as narrow as it could be")

    def _bracket(self, start: int, crossing: Crossing) -> None:
        """Move away from the start, twice as far each time, to a value at which the other side is faster.

        If neither side is faster at the start, measure the ends of the forecast's interval.
        """
        sign = self._sign(start)
        if not sign:
            self._measure(round(crossing.high))
            self._measure(round(crossing.low))
            return
        direction = -sign * self._rising(start)
        for factor in (1.5 * 2**i for i in range(40)):
            value = min(self.high, max(self.low, round(start * factor**direction)))
            if self._stop():
                return
            self._measure(value)
            if value in (self.low, self.high) or self._sign(value) == -sign:
                return

    def _rising(self, start: int) -> int:
        """1 where the second side gains with larger values near the start, by forecast."""
        nearest = sorted(self.forecasts.values(), key=lambda p: abs(math.log(p.value / start)))[:6]
        ratios = [(p.value, ratio[0]) for p in nearest if (ratio := p.ratio(self.between))]
        if len(ratios) < 2:
            return 1
        first, last = min(ratios), max(ratios)
        return 1 if last[1] >= first[1] else -1

    def _bisect(self) -> None:
        for a, b in self._brackets(self.measured):
            while b / a > _NARROW and b - a > 1 and not self._stop():
                middle, sign = self._try_inside(a, b)
                if not sign:
                    if sign == 0 and middle / a > math.sqrt(_NARROW):
                        # The crossing is near: measure on both sides to narrow the interval.
                        self._try_inside(a, middle)
                        self._try_inside(middle, b)
                    break
                a, b = (middle, b) if sign == self._sign(a) else (a, middle)

    def _try_inside(self, a: int, b: int) -> tuple[int, int | None]:
        """The middle of a bracket, or a value next to it if the middle fails, and which side is faster."""
        middle = _middle(a, b)
        for value in (middle, _middle(a, middle), _middle(middle, b)):
            if a < value < b and not self._stop():
                self._measure(value)
                if (sign := self._sign(value)) is not None:
                    return value, sign
        return middle, None

    def _settle(self) -> None:
        """Measure again if neither side is clearly faster, or if a value contradicts its neighbours."""
        for value in list(self.measured):
            most = 1 if self.absent else _MOST_REPEATS  # repeating a forecast does not improve it
            while (
                not self.is_time_up()
                and self.counts[value] < most
                and (self._sign(value) == 0 or self._contradicts(value))
            ):
                self._measure(value, once_more=True)

    def _contradicts(self, value: int) -> bool:
        clear = sorted(v for v in self.measured if self._sign(v))
        if value not in clear:
            return False
        place = clear.index(value)
        beside = [self._sign(clear[i]) for i in (place - 1, place + 1) if 0 <= i < len(clear)]
        return len(beside) == 2 and all(sign != self._sign(value) for sign in beside)

    def _stop(self) -> bool:
        return len(self.measured) >= _MOST_VALUES or self.is_time_up()

    def _measure(self, value: int, once_more: bool = False) -> None:
        if (value in self.measured and not once_more) or (self.is_time_up() and len(self.measured) >= 2):
            return
        again = self.counts.get(value, 0)
        timings: dict[str, StepTiming] = {}
        errors: dict[str, str] = {}
        for side in self.between:
            try:
                timings[side] = self._time(side, value, again)
            except WindtunnelError as error:
                errors[side] = error.message
        if len(self.absent) == 2:
            return
        self.counts[value] = again + 1
        earlier = self.measured.get(value)
        if earlier is not None and not errors:
            timings = {side: _combine(earlier.timings.get(side), timings[side]) for side in self.between}
        self.measured[value] = Point(value=value, timings=timings, errors=errors, origin="measured")
        for side, message in errors.items():
            self._caution(f"{side} failed at {value:,}: {message.splitlines()[0]}")

    def _time(self, side: str, value: int, again: int) -> StepTiming:
        """The measured time if it can be measured, otherwise the forecast."""
        assert self.measure is not None
        if side not in self.absent:
            try:
                return self.measure(side, value, again)
            except Unavailable as error:
                self.absent[side] = error.message
        return self.forecast(side, value)

    # What follows from the points.

    def _sign(self, value: int) -> int | None:
        return self.measured[value].sign(self.between) if value in self.measured else None

    def _faster(self, point: Point) -> int | None:
        """Which side is faster by the numbers alone.

        The interval of a forecast is about its own error, not about where its two curves cross.
        """
        ratio = point.ratio(self.between)
        return None if ratio is None else (1 if ratio[0] > 1 else -1)

    def _brackets(self, points: Mapping[int, Point], by_number: bool = False) -> list[tuple[int, int]]:
        """Pairs of values between which the faster side changes; values with no clear winner lie inside."""
        signs = [
            (value, self._faster(points[value]) if by_number else points[value].sign(self.between))
            for value in sorted(points)
        ]
        sure = [(value, sign) for value, sign in signs if sign]
        return [(a, b) for (a, one), (b, other) in itertools.pairwise(sure) if one != other]

    def crossings(self) -> list[Crossing]:
        """By measurement; by forecast where nothing was measured, or too little of the range."""
        if not any(p.sign(self.between) is not None for p in self.measured.values()):
            return self._crossings_of(self.forecasts, self._brackets(self.forecasts, by_number=True))
        measured = self._crossings_of(self.measured, self._brackets_to_the_ends())
        if measured or {self.low, self.high} <= self.measured.keys():
            return measured
        expected = self._crossings_of(self.forecasts, self._brackets(self.forecasts, by_number=True))
        if expected:
            self._caution("too few values were measured; the crossing is by forecast")
        return expected

    def _crossings_of(self, points: Mapping[int, Point], brackets: list[tuple[int, int]]) -> list[Crossing]:
        crossings = []
        for a, b in brackets:
            inside = [v for v in sorted(points) if a <= v <= b and points[v].ratio(self.between) is not None]
            faster = self.between[1] if self._faster(points[b]) == 1 else self.between[0]
            low, high = self._reach(a, b) if points is self.forecasts else (float(a), float(b))
            crossings.append(
                Crossing(
                    at=_interpolate([(v, self._log(points[v])) for v in inside]),
                    low=low,
                    high=high,
                    faster=faster,
                )
            )
        return crossings

    def _brackets_to_the_ends(self) -> list[tuple[int, int]]:
        """As brackets, but the first and last value count by their numbers where they have no clear winner.

        The interval of a crossing then reaches to the end of the range.
        """
        compared = [v for v in sorted(self.measured) if self._sign(v) is not None]
        sure = [v for v in compared if self._sign(v)]
        edges = {v for v in (compared[0], compared[-1]) if v not in sure} if compared else set()
        signs = [(v, self._faster(self.measured[v])) for v in sorted({*sure, *edges})]
        return [(a, b) for (a, one), (b, other) in itertools.pairwise(signs) if one != other]

    def _reach(self, a: int, b: int) -> tuple[float, float]:
        """For forecasts: extend the bracket to the next values at which the intervals also show which side is
        faster."""
        below = [
            v
            for v, p in self.forecasts.items()
            if v <= a and p.sign(self.between) == self._faster(self.forecasts[a])
        ]
        above = [
            v
            for v, p in self.forecasts.items()
            if v >= b and p.sign(self.between) == self._faster(self.forecasts[b])
        ]
        return float(max(below, default=self.low)), float(min(above, default=self.high))

    def _log(self, point: Point) -> float:
        ratio = point.ratio(self.between)
        assert ratio is not None
        return math.log(ratio[0])

    def table(self) -> tuple[Point, ...]:
        return tuple(
            sorted([*self.forecasts.values(), *self.measured.values()], key=lambda p: (p.value, p.origin))
        )

    def origins(self) -> dict[str, str]:
        origins = {}
        for side in self.between:
            kinds = {p.timings[side].origin for p in self.measured.values() if side in p.timings}
            reason = f", not measured: {self.absent[side]}" if side in self.absent else ""
            origins[side] = "measured" if "measured" in kinds else f"forecast{reason}"
        return origins

    def _caution(self, text: str) -> None:
        if text not in self.cautions:
            self.cautions.append(text)


def _combine(earlier: StepTiming | None, later: StepTiming) -> StepTiming:
    """Two measurements of one value: the middle of both, and an interval that their difference widens."""
    if earlier is None:
        return later
    seconds = math.sqrt(earlier.seconds * later.seconds)
    apart = abs(math.log(earlier.seconds / later.seconds)) / 2
    up = math.hypot(
        apart,
        math.log(earlier.high_seconds / earlier.seconds) / 2,
        math.log(later.high_seconds / later.seconds) / 2,
    )
    down = math.hypot(
        apart,
        math.log(earlier.seconds / earlier.low_seconds) / 2,
        math.log(later.seconds / later.low_seconds) / 2,
    )
    return StepTiming(
        seconds=seconds,
        low_seconds=seconds * math.exp(-down),
        high_seconds=seconds * math.exp(up),
        origin=later.origin,
    )


def _interpolate(points: list[tuple[int, float]]) -> float:
    """The zero of the logarithm of the ratio, on straight lines between the points in logarithms."""
    (x0, y0), (x1, y1) = next(pair for pair in itertools.pairwise(points) if pair[0][1] * pair[1][1] <= 0)
    share = y0 / (y0 - y1) if y0 != y1 else 0.5
    return math.exp(math.log(x0) + share * (math.log(x1) - math.log(x0)))


def _grid(low: int, high: int, count: int) -> list[int]:
    """Whole numbers at equal steps of their logarithm, both ends included."""
    step = math.log(high / low) / (count - 1)
    return sorted({min(high, max(low, round(low * math.exp(i * step)))) for i in range(count)})


def _middle(a: int, b: int) -> int:
    return min(b - 1, max(a + 1, round(math.sqrt(a * b)))) if b - a > 1 else a
