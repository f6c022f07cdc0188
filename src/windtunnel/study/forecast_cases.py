"""Cells of a study that no hardware here can run: several devices, forecast instead of measured.

They are data of a figure's file: `[[forecast]]` is a line of cells; `[[explanation]]` is a published gain,
for which the forecast computes possible causes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from windtunnel import records
from windtunnel.errors import BadRecord, UnknownName, nearest
from windtunnel.machine.building import shared_link, shared_storage
from windtunnel.machine.machine import Machine
from windtunnel.machine.topology import ParameterServer, PeerPath, require_positive
from windtunnel.strategy import Strategy
from windtunnel.units import Bytes, Seconds

# An axis of a forecast figure: the devices of all nodes together, or one of these fields of a strategy.
AXES = ("devices", "batch", "exchange", "data", "prefetch")


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineChanges:
    """What a case changes in a machine of the catalogue. Links and storage are named as in the catalogue.

    link                between host and devices, and between the devices of a node without NVLink
    network             between nodes
    storage             where examples are read from
    peer                how the devices of a node reach each other
    devices_per_uplink  devices that share one PCIe uplink
    parameter_server    where weights are kept for workers that fetch them
    transfer_unit       the hypothetical unit that copies to several devices at once without the CPU
    link_factor         multiplies the rates of the links between the devices of a node
    network_factor      multiplies the rate of the network
    host_factor         multiplies what launching costs the host
    """

    link: str = ""
    network: str = ""
    storage: str = ""
    peer: PeerPath | None = None
    devices_per_uplink: int | None = None
    parameter_server: ParameterServer | None = None
    transfer_unit: bool = False
    link_factor: float = 1.0
    network_factor: float = 1.0
    host_factor: float = 1.0

    def __post_init__(self) -> None:
        for name in ("link_factor", "network_factor", "host_factor", "devices_per_uplink"):
            require_positive("machine", name, getattr(self, name))

    def applied(self, machine: Machine) -> Machine:
        """The machine with these changes."""
        replaced: dict[str, object] = {"transfer_unit": machine.transfer_unit or self.transfer_unit}
        for name, find in (("link", shared_link), ("network", shared_link), ("storage", shared_storage)):
            if word := getattr(self, name):
                replaced[name] = find(word)
        if self.parameter_server is not None:
            replaced["parameter_server"] = self.parameter_server
        shape = {"peer": self.peer, "devices_per_uplink": self.devices_per_uplink}
        changed = {key: value for key, value in shape.items() if value is not None}
        replaced["topology"] = dataclasses.replace(machine.topology, **changed)  # type: ignore[arg-type]
        machine = dataclasses.replace(machine, **replaced)  # type: ignore[arg-type]
        factors = {"link": self.link_factor, "peer_link": self.link_factor, "network": self.network_factor}
        for name, factor in factors.items():
            link = getattr(machine, name)
            if link is not None and factor != 1.0:
                faster = dataclasses.replace(link, rate=link.rate * factor)
                machine = dataclasses.replace(machine, **{name: faster})
        return machine if self.host_factor == 1.0 else machine.with_host_factor(self.host_factor)


@dataclass(frozen=True, slots=True, kw_only=True)
class BareStep:
    """A step that is stated, not traced: seconds of its one kernel, and bytes of its batch."""

    kernel_seconds: Seconds
    batch_bytes: Bytes

    def __post_init__(self) -> None:
        require_positive("step", "kernel_seconds", self.kernel_seconds)
        require_positive("step", "batch_bytes", self.batch_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastCase:
    """A line of forecast cells over the figure's grid.

    machine   a machine of the catalogue; beyond its devices, several of its nodes
    changes   what differs from it
    label     the framework whose form of exchange it has, and a word for that form
    job       any named job; default: the figure's. `step` states a step instead
    scaling   strong: the batch is divided among all devices; weak: each device has the batch
    strategy  fields of a strategy, as in `windtunnel predict`
    why       the reason for the case's values, for example how the framework exchanged gradients
    """

    name: str
    machine: str
    label: str = "torch:ddp"
    job: str = ""
    settings: Mapping[str, object] = field(default_factory=dict)
    batch: int | None = None
    scaling: Literal["strong", "weak"] = "strong"
    strategy: Mapping[str, object] = field(default_factory=dict)
    changes: MachineChanges = field(default_factory=MachineChanges)
    step: BareStep | None = None
    why: str = ""

    def __post_init__(self) -> None:
        for name in ("batch", "data_parallel"):
            if name in self.strategy:
                raise BadRecord(
                    f"forecast {self.name}: {name} does not belong into strategy.",
                    hint="State batch in the case or the figure, and devices in the grid.",
                )
        Strategy.read(self.strategy, f"forecast {self.name}: strategy")
        if self.batch is not None and self.batch < 1:
            raise BadRecord(f"forecast {self.name}: batch must be above 0, not {self.batch}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """A published gain of one doubling, and the forecast case for which it is explained.

    `saved`: the share of the time that twice the devices save, as the authors state it.
    """

    name: str
    case: str
    saved: float
    source: str = ""

    def __post_init__(self) -> None:
        if not 0.0 < self.saved < 0.5:
            raise BadRecord(
                f"explanation {self.name}: saved must be between 0 and 0.5, not {self.saved}.",
                hint="Twice the devices save at most half of the time.",
            )

    @property
    def efficiency(self) -> float:
        """The speed-up of the doubling over two."""
        return 0.5 / (1.0 - self.saved)


def check(
    cases: tuple[ForecastCase, ...],
    explanations: tuple[Explanation, ...],
    grid: Mapping[str, tuple[object, ...]],
) -> None:
    """Refuse axes that a forecast cannot have, and explanations of an unknown case."""
    for axis, values in grid.items():
        if axis not in AXES:
            raise BadRecord(f"grid: a forecast has no axis {axis!r}.", hint=nearest(axis, AXES))
        for value in values:
            if axis == "devices" and not (isinstance(value, int) and value > 0):
                raise BadRecord(f"grid: devices must be whole numbers above 0, not {value!r}.")
            if axis not in ("devices", "batch"):
                Strategy.read({axis: value, **({"data": "streamed"} if axis == "prefetch" else {})})
    names = [case.name for case in cases]
    for explanation in explanations:
        if explanation.case not in names:
            raise BadRecord(
                f"explanation {explanation.name}: no forecast is named {explanation.case!r}.",
                hint=nearest(explanation.case, names),
            )


def machine_of(case: ForecastCase, devices: int) -> Machine:
    """The machine of a case with this number of devices in all."""
    try:
        machine = Machine.named(case.machine)
    except UnknownName as error:
        raise BadRecord(f"forecast {case.name}: {error.message}", hint=error.hint) from None
    is_fed = case.strategy.get("data", "resident") != "resident" or case.step is not None
    if devices >= machine.devices or is_fed:  # idle devices take no part in feeding
        machine = machine.with_devices(devices)
    else:
        machine = dataclasses.replace(machine, nodes=1)
    return case.changes.applied(machine)


def strategy_of(case: ForecastCase, point: Mapping[str, object], batch: int, devices: int) -> Strategy:
    """The strategy of a cell: the case's fields, those of its point, and data parallelism."""
    whole = batch if case.scaling == "strong" else batch * devices
    fields = {"precision": "fp32", **case.strategy, **point}
    degrees = ("tensor_parallel", "pipeline_parallel")
    if not any(name in fields for name in degrees):
        fields["data_parallel"] = devices
    if devices == 1:  # a single device runs without any exchange
        fields["exchange"] = "buckets"
    return Strategy.read({**fields, "batch": whole}, f"forecast {case.name}")


def describe(case: ForecastCase) -> dict[str, object]:
    """What distinguishes the cells of a case besides its job: strategy and changes of the machine."""
    usual = MachineChanges()
    changed: dict[str, object] = records.plain(case.changes)
    kept = {key: value for key, value in changed.items() if value != getattr(usual, key)}
    return {**case.strategy, **kept, "scaling": case.scaling}
