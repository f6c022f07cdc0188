"""Machines as text: the list of the catalogue, one machine with its sources, its topology as a drawing."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from windtunnel import units
from windtunnel.machine.machine import Device, Machine
from windtunnel.machine.topology import Link, Storage
from windtunnel.results import terminal_width

_TITLED_WIDTH = 100  # columns from which on the list shows titles
_QUANTITIES = {
    "cores": "",
    "threads": "",
    "clock_rate": "Hz",
    "memory_bytes": "B",
    "memory_rate": "B/s",
    "core_memory_rate": "B/s",
    "copy_rate": "B/s",
    "cache_bytes": "B",
    "core_cache_bytes": "B",
    "power": "W",
    "compute_capability": "",
}
_PEERS = {
    "switch": "through NVLink switches",
    "mesh": "by links between pairs",
    "pcie": "by PCIe peer-to-peer copies",
    "host": "through the memory of the host",
}
_STORAGE_KINDS = {"hdd": "hard disk", "ssd": "SSD", "striped": "striped", "network": "behind a network"}


def table(all_machines: Sequence[Machine]) -> str:
    """Machines with one device, then nodes by their GPU."""
    single = [m for m in all_machines if m.devices * m.nodes == 1]
    nodes = [m for m in all_machines if m.devices * m.nodes > 1]
    lines = [
        _titled(f"{'name':<24}{'kind':<5}{'fp32':>13}{'bf16':>13}{'memory':>10}{'memory rate':>13}", "title")
    ]
    for m in single:
        fp32, bf16 = (_shown(m.device.flop_rates.get(precision), "flop/s") for precision in ("fp32", "bf16"))
        memory, rate = _shown(m.device.memory_bytes, "B"), _shown(m.device.memory_rate, "B/s")
        figures = f"{fp32:>13}{bf16:>13}{memory:>10}{rate:>13}"
        lines.append(_titled(f"{m.name:<24}{m.device.kind:<5}{figures}", m.title))
    lines += ["", _titled(f"{'node':<24}{'devices':>9}{'peer rate':>13}{'network':>13}", "title")]
    by_device = itertools.groupby(
        sorted(nodes, key=lambda m: (m.device.model, m.name)), key=lambda m: m.device.model
    )
    for model, some in by_device:
        lines.append(f"  {model}")
        lines += [_node_line(m) for m in some]
    return "\n".join(
        [
            *lines,
            "",
            "8xh200: a node of eight h200. 4x8xh200: four such nodes. 4xdgx-a100: four nodes dgx-a100.",
            "A dash: the figure is not known. network: all cards of a node together.",
        ]
    )


def describe(m: Machine) -> str:
    """All figures of a machine with their sources, and a drawing of its topology."""
    lines = [f"{m.name}: {m.title}"]
    if m.devices * m.nodes > 1:
        lines += [f"{_count(m.nodes, 'node')} of {_count(m.devices, 'device')}", *draw(m), ""]
    lines += _device_lines(m, "device", m.device)
    if m.device != m.host:
        lines += _device_lines(m, "host", m.host)
    for name, link in (("link", m.link), ("peer_link", m.peer_link), ("network", m.network)):
        if link is not None:
            lines += [f"{name}: {link.name}", *_link_rows(m, name, link)]
    if m.storage is not None:
        lines += [f"storage: {m.storage.name}", *_storage_rows(m, m.storage)]
    if m.devices * m.nodes > 1:
        lines += ["topology", _row("sockets", str(m.topology.sockets), m.source_of("topology"))]
    if m.launch_costs is not None:
        lines += [
            "launch costs: host time to launch one op",
            _row("forward", units.show(m.launch_costs.forward["other"], "s"), m.source_of("launch_costs")),
        ]
    return "\n".join([*lines, *([f"note: {m.note}"] if m.note else [])])


def draw(m: Machine) -> list[str]:
    """The topology of a machine as a tree of at most 80 columns: what is connected to what, and how fast."""
    title = f"{m.nodes} equal nodes, each" if m.nodes > 1 else "node"
    if m.assumed_topology:
        title += f" (topology assumed: {m.assumed_topology})"
    branches = [*_socket_branches(m), *_peer_branches(m)]
    if m.storage is not None:
        branches.append([_storage_text(m.storage)])
    if m.transfer_unit:
        branches.append(["direct memory transfer unit (hypothetical): copies to several GPUs at once"])
    if m.network is not None:
        branches.append([_network_text(m)])
    if m.parameter_server != "none":
        place = "in the memory of the first host" if m.parameter_server == "host" else "a node of its own"
        branches.append([f"parameter server: {place}"])
    return [title, *_tree(branches)]


def _socket_branches(m: Machine) -> Iterator[list[str]]:
    """A branch for each CPU: its uplinks, and the GPUs below each."""
    if m.device == m.host:
        yield [f"CPU: {m.host.model}"]
        return
    sockets = min(m.topology.sockets, m.devices)
    for socket in range(sockets):
        first, last = (m.devices * (socket + i) // sockets for i in (0, 1))
        name = f"CPU {socket}" if sockets > 1 else "CPU"
        yield [f"{name}: {m.host.model}", *_tree(list(_uplink_branches(m, first, last)))]


def _uplink_branches(m: Machine, first: int, last: int) -> Iterator[list[str]]:
    uplink, step = _link_text(m.link), m.topology.devices_per_uplink
    if step == 1:
        yield [f"{_range(first, last)}: {uplink}{' each' if last - first > 1 else ''}"]
        return
    for start in range(first, last, step):
        end = min(start + step, last)
        yield [uplink, *_tree([[_range(start, end) + (" share it" if end - start > 1 else "")]])]


def _peer_branches(m: Machine) -> Iterator[list[str]]:
    if m.devices == 1:
        return
    peer = m.topology.peer
    how = f"GPU to GPU: {_PEERS[peer]}"
    if peer in ("pcie", "host"):
        yield [how]
        return
    adding = ", which can add (SHARP)" if m.topology.switch_reduces else ""
    yield [f"{how}{adding}", *_tree([[f"{_link_text(m.peer_link)} for each GPU"], *_mesh_lines(m)])]


def _mesh_lines(m: Machine) -> list[list[str]]:
    """The number of links between each two GPUs."""
    rows = [row[: m.devices] for row in m.topology.peer_links[: m.devices]]
    if not rows:
        return []
    head = "links:   " + " ".join(str(i) for i in range(len(rows)))
    body = [
        f"   GPU {i} " + " ".join("-" if i == j else str(count or ".") for j, count in enumerate(row))
        for i, row in enumerate(rows)
    ]
    return [[head, *body]]


def _tree(branches: Sequence[Sequence[str]]) -> list[str]:
    """Draw branches below each other. The first line of a branch is its name; the others are indented."""
    lines = []
    for number, branch in enumerate(branches):
        is_last = number == len(branches) - 1
        lines.append(("└─ " if is_last else "├─ ") + branch[0])
        lines += [("   " if is_last else "│  ") + line for line in branch[1:]]
    return lines


def _network_text(m: Machine) -> str:
    cards = m.topology.network_cards
    text = f"network: {f'{cards} x ' if cards > 1 else ''}{_link_text(m.network)}"
    if cards > 1 or m.topology.oversubscription > 1:
        text += f"; {units.show(m.node_network_rate or 0.0, 'B/s')} a node"
    if m.topology.oversubscription > 1:
        text += f" (oversubscribed {m.topology.oversubscription:g} times)"
    return text


def _link_text(link: Link | None) -> str:
    if link is None:
        return "link unknown"
    return f"{link.name}, {units.show(link.rate, 'B/s')}, {units.show(link.latency_seconds, 's')}"


def _storage_text(storage: Storage) -> str:
    drives = f"{storage.count} drives " if storage.count > 1 else ""
    rate = "rate unknown" if storage.read_rate is None else units.show(storage.read_rate, "B/s")
    kind = f"{drives}{_STORAGE_KINDS[storage.kind]}"
    return f"storage: {storage.name}, {kind}, {rate}, {units.show(storage.latency_seconds, 's')}"


def _node_line(m: Machine) -> str:
    devices = f"{m.nodes} x {m.devices}" if m.nodes > 1 else str(m.devices)
    has_links = m.topology.peer in ("switch", "mesh")
    peer = _shown(m.peer_link.rate, "B/s") if m.peer_link and has_links else m.topology.peer
    network = _shown(m.node_network_rate, "B/s")
    return _titled(f"{m.name:<24}{devices:>9}{peer:>13}{network:>13}", m.title)


def _titled(figures: str, title: str) -> str:
    """A row of the list with its title, which a narrow terminal leaves out."""
    return f"{figures}  {title}" if terminal_width() >= _TITLED_WIDTH else figures


def _device_lines(m: Machine, name: str, device: Device) -> list[str]:
    lines = [f"{name}: {device.model} ({device.kind})"]
    for precision, rate in device.flop_rates.items():
        lines.append(
            _row(precision, units.show(rate, "flop/s"), m.source_of(f"{name}.flop_rates.{precision}"))
        )
    for key, quantity in _QUANTITIES.items():
        value = getattr(device, key)
        if value is not None:
            text = units.show(value, quantity) if quantity else str(value)
            lines.append(_row(key, text, m.source_of(f"{name}.{key}")))
    return lines


def _link_rows(m: Machine, name: str, link: Link) -> list[str]:
    return [
        _row("rate", units.show(link.rate, "B/s"), m.source_of(f"{name}.rate")),
        _row("latency", units.show(link.latency_seconds, "s"), m.source_of(f"{name}.latency_seconds")),
    ]


def _storage_rows(m: Machine, storage: Storage) -> list[str]:
    figures = (
        ("read_rate", storage.read_rate, "B/s"),
        ("latency_seconds", storage.latency_seconds, "s"),
        ("capacity_bytes", storage.capacity_bytes, "B"),
    )
    return [
        _row(key.partition("_")[0] if key != "read_rate" else key, units.show(value, unit), m.source_of(path))
        for key, value, unit in figures
        for path in (f"storage.{key}",)
        if value is not None
    ]


def _range(first: int, last: int) -> str:
    if last - first == 1:
        return f"GPU {first}"
    return f"GPU {first} {'and' if last - first == 2 else 'to'} {last - 1}"


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"


def _row(key: str, value: str, source: str) -> str:
    return f"  {key:<20}{value:>12}  [{source or 'no source'}]"


def _shown(value: float | None, unit: str) -> str:
    return "-" if value is None else units.show(value, unit)
