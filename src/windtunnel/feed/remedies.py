"""The gain of each remedy for a device that waits for data: the same step, forecast with one change."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from windtunnel import records, units
from windtunnel.displays import Displayed, display, facts, table
from windtunnel.errors import WindtunnelError
from windtunnel.forecast.forecast import Forecast, busiest
from windtunnel.job.workload import Workload
from windtunnel.machine.machine import Machine
from windtunnel.machine.topology import striped
from windtunnel.prediction import forecast_trace, trace
from windtunnel.records import Plain
from windtunnel.strategy import Strategy

_AHEAD = 2  # batches copied ahead: one in use, one on its way
_DRIVES = 5  # as the guide stripes them
_ALWAYS = 0.99


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """A change of the machine or of the strategy. `reason`: why it cannot be applied here, if it cannot."""

    name: str
    what: str
    machine: Machine
    strategy: Strategy
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FedStep:
    """The step with one remedy, or the reason why there is none."""

    name: str
    what: str
    step_seconds: float | None = None
    utilisation: float | None = None
    bound_by: str = ""
    parts: Mapping[str, float] = dataclasses.field(default_factory=dict)
    busy: Mapping[str, float] = dataclasses.field(default_factory=dict)
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemedyTable(Displayed):
    """A job as it is, and with each remedy. Prints itself."""

    title: str
    steps: tuple[FedStep, ...]
    cautions: tuple[str, ...] = ()

    @property
    def base(self) -> FedStep:
        """The step without any remedy."""
        return self.steps[0]

    def with_caution(self, text: str) -> RemedyTable:
        """This table with a further caution, before the others."""
        return dataclasses.replace(self, cautions=(text, *self.cautions))

    def plain(self) -> Plain:
        """Plain data in seconds, for JSON."""
        data: Plain = records.plain(self)
        return data

    def lines(self) -> list[str]:
        width = max(len(step.name) for step in self.steps)
        head = f"  {'':{width}}  {'step':>9}  {'gain':>5}  {'device works':>12}  bound by"
        rows = [self._line(step, width) for step in self.steps]
        notes = [f"  {step.name:{width}}  {step.what}" for step in self.steps if step.what]
        cautions = [f"  caution: {caution}" for caution in self.cautions]
        return [self.title, "", head, *rows, "", *notes, *cautions]

    def _line(self, step: FedStep, width: int) -> str:
        if step.step_seconds is None or step.utilisation is None:
            return f"  {step.name:{width}}  not possible: {step.reason}"
        base = self.base.step_seconds or step.step_seconds
        return (
            f"  {step.name:{width}}  {units.show(step.step_seconds, 's'):>9}  "
            f"{base / step.step_seconds:>5.2f}  {step.utilisation:>12.1%}  {_limit(step)}"
        )

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def _repr_html_(self) -> str:
        head = ("remedy", "step", "gain", "device works", "bound by", "what changes")
        rows = [self._cells(step) for step in self.steps]
        cautions = facts(("caution", caution) for caution in self.cautions)
        return display(self.title, table(head, rows, words=("remedy", "bound by", "what changes")), cautions)

    def _cells(self, step: FedStep) -> tuple[str, ...]:
        if step.step_seconds is None or step.utilisation is None:
            return step.name, "", "", "", f"not possible: {step.reason}", step.what
        gain = (self.base.step_seconds or step.step_seconds) / step.step_seconds
        shown = units.show(step.step_seconds, "s"), f"{gain:.2f}", f"{step.utilisation:.1%}"
        return step.name, *shown, _limit(step), step.what


def _limit(step: FedStep) -> str:
    """What limits the step: the resource that always works, or else the largest part of the step."""
    if max(step.busy.values(), default=0.0) >= _ALWAYS:
        return busiest(step.busy)
    return f"{step.bound_by} ({busiest(step.busy)})"


def compare_remedies(workload: Workload, machine: Machine, strategy: Strategy) -> RemedyTable:
    """Forecast the job as it is fed now, and with each remedy: prefetch, storage, switches, page cache ...

    `strategy.data` says where the data set lies; with "storage" the machine must state its storage.
    """
    recorded = trace(workload, strategy, machine.device.kind)
    base = forecast_trace(recorded, workload, machine, strategy)

    def evaluate(remedy: Remedy) -> FedStep:
        forecast = forecast_trace(recorded, workload, remedy.machine, remedy.strategy)
        return fed_step(remedy, forecast)

    examples = workload.data.examples if workload.data is not None else workload.examples
    size = None if examples is None else examples * recorded.batch_bytes / recorded.batch
    room = Room(data_bytes=size, step_bytes=base.memory.total_bytes)
    steps = apply(remedies(machine, strategy, room), evaluate)
    return RemedyTable(title=_title(base), steps=tuple(steps), cautions=_cautions(base, machine))


def _title(base: Forecast) -> str:
    """The headline without a data-parallel degree, since no gradients are exchanged here."""
    strategy = {name: value for name, value in base.strategy.items() if name != "data_parallel"}
    return dataclasses.replace(base, strategy=strategy).headline()


def _cautions(base: Forecast, machine: Machine) -> tuple[str, ...]:
    """Those of the forecast. All devices are fed, though one is traced."""
    count = machine.devices * machine.nodes
    if count == 1:
        return base.cautions
    own = f"each of the {count} devices trains on a batch of its own: no exchange of gradients is counted"
    return own, *(caution for caution in base.cautions if f"of the {count} devices" not in caution)


def fed_step(remedy: Remedy, forecast: Forecast) -> FedStep:
    return FedStep(
        name=remedy.name,
        what=remedy.what,
        step_seconds=forecast.step_seconds,
        utilisation=forecast.utilisation,
        bound_by=forecast.bound_by,
        parts=forecast.parts,
        busy=forecast.busy,
    )


def apply(remedies: Iterator[Remedy], evaluate: Callable[[Remedy], FedStep]) -> list[FedStep]:
    """The step with each remedy. An impossible remedy has a reason instead; only the unchanged step must be
    possible."""
    steps: list[FedStep] = []
    for number, remedy in enumerate(remedies):
        reason = remedy.reason
        if not reason:
            try:
                steps.append(evaluate(remedy))
                continue
            except WindtunnelError as error:
                if number == 0:
                    raise
                reason = error.message.splitlines()[0]
        steps.append(FedStep(name=remedy.name, what=remedy.what, reason=reason))
    return steps


class Room(NamedTuple):
    """Device memory that a resident data set needs, as tensors (None: its size is unknown), and a step."""

    data_bytes: float | None = None
    step_bytes: float = 0.0


def remedies(machine: Machine, strategy: Strategy, room: Room) -> Iterator[Remedy]:
    """The step as it is, then each remedy that changes something."""

    def remedy(name: str, what: str, reason: str = "", on: Machine = machine, **changes: object) -> Remedy:
        changed = dataclasses.replace(strategy, **changes)  # type: ignore[arg-type]
        return Remedy(name=name, what=what, machine=on, strategy=changed, reason=reason)

    yield remedy("as it is", "")
    on_gpu = machine.device.kind == "gpu"
    ahead = max(strategy.prefetch, _AHEAD)
    if on_gpu and not strategy.prefetch:
        yield remedy(
            "prefetch", f"copy {ahead} batches ahead from pinned memory", prefetch=ahead, pinned=None
        )
    cores = (machine.host.cores or 1) * machine.topology.sockets
    loaders = max(strategy.loaders, 1, cores // machine.devices) if strategy.is_loaded else 0
    if loaders > strategy.loaders:
        what = f"{loaders} loader processes for each device, all {cores} cores together"
        yield remedy("more loaders", what, loaders=loaders)
    if on_gpu:
        yield from _link_remedies(machine, remedy, ahead)
    yield from _storage_remedies(machine, strategy, remedy, ahead if on_gpu else 0)
    if on_gpu and strategy.is_loaded:
        yield remedy(
            "together",
            f"prefetch, {loaders} loaders a device, a root port each, {_DRIVES} x the storage",
            on=_with_all(machine),
            prefetch=ahead,
            pinned=None,
            loaders=loaders,
        )
    if on_gpu:
        yield remedy(
            "resident data",
            "the data set lies in device memory",
            reason=_why_not_resident(machine, room),
            data="resident",
            loaders=0,
            load_ahead=2,
            pinned=None,
            direct=False,
            prefetch=0,
        )
        yield remedy(
            "transfer unit",
            "hypothetical: copies to all devices at once without the CPU, with prefetch",
            on=dataclasses.replace(machine, transfer_unit=True),
            prefetch=ahead,
            pinned=None,
        )


def _with_all(machine: Machine) -> Machine:
    """The machine with more storage and without shared uplinks."""
    storage = machine.storage and striped(machine.storage, _DRIVES)
    topology = dataclasses.replace(machine.topology, devices_per_uplink=1)
    return dataclasses.replace(machine, storage=storage, topology=topology)


def _link_remedies(machine: Machine, remedy: Callable[..., Remedy], ahead: int) -> Iterator[Remedy]:
    """GPUs that share an uplink get switches, or a root port each."""
    sharers = min(machine.devices, machine.topology.devices_per_uplink)
    for fewer, name, what in (
        (2, "a switch for two", "each two devices share one PCIe switch with its own uplink"),
        (1, "a root port each", "each device has all lanes of an uplink for itself"),
    ):
        if sharers > fewer:
            topology = dataclasses.replace(machine.topology, devices_per_uplink=fewer)
            changed = dataclasses.replace(machine, topology=topology)
            yield remedy(name, f"{what}, with prefetch", on=changed, prefetch=ahead, pinned=None)


def _storage_remedies(
    machine: Machine, strategy: Strategy, remedy: Callable[..., Remedy], ahead: int
) -> Iterator[Remedy]:
    """Faster storage, none, or direct reads, where examples come from storage."""
    if strategy.data != "storage" or machine.storage is None or machine.storage.read_rate is None:
        return
    more = striped(machine.storage, _DRIVES)
    yield remedy(
        "more storage",
        f"{_DRIVES} x {machine.storage.name}, striped: {units.show(more.read_rate or 0.0, 'B/s')}",
        on=dataclasses.replace(machine, storage=more),
    )
    if ahead and not strategy.direct:
        yield remedy(
            "GPUDirect storage",
            "the device reads from storage; examples are stored as tensors, with prefetch",
            direct=True,
            loaders=0,
            load_ahead=2,
            pinned=None,
            prefetch=ahead,
        )
    if not strategy.direct:
        yield remedy("page cache", "the files fit into the host's memory", data="page-cache")


def _why_not_resident(machine: Machine, room: Room) -> str:
    """Why the decoded data set does not fit beside the step; empty if it does, or if its size is unknown."""
    size, capacity = room.data_bytes, machine.device.memory_bytes
    if size is None or capacity is None or size + room.step_bytes <= capacity:
        return ""
    return (
        f"the data set is {units.show(size, 'B')} as tensors; "
        f"{units.show(max(0.0, capacity - room.step_bytes), 'B')} are free"
    )
