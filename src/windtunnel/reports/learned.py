"""What the trained networks of a study learned: tables and charts of scores, steps and seconds."""

from __future__ import annotations

import functools
import statistics
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from windtunnel import units
from windtunnel.reports import charts, text
from windtunnel.reports.charts import VegaLite
from windtunnel.reports.lines import axis_value, in_order
from windtunnel.reports.page import Column, Piece, element, joined, table
from windtunnel.reports.palette import COLOURS, INK, SHAPES
from windtunnel.study.rows import StudyRow, TrainedSeeds

if TYPE_CHECKING:
    from windtunnel.reports.figures import Album
    from windtunnel.study.study import Figure

_HEIGHT, _WIDTH = 220, 110
_LOWEST = -0.25  # a network far worse than its baseline is drawn at the lower edge
_SKILL = "skill (0: baseline, 1: perfect)"
_NOT_REACHED = "-"
# One more than other charts have: the study of this catalogue has eight networks.
_COLOURS, _SHAPES = (*COLOURS, INK), (*SHAPES, "triangle-left")
_Line = dict[object, StudyRow]


def lines_of(figure: Figure, rows: Iterable[StudyRow]) -> dict[str, _Line]:
    """The rows of each case by their value on the figure's axis. A second machine is named after its CPU."""
    axis = next(iter(figure.grid))
    chosen = [row for row in rows if row.figure == figure.name and row.training is not None]
    several = len({row.device_name for row in chosen}) > 1
    lines: dict[str, _Line] = {}
    for row in chosen:
        name = f"{row.case}, {row.device_name}" if several else row.case
        lines.setdefault(name, {})[axis_value(row, axis)] = row
    return {
        name: dict(sorted(line.items(), key=lambda item: in_order(item[0]))) for name, line in lines.items()
    }


def figure_lines(figure: Figure, rows: Iterable[StudyRow]) -> list[str]:
    """One figure as text: for each case its scores, and what its target took."""
    lines = [f"{figure.name}: {figure.title}", ""]
    for name, line in lines_of(figure, rows).items():
        head, *body = _cells(figure, line)
        caption = textwrap.wrap(_caption(name, line), _WIDTH, initial_indent="  ", subsequent_indent="  ")
        lines += [*caption, *(f"    {words}" for words in text.columns(head, body)), ""]
    return lines


def section(figure: Figure, rows: Iterable[StudyRow], album: Album) -> Piece:
    """One figure on the page: a chart of all cases, and a table of each."""
    lines = lines_of(figure, rows)
    parts = [element("p", words, class_="soft") for words in (figure.source, figure.note) if words]
    if not lines:
        return joined([*parts, element("p", "Nothing has been trained yet.", class_="note")])
    parts.append(element("div", *(album.add(*each) for each in plots_of(figure, lines)), class_="charts"))
    tables = []
    for name, line in lines.items():
        head, *body = _cells(figure, line)
        columns = [Column(head=word, kind="n" if place else "") for place, word in enumerate(head)]
        tables.append(table(_caption(name, line), columns, body))
    summary = element("summary", f"Scores, steps and seconds of {len(tables)} cases")
    return joined([*parts, element("details", summary, *tables, class_="fold")])


def plots_of(
    figure: Figure, lines: Mapping[str, _Line]
) -> Iterator[tuple[Callable[[], charts.Chart], str, str]]:
    """What draws each chart of a figure, its title and its description."""
    for names in _panels(list(lines)):
        drawn = chart(figure, {name: lines[name] for name in names})
        if drawn is not None:
            words = (
                f"{_SKILL} over {next(iter(figure.grid))}: {', '.join(names)}. Bars: lowest to highest seed."
            )
            yield functools.partial(_given, drawn), figure.title, words


