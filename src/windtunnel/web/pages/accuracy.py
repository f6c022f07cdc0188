"""How good forecasts are: every table of measured steps, beside the simplest baseline."""

from __future__ import annotations

import functools
import json
from typing import Any

from starlette.exceptions import HTTPException

from windtunnel.machine.machine import CATALOG
from windtunnel.reports.forecast.marks import box, drawing
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
            "Forecasts against measured steps on which nothing was tuned. Beside each error stands that of "
            "the simplest baseline on the same rows. windtunnel validate prints the same again.",
            class_="lead",
        ),
        element(
            "p",
            "Step: the whole time of a step; device-bound: the device sets the pace; host-bound: launches. "
            "Device: the time in which the device computes. Memory: the peak. A bias below 0 means that "
            "forecasts are too short. Bars end at 100 %: blue is the forecast's median error, grey the "
            "baseline's.",
            class_="lead",
        ),
    ]
    if not _data():
        parts.append(
            empty("No table yet", "Make it with python benchmarks/accuracy.py in a checkout of the source.")
        )
        return "Accuracy", joined(parts, "\n")
    heads = ("Rows", "Median error", "90th percentile", "Bias", "Baseline's median")
    columns = [
        Column(head="Where"),
        Column(head="Judged", kind="whole"),
        *(Column(head=h, kind="n") for h in heads),
    ]
    columns.append(Column(head="Forecast and baseline"))
    rows = []
    for name, found in _data().items():
        for judged in found["judgements"]:
            if judged["section"] == "all" and "errors" in judged:
                link = element("a", name, href=f"/accuracy/{name}")
                rows.append([link, judged["name"], *_numbers(judged), _bars(judged)])
    parts.append(table("Errors of forecasts, by machine", columns, rows))
    return "Accuracy", joined(parts, "\n")


def one(name: str) -> tuple[str, Markup]:
    found = _data().get(name)
    if found is None:
        raise HTTPException(404, f"There is no table of accuracy for {name[:60]!r}.")
    parts: list[Piece] = [
        element("p", element("a", "Accuracy", href="/accuracy"), " / ", name, class_="crumbs"),
        element("h1", f"Accuracy on {name}"),
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
    return f"Accuracy on {name}", joined(parts, "\n")


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
    """The median errors of the forecast and of the baseline, one above the other, up to 100 %."""
    error, baseline = judged["errors"]["median"], _baseline(judged)
    marks = [box(0, 1, 2, 12, "track")]
    marks += [box(0, min(1.0, baseline["median"]), 9, 5, "vague")] if baseline else []
    marks.append(box(0, min(1.0, error), 2, 7, "seg c-compute"))
    return element("td", drawing(16, *marks, label=_in_words(judged)), class_="error-bar")


def _in_words(judged: dict[str, Any]) -> str:
    baseline = _baseline(judged)
    beside = f", baseline {_percent(baseline['median'])}" if baseline else ""
    return f"forecast {_percent(judged['errors']['median'])}{beside}"


def _baseline(judged: dict[str, Any]) -> dict[str, Any] | None:
    found = judged.get("roofline") or judged.get("no_gain")
    return found if isinstance(found, dict) else None


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %"
