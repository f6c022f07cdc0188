"""Forecasts as pieces of a page: pure functions from results to HTML and SVG, for the report and the server.

`ForecastView` is one job on one machine; `view_of` makes it. Each function below returns Markup without any
style, script or address of its own; `windtunnel.reports.design` has the style and the script they need.
"""

from __future__ import annotations

from windtunnel.reports.forecast.accuracy import accuracy_note
from windtunnel.reports.forecast.advice import advice_list
from windtunnel.reports.forecast.cautions import cautions
from windtunnel.reports.forecast.comparison import comparison
from windtunnel.reports.forecast.factors import factors_chart
from windtunnel.reports.forecast.feed import feed_chart
from windtunnel.reports.forecast.headline import headline
from windtunnel.reports.forecast.lanes import timeline_chart
from windtunnel.reports.forecast.memory import memory_chart, memory_need
from windtunnel.reports.forecast.parts import parts_bar
from windtunnel.reports.forecast.scaling import scaling_chart
from windtunnel.reports.forecast.view import ForecastView, view_of, view_of_trace

__all__ = [
    "ForecastView",
    "accuracy_note",
    "advice_list",
    "cautions",
    "comparison",
    "factors_chart",
    "feed_chart",
    "headline",
    "memory_chart",
    "memory_need",
    "parts_bar",
    "scaling_chart",
    "timeline_chart",
    "view_of",
    "view_of_trace",
]
