"""Where a job runs: a host, its devices, memories, links and storage, with rates that name their source."""

from __future__ import annotations

import dataclasses
import functools
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from windtunnel import records, units
from windtunnel.errors import BadRecord, RateMissing, UnknownName, nearest
from windtunnel.units import ByteRate, Bytes, FlopRate, Frequency, Seconds, Watts

CATALOG = Path(__file__).parent.parent / "catalog"
PRECISIONS = ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8")
_COUNTED = re.compile(r"^(?:(?P<nodes>\d+)x)?(?:(?P<devices>\d+)x)(?P<name>.+)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A device and the memory it computes from. A CPU is a device too: it may train as well as launch.

    `cores` are physical cores or multiprocessors, `threads` logical processors; `cache_bytes` is the last cache, shared by
    all cores, `core_cache_bytes` the largest that a core has for itself; `core_memory_rate` is what one core can draw.
    """

    kind: Literal["cpu", "gpu"]
    model: str
    cores: int | None = None
    threads: int | None = None
    clock_rate: Frequency | None = None
    flop_rates: Mapping[str, FlopRate] = field(default_factory=dict)
    memory_bytes: Bytes | None = None
    memory_rate: ByteRate | None = None
    core_memory_rate: ByteRate | None = None
    cache_bytes: Bytes | None = None
    core_cache_bytes: Bytes | None = None
    power: Watts | None = None

    def __post_init__(self) -> None:
        for precision, rate in self.flop_rates.items():
            if precision not in PRECISIONS:
                raise BadRecord(
                    f"{self.model}: unknown precision {precision!r} among flop_rates.",
                    hint=nearest(precision, PRECISIONS),
                )
            _require_positive(self.model, f"flop_rates.{precision}", rate)
        for name in (
            "cores",
            "threads",
            "clock_rate",
            "memory_bytes",
            "memory_rate",
            "core_memory_rate",
            "cache_bytes",
            "core_cache_bytes",
            "power",
        ):
            _require_positive(self.model, name, getattr(self, name))


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """What bytes travel over, one direction."""

    name: str
    rate: ByteRate

    def __post_init__(self) -> None:
        _require_positive(self.name, "rate", self.rate)


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """Where the data set lies when it is not in memory."""

    name: str
    read_rate: ByteRate | None = None
    capacity_bytes: Bytes | None = None

    def __post_init__(self) -> None:
        _require_positive(self.name, "read_rate", self.read_rate)
        _require_positive(self.name, "capacity_bytes", self.capacity_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchCosts:
    """What the host pays to launch work: Python, the dispatcher, autograd and, to a GPU, the launch.

    By family of op in each phase, "other" standing for families not listed; `node_seconds` for each node that autograd
    visits on its way back; `tensor_seconds` for every further tensor of a call on a list; `module_seconds` for calling a module; `backward_seconds` and `update_seconds` for each
    call of backward and of an optimiser's step beside its ops. `graph_seconds` is what launching a whole captured step costs.
    """

    forward: Mapping[str, Seconds]
    backward: Mapping[str, Seconds]
    update: Mapping[str, Seconds]
    node_seconds: Seconds
    tensor_seconds: Seconds
    module_seconds: Seconds
    backward_seconds: Seconds
    update_seconds: Seconds
    graph_seconds: Seconds = 0.0

    def __post_init__(self) -> None:
        for phase in ("forward", "backward", "update"):
            if "other" not in getattr(self, phase):
                raise BadRecord(f"launch_costs: {phase} needs a figure for 'other'.")

    def scaled(self, factor: float) -> LaunchCosts:
        """The same host, `factor` times as slow."""
        return records.read(LaunchCosts, _scale(records.plain(self), factor), "launch_costs")


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Nodes of one host and `devices` equal devices each. On a CPU machine `device` is the host itself.

    `profile` names what a probe learned of the device, or a file of it. `host_factor` is how much slower the very host at hand issues
    work than `launch_costs` would have it, once a probe has said so; it is counted in `launch_costs` already.
    """

    name: str
    title: str
    host: Device
    device: Device
    devices: int = 1
    nodes: int = 1
    year: int | None = None
    link: Link | None = None
    peer_link: Link | None = None
    network: Link | None = None
    storage: Storage | None = None
    launch_costs: LaunchCosts | None = None
    profile: str = ""
    host_factor: float | None = None
    note: str = ""
    sources: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _require_positive(self.name, "devices", self.devices)
        _require_positive(self.name, "nodes", self.nodes)
        _require_positive(self.name, "host_factor", self.host_factor)

    @staticmethod
    def named(name: str) -> Machine:
        """`h200`, `8xh200` (one node of eight) or `4x8xh200` (four such nodes), from the catalogue."""
        if name in names():
            return _from_catalog(name)
        match = _COUNTED.match(name)
        if not match or match["name"] not in names():
            raise UnknownName(
                f"No machine is called {name!r}.",
                hint=f"{nearest(name, names())} See: windtunnel machine list",
            )
        one = Machine.named(match["name"])
        devices_in_node = int(match["devices"])
        if one.device.kind == "cpu" and devices_in_node > 1:
            raise BadRecord(
                f"{name!r} asks for {devices_in_node} devices in a node, but {one.name} is a CPU machine.",
                hint=f"Several nodes of it: {devices_in_node}x1x{one.name}",
            )
        return dataclasses.replace(one, name=name, devices=devices_in_node, nodes=int(match["nodes"] or 1))

    @staticmethod
    def here() -> Machine:
        """This machine, as its operating system and PyTorch describe it."""
        from windtunnel.machine import here

        return here.describe()

    @staticmethod
    def load(path: str | Path) -> Machine:
        """A machine from a TOML or JSON file of the catalogue's form."""
        return _build(records.load(Path(path)), str(path))

    def save(self, path: str | Path) -> None:
        """Write this machine so that `load` gives an equal one."""
        records.save(Path(path), self)

    def with_host_factor(self, factor: float) -> Machine:
        """The same machine with a host that was probed and found `factor` times as slow at launching work. Where the host is the device,
        its cores are as much slower at everything; its memory is not."""
        _require_positive(self.name, "host_factor", factor)
        slower = dataclasses.replace(
            self,
            launch_costs=self.launch_costs and self.launch_costs.scaled(factor),
            host_factor=factor * (self.host_factor or 1.0),
        )
        if self.device != self.host:
            return slower
        device = dataclasses.replace(
            self.device, flop_rates={name: rate / factor for name, rate in self.device.flop_rates.items()}
        )
        return dataclasses.replace(slower, host=device, device=device)

    def source_of(self, path: str) -> str:
        """Where the figure at `path` ("device.memory_rate") comes from; a source for a table covers what is in it."""
        while path:
            if path in self.sources:
                return self.sources[path]
            path = path.rpartition(".")[0]
        return ""

    def with_cpu_only(self) -> Machine:
        """The same host without its other devices: what training on its CPU would see."""
        if self.device == self.host:
            return self
        sources = {
            k: v
            for k, v in self.sources.items()
            if not k.startswith(("device", "link", "peer_link", "launch_costs"))
        }
        sources |= {k.replace("host", "device", 1): v for k, v in sources.items() if k.startswith("host")}
        sources["launch_costs"] = launch_costs_source(self.host, paced=self.name == "here")
        launch_costs = launch_costs_for(
            self.host, self.host, self._interpreter_seconds() if self.name == "here" else None
        )
        return dataclasses.replace(
            self,
            device=self.host,
            devices=1,
            link=None,
            peer_link=None,
            launch_costs=launch_costs,
            profile="",
            host_factor=None,
            sources=sources,
        )

    def _interpreter_seconds(self) -> float | None:
        """How fast the host runs plain Python, read back from the launch costs that were scaled by it."""
        if self.launch_costs is None:
            return None
        reference, _ = _reference_launch_costs(self.device.kind)
        pace = units.parse(
            records.load(CATALOG / "launch_costs.toml")[self.device.kind]["interpreter_seconds"], "s"
        )
        return pace * self.launch_costs.node_seconds / units.parse(reference["node_seconds"], "s")


def home() -> Path:
    """Where this user's own profiles lie; WINDTUNNEL_PROFILES says otherwise."""
    if "WINDTUNNEL_PROFILES" in os.environ:
        return Path(os.environ["WINDTUNNEL_PROFILES"])
    base = Path.home() / ("Library/Application Support" if sys.platform == "darwin" else ".local/share")
    return Path(os.environ.get("XDG_DATA_HOME") or base) / "windtunnel" / "profiles"


def need(machine: Machine, path: str) -> float:
    """The figure at `path`, or RateMissing that says which and what to do."""
    value: Any = machine
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)
    if value is None:
        raise RateMissing(
            f"The forecast needs {path} of {machine.name}, and its description leaves that out because no source states it.",
            hint="Put the figure in a machine file and pass it with --on FILE.toml.",
        )
    return float(value)


