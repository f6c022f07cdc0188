"""Machines from the catalogue and from files. Names of shared parts are replaced by their figures.

A node names its GPU (`device = "h100"`) and takes that GPU's figures, so that `8xh100` and `hgx-h100` cannot
differ in them.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections.abc import Mapping

from windtunnel import records
from windtunnel.errors import BadRecord, UnknownName, nearest
from windtunnel.machine import machine as machines
from windtunnel.machine.machine import CATALOG, Device, Machine
from windtunnel.machine.topology import (
    LATENCIES,
    STORAGE_LATENCIES,
    Link,
    PeerPath,
    Storage,
    Topology,
)
from windtunnel.records import Plain

_MOST_DIGITS = 9  # of a count of nodes or devices
_COUNTED = re.compile(r"^(?:(?P<nodes>\d+)x)?(?:(?P<devices>\d+)x)(?P<name>.+)$")
# Fields that a node takes from the file of its GPU, unless it states them.
_FIELDS_OF_ITS_GPU = ("year", "host", "link", "peer_link", "launch_costs", "assumed_host", "profile")
# Fields that a count of GPUs (`8xh100`) takes from the usual node of that GPU.
_FIELDS_OF_USUAL_NODE = ("topology", "network", "storage")
_SHARED = {"link": "links", "peer_link": "links", "network": "links", "storage": "storage"}
# Nodes that no figure of a real machine describes have this network; their sources say that it is assumed.
_ASSUMED_NETWORK = "ethernet-25g"


def named(name: str) -> Machine:
    """A machine of the catalogue, or a count of one; see `Machine.named`."""
    known = (*machines.names(), *machines.node_names())
    if name in known:
        return _from_catalog(name)
    match = _COUNTED.match(name)
    if not match or match["name"] not in known:
        raise UnknownName(
            f"No machine is called {name!r}.", hint=f"{nearest(name, known)} See: windtunnel machine list"
        )
    if max(len(match["devices"]), len(match["nodes"] or "")) > _MOST_DIGITS:
        raise BadRecord(
            f"{name[:40]!r}: counts have at most {_MOST_DIGITS} digits.", hint="Write for example 4x8xh200."
        )
    one, nodes, count = _from_catalog(match["name"]), match["nodes"], int(match["devices"])
    if 0 in (count, int(nodes or 1)):
        raise BadRecord(f"{name!r}: counts must be above 0.", hint=f"Write 1x{one.name} or {one.name}.")
    if one.devices * one.nodes > 1:
        return _count_nodes(one, name, int(nodes or count), count if nodes else one.devices)
    if one.device.kind == "gpu":
        return _count_devices(one, name, int(nodes), count) if nodes else _in_nodes(one, name, count)
    if count > 1:
        raise BadRecord(
            f"{name!r} asks for {count} devices in a node, but {one.name} is a CPU machine.",
            hint=f"Several nodes of it: {count}x1x{one.name}",
        )
    return dataclasses.replace(_with_network(one), name=name, nodes=int(nodes or 1))


def build(data: Mapping[str, object], where: str) -> Machine:
    """A machine from the plain data of a file."""
    plain, sources = dict(data), dict(_table(data, "sources"))
    if isinstance(plain.get("device"), str):
        plain, sources = _with_device(plain, sources, where)
    for key, table in _SHARED.items():
        if isinstance(plain.get(key), str):
            plain[key], text = _shared(table, str(plain[key]), where)
            sources.setdefault(key, text)
        sources |= _latency_source(key, plain.get(key), where)
    if isinstance(plain.get("host"), str):
        host = named(str(plain["host"]))
        plain["host"] = records.plain(host.host)
        sources = {key: text for key, text in host.sources.items() if key.startswith("host")} | sources
    if plain.get("launch_costs") == "host":  # those of its own host, which belongs to the GPU
        del plain["launch_costs"]
    if isinstance(plain.get("launch_costs"), str):
        kind = machines.device_kind(str(plain["launch_costs"]))
        reference = machines.reference_host(kind)
        plain["launch_costs"] = machines.reference_host_costs(kind)
        plain["assumed_host"] = f"{reference['host']}: the reference host"
        sources["launch_costs"] = reference["source"]
    if "device" not in plain and "host" in plain:
        plain["device"] = plain["host"]
        sources = machines.with_host_as_device(sources)
    machine = records.read(Machine, {**plain, "sources": sources}, where)
    if machine.launch_costs is not None:
        return machine
    sources["launch_costs"] = machines.launch_costs_source(machine.device)
    costs = machines.launch_costs_for(machine.host, machine.device)
    return dataclasses.replace(machine, launch_costs=costs, sources=sources)


@functools.cache
def _from_catalog(name: str) -> Machine:
    """A machine of the catalogue. A GPU is forecast on the reference host, as all GPUs of the catalogue.

    The host of such a machine is only a typical one. With different hosts, two GPUs could not be compared. A
    board whose host does belong to it says so (launch_costs = "host").
    """
    folder = "machines" if name in machines.names() else "nodes"
    data = records.load(CATALOG / folder / f"{name}.toml")
    if isinstance(data.get("device"), Mapping) and data["device"].get("kind") == "gpu":
        data = {"launch_costs": "gpu", **data}
    return build(data, f"catalogue machine {name}")


def _with_device(data: Plain, sources: dict[str, str], where: str) -> tuple[Plain, dict[str, str]]:
    """The data of a node with the figures of the GPU that it names."""
    gpu = named(str(data["device"]))
    if gpu.device.kind != "gpu":
        raise BadRecord(f"{where}: device names {gpu.name}, which is a CPU machine.", hint="Name a GPU.")
    taken = [key for key in ("device", *_FIELDS_OF_ITS_GPU) if key == "device" or key not in data]
    plain = records.plain(gpu)
    figures = {key: plain[key] for key in taken if key in plain}
    kept = {key: text for key, text in gpu.sources.items() if key.partition(".")[0] in taken}
    return {**data, **figures}, kept | sources


def _in_nodes(gpu: Machine, name: str, count: int) -> Machine:
    """This number of GPUs in nodes of the usual size: `64xh100` is 8 nodes of 8."""
    most = _from_catalog(gpu.usual_node).devices if gpu.usual_node else count
    if count <= most:
        return _count_devices(gpu, name, 1, count)
    each = max(part for part in range(1, most + 1) if count % part == 0)
    return _count_devices(gpu, f"{count // each}x{each}x{gpu.name}", count // each, each)


def _count_devices(gpu: Machine, name: str, nodes: int, count: int) -> Machine:
    """Nodes of `count` GPUs each, with the topology of the usual node of that GPU."""
    machine = dataclasses.replace(gpu, name=name, devices=count, nodes=nodes)
    if count == nodes == 1:
        return machine
    if not gpu.usual_node:
        assumed = "a PCIe root port for each GPU"
        topology = Topology(peer="mesh" if gpu.peer_link else _assumed_peer(gpu.device))
        machine = _with_network(machine)
        return dataclasses.replace(
            machine,
            topology=topology,
            assumed_topology=assumed,
            sources={**machine.sources, "topology": f"assumed: {assumed}"},
        )
    node = _with_fewer_devices(_from_catalog(gpu.usual_node), count)
    return dataclasses.replace(
        machine,
        **{key: getattr(node, key) for key in _FIELDS_OF_USUAL_NODE},
        assumed_topology=f"that of {node.name}",
        sources={**_sources_of(node, _FIELDS_OF_USUAL_NODE), **gpu.sources},
    )


def _count_nodes(node: Machine, name: str, count: int, devices: int) -> Machine:
    if devices > node.devices:
        raise BadRecord(
            f"{name!r} asks for {devices} devices in a node; a {node.name} has {node.devices}.",
            hint=f"Several of them: {count}x{node.name}",
        )
    fewer = _with_network(_with_fewer_devices(node, devices))
    return dataclasses.replace(fewer, name=name, devices=devices, nodes=count * node.nodes)


def _with_fewer_devices(node: Machine, devices: int) -> Machine:
    """The node with only some of its devices in use: the network cards near the others stay idle."""
    if devices >= node.devices:
        return node
    cards = math.ceil(node.topology.network_cards * devices / node.devices)
    return dataclasses.replace(node, topology=dataclasses.replace(node.topology, network_cards=cards))


def _assumed_peer(device: Device) -> PeerPath:
    """PCIe copies between GPUs: NVIDIA's driver refuses them to GeForce cards from Turing (7.5) on."""
    is_geforce = "GeForce" in device.model
    return "host" if is_geforce and (device.compute_capability or 0.0) >= 7.5 else "pcie"


