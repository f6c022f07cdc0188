"""The tornado chart of a survey as a picture: a bar for each factor, its ends named, the base as a line."""

from __future__ import annotations

from windtunnel import units
from windtunnel.influence.effects import FactorInfluence
from windtunnel.influence.result import Influence
from windtunnel.records import Plain
from windtunnel.reports.charts import Chart
from windtunnel.reports.palette import COLOURS, INK

_SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"  # names the language; it is never fetched
_ROW = 30  # pixels
_GROUPS = ("network", "processing unit", "data flow", "execution")


def chart(influence: Influence) -> Chart:
    """Milliseconds of an example on a logarithmic scale, the most influential factor on top."""
    base = influence.base.step_seconds / influence.base.batch * 1e3
    drawn = [factor for factor in influence.ranked() if not factor.steps[0].source]
    names = [factor.name for factor in drawn]
    title = {
        "text": f"What changes the time of {influence.base.job} on {influence.base.machine}",
        "subtitle": f"one example, all else equal; line: the base, {units.show(base / 1e3, 's')}",
        "anchor": "start",
        "color": INK,
        "subtitleColor": INK,
    }
    y = {"field": "factor", "type": "nominal", "sort": names, "title": None}
    return Chart(
        spec={
            "$schema": _SCHEMA,
            "width": 420,
            "height": _ROW * len(drawn),
            "title": title,
            "config": {"view": {"stroke": None}, "axis": {"labelColor": INK, "titleColor": INK}},
            "data": {"values": [_row(factor, base) for factor in drawn]},
            "layer": _layers(base, y, _domain(drawn, base)),
        }
    )


def _row(factor: FactorInfluence, base: float) -> Plain:
    effect = factor.effect()
    assert effect is not None
    clear = "" if effect.is_clear else " (no clear effect)"
    low, high = effect.least.example_seconds * 1e3, effect.most.example_seconds * 1e3
    return {
        "factor": factor.name,
        "group": factor.group,
        "low": low,
        "high": max(high, low * 1.001),  # a bar without length would not be drawn
        "low_label": effect.least.label,
        "high_label": f"{effect.most.label}{clear}",
        "base": base,
    }


def _domain(drawn: list[FactorInfluence], base: float) -> list[float]:
    """Room at both ends for the names of values."""
    ends = [base]
    for factor in drawn:
        ends += [step.example_seconds * 1e3 for step in factor.steps]
    room = (max(ends) / min(ends)) ** 0.35
    return [min(ends) / max(room, 1.3), max(ends) * max(room, 1.3)]


def _layers(base: float, y: Plain, domain: list[float]) -> list[Plain]:
    x = {
        "field": "low",
        "type": "quantitative",
        "title": "milliseconds for one example",
        "scale": {"type": "log", "domain": domain, "nice": False},
        "axis": {"format": ".3~g", "tickCount": 6, "grid": True, "gridOpacity": 0.3},
    }
    colour = {
        "field": "group",
        "type": "nominal",
        "scale": {"domain": list(_GROUPS), "range": list(COLOURS[: len(_GROUPS)])},
        "legend": {"title": None, "orient": "bottom", "labelColor": INK},
    }
    text = {"fontSize": 10, "color": INK}
    return [
        {
            "mark": {"type": "bar", "height": 14},
            "encoding": {"x": x, "x2": {"field": "high"}, "y": y, "color": colour},
        },
        {
            "mark": {"type": "text", "align": "right", "dx": -4, **text},
            "encoding": {"x": x, "y": y, "text": {"field": "low_label"}},
        },
        {
            "mark": {"type": "text", "align": "left", "dx": 4, **text},
            "encoding": {"x": {**x, "field": "high"}, "y": y, "text": {"field": "high_label"}},
        },
        {
            "data": {"values": [{"base": base}]},
            "mark": {"type": "rule", "color": INK, "strokeWidth": 1.5},
            "encoding": {"x": {**x, "field": "base"}},
        },
    ]
