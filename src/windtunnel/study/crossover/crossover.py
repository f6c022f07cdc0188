"""Where one device, or one framework, overtakes another: first by forecast, then by a few measurements near the place.

`find` knows neither clocks nor frameworks: it asks two functions for seconds. A side that cannot be measured here is forecast, and said
to be.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping

from windtunnel.errors import BadInput, Unavailable, WindtunnelError
from windtunnel.study.crossover.crossing import Crossing, Crossover, Point, Timing

Ask = Callable[[str, int], Timing]
Again = Callable[[str, int, int], Timing]
GRID = 7
_CLOSE = 1.05  # a bracket this narrow is found by forecast
_NEAR = 1.2  # a bracket this narrow is found by measurement
_MOST = 14  # places that are measured at most
_AGAIN = 3  # times a place is measured at most, while it cannot be told who is faster there


def find(
    job: str,
    over: tuple[str, int, int],
    between: tuple[str, str],
    *,
    forecast: Ask,
    measure: Again | None = None,
    spent: Callable[[], bool] = lambda: False,
) -> Crossover:
    """The place in `over` (name, low, high) where one of `between` overtakes the other.

    `forecast(side, value)` and `measure(side, value, again)` give timings, or raise an error of ours; Unavailable means that a side
    cannot be forecast, or measured here, at all. `again` counts how often a place was measured before. `spent` says that time is up.
    """
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
    search = _Search(low, high, between, forecast, measure, spent)
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


class _Search:
    """The points so far, and which to ask for next."""

    def __init__(
        self,
        low: int,
        high: int,
        between: tuple[str, str],
        forecast: Ask,
        measure: Again | None,
        spent: Callable[[], bool],
    ) -> None:
        self.low, self.high, self.between = low, high, between
        self.forecast, self.measure, self.spent = forecast, measure, spent
        self.forecasts: dict[int, Point] = {}
        self.measured: dict[int, Point] = {}
        self.counts: dict[int, int] = {}
        self.absent: dict[str, str] = {}  # sides that cannot be measured here, and why
        self.unforeseen = ""  # why a side cannot be forecast at all
        self.cautions: list[str] = []

    # By forecast: a coarse grid sees several crossings, bisection narrows each.

    def by_forecast(self) -> None:
        for value in _grid(self.low, self.high, GRID):
            self._forecast(value)
            if self.unforeseen:
                self._caution(f"no forecast: {self.unforeseen}")
                self.forecasts.clear()
                return
        for a, b in self._brackets(self.forecasts, told=True):
            while b / a > _CLOSE and b - a > 1:
                middle = _middle(a, b)
                if not self._forecast(middle).timings or (side := self._told(self.forecasts[middle])) is None:
                    break
                a, b = (middle, b) if side == self._told(self.forecasts[a]) else (a, middle)

    def _forecast(self, value: int) -> Point:
        timings, errors = {}, {}
        for side in self.between:
            try:
                timings[side] = self.forecast(side, value)
            except Unavailable as error:
                self.unforeseen = error.message
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
        if not self._brackets(
            self.measured
        ):  # the forecast was wrong, or saw nothing: look over the whole range
            for value in (self.low, self.high, *_grid(self.low, self.high, 5)):
                self._measure(value)
        self._bisect()
        self._settle()
        if self.spent():
            self._caution("time was up before the place was as narrow as it could be")

    def _bracket(self, start: int, crossing: Crossing) -> None:
        """Away from the start, by twice as much each time, to where the other side wins. Where the start cannot tell: out to where the
        forecast is sure."""
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
        around = sorted(self.forecasts.values(), key=lambda p: abs(math.log(p.value / start)))[:6]
        told = [(p.value, found[0]) for p in around if (found := p.ratio(self.between))]
        if len(told) < 2:
            return 1
        first, last = min(told), max(told)
        return 1 if last[1] >= first[1] else -1

    def _bisect(self) -> None:
        for a, b in self._brackets(self.measured):
            while b / a > _NEAR and b - a > 1 and not self._stop():
                middle, sign = self._try_inside(a, b)
                if not sign:
                    if sign == 0 and middle / a > math.sqrt(
                        _NEAR
                    ):  # the place is met; how near to it can it still be told?
                        self._try_inside(a, middle)
                        self._try_inside(middle, b)
                    break
                a, b = (middle, b) if sign == self._sign(a) else (a, middle)

    def _try_inside(self, a: int, b: int) -> tuple[int, int | None]:
        """The middle of a bracket and who is faster there; a place beside it where that one fails."""
        middle = _middle(a, b)
        for value in (middle, _middle(a, middle), _middle(middle, b)):
            if a < value < b and not self._stop():
                self._measure(value)
                if (sign := self._sign(value)) is not None:
                    return value, sign
        return middle, None

    def _settle(self) -> None:
        """Measure again where it cannot be told who is faster, and where a point contradicts both its neighbours."""
        for value in list(self.measured):
            most = 1 if self.absent else _AGAIN  # a forecast does not get better by asking again
            while (
                not self.spent()
                and self.counts[value] < most
                and (self._sign(value) == 0 or self._contradicts(value))
            ):
                self._measure(value, once_more=True)

    def _contradicts(self, value: int) -> bool:
        told = sorted(v for v in self.measured if self._sign(v))
        if value not in told:
            return False
        place = told.index(value)
        around = [self._sign(told[i]) for i in (place - 1, place + 1) if 0 <= i < len(told)]
        return len(around) == 2 and all(sign != self._sign(value) for sign in around)

    def _stop(self) -> bool:
        return len(self.measured) >= _MOST or self.spent()

    def _measure(self, value: int, once_more: bool = False) -> None:
        if (value in self.measured and not once_more) or (self.spent() and len(self.measured) >= 2):
            return
        again = self.counts.get(value, 0)
        timings: dict[str, Timing] = {}
        errors: dict[str, str] = {}
        for side in self.between:
            self._ask(side, value, again, timings, errors)
        if len(self.absent) == 2:
            return
        self.counts[value] = again + 1
        earlier = self.measured.get(value)
        if earlier is not None and not errors:
            timings = {side: _together(earlier.timings.get(side), timings[side]) for side in self.between}
        self.measured[value] = Point(value=value, timings=timings, errors=errors, origin="measured")
        for side, error in errors.items():
            self._caution(f"{side} failed at {value:,}: {error.splitlines()[0]}")

    def _ask(
        self, side: str, value: int, again: int, timings: dict[str, Timing], errors: dict[str, str]
    ) -> None:
        """Measured where it can be, else forecast."""
        assert self.measure is not None
        try:
            if side not in self.absent:
                timings[side] = self.measure(side, value, again)
                return
        except Unavailable as error:
            self.absent[side] = error.message
        except WindtunnelError as error:
            errors[side] = error.message
            return
        try:
            timings[side] = self.forecast(side, value)
        except WindtunnelError as error:
            errors[side] = error.message

    # What the points say.

    def _sign(self, value: int) -> int | None:
        return self.measured[value].sign(self.between) if value in self.measured else None

    def _told(self, point: Point) -> int | None:
        """Who is faster by the numbers alone: a forecast's interval is about its truth, not about where its two curves cross."""
        found = point.ratio(self.between)
        return None if found is None else (1 if found[0] > 1 else -1)

    def _brackets(self, points: Mapping[int, Point], told: bool = False) -> list[tuple[int, int]]:
        """Neighbours between which the faster side changes; places that cannot tell lie inside a bracket."""
        signs = [
            (value, self._told(points[value]) if told else points[value].sign(self.between))
            for value in sorted(points)
        ]
        sure = [(value, sign) for value, sign in signs if sign]
        return [(a, b) for (a, one), (b, other) in itertools.pairwise(sure) if one != other]

    def crossings(self) -> list[Crossing]:
        """By measurement where it tells; by forecast where there is none, or it covers too little."""
        if not any(p.sign(self.between) is not None for p in self.measured.values()):
            return self._crossings_of(self.forecasts, self._brackets(self.forecasts, told=True))
        found = self._crossings_of(self.measured, self._brackets_to_the_ends())
        if found or {self.low, self.high} <= self.measured.keys():
            return found
        expected = self._crossings_of(self.forecasts, self._brackets(self.forecasts, told=True))
        if expected:
            self._caution("too few places were measured to tell; the crossing is by forecast")
        return expected

    def _crossings_of(self, points: Mapping[int, Point], brackets: list[tuple[int, int]]) -> list[Crossing]:
        found = []
        for a, b in brackets:
            inside = [v for v in sorted(points) if a <= v <= b and points[v].ratio(self.between) is not None]
            faster = self.between[1] if self._told(points[b]) == 1 else self.between[0]
            low, high = self._reach(a, b) if points is self.forecasts else (float(a), float(b))
            found.append(
                Crossing(
                    at=_interpolate([(v, self._log(points[v])) for v in inside]),
                    low=low,
                    high=high,
                    faster=faster,
                )
            )
        return found

    def _brackets_to_the_ends(self) -> list[tuple[int, int]]:
        """As brackets, but an outermost place that cannot tell counts by its number alone: its crossing reaches to the end then."""
        seen = [v for v in sorted(self.measured) if self._sign(v) is not None]
        sure = [v for v in seen if self._sign(v)]
        edges = {v for v in (seen[0], seen[-1]) if v not in sure} if seen else set()
        signs = [(v, self._told(self.measured[v])) for v in sorted({*sure, *edges})]
        return [(a, b) for (a, one), (b, other) in itertools.pairwise(signs) if one != other]

    def _reach(self, a: int, b: int) -> tuple[float, float]:
        """By forecast: out to the next places where even the forecasts' intervals agree on who is faster."""
        below = [
            v
            for v, p in self.forecasts.items()
            if v <= a and p.sign(self.between) == self._told(self.forecasts[a])
        ]
        above = [
            v
            for v, p in self.forecasts.items()
            if v >= b and p.sign(self.between) == self._told(self.forecasts[b])
        ]
        return float(max(below, default=self.low)), float(min(above, default=self.high))

    def _log(self, point: Point) -> float:
        found = point.ratio(self.between)
        assert found is not None
        return math.log(found[0])

    def table(self) -> tuple[Point, ...]:
        return tuple(
            sorted([*self.forecasts.values(), *self.measured.values()], key=lambda p: (p.value, p.origin))
        )

    def origins(self) -> dict[str, str]:
        told = {}
        for side in self.between:
            seen = {p.timings[side].origin for p in self.measured.values() if side in p.timings}
            told[side] = (
                "measured"
                if "measured" in seen
                else ("forecast" + (f", not measured: {self.absent[side]}" if side in self.absent else ""))
            )
        return told

    def _caution(self, text: str) -> None:
        if text not in self.cautions:
            self.cautions.append(text)


def _together(earlier: Timing | None, later: Timing) -> Timing:
    """Two measurements of the same as one: the middle of both, and an interval that their disagreement widens."""
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
    return Timing(
        seconds=seconds,
        low_seconds=seconds * math.exp(-down),
        high_seconds=seconds * math.exp(up),
        origin=later.origin,
    )


def _interpolate(points: list[tuple[int, float]]) -> float:
    """Where the logarithm of the ratio goes through zero, on straight lines between the points in logarithms."""
    (x0, y0), (x1, y1) = next(pair for pair in itertools.pairwise(points) if pair[0][1] * pair[1][1] <= 0)
    share = y0 / (y0 - y1) if y0 != y1 else 0.5
    return math.exp(math.log(x0) + share * (math.log(x1) - math.log(x0)))


def _grid(low: int, high: int, count: int) -> list[int]:
    """Whole numbers at equal steps of their logarithm, both ends among them."""
    step = math.log(high / low) / (count - 1)
    return sorted({min(high, max(low, round(low * math.exp(i * step)))) for i in range(count)})


def _middle(a: int, b: int) -> int:
    return min(b - 1, max(a + 1, round(math.sqrt(a * b)))) if b - a > 1 else a