def _with_network(machine: Machine) -> Machine:
    """The machine with a network between its nodes, assumed if none is stated."""
    if machine.network is not None:
        return machine
    plain, source = _shared("links", _ASSUMED_NETWORK, machine.name)
    network = records.read(Link, plain, machine.name)
    return dataclasses.replace(
        machine,
        network=network,
        sources={
            **machine.sources,
            "network": f"assumed; {source}",
            "network.latency_seconds": LATENCIES[network.kind][1],
        },
    )


def _sources_of(machine: Machine, parts: tuple[str, ...]) -> dict[str, str]:
    return {key: text for key, text in machine.sources.items() if key.partition(".")[0] in parts}


def _latency_source(key: str, entry: object, where: str) -> dict[str, str]:
    """The source of the latency of a link or storage that states none: that of its kind."""
    if not isinstance(entry, Mapping) or "latency_seconds" in entry:
        return {}
    if key == "storage":
        storage = records.read(Storage, entry, f"{where}: {key}")
        return {f"{key}.latency_seconds": STORAGE_LATENCIES[storage.kind][1]}
    return {f"{key}.latency_seconds": LATENCIES[records.read(Link, entry, f"{where}: {key}").kind][1]}


def _shared(kind: str, name: str, where: str) -> tuple[Plain, str]:
    """A link or storage of the catalogue, which several machines name, and its source."""
    table = records.load(CATALOG / f"{kind}.toml")
    if name not in table:
        raise BadRecord(f"{where}: no entry {name!r} in {kind}.toml.", hint=nearest(name, table))
    entry = dict(table[name])
    return {"name": name, **{k: v for k, v in entry.items() if k != "source"}}, str(entry["source"])


def shared_link(name: str) -> Link:
    """The link of this name in the catalogue."""
    return records.read(Link, _shared("links", name, "link")[0], f"link {name}")


def shared_storage(name: str) -> Storage:
    """The storage of this name in the catalogue."""
    return records.read(Storage, _shared("storage", name, "storage")[0], f"storage {name}")


def _table(data: Mapping[str, object], key: str) -> dict[str, str]:
    value = data.get(key, {})
    return {str(k): str(v) for k, v in value.items()} if isinstance(value, Mapping) else {}
