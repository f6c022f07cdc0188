"""Kinds of charts of the guide, in the colours of all reports, on white so that they read on any page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from windtunnel.reports.charts import category, layered, quantity
from windtunnel.reports.palette import COLOURS, INK, SHAPES

Spec = dict[str, Any]
Rows = Sequence[dict[str, Any]]
_WIDTH, _HEIGHT, _STEP = 560, 260, 22
_NUMBER = ",.6~g"
_LEGEND = {"title": None, "orient": "bottom", "columns": 3, "labelLimit": 240}


def bars(rows: Rows, title: str, x_title: str, log: bool = False) -> Spec:
    """One bar for each row, with its value in words. A logarithmic axis starts at a tenth of the smallest."""
    values = [float(row["x"]) for row in rows]
    low = min(values) / 3 if log else 0.0
    scale: Spec = {"domain": [low, max(values) * (3 if log else 1.15)], "nice": False}
    if log:
        scale |= {"type": "log"}
    placed = [{**row, "low": low} for row in rows]
    y = _words("y", [row["y"] for row in rows])
    x = quantity("x", x_title, scale, {"tickCount": 6, "format": _NUMBER})
    layers = [
        {
            "mark": {"type": "bar", "color": COLOURS[0], "height": 14},
            "encoding": {"x": x, "x2": {"field": "low"}, "y": y},
        },
        {
            "mark": {"type": "text", "align": "left", "dx": 5, "color": INK},
            "encoding": {"x": x, "y": y, "text": {"field": "text"}},
        },
    ]
    return _whole(layers, placed, title, {"step": _STEP})


def dots(rows: Rows, title: str, x_title: str, order: Sequence[str]) -> Spec:
    """A mark for each value of a row on a logarithmic axis, joined by a thin line."""
    names = list(dict.fromkeys(str(row["line"]) for row in rows))
    values = [float(row["x"]) for row in rows]
    scale = {"type": "log", "domain": [min(values) / 1.4, max(values) * 1.4], "nice": False}
    x = quantity("x", x_title, scale, {"tickCount": 6, "format": _NUMBER})
    y = _words("y", order)
    colour = category("line", names, COLOURS[: len(names)], _LEGEND)
    shape = category("line", names, SHAPES[: len(names)], _LEGEND)
    joined = {"type": "line", "color": INK, "opacity": 0.25, "strokeWidth": 1.5}
    layers: list[Spec] = [
        {"mark": joined, "encoding": {"x": x, "y": y, "detail": {"field": "y"}}},
        {
            "mark": {"type": "point", "filled": True, "size": 75, "opacity": 1},
            "encoding": {"x": x, "y": y, "color": colour, "shape": shape},
        },
    ]
    if min(values) < 1 < max(values) and "faster" in x_title:
        layers.insert(0, _rule(1.0))
    return _whole(layers, rows, title, {"step": _STEP})


def lines(
    rows: Rows,
    title: str,
    x_title: str,
    y_title: str,
    log_x: int = 0,
    log_y: bool = False,
    width: int = _WIDTH,
) -> Spec:
    """A line with marks for each name."""
    names = list(dict.fromkeys(str(row["line"]) for row in rows))
    places = sorted({float(row["x"]) for row in rows})
    scale: Spec = {"type": "log", "base": log_x, "nice": False} if log_x else {}
    x_scale = {**scale, "domain": [places[0], places[-1]]}
    ticks = places if width == _WIDTH or len(places) < 7 else places[::2]
    x = quantity("x", x_title, x_scale, {"values": ticks, "format": _NUMBER})
    y = quantity("y", y_title, {"type": "log"} if log_y else {}, {"tickCount": 6, "format": _NUMBER})
    legend = {**_LEGEND, "columns": 3 if width == _WIDTH else 2}
    colour = category("line", names, COLOURS[: len(names)], legend)
    shape = category("line", names, SHAPES[: len(names)], legend)
    encoding = {"x": x, "y": y, "color": colour}
    layers: list[Spec] = [
        {"mark": {"type": "line", "strokeWidth": 2}, "encoding": encoding},
        {
            "mark": {"type": "point", "filled": True, "size": 55, "opacity": 1},
            "encoding": {**encoding, "shape": shape},
        },
    ]
    return {**_whole(layers, rows, title, _HEIGHT), "width": width}


def stacked(rows: Rows, title: str, x_title: str, order: Sequence[str], limit: float | None = None) -> Spec:
    """Parts of each row end to end; a line at the limit."""
    names = list(dict.fromkeys(str(row["part"]) for row in rows))
    placed = [{**row, "place": names.index(str(row["part"]))} for row in rows]
    x = {**quantity("x", x_title, {}, {"tickCount": 6}), "stack": "zero"}
    colour = category("part", names, COLOURS[: len(names)], {**_LEGEND, "columns": 5})
    encoding = {"x": x, "y": _words("y", order), "color": colour, "order": {"field": "place"}}
    layers: list[Spec] = [{"mark": {"type": "bar", "height": 15}, "encoding": encoding}]
    if limit is not None:
        layers.append(_rule(limit))
    return _whole(layers, placed, title, {"step": _STEP})


def beside(*charts: Spec) -> Spec:
    """Charts in one row, each with its own colours."""
    first = charts[0]
    inner = [
        {key: value for key, value in chart.items() if key not in ("$schema", "config", "background")}
        for chart in charts
    ]
    apart = {"scale": {"color": "independent", "shape": "independent"}}
    return {
        **{key: first[key] for key in ("$schema", "config", "background")},
        "hconcat": inner,
        "resolve": apart,
    }


def _rule(value: float) -> Spec:
    line = {"type": "rule", "color": INK, "strokeDash": [5, 4], "strokeWidth": 1.5}
    return {
        "data": {"values": [{"limit": value}]},
        "mark": line,
        "encoding": {"x": {"field": "limit", "type": "quantitative"}},
    }


def _words(field: str, order: Sequence[str]) -> Spec:
    axis = {"labelLimit": 300, "grid": False, "ticks": False, "domain": False}
    return {"field": field, "type": "nominal", "title": None, "sort": list(order), "axis": axis}


def _whole(layers: Sequence[Spec], rows: Rows, title: str, height: int | Spec) -> Spec:
    spec: Spec = dict(layered(layers, title, _HEIGHT).spec)
    spec["config"] = {**spec["config"], "title": {**spec["config"]["title"], "limit": 640}}
    return {**spec, "data": {"values": list(rows)}, "width": _WIDTH, "height": height, "background": "white"}
