"""Memory over one step: how much is in use at each op, of which class, and at which op the peak is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from windtunnel.forecast import memory
from windtunnel.forecast.allocator import Rounding
from windtunnel.forecast.forecast import step_of_workers, with_network_launch_costs
from windtunnel.forecast.price import Price, Pricer
from windtunnel.forecast.profile import Profile
from windtunnel.machine.machine import Machine
from windtunnel.strategy import Strategy
from windtunnel.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryMoment:
    """The memory in use while one op runs. `place`: where in the step it runs, from 0 to 1."""

    place: float
    bytes: float
    parts: Mapping[str, float]
    op: str
    module: str
    phase: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryCurve:
    """The memory of one device over a warm step, op by op.

    Ops stand in the order in which they are launched. Each is as wide as its own time, on the host or on the
    device, whichever is longer: memory is taken when an op is launched, and the lanes overlap.
    """

    moments: tuple[MemoryMoment, ...]

    @property
    def peak(self) -> MemoryMoment:
        """The moment at which most memory is in use."""
        return max(self.moments, key=lambda moment: moment.bytes)

    def phases(self) -> list[tuple[str, float, float]]:
        """Where forward, backward and update begin and end; micro-batches repeat the first two."""
        runs: list[tuple[str, float, float]] = []
        for moment in self.moments:
            if runs and runs[-1][0] == moment.phase:
                continue
            if runs:
                runs[-1] = *runs[-1][:2], moment.place
            runs.append((moment.phase, moment.place, 1.0))
        return runs


def memory_curve(trace: Trace, machine: Machine, strategy: Strategy, profile: Profile) -> MemoryCurve:
    """The memory over a step of a strategy whose degrees are known. With several workers: of the one that
    needs most."""
    machine = with_network_launch_costs(machine, profile)
    rounding = Rounding(**profile.rounding)
    if not strategy.is_parallel:
        prices = Pricer(machine, strategy, trace, profile).price(trace.ops)
        return _curve(trace, prices, _followed(trace, machine, strategy, prices, rounding))
    step = step_of_workers(trace, machine, strategy, profile)
    curves = []
    for own, _ in step.memory_traces():
        prices = step.pricer.price(own.ops)
        curves.append(_curve(own, prices, _followed(own, step.machine, strategy, prices, rounding)))
    return max(curves, key=lambda curve: curve.peak.bytes)


def _followed(
    trace: Trace, machine: Machine, strategy: Strategy, prices: Sequence[Price], rounding: Rounding
) -> list[memory.AllocatedMoment]:
    workspaces = [price.workspace_bytes for price in prices]
    return memory.follow(trace, machine, strategy, workspaces, rounding)


def _curve(trace: Trace, prices: Sequence[Price], found: Sequence[memory.AllocatedMoment]) -> MemoryCurve:
    widths = [max(price.host_seconds, price.device_seconds) for price in prices]
    places, now = [], 0.0
    for width in widths:
        places.append(now)
        now += width
    whole = now or 1.0
    moments = [_moment(trace, places[each.position] / whole, each) for each in found] or [
        MemoryMoment(place=0.0, bytes=0.0, parts={}, op="", module="", phase="forward")
    ]
    return MemoryCurve(moments=tuple(moments))


def _moment(trace: Trace, place: float, found: memory.AllocatedMoment) -> MemoryMoment:
    op = trace.ops[found.position]
    parts = {part: float(size) for part, size in found.parts.items() if size}
    lost = found.bytes - sum(parts.values())
    if lost:
        parts["fragmentation"] = lost
    return MemoryMoment(
        place=place, bytes=float(found.bytes), parts=parts, op=op.name, module=op.module, phase=op.phase
    )
