"""Kinds of charts of the guide, in the colours of all reports, on white so that they read on any page.

Every picture is as wide as a phone's screen, so that its words can be read there at nearly their own size.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from windtunnel.reports.charts import category, layered, quantity
from windtunnel.reports.palette import COLOURS, INK, SHAPES

Spec = dict[str, Any]
Rows = Sequence[dict[str, Any]]
WIDTH, _HEIGHT = 420, 230  # of a whole picture; of the field of a chart with lines
_FONT, _LETTER = 12, 6.6  # size of all words, and the mean width of a letter of this size
_BESIDE, _ABOVE = 24, 38  # height of a row whose name stands beside it; above it
_SHORT = 17  # letters of a name that stands beside its row
_NUMBER = ",.9~g"
# The parts of a step and the classes of memory have the same colours as in every report.
PART_COLOURS = {
    "compute": COLOURS[0],
    "computing": COLOURS[0],
    "launch": COLOURS[4],
    "feed": COLOURS[2],
    "copy": COLOURS[3],
    "communication": COLOURS[1],
    "update": COLOURS[5],
    "waiting": COLOURS[6],
    "weights": COLOURS[5],
    "gradients": COLOURS[1],
    "optimizer": COLOURS[3],
    "activations": COLOURS[0],
    "other": COLOURS[6],
    "waiting for data": COLOURS[3],
    "holds": COLOURS[0],
    "does not hold": COLOURS[1],
    "can't tell": COLOURS[6],
    "fully connected layers": COLOURS[1],
    "other layers": COLOURS[0],
}


def bars(rows: Rows, title: str, x_title: str, log: bool = False) -> Spec:
    """One bar for each row, with its value in words. A logarithmic axis starts below the smallest value."""
    values = [float(row["x"]) for row in rows]
    low, high = (min(values) / 3, max(values)) if log else (0.0, max(values))
    end = high * (high / low) ** 0.28 if log else high * 1.28
    scale: Spec = {"domain": [low, end], "nice": False, **({"type": "log"} if log else {})}
    placed = [{**row, "low": low} for row in rows]
    names = _Names([str(row["y"]) for row in rows])
    x = quantity("x", x_title, scale, _ticks(low, high, log))
    layers = [
        {
            "mark": {"type": "bar", "color": COLOURS[0], "height": 13, "yOffset": names.offset},
            "encoding": {"x": x, "x2": {"field": "low"}, "y": names.y},
        },
        {
            "mark": _text(align="left", dx=5, yOffset=names.offset),
            "encoding": {"x": x, "y": names.y, "text": {"field": "text"}},
        },
    ]
    return _whole([*layers, *names.layer], placed, title, {"step": names.step})


def dots(rows: Rows, title: str, x_title: str, order: Sequence[str], log: bool = True, at: float = 0) -> Spec:
    """A mark for each value of a row, joined by a thin line; a broken line at a value to compare with."""
    lines = list(dict.fromkeys(str(row["line"]) for row in rows))
    values = [float(row["x"]) for row in rows] + ([at] if at else [])
    low, high = min(values), max(values)
    room = (high / low) ** 0.06 if log else (high - low) * 0.06
    domain = [low / room, high * room] if log else [low - room, high + room]
    scale: Spec = {"domain": domain, "nice": False, "zero": False, **({"type": "log"} if log else {})}
    names = _Names(order)
    x = quantity("x", x_title, scale, _ticks(*domain, log))
    colour, shape = _colour(lines), category("line", lines, SHAPES[: len(lines)], _legend(lines))
    joined = {"type": "line", "color": INK, "opacity": 0.25, "strokeWidth": 1.5, "yOffset": names.offset}
    point = {"type": "point", "filled": True, "size": 70, "opacity": 1, "yOffset": names.offset}
    layers: list[Spec] = [
        {"mark": joined, "encoding": {"x": x, "y": names.y, "detail": {"field": "y"}}},
        {"mark": point, "encoding": {"x": x, "y": names.y, "color": colour, "shape": shape}},
    ]
    rule = [_rule(at)] if at else []
    return _whole([*rule, *layers, *names.layer], rows, title, {"step": names.step})


def lines(
    rows: Rows, title: str, x_title: str, y_title: str, log_x: int = 0, log_y: bool = False, limit: float = 0
) -> Spec:
    """A line with marks for each name; a broken line at a limit."""
    names = list(dict.fromkeys(str(row["line"]) for row in rows))
    places = sorted({float(row["x"]) for row in rows})
    scale: Spec = {"type": "log", "base": log_x, "nice": False} if log_x else {"nice": False}
    shown = places if len(places) < 9 else places[::2]
    x = quantity(
        "x", x_title, {**scale, "domain": [places[0], places[-1]]}, {"values": shown, "format": _NUMBER}
    )
    heights = [float(row["y"]) for row in rows] + ([limit] if limit else [])
    low, high = min(heights), max(heights)
    y_scale: Spec = {"type": "log", "nice": False, "domain": [low / 1.3, high * 1.3]} if log_y else {}
    y = quantity("y", y_title, y_scale, _ticks(low / 1.3, high * 1.3, log_y))
    shape = category("line", names, SHAPES[: len(names)], _legend(names))
    encoding = {"x": x, "y": y, "color": _colour(names)}
    layers: list[Spec] = [
        {"mark": {"type": "line", "strokeWidth": 2}, "encoding": encoding},
        {
            "mark": {"type": "point", "filled": True, "size": 50, "opacity": 1, "clip": False},
            "encoding": {**encoding, "shape": shape},
        },
    ]
    if limit:
        layers.append(_rule(limit, "y"))
    return _whole(layers, rows, title, _HEIGHT)


def stacked(rows: Rows, title: str, x_title: str, order: Sequence[str], limit: float = 0) -> Spec:
    """Parts of each row end to end; a broken line at a limit."""
    parts = list(dict.fromkeys(str(row["part"]) for row in rows))
    placed = [{**row, "place": parts.index(str(row["part"]))} for row in rows]
    names = _Names(order)
    x = {**quantity("x", x_title, {}, {"tickCount": 6, "format": _NUMBER}), "stack": "zero"}
    colours = [PART_COLOURS.get(part) or COLOURS[place] for place, part in enumerate(parts)]
    colour = category("part", parts, colours, _legend(parts))
    encoding = {"x": x, "y": names.y, "color": colour, "order": {"field": "place"}}
    bar = {"type": "bar", "height": 14, "yOffset": names.offset}
    layers: list[Spec] = [{"mark": bar, "encoding": encoding}]
    if limit:
        layers.append(_rule(limit))
    return _whole([*layers, *names.layer], placed, title, {"step": names.step})


class _Names:
    """Names of rows: short ones beside their row, long ones above it."""

    def __init__(self, order: Sequence[str]) -> None:
        order = list(dict.fromkeys(order))
        above = max(map(len, order)) > _SHORT
        axis: Spec = {"labelLimit": 300, "grid": False, "ticks": False, "domain": False, "labels": not above}
        self.y: Spec = {"field": "y", "type": "nominal", "title": None, "sort": order, "axis": axis}
        self.step, self.offset = (_ABOVE, 9) if above else (_BESIDE, 0)
        words = {
            "data": {"values": [{"y": name} for name in order]},
            "mark": _text(align="left", baseline="middle", yOffset=-8),
            "encoding": {"y": self.y, "x": {"value": 0}, "text": {"field": "y"}},
        }
        self.layer: list[Spec] = [words] if above else []


def _text(**more: object) -> Spec:
    return {"type": "text", "color": INK, "fontSize": _FONT, **more}


def _colour(names: Sequence[str]) -> Mapping[str, Any]:
    return category("line", names, COLOURS[: len(names)], _legend(names))


def _legend(names: Sequence[str]) -> Spec:
    """Below the chart, in as many columns as fit."""
    fitting = max(1, int(WIDTH / (30 + _LETTER * max(map(len, names)))))
    columns = math.ceil(len(names) / math.ceil(len(names) / fitting))  # no name alone in its line
    return {"title": None, "orient": "bottom", "columns": columns, "labelLimit": 380}


def _ticks(low: float, high: float, log: bool) -> Spec:
    """Few enough numbers that they never overlap: on a logarithmic axis powers of ten, or 1, 2 and 5."""
    if not log:
        return {"tickCount": 5, "format": _NUMBER}
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    factors = (1,) if last - first > 3 else (1, 3) if last - first > 2 else (1, 2, 5)
    every = 1 if last - first < 6 else 2  # long numbers stand beside each other
    values = [
        float(f"{n * 10.0**power:.6g}")
        for power in range(first, last + 1, every)
        for n in factors
        if low <= n * 10.0**power <= high
    ]
    return {"values": values, "format": _NUMBER}


def _rule(value: float, axis: str = "x") -> Spec:
    return {
        "data": {"values": [{"limit": value}]},
        "mark": {"type": "rule", "color": INK, "strokeDash": [5, 4], "strokeWidth": 1.5},
        "encoding": {axis: {"field": "limit", "type": "quantitative"}},
    }


def _whole(layers: Sequence[Spec], rows: Rows, title: str, height: int | Spec) -> Spec:
    words = {"text": textwrap.wrap(title, 58), "anchor": "start", "frame": "bounds", "offset": 10}
    spec: Spec = dict(layered(layers, words, _HEIGHT).spec)
    size = {"labelFontSize": _FONT, "titleFontSize": _FONT}
    config = {**spec["config"], **{part: {**spec["config"][part], **size} for part in ("axis", "legend")}}
    config["title"] = {**config["title"], "limit": WIDTH}
    fitted = {"width": WIDTH, "autosize": {"type": "fit-x", "contains": "padding"}, "padding": 4}
    return {
        **spec,
        "config": config,
        "data": {"values": list(rows)},
        **fitted,
        "height": height,
        "background": "white",
    }
