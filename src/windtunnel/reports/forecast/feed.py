"""How well the device is fed: how busy reading, decoding, copying and computing are, and what would help."""

from __future__ import annotations

from windtunnel import units
from windtunnel.feed.remedies import RemedyTable
from windtunnel.forecast.forecast import LANES
from windtunnel.reports.forecast.marks import box, drawing, kind, numbers, percent
from windtunnel.reports.forecast.view import ForecastView
from windtunnel.reports.page import Column, Markup, element, joined, table

# From storage to the device, as a batch passes them; and the part whose colour a resource has.
_PATH = {
    "storage": "feed",
    "loader": "feed",
    "cores": "feed",
    "memory": "feed",
    "copy": "copy",
    "link": "copy",
    "host": "launch",
    "device": "compute",
    "peer link": "communication",
    "network": "communication",
}
_WHAT = {
    "storage": "read from storage",
    "loader": "read and decode in loaders",
    "cores": "decode on the host's cores",
    "memory": "copy inside of host memory",
    "copy": "copy to the device",
    "link": "the shared uplink",
    "host": "launch",
    "device": "compute",
    "peer link": "exchange inside of a node",
    "network": "exchange between nodes",
}


def feed_chart(view: ForecastView, remedies: RemedyTable | None = None) -> Markup:
    """The share of the step in which each resource works; the one near 100 % sets the pace."""
    forecast = view.forecast
    busy = {name: forecast.busy[name] for name in _PATH if name in forecast.busy}
    busy |= {name: value for name, value in forecast.busy.items() if name not in busy}
    resident = forecast.strategy.get("data", "resident") == "resident"
    said = f"The device works {percent(forecast.utilisation)} of the step. " + (
        "The data lies in the device's memory, so nothing is read, decoded or copied."
        if resident
        else "The resource that works nearly all the time sets the pace."
    )
    named = {name: _named(name, view) for name in busy}
    rows = element("ol", *(_row(*named[name], value) for name, value in busy.items()), class_="rows")
    body = [[named[name][0], LANES.get(name, name), percent(value)] for name, value in busy.items()]
    pieces = [
        element("p", said, class_="lead"),
        rows,
        numbers("How busy each resource is", ("Work", "Resource", "Share of the step"), body),
    ]
    return joined([*pieces, *([remedy_table(remedies)] if remedies else [])])


def _named(name: str, view: ForecastView) -> tuple[str, str]:
    """What a resource does, and the part whose colour it has. Without loaders the host reads and decodes."""
    if name == "host":
        own = [task for task in view.timeline.step if task.lane.kind == "host"]
        fed = sum(task.seconds for task in own if task.part == "feed")
        if fed > 0:
            is_most = fed > 0.5 * sum(task.seconds for task in own)
            return "read, decode and launch", "feed" if is_most else "launch"
    return _WHAT.get(name, name), _PATH.get(name, "")


def _row(what: str, part: str, value: float) -> Markup:
    colour = kind(part)
    bar = drawing(
        18,
        box(0, 1, 2, 14, "track"),
        box(0, min(1.0, value), 2, 14, f"seg {colour}"),
        label=f"{what}: {percent(value)}",
    )
    return element(
        "li",
        element("span", what, class_="row-name"),
        bar,
        element("span", percent(value), class_="row-value"),
    )


def remedy_table(remedies: RemedyTable) -> Markup:
    """What each remedy buys."""
    columns = [
        Column(head="Change"),
        *(Column(head=head, kind="n") for head in ("Step", "Gain", "Device works")),
    ]
    columns.append(Column(head="What"))
    base = remedies.base.step_seconds or 0.0
    rows = []
    for step in remedies.steps:
        if step.step_seconds is None:
            rows.append(
                [step.name, "\N{EN DASH}", "\N{EN DASH}", "\N{EN DASH}", f"Not possible: {step.reason}"]
            )
            continue
        gain = f"{units.digits(base / step.step_seconds)}\N{MULTIPLICATION SIGN}" if step.step_seconds else ""
        rows.append(
            [step.name, units.show(step.step_seconds, "s"), gain, percent(step.utilisation or 0.0), step.what]
        )
    return table("What each remedy buys, by forecast", columns, rows)
