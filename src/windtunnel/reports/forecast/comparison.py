"""Several machines side by side: step time with interval and parts, on one scale, and a table."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from windtunnel import units
from windtunnel.reports.forecast.marks import box, drawing, kind, legend, percent, rule, shares_in_words
from windtunnel.reports.forecast.parts import ordered
from windtunnel.reports.forecast.view import ForecastView
from windtunnel.reports.page import Column, Markup, Piece, cell, element, joined, table
from windtunnel.results import PARTS

_SEEN = 15.0  # a bar that is this many times shorter than the longest is too short to read


def comparison(views: Sequence[ForecastView]) -> Markup:
    """Bars of the time of one example, all on one scale, in the order in which the machines were named."""
    scale = _scale_of(views)
    fastest = min(views, key=_example)
    parts = [part for part in PARTS if any(view.forecast.parts.get(part, 0.0) > 0 for view in views)]
    rows = element("ol", *(_row(view, scale, fastest) for view in views), class_="rows")
    same = len({view.forecast.batch for view in views}) == 1
    per = "a step" if same else "an example, since batches differ"
    how = ", on a logarithmic scale; their colours are shares of it" if scale.low else ""
    return joined(
        [
            element("p", f"Bars are the time of {per}{how}. Whiskers hold 4 of 5 cases.", class_="lead"),
            rows,
            legend((part, "") for part in parts),
            _table(views),
        ]
    )


class _Scale(NamedTuple):
    """From the seconds of an example to a share of the width; logarithmic from `low` on, if it is not 0."""

    low: float
    high: float

    def place(self, seconds: float) -> float:
        if not self.low:
            return seconds / self.high
        return max(0.0, math.log(seconds / self.low) / math.log(self.high / self.low))


def _scale_of(views: Sequence[ForecastView]) -> _Scale:
    """Linear while the shortest bar can be seen."""
    longest = max(view.forecast.high_seconds / view.forecast.batch for view in views)
    shortest = min(view.forecast.low_seconds / view.forecast.batch for view in views)
    return _Scale(shortest / 2 if longest > _SEEN * shortest else 0.0, longest)


def _example(view: ForecastView) -> float:
    return view.forecast.step_seconds / view.forecast.batch


def _row(view: ForecastView, scale: _Scale, fastest: ForecastView) -> Markup:
    forecast = view.forecast
    parts, whole = ordered(forecast.parts), scale.place(_example(view))
    marks: list[Piece] = []
    start = 0.0
    for name, seconds in parts.items():
        width = whole * seconds / forecast.step_seconds
        marks.append(box(start, width, 4, 18, f"seg {kind(name)}", element("title", name)))
        start += width
    ends = (forecast.low_seconds, forecast.high_seconds)
    low, high = (scale.place(seconds / forecast.batch) for seconds in ends)
    marks += [rule(low, 13, high, 13, "whisker")]
    marks += [rule(x, 8, x, 18, "whisker") for x in (low, high)]
    step = units.show(forecast.step_seconds, "s")
    label = f"{view.name}: {step}, {shares_in_words(parts, forecast.step_seconds)}"
    slower = _example(view) / _example(fastest)
    said = "fastest" if view is fastest else f"{units.digits(slower)} times as long"
    fits = [] if view.fits else [element("span", "does not fit", class_="chip bad")]
    return element(
        "li",
        element("span", element("b", view.name), " ", *fits, class_="row-name"),
        drawing(26, *marks, label=label),
        element("span", f"{step} \N{MIDDLE DOT} {said}", class_="row-value"),
    )


def _fits(view: ForecastView) -> str:
    return {True: "yes", False: "no", None: "not known"}[view.forecast.memory.fits]


def _table(views: Sequence[ForecastView]) -> Markup:
    heads = ("Machine", "Step", "Interval", "Examples/s", "Bound by", "Memory needed", "Fits")
    columns = [Column(head=head, kind="n" if head not in ("Machine", "Bound by") else "") for head in heads]
    rows = []
    for view in views:
        forecast, memory = view.forecast, view.forecast.memory
        capacity = f" of {units.show(memory.capacity_bytes, 'B')}" if memory.capacity_bytes else ""
        part = forecast.bound_by
        rows.append(
            [
                view.name,
                units.show(forecast.step_seconds, "s"),
                f"{units.show(forecast.low_seconds, 's')} to {units.show(forecast.high_seconds, 's')}",
                units.digits(forecast.examples_per_second),
                cell(f"{part} ({percent(forecast.parts[part] / forecast.step_seconds)})", kind="whole"),
                f"{units.show(memory.total_bytes, 'B')}{capacity}",
                cell(_fits(view), kind="n"),
            ]
        )
    return table("The same job on each machine, by forecast", columns, rows)
