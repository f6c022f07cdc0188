"""Forecast one training step: a trace on a machine under a strategy in, a Forecast and its timeline out."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from windtunnel import units
from windtunnel.errors import BadInput
from windtunnel.forecast import memory
from windtunnel.forecast.allocator import Rounding
from windtunnel.forecast.cautions import Cautions
from windtunnel.forecast.contributors import build_step, contributors_of
from windtunnel.forecast.parallel import ParallelStep, parallel_step
from windtunnel.forecast.price import Price, Pricer, threads_of
from windtunnel.forecast.profile import Profile
from windtunnel.forecast.timeline import Timeline, steady_timeline
from windtunnel.forecast.uncertainty import interval_of, spreads_of
from windtunnel.forecast.workers import workers_of
from windtunnel.garbage_collection import many_short_lived_objects
from windtunnel.machine.machine import Machine
from windtunnel.results import Result, Row
from windtunnel.strategy import LOADED, Strategy
from windtunnel.trace import Trace

# Kinds of lanes, as texts name them.
LANES: Mapping[str, str] = {
    "host": "launching",
    "copy": "PCIe link",
    "memory": "host memory",
    "loader": "loaders",
    "cores": "host cores",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast(Result):
    """A step that was computed, not run: its time with an interval and parts, its memory, its bottleneck.

    The interval `low_seconds` to `high_seconds` holds the true time of about 8 steps in 10. `families` are
    the device's seconds by family of op. `host`: on which host a GPU's step was forecast, in words. `feed`:
    the parts of the step that are reading and decoding. `utilisation`: the share of the step in which the
    device works. `busy`: the share in which each resource works, the busiest first. `flop` are those of all
    `workers`.
    """

    host: str = ""
    feed: Mapping[str, float] = field(default_factory=dict)
    utilisation: float = 1.0
    busy: Mapping[str, float] = field(default_factory=dict)
    flop: float = 0.0
    parameters: int = 0
    workers: int = 1
    families: Mapping[str, float] = field(default_factory=dict)

    def headline(self) -> str:
        return f"forecast: {Result.headline(self)}"

    def _own_rows(self) -> list[Row]:
        rate = units.show(self.flop / self.step_seconds, "flop/s")
        each = units.show(self.flop / self.step_seconds / self.workers, "flop/s")
        on_each = f" ({each} on each of {self.workers} devices)" if self.workers > 1 else ""
        work = f"{units.show(self.flop, 'flop')} a step at {rate}{on_each}; {self.parameters:,} parameters"
        rows = [("work", work), *([("host", self.host)] if self.host else [])]
        return [*self._feed_rows(), *rows]

    def _feed_rows(self) -> list[Row]:
        """How well the device is fed; empty if its data are resident."""
        if self.strategy.get("data", "resident") == "resident":
            return []
        waits = [f"{name} {units.show(seconds, 's')}" for name, seconds in self.feed.items()]
        of_feed = f"; the feed is {', '.join(waits)}" if waits else ""
        return [
            ("feed", f"the device works {self.utilisation:.1%} of the step; {busiest(self.busy)}{of_feed}")
        ]


def busiest(busy: Mapping[str, float]) -> str:
    """The resource that works most, in words."""
    name, share = next(iter(busy.items()), ("nothing", 0.0))
    return f"{LANES.get(name, name)} {share:.0%} busy"


class ForecastStep(NamedTuple):
    """A forecast and the schedule behind it."""

    forecast: Forecast
    timeline: Timeline


@many_short_lived_objects()
def forecast_step(
    trace: Trace, machine: Machine, strategy: Strategy, profile: Profile, examples: int | None = None
) -> ForecastStep:
    """Price the ops, schedule them, account for the time, and compute the memory from the same trace."""
    _refuse_impossible(machine, strategy)
    machine = with_network_launch_costs(machine, profile)
    priced = _price(trace, machine, strategy, profile)
    pricer, prices, timeline = priced.pricer, priced.prices, priced.timeline
    parts = timeline.parts()
    spreads = spreads_of(machine, profile, pricer.pieces(priced.trace.ops))
    low, high = interval_of(timeline, machine, spreads)
    forecast = Forecast(
        job=trace.job,
        machine=machine.name,
        strategy=_described(strategy, machine),
        batch=trace.batch,
        step_seconds=timeline.step_seconds,
        low_seconds=low,
        high_seconds=high,
        parts=parts,
        memory=priced.memory,
        bound_by=max(parts, key=lambda part: parts[part]),
        device_seconds=priced.device_seconds,
        host_seconds=_host_seconds(timeline, machine, prices),
        families=_seconds_by_family(priced.trace, prices),
        examples=examples,
        inputs=trace.inputs,
        cautions=Cautions(pricer, timeline, machine, profile, trace).texts(),
        host=_host_of(machine),
        feed=_feed_parts(timeline),
        busy=timeline.busy_shares(),
        utilisation=_utilisation(timeline, machine),
        flop=priced.flop,
        parameters=trace.parameters,
        workers=workers_of(strategy, machine).count,
    )
    lanes = {lane for _, lane in timeline.critical_path()}
    known = {lane: spreads.of(lane) for lane in ("host", "device", *sorted(lanes))}
    return ForecastStep(forecast, dataclasses.replace(timeline, spreads=known))


class _Priced(NamedTuple):
    """A step with its prices, its schedule and its memory."""

    trace: Trace
    pricer: Pricer
    prices: list[Price]
    timeline: Timeline
    memory: memory.DeviceMemory
    device_seconds: float
    flop: float


def _price(trace: Trace, machine: Machine, strategy: Strategy, profile: Profile) -> _Priced:
    if strategy.is_parallel:
        return _price_workers(trace, machine, strategy, profile)
    pricer = Pricer(machine, strategy, trace, profile)
    prices = pricer.price(trace.ops)
    timeline = steady_timeline(build_step(contributors_of(trace, prices, machine, strategy, profile)))
    workspaces = [price.workspace_bytes for price in prices]
    needed = memory.account(trace, machine, strategy, workspaces, Rounding(**profile.rounding))
    return _Priced(trace, pricer, prices, timeline, needed, sum(p.device_seconds for p in prices), trace.flop)


def _price_workers(trace: Trace, machine: Machine, strategy: Strategy, profile: Profile) -> _Priced:
    step = step_of_workers(trace, machine, strategy, profile)
    timeline = steady_timeline(build_step(step.contributors()))
    prices = step.pricer.price(step.trace.ops)
    device = timeline.busy_seconds("device")
    return _Priced(step.trace, step.pricer, prices, timeline, memory_of_workers(step), device, step.flop)


def step_of_workers(trace: Trace, machine: Machine, strategy: Strategy, profile: Profile) -> ParallelStep:
    """The step of one of several workers; devices of one card share its power."""
    busy = min(workers_of(strategy, machine).count, machine.devices)
    return parallel_step(trace, machine.with_busy_boards(busy), strategy, profile)


def memory_of_workers(step: ParallelStep) -> memory.DeviceMemory:
    """The memory of the worker that needs most."""
    rounding = Rounding(**step.profile.rounding)
    return max(
        (
            memory.account(trace, step.machine, step.strategy, workspaces, rounding)
            for trace, workspaces in step.memory_traces()
        ),
        key=lambda needed: needed.total_bytes,
    )


def workers_fit(step: ParallelStep) -> bool:
    """Whether the step of every worker fits on its device."""
    rounding = Rounding(**step.profile.rounding)
    return all(
        memory.fits(trace, step.machine, step.strategy, workspaces, rounding)
        for trace, workspaces in step.memory_traces()
    )


def _refuse_impossible(machine: Machine, strategy: Strategy) -> None:
    if strategy.cudnn_benchmark and machine.device.kind == "cpu":
        raise BadInput(
            f"cudnn_benchmark needs a GPU; {machine.name} computes on its CPU.",
            hint="Leave --cudnn-benchmark out, or use --on a GPU machine.",
        )
    if strategy.expandable_segments and machine.device.kind == "cpu":
        raise BadInput(
            f"expandable_segments needs a GPU; {machine.name} computes on its CPU.",
            hint="Leave --expandable-segments out, or use --on a GPU machine.",
        )
    if strategy.execution == "graph" and machine.device.kind == "cpu":
        raise BadInput(
            f"execution=graph needs a GPU; {machine.name} computes on its CPU.",
            hint="Use --execution eager, or --on a GPU machine.",
        )
    if strategy.execution == "graph" and strategy.data != "resident":
        raise BadInput(
            f"execution=graph reads its batch from a fixed address, so data={strategy.data} is not possible.",
            hint="Use --data resident or --execution eager.",
        )
    for name in ("pinned", "direct", "prefetch"):
        if getattr(strategy, name) and strategy.data in LOADED and machine.device.kind == "cpu":
            raise BadInput(
                f"{name} is about copies to a GPU; {machine.name} computes on its CPU.",
                hint=f"Leave --{name} out, or use --on a GPU machine.",
            )
    if machine.launch_costs is None:
        raise BadInput(
            f"The description of {machine.name} has no launch costs.",
            hint="Load it with Machine.load or Machine.named, which fill them in.",
        )


def _described(strategy: Strategy, machine: Machine) -> dict[str, object]:
    """The strategy as it will be run: the machine's defaults filled in, fields without effect left out."""
    fields = strategy.fields()
    fields.pop("batch", None)
    if "tf32" not in machine.device.flop_rates and strategy.precision == "pytorch":
        fields["precision"] = "fp32"
    if machine.device.kind == "cpu":
        fields["threads"] = threads_of(machine, strategy)
        if not strategy.is_loaded:
            fields.pop("data")
    else:
        fields.pop("threads", None)
    if not strategy.prefetch:
        fields.pop("prefetch")
    return dict(fields)


