"""The machine: a host, its devices, memories, links and storage. Every figure names its source.

Inside the package a device is a "cpu" or a "gpu". `torch_device` and `device_kind` convert to and from the
names that PyTorch uses ("cpu", "cuda").
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from windtunnel import folders, records, units
from windtunnel.errors import BadInput, BadRecord, RateMissing, Unavailable, nearest
from windtunnel.foreign import shown
from windtunnel.machine.topology import Link as Link
from windtunnel.machine.topology import ParameterServer, Topology, require_positive
from windtunnel.machine.topology import Storage as Storage
from windtunnel.records import Plain
from windtunnel.units import ByteRate, Bytes, FlopRate, Frequency, Seconds, Watts

CATALOG = Path(__file__).parent.parent / "catalog"
PRECISIONS = ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8")
DeviceKind = Literal["cpu", "gpu"]
_MOST_LAUNCH_SECONDS = 3600.0  # far above any sensible value: only refuses obvious mistakes
LOCAL_MACHINES = ("here", "cpu", "cuda", "gpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A CPU or a GPU with its memory. A CPU can be the host, the device that trains, or both.

    cores             physical cores of a CPU, multiprocessors of a GPU
    threads           logical processors of a CPU
    flop_rates        peak rate of matrix products by precision, in flop/s
    memory_rate       bytes read or written in a second, all cores together
    core_memory_rate  the same, one core alone
    copy_rate         what large elementwise kernels of a GPU were seen to reach of `memory_rate`
    cache_bytes       the last-level cache, which all cores share
    core_cache_bytes  the largest cache that belongs to one core
    compute_capability  NVIDIA's number of the GPU's generation: 7.5 for Turing
    inline_ecc        error correction keeps its check bits among the data, and reads and writes them too
    devices_per_board  GPUs on one card, which share its power
    board_clock_rate  the clock of each of them while all compute; `flop_rates` are those of one alone
    """

    kind: DeviceKind
    model: str
    cores: int | None = None
    threads: int | None = None
    clock_rate: Frequency | None = None
    flop_rates: Mapping[str, FlopRate] = field(default_factory=dict)
    memory_bytes: Bytes | None = None
    memory_rate: ByteRate | None = None
    core_memory_rate: ByteRate | None = None
    copy_rate: ByteRate | None = None
    cache_bytes: Bytes | None = None
    core_cache_bytes: Bytes | None = None
    power: Watts | None = None
    compute_capability: float | None = None
    inline_ecc: bool = False
    devices_per_board: int = 1
    board_clock_rate: Frequency | None = None

    def __post_init__(self) -> None:
        for precision, rate in self.flop_rates.items():
            if precision not in PRECISIONS:
                raise BadRecord(
                    f"{self.model}: unknown precision {precision!r} among flop_rates.",
                    hint=nearest(precision, PRECISIONS),
                )
            require_positive(self.model, f"flop_rates.{precision}", rate)
        for each in dataclasses.fields(self):
            if each.name not in ("kind", "model", "flop_rates", "inline_ecc"):
                require_positive(self.model, each.name, getattr(self, each.name))
        if self.copy_rate and self.memory_rate and self.copy_rate > self.memory_rate:
            raise BadRecord(
                f"{self.model}: copy_rate is {units.show(self.copy_rate, 'B/s')}, above the memory_rate of "
                f"{units.show(self.memory_rate, 'B/s')}.",
                hint="Give the rate that a large copy reaches, reads and writes together.",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchCosts:
    """Host time to launch work: Python, PyTorch's dispatcher, autograd and, for a GPU, the kernel launch.

    `forward`, `backward` and `update` give the seconds of one op by op family; "other" covers the families
    that are not listed. The remaining costs are seconds for each:

    node_seconds      node of the autograd graph that backward visits
    tensor_seconds    further tensor of a call on a list of tensors (foreach ops)
    module_seconds    call of an nn.Module
    backward_seconds  call of backward, in addition to its ops
    update_seconds    call of an optimiser's step, in addition to its ops
    graph_seconds     replay of a captured CUDA graph
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
                raise BadRecord(f"launch_costs: {phase} needs a value for 'other'.")
            for family, seconds in getattr(self, phase).items():
                _require_cost(f"{phase}.{family}", seconds)
        for each in dataclasses.fields(self):
            if each.name.endswith("_seconds"):
                _require_cost(each.name, getattr(self, each.name))

    def scaled(self, factor: float) -> LaunchCosts:
        """The costs of a host that is `factor` times as slow."""
        return records.read(LaunchCosts, _scale(records.plain(self), factor), "launch_costs")


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """One or more equal nodes, each with one host and `devices` equal devices.

    device        what trains; on a CPU machine it is the host itself
    link          between host and device
    peer_link     between the devices of a node: the rate of one device to all others together
    network       between nodes: the link of one network card
    topology      how the devices of a node share links, and its network cards
    assumed_topology  where the topology was taken from, in words; empty: it is the machine's own
    usual_node    the node of the catalogue that several of this GPU are assumed to be in
    parameter_server  where weights are kept for workers that fetch them: in the memory of a host, or on a
                  node of its own; "none": nowhere
    transfer_unit a hypothetical unit that copies to and from several devices at once without the CPU
    launch_costs  host time to launch work; see `LaunchCosts`
    assumed_host  the host that has these launch costs, in words; empty: that of the machine
    profile       what a probe measured on the device: a name in the catalogue, or a file
    host_factor   measured slowdown of this host; already applied to `launch_costs`
    host_spread   the factor either way within which `host_factor` is known; None: as a probe finds it
    sources       where each figure comes from, by its path ("device.memory_rate")
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
    topology: Topology = field(default_factory=Topology)
    assumed_topology: str = ""
    usual_node: str = ""
    storage: Storage | None = None
    parameter_server: ParameterServer = "none"
    transfer_unit: bool = False
    launch_costs: LaunchCosts | None = None
    assumed_host: str = ""
    profile: str = ""
    host_factor: float | None = None
    host_spread: float | None = None
    note: str = ""
    sources: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", shown(self.name))
        require_positive(self.name, "devices", self.devices)
        require_positive(self.name, "nodes", self.nodes)
        require_positive(self.name, "host_factor", self.host_factor)
        if self.topology.peer in ("switch", "mesh") and self.peer_link is None:
            raise BadRecord(
                f"{self.name}: topology.peer is {self.topology.peer!r}, but peer_link is missing.",
                hint='Add peer_link = "nvlink-4" or another link, or choose peer = "pcie" or "host".',
            )

    @property
    def node_network_rate(self) -> float | None:
        """Bytes that a node sends in a second through all its network cards; None without a network."""
        if self.network is None:
            return None
        return self.network.rate * self.topology.network_cards / self.topology.oversubscription

    @staticmethod
    def named(name: str) -> Machine:
        """A machine of the catalogue: `h200`, `8xh200` (a node of eight) or `4x8xh200` (four such nodes).

        A node of the catalogue is counted alone: `4xdgx-a100` is four of them.
        """
        from windtunnel.machine import building

        return building.named(name)

    @staticmethod
    def find(text: str) -> Machine:
        """The machine that a user names: `here`, `cpu`, `cuda`, a name of the catalogue, or a file.

        `here` is this machine, with its GPU if it has one. `cpu` is its CPU, `cuda` (or `gpu`) its GPU.
        """
        if text.endswith((".toml", ".json")):
            return Machine.load(text)
        if text not in LOCAL_MACHINES:
            return Machine.named(text)
        machine = Machine.here()
        if text == "cpu":
            from windtunnel.machine import here

            return machine if machine.device == machine.host else here.with_probes(machine.with_cpu_only())
        if text != "here" and machine.device.kind != "gpu":
            raise Unavailable(
                "PyTorch finds no CUDA GPU on this machine.",
                hint="Use --on cpu, or predict for a machine of the catalogue: windtunnel machine list",
            )
        return machine

    @staticmethod
    def here() -> Machine:
        """This machine, as the operating system and PyTorch describe it."""
        from windtunnel.machine import here

        return here.describe()

    @staticmethod
    def load(path: str | Path) -> Machine:
        """Read a machine from a TOML or JSON file. It may name a host, links and storage of the catalogue."""
        from windtunnel.machine import building

        return building.build(records.load(Path(path)), str(path))

    def save(self, path: str | Path) -> None:
        """Write this machine to a TOML or JSON file that `load` reads."""
        records.save(Path(path), self)

    def with_host_factor(self, factor: float, spread: float | None = None) -> Machine:
        """This machine with a host that launches work `factor` times as slowly.

        `spread`: the factor either way within which that is known. Default: as a probe finds it.
        On a CPU machine the host also computes, so its flop rates fall by this factor; its memory rate stays.
        """
        require_positive(self.name, "host_factor", factor)
        slower = dataclasses.replace(
            self,
            launch_costs=self.launch_costs and self.launch_costs.scaled(factor),
            host_factor=factor * (self.host_factor or 1.0),
            host_spread=spread,
        )
        if self.device != self.host:
            return slower
        device = dataclasses.replace(
            self.device, flop_rates={name: rate / factor for name, rate in self.device.flop_rates.items()}
        )
        return dataclasses.replace(slower, host=device, device=device)

    def with_host(self, other: Machine) -> Machine:
        """This GPU machine with the host of another machine; launch costs are scaled by its clock rate."""
        if self.device == self.host:
            raise BadInput(
                f"{self.name} computes on its own CPU, which cannot have another host.",
                hint=f"Use --on {other.name}.",
            )
        dropped = ("host", "launch_costs")
        sources = {key: text for key, text in self.sources.items() if not key.startswith(dropped)}
        sources |= {key: text for key, text in other.sources.items() if key.startswith("host")}
        return dataclasses.replace(
            self,
            host=other.host,
            launch_costs=launch_costs_for(other.host, self.device),
            assumed_host=f"{other.host.model}, scaled by its clock rate from the reference host",
            host_factor=None,
            host_spread=None,
            sources={**sources, "launch_costs": launch_costs_source(self.device)},
        )

    def with_busy_boards(self, busy: int) -> Machine:
        """This machine while `busy` devices of a node compute: those of one card share its power."""
        device = self.device
        if device.devices_per_board < 2 or busy < 2 or not device.board_clock_rate or not device.clock_rate:
            return self
        share = device.board_clock_rate / device.clock_rate
        rates = {name: rate * share for name, rate in device.flop_rates.items()}
        slower = dataclasses.replace(device, flop_rates=rates, clock_rate=device.board_clock_rate)
        return dataclasses.replace(self, device=slower)

    def with_devices(self, count: int) -> Machine:
        """This machine with this many devices in all; beyond a node, in nodes like this one (or of eight)."""
        node = self.devices if self.devices > 1 else min(count, 8)
        nodes = -(-count // node)
        return dataclasses.replace(self, devices=min(node, count), nodes=nodes)

    def source_of(self, path: str) -> str:
        """The source of the figure at `path` ("device.memory_rate"), or of the table that it is in."""
        while path:
            if path in self.sources:
                return self.sources[path]
            path = path.rpartition(".")[0]
        return ""

    def with_cpu_only(self) -> Machine:
        """This machine without its GPUs: the host trains."""
        if self.device == self.host:
            return self
        dropped = ("device", "link", "peer_link", "topology", "launch_costs")
        sources = with_host_as_device({k: v for k, v in self.sources.items() if not k.startswith(dropped)})
        seconds = self._estimate_interpreter_seconds() if self.name == "here" else None
        sources["launch_costs"] = launch_costs_source(self.host, by_python_speed=self.name == "here")
        return dataclasses.replace(
            self,
            device=self.host,
            devices=1,
            link=None,
            peer_link=None,
            topology=Topology(),
            assumed_topology="",
            usual_node="",
            launch_costs=launch_costs_for(self.host, self.host, seconds),
            assumed_host="",
            profile="",
            host_factor=None,
            host_spread=None,
            sources=sources,
        )

    def _estimate_interpreter_seconds(self) -> float | None:
        """Estimate this host's Python speed from its launch costs.

        Launch costs are a better basis than a new timing of Python, because they include the last probe.
        """
        if self.launch_costs is None:
            return None
        reference = reference_host(self.device.kind)
        node_seconds = units.parse(reference["node_seconds"], "s")
        return (
            units.parse(reference["interpreter_seconds"], "s") * self.launch_costs.node_seconds / node_seconds
        )


def torch_device(kind: str) -> str:
    """PyTorch's name for a kind of device: "cuda" for "gpu"."""
    return "cuda" if device_kind(kind) == "gpu" else "cpu"


def device_kind(name: str) -> DeviceKind:
    """The kind of device that PyTorch or a user names: "gpu" for "cuda"."""
    if name not in ("cpu", "cuda", "gpu"):
        raise BadInput(f"{name!r} is not a kind of device.", hint="Write cpu or cuda.")
    return "cpu" if name == "cpu" else "gpu"


def home() -> Path:
    """The folder of this user's profiles. WINDTUNNEL_PROFILES or WINDTUNNEL_HOME moves it."""
    return folders.profiles()


def need(machine: Machine, path: str) -> float:
    """The figure at `path` ("device.memory_rate"), or RateMissing if the machine has none."""
    value: Any = machine
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)
    if value is None:
        raise RateMissing(
            f"The forecast needs {path} of {machine.name}; the machine's description has no such figure.",
            hint="Add the figure to a machine file and use --on FILE.toml.",
        )
    return float(value)


def launch_costs_for(host: Device, device: Device, interpreter_seconds: float | None = None) -> LaunchCosts:
    """Estimate a machine's launch costs when they were not measured.

    Scale the reference host's costs by Python speed if it is known, else by clock rate.
    """
    reference, launch_costs = reference_host(device.kind), reference_launch_costs(device.kind)
    if interpreter_seconds is not None:
        return launch_costs.scaled(interpreter_seconds / units.parse(reference["interpreter_seconds"], "s"))
    if host.clock_rate:
        return launch_costs.scaled(units.parse(reference["clock_rate"], "Hz") / host.clock_rate)
    return launch_costs


def reference_launch_costs(kind: DeviceKind) -> LaunchCosts:
    """The launch costs of the reference host, for a CPU or a GPU."""
    return records.read(LaunchCosts, reference_host_costs(kind), f"launch_costs.toml: {kind}")


def reference_network_factors(kind: DeviceKind) -> Mapping[str, float]:
    """By network of a host probe: the factor that it shows on the reference host itself; none for a CPU."""
    factors: Mapping[str, float] = reference_host(kind).get("network_factors", {})
    return factors


def launch_costs_source(device: Device, by_python_speed: bool = False) -> str:
    """Where the reference launch costs were measured, and how they were scaled to this host."""
    scale = "this host's Python speed" if by_python_speed else "clock rate"
    return f"scaled by {scale} from a reference host: {reference_host(device.kind)['source']}"


def with_host_as_device(sources: Mapping[str, str]) -> dict[str, str]:
    """Sources of a CPU machine: those of its host hold for its device too, which is the same CPU."""
    copies = {k.replace("host", "device", 1): text for k, text in sources.items() if k.startswith("host")}
    return {**sources, **copies}


def reference_host(kind: DeviceKind) -> Plain:
    """The reference host as the catalogue describes it."""
    reference: Plain = records.load(CATALOG / "launch_costs.toml")[kind]
    return reference


def reference_host_costs(kind: DeviceKind) -> Plain:
    about = ("host", "clock_rate", "interpreter_seconds", "source", "network_factors")
    return {key: value for key, value in reference_host(kind).items() if key not in about}


@functools.cache
def names() -> tuple[str, ...]:
    """The names of the catalogue's machines with one device."""
    return tuple(sorted(path.stem for path in (CATALOG / "machines").glob("*.toml")))


@functools.cache
def node_names() -> tuple[str, ...]:
    """The names of the catalogue's nodes: machines with several devices."""
    return tuple(sorted(path.stem for path in (CATALOG / "nodes").glob("*.toml")))


def _require_cost(name: str, seconds: float) -> None:
    if not 0 <= seconds <= _MOST_LAUNCH_SECONDS:
        raise BadRecord(
            f"launch_costs: {name} must be from 0 to {_MOST_LAUNCH_SECONDS:g} s, not {seconds:.6g}."
        )


def _scale(data: Any, factor: float) -> Any:
    return (
        {key: _scale(value, factor) for key, value in data.items()}
        if isinstance(data, Mapping)
        else data * factor
    )
