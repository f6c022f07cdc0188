"""One network: what it is for, its settings, its size and its layers as a picture."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from windtunnel import networks, units
from windtunnel.forecast.memory import account
from windtunnel.isolation.jobs import layers_of, settings_of
from windtunnel.learning.guide import WHEN
from windtunnel.machine.machine import Machine
from windtunnel.records import Plain
from windtunnel.reports.forecast.marks import box, drawing
from windtunnel.reports.page import Column, Markup, Piece, element, joined, table
from windtunnel.strategy import Strategy
from windtunnel.web.worker import WorkerContext

_MOST_LAYERS = 400
_REFERENCE = "i7-3820"  # any CPU: a step's memory on it is asked, not its time


def answer(worker: WorkerContext, request: Plain) -> tuple[str, Plain]:
    state = worker.state(request["query"])
    entry = networks.named(state.job)
    job = worker.cache.job(state)
    worker.tell(f"tracing {entry.name}")
    recorded = worker.cache.trace(state, Strategy(), "cpu")
    memory = account(recorded, Machine.named(_REFERENCE), Strategy())
    worker.tell(f"reading the layers of {entry.name}")
    facts = [
        ("Purpose", entry.purpose),
        ("When to use it", WHEN[entry.name]),
        ("Source", entry.source),
        ("Parameters", f"{recorded.parameters:,}"),
        (
            "One training step",
            f"{units.show(recorded.flop, 'flop')} and {units.show(memory.peak_bytes, 'B')} at batch "
            f"{recorded.batch:,} on a CPU",
        ),
    ]
    rows = joined(joined([element("dt", name), element("dd", text)]) for name, text in facts)
    return joined(
        [
            element("dl", rows, class_="facts"),
            element("h2", "Layers"),
            _picture(layers_of(job)),
            element("h2", "Settings"),
            _settings(settings_of(job)),
        ]
    ), {}


def _picture(layers: Sequence[Plain]) -> Markup:
    """One row for each layer; its bar is the logarithm of the values that it gives for one example.

    Equal layers in a row are one row.
    """
    most = math.log(max(2, *(layer["width"] for layer in layers)))
    columns = [
        Column(head="Layer"),
        Column(head="Output values for one example, on a logarithmic scale"),
        Column(head="Kind"),
        Column(head="Output", kind="n"),
        Column(head="Parameters", kind="n"),
    ]
    named = [
        {**layer, "name": layer["name"] or ("(whole)" if place else "input")}
        for place, layer in enumerate(layers)
    ]
    groups = [list(group) for _, group in itertools.groupby(named, key=_form)]
    rows = [_row(group, most) for group in groups[:_MOST_LAYERS]]
    left = len(groups) - _MOST_LAYERS
    more = [element("p", f"{left:,} more layers are not shown.", class_="note")] if left > 0 else []
    return joined([table("The layers from input to output", columns, rows, tall=len(rows) > 40), *more])


def _form(layer: Plain) -> tuple[object, ...]:
    """What equal layers have in common."""
    return layer["kind"], tuple(layer["shape"]), layer["parameters"]


def _row(group: Sequence[Plain], most: float) -> list[Piece]:
    first, count = group[0], len(group)
    name = first["name"] if count == 1 else f"{first['name']} to {group[-1]['name']}"
    times = f"{count} \N{MULTIPLICATION SIGN} " if count > 1 else ""
    shape = "\N{MULTIPLICATION SIGN}".join(map(str, first["shape"]))
    share = math.log(max(1, first["width"])) / most
    bar = drawing(14, box(0, share, 2, 10, "seg c-compute"), label=f"{first['width']:,} values")
    value = element("span", f"{first['width']:,}", class_="row-value")
    return [
        name,
        element("td", bar, value, class_="layer-bar"),
        f"{times}{first['kind']}",
        shape,
        f"{times}{first['parameters']:,}",
    ]


def _settings(settings: list[Plain]) -> Markup:
    heads = ("Setting", "Default", "Meaning", "Value")
    columns = [Column(head=head, kind="mid" if head == "Meaning" else "") for head in heads]
    rows = [[each["name"], each["default"], each["meaning"], each["kind"]] for each in settings]
    return table("Settings that can be changed", columns, rows)
