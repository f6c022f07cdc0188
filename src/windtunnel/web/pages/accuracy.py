"""How good forecasts are: every table of measured steps, beside the simplest baseline."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from typing import Any

from starlette.exceptions import HTTPException

from windtunnel.machine import machine as machines
from windtunnel.machine.machine import CATALOG, Machine
from windtunnel.reports.forecast.marks import box, drawing, rule, share, words
from windtunnel.reports.page import Column, Markup, Piece, element, joined, table
from windtunnel.web.states import empty

FILE = CATALOG / "accuracy.json"  # what `windtunnel validate` said; benchmarks/accuracy.py writes it
_SECTIONS = {
    "all": "In all",
    "kind": "By kind of network",
    "precision": "By number format",
    "execution": "By execution",
    "compiled": "torch.compile: step, gain and memory",
}
_WORDS = (
    ("step", "the time of one training step"),
    ("device-bound, host-bound", "steps in which the device sets the pace; in which the host's launches do"),
    ("device", "the time in which the device computes"),
    ("memory", "the peak of the memory in use"),
    ("median error", "half of the steps are closer than this"),
    ("90th percentile", "nine of ten steps are closer than this"),
    ("bias", "the median of the signed errors: below 0, forecasts are too short"),
    ("baseline", "the plain roofline: 0.75 of the stated rates, launches cost nothing"),
)
_ABOUT = {
    "h200": "NVIDIA H200. The forecast was developed against these steps; nothing was fitted to them.",
    "h200-second": "NVIDIA H200, other networks. Judged once after the code was frozen; the code was then "
    "changed after a look at them.",
    "h200-compiled": "NVIDIA H200. Networks with torch.compile, beside the same networks without it.",
}
_QUANTITIES = {"step": "Time of a step", "device": "Time of the device", "memory": "Peak memory"}
_AXIS = 1.0  # errors are drawn up to the measured value either way
_STRIP = 40.0  # pixels: the height of a strip of dots


@functools.cache
def _data() -> dict[str, Any]:
    try:
        found = json.loads(FILE.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def every() -> tuple[str, Markup]:
    parts: list[Piece] = [
        element("h1", "Accuracy"),
        element(
            "p",
            "How far forecasts are from measured steps. Below each error stands that of the simplest "
            "baseline on the same steps, a plain roofline. The command windtunnel validate computes the same "
            "again.",
            class_="lead",
        ),
        element("details", element("summary", "What the words mean"), _words_list(), class_="trust"),
    ]
    if not _data():
        parts.append(
            empty("No table yet", "Make it with python benchmarks/accuracy.py in a checkout of the source.")
        )
        return "Accuracy", joined(parts, "\n")
    parts.append(element("div", *(_card(name, found) for name, found in _data().items()), class_="panels"))
    return "Accuracy", joined(parts, "\n")


def _words_list() -> Markup:
    items = (joined([element("dt", name), element("dd", says)]) for name, says in _WORDS)
    return element("dl", *items, class_="facts")


def _card(name: str, found: dict[str, Any]) -> Markup:
    """One table in short: its errors as bars."""
    judged = [each for each in found["judgements"] if each["section"] == "all" and "errors" in each]
    return element(
        "section",
        element("h2", element("a", name, href=f"/accuracy/{name}")),
        element("p", _about(name), class_="lead"),
        element("ul", *(element("li", *_line(each)) for each in judged), class_="rows errors"),
        class_="panel",
        aria_label=name,
    )


def _line(judged: dict[str, Any]) -> list[Piece]:
    baseline = _baseline(judged)
    beside = f"baseline {_percent(baseline['median'])}" if baseline else ""
    said = f"{judged['errors']['rows']:,} steps{', ' if beside else ''}{beside}"
    return [
        element("span", judged["name"], class_="row-name"),
        _bars(judged),
        element("span", element("b", _percent(judged["errors"]["median"])), f" {said}", class_="row-value"),
    ]


def _about(name: str) -> str:
    """What was measured, in one sentence."""
    if name in _ABOUT:
        return _ABOUT[name]
    title = Machine.named(name).title if name in machines.names() else ""
    return f"{title[:1].upper()}{title[1:]}." if title else ""


def one(name: str) -> tuple[str, Markup]:
    found = _data().get(name)
    if found is None:
        raise HTTPException(404, f"There is no table of accuracy for {name[:60]!r}.")
    parts: list[Piece] = [
        element("p", element("a", "Accuracy", href="/accuracy"), " / ", name, class_="crumbs"),
        element("h1", f"Accuracy on {name}"),
        element("p", _about(name), class_="lead"),
        element("h2", "Each step is a dot"),
        element(
            "p",
            "Left of the middle the forecast is too low, right of it too high; the band is 10 % either way. "
            "Grey dots are the baseline. Dots at an end lie there or beyond.",
            class_="lead",
        ),
        *(_dots(title, quantity, found["rows"]) for quantity, title in _QUANTITIES.items()),
    ]
    heads = ("Rows", "Median error", "90th percentile", "Bias", "Baseline's median")
    columns = [Column(head="Judged"), *(Column(head=head, kind="n") for head in heads)]
    for section, title in _SECTIONS.items():
        judged = [each for each in found["judgements"] if each["section"] == section]
        rows = [[each["name"], *_numbers(each)] for each in judged if "errors" in each]
        if rows:
            parts += [element("h2", title), table(title, columns, rows)]
        shares = [f"{each['name']}: {each['count']} of {each['rows']}" for each in judged if "count" in each]
        said = "; ".join(shares)
        parts += [element("p", f"{said[:1].upper()}{said[1:]}.", class_="soft")] if shares else []
    parts += [element("h2", "All steps"), element("div", _all_rows(found["rows"]), class_="steps")]
    return f"Accuracy on {name}", joined(parts, "\n")


def _dots(title: str, quantity: str, rows: Sequence[dict[str, Any]]) -> Markup:
    """The error of each step as a dot on one axis, above those of the baseline."""
    own = [row[quantity] for row in rows if quantity in row]
    base = [row[f"{quantity} roofline"] for row in rows if f"{quantity} roofline" in row]
    if not own:
        return Markup("")
    height = 2 * _STRIP if base else _STRIP
    marks: list[Piece] = [box(_place(-0.1), _place(0.1) - _place(-0.1), 0, height, "band")]
    for tick in (-_AXIS, -_AXIS / 2, 0.0, _AXIS / 2, _AXIS):
        side = "" if tick == -_AXIS else " end" if tick == _AXIS else " mid"
        marks += [
            rule(_place(tick), 0, _place(tick), height),
            words(_place(tick), height + 13, f"{100 * tick:+.0f} %" if tick else "0", f"tick{side}"),
        ]
    marks += [_dot(error, place, 0, "dot") for place, error in enumerate(own)]
    marks += [_dot(error, place, _STRIP, "dot base") for place, error in enumerate(base)]
    errors = sorted(map(abs, own))
    said = f"{title}: {len(own)} steps, half of them within {_percent(errors[len(errors) // 2])}"
    return element(
        "div",
        element("h3", f"{title}, {len(own)} steps"),
        drawing(height + 18, *marks, label=said, class_="chart dots"),
    )


def _dot(error: float, number: int, top: float, class_: str) -> Markup:
    """Dots of one strip lie at different heights, so that fewer cover each other."""
    y = top + 5 + (number * 11) % (_STRIP - 10)
    return element("circle", cx=share(_place(error)), cy=f"{y:g}", r="3.5", class_=class_)


def _place(error: float) -> float:
    """Where an error lies on the axis, from 0 to 1."""
    return 0.5 + 0.5 * max(-_AXIS, min(_AXIS, error)) / _AXIS * 0.98


def _all_rows(rows: Sequence[dict[str, Any]]) -> Markup:
    shown = [name for name in _QUANTITIES if any(name in row for row in rows)]
    columns = [Column(head="Step"), *(Column(head=f"Error of {name}", kind="n") for name in shown)]
    columns.append(Column(head="In the interval"))
    ordered = sorted(rows, key=lambda row: -abs(row.get("step", 0.0)))
    cells = [
        [
            row["case"],
            *(f"{100 * row[name]:+.1f} %" if name in row else "" for name in shown),
            "yes" if row.get("inside") else "no",
        ]
        for row in ordered
    ]
    return table("All steps, the largest error first", columns, cells, tall=len(cells) > 20)


def _numbers(judged: dict[str, Any]) -> list[Piece]:
    errors, baseline = judged["errors"], _baseline(judged)
    return [
        f"{errors['rows']:,}",
        _percent(errors["median"]),
        _percent(errors["ninetieth"]),
        f"{100 * errors['bias']:+.1f} %",
        _percent(baseline["median"]) if baseline else "",
    ]


def _bars(judged: dict[str, Any]) -> Markup:
    """The median errors of the forecast and of the baseline, one below the other, up to 100 %."""
    error, baseline = judged["errors"]["median"], _baseline(judged)
    marks = [box(0, 1, 1, 7, "track"), box(0, min(1.0, error), 1, 7, "seg c-compute")]
    marks += [box(0, min(1.0, baseline["median"]), 10, 4, "vague")] if baseline else []
    return drawing(16, *marks, label=_in_words(judged))


def _in_words(judged: dict[str, Any]) -> str:
    baseline = _baseline(judged)
    beside = f", baseline {_percent(baseline['median'])}" if baseline else ""
    return f"forecast {_percent(judged['errors']['median'])}{beside}"


def _baseline(judged: dict[str, Any]) -> dict[str, Any] | None:
    found = judged.get("roofline") or judged.get("no_gain")
    return found if isinstance(found, dict) else None


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %"