def chart(figure: Figure, lines: Mapping[str, _Line]) -> charts.Chart | None:
    """Mean skill against the figure's axis; bars go from the lowest to the highest seed.

    None for an axis of words.
    """
    axis = next(iter(figure.grid))
    points = [_point(name, x, row) for name, line in lines.items() for x, row in line.items()]
    xs = sorted({point["x"] for point in points if isinstance(point["x"], (int, float))})
    if len(xs) < 2:
        return None
    is_wide = xs[0] > 0 and xs[-1] / xs[0] > 15
    scale: VegaLite = {"type": "log", "nice": False} if is_wide else {"zero": False, "nice": False}
    ticks: VegaLite = {"values": xs, "labelOverlap": "greedy", "format": "~g"}
    x = charts.quantity("x", axis.replace("_", " "), scale, ticks)
    y = charts.quantity("y", _SKILL, {"domain": [_LOWEST, 1.0], "clamp": True}, {"tickCount": 6})
    names = list(lines)
    legend = {"title": None, "orient": "bottom", "columns": 1, "labelLimit": 300}
    colour = charts.category("line", names, _COLOURS[: len(names)], legend)
    shape = charts.category("line", names, _SHAPES[: len(names)], legend)
    layer: list[VegaLite] = [
        {
            "mark": {"type": "rule", "strokeWidth": 1.5, "opacity": 0.6},
            "encoding": {"y": {**y, "field": "low"}, "y2": {"field": "high"}},
        },
        {"mark": {"type": "line", "strokeWidth": 2}},
        {"mark": {"type": "point", "filled": True, "size": 42, "opacity": 1}, "encoding": {"shape": shape}},
    ]
    body: VegaLite = {
        "data": {"values": points},
        "encoding": {"x": x, "y": y, "color": colour},
        "layer": layer,
    }
    return charts.layered([body], figure.title, _HEIGHT)


def score_words(training: TrainedSeeds) -> str:
    return units.digits(statistics.fmean(training.scores))


def target_words(values: Sequence[float]) -> str:
    """The median of the seeds that reached the target."""
    reached = [value for value in values if value >= 0]
    if not reached:
        return _NOT_REACHED
    middle = statistics.median(reached)
    return f"{middle:,.0f}" if middle >= 10 else units.digits(middle)


def _given(drawn: charts.Chart) -> charts.Chart:
    return drawn


def _panels(names: list[str]) -> list[list[str]]:
    """As many charts of equal size as the colours need."""
    count = -(-len(names) // len(_COLOURS))
    size = -(-len(names) // max(1, count))
    return [names[start : start + size] for start in range(0, len(names), size)]


def _point(name: str, x: object, row: StudyRow) -> VegaLite:
    assert row.training is not None
    skills = [max(_LOWEST, skill) for skill in row.training.skills]
    return {"line": name, "x": x, "y": statistics.fmean(skills), "low": min(skills), "high": max(skills)}


def _caption(name: str, line: _Line) -> str:
    first = next(row.training for row in line.values() if row.training)
    seeds = {len(row.training.seeds) for row in line.values() if row.training}
    counted = f"{min(seeds)}" if len(seeds) == 1 else f"{min(seeds)} to {max(seeds)}"
    diverged = any(any(row.training.diverged) for row in line.values() if row.training)
    words = [
        f"{name}: {first.metric.replace('_', ' ')} on held-out data, mean of {counted} seeds and half range.",
        f"Baseline: {units.digits(first.baseline)}, {first.baseline_is}.",
        f"Target: {units.digits(first.target)}, within {first.budget_steps:,} steps.",
        *(["!: the loss of a seed was no longer finite."] if diverged else []),
    ]
    return " ".join(words)


def _cells(figure: Figure, line: _Line) -> list[list[str]]:
    """The head, then a row for each value of the axis."""
    axis = next(iter(figure.grid))
    first = next(row.training for row in line.values() if row.training)
    head = [
        axis,
        first.metric.replace("_", " "),
        "+/-",
        "skill",
        "loss",
        "reached",
        "steps",
        "examples",
        "seconds",
    ]
    return [
        head,
        *([str(value), *_row_cells(row, row.training)] for value, row in line.items() if row.training),
    ]


def _row_cells(row: StudyRow, training: TrainedSeeds) -> list[str]:
    return [
        score_words(training),
        units.digits((max(training.scores) - min(training.scores)) / 2),
        f"{statistics.fmean(training.skills):.3f}",
        _loss_words(training),
        f"{training.reached}/{len(training.seeds)}" + ("!" if any(training.diverged) else ""),
        target_words(training.target_steps),
        target_words(training.target_examples),
        _seconds_words(row),
    ]


def _loss_words(training: TrainedSeeds) -> str:
    finite = [loss for loss in training.losses if loss != -1]
    return units.digits(statistics.fmean(finite)) if finite else "not finite"


def _seconds_words(row: StudyRow) -> str:
    """As the clock gave them; marked where other programs ran beside a training."""
    assert row.training is not None
    words = target_words(row.training.target_seconds)
    return f"{text.MARK}{words}" if row.disturbed and words != _NOT_REACHED else words
