"""A crossover as a chart: seconds of both sides over the swept setting, and where one overtakes the other."""

from __future__ import annotations

import textwrap

from windtunnel.records import Plain
from windtunnel.reports.charts import Chart
from windtunnel.reports.palette import COLOURS, INK
from windtunnel.study.crossover.crossing import Crossover

_SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"  # names the language; it is never fetched
_TITLE_WIDTH = 64
Encoding = Plain


def chart(crossover: Crossover) -> Chart:
    """Forecasts are lines with a band, measurements filled points with their intervals.

    Each crossing is a vertical line in its shaded interval.
    """
    x = {
        "field": "x",
        "type": "quantitative",
        "title": crossover.over,
        "scale": {"type": "log", "domain": [crossover.low, crossover.high], "nice": False},
    }
    title = {"text": _wrapped(crossover.sentence()), "anchor": "start", "fontSize": 12, "color": INK}
    config = {
        "view": {"stroke": None},
        "axis": {"labelColor": INK, "titleColor": INK, "gridOpacity": 0.5},
        "legend": {"labelColor": INK},
    }
    return Chart(
        spec={
            "$schema": _SCHEMA,
            "width": 460,
            "height": 280,
            "title": title,
            "config": config,
            "layer": [*_timing_layers(crossover, x), *_crossing_layers(crossover, x)],
        }
    )


def _timing_layers(crossover: Crossover, x: Encoding) -> list[Encoding]:
    y = {
        "field": "milliseconds",
        "type": "quantitative",
        "title": "milliseconds a step",
        "scale": {"type": "log"},
    }
    colour = {
        "field": "side",
        "type": "nominal",
        "scale": {"domain": _side_names(crossover), "range": list(COLOURS[:2])},
        "legend": {"title": None, "orient": "bottom", "columns": 1, "labelLimit": 400, "symbolOpacity": 1},
    }
    at, interval = {"x": x, "y": y, "color": colour}, {"x": x, "color": colour}
    interval |= {"y": {**y, "field": "low"}, "y2": {"field": "high"}}
    forecasts, measurements = (
        {"values": [p for p in _points(crossover) if p["origin"] == origin]}
        for origin in ("forecast", "measured")
    )
    return [
        {"data": forecasts, "mark": {"type": "area", "opacity": 0.12}, "encoding": interval},
        {"data": forecasts, "mark": {"type": "line", "strokeDash": [4, 3]}, "encoding": at},
        {"data": measurements, "mark": {"type": "rule", "strokeWidth": 1.5}, "encoding": interval},
        {
            "data": measurements,
            "mark": {"type": "point", "filled": True, "size": 50, "opacity": 1},
            "encoding": at,
        },
    ]


def _crossing_layers(crossover: Crossover, x: Encoding) -> list[Encoding]:
    spans = [
        {"x": max(c.low, crossover.low), "x2": min(c.high, crossover.high), "at": c.at}
        for c in crossover.crossings
    ]
    if not spans:
        return []
    return [
        {
            "data": {"values": spans},
            "mark": {"type": "rect", "opacity": 0.1, "color": INK},
            "encoding": {"x": {**x, "field": "x"}, "x2": {"field": "x2"}},
        },
        {
            "data": {"values": spans},
            "mark": {"type": "rule", "strokeDash": [2, 2], "color": INK},
            "encoding": {"x": {**x, "field": "at"}},
        },
    ]


def _side_names(crossover: Crossover) -> list[str]:
    return [f"{side} ({crossover.origins[side].split(',')[0]})" for side in crossover.between]


def _points(crossover: Crossover) -> list[Plain]:
    """The timings of each side. A forecast that replaces a measurement is drawn as a forecast."""
    names = dict(zip(crossover.between, _side_names(crossover), strict=True))
    points = {}
    for point in crossover.points:
        for side, timing in point.timings.items():
            points[side, point.value, timing.origin] = {
                "x": point.value,
                "milliseconds": timing.seconds * 1e3,
                "low": timing.low_seconds * 1e3,
                "high": timing.high_seconds * 1e3,
                "side": names[side],
                "origin": timing.origin,
            }
    return list(points.values())


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, _TITLE_WIDTH)
