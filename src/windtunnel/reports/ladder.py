"""A chart of a climb: score against seconds of training, one line for each rung."""

from __future__ import annotations

from pathlib import Path

from windtunnel.choosing.ladder_result import METRICS, LadderResult
from windtunnel.errors import BadInput
from windtunnel.reports.charts import SUFFIXES, Chart, VegaLite, require_converter
from windtunnel.reports.palette import COLOURS, INK

_SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"  # the name of the language, never fetched


def check(path: Path) -> None:
    """Raise before any training if the chart cannot be written."""
    if path.suffix not in SUFFIXES:
        raise BadInput(
            f"A chart cannot be written as {path.name!r}.",
            hint=f"End its name with one of: {', '.join(SUFFIXES)}.",
        )
    require_converter()


def draw(result: LadderResult) -> Chart:
    """The score on the rows to choose on after each round, over the training time of all rungs."""
    values, names, before = [], [], 0.0
    for rung in result.rungs:
        name = f"{rung.number}  {rung.title}"
        names.append(name)
        values += [{"x": before + seconds, "y": score, "rung": name} for seconds, score in rung.points]
        before += rung.seconds
    scale = {"domain": names, "range": [COLOURS[n % len(COLOURS)] for n in range(len(names))]}
    lines: VegaLite = {
        "data": {"values": values},
        "mark": {"type": "line", "point": True, "strokeWidth": 2},
        "encoding": {
            "x": {"field": "x", "type": "quantitative", "title": "seconds of training, all rungs"},
            "y": {
                "field": "y",
                "type": "quantitative",
                "title": METRICS[result.metric],
                "scale": {"zero": False},
            },
            "color": {"field": "rung", "type": "nominal", "scale": scale, "legend": {"title": "rung"}},
        },
    }
    layers = [lines]
    if result.target is not None:
        layers.append(
            {
                "data": {"values": [{"y": result.target}]},
                "mark": {"type": "rule", "strokeDash": [6, 4], "color": INK},
                "encoding": {"y": {"field": "y", "type": "quantitative"}},
            }
        )
    title = f"{result.data}: rung {result.chosen} is chosen"
    return Chart(spec={"$schema": _SCHEMA, "title": title, "width": 420, "height": 260, "layer": layers})
