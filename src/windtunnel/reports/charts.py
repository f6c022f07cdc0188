"""Charts of a study: plain Vega-Lite descriptions for notebooks, pages and picture files, drawn on demand."""

from __future__ import annotations

import html
import math
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from windtunnel import records, units
from windtunnel.errors import BadInput, Unavailable
from windtunnel.foreign import shown, shown_lines
from windtunnel.reports.lines import AxisValues, FigureLine, Sheet, without_common_end
from windtunnel.reports.palette import COLOURS, DASHES, INK, SHAPES, colour_of, glyph_of

if TYPE_CHECKING:
    from windtunnel.study.rows import StudyRow

VegaLite = dict[str, object]
Title = str | list[str] | VegaLite  # one line, several, or a text with a smaller line below it
Fixed = Mapping[str, object]  # the other axes, each at one value
SUFFIXES = (".svg", ".png", ".html")
EXTRA_HINT = 'Install it with: pip install "windtunnel[plots]"'
_SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"  # the name of the language, never fetched
_MOST_VALUES = 60  # in a heat map with more cells the values would not be readable
_MOST_SAMPLES = 80  # of each process
_WIDTH, _HEIGHT = 300, 220
_TAG = re.compile(r'<[^<>"]*(?:"[^"]*"[^<>"]*)*>')  # of a drawing; a value may hold ">"
_NOT_FOR_PAGES = re.compile(r' (?:aria-[a-z]+|role|pointer-events|class)="[^"]*"')
_HIDDEN = re.compile(r'<path(?: d="[^"]*")?(?: d="")? display="none"/>')
_LONG_NUMBER = re.compile(r"(\.\d\d)\d+")
_TEXT: VegaLite = {
    "labelColor": INK,
    "titleColor": INK,
    "labelFontSize": 11,
    "titleFontSize": 11,
    "titleFontWeight": "normal",
}
_FAINT: VegaLite = {
    "gridColor": INK,
    "gridOpacity": 0.13,
    "domainColor": INK,
    "tickColor": INK,
    "domainOpacity": 0.5,
    "tickOpacity": 0.5,
}
_CONFIG: VegaLite = {
    "aria": False,
    "view": {"stroke": None},
    "axis": {**_TEXT, **_FAINT},
    "legend": {**_TEXT, "symbolOpacity": 1},
    "title": {"color": INK, "fontSize": 13, "anchor": "start", "fontWeight": "bold", "limit": 360}
    | {"subtitleColor": INK, "subtitleFontSize": 11},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A chart as plain data. It shows itself in a notebook; `altair()` gives an object to change."""

    spec: VegaLite

    def altair(self) -> Any:
        """The same chart as an Altair object."""
        try:
            import altair
        except ImportError as error:
            raise Unavailable("Altair is not installed.", hint=EXTRA_HINT) from error
        return altair.Chart.from_dict(self.spec)

    def svg(self) -> str:
        return str(_converter().vegalite_to_svg(_harmless(self.spec), vl_version=_version()))

    def save(self, path: Path | str) -> Path:
        return save(self, Path(path))

    def _repr_svg_(self) -> str:
        return Chart(spec={**self.spec, "background": "white"}).svg()


def _harmless(spec: Any) -> Any:
    """The chart with names and labels that can only be read."""
    if isinstance(spec, str):
        return shown_lines(spec)
    if isinstance(spec, (int, float)):  # most of what a chart holds
        return spec
    if isinstance(spec, Mapping):
        return {key: _harmless(value) for key, value in spec.items()}
    return [_harmless(value) for value in spec] if isinstance(spec, (list, tuple)) else spec


def save(chart: Chart, path: Path) -> Path:
    """Write a chart as .svg, .png or .html. The HTML file is complete and opens without a network."""
    if path.suffix not in SUFFIXES:
        raise BadInput(
            f"A chart cannot be written as {path.name!r}.",
            hint=f"End its name with one of: {', '.join(SUFFIXES)}.",
        )
    solid = _harmless({**chart.spec, "background": "white"})
    if path.suffix == ".png":
        body = _converter().vegalite_to_png(solid, vl_version=_version(), scale=2)
    elif path.suffix == ".svg":
        body = Chart(spec=solid).svg()
    else:
        body = _converter().vegalite_to_html(solid, vl_version=_version(), bundle=True)
    return records.write_whole(path, body)


def require_converter() -> None:
    """Raise where the library that draws charts is missing, with the command that installs it."""
    _converter()


def against(
    sheet: Sheet, axis: str, lines: Sequence[FigureLine], fixed: Fixed, title: str | list[str] = ""
) -> Chart:
    """Time against one axis: published lines dashed, forecasts dotted, failures as glyphs along the top."""
    marks, shared = _marks(sheet, axis, lines, fixed), _marks(sheet, axis, sheet.shown, fixed)
    least = 1.0 if sheet.logarithmic else 15.0
    x = quantity("x", axis, _scale(shared.xs, least), _ticks(shared.xs))
    scale = _scale(shared.ys, least)  # all panels of a figure share their axes
    y = quantity("y", sheet.counted, scale, _log_ticks(scale))
    titles = [line.title for line in lines]
    names, common = without_common_end(titles)
    short = dict(zip(titles, names, strict=True))
    for mark in (*marks.points, *marks.failures):
        mark["line"] = short[str(mark["line"])]
    legend = {"title": None, "orient": "bottom", "columns": 1, "labelLimit": 320}
    colour = category("line", names, _colours(lines), legend)
    shape = category("line", names, [SHAPES[n % len(SHAPES)] for n in range(len(names))], legend)
    dash = category("origin", list(DASHES), list(DASHES.values()), None)
    bars = {"y": {**y, "field": "low"}, "y2": {"field": "high"}}
    times: VegaLite = {
        "data": {"values": marks.points},
        "encoding": {"x": x, "y": y, "color": colour},
        "layer": [
            {"mark": {"type": "rule", "strokeWidth": 1.5, "opacity": 0.7}, "encoding": bars},
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
    heading: Title = title or f"Time against {axis}{_fixed_words(fixed)}"
    if common:
        heading = {"text": heading, "subtitle": f"All: {common}"}
    if not marks.failures:
        return layered([times], heading, _HEIGHT)
    top = {"field": "top", "type": "quantitative", "scale": None, "axis": None}
    glyphs = _glyph_layer(marks.failures, {"x": x, "y": top, "color": {**colour, "legend": None}})
    apart = dict.fromkeys(("y", "shape", "color"), "independent")
    return layered([times, glyphs], heading, _HEIGHT, {"scale": apart})


def heat(
    sheet: Sheet, line: FigureLine, axes: tuple[str, str], fixed: Fixed, domain: tuple[float, float]
) -> Chart:
    """One line's cells as a heat map; a cell without a time has a glyph instead of a colour."""
    down, across = axes
    places = {"x": _ordinal("x", across, sheet.values(across)), "y": _ordinal("y", down, sheet.values(down))}
    done, failed = _squares(sheet, line, axes, fixed)
    readable = len(done) <= _MOST_VALUES
    if readable:
        done = [{**square, **_words_on(square["value"], domain)} for square in done]
    layers: list[VegaLite] = []
    if done:
        colour = {
            "field": "value",
            "type": "quantitative",
            "scale": {"type": "log", "scheme": "cividis", "domain": list(domain)},
            "legend": None if readable else _colour_bar(sheet.counted),
        }
        square = {"type": "rect", "stroke": None}
        layers.append({"data": {"values": done}, "mark": square, "encoding": {**places, "color": colour}})
    if done and readable:
        ink = {"condition": {"test": "datum.light", "value": "#000000"}, "value": "#ffffff"}
        text = {**places, "text": {"field": "shown", "type": "nominal"}, "color": ink}
        layers.append({"data": {"values": done}, "mark": {"type": "text", "fontSize": 10}, "encoding": text})
    if failed:
        size = 60 if len(line.rows) <= 400 else 12
        layers.append(_glyph_layer(failed, {**places, "color": {"value": INK}}, size))
    height = min(_HEIGHT, 40 * max(2, len(sheet.values(down))))
    return layered(layers, f"{line.title}{_fixed_words(fixed)}", height)


def samples(sheet: Sheet, line: FigureLine, cell: AxisValues) -> Chart:
    """The processes of one cell: steady steps as points, medians as bars, the result as a dashed line."""
    row = line.rows[cell]
    groups = [group for group in row.groups if group]
    result = row.step_seconds if row.step_seconds is not None else statistics.median(groups[0])
    scale, unit = _fitting_unit(result)
    points = [
        # Steps of the golden ratio spread the points evenly without chance.
        {"x": number + (place * 0.618 % 1 - 0.5) * 0.6, "y": seconds * scale}
        for number, group in enumerate(groups, 1)
        for place, seconds in enumerate(_thinned(group))
    ]
    bars = [
        {"x": n - 0.36, "x2": n + 0.36, "y": statistics.median(group) * scale}
        for n, group in enumerate(groups, 1)
    ]
    ticks: VegaLite = {"values": list(range(1, len(groups) + 1)), "format": "d", "grid": False}
    x = quantity("x", "process", {"domain": [0.5, len(groups) + 0.5], "nice": False}, ticks)
    y = {"field": "y", "type": "quantitative", "title": f"{unit} per step", "scale": {"zero": False}}
    point = {"type": "point", "filled": True, "size": 14, "opacity": 0.45, "color": COLOURS[0]}
    bar = {"type": "rule", "strokeWidth": 2.5, "color": COLOURS[1]}
    dashed = {"type": "rule", "strokeDash": [4, 3], "color": INK}
    layers: list[VegaLite] = [
        {"data": {"values": points}, "mark": point, "encoding": {"x": x, "y": y}},
        {"data": {"values": bars}, "mark": bar, "encoding": {"x": x, "x2": {"field": "x2"}, "y": y}},
        {"data": {"values": [{"y": result * scale}]}, "mark": dashed, "encoding": {"y": y}},
    ]
    return layered(layers, [line.title, sheet.words(cell)], 170)


def inline(svg: str, name: str, title: str, description: str) -> str:
    """A drawn chart inside a page: in the page's text colour, with unique ids and a description in words."""
    size = re.search(r'width="([\d.]+)" height="([\d.]+)"', svg)
    width, height = size.groups() if size else ("360", "300")
    body = svg[svg.index(">") + 1 :]
    # One description for the whole chart replaces those of its parts.
    body = _TAG.sub(lambda tag: _plain_tag(tag[0], name), body)
    return (
        f'<svg viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img"'
        f' aria-labelledby="{name}-t {name}-d"><title id="{name}-t">{html.escape(shown(title))}</title>'
        f'<desc id="{name}-d">{html.escape(shown_lines(description))}</desc>{body}'
    )


def _plain_tag(tag: str, name: str) -> str:
    """A tag of a drawing for a page. Only tags change: a label may look like an attribute."""
    tag = _NOT_FOR_PAGES.sub("", tag)
    if "display=" in tag and _HIDDEN.fullmatch(tag):
        return ""
    tag = _LONG_NUMBER.sub(r"\1", tag)
    if "id=" in tag:
        tag = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', tag)
    if "url(" in tag:
        tag = re.sub(r"url\(#([^)]+)\)", rf"url(#{name}-\1)", tag)
    return tag.replace(f'"{INK}"', '"currentColor"')


def _colours(lines: Sequence[FigureLine]) -> list[str]:
    """The colour of each line's label. Where all are forecasts, lines of one label differ."""
    labels = {line.label for line in lines}
    is_forecast = all(line.origin == "forecast" for line in lines)
    if is_forecast and len(labels) < len(lines) <= len(COLOURS):
        return list(COLOURS[: len(lines)])
    return [colour_of(line.label) for line in lines]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Marks:
    """Points for times, glyphs for cells without one; `xs` and `ys` are all numbers on the axes."""

    points: list[VegaLite]
    failures: list[VegaLite]
    xs: list[object]
    ys: list[float]


def _marks(sheet: Sheet, axis: str, lines: Sequence[FigureLine], fixed: Fixed) -> _Marks:
    marks = _Marks(points=[], failures=[], xs=[], ys=[])
    heights: dict[object, int] = {}
    place = sheet.axes.index(axis)
    for line in lines:
        for cell, row in _matching(sheet, line, fixed):
            x = cell[place]
            mark: VegaLite = {"x": x, "line": line.title, "origin": line.origin}
            seconds = line.seconds(cell)
            if seconds is not None:
                ends = (
                    value / row.batch if value else seconds for value in (row.low_seconds, row.high_seconds)
                )
                y, low, high = (sheet.in_unit(value) for value in (seconds, *ends))
                marks.points.append({**mark, "y": y, "low": low, "high": high})
                marks.ys.extend((y, low, high))
            elif row.state != "waiting":
                heights[x] = heights.get(x, -6) + 13  # several at one x are stacked downwards
                marks.failures.append({**mark, "state": row.state, "top": heights[x]})
            else:
                continue
            marks.xs.append(x)
    return marks


def _squares(
    sheet: Sheet, line: FigureLine, axes: tuple[str, str], fixed: Fixed
) -> tuple[list[dict[str, Any]], list[VegaLite]]:
    """The cells of a heat map: those with a time, and those without."""
    down, across = (sheet.axes.index(axis) for axis in axes)
    done: list[dict[str, Any]] = []
    failed: list[VegaLite] = []
    for cell, row in _matching(sheet, line, fixed):
        square: VegaLite = {"x": cell[across], "y": cell[down]}
        seconds = line.seconds(cell)
        if seconds is None:
            failed.append({**square, "state": row.state})
        else:
            done.append({**square, "value": sheet.in_unit(seconds)})
    return done, failed


def _words_on(value: float, domain: tuple[float, float]) -> VegaLite:
    """The value as it is written on its square, and whether the square is light."""
    return {"shown": units.digits(value), "light": _is_light(value, domain)}


def _glyph_layer(values: list[VegaLite], places: Mapping[str, object], size: int = 60) -> VegaLite:
    states = sorted({str(value["state"]) for value in values})
    legend = {
        "title": "no time because of",
        "orient": "bottom",
        "columns": 2,
        "symbolStrokeColor": INK,
        "symbolFillColor": "transparent",
        "labelLimit": 150,
    }
    shape = category("state", states, [glyph_of(state) for state in states], legend)
    mark = {"type": "point", "filled": False, "size": size, "strokeWidth": 1.6, "opacity": 1}
    return {"data": {"values": values}, "mark": mark, "encoding": {**places, "shape": shape}}


def quantity(field: str, title: str, scale: VegaLite, axis: VegaLite) -> VegaLite:
    """An axis of numbers."""
    return {"field": field, "type": "quantitative", "title": title, "scale": scale, "axis": axis}


def category(
    field: str, domain: Sequence[str], values: Sequence[object], legend: Mapping[str, object] | None
) -> VegaLite:
    """A colour, shape or dash for each word."""
    scale = {"domain": list(domain), "range": list(values)}
    return {"field": field, "type": "nominal", "scale": scale, "legend": legend}


def _ordinal(field: str, title: str, values: Sequence[object]) -> VegaLite:
    """An axis with at most 12 labels."""
    every = max(1, math.ceil(len(values) / 12))
    axis = {"values": list(values[::every]), "labelAngle": 0, "grid": False, "ticks": False, "domain": False}
    return {"field": field, "type": "ordinal", "title": title, "sort": list(values), "axis": axis}


def _colour_bar(title: str) -> VegaLite:
    return {
        "title": title,
        "orient": "bottom",
        "direction": "horizontal",
        "gradientLength": 220,
        "format": ".2~g",
        "tickCount": 3,
    }


def _scale(values: Iterable[object], least: float) -> VegaLite:
    """Logarithmic where the largest value is over `least` times the smallest: small ones stay visible."""
    above = [value for value in values if isinstance(value, (int, float)) and value > 0]
    if above and max(above) / min(above) > least:
        return {"type": "log", "nice": False, "domain": [min(above) / 1.15, max(above) * 1.15]}
    return {"zero": True, "nice": True, "domain": [0, max(above, default=1.0) * 1.04]}


def _ticks(values: Iterable[object]) -> VegaLite:
    places = sorted({value for value in values if isinstance(value, (int, float))})
    if len(places) > 12:
        return {"tickCount": 6}
    return {"values": places, "labelOverlap": "greedy", "format": "d"}


def _log_ticks(scale: VegaLite) -> VegaLite:
    """Few ticks on a logarithmic axis: 1, 2, 5 and so on, or only powers of ten where it is long."""
    if scale.get("type") != "log":
        return {"tickCount": 6}
    domain = scale["domain"]
    assert isinstance(domain, list)
    low, high = (math.log10(value) for value in domain)
    parts = (1, 2, 5) if high - low < 2.2 else (1, 3) if high - low < 3.5 else (1,)
    ticks = [part * 10.0**power for power in range(math.floor(low), math.ceil(high) + 1) for part in parts]
    return {"values": [tick for tick in ticks if low <= math.log10(tick) <= high], "format": "~g"}


def _matching(sheet: Sheet, line: FigureLine, fixed: Fixed) -> list[tuple[AxisValues, StudyRow]]:
    """The cells of a line that have these values on these axes. A long study asks for many thousands."""
    cells = list(line.rows.items())
    for axis, value in fixed.items():
        place = sheet.axes.index(axis)
        cells = [each for each in cells if each[0][place] == value]
    return cells


def _is_light(value: float, domain: tuple[float, float]) -> bool:
    """Whether cividis is light at this value, so that dark letters are readable on it."""
    low, high = domain
    return high > low and math.log(value / low) / math.log(high / low) > 0.4


def _thinned(group: Sequence[float]) -> list[float]:
    """A large group by even ranks, ends included: the distribution stays, the page stays small."""
    ordered = sorted(group)
    if len(ordered) <= _MOST_SAMPLES:
        return ordered
    last = len(ordered) - 1
    return [ordered[round(place * last / (_MOST_SAMPLES - 1))] for place in range(_MOST_SAMPLES)]


def _fitting_unit(seconds: float) -> tuple[float, str]:
    """A factor and the unit in which samples of about this length are best read."""
    for limit, factor, unit in ((1.0, 1.0, "s"), (1e-3, 1e3, "ms")):
        if seconds >= limit:
            return factor, unit
    return 1e6, "us"


def _fixed_words(fixed: Fixed) -> str:
    return "".join(f", {axis} {value}" for axis, value in fixed.items())


def layered(layers: Sequence[VegaLite], title: Title, height: int, resolve: VegaLite | None = None) -> Chart:
    """Layers in one frame, in the style of all charts."""
    size = {"width": _WIDTH, "height": height, "background": "transparent"}
    spec: VegaLite = {"$schema": _SCHEMA, "title": title, **size, "layer": list(layers), "config": _CONFIG}
    return Chart(spec={**spec, "resolve": resolve} if resolve else spec)


def beside(panels: Sequence[VegaLite], title: str) -> Chart:
    """Panels side by side, in the style of all charts."""
    shared = {"scale": {"color": "shared", "shape": "shared", "y": "independent"}}
    spec: VegaLite = {"$schema": _SCHEMA, "title": title, "hconcat": list(panels), "resolve": shared}
    return Chart(spec={**spec, "background": "transparent", "config": _CONFIG})


def _converter() -> ModuleType:
    try:
        import vl_convert
    except ImportError as error:
        raise Unavailable(
            "Charts are drawn by vl-convert, which is not installed.", hint=EXTRA_HINT
        ) from error
    return vl_convert


def _version() -> str:
    """The newest version of Vega-Lite that the converter has."""
    return str(_converter().get_vegalite_versions()[-1])
