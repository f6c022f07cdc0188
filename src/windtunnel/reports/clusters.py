"""Trainings by several workers: learning curves of the forms of exchange, and the time to a target."""

from __future__ import annotations

import functools
import math
import statistics
import textwrap
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from windtunnel import units
from windtunnel.reports import charts, text
from windtunnel.reports.charts import VegaLite
from windtunnel.reports.page import Column, Piece, element, joined, table
from windtunnel.reports.palette import COLOURS, SHAPES
from windtunnel.study.rows import StudyRow

if TYPE_CHECKING:
    from windtunnel.exchange.curves import LearningCurve
    from windtunnel.reports.figures import Album
    from windtunnel.study.study import Figure

_HEIGHT, _WIDTH = 240, 110
_NOT_REACHED = "-"
_By = dict[int, dict[str, StudyRow]]  # of one case: by workers, then by form


def chart(curves: Sequence[LearningCurve], title: str, target: float | None = None) -> charts.Chart:
    """The metric over seconds, a line for each form; a dashed line at the target."""
    names, metric = [curve.name for curve in curves], curves[0].metric.replace("_", " ")
    points = [
        {"line": curve.name, "x": seconds, "y": value} for curve in curves for seconds, value in curve.points
    ]
    x = charts.quantity("x", "seconds", {"zero": True, "nice": False}, {"tickCount": 6})
    y = charts.quantity("y", f"{metric} on held-out data", {"zero": False}, {"tickCount": 6})
    legend = {"title": None, "orient": "bottom", "columns": 6}
    colour = charts.category("line", names, COLOURS[: len(names)], legend)
    shape = charts.category("line", names, SHAPES[: len(names)], legend)
    layers: list[VegaLite] = [
        {"mark": {"type": "line", "strokeWidth": 2}},
        {"mark": {"type": "point", "filled": True, "size": 30, "opacity": 1}, "encoding": {"shape": shape}},
    ]
    body: VegaLite = {
        "data": {"values": points},
        "encoding": {"x": x, "y": y, "color": colour},
        "layer": layers,
    }
    if target is None:
        return charts.layered([body], title, _HEIGHT)
    rule: VegaLite = {
        "data": {"values": [{"y": target}]},
        "mark": {"type": "rule", "strokeDash": [5, 4], "opacity": 0.7},
        "encoding": {"y": {"field": "y", "type": "quantitative"}},
    }
    return charts.layered([body, rule], title, _HEIGHT)


# A study's rows


def cases_of(rows: Iterable[StudyRow]) -> dict[str, _By]:
    """The rows of each case by workers and form."""
    found: dict[str, _By] = {}
    for row in rows:
        if row.training is not None and "exchange" in row.settings:
            workers, form = int(str(row.settings["workers"])), str(row.settings["exchange"])
            found.setdefault(row.case, {}).setdefault(workers, {})[form] = row
    return {case: dict(sorted(by.items())) for case, by in found.items()}


def seconds_of(row: StudyRow) -> float | None:
    """The median time to the target; None unless most seeds reached it. One that did not is the slowest."""
    assert row.training is not None
    taken = [seconds if seconds >= 0 else math.inf for seconds in row.training.target_seconds]
    middle = statistics.median(taken)
    return middle if math.isfinite(middle) else None


def time_words(row: StudyRow | None) -> str:
    """The time to the target, with how many seeds reached it where not all did."""
    if row is None or row.training is None:
        return ""
    seconds, training = seconds_of(row), row.training
    if seconds is None:
        return _NOT_REACHED
    missed = len(training.seeds) - training.reached
    return units.show(seconds, "s") + (f" ({training.reached}/{len(training.seeds)})" if missed else "")


def forms_in(by: _By) -> list[str]:
    return list(dict.fromkeys(form for rows in by.values() for form in rows))


def cells(by: _By) -> list[list[str]]:
    """The head, then a row for each number of workers."""
    forms = forms_in(by)
    return [
        ["workers", *forms],
        *([str(workers), *(time_words(rows.get(form)) for form in forms)] for workers, rows in by.items()),
    ]


def caption(case: str, by: _By) -> str:
    first = next(row for rows in by.values() for row in rows.values())
    assert first.training is not None
    training = first.training
    return (
        f"{case} on {first.machine}: time of the simulated machine to {training.metric.replace('_', ' ')} "
        f"{units.digits(training.target)}, median of {len(training.seeds)} seeds. "
        f"{_NOT_REACHED}: not reached by most seeds within {training.budget_steps:,} mini-batches."
    )


def figure_lines(figure: Figure, rows: Iterable[StudyRow]) -> list[str]:
    """One figure as text: for each network the time to its target."""
    lines = [f"{figure.name}: {figure.title}", ""]
    for case, by in cases_of(row for row in rows if row.figure == figure.name).items():
        words = textwrap.wrap(caption(case, by), _WIDTH, initial_indent="  ", subsequent_indent="  ")
        head, *body = cells(by)
        lines += [*words, *(f"    {line}" for line in text.columns(head, body)), ""]
    return lines


def section(figure: Figure, rows: Iterable[StudyRow], album: Album) -> Piece:
    """One figure on the page: a chart of all networks, and a table of each."""
    own = list(rows)
    parts = [element("p", words, class_="soft") for words in (figure.source, figure.note) if words]
    found = cases_of(own)
    if not found:
        return joined([*parts, element("p", "Nothing has been trained yet.", class_="note")])
    drawn = target_chart(own, figure.title)
    if drawn is not None:
        words = f"Time to the target over workers: {', '.join(found)}."
        parts.append(album.add(functools.partial(_given, drawn), figure.title, words))
    for case, by in found.items():
        head, *body = cells(by)
        columns = [Column(head=word, kind="n" if place else "") for place, word in enumerate(head)]
        parts.append(table(caption(case, by), columns, body))
    return joined(parts)


def _given(drawn: charts.Chart) -> charts.Chart:
    return drawn


def target_chart(rows: Sequence[StudyRow], title: str) -> charts.Chart | None:
    """Time to the target over workers: a panel for each network, a line for each form. None without two
    numbers of workers."""
    found = cases_of(rows)
    points = [
        {"case": case, "line": form, "x": workers, "y": seconds}
        for case, by in found.items()
        for workers, forms in by.items()
        for form, row in forms.items()
        if (seconds := seconds_of(row)) is not None
    ]
    xs = sorted({int(str(point["x"])) for point in points})
    if len(xs) < 2:
        return None
    names = list(dict.fromkeys(str(point["line"]) for point in points))
    log: VegaLite = {"type": "log", "nice": False}
    x = charts.quantity("x", "workers", log, {"values": xs, "format": "~g"})
    y = charts.quantity("y", "seconds to the target", {"type": "log", "nice": True}, {"tickCount": 5})
    legend = {"title": None, "orient": "bottom", "columns": 6}
    colour = charts.category("line", names, COLOURS[: len(names)], legend)
    shape = charts.category("line", names, SHAPES[: len(names)], legend)
    panels: list[VegaLite] = [
        {
            "title": case,
            "width": 220,
            "height": _HEIGHT,
            "data": {"values": [point for point in points if point["case"] == case]},
            "encoding": {"x": x, "y": y, "color": colour},
            "layer": [
                {"mark": {"type": "line", "strokeWidth": 2, "opacity": 0.8}},
                {
                    "mark": {"type": "point", "filled": True, "size": 48, "opacity": 1},
                    "encoding": {"shape": shape},
                },
            ],
        }
        for case in found
    ]
    return charts.beside(panels, title)
