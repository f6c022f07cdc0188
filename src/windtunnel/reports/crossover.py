"""A crossover as a chart: both sides' seconds over what is swept, and the place where one overtakes the other."""

from __future__ import annotations

from typing import Any

from windtunnel.reports.charts import Chart
from windtunnel.reports.palette import COLOURS, INK
from windtunnel.study.crossover.crossing import Crossover

_SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"  # the name of the language, never fetched
_TITLE_WIDTH = 64


def chart(found: Crossover) -> Chart:
    """Forecasts as lines with a band, measurements as filled points with their intervals; each crossing as a line down, its interval shaded."""
    points = _points(found)
    x = {
        "field": "x",
        "type": "quantitative",
        "title": found.over,
        "scale": {"type": "log", "domain": [found.low, found.high], "nice": False},
    }
    y = {
        "field": "milliseconds",
        "type": "quantitative",
        "title": "milliseconds a step",
        "scale": {"type": "log"},
    }
    legend = {"title": None, "orient": "bottom", "columns": 1, "labelLimit": 400, "symbolOpacity": 1}
    sides = [f"{side} ({found.origins[side].split(',')[0]})" for side in found.between]
    colour = {
        "field": "side",
        "type": "nominal",
        "scale": {"domain": sides, "range": list(COLOURS[:2])},
        "legend": legend,
    }
    by_forecast, by_measurement = (
        [p for p in points if p["origin"] == "forecast"],
        [p for p in points if p["origin"] == "measured"],
    )
    ends = {"y": {**y, "field": "low"}, "y2": {"field": "high"}}
    layers: list[dict[str, Any]] = [
        {
            "data": {"values": by_forecast},
            "mark": {"type": "area", "opacity": 0.12},
            "encoding": {"x": x, "color": colour, **ends},
        },
        {
            "data": {"values": by_forecast},
            "mark": {"type": "line", "strokeDash": [4, 3]},
            "encoding": {"x": x, "y": y, "color": colour},
        },
        {
            "data": {"values": by_measurement},
            "mark": {"type": "rule", "strokeWidth": 1.5},
            "encoding": {"x": x, "color": colour, **ends},
        },
        {
            "data": {"values": by_measurement},
            "mark": {"type": "point", "filled": True, "size": 50, "opacity": 1},
            "encoding": {"x": x, "y": y, "color": colour},
        },
    ]
    spans = [{"x": max(c.low, found.low), "x2": min(c.high, found.high), "at": c.at} for c in found.crossings]
    if spans:
        place = {"x": {**x, "field": "x"}, "x2": {"field": "x2"}}
        layers.append(
            {
                "data": {"values": spans},
                "mark": {"type": "rect", "opacity": 0.1, "color": INK},
                "encoding": place,
            }
        )
        layers.append(
            {
                "data": {"values": spans},
                "mark": {"type": "rule", "strokeDash": [2, 2], "color": INK},
                "encoding": {"x": {**x, "field": "at"}},
            }
        )
    title = {"text": _wrapped(found.sentence()), "anchor": "start", "fontSize": 12, "color": INK}
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
            "layer": layers,
        }
    )


def _points(found: Crossover) -> list[dict[str, Any]]:
    """Each side's timings; one that stands in for a measurement is drawn as the forecast it is."""
    seen = {}
    for point in found.points:
        for side, timing in point.timings.items():
            name = f"{side} ({found.origins[side].split(',')[0]})"
            spot = {
                "x": point.value,
                "milliseconds": timing.seconds * 1e3,
                "low": timing.low_seconds * 1e3,
                "high": timing.high_seconds * 1e3,
            }
            seen[side, point.value, timing.origin] = {**spot, "side": name, "origin": timing.origin}
    return list(seen.values())


def _wrapped(text: str) -> list[str]:
    import textwrap

    return textwrap.wrap(text, _TITLE_WIDTH)
