"""Small heat maps as HTML tables: every value is readable, by a screen reader too, and the page stays small.

A larger grid is drawn as a chart.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from windtunnel import units
from windtunnel.reports.charts import Fixed
from windtunnel.reports.lines import FigureLine, Sheet
from windtunnel.reports.page import Markup, element, joined
from windtunnel.reports.palette import glyph_of

MOST_SIDE = 12
STEPS = 24  # colours of the scale; `heat.css` has a class for each, because a page allows no inline style
# Cividis, which looks the same with any colour vision, at even steps (Nuñez, Anderton and Renslow 2018).
_CIVIDIS = (
    (0, 34, 78),
    (26, 56, 111),
    (71, 81, 107),
    (104, 106, 112),
    (138, 133, 120),
    (176, 162, 112),
    (217, 193, 91),
    (254, 232, 56),
)


def is_small(sheet: Sheet, axes: tuple[str, str]) -> bool:
    return all(len(sheet.values(axis)) <= MOST_SIDE for axis in axes)


def grid(
    sheet: Sheet, line: FigureLine, axes: tuple[str, str], fixed: Fixed, domain: tuple[float, float]
) -> Markup:
    """One line over two axes; a cell without a time has its glyph and its word."""
    down, across = axes
    rows, columns = (_values(sheet, line, axis) for axis in axes)
    heads = [f"{down} \\ {across}", *map(str, columns)]
    body = [
        element(
            "tr",
            element("th", str(row), scope="row"),
            *(_cell(sheet, line, {**fixed, down: row, across: column}, domain) for column in columns),
        )
        for row in rows
    ]
    name = f"{line.title}{''.join(f', {axis} {value}' for axis, value in fixed.items())}"
    table = element(
        "table",
        element("caption", element("strong", name)),
        element("thead", element("tr", *(element("th", head, scope="col") for head in heads))),
        element("tbody", *body),
        class_="map",
    )
    return element(
        "div",
        table,
        class_="box plain",
        tabindex="0",
        role="group",
        aria_label=f"Heat map: {sheet.heading}, {name}",
    )


def _values(sheet: Sheet, line: FigureLine, axis: str) -> list[object]:
    """The values of an axis for which the line has cells, in order."""
    place = sheet.axes.index(axis)
    known = {cell[place] for cell in line.rows}
    return [value for value in sheet.values(axis) if value in known]


def legend(domain: tuple[float, float], counted: str) -> Markup:
    """The colour scale that all maps of a figure share."""
    low, high = domain
    bar = element(
        "span",
        *(element("i", class_=f"h{step}") for step in range(STEPS)),
        class_="scale",
        aria_hidden="true",
    )
    return element(
        "p",
        joined([units.digits(low), " ", bar, " ", units.digits(high), f" {counted}, on a logarithmic scale"]),
        class_="soft",
    )


def glyph(state: str) -> Markup:
    """The glyph of a state, as in charts."""
    return Markup(
        '<svg class="g" width="14" height="14" viewBox="-1.6 -1.6 3.2 3.2" aria-hidden="true">'
        f'<path d="{glyph_of(state)}" fill="none" stroke="currentColor" stroke-width=".34"/></svg> '
    )


def colour(value: float, domain: tuple[float, float]) -> tuple[str, str]:
    """The background colour of a value, and a text colour that is readable on it."""
    place = _place(value, domain) * (len(_CIVIDIS) - 1)
    before = min(int(place), len(_CIVIDIS) - 2)
    rest = place - before
    mixed = tuple(
        round(a + (b - a) * rest) for a, b in zip(_CIVIDIS[before], _CIVIDIS[before + 1], strict=True)
    )
    return _hex(mixed), "#fff" if contrast(mixed, (255, 255, 255)) > contrast(mixed, (0, 0, 0)) else "#000"


def step_of(value: float, domain: tuple[float, float]) -> int:
    """The step of the scale whose colour is nearest to that of a value."""
    return round(_place(value, domain) * (STEPS - 1))


def heat_css() -> str:
    """What `design/heat.css` holds: a background and a readable ink for each step."""
    lines = ["/* Steps of the cividis scale, as `windtunnel.reports.maps` computes them. */"]
    for step in range(STEPS):
        back, ink = colour(10.0 ** (step / (STEPS - 1)), (1.0, 10.0))
        lines.append(f".h{step} {{ background: {back}; color: {ink}; }}")
    return "\n".join(lines) + "\n"


def _place(value: float, domain: tuple[float, float]) -> float:
    """Where a value lies on the scale, from 0 to 1."""
    low, high = domain
    place = math.log(value / low) / math.log(high / low) if high > low else 0.0
    return min(1.0, max(0.0, place))


def contrast(one: tuple[int, ...], other: tuple[int, ...]) -> float:
    """The contrast ratio of two colours (WCAG 2.2), from 1 to 21."""
    bright = sorted((_luminance(one), _luminance(other)))
    return (bright[1] + 0.05) / (bright[0] + 0.05)


def _luminance(colour: tuple[int, ...]) -> float:
    parts = [
        (part / 255) / 12.92 if part / 255 <= 0.04045 else ((part / 255 + 0.055) / 1.055) ** 2.4
        for part in colour
    ]
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]


def _cell(sheet: Sheet, line: FigureLine, place: Mapping[str, object], domain: tuple[float, float]) -> Markup:
    cell = tuple(place[axis] for axis in sheet.axes)
    row, seconds = line.rows.get(cell), line.seconds(cell)
    if row is None:
        return element("td", "not in the grid", class_="none")
    if seconds is None:
        return element(
            "td",
            glyph(row.state),
            element("small", row.state),
            class_="waiting" if row.state == "waiting" else "lost",
            title=row.error or None,
        )
    value = sheet.in_unit(seconds)
    return element("td", units.digits(value), class_=f"h{step_of(value, domain)}")


def _hex(colour: tuple[int, ...]) -> str:
    return "#" + "".join(f"{part:02x}" for part in colour)
