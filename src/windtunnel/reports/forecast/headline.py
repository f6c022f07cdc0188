"""The headline of a forecast: step time with its interval, throughput, what bounds it, memory."""

from __future__ import annotations

from windtunnel import units
from windtunnel.forecast.forecast import Forecast
from windtunnel.reports.forecast.marks import box, drawing, swatch
from windtunnel.reports.forecast.view import ForecastView
from windtunnel.reports.page import Markup, Piece, element
from windtunnel.results import BOUNDS


def headline(view: ForecastView) -> Markup:
    """Four figures that answer most questions."""
    forecast = view.forecast
    tiles = [_step(forecast), _throughput(forecast), _bound(forecast), _memory(view)]
    return element("dl", *tiles, class_="tiles")


def _tile(title: str, figure: Piece, *more: Piece, class_: str = "tile") -> Markup:
    details = [element("dd", each, class_="more") for each in more]
    return element(
        "div", element("dt", title), element("dd", figure, class_="figure"), *details, class_=class_
    )


def _step(forecast: Forecast) -> Markup:
    low, high = units.show(forecast.low_seconds, "s"), units.show(forecast.high_seconds, "s")
    title = "Latency" if forecast.strategy.get("inference") else "Step"
    return _tile(title, units.show(forecast.step_seconds, "s"), f"{low} to {high}, in 4 of 5 cases")


def _throughput(forecast: Forecast) -> Markup:
    rate = f"{units.digits(forecast.examples_per_second)} /s"
    more = f"batch {forecast.batch:,}"
    if forecast.epoch_seconds is not None:
        more += f"; an epoch takes {units.show(forecast.epoch_seconds, 's')}"
    return _tile("Examples", rate, more)


def _bound(forecast: Forecast) -> Markup:
    part = forecast.bound_by
    taken = f"{forecast.parts[part] / forecast.step_seconds:.0%}".replace("%", " %")
    return _tile("Bound by", element("span", swatch(part), part), f"{taken} of the step: {BOUNDS[part]}")


def _memory(view: ForecastView) -> Markup:
    memory = view.forecast.memory
    needed, capacity = units.show(memory.total_bytes, "B"), memory.capacity_bytes
    if capacity is None:
        return _tile("Memory", needed, "the size of the device's memory is not known")
    used = min(1.0, memory.total_bytes / capacity)
    words = f"needed of {units.show(capacity, 'B')} on each device"
    meter = drawing(
        8,
        box(0, 1, 0, 8, "track"),
        box(0, used, 0, 8, "used" if view.fits else "over"),
        label=f"{needed} {words}",
        class_="chart meter",
    )
    if view.fits:
        return _tile("Memory", needed, words, meter)
    chip = element("span", "does not fit", class_="chip bad")
    return _tile("Memory", needed, element("span", chip, " ", words), meter, class_="tile alarm")
