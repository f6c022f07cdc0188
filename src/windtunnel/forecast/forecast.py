"""A trace on a machine under a strategy -> a Forecast."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from windtunnel import units
from windtunnel.errors import BadInput
from windtunnel.forecast import memory
from windtunnel.forecast.allocator import Rounding
from windtunnel.forecast.price import Price, Pricer, threads_of
from windtunnel.forecast.profile import Profile
from windtunnel.forecast.timeline import Timeline, lay_out
from windtunnel.machine.machine import Machine, need
from windtunnel.results import Result
from windtunnel.strategy import Strategy
from windtunnel.trace import Trace

_HOST_PARTS = ("launch",)
_CORE_MEMORY_RATE = 12e9  # what one core of a host draws, where its description does not say
# For a machine nobody has probed, by a profile of another: as factors either way.
_OTHER_SPREAD, _OTHER_HOST_SPREAD = 1.6, 1.6
_LEAST_DOUBT = 0.01
_TOLD_SHARE = 0.02


class Doubt(NamedTuple):
    """Factors either way within which four of five truths should lie, for the device and for the host."""

    device: float
    host: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast(Result):
    """A step that was never run. `families` are the device's seconds by family of op."""

    flop: float = 0.0
    parameters: int = 0
    families: Mapping[str, float] = field(default_factory=dict)

    def headline(self) -> str:
        return f"forecast: {Result.headline(self)}"

    def _own_lines(self) -> list[str]:
        rate = units.show(self.flop / self.step_seconds, "flop/s")
        return [
            f"  work     {units.show(self.flop, 'flop')} a step at {rate}; {self.parameters:,} parameters"
        ]


def forecast(
    trace: Trace, machine: Machine, strategy: Strategy, profile: Profile, examples: int | None = None
) -> Forecast:
    """Price, schedule and account one steady training step; read its memory off the same trace."""
    _refuse_impossible(machine, strategy)
    machine = _stretch(machine, profile)
    pricer = Pricer(machine, strategy, trace, profile)
    prices = pricer.price(trace.ops)
    timeline = lay_out(trace, prices, machine, strategy, _copy_seconds(trace, machine, strategy, profile))
    parts = timeline.parts()
    host, device = _lane_seconds(timeline, "host"), _lane_seconds(timeline, "device")
    doubt = doubt_of(machine, profile)
    low, high = (_stretched(timeline.step_seconds, parts, host, device, doubt, sign) for sign in (-1, 1))
    return Forecast(
        job=trace.job,
        machine=machine.name,
        strategy=_told(strategy, machine),
        batch=trace.batch,
        step_seconds=timeline.step_seconds,
        low_seconds=low,
        high_seconds=high,
        parts=parts,
        memory=memory.account(
            trace,
            machine,
            strategy,
            [price.workspace_bytes for price in prices],
            Rounding(**profile.rounding),
        ),
        bound_by=max(parts, key=lambda part: parts[part]),
        device_seconds=sum(price.device_seconds for price in prices),
        host_seconds=host if machine.device.kind == "gpu" else sum(price.host_seconds for price in prices),
        families=_by_family(trace, prices),
        examples=examples,
        cautions=_cautions(pricer, timeline, machine, profile),
        flop=trace.flop,
        parameters=trace.parameters,
    )


def _refuse_impossible(machine: Machine, strategy: Strategy) -> None:
    if strategy.execution == "graph" and machine.device.kind == "cpu":
        raise BadInput(
            f"execution=graph needs a GPU; {machine.name} computes on its CPU.",
            hint="Use --execution eager, or --on a GPU machine.",
        )
    if strategy.execution == "graph" and strategy.data == "streamed":
        raise BadInput(
            "execution=graph reads its batch from one fixed place, so data=streamed cannot go with it.",
            hint="Use --data resident or --execution eager.",
        )
    if machine.launch_costs is None:
        raise BadInput(
            f"{machine.name} says nothing of what its host pays to launch an op.",
            hint="Load it with Machine.load or Machine.named, which fill that in.",
        )


def _told(strategy: Strategy, machine: Machine) -> dict[str, object]:
    """The strategy as it will be run, with the machine's defaults filled in and what plays no part left out."""
    told = strategy.fields()
    told.pop("batch", None)
    if machine.device.kind == "cpu":
        told["threads"] = threads_of(machine, strategy)
        told.pop("data")
    else:
        told.pop("threads", None)
    if not strategy.prefetch:
        told.pop("prefetch")
    return dict(told)


def forecast_timeline(trace: Trace, machine: Machine, strategy: Strategy, profile: Profile) -> Timeline:
    """The schedule behind a forecast."""
    _refuse_impossible(machine, strategy)
    machine = _stretch(machine, profile)
    prices = Pricer(machine, strategy, trace, profile).price(trace.ops)
    return lay_out(trace, prices, machine, strategy, _copy_seconds(trace, machine, strategy, profile))