def _host_of(machine: Machine) -> str:
    """The host that a GPU's forecast assumes; a CPU is its own host."""
    if machine.device.kind == "cpu":
        return ""
    factor = machine.host_factor
    slower = "" if factor is None else f"; measured host factor {factor:.2f}"
    return f"{machine.assumed_host or machine.host.model}{slower}"


def with_network_launch_costs(machine: Machine, profile: Profile) -> Machine:
    """Scale launch costs up: whole networks miss caches that the microbenchmarks hit."""
    costs = machine.launch_costs and machine.launch_costs.scaled(profile.launch_cost_factor)
    return dataclasses.replace(machine, launch_costs=costs)


def _host_seconds(timeline: Timeline, machine: Machine, prices: Sequence[Price]) -> float:
    if machine.device.kind == "gpu":
        return timeline.busy_seconds("host")
    return sum(price.host_seconds for price in prices)


def _feed_parts(timeline: Timeline) -> dict[str, float]:
    """Reading and decoding on the critical path; a label begins with one of the two."""
    parts: dict[str, float] = {}
    for label, seconds in timeline.labels_of("feed").items():
        name = "read" if label.startswith("read") else "decode"
        parts[name] = parts.get(name, 0.0) + seconds
    return parts


def _utilisation(timeline: Timeline, machine: Machine) -> float:
    """The share of a step in which the device works; a CPU works for launches too."""
    kinds = ("device",) if machine.device.kind == "gpu" else ("host", "device")
    busy = sum(
        task.seconds
        for task in timeline.step
        if task.lane.kind in kinds and task.lane.worker == 0 and task.part not in ("feed", "copy")
    )
    return min(1.0, busy / timeline.step_seconds) if timeline.step_seconds else 1.0


def _seconds_by_family(trace: Trace, prices: Sequence[Price]) -> dict[str, float]:
    families: dict[str, float] = {}
    for op, price in zip(trace.ops, prices, strict=True):
        if price.device_seconds > 0:
            families[op.family] = families.get(op.family, 0.0) + price.device_seconds
    return families