def launch_costs_for(host: Device, device: Device, interpreter_seconds: float | None = None) -> LaunchCosts:
    """A reference host's launch costs, scaled by how fast this host runs plain Python, else by clock.

    What stands in where a machine's own costs were not measured.
    """
    reference, launch_costs = (
        records.load(CATALOG / "launch_costs.toml")[device.kind],
        reference_launch_costs(device.kind),
    )
    if interpreter_seconds is not None:
        return launch_costs.scaled(interpreter_seconds / units.parse(reference["interpreter_seconds"], "s"))
    return (
        launch_costs.scaled(units.parse(reference["clock_rate"], "Hz") / host.clock_rate)
        if host.clock_rate
        else launch_costs
    )


def reference_launch_costs(kind: str) -> LaunchCosts:
    """What the reference host of a CPU or a GPU pays to launch work."""
    return records.read(LaunchCosts, _reference_launch_costs(kind)[0], f"launch_costs.toml: {kind}")


def _reference_launch_costs(kind: str) -> tuple[dict[str, Any], str]:
    """The reference host's own costs and where they were measured."""
    table = records.load(CATALOG / "launch_costs.toml")[kind]
    return {
        k: v for k, v in table.items() if k not in ("clock_rate", "interpreter_seconds", "source")
    }, table["source"]