def _copy_seconds(trace: Trace, machine: Machine, strategy: Strategy, profile: Profile) -> float:
    """What a streamed batch takes to the device: as the machine's own probe timed it, else at its link's rate."""
    if strategy.data == "resident" or machine.device.kind == "cpu":
        return 0.0
    timed = (
        profile.copy_seconds(trace.batch_bytes, "pinned" if strategy.prefetch else "pageable")
        if machine.profile
        else None
    )
    if timed is not None:
        return timed
    link_rate = need(machine, "link.rate")
    if strategy.prefetch:
        return trace.batch_bytes / link_rate
    # From ordinary memory a core of the host copies the batch to a staging buffer first, reading and writing each byte.
    staging = (machine.host.core_memory_rate or _CORE_MEMORY_RATE) / 2
    return trace.batch_bytes / min(link_rate, staging)


def _stretch(machine: Machine, profile: Profile) -> Machine:
    """The machine whose host launches a whole network: what a microbenchmark keeps in its caches a network does not."""
    return dataclasses.replace(
        machine, launch_costs=machine.launch_costs and machine.launch_costs.scaled(profile.launch_cost_factor)
    )


def doubt_of(machine: Machine, profile: Profile) -> Doubt:
    """A profile of this very machine is trusted as far as tuning rows bear it out; one of a cousin, or a host nobody probed, less."""
    device = profile.device_spread if machine.profile else max(_OTHER_SPREAD, profile.device_spread)
    host = (
        profile.host_spread
        if machine.host_factor is not None
        else max(_OTHER_HOST_SPREAD, profile.host_spread)
    )
    return Doubt(device=device, host=host)


def _lane_seconds(timeline: Timeline, lane: str) -> float:
    """What a lane has to do in one step."""
    first = next(
        (i for i, task in enumerate(timeline.tasks) if i and task.label == "step"), len(timeline.tasks)
    )
    return sum(task.seconds for task in timeline.tasks[:first] if task.lane == lane)


def _by_family(trace: Trace, prices: Sequence[Price]) -> dict[str, float]:
    found: dict[str, float] = {}
    for op, price in zip(trace.ops, prices, strict=True):
        if price.device_seconds > 0:
            found[op.family] = found.get(op.family, 0.0) + price.device_seconds
    return found


def _stretched(
    step: float, parts: Mapping[str, float], host: float, device: float, doubt: Doubt, sign: int
) -> float:
    """The step if host and device were both as fast or as slow as is to be reckoned with: the critical path stretched, and no
    shorter than what either lane would then need."""
    by_host, by_device = doubt.host**sign, doubt.device**sign
    path = sum(seconds * (by_host if part in _HOST_PARTS else by_device) for part, seconds in parts.items())
    found = max(path, host * by_host, device * by_device)
    return min(found, step * (1 - _LEAST_DOUBT)) if sign < 0 else max(found, step * (1 + _LEAST_DOUBT))


def _cautions(pricer: Pricer, timeline: Timeline, machine: Machine, profile: Profile) -> tuple[str, ...]:
    cautions = []
    if not machine.profile:
        cautions.append(
            f"nobody has probed {machine.name}: efficiencies are those of {profile.model} on its specified rates, and the interval is wide"
        )
    if machine.host_factor is None and not machine.source_of("launch_costs").startswith("measured here"):
        cautions.append("host speed is a guess; probe the real host: windtunnel machine probe --host")
    whole = timeline.step_seconds
    for name, seconds in sorted(pricer.assumed.items(), key=lambda item: -item[1]):
        cautions.append(
            f"{name} belongs to no known family and was priced by its bytes: {seconds / whole:.1%} of the step"
        )
    for name, seconds in sorted(pricer.outside.items(), key=lambda item: -item[1]):
        if seconds > _TOLD_SHARE * whole:
            cautions.append(
                f"{name} is larger or smaller than anything that was probed: {seconds / whole:.1%} of the step, bounded by the device's rates"
            )
    cautions += pricer.notes
    if pricer.strategy.execution == "compiled":
        cautions.append(
            "what a compiler makes of the step is a first model: fused kernels and the host's share of launching are guessed, not learned"
        )
    count = machine.devices * machine.nodes
    if count > 1:
        cautions.append(f"one device of the {count} is used: this forecast is for one worker")
    if machine.device.kind == "cpu" and machine.device.cores and pricer.threads > machine.device.cores:
        cautions.append(
            f"{pricer.threads} threads on {machine.device.cores} physical cores take turns, which usually lengthens the step"
        )
    if machine.device.memory_bytes is None:
        cautions.append(f"{machine.name} states no memory size: whether the step fits is not known")
    return tuple(cautions)
