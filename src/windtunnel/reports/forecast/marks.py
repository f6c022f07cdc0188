"""Marks that all charts of a forecast share: bars, keys, tables of the same numbers, text in its place.

Charts are SVG whose places are shares of the width, so that text keeps its size on a narrow screen. Colours
come from classes of the style (`kind`), so that a part has one colour in every chart and in both themes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from windtunnel.reports.page import Column, Markup, Piece, anchor, element, joined, table
from windtunnel.results import PARTS

# From the bottom of a stack to its top: what stays for a whole run, then what comes and goes with a step.
MEMORY_CLASSES = (
    *("weights", "optimiser", "gradients", "gathered weights", "buckets", "data", "activations"),
    *("temporary", "workspace", "fragmentation", "CUDA context", "spare"),
)
_KINDS = frozenset((*PARTS, *MEMORY_CLASSES))


def kind(name: str) -> str:
    """The class that gives a part or a memory class its colour."""
    return f"c-{anchor(name)}" if name in _KINDS else "c-other"


def share(value: float) -> str:
    """A place or a length as a share of the width."""
    return f"{100 * value:.6g}%"


def percent(value: float) -> str:
    """A share in words; a small one is not shown as nothing."""
    return "below 1 %" if 0 < value < 0.005 else f"{value:.0%}".replace("%", " %")


def drawing(height: float, *marks: Piece, label: str, class_: str = "chart") -> Markup:
    """A chart as wide as its place. `label` says in words what it shows."""
    return element(
        "svg", *marks, class_=class_, width="100%", height=f"{height:g}", role="img", aria_label=label
    )


def box(x: float, width: float, y: float, height: float, class_: str, *inside: Piece) -> Markup:
    """A rectangle; `x` and `width` are shares of the chart, `y` and `height` pixels."""
    return element(
        "rect", *inside, x=share(x), y=f"{y:g}", width=share(width), height=f"{height:g}", class_=class_
    )


def rule(x1: float, y1: float, x2: float, y2: float, class_: str = "grid") -> Markup:
    return element("line", x1=share(x1), x2=share(x2), y1=f"{y1:g}", y2=f"{y2:g}", class_=class_)


def words(x: float, y: float, text: str, class_: str = "") -> Markup:
    """Text in a chart; the classes `mid` and `end` say on which side of its place it stands."""
    return element("text", text, x=share(x), y=f"{y:g}", class_=class_ or None)


def stretched(height: float, *marks: Piece, y: float = 0.0) -> Markup:
    """A part of a chart with places from 0 to 1000 both ways, stretched to the width: for curves."""
    return element(
        "svg",
        *marks,
        x="0",
        y=f"{y:g}",
        width="100%",
        height=f"{height:g}",
        viewBox="0 0 1000 1000",
        preserveAspectRatio="none",
        class_="stretched",
    )


def stacked(parts: Sequence[tuple[str, float]], whole: float, height: float, label: str) -> Markup:
    """One bar whose segments are the parts of a whole, in the given order."""
    segments, start = [], 0.0
    for name, value in parts:
        width = value / whole if whole else 0.0
        if width > 0:
            segments.append(box(start, width, 0, height, f"seg {kind(name)}", element("title", name)))
        start += width
    return drawing(height, *segments, label=label, class_="chart bar")


def legend(entries: Iterable[tuple[str, str]]) -> Markup:
    """The key of a chart: a colour, a name and its value."""
    items = (
        element("li", swatch(name), element("span", name), " ", element("b", value))
        for name, value in entries
    )
    return element("ul", *items, class_="legend")


def swatch(name: str) -> Markup:
    return element("span", class_=f"swatch {kind(name)}", aria_hidden="true")


def numbers(caption: str, heads: Sequence[str], rows: Sequence[Sequence[Piece]]) -> Markup:
    """The numbers of a chart as a table, folded; every column but the first holds numbers."""
    columns = [Column(head=head, kind="n" if place else "") for place, head in enumerate(heads)]
    return element(
        "details", element("summary", "Show the numbers"), table(caption, columns, rows), class_="numbers"
    )


def panel(title: str, *pieces: Piece, lead: Piece = "", id_: str | None = None) -> Markup:
    """A part of the page with a heading and a sentence that says what it shows."""
    head = element("h3", title)
    said = [element("p", lead, class_="lead")] if lead else []
    return element("section", head, *said, *pieces, class_="panel", id=id_)


def note(*pieces: Piece) -> Markup:
    return element("p", *pieces, class_="note")


def shares_in_words(parts: Mapping[str, float], whole: float) -> str:
    """Parts of a whole for a screen reader: compute 99 %, update 1 %."""
    found = [f"{name} {percent(value / whole)}" for name, value in parts.items() if value > 0 and whole]
    return ", ".join(found)


def lines(pieces: Iterable[Piece]) -> Markup:
    return joined(pieces, "\n")
