"""Measured steps beside their forecasts, as a table."""

from __future__ import annotations

from collections.abc import Sequence

from windtunnel import units
from windtunnel.forecast.forecast import Forecast
from windtunnel.measurement.measure import Measurement
from windtunnel.reports.page import Column, Markup, element, joined, table

Beside = tuple[str, Forecast, Measurement]  # what ran, what was expected, what the clock said
_COLUMNS = (
    Column(head="What ran"),
    Column(head="Forecast", kind="n"),
    Column(head="Measured", kind="n"),
    Column(head="Forecast / measured", kind="n"),
    Column(head="Inside of the interval"),
)


def measured_table(rows: Sequence[Beside]) -> Markup:
    """One line for each measurement, misses included."""
    inside = sum(_is_inside(forecast, measured) for _, forecast, measured in rows)
    said = f"{inside} of {len(rows)} measured steps are inside of the 80 % interval of their forecast."
    return joined([element("p", said, class_="lead"), table("Measured here", _COLUMNS, map(_row, rows))])


def _row(beside: Beside) -> tuple[str, ...]:
    what, forecast, measured = beside
    ratio = forecast.step_seconds / measured.step_seconds
    return (
        what,
        units.show(forecast.step_seconds, "s"),
        units.show(measured.step_seconds, "s"),
        f"{ratio:.2f}",
        "yes" if _is_inside(forecast, measured) else "no",
    )


def _is_inside(forecast: Forecast, measured: Measurement) -> bool:
    return forecast.low_seconds <= measured.step_seconds <= forecast.high_seconds