def launch_costs_source(device: Device, paced: bool = False) -> str:
    """Where the reference launch costs were measured, and by what they were scaled."""
    text = _reference_launch_costs(device.kind)[1]
    return f"scaled by {'the speed of plain Python here' if paced else 'clock'} from a reference host: {text}"


@functools.cache
def names() -> tuple[str, ...]:
    """All machines of the catalogue, by name."""
    return tuple(sorted(path.stem for path in (CATALOG / "machines").glob("*.toml")))


@functools.cache
def _from_catalog(name: str) -> Machine:
    return _build(records.load(CATALOG / "machines" / f"{name}.toml"), f"catalogue machine {name}")


def _build(data: dict[str, Any], where: str) -> Machine:
    """Resolve a host, links and storage given by name, then read strictly."""
    data = dict(data)
    sources = dict(data.get("sources", {}))
    for key in ("link", "peer_link", "network"):
        if isinstance(data.get(key), str):
            data[key], text = _shared("links", data[key], where)
            sources.setdefault(key, text)
    if isinstance(data.get("storage"), str):
        data["storage"], text = _shared("storage", data["storage"], where)
        sources.setdefault("storage", text)
    if isinstance(data.get("host"), str):
        host = Machine.named(data["host"])
        data["host"] = records.plain(host.host)
        sources |= {
            key: text for key, text in host.sources.items() if key.startswith("host") and key not in sources
        }
    if isinstance(data.get("launch_costs"), str):
        data["launch_costs"], sources["launch_costs"] = _reference_launch_costs(data["launch_costs"])
    if "device" not in data and "host" in data:
        data["device"] = data["host"]
        sources |= {
            key.replace("host", "device", 1): text for key, text in sources.items() if key.startswith("host")
        }
    machine = records.read(Machine, {**data, "sources": sources}, where)
    if machine.launch_costs is not None:
        return machine
    sources["launch_costs"] = launch_costs_source(machine.device)
    return dataclasses.replace(
        machine, launch_costs=launch_costs_for(machine.host, machine.device), sources=sources
    )


def _shared(kind: str, name: str, where: str) -> tuple[dict[str, Any], str]:
    """A link or a storage that several machines name, with its source."""
    table = records.load(CATALOG / f"{kind}.toml")
    if name not in table:
        raise BadRecord(f"{where}: no entry {name!r} in {kind}.toml.", hint=nearest(name, table))
    entry = dict(table[name])
    return {"name": name, **{k: v for k, v in entry.items() if k != "source"}}, str(entry["source"])


def _scale(data: Any, factor: float) -> Any:
    return (
        {key: _scale(value, factor) for key, value in data.items()}
        if isinstance(data, Mapping)
        else data * factor
    )


def _require_positive(owner: str, name: str, value: float | None) -> None:
    if value is not None and value <= 0:
        raise BadRecord(f"{owner}: {name} must be above 0, not {value}.")
