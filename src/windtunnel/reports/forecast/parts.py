"""Where the time of a step goes: one bar, whose segments sum to the step."""

from __future__ import annotations

from collections.abc import Mapping

from windtunnel import units
from windtunnel.reports.forecast.marks import legend, numbers, percent, shares_in_words, stacked
from windtunnel.reports.forecast.operations import longest_tasks
from windtunnel.reports.forecast.view import ForecastView
from windtunnel.reports.page import Markup, joined
from windtunnel.results import BOUNDS, PARTS


def ordered(parts: Mapping[str, float]) -> dict[str, float]:
    """The parts of a step in the order of every chart."""
    return {name: parts[name] for name in PARTS if parts.get(name, 0.0) > 0}


def parts_bar(view: ForecastView) -> Markup:
    """The critical path of one steady step by part, and the longest tasks of the part that bounds it."""
    forecast = view.forecast
    parts, step = ordered(forecast.parts), forecast.step_seconds
    label = f"Parts of the step on {view.name}: {shares_in_words(parts, step)}"
    values = {name: f"{units.show(s, 's')} ({percent(s / step)})" for name, s in parts.items()}
    rows = [
        [name, units.show(seconds, "s"), percent(seconds / step), BOUNDS[name]]
        for name, seconds in parts.items()
    ]
    return joined(
        [
            stacked(list(parts.items()), step, 34, label),
            legend(values.items()),
            longest_tasks(view),
            numbers(f"Parts of a step of {units.show(step, 's')}", ("Part", "Time", "Share", "What"), rows),
        ]
    )
