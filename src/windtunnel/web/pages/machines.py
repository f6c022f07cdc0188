"""The catalogue of machines, and one machine with the source of every figure."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any

from starlette.exceptions import HTTPException

from windtunnel import records, units
from windtunnel.machine import machine as machines
from windtunnel.machine.machine import Device, Machine
from windtunnel.reports.page import Column, Markup, Piece, element, joined, table
from windtunnel.web.states import empty

_UNITS = {
    "clock_rate": "Hz",
    "board_clock_rate": "Hz",
    "memory_bytes": "B",
    "memory_rate": "B/s",
    "core_memory_rate": "B/s",
    "cache_bytes": "B",
    "core_cache_bytes": "B",
    "power": "W",
    "rate": "B/s",
    "read_rate": "B/s",
    "write_rate": "B/s",
    "latency_seconds": "s",
}
_LABELS = {
    "memory_bytes": "memory",
    "cache_bytes": "last-level cache",
    "core_cache_bytes": "cache of a core",
    "core_memory_rate": "memory rate of a core",
    "latency_seconds": "latency",
    "inline_ecc": "error correction takes memory",
}
_TABLES = ("device", "host", "link", "peer_link", "network", "topology", "storage")


def every() -> tuple[str, Markup]:
    """All machines: GPUs, CPUs and nodes, each with its main figures."""
    return "Machines", _every()


@functools.cache
def _every() -> Markup:
    single = [Machine.named(name) for name in machines.names()]
    gpus = [machine for machine in single if machine.device.kind == "gpu"]
    cpus = [machine for machine in single if machine.device.kind == "cpu"]
    nodes = [Machine.named(name) for name in machines.node_names()]
    return joined(
        [
            element("h1", "Machines"),
            element(
                "p",
                "Forecasts need no machine, only its figures. Each figure has a source; open a machine to "
                "see it. Count devices on the forecast page, or write 8xh100 or 4x8xh100.",
                class_="lead",
            ),
            _filter(),
            *(
                element("section", element("h2", title), _table(caption, known), data_rows="")
                for title, caption, known in (
                    ("GPUs", "GPUs of the catalogue", gpus),
                    ("CPUs", "CPUs of the catalogue", cpus),
                    ("Nodes", "Nodes with several GPUs", nodes),
                )
            ),
        ],
        "\n",
    )


def _filter() -> Markup:
    """A field that hides rows without its words; hidden until the script makes it work."""
    field = '<input id="filter" type="search" placeholder="for example H100" autocomplete="off" data-filter>'
    return element(
        "div",
        element("label", "Show machines with", for_="filter"),
        Markup(field),
        element("span", data_left="", role="status", class_="soft"),
        class_="filter",
        hidden="",
    )


def _table(caption: str, known: list[Machine]) -> Markup:
    """`Devices` stands only where there can be several."""
    counted = any(machine.devices * machine.nodes > 1 for machine in known)
    heads = ["Name", "What", "Year", *(["Devices"] if counted else [])]
    heads += ["fp32", "bf16", "Memory", "Memory rate", "Power", "Probed"]
    left = ("Name", "What", "Probed")
    kinds = {**dict.fromkeys(left, ""), "What": "mid"}
    columns = [Column(head=head, kind=kinds.get(head, "n")) for head in heads]
    rows = [_row(machine, counted) for machine in known]
    return table(caption, columns, rows)


def _row(machine: Machine, counted: bool) -> list[Piece]:
    device = machine.device
    return [
        element("a", machine.name, href=f"/machines/{machine.name}"),
        machine.title,
        str(machine.year or ""),
        *([str(machine.devices * machine.nodes)] if counted else []),
        _shown(device.flop_rates.get("fp32"), "flop/s"),
        _shown(device.flop_rates.get("bf16"), "flop/s"),
        _shown(device.memory_bytes, "B"),
        _shown(device.memory_rate, "B/s"),
        _shown(device.power, "W"),
        "yes" if machine.profile else "",
    ]


def _shown(value: float | None, unit: str) -> str:
    return "" if value is None else units.show(value, unit)


def one(name: str) -> tuple[str, Markup]:
    """One machine: all its figures, each with its source."""
    if name not in (*machines.names(), *machines.node_names()):
        raise HTTPException(404, f"The catalogue has no machine {name[:60]!r}.")
    return _one(name)


@functools.cache
def _one(name: str) -> tuple[str, Markup]:
    machine = Machine.named(name)
    columns = [Column(head="Figure"), Column(head="Value", kind="n"), Column(head="Source")]
    parts: list[Piece] = [
        element("p", element("a", "Machines", href="/machines"), " / ", name, class_="crumbs"),
        element("h1", f"{name}: {machine.title}"),
        *([element("p", machine.note, class_="lead")] if machine.note else []),
        element("p", element("a", f"Forecast a job on {name}", href=f"/?on={name}", class_="button strong")),
        _main_figures(machine),
    ]
    parts += (
        [element("p", f"Several of them: {machine.assumed_topology}.")] if machine.assumed_topology else []
    )
    for part in _TABLES:
        value = getattr(machine, part)
        if value is None or (part == "host" and machine.device == machine.host):
            continue
        rows = list(_figures(machine, part, value))
        if part == "topology" and not any(source for _, _, source in rows):
            continue  # what is assumed of one device by itself
        if rows:
            title = part.replace("_", " ").capitalize()
            parts += [element("h2", title), element("div", table(title, columns, rows), class_="sources")]
    if machine.launch_costs is not None:
        costs = f"{machine.source_of('launch_costs').rstrip('.')}."
        parts += [element("h2", "Launch costs"), element("p", f"{costs[:1].upper()}{costs[1:]}")]
    if not machine.device.flop_rates:
        parts.append(empty("No figures", "This machine states none."))
    return f"{name}: {machine.title}", joined(parts, "\n")


def _main_figures(machine: Machine) -> Markup:
    """The figures that are compared first, as tiles."""
    device, count = machine.device, machine.devices * machine.nodes
    figures = [
        ("devices", f"{count:,}" if count > 1 else ""),
        ("fp32", _shown(device.flop_rates.get("fp32"), "flop/s")),
        ("bf16", _shown(device.flop_rates.get("bf16"), "flop/s")),
        ("memory", _shown(device.memory_bytes, "B")),
        ("memory rate", _shown(device.memory_rate, "B/s")),
        ("power", _shown(device.power, "W")),
    ]
    tiles = (element("li", element("b", value), " ", name) for name, value in figures if value)
    return element("ul", *tiles, class_="tiles small")


def _figures(machine: Machine, part: str, value: Any) -> Iterator[list[Piece]]:
    for field in dataclasses.fields(value):
        found = getattr(value, field.name)
        path = f"{part}.{field.name}"
        if isinstance(value, Device) and field.name == "flop_rates":
            for precision, rate in found.items():
                source = machine.source_of(f"{path}.{precision}")
                yield [f"{precision} peak", units.show(rate, "flop/s"), source]
        elif (
            field.name != "kind" and found not in (None, "", (), {}) and isinstance(found, (str, int, float))
        ):
            yield [
                _LABELS.get(field.name, field.name.replace("_", " ")),
                _figure(field.name, found),
                machine.source_of(path),
            ]


def _figure(name: str, value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (int, float)):
        return units.show(value, _UNITS[name]) if name in _UNITS else f"{value:,}"
    return str(records.plain(value))
