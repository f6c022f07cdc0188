"""Charts of a study. Each is one plain Vega-Lite description, for a notebook, a page and a picture file alike; drawn only when asked."""

from __future__ import annotations

import functools
import html
import math
import re
import statistics
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from windtunnel import units
from windtunnel.errors import BadInput, Unavailable
from windtunnel.reports.lines import Cell, Line, Sheet

Spec = dict[str, Any]
INK = "#1f2328"  # replaced by the page's own text colour where a chart lies in a page
# Seven colours that people with any colour vision tell apart, each at least 3:1 against white and against the dark page.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#B8860B", "#8B4FA8", "#7A7A7A")
SHAPES = ("circle", "square", "triangle-up", "diamond", "triangle-down", "cross", "triangle-right")
DASHES = {"published": [6, 4], "measured": [1, 0], "forecast": [1, 3]}
# How each failure looks: an outline of its own, drawn as a path so that no font is needed.
GLYPHS = {
    "out of memory": "M-1,-1L1,-1L1,1L-1,1Z",
    "timeout": "M-.8,-1L.8,-1L-.8,1L.8,1Z",
    "crashed": "M-1,-1L1,1M1,-1L-1,1",
    "raised": "M0,-1.1L1,.8L-1,.8Z",
    "refused": "M-1,0L1,0",
    "no result": "M0,-1A1,1,0,1,1,0,1A1,1,0,1,1,0,-1Z",
    "unsupported": "M0,-1.2L1.2,0L0,1.2L-1.2,0Z",
    "not installed": "M-1,0L1,0M0,-1L0,1",
    "no gpu here": "M-1,-.5L1,-.5M-1,.5L1,.5",
    "not available": "M-1,1L1,-1",
    "waiting": "M-1,-.2L-.6,-.2L-.6,.2L-1,.2ZM-.2,-.2L.2,-.2L.2,.2L-.2,.2ZM.6,-.2L1,-.2L1,.2L.6,.2Z",
}
OTHER_GLYPH = "M-1,-1L1,-1L0,1Z"
SUFFIXES = (".svg", ".png", ".html")
MOST_LINES = len(COLOURS)
EXTRA_HINT = 'Install it with: pip install "windtunnel[plots]"'
_SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"  # the name of the language, never fetched
_MOST_VALUES = 60  # in a heat-map with more cells the values would not be readable
_MOST_SAMPLES = 80  # of each process
_WIDTH, _HEIGHT = 300, 220
_TEXT = {
    "labelColor": INK,
    "titleColor": INK,
    "labelFontSize": 11,
    "titleFontSize": 11,
    "titleFontWeight": "normal",
}
_FAINT = {
    "gridColor": INK,
    "gridOpacity": 0.13,
    "domainColor": INK,
    "tickColor": INK,
    "domainOpacity": 0.5,
    "tickOpacity": 0.5,
}
_CONFIG = {
    "aria": False,
    "view": {"stroke": None},
    "axis": {**_TEXT, **_FAINT},
    "legend": {**_TEXT, "symbolOpacity": 1},
    "title": {"color": INK, "fontSize": 13, "anchor": "start", "fontWeight": "bold", "limit": 360},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A chart as plain data. Shows itself in a notebook; `altair()` gives it to those who want to change it."""

    spec: Spec

    def altair(self) -> Any:
        """The same chart as an Altair object."""
        try:
            import altair
        except ImportError as error:
            raise Unavailable("Altair is not installed.", hint=EXTRA_HINT) from error
        return altair.Chart.from_dict(self.spec)

    def svg(self) -> str:
        return str(_converter().vegalite_to_svg(self.spec, vl_version=_version()))

    def save(self, path: Path | str) -> Path:
        return save(self, Path(path))

    def _repr_svg_(self) -> str:
        return Chart(spec={**self.spec, "background": "white"}).svg()


def save(chart: Chart, path: Path) -> Path:
    """A chart as .svg, .png or .html; the last has all it needs inside it and opens without a network."""
    if path.suffix not in SUFFIXES:
        raise BadInput(
            f"A chart cannot be written as {path.name!r}.",
            hint=f"End its name with one of: {', '.join(SUFFIXES)}.",
        )
    solid = {**chart.spec, "background": "white"}
    if path.suffix == ".png":
        path.write_bytes(_converter().vegalite_to_png(solid, vl_version=_version(), scale=2))
    elif path.suffix == ".svg":
        path.write_text(Chart(spec=solid).svg(), encoding="utf-8")
    else:
        path.write_text(
            _converter().vegalite_to_html(solid, vl_version=_version(), bundle=True), encoding="utf-8"
        )
    return path


def can_draw() -> None:
    """Raises where charts cannot be drawn, and says how they can."""
    _converter()


def against(
    sheet: Sheet, axis: str, lines: Sequence[Line], held: Mapping[str, Any], title: str = ""
) -> Chart:
    """Time against one axis, the others held; published lines dashed, forecasts dotted, failures as glyphs along the top."""
    points, failures = _points(sheet, axis, lines, held)
    every = [
        point for some in _points(sheet, axis, sheet.shown, held) for point in some
    ]  # all panels of a figure share their axes
    least = 1.0 if sheet.logarithmic else 15.0
    values = [point[key] for point in every for key in ("y", "low", "high") if key in point]
    x = {
        "field": "x",
        "type": "quantitative",
        "title": axis,
        "scale": _scale([p["x"] for p in every], least),
        "axis": _ticks(every),
    }
    y = {
        "field": "y",
        "type": "quantitative",
        "title": sheet.counted,
        "scale": _scale(values, least),
        "axis": _decades(_scale(values, least)),
    }
    order = [line.title for line in lines]
    legend = {"title": None, "orient": "bottom", "columns": 1, "labelLimit": 300}
    colour = {
        "field": "line",
        "type": "nominal",
        "scale": {"domain": order, "range": [colour_of(line.label) for line in lines]},
        "legend": legend,
    }
    shape = {
        "field": "line",
        "type": "nominal",
        "scale": {"domain": order, "range": [SHAPES[n % len(SHAPES)] for n in range(len(order))]},
        "legend": legend,
    }
    dash = {
        "field": "origin",
        "type": "nominal",
        "scale": {"domain": list(DASHES), "range": list(DASHES.values())},
        "legend": None,
    }
    drawn = {
        "data": {"values": points},
        "encoding": {"x": x, "y": y, "color": colour},
        "layer": [
            {
                "mark": {"type": "rule", "strokeWidth": 1.5, "opacity": 0.7},
                "encoding": {"y": {**y, "field": "low"}, "y2": {"field": "high"}},
            },
            {
                "mark": {"type": "line", "strokeWidth": 2},
                "encoding": {"strokeDash": dash, "detail": {"field": "line"}},
            },
            {
                "mark": {"type": "point", "filled": True, "size": 42, "opacity": 1},
                "encoding": {"shape": shape},
            },
        ],
    }
    layers = [drawn]
    if failures:
        places = {
            "x": x,
            "y": {"field": "top", "type": "quantitative", "scale": None, "axis": None},
            "color": {**colour, "legend": None},
        }
        layers.append(_failures(failures, places))
    resolve = (
        {"scale": {"y": "independent", "shape": "independent", "color": "independent"}} if failures else {}
    )
    return _dressed(layers, title or f"Time against {axis}{_held_words(held)}", _HEIGHT, resolve)


def heat(
    sheet: Sheet, line: Line, axes: tuple[str, str], held: Mapping[str, Any], domain: tuple[float, float]
) -> Chart:
    """One line's cells as a map; a cell that failed has a glyph in place of a colour."""
    down, across = axes
    done, failed = _spots(sheet, line, axes, held, domain)
    places = {
        name: {
            "field": name,
            "type": "ordinal",
            "title": axis,
            "sort": sheet.values(axis),
            "axis": _few_labels(sheet.values(axis)),
        }
        for name, axis in (("x", across), ("y", down))
    }
    bar = {
        "title": sheet.counted,
        "orient": "bottom",
        "direction": "horizontal",
        "gradientLength": 220,
        "format": ".2~g",
        "tickCount": 3,
    }
    scale = {"type": "log", "scheme": "cividis", "domain": list(domain)}
    colour = {
        "field": "value",
        "type": "quantitative",
        "scale": scale,
        "legend": None if len(done) <= _MOST_VALUES else bar,
    }
    layers: list[Spec] = []
    if done:
        layers.append(
            {
                "data": {"values": done},
                "mark": {"type": "rect", "stroke": None},
                "encoding": {**places, "color": colour},
            }
        )
    if done and len(done) <= _MOST_VALUES:
        ink = {"condition": {"test": "datum.light", "value": "#000000"}, "value": "#ffffff"}
        text = {**places, "text": {"field": "shown", "type": "nominal"}, "color": ink}
        layers.append({"data": {"values": done}, "mark": {"type": "text", "fontSize": 10}, "encoding": text})
    if failed:
        layers.append(
            _failures(failed, {**places, "color": {"value": INK}}, size=60 if len(line.rows) <= 400 else 12)
        )
    return _dressed(
        layers, f"{line.title}{_held_words(held)}", min(_HEIGHT, 40 * max(2, len(sheet.values(down))))
    )


def samples(sheet: Sheet, line: Line, cell: Cell) -> Chart:
    """Every process of one cell beside the others: its steady steps as points, its median as a bar, the result across."""
    row = line.rows[cell]
    groups = [group for group in row.groups if group]
    result = row.step_seconds if row.step_seconds is not None else statistics.median(groups[0])
    scale, unit = _fitting(result)
    points = [
        {
            "x": number + (place * 0.618 % 1 - 0.5) * 0.6,
            "y": seconds * scale,
        }  # golden steps spread points evenly without chance
        for number, group in enumerate(groups, 1)
        for place, seconds in enumerate(_thinned(group))
    ]
    bars = [
        {"x": n - 0.36, "x2": n + 0.36, "y": statistics.median(group) * scale}
        for n, group in enumerate(groups, 1)
    ]
    ticks = {"values": list(range(1, len(groups) + 1)), "format": "d", "grid": False}
    x = {
        "field": "x",
        "type": "quantitative",
        "title": "process",
        "scale": {"domain": [0.5, len(groups) + 0.5], "nice": False},
        "axis": ticks,
    }
    y = {"field": "y", "type": "quantitative", "title": f"{unit} per step", "scale": {"zero": False}}
    layers: list[Spec] = [
        {
            "data": {"values": points},
            "mark": {"type": "point", "filled": True, "size": 14, "opacity": 0.45, "color": COLOURS[0]},
            "encoding": {"x": x, "y": y},
        },
        {
            "data": {"values": bars},
            "mark": {"type": "rule", "strokeWidth": 2.5, "color": COLOURS[1]},
            "encoding": {"x": x, "x2": {"field": "x2"}, "y": y},
        },
        {
            "data": {"values": [{"y": result * scale}]},
            "mark": {"type": "rule", "strokeDash": [4, 3], "color": INK},
            "encoding": {"y": y},
        },
    ]
    return _dressed(layers, [line.title, sheet.words(cell)], 170)


def inline(svg: str, name: str, title: str, description: str) -> str:
    """A drawn chart within a page: in the page's own text colour, named for those who cannot see it, its ids its own."""
    size = re.search(r'width="([\d.]+)" height="([\d.]+)"', svg)
    width, height = size.groups() if size else ("360", "300")
    body = svg[svg.index(">") + 1 :]
    body = re.sub(
        r' (?:aria-[a-z]+|role|pointer-events|class)="[^"]*"', "", body
    )  # one description for the whole, below
    body = re.sub(r'<path(?: d="[^"]*")?(?: d="")? display="none"/>', "", body)
    body = re.sub(r"(\.\d\d)\d+", r"\1", body)
    body = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', body)
    body = re.sub(r"url\(#([^)]+)\)", rf"url(#{name}-\1)", body)
    body = body.replace(f'"{INK}"', '"currentColor"')
    head = f'<svg viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" aria-labelledby="{name}-t {name}-d">'
    return f'{head}<title id="{name}-t">{html.escape(title)}</title><desc id="{name}-d">{html.escape(description)}</desc>{body}'


def colour_of(label: str) -> str:
    """A label's colour: the same in every chart of every report, whatever is drawn beside it. Lines of one label differ in shape and dash."""
    known = _colours()
    return known[label] if label in known else COLOURS[zlib.crc32(label.encode()) % len(COLOURS)]


@functools.cache
def _colours() -> dict[str, str]:
    """All labels of the catalogue in a fixed order: those of its frameworks, then those that its studies published and nobody runs today."""
    from windtunnel.measurement import frameworks
    from windtunnel.study import study as studies

    places: dict[str, int] = {}
    for name in frameworks.names():
        start = max(places.values(), default=-1) + 1
        for variants in frameworks.named(
            name
        ).variants.values():  # variants for one job and for another are never drawn together and share places
            for place, variant in enumerate(variants, start):
                places.setdefault(f"{name}:{variant}", place)
    found = {label: COLOURS[place % len(COLOURS)] for label, place in places.items()}
    published = dict.fromkeys(
        told.label
        for name in studies.names()
        for figure in studies.find(name).figures
        for told in figure.published
    )
    inks = (INK, *COLOURS)  # the first of them is the one most often seen, so that today's have the colours
    return found | {
        label: inks[place % len(inks)]
        for place, label in enumerate(label for label in published if label not in found)
    }


def in_paper(sheet: Sheet, example_seconds: float) -> float:
    """What the paper would print for it."""
    return example_seconds * sheet.scale


def _points(
    sheet: Sheet, axis: str, lines: Sequence[Line], held: Mapping[str, Any]
) -> tuple[list[Spec], list[Spec]]:
    points, failures = [], []
    heights: dict[Any, int] = {}
    for line in lines:
        for cell, row in line.rows.items():
            if not _is_held(sheet, cell, held):
                continue
            spot = {"x": cell[sheet.axes.index(axis)], "line": line.title, "origin": line.origin}
            seconds = line.seconds(cell)
            if seconds is not None:
                low, high = (
                    value / row.batch if value else seconds for value in (row.low_seconds, row.high_seconds)
                )
                points.append(
                    {
                        **spot,
                        "y": in_paper(sheet, seconds),
                        "low": in_paper(sheet, low),
                        "high": in_paper(sheet, high),
                    }
                )
            elif row.state != "waiting":
                heights[spot["x"]] = (
                    heights.get(spot["x"], -6) + 13
                )  # several at one place stand under one another
                failures.append({**spot, "state": row.state, "top": heights[spot["x"]]})
    return points, failures


def _spots(
    sheet: Sheet, line: Line, axes: tuple[str, str], held: Mapping[str, Any], domain: tuple[float, float]
) -> tuple[list[Spec], list[Spec]]:
    down, across = (sheet.axes.index(axis) for axis in axes)
    done, failed = [], []
    for cell, row in line.rows.items():
        if not _is_held(sheet, cell, held):
            continue
        spot, seconds = {"x": cell[across], "y": cell[down]}, line.seconds(cell)
        if seconds is None:
            failed.append({**spot, "state": row.state})
        else:
            value = in_paper(sheet, seconds)
            done.append(
                {**spot, "value": value, "shown": units.digits(value), "light": _is_light(value, domain)}
            )
    return done, failed


def _failures(values: list[Spec], places: Spec, size: int = 60) -> Spec:
    states = sorted({value["state"] for value in values})
    legend = {
        "title": "no time because of",
        "orient": "bottom",
        "columns": 2,
        "symbolStrokeColor": INK,
        "symbolFillColor": "transparent",
        "labelLimit": 150,
    }
    shape = {
        "field": "state",
        "type": "nominal",
        "scale": {"domain": states, "range": [GLYPHS.get(state, OTHER_GLYPH) for state in states]},
        "legend": legend,
    }
    mark = {"type": "point", "filled": False, "size": size, "strokeWidth": 1.6, "opacity": 1}
    return {"data": {"values": values}, "mark": mark, "encoding": {**places, "shape": shape}}


def _scale(values: Iterable[Any], least: float) -> Spec:
    """Logarithmic where the values span more than `least`, so that the small ones can be seen too."""
    above = [value for value in values if isinstance(value, (int, float)) and value > 0]
    if above and max(above) / min(above) > least:
        return {"type": "log", "nice": False, "domain": [min(above) / 1.15, max(above) * 1.15]}
    return {"zero": True, "nice": True, "domain": [0, max(above, default=1.0) * 1.04]}


def _ticks(points: Sequence[Mapping[str, Any]]) -> Spec:
    places = sorted({point["x"] for point in points if isinstance(point["x"], (int, float))})
    return (
        {"values": places, "labelOverlap": "greedy", "format": "d"} if len(places) <= 12 else {"tickCount": 6}
    )


def _decades(scale: Spec) -> Spec:
    """Few marks on a logarithmic axis: 1, 2, 5 and so on, or the powers of ten alone where it is long."""
    if scale.get("type") != "log":
        return {"tickCount": 6}
    low, high = (math.log10(value) for value in scale["domain"])
    parts = (1, 2, 5) if high - low < 2.2 else (1, 3) if high - low < 3.5 else (1,)
    marks = [part * 10.0**power for power in range(math.floor(low), math.ceil(high) + 1) for part in parts]
    return {"values": [mark for mark in marks if low <= math.log10(mark) <= high], "format": "~g"}


def _few_labels(values: Sequence[Any]) -> Spec:
    every = max(1, math.ceil(len(values) / 12))
    return {"values": list(values[::every]), "labelAngle": 0, "grid": False, "ticks": False, "domain": False}


def _is_held(sheet: Sheet, cell: Cell, held: Mapping[str, Any]) -> bool:
    return all(cell[sheet.axes.index(axis)] == value for axis, value in held.items())


def _is_light(value: float, domain: tuple[float, float]) -> bool:
    """Whether cividis is light there, so that dark letters are readable on it."""
    low, high = domain
    return high > low and math.log(value / low) / math.log(high / low) > 0.4


def _thinned(group: Sequence[float]) -> list[float]:
    """A large group by even ranks, its least and greatest kept, so that the shape stays and the page stays small."""
    ordered = sorted(group)
    if len(ordered) <= _MOST_SAMPLES:
        return ordered
    return [
        ordered[round(place * (len(ordered) - 1) / (_MOST_SAMPLES - 1))] for place in range(_MOST_SAMPLES)
    ]


def _fitting(seconds: float) -> tuple[float, str]:
    """A factor and the unit that samples of about this length are best read in."""
    for limit, factor, unit in ((1.0, 1.0, "s"), (1e-3, 1e3, "ms")):
        if seconds >= limit:
            return factor, unit
    return 1e6, "us"


def _held_words(held: Mapping[str, Any]) -> str:
    return "".join(f", {axis} {value}" for axis, value in held.items())


def _dressed(layers: list[Spec], title: str | list[str], height: int, resolve: Spec | None = None) -> Chart:
    size = {"width": _WIDTH, "height": height, "background": "transparent"}
    spec = {"$schema": _SCHEMA, "title": title, **size, "layer": layers, "config": _CONFIG}
    return Chart(spec={**spec, "resolve": resolve} if resolve else spec)


def _converter() -> Any:
    try:
        import vl_convert
    except ImportError as error:
        raise Unavailable(
            "Charts are drawn by vl-convert, which is not installed.", hint=EXTRA_HINT
        ) from error
    return vl_convert


def _version() -> str:
    """The newest version of the language that the converter has."""
    return str(_converter().get_vegalite_versions()[-1])
